/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_tenants.c - one user takes as much of the control socket as it can, and another
 * user still gets its share.
 *
 * OWNS      a daemon, and its connections.
 *
 * LOCKING   none: one thread, which connects as one user or another.
 */
#include "cache/core/account.h"
#include "tests/fs/daemon.h"

#include <sys/resource.h>
#include <sys/syscall.h>

#define A 1001
#define B 1002
#define MANY 1100

static struct daemon d;
static struct peer peers[MANY], other;

static int set_up(void **state)
{
	(void)state;
	daemon_start(&d, 0);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	daemon_stop(&d);
	return 0;
}

/* Set the effective uid of this thread only; the daemon sees it on connect. */
static void become(uint32_t uid)
{
	assert_int_equal(syscall(SYS_setresuid, -1, uid, -1), 0);
}

/* Connect @p as the user @uid.  Return true if the daemon takes the connection. */
static bool get_in(struct peer *p, uint32_t uid)
{
	bool in;

	become(uid);
	in = peer_connect(p, d.path);
	become(0);
	if (in && peer_hello(p) == 0)
		return true;
	peer_close(p);
	return false;
}

/* Connect the peers from number @first on as the user @uid, until the daemon
 * refuses one.  Return the number of that peer. */
static size_t flood(uint32_t uid, size_t first)
{
	size_t n = first;

	while (n < MANY && get_in(&peers[n], uid))
		n++;
	return n;
}

static void close_all(size_t n)
{
	for (size_t i = 0; i < n; i++)
		peer_close(&peers[i]);
}

static bool may_become_others(void)
{
	struct rlimit limit;

	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = KV_MIN(limit.rlim_max, 8192);
	setrlimit(RLIMIT_NOFILE, &limit);
	return geteuid() == 0 && limit.rlim_cur == 8192;
}

static void others_and_root_connect_when_some_took_all_they_get(void **state)
{
	uint64_t total = kv_finite_total(KV_FINITE_CONNECTIONS);
	size_t n;

	(void)state;
	if (!may_become_others())
		skip();
	n = flood(A, 0);
	assert_in_range(n, total / 3, total / 2);
	for (uint32_t uid = B; uid < B + 3; uid++)
		n = flood(uid, n);
	assert_true(get_in(&other, 2000));
	peer_close(&other);
	assert_true(get_in(&other, 0));
	peer_close(&other);
	close_all(n);
}

/* Send as many acquires as may be pending, for a save that does not come, and
 * wait until the daemon has read them. */
static void wait_for_nothing(struct peer *p)
{
	struct wire_header m = {
		.type = WIRE_ACQUIRE, .flags = WIRE_WAIT_SAVING, .count = 1};
	uint64_t before = daemon_counts(&d).messages;
	struct wire_key key;

	peer_keys(&key, 1, 1);
	for (size_t i = 0; i < WIRE_PENDING_MAX; i++)
		assert_true(peer_send(p, &m, &key, sizeof(key), -1) > 0);
	while (daemon_counts(&d).messages < before + WIRE_PENDING_MAX)
		usleep(1000);
}

static void requests_in_flight_are_shared(void **state)
{
	uint64_t total = kv_finite_total(KV_FINITE_REQUESTS);
	size_t n = 0;

	(void)state;
	if (!may_become_others())
		skip();
	assert_true(get_in(&other, B));
	assert_int_equal(
		peer_space(&other, "s", DAEMON_LAYOUT, WIRE_SPACE_CREATE, 0777),
		0);
	assert_int_equal(peer_do(&other, WIRE_RESERVE, 1, 1), 0);
	for (; n < 16; n++) {
		assert_true(get_in(&peers[n], A));
		assert_int_equal(peer_space(&peers[n], "s", "", 0, 0), 0);
	}
	for (size_t i = 0; i < n; i++)
		wait_for_nothing(&peers[i]);
	assert_in_range(kv_accounts_used(kv_cache_accounts(d.cache),
					 KV_FINITE_REQUESTS),
			total / 3, total / 2);
	assert_int_equal(peer_probe(&other, 1), WIRE_SAVING);
	assert_int_equal(peer_acquire(&other, 2, 1), 0);
	assert_int_equal(peer_do(&other, WIRE_DROP, 1, 1), 0);
	peer_close(&other);
	close_all(n);
}

