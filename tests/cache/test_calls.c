/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_calls.c - run a script on a store from open to close: each of its calls
 * of LMDB and of the system fails once; and from each call on all calls fail,
 * until the fault is over.
 */
#include "tests/cache/script.h"
#include "tests/calls.h"

/* Open the store, run the script and close.  Return whether it could be
 * opened. */
static bool live(struct script *t)
{
	int r = small_open(&t->s);

	if (r == 0)
		script_steps(t);
	else
		must(t->s.cache || t->s.why);
	if (t->s.cache)
		must(small_close(&t->s) == 0);
	return r == 0;
}

static void run(int error, unsigned from, unsigned n)
{
	int fds = small_fds();
	struct script t;

	memset(&t, 0, sizeof(t));
	small_new(&t.s);
	t.s.config.io_retry = 5000000;
	inject_arm(error, from, n);
	live(&t);
	inject_disarm();
	must(small_fds() == fds);
	small_must_open(&t.s);
	script_verify(&t);
	/* Forget saves and removals that the outage has undone: they were not
	 * durable. */
	for (unsigned i = 0; i < BLOCKS; i++) {
		t.saved[i] = small_view(&t.s, i, BYTES) == 0;
		t.removed[i] = t.gone[i];
	}
	script_recovers(&t);
	script_end(&t);
	exit(0);
}

/* Run the script while calls fail, but end the fault before the store is
 * closed. */
static void outage(int error, unsigned from, unsigned n)
{
	struct script t;

	memset(&t, 0, sizeof(t));
	small_new(&t.s);
	t.s.config.io_retry = 5000000;
	small_must_open(&t.s);
	inject_arm(error, from, n);
	script_steps(&t);
	inject_disarm();
	script_recovers(&t);
	script_end(&t);
	exit(0);
}

static unsigned sites(void)
{
	struct script t;
	int pipes[2];
	unsigned n = 0;
	pid_t pid;

	assert_int_equal(pipe(pipes), 0);
	pid = fork();
	if (pid == 0) {
		memset(&t, 0, sizeof(t));
		small_new(&t.s);
		inject_arm(0, 0, 0);
		must(live(&t));
		n = (unsigned)inject.seen;
		small_remove(&t.s);
		exit(write(pipes[1], &n, sizeof(n)) != sizeof(n));
	}
	assert_int_equal(read(pipes[0], &n, sizeof(n)), sizeof(n));
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	close(pipes[0]);
	close(pipes[1]);
	return n;
}

static void each_call_fails_once(void **state)
{
	const unsigned end = sites();
	struct batch batch = {0};

	(void)state;
	assert_true(end > 100);
	for (unsigned n = 0; n < end; n++) {
		if (batch_fork(&batch, "ENOSPC,", n))
			run(ENOSPC, n, 1);
		if (batch_fork(&batch, "EIO, without a restart,", n))
			outage(EIO, n, 1);
	}
	batch_end(&batch);
	print_message("F1: %u calls x 2 errors = %u runs\n", end, batch.runs);
}

static void from_each_call_on_all_fail_until_the_fault_ends(void **state)
{
	const unsigned end = sites();
	struct batch batch = {0};

	(void)state;
	for (unsigned n = 0; n < end; n += 8) {
		if (batch_fork(&batch, "outage, EIO,", n))
			outage(EIO, n, UINT32_MAX);
		if (batch_fork(&batch, "outage, ENOSPC,", n + 1))
			outage(ENOSPC, n + 1, UINT32_MAX);
		if (batch_fork(&batch, "to the end, EIO,", n + 2))
			run(EIO, n + 2, UINT32_MAX);
	}
	batch_end(&batch);
	print_message("F8: %u outages\n", batch.runs);
}

static bool is_pinned(struct small *s, unsigned n)
{
	struct kv_block *block = small_get(s, n);
	bool pinned;

	must(block);
	pinned = kv_block_stat(s->cache, block).pinned;
	kv_block_put(s->cache, block);
	return pinned;
}

static void a_pin_that_is_not_recorded_fails_the_flush(void **state)
{
	struct kv_block *block;
	struct script t;

	(void)state;
	memset(&t, 0, sizeof(t));
	small_new(&t.s);
	t.s.config.io_retry = 5000000;
	small_must_open(&t.s);
	script_save(&t, 0, 2);
	script_sync(&t);
	inject_arm(EIO, 0, UINT32_MAX);
	block = small_get(&t.s, 1);
	must(block);
	assert_int_equal(kv_block_pin(t.s.cache, block, true), 0);
	kv_block_put(t.s.cache, block);
	assert_int_equal(kv_space_sync(t.s.cache, t.s.space), -EIO);
	assert_int_equal(kv_space_sync(t.s.cache, t.s.space), -EIO);
	inject_disarm();
	assert_int_equal(kv_space_sync(t.s.cache, t.s.space), 0);
	must(small_close(&t.s) == 0);
	small_must_open(&t.s);
	assert_true(is_pinned(&t.s, 1));
	assert_false(is_pinned(&t.s, 0));
	must(small_close(&t.s) == 0);
	small_remove(&t.s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_pin_that_is_not_recorded_fails_the_flush),
		cmocka_unit_test(each_call_fails_once),
		cmocka_unit_test(
			from_each_call_on_all_fail_until_the_fault_ends),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
