/* SPDX-License-Identifier: Apache-2.0 */
/* run.sh: long */
/* test_alloc.c - the cache on a real store when allocations fail: each call
 * reports its failure, durable blocks stay, and every byte is right. */
#include <signal.h>
#include <sys/wait.h>

#include "common/copy.h"
#include "tests/alloc.h"
#include "tests/cache/one_cache.h"

#define BYTES 20000u
/* number of blocks that are durable before each run; a run saves blocks with
 * higher numbers */
#define OLD 4
#define ALL 8

static const char text[] =
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[19992]}]}";

struct fixture {
	struct one one;
	bool durable[ALL]; /* the cache has reported these blocks as durable */
	/* the test has tried to remove these blocks */
	bool removed[ALL];
};

static uint8_t byte_of(unsigned n, size_t i)
{
	return (uint8_t)(n * 31 + i * 7 + (i >> 9));
}

/* ---- calls, and what they return without memory ---- */

static int save(struct fixture *f, unsigned n)
{
	struct kv_key key = one_key(n);
	struct kv_meta meta = {.position = n, .mtime_ns = 77};
	struct kv_digest digest;
	struct kv_fill *fill;
	uint8_t *data;
	int r = kv_fill_begin(f->one.cache, f->one.space, &key, BYTES, &fill);

	alloc_among(r, 0, -ENOMEM, -ENOSPC, -EBUSY, -EEXIST);
	if (r < 0)
		return r;
	data = kv_fill_data(fill);
	for (size_t i = 0; i < BYTES; i++)
		data[i] = byte_of(n, i);
	digest = kv_digest_of(data, BYTES);
	r = kv_fill_seal(f->one.cache, fill, &key, &meta, 8, &digest);
	alloc_among(r, 0, 1, -ENOMEM);
	return r;
}

/* Read block @n and check its bytes.  Return 1 if that succeeds, 0 for a
 * miss. */
static int look(struct fixture *f, unsigned n)
{
	struct kv_key key = one_key(n);
	struct kv_block *block;
	struct kv_view view;
	int r = kv_block_get(f->one.cache, f->one.space, &key, &block);

	alloc_among(r, 0, -ENOENT);
	if (r < 0)
		return 0;
	r = kv_view_get(f->one.cache, block, KV_VIEW_WAIT, &view);
	alloc_among(r, 0, -ENOMEM);
	if (r == 0) {
		alloc_must(view.length == BYTES);
		for (size_t i = 0; i < BYTES; i++)
			alloc_must(view.data[i] == byte_of(n, i));
		kv_view_put(f->one.cache, &view);
	}
	kv_block_put(f->one.cache, block);
	return r == 0;
}

static void sync_all(struct fixture *f)
{
	int r = kv_space_sync(f->one.cache, f->one.space);

	alloc_among(r, 0, -ENOMEM);
	for (unsigned n = 0; r == 0 && n < ALL; n++)
		if (!f->removed[n] && look(f, n))
			f->durable[n] = true;
}

/* ---- checks before and after a run with failed allocations ---- */

static void open_cache(void *arg)
{
	struct fixture *f = arg;

	one_open(&f->one);
}

/* Check that blocks reported as durable can be read from memory and from SSD,
 * and restore the blocks that each run begins with. */
static void restore(struct fixture *f)
{
	struct kv_key key;
	struct kv_block *block;

	for (unsigned n = 0; n < ALL; n++) {
		if (f->durable[n] && !f->removed[n])
			assert_int_equal(look(f, n), 1);
		look(f, n);
		key = one_key(n);
		if (n >= OLD && kv_block_get(f->one.cache, f->one.space, &key,
					     &block) == 0) {
			assert_int_equal(kv_block_remove(f->one.cache, block),
					 0);
			kv_block_put(f->one.cache, block);
		} else if (n < OLD && f->removed[n]) {
			alloc_must(save(f, n) >= 0);
		}
	}
	assert_int_equal(kv_space_sync(f->one.cache, f->one.space), 0);
	for (unsigned n = 0; n < ALL; n++) {
		f->durable[n] = n < OLD;
		f->removed[n] = false;
	}
}

static void check_and_close(void *arg)
{
	struct fixture *f = arg;

	restore(f);
	kv_cache_close(kv_steal(f->one.cache));
}

