/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_faults.c - run a script on a store: each of its disk requests fails once,
 * in every way; and from each request on all requests fail until the end.
 */
#include "tests/cache/faulty.h"
#include "tests/cache/script.h"

static void begin(struct script *t)
{
	memset(t, 0, sizeof(*t));
	small_new(&t->s);
	t->s.config.io = &disk_backend;
	t->s.config.io_retry = 5000000;
	small_must_open(&t->s);
}

/* Return how many requests the script makes if no request fails. */
static unsigned sites(void)
{
	struct script t;
	int pipes[2];
	unsigned n = 0;
	pid_t pid;

	assert_int_equal(pipe(pipes), 0);
	pid = fork();
	if (pid == 0) {
		begin(&t);
		disk_misbehave(FAULT_NONE, 1, 0);
		script_steps(&t);
		n = (unsigned)inject.seen;
		script_recovers(&t);
		script_end(&t);
		exit(write(pipes[1], &n, sizeof(n)) != sizeof(n));
	}
	assert_int_equal(read(pipes[0], &n, sizeof(n)), sizeof(n));
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	close(pipes[0]);
	close(pipes[1]);
	return n;
}

static void run(enum fault fault, unsigned from, unsigned n)
{
	int fds = small_fds();
	struct script t;

	begin(&t);
	t.may_lose = n > 1 && fault >= FAULT_SHORT_0 && fault <= FAULT_GARBAGE;
	disk_misbehave(fault, from, n);
	script_steps(&t);
	disk_behave();
	script_recovers(&t);
	script_end(&t);
	must(small_fds() == fds);
	exit(0);
}

static void each_request_fails_once_in_every_way(void **state)
{
	const unsigned end = sites();
	struct batch batch = {0};

	(void)state;
	assert_true(end > 20);
	for (unsigned n = 1; n <= end; n++)
		for (enum fault f = FAULT_EIO; f < FAULT_NEVER; f++)
			if (batch_fork(&batch, fault_names[f], n))
				run(f, n, 1);
	batch_end(&batch);
	print_message("F1: %u sites x %u faults = %u runs\n", end,
		      FAULT_NEVER - FAULT_EIO, batch.runs);
}

static void from_each_request_on_all_fail_until_the_disk_is_well(void **state)
{
	static const enum fault faults[] = {FAULT_EIO, FAULT_ENOSPC,
					    FAULT_SHORT_0, FAULT_GARBAGE};
	const unsigned end = sites();
	struct batch batch = {0};

	(void)state;
	for (unsigned n = 1; n <= end; n += 3)
		for (unsigned f = 0; f < KV_ARRAY_LEN(faults); f++)
			if (batch_fork(&batch, fault_names[faults[f]], n))
				run(faults[f], n, UINT32_MAX / 2);
	batch_end(&batch);
	print_message("F1: %u outages\n", batch.runs);
}

#define CHURN_BYTES 300000u
#define CHURN_BLOCKS 200u

/* Save, read and remove blocks so that both tiers evict, while one request in
 * ten fails at random. */
static void churn(unsigned seed)
{
	struct small s;

	small_new(&s);
	s.config.io = &disk_backend;
	s.config.io_retry = 2000000;
	small_must_open(&s);
	disk_misbehave(FAULTS, 1, UINT32_MAX / 2);
	disk.random = seed;
	disk.percent = 10;
	for (unsigned i = 0; i < 400; i++) {
		unsigned n = (i * 7 + seed) % CHURN_BLOCKS;

		small_save_seed(&s, n, n, CHURN_BYTES);
		small_view(&s, (n * 13 + 5) % CHURN_BLOCKS, CHURN_BYTES);
		small_acquire(&s, (n * 5) % CHURN_BLOCKS, 4, CHURN_BYTES, NULL);
		if (i % 20 == 0)
			small_remove_block(&s, (n * 3) % CHURN_BLOCKS);
		if (i % 50 == 0)
			kv_space_sync(s.cache, s.space);
	}
	disk_behave();
	for (unsigned i = 0; i < 10000; i++)
		if (kv_space_sync(s.cache, s.space) == 0 &&
		    !small_stats(&s).ssd_degraded && !small_busy(&s))
			break;
		else
			usleep(5000);
	small_check(&s);
	must(small_close(&s) == 0);
	small_must_open(&s);
	for (unsigned n = 0; n < CHURN_BLOCKS; n++)
		small_view(&s, n, CHURN_BYTES);
	must(small_close(&s) == 0);
	small_remove(&s);
	exit(0);
}

static void
with_one_request_in_ten_failing_no_wrong_byte_is_served(void **state)
{
	struct batch batch = {0};

	(void)state;
	for (unsigned seed = 1; seed <= 4; seed++)
		if (batch_fork(&batch, "churn", seed))
			churn(seed);
	batch_end(&batch);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_request_fails_once_in_every_way),
		cmocka_unit_test(
			from_each_request_on_all_fail_until_the_disk_is_well),
		cmocka_unit_test(
			with_one_request_in_ten_failing_no_wrong_byte_is_served),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
