/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_remote_offer.c - all that is durable of a shared space gets to every backend,
 * however late that is asked of it or can be.
 *
 * OWNS      a small store for each test, and two directories as backends.
 *
 * LOCKING   none of its own.
 */
#include <dirent.h>
#include <ftw.h>
#include <sys/wait.h>

#include "tests/cache/small_store.h"

#define BACKENDS 2
#define PATH 100
#define BLOCKS 40u

struct node {
	struct small s; /* first */
	char at[BACKENDS][PATH];
	char urls[BACKENDS][PATH + 4];
	char *list[BACKENDS];
};

static int set_up(void **state)
{
	struct node *node = calloc(1, sizeof(*node));

	small_new(&node->s);
	for (unsigned i = 0; i < BACKENDS; i++) {
		snprintf(node->at[i], PATH, "%s-backend%u", node->s.path, i);
		snprintf(node->urls[i], PATH + 4, "dir:%s", node->at[i]);
		node->list[i] = node->urls[i];
		assert_int_equal(mkdir(node->at[i], 0700), 0);
	}
	node->s.config.remote = (struct kv_remote_config){
		.urls = node->list, .n = BACKENDS, .threshold = 1};
	*state = node;
	return 0;
}

static int tear_down(void **state)
{
	struct node *node = *state;

	if (node->s.cache) {
		kv_space_put(node->s.space);
		assert_int_equal(small_close(&node->s), 0);
	}
	for (unsigned i = 0; i < BACKENDS; i++)
		tree_remove(node->at[i]);
	small_remove(&node->s);
	free(node->s.why);
	free(node);
	return 0;
}

static void reopen(struct node *node)
{
	kv_space_put(node->s.space);
	assert_int_equal(small_close(&node->s), 0);
	small_must_open(&node->s);
}

static void share(struct node *node, bool shared)
{
	assert_int_equal(
		kv_space_set_shared(node->s.cache, node->s.space, shared), 0);
}

static void save(struct node *node, unsigned from, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		assert_int_equal(small_save(&node->s, from + i), 0);
	assert_int_equal(kv_space_sync(node->s.cache, node->s.space), 0);
}

/* ---- what a backend has ---- */

static unsigned counted;

static int count(const char *path, const struct stat *st, int type,
		 struct FTW *place)
{
	(void)st;
	counted += type == FTW_F && place->level == 3 && strlen(path) > 7 &&
		   strcmp(path + strlen(path) - 7, ".digest") == 0;
	return 0;
}

/* Count the objects of all spaces, without those that are being put. */
static unsigned objects(const struct node *node, unsigned backend)
{
	counted = 0;
	nftw(node->at[backend], count, 16, FTW_PHYS);
	return counted;
}

static int is_exact(const char *path, const struct stat *st, int type,
		    struct FTW *place)
{
	static uint8_t is[BYTES + 1], wanted[BYTES];
	const char *name = path + place->base;
	FILE *file;
	unsigned n;

	(void)st;
	if (type != FTW_F || place->level != 3 || strchr(name, '.'))
		return 0;
	for (n = 0; n < 10 * BLOCKS; n++) {
		const struct kv_key key = small_key(n);
		char hex[KV_NAME_MAX + 1];

		kv_key_name(&key, hex);
		if (strcmp(hex, name) == 0)
			break;
	}
	small_content(wanted, BYTES, n);
	file = fopen(path, "r");
	assert_non_null(file);
	assert_int_equal(fread(is, 1, sizeof(is), file), BYTES);
	fclose(file);
	assert_memory_equal(is, wanted, BYTES);
	return 0;
}

static void must_have(const struct node *node, unsigned backend, unsigned n)
{
	const uint64_t until = kv_now_ns() + UINT64_C(60000000000);

	while (objects(node, backend) < n && kv_now_ns() < until)
		usleep(10000);
	assert_int_equal(objects(node, backend), n);
}

static void must_get_there(const struct node *node, unsigned backend,
			   unsigned n)
{
	must_have(node, backend, n);
	assert_int_equal(nftw(node->at[backend], is_exact, 16, FTW_PHYS), 0);
}

