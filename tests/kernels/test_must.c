/* SPDX-License-Identifier: Apache-2.0 */
/* Saves that wait for room (KVFS_MUST), and saves that hold their sealed blocks
 * (KVFS_HOLD).  A client of raw messages fills DRAM by reserving blocks. */
#include "tests/fs/peer.h"
#include "tests/kernels/layered.h"

#define N 20

static struct peer hog;
static uint32_t hogged;

/* Wait until the daemon has made its last segment in the background. */
static void wait_grown(struct world *w)
{
	long made = -1, max = 0;
	char *text, *at;
	int i;

	for (i = 0; i < 2000 && made != max; i++) {
		assert_int_equal(kvfs_stats(w->session, &text), 0);
		at = strchr(text, '\n');
		assert_int_equal(
			sscanf(at, " %ld of %ld segments", &made, &max), 2);
		free(text);
		usleep(10000);
	}
	assert_int_equal(made, max);
}

/* Reserve blocks until DRAM has no free slot. */
static void take_all(struct world *w)
{
	int i;

	assert_true(peer_connect(&hog, w->path));
	assert_int_equal(peer_hello(&hog), 0);
	assert_int_equal(peer_space(&hog, w->space_name, "", 0, 0), 0);
	hogged = 0;
	wait_grown(w);
	/* The daemon can evict only blocks that are on SSD: wait until all
	 * are. */
	world_wait_stat(w, "not yet on SSD", 0);
	for (i = 0; i < 10; i++) {
		while (peer_do(&hog, WIRE_RESERVE, 1000 + hogged, 1) == 0)
			hogged++;
		usleep(10000);
	}
	assert_true(hogged > 100);
}

static void give(uint32_t n)
{
	while (n-- > 0)
		assert_int_equal(peer_do(&hog, WIRE_DROP, 1000 + --hogged, 1),
				 0);
}

static int teardown(void **state)
{
	if (hog.fd > 0)
		peer_close(&hog);
	memset(&hog, 0, sizeof(hog));
	return world_teardown(state);
}

static kvfs_xfer *save(struct world *w, size_t n, unsigned flags,
		       uint64_t deadline)
{
	const kvfs_opts opts = {
		.size = sizeof(opts), .flags = flags, .deadline = deadline};

	return layered_save_by(w->pool, w->space, 0, n, &opts);
}

/* ---- KVFS_MUST ---- */

static void without_it_a_save_is_refused_where_there_is_no_room(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer;

	take_all(w);
	xfer = save(w, N, 0, 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -ENOSPC);
	kvfs_xfer_free(xfer);
}

/* A save with KVFS_MUST waits for room and loses no block. */
static void with_it_a_save_waits_for_room(void **state)
{
	struct world *w = *state;
	struct kvfs_pool_info info = {.size = sizeof(info)};
	kvfs_xfer *xfer;

	layered_fill(w, N);
	take_all(w);
	xfer = save(w, N, KVFS_MUST, 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, SECOND / 5),
			 -ETIMEDOUT);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -EINPROGRESS);
	assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
	assert_int_equal(info.pages_saving, N);
	give(3);
	/* Blocks that the save has sealed can be evicted once they are
	 * durable. */
	assert_true(kvfs_xfer_wait_some(xfer, 3, 20 * SECOND) >= 3);
	give(N);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND), N);
	assert_int_equal(kvfs_xfer_status(xfer, N - 1), 0);
	kvfs_xfer_free(xfer);
	give(hogged);
	layered_check(w, N);
}

static void while_it_waits_others_go_on(void **state)
{
	struct world *w = *state;
	kvfs_xfer *must, *xfer;
	kvfs_lease *lease;

	layered_fill(w, N);
	assert_int_equal(layered_end(save(w, 2, 0, 0), KVFS_SEALED), 2);
	lease = world_acquire(w, 2, 2);
	take_all(w);
	must = save(w, N, KVFS_MUST, 0);
	assert_int_equal(kvfs_xfer_wait(must, KVFS_SEALED, SECOND / 20),
			 -ETIMEDOUT);
	/* Other saves and loads do not wait meanwhile.  A save without
	 * KVFS_MUST fails if it gets no room. */
	xfer = save(w, 2, 0, 0);
	assert_int_equal(layered_end(xfer, KVFS_SEALED), 2);
	assert_int_equal(
		layered_end(layered_save_by(w->pool, w->space, 500, N, NULL),
			    KVFS_SEALED),
		0);
	assert_int_equal(kvfs_load(w->pool, lease, 2,
				   (const int64_t[]){100, 101}, NULL, &xfer),
			 0);
	assert_int_equal(layered_end(xfer, KVFS_COPIED), 2);
	kvfs_release(lease);
	assert_int_equal(kvfs_xfer_poll(must, KVFS_SEALED), 0);
	give(N);
	assert_int_equal(layered_end(must, KVFS_SEALED), N);
	give(hogged);
	layered_check(w, N);
}

