/* SPDX-License-Identifier: Apache-2.0 */
/* test_stuck.c - disk requests that do not end: no caller waits for ever, and a
 * request's slot and memory are used for nothing else before it has ended. */
#include <dlfcn.h>
#include <lmdb.h>

#include "tests/cache/faulty.h"
#include "tests/cache/script.h"

#define PATIENCE 300000000u /* time limit of a disk request, in ns */

/* ---- an index whose fdatasync does not return ---- */

static _Atomic bool index_hangs, index_hung, making_hangs;
static char more[PATH_MAX]; /* second directory */

int fdatasync(int fd)
{
	static int (*real)(int);

	if (!real)
		real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
	while (making_hangs && !disk_thread && disk_is_below(fd, more))
		usleep(10000);
	while (index_hangs && !disk_thread) {
		index_hung = true;
		usleep(10000);
	}
	return real(fd);
}

/* ---- reads of a sweep that do not return ---- */

static char sweep_hangs[PATH_MAX]; /* below this directory; "": nowhere */
static _Atomic bool sweep_hung, sweep_released;
static pthread_t mounter; /* thread whose reads are never held up */

ssize_t pread(int fd, void *data, size_t n, off_t offset)
{
	static ssize_t (*real)(int, void *, size_t, off_t);

	if (!real)
		real = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT,
								     "pread");
	while (!sweep_released && sweep_hangs[0] && !disk_thread &&
	       !pthread_equal(pthread_self(), mounter) &&
	       disk_is_below(fd, sweep_hangs)) {
		sweep_hung = true;
		usleep(10000);
	}
	return real(fd, data, n, offset);
}

/* ---- reads and writes that do not end ---- */

static int set_up(void **state)
{
	struct small *s = malloc(sizeof(*s));

	small_new(s);
	s->config.io = &disk_backend;
	s->config.io_retry = 5000000;
	s->config.io_patience = PATIENCE;
	small_must_open(s);
	for (unsigned i = 0; i < 6; i++)
		must(small_save(s, i) == 0);
	must(kv_space_sync(s->cache, s->space) == 0);
	for (unsigned i = 0; i < 6; i++)
		must(small_demote(s, i) == 0);
	*state = s;
	return 0;
}

static int tear_down(void **state)
{
	disk_behave();
	return small_tear_down(state);
}

/* Poll without a time limit; alarm(2) ends a test that hangs. */
#define wait_until(x)                 \
	do {                          \
		while (!(x))          \
			usleep(5000); \
	} while (0)

/* Wants that find no room wait for the reads that have not ended. */
static uint64_t awaited_reads(struct small *s)
{
	uint64_t n;

	kv_lock(s->cache);
	n = s->cache->reads_begun - s->cache->reads_ended;
	kv_unlock(s->cache);
	return n;
}

static void a_read_that_does_not_end_is_a_miss(void **state)
{
	struct small *s = *state;
	struct kv_key key = small_key(1);
	int status[6];
	uint8_t probe;

	disk_misbehave(FAULT_NEVER, 1, 1);
	disk.only = KV_IO_READ;
	assert_int_equal(small_acquire(s, 1, 1, BYTES, status), 0);
	assert_int_equal(status[0], -ETIMEDOUT);
	assert_int_equal(small_stats(s).stuck, 1);
	assert_int_equal(awaited_reads(s), 0);
	/* A second acquire does not wait for the read that is stuck. */
	assert_int_equal(small_acquire(s, 1, 1, BYTES, status), 0);

	/* Once a probe succeeds, all but the stuck block are served. */
	wait_until(!small_stats(s).ssd_degraded);
	assert_int_equal(small_stats(s).ssd_outages, 1);
	assert_int_equal(small_acquire(s, 0, 6, BYTES, status), 5);
	assert_int_equal(status[1], -ETIMEDOUT);
	kv_probe(s->cache, s->space, &key, 1, &probe);
	assert_int_equal(probe, KV_SSD);

	disk_behave();
	wait_until(small_stats(s).stuck == 0);
	wait_until(small_acquire(s, 0, 6, BYTES, status) == 6);
	assert_int_equal(awaited_reads(s), 0);
	small_check(s);
}

