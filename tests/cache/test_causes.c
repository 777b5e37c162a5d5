/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_causes.c - why blocks are absent: random changes against a model, fair
 * shares of the table and of the log, and what flushes ask for with why=0.
 */
#include "cache/block/block.h"
#include "cache/core/causes.h"
#include "tests/cache/small_store.h"

#define KEYS 3000u
#define OPS 10000u
#define SPACES 2u

static uint64_t random_state;

static unsigned random_below(unsigned n)
{
	random_state =
		random_state * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(random_state >> 33) % n;
}

static int set_up(void **state)
{
	struct small *s = calloc(1, sizeof(*s));

	small_new(s);
	s->config.why = 1u << 20;
	*state = s;
	return 0;
}

static enum kv_cause cause_of(struct small *s, struct kv_space *space,
			      unsigned n)
{
	struct kv_miss miss = {.key = small_key(n)};

	kv_why_absent(s->cache, space, &miss, 1);
	if (miss.cause > KV_CAUSE_UNSEEN) {
		assert_in_range(miss.since, s->cache->causes.since,
				(uint32_t)time(NULL));
		assert_true(miss.idle <=
			    (uint32_t)time(NULL) - s->cache->causes.since);
	}
	return miss.cause;
}

static int save(struct small *s, struct kv_space *space, unsigned n)
{
	const struct kv_key key = small_key(n);
	const struct kv_meta meta = {.position = n, .tokens = 16};
	struct kv_digest digest;
	struct kv_fill *fill;
	int r;

	do
		r = kv_fill_begin(s->cache, space, &key, BYTES, &fill);
	while (r == -EBUSY);
	if (r < 0)
		return r;
	small_content(kv_fill_data(fill), BYTES, n);
	digest = kv_digest_of(kv_fill_data(fill), BYTES);
	return kv_fill_seal(s->cache, fill, &key, &meta, 8, &digest);
}

static void rate(struct small *s, struct kv_space *space, uint64_t bytes)
{
	const struct kv_quota quota = {.rate_put = bytes};

	assert_int_equal(kv_space_set_quota(s->cache, space, NULL, &quota), 0);
}

static void clear(struct small *s, struct kv_space *space)
{
	struct kv_clear *clear;

	assert_int_equal(kv_clear_begin(s->cache, space, &clear), 0);
	while (kv_clear_some(s->cache, clear) > 0)
		;
	kv_clear_end(clear);
}

/* Compare a key with the model, which has the last change that the test made.  A block that was
 * saved, and that the test did not remove, can only be evicted. */
static void check(struct small *s, struct kv_space *space, unsigned n,
		  enum kv_cause model)
{
	struct kv_block_info info;
	const struct kv_key key = small_key(n);
	const enum kv_cause is = cause_of(s, space, n);
	const bool there = kv_block_stat_key(s->cache, space, &key, &info) == 0;

	if (model != KV_CAUSE_NONE) {
		assert_false(there);
		assert_int_equal(is, model);
	} else if (is == KV_CAUSE_NONE || there) {
		/* the block may have been evicted between the two calls */
		assert_true(is == KV_CAUSE_NONE || !there);
	} else if (!s->cache->ssd.on) {
		assert_int_equal(is, KV_CAUSE_EVICTED_DRAM);
	} else {
		assert_true(is == KV_CAUSE_EVICTED_DRAM ||
			    is == KV_CAUSE_EVICTED_SSD || is == KV_CAUSE_ROOM);
	}
}

/* Save block @n, and set the model to the outcome.  Return what save() does. */
static int change(struct small *s, struct kv_space *space, unsigned n,
		  enum kv_cause *model)
{
	const int r = save(s, space, n);

	if (r == 0)
		*model = KV_CAUSE_NONE;
	else if (r == -ENOSPC)
		*model = KV_CAUSE_ROOM;
	else if (r == -EAGAIN)
		*model = KV_CAUSE_RATE;
	else
		assert_int_equal(r, -EEXIST);
	return r;
}

