/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page_fill.h - a few blocks on their way from the cache to pages of a reserved
 * pool.
 */
#ifndef KV_KERNELS_PAGED_PAGE_FILL_H
#define KV_KERNELS_PAGED_PAGE_FILL_H

#include "kernels/paged/paged_pool.h"

#define KV_PAGE_FILL_PAGES 256u
#define KV_PAGE_FILL_BYTES ((uint64_t)64 << 20)

struct kv_page_fill {
	struct kv_page_fill *next; /* the caller's */
	struct kv_paged_pool *paged;
	struct kvfs_space *space; /* held */
	kvfs_lease *lease;	  /* lock */
	struct kvfs_xfer *load;	  /* lock; NULL: not begun */
	size_t wanted;		  /* lock: uses that wait for it */
	size_t n, limit;
	struct kv_page
		*page[KV_PAGE_FILL_PAGES]; /* COMING; their fill is this */
};

/* -ENOMEM. */
int kv_page_fill_new_locked(struct kv_paged_pool *paged,
			    struct kvfs_space *space,
			    struct kv_page_fill **ret_fill);

/* Whether another page has to go with another one. */
bool kv_page_fill_is_full(const struct kv_page_fill *fill);
void kv_page_fill_add_locked(struct kv_page_fill *fill, struct kv_page *page);

/*
 * Begin, without a lock held; the rest happens by itself.  When it is over, or
 * cannot begin, kv_map_page_over_locked is called for each page, and @bring is
 * freed.
 */
void kv_page_fill_start(struct kv_page_fill *fill, const kvfs_opts *opts);

/* One use waits for it, and no longer: what nobody wants any more is stopped,
 * and may be over before this returns. */
void kv_page_fill_want_locked(struct kv_page_fill *fill);
void kv_page_fill_unwant_locked(struct kv_page_fill *fill);

#endif
