/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mooncake URL            run the tests of every backend
 * mooncake URL PID kill   kill the server's process PID during operations
 * mooncake URL PID stop   stop it with SIGSTOP: no call may wait, and the
 *                         landing memory must be given back
 *
 * OWNS      only the objects that it puts.
 *
 * LOCKING   none.
 */
#include <signal.h>
#include <sys/wait.h>

#include "tests/cache/backend.h"

#define BATCH 8
#define BYTES (512u << 10)
#define ROUNDS 30

static const char *url;
static pid_t victim;
static int how;
static uint8_t data[BATCH][BYTES], room[BATCH][BYTES];
static struct kv_remote_op ops[BATCH];
static uint64_t longest_ns; /* longest time of a call that must not wait */

static int open_it(void **state)
{
	char *why = NULL;

	(void)state;
	driver = &kv_remote_mooncake;
	if (driver->open(url, &backend, &why) == 0)
		return 0;
	fprintf(stderr, "%s\n", why);
	return -1;
}

static int close_it(void **state)
{
	(void)state;
	return driver->close(backend);
}

#define TIMED(call)                                                   \
	do {                                                          \
		const uint64_t begun = kv_now_ns();                   \
		call;                                                 \
		longest_ns = KV_MAX(longest_ns, kv_now_ns() - begun); \
	} while (0)

static void submit_batch(enum kv_remote_call call)
{
	struct kv_remote_op *all[BATCH];

	for (size_t i = 0; i < BATCH; i++) {
		char name[100];

		snprintf(name, sizeof(name), "9/faults/%032zx", i);
		ops[i] = op_of(call, name);
		ops[i].data = call == KV_REMOTE_PUT ? data[i] : room[i];
		ops[i].room = ops[i].length = BYTES;
		ops[i].digest = kv_digest_of(data[i], BYTES);
		all[i] = &ops[i];
	}
	TIMED(driver->submit(backend, all, BATCH));
}

static unsigned good_of_batch(void)
{
	unsigned good = 0;

	for (size_t i = 0; i < BATCH; i++) {
		if (ops[i].status)
			continue;
		good++;
		if (ops[i].call == KV_REMOTE_GET)
			assert_memory_equal(room[i], data[i], BYTES);
	}
	return good;
}

/* Cancel the batch, and return the number of operations that had succeeded. */
static unsigned end_batch(void)
{
	struct kv_remote_op *ended[BATCH];
	size_t n = 0, some;

	usleep(50000);
	for (size_t i = 0; i < BATCH; i++)
		TIMED(driver->cancel(backend, &ops[i]));
	/* A copy that is under way ends by itself. */
	while (n < BATCH) {
		struct pollfd fd = {driver->fd(backend), POLLIN, 0};

		TIMED(assert_int_equal(poll(&fd, 1, 1000), 1));
		TIMED(some = driver->reap(backend, ended, BATCH));
		n += some;
	}
	return good_of_batch();
}

static void test_a_fault_holds_up_nobody(void **state)
{
	unsigned good = 0;

	(void)state;
	for (size_t i = 0; i < BATCH; i++)
		memset(data[i], (int)i + 1, BYTES);
	submit_batch(KV_REMOTE_PUT);
	await(BATCH);
	assert_int_equal(good_of_batch(), BATCH);
	for (int i = 0; i < ROUNDS; i++) {
		if (i == 5)
			assert_int_equal(kill(victim, how), 0);
		submit_batch(i % 3 ? KV_REMOTE_GET : KV_REMOTE_PUT);
		good += end_batch();
	}
	printf("%u of %u in time; longest call %.1f ms\n", good, BATCH * ROUNDS,
	       (double)longest_ns / 1e6);
	assert_true(longest_ns < 1000000000u);
}

/* The landing memory holds one batch: an answer, or the helper's end, frees it.
 * After a failure, the backend waits before it asks the helper again. */
static void test_memory_comes_back(void **state)
{
	(void)state;
	if (how == SIGSTOP)
		assert_int_equal(kill(victim, SIGCONT), 0);
	for (int i = 0; i < 400; i++) {
		submit_batch(KV_REMOTE_GET);
		await(BATCH);
		if (how == SIGKILL || good_of_batch() == BATCH)
			return;
		usleep(200000);
	}
	fail();
}

int main(int argc, char **argv)
{
	const struct CMUnitTest all[] = {BACKEND_TESTS};
	const struct CMUnitTest faults[] = {
		cmocka_unit_test(test_a_fault_holds_up_nobody),
		cmocka_unit_test(test_memory_comes_back),
	};
	int r;

	if (argc != 2 && argc != 4)
		return 2;
	url = argv[1];
	if (argc == 4) {
		victim = (pid_t)strtol(argv[2], NULL, 10);
		how = strcmp(argv[3], "stop") == 0 ? SIGSTOP : SIGKILL;
		r = cmocka_run_group_tests_name("faults", faults, open_it,
						close_it);
	} else {
		r = cmocka_run_group_tests_name("backend", all, open_it,
						close_it);
	}
	if (waitpid(-1, NULL, __WALL | WNOHANG) != -1 || errno != ECHILD) {
		fprintf(stderr, "a child is left\n");
		r = 1;
	}
	return r;
}
