/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay.h - what the files of kvfs-replay share.
 *
 * The order: main.c reads the command line and prints, trace.c reads a trace,
 * sim.c simulates a policy.
 */
#ifndef KV_TOOLS_REPLAY_REPLAY_H
#define KV_TOOLS_REPLAY_REPLAY_H

#include <stddef.h>
#include <stdint.h>

/* ---- trace.c ---- */

/*
 * A trace: the blocks that each request asks for.  The file has one JSON object
 * a line: input_length (tokens), hash_ids, and optionally timestamp (ms) and
 * block_size (tokens).  An id stands for the whole prefix up to and including
 * its block; partial blocks do not count.
 */
struct kv_trace {
	/* block numbers, dense from 0, request after request */
	uint32_t *blocks;
	/* index into @blocks of each request's first block; n + 1 entries */
	size_t *start;
	size_t n;
	uint32_t unique;
	uint32_t block_size; /* tokens per block, as in the last line */
};

/*
 * Read @path, gzipped or not.  @block_size applies to lines without one.
 * On failure *@ret_why names file, line and reason (caller frees), or is NULL
 * if memory is short.
 */
int kv_trace_read(const char *path, uint32_t block_size,
		  struct kv_trace **ret_trace, char **ret_why);

void kv_trace_free(struct kv_trace *trace); /* takes NULL */

static inline size_t kv_trace_asked(const struct kv_trace *trace)
{
	return trace->start[trace->n];
}

/* ---- sim.c ---- */

/*
 * Simulate the daemon's policy @policy with room for @capacity blocks, without
 * warm-up.  Hits of a request are its leading blocks that are resident without
 * a gap.  All blocks of the request are then used, and stay resident until the
 * request ends; of a request of more than @capacity blocks only the head stays.
 * @step, if not NULL, is called now and then with the part that is done.
 * -ENOMEM, -EINVAL: no such policy
 */
int kv_replay_run(const struct kv_trace *trace, const char *policy,
		  uint32_t capacity, void (*step)(double part),
		  uint64_t *ret_hits);

/* Return in @ret_hits the hits of an optimal policy that knows the future. */
int kv_replay_bound(const struct kv_trace *trace, uint32_t capacity,
		    void (*step)(double part), uint64_t *ret_hits);

#endif
