/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_state.c - a hash table of reservations, a sorted array of segments,
 * and sets of picks.
 *
 * OWNS      the reservations until they are taken or dropped; the count that the
 *           cache keeps for each segment in the set; the picks.
 *
 * INVARIANTS
 *   (1) A key is in the table at most once: the cache gives a second fill for
 *       it only when the first has ended.
 *   (2) ids[] ascends strictly.
 *
 * LOCKING   none: control thread only.
 */
#include <xxhash.h>

#include "common/array.h"
#include "fs/control/client_state.h"

#define SETS_MAX 16

struct kv_reservation_entry {
	struct kv_reservation_entry *next;
	struct kv_reservation what;
	uint32_t space;
	struct kv_key key;
};

/* The hash is seeded, so that no client can choose its buckets and slow down others. */
static struct kv_reservation_entry **bucket(struct kv_reservations *table,
					    const struct kv_key *key)
{
	uint64_t h = XXH3_64bits_withSeed(key->b, sizeof(key->b), table->seed);

	return &table->buckets[h % KV_ARRAY_LEN(table->buckets)];
}

int kv_reservations_add(struct kv_reservations *table, uint32_t space,
			const struct kv_key *key,
			const struct kv_reservation *what)
{
	struct kv_reservation_entry **at = bucket(table, key), *r;

	if (kv_account_charge(table->account, KV_FINITE_RESERVATIONS, 1) < 0)
		return -ENOLCK;
	r = malloc(sizeof(*r));
	if (!r) {
		kv_account_credit(table->account, KV_FINITE_RESERVATIONS, 1);
		return -ENOMEM;
	}
	*r = (struct kv_reservation_entry){
		.next = *at, .what = *what, .space = space, .key = *key};
	*at = r;
	table->n++;
	table->holds += what->hold;
	return 0;
}

/* Return the link to the entry, or to NULL at the end. */
static struct kv_reservation_entry **
link_to(struct kv_reservations *table, uint32_t space, const struct kv_key *key)
{
	struct kv_reservation_entry **at = bucket(table, key);

	while (*at &&
	       ((*at)->space != space || !kv_key_equal(&(*at)->key, key)))
		at = &(*at)->next;
	return at;
}

const struct kv_reservation *kv_reservations_find(struct kv_reservations *table,
						  uint32_t space,
						  const struct kv_key *key)
{
	struct kv_reservation_entry *r = *link_to(table, space, key);

	return r ? &r->what : NULL;
}

struct kv_reservation kv_reservations_take(struct kv_reservations *table,
					   uint32_t space,
					   const struct kv_key *key)
{
	struct kv_reservation_entry **at = link_to(table, space, key), *r = *at;
	struct kv_reservation what = r->what;

	*at = r->next;
	free(r);
	kv_account_credit(table->account, KV_FINITE_RESERVATIONS, 1);
	table->n--;
	table->holds -= what.hold;
	return what;
}

size_t kv_reservations_drop(struct kv_reservations *table,
			    struct kv_cache *cache)
{
	size_t n = table->n;

	for (size_t i = 0; i < KV_ARRAY_LEN(table->buckets); i++) {
		for (struct kv_reservation_entry *r = table->buckets[i], *next;
		     r; r = next) {
			next = r->next;
			kv_fill_drop(cache, r->what.fill);
			free(r);
		}
		table->buckets[i] = NULL;
	}
	kv_account_credit(table->account, KV_FINITE_RESERVATIONS, n);
	table->n = table->holds = 0;
	return n;
}

/* Return the index of the first id that is not below @id. */
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
	size_t i = place(set, id);

	if (kv_array_reserve(&set->ids, &set->room, set->n + 1) < 0)
		return -ENOMEM;
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

void kv_segments_return(struct kv_segments *set, struct kv_cache *cache,
			uint32_t uid)
{
	for (size_t i = 0; i < set->n; i++)
		kv_segment_returned(cache, set->ids[i], uid);
	free(set->ids);
	*set = (struct kv_segments){0};
}

static struct kv_set **set_find(struct kv_sets *sets, uint64_t id)
{
	struct kv_set **link = &sets->first;

	while (*link && (*link)->id != id)
		link = &(*link)->next;
	return link;
}

int kv_sets_add(struct kv_sets *sets, uint64_t id, const struct kv_pick *picks,
		size_t n)
{
	struct kv_set *set = *set_find(sets, id);
	size_t room, bytes;
	int r;

	if (sets->picks + n > KV_SNAPSHOT_BLOCKS)
		return -ENOSPC;
	if (!set) {
		if (sets->n >= SETS_MAX)
			return -ENOSPC;
		set = calloc(1, sizeof(*set));
		if (!set)
			return -ENOMEM;
		set->id = id;
		set->account = kv_account_hold(sets->account);
		set->next = sets->first;
		sets->first = set;
		sets->n++;
	}
	if (set->n + n > set->room) {
		room = KV_MAX(set->n + n, 2 * set->room);
		bytes = (room - set->room) * sizeof(*set->picks);
		r = kv_account_charge(set->account, KV_FINITE_MEMORY, bytes);
		if (r < 0)
			return r;
		r = kv_array_resize(&set->picks, room, sizeof(*set->picks));
		if (r < 0) {
			kv_account_credit(set->account, KV_FINITE_MEMORY,
					  bytes);
			return r;
		}
		set->room = room;
	}
	memcpy(set->picks + set->n, picks, n * sizeof(*picks));
	set->n += n;
	sets->picks += n;
	return 0;
}

struct kv_set *kv_sets_take(struct kv_sets *sets, uint64_t id)
{
	struct kv_set **link = set_find(sets, id), *set = *link;

	if (!set)
		return NULL;
	*link = set->next;
	sets->n--;
	sets->picks -= set->n;
	return set;
}

void kv_set_free(struct kv_set *set)
{
	if (!set)
		return;
	kv_account_credit(set->account, KV_FINITE_MEMORY,
			  set->room * sizeof(*set->picks));
	kv_account_put(set->account);
	free(set->picks);
	free(set);
}

void kv_sets_drop(struct kv_sets *sets)
{
	while (sets->first)
		kv_set_free(kv_sets_take(sets, sets->first->id));
}
