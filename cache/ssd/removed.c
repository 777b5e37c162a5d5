/* SPDX-License-Identifier: Apache-2.0 */
/*
 * removed.c - tombstones of blocks that users removed from shared spaces, so
 * that no other node brings the blocks back; kept in STORE/removed.
 *
 * The tombstones are a ring of entries, in memory and in the file: the newest
 * tombstone replaces the oldest.  An entry is emptied when its key is saved
 * again.  Changed entries are written and synced before the commit that deletes
 * the blocks' records.
 *
 * If the file cannot be written, flushes of the blocks' spaces fail, and the
 * tombstones live until the mount ends or a later write succeeds.
 *
 * OWNS       cache->removed, and with it the file.
 *
 * INVARIANTS
 *   (1) An entry that is not empty is in the tree, and no other entry has its
 *       space and key.
 *   (2) An entry that differs from the file's is dirty, or being written.
 *   (3) Entries from @room on are empty.
 *   (4) A key whose block is here has no entry: the entry is emptied when the
 *       block is sealed, and at mount.
 *
 * LOCKING    cache->lock; none while the committer writes the file.
 */
#include "cache/ssd/ssd.h"
#include "common/bytes.h"
#include "common/crash_point.h"
#include "index/record.h"

#include <fcntl.h>
#include <search.h>
#include <sys/stat.h>

#define NAME "removed"
#define PLACES_MAX (1u << 18)
#define PART 64u /* the file has at most 1/64 of the bytes of ssd= */
#define AT_ONCE (KV_PAGE / sizeof(struct kv_removed_record)) /* in a page */
#define RETRY_NS UINT64_C(1000000000)

struct kv_removed {
	struct kv_removed_record *places;
	void *tree;	 /* tree of the entries in use, by space and key */
	uint64_t *dirty; /* bit for each entry that differs from the file */
	uint32_t n_dirty;
	uint32_t max;  /* constant: number of entries in memory */
	uint32_t room; /* number of entries for which the file has room */
	uint32_t at;   /* index of the entry to fill next */
	uint64_t number;
	/* Numbers of changes of entries so far, and of changes on disk. */
	uint64_t changes, written;
	/* when to retry a failed write; 0: no failure */
	uint64_t retry_at;
	bool noted; /* a failed write has been reported */
	bool kept;  /* constant: tombstones are kept in the file */
	int fd;	    /* used by the committer; -1: no file yet */
};

struct kv_removed_write {
	uint64_t changes;
	size_t n;
	struct {
		uint32_t place;
		struct kv_removed_record record;
	} items[];
};

/* ---- entries ---- */

static void stay(void *place)
{
	(void)place; /* entries are parts of one array: nothing to free */
}

void kv_removed_free(struct kv_removed *removed)
{
	if (!removed)
		return;
	kv_closep(&removed->fd);
	tdestroy(removed->tree, stay);
	free(removed->places);
	free(removed->dirty);
	free(removed);
}

/* Return an empty table; NULL: no memory.  Unused entries take no memory. */
static struct kv_removed *removed_new(const struct kv_cache *cache)
{
	const uint64_t n =
		cache->ssd.cap / PART / sizeof(struct kv_removed_record);
	const uint32_t max =
		cache->ssd.on
			? (uint32_t)KV_MIN(KV_MAX(n / AT_ONCE, 1u) * AT_ONCE,
					   PLACES_MAX)
			: PLACES_MAX;
	struct kv_removed *removed = calloc(1, sizeof(*removed));

	if (!removed)
		return NULL;
	removed->fd = -1;
	removed->max = max;
	removed->kept = cache->ssd.on && !cache->config.read_only;
	removed->room = removed->kept ? 0 : max;
	removed->places = calloc(max, sizeof(*removed->places));
	removed->dirty = calloc(max / 64 + 1, sizeof(*removed->dirty));
	if (!removed->places || !removed->dirty) {
		kv_removed_free(removed);
		return NULL;
	}
	return removed;
}

static int by_key(const void *a, const void *b)
{
	const struct kv_removed_record *x = a, *y = b;

	if (x->space != y->space)
		return x->space < y->space ? -1 : 1;
	if (x->key_len != y->key_len)
		return x->key_len < y->key_len ? -1 : 1;
	return memcmp(x->key, y->key, sizeof(x->key));
}

