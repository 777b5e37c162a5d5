/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_token_ids.c - token ids of blocks: in the index if they are small beside
 * their block, else in the block's header alone.  Token ids can be read, are
 * deleted with their block, and evict no blocks of other users.
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
	"\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[16384]}]"
#define LAYOUT "{" TENSORS ",\"tokens\":16,\"token_ids\":true}"
#define PLAIN "{" TENSORS ",\"tokens\":16}"
#define TOKENS 16u
#define PAYLOAD 16384u
/* number of the first block with long extras beside its token ids */
#define LONG 100000u

static struct kv_layout *layout;
static struct kv_space *kept; /* space "kept" of the open store */
/* uid of the owner that a new space "kept" gets */
static uint32_t owner;

static void open_kept(struct small *s)
{
	small_must_open(s);
	kept = kv_space_find(s->cache, "kept");
	if (!kept)
		assert_int_equal(
			kv_space_create(s->cache, "kept", 0, 0, 0755, &kept),
			0);
	assert_int_equal(
		kv_space_set_layout(s->cache, kept, 0, LAYOUT, strlen(LAYOUT)),
		0);
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

static uint32_t extras_of(unsigned n)
{
	return n < LONG ? 4 : KV_EXTRAS_MAX;
}

static struct kv_token_ids *ids_of(unsigned n)
{
	struct kv_token_ids *ids =
		calloc(1, kv_token_ids_bytes(TOKENS, extras_of(n)));

	ids->n = TOKENS;
	ids->extras_len = extras_of(n);
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
	int r = begin_alone(s->cache, kept, header + PAYLOAD, &fill);

	if (r < 0)
		return r;
	data = kv_fill_data(fill);
	assert_int_equal(kv_block_header_write(layout, &key, &meta, data), 0);
	small_content(data + header, PAYLOAD, n);
	digest = kv_digest_of(data, header + PAYLOAD);
	return kv_fill_seal(s->cache, fill, &key, &meta, header, &digest);
}

static struct kv_block *get(struct small *s, unsigned n)
{
	struct kv_key key = small_key(n);
	struct kv_block *block;

	return kv_block_get(s->cache, kept, &key, &block) == 0 ? block : NULL;
}

/* Return 1 if block @n has the right token ids, 0 if it is missing. */
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
	assert_memory_equal(ids, want,
			    kv_token_ids_bytes(TOKENS, extras_of(n)));
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

/* Return how many blocks have token ids in the index. */
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
		kv_txn_delete(batch, KV_PART_TOKENS,
			      kv_slot_id(block->file, block->slot_number)),
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

static void vacate(struct small *s, uint32_t id)
{
	struct kv_segfile *file = s->cache->ssd.files[id];
	bool busy = true;

	kv_lock(s->cache);
	kv_segfile_empty_locked(s->cache, file, file->class, kept, NULL, false);
	while (busy) {
		kv_unlock(s->cache);
		usleep(1000);
		kv_lock(s->cache);
		busy = file->emptying;
	}
	kv_unlock(s->cache);
	while (small_busy(s))
		usleep(1000);
}

/* The token ids stay with a block that is moved to another segment file. */
static void they_move_with_their_block(void **state)
{
	struct small *s = *state;
	struct kv_block *block;
	uint32_t file = 0;

	for (unsigned n = 0; n < 400; n++)
		assert_int_equal(save(s, n), 0);
	assert_int_equal(kv_space_sync(s->cache, kept), 0);
	for (unsigned n = 0; n < 10; n++) {
		block = get(s, n);
		assert_int_equal(kv_block_demote(s->cache, block), 0);
		assert_int_equal(kv_block_pin(s->cache, block, true), 0);
		file = block->file;
		kv_block_put(s->cache, block);
	}
	vacate(s, file);
	assert_int_equal(small_stats(s).moved_ssd, 10);
	assert_int_equal(indexed(s), small_stats(s).ssd_blocks);
	for (unsigned n = 0; n < 10; n++)
		assert_int_equal(told(s, n), 1);
	assert_int_equal(small_stats(s).bytes_read_ssd, 0);
	assert_int_equal(close_kept(s), 0);
	assert_int_equal(small_fsck(s, ""), 0);
	open_kept(s);
	for (unsigned n = 0; n < 10; n++)
		assert_int_equal(told(s, n), 1);
}

/* A client may have changed the header of a block in an open segment: its token
 * ids count only if the block's digest agrees. */
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
	/* Change the block's header after the sync: the index keeps its token
	 * ids. */
	file = kv_slot_file(block->slot);
	*(uint8_t *)memmem(file, 4096, "token_ids", 9) = 'T';
	kv_block_put(s->cache, block);
	assert_int_equal(told(s, 1), 1);
}

