/* SPDX-License-Identifier: Apache-2.0 */
/* Saves of some layers: what makes a block, and what keeps it from being one.
 */
#include "tests/kernels/layered.h"

#define N 20

static void layers_in_any_order_make_the_blocks(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfers[LAYERS];
	const uint32_t order[LAYERS] = {2, 0, 3, 1};
	size_t i;

	layered_fill(w, N);
	for (i = 0; i < LAYERS; i++) {
		xfers[i] = layered_save(w, N, order[i], 1);
		assert_int_equal(
			kvfs_xfer_wait(xfers[i], KVFS_COPIED, 20 * SECOND), N);
		if (i == LAYERS - 1)
			break;
		assert_int_equal(kvfs_xfer_poll(xfers[i], KVFS_SEALED), 0);
		assert_int_equal(kvfs_xfer_status(xfers[i], 0), -EINPROGRESS);
		assert_int_equal(layered_state(w->space, 0), KVFS_SAVING);
	}
	for (i = 0; i < LAYERS; i++) {
		assert_int_equal(
			kvfs_xfer_wait(xfers[i], KVFS_SEALED, 20 * SECOND), N);
		assert_int_equal(kvfs_xfer_status(xfers[i], N - 1), 0);
	}
	layered_check(w, N);
	for (i = 0; i < LAYERS; i++)
		assert_int_equal(layered_end(xfers[i], KVFS_DURABLE), N);
	world_wait_stat(w, "being saved", 0);
}

static void all_layers_at_once_are_a_whole_save(void **state)
{
	struct world *w = *state;

	layered_fill(w, N);
	assert_int_equal(
		layered_end(layered_save(w, N, 0, LAYERS), KVFS_SEALED), N);
	layered_check(w, N);
}

static void some_layers_of_some_blocks_at_a_time(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfers[PAGES];
	size_t n = 0, i;
	uint32_t layer;

	layered_fill(w, 100);
	/* Layer 0 and 1 of all, 2 block by block, 3 from the last to the
	 * first. */
	xfers[n++] = layered_save(w, 100, 0, 2);
	for (i = 0; i < 100; i++)
		for (layer = 2; layer < LAYERS; layer++) {
			size_t block = layer == 2 ? i : 99 - i;
			kvfs_opts opts = {.size = sizeof(opts),
					  .first_layer = layer,
					  .layers = 1};
			kvfs_key key = world_key((uint32_t)block);
			int64_t page = (int64_t)block;
			kvfs_meta meta = {.position = (uint32_t)block};

			meta.parent = world_key((uint32_t)block - 1);
			if (block == 0)
				meta.parent.len = 0;
			assert_int_equal(kvfs_save(w->pool, w->space, &key,
						   &meta, 1, &page, &opts,
						   &xfers[n++]),
					 0);
		}
	for (i = 0; i < n; i++)
		assert_int_equal(layered_end(xfers[i], KVFS_SEALED),
				 i == 0 ? 100 : 1);
	layered_check(w, 100);
}

/* What was never written must not be sealed as if it had been. */
static void a_block_that_lacks_a_layer_is_none(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer = layered_save(w, N, 0, 3), *barrier;
	kvfs_key key = world_key(0);
	kvfs_query query = {w->space, &key, 1};
	kvfs_lease *lease;

	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 20 * SECOND), N);
	assert_int_equal(kvfs_flush(w->space, KVFS_SEALED, NULL, &barrier), 0);
	assert_int_equal(kvfs_acquire(&query, 1, NULL, &lease), 0);
	assert_int_equal(kvfs_lease_wait(lease, KVFS_FOREVER), 0);
	assert_int_equal(kvfs_lease_status(lease, 0), -ENOENT);
	kvfs_release(lease);
	assert_int_equal(kvfs_acquire(&query, 1,
				      KVFS_OPTS(.flags = KVFS_WAIT_SAVING,
						.deadline = SECOND / 20),
				      &lease),
			 0);
	assert_int_equal(kvfs_lease_wait(lease, KVFS_FOREVER), 0);
	assert_int_equal(kvfs_lease_status(lease, 0), -ETIMEDOUT);
	kvfs_release(lease);
	assert_int_equal(kvfs_xfer_poll(barrier, KVFS_SEALED), 0);
	kvfs_xfer_cancel(xfer);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -ECANCELED);
	kvfs_xfer_free(xfer);
	assert_int_equal(layered_end(barrier, KVFS_SEALED), 1);
	/* Its memory is back, and it can be saved anew. */
	world_wait_stat(w, "being saved", 0);
	layered_fill(w, N);
	assert_int_equal(layered_end(layered_save(w, N, 0, 0), KVFS_SEALED), N);
	layered_check(w, N);
}

