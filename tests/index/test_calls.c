/* SPDX-License-Identifier: Apache-2.0 */
/* run.sh: long */
/*
 * test_calls.c - use the index and the files beside it: each call of LMDB and of
 * the system fails once; and from each call on, all calls fail.
 */
#include "tests/calls.h"
#include "tests/index/store_fixture.h"

struct script {
	void (*before)(void *arg);
	int (*run)(void *arg); /* function whose calls fail */
	void (*after)(void *arg, int r);
};

static int run_with(const struct script *script, void *arg, unsigned n,
		    unsigned failing, int error)
{
	int r;

	if (script->before)
		script->before(arg);
	inject_arm(error, n, failing);
	r = script->run(arg);
	inject_disarm();
	if (script->after)
		script->after(arg, r);
	return inject.failed > 0;
}

/* Run @script with each call failing alone, and with all calls failing from
 * each one on. */
static void every_call(const struct script *script, void *arg)
{
	static const int errors[] = {EIO, ENOSPC, ENOMEM};
	unsigned n, runs = 0;

	calls_pages = 32;
	for (size_t e = 0; e < KV_ARRAY_LEN(errors); e++) {
		for (n = 0; run_with(script, arg, n, 1, errors[e]); n++)
			runs++;
		for (n = 0; run_with(script, arg, n, 100000, errors[e]); n++)
			runs++;
	}
	assert_true(runs > 6);
	print_message("%u runs with a fault\n", runs);
}

/* ---- rebuilding the index ---- */

static void two_files(struct store *s)
{
	store_add_file(s, 0);
	store_add_file(s, 3);
	store_put(s, 0, 5, store_record(1, 1, 100));
	store_put(s, 0, 6, store_record(1, 2, 101));
	store_put(s, 3, 0, store_record(2, 1, 102));
	/* newer than the other record of this key, in file 0, slot 6 */
	store_put(s, 3, 1, store_record(1, 2, 103));
}

static int rebuild(void *arg)
{
	struct store *s = arg;

	s->rebuild = (struct kv_rebuild){.store_fd = s->fd,
					 .path = s->path,
					 .cap = 64u << 20,
					 .keep = true};
	return kv_rebuild(&s->rebuild);
}

static void all_or_said(void *arg, int r)
{
	struct store *s = arg;

	/* If no read of the store failed, all blocks are back. */
	if (r == 0 && !s->rebuild.odd_files && !s->rebuild.unreadable &&
	    !s->rebuild.strays)
		assert_int_equal(s->rebuild.blocks, 3);
	assert_int_equal(store_rebuild(s), 0);
	assert_int_equal(s->rebuild.blocks, 3);
	assert_int_equal(s->rebuild.spaces, 2);
	assert_int_equal(s->rebuild.duplicates, 1);
	kv_index_close(kv_steal(s->made));
}

static void a_rebuild_that_fails_can_be_tried_again(void **state)
{
	const struct script script = {NULL, rebuild, all_or_said};

	two_files(*state);
	every_call(&script, *state);
}

/* ---- the files beside the index ---- */

static const struct kv_space_record three = {.id = 3, .uid = 8, .mode = 0750};

static int write_sidecar(void *arg)
{
	struct kv_store_info info = store_info;
	struct store *s = arg;
	int r;

	info.mounts = 9;
	r = kv_store_file_write(s->fd, &info);
	if (r == 0)
		r = kv_space_file_write(s->spaces, &three, "three", "{}");
	return r;
}

static void old_or_new(void *arg, int r)
{
	_cleanup_(kv_freep) char *name = NULL, *layout = NULL;
	struct kv_space_record record;
	struct kv_store_info info;
	struct store *s = arg;
	int read;

	assert_int_equal(kv_store_file_read(s->fd, &info), 0);
	assert_true(info.mounts == 9 || (info.mounts == 0 && r < 0));
	read = kv_space_file_read(s->spaces, 3, &record, &name, &layout);
	assert_true(read == 0 || (read == -ENOENT && r < 0));
	if (read == 0) {
		assert_string_equal(name, "three");
		assert_string_equal(layout, "{}");
	}
	assert_int_equal(kv_space_file_remove(s->spaces, 3), 0);
	assert_int_equal(kv_store_file_write(s->fd, &store_info), 0);
}

static int read_beside(void *arg)
{
	_cleanup_(kv_freep) char *name = NULL, *layout = NULL;
	struct kv_space_record record;
	struct kv_store_info info;
	struct store *s = arg;
	int r = kv_store_file_read(s->fd, &info);

	if (r == 0)
		r = kv_space_file_read(s->spaces, 1, &record, &name, &layout);
	if (r == 0)
		r = kv_space_file_remove(s->spaces, 1);
	return r;
}

