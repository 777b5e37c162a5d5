/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_room.c - acquires and saves that wait for room in DRAM: for how long, and
 * for which writes.
 *
 * OWNS      a cache with both tiers for each test.
 *
 * LOCKING   none.
 */
#include "tests/cache/tiers.h"
#include "tests/cache/alone.h"

#define STORED 40u /* number of blocks of chain 0, which are only on SSD */

/* Stall the writer: pretend that @by more writes to SSD are under way, so that
 * it begins no write.  A negative @by ends the stall. */
static void stall(struct tiers *t, int by)
{
	kv_lock(t->cache);
	t->cache->ssd.writing = (uint32_t)((int)t->cache->ssd.writing + by);
	pthread_cond_signal(&t->cache->ssd.write);
	kv_unlock(t->cache);
}

static void store(struct tiers *t)
{
	for (unsigned i = 0; i < STORED; i++)
		assert_int_equal(tiers_save(t, t->space, 0, i), 0);
	tiers_quiet(t);
	tiers_demote(t, t->space, 0, STORED);
}

/* Fill DRAM with blocks of root that are not on SSD yet; root's share is all of
 * DRAM. */
static void fill_with_dirty(struct tiers *t)
{
	struct kv_space *space =
		tiers_space(t, "an operator's", 0, PREFIX_LAYOUT);

	for (unsigned chain = 1; tiers_save(t, space, chain, 0) == 0; chain++)
		continue;
}

static unsigned leased(const struct kv_acquire *acquire)
{
	unsigned n = 0;

	for (size_t i = 0; i < acquire->n; i++)
		n += acquire->wants[i].status == 0;
	return n;
}

static void blocks_wait_until_what_fills_dram_is_written(void **state)
{
	struct tiers *t = *state;
	struct kv_waiter waiter = KV_WAITER_INIT;
	struct kv_acquire *acquire =
		tiers_acquire_new(t->space, 0, STORED, &waiter);

	store(t);
	stall(t, 1000);
	fill_with_dirty(t);
	acquire->wait_room = true;
	assert_true(kv_acquire_submit(t->cache, acquire) > 0);
	usleep(100000);
	assert_false(waiter.done);
	stall(t, -1000);
	kv_waiter_wait(&waiter);
	assert_int_equal(leased(acquire), STORED);
	tiers_release(t, acquire);
}

static void those_that_do_not_wait_are_told_at_once(void **state)
{
	struct tiers *t = *state;
	struct kv_acquire *acquire;

	store(t);
	stall(t, 1000);
	fill_with_dirty(t);
	acquire = tiers_acquire(t, t->space, 0, STORED);
	assert_int_equal(leased(acquire), 0);
	assert_int_equal(acquire->wants[0].status, -ENOSPC);
	tiers_release(t, acquire);
	stall(t, -1000);
}

/* Leases of blocks that are not on SSD yet leave room for saves.  A leased
 * block that also waits to be written counts once. */
static void leases_of_what_waits_leave_a_part_to_save_by(void **state)
{
	struct tiers *t = *state;
	struct kv_acquire *leases[700];
	unsigned n = 0;
	int status;

	stall(t, 1000);
	do {
		assert_int_equal(tiers_save(t, t->space, n, 0), 0);
		leases[n] = tiers_acquire(t, t->space, n, 1);
		status = leases[n]->wants[0].status;
	} while (++n < KV_ARRAY_LEN(leases) && status == 0);
	assert_int_equal(status, -ENOSPC);
	assert_true(n > 200);
	stall(t, -1000);
	tiers_quiet(t);
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(tiers_save(t, t->space, 1000 + i, 0), 0);
	while (n > 0)
		tiers_release(t, leases[--n]);
}

static void who_waits_for_room_can_be_called_off(void **state)
{
	struct tiers *t = *state;
	struct kv_waiter waiter = KV_WAITER_INIT;
	struct kv_acquire *acquire =
		tiers_acquire_new(t->space, 0, STORED, &waiter);

	store(t);
	stall(t, 1000);
	fill_with_dirty(t);
	acquire->wait_room = true;
	assert_true(kv_acquire_submit(t->cache, acquire) > 0);
	kv_acquire_cancel(t->cache, acquire, -ETIMEDOUT);
	kv_waiter_wait(&waiter);
	assert_int_equal(acquire->wants[STORED - 1].status, -ETIMEDOUT);
	tiers_release(t, acquire);
	stall(t, -1000);
	tiers_quiet(t);
	assert_int_equal(tiers_use(t, t->space, 0, STORED), STORED);
}

