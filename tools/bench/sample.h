/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sample.h - a growing set of measurements and its percentiles.
 */
#ifndef KV_TOOLS_BENCH_SAMPLE_H
#define KV_TOOLS_BENCH_SAMPLE_H

#include <stddef.h>

struct kv_bench_sample {
	double *values;
	size_t n, room;
};

/* Nothing is kept when memory is short; the percentile then is 0. */
void kv_bench_sample_add(struct kv_bench_sample *sample, double value);

/* The value that @percent of all are not above; sorts @sample.  0 if empty. */
double kv_bench_sample_percentile(struct kv_bench_sample *sample,
				  double percent);
double kv_bench_sample_median(struct kv_bench_sample *sample);

/* Usable with __attribute__((cleanup)). */
void kv_bench_sample_fini(struct kv_bench_sample *sample);

#endif
