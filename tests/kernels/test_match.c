/* SPDX-License-Identifier: Apache-2.0 */
/* Matches, in tokens, by the rules of the manual: groups of different block
 * lengths, rules and starts, with any blocks missing. */
#include "tests/kernels/world.h"

#define GROUPS 4
#define BLOCKS 24u
#define ROUNDS 3000
#define SMALL_LAYOUT(tokens, reuse)                                        \
	"{\"tensors\":[{\"name\":\"t\",\"dtype\":\"U8\",\"shape\":[64]}]," \
	"\"tokens\":" tokens ",\"reuse\":\"" reuse "\"}"

/* The saved blocks of one layout.  @window: number of blocks that must be
 * present before the end of a match; 0: all, UINT32_MAX: the last one. */
struct group {
	const char *layout;
	uint32_t tokens, window;
	kvfs_space *space;
	bool saved[BLOCKS];
	kvfs_key keys[BLOCKS];
};

static struct group groups[GROUPS] = {
	{.layout = SMALL_LAYOUT("4", "prefix"), .tokens = 4},
	{.layout = SMALL_LAYOUT("6", "window:2"), .tokens = 6, .window = 2},
	{.layout = SMALL_LAYOUT("4", "last"),
	 .tokens = 4,
	 .window = UINT32_MAX},
	{.layout = SMALL_LAYOUT("2", "window:5"), .tokens = 2, .window = 5},
};
static uint8_t memory[64];
static uint64_t seed = 88172645463325252u;

static uint64_t any(uint64_t n)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed % n;
}

static void save(struct world *w, kvfs_pool *pool, struct group *g,
		 uint32_t number)
{
	const int64_t pages[BLOCKS] = {0};
	kvfs_key keys[BLOCKS];
	kvfs_xfer *xfer;
	char name[32];
	size_t n = 0;

	snprintf(name, sizeof(name), "%s.%u", w->space_name, number);
	world_space_open(w->session, name, g->layout, KVFS_CREATE | 0700,
			 &g->space);
	for (uint32_t i = 0; i < BLOCKS; i++) {
		g->keys[i] = world_key(number << 16 | i);
		g->saved[i] = any(100) < 70 + 25 * (i < BLOCKS / 2);
		if (g->saved[i])
			keys[n++] = g->keys[i];
	}
	assert_int_equal(
		kvfs_save(pool, g->space, keys, NULL, n, pages, NULL, &xfer),
		0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND), n);
	kvfs_xfer_free(xfer);
}

static kvfs_pool *small_pool(struct world *w)
{
	const kvfs_view view = {.tensor = "t",
				.base = memory,
				.block_stride = 64,
				.bytes = 64,
				.count = 1};
	kvfs_pool_desc desc = {.size = sizeof(desc),
			       .device = "host",
			       .views = &view,
			       .n_views = 1,
			       .pages = 1,
			       .pages_per_block = 1};
	kvfs_pool *pool;

	world_space_open(w->session, "small", groups[0].layout,
			 KVFS_CREATE | 0700, &desc.space);
	assert_int_equal(kvfs_pool_register(w->session, &desc, &pool), 0);
	kvfs_space_close(desc.space);
	return pool;
}

/* Return whether block @b is present. Blocks before @q->start have no keys in
 * @q, and count as present. */
static bool is_there(const struct group *g, const kvfs_query *q, uint64_t b)
{
	const uint64_t before = q->start / g->tokens;

	return b < before || g->saved[q->keys - g->keys + (b - before)];
}

static bool goes_on(const struct group *g, const kvfs_query *q, uint64_t p)
{
	const uint64_t blocks = p / g->tokens;
	uint64_t from = 0;

	if (p % g->tokens != 0)
		return false;
	if (g->window == UINT32_MAX && blocks > 0)
		from = blocks - 1;
	else if (g->window != 0 && blocks > g->window)
		from = blocks - g->window;
	for (uint64_t b = from; b < blocks; b++)
		if (!is_there(g, q, b))
			return false;
	return true;
}

static uint64_t expected(const kvfs_query *queries, size_t n)
{
	uint64_t end = UINT64_MAX;
	size_t i;

	for (i = 0; i < n; i++) {
		const struct group *g = &groups[i];
		uint64_t own = queries[i].start + queries[i].n * g->tokens;

		if (queries[i].tokens != 0 && queries[i].tokens < own)
			own = KV_MAX(queries[i].tokens, queries[i].start);
		end = KV_MIN(end, own);
	}
	for (uint64_t p = end; p > 0; p--) {
		for (i = 0; i < n && goes_on(&groups[i], &queries[i], p); i++)
			;
		if (i == n)
			return p;
	}
	return 0;
}

