/* SPDX-License-Identifier: Apache-2.0 */
/*
 * txn.c - write transactions of the index.
 *
 * OWNS      the write transaction of a batch.
 *
 * STATES    of a batch, and the function that makes each step:
 *
 *             OPEN -> FAILED   any put or delete that returns an error
 *             OPEN -> gone     kv_txn_commit, kv_txn_abort
 *           FAILED -> gone     the same; commit returns the first error
 *
 * INVARIANTS
 *   (1) Puts never take the last RESERVE of the map: a deletion copies pages
 *       before it can free any, and must still find some.  What one
 *       transaction frees, only the next but one can use: the reserve is
 *       enough for batches of 300 deletions that each have their own leaf.
 *   (2) Nothing of a FAILED batch reaches the disk.
 *
 * LOCKING   LMDB lets one writer in at a time; a batch belongs to the thread
 *           that began it.
 */
#include "index/env.h"
#include "index/record.h"

#define RESERVE 8	 /* one part in so many of the map's pages */
#define RESERVE_MIN 1024 /* pages */
#define LEAF_VALUE 2000	 /* bytes; longer ones may need pages in a row */
#define NEAR_IDS 8	 /* so many further on is the same leaf, mostly */
#define NEAR_FULL 16384	 /* pages; with more room nobody counts */

struct kv_txn {
	struct kv_index *index;
	MDB_txn *txn;
	bool entered;	   /* the guard */
	int failed;	   /* first error */
	uint64_t puttable; /* bytes of the map that puts may still take */
	uint64_t unused;   /* at its end, at least: these lie side by side */
	uint64_t last_id;  /* put into last_dbi */
	MDB_dbi last_dbi;
	uint64_t last_tokens; /* id; these go along with slots */
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

	/* A share for the other databases, and for pages of the last commit. */
	return (pages - reserve_of(pages) - pages / 16) * KV_PAGE / KV_PUT_NEAR;
}

/*
 * Pages never used yet are cheap to count; the free list is only walked when
 * those come to an end.
 */
static int count_room(void *arg)
{
	struct kv_txn *batch = arg;
	uint64_t total, reserve, room, free_pages;
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

/* Call LMDB.  MDB_PANIC: the transaction is lost, and the batch with it. */
static int guarded(struct kv_txn *batch, int (*call)(void *arg), void *arg)
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
	batch->last_tokens = UINT64_MAX / 2; /* near to none */
	r = kv_txn_guard_enter(index, 0, &batch->txn);
	if (r < 0)
		return r;
	batch->entered = true;
	r = guarded(batch, count_room, batch);
	if (r < 0)
		return r == MDB_PANIC ? -EIO : r;
	*ret_txn = kv_steal(batch);
	return 0;
}

static int note(struct kv_txn *batch, int r)
{
	if (r < 0 && batch->failed == 0)
		batch->failed = r;
	return r;
}

/*
 * The most that a put may take: LMDB does not tell before the commit.  Leaves
 * are at least half full, so that records in a row cost twice their bytes.
 */
static uint64_t cost_of(struct kv_txn *batch, MDB_dbi dbi, uint64_t id,
			size_t bytes)
{
	bool near;

	if (dbi == batch->index->tokens) {
		near = id - batch->last_tokens <= NEAR_IDS;
		batch->last_tokens = id;
	} else {
		near = dbi == batch->last_dbi &&
		       id - batch->last_id <= NEAR_IDS;
		batch->last_dbi = dbi;
		batch->last_id = id;
	}
	/* Far: a leaf copied, split, and its parent's share. */
	return 2 * (bytes + 2 * sizeof(id)) +
	       (near ? 0 : KV_PUT_FAR - KV_PUT_NEAR);
}

struct change {
	MDB_txn *txn;
	MDB_dbi dbi;
	uint64_t id;
	MDB_val value;
};

static int do_put(void *arg)
{
	struct change *c = arg;
	MDB_val key = {sizeof(c->id), &c->id};

	return mdb_put(c->txn, c->dbi, &key, &c->value, 0);
}

