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

/* Runs of the pool of at least this many bytes are copied one by one.  To start
 * a copy costs one or two microseconds, in which the bus moves about 64 KiB.
 * Staging a MiB in device memory costs about as much: a few hundredths of the
 * MiB's time on the bus. */
#define KV_PLAN_DIRECT ((uint64_t)1 << 20)

/* If the runs of a block in host memory are shorter than this many bytes, as
 * those of one layer are, a kernel accesses them over the bus instead. */
#define KV_PLAN_IN_PLACE ((uint64_t)256 << 10)

/* Bytes that lie end to end both in host memory and in staging. */
struct kv_run {
	uint64_t from, bytes; /* range of bytes in the block's tensors */
	uint64_t at;	      /* offset of the bytes in staging */
};

/* The part of a block that is copied at once: as much as fits into staging or,
 * in place, as many units as a kernel can number. */
struct kv_pass {
	size_t section, n_sections;
	size_t run, n_runs;
	uint64_t stride; /* bytes of staging for each block */
	uint32_t units;	 /* number of units (scatter.h) of each block */
};

struct kv_plan {
	bool in_place; /* a kernel accesses host memory; no runs, no strides */
	struct kv_section *sections; /* sections in the order of passes */
	struct kv_run *runs;
	struct kv_pass *passes;
	struct kv_section *direct; /* no kernel; @at: offset in the tensors */
	size_t n_sections, n_runs, n_passes, n_direct;
	uint32_t lanes;
};

/* Plan to copy the bytes @ranges of @strides (no ranges: all bytes), with at
 * most @staging bytes of staging for a block; 0: in place.  -ENOMEM. */
int kv_plan_init(struct kv_plan *plan, const struct kvfs_strides *strides,
		 const struct kvfs_range *ranges, size_t n_ranges,
		 uint64_t staging);
void kv_plan_fini(struct kv_plan *plan);

/* Return whether the runs in staging are so short that copying in place is
 * faster. */
bool kv_plan_is_short(const struct kv_plan *plan);

/* Call @copy for each run of a direct section of one block, in order.  Runs of
 * adjacent pages become one.  Stop at the first negative result of @copy, and
 * return it. */
typedef int (*kv_plan_copy)(void *arg, uint64_t pool, uint64_t offset,
			    uint64_t bytes);
int kv_plan_each_run(const struct kv_section *section, const int64_t *pages,
		     kv_plan_copy copy, void *arg);

#endif
