/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shunned.c - blocks that are not asked for: those that were not there a moment ago
 * or came damaged.
 *
 * A table of a fixed size, in which the newer takes the older one's place: at worst
 * something is asked for once more.
 *
 * OWNS      the table.
 *
 * LOCKING   cache->lock.
 */
#include "cache/remote/tier.h"

#define SHUNNED (1u << 14)

struct kv_shunned {
	struct {
		uint64_t hash, until_ns;
	} absent[SHUNNED];
};

int kv_shunned_new(struct kv_shunned **ret_shunned)
{
	*ret_shunned = calloc(1, sizeof(**ret_shunned));
	return *ret_shunned ? 0 : -ENOMEM;
}

void kv_shunned_free(struct kv_shunned *shunned)
{
	free(shunned);
}

void kv_shun(struct kv_shunned *shunned, uint64_t hash, uint64_t until_ns)
{
	shunned->absent[hash % SHUNNED].hash = hash;
	shunned->absent[hash % SHUNNED].until_ns = until_ns;
}

void kv_shun_not(struct kv_shunned *shunned, uint64_t hash)
{
	if (shunned->absent[hash % SHUNNED].hash == hash)
		shunned->absent[hash % SHUNNED].until_ns = 0;
}

bool kv_is_shunned(const struct kv_shunned *shunned, uint64_t hash)
{
	return shunned->absent[hash % SHUNNED].hash == hash &&
	       kv_now_ns() < shunned->absent[hash % SHUNNED].until_ns;
}
