/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page_fill.h - fills, which load a few blocks from the cache into pages of a
 * paged pool, and uses, which are the blocks of maps that wait for those pages.
 */
#ifndef KV_KERNELS_PAGED_PAGE_FILL_H
#define KV_KERNELS_PAGED_PAGE_FILL_H

#include "kernels/paged/paged_pool.h"

struct kvfs_xfer;

/* Add a TAKEN page, for a block of @space, to the last of @fills or to a new
 * fill.
 * -ENOMEM: the page was given back to the page table */
int kv_page_fills_add_locked(struct kv_page_fills *fills,
			     struct kv_paged_pool *paged,
			     struct kvfs_space *space, struct kv_page *page);

/* Begin or queue the fills.  A fill that ends, or cannot begin, calls
 * kv_uses_settle_locked for each of its pages and frees itself.  The caller
 * holds no lock. */
void kv_page_fills_start(struct kv_paged_pool *paged,
			 struct kv_page_fills *fills, const kvfs_opts *opts);

/* Count one more use, or one less, that waits for the fill.  A fill without
 * uses is stopped. */
void kv_page_fill_want_locked(struct kv_page_fill *fill);
void kv_page_fill_unwant_locked(struct kv_page_fill *fill);

/* Return the fill's load; NULL: not begun. */
struct kvfs_xfer *kv_page_fill_load_locked(const struct kv_page_fill *fill);

/* Return whether the device was given the copy into @page, which is COMING.  A
 * copy of a block that has failed, and may be loaded again, does not count. */
bool kv_page_is_submitted_locked(const struct kv_page *page);

/* ---- uses ---- */

/* A block of a map, and the page that holds the block. */
struct kv_use {
	/* in page->waiting until the use has settled */
	LIST_ENTRY(kv_use) others;
	struct kvfs_mapping *map;
	struct kv_page *page; /* held; or NULL */
};

/* Settle a use: its block is in the page, or (@status < 0) has failed. */
void kv_use_settle_locked(struct kv_use *use, int status);

/* Settle all uses of a COMING page, whose bytes have been loaded or (@status <
 * 0) could not be. */
void kv_uses_settle_locked(struct kv_paged_pool *paged, struct kv_page *page,
			   int status);

#endif
