/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_lhd.c - learned hit density over leaves.
 *
 * Blocks used once are on four lists by their place in the chain, the others on
 * seven by number of uses, 2 to 8 and more.  The head of each list is its
 * oldest leaf; the one goes whose list and age have shown the lowest hit
 * density, or the lowest weight by a simpler rule while that does better.
 *
 * OWNS       nothing.
 * LOCKING    the cache's lock.
 */
#include "cache/evict/policy.h"

#define MOST 8u
#define PERIOD 8192u /* uses until the worth is worked out anew, at least */
#define FADE 0.9f
#define DOUBT 1.0f  /* so many blocks' worth of an assumption */
#define FIRST 1024u /* entries until it is worked out for the first time */
#define HORIZON 32  /* ages ahead: eight octaves */

static unsigned age_group(uint32_t age)
{
	unsigned octave;

	if (age < 4)
		return age;
	octave = 31u - (unsigned)__builtin_clz(age);
	return (octave - 1) * 4 + (age >> (octave - 2) & 3);
}

static float lowest(unsigned index)
{
	if (index < 4)
		return (float)index;
	return (float)((uint64_t)(4 + index % 4) << (index / 4 - 1));
}

/* While nothing is known, the longer unused, the worse, as lru has it. */
static float assumed(unsigned age)
{
	return 1 / (lowest(age) + 1);
}

static void assume(struct kv_hit_density *density)
{
	memset(density, 0, sizeof(*density));
	for (unsigned i = 0; i < KV_HIT_DENSITY_LISTS; i++)
		for (unsigned a = 0; a < KV_HIT_DENSITY_AGES; a++)
			density->worth[i][a] = assumed(a);
}

float kv_lhd_learned(const struct kv_hit_density *density, unsigned list,
		     uint32_t age)
{
	return density->worth[list][age_group(age)];
}

/* The best rate of hits from age @from on, looking any time ahead. */
static float best_rate(const float *hits, const float *left, unsigned from)
{
	float sum = 0, time = 0, best = 0;

	for (unsigned a = from;
	     a < from + HORIZON && a + 1 < KV_HIT_DENSITY_AGES; a++) {
		sum += hits[a];
		time += (left[a] + left[a + 1]) / 2 *
			(lowest(a + 1) - lowest(a));
		if (sum > best * time)
			best = sum / time;
	}
	return best;
}

static void learn_list(struct kv_hit_density *density, unsigned list)
{
	float hits[KV_HIT_DENSITY_AGES], left[KV_HIT_DENSITY_AGES + 1];
	const float *used = density->used[list];

	left[0] = density->entered[list] + 1;
	for (unsigned a = 0; a < KV_HIT_DENSITY_AGES; a++) {
		/* Neighbours share: few events must not make a cliff. */
		hits[a] = (used[a ? a - 1 : 0] + 2 * used[a] +
			   used[a + 1 < KV_HIT_DENSITY_AGES ? a + 1 : a]) /
			  4;
		left[a + 1] =
			left[a] - hits[a] > 0.5f ? left[a] - hits[a] : 0.5f;
	}
	for (unsigned a = 0; a < KV_HIT_DENSITY_AGES; a++)
		density->worth[list][a] = (best_rate(hits, left, a) * left[a] +
					   DOUBT * assumed(a)) /
					  (left[a] + DOUBT);
}

/* Work the worth out anew, if @period entries have passed since, or in the
 * beginning fewer; and let the past fade. */
static void settle(struct kv_hit_density *density, uint32_t period)
{
	if (density->events < period &&
	    (density->events < FIRST || density->events < density->entries / 2))
		return;
	for (unsigned i = 0; i < KV_HIT_DENSITY_LISTS; i++) {
		learn_list(density, i);
		density->entered[i] *= FADE;
		for (unsigned a = 0; a < KV_HIT_DENSITY_AGES; a++)
			density->used[i][a] *= FADE;
	}
	density->events = 0;
}

/* ---- the policy ---- */

static unsigned list(unsigned uses, unsigned depth)
{
	return uses <= 1 ? 1 + depth : KV_DEPTHS - 1 + KV_MIN(uses, MOST);
}

unsigned kv_lhd_uses(unsigned which)
{
	return which <= KV_DEPTHS ? 1 : which - KV_DEPTHS + 1;
}

static float worth(const struct kv_eviction *eviction, unsigned which,
		   uint32_t age)
{
	enum kv_weigh how = kv_shadow_cache_winner(eviction->shadow);

	if (how != KV_WEIGH_LEARNED)
		return kv_weigh_simply(how, which, age);
	return kv_lhd_learned(&eviction->density, which, age);
}

static int begin(struct kv_eviction *eviction)
{
	assume(&eviction->density);
	eviction->shadow = kv_shadow_cache_new(eviction);
	return eviction->shadow ? 0 : -ENOMEM;
}

static void entered(struct kv_eviction *eviction, unsigned which)
{
	struct kv_hit_density *density = &eviction->density;

	density->entered[which]++;
	density->events++;
	density->entries++;
	settle(density, KV_MAX(PERIOD, eviction->blocks));
}

static void used(struct kv_eviction *eviction, unsigned which, uint32_t age)
{
	eviction->density.used[which][age_group(age)]++;
}

const struct kv_policy_kind kv_policy_lhd = {
	.name = "lhd",
	.lists = KV_HIT_DENSITY_LISTS,
	.list = list,
	.worth = worth,
	.begin = begin,
	.entered = entered,
	.used = used,
};
