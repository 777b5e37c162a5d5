/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store.h - a store with many blocks, made without a daemon.
 */
#ifndef KV_TOOLS_BENCH_STORE_H
#define KV_TOOLS_BENCH_STORE_H

#include <stdint.h>

/*
 * Make a store @dir whose index knows @blocks small blocks, chains of 1,000,
 * and whose files are sparse: nobody reads them.  @ret_ssd: the cap to mount it
 * with.  -errno.
 */
int kv_bench_store_make(const char *dir, uint64_t blocks, uint64_t *ret_ssd);

#endif
