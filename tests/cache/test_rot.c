/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rot.c - damage to slots or to their records in the index: a read gives
 * the saved bytes or is a miss.
 *
 * Each round saves and syncs BLOCKS blocks, drops them from DRAM, damages nearly
 * all of them and reads all.  Each damaged block must be a miss, and must be
 * accepted when it is saved again.
 */
#include "cache/ssd/ssd.h"
#include "index/env.h"
#include "tests/cache/small_store.h"

#define BLOCKS 1000u
#define LENGTH 4000u
#define SLOT 8192u
#define FAULTS_IN_ALL 100000u
#define WINDOW 2 /* number of rounds until a new mount frees bad slots */

enum rot {
	ROT_BIT_PROLOGUE,
	ROT_BIT_DATA,
	ROT_BYTE,
	ROT_BYTES,
	ROT_SECTOR,
	ROT_ZEROED,
	ROT_ALL_ZEROED,
	/* the slot has exchanged its bytes with the next slot, which gets no
	 * other fault */
	ROT_SWAPPED,
	ROT_OLD, /* the slot has the bytes of an earlier round */
	ROT_OTHERS_PROLOGUE,
	ROT_OTHERS_DATA,
	/* the index has a record of other bytes, with a valid checksum */
	ROT_RECORD_LIES,
	ROT_RECORD_BIT,
	ROTS
};

struct rotting {
	struct small s;
	int fds[16];
	uint8_t slots[BLOCKS][SLOT], old[BLOCKS][SLOT];
	uint64_t faults, found, counts[ROTS];
	uint64_t random;
	unsigned round;
};

static uint64_t below(struct rotting *t, uint64_t n)
{
	t->random = t->random * 6364136223846793005ull + 1442695040888963407ull;
	return (t->random >> 33) % n;
}

static unsigned seed_of(const struct rotting *t, unsigned n)
{
	return n * 1009 + t->round;
}

static void open_files(struct rotting *t)
{
	char path[128];

	for (unsigned i = 0; i < KV_ARRAY_LEN(t->fds); i++) {
		snprintf(path, sizeof(path), "%s/segments/%06u.seg", t->s.path,
			 i);
		t->fds[i] = open(path, O_RDWR | O_CLOEXEC);
	}
}

static void close_files(struct rotting *t)
{
	for (unsigned i = 0; i < KV_ARRAY_LEN(t->fds); i++)
		if (t->fds[i] >= 0)
			close(t->fds[i]);
}

static int set_up(void **state)
{
	struct rotting *t = calloc(1, sizeof(*t));

	small_new(&t->s);
	t->s.config.scrub = 0;
	small_must_open(&t->s);
	t->random = 42;
	for (unsigned i = 0; i < KV_ARRAY_LEN(t->fds); i++)
		t->fds[i] = -1;
	*state = t;
	return 0;
}

static int tear_down(void **state)
{
	struct rotting *t = *state;

	close_files(t);
	if (t->s.cache)
		must(small_close(&t->s) == 0);
	free(t->s.why);
	small_remove(&t->s);
	free(t);
	return 0;
}

static uint64_t slot_of(struct rotting *t, unsigned n)
{
	struct kv_block *block = small_get(&t->s, n);
	uint64_t id;

	must(block && block->file != KV_NONE);
	id = kv_slot_id(block->file, block->slot_number);
	kv_block_put(t->s.cache, block);
	return id;
}

static void load(struct rotting *t, unsigned n, uint8_t *bytes)
{
	uint64_t id = slot_of(t, n);

	must(pread(t->fds[id >> 32], bytes, SLOT,
		   (off_t)((uint32_t)id * (uint64_t)SLOT)) == SLOT);
}

static void store(struct rotting *t, unsigned n, const uint8_t *bytes)
{
	uint64_t id = slot_of(t, n);

	must(pwrite(t->fds[id >> 32], bytes, SLOT,
		    (off_t)((uint32_t)id * (uint64_t)SLOT)) == SLOT);
}

/* Save all blocks on SSD alone, and read their slots. */
static void lay_out(struct rotting *t)
{
	for (unsigned n = 0; n < BLOCKS; n++)
		must(small_save_seed(&t->s, n, seed_of(t, n), LENGTH) == 0);
	must(kv_space_sync(t->s.cache, t->s.space) == 0);
	close_files(t);
	open_files(t);
	memcpy(t->old, t->slots, sizeof(t->old));
	for (unsigned n = 0; n < BLOCKS; n++) {
		must(small_demote(&t->s, n) == 0);
		load(t, n, t->slots[n]);
	}
}

