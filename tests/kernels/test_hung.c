/* SPDX-License-Identifier: Apache-2.0 */
/* A daemon that hangs (SIGSTOP): the library keeps deadlines and cancels by its
 * own clock, whatever request is unanswered, and after the daemon continues
 * nothing is left in it.  SOON is far above the time the library needs. */
#include "tests/kernels/paged.h"
#include "kernels/session/session.h"
#include "tests/kernels/layered.h"

#define N 20
#define SOON (10 * SECOND)
#define SHORT (SECOND / 5)

/* Check that no client saves or leases a block. */
static void nothing_is_left(struct world *w)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};

	world_thaw(w);
	ask_for_nothing(w);
	world_wait_stat(w, "being saved", 0);
	world_wait_stat(w, "leased", 0);
	assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
	assert_int_equal(info.pages_saving, 0);
	assert_int_equal(info.pages_loading, 0);
}

static void ended_with(kvfs_xfer *xfer, size_t n, int status)
{
	size_t i;

	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, SOON), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, SOON), 0);
	for (i = 0; i < n; i++)
		assert_int_equal(kvfs_xfer_status(xfer, i), status);
	kvfs_xfer_free(xfer);
}

static kvfs_xfer *save(struct world *w, uint32_t first, const kvfs_opts *opts)
{
	return layered_save_by(w->pool, w->space, first, N, opts);
}

/* Check that blocks 0 .. N - 1 can be saved as if they had never been saved. */
static void can_be_saved(struct world *w)
{
	layered_fill(w, N);
	assert_int_equal(layered_end(save(w, 0, NULL), KVFS_SEALED), N);
	layered_check(w, N);
}

/* Make staging memory with room for all N blocks at once. */
static void make_staging(struct world *w)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};

	assert_int_equal(kvfs_pool_staging(w->pool, 16u << 20, 1), 0);
	for (int i = 0; i < 2000 && info.bytes_staging < 16u << 20; i++) {
		usleep(10000);
		assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
	}
	assert_true(info.bytes_staging >= 16u << 20);
}

/* ---- saves to a hung daemon ---- */

static void a_saves_deadline_is_kept(void **state)
{
	struct world *w = *state;
	const kvfs_opts opts = {.size = sizeof(opts), .deadline = SHORT};
	struct kvfs_pool_info info = {.size = sizeof(info)};
	kvfs_xfer *xfer;

	world_save(w, 1);
	world_freeze(w);
	xfer = save(w, 100, &opts);
	ended_with(xfer, N, -ETIMEDOUT);
	assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
	assert_int_equal(info.pages_saving, 0);
	nothing_is_left(w);
	can_be_saved(w);
}

/* The first save of a session has no staging memory yet, and keeps its deadline
 * nevertheless. */
static void a_first_saves_deadline_is_kept(void **state)
{
	struct world *w = *state;
	const kvfs_opts opts = {.size = sizeof(opts), .deadline = SHORT};

	world_freeze(w);
	ended_with(save(w, 100, &opts), N, -ETIMEDOUT);
	nothing_is_left(w);
	can_be_saved(w);
}

static void a_cancelled_save_ends(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer;

	world_save(w, 1);
	world_freeze(w);
	xfer = save(w, 100, NULL);
	usleep(50000);
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_COPIED), 0);
	kvfs_xfer_cancel(xfer);
	ended_with(xfer, N, -ECANCELED);
	nothing_is_left(w);
	can_be_saved(w);
}

/* A save that was cancelled without an answer does not delay a save of the same
 * keys. */
static void the_same_keys_can_be_saved_right_after_a_cancel(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer, *again;

	layered_fill(w, N);
	assert_int_equal(layered_end(save(w, 100, NULL), KVFS_SEALED), N);
	world_freeze(w);
	xfer = save(w, 0, NULL);
	kvfs_xfer_cancel(xfer);
	again = save(w, 0, NULL);
	world_thaw(w);
	ended_with(xfer, N, -ECANCELED);
	assert_int_equal(kvfs_xfer_wait(again, KVFS_SEALED, SOON), N);
	assert_int_equal(kvfs_xfer_status(again, 0), 0);
	kvfs_xfer_free(again);
	layered_check(w, N);
	nothing_is_left(w);
}

