/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads save, load, map and look up with deadlines, while the daemon is
 * stopped and continued, or killed and restarted, at any moment: every call
 * ends in time, every byte of a reported block is right, and nothing is left at
 * the end.
 */
#include <stdatomic.h>

#include "tests/kernels/layered.h"

#define THREADS 6
#define N 12u	  /* number of blocks in one call */
#define KEYS 400u /* number of different keys */
#define SHORT (SECOND / 5)
#define SOON (20 * SECOND)
#define SECONDS 6

/* A thread of the test, and the pages that only this thread uses. */
struct player {
	struct world *w;
	unsigned seed;
	int64_t first_page;
	kvfs_pool *paged;
	unsigned long calls, good;
	pthread_t thread;
};

static atomic_bool over;

static uint32_t any(struct player *p, uint32_t n)
{
	return (uint32_t)rand_r(&p->seed) % n;
}

/* Choose N consecutive blocks at random, and N of the pages of @p. */
static void choose(struct player *p, kvfs_key *keys, int64_t *pages,
		   uint32_t *ret_first)
{
	*ret_first = any(p, KEYS - N);
	world_chain(*ret_first, N, keys, pages);
	for (uint32_t i = 0; i < N; i++)
		pages[i] = p->first_page + i;
}

/* End @xfer: wait, cancel or abandon it.  Return the number of good blocks. */
static long end(struct player *p, kvfs_xfer *xfer, enum kvfs_stage stage,
		bool pages)
{
	uint64_t before = kv_now_ns();
	long r = -ETIMEDOUT;

	if (any(p, 4) == 0)
		kvfs_xfer_cancel(xfer);
	if (any(p, 4) > 0 || pages)
		r = kvfs_xfer_wait(xfer, stage, SOON);
	if (r == -ETIMEDOUT && pages)
		r = kvfs_xfer_wait(xfer, KVFS_COPIED, SOON);
	assert_true(kv_now_ns() - before < SOON);
	return r;
}

static void play_save(struct player *p)
{
	kvfs_opts opts = {
		.size = sizeof(opts), .deadline = SHORT, .flags = any(p, 4)};
	kvfs_key keys[N];
	int64_t pages[N];
	kvfs_xfer *xfer;
	uint32_t first;

	choose(p, keys, pages, &first);
	for (uint32_t i = 0; i < N; i++)
		world_fill(p->w, pages[i], first + i);
	assert_int_equal(kvfs_save(p->w->pool, p->w->space, keys, NULL, N,
				   pages, &opts, &xfer),
			 0);
	/* Wait until the pages are copied: the next call writes to these
	 * pages. */
	p->good += end(p, xfer, KVFS_SEALED, true) > 0;
	assert_true(kvfs_xfer_wait(xfer, KVFS_COPIED, SOON) >= 0);
	kvfs_xfer_free(xfer);
}

static void play_load(struct player *p)
{
	const kvfs_opts opts = {.size = sizeof(opts), .deadline = SHORT};
	kvfs_key keys[N];
	int64_t pages[N];
	kvfs_query query = {p->w->space, keys, N};
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	uint32_t first;

	choose(p, keys, pages, &first);
	assert_int_equal(
		kvfs_acquire(
			&query, 1,
			KVFS_OPTS(.flags = any(p, 2) ? KVFS_WAIT_SAVING : 0,
				  .deadline = SHORT),
			&lease),
		0);
	if (any(p, 4) == 0)
		kvfs_lease_cancel(lease);
	assert_int_equal(kvfs_load(p->w->pool, lease, N, pages, &opts, &xfer),
			 0);
	if (any(p, 2))
		assert_true(kvfs_lease_wait(lease, SOON) >= 0);
	kvfs_release(lease);
	end(p, xfer, KVFS_COPIED, true);
	for (uint32_t i = 0; i < N; i++) {
		if (kvfs_xfer_status(xfer, i) != 0)
			continue;
		assert_true(world_page_is(p->w, pages[i], first + i));
		p->good++;
	}
	kvfs_xfer_free(xfer);
}

