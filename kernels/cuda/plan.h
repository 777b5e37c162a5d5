/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.h - plan how the bytes of a batch's blocks are copied: one by one, by a
 * kernel through staging memory on the device, or by a kernel that accesses host
 * memory in place.
 *
 * A plan depends on the layout and the ranges, not on blocks and pages.
 */
#ifndef KV_KERNELS_CUDA_PLAN_H
#define KV_KERNELS_CUDA_PLAN_H

#include "kernels/device/device.h"
#include "kernels/device/scatter.h"

/*
 * Runs of the pool of at least this length are copied one by one.  Starting a
 * copy costs a microsecond or two, in which the bus moves about 64 KiB.  Copying
 * this length through device memory costs as much: some hundredths of the time
 * on the bus.
 */
#define KV_PLAN_DIRECT ((uint64_t)1 << 20)

/* If the runs of a block are shorter than this on the host as well, as those of
 * one layer are, a kernel accesses them over the bus instead of copying. */
#define KV_PLAN_IN_PLACE ((uint64_t)256 << 10)

/* Bytes that are adjacent in host memory and in staging. */
struct kv_run {
	uint64_t from, bytes; /* of the block's tensors */
	uint64_t at;	      /* in staging */
};

/* The part of a block that fits in staging at once, mostly all of it.  In place:
 * the part that a kernel can number. */
struct kv_pass {
	size_t section, n_sections;
	size_t run, n_runs;
	uint64_t stride; /* staging bytes a block */
	uint32_t units;	 /* of work a block */
};

struct kv_plan {
	bool in_place;		     /* no staging: no runs, no strides */
	struct kv_section *sections; /* scattered, in the passes' order */
	struct kv_run *runs;
	struct kv_pass *passes;
	struct kv_section *direct; /* at: offset in the block's tensors */
	size_t n_sections, n_runs, n_passes, n_direct;
	uint32_t lanes;
};

/* Plan @ranges of @strides (no ranges: all), with at most @staging bytes for a
 * block; 0: in place.  -ENOMEM. */
int kv_plan_init(struct kv_plan *plan, const struct kvfs_strides *strides,
		 const struct kvfs_range *ranges, size_t n_ranges,
		 uint64_t staging);
void kv_plan_fini(struct kv_plan *plan);

/* Return whether the copies to or from staging are so short that copying in place
 * is faster. */
bool kv_plan_is_short(const struct kv_plan *plan);

/*
 * Call @copy for each run of a direct section of one block, in order; adjacent
 * pages are one run.  Stop at the first negative result, and return it.
 */
typedef int (*kv_plan_copy)(void *arg, uint64_t pool, uint64_t offset,
			    uint64_t bytes);
int kv_plan_each_run(const struct kv_section *section, const int64_t *pages,
		     kv_plan_copy copy, void *arg);

#endif