static int set_up(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	strcpy(f->one.path, "kvfs-alloc-XXXXXX");
	assert_non_null(mkdtemp(f->one.path));
	f->one.config.store = f->one.path;
	f->one.config.dram = 16 << 20;
	f->one.config.ssd = 64 << 20;
	f->one.config.ssd_given = true;
	f->one.config.segment = 8 << 20;
	f->one.config.hugepages = KV_HUGE_OFF;
	f->one.config.evict = "flru";
	f->one.config.io_retry = 5000000; /* ns */
	f->one.config.scrub = 100 << 20;
	open_cache(f);
	for (unsigned n = 0; n < OLD; n++)
		/* count the block as removed, so that check_and_close saves
		 * it */
		f->removed[n] = true;
	check_and_close(f);
	*state = f;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	if (f->one.cache)
		kv_cache_close(f->one.cache);
	tree_remove(f->one.path);
	free(f);
	return 0;
}

static void every(struct fixture *f, const struct alloc_script *script)
{
	long one = alloc_every(script, f, 1);
	long many = alloc_every(script, f, 1000);

	print_message("%ld + %ld runs with a fault\n", one, many);
	assert_true(one > 0 && many > 0);
}

/* ---- scripts ---- */

static void opens(void *arg)
{
	struct fixture *f = arg;
	char *why = NULL;
	int r = kv_cache_open(&f->one.config, &f->one.cache, &why);

	alloc_among(r, 0, -ENOMEM, -EAGAIN /* pthread_create */);
	alloc_must(r < 0 || !why);
	free(why);
}

static void opened(void *arg)
{
	struct fixture *f = arg;

	if (!f->one.cache)
		open_cache(f);
	f->one.space = kv_space_find(f->one.cache, "s");
	assert_non_null(f->one.space);
	check_and_close(f);
}

static void a_store_opens_whole_or_not_at_all(void **state)
{
	const struct alloc_script script = {opens, NULL, opened};

	every(*state, &script);
}

static void closes(void *arg)
{
	struct fixture *f = arg;

	save(f, OLD);
	kv_cache_close(kv_steal(f->one.cache));
}

static void a_store_closes_whatever_happens(void **state)
{
	const struct alloc_script script = {closes, open_cache, opened};

	every(*state, &script);
}

static void saves(void *arg)
{
	struct fixture *f = arg;

	for (unsigned n = OLD; n < OLD + 2; n++)
		save(f, n);
	sync_all(f);
	look(f, 0);
	look(f, OLD);
}

static void blocks_are_saved_or_not(void **state)
{
	const struct alloc_script script = {saves, open_cache, check_and_close};

	every(*state, &script);
}

static void changes(void *arg)
{
	struct fixture *f = arg;
	struct kv_key key = one_key(1);
	struct kv_block *block;
	int r = kv_block_get(f->one.cache, f->one.space, &key, &block);

	alloc_among(r, 0);
	r = kv_block_pin(f->one.cache, block, true);
	alloc_among(r, 0, -ENOMEM);
	r = kv_block_promote(f->one.cache, block);
	alloc_among(r, 0, -ENOMEM, -ENOSPC);
	r = kv_block_set_mtime(f->one.cache, block, 5);
	alloc_among(r, 0, -ENOMEM);
	r = kv_block_sync(f->one.cache, block);
	alloc_among(r, 0, -ENOMEM);
	r = kv_block_demote(f->one.cache, block);
	alloc_among(r, 0, -ENOMEM);
	r = kv_block_pin(f->one.cache, block, false);
	alloc_among(r, 0, -ENOMEM);
	kv_block_touch(f->one.cache, block);
	f->removed[1] = true;
	r = kv_block_remove(f->one.cache, block);
	alloc_among(r, 0, -ENOMEM);
	kv_block_put(f->one.cache, block);
	sync_all(f);
}

static void blocks_change_tier_or_say_why_not(void **state)
{
	const struct alloc_script script = {changes, open_cache,
					    check_and_close};

	every(*state, &script);
}

static void settled(struct kv_acquire *acquire, void *arg)
{
	(void)acquire;
	*(_Atomic bool *)arg = true;
}

