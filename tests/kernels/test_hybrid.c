/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hybrid model on two ranks: full attention, sliding windows and recurrent
 * states, with pages of different sizes in shared memory.  A block has 16
 * tokens in every group.  The memory has one tensor of pages for each of two
 * layers; the engine assigns each page to a group.
 */
#include "tests/kernels/world.h"

#define PAGE 4096u
#define N_PAGES 64u
/* bytes of a recurrent layer's state; the rest of the page is unused */
#define STATE 3001u
#define CHAIN 10u
#define RANKS 2

enum group { FULL, WINDOW, STATES, GROUPS };

static const char *const layouts[GROUPS] = {
	[FULL] = "{\"tensors\":[{\"name\":\"kv\",\"dtype\":\"U8\","
		 "\"shape\":[2,16,256]}],\"tokens\":16}",
	/* A block has two pages of eight tokens; a token takes twice the bytes
	 * of FULL. */
	[WINDOW] = "{\"tensors\":[{\"name\":\"kv\",\"dtype\":\"U8\","
		   "\"shape\":[2,16,512]}],\"tokens\":16,"
		   "\"reuse\":\"window:2\"}",
	[STATES] = "{\"tensors\":[{\"name\":\"ssm\",\"dtype\":\"U8\","
		   "\"shape\":[2,3001]}],\"tokens\":16,\"reuse\":\"last\"}",
};
static const uint32_t per_block[GROUPS] = {1, 2, 1};

struct rank {
	uint8_t *memory; /* memory for the pages of two layers */
	kvfs_space *spaces[GROUPS];
	kvfs_pool *pools[GROUPS];
};

static struct rank ranks[RANKS];
static kvfs_key keys[CHAIN];

static uint8_t byte_of(int rank, int group, uint32_t block, uint64_t i)
{
	return (uint8_t)(rank * 13 + group * 59 + block * 31 + i * 7 + i / 251 +
			 1);
}

static kvfs_pool *make_pool(struct world *w, struct rank *rank, int group)
{
	const char *name = group == STATES ? "ssm" : "kv";
	const uint64_t bytes = group == STATES ? STATE : PAGE;
	kvfs_view views[] = {
		{name, rank->memory, PAGE, bytes, 1, 0},
		{name, rank->memory + N_PAGES * PAGE, PAGE, bytes, 1, 0},
	};
	kvfs_pool_desc desc = {
		.size = sizeof(desc),
		.device = "host",
		.space = rank->spaces[group],
		.views = views,
		.n_views = 2,
		.pages = N_PAGES,
		.pages_per_block = per_block[group],
		.memory = rank->memory,
		.memory_bytes = 2 * N_PAGES * PAGE,
	};
	kvfs_pool *pool;

	assert_int_equal(kvfs_pool_register(w->session, &desc, &pool), 0);
	return pool;
}

static int setup(void **state)
{
	struct world *w;
	char name[32];
	int r, g;

	world_setup(state);
	w = *state;
	for (r = 0; r < RANKS; r++) {
		ranks[r].memory = malloc(2 * N_PAGES * PAGE);
		memset(ranks[r].memory, 0xee, 2 * N_PAGES * PAGE);
		for (g = 0; g < GROUPS; g++) {
			snprintf(name, sizeof(name), "h%u-tp%d-g%d", w->spaces,
				 r, g);
			assert_int_equal(kvfs_space_open(w->session, name,
							 layouts[g],
							 KVFS_CREATE | 0700,
							 &ranks[r].spaces[g]),
					 0);
			ranks[r].pools[g] = make_pool(w, &ranks[r], g);
		}
	}
	for (r = 0; r < (int)CHAIN; r++)
		keys[r] = world_key((uint32_t)r);
	return 0;
}