/* A duplicate waits for the first, whose bytes stay. */
static void the_same_layer_again_joins_the_first(void **state)
{
	struct world *w = *state;
	kvfs_xfer *first, *again, *rest;

	layered_fill(w, N);
	first = layered_save(w, N, 0, 2);
	assert_int_equal(kvfs_xfer_wait(first, KVFS_COPIED, 20 * SECOND), N);
	memset(w->memory, 0, (size_t)PAGES * PAYLOAD);
	again = layered_save(w, N, 1, 1);
	assert_int_equal(kvfs_xfer_wait(again, KVFS_COPIED, 20 * SECOND), N);
	assert_int_equal(kvfs_xfer_poll(again, KVFS_SEALED), 0);
	layered_fill(w, N);
	rest = layered_save(w, N, 2, 2);
	assert_int_equal(layered_end(first, KVFS_SEALED), N);
	assert_int_equal(layered_end(again, KVFS_SEALED), N);
	assert_int_equal(layered_end(rest, KVFS_SEALED), N);
	layered_check(w, N);
}

static void what_meets_a_part_in_part_is_refused(void **state)
{
	struct world *w = *state;
	kvfs_meta meta[N] = {{.position = 1}};
	kvfs_opts opts = {.size = sizeof(opts), .first_layer = 2, .layers = 2};
	kvfs_xfer *first, *meets, *other;
	kvfs_key keys[N];
	int64_t pages[N];

	layered_fill(w, N);
	first = layered_save(w, N, 0, 2);
	meets = layered_save(w, N, 1, 2);
	assert_int_equal(kvfs_xfer_wait(meets, KVFS_COPIED, 20 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(meets, 0), -EINVAL);
	kvfs_xfer_free(meets);
	/* Nor may it tell another story, or be held while the others are not.
	 */
	world_chain(0, N, keys, pages);
	assert_int_equal(kvfs_save(w->pool, w->space, keys, meta, 1, pages,
				   &opts, &other),
			 0);
	assert_int_equal(kvfs_xfer_status(other, 0), -EINVAL);
	kvfs_xfer_free(other);
	opts.flags = KVFS_HOLD;
	other = layered_save_by(w->pool, w->space, 0, 1, &opts);
	assert_int_equal(kvfs_xfer_status(other, 0), -EINVAL);
	kvfs_xfer_free(other);
	assert_int_equal(layered_end(layered_save(w, N, 2, 2), KVFS_SEALED), N);
	assert_int_equal(layered_end(first, KVFS_SEALED), N);
	layered_check(w, N);
}

static void layers_that_are_not_there_are_refused(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {
		.size = sizeof(opts), .first_layer = 1, .layers = LAYERS};
	kvfs_key key = world_key(0);
	int64_t page = 0;
	kvfs_xfer *xfer;

	assert_int_equal(kvfs_save(w->pool, w->space, &key, NULL, 1, &page,
				   &opts, &xfer),
			 -EINVAL);
	opts = (kvfs_opts){.size = sizeof(kvfs_opts), .flags = 0x80};
	assert_int_equal(kvfs_save(w->pool, w->space, &key, NULL, 1, &page,
				   &opts, &xfer),
			 -EINVAL);
}

static void what_is_there_is_skipped_layer_by_layer(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer;
	uint32_t layer;

	layered_fill(w, N);
	assert_int_equal(layered_end(layered_save(w, N, 0, 0), KVFS_SEALED), N);
	memset(w->memory, 0, (size_t)PAGES * PAYLOAD);
	for (layer = 0; layer < LAYERS; layer++) {
		xfer = layered_save(w, N, layer, 1);
		assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND),
				 N);
		assert_int_equal(kvfs_xfer_status(xfer, 3), KVFS_PRESENT);
		assert_int_equal(layered_end(xfer, KVFS_DURABLE), N);
	}
	layered_check(w, N);
}

static void what_another_client_saves_is_skipped(void **state)
{
	struct world *w = *state;
	struct layered other;
	kvfs_opts opts = {.size = sizeof(opts), .layers = 1};
	kvfs_xfer *theirs, *ours;

	layered_open(w, &other);
	theirs = layered_save_by(other.pool, other.space, 0, N, &opts);
	assert_int_equal(kvfs_xfer_wait(theirs, KVFS_COPIED, 20 * SECOND), N);
	for (opts.first_layer = 0; opts.first_layer < LAYERS;
	     opts.first_layer++) {
		ours = layered_save_by(w->pool, w->space, 0, N, &opts);
		assert_int_equal(kvfs_xfer_wait(ours, KVFS_SEALED, 20 * SECOND),
				 N);
		assert_int_equal(kvfs_xfer_status(ours, 0), KVFS_PRESENT);
		kvfs_xfer_free(ours);
	}
	/* What they never ended goes with them: kvfs_close does not wait. */
	kvfs_xfer_free(theirs);
	layered_close(&other);
	world_wait_stat(w, "being saved", 0);
	layered_fill(w, N);
	assert_int_equal(layered_end(layered_save(w, N, 0, 0), KVFS_SEALED), N);
	layered_check(w, N);
}

