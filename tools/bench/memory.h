/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.h - plain memory in 2 MiB pages, as an engine's pool would have it,
 * and threads that memcpy: the reference for everything that copies.
 */
#ifndef KV_TOOLS_BENCH_MEMORY_H
#define KV_TOOLS_BENCH_MEMORY_H

#include <stddef.h>
#include <stdint.h>

struct kv_bench_memory {
	void *base;
	size_t bytes;
};

/* Touched, in 2 MiB pages where the system gives them.  -ENOMEM. */
int kv_bench_memory_map(size_t bytes, struct kv_bench_memory *ret_memory);
void kv_bench_memory_unmap(struct kv_bench_memory *memory); /* takes unmapped */

/* Percent of this process's anonymous memory that is in 2 MiB pages. */
unsigned kv_bench_memory_huge_percent(void);

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
