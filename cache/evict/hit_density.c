/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hit_density.c - learned hit density.
 *
 * OWNS       nothing beyond the caller's struct kv_hit_density.
 * LOCKING    the caller's.
 */
#include "cache/evict/hit_density.h"

#include <string.h>

#define FADE 0.9f
#define DOUBT 1.0f  /* so many blocks' worth of an assumption */
#define FIRST 1024u /* entries until it is worked out for the first time */
#define HORIZON 32  /* ages ahead: eight octaves */

unsigned kv_hit_density_age(uint32_t age)
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

void kv_hit_density_init(struct kv_hit_density *density)
{
	memset(density, 0, sizeof(*density));
	for (unsigned i = 0; i < KV_HIT_DENSITY_LISTS; i++)
		for (unsigned a = 0; a < KV_HIT_DENSITY_AGES; a++)
			density->worth[i][a] = assumed(a);
}

void kv_hit_density_entered(struct kv_hit_density *density, unsigned list)
{
	density->entered[list]++;
	density->events++;
	density->entries++;
}

void kv_hit_density_used(struct kv_hit_density *density, unsigned list,
			 uint32_t age)
{
	density->used[list][kv_hit_density_age(age)]++;
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

void kv_hit_density_settle(struct kv_hit_density *density, uint32_t period)
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