static int do_delete(void *arg)
{
	struct change *c = arg;
	MDB_val key = {sizeof(c->id), &c->id};

	return mdb_del(c->txn, c->dbi, &key, NULL);
}

static int put(struct kv_txn *batch, MDB_dbi dbi, uint64_t id, MDB_val value)
{
	const uint64_t cost = cost_of(batch, dbi, id, value.mv_size);
	struct change c = {batch->txn, dbi, id, value};

	if (batch->puttable < cost)
		return note(batch, -ENOSPC);
	batch->puttable -= cost;
	batch->unused -= KV_MIN(cost, batch->unused);
	return note(batch, kv_env_errno(guarded(batch, do_put, &c)));
}

static int drop(struct kv_txn *batch, MDB_dbi dbi, uint64_t id)
{
	struct change c = {.txn = batch->txn, .dbi = dbi, .id = id};
	int rc = guarded(batch, do_delete, &c);

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

	kv_slot_record_seal(&copy, slot_id);
	return put(batch, batch->index->slots, slot_id,
		   (MDB_val){sizeof(copy), &copy});
}

int kv_txn_delete_slot(struct kv_txn *batch, uint64_t slot_id)
{
	return drop(batch, batch->index->slots, slot_id);
}

int kv_txn_put_token_ids(struct kv_txn *batch, uint64_t slot_id,
			 uint64_t generation, const struct kv_token_ids *ids)
{
	_cleanup_(kv_freep) void *value = NULL;
	size_t bytes;
	int r = kv_tokens_pack(ids, slot_id, generation, &value, &bytes);

	if (r < 0)
		return note(batch, r);
	return put(batch, batch->index->tokens, slot_id,
		   (MDB_val){bytes, value});
}

int kv_txn_delete_token_ids(struct kv_txn *batch, uint64_t slot_id)
{
	return drop(batch, batch->index->tokens, slot_id);
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
	return put(batch, batch->index->spaces, record->id,
		   (MDB_val){bytes, value});
}

int kv_txn_delete_space(struct kv_txn *batch, uint32_t id)
{
	return drop(batch, batch->index->spaces, id);
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
	kv_snapshot_record_seal(&copy, tail);
	memcpy(value, &copy, sizeof(copy));
	return put(batch, batch->index->snapshots, copy.id,
		   (MDB_val){sizeof(copy) + copy.name_len + bytes, value});
}

int kv_txn_delete_snapshot(struct kv_txn *batch, uint64_t id)
{
	return drop(batch, batch->index->snapshots, id);
}

int kv_txn_put_segfile(struct kv_txn *batch,
		       const struct kv_segfile_record *record)
{
	struct kv_segfile_record copy = *record;

	kv_segfile_record_seal(&copy);
	return put(batch, batch->index->segments, copy.id,
		   (MDB_val){sizeof(copy), &copy});
}

int kv_txn_delete_segfile(struct kv_txn *batch, uint32_t id)
{
	return drop(batch, batch->index->segments, id);
}

struct info_put {
	struct kv_txn *batch;
	const struct kv_store_info *info;
};

static int put_info(void *arg)
{
	struct info_put *put = arg;

	return kv_store_info_put(put->batch->txn, put->batch->index->meta,
				 put->info);
}

/* Replaces a record of the same size, so it goes by the rule for deletions. */
int kv_txn_put_info(struct kv_txn *batch, const struct kv_store_info *info)
{
	struct info_put put = {batch, info};
	int r = guarded(batch, put_info, &put);

	return note(batch, r == MDB_PANIC ? -EIO : r);
}

static int do_commit(void *txn)
{
	return mdb_txn_commit(txn);
}

int kv_txn_commit(struct kv_txn *batch)
{
	int r = batch->failed;

	if (r == 0)
		r = kv_env_errno(guarded(batch, do_commit, batch->txn));
	if (batch->failed == 0)
		batch->txn = NULL;
	/* LMDB calls a write that a full disk cut short an I/O error. */
	if (r == -EIO && kv_env_disk_full(batch->index->env))
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
	if (batch->entered)
		kv_txn_guard_leave(batch->index);
	free(batch);
}
