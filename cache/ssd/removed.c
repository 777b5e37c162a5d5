/* SPDX-License-Identifier: Apache-2.0 */
/*
 * removed.c - what users removed of shared spaces, so that no other node brings
 * it back: STORE/removed.
 *
 * A ring of places, in memory and in the file: the newest takes the place of the
 * oldest.  A place is filled when a block is removed, and emptied when its key is
 * saved here again.  Places that changed are written, and synced, before the
 * commit that deletes records: no block is gone for good before it is known that
 * its user wanted that.
 *
 * If the file cannot be written, flushes of their spaces fail, and removals are
 * remembered until the mount ends or a later write succeeds.
 *
 * OWNS       cache->removed, and with it the file.
 *
 * INVARIANTS
 *   (1) A place that is not empty is in the list of its bucket, and no other one
 *       has its space and key.
 *   (2) A place that differs from the file's is dirty, or being written.
 *   (3) Places from @room on are empty.
 *   (4) A key of which a block is here has no place: it is emptied when that is
 *       sealed, and at mount.
 *
 * LOCKING    cache->lock; none while the file is written, which the committer
 *            does.
 */
#include "cache/core/table.h"
#include "cache/ssd/ssd.h"
#include "common/bytes.h"
#include "common/crash_point.h"
#include "index/record.h"

#include <fcntl.h>
#include <sys/stat.h>

#define NAME "removed"
#define PLACES_MAX (1u << 18)
#define PART 64u /* of the cap, the file has one part in so many at most */
#define AT_ONCE (KV_PAGE / sizeof(struct kv_removed_record)) /* places */
#define RETRY_NS UINT64_C(1000000000)

struct kv_removed {
	struct kv_removed_record *places;
	uint32_t *next, *buckets; /* KV_NONE: the end; buckets: @max, too */
	uint64_t *dirty;	  /* a bit a place */
	uint32_t n_dirty;
	uint32_t max;  /* fixed */
	uint32_t room; /* places that the file may have by now */
	uint32_t at;   /* the next to be filled */
	uint64_t number;
	/* Counts of changes: all; and those that are on disk. */
	uint64_t changes, written;
	uint64_t retry_at; /* 0: the last write succeeded */
	bool noted;	   /* a failed write */
	bool kept;	   /* fixed: there is a file, or will be */
	int fd;		   /* the committer's; -1: not there yet */
};

struct kv_removed_write {
	uint64_t changes;
	size_t n;
	struct {
		uint32_t place;
		struct kv_removed_record record;
	} items[];
};

/* ---- places ---- */

static void removed_free(struct kv_removed *removed)
{
	if (!removed)
		return;
	if (removed->fd >= 0)
		close(removed->fd);
	free(removed->places);
	free(removed->next);
	free(removed->buckets);
	free(removed->dirty);
	free(removed);
}

static uint32_t places_max(const struct kv_cache *cache)
{
	const uint64_t bytes = cache->ssd.cap / PART;
	const uint64_t n = bytes / sizeof(struct kv_removed_record);

	if (!cache->ssd.on)
		return PLACES_MAX;
	return (uint32_t)KV_MIN(KV_MAX(n / AT_ONCE, 1u) * AT_ONCE, PLACES_MAX);
}

/* NULL: no memory.  Of places that are not used no page is touched. */
static struct kv_removed *removed_new(const struct kv_cache *cache)
{
	struct kv_removed *removed = calloc(1, sizeof(*removed));
	const uint32_t max = places_max(cache);

	if (!removed)
		return NULL;
	removed->fd = -1;
	removed->max = max;
	removed->kept = cache->ssd.on && !cache->config.read_only;
	removed->room = removed->kept ? 0 : max;
	removed->places = calloc(max, sizeof(*removed->places));
	removed->next = calloc(max, sizeof(*removed->next));
	removed->buckets = malloc(max * sizeof(*removed->buckets));
	removed->dirty = calloc(max / 64 + 1, sizeof(*removed->dirty));
	if (!removed->places || !removed->next || !removed->buckets ||
	    !removed->dirty) {
		removed_free(removed);
		return NULL;
	}
	memset(removed->buckets, 0xff, max * sizeof(*removed->buckets));
	return removed;
}

