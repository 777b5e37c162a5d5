/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_seed.c - which spaces may be shared with other nodes, and that nodes
 * with the same secret give a space the same seed (the start of its chains'
 * hashes).
 *
 * OWNS      a small store for each test, and a file with a secret.
 *
 * LOCKING   none of its own.
 */
#include "cache/space/space.h"
#include "tests/cache/small_store.h"

#define TENSORS \
	"\"tensors\": [{\"name\": \"k\", \"dtype\": \"U8\", \"shape\": [16]}]"
#define LAYOUT "{" TENSORS "}"
#define SEED "\"seed\": \"0123456789abcdef\""
#define USER 1001

struct node {
	/* must be the first field: its address is cast to this struct */
	struct small s;
	char secret[80];
	char warned[512];
};

static void on_warning(void *arg, const char *line)
{
	struct node *node = arg;

	if (strstr(line, "shared"))
		snprintf(node->warned, sizeof(node->warned), "%s", line);
}

static int set_up(void **state)
{
	struct node *node = calloc(1, sizeof(*node));

	small_new(&node->s);
	snprintf(node->secret, sizeof(node->secret), "%s-secret", node->s.path);
	node->s.config.warn = on_warning;
	node->s.config.arg = node;
	*state = node;
	return 0;
}

static int tear_down(void **state)
{
	struct node *node = *state;

	kv_space_putp(&node->s.space);
	unlink(node->secret);
	return small_tear_down(state);
}

static void write_secret(struct node *node, const char *text, mode_t mode)
{
	FILE *f = fopen(node->secret, "w");

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fchmod(fileno(f), mode), 0);
	assert_int_equal(fclose(f), 0);
	node->s.config.remote.secret = node->secret;
}

static void reopen(struct node *node)
{
	kv_space_putp(&node->s.space);
	if (node->s.cache)
		assert_int_equal(small_close(&node->s), 0);
	small_must_open(&node->s);
}

static int set_layout_by(struct node *node, uint32_t uid, const char *text)
{
	return kv_space_set_layout(node->s.cache, node->s.space, uid, text,
				   strlen(text));
}

static int set_layout(struct node *node, const char *text)
{
	return set_layout_by(node, 0, text);
}

static int share(struct node *node)
{
	return kv_space_set_shared(node->s.cache, node->s.space, true);
}

static struct kv_space_info info_of(struct node *node)
{
	return kv_space_stat(node->s.cache, node->s.space);
}

/* Check that the space could not be shared, and that the space shows the
 * reason. */
static void must_be_refused(struct node *node, int r)
{
	char why[KV_LAYOUT_ERROR_MAX + 1];

	assert_int_equal(r, -EINVAL);
	assert_false(info_of(node).shared);
	kv_space_layout_error(node->s.cache, node->s.space, why);
	assert_non_null(strstr(why, node->s.config.remote.secret
					    ? "remove its blocks"
					    : "remote_secret="));
}

static void test_a_seed_that_was_drawn_here_is_no_seed_to_share(void **state)
{
	struct node *node = *state;

	small_must_open(&node->s);
	assert_int_equal(set_layout(node, LAYOUT), 0);
	must_be_refused(node, share(node));
	reopen(node);
	must_be_refused(node, share(node));
}

static void test_a_space_without_a_layout_may_be_shared(void **state)
{
	struct node *node = *state;

	small_must_open(&node->s);
	assert_int_equal(share(node), 0);
	assert_true(info_of(node).shared);
	reopen(node);
	assert_true(info_of(node).shared);
	/* A shared space refuses a layout with which other nodes would make
	 * other keys. */
	assert_int_equal(set_layout(node, LAYOUT), -EINVAL);
	assert_null(info_of(node).layout);
	assert_int_equal(set_layout(node, "{" TENSORS ", " SEED "}"), 0);
	assert_true(info_of(node).shared);
}

static void test_a_layout_that_shares_needs_shareable_keys(void **state)
{
	struct node *node = *state;

	small_must_open(&node->s);
	must_be_refused(node,
			set_layout(node, "{" TENSORS ", \"share\": true}"));
	assert_null(info_of(node).layout);
	assert_int_equal(
		set_layout(node, "{" TENSORS ", \"share\": true, " SEED "}"),
		0);
	assert_true(info_of(node).shared);
	assert_int_equal(info_of(node).layout->seed, 0x0123456789abcdef);
}

