/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of a session and a process: the library stays within the limits, or
 * names the limit in its error. */
#include <sys/resource.h>

#include "tests/fs/peer.h"
#include "tests/kernels/layered.h"

#define SMALL 512u
#define SMALL_LAYOUT                                                 \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[" \
	"2,256]}]}"
#define MANY 10000u
#define LONG (60 * SECOND)

static uint8_t small_pages[16][SMALL];

/* Replace the pool by one with few pages, which the saves use again for many
 * blocks. */
static kvfs_pool *small_pool(struct world *w)
{
	kvfs_view view = {"k", small_pages, SMALL, SMALL, 1, 0};
	kvfs_pool_desc desc = {.size = sizeof(desc),
			       .device = "host",
			       .space = w->space,
			       .views = &view,
			       .n_views = 1,
			       .pages = KV_ARRAY_LEN(small_pages),
			       .pages_per_block = 1};
	kvfs_pool *pool;

	assert_int_equal(kvfs_pool_register(w->session, &desc, &pool), 0);
	return pool;
}

static int small_setup(void **state)
{
	struct world *w = *state;

	world_setup(state);
	kvfs_pool_close(w->pool);
	kvfs_space_close(w->space);
	snprintf(w->space_name, sizeof(w->space_name), "s%u", w->spaces++);
	assert_int_equal(kvfs_space_open(w->session, w->space_name,
					 SMALL_LAYOUT, KVFS_CREATE | 0700,
					 &w->space),
			 0);
	w->pool = small_pool(w);
	return 0;
}

static kvfs_key *new_keys(uint32_t first, size_t n)
{
	kvfs_key *keys = calloc(n, sizeof(*keys));

	for (size_t i = 0; i < n; i++)
		keys[i] = world_key(first + (uint32_t)i);
	return keys;
}

static kvfs_xfer *save(struct world *w, uint32_t first, size_t n,
		       const kvfs_opts *opts)
{
	kvfs_key *keys = new_keys(first, n);
	int64_t *pages = calloc(n, sizeof(*pages));
	kvfs_xfer *xfer;

	for (size_t i = 0; i < n; i++)
		pages[i] = (int64_t)(i % KV_ARRAY_LEN(small_pages));
	assert_int_equal(
		kvfs_save(w->pool, w->space, keys, NULL, n, pages, opts, &xfer),
		0);
	free(keys);
	free(pages);
	return xfer;
}

static kvfs_lease *acquire(struct world *w, const kvfs_key *keys, size_t n,
			   long held)
{
	kvfs_query query = {w->space, keys, n};
	kvfs_lease *lease;

	assert_int_equal(
		kvfs_acquire(&query, 1, KVFS_OPTS(.deadline = LONG), &lease),
		0);
	assert_int_equal(kvfs_lease_wait(lease, LONG), held);
	return lease;
}

/* ---- limits of a session ---- */

static void ten_thousand_small_blocks_in_one_save_seal(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer = save(w, 0, MANY, NULL);

	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, LONG), MANY);
	for (size_t i = 0; i < MANY; i++)
		assert_int_equal(kvfs_xfer_status(xfer, i), 0);
	kvfs_xfer_free(xfer);
}

static void ten_thousand_blocks_can_be_held_and_leased(void **state)
{
	struct world *w = *state;
	const kvfs_opts opts = {.size = sizeof(opts), .flags = KVFS_HOLD};
	kvfs_xfer *xfer = save(w, 0, MANY, &opts);
	kvfs_key *keys = new_keys(0, MANY);

	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, LONG), MANY);
	assert_int_equal(world_stat(w, "leased"), MANY);
	kvfs_release(acquire(w, keys, MANY, MANY));
	kvfs_xfer_free(xfer);
	world_wait_stat(w, "leased", 0);
	free(keys);
}

/* Each message of the acquire names one block that exists, but all its keys
 * count against the limit. */