/* A save's wait for room ends by deadline, cancel or disconnect, and leaves no
 * reservation. */
static void a_wait_for_room_ends_as_any_other(void **state)
{
	struct world *w = *state;
	struct kvfs_pool_info info = {.size = sizeof(info)};
	kvfs_xfer *late, *cancelled, *cleared;

	take_all(w);
	late = save(w, N, KVFS_MUST, SECOND / 10);
	cancelled = layered_save_by(
		w->pool, w->space, 100, N,
		&(kvfs_opts){.size = sizeof(kvfs_opts), .flags = KVFS_MUST});
	cleared = layered_save_by(
		w->pool, w->space, 200, N,
		&(kvfs_opts){.size = sizeof(kvfs_opts), .flags = KVFS_MUST});
	assert_int_equal(kvfs_xfer_wait(late, KVFS_SEALED, 60 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(late, 0), -ETIMEDOUT);
	assert_int_equal(kvfs_xfer_poll(cancelled, KVFS_COPIED), 0);
	kvfs_xfer_cancel(cancelled);
	assert_int_equal(kvfs_xfer_wait(cancelled, KVFS_SEALED, 60 * SECOND),
			 0);
	assert_int_equal(kvfs_xfer_status(cancelled, N - 1), -ECANCELED);
	assert_int_equal(kvfs_space_clear(w->space), 0);
	assert_int_equal(kvfs_xfer_wait(cleared, KVFS_SEALED, 60 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(cleared, 0), -ESTALE);
	kvfs_xfer_free(late);
	kvfs_xfer_free(cancelled);
	kvfs_xfer_free(cleared);
	assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
	assert_int_equal(info.pages_saving, 0);
	peer_close(&hog);
	hog.fd = 0;
	world_wait_stat(w, "being saved", 0);
}

static void a_daemon_that_dies_ends_the_wait(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer;

	take_all(w);
	xfer = save(w, N, KVFS_MUST, 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, SECOND / 20),
			 -ETIMEDOUT);
	world_stop_daemon(w, SIGKILL);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -ENOTCONN);
	kvfs_xfer_free(xfer);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
	layered_fill(w, N);
	assert_int_equal(layered_end(save(w, N, KVFS_MUST, 0), KVFS_SEALED), N);
}

/* ---- KVFS_HOLD ---- */

/* Save more blocks than DRAM holds, in another space. */
static void flood(struct world *w)
{
	kvfs_opts opts = {.size = sizeof(opts), .flags = KVFS_MUST};
	kvfs_xfer *xfer;
	uint32_t first;

	for (first = 1000; first < 1000 + 4 * PAGES; first += PAGES) {
		xfer = layered_save_by(w->pool, w->space, first, PAGES, &opts);
		assert_int_equal(layered_end(xfer, KVFS_SEALED), PAGES);
	}
}

static void what_is_held_stays_in_dram_until_it_is_freed(void **state)
{
	struct world *w = *state;
	kvfs_xfer *held, *loose;
	uint32_t i;

	layered_fill(w, 2 * N);
	held = save(w, N, KVFS_HOLD, 0);
	loose = layered_save_by(w->pool, w->space, N, N, NULL);
	assert_int_equal(kvfs_xfer_wait(held, KVFS_SEALED, 20 * SECOND), N);
	assert_int_equal(layered_end(loose, KVFS_DURABLE), N);
	assert_int_equal(world_stat(w, "leased"), N);
	flood(w);
	for (i = 0; i < N; i++)
		assert_int_equal(layered_state(w->space, i), KVFS_DRAM);
	assert_int_equal(layered_state(w->space, N), KVFS_SSD);
	kvfs_xfer_free(held);
	world_wait_stat(w, "leased", 0);
	layered_check(w, N);
}

static void what_was_present_is_not_held(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer;

	layered_fill(w, N);
	assert_int_equal(layered_end(save(w, N / 2, 0, 0), KVFS_SEALED), N / 2);
	xfer = save(w, N, KVFS_HOLD, 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND), N);
	assert_int_equal(kvfs_xfer_status(xfer, 0), KVFS_PRESENT);
	assert_int_equal(kvfs_xfer_status(xfer, N - 1), 0);
	assert_int_equal(world_stat(w, "leased"), N / 2);
	kvfs_xfer_free(xfer);
	world_wait_stat(w, "leased", 0);
}

