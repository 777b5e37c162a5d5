/* SPDX-License-Identifier: Apache-2.0 */
/* The sums and limits of a user, which cover all its spaces. */
#include <fcntl.h>

#include "cache/core/ledger.h"
#include "cache/ssd/ssd.h"
#include "tests/cache/tiers.h"

#define MIB (1ull << 20)
#define USER 1 /* uid that owns space "a" */

static void set_quota(struct tiers *t, uint32_t uid, struct kv_quota quota)
{
	assert_int_equal(kv_tenant_set_quota(t->cache, uid, NULL, &quota), 0);
}

static struct kv_space *of_user(struct tiers *t, unsigned n)
{
	static const char *const names[] = {"a", "b", "c", "d", "e"};

	return tiers_space(t, names[n % 5], USER, PREFIX_LAYOUT);
}

/* Check that the sums of a user are those of its spaces. */
static void check_sums(struct tiers *t, uint32_t uid)
{
	const struct kv_tenant *tenant;
	uint64_t dram = 0, ssd = 0, busy = 0, pinned = 0, due = 0;

	kv_lock(t->cache);
	tenant = kv_tenant_find(t->cache, uid);
	for (uint32_t i = 0; i < t->cache->spaces.n; i++) {
		const struct kv_space *space = t->cache->spaces.sorted[i];

		if (space->tenant != tenant)
			continue;
		assert_int_equal(space->uid, uid);
		dram += space->in[DRAM].bytes;
		ssd += space->in[SSD].bytes;
		busy += space->in[DRAM].fast;
		pinned += space->in[SSD].fast;
		due += kv_due(space, DRAM);
	}
	assert_int_equal(tenant->in[DRAM].bytes, dram);
	assert_int_equal(tenant->in[SSD].bytes, ssd);
	assert_int_equal(tenant->in[DRAM].fast, busy);
	assert_int_equal(tenant->in[SSD].fast, pinned);
	assert_int_equal(tenant->in[DRAM].due, due);
	kv_arena_check_locked(t->cache);
	kv_unlock(t->cache);
}

static void a_quota_of_dram_holds_however_many_spaces_there_are(void **state)
{
	struct tiers *t = *state;
	struct kv_space *other = tiers_space(t, "other", 2, NULL);

	set_quota(t, USER, (struct kv_quota){.quota_dram = 2 * MIB});
	for (unsigned i = 0; i < 100; i++) {
		tiers_must_save(t, of_user(t, i), i, 0);
		tiers_must_save(t, other, i, 0);
		assert_true(kv_tenant_stat(t->cache, USER).bytes_dram <=
			    2 * MIB);
	}
	assert_true(tiers_of(t, of_user(t, 99), 99, 0) & KV_TIER_DRAM);
	assert_int_equal(tiers_of(t, of_user(t, 0), 0, 0), KV_TIER_SSD);
	assert_true(kv_tenant_stat(t->cache, 2).bytes_dram >= 100 * BYTES);
	check_sums(t, USER);
	check_sums(t, 2);
}

static void a_quota_of_ssd_holds_however_many_spaces_there_are(void **state)
{
	struct tiers *t = *state;

	set_quota(t, USER, (struct kv_quota){.quota_ssd = 2 * MIB});
	for (unsigned i = 0; i < 100; i++) {
		tiers_must_save(t, of_user(t, i), i, 0);
		assert_true(kv_tenant_stat(t->cache, USER).bytes_ssd <=
			    2 * MIB);
	}
	tiers_quiet(t);
	assert_true(kv_tenant_stat(t->cache, USER).bytes_ssd > MIB);
	check_sums(t, USER);
}

static void a_block_larger_than_the_quota_drives_nothing_out(void **state)
{
	struct tiers *t = *state;

	for (unsigned i = 0; i < 10; i++)
		tiers_must_save(t, of_user(t, i), i, 0);
	tiers_quiet(t);
	set_quota(t, USER, (struct kv_quota){.quota_dram = BYTES / 2});
	while (kv_tenant_stat(t->cache, USER).bytes_dram > BYTES / 2)
		usleep(1000);
	assert_int_equal(tiers_save(t, t->space, 10, 0), -ENOSPC);
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(tiers_of(t, of_user(t, i), i, 0), KV_TIER_SSD);
}

