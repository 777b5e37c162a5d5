/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_expiry.c - blocks that were unused for the ttl of their space or user; the
 * clock of last uses over restarts, a crash and jumps of the wall clock.
 */
#include <sys/wait.h>

#include "cache/core/causes.h"
#include "cache/space/space.h"
#include "tests/cache/tiers.h"

#define HOUR 3600u
#define USER 1u

static void set_ttl(struct tiers *t, uint64_t of_space, uint64_t of_user)
{
	const struct kv_quota space = {.ttl = of_space},
			      user = {.ttl = of_user};

	assert_int_equal(kv_space_set_quota(t->cache, t->space, NULL, &space),
			 0);
	assert_int_equal(kv_tenant_set_quota(t->cache, USER, NULL, &user), 0);
}

/* Let @seconds pass, and all blocks expire that must. */
static void later(struct tiers *t, uint32_t seconds)
{
	kv_lock(t->cache);
	t->cache->uses.base += seconds;
	kv_blocks_expire(t->cache);
	kv_unlock(t->cache);
}

static void save_durable(struct tiers *t, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		tiers_must_save(t, t->space, i, 0);
	assert_int_equal(kv_space_sync(t->cache, t->space), 0);
}

static bool is_there(struct tiers *t, unsigned chain)
{
	return tiers_of(t, t->space, chain, 0) != 0;
}

static enum kv_cause cause_of(struct tiers *t, unsigned chain,
			      struct kv_miss *ret_miss)
{
	*ret_miss = (struct kv_miss){.key = tiers_key(chain, 0)};
	kv_why_absent(t->cache, t->space, ret_miss, 1);
	return ret_miss->cause;
}

static void a_block_unused_for_its_ttl_leaves_both_tiers(void **state)
{
	struct tiers *t = *state;
	struct kv_space_info info;
	struct kv_miss miss;

	save_durable(t, 3);
	later(t, 10 * HOUR);
	assert_true(is_there(t, 0));
	set_ttl(t, 11 * HOUR, 0);
	later(t, HOUR - 60);
	assert_int_equal(tiers_use(t, t->space, 1, 1), 1);
	assert_true(is_there(t, 0));
	later(t, 120);
	assert_false(is_there(t, 0));
	assert_true(is_there(t, 1));
	assert_false(is_there(t, 2));
	assert_int_equal(cause_of(t, 0, &miss), KV_CAUSE_EXPIRED);
	assert_in_range(miss.idle, 11 * HOUR, 11 * HOUR + 70);
	info = kv_space_stat(t->cache, t->space);
	assert_int_equal(info.blocks, 1);
	assert_int_equal(tiers_stats(t).expired, 2);
	assert_int_equal(tiers_stats(t).removed, 0);
	/* A restart does not bring the expired block back. */
	tiers_reopen(t);
	assert_false(is_there(t, 0));
	assert_true(is_there(t, 1));
	/* The block may be saved again. */
	tiers_must_save(t, t->space, 0, 0);
	assert_int_equal(cause_of(t, 0, &miss), KV_CAUSE_NONE);
}

static void a_block_in_memory_only_expires(void **state)
{
	struct tiers *t = *state;
	struct kv_miss miss;

	t->config.why = 1u << 16;
	tiers_without_ssd(t);
	tiers_must_save(t, t->space, 0, 0);
	set_ttl(t, HOUR, 0);
	later(t, HOUR + 2);
	assert_int_equal(cause_of(t, 0, &miss), KV_CAUSE_EXPIRED);
}

static void the_smaller_ttl_of_space_and_user_holds(void **state)
{
	struct tiers *t = *state;

	save_durable(t, 1);
	set_ttl(t, 3 * HOUR, 2 * HOUR);
	later(t, 2 * HOUR + 2);
	assert_false(is_there(t, 0));
	save_durable(t, 1);
	set_ttl(t, 3 * HOUR, 4 * HOUR);
	later(t, 3 * HOUR + 2);
	assert_false(is_there(t, 0));
	save_durable(t, 1);
	set_ttl(t, 0, 4 * HOUR);
	later(t, 4 * HOUR - 2);
	assert_true(is_there(t, 0));
	later(t, 4);
	assert_false(is_there(t, 0));
	assert_int_equal(kv_tenant_stat(t->cache, USER).quota.ttl, 4 * HOUR);
}

static void a_new_owner_s_ttl_holds_in_the_spaces_that_it_gets(void **state)
{
	const struct kv_quota hour = {.ttl = HOUR};
	struct tiers *t = *state;

	save_durable(t, 1);
	assert_int_equal(kv_tenant_set_quota(t->cache, 2, NULL, &hour), 0);
	/* Two passes find no block that may expire. */
	later(t, 2 * HOUR);
	later(t, 2 * HOUR);
	assert_true(is_there(t, 0));
	assert_int_equal(kv_space_chown(t->cache, t->space, 2, 2, 0700), 0);
	later(t, HOUR + 2);
	assert_false(is_there(t, 0));
}

