/* SPDX-License-Identifier: Apache-2.0 */
/* pool.h - a pool: the pages of an engine, checked once against a layout, and
 * the loan of their memory to the daemon. */
#ifndef KV_KERNELS_TRANSFER_POOL_H
#define KV_KERNELS_TRANSFER_POOL_H

#include <sys/queue.h>

#include "kernels/device/device.h"
#include "kernels/kvfs.h"
#include "common/layout.h"
#include "common/wire.h"

struct kv_paged_pool;

/* Functions of the folder paged/, for pools of kvfs_pool_reserve. */
struct kv_paged_pool_ops {
	/* End maps and sets; releases the lock to wait for their transfers. */
	void (*close_locked)(struct kv_paged_pool *paged);
	void (*info_locked)(const struct kv_paged_pool *paged,
			    struct kvfs_pool_info *ret_info);
	/* Forget all blocks of the space @name, which was cleared. */
	void (*forget_locked)(struct kv_paged_pool *paged, const char *name);
	/* Free the memory of pages that the device has closed. */
	void (*free)(struct kv_paged_pool *paged,
		     const struct kvfs_device *device);
};

/* The loan of a pool's memory to the daemon; guarded by lock. */
struct kv_lending {
	int fd;		       /* the memory's file; -1: nothing is lent */
	struct wire_pool item; /* item.id names the loan in messages */
	const uint8_t *memory;
	struct kv_pool_offer *offer; /* the offer in flight; NULL: none */
	/* Connection that last got the offer, that last accepted it; or 0. */
	uint64_t asked, taken;
	int refused; /* -errno of the last offer, or 0 */
};

struct kvfs_pool {
	/* fixed after register */
	struct kvfs_session *session;
	const struct kvfs_device *device;
	void *on_device; /* the device's handle of the pool, from its open */
	bool opened;	 /* the device's open has succeeded */
	struct kvfs_space *space; /* held; gives the pool its layout */
	const struct kv_layout *layout;
	uint64_t pages;
	struct kvfs_strides strides;

	struct kv_lending lending;

	/* lock */
	uint8_t *seen; /* bit of each page of a call; all clear between calls */
	size_t busy;   /* number of transfers and fences that use the pool */
	uint32_t *loads, *saves; /* for each page, loads and saves in flight */
	uint64_t pages_loading, pages_saving;

	/* State of a pool of kvfs_pool_reserve, which chooses the pages itself;
	 * NULL: the engine chooses the pages. */
	struct kv_paged_pool *paged;
	const struct kv_paged_pool_ops *paged_ops;
	LIST_ENTRY(kvfs_pool) others; /* in session->pools */
};

/* Check @desc against @layout, and compute the strides of a block.  The caller
 * frees ret_strides->stride.
 * -EINVAL: as for kvfs_pool_register
 * -ENOMEM */
int kv_strides_new(const kvfs_pool_desc *desc, const struct kv_layout *layout,
		   struct kvfs_strides *ret_strides);

/* Register the hooks of this folder (struct kv_session_user) with @session. */
void kv_lib_transfers_use_locked(struct kvfs_session *session);

/* Register a pool whose description @desc was checked.  Only the first @there
 * pages have memory yet. */
int kv_lib_pool_register(kvfs_session *session, const kvfs_pool_desc *desc,
			 uint64_t there, kvfs_pool **ret_pool);

/* Check the @n @pages of a transfer: each must be inside the pool.  A load
 * (@loads) may skip pages (-1), and must not name a page twice.  Return the
 * number of pages that are not -1, or -EINVAL. */
long kv_lib_pool_check_pages_locked(struct kvfs_pool *pool,
				    const int64_t *pages, size_t n, bool loads);

/* Count these checked pages as in use (@begin), or no longer in use, by a load
 * (@loads) or save. */
void kv_lib_pool_use_locked(struct kvfs_pool *pool, const int64_t *pages,
			    size_t n, bool loads, bool begin);

/* ---- lending: the daemon maps the pool's memory and saves from its pages ----
 * */

/* Lend memory that the library allocated to the daemon: @bytes of at most
 * @max_bytes exist at @memory.  Takes over @fd, a descriptor of the memory's
 * file.  Does nothing if the daemon could not save from that memory.  The
 * caller holds no lock. */
void kv_lending_own(struct kvfs_pool *pool, int fd, const void *memory,
		    uint64_t bytes, uint64_t max_bytes);

/* Offer the pool's memory to the daemon, once for each connection. */
void kv_lending_offer_locked(struct kvfs_pool *pool);
/* Return whether the daemon of connection @generation has accepted the
 * offer. */
bool kv_lending_is_taken_locked(const struct kvfs_pool *pool,
				uint64_t generation);
#endif
