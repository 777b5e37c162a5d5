/* SPDX-License-Identifier: Apache-2.0 */
/*
 * env.c - the LMDB environment below the index: opening it, its memory, and
 * transactions.
 *
 * Once a write of its meta page has failed, LMDB refuses every later
 * transaction of the environment.  After a fault in its map the environment
 * must not be used.  In both cases the disk may work again, so the environment
 * is opened anew before the next transaction.
 *
 * OWNS       index->env, from open to close; the write transaction of a batch.
 *
 * STATES     of a batch, and the function that makes each step:
 *
 *               OPEN -> FAILED   any put or delete that returns an error
 *               OPEN -> (freed)  kv_txn_commit, kv_txn_abort
 *             FAILED -> (freed)  kv_txn_abort; kv_txn_commit returns the first
 *             error
 *
 * INVARIANTS
 *   (1) The file was checked before it was opened (check.c), so each page in use
 *       is in the file.  Later pages may be missing: LMDB does not write pages
 *       that were taken and freed in one transaction, nor read them.
 *   (2) The map is at least SPARE bytes larger than the file was when opened,
 *       so that a store whose cap became smaller can still delete.
 *   (3) After a fault inside LMDB, LMDB's memory and the writers' mutex are
 *       leaked together with the environment, which is never used again.
 *   (4) Each thread with a transaction holds the guard shared; a thread that
 *       replaces the environment holds the guard alone.  A thread with a batch
 *       does not replace it: it would wait for itself.
 *   (5) Puts never take the last RESERVE of the map: a deletion copies pages
 *       before it frees any.  LMDB reuses pages freed by one transaction two
 *       transactions later: the reserve is enough for batches of 300 deletions,
 *       each in a leaf of its own.
 *   (6) Nothing of a FAILED batch reaches the disk.
 *
 * LOCKING    index->guard.  A thread with a transaction may begin another one: the
 *            guard admits readers while a writer waits.  LMDB admits one writer
 *            at a time; a batch belongs to the thread that began it.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "index/env.h"
#include "common/sigbus_guard.h"
#include "index/record.h"

#define SPARE (1u << 20)
#define DISK_FULL (1u << 20) /* if fewer bytes are free, EIO means ENOSPC */
#define READERS 512	     /* limit of concurrent kv_index_get calls */
#define LOCK_FILE "index/lock.mdb"
/* size of the lock file that LMDB makes */
#define LOCK_BYTES (64 * (READERS + 2))
#define DATABASES 8
#define WINDOW (128u << 10)

static void fclosep(FILE **f)
{
	if (*f)
		fclose(*f);
}

static void env_closep(MDB_env **env)
{
	if (*env)
		mdb_env_close(*env);
}

void kv_txn_abortp(MDB_txn **txn)
{
	if (*txn)
		mdb_txn_abort(*txn);
}

void kv_cursor_closep(MDB_cursor **cursor)
{
	if (*cursor)
		mdb_cursor_close(*cursor);
}

int kv_env_errno(int rc)
{
	switch (rc) {
	case MDB_SUCCESS:
		return 0;
	case MDB_NOTFOUND:
		return -ENOENT;
	case MDB_MAP_FULL:
	case MDB_TXN_FULL:
	case EDQUOT:
		return -ENOSPC;
	case MDB_READERS_FULL:
		return -ENOMEM;
	case MDB_CORRUPTED:
	case MDB_PAGE_NOTFOUND:
	case MDB_INVALID:
	case MDB_VERSION_MISMATCH:
	case MDB_INCOMPATIBLE:
	case MDB_BAD_VALSIZE:
		return -EBADMSG;
	default:
		return rc > 0 ? -rc : -EIO;
	}
}

uint64_t kv_env_file_bytes(MDB_env *env)
{
	struct stat st;
	int fd;

	if (mdb_env_get_fd(env, &fd) != 0 || fstat(fd, &st) < 0)
		return 0;
	return (uint64_t)st.st_size;
}

/* Search /proc/self/maps. */
int kv_env_find_map(MDB_env *env, uint8_t **ret_map, size_t *ret_bytes)
{
	_cleanup_(fclosep) FILE *maps = NULL;
	char link[64], path[PATH_MAX], line[PATH_MAX + 128];
	uintptr_t from, to;
	ssize_t n;
	int fd, at;

	if (mdb_env_get_fd(env, &fd) != 0)
		return -EIO;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	n = readlink(link, path, sizeof(path) - 1);
	maps = fopen("/proc/self/maps", "re");
	if (n < 0 || !maps)
		return -errno;
	path[n] = 0;

	while (fgets(line, sizeof(line), maps)) {
		line[strcspn(line, "\n")] = 0;
		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %*s %n",
			   &from, &to, &at) != 2 ||
		    strcmp(line + at, path) != 0)
			continue;
		*ret_map = (uint8_t *)from;
		*ret_bytes = to - from;
		return 0;
	}
	return -ENOENT;
}