static void what_is_held_stays_and_is_used_until_it_is_let_go(void **state)
{
	struct tiers *t = *state;
	const struct kv_pick listed = {.key = tiers_key(2, 0)};
	size_t missing;
	struct kv_snapshot_info info;
	struct kv_acquire *lease;
	struct kv_block *open, *pinned;
	struct kv_fill *fill;

	save_durable(t, 5);
	set_ttl(t, HOUR, 0);
	lease = tiers_acquire(t, t->space, 0, 1);
	pinned = tiers_get(t, t->space, 1, 0);
	assert_int_equal(kv_block_pin(t->cache, pinned, true), 0);
	assert_int_equal(kv_block_demote(t->cache, pinned), 0);
	kv_block_put(t->cache, pinned);
	assert_int_equal(kv_snapshot_create(t->cache, t->space, "s", &listed, 1,
					    &missing),
			 0);
	open = tiers_get(t, t->space, 3, 0);
	assert_int_equal(tiers_begin(t, t->space, 9, 0, &fill), 0);
	later(t, 2 * HOUR);
	for (unsigned i = 0; i < 4; i++)
		assert_true(is_there(t, i));
	assert_false(is_there(t, 4));
	assert_int_equal(tiers_seal(t, fill, 9, 0), 0);
	later(t, HOUR - 2);
	assert_true(is_there(t, 9));
	tiers_release(t, lease);
	kv_block_put(t->cache, open);
	pinned = tiers_get(t, t->space, 1, 0);
	assert_int_equal(kv_block_pin(t->cache, pinned, false), 0);
	kv_block_put(t->cache, pinned);
	assert_int_equal(kv_snapshot_find(t->cache, t->space, "s", &info), 0);
	assert_int_equal(kv_snapshot_drop(t->cache, info.id), 0);
	later(t, 4);
	/* The end of a lease is a use, that of a pin is none. */
	assert_true(is_there(t, 0));
	for (unsigned i = 1; i < 4; i++)
		assert_false(is_there(t, i));
	later(t, HOUR);
	assert_false(is_there(t, 0));
}

static void a_flush_of_an_expired_durable_block_succeeds(void **state)
{
	struct tiers *t = *state;
	struct kv_miss miss = {.key = tiers_key(0, 0)};

	save_durable(t, 1);
	set_ttl(t, HOUR, 0);
	later(t, HOUR + 2);
	kv_lock(t->cache);
	assert_int_equal(kv_cause_find(t->cache, t->space, &miss), 1);
	kv_unlock(t->cache);
}

static void only_time_in_the_mount_counts(void **state)
{
	struct tiers *t = *state;
	struct kv_block_info before, after;
	struct kv_key key = tiers_key(0, 0);

	save_durable(t, 1);
	set_ttl(t, 2 * HOUR, 0);
	later(t, HOUR);
	before = (struct kv_block_info){0};
	assert_int_equal(kv_block_stat_key(t->cache, t->space, &key, &before),
			 0);
	tiers_reopen(t);
	assert_int_equal(kv_block_stat_key(t->cache, t->space, &key, &after),
			 0);
	assert_in_range(after.atime_ns / 1000000000,
			(uint64_t)time(NULL) - HOUR - 60,
			(uint64_t)time(NULL) - HOUR + 2);
	later(t, HOUR - 60);
	tiers_reopen(t);
	assert_true(is_there(t, 0));
	later(t, 62);
	assert_false(is_there(t, 0));
}

/* Mount the store in a process that dies. */
static void crash(struct tiers *t)
{
	pid_t pid;

	kv_cache_close(t->cache);
	pid = fork();
	if (pid == 0) {
		tiers_open(t);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	tiers_open(t);
}

static void after_a_crash_blocks_count_as_used_at_the_mount(void **state)
{
	struct tiers *t = *state;

	save_durable(t, 1);
	set_ttl(t, 2 * HOUR, 0);
	later(t, 2 * HOUR - 60);
	tiers_must_save(t, t->space, 1, 0);
	crash(t);
	later(t, HOUR);
	tiers_reopen(t);
	later(t, HOUR - 60);
	assert_true(is_there(t, 0));
	later(t, 62);
	assert_false(is_there(t, 0));
}

static void a_read_only_mount_expires_nothing(void **state)
{
	struct tiers *t = *state;

	save_durable(t, 1);
	set_ttl(t, HOUR, 0);
	t->config.read_only = true;
	kv_cache_close(t->cache);
	tiers_open(t);
	later(t, 2 * HOUR);
	assert_true(is_there(t, 0));
}

static void many_blocks_expire_in_one_pass(void **state)
{
	struct tiers *t = *state;

	for (unsigned i = 0; i < 1000; i++)
		tiers_must_save(t, t->space, i, 0);
	tiers_quiet(t);
	set_ttl(t, HOUR, 0);
	later(t, HOUR + 2);
	/* The housekeeper may remove some of the blocks. */
	while (kv_space_stat(t->cache, t->space).blocks)
		usleep(1000);
	assert_int_equal(kv_space_stat(t->cache, t->space).bytes_ssd, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_block_unused_for_its_ttl_leaves_both_tiers),
		TEST(a_block_in_memory_only_expires),
		TEST(the_smaller_ttl_of_space_and_user_holds),
		TEST(a_new_owner_s_ttl_holds_in_the_spaces_that_it_gets),
		TEST(what_is_held_stays_and_is_used_until_it_is_let_go),
		TEST(a_flush_of_an_expired_durable_block_succeeds),
		TEST(only_time_in_the_mount_counts),
		TEST(after_a_crash_blocks_count_as_used_at_the_mount),
		TEST(a_read_only_mount_expires_nothing),
		TEST(many_blocks_expire_in_one_pass),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
