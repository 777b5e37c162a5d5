/* SPDX-License-Identifier: Apache-2.0 */
/* test_spaces.c - removed spaces: their memory is freed when nothing refers to
 * them, and their ids are never reused. */
#include "tests/cache/tiers.h"

#include "cache/core/table.h"
#include "cache/space/space.h"

static struct kv_space *new_space(struct tiers *t, const char *name)
{
	struct kv_space *space;

	assert_null(kv_space_find(t->cache, name));
	assert_int_equal(kv_space_create(t->cache, name, 0, 0, 0755, &space),
			 0);
	return space;
}

/* Return how many removed spaces still have memory. */
static uint32_t left(struct tiers *t)
{
	uint32_t n;

	kv_lock(t->cache);
	kv_spaces_reap(t->cache);
	n = t->cache->spaces.n - t->cache->live_spaces;
	kv_unlock(t->cache);
	return n;
}

/* Wait until the threads that commit and delete have released all removed
 * spaces. */
static void until_none_is_left(struct tiers *t)
{
	for (unsigned i = 0; i < 10000 && left(t) > 0; i++)
		usleep(1000);
	assert_int_equal(left(t), 0);
}

static void clear(struct tiers *t, struct kv_space *space)
{
	struct kv_clear *clear;

	assert_int_equal(kv_clear_begin(t->cache, space, &clear), 0);
	while (kv_clear_some(t->cache, clear) > 0)
		;
	kv_clear_end(clear);
}

static void a_directory_made_again_has_another_life(void **state)
{
	struct tiers *t = *state;
	struct kv_space *space;
	uint32_t life = 9, other = 9;

	tiers_without_ssd(t);
	space = new_space(t, "lives");
	assert_false(kv_dir_exists(t->cache, space, 7, &life));
	assert_int_equal(kv_dir_make(t->cache, space, 7), 0);
	assert_int_equal(kv_dir_make(t->cache, space, 8), 0);
	assert_true(kv_dir_exists(t->cache, space, 7, &life));
	assert_int_equal(kv_dir_remove(t->cache, space, 7), 0);
	assert_false(kv_dir_exists(t->cache, space, 7, &other));
	assert_true(kv_dir_exists(t->cache, space, 8, &other));
	assert_int_equal(other, life);
	assert_int_equal(kv_dir_make(t->cache, space, 7), 0);
	assert_true(kv_dir_exists(t->cache, space, 7, &other));
	assert_int_not_equal(other, life);
	kv_space_put(space);
}

static void a_place_is_used_again_and_an_id_is_not(void **state)
{
	struct tiers *t = *state;
	uint32_t id = 0, room;

	tiers_without_ssd(t);
	for (unsigned round = 0; round < 400; round++) {
		struct kv_space *space = new_space(t, "again");

		assert_true(space->id > id);
		id = space->id;
		kv_space_put(space);
		assert_int_equal(kv_space_remove(t->cache, space), 0);
		if (round % 50 == 49)
			until_none_is_left(t);
	}
	kv_lock(t->cache);
	room = t->cache->spaces.room;
	assert_null(kv_space_with_id(t->cache, id));
	kv_unlock(t->cache);
	assert_true(room <= 64);
	assert_null(kv_space_by_id(t->cache, id));
	assert_ptr_equal(kv_space_next(t->cache, 0), t->space);
	assert_null(kv_space_next(t->cache, t->space->id));
}

static void a_space_whose_blocks_were_on_ssd_goes_as_well(void **state)
{
	struct tiers *t = *state;

	for (unsigned round = 0; round < 5; round++) {
		struct kv_space *space =
			tiers_space(t, "full", 1, PREFIX_LAYOUT);

		for (unsigned i = 0; i < 20; i++)
			tiers_must_save(t, space, round, i);
		assert_int_equal(kv_space_sync(t->cache, space), 0);
		clear(t, space);
		assert_int_equal(kv_space_remove(t->cache, space), 0);
		kv_space_put(space);
		until_none_is_left(t);
	}
}

