/* SPDX-License-Identifier: Apache-2.0 */
/*
 * use.h - a block of a map, and the page that it uses.
 */
#ifndef KV_KERNELS_PAGED_USE_H
#define KV_KERNELS_PAGED_USE_H

#include "kernels/paged/paged_pool.h"

/* A block of a map. */
struct kv_use {
	LIST_ENTRY(kv_use) others; /* in page->waiting, until it has settled */
	struct kvfs_mapping *map;
	struct kv_page *page; /* held; NULL: it has none */
};

/* The block is in its page, or (@status < 0) will not be. */
void kv_use_settle_locked(struct kv_use *use, int status);

/* The bytes of a page that was COMING are there, or (@status < 0) will not be:
 * who waits for it gets to know. */
void kv_uses_settle_locked(struct kv_paged_pool *paged, struct kv_page *page,
			   int status);

#endif
