/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_thread.c - named threads, periodic threads, and the assertion that a
 * thread holds a lock.
 *
 * OWNS      nothing.
 *
 * LOCKING   one mutex, which is what is tested; counters are atomic.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "common/thread.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

struct look {
	sigset_t mask;
	char name[16];
	_Atomic bool named;
};

static void *look_at_thread(void *arg)
{
	struct look *look = arg;

	while (!look->named)
		usleep(1000);
	pthread_sigmask(SIG_BLOCK, NULL, &look->mask);
	pthread_getname_np(pthread_self(), look->name, sizeof(look->name));
	return NULL;
}

static void a_thread_has_a_name_and_takes_no_signal_but_its_faults(void **state)
{
	const int faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL};
	const int others[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGCHLD};
	struct look look = {0};
	sigset_t mask;
	pthread_t thread;

	(void)state;
	assert_int_equal(
		kv_thread_start(&thread, "kvfs-test", look_at_thread, &look),
		0);
	look.named = true;
	pthread_join(thread, NULL);
	assert_string_equal(look.name, "kvfs-test");
	for (size_t i = 0; i < KV_ARRAY_LEN(faults); i++)
		assert_false(sigismember(&look.mask, faults[i]));
	for (size_t i = 0; i < KV_ARRAY_LEN(others); i++)
		assert_true(sigismember(&look.mask, others[i]));
	pthread_sigmask(SIG_BLOCK, NULL, &mask);
	assert_false(sigismember(&mask, SIGTERM));
}

static void *find_id(void *arg)
{
	*(bool *)arg = kv_thread_id() == gettid();
	return NULL;
}

static int status_of(pid_t child)
{
	int status;

	assert_true(child > 0);
	assert_int_equal(waitpid(child, &status, 0), child);
	return status;
}

static void each_thread_knows_its_id_and_so_does_a_child(void **state)
{
	pthread_t thread;
	bool right = false;
	pid_t child;

	(void)state;
	assert_int_equal(kv_thread_id(), gettid());
	assert_int_equal(kv_thread_start(&thread, "id", find_id, &right), 0);
	pthread_join(thread, NULL);
	assert_true(right);
	child = fork();
	if (child == 0)
		_exit(kv_thread_id() == gettid() ? 0 : 1);
	assert_int_equal(status_of(child), 0);
}

static void *expect_to_hold_it(void *arg)
{
	(void)arg;
	kv_assert_locked(&mutex);
	return NULL;
}

/* Return whether the assertion fails in a thread without the mutex. */
static bool fails_in_another_thread(void)
{
	const struct rlimit no_core = {0, 0};
	pthread_t thread;
	pid_t child = fork();
	int status;

	if (child == 0) {
		signal(SIGABRT, SIG_DFL);
		setrlimit(RLIMIT_CORE, &no_core);
		close(STDERR_FILENO);
		pthread_mutex_lock(&mutex);
		kv_assert_locked(&mutex);
		kv_thread_start(&thread, "other", expect_to_hold_it, NULL);
		pthread_join(thread, NULL);
		_exit(0);
	}
	status = status_of(child);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void a_lock_that_another_thread_holds_is_not_held(void **state)
{
	(void)state;
	pthread_mutex_lock(&mutex);
	kv_assert_locked(&mutex);
	pthread_mutex_unlock(&mutex);
	assert_true(fails_in_another_thread());
}

/* ---- periodic threads ---- */

#define MILLISECOND 1000000u
#define LONG (UINT64_C(3600) * 1000 * MILLISECOND)

struct clock {
	struct kv_periodic periodic;
	_Atomic int ticks;
	_Atomic bool rests;
};

static void tick(void *arg)
{
	struct clock *c = arg;

	c->ticks++;
}

static void tick_for_ever(void *arg)
{
	struct clock *c = arg;

	c->ticks++;
	while (!kv_periodic_stopping(&c->periodic)) {
		c->rests = true;
		kv_periodic_rest(&c->periodic, LONG);
	}
}

static void wait_for(struct clock *c, int ticks)
{
	while (c->ticks < ticks)
		usleep(1000);
}

static void a_clock_ticks_at_once_and_when_woken(void **state)
{
	struct clock c = {0};

	(void)state;
	assert_int_equal(
		kv_periodic_start(&c.periodic, "clock", LONG, tick, &c), 0);
	wait_for(&c, 1);
	for (int i = 2; i < 10; i++) {
		kv_periodic_wake(&c.periodic);
		wait_for(&c, i);
	}
	kv_periodic_stop(&c.periodic);
	assert_int_equal(c.ticks, 9);
}

static void a_clock_ticks_whenever_a_period_has_passed(void **state)
{
	struct clock c = {0};

	(void)state;
	assert_int_equal(
		kv_periodic_start(&c.periodic, "clock", MILLISECOND, tick, &c),
		0);
	wait_for(&c, 5);
	kv_periodic_stop(&c.periodic);
}

static void a_stop_ends_the_rest_within_a_tick(void **state)
{
	struct clock c = {0};

	(void)state;
	assert_int_equal(kv_periodic_start(&c.periodic, "clock", LONG,
					   tick_for_ever, &c),
			 0);
	while (!c.rests)
		usleep(1000);
	kv_periodic_stop(&c.periodic);
	assert_int_equal(c.ticks, 1);
}

static void a_clock_at_rest_is_neither_woken_nor_stopped(void **state)
{
	struct kv_periodic periodic = {0};

	(void)state;
	kv_periodic_wake(&periodic);
	kv_periodic_stop(&periodic);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			a_thread_has_a_name_and_takes_no_signal_but_its_faults),
		cmocka_unit_test(each_thread_knows_its_id_and_so_does_a_child),
		cmocka_unit_test(a_lock_that_another_thread_holds_is_not_held),
		cmocka_unit_test(a_clock_ticks_at_once_and_when_woken),
		cmocka_unit_test(a_clock_ticks_whenever_a_period_has_passed),
		cmocka_unit_test(a_stop_ends_the_rest_within_a_tick),
		cmocka_unit_test(a_clock_at_rest_is_neither_woken_nor_stopped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
