/* SPDX-License-Identifier: Apache-2.0 */
/* test_snapshot.c - snapshots and pins inside the cache. */
#include "cache/core/account.h"
#include "common/copy.h"
#include "tests/cache/one_cache.h"

#include <dlfcn.h>

#define BYTES 100000u
/* number of items of a snapshot that is too large for the index of a small
 * store */
#define HUGE_ONE 60000u

static _Atomic bool slow; /* true: the index's device is slow */

int fdatasync(int fd)
{
	static int (*real)(int);

	if (!real)
		real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
	if (slow)
		usleep(2000);
	return real(fd);
}

static int set_up(void **state)
{
	return one_set_up(state, "flru");
}

static int save(struct one *f, unsigned n)
{
	struct kv_key key = one_key(n);
	struct kv_meta meta = {.tokens = 16, .mtime_ns = 77};
	struct kv_digest digest;
	struct kv_fill *fill;
	int r = begin_alone(f->cache, f->space, BYTES, &fill);

	if (r < 0)
		return r;
	memset(kv_fill_data(fill), (int)n, BYTES);
	digest = kv_digest_of(kv_fill_data(fill), BYTES);
	return kv_fill_seal(f->cache, fill, &key, &meta, 8, &digest);
}

static bool pinned(struct one *f, unsigned n)
{
	struct kv_block *block = one_get(f, n);
	bool yes = block && kv_block_stat(f->cache, block).pinned;

	if (block)
		kv_block_put(f->cache, block);
	return yes;
}

static void user_pin(struct one *f, unsigned n, bool pin)
{
	struct kv_block *block = one_get(f, n);

	assert_int_equal(kv_block_pin(f->cache, block, pin), 0);
	kv_block_put(f->cache, block);
}

static void remove_block(struct one *f, unsigned n)
{
	struct kv_block *block = one_get(f, n);

	assert_int_equal(kv_block_remove(f->cache, block), 0);
	kv_block_put(f->cache, block);
}

static int take(struct one *f, const char *name, unsigned first, size_t n,
		size_t *ret_missing)
{
	_cleanup_(kv_freep) struct kv_pick *picks = calloc(n, sizeof(*picks));
	size_t missing;

	for (size_t i = 0; i < n; i++)
		picks[i] = (struct kv_pick){one_key(first + (unsigned)i),
					    (uint32_t)i};
	return kv_snapshot_create(f->cache, f->space, name, picks, n,
				  ret_missing ? ret_missing : &missing);
}

static uint64_t id_of(struct one *f, const char *name)
{
	struct kv_snapshot_info info;

	return kv_snapshot_find(f->cache, f->space, name, &info) == 0 ? info.id
								      : 0;
}

static uint64_t pinned_blocks(struct one *f)
{
	struct kv_cache_stats stats;

	kv_cache_stats(f->cache, &stats);
	return stats.pinned;
}

static void pins_of_snapshots_and_of_users_add_up(void **state)
{
	struct one *f = *state;

	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(save(f, i), 0);
	user_pin(f, 0, true);
	assert_int_equal(take(f, "a", 0, 3, NULL), 0);
	assert_int_equal(take(f, "b", 2, 2, NULL), 0);
	assert_int_equal(pinned_blocks(f), 4);
	user_pin(f, 1, true);
	user_pin(f, 1, false);
	assert_true(pinned(f, 1));
	assert_int_equal(kv_snapshot_drop(f->cache, id_of(f, "a")), 0);
	assert_true(pinned(f, 0)); /* block 0 is still pinned by its user */
	assert_false(pinned(f, 1));
	assert_true(pinned(f, 2)); /* block 2 is still pinned by snapshot "b" */
	assert_int_equal(kv_snapshot_unlink(f->cache, id_of(f, "b"), 0), 0);
	assert_false(pinned(f, 2));
	assert_int_equal(kv_snapshot_unlink(f->cache, id_of(f, "b"), 0),
			 -ENOENT);
	assert_true(pinned(f, 3));
	assert_int_equal(kv_snapshot_drop(f->cache, id_of(f, "b")), 0);
	user_pin(f, 0, false);
	assert_int_equal(pinned_blocks(f), 0);
}

/* A block's record says whether the user pinned it; pins of snapshots must not
 * be recorded as the user's. */
