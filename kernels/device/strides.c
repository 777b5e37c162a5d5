/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strides.c - from the views of a pool's descriptor to the strides of a block.
 *
 * OWNS      nothing: the strides made belong to the caller.
 *
 * INVARIANTS
 *   (1) Strides are in the order of the block's bytes, without gaps, and cover
 *       each of them once.
 *   (2) Every byte of every page of a stride lies in the memory described.
 *   (3) Within a stride no two bytes of the pool are the same.
 *
 * LOCKING   none.
 */
#include "kernels/device/strides.h"

/* a * b + c; false if that is no uint64_t. */
static bool mul_add(uint64_t a, uint64_t b, uint64_t c, uint64_t *ret)
{
	return !__builtin_mul_overflow(a, b, ret) &&
	       !__builtin_add_overflow(*ret, c, ret);
}

/*
 * Whether the @count runs of a page and the pages themselves keep apart.
 * Either all of a page lies within one block_stride, or pages interleave: one
 * run of each page lies within one segment_stride (as in head-first layouts).
 */
static bool keeps_apart(const kvfs_view *view, uint64_t pages, uint64_t page,
			uint64_t *ret_extent)
{
	uint64_t all_pages;

	if (view->count > 1 && view->segment_stride < view->bytes)
		return false;
	if (!mul_add(pages - 1, view->block_stride, page, ret_extent))
		return false;
	if (pages == 1 || view->block_stride >= page)
		return true;
	return view->block_stride >= view->bytes &&
	       mul_add(pages - 1, view->block_stride, view->bytes,
		       &all_pages) &&
	       view->segment_stride >= all_pages;
}

static int check_view(const kvfs_pool_desc *desc, const kvfs_view *view)
{
	uint64_t page, extent, end, memory_end;
	uint64_t base = (uintptr_t)view->base;
	uint64_t memory = (uintptr_t)desc->memory;

	if (!view->tensor || !view->base || view->bytes == 0 ||
	    view->count == 0 || (view->block_stride == 0 && desc->pages > 1))
		return -EINVAL;
	if (!mul_add(view->count - 1, view->segment_stride, view->bytes,
		     &page) ||
	    !keeps_apart(view, desc->pages, page, &extent) ||
	    __builtin_add_overflow(base, extent, &end))
		return -EINVAL;
	if (memory == 0 && desc->memory_bytes == 0)
		return 0;
	if (memory == 0 ||
	    __builtin_add_overflow(memory, desc->memory_bytes, &memory_end))
		return -EINVAL;
	return base >= memory && end <= memory_end ? 0 : -EINVAL;
}

/* Runs without gaps between them are one. */
static struct kv_stride stride_of(const kvfs_view *view, uint64_t offset)
{
	struct kv_stride stride = {
		.offset = offset,
		.base = view->base,
		.block_stride = view->block_stride,
		.bytes = view->bytes,
		.count = view->count,
		.segment_stride = view->segment_stride,
	};

	if (view->count > 1 && view->segment_stride == view->bytes) {
		stride.bytes *= view->count;
		stride.count = 1;
	}
	return stride;
}

/* A stride that goes on where the last one ends, page for page, is part of it;
 * only with one page a block, as otherwise the pages come in between. */
static bool join(struct kv_strides *strides, const struct kv_stride *next)
{
	struct kv_stride *last;

	if (strides->n == 0 || strides->pages_per_block != 1)
		return false;
	last = &strides->stride[strides->n - 1];
	if (last->count != 1 || next->count != 1 ||
	    last->block_stride != next->block_stride ||
	    last->base + last->bytes != next->base)
		return false;
	last->bytes += next->bytes;
	return true;
}

/* The views of @tensor, in their order, must be its bytes exactly. */
static int add_tensor(const kvfs_pool_desc *desc,
		      const struct kv_tensor *tensor,
		      struct kv_strides *strides)
{
	uint64_t at = 0, bytes;

	for (size_t i = 0; i < desc->n_views; i++) {
		const kvfs_view *view = &desc->views[i];
		struct kv_stride stride;

		if (strcmp(view->tensor, tensor->name) != 0)
			continue;
		if (!mul_add(view->bytes, view->count, 0, &bytes) ||
		    !mul_add(bytes, desc->pages_per_block, 0, &bytes) ||
		    bytes > tensor->bytes - at)
			return -EINVAL;
		stride = stride_of(view, tensor->offset + at);
		if (!join(strides, &stride))
			strides->stride[strides->n++] = stride;
		at += bytes;
	}
	return at == tensor->bytes ? 0 : -EINVAL;
}

static bool has_tensor(const struct kv_layout *layout, const char *name)
{
	for (uint32_t i = 0; i < layout->n_tensors; i++)
		if (strcmp(layout->tensors[i].name, name) == 0)
			return true;
	return false;
}

int kv_strides_new(const kvfs_pool_desc *desc, const struct kv_layout *layout,
		   struct kv_strides *ret_strides)
{
	_cleanup_(kv_freep) struct kv_stride *stride = NULL;
	struct kv_strides strides = {.pages_per_block = desc->pages_per_block};
	int r;

	for (size_t i = 0; i < desc->n_views; i++) {
		r = check_view(desc, &desc->views[i]);
		if (r < 0)
			return r;
		if (!has_tensor(layout, desc->views[i].tensor))
			return -EINVAL;
	}
	stride = calloc(desc->n_views + 1, sizeof(*stride));
	if (!stride)
		return -ENOMEM;
	strides.stride = stride;
	for (size_t i = 0; i < layout->n_tensors; i++) {
		r = add_tensor(desc, &layout->tensors[i], &strides);
		if (r < 0)
			return r;
	}
	stride = NULL;
	*ret_strides = strides;
	return 0;
}
