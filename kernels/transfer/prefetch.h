/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefetch.h - blocks brought to DRAM on a hint.
 */
#ifndef KV_KERNELS_TRANSFER_PREFETCH_H
#define KV_KERNELS_TRANSFER_PREFETCH_H

#include "kernels/kvfs.h"

/* Have the daemon read what is behind a head in DRAM; nobody waits for it. */
void kv_prefetch_ahead(const kvfs_query *queries, size_t n_queries,
		       uint64_t deadline);

#endif
