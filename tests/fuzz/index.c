/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records of the index: any bytes under any key, as a bad disk or a bug might put them
 * there.  LMDB's own pages are not changed.
 */
#include <unistd.h>

#include "index/env.h"
#include "index/record.h"
#include "tests/fuzz/fuzz.h"

#define MAP (16u << 20)

enum database { META, SPACES, SEGMENTS, SLOTS, SNAPSHOTS, DATABASES };

static char directory[] = "/tmp/kvfs-fuzz-index-XXXXXX";
static const struct kv_store_info fresh = {.store = "0123456789abcde",
					   .next_space = 1};
static struct kv_index *handle;

static void reopen(void)
{
	struct kv_store_info info;

	kv_index_close(kv_steal(handle));
	fuzz_must(kv_index_open(directory, MAP, false, &fresh, &info,
				&handle) == 0);
	mdb_env_set_flags(handle->env, MDB_NOSYNC, 1);
}

static void remove_files(void)
{
	char path[64];

	kv_index_close(kv_steal(handle));
	snprintf(path, sizeof(path), "%s/data.mdb", directory);
	unlink(path);
	snprintf(path, sizeof(path), "%s/lock.mdb", directory);
	unlink(path);
}

static void clean_up(void)
{
	remove_files();
	rmdir(directory);
}

/* Give a record the right checksum, so that it reaches the code that uses it. */
static void seal(enum database database, uint64_t id, uint8_t *value, size_t n)
{
	struct kv_space_record *space = (void *)value;
	struct kv_snapshot_record *snapshot = (void *)value;
	struct kv_segfile_record *file = (void *)value;
	struct kv_store_record *store = (void *)value;
	struct kv_slot_record *slot = (void *)value;

	if (database == META && n == sizeof(struct kv_store_record))
		store->checksum = KV_SUM_OF(store, NULL, 0);
	if (database == SLOTS && n == sizeof(struct kv_slot_record))
		slot->checksum = kv_slot_sum(slot, id);
	if (database == SEGMENTS && n == sizeof(struct kv_segfile_record))
		file->checksum = KV_SUM_OF(file, NULL, 0);
	if (database == SNAPSHOTS && n >= sizeof(*snapshot)) {
		n -= sizeof(*snapshot);
		snapshot->id = id;
		snapshot->count =
			(uint32_t)(snapshot->count %
				   (n / sizeof(struct kv_snapshot_item) + 1));
		snapshot->name_len =
			(uint32_t)(n - snapshot->count *
					       sizeof(struct kv_snapshot_item));
		snapshot->checksum = kv_snapshot_sum(snapshot, snapshot + 1);
	}
	if (database != SPACES || n < sizeof(*space))
		return;
	space->id = (uint32_t)id;
	space->layout_len =
		(uint32_t)KV_MIN(space->layout_len, n - sizeof(*space));
	space->name_len = (uint32_t)(n - sizeof(*space)) - space->layout_len;
	space->checksum = kv_space_sum(space, (const char *)(space + 1));
}

/* Put one record.  Input: the database (plus 16: add a checksum), the key, the
 * length and the value. */
static int put_one(MDB_txn *txn, struct fuzz *f, size_t key_len)
{
	const MDB_dbi *part = handle->parts;
	const MDB_dbi dbis[] = {handle->meta, part[KV_PART_SPACES],
				part[KV_PART_SEGMENTS], part[KV_PART_SLOTS],
				part[KV_PART_SNAPSHOTS]};
	unsigned how = fuzz_byte(f);
	enum database database = (how & 15) % DATABASES;
	uint64_t id = fuzz_byte(f) | (uint64_t)fuzz_byte(f) << 32;
	size_t n = fuzz_u16(f) % 4096;
	_cleanup_(kv_freep) uint8_t *bytes = fuzz_take(f, n, &n);
	MDB_val key = {key_len, &id}, value = {n, bytes};
	static char name[] = "store";

	if (how & 16)
		seal(database, id, bytes, n);
	if (database == META)
		key = (MDB_val){5, name};
	return mdb_put(txn, dbis[database], &key, &value, 0);
}

