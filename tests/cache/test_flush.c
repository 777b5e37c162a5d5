/* SPDX-License-Identifier: Apache-2.0 */
/* A flush, or the sync of a block, ends when its blocks are durable. */
#include "tests/cache/tiers.h"

/* highest number of records in a commit: small, so that a few saves fill a
 * commit */
#define FEW 8u

struct load {
	struct tiers *t;
	pthread_t thread;
	unsigned chain;
	_Atomic bool stop;
};

/* Save blocks without parents until stopped, so that every commit is full. */
static void *save_on(void *arg)
{
	struct load *load = arg;

	for (unsigned i = 0; !load->stop; i++)
		if (tiers_stats(load->t).dirty_blocks > 3 * FEW ||
		    tiers_save(load->t, load->t->space, load->chain + i, 0) < 0)
			usleep(200);
	return NULL;
}

static void load_begin(struct load *load, struct tiers *t, unsigned chain)
{
	load->t = t;
	load->chain = chain;
	load->stop = false;
	assert_int_equal(pthread_create(&load->thread, NULL, save_on, load), 0);
}

static void load_end(struct load *load)
{
	load->stop = true;
	pthread_join(load->thread, NULL);
}

/* Return the block's record in the index, as a mount after a crash would find
 * it. */
static struct kv_slot_record recorded(struct tiers *t, unsigned chain,
				      unsigned position)
{
	struct kv_block *block = tiers_get(t, t->space, chain, position);
	struct kv_slot_record record = {0};

	assert_non_null(block);
	assert_int_equal(
		kv_index_get(t->cache->index,
			     kv_slot_id(block->file, block->slot_number),
			     &record, NULL),
		0);
	kv_block_put(t->cache, block);
	return record;
}

static void few_a_commit(struct tiers *t)
{
	kv_lock(t->cache);
	t->cache->ssd.round_max = FEW;
	kv_unlock(t->cache);
}

static void set_all(struct tiers *t, unsigned n, bool pin, int64_t mtime_ns)
{
	for (unsigned i = 0; i < n; i++) {
		struct kv_block *block = tiers_get(t, t->space, 0, i);

		assert_int_equal(kv_block_pin(t->cache, block, pin), 0);
		assert_int_equal(kv_block_set_mtime(t->cache, block, mtime_ns),
				 0);
		kv_block_put(t->cache, block);
	}
}

static void
a_flush_covers_pins_and_mtimes_while_saves_fill_every_commit(void **state)
{
	struct tiers *t = *state;
	struct load load[2];

	for (unsigned i = 0; i < 40; i++)
		tiers_must_save(t, t->space, 0, i);
	assert_int_equal(kv_space_sync(t->cache, t->space), 0);
	few_a_commit(t);
	for (unsigned i = 0; i < 2; i++)
		load_begin(&load[i], t, 1000000 * (i + 1));
	for (int64_t round = 1; round < 4; round++) {
		set_all(t, 40, round & 1, round);
		assert_int_equal(kv_space_sync(t->cache, t->space), 0);
		for (unsigned i = 0; i < 40; i++) {
			assert_int_equal(recorded(t, 0, i).pinned, round & 1);
			assert_int_equal(recorded(t, 0, i).mtime_ns, round);
		}
	}
	for (unsigned i = 0; i < 2; i++)
		load_end(&load[i]);
}

/* Save a block without a flush, and again until the writer lingers (waits for
 * more blocks before it writes); make it linger for ever.  Return the chain of
 * the last block. */
static unsigned lingers(struct tiers *t)
{
	static unsigned chain = 5000;
	bool is = false;

	while (!is) {
		tiers_quiet(t);
		chain++;
		tiers_must_save(t, t->space, chain, 0);
		kv_lock(t->cache);
		is = t->cache->ssd.linger_until != 0;
		if (is)
			t->cache->ssd.linger_until = UINT64_MAX;
		kv_unlock(t->cache);
	}
	return chain;
}

static void a_flush_and_a_sync_end_the_linger_of_the_writer(void **state)
{
	struct tiers *t = *state;
	struct kv_block *block;

	lingers(t);
	assert_int_equal(kv_space_sync(t->cache, t->space), 0);
	block = tiers_get(t, t->space, lingers(t), 0);
	assert_non_null(block);
	assert_int_equal(kv_block_sync(t->cache, block), 0);
	kv_block_put(t->cache, block);
}

static void so_do_lack_of_room_and_the_end_of_the_mount(void **state)
{
	struct tiers *t = *state;

	/* The writer stops lingering when a quarter of the user's share of DRAM
	 * is dirty. */
	lingers(t);
	for (unsigned i = 0; i < 400; i++)
		tiers_must_save(t, t->space, i, 0);
	tiers_quiet(t);
	lingers(t);
	tiers_reopen(t);
}

static void it_covers_those_of_blocks_that_are_being_written(void **state)
{
	struct tiers *t = *state;

	few_a_commit(t);
	for (unsigned round = 0; round < 30; round++) {
		struct kv_block *block;

		tiers_must_save(t, t->space, round, 0);
		/* Pin the block at some time between its seal and its
		 * commit. */
		usleep(round * 200);
		block = tiers_get(t, t->space, round, 0);
		assert_int_equal(kv_block_pin(t->cache, block, true), 0);
		assert_int_equal(kv_block_set_mtime(t->cache, block, 4711), 0);
		kv_block_put(t->cache, block);
		assert_int_equal(kv_space_sync(t->cache, t->space), 0);
		assert_int_equal(recorded(t, round, 0).pinned, 1);
		assert_int_equal(recorded(t, round, 0).mtime_ns, 4711);
	}
}

