/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.c - a thread of kvfs's own: named, and deaf to the program's signals.
 *
 * OWNS      each thread's note of its id; the starter joins its thread.
 *
 * LOCKING   none.
 */
#include <signal.h>

#include "common/thread.h"

static _Thread_local pid_t id; /* 0: not asked for yet */

static void forget(void)
{
	id = 0;
}

static void forget_in_children(void)
{
	(void)pthread_atfork(NULL, NULL, forget);
}

pid_t kv_thread_id(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	if (!id) {
		pthread_once(&once, forget_in_children);
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
