/* SPDX-License-Identifier: Apache-2.0 */
/*
 * victim.h - which list gives a block up, whatever tier it is of.
 *
 * All calls with the lock held.
 */
#ifndef KV_CACHE_CORE_VICTIM_H
#define KV_CACHE_CORE_VICTIM_H

#include "cache/core/core.h"

/* The tier's rules. */
struct kv_giving {
	/* May a block of @list, which has some, go? */
	bool (*gives)(const struct kv_evict_list *list, const void *arg);
	/* Evict one of them; false: all are in use. */
	bool (*evict)(struct kv_evict_list *list, const void *arg);
	const void *arg;
};

/* Of a class's lists that give, the one longest without a use; NULL.  *@ret_age
 * tells for how long. */
struct kv_evict_list *kv_victim_list(const struct kv_evict_lists *lists,
				     const struct kv_giving *giving,
				     uint32_t *ret_age);
/* Evict a block of that list, or else of any that gives; false: none can be. */
bool kv_victim_evict(const struct kv_evict_lists *lists,
		     const struct kv_giving *giving);
/* Evict a block of the list of a space's own that is longest without a use. */
bool kv_victim_evict_own(const struct kv_evict_list_list *own,
			 const struct kv_giving *giving);
/* The same of all of a tenant's spaces, in one tier. */
bool kv_victim_evict_tenant(const struct kv_tenant *tenant, bool ssd,
			    const struct kv_giving *giving);

#endif
