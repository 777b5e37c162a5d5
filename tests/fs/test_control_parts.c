/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_control_parts.c - blocks that come in parts, and those that are held
 * when they seal, as the control socket has them.
 *
 * OWNS      a daemon for each test, and in it two clients.
 *
 * LOCKING   none.
 */
#include "tests/fs/daemon.h"
#include "tests/fs/parts.h"
#include "tests/cache/alone.h"

static struct daemon d;
static struct peer p, other;

enum { HALF = DAEMON_PAYLOAD / 2, QUARTER = DAEMON_PAYLOAD / 4 };

static int start(uint64_t ssd)
{
	daemon_start(&d, ssd);
	daemon_peer(&d, &p, 0700);
	daemon_peer(&d, &other, 0);
	return 0;
}

static int set_up(void **state)
{
	(void)state;
	return start(0);
}

static int set_up_ssd(void **state)
{
	(void)state;
	return start(64 << 20);
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

static void a_block_seals_when_every_byte_has_come(void **state)
{
	(void)state;
	assert_int_equal(parts_reserve(&p, 1, 1, 0), 0);
	assert_int_equal(parts_save(&p, 1, HALF, HALF), WIRE_TAKEN);
	assert_int_equal(parts_save(&p, 1, 0, QUARTER), WIRE_TAKEN);
	assert_int_equal(parts_save(&p, 1, QUARTER, QUARTER - 1), WIRE_TAKEN);
	assert_int_equal(peer_probe(&other, 1), WIRE_SAVING);
	assert_int_equal(peer_acquire(&other, 1, 1), 0);
	/* One byte is missing. */
	assert_int_equal(parts_save(&p, 1, HALF - 1, 1), 0);
	assert_int_equal(peer_probe(&other, 1), WIRE_DRAM);
	is_right(1);
	assert_int_equal(daemon_counts(&d).saved, 1);
}

static void bytes_come_once(void **state)
{
	(void)state;
	assert_int_equal(parts_reserve(&p, 1, 1, 0), 0);
	assert_int_equal(parts_save(&p, 1, 0, HALF), WIRE_TAKEN);
	memset(p.staging, 0xff, DAEMON_PAYLOAD);
	assert_int_equal(parts_send(&p, parts_item(1, 0, HALF)), -EEXIST);
	assert_int_equal(parts_send(&p, parts_item(1, 5, 1)), -EEXIST);
	assert_int_equal(parts_send(&p, parts_item(1, HALF - 1, 2)), -EINVAL);
	assert_int_equal(parts_send(&p, parts_item(1, 0, DAEMON_PAYLOAD)),
			 -EINVAL);
	assert_int_equal(parts_save(&p, 1, HALF, HALF), 0);
	is_right(1);
	/* The block is no reservation any more. */
	assert_int_equal(parts_save(&p, 1, HALF, HALF), -ENOENT);
	assert_int_equal(parts_reserve(&p, 1, 1, 0), -EEXIST);
}

static void what_a_part_says_must_be_so(void **state)
{
	struct wire_part part;

	(void)state;
	assert_int_equal(parts_reserve(&p, 1, 1, 0), 0);
	assert_int_equal(parts_send(&p, parts_item(1, 0, 0)), -EINVAL);
	assert_int_equal(parts_send(&p, parts_item(1, DAEMON_PAYLOAD, 1)),
			 -EINVAL);
	assert_int_equal(parts_send(&p, parts_item(1, DAEMON_PAYLOAD + 1, 1)),
			 -EINVAL);
	assert_int_equal(parts_send(&p, parts_item(1, 1, DAEMON_PAYLOAD)),
			 -EINVAL);
	part = parts_item(1, 0, 1);
	part.at = UINT64_MAX;
	assert_int_equal(parts_send(&p, part), -EINVAL);
	part.at = 2;
	part.bytes = UINT64_MAX;
	assert_int_equal(parts_send(&p, part), -EINVAL);
	part.bytes = UINT64_MAX - 1;
	part.block.offset = 0;
	assert_int_equal(parts_send(&p, part), -EINVAL);
	part = parts_item(1, 0, HALF);
	part.block.offset = 16 * DAEMON_PAYLOAD - HALF + 1;
	assert_int_equal(parts_send(&p, part), -EINVAL);
	part.block.offset = UINT64_MAX;
	assert_int_equal(parts_send(&p, part), -EINVAL);
	part = parts_item(1, 0, HALF);
	part.block.parent_len = 16;
	assert_int_equal(parts_send(&p, part), -EINVAL);
	part = parts_item(1, 0, HALF);
	part.block.len = 31;
	assert_int_equal(parts_send(&p, part), -ENOENT);
	assert_int_equal(parts_save(&p, 2, 0, HALF), -ENOENT);
	/* After all that, nothing of it has come. */
	assert_int_equal(parts_save(&p, 1, 0, DAEMON_PAYLOAD), 0);
	is_right(1);
}

static void parts_that_tell_different_stories_are_refused(void **state)
{
	struct wire_part part = parts_item(1, HALF, HALF);

	(void)state;
	assert_int_equal(parts_reserve(&p, 1, 1, 0), 0);
	assert_int_equal(parts_save(&p, 1, 0, HALF), WIRE_TAKEN);
	part.block.position = 1;
	assert_int_equal(parts_send(&p, part), -EINVAL);
	part.block.position = 0;
	part.block.tokens = 1;
	assert_int_equal(parts_send(&p, part), -EINVAL);
	part.block.tokens = 0;
	part.block.parent_len = 32;
	assert_int_equal(parts_send(&p, part), -EINVAL);
	assert_int_equal(parts_save(&p, 1, HALF, HALF), 0);
	is_right(1);
}

static void whole_and_in_parts_are_two_things(void **state)
{
	(void)state;
	assert_int_equal(parts_reserve(&p, 1, 1, 0), 0);
	assert_int_equal(parts_reserve(&p, 1, 1, 0), 0);
	assert_int_equal(peer_do(&p, WIRE_RESERVE, 1, 1), -EALREADY);
	assert_int_equal(parts_reserve(&other, 1, 1, 0), -EALREADY);
	assert_int_equal(peer_saved(&p, peer_send_saves(&p, 1, 1)), -ENOENT);
	assert_int_equal(peer_do(&p, WIRE_RESERVE, 2, 1), 0);
	assert_int_equal(parts_reserve(&p, 2, 1, 0), -EALREADY);
	assert_int_equal(parts_save(&p, 2, 0, HALF), -ENOENT);
	assert_int_equal(peer_saved(&p, peer_send_saves(&p, 2, 1)), 0);
	assert_int_equal(parts_save(&other, 1, 0, HALF), -ENOENT);
	assert_int_equal(peer_do(&p, WIRE_DROP, 1, 1), 0);
	assert_int_equal(peer_do(&p, WIRE_DROP, 1, 1), -ENOENT);
	assert_int_equal(peer_probe(&p, 1), WIRE_ABSENT);
	assert_int_equal(daemon_stats(&d).saving, 0);
}

static void a_message_has_many_parts_of_many_blocks(void **state)
{
	struct wire_part parts[16 * 8];
	uint32_t n = 0, sealed = 0;
	uint64_t tag;

	(void)state;
	assert_int_equal(parts_reserve(&p, 1, 16, 0), 0);
	for (uint32_t eighth = 8; eighth-- > 0;)
		for (uint32_t key = 1; key <= 16; key++) {
			struct wire_part *part = &parts[n++];

			*part = parts_item(key, eighth * (DAEMON_PAYLOAD / 8),
					   DAEMON_PAYLOAD / 8);
			part->block.offset += (key - 1) * DAEMON_PAYLOAD;
			memset(p.staging + part->block.offset, peer_fill(key),
			       part->bytes);
		}
	tag = parts_post(&p, parts, n);
	assert_true(peer_reply(&p, tag, PEER_WAIT_MS) > 0);
	assert_int_equal(PEER_HEADER(&p)->count, n);
	for (uint32_t i = 0; i < n; i++) {
		int status = PEER_ITEMS(&p, struct wire_status)[i].status;

		assert_in_range(status, 0, WIRE_TAKEN);
		sealed += status == 0;
	}
	assert_int_equal(sealed, 16);
	for (uint32_t key = 1; key <= 16; key++)
		is_right(key);
}

static void parts_are_gone_with_their_connection(void **state)
{
	uint64_t used;

	(void)state;
	assert_int_equal(peer_save(&other, 100, 1), 0);
	used = daemon_stats(&d).dram_used;
	assert_int_equal(parts_reserve(&p, 1, 8, 0), 0);
	for (uint32_t key = 1; key <= 8; key++)
		assert_int_equal(parts_save(&p, key, 0, HALF), WIRE_TAKEN);
	assert_int_equal(daemon_stats(&d).saving, 8);
	assert_true(daemon_stats(&d).dram_used > used);
	peer_close(&p);
	assert_true(daemon_wait_idle(&d) >= 0);
	assert_int_equal(daemon_stats(&d).dram_used, used);
	assert_int_equal(daemon_counts(&d).dropped_reservations, 8);
	assert_int_equal(peer_probe(&other, 1), WIRE_ABSENT);
	daemon_peer(&d, &p, 0);
	assert_int_equal(parts_reserve(&p, 1, 1, 0), 0);
	assert_int_equal(parts_save(&p, 1, HALF, HALF), WIRE_TAKEN);
}

/* One client cannot take all of the arena for blocks that it never ends. */
static void parts_and_what_is_held_leave_others_room(void **state)
{
	uint32_t key = 1;

	(void)state;
	while (parts_reserve(&p, key, 1, 0) == 0)
		key++;
	assert_int_equal(parts_reserve(&p, key, 1, 0), -ENOSPC);
	assert_int_equal(parts_reserve(&p, key, 1, WIRE_HOLD), -ENOSPC);
	assert_int_equal(peer_save(&other, 10000, 4), 0);
	assert_int_equal(peer_do(&p, WIRE_DROP, 1, 1), 0);
	assert_int_equal(parts_reserve(&p, key, 1, 0), 0);
}

static void a_clear_is_before_the_whole_block_or_after_it(void **state)
{
	const struct wire_header clear = {.type = WIRE_CLEAR};

	(void)state;
	assert_int_equal(parts_reserve(&p, 1, 1, 0), 0);
	assert_int_equal(parts_save(&p, 1, 0, HALF), WIRE_TAKEN);
	assert_int_equal(peer_call(&other, &clear, NULL, 0, -1), 0);
	/* The reservation is in nobody's way, and never seals. */
	assert_int_equal(peer_probe(&other, 1), WIRE_ABSENT);
	assert_int_equal(peer_save(&other, 1, 1), 0);
	assert_int_equal(parts_save(&p, 1, HALF, HALF), -ESTALE);
	is_right(1);
	assert_int_equal(peer_do(&other, WIRE_EVICT, 1, 1), 0);
	assert_int_equal(daemon_stats(&d).saving, 0);
}

static void who_waits_for_a_save_that_was_cleared_is_told(void **state)
{
	const struct wire_header clear = {.type = WIRE_CLEAR};
	uint64_t tag;

	(void)state;
	assert_int_equal(parts_reserve(&p, 1, 1, 0), 0);
	tag = peer_send_acquire(&other, 1, 1, WIRE_WAIT_SAVING, 0);
	assert_int_equal(peer_call(&p, &clear, NULL, 0, -1), 0);
	assert_int_equal(peer_acquired(&other, tag), 0);
	assert_int_equal(PEER_ITEMS(&other, struct wire_place)->status,
			 -ENOENT);
}

static void present_meanwhile_is_told_with_the_last_part(void **state)
{
	struct kv_space *space = kv_space_find(d.cache, "s");
	struct kv_key key = {.len = 32};
	struct wire_key wire;
	struct kv_fill *fill;
	struct kv_digest digest = {{0}};
	struct kv_meta meta = {0};

	(void)state;
	assert_int_equal(parts_reserve(&p, 1, 1, WIRE_HOLD), 0);
	assert_int_equal(parts_save(&p, 1, 0, HALF), WIRE_TAKEN);
	peer_keys(&wire, 1, 1);
	memcpy(key.b, wire.key, 32);
	assert_int_equal(
		begin_alone(d.cache, space, p.header + p.payload, &fill), 0);
	assert_int_equal(
		kv_fill_seal(d.cache, fill, &key, &meta, p.header, &digest), 0);
	assert_int_equal(parts_save(&p, 1, HALF, HALF), -EEXIST);
	assert_int_equal(daemon_stats(&d).saving, 0);
	assert_int_equal(daemon_stats(&d).leases, 0);
}

/* The digest is of all parts together: what comes back from SSD is checked
 * against it. */
static void a_block_in_parts_comes_back_from_ssd(void **state)
{
	struct kv_space *space = kv_space_find(d.cache, "s");
	struct wire_key wire;
	struct kv_key key = {.len = 32};
	struct kv_block *block;

	(void)state;
	assert_int_equal(parts_reserve(&p, 1, 1, 0), 0);
	assert_int_equal(parts_save(&p, 1, HALF, HALF), WIRE_TAKEN);
	assert_int_equal(parts_save(&p, 1, 0, HALF), 0);
	assert_int_equal(peer_do(&p, WIRE_FLUSH, 1, 1), 0);
	peer_keys(&wire, 1, 1);
	memcpy(key.b, wire.key, 32);
	assert_int_equal(kv_block_get(d.cache, space, &key, &block), 0);
	assert_int_equal(kv_block_demote(d.cache, block), 0);
	kv_block_put(d.cache, block);
	assert_int_equal(peer_probe(&other, 1), WIRE_SSD);
	is_right(1);
}

static void tokens_beyond_the_layouts_are_refused(void **state)
{
	static const char json[] = "{\"tensors\":[{\"name\":\"k\",\"dtype\":"
				   "\"U8\",\"shape\":[65536]}],\"tokens\":4}";
	struct wire_save save = {.len = 32, .tokens = 5};
	struct wire_part part = parts_item(2, 0, HALF);
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
	assert_int_equal(parts_reserve(&p, 2, 1, 0), 0);
	part.block.tokens = 5;
	assert_int_equal(parts_send(&p, part), -EINVAL);
	part.block.tokens = 4;
	assert_int_equal(parts_send(&p, part), WIRE_TAKEN);
}

/* ---- held ---- */

static int reserve(uint32_t first, uint32_t n, uint16_t flags)
{
	return peer_each(
		&p, &(struct wire_header){.type = WIRE_RESERVE, .flags = flags},
		first, n);
}

static void what_is_held_is_leased_until_its_release(void **state)
{
	uint64_t tag;

	(void)state;
	assert_int_equal(reserve(1, 4, WIRE_HOLD), 0);
	tag = peer_send_saves(&p, 1, 4);
	assert_int_equal(peer_saved(&p, tag), 0);
	assert_int_equal(daemon_stats(&d).leases, 4);
	/* A save that holds nothing has nothing to release. */
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

static void a_block_in_parts_is_held_by_its_last_one(void **state)
{
	uint64_t tag;

	(void)state;
	assert_int_equal(parts_reserve(&p, 1, 1, WIRE_HOLD), 0);
	assert_int_equal(parts_save(&p, 1, 0, HALF), WIRE_TAKEN);
	assert_int_equal(daemon_stats(&d).leases, 0);
	assert_int_equal(parts_save(&p, 1, HALF, HALF), 0);
	tag = p.tag;
	assert_int_equal(daemon_stats(&d).leases, 1);
	assert_true(peer_release(&p, tag));
	assert_int_equal(peer_probe(&p, 1), WIRE_DRAM);
	assert_int_equal(daemon_stats(&d).leases, 0);
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

/* A lease of one message's blocks is a limit of the client's, too. */
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
#define TEST_SSD(f) cmocka_unit_test_setup_teardown(f, set_up_ssd, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_block_seals_when_every_byte_has_come),
		TEST(bytes_come_once),
		TEST(what_a_part_says_must_be_so),
		TEST(parts_that_tell_different_stories_are_refused),
		TEST(whole_and_in_parts_are_two_things),
		TEST(a_message_has_many_parts_of_many_blocks),
		TEST(parts_are_gone_with_their_connection),
		TEST(parts_and_what_is_held_leave_others_room),
		TEST(a_clear_is_before_the_whole_block_or_after_it),
		TEST(who_waits_for_a_save_that_was_cleared_is_told),
		TEST(present_meanwhile_is_told_with_the_last_part),
		TEST_SSD(a_block_in_parts_comes_back_from_ssd),
		TEST(tokens_beyond_the_layouts_are_refused),
		TEST(what_is_held_is_leased_until_its_release),
		TEST(what_is_held_outlives_a_flood),
		TEST(a_block_in_parts_is_held_by_its_last_one),
		TEST(what_is_held_is_let_go_with_the_connection),
		TEST(what_is_held_counts_as_leased),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