static void a_smaller_quota_is_met_soon_in_all_spaces(void **state)
{
	struct tiers *t = *state;
	struct kv_tenant_info info;

	for (unsigned i = 0; i < 100; i++)
		tiers_must_save(t, of_user(t, i), i, 0);
	tiers_quiet(t);
	set_quota(t, USER,
		  (struct kv_quota){.quota_dram = MIB, .quota_ssd = 2 * MIB});
	do {
		usleep(1000);
		info = kv_tenant_stat(t->cache, USER);
	} while (info.bytes_dram > MIB || info.bytes_ssd > 2 * MIB);
	assert_int_equal(info.spaces, 5);
	assert_true(info.blocks > 0);
	check_sums(t, USER);
}

static void a_space_that_is_given_away_counts_for_its_new_owner(void **state)
{
	struct tiers *t = *state;

	for (unsigned i = 0; i < 20; i++)
		tiers_must_save(t, of_user(t, i), i, 0);
	tiers_quiet(t);
	set_quota(t, 7, (struct kv_quota){.quota_dram = 200000});
	assert_int_equal(kv_space_chown(t->cache, of_user(t, 1), 7, 7, 0755),
			 0);
	check_sums(t, USER);
	check_sums(t, 7);
	assert_int_equal(kv_tenant_stat(t->cache, USER).spaces, 4);
	assert_int_equal(kv_tenant_stat(t->cache, 7).spaces, 1);
	assert_true(kv_tenant_stat(t->cache, 7).bytes_ssd > 0);
	while (kv_tenant_stat(t->cache, 7).bytes_dram > 200000)
		usleep(1000);
}

static void what_a_removed_space_still_holds_is_counted_to_the_end(void **state)
{
	struct tiers *t = *state;
	struct kv_space *b = of_user(t, 1);
	struct kv_fill *fill;

	assert_int_equal(tiers_begin(t, b, 0, 0, &fill), 0);
	assert_int_equal(kv_space_remove(t->cache, b), 0);
	check_sums(t, USER);
	assert_int_equal(kv_tenant_stat(t->cache, USER).spaces, 1);
	assert_true(kv_tenant_find(t->cache, USER)->in[DRAM].coming > 0);
	kv_fill_drop(t->cache, fill);
	assert_int_equal(kv_tenant_find(t->cache, USER)->in[DRAM].coming, 0);
	check_sums(t, USER);
}

static void a_rate_is_shared_by_all_spaces(void **state)
{
	struct tiers *t = *state;
	const uint64_t rate = 500000, began = kv_now_ns();
	unsigned n = 0;
	int r;

	set_quota(t, USER, (struct kv_quota){.rate_put = rate});
	while ((r = tiers_save(t, of_user(t, n), n, 0)) == 0)
		n++;
	assert_int_equal(r, -EAGAIN);
	assert_true(n >= 5);
	/* Saves may exceed the rate by a second's worth of bytes, and by one
	 * block. */
	assert_true((n - 1) * (double)BYTES <
		    (double)rate * (1 + (double)(kv_now_ns() - began) / 1e9));
	assert_int_equal(tiers_save(t, tiers_space(t, "x", 2, NULL), 0, 0), 0);
	while ((r = tiers_save(t, of_user(t, n), n, 0)) == -EAGAIN)
		usleep(10000);
	assert_int_equal(r, 0);
}

