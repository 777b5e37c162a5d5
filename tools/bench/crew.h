/* SPDX-License-Identifier: Apache-2.0 */
/*
 * crew.h - threads that memcpy, the reference for everything that copies.
 */
#ifndef KV_TOOLS_BENCH_CREW_H
#define KV_TOOLS_BENCH_CREW_H

#include <stddef.h>

struct kv_bench_piece {
	void *dst;
	const void *src;
	size_t bytes;
};

struct kv_bench_crew;

/* @threads in all, the caller's among them.  -ENOMEM, -EAGAIN. */
int kv_bench_crew_new(unsigned threads, struct kv_bench_crew **ret_crew);
void kv_bench_crew_free(struct kv_bench_crew *crew); /* takes NULL */

/* memcpy every piece; returns when all are done. */
void kv_bench_crew_copy(struct kv_bench_crew *crew,
			const struct kv_bench_piece *pieces, size_t n);

#endif
