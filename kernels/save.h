/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.h - pages to staging to sealed.
 */
#ifndef KV_SAVE_H
#define KV_SAVE_H

struct kvfs_session;
struct kvfs_xfer;

/* Go on with the saves that wait: for staging, or for a daemon that is gone. */
void kv_save_pump_locked(struct kvfs_session *session);

/* xfer->stopped was set: blocks that are in no batch yet end now. */
void kv_save_stopped_locked(struct kvfs_xfer *xfer);

#endif