/* Put token ids that belong to no block into the index: the daemon must delete
 * them. */
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
	assert_int_equal(small_fsck(s, ""), 4);
	assert_int_equal(small_fsck(s, "--repair"), 1);
	assert_int_equal(small_fsck(s, ""), 0);
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

/* Save 100 blocks of another user, without guarantee, in a new space that
 * becomes s->space. */
static void save_theirs(struct small *s)
{
	assert_int_equal(
		kv_space_create(s->cache, "theirs", 7, 7, 0755, &s->space), 0);
	for (unsigned n = 0; n < 100; n++)
		assert_int_equal(small_save(s, n), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
}

static void theirs_are_there(struct small *s)
{
	unsigned there = 0;

	for (unsigned n = 0; n < 100; n++)
		there += small_durable(s, n);
	assert_int_equal(there, 100);
	assert_false(small_stats(s).ssd_degraded);
}

static void demote(struct small *s, unsigned n)
{
	struct kv_block *block = get(s, n);

	assert_int_equal(kv_block_demote(s->cache, block), 0);
	kv_block_put(s->cache, block);
}

/* Long extras are too large, beside a small block, to be put into the index. */
static void long_ones_are_in_the_block_alone(void **state)
{
	struct small *s = *state;

	assert_int_equal(save(s, 1), 0);
	assert_int_equal(save(s, LONG), 0);
	assert_int_equal(kv_space_sync(s->cache, kept), 0);
	assert_int_equal(indexed(s), 1);
	demote(s, LONG);
	assert_int_equal(told(s, LONG), 1);
	assert_true(small_stats(s).bytes_read_ssd > 0);
	assert_int_equal(close_kept(s), 0);
	assert_int_equal(small_fsck(s, "--data"), 0);
	open_kept(s);
	assert_int_equal(told(s, LONG), 1);
	assert_int_equal(told(s, 1), 1);
}

/* Listing token ids reads blocks without buffers of the bounce pool. */
static void a_listing_takes_no_readers_buffer(void **state)
{
	struct small *s = *state;
	uint64_t before;

	assert_int_equal(small_save(s, 1), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(small_demote(s, 1), 0);
	for (unsigned n = LONG; n < LONG + 100; n++)
		assert_int_equal(save(s, n), 0);
	assert_int_equal(kv_space_sync(s->cache, kept), 0);
	assert_int_equal(small_view(s, 1, BYTES), 0);
	for (unsigned n = LONG; n < LONG + 100; n++) {
		demote(s, n);
		assert_int_equal(told(s, n), 1);
	}
	before = small_stats(s).bytes_read_ssd;
	assert_int_equal(small_view(s, 1, BYTES), 0);
	assert_int_equal(small_stats(s).bytes_read_ssd, before);
}

/* Blocks with long prompts and extras: the index takes only token ids that are
 * small beside their block, so the index is not full before the SSD tier is. */
static void long_ones_drive_nobody_out(void **state)
{
	struct small *s = *state;

	save_theirs(s);
	for (unsigned n = LONG; n < LONG + 800; n++) {
		assert_int_equal(save(s, n), 0);
		if (n % 40 == 39)
			assert_int_equal(kv_space_sync(s->cache, kept), 0);
	}
	assert_int_equal(kv_space_sync(s->cache, kept), 0);
	assert_true(small_stats(s).ssd_used < s->config.ssd / 2);
	theirs_are_there(s);
	for (unsigned n = LONG; n < LONG + 800; n++)
		assert_int_equal(told(s, n), 1);
}

/* Small blocks fill the index before the SSD tier is full: the user with most
 * blocks gives some up, not the user who saved first. */
static void who_fills_the_index_makes_its_room(void **state)
{
	struct small *s = *state;
	struct kv_space *theirs;

	save_theirs(s);
	theirs = s->space;
	s->space = kv_space_find(s->cache, "s");
	for (unsigned n = 0; n < 4000; n++)
		assert_int_equal(small_save_seed(s, n, n, 2000), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_true(small_stats(s).evicted_ssd > 500);
	assert_true(small_stats(s).ssd_used < s->config.ssd * 3 / 4);
	kv_space_put(s->space);
	s->space = theirs;
	theirs_are_there(s);
}

/* Pins are limited by bytes, and pins of small blocks by the share of the index
 * that their records need. */
static void pins_of_small_blocks_leave_the_index_room(void **state)
{
	struct small *s = *state;
	struct kv_space *pinned;
	unsigned pins = 0;

	assert_int_equal(
		kv_space_create(s->cache, "pinned", 8, 8, 0755, &pinned), 0);
	s->space = pinned;
	for (unsigned n = 0; n < 4000; n++) {
		struct kv_block *block;

		assert_int_equal(small_save_seed(s, n, n, 2000), 0);
		if (n % 20 != 19)
			continue;
		assert_int_equal(kv_space_sync(s->cache, s->space), 0);
		for (unsigned i = n - 19; i <= n; i++) {
			block = small_get(s, i);
			pins += kv_block_pin(s->cache, block, true) == 0;
			kv_block_put(s->cache, block);
			assert_int_equal(small_demote(s, i), 0);
		}
	}
	assert_in_range(pins, 500, 3000);
	save_theirs(s);
	theirs_are_there(s);
	kv_space_put(pinned);
}

/* Save at once more blocks with token ids than the SSD tier can hold. */
static void a_flood_of_them_harms_nobody(void **state)
{
	struct small *s = *state;
	unsigned stay = 0;

	for (unsigned n = 0; n < 2400; n++) {
		assert_int_equal(save(s, n), 0);
		if (n % 400 == 399)
			assert_int_equal(kv_space_sync(s->cache, kept), 0);
	}
	for (unsigned n = 0; n < 2400; n++)
		stay += told(s, n);
	assert_in_range(stay, 1000, 2399);
	assert_int_equal(told(s, 2399), 1);
	for (unsigned n = 0; n < 100; n++)
		assert_int_equal(small_save(s, n), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(small_stats(s).io_errors, 0);
	assert_false(small_stats(s).ssd_degraded);
}

/* Lose the index, and damage one block on SSD. */
static void a_damaged_block_is_left_out_of_a_new_index(void **state)
{
	struct small *s = *state;
	struct kv_block *block;
	uint64_t at;
	char path[128], byte = 0x55;
	int fd;

	for (unsigned n = 0; n < 8; n++)
		assert_int_equal(save(s, n), 0);
	assert_int_equal(kv_space_sync(s->cache, kept), 0);
	block = get(s, 5);
	at = block->slot_number *
		     kv_segfile_at(s->cache, block->file)->slot_bytes +
	     KV_PAGE + block->length - 100;
	snprintf(path, sizeof(path), "%s/segments/%06u.seg", s->path,
		 block->file);
	kv_block_put(s->cache, block);
	assert_int_equal(close_kept(s), 0);
	fd = open(path, O_WRONLY | O_CLOEXEC);
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
	close(fd);

	assert_int_equal(small_fsck(s, "--rebuild"), 1);
	assert_int_equal(small_fsck(s, "--data"), 0);
	open_kept(s);
	for (unsigned n = 0; n < 8; n++)
		assert_int_equal(told(s, n), n != 5);
	assert_int_equal(save(s, 5), 0);
	assert_int_equal(kv_space_sync(s->cache, kept), 0);
	assert_int_equal(told(s, 5), 1);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(they_are_told_wherever_the_block_is),
		TEST(those_the_index_lost_are_read_from_the_block),
		TEST(they_go_with_their_block),
		TEST(they_move_with_their_block),
		TEST(open_memory_is_read_with_care),
		TEST(those_of_no_block_are_found_and_taken_away),
		TEST(other_spaces_have_none),
		TEST(long_ones_are_in_the_block_alone),
		TEST(a_listing_takes_no_readers_buffer),
		TEST(long_ones_drive_nobody_out),
		TEST(who_fills_the_index_makes_its_room),
		TEST(pins_of_small_blocks_leave_the_index_room),
		TEST(a_flood_of_them_harms_nobody),
		TEST(a_damaged_block_is_left_out_of_a_new_index),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
