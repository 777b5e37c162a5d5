/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_memory.c - which files a client may offer, which of them the daemon maps,
 * and what it copies from them.
 *
 * OWNS      the files it makes, and a pool of workers.
 *
 * LOCKING   `unmapped` and `most` are atomic: workers write them.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <cmocka.h>

#include "fs/control/server.h"
#include "kernels/transfer/xfer.h"

#define MIB (UINT64_C(1) << 20)
#define BYTES (2 * MIB)
#define HUGE (2 * MIB)
#define ALL (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE)

static struct kv_server server;
static _Atomic uint64_t unmapped, most;

/* Replace munmap(2) of libc, to count the bytes that are unmapped. */
int munmap(void *at, size_t n)
{
	atomic_store(&most, KV_MAX(atomic_load(&most), n));
	atomic_fetch_add(&unmapped, n);
	return (int)syscall(SYS_munmap, at, n);
}

static int start(void **state)
{
	static const struct kv_workers_config config = {
		.name = "test", .threads = 1, .each = 1, .turn = KV_COPY_TURN};

	(void)state;
	server.mapped_max = 64 * MIB;
	return kv_workers_new(&config, &server.waits);
}

static int stop(void **state)
{
	(void)state;
	kv_workers_free(server.waits);
	return 0;
}

enum fill { SPARSE, ALLOCATED, WRITTEN };

static int file(uint64_t bytes, int seals, enum fill fill)
{
	int fd = memfd_create("offered", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	uint64_t n = bytes / sizeof(uint64_t);
	uint64_t *words;

	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	if (fill != SPARSE)
		assert_int_equal(fallocate(fd, 0, 0, (off_t)bytes), 0);
	if (fill == WRITTEN) {
		words = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED,
			     fd, 0);
		for (uint64_t i = 0; i < n; i++)
			words[i] = i * UINT64_C(0x9E3779B97F4A7C15);
		munmap(words, bytes);
	}
	assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
	return fd;
}

static int offer(int fd, uint64_t at, uint64_t bytes,
		 struct kv_client_memory **ret_memory)
{
	return kv_client_memory_new(&server, NULL, fd, at, bytes, ret_memory);
}

static void refuses(int fd, uint64_t at, uint64_t bytes, int why)
{
	struct kv_client_memory *memory = NULL;

	assert_true(fd >= 0);
	assert_int_equal(offer(fd, at, bytes, &memory), why);
	assert_null(memory);
	close(fd);
}

static void only_files_in_memory_are_taken(void **state)
{
	char path[] = "/tmp/kvfs-memory-XXXXXX";
	int pipes[2], fd;

	(void)state;
	assert_int_equal(pipe(pipes), 0);
	refuses(pipes[0], 0, 1, -EMEDIUMTYPE);
	refuses(pipes[1], 0, 1, -EMEDIUMTYPE);
	refuses(open("/", O_RDONLY | O_DIRECTORY), 0, 1, -EMEDIUMTYPE);
	refuses(open("/dev/shm", O_RDONLY | O_DIRECTORY), 0, 1, -EMEDIUMTYPE);
	refuses(open("/dev/zero", O_RDWR), 0, 1, -EMEDIUMTYPE);
	refuses(open("/proc/self/exe", O_RDONLY), 0, 1, -EMEDIUMTYPE);
	fd = mkstemp(path);
	unlink(path);
	refuses(fd, 0, 1, -EMEDIUMTYPE);
	fd = file(BYTES, 0, SPARSE);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	refuses(open(path, O_PATH), 0, 1, -EMEDIUMTYPE);
	refuses(open(path, O_WRONLY), 0, 1, -EACCES);
	refuses(dup(fd), 0, 0, -EINVAL);
	refuses(dup(fd), UINT64_MAX, 2, -EINVAL);
	refuses(dup(fd), INT64_MAX, 1, -EINVAL);
	close(fd);
}

/* Return true if the daemon maps @bytes from @at on of @fd. Closes @fd. */
static bool maps(int fd, uint64_t at, uint64_t bytes)
{
	struct kv_client_memory *memory;
	bool mapped;

	assert_int_equal(offer(fd, at, bytes, &memory), 0);
	while (kv_client_memory_map(memory) > 0)
		;
	mapped = kv_client_memory_is_mapped(memory);
	kv_client_memory_put(memory);
	close(fd);
	return mapped;
}

