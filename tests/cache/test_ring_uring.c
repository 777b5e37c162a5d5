/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ring_uring.c - features of io_uring alone: fixed buffers, short
 * completions of a pipe, failures of the ring itself; and the fallback to
 * threads where the kernel refuses io_uring.
 *
 * OWNS      nothing but its fixture.
 *
 * LOCKING   none: what callbacks write is read after a semaphore.
 */
#include <dirent.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/cache/ring_fixture.h"

#define HUGE_PAGE (2u << 20)

static void more_buffers_than_asked_for_are_refused(void **state)
{
	struct fixture *f = *state;

	if (!is_uring(f))
		skip();
	for (int i = 0; i < BUFFERS; i++)
		assert_int_equal(
			kv_ring_add_buffer(f->ring, f->memory, KV_PAGE), i);
	assert_int_equal(kv_ring_add_buffer(f->ring, f->memory, KV_PAGE),
			 -ENOSPC);
	kv_ring_remove_buffer(f->ring, 1);
	assert_int_equal(kv_ring_add_buffer(f->ring, f->memory, KV_PAGE), 1);
}

static void memory_that_is_not_there_is_refused_as_a_buffer(void **state)
{
	struct fixture *f = *state;
	void *hole = map_pages(1);

	munmap(hole, KV_PAGE);
	if (!is_uring(f))
		skip();
	assert_int_equal(kv_ring_add_buffer(f->ring, hole, KV_PAGE), -EFAULT);
	assert_non_null(strstr(kv_ring_describe(f->ring), "Bad address"));
}

/* ---- the io_uring itself fails ---- */

/* Replace every io_uring descriptor of this process by one of /dev/null. */
static void break_rings(void)
{
	DIR *fds = opendir("/proc/self/fd");
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	struct dirent *entry;
	char target[64];
	ssize_t n;

	while ((entry = readdir(fds))) {
		n = readlinkat(dirfd(fds), entry->d_name, target,
			       sizeof(target) - 1);
		target[KV_MAX(n, 0)] = 0;
		if (strstr(target, "[io_uring]"))
			assert_true(dup2(null, atoi(entry->d_name)) >= 0);
	}
	close(null);
	closedir(fds);
}

static void a_ring_that_fails_ends_all_but_what_is_at_the_device(void **state)
{
	struct fixture *f = *state;
	struct count count = {0}, stuck_count = {0};
	struct counted stuck = {.io = request(f, KV_IO_READ, 0, 1)};
	struct counted next = {.io = request(f, KV_IO_READ, 1, 1)};
	struct kv_io later = request(f, KV_IO_READ, 2, 1);
	struct kv_io behind = request(f, KV_IO_READ, 3, 1);
	uint8_t page[KV_PAGE] = {7};
	int pipes[2];

	if (!is_uring(f))
		skip();
	sem_init(&count.each, 0, 0);
	sem_init(&stuck_count.each, 0, 0);
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	stuck.io.fd = pipes[0];
	submit_counted(f, &stuck, &stuck_count);
	/* When the request that was queued after the stuck one has ended, the
	 * stuck request has reached the device. */
	assert_int_equal(kv_ring_wait(f->ring, &behind), 0);
	assert_false(kv_ring_failed(f->ring));

	break_rings();
	submit_counted(f, &next, &count);
	sem_wait(&count.each);
	assert_int_equal(count.last, -EIO);
	assert_true(kv_ring_failed(f->ring));
	assert_int_equal(kv_ring_wait(f->ring, &later), -EIO);
	assert_true(kv_ring_add_buffer(f->ring, f->memory, KV_PAGE) < 0);

	/* The kernel may still write to the memory of the stuck request, so the
	 * request must not end early. */
	assert_int_equal(sem_trywait(&stuck_count.each), -1);
	assert_int_equal(write(pipes[1], page, KV_PAGE), KV_PAGE);
	sem_wait(&stuck_count.each);
	assert_int_equal(f->memory[0], 7);
	close(pipes[0]);
	close(pipes[1]);
	sem_destroy(&count.each);
	sem_destroy(&stuck_count.each);
}

/* ---- requests that the kernel has given to the device ---- */

static void *feed_a_page_at_a_time(void *arg)
{
	uint8_t page[KV_PAGE];

	for (int i = 0; i < 8; i++) {
		memset(page, i, sizeof(page));
		usleep(2000);
		assert_int_equal(write(*(int *)arg, page, KV_PAGE), KV_PAGE);
	}
	return NULL;
}

