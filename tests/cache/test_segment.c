/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments that clients keep mapped after the daemon has retired them: which
 * users are charged, and how other users are affected.
 */
#include <sys/mman.h>

#include "cache/core/account.h"
#include "cache/core/ledger.h"
#include "tests/cache/tiers.h"

#define USER 1
#define LIAR 2
#define SEGMENTS 8u
#define ROUNDS 100u
#define RETIRED 64u

struct keeper {
	struct tiers *t;
	/* true: the clients unmap a retired segment as soon as the daemon asks
	 * for that */
	bool answers;
	_Atomic unsigned n_told;
	uint32_t told[RETIRED * 4];
	void *mapped[ROUNDS];
	unsigned n;
};

static struct keeper keeper; /* the clients of user LIAR */

static void told(void *arg, uint32_t id)
{
	(void)arg;
	keeper.told[keeper.n_told++ % KV_ARRAY_LEN(keeper.told)] = id;
	if (keeper.answers)
		kv_segment_returned(keeper.t->cache, id, LIAR);
}

static void begin(struct tiers *t, bool answers)
{
	t->config.retire = told;
	keeper = (struct keeper){.t = t, .answers = answers};
	tiers_without_ssd(t);
}

/* Lease the first block of @chain as the user @uid, and count its segment as
 * mapped by a client of @uid.  Return 0 or -errno. */
static int take_segment(struct tiers *t, struct kv_space *space, unsigned chain,
			uint32_t uid)
{
	struct kv_acquire *lease = tiers_acquire(t, space, chain, 1);
	const struct kv_want *want = &lease->wants[0];
	struct kv_given_segment given;
	void *at;
	int r = want->status;

	if (r == 0)
		r = kv_segment_give(t->cache, want->segment, uid, &given);
	if (r == 0) {
		at = mmap(NULL, given.bytes, PROT_READ, MAP_SHARED, given.fd,
			  0);
		assert_ptr_not_equal(at, MAP_FAILED);
		assert_true(keeper.n < ROUNDS);
		keeper.mapped[keeper.n++] = at;
	}
	tiers_release(t, lease);
	return r;
}

static void let_go(struct tiers *t)
{
	while (keeper.n > 0)
		munmap(keeper.mapped[--keeper.n],
		       t->cache->arena.segment_bytes);
}

static uint64_t charged(struct tiers *t)
{
	return kv_accounts_used(kv_cache_accounts(t->cache),
				KV_FINITE_SEGMENTS);
}

static void check(struct tiers *t)
{
	kv_lock(t->cache);
	kv_arena_check_locked(t->cache);
	assert_true(t->cache->arena.made <= t->cache->arena.max);
	kv_unlock(t->cache);
}

/* Save as many blocks as fill a segment.  Return whether that succeeded. */
static bool save_a_segment(struct tiers *t, unsigned *chain)
{
	const uint64_t until = kv_now_ns() + 30000000000u;
	unsigned n = 0;

	while (n < 80 && kv_now_ns() < until) {
		if (tiers_save(t, t->space, *chain, 0) == 0)
			n++;
		else
			usleep(1000);
		++*chain;
	}
	return n == 80;
}

/* Remove a block, so that its segment has no slot in use. */
static void remove_block(struct tiers *t, struct kv_space *space,
			 unsigned chain)
{
	struct kv_block *block = tiers_get(t, space, chain, 0);

	assert_non_null(block);
	assert_int_equal(kv_block_unlink(t->cache, block), 0);
	kv_block_put(t->cache, block);
}

/* Save, lease and map segments as LIAR, and keep them mapped when they are
 * retired.  Return the error that ends this. */
static int lie(struct tiers *t, unsigned *chain)
{
	struct kv_space *liars = tiers_space(t, "b", LIAR, PREFIX_LAYOUT);
	int r = 0;

	for (unsigned i = 0; i < ROUNDS - 1; i++) {
		const unsigned before = keeper.n_told;

		if (tiers_save(t, liars, i, 0) < 0) {
			usleep(100000);
			continue;
		}
		r = take_segment(t, liars, i, LIAR);
		remove_block(t, liars, i);
		if (r < 0)
			break;
		for (unsigned j = 0; j < 1000 && keeper.n_told == before; j++)
			(void)tiers_save(t, t->space, (*chain)++, 0);
		check(t);
	}
	return r;
}

static void what_is_kept_is_within_the_memory_and_the_share(void **state)
{
	struct tiers *t = *state;
	unsigned chain = 0;

	begin(t, true);
	assert_int_equal(lie(t, &chain), -ENOLCK);
	assert_in_range(keeper.n, 2, SEGMENTS - 2);
	assert_in_range(charged(t), 2, SEGMENTS - 2);
	assert_int_equal(tiers_stats(t).dram_retired, charged(t));
	/* Another user can use the memory that LIAR does not hold. */
	assert_true(save_a_segment(t, &chain));
	assert_int_equal(take_segment(t, t->space, chain - 1, USER), 0);
	/* The segment is free again when no client maps it. */
	let_go(t);
	while (charged(t) || tiers_stats(t).dram_segments < SEGMENTS)
		usleep(10000);
	assert_int_equal(tiers_stats(t).dram_retired, 0);
	check(t);
}