static void a_restart_keeps_both_kinds_apart(void **state)
{
	struct one *f = *state;

	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(save(f, i), 0);
	user_pin(f, 0, true);
	assert_int_equal(take(f, "a", 0, 3, NULL), 0);
	assert_int_equal(kv_space_sync(f->cache, f->space), 0);
	assert_int_equal(kv_snapshot_unlink(f->cache, id_of(f, "a"), 2), 0);
	one_reopen(f);
	assert_true(pinned(f, 0));
	assert_true(pinned(f, 1));
	assert_false(pinned(f, 2));
	assert_int_equal(kv_snapshot_drop(f->cache, id_of(f, "a")), 0);
	assert_true(pinned(f, 0));
	assert_false(pinned(f, 1));
	one_reopen(f);
	assert_int_equal(id_of(f, "a"), 0);
	assert_true(pinned(f, 0));
	assert_int_equal(pinned_blocks(f), 1);
}

static void
a_lost_block_stays_listed_and_is_pinned_when_it_returns(void **state)
{
	struct one *f = *state;
	struct kv_snapshot_info info;
	struct kv_pick pick;

	for (unsigned i = 0; i < 2; i++)
		assert_int_equal(save(f, i), 0);
	assert_int_equal(take(f, "a", 0, 2, NULL), 0);
	remove_block(f, 1);
	assert_int_equal(pinned_blocks(f), 1);
	assert_int_equal(kv_snapshot_find(f->cache, f->space, "a", &info), 0);
	assert_int_equal(info.blocks, 2);
	assert_int_equal(kv_snapshot_read(f->cache, info.id, 1, &pick, 1), 1);
	one_reopen(f); /* the removed block stays missing after a mount */
	assert_int_equal(save(f, 1), 0);
	assert_true(pinned(f, 1));
	remove_block(f, 1);
	assert_int_equal(kv_snapshot_drop(f->cache, id_of(f, "a")), 0);
	assert_int_equal(save(f, 1), 0);
	assert_false(pinned(f, 1));
}

static uint64_t charged(struct one *f, enum kv_finite what)
{
	return kv_accounts_used(kv_cache_accounts(f->cache), what);
}

static void what_is_unlinked_is_charged_to_nobody(void **state)
{
	struct one *f = *state;
	const uint64_t blocks = charged(f, KV_FINITE_SNAPSHOTS);
	const uint64_t bytes = charged(f, KV_FINITE_INDEX);

	for (unsigned i = 0; i < 8; i++)
		assert_int_equal(save(f, i), 0);
	assert_int_equal(take(f, "a", 0, 8, NULL), 0);
	assert_true(charged(f, KV_FINITE_SNAPSHOTS) > blocks);
	assert_true(charged(f, KV_FINITE_INDEX) > bytes);
	for (unsigned i = 0; i < 7; i++)
		assert_int_equal(kv_snapshot_unlink(f->cache, id_of(f, "a"), i),
				 0);
	assert_int_equal(kv_snapshot_drop(f->cache, id_of(f, "a")), 0);
	assert_int_equal(charged(f, KV_FINITE_SNAPSHOTS), blocks);
	assert_int_equal(charged(f, KV_FINITE_INDEX), bytes);
}

/* Refuse pins before so much is pinned that nothing can be evicted. */
static void snapshots_leave_room_to_work(void **state)
{
	struct one *f = *state;
	size_t missing, fit;
	unsigned n = 0;

	kv_cache_close(f->cache);
	tree_remove(f->path);
	f->config.ssd = 0; /* without SSD, DRAM alone keeps pinned blocks */
	one_open(f);
	while (n < 300)
		assert_int_equal(save(f, n++), 0);
	assert_int_equal(take(f, "all", 0, n, &missing), -ENOSPC);
	assert_true(missing > n / 2 && missing < n);
	assert_int_equal(pinned_blocks(f), 0);
	assert_int_equal(id_of(f, "all"), 0);
	fit = missing;
	assert_int_equal(take(f, "most", 0, fit, &missing), 0);
	/* A second snapshot of the same blocks needs no more memory. */
	assert_int_equal(take(f, "same", 0, fit, &missing), 0);
	for (unsigned i = 0; i < 500; i++) {
		struct kv_acquire *a =
			calloc(1, sizeof(*a) + sizeof(*a->wants));

		assert_int_equal(save(f, 1000 + i), 0);
		a->space = f->space;
		a->n = 1;
		a->wants[0].key = one_key(1000 + i);
		assert_int_equal(kv_acquire_submit(f->cache, a), 0);
		kv_acquire_touch(f->cache, a);
		assert_int_equal(a->wants[0].status, 0);
		kv_acquire_release(f->cache, a);
		free(a);
	}
	for (unsigned i = 0; i < fit; i++)
		assert_true(pinned(f, i));
}

