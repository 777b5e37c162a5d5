/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.c - threads and child processes with a name and without signals, periodic
 * threads, and condition variables on the monotonic clock.
 *
 * OWNS      each thread's cached id; the thread of each kv_periodic.  The caller
 *           of kv_thread_start joins its thread.
 *
 * LOCKING   periodic->lock is a leaf, and is released during a tick.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "common/thread.h"

static _Thread_local pid_t id; /* cached gettid(); 0: none */

static void forget_id(void)
{
	id = 0;
}

static void forget_id_in_children(void)
{
	(void)pthread_atfork(NULL, NULL, forget_id);
}

pid_t kv_thread_id(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	if (!id) {
		pthread_once(&once, forget_id_in_children);
		id = gettid();
	}
	return id;
}

int kv_thread_start(pthread_t *ret_thread, const char *name,
		    void *(*run)(void *), void *arg)
{
	static const int faults[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL};
	sigset_t block, before;
	int r;

	sigfillset(&block);
	for (size_t i = 0; i < KV_ARRAY_LEN(faults); i++)
		sigdelset(&block, faults[i]);
	pthread_sigmask(SIG_SETMASK, &block, &before);
	r = pthread_create(ret_thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r == 0)
		pthread_setname_np(*ret_thread, name);
	return -r;
}

int kv_child_begin(int socket, const char *name)
{
	_cleanup_(kv_closep) int line_fd = -1;
	char line[4096];
	sigset_t all;
	ssize_t n;

	setsid();
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	if (dup2(socket, 3) < 0 || chdir("/") < 0)
		_exit(1);
	close_range(4, ~0U, 0);
	prctl(PR_SET_NAME, name);
	/* Write the name over the parent's command line, which ps(1) shows. */
	line_fd = open("/proc/self/cmdline", O_RDONLY);
	n = line_fd < 0 ? -1 : read(line_fd, line, sizeof(line));
	if (n > (ssize_t)strlen(name)) {
		memset(program_invocation_name, 0, (size_t)n);
		strcpy(program_invocation_name, name);
	}
	return 3;
}

void kv_child_end(pid_t pid)
{
	for (int i = 0; i < 1000 && waitpid(pid, NULL, WNOHANG) == 0; i++)
		usleep(1000);
}

void kv_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
}

int kv_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock,
		       uint64_t at_ns)
{
	const struct timespec at = kv_timespec(at_ns);

	return -pthread_cond_timedwait(cond, lock, &at);
}

/* ---- periodic threads ---- */

/* Sleep for @ns, or until kv_periodic_stop or (@wakes) kv_periodic_wake. */
static void pause_locked(struct kv_periodic *periodic, uint64_t ns, bool wakes)
{
	const uint64_t until = kv_now_ns() + ns;
	int r = 0;

	kv_assert_locked(&periodic->lock);
	while (!periodic->stop && !(wakes && periodic->woken) && r == 0)
		r = kv_cond_wait_until(&periodic->changed, &periodic->lock,
				       until);
}

static void *run_periodic(void *arg)
{
	struct kv_periodic *periodic = arg;

	pthread_mutex_lock(&periodic->lock);
	while (!periodic->stop) {
		periodic->woken = false;
		pthread_mutex_unlock(&periodic->lock);
		periodic->tick(periodic->arg);
		pthread_mutex_lock(&periodic->lock);
		pause_locked(periodic, periodic->period_ns, true);
	}
	pthread_mutex_unlock(&periodic->lock);
	return NULL;
}

static void fini(struct kv_periodic *periodic)
{
	pthread_cond_destroy(&periodic->changed);
	pthread_mutex_destroy(&periodic->lock);
	periodic->running = false;
}

int kv_periodic_start(struct kv_periodic *periodic, const char *name,
		      uint64_t period_ns, void (*tick)(void *arg), void *arg)
{
	int r;

	*periodic = (struct kv_periodic){
		.period_ns = period_ns, .tick = tick, .arg = arg};
	pthread_mutex_init(&periodic->lock, NULL);
	kv_cond_init(&periodic->changed);
	periodic->running = true;
	r = kv_thread_start(&periodic->thread, name, run_periodic, periodic);
	if (r < 0)
		fini(periodic);
	return r;
}

void kv_periodic_wake(struct kv_periodic *periodic)
{
	if (!periodic->running)
		return;
	pthread_mutex_lock(&periodic->lock);
	periodic->woken = true;
	pthread_cond_signal(&periodic->changed);
	pthread_mutex_unlock(&periodic->lock);
}

void kv_periodic_stop(struct kv_periodic *periodic)
{
	if (!periodic->running)
		return;
	pthread_mutex_lock(&periodic->lock);
	periodic->stop = true;
	pthread_cond_signal(&periodic->changed);
	pthread_mutex_unlock(&periodic->lock);
	pthread_join(periodic->thread, NULL);
	fini(periodic);
}

bool kv_periodic_stopping(const struct kv_periodic *periodic)
{
	return periodic->stop;
}

void kv_periodic_rest(struct kv_periodic *periodic, uint64_t ns)
{
	pthread_mutex_lock(&periodic->lock);
	pause_locked(periodic, ns, false);
	pthread_mutex_unlock(&periodic->lock);
}
