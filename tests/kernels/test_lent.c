/* SPDX-License-Identifier: Apache-2.0 */
/* Pools that lend their memory by a descriptor: the daemon saves straight from
 * the pages, and seals no block whose pages were no longer lent. */
#include <sys/mman.h>
#include <sys/stat.h>

#include "tests/kernels/world.h"

#define BYTES ((size_t)PAGES * PAYLOAD)

/* The file with the memory of a pool, and the description of the pool. */
struct shared {
	int fd;
	uint8_t *memory;
	kvfs_view views[2];
	kvfs_pool_desc desc;
};

static void share(struct world *w, struct shared *s, int fd, uint64_t offset)
{
	s->fd = fd;
	assert_true(fd > 0);
	s->memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd,
			 (off_t)offset);
	assert_true(s->memory != MAP_FAILED);
	s->views[0] = (kvfs_view){"k", s->memory, PAYLOAD, TENSOR, 1, 0};
	s->views[1] =
		(kvfs_view){"v", s->memory + TENSOR, PAYLOAD, TENSOR, 1, 0};
	s->desc = (kvfs_pool_desc){
		.size = sizeof(s->desc),
		.device = "host",
		.space = w->space,
		.views = s->views,
		.n_views = 2,
		.pages = PAGES,
		.pages_per_block = 1,
		.memory = s->memory,
		.memory_bytes = BYTES,
		.memory_offset = offset,
		.memory_fd = fd,
	};
}

/* Make an unlinked file without file seals, as vLLM does. */
static int make_file(const char *dir, uint64_t bytes, bool allocated)
{
	char path[96];
	int fd;

	snprintf(path, sizeof(path), "%s/kvfs-lent-XXXXXX", dir);
	fd = mkostemp(path, O_CLOEXEC);
	assert_true(fd >= 0);
	unlink(path);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	if (allocated)
		assert_int_equal(fallocate(fd, 0, 0, (off_t)bytes), 0);
	return fd;
}

static struct kvfs_pool_info info_of(kvfs_pool *pool)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};

	assert_int_equal(kvfs_pool_info(pool, &info), 0);
	return info;
}

static void wait_lent(kvfs_pool *pool)
{
	for (int i = 0; i < 3000 && !info_of(pool).lent; i++)
		usleep(10000);
	assert_true(info_of(pool).lent);
}

/* Replace the pool and the memory of @w by those of @s. */
static void use(struct world *w, struct shared *s)
{
	kvfs_pool_close(w->pool);
	assert_int_equal(kvfs_pool_register(w->session, &s->desc, &w->pool), 0);
	free(w->memory);
	w->memory = s->memory;
}

static void use_file(struct world *w, struct shared *s)
{
	share(w, s, make_file("/dev/shm", BYTES, true), 0);
	use(w, s);
	wait_lent(w->pool);
}

static void put_back(struct world *w, struct shared *s)
{
	w->memory = NULL; /* NULL: world_setup allocates the memory again */
	kvfs_pool_close(kv_steal(w->pool));
	munmap(s->memory, BYTES);
	close(s->fd);
}

static void blocks_are(struct world *w, size_t n)
{
	kvfs_lease *lease = world_acquire(w, n, (long)n);

	for (size_t i = 0; i < n; i++)
		assert_true(
			world_is(kvfs_lease_data(lease, i, NULL), (uint32_t)i));
	kvfs_release(lease);
}

static kvfs_xfer *save(struct world *w, uint32_t first, size_t n,
		       const kvfs_opts *opts)
{
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_xfer *xfer;

	world_chain(first, n, keys, pages);
	assert_int_equal(
		kvfs_save(w->pool, w->space, keys, NULL, n, pages, opts, &xfer),
		0);
	return xfer;
}

/* Check that saving the blocks finds all of them sealed. */
static void is_saved(struct world *w, uint32_t first, size_t n)
{
	kvfs_xfer *xfer = save(w, first, n, NULL);

	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND), n);
	kvfs_xfer_free(xfer);
}

static void pages_are_saved_from_where_they_are(void **state)
{
	struct world *w = *state;
	struct shared s;

	use_file(w, &s);
	assert_string_equal(info_of(w->pool).lent_reason, "");
	world_save(w, PAGES);
	assert_int_equal(info_of(w->pool).pages_saving, 0);
	blocks_are(w, PAGES);
	put_back(w, &s);
}

