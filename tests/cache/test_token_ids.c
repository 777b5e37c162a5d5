/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_token_ids.c - what blocks' tokens are, in the index with them: told,
 * deleted, and in nobody's way where they fill it.
 *
 * OWNS      a small store for each test.
 *
 * LOCKING   none of its own.
 */
#include "cache/ssd/ssd.h"
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/cache/small_store.h"

#define TENSORS \
	"\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[4096]}]"
#define LAYOUT "{" TENSORS ",\"tokens\":512,\"token_ids\":true}"
#define PLAIN "{" TENSORS ",\"tokens\":512}"
#define TOKENS 512u

static struct kv_layout *layout;
static struct kv_space *kept; /* "kept" of the store that is open */
static uint32_t owner;	      /* its, if it is made */

static void open_kept(struct small *s)
{
	small_must_open(s);
	kept = kv_space_find(s->cache, "kept");
	if (!kept)
		assert_int_equal(
			kv_space_create(s->cache, "kept", 0, 0, 0755, &kept),
			0);
	assert_int_equal(
		kv_space_set_layout(s->cache, kept, LAYOUT, strlen(LAYOUT)), 0);
	layout = (struct kv_layout *)kv_space_stat(s->cache, kept).layout;
}

static int close_kept(struct small *s)
{
	kv_space_put(kv_steal(kept));
	return small_close(s);
}

static int set_up(void **state)
{
	struct small *s = malloc(sizeof(*s));

	small_new(s);
	s->config.ssd = 64 << 20;
	open_kept(s);
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	struct small *s = *state;

	if (s->cache)
		assert_int_equal(close_kept(s), 0);
	small_remove(s);
	free(s->why);
	free(s);
	return 0;
}

static struct kv_token_ids *ids_of(unsigned n)
{
	struct kv_token_ids *ids = calloc(1, kv_token_ids_bytes(TOKENS, 4));

	ids->n = TOKENS;
	ids->extras_len = 4;
	for (unsigned i = 0; i < TOKENS; i++)
		ids->ids[i] = n * 100000 + i;
	memcpy(ids->ids + TOKENS, &n, 4);
	return ids;
}

static int save(struct small *s, unsigned n)
{
	_cleanup_(kv_freep) struct kv_token_ids *ids = ids_of(n);
	const uint64_t header = kv_block_header_bytes(layout);
	struct kv_key key = small_key(n);
	struct kv_meta meta = {
		.position = n, .tokens = TOKENS, .mtime_ns = 77, .ids = ids};
	struct kv_digest digest;
	struct kv_fill *fill;
	uint8_t *data;
	int r = begin_alone(s->cache, kept, header + 4096, &fill);

	if (r < 0)
		return r;
	data = kv_fill_data(fill);
	assert_int_equal(kv_block_header_write(layout, &key, &meta, data), 0);
	small_content(data + header, 4096, n);
	digest = kv_digest_of(data, header + 4096);
	return kv_fill_seal(s->cache, fill, &key, &meta, header, &digest);
}

static struct kv_block *get(struct small *s, unsigned n)
{
	struct kv_key key = small_key(n);
	struct kv_block *block;

	return kv_block_get(s->cache, kept, &key, &block) == 0 ? block : NULL;
}

/* 1 it is right, 0 the block is not there. */
static int told(struct small *s, unsigned n)
{
	_cleanup_(kv_freep) struct kv_token_ids *want = ids_of(n);
	_cleanup_(kv_freep) struct kv_token_ids *ids = NULL;
	struct kv_block *block = get(s, n);
	struct kv_meta meta;

	if (!block)
		return 0;
	assert_int_equal(kv_block_get_token_ids(s->cache, block, &meta, &ids),
			 0);
	assert_memory_equal(ids, want, kv_token_ids_bytes(TOKENS, 4));
	assert_int_equal(meta.position, n);
	assert_int_equal(meta.tokens, TOKENS);
	kv_block_put(s->cache, block);
	return 1;
}

static int count(void *arg, uint64_t slot_id, uint64_t generation,
		 const struct kv_token_ids *ids)
{
	(void)slot_id;
	(void)generation;
	(void)ids;
	++*(unsigned *)arg;
	return 0;
}

/* How many blocks' the index has. */
static unsigned indexed(struct small *s)
{
	unsigned n = 0;
	uint64_t damaged;
	const struct kv_index_visitor visitor = {.arg = &n, .tokens = count};

	assert_int_equal(kv_index_walk(s->cache->index, &visitor, &damaged), 0);
	assert_int_equal(damaged, 0);
	return n;
}

static void they_are_told_wherever_the_block_is(void **state)
{
	struct small *s = *state;
	struct kv_block *block;

	assert_int_equal(save(s, 1), 0);
	assert_int_equal(told(s, 1), 1);
	assert_int_equal(kv_space_sync(s->cache, kept), 0);
	assert_int_equal(indexed(s), 1);
	assert_int_equal(told(s, 1), 1);
	block = get(s, 1);
	assert_int_equal(kv_block_demote(s->cache, block), 0);
	kv_block_put(s->cache, block);
	assert_int_equal(told(s, 1), 1);
	assert_int_equal(small_stats(s).bytes_read_ssd, 0);
	assert_int_equal(close_kept(s), 0);
	open_kept(s);
	assert_int_equal(told(s, 1), 1);
	assert_int_equal(small_stats(s).bytes_read_ssd, 0);
}

