/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_control.c - every message of the control socket, by clients that keep to the
 * protocol.
 *
 * OWNS      a daemon and two of its clients a test.
 *
 * LOCKING   none.
 */
#include <stdatomic.h>

#include "cache/core/core.h"
#include "tests/fs/daemon.h"

static struct daemon d;
static struct peer a, b;

static int with_ssd(void **state)
{
	(void)state;
	daemon_start(&d, 128 << 20);
	daemon_peer(&d, &a, 0);
	daemon_peer(&d, &b, 0);
	return 0;
}

static int without_ssd(void **state)
{
	(void)state;
	daemon_start(&d, 0);
	daemon_peer(&d, &a, 0);
	daemon_peer(&d, &b, 0);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	peer_close(&a);
	peer_close(&b);
	daemon_stop(&d);
	return 0;
}

static void hello_tells_the_version_the_epoch_and_the_store(void **state)
{
	struct peer p;
	struct wire_hello *hello = PEER_ITEMS(&p, struct wire_hello);

	(void)state;
	assert_true(peer_connect(&p, d.path));
	assert_int_equal(peer_hello(&p), 0);
	assert_int_equal(hello->version, WIRE_VERSION);
	assert_int_equal(hello->epoch, kv_cache_epoch(d.cache));
	assert_memory_equal(hello->store, kv_cache_store_id(d.cache), 16);
	peer_close(&p);
}

static void other_versions_do_not_fill_the_log(void **state)
{
	static struct peer p;
	FILE *log = tmpfile(), *was = stderr;
	int lines = 0, c;

	(void)state;
	assert_non_null(log);
	stderr = log;
	for (uint32_t i = 0; i < 50; i++) {
		assert_true(peer_connect(&p, d.path));
		(void)peer_hello_as(&p, 1000 + i % 2);
		peer_close(&p);
	}
	stderr = was;
	rewind(log);
	while ((c = fgetc(log)) != EOF)
		lines += c == '\n';
	fclose(log);
	assert_int_equal(lines, 1);
}

static void only_a_daemon_without_clients_stops_unused(void **state)
{
	struct peer p;

	(void)state;
	peer_close(&b);
	assert_false(kv_control_stop_unused(d.control));
	assert_int_equal(peer_space(&a, "none", "", 0, 0), -ENOENT);
	peer_close(&a);
	while (!kv_control_stop_unused(d.control))
		usleep(1000); /* until the thread has read the end of the client */
	assert_false(peer_connect(&p, d.path));
}

static void a_space_that_is_not_there_is_not_found(void **state)
{
	(void)state;
	assert_int_equal(peer_space(&a, "none", "", 0, 0), -ENOENT);
	assert_int_equal(peer_space(&a, "none", DAEMON_LAYOUT, 0, 0), -ENOENT);
}

static void a_bad_name_or_layout_leaves_no_space_behind(void **state)
{
	const uint32_t create = WIRE_SPACE_CREATE;

	(void)state;
	assert_int_equal(peer_space(&a, "x", "{", create, 0), -EINVAL);
	assert_int_equal(peer_space(&a, "x", "", 0, 0), -ENOENT);
	assert_int_equal(peer_space(&a, "", "", create, 0), -EINVAL);
	assert_int_equal(peer_space(&a, "a/b", "", create, 0), -EINVAL);
	assert_int_equal(peer_space(&a, ".kvfs", "", create, 0), -EINVAL);
	assert_int_equal(peer_space(&a, "x", "", 4, 0), -EINVAL);
}

static void a_space_opened_again_is_the_same_and_keeps_its_layout(void **state)
{
	struct wire_space *reply = PEER_ITEMS(&a, struct wire_space);
	uint32_t id = b.space;

	(void)state;
	assert_int_equal(peer_space(&a, "s", DAEMON_OTHER, 0, 0), -EEXIST);
	assert_int_equal(peer_space(&a, "s", "{", 0, 0), -EINVAL);
	assert_int_equal(peer_space(&a, "s", "", 0, 0), 0);
	assert_int_equal(reply->id, id);
	assert_int_equal(reply->writable, 1);
	assert_int_equal(reply->mode, 0700);
	assert_int_equal(reply->uid, geteuid());
	assert_int_equal(reply->payload, DAEMON_PAYLOAD);
	assert_int_equal(reply->header % KV_PAGE, 0);
	assert_string_equal((char *)(reply + 1), "s");
	assert_int_equal(((char *)(reply + 1))[2], '{');
}

