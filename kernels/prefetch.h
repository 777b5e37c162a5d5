/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefetch.h - blocks brought to DRAM on a hint.
 */
#ifndef KV_PREFETCH_H
#define KV_PREFETCH_H

struct kvfs_xfer;

/* It was told to stop: so is the daemon. */
void kv_prefetch_stopped_locked(struct kvfs_xfer *xfer);

#endif
