/* SPDX-License-Identifier: Apache-2.0 */
/*
 * env.c - the LMDB environment below the index: opening it, its memory, and
 * where transactions begin, so that it can be opened anew.
 *
 * Once a write of its meta page has failed, LMDB refuses every transaction of
 * the environment, for good; after a fault nobody may use it.  The
 * disk may be well again: then a new one works.
 *
 * OWNS      index->env, from open to close.
 *
 * INVARIANTS
 *   (1) The whole map up to the last page can be read without SIGBUS once
 *       kv_env_open has returned.
 *   (2) The map is at least SPARE bytes larger than the file was when opened,
 *       so that a store whose cap became smaller can still delete.
 *   (3) What LMDB does when its map cannot be read leaves memory, and the
 *       writers' mutex: both go with the environment, which nobody uses any
 *       more.
 *   (4) Whoever has a transaction holds the guard, shared; the environment is
 *       changed by who holds it alone.
 *
 * LOCKING   index->guard.  A thread with a transaction may begin another: the
 *           guard lets readers in while somebody waits to have it alone.
 */
#include "index/env.h"
#include "common/sigbus_guard.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#define SPARE (1u << 20)
#define DISK_FULL (1u << 20) /* less than one batch may need */
#define ROOM (256u << 10)    /* for some batches on a full disk */
#define READERS 512	     /* kv_index_get at the same time */
#define LOCK_FILE "index/lock.mdb"
#define LOCK_BYTES (64 * (READERS + 2)) /* as LMDB makes it for them */
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

bool kv_env_disk_full(MDB_env *env)
{
	struct statvfs st;
	int fd;

	return mdb_env_get_fd(env, &fd) == 0 && fstatvfs(fd, &st) == 0 &&
	       st.f_bavail * st.f_frsize < DISK_FULL;
}

/* Pages that LMDB took and freed at once were never written: they are holes,
 * which need room, too, when they are used again. */
void kv_env_keep_room(MDB_env *env)
{
	MDB_envinfo info;
	MDB_stat stat;
	uint64_t end;
	int fd;

	mdb_env_info(env, &info);
	mdb_env_stat(env, &stat);
	end = (info.me_last_pgno + 1) * stat.ms_psize;
	end = KV_MIN(end + ROOM, info.me_mapsize);
	if (mdb_env_get_fd(env, &fd) == 0)
		(void)fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)end);
}

/* LMDB tells nobody where its map is. */
static int find_map(MDB_env *env, uint8_t **ret_map, size_t *ret_bytes)
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

/*
 * LMDB does not write pages that were taken and freed in one transaction, so
 * the file of a good store may end before its last page, too.
 */
static int make_whole(MDB_env *env, bool read_only)
{
	uint64_t want, have = kv_env_file_bytes(env);
	MDB_envinfo info;
	MDB_stat stat;
	uint8_t *map;
	size_t map_bytes;
	int fd, r;

	mdb_env_info(env, &info);
	mdb_env_stat(env, &stat);
	want = (info.me_last_pgno + 1) * stat.ms_psize;
	if (have >= want)
		return 0;
	if (mdb_env_get_fd(env, &fd) != 0)
		return -EIO;
	if (!read_only)
		return ftruncate(fd, (off_t)want) < 0 ? -errno : 0;

	r = find_map(env, &map, &map_bytes);
	if (r < 0)
		return -EBADMSG;
	have = kv_round_up(have, KV_PAGE);
	want = KV_MIN(kv_round_up(want, KV_PAGE), map_bytes);
	if (have < want &&
	    mmap(map + have, want - have, PROT_READ,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
		return -errno;
	return 0;
}

void kv_index_lock_file_check(int store_fd)
{
	struct flock lock = {.l_type = F_WRLCK, .l_len = 1};
	_cleanup_(kv_closep) int fd =
		openat(store_fd, LOCK_FILE,
		       O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	struct stat st;

	/* Nobody else has the first byte locked: then LMDB will, and
	 * initializes the file, whatever is in it. */
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

	/* Nobody writes a read-only store: STORE is locked against others. */
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
	r = make_whole(env, read_only);
	if (r < 0)
		return r;
	*ret_env = kv_steal(env);
	return 0;
}

/* The kernel cuts a longer request off at its read-ahead window. */
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

	if (find_map(env, &map, &bytes) == 0)
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
	 * Database 0 is the free list, in each record a count and then page
	 * numbers.  A transaction that writes may not look at it.
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

static int begin(void *arg)
{
	struct beginning *b = arg;

	return mdb_txn_begin(b->index->env, NULL, b->flags, &b->txn);
}

static int begin_txn(struct kv_index *index, unsigned flags, MDB_txn **ret_txn)
{
	struct beginning b = {.index = index, .flags = flags};
	int rc = MDB_PANIC;

	if (index->env && !index->broken)
		rc = kv_fault_guard(index, begin, &b);
	if (rc == 0)
		*ret_txn = b.txn;
	return rc;
}

static int reopen(void *index)
{
	return kv_index_reopen(index);
}

static void renew(struct kv_index *index)
{
	_cleanup_(kv_txn_abortp) MDB_txn *txn = NULL;
	int rc;

	pthread_rwlock_wrlock(&index->guard);
	rc = begin_txn(index, MDB_RDONLY, &txn);
	if (rc == MDB_PANIC) { /* else somebody was faster */
		if (index->env)
			mdb_env_close(kv_steal(index->env));
		index->broken = false;
		kv_fault_guard(index, reopen, index);
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
		if (rc != MDB_PANIC)
			break;
		if (try == 0)
			renew(index);
	}
	return kv_env_errno(rc);
}

void kv_txn_guard_leave(struct kv_index *index)
{
	pthread_rwlock_unlock(&index->guard);
}
