/* SPDX-License-Identifier: Apache-2.0 */
/* The copy threads of the library, and the order of their jobs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <signal.h>
#include <stdatomic.h>
#include <cmocka.h>

#include "kernels/device/device.h"

#define JOBS 1000

static atomic_int done;
static atomic_bool deaf, named;

static void count(struct kv_job *job)
{
	(void)job;
	atomic_fetch_add(&done, 1);
}

static void look_at_self(struct kv_job *job)
{
	char name[16] = "";
	sigset_t mask;

	(void)job;
	pthread_sigmask(SIG_BLOCK, NULL, &mask);
	pthread_getname_np(pthread_self(), name, sizeof(name));
	atomic_store(&deaf, sigismember(&mask, SIGTERM) &&
				    sigismember(&mask, SIGUSR1));
	atomic_store(&named, strncmp(name, "kvfs-copy", 9) == 0);
}

static void every_job_runs_once_before_free_returns(void **state)
{
	static struct kv_job jobs[JOBS];
	struct kv_copier *copier;
	int i;

	(void)state;
	assert_int_equal(kv_copier_new(&copier), 0);
	for (i = 0; i < JOBS; i++) {
		jobs[i].run = count;
		kv_copier_submit(copier, &jobs[i]);
	}
	kv_copier_free(copier);
	assert_int_equal(done, JOBS);
	kv_copier_free(NULL);
}

static void there_are_one_to_four_threads(void **state)
{
	struct kv_copier *copier;

	(void)state;
	assert_int_equal(kv_copier_new(&copier), 0);
	assert_in_range(kv_copier_threads(copier), 1, 4);
	kv_copier_free(copier);
}

static void its_threads_are_named_and_leave_signals_to_the_program(void **s)
{
	struct kv_job job = {.run = look_at_self};
	struct kv_copier *copier;
	sigset_t mask;

	(void)s;
	assert_int_equal(kv_copier_new(&copier), 0);
	kv_copier_submit(copier, &job);
	kv_copier_free(copier);
	assert_true(deaf);
	assert_true(named);
	pthread_sigmask(SIG_BLOCK, NULL, &mask);
	assert_false(sigismember(&mask, SIGTERM));
}

/* ---- the order in which copy threads take loads and saves ---- */

#define MANY 40

static atomic_int blocked;
static atomic_bool blocking, last_blocking;
static struct kv_job *ran[MANY + 8];
static atomic_int n_ran;

static void block(struct kv_job *job)
{
	(void)job;
	blocked++;
	while (blocking)
		usleep(1000);
}

static void block_one(struct kv_job *job)
{
	(void)job;
	blocked++;
	while (last_blocking)
		usleep(1000);
}

static void note(struct kv_job *job)
{
	/* no lock is needed, because only one copy thread runs */
	ran[n_ran] = job;
	n_ran++;
}

/* Make a copier whose threads are all blocked; release_one unblocks one
 * thread. */
static struct kv_copier *held_copier(void)
{
	static struct kv_job blockers[4];
	struct kv_copier *copier;
	unsigned i;

	assert_int_equal(kv_copier_new(&copier), 0);
	blocking = last_blocking = true;
	blocked = n_ran = 0;
	for (i = 0; i < kv_copier_threads(copier); i++) {
		blockers[i].run = i == 0 ? block_one : block;
		kv_copier_submit(copier, &blockers[i]);
	}
	for (i = 0; i < 60000 && blocked < (int)kv_copier_threads(copier); i++)
		usleep(1000);
	return copier;
}

static void release_one(int jobs)
{
	int i;

	last_blocking = false;
	for (i = 0; i < 60000 && n_ran < jobs; i++)
		usleep(1000);
	assert_int_equal(n_ran, jobs);
	blocking = false;
}

static void loads_go_before_saves_and_higher_priorities_before_lower(void **s)
{
	struct kv_job save = {.run = note, .kind = KV_JOB_SAVE, .priority = 9};
	struct kv_job low = {.run = note, .kind = KV_JOB_LOAD, .priority = -1};
	struct kv_job high = {.run = note, .kind = KV_JOB_LOAD, .priority = 1};
	struct kv_copier *copier = held_copier();

	(void)s;
	assert_false(kv_copier_presses(copier, &save));
	kv_copier_submit(copier, &save);
	assert_false(kv_copier_presses(copier, &low));
	kv_copier_submit(copier, &low);
	assert_true(kv_copier_presses(copier, &save));
	assert_false(kv_copier_presses(copier, &low));
	kv_copier_submit(copier, &high);
	assert_true(kv_copier_presses(copier, &low));
	release_one(3);
	assert_ptr_equal(ran[0], &high);
	assert_ptr_equal(ran[1], &low);
	assert_ptr_equal(ran[2], &save);
	assert_false(kv_copier_presses(copier, &save));
	kv_copier_free(copier);
}

/* A save that waits is overtaken by a limited number of loads.  Loads keep
 * their order. */
static void no_job_waits_for_ever(void **state)
{
	struct kv_job save = {.run = note, .kind = KV_JOB_SAVE};
	struct kv_job loads[MANY];
	struct kv_copier *copier = held_copier();
	int i, at = 0, next = 0;

	(void)state;
	kv_copier_submit(copier, &save);
	for (i = 0; i < MANY; i++) {
		loads[i] = (struct kv_job){.run = note, .kind = KV_JOB_LOAD};
		kv_copier_submit(copier, &loads[i]);
	}
	release_one(MANY + 1);
	for (i = 0; i <= MANY; i++) {
		if (ran[i] == &save)
			at = i;
		else
			assert_ptr_equal(ran[i], &loads[next++]);
	}
	assert_in_range(at, 1, KV_COPIER_FAIR);
	kv_copier_free(copier);
}

static void a_waiting_thread_withdraws_jobs_of_its_transfer_only(void **state)
{
	const int mine = 0, other = 0;
	struct kv_job jobs[3] = {
		{.run = note, .owner = &other},
		{.run = note, .owner = &mine},
		{.run = note, .owner = &mine, .kind = KV_JOB_LOAD},
	};
	struct kv_copier *copier = held_copier();

	(void)state;
	for (int i = 0; i < 3; i++)
		kv_copier_submit(copier, &jobs[i]);
	assert_ptr_equal(kv_copier_withdraw(copier, &mine), &jobs[1]);
	/* kv_copier_withdraw has marked the job as brief: it copies one unit
	 * only */
	assert_true(kv_copier_presses(copier, &jobs[1]));
	assert_ptr_equal(kv_copier_withdraw(copier, &mine), &jobs[2]);
	assert_null(kv_copier_withdraw(copier, &mine));
	assert_false(kv_copier_presses(copier, &jobs[0]));
	kv_copier_submit(copier, &jobs[1]);
	assert_false(kv_copier_presses(copier, &jobs[1]));
	release_one(2);
	kv_copier_free(copier);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_job_runs_once_before_free_returns),
		cmocka_unit_test(there_are_one_to_four_threads),
		cmocka_unit_test(
			its_threads_are_named_and_leave_signals_to_the_program),
		cmocka_unit_test(
			loads_go_before_saves_and_higher_priorities_before_lower),
		cmocka_unit_test(no_job_waits_for_ever),
		cmocka_unit_test(
			a_waiting_thread_withdraws_jobs_of_its_transfer_only),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
