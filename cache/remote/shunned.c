/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shunned.c - blocks that are not asked for: those that were not there a moment ago
 * or came damaged, and those that were removed here.
 *
 * Two tables of a fixed size, in which the newer takes the older one's place: at
 * worst something is asked for once more, or comes back that was removed so many
 * removals ago.
 *
 * OWNS      the tables.
 *
 * LOCKING   cache->lock.
 */
#include "cache/remote/tier.h"

#define ABSENT (1u << 14)
#define REMOVED (1u << 18)

struct kv_shunned {
	struct {
		uint64_t hash, until_ns;
	} absent[ABSENT];
	uint64_t removed[REMOVED]; /* 0: none */
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

void kv_shun_absent(struct kv_shunned *shunned, uint64_t hash,
		    uint64_t until_ns)
{
	shunned->absent[hash % ABSENT].hash = hash;
	shunned->absent[hash % ABSENT].until_ns = until_ns;
}

void kv_shun_removed(struct kv_shunned *shunned, uint64_t hash)
{
	shunned->removed[hash % REMOVED] = hash;
}

void kv_shun_not(struct kv_shunned *shunned, uint64_t hash)
{
	if (shunned->removed[hash % REMOVED] == hash)
		shunned->removed[hash % REMOVED] = 0;
	if (shunned->absent[hash % ABSENT].hash == hash)
		shunned->absent[hash % ABSENT].until_ns = 0;
}

bool kv_is_shunned(const struct kv_shunned *shunned, uint64_t hash)
{
	return shunned->removed[hash % REMOVED] == hash ||
	       (shunned->absent[hash % ABSENT].hash == hash &&
		kv_now_ns() < shunned->absent[hash % ABSENT].until_ns);
}
