/* SPDX-License-Identifier: Apache-2.0 */
/* Every layout that engines have, there and back by way of a real daemon. */
#include "tests/kernels/engine.h"

#define BLOCKS 5u

#define KV "[3,16,4,32]" /* layers, tokens, heads, 64 bytes */

static const struct engine engines[] = {
	{"vLLM, K and V apart, NHD",
	 PLANES,
	 1,
	 NULL,
	 2,
	 {{"k", "BF16", KV, LAYERS, 4096}, {"v", "BF16", KV, LAYERS, 4096}}},
	{"vLLM, K and V fused",
	 PAIRS,
	 1,
	 NULL,
	 1,
	 {{"kv", "BF16", "[3,2,16,4,32]", 2 * LAYERS, 4096}}},
	{"vLLM, HND, heads first in memory",
	 HEADS_FIRST,
	 1,
	 NULL,
	 2,
	 {{"k", "BF16", "[3,4,16,32]", LAYERS, 4096},
	  {"v", "BF16", "[3,4,16,32]", LAYERS, 4096}}},
	{"vLLM, cross-layer",
	 PAGES_FIRST,
	 1,
	 NULL,
	 1,
	 {{"kv", "BF16", "[3,2,16,4,32]", 2 * LAYERS, 4096}}},
	{"SGLang, page-first",
	 PLANES,
	 1,
	 NULL,
	 2,
	 {{"k", "BF16", "[16,3,4,32]", 1, 3 * 4096},
	  {"v", "BF16", "[16,3,4,32]", 1, 3 * 4096}}},
	{"MLA",
	 PLANES,
	 1,
	 NULL,
	 1,
	 {{"kv_c", "BF16", "[3,16,576]", LAYERS, 16 * 576 * 2}}},
	{"MLA with an indexer and fp8 scales",
	 PLANES,
	 1,
	 NULL,
	 4,
	 {{"kv_c", "F8_E4M3", "[3,16,512]", LAYERS, 16 * 512},
	  {"rope", "BF16", "[3,16,64]", LAYERS, 16 * 64 * 2},
	  {"scale", "F32", "[3,16,4]", LAYERS, 16 * 4 * 4},
	  {"index", "U8", "[3,16,132]", LAYERS, 16 * 132}}},
	{"four pages of four tokens a block",
	 PLANES,
	 4,
	 NULL,
	 2,
	 {{"k", "BF16", KV, LAYERS, 1024}, {"v", "BF16", KV, LAYERS, 1024}}},
	{"two pages a block, heads first in memory",
	 HEADS_FIRST,
	 2,
	 NULL,
	 1,
	 {{"k", "BF16", "[3,2,4,8,32]", LAYERS, 2048}}},
	{"two pages a block, cross-layer",
	 PAGES_FIRST,
	 2,
	 NULL,
	 1,
	 {{"k", "BF16", "[3,2,8,4,32]", LAYERS, 2048}}},
};

struct room {
	const struct engine *e;
	kvfs_space *space;
	kvfs_pool *pool;
	uint8_t *memory;
	kvfs_key keys[BLOCKS];
	int64_t pages[BLOCKS * 4];
};

static void enter(struct world *w, const struct engine *e, struct room *r)
{
	char name[32];
	kvfs_view views[VIEWS_MAX];
	kvfs_pool_desc desc;
	uint32_t i;

	memset(r, 0, sizeof(*r));
	r->e = e;
	snprintf(name, sizeof(name), "l%u", w->spaces++);
	assert_int_equal(kvfs_space_open(w->session, name, engine_layout(e),
					 KVFS_CREATE | 0700, &r->space),
			 0);
	r->memory = malloc(engine_bytes(e));
	desc = engine_desc(e, r->space, r->memory, views);
	assert_int_equal(kvfs_pool_register(w->session, &desc, &r->pool), 0);
	for (i = 0; i < BLOCKS; i++)
		r->keys[i] = world_key(i);
}

static void leave(struct room *r)
{
	kvfs_pool_close(r->pool);
	kvfs_space_close(r->space);
	free(r->memory);
}

/* Set the pages: shuffled, all different, from @first on. */
static void scatter(struct room *r, uint32_t first)
{
	uint32_t i;

	for (i = 0; i < BLOCKS * r->e->pages_per_block; i++)
		r->pages[i] = (first + 11 * i) % ENGINE_PAGES;
}

static void wipe(struct room *r)
{
	memset(r->memory, 0xee, engine_bytes(r->e));
}