/* A cancelled save does not cancel the reservations of another save. */
static void a_cancel_leaves_others_of_the_same_keys_alone(void **state)
{
	struct world *w = *state;
	kvfs_xfer *first, *second;

	layered_fill(w, N);
	assert_int_equal(layered_end(save(w, 100, NULL), KVFS_SEALED), N);
	world_freeze(w);
	first = save(w, 0, NULL);
	second = save(w, 0, NULL);
	kvfs_xfer_cancel(second);
	ended_with(second, N, -ECANCELED);
	world_thaw(w);
	assert_int_equal(kvfs_xfer_wait(first, KVFS_SEALED, SOON), N);
	assert_int_equal(kvfs_xfer_status(first, N - 1), 0);
	kvfs_xfer_free(first);
	layered_check(w, N);
	nothing_is_left(w);
}

/* Freeze the daemon while all copies of a save wait.  Return the save. */
static kvfs_xfer *freeze_under_copy(struct world *w, const kvfs_opts *opts)
{
	kvfs_xfer *xfer;

	make_staging(w);
	slow_shut(true);
	xfer = save(w, 100, opts);
	for (int i = 0; i < 2000 && slow.saves < N; i++)
		usleep(5000);
	world_freeze(w);
	return xfer;
}

/* Copies that have begun go on to their end, and the save keeps the pages until
 * then.  Requests that the daemon has not confirmed end after the copies. */
static void pages_under_copy_stay_the_saves(void **state)
{
	struct world *w = *state;
	const kvfs_opts opts = {.size = sizeof(opts), .deadline = SHORT};
	struct kvfs_pool_info info = {.size = sizeof(info)};
	kvfs_xfer *xfer = freeze_under_copy(w, &opts);

	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, SECOND), -ETIMEDOUT);
	assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
	assert_int_equal(info.pages_saving, N);
	slow_shut(false);
	assert_true(kvfs_xfer_wait(xfer, KVFS_COPIED, SOON) >= 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, SOON), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -ETIMEDOUT);
	kvfs_xfer_free(xfer);
	nothing_is_left(w);
	can_be_saved(w);
}

static void what_was_handed_over_ends_after_a_cancel(void **state)
{
	struct world *w = *state;
	const kvfs_opts opts = {.size = sizeof(opts), .flags = KVFS_HOLD};
	kvfs_xfer *xfer = freeze_under_copy(w, &opts);

	slow_shut(false);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, SOON), N);
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_SEALED), 0);
	kvfs_xfer_cancel(xfer);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, SOON), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -ECANCELED);
	/* When the daemon continues, it seals the block, but it takes no lease
	 * for the flag KVFS_HOLD. */
	world_thaw(w);
	world_wait_stat(w, "being saved", 0);
	world_wait_stat(w, "leased", 0);
	kvfs_xfer_free(xfer);
	nothing_is_left(w);
	can_be_saved(w);
}

/* If the look-up of a space has timed out, a later save or flush looks the
 * space up again, and waits for the daemon. */
