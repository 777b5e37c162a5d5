/* SPDX-License-Identifier: Apache-2.0 */
/* test_keys.c - list a million keys while keys are added and removed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "cache/core/table.h"
#include "tests/cache/small_store.h"

#define STAY 1000000u
#define GUEST 4000000u

static void insert(struct small *s, unsigned n)
{
	const struct kv_key key = small_key(n);
	struct kv_block *block;

	kv_lock(s->cache);
	must(kv_table_insert(s->cache, s->space, &key, &block) == 0);
	kv_unlock(s->cache);
}

static void drop(struct small *s, unsigned n)
{
	const struct kv_key key = small_key(n);
	struct kv_block *block;

	kv_lock(s->cache);
	block = kv_table_find(s->cache, s->space, &key);
	kv_table_unlink(s->cache, block);
	kv_table_free(s->cache, block);
	kv_unlock(s->cache);
}

static void a_million_keys_are_listed_while_others_come_and_go(void **state)
{
	static uint8_t seen[STAY];
	static struct kv_key keys[512];
	struct small s;
	uint64_t cursor = 0, longest = 0, before;
	unsigned come = GUEST, gone = GUEST, twice = 0, pages = 0;

	(void)state;
	small_new(&s);
	small_must_open(&s);
	for (unsigned i = 0; i < STAY; i++)
		insert(&s, i);
	do {
		before = kv_now_ns();
		size_t n = kv_space_keys(s.cache, s.space, false, &cursor, keys,
					 512);

		longest = KV_MAX(longest, kv_now_ns() - before);
		must(n <= 512);
		for (size_t i = 0; i < n; i++) {
			unsigned number;

			memcpy(&number, keys[i].b + 12, sizeof(number));
			if (number < STAY && seen[number]++ > 0)
				twice++;
		}
		/* Add half as many keys as the space had at first, and remove
		 * some keys. */
		for (int i = 0; i < 250; i++)
			insert(&s, come++);
		for (int i = 0; i < 100 && gone < come; i++)
			drop(&s, gone++);
		pages++;
	} while (cursor != 0);
	for (unsigned i = 0; i < STAY; i++)
		assert_true(seen[i] >= 1);
	printf("%u pages, %u of the keys twice, longest %llu us, %u came\n",
	       pages, twice, (unsigned long long)longest / 1000, come - GUEST);
	while (gone < come)
		drop(&s, gone++);
	for (unsigned i = 0; i < STAY; i++)
		drop(&s, i);
	must(small_close(&s) == 0);
	small_remove(&s);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			a_million_keys_are_listed_while_others_come_and_go),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