/* Its header says them, too. */
static void those_the_index_lost_are_read_from_the_block(void **state)
{
	struct small *s = *state;
	struct kv_txn *batch;
	struct kv_block *block;

	assert_int_equal(save(s, 1), 0);
	assert_int_equal(kv_space_sync(s->cache, kept), 0);
	block = get(s, 1);
	assert_int_equal(kv_block_demote(s->cache, block), 0);
	assert_int_equal(kv_txn_begin(s->cache->index, &batch), 0);
	assert_int_equal(
		kv_txn_delete_token_ids(
			batch, kv_slot_id(block->file, block->slot_number)),
		0);
	assert_int_equal(kv_txn_commit(batch), 0);
	kv_block_put(s->cache, block);
	assert_int_equal(indexed(s), 0);
	assert_int_equal(told(s, 1), 1);
}

static void they_go_with_their_block(void **state)
{
	struct small *s = *state;
	struct kv_block *block;

	for (unsigned n = 0; n < 10; n++)
		assert_int_equal(save(s, n), 0);
	assert_int_equal(kv_space_sync(s->cache, kept), 0);
	assert_int_equal(indexed(s), 10);
	for (unsigned n = 0; n < 4; n++) {
		block = get(s, n);
		assert_int_equal(kv_block_remove(s->cache, block), 0);
		kv_block_put(s->cache, block);
	}
	assert_int_equal(kv_space_sync(s->cache, kept), 0);
	assert_int_equal(indexed(s), 6);
	assert_int_equal(told(s, 3), 0);
	assert_int_equal(told(s, 4), 1);
}

/* In memory that the owner's clients may write they count if they are as they
 * were sealed. */
static void open_memory_is_read_with_care(void **state)
{
	struct small *s = *state;
	struct kv_block *block;
	uint8_t *file;

	assert_int_equal(close_kept(s), 0);
	small_remove(s);
	assert_int_equal(mkdir(s->path, 0700), 0);
	s->config.arena = KV_ARENA_RW;
	owner = 1;
	open_kept(s);
	owner = 0;
	assert_int_equal(save(s, 1), 0);
	block = get(s, 1);
	assert_true(kv_slot_is_open(block->slot));
	assert_int_equal(kv_space_sync(s->cache, kept), 0);
	assert_int_equal(indexed(s), 1);
	/* Changed since: the index has what was sealed. */
	file = kv_slot_file(block->slot);
	*(uint8_t *)memmem(file, 4096, "token_ids", 9) = 'T';
	kv_block_put(s->cache, block);
	assert_int_equal(told(s, 1), 1);
}

static int fsck(struct small *s, const char *option)
{
	const char *b = getenv("B");
	char command[200];
	int status;

	snprintf(command, sizeof(command), "%s/kvfs-fsck -q %s %s > /dev/null",
		 b ? b : "build", option, s->path);
	status = system(command);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Nothing leaves any: should it be, they do not stay. */
static void those_of_no_block_are_found_and_taken_away(void **state)
{
	struct small *s = *state;
	_cleanup_(kv_freep) struct kv_token_ids *ids = ids_of(9);
	struct kv_txn *batch;

	assert_int_equal(save(s, 1), 0);
	assert_int_equal(kv_space_sync(s->cache, kept), 0);
	assert_int_equal(kv_txn_begin(s->cache->index, &batch), 0);
	assert_int_equal(kv_txn_put_token_ids(batch, kv_slot_id(7, 7), 3, ids),
			 0);
	assert_int_equal(kv_txn_commit(batch), 0);
	assert_int_equal(close_kept(s), 0);
	assert_int_equal(fsck(s, ""), 4);
	assert_int_equal(fsck(s, "--repair"), 1);
	assert_int_equal(fsck(s, ""), 0);
	open_kept(s);
	assert_int_equal(indexed(s), 1);
	assert_int_equal(told(s, 1), 1);
}

static void other_spaces_have_none(void **state)
{
	struct small *s = *state;

	for (unsigned n = 0; n < 10; n++)
		assert_int_equal(small_save(s, n), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(indexed(s), 0);
}

/* The index has room for some hundred: others go for those that come, of other
 * spaces, too, and nobody's writes fail. */
static void where_they_fill_the_index_blocks_drive_each_other_out(void **state)
{
	struct small *s = *state;
	unsigned stay = 0;

	for (unsigned n = 0; n < 2000; n++) {
		assert_int_equal(save(s, n), 0);
		if (n % 40 == 39)
			assert_int_equal(kv_space_sync(s->cache, kept), 0);
	}
	for (unsigned n = 0; n < 2000; n++)
		stay += told(s, n);
	assert_in_range(stay, 100, 1990);
	assert_int_equal(told(s, 1999), 1);
	assert_in_range(indexed(s), 100, 1000);
	for (unsigned n = 0; n < 100; n++)
		assert_int_equal(small_save(s, n), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(small_stats(s).io_errors, 0);
	assert_false(small_stats(s).ssd_degraded);
}

/* Written all at once: more than the index can take. */
static void a_flood_of_them_waits_and_harms_nobody(void **state)
{
	struct small *s = *state;

	for (unsigned round = 0; round < 4; round++) {
		for (unsigned n = 0; n < 500; n++)
			assert_int_equal(save(s, round * 500 + n), 0);
		assert_int_equal(kv_space_sync(s->cache, kept), 0);
	}
	for (unsigned n = 0; n < 100; n++)
		assert_int_equal(small_save(s, n), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_false(small_stats(s).ssd_degraded);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(they_are_told_wherever_the_block_is),
		TEST(those_the_index_lost_are_read_from_the_block),
		TEST(they_go_with_their_block),
		TEST(open_memory_is_read_with_care),
		TEST(those_of_no_block_are_found_and_taken_away),
		TEST(other_spaces_have_none),
		TEST(where_they_fill_the_index_blocks_drive_each_other_out),
		TEST(a_flood_of_them_waits_and_harms_nobody),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