static void only_what_can_lose_no_page_is_mapped(void **state)
{
	int fd;

	(void)state;
	if (!maps(file(BYTES, ALL, WRITTEN), 0, BYTES))
		/* kernels before Linux 6.5 cannot find holes in the mapping */
		skip();
	assert_true(maps(file(BYTES, ALL, ALLOCATED), 0, BYTES));
	assert_true(maps(file(BYTES, ALL, WRITTEN), 5000, 300000));
	assert_true(maps(file(BYTES, ALL | F_SEAL_SEAL, WRITTEN), 0, BYTES));
	assert_false(
		maps(file(BYTES, ALL & ~F_SEAL_SHRINK, WRITTEN), 0, BYTES));
	assert_false(maps(file(BYTES, ALL & ~F_SEAL_GROW, WRITTEN), 0, BYTES));
	assert_false(maps(file(BYTES, ALL & ~F_SEAL_FUTURE_WRITE, WRITTEN), 0,
			  BYTES));
	assert_false(maps(file(BYTES, ALL, SPARSE), 0, BYTES));
	assert_false(maps(file(BYTES, ALL, WRITTEN), 0, BYTES + 1));
	fd = file(BYTES, 0, WRITTEN);
	assert_int_equal(fallocate(fd,
				   FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
				   (off_t)MIB, KV_PAGE),
			 0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, ALL), 0);
	assert_true(maps(dup(fd), 0, MIB));
	assert_false(maps(dup(fd), 0, MIB + 1));
	assert_true(maps(dup(fd), MIB + KV_PAGE, MIB - KV_PAGE));
	/* Pages that are allocated behind the end of the file do not make up
	 * for a hole in the file. */
	fd = file(BYTES, 0, SPARSE);
	assert_int_equal(
		fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)BYTES, (off_t)BYTES),
		0);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, ALL), 0);
	assert_false(maps(fd, 0, BYTES));
}

static void more_than_so_much_is_not_mapped(void **state)
{
	struct kv_accounts *accounts;
	struct kv_account *account;
	struct kv_client_memory *memory[2];
	int fd = file(24 * MIB, ALL, ALLOCATED);

	(void)state;
	assert_int_equal(kv_accounts_new(&accounts), 0);
	account = kv_account_get(accounts, 12345);
	for (size_t i = 0; i < 2; i++) {
		assert_int_equal(kv_client_memory_new(&server, account, fd, 0,
						      24 * MIB, &memory[i]),
				 0);
		while (kv_client_memory_map(memory[i]) > 0)
			;
	}
	if (kv_client_memory_is_mapped(memory[0]))
		assert_int_equal(kv_accounts_used(accounts, KV_FINITE_MAPPED),
				 24 * MIB);
	assert_false(kv_client_memory_is_mapped(memory[1]));
	kv_client_memory_put(memory[0]);
	kv_client_memory_put(memory[1]);
	kv_account_put(account);
	close(fd);
	while (kv_accounts_used(accounts, KV_FINITE_STAGINGS) > 0)
		usleep(1000);
	assert_int_equal(kv_accounts_used(accounts, KV_FINITE_MAPPED), 0);
	/* A worker releases the user's account after it has released the
	 * charges. */
	kv_workers_free(server.waits);
	kv_accounts_free(accounts);
	assert_int_equal(start(NULL), 0);
}

static void it_is_mapped_and_unmapped_in_steps(void **state)
{
	struct kv_client_memory *memory;
	int fd = file(40 * MIB, ALL, ALLOCATED), steps = 1;

	(void)state;
	assert_int_equal(offer(fd, 0, 40 * MIB, &memory), 0);
	close(fd);
	while (kv_client_memory_map(memory) > 0)
		steps++;
	if (!kv_client_memory_is_mapped(memory))
		skip();
	assert_int_equal(steps, 3);
	kv_client_memory_hold(memory);
	kv_client_memory_put(memory);
	atomic_store(&most, 0);
	atomic_store(&unmapped, 0);
	kv_client_memory_put(memory);
	kv_client_memory_put(NULL);
	while (atomic_load(&unmapped) < 40 * MIB)
		usleep(1000);
	assert_int_equal(atomic_load(&most), 16 * MIB);
}

