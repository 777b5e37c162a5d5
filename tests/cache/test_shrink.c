/* SPDX-License-Identifier: Apache-2.0 */
/* A store that is mounted with a smaller SSD tier, or without one. */
#include <sys/resource.h>
#include <sys/wait.h>

#include "cache/core/account.h"
#include "tests/cache/small_store.h"

#define BLOCK 120000u
#define LARGE 700000u
#define MANY 300u
#define LARGE_FROM 1000u
#define N_LARGE 20u

static size_t bytes_of(unsigned n)
{
	return n < LARGE_FROM ? BLOCK : LARGE;
}

static void pin(struct small *s, unsigned n)
{
	struct kv_block *block = small_get(s, n);

	must(block && kv_block_pin(s->cache, block, true) == 0);
	kv_block_put(s->cache, block);
}

/* Set the last use of block @n to @seconds after that of other blocks. */
static void used(struct small *s, unsigned n, uint32_t seconds)
{
	struct kv_block *block = small_get(s, n);

	must(block);
	kv_lock(s->cache);
	block->atime += seconds;
	block->flags |= BLOCK_USED;
	kv_unlock(s->cache);
	kv_block_put(s->cache, block);
}

/* Fill a tier of 64 MiB with blocks of two sizes.  Every fourth block is used
 * later than the rest. */
static void fill(struct small *s)
{
	s->config.ssd = 64 << 20;
	small_must_open(s);
	for (unsigned n = 0; n < MANY; n++)
		must(small_save_seed(s, n, n, BLOCK) == 0 &&
		     kv_space_sync(s->cache, s->space) == 0);
	for (unsigned n = LARGE_FROM; n < LARGE_FROM + N_LARGE; n++)
		must(small_save_seed(s, n, n, LARGE) == 0 &&
		     kv_space_sync(s->cache, s->space) == 0);
	for (unsigned n = 0; n < MANY; n += 4)
		used(s, n, 100);
}

static unsigned there(struct small *s, unsigned from, unsigned to,
		      unsigned step)
{
	unsigned found = 0;

	for (unsigned n = from; n < to; n += step)
		found += small_view(s, n, bytes_of(n)) == 0;
	return found;
}

static unsigned all_there(struct small *s)
{
	return there(s, 0, MANY, 1) +
	       there(s, LARGE_FROM, LARGE_FROM + N_LARGE, 1);
}

static bool is_pinned(struct small *s, unsigned n)
{
	struct kv_block *block = small_get(s, n);
	bool pinned;

	if (!block)
		return false;
	pinned = kv_block_stat(s->cache, block).pinned;
	kv_block_put(s->cache, block);
	return pinned && small_view(s, n, bytes_of(n)) == 0;
}

static bool config_has(struct small *s, const char *text)
{
	_cleanup_(kv_freep) char *config = kv_cache_describe(s->cache);

	return config && strstr(config, text);
}

static void the_least_valuable_blocks_go_whatever_their_file(void **state)
{
	struct small *s = *state;
	struct kv_cache_stats stats;
	unsigned n;

	fill(s);
	for (n = 1; n < MANY; n += 30)
		pin(s, n);
	pin(s, LARGE_FROM);
	pin(s, LARGE_FROM + N_LARGE - 1);
	must(small_close(s) == 0);

	s->config.ssd = 32 << 20;
	small_must_open(s);
	for (n = 1; n < MANY; n += 30)
		assert_true(is_pinned(s, n));
	assert_true(is_pinned(s, LARGE_FROM));
	assert_true(is_pinned(s, LARGE_FROM + N_LARGE - 1));
	assert_int_equal(there(s, 0, MANY, 4), MANY / 4);
	stats = small_stats(s);
	assert_in_range(stats.blocks, MANY / 4 + 12, MANY + N_LARGE - 1);
	assert_int_equal(stats.evicted_ssd, MANY + N_LARGE - stats.blocks);
	assert_true(config_has(s, " blocks evicted"));
	assert_int_equal(all_there(s), stats.blocks);
	/* Saves work in the smaller SSD tier. */
	for (n = 0; n < MANY; n++) {
		small_save_seed(s, 5000 + n, n, BLOCK);
		must(kv_space_sync(s->cache, s->space) == 0);
	}
	assert_true(is_pinned(s, 1));
	must(small_close(s) == 0);
	assert_int_equal(small_fsck(s, "--data"), 0);
	s->config.ssd_given = false;
	small_must_open(s);
	assert_int_equal(small_stats(s).ssd_total, 32 << 20);
	assert_true(is_pinned(s, 31) && is_pinned(s, LARGE_FROM));
}

