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
	pthread_rwlock_t guard; /* who has a transaction, shared */
	MDB_env *env;		/* NULL: it could not be opened anew */
	atomic_bool broken;	/* by a fault: env is of no more use */
	char *path;
	uint64_t map_bytes;
	_Atomic uint64_t room; /* for puts, when the last batch began */
	MDB_dbi meta, spaces, snapshots, segments, slots, tokens;
	bool read_only;
};

/* The one place where LMDB's numbers become ours. */
int kv_env_errno(int rc);

/*
 * Open the environment in the directory @path.  A file cut off below its last
 * page is made whole with zeros, because a fault there would be SIGBUS.
 * -EBADMSG: the file there is not LMDB's.
 */
int kv_env_open(const char *path, uint64_t map_bytes, bool read_only,
		MDB_env **ret_env);

/*
 * Run @call(@arg), which calls LMDB for @index and nothing else.  MDB_PANIC: it
 * did not come back.  A page of the map that is not in memory and that the disk
 * does not give is SIGBUS; one that is no page of LMDB's may be a failed
 * assertion of LMDB's.  Its transaction must neither be used nor ended, and the
 * environment is opened anew before another one begins.
 */
int kv_fault_guard(struct kv_index *index, int (*call)(void *arg), void *arg);

/*
 * Begin a transaction.  0: it is also the caller's to leave, after its end.
 */
int kv_txn_guard_enter(struct kv_index *index, unsigned flags,
		       MDB_txn **ret_txn);
void kv_txn_guard_leave(struct kv_index *index);

/* Open index->env and its databases again.  Fails: index->env is NULL. */
int kv_index_reopen(struct kv_index *index);

/* The store record of `meta`, written in @txn. */
int kv_store_info_put(MDB_txn *txn, MDB_dbi meta,
		      const struct kv_store_info *info);

uint64_t kv_env_file_bytes(MDB_env *env);

bool kv_env_disk_full(MDB_env *env);

/* As kv_index_keep_room. */
void kv_env_keep_room(MDB_env *env);

/* Read the file ahead, in its own order. */
void kv_env_fetch(MDB_env *env);

/* Unmap what has been read; it stays in the page cache while there is room. */
void kv_env_drop(MDB_env *env);

/* Pages in the list of free ones, as last committed. */
int kv_env_free_pages(MDB_env *env, uint64_t *ret_pages);

void kv_txn_abortp(MDB_txn **txn);
void kv_cursor_closep(MDB_cursor **cursor);

#endif