static void so_is_what_nobody_says_was_unmapped(void **state)
{
	struct tiers *t = *state;
	unsigned chain = 0;

	begin(t, false);
	assert_int_equal(lie(t, &chain), -ENOLCK);
	assert_in_range(charged(t), 2, SEGMENTS - 2);
	let_go(t);
	/* The kernel reports that the client's process has ended. */
	for (unsigned i = 0; i < keeper.n_told; i++)
		kv_segment_returned(t->cache, keeper.told[i], LIAR);
	while (charged(t) || tiers_stats(t).dram_segments < SEGMENTS)
		usleep(10000);
	assert_int_equal(tiers_stats(t).dram_retired, 0);
	check(t);
}

/* A client of another user keeps a segment mapped that the owner's clients have
 * unmapped: the owner is not charged for it. */
static void nobody_is_charged_for_a_reader_of_his_blocks(void **state)
{
	struct tiers *t = *state;
	struct kv_space *other;
	unsigned chain = 1, user;

	begin(t, true);
	other = tiers_space(t, "c", 3, PREFIX_LAYOUT);
	assert_int_equal(tiers_save(t, t->space, 0, 0), 0);
	assert_int_equal(take_segment(t, t->space, 0, LIAR), 0);
	assert_int_equal(take_segment(t, t->space, 0, USER), 0);
	munmap(keeper.mapped[--keeper.n], t->cache->arena.segment_bytes);
	remove_block(t, t->space, 0);
	while (!keeper.n_told)
		(void)tiers_save(t, other, chain++, 0);
	kv_segment_returned(t->cache, keeper.told[0], USER);
	while (tiers_stats(t).dram_retired == 0)
		usleep(10000);
	check(t);
	assert_int_equal(charged(t), 1);
	kv_lock(t->cache);
	user = kv_tenant_find(t->cache, USER)->kept_segments;
	kv_unlock(t->cache);
	assert_int_equal(user, 0);
	let_go(t);
	while (charged(t))
		usleep(10000);
}

static _Atomic uint64_t ended_ns;

static void *end_slowly(void *arg)
{
	usleep(100000);
	let_go(arg);
	ended_ns = kv_now_ns();
	return NULL;
}

/* The kernel closes the socket of a killed process before it drops the
 * process's mappings.  An acquire that needs their segments waits for that. */
static void a_process_that_ends_takes_no_room(void **state)
{
	struct tiers *t = *state;
	struct kv_space *other = tiers_space(t, "b", LIAR, PREFIX_LAYOUT);
	const uint64_t most_ns = KV_UNMAP_NS / 2;
	uint32_t segment, last = 0, ids[SEGMENTS];
	struct kv_acquire *lease;
	unsigned n = 0, chain;
	uint64_t begun;
	pthread_t thread;

	keeper = (struct keeper){.t = t};
	for (unsigned i = 0; i < 10; i++)
		tiers_must_save(t, t->space, 0, i);
	assert_int_equal(kv_space_sync(t->cache, t->space), 0);
	for (unsigned i = 0; i < 10; i++) {
		struct kv_block *block = tiers_get(t, t->space, 0, i);

		assert_int_equal(kv_block_demote(t->cache, block), 0);
		kv_block_put(t->cache, block);
	}
	/* The other user's client maps all of the memory. */
	for (chain = 1; chain < 1000; chain++)
		tiers_must_save(t, other, chain, 0);
	tiers_quiet(t);
	assert_int_equal(tiers_of(t, t->space, 0, 0), KV_TIER_SSD);
	while (--chain && n < SEGMENTS) {
		lease = tiers_acquire(t, other, chain, 1);
		segment = lease->wants[0].segment;
		tiers_release(t, lease);
		if (segment == last)
			continue;
		last = segment;
		ids[n++] = segment;
		assert_int_equal(take_segment(t, other, chain, LIAR), 0);
	}
	assert_in_range(n, SEGMENTS - 2, SEGMENTS);
	begun = kv_now_ns();
	for (unsigned i = 0; i < n; i++)
		kv_segment_returned(t->cache, ids[i], LIAR);
	assert_int_equal(pthread_create(&thread, NULL, end_slowly, t), 0);
	lease = tiers_acquire(t, t->space, 0, 10);
	pthread_join(thread, NULL);
	for (unsigned i = 0; i < 10 && ended_ns - begun < most_ns; i++)
		assert_int_equal(lease->wants[i].status, 0);
	tiers_release(t, lease);
	while (charged(t) || tiers_stats(t).dram_segments < SEGMENTS)
		usleep(1000);
	check(t);
}

static void the_kernel_tells_whether_it_is_mapped(void **state)
{
	const uint64_t bytes = 8 << 20;
	struct kv_memory memory;
	void *at;

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		const bool sealed = i & 1;

		assert_int_equal(
			kv_memory_new(bytes, i & 2 ? KV_HUGE_AUTO : KV_HUGE_OFF,
				      sealed, &memory),
			0);
		assert_int_equal(kv_memory_seal(&memory, true), 0);
		at = mmap(NULL, bytes, PROT_READ, MAP_SHARED,
			  sealed ? memory.read_fd : memory.write_fd, 0);
		assert_ptr_not_equal(at, MAP_FAILED);
		assert_true(kv_memory_in_use(&memory));
		munmap(at, bytes);
		assert_false(kv_memory_in_use(&memory));
		kv_memory_free(&memory, bytes);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(what_is_kept_is_within_the_memory_and_the_share),
		TEST(so_is_what_nobody_says_was_unmapped),
		TEST(nobody_is_charged_for_a_reader_of_his_blocks),
		TEST(a_process_that_ends_takes_no_room),
		cmocka_unit_test(the_kernel_tells_whether_it_is_mapped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