/* Pin 24 MiB of blocks, half of them by a snapshot. */
static void pin_much(struct small *s)
{
	struct kv_pick picks[MANY / 2];
	size_t missing;

	fill(s);
	for (unsigned n = 0; n < MANY / 2; n++) {
		if (n % 2)
			pin(s, n);
		picks[n] = (struct kv_pick){small_key(n), n};
	}
	must(kv_snapshot_create(s->cache, s->space, "snap", picks, MANY / 2,
				&missing) == 0);
	must(kv_space_sync(s->cache, s->space) == 0);
	must(small_close(s) == 0);
}

static uint64_t size_in(const char *why)
{
	const char *need = strstr(why, "need ");

	must(need);
	return strtoull(need + 5, NULL, 10) << 20;
}

static void pinned_blocks_are_a_reason_to_refuse(void **state)
{
	struct small *s = *state;
	uint64_t need;

	pin_much(s);
	s->config.ssd = 24 << 20;
	assert_int_equal(small_open(s), -ENOSPC);
	assert_non_null(strstr(s->why, "ssd=24M is too small: pinned blocks "
				       "need "));
	need = size_in(s->why);
	assert_in_range(need, 25 << 20, 63 << 20);

	/* The refused mount has changed nothing. */
	s->config.ssd_given = false;
	small_must_open(s);
	assert_int_equal(small_stats(s).ssd_total, 64 << 20);
	assert_int_equal(all_there(s), MANY + N_LARGE);
	assert_true(config_has(s, "last_end=clean"));
	must(small_close(s) == 0);

	/* An SSD tier of 1 MiB less than the pinned blocks need is refused. */
	s->config.ssd_given = true;
	s->config.ssd = need - (1 << 20);
	assert_int_equal(small_open(s), -ENOSPC);
	s->config.ssd = need;
	small_must_open(s);
	for (unsigned n = 0; n < MANY / 2; n++)
		assert_true(is_pinned(s, n));
	must(small_close(s) == 0);
	assert_int_equal(small_fsck(s, "--data"), 0);
}

static void pinned_blocks_go_if_the_user_says_so(void **state)
{
	struct small *s = *state;
	unsigned left;

	pin_much(s);
	s->config.ssd = 24 << 20;
	s->config.ssd_evict = true;
	small_must_open(s);
	left = all_there(s);
	assert_int_equal(left, small_stats(s).blocks);
	assert_int_equal(there(s, MANY / 2, MANY, 1), 0);
	/* The pinned blocks that were used last are still there. */
	assert_int_equal(there(s, 0, MANY / 2, 4), (MANY / 2 + 3) / 4);
	for (unsigned n = 0; n < MANY / 2; n += 4)
		assert_true(is_pinned(s, n));
	must(small_close(s) == 0);
	s->config.ssd_evict = false;
	small_must_open(s);
	assert_int_equal(all_there(s), left);
	must(small_close(s) == 0);
	assert_int_equal(small_fsck(s, "--data"), 0);
}

/* ---- reserves in a smaller tier ---- */

static void what_a_reserve_has_left_can_be_read(void **state)
{
	const struct kv_quota quota = {.reserve_ssd = 40 << 20};
	struct small *s = *state;
	struct kv_open_charge *charge;
	struct kv_account *account;
	struct kv_block *block;

	fill(s);
	must(kv_space_set_quota(s->cache, s->space, NULL, &quota) == 0);
	must(small_close(s) == 0);
	s->config.ssd = 32 << 20;
	small_must_open(s);
	account = kv_account_get(kv_cache_accounts(s->cache), 4711);
	block = small_get(s, 0);
	assert_non_null(block);
	assert_int_equal(kv_open_charge(s->cache, block, account, &charge), 0);
	kv_open_credit(s->cache, charge);
	kv_account_put(account);
	kv_block_put(s->cache, block);
	assert_true(s->space->in[SSD].guaranteed > 0);
}

/* Blocks that no reserve covers are evicted first. */
static void reserved_blocks_stay(void **state)
{
	const struct kv_quota quota = {.reserve_ssd = 8 << 20};
	struct small *s = *state;
	struct kv_space *other;

	fill(s);
	must(kv_space_create(s->cache, "other", 7, 7, 0755, &other) == 0);
	must(kv_space_set_quota(s->cache, other, NULL, &quota) == 0);
	s->space = other;
	for (unsigned n = 0; n < 40; n++)
		must(small_save_seed(s, n, n, BLOCK) == 0 &&
		     kv_space_sync(s->cache, other) == 0);
	for (unsigned n = 0; n < 40; n++) {
		struct kv_block *block = small_get(s, n);

		kv_lock(s->cache);
		block->atime -= 1000;
		block->flags |= BLOCK_USED;
		kv_unlock(s->cache);
		kv_block_put(s->cache, block);
	}
	must(small_close(s) == 0);
	s->config.ssd = 32 << 20;
	small_must_open(s);
	s->space = kv_space_find(s->cache, "other");
	assert_int_equal(there(s, 0, 40, 1), 40);
}

