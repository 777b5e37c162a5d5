/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.c - the index: opening it, reading all of it or one record, compacting
 * its file.
 *
 * OWNS      the LMDB environment and the handles of its six databases: meta,
 *           spaces, snapshots, segments, slots, tokens; the read transaction of
 *           a walk; the copy beside the index while it is being compacted.
 *           Not write transactions (env.c).
 *
 * INVARIANTS
 *   (1) Either `meta` has a whole store record of this format version, or the
 *       index is empty: open creates all databases in one transaction.
 *   (2) Records handed to a visitor or a caller have passed their checksum.
 *       Visitors get copies: LMDB aligns its values to two bytes.
 *   (3) Numeric keys are eight bytes, the machine's order (MDB_INTEGERKEY).
 *   (4) At any moment one whole index is called data.mdb: the copy is on disk
 *       before it takes the name.
 *
 * LOCKING   none of its own.  Struct kv_index is constant after open; LMDB
 *           synchronizes readers and the writer.  During kv_index_compact no
 *           other thread uses the index.
 */
#include "index/env.h"
#include "index/record.h"
#include "common/crash_point.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>

#define COPY_NAME "compact.tmp"
/* extra bytes of the file, for batches on a full disk */
#define ROOM (256u << 10)
#define MAP_SHARE 48 /* the map has 1 / MAP_SHARE of the bytes of ssd= */
/* A file of fewer bytes is not compacted. */
#define SMALL KV_POINTS_OR(128u << 10, 4u << 20)

MDB_val kv_store_key(void)
{
	static char name[] = "store";

	return (MDB_val){sizeof(name) - 1, name};
}

MDB_val kv_uses_key(void)
{
	static char name[] = "uses";

	return (MDB_val){sizeof(name) - 1, name};
}

static int open_databases(struct kv_index *index, MDB_txn *txn, unsigned flags)
{
	static const char *const names[KV_PARTS] = {
		[KV_PART_SPACES] = "spaces", [KV_PART_SEGMENTS] = "segments",
		[KV_PART_SLOTS] = "slots",   [KV_PART_SNAPSHOTS] = "snapshots",
		[KV_PART_TOKENS] = "tokens",
	};
	int rc = 0;

	if (flags)
		flags |= MDB_INTEGERKEY;
	for (size_t i = 0; rc == 0 && i < KV_PARTS; i++)
		rc = mdb_dbi_open(txn, names[i], flags, &index->parts[i]);
	return rc == MDB_NOTFOUND ? -EBADMSG : kv_env_errno(rc);
}

/* Open the databases of an environment.  -ENODATA: the environment is empty. */
static int open_existing(struct kv_index *index, struct kv_store_info *ret_info)
{
	_cleanup_(kv_txn_abortp) MDB_txn *txn = NULL;
	MDB_val key = kv_store_key(), value;
	struct kv_uses_record uses;
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
	r = kv_env_errno(mdb_get(txn, index->meta, &key, &value));
	if (r == 0)
		r = kv_store_info_unpack(value.mv_data, value.mv_size,
					 ret_info);
	if (r != 0)
		return r == -ENOENT ? -EBADMSG : r;
	key = kv_uses_key();
	if (mdb_get(txn, index->meta, &key, &value) == 0 &&
	    value.mv_size == sizeof(uses)) {
		memcpy(&uses, value.mv_data, sizeof(uses));
		if (ret_info->clean && uses.mounts == ret_info->mounts &&
		    uses.checksum == KV_SUM_OF(&uses, NULL, 0)) {
			ret_info->clock = uses.clock;
			ret_info->floor = uses.floor;
		}
	}
	r = open_databases(index, txn, 0);
	if (r < 0)
		return r;

	/* LMDB keeps the handles open only if the transaction commits. */
	return kv_env_errno(mdb_txn_commit(kv_steal(txn)));
}

static int create(struct kv_index *index, const struct kv_store_info *fresh)
{
	_cleanup_(kv_txn_abortp) MDB_txn *txn = NULL;
	struct kv_store_record record;
	MDB_val key = kv_store_key(), value = {sizeof(record), &record};
	int r = kv_env_errno(mdb_txn_begin(index->env, NULL, 0, &txn));

	kv_store_info_pack(fresh, &record);
	if (r == 0)
		r = kv_env_errno(
			mdb_dbi_open(txn, "meta", MDB_CREATE, &index->meta));
	if (r == 0)
		r = open_databases(index, txn, MDB_CREATE);
	if (r == 0)
		r = kv_env_errno(mdb_put(txn, index->meta, &key, &value, 0));
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
	index->room = map_bytes; /* an upper bound until the first batch */
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

/* Allocate disk blocks for holes as well: LMDB never wrote the pages that it
 * took and freed in one transaction. */
void kv_index_keep_room(struct kv_index *index)
{
	MDB_envinfo info;
	MDB_stat stat;
	uint64_t end;
	int fd;

	pthread_rwlock_rdlock(&index->guard);
	if (index->env && !index->broken &&
	    mdb_env_get_fd(index->env, &fd) == 0) {
		mdb_env_info(index->env, &info);
		mdb_env_stat(index->env, &stat);
		end = (info.me_last_pgno + 1) * stat.ms_psize;
		end = KV_MIN(end + ROOM, info.me_mapsize);
		(void)fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)end);
	}
	pthread_rwlock_unlock(&index->guard);
}