void kv_index_lock_file_check(int store_fd)
{
	struct flock lock = {.l_type = F_WRLCK, .l_len = 1};
	_cleanup_(kv_closep) int fd =
		openat(store_fd, LOCK_FILE,
		       O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;

	/* LMDB locks the first byte of its lock file unless that byte is
	 * locked, and then initializes the file, whatever its contents. */
	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
	    st.st_nlink != 1 || st.st_size != LOCK_BYTES ||
	    fcntl(fd, F_GETLK, &lock) < 0 || lock.l_type != F_UNLCK)
		unlinkat(store_fd, LOCK_FILE, 0);
}

static void assert_failed(MDB_env *env, const char *text)
{
	(void)env;
	(void)text;
	kv_sigbus_guard_leave();
}

int kv_env_open(const char *path, uint64_t map_bytes, bool read_only,
		MDB_env **ret_env)
{
	_cleanup_(env_closep) MDB_env *env = NULL;
	unsigned flags = MDB_NOTLS | MDB_NORDAHEAD;
	int r, dead;

	/* A read-only mount locks STORE: no process writes to the index. */
	if (read_only)
		flags |= MDB_RDONLY | MDB_NOLOCK;
	r = kv_env_errno(mdb_env_create(&env));
	if (r < 0)
		return r;
	mdb_env_set_assert(env, assert_failed);
	mdb_env_set_maxdbs(env, DATABASES);
	mdb_env_set_maxreaders(env, READERS);
	mdb_env_set_mapsize(env, kv_round_up(map_bytes, KV_PAGE));
	r = kv_env_errno(mdb_env_open(env, path, flags, 0600));
	if (r < 0)
		return r;

	if (kv_env_file_bytes(env) + SPARE > map_bytes) {
		r = kv_env_errno(mdb_env_set_mapsize(
			env,
			kv_round_up(kv_env_file_bytes(env) + SPARE, KV_PAGE)));
		if (r < 0)
			return r;
	}
	mdb_reader_check(env, &dead);
	*ret_env = kv_steal(env);
	return 0;
}

/* Read ahead in pieces: the kernel cuts requests to its read-ahead size. */
void kv_env_fetch(MDB_env *env)
{
	const uint64_t bytes = kv_env_file_bytes(env);
	int fd;

	if (mdb_env_get_fd(env, &fd) != 0)
		return;
	for (uint64_t at = 0; at < bytes; at += WINDOW)
		posix_fadvise(fd, (off_t)at, WINDOW, POSIX_FADV_WILLNEED);
}

void kv_env_drop(MDB_env *env)
{
	uint8_t *map = NULL;
	size_t bytes = 0;

	if (kv_env_find_map(env, &map, &bytes) == 0)
		madvise(map, bytes, MADV_DONTNEED);
}

