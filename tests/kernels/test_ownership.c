/* SPDX-License-Identifier: Apache-2.0 */
/* Owners of leases: leases without readers, clients that die, replies for which
 * nobody waits, and replies to other requests. */
#include "tests/kernels/world.h"

/* Wait until the daemon reports that @n blocks are leased. */
static void wait_leased(struct world *w, unsigned long n)
{
	unsigned long leased = n + 1;
	char *text, *at;
	int i;

	for (i = 0; i < 3000 && leased != n; i++) {
		usleep(i == 0 ? 0 : 10000);
		if (kvfs_stats(w->session, &text) < 0)
			continue;
		at = strstr(text, "\nheld");
		assert_non_null(at);
		assert_int_equal(sscanf(at, "\nheld %lu leased", &leased), 1);
		free(text);
	}
	assert_int_equal(leased, n);
}

static void every_lease_is_released_once_on_every_path(void **state)
{
	struct world *w = *state;
	int64_t pages[] = {0, 1, PAGES};
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	world_save(w, 3);
	lease = world_acquire(w, 3, 3);
	wait_leased(w, 3);
	/* A refused load does not keep the lease. */
	assert_int_equal(kvfs_load(w->pool, lease, 3, pages, NULL, &xfer),
			 -EINVAL);
	kvfs_release(lease);
	wait_leased(w, 0);
	/* A cancelled load releases the lease that it owns. */
	pages[2] = 2;
	lease = world_acquire(w, 3, 3);
	assert_int_equal(kvfs_load(w->pool, lease, 3, pages, NULL, &xfer), 0);
	kvfs_xfer_cancel(xfer);
	kvfs_release(lease);
	assert_true(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND) >= 0);
	wait_leased(w, 0);
	kvfs_xfer_free(xfer);
}

static void a_lease_that_nobody_reads_is_freed_all_the_same(void **state)
{
	struct world *w = *state;
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_query query = {w->space, keys, 100};
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	world_save(w, 100);
	world_chain(0, 100, keys, pages);
	assert_int_equal(kvfs_acquire(&query, 1, NULL, &lease), 0);
	/* release the lease, whether it has settled or not */
	kvfs_release(lease);
	assert_int_equal(kvfs_prefetch(&query, 1, NULL, &xfer), 0);
	kvfs_xfer_free(xfer);
	wait_leased(w, 0);
}

static void what_comes_after_the_deadline_goes_back(void **state)
{
	struct world *w = *state;
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_query query = {w->space, keys, 50};
	kvfs_lease *lease;

	world_save(w, 50);
	world_chain(0, 50, keys, pages);
	world_freeze(w);
	assert_int_equal(kvfs_acquire(&query, 1,
				      KVFS_OPTS(.deadline = SECOND / 100),
				      &lease),
			 0);
	assert_int_equal(kvfs_lease_wait(lease, KVFS_FOREVER), 0);
	assert_int_equal(kvfs_lease_status(lease, 0), -ETIMEDOUT);
	world_thaw(w);
	wait_leased(w, 0);
	kvfs_release(lease);
	wait_leased(w, 0);
}

static void a_miss_owns_nothing(void **state)
{
	struct world *w = *state;
	kvfs_lease *lease = world_acquire(w, 10, 0);

	wait_leased(w, 0);
	kvfs_release(lease);
	lease = world_acquire(w, 10, 0);
	wait_leased(w, 0);
	kvfs_release(lease);
}

/* child process, forked while this process has no other threads */
static pid_t holder;
static int go[2], holds[2];

/* As a child process, read the space's name from a pipe, then lease 20 blocks
 * of the space. */
static void hold_until_killed(const struct world *w)
{
	struct world child = *w;
	kvfs_lease *lease;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (read(go[0], child.space_name, sizeof(child.space_name)) <= 0)
		_exit(1);
	if (kvfs_open(w->path, &child.session) < 0 ||
	    kvfs_space_open(child.session, child.space_name, NULL, 0,
			    &child.space) < 0)
		_exit(1);
	lease = world_acquire(&child, 20, 20);
	if (write(holds[1], lease == NULL ? "" : "x", 1) != 1)
		_exit(1);
	pause();
	_exit(0);
}

static int setup_with_holder(void **state)
{
	if (pipe(go) < 0 || pipe(holds) < 0)
		return -1;
	holder = fork();
	if (holder == 0)
		hold_until_killed(*state);
	return world_setup(state);
}

/* Only the end of the connection releases the leases of a killed process. */
static void what_a_killed_client_had_is_nobodys(void **state)
{
	struct world *w = *state;
	char byte = 0;
	int i;

	world_save(w, 20);
	assert_int_equal(write(go[1], w->space_name, sizeof(w->space_name)),
			 sizeof(w->space_name));
	assert_int_equal(read(holds[0], &byte, 1), 1);
	wait_leased(w, 20);
	usleep(100000);
	wait_leased(w, 20);
	kill(holder, SIGKILL);
	waitpid(holder, NULL, 0);
	wait_leased(w, 0);
	for (i = 0; i < 2; i++) {
		close(go[i]);
		close(holds[i]);
	}
}