static void an_untyped_space_gets_its_layout_once(void **state)
{
	(void)state;
	assert_int_equal(peer_space(&a, "u", "", WIRE_SPACE_CREATE, 0750), 0);
	assert_int_equal(a.payload, 0);
	assert_int_equal(peer_do(&a, WIRE_RESERVE, 1, 2), -EINVAL);
	assert_int_equal(peer_space(&b, "u", DAEMON_OTHER, 0, 0), 0);
	assert_int_equal(b.payload, 65535);
	assert_int_equal(peer_space(&a, "u", DAEMON_LAYOUT, 0, 0), -EEXIST);
}

static void a_saved_block_is_found_and_read_by_another_client(void **state)
{
	uint64_t tag;

	(void)state;
	assert_int_equal(peer_probe(&b, 1), WIRE_ABSENT);
	assert_int_equal(peer_do(&a, WIRE_RESERVE, 1, 8), 0);
	assert_int_equal(peer_probe(&b, 1), WIRE_SAVING);
	assert_int_equal(peer_saved(&a, peer_send_saves(&a, 1, 8)), 0);
	assert_int_equal(peer_probe(&b, 1), WIRE_DRAM);

	tag = peer_send_acquire(&b, 0, 10, 0, 0);
	assert_int_equal(peer_acquired(&b, tag), 8);
	assert_int_equal(PEER_ITEMS(&b, struct wire_place)[0].status, -ENOENT);
	for (uint32_t i = 1; i <= 8; i++)
		assert_true(peer_right(&b, i, i));
	assert_int_equal(daemon_stats(&d).leases, 8);
	assert_true(peer_release(&b, tag));
	/* A second acquire of the blocks does not send their segment again. */
	assert_int_equal(peer_acquire(&b, 1, 8), 8);
	assert_int_equal(b.n_segments, 1);
	assert_int_equal(daemon_stats(&d).leases, 8);
}

static void a_key_is_reserved_by_one_client_at_a_time(void **state)
{
	(void)state;
	assert_int_equal(peer_do(&a, WIRE_RESERVE, 1, 1), 0);
	assert_int_equal(peer_do(&a, WIRE_RESERVE, 1, 1), -EALREADY);
	assert_int_equal(peer_do(&b, WIRE_RESERVE, 1, 1), -EALREADY);
	assert_int_equal(peer_do(&b, WIRE_DROP, 1, 1), -ENOENT);
	assert_int_equal(peer_do(&a, WIRE_DROP, 1, 1), 0);
	assert_int_equal(peer_do(&a, WIRE_DROP, 1, 1), -ENOENT);
	assert_int_equal(peer_save(&b, 1, 1), 0);
	assert_int_equal(peer_do(&a, WIRE_RESERVE, 1, 1), -EEXIST);
}

static void a_bad_key_cannot_be_reserved_and_others_can(void **state)
{
	struct wire_status *statuses = PEER_ITEMS(&a, struct wire_status);
	struct wire_key keys[3];

	(void)state;
	peer_keys(keys, 1, 3);
	keys[1].len = 31;
	assert_int_equal(peer_call(&a,
				   &(struct wire_header){.type = WIRE_RESERVE,
							 .count = 3},
				   keys, sizeof(keys), -1),
			 0);
	assert_int_equal(statuses[0].status, 0);
	assert_int_equal(statuses[1].status, -EINVAL);
	assert_int_equal(statuses[2].status, 0);
}

static void a_save_that_cannot_be_gives_its_reservation_back(void **state)
{
	(void)state;
	assert_int_equal(peer_saved(&a, peer_send_saves(&a, 1, 1)), -ENOENT);
	/* The staging memory has room for 16 blocks: the 17th lies beyond
	 * it. */
	assert_int_equal(peer_do(&a, WIRE_RESERVE, 1, 17), 0);
	assert_int_equal(peer_saved(&a, peer_send_saves(&a, 1, 17)), -EINVAL);
	assert_int_equal(peer_probe(&b, 16), WIRE_DRAM);
	assert_int_equal(peer_probe(&b, 17), WIRE_ABSENT);
	assert_int_equal(peer_do(&a, WIRE_DROP, 17, 1), -ENOENT);
	assert_true(daemon_is_idle(&d));
}

