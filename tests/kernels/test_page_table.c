/* SPDX-License-Identifier: Apache-2.0 */
/* The table of pages and blocks, against a model that scans all pages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/paged/paged_pool.h"

static kvfs_key key_of(uint32_t i)
{
	kvfs_key key = {.len = i % 2 == 0 ? 16 : 32};

	memcpy(key.bytes, &i, sizeof(i));
	return key;
}

static struct kv_page_table *new_roster(uint64_t max, uint64_t pages)
{
	struct kv_page_table *page_table;

	assert_int_equal(kv_page_table_new(max, &page_table), 0);
	kv_page_table_grow(page_table, pages);
	return page_table;
}

/* Return a page in state READY with block @i, which has no users. */
static struct kv_page *cache(struct kv_page_table *page_table,
			     struct kv_page_table_space *space, uint32_t i)
{
	struct kv_page *page = kv_page_table_take(page_table);
	const kvfs_key key = key_of(i);

	assert_non_null(page);
	kv_page_table_name(page_table, page, space, &key);
	kv_page_table_ready(page_table, page);
	return page;
}

static bool has(struct kv_page_table *page_table,
		struct kv_page_table_space *space, uint32_t i)
{
	const kvfs_key key = key_of(i);

	return kv_page_table_find(page_table, space, &key) != NULL;
}

static void a_page_in_use_is_never_taken(void **state)
{
	struct kv_page_table *page_table = new_roster(4, 3);
	struct kv_page_table_space *s =
		kv_page_table_space_get(page_table, "s");
	struct kv_page *used = cache(page_table, s, 1), *coming;
	const kvfs_key key = key_of(2);

	(void)state;
	kv_page_table_get(page_table, used);
	coming = kv_page_table_take(page_table);
	kv_page_table_name(page_table, coming, s, &key);
	assert_non_null(kv_page_table_take(page_table));
	assert_null(kv_page_table_take(page_table));
	kv_page_table_put(page_table, used);
	assert_ptr_equal(kv_page_table_take(page_table), used);
	assert_false(has(page_table, s, 1));
	kv_page_table_give(page_table, coming);
	assert_ptr_equal(kv_page_table_take(page_table), coming);
	kv_page_table_grow(page_table, 4);
	assert_non_null(kv_page_table_take(page_table));
	assert_null(kv_page_table_take(page_table));
	kv_page_table_space_put(s);
	kv_page_table_free(page_table);
}

static void the_page_unused_for_longest_goes_first(void **state)
{
	struct kv_page_table *page_table = new_roster(3, 3);
	struct kv_page_table_space *s =
		kv_page_table_space_get(page_table, "s");
	struct kv_page *page[3];
	uint32_t i;

	(void)state;
	for (i = 0; i < 3; i++)
		page[i] = cache(page_table, s, i);
	kv_page_table_touch(page_table, page[0]);
	kv_page_table_get(page_table, page[1]);
	kv_page_table_put(page_table, page[1]);
	assert_ptr_equal(kv_page_table_take(page_table), page[2]);
	assert_ptr_equal(kv_page_table_take(page_table), page[0]);
	assert_ptr_equal(kv_page_table_take(page_table), page[1]);
	kv_page_table_space_put(s);
	kv_page_table_free(page_table);
}

static void one_key_in_two_spaces_is_two_pages(void **state)
{
	struct kv_page_table *page_table = new_roster(4, 4);
	struct kv_page_table_space *a =
		kv_page_table_space_get(page_table, "a");
	struct kv_page_table_space *b =
		kv_page_table_space_get(page_table, "b");

	(void)state;
	assert_ptr_equal(kv_page_table_space_get(page_table, "a"), a);
	kv_page_table_space_put(a);
	cache(page_table, a, 7);
	assert_true(has(page_table, a, 7));
	assert_false(has(page_table, b, 7));
	cache(page_table, b, 7);
	assert_int_equal(kv_page_table_count(page_table).cached, 2);
	kv_page_table_space_put(a);
	kv_page_table_space_put(b);
	kv_page_table_free(page_table);
}