static void a_part_of_a_file_is_found_at_its_offset(void **state)
{
	struct world *w = *state;
	struct shared s;
	int fd = memfd_create("lent", MFD_CLOEXEC);

	assert_int_equal(ftruncate(fd, (off_t)BYTES + 3 * 4096), 0);
	assert_int_equal(fallocate(fd, 0, 0, (off_t)BYTES + 3 * 4096), 0);
	share(w, &s, fd, 3 * 4096);
	use(w, &s);
	wait_lent(w->pool);
	world_save(w, 20);
	blocks_are(w, 20);
	put_back(w, &s);
}

/* Save blocks of several pages. Each page has a part of k and a part of v. */
static void pages_of_many_runs_are_gathered(void **state)
{
	enum { EACH = 4, RUNS = 8, RUN = TENSOR / EACH / RUNS };
	struct world *w = *state;
	struct shared s;
	uint8_t block[PAYLOAD];
	kvfs_key key = world_key(7);
	int64_t pages[EACH] = {9, 2, 3, 30};
	kvfs_query query = {w->space, &key, 1};
	kvfs_lease *lease;
	kvfs_xfer *xfer;

	share(w, &s, make_file("/dev/shm", BYTES, true), 0);
	for (int i = 0; i < 2; i++) {
		s.views[i].base = s.memory + i * (BYTES / 2);
		s.views[i].block_stride = 2 * RUN * RUNS;
		s.views[i].bytes = RUN;
		s.views[i].count = RUNS;
		s.views[i].segment_stride = 2 * RUN;
	}
	s.desc.pages = 64;
	s.desc.pages_per_block = EACH;
	use(w, &s);
	wait_lent(w->pool);
	for (size_t i = 0; i < BYTES; i++)
		s.memory[i] = (uint8_t)(i * 13 + i / 4099);
	for (size_t i = 0; i < PAYLOAD; i++) {
		size_t in = i % TENSOR, p = in / (RUN * RUNS),
		       r = in / RUN % RUNS;

		block[i] = s.memory[i / TENSOR * (BYTES / 2) +
				    (size_t)pages[p] * 2 * RUN * RUNS +
				    r * 2 * RUN + in % RUN];
	}
	assert_int_equal(
		kvfs_save(w->pool, w->space, &key, NULL, 1, pages, NULL, &xfer),
		0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND), 1);
	kvfs_xfer_free(xfer);
	assert_int_equal(kvfs_acquire(&query, 1, NULL, &lease), 0);
	assert_int_equal(kvfs_lease_wait(lease, 20 * SECOND), 1);
	assert_memory_equal(kvfs_lease_data(lease, 0, NULL), block, PAYLOAD);
	kvfs_release(lease);
	put_back(w, &s);
}

static void what_is_no_mapping_of_the_file_is_refused(void **state)
{
	struct world *w = *state;
	struct shared s;
	kvfs_pool *pool;
	void *other;

	share(w, &s, make_file("/dev/shm", BYTES + 4096, true), 0);
	s.desc.memory_offset = 4096;
	assert_int_equal(kvfs_pool_register(w->session, &s.desc, &pool),
			 -EINVAL);
	s.desc.memory_offset = 0;
	s.desc.memory_fd = -1;
	assert_int_equal(kvfs_pool_register(w->session, &s.desc, &pool),
			 -EINVAL);
	s.desc.memory_fd = 4000;
	assert_int_equal(kvfs_pool_register(w->session, &s.desc, &pool),
			 -EBADF);
	s.desc.memory_fd = make_file("/dev/shm", BYTES, true);
	assert_int_equal(kvfs_pool_register(w->session, &s.desc, &pool),
			 -EINVAL);
	close(s.desc.memory_fd);
	s.desc.memory_fd = s.fd;
	s.desc.reserved = 1;
	assert_int_equal(kvfs_pool_register(w->session, &s.desc, &pool),
			 -EINVAL);
	s.desc.reserved = 0;
	/* A page that is mapped privately, in the middle of the memory, belongs
	 * to no file. */
	other = mmap(s.memory + BYTES / 2, 4096, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_FIXED, s.fd, BYTES / 2);
	assert_true(other != MAP_FAILED);
	assert_int_equal(kvfs_pool_register(w->session, &s.desc, &pool),
			 -EINVAL);
	munmap(s.memory, BYTES);
	close(s.fd);
}

