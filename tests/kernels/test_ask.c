/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of the library whose answers are wrong, late or missing. */
#include <fcntl.h>

#include "tests/kernels/impostor.h"

enum mode {
	HONEST,
	ENDING,
	GONE,
	LATE,
	WRONG_TAG,
	TOO_SHORT,
	TOO_LONG,
	NONSENSE
};

static void answer(struct impostor *i, int fd, struct kv_packet *packet)
{
	uint8_t states[600] = {0};
	uint32_t count = packet->header.count;

	if (packet->header.type == WIRE_SPACE && i->mode == ENDING) {
		packet->header.status = -ECANCELED;
		impostor_reply(fd, packet, NULL, 0, 0);
		return;
	}
	if (packet->header.type == WIRE_SPACE) {
		impostor_space(fd, packet);
		return;
	}
	if (packet->header.type != WIRE_PROBE)
		return;
	memset(states, i->mode == NONSENSE ? 200 : WIRE_DRAM, sizeof(states));
	i->hang_up = i->mode == GONE;
	if (i->mode == LATE)
		usleep(1300000);
	if (i->mode == WRONG_TAG)
		packet->header.tag++;
	if (i->mode == TOO_SHORT)
		count--;
	if (i->mode == TOO_LONG)
		count++;
	impostor_reply(fd, packet, states, count, count);
}

static long probe(struct impostor *i, kvfs_space *space, uint8_t *ret_state)
{
	kvfs_key keys[2] = {{.len = 16}, {.len = 32}};
	kvfs_query query = {space, keys, 2};
	uint8_t states[2] = {9, 9};
	long n = kvfs_probe(&query, 1, states);

	(void)i;
	*ret_state = states[1];
	return n;
}

static void misses_then_recovers(struct impostor *i, enum mode mode)
{
	kvfs_session *session;
	kvfs_space *space;
	uint8_t state;
	int k;

	i->mode = HONEST;
	impostor_start(i, answer);
	assert_int_equal(kvfs_open(i->path, &session), 0);
	assert_int_equal(kvfs_space_open(session, "s", NULL, 0, &space), 0);
	assert_int_equal(probe(i, space, &state), 2);
	assert_int_equal(state, KVFS_DRAM);
	i->mode = (int)mode;
	assert_int_equal(probe(i, space, &state), 0);
	assert_int_equal(state, KVFS_ABSENT);
	i->mode = HONEST;
	/* After a time-out the library does not ask the daemon again for a
	 * second. */
	for (k = 0; mode == LATE && k < 600 && probe(i, space, &state) != 2;
	     k++)
		usleep(50000);
	assert_int_equal(probe(i, space, &state), 2);
	kvfs_space_close(space);
	kvfs_close(session);
}

static void a_connection_closed_in_between_is_made_anew(void **state)
{
	struct impostor *i = *state;
	kvfs_session *session;
	kvfs_space *space;
	uint8_t now;

	i->mode = GONE;
	impostor_start(i, answer);
	assert_int_equal(kvfs_open(i->path, &session), 0);
	assert_int_equal(kvfs_space_open(session, "s", NULL, 0, &space), 0);
	assert_int_equal(probe(i, space, &now), 2);
	assert_int_equal(probe(i, space, &now), 2);
	assert_int_equal(kvfs_connected(session), 1);
	kvfs_space_close(space);
	kvfs_close(session);
}

/* If a daemon that ends cancels a request for a block, the block does not count
 * as absent. */
static void a_daemon_that_ends_has_not_said_that_a_block_is_absent(void **state)
{
	struct impostor *i = *state;
	kvfs_session *session;
	kvfs_space *space;

	i->mode = ENDING;
	impostor_start(i, answer);
	assert_int_equal(kvfs_open(i->path, &session), 0);
	assert_int_equal(kvfs_space_open(session, "s", NULL, 0, &space),
			 -ENOTCONN);
	kvfs_close(session);
}