static void a_save_in_a_space_that_was_not_found_in_time_waits(void **state)
{
	struct world *w = *state;
	const kvfs_opts must = {.size = sizeof(must), .flags = KVFS_MUST};
	const kvfs_opts late = {.size = sizeof(late), .deadline = SHORT};
	kvfs_xfer *xfers[4], *cancelled, *flush;
	kvfs_space *space;
	uint64_t before;

	layered_fill(w, N);
	world_freeze(w);
	before = kv_now_ns();
	assert_int_equal(kvfs_space_open(w->session, "another", WORLD_LAYOUT,
					 KVFS_CREATE, &space),
			 0);
	xfers[0] = layered_save_by(w->pool, space, 0, N, &must);
	xfers[1] = layered_save_by(w->pool, space, 100, N, NULL);
	xfers[2] = layered_save_by(w->pool, space, 200, N, &late);
	cancelled = layered_save_by(w->pool, space, 300, N, NULL);
	assert_int_equal(kvfs_flush(space, KVFS_DURABLE, NULL, &flush), 0);
	assert_int_equal(kvfs_flush(space, KVFS_DURABLE, NULL, &xfers[3]), 0);
	assert_true(kv_now_ns() - before < SOON);
	kvfs_xfer_cancel(cancelled);
	kvfs_xfer_cancel(xfers[3]);
	ended_with(cancelled, N, -ECANCELED);
	ended_with(xfers[2], N, -ETIMEDOUT);
	ended_with(xfers[3], 1, -ECANCELED);
	assert_int_equal(kvfs_xfer_poll(flush, KVFS_DURABLE), 0);
	world_thaw(w);
	assert_int_equal(layered_end(xfers[0], KVFS_SEALED), N);
	assert_int_equal(layered_end(xfers[1], KVFS_SEALED), N);
	assert_int_equal(layered_end(flush, KVFS_DURABLE), 1);
	kvfs_space_close(space);
	nothing_is_left(w);
}

/* The daemon dies before it answers. */
static void a_save_whose_space_is_never_found_ends(void **state)
{
	struct world *w = *state;
	kvfs_space *space;
	kvfs_xfer *xfer;

	world_freeze(w);
	assert_int_equal(kvfs_space_open(w->session, "another", WORLD_LAYOUT,
					 KVFS_CREATE, &space),
			 0);
	xfer = layered_save_by(w->pool, space, 0, N, NULL);
	kvfs_space_close(space);
	world_stop_daemon(w, SIGKILL);
	ended_with(xfer, N, -ENOTCONN);
	world_start_daemon(w);
	world_thaw(w);
	world_wait_connected(w->session, 1);
	assert_int_equal(layered_end(save(w, 0, NULL), KVFS_SEALED), N);
}

static void a_save_that_must_ends_too(void **state)
{
	struct world *w = *state;
	const kvfs_opts opts = {.size = sizeof(opts),
				.flags = KVFS_MUST | KVFS_HOLD,
				.deadline = SHORT};

	world_save(w, 1);
	world_freeze(w);
	ended_with(save(w, 100, &opts), N, -ETIMEDOUT);
	nothing_is_left(w);
	can_be_saved(w);
}

/* Save more blocks than the staging memory has room for, by more requests than
 * the socket has room for. */
static void many_saves_end(void **state)
{
	struct world *w = *state;
	const kvfs_opts opts = {.size = sizeof(opts), .deadline = SHORT};
	kvfs_xfer *xfers[100];
	uint32_t i;

	world_save(w, 1);
	world_freeze(w);
	for (i = 0; i < KV_ARRAY_LEN(xfers); i++)
		xfers[i] = save(w, 100 + i * N, &opts);
	for (i = 0; i < KV_ARRAY_LEN(xfers); i++)
		ended_with(xfers[i], N, -ETIMEDOUT);
	nothing_is_left(w);
	can_be_saved(w);
}

/* ---- leases, loads, prefetches and maps on a hung daemon ---- */

static kvfs_lease *acquire(struct world *w, size_t n, uint64_t deadline)
{
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_query query = {w->space, keys, n};
	kvfs_lease *lease;

	world_chain(0, n, keys, pages);
	assert_int_equal(kvfs_acquire(&query, 1,
				      KVFS_OPTS(.deadline = deadline), &lease),
			 0);
	return lease;
}

