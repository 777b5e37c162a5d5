/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sigbus_guard.h - SIGBUS as a return value, for who reads memory that somebody
 * else can take away: a client its staging, a disk the pages of a mapped file.
 * And memory that heals: the page that was taken away is zeros from then on.
 *
 * Threads: any.
 */
#ifndef KV_COMMON_SIGBUS_GUARD_H
#define KV_COMMON_SIGBUS_GUARD_H

#include <stddef.h>

/*
 * Return what @run(@arg) returns, or -EFAULT: memory that it touched is not
 * there, or it called kv_sigbus_guard_leave.  It was left in the middle, so it
 * may own nothing, and hold no lock, that anybody needs again.  Guards nest.
 */
int kv_sigbus_guard(int (*run)(void *arg), void *arg);

/*
 * From now on no access to the @bytes at @base raises SIGBUS: where their file
 * has no page (of @page bytes) any more there is memory of this process's
 * alone.  -ENOMEM.  To be ended before they are unmapped.
 */
int kv_sigbus_mend(void *base, size_t bytes, size_t page);
void kv_sigbus_mend_end(void *base);

/* Leave the guarded call that this thread is in; returns if it is in none. */
void kv_sigbus_guard_leave(void);

#endif
