/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seqstate.h - a sequence's KV as one piece of memory, and its 64-token pages.
 *
 * The format is llama.cpp's: heads, then K, layer by layer, one row a token,
 * then V, layer by layer, transposed: one row a channel, one column a token.
 * Nothing is copied to cut it: a page is described to libkvfs by strided views,
 * and a block's tensors are k [layers, 64, width] and v [layers, width, 64].
 */
#ifndef KV_TOOLS_DEMO_SEQSTATE_H
#define KV_TOOLS_DEMO_SEQSTATE_H

#include <stdint.h>

#include "kernels/kvfs.h"

#define KV_SEQ_TOKENS 64u /* in a page */

/* Common to the states of one model. */
struct kv_seqshape {
	uint32_t magic, rot_k, rot_v;
	int32_t type_k, type_v; /* 1: F16, the only one taken */
	uint32_t layers, width; /* a row has @width elements of 2 bytes */
};

struct kv_seqstate {
	struct kv_seqshape shape;
	uint32_t cells; /* tokens */
	uint8_t *data;
	size_t len;
	size_t k, k_stride; /* first row of layer 0, distance to layer 1 */
	size_t v, v_stride;
};

/*
 * Read @data, which the state takes over in any case.  -EBADMSG, and why on
 * stderr, for anything but one stream of F16 with V transposed and tokens at
 * positions 0, 1, 2, ....
 */
int kv_seqstate_parse(uint8_t *data, size_t len, struct kv_seqstate **ret);

/* A state of @cells tokens with every KV byte 0xa5, to be loaded into. */
int kv_seqstate_new(const struct kv_seqshape *shape, uint32_t cells,
		    struct kv_seqstate **ret);
/* Every KV byte 0xa5 again. */
void kv_seqstate_poison(struct kv_seqstate *state);
void kv_seqstate_freep(struct kv_seqstate **state);

/* Full pages. */
uint32_t kv_seqstate_pages(const struct kv_seqstate *state);
/* Bytes of a page's tensors. */
size_t kv_seqshape_block(const struct kv_seqshape *shape);

/* The views of all full pages, kv_seqshape_views() of them. */
size_t kv_seqshape_views(const struct kv_seqshape *shape);
void kv_seqstate_views(const struct kv_seqstate *state, kvfs_view *ret_views);

/* `.layout` of a space for such blocks.  The caller frees. */
char *kv_seqshape_layout(const struct kv_seqshape *shape,
			 const char *fingerprint);

/*
 * Copy page @page out in the order of the block's tensors.  A second way from
 * state to block, that shares nothing with libkvfs, to check the first by.
 */
void kv_seqstate_copy(const struct kv_seqstate *state, uint32_t page,
		      uint8_t *ret_block);

#endif
