/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.h - plain memory in 2 MiB pages, as an engine's pool would have it.
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

#endif
