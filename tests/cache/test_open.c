/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_open.c - blocks in segments that their owner's clients may write: changed
 * blocks are detected.
 *
 * OWNS      each test its own store, whose segments are all open.
 *
 * LOCKING   none: the cache's own.
 */
#include <fcntl.h>
#include <sys/mman.h>

#include "cache/core/core.h"
#include "cache/core/slot.h"
#include "tests/cache/tiers.h"

#define OWNER 1u
#define HEIR 2u
#define N 8u

/* A block of chain 1, whose segment the test has mapped for writing like a
 * client of the block's owner. */
struct mapped {
	struct kv_acquire *acquire;
	struct kv_given_segment segment;
	uint8_t *base;
	uint64_t offset; /* of the block, in the segment's file */
};

static struct mapped map_as_owner(struct tiers *t, unsigned position)
{
	struct mapped m = {.acquire = tiers_acquire(t, t->space, 1, N)};
	const struct kv_want *want = &m.acquire->wants[position];

	assert_int_equal(want->status, 0);
	m.offset = want->offset;
	assert_int_equal(
		kv_segment_give(t->cache, want->segment, OWNER, &m.segment), 0);
	m.base = mmap(NULL, m.segment.bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
		      m.segment.fd, 0);
	assert_ptr_not_equal(m.base, MAP_FAILED);
	kv_segment_returned(t->cache, want->segment, OWNER);
	return m;
}

static void unmap(struct tiers *t, struct mapped *m)
{
	munmap(m->base, m->segment.bytes);
	tiers_release(t, m->acquire);
}

static int set_up(void **state)
{
	struct tiers *t;

	tiers_set_up(state);
	t = *state;
	t->config.arena = KV_ARENA_RW;
	t->config.writeback = KV_WRITEBACK_NONE;
	tiers_reopen(t);
	for (unsigned i = 0; i < N; i++)
		tiers_must_save(t, t->space, 1, i);
	return 0;
}

/* Flush the block; return the status. */
static int flush(struct tiers *t, unsigned position)
{
	struct kv_block *block = tiers_get(t, t->space, 1, position);
	int r;

	assert_non_null(block);
	r = kv_block_sync(t->cache, block);
	kv_block_put(t->cache, block);
	return r;
}

static bool is_right(struct tiers *t, unsigned position)
{
	struct kv_block *block = tiers_get(t, t->space, 1, position);
	struct kv_view view;
	bool right;

	assert_non_null(block);
	assert_int_equal(kv_view_get(t->cache, block, KV_VIEW_WAIT, &view), 0);
	right = view.length == BYTES;
	for (unsigned i = 0; right && i < BYTES; i++)
		right = view.data[i] == 1 + position;
	kv_view_put(t->cache, &view);
	kv_block_put(t->cache, block);
	return right;
}

static void a_changed_block_is_not_written(void **state)
{
	struct tiers *t = *state;
	struct mapped m = map_as_owner(t, 3);

	m.base[m.offset + BYTES - 1] ^= 1;
	unmap(t, &m);
	assert_int_equal(flush(t, 3), -EBADMSG);
	assert_int_equal(tiers_of(t, t->space, 1, 3), 0);
	assert_int_equal(tiers_stats(t).corrupt, 1);
	for (unsigned i = 0; i < N; i++)
		if (i != 3)
			assert_int_equal(flush(t, i), 0);
	tiers_reopen(t);
	for (unsigned i = 0; i < N; i++)
		assert_true(i == 3 ? tiers_of(t, t->space, 1, i) == 0
				   : is_right(t, i));
	tiers_must_save(t, t->space, 1, 3);
	assert_int_equal(flush(t, 3), 0);
}

static void what_is_said_of_a_block_is_kept_elsewhere(void **state)
{
	struct tiers *t = *state;
	struct mapped m = map_as_owner(t, 3);
	struct kv_prologue forged;

	memset(m.base + m.offset - KV_PAGE, 0xff, KV_PAGE);
	assert_int_equal(flush(t, 3), 0);
	/* Forge a prologue from that of another block. */
	memcpy(&forged, m.base + m.offset - KV_PAGE, sizeof(forged));
	memset(&forged.record.digest, 0, sizeof(forged.record.digest));
	forged.record.length = UINT32_MAX;
	memcpy(m.base + m.offset - KV_PAGE, &forged, sizeof(forged));
	unmap(t, &m);
	tiers_reopen(t);
	assert_true(is_right(t, 3));
	assert_int_equal(tiers_stats(t).corrupt, 0);
}

