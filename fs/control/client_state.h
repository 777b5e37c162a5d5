/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_state.h - what a client holds besides leases: reserved blocks, arena segments whose
 * descriptors it was sent, and picks for snapshots that it has not made yet.
 *
 * Control thread only.
 */
#ifndef KV_FS_CONTROL_CLIENT_STATE_H
#define KV_FS_CONTROL_CLIENT_STATE_H

#include "cache/cache.h"
#include "cache/core/account.h"

/* A block to be saved. */
struct kv_reservation {
	struct kv_fill *fill;
	bool hold;    /* lease the block when it seals */
	uint64_t tag; /* of the RESERVE */
};

struct kv_reservations {
	struct kv_reservation_entry *buckets[256];
	size_t n, holds; /* holds: of n, those with `hold` */
	uint64_t seed;
	struct kv_account *account; /* the client's; borrowed */
};

/* Add @what as the reservation of @key in the space @space, which may be removed later.
 * -ENOLCK: beyond the user's share; -ENOMEM: the reservation stays the caller's. */
int kv_reservations_add(struct kv_reservations *table, uint32_t space,
			const struct kv_key *key,
			const struct kv_reservation *what);
/* Return the reservation, valid until it is taken or dropped, or NULL. */
const struct kv_reservation *kv_reservations_find(struct kv_reservations *table,
						  uint32_t space,
						  const struct kv_key *key);
/* Remove and return the reservation, which must be there. */
struct kv_reservation kv_reservations_take(struct kv_reservations *table,
					   uint32_t space,
					   const struct kv_key *key);
/* Drop all reservations; returns their number. */
size_t kv_reservations_drop(struct kv_reservations *table,
			    struct kv_cache *cache);

/* Ids, ascending. */
struct kv_segments {
	uint32_t *ids;
	size_t n, room;
};

bool kv_segments_has(const struct kv_segments *set, uint32_t id);
int kv_segments_add(struct kv_segments *set, uint32_t id); /* -ENOMEM */
/* Returns false if @id is not in the set. */
bool kv_segments_remove(struct kv_segments *set, uint32_t id);
/* Return all segments of the user's client to the cache. */
void kv_segments_return(struct kv_segments *set, struct kv_cache *cache,
			uint32_t uid);

/* Picks for one snapshot. */
struct kv_set {
	uint64_t id;
	struct kv_pick *picks;
	size_t n, room;
	struct kv_account *account; /* held; charged with the room */
	struct kv_set *next;
};

struct kv_sets {
	struct kv_set *first;
	size_t n, picks;	    /* sets, and picks in all of them */
	struct kv_account *account; /* the client's; borrowed */
};

/* Add picks to the set @id, which the first ones make.  -ENOSPC: more picks than a
 * snapshot may have, or too many sets; -ENOLCK: beyond the user's share; -ENOMEM. */
int kv_sets_add(struct kv_sets *sets, uint64_t id, const struct kv_pick *picks,
		size_t n);
/* Remove and return the set @id, or NULL. */
struct kv_set *kv_sets_take(struct kv_sets *sets, uint64_t id);
void kv_set_free(struct kv_set *set); /* takes NULL */
void kv_sets_drop(struct kv_sets *sets);

#endif
