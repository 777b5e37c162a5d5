/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fio.h - what the disk gives: fio with O_DIRECT, io_uring, queue depth 32, and
 * 2 MiB pages and registered buffers, as the daemon has them.
 */
#ifndef KV_TOOLS_BENCH_FIO_H
#define KV_TOOLS_BENCH_FIO_H

#include <stdbool.h>
#include <stdint.h>

#include "tools/bench/run.h"

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
