/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan.c - how the bytes of a batch's blocks travel.
 *
 * OWNS      a plan's arrays.
 *
 * INVARIANTS
 *   (1) Each byte asked for is in one section, direct or scattered.
 *   (2) Scattered sections are in ascending order of their bytes; those of a
 *       pass have ascending places in staging, and fit there.
 *   (3) A byte's address and its place in staging are off by the same from a
 *       multiple of 16, so far as the layout itself allows.
 *   (4) In place, a section's place is that of its bytes in the block.
 *
 * LOCKING   none: a plan belongs to the thread that made it.
 */
#include "kernels/cuda/plan.h"

#define ALIGN 16u
/* A kernel numbers its units with 32 bits. */
#define UNITS_MAX ((uint32_t)1 << 24)

static int grow(struct kv_plan *plan)
{
	size_t n = plan->room == 0 ? 64 : 2 * plan->room;
	void *sections, *runs, *passes, *direct;

	sections = reallocarray(plan->sections, n, sizeof(*plan->sections));
	if (sections)
		plan->sections = sections;
	runs = reallocarray(plan->runs, n, sizeof(*plan->runs));
	if (runs)
		plan->runs = runs;
	passes = reallocarray(plan->passes, n, sizeof(*plan->passes));
	if (passes)
		plan->passes = passes;
	direct = reallocarray(plan->direct, n, sizeof(*plan->direct));
	if (direct)
		plan->direct = direct;
	if (!sections || !runs || !passes || !direct)
		return -ENOMEM;
	plan->room = n;
	return 0;
}

static int make_room(struct kv_plan *plan)
{
	if (plan->n_sections < plan->room && plan->n_runs < plan->room &&
	    plan->n_passes < plan->room && plan->n_direct < plan->room)
		return 0;
	return grow(plan);
}

/* Whether @from goes on where the last run ends. */
static bool goes_on(const struct kv_plan *plan, const struct kv_pass *pass,
		    uint64_t from)
{
	const struct kv_run *last;

	if (pass->n_runs == 0)
		return false;
	last = &plan->runs[pass->run + pass->n_runs - 1];
	return last->from + last->bytes == from;
}

/* Where a run from @from on begins in staging. */
static uint64_t place(const struct kv_plan *plan, const struct kv_pass *pass,
		      uint64_t from)
{
	if (goes_on(plan, pass, from))
		return pass->stride;
	return kv_round_up(pass->stride, ALIGN) + from % ALIGN;
}

static void add_run(struct kv_plan *plan, struct kv_pass *pass, uint64_t from,
		    uint64_t bytes, uint64_t at)
{
	if (goes_on(plan, pass, from)) {
		plan->runs[pass->run + pass->n_runs - 1].bytes += bytes;
	} else {
		plan->runs[plan->n_runs++] = (struct kv_run){from, bytes, at};
		pass->n_runs++;
	}
	pass->stride = at + bytes;
}

static struct kv_pass *next_pass(struct kv_plan *plan)
{
	struct kv_pass *pass = &plan->passes[plan->n_passes++];

	*pass = (struct kv_pass){.section = plan->n_sections,
				 .run = plan->n_runs};
	return pass;
}

/* As much of @left bytes as there is room for, of @section from @first on. */
static uint64_t fit(const struct kv_section *section, uint64_t first,
		    uint64_t left, uint64_t room)
{
	uint64_t n = KV_MIN(left, room), units;

	units = kv_scatter_units(section->bytes, first, n);
	if (units <= UNITS_MAX)
		return n;
	/* Runs of less than a unit: so many of them. */
	return KV_MIN(n, section->bytes * (UNITS_MAX - 1));
}

/* In place: as much of it as a kernel can number. */
static int add_in_place(struct kv_plan *plan, const struct kv_section *section,
			uint64_t from)
{
	uint64_t done = 0, n, units;
	struct kv_pass *pass;

	for (; done < section->length; done += n) {
		struct kv_section part = *section;

		if (make_room(plan) < 0)
			return -ENOMEM;
		pass = plan->n_passes == 0 ? next_pass(plan)
					   : &plan->passes[plan->n_passes - 1];
		part.first += done;
		n = fit(section, part.first, section->length - done,
			UINT64_MAX);
		units = kv_scatter_units(section->bytes, part.first, n);
		if (pass->units + units > UNITS_MAX)
			pass = next_pass(plan);
		part.length = n;
		part.at = from + done;
		part.unit = pass->units;
		plan->sections[plan->n_sections++] = part;
		pass->n_sections++;
		pass->units += (uint32_t)units;
	}
	return 0;
}

