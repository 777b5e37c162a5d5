/* SPDX-License-Identifier: Apache-2.0 */
/* test_alloc.c - the index when allocations fail: a transaction is committed
 * whole or not at all. */
#include "tests/alloc.h"
#include "tests/index/index_fixture.h"

/* Put one record of each kind in one transaction. */
static int write_batch(struct fixture *f, uint64_t first)
{
	struct kv_space_record space = {.id = 2};
	struct kv_segfile_record segment = {.id = 7, .slots = 3};
	struct kv_slot_record slot = slot_record(first);
	struct kv_txn *batch = NULL;
	int r = kv_txn_begin(f->index, &batch);

	if (r == 0)
		r = kv_txn_put_space(batch, &space, "name", "{}");
	if (r == 0)
		r = kv_txn_put_segfile(batch, &segment);
	if (r == 0)
		r = kv_txn_put_slot(batch, first, &slot);
	if (r == 0)
		r = kv_txn_put_info(batch, &f->info);
	if (r < 0) {
		kv_txn_abort(batch);
		return r;
	}
	return kv_txn_commit(batch);
}

static void use(void *arg)
{
	struct fixture *f = arg;
	struct kv_slot_record record;
	static struct seen seen;
	int r;

	r = write_batch(f, 1);
	alloc_among(r, 0, -ENOMEM);
	r = kv_index_get(f->index, 1, &record, NULL);
	alloc_among(r, 0, -ENOMEM);
	memset(&seen, 0, sizeof(seen));
	r = walk(f, &seen);
	alloc_among(r, 0, -ENOMEM);
	alloc_must(r < 0 || (seen.slots == 1 && seen.spaces == 1 &&
			     seen.segments == 1 && seen.damaged == 0));
}

static const struct alloc_script use_script = {.run = use};

static void what_cannot_be_written_or_read_says_enomem(void **state)
{
	use(*state); /* make the record that the script reads */
	assert_true(alloc_every(&use_script, *state, 1) > 3);
	assert_true(alloc_every(&use_script, *state, 1000) > 3);
}

static void open_closed(void *arg)
{
	struct fixture *f = arg;
	int r = kv_index_open(f->directory, MAP, false, &fresh, &f->info,
			      &f->index);

	alloc_among(r, 0, -ENOMEM);
}

static void close_open(void *arg)
{
	struct fixture *f = arg;

	kv_index_close(kv_steal(f->index));
}

static const struct alloc_script open_script = {.run = open_closed,
						.after = close_open};

static void an_index_is_opened_or_enomem(void **state)
{
	struct fixture *f = *state;

	kv_index_close(kv_steal(f->index));
	assert_true(alloc_every(&open_script, f, 1) > 3);
	assert_true(alloc_every(&open_script, f, 1000) > 3);
}

/* Put and delete many records, so that the index is worth compacting. */
static void grow(void *arg)
{
	struct fixture *f = arg;

	if (!f->index)
		assert_int_equal(kv_index_open(f->directory, MAP, false, &fresh,
					       &f->info, &f->index),
				 0);
	assert_int_equal(put_slots(f, 1, 40000), 0);
	assert_int_equal(delete_slots(f, 11, 39990, 1), 0);
}

static void compact(void *arg)
{
	struct fixture *f = arg;
	int r = kv_index_compact(&f->index, f->directory, MAP);

	alloc_among(r, 1, -ENOMEM, -EAGAIN /* from pthread_create */);
}

/* Check that the index, compacted or not, has all its records. */
static void look(void *arg)
{
	static struct seen seen;
	struct fixture *f = arg;

	if (f->index)
		assert_int_equal(open_again(f, false), 0);
	else
		assert_int_equal(kv_index_open(f->directory, MAP, false, NULL,
					       &f->info, &f->index),
				 0);
	memset(&seen, 0, sizeof(seen));
	assert_int_equal(walk(f, &seen), 0);
	assert_int_equal(seen.slots, 10);
	assert_int_equal(seen.damaged, 0);
	kv_index_close(kv_steal(f->index));
}

static void it_is_compacted_or_left_as_it_is(void **state)
{
	const struct alloc_script script = {compact, grow, look};
	struct fixture *f = *state;

	kv_index_close(kv_steal(f->index));
	assert_true(alloc_every(&script, f, 1) > 3);
	assert_true(alloc_every(&script, f, 1000) > 3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(what_cannot_be_written_or_read_says_enomem),
		TEST(an_index_is_opened_or_enomem),
		TEST(it_is_compacted_or_left_as_it_is),
	};

	if (alloc_skip())
		return 77;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