/* Run three requests at once, each with its own present and absent blocks. */
static void results_are_of_their_own_operation(void **state)
{
	struct world *w = *state;
	kvfs_key keys[3][8];
	int64_t pages[3][8];
	kvfs_lease *lease[3];
	kvfs_xfer *xfer[3];
	uint32_t i, k;

	world_save(w, 12);
	memset(w->memory, 0xee, (size_t)PAGES * PAYLOAD);
	for (k = 0; k < 3; k++) {
		kvfs_query query = {w->space, keys[k], 8};

		/* request k asks for blocks 2k to 2k + 7; request 1 for absent
		 * blocks in between */
		for (i = 0; i < 8; i++) {
			keys[k][i] = world_key(k == 1 && i % 2 ? 900 + i
							       : 2 * k + i);
			pages[k][i] = 8 * k + i;
		}
		assert_int_equal(
			kvfs_acquire(&query, 1,
				     KVFS_OPTS(.deadline = 60 * SECOND),
				     &lease[k]),
			0);
		assert_int_equal(kvfs_load(w->pool, lease[k], 8, pages[k], NULL,
					   &xfer[k]),
				 0);
		kvfs_release(lease[k]);
	}
	for (k = 3; k-- > 0;) {
		assert_int_equal(
			kvfs_xfer_wait(xfer[k], KVFS_COPIED, 60 * SECOND),
			k == 1 ? 4 : 8);
		for (i = 0; i < 8; i++) {
			bool hole = k == 1 && i % 2;

			assert_int_equal(kvfs_xfer_status(xfer[k], i),
					 hole ? -ENOENT : 0);
			assert_int_equal(
				world_page_is(w, pages[k][i], 2 * k + i),
				!hole);
		}
		kvfs_xfer_free(xfer[k]);
	}
}

/* The caller may change its arrays as soon as a call has returned. */
static void a_pending_lease_is_of_the_keys_it_began_with(void **state)
{
	struct world *w = *state;
	kvfs_key keys[4];
	int64_t pages[4];
	kvfs_query query = {w->space, keys, 4};
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	uint32_t i;

	world_save(w, 8);
	memset(w->memory, 0xee, (size_t)PAGES * PAYLOAD);
	world_chain(0, 4, keys, pages);
	world_freeze(w);
	assert_int_equal(kvfs_acquire(&query, 1, NULL, &lease), 0);
	assert_int_equal(kvfs_load(w->pool, lease, 4, pages, NULL, &xfer), 0);
	kvfs_release(lease);
	for (i = 0; i < 4; i++) {
		keys[i] = world_key(4 + i);
		pages[i] = 100 + i;
	}
	query.n = 0;
	world_thaw(w);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND), 4);
	for (i = 0; i < 4; i++)
		assert_true(world_page_is(w, i, i));
	assert_int_equal(w->memory[100 * PAYLOAD], 0xee);
	kvfs_xfer_free(xfer);
}

/* The daemon dies with one request of each kind pending. */
static void whatever_is_pending_ends_with_the_connection(void **state)
{
	struct world *w = *state;
	kvfs_key keys[8];
	int64_t pages[8], others[8];
	kvfs_query query = {w->space, keys, 8};
	kvfs_xfer *load, *save, *flush, *prefetch;
	kvfs_lease *lease;
	size_t i;

	world_save(w, 8);
	world_chain(0, 8, keys, pages);
	world_freeze(w);
	assert_int_equal(kvfs_acquire(&query, 1, NULL, &lease), 0);
	assert_int_equal(kvfs_load(w->pool, lease, 8, pages, NULL, &load), 0);
	assert_int_equal(kvfs_prefetch(&query, 1, NULL, &prefetch), 0);
	world_chain(500, 8, keys, others);
	for (i = 0; i < 8; i++)
		others[i] += 100;
	assert_int_equal(kvfs_save(w->pool, w->space, keys, NULL, 8, others,
				   NULL, &save),
			 0);
	assert_int_equal(kvfs_flush(w->space, KVFS_DURABLE, NULL, &flush), 0);
	world_stop_daemon(w, SIGKILL);
	assert_int_equal(kvfs_lease_wait(lease, 60 * SECOND), 0);
	assert_int_equal(kvfs_lease_status(lease, 7), -ENOTCONN);
	assert_int_equal(kvfs_xfer_wait(load, KVFS_COPIED, 60 * SECOND), 0);
	assert_int_equal(kvfs_xfer_wait(save, KVFS_SEALED, 60 * SECOND), 0);
	assert_int_equal(kvfs_xfer_wait(flush, KVFS_DURABLE, 60 * SECOND), 0);
	assert_int_equal(kvfs_xfer_wait(prefetch, KVFS_COPIED, 60 * SECOND), 0);
	assert_int_equal(kvfs_xfer_status(save, 0), -ENOTCONN);
	assert_int_equal(kvfs_xfer_status(prefetch, 0), -ENOTCONN);
	kvfs_xfer_free(load);
	kvfs_xfer_free(save);
	kvfs_xfer_free(flush);
	kvfs_xfer_free(prefetch);
	kvfs_release(lease);
}