static void its_slot_is_not_used_for_anything_else(void **state)
{
	struct small *s = *state;
	uint64_t before = small_stats(s).dram_used;

	disk_misbehave(FAULT_NEVER, 1, 1);
	disk.only = KV_IO_READ;
	assert_int_equal(small_acquire(s, 1, 1, BYTES, NULL), 0);
	assert_true(small_stats(s).dram_used > before);
	assert_int_equal(small_remove_block(s, 1), 0);
	for (unsigned i = 100; i < 1200; i++)
		small_save(s, i);
	assert_int_equal(disk.n_held, 1);
	/* Fill the memory of the read that is late: no other block may lie
	 * there. */
	memset(disk.held[0].io->data, 0x66, disk.held[0].io->bytes);
	for (unsigned i = 100; i < 1200; i++)
		small_view(s, i, BYTES);
	disk_behave();
	wait_until(small_stats(s).stuck == 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	wait_until(!small_busy(s));
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	wait_until(!small_busy(s));
	small_check(s);
}

static void a_reader_through_the_mount_waits_no_longer_either(void **state)
{
	struct small *s = *state;

	disk_misbehave(FAULT_NEVER, 1, 1);
	disk.only = KV_IO_READ;
	assert_int_equal(small_view(s, 2, BYTES), -ETIMEDOUT);
	wait_until(!small_stats(s).ssd_degraded);
	assert_int_equal(small_view(s, 2, BYTES), 0);
	assert_int_equal(small_view(s, 3, BYTES), 0);
	disk_behave();
	wait_until(small_stats(s).stuck == 0);
	small_check(s);
}

static void while_reads_are_offline_nothing_is_asked_of_the_disk(void **state)
{
	struct small *s = *state;
	struct kv_key key = small_key(3);
	struct kv_miss miss = {.key = key};
	int status[6];
	uint8_t probe;

	disk_misbehave(FAULT_EIO, 1, UINT32_MAX / 2);
	disk.only = KV_IO_READ;
	wait_until(small_acquire(s, 0, 6, BYTES, status) == 0 &&
		   small_stats(s).ssd_degraded);
	assert_string_equal(small_stats(s).ssd_state, "offline: reads fail");
	assert_true(small_stats(s).io_errors >= 8);
	assert_int_equal(small_acquire(s, 0, 6, BYTES, status), 0);
	assert_int_equal(status[0], -EIO);
	assert_int_equal(small_view(s, 3, BYTES), -EIO);
	kv_probe(s->cache, s->space, &key, 1, &probe);
	assert_int_equal(probe, KV_ABSENT);
	kv_why_absent(s->cache, s->space, &miss, 1);
	assert_int_equal(miss.cause, KV_CAUSE_OFFLINE);
	/* Saves and reads in DRAM still work. */
	assert_int_equal(small_save(s, 7), 0);
	assert_int_equal(small_view(s, 7, BYTES), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);

	disk_behave();
	wait_until(!small_stats(s).ssd_degraded);
	assert_int_equal(small_stats(s).corrupt, 0);
	assert_int_equal(small_acquire(s, 0, 6, BYTES, status), 6);
	small_check(s);
}

/* The only block of a new segment file is removed before it is written, so no
 * commit records the file. */
static void a_file_that_nothing_was_written_to_is_known_in_the_end(void **state)
{
	struct small *s = *state;
	const unsigned large = 20;

	disk_misbehave(FAULT_EIO, 1, UINT32_MAX / 2);
	disk.only = KV_IO_WRITE;
	assert_int_equal(small_save_seed(s, large, large, 300000), 0);
	wait_until(inject.seen > 0);
	assert_int_equal(small_remove_block(s, large), 0);
	disk_behave();
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(small_close(s), 0);
	assert_int_equal(small_fsck(s, ""), 0);
	small_must_open(s);
}

static void
one_block_that_cannot_be_read_is_a_miss_and_can_be_saved(void **state)
{
	struct small *s = *state;
	int status[6];

	disk_misbehave(FAULT_EIO, 1, 2);
	disk.only = KV_IO_READ;
	assert_int_equal(small_acquire(s, 2, 1, BYTES, status), 0);
	assert_int_equal(status[0], -EBADMSG);
	assert_int_equal(small_view(s, 2, BYTES), -ENOENT);
	assert_int_equal(small_stats(s).corrupt, 1);
	assert_int_equal(small_save(s, 2), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(small_acquire(s, 0, 6, BYTES, status), 6);
	small_check(s);
}

static void a_write_that_does_not_end_fails_those_who_wait_for_it(void **state)
{
	struct small *s = *state;
	struct kv_block *block;

	disk_misbehave(FAULT_NEVER, 1, 1);
	disk.only = KV_IO_WRITE;
	assert_int_equal(small_save(s, 7), 0);
	block = small_get(s, 7);
	assert_int_equal(kv_block_sync(s->cache, block), -ETIMEDOUT);
	assert_int_equal(kv_space_sync(s->cache, s->space), -ETIMEDOUT);
	assert_false(kv_block_stat(s->cache, block).durable);
	assert_int_equal(small_view(s, 7, BYTES), 0);
	assert_true(small_stats(s).ssd_degraded);
	assert_int_equal(small_stats(s).stuck, 1);

	disk_behave();
	wait_until(kv_block_sync(s->cache, block) == 0);
	kv_block_put(s->cache, block);
	wait_until(!small_stats(s).ssd_degraded);
	small_check(s);
}

static void a_sync_that_does_not_end_holds_up_nobody_else(void **state)
{
	struct small *s = *state;

	disk_misbehave(FAULT_NEVER, 1, 1);
	disk.only = KV_IO_SYNC;
	assert_int_equal(small_save(s, 7), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), -ETIMEDOUT);
	wait_until(small_acquire(s, 0, 6, BYTES, NULL) == 6);
	disk_behave();
	wait_until(kv_space_sync(s->cache, s->space) == 0);
	wait_until(!small_stats(s).ssd_degraded);
	small_check(s);
}

static void an_index_that_does_not_return_fails_those_who_wait(void **state)
{
	struct small *s = *state;

	index_hangs = true;
	assert_int_equal(small_save(s, 7), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), -ETIMEDOUT);
	assert_true(index_hung);
	index_hangs = false;
	wait_until(kv_space_sync(s->cache, s->space) == 0);
	wait_until(!small_stats(s).ssd_degraded);
	small_check(s);
}

