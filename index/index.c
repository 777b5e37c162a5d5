/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.c - the index: opening it, and reading all of it or one record.
 *
 * OWNS      the LMDB environment and the handles of its five databases: meta,
 *           spaces, snapshots, segments, slots.  Transactions that write are
 * batch.c's.
 *
 * INVARIANTS
 *   (1) Either `meta` has a whole store record of this format version, or
 *       nothing here has been written: open creates all in one transaction.
 *   (2) What a visitor or a caller gets has passed its checksum.
 *   (3) Numeric keys are eight bytes, the machine's order (MDB_INTEGERKEY).
 *
 * LOCKING   none of its own.  Everything in struct kv_index is fixed after
 *           open; readers and the one writer meet in LMDB.
 */
#include "index/fault.h"
#include "index/record.h"
#include "common/crash_point.h"

static MDB_val store_key(void)
{
	static char name[] = "store";

	return (MDB_val){sizeof(name) - 1, name};
}

int kv_store_info_put(MDB_txn *txn, MDB_dbi meta,
		      const struct kv_store_info *info)
{
	struct kv_store_record record;
	MDB_val key = store_key(), value = {sizeof(record), &record};

	kv_store_info_pack(info, &record);
	return kv_env_errno(mdb_put(txn, meta, &key, &value, 0));
}

static int read_info(MDB_txn *txn, MDB_dbi meta, struct kv_store_info *ret_info)
{
	MDB_val key = store_key(), value;
	int r = kv_env_errno(mdb_get(txn, meta, &key, &value));

	if (r < 0)
		return r == -ENOENT ? -EBADMSG : r;
	return kv_store_info_unpack(value.mv_data, value.mv_size, ret_info);
}

static int open_databases(struct kv_index *index, MDB_txn *txn, unsigned flags,
			  bool old)
{
	const unsigned numeric = flags | (flags ? MDB_INTEGERKEY : 0);
	int rc;

	rc = mdb_dbi_open(txn, "spaces", numeric, &index->spaces);
	if (rc == 0)
		rc = mdb_dbi_open(txn, "segments", numeric, &index->segments);
	if (rc == 0)
		rc = mdb_dbi_open(txn, "slots", numeric, &index->slots);
	if (rc == 0) {
		rc = mdb_dbi_open(txn, "snapshots", numeric, &index->snapshots);
		if (rc == MDB_NOTFOUND && old)
			rc = 0;
	}
	return rc == MDB_NOTFOUND ? -EBADMSG : kv_env_errno(rc);
}

/* Format 1 had none; index->snapshots is 0 until there is one. */
static int add_snapshots(struct kv_index *index)
{
	_cleanup_(kv_txn_abortp) MDB_txn *txn = NULL;
	int r = kv_env_errno(mdb_txn_begin(index->env, NULL, 0, &txn));

	if (r == 0)
		r = kv_env_errno(mdb_dbi_open(txn, "snapshots",
					      MDB_CREATE | MDB_INTEGERKEY,
					      &index->snapshots));
	return r < 0 ? r : kv_env_errno(mdb_txn_commit(kv_steal(txn)));
}

/* -ENODATA: an environment without anything in it. */
static int open_existing(struct kv_index *index, struct kv_store_info *ret_info)
{
	_cleanup_(kv_txn_abortp) MDB_txn *txn = NULL;
	MDB_stat stat;
	int r, rc;

	r = kv_env_errno(mdb_txn_begin(index->env, NULL, MDB_RDONLY, &txn));
	if (r < 0)
		return r;
	rc = mdb_dbi_open(txn, "meta", 0, &index->meta);
	if (rc == MDB_NOTFOUND) {
		mdb_env_stat(index->env, &stat);
		return stat.ms_entries ? -EBADMSG : -ENODATA;
	}
	if (rc != 0)
		return kv_env_errno(rc);
	r = read_info(txn, index->meta, ret_info);
	if (r < 0)
		return r;
	r = open_databases(index, txn, 0, ret_info->version == 1);
	if (r < 0)
		return r;

	/* Only a transaction that commits keeps the handles open. */
	r = kv_env_errno(mdb_txn_commit(kv_steal(txn)));
	return r == 0 && !index->snapshots && !index->read_only
		       ? add_snapshots(index)
		       : r;
}