static void the_sync_of_a_block_covers_its_pin_and_mtime(void **state)
{
	struct tiers *t = *state;
	struct load load;

	for (unsigned i = 0; i < 8; i++)
		tiers_must_save(t, t->space, 0, i);
	assert_int_equal(kv_space_sync(t->cache, t->space), 0);
	few_a_commit(t);
	load_begin(&load, t, 1000000);
	for (int64_t round = 1; round < 10; round++) {
		struct kv_block *block = tiers_get(t, t->space, 0, 7);

		set_all(t, 8, round & 1, round);
		assert_int_equal(kv_block_sync(t->cache, block), 0);
		kv_block_put(t->cache, block);
		assert_int_equal(recorded(t, 0, 7).pinned, round & 1);
		assert_int_equal(recorded(t, 0, 7).mtime_ns, round);
	}
	load_end(&load);
}

/* ---- many blocks, many flushes ---- */

static void without_writeback(struct tiers *t)
{
	kv_cache_close(t->cache);
	t->config.writeback = KV_WRITEBACK_NONE;
	tiers_open(t);
}

static void what_was_not_on_its_way_is_collected_and_written(void **state)
{
	struct tiers *t = *state;

	without_writeback(t);
	for (unsigned i = 0; i < 400; i++)
		tiers_must_save(t, t->space, i, 0);
	assert_int_equal(tiers_stats(t).bytes_written_ssd, 0);
	assert_int_equal(kv_space_sync(t->cache, t->space), 0);
	for (unsigned i = 0; i < 400; i++)
		assert_int_equal(tiers_of(t, t->space, i, 0),
				 KV_TIER_DRAM | KV_TIER_SSD);
}

static void nothing_that_it_asks_for_is_evicted_meanwhile(void **state)
{
	struct tiers *t = *state;
	struct load load[2];

	without_writeback(t);
	for (unsigned i = 0; i < 500; i++)
		tiers_must_save(t, t->space, i, 0);
	for (unsigned i = 0; i < 2; i++)
		load_begin(&load[i], t, 1000000 * (i + 1));
	kv_lock(t->cache);
	const uint64_t blocks = t->space->blocks;
	kv_unlock(t->cache);
	assert_int_equal(kv_space_sync(t->cache, t->space), 0);
	for (unsigned i = 0; i < 2; i++)
		load_end(&load[i]);
	assert_true(tiers_stats(t).ssd_blocks >= blocks);
}

struct one {
	struct kv_flush flush;
	/* status of the flush; 1: the flush has not ended yet */
	_Atomic int status;
};

static void note(struct kv_flush *flush, int status)
{
	struct one *one = flush->arg;

	one->status = status;
}

static void many_flushes_of_many_spaces_end_each_as_it_must(void **state)
{
	enum { SPACES = 8, EACH = 100 };
	struct tiers *t = *state;
	struct one *all = calloc(SPACES * EACH, sizeof(*all));
	struct kv_space *spaces[SPACES];
	char name[8];

	for (unsigned s = 0; s < SPACES; s++) {
		snprintf(name, sizeof(name), "s%u", s);
		spaces[s] = tiers_space(t, name, 1, NULL);
	}
	for (unsigned i = 0; i < SPACES * EACH; i++) {
		struct one *one = &all[i];

		if (i % 4 == 0)
			tiers_must_save(t, spaces[i % SPACES], i, 0);
		one->status = 1;
		one->flush.done = note;
		one->flush.arg = one;
		kv_flush_submit(t->cache, spaces[i % SPACES], &one->flush);
		if (i % 7 == 3)
			kv_flush_cancel(t->cache, &all[i / 2].flush,
					-ECANCELED);
	}
	for (unsigned s = 0; s < SPACES; s++)
		assert_int_equal(kv_space_sync(t->cache, spaces[s]), 0);
	for (unsigned i = 0; i < SPACES * EACH; i++) {
		/* The last flush may have made its blocks durable before its
		 * callback has run. */
		while (all[i].status == 1)
			usleep(1000);
		if (all[i].status != -ECANCELED)
			assert_int_equal(all[i].status, 0);
		if (i % 4 == 0)
			assert_int_equal(tiers_of(t, spaces[i % SPACES], i, 0),
					 KV_TIER_DRAM | KV_TIER_SSD);
	}
	kv_lock(t->cache);
	assert_true(LIST_EMPTY(&t->cache->ssd.flushing));
	assert_int_equal(t->cache->ssd.awaiting, 0);
	kv_unlock(t->cache);
	free(all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_flush_covers_pins_and_mtimes_while_saves_fill_every_commit),
		TEST(a_flush_and_a_sync_end_the_linger_of_the_writer),
		TEST(so_do_lack_of_room_and_the_end_of_the_mount),
		TEST(it_covers_those_of_blocks_that_are_being_written),
		TEST(the_sync_of_a_block_covers_its_pin_and_mtime),
		TEST(what_was_not_on_its_way_is_collected_and_written),
		TEST(nothing_that_it_asks_for_is_evicted_meanwhile),
		TEST(many_flushes_of_many_spaces_end_each_as_it_must),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
