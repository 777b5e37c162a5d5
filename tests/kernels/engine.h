/* SPDX-License-Identifier: Apache-2.0 */
/* engine.h - paged memory as engines lay it out, and the address of each byte
 * of a block, computed by the engine's own arithmetic. */
#ifndef KV_TESTS_KERNELS_ENGINE_H
#define KV_TESTS_KERNELS_ENGINE_H

#include "tests/kernels/world.h"

#define TOKENS 16u
#define HEADS 4u
#define ENGINE_PAGES 32u
#define LAYERS 3u
#define VIEWS_MAX 16

/* One tensor of a block: @planes times pages_per_block times @per bytes. */
struct engine_tensor {
	const char *name, *dtype, *shape;
	uint32_t planes; /* number of planes; each holds a part of all pages */
	uint64_t per;	 /* bytes of one plane of one page */
};

enum engine_way {
	PLANES, /* [plane][page][...]: vLLM layer-first, MLA, scales */
	/* the memory of PLANES, described as pairs: vLLM's fused K and V */
	PAIRS,
	HEADS_FIRST, /* [plane][head][page][...]: a page is in several places */
	PAGES_FIRST, /* [page][plane][...]: cross-layer, page-first */
};

struct engine {
	const char *name;
	enum engine_way way;
	uint32_t pages_per_block;
	const char *reuse;
	size_t n;
	struct engine_tensor tensors[4];
};

/* Return the offset of the tensor's memory, behind the tensors before it. */
static inline uint64_t engine_base(const struct engine *e, size_t t)
{
	uint64_t at = 0;

	while (t-- > 0)
		at += ENGINE_PAGES * e->tensors[t].planes * e->tensors[t].per;
	return at;
}

static inline uint64_t engine_bytes(const struct engine *e)
{
	return engine_base(e, e->n);
}

/* Return byte @j of plane @plane in page @page. */
static inline uint64_t engine_at(const struct engine *e, size_t t,
				 uint64_t plane, uint64_t page, uint64_t j)
{
	const struct engine_tensor *tensor = &e->tensors[t];
	uint64_t base = engine_base(e, t), run = tensor->per / HEADS;

	switch (e->way) {
	case HEADS_FIRST:
		return base + plane * ENGINE_PAGES * tensor->per +
		       (j / run * ENGINE_PAGES + page) * run + j % run;
	case PAGES_FIRST:
		return base + (page * tensor->planes + plane) * tensor->per + j;
	default:
		return base + (plane * ENGINE_PAGES + page) * tensor->per + j;
	}
}

static inline uint8_t engine_byte(uint32_t block, size_t t, uint64_t i)
{
	return (uint8_t)(block * 37 + t * 101 + i * 7 + i / 253 + 1);
}

static inline char *engine_layout(const struct engine *e)
{
	static char text[2048];
	size_t i, at;

	at = (size_t)sprintf(text, "{\"tensors\":[");
	for (i = 0; i < e->n; i++)
		at += (size_t)sprintf(
			text + at,
			"%s{\"name\":\"%s\",\"dtype\":\"%s\",\"shape\":%s}",
			i > 0 ? "," : "", e->tensors[i].name,
			e->tensors[i].dtype, e->tensors[i].shape);
	sprintf(text + at, "],\"tokens\":%u,\"reuse\":\"%s\"}", TOKENS,
		e->reuse != NULL ? e->reuse : "prefix");
	return text;
}

/* Return the views of a plane (or a pair) as the engine describes them. */
static inline kvfs_view engine_view(const struct engine *e, uint8_t *memory,
				    size_t t, uint64_t plane)
{
	const struct engine_tensor *tensor = &e->tensors[t];
	const uint64_t all = ENGINE_PAGES * tensor->per;
	kvfs_view view = {
		.tensor = tensor->name,
		.base = memory + engine_at(e, t, plane, 0, 0),
		.block_stride = tensor->per,
		.bytes = tensor->per,
		.count = 1,
	};

	if (e->way == HEADS_FIRST) {
		view.block_stride = view.bytes = tensor->per / HEADS;
		view.count = HEADS;
		view.segment_stride = all / HEADS;
	} else if (e->way == PAGES_FIRST) {
		view.block_stride = tensor->planes * tensor->per;
	} else if (e->way == PAIRS) {
		view.count = 2;
		view.segment_stride = all;
	}
	return view;
}

static inline size_t engine_views(const struct engine *e, uint8_t *memory,
				  kvfs_view *views)
{
	uint64_t plane, step = e->way == PAIRS ? 2 : 1;
	size_t t, n = 0;

	for (t = 0; t < e->n; t++)
		for (plane = 0; plane < e->tensors[t].planes; plane += step)
			views[n++] = engine_view(e, memory, t, plane);
	return n;
}

static inline kvfs_pool_desc engine_desc(const struct engine *e,
					 kvfs_space *space, uint8_t *memory,
					 kvfs_view *views)
{
	return (kvfs_pool_desc){
		.size = sizeof(kvfs_pool_desc),
		.device = "host",
		.space = space,
		.views = views,
		.n_views = engine_views(e, memory, views),
		.pages = ENGINE_PAGES,
		.pages_per_block = e->pages_per_block,
		.memory = memory,
		.memory_bytes = engine_bytes(e),
	};
}

/* Write the bytes of @block to @pages, or count wrong bytes.  Planes @from ..
 * @to of the tensors must hold the block, other planes 0xee.  Skip pages that
 * are -1. */
static inline size_t engine_walk(const struct engine *e, uint8_t *memory,
				 const int64_t *pages, uint32_t block,
				 bool writes, uint32_t from, uint32_t to)
{
	uint64_t plane, p, j, i;
	size_t t, wrong = 0;

	for (t = 0; t < e->n; t++)
		for (plane = 0, i = 0; plane < e->tensors[t].planes; plane++)
			for (p = 0; p < e->pages_per_block; p++)
				for (j = 0; j < e->tensors[t].per; j++, i++) {
					uint8_t b = engine_byte(block, t, i);
					uint8_t *at = memory;

					if (pages[p] < 0)
						continue;
					at += engine_at(e, t, plane,
							(uint64_t)pages[p], j);
					if (plane < from || plane >= to)
						b = 0xee;
					if (writes)
						*at = b;
					wrong += *at != b;
				}
	return wrong;
}

#endif
