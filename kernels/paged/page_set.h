/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page_set.h - pages of a paged pool that the engine writes to.
 */
#ifndef KV_KERNELS_PAGED_PAGE_SET_H
#define KV_KERNELS_PAGED_PAGE_SET_H

#include "kernels/paged/paged_pool.h"

/* The pool is being closed: what is still taken is dropped; and, when nobody
 * reads or writes its pages any more, all sets are freed. */
void kv_sets_end_locked(struct kv_paged_pool *paged);
void kv_sets_free_locked(struct kv_paged_pool *paged);

#endif
