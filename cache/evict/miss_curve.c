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

struct kv_miss_curve {
	uint64_t threshold;
	struct key keys[SLOTS];	    /* open addressing */
	uint32_t n, now;	    /* now: the next moment */
	uint32_t at[MOMENTS];	    /* slot of the key, and one; 0: none */
	uint64_t tree[MOMENTS + 1]; /* Fenwick's: pages by moment */
	/* All uses; those that were followed, each for as many as it stands
	 * for; and of these the hits by size. */
	double uses, followed, hits[KV_MISS_CURVE_SIZES];
};

int kv_miss_curve_new(struct kv_miss_curve **ret_curve)
{
	struct kv_miss_curve *curve = calloc(1, sizeof(*curve));

	if (!curve)
		return -ENOMEM;
	curve->threshold = UINT64_MAX / FIRST_PART;
	*ret_curve = curve;
	return 0;
}

void kv_miss_curve_free(struct kv_miss_curve *curve)
{
	free(curve);
}

static void tree_add(struct kv_miss_curve *curve, uint32_t moment, uint64_t by)
{
	for (uint32_t i = moment + 1; i <= MOMENTS; i += i & -i)
		curve->tree[i] += by;
}

/* Pages of the moments up to and including @moment. */
static uint64_t tree_sum(const struct kv_miss_curve *curve, uint32_t moment)
{
	uint64_t sum = 0;

	for (uint32_t i = moment + 1; i > 0; i -= i & -i)
		sum += curve->tree[i];
	return sum;
}

static uint32_t slot_of(const struct kv_miss_curve *curve, uint64_t hash)
{
	uint32_t i = (uint32_t)hash % SLOTS;

	while (curve->keys[i].hash && curve->keys[i].hash != hash)
		i = (i + 1) % SLOTS;
	return i;
}

/* Begin the moments anew, with those keys that are still to be followed. */
static void compact(struct kv_miss_curve *curve)
{
	struct key *old = malloc(sizeof(curve->keys));
	uint32_t n = 0;

	if (!old)
		return; /* the next use tries again */
	memcpy(old, curve->keys, sizeof(curve->keys));
	memset(curve->keys, 0, sizeof(curve->keys));
	memset(curve->tree, 0, sizeof(curve->tree));
	for (uint32_t i = 0; i < MOMENTS; i++) {
		const struct key *key;
		uint32_t slot;

		if (!curve->at[i])
			continue;
		key = &old[curve->at[i] - 1];
		curve->at[i] = 0;
		if (key->hash >= curve->threshold)
			continue;
		slot = slot_of(curve, key->hash);
		curve->keys[slot] = *key;
		curve->keys[slot].moment = n;
		curve->at[n] = slot + 1;
		tree_add(curve, n++, key->pages);
	}
	curve->n = curve->now = n;
	free(old);
}

static bool make_room(struct kv_miss_curve *curve)
{
	if (curve->n == KEYS)
		curve->threshold /= 2;
	if (curve->n == KEYS || curve->now == MOMENTS)
		compact(curve);
	return curve->n < KEYS && curve->now < MOMENTS;
}

static void fade(struct kv_miss_curve *curve)
{
	if (curve->uses < FADE_USES)
		return;
	curve->uses /= 2;
	curve->followed /= 2;
	for (unsigned i = 0; i < KV_MISS_CURVE_SIZES; i++)
		curve->hits[i] /= 2;
}

/* The key was used before: which caches would have had it still? */
static void count_hit(struct kv_miss_curve *curve, const struct key *key,
		      double part, double capacity)
{
	uint64_t since =
		tree_sum(curve, MOMENTS - 1) - tree_sum(curve, key->moment);
	double bytes = ((double)since * part + key->pages) * 4096;

	for (unsigned i = 0; i < KV_MISS_CURVE_SIZES; i++)
		if (i == KV_MISS_CURVE_SIZES - 1 ||
		    bytes <= capacity * (1 << i))
			curve->hits[i] += part;
}

static void follow(struct kv_miss_curve *curve, uint64_t hash, uint32_t pages,
		   uint64_t capacity)
{
	double part = (double)UINT64_MAX / (double)curve->threshold;
	uint32_t slot = slot_of(curve, hash);
	struct key *key = &curve->keys[slot];

	curve->followed += part;
	if (key->hash) {
		count_hit(curve, key, part, (double)capacity);
		curve->at[key->moment] = 0;
		tree_add(curve, key->moment, -(uint64_t)key->pages);
	} else {
		curve->n++;
	}
	*key = (struct key){hash, curve->now, pages};
	curve->at[curve->now] = slot + 1;
	tree_add(curve, curve->now++, pages);
}

void kv_miss_curve_use(struct kv_miss_curve *curve, uint64_t hash,
		       uint64_t bytes, uint64_t capacity)
{
	curve->uses++;
	fade(curve);
	if (hash >= curve->threshold || !hash)
		return;
	if (!make_room(curve) || hash >= curve->threshold)
		return;
	follow(curve, hash, (uint32_t)(kv_round_up(bytes, 4096) / 4096),
	       capacity);
}

void kv_miss_curve_estimate(const struct kv_miss_curve *curve,
			    double ret_rates[KV_MISS_CURVE_SIZES])
{
	/* By chance more uses were followed than was their part, or fewer:
	 * that comes from the few keys that are used most, which are hits. */
	double more = curve->uses - curve->followed;

	for (unsigned i = 0; i < KV_MISS_CURVE_SIZES; i++) {
		double rate = curve->uses > 0
				      ? (curve->hits[i] + more) / curve->uses
				      : 0;

		ret_rates[i] = KV_MIN(KV_MAX(rate, 0.0), 1.0);
	}
}