static void a_short_completion_is_continued(void **state)
{
	struct fixture *f = *state;
	struct kv_io io = request(f, KV_IO_READ, 0, 8);
	pthread_t feeder;
	int pipes[2];

	if (!is_uring(f))
		skip(); /* pread(2) fails on a pipe */
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	io.fd = pipes[0];
	pthread_create(&feeder, NULL, feed_a_page_at_a_time, &pipes[1]);
	assert_int_equal(kv_ring_wait(f->ring, &io), 0);
	pthread_join(feeder, NULL);
	for (int i = 0; i < 8; i++)
		assert_page(f->memory + (size_t)i * KV_PAGE, i);
	close(pipes[0]);
	close(pipes[1]);
}

static void no_more_than_depth_are_at_the_device(void **state)
{
	struct fixture *f = *state;
	struct count stuck_count = {0}, count = {0};
	struct counted stuck[DEPTH],
		next = {.io = request(f, KV_IO_READ, 8, 1)};
	uint8_t page[KV_PAGE] = {0};
	int pipes[2];

	if (!is_uring(f))
		skip();
	sem_init(&count.each, 0, 0);
	sem_init(&stuck_count.each, 0, 0);
	assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
	for (unsigned i = 0; i < DEPTH; i++) {
		stuck[i].io = request(f, KV_IO_READ, i, 1);
		stuck[i].io.fd = pipes[0];
		submit_counted(f, &stuck[i], &stuck_count);
	}
	submit_counted(f, &next, &count);
	usleep(50000);
	assert_int_equal(sem_trywait(&count.each), -1);

	for (unsigned i = 0; i < DEPTH; i++)
		assert_int_equal(write(pipes[1], page, KV_PAGE), KV_PAGE);
	sem_wait(&count.each);
	for (unsigned i = 0; i < DEPTH; i++)
		sem_wait(&stuck_count.each);
	assert_page(f->memory + 8 * KV_PAGE, 8);
	close(pipes[0]);
	close(pipes[1]);
	sem_destroy(&count.each);
	sem_destroy(&stuck_count.each);
}

/* ---- registered buffers ---- */

static void check_buffer(struct fixture *f, unsigned flags)
{
	struct kv_io io = request(f, KV_IO_READ, 0, 3);
	int fd = memfd_create("kvfs-test", MFD_CLOEXEC | flags);
	uint8_t *map;

	if (fd < 0 || fallocate(fd, 0, 0, HUGE_PAGE) < 0)
		skip();
	map = mmap(NULL, HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	assert_ptr_not_equal(map, MAP_FAILED);
	io.buffer = kv_ring_add_buffer(f->ring, map, HUGE_PAGE);
	assert_int_equal(io.buffer, 0);

	io.data = map + HUGE_PAGE - 3 * KV_PAGE;
	assert_int_equal(kv_ring_wait(f->ring, &io), 0);
	assert_page(map + HUGE_PAGE - KV_PAGE, 2);
	io.op = KV_IO_WRITE;
	io.offset = 10 * KV_PAGE;
	assert_int_equal(kv_ring_wait(f->ring, &io), 0);
	io = request(f, KV_IO_READ, 12, 1);
	/* the memory does not lie in registered buffer 0, so the ring reads
	 * without that buffer */
	io.buffer = 0;
	assert_int_equal(kv_ring_wait(f->ring, &io), 0);
	assert_page(f->memory + 12 * KV_PAGE, 2);

	kv_ring_remove_buffer(f->ring, 0);
	io.data = map;
	assert_int_equal(kv_ring_wait(f->ring, &io), 0);
	assert_page(map, 2);
	munmap(map, HUGE_PAGE);
	close(fd);
}

static void fixed_buffers_on_a_memfd_carry_the_bytes(void **state)
{
	if (!is_uring(*state))
		skip();
	check_buffer(*state, 0);
	assert_string_equal(kv_ring_describe(((struct fixture *)*state)->ring),
			    "io_uring, fixed buffers");
}

#define OVERCOMMIT "/proc/sys/vm/nr_overcommit_hugepages"

/* Allow @more huge pages, if permitted; else the test is skipped. */
static void allow_huge_pages(int more)
{
	_cleanup_(kv_closep) int fd = open(OVERCOMMIT, O_RDWR | O_CLOEXEC);
	char text[32] = "";

	if (fd < 0 || pread(fd, text, sizeof(text) - 1, 0) <= 0)
		return;
	snprintf(text, sizeof(text), "%d", atoi(text) + more);
	assert_int_equal(pwrite(fd, text, strlen(text), 0), strlen(text));
}

static int setup_huge(void **state)
{
	allow_huge_pages(1);
	return setup(state);
}

static int teardown_huge(void **state)
{
	allow_huge_pages(-1);
	return teardown(state);
}

static void fixed_buffers_on_a_huge_memfd_carry_the_bytes(void **state)
{
	if (!is_uring(*state))
		skip();
	check_buffer(*state, MFD_HUGETLB);
}

/* ---- refusals by the kernel, each in a child process ---- */

static int in_child(int (*run)(void))
{
	pid_t pid = fork();
	int status;

	if (pid == 0)
		_exit(run());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 100;
}

static const struct fixture fallback;

static int read_something(struct kv_ring *ring, int buffer, void *data)
{
	/* Use a memfd, because another uid may not be allowed to read the files
	 * of the build. */
	_cleanup_(kv_closep) int fd = memfd_create("kvfs-test", MFD_CLOEXEC);
	struct kv_io io = {.op = KV_IO_READ,
			   .fd = fd,
			   .buffer = buffer,
			   .data = data,
			   .bytes = KV_PAGE};

	if (ftruncate(fd, KV_PAGE) < 0)
		return -errno;
	return kv_ring_wait(ring, &io);
}

static int refuse_io_uring(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {KV_ARRAY_LEN(code), code};
	struct kv_ring *ring;
	int r;

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0)
		return 77;
	if (ring_new(&fallback, DEPTH, BUFFERS, &ring) != 0)
		return 1;
	if (strcmp(kv_ring_describe(ring),
		   "threads (io_uring_setup: Operation not permitted)") != 0)
		return 2;
	r = read_something(ring, -1, map_pages(1));
	kv_ring_free(ring);
	return r == 0 ? 0 : 3;
}