static void too_many_leased_blocks_are_no_full_disk(void **state)
{
	struct world *w = *state;
	const size_t n = KVFS_LEASED_MAX + 1;
	kvfs_key *keys = new_keys(0, n);
	kvfs_lease *lease;

	for (size_t i = 0; i < n; i += 512)
		keys[i] = world_key(0);
	assert_int_equal(layered_end(save(w, 0, 1, NULL), KVFS_SEALED), 1);
	lease = acquire(w, keys, n, KVFS_LEASED_MAX / 512);
	assert_int_equal(kvfs_lease_status(lease, n - 2), -ENOENT);
	assert_int_equal(kvfs_lease_status(lease, n - 1), -ENOLCK);
	kvfs_release(lease);
	kvfs_release(acquire(w, keys, 1, 1));
	free(keys);
}

static void leases_are_counted_by_their_blocks(void **state)
{
	struct world *w = *state;
	kvfs_lease *leases[KVFS_PENDING_MAX + 10];
	kvfs_key key = world_key(0);

	assert_int_equal(layered_end(save(w, 0, 1, NULL), KVFS_SEALED), 1);
	for (size_t i = 0; i < KV_ARRAY_LEN(leases); i++)
		leases[i] = acquire(w, &key, 1, 1);
	assert_int_equal(layered_end(save(w, 1, 10, NULL), KVFS_DURABLE), 10);
	for (size_t i = 0; i < KV_ARRAY_LEN(leases); i++)
		kvfs_release(leases[i]);
	world_wait_stat(w, "leased", 0);
}

static void too_many_requests_are_no_full_disk(void **state)
{
	struct world *w = *state;
	static struct peer saver;
	kvfs_lease *leases[KVFS_PENDING_MAX + 1];
	struct wire_key name;
	kvfs_key key = {.len = 32};
	kvfs_query query = {w->space, &key, 1};
	size_t last = KV_ARRAY_LEN(leases) - 1;

	peer_keys(&name, 0, 1);
	memcpy(key.bytes, name.key, key.len);
	/* Keep a block in the state of being saved. */
	assert_true(peer_connect(&saver, w->path));
	assert_int_equal(peer_hello(&saver), 0);
	assert_int_equal(peer_space(&saver, w->space_name, "", 0, 0), 0);
	assert_int_equal(peer_do(&saver, WIRE_RESERVE, 0, 1), 0);
	for (size_t i = 0; i <= last; i++)
		assert_int_equal(
			kvfs_acquire(&query, 1,
				     KVFS_OPTS(.flags = KVFS_WAIT_SAVING),
				     &leases[i]),
			0);
	assert_int_equal(kvfs_lease_wait(leases[last], LONG), 0);
	assert_int_equal(kvfs_lease_status(leases[last], 0), -ENOLCK);
	peer_close(&saver);
	for (size_t i = 0; i <= last; i++)
		kvfs_release(leases[i]);
}

/* ---- limits of the process ---- */

static int taken[4096];
static size_t n_taken;

/* Use up all descriptors but @spare, once the session has made its staging. */
static void take_descriptors(struct world *w, int spare)
{
	struct rlimit limit;

	world_wait_staged(w);
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = KV_MIN(limit.rlim_max, 1024);
	setrlimit(RLIMIT_NOFILE, &limit);
	for (n_taken = 0; n_taken < KV_ARRAY_LEN(taken); n_taken++) {
		taken[n_taken] = dup(2);
		if (taken[n_taken] < 0)
			break;
	}
	while (spare-- > 0)
		close(taken[--n_taken]);
}

static void give_descriptors(void)
{
	while (n_taken > 0)
		close(taken[--n_taken]);
}

static void a_segment_without_a_descriptor_says_so_and_comes_again(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0);
	kvfs_lease *lease;

	assert_int_equal(layered_end(save(w, 0, 1, NULL), KVFS_SEALED), 1);
	take_descriptors(w, 0);
	for (int i = 0; i < 3; i++) {
		lease = acquire(w, &key, 1, 0);
		assert_int_equal(kvfs_lease_status(lease, 0), -EMFILE);
		kvfs_release(lease);
	}
	give_descriptors();
	kvfs_release(acquire(w, &key, 1, 1));
	assert_int_equal(kvfs_connection(w->session, NULL), 1);
	world_wait_stat(w, "leased", 0);
}

