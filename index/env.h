/* SPDX-License-Identifier: Apache-2.0 */
/*
 * env.h - the LMDB environment below the index; index/ only.
 */
#ifndef KV_ENV_H
#define KV_ENV_H

#include <lmdb.h>

#include "index/index.h"

struct kv_index {
	MDB_env *env;
	MDB_dbi meta, spaces, segments, slots;
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

/* The store record of `meta`, written in @txn. */
int kv_store_info_put(MDB_txn *txn, MDB_dbi meta,
		      const struct kv_store_info *info);

uint64_t kv_env_file_bytes(MDB_env *env);

bool kv_env_disk_full(MDB_env *env);

/* Read the file ahead, in its own order. */
void kv_env_fetch(MDB_env *env);

/* Unmap what has been read; it stays in the page cache while there is room. */
void kv_env_drop(MDB_env *env);

/* Pages in the list of free ones, as last committed. */
int kv_env_free_pages(MDB_env *env, uint64_t *ret_pages);

void kv_txn_abortp(MDB_txn **txn);
void kv_cursor_closep(MDB_cursor **cursor);

#endif