static void the_model_knows_each_cause(struct small *s)
{
	static enum kv_cause model[SPACES][KEYS];
	struct kv_space *spaces[SPACES];
	struct kv_cache_stats stats;
	unsigned refused = 0;
	int r;

	small_must_open(s);
	random_state = 26;
	for (unsigned i = 0; i < SPACES; i++) {
		char name[] = {'a' + (char)i, '\0'};

		assert_int_equal(kv_space_create(s->cache, name, 1000 + i, 0,
						 0755, &spaces[i]),
				 0);
		for (unsigned n = 0; n < KEYS; n++)
			model[i][n] = KV_CAUSE_UNSEEN;
	}
	for (unsigned op = 0; op < OPS; op++) {
		const unsigned i = random_below(SPACES);
		const unsigned n = random_below(KEYS), what = random_below(20);
		struct kv_space *space = spaces[i];
		const struct kv_key key = small_key(n);
		struct kv_block *block;

		if (what < 14) {
			change(s, space, n, &model[i][n]);
		} else if (what < 17) {
			r = kv_block_get(s->cache, space, &key, &block);
			if (r == 0) {
				if (kv_block_remove(s->cache, block) == 0)
					model[i][n] = KV_CAUSE_REMOVED;
				kv_block_put(s->cache, block);
			}
		} else if (what < 19) {
			rate(s, space, 1);
			for (unsigned k = 0; k < 5; k++) {
				const unsigned m = random_below(KEYS);

				refused += change(s, space, m, &model[i][m]) ==
					   -EAGAIN;
			}
			rate(s, space, 0);
		} else if (random_below(40) == 0) {
			clear(s, space);
			for (unsigned m = 0; m < KEYS; m++)
				if (cause_of(s, space, m) == KV_CAUSE_REMOVED)
					model[i][m] = KV_CAUSE_REMOVED;
				else
					check(s, space, m, model[i][m]);
		}
		check(s, space, n, model[i][n]);
		for (unsigned k = 0; k < 10; k++) {
			const unsigned m = random_below(KEYS);

			check(s, space, m, model[i][m]);
		}
	}
	kv_cache_stats(s->cache, &stats);
	assert_true(stats.evicted_last + stats.evicted_ssd > 100);
	assert_true(stats.removed > 100);
	assert_true(refused > 100);
}

static void random_changes_of_both_tiers(void **state)
{
	the_model_knows_each_cause(*state);
}

static void random_changes_without_an_ssd(void **state)
{
	struct small *s = *state;

	s->config.ssd = 0;
	the_model_knows_each_cause(s);
}

/* ---- fair shares ---- */

static struct kv_key number(uint64_t n)
{
	struct kv_key key = {.len = 16};

	memcpy(key.b, &n, sizeof(n));
	return key;
}

static void note_all(struct small *s, struct kv_space *space, uint64_t from,
		     uint64_t n)
{
	for (uint64_t i = from; i < from + n; i++) {
		const struct kv_key key = number(i);

		kv_lock(s->cache);
		kv_cause_note(s->cache, space, &key, KV_CAUSE_RATE);
		kv_unlock(s->cache);
	}
}

static uint64_t count(struct small *s, struct kv_space *space, uint64_t from,
		      uint64_t n, uint32_t *ret_since)
{
	uint64_t found = 0;

	*ret_since = 0;
	for (uint64_t i = from; i < from + n; i++) {
		struct kv_miss miss = {.key = number(i)};

		kv_why_absent(s->cache, space, &miss, 1);
		found += miss.cause == KV_CAUSE_RATE;
		if (miss.cause == KV_CAUSE_UNSEEN)
			*ret_since = miss.since;
	}
	return found;
}

static struct kv_space *of_user(struct small *s, uint32_t uid)
{
	char name[20];
	struct kv_space *space;

	snprintf(name, sizeof(name), "u%u", uid);
	assert_int_equal(kv_space_create(s->cache, name, uid, 0, 0700, &space),
			 0);
	return space;
}

#define TABLE 65536u

/* A user that makes two million entries of a table of 65,536 pushes out none of
 * those of a user that has 1/64 of the table; nor do sixteen such users. */
static void a_flood_leaves_others_their_share(void **state)
{
	struct small *s = *state;
	struct kv_space *victim, *attacker[16];
	uint32_t since;

	s->config.why = 1;
	small_must_open(s);
	victim = of_user(s, 1000);
	attacker[0] = of_user(s, 2000);
	/* Causes of blocks that were saved again do not count. */
	for (uint64_t i = 0; i < 4 * TABLE; i++) {
		const struct kv_key key = number(i);

		note_all(s, victim, i, 1);
		kv_lock(s->cache);
		kv_cause_lift(s->cache, victim, &key);
		kv_unlock(s->cache);
	}
	note_all(s, victim, 0, TABLE / 64);
	note_all(s, attacker[0], 0, 2000000);
	assert_int_equal(count(s, victim, 0, TABLE / 64, &since), TABLE / 64);
	assert_true(count(s, attacker[0], 0, 2000000, &since) >
		    TABLE * 63 / 64 - 100);
	/* Each of two users has half of the table. */
	note_all(s, victim, 0, 10 * TABLE);
	note_all(s, attacker[0], 0, 10 * TABLE);
	assert_in_range(count(s, victim, 0, 10 * TABLE, &since),
			TABLE * 49 / 100, TABLE * 51 / 100);
	for (unsigned i = 1; i < 16; i++)
		attacker[i] = of_user(s, 2000 + i);
	for (unsigned i = 0; i < 16; i++)
		note_all(s, attacker[i], 0, 3 * TABLE);
	assert_in_range(count(s, victim, 9 * TABLE, TABLE, &since), TABLE / 20,
			TABLE / 14);
}

