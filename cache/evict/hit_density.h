/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hit_density.h - learned hit density: how soon is a block of this list and age
 * used again?
 *
 * From the ages at which blocks were used again, by list: for each age the best
 * rate, over any time to come, of hits for each touch that a block stays in the
 * cache till then.  Blocks that were evicted and come again count, so what is
 * learned does not depend on what was kept.  The past fades.
 */
#ifndef KV_CACHE_EVICT_HIT_DENSITY_H
#define KV_CACHE_EVICT_HIT_DENSITY_H

#include <stdint.h>

#define KV_HIT_DENSITY_LISTS 12
#define KV_HIT_DENSITY_AGES 124 /* four to an octave */

struct kv_hit_density {
	float entered[KV_HIT_DENSITY_LISTS];
	float used[KV_HIT_DENSITY_LISTS][KV_HIT_DENSITY_AGES];
	float worth[KV_HIT_DENSITY_LISTS][KV_HIT_DENSITY_AGES];
	uint32_t events;  /* since it was last worked out */
	uint64_t entries; /* of all time */
};

void kv_hit_density_init(struct kv_hit_density *density);
void kv_hit_density_entered(struct kv_hit_density *density, unsigned list);
void kv_hit_density_used(struct kv_hit_density *density, unsigned list,
			 uint32_t age);
/* Work the worth out anew, if @period entries have passed since, or in the
 * beginning fewer; and let the past fade. */
void kv_hit_density_settle(struct kv_hit_density *density, uint32_t period);

unsigned kv_hit_density_age(uint32_t age); /* index */

static inline float kv_hit_density_worth(const struct kv_hit_density *density,
					 unsigned list, uint32_t age)
{
	return density->worth[list][kv_hit_density_age(age)];
}

#endif
