/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shunned.c - blocks that are not asked for: those that were not there a moment ago
 * or came damaged.
 *
 * Those that came damaged are to be put anew by who has them, whatever their notes
 * say: that is remembered until it has been done.
 *
 * Tables of a fixed size, in which the newer takes the older one's place: at worst
 * something is asked for once more, or is left as it is.
 *
 * OWNS      the tables.
 *
 * LOCKING   cache->lock.
 */
#include "cache/remote/tier.h"

#define SHUNNED (1u << 14)
#define DAMAGED (1u << 10)

struct kv_shunned {
	struct {
		uint64_t hash, until_ns;
	} absent[SHUNNED];
	struct {
		uint64_t hash;
		uint32_t backends; /* a bit for each; 0: nobody's */
	} damaged[DAMAGED];
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

void kv_damaged(struct kv_shunned *shunned, uint64_t hash, unsigned backend)
{
	if (shunned->damaged[hash % DAMAGED].hash != hash)
		shunned->damaged[hash % DAMAGED].backends = 0;
	shunned->damaged[hash % DAMAGED].hash = hash;
	shunned->damaged[hash % DAMAGED].backends |= 1u << backend;
}

void kv_mended(struct kv_shunned *shunned, uint64_t hash, unsigned backend)
{
	if (shunned->damaged[hash % DAMAGED].hash == hash)
		shunned->damaged[hash % DAMAGED].backends &= ~(1u << backend);
}

bool kv_is_damaged(const struct kv_shunned *shunned, uint64_t hash,
		   unsigned backend)
{
	return shunned->damaged[hash % DAMAGED].hash == hash &&
	       (shunned->damaged[hash % DAMAGED].backends & 1u << backend);
}