/* Send a WIRE_FRESH of @n keys, which the caller may change. */
static int fresh(struct peer *p, const struct wire_save *saves, uint32_t n,
		 uint16_t flags)
{
	return peer_call(p,
			 &(struct wire_header){.type = WIRE_SAVE,
					       .flags = WIRE_FRESH | flags,
					       .count = n},
			 saves, n * sizeof(*saves), -1);
}

static void fresh_keys(struct peer *p, struct wire_save *saves, uint32_t first,
		       uint32_t n)
{
	struct wire_key keys[WIRE_BATCH];

	peer_keys(keys, first, n);
	memset(saves, 0, n * sizeof(*saves));
	for (uint32_t i = 0; i < n; i++) {
		memcpy(saves[i].key, keys[i].key, 32);
		saves[i].len = 32;
		saves[i].offset = i * p->payload;
		if (saves[i].offset + p->payload <= p->staging_bytes)
			memset(p->staging + saves[i].offset,
			       peer_fill(first + i), p->payload);
	}
}

static void one_message_reserves_and_saves(void **state)
{
	const struct wire_status *statuses = PEER_ITEMS(&a, struct wire_status);
	struct wire_save saves[17];
	static struct peer p;

	(void)state;
	fresh_keys(&a, saves, 1, 6);
	saves[1].len = 31;
	saves[2] = saves[0];
	saves[3].offset = a.staging_bytes - a.payload + 1;
	saves[4].parent_len = 16;
	assert_int_equal(fresh(&a, saves, 3, 0), 0);
	assert_int_equal(statuses[0].status, 0);
	assert_int_equal(statuses[1].status, -EINVAL);
	assert_int_equal(statuses[2].status, -EEXIST);
	assert_int_equal(fresh(&a, saves + 3, 3, 0), 0);
	assert_int_equal(statuses[0].status, -EINVAL);
	assert_int_equal(statuses[1].status, -EINVAL);
	assert_int_equal(statuses[2].status, 0);
	assert_int_equal(peer_probe(&b, 1), WIRE_DRAM);
	assert_int_equal(peer_probe(&b, 4), WIRE_ABSENT);
	/* A reserved block. */
	assert_int_equal(peer_do(&b, WIRE_RESERVE, 20, 1), 0);
	fresh_keys(&a, saves, 20, 1);
	assert_int_equal(fresh(&a, saves, 1, 0), 0);
	assert_int_equal(statuses[0].status, -EALREADY);
	assert_int_equal(peer_do(&b, WIRE_DROP, 20, 1), 0);
	/* No staging. */
	assert_true(peer_connect(&p, d.path));
	assert_int_equal(peer_hello(&p), 0);
	assert_int_equal(peer_space(&p, "s", "", 0, 0), 0);
	assert_int_equal(fresh(&p, saves, 1, 0), 0);
	assert_int_equal(PEER_ITEMS(&p, struct wire_status)->status, -EINVAL);
	peer_close(&p);
	/* 17 blocks are too many for the control thread: workers copy them. */
	fresh_keys(&a, saves, 30, 17);
	saves[16].offset = 0;
	assert_int_equal(fresh(&a, saves, 17, WIRE_MUST), 0);
	for (uint32_t i = 0; i < 17; i++)
		assert_int_equal(statuses[i].status, 0);
	assert_true(daemon_is_idle(&d));
}

static void the_flags_of_a_reservation_need_one(void **state)
{
	struct wire_save save;

	(void)state;
	fresh_keys(&a, &save, 1, 1);
	assert_true(peer_call(&a,
			      &(struct wire_header){.type = WIRE_SAVE,
						    .flags = WIRE_MUST,
						    .count = 1},
			      &save, sizeof(save), -1) < 0);
}

static void a_parent_of_another_length_is_refused(void **state)
{
	struct wire_save save = {.len = 32, .parent_len = 16};
	struct wire_key key;

	(void)state;
	peer_keys(&key, 1, 1);
	memcpy(save.key, key.key, 32);
	assert_int_equal(peer_do(&a, WIRE_RESERVE, 1, 1), 0);
	assert_int_equal(
		peer_call(&a,
			  &(struct wire_header){.type = WIRE_SAVE, .count = 1},
			  &save, sizeof(save), -1),
		0);
	assert_int_equal(PEER_ITEMS(&a, struct wire_status)->status, -EINVAL);
}