/* ---- kinds of damage ---- */

static uint8_t some(struct rotting *t)
{
	return (uint8_t)(1 + below(t, 255));
}

static void zero(struct rotting *t, uint8_t *slot, unsigned from, unsigned to)
{
	memset(slot + from, 0, to - from);
	(void)t;
}

static void damage_bytes(struct rotting *t, enum rot rot, uint8_t *b)
{
	const unsigned used = sizeof(struct kv_prologue);
	unsigned at = (unsigned)below(t, LENGTH);

	switch (rot) {
	case ROT_BIT_PROLOGUE:
		b[below(t, used)] ^= (uint8_t)(1u << below(t, 8));
		break;
	case ROT_BIT_DATA:
		b[KV_PAGE + at] ^= (uint8_t)(1u << below(t, 8));
		break;
	case ROT_BYTE:
		b[KV_PAGE + at] ^= some(t);
		break;
	case ROT_BYTES:
		for (unsigned i = 0; i < 8; i++)
			b[KV_PAGE + below(t, LENGTH)] ^= some(t);
		b[KV_PAGE + at] = (uint8_t)~b[KV_PAGE + at];
		break;
	case ROT_SECTOR:
		at = KV_PAGE + at / 512 * 512;
		for (unsigned i = 0; i < 512; i++)
			b[at + i] = some(t);
		break;
	case ROT_ZEROED:
		zero(t, b, KV_PAGE + at / 2, KV_PAGE + at / 2 + 64);
		break;
	default: /* ROT_ALL_ZEROED */
		zero(t, b, 0, SLOT);
	}
}

static void damage_from(struct rotting *t, enum rot rot, unsigned n, uint8_t *b)
{
	unsigned other = (n + 1 + (unsigned)below(t, BLOCKS - 1)) % BLOCKS;

	if (rot == ROT_OLD)
		memcpy(b, t->old[n], SLOT);
	else if (rot == ROT_OTHERS_PROLOGUE)
		memcpy(b, t->slots[other], KV_PAGE);
	else
		memcpy(b + KV_PAGE, t->slots[other] + KV_PAGE, SLOT - KV_PAGE);
}

static void damage_record(struct rotting *t, enum rot rot, unsigned n)
{
	struct kv_index *index = t->s.cache->index;
	uint64_t id = slot_of(t, n), other = slot_of(t, (n + 1) % BLOCKS);
	struct kv_slot_record record;
	struct kv_txn *batch;
	MDB_val key = {sizeof(id), &id}, value = {sizeof(record), &record};
	MDB_txn *txn;

	must(kv_index_get(index, rot == ROT_RECORD_LIES ? other : id, &record,
			  NULL) == 0);
	if (rot == ROT_RECORD_LIES) {
		must(kv_txn_begin(index, &batch) == 0);
		must(kv_txn_put_slot(batch, id, &record) == 0);
		must(kv_txn_commit(batch) == 0);
		return;
	}
	must(mdb_txn_begin(index->env, NULL, 0, &txn) == 0);
	((uint8_t *)&record)[below(t, sizeof(record))] ^=
		(uint8_t)(1u << below(t, 8));
	/* The record keeps its old checksum, so after the damage it is hardly
	 * ever valid. */
	must(mdb_put(txn, index->parts[KV_PART_SLOTS], &key, &value, 0) == 0);
	must(mdb_txn_commit(txn) == 0);
}

/* Damage block @n, and maybe the next one.  Return how many are damaged. */
static unsigned damage(struct rotting *t, enum rot rot, unsigned n)
{
	uint8_t b[SLOT];

	if (rot == ROT_SWAPPED && n + 1 == BLOCKS)
		rot = ROT_BYTE;
	if (rot == ROT_OLD && t->round == 0)
		rot = ROT_BYTES;
	t->counts[rot]++;
	if (rot == ROT_SWAPPED) {
		store(t, n, t->slots[n + 1]);
		store(t, n + 1, t->slots[n]);
		return 2;
	}
	if (rot >= ROT_RECORD_LIES) {
		damage_record(t, rot, n);
		return 1;
	}
	memcpy(b, t->slots[n], SLOT);
	if (rot == ROT_OLD || rot == ROT_OTHERS_PROLOGUE ||
	    rot == ROT_OTHERS_DATA)
		damage_from(t, rot, n, b);
	else
		damage_bytes(t, rot, b);
	must(memcmp(b, t->slots[n], SLOT) != 0);
	store(t, n, b);
	return 1;
}