static void what_was_forgotten_is_not_found_and_goes_when_unused(void **state)
{
	struct kv_page_table *page_table = new_roster(4, 4);
	struct kv_page_table_space *old = kv_page_table_space_get(page_table,
								  "s"),
				   *new;
	struct kv_page *used = cache(page_table, old, 1), *coming;
	const kvfs_key key = key_of(2);

	(void)state;
	kv_page_table_get(page_table, used);
	coming = kv_page_table_take(page_table);
	kv_page_table_name(page_table, coming, old, &key);
	cache(page_table, old, 3);
	kv_page_table_space_put(old);
	kv_page_table_forget(page_table, "s");
	kv_page_table_forget(page_table, "another");
	new = kv_page_table_space_get(page_table, "s");
	assert_false(has(page_table, new, 1));
	assert_false(has(page_table, new, 2));
	assert_false(has(page_table, new, 3));
	cache(page_table, new, 1);
	assert_int_equal(kv_page_table_count(page_table).free, 0);
	kv_page_table_put(page_table, used);
	assert_int_equal(kv_page_table_count(page_table).free, 1);
	kv_page_table_ready(page_table, coming);
	assert_int_equal(kv_page_table_count(page_table).free, 2);
	kv_page_table_space_put(new);
	kv_page_table_free(page_table);
}

/* ---- random operations on the table ---- */

#define MAX 24u
#define KEYS 40u
#define STEPS 200000

struct model {
	struct kv_page *page[MAX];
	enum kv_page_state state[MAX];
	uint32_t key[MAX];
	unsigned refs[MAX];
	uint64_t idle_since[MAX];
	uint64_t pages, clock;
};

static unsigned seed = 20261121;

static uint32_t draw(uint32_t n)
{
	seed = seed * 1664525u + 1013904223u;
	return (uint32_t)(((uint64_t)seed * n) >> 32);
}

static uint32_t slot_of(struct model *m, struct kv_page_table *page_table,
			struct kv_page *page)
{
	uint32_t i = (uint32_t)kv_page_table_index(page_table, page);

	assert_true(i < m->pages);
	m->page[i] = page;
	return i;
}

static int find(const struct model *m, uint32_t key)
{
	uint32_t i;

	for (i = 0; i < m->pages; i++)
		if ((m->state[i] == KV_PAGE_COMING ||
		     m->state[i] == KV_PAGE_READY) &&
		    m->key[i] == key)
			return (int)i;
	return -1;
}

static bool is_idle(const struct model *m, uint32_t i)
{
	return m->state[i] == KV_PAGE_READY && m->refs[i] == 0;
}

static int victim(const struct model *m)
{
	int best = -1;
	uint32_t i;

	for (i = 0; i < m->pages; i++)
		if (is_idle(m, i) &&
		    (best < 0 || m->idle_since[i] < m->idle_since[best]))
			best = (int)i;
	return best;
}

static uint64_t count(const struct model *m, enum kv_page_state state)
{
	uint64_t n = 0;
	uint32_t i;

	for (i = 0; i < m->pages; i++)
		n += m->state[i] == state;
	return n;
}

static void take(struct model *m, struct kv_page_table *page_table)
{
	struct kv_page *page = kv_page_table_take(page_table);
	uint32_t i;

	if (page == NULL) {
		assert_int_equal(count(m, KV_PAGE_FREE), 0);
		assert_int_equal(victim(m), -1);
		return;
	}
	i = slot_of(m, page_table, page);
	if (count(m, KV_PAGE_FREE) > 0)
		assert_int_equal(m->state[i], KV_PAGE_FREE);
	else
		assert_int_equal((int)i, victim(m));
	m->state[i] = KV_PAGE_TAKEN;
}

static void on_page(struct model *m, struct kv_page_table *page_table,
		    struct kv_page_table_space *space, uint32_t i)
{
	const uint32_t k = draw(KEYS);
	const kvfs_key key = key_of(k);

