/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_control_hostile.c - clients that send garbage, hoard resources or never read.
 * After each test another client still works as usual.
 *
 * OWNS      a daemon for all tests, and in it the client that works as usual.
 *
 * LOCKING   none.
 */
#include <dirent.h>
#include <signal.h>

#include "tests/fs/daemon.h"

static struct daemon d;
static struct peer good;
static uint32_t next_key = 1000;

static int start(void **state)
{
	(void)state;
	daemon_start(&d, 0);
	daemon_peer(&d, &good, 0);
	return 0;
}

static int stop(void **state)
{
	(void)state;
	peer_close(&good);
	daemon_stop(&d);
	return 0;
}

static size_t open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	size_t n = 0;

	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

/* Check that the client that keeps to the protocol can save, find, read and
 * release a block. */
static int good_still_works(void **state)
{
	uint32_t key = next_key++;

	(void)state;
	assert_int_equal(peer_save(&good, key, 1), 0);
	assert_int_equal(peer_acquire(&good, key, 1), 1);
	assert_true(peer_right(&good, 0, key));
	assert_true(peer_release(&good, good.tag));
	assert_int_equal(peer_do(&good, WIRE_EVICT, key, 1), 0);
	return daemon_wait_idle(&d) < 0;
}

/* Assert that a message of these bytes, with these descriptors, ends the
 * connection. */
static void ends(bool greet, const void *data, size_t n, size_t n_fds)
{
	uint64_t errors = daemon_counts(&d).protocol_errors;
	struct peer p;

	assert_true(peer_connect(&p, d.path));
	if (greet)
		assert_int_equal(peer_hello(&p), 0);
	assert_true(peer_raw(&p, data, n, STDERR_FILENO, n_fds));
	assert_true(peer_at_end(&p));
	peer_close(&p);
	assert_int_equal(daemon_counts(&d).protocol_errors, errors + 1);
}

static void before_hello_everything_else_ends_the_connection(void **state)
{
	struct wire_header m = {0};

	(void)state;
	for (m.type = 0; m.type < WIRE_TYPE_END + 2; m.type++)
		if (m.type != WIRE_HELLO)
			ends(false, &m, sizeof(m), 0);
}

static int hello(struct peer *p, uint32_t newest, uint32_t oldest)
{
	struct wire_hello hello = {.version = newest, .oldest = oldest};

	assert_true(peer_connect(p, d.path));
	return peer_call(p,
			 &(struct wire_header){.type = WIRE_HELLO, .count = 1},
			 &hello, sizeof(hello), -1);
}

static void versions_without_one_in_common_are_told_and_end(void **state)
{
	const uint32_t wrong[][2] = {
		{WIRE_VERSION + 1, 0},
		{WIRE_VERSION + 2, WIRE_VERSION + 1},
		{WIRE_OLDEST - 1, 0},
		{WIRE_OLDEST - 1, 1},
		/* releases before 0.2 speak versions 2 to 4 of the protocol */
		{4, 2},
		{4, 0},
		{3, 2},
		{2, 2},
		/* the client's oldest version is above its newest */
		{WIRE_VERSION, WIRE_VERSION + 1},
		{UINT32_MAX, UINT32_MAX},
		{0, 0},
	};
	struct peer p;

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(wrong); i++) {
		assert_int_equal(hello(&p, wrong[i][0], wrong[i][1]),
				 -EPROTONOSUPPORT);
		assert_int_equal(PEER_ITEMS(&p, struct wire_hello)->version,
				 WIRE_VERSION);
		assert_int_equal(PEER_ITEMS(&p, struct wire_hello)->oldest,
				 WIRE_OLDEST);
		assert_true(peer_at_end(&p));
		peer_close(&p);
	}
}

static void the_newest_version_in_common_is_spoken(void **state)
{
	const uint32_t right[][3] = {
		{WIRE_VERSION, 0, WIRE_VERSION},
		{WIRE_VERSION, WIRE_OLDEST, WIRE_VERSION},
		{WIRE_VERSION + 1, WIRE_VERSION, WIRE_VERSION},
		{UINT32_MAX, 1, WIRE_VERSION},
		{WIRE_OLDEST, 1, WIRE_OLDEST},
	};
	struct peer p;

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(right); i++) {
		assert_int_equal(hello(&p, right[i][0], right[i][1]), 0);
		assert_int_equal(PEER_ITEMS(&p, struct wire_hello)->version,
				 right[i][2]);
		assert_int_equal(
			peer_call(&p, &(struct wire_header){.type = WIRE_PROBE},
				  NULL, 0, -1),
			0);
		peer_close(&p);
	}
}