uint64_t kv_index_map_bytes(uint64_t cap)
{
	uint64_t bytes = KV_MAX(cap / MAP_SHARE, 2ull << 20);

	return kv_round_up(cap ? bytes : 64ull << 20, 1u << 20);
}

/* Return the bytes of the map that a value takes: leaves can be half empty, and
 * a value larger than half a page has pages of its own. */
static uint64_t value_bytes(uint64_t bytes)
{
	return bytes < KV_PAGE / 2 ? 2 * bytes
				   : kv_round_up(bytes + 16, KV_PAGE);
}

/* Token ids may take half of the map; the other half is for records. */
bool kv_index_takes_token_ids(uint32_t n, uint32_t extras_len, uint64_t length)
{
	/* overhead of LMDB and of the key */
	const uint64_t node = 2 * sizeof(uint64_t);

	return value_bytes(node + sizeof(struct kv_tokens_record) +
			   (uint64_t)n * sizeof(uint32_t) + extras_len) <=
	       length / (2 * MAP_SHARE);
}

uint64_t kv_index_space_bytes(size_t name_len, size_t layout_len)
{
	return value_bytes(sizeof(struct kv_space_record) + name_len +
			   layout_len);
}

uint64_t kv_index_snapshot_bytes(size_t n)
{
	return value_bytes(sizeof(struct kv_snapshot_record) +
			   n * sizeof(struct kv_snapshot_item));
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
	bool with_ids;
	struct kv_slot_record record;
	struct kv_token_ids *ids;
};

static int get_guarded(void *arg)
{
	struct getting *g = arg;
	MDB_val key = {sizeof(g->slot_id), &g->slot_id}, value;
	int r, rc = mdb_get(g->txn, g->index->parts[KV_PART_SLOTS], &key,
			    &value);
	uint64_t generation = 0;

	if (rc != 0)
		return rc;
	if (value.mv_size != sizeof(g->record))
		return MDB_CORRUPTED;
	memcpy(&g->record, value.mv_data, sizeof(g->record));
	if (!g->with_ids)
		return 0;
	rc = mdb_get(g->txn, g->index->parts[KV_PART_TOKENS], &key, &value);
	if (rc != 0)
		return rc == MDB_NOTFOUND ? 0 : rc;
	/* Damaged token ids, and those of an earlier block in the slot, count
	 * as absent. */
	r = kv_tokens_unpack(value.mv_data, value.mv_size, g->slot_id,
			     &generation, &g->ids);
	if (r == 0 && generation != g->record.generation)
		free(kv_steal(g->ids));
	return r == -ENOMEM ? ENOMEM : 0;
}

int kv_index_get(struct kv_index *index, uint64_t slot_id,
		 struct kv_slot_record *ret_record,
		 struct kv_token_ids **ret_ids)
{
	struct getting g = {
		.index = index, .slot_id = slot_id, .with_ids = ret_ids};
	int r = kv_txn_guard_enter(index, MDB_RDONLY, &g.txn), rc;

	if (r < 0)
		return r;
	rc = kv_fault_guard(index, get_guarded, &g);
	if (rc != MDB_PANIC)
		mdb_txn_abort(g.txn);
	pthread_rwlock_unlock(&index->guard);
	r = kv_env_errno(rc);
	if (r == 0 && g.record.checksum != kv_slot_sum(&g.record, slot_id))
		r = -EBADMSG;
	if (r < 0) {
		free(g.ids);
		return r;
	}
	*ret_record = g.record;
	if (ret_ids)
		*ret_ids = g.ids;
	return 0;
}

#define LOOK_MAX 2048u /* records examined by one kv_index_slots */

struct reading {
	struct kv_index *index;
	MDB_txn *txn;
	uint64_t id;
	uint32_t space;
	size_t n, max;
	struct kv_slot_record *records;
};