/* A removed block misses at once, and can be saved again. */
static void what_was_removed_outside_is_not_a_hit(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0);
	kvfs_query query = {w->space, &key, 1};
	kvfs_session *session;
	kvfs_space *space;
	uint8_t s;
	int i;

	world_save(w, 1);
	kvfs_release(world_acquire(w, 1, 1));
	assert_int_equal(kvfs_open(w->path, &session), 0);
	assert_int_equal(
		kvfs_space_open(session, w->space_name, NULL, 0, &space), 0);
	for (i = 0; i < 3; i++) {
		assert_int_equal(kvfs_evict(space, &key, 1, NULL), 1);
		assert_int_equal(kvfs_probe(&query, 1, &s), 0);
		assert_int_equal(s, KVFS_ABSENT);
		kvfs_release(world_acquire(w, 1, 0));
		world_save(w, 1);
		kvfs_release(world_acquire(w, 1, 1));
	}
	kvfs_space_close(space);
	kvfs_close(session);
}

/* Save a block of @bytes, and load it into another page. */
static int round_trip(struct world *w, uint64_t bytes)
{
	char name[32], layout[128];
	uint8_t *memory = malloc(2 * bytes);
	kvfs_view view = {"x", memory, bytes, bytes, 1, 0};
	kvfs_pool_desc desc = {
		.size = sizeof(desc),
		.device = "host",
		.views = &view,
		.n_views = 1,
		.pages = 2,
		.pages_per_block = 1,
	};
	kvfs_key key = world_key(1);
	kvfs_query query;
	int64_t page = 0;
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	kvfs_pool *pool;
	uint64_t i;
	int status;

	snprintf(name, sizeof(name), "r%u", w->spaces++);
	snprintf(layout, sizeof(layout),
		 "{\"tensors\":[{\"name\":\"x\",\"dtype\":\"U8\","
		 "\"shape\":[%llu]}]}",
		 (unsigned long long)bytes);
	assert_int_equal(kvfs_space_open(w->session, name, layout,
					 KVFS_CREATE | 0700, &desc.space),
			 0);
	assert_int_equal(kvfs_pool_register(w->session, &desc, &pool), 0);
	for (i = 0; i < bytes; i++)
		memory[i] = world_byte((uint32_t)bytes, i);
	assert_int_equal(
		kvfs_save(pool, desc.space, &key, NULL, 1, &page, NULL, &xfer),
		0);
	assert_true(kvfs_xfer_wait(xfer, KVFS_SEALED, 60 * SECOND) >= 0);
	status = kvfs_xfer_status(xfer, 0);
	kvfs_xfer_free(xfer);
	query = (kvfs_query){desc.space, &key, 1};
	assert_int_equal(kvfs_acquire(&query, 1,
				      KVFS_OPTS(.deadline = 60 * SECOND),
				      &lease),
			 0);
	assert_int_equal(kvfs_lease_wait(lease, KVFS_FOREVER), status == 0);
	page = 1;
	assert_int_equal(kvfs_load(pool, lease, 1, &page, NULL, &xfer), 0);
	kvfs_release(lease);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 60 * SECOND),
			 status == 0);
	if (status == 0)
		assert_memory_equal(memory, memory + bytes, bytes);
	kvfs_xfer_free(xfer);
	kvfs_pool_close(pool);
	kvfs_space_close(desc.space);
	free(memory);
	return status;
}

/* Every size that can be saved can be loaded; all larger sizes are refused.  A
 * segment has 8 MiB. */
static void every_size_that_can_be_saved_can_be_loaded(void **state)
{
	static const uint64_t sizes[] = {
		1,
		63,
		64,
		65,
		4095,
		4096,
		4097,
		1 << 20,
		8384511,
		8384512,
		8384513,
		8388607 - 4096,
		8388608 - 4096,
		8388609 - 4096,
		8388607,
		8388608,
		8388609,
	};
	bool refused = false;
	size_t i;
	int status;

	for (i = 0; i < KV_ARRAY_LEN(sizes); i++) {
		status = round_trip(*state, sizes[i]);
		assert_true(status == 0 || status == -EFBIG);
		assert_true(!refused || status == -EFBIG);
		refused = status == -EFBIG;
	}
	assert_true(refused);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(every_lease_is_released_once_on_every_path),
		test(a_lease_that_nobody_reads_is_freed_all_the_same),
		test(what_comes_after_the_deadline_goes_back),
		test(a_miss_owns_nothing),
		cmocka_unit_test_setup_teardown(
			what_a_killed_client_had_is_nobodys, setup_with_holder,
			world_teardown),
		test(results_are_of_their_own_operation),
		test(a_pending_lease_is_of_the_keys_it_began_with),
		test(what_was_removed_outside_is_not_a_hit),
		test(every_size_that_can_be_saved_can_be_loaded),
		test(whatever_is_pending_ends_with_the_connection),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
