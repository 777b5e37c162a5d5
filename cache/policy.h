/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy.h - who leaves first: the order of the blocks of one class of a tier.
 *
 * A block is useful only with its whole prefix, so victims come leaf-first.
 * That needs no tree: whoever touches a chain does so from its tail, and blocks
 * sealed in one burst are put in from the head, each behind the one before it.
 * Then a parent is always more recent than its child.
 *
 * All calls under the cache's lock.  A policy owns nothing but links; its nodes
 * lie in their blocks' slots (DRAM) or in the blocks (SSD).
 */
#ifndef KV_POLICY_H
#define KV_POLICY_H

#include "kv.h"

#define KV_NONE UINT32_MAX
#define KV_POLICY_LISTS 4

struct kv_node {
	uint32_t prev, next; /* block numbers; KV_NONE */
	uint32_t tick;	     /* when touched, in touches */
	uint8_t list;
	bool linked;
};

struct kv_policy {
	struct kv_node *(*node)(void *arg, uint32_t block);
	void *arg;
	unsigned lists; /* 1: lru; KV_POLICY_LISTS: flru, by number of uses */
	uint32_t oldest[KV_POLICY_LISTS], newest[KV_POLICY_LISTS];
	uint32_t *clock; /* counts touches, for all policies of a cache */
	uint32_t burst;	 /* last block put in, while its burst lasts */
	uint64_t burst_ns;
};

/* @name: "lru" or "flru"; -EINVAL otherwise. */
int kv_policy_init(struct kv_policy *policy, const char *name, uint32_t *clock,
		   struct kv_node *(*node)(void *, uint32_t), void *arg);
/* A block that was just sealed or read in. */
void kv_policy_insert(struct kv_policy *policy, uint32_t block,
		      uint64_t now_ns);
/* A use; @uses counts them all. */
void kv_policy_touch(struct kv_policy *policy, uint32_t block, uint32_t uses);
void kv_policy_remove(struct kv_policy *policy, uint32_t block);
/* The best victim that @may allows; KV_NONE.  Cost: what has to be passed over.
 */
uint32_t kv_policy_victim(const struct kv_policy *policy,
			  bool (*may)(void *arg, uint32_t block), void *arg);
/* Age of the next victim in touches; 0 if there is none. */
uint32_t kv_policy_age(const struct kv_policy *policy);

#endif
