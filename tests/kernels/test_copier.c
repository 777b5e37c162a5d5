/* SPDX-License-Identifier: Apache-2.0 */
/* The copy threads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <signal.h>
#include <stdatomic.h>
#include <cmocka.h>

#include "kernels/copier.h"

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_job_runs_once_before_free_returns),
		cmocka_unit_test(there_are_one_to_four_threads),
		cmocka_unit_test(
			its_threads_are_named_and_leave_signals_to_the_program),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
