/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shapes.h - the layouts of engines' pages: for each the layout of a space, and
 * the views of a pool.
 *
 * A pool's memory is one allocation, in which the engine's tensors lie with
 * gaps between them, so that writes beside a page show.
 */
#ifndef KV_TESTS_GPU_SHAPES_H
#define KV_TESTS_GPU_SHAPES_H

#include <stdio.h>

#include "kernels/kvfs.h"
#include "common/kv.h"

#define SHAPE_VIEWS 160
#define SHAPE_GAP 768u /* bytes between two tensors of an engine */

/* The shape of a model's KV; its type is bf16 unless a layout says
 * otherwise. */
struct dims {
	/* numbers of layers, heads, values of a head, and tokens in a block */
	uint64_t layers, heads, dim, tokens;
};

struct pool_shape {
	char layout[2048];
	size_t n_tensors;
	kvfs_view views[SHAPE_VIEWS];
	size_t n_views;
	uint32_t pages_per_block;
	uint64_t pages;
	/* address and size of the memory; @bytes grows with each tensor */
	uint64_t base, bytes;
	uint64_t block; /* bytes of a block */
};

struct shape {
	const char *name;
	void (*make)(struct pool_shape *pool, const struct dims *dims);
	uint32_t pages_per_block;
};

/* ---- building blocks of shapes ---- */

/* Add a tensor of the engine, and return its address. */
static inline uint64_t shape_memory(struct pool_shape *pool, uint64_t bytes)
{
	uint64_t at = pool->bytes;

	pool->bytes = at + ((bytes + 255) & ~255ull) + SHAPE_GAP;
	return pool->base + at;
}

static inline void shape_tensor(struct pool_shape *pool, const char *name,
				const char *dtype, const char *shape)
{
	size_t len = strlen(pool->layout);

	snprintf(pool->layout + len, sizeof(pool->layout) - len,
		 "%s{\"name\":\"%s\",\"dtype\":\"%s\",\"shape\":[%s]}",
		 pool->n_tensors++ == 0 ? "{\"tensors\":[" : ",", name, dtype,
		 shape);
}

static inline void shape_view(struct pool_shape *pool, const kvfs_view *view)
{
	assert(pool->n_views < SHAPE_VIEWS);
	pool->views[pool->n_views++] = *view;
	pool->block += view->bytes * view->count * pool->pages_per_block;
}

static inline void shape_4(struct pool_shape *pool, const char *name,
			   uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
	char text[96];

	snprintf(text, sizeof(text), "%lu,%lu,%lu,%lu", a, b, c, d);
	shape_tensor(pool, name, "BF16", text);
}

/* One tensor per layer, with @page bytes per page. */
static inline void shape_by_layer(struct pool_shape *pool, const char *name,
				  uint64_t layers, uint64_t page)
{
	uint64_t l;

	for (l = 0; l < layers; l++) {
		kvfs_view view = {name, NULL, page, page, 1, 0};

		view.base = (void *)shape_memory(pool, pool->pages * page);
		shape_view(pool, &view);
	}
}

/* ---- a function for each layout of an engine's pages ---- */

/* A layout in which a block is one contiguous run. */
static inline void page_first(struct pool_shape *pool, const struct dims *d)
{
	uint64_t page = 4 * d->layers * d->heads * d->dim * d->tokens /
			pool->pages_per_block;
	kvfs_view view = {"kv", NULL, page, page, 1, 0};

	shape_4(pool, "kv", d->layers, 2, d->tokens, d->heads * d->dim);
	view.base = (void *)shape_memory(pool, pool->pages * page);
	shape_view(pool, &view);
}

/* One tensor for K and one for V per layer: runs of 32 KiB with Qwen3-4B. */
static inline void layer_first(struct pool_shape *pool, const struct dims *d)
{
	uint64_t page =
		2 * d->heads * d->dim * d->tokens / pool->pages_per_block;

	shape_4(pool, "k", d->layers, d->tokens, d->heads, d->dim);
	shape_4(pool, "v", d->layers, d->tokens, d->heads, d->dim);
	shape_by_layer(pool, "k", d->layers, page);
	shape_by_layer(pool, "v", d->layers, page);
}

/* vLLM, one tensor per layer: all K pages, then all V pages. */
static inline void vllm_split(struct pool_shape *pool, const struct dims *d)
{
	uint64_t page =
		2 * d->heads * d->dim * d->tokens / pool->pages_per_block;
	uint64_t l;

	/* With several pages per block, K and V alternate in the block. */
	shape_4(pool, "kv", d->layers, 2, d->tokens, d->heads * d->dim);
	for (l = 0; l < d->layers; l++) {
		kvfs_view view = {"kv", NULL, page,
				  page, 2,    pool->pages * page};

		view.base = (void *)shape_memory(pool, 2 * pool->pages * page);
		shape_view(pool, &view);
	}
}