/* Blocks of a snapshot are pinned on SSD, and can leave DRAM. */
static void a_snapshot_may_be_larger_than_dram(void **state)
{
	struct one *f = *state;
	const unsigned n = 400; /* blocks with 40 MB in all */

	f->config.ssd = 128 << 20;
	one_reopen(f);
	for (unsigned i = 0; i < n; i++) {
		assert_int_equal(save(f, i), 0);
		if (i % 50 == 49)
			assert_int_equal(kv_space_sync(f->cache, f->space), 0);
	}
	assert_int_equal(take(f, "a", 0, n, NULL), 0);
	assert_int_equal(pinned_blocks(f), n);
	for (unsigned i = n; i < 3 * n; i++) {
		assert_int_equal(save(f, i), 0);
		if (i % 50 == 49)
			assert_int_equal(kv_space_sync(f->cache, f->space), 0);
	}
	for (unsigned i = 0; i < n; i++) {
		struct kv_block *block = one_get(f, i);
		struct kv_view view;

		assert_non_null(block);
		assert_int_equal(
			kv_view_get(f->cache, block, KV_VIEW_WAIT, &view), 0);
		assert_int_equal(view.data[BYTES / 2], (uint8_t)i);
		kv_view_put(f->cache, &view);
		kv_block_put(f->cache, block);
	}
}

static void a_space_without_blocks_takes_its_snapshots_along(void **state)
{
	struct one *f = *state;
	struct kv_snapshot_info info;
	uint64_t id;

	assert_int_equal(save(f, 0), 0);
	assert_int_equal(take(f, "a", 0, 1, NULL), 0);
	id = id_of(f, "a");
	assert_int_equal(kv_space_remove(f->cache, f->space), -ENOTEMPTY);
	assert_int_equal(id_of(f, "a"), id);
	remove_block(f, 0);
	assert_int_equal(kv_space_remove(f->cache, f->space), 0);
	assert_int_equal(kv_snapshot_stat(f->cache, id, &info), -ENOENT);
	assert_int_equal(take(f, "a", 0, 1, NULL), -ESTALE);
	one_reopen(f);
	assert_int_equal(id_of(f, "a"), 0);
}

/* A crash may leave records of two snapshots with one name, or the record of a
 * snapshot in a removed space. */
static void records_that_a_crash_left_behind_go(void **state)
{
	struct one *f = *state;
	struct kv_snapshot_item item = {.key_len = 16, .position = 5};
	struct kv_snapshot_record record = {
		.id = 90, .space = f->space->id, .count = 1};
	struct kv_key key = one_key(0);
	struct kv_snapshot_info info;
	struct kv_txn *batch;

	assert_int_equal(save(f, 0), 0);
	assert_int_equal(save(f, 1), 0);
	assert_int_equal(take(f, "a", 0, 2, NULL), 0);
	assert_int_equal(kv_space_sync(f->cache, f->space), 0);
	memcpy(item.key, key.b, sizeof(item.key));
	assert_int_equal(kv_txn_begin(f->cache->index, &batch), 0);
	assert_int_equal(kv_txn_put_snapshot(batch, &record, "a", &item), 0);
	record.id = 91;
	record.space = 4000;
	assert_int_equal(kv_txn_put_snapshot(batch, &record, "b", &item), 0);
	assert_int_equal(kv_txn_commit(batch), 0);
	for (int i = 0; i < 2; i++) {
		one_reopen(f);
		assert_int_equal(
			kv_snapshot_find(f->cache, f->space, "a", &info), 0);
		assert_int_equal(info.id, 90);
		assert_int_equal(info.blocks, 1);
		assert_true(pinned(f, 0));
		assert_false(pinned(f, 1));
		assert_int_equal(f->cache->snapshots.next_id, 91 - (i > 0));
		assert_int_equal(kv_space_sync(f->cache, f->space), 0);
	}
}

/* A snapshot too large for the index is refused, and fails no flush. */
static void a_snapshot_without_room_in_the_index_is_refused(void **state)
{
	struct one *f = *state;
	_cleanup_(kv_freep) struct kv_pick *picks =
		calloc(HUGE_ONE, sizeof(*picks));
	size_t missing;

	assert_int_equal(save(f, 0), 0);
	for (uint32_t i = 0; i < HUGE_ONE; i++)
		picks[i] = (struct kv_pick){one_key(0), i};
	assert_int_equal(kv_snapshot_create(f->cache, f->space, "huge", picks,
					    HUGE_ONE, &missing),
			 -ENOSPC);
	assert_int_equal(missing, HUGE_ONE);
	assert_int_equal(kv_space_sync(f->cache, f->space), 0);
	assert_int_equal(pinned_blocks(f), 0);
	assert_int_equal(kv_snapshot_create(f->cache, f->space, "huge", picks,
					    HUGE_ONE / 8, &missing),
			 0);
	assert_int_equal(kv_space_sync(f->cache, f->space), 0);
}