/* Its bytes are somebody else's, and are durable when his are. */
static void
what_another_client_saves_is_waited_for_until_it_is_durable(void **state)
{
	struct world *w = *state;
	kvfs_xfer *half, *rest, *mine;
	struct layered other;

	layered_open(w, &other);
	layered_fill(w, N);
	half = layered_save(w, N, 0, 2);
	assert_int_equal(kvfs_xfer_wait(half, KVFS_COPIED, 20 * SECOND), N);
	mine = layered_save_by(other.pool, other.space, 0, N, NULL);
	assert_int_equal(kvfs_xfer_wait(mine, KVFS_SEALED, 20 * SECOND), N);
	assert_int_equal(kvfs_xfer_status(mine, 0), KVFS_PRESENT);
	assert_int_equal(kvfs_xfer_wait(mine, KVFS_DURABLE, SECOND / 5),
			 -ETIMEDOUT);
	rest = layered_save(w, N, 2, 2);
	assert_int_equal(kvfs_xfer_wait(mine, KVFS_DURABLE, 20 * SECOND), N);
	assert_int_equal(kvfs_xfer_status(mine, 0), KVFS_PRESENT);
	kvfs_xfer_free(mine);
	assert_int_equal(layered_end(half, KVFS_SEALED), N);
	assert_int_equal(layered_end(rest, KVFS_SEALED), N);
	layered_close(&other);
}

/* He may be stopped: nobody waits for that for long. */
static void what_another_client_never_saves_is_absent_soon(void **state)
{
	struct world *w = *state;
	kvfs_xfer *half, *mine;
	struct layered other;

	layered_open(w, &other);
	layered_fill(w, N);
	half = layered_save(w, N, 0, 2);
	assert_int_equal(kvfs_xfer_wait(half, KVFS_COPIED, 20 * SECOND), N);
	mine = layered_save_by(other.pool, other.space, 0, N, NULL);
	assert_int_equal(kvfs_xfer_wait(mine, KVFS_DURABLE, KVFS_FOREVER), 0);
	assert_int_equal(kvfs_xfer_status(mine, N - 1), -ENOENT);
	kvfs_xfer_free(mine);
	kvfs_xfer_cancel(half);
	assert_int_equal(layered_end(half, KVFS_SEALED), 0);
	layered_close(&other);
}