static void the_longest_prefix_of_whole_blocks_is_found(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = small_pool(w);
	kvfs_query queries[GROUPS] = {0};
	uint64_t found = 0;

	for (int round = 0; round < ROUNDS; round++) {
		const size_t n = 1 + any(GROUPS);

		if (round % 300 == 0)
			for (uint32_t i = 0; i < GROUPS; i++) {
				kvfs_space_close(groups[i].space);
				save(w, pool, &groups[i],
				     (uint32_t)(round / 300) * GROUPS + i);
			}
		for (size_t i = 0; i < n; i++) {
			const uint64_t before = any(BLOCKS / 2);

			queries[i] = (kvfs_query){
				.space = groups[i].space,
				.keys = groups[i].keys + before,
				.n = any(BLOCKS - before + 1),
				.start = (any(2) ? before : any(9)) *
					 groups[i].tokens,
				.tokens = any(2) ? any(90) : 0,
			};
		}
		assert_int_equal(kvfs_match_tokens(queries, n),
				 expected(queries, n));
		found += expected(queries, n) > 0;
	}
	assert_in_range(found, ROUNDS / 4, ROUNDS);
	for (uint32_t i = 0; i < GROUPS; i++)
		kvfs_space_close(kv_steal(groups[i].space));
	kvfs_pool_close(pool);
}

static void a_tail_is_never_counted(void **state)
{
	struct world *w = *state; /* the blocks of this test have four tokens */
	const kvfs_meta tail = {.position = 2, .tokens = 3};
	kvfs_key keys[3] = {world_key(0), world_key(1), world_key(2)};
	kvfs_query query = {.space = w->space, .keys = keys, .n = 3};
	const int64_t page = 2;
	kvfs_xfer *xfer;

	world_save(w, 2);
	assert_int_equal(kvfs_save(w->pool, w->space, &keys[2], &tail, 1, &page,
				   NULL, &xfer),
			 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND), 1);
	kvfs_xfer_free(xfer);
	query.tokens = 11;
	assert_int_equal(kvfs_match_tokens(&query, 1), 8);
	query.tokens = 7;
	assert_int_equal(kvfs_match_tokens(&query, 1), 4);
	query.tokens = 12;
	assert_int_equal(kvfs_match_tokens(&query, 1), 12);
}

static void queries_that_cannot_be_measured_are_refused(void **state)
{
	struct world *w = *state;
	const kvfs_key key = world_key(0);
	kvfs_query query = {.space = w->space, .keys = &key, .n = 1};
	kvfs_space *silent;

	assert_int_equal(kvfs_match_tokens(NULL, 0), 0);
	assert_int_equal(kvfs_match_tokens(NULL, 1), -EINVAL);
	query.start = 2;
	assert_int_equal(kvfs_match_tokens(&query, 1), -EINVAL);
	query.start = UINT64_MAX - 3;
	assert_int_equal(kvfs_match_tokens(&query, 1), -EINVAL);
	query.start = (uint64_t)INT64_MAX + 1;
	assert_int_equal(kvfs_match_tokens(&query, 1), -EINVAL);
	query.start = 1u << 30;
	assert_int_equal(kvfs_match_tokens(&query, 1), 1u << 30);
	query.start = 0;
	query.reserved[0] = 1;
	assert_int_equal(kvfs_match_tokens(&query, 1), -EINVAL);
	query.reserved[0] = 0;
	world_space_open(w->session, "silent",
			 "{\"tensors\":[{\"name\":\"t\",\"dtype\":\"U8\","
			 "\"shape\":[64]}]}",
			 KVFS_CREATE | 0700, &silent);
	query.space = silent;
	assert_int_equal(kvfs_match_tokens(&query, 1), -EINVAL);
	kvfs_space_close(silent);
}

/* Block lengths whose least common multiple exceeds every prompt. */
static void lengths_without_a_common_multiple_match_nothing(void **state)
{
	static const char *const tokens[] = {"4294967291", "4294967279",
					     "4294967231"};
	struct world *w = *state;
	kvfs_query queries[3] = {0};
	char layout[200], name[32];

	for (size_t i = 0; i < 3; i++) {
		snprintf(layout, sizeof(layout),
			 "{\"tensors\":[{\"name\":\"t\",\"dtype\":\"U8\","
			 "\"shape\":[64]}],\"tokens\":%s}",
			 tokens[i]);
		snprintf(name, sizeof(name), "prime%zu", i);
		world_space_open(w->session, name, layout, KVFS_CREATE | 0700,
				 &queries[i].space);
		queries[i].start = strtoull(tokens[i], NULL, 10) * 1000000000u;
	}
	assert_int_equal(kvfs_match_tokens(queries, 3), 0);
	assert_true(kvfs_match_tokens(queries, 1) > 0);
	for (size_t i = 0; i < 3; i++)
		kvfs_space_close(queries[i].space);
}

static void without_a_daemon_nothing_matches_but_what_is_there(void **state)
{
	struct world *w = *state;
	const kvfs_key key = world_key(0);
	kvfs_query query = {
		.space = w->space, .keys = &key, .n = 1, .start = 8};

	world_stop_daemon(w, SIGKILL);
	world_wait_connected(w->session, 0);
	assert_int_equal(kvfs_match_tokens(&query, 1), 8);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(the_longest_prefix_of_whole_blocks_is_found),
		test(a_tail_is_never_counted),
		test(queries_that_cannot_be_measured_are_refused),
		test(lengths_without_a_common_multiple_match_nothing),
		test(without_a_daemon_nothing_matches_but_what_is_there),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
