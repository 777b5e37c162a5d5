/* SPDX-License-Identifier: Apache-2.0 */
/*
 * synthetic.c - deterministic KV without a model.
 *
 * OWNS      the KV of one sequence, both K and V one row a token.
 *
 * INVARIANTS
 *   (1) A row of token i is a function of the token and of the rows of tokens
 *       0 .. i-1 of its layer, as in attention; how tokens are batched changes
 *       nothing.
 *
 * LOCKING   none; one thread.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "kernels/kvfs.h"
#include "tools/demo/own.h"
#include "tools/demo/seqstate.h"
#include "tools/demo/synthetic.h"

#define LAYERS 30u
#define WIDTH 192u
#define WORDS (WIDTH * 2 / sizeof(uint64_t)) /* of a row */
#define VOCABULARY 49152u
#define MAGIC 0x4e59534bu
#define ODD 0x9e3779b97f4a7c15ull

struct row {
	uint64_t words[WORDS];
};

struct synthetic {
	struct kv_engine pub; /* first, so that synthetic_of() is a cast */
	struct row *k[LAYERS], *v[LAYERS]; /* KV_ENGINE_CTX rows each */
	uint32_t cells;
	uint64_t sums[LAYERS]; /* what each layer's attention came to last */
};

static struct synthetic *synthetic_of(struct kv_engine *engine)
{
	return (struct synthetic *)engine;
}

static uint64_t mix(uint64_t a, uint64_t b)
{
	a = (a ^ (b * ODD)) * 0xff51afd7ed558ccdull;
	return a ^ (a >> 32);
}

/* Every word of every row counts, with a factor of its own. */
static uint64_t attend(const struct row *rows, uint32_t n, uint64_t query)
{
	uint64_t sums[WORDS] = {0};
	uint64_t whole = query;
	uint32_t i, w;

	for (i = 0; i < n; i++) {
		for (w = 0; w < WORDS; w++)
			sums[w] = sums[w] * 5 + (rows[i].words[w] ^ query);
	}
	for (w = 0; w < WORDS; w++)
		whole = mix(whole, sums[w]);
	return whole;
}

static void decode_one(struct synthetic *model, uint32_t token)
{
	uint64_t query = mix(token, ODD), at;
	uint32_t layer, w;

	for (layer = 0; layer < LAYERS; layer++) {
		query = attend(model->k[layer], model->cells, query);
		query = attend(model->v[layer], model->cells, query);
		model->sums[layer] = query;
		at = query;
		for (w = 0; w < WORDS; w++) {
			at = mix(at, w + 1);
			model->k[layer][model->cells].words[w] = at;
			model->v[layer][model->cells].words[w] = mix(at, token);
		}
	}
	model->cells++;
}

static int decode(struct kv_engine *engine, const uint32_t *tokens, size_t n)
{
	struct synthetic *model = synthetic_of(engine);
	size_t i;

	if (n > KV_ENGINE_CTX - model->cells)
		return -ENOSPC;
	for (i = 0; i < n; i++)
		decode_one(model, tokens[i]);
	return 0;
}

/* Four bytes of text are a token. */
static long tokenise(struct kv_engine *engine, const char *text, size_t len,
		     uint32_t *ret_tokens, size_t max)
{
	size_t n = 0;
	uint32_t four;

	(void)engine;
	for (n = 0; n < max && (n + 1) * sizeof(four) <= len; n++) {
		memcpy(&four, text + n * sizeof(four), sizeof(four));
		ret_tokens[n] = (uint32_t)(mix(four, 1) % VOCABULARY);
	}
	return (long)n;
}

static uint32_t next(struct kv_engine *engine)
{
	struct synthetic *model = synthetic_of(engine);

	return (uint32_t)(model->sums[LAYERS - 1] % VOCABULARY);
}

static const void *logits(struct kv_engine *engine, size_t *ret_bytes)
{
	struct synthetic *model = synthetic_of(engine);

	*ret_bytes = sizeof(model->sums);
	return model->sums;
}

static long piece(struct kv_engine *engine, uint32_t token, char *ret_text,
		  size_t size)
{
	int n = snprintf(ret_text, size, " %u", token);

	(void)engine;
	return (size_t)n < size ? n : (long)size;
}