static void acquires(void *arg)
{
	struct fixture *f = arg;
	_Alignas(struct kv_acquire) static char
		room[sizeof(struct kv_acquire) + OLD * sizeof(struct kv_want)];
	struct kv_acquire *acquire = (void *)room;
	_Atomic bool done = false;

	memset(room, 0, sizeof(room));
	acquire->space = f->one.space;
	acquire->n = OLD;
	acquire->done = settled;
	acquire->arg = &done;
	for (unsigned n = 0; n < OLD; n++)
		acquire->wants[n].key = one_key(n);
	if (kv_acquire_submit(f->one.cache, acquire) > 0)
		while (!done)
			usleep(100);
	for (unsigned n = 0; n < OLD; n++)
		alloc_among(acquire->wants[n].status, 0, -ENOMEM, -ENOENT,
			    -ENOSPC);
	kv_acquire_release(f->one.cache, acquire);
}

static void blocks_are_leased_or_missed(void **state)
{
	const struct alloc_script script = {acquires, open_cache,
					    check_and_close};

	every(*state, &script);
}

static void spaces(void *arg)
{
	struct fixture *f = arg;
	const struct kv_quota quota = {.quota_ssd = 32 << 20};
	struct kv_space *space;
	uint64_t *ids;
	char *said;
	size_t n;
	int r = kv_space_create(f->one.cache, "new", 1, 2, 0700, &space);

	said = kv_cache_describe(f->one.cache);
	free(said);
	alloc_among(r, 0, -ENOMEM);
	if (r < 0)
		return;
	r = kv_space_set_layout(f->one.cache, space, 0, text, strlen(text));
	alloc_among(r, 0, -ENOMEM, -EINVAL);
	r = kv_space_set_quota(f->one.cache, space, NULL, &quota);
	alloc_among(r, 0, -ENOMEM);
	r = kv_space_chown(f->one.cache, space, 3, 4, 0750);
	alloc_among(r, 0, -ENOMEM);
	r = kv_dir_make(f->one.cache, space, 7);
	alloc_among(r, 0, -ENOMEM);
	r = kv_dir_list(f->one.cache, f->one.space, 1, &ids, &n);
	alloc_among(r, 0, -ENOMEM);
	if (r == 0)
		free(ids);
	r = kv_space_remove(f->one.cache, space);
	alloc_among(r, 0, -ENOMEM, -ENOTEMPTY);
}

static void forget_space(struct fixture *f)
{
	struct kv_space *space = kv_space_find(f->one.cache, "new");
	int r = space ? kv_dir_remove(f->one.cache, space, 7) : 0;

	assert_true(r == 0 || r == -ENOENT);
	if (space)
		assert_int_equal(kv_space_remove(f->one.cache, space), 0);
}

/* If the removal of the space failed, the space may be there again after a
 * restart. */
static void open_without_space(void *arg)
{
	open_cache(arg);
	forget_space(arg);
}

static void forget_and_close(void *arg)
{
	forget_space(arg);
	check_and_close(arg);
}

static void a_space_is_made_changed_and_removed_or_not(void **state)
{
	const struct alloc_script script = {spaces, open_without_space,
					    forget_and_close};

	every(*state, &script);
}

/* Remove a block while all allocations fail, sync with free memory, and
 * crash. */
static void a_block_that_is_removed_without_memory_does_not_return(void **state)
{
	struct fixture *f = *state;
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		struct kv_key key = one_key(1);
		struct kv_block *block;

		open_cache(f);
		alloc_must(kv_block_get(f->one.cache, f->one.space, &key,
					&block) == 0);
		inject_arm(ENOMEM, 0, 1000000);
		status = kv_block_remove(f->one.cache, block);
		kv_block_put(f->one.cache, block);
		alloc_must(inject_disarm() > 0 && status == 0);
		alloc_must(kv_space_sync(f->one.cache, f->one.space) == 0);
		kill(getpid(), SIGKILL);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	f->removed[1] = true;
	open_cache(f);
	assert_int_equal(look(f, 1), 0);
	check_and_close(f);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_store_opens_whole_or_not_at_all),
		TEST(a_store_closes_whatever_happens),
		TEST(blocks_are_saved_or_not),
		TEST(blocks_change_tier_or_say_why_not),
		TEST(blocks_are_leased_or_missed),
		TEST(a_space_is_made_changed_and_removed_or_not),
		TEST(a_block_that_is_removed_without_memory_does_not_return),
	};

	if (alloc_skip())
		return 77;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