static void a_late_reply_is_not_taken_for_the_next_one(void **state)
{
	misses_then_recovers(*state, LATE);
}

static void a_reply_with_another_tag_is_a_miss(void **state)
{
	misses_then_recovers(*state, WRONG_TAG);
}

static void a_reply_with_too_few_states_is_a_miss(void **state)
{
	misses_then_recovers(*state, TOO_SHORT);
}

static void a_reply_with_too_many_states_is_a_miss(void **state)
{
	misses_then_recovers(*state, TOO_LONG);
}

static void a_state_that_there_is_not_is_a_miss(void **state)
{
	misses_then_recovers(*state, NONSENSE);
}

/* Redirect standard error to @path. */
static int divert(const char *path)
{
	int before = dup(STDERR_FILENO);
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	fflush(stderr);
	dup2(fd, STDERR_FILENO);
	close(fd);
	return before;
}

static void put_back(int before)
{
	fflush(stderr);
	dup2(before, STDERR_FILENO);
	close(before);
}

static void wait_for_connections(struct impostor *i, int n)
{
	for (int k = 0; k < 3000 && i->connections < n; k++)
		usleep(10000);
	assert_true(i->connections >= n);
}

static void
a_daemon_of_another_version_is_named_once_and_no_miss_alone(void **s)
{
	struct impostor *i = *s;
	char said[120], text[4000] = "", versions[64];
	kvfs_session *session;
	uint64_t n = 9;
	FILE *f;
	int before;

	i->strict = true;
	i->version = WIRE_VERSION + 3;
	i->oldest = WIRE_VERSION + 2;
	impostor_start(i, answer);
	snprintf(said, sizeof(said), "%s/said", i->dir);
	before = divert(said);
	assert_int_equal(kvfs_open(i->path, &session), 0);
	wait_for_connections(i, 5);
	put_back(before);
	assert_int_equal(kvfs_connection(session, &n), -EPROTONOSUPPORT);
	assert_int_equal(n, 0);
	assert_int_equal(kvfs_connected(session), 0);
	f = fopen(said, "r");
	assert_true(fread(text, 1, sizeof(text) - 1, f) > 0);
	fclose(f);
	unlink(said);
	assert_ptr_equal(strchr(text, '\n'), strrchr(text, '\n'));
	snprintf(versions, sizeof(versions), " %u to %u ", WIRE_VERSION + 2,
		 WIRE_VERSION + 3);
	assert_non_null(strstr(text, versions));
	snprintf(versions, sizeof(versions), " %u to %u:", WIRE_OLDEST,
		 WIRE_VERSION);
	assert_non_null(strstr(text, versions));
	assert_non_null(strstr(text, i->path));

	/* Replace the daemon by one that speaks the library's version of the
	 * protocol. */
	i->strict = false;
	i->oldest = WIRE_OLDEST;
	i->version = WIRE_VERSION;
	for (int k = 0; k < 3000 && kvfs_connection(session, &n) != 1; k++)
		usleep(10000);
	assert_int_equal(kvfs_connection(session, &n), 1);
	assert_int_equal(n, 1);
	kvfs_close(session);
}

static void nobody_there_is_no_refusal(void **state)
{
	kvfs_session *session;

	(void)state;
	assert_int_equal(kvfs_open("/nonexistent/control", &session), 0);
	assert_int_equal(kvfs_connection(session, NULL), 0);
	kvfs_close(session);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, impostor_setup, impostor_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(a_connection_closed_in_between_is_made_anew),
		test(a_daemon_that_ends_has_not_said_that_a_block_is_absent),
		test(a_daemon_of_another_version_is_named_once_and_no_miss_alone),
		test(nobody_there_is_no_refusal),
		test(a_late_reply_is_not_taken_for_the_next_one),
		test(a_reply_with_another_tag_is_a_miss),
		test(a_reply_with_too_few_states_is_a_miss),
		test(a_reply_with_too_many_states_is_a_miss),
		test(a_state_that_there_is_not_is_a_miss),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
