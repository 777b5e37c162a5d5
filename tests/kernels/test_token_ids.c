/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_token_ids.c - save blocks with their token ids, in every way, and read
 * the ids back.
 *
 * OWNS      a daemon for the group; for each test a session, a space that keeps
 *           token ids, and a pool.
 *
 * LOCKING   none: one thread, but the library's.
 */
#include "world.h"

#include <sys/mman.h>

#define TOKENS 512u
#define BLOCK 4096u
#define N 4000u
#define TENSORS \
	"\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[8,512]}]"
#define LAYOUT "{" TENSORS ",\"tokens\":512,\"layers\":0,\"token_ids\":true}"
#define PLAIN "{" TENSORS ",\"tokens\":512,\"layers\":0}"

struct fixture {
	struct world *w;
	kvfs_key keys[N];
	kvfs_meta meta[N];
	int64_t pages[N];
	uint32_t ids[N + TOKENS];
	/* descriptor of the memory that the pool lends to the daemon; -1:
	 * none */
	int fd;
};

static struct fixture f;

static int group_setup(void **state)
{
	return world_begin(state, "dram=256M,ssd=8G,segment=8M");
}

static void open_space(const char *layout)
{
	struct world *w = f.w;

	assert_int_equal(kvfs_open(w->path, &w->session), 0);
	world_wait_connected(w->session, 1);
	world_space_open(w->session, w->space_name, layout, KVFS_CREATE | 0700,
			 &w->space);
}

static kvfs_pool *make_pool(int fd)
{
	struct world *w = f.w;
	const kvfs_view view = {"k", w->memory, BLOCK, BLOCK, 1, 0};
	const kvfs_pool_desc desc = {
		.size = sizeof(desc),
		.device = "host",
		.space = w->space,
		.views = &view,
		.n_views = 1,
		.pages = N,
		.pages_per_block = 1,
		.memory = w->memory,
		.memory_bytes = (uint64_t)N * BLOCK,
		.memory_fd = KV_MAX(fd, 0),
	};
	kvfs_pool *pool;

	assert_int_equal(kvfs_pool_register(w->session, &desc, &pool), 0);
	return pool;
}

/* Give block i the token ids i, i + 1 .. and its own extras. */
static int setup(void **state)
{
	struct world *w = *state;

	f.w = w;
	f.fd = memfd_create("pool", MFD_CLOEXEC);
	assert_int_equal(ftruncate(f.fd, N * BLOCK), 0);
	assert_int_equal(fallocate(f.fd, 0, 0, N * BLOCK), 0);
	w->memory = mmap(NULL, N * BLOCK, PROT_READ | PROT_WRITE, MAP_SHARED,
			 f.fd, 0);
	assert_ptr_not_equal(w->memory, MAP_FAILED);
	for (uint32_t i = 0; i < N + TOKENS; i++)
		f.ids[i] = i * 1000003u;
	for (uint32_t i = 0; i < N; i++) {
		f.keys[i] = world_key(i);
		f.pages[i] = i;
		f.meta[i] = (kvfs_meta){.parent.len = KVFS_CHAIN,
					.position = i,
					.token_ids = f.ids + i,
					.extras = &f.pages[i],
					.extras_len = i % 9};
		memset(w->memory + i * BLOCK, (int)i, BLOCK);
	}
	snprintf(w->space_name, sizeof(w->space_name), "s%u", w->spaces++);
	open_space(LAYOUT);
	w->pool = make_pool(-1);
	return 0;
}

static int teardown(void **state)
{
	struct world *w = *state;

	world_teardown(state);
	munmap(kv_steal(w->memory), N * BLOCK);
	close(f.fd);
	return 0;
}

static kvfs_xfer *save(kvfs_pool *pool, size_t n, const kvfs_opts *opts)
{
	kvfs_xfer *xfer = NULL;

	assert_int_equal(kvfs_save(pool, f.w->space, f.keys, f.meta, n, f.pages,
				   opts, &xfer),
			 0);
	return xfer;
}

static void save_all(kvfs_pool *pool, size_t n, enum kvfs_stage stage)
{
	kvfs_xfer *xfer = save(pool, n, KVFS_OPTS(.flags = KVFS_MUST));

	assert_int_equal(kvfs_xfer_wait(xfer, stage, 60 * SECOND), n);
	for (size_t i = 0; i < n; i++)
		assert_int_equal(kvfs_xfer_status(xfer, i), 0);
	kvfs_xfer_free(xfer);
}

static void is_right(const kvfs_tokens *tokens, uint32_t i)
{
	const uint32_t n = f.meta[i].tokens ? f.meta[i].tokens : TOKENS;

	assert_int_equal(tokens->status, 0);
	assert_int_equal(tokens->n, n);
	assert_memory_equal(tokens->ids, f.ids + i, n * sizeof(uint32_t));
	assert_int_equal(tokens->extras_len, i % 9);
	assert_memory_equal(tokens->extras, &f.pages[i], i % 9);
	assert_int_equal(tokens->position, i);
	assert_int_equal(tokens->parent.len, i ? 16 : 0);
	if (i)
		assert_memory_equal(&tokens->parent, &f.keys[i - 1],
				    sizeof(kvfs_key));
}

