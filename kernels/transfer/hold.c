/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hold.c - leases of what a save with KVFS_HOLD sealed.
 *
 * OWNS      the daemon's leases under the tags of messages that sealed blocks.
 *
 * INVARIANTS
 *   (1) A tag is released once, when the last transfer with a block of its
 *       message has been freed by its owner; or its connection is gone, and the
 *       leases with it.
 *
 * LOCKING   session->lock.
 */
#include "kernels/transfer/hold.h"

int kv_hold_new(const struct kvfs_xfer *xfer, struct kv_hold **ret_hold)
{
	struct kv_hold *hold = calloc(1, sizeof(*hold));

	if (hold == NULL)
		return -ENOMEM;
	hold->session = xfer->session;
	hold->generation = xfer->generation;
	hold->refs = 1;
	*ret_hold = hold;
	return 0;
}

void kv_hold_put_locked(struct kv_hold *hold)
{
	if (hold == NULL || --hold->refs > 0)
		return;
	if (hold->tag != 0 &&
	    kv_session_is_live(hold->session, hold->generation))
		kv_rpc_post_tag_locked(hold->session, WIRE_RELEASE, hold->tag);
	free(hold);
}

void kv_hold_block_locked(struct kvfs_xfer *xfer, size_t i,
			  struct kv_hold *hold)
{
	kv_assert_locked(&xfer->session->lock);
	if (xfer->held == NULL || hold == NULL)
		return;
	hold->refs++;
	xfer->held[i] = hold;
}

void kv_holds_end_locked(struct kvfs_xfer *xfer)
{
	struct kv_hold **held = kv_steal(xfer->held);
	size_t i;

	/* From the tail, so that a parent is renewed after its children. */
	for (i = xfer->n; held != NULL && i-- > 0;)
		kv_hold_put_locked(held[i]);
	free(held);
}
