/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page_fill.h - a few blocks on their way from the cache to pages of a paged
 * pool.
 */
#ifndef KV_KERNELS_PAGED_PAGE_FILL_H
#define KV_KERNELS_PAGED_PAGE_FILL_H

#include "kernels/paged/paged_pool.h"

struct kvfs_xfer;

/* The last of @fills, blocks of @space, has room for one more; -ENOMEM. */
int kv_page_fills_need_locked(struct kv_page_fills *fills,
			      struct kv_paged_pool *paged,
			      struct kvfs_space *space);
/* A page that is COMING goes with the last of @fills, which has room. */
void kv_page_fills_add_locked(struct kv_page_fills *fills,
			      struct kv_page *page);

/*
 * Begin them, or have them wait for others, without a lock held; the rest
 * happens by itself.  When one is over, or cannot begin, kv_uses_settle_locked
 * is called for each of its pages, and it is freed.
 */
void kv_page_fills_start(struct kv_paged_pool *paged,
			 struct kv_page_fills *fills, const kvfs_opts *opts);

/* Somebody waits for it, and no longer: one that nobody waits for is stopped. */
void kv_page_fill_want_locked(struct kv_page_fill *fill);
void kv_page_fill_unwant_locked(struct kv_page_fill *fill);

/* What it loads by; NULL: that has not begun. */
struct kvfs_xfer *kv_page_fill_load_locked(const struct kv_page_fill *fill);

/* Whether the device has been given the copy into @page, which is COMING.  A
 * block that has failed may go again, so that one does not count. */
bool kv_page_is_submitted_locked(const struct kv_page *page);

#endif