/* Assert that the daemon copies and hashes @n bytes from @at on as they are in
 * the file. */
static void copies(const struct kv_client_memory *memory, int fd, uint64_t at,
		   uint64_t n)
{
	uint8_t *wanted = malloc(n), *got = malloc(n);
	struct kv_digest digest, other;
	struct kv_hash *hash;

	assert_int_equal(kv_hash_new(&hash), 0);
	assert_int_equal(pread(fd, wanted, n, (off_t)at), n);
	assert_int_equal(kv_client_memory_copy(memory, 0, at, n, NULL, got), 0);
	assert_memory_equal(got, wanted, n);
	other = kv_digest_of(wanted, n);
	for (unsigned how = 0; how <= (KV_COPY_READ | KV_COPY_OPEN); how++) {
		memset(got, 0, n);
		kv_hash_begin(hash);
		assert_int_equal(
			kv_client_memory_copy(memory, how, at, n, hash, got),
			0);
		assert_memory_equal(got, wanted, n);
		digest = kv_hash_end(hash);
		assert_memory_equal(&digest, &other, sizeof(digest));
	}
	kv_hash_free(hash);
	free(wanted);
	free(got);
}

static uint8_t open_slot[8 << 20];
static _Atomic bool stop_writing;

static void *write_to_slot(void *arg)
{
	while (!atomic_load(&stop_writing))
		for (size_t i = 0; i < sizeof(open_slot); i += KV_PAGE)
			open_slot[i]++;
	return arg;
}

static void writes_to_an_open_slot_do_not_change_the_digest(void **state)
{
	const uint64_t n = sizeof(open_slot);
	int fd = file(n, 0, WRITTEN);
	uint8_t *wanted = malloc(n);
	struct kv_client_memory *memory;
	struct kv_digest digest, other;
	struct kv_hash *hash;
	pthread_t thread;

	(void)state;
	assert_int_equal(kv_hash_new(&hash), 0);
	assert_int_equal(pread(fd, wanted, n, 0), n);
	other = kv_digest_of(wanted, n);
	assert_int_equal(offer(dup(fd), 0, n, &memory), 0);
	assert_int_equal(pthread_create(&thread, NULL, write_to_slot, NULL), 0);
	for (int i = 0; i < 20; i++) {
		kv_hash_begin(hash);
		assert_int_equal(kv_client_memory_copy(memory, KV_COPY_OPEN, 0,
						       n, hash, open_slot),
				 0);
		digest = kv_hash_end(hash);
		assert_memory_equal(&digest, &other, sizeof(digest));
	}
	atomic_store(&stop_writing, true);
	pthread_join(thread, NULL);
	kv_client_memory_put(memory);
	kv_hash_free(hash);
	close(fd);
	free(wanted);
}

static void bytes_are_copied_and_hashed_mapped_or_not(void **state)
{
	(void)state;
	for (int mapped = 0; mapped < 2; mapped++) {
		int fd = file(BYTES, ALL, WRITTEN);
		struct kv_client_memory *memory;

		assert_int_equal(offer(fd, 0, BYTES, &memory), 0);
		while (mapped && kv_client_memory_map(memory) > 0)
			;
		copies(memory, fd, 0, BYTES);
		copies(memory, fd, 1, 300001);
		copies(memory, fd, BYTES - 4, 4);
		kv_client_memory_put(memory);
		close(fd);
	}
}

static void a_hole_is_zeros_and_stays_a_hole(void **state)
{
	struct kv_client_memory *memory;
	int fd = file(BYTES, F_SEAL_SHRINK, SPARSE);
	struct stat st;

	(void)state;
	assert_int_equal(offer(fd, 0, BYTES, &memory), 0);
	while (kv_client_memory_map(memory) > 0)
		;
	copies(memory, fd, 0, BYTES);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_blocks, 0);
	kv_client_memory_put(memory);
	close(fd);
}

