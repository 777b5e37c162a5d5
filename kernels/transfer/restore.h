/* SPDX-License-Identifier: Apache-2.0 */
/*
 * restore.h - blocks of a snapshot back into pages.
 */
#ifndef KV_KERNELS_TRANSFER_RESTORE_H
#define KV_KERNELS_TRANSFER_RESTORE_H

struct kvfs_session;

/* No restore runs any more, nor will: let the threads end. */
void kv_restore_workers_end(struct kvfs_session *session);

#endif
