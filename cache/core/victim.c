/* SPDX-License-Identifier: Apache-2.0 */
/*
 * victim.c - which list gives a block up, whatever tier it is of.
 *
 * OWNS       nothing; it decides.
 * LOCKING    cache->lock.
 */
#include "cache/core/victim.h"

struct coldest {
	struct kv_evict_list *list;
	uint32_t age;
};

static void look_at(struct coldest *coldest, struct kv_evict_list *list,
		    const struct kv_giving *giving)
{
	uint32_t age;

	if (!list->blocks || !giving->gives(list, giving->arg))
		return;
	age = kv_policy_age(&list->policy);
	if (coldest->list && age <= coldest->age)
		return;
	coldest->list = list;
	coldest->age = age;
}

struct kv_evict_list *kv_victim_list(const struct kv_evict_lists *lists,
				     const struct kv_giving *giving,
				     uint32_t *ret_age)
{
	struct coldest coldest = {0};
	struct kv_evict_list *list;

	TAILQ_FOREACH(list, lists, link) {
		if (!list->blocks)
			break; /* empty ones are last */
		look_at(&coldest, list, giving);
	}
	*ret_age = coldest.age;
	return coldest.list;
}

bool kv_victim_evict(const struct kv_evict_lists *lists,
		     const struct kv_giving *giving)
{
	struct kv_evict_list *list, *best;
	uint32_t age;

	best = kv_victim_list(lists, giving, &age);
	if (best && giving->evict(best, giving->arg))
		return true;
	/* All it has is in use. */
	TAILQ_FOREACH(list, lists, link)
		if (list != best && list->blocks &&
		    giving->gives(list, giving->arg) &&
		    giving->evict(list, giving->arg))
			return true;
	return false;
}

bool kv_victim_evict_own(const struct kv_evict_list_list *own,
			 const struct kv_giving *giving)
{
	struct coldest coldest = {0};
	struct kv_evict_list *list;

	LIST_FOREACH(list, own, own)
		look_at(&coldest, list, giving);
	return coldest.list && giving->evict(coldest.list, giving->arg);
}

static struct kv_evict_list *first_of(const struct kv_space *space, bool ssd)
{
	return LIST_FIRST(ssd ? &space->ssd_lists : &space->dram_lists);
}

/* All that @coldest has is in use. */
static bool evict_other(const struct kv_tenant *tenant, bool ssd,
			const struct kv_evict_list *coldest,
			const struct kv_giving *giving)
{
	struct kv_evict_list *list;
	const struct kv_space *space;

	LIST_FOREACH(space, &tenant->spaces, siblings)
		for (list = first_of(space, ssd); list;
		     list = LIST_NEXT(list, own))
			if (list != coldest && list->blocks &&
			    giving->gives(list, giving->arg) &&
			    giving->evict(list, giving->arg))
				return true;
	return false;
}

bool kv_victim_evict_tenant(const struct kv_tenant *tenant, bool ssd,
			    const struct kv_giving *giving)
{
	struct coldest coldest = {0};
	struct kv_evict_list *list;
	const struct kv_space *space;

	LIST_FOREACH(space, &tenant->spaces, siblings)
		for (list = first_of(space, ssd); list;
		     list = LIST_NEXT(list, own))
			look_at(&coldest, list, giving);
	return coldest.list && (giving->evict(coldest.list, giving->arg) ||
				evict_other(tenant, ssd, coldest.list, giving));
}
