/* SPDX-License-Identifier: Apache-2.0 */
/* Random operations on a paged pool: against a simple model in one thread, and
 * from several threads at once.  A mapped block always has its bytes, no two
 * blocks share a page, and at the end all pages are free or cached. */
#include "tests/kernels/paged.h"

/* number of blocks of the space; two thirds are in the cache */
#define BLOCKS 24u
#define SAVED 16u
#define POOL 12u
#define MAPS 6u
#define STEPS 5000
#define THREADS 4
#define ROUNDS 150

struct one {
	kvfs_mapping *map;
	uint32_t first;
	size_t n;
	kvfs_pages *pages;
	size_t n_pages;
};

struct random {
	struct world *w;
	kvfs_pool *pool;
	unsigned seed;
	struct one one[MAPS];
	bool saved[BLOCKS];
};

static uint32_t draw(struct random *r, uint32_t n)
{
	r->seed = r->seed * 1664525u + 1013904223u;
	return (uint32_t)(((uint64_t)r->seed * n) >> 32);
}

/* Compare the first bytes and a few others: comparing all bytes would take too
 * long. */
static bool looks_like(const uint8_t *at, uint32_t block)
{
	size_t i;

	for (i = 0; i < PAYLOAD; i += 1021)
		if (at[i] != world_byte(block, i))
			return false;
	return true;
}

static void check_maps(struct random *r)
{
	int64_t owner[POOL];
	size_t k, i, taken = 0;

	for (i = 0; i < POOL; i++)
		owner[i] = -1;
	for (k = 0; k < MAPS; k++) {
		struct one *o = &r->one[k];

		for (i = 0; o->map != NULL && i < o->n; i++) {
			int64_t page = kvfs_map_page(o->map, i);
			uint32_t block = o->first + (uint32_t)i;

			if (page < 0)
				continue;
			assert_true(page < (int64_t)POOL);
			assert_true(owner[page] == -1 ||
				    owner[page] == (int64_t)block);
			owner[page] = block;
			assert_true(looks_like(kvfs_map_addr(o->map, i, NULL),
					       block));
		}
		for (i = 0; o->pages != NULL && i < o->n_pages; i++) {
			int64_t page = kvfs_pages_page(o->pages, i);

			assert_int_equal(owner[page], -1);
			owner[page] = -2 - (int64_t)k;
			taken++;
		}
	}
	/* Pages of page sets that are being saved also count as taken. */
	assert_true(info_of(r->pool).pages_taken >= taken);
}

static void map_some(struct random *r, struct one *o)
{
	size_t i;
	int status;

	o->first = draw(r, BLOCKS);
	o->n = 1 + draw(r, BLOCKS - o->first);
	o->map = begin(r->w, r->pool, o->first, o->n, NULL);
	if (draw(r, 8) == 0)
		kvfs_map_cancel(o->map);
	if (draw(r, 4) == 0)
		return; /* do not wait until the map has a status */
	assert_true(kvfs_map_wait(o->map, LONG) >= 0);
	for (i = 0; i < o->n; i++) {
		status = kvfs_map_status(o->map, i);
		assert_true(status == 0 || status == -ENOENT ||
			    status == -ENOSPC || status == -ECANCELED);
		if (status == -ENOENT)
			assert_false(r->saved[o->first + i]);
		if (status == 0)
			assert_true(r->saved[o->first + i]);
	}
}

static void seal_some(struct random *r, struct one *o)
{
	kvfs_key keys[POOL];
	kvfs_xfer *xfer;
	size_t i, k;

	for (i = 0; i < o->n_pages; i++) {
		uint32_t block = draw(r, BLOCKS);
		uint8_t *at = kvfs_pages_addr(o->pages, i, NULL);

		for (k = 0; k < PAYLOAD; k++)
			at[k] = world_byte(block, k);
		keys[i] = world_key(block);
		r->saved[block] = true;
	}
	assert_int_equal(kvfs_pages_seal(o->pages, r->w->space, keys, NULL,
					 o->n_pages, NULL, &xfer),
			 0);
	kvfs_pages_free(kv_steal(o->pages));
	if (draw(r, 2) == 0)
		assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, LONG),
				 o->n_pages);
	kvfs_xfer_free(xfer);
}