static void what_is_cleared_while_it_is_waited_for_is_a_miss(void **state)
{
	struct tiers *t = *state;
	struct kv_waiter waiter = KV_WAITER_INIT;
	struct kv_acquire *acquire =
		tiers_acquire_new(t->space, 0, STORED, &waiter);

	store(t);
	stall(t, 1000);
	fill_with_dirty(t);
	acquire->wait_room = true;
	assert_true(kv_acquire_submit(t->cache, acquire) > 0);
	assert_int_equal(kv_space_clear(t->cache, t->space), 0);
	stall(t, -1000);
	kv_waiter_wait(&waiter);
	assert_int_equal(acquire->wants[0].status, -ENOENT);
	assert_int_equal(leased(acquire), 0);
	tiers_release(t, acquire);
}

/* ---- calls that find only leased memory fail at once ---- */

struct saver {
	struct tiers *t;
	struct kv_space *space;
	_Atomic bool stop;
	pthread_t thread;
};

static void *save_on(void *arg)
{
	struct saver *saver = arg;

	for (unsigned chain = 1000; !saver->stop; chain++)
		tiers_save(saver->t, saver->space, chain, 0);
	return NULL;
}

/* Two clients lease half of DRAM each, and each requests more blocks, for which
 * only the half of the other has room. */
static void two_who_hold_half_each_do_not_wait_for_each_other(void **state)
{
	struct tiers *t = *state;
	struct saver saver = {.t = t,
			      .space = tiers_space(t, "0", 0, PREFIX_LAYOUT)};
	struct kv_waiter waiters[2] = {KV_WAITER_INIT, KV_WAITER_INIT};
	struct kv_acquire *half[2], *more[2];
	const unsigned n = (24u << 20) / BYTES;

	for (unsigned c = 0; c < 4; c++)
		for (unsigned i = 0; i < n; i++)
			tiers_must_save(t, saver.space, c, i);
	tiers_quiet(t);
	half[0] = tiers_acquire(t, saver.space, 0, n);
	half[1] = tiers_acquire(t, saver.space, 1, n);
	assert_int_equal(leased(half[0]) + leased(half[1]), 2 * n);
	/* Writes under way free no leased slot, so the clients need not wait
	 * for the writes. */
	assert_int_equal(pthread_create(&saver.thread, NULL, save_on, &saver),
			 0);
	for (unsigned c = 0; c < 2; c++) {
		more[c] = tiers_acquire_new(saver.space, 2 + c, n, &waiters[c]);
		more[c]->wait_room = true;
		if (!kv_acquire_submit(t->cache, more[c]))
			waiters[c].done = true;
	}
	/* The slots that a client releases are given to the other client. */
	for (unsigned c = 0; c < 2; c++)
		kv_waiter_wait(&waiters[c]);
	for (unsigned c = 0; c < 2; c++) {
		assert_true(leased(more[c]) < n);
		assert_int_equal(more[c]->wants[n - 1].status, -ENOSPC);
		tiers_release(t, more[c]);
		tiers_release(t, half[c]);
	}
	saver.stop = true;
	pthread_join(saver.thread, NULL);
}

/* ---- an arena that still grows in the background ---- */

/* A save that needs memory while the arena grows gets -EBUSY. */
static void nobody_is_refused_while_the_arena_grows(void **state)
{
	struct tiers *t = *state;
	unsigned n = 0;

	kv_cache_close(t->cache);
	t->config.dram = 256 << 20;
	t->config.hugepages = KV_HUGE_OFF;
	tiers_open(t);
	while (n < 1500) {
		struct kv_key key = tiers_key(7, n);
		struct kv_fill *fill;
		int r = kv_fill_begin(t->cache, t->space, n % 2 ? &key : NULL,
				      BYTES, &fill);

		if (r == -EBUSY)
			continue;
		assert_int_equal(r, 0);
		kv_fill_drop(t->cache, fill);
		n++;
	}
	for (n = 0; n < 1500; n++) {
		struct kv_key key = tiers_key(8, n);
		struct kv_fill *fill;
		int r = begin_alone(t->cache, t->space, BYTES, &fill);

		assert_int_equal(r, 0);
		memset(kv_fill_data(fill), 1, BYTES);
		assert_int_equal(kv_fill_seal(t->cache, fill, &key,
					      &(struct kv_meta){.mtime_ns = 1},
					      8, &(struct kv_digest){{0}}),
				 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(blocks_wait_until_what_fills_dram_is_written),
		TEST(those_that_do_not_wait_are_told_at_once),
		TEST(leases_of_what_waits_leave_a_part_to_save_by),
		TEST(who_waits_for_room_can_be_called_off),
		TEST(what_is_cleared_while_it_is_waited_for_is_a_miss),
		TEST(two_who_hold_half_each_do_not_wait_for_each_other),
		TEST(nobody_is_refused_while_the_arena_grows),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
