/* SPDX-License-Identifier: Apache-2.0 */
/*
 * miss_curve.c - hit rates of caches of other sizes, from sampled reuse
 * distances.
 *
 * OWNS       the keys that are followed, and when each was used last.
 *
 * INVARIANTS
 *   (1) A key is followed if its hash is below the threshold; the threshold
 *       only falls.
 *   (2) moment[i] is the followed key that was used last at moment i, or none;
 *       each has one.  The tree adds up their bytes over the moments.
 *
 * LOCKING    the cache's lock.
 */
#include "cache/evict/miss_curve.h"

#define KEYS 8192u	  /* followed at most */
#define SLOTS (2u * KEYS) /* of the table of keys */
#define MOMENTS (4u * KEYS)
#define FIRST_PART 12u	     /* of all keys one in so many, to begin with */
#define FADE_USES (4u << 20) /* after which what was counted halves */

struct key {
	uint64_t hash; /* 0: a free slot */
	uint32_t moment;
	uint32_t pages; /* of its block, 4 KiB each */
};

struct kv_monitor {
	uint64_t threshold;
	struct key keys[SLOTS];	    /* open addressing */
	uint32_t n, now;	    /* now: the next moment */
	uint32_t at[MOMENTS];	    /* slot of the key, and one; 0: none */
	uint64_t tree[MOMENTS + 1]; /* Fenwick's: pages by moment */
	/* All uses; those that were followed, each for as many as it stands
	 * for; and of these the hits by size. */
	double uses, followed, hits[KV_MONITOR_SIZES];
};

int kv_monitor_new(struct kv_monitor **ret_monitor)
{
	struct kv_monitor *monitor = calloc(1, sizeof(*monitor));

	if (!monitor)
		return -ENOMEM;
	monitor->threshold = UINT64_MAX / FIRST_PART;
	*ret_monitor = monitor;
	return 0;
}

void kv_monitor_free(struct kv_monitor *monitor)
{
	free(monitor);
}

static void tree_add(struct kv_monitor *monitor, uint32_t moment, uint64_t by)
{
	for (uint32_t i = moment + 1; i <= MOMENTS; i += i & -i)
		monitor->tree[i] += by;
}

/* Pages of the moments up to and including @moment. */
static uint64_t tree_sum(const struct kv_monitor *monitor, uint32_t moment)
{
	uint64_t sum = 0;

	for (uint32_t i = moment + 1; i > 0; i -= i & -i)
		sum += monitor->tree[i];
	return sum;
}

static uint32_t slot_of(const struct kv_monitor *monitor, uint64_t hash)
{
	uint32_t i = (uint32_t)hash % SLOTS;

	while (monitor->keys[i].hash && monitor->keys[i].hash != hash)
		i = (i + 1) % SLOTS;
	return i;
}

/* Begin the moments anew, with those keys that are still to be followed. */
static void compact(struct kv_monitor *monitor)
{
	struct key *old = malloc(sizeof(monitor->keys));
	uint32_t n = 0;

	if (!old)
		return; /* the next use tries again */
	memcpy(old, monitor->keys, sizeof(monitor->keys));
	memset(monitor->keys, 0, sizeof(monitor->keys));
	memset(monitor->tree, 0, sizeof(monitor->tree));
	for (uint32_t i = 0; i < MOMENTS; i++) {
		const struct key *key;
		uint32_t slot;

		if (!monitor->at[i])
			continue;
		key = &old[monitor->at[i] - 1];
		monitor->at[i] = 0;
		if (key->hash >= monitor->threshold)
			continue;
		slot = slot_of(monitor, key->hash);
		monitor->keys[slot] = *key;
		monitor->keys[slot].moment = n;
		monitor->at[n] = slot + 1;
		tree_add(monitor, n++, key->pages);
	}
	monitor->n = monitor->now = n;
	free(old);
}

static bool make_room(struct kv_monitor *monitor)
{
	if (monitor->n == KEYS)
		monitor->threshold /= 2;
	if (monitor->n == KEYS || monitor->now == MOMENTS)
		compact(monitor);
	return monitor->n < KEYS && monitor->now < MOMENTS;
}

static void fade(struct kv_monitor *monitor)
{
	if (monitor->uses < FADE_USES)
		return;
	monitor->uses /= 2;
	monitor->followed /= 2;
	for (unsigned i = 0; i < KV_MONITOR_SIZES; i++)
		monitor->hits[i] /= 2;
}

/* The key was used before: which caches would have had it still? */
static void count_hit(struct kv_monitor *monitor, const struct key *key,
		      double part, double capacity)
{
	uint64_t since =
		tree_sum(monitor, MOMENTS - 1) - tree_sum(monitor, key->moment);
	double bytes = ((double)since * part + key->pages) * 4096;

	for (unsigned i = 0; i < KV_MONITOR_SIZES; i++)
		if (i == KV_MONITOR_SIZES - 1 || bytes <= capacity * (1 << i))
			monitor->hits[i] += part;
}

static void follow(struct kv_monitor *monitor, uint64_t hash, uint32_t pages,
		   uint64_t capacity)
{
	double part = (double)UINT64_MAX / (double)monitor->threshold;
	uint32_t slot = slot_of(monitor, hash);
	struct key *key = &monitor->keys[slot];

	monitor->followed += part;
	if (key->hash) {
		count_hit(monitor, key, part, (double)capacity);
		monitor->at[key->moment] = 0;
		tree_add(monitor, key->moment, -(uint64_t)key->pages);
	} else {
		monitor->n++;
	}
	*key = (struct key){hash, monitor->now, pages};
	monitor->at[monitor->now] = slot + 1;
	tree_add(monitor, monitor->now++, pages);
}

void kv_monitor_use(struct kv_monitor *monitor, uint64_t hash, uint64_t bytes,
		    uint64_t capacity)
{
	monitor->uses++;
	fade(monitor);
	if (hash >= monitor->threshold || !hash)
		return;
	if (!make_room(monitor) || hash >= monitor->threshold)
		return;
	follow(monitor, hash, (uint32_t)(kv_round_up(bytes, 4096) / 4096),
	       capacity);
}

void kv_monitor_estimate(const struct kv_monitor *monitor,
			 double ret_rates[KV_MONITOR_SIZES])
{
	/* By chance more uses were followed than was their part, or fewer:
	 * that comes from the few keys that are used most, which are hits. */
	double more = monitor->uses - monitor->followed;

	for (unsigned i = 0; i < KV_MONITOR_SIZES; i++) {
		double rate = monitor->uses > 0 ? (monitor->hits[i] + more) /
							  monitor->uses
						: 0;

		ret_rates[i] = KV_MIN(KV_MAX(rate, 0.0), 1.0);
	}
}
