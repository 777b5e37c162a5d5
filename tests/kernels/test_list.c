/* SPDX-License-Identifier: Apache-2.0 */
/* Listing a space's keys, page by page; changes; the end of a space. */
#include <pthread.h>

#include "tests/kernels/world.h"

#define BLOCKS 200u
#define LISTED 4096u

static int by_key(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(kvfs_key));
}

/* List all keys of @space, sorted.  Return their number. */
static size_t list(kvfs_space *space, kvfs_key *keys, size_t page)
{
	uint64_t cursor = 0;
	size_t n = 0;
	long r;

	do {
		r = kvfs_space_keys(space, &cursor, keys + n, page);
		assert_true(r >= 0 && (size_t)r <= page);
		n += (size_t)r;
		assert_true(n + page <= LISTED);
	} while (cursor != 0);
	qsort(keys, n, sizeof(*keys), by_key);
	return n;
}

static void assert_listed(kvfs_space *space, uint32_t n, size_t page)
{
	kvfs_key *keys = calloc(LISTED, sizeof(*keys));
	kvfs_key *saved = calloc(n + 1, sizeof(*saved));

	for (uint32_t i = 0; i < n; i++)
		saved[i] = world_key(i);
	qsort(saved, n, sizeof(*saved), by_key);
	assert_int_equal(list(space, keys, page), n);
	assert_memory_equal(keys, saved, n * sizeof(*saved));
	free(saved);
	free(keys);
}

static void a_spaces_keys_are_listed_once_in_pages_of_any_size(void **state)
{
	struct world *w = *state;

	assert_listed(w->space, 0, 64);
	world_save(w, BLOCKS);
	for (size_t page = 64; page < 1500; page = page * 3 / 2)
		assert_listed(w->space, BLOCKS, page);
}

static void what_stays_is_listed_while_the_space_grows(void **state)
{
	struct world *w = *state;
	kvfs_key *keys = calloc(LISTED, sizeof(*keys)), key;
	uint64_t cursor = 0;
	size_t n;
	long r;

	world_save(w, 100);
	r = kvfs_space_keys(w->space, &cursor, keys, 64);
	assert_in_range(r, 1, 64);
	assert_int_not_equal(cursor, 0);
	n = (size_t)r;
	world_save(w, PAGES);
	do {
		r = kvfs_space_keys(w->space, &cursor, keys + n, 64);
		assert_true(r >= 0);
		n += (size_t)r;
	} while (cursor != 0);
	qsort(keys, n, sizeof(*keys), by_key);
	for (uint32_t i = 0; i < 100; i++) {
		key = world_key(i);
		assert_non_null(bsearch(&key, keys, n, sizeof(key), by_key));
	}
	free(keys);
}

static void listings_that_cannot_be_are_refused(void **state)
{
	struct world *w = *state;
	kvfs_key keys[64];
	uint64_t cursor = 0;
	kvfs_space *other;

	assert_int_equal(kvfs_space_keys(NULL, &cursor, keys, 64), -EINVAL);
	assert_int_equal(kvfs_space_keys(w->space, NULL, keys, 64), -EINVAL);
	assert_int_equal(kvfs_space_keys(w->space, &cursor, NULL, 64), -EINVAL);
	assert_int_equal(kvfs_space_keys(w->space, &cursor, keys, 63), -EINVAL);
	world_save(w, 10);
	cursor = UINT64_MAX;
	assert_int_equal(kvfs_space_keys(w->space, &cursor, keys, 64), 0);
	assert_int_equal(cursor, 0);
	cursor = 0xffffffff;
	assert_in_range(kvfs_space_keys(w->space, &cursor, keys, 64), 0, 10);
	assert_int_equal(
		kvfs_space_open(w->session, "absent", WORLD_LAYOUT, 0, &other),
		-ENOENT);
	world_stop_daemon(w, SIGKILL);
	world_wait_connected(w->session, 0);
	assert_int_equal(kvfs_space_keys(w->space, &cursor, keys, 64),
			 -ENOTCONN);
	assert_int_equal(kvfs_space_remove(w->space), -ENOTCONN);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
}