static void reserves_of_a_user_and_his_spaces_overlap(void **state)
{
	struct tiers *t = *state;
	struct kv_quota quota = {.reserve_dram = 40 * MIB};
	struct kv_space *x = tiers_space(t, "x", 2, NULL);

	set_quota(t, USER, quota);
	quota.reserve_dram = 30 * MIB;
	assert_int_equal(kv_space_set_quota(t->cache, t->space, NULL, &quota),
			 0);
	/* This space has 30 of the 40 MiB that are guaranteed to the user; 24
	 * MiB of DRAM are left for the guarantees of other users. */
	assert_int_equal(kv_tenant_set_quota(t->cache, 2, NULL, &quota),
			 -ENOSPC);
	assert_int_equal(kv_space_set_quota(t->cache, x, NULL, &quota),
			 -ENOSPC);
	quota.reserve_dram = 24 * MIB;
	set_quota(t, 2, quota);
	assert_int_equal(kv_space_set_quota(t->cache, x, NULL, &quota), 0);
	quota.reserve_dram = 41 * MIB;
	assert_int_equal(kv_space_set_quota(t->cache, t->space, NULL, &quota),
			 -ENOSPC);
	check_sums(t, USER);
	check_sums(t, 2);
	/* With half of the memory, each guarantee is halved. */
	t->config.dram = 32 * MIB;
	tiers_reopen(t);
	assert_int_equal(kv_tenant_find(t->cache, USER)->in[DRAM].guaranteed,
			 20 * MIB);
	assert_int_equal(t->space->in[DRAM].guaranteed, 15 * MIB);
	assert_int_equal(kv_tenant_find(t->cache, 2)->in[DRAM].guaranteed,
			 12 * MIB);
	check_sums(t, USER);
}

static void pins_leave_what_a_user_is_guaranteed(void **state)
{
	struct tiers *t = *state;
	struct kv_block *block;
	struct kv_space *x;
	unsigned n = 0;
	int r = 0;

	tiers_without_ssd(t);
	x = tiers_space(t, "x", 2, PREFIX_LAYOUT);
	set_quota(t, USER, (struct kv_quota){.reserve_dram = 48 * MIB});
	while (r == 0 && n < 700) {
		tiers_must_save(t, x, n, 0);
		block = tiers_get(t, x, n++, 0);
		r = block ? kv_block_pin(t->cache, block, true) : 0;
		if (block)
			kv_block_put(t->cache, block);
	}
	assert_int_equal(r, -ENOSPC);
	assert_true(tiers_stats(t).pinned_bytes <= 16 * MIB);
	check_sums(t, USER);
	check_sums(t, 2);
}

static void nor_do_they_take_it_on_ssd(void **state)
{
	struct tiers *t = *state;
	struct kv_space *x = tiers_space(t, "x", 2, PREFIX_LAYOUT);
	const uint64_t rest = 10 * MIB;
	struct kv_quota quota = {.reserve_ssd =
					 t->cache->ssd.file_budget - rest};
	struct kv_block *block;
	unsigned n = 0;
	int r = 0;

	set_quota(t, USER, quota);
	for (; r == 0 && n < 700; n++) {
		tiers_must_save(t, x, n, 0);
		block = tiers_get(t, x, n, 0);
		r = kv_block_pin(t->cache, block, true);
		kv_block_put(t->cache, block);
	}
	assert_int_equal(r, -ENOSPC);
	assert_true(n > 30);
	assert_true(t->cache->ssd.pinned <= rest);
	check_sums(t, 2);
}

#define WORK \
	24 /* number of USER's chains in two spaces, each of DEPTH blocks */
#define DEPTH 16
/* number of blocks that another user saves between two uses by USER */
#define FLOOD 40

static struct kv_space *space_of(struct tiers *t, unsigned chain)
{
	return of_user(t, chain % 2);
}

static unsigned replay(struct tiers *t, struct kv_space *flood)
{
	unsigned hits = 0, n = 0;

	for (unsigned i = 0; i < 40 * FLOOD; i++)
		tiers_must_save(t, flood, 1000 + n++, 0);
	for (unsigned chain = 0; chain < WORK; chain++)
		for (unsigned i = 0; i < DEPTH; i++)
			tiers_must_save(t, space_of(t, chain), chain, i);
	if (t->cache->ssd.on)
		tiers_quiet(t);
	for (unsigned i = 0; i < 3 * WORK; i++) {
		unsigned chain = i % WORK;

		for (unsigned j = 0; j < FLOOD; j++)
			tiers_must_save(t, flood, 1000 + n++, 0);
		hits += tiers_use(t, space_of(t, chain), chain, DEPTH);
		for (unsigned j = 0; j < DEPTH; j++)
			if (!tiers_of(t, space_of(t, chain), chain, j))
				(void)tiers_save(t, space_of(t, chain), chain,
						 j);
	}
	return hits;
}

