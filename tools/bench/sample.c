/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sample.c - a growing set of measurements and its percentiles.
 *
 * OWNS      the array of values.
 *
 * LOCKING   none: a sample belongs to one thread.
 */
#include "tools/bench/sample.h"

#include <stdlib.h>

void kv_bench_sample_add(struct kv_bench_sample *sample, double value)
{
	if (sample->n == sample->room) {
		size_t room = sample->room ? 2 * sample->room : 64;
		double *values =
			realloc(sample->values, room * sizeof(*values));

		if (!values)
			return;
		sample->values = values;
		sample->room = room;
	}
	sample->values[sample->n++] = value;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double kv_bench_sample_percentile(struct kv_bench_sample *sample,
				  double percent)
{
	double at;

	if (sample->n == 0)
		return 0;
	qsort(sample->values, sample->n, sizeof(*sample->values), compare);
	at = percent / 100 * (double)(sample->n - 1);
	return sample->values[(size_t)(at + 0.5)];
}

double kv_bench_sample_median(struct kv_bench_sample *sample)
{
	return kv_bench_sample_percentile(sample, 50);
}

void kv_bench_sample_fini(struct kv_bench_sample *sample)
{
	free(sample->values);
	*sample = (struct kv_bench_sample){0};
}