static struct kv_remote_stats stats_of(struct node *node, unsigned backend)
{
	struct kv_remote_stats all[BACKENDS];

	assert_int_equal(kv_remote_stats(node->s.cache, all, BACKENDS),
			 node->s.config.remote.n);
	return all[backend];
}

/* Until all that is here was offered. */
static void must_be_offered(struct node *node)
{
	const uint64_t until = kv_now_ns() + UINT64_C(60000000000);

	for (unsigned i = 0; i < node->s.config.remote.n; i++) {
		while (stats_of(node, i).offering && kv_now_ns() < until)
			usleep(10000);
		assert_int_equal(stats_of(node, i).offering, 0);
	}
}

/* Make all calls of the backend fail. */
static void harm(const struct node *node, unsigned backend)
{
	static const char *const names[] = {"0", "trial"};
	char path[PATH + 10];

	for (size_t i = 0; i < KV_ARRAY_LEN(names); i++) {
		snprintf(path, sizeof(path), "%s/%s", node->at[backend],
			 names[i]);
		assert_int_equal(symlink(names[i], path), 0);
	}
}

static void mend(const struct node *node, unsigned backend)
{
	char path[PATH + 10];

	snprintf(path, sizeof(path), "%s/0", node->at[backend]);
	assert_int_equal(unlink(path), 0);
	snprintf(path, sizeof(path), "%s/trial", node->at[backend]);
	assert_int_equal(unlink(path), 0);
}

/* Of a block of the only space that a tenant has there, the note; "": there is none. */
static void note_of(const struct node *node, unsigned backend,
		    const char *tenant, unsigned n, char path[4 * PATH])
{
	const struct kv_key key = small_key(n);
	char hex[KV_NAME_MAX + 1];
	struct dirent *entry;
	DIR *dir;

	snprintf(path, 4 * PATH, "%s/%s", node->at[backend], tenant);
	dir = opendir(path);
	path[0] = 0;
	kv_key_name(&key, hex);
	while (dir && (entry = readdir(dir)))
		if (entry->d_name[0] != '.')
			snprintf(path, 4 * PATH, "%s/%s/%.70s/%s.digest",
				 node->at[backend], tenant, entry->d_name, hex);
	if (dir)
		closedir(dir);
}

static bool is_there(const struct node *node, const char *tenant, unsigned n)
{
	char path[4 * PATH];

	note_of(node, 0, tenant, n, path);
	return access(path, F_OK) == 0;
}

static void lose(const struct node *node, unsigned backend, unsigned n)
{
	char path[4 * PATH];

	note_of(node, backend, "0", n, path);
	assert_int_equal(unlink(path), 0);
	path[strlen(path) - strlen(".digest")] = 0;
	assert_int_equal(unlink(path), 0);
}

/* ---- tests ---- */

static void test_what_was_saved_before_is_handed_over(void **state)
{
	struct node *node = *state;

	small_must_open(&node->s);
	save(node, 0, BLOCKS);
	for (unsigned n = 0; n < BLOCKS / 2; n++)
		assert_int_equal(small_demote(&node->s, n), 0);
	assert_int_equal(objects(node, 0), 0);
	share(node, true);
	for (unsigned i = 0; i < BACKENDS; i++)
		must_get_there(node, i, BLOCKS);
	/* And what was while it was not. */
	share(node, false);
	save(node, BLOCKS, 10);
	share(node, true);
	for (unsigned i = 0; i < BACKENDS; i++)
		must_get_there(node, i, BLOCKS + 10);
}