static void a_removed_space_is_gone_and_is_not_made_again(void **state)
{
	struct world *w = *state;
	kvfs_key keys[64], key = world_key(0);
	const kvfs_query query = {.space = w->space, .keys = &key, .n = 1};
	kvfs_space *again;
	uint64_t cursor = 0;
	uint8_t states;

	assert_int_equal(kvfs_space_remove(NULL), -EINVAL);
	world_save(w, 50);
	assert_int_equal(kvfs_space_remove(w->space), 0);
	assert_int_equal(kvfs_probe(&query, 1, &states), 0);
	assert_int_equal(kvfs_space_keys(w->space, &cursor, keys, 64), -ENOENT);
	assert_int_equal(
		kvfs_space_open(w->session, w->space_name, NULL, 0, &again),
		-ENOENT);
	assert_int_equal(kvfs_space_remove(w->space), -ENOENT);
	/* After the removal, a space with this name can have another layout. */
	world_space_open(w->session, w->space_name,
			 "{\"tensors\":[{\"name\":\"x\",\"dtype\":\"U8\","
			 "\"shape\":[64]}]}",
			 KVFS_CREATE | 0700, &again);
	assert_int_equal(kvfs_space_keys(again, &cursor, keys, 64), 0);
	assert_int_equal(kvfs_space_remove(again), 0);
	kvfs_space_close(again);
}

/* ---- changes ---- */

#define VIEW 64u /* blocks that a subscriber follows */

/* A subscriber's view: bytes in each tier, 0: gone. */
struct view {
	kvfs_space *space;
	uint64_t cursor, dram[VIEW], ssd[VIEW];
	unsigned again; /* how often the space was listed */
};

static void see(struct view *view, const kvfs_entry *entries, long n)
{
	kvfs_key key;

	for (long i = 0; i < n; i++)
		for (uint32_t block = 0; block < VIEW; block++) {
			key = world_key(block);
			if (memcmp(&key, &entries[i].key, sizeof(key)) != 0)
				continue;
			view->dram[block] = entries[i].bytes_dram;
			view->ssd[block] = entries[i].bytes_ssd;
		}
}

/* Read all changes; list the space if some were lost. */
static void follow(struct view *view)
{
	kvfs_entry *entries = calloc(512, sizeof(*entries));
	uint64_t at;
	long n;

	while ((n = kvfs_space_changes(view->space, &view->cursor, entries, 512,
				       0)) != 0) {
		if (n > 0)
			see(view, entries, n);
		if (n > 0)
			continue;
		assert_int_equal(n, -ESTALE);
		view->again++;
		at = 0;
		memset(view->dram, 0, sizeof(view->dram));
		memset(view->ssd, 0, sizeof(view->ssd));
		do {
			n = kvfs_space_list(view->space, &at, entries, 512);
			assert_true(n >= 0);
			see(view, entries, n);
		} while (at != 0);
	}
	free(entries);
}

/* Assert that the view agrees with a listing.  Write-back may change tiers between the two:
 * then compare again. */
static void assert_sees(struct view *view)
{
	struct view fresh;
	unsigned tries = 0;

	do {
		if (tries > 0)
			usleep(50000);
		fresh = (struct view){.space = view->space};
		follow(view);
		follow(&fresh);
		assert_int_equal(fresh.again, 1);
	} while (++tries < 100 &&
		 (memcmp(view->dram, fresh.dram, sizeof(fresh.dram)) != 0 ||
		  memcmp(view->ssd, fresh.ssd, sizeof(fresh.ssd)) != 0));
	assert_in_range(tries, 1, 99);
}

static void save_one(struct world *w, uint32_t block)
{
	const int64_t page = block;
	kvfs_key key = world_key(block);
	kvfs_meta meta = {0};
	kvfs_xfer *xfer;

	world_fill(w, page, block);
	assert_int_equal(kvfs_save(w->pool, w->space, &key, &meta, 1, &page,
				   NULL, &xfer),
			 0);
	assert_true(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND) >= 0);
	kvfs_xfer_free(xfer);
}