static void evicting_goes_on_past_missing_keys(void **state)
{
	struct wire_status *statuses = PEER_ITEMS(&a, struct wire_status);

	(void)state;
	assert_int_equal(peer_save(&a, 2, 1), 0);
	assert_int_equal(peer_do(&a, WIRE_EVICT, 1, 3), -ENOENT);
	assert_int_equal(statuses[1].status, 0);
	assert_int_equal(statuses[2].status, -ENOENT);
	assert_int_equal(peer_probe(&a, 2), WIRE_ABSENT);
}

static void pins_are_set_and_taken_off(void **state)
{
	struct wire_header pin = {.type = WIRE_PIN, .arg = 1};

	(void)state;
	assert_int_equal(peer_each(&a, &pin, 1, 1), -ENOENT);
	assert_int_equal(peer_save(&a, 1, 1), 0);
	assert_int_equal(peer_each(&a, &pin, 1, 1), 0);
	assert_int_equal(daemon_stats(&d).pinned, 1);
	pin.arg = 0;
	assert_int_equal(peer_each(&b, &pin, 1, 1), 0);
	assert_int_equal(daemon_stats(&d).pinned, 0);
}

static void what_was_reserved_before_a_clear_never_seals(void **state)
{
	(void)state;
	assert_int_equal(peer_save(&a, 1, 1), 0);
	assert_int_equal(peer_do(&a, WIRE_RESERVE, 2, 1), 0);
	assert_int_equal(peer_call(&b,
				   &(struct wire_header){.type = WIRE_CLEAR},
				   NULL, 0, -1),
			 0);
	assert_int_equal(peer_probe(&a, 1), WIRE_ABSENT);
	assert_int_equal(peer_saved(&a, peer_send_saves(&a, 2, 1)), -ESTALE);
	assert_int_equal(peer_save(&a, 2, 1), 0);
}

static void a_clear_is_no_reason_to_reserve_a_key_twice(void **state)
{
	const struct wire_header clear = {.type = WIRE_CLEAR};
	struct wire_header drop = {.type = WIRE_DROP};

	(void)state;
	assert_int_equal(peer_do(&a, WIRE_RESERVE, 2, 1), 0);
	assert_int_equal(peer_call(&b, &clear, NULL, 0, -1), 0);
	/* A save that the client began before the clear would take the second
	 * reservation. */
	assert_int_equal(peer_do(&a, WIRE_RESERVE, 2, 1), -EBUSY);
	assert_int_equal(peer_saved(&a, peer_send_saves(&a, 2, 1)), -ESTALE);
	assert_int_equal(peer_do(&a, WIRE_RESERVE, 2, 1), 0);
	drop.arg = a.tag;
	assert_int_equal(peer_call(&b, &clear, NULL, 0, -1), 0);
	assert_int_equal(peer_do(&a, WIRE_RESERVE, 2, 1), -EBUSY);
	assert_int_equal(peer_each(&a, &drop, 2, 1), 0);
	assert_true(daemon_is_idle(&d));
	assert_int_equal(peer_save(&a, 2, 1), 0);
}

/* If the connection held on to a removed space, the space would never be
 * freed. */
static void who_removes_a_space_does_not_go_on_holding_it(void **state)
{
	const struct wire_header remove = {.type = WIRE_SPACE_REMOVE};
	const struct wire_header clear = {.type = WIRE_CLEAR};
	struct kv_space *space = kv_space_find(d.cache, "s");
	uint32_t refs;

	(void)state;
	assert_int_equal(peer_save(&a, 1, 1), 0);
	assert_int_equal(peer_call(&a, &clear, NULL, 0, -1), 0);
	refs = atomic_load(&space->refs);
	assert_int_equal(peer_do(&a, WIRE_RESERVE, 2, 1), 0);
	assert_int_equal(peer_saved(&a, peer_send_saves(&a, 2, 1)), 0);
	assert_int_equal(peer_call(&b, &remove, NULL, 0, -1), -ENOTEMPTY);
	assert_int_equal(peer_call(&a, &clear, NULL, 0, -1), 0);
	assert_int_equal(peer_call(&b, &remove, NULL, 0, -1), 0);
	/* The worker that clears the space drops its reference to the space
	 * last. */
	for (int i = 0; i < 5000 && atomic_load(&space->refs) > refs; i++)
		usleep(1000);
	assert_true(atomic_load(&space->refs) <= refs);
	kv_space_put(space);
}

