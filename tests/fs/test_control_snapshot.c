/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots over the control socket, by clients that keep to the protocol and
 * others. */
#include "tests/fs/daemon.h"

static struct daemon d;
static struct peer a, b;

static int set_up(void **state)
{
	(void)state;
	daemon_start(&d, 128 << 20);
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

/* Add keys @first to @first + @n - 1 to the set of keys @set, of which a
 * snapshot can be made.  The position of each key is its number. */
static int pick(struct peer *p, uint64_t set, uint32_t first, uint32_t n)
{
	struct wire_key keys[WIRE_BATCH];
	struct wire_pick picks[WIRE_BATCH] = {0};

	peer_keys(keys, first, n);
	for (uint32_t i = 0; i < n; i++) {
		memcpy(picks[i].key, keys[i].key, sizeof(picks[i].key));
		picks[i].len = 32;
		picks[i].position = first + i;
	}
	return peer_call(p,
			 &(struct wire_header){
				 .type = WIRE_PICK, .count = n, .arg = set},
			 picks, n * sizeof(*picks), -1);
}

static int named(struct peer *p, enum wire_type type, const char *name,
		 uint64_t id, uint32_t blocks)
{
	struct {
		struct wire_snapshot head;
		char text[300];
	} m = {.head = {.id = id, .blocks = blocks}};

	strcpy(m.text, name);
	return peer_call(p,
			 &(struct wire_header){.type = (uint16_t)type,
					       .count = (uint32_t)strlen(name)},
			 &m, sizeof(m.head) + strlen(name), -1);
}

static void picks_of_several_messages_make_one_snapshot(void **state)
{
	struct wire_snapshot *reply = PEER_ITEMS(&a, struct wire_snapshot);
	struct wire_header header;
	struct {
		struct wire_snapshot head;
		char name;
	} m;

	(void)state;
	assert_int_equal(peer_save(&a, 1, 8), 0);
	assert_int_equal(pick(&a, 5, 1, 4), 0);
	/* client a also adds keys to another set */
	assert_int_equal(pick(&a, 6, 1, 1), 0);
	assert_int_equal(pick(&a, 5, 5, 4), 0);
	assert_int_equal(named(&a, WIRE_SNAPSHOT, "x", 5, 8), 0);
	assert_int_equal(named(&b, WIRE_SNAPSHOT_READ, "x", 0, 0), 0);
	reply = PEER_ITEMS(&b, struct wire_snapshot);
	assert_int_equal(reply->blocks, 8);
	assert_int_equal(PEER_HEADER(&b)->count, 8);
	assert_int_equal(((struct wire_pick *)(reply + 1))[7].position, 8);
	/* Read two blocks of the snapshot's list, from index 3 on. */
	memset(&m, 0, sizeof(m));
	m.head.from = 3;
	m.name = 'x';
	header = (struct wire_header){
		.type = WIRE_SNAPSHOT_READ, .count = 1, .arg = 2};
	assert_int_equal(peer_call(&b, &header, &m, sizeof(m.head) + 1, -1), 0);
	assert_int_equal(PEER_HEADER(&b)->count, 2);
	assert_int_equal(reply->blocks, 8);
	assert_int_equal(((struct wire_pick *)(reply + 1))[1].position, 4);
	/* The set of keys 5 ended when a snapshot was made of it. */
	assert_int_equal(named(&a, WIRE_SNAPSHOT, "y", 5, 8), -ESTALE);
	assert_int_equal(named(&a, WIRE_SNAPSHOT, "y", 6, 1), 0);
	assert_int_equal(named(&b, WIRE_SNAPSHOT_READ, "x", reply->id + 1, 0),
			 -ESTALE);
}

static void an_incomplete_set_makes_none(void **state)
{
	(void)state;
	assert_int_equal(peer_save(&a, 1, 4), 0);
	assert_int_equal(pick(&a, 5, 1, 3), 0);
	assert_int_equal(named(&a, WIRE_SNAPSHOT, "x", 5, 4), -ESTALE);
	assert_int_equal(named(&a, WIRE_SNAPSHOT_READ, "x", 0, 0), -ENOENT);
	assert_int_equal(daemon_stats(&d).pinned, 0);
}

/* The sets of keys that a connection has added end with the connection: the
 * next connection has none. */
static void a_set_dies_with_its_connection(void **state)
{
	(void)state;
	assert_int_equal(peer_save(&a, 1, 4), 0);
	assert_int_equal(pick(&a, 5, 1, 3), 0);
	/* client b cannot add keys to the set of client a */
	assert_int_equal(pick(&b, 5, 4, 1), 0);
	peer_close(&a);
	daemon_peer(&d, &a, 0);
	assert_int_equal(named(&a, WIRE_SNAPSHOT, "x", 5, 3), -ESTALE);
	assert_int_equal(pick(&a, 5, 4, 1), 0);
	assert_int_equal(named(&a, WIRE_SNAPSHOT, "x", 5, 4), -ESTALE);
	assert_int_equal(named(&b, WIRE_SNAPSHOT, "x", 5, 1), 0);
}

static void sets_and_picks_have_limits(void **state)
{
	uint32_t i;

	(void)state;
	for (i = 0; i < 16; i++)
		assert_int_equal(pick(&a, 100 + i, 1, 1), 0);
	assert_int_equal(pick(&a, 99, 1, 1), -ENOSPC);
	assert_int_equal(named(&a, WIRE_SNAPSHOT, "x", 100, 2), -ESTALE);
	assert_int_equal(pick(&a, 99, 1, 1), 0);
	/* The limit on the number of keys holds for all sets of a client
	 * together. */
	for (i = 0; i + WIRE_BATCH <= KV_SNAPSHOT_BLOCKS - 16; i += WIRE_BATCH)
		assert_int_equal(pick(&a, 99, 2 + i, WIRE_BATCH), 0);
	assert_int_equal(pick(&a, 99, 2 + i, WIRE_BATCH), -ENOSPC);
}

static void names_that_cannot_be_are_refused(void **state)
{
	char name[257];

	(void)state;
	memset(name, 'x', 256);
	name[256] = '\0';
	assert_int_equal(peer_save(&a, 1, 1), 0);
	for (int i = 0; i < 4; i++) {
		static const char *const bad[] = {"", ".x", "x/y", NULL};

		assert_int_equal(pick(&a, 5, 1, 1), 0);
		assert_int_equal(
			named(&a, WIRE_SNAPSHOT, bad[i] ? bad[i] : name, 5, 1),
			-EINVAL);
	}
	name[255] = '\0';
	assert_int_equal(pick(&a, 5, 1, 1), 0);
	assert_int_equal(named(&a, WIRE_SNAPSHOT, name, 5, 1), 0);
}

/* The space's rights apply: readers may read snapshots, writers may make and drop
 * them. */
static void others_see_nothing_and_change_nothing(void **state)
{
	struct kv_space *space;

	(void)state;
	assert_int_equal(peer_save(&a, 1, 1), 0);
	space = kv_space_find(d.cache, "s");
	assert_int_equal(pick(&a, 5, 1, 1), 0);
	assert_int_equal(named(&a, WIRE_SNAPSHOT, "x", 5, 1), 0);
	assert_int_equal(kv_space_stat(d.cache, space).uid, getuid());
	b.space = 77; /* no space has this id */
	assert_int_equal(named(&b, WIRE_SNAPSHOT_READ, "x", 0, 0), -ENOENT);
	assert_int_equal(pick(&b, 5, 1, 1), 0);
	assert_int_equal(named(&b, WIRE_SNAPSHOT, "y", 5, 1), -ENOENT);
}

static void
a_prefetch_of_nothing_is_answered_and_of_others_is_absent(void **state)
{
	const struct wire_header none = {.type = WIRE_PREFETCH};
	struct wire_status *statuses = PEER_ITEMS(&a, struct wire_status);

	(void)state;
	assert_int_equal(peer_save(&a, 1, 2), 0);
	assert_int_equal(peer_call(&a, &none, NULL, 0, -1), 0);
	assert_int_equal(PEER_HEADER(&a)->count, 0);
	assert_int_equal(peer_do(&a, WIRE_PREFETCH, 1, 2), 0);
	assert_int_equal(peer_do(&a, WIRE_PREFETCH, 2, 2), -ENOENT);
	assert_int_equal(statuses[0].status, 0);
	b.space = 77;
	assert_int_equal(peer_do(&b, WIRE_PREFETCH, 1, 1), -ENOENT);
	/* WIRE_ENDED has no reply: the next reply is that of the next message. */
	assert_true(peer_send(&a, &(struct wire_header){.type = WIRE_ENDED},
			      NULL, 0, -1) > 0);
	assert_int_equal(peer_do(&a, WIRE_PREFETCH, 1, 1), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(picks_of_several_messages_make_one_snapshot),
		TEST(an_incomplete_set_makes_none),
		TEST(a_set_dies_with_its_connection),
		TEST(sets_and_picks_have_limits),
		TEST(names_that_cannot_be_are_refused),
		TEST(others_see_nothing_and_change_nothing),
		TEST(a_prefetch_of_nothing_is_answered_and_of_others_is_absent),
	};

	return cmocka_run_group_tests_name("control/snapshot", tests, NULL,
					   NULL);
}
