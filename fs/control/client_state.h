/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_state.h - what one client holds besides leases: reserved blocks, the
 * arena segments whose descriptors it was given, and what it has picked for
 * snapshots that it has not made yet.
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
	bool hold;    /* to be leased when it seals */
	uint64_t tag; /* of the message that made it */
};

struct kv_reservations {
	struct kv_reservation_entry *buckets[256];
	size_t n, holds; /* holds: of these, to be leased */
	uint64_t seed;
	struct kv_account *account; /* of who reserves; borrowed */
};

/* Remember @what as the reservation of @key in the space with the id @space;
 * also a removed space's can be taken.  -ENOLCK beyond its user's share,
 * -ENOMEM (it is still the caller's). */
int kv_reservations_add(struct kv_reservations *table, uint32_t space,
			const struct kv_key *key,
			const struct kv_reservation *what);
/* Valid until it is taken or dropped; NULL: there is none. */
const struct kv_reservation *kv_reservations_find(struct kv_reservations *table,
						  uint32_t space,
						  const struct kv_key *key);
/* Forget it: the caller's now.  It must be there. */
struct kv_reservation kv_reservations_take(struct kv_reservations *table,
					   uint32_t space,
					   const struct kv_key *key);
/* Give up one that was taken. */
void kv_reservation_drop(struct kv_cache *cache, struct kv_reservation what);
/* Drop every one; returns how many there were. */
size_t kv_reservations_drop(struct kv_reservations *table,
			    struct kv_cache *cache);

/* Ids, ascending. */
struct kv_segments {
	uint32_t *ids;
	size_t n, room;
};

bool kv_segments_has(const struct kv_segments *set, uint32_t id);
int kv_segments_add(struct kv_segments *set, uint32_t id);     /* -ENOMEM */
bool kv_segments_remove(struct kv_segments *set, uint32_t id); /* was it in? */
/* Give all that the user's client had back to the cache. */
void kv_segments_return(struct kv_segments *set, struct kv_cache *cache,
			uint32_t uid);

/* Picks of one snapshot to be. */
struct kv_set {
	uint64_t id;
	struct kv_pick *picks;
	size_t n, room;
	struct kv_account *account; /* held; has the room */
	struct kv_set *next;
};

struct kv_sets {
	struct kv_set *first;
	size_t n, picks;	    /* sets, and picks in all of them */
	struct kv_account *account; /* of who picks; borrowed */
};

/* Add to the set @id, made by its first picks.  -ENOSPC: more than a snapshot
 * may have, or too many sets; -ENOLCK beyond its user's share; -ENOMEM. */
int kv_sets_add(struct kv_sets *sets, uint64_t id, const struct kv_pick *picks,
		size_t n);
/* Forget and return it, the caller's now; NULL if there is none. */
struct kv_set *kv_sets_take(struct kv_sets *sets, uint64_t id);
void kv_set_free(struct kv_set *set); /* takes NULL */
void kv_sets_drop(struct kv_sets *sets);

#endif