/* The pool cannot be lent: blocks are saved by staging memory, and
 * kvfs_pool_info has the reason. */
static void files_that_are_not_taken_are_saved_all_the_same(void **state)
{
	struct world *w = *state;
	struct shared s;

	share(w, &s, make_file(w->dir, BYTES, true), 0);
	use(w, &s);
	world_save(w, 3);
	assert_false(info_of(w->pool).lent);
	assert_string_equal(info_of(w->pool).lent_reason,
			    "the descriptor is of no file in memory");
	blocks_are(w, 3);
	put_back(w, &s);
}

static void a_sparse_file_stays_sparse(void **state)
{
	struct world *w = *state;
	struct shared s;
	struct stat st, before;

	share(w, &s, make_file("/dev/shm", UINT64_C(4) << 40, false), 0);
	use(w, &s);
	wait_lent(w->pool);
	world_save(w, 3);
	blocks_are(w, 3);
	assert_int_equal(fstat(s.fd, &before), 0);
	is_saved(w, 300, 20); /* most of these pages were never written */
	assert_int_equal(fstat(s.fd, &st), 0);
	assert_int_equal(st.st_blocks, before.st_blocks);
	assert_true(st.st_blocks < 16 * (long)(PAYLOAD / 512));
	put_back(w, &s);
}

static void ended_with(kvfs_xfer *xfer, size_t n, int status)
{
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, 20 * SECOND), 0);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(kvfs_xfer_status(xfer, i), status);
	kvfs_xfer_free(xfer);
}

static void a_file_that_becomes_shorter_fails_the_blocks_alone(void **state)
{
	struct world *w = *state;
	struct shared s;

	use_file(w, &s);
	world_save(w, 5);
	for (uint32_t i = 0; i < 3; i++)
		world_fill(w, i, 100 + i);
	is_saved(w, 100, 3);
	assert_int_equal(ftruncate(s.fd, 4096), 0);
	ended_with(save(w, 200, 3, NULL), 3, -EFAULT);
	blocks_are(w, 5);
	put_back(w, &s);
}

/* The file shrinks and grows while the daemon reads: SIGBUS fails only the
 * block being read. */
static void a_file_that_shrinks_meanwhile_harms_nobody(void **state)
{
	struct world *w = *state;
	struct shared s;
	kvfs_xfer *xfer;
	uint32_t first = 1000;
	pid_t child;

	use_file(w, &s);
	child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;) {
			if (ftruncate(s.fd, 0) < 0 ||
			    fallocate(s.fd, 0, 0, (off_t)BYTES) < 0)
				_exit(1);
			usleep(300);
		}
	}
	for (int round = 0; round < 60; round++, first += 60) {
		xfer = save(w, first, 60, NULL);
		kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND);
		for (size_t i = 0; i < 60; i++) {
			int r = kvfs_xfer_status(xfer, i);

			/* ENOSPC: the SSD was slower than the saves. */
			if (r != 0 && r != -EFAULT && r != -ENOSPC)
				fail_msg("round %d, block %zu: %s", round, i,
					 strerror(-r));
		}
		kvfs_xfer_free(xfer);
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	assert_int_equal(fallocate(s.fd, 0, 0, (off_t)BYTES), 0);
	world_save(w, 5);
	blocks_are(w, 5);
	put_back(w, &s);
}

/* Count the blocks from @first on that are absent or have the bytes that the
 * pages had while they were lent. */
static size_t are_old_or_absent(struct world *w, uint32_t first, size_t n)
{
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_query query = {w->space, keys, n};
	kvfs_lease *lease;
	size_t there = 0;

	world_chain(first, n, keys, pages);
	assert_int_equal(kvfs_acquire(&query, 1,
				      KVFS_OPTS(.deadline = 10 * SECOND,
						.flags = KVFS_WAIT_SAVING),
				      &lease),
			 0);
	kvfs_lease_wait(lease, KVFS_FOREVER);
	for (size_t i = 0; i < n; i++) {
		if (kvfs_lease_status(lease, i) != 0)
			continue;
		there++;
		assert_true(world_is(kvfs_lease_data(lease, i, NULL),
				     first + (uint32_t)i));
	}
	kvfs_release(lease);
	return there;
}