static void again(void *arg)
{
	assert_int_equal(store_add_space(arg, 1, "one"), 0);
}

static void a_file_beside_the_index_is_the_old_or_the_new_one(void **state)
{
	const struct script writes = {NULL, write_sidecar, old_or_new};
	const struct script reads = {again, read_beside, NULL};

	every_call(&writes, *state);
	every_call(&reads, *state);
}

/* ---- opening segment files ---- */

static int use_segment(void *arg)
{
	struct kv_trailer trailer;
	struct kv_found found[4];
	struct store *s = arg;
	_cleanup_(kv_closep) int fd = store_open_file(s, 0);
	int r = fd < 0 ? -errno
		       : kv_trailer_write(fd, 0, store_info.store, SEGMENT,
					  SLOT);

	if (r == 0)
		r = kv_trailer_read(fd, 0, &trailer);
	if (r == 0)
		kv_segfile_scan(fd, store_info.store, SLOT, 0, 4, NULL, found);
	for (unsigned i = 0; r == 0 && i < 4; i++)
		assert_true(found[i].state == KV_FOUND_UNREADABLE ||
			    (found[i].state == KV_FOUND_BLOCK) == (i == 1));
	if (r == 0)
		r = kv_segfile_zero(fd, SLOT, 1);
	if (r == 0)
		r = kv_segfile_clear(fd, SEGMENT, SLOT);
	return r;
}

static void with_a_block(void *arg)
{
	store_put(arg, 0, 1, store_record(1, 1, 100));
}

static void gone_or_said(void *arg, int r)
{
	struct store *s = arg;
	_cleanup_(kv_closep) int fd = store_open_file(s, 0);
	struct kv_found found;

	kv_segfile_scan(fd, store_info.store, SLOT, 1, 1, NULL, &found);
	assert_true(r < 0 || found.state == KV_FOUND_ZERO);
}

static void what_cannot_be_done_to_a_segment_is_told(void **state)
{
	const struct script script = {with_a_block, use_segment, gone_or_said};

	store_add_file(*state, 0);
	every_call(&script, *state);
}

/* ---- using the index ---- */

static int use_index(void *arg)
{
	struct fixture *f = arg;
	struct kv_slot_record record;
	static struct seen seen;
	int r = kv_index_open(f->directory, MAP, false, &fresh, &f->info,
			      &f->index);

	if (r == 0)
		r = put_slots(f, 11, 3);
	if (r == 0)
		r = kv_index_get(f->index, 12, &record, NULL);
	if (r == 0)
		r = delete_slots(f, 11, 3, 1);
	memset(&seen, 0, sizeof(seen));
	if (r == 0)
		r = walk(f, &seen);
	kv_index_close(kv_steal(f->index));
	return r;
}

static int compact_index(void *arg)
{
	struct fixture *f = arg;
	int r = kv_index_compact(&f->index, f->directory, MAP);

	kv_index_close(kv_steal(f->index));
	return r;
}

/* Leave ten of many records, so that the index is worth compacting. */
static void ten_of_many(void *arg)
{
	struct fixture *f = arg;

	assert_int_equal(kv_index_open(f->directory, MAP, false, &fresh,
				       &f->info, &f->index),
			 0);
	assert_int_equal(put_slots(f, 1, 40000), 0);
	assert_int_equal(delete_slots(f, 11, 39990, 1), 0);
}

static void ten_are_there(void *arg, int r)
{
	struct fixture *f = arg;
	static struct seen seen;

	assert_in_range(r + 200, 0, 201);
	assert_int_equal(kv_index_open(f->directory, MAP, false, NULL, &f->info,
				       &f->index),
			 0);
	memset(&seen, 0, sizeof(seen));
	assert_int_equal(walk(f, &seen), 0);
	assert_int_equal(seen.damaged, 0);
	/* A failed transaction left no record, unless it failed after its
	 * commit. */
	assert_true(seen.slots == 10 || (r < 0 && seen.slots == 13));
	kv_index_close(kv_steal(f->index));
}

static void an_index_whose_calls_fail_loses_nothing(void **state)
{
	const struct script uses = {NULL, use_index, ten_are_there};
	const struct script compacts = {ten_of_many, compact_index,
					ten_are_there};
	struct fixture *f = *state;

	kv_index_close(kv_steal(f->index));
	every_call(&compacts, f);
	every_call(&uses, f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		STORE_TEST(a_rebuild_that_fails_can_be_tried_again),
		STORE_TEST(a_file_beside_the_index_is_the_old_or_the_new_one),
		STORE_TEST(what_cannot_be_done_to_a_segment_is_told),
		TEST(an_index_whose_calls_fail_loses_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