/* Open a session without a pool, so that it makes no staging memory yet. */
static void without_pool_open(struct world *w)
{
	assert_int_equal(kvfs_open(w->path, &w->session), 0);
	world_wait_connected(w->session, 1);
	world_space_open(w->session, w->space_name, NULL, 0, &w->space);
}

static void other_close(struct world *w)
{
	kvfs_pool_close(w->pool);
	kvfs_space_close(w->space);
	kvfs_close(w->session);
}

static void a_save_without_a_descriptor_says_so(void **state)
{
	struct world w = *(struct world *)*state;
	kvfs_xfer *xfer;

	without_pool_open(&w);
	take_descriptors(*state, 0);
	w.pool = small_pool(&w);
	xfer = save(&w, 0, 1, NULL);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, LONG), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -EMFILE);
	kvfs_xfer_free(xfer);
	give_descriptors();
	assert_int_equal(layered_end(save(&w, 0, 1, NULL), KVFS_SEALED), 1);
	other_close(&w);
}

/* A session that can get no descriptor does not conclude that the daemon is
 * absent. */
static void without_a_descriptor_there_is_no_connection_and_why(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0);
	kvfs_query query;
	kvfs_session *session;
	kvfs_space *space;
	kvfs_lease *lease;
	int status = 0;

	/* number of descriptors that the session itself needs */
	take_descriptors(w, 3);
	assert_int_equal(kvfs_open(w->path, &session), 0);
	assert_int_equal(kvfs_space_open(session, "x", NULL, 0, &space),
			 -EMFILE);
	assert_int_equal(kvfs_space_open(session, "x", SMALL_LAYOUT, 0, &space),
			 0);
	assert_int_equal(kvfs_evict(space, &key, 1, &status), 0);
	assert_int_equal(status, -EMFILE);
	query = (kvfs_query){space, &key, 1};
	assert_int_equal(
		kvfs_acquire(&query, 1, KVFS_OPTS(.deadline = LONG), &lease),
		0);
	assert_int_equal(kvfs_lease_status(lease, 0), -EMFILE);
	kvfs_release(lease);
	kvfs_space_close(space);
	kvfs_close(session);
	give_descriptors();
}

/* SIGXFSZ would end the process: the test ignores it. */
static void a_limit_of_file_sizes_is_not_the_blocks_size(void **state)
{
	struct world w = *(struct world *)*state;
	struct rlimit before, limit;
	kvfs_xfer *xfer;

	signal(SIGXFSZ, SIG_IGN);
	without_pool_open(&w);
	getrlimit(RLIMIT_FSIZE, &before);
	limit = (struct rlimit){4096, before.rlim_max};
	setrlimit(RLIMIT_FSIZE, &limit);
	w.pool = small_pool(&w);
	xfer = save(&w, 0, 1, NULL);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, LONG), 0);
	setrlimit(RLIMIT_FSIZE, &before);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -ENOMEM);
	kvfs_xfer_free(xfer);
	assert_int_equal(layered_end(save(&w, 0, 1, NULL), KVFS_SEALED), 1);
	other_close(&w);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SHADOWED 1
#else
#define SHADOWED 0
#endif

static void a_segment_without_address_space_says_so(void **state)
{
	struct world *w = *state;
	struct rlimit before, limit;
	kvfs_key key = world_key(0);
	kvfs_lease *lease;
	unsigned long pages = 0;
	FILE *statm;

	if (SHADOWED)
		skip();
	assert_int_equal(layered_end(save(w, 0, 1, NULL), KVFS_SEALED), 1);
	/* the staging memory counts as address space, so wait for it */
	world_wait_staged(w);
	statm = fopen("/proc/self/statm", "re");
	assert_int_equal(fscanf(statm, "%lu", &pages), 1);
	fclose(statm);
	getrlimit(RLIMIT_AS, &before);
	limit = (struct rlimit){pages * 4096 + (4u << 20), before.rlim_max};
	setrlimit(RLIMIT_AS, &limit);
	lease = acquire(w, &key, 1, 0);
	setrlimit(RLIMIT_AS, &before);
	assert_int_equal(kvfs_lease_status(lease, 0), -ENOMEM);
	kvfs_release(lease);
	kvfs_release(acquire(w, &key, 1, 1));
}