static void a_cancelled_lease_settles(void **state)
{
	struct world *w = *state;
	kvfs_lease *lease;

	world_save(w, N);
	world_freeze(w);
	lease = acquire(w, N, KVFS_FOREVER);
	assert_int_equal(kvfs_lease_wait(lease, SHORT), -ETIMEDOUT);
	kvfs_lease_cancel(lease);
	assert_int_equal(kvfs_lease_wait(lease, SOON), 0);
	assert_int_equal(kvfs_lease_status(lease, N - 1), -ECANCELED);
	kvfs_release(lease);
	nothing_is_left(w);
	kvfs_release(world_acquire(w, N, N));
}

static size_t count_pending(struct kvfs_session *session)
{
	struct kv_call *call;
	size_t n = 0;

	pthread_mutex_lock(&session->lock);
	for (size_t b = 0; b < KV_ARRAY_LEN(session->rpc.pending); b++)
		LIST_FOREACH(call, &session->rpc.pending[b], others)
			n++;
	pthread_mutex_unlock(&session->lock);
	return n;
}

/* Acquire all blocks with @flags and cancel at once, @n times. If @flags is not
 * 0, also hint that the request for the blocks has ended. */
static void ask_again(struct world *w, unsigned flags, int n)
{
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_query query = {w->space, keys, PAGES};
	kvfs_lease *lease;

	world_chain(0, PAGES, keys, pages);
	while (n-- > 0) {
		if (flags)
			assert_int_equal(kvfs_ended(w->space, keys, PAGES), 0);
		assert_int_equal(kvfs_acquire(&query, 1,
					      KVFS_OPTS(.flags = flags),
					      &lease),
				 0);
		kvfs_lease_cancel(lease);
		kvfs_release(lease);
	}
}

/* An engine that polls sends acquires again and again: the library drops the
 * outdated ones. */
static void leases_of_a_hung_daemon_take_no_memory(void **state)
{
	struct world *w = *state;

	world_save(w, 1);
	world_freeze(w);
	ask_again(w, 0, 300);
	for (int i = 0; i < 2000 && count_pending(w->session) >= 100; i++)
		usleep(10000);
	assert_true(count_pending(w->session) < 100);
	nothing_is_left(w);
}

/* Hints to a hung daemon cannot be cancelled: the library limits their
 * number. */
static void hints_to_a_hung_daemon_take_no_memory(void **state)
{
	struct world *w = *state;

	world_save(w, 1);
	world_freeze(w);
	ask_again(w, KVFS_READ_AHEAD, 3000);
	pthread_mutex_lock(&w->session->lock);
	assert_true(w->session->rpc.n_out < 2000);
	pthread_mutex_unlock(&w->session->lock);
	nothing_is_left(w);
}

static void a_load_ends_by_its_deadline_and_by_a_cancel(void **state)
{
	struct world *w = *state;
	const kvfs_opts opts = {.size = sizeof(opts), .deadline = SHORT};
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_xfer *late, *cancelled;
	kvfs_lease *lease;

	world_save(w, N);
	world_chain(0, N, keys, pages);
	world_freeze(w);
	lease = acquire(w, N, KVFS_FOREVER);
	assert_int_equal(kvfs_load(w->pool, lease, N, pages, &opts, &late), 0);
	world_chain(0, 2 * N, keys, pages);
	assert_int_equal(
		kvfs_load(w->pool, lease, N, pages + N, NULL, &cancelled), 0);
	kvfs_release(lease);
	kvfs_xfer_cancel(cancelled);
	ended_with(late, N, -ETIMEDOUT);
	ended_with(cancelled, N, -ECANCELED);
	nothing_is_left(w);
}

/* The daemon uses the memory of leased blocks again when the connection ends. */
static void a_load_under_copy_fails_when_the_connection_ends(void **state)
{
	struct world *w = *state;
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_xfer *xfer;
	kvfs_lease *lease;

	world_save(w, N);
	lease = world_acquire(w, N, N);
	world_chain(0, N, keys, pages);
	slow.loads = 0;
	slow_shut(true);
	assert_int_equal(kvfs_load(w->pool, lease, N, pages, NULL, &xfer), 0);
	kvfs_release(lease);
	for (int i = 0; i < 2000 && slow.loads == 0; i++)
		usleep(5000);
	world_stop_daemon(w, SIGKILL);
	world_wait_connected(w->session, 0);
	slow_shut(false);
	ended_with(xfer, N, -ESTALE);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
}

