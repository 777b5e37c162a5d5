/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "cache/evict/policy.h"

#define BLOCK 65536u
#define CHAINS 2500u
#define LENGTH 32u
#define REQUESTS 30000u
#define FITS 4000u /* number of blocks that fit into memory */

/* An exact LRU cache of @capacity blocks, to compare the estimates with. */
struct lru {
	uint32_t capacity, used;
	uint32_t next[CHAINS * LENGTH], prev[CHAINS * LENGTH];
	bool in[CHAINS * LENGTH];
	uint32_t oldest, newest;
	uint64_t hits;
};

#define NONE UINT32_MAX

static uint64_t mix(uint64_t x)
{
	x = (x + 1) * 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static void lru_remove(struct lru *lru, uint32_t b)
{
	*(lru->prev[b] == NONE ? &lru->oldest : &lru->next[lru->prev[b]]) =
		lru->next[b];
	*(lru->next[b] == NONE ? &lru->newest : &lru->prev[lru->next[b]]) =
		lru->prev[b];
	lru->in[b] = false;
	lru->used--;
}

static void lru_use(struct lru *lru, uint32_t b)
{
	if (lru->in[b]) {
		lru->hits++;
		lru_remove(lru, b);
	} else if (lru->used == lru->capacity) {
		lru_remove(lru, lru->oldest);
	}
	lru->prev[b] = lru->newest;
	lru->next[b] = NONE;
	*(lru->newest == NONE ? &lru->oldest : &lru->next[lru->newest]) = b;
	lru->newest = b;
	lru->in[b] = true;
	lru->used++;
}

static double uniform(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005u + 1442695040888963407u;
	return (double)(*seed >> 11) / 9007199254740992.0;
}

static void it_says_what_more_memory_would_give(void **state)
{
	static struct lru lru[KV_MISS_CURVE_SIZES];
	struct kv_miss_curve *curve;
	double rates[KV_MISS_CURVE_SIZES];
	uint64_t seed = 7, asked = 0;

	(void)state;
	assert_int_equal(kv_miss_curve_new(&curve), 0);
	for (unsigned i = 0; i < KV_MISS_CURVE_SIZES; i++) {
		memset(&lru[i], 0, sizeof(lru[i]));
		lru[i].oldest = lru[i].newest = NONE;
		lru[i].capacity = i == KV_MISS_CURVE_SIZES - 1 ? CHAINS * LENGTH
							       : FITS << i;
	}
	for (unsigned r = 0; r < REQUESTS; r++) {
		double u = uniform(&seed) * uniform(&seed) * uniform(&seed);
		uint32_t chain = (uint32_t)(CHAINS * u);
		uint32_t n = 1 + (uint32_t)(uniform(&seed) * LENGTH);

		/* A third of the requests are for chains that are hardly ever
		 * requested again. */
		if (r % 3 == 0)
			chain = r % CHAINS;
		while (n-- > 0) {
			uint32_t b = chain * LENGTH + n;

			asked++;
			kv_miss_curve_use(curve, mix(b), BLOCK,
					  (uint64_t)FITS * BLOCK);
			for (unsigned i = 0; i < KV_MISS_CURVE_SIZES; i++)
				lru_use(&lru[i], b);
		}
	}
	kv_miss_curve_estimate(curve, rates);
	for (unsigned i = 0; i < KV_MISS_CURVE_SIZES; i++) {
		double real = (double)lru[i].hits / (double)asked;

		print_message("%u: %.3f, in truth %.3f\n", i, rates[i], real);
		assert_true(rates[i] - real < 0.03 && real - rates[i] < 0.03);
	}
	/* in this trace, more memory must give more hits */
	assert_true(rates[0] + 0.05 < rates[2]);
	free(curve);
}

static void blocks_that_never_come_back_are_no_hits(void **state)
{
	struct kv_miss_curve *curve;
	double rates[KV_MISS_CURVE_SIZES];

	(void)state;
	assert_int_equal(kv_miss_curve_new(&curve), 0);
	kv_miss_curve_estimate(curve, rates);
	assert_true(rates[3] == 0);
	for (uint64_t i = 0; i < 1000000; i++)
		kv_miss_curve_use(curve, mix(i), BLOCK, 1 << 30);
	kv_miss_curve_estimate(curve, rates);
	assert_true(rates[3] < 0.02);
	free(curve);
}

static void blocks_of_other_sizes_count_by_bytes(void **state)
{
	struct kv_miss_curve *curve;
	double rates[KV_MISS_CURVE_SIZES];

	(void)state;
	assert_int_equal(kv_miss_curve_new(&curve), 0);
	/* Use blocks of 1 and 2 MiB one after the other, 3,000 MiB in all,
	 * again and again. */
	for (unsigned turn = 0; turn < 20; turn++)
		for (uint64_t i = 0; i < 2000; i++)
			kv_miss_curve_use(curve, mix(i), (1 + i % 2) << 20,
					  1000ull << 20);
	kv_miss_curve_estimate(curve, rates);
	assert_true(rates[0] < 0.1 && rates[1] < 0.1);
	assert_true(rates[2] > 0.9 && rates[3] > 0.9);
	free(curve);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_says_what_more_memory_would_give),
		cmocka_unit_test(blocks_that_never_come_back_are_no_hits),
		cmocka_unit_test(blocks_of_other_sizes_count_by_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