static void a_flush_waits_until_blocks_are_durable(void **state)
{
	struct wire_status *statuses = PEER_ITEMS(&a, struct wire_status);

	(void)state;
	assert_int_equal(peer_save(&a, 1, 4), 0);
	assert_int_equal(peer_do(&a, WIRE_FLUSH, 1, 5), -ENOENT);
	assert_int_equal(statuses[3].status, 0);
	assert_int_equal(statuses[4].status, -ENOENT);
	assert_int_equal(daemon_stats(&d).dirty_blocks, 0);
	assert_int_equal(peer_do(&a, WIRE_FLUSH, 0, 0), 0);
}

static void a_flush_without_a_tier_says_so(void **state)
{
	(void)state;
	assert_int_equal(peer_save(&a, 1, 1), 0);
	assert_int_equal(peer_do(&a, WIRE_FLUSH, 1, 1), -EOPNOTSUPP);
	assert_int_equal(peer_do(&a, WIRE_FLUSH, 0, 0), -EOPNOTSUPP);
}

static void an_acquire_can_wait_for_a_save_under_way(void **state)
{
	uint64_t tag;

	(void)state;
	assert_int_equal(peer_do(&a, WIRE_RESERVE, 1, 2), 0);
	assert_int_equal(peer_acquire(&b, 1, 2), 0);
	tag = peer_send_acquire(&b, 1, 2, WIRE_WAIT_SAVING, 0);
	assert_int_equal(peer_reply(&b, tag, 100), -ETIMEDOUT);
	assert_int_equal(peer_saved(&a, peer_send_saves(&a, 1, 2)), 0);
	assert_int_equal(peer_acquired(&b, tag), 2);
	assert_true(peer_right(&b, 0, 1));
	assert_true(peer_right(&b, 1, 2));
}

static void an_acquire_ends_at_its_deadline(void **state)
{
	uint64_t tag, start = kv_now_ns();

	(void)state;
	assert_int_equal(peer_save(&a, 1, 1), 0);
	assert_int_equal(peer_do(&a, WIRE_RESERVE, 2, 1), 0);
	tag = peer_send_acquire(&b, 1, 2, WIRE_WAIT_SAVING, 50000000);
	assert_int_equal(peer_acquired(&b, tag), 1);
	assert_int_equal(PEER_ITEMS(&b, struct wire_place)[1].status,
			 -ETIMEDOUT);
	assert_in_range(kv_now_ns() - start, 50000000, 20000000000);
	/* A long deadline of an earlier acquire does not delay the deadline of
	 * a later one. */
	peer_send_acquire(&b, 2, 1, WIRE_WAIT_SAVING, 100000000000);
	tag = peer_send_acquire(&b, 2, 1, WIRE_WAIT_SAVING, 1);
	assert_int_equal(peer_acquired(&b, tag), 0);
}

static void a_cancelled_acquire_is_answered_now(void **state)
{
	uint64_t tag;

	(void)state;
	assert_int_equal(peer_do(&a, WIRE_RESERVE, 1, 1), 0);
	tag = peer_send_acquire(&b, 1, 1, WIRE_WAIT_SAVING, 0);
	assert_int_equal(peer_reply(&b, tag, 50), -ETIMEDOUT);
	assert_true(peer_cancel(&b, tag));
	assert_int_equal(peer_acquired(&b, tag), 0);
	assert_int_equal(PEER_ITEMS(&b, struct wire_place)->status, -ECANCELED);
	/* A second cancel may cross the reply to the acquire: it has no
	 * effect. */
	assert_true(peer_cancel(&b, tag));
	assert_int_equal(peer_probe(&b, 1), WIRE_SAVING);
}

static void a_release_before_the_reply_cancels(void **state)
{
	uint64_t tag;

	(void)state;
	assert_int_equal(peer_save(&a, 1, 1), 0);
	assert_int_equal(peer_do(&a, WIRE_RESERVE, 2, 1), 0);
	tag = peer_send_acquire(&b, 1, 2, WIRE_WAIT_SAVING, 0);
	assert_true(peer_release(&b, tag));
	assert_int_equal(peer_acquired(&b, tag), 1);
	assert_int_equal(peer_probe(&b, 1), WIRE_DRAM);
	assert_int_equal(daemon_stats(&d).leases, 0);
}

