/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flush.h - waiting for what is sealed to be durable, and barriers.
 */
#ifndef KV_KERNELS_TRANSFER_FLUSH_H
#define KV_KERNELS_TRANSFER_FLUSH_H

struct kvfs_session;
struct kvfs_xfer;

/* Somebody waits for DURABLE: flush once everything is sealed. */
void kv_flush_ask_locked(struct kvfs_xfer *xfer);

/* Everything is sealed: flush if that was asked for. */
void kv_flush_begin_locked(struct kvfs_xfer *xfer);

/* A save has sealed, or a barrier was stopped: see which barriers are past. */
void kv_barriers_look_locked(struct kvfs_session *session);

#endif