/* ---- statuses of blocks that were evicted or removed ---- */

/* SSD is small: other blocks evict the block after it was durable. */
static void was_durable_and_is_evicted_since_is_not_enoent(void **state)
{
	struct world *w = *state;
	kvfs_xfer *first, *xfer;
	uint8_t s = 99;
	kvfs_key key = world_key(0);
	kvfs_query query = {w->space, &key, 1};

	world_save(w, 2);
	first = layered_save_by(w->pool, w->space, 2, 3, NULL);
	assert_int_equal(kvfs_xfer_wait(first, KVFS_SEALED, LONG), 3);
	assert_int_equal(kvfs_flush(w->space, KVFS_DURABLE, NULL, &xfer), 0);
	assert_int_equal(layered_end(xfer, KVFS_DURABLE), 1);
	key = world_key(2);
	for (uint32_t i = 1000; i < 20000 && s != KVFS_ABSENT; i += 50) {
		xfer = layered_save_by(w->pool, w->space, i, 50,
				       &(kvfs_opts){.size = sizeof(kvfs_opts),
						    .flags = KVFS_MUST});
		assert_int_equal(layered_end(xfer, KVFS_SEALED), 50);
		assert_true(kvfs_probe(&query, 1, &s) >= 0);
	}
	assert_int_equal(s, KVFS_ABSENT);
	assert_true(kvfs_xfer_wait(first, KVFS_DURABLE, LONG) >= 1);
	assert_int_equal(kvfs_xfer_status(first, 0), KVFS_EVICTED);
	kvfs_xfer_free(first);
	/* A removed block is not reported as evicted. */
	first = layered_save_by(w->pool, w->space, 5, 1, NULL);
	assert_int_equal(kvfs_xfer_wait(first, KVFS_SEALED, LONG), 1);
	key = world_key(5);
	assert_int_equal(kvfs_evict(w->space, &key, 1, NULL), 1);
	assert_int_equal(kvfs_xfer_wait(first, KVFS_DURABLE, LONG), 0);
	assert_int_equal(kvfs_xfer_status(first, 0), -ENOENT);
	kvfs_xfer_free(first);
}

static int roomy(void **state)
{
	return world_begin(state, "dram=512M,ssd=1G,segment=8M");
}

static int small_ssd(void **state)
{
	return world_begin(state, "dram=64M,ssd=64M,segment=8M");
}

#define small(name) \
	cmocka_unit_test_setup_teardown(name, small_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		small(ten_thousand_small_blocks_in_one_save_seal),
		small(ten_thousand_blocks_can_be_held_and_leased),
		small(too_many_leased_blocks_are_no_full_disk),
		small(leases_are_counted_by_their_blocks),
		small(too_many_requests_are_no_full_disk),
		small(a_segment_without_a_descriptor_says_so_and_comes_again),
		small(a_save_without_a_descriptor_says_so),
		small(without_a_descriptor_there_is_no_connection_and_why),
		small(a_limit_of_file_sizes_is_not_the_blocks_size),
		small(a_segment_without_address_space_says_so),
	};
	const struct CMUnitTest evicted[] = {
		cmocka_unit_test_setup_teardown(
			was_durable_and_is_evicted_since_is_not_enoent,
			world_setup, world_teardown),
	};

	return cmocka_run_group_tests(tests, roomy, world_group_teardown) +
	       cmocka_run_group_tests(evicted, small_ssd, world_group_teardown);
}
