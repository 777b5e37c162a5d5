/* SPDX-License-Identifier: Apache-2.0 */
/*
 * seqstate.c - where K and V of a token lie in a sequence's state.
 *
 * OWNS      the state's memory.
 *
 * INVARIANTS
 *   (1) Heads, offsets and length agree: parse checks every head of a state
 *       that comes from an engine, new writes the same heads.
 *
 * LOCKING   none; a state belongs to one thread at a time.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tools/demo/own.h"
#include "tools/demo/seqstate.h"

#define ELEMENT 2u /* bytes of an F16 */
#define POISON 0xa5
#define F16 1
/* The model's key seed.  Any number does; all who share blocks need the same,
 * so it is fixed here as a model's seed would be in its registry. */
#define SEED "6b766673a90f3c51"

#define HEAD_BYTES 16u	/* magic, sequence, streams, cells */
#define CELL_BYTES 12u	/* position, 1, sequence */
#define DATA_BYTES 16u	/* V transposed, layers, rotations of K and V */
#define LAYER_BYTES 12u /* type, row bytes | type, element bytes, width */

/* ---- heads, written or compared ---- */

/* A single pass over the heads serves both ways. */
struct walk {
	uint8_t *at;
	int write; /* else compare */
	int differs;
};

static void word(struct walk *walk, uint32_t value)
{
	uint32_t found;

	if (walk->write)
		memcpy(walk->at, &value, sizeof(value));
	memcpy(&found, walk->at, sizeof(found));
	walk->differs |= found != value;
	walk->at += sizeof(value);
}

static size_t layer_bytes(const struct kv_seqstate *state)
{
	return (size_t)state->cells * state->shape.width * ELEMENT;
}

static void heads(struct kv_seqstate *state, struct walk *walk)
{
	const struct kv_seqshape *s = &state->shape;
	uint32_t i;

	walk->at = state->data;
	word(walk, s->magic);
	word(walk, 0);
	word(walk, 1);
	word(walk, state->cells);
	for (i = 0; i < state->cells; i++) {
		word(walk, i);
		word(walk, 1);
		word(walk, 0);
	}
	word(walk, 1);
	word(walk, s->layers);
	word(walk, s->rot_k);
	word(walk, s->rot_v);
	for (i = 0; i < s->layers; i++) {
		word(walk, (uint32_t)s->type_k);
		word(walk, s->width * ELEMENT);
		word(walk, 0); /* upper half of row bytes */
		walk->at += layer_bytes(state);
	}
	for (i = 0; i < s->layers; i++) {
		word(walk, (uint32_t)s->type_v);
		word(walk, ELEMENT);
		word(walk, s->width);
		walk->at += layer_bytes(state);
	}
}

/* Offsets and length from shape and cells. */
static void measure(struct kv_seqstate *state)
{
	size_t start =
		HEAD_BYTES + CELL_BYTES * (size_t)state->cells + DATA_BYTES;

	state->k_stride = state->v_stride = LAYER_BYTES + layer_bytes(state);
	state->k = start + LAYER_BYTES;
	state->v = state->k + state->shape.layers * state->k_stride;
	state->len = start +
		     state->shape.layers * (state->k_stride + state->v_stride);
}

/* ---- states ---- */

static uint32_t word_at(const uint8_t *data, size_t len, size_t offset)
{
	uint32_t value = 0;

	if (offset + sizeof(value) <= len)
		memcpy(&value, data + offset, sizeof(value));
	return value;
}

int kv_seqstate_parse(uint8_t *data, size_t len, struct kv_seqstate **ret)
{
	_cleanup_(kv_freep) uint8_t *taken = data;
	_cleanup_(kv_seqstate_freep) struct kv_seqstate *state = NULL;
	struct walk walk = {.write = 0};
	size_t at;

	state = calloc(1, sizeof(*state));
	if (!state)
		return -ENOMEM;
	state->data = kv_steal(taken);
	state->cells = word_at(data, len, 12);
	at = HEAD_BYTES + CELL_BYTES * (size_t)state->cells;
	state->shape = (struct kv_seqshape){
		.magic = word_at(data, len, 0),
		.layers = word_at(data, len, at + 4),
		.rot_k = word_at(data, len, at + 8),
		.rot_v = word_at(data, len, at + 12),
		.type_k = F16,
		.type_v = F16,
		.width = word_at(data, len, at + DATA_BYTES + 4) / ELEMENT,
	};
	measure(state);
	if (state->len == len)
		heads(state, &walk);
	if (state->len != len || walk.differs || state->shape.width == 0) {
		fprintf(stderr, "the engine's state has another format\n");
		return -EBADMSG;
	}
	*ret = kv_steal(state);
	return 0;
}