static void a_read_only_mount_shows_them_and_changes_nothing(void **state)
{
	struct one *f = *state;

	assert_int_equal(save(f, 0), 0);
	assert_int_equal(take(f, "a", 0, 1, NULL), 0);
	f->config.read_only = true;
	one_reopen(f);
	assert_true(pinned(f, 0));
	assert_int_equal(take(f, "b", 0, 1, NULL), -EROFS);
	assert_int_equal(kv_snapshot_unlink(f->cache, id_of(f, "a"), 0),
			 -EROFS);
	assert_int_equal(kv_snapshot_drop(f->cache, id_of(f, "a")), -EROFS);
	f->config.read_only = false;
	one_reopen(f);
	assert_int_equal(kv_snapshot_drop(f->cache, id_of(f, "a")), 0);
}

struct racer {
	struct one *f;
	const char *name;
	unsigned made;
};

static void *race(void *arg)
{
	struct racer *r = arg;

	for (int i = 0; i < 200; i++) {
		uint64_t id;

		if (take(r->f, r->name, 0, 300, NULL) < 0)
			continue;
		r->made++;
		id = id_of(r->f, r->name);
		kv_snapshot_unlink(r->f->cache, id, (uint32_t)i);
		kv_snapshot_drop(r->f->cache, id);
	}
	return NULL;
}

/* Two threads make and drop snapshots of the same name, a third one of another
 * name. */
static void threads_do_not_undo_each_other(void **state)
{
	struct one *f = *state;
	struct racer racers[3] = {{f, "x", 0}, {f, "x", 0}, {f, "y", 0}};
	pthread_t threads[3];

	for (unsigned i = 0; i < 300; i++)
		assert_int_equal(save(f, i), 0);
	for (int i = 0; i < 3; i++)
		assert_int_equal(
			pthread_create(&threads[i], NULL, race, &racers[i]), 0);
	for (int i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	assert_true(racers[0].made + racers[1].made > 0);
	assert_int_equal(racers[2].made, 200);
	assert_int_equal(pinned_blocks(f), 0);
	assert_null(f->cache->pins.tree);
	assert_int_equal(f->cache->pins.bytes, 0);
	assert_int_equal(f->cache->snapshots.cost, 0);
}

static void *drop_on(void *arg)
{
	struct racer *r = arg;
	uint32_t i = 0;

	while (slow) {
		assert_int_equal(take(r->f, r->name, 0, 2, NULL), 0);
		/* give the committer time to begin to write some */
		if (++i % 2)
			usleep(1000);
		assert_int_equal(
			kv_snapshot_drop(r->f->cache, id_of(r->f, r->name)), 0);
	}
	return NULL;
}

/* Users who make and drop snapshots without end do not keep blocks from becoming
 * durable. */
static void changes_without_end_delay_no_block_for_long(void **state)
{
	static const char *const names[] = {"a", "b", "c", "d"};
	struct one *f = *state, other = *f;
	struct racer racers[4];
	pthread_t threads[4];

	assert_int_equal(save(f, 0), 0);
	assert_int_equal(save(f, 1), 0);
	assert_int_equal(
		kv_space_create(f->cache, "other", 7, 7, 0700, &other.space),
		0);
	slow = true;
	for (int i = 0; i < 4; i++) {
		racers[i] = (struct racer){f, names[i], 0};
		assert_int_equal(
			pthread_create(&threads[i], NULL, drop_on, &racers[i]),
			0);
	}
	alarm(60); /* ends a test that hangs */
	for (unsigned i = 2; i < 5; i++) {
		assert_int_equal(save(&other, i), 0);
		assert_int_equal(kv_space_sync(f->cache, other.space), 0);
	}
	alarm(0);
	slow = false;
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(kv_space_sync(f->cache, f->space), 0);
	assert_true(TAILQ_EMPTY(&f->cache->snapshots.dirty));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, one_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(pins_of_snapshots_and_of_users_add_up),
		TEST(a_restart_keeps_both_kinds_apart),
		TEST(a_lost_block_stays_listed_and_is_pinned_when_it_returns),
		TEST(what_is_unlinked_is_charged_to_nobody),
		TEST(snapshots_leave_room_to_work),
		TEST(a_snapshot_may_be_larger_than_dram),
		TEST(a_space_without_blocks_takes_its_snapshots_along),
		TEST(records_that_a_crash_left_behind_go),
		TEST(a_snapshot_without_room_in_the_index_is_refused),
		TEST(a_read_only_mount_shows_them_and_changes_nothing),
		TEST(threads_do_not_undo_each_other),
		TEST(changes_without_end_delay_no_block_for_long),
	};

	return cmocka_run_group_tests_name("snapshot", tests, NULL, NULL);
}
