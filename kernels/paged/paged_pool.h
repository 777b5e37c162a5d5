/* SPDX-License-Identifier: Apache-2.0 */
/* paged_pool.h - a pool of kvfs_pool_reserve, whose pages the library owns. */
#ifndef KV_KERNELS_PAGED_PAGED_POOL_H
#define KV_KERNELS_PAGED_PAGED_POOL_H

#include <sys/queue.h>

#include "kernels/kvfs.h"
#include "kernels/transfer/pool.h"
#include "kernels/paged/page_table.h"
#include "kernels/session/session.h"

struct kv_page_fill; /* map.c */
TAILQ_HEAD(kv_page_fills, kv_page_fill);

struct kv_paged_pool {
	/* fixed */
	struct kvfs_pool *pool; /* a page is one block */
	void *memory;
	uint8_t *base;
	uint64_t page_bytes, max_pages;

	/* lock */
	struct kv_page_table *page_table;
	bool growing;
	struct kv_page_fills fills; /* waiting to begin */
	unsigned filling;	    /* begun fills */
	bool dram_is_short;	    /* begin one fill at a time */
	LIST_HEAD(, kvfs_mapping) maps;
	LIST_HEAD(, kvfs_pages) sets;
};

/* Check that @pool is a pool of kvfs_pool_reserve.  -EINVAL, -EBADF. */
int kv_paged_pool_check(const struct kvfs_pool *pool);

/*
 * Check the arguments of a map or a seal.
 * -EINVAL: the layouts of @space and @pool differ, or @opts sets layers, a first
 *          block, or flags other than @flags
 * errors of kv_stream_sync_resolve
 */
int kv_paged_pool_check_call(const struct kvfs_pool *pool,
			     struct kvfs_space *space, const kvfs_opts *opts,
			     unsigned flags);

/* Grow the pool until @n pages are free, or the pool has max_pages.  Releases
 * the lock while the device allocates memory. */
void kv_paged_pool_room_locked(struct kv_paged_pool *paged, uint64_t n);

/* Return the address of tensor @tensor in the page, or of the page (NULL).
 * NULL: no such tensor. */
void *kv_paged_pool_addr(const struct kv_paged_pool *paged,
			 const struct kv_page *page, const char *tensor);

/* Settle all blocks of maps that wait for a COMING page, whose bytes have been
 * loaded or (@status < 0) could not be.  (map.c) */
void kv_page_settle_locked(struct kv_paged_pool *paged, struct kv_page *page,
			   int status);
/* End all maps of a pool that is being closed.  (map.c) */
void kv_maps_end_locked(struct kv_paged_pool *paged);

#endif