static int teardown(void **state)
{
	int r, g;

	for (r = 0; r < RANKS; r++) {
		for (g = 0; g < GROUPS; g++) {
			kvfs_pool_close(ranks[r].pools[g]);
			kvfs_space_close(ranks[r].spaces[g]);
		}
		free(ranks[r].memory);
	}
	return world_teardown(state);
}

/* Write the block to @pages, or count the bytes that differ from the block. */
static size_t walk(int r, int group, uint32_t block, const int64_t *pages,
		   bool writes)
{
	const uint64_t bytes = group == STATES ? STATE : PAGE;
	uint64_t layer, p, j, i = 0;
	size_t wrong = 0;

	for (layer = 0; layer < 2; layer++)
		for (p = 0; p < per_block[group]; p++)
			for (j = 0; j < bytes; j++, i++) {
				uint8_t b = byte_of(r, group, block, i);
				uint8_t *at = ranks[r].memory;

				at += (layer * N_PAGES + (uint64_t)pages[p]) *
					      PAGE +
				      j;
				if (writes)
					*at = b;
				wrong += *at != b;
			}
	return wrong;
}

/* Save blocks @first .. of the chain in one group of one rank. */
static void save(int r, int group, uint32_t first, uint32_t n)
{
	int64_t pages[2 * CHAIN];
	kvfs_meta meta[CHAIN];
	kvfs_xfer *xfer;
	uint32_t i;

	memset(meta, 0, sizeof(meta));
	for (i = 0; i < n * per_block[group]; i++)
		pages[i] = 3 * i + 1;
	for (i = 0; i < n; i++) {
		meta[i].position = first + i;
		walk(r, group, first + i, pages + i * per_block[group], true);
	}
	assert_int_equal(kvfs_save(ranks[r].pools[group],
				   ranks[r].spaces[group], keys + first, meta,
				   n, pages, NULL, &xfer),
			 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND), n);
	kvfs_xfer_free(xfer);
}

/* Save a conversation of ten blocks: all blocks of full attention, the windows
 * that end at blocks 6 and 10, and the states of these two. */
static void save_conversation(void)
{
	int r;

	for (r = 0; r < RANKS; r++) {
		save(r, FULL, 0, CHAIN);
		save(r, WINDOW, 4, 2);
		save(r, WINDOW, 8, 2);
		save(r, STATES, 5, 1);
		save(r, STATES, 9, 1);
	}
}

static long match_all(void)
{
	kvfs_query queries[RANKS * GROUPS];
	size_t i;

	for (i = 0; i < RANKS * GROUPS; i++)
		queries[i] = (kvfs_query){ranks[i / GROUPS].spaces[i % GROUPS],
					  keys, CHAIN};
	return kvfs_match(queries, RANKS * GROUPS);
}

static void every_group_of_every_rank_must_be_able_to_go_on(void **state)
{
	(void)state;
	assert_int_equal(match_all(), 0);
	save_conversation();
	assert_int_equal(match_all(), 10);
	kvfs_evict(ranks[1].spaces[STATES], keys + 9, 1, NULL);
	assert_int_equal(match_all(), 6);
	kvfs_evict(ranks[0].spaces[WINDOW], keys + 4, 1, NULL);
	assert_int_equal(match_all(), 0);
	save(0, WINDOW, 4, 1);
	assert_int_equal(match_all(), 6);
	kvfs_evict(ranks[0].spaces[FULL], keys + 5, 1, NULL);
	assert_int_equal(match_all(), 0);
}

/* Return how many blocks before block @p a group needs to continue at @p.
 * Store the number of the first of these blocks. */
static uint32_t need(int group, uint32_t p, uint32_t *ret_first)
{
	const uint32_t n = group == FULL ? p : group == WINDOW ? 2 : 1;

	*ret_first = p - n;
	return n;
}

/* Load the blocks of a group into its pages from @page on.  Return the next
 * free page. */
