/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ghost.c - the uses of evicted blocks.
 *
 * OWNS       the ring of entries, and buckets of them by hash.
 *
 * INVARIANTS
 *   (1) An entry with uses is in exactly one bucket, one without in none.
 *
 * LOCKING    the caller's.
 */
#include "cache/evict/ghost.h"

#define USES_MAX 15u /* the four low bits of an entry's time */

struct kv_ghost_entry {
	uint32_t hash;
	uint32_t time; /* tick, and uses in its low bits */
	uint32_t next; /* in its bucket */
};

int kv_ghost_init(struct kv_ghost *ghost, uint64_t entries)
{
	uint64_t n = 64;

	while (n < entries && n < 1u << 28)
		n *= 2;
	/* The kernel gives its pages when they are first written. */
	ghost->entries = calloc(n, sizeof(*ghost->entries));
	ghost->buckets = calloc(n, sizeof(*ghost->buckets));
	ghost->mask = (uint32_t)n - 1;
	ghost->at = 0;
	ghost->limit = (uint32_t)n;
	if (ghost->entries && ghost->buckets)
		return 0;
	kv_ghost_fini(ghost);
	return -ENOMEM;
}

void kv_ghost_fit(struct kv_ghost *ghost, uint32_t blocks)
{
	uint64_t want =
		KV_MAX((uint64_t)blocks * KV_GHOST_FOR_A_BLOCK, KV_GHOST_MIN);

	ghost->limit = (uint32_t)KV_MIN(want, ghost->mask + 1ull);
}

void kv_ghost_fini(struct kv_ghost *ghost)
{
	free(ghost->entries);
	free(ghost->buckets);
	ghost->entries = NULL;
	ghost->buckets = NULL;
}

/* Links hold one more than an entry's number; 0: none. */
static uint32_t *bucket_of(const struct kv_ghost *ghost, uint32_t hash)
{
	return &ghost->buckets[hash & ghost->mask];
}

static void forget(struct kv_ghost *ghost, uint32_t *link)
{
	struct kv_ghost_entry *entry = &ghost->entries[*link - 1];

	*link = entry->next;
	entry->time = 0;
}

void kv_ghost_put(struct kv_ghost *ghost, uint64_t hash, struct kv_past past)
{
	struct kv_ghost_entry *entry;
	uint32_t *bucket, *link;

	if (!ghost->entries || !past.uses)
		return;
	entry = &ghost->entries[ghost->at];
	if (entry->time & USES_MAX) { /* the oldest */
		link = bucket_of(ghost, entry->hash);
		while (*link != ghost->at + 1)
			link = &ghost->entries[*link - 1].next;
		forget(ghost, link);
	}
	entry->hash = (uint32_t)(hash >> 32);
	entry->time = (past.tick & ~USES_MAX) | KV_MIN(past.uses, USES_MAX);
	bucket = bucket_of(ghost, entry->hash);
	entry->next = *bucket;
	*bucket = ghost->at + 1;
	if (++ghost->at > ghost->mask || ghost->at >= ghost->limit)
		ghost->at = 0;
}

struct kv_past kv_ghost_take(struct kv_ghost *ghost, uint64_t hash)
{
	uint32_t tag = (uint32_t)(hash >> 32);
	struct kv_past past = {0};
	uint32_t *link;

	if (!ghost->entries)
		return past;
	for (link = bucket_of(ghost, tag); *link;
	     link = &ghost->entries[*link - 1].next) {
		const struct kv_ghost_entry *entry = &ghost->entries[*link - 1];

		if (entry->hash != tag)
			continue;
		past.tick = entry->time & ~USES_MAX;
		past.uses = entry->time & USES_MAX;
		forget(ghost, link);
		break;
	}
	return past;
}
