/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.h - the library's own threads: named, and deaf to signals.
 */
#ifndef KV_KERNELS_SESSION_THREAD_H
#define KV_KERNELS_SESSION_THREAD_H

#include "common/kv.h"

/* Start a thread that leaves all signals to the program's.  @name: at most 15
 * bytes.  -EAGAIN and other errors of pthread_create. */
int kv_lib_thread_start(pthread_t *ret_thread, const char *name,
			void *(*run)(void *), void *arg);

#endif
