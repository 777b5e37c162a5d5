/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_control_hold.c - reservations, and blocks that are leased when they are sealed
 * (WIRE_HOLD), on the control socket.
 *
 * OWNS      a daemon for each test, with two clients.
 *
 * LOCKING   none.
 */
#include "tests/fs/daemon.h"
#include "tests/fs/peer.h"

static struct daemon d;
static struct peer p, other;

static int set_up(void **state)
{
	(void)state;
	daemon_start(&d, 0);
	daemon_peer(&d, &p, 0700);
	daemon_peer(&d, &other, 0);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	peer_close(&p);
	peer_close(&other);
	daemon_stop(&d);
	return 0;
}

static void is_right(uint32_t key)
{
	assert_int_equal(peer_acquire(&other, key, 1), 1);
	assert_true(peer_right(&other, 0, key));
	assert_true(peer_release(&other, other.tag));
}

static int reserve(uint32_t first, uint32_t n, uint16_t flags)
{
	return peer_each(
		&p, &(struct wire_header){.type = WIRE_RESERVE, .flags = flags},
		first, n);
}

static void reservations_are_gone_with_their_connection(void **state)
{
	uint64_t used;

	(void)state;
	assert_int_equal(peer_save(&other, 100, 1), 0);
	used = daemon_stats(&d).dram_used;
	assert_int_equal(reserve(1, 8, 0), 0);
	assert_int_equal(daemon_stats(&d).saving, 8);
	assert_true(daemon_stats(&d).dram_used > used);
	peer_close(&p);
	assert_true(daemon_wait_idle(&d) >= 0);
	assert_int_equal(daemon_stats(&d).dram_used, used);
	assert_int_equal(daemon_counts(&d).dropped_reservations, 8);
	assert_int_equal(peer_probe(&other, 1), WIRE_ABSENT);
	daemon_peer(&d, &p, 0);
	assert_int_equal(peer_save(&p, 1, 1), 0);
}

static void a_clear_is_before_the_whole_block_or_after_it(void **state)
{
	const struct wire_header clear = {.type = WIRE_CLEAR};

	(void)state;
	assert_int_equal(reserve(1, 1, 0), 0);
	assert_int_equal(peer_call(&other, &clear, NULL, 0, -1), 0);
	/* A held reservation does not block other saves, and is never
	 * sealed. */
	assert_int_equal(peer_probe(&other, 1), WIRE_ABSENT);
	assert_int_equal(peer_save(&other, 1, 1), 0);
	assert_int_equal(peer_saved(&p, peer_send_saves(&p, 1, 1)), -ESTALE);
	is_right(1);
	assert_int_equal(peer_do(&other, WIRE_EVICT, 1, 1), 0);
	assert_int_equal(daemon_stats(&d).saving, 0);
}

static void an_acquire_that_waits_for_a_cleared_save_is_answered(void **state)
{
	const struct wire_header clear = {.type = WIRE_CLEAR};
	uint64_t tag;

	(void)state;
	assert_int_equal(reserve(1, 1, 0), 0);
	tag = peer_send_acquire(&other, 1, 1, WIRE_WAIT_SAVING, 0);
	assert_int_equal(peer_call(&p, &clear, NULL, 0, -1), 0);
	assert_int_equal(peer_acquired(&other, tag), 0);
	assert_int_equal(PEER_ITEMS(&other, struct wire_place)->status,
			 -ENOENT);
}

static void tokens_beyond_the_layouts_are_refused(void **state)
{
	static const char json[] = "{\"tensors\":[{\"name\":\"k\",\"dtype\":"
				   "\"U8\",\"shape\":[65536]}],\"tokens\":4}";
	struct wire_save save = {.len = 32, .tokens = 5};
	struct wire_key key;

	(void)state;
	assert_int_equal(peer_space(&p, "four", json, WIRE_SPACE_CREATE, 0700),
			 0);
	assert_int_equal(peer_do(&p, WIRE_RESERVE, 1, 1), 0);
	peer_keys(&key, 1, 1);
	memcpy(save.key, key.key, 32);
	assert_int_equal(
		peer_saved(&p, peer_send(&p,
					 &(struct wire_header){
						 .type = WIRE_SAVE, .count = 1},
					 &save, sizeof(save), -1)),
		-EINVAL);
}