/* vLLM, one tensor per layer: K and V of a page side by side. */
static inline void vllm_fused(struct pool_shape *pool, const struct dims *d)
{
	shape_4(pool, "kv", d->layers, 2, d->tokens, d->heads * d->dim);
	shape_by_layer(pool, "kv", d->layers,
		       4 * d->heads * d->dim * d->tokens /
			       pool->pages_per_block);
}

/* Head by head (HND), K and V apart: one view for each, strided by heads, over
 * a tensor in which the tokens of one head in all pages are contiguous. */
static inline void vllm_hnd(struct pool_shape *pool, const struct dims *d)
{
	uint64_t run = 2 * d->dim * d->tokens / pool->pages_per_block, l;

	shape_4(pool, "k", d->layers, d->heads, d->tokens, d->dim);
	shape_4(pool, "v", d->layers, d->heads, d->tokens, d->dim);
	for (l = 0; l < 2 * d->layers; l++) {
		kvfs_view view = {
			l < d->layers ? "k" : "v", NULL, run, run, d->heads,
			pool->pages * run};

		view.base = (void *)shape_memory(pool,
						 d->heads * pool->pages * run);
		shape_view(pool, &view);
	}
}

/* Token by token, K and V of a head fused: runs of 2 * dim bytes. */
static inline void nhd_fused(struct pool_shape *pool, const struct dims *d)
{
	uint64_t run = 2 * d->dim, at[64], l, h;
	uint64_t runs = d->tokens / pool->pages_per_block * d->heads;

	shape_4(pool, "k", d->layers, d->tokens, d->heads, d->dim);
	shape_4(pool, "v", d->layers, d->tokens, d->heads, d->dim);
	assert(d->layers <= KV_ARRAY_LEN(at));
	for (l = 0; l < d->layers; l++)
		at[l] = shape_memory(pool, pool->pages * runs * 2 * run);
	for (l = 0; l < 2 * d->layers; l++) {
		h = l / d->layers;
		shape_view(pool,
			   &(kvfs_view){h == 0 ? "k" : "v",
					(void *)(at[l % d->layers] + h * run),
					runs * 2 * run, run, runs, 2 * run});
	}
}

/* Cross-layer: a page has all layers, each with K before V. */
static inline void cross_layer(struct pool_shape *pool, const struct dims *d)
{
	uint64_t half =
		2 * d->heads * d->dim * d->tokens / pool->pages_per_block;
	uint64_t page = 2 * half * d->layers, at, h;

	shape_4(pool, "k", d->layers, d->heads, d->tokens, d->dim);
	shape_4(pool, "v", d->layers, d->heads, d->tokens, d->dim);
	at = shape_memory(pool, pool->pages * page);
	for (h = 0; h < 2; h++) {
		kvfs_view view = {h == 0 ? "k" : "v", NULL,    page, half,
				  d->layers,	      2 * half};

		view.base = (void *)(at + h * half);
		shape_view(pool, &view);
	}
}

/* SGLang, page first: all layers of a token together, K and V apart. */
static inline void sglang(struct pool_shape *pool, const struct dims *d)
{
	uint64_t page = 2 * d->layers * d->heads * d->dim * d->tokens /
			pool->pages_per_block;

	shape_4(pool, "k", d->tokens, d->layers, d->heads, d->dim);
	shape_4(pool, "v", d->tokens, d->layers, d->heads, d->dim);
	shape_by_layer(pool, "k", 1, page);
	shape_by_layer(pool, "v", 1, page);
}

/* MLA: one tensor without heads, 576 numbers per token. */
static inline void mla(struct pool_shape *pool, const struct dims *d)
{
	shape_4(pool, "kv_c", d->layers, d->tokens, 1, 576);
	shape_by_layer(pool, "kv_c", d->layers,
		       2 * 576 * d->tokens / pool->pages_per_block);
}

/* fp8 values with their scales, and a sparse-attention indexer: unrelated
 * sizes, and runs without alignment. */
