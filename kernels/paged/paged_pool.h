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

/*
 * Of the two pools that there are, the caller has one without pages: what is
 * copied to and from the pages goes by way of @inner, which only the library
 * has.
 */
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
	struct kv_page_fills fills;  /* that wait for others to end */
	unsigned filling, fills_max; /* begun, and how many may be */
	LIST_HEAD(, kvfs_mapping) maps;
	LIST_HEAD(, kvfs_pages) sets;
};

/* -EINVAL: not a paged pool; -EBADF. */
int kv_paged_pool_check(const struct kvfs_pool *pool);

/* 0, or why blocks of @space cannot be in pages of @pool. */
int kv_paged_pool_check_space(const struct kvfs_pool *pool,
			      struct kvfs_space *space);

/* 0, or why @opts cannot be: a whole block comes or goes. */
int kv_paged_pool_check_opts(const struct kvfs_pool *pool,
			     const kvfs_opts *opts, unsigned flags);

/*
 * Grow the pool until @n pages are free, or as far as it goes.  Lets go of the
 * lock while the device makes the memory.
 */
void kv_paged_pool_room(struct kv_paged_pool *paged, uint64_t n);

/* Where a page is; @tensor NULL: its beginning.  NULL: no such tensor. */
void *kv_paged_pool_addr(const struct kv_paged_pool *paged,
			 const struct kv_page *page, const char *tensor);

#endif