static void a_flood_costs_a_users_reserve_in_dram_no_hits(void **state)
{
	struct tiers *t = *state;

	tiers_without_ssd(t);
	set_quota(t, USER, (struct kv_quota){.reserve_dram = 46 * MIB});
	assert_true(replay(t, tiers_space(t, "x", 2, PREFIX_LAYOUT)) >=
		    3 * WORK * DEPTH * 98 / 100);
	check_sums(t, USER);
}

static void without_one_it_costs_many(void **state)
{
	struct tiers *t = *state;

	tiers_without_ssd(t);
	assert_true(replay(t, tiers_space(t, "x", 2, PREFIX_LAYOUT)) <
		    3 * WORK * DEPTH * 90 / 100);
}

static void a_flood_costs_a_users_reserve_on_ssd_no_hits(void **state)
{
	struct tiers *t = *state;

	set_quota(t, USER,
		  (struct kv_quota){.quota_dram = 4 * MIB,
				    .reserve_dram = 4 * MIB,
				    .reserve_ssd = 46 * MIB});
	set_quota(t, 2, (struct kv_quota){.quota_dram = 8 * MIB});
	assert_true(replay(t, tiers_space(t, "x", 2, PREFIX_LAYOUT)) >=
		    3 * WORK * DEPTH * 98 / 100);
	check_sums(t, USER);
}

/* ---- STORE/tenants ---- */

static void quotas_of_users_persist(void **state)
{
	struct tiers *t = *state;
	const struct kv_quota quota = {1 * MIB, 2 * MIB, 3 * MIB, 4 * MIB,
				       5 * MIB};
	const struct kv_quota none = {0};
	struct kv_tenant_info info;
	char path[96];

	set_quota(t, USER, quota);
	set_quota(t, 12345, (struct kv_quota){.quota_ssd = 7 * MIB});
	set_quota(t, 6, quota);
	set_quota(t, 6, none);
	tiers_reopen(t);
	info = kv_tenant_stat(t->cache, USER);
	assert_memory_equal(&info.quota, &quota, sizeof(quota));
	info = kv_tenant_stat(t->cache, 12345);
	assert_int_equal(info.quota.quota_ssd, 7 * MIB);
	assert_int_equal(info.spaces, 0);
	info = kv_tenant_stat(t->cache, 6);
	assert_memory_equal(&info.quota, &none, sizeof(none));
	set_quota(t, USER, none);
	set_quota(t, 12345, none);
	snprintf(path, sizeof(path), "%s/tenants", t->path);
	assert_int_not_equal(access(path, F_OK), 0);
	tiers_reopen(t);
	assert_int_equal(kv_tenant_stat(t->cache, 12345).quota.quota_ssd, 0);
}

/* Make a space of @uid with a layout of about 40 KB. Return 0 or -errno. */
static int large_space(struct tiers *t, uint32_t uid, unsigned n)
{
	static char json[50000];
	struct kv_space *space;
	char name[32];
	size_t at = 0;
	int r;

	at += (size_t)sprintf(json, "{\"tensors\":[");
	for (unsigned i = 0; i < 180; i++)
		at += (size_t)sprintf(json + at,
				      "%s{\"name\":\"%0180u\",\"dtype\":\"U8\","
				      "\"shape\":[1]}",
				      i ? "," : "", i);
	at += (size_t)sprintf(json + at, "]}");
	snprintf(name, sizeof(name), "large-%u-%u", uid, n);
	r = kv_space_create(t->cache, name, uid, uid, 0700, &space);
	if (r < 0)
		return r;
	r = kv_space_set_layout(t->cache, space, 0, json, at);
	if (r < 0)
		assert_int_equal(kv_space_remove(t->cache, space), 0);
	return r;
}

/* Make spaces of @uid with large layouts until one is refused.  Return the
 * number of the space that was refused. */
static unsigned large_spaces(struct tiers *t, uint32_t uid, unsigned first)
{
	unsigned n = first;
	int r;

	while ((r = large_space(t, uid, n)) == 0)
		n++;
	assert_int_equal(r, -ENOSPC);
	return n - first;
}

static void remove_large(struct tiers *t, uint32_t uid, unsigned n)
{
	char name[32];

	while (n > 0) {
		snprintf(name, sizeof(name), "large-%u-%u", uid, --n);
		assert_int_equal(kv_space_remove(t->cache,
						 kv_space_find(t->cache, name)),
				 0);
	}
}