static void one_that_is_freed_early_holds_nothing(void **state)
{
	struct world *w = *state;
	kvfs_xfer *barrier;
	int i;

	layered_fill(w, N);
	for (i = 0; i < 10; i++) {
		kvfs_xfer_free(save(w, N, KVFS_HOLD, 0));
		assert_int_equal(
			kvfs_flush(w->space, KVFS_SEALED, NULL, &barrier), 0);
		assert_int_equal(layered_end(barrier, KVFS_SEALED), 1);
		world_wait_stat(w, "leased", 0);
		assert_int_equal(kvfs_space_clear(w->space), 0);
	}
}

/* KVFS_HOLD can hold all of DRAM but a sixteenth. */
static void not_all_of_dram_can_be_held(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .flags = KVFS_HOLD};
	kvfs_xfer *xfers[4], *more;
	long sealed = 0;
	uint32_t i;

	for (i = 0; i < KV_ARRAY_LEN(xfers); i++) {
		xfers[i] = layered_save_by(w->pool, w->space, i * PAGES, PAGES,
					   &opts);
		sealed += kvfs_xfer_wait(xfers[i], KVFS_SEALED, 60 * SECOND);
	}
	assert_int_equal(kvfs_xfer_status(xfers[3], PAGES - 1), -ENOSPC);
	assert_int_equal(world_stat(w, "leased"), sealed);
	opts.flags = KVFS_MUST;
	more = layered_save_by(w->pool, w->space, 5000, N, &opts);
	assert_int_equal(layered_end(more, KVFS_SEALED), N);
	for (i = 0; i < KV_ARRAY_LEN(xfers); i++)
		kvfs_xfer_free(xfers[i]);
	world_wait_stat(w, "leased", 0);
	assert_int_equal(kvfs_space_clear(w->space), 0);
}

static void a_clear_takes_what_is_held(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer;

	layered_fill(w, N);
	xfer = save(w, N, KVFS_HOLD, 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND), N);
	assert_int_equal(kvfs_space_clear(w->space), 0);
	assert_int_equal(layered_state(w->space, 0), KVFS_ABSENT);
	kvfs_xfer_free(xfer);
	world_wait_stat(w, "leased", 0);
	assert_int_equal(world_stat(w, "being saved"), 0);
}

/* ---- blocks with fewer tokens ---- */

/* The layout does not say which bytes belong to which token, so the file of a
 * tail (a block with fewer tokens) holds a whole page.  Bytes past the tail are
 * zero because the page's owner zeroed them. */
static void a_tail_is_what_its_page_is(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0);
	kvfs_meta meta = {.position = 7, .tokens = 3};
	kvfs_query query = {w->space, &key, 1};
	char text[1000];
	int64_t page = 0, to = 5;
	const uint8_t *data;
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	size_t i;

	/* Each of four tokens has a quarter of each layer's k and v. */
	world_fill(w, 0, 9);
	for (i = 0; i < PAYLOAD; i++)
		if (i % 16384 / 4096 == 3)
			w->memory[i] = 0;
	meta.tokens = 5;
	assert_int_equal(kvfs_save(w->pool, w->space, &key, &meta, 1, &page,
				   NULL, &xfer),
			 -EINVAL);
	meta.tokens = 3;
	assert_int_equal(kvfs_save(w->pool, w->space, &key, &meta, 1, &page,
				   NULL, &xfer),
			 0);
	assert_int_equal(layered_end(xfer, KVFS_DURABLE), 1);
	assert_int_equal(kvfs_acquire(&query, 1,
				      KVFS_OPTS(.deadline = 10 * SECOND),
				      &lease),
			 0);
	assert_int_equal(kvfs_lease_wait(lease, KVFS_FOREVER), 1);
	data = kvfs_lease_data(lease, 0, NULL);
	for (i = 0; i < PAYLOAD; i++)
		assert_int_equal(data[i],
				 i % 16384 / 4096 == 3 ? 0 : world_byte(9, i));
	memcpy(text, (const char *)kvfs_lease_file(lease, 0, NULL) + 8, 999);
	text[999] = '\0';
	assert_non_null(strstr(text, "\"tokens\":\"3\""));
	assert_int_equal(kvfs_load(w->pool, lease, 1, &to, NULL, &xfer), 0);
	assert_int_equal(layered_end(xfer, KVFS_COPIED), 1);
	assert_memory_equal(w->memory + 5 * (size_t)PAYLOAD, data, PAYLOAD);
	kvfs_release(lease);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, layered_setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(without_it_a_save_is_refused_where_there_is_no_room),
		test(with_it_a_save_waits_for_room),
		test(while_it_waits_others_go_on),
		test(a_wait_for_room_ends_as_any_other),
		test(a_daemon_that_dies_ends_the_wait),
		test(what_is_held_stays_in_dram_until_it_is_freed),
		test(what_was_present_is_not_held),
		test(one_that_is_freed_early_holds_nothing),
		test(not_all_of_dram_can_be_held),
		test(a_clear_takes_what_is_held),
		test(a_tail_is_what_its_page_is),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
