/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sigbus_guard.h - SIGBUS as a return value, for reading memory that another
 * process can take away (a client's staging, pages of a mapped file), and memory
 * whose missing pages become zeros.
 *
 * Threads: any.
 */
#ifndef KV_COMMON_SIGBUS_GUARD_H
#define KV_COMMON_SIGBUS_GUARD_H

#include <stddef.h>

/*
 * Return the result of @run(@arg), or -EFAULT if it touched missing memory or
 * called kv_sigbus_guard_leave: then @run was left in the middle, and resources
 * and locks that it held are lost.  Guards nest.
 */
int kv_sigbus_guard(int (*run)(void *arg), void *arg);

/* Replace pages that the file loses in the @bytes at @base (pages of @page
 * bytes) by private pages of zeros, so that no access raises SIGBUS.  -ENOMEM.
 * Call kv_sigbus_mend_end before unmapping. */
int kv_sigbus_mend(void *base, size_t bytes, size_t page);
void kv_sigbus_mend_end(void *base);

/* Leave the guarded call that this thread is in; return if the thread is in
 * none. */
void kv_sigbus_guard_leave(void);

#endif
