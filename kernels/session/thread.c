/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.c - the library's own threads: named, and deaf to signals.
 *
 * OWNS      nothing; who starts a thread joins it.
 *
 * LOCKING   none.
 */
#include <signal.h>

#include "kernels/session/thread.h"

int kv_lib_thread_start(pthread_t *ret_thread, const char *name,
			void *(*run)(void *), void *arg)
{
	sigset_t all, old;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(ret_thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r != 0)
		return -r;
	pthread_setname_np(*ret_thread, name);
	return 0;
}
