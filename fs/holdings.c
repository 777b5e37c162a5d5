/* SPDX-License-Identifier: Apache-2.0 */
/*
 * holdings.c - a hash table of reservations and a sorted array of segments.
 *
 * OWNS      the fills of reservations until they are taken or dropped, and the
 *           count that the cache keeps for each segment in the set.
 *
 * INVARIANTS
 *   (1) A key is in the table at most once: the cache gives a second fill for
 *       it only when the first has ended.
 *   (2) ids[] ascends strictly.
 *
 * LOCKING   none: used by the control thread alone.
 */
#include <xxhash.h>

#include "fs/holdings.h"

struct kv_reservation {
	struct kv_reservation *next;
	struct kv_fill *fill;
	uint32_t space;
	struct kv_key key;
};

/* Seeded: a client that could choose its bucket could make the others wait. */
static struct kv_reservation **bucket(struct kv_reservations *table,
				      const struct kv_key *key)
{
	uint64_t h = XXH3_64bits_withSeed(key->b, sizeof(key->b), table->seed);

	return &table->buckets[h % KV_ARRAY_LEN(table->buckets)];
}

int kv_reservations_add(struct kv_reservations *table, uint32_t space,
			const struct kv_key *key, struct kv_fill *fill)
{
	struct kv_reservation **at = bucket(table, key), *r;

	r = malloc(sizeof(*r));
	if (!r)
		return -ENOMEM;
	*r = (struct kv_reservation){
		.next = *at, .fill = fill, .space = space, .key = *key};
	*at = r;
	table->n++;
	return 0;
}

struct kv_fill *kv_reservations_take(struct kv_reservations *table,
				     uint32_t space, const struct kv_key *key)
{
	struct kv_reservation **at = bucket(table, key), *r;
	struct kv_fill *fill;

	while (*at &&
	       ((*at)->space != space || !kv_key_equal(&(*at)->key, key)))
		at = &(*at)->next;
	r = *at;
	if (!r)
		return NULL;
	*at = r->next;
	fill = r->fill;
	free(r);
	table->n--;
	return fill;
}

size_t kv_reservations_drop(struct kv_reservations *table,
			    struct kv_cache *cache)
{
	struct kv_reservation *r, *next;
	size_t n = table->n;

	for (size_t i = 0; i < KV_ARRAY_LEN(table->buckets); i++) {
		for (r = table->buckets[i]; r; r = next) {
			next = r->next;
			kv_fill_drop(cache, r->fill);
			free(r);
		}
		table->buckets[i] = NULL;
	}
	table->n = 0;
	return n;
}

/* Index of the first id that is not below @id. */
static size_t place(const struct kv_segments *set, uint32_t id)
{
	size_t low = 0, high = set->n, mid;

	while (low < high) {
		mid = low + (high - low) / 2;
		if (set->ids[mid] < id)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

bool kv_segments_has(const struct kv_segments *set, uint32_t id)
{
	size_t i = place(set, id);

	return i < set->n && set->ids[i] == id;
}

int kv_segments_add(struct kv_segments *set, uint32_t id)
{
	size_t i = place(set, id), room;
	uint32_t *ids;

	if (set->n == set->room) {
		room = KV_MAX(16, set->room * 2);
		ids = realloc(set->ids, room * sizeof(*ids));
		if (!ids)
			return -ENOMEM;
		set->ids = ids;
		set->room = room;
	}
	memmove(&set->ids[i + 1], &set->ids[i], (set->n - i) * sizeof(id));
	set->ids[i] = id;
	set->n++;
	return 0;
}

bool kv_segments_remove(struct kv_segments *set, uint32_t id)
{
	size_t i = place(set, id);

	if (i == set->n || set->ids[i] != id)
		return false;
	set->n--;
	memmove(&set->ids[i], &set->ids[i + 1], (set->n - i) * sizeof(id));
	return true;
}

void kv_segments_return(struct kv_segments *set, struct kv_cache *cache)
{
	for (size_t i = 0; i < set->n; i++)
		kv_segment_returned(cache, set->ids[i]);
	free(set->ids);
	*set = (struct kv_segments){0};
}