/* ---- reads of damaged blocks ---- */

/* Read all blocks: block n misses if @damaged[n]. Return how many missed. */
static unsigned read_all(struct rotting *t, const bool *damaged)
{
	struct kv_acquire *a =
		calloc(1, sizeof(*a) + BLOCKS * sizeof(*a->wants));
	uint8_t want[LENGTH];
	_Atomic bool done = false;
	unsigned misses = 0;

	a->space = t->s.space;
	a->n = BLOCKS;
	a->done = small_settled;
	a->arg = &done;
	for (unsigned n = 0; n < BLOCKS; n++)
		a->wants[n].key = small_key(n);
	if (kv_acquire_submit(t->s.cache, a))
		while (!done)
			usleep(100);
	else
		kv_acquire_touch(t->s.cache, a);
	for (unsigned n = 0; n < BLOCKS; n++) {
		must((a->wants[n].status != 0) == damaged[n]);
		misses += damaged[n];
		if (damaged[n])
			continue;
		small_content(want, LENGTH, seed_of(t, n));
		must(memcmp(kv_slot_file(a->wants[n].slot), want, LENGTH) == 0);
	}
	kv_acquire_release(t->s.cache, a);
	free(a);
	return misses;
}

static void gone_and_counted(struct rotting *t, const bool *damaged,
			     uint64_t before)
{
	uint64_t expected = 0;

	for (unsigned n = 0; n < BLOCKS; n++) {
		struct kv_block *block = small_get(&t->s, n);

		must(!block == damaged[n]);
		if (block)
			kv_block_put(t->s.cache, block);
		expected += damaged[n];
	}
	must(small_stats(&t->s).corrupt == before + expected);
	t->found += expected;
}

static void next_round(struct rotting *t)
{
	for (unsigned n = 0; n < BLOCKS; n++)
		small_remove_block(&t->s, n);
	must(kv_space_sync(t->s.cache, t->s.space) == 0);
	t->round++;
	if (t->round % WINDOW)
		return;
	must(small_close(&t->s) == 0);
	small_must_open(&t->s);
}

static void F7_a_hundred_thousand_faults_and_none_is_served(void **state)
{
	struct rotting *t = *state;
	bool *damaged = calloc(BLOCKS, sizeof(*damaged));

	while (t->faults < FAULTS_IN_ALL) {
		uint64_t before = small_stats(&t->s).corrupt;

		lay_out(t);
		memset(damaged, 0, BLOCKS);
		for (unsigned n = 0; n < BLOCKS;) {
			/* Damage in the index needs a slow commit: make few of
			 * these faults. */
			enum rot rot = (enum rot)below(
				t, below(t, 20) ? ROT_RECORD_LIES : ROTS);
			unsigned m = damage(t, rot, n);

			t->faults++;
			while (m--)
				damaged[n++] = true;
			if (below(t, 50) == 0)
				n++; /* leave one block undamaged */
		}
		read_all(t, damaged);
		gone_and_counted(t, damaged, before);
		next_round(t);
	}
	small_check(&t->s);
	print_message("F7: %llu faults, %llu blocks found damaged, 0 served\n",
		      (unsigned long long)t->faults,
		      (unsigned long long)t->found);
	for (unsigned i = 0; i < ROTS; i++)
		assert_true(t->counts[i] > 100);
	free(damaged);
}

static void F7_each_bit_of_a_prologue_is_checked(void **state)
{
	struct rotting *t = *state;
	const unsigned bits = sizeof(struct kv_prologue) * 8;
	bool *damaged = calloc(BLOCKS, sizeof(*damaged));
	unsigned bit = 0;

	while (bit < bits) {
		uint64_t before = small_stats(&t->s).corrupt;

		lay_out(t);
		memset(damaged, 0, BLOCKS);
		for (unsigned n = 0; n < BLOCKS && bit < bits; n++, bit++) {
			t->slots[n][bit / 8] ^= (uint8_t)(1u << bit % 8);
			store(t, n, t->slots[n]);
			damaged[n] = true;
		}
		read_all(t, damaged);
		gone_and_counted(t, damaged, before);
		next_round(t);
	}
	print_message("F7: all %u bits of a prologue\n", bits);
	free(damaged);
}