int kv_env_free_pages(MDB_env *env, uint64_t *ret_pages)
{
	_cleanup_(kv_txn_abortp) MDB_txn *txn = NULL;
	_cleanup_(kv_cursor_closep) MDB_cursor *cursor = NULL;
	MDB_val key, value;
	uint64_t pages = 0;
	size_t n;
	int rc;

	/*
	 * Database 0 is the free list: each record is a count and then page
	 * numbers.  A write transaction may not read this database.
	 */
	rc = mdb_txn_begin(env, NULL, MDB_RDONLY, &txn);
	if (rc == 0)
		rc = mdb_cursor_open(txn, 0, &cursor);
	if (rc != 0)
		return kv_env_errno(rc);
	while ((rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
		if (value.mv_size < sizeof(n))
			return -EBADMSG;
		memcpy(&n, value.mv_data, sizeof(n));
		pages += n;
	}
	if (rc != MDB_NOTFOUND)
		return kv_env_errno(rc);
	*ret_pages = pages;
	return 0;
}

int kv_fault_guard(struct kv_index *index, int (*call)(void *arg), void *arg)
{
	int rc = kv_sigbus_guard(call, arg);

	if (rc != -EFAULT)
		return rc;
	index->broken = true;
	return MDB_PANIC;
}

struct beginning {
	struct kv_index *index;
	unsigned flags;
	MDB_txn *txn;
};

static int begin_guarded(void *arg)
{
	struct beginning *b = arg;

	return mdb_txn_begin(b->index->env, NULL, b->flags, &b->txn);
}

static int begin_txn(struct kv_index *index, unsigned flags, MDB_txn **ret_txn)
{
	struct beginning b = {.index = index, .flags = flags};
	int rc = MDB_PANIC;

	if (index->env && !index->broken)
		rc = kv_fault_guard(index, begin_guarded, &b);
	if (rc == 0)
		*ret_txn = b.txn;
	return rc;
}

static int reopen_guarded(void *index)
{
	return kv_index_reopen(index);
}

/* number of batches of this thread; each holds the guard */
static _Thread_local unsigned batches;

/* Replace the environment after LMDB began to refuse every transaction. */
static void env_renew(struct kv_index *index)
{
	_cleanup_(kv_txn_abortp) MDB_txn *txn = NULL;
	int rc;

	pthread_rwlock_wrlock(&index->guard);
	rc = begin_txn(index, MDB_RDONLY, &txn);
	if (rc == MDB_PANIC) { /* else another thread reopened @env */
		if (index->env)
			mdb_env_close(kv_steal(index->env));
		index->broken = false;
		kv_fault_guard(index, reopen_guarded, index);
	}
	if (txn)
		mdb_txn_abort(kv_steal(txn));
	pthread_rwlock_unlock(&index->guard);
}

int kv_txn_guard_enter(struct kv_index *index, unsigned flags,
		       MDB_txn **ret_txn)
{
	int rc = MDB_PANIC;

	for (int try = 0; try < 2; try++) {
		pthread_rwlock_rdlock(&index->guard);
		rc = begin_txn(index, flags, ret_txn);
		if (rc == 0)
			return 0;
		pthread_rwlock_unlock(&index->guard);
		if (rc != MDB_PANIC || batches > 0)
			break;
		if (try == 0)
			env_renew(index);
	}
	return kv_env_errno(rc);
}

/* ---- batches ---- */

#define RESERVE 8	 /* puts leave 1 / RESERVE of the map's pages free */
#define RESERVE_MIN 1024 /* pages */
#define LEAF_VALUE 2000	 /* bytes; longer values may need consecutive pages */
#define NEAR_IDS 8	 /* this many consecutive ids usually share a leaf */
#define NEAR_FULL 16384	 /* if more pages are unused, skip the free list */

struct kv_txn {
	struct kv_index *index;
	MDB_txn *txn;
	bool entered;	   /* this thread holds the guard */
	int failed;	   /* first error of a call for the batch */
	uint64_t puttable; /* bytes of the map that may still be put */
	/* lower bound of the contiguous unused bytes at the map's end */
	uint64_t unused;
	uint64_t last_id; /* id of the record put last */
	enum kv_index_part last_part;
	uint64_t last_tokens; /* slot id of the token ids put last */
};

static void txn_abortp(struct kv_txn **batch)
{
	kv_txn_abort(*batch);
}

static uint64_t reserve_of(uint64_t pages)
{
	return KV_MIN(KV_MAX(pages / RESERVE, RESERVE_MIN), pages / 2);
}

uint64_t kv_index_puttable(uint64_t map_bytes)
{
	const uint64_t pages = map_bytes / KV_PAGE;

	return (pages - reserve_of(pages)) * KV_PAGE;
}

uint64_t kv_index_records_max(uint64_t cap)
{
	uint64_t pages = kv_index_map_bytes(cap) / KV_PAGE;

	/* 1/16 is for other databases, and for pages freed a moment ago. */
	return (pages - reserve_of(pages) - pages / 16) * KV_PAGE / KV_PUT_NEAR;
}

/* Count the bytes that puts may take.  Unused pages are cheap to count; read
 * the free list only when few of them are left. */
static int count_room(void *arg)
{
	struct kv_txn *batch = arg;
	uint64_t total, reserve, room, free_pages = 0;
	MDB_envinfo info;
	MDB_stat stat;
	int r;

	mdb_env_info(batch->index->env, &info);
	mdb_env_stat(batch->index->env, &stat);
	total = info.me_mapsize / stat.ms_psize;
	reserve = reserve_of(total);
	room = total - KV_MIN(total, info.me_last_pgno + 1);
	if (room < reserve + NEAR_FULL) {
		r = kv_env_free_pages(batch->index->env, &free_pages);
		if (r < 0)
			return r;
		room += free_pages;
	}
	batch->unused =
		(total - KV_MIN(total, info.me_last_pgno + 1)) * stat.ms_psize;
	batch->puttable = (room - KV_MIN(room, reserve)) * stat.ms_psize;
	atomic_store(&batch->index->room, batch->puttable);
	return 0;
}

/* Call LMDB.  MDB_PANIC: LMDB failed, and the transaction of @batch is lost. */
static int call_guarded(struct kv_txn *batch, int (*call)(void *arg), void *arg)
{
	int rc = MDB_PANIC;

	if (batch->txn)
		rc = kv_fault_guard(batch->index, call, arg);
	if (rc == MDB_PANIC)
		batch->txn = NULL;
	return rc;
}

int kv_txn_begin(struct kv_index *index, struct kv_txn **ret_txn)
{
	_cleanup_(txn_abortp) struct kv_txn *batch = NULL;
	int r;

	if (index->read_only)
		return -EROFS;
	batch = calloc(1, sizeof(*batch));
	if (!batch)
		return -ENOMEM;
	batch->index = index;
	batch->last_tokens = UINT64_MAX / 2; /* no id is near */
	batch->last_part = KV_PARTS;
	r = kv_txn_guard_enter(index, 0, &batch->txn);
	if (r < 0)
		return r;
	batch->entered = true;
	batches++;
	r = call_guarded(batch, count_room, batch);
	if (r < 0)
		return r == MDB_PANIC ? -EIO : r;
	*ret_txn = kv_steal(batch);
	return 0;
}

/* Note @r as the batch's result if it is the batch's first error. */
static int note(struct kv_txn *batch, int r)
{
	if (r < 0 && batch->failed == 0)
		batch->failed = r;
	return r;
}

struct change {
	MDB_txn *txn;
	MDB_dbi dbi;
	MDB_val key, value; /* without data the record is deleted */
};

static int do_change(void *arg)
{
	struct change *c = arg;

	return c->value.mv_data ? mdb_put(c->txn, c->dbi, &c->key, &c->value, 0)
				: mdb_del(c->txn, c->dbi, &c->key, NULL);
}

static int put_value(struct kv_txn *batch, enum kv_index_part part, uint64_t id,
		     MDB_val value)
{
	struct change c = {batch->txn,
			   batch->index->parts[part],
			   {sizeof(id), &id},
			   value};
	uint64_t cost;
	bool near;

	if (part == KV_PART_TOKENS) {
		near = id - batch->last_tokens <= NEAR_IDS;
		batch->last_tokens = id;
	} else {
		near = part == batch->last_part &&
		       id - batch->last_id <= NEAR_IDS;
		batch->last_part = part;
		batch->last_id = id;
	}
	/* Charge the most bytes that this put may take; LMDB knows the number
	 * only at commit.  Leaves are at least half full, so consecutive
	 * records cost twice their bytes.  Other records copy and split a leaf,
	 * and change its parent. */
	cost = 2 * (value.mv_size + 2 * sizeof(id)) +
	       (near ? 0 : KV_PUT_FAR - KV_PUT_NEAR);
	if (batch->puttable < cost)
		return note(batch, -ENOSPC);
	batch->puttable -= cost;
	batch->unused -= KV_MIN(cost, batch->unused);
	return note(batch, kv_env_errno(call_guarded(batch, do_change, &c)));
}

int kv_txn_delete(struct kv_txn *batch, enum kv_index_part part, uint64_t id)
{
	struct change c = {
		batch->txn, batch->index->parts[part], {sizeof(id), &id}, {0}};
	int rc = call_guarded(batch, do_change, &c);

	return rc == MDB_NOTFOUND ? 0 : note(batch, kv_env_errno(rc));
}

bool kv_txn_has_room(const struct kv_txn *batch, uint64_t bytes)
{
	return batch->puttable >= bytes;
}

bool kv_txn_has_room_for_ids(const struct kv_txn *batch, uint32_t n,
			     uint32_t extras_len, uint64_t bytes)
{
	const uint64_t value = sizeof(struct kv_tokens_record) +
			       (uint64_t)n * sizeof(uint32_t) + extras_len;
	const uint64_t cost = KV_PUT_FAR - KV_PUT_NEAR + bytes +
			      2 * (value + 2 * sizeof(uint64_t));

	return batch->puttable >= cost &&
	       (value < LEAF_VALUE || batch->unused >= cost);
}

int kv_txn_put_slot(struct kv_txn *batch, uint64_t slot_id,
		    const struct kv_slot_record *record)
{
	struct kv_slot_record copy = *record;

	copy.checksum = kv_slot_sum(&copy, slot_id);
	return put_value(batch, KV_PART_SLOTS, slot_id,
			 (MDB_val){sizeof(copy), &copy});
}

int kv_txn_put_token_ids(struct kv_txn *batch, uint64_t slot_id,
			 uint64_t generation, const struct kv_token_ids *ids)
{
	_cleanup_(kv_freep) void *value = NULL;
	size_t bytes;
	int r = kv_tokens_pack(ids, slot_id, generation, &value, &bytes);

	if (r < 0)
		return note(batch, r);
	return put_value(batch, KV_PART_TOKENS, slot_id,
			 (MDB_val){bytes, value});
}

int kv_txn_put_space(struct kv_txn *batch, const struct kv_space_record *record,
		     const char *name, const char *layout)
{
	_cleanup_(kv_freep) char *value = NULL;
	size_t bytes;
	int r = kv_space_pack(record, name, layout ? layout : "", &value,
			      &bytes);

	if (r < 0)
		return note(batch, r);
	return put_value(batch, KV_PART_SPACES, record->id,
			 (MDB_val){bytes, value});
}

int kv_txn_put_snapshot(struct kv_txn *batch,
			const struct kv_snapshot_record *record,
			const char *name, const struct kv_snapshot_item *items)
{
	_cleanup_(kv_freep) char *value = NULL;
	struct kv_snapshot_record copy = *record;
	const size_t bytes = copy.count * sizeof(*items);
	char *tail;

	copy.name_len = (uint32_t)strlen(name);
	value = malloc(sizeof(copy) + copy.name_len + bytes);
	if (!value)
		return note(batch, -ENOMEM);

	tail = value + sizeof(copy);
	memcpy(tail, name, copy.name_len);
	memcpy(tail + copy.name_len, items, bytes);
	copy.checksum = kv_snapshot_sum(&copy, tail);
	memcpy(value, &copy, sizeof(copy));
	return put_value(
		batch, KV_PART_SNAPSHOTS, copy.id,
		(MDB_val){sizeof(copy) + copy.name_len + bytes, value});
}

int kv_txn_put_segfile(struct kv_txn *batch,
		       const struct kv_segfile_record *record)
{
	struct kv_segfile_record copy = *record;

	copy.checksum = KV_SUM_OF(&copy, NULL, 0);
	return put_value(batch, KV_PART_SEGMENTS, copy.id,
			 (MDB_val){sizeof(copy), &copy});
}

/* Put the store record, and if the mount ended cleanly the clock of last uses:
 * allowed in a full map, because their sizes are constant. */
int kv_txn_put_info(struct kv_txn *batch, const struct kv_store_info *info)
{
	struct kv_store_record record;
	struct kv_uses_record uses = {.clock = info->clock,
				      .floor = info->floor,
				      .mounts = info->mounts};
	struct change c = {batch->txn,
			   batch->index->meta,
			   kv_store_key(),
			   {sizeof(record), &record}};
	int r;

	kv_store_info_pack(info, &record);
	r = note(batch, kv_env_errno(call_guarded(batch, do_change, &c)));
	if (r < 0 || !info->clean)
		return r;
	uses.checksum = KV_SUM_OF(&uses, NULL, 0);
	c.key = kv_uses_key();
	c.value = (MDB_val){sizeof(uses), &uses};
	return note(batch, kv_env_errno(call_guarded(batch, do_change, &c)));
}

static int do_commit(void *txn)
{
	return mdb_txn_commit(txn);
}

int kv_txn_commit(struct kv_txn *batch)
{
	int r = batch->failed, fd;
	struct statvfs st;

	if (r == 0)
		r = kv_env_errno(call_guarded(batch, do_commit, batch->txn));
	if (batch->failed == 0)
		batch->txn = NULL;
	/* LMDB reports a write that a full disk cut short as an I/O error. */
	if (r == -EIO && mdb_env_get_fd(batch->index->env, &fd) == 0 &&
	    fstatvfs(fd, &st) == 0 && st.f_bavail * st.f_frsize < DISK_FULL)
		r = -ENOSPC;
	kv_txn_abort(batch);
	return r;
}

void kv_txn_abort(struct kv_txn *batch)
{
	if (!batch)
		return;
	if (batch->txn)
		mdb_txn_abort(batch->txn);
	if (batch->entered) {
		pthread_rwlock_unlock(&batch->index->guard);
		batches--;
	}
	free(batch);
}
