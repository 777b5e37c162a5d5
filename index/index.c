/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.c - the index: opening it, and reading all of it or one record.
 *
 * OWNS      the LMDB environment and the handles of its four databases: meta,
 *           spaces, segments, slots.  Transactions that write are batch.c's.
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
#include "index/env.h"
#include "index/record.h"

static MDB_val store_key(void)
{
	static char name[] = "store";

	return (MDB_val){sizeof(name) - 1, name};
}

int kv_store_info_put(MDB_txn *txn, MDB_dbi meta,
		      const struct kv_store_info *info)
{
	struct kv_store_record record = {
		.magic = KV_STORE_MAGIC,
		.version = KV_FORMAT_VERSION,
		.mounts = info->mounts,
		.cap = info->cap,
		.segment_bytes = info->segment_bytes,
		.next_generation = info->next_generation,
		.next_space = info->next_space,
		.clean = info->clean,
	};
	MDB_val key = store_key(), value = {sizeof(record), &record};

	memcpy(record.store, info->store, sizeof(record.store));
	kv_store_record_seal(&record);
	return kv_env_errno(mdb_put(txn, meta, &key, &value, 0));
}

/* The version is looked at first: a newer record may have another size. */
static int read_info(MDB_txn *txn, MDB_dbi meta, struct kv_store_info *ret_info)
{
	const size_t head = offsetof(struct kv_store_record, mounts);
	struct kv_store_record record;
	MDB_val key = store_key(), value;
	int r;

	r = kv_env_errno(mdb_get(txn, meta, &key, &value));
	if (r < 0)
		return r == -ENOENT ? -EBADMSG : r;
	if (value.mv_size < head)
		return -EBADMSG;
	memcpy(&record, value.mv_data, head);
	if (record.magic != KV_STORE_MAGIC)
		return -EBADMSG;
	if (record.version > KV_FORMAT_VERSION)
		return -ENOTSUP;
	if (value.mv_size != sizeof(record))
		return -EBADMSG;
	memcpy(&record, value.mv_data, sizeof(record));
	if (!kv_store_record_whole(&record))
		return -EBADMSG;

	*ret_info = (struct kv_store_info){
		.cap = record.cap,
		.segment_bytes = record.segment_bytes,
		.next_generation = record.next_generation,
		.next_space = record.next_space,
		.mounts = record.mounts,
		.clean = record.clean,
	};
	memcpy(ret_info->store, record.store, sizeof(record.store));
	return 0;
}

static int open_databases(struct kv_index *index, MDB_txn *txn, unsigned flags)
{
	const unsigned numeric = flags | (flags ? MDB_INTEGERKEY : 0);
	int rc;

	rc = mdb_dbi_open(txn, "spaces", numeric, &index->spaces);
	if (rc == 0)
		rc = mdb_dbi_open(txn, "segments", numeric, &index->segments);
	if (rc == 0)
		rc = mdb_dbi_open(txn, "slots", numeric, &index->slots);
	return rc == MDB_NOTFOUND ? -EBADMSG : kv_env_errno(rc);
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
	r = open_databases(index, txn, 0);
	if (r < 0)
		return r;

	/* Only a transaction that commits keeps the handles open. */
	return kv_env_errno(mdb_txn_commit(kv_steal(txn)));
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
	r = open_databases(index, txn, MDB_CREATE);
	if (r < 0)
		return r;
	r = kv_store_info_put(txn, index->meta, fresh);
	if (r < 0)
		return r;
	return kv_env_errno(mdb_txn_commit(kv_steal(txn)));
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
	free(index);
}

uint64_t kv_index_bytes(struct kv_index *index)
{
	return kv_env_file_bytes(index->env);
}

int kv_index_get(struct kv_index *index, uint64_t slot_id,
		 struct kv_slot_record *ret_record)
{
	_cleanup_(kv_txn_abortp) MDB_txn *txn = NULL;
	MDB_val key = {sizeof(slot_id), &slot_id}, value;
	struct kv_slot_record record;
	int r;

	r = kv_env_errno(mdb_txn_begin(index->env, NULL, MDB_RDONLY, &txn));
	if (r < 0)
		return r;
	r = kv_env_errno(mdb_get(txn, index->slots, &key, &value));
	if (r < 0)
		return r;
	if (value.mv_size != sizeof(record))
		return -EBADMSG;
	memcpy(&record, value.mv_data, sizeof(record));
	if (!kv_slot_record_whole(&record, slot_id))
		return -EBADMSG;
	*ret_record = record;
	return 0;
}