/* Get the ids of all blocks in the list.  Return their number. */
static size_t tell_all(size_t buffer_bytes)
{
	static kvfs_tokens tokens[512];
	static bool seen[N];
	_Alignas(8) static uint8_t buffer[1 << 20];
	kvfs_key keys[512];
	uint64_t cursor = 0;
	size_t all = 0;
	uint32_t block;
	long n, got;

	memset(seen, 0, sizeof(seen));
	do {
		n = kvfs_space_keys(f.w->space, &cursor, keys, 512);
		assert_true(n >= 0);
		for (long at = 0; at < n; at += got) {
			got = kvfs_space_tokens(f.w->space, keys + at,
						(size_t)(n - at), tokens,
						buffer, buffer_bytes);
			assert_in_range(got, 1, n - at);
			for (long i = 0; i < got; i++) {
				memcpy(&block, keys[at + i].bytes, 4);
				is_right(&tokens[i], block);
				all += !seen[block];
				seen[block] = true;
			}
		}
	} while (cursor != 0);
	return all;
}

static void a_save_without_them_is_einval(void **state)
{
	struct world *w = *state;
	kvfs_xfer *xfer;
	char extras[KVFS_EXTRAS_MAX + 1] = "";

	assert_int_equal(kvfs_save(w->pool, w->space, f.keys, NULL, 1, f.pages,
				   NULL, &xfer),
			 -EINVAL);
	f.meta[1].token_ids = NULL;
	assert_int_equal(kvfs_save(w->pool, w->space, f.keys, f.meta, 2,
				   f.pages, NULL, &xfer),
			 -EINVAL);
	f.meta[1].token_ids = f.ids;
	f.meta[1].tokens = TOKENS + 1;
	assert_int_equal(kvfs_save(w->pool, w->space, f.keys, f.meta, 2,
				   f.pages, NULL, &xfer),
			 -EINVAL);
	f.meta[1].tokens = 0;
	f.meta[1].extras = NULL;
	assert_int_equal(kvfs_save(w->pool, w->space, f.keys, f.meta, 2,
				   f.pages, NULL, &xfer),
			 -EINVAL);
	f.meta[1].extras = extras;
	f.meta[1].extras_len = sizeof(extras);
	assert_int_equal(kvfs_save(w->pool, w->space, f.keys, f.meta, 2,
				   f.pages, NULL, &xfer),
			 -E2BIG);
	assert_int_equal(kvfs_save(w->pool, w->space, f.keys, NULL, 0, f.pages,
				   NULL, &xfer),
			 0);
	kvfs_xfer_free(xfer);
	assert_int_equal(kvfs_space_keeps_tokens(w->space), 1);
	assert_int_equal(kvfs_space_keeps_tokens(NULL), -EINVAL);
}

static void other_spaces_take_none(void **state)
{
	struct world *w = *state;
	_Alignas(8) static uint8_t buffer[KVFS_TOKENS_ROOM];
	kvfs_tokens tokens;
	kvfs_space *plain;
	kvfs_xfer *xfer;

	world_space_open(w->session, "plain", PLAIN, KVFS_CREATE | 0700,
			 &plain);
	assert_int_equal(kvfs_space_keeps_tokens(plain), 0);
	assert_int_equal(kvfs_save(w->pool, plain, f.keys, f.meta, 1, f.pages,
				   NULL, &xfer),
			 -EINVAL);
	assert_int_equal(kvfs_save(w->pool, plain, f.keys, NULL, 1, f.pages,
				   NULL, &xfer),
			 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND), 1);
	kvfs_xfer_free(xfer);
	assert_int_equal(kvfs_space_tokens(plain, f.keys, 1, &tokens, buffer,
					   sizeof(buffer)),
			 -EINVAL);
	kvfs_space_close(plain);
	/* The space exists already, with another layout. */
	assert_int_equal(
		kvfs_space_open(w->session, "plain", LAYOUT, 0, &plain),
		-EEXIST);
}

static void wrong_questions_are_refused(void **state)
{
	struct world *w = *state;
	_Alignas(8) static uint8_t buffer[KVFS_TOKENS_ROOM + 8];
	kvfs_tokens tokens[2];
	kvfs_key bad = {.len = 20};

	save_all(w->pool, 2, KVFS_SEALED);
	assert_int_equal(kvfs_space_tokens(NULL, f.keys, 1, tokens, buffer,
					   KVFS_TOKENS_ROOM),
			 -EINVAL);
	assert_int_equal(kvfs_space_tokens(w->space, f.keys, 1, tokens, buffer,
					   KVFS_TOKENS_ROOM - 1),
			 -EINVAL);
	assert_int_equal(kvfs_space_tokens(w->space, f.keys, 1, tokens,
					   buffer + 1, KVFS_TOKENS_ROOM),
			 -EINVAL);
	assert_int_equal(kvfs_space_tokens(w->space, &bad, 1, tokens, buffer,
					   KVFS_TOKENS_ROOM),
			 -EINVAL);
	assert_int_equal(kvfs_space_tokens(w->space, f.keys, 0, tokens, buffer,
					   KVFS_TOKENS_ROOM),
			 0);
	assert_int_equal(kvfs_space_tokens(w->space, f.keys + 1, 2, tokens,
					   buffer, KVFS_TOKENS_ROOM),
			 2);
	is_right(&tokens[0], 1);
	assert_int_equal(tokens[1].status, -ENOENT);
	assert_null(tokens[1].ids);
}

