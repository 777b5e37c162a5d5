/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench.h - one run of the bench.
 */
#ifndef KV_TOOLS_BENCH_BENCH_H
#define KV_TOOLS_BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/bench/run.h"
#include "tools/bench/report.h"

struct kv_bench {
	const char *build; /* where kvfs is and bench.json goes */
	char *dir;	   /* everything of this run lies below */
	bool quick;
	unsigned threads;	  /* as many as libkvfs copies with */
	pthread_mutex_t cleaning; /* held from the beginning of the end */
	struct kv_bench_children children;
	struct kv_bench_report *report;
};

/* A size of blocks.  Each has tensors k and v of @layers times 32 KiB. */
struct kv_bench_size {
	const char *suffix;
	const char *layout;
	unsigned layers;
	size_t blocks; /* how many to fill about 280 MiB */
	bool context;  /* a long context, for its own figures only */
};

#define KV_BENCH_LAYER 32768u /* 16 tokens, 8 heads, 128, BF16 */
#define KV_BENCH_HEAD 4096u   /* of these, one head's */
#define KV_BENCH_GROUP 127u   /* blocks of one load or lease */

/* Bytes of a block's tensors. */
static inline uint64_t kv_bench_payload(const struct kv_bench_size *size)
{
	return 2ull * size->layers * KV_BENCH_LAYER;
}

#endif
