/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index_fixture.h - an index in a directory of its own below /var/tmp, with
 * records whose content follows from their id.
 */
#ifndef KV_TESTS_INDEX_INDEX_FIXTURE_H
#define KV_TESTS_INDEX_INDEX_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <sys/mount.h>

#include "index/index.h"

#define MAP (64u << 20)

struct fixture {
	char directory[40], data[64], lock[64], text[70000];
	struct kv_index *index;
	struct kv_store_info info;
	bool mounted;
};

static const struct kv_store_info fresh = {
	.store = "0123456789abcde",
	.cap = 4ull << 30,
	.segment_bytes = 256u << 20,
	.next_generation = 1,
	.next_space = 1,
	.clean = true,
};

static inline int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	strcpy(f->directory, "/var/tmp/kvfs-index-XXXXXX");
	if (!mkdtemp(f->directory))
		return -1;
	snprintf(f->data, sizeof(f->data), "%s/data.mdb", f->directory);
	snprintf(f->lock, sizeof(f->lock), "%s/lock.mdb", f->directory);
	*state = f;
	return kv_index_open(f->directory, MAP, false, &fresh, &f->info,
			     &f->index);
}

static inline int teardown(void **state)
{
	struct fixture *f = *state;

	kv_index_close(f->index);
	if (f->mounted)
		umount2(f->directory, MNT_DETACH);
	unlink(f->data);
	unlink(f->lock);
	rmdir(f->directory);
	free(f);
	return 0;
}

static inline int open_again(struct fixture *f, bool read_only)
{
	kv_index_close(kv_steal(f->index));
	return kv_index_open(f->directory, MAP, read_only, &fresh, &f->info,
			     &f->index);
}

static inline struct kv_slot_record slot_record(uint64_t id)
{
	struct kv_slot_record record = {
		.generation = id * 3 + 1,
		.length = 1000 + id,
		.space = 2,
		.key_len = 16,
		.pinned = id % 2,
	};

	memcpy(record.key, &id, sizeof(id));
	return record;
}

static inline int put_slots(struct fixture *f, uint64_t from, uint64_t n)
{
	struct kv_txn *batch = NULL;
	struct kv_slot_record record;
	int r;

	r = kv_txn_begin(f->index, &batch);
	for (uint64_t id = from; r == 0 && id < from + n; id++) {
		record = slot_record(id);
		r = kv_txn_put_slot(batch, id, &record);
	}
	if (r < 0) {
		kv_txn_abort(batch);
		return r;
	}
	return kv_txn_commit(batch);
}

static inline int delete_slots(struct fixture *f, uint64_t from, uint64_t n,
			       uint64_t step)
{
	struct kv_txn *batch = NULL;
	int r;

	r = kv_txn_begin(f->index, &batch);
	for (uint64_t i = 0; r == 0 && i < n; i++)
		r = kv_txn_delete(batch, KV_PART_SLOTS, from + i * step);
	if (r < 0) {
		kv_txn_abort(batch);
		return r;
	}
	return kv_txn_commit(batch);
}

static inline int commit_info(struct fixture *f,
			      const struct kv_store_info *info)
{
	struct kv_txn *batch;

	assert_int_equal(kv_txn_begin(f->index, &batch), 0);
	assert_int_equal(kv_txn_put_info(batch, info), 0);
	return kv_txn_commit(batch);
}

struct seen {
	uint64_t slots, spaces, segments, last, damaged;
	struct kv_space_record space;
	struct kv_segfile_record segment;
	char name[300], layout[70000];
	bool disorder;
	int stop;
};

static inline int see_space(void *arg, const struct kv_space_record *record,
			    const char *name, const char *layout)
{
	struct seen *seen = arg;

	seen->spaces++;
	seen->space = *record;
	strcpy(seen->name, name);
	strcpy(seen->layout, layout);
	return 0;
}

static inline int see_segment(void *arg, const struct kv_segfile_record *record)
{
	struct seen *seen = arg;

	seen->segments++;
	seen->segment = *record;
	return 0;
}

static inline int see_slot(void *arg, uint64_t id,
			   const struct kv_slot_record *record)
{
	struct seen *seen = arg;

	seen->disorder |= seen->slots > 0 && id <= seen->last;
	seen->disorder |= memcmp(record->key, &id, sizeof(id)) != 0;
	seen->last = id;
	seen->slots++;
	return seen->stop;
}

static inline int walk(struct fixture *f, struct seen *seen)
{
	const struct kv_index_visitor visitor = {
		.arg = seen,
		.space = see_space,
		.segment = see_segment,
		.slot = see_slot,
	};

	return kv_index_walk(f->index, &visitor, &seen->damaged);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

#endif
