/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.c - plan how the bytes of a batch's blocks are copied.
 *
 * OWNS      a plan's arrays.
 *
 * INVARIANTS
 *   (1) Each requested byte is in one section, direct or scattered.
 *   (2) Scattered sections are in ascending order of their bytes; those of a
 *       pass have ascending places in staging, and fit there.
 *   (3) The address of a byte and its place in staging have the same offset from
 *       a multiple of 16, as far as the layout allows.
 *   (4) In place, kv_section.at is the offset of the bytes in the block.
 *
 * LOCKING   none: a plan belongs to the thread that made it.
 */
#include "common/array.h"
#include "kernels/cuda/plan.h"

#define ALIGN 16u
#define UNITS_MAX ((uint32_t)1 << 24) /* a kernel counts units in 32 bits */

/* Make room for one more element in each array of the plan. */
static int make_room(struct kv_plan *plan)
{
	if (kv_array_more(&plan->sections, plan->n_sections) < 0 ||
	    kv_array_more(&plan->runs, plan->n_runs) < 0 ||
	    kv_array_more(&plan->passes, plan->n_passes) < 0 ||
	    kv_array_more(&plan->direct, plan->n_direct) < 0)
		return -ENOMEM;
	return 0;
}

/* Return whether byte @from of the block follows the last run of the pass. */
static bool goes_on(const struct kv_plan *plan, const struct kv_pass *pass,
		    uint64_t from)
{
	const struct kv_run *last;

	if (pass->n_runs == 0)
		return false;
	last = &plan->runs[pass->run + pass->n_runs - 1];
	return last->from + last->bytes == from;
}

static struct kv_pass *next_pass(struct kv_plan *plan)
{
	struct kv_pass *pass = &plan->passes[plan->n_passes++];

	*pass = (struct kv_pass){.section = plan->n_sections,
				 .run = plan->n_runs};
	return pass;
}

/* Add a section, which begins at byte @from of the block: to the direct
 * sections, or in parts that fit into staging and that a kernel can number. */
static int add_section(struct kv_plan *plan, struct kv_section section,
		       uint64_t from, uint64_t staging)
{
	uint64_t run = section.first / section.bytes, units;
	uint64_t skip = section.first % section.bytes;
	uint64_t end = from + section.length, n;
	struct kv_pass *pass;

	/* Make a section that lies within one run a run of its own.  Otherwise
	 * the kernel would count the units of the whole run, which has all
	 * layers. */
	if (skip + section.length <= section.bytes &&
	    section.length != section.bytes) {
		section.base +=
			run % section.count * section.segment_stride + skip;
		section.first = run / section.count * section.length;
		section.bytes = section.length;
		section.count = 1;
	}
	if (section.bytes >= KV_PLAN_DIRECT) {
		if (make_room(plan) < 0)
			return -ENOMEM;
		section.at = from;
		plan->direct[plan->n_direct++] = section;
		return 0;
	}
	for (; from < end; from += n, section.first += n) {
		if (make_room(plan) < 0)
			return -ENOMEM;
		pass = plan->n_passes == 0 ? next_pass(plan)
					   : &plan->passes[plan->n_passes - 1];
		if (plan->in_place)
			section.at = from;
		else if (goes_on(plan, pass, from))
			section.at = pass->stride;
		else
			section.at =
				kv_round_up(pass->stride, ALIGN) + from % ALIGN;
		section.unit = pass->units;
		n = end - from;
		if (!plan->in_place)
			n = KV_MIN(n, staging - KV_MIN(section.at, staging));
		units = n == 0 ? 0
			       : kv_scatter_units(section.bytes, section.first,
						  n);
		/* The runs are shorter than a unit: take as many runs as a
		 * kernel can number units. */
		if (units > UNITS_MAX) {
			n = KV_MIN(n, section.bytes * (UNITS_MAX - 1));
			units = kv_scatter_units(section.bytes, section.first,
						 n);
		}
		if (n == 0 ||
		    (pass->units > 0 && pass->units + units > UNITS_MAX)) {
			next_pass(plan);
			n = 0;
			continue;
		}
		section.length = n;
		plan->sections[plan->n_sections++] = section;
		pass->n_sections++;
		pass->units += (uint32_t)units;
		if (plan->in_place)
			continue;
		if (goes_on(plan, pass, from)) {
			plan->runs[pass->run + pass->n_runs - 1].bytes += n;
		} else {
			plan->runs[plan->n_runs++] =
				(struct kv_run){from, n, section.at};
			pass->n_runs++;
		}
		pass->stride = section.at + n;
	}
	return 0;
}