static void a_hung_daemon_gives_pages_back_and_seals_no_others(void **state)
{
	struct world *w = *state;
	struct shared s;
	kvfs_xfer *xfer;

	use_file(w, &s);
	world_save(w, 1);
	for (uint32_t i = 0; i < PAGES; i++)
		world_fill(w, i, 500 + i);
	world_freeze(w);
	xfer = save(w, 500, PAGES, KVFS_OPTS(.deadline = SECOND / 5));
	assert_int_equal(info_of(w->pool).pages_saving, PAGES);
	ended_with(xfer, PAGES, -ETIMEDOUT);
	assert_int_equal(info_of(w->pool).pages_saving, 0);
	xfer = save(w, 900, PAGES, NULL);
	kvfs_xfer_cancel(xfer);
	ended_with(xfer, PAGES, -ECANCELED);
	memset(s.memory, 0x55, BYTES);
	world_thaw(w);
	assert_int_equal(are_old_or_absent(w, 500, PAGES), 0);
	assert_int_equal(are_old_or_absent(w, 900, PAGES), 0);
	world_save(w, 40);
	blocks_are(w, 40);
	put_back(w, &s);
}

static void a_cancel_at_any_moment_takes_pages_back(void **state)
{
	struct world *w = *state;
	struct shared s;
	uint32_t first = 2000;
	size_t there = 0;
	kvfs_xfer *xfer;

	use_file(w, &s);
	for (int round = 0; round < 100; round++, first += 100) {
		for (uint32_t i = 0; i < 100; i++)
			world_fill(w, i, first + i);
		xfer = save(w, first, 100, NULL);
		usleep((useconds_t)(round * 17));
		kvfs_xfer_cancel(xfer);
		kvfs_xfer_wait(xfer, KVFS_COPIED, 20 * SECOND);
		memset(s.memory, 0x55, 100 * PAYLOAD);
		kvfs_xfer_free(xfer);
		there += are_old_or_absent(w, first, 100);
	}
	print_message("%zu of 10000 blocks were sealed\n", there);
	put_back(w, &s);
}

static void run_lender(struct world *w, const struct shared *from,
		       uint32_t first)
{
	struct shared s = *from;
	kvfs_session *session;
	struct world child = *w;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (kvfs_open(w->path, &session) < 0)
		_exit(1);
	child.session = session;
	world_space_open(session, w->space_name, NULL, 0, &child.space);
	s.desc.space = child.space;
	if (kvfs_pool_register(session, &s.desc, &child.pool) < 0)
		_exit(2);
	wait_lent(child.pool);
	save(&child, first, 100, NULL);
	pause();
	_exit(3);
}

/* The pages are reused as soon as the process that lent them is dead. */
static void a_client_killed_between_copy_and_seal_seals_no_other(void **state)
{
	struct world *w = *state;
	struct shared s;
	uint32_t first = 20000;
	size_t there = 0;
	pid_t child;

	share(w, &s, make_file("/dev/shm", BYTES, true), 0);
	for (int round = 0; round < 60; round++, first += 100) {
		for (uint32_t i = 0; i < 100; i++)
			for (size_t k = 0; k < PAYLOAD; k++)
				s.memory[i * PAYLOAD + k] =
					world_byte(first + i, k);
		child = fork();
		if (child == 0)
			run_lender(w, &s, first);
		/* Wait until the first block is sealed: then the others are
		 * being saved. */
		for (int i = 0; i < 100000; i++) {
			kvfs_key key = world_key(first + (uint32_t)round);
			kvfs_query query = {w->space, &key, 1};
			uint8_t seen;

			kvfs_probe(&query, 1, &seen);
			if (seen != KVFS_ABSENT)
				break;
		}
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		memset(s.memory, 0x55, 100 * PAYLOAD);
		there += are_old_or_absent(w, first, 100);
	}
	print_message("%zu of 6000 blocks were sealed\n", there);
	munmap(s.memory, BYTES);
	close(s.fd);
}

