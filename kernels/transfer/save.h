/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.h - pages to staging to sealed, and leases of what was.
 *
 * All calls with session->lock held, but where it says otherwise.
 */
#ifndef KV_KERNELS_TRANSFER_SAVE_H
#define KV_KERNELS_TRANSFER_SAVE_H

#include "common/kv.h"

#include <stdint.h>

struct kvfs_session;
struct kvfs_xfer;

/* Go on with the saves that wait: for staging, or for a daemon that is gone. */
void kv_save_pump_locked(struct kvfs_session *session);

/* All that wait end with @status: there is no staging for them. */
void kv_saves_fail_locked(struct kvfs_session *session, int status);

/* The next @n blocks that are to do, which are there: no longer. */
void kv_save_take_locked(struct kvfs_xfer *xfer, uint32_t *ret_blocks,
			 size_t n);
/* There was no room for one of them: to be tried again soon. */
void kv_save_again_locked(struct kvfs_xfer *xfer, uint32_t block);

/* Saves to the space of that name end with -ESTALE. */
void kv_saves_stop_locked(struct kvfs_session *session, const char *name);

/* ---- what a save with KVFS_HOLD sealed ---- */

/* Blocks that one message sealed: the daemon keeps it under that message's tag.
 */
struct kv_hold {
	struct kvfs_session *session;
	uint64_t generation; /* of the connection */
	uint64_t tag;	     /* 0: nothing is held */
	unsigned refs;	     /* one for each block of a transfer, and new's */
};

/* -ENOMEM.  Lock not needed. */
int kv_hold_new(const struct kvfs_xfer *xfer, struct kv_hold **ret_hold);
/* With the last reference it is released.  Takes NULL. */
void kv_hold_put_locked(struct kv_hold *hold);

/* Block @i of @xfer is held by it, unless the transfer was freed. */
void kv_hold_block_locked(struct kvfs_xfer *xfer, size_t i,
			  struct kv_hold *hold);

#endif