static void
a_subscribers_view_equals_a_listing_after_random_changes(void **state)
{
	struct world *w = *state;
	struct view view = {.space = w->space};
	unsigned seed = 1;
	kvfs_key key;
	int status;

	assert_sees(&view);
	for (unsigned i = 0; i < 10000; i++) {
		const uint32_t block = (uint32_t)rand_r(&seed) % VIEW;

		key = world_key(block);
		if (rand_r(&seed) % 2)
			save_one(w, block);
		else
			(void)kvfs_evict(w->space, &key, 1, &status);
		if (i % 500 == 0)
			assert_sees(&view);
	}
	sleep(1); /* write-back goes on: tiers change without a call */
	assert_sees(&view);
	assert_int_equal(view.again, 1);
	assert_int_equal(kvfs_space_clear(w->space), 0);
	assert_sees(&view);
	for (uint32_t block = 0; block < VIEW; block++)
		assert_int_equal(view.dram[block] + view.ssd[block], 0);
}

static void a_subscriber_that_falls_behind_must_list_again(void **state)
{
	struct world *w = *state;
	struct view view = {.space = w->space};
	kvfs_key key = world_key(1);
	int status;

	assert_sees(&view);
	/* a save and its removal are two changes at least */
	for (unsigned i = 0; i < 40000; i++) {
		save_one(w, 1);
		(void)kvfs_evict(w->space, &key, 1, &status);
	}
	save_one(w, 2);
	assert_sees(&view);
	assert_int_equal(view.again, 2);
	save_one(w, 3);
	assert_sees(&view);
	assert_int_equal(view.again, 2);
	assert_true(view.dram[2] > 0 && view.dram[3] > 0);
}

static void *save_later(void *arg)
{
	usleep(300000);
	save_one(arg, 5);
	return NULL;
}

static void a_subscriber_waits_for_a_change(void **state)
{
	struct world *w = *state;
	struct view view = {.space = w->space};
	kvfs_entry entry;
	pthread_t thread;
	uint64_t began = kv_now_ns();
	kvfs_key key = world_key(5);

	follow(&view);
	assert_int_equal(kvfs_space_changes(w->space, &view.cursor, &entry, 1,
					    SECOND / 5),
			 0);
	assert_in_range(kv_now_ns() - began, SECOND / 5, 20 * SECOND);
	assert_int_equal(pthread_create(&thread, NULL, save_later, w), 0);
	assert_int_equal(kvfs_space_changes(w->space, &view.cursor, &entry, 1,
					    30 * SECOND),
			 1);
	assert_memory_equal(&entry.key, &key, sizeof(key));
	pthread_join(thread, NULL);
}

static void changes_that_cannot_be_are_refused(void **state)
{
	struct world *w = *state;
	struct view view = {.space = w->space};
	kvfs_entry entry;
	uint64_t cursor = 0;

	assert_int_equal(kvfs_space_changes(NULL, &cursor, &entry, 1, 0),
			 -EINVAL);
	assert_int_equal(kvfs_space_changes(w->space, NULL, &entry, 1, 0),
			 -EINVAL);
	assert_int_equal(kvfs_space_changes(w->space, &cursor, NULL, 1, 0),
			 -EINVAL);
	assert_int_equal(kvfs_space_changes(w->space, &cursor, &entry, 0, 0),
			 -EINVAL);
	follow(&view);
	save_one(w, 1);
	world_stop_daemon(w, SIGKILL);
	world_wait_connected(w->session, 0);
	assert_int_equal(
		kvfs_space_changes(w->space, &view.cursor, &entry, 1, SECOND),
		-ENOTCONN);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
	assert_sees(&view);
	assert_int_equal(view.again, 2);
	assert_int_equal(kvfs_space_remove(w->space), 0);
	assert_int_equal(
		kvfs_space_changes(w->space, &view.cursor, &entry, 1, SECOND),
		-ENOENT);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(a_spaces_keys_are_listed_once_in_pages_of_any_size),
		test(what_stays_is_listed_while_the_space_grows),
		test(listings_that_cannot_be_are_refused),
		test(a_removed_space_is_gone_and_is_not_made_again),
		test(a_subscribers_view_equals_a_listing_after_random_changes),
		test(a_subscriber_that_falls_behind_must_list_again),
		test(a_subscriber_waits_for_a_change),
		test(changes_that_cannot_be_are_refused),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