static unsigned put_all(struct fuzz *f, size_t key_len)
{
	unsigned puts = 0;
	MDB_txn *txn;
	int rc = 0;

	fuzz_must(mdb_txn_begin(handle->env, NULL, 0, &txn) == 0);
	while (f->left && puts < 32 && rc == 0) {
		rc = put_one(txn, f, key_len);
		puts++;
	}
	if (rc == 0)
		fuzz_must(mdb_txn_commit(txn) == 0);
	else
		mdb_txn_abort(txn);
	return rc == 0 ? puts : 0;
}

struct seen {
	uint64_t n, sum;
};

static int see_space(void *arg, const struct kv_space_record *record,
		     const char *name, const char *layout)
{
	struct seen *seen = arg;

	fuzz_must(strlen(name) <= record->name_len);
	fuzz_must(strlen(layout) <= record->layout_len);
	seen->n++;
	return 0;
}

static int see_snapshot(void *arg, const struct kv_snapshot_record *record,
			const char *name, const struct kv_snapshot_item *items)
{
	struct seen *seen = arg;

	fuzz_must(strlen(name) <= record->name_len);
	for (uint32_t i = 0; i < record->count; i++)
		seen->sum += items[i].position;
	seen->n++;
	return 0;
}

static int see_segment(void *arg, const struct kv_segfile_record *record)
{
	struct seen *seen = arg;

	seen->n++;
	seen->sum += record->slot_bytes;
	return 0;
}

static int see_slot(void *arg, uint64_t id, const struct kv_slot_record *record)
{
	struct kv_slot_record again;
	struct seen *seen = arg;

	fuzz_must(kv_index_get(handle, id, &again, NULL) == 0);
	fuzz_must(memcmp(&again, record, sizeof(again)) == 0);
	seen->n++;
	return 0;
}

static void walk(unsigned puts)
{
	struct seen seen = {0};
	const struct kv_index_visitor visitor = {.arg = &seen,
						 .space = see_space,
						 .segment = see_segment,
						 .slot = see_slot,
						 .snapshot = see_snapshot};
	uint64_t damaged;

	fuzz_must(kv_index_walk(handle, &visitor, &damaged) == 0);
	fuzz_must(seen.n + damaged <= puts);
}

static void empty(void)
{
	struct kv_store_record record;
	MDB_val key = kv_store_key(), value = {sizeof(record), &record};
	MDB_txn *txn;

	kv_store_info_pack(&fresh, &record);
	fuzz_must(mdb_txn_begin(handle->env, NULL, 0, &txn) == 0);
	for (size_t i = 0; i < KV_PARTS; i++)
		fuzz_must(mdb_drop(txn, handle->parts[i], 0) == 0);
	fuzz_must(mdb_put(txn, handle->meta, &key, &value, 0) == 0);
	fuzz_must(mdb_txn_commit(txn) == 0);
}

/* A record of the store with another format version must be refused. */
static void open_again(void)
{
	struct kv_store_info info;
	int r;

	kv_index_close(kv_steal(handle));
	r = kv_index_open(directory, MAP, true, NULL, &info, &handle);
	fuzz_must(r == 0 || r == -EBADMSG || r == -ENOTSUP);
	remove_files();
	reopen();
}

/* Input: a byte of bits (1: open the index again; 2: use keys of 4 instead of 8
 * bytes, as LMDB wants keys of one length in a database); then the records. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz f = {data, size};
	unsigned how = fuzz_byte(&f);
	unsigned puts;

	if (!handle) {
		fuzz_must(mkdtemp(directory));
		atexit(clean_up);
		reopen();
	}
	puts = put_all(&f, how & 2 ? 4 : 8);
	walk(puts);
	if (how & 1)
		open_again();
	else
		empty();
	return 0;
}
