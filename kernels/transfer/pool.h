/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.h - the engine's paged memory, whose description is checked once.
 */
#ifndef KV_KERNELS_TRANSFER_POOL_H
#define KV_KERNELS_TRANSFER_POOL_H

#include <sys/queue.h>

#include "kernels/device/device.h"
#include "kernels/kvfs.h"
#include "common/layout.h"

struct kv_lending;
struct kv_paged_pool;

/* Calls of the folder above, for pools that kvfs_pool_reserve gave. */
struct kv_paged_pool_ops {
	void (*close)(struct kv_paged_pool *paged);
	void (*info)(const struct kv_paged_pool *paged,
		     struct kvfs_pool_info *ret_info);
	/* The session has cleared the space of that name. */
	void (*forget_locked)(struct kv_paged_pool *paged, const char *name);
};

struct kvfs_pool {
	/* fixed after register */
	struct kvfs_session *session;
	const struct kvfs_device *device;
	void *on_device;	  /* the device's handle of this pool */
	bool opened;		  /* the device must close it */
	struct kvfs_space *space; /* held: its layout is this pool's */
	const struct kv_layout *layout;
	uint64_t pages;
	struct kvfs_strides strides;

	struct kv_lending *lending; /* lock; NULL: memory without descriptor */

	/* lock */
	uint8_t *seen;		 /* a bit a page, all clear between calls */
	size_t busy;		 /* transfers that still use pages */
	uint32_t *loads, *saves; /* of each page */
	uint64_t pages_loading, pages_saving; /* pages in use */

	/* Of a pool that kvfs_pool_reserve gave, whose pages callers cannot
	 * name; NULL: the engine's memory. */
	struct kv_paged_pool *paged; /* fixed, as is its table */
	const struct kv_paged_pool_ops *paged_ops;
	LIST_ENTRY(kvfs_pool) others; /* lock: in session->paged */
};

/*
 * Check @desc against @layout and make the strides; caller frees
 * ret_strides->stride.  -EINVAL as kvfs_pool_register says, -ENOMEM.
 */
int kv_strides_new(const kvfs_pool_desc *desc, const struct kv_layout *layout,
		   struct kvfs_strides *ret_strides);

/* kvfs_pool_info, of a pool of the engine's memory. */
void kv_lib_pool_info(struct kvfs_pool *pool, struct kvfs_pool_info *ret_info);

/* Have @session report its events to transfers (struct kv_session_user). */
void kv_lib_transfers_use_locked(struct kvfs_session *session);

/* kvfs_pool_register, of a checked descriptor; only the first @there pages have
 * memory by now. */
int kv_lib_pool_register(kvfs_session *session, const kvfs_pool_desc *desc,
			 uint64_t there, kvfs_pool **ret_pool);

/*
 * Check the @n pages of a transfer: each is inside the pool; a transfer that
 * @loads has no page twice, but may have -1.  Return how many are not -1, or
 * -EINVAL.
 */
long kv_lib_pool_check_pages_locked(struct kvfs_pool *pool,
				    const int64_t *pages, size_t n, bool loads);

/* A transfer begins or ends to use these pages, which were checked. */
void kv_lib_pool_use_locked(struct kvfs_pool *pool, const int64_t *pages,
			    size_t n, bool loads, bool begin);

/* ---- lending: the daemon maps the pool's memory and saves from its pages ----
 * */

/*
 * Lend memory that the library allocated: @bytes of @max_bytes from @memory on
 * exist.  Takes @fd, of its file, over in any case; does nothing if the daemon
 * could not save from it.  -ENOMEM.  No lock held.
 */
int kv_lending_own(struct kvfs_pool *pool, int fd, const void *memory,
		   uint64_t bytes, uint64_t max_bytes);
/* @bytes of the memory are about to exist; does nothing without a lending.
 * -ENOMEM.  No lock held. */
int kv_lending_grow(struct kvfs_pool *pool, uint64_t bytes);

/* Offer the memory to the daemon, once for each connection. */
void kv_lending_offer_locked(struct kvfs_pool *pool);
/* Whether the daemon of the connection @generation has accepted the offer. */
bool kv_lending_is_taken_locked(const struct kvfs_pool *pool,
				uint64_t generation);
/* Name of the memory in messages; the pool has a lending. */
uint32_t kv_lending_id(const struct kvfs_pool *pool);

#endif
