/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.c - leaf-first LRU, and LRU lists by frequency (flru).
 *
 * OWNS       the links between nodes.
 *
 * INVARIANTS
 *   (1) A linked node is on exactly the list its @list names.
 *   (2) From oldest to newest, ticks never go down but within one burst.
 *
 * LOCKING    the cache's lock, for everything.
 */
#include "cache/policy.h"

#define BURST_NS                                                    \
	200000000u /* one burst of seals: its blocks order by depth \
		    */

int kv_policy_init(struct kv_policy *policy, const char *name, uint32_t *clock,
		   struct kv_node *(*node)(void *, uint32_t), void *arg)
{
	unsigned lists;

	if (strcmp(name, "lru") == 0)
		lists = 1;
	else if (strcmp(name, "flru") == 0)
		lists = KV_POLICY_LISTS;
	else
		return -EINVAL;
	memset(policy, 0, sizeof(*policy));
	policy->clock = clock;
	policy->node = node;
	policy->arg = arg;
	policy->lists = lists;
	policy->burst = KV_NONE;
	for (unsigned i = 0; i < KV_POLICY_LISTS; i++)
		policy->oldest[i] = policy->newest[i] = KV_NONE;
	return 0;
}

static struct kv_node *node_of(const struct kv_policy *policy, uint32_t block)
{
	return policy->node(policy->arg, block);
}

/* Put @block in before (older than) @next; KV_NONE: as the newest. */
static void link_before(struct kv_policy *policy, uint32_t block, unsigned list,
			uint32_t next)
{
	struct kv_node *node = node_of(policy, block);
	uint32_t prev = next == KV_NONE ? policy->newest[list]
					: node_of(policy, next)->prev;

	node->list = (uint8_t)list;
	node->linked = true;
	node->prev = prev;
	node->next = next;
	if (prev == KV_NONE)
		policy->oldest[list] = block;
	else
		node_of(policy, prev)->next = block;
	if (next == KV_NONE)
		policy->newest[list] = block;
	else
		node_of(policy, next)->prev = block;
}

void kv_policy_remove(struct kv_policy *policy, uint32_t block)
{
	struct kv_node *node = node_of(policy, block);

	if (!node->linked)
		return;
	if (policy->burst == block)
		policy->burst = KV_NONE;
	if (node->prev == KV_NONE)
		policy->oldest[node->list] = node->next;
	else
		node_of(policy, node->prev)->next = node->next;
	if (node->next == KV_NONE)
		policy->newest[node->list] = node->prev;
	else
		node_of(policy, node->next)->prev = node->prev;
	node->linked = false;
}

void kv_policy_insert(struct kv_policy *policy, uint32_t block, uint64_t now_ns)
{
	if (policy->burst != KV_NONE && now_ns - policy->burst_ns > BURST_NS)
		policy->burst = KV_NONE;
	if (policy->burst == KV_NONE)
		policy->burst_ns = now_ns;
	node_of(policy, block)->tick = ++*policy->clock;
	link_before(policy, block, 0, policy->burst);
	policy->burst = block;
}

void kv_policy_touch(struct kv_policy *policy, uint32_t block, uint32_t uses)
{
	unsigned list = KV_MIN(uses, policy->lists - 1);

	if (!node_of(policy, block)->linked)
		return;
	kv_policy_remove(policy, block);
	node_of(policy, block)->tick = ++*policy->clock;
	link_before(policy, block, list, KV_NONE);
}

/* Oldest block of @list that may go. */
static uint32_t oldest_allowed(const struct kv_policy *policy, unsigned list,
			       bool (*may)(void *, uint32_t), void *arg)
{
	uint32_t block = policy->oldest[list];

	while (block != KV_NONE && !may(arg, block))
		block = node_of(policy, block)->next;
	return block;
}

uint32_t kv_policy_victim(const struct kv_policy *policy,
			  bool (*may)(void *arg, uint32_t block), void *arg)
{
	uint32_t best = KV_NONE;
	uint64_t best_age = 0;

	for (unsigned i = 0; i < policy->lists; i++) {
		uint32_t block = oldest_allowed(policy, i, may, arg);
		uint64_t age;

		if (block == KV_NONE)
			continue;
		/* Age over number of uses, in 256ths. */
		age = ((uint64_t)(*policy->clock - node_of(policy, block)->tick)
		       << 8) /
		      (i + 1);
		if (best == KV_NONE || age > best_age) {
			best = block;
			best_age = age;
		}
	}
	return best;
}

uint32_t kv_policy_age(const struct kv_policy *policy)
{
	uint32_t age = 0;

	for (unsigned i = 0; i < policy->lists; i++)
		if (policy->oldest[i] != KV_NONE)
			age = KV_MAX(age,
				     *policy->clock -
					     node_of(policy, policy->oldest[i])
						     ->tick);
	return age;
}