/* A quarter of the index of 3 MiB is for layouts.  A single user may have half
 * of the part of that quarter that root's layouts do not use. */
static void layouts_leave_the_index_to_blocks_and_to_others(void **state)
{
	struct tiers *t = *state;
	struct kv_space *space;
	unsigned n, others;

	for (unsigned i = 0; i < 200; i++)
		tiers_must_save(t, of_user(t, i), i, 0);
	tiers_quiet(t);
	n = large_spaces(t, 1001, 0);
	assert_in_range(n, 5, 8);
	others = large_spaces(t, 1002, 0);
	assert_in_range(others, 2, n - 1);
	assert_int_equal(large_space(t, 0, 0), 0);
	tiers_quiet(t);
	for (unsigned i = 0; i < 200; i++)
		assert_true(tiers_of(t, of_user(t, i), i, 0) & KV_TIER_SSD);
	tiers_reopen(t);
	assert_int_equal(large_space(t, 1001, n), -ENOSPC);
	remove_large(t, 0, 1);
	remove_large(t, 1002, others);
	space = kv_space_find(t->cache, "large-1001-0");
	assert_int_equal(kv_space_chown(t->cache, space, 1003, 0, 0700), 0);
	assert_int_equal(large_space(t, 1001, n), 0);
}

static void a_damaged_record_costs_only_its_own_user_his_quota(void **state)
{
	struct tiers *t = *state;
	uint32_t damaged = 1;
	unsigned left = 0;
	char path[96];
	int fd;

	for (uint32_t uid = 100; uid < 110; uid++)
		set_quota(t, uid, (struct kv_quota){.quota_ssd = MIB});
	kv_cache_close(t->cache);
	snprintf(path, sizeof(path), "%s/tenants", t->path);
	fd = open(path, O_RDWR);
	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, &damaged, 4, 3 * 56 + 8), 4);
	close(fd);
	tiers_open(t);
	for (uint32_t uid = 100; uid < 110; uid++)
		left += kv_tenant_stat(t->cache, uid).quota.quota_ssd == MIB;
	assert_int_equal(left, 9);
}

static void too_many_users_are_refused(void **state)
{
	struct tiers *t = *state;
	struct kv_quota quota = {.quota_ssd = MIB};
	int r;

	kv_lock(t->cache);
	for (uint32_t uid = 1000; uid < 1000 + 4096; uid++)
		kv_tenant_make(t->cache, uid)->quota = quota;
	kv_unlock(t->cache);
	r = kv_tenant_set_quota(t->cache, 1, NULL, &quota);
	assert_int_equal(r, -ENOSPC);
	quota.quota_ssd = 2 * MIB;
	set_quota(t, 1000, quota);
	tiers_reopen(t);
	assert_int_equal(kv_tenant_stat(t->cache, 1000).quota.quota_ssd,
			 2 * MIB);
	assert_int_equal(kv_tenant_stat(t->cache, 5095).quota.quota_ssd, MIB);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_quota_of_dram_holds_however_many_spaces_there_are),
		TEST(a_quota_of_ssd_holds_however_many_spaces_there_are),
		TEST(a_block_larger_than_the_quota_drives_nothing_out),
		TEST(a_smaller_quota_is_met_soon_in_all_spaces),
		TEST(a_space_that_is_given_away_counts_for_its_new_owner),
		TEST(what_a_removed_space_still_holds_is_counted_to_the_end),
		TEST(a_rate_is_shared_by_all_spaces),
		TEST(reserves_of_a_user_and_his_spaces_overlap),
		TEST(pins_leave_what_a_user_is_guaranteed),
		TEST(nor_do_they_take_it_on_ssd),
		TEST(a_flood_costs_a_users_reserve_in_dram_no_hits),
		TEST(without_one_it_costs_many),
		TEST(a_flood_costs_a_users_reserve_on_ssd_no_hits),
		TEST(quotas_of_users_persist),
		TEST(layouts_leave_the_index_to_blocks_and_to_others),
		TEST(a_damaged_record_costs_only_its_own_user_his_quota),
		TEST(too_many_users_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
