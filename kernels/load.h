/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.h - arena to pages.
 */
#ifndef KV_LOAD_H
#define KV_LOAD_H

struct kvfs_xfer;

/* Its lease has settled: start copying. */
void kv_load_begin_locked(struct kvfs_xfer *xfer);

/* xfer->stopped was set: if it still waits for its lease, end it now. */
void kv_load_stopped_locked(struct kvfs_xfer *xfer);

#endif
