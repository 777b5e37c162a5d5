/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer.c - a batch's way from host memory to pages and back.
 *
 * OWNS      nothing beyond a call.
 *
 * INVARIANTS
 *   (1) Everything of a batch is given to one stream, behind its event wait,
 *       and is over when kv_transfer returns, however it ends.
 *
 * LOCKING   none: the batch is the caller's while it runs.
 */
#include "kernels/cuda/copy_stream.h"
#include "kernels/cuda/event_wait.h"
#include "kernels/cuda/pinned.h"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/transfer.h"

struct transfer {
	const struct kvfs_batch *batch;
	struct kv_copy_stream *copy_stream;
	struct kv_plan plan;
	uint64_t pages_at, blocks_at; /* of the tables */
	uint8_t *tensors;	      /* of the block being copied run by run */
};

static bool is_skipped(const struct kvfs_batch *batch, size_t i)
{
	uint32_t n = batch->strides->pages_per_block;

	for (uint32_t p = 0; p < n; p++)
		if (batch->copies[i].pages[p] >= 0)
			return false;
	return true;
}

/* Sections, then all blocks' pages and, in place, where the blocks are, for
 * the kernels to read. */
static int upload_tables(struct transfer *t)
{
	const struct kvfs_batch *batch = t->batch;
	size_t a_block = batch->strides->pages_per_block * sizeof(int64_t);
	uint64_t bytes;
	uint8_t *tables;
	void *at;
	int r;

	t->pages_at = t->plan.n_sections * sizeof(*t->plan.sections);
	t->blocks_at = t->pages_at + batch->n * a_block;
	bytes = t->blocks_at;
	if (t->plan.in_place)
		bytes += batch->n * sizeof(uint64_t);
	r = kv_copy_stream_tables(t->copy_stream, bytes, &at);
	if (r < 0)
		return r;
	tables = at;
	memcpy(tables, t->plan.sections, t->pages_at);
	for (size_t i = 0; i < batch->n; i++) {
		uint64_t block = (uintptr_t)batch->copies[i].tensors;

		memcpy(tables + t->pages_at + i * a_block,
		       batch->copies[i].pages, a_block);
		if (t->plan.in_place)
			memcpy(tables + t->blocks_at + i * sizeof(block),
			       &block, sizeof(block));
	}
	return kv_copy_stream_upload(t->copy_stream, bytes);
}

/* Between a block's tensors and its place in the device's staging memory. */
static int copy_runs(struct transfer *t, const struct kv_pass *pass, size_t i,
		     CUdeviceptr staging)
{
	uint8_t *tensors = t->batch->copies[i].tensors;
	const struct kv_run *run = t->plan.runs + pass->run;
	const struct kv_run *end = run + pass->n_runs;
	int r = 0;

	if (is_skipped(t->batch, i))
		return 0;
	for (; run < end && r == 0; run++)
		r = t->copy_stream->loads
			    ? kv_copy_stream_load(
				      t->copy_stream, staging + run->at,
				      tensors + run->from, run->bytes)
			    : kv_copy_stream_save(
				      t->copy_stream, tensors + run->from,
				      staging + run->at, run->bytes);
	return r;
}

static int copy_all_runs(struct transfer *t, const struct kv_pass *pass,
			 size_t first, size_t n)
{
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++)
		r = copy_runs(t, pass, first + i,
			      t->copy_stream->staging + i * pass->stride);
	return r;
}

static int launch(struct transfer *t, const struct kv_pass *pass, size_t first,
		  size_t n)
{
	uint32_t ppb = t->batch->strides->pages_per_block;
	CUdeviceptr sections = t->copy_stream->tables +
			       pass->section * sizeof(struct kv_section);
	CUdeviceptr pages = t->copy_stream->tables + t->pages_at +
			    first * ppb * sizeof(int64_t);
	CUdeviceptr blocks = t->copy_stream->tables + t->blocks_at +
			     first * sizeof(uint64_t);
	const struct kv_scatter_args what = {
		.sections = (const void *)(uintptr_t)sections,
		.pages = (const void *)(uintptr_t)pages,
		.blocks = t->plan.in_place ? (const void *)(uintptr_t)blocks
					   : NULL,
		.staging = t->copy_stream->staging,
		.staging_stride = pass->stride,
		.n_sections = (uint32_t)pass->n_sections,
		.pages_per_block = ppb,
		.block_units = pass->units,
		.units = (uint32_t)(pass->units * n),
		.lanes = t->plan.lanes,
	};

	return kv_copy_stream_scatter(t->copy_stream, &what);
}

/* The part @pass of all blocks, as many at a time as staging holds, or as a
 * kernel can number. */