static void test_what_a_backend_has_is_not_given_again(void **state)
{
	struct node *node = *state;

	small_must_open(&node->s);
	share(node, true);
	save(node, 0, BLOCKS);
	for (unsigned i = 0; i < BACKENDS; i++)
		must_get_there(node, i, BLOCKS);
	reopen(node);
	must_be_offered(node);
	for (unsigned i = 0; i < BACKENDS; i++) {
		assert_int_equal(stats_of(node, i).calls[KV_REMOTE_EXISTS],
				 BLOCKS);
		assert_int_equal(stats_of(node, i).calls[KV_REMOTE_PUT], 0);
	}
	assert_int_equal(small_stats(&node->s).bytes_read_ssd, 0);
	/* A backend gets the blocks that it has lost, and the others get none. */
	for (unsigned n = 0; n < 5; n++)
		lose(node, 1, n);
	reopen(node);
	must_be_offered(node);
	must_get_there(node, 1, BLOCKS);
	assert_int_equal(stats_of(node, 0).calls[KV_REMOTE_PUT], 0);
	assert_int_equal(stats_of(node, 1).calls[KV_REMOTE_PUT], 5);
}

static void test_a_backend_that_failed_gets_what_it_missed(void **state)
{
	struct node *node = *state;

	small_must_open(&node->s);
	share(node, true);
	must_be_offered(node);
	harm(node, 1);
	save(node, 0, BLOCKS);
	must_get_there(node, 0, BLOCKS);
	while (stats_of(node, 1).open)
		usleep(10000);
	assert_int_equal(stats_of(node, 1).offering, 1);
	mend(node, 1);
	must_get_there(node, 1, BLOCKS);
	must_be_offered(node);
}

/* As one that is killed does, with all of it waiting. */
static void save_and_die(struct node *node)
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		small_must_open(&node->s);
		must(kv_space_set_shared(node->s.cache, node->s.space, true) ==
		     0);
		for (unsigned n = 0; n < BLOCKS; n++)
			must(small_save(&node->s, n) == 0);
		must(kv_space_sync(node->s.cache, node->s.space) == 0);
		raise(SIGKILL);
	}
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void test_what_waited_at_a_kill_gets_there(void **state)
{
	struct node *node = *state;

	for (unsigned i = 0; i < BACKENDS; i++)
		harm(node, i);
	save_and_die(node);
	for (unsigned i = 0; i < BACKENDS; i++)
		mend(node, i);
	small_must_open(&node->s);
	for (unsigned i = 0; i < BACKENDS; i++)
		must_get_there(node, i, BLOCKS);
}

static void test_what_the_end_makes_durable_is_handed_over(void **state)
{
	struct node *node = *state;

	small_must_open(&node->s);
	share(node, true);
	for (unsigned n = 0; n < BLOCKS; n++)
		assert_int_equal(small_save(&node->s, n), 0);
	kv_space_put(node->s.space);
	assert_int_equal(small_close(&node->s), 0);
	for (unsigned i = 0; i < BACKENDS; i++)
		must_get_there(node, i, BLOCKS);
}

static void use(struct node *node, unsigned n)
{
	while (n-- > 0) {
		struct kv_block *block = small_get(&node->s, n);

		kv_block_touch(node->s.cache, block);
		kv_block_put(node->s.cache, block);
	}
}

static void test_what_is_used_once_it_is_durable_is_handed_over(void **state)
{
	struct node *node = *state;

	node->s.config.remote.write = KV_WRITEBACK_REUSE;
	small_must_open(&node->s);
	share(node, true);
	must_be_offered(node);
	save(node, 0, BLOCKS);
	use(node, 5);
	use(node, 5); /* once is enough */
	must_get_there(node, 0, 5);
	must_get_there(node, 1, 5);
	for (unsigned i = 0; i < BACKENDS; i++)
		assert_int_equal(stats_of(node, i).calls[KV_REMOTE_PUT], 5);
}

static void test_what_nobody_used_may_stay_here(void **state)
{
	struct node *node = *state;

	node->s.config.remote.write = KV_WRITEBACK_REUSE;
	small_must_open(&node->s);
	share(node, true);
	save(node, 0, BLOCKS);
	use(node, 5);
	reopen(node);
	must_be_offered(node);
	must_get_there(node, 0, 5);
}