/* Any number will do for a space that there is not. */
static uint32_t *bucket_of(const struct kv_cache *cache,
			   const struct kv_space *space, const uint8_t *key)
{
	struct kv_removed *removed = cache->removed;

	return &removed->buckets[kv_key_hash(cache, space, key) % removed->max];
}

static bool is_of(const struct kv_removed_record *record,
		  const struct kv_space *space, const struct kv_key *key)
{
	return record->space == space->id && record->key_len == key->len &&
	       memcmp(record->key, key->b, sizeof(record->key)) == 0;
}

static uint32_t find(const struct kv_cache *cache, const struct kv_space *space,
		     const struct kv_key *key)
{
	const struct kv_removed *removed = cache->removed;
	uint32_t place;

	if (!removed)
		return KV_NONE;
	place = *bucket_of(cache, space, key->b);
	while (place != KV_NONE && !is_of(&removed->places[place], space, key))
		place = removed->next[place];
	return place;
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

static void link_place(struct kv_cache *cache, const struct kv_space *space,
		       uint32_t place)
{
	struct kv_removed *removed = cache->removed;
	uint32_t *bucket = bucket_of(cache, space, removed->places[place].key);

	removed->next[place] = *bucket;
	*bucket = place;
}

/* Its space may be gone: its bucket is looked for by its id alone. */
static void empty(struct kv_cache *cache, uint32_t place)
{
	struct kv_removed *removed = cache->removed;
	struct kv_removed_record *record = &removed->places[place];
	const struct kv_space of = {.id = record->space};
	uint32_t *link = bucket_of(cache, &of, record->key);

	while (*link != place)
		link = &removed->next[*link];
	*link = removed->next[place];
	memset(record, 0, sizeof(*record));
	changed(cache, place);
}

/* Of the cap; what is over the sidecars' share must find room beside the segment
 * files. */
static bool charge(struct kv_cache *cache, uint64_t bytes)
{
	struct kv_ssd *ssd = &cache->ssd;

	ssd->sidecars += bytes;
	if (!kv_sidecars_over(cache) ||
	    ssd->live_files * ssd->segment_bytes + kv_sidecars_over(cache) <=
		    ssd->file_budget)
		return true;
	ssd->sidecars -= bytes;
	return false;
}

/* KV_NONE: there is not one place. */
static uint32_t next_place(struct kv_cache *cache)
{
	struct kv_removed *removed = cache->removed;

	if (removed->at == removed->room) {
		if (removed->room < removed->max && charge(cache, KV_PAGE))
			removed->room += AT_ONCE;
		else
			removed->at = 0;
	}
	if (removed->room == 0)
		return KV_NONE;
	if (removed->places[removed->at].number)
		empty(cache, removed->at);
	return removed->at++;
}

void kv_removed_add_locked(struct kv_cache *cache, struct kv_space *space,
			   const struct kv_key *key)
{
	struct kv_removed_record *record;
	uint32_t place;

	kv_assert_locked(&cache->lock);
	if (!space->shared)
		return;
	if (!cache->removed)
		cache->removed = removed_new(cache);
	if (!cache->removed || find(cache, space, key) != KV_NONE)
		return;
	place = next_place(cache);
	if (place == KV_NONE)
		return;
	record = &cache->removed->places[place];
	record->number = ++cache->removed->number;
	record->space = space->id;
	record->key_len = key->len;
	memcpy(record->key, key->b, sizeof(record->key));
	link_place(cache, space, place);
	changed(cache, place);
	space->removal = cache->removed->changes;
}

void kv_removed_lift_locked(struct kv_cache *cache, struct kv_space *space,
			    const struct kv_key *key)
{
	uint32_t place = find(cache, space, key);

	kv_assert_locked(&cache->lock);
	if (place != KV_NONE)
		empty(cache, place);
}

bool kv_is_removed_locked(struct kv_cache *cache, struct kv_space *space,
			  const struct kv_key *key)
{
	kv_assert_locked(&cache->lock);
	return find(cache, space, key) != KV_NONE;
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

static int make_file(struct kv_cache *cache)
{
	struct kv_removed *removed = cache->removed;

	if (removed->fd >= 0)
		return 0;
	removed->fd = openat(cache->store_fd, NAME,
			     O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (removed->fd < 0)
		return -errno;
	return fsync(cache->store_fd) < 0 ? -errno : 0;
}

static int write_places(int fd, struct kv_removed_write *write)
{
	for (size_t i = 0; i < write->n; i++) {
		struct kv_removed_record *record = &write->items[i].record;
		const uint64_t at =
			(uint64_t)write->items[i].place * sizeof(*record);
		ssize_t n;

		if (record->number)
			kv_removed_record_seal(record);
		n = pwrite(fd, record, sizeof(*record), (off_t)at);
		if (n != sizeof(*record))
			return n < 0 ? -errno : -ENOSPC;
	}
	return 0;
}

int kv_removed_write(struct kv_cache *cache, struct kv_removed_write *write)
{
	int r = make_file(cache);

	if (r == 0)
		r = write_places(cache->removed->fd, write);
	KV_POINT("removed.written");
	if (r == 0 && fdatasync(cache->removed->fd) < 0)
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
		/* One note: it may go on for long. */
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

/* ---- at mount, and at its end ---- */

/* 1: this place shall be empty. */
static int take_in(struct kv_cache *cache, uint32_t place)
{
	struct kv_removed *removed = cache->removed;
	struct kv_removed_record *record = &removed->places[place];
	struct kv_key key = {.len = record->key_len};
	struct kv_space *space;

	if (!kv_removed_record_whole(record))
		return 1;
	if (record->number > removed->number) {
		removed->number = record->number;
		removed->at = place + 1;
	}
	memcpy(key.b, record->key, sizeof(key.b));
	space = kv_space_with_id(cache, record->space);
	if (!space || space->removed || kv_table_find(cache, space, &key) ||
	    find(cache, space, &key) != KV_NONE)
		return 1;
	link_place(cache, space, place);
	return 0;
}

static bool is_empty(const struct kv_removed_record *record)
{
	static const struct kv_removed_record none;

	return memcmp(record, &none, sizeof(none)) == 0;
}

static void take_all_in(struct kv_cache *cache, uint32_t n)
{
	struct kv_removed *removed = cache->removed;

	for (uint32_t place = 0; place < n; place++) {
		struct kv_removed_record *record = &removed->places[place];

		if (is_empty(record) || take_in(cache, place) == 0)
			continue;
		memset(record, 0, sizeof(*record));
		changed(cache, place);
	}
}

/* As much as there is, up to the last whole page of places. */
static int read_file(struct kv_removed *removed, uint32_t *ret_n)
{
	const long n = kv_read_at(removed->fd, 0, removed->places,
				  removed->max * sizeof(*removed->places));

	if (n < 0)
		return (int)n;
	*ret_n = (uint32_t)KV_MIN(kv_round_up((uint64_t)n, KV_PAGE) /
					  sizeof(*removed->places),
				  removed->max);
	return 0;
}

int kv_removed_adopt(struct kv_cache *cache)
{
	const int flags = cache->config.read_only ? O_RDONLY : O_RDWR;
	uint32_t n = 0;
	int fd, r;

	if (!cache->ssd.on)
		return 0;
	fd = openat(cache->store_fd, NAME,
		    flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	cache->removed = removed_new(cache);
	if (!cache->removed) {
		close(fd);
		return -ENOMEM;
	}
	cache->removed->fd = fd;
	r = read_file(cache->removed, &n);
	if (r < 0)
		return r;
	kv_lock(cache);
	cache->removed->room = KV_MAX(cache->removed->room, n);
	cache->ssd.sidecars += n * sizeof(struct kv_removed_record);
	take_all_in(cache, n);
	kv_unlock(cache);
	return 0;
}

int kv_removed_trim(struct kv_cache *cache)
{
	const struct kv_removed *removed = cache->removed;
	const off_t most = removed ? (off_t)(removed->max *
					     sizeof(struct kv_removed_record))
				   : 0;
	struct stat st;

	if (!removed || removed->fd < 0)
		return 0;
	if (fstat(removed->fd, &st) < 0)
		return -errno;
	return st.st_size > most && ftruncate(removed->fd, most) < 0 ? -errno
								     : 0;
}

void kv_removed_fini(struct kv_cache *cache)
{
	removed_free(kv_steal(cache->removed));
}