static void the_next_daemon_is_told_again(void **state)
{
	struct world *w = *state;
	struct shared s;

	use_file(w, &s);
	world_save(w, 2);
	world_stop_daemon(w, SIGKILL);
	world_wait_connected(w->session, 0);
	assert_false(info_of(w->pool).lent);
	ended_with(save(w, 50, 2, NULL), 2, -ENOTCONN);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
	world_save(w, 10);
	wait_lent(w->pool);
	for (uint32_t i = 0; i < 10; i++)
		world_fill(w, i, 300 + i);
	is_saved(w, 300, 10);
	assert_int_equal(are_old_or_absent(w, 300, 10), 10);
	put_back(w, &s);
}

static void what_is_lent_is_held_and_there_and_skipped(void **state)
{
	struct world *w = *state;
	kvfs_opts hold = {.size = sizeof(hold), .flags = KVFS_HOLD | KVFS_MUST};
	struct shared s;
	kvfs_xfer *xfer;

	use_file(w, &s);
	world_save(w, 3);
	world_fill(w, 3, 3);
	memset(s.memory, 0x55, 3 * PAYLOAD);
	xfer = save(w, 0, 4, &hold);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_DURABLE, 20 * SECOND), 4);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(kvfs_xfer_status(xfer, i), KVFS_PRESENT);
	assert_int_equal(kvfs_xfer_status(xfer, 3), 0);
	kvfs_xfer_free(xfer);
	blocks_are(w, 4);
	put_back(w, &s);
}

/* The memory grows during the saves, and new pages are also lent. */
static void pages_that_kvfs_owns_are_lent(void **state)
{
	enum { FIRST = 4, ALL = 64 };
	struct world *w = *state;
	kvfs_key keys[ALL];
	int64_t pages[ALL];
	kvfs_pages *few, *many;
	kvfs_pool *pool;
	kvfs_xfer *xfer;

	world_chain(0, ALL, keys, pages);
	assert_int_equal(kvfs_pool_reserve(w->session, "host", w->space, FIRST,
					   ALL, &pool),
			 0);
	wait_lent(pool);
	assert_int_equal(kvfs_pages_take(pool, FIRST, &few), 0);
	assert_int_equal(kvfs_pages_take(pool, ALL - FIRST, &many), 0);
	for (uint32_t i = 0; i < ALL; i++)
		for (size_t k = 0; k < PAYLOAD; k++)
			((uint8_t *)(i < FIRST
					     ? kvfs_pages_addr(few, i, NULL)
					     : kvfs_pages_addr(many, i - FIRST,
							       NULL)))[k] =
				world_byte(i, k);
	assert_int_equal(
		kvfs_pages_seal(few, w->space, keys, NULL, FIRST, NULL, &xfer),
		0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND), FIRST);
	kvfs_xfer_free(xfer);
	assert_int_equal(kvfs_pages_seal(many, w->space, keys + FIRST, NULL,
					 ALL - FIRST, NULL, &xfer),
			 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND),
			 ALL - FIRST);
	kvfs_xfer_free(xfer);
	assert_true(info_of(pool).lent);
	blocks_are(w, ALL);
	kvfs_pages_free(few);
	kvfs_pages_free(many);
	kvfs_pool_close(pool);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(pages_are_saved_from_where_they_are),
		test(a_part_of_a_file_is_found_at_its_offset),
		test(pages_of_many_runs_are_gathered),
		test(what_is_no_mapping_of_the_file_is_refused),
		test(files_that_are_not_taken_are_saved_all_the_same),
		test(a_sparse_file_stays_sparse),
		test(a_file_that_becomes_shorter_fails_the_blocks_alone),
		test(a_file_that_shrinks_meanwhile_harms_nobody),
		test(a_hung_daemon_gives_pages_back_and_seals_no_others),
		test(a_cancel_at_any_moment_takes_pages_back),
		test(a_client_killed_between_copy_and_seal_seals_no_other),
		test(what_is_lent_is_held_and_there_and_skipped),
		test(pages_that_kvfs_owns_are_lent),
		test(the_next_daemon_is_told_again),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