static void a_file_that_became_shorter_is_an_error(void **state)
{
	struct kv_client_memory *memory;
	int fd = file(BYTES, 0, WRITTEN);
	uint8_t *got = malloc(BYTES);

	(void)state;
	assert_int_equal(offer(fd, 0, BYTES, &memory), 0);
	while (kv_client_memory_map(memory) > 0)
		;
	assert_int_equal(ftruncate(fd, (off_t)MIB), 0);
	assert_int_equal(kv_client_memory_copy(memory, 0, 0, MIB, NULL, got),
			 0);
	assert_int_equal(kv_client_memory_copy(memory, 0, 1, MIB, NULL, got),
			 -EFAULT);
	assert_int_equal(
		kv_client_memory_copy(memory, 0, BYTES - 1, 1, NULL, got),
		-EFAULT);
	kv_client_memory_put(memory);
	close(fd);
	free(got);
}

/* In huge pages of 2 MiB the single pages cannot be counted: a page counts if
 * its first byte is not 0. */
static void huge_pages_are_mapped_if_they_begin_so(void **state)
{
	struct kv_client_memory *memory;
	int fd = memfd_create("huge",
			      MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_CLOEXEC);
	uint8_t *at, got = 1;

	(void)state;
	if (fd < 0)
		skip();
	assert_int_equal(ftruncate(fd, (off_t)(2 * HUGE)), 0);
	at = mmap(NULL, 2 * HUGE, PROT_READ | PROT_WRITE,
		  MAP_SHARED | MAP_NORESERVE, fd, 0);
	assert_true(at != MAP_FAILED);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, ALL), 0);
	assert_int_equal(offer(fd, 0, 2 * HUGE, &memory), 0);
	while (kv_client_memory_map(memory) > 0)
		;
	assert_false(kv_client_memory_is_mapped(memory));
	assert_int_equal(
		kv_client_memory_copy(memory, 0, HUGE - 1, 1, NULL, &got), 0);
	assert_int_equal(got, 0);
	kv_client_memory_put(memory);
	if (fallocate(fd, 0, 0, (off_t)(2 * HUGE)) == 0) {
		assert_false(maps(dup(fd), 0, 2 * HUGE));
		at[0] = 1;
		assert_false(maps(dup(fd), 0, 2 * HUGE));
		assert_true(maps(dup(fd), 5000, 9000));
		at[HUGE] = 1;
		assert_true(maps(dup(fd), 0, 2 * HUGE));
	}
	munmap(at, 2 * HUGE);
	close(fd);
}

static void staging_of_the_library_is_mapped(void **state)
{
	struct kv_stage *stage;

	(void)state;
	assert_int_equal(kv_stage_new(MIB, false, false, &stage), 0);
	assert_true(maps(dup(stage->fd), 0, stage->bytes));
	kv_stage_free(stage);
	assert_int_equal(kv_stage_new(3 * MIB, true, false, &stage), 0);
	assert_true(maps(dup(stage->fd), 0, stage->bytes));
	kv_stage_free(stage);
}

static void only_what_lies_inside_is_inside(void **state)
{
	struct kv_client_memory *m;
	int fd = file(BYTES, 0, SPARSE);

	(void)state;
	assert_int_equal(offer(fd, 0, BYTES, &m), 0);
	assert_int_equal(kv_client_memory_bytes(m), BYTES);
	assert_true(kv_client_memory_has(m, 0, BYTES));
	assert_true(kv_client_memory_has(m, BYTES - 1, 1));
	assert_false(kv_client_memory_has(m, 1, BYTES));
	assert_false(kv_client_memory_has(m, BYTES + 1, 0));
	assert_false(kv_client_memory_has(m, UINT64_MAX, 2));
	assert_false(kv_client_memory_has(m, 2, UINT64_MAX));
	kv_client_memory_put(m);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(only_files_in_memory_are_taken),
		cmocka_unit_test(only_what_can_lose_no_page_is_mapped),
		cmocka_unit_test(more_than_so_much_is_not_mapped),
		cmocka_unit_test(it_is_mapped_and_unmapped_in_steps),
		cmocka_unit_test(bytes_are_copied_and_hashed_mapped_or_not),
		cmocka_unit_test(
			writes_to_an_open_slot_do_not_change_the_digest),
		cmocka_unit_test(a_hole_is_zeros_and_stays_a_hole),
		cmocka_unit_test(a_file_that_became_shorter_is_an_error),
		cmocka_unit_test(huge_pages_are_mapped_if_they_begin_so),
		cmocka_unit_test(staging_of_the_library_is_mapped),
		cmocka_unit_test(only_what_lies_inside_is_inside),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
