/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_workers.c - which user's job a thread takes next.
 *
 * OWNS workers, and jobs that belong to no request and only count their runs.
 *
 * LOCKING   lock guards the counters of the jobs.  Jobs wait for the gate; alarm(2) ends
 *           a test that hangs.
 */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "cache/core/workers.h"
#include "common/thread.h"

enum { A, B, C, USERS };

struct job {
	/* must be the first field: its address is cast to this struct */
	struct kv_work job;
	unsigned user;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static bool gate;
static unsigned order[64], n_done, running[USERS], most[USERS];

static void count(struct kv_work *job, struct kv_hash *hash)
{
	const unsigned user = ((struct job *)job)->user;

	(void)hash;
	pthread_mutex_lock(&lock);
	running[user]++;
	most[user] = KV_MAX(most[user], running[user]);
	pthread_cond_broadcast(&changed);
	while (!gate)
		pthread_cond_wait(&changed, &lock);
	running[user]--;
	order[n_done++] = user;
	pthread_mutex_unlock(&lock);
}

static void until_running(unsigned user, unsigned n)
{
	pthread_mutex_lock(&lock);
	while (running[user] < n)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}

static void let_go(void)
{
	pthread_mutex_lock(&lock);
	gate = true;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static int set_up(void **state)
{
	(void)state;
	gate = false;
	n_done = 0;
	memset(running, 0, sizeof(running));
	memset(most, 0, sizeof(most));
	return 0;
}

static void submit(struct kv_workers *workers, struct job *jobs, unsigned n,
		   unsigned user, uint64_t cost)
{
	for (unsigned i = 0; i < n; i++) {
		jobs[i] = (struct job){.job.run = count, .user = user};
		kv_work_submit(workers, &jobs[i].job, 1000 + user, cost);
	}
}

static void a_user_with_all_he_may_have_leaves_threads_to_others(void **state)
{
	static const struct kv_workers_config work = {"test", 4, 2, 1};
	struct kv_workers *workers;
	struct job jobs[16];

	(void)state;
	assert_int_equal(kv_workers_new(&work, &workers), 0);
	submit(workers, jobs, 8, A, 1);
	until_running(A, 2);
	submit(workers, jobs + 8, 8, B, 1);
	until_running(B, 2);
	let_go();
	kv_workers_free(workers);
	assert_int_equal(n_done, 16);
	assert_int_equal(most[A], 2);
	assert_int_equal(most[B], 2);
}

static void users_take_turns_of_equal_cost(void **state)
{
	static const struct kv_workers_config work = {"test", 1, UINT_MAX, 4};
	/* User B's first job had begun before the test submitted the other
	 * jobs. */
	static const unsigned turns[] = {B, A, A, A, A, B, A, A, A, A, B, B, B};
	struct kv_workers *workers;
	struct job jobs[13];

	(void)state;
	assert_int_equal(kv_workers_new(&work, &workers), 0);
	submit(workers, jobs, 1, B, 4);
	until_running(B, 1);
	submit(workers, jobs + 1, 8, A, 1);
	submit(workers, jobs + 9, 4, B, 4);
	let_go();
	kv_workers_free(workers);
	assert_int_equal(n_done, KV_ARRAY_LEN(turns));
	assert_memory_equal(order, turns, sizeof(turns));
}

static void what_was_submitted_is_run_before_the_end(void **state)
{
	static const struct kv_workers_config work = {"test", 2, 1, 1};
	struct kv_workers *workers;
	struct job jobs[32];

	(void)state;
	let_go();
	assert_int_equal(kv_workers_new(&work, &workers), 0);
	submit(workers, jobs, 32, A, 1);
	kv_workers_free(workers);
	assert_int_equal(n_done, 32);
	assert_int_equal(most[A], 1);
}

static void *run_as_guest(void *arg)
{
	static struct job job = {.job.run = count, .user = A};

	return kv_work_run(arg, &job.job, 1000 + A) ? arg : NULL;
}

static void a_guest_runs_what_need_not_wait(void **state)
{
	static const struct kv_workers_config work = {.name = "test",
						      .threads = 2,
						      .each = 2,
						      .guests = 1,
						      .turn = 1};
	struct kv_workers *workers;
	struct job jobs[3], other = {.job.run = count, .user = B};
	pthread_t guest;
	void *ran;

	(void)state;
	assert_int_equal(kv_workers_new(&work, &workers), 0);
	assert_int_equal(pthread_create(&guest, NULL, run_as_guest, workers),
			 0);
	until_running(A, 1);
	assert_false(kv_work_run(workers, &other.job, 1000 + B));
	submit(workers, jobs, 3, A, 1);
	until_running(A, 2);
	let_go();
	assert_int_equal(pthread_join(guest, &ran), 0);
	assert_non_null(ran);
	kv_workers_free(workers);
	assert_int_equal(n_done, 4);
	assert_int_equal(most[A], 2);
}

static void a_guest_runs_nothing_out_of_turn(void **state)
{
	static const struct kv_workers_config work = {.name = "test",
						      .threads = 1,
						      .each = 1,
						      .guests = 1,
						      .turn = 1};
	struct job jobs[2], more = {.job.run = count, .user = A};
	struct kv_workers *workers;

	(void)state;
	assert_int_equal(kv_workers_new(&work, &workers), 0);
	submit(workers, jobs, 2, A, 1);
	until_running(A, 1);
	assert_false(kv_work_run(workers, &more.job, 1000 + A));
	let_go();
	kv_workers_free(workers);
	assert_int_equal(n_done, 2);
}

/* Run for longer than any other job, even on a busy machine. */
static void pass_time(struct kv_work *job, struct kv_hash *hash)
{
	usleep(1000000);
	count(job, hash);
}

/* The jobs of user A state a small cost, but run long. */
static void what_takes_long_is_charged_by_time(void **state)
{
	static const struct kv_workers_config work = {.name = "test",
						      .threads = 1,
						      .each = UINT_MAX,
						      .turn = 1000000,
						      .timed = true};
	struct kv_workers *workers;
	struct job jobs[12];

	(void)state;
	assert_int_equal(kv_workers_new(&work, &workers), 0);
	/* User C's job runs until all other jobs are submitted, and C is
	 * charged for this time. */
	submit(workers, jobs, 1, C, 1);
	until_running(C, 1);
	submit(workers, jobs + 1, 2, A, 1);
	jobs[1].job.run = jobs[2].job.run = pass_time;
	submit(workers, jobs + 3, 9, B, 100000);
	let_go();
	kv_workers_free(workers);
	assert_int_equal(n_done, 12);
	assert_int_equal(order[1], A);
	assert_int_equal(order[11], A);
}

#define TEST(f) cmocka_unit_test_setup(f, set_up)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_user_with_all_he_may_have_leaves_threads_to_others),
		TEST(users_take_turns_of_equal_cost),
		TEST(what_was_submitted_is_run_before_the_end),
		TEST(a_guest_runs_what_need_not_wait),
		TEST(a_guest_runs_nothing_out_of_turn),
		TEST(what_takes_long_is_charged_by_time),
	};

	alarm(60);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
