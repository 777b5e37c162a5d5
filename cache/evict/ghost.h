/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ghost.h - how often and when evicted blocks were used.  A fixed table; the
 * oldest entries are forgotten first, so that of a chain, which goes
 * leaf-first, the head is remembered longest.
 */
#ifndef KV_CACHE_EVICT_GHOST_H
#define KV_CACHE_EVICT_GHOST_H

#include "cache/evict/policy.h"

/* Blocks remembered for each one in DRAM, and at least. */
#define KV_GHOST_FOR_A_BLOCK 4u
#define KV_GHOST_MIN 4096u

struct kv_ghost {
	struct kv_ghost_entry *entries; /* a ring; NULL: remembers nothing */
	uint32_t *buckets;		/* by hash */
	uint32_t mask, at;		/* at: the entry that is next */
	uint32_t limit;			/* entries in use */
};

/* Room for at least @entries.  -ENOMEM. */
int kv_ghost_init(struct kv_ghost *ghost, uint64_t entries);
/* Fit the number of entries to @blocks in DRAM. */
void kv_ghost_fit(struct kv_ghost *ghost, uint32_t blocks);
void kv_ghost_fini(struct kv_ghost *ghost);
/* Remember a block.  @hash: of its space and key, seeded. */
void kv_ghost_put(struct kv_ghost *ghost, uint64_t hash, struct kv_past past);
/* Return and forget the past of a block that is back; uses 0: not known. */
struct kv_past kv_ghost_take(struct kv_ghost *ghost, uint64_t hash);

#endif