/* A LIST that asks for more keys than fit into a message is refused. */
static void a_list_is_asked_for_in_measure(void **state)
{
	const uint32_t wrong[] = {0, 63, WIRE_BATCH + 1, UINT32_MAX};
	struct wire_list list = {.cursor = UINT64_MAX};
	struct wire_header header = {.type = WIRE_LIST, .count = 1};
	struct peer p;

	(void)state;
	assert_true(peer_connect(&p, d.path));
	assert_int_equal(peer_hello(&p), 0);
	assert_int_equal(peer_call(&p, &header, &list, sizeof(list), -1),
			 -ENOENT);
	assert_int_equal(peer_space(&p, "listed", "", WIRE_SPACE_CREATE, 0700),
			 0);
	header.space = p.space;
	for (size_t i = 0; i < KV_ARRAY_LEN(wrong); i++) {
		list.max = wrong[i];
		assert_int_equal(
			peer_call(&p, &header, &list, sizeof(list), -1),
			-EINVAL);
	}
	list.max = WIRE_BATCH;
	assert_int_equal(peer_call(&p, &header, &list, sizeof(list), -1), 0);
	assert_int_equal(PEER_ITEMS(&p, struct wire_list)->cursor, 0);
	list.lost = 1;
	assert_int_equal(peer_call(&p, &header, &list, sizeof(list), -1),
			 -EINVAL);
	peer_close(&p);
}

static void a_second_hello_ends_the_connection(void **state)
{
	struct {
		struct wire_header header;
		struct wire_hello hello;
	} m = {{.type = WIRE_HELLO, .count = 1}, {.version = WIRE_VERSION}};

	(void)state;
	ends(true, &m, sizeof(m), 0);
}

static void an_unknown_type_or_a_reply_ends_the_connection(void **state)
{
	struct wire_header m = {.type = WIRE_TYPE_END};
	struct wire_header s = {.type = WIRE_STATS, .flags = WIRE_REPLY};

	(void)state;
	ends(true, &m, sizeof(m), 0);
	m.type = 0xffff;
	ends(true, &m, sizeof(m), 0);
	m.type = WIRE_SEGMENT;
	ends(true, &m, sizeof(m), 0);
	m.type = WIRE_RETIRE;
	ends(true, &m, sizeof(m), 0);
	ends(true, &s, sizeof(s), 0);
	s.flags = 0x8000;
	ends(true, &s, sizeof(s), 0);
}

static void a_length_that_is_not_exact_ends_the_connection(void **state)
{
	static struct peer_message m;
	size_t item;

	(void)state;
	for (size_t n = 1; n < sizeof(m.header); n++)
		ends(true, &m, n, 0);
	for (unsigned type = WIRE_HELLO; type < WIRE_SEGMENT; type++) {
		m.header = (struct wire_header){.type = (uint16_t)type,
						.count = 2};
		item = type == WIRE_SAVE ? sizeof(struct wire_save)
					 : sizeof(struct wire_key);
		ends(true, &m, sizeof(m.header), 0);
		ends(true, &m, sizeof(m.header) + 2 * item - 1, 0);
		ends(true, &m, sizeof(m.header) + 2 * item + 1, 0);
		m.header.count = UINT32_MAX;
		ends(true, &m, sizeof(m.header) + 2 * item, 0);
		ends(true, &m, sizeof(m), 0);
	}
}

static void flags_that_are_none_end_the_connection(void **state)
{
	static const struct {
		uint16_t type, flags;
	} wrong[] = {
		{WIRE_SAVE, WIRE_HOLD},	   {WIRE_SAVE, 32},
		{WIRE_RESERVE, 32},	   {WIRE_RESERVE, WIRE_WAIT_SAVING},
		{WIRE_ACQUIRE, WIRE_HOLD}, {WIRE_DROP, 16},
	};
	static struct peer_message m;

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(wrong); i++) {
		m.header = (struct wire_header){.type = wrong[i].type,
						.flags = wrong[i].flags};
		ends(true, &m, sizeof(m.header), 0);
	}
}

