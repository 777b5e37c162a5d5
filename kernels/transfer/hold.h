/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hold.h - leases of what a save with KVFS_HOLD sealed.
 *
 * All calls with session->lock held, but for new.
 */
#ifndef KV_KERNELS_TRANSFER_HOLD_H
#define KV_KERNELS_TRANSFER_HOLD_H

#include "kernels/transfer/xfer.h"

/* What one message sealed: the daemon keeps it under that message's tag. */
struct kv_hold {
	struct kvfs_session *session;
	uint64_t generation; /* of the connection */
	uint64_t tag;	     /* 0: nothing is held */
	unsigned refs;	     /* one for each block of a transfer, and new's */
};

int kv_hold_new(const struct kvfs_xfer *xfer, struct kv_hold **ret_hold);
/* With the last reference it is released.  Takes NULL. */
void kv_hold_put_locked(struct kv_hold *hold);

/* Block @i of @xfer is held by it, unless the transfer was freed. */
void kv_hold_block_locked(struct kvfs_xfer *xfer, size_t i,
			  struct kv_hold *hold);
/* Its owner has freed @xfer: hold nothing for it, now or later. */
void kv_holds_end_locked(struct kvfs_xfer *xfer);

#endif