/* Add the part of @stride that lies in @range. */
static int add_part(struct kv_plan *plan, const struct kvfs_strides *strides,
		    const struct kvfs_stride *stride,
		    const struct kvfs_range *range, uint64_t staging)
{
	uint64_t all = stride->bytes * stride->count * strides->pages_per_block;
	uint64_t from = KV_MAX(range->from, stride->offset);
	uint64_t to = KV_MIN(range->to, stride->offset + all);
	struct kv_section section = {
		.base = (uintptr_t)stride->base,
		.block_stride = stride->block_stride,
		.segment_stride = stride->segment_stride,
		.bytes = stride->bytes,
		.count = stride->count,
		.first = from - stride->offset,
		.length = to - from,
	};
	uint64_t first = stride->bytes - section.first % stride->bytes;
	int r = 0;

	if (from >= to)
		return 0;
	/* A part shorter than a run lies in two runs: add both pieces. */
	if (section.length < stride->bytes && section.length > first) {
		section.length = first;
		r = add_section(plan, section, from, staging);
		from += first;
		section.first += first;
		section.length = to - from;
	}
	return r < 0 ? r : add_section(plan, section, from, staging);
}

int kv_plan_init(struct kv_plan *plan, const struct kvfs_strides *strides,
		 const struct kvfs_range *ranges, size_t n_ranges,
		 uint64_t staging)
{
	static const struct kvfs_range all = {0, UINT64_MAX};
	uint64_t longest = 0;
	int r = 0;

	memset(plan, 0, sizeof(*plan));
	plan->in_place = staging == 0;
	if (n_ranges == 0) {
		ranges = &all;
		n_ranges = 1;
	}
	/* Compare each range with each stride, as both are few. */
	for (size_t i = 0; i < n_ranges && r == 0; i++)
		for (size_t p = 0; p < strides->n && r == 0; p++)
			r = add_part(plan, strides, &strides->stride[p],
				     &ranges[i], staging);
	if (r < 0) {
		kv_plan_fini(plan);
		return r;
	}
	for (size_t i = 0; i < plan->n_passes; i++)
		plan->passes[i].stride =
			kv_round_up(plan->passes[i].stride, ALIGN);
	/* Use fewer lanes (threads for a unit) if sections are short: others
	 * would be idle. */
	for (size_t i = 0; i < plan->n_sections; i++)
		longest = KV_MAX(longest, plan->sections[i].bytes);
	for (plan->lanes = 32;
	     plan->lanes > 1 && (uint64_t)plan->lanes / 2 * ALIGN >= longest;)
		plan->lanes /= 2;
	return 0;
}

bool kv_plan_is_short(const struct kv_plan *plan)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < plan->n_runs; i++)
		bytes += plan->runs[i].bytes;
	return bytes < plan->n_runs * KV_PLAN_IN_PLACE;
}

void kv_plan_fini(struct kv_plan *plan)
{
	free(plan->sections);
	free(plan->runs);
	free(plan->passes);
	free(plan->direct);
	memset(plan, 0, sizeof(*plan));
}

int kv_plan_each_run(const struct kv_section *section, const int64_t *pages,
		     kv_plan_copy copy, void *arg)
{
	uint64_t done = 0, n, pool, run, skip, next;
	int64_t page;
	int r = 0;

	for (; done < section->length && r >= 0; done += n) {
		run = (section->first + done) / section->bytes;
		skip = (section->first + done) % section->bytes;
		n = KV_MIN(section->bytes - skip, section->length - done);
		page = pages[run / section->count];
		if (page < 0)
			continue;
		pool = section->base + (uint64_t)page * section->block_stride +
		       run % section->count * section->segment_stride + skip;
		/* With one run in a page, runs of adjacent pages may touch. */
		while (section->count == 1 && done + n < section->length &&
		       section->block_stride == section->bytes) {
			next = (section->first + done + n) / section->bytes;
			if (pages[next] != ++page)
				break;
			n += KV_MIN(section->bytes, section->length - done - n);
		}
		r = copy(arg, pool, section->at + done, n);
	}
	return r;
}