void kv_seqstate_poison(struct kv_seqstate *state)
{
	struct walk walk = {.write = 1};

	memset(state->data, POISON, state->len);
	heads(state, &walk);
}

int kv_seqstate_new(const struct kv_seqshape *shape, uint32_t cells,
		    struct kv_seqstate **ret)
{
	_cleanup_(kv_seqstate_freep) struct kv_seqstate *state = NULL;

	state = calloc(1, sizeof(*state));
	if (!state)
		return -ENOMEM;
	state->shape = *shape;
	state->cells = cells;
	measure(state);
	state->data = malloc(state->len);
	if (!state->data)
		return -ENOMEM;
	kv_seqstate_poison(state);
	*ret = kv_steal(state);
	return 0;
}

void kv_seqstate_freep(struct kv_seqstate **state)
{
	if (*state)
		free((*state)->data);
	free(*state);
}

/* ---- pages ---- */

uint32_t kv_seqstate_pages(const struct kv_seqstate *state)
{
	return state->cells / KV_SEQ_TOKENS;
}

size_t kv_seqshape_block(const struct kv_seqshape *shape)
{
	return 2 * (size_t)shape->layers * shape->width * KV_SEQ_TOKENS *
	       ELEMENT;
}

size_t kv_seqshape_views(const struct kv_seqshape *shape)
{
	return 1 + shape->layers;
}

/*
 * All of K is one view, a segment a layer.  V has segments within layers, so it
 * takes a view a layer: 128 bytes of each of its channels.
 */
void kv_seqstate_views(const struct kv_seqstate *state, kvfs_view *ret_views)
{
	size_t row = state->shape.width * ELEMENT;
	uint32_t i;

	ret_views[0] = (kvfs_view){
		.tensor = "k",
		.base = state->data + state->k,
		.block_stride = KV_SEQ_TOKENS * row,
		.bytes = KV_SEQ_TOKENS * row,
		.count = state->shape.layers,
		.segment_stride = state->k_stride,
	};
	for (i = 0; i < state->shape.layers; i++) {
		ret_views[1 + i] = (kvfs_view){
			.tensor = "v",
			.base = state->data + state->v + i * state->v_stride,
			.block_stride = KV_SEQ_TOKENS * ELEMENT,
			.bytes = KV_SEQ_TOKENS * ELEMENT,
			.count = state->shape.width,
			.segment_stride = (uint64_t)state->cells * ELEMENT,
		};
	}
}

char *kv_seqshape_layout(const struct kv_seqshape *shape,
			 const char *fingerprint)
{
	char *text = NULL;

	if (asprintf(&text,
		     "{\"tensors\": ["
		     "{\"name\": \"k\", \"dtype\": \"F16\", \"shape\": [%u, "
		     "%u, %u]}, "
		     "{\"name\": \"v\", \"dtype\": \"F16\", \"shape\": [%u, "
		     "%u, %u]}], "
		     "\"tokens\": %u, \"reuse\": \"prefix\", "
		     "\"fingerprint\": \"%s\", \"seed\": \"" SEED "\"}\n",
		     shape->layers, KV_SEQ_TOKENS, shape->width, shape->layers,
		     shape->width, KV_SEQ_TOKENS, KV_SEQ_TOKENS,
		     fingerprint) < 0)
		return NULL;
	return text;
}

void kv_seqstate_copy(const struct kv_seqstate *state, uint32_t page,
		      uint8_t *ret_block)
{
	size_t token = (size_t)page * KV_SEQ_TOKENS;
	size_t row = state->shape.width * ELEMENT;
	size_t column = (size_t)state->cells * ELEMENT;
	const uint8_t *from;
	uint32_t layer, channel;

	for (layer = 0; layer < state->shape.layers; layer++) {
		from = state->data + state->k + layer * state->k_stride;
		memcpy(ret_block, from + token * row, KV_SEQ_TOKENS * row);
		ret_block += KV_SEQ_TOKENS * row;
	}
	for (layer = 0; layer < state->shape.layers; layer++) {
		from = state->data + state->v + layer * state->v_stride +
		       token * ELEMENT;
		for (channel = 0; channel < state->shape.width; channel++) {
			memcpy(ret_block, from, KV_SEQ_TOKENS * ELEMENT);
			ret_block += KV_SEQ_TOKENS * ELEMENT;
			from += column;
		}
	}
}
