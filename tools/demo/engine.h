/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine.h - an inference engine with one sequence, as the demo uses it.
 *
 * Two are built in: llama.h, a real model, and synthetic.h, which needs no
 * download.  Functions return 0 or a count, or -errno, and have said why on
 * stderr.
 */
#ifndef KV_TOOLS_DEMO_ENGINE_H
#define KV_TOOLS_DEMO_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#define KV_ENGINE_CTX 4096u /* tokens that a sequence may have */

struct kv_engine;

struct kv_engine_ops {
	/* Token ids of @text, at most @max of them.  Returns how many. */
	long (*tokenise)(struct kv_engine *engine, const char *text, size_t len,
			 uint32_t *ret_tokens, size_t max);
	/* Run @tokens through the model at the end of the sequence. */
	int (*decode)(struct kv_engine *engine, const uint32_t *tokens,
		      size_t n);
	/* The likeliest token after what was decoded last. */
	uint32_t (*next)(struct kv_engine *engine);
	/* All that the last token's choice was made from; until the next
	 * decode. */
	const void *(*logits)(struct kv_engine *engine, size_t *ret_bytes);
	/* Text of @token, at most @size bytes.  Returns how many. */
	long (*piece)(struct kv_engine *engine, uint32_t token, char *ret_text,
		      size_t size);
	/* The sequence's KV as seqstate.h reads it; the caller frees. */
	int (*state_get)(struct kv_engine *engine, uint8_t **ret_data,
			 size_t *ret_len);
	/* Replace the sequence by this one. */
	int (*state_set)(struct kv_engine *engine, const uint8_t *data,
			 size_t len);
	/* Forget the sequence. */
	void (*clear)(struct kv_engine *engine);
	void (*free)(struct kv_engine *engine);
};

/* The first member of each engine. */
struct kv_engine {
	const struct kv_engine_ops *ops;
	const char *name; /* of the model, and of its space */
	/* Hex: everything that changes a bit of KV for the same tokens. */
	char fingerprint[65];
};

static inline void kv_engine_freep(struct kv_engine **engine)
{
	if (*engine)
		(*engine)->ops->free(*engine);
}

#endif