static void pages_that_are_taken_away_are_missed_by_nobody_else(void **state)
{
	struct tiers *t = *state;
	struct mapped m = map_as_owner(t, 3);

	assert_int_equal(fallocate(m.segment.fd,
				   FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				   0, (off_t)m.segment.bytes),
			 0);
	assert_true(ftruncate(m.segment.fd, 0) < 0);
	unmap(t, &m);
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(flush(t, i), -EBADMSG);
	assert_int_equal(tiers_stats(t).corrupt, N);
	assert_int_equal(tiers_stats(t).blocks, 0);
	for (unsigned i = 0; i < N; i++) {
		tiers_must_save(t, t->space, 1, i);
		assert_int_equal(flush(t, i), 0);
		assert_true(is_right(t, i));
	}
}

static void a_changed_block_is_not_handed_on(void **state)
{
	struct tiers *t = *state;
	struct mapped m = map_as_owner(t, 3);

	m.base[m.offset] ^= 1;
	unmap(t, &m);
	assert_int_equal(kv_space_chown(t->cache, t->space, HEIR, HEIR, 0700),
			 0);
	assert_int_equal(tiers_of(t, t->space, 1, 3), 0);
	for (unsigned i = 0; i < N; i++)
		assert_true(i == 3 || is_right(t, i));
	assert_int_equal(tiers_stats(t).corrupt, 1);
}

/* Flush the space; return the status.  @each: a block that a client has changed
 * does not fail the flush. */
static int flush_space(struct tiers *t, bool each)
{
	struct kv_waiter waiter = KV_WAITER_INIT;
	struct kv_flush f = {
		.done = kv_flush_wake, .arg = &waiter, .each = each};

	kv_flush_submit(t->cache, t->space, &f);
	kv_waiter_wait(&waiter);
	return f.status;
}

static bool was_changed(struct tiers *t, unsigned position)
{
	struct kv_key key = tiers_key(1, position);

	return kv_block_past(t->cache, t->space, &key) == -EBADMSG;
}

static void a_changed_block_ends_no_flush_of_others(void **state)
{
	struct tiers *t = *state;

	for (unsigned each = 0; each < 2; each++) {
		struct mapped m = map_as_owner(t, 3);

		m.base[m.offset] ^= 1;
		unmap(t, &m);
		assert_int_equal(flush_space(t, each), each ? 0 : -EBADMSG);
		assert_int_equal(flush_space(t, each), 0);
		for (unsigned i = 0; i < N; i++) {
			assert_int_equal(was_changed(t, i), i == 3);
			assert_int_equal(tiers_of(t, t->space, 1, i) &
						 KV_TIER_SSD,
					 i == 3 ? 0 : KV_TIER_SSD);
		}
		/* After the block was saved again it no longer counts as
		 * changed. */
		tiers_must_save(t, t->space, 1, 3);
		assert_false(was_changed(t, 3));
	}
	assert_int_equal(flush(t, 3), 0);
}

/* Check the blocks that a client of @uid can lease and map now. */
static void assert_acquired(struct tiers *t, uint32_t uid, unsigned gone)
{
	struct kv_acquire *acquire = tiers_acquire(t, t->space, 1, N);
	struct kv_want *want;
	struct kv_given_segment given;
	uint8_t *at;

	for (unsigned i = 0; i < N; i++) {
		want = &acquire->wants[i];
		assert_int_equal(want->status, i == gone ? -ENOENT : 0);
		if (i == gone)
			continue;
		assert_int_equal(
			kv_segment_give(t->cache, want->segment, uid, &given),
			0);
		at = mmap(NULL, given.bytes, PROT_READ, MAP_SHARED, given.fd,
			  0);
		assert_ptr_not_equal(at, MAP_FAILED);
		for (unsigned b = 0; b < BYTES; b++)
			assert_int_equal(at[want->offset + b], 1 + i);
		munmap(at, given.bytes);
		kv_segment_returned(t->cache, want->segment, uid);
	}
	kv_lock(t->cache);
	kv_arena_check_locked(t->cache);
	kv_unlock(t->cache);
	tiers_release(t, acquire);
}