static inline void indexer(struct pool_shape *pool, const struct dims *d)
{
	uint64_t tokens = d->tokens / pool->pages_per_block, l;
	char shape[96];

	snprintf(shape, sizeof(shape), "%lu,%lu,%lu", d->layers, d->tokens,
		 2 * d->heads * d->dim);
	shape_tensor(pool, "kv", "F8_E4M3", shape);
	snprintf(shape, sizeof(shape), "%lu,%lu", d->layers, d->tokens);
	shape_tensor(pool, "scale", "F32", shape);
	snprintf(shape, sizeof(shape), "%lu,%lu,33", d->layers, d->tokens);
	shape_tensor(pool, "index_k", "U8", shape);
	shape_by_layer(pool, "kv", d->layers, 2 * d->heads * d->dim * tokens);
	shape_by_layer(pool, "scale", d->layers, 4 * tokens);
	for (l = 0; l < d->layers; l++) {
		/* Rows of 33 bytes, 37 bytes apart. */
		kvfs_view view = {"index_k", NULL, 37 * tokens, 33, tokens, 37};

		view.base =
			(void *)(shape_memory(pool,
					      3 + pool->pages * 37 * tokens) +
				 3);
		shape_view(pool, &view);
	}
}

static const struct shape shapes[] = {
	{"page-first", page_first, 1},
	{"page-first, 4 pages a block", page_first, 4},
	{"layer-first", layer_first, 1},
	{"layer-first, a page a token", layer_first, 4},
	{"vLLM, K and V split", vllm_split, 1},
	{"vLLM, K and V split, 2 pages a block", vllm_split, 2},
	{"vLLM, K and V fused", vllm_fused, 1},
	{"vLLM, HND", vllm_hnd, 1},
	{"NHD, fused by head", nhd_fused, 2},
	{"cross-layer", cross_layer, 1},
	{"SGLang, page-first", sglang, 1},
	{"MLA", mla, 1},
	{"fp8, scales and indexer", indexer, 1},
	{"fp8, scales and indexer, 2 pages a block", indexer, 2},
};

/* Make the shape of a pool of @pages pages at the address @base; @base is 0 if
 * the caller wants to learn the size only. */
static inline void shape_make(const struct shape *shape,
			      const struct dims *dims, uint64_t pages,
			      uint64_t base, struct pool_shape *ret_pool)
{
	size_t len;

	memset(ret_pool, 0, sizeof(*ret_pool));
	ret_pool->pages_per_block = shape->pages_per_block;
	ret_pool->pages = pages;
	ret_pool->base = base;
	ret_pool->bytes = SHAPE_GAP;
	shape->make(ret_pool, dims);
	len = strlen(ret_pool->layout);
	snprintf(ret_pool->layout + len, sizeof(ret_pool->layout) - len,
		 "],\"tokens\":%lu}", dims->tokens);
}

/* ---- expected addresses, computed without the library ---- */

/* Return the offset in the image of run @s of page @page of a view. */
static inline uint64_t shape_at(const struct pool_shape *pool,
				const kvfs_view *view, uint64_t page,
				uint64_t s)
{
	return (uint64_t)view->base - pool->base + page * view->block_stride +
	       s * view->segment_stride;
}

/* Copy page @page of every view from the image to @bytes, or with @back from
 * @bytes to the image. */
static inline void shape_page(const struct pool_shape *pool, uint8_t *image,
			      uint64_t page, uint8_t *bytes, bool back)
{
	const kvfs_view *view;
	uint64_t s;

	for (view = pool->views; view < pool->views + pool->n_views; view++)
		for (s = 0; s < view->count; s++, bytes += view->bytes) {
			uint8_t *at = image + shape_at(pool, view, page, s);

			memcpy(back ? at : bytes, back ? bytes : at,
			       view->bytes);
		}
}

/* Return the bytes of one page, added up over all views. */
static inline uint64_t shape_page_bytes(const struct pool_shape *pool)
{
	return pool->block / pool->pages_per_block;
}

/* Copy the block in these pages from the image to @block, or with @back from
 * @block to the image.  A block has its tensors in order: of each tensor the
 * views in order, of each view the pages in order. */
static inline void shape_block(const struct pool_shape *pool, uint8_t *image,
			       const int64_t *pages, uint8_t *block, bool back)
{
	const kvfs_view *view;
	uint32_t p;
	uint64_t s;

	for (view = pool->views; view < pool->views + pool->n_views; view++)
		for (p = 0; p < pool->pages_per_block; p++)
			for (s = 0; s < view->count; s++) {
				uint8_t *at =
					image + shape_at(pool, view,
							 (uint64_t)pages[p], s);

				if (pages[p] >= 0)
					memcpy(back ? at : block,
					       back ? block : at, view->bytes);
				block += view->bytes;
			}
}

#endif