/* Send probes of many keys until the connection is full.  Return their number. */
static uint64_t fill_with_probes(struct peer *p)
{
	const uint64_t before = p->tag;
	struct {
		struct wire_header header;
		struct wire_key keys[WIRE_BATCH];
	} m = {.header = {.type = WIRE_PROBE, .count = WIRE_BATCH}};

	assert_int_equal(fcntl(p->fd, F_SETFL, O_NONBLOCK), 0);
	peer_keys(m.keys, 1, WIRE_BATCH);
	m.header.space = p->space;
	do
		m.header.tag = ++p->tag;
	while (peer_raw(p, &m, sizeof(m), -1, 0));
	return p->tag - before - 1;
}

static void many_connections_have_no_more_turns_than_one(void **state)
{
	uint64_t base, before, sent = 0, waiting;
	size_t n = 0, soon = 0;

	(void)state;
	if (!may_become_others())
		skip();
	assert_true(get_in(&other, B));
	assert_int_equal(
		peer_space(&other, "s", DAEMON_LAYOUT, WIRE_SPACE_CREATE, 0777),
		0);
	for (; n < 250; n++) {
		assert_true(get_in(&peers[n], A));
		assert_int_equal(peer_space(&peers[n], "s", "", 0, 0), 0);
	}
	base = daemon_counts(&d).messages;
	for (int round = 0; round < 5; round++) {
		for (size_t i = 0; i < n; i++)
			sent += fill_with_probes(&peers[i]);
		before = daemon_counts(&d).messages;
		waiting = sent + (uint64_t)round - (before - base);
		assert_int_equal(peer_probe(&other, 1), WIRE_ABSENT);
		soon += daemon_counts(&d).messages - before < waiting / 3;
	}
	/* User B's probe waits for at most one turn of user A, which is some
	 * tens of messages.  On a busy machine the test may read the count
	 * late, so one low count is enough. */
	assert_true(soon > 0);
	peer_close(&other);
	close_all(n);
}

/* Send requests for @n spaces with a layout that takes some milliseconds each,
 * without waiting for replies. */
static void make_slowly(struct peer *p, unsigned n)
{
	static char text[60000];
	struct wire_space *space = (struct wire_space *)text;
	size_t at;

	for (unsigned i = 0; i < n; i++) {
		*space = (struct wire_space){.flags = WIRE_SPACE_CREATE};
		at = sizeof(*space);
		at += (size_t)sprintf(text + at, "slow%u", i) + 1;
		at += (size_t)sprintf(text + at, "{\"tensors\":[");
		for (unsigned j = 0; j < 190; j++)
			at += (size_t)sprintf(text + at,
					      "%s{\"name\":\"%0200u\","
					      "\"dtype\":\"U8\","
					      "\"shape\":[1]}",
					      j ? "," : "", j);
		at += (size_t)sprintf(text + at, "]}");
		assert_true(
			peer_send(p,
				  &(struct wire_header){
					  .type = WIRE_SPACE,
					  .count = (uint32_t)(at -
							      sizeof(*space))},
				  text, at, -1) > 0);
	}
}

static uint64_t pending(void)
{
	return kv_accounts_used(kv_cache_accounts(d.cache), KV_FINITE_REQUESTS);
}

static void a_save_waits_for_nobody_elses_layouts(void **state)
{
	(void)state;
	if (!may_become_others())
		skip();
	become(B);
	daemon_peer(&d, &other, 0);
	become(0);
	assert_true(get_in(&peers[0], A));
	make_slowly(&peers[0], 300);
	assert_int_equal(peer_save(&other, 1, 4), 0);
	assert_true(pending() > 100);
	/* Requests of a closed connection are not started. */
	peer_close(&peers[0]);
	for (int i = 0; i < 10000 && pending() > 0; i++)
		usleep(1000);
	assert_int_equal(pending(), 0);
	assert_true(daemon_stats(&d).spaces < 200);
	peer_close(&other);
}

/* Connect a client of @uid with the space @name and room for 16 blocks in its
 * staging. */
static void settle_in(struct peer *p, uint32_t uid, const char *name)
{
	assert_true(get_in(p, uid));
	assert_int_equal(
		peer_space(p, name, DAEMON_LAYOUT, WIRE_SPACE_CREATE, 0700), 0);
	assert_int_equal(peer_staging(p, 16 * DAEMON_PAYLOAD), 0);
}

static int save_patiently(struct peer *p, uint32_t first, uint32_t n)
{
	int r;

	do
		r = peer_save(p, first, n);
	while (r == -EBUSY && usleep(1000) == 0);
	return r;
}

