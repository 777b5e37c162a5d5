/* SPDX-License-Identifier: Apache-2.0 */
/* test_store.c - which directories are accepted as a STORE, and what happens to
 * records of its index that do not agree with its files. */
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>

#include "index/index.h"
#include "tests/cache/small_store.h"

#define BLOCK (1u << 20)
#define MANY 32

static int set_up(void **state)
{
	struct small *s = malloc(sizeof(*s));

	small_new(s);
	*state = s;
	return 0;
}

static void touch(struct small *s, const char *name)
{
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "%s/%s", s->path, name);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	close(fd);
}

/* Check that opening the store fails with @error, and that the reason names the
 * store. */
static void refused(struct small *s, int error)
{
	assert_int_equal(small_open(s), error);
	assert_non_null(s->why);
	assert_non_null(strstr(s->why, s->config.store));
}

static void what_holds_something_else_is_refused(void **state)
{
	struct small *s = *state;
	char path[128];

	touch(s, "thesis.tex");
	refused(s, -EEXIST);
	snprintf(path, sizeof(path), "%s/thesis.tex", s->path);
	assert_int_equal(access(path, F_OK), 0);
	s->config.store = path;
	refused(s, -ENOTDIR);
	s->config.store = "/nonexistent/store";
	refused(s, -ENOENT);
	s->config.store = s->path;
}

static void an_empty_filesystem_is_taken(void **state)
{
	struct small *s = *state;
	char path[128];

	snprintf(path, sizeof(path), "%s/lost+found", s->path);
	assert_int_equal(mkdir(path, 0700), 0);
	/* files left by a daemon that died at its first start */
	touch(s, "lock");
	small_must_open(s);
}

static void read_only_makes_nothing(void **state)
{
	struct small *s = *state;

	s->config.read_only = true;
	refused(s, -ENOENT);
	/* the refused open has made nothing in the directory */
	assert_int_equal(rmdir(s->path), 0);
	refused(s, -ENOENT);
	assert_int_equal(mkdir(s->path, 0700) == 0 || errno == EEXIST, 1);
}

static void a_store_in_use_is_busy_and_names_its_owner(void **state)
{
	struct small *s = *state, other;
	char pid[32];

	small_must_open(s);
	other = *s;
	other.why = NULL;
	snprintf(pid, sizeof(pid), "%d", (int)getpid());
	assert_int_equal(small_open(&other), -EBUSY);
	assert_non_null(strstr(other.why, pid));
	free(other.why);
}

/* ---- a mount with a smaller ssd= ---- */

static void a_smaller_cap_gives_files_up_and_keeps_the_rest(void **state)
{
	struct small *s = *state;
	struct kv_cache_stats before, after;

	s->config.ssd = 64 << 20;
	small_must_open(s);
	small_save_durable(s, 0, MANY, BLOCK);
	assert_int_equal(small_count_exact(s, 0, MANY, BLOCK), MANY);
	before = small_stats(s);
	assert_int_equal(small_close(s), 0);

	s->config.ssd = 32 << 20;
	small_must_open(s);
	after = small_stats(s);
	assert_true(after.ssd_files < before.ssd_files);
	assert_true(after.ssd_used <= s->config.ssd);
	assert_in_range(small_count_exact(s, 0, MANY, BLOCK), 1, MANY - 1);
	assert_int_equal(small_count_exact(s, 0, MANY, BLOCK), after.blocks);
	assert_int_equal(small_close(s), 0);

	/* ssd= is not given: the size of the last mount is used */
	s->config.ssd_given = false;
	small_must_open(s);
	assert_int_equal(small_count_exact(s, 0, MANY, BLOCK), after.blocks);
	assert_int_equal(small_stats(s).ssd_total, after.ssd_total);
}