static void test_keys_of_an_engine_are_shared(void **state)
{
	struct node *node = *state;

	small_must_open(&node->s);
	assert_int_equal(
		set_layout(node, "{" TENSORS ", \"keys\": \"engine\"}"), 0);
	assert_int_equal(share(node), 0);
	reopen(node);
	assert_true(info_of(node).shared);
	assert_true(info_of(node).layout->engine_keys);
	/* A layout that differs only by a missing "keys" counts as the same
	 * layout. */
	assert_int_equal(set_layout(node, LAYOUT), 0);
}

static void
test_the_owner_of_an_older_space_says_whose_keys_it_has(void **state)
{
	static const char text[] = "{" TENSORS ", \"keys\": \"engine\"}";
	struct node *node = *state;

	small_must_open(&node->s);
	assert_int_equal(set_layout(node, LAYOUT), 0);
	assert_int_equal(set_layout_by(node, USER, text), 0);
	must_be_refused(node, share(node));
	assert_int_equal(set_layout(node, text), 0);
	assert_int_equal(share(node), 0);
	reopen(node);
	assert_true(info_of(node).shared);
}

/* Return the seed of a new space of @uid. */
static uint64_t seed_of(struct node *node, uint32_t uid, const char *text)
{
	static unsigned n;
	char name[20];
	struct kv_space *space;
	uint64_t seed;

	snprintf(name, sizeof(name), "n%u", n++);
	assert_int_equal(
		kv_space_create(node->s.cache, name, uid, uid, 0700, &space),
		0);
	assert_int_equal(kv_space_set_layout(node->s.cache, space, uid, text,
					     strlen(text)),
			 0);
	seed = kv_space_stat(node->s.cache, space).layout->seed;
	kv_space_put(space);
	return seed;
}

static void test_nodes_with_a_secret_have_the_same_seed(void **state)
{
	static const char model[] = "{" TENSORS ", \"fingerprint\": \"0a\"}";
	static const char rank[] =
		"{\"tensors\": [{\"name\": \"k\", \"dtype\": \"F16\", "
		"\"shape\": "
		"[8, 2]}], \"tokens\": 16, \"fingerprint\": \"0A\"}";
	struct kv_remote_name named = {.uid = 7, .name = (char[]){"team"}};
	struct node *node = *state;
	uint64_t seed, team;

	node->s.config.remote.tenants = &named;
	node->s.config.remote.n_tenants = 1;
	write_secret(node, "correct horse battery\n", 0600);
	small_must_open(&node->s);
	seed = seed_of(node, USER, model);
	team = seed_of(node, 7, model);
	assert_true(seed_of(node, USER, model) == seed);
	assert_true(seed_of(node, USER, rank) == seed);
	assert_true(seed_of(node, USER + 1, model) != seed);
	assert_true(seed_of(node, USER, LAYOUT) != seed);
	assert_true(team != seed);
	/* On another node the user's uid differs, and the secret has no
	 * newline. */
	named.uid = 8;
	write_secret(node, "correct horse battery", 0400);
	reopen(node);
	assert_true(seed_of(node, USER, model) == seed);
	assert_true(seed_of(node, 8, model) == team);
	write_secret(node, "correct horse batterx\n", 0600);
	reopen(node);
	assert_true(seed_of(node, USER, model) != seed);
	assert_int_equal(set_layout(node, "{" TENSORS ", \"share\": true}"), 0);
	assert_true(info_of(node).shared);
	/* A seed that is written in the layout is kept. */
	assert_true(seed_of(node, USER, "{" TENSORS ", " SEED "}") ==
		    0x0123456789abcdef);
}

static void test_an_empty_space_gets_the_seed_of_other_nodes(void **state)
{
	struct node *node = *state;
	uint64_t seed;

	small_must_open(&node->s);
	assert_int_equal(set_layout(node, LAYOUT), 0);
	must_be_refused(node, share(node));
	write_secret(node, "correct horse battery", 0600);
	reopen(node);
	assert_int_equal(share(node), 0);
	seed = info_of(node).layout->seed;
	assert_true(seed_of(node, 0, LAYOUT) == seed);
	reopen(node);
	assert_true(info_of(node).shared);
	assert_true(info_of(node).layout->seed == seed);
}

static void test_a_space_with_blocks_keeps_its_seed(void **state)
{
	struct node *node = *state;
	uint64_t seed;

	small_must_open(&node->s);
	assert_int_equal(set_layout(node, LAYOUT), 0);
	seed = info_of(node).layout->seed;
	small_save_durable(&node->s, 0, 1, BYTES);
	write_secret(node, "correct horse battery", 0600);
	reopen(node);
	must_be_refused(node, share(node));
	assert_true(info_of(node).layout->seed == seed);
	assert_int_equal(small_remove_block(&node->s, 0), 0);
	assert_int_equal(share(node), 0);
	assert_true(info_of(node).layout->seed != seed);
}

