/* SPDX-License-Identifier: Apache-2.0 */
/*
 * paged_pool.h - a pool whose pages are the library's own.
 */
#ifndef KV_KERNELS_PAGED_PAGED_POOL_H
#define KV_KERNELS_PAGED_PAGED_POOL_H

#include <sys/queue.h>

#include "kernels/kvfs.h"
#include "kernels/transfer/pool.h"
#include "kernels/paged/page_table.h"
#include "kernels/session/session.h"

#define KV_PAGE_FILLS 3u /* at a time */
struct kv_page_fill;
TAILQ_HEAD(kv_page_fills, kv_page_fill);

/* The caller's pool has no pages: copies use the pool @inner, which only the
 * library has. */
struct kv_paged_pool {
	/* fixed */
	struct kvfs_pool *inner;
	const struct kvfs_device *device;
	void *memory;
	uint8_t *base;
	uint64_t page_bytes, max_pages;

	/* lock */
	struct kv_page_table *page_table;
	bool growing;
	struct kv_page_fills fills;  /* waiting to begin */
	unsigned filling, fills_max; /* begun, and the most that may be */
	LIST_HEAD(, kvfs_mapping) maps;
	LIST_HEAD(, kvfs_pages) sets;
};

/* -EINVAL: not a paged pool; -EBADF. */
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

/* Grow the pool until @n pages are free, or to its limit.  Releases the lock
 * while the device makes memory. */
void kv_paged_pool_room(struct kv_paged_pool *paged, uint64_t n);

/* Return the address of @tensor in a page, or (NULL) of the page.  NULL: no such
 * tensor. */
void *kv_paged_pool_addr(const struct kv_paged_pool *paged,
			 const struct kv_page *page, const char *tensor);

/* While the pool is closed: drop all sets that are taken; then, when no copy uses
 * the pages, free all sets. */
void kv_sets_end_locked(struct kv_paged_pool *paged);
void kv_sets_free_locked(struct kv_paged_pool *paged);

#endif