static void a_release_of_a_miss_or_twice_does_nothing(void **state)
{
	uint64_t tag;

	(void)state;
	tag = peer_send_acquire(&b, 1, 1, 0, 0);
	assert_int_equal(peer_acquired(&b, tag), 0);
	assert_true(peer_release(&b, tag));
	assert_int_equal(peer_save(&a, 1, 1), 0);
	tag = peer_send_acquire(&b, 1, 1, 0, 0);
	assert_int_equal(peer_acquired(&b, tag), 1);
	assert_true(peer_release(&b, tag));
	assert_true(peer_release(&b, tag));
	assert_int_equal(peer_probe(&b, 1), WIRE_DRAM);
	assert_int_equal(daemon_counts(&d).stray_releases, 2);
}

/* Fill DRAM with blocks of one size, and let client b map all their
 * segments. */
static void fill_dram(void)
{
	for (uint32_t i = 0; i < 512; i += 16) {
		assert_int_equal(peer_save(&a, i, 16), 0);
		assert_int_equal(peer_acquire(&b, i, 16), 16);
		assert_true(peer_release(&b, b.tag));
	}
	assert_int_equal(b.n_segments, daemon_stats(&d).dram_segments_max);
}

static void a_segment_that_others_need_is_unmapped_by_who_has_it(void **state)
{
	unsigned before;
	int r = -EBUSY;

	(void)state;
	fill_dram();
	before = b.n_segments;
	assert_int_equal(
		peer_space(&a, "t", DAEMON_LAYOUT, WIRE_SPACE_CREATE, 0755), 0);
	/* No segment is free before b has unmapped one.  Client b handles RETIRE while
	 * it waits for another reply. */
	assert_int_equal(peer_save(&a, 1, 1), -EBUSY);
	assert_int_equal(daemon_stats(&d).dram_retired, 1);
	for (int i = 0; i < 15000 && (r == -ENOSPC || r == -EBUSY); i++) {
		assert_true(peer_probe(&b, 1) >= 0);
		r = peer_save(&a, 1, 1);
		usleep(2000);
	}
	assert_int_equal(r, 0);
	assert_int_equal(b.n_retired, 1);
	assert_int_equal(a.n_retired, 0);
	assert_int_equal(daemon_stats(&d).dram_retired, 0);
	/* A segment that is made after a segment was retired has another id. */
	assert_int_equal(peer_space(&b, "t", "", 0, 0), 0);
	assert_int_equal(peer_acquire(&b, 1, 1), 1);
	assert_true(peer_right(&b, 0, 1));
	assert_int_equal(b.n_segments, before + 1);
}

static void
one_that_hoards_retired_segments_gives_them_back_by_going(void **state)
{
	int r = -EBUSY;

	(void)state;
	fill_dram();
	assert_int_equal(
		peer_space(&a, "t", DAEMON_LAYOUT, WIRE_SPACE_CREATE, 0755), 0);
	/* until client b's time to unmap its segments has passed */
	while (r == -EBUSY)
		r = peer_save(&a, 1, 1);
	assert_int_equal(r, -ENOSPC);
	peer_close(&b);
	for (int i = 0; i < 15000 && (r == -ENOSPC || r == -EBUSY); i++) {
		r = peer_save(&a, 1, 1);
		usleep(2000);
	}
	assert_int_equal(r, 0);
	daemon_peer(&d, &b, 0);
}

static void stats_are_text(void **state)
{
	(void)state;
	assert_int_equal(peer_call(&a,
				   &(struct wire_header){.type = WIRE_STATS},
				   NULL, 0, -1),
			 0);
	assert_true(PEER_HEADER(&a)->count > 0);
	assert_null(memchr(PEER_ITEMS(&a, char), 0, PEER_HEADER(&a)->count));
}

/* Ask for the text @arg.  Return the status. */
static int text(uint64_t arg)
{
	return peer_call(&a,
			 &(struct wire_header){.type = WIRE_STATS, .arg = arg},
			 NULL, 0, -1);
}

static void texts_have_names_and_a_client_learns_of_its_own_alone(void **state)
{
	const uint64_t uid = geteuid();

	(void)state;
	assert_int_equal(text(WIRE_TEXT_METRICS), 0);
	assert_int_equal(memcmp(PEER_ITEMS(&a, char), "# HELP", 6), 0);
	assert_int_equal(text(WIRE_TEXT_SPACES), 0);
	assert_int_equal(memcmp(PEER_ITEMS(&a, char), "0\n{\"name\": ", 11), 0);
	assert_int_equal(text(WIRE_TEXT_USER | uid << WIRE_TEXT_BITS), 0);
	assert_int_equal(text(WIRE_TEXT_USER + 1), -EINVAL);
	assert_int_equal(text(WIRE_TEXT_USER | UINT64_C(1) << 40), -EINVAL);
}