static void play_map(struct player *p)
{
	const kvfs_opts opts = {.size = sizeof(opts), .deadline = SHORT};
	kvfs_key keys[N];
	int64_t pages[N];
	kvfs_mapping *map;
	uint32_t first;

	choose(p, keys, pages, &first);
	assert_int_equal(kvfs_map(p->paged, p->w->space, keys, N, &opts, &map),
			 0);
	assert_true(kvfs_map_wait(map, SOON) >= 0);
	for (uint32_t i = 0; i < N; i++) {
		if (kvfs_map_status(map, i) != 0)
			continue;
		assert_true(world_is(kvfs_map_addr(map, i, NULL), first + i));
		p->good++;
	}
	assert_int_equal(kvfs_unmap(map, NULL), 0);
}

static void play_hints(struct player *p)
{
	kvfs_key keys[N];
	int64_t pages[N];
	kvfs_query query = {p->w->space, keys, N};
	uint64_t before = kv_now_ns();
	kvfs_xfer *xfer;
	uint32_t first;

	choose(p, keys, pages, &first);
	if (any(p, 2)) {
		assert_int_equal(kvfs_prefetch(&query, 1,
					       KVFS_OPTS(.deadline = SHORT),
					       &xfer),
				 0);
		assert_true(kvfs_xfer_wait(xfer, KVFS_COPIED, SOON) >= 0);
	} else {
		assert_int_equal(
			kvfs_flush(p->w->space,
				   any(p, 2) ? KVFS_SEALED : KVFS_DURABLE, NULL,
				   &xfer),
			0);
		kvfs_xfer_wait(xfer, KVFS_DURABLE, SHORT);
		kvfs_xfer_cancel(xfer);
		assert_true(kvfs_xfer_wait(xfer, KVFS_DURABLE, SOON) >= 0);
	}
	kvfs_xfer_free(xfer);
	assert_true(kvfs_match(&query, 1) >= 0);
	if (any(p, 8) == 0)
		assert_true(kvfs_evict(p->w->space, keys, 2, NULL) >= 0);
	if (any(p, 8) == 0)
		kvfs_space_clear(p->w->space);
	assert_true(kv_now_ns() - before < SOON);
}

static void *play(void *arg)
{
	static void (*const what[])(struct player *) = {play_save, play_load,
							play_map, play_hints};
	struct player *p = arg;

	for (; !over; p->calls++)
		what[any(p, 4)](p);
	return NULL;
}

static kvfs_pool *reserve(struct world *w)
{
	kvfs_pool *pool;

	assert_int_equal(kvfs_pool_reserve(w->session, "host", w->space, N,
					   2 * N, &pool),
			 0);
	return pool;
}

/* Stop the daemon for a moment or beyond a deadline; kill it sometimes. */
static void disturb(struct world *w, unsigned *seed)
{
	unsigned what = (unsigned)rand_r(seed) % 10;

	usleep((unsigned)rand_r(seed) % 100000);
	if (what == 0) {
		world_stop_daemon(w, SIGKILL);
		world_start_daemon(w);
		world_wait_connected(w->session, 1);
		return;
	}
	world_freeze(w);
	usleep((unsigned)rand_r(seed) % (what < 7 ? 50000 : 1500000));
	world_thaw(w);
}

static void whatever_the_daemon_does_every_call_ends(void **state)
{
	struct world *w = *state;
	struct player players[THREADS] = {0};
	unsigned seed = (unsigned)kv_now_ns();
	uint64_t until = kv_now_ns() + SECONDS * SECOND, before;
	unsigned long calls = 0, good = 0;

	printf("seed %u\n", seed);
	over = false;
	for (unsigned i = 0; i < THREADS; i++) {
		players[i] = (struct player){.w = w,
					     .seed = seed + i,
					     .first_page = i * N,
					     .paged = reserve(w)};
		assert_int_equal(pthread_create(&players[i].thread, NULL, play,
						&players[i]),
				 0);
	}
	while (kv_now_ns() < until)
		disturb(w, &seed);
	over = true;
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(players[i].thread, NULL);
		calls += players[i].calls;
		good += players[i].good;
	}
	printf("%lu calls, %lu blocks\n", calls, good);
	world_wait_stat(w, "leased", 0);
	/* Some blocks of the paged pools were loaded in part only: closing a
	 * pool drops these blocks. */
	world_freeze(w);
	before = kv_now_ns();
	for (unsigned i = 0; i < THREADS; i++)
		kvfs_pool_close(players[i].paged);
	assert_true(kv_now_ns() - before < SOON);
	world_thaw(w);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(
			whatever_the_daemon_does_every_call_ends, layered_setup,
			world_teardown),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
