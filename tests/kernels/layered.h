/* SPDX-License-Identifier: Apache-2.0 */
/* layered.h - the world (world.h) with a space of four layers. */
#ifndef KV_TESTS_KERNELS_LAYERED_H
#define KV_TESTS_KERNELS_LAYERED_H

#include "tests/kernels/world.h"

#define LAYERS 4
#define LAYERED_LAYOUT                                                        \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[4,16384]}" \
	",{\"name\":\"v\",\"dtype\":\"U8\",\"shape\":[4,16384]}],"            \
	"\"tokens\":4}"

/* Another session with the test's space and a pool over the same memory. */
struct layered {
	kvfs_session *session;
	kvfs_space *space;
	kvfs_pool *pool;
};

static inline void layered_open(struct world *w, struct layered *l)
{
	kvfs_session *session = w->session;

	assert_int_equal(kvfs_open(w->path, &l->session), 0);
	world_wait_connected(l->session, 1);
	world_space_open(l->session, w->space_name, NULL, 0, &l->space);
	w->session = l->session;
	l->pool = world_pool(w, l->space);
	w->session = session;
}

static inline void layered_close(struct layered *l)
{
	kvfs_pool_close(l->pool);
	kvfs_space_close(l->space);
	kvfs_close(l->session);
}

/* Replace the test's space by one with a layout of four layers. */
static inline int layered_setup_space(struct world *w)
{
	kvfs_pool_close(w->pool);
	kvfs_space_close(w->space);
	snprintf(w->space_name, sizeof(w->space_name), "s%u", w->spaces++);
	world_space_open(w->session, w->space_name, LAYERED_LAYOUT,
			 KVFS_CREATE | 0700, &w->space);
	w->pool = world_pool(w, w->space);
	return 0;
}

/* Set up the test's daemon and client, with a space of four layers. */
static inline int layered_setup(void **state)
{
	world_setup(state);
	return layered_setup_space(*state);
}

/* Return the number before @word in the daemon's statistics. */
static inline long world_stat(struct world *w, const char *word)
{
	char *text, *at;
	long n = -1;

	if (kvfs_stats(w->session, &text) < 0)
		return -1;
	at = strstr(text, word);
	while (at != NULL && at > text && at[-1] == ' ')
		at--;
	while (at != NULL && at > text && at[-1] >= '0' && at[-1] <= '9')
		at--;
	if (at != NULL)
		n = strtol(at, NULL, 10);
	free(text);
	return n;
}

/* Wait until the daemon's statistics have the number @n before @word. */
static inline void world_wait_stat(struct world *w, const char *word, long n)
{
	long now = world_stat(w, word);
	int i;

	/* The statistics still count a block for a moment after its release. */
	for (i = 0; i < 2000 && now != n; i++) {
		usleep(10000);
		now = world_stat(w, word);
	}
	assert_int_equal(now, n);
}

/* Save pages 0 .. n - 1 as blocks @first .. @first + @n - 1. */
static inline kvfs_xfer *layered_save_by(kvfs_pool *pool, kvfs_space *space,
					 uint32_t first, size_t n,
					 const kvfs_opts *opts)
{
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_xfer *xfer;

	world_chain(first, n, keys, pages);
	assert_int_equal(
		kvfs_save(pool, space, keys, NULL, n, pages, opts, &xfer), 0);
	return xfer;
}

/* Fill page i with the bytes of block i, for the first @n pages. */
static inline void layered_fill(struct world *w, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		world_fill(w, (int64_t)i, (uint32_t)i);
}

/* Wait until @xfer reaches @stage, and free it. Return how many blocks reached
 * the stage. */
static inline long layered_end(kvfs_xfer *xfer, enum kvfs_stage stage)
{
	long n = kvfs_xfer_wait(xfer, stage, 60 * SECOND);

	kvfs_xfer_free(xfer);
	return n;
}

static inline uint8_t layered_state(kvfs_space *space, uint32_t block)
{
	kvfs_key key = world_key(block);
	kvfs_query query = {space, &key, 1};
	uint8_t state = 99;

	assert_true(kvfs_probe(&query, 1, &state) >= 0);
	return state;
}

/* Check that blocks 0 .. n - 1 are present with their own bytes. */
static inline void layered_check(struct world *w, size_t n)
{
	kvfs_lease *lease = world_acquire(w, n, (long)n);
	size_t i;

	for (i = 0; i < n; i++)
		assert_true(
			world_is(kvfs_lease_data(lease, i, NULL), (uint32_t)i));
	kvfs_release(lease);
}

#endif
