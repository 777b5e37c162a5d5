/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page_fill.h - a few blocks on their way from the cache to pages of a reserved
 * pool.
 */
#ifndef KV_BRING_H
#define KV_BRING_H

#include "kernels/paged/paged_pool.h"

#define KV_BRING_PAGES 256u
#define KV_BRING_BYTES ((uint64_t)64 << 20)

struct kv_bring {
	struct kv_bring *next; /* the caller's */
	struct kv_reserved *reserved;
	struct kvfs_space *space; /* held */
	kvfs_lease *lease;	  /* lock */
	struct kvfs_xfer *load;	  /* lock; NULL: not begun */
	size_t wanted;		  /* lock: uses that wait for it */
	size_t n, limit;
	struct kv_page *page[KV_BRING_PAGES]; /* COMING; their bring is this */
};

/* -ENOMEM. */
int kv_bring_new_locked(struct kv_reserved *reserved, struct kvfs_space *space,
			struct kv_bring **ret_bring);

/* Whether another page has to go with another one. */
bool kv_bring_is_full(const struct kv_bring *bring);
void kv_bring_add_locked(struct kv_bring *bring, struct kv_page *page);

/*
 * Begin, without a lock held; the rest happens by itself.  When it is over, or
 * cannot begin, kv_map_page_over_locked is called for each page, and @bring is
 * freed.
 */
void kv_bring_start(struct kv_bring *bring, const kvfs_opts *opts);

/* One use waits for it, and no longer: what nobody wants any more is stopped,
 * and may be over before this returns. */
void kv_bring_want_locked(struct kv_bring *bring);
void kv_bring_unwant_locked(struct kv_bring *bring);

#endif