static void a_clear_ends_every_layer(void **state)
{
	struct world *w = *state;
	kvfs_xfer *before = layered_save(w, N, 0, 2), *after;

	assert_int_equal(kvfs_space_clear(w->space), 0);
	assert_int_equal(kvfs_xfer_wait(before, KVFS_SEALED, 20 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(before, 0), -ESTALE);
	kvfs_xfer_free(before);
	after = layered_save(w, N, 2, 2);
	assert_int_equal(kvfs_xfer_wait(after, KVFS_SEALED, 20 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(after, N - 1), -ESTALE);
	kvfs_xfer_free(after);
	assert_int_equal(layered_state(w->space, 0), KVFS_ABSENT);
	world_wait_stat(w, "being saved", 0);
	/* All of it has been offered: the next one is another block. */
	layered_fill(w, N);
	before = layered_save(w, N, 0, 2);
	assert_int_equal(layered_end(layered_save(w, N, 2, 2), KVFS_SEALED), N);
	assert_int_equal(layered_end(before, KVFS_SEALED), N);
	layered_check(w, N);
}

static void a_clear_by_another_client_ends_every_layer(void **state)
{
	struct world *w = *state;
	struct layered other;
	kvfs_xfer *before = layered_save(w, N, 0, 2), *after;

	assert_int_equal(kvfs_xfer_wait(before, KVFS_COPIED, 20 * SECOND), N);
	layered_open(w, &other);
	assert_int_equal(kvfs_space_clear(other.space), 0);
	assert_int_equal(layered_state(other.space, 0), KVFS_ABSENT);
	after = layered_save(w, N, 2, 2);
	assert_int_equal(kvfs_xfer_wait(after, KVFS_SEALED, 20 * SECOND), 0);
	assert_int_equal(kvfs_xfer_wait(before, KVFS_SEALED, 20 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(before, 0), -ESTALE);
	assert_int_equal(kvfs_xfer_status(after, 0), -ESTALE);
	kvfs_xfer_free(before);
	kvfs_xfer_free(after);
	assert_int_equal(layered_state(w->space, 0), KVFS_ABSENT);
	layered_close(&other);
}

static void a_deadline_ends_a_block_that_lacks_a_layer(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {
		.size = sizeof(opts), .layers = 2, .deadline = SECOND / 10};
	kvfs_xfer *xfer = layered_save_by(w->pool, w->space, 0, N, &opts);
	kvfs_xfer *other = layered_save(w, N, 2, 1);

	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -ETIMEDOUT);
	assert_int_equal(kvfs_xfer_wait(other, KVFS_SEALED, 60 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(other, 0), -ETIMEDOUT);
	kvfs_xfer_free(xfer);
	kvfs_xfer_free(other);
	world_wait_stat(w, "being saved", 0);
}

/* Parts from before the daemon died and from after it are no block. */
static void a_daemon_that_dies_between_layers_ends_them_all(void **state)
{
	struct world *w = *state;
	kvfs_xfer *before = layered_save(w, N, 0, 2), *after;

	assert_int_equal(kvfs_xfer_wait(before, KVFS_COPIED, 20 * SECOND), N);
	world_stop_daemon(w, SIGKILL);
	assert_int_equal(kvfs_xfer_wait(before, KVFS_SEALED, 20 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(before, 0), -ENOTCONN);
	kvfs_xfer_free(before);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
	after = layered_save(w, N, 2, 2);
	assert_int_equal(kvfs_xfer_wait(after, KVFS_SEALED, 20 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(after, 0), -ENOTCONN);
	kvfs_xfer_free(after);
	assert_int_equal(world_stat(w, "being saved"), 0);
	layered_fill(w, N);
	before = layered_save(w, N, 0, 2);
	assert_int_equal(layered_end(layered_save(w, N, 2, 2), KVFS_SEALED), N);
	assert_int_equal(layered_end(before, KVFS_SEALED), N);
	layered_check(w, N);
}

/* The pages of a layer are its transfer's until it is copied. */
static void pages_are_counted_layer_by_layer(void **state)
{
	struct world *w = *state;
	struct kvfs_pool_info info = {.size = sizeof(info)};
	kvfs_xfer *xfers[LAYERS];
	uint32_t layer;

	layered_fill(w, N);
	for (layer = 0; layer < LAYERS; layer++)
		xfers[layer] = layered_save(w, N, layer, 1);
	for (layer = 0; layer < LAYERS; layer++)
		assert_int_equal(
			kvfs_xfer_wait(xfers[layer], KVFS_COPIED, 20 * SECOND),
			N);
	memset(w->memory, 0xaa, (size_t)PAGES * PAYLOAD);
	assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
	assert_int_equal(info.pages_saving, 0);
	for (layer = 0; layer < LAYERS; layer++)
		assert_int_equal(layered_end(xfers[layer], KVFS_SEALED), N);
	layered_check(w, N);
}

static void a_key_twice_in_one_save_is_one_block(void **state)
{
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .layers = 2};
	kvfs_meta meta[2] = {{.position = 0}, {.position = 0}};
	kvfs_key keys[2] = {world_key(0), world_key(0)};
	int64_t pages[2] = {0, 0};
	kvfs_xfer *a, *b;

	layered_fill(w, 1);
	assert_int_equal(
		kvfs_save(w->pool, w->space, keys, meta, 2, pages, &opts, &a),
		0);
	opts.first_layer = 2;
	assert_int_equal(
		kvfs_save(w->pool, w->space, keys, meta, 2, pages, &opts, &b),
		0);
	assert_int_equal(layered_end(a, KVFS_SEALED), 2);
	assert_int_equal(layered_end(b, KVFS_SEALED), 2);
	layered_check(w, 1);
}

static void cancels_at_any_moment_leave_whole_blocks_or_none(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfers[LAYERS];
	uint32_t layer, round;
	size_t i;
	int s;

	layered_fill(w, 50);
	for (round = 0; round < 20; round++) {
		for (layer = 0; layer < LAYERS; layer++)
			xfers[layer] = layered_save(w, 50, layer, 1);
		usleep(round * 200);
		kvfs_xfer_cancel(xfers[round % LAYERS]);
		for (layer = 0; layer < LAYERS; layer++)
			assert_true(kvfs_xfer_wait(xfers[layer], KVFS_SEALED,
						   60 * SECOND) >= 0);
		for (i = 0; i < 50; i++) {
			s = kvfs_xfer_status(xfers[0], i);
			assert_true(s == 0 || s == -ECANCELED);
			for (layer = 1; layer < LAYERS; layer++)
				assert_int_equal(
					kvfs_xfer_status(xfers[layer], i), s);
			assert_int_equal(layered_state(w->space, (uint32_t)i) >=
						 KVFS_SSD,
					 s == 0);
		}
		for (layer = 0; layer < LAYERS; layer++)
			kvfs_xfer_free(xfers[layer]);
		world_wait_stat(w, "being saved", 0);
		assert_int_equal(kvfs_space_clear(w->space), 0);
	}
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, layered_setup, world_teardown)

#define PAIR(l)                                                       \
	"{\"name\":\"k" l "\",\"dtype\":\"U8\",\"shape\":[8,16,64]}," \
	"{\"name\":\"v" l "\",\"dtype\":\"U8\",\"shape\":[8,16,64]}"

/* Tensors [8,16,64] that an engine has two of in each of two layers: by their
 * first dimension they would be eight, and two saves would never seal. */
static void two_layers_of_two_tensors_seal_after_two_saves(void **state)
{
	static const char layout[] = "{\"tensors\":[" PAIR("0") "," PAIR(
		"1") "],\"tokens\":4,"
		     "\"layers\":[[\"k0\",\"v0\"],[\"k1\",\"v1\"]]}";
	static const char *const names[] = {"k0", "v0", "k1", "v1"};
	struct world *w = *state;
	kvfs_opts opts = {.size = sizeof(opts), .layers = 1};
	const kvfs_key key = world_key(1);
	const int64_t page = 3;
	kvfs_view views[4];
	kvfs_pool_desc desc = {.size = sizeof(desc),
			       .device = "host",
			       .views = views,
			       .n_views = 4,
			       .pages = 8,
			       .pages_per_block = 1};
	kvfs_space *space;
	kvfs_pool *pool;
	kvfs_xfer *first, *second;
	char name[32];

	snprintf(name, sizeof(name), "pairs%u", w->spaces++);
	world_space_open(w->session, name, layout, KVFS_CREATE | 0700, &space);
	assert_int_equal(kvfs_space_layers(space), 2);
	assert_int_equal(kvfs_space_layers(NULL), -EINVAL);
	for (size_t i = 0; i < 4; i++)
		views[i] = (kvfs_view){.tensor = names[i],
				       .base = w->memory + i * TENSOR,
				       .block_stride = 8192,
				       .bytes = 8192,
				       .count = 1};
	desc.space = space;
	assert_int_equal(kvfs_pool_register(w->session, &desc, &pool), 0);
	assert_int_equal(
		kvfs_save(pool, space, &key, NULL, 1, &page, &opts, &first), 0);
	opts.first_layer = 1;
	assert_int_equal(
		kvfs_save(pool, space, &key, NULL, 1, &page, &opts, &second),
		0);
	assert_int_equal(kvfs_xfer_wait(first, KVFS_SEALED, 60 * SECOND), 1);
	assert_int_equal(kvfs_xfer_wait(second, KVFS_SEALED, 60 * SECOND), 1);
	kvfs_xfer_free(first);
	opts.first_layer = 2;
	assert_int_equal(
		kvfs_save(pool, space, &key, NULL, 1, &page, &opts, &first),
		-EINVAL);
	kvfs_xfer_free(second);
	kvfs_pool_close(pool);
	kvfs_space_close(space);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(layers_in_any_order_make_the_blocks),
		test(two_layers_of_two_tensors_seal_after_two_saves),
		test(all_layers_at_once_are_a_whole_save),
		test(some_layers_of_some_blocks_at_a_time),
		test(a_block_that_lacks_a_layer_is_none),
		test(the_same_layer_again_joins_the_first),
		test(what_meets_a_part_in_part_is_refused),
		test(layers_that_are_not_there_are_refused),
		test(what_is_there_is_skipped_layer_by_layer),
		test(what_another_client_saves_is_skipped),
		test(what_another_client_saves_is_waited_for_until_it_is_durable),
		test(what_another_client_never_saves_is_absent_soon),
		test(a_clear_ends_every_layer),
		test(a_clear_by_another_client_ends_every_layer),
		test(a_deadline_ends_a_block_that_lacks_a_layer),
		test(a_daemon_that_dies_between_layers_ends_them_all),
		test(pages_are_counted_layer_by_layer),
		test(a_key_twice_in_one_save_is_one_block),
		test(cancels_at_any_moment_leave_whole_blocks_or_none),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