/* Cut the scattered section in passes; it begins at @from of the block. */
static int add_scattered(struct kv_plan *plan, const struct kv_section *section,
			 uint64_t from, uint64_t staging)
{
	uint64_t done = 0, n, at, units;
	struct kv_pass *pass;

	while (done < section->length) {
		struct kv_section part = *section;

		if (make_room(plan) < 0)
			return -ENOMEM;
		pass = plan->n_passes == 0 ? next_pass(plan)
					   : &plan->passes[plan->n_passes - 1];
		at = place(plan, pass, from + done);
		n = at >= staging ? 0
				  : fit(section, section->first + done,
					section->length - done, staging - at);
		units = n == 0 ? 0
			       : kv_scatter_units(section->bytes,
						  section->first + done, n);
		if (n == 0 || pass->units + units > UNITS_MAX) {
			next_pass(plan);
			continue;
		}
		part.first += done;
		part.length = n;
		part.at = at;
		part.unit = pass->units;
		plan->sections[plan->n_sections++] = part;
		pass->n_sections++;
		pass->units += (uint32_t)units;
		add_run(plan, pass, from + done, n, at);
		done += n;
	}
	return 0;
}

static int add_direct(struct kv_plan *plan, const struct kv_section *section,
		      uint64_t from)
{
	int r = make_room(plan);

	if (r < 0)
		return r;
	plan->direct[plan->n_direct] = *section;
	plan->direct[plan->n_direct++].at = from;
	return 0;
}

/* A part of a single run, as if that were all of it: or the kernel would count
 * the whole run's units, as many a page as all layers have. */
static void narrow(struct kv_section *section)
{
	uint64_t run = section->first / section->bytes;
	uint64_t skip = section->first % section->bytes;

	if (skip + section->length > section->bytes ||
	    section->length == section->bytes)
		return;
	section->base += run % section->count * section->segment_stride + skip;
	section->first = run / section->count * section->length;
	section->bytes = section->length;
	section->count = 1;
}

static int add_section(struct kv_plan *plan, struct kv_section section,
		       uint64_t from, uint64_t staging)
{
	narrow(&section);
	if (section.bytes >= KV_PLAN_DIRECT)
		return add_direct(plan, &section, from);
	return plan->in_place ? add_in_place(plan, &section, from)
			      : add_scattered(plan, &section, from, staging);
}

/* The part of @stride that lies in @range. */
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
	/* Less than a run, in two: each by itself. */
	if (section.length < stride->bytes && section.length > first) {
		section.length = first;
		r = add_section(plan, section, from, staging);
		from += first;
		section.first += first;
		section.length = to - from;
	}
	return r < 0 ? r : add_section(plan, section, from, staging);
}

/* A run of all threads' accesses is no longer than most runs of the pool. */
static uint32_t lanes_for(const struct kv_plan *plan)
{
	uint64_t longest = 0;
	uint32_t lanes = 32;

	for (size_t i = 0; i < plan->n_sections; i++)
		longest = KV_MAX(longest, plan->sections[i].bytes);
	while (lanes > 1 && (uint64_t)lanes / 2 * ALIGN >= longest)
		lanes /= 2;
	return lanes;
}

int kv_plan_init(struct kv_plan *plan, const struct kvfs_strides *strides,
		 const struct kvfs_range *ranges, size_t n_ranges,
		 uint64_t staging)
{
	static const struct kvfs_range all = {0, UINT64_MAX};
	int r = 0;

	memset(plan, 0, sizeof(*plan));
	plan->in_place = staging == 0;
	if (n_ranges == 0) {
		ranges = &all;
		n_ranges = 1;
	}
	/* Both ascend, and are few. */
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
	plan->lanes = lanes_for(plan);
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
		/* With one run a page, the next page's may follow at once. */
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
