/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.h - a thread of kvfs's own: named, and deaf to the program's signals.
 */
#ifndef KV_COMMON_THREAD_H
#define KV_COMMON_THREAD_H

#include "common/kv.h"

/*
 * As pthread_create.  Every signal is blocked in the thread but those of its
 * own faults (SIGBUS, SIGSEGV, SIGFPE, SIGILL).  @name: at most 15 bytes, as
 * ps -T shows it.  -EAGAIN.
 */
int kv_thread_start(pthread_t *ret_thread, const char *name,
		    void *(*run)(void *), void *arg);

#endif