/* "Unseen" says since when, of the user's own entries. */
static void the_table_says_since_when_it_remembers(void **state)
{
	struct small *s = *state;
	struct kv_space *one, *other;
	uint32_t since;

	s->config.why = 1;
	small_must_open(s);
	one = of_user(s, 1000);
	other = of_user(s, 2000);
	s->cache->causes.since = 1;
	note_all(s, one, 0, 10);
	note_all(s, other, 0, 10 * TABLE);
	assert_int_equal(count(s, one, 100, 1, &since), 0);
	assert_int_equal(since, 1);
	assert_int_equal(count(s, other, 20 * TABLE, 1, &since), 0);
	assert_in_range(since, 2, (uint32_t)time(NULL));
}

static size_t logged(struct small *s, struct kv_space *space, uint32_t uid)
{
	struct kv_miss misses[100];
	uint64_t cursor = 0;
	size_t n = 0, sum = 0;

	while ((n = kv_misses(s->cache, space, &uid, &cursor, misses, 100))) {
		for (size_t i = 0; i < n; i++) {
			assert_int_equal(misses[i].uid, uid);
			assert_int_equal(misses[i].n, 9);
		}
		sum += n;
	}
	return sum;
}

static void the_log_is_shared_out_as_well(void **state)
{
	struct small *s = *state;
	struct kv_key key;

	small_must_open(s);
	for (unsigned i = 0; i < 4096; i++) {
		key = number(i);
		kv_missed(s->cache, s->space, 1000, &key, 1, 9);
	}
	for (unsigned i = 0; i < 100000; i++)
		kv_missed(s->cache, s->space, 2000, &key, 1, 9);
	assert_int_equal(logged(s, s->space, 1000), 4096);
	assert_int_equal(logged(s, s->space, 2000), 16384 - 4096);
	assert_int_equal(logged(s, s->space, 3000), 0);
	assert_int_equal(small_stats(s).causes[KV_CAUSE_UNSEEN], 104096);
	/* Present blocks are not logged, and a removed space logs nothing. */
	assert_int_equal(small_save(s, 1), 0);
	key = small_key(1);
	kv_missed(s->cache, s->space, 3000, &key, 1, 9);
	assert_int_equal(logged(s, s->space, 3000), 0);
}

/* ---- flushes, which ask whether a block was durable ---- */

static void flushes_know_of_evictions_without_a_log(void **state)
{
	struct small *s = *state;
	struct kv_key key = small_key(0);
	uint64_t cursor = 0;
	struct kv_miss miss;

	s->config.why = 0;
	small_must_open(s);
	small_save_durable(s, 0, 3, BYTES);
	assert_int_equal(small_demote(s, 0), 0);
	for (unsigned n = 3; small_stats(s).evicted_ssd < 100; n++)
		small_save_durable(s, n, n + 1, BYTES);
	assert_null(small_get(s, 0));
	assert_int_equal(kv_block_past(s->cache, s->space, &key), 1);
	/* A later save, refused or not durable, does not change the answer. */
	kv_lock(s->cache);
	kv_cause_note(s->cache, s->space, &key, KV_CAUSE_RATE);
	kv_unlock(s->cache);
	assert_int_equal(kv_block_past(s->cache, s->space, &key), 1);
	assert_int_equal(small_save(s, 0), 0);
	assert_int_equal(kv_block_past(s->cache, s->space, &key), 1);
	/* A removal by a user does. */
	assert_int_equal(small_remove_block(s, 0), 0);
	assert_int_equal(kv_block_past(s->cache, s->space, &key), 0);
	kv_missed(s->cache, s->space, 1000, &key, 0, 1);
	assert_int_equal(kv_misses(s->cache, s->space, NULL, &cursor, &miss, 1),
			 0);
	assert_int_equal(small_stats(s).causes[KV_CAUSE_REMOVED], 0);
}

#define TEST(name) \
	cmocka_unit_test_setup_teardown(name, set_up, small_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(random_changes_of_both_tiers),
		TEST(random_changes_without_an_ssd),
		TEST(a_flood_leaves_others_their_share),
		TEST(the_table_says_since_when_it_remembers),
		TEST(the_log_is_shared_out_as_well),
		TEST(flushes_know_of_evictions_without_a_log),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