/* Return the tombstone of the key in @space; NULL: there is none. */
static struct kv_removed_record *find(const struct kv_cache *cache,
				      const struct kv_space *space,
				      const struct kv_key *key)
{
	struct kv_removed_record wanted = {.space = space->id,
					   .key_len = key->len};
	struct kv_removed_record **found = NULL;

	memcpy(wanted.key, key->b, sizeof(wanted.key));
	if (cache->removed)
		found = tfind(&wanted, &cache->removed->tree, by_key);
	return found ? *found : NULL;
}

static void changed(struct kv_cache *cache, uint32_t place)
{
	struct kv_removed *removed = cache->removed;
	const uint64_t bit = 1ull << place % 64;

	if (!removed->kept)
		return;
	removed->n_dirty += !(removed->dirty[place / 64] & bit);
	removed->dirty[place / 64] |= bit;
	removed->changes++;
	kv_commit_note_locked(cache);
}

static void empty(struct kv_cache *cache, struct kv_removed_record *record)
{
	tdelete(record, &cache->removed->tree, by_key);
	memset(record, 0, sizeof(*record));
	changed(cache, (uint32_t)(record - cache->removed->places));
}

void kv_removed_add_locked(struct kv_cache *cache, struct kv_space *space,
			   const struct kv_key *key)
{
	struct kv_removed_record *record;
	struct kv_removed *removed;

	kv_assert_locked(&cache->lock);
	if (!space->shared)
		return;
	if (!cache->removed)
		cache->removed = removed_new(cache);
	removed = cache->removed;
	if (!removed || find(cache, space, key))
		return;
	/* Let the file grow by one page, if ssd= leaves room for it. */
	if (removed->at == removed->room && removed->room < removed->max &&
	    kv_sidecars_grow_locked(cache, KV_PAGE))
		removed->room += AT_ONCE;
	if (removed->room == 0)
		return;
	if (removed->at == removed->room)
		removed->at = 0;
	record = &removed->places[removed->at];
	if (record->number)
		empty(cache, record);
	record->number = ++removed->number;
	record->space = space->id;
	record->key_len = key->len;
	memcpy(record->key, key->b, sizeof(record->key));
	if (!tsearch(record, &removed->tree, by_key)) {
		memset(record, 0, sizeof(*record));
		return;
	}
	changed(cache, removed->at++);
	space->removal = removed->changes;
}

void kv_removed_lift_locked(struct kv_cache *cache, struct kv_space *space,
			    const struct kv_key *key)
{
	struct kv_removed_record *record = find(cache, space, key);

	kv_assert_locked(&cache->lock);
	if (record)
		empty(cache, record);
}

bool kv_is_removed_locked(struct kv_cache *cache, struct kv_space *space,
			  const struct kv_key *key)
{
	kv_assert_locked(&cache->lock);
	return find(cache, space, key);
}

/* ---- written ---- */

bool kv_removed_dirty_locked(const struct kv_cache *cache)
{
	const struct kv_removed *removed = cache->removed;

	kv_assert_locked(&cache->lock);
	return removed && removed->n_dirty &&
	       (!removed->retry_at || kv_now_ns() >= removed->retry_at);
}

void kv_removed_retry_locked(struct kv_cache *cache)
{
	kv_assert_locked(&cache->lock);
	if (cache->removed)
		cache->removed->retry_at = 0;
}

bool kv_removed_written_locked(const struct kv_cache *cache, uint64_t changes)
{
	kv_assert_locked(&cache->lock);
	return !cache->removed || cache->removed->written >= changes;
}

int kv_removed_take_locked(struct kv_cache *cache,
			   struct kv_removed_write **ret_write)
{
	struct kv_removed *removed = cache->removed;
	struct kv_removed_write *write;

	kv_assert_locked(&cache->lock);
	*ret_write = NULL;
	if (!removed || !removed->n_dirty)
		return 0;
	write = malloc(sizeof(*write) +
		       removed->n_dirty * sizeof(write->items[0]));
	if (!write)
		return -ENOMEM;
	write->n = 0;
	write->changes = removed->changes;
	for (uint32_t word = 0; removed->n_dirty; word++)
		for (; removed->dirty[word]; removed->n_dirty--) {
			const uint32_t place =
				word * 64 +
				(uint32_t)__builtin_ctzll(removed->dirty[word]);

			removed->dirty[word] &= removed->dirty[word] - 1;
			write->items[write->n].place = place;
			write->items[write->n++].record =
				removed->places[place];
		}
	*ret_write = write;
	return 0;
}