static void who_has_a_space_keeps_it(void **state)
{
	struct tiers *t = *state;
	struct kv_space *space = new_space(t, "kept"), *same;
	const uint32_t id = kv_space_stat(t->cache, space).id;
	struct kv_fill *fill;
	struct kv_key key = tiers_key(0, 0);
	struct kv_meta meta = {0};
	struct kv_digest digest = {0};

	assert_int_equal(tiers_begin(t, space, 0, 0, &fill), 0);
	assert_int_equal(kv_space_remove(t->cache, space), 0);
	kv_space_put(space);
	assert_int_equal(left(t), 1);
	same = kv_space_by_id(t->cache, id);
	assert_ptr_equal(same, space);
	assert_true(kv_space_stat(t->cache, same).removed);
	assert_int_equal(kv_space_remove(t->cache, same), -ESTALE);
	assert_int_equal(
		kv_fill_seal(t->cache, fill, &key, &meta, 4096, &digest),
		-ESTALE);
	assert_int_equal(left(t), 1);
	kv_space_put(same);
	until_none_is_left(t);
}

static void a_removed_block_that_is_held_keeps_its_space(void **state)
{
	struct tiers *t = *state;
	struct kv_space *space = tiers_space(t, "held", 1, PREFIX_LAYOUT);
	struct kv_key key = tiers_key(1, 0);
	struct kv_block *block;

	tiers_must_save(t, space, 1, 0);
	assert_int_equal(kv_block_get(t->cache, space, &key, &block), 0);
	clear(t, space);
	assert_int_equal(kv_space_remove(t->cache, space), 0);
	kv_space_put(space);
	usleep(50000);
	assert_int_equal(left(t), 1);
	assert_true(kv_block_stat(t->cache, block).removed);
	kv_block_put(t->cache, block);
	until_none_is_left(t);
}

/* ---- threads that create, use and remove spaces ---- */

struct worker {
	struct tiers *t;
	unsigned id;
	_Atomic bool *stop;
	unsigned rounds;
};

/* Make spaces, use them and remove them, until stopped. */
static void *make_and_remove(void *arg)
{
	struct worker *w = arg;
	char name[32];

	snprintf(name, sizeof(name), "w%u", w->id);
	while (!*w->stop) {
		struct kv_space *space;
		struct kv_fill *fill = NULL;
		struct kv_key key = tiers_key(w->id, w->rounds);

		if (kv_space_create(w->t->cache, name, 0, 0, 0755, &space) < 0)
			continue;
		kv_fill_begin(w->t->cache, space, &key, BYTES, &fill);
		kv_space_remove(w->t->cache, space);
		kv_space_put(space);
		if (fill)
			kv_fill_drop(w->t->cache, fill);
		w->rounds++;
	}
	return NULL;
}

/* Look up and read all spaces and blocks, until stopped. */
static void *look(void *arg)
{
	struct worker *w = arg;

	while (!*w->stop) {
		struct kv_space *space;
		uint32_t id = 0;

		while ((space = kv_space_next(w->t->cache, id))) {
			struct kv_space_info info =
				kv_space_stat(w->t->cache, space);
			struct kv_key key = tiers_key(0, 0);
			struct kv_block *block;

			id = info.id;
			assert_true(strlen(kv_space_name(space)) > 0);
			assert_int_equal(
				kv_block_get(w->t->cache, space, &key, &block),
				-ENOENT);
			kv_space_put(space);
		}
		w->rounds++;
	}
	return NULL;
}

static void many_threads_find_no_freed_space(void **state)
{
	struct tiers *t = *state;
	_Atomic bool stop = false;
	struct worker workers[4];
	pthread_t threads[4];

	tiers_without_ssd(t);
	for (unsigned i = 0; i < 4; i++) {
		workers[i] = (struct worker){.t = t, .id = i, .stop = &stop};
		pthread_create(&threads[i], NULL,
			       i < 2 ? make_and_remove : look, &workers[i]);
	}
	for (unsigned i = 0; i < 1000; i++) {
		left(t);
		usleep(1000);
	}
	stop = true;
	for (unsigned i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		assert_true(workers[i].rounds > 0);
	}
	until_none_is_left(t);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			a_directory_made_again_has_another_life, tiers_set_up,
			tiers_tear_down),
		cmocka_unit_test_setup_teardown(
			a_place_is_used_again_and_an_id_is_not, tiers_set_up,
			tiers_tear_down),
		cmocka_unit_test_setup_teardown(
			a_space_whose_blocks_were_on_ssd_goes_as_well,
			tiers_set_up, tiers_tear_down),
		cmocka_unit_test_setup_teardown(who_has_a_space_keeps_it,
						tiers_set_up, tiers_tear_down),
		cmocka_unit_test_setup_teardown(
			a_removed_block_that_is_held_keeps_its_space,
			tiers_set_up, tiers_tear_down),
		cmocka_unit_test_setup_teardown(
			many_threads_find_no_freed_space, tiers_set_up,
			tiers_tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