static int create(struct kv_index *index, const struct kv_store_info *fresh)
{
	_cleanup_(kv_txn_abortp) MDB_txn *txn = NULL;
	int r;

	r = kv_env_errno(mdb_txn_begin(index->env, NULL, 0, &txn));
	if (r < 0)
		return r;
	r = kv_env_errno(mdb_dbi_open(txn, "meta", MDB_CREATE, &index->meta));
	if (r < 0)
		return r;
	r = open_databases(index, txn, MDB_CREATE, false);
	if (r < 0)
		return r;
	r = kv_store_info_put(txn, index->meta, fresh);
	if (r < 0)
		return r;
	KV_POINT("create.before_commit");
	r = kv_env_errno(mdb_txn_commit(kv_steal(txn)));
	KV_POINT("create.committed");
	return r;
}

static void index_closep(struct kv_index **index)
{
	kv_index_close(*index);
}

int kv_index_open(const char *path, uint64_t map_bytes, bool read_only,
		  const struct kv_store_info *fresh,
		  struct kv_store_info *ret_info, struct kv_index **ret_index)
{
	_cleanup_(index_closep) struct kv_index *index = NULL;
	struct kv_store_info info;
	int r;

	index = calloc(1, sizeof(*index));
	if (!index)
		return -ENOMEM;
	index->read_only = read_only;
	index->map_bytes = map_bytes;
	index->room = map_bytes; /* until somebody counts */
	index->path = strdup(path);
	pthread_rwlock_init(&index->guard, NULL);
	if (!index->path)
		return -ENOMEM;
	r = kv_env_open(path, map_bytes, read_only, &index->env);
	if (r < 0)
		return r;

	r = open_existing(index, &info);
	if (r == -ENODATA && !read_only && fresh) {
		info = *fresh;
		r = create(index, fresh);
	}
	if (r < 0)
		return r == -ENODATA ? -EBADMSG : r;

	*ret_info = info;
	*ret_index = kv_steal(index);
	return 0;
}

void kv_index_close(struct kv_index *index)
{
	if (!index)
		return;
	if (index->env)
		mdb_env_close(index->env);
	pthread_rwlock_destroy(&index->guard);
	free(index->path);
	free(index);
}

int kv_index_reopen(struct kv_index *index)
{
	struct kv_store_info info;
	int r = kv_env_open(index->path, index->map_bytes, index->read_only,
			    &index->env);

	if (r == 0)
		r = open_existing(index, &info);
	if (r < 0 && index->env)
		mdb_env_close(kv_steal(index->env));
	return r;
}

uint64_t kv_index_room(const struct kv_index *index)
{
	return atomic_load(&index->room);
}

uint64_t kv_index_map_bytes(uint64_t cap)
{
	uint64_t bytes = KV_MAX(cap / 48, 2ull << 20);

	return kv_round_up(cap ? bytes : 64ull << 20, 1u << 20);
}

uint64_t kv_index_bytes(struct kv_index *index)
{
	uint64_t bytes;

	pthread_rwlock_rdlock(&index->guard);
	bytes = index->env ? kv_env_file_bytes(index->env) : 0;
	pthread_rwlock_unlock(&index->guard);
	return bytes;
}

struct getting {
	struct kv_index *index;
	MDB_txn *txn;
	uint64_t slot_id;
	struct kv_slot_record record;
};

static int get(void *arg)
{
	struct getting *g = arg;
	MDB_val key = {sizeof(g->slot_id), &g->slot_id}, value;
	int rc = mdb_get(g->txn, g->index->slots, &key, &value);

	if (rc != 0)
		return rc;
	if (value.mv_size != sizeof(g->record))
		return MDB_CORRUPTED;
	memcpy(&g->record, value.mv_data, sizeof(g->record));
	return 0;
}

int kv_index_get(struct kv_index *index, uint64_t slot_id,
		 struct kv_slot_record *ret_record)
{
	struct getting g = {.index = index, .slot_id = slot_id};
	int r = kv_txn_guard_enter(index, MDB_RDONLY, &g.txn), rc;

	if (r < 0)
		return r;
	rc = kv_fault_guard(index, get, &g);
	if (rc != MDB_PANIC)
		mdb_txn_abort(g.txn);
	kv_txn_guard_leave(index);
	if (rc != 0)
		return kv_env_errno(rc);
	if (!kv_slot_record_whole(&g.record, slot_id))
		return -EBADMSG;
	*ret_record = g.record;
	return 0;
}
