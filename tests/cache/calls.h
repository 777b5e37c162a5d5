/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls.h - a program in which the n-th call fails that is made of LMDB and of
 * the system.
 *
 * The calls are interposed: what is defined here is what the daemon and LMDB
 * call.  Requests to the disk go by io_uring, past all this: test_faults.c.
 */
#ifndef KV_TESTS_CACHE_CALLS_H
#define KV_TESTS_CACHE_CALLS_H

#include <dirent.h>
#include <dlfcn.h>
#include <lmdb.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/uio.h>

#include "tests/cache/script.h"

static struct {
	_Atomic unsigned seen;
	_Atomic unsigned from, before; /* these fail */
	_Atomic int error; /* errno; LMDB's own where it fits better */
	_Atomic unsigned failed;
	_Atomic bool eio; /* one of them with EIO */
} calls;

static bool fails(void)
{
	unsigned n = ++calls.seen;

	if (n < calls.from || n >= calls.before)
		return false;
	calls.failed++;
	calls.eio |= calls.error == EIO;
	errno = calls.error;
	return true;
}

static int lmdb_error(void)
{
	return calls.error == ENOSPC ? MDB_MAP_FULL : calls.error;
}

/* Fail a read of an open file, with EIO only. */
static bool fails_to_read(void)
{
	if (!fails())
		return false;
	calls.eio = true;
	errno = EIO;
	return true;
}

/* Fail an open; an existing file needs no room on a full disk. */
static bool fails_to_open(int flags)
{
	if (calls.error == ENOSPC && !(flags & O_CREAT))
		return fails_to_read();
	return fails();
}

#define REAL(name)                     \
	static __typeof__(&name) real; \
	if (!real)                     \
	real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

int mdb_env_open(MDB_env *env, const char *path, unsigned flags, mode_t mode)
{
	REAL(mdb_env_open);
	return fails() ? calls.error : real(env, path, flags, mode);
}

int mdb_txn_begin(MDB_env *env, MDB_txn *parent, unsigned flags, MDB_txn **txn)
{
	REAL(mdb_txn_begin);
	return fails() ? calls.error : real(env, parent, flags, txn);
}

int mdb_dbi_open(MDB_txn *txn, const char *name, unsigned flags, MDB_dbi *dbi)
{
	REAL(mdb_dbi_open);
	return fails() ? calls.error : real(txn, name, flags, dbi);
}

int mdb_get(MDB_txn *txn, MDB_dbi dbi, MDB_val *key, MDB_val *data)
{
	REAL(mdb_get);
	return fails() ? calls.error : real(txn, dbi, key, data);
}

int mdb_put(MDB_txn *txn, MDB_dbi dbi, MDB_val *key, MDB_val *data,
	    unsigned flags)
{
	REAL(mdb_put);
	return fails() ? lmdb_error() : real(txn, dbi, key, data, flags);
}

int mdb_del(MDB_txn *txn, MDB_dbi dbi, MDB_val *key, MDB_val *data)
{
	REAL(mdb_del);
	return fails() ? lmdb_error() : real(txn, dbi, key, data);
}

int mdb_txn_commit(MDB_txn *txn)
{
	REAL(mdb_txn_commit);
	if (fails()) {
		mdb_txn_abort(txn);
		return lmdb_error();
	}
	return real(txn);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
	REAL(pwrite);
	return fails() ? -1 : real(fd, data, n, offset);
}

ssize_t pwritev(int fd, const struct iovec *v, int n, off_t offset)
{
	REAL(pwritev);
	return fails() ? -1 : real(fd, v, n, offset);
}

int fdatasync(int fd)
{
	REAL(fdatasync);
	return fails() ? -1 : real(fd);
}

int fsync(int fd)
{
	REAL(fsync);
	return fails() ? -1 : real(fd);
}

int ftruncate(int fd, off_t n)
{
	REAL(ftruncate);
	return fails() ? -1 : real(fd, n);
}

int posix_fallocate(int fd, off_t offset, off_t n)
{
	REAL(posix_fallocate);
	return fails() ? calls.error : real(fd, offset, n);
}

int fallocate(int fd, int mode, off_t offset, off_t n)
{
	REAL(fallocate);
	return fails() ? -1 : real(fd, mode, offset, n);
}

int memfd_create(const char *name, unsigned flags)
{
	REAL(memfd_create);
	return fails() ? -1 : real(name, flags);
}

/* ---- ---- */

#ifdef __clang__ /* glibc declares pread inline */
#pragma clang diagnostic ignored "-Wstatic-in-inline"
#endif
ssize_t pread(int fd, void *data, size_t n, off_t offset)
{
	REAL(pread);
	return fails_to_read() ? -1 : real(fd, data, n, offset);
}

int fstat(int fd, struct stat *st)
{
	REAL(fstat);
	return fails_to_read() ? -1 : real(fd, st);
}

int mkdirat(int dir, const char *path, mode_t mode)
{
	REAL(mkdirat);
	return fails() ? -1 : real(dir, path, mode);
}

int renameat(int from, const char *old, int to, const char *new)
{
	REAL(renameat);
	return fails() ? -1 : real(from, old, to, new);
}

DIR *fdopendir(int fd)
{
	REAL(fdopendir);
	return fails() ? NULL : real(fd);
}

ssize_t getrandom(void *data, size_t n, unsigned flags)
{
	REAL(getrandom);
	return fails() ? -1 : real(data, n, flags);
}

int openat(int dir, const char *path, int flags, ...)
{
	REAL(openat);
	va_list list;
	mode_t mode;

	va_start(list, flags);
	mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
	va_end(list);
	return fails_to_open(flags) ? -1 : real(dir, path, flags, mode);
}

int open(const char *path, int flags, ...)
{
	REAL(open);
	va_list list;
	mode_t mode;

	va_start(list, flags);
	mode = flags & O_CREAT ? va_arg(list, mode_t) : 0;
	va_end(list);
	return fails() ? -1 : real(path, flags, mode);
}

static inline void arm(int error, unsigned from, unsigned n)
{
	calls.error = error;
	calls.seen = 0;
	calls.from = from;
	calls.before = from + n;
}

#endif