	if (m->state[i] == KV_PAGE_TAKEN && draw(3) == 0) {
		kv_page_table_give(page_table, m->page[i]);
		m->state[i] = KV_PAGE_FREE;
	} else if (m->state[i] == KV_PAGE_TAKEN && find(m, k) < 0) {
		kv_page_table_name(page_table, m->page[i], space, &key);
		m->state[i] = KV_PAGE_COMING;
		m->key[i] = k;
	} else if (m->state[i] == KV_PAGE_COMING && draw(2) == 0) {
		kv_page_table_ready(page_table, m->page[i]);
		m->state[i] = KV_PAGE_READY;
		m->idle_since[i] = m->clock;
	} else if (m->state[i] == KV_PAGE_COMING && m->refs[i] == 0 &&
		   draw(4) == 0) {
		kv_page_table_give(page_table, m->page[i]);
		m->state[i] = KV_PAGE_FREE;
	} else if (m->refs[i] > 0 && draw(2) == 0) {
		kv_page_table_put(page_table, m->page[i]);
		m->refs[i]--;
		m->idle_since[i] = m->clock;
	} else if (m->state[i] == KV_PAGE_COMING ||
		   m->state[i] == KV_PAGE_READY) {
		kv_page_table_get(page_table, m->page[i]);
		m->refs[i]++;
	}
}

static void step(struct model *m, struct kv_page_table *page_table,
		 struct kv_page_table_space *space)
{
	uint32_t what = draw(10), i = draw((uint32_t)m->pages);

	m->clock++;
	if (what < 3) {
		take(m, page_table);
	} else if (what == 3 && m->page[i] != NULL) {
		kv_page_table_touch(page_table, m->page[i]);
		if (is_idle(m, i))
			m->idle_since[i] = m->clock;
	} else if (what == 4 && m->pages < MAX && draw(500) == 0) {
		kv_page_table_grow(page_table, ++m->pages);
	} else {
		on_page(m, page_table, space, i);
	}
}

static void compare(const struct model *m, struct kv_page_table *page_table,
		    struct kv_page_table_space *space)
{
	struct kv_page_table_counts counts = kv_page_table_count(page_table);
	uint64_t idle = 0;
	uint32_t i;

	for (i = 0; i < KEYS; i++) {
		const kvfs_key key = key_of(i);
		struct kv_page *page =
			kv_page_table_find(page_table, space, &key);
		int at = find(m, i);

		assert_ptr_equal(page, at < 0 ? NULL : m->page[at]);
	}
	for (i = 0; i < m->pages; i++)
		idle += is_idle(m, i);
	assert_int_equal(counts.pages, m->pages);
	assert_int_equal(counts.free, count(m, KV_PAGE_FREE));
	assert_int_equal(counts.taken, count(m, KV_PAGE_TAKEN));
	assert_int_equal(counts.cached, idle);
	assert_int_equal(counts.free + counts.taken + counts.cached +
				 counts.mapped,
			 m->pages);
}

static void random_operations_do_what_the_model_does(void **state)
{
	struct kv_page_table *page_table = new_roster(MAX, 8);
	struct kv_page_table_space *space =
		kv_page_table_space_get(page_table, "s");
	struct model m = {.pages = 8};
	int i;

	(void)state;
	for (i = 0; i < STEPS; i++) {
		step(&m, page_table, space);
		compare(&m, page_table, space);
	}
	assert_int_equal(m.pages, MAX);
	kv_page_table_space_put(space);
	kv_page_table_free(page_table);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_page_in_use_is_never_taken),
		cmocka_unit_test(the_page_unused_for_longest_goes_first),
		cmocka_unit_test(one_key_in_two_spaces_is_two_pages),
		cmocka_unit_test(
			what_was_forgotten_is_not_found_and_goes_when_unused),
		cmocka_unit_test(random_operations_do_what_the_model_does),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