/* Half of the blocks are in memory and on SSD, the others in memory only. */
static void who_holds_blocks_keeps_them_from_nobody(struct tiers *t,
						    uint32_t uid, uint32_t mode)
{
	struct mapped m = map_as_owner(t, 0);

	assert_int_equal(kv_space_chown(t->cache, t->space, uid, uid, mode), 0);
	/* The former owner writes to memory that it still has mapped. */
	memset(m.base, 0xff, m.segment.bytes);
	assert_acquired(t, uid, N);
	for (unsigned i = 0; i < N; i++)
		assert_true(is_right(t, i));
	assert_int_equal(tiers_stats(t).leases, N);
	assert_int_equal(kv_space_chown(t->cache, t->space, OWNER, OWNER, 0755),
			 0);
	assert_acquired(t, OWNER, N);
	unmap(t, &m);
	assert_int_equal(tiers_stats(t).leases, 0);
	assert_acquired(t, OWNER, N);
	assert_int_equal(tiers_stats(t).corrupt, 0);
	assert_int_equal(flush_space(t, false), 0);
	tiers_reopen(t);
	for (unsigned i = 0; i < N; i++)
		assert_true(is_right(t, i));
}

static void a_leased_block_of_another_owner_can_be_acquired(void **state)
{
	struct tiers *t = *state;

	for (unsigned i = 0; i < N; i += 2)
		assert_int_equal(flush(t, i), 0);
	who_holds_blocks_keeps_them_from_nobody(t, HEIR, 0700);
}

static void so_can_one_of_another_mode(void **state)
{
	struct tiers *t = *state;

	for (unsigned i = 1; i < N; i += 2)
		assert_int_equal(flush(t, i), 0);
	who_holds_blocks_keeps_them_from_nobody(t, OWNER, 0700);
}

static void a_leased_block_that_was_changed_is_not_handed_on(void **state)
{
	struct tiers *t = *state;
	struct mapped m = map_as_owner(t, 3);

	m.base[m.offset] ^= 1;
	assert_int_equal(kv_space_chown(t->cache, t->space, HEIR, HEIR, 0700),
			 0);
	assert_acquired(t, HEIR, 3);
	assert_int_equal(tiers_stats(t).corrupt, 1);
	unmap(t, &m);
	assert_acquired(t, HEIR, 3);
}

/* Remove, evict and save a block again while the former owner of its space has
 * it mapped. */
static void what_was_left_to_a_holder_outlives_its_block(void **state)
{
	struct tiers *t = *state;
	struct mapped m = map_as_owner(t, 3);
	struct kv_block *block;
	uint64_t used;

	assert_int_equal(flush_space(t, false), 0);
	assert_int_equal(kv_space_chown(t->cache, t->space, HEIR, HEIR, 0700),
			 0);
	for (unsigned i = 0; i < N; i++) {
		block = tiers_get(t, t->space, 1, i);
		assert_non_null(block);
		assert_int_equal(kv_block_unlink(t->cache, block), 0);
		kv_block_put(t->cache, block);
	}
	assert_int_equal(m.base[m.offset], 4);
	for (unsigned i = 0; i < N; i++)
		tiers_must_save(t, t->space, 1, i);
	assert_acquired(t, HEIR, N);
	used = tiers_stats(t).dram_used;
	unmap(t, &m);
	assert_true(tiers_stats(t).dram_used < used);
	assert_acquired(t, HEIR, N);
}

/* A block is not moved to another slot while it is being read. */
static void a_block_that_is_being_read_is_moved_later(void **state)
{
	struct tiers *t = *state;
	struct mapped m = map_as_owner(t, 3);
	struct kv_block *block = tiers_get(t, t->space, 1, 3);
	struct kv_view view;

	assert_int_equal(flush(t, 3), 0);
	assert_int_equal(kv_view_get(t->cache, block, KV_VIEW_WAIT, &view), 0);
	assert_int_equal(kv_space_chown(t->cache, t->space, HEIR, HEIR, 0700),
			 0);
	kv_view_put(t->cache, &view);
	m.base[m.offset] ^= 1;
	assert_true(is_right(t, 3));
	assert_acquired(t, HEIR, N);
	unmap(t, &m);
	kv_block_put(t->cache, block);
}

/* A flush succeeds only if the blocks are durable, even if the space's owner
 * changes during the flush. */