static void test_a_new_owner_does_not_have_the_seed_of_the_former(void **state)
{
	struct node *node = *state;

	write_secret(node, "correct horse battery", 0600);
	small_must_open(&node->s);
	assert_int_equal(set_layout(node, LAYOUT), 0);
	small_save_durable(&node->s, 0, 1, BYTES);
	assert_int_equal(share(node), 0);
	assert_int_equal(
		kv_space_chown(node->s.cache, node->s.space, USER, 0, 0700), 0);
	must_be_refused(node, share(node));
}

/* Make a space as an older version could make it: shared, with a seed that only
 * this node has. */
static void make_old(struct node *node)
{
	assert_int_equal(set_layout(node, LAYOUT), 0);
	node->s.space->shared = node->s.space->own_seed = true;
	assert_int_equal(kv_space_persist(node->s.cache, node->s.space), 0);
}

static void test_an_older_space_that_nobody_can_use_is_unshared(void **state)
{
	struct node *node = *state;
	uint64_t seed;

	small_must_open(&node->s);
	make_old(node);
	seed = info_of(node).layout->seed;
	reopen(node);
	assert_false(info_of(node).shared);
	assert_true(info_of(node).layout->seed == seed);
	assert_non_null(strstr(node->warned, "s is not shared any more"));
	assert_non_null(strstr(node->warned, "remote_secret="));
	node->warned[0] = '\0';
	reopen(node);
	assert_string_equal(node->warned, "");
}

static void test_an_older_space_without_blocks_remains_shared(void **state)
{
	struct node *node = *state;

	small_must_open(&node->s);
	make_old(node);
	write_secret(node, "correct horse battery", 0600);
	reopen(node);
	assert_true(info_of(node).shared);
	assert_true(seed_of(node, 0, LAYOUT) == info_of(node).layout->seed);
	assert_string_equal(node->warned, "");
}

static void test_an_older_space_whose_seed_was_agreed_remains(void **state)
{
	struct node *node = *state;
	uint64_t seed;

	small_must_open(&node->s);
	make_old(node);
	node->s.space->own_seed = false;
	assert_int_equal(kv_space_persist(node->s.cache, node->s.space), 0);
	seed = info_of(node).layout->seed;
	reopen(node);
	assert_true(info_of(node).shared);
	assert_true(info_of(node).layout->seed == seed);
}

static void must_not_open(struct node *node, const char *why)
{
	assert_true(small_open(&node->s) < 0);
	assert_non_null(node->s.why);
	assert_non_null(strstr(node->s.why, node->secret));
	assert_non_null(strstr(node->s.why, why));
}

static void test_a_secret_that_is_none_is_refused(void **state)
{
	struct node *node = *state;
	char text[5000];

	node->s.config.remote.secret = node->secret;
	must_not_open(node, "No such file");
	write_secret(node, "correct horse battery", 0640);
	must_not_open(node, "must be 0600");
	write_secret(node, "fifteen letters\n\n", 0600);
	must_not_open(node, "shorter than 16");
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	write_secret(node, text, 0600);
	must_not_open(node, "longer than");
	assert_int_equal(unlink(node->secret), 0);
	assert_int_equal(mkdir(node->secret, 0700), 0);
	must_not_open(node, "not a file");
	assert_int_equal(rmdir(node->secret), 0);
	if (geteuid() == 0) {
		write_secret(node, "correct horse battery", 0600);
		assert_int_equal(chown(node->secret, USER, USER), 0);
		must_not_open(node, "must belong to user 0");
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
		TEST(test_a_seed_that_was_drawn_here_is_no_seed_to_share),
		TEST(test_a_space_without_a_layout_may_be_shared),
		TEST(test_a_layout_that_shares_needs_shareable_keys),
		TEST(test_keys_of_an_engine_are_shared),
		TEST(test_the_owner_of_an_older_space_says_whose_keys_it_has),
		TEST(test_nodes_with_a_secret_have_the_same_seed),
		TEST(test_an_empty_space_gets_the_seed_of_other_nodes),
		TEST(test_a_space_with_blocks_keeps_its_seed),
		TEST(test_a_new_owner_does_not_have_the_seed_of_the_former),
		TEST(test_an_older_space_that_nobody_can_use_is_unshared),
		TEST(test_an_older_space_without_blocks_remains_shared),
		TEST(test_an_older_space_whose_seed_was_agreed_remains),
		TEST(test_a_secret_that_is_none_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