static void a_prefetch_ends(void **state)
{
	struct world *w = *state;
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_query query = {w->space, keys, N};
	kvfs_xfer *late, *cancelled;

	world_save(w, N);
	world_chain(0, N, keys, pages);
	world_freeze(w);
	assert_int_equal(
		kvfs_prefetch(&query, 1, KVFS_OPTS(.deadline = SHORT), &late),
		0);
	assert_int_equal(kvfs_prefetch(&query, 1, NULL, &cancelled), 0);
	kvfs_xfer_cancel(cancelled);
	ended_with(late, N, -ETIMEDOUT);
	ended_with(cancelled, N, -ECANCELED);
	nothing_is_left(w);
}

static void a_flush_can_be_cancelled(void **state)
{
	struct world *w = *state;
	kvfs_xfer *barrier, *xfer;

	layered_fill(w, N);
	xfer = save(w, 0, NULL);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, SOON), N);
	world_freeze(w);
	assert_int_equal(kvfs_flush(w->space, KVFS_DURABLE, NULL, &barrier), 0);
	assert_int_equal(kvfs_xfer_wait(barrier, KVFS_DURABLE, SHORT),
			 -ETIMEDOUT);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_DURABLE, SHORT), -ETIMEDOUT);
	kvfs_xfer_cancel(barrier);
	kvfs_xfer_cancel(xfer);
	assert_int_equal(kvfs_xfer_wait(barrier, KVFS_DURABLE, SOON), 0);
	assert_int_equal(kvfs_xfer_status(barrier, 0), -ECANCELED);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_DURABLE, SOON), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -ECANCELED);
	kvfs_xfer_free(xfer);
	kvfs_xfer_free(barrier);
	nothing_is_left(w);
	layered_check(w, N);
}

/* The cancel comes while the flush waits for the blocks to seal. */
static void a_flush_can_be_cancelled_before_it_is_sent(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer = freeze_under_copy(w, NULL);

	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_DURABLE, SHORT), -ETIMEDOUT);
	slow_shut(false);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, SOON), N);
	kvfs_xfer_cancel(xfer);
	world_thaw(w);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, SOON), N);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_DURABLE, SOON), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -ECANCELED);
	kvfs_xfer_free(xfer);
	nothing_is_left(w);
}

static void a_map_ends(void **state)
{
	struct world *w = *state;
	const kvfs_opts opts = {.size = sizeof(opts), .deadline = SECOND};
	kvfs_pool *pool = reserve(w, N, N);
	kvfs_mapping *late, *cancelled;

	world_save(w, N);
	slow_shut(true);
	late = begin(w, pool, 0, N, &opts);
	wait_for_loads(1);
	world_freeze(w);
	cancelled = begin(w, pool, 0, N, NULL);
	slow_shut(false);
	kvfs_map_cancel(cancelled);
	assert_true(kvfs_map_wait(late, SOON) >= 0);
	assert_true(kvfs_map_wait(cancelled, SOON) >= 0);
	unmap(late);
	unmap(cancelled);
	/* A map begins while the daemon hangs: its blocks are not found. */
	late = begin(w, pool, 50, 3, &opts);
	assert_int_equal(kvfs_map_wait(late, SOON), 0);
	unmap(late);
	kvfs_pool_close(pool);
	nothing_is_left(w);
}

static void a_map_whose_lease_does_not_settle_ends(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 2 * N, 2 * N);
	kvfs_mapping *m;

	world_save(w, 2);
	world_freeze(w);
	m = begin(w, pool, 0, 2, NULL);
	kvfs_map_cancel(m);
	assert_int_equal(kvfs_map_wait(m, SOON), 0);
	unmap(m);
	kvfs_pool_close(pool);
	nothing_is_left(w);
}