/* ---- a second directory whose disk hangs ---- */

#define FULL 400u  /* blocks that fill the first file, in STORE */
#define FIRST 401u /* blocks saved before: one is in the second directory */
#define MORE 30u   /* blocks that are saved while the disk hangs */

/* The next block goes to the second directory: it counts as the quicker one. */
static void prefer_the_second(struct small *s)
{
	struct kv_device *devices = s->cache->ssd.devices;

	kv_lock(s->cache);
	devices[0].since = devices[1].since = kv_now_ns();
	devices[0].busy_bytes = devices[1].busy_bytes = BYTES;
	devices[0].busy_ns = 1e6;
	devices[1].busy_ns = 1;
	kv_unlock(s->cache);
}

static int set_up_two(void **state)
{
	struct small *s = malloc(sizeof(*s));

	small_new(s);
	must(realpath(s->path, more));
	strcat(more, ".more");
	s->config.more[0] = more;
	s->config.n_more = 1;
	s->config.ssd = 64 << 20;
	s->config.io = &disk_backend;
	s->config.io_retry = 5000000;
	small_must_open(s);
	for (unsigned i = 0; i < FULL; i++)
		must(small_save(s, i) == 0);
	must(kv_space_sync(s->cache, s->space) == 0);
	/* Making a file can take a busy machine longer than PATIENCE. */
	prefer_the_second(s);
	small_save_durable(s, FULL, FIRST, BYTES);
	assert_int_equal(s->cache->ssd.devices[1].files, 1);
	must(small_close(s) == 0);
	s->config.io_patience = PATIENCE;
	small_must_open(s);
	prefer_the_second(s);
	*state = s;
	return 0;
}