static void test_a_read_only_store_is_not_handed_over(void **state)
{
	struct node *node = *state;

	small_must_open(&node->s);
	save(node, 0, BLOCKS);
	node->s.config.remote.write = KV_WRITEBACK_NONE;
	reopen(node);
	share(node, true);
	assert_int_equal(stats_of(node, 0).offering, 0);
	node->s.config.remote.write = KV_WRITEBACK_ALL;
	node->s.config.read_only = true;
	reopen(node);
	assert_int_equal(stats_of(node, 0).offering, 0);
}

/* ---- tenants ---- */

#define USER 1001
#define OTHERS 10u

/* So that the walk is far from its end, whatever else is running. */
static unsigned many(void)
{
	const char *n = getenv("KVFS_BLOCKS");

	return n ? (unsigned)atoi(n) : 20000;
}

static void save_small(struct node *node, struct kv_space *space, unsigned n)
{
	const struct kv_key key = small_key(n);
	struct kv_meta meta = {.tokens = 16};
	struct kv_digest digest;
	struct kv_fill *fill;

	assert_int_equal(begin_alone(node->s.cache, space, 512, &fill), 0);
	small_content(kv_fill_data(fill), 512, n);
	digest = kv_digest_of(kv_fill_data(fill), 512);
	assert_int_equal(
		kv_fill_seal(node->s.cache, fill, &key, &meta, 8, &digest), 0);
}

static void hand_over_for_another(struct node *node, struct kv_space *space)
{
	const uint64_t until = kv_now_ns() + UINT64_C(60000000000);

	for (unsigned n = 0; n < OTHERS; n++) {
		save_small(node, space, n);
		assert_int_equal(kv_space_sync(node->s.cache, space), 0);
		while (!is_there(node, "1001", n) && kv_now_ns() < until)
			usleep(100);
		assert_true(is_there(node, "1001", n));
	}
}

static void test_others_keep_their_turns(void **state)
{
	struct node *node = *state;
	const unsigned n = many();
	struct kv_space *other;

	node->s.config.remote.n = 1;
	node->s.config.ssd = 1ull << 30;
	small_must_open(&node->s);
	assert_int_equal(kv_space_create(node->s.cache, "other", USER, USER,
					 0700, &other),
			 0);
	assert_int_equal(kv_space_set_shared(node->s.cache, other, true), 0);
	for (unsigned i = 0; i < n; i++)
		save_small(node, node->s.space, i);
	assert_int_equal(kv_space_sync(node->s.cache, node->s.space), 0);
	share(node, true);
	while (stats_of(node, 0).calls[KV_REMOTE_PUT] < 100)
		usleep(1000);
	hand_over_for_another(node, other);
	assert_true(stats_of(node, 0).calls[KV_REMOTE_PUT] < n);
	share(node, false); /* ends the offer */
	must_be_offered(node);
	kv_space_put(other);
}

#define BEYOND 16000u /* 12288 may wait */

static void test_what_found_no_room_gets_there(void **state)
{
	struct node *node = *state;

	node->s.config.remote.n = 1;
	node->s.config.ssd = 1ull << 30;
	small_must_open(&node->s);
	share(node, true);
	for (unsigned n = 0; n < BEYOND; n++)
		save_small(node, node->s.space, n);
	assert_int_equal(kv_space_sync(node->s.cache, node->s.space), 0);
	if (!stats_of(node, 0).dropped)
		skip(); /* as fast as that is the backend */
	must_be_offered(node);
	must_have(node, 0, BEYOND);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
		TEST(test_what_was_saved_before_is_handed_over),
		TEST(test_what_a_backend_has_is_not_given_again),
		TEST(test_a_backend_that_failed_gets_what_it_missed),
		TEST(test_what_waited_at_a_kill_gets_there),
		TEST(test_what_the_end_makes_durable_is_handed_over),
		TEST(test_what_is_used_once_it_is_durable_is_handed_over),
		TEST(test_what_nobody_used_may_stay_here),
		TEST(test_a_read_only_store_is_not_handed_over),
		TEST(test_others_keep_their_turns),
		TEST(test_what_found_no_room_gets_there),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