/* ---- mounts that are killed while they shrink the tier ---- */

static void a_kill_meanwhile_costs_no_pinned_block(void **state)
{
	struct small *s = *state;
	unsigned after_us = 200, rounds = 0, killed = 0;

	fill(s);
	for (unsigned n = 1; n < MANY; n += 10)
		pin(s, n);
	must(small_close(s) == 0);
	s->config.ssd = 32 << 20;
	/* Kill mounts while they shrink the tier, until one ends before its
	 * kill. */
	for (bool ended = false; !ended && rounds < 400; rounds++) {
		int status;
		pid_t child = fork();

		if (child == 0) {
			/* Mount at the lowest priority, so that most kills come
			 * before the mount has ended. */
			(void)setpriority(PRIO_PROCESS, 0, 19);
			small_open(s);
			_exit(s->cache ? 0 : 1);
		}
		usleep(after_us);
		after_us += after_us / 20;
		if (waitpid(child, &status, WNOHANG) == 0) {
			kill(child, SIGKILL);
			waitpid(child, &status, 0);
		}
		ended = WIFEXITED(status);
		killed += !ended;
		must(!ended || WEXITSTATUS(status) == 0);
		must(small_fsck(s, "") == 0);
	}
	assert_true(killed > 10);
	small_must_open(s);
	for (unsigned n = 1; n < MANY; n += 10)
		assert_true(is_pinned(s, n));
	assert_int_equal(all_there(s), small_stats(s).blocks);
	must(small_close(s) == 0);
	assert_int_equal(small_fsck(s, "--data"), 0);
}

/* ---- mounts without the SSD tier ---- */

static void without_the_tier_it_waits_as_it_is(void **state)
{
	struct small *s = *state;
	struct kv_block *block;

	fill(s);
	pin(s, 7);
	must(small_close(s) == 0);

	s->config.ssd = 0;
	small_must_open(s);
	assert_int_equal(small_stats(s).ssd_total, 0);
	assert_int_equal(small_remove_block(s, 1), 0);
	pin(s, 2);
	block = small_get(s, 7);
	must(kv_block_pin(s->cache, block, false) == 0);
	kv_block_put(s->cache, block);
	must(kv_space_chown(s->cache, s->space, 11, 12, 0700) == 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(small_save_seed(s, 2000, 2000, BLOCK), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), -EOPNOTSUPP);
	assert_int_equal(small_view(s, 2000, BLOCK), 0);
	must(small_close(s) == 0);

	s->config.ssd_given = false;
	small_must_open(s);
	assert_int_equal(small_stats(s).ssd_total, 64 << 20);
	assert_int_equal(small_view(s, 1, BLOCK), -ENOENT);
	assert_int_equal(all_there(s), MANY + N_LARGE - 1);
	assert_true(is_pinned(s, 2) && !is_pinned(s, 7));
	assert_int_equal(kv_space_stat(s->cache, s->space).uid, 11);
	assert_int_equal(kv_space_stat(s->cache, s->space).mode, 0700);
	assert_int_equal(small_view(s, 2000, BLOCK), -ENOENT);
	must(kv_space_clear(s->cache, s->space) == 0);
	must(small_close(s) == 0);
	assert_int_equal(small_fsck(s, "--data"), 0);
}

static void what_is_cleared_without_the_tier_stays_away(void **state)
{
	struct small *s = *state;

	fill(s);
	must(small_close(s) == 0);
	s->config.ssd = 0;
	small_must_open(s);
	must(kv_space_clear(s->cache, s->space) == 0);
	must(small_close(s) == 0);
	s->config.ssd_given = false;
	small_must_open(s);
	assert_int_equal(small_stats(s).blocks, 0);
	must(small_close(s) == 0);
	assert_int_equal(small_fsck(s, ""), 0);
}

static int set_up(void **state)
{
	struct small *s = calloc(1, sizeof(*s));

	small_new(s);
	*state = s;
	return 0;
}

#define TEST(x) cmocka_unit_test_setup_teardown(x, set_up, small_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(the_least_valuable_blocks_go_whatever_their_file),
		TEST(pinned_blocks_are_a_reason_to_refuse),
		TEST(pinned_blocks_go_if_the_user_says_so),
		TEST(what_a_reserve_has_left_can_be_read),
		TEST(reserved_blocks_stay),
		TEST(a_kill_meanwhile_costs_no_pinned_block),
		TEST(without_the_tier_it_waits_as_it_is),
		TEST(what_is_cleared_without_the_tier_stays_away),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
