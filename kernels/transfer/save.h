/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.h - pages to staging to sealed.
 */
#ifndef KV_KERNELS_TRANSFER_SAVE_H
#define KV_KERNELS_TRANSFER_SAVE_H

#include "common/kv.h"

#include <stdint.h>

struct kvfs_session;
struct kvfs_xfer;

/* Go on with the saves that wait: for staging, or for a daemon that is gone. */
void kv_save_pump_locked(struct kvfs_session *session);

/* Have staging made for blocks of @payload bytes, before a save needs it.
 * -ENOMEM. */
int kv_save_prepare_locked(struct kvfs_session *session, uint64_t payload);

/* Its event wait, if it has one, is done: queue it. */
void kv_save_begin_locked(struct kvfs_xfer *xfer);

/* The next @n blocks that are to do, which are there: no longer. */
void kv_save_take_locked(struct kvfs_xfer *xfer, uint32_t *ret_blocks,
			 size_t n);
/* There was no room for one of them: to be tried again soon. */
void kv_save_again_locked(struct kvfs_xfer *xfer, uint32_t block);
/* A block that is to do has been settled, or taken. */
void kv_save_less_todo_locked(struct kvfs_xfer *xfer);

/* xfer->stopped was set: blocks that are in no batch yet end now. */
void kv_save_stopped_locked(struct kvfs_xfer *xfer);

#endif