static void without_the_tier_what_is_on_ssd_waits(void **state)
{
	struct small *s = *state;

	small_must_open(s);
	assert_int_equal(small_save(s, 1), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(small_close(s), 0);
	s->config.read_only = true;
	small_must_open(s);
	assert_int_equal(small_view(s, 1, BYTES), 0);
	assert_int_equal(small_save(s, 2), -EROFS);
	assert_int_equal(small_close(s), 0);
	s->config.read_only = false;
	small_must_open(s);
	assert_int_equal(small_view(s, 1, BYTES), 0);
}

/* ---- an index that does not agree with the files ---- */

static struct kv_index *open_index(struct small *s)
{
	struct kv_store_info info;
	struct kv_index *index;
	char path[128];

	snprintf(path, sizeof(path), "%s/index", s->path);
	assert_int_equal(kv_index_open(path, kv_index_map_bytes(32 << 20),
				       false, NULL, &info, &index),
			 0);
	return index;
}

static int see_slot(void *arg, uint64_t id, const struct kv_slot_record *record)
{
	struct kv_slot_record *first = arg;

	(void)id;
	if (!first->length)
		*first = *record;
	return 0;
}

static struct kv_slot_record first_slot(struct kv_index *index)
{
	struct kv_slot_record record = {0};
	const struct kv_index_visitor visitor = {.arg = &record,
						 .slot = see_slot};
	uint64_t damaged;

	assert_int_equal(kv_index_walk(index, &visitor, &damaged), 0);
	assert_true(record.length > 0);
	return record;
}

/* Add slot records that no daemon would write, beside the records of blocks 0
 * to 3. */
static void add_odd_slots(struct kv_txn *batch,
			  const struct kv_slot_record *good)
{
	struct kv_slot_record odd[7];
	uint64_t ids[7];

	for (unsigned i = 0; i < KV_ARRAY_LEN(odd); i++) {
		odd[i] = *good;
		/* a record with a key that no block has */
		odd[i].key[5] = (uint8_t)(i + 1);
		ids[i] = kv_slot_id(0, 100 + i);
	}
	odd[0].space = 77;
	odd[1].key_len = 20;
	odd[2].length = 0;
	odd[3].length = 1ull << 40;
	/* a record of a segment file that does not exist */
	ids[4] = kv_slot_id(55, 0);
	/* a record of a slot beyond the end of its file */
	ids[5] = kv_slot_id(0, 1u << 30);
	odd[6] = *good; /* a record whose key another record has as well */
	for (unsigned i = 0; i < KV_ARRAY_LEN(odd); i++)
		assert_int_equal(kv_txn_put_slot(batch, ids[i], &odd[i]), 0);
}

static void add_odd_segments(struct kv_txn *batch)
{
	static const struct kv_segfile_record odd[] = {
		/* records of segment files whose slots are too small or too
		 * large */
		{.id = 20, .slots = 9, .slot_bytes = 4096},
		{.id = 21, .slots = 9, .slot_bytes = 12345},
		{.id = 22, .slots = 9, .slot_bytes = 1ull << 40},
		{.id = UINT32_MAX, .slots = 9, .slot_bytes = 65536},
		/* a record of a segment file that does not exist */
		{.id = 23, .slots = 9, .slot_bytes = 65536},
	};

	for (unsigned i = 0; i < KV_ARRAY_LEN(odd); i++)
		assert_int_equal(kv_txn_put_segfile(batch, &odd[i]), 0);
}

static void odd_records_cost_nothing_but_themselves(void **state)
{
	struct small *s = *state;
	struct kv_slot_record good;
	struct kv_index *index;
	struct kv_txn *batch;

	small_must_open(s);
	for (unsigned n = 0; n < 4; n++)
		assert_int_equal(small_save(s, n), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(small_close(s), 0);
	index = open_index(s);
	good = first_slot(index);
	assert_int_equal(kv_txn_begin(index, &batch), 0);
	add_odd_slots(batch, &good);
	add_odd_segments(batch);
	assert_int_equal(kv_txn_commit(batch), 0);
	kv_index_close(index);

	small_must_open(s);
	assert_int_equal(small_stats(s).blocks, 4);
	for (unsigned n = 0; n < 4; n++)
		assert_int_equal(small_view(s, n, BYTES), 0);
	assert_int_equal(small_save(s, 4), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(small_close(s), 0);
	small_must_open(s);
	assert_int_equal(small_view(s, 4, BYTES), 0);
}

static void blocks_of_a_file_that_is_gone_or_short_are_misses(void **state)
{
	struct small *s = *state;
	char path[128];

	for (unsigned round = 0; round < 2; round++) {
		small_must_open(s);
		assert_int_equal(small_save(s, 0), 0);
		/* The blocks of the other size are in another segment file. */
		assert_in_range(small_save_seed(s, 1, 1, 2 * BYTES), 0, 1);
		assert_int_equal(kv_space_sync(s->cache, s->space), 0);
		assert_int_equal(small_close(s), 0);
		snprintf(path, sizeof(path), "%s/segments/000000.seg", s->path);
		assert_int_equal(round ? truncate(path, KV_PAGE) : unlink(path),
				 0);
		small_must_open(s);
		assert_int_equal(small_view(s, 0, BYTES), -ENOENT);
		assert_int_equal(small_close(s), 0);
	}
}

/* ---- a prologue that agrees with itself, but not with the index ---- */

static void change_prologue(struct kv_slot_record *record, unsigned n)
{
	switch (n) {
	case 0:
		record->generation++;
		break;
	case 1:
		record->length--;
		break;
	case 2:
		record->space++;
		break;
	case 3:
		record->key[9] ^= 1;
		break;
	case 4:
		record->digest[3] ^= 1;
		break;
	default: /* leave the prologue unchanged */
		break;
	}
}

#define CHANGES 5

/* Write the prologues of blocks 0 to CHANGES again, each with one field changed
 * and a valid checksum. */
static void change_prologues(struct small *s, uint64_t slot_bytes)
{
	struct kv_prologue prologue;
	uint8_t store[16];
	char path[128];
	int fd;

	snprintf(path, sizeof(path), "%s/segments/000000.seg", s->path);
	fd = open(path, O_RDWR | O_CLOEXEC);
	assert_true(fd >= 0);
	for (unsigned i = 0; i <= CHANGES; i++) {
		off_t at = (off_t)(i * slot_bytes);

		assert_int_equal(pread(fd, &prologue, sizeof(prologue), at),
				 sizeof(prologue));
		assert_int_equal(prologue.record.position, i);
		memcpy(store, prologue.store, sizeof(store));
		change_prologue(&prologue.record, i);
		kv_prologue_seal(&prologue, store);
		assert_int_equal(pwrite(fd, &prologue, sizeof(prologue), at),
				 sizeof(prologue));
	}
	close(fd);
}

static void a_prologue_says_what_the_index_says_or_it_is_a_miss(void **state)
{
	struct small *s = *state;
	uint64_t slot_bytes;

	small_must_open(s);
	for (unsigned n = 0; n <= CHANGES; n++) {
		assert_int_equal(small_save(s, n), 0);
		assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	}
	slot_bytes = s->cache->ssd.files[0]->slot_bytes;
	assert_int_equal(small_close(s), 0);
	change_prologues(s, slot_bytes);
	small_must_open(s);
	for (unsigned n = 0; n < CHANGES; n++)
		assert_true(small_view(s, n, BYTES) < 0);
	assert_int_equal(small_stats(s).corrupt, CHANGES);
	assert_int_equal(small_view(s, CHANGES, BYTES), 0);
	for (unsigned n = 0; n < CHANGES; n++)
		assert_int_equal(small_save(s, n), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, small_tear_down)

static int count_slot(void *arg, uint64_t id,
		      const struct kv_slot_record *record)
{
	(void)id;
	(void)record;
	++*(unsigned *)arg;
	return 0;
}

/* As after a crash: the removal of a space was durable before the deletions of
 * its blocks. */
static void records_of_a_removed_space_are_deleted(void **state)
{
	struct small *s = *state;
	unsigned n = 0;
	const struct kv_index_visitor visitor = {.arg = &n, .slot = count_slot};
	struct kv_index *index;
	struct kv_txn *batch;
	uint64_t damaged;
	uint32_t id;

	small_must_open(s);
	small_save_durable(s, 0, 8, BYTES);
	id = s->space->id;
	kv_space_put(s->space);
	assert_int_equal(small_close(s), 0);
	index = open_index(s);
	assert_int_equal(kv_txn_begin(index, &batch), 0);
	assert_int_equal(kv_txn_delete(batch, KV_PART_SPACES, id), 0);
	assert_int_equal(kv_txn_commit(batch), 0);
	kv_index_close(index);
	small_must_open(s);
	assert_int_equal(small_count_durable(s, 0, 8), 0);
	assert_int_equal(kv_index_walk(s->cache->index, &visitor, &damaged), 0);
	assert_int_equal(n, 0);
}

/* ---- names of spaces ---- */

struct names {
	const char *name;
	unsigned n;
};

static int count_name(void *arg, const struct kv_space_record *record,
		      const char *name, const char *layout)
{
	struct names *names = arg;

	(void)record;
	(void)layout;
	names->n += strcmp(name, names->name) == 0;
	return 0;
}

static int no_segment(void *arg, const struct kv_segfile_record *record)
{
	(void)arg;
	(void)record;
	return 0;
}

static int no_slot(void *arg, uint64_t slot_id,
		   const struct kv_slot_record *record)
{
	(void)arg;
	(void)slot_id;
	(void)record;
	return 0;
}

static int no_snapshot(void *arg, const struct kv_snapshot_record *record,
		       const char *name, const struct kv_snapshot_item *items)
{
	(void)arg;
	(void)record;
	(void)name;
	(void)items;
	return 0;
}

/* Count the index's records of spaces with the name @name. */
static unsigned records_named(struct small *s, const char *name)
{
	struct names names = {.name = name};
	struct kv_index_visitor visitor = {
		.arg = &names,
		.space = count_name,
		.segment = no_segment,
		.slot = no_slot,
		.snapshot = no_snapshot,
	};
	uint64_t damaged;

	assert_int_equal(kv_index_walk(s->cache->index, &visitor, &damaged), 0);
	return names.n;
}

static void *remove_it(void *arg)
{
	struct small *s = arg;

	kv_space_remove(s->cache, kv_space_find(s->cache, "again"));
	return NULL;
}

static void a_name_is_given_again_only_when_its_removal_is_durable(void **state)
{
	struct small *s = *state;
	struct kv_space *space;

	small_must_open(s);
	for (unsigned i = 0; i < 100; i++) {
		pthread_t remover;

		assert_int_equal(
			kv_space_create(s->cache, "again", 1, 1, 0700, &space),
			0);
		pthread_create(&remover, NULL, remove_it, s);
		while (kv_space_create(s->cache, "again", 1, 1, 0700, &space))
			sched_yield();
		assert_int_equal(records_named(s, "again"), 1);
		pthread_join(remover, NULL);
		assert_ptr_equal(kv_space_find(s->cache, "again"), space);
		assert_int_equal(kv_space_remove(s->cache, space), 0);
	}
	assert_int_equal(records_named(s, "again"), 0);
}

/* Two spaces have the same name: a crash of an older daemon could leave such
 * records. */
static void of_two_spaces_of_one_name_the_younger_is_there(void **state)
{
	struct small *s = *state;
	struct kv_space_record record = {.uid = 1, .gid = 1, .mode = 0700};
	struct kv_space *space;
	struct kv_txn *batch;
	pid_t pid;

	small_must_open(s);
	assert_int_equal(kv_space_create(s->cache, "twice", 1, 1, 0700, &space),
			 0);
	record.id = kv_space_stat(s->cache, space).id + 1;
	assert_int_equal(kv_txn_begin(s->cache->index, &batch), 0);
	assert_int_equal(kv_txn_put_space(batch, &record, "twice", ""), 0);
	assert_int_equal(kv_txn_commit(batch), 0);
	assert_int_equal(records_named(s, "twice"), 2);
	assert_int_equal(small_close(s), 0);
	pid = fork();
	if (pid == 0) {
		small_must_open(s);
		kill(getpid(), SIGKILL);
	}
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	for (unsigned i = 0; i < 2; i++) {
		small_must_open(s);
		space = kv_space_find(s->cache, "twice");
		assert_non_null(space);
		assert_int_equal(kv_space_stat(s->cache, space).id, record.id);
		assert_int_equal(records_named(s, "twice"), 1);
		assert_int_equal(small_close(s), 0);
	}
}

/* ---- spaces created and removed by many threads ---- */

#define MAKERS 16
#define EACH 8

struct maker {
	struct small *s;
	unsigned id;
	int failed;
};

/* Make spaces in a loop, and remove every other one. */
static void *make_spaces(void *arg)
{
	struct maker *m = arg;
	struct kv_space *space;
	char name[32];

	for (unsigned i = 0; i < EACH; i++) {
		snprintf(name, sizeof(name), "made-%u-%u", m->id, i);
		m->failed += kv_space_create(m->s->cache, name, m->id, 0, 0700,
					     &space) != 0;
		m->failed +=
			kv_space_chown(m->s->cache, space, m->id, i, 0750) != 0;
		m->failed += i % 2 && kv_space_remove(m->s->cache, space) != 0;
	}
	return NULL;
}

static void changes_of_many_threads_are_all_durable(void **state)
{
	struct small *s = *state;
	struct maker makers[MAKERS];
	pthread_t threads[MAKERS];
	struct kv_space_info info;
	struct kv_space *space;
	char name[32];

	assert_int_equal(small_open(s), 0);
	for (unsigned i = 0; i < MAKERS; i++) {
		makers[i] = (struct maker){s, i, 0};
		assert_int_equal(pthread_create(&threads[i], NULL, make_spaces,
						&makers[i]),
				 0);
	}
	for (unsigned i = 0; i < MAKERS; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(makers[i].failed, 0);
	}
	assert_int_equal(small_close(s), 0);
	assert_int_equal(small_open(s), 0);
	for (unsigned i = 0; i < MAKERS * EACH; i++) {
		snprintf(name, sizeof(name), "made-%u-%u", i / EACH, i % EACH);
		space = kv_space_find(s->cache, name);
		assert_int_equal(space == NULL, i % 2);
		if (!space)
			continue;
		info = kv_space_stat(s->cache, space);
		assert_int_equal(info.uid, i / EACH);
		assert_int_equal(info.gid, i % EACH);
		assert_int_equal(info.mode, 0750);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(what_holds_something_else_is_refused),
		TEST(an_empty_filesystem_is_taken),
		TEST(read_only_makes_nothing),
		TEST(a_store_in_use_is_busy_and_names_its_owner),
		TEST(a_smaller_cap_gives_files_up_and_keeps_the_rest),
		TEST(without_the_tier_what_is_on_ssd_waits),
		TEST(odd_records_cost_nothing_but_themselves),
		TEST(blocks_of_a_file_that_is_gone_or_short_are_misses),
		TEST(records_of_a_removed_space_are_deleted),
		TEST(a_prologue_says_what_the_index_says_or_it_is_a_miss),
		TEST(a_name_is_given_again_only_when_its_removal_is_durable),
		TEST(of_two_spaces_of_one_name_the_younger_is_there),
		TEST(changes_of_many_threads_are_all_durable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
