/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.h - how the bytes of a batch's blocks travel: which ones by a copy each,
 * which ones through staging memory on the device, by a kernel, and which ones
 * by a kernel that reads or writes them where the host has them.
 *
 * Depends on the layout and the ranges alone, not on blocks and pages.
 */
#ifndef KV_KERNELS_CUDA_PLAN_H
#define KV_KERNELS_CUDA_PLAN_H

#include "kernels/device/device.h"
#include "kernels/device/scatter.h"

/*
 * Runs of the pool at least as long as this are copied one by one.  A copy
 * costs a microsecond or two to begin, in which the bus moves about 64 KiB;
 * going through device memory costs some hundredths of the time of the bus, as
 * much as beginning a copy of this length.
 */
#define KV_PLAN_DIRECT ((uint64_t)1 << 20)

/*
 * Where a block's bytes come in runs shorter than this on the host, too, as
 * those of a single layer do, copies are no good for them at all: a kernel
 * reaches over the bus for them.
 */
#define KV_PLAN_IN_PLACE ((uint64_t)256 << 10)

/* Neighbouring bytes of a block, in host memory and in staging. */
struct kv_run {
	uint64_t from, bytes; /* of the block's tensors */
	uint64_t at;	      /* in staging */
};

/* As much of a block as fits in staging at once; mostly all of it.  In place:
 * as much as a kernel can number. */
struct kv_pass {
	size_t section, n_sections;
	size_t run, n_runs;
	uint64_t stride; /* staging bytes a block */
	uint32_t units;	 /* of work a block */
};

struct kv_plan {
	bool in_place;		     /* no staging: runs and strides are none */
	struct kv_section *sections; /* scattered, in the passes' order */
	struct kv_run *runs;
	struct kv_pass *passes;
	struct kv_section *direct; /* at: offset in the block's tensors */
	size_t n_sections, n_runs, n_passes, n_direct;
	uint32_t lanes;
};

/* For @ranges of @strides (none: all), with @staging bytes for a block at most;
 * 0: in place, as the kernel can reach all blocks' bytes.  -ENOMEM. */
int kv_plan_init(struct kv_plan *plan, const struct kvfs_strides *strides,
		 const struct kvfs_range *ranges, size_t n_ranges,
		 uint64_t staging);
void kv_plan_fini(struct kv_plan *plan);

/* Whether its copies to or from staging are so short that it had better be in
 * place. */
bool kv_plan_is_short(const struct kv_plan *plan);

/*
 * Call @copy for every run of a direct section of one block, from first to
 * last, pages that follow each other in memory as one.  Stops at the first
 * negative result, and returns it.
 */
typedef int (*kv_plan_copy)(void *arg, uint64_t pool, uint64_t offset,
			    uint64_t bytes);
int kv_plan_each_run(const struct kv_section *section, const int64_t *pages,
		     kv_plan_copy copy, void *arg);

#endif