static int read_guarded(void *arg)
{
	struct reading *s = arg;
	MDB_val key = {sizeof(s->id), &s->id}, value;
	MDB_cursor *cursor;
	unsigned looks = 0;
	int rc = mdb_cursor_open(s->txn, s->index->parts[KV_PART_SLOTS],
				 &cursor);

	if (rc != 0)
		return rc;
	rc = mdb_cursor_get(cursor, &key, &value, MDB_SET_RANGE);
	for (; rc == 0; rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) {
		struct kv_slot_record *record = &s->records[s->n];

		if (key.mv_size == sizeof(s->id))
			memcpy(&s->id, key.mv_data, sizeof(s->id));
		if (s->n == s->max || looks++ == LOOK_MAX)
			break;
		if (value.mv_size != sizeof(*record))
			continue;
		memcpy(record, value.mv_data, sizeof(*record));
		s->n += record->space == s->space &&
			record->checksum == kv_slot_sum(record, s->id);
	}
	mdb_cursor_close(cursor);
	if (rc == MDB_NOTFOUND)
		s->id = UINT64_MAX;
	return rc == MDB_NOTFOUND ? 0 : rc;
}

long kv_index_slots(struct kv_index *index, uint64_t *id, uint32_t space,
		    struct kv_slot_record *ret_records, size_t max)
{
	struct reading s = {.index = index,
			    .id = *id,
			    .space = space,
			    .max = max,
			    .records = ret_records};
	int r = kv_txn_guard_enter(index, MDB_RDONLY, &s.txn), rc;

	if (r < 0)
		return r;
	rc = kv_fault_guard(index, read_guarded, &s);
	if (rc != MDB_PANIC)
		mdb_txn_abort(s.txn);
	pthread_rwlock_unlock(&index->guard);
	r = kv_env_errno(rc);
	*id = s.id;
	return r < 0 ? r : (long)s.n;
}

/* Call the visitor for one record; MDB_CORRUPTED: the record is damaged. */
typedef int (*visit_fn)(const struct kv_index_visitor *visitor, uint64_t id,
			const MDB_val *value);

static int visit_slot(const struct kv_index_visitor *visitor, uint64_t id,
		      const MDB_val *value)
{
	struct kv_slot_record record;

	if (value->mv_size != sizeof(record))
		return MDB_CORRUPTED;
	memcpy(&record, value->mv_data, sizeof(record));
	return record.checksum == kv_slot_sum(&record, id)
		       ? visitor->slot(visitor->arg, id, &record)
		       : MDB_CORRUPTED;
}

static int visit_segment(const struct kv_index_visitor *visitor, uint64_t id,
			 const MDB_val *value)
{
	struct kv_segfile_record record;

	if (value->mv_size != sizeof(record))
		return MDB_CORRUPTED;
	memcpy(&record, value->mv_data, sizeof(record));
	if (record.id != id || record.checksum != KV_SUM_OF(&record, NULL, 0))
		return MDB_CORRUPTED;
	return visitor->segment ? visitor->segment(visitor->arg, &record) : 0;
}

static int visit_space(const struct kv_index_visitor *visitor, uint64_t id,
		       const MDB_val *value)
{
	_cleanup_(kv_freep) char *name = NULL;
	_cleanup_(kv_freep) char *layout = NULL;
	struct kv_space_record record;
	int r = kv_space_unpack(value->mv_data, value->mv_size, id, &record,
				&name, &layout);

	if (r < 0)
		return r == -EBADMSG ? MDB_CORRUPTED : r;
	return visitor->space
		       ? visitor->space(visitor->arg, &record, name, layout)
		       : 0;
}

static int visit_snapshot(const struct kv_index_visitor *visitor, uint64_t id,
			  const MDB_val *value)
{
	const char *tail = (const char *)value->mv_data +
			   sizeof(struct kv_snapshot_record);
	_cleanup_(kv_freep) char *name = NULL;
	_cleanup_(kv_freep) struct kv_snapshot_item *items = NULL;
	struct kv_snapshot_record record = {0};
	size_t bytes;

	if (value->mv_size >= sizeof(record))
		memcpy(&record, value->mv_data, sizeof(record));
	bytes = (size_t)record.count * sizeof(*items);
	if (value->mv_size < sizeof(record) ||
	    value->mv_size != sizeof(record) + record.name_len + bytes ||
	    record.id != id ||
	    record.checksum != kv_snapshot_sum(&record, tail))
		return MDB_CORRUPTED;
	name = strndup(tail, record.name_len);
	items = malloc(bytes + 1);
	if (!name || !items)
		return -ENOMEM;
	memcpy(items, tail + record.name_len, bytes);
	return visitor->snapshot(visitor->arg, &record, name, items);
}

static int visit_tokens(const struct kv_index_visitor *visitor, uint64_t id,
			const MDB_val *value)
{
	_cleanup_(kv_freep) struct kv_token_ids *ids = NULL;
	uint64_t generation;
	int r = kv_tokens_unpack(value->mv_data, value->mv_size, id,
				 &generation, &ids);

	if (r == -EBADMSG)
		return MDB_CORRUPTED;
	return r < 0 ? r : visitor->tokens(visitor->arg, id, generation, ids);
}

