/* SPDX-License-Identifier: Apache-2.0 */
/*
 * own.h - who frees what: the macros of ownership; and the clock.  It has no
 * .c.
 *
 * The demo is a client of libkvfs like any other and sees nothing of the
 * project but kvfs.h, so it brings its own.
 */
#ifndef KV_TOOLS_DEMO_OWN_H
#define KV_TOOLS_DEMO_OWN_H

#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* Run @f on the variable's address when it leaves scope. */
#define _cleanup_(f) __attribute__((cleanup(f)))

/* Hand over an owning pointer: the variable becomes NULL. */
#define kv_steal(p)                         \
	({                                  \
		__typeof__(p) stolen = (p); \
		(p) = NULL;                 \
		stolen;                     \
	})

static inline void kv_freep(void *p)
{
	free(*(void **)p);
}

static inline void kv_closep(int *fd)
{
	if (*fd >= 0)
		close(*fd);
}

static inline void kv_fclosep(FILE **file)
{
	if (*file)
		fclose(*file);
}

static inline double kv_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

#endif
