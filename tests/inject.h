/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inject.h - the fault injector of the tests: count calls, and let the n-th of
 * them fail.
 *
 * alloc.h counts allocations, calls.h calls of LMDB and of the system, and
 * cache/faulty.h requests to the disk.
 *
 * OWNS     the counters: one set for each test program.
 * LOCKING  atomic: calls come from any thread.
 */
#ifndef KV_TESTS_INJECT_H
#define KV_TESTS_INJECT_H

#include <stdatomic.h>

#include "common/kv.h"

static struct {
	_Atomic bool on;     /* true: calls are counted and may fail */
	_Atomic long seen;   /* number of calls since inject_arm */
	_Atomic long from;   /* number of the first call that fails, from 0 */
	_Atomic long before; /* number of the first call after the faults */
	_Atomic long failed; /* number of calls that failed since inject_arm */
	_Atomic int error;   /* errno that a failing call sets */
} inject;

/* Let the calls from number @from on, @n of them, fail with @error. */
static inline void inject_arm(int error, long from, long n)
{
	inject.seen = inject.failed = 0;
	inject.error = error;
	inject.from = from;
	inject.before = from + n;
	inject.on = true;
}

/* End the injected faults.  Return how many calls failed. */
static inline long inject_disarm(void)
{
	inject.on = false;
	return inject.failed;
}

/* Count a call; return whether the call fails, with errno set. */
static inline bool inject_fails(void)
{
	long n;

	if (!inject.on)
		return false;
	n = inject.seen++;
	if (n < inject.from || n >= inject.before)
		return false;
	inject.failed++;
	errno = inject.error;
	return true;
}

#endif