static void others_save_and_read_when_one_reserved_all_it_gets(void **state)
{
	uint32_t n = 0;

	(void)state;
	if (!may_become_others())
		skip();
	settle_in(&peers[0], A, "a");
	while (peer_do(&peers[0], WIRE_RESERVE, n, 1) == 0)
		n++;
	assert_in_range(n, 100, (32 << 20) / DAEMON_PAYLOAD / 2);
	settle_in(&other, B, "b");
	assert_int_equal(save_patiently(&other, 1, 16), 0);
	assert_int_equal(peer_acquire(&other, 1, 16), 16);
	peer_close(&other);
	close_all(1);
}

static void others_save_and_read_when_one_leased_all_it_gets(void **state)
{
	uint32_t n = 0;

	(void)state;
	if (!may_become_others())
		skip();
	settle_in(&peers[0], A, "a");
	while (n < 400 && save_patiently(&peers[0], n, 16) == 0 &&
	       peer_acquire(&peers[0], n, 16) == 16)
		n += 16;
	assert_in_range(n, 100, (32 << 20) / DAEMON_PAYLOAD / 2);
	settle_in(&other, B, "b");
	assert_int_equal(save_patiently(&other, 1, 16), 0);
	assert_int_equal(peer_acquire(&other, 1, 16), 16);
	peer_close(&other);
	close_all(1);
}

/* B's acquire waits for a save while A, the owner, makes the space private; then
 * another fill, in memory of A's private blocks, takes the save's place. */
static void a_waiting_reader_gets_no_memory_that_became_private(void **state)
{
	struct kv_space *space;
	uint64_t tag;

	(void)state;
	if (!may_become_others())
		skip();
	settle_in(&peers[0], A, "a");
	settle_in(&peers[1], A, "a");
	space = kv_space_find(d.cache, "a");
	assert_int_equal(kv_space_chown(d.cache, space, A, 0, 0755), 0);
	assert_true(get_in(&other, B));
	assert_int_equal(peer_space(&other, "a", "", 0, 0), 0);
	assert_int_equal(peer_do(&peers[0], WIRE_RESERVE, 1, 1), 0);
	tag = peer_send_acquire(&other, 1, 1, WIRE_WAIT_SAVING, 0);
	assert_int_equal(peer_reply(&other, tag, 50), -ETIMEDOUT);
	assert_int_equal(kv_space_chown(d.cache, space, A, 0, 0700), 0);
	kv_space_put(space);
	assert_int_equal(peer_do(&peers[1], WIRE_RESERVE, 1, 1), 0);
	assert_int_equal(peer_do(&peers[0], WIRE_DROP, 1, 1), 0);
	assert_int_equal(
		peer_saved(&peers[1], peer_send_saves(&peers[1], 1, 1)), 0);
	assert_int_equal(peer_acquired(&other, tag), 0);
	assert_int_equal(PEER_ITEMS(&other, struct wire_place)->status,
			 -ENOENT);
	assert_int_equal(other.n_segments, 0);
	assert_int_equal(peer_acquire(&peers[0], 1, 1), 1);
	peer_close(&other);
	close_all(2);
}

static void spaces_are_made_no_faster_than_ids_last(void **state)
{
	char name[16];
	unsigned n = 0;
	int r = 0;

	(void)state;
	if (!may_become_others())
		skip();
	assert_true(get_in(&peers[0], A));
	while (r == 0 && n < 2000) {
		snprintf(name, sizeof(name), "n%u", n);
		r = peer_space(&peers[0], name, "", WIRE_SPACE_CREATE, 0700);
		n += r == 0;
	}
	assert_int_equal(r, -EAGAIN);
	assert_in_range(n, 1000, 1900);
	assert_true(get_in(&other, B));
	assert_int_equal(peer_space(&other, "b", "", WIRE_SPACE_CREATE, 0700),
			 0);
	peer_close(&other);
	close_all(1);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(others_and_root_connect_when_some_took_all_they_get),
		TEST(requests_in_flight_are_shared),
		TEST(many_connections_have_no_more_turns_than_one),
		TEST(a_save_waits_for_nobody_elses_layouts),
		TEST(others_save_and_read_when_one_reserved_all_it_gets),
		TEST(others_save_and_read_when_one_leased_all_it_gets),
		TEST(a_waiting_reader_gets_no_memory_that_became_private),
		TEST(spaces_are_made_no_faster_than_ids_last),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
