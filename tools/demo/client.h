/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - what an engine does with libkvfs for one prompt.
 *
 * Functions return 0 or a count, or -errno, and have said why on stderr.
 */
#ifndef KV_TOOLS_DEMO_CLIENT_H
#define KV_TOOLS_DEMO_CLIENT_H

#include "tools/demo/engine.h"
#include "tools/demo/seqstate.h"

/* 31 blocks and 16 tokens that are always computed: the model bears no fewer
 * than 16 at once without other bits (llama.c). */
#define KV_PROMPT_TOKENS 2000u
#define KV_PROMPT_BLOCKS (KV_PROMPT_TOKENS / KV_SEQ_TOKENS)
#define KV_PROMPT_SHARED (KV_PROMPT_BLOCKS / 2) /* blocks of both prompts */

struct kv_client {
	kvfs_session *session;
	kvfs_space *space;
	kvfs_key keys[KV_PROMPT_BLOCKS]; /* the prompt's chain */
	char *path;			 /* of the space below the mount */
};

/* Open the engine's space below @mount, made if absent, and name the blocks of
 * the KV_PROMPT_TOKENS @tokens. */
int kv_client_open(const char *mount, const struct kv_engine *engine,
		   const struct kv_seqshape *shape, const uint32_t *tokens,
		   struct kv_client **ret_client);
void kv_client_close(struct kv_client *client); /* takes NULL */

/* Blocks of the prompt that can be loaded. */
long kv_client_match(struct kv_client *client);
/* Whether none of the first @n blocks is in DRAM: 1, 0. */
int kv_client_is_cold(struct kv_client *client, size_t n);

struct kv_save_times {
	double sealed, durable; /* seconds */
};

/* Save the pages @first .. KV_PROMPT_BLOCKS-1 of @state and wait until they
 * are durable.  Returns how many were new. */
long kv_client_save(struct kv_client *client, const struct kv_seqstate *state,
		    size_t first, struct kv_save_times *ret_times);

/*
 * Load the first blocks of the prompt, as many as @state has pages, into it.
 * @ret_lease holds them; the caller releases.
 */
int kv_client_load(struct kv_client *client, struct kv_seqstate *state,
		   kvfs_lease **ret_lease, double *ret_seconds);

#endif
