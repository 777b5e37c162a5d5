/* SPDX-License-Identifier: Apache-2.0 */
/* Staging of sessions: small at first, grown in the background, and bounded for
 * all sessions of a process together. */
#include "tests/kernels/layered.h"

#include "kernels/session/session.h"
#include "kernels/transfer/xfer.h"

#define SESSIONS 64
#define LONG (60 * SECOND)

static struct layered sessions[SESSIONS];

static void open_all(struct world *w, size_t n)
{
	for (size_t i = 0; i < n; i++)
		layered_open(w, &sessions[i]);
}

static void close_all(size_t n)
{
	for (size_t i = 0; i < n; i++)
		layered_close(&sessions[i]);
}

static uint64_t staging_of(kvfs_pool *pool)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};

	assert_int_equal(kvfs_pool_info(pool, &info), 0);
	return info.bytes_staging;
}

static uint64_t staging_of_all(size_t n)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < n; i++)
		bytes += staging_of(sessions[i].pool);
	return bytes;
}

/* A large staging for each session would take 4 GiB in all. */
static void small_saves_of_many_sessions_wait_for_no_staging(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfers[SESSIONS];
	uint64_t before;

	layered_fill(w, SESSIONS);
	open_all(w, SESSIONS);
	before = kv_now_ns();
	for (uint32_t i = 0; i < SESSIONS; i++)
		xfers[i] = layered_save_by(sessions[i].pool, sessions[i].space,
					   i, 1, NULL);
	assert_int_equal(kvfs_xfer_wait(xfers[0], KVFS_SEALED, LONG), 1);
	printf("first sealed after %u ms\n",
	       (unsigned)((kv_now_ns() - before) / 1000000));
	for (uint32_t i = 0; i < SESSIONS; i++)
		assert_int_equal(layered_end(xfers[i], KVFS_SEALED), 1);
	printf("all sealed after %u ms\n",
	       (unsigned)((kv_now_ns() - before) / 1000000));
	assert_in_range(staging_of_all(SESSIONS), SESSIONS * KV_STAGE_FIRST,
			KV_STAGE_SHARE + 2 * SESSIONS * KV_STAGE_FIRST);
	close_all(SESSIONS);
}

static void save_all(struct world *w)
{
	assert_int_equal(kvfs_space_clear(w->space), 0);
	layered_fill(w, PAGES);
	assert_int_equal(
		layered_end(
			layered_save_by(w->pool, w->space, 0, PAGES,
					&(kvfs_opts){.size = sizeof(kvfs_opts),
						     .flags = KVFS_MUST}),
			KVFS_SEALED),
		PAGES);
	layered_check(w, PAGES);
}

/* A connection made after the pool gets its staging as well. */
static void staging_is_made_before_anything_is_saved(void **state)
{
	struct world *w = *state;

	world_wait_staged(w);
	save_all(w);
	world_stop_daemon(w, SIGKILL);
	world_wait_connected(w->session, 0);
	assert_int_equal(staging_of(w->pool), 0);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
	world_wait_staged(w);
	save_all(w);
}

/* Save a hundred times, and on until the staging has grown. */
static void save_until_grown(struct world *w, uint32_t first)
{
	const uint64_t until = kv_now_ns() + LONG;
	kvfs_xfer *xfer;

	for (uint32_t i = 0; i < 100 || (staging_of(w->pool) < KV_STAGE_BYTES &&
					 kv_now_ns() < until);
	     i++) {
		xfer = layered_save_by(w->pool, w->space, first + i * 40, 40,
				       &(kvfs_opts){.size = sizeof(kvfs_opts),
						    .flags = KVFS_MUST});
		assert_int_equal(layered_end(xfer, KVFS_SEALED), 40);
	}
}

static void *save_on(void *arg)
{
	save_until_grown(arg, 1000);
	return NULL;
}

/* Two threads save all the time: the staging is never idle. */
static void staging_grows_while_it_is_in_use(void **state)
{
	struct world *w = *state;
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, save_on, w), 0);
	save_until_grown(w, 1u << 24);
	pthread_join(thread, NULL);
	assert_true(staging_of(w->pool) >= KV_STAGE_BYTES);
}