static void clear(struct kv_engine *engine)
{
	synthetic_of(engine)->cells = 0;
}

static const struct kv_seqshape shape = {
	.magic = MAGIC,
	.type_k = 1,
	.type_v = 1,
	.layers = LAYERS,
	.width = WIDTH,
};

/* Rows of one layer from or to the state's columns. */
static void transpose(struct kv_seqstate *state, uint32_t layer,
		      struct row *rows, int to_state)
{
	uint16_t *channel, *values = (uint16_t *)rows;
	uint8_t *column = state->data + state->v + layer * state->v_stride;
	uint32_t i, w;

	for (w = 0; w < WIDTH; w++, column += (size_t)state->cells * 2) {
		for (i = 0; i < state->cells; i++) {
			channel = &values[(size_t)i * WIDTH + w];
			if (to_state)
				memcpy(column + 2 * i, channel, 2);
			else
				memcpy(channel, column + 2 * i, 2);
		}
	}
}

static int state_get(struct kv_engine *engine, uint8_t **ret_data,
		     size_t *ret_len)
{
	struct synthetic *model = synthetic_of(engine);
	_cleanup_(kv_seqstate_freep) struct kv_seqstate *state = NULL;
	uint32_t layer;
	int r;

	r = kv_seqstate_new(&shape, model->cells, &state);
	if (r < 0)
		return r;
	for (layer = 0; layer < LAYERS; layer++) {
		memcpy(state->data + state->k + layer * state->k_stride,
		       model->k[layer], model->cells * sizeof(struct row));
		transpose(state, layer, model->v[layer], 1);
	}
	*ret_data = kv_steal(state->data);
	*ret_len = state->len;
	return 0;
}

static int state_set(struct kv_engine *engine, const uint8_t *data, size_t len)
{
	struct synthetic *model = synthetic_of(engine);
	_cleanup_(kv_seqstate_freep) struct kv_seqstate *state = NULL;
	uint8_t *copy;
	uint32_t layer;
	int r;

	copy = malloc(len);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, data, len);
	r = kv_seqstate_parse(copy, len, &state);
	if (r < 0)
		return r;
	if (memcmp(&state->shape, &shape, sizeof(shape)) != 0 ||
	    state->cells > KV_ENGINE_CTX)
		return -EINVAL;
	for (layer = 0; layer < LAYERS; layer++) {
		memcpy(model->k[layer],
		       state->data + state->k + layer * state->k_stride,
		       state->cells * sizeof(struct row));
		transpose(state, layer, model->v[layer], 0);
	}
	model->cells = state->cells;
	return 0;
}

static void synthetic_freep(struct synthetic **model_at)
{
	struct synthetic *model = *model_at;
	uint32_t layer;

	if (!model)
		return;
	for (layer = 0; layer < LAYERS; layer++) {
		free(model->k[layer]);
		free(model->v[layer]);
	}
	free(model);
}

static void synthetic_free(struct kv_engine *engine)
{
	struct synthetic *model = synthetic_of(engine);

	synthetic_freep(&model);
}

static const struct kv_engine_ops ops = {
	.tokenise = tokenise,
	.decode = decode,
	.next = next,
	.logits = logits,
	.piece = piece,
	.state_get = state_get,
	.state_set = state_set,
	.clear = clear,
	.free = synthetic_free,
};

int kv_synthetic_open(struct kv_engine **ret_engine)
{
	_cleanup_(synthetic_freep) struct synthetic *model = NULL;
	kvfs_key print;
	uint32_t layer;
	int r;

	model = calloc(1, sizeof(*model));
	if (!model)
		return -ENOMEM;
	model->pub.ops = &ops;
	model->pub.name = "synthetic";
	r = kvfs_key_fold("synthetic 1", strlen("synthetic 1"), &print);
	if (r < 0)
		return r;
	kvfs_key_name(&print, model->pub.fingerprint);
	for (layer = 0; layer < LAYERS; layer++) {
		model->k[layer] = calloc(KV_ENGINE_CTX, sizeof(struct row));
		model->v[layer] = calloc(KV_ENGINE_CTX, sizeof(struct row));
		if (!model->k[layer] || !model->v[layer])
			return -ENOMEM;
	}
	*ret_engine = &kv_steal(model)->pub;
	return 0;
}
