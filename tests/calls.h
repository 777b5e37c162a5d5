/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls.h - inject faults into the calls of LMDB and of the system.  The calls
 * are interposed: the daemon's code and LMDB call the functions that are
 * defined here.  Requests of io_uring do not come here; see cache/faulty.h.
 */
#ifndef KV_TESTS_CALLS_H
#define KV_TESTS_CALLS_H

#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <lmdb.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include "tests/inject.h"

/* Count only one of this many preads of a single page: scans of slots make very
 * many. */
static unsigned calls_pages = 1;
static _Atomic bool calls_eio; /* a read has failed with EIO */

static int lmdb_error(void)
{
	return inject.error == ENOSPC ? MDB_MAP_FULL : inject.error;
}

/* Count a read of a file that is open; if the read is to fail, its error is
 * EIO. */
static bool fails_to_read(void)
{
	if (!inject_fails())
		return false;
	calls_eio = true;
	errno = EIO;
	return true;
}

/* Count an open.  On a full disk the open of an existing file needs no room, so
 * it fails with EIO. */
static bool fails_to_open(int flags)
{
	return inject.error == ENOSPC && !(flags & O_CREAT) ? fails_to_read()
							    : inject_fails();
}

/* Define `real` as the library's own function of that name. */
#define REAL(name)                     \
	static __typeof__(&name) real; \
	if (!real)                     \
	real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define INTERPOSE(type, name, parameters, arguments, fails, failure) \
	type name parameters;                                        \
	type name parameters                                         \
	{                                                            \
		REAL(name);                                          \
		return fails ? (type)(failure) : real arguments;     \
	}
#define CALL(name, parameters, arguments) \
	INTERPOSE(int, name, parameters, arguments, inject_fails(), -1)
#define LMDB(name, parameters, arguments)                           \
	INTERPOSE(int, name, parameters, arguments, inject_fails(), \
		  inject.error)
#define LMDB_WRITE(name, parameters, arguments)                     \
	INTERPOSE(int, name, parameters, arguments, inject_fails(), \
		  lmdb_error())

#ifdef __clang__ /* glibc declares pread inline */
#pragma clang diagnostic ignored "-Wstatic-in-inline"
#endif

CALL(fsync, (int fd), (fd))
CALL(fdatasync, (int fd), (fd))
CALL(ftruncate, (int fd, off_t n), (fd, n))
CALL(fallocate, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n))
CALL(memfd_create, (const char *name, unsigned flags), (name, flags))
CALL(mkdirat, (int dir, const char *path, mode_t mode), (dir, path, mode))
CALL(rename, (const char *old, const char *new), (old, new))
CALL(renameat, (int from, const char *old, int to, const char *new),
     (from, old, to, new))
INTERPOSE(int, posix_fallocate, (int fd, off_t at, off_t n), (fd, at, n),
	  inject_fails(), inject.error)
INTERPOSE(ssize_t, getrandom, (void *data, size_t n, unsigned flags),
	  (data, n, flags), inject_fails(), -1)
INTERPOSE(ssize_t, pwrite, (int fd, const void *data, size_t n, off_t at),
	  (fd, data, n, at), inject_fails(), -1)
INTERPOSE(ssize_t, pwritev, (int fd, const struct iovec *v, int n, off_t at),
	  (fd, v, n, at), inject_fails(), -1)
INTERPOSE(int, fstat, (int fd, struct stat *st), (fd, st), fails_to_read(), -1)
INTERPOSE(DIR *, fdopendir, (int fd), (fd), inject_fails(), NULL)

LMDB(mdb_env_create, (MDB_env * *env), (env))
LMDB(mdb_env_open,
     (MDB_env * env, const char *path, unsigned flags, mode_t mode),
     (env, path, flags, mode))
LMDB(mdb_env_copyfd2, (MDB_env * env, int fd, unsigned flags), (env, fd, flags))
LMDB(mdb_txn_begin,
     (MDB_env * env, MDB_txn *parent, unsigned flags, MDB_txn **txn),
     (env, parent, flags, txn))
LMDB(mdb_dbi_open,
     (MDB_txn * txn, const char *name, unsigned flags, MDB_dbi *dbi),
     (txn, name, flags, dbi))
LMDB(mdb_stat, (MDB_txn * txn, MDB_dbi dbi, MDB_stat *stat), (txn, dbi, stat))
LMDB(mdb_get, (MDB_txn * txn, MDB_dbi dbi, MDB_val *key, MDB_val *value),
     (txn, dbi, key, value))
LMDB(mdb_cursor_open, (MDB_txn * txn, MDB_dbi dbi, MDB_cursor **cursor),
     (txn, dbi, cursor))
LMDB(mdb_cursor_get,
     (MDB_cursor * cursor, MDB_val *key, MDB_val *value, MDB_cursor_op op),
     (cursor, key, value, op))
LMDB_WRITE(mdb_put,
	   (MDB_txn * txn, MDB_dbi dbi, MDB_val *key, MDB_val *value,
	    unsigned flags),
	   (txn, dbi, key, value, flags))
LMDB_WRITE(mdb_del, (MDB_txn * txn, MDB_dbi dbi, MDB_val *key, MDB_val *value),
	   (txn, dbi, key, value))

/* A transaction ends with its commit, even if the commit fails. */
int mdb_txn_commit(MDB_txn *txn)
{
	REAL(mdb_txn_commit);
	if (!inject_fails())
		return real(txn);
	mdb_txn_abort(txn);
	return lmdb_error();
}

ssize_t pread(int fd, void *data, size_t n, off_t at)
{
	static _Atomic unsigned pages;
	REAL(pread);

	if (n == KV_PAGE && pages++ % calls_pages)
		return real(fd, data, n, at);
	return fails_to_read() ? -1 : real(fd, data, n, at);
}

/* Define openat() or open(), which have a mode only with O_CREAT. */
#define INTERPOSE_OPEN(name, parameters, arguments)                \
	int name parameters                                        \
	{                                                          \
		REAL(name);                                        \
		mode_t mode = 0;                                   \
		va_list list;                                      \
                                                                   \
		va_start(list, flags);                             \
		if (flags & O_CREAT)                               \
			mode = va_arg(list, mode_t);               \
		va_end(list);                                      \
		return fails_to_open(flags) ? -1 : real arguments; \
	}

INTERPOSE_OPEN(openat, (int dir, const char *path, int flags, ...),
	       (dir, path, flags, mode))
INTERPOSE_OPEN(open, (const char *path, int flags, ...), (path, flags, mode))

#endif
