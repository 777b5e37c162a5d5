/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.c - a store with many blocks, made without a daemon.
 *
 * OWNS      the index while it is filled.
 *
 * LOCKING   none.
 */
#include "tools/bench/store.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

#include "index/index.h"
#include "index/segfile.h"

#define SEGMENT (256u << 20)
#define SLOT (4u * KV_PAGE)
#define A_BATCH 65536u
#define SPARE_FILES 4u

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

/* Used at any time within a week: the order on SSD says nothing of it. */
static struct kv_slot_record record_of(uint64_t n)
{
	struct kv_slot_record record = {
		.generation = n + 1,
		.length = KV_PAGE,
		.space = 1,
		.position = (uint32_t)(n % 1000),
		.key_len = 16,
		.parent_len = 16,
		.tokens = 16,
		.atime = (uint32_t)(1700000000 + mix(n / 1000) % 604800),
	};
	unsigned i;

	for (i = 0; i < 2; i++) {
		uint64_t word = mix(n * 2 + i), before = mix(n * 2 - 2 + i);

		memcpy(record.key + i * 8, &word, 8);
		memcpy(record.parent + i * 8, &before, 8);
	}
	return record;
}

static int make_file(const char *dir, const struct kv_store_info *info,
		     uint32_t id)
{
	char path[PATH_MAX];
	int fd, r;

	snprintf(path, sizeof(path), "%s/segments/%06u.seg", dir, id);
	fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	r = ftruncate(fd, SEGMENT) < 0 ? -errno : 0;
	if (r == 0)
		r = kv_trailer_write(fd, id, info->store, SEGMENT, SLOT);
	close(fd);
	return r;
}

/* Records of the blocks @from .. @to, in one transaction. */
static int put(struct kv_index *index, uint64_t from, uint64_t to)
{
	const uint32_t slots = kv_segfile_slots_of(SEGMENT, SLOT);
	const struct kv_space_record space = {.id = 1, .mode = 0755};
	struct kv_txn *batch;
	uint64_t n;
	int r = kv_txn_begin(index, &batch);

	if (r < 0)
		return r;
	if (from == 0)
		r = kv_txn_put_space(batch, &space, "million", "");
	for (n = from; n < to && r == 0; n++) {
		const struct kv_slot_record record = record_of(n);
		const struct kv_segfile_record file = {
			.id = (uint32_t)(n / slots),
			.slots = slots,
			.slot_bytes = SLOT};

		if (n % slots == 0)
			r = kv_txn_put_segfile(batch, &file);
		if (r == 0)
			r = kv_txn_put_slot(
				batch,
				kv_slot_id(file.id, (uint32_t)(n % slots)),
				&record);
	}
	if (r == 0)
		return kv_txn_commit(batch);
	kv_txn_abort(batch);
	return r;
}

static int fill(const char *path, const struct kv_store_info *info,
		uint64_t blocks)
{
	struct kv_store_info ignored;
	struct kv_index *index;
	uint64_t n;
	int r = kv_index_open(path, kv_index_map_bytes(info->cap), false, info,
			      &ignored, &index);

	for (n = 0; n < blocks && r == 0; n += A_BATCH)
		r = put(index, n, KV_MIN(n + A_BATCH, blocks));
	if (r == 0 || n > 0)
		kv_index_close(index);
	return r;
}

int kv_bench_store_make(const char *dir, uint64_t blocks, uint64_t *ret_ssd)
{
	const uint32_t slots = kv_segfile_slots_of(SEGMENT, SLOT);
	const uint32_t files = (uint32_t)((blocks + slots - 1) / slots);
	struct kv_store_info info = {
		.store = "a million blocks",
		.segment_bytes = SEGMENT,
		.next_generation = 1ull << 32,
		.next_space = 2,
		.version = KV_FORMAT_VERSION,
		.clean = true,
		/* A part of the cap is the index's. */
		.cap = (uint64_t)(files + SPARE_FILES) * SEGMENT / 22 * 23,
	};
	char path[PATH_MAX];
	uint32_t id;
	int r;

	snprintf(path, sizeof(path), "%s/segments", dir);
	if (mkdir(dir, 0700) < 0 || mkdir(path, 0700) < 0)
		return -errno;
	snprintf(path, sizeof(path), "%s/index", dir);
	if (mkdir(path, 0700) < 0)
		return -errno;
	for (id = 0; id < files; id++) {
		r = make_file(dir, &info, id);
		if (r < 0)
			return r;
	}
	*ret_ssd = info.cap;
	return fill(path, &info, blocks);
}
