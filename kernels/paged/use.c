/* SPDX-License-Identifier: Apache-2.0 */
/*
 * use.c - a block of a map, and the page that it uses: how it ends.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) A block that has settled waits for no page, and one that has failed has
 *       none.
 *
 * LOCKING   session->lock.
 */
#include "kernels/paged/map.h"
#include "kernels/paged/use.h"

static size_t index_of(const struct kv_use *use)
{
	return (size_t)(use - use->map->uses);
}

void kv_use_settle_locked(struct kv_use *use, int status)
{
	struct kvfs_xfer *xfer = use->map->xfer;

	kv_assert_locked(&use->map->xfer->session->lock);
	atomic_store(&xfer->status[index_of(use)], status);
	if (status < 0) {
		kv_xfer_fail_locked(xfer, KVFS_COPIED, 1);
		return;
	}
	kv_xfer_reach_locked(xfer, KVFS_DURABLE, 1);
	kv_xfer_reach_locked(xfer, KVFS_SEALED, 1);
	kv_xfer_reach_locked(xfer, KVFS_COPIED, 1);
}

void kv_uses_settle_locked(struct kv_paged_pool *paged, struct kv_page *page,
			   int status)
{
	struct kv_page_table *page_table = paged->page_table;
	struct kv_use *use;

	kv_assert_locked(&paged->inner->session->lock);
	if (status == 0)
		kv_page_table_ready(page_table, page);
	while ((use = LIST_FIRST(&page->waiting))) {
		LIST_REMOVE(use, others);
		if (status < 0) {
			use->page = NULL;
			kv_page_table_put(page_table, page);
		}
		kv_use_settle_locked(use, status);
	}
	if (status < 0)
		kv_page_table_give(page_table, page);
}