static void what_does_not_fit_in_dram_is_refused_not_waited_for(void **state)
{
	int r = 0;

	(void)state;
	for (uint32_t i = 0; i < 64 && r == 0; i++)
		r = peer_do(&a, WIRE_RESERVE, i * 16, 16);
	assert_int_equal(r, -ENOSPC);
}

static void stopping_finishes_saves_and_answers_what_waits(void **state)
{
	uint64_t save, wait;

	(void)state;
	assert_int_equal(peer_do(&a, WIRE_RESERVE, 1, 17), 0);
	wait = peer_send_acquire(&b, 17, 1, WIRE_WAIT_SAVING, 0);
	assert_int_equal(peer_reply(&b, wait, 50), -ETIMEDOUT);
	save = peer_send_saves(&a, 1, 16);
	/* Wait for the reply, which shows that the daemon has read the
	 * message. */
	assert_int_equal(peer_saved(&a, save), 0);
	save = peer_send_saves(&a, 17, 1);
	daemon_stop_control(&d);
	assert_true(peer_acquired(&b, wait) >= 0);
	assert_true(peer_at_end(&a));
	assert_true(peer_at_end(&b));
	assert_true(daemon_is_idle(&d));
	assert_int_equal(access(d.path, F_OK), -1);
}

#define CONTROL_TEST(f) cmocka_unit_test_setup_teardown(f, with_ssd, tear_down)
#define DRAM_TEST(f) cmocka_unit_test_setup_teardown(f, without_ssd, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CONTROL_TEST(a_space_that_is_not_there_is_not_found),
		CONTROL_TEST(a_bad_name_or_layout_leaves_no_space_behind),
		CONTROL_TEST(a_key_is_reserved_by_one_client_at_a_time),
		CONTROL_TEST(a_bad_key_cannot_be_reserved_and_others_can),
		CONTROL_TEST(a_save_that_cannot_be_gives_its_reservation_back),
		CONTROL_TEST(one_message_reserves_and_saves),
		CONTROL_TEST(the_flags_of_a_reservation_need_one),
		CONTROL_TEST(a_parent_of_another_length_is_refused),
		CONTROL_TEST(evicting_goes_on_past_missing_keys),
		CONTROL_TEST(what_was_reserved_before_a_clear_never_seals),
		CONTROL_TEST(a_clear_is_no_reason_to_reserve_a_key_twice),
		DRAM_TEST(who_removes_a_space_does_not_go_on_holding_it),
		DRAM_TEST(a_flush_without_a_tier_says_so),
		DRAM_TEST(what_does_not_fit_in_dram_is_refused_not_waited_for),
		CONTROL_TEST(an_acquire_ends_at_its_deadline),
		CONTROL_TEST(a_cancelled_acquire_is_answered_now),
		CONTROL_TEST(a_release_before_the_reply_cancels),
		CONTROL_TEST(a_release_of_a_miss_or_twice_does_nothing),
		CONTROL_TEST(hello_tells_the_version_the_epoch_and_the_store),
		CONTROL_TEST(other_versions_do_not_fill_the_log),
		CONTROL_TEST(only_a_daemon_without_clients_stops_unused),
		CONTROL_TEST(
			a_space_opened_again_is_the_same_and_keeps_its_layout),
		CONTROL_TEST(an_untyped_space_gets_its_layout_once),
		CONTROL_TEST(a_saved_block_is_found_and_read_by_another_client),
		CONTROL_TEST(pins_are_set_and_taken_off),
		CONTROL_TEST(a_flush_waits_until_blocks_are_durable),
		CONTROL_TEST(an_acquire_can_wait_for_a_save_under_way),
		DRAM_TEST(a_segment_that_others_need_is_unmapped_by_who_has_it),
		DRAM_TEST(
			one_that_hoards_retired_segments_gives_them_back_by_going),
		CONTROL_TEST(stats_are_text),
		CONTROL_TEST(
			texts_have_names_and_a_client_learns_of_its_own_alone),
		CONTROL_TEST(stopping_finishes_saves_and_answers_what_waits),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
