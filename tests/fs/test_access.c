/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_access.c - which callers may use the mount, and a space.
 *
 * OWNS      one cache, in the test of limits.
 *
 * LOCKING   none.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>

#include "fs/base/access.h"

enum { OWNER = 1001, GROUP = 2001, OTHER = 1002, EXTRA = 2002 };

static const struct kv_rules rules;

static bool may(uint32_t mode, uint32_t uid, uint32_t gid, int want)
{
	const gid_t groups[] = {5, EXTRA};
	struct kv_space_info space = {.uid = OWNER, .gid = GROUP, .mode = mode};
	struct kv_caller caller = {uid, gid, groups, KV_ARRAY_LEN(groups)};

	return kv_access_ok(&rules, &space, &caller, want);
}

static void the_owner_has_the_owners_bits_only(void **state)
{
	(void)state;
	assert_false(may(0077, OWNER, GROUP, R_OK));
	assert_false(may(0300, OWNER, GROUP, R_OK));
	assert_false(may(0300, OWNER, GROUP, R_OK | X_OK));
	assert_true(may(0300, OWNER, GROUP, W_OK | X_OK));
	assert_true(may(0400, OWNER, 1, R_OK));
}

static void the_group_has_the_groups_bits_only(void **state)
{
	(void)state;
	assert_false(may(0707, OTHER, GROUP, R_OK));
	assert_false(may(0707, OTHER, GROUP, X_OK));
	assert_true(may(0050, OTHER, GROUP, R_OK | X_OK));
	assert_false(may(0050, OTHER, GROUP, W_OK));
}

static void a_supplementary_group_counts_as_the_group(void **state)
{
	const gid_t groups[] = {5, GROUP};
	struct kv_space_info space = {.uid = OWNER, .gid = GROUP, .mode = 0040};
	struct kv_caller caller = {OTHER, EXTRA, groups, 2};

	(void)state;
	assert_true(kv_access_ok(&rules, &space, &caller, R_OK));
	caller.n_groups = 1;
	assert_false(kv_access_ok(&rules, &space, &caller, R_OK));
	caller.groups = NULL;
	caller.n_groups = 0;
	assert_false(kv_access_ok(&rules, &space, &caller, R_OK));
}

static void others_have_the_others_bits(void **state)
{
	(void)state;
	assert_false(may(0770, OTHER, EXTRA, X_OK));
	assert_true(may(0005, OTHER, EXTRA, R_OK | X_OK));
	assert_false(may(0005, OTHER, EXTRA, R_OK | W_OK));
}

static void root_may_do_everything(void **state)
{
	(void)state;
	assert_true(may(0, 0, 0, R_OK | W_OK | X_OK));
}

static void a_squashed_root_is_a_user_as_any_other(void **state)
{
	const struct kv_rules squash = {.squash = 1, .mode = 01755, .uid = 7};
	struct kv_space_info space = {.uid = OWNER, .gid = GROUP, .mode = 0750};
	struct kv_caller root = {0};

	(void)state;
	assert_true(kv_rules_operator(&rules, 0));
	assert_false(kv_rules_operator(&squash, 0));
	assert_false(kv_rules_root(&squash, 0));
	assert_false(kv_access_ok(&squash, &space, &root, R_OK));
	assert_false(kv_rules_may_make(&squash, &root));
	space.mode = 0755;
	assert_true(kv_access_ok(&squash, &space, &root, R_OK | X_OK));
	space.uid = 0;
	assert_true(kv_access_ok(&squash, &space, &root, W_OK));
}

static void who_is_not_listed_is_not_let_in(void **state)
{
	struct kv_id listed[] = {{OWNER, false}, {GROUP, true}};
	struct kv_rules some = {.mode = 01777, .allow = listed, .n_allow = 2};
	const gid_t groups[] = {5, GROUP};
	struct kv_caller caller = {OTHER, EXTRA, groups, 1};

	(void)state;
	assert_false(kv_rules_admit(&some, &caller));
	caller.n_groups = 2;
	assert_true(kv_rules_admit(&some, &caller));
	caller = (struct kv_caller){OTHER, GROUP, NULL, 0};
	assert_true(kv_rules_admit(&some, &caller));
	caller = (struct kv_caller){OWNER, EXTRA, NULL, 0};
	assert_true(kv_rules_admit(&some, &caller));
	/* A gid in a rule does not match a user whose uid has the same
	 * number. */
	caller = (struct kv_caller){GROUP, OWNER, NULL, 0};
	assert_false(kv_rules_admit(&some, &caller));
	caller = (struct kv_caller){0};
	assert_true(kv_rules_admit(&some, &caller));
	some.squash = 1;
	some.uid = OWNER;
	assert_true(!kv_rules_admit(&some, &caller));
}

