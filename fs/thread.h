/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.h - a thread that takes none of the process's signals.
 */
#ifndef KV_FS_THREAD_H
#define KV_FS_THREAD_H

#include <signal.h>

#include "common/kv.h"

/* As pthread_create; faults of the thread itself still arrive.  @name: at most
 * 15 bytes, seen by ps -T.  -EAGAIN. */
static inline int kv_thread_start(pthread_t *ret_thread, const char *name,
				  void *(*run)(void *), void *arg)
{
	sigset_t block, before;
	int r;

	sigfillset(&block);
	sigdelset(&block, SIGBUS);
	sigdelset(&block, SIGSEGV);
	sigdelset(&block, SIGFPE);
	sigdelset(&block, SIGILL);
	pthread_sigmask(SIG_SETMASK, &block, &before);
	r = pthread_create(ret_thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (r == 0)
		pthread_setname_np(*ret_thread, name);
	return -r;
}

#endif