int kv_removed_write(struct kv_cache *cache, struct kv_removed_write *write)
{
	struct kv_removed *removed = cache->removed;
	int r = 0;

	if (removed->fd < 0) {
		removed->fd =
			openat(cache->store_fd, NAME,
			       O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (removed->fd < 0 || fsync(cache->store_fd) < 0)
			r = -errno;
	}
	for (size_t i = 0; r == 0 && i < write->n; i++) {
		struct kv_removed_record *record = &write->items[i].record;
		const uint64_t at =
			(uint64_t)write->items[i].place * sizeof(*record);
		ssize_t n;

		if (record->number)
			record->checksum = KV_SUM_OF(record, NULL, 0);
		n = pwrite(removed->fd, record, sizeof(*record), (off_t)at);
		if (n != sizeof(*record))
			r = n < 0 ? -errno : -ENOSPC;
	}
	KV_POINT("removed.written");
	if (r == 0 && fdatasync(removed->fd) < 0)
		r = -errno;
	KV_POINT("removed.synced");
	return r;
}

void kv_removed_end_locked(struct kv_cache *cache,
			   struct kv_removed_write *write, int status)
{
	struct kv_removed *removed = cache->removed;

	kv_assert_locked(&cache->lock);
	if (!write)
		return;
	for (size_t i = 0; status < 0 && i < write->n; i++)
		changed(cache, write->items[i].place);
	if (status == 0) {
		removed->written = write->changes;
		removed->retry_at = 0;
	} else if (status != -EAGAIN) {
		/* Report the failure once: writes may fail for a long time. */
		if (!removed->noted)
			kv_note(cache,
				"removed=not written (%s): fsync of shared "
				"spaces fails after a removal, which is "
				"remembered until the mount ends",
				strerror(-status));
		removed->noted = true;
		removed->retry_at = kv_now_ns() + RETRY_NS;
		cache->stats.io_errors++;
		kv_flushes_fail_removals_locked(cache, write->changes, status);
	}
	free(write);
}

/* ---- mount and unmount ---- */

int kv_removed_adopt(struct kv_cache *cache)
{
	static const struct kv_removed_record none;
	const int flags = cache->config.read_only ? O_RDONLY : O_RDWR;
	struct kv_removed *removed;
	uint32_t n;
	long bytes;
	int fd, r = 0;

	if (!cache->ssd.on)
		return 0;
	fd = openat(cache->store_fd, NAME,
		    flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	removed = cache->removed = removed_new(cache);
	if (!removed) {
		close(fd);
		return -ENOMEM;
	}
	removed->fd = fd;
	bytes = kv_read_at(fd, 0, removed->places,
			   removed->max * sizeof(*removed->places));
	if (bytes < 0)
		return (int)bytes;
	/* Include the last page of the file, which may be partly written. */
	n = (uint32_t)KV_MIN(kv_round_up((uint64_t)bytes, KV_PAGE) /
				     sizeof(*removed->places),
			     removed->max);
	kv_lock(cache);
	removed->room = KV_MAX(removed->room, n);
	cache->ssd.sidecars += n * sizeof(struct kv_removed_record);
	for (uint32_t place = 0; place < n; place++) {
		struct kv_removed_record *record = &removed->places[place];
		struct kv_key key = {.len = record->key_len};
		struct kv_space *space = NULL;

		if (memcmp(record, &none, sizeof(none)) == 0)
			continue;
		memcpy(key.b, record->key, sizeof(key.b));
		if (kv_removed_record_whole(record)) {
			space = kv_space_with_id(cache, record->space);
			if (record->number > removed->number) {
				removed->number = record->number;
				removed->at = place + 1;
			}
		}
		if (space && !space->removed &&
		    !kv_table_find(cache, space, &key) &&
		    !find(cache, space, &key)) {
			if (tsearch(record, &removed->tree, by_key))
				continue;
			r = -ENOMEM;
			break;
		}
		memset(record, 0, sizeof(*record));
		changed(cache, place);
	}
	kv_unlock(cache);
	return r;
}

int kv_removed_trim(struct kv_cache *cache)
{
	const struct kv_removed *removed = cache->removed;
	struct stat st;
	off_t most;

	if (!removed || removed->fd < 0)
		return 0;
	most = (off_t)(removed->max * sizeof(struct kv_removed_record));
	if (fstat(removed->fd, &st) < 0 ||
	    (st.st_size > most && ftruncate(removed->fd, most) < 0))
		return -errno;
	return 0;
}
