/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_layout.c - blocks that are sealed while the layout of their space is set: all
 * blocks of a space with a layout fit it.
 *
 * OWNS      a small store for each test.
 *
 * LOCKING   none of its own.
 */
#include "tests/cache/faulty.h"
#include "tests/cache/small_store.h"

#define LAYOUT \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[16384]}]}"
#define OTHER \
	"{\"tensors\":[{\"name\":\"v\",\"dtype\":\"U8\",\"shape\":[8192]}]}"

static int set_up(void **state)
{
	struct small *s = malloc(sizeof(*s));

	small_new(s);
	s->config.io = &disk_backend;
	small_must_open(s);
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	disk_behave();
	kv_space_put(((struct small *)*state)->space);
	return small_tear_down(state);
}

/* Begin to save a block with the tensors of the layout @text. */
static struct kv_fill *begin(struct small *s, const char *text)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
	struct kv_key key = small_key(0);
	struct kv_meta meta = {0};
	struct kv_fill *fill;

	assert_int_equal(kv_layout_parse(text, strlen(text), &layout), 0);
	assert_int_equal(
		begin_alone(s->cache, s->space,
			    kv_block_header_bytes(layout) + layout->payload,
			    &fill),
		0);
	assert_int_equal(
		kv_block_header_write(layout, &key, &meta, kv_fill_data(fill)),
		0);
	return fill;
}

static int seal(struct small *s, unsigned n, struct kv_fill *fill)
{
	struct kv_key key = small_key(n);
	struct kv_meta meta = {.mtime_ns = 77};
	struct kv_digest digest =
		kv_digest_of(kv_fill_data(fill), fill->length);

	return kv_fill_seal(s->cache, fill, &key, &meta, 8, &digest);
}

static int set_layout(struct small *s)
{
	return kv_space_set_layout(s->cache, s->space, 0, LAYOUT,
				   strlen(LAYOUT));
}

static bool has_layout(struct small *s)
{
	return kv_space_stat(s->cache, s->space).layout != NULL;
}

static void a_block_begun_before_the_layout_must_fit_it(void **state)
{
	struct small *s = *state;
	struct kv_fill *fits = begin(s, LAYOUT), *other = begin(s, OTHER);

	assert_int_equal(set_layout(s), 0);
	assert_int_equal(seal(s, 1, other), -EBADMSG);
	assert_null(small_get(s, 1));
	assert_int_equal(seal(s, 2, fits), 0);
	assert_int_equal(kv_space_stat(s->cache, s->space).blocks, 1);
}

static _Atomic bool is_set;

static void *set_layout_thread(void *arg)
{
	int r = set_layout(arg);

	is_set = true;
	return (void *)(intptr_t)r;
}

/* Set the layout; seal @fill while the check of the blocks waits for the disk, in a
 * directory that the check has passed. */
static int set_layout_and_seal(struct small *s, struct kv_fill *fill)
{
	pthread_t thread;
	void *result;
	unsigned held = 0;

	assert_int_equal(seal(s, 9, begin(s, LAYOUT)), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(small_demote(s, 9), 0);
	disk_misbehave(FAULT_NEVER, 1, 1);
	disk.only = KV_IO_READ;
	assert_int_equal(pthread_create(&thread, NULL, set_layout_thread, s),
			 0);
	while (held == 0) {
		usleep(1000);
		pthread_mutex_lock(&disk.lock);
		held = disk.n_held;
		pthread_mutex_unlock(&disk.lock);
	}
	assert_int_equal(seal(s, 1, fill), 0);
	disk_behave();
	assert_int_equal(pthread_join(thread, &result), 0);
	return (int)(intptr_t)result;
}

static void a_block_sealed_during_the_check_is_checked(void **state)
{
	struct small *s = *state;

	assert_int_equal(set_layout_and_seal(s, begin(s, OTHER)), -EBADMSG);
	assert_false(has_layout(s));
}

static void a_block_that_fits_does_not_hinder_the_layout(void **state)
{
	struct small *s = *state;

	assert_int_equal(set_layout_and_seal(s, begin(s, LAYOUT)), 0);
	assert_true(has_layout(s));
}

static void *save_always(void *arg)
{
	struct small *s = arg;

	for (unsigned n = 0; !is_set; n++) {
		struct kv_fill *fill = begin(s, LAYOUT);

		assert_int_equal(seal(s, n % 64, fill), n < 64 ? 0 : 1);
	}
	return NULL;
}

/* A seal restarts the check for a layout, unless the block was present. */
static void saves_of_present_blocks_do_not_hinder_the_layout(void **state)
{
	struct small *s = *state;
	pthread_t thread;

	is_set = false;
	assert_int_equal(pthread_create(&thread, NULL, save_always, s), 0);
	while (kv_space_stat(s->cache, s->space).blocks < 64)
		usleep(1000);
	assert_int_equal((intptr_t)set_layout_thread(s), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	assert_true(has_layout(s));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_block_begun_before_the_layout_must_fit_it),
		TEST(a_block_sealed_during_the_check_is_checked),
		TEST(a_block_that_fits_does_not_hinder_the_layout),
		TEST(saves_of_present_blocks_do_not_hinder_the_layout),
	};

	alarm(60);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