static void F7_each_bit_of_a_record_is_checked(void **state)
{
	struct rotting *t = *state;
	const unsigned bits = sizeof(struct kv_slot_record) * 8;
	bool *damaged = calloc(BLOCKS, sizeof(*damaged));
	unsigned bit = 0;

	while (bit < bits) {
		struct kv_index *index = t->s.cache->index;
		uint64_t before = small_stats(&t->s).corrupt;
		MDB_txn *txn;

		lay_out(t);
		memset(damaged, 0, BLOCKS);
		must(mdb_txn_begin(index->env, NULL, 0, &txn) == 0);
		for (unsigned n = 0; n < BLOCKS && bit < bits; n++, bit++) {
			uint64_t id = slot_of(t, n);
			uint8_t bytes[sizeof(struct kv_slot_record)];
			MDB_val key = {sizeof(id), &id}, value;

			must(mdb_get(txn, index->parts[KV_PART_SLOTS], &key,
				     &value) == 0);
			must(value.mv_size == sizeof(bytes));
			memcpy(bytes, value.mv_data, sizeof(bytes));
			bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
			value.mv_data = bytes;
			must(mdb_put(txn, index->parts[KV_PART_SLOTS], &key,
				     &value, 0) == 0);
			damaged[n] = true;
		}
		must(mdb_txn_commit(txn) == 0);
		read_all(t, damaged);
		gone_and_counted(t, damaged, before);
		next_round(t);
	}
	print_message("F7: all %u bits of a record\n", bits);
	free(damaged);
}

static void F7_a_file_that_is_cut_off_loses_what_was_behind(void **state)
{
	struct rotting *t = *state;
	bool *damaged = calloc(BLOCKS, sizeof(*damaged));
	uint64_t before = small_stats(&t->s).corrupt;
	const uint64_t cut = 300 * SLOT + 5000;

	lay_out(t);
	assert_int_equal(ftruncate(t->fds[0], (off_t)cut), 0);
	for (unsigned n = 0; n < BLOCKS; n++) {
		uint64_t id = slot_of(t, n);

		damaged[n] =
			id >> 32 == 0 && ((uint32_t)id + 1ull) * SLOT > cut;
	}
	read_all(t, damaged);
	gone_and_counted(t, damaged, before);
	for (unsigned n = 0; n < BLOCKS; n++)
		if (damaged[n])
			must(small_save_seed(&t->s, n, seed_of(t, n), LENGTH) ==
			     0);
	must(kv_space_sync(t->s.cache, t->s.space) == 0);
	memset(damaged, 0, BLOCKS);
	read_all(t, damaged);
	free(damaged);
}

static void a_damaged_copy_of_a_block_in_dram_is_written_again(void **state)
{
	struct rotting *t = *state;
	uint8_t *data = kv_pages_new(SLOT);
	struct kv_block *block;

	lay_out(t);
	must(small_acquire(&t->s, 5, 0, LENGTH, NULL) == 0);
	block = small_get(&t->s, 5);
	assert_int_equal(kv_block_promote(t->s.cache, block), 0);
	t->slots[5][KV_PAGE] ^= 1;
	store(t, 5, t->slots[5]);
	assert_int_equal(kv_block_fetch(t->s.cache, block, &data, SLOT),
			 -EBADMSG);
	assert_false(kv_block_stat(t->s.cache, block).removed);
	assert_int_equal(kv_block_sync(t->s.cache, block), 0);
	assert_int_equal(kv_block_demote(t->s.cache, block), 0);
	assert_int_equal(kv_block_fetch(t->s.cache, block, &data, SLOT), 0);
	kv_block_put(t->s.cache, block);
	kv_pages_free(data, SLOT);
	assert_int_equal(small_stats(&t->s).corrupt, 1);
}

#define TEST(t) cmocka_unit_test_setup_teardown(t, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(F7_each_bit_of_a_prologue_is_checked),
		TEST(F7_each_bit_of_a_record_is_checked),
		TEST(F7_a_file_that_is_cut_off_loses_what_was_behind),
		TEST(a_damaged_copy_of_a_block_in_dram_is_written_again),
		TEST(F7_a_hundred_thousand_faults_and_none_is_served),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