static const int64_t *pages_of(const struct room *r, uint32_t block)
{
	return r->pages + block * r->e->pages_per_block;
}

static void save(struct room *r)
{
	kvfs_xfer *xfer;
	uint32_t i;

	scatter(r, 3);
	for (i = 0; i < BLOCKS; i++)
		engine_walk(r->e, r->memory, pages_of(r, i), i, true, 0,
			    UINT32_MAX);
	assert_int_equal(kvfs_save(r->pool, r->space, r->keys, NULL, BLOCKS,
				   r->pages, NULL, &xfer),
			 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND),
			 BLOCKS);
	kvfs_xfer_free(xfer);
}

static kvfs_lease *acquire(struct room *r)
{
	kvfs_query query = {r->space, r->keys, BLOCKS};
	kvfs_lease *lease;

	assert_int_equal(kvfs_acquire(&query, 1,
				      KVFS_OPTS(.deadline = 60 * SECOND),
				      &lease),
			 0);
	assert_int_equal(kvfs_lease_wait(lease, KVFS_FOREVER), BLOCKS);
	return lease;
}

static void load(struct room *r, const kvfs_opts *opts)
{
	kvfs_lease *lease = acquire(r);
	kvfs_xfer *xfer;

	assert_int_equal(
		kvfs_load(r->pool, lease, BLOCKS, r->pages, opts, &xfer), 0);
	kvfs_release(lease);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND),
			 BLOCKS);
	kvfs_xfer_free(xfer);
}

/* Check planes @from .. @to of every block, 0xee in other bytes. */
static void check(struct room *r, uint32_t from, uint32_t to)
{
	size_t i, rest = 0;
	uint32_t b;

	for (b = 0; b < BLOCKS; b++) {
		if (engine_walk(r->e, r->memory, pages_of(r, b), b, false, from,
				to) != 0)
			fail_msg("%s: block %u", r->e->name, b);
		engine_walk(r->e, r->memory, pages_of(r, b), b, true, 0, 0);
	}
	for (i = 0; i < engine_bytes(r->e); i++)
		rest += r->memory[i] != 0xee;
	if (rest != 0)
		fail_msg("%s: %zu bytes beside the blocks", r->e->name, rest);
}

/* Check that the files have the bytes in the order of the shapes. */
static void check_files(struct room *r)
{
	kvfs_lease *lease = acquire(r);
	uint64_t bytes, i, k;
	const uint8_t *at;
	uint32_t b;
	size_t t;

	for (b = 0; b < BLOCKS; b++) {
		at = kvfs_lease_data(lease, b, &bytes);
		assert_non_null(at);
		for (t = 0, k = 0; t < r->e->n; t++)
			for (i = 0; i < r->e->tensors[t].planes *
						r->e->pages_per_block *
						r->e->tensors[t].per;
			     i++, k++)
				if (at[k] != engine_byte(b, t, i))
					fail_msg("%s: byte %zu", r->e->name,
						 (size_t)k);
		assert_int_equal(k, bytes);
	}
	kvfs_release(lease);
}

static void every_layout_comes_back_bit_by_bit(void **state)
{
	struct room r;
	size_t i;

	for (i = 0; i < KV_ARRAY_LEN(engines); i++) {
		enter(*state, &engines[i], &r);
		wipe(&r);
		save(&r);
		/* a save does not write to the pages */
		check(&r, 0, UINT32_MAX);
		check_files(&r);
		scatter(&r, 8);
		load(&r, NULL);
		check(&r, 0, UINT32_MAX);
		leave(&r);
	}
}

static void a_skipped_page_of_a_block_is_left_alone(void **state)
{
	struct room r;
	size_t i;
	uint32_t k;

	for (i = 0; i < KV_ARRAY_LEN(engines); i++) {
		if (engines[i].pages_per_block == 1)
			continue;
		enter(*state, &engines[i], &r);
		wipe(&r);
		save(&r);
		wipe(&r);
		scatter(&r, 8);
		for (k = 0; k < BLOCKS * engines[i].pages_per_block; k++)
			if (k % 3 != 1)
				r.pages[k] = -1;
		load(&r, NULL);
		check(&r, 0, UINT32_MAX);
		leave(&r);
	}
}

/* Return the number of planes per layer; 0: layers share a plane. */
static uint32_t planes_a_layer(const struct engine *e)
{
	return e->tensors[0].planes == 1 ? 0 : e->tensors[0].planes / LAYERS;
}