static void the_mode_of_the_root_directory_counts(void **state)
{
	struct kv_rules some = {.uid = 7, .gid = GROUP, .mode = 01730};
	struct kv_caller member = {OTHER, GROUP, NULL, 0};
	struct kv_caller stranger = {OTHER, EXTRA, NULL, 0};

	(void)state;
	assert_true(kv_rules_admit(&some, &member));
	assert_true(kv_rules_may_make(&some, &member));
	assert_false(kv_rules_admit(&some, &stranger));
	some.mode = 0755;
	assert_true(kv_rules_admit(&some, &stranger));
	assert_false(kv_rules_may_make(&some, &stranger));
	some = (struct kv_rules){.uid = 7, .mode = 01777, .mkdir = 1};
	assert_false(kv_rules_may_make(&some, &stranger));
	stranger.uid = 0;
	assert_true(kv_rules_may_make(&some, &stranger));
}

static void special_bits_of_the_mode_give_no_rights(void **state)
{
	(void)state;
	assert_false(may(07000, OWNER, GROUP, R_OK));
	assert_false(may(07000, OTHER, EXTRA, X_OK));
}

struct setter {
	pthread_t thread;
	struct kv_cache *cache;
	struct kv_space *space; /* NULL: the limits of user OWNER */
	const char *name;
	size_t at; /* offset of the limit in struct kv_quota */
	unsigned failed, lost;
};

/* Set one limit many times, and count the values that do not read back. */
static void *set_often(void *arg)
{
	struct setter *s = arg;
	struct kv_quota quota;
	char text[64];

	for (uint64_t i = 1; i <= 10000; i++) {
		snprintf(text, sizeof(text), "%s=%u", s->name, (unsigned)i);
		s->failed += kv_limits_set(s->cache, &rules, 0, s->space, OWNER,
					   text) != 0;
		quota = s->space ? kv_space_stat(s->cache, s->space).quota
				 : kv_tenant_stat(s->cache, OWNER).quota;
		s->lost += *(uint64_t *)((char *)&quota + s->at) != i;
	}
	return NULL;
}

static void limits_set_at_once_are_all_kept(void **state)
{
	struct kv_cache_config config = {.dram = 64u << 20,
					 .segment = 8u << 20,
					 .hugepages = KV_HUGE_OFF,
					 .evict = "lru"};
	struct kv_cache *cache;
	struct kv_space *space;
	char *why = NULL;

	(void)state;
	assert_int_equal(kv_cache_open(&config, &cache, &why), 0);
	assert_int_equal(
		kv_space_create(cache, "s", OWNER, GROUP, 0700, &space), 0);
	for (int i = 0; i < 2; i++) {
		struct setter setters[] = {
			{.name = "quota.dram",
			 .at = offsetof(struct kv_quota, quota_dram)},
			{.name = "ttl", .at = offsetof(struct kv_quota, ttl)},
		};

		for (int k = 0; k < 2; k++) {
			setters[k].cache = cache;
			setters[k].space = i == 0 ? space : NULL;
			pthread_create(&setters[k].thread, NULL, set_often,
				       &setters[k]);
		}
		for (int k = 0; k < 2; k++)
			pthread_join(setters[k].thread, NULL);
		for (int k = 0; k < 2; k++) {
			assert_int_equal(setters[k].failed, 0);
			assert_int_equal(setters[k].lost, 0);
		}
	}
	kv_space_put(space);
	kv_cache_close(cache);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_owner_has_the_owners_bits_only),
		cmocka_unit_test(the_group_has_the_groups_bits_only),
		cmocka_unit_test(a_supplementary_group_counts_as_the_group),
		cmocka_unit_test(others_have_the_others_bits),
		cmocka_unit_test(special_bits_of_the_mode_give_no_rights),
		cmocka_unit_test(root_may_do_everything),
		cmocka_unit_test(a_squashed_root_is_a_user_as_any_other),
		cmocka_unit_test(who_is_not_listed_is_not_let_in),
		cmocka_unit_test(the_mode_of_the_root_directory_counts),
		cmocka_unit_test(limits_set_at_once_are_all_kept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