static void a_change_of_the_owner_makes_no_flush_lie(void **state)
{
	struct tiers *t = *state;

	for (unsigned round = 0; round < 20; round++) {
		struct kv_waiter waiter = KV_WAITER_INIT;
		struct kv_flush f = {.done = kv_flush_wake, .arg = &waiter};
		uint32_t uid = round % 2 ? OWNER : HEIR;

		for (unsigned i = 0; i < N; i++)
			tiers_must_save(t, t->space, 2 + round, i);
		kv_flush_submit(t->cache, t->space, &f);
		assert_int_equal(
			kv_space_chown(t->cache, t->space, uid, uid, 0700), 0);
		kv_waiter_wait(&waiter);
		assert_int_equal(f.status, 0);
		for (unsigned i = 0; i < N; i++)
			assert_true(tiers_of(t, t->space, 2 + round, i) &
				    KV_TIER_SSD);
	}
}

static void what_came_from_ssd_is_told_from_what_was_changed(void **state)
{
	struct tiers *t = *state;
	struct kv_meta meta;
	struct kv_digest digest;
	struct kv_block *block;
	struct mapped m;

	for (unsigned i = 0; i < N; i++)
		assert_int_equal(flush(t, i), 0);
	tiers_demote(t, t->space, 1, N);
	m = map_as_owner(t, 3); /* the block is read from SSD again */
	assert_true(is_right(t, 3));
	memset(m.base, 0xff, m.segment.bytes);
	block = tiers_get(t, t->space, 1, 3);
	assert_int_equal(kv_block_meta(t->cache, block, &meta, &digest), 0);
	assert_int_equal(meta.position, 3);
	kv_block_put(t->cache, block);
	unmap(t, &m);
	tiers_demote(t, t->space, 1, N);
	for (unsigned i = 0; i < N; i++)
		assert_true(is_right(t, i));
	assert_int_equal(tiers_stats(t).corrupt, 0);
}

/* The client changes the bytes again before each check, so that no check
 * succeeds; the block's slot on SSD must not be counted as bad. */
static void what_is_changed_while_it_is_read_costs_no_room_on_ssd(void **state)
{
	struct tiers *t = *state;
	struct kv_cache_stats before;
	struct mapped m;
	int status;

	for (unsigned i = 0; i < N; i++)
		assert_int_equal(flush(t, i), 0);
	before = tiers_stats(t);
	for (unsigned round = 0; round < 20; round++) {
		_Atomic bool stop = false;
		struct kv_acquire *again;
		struct kv_waiter waiter = KV_WAITER_INIT;

		m = map_as_owner(t, 3);
		tiers_release(t, m.acquire);
		tiers_demote(t, t->space, 1, N);
		again = tiers_acquire_new(t->space, 1, N, &waiter);
		if (kv_acquire_submit(t->cache, again))
			while (!stop) {
				memset(m.base, (int)round, m.segment.bytes);
				pthread_mutex_lock(&waiter.lock);
				stop = waiter.done;
				pthread_mutex_unlock(&waiter.lock);
			}
		for (unsigned i = 0; i < N; i++) {
			status = again->wants[i].status;
			assert_int_equal(status, 0);
		}
		tiers_release(t, again);
		munmap(m.base, m.segment.bytes);
	}
	tiers_demote(t, t->space, 1, N);
	for (unsigned i = 0; i < N; i++)
		assert_true(is_right(t, i));
	assert_int_equal(tiers_stats(t).corrupt, 0);
	assert_int_equal(tiers_stats(t).ssd_used, before.ssd_used);
}

#undef TEST
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tiers_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_changed_block_is_not_written),
		TEST(what_is_said_of_a_block_is_kept_elsewhere),
		TEST(pages_that_are_taken_away_are_missed_by_nobody_else),
		TEST(a_changed_block_is_not_handed_on),
		TEST(a_changed_block_ends_no_flush_of_others),
		TEST(a_leased_block_of_another_owner_can_be_acquired),
		TEST(so_can_one_of_another_mode),
		TEST(a_leased_block_that_was_changed_is_not_handed_on),
		TEST(what_was_left_to_a_holder_outlives_its_block),
		TEST(a_block_that_is_being_read_is_moved_later),
		TEST(a_change_of_the_owner_makes_no_flush_lie),
		TEST(what_came_from_ssd_is_told_from_what_was_changed),
		TEST(what_is_changed_while_it_is_read_costs_no_room_on_ssd),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