static int tear_down_two(void **state)
{
	int r = tear_down(state);

	tree_remove(more);
	return r;
}

static void hang(struct small *s, enum kv_io_op op)
{
	const unsigned all = FIRST + MORE;

	disk_misbehave(FAULT_NEVER, 1, UINT32_MAX / 2);
	disk.only = (int)op;
	disk.below = more;
	for (unsigned i = FIRST; i < all; i++)
		assert_int_equal(small_save(s, i), 0);
	/* These blocks become durable in STORE, as do later ones. */
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_true(disk.n_held > 0);
	assert_string_equal(small_stats(s).ssd_state, "a directory failed");
	assert_true(small_stats(s).stuck > 0);
	assert_int_equal(small_save(s, all), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(small_remove_block(s, all), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(small_count_durable(s, FIRST, MORE), MORE);
	disk_behave();
	wait_until(small_stats(s).stuck == 0);
	wait_until(!small_busy(s));
	kv_lock(s->cache);
	kv_arena_check_locked(s->cache);
	kv_unlock(s->cache);
	assert_int_equal(small_close(s), 0);
	assert_int_equal(small_fsck(s, "--data"), 0);
	small_must_open(s);
	assert_int_equal(small_count_exact(s, 0, all, BYTES), all);
	assert_int_equal(small_view(s, all, BYTES), -ENOENT);
}

static void another_directory_takes_the_writes_that_do_not_end(void **state)
{
	hang(*state, KV_IO_WRITE);
}

static void a_sync_of_a_directory_does_not_hold_up_the_others(void **state)
{
	hang(*state, KV_IO_SYNC);
}

static bool has_room(struct small *s)
{
	const struct kv_ssd *ssd = &s->cache->ssd;
	bool room = false;

	kv_lock(s->cache);
	for (uint32_t id = 0; id < ssd->n_files; id++)
		room |= ssd->files[id] &&
			ssd->files[id]->used < ssd->files[id]->slots;
	kv_unlock(s->cache);
	return room;
}

static void a_file_that_is_made_for_ever_is_made_elsewhere(void **state)
{
	struct small *s = *state;
	unsigned n = FIRST;
	uint32_t left;

	/* Fill all files, so that the next blocks need another one. */
	for (; has_room(s); n++)
		small_save_durable(s, n, n + 1, BYTES);
	kv_lock(s->cache);
	s->cache->ssd.devices[0].full_until = kv_now_ns() + 4 * PATIENCE;
	kv_unlock(s->cache);
	making_hangs = true;
	for (unsigned i = n; i < n + MORE; i++)
		assert_int_equal(small_save(s, i), 0);
	/* First the tier has no room, as STORE is full: old blocks may be evicted. */
	wait_until(!strcmp(small_stats(s).ssd_state, "a directory failed"));
	wait_until(kv_space_sync(s->cache, s->space) == 0 &&
		   small_count_durable(s, n, MORE) == MORE);
	making_hangs = false;
	do {
		kv_lock(s->cache);
		left = s->cache->ssd.makers_left;
		kv_unlock(s->cache);
	} while (left);
	assert_int_equal(small_close(s), 0);
	small_must_open(s);
	assert_int_equal(small_count_exact(s, n, n + MORE, BYTES), MORE);
}

static void a_shortage_of_memory_is_no_failure_of_a_directory(void **state)
{
	struct small *s = *state;

	disk_misbehave(FAULT_EIO, 1, 2);
	disk.error = ENOMEM;
	disk.only = KV_IO_WRITE;
	disk.below = more;
	assert_int_equal(small_save(s, FIRST), 0);
	wait_until(inject.failed == 2);
	wait_until(kv_space_sync(s->cache, s->space) == 0);
	assert_false(small_stats(s).ssd_degraded);
	assert_int_equal(small_count_durable(s, 0, FIRST + 1), FIRST + 1);
	wait_until(!small_busy(s));
	small_check(s);
}

/* ---- a sweep whose disk hangs ---- */

/* Mount the store as SIGKILL would leave it; the sweep hangs in @directory. */
static void mount_after_crash(struct small *s, const char *directory)
{
	char copy[72], command[200];

	snprintf(copy, sizeof(copy), "%s.copy", s->path);
	snprintf(command, sizeof(command), "cp -a --sparse=always %s %s",
		 s->path, copy);
	must(system(command) == 0);
	must(small_close(s) == 0);
	small_remove(s);
	must(rename(copy, s->path) == 0);
	mounter = pthread_self();
	sweep_hung = sweep_released = false;
	snprintf(sweep_hangs, sizeof(sweep_hangs), "%s/", directory);
	small_must_open(s);
	must(s->cache->after_crash);
	wait_until(sweep_hung);
}

static void a_sweep_of_a_directory_that_hangs_holds_up_nobody(void **state)
{
	struct small *s = *state;
	uint32_t left = 1;

	mount_after_crash(s, more);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_string_equal(small_stats(s).ssd_state, "a directory failed");
	small_save_durable(s, FIRST, FIRST + MORE, BYTES);
	sweep_released = true;
	while (left) {
		kv_lock(s->cache);
		left = s->cache->ssd.makers_left;
		kv_unlock(s->cache);
	}
	assert_int_equal(small_close(s), 0);
	small_must_open(s);
	assert_true(s->cache->after_crash);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(small_count_exact(s, 0, FIRST + MORE, BYTES),
			 FIRST + MORE);
}

static void a_sweep_of_the_store_that_hangs_fails_those_who_wait(void **state)
{
	struct small *s = *state;
	char path[PATH_MAX];

	must(realpath(s->path, path));
	mount_after_crash(s, path);
	assert_int_equal(kv_space_sync(s->cache, s->space), -ETIMEDOUT);
	assert_int_equal(small_stats(s).stuck, 1);
	sweep_released = true;
	wait_until(kv_space_sync(s->cache, s->space) == 0);
	wait_until(!small_stats(s).ssd_degraded);
	small_check(s);
}

static struct small *reader;
static struct kv_block *removed_next; /* at the next read of the index */

int mdb_txn_begin(MDB_env *env, MDB_txn *parent, unsigned flags, MDB_txn **txn)
{
	static int (*real)(MDB_env *, MDB_txn *, unsigned, MDB_txn **);
	struct kv_block *block = removed_next;

	if (!real)
		real = (int (*)(MDB_env *, MDB_txn *, unsigned,
				MDB_txn **))dlsym(RTLD_NEXT, "mdb_txn_begin");
	if (block && flags & MDB_RDONLY) {
		removed_next = NULL;
		assert_int_equal(kv_block_remove(reader->cache, block), 0);
		assert_int_equal(kv_space_sync(reader->cache, reader->space),
				 0);
	}
	return real(env, parent, flags, txn);
}

static void an_open_block_keeps_its_record_when_it_is_removed(void **state)
{
	struct small *s = *state;
	struct kv_key key = small_key(1);
	struct kv_slot_record record;
	struct kv_block *block;

	assert_int_equal(kv_block_get(s->cache, s->space, &key, &block), 0);
	reader = s;
	removed_next = block;
	assert_int_equal(kv_block_record(s->cache, block, &record), 0);
	assert_null(removed_next);
	assert_memory_equal(record.key, key.b, key.len);
	kv_block_put(s->cache, block);
}

/* ---- closing the cache; each test in a child process ---- */

static void close_with(enum kv_io_op op)
{
	struct small *s;

	set_up((void **)&s);
	disk_misbehave(FAULT_NEVER, 1, 1);
	disk.only = op;
	if (op == KV_IO_READ) {
		small_acquire(s, 1, 1, BYTES, NULL);
	} else {
		small_save(s, 7);
		kv_space_sync(s->cache, s->space);
	}
	must(kv_cache_close(s->cache) == -ETIMEDOUT);
	must(disk.n_held == 1);
	/* memory that the stuck read may still fill must not be freed */
	if (op == KV_IO_READ)
		memset(disk.held[0].io->data, 0x66, disk.held[0].io->bytes);
	disk_behave();
	usleep(50000);
	small_remove(s);
	_exit(0); /* memory that the stuck request may still use is not freed */
}

static void close_in_sweep(bool in_more)
{
	char path[PATH_MAX];
	struct small *s;

	/* The only file of a smaller store has free slots, which are swept. */
	if (in_more)
		set_up_two((void **)&s);
	else
		set_up((void **)&s);
	must(realpath(s->path, path));
	mount_after_crash(s, in_more ? more : path);
	must(kv_cache_close(s->cache) == -ETIMEDOUT);
	small_remove(s);
	if (in_more)
		tree_remove(more);
	_exit(0); /* the stuck sweep may still use memory */
}

static void closing_gives_up_and_leaves_everything_as_it_is(void **state)
{
	struct batch batch = {0};

	(void)state;
	for (enum kv_io_op op = KV_IO_READ; op <= KV_IO_SYNC; op++)
		if (batch_fork(&batch, "close", op))
			close_with(op);
	for (unsigned i = 0; i <= 1; i++)
		if (batch_fork(&batch, "close in sweep", i))
			close_in_sweep(i);
	batch_end(&batch);
}

static void never(unsigned n)
{
	struct script t;

	memset(&t, 0, sizeof(t));
	small_new(&t.s);
	t.s.config.io = &disk_backend;
	t.s.config.io_retry = 5000000;
	t.s.config.io_patience = PATIENCE;
	small_must_open(&t.s);
	disk_misbehave(FAULT_NEVER, n, 1);
	script_steps(&t);
	disk_behave();
	script_recovers(&t);
	script_end(&t);
	exit(0);
}

static void each_request_never_ends(void **state)
{
	struct batch batch = {0};

	(void)state;
	for (unsigned n = 1; n <= 34; n++)
		if (batch_fork(&batch, "never", n))
			never(n);
	batch_end(&batch);
	print_message("F1: %u runs, each with one request that never ends\n",
		      batch.runs);
}

#define TEST(t) cmocka_unit_test_setup_teardown(t, set_up, tear_down)
#define TEST_TWO(t) \
	cmocka_unit_test_setup_teardown(t, set_up_two, tear_down_two)

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* Tests that fork come before tests that start threads. */
		cmocka_unit_test(each_request_never_ends),
		cmocka_unit_test(
			closing_gives_up_and_leaves_everything_as_it_is),
		TEST(a_read_that_does_not_end_is_a_miss),
		TEST(an_open_block_keeps_its_record_when_it_is_removed),
		TEST(its_slot_is_not_used_for_anything_else),
		TEST(a_reader_through_the_mount_waits_no_longer_either),
		TEST(while_reads_are_offline_nothing_is_asked_of_the_disk),
		TEST(a_file_that_nothing_was_written_to_is_known_in_the_end),
		TEST(one_block_that_cannot_be_read_is_a_miss_and_can_be_saved),
		TEST(a_write_that_does_not_end_fails_those_who_wait_for_it),
		TEST(a_sync_that_does_not_end_holds_up_nobody_else),
		TEST(an_index_that_does_not_return_fails_those_who_wait),
		TEST(a_sweep_of_the_store_that_hangs_fails_those_who_wait),
		TEST_TWO(another_directory_takes_the_writes_that_do_not_end),
		TEST_TWO(a_sync_of_a_directory_does_not_hold_up_the_others),
		TEST_TWO(a_file_that_is_made_for_ever_is_made_elsewhere),
		TEST_TWO(a_shortage_of_memory_is_no_failure_of_a_directory),
		TEST_TWO(a_sweep_of_a_directory_that_hangs_holds_up_nobody),
	};

	alarm(550);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