/* ---- calls that wait for one reply of a hung daemon ---- */

static void every_question_ends_in_time(void **state)
{
	struct world *w = *state;
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_query query = {w->space, keys, PAGES};
	uint8_t states[PAGES];
	uint64_t before;
	kvfs_space *space;
	char *text;

	world_save(w, 1);
	world_chain(0, PAGES, keys, pages);
	world_freeze(w);
	before = kv_now_ns();
	assert_int_equal(kvfs_match(&query, 1), 0);
	assert_int_equal(kvfs_probe(&query, 1, states), 0);
	assert_int_equal(kvfs_evict(w->space, keys, PAGES, NULL), 0);
	assert_int_equal(kvfs_pin(w->space, keys, 0, PAGES, NULL), 0);
	assert_int_equal(kvfs_ended(w->space, keys, PAGES), 0);
	assert_int_equal(kvfs_space_clear(w->space), -ETIMEDOUT);
	assert_int_equal(kvfs_stats(w->session, &text), -ENOTCONN);
	assert_int_equal(kvfs_snapshot(w->space, "y", keys, NULL, 1, NULL),
			 -ENOTCONN);
	assert_int_equal(kvfs_space_open(w->session, "other", NULL, 0, &space),
			 -ENOTCONN);
	assert_int_equal(kvfs_space_open(w->session, "other", WORLD_LAYOUT,
					 KVFS_CREATE, &space),
			 0);
	kvfs_space_close(space);
	assert_true(kv_now_ns() - before < 3 * SOON);
	world_thaw(w);
}

static void a_session_opens_and_closes(void **state)
{
	struct world *w = *state;
	uint64_t before;
	kvfs_session *session;

	world_freeze(w);
	before = kv_now_ns();
	assert_int_equal(kvfs_open(w->path, &session), 0);
	assert_int_equal(kvfs_connected(session), 0);
	kvfs_close(session);
	assert_true(kv_now_ns() - before < SOON);
	world_thaw(w);
}

/* ---- closing a session while the daemon hangs ---- */

/* Thaw the daemon in a child process: a close that hangs fails the test. */
static pid_t thaw_later(struct world *w)
{
	pid_t pid = fork();

	if (pid > 0)
		return pid;
	sleep(20);
	world_thaw(w);
	_exit(0);
}

/* Close all objects, which must take less than SOON. */
static void closes(struct world *w)
{
	uint64_t before = kv_now_ns();
	pid_t watch = thaw_later(w);

	kvfs_pool_close(kv_steal(w->pool));
	kvfs_space_close(kv_steal(w->space));
	kvfs_close(kv_steal(w->session));
	kill(watch, SIGKILL);
	waitpid(watch, NULL, 0);
	assert_true(kv_now_ns() - before < SOON);
	world_thaw(w);
}

static void a_pool_with_saves_under_way_closes(void **state)
{
	struct world *w = *state;

	world_save(w, 1);
	world_freeze(w);
	kvfs_xfer_free(save(w, 100, NULL));
	kvfs_xfer_free(save(
		w, 200,
		&(kvfs_opts){.size = sizeof(kvfs_opts), .flags = KVFS_MUST}));
	closes(w);
}

static void a_pool_that_never_saved_closes(void **state)
{
	struct world *w = *state;

	world_freeze(w);
	kvfs_xfer_free(save(w, 100, NULL));
	closes(w);
}

static void a_session_with_sealing_and_flushes_under_way_closes(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer = freeze_under_copy(w, NULL);

	slow_shut(false);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, SOON), N);
	kvfs_xfer_poll(xfer, KVFS_DURABLE);
	kvfs_xfer_free(xfer);
	assert_int_equal(kvfs_flush(w->space, KVFS_DURABLE, NULL, &xfer), 0);
	kvfs_xfer_free(xfer);
	closes(w);
}

