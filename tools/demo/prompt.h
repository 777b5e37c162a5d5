/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prompt.h - the two prompts: a licence, and one that begins as that does.
 */
#ifndef KV_TOOLS_DEMO_PROMPT_H
#define KV_TOOLS_DEMO_PROMPT_H

#include "tools/demo/engine.h"
#include "tools/demo/seqstate.h"

/* 31 blocks and 16 tokens that are always computed: the model bears no fewer
 * than 16 at once without other bits (llama.c). */
#define KV_PROMPT_TOKENS 2000u
#define KV_PROMPT_BLOCKS (KV_PROMPT_TOKENS / KV_SEQ_TOKENS)
#define KV_PROMPT_SHARED (KV_PROMPT_BLOCKS / 2) /* blocks of both prompts */

/*
 * The first KV_PROMPT_TOKENS tokens of the file @path; or, with @other, the
 * first KV_PROMPT_SHARED blocks of those, and then the tokens of @other.
 * -ENODATA: a text is too short.
 */
int kv_prompt_read(struct kv_engine *engine, const char *path,
		   const char *other, uint32_t *ret_tokens);

#endif
