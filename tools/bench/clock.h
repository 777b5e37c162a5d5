/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.h - now, for timing.
 */
#ifndef KV_TOOLS_BENCH_CLOCK_H
#define KV_TOOLS_BENCH_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t kv_bench_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline void kv_bench_sleep_ms(unsigned ms)
{
	struct timespec t = {ms / 1000, (long)(ms % 1000) * 1000000};

	nanosleep(&t, NULL);
}

#endif