static int do_pass(struct transfer *t, const struct kv_pass *pass)
{
	size_t n, at_once = t->plan.in_place ? UINT32_MAX / pass->units
					     : t->copy_stream->staging_bytes /
						       pass->stride;
	int r = 0;

	for (size_t i = 0; i < t->batch->n && r == 0; i += n) {
		n = KV_MIN(t->batch->n - i, at_once);
		if (t->plan.in_place) {
			r = launch(t, pass, i, n);
		} else if (t->copy_stream->loads) {
			r = copy_all_runs(t, pass, i, n);
			if (r == 0)
				r = launch(t, pass, i, n);
		} else {
			r = launch(t, pass, i, n);
			if (r == 0)
				r = copy_all_runs(t, pass, i, n);
		}
	}
	return r;
}

static int copy_run(void *arg, uint64_t pool, uint64_t offset, uint64_t bytes)
{
	struct transfer *t = arg;

	return t->copy_stream->loads
		       ? kv_copy_stream_load(t->copy_stream, pool,
					     t->tensors + offset, bytes)
		       : kv_copy_stream_save(t->copy_stream,
					     t->tensors + offset, pool, bytes);
}

static int do_direct(struct transfer *t)
{
	int r = 0;

	for (size_t i = 0; i < t->batch->n && r == 0; i++) {
		t->tensors = t->batch->copies[i].tensors;
		for (size_t s = 0; s < t->plan.n_direct && r == 0; s++)
			r = kv_plan_each_run(&t->plan.direct[s],
					     t->batch->copies[i].pages,
					     copy_run, t);
	}
	return r;
}

/* Whether the GPU can reach what is asked for of all blocks: from the first
 * byte on to the last one. */
static bool reaches_all(const struct transfer *t)
{
	const struct kvfs_batch *batch = t->batch;
	const struct kvfs_strides *strides = batch->strides;
	const struct kvfs_stride *last = &strides->stride[strides->n - 1];
	uint64_t from = 0, to = last->offset + last->bytes * last->count *
						       strides->pages_per_block;

	if (!t->copy_stream->gpu->same_addresses)
		return false;
	if (batch->n_ranges > 0) {
		from = batch->ranges[0].from;
		to = KV_MIN(to, batch->ranges[batch->n_ranges - 1].to);
	}
	for (size_t i = 0; i < batch->n; i++)
		if (!is_skipped(batch, i) &&
		    !kv_pinned_has(batch->copies[i].tensors + from, to - from))
			return false;
	return true;
}

static int make_plan(struct transfer *t, uint64_t staging)
{
	return kv_plan_init(&t->plan, t->batch->strides, t->batch->ranges,
			    t->batch->n_ranges, staging);
}

/* Give all of it to the copy stream's stream. */
static int submit(struct transfer *t)
{
	int r = make_plan(t, t->copy_stream->staging_bytes);

	if (r == 0 && kv_plan_is_short(&t->plan) && reaches_all(t)) {
		kv_plan_fini(&t->plan);
		r = make_plan(t, 0);
	}
	if (r == 0 && t->plan.n_passes > 0)
		r = upload_tables(t);
	for (size_t i = 0; i < t->plan.n_passes && r == 0; i++)
		r = do_pass(t, &t->plan.passes[i]);
	return r == 0 ? do_direct(t) : r;
}

/* The library may make streams wait for what it was given.  If it cannot be told
 * it takes the batch for submitted when that is over. */
static void tell_submitted(struct kv_gpu *gpu, const struct transfer *t)
{
	struct kv_event_wait *end;

	if (t->batch->submitted &&
	    kv_event_wait_new(gpu, t->copy_stream->stream, NULL, &end) == 0)
		t->batch->submitted(t->batch, end);
}

int kv_transfer(struct kv_gpu *gpu, const struct kvfs_batch *batch, bool loads)
{
	struct transfer t = {.batch = batch};
	bool urgent = loads ? batch->priority >= 0 : batch->priority > 0;
	CUevent after = !batch->event_wait
				? NULL
				: kv_event_wait_event(batch->event_wait);
	struct kv_gpu_entry entry;
	int r;

	r = kv_gpu_enter(gpu, &entry);
	if (r < 0)
		return r;
	r = kv_copy_stream_get(gpu, urgent, loads, after, &t.copy_stream);
	if (r == 0) {
		r = submit(&t);
		if (r == 0)
			r = kv_copy_stream_flush(t.copy_stream);
		if (r == 0)
			tell_submitted(gpu, &t);
		r = kv_copy_stream_put(t.copy_stream, r);
	}
	kv_plan_fini(&t.plan);
	kv_gpu_leave(&entry);
	return r;
}