static void they_are_in_the_file(void **state)
{
	kvfs_lease *lease;
	uint64_t bytes;
	const char *file;
	kvfs_query query = {f.w->space, f.keys, 1};

	(void)state;
	save_all(f.w->pool, 1, KVFS_SEALED);
	assert_int_equal(kvfs_acquire(&query, 1, NULL, &lease), 0);
	assert_int_equal(kvfs_lease_wait(lease, 20 * SECOND), 1);
	file = kvfs_lease_file(lease, 0, &bytes);
	assert_non_null(
		memmem(file, bytes, "\"token_ids\":\"0,1000003,2000006,", 31));
	assert_memory_equal(kvfs_lease_data(lease, 0, &bytes), f.w->memory,
			    BLOCK);
	kvfs_release(lease);
}

/* A message and the staging memory have room for a few of the blocks only. */
static void thousands_at_once_all_have_theirs(void **state)
{
	struct world *w = *state;

	/* the last block is a tail: it has three tokens */
	f.meta[N - 1].tokens = 3;
	save_all(w->pool, N, KVFS_DURABLE);
	assert_int_equal(tell_all(KVFS_TOKENS_ROOM), N);
	assert_int_equal(tell_all(1 << 20), N);
}

static void blocks_from_lent_pages_have_theirs(void **state)
{
	struct world *w = *state;
	kvfs_pool *pool = make_pool(f.fd);
	struct kvfs_pool_info info = KVFS_POOL_INFO_INIT;

	for (int i = 0; i < 1000 && !info.lent; i++) {
		assert_int_equal(kvfs_pool_info(pool, &info), 0);
		usleep(10000);
	}
	assert_int_equal(info.lent, 1);
	f.meta[7].tokens = 5;
	save_all(pool, N, KVFS_SEALED);
	assert_int_equal(tell_all(1 << 20), N);
	kvfs_pool_close(pool);
	(void)w;
}

static void restart(const char *damage)
{
	struct world *w = f.w;
	char command[200];

	kvfs_pool_close(kv_steal(w->pool));
	kvfs_space_close(kv_steal(w->space));
	kvfs_close(kv_steal(w->session));
	world_stop_daemon(w, SIGKILL);
	snprintf(command, sizeof(command), "cd %s && %s", w->store, damage);
	assert_int_equal(system(command), 0);
	world_start_daemon(w);
	open_space(LAYOUT);
	w->pool = make_pool(-1);
}

static void what_was_durable_has_them_after_sigkill(void **state)
{
	struct world *w = *state;

	save_all(w->pool, 1000, KVFS_DURABLE);
	restart("true");
	assert_int_equal(tell_all(1 << 20), 1000);
	restart("rm index/data.mdb");
	assert_int_equal(tell_all(1 << 20), 1000);
}

static void they_go_with_their_block(void **state)
{
	struct world *w = *state;
	_Alignas(8) static uint8_t buffer[KVFS_TOKENS_ROOM];
	kvfs_tokens tokens;

	save_all(w->pool, 20, KVFS_DURABLE);
	assert_int_equal(kvfs_evict(w->space, f.keys, 5, NULL), 5);
	assert_int_equal(kvfs_space_tokens(w->space, f.keys, 1, &tokens, buffer,
					   sizeof(buffer)),
			 1);
	assert_int_equal(tokens.status, -ENOENT);
	assert_int_equal(tell_all(1 << 20), 15);
	assert_int_equal(kvfs_space_clear(w->space), 0);
	assert_int_equal(tell_all(1 << 20), 0);
	assert_int_equal(kvfs_space_remove(w->space), 0);
	assert_true(kvfs_space_tokens(w->space, f.keys, 1, &tokens, buffer,
				      sizeof(buffer)) < 0);
}

static void a_daemon_that_is_not_there_is_no_answer(void **state)
{
	struct world *w = *state;
	_Alignas(8) static uint8_t buffer[KVFS_TOKENS_ROOM];
	kvfs_tokens tokens;

	world_stop_daemon(w, SIGKILL);
	world_wait_connected(w->session, 0);
	assert_int_equal(kvfs_space_tokens(w->space, f.keys, 1, &tokens, buffer,
					   sizeof(buffer)),
			 -ENOTCONN);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_save_without_them_is_einval),
		TEST(other_spaces_take_none),
		TEST(wrong_questions_are_refused),
		TEST(they_are_in_the_file),
		TEST(thousands_at_once_all_have_theirs),
		TEST(blocks_from_lent_pages_have_theirs),
		TEST(what_was_durable_has_them_after_sigkill),
		TEST(they_go_with_their_block),
		TEST(a_daemon_that_is_not_there_is_no_answer),
	};

	return cmocka_run_group_tests(tests, group_setup, world_group_teardown);
}