/* One client cannot hold all of the arena by WIRE_HOLD. */
static void held_blocks_leave_others_room(void **state)
{
	uint32_t key = 1;

	(void)state;
	while (reserve(key, 1, WIRE_HOLD) == 0)
		key++;
	assert_int_equal(reserve(key, 1, WIRE_HOLD), -ENOSPC);
	assert_int_equal(peer_save(&other, 10000, 4), 0);
	assert_int_equal(peer_do(&p, WIRE_DROP, 1, 1), 0);
	assert_int_equal(reserve(key, 1, WIRE_HOLD), 0);
}

static void what_is_held_is_leased_until_its_release(void **state)
{
	uint64_t tag;

	(void)state;
	assert_int_equal(reserve(1, 4, WIRE_HOLD), 0);
	tag = peer_send_saves(&p, 1, 4);
	assert_int_equal(peer_saved(&p, tag), 0);
	assert_int_equal(daemon_stats(&d).leases, 4);
	/* A save without WIRE_HOLD holds no blocks, so there is nothing to
	 * release. */
	assert_int_equal(peer_save(&p, 10, 1), 0);
	assert_int_equal(daemon_stats(&d).leases, 4);
	assert_true(peer_release(&p, tag));
	assert_int_equal(peer_probe(&p, 1), WIRE_DRAM);
	assert_int_equal(daemon_stats(&d).leases, 0);
	assert_int_equal(daemon_counts(&d).forced_releases, 0);
	assert_int_equal(daemon_counts(&d).stray_releases, 0);
	assert_true(peer_release(&p, tag));
	assert_int_equal(peer_probe(&p, 1), WIRE_DRAM);
	assert_int_equal(daemon_counts(&d).stray_releases, 1);
}

static void what_is_held_outlives_a_flood(void **state)
{
	(void)state;
	assert_int_equal(reserve(1, 4, WIRE_HOLD), 0);
	assert_int_equal(peer_saved(&p, peer_send_saves(&p, 1, 4)), 0);
	assert_int_equal(peer_save(&p, 11, 4), 0);
	for (uint32_t key = 1000; key < 1000 + 16 * 50; key += 16)
		assert_int_equal(peer_save(&other, key, 16), 0);
	assert_true(daemon_stats(&d).evicted_dram > 0);
	for (uint32_t key = 1; key <= 4; key++)
		assert_int_equal(peer_probe(&p, key), WIRE_DRAM);
	assert_int_equal(peer_probe(&p, 11), WIRE_ABSENT);
	is_right(1);
}

static void what_is_held_is_let_go_with_the_connection(void **state)
{
	(void)state;
	assert_int_equal(reserve(1, 4, WIRE_HOLD), 0);
	assert_int_equal(peer_saved(&p, peer_send_saves(&p, 1, 4)), 0);
	assert_int_equal(reserve(5, 4, WIRE_HOLD), 0);
	assert_true(peer_send_saves(&p, 5, 4));
	peer_close(&p);
	assert_true(daemon_wait_idle(&d) >= 0);
	assert_true(daemon_counts(&d).forced_releases >= 4);
	assert_true(peer_connect(&p, d.path));
}

/* Held blocks count as leases of the client. */
static void what_is_held_counts_as_leased(void **state)
{
	struct wire_key keys[WIRE_BATCH];

	(void)state;
	peer_keys(keys, 1, 1);
	assert_int_equal(peer_save(&p, 1, 1), 0);
	for (uint32_t i = 1; i < WIRE_BATCH; i++)
		keys[i] = keys[0];
	for (uint32_t i = 0; i < WIRE_LEASED_MAX / WIRE_BATCH; i++)
		assert_int_equal(
			peer_acquired(&p,
				      peer_send(&p,
						&(struct wire_header){
							.type = WIRE_ACQUIRE,
							.count = WIRE_BATCH},
						keys, sizeof(keys), -1)),
			WIRE_BATCH);
	assert_int_equal(reserve(2, 1, WIRE_HOLD), 0);
	assert_int_equal(peer_saved(&p, peer_send_saves(&p, 2, 1)), -ENOLCK);
	assert_int_equal(daemon_stats(&d).saving, 0);
	assert_int_equal(peer_save(&p, 2, 1), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(reservations_are_gone_with_their_connection),
		TEST(a_clear_is_before_the_whole_block_or_after_it),
		TEST(an_acquire_that_waits_for_a_cleared_save_is_answered),
		TEST(tokens_beyond_the_layouts_are_refused),
		TEST(held_blocks_leave_others_room),
		TEST(what_is_held_is_leased_until_its_release),
		TEST(what_is_held_outlives_a_flood),
		TEST(what_is_held_is_let_go_with_the_connection),
		TEST(what_is_held_counts_as_leased),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