static void step(struct random *r)
{
	struct one *o = &r->one[draw(r, MAPS)];
	kvfs_pages *pages;

	if (o->map != NULL) {
		unmap(kv_steal(o->map));
	} else if (o->pages != NULL && draw(r, 2) == 0) {
		seal_some(r, o);
	} else if (o->pages != NULL) {
		if (draw(r, 2) == 0)
			assert_int_equal(kvfs_pages_drop(o->pages, NULL), 0);
		kvfs_pages_free(kv_steal(o->pages));
	} else if (draw(r, 4) == 0) {
		o->n_pages = 1 + draw(r, POOL / 2);
		if (kvfs_pages_take(r->pool, o->n_pages, &pages) == 0)
			o->pages = pages;
	} else {
		map_some(r, o);
	}
}

static void random_operations_keep_blocks_apart(void **state)
{
	struct random r = {.w = *state, .seed = 20261122};
	kvfs_pages *all;
	uint32_t i;

	world_save(r.w, SAVED);
	for (i = 0; i < SAVED; i++)
		r.saved[i] = true;
	r.pool = reserve(r.w, POOL / 2, POOL);
	for (i = 0; i < STEPS; i++) {
		step(&r);
		if (i % 7 == 0)
			check_maps(&r);
	}
	for (i = 0; i < MAPS; i++) {
		unmap(r.one[i].map);
		kvfs_pages_free(r.one[i].pages);
	}
	wait_for_mapped(r.pool, 0);
	for (i = 0; i < 2000 && info_of(r.pool).pages_taken > 0; i++)
		usleep(10000);
	assert_int_equal(kvfs_pages_take(r.pool, POOL, &all), 0);
	kvfs_pages_free(all);
	assert_int_equal(info_of(r.pool).pages_free, POOL);
	kvfs_pool_close(r.pool);
}

/* ---- operations from several threads ---- */

struct thread {
	pthread_t thread;
	struct random r;
	atomic_size_t *wrong;
};

/* Blocks stay mapped while they are compared in full. */
static void *map_and_compare(void *arg)
{
	struct thread *t = arg;
	kvfs_pages *pages;
	int round;
	size_t i;

	for (round = 0; round < ROUNDS; round++) {
		uint32_t first = draw(&t->r, SAVED - 3);
		kvfs_mapping *m;
		kvfs_key keys[3] = {world_key(first), world_key(first + 1),
				    world_key(first + 2)};

		if (draw(&t->r, 6) == 0 &&
		    kvfs_pages_take(t->r.pool, 2, &pages) == 0) {
			memset(kvfs_pages_addr(pages, 0, NULL), 0xdd, PAYLOAD);
			memset(kvfs_pages_addr(pages, 1, NULL), 0xdd, PAYLOAD);
			kvfs_pages_free(pages);
		}
		if (kvfs_map(t->r.pool, t->r.w->space, keys, 3, NULL, &m) < 0) {
			(*t->wrong)++;
			continue;
		}
		if (draw(&t->r, 5) != 0)
			*t->wrong += kvfs_map_wait(m, LONG) < 0;
		for (i = 0; i < 3; i++) {
			const uint8_t *at = kvfs_map_addr(m, i, NULL);

			*t->wrong += at != NULL &&
				     !world_is(at, first + (uint32_t)i);
		}
		*t->wrong += kvfs_unmap(m, NULL) != 0;
	}
	return NULL;
}

static void threads_share_a_pool(void **state)
{
	struct thread threads[THREADS];
	atomic_size_t wrong = 0;
	kvfs_pool *pool;
	unsigned i;

	world_save(*state, SAVED);
	pool = reserve(*state, 2, POOL);
	for (i = 0; i < THREADS; i++) {
		threads[i] = (struct thread){
			.r = {.w = *state, .pool = pool, .seed = 77 * (i + 1)},
			.wrong = &wrong};
		pthread_create(&threads[i].thread, NULL, map_and_compare,
			       &threads[i]);
	}
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i].thread, NULL);
	assert_int_equal(wrong, 0);
	wait_for_mapped(pool, 0);
	assert_int_equal(info_of(pool).pages_taken, 0);
	kvfs_pool_close(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
		T(random_operations_keep_blocks_apart),
		T(threads_share_a_pool),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
