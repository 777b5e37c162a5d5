/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lent.h - a pool's memory as the daemon maps it, and saves that name pages of
 * it instead of copying them to staging.
 *
 * Pages are lent from the message that names them to its answer, or until they
 * are taken back, which takes no answer of a daemon that hangs.
 */
#ifndef KV_KERNELS_TRANSFER_LENT_H
#define KV_KERNELS_TRANSFER_LENT_H

#include "kernels/transfer/pool.h"
#include "kernels/transfer/stage.h"
#include "kernels/transfer/xfer.h"

struct kv_lending;

/*
 * Have the memory of @desc, which was checked, lent by @pool; nothing if it has
 * no descriptor, or the daemon could not save from it.  @pool->lending is set
 * then.  On failure -EINVAL: that memory is not a shared mapping of that part
 * of the file; -ENOMEM, -EMFILE, -EBADF.  No lock held.
 */
int kv_lending_new(struct kvfs_pool *pool, const kvfs_pool_desc *desc);
/*
 * The same for memory of the library's own from @memory on, of which @bytes are
 * there: @fd, its file's, is taken over in any case.  -ENOMEM.
 */
int kv_lending_own(struct kvfs_pool *pool, int fd, const void *memory,
		   uint64_t bytes, uint64_t max_bytes);
/* So much of that is about to be there; nothing if there is no lending.
 * -ENOMEM.  No lock held. */
int kv_lending_grow(struct kvfs_pool *pool, uint64_t bytes);
/* No transfer uses the pool.  Lock held; takes NULL. */
void kv_lending_free_locked(struct kv_lending *lending);
/* In the child of a fork: the descriptor is not ours.  No lock held. */
void kv_lending_forked(struct kvfs_session *session);

/* Tell the daemon of it, unless it was told since it connected. */
void kv_lending_offer_locked(struct kvfs_pool *pool);
/* Why blocks go by staging all the same; NULL: they do not, if all of a block
 * is saved. */
const char *kv_lending_why_not_locked(const struct kvfs_pool *pool);

/* Whether the whole blocks of @xfer can go by it now. */
bool kv_lent_may_locked(const struct kvfs_xfer *xfer);
/* How many of its blocks go at a time. */
size_t kv_lent_batch_blocks(const struct kvfs_xfer *xfer,
			    const struct kv_stage *stage);
/* As kv_save_batch_locked. */
int kv_lent_batch_locked(struct kvfs_xfer *xfer, struct kv_stage *stage,
			 size_t n);
/* xfer->stopped is set: pages are taken back, and their blocks end now. */
void kv_lent_batches_stop_locked(struct kvfs_xfer *xfer);

#endif
