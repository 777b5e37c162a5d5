/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prompt.c - texts in, token ids out.
 *
 * OWNS      nothing that outlives a call.
 *
 * LOCKING   none.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tools/demo/own.h"
#include "tools/demo/prompt.h"

#define TEXT_MAX 65536u

static int tokens_of(struct kv_engine *engine, const char *path,
		     uint32_t *ret_tokens, size_t n)
{
	_cleanup_(kv_freep) char *text = malloc(TEXT_MAX);
	_cleanup_(kv_fclosep) FILE *file = fopen(path, "re");
	size_t len;
	long got;

	if (!text)
		return -ENOMEM;
	if (!file) {
		fprintf(stderr, "%s: %s\n", path, strerror(errno));
		return -ENOENT;
	}
	len = fread(text, 1, TEXT_MAX, file);
	got = engine->ops->tokenise(engine, text, len, ret_tokens, n);
	if (got < 0)
		return (int)got;
	if ((size_t)got < n) {
		fprintf(stderr, "%s: only %ld tokens\n", path, got);
		return -ENODATA;
	}
	return 0;
}

int kv_prompt_read(struct kv_engine *engine, const char *path,
		   const char *other, uint32_t *ret_tokens)
{
	size_t shared = KV_PROMPT_SHARED * KV_SEQ_TOKENS;
	int r;

	r = tokens_of(engine, path, ret_tokens, KV_PROMPT_TOKENS);
	if (r < 0 || !other)
		return r;
	return tokens_of(engine, other, ret_tokens + shared,
			 KV_PROMPT_TOKENS - shared);
}
