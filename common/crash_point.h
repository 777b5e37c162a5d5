/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crash_point.h - named places at which a test can kill the daemon.
 *
 * Kill points are compiled only with POINTS=1.  Only that build reads these
 * variables:
 *
 *   KVFS_POINT=NAME:N     SIGKILL at the N-th time that NAME is passed
 *   KVFS_SLOW=NAME:MS     sleep at the first passes of NAME
 *   KVFS_POINTS=FILE      count in FILE how often each point is passed
 *   KVFS_LIE=WHAT         break a promise, to show that a test notices
 */
#ifndef KV_COMMON_CRASH_POINT_H
#define KV_COMMON_CRASH_POINT_H

#include <stdbool.h>
#include <stdint.h>

#ifdef KV_POINTS

struct kv_point {
	const char *name;
	uint32_t number; /* index of this point in the table of counts */
};

void kv_point_pass(const struct kv_point *point);
bool kv_point_lies(const char *what);

/* The linker section also lists kill points that were never passed. */
#define KV_POINT(text)                                                   \
	do {                                                             \
		static struct kv_point kv_point_here __attribute__((     \
			section("kv_points"), used)) = {.name = (text)}; \
		kv_point_pass(&kv_point_here);                           \
	} while (0)
#define KV_LIE(what) kv_point_lies(what)
#define KV_POINTS_OR(tested, real) (tested)

#else

#define KV_POINT(text) ((void)0)
#define KV_LIE(what) false
/* Choose a constant: @tested in builds with POINTS=1, else @real. */
#define KV_POINTS_OR(tested, real) (real)

#endif
#endif
