/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.h - a trace of requests, read whole: which blocks each one asks for.
 *
 * One JSON object a line: input_length (tokens), hash_ids, and optionally
 * timestamp (ms) and block_size (tokens).  An id stands for the whole prefix up
 * to and including its block; blocks that are not full do not count.
 */
#ifndef KV_TOOLS_REPLAY_TRACE_H
#define KV_TOOLS_REPLAY_TRACE_H

#include <stddef.h>
#include <stdint.h>

struct kv_trace {
	/* Blocks by number, dense from 0, request after request. */
	uint32_t *blocks;
	size_t *start; /* n + 1: where each request's blocks begin */
	size_t n;
	uint32_t unique;
	uint32_t block_size; /* of the last line, in tokens */
};

/*
 * Read @path, gzipped or not.  @block_size: where a line does not say.
 * On failure *@ret_why names file, line and reason (caller frees), or is NULL
 * where memory is short.
 */
int kv_trace_read(const char *path, uint32_t block_size,
		  struct kv_trace **ret_trace, char **ret_why);

/*
 * A trace where none is at hand: conversations of some turns over shared system
 * prompts, documents asked about, and long prompts that never come back; the
 * mixture changes halfway.  The same for the same @seed.  -ENOMEM.
 */
int kv_trace_generate(uint64_t seed, struct kv_trace **ret_trace);
void kv_trace_free(struct kv_trace *trace); /* takes NULL */

static inline size_t kv_trace_asked(const struct kv_trace *trace)
{
	return trace->start[trace->n];
}

#endif
