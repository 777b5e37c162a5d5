/* SPDX-License-Identifier: Apache-2.0 */
/*
 * env.h - the LMDB environment below the index; index/ only.
 */
#ifndef KV_INDEX_ENV_H
#define KV_INDEX_ENV_H

#include <lmdb.h>
#include <stdatomic.h>

#include "index/index.h"

struct kv_index {
	pthread_rwlock_t guard; /* held shared during each LMDB transaction */
	MDB_env *env;		/* NULL: it could not be opened again */
	atomic_bool broken;	/* after a fault @env must not be used */
	char *path;
	uint64_t map_bytes;
	/* bytes that the last batch could put when it began */
	_Atomic uint64_t room;
	MDB_dbi meta, parts[KV_PARTS];
	bool read_only;
};

/* Translate LMDB's result codes into 0 or -errno. */
int kv_env_errno(int rc);

/* Open the environment in the directory @path.  -EBADMSG: the file is not
 * LMDB's. */
int kv_env_open(const char *path, uint64_t map_bytes, bool read_only,
		MDB_env **ret_env);

/*
 * Run @call(@arg), which may call nothing but LMDB for @index.  Return its
 * result, or MDB_PANIC if LMDB was interrupted: a page that the disk cannot
 * deliver raises SIGBUS, and a damaged page can fail an assertion of LMDB.
 * After MDB_PANIC neither use nor end the transaction; the environment is
 * opened anew before the next transaction.
 */
int kv_fault_guard(struct kv_index *index, int (*call)(void *arg), void *arg);

/* Begin a transaction, and lock index->guard, which the caller unlocks once the
 * transaction has ended. */
int kv_txn_guard_enter(struct kv_index *index, unsigned flags,
		       MDB_txn **ret_txn);

/* Open index->env and its databases again; on failure index->env is NULL. */
int kv_index_reopen(struct kv_index *index);

/* Return the keys in `meta` of the store record and of the clock of last uses. */
MDB_val kv_store_key(void);
MDB_val kv_uses_key(void);

uint64_t kv_env_file_bytes(MDB_env *env);

/* Find LMDB's map, whose address LMDB does not return. */
int kv_env_find_map(MDB_env *env, uint8_t **ret_map, size_t *ret_bytes);

/* Read the file ahead, from its beginning to its end. */
void kv_env_fetch(MDB_env *env);

/* Drop the map's pages from this process; the kernel's page cache keeps
 * them. */
void kv_env_drop(MDB_env *env);

/* Count the pages in the free list, as of the last commit. */
int kv_env_free_pages(MDB_env *env, uint64_t *ret_pages);

void kv_txn_abortp(MDB_txn **txn);
void kv_cursor_closep(MDB_cursor **cursor);

#endif