static void more_items_than_a_batch_end_the_connection(void **state)
{
	static struct peer_message m;
	size_t n = WIRE_BATCH + 1;

	(void)state;
	m.header =
		(struct wire_header){.type = WIRE_PROBE, .count = (uint32_t)n};
	peer_keys((struct wire_key *)m.items, 0, WIRE_BATCH + 1);
	ends(true, &m, sizeof(m.header) + n * sizeof(struct wire_key), 0);
}

static void a_message_that_is_too_long_ends_the_connection(void **state)
{
	static uint8_t m[WIRE_MAX * 2];

	(void)state;
	((struct wire_header *)m)->type = WIRE_SPACE;
	((struct wire_header *)m)->count = WIRE_MAX;
	ends(true, m, WIRE_MAX + 1, 0);
	ends(true, m, sizeof(m), 0);
}

static void a_key_of_a_wrong_length_ends_the_connection(void **state)
{
	static const uint16_t types[] = {WIRE_PROBE, WIRE_ACQUIRE, WIRE_EVICT,
					 WIRE_PIN,   WIRE_FLUSH,   WIRE_DROP};
	static const uint32_t lengths[] = {0, 1, 15, 17, 31, 33, UINT32_MAX};
	struct {
		struct wire_header header;
		struct wire_key key;
	} m = {0};

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(types); i++)
		for (size_t j = 0; j < KV_ARRAY_LEN(lengths); j++) {
			m.header.type = types[i];
			m.header.count = 1;
			m.header.space = good.space;
			m.key.len = lengths[j];
			ends(true, &m, sizeof(m), 0);
		}
}

static void descriptors_where_none_belong_are_closed(void **state)
{
	struct wire_header stats = {.type = WIRE_STATS};
	struct {
		struct wire_header header;
		struct wire_staging staging;
	} staging = {{.type = WIRE_STAGING, .count = 1}, {4096}};
	size_t before = open_fds();

	(void)state;
	for (int i = 0; i < 4; i++) {
		ends(true, &stats, sizeof(stats), 1);
		ends(true, &stats, sizeof(stats), 253);
		ends(true, &stats, 0, 1);
		ends(true, &staging, sizeof(staging), 0);
		ends(true, &staging, sizeof(staging), 2);
		ends(true, &staging, sizeof(staging), 253);
		ends(false, &stats, 1, 100);
	}
	daemon_wait_connections(&d, 1);
	/* A leak would cost hundreds of descriptors; the growing arena may cost
	 * a few. */
	assert_true(open_fds() < before + 8);
}

/* A client that goes on must not save from the memory before. */
static void a_refused_staging_leaves_the_client_without_any(void **state)
{
	struct wire_header like = {.type = WIRE_STAGING, .count = 1};
	struct wire_staging bytes = {4096};
	int file = open("/proc/self/exe", O_RDONLY);
	int dir = open("/", O_RDONLY | O_DIRECTORY);
	struct peer p;
	size_t before;

	(void)state;
	daemon_peer(&d, &p, 0);
	assert_int_equal(peer_save(&p, 60, 1), 0);
	before = open_fds();
	assert_int_equal(peer_call(&p, &like, &bytes, sizeof(bytes), file),
			 -EMEDIUMTYPE);
	assert_int_equal(peer_call(&p, &like, &bytes, sizeof(bytes), dir),
			 -EMEDIUMTYPE);
	assert_true(open_fds() <= before + 4);
	assert_int_equal(peer_save(&p, 61, 1), -EINVAL);
	assert_int_equal(peer_probe(&p, 61), WIRE_ABSENT);
	peer_close(&p);
	close(file);
	close(dir);
}

static void a_tag_in_use_ends_the_connection(void **state)
{
	struct wire_header m = {.type = WIRE_STATS};
	struct peer p;

	(void)state;
	assert_int_equal(peer_save(&good, 1, 1), 0);
	daemon_peer(&d, &p, 0);
	assert_int_equal(peer_acquire(&p, 1, 1), 1);
	m.tag = p.tag;
	assert_true(peer_raw(&p, &m, sizeof(m), -1, 0));
	assert_true(peer_at_end(&p));
	peer_close(&p);
	assert_int_equal(peer_do(&good, WIRE_EVICT, 1, 1), 0);
}