static void sessions_of_a_process_share(void **state)
{
	struct world *w = *state;
	const size_t n = 8;
	kvfs_xfer *xfers[8];

	layered_fill(w, PAGES);
	open_all(w, n);
	for (int round = 0; round < 4; round++) {
		for (uint32_t i = 0; i < n; i++)
			xfers[i] = layered_save_by(
				sessions[i].pool, sessions[i].space,
				(uint32_t)round * 10000 + i * PAGES, PAGES,
				&(kvfs_opts){.size = sizeof(kvfs_opts),
					     .flags = KVFS_MUST});
		for (uint32_t i = 0; i < n; i++)
			assert_int_equal(layered_end(xfers[i], KVFS_SEALED),
					 PAGES);
	}
	for (int i = 0; i < 3000 && staging_of_all(n) < KV_STAGE_BYTES; i++)
		usleep(10000);
	assert_in_range(staging_of_all(n), KV_STAGE_BYTES,
			KV_STAGE_SHARE + n * KV_STAGE_FIRST);
	/* Make the last session request more staging memory. */
	assert_int_equal(
		kvfs_pool_staging(sessions[n - 1].pool, KV_STAGE_BYTES / 2, 2),
		0);
	for (int i = 0;
	     i < 2000 && staging_of(sessions[n - 1].pool) < KV_STAGE_BYTES; i++)
		usleep(10000);
	assert_true(staging_of(sessions[n - 1].pool) >= KV_STAGE_BYTES);
	close_all(n);
	/* All staging memory is free for the next sessions. */
	staging_is_made_before_anything_is_saved(state);
}

static void staging_is_made_anew_with_the_daemon(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer;

	layered_fill(w, PAGES);
	for (int i = 0; i < 3; i++) {
		xfer = layered_save_by(w->pool, w->space, 0, PAGES, NULL);
		usleep(10000u * (unsigned)i);
		world_stop_daemon(w, SIGKILL);
		assert_true(kvfs_xfer_wait(xfer, KVFS_SEALED, LONG) >= 0);
		kvfs_xfer_free(xfer);
		world_start_daemon(w);
		world_wait_connected(w->session, 1);
	}
	xfer = layered_save_by(
		w->pool, w->space, 0, PAGES,
		&(kvfs_opts){.size = sizeof(kvfs_opts), .flags = KVFS_MUST});
	assert_int_equal(layered_end(xfer, KVFS_SEALED), PAGES);
	layered_check(w, PAGES);
}

/* A stage that was begun for one connection ends after the next has begun. */
static void staging_of_a_connection_before_is_made_anew(void **state)
{
	struct world *w = *state;
	struct kvfs_session *session = w->session;

	world_wait_staged(w);
	pthread_mutex_lock(&session->lock);
	session->user->broken_locked(session);
	kv_staging_begin_locked(session);
	assert_true(session->stage_making && session->stage_growing);
	session->user->broken_locked(session);
	atomic_store(&session->live, ++session->generations);
	session->user->connected_locked(session);
	pthread_mutex_unlock(&session->lock);
	world_wait_staged(w);
}

/* A late answer swaps stages after the session has begun to close: the stage is
 * smaller than the size that the caller has set. */
static void a_session_that_closes_makes_no_staging(void **state)
{
	struct world *w = *state;
	struct kvfs_session *session = w->session;
	struct kv_stage *next;
	bool makes;

	assert_int_equal(kvfs_pool_staging(w->pool, 16u << 20, 1), 0);
	for (int i = 0; i < 2000 && staging_of(w->pool) < 16u << 20; i++)
		usleep(10000);
	assert_int_equal(kv_stage_new(1u << 20, false, false, &next), 0);
	pthread_mutex_lock(&session->lock);
	session->user->closing(session);
	session->staging_bytes = 32u << 20;
	session->stage_next = next;
	assert_int_equal(kv_staging_swap_locked(session), 0);
	while (session->rpc.n_pending > 0)
		kv_session_wait(session, kv_time_after(SECOND / 100));
	makes = session->stage_making || session->stage_growing;
	pthread_mutex_unlock(&session->lock);
	assert_false(makes);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(small_saves_of_many_sessions_wait_for_no_staging),
		test(staging_is_made_before_anything_is_saved),
		test(staging_grows_while_it_is_in_use),
		test(sessions_of_a_process_share),
		test(staging_is_made_anew_with_the_daemon),
		test(staging_of_a_connection_before_is_made_anew),
		test(a_session_that_closes_makes_no_staging),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
