/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.c - blocks without a copy: acquire and pointers, against memcpy.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include "tools/bench/figures.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tools/bench/clock.h"
#include "tools/bench/sample.h"

#define LEASES 10 /* for each memcpy: it takes a thousand times as long */

/* The whole batch, until the last pointer is in hand; giving back is not. */
static int lease_group(struct kv_bench_rig *rig, size_t first,
		       const void **pointers, double *ret_us)
{
	uint64_t begin = kv_bench_now();
	kvfs_lease *lease;
	size_t i;
	int r;

	r = kv_bench_rig_acquire(rig, first, KV_BENCH_GROUP, &lease);
	if (r < 0)
		return r;
	for (i = 0; i < KV_BENCH_GROUP; i++)
		pointers[i] = kvfs_lease_data(lease, i, NULL);
	*ret_us = (double)(kv_bench_now() - begin) / 1000;
	for (i = 0; i < KV_BENCH_GROUP; i++)
		if (!pointers[i])
			r = -EIO;
	kvfs_release(lease);
	return r;
}

/* The blocks stay where they are: nothing else asks for DRAM meanwhile. */
static double copy_group(struct kv_bench_rig *rig, const void **pointers)
{
	size_t bytes = kv_bench_payload(rig->size), i;
	uint64_t begin = kv_bench_now();
	char *to = rig->spare.base;

	for (i = 0; i < KV_BENCH_GROUP; i++)
		memcpy(to + i * bytes, pointers[i], bytes);
	return (double)(kv_bench_now() - begin) / 1000;
}

static void report(struct kv_bench_rig *rig, struct kv_bench_sample *lease,
		   struct kv_bench_sample *copy)
{
	char name[64];
	struct kv_bench_figure figure = {
		.name = name,
		.value = kv_bench_sample_median(lease),
		.reference = kv_bench_sample_median(copy),
		.unit = "us",
		.against = "memcpy, 1 thread",
		.goal = "<= 150 us, ratio >= 200",
	};

	figure.ratio = figure.reference / figure.value;
	figure.met = figure.value <= 150 && figure.ratio >= 200;
	snprintf(name, sizeof(name), "lease_%s", rig->size->suffix);
	kv_bench_report_add(rig->bench->report, &figure);
	kv_bench_report_note(rig->bench->report,
			     "127 blocks; p10 %.1f us, p90 %.1f us",
			     kv_bench_sample_percentile(lease, 10),
			     kv_bench_sample_percentile(lease, 90));
}

int kv_bench_lease(struct kv_bench_rig *rig)
{
	size_t groups = rig->size->blocks / KV_BENCH_GROUP, round, i, group;
	size_t rounds = rig->bench->quick ? 8 : 30;
	struct kv_bench_sample lease = {0}, copy = {0};
	const void *pointers[KV_BENCH_GROUP];
	double us = 0;
	int r = 0;

	for (round = 0; round <= rounds && r == 0; round++) {
		group = round % groups * KV_BENCH_GROUP;
		for (i = 0; i < LEASES && r == 0; i++) {
			r = lease_group(rig, group, pointers, &us);
			if (round > 0)
				kv_bench_sample_add(&lease, us);
		}
		us = r < 0 ? 0 : copy_group(rig, pointers);
		if (round > 0)
			kv_bench_sample_add(&copy, us);
	}
	if (r == 0)
		report(rig, &lease, &copy);
	kv_bench_sample_fini(&lease);
	kv_bench_sample_fini(&copy);
	return r;
}