static void releasing_what_was_never_had_ends_the_connection(void **state)
{
	struct wire_header m = {.type = WIRE_RELEASE, .tag = 77};
	struct {
		struct wire_header header;
		struct wire_segment segment;
	} u = {{.type = WIRE_UNMAPPED, .count = 1}, {.id = 1}};

	(void)state;
	ends(true, &m, sizeof(m), 0);
	ends(true, &u, sizeof(u), 0);
}

static void wait_for_leases(uint64_t n)
{
	for (int i = 0; i < 20000 && daemon_stats(&d).leases != n; i++)
		usleep(1000);
	assert_int_equal(daemon_stats(&d).leases, n);
}

static void one_that_is_cut_off_keeps_its_leases_until_it_goes(void **state)
{
	struct wire_header bad = {.type = WIRE_TYPE_END};
	struct peer p;

	(void)state;
	assert_int_equal(peer_save(&good, 1, 2), 0);
	daemon_peer(&d, &p, 0);
	assert_int_equal(peer_do(&p, WIRE_RESERVE, 3, 1), 0);
	assert_int_equal(peer_acquire(&p, 1, 2), 2);
	assert_true(peer_raw(&p, &bad, sizeof(bad), -1, 0));
	assert_true(peer_at_end(&p));
	/* The client's reservation is dropped.  The client's leases stay,
	 * because it may still be copying. */
	assert_int_equal(peer_probe(&good, 3), WIRE_ABSENT);
	assert_int_equal(daemon_stats(&d).leases, 2);
	/* The daemon reads no further messages of the client. */
	for (int i = 0; i < 100; i++)
		assert_true(peer_raw(&p, &bad, sizeof(bad), STDERR_FILENO, 1));
	peer_close(&p);
	assert_true(daemon_wait_idle(&d) >= 0);
	assert_int_equal(peer_do(&good, WIRE_EVICT, 1, 2), 0);
}

/* The blocks of a first part of the answer stay too. */
static void one_that_is_cut_off_keeps_a_part_of_its_leases(void **state)
{
	const uint32_t first = 2000, n = 64, saving = first + n;
	struct wire_header bad = {.type = WIRE_TYPE_END};
	struct peer p;
	uint64_t tag;

	(void)state;
	for (uint32_t i = 0; i < n; i += 16)
		assert_int_equal(peer_save(&good, first + i, 16), 0);
	assert_int_equal(peer_do(&good, WIRE_RESERVE, saving, 2), 0);
	daemon_peer(&d, &p, 0);
	tag = peer_send_acquire(&p, first, n + 2, WIRE_PARTS | WIRE_WAIT_SAVING,
				0);
	/* The daemon sends a part when a block arrives after 4 MiB of others. */
	wait_for_leases(n);
	assert_int_equal(peer_saved(&good, peer_send_saves(&good, saving, 1)),
			 0);
	assert_int_equal(peer_acquired(&p, tag), n + 1);
	assert_int_equal(PEER_HEADER(&p)->status, WIRE_MORE);
	assert_true(peer_raw(&p, &bad, sizeof(bad), -1, 0));
	assert_true(peer_at_end(&p));
	for (int i = 0; i < 100; i++) {
		assert_int_equal(daemon_stats(&d).leases, n + 1);
		usleep(1000);
	}
	peer_close(&p);
	assert_int_equal(peer_do(&good, WIRE_DROP, saving + 1, 1), 0);
	assert_true(daemon_wait_idle(&d) >= 0);
	assert_int_equal(peer_do(&good, WIRE_EVICT, first, n + 1), 0);
}

/* Return the pid of this program's youngest child. */
static pid_t youngest(void)
{
	char path[64];
	int pid = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/children", getpid());
	f = fopen(path, "re");
	while (fscanf(f, "%d", &pid) == 1)
		;
	fclose(f);
	return pid;
}

/* A client whose message is lost, because the process of the gate that forks is
 * dead, is alive and may be copying. */
