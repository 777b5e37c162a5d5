/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flush.h - waiting for what is sealed to be durable, and barriers.
 */
#ifndef KV_KERNELS_TRANSFER_FLUSH_H
#define KV_KERNELS_TRANSFER_FLUSH_H

struct kvfs_xfer;

/* Somebody waits for a save or barrier to be DURABLE: flush once everything is
 * sealed. */
void kv_flush_ask_locked(struct kvfs_xfer *xfer);

/* A save is sealed: so may barriers be, and if asked for it is flushed. */
void kv_flush_saved_locked(struct kvfs_xfer *save);

/* Stop waiting for DURABLE: what has not come there soon ends with @status. */
void kv_flush_stop_locked(struct kvfs_xfer *xfer, int status);

#endif