static int visit_all(const struct kv_index *index, MDB_txn *txn,
		     const struct kv_index_visitor *visitor,
		     enum kv_index_part part, uint64_t *damaged)
{
	static const visit_fn visits[KV_PARTS] = {
		[KV_PART_SPACES] = visit_space,
		[KV_PART_SEGMENTS] = visit_segment,
		[KV_PART_SLOTS] = visit_slot,
		[KV_PART_SNAPSHOTS] = visit_snapshot,
		[KV_PART_TOKENS] = visit_tokens,
	};
	_cleanup_(kv_cursor_closep) MDB_cursor *cursor = NULL;
	MDB_val key, value;
	uint64_t id;
	int r, rc;

	rc = mdb_cursor_open(txn, index->parts[part], &cursor);
	if (rc != 0)
		return kv_env_errno(rc);
	while ((rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
		if (key.mv_size != sizeof(id)) {
			++*damaged;
			continue;
		}
		memcpy(&id, key.mv_data, sizeof(id));
		r = visits[part](visitor, id, &value);
		if (r != 0 && r != MDB_CORRUPTED)
			return r;
		*damaged += r != 0;
		if (r != 0 && visitor->damaged)
			visitor->damaged(visitor->arg, part, id);
	}
	return rc == MDB_NOTFOUND ? 0 : kv_env_errno(rc);
}

int kv_index_walk(struct kv_index *index,
		  const struct kv_index_visitor *visitor, uint64_t *ret_damaged)
{
	const bool wanted[KV_PARTS] = {
		[KV_PART_SPACES] = visitor->space || visitor->frame,
		[KV_PART_SEGMENTS] = visitor->segment || visitor->frame,
		[KV_PART_SLOTS] = visitor->slot,
		[KV_PART_SNAPSHOTS] = visitor->snapshot,
		[KV_PART_TOKENS] = visitor->tokens,
	};
	uint64_t damaged = 0;
	MDB_txn *txn;
	int r;

	kv_env_fetch(index->env);
	r = kv_env_errno(mdb_txn_begin(index->env, NULL, MDB_RDONLY, &txn));
	if (r == 0) {
		for (enum kv_index_part i = 0; r == 0 && i < KV_PARTS; i++)
			if (wanted[i])
				r = visit_all(index, txn, visitor, i, &damaged);
		mdb_txn_abort(txn);
	}
	kv_env_drop(index->env);
	if (r == 0)
		*ret_damaged = damaged;
	return r;
}

int kv_index_compact(struct kv_index **index, const char *path,
		     uint64_t map_bytes)
{
	_cleanup_(kv_closep) int fd = -1, dir = -1;
	char from[PATH_MAX], to[PATH_MAX];
	struct kv_store_info info;
	uint64_t live, bytes, free_pages;
	MDB_envinfo env;
	MDB_stat stat;
	int r, renamed;
	bool over;

	if (snprintf(from, sizeof(from), "%s/" COPY_NAME, path) >= PATH_MAX ||
	    snprintf(to, sizeof(to), "%s/data.mdb", path) >= PATH_MAX)
		return -ENAMETOOLONG;
	unlink(from); /* left by a crash during a compaction */
	r = kv_env_free_pages((*index)->env, &free_pages);
	if (r < 0)
		return r;
	mdb_env_info((*index)->env, &env);
	mdb_env_stat((*index)->env, &stat);
	live = (env.me_last_pgno + 1 - free_pages) * stat.ms_psize;
	bytes = kv_index_bytes(*index);
	/* The file is larger than its map if the cap was lowered. */
	over = bytes > map_bytes;
	if (over ? live >= bytes : bytes < SMALL || live * 2 > bytes)
		return 0;
	fd = open(from, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	r = kv_env_errno(mdb_env_copyfd2((*index)->env, fd, MDB_CP_COMPACT));
	if (r == 0) {
		KV_POINT("compact.copied");
		r = fsync(fd) < 0 ? -errno : 0;
	}
	if (r < 0) {
		unlink(from);
		return r;
	}

	kv_index_close(kv_steal(*index));
	KV_POINT("compact.before_rename");
	if (rename(from, to) < 0) {
		renamed = -errno;
		unlink(from);
	} else {
		KV_POINT("compact.renamed");
		dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		renamed = dir < 0 || fsync(dir) < 0 ? -errno : 0;
	}
	r = kv_index_open(path, map_bytes, false, NULL, &info, index);
	if (r < 0)
		return r;
	return renamed < 0 ? renamed : 1;
}
