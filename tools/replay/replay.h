/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay.h - what the files of kvfs-replay share.
 *
 * The order: main.c reads the command line and prints, trace.c reads or
 * generates a trace, sim.c simulates a policy, live.c replays on a mount,
 * bench.c measures for `make bench`.
 */
#ifndef KV_TOOLS_REPLAY_REPLAY_H
#define KV_TOOLS_REPLAY_REPLAY_H

#include <stddef.h>
#include <stdint.h>

/* ---- trace.c ---- */

/*
 * A trace of requests, read whole: which blocks each request asks for.
 *
 * One JSON object a line: input_length (tokens), hash_ids, and optionally
 * timestamp (ms) and block_size (tokens).  An id stands for the whole prefix up
 * to and including its block; partial blocks do not count.
 */
struct kv_trace {
	/* Blocks by number, dense from 0, request after request. */
	uint32_t *blocks;
	size_t *start; /* n + 1: where each request's blocks begin */
	size_t n;
	uint32_t unique;
	uint32_t block_size; /* of the last line, in tokens */
};

/*
 * Read @path, gzipped or not.  @block_size applies to lines without one.
 * On failure *@ret_why names file, line and reason (caller frees), or is NULL
 * if memory is short.
 */
int kv_trace_read(const char *path, uint32_t block_size,
		  struct kv_trace **ret_trace, char **ret_why);

/*
 * Generate a trace: conversations of some turns over shared system prompts,
 * questions about documents, and long prompts that never come back; the mixture
 * changes halfway.  Equal seeds give equal traces.  -ENOMEM.
 */
int kv_trace_generate(uint64_t seed, struct kv_trace **ret_trace);
void kv_trace_free(struct kv_trace *trace); /* takes NULL */

static inline size_t kv_trace_asked(const struct kv_trace *trace)
{
	return trace->start[trace->n];
}

/* ---- sim.c ---- */

/*
 * Simulate the daemon's policy @policy with room for @capacity blocks.
 *
 * Hits of a request are its leading blocks that are resident without a gap.
 * All its blocks are then used, and stay resident until the request ends.  Of a
 * request with more blocks than @capacity only the head stays.  There is no
 * warm-up.
 *
 * @step, if not NULL, is called now and then with the part that is done.
 * -ENOMEM, -EINVAL: no such policy.
 */
int kv_replay_run(const struct kv_trace *trace, const char *policy,
		  uint32_t capacity, void (*step)(double part),
		  uint64_t *ret_hits);

/* The hits of an optimal policy that knows the future. */
int kv_replay_bound(const struct kv_trace *trace, uint32_t capacity,
		    void (*step)(double part), uint64_t *ret_hits);

/* ---- live.c ---- */

struct kv_live_result {
	uint64_t hits;
	uint32_t blocks; /* in DRAM at the end */
	char policy[32]; /* the mount's */
	const char *why; /* reason of a failure, if errno says too little */
};

/*
 * Replay @trace on the mount @path.  Each request matches, acquires the blocks
 * that are there and checks their bytes, saves the others, and releases all.
 * The space "kvfs-replay" is emptied before and after.
 */
int kv_live_run(const char *path, const struct kv_trace *trace,
		struct kv_live_result *ret_result);

/* ---- bench.c ---- */

/*
 * Measure hit rates on the trace @trace (NULL: a generated one), nanoseconds of
 * a touch and of a victim, bytes of a block, and nanoseconds that the miss
 * curve adds to a use.  Print them, and append them to the file @path as lines
 * of JSON.  Reports errors on stderr.
 */
int kv_replay_bench(const char *path, const char *trace, uint32_t block_size);

#endif
