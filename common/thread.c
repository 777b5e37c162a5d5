/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.c - a thread of kvfs's own: named, and deaf to the program's signals.
 *
 * OWNS      nothing; the starter joins its thread.
 *
 * LOCKING   none.
 */
#include <signal.h>

#include "common/thread.h"

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