static void one_whose_message_is_lost_keeps_its_leases(void **state)
{
	static struct daemon other;
	char path[64];
	struct peer p;
	pid_t gate;
	int r;

	(void)state;
	daemon_start(&other, 0);
	gate = youngest();
	daemon_peer(&other, &p, 0);
	assert_int_equal(peer_save(&p, 1, 2), 0);
	assert_int_equal(peer_acquire(&p, 1, 2), 2);
	kill(gate, SIGKILL);
	snprintf(path, sizeof(path), "/proc/%d/fd/3", gate);
	while (access(path, F_OK) == 0)
		usleep(1000);
	/* A process that the gate has forked for a message before may still
	 * receive this one. */
	do {
		munmap(p.staging, p.staging_bytes);
		r = peer_staging(&p, 4096);
	} while (r == 0);
	assert_int_equal(r, -EPIPE);
	for (int i = 0; i < 100; i++) {
		assert_int_equal(daemon_stats(&other).leases, 2);
		usleep(1000);
	}
	peer_close(&p);
	assert_true(daemon_wait_idle(&other) >= 0);
	daemon_wait_connections(&other, 0);
	daemon_stop(&other);
}

static void one_that_never_reads_is_cut_off(void **state)
{
	struct wire_header m = {.type = WIRE_STATS};
	uint64_t slow = daemon_counts(&d).slow;
	struct pollfd writable = {.events = POLLOUT};
	struct peer p;

	(void)state;
	daemon_peer(&d, &p, 0);
	writable.fd = p.fd;
	for (int i = 0; i < 100000 && daemon_counts(&d).slow == slow; i++) {
		m.tag = 1000 + (uint64_t)i;
		(void)poll(&writable, 1, 1000);
		if (!peer_raw(&p, &m, sizeof(m), -1, 0))
			break;
	}
	assert_int_equal(daemon_counts(&d).slow, slow + 1);
	peer_close(&p);
}

static void waiting_acquires_are_limited(void **state)
{
	struct peer p;
	struct wire_place *places = PEER_ITEMS(&p, struct wire_place);
	uint64_t tag = 0;

	(void)state;
	daemon_peer(&d, &p, 0);
	assert_int_equal(peer_do(&good, WIRE_RESERVE, 1, 1), 0);
	for (int i = 0; i <= WIRE_PENDING_MAX; i++)
		tag = peer_send_acquire(&p, 1, 1, WIRE_WAIT_SAVING, 0);
	assert_int_equal(peer_acquired(&p, tag), 0);
	assert_int_equal(places[0].status, -ENOLCK);
	peer_close(&p);
	assert_int_equal(peer_do(&good, WIRE_DROP, 1, 1), 0);
}

#define HOSTILE_TEST(f) cmocka_unit_test_teardown(f, good_still_works)

int main(void)
{
	const struct CMUnitTest tests[] = {
		HOSTILE_TEST(before_hello_everything_else_ends_the_connection),
		HOSTILE_TEST(versions_without_one_in_common_are_told_and_end),
		HOSTILE_TEST(the_newest_version_in_common_is_spoken),
		HOSTILE_TEST(a_list_is_asked_for_in_measure),
		HOSTILE_TEST(a_second_hello_ends_the_connection),
		HOSTILE_TEST(an_unknown_type_or_a_reply_ends_the_connection),
		HOSTILE_TEST(a_length_that_is_not_exact_ends_the_connection),
		HOSTILE_TEST(flags_that_are_none_end_the_connection),
		HOSTILE_TEST(more_items_than_a_batch_end_the_connection),
		HOSTILE_TEST(a_message_that_is_too_long_ends_the_connection),
		HOSTILE_TEST(a_key_of_a_wrong_length_ends_the_connection),
		HOSTILE_TEST(descriptors_where_none_belong_are_closed),
		HOSTILE_TEST(a_refused_staging_leaves_the_client_without_any),
		HOSTILE_TEST(a_tag_in_use_ends_the_connection),
		HOSTILE_TEST(releasing_what_was_never_had_ends_the_connection),
		HOSTILE_TEST(
			one_that_is_cut_off_keeps_its_leases_until_it_goes),
		HOSTILE_TEST(one_that_is_cut_off_keeps_a_part_of_its_leases),
		HOSTILE_TEST(one_whose_message_is_lost_keeps_its_leases),
		HOSTILE_TEST(one_that_never_reads_is_cut_off),
		HOSTILE_TEST(waiting_acquires_are_limited),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
