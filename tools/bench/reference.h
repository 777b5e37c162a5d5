/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reference.h - what figures are compared with: memcpy of plain memory in 2 MiB
 * pages, as an engine's pool would have it; and fio with O_DIRECT, io_uring,
 * queue depth 32, and 2 MiB pages and registered buffers, as the daemon has
 * them.
 */
#ifndef KV_TOOLS_BENCH_REFERENCE_H
#define KV_TOOLS_BENCH_REFERENCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tools/bench/run.h"

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

/* ---- the disk ---- */

/* Make @path with @bytes of random data in written extents, synced.  -errno. */
int kv_bench_fio_file(const char *path, uint64_t bytes);

/* GB/s of reading @bytes of it in blocks of @block.  -EIO: fio failed. */
int kv_bench_fio_read(struct kv_bench_children *children, const char *path,
		      uint64_t block, uint64_t bytes, double *ret_speed);

/* GB/s of writing @bytes to a new file @path, allocated but never written
 * before, by @writers at a time, each its part and fsync at the end.  The file
 * is removed. */
int kv_bench_fio_write(struct kv_bench_children *children, const char *path,
		       uint64_t block, uint64_t bytes, unsigned writers,
		       double *ret_speed);

#endif
