/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.h - arena to pages.
 */
#ifndef KV_KERNELS_TRANSFER_LOAD_H
#define KV_KERNELS_TRANSFER_LOAD_H

struct kvfs_xfer;

/* The lease of @xfer has settled, or its event wait is done: start copying if
 * both are.
 */
void kv_load_begin_locked(struct kvfs_xfer *xfer);

#endif
