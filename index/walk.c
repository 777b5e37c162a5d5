/* SPDX-License-Identifier: Apache-2.0 */
/*
 * walk.c - reading the whole index, once, at mount.
 *
 * OWNS      the read transaction of a walk.
 *
 * INVARIANTS
 *   (1) A visitor sees only records that passed their checksum, as copies: LMDB
 *       aligns its values to two bytes.
 *
 * LOCKING   none of its own.
 */
#include "index/env.h"
#include "index/record.h"

struct walk {
	const struct kv_index_visitor *visitor;
	uint64_t damaged;
};

typedef int (*visit_fn)(struct walk *walk, uint64_t id, const MDB_val *value);

static int visit_slot(struct walk *walk, uint64_t id, const MDB_val *value)
{
	const struct kv_index_visitor *visitor = walk->visitor;
	struct kv_slot_record record;

	if (value->mv_size == sizeof(record)) {
		memcpy(&record, value->mv_data, sizeof(record));
		if (kv_slot_record_whole(&record, id))
			return visitor->slot(visitor->arg, id, &record);
	}
	walk->damaged++;
	return 0;
}

static int visit_segment(struct walk *walk, uint64_t id, const MDB_val *value)
{
	const struct kv_index_visitor *visitor = walk->visitor;
	struct kv_segfile_record record;

	if (value->mv_size == sizeof(record)) {
		memcpy(&record, value->mv_data, sizeof(record));
		if (kv_segfile_record_whole(&record, id))
			return visitor->segment(visitor->arg, &record);
	}
	walk->damaged++;
	return 0;
}

static int visit_space(struct walk *walk, uint64_t id, const MDB_val *value)
{
	const struct kv_index_visitor *visitor = walk->visitor;
	_cleanup_(kv_freep) char *name = NULL;
	_cleanup_(kv_freep) char *layout = NULL;
	struct kv_space_record record;
	int r = kv_space_unpack(value->mv_data, value->mv_size, id, &record,
				&name, &layout);

	if (r == -EBADMSG) {
		walk->damaged++;
		return 0;
	}
	return r < 0 ? r : visitor->space(visitor->arg, &record, name, layout);
}

static bool snapshot_whole(const MDB_val *value, uint64_t id,
			   struct kv_snapshot_record *ret_record)
{
	const char *tail = (const char *)value->mv_data + sizeof(*ret_record);

	if (value->mv_size < sizeof(*ret_record))
		return false;
	memcpy(ret_record, value->mv_data, sizeof(*ret_record));
	return value->mv_size ==
		       (uint64_t)sizeof(*ret_record) + ret_record->name_len +
			       (uint64_t)ret_record->count *
				       sizeof(struct kv_snapshot_item) &&
	       kv_snapshot_record_whole(ret_record, id, tail);
}

static int visit_snapshot(struct walk *walk, uint64_t id, const MDB_val *value)
{
	const struct kv_index_visitor *visitor = walk->visitor;
	const char *tail = (const char *)value->mv_data +
			   sizeof(struct kv_snapshot_record);
	_cleanup_(kv_freep) char *name = NULL;
	_cleanup_(kv_freep) struct kv_snapshot_item *items = NULL;
	struct kv_snapshot_record record;
	size_t bytes;

	if (!snapshot_whole(value, id, &record)) {
		walk->damaged++;
		return 0;
	}
	bytes = record.count * sizeof(*items);
	name = strndup(tail, record.name_len);
	items = malloc(bytes + 1);
	if (!name || !items)
		return -ENOMEM;
	memcpy(items, tail + record.name_len, bytes);
	return visitor->snapshot(visitor->arg, &record, name, items);
}

static int visit_all(MDB_txn *txn, MDB_dbi dbi, struct walk *walk,
		     enum kv_index_part part, visit_fn visit)
{
	const struct kv_index_visitor *visitor = walk->visitor;
	_cleanup_(kv_cursor_closep) MDB_cursor *cursor = NULL;
	MDB_val key, value;
	uint64_t id, before;
	int r, rc;

	rc = mdb_cursor_open(txn, dbi, &cursor);
	if (rc != 0)
		return kv_env_errno(rc);
	while ((rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
		if (key.mv_size != sizeof(id)) {
			walk->damaged++;
			continue;
		}
		memcpy(&id, key.mv_data, sizeof(id));
		before = walk->damaged;
		r = visit(walk, id, &value);
		if (r != 0)
			return r;
		if (walk->damaged != before && visitor->damaged)
			visitor->damaged(visitor->arg, part, id);
	}
	return rc == MDB_NOTFOUND ? 0 : kv_env_errno(rc);
}

static int walk_all(struct kv_index *index, struct walk *walk)
{
	_cleanup_(kv_txn_abortp) MDB_txn *txn = NULL;
	int r;

	r = kv_env_errno(mdb_txn_begin(index->env, NULL, MDB_RDONLY, &txn));
	if (r == 0 && walk->visitor->space)
		r = visit_all(txn, index->spaces, walk, KV_PART_SPACES,
			      visit_space);
	if (r == 0 && walk->visitor->segment)
		r = visit_all(txn, index->segments, walk, KV_PART_SEGMENTS,
			      visit_segment);
	if (r == 0 && walk->visitor->slot)
		r = visit_all(txn, index->slots, walk, KV_PART_SLOTS,
			      visit_slot);
	if (r == 0 && walk->visitor->snapshot && index->snapshots)
		r = visit_all(txn, index->snapshots, walk, KV_PART_SNAPSHOTS,
			      visit_snapshot);
	return r;
}

int kv_index_walk(struct kv_index *index,
		  const struct kv_index_visitor *visitor, uint64_t *ret_damaged)
{
	struct walk walk = {.visitor = visitor};
	int r;

	kv_env_fetch(index->env);
	r = walk_all(index, &walk);
	kv_env_drop(index->env);
	if (r == 0)
		*ret_damaged = walk.damaged;
	return r;
}