static void layers_come_one_by_one(void **state)
{
	kvfs_opts by_layer = {.size = sizeof(by_layer), .flags = KVFS_BY_LAYER};
	kvfs_opts two = {.size = sizeof(two),
			 .first_layer = 1,
			 .layers = 2,
			 .flags = KVFS_BY_LAYER};
	struct room r;
	size_t i;
	uint32_t l, n;

	for (i = 0; i < KV_ARRAY_LEN(engines); i++) {
		n = planes_a_layer(&engines[i]);
		enter(*state, &engines[i], &r);
		wipe(&r);
		save(&r);
		wipe(&r);
		for (l = 0; l < LAYERS && n > 0; l++) {
			kvfs_opts opts = {.size = sizeof(opts),
					  .first_layer = l,
					  .layers = 1};

			scatter(&r, l);
			load(&r, &opts);
			check(&r, l * n, (l + 1) * n);
		}
		load(&r, &by_layer);
		check(&r, 0, UINT32_MAX);
		if (n > 0) {
			load(&r, &two);
			check(&r, n, 3 * n);
		}
		leave(&r);
	}
}

/* ---- what is no description of it ---- */

static int try_desc(struct world *w, const kvfs_pool_desc *desc)
{
	kvfs_pool *pool;
	int r = kvfs_pool_register(w->session, desc, &pool);

	if (r == 0)
		kvfs_pool_close(pool);
	return r;
}

static void assert_refused(struct world *w, const struct room *r,
			   kvfs_view change, size_t at, const char *what)
{
	kvfs_view views[VIEWS_MAX];
	kvfs_pool_desc desc = engine_desc(r->e, r->space, r->memory, views);

	views[at] = change;
	if (try_desc(w, &desc) != -EINVAL)
		fail_msg("%s: %s in view %zu is taken", r->e->name, what, at);
}

static void try_wrong_views(struct world *w, const struct room *r)
{
	kvfs_view views[VIEWS_MAX], v;
	size_t i, n = engine_views(r->e, r->memory, views);

	for (i = 0; i < n; i++) {
		v = views[i];
		v.bytes++;
		assert_refused(w, r, v, i, "a byte too many");
		v = views[i];
		v.bytes--;
		assert_refused(w, r, v, i, "a byte too few");
		v = views[i];
		v.count++;
		assert_refused(w, r, v, i, "a segment too many");
		v = views[i];
		v.block_stride = 0;
		assert_refused(w, r, v, i, "no stride");
		v = views[i];
		v.block_stride = v.bytes - 1;
		assert_refused(w, r, v, i, "pages that overlap");
		v = views[i];
		v.base = r->memory + engine_bytes(r->e) - v.bytes;
		assert_refused(w, r, v, i, "an end outside");
		v = views[i];
		v.base = r->memory - 1;
		assert_refused(w, r, v, i, "a beginning outside");
		v = views[i];
		v.block_stride = UINT64_MAX / 4;
		assert_refused(w, r, v, i, "an overflow");
		v = views[i];
		v.tensor = "x";
		assert_refused(w, r, v, i, "a tensor that is not there");
		v = views[i];
		v.base = NULL;
		assert_refused(w, r, v, i, "null");
		if (views[i].count > 1) {
			v = views[i];
			v.segment_stride -= 1;
			assert_refused(w, r, v, i, "segments that overlap");
		}
	}
}

static void a_wrong_description_of_each_is_refused(void **state)
{
	struct world *w = *state;
	kvfs_view views[VIEWS_MAX];
	kvfs_pool_desc desc;
	struct room r;
	size_t i;

	for (i = 0; i < KV_ARRAY_LEN(engines); i++) {
		enter(w, &engines[i], &r);
		try_wrong_views(w, &r);
		desc = engine_desc(r.e, r.space, r.memory, views);
		assert_int_equal(try_desc(w, &desc), 0);
		desc.n_views--;
		assert_int_equal(try_desc(w, &desc), -EINVAL);
		desc.n_views++;
		desc.pages_per_block++;
		assert_int_equal(try_desc(w, &desc), -EINVAL);
		desc.pages_per_block--;
		desc.pages++;
		assert_int_equal(try_desc(w, &desc), -EINVAL);
		leave(&r);
	}
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(every_layout_comes_back_bit_by_bit),
		test(a_skipped_page_of_a_block_is_left_alone),
		test(layers_come_one_by_one),
		test(a_wrong_description_of_each_is_refused),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