static void a_pool_with_loads_that_wait_closes(void **state)
{
	struct world *w = *state;
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	world_save(w, N);
	world_chain(0, N, keys, pages);
	world_freeze(w);
	lease = acquire(w, N, KVFS_FOREVER);
	assert_int_equal(kvfs_load(w->pool, lease, N, pages, NULL, &xfer), 0);
	kvfs_xfer_free(xfer);
	kvfs_release(lease);
	closes(w);
}

static void a_pool_of_reserved_pages_closes(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = reserve(w, 2 * N, 2 * N);
	kvfs_key keys[PAGES];
	int64_t numbers[PAGES];
	kvfs_pages *pages;
	kvfs_xfer *xfer;
	uint64_t before;
	pid_t watch;

	world_save(w, 2);
	world_chain(100, N, keys, numbers);
	assert_int_equal(kvfs_pages_take(pool, N, &pages), 0);
	world_freeze(w);
	assert_int_equal(
		kvfs_pages_seal(pages, w->space, keys, NULL, N, NULL, &xfer),
		0);
	begin(w, pool, 0, 2, NULL);
	kvfs_xfer_free(xfer);
	kvfs_pages_free(pages);
	before = kv_now_ns();
	watch = thaw_later(w);
	kvfs_pool_close(pool);
	kill(watch, SIGKILL);
	waitpid(watch, NULL, 0);
	assert_true(kv_now_ns() - before < SOON);
	closes(w);
}

/* A close waits for a daemon that is busy but not hung. */
static void a_close_waits_for_a_daemon_that_answers(void **state)
{
	struct world *w = *state;
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_query query = {w->space, keys, PAGES};
	int i;

	layered_fill(w, PAGES);
	world_chain(0, PAGES, keys, pages);
	for (i = 0; i < PAGES; i += N)
		kvfs_xfer_free(layered_save_by(
			w->pool, w->space, (uint32_t)i,
			KV_MIN((size_t)N, (size_t)(PAGES - i)), NULL));
	kvfs_pool_close(kv_steal(w->pool));
	for (i = 0; i < 2000 && kvfs_match(&query, 1) < PAGES; i++)
		usleep(10000);
	assert_int_equal(kvfs_match(&query, 1), PAGES);
}

static int thaw_and_teardown(void **state)
{
	world_thaw(*state);
	return teardown(state);
}

#define hung(name) \
	cmocka_unit_test_setup_teardown(name, setup, thaw_and_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		hung(a_saves_deadline_is_kept),
		hung(a_first_saves_deadline_is_kept),
		hung(a_cancelled_save_ends),
		hung(the_same_keys_can_be_saved_right_after_a_cancel),
		hung(a_cancel_leaves_others_of_the_same_keys_alone),
		hung(pages_under_copy_stay_the_saves),
		hung(what_was_handed_over_ends_after_a_cancel),
		hung(a_save_in_a_space_that_was_not_found_in_time_waits),
		hung(a_save_whose_space_is_never_found_ends),
		hung(a_save_that_must_ends_too),
		hung(many_saves_end),
		hung(a_cancelled_lease_settles),
		hung(leases_of_a_hung_daemon_take_no_memory),
		hung(hints_to_a_hung_daemon_take_no_memory),
		hung(a_load_ends_by_its_deadline_and_by_a_cancel),
		hung(a_load_under_copy_fails_when_the_connection_ends),
		hung(a_prefetch_ends),
		hung(a_flush_can_be_cancelled),
		hung(a_flush_can_be_cancelled_before_it_is_sent),
		hung(a_map_ends),
		hung(a_map_whose_lease_does_not_settle_ends),
		hung(every_question_ends_in_time),
		hung(a_session_opens_and_closes),
		hung(a_pool_with_saves_under_way_closes),
		hung(a_pool_that_never_saved_closes),
		hung(a_session_with_sealing_and_flushes_under_way_closes),
		hung(a_pool_with_loads_that_wait_closes),
		hung(a_pool_of_reserved_pages_closes),
		hung(a_close_waits_for_a_daemon_that_answers),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