static int64_t load_group(int r, int group, kvfs_lease *lease, size_t at,
			  uint32_t n, int64_t page, int64_t *pages)
{
	kvfs_opts opts = {.size = sizeof(opts), .first = at};
	kvfs_xfer *xfer;
	uint32_t i;

	for (i = 0; i < n * per_block[group]; i++)
		pages[i] = page++;
	assert_int_equal(
		kvfs_load(ranks[r].pools[group], lease, n, pages, &opts, &xfer),
		0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), n);
	kvfs_xfer_free(xfer);
	return page;
}

/* Acquire one lease over six spaces, and load its blocks group by group into
 * shared memory. */
static void one_lease_serves_all_groups_and_ranks(void **state)
{
	int64_t pages[RANKS * GROUPS][2 * CHAIN], page = 0;
	kvfs_query queries[RANKS * GROUPS];
	uint32_t first[GROUPS], n[GROUPS], i, b;
	kvfs_lease *lease;
	size_t at = 0;

	(void)state;
	save_conversation();
	for (i = 0; i < RANKS * GROUPS; i++) {
		n[i % GROUPS] = need((int)(i % GROUPS), 10, &first[i % GROUPS]);
		queries[i] =
			(kvfs_query){ranks[i / GROUPS].spaces[i % GROUPS],
				     keys + first[i % GROUPS], n[i % GROUPS]};
	}
	assert_int_equal(kvfs_acquire(queries, RANKS * GROUPS,
				      KVFS_OPTS(.deadline = 60 * SECOND),
				      &lease),
			 0);
	assert_int_equal(kvfs_lease_wait(lease, KVFS_FOREVER), 26);
	for (i = 0; i < RANKS * GROUPS; i++) {
		if (i % GROUPS == 0)
			memset(ranks[i / GROUPS].memory, 0xee,
			       2 * N_PAGES * PAGE);
		page = i % GROUPS == 0 ? 20 : page;
		page = load_group((int)(i / GROUPS), (int)(i % GROUPS), lease,
				  at, n[i % GROUPS], page, pages[i]);
		at += n[i % GROUPS];
	}
	for (i = 0; i < RANKS * GROUPS; i++)
		for (b = 0; b < n[i % GROUPS]; b++)
			assert_int_equal(
				walk((int)(i / GROUPS), (int)(i % GROUPS),
				     first[i % GROUPS] + b,
				     pages[i] + b * per_block[i % GROUPS],
				     false),
				0);
	kvfs_release(lease);
}

/* Load a lease of several groups into a pool of one group: the blocks of other
 * groups fail. */
static void blocks_of_another_group_do_not_fit(void **state)
{
	kvfs_query queries[] = {{ranks[0].spaces[FULL], keys, 2},
				{ranks[0].spaces[STATES], keys + 5, 1}};
	int64_t pages[] = {0, 1, 2};
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	(void)state;
	save_conversation();
	memset(ranks[0].memory, 0xee, 2 * N_PAGES * PAGE);
	assert_int_equal(kvfs_acquire(queries, 2,
				      KVFS_OPTS(.deadline = 60 * SECOND),
				      &lease),
			 0);
	assert_int_equal(kvfs_lease_wait(lease, KVFS_FOREVER), 3);
	assert_int_equal(
		kvfs_load(ranks[0].pools[FULL], lease, 3, pages, NULL, &xfer),
		0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 2);
	assert_int_equal(kvfs_xfer_status(xfer, 2), -EBADMSG);
	assert_int_equal(ranks[0].memory[2 * PAGE], 0xee);
	kvfs_xfer_free(xfer);
	assert_int_equal(kvfs_save(ranks[0].pools[STATES],
				   ranks[0].spaces[FULL], keys, NULL, 1, pages,
				   NULL, &xfer),
			 -EINVAL);
	kvfs_release(lease);
}

#define test(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(every_group_of_every_rank_must_be_able_to_go_on),
		test(one_lease_serves_all_groups_and_ranks),
		test(blocks_of_another_group_do_not_fit),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
