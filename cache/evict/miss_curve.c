/* SPDX-License-Identifier: Apache-2.0 */
/*
 * miss_curve.c - hit rates of caches of other sizes, from sampled reuse
 * distances.
 *
 * OWNS       the sampled keys, and the moment of the last use of each.
 *
 * INVARIANTS
 *   (1) A key is sampled if its hash is below the threshold, which only falls.
 *   (2) at[i] is the sampled key whose last use was at moment i, or none; each
 *       key has one moment.  The tree holds the sums of their pages over the
 *       moments.
 *
 * LOCKING    cache->lock.
 */
#include "cache/evict/policy.h"

#define KEYS 8192u	  /* most keys in the sample of the curve */
#define SLOTS (2u * KEYS) /* slots of the hash table of keys */
#define MOMENTS (4u * KEYS)
#define FIRST_PART 12u	     /* at first one key in FIRST_PART is sampled */
#define FADE_USES (4u << 20) /* uses after which all counts are halved */

struct key {
	uint64_t hash; /* 0: a free slot */
	uint32_t moment;
	uint32_t pages; /* size of the key's block, in pages of 4 KiB */
};

struct kv_miss_curve {
	uint64_t threshold;
	struct key keys[SLOTS]; /* open addressing */
	uint32_t n, now;	/* now: number of the next moment */
	uint32_t at[MOMENTS]; /* slot of the key used then, plus one; 0: none */
	uint64_t tree[MOMENTS + 1]; /* Fenwick tree: pages of keys, by moment */
	/* All uses; sampled uses, each weighted by the uses that it represents;
	 * and hits among the sampled uses, by cache size. */
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

static void tree_add(struct kv_miss_curve *curve, uint32_t moment, uint64_t by)
{
	for (uint32_t i = moment + 1; i <= MOMENTS; i += i & -i)
		curve->tree[i] += by;
}

/* Return the pages of all sampled keys last used at @moment or before. */
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

/* Renumber moments of keys with hashes below the threshold, drop other keys. */
static void compact(struct kv_miss_curve *curve)
{
	struct key *old = malloc(sizeof(curve->keys));
	uint32_t n = 0;

	if (!old)
		return; /* no memory: the next use of a key tries again */
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

void kv_miss_curve_use(struct kv_miss_curve *curve, uint64_t hash,
		       uint64_t bytes, uint64_t capacity)
{
	const uint32_t pages = (uint32_t)(kv_round_up(bytes, 4096) / 4096);
	struct key *key;
	uint32_t slot;
	double part;

	if (++curve->uses >= FADE_USES) {
		curve->uses /= 2;
		curve->followed /= 2;
		for (unsigned i = 0; i < KV_MISS_CURVE_SIZES; i++)
			curve->hits[i] /= 2;
	}
	if (hash >= curve->threshold || !hash)
		return;
	if (curve->n == KEYS)
		curve->threshold /= 2;
	if (curve->n == KEYS || curve->now == MOMENTS)
		compact(curve);
	if (curve->n == KEYS || curve->now == MOMENTS ||
	    hash >= curve->threshold)
		return;
	part = (double)UINT64_MAX / (double)curve->threshold;
	slot = slot_of(curve, hash);
	key = &curve->keys[slot];
	curve->followed += part;
	if (key->hash) {
		/* Count a hit for each cache size at which an LRU cache would
		 * still have the block. */
		uint64_t since = tree_sum(curve, MOMENTS - 1) -
				 tree_sum(curve, key->moment);
		double reuse = ((double)since * part + key->pages) * 4096;

		for (unsigned i = 0; i < KV_MISS_CURVE_SIZES; i++)
			if (i == KV_MISS_CURVE_SIZES - 1 ||
			    reuse <= (double)capacity * (1 << i))
				curve->hits[i] += part;
		curve->at[key->moment] = 0;
		tree_add(curve, key->moment, -(uint64_t)key->pages);
	} else {
		curve->n++;
	}
	*key = (struct key){hash, curve->now, pages};
	curve->at[curve->now] = slot + 1;
	tree_add(curve, curve->now++, pages);
}

void kv_miss_curve_estimate(const struct kv_miss_curve *curve,
			    double ret_rates[KV_MISS_CURVE_SIZES])
{
	/* The sample represents more, or fewer, uses than there were, because
	 * of a few keys with very many uses: count the difference as hits. */
	double more = curve->uses - curve->followed;

	for (unsigned i = 0; i < KV_MISS_CURVE_SIZES; i++) {
		double rate = curve->uses > 0
				      ? (curve->hits[i] + more) / curve->uses
				      : 0;

		ret_rates[i] = KV_MIN(KV_MAX(rate, 0.0), 1.0);
	}
}