static void without_io_uring_there_are_threads_and_it_says_why(void **state)
{
	int rc = in_child(refuse_io_uring);

	(void)state;
	if (rc == 77)
		skip();
	assert_int_equal(rc, 0);
}

static int refuse_locked_memory(void)
{
	/* Allow only as much locked memory as the rings themselves need, which
	 * newer kernels count. */
	const struct rlimit little = {256 << 10, 256 << 10};
	uint8_t *data = map_pages(1024);
	struct kv_ring *ring;
	int buffer, r;

	if (setrlimit(RLIMIT_MEMLOCK, &little) < 0 ||
	    (geteuid() == 0 && setresuid(65534, 65534, 65534) < 0))
		return 77;
	if (ring_new(&fallback, DEPTH, BUFFERS, &ring) != 0)
		return 1;
	if (strncmp(kv_ring_describe(ring), "io_uring", 8) != 0)
		return 77;
	memset(data, 1, 1024 * KV_PAGE);
	buffer = kv_ring_add_buffer(ring, data, 1024 * KV_PAGE);
	if (buffer != -ENOMEM)
		return 2;
	if (!strstr(kv_ring_describe(ring), "Cannot allocate memory"))
		return 3;
	r = read_something(ring, -1, data);
	kv_ring_free(ring);
	return r == 0 ? 0 : 4;
}

static void without_lockable_memory_io_goes_on_unregistered(void **state)
{
	int rc = in_child(refuse_locked_memory);

	(void)state;
	if (rc == 77)
		skip();
	assert_int_equal(rc, 0);
}

static bool with_uring = false;

#define URING(f)                                    \
	{                                           \
#f, f, setup, teardown, &with_uring \
	}

int main(void)
{
	const struct CMUnitTest tests[] = {
		/* Tests that fork come before tests that start threads. */
		cmocka_unit_test(
			without_io_uring_there_are_threads_and_it_says_why),
		cmocka_unit_test(
			without_lockable_memory_io_goes_on_unregistered),
		URING(more_buffers_than_asked_for_are_refused),
		URING(memory_that_is_not_there_is_refused_as_a_buffer),
		URING(a_ring_that_fails_ends_all_but_what_is_at_the_device),
		URING(a_short_completion_is_continued),
		URING(no_more_than_depth_are_at_the_device),
		URING(fixed_buffers_on_a_memfd_carry_the_bytes),
		{"fixed_buffers_on_a_huge_memfd_carry_the_bytes",
		 fixed_buffers_on_a_huge_memfd_carry_the_bytes, setup_huge,
		 teardown_huge, &with_uring},
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
