/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_lock.c - STORE/lock: one process gets the lock, others wait or are
 * refused, and the end of a process releases its lock.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "index/sidecar.h"

struct fixture {
	char path[64];
	int store;
	unsigned waits;
	long owner;
};

static int set_up(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	strcpy(f->path, "kvfs-lock-XXXXXX");
	if (!mkdtemp(f->path))
		return -1;
	f->store = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	*state = f;
	return 0;
}

static int tear_down(void **state)
{
	struct fixture *f = *state;

	unlinkat(f->store, "lock", 0);
	close(f->store);
	rmdir(f->path);
	free(f);
	return 0;
}

static void on_waiting(void *arg, long owner)
{
	struct fixture *f = arg;

	f->waits++;
	f->owner = owner;
}

static int take(struct fixture *f, bool write, int *ret_fd)
{
	const struct kv_lock_wait wait = {.waiting = on_waiting, .arg = f};

	return kv_lock_take(f->store, write, &wait, ret_fd);
}

static int look(struct fixture *f)
{
	int fd = openat(f->store, "lock", O_RDONLY | O_CLOEXEC);
	int state = kv_lock_look(fd);

	close(fd);
	return state;
}

/* Start a process that takes the lock, announces its end and ends after @ms
 * milliseconds.  @ms is 0: the process keeps the lock until it is killed. */
static pid_t owner(struct fixture *f, unsigned ms)
{
	int pipes[2], fd, store;
	char text[32];
	pid_t pid;

	assert_int_equal(pipe(pipes), 0);
	pid = fork();
	if (pid == 0) {
		store = open(f->path, O_RDONLY | O_DIRECTORY);
		if (take(&(struct fixture){.store = store}, true, &fd) < 0)
			_exit(1);
		snprintf(text, sizeof(text), "%d\n", (int)getpid());
		if (write(fd, text, strlen(text)) < 0)
			_exit(1);
		if (ms > 0)
			kv_lock_end(fd);
		if (write(pipes[1], "x", 1) < 0)
			_exit(1);
		if (ms == 0)
			pause();
		usleep(ms * 1000);
		_exit(0);
	}
	assert_int_equal(read(pipes[0], text, 1), 1);
	close(pipes[0]);
	close(pipes[1]);
	return pid;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void an_owner_that_ends_is_waited_for(void **state)
{
	struct fixture *f = *state;
	pid_t pid = owner(f, 4000);
	int fd;

	assert_int_equal(look(f), KV_LOCK_ENDING);
	assert_int_equal(take(f, true, &fd), 0);
	assert_int_equal(f->waits, 1);
	assert_int_equal(f->owner, pid);
	assert_int_equal(look(f), KV_LOCK_HELD);
	close(fd);
	waitpid(pid, NULL, 0);
}

static void an_owner_that_goes_on_is_not(void **state)
{
	struct fixture *f = *state;
	pid_t pid = owner(f, 0);
	int fd;

	assert_int_equal(look(f), KV_LOCK_HELD);
	assert_int_equal(take(f, true, &fd), -EBUSY);
	assert_int_equal(take(f, false, &fd), -EBUSY);
	assert_int_equal(f->waits, 0);
	assert_int_equal(kv_lock_owner(f->store), pid);
	end(pid);
}

static void an_owner_that_is_killed_leaves_nothing(void **state)
{
	struct fixture *f = *state;
	int fd;

	end(owner(f, 0));
	assert_int_equal(look(f), KV_LOCK_FREE);
	assert_int_equal(take(f, true, &fd), 0);
	close(fd);
}

static void the_result_of_an_end_is_read_by_its_process_id(void **state)
{
	struct fixture *f = *state;
	const long pid = getpid();
	long long lost = 7;
	int fd, error = 7;

	assert_int_equal(take(f, true, &fd), 0);
	assert_int_equal(kv_lock_lost(fd, pid, &lost, &error), -ENODATA);
	assert_int_equal(kv_lock_write(fd, "5 huge pages\n", -1, 0), 0);
	assert_int_equal(kv_lock_owner(f->store), pid);
	assert_int_equal(kv_lock_lost(fd, pid, &lost, &error), 0);
	assert_true(lost == -1 && error == 0);
	assert_int_equal(kv_lock_write(fd, "", 3, EIO), 0);
	assert_int_equal(kv_lock_lost(fd, pid + 1, &lost, &error), -ENODATA);
	assert_int_equal(kv_lock_lost(fd, pid, &lost, &error), 0);
	assert_true(lost == 3 && error == EIO);
	close(fd);
	assert_int_equal(kv_lock_write(fd, "", 0, 0), -EBADF);
}

static void readers_share_it_and_keep_a_writer_out(void **state)
{
	struct fixture *f = *state;
	int first, second, third, other;

	assert_int_equal(take(f, false, &first), 0);
	assert_int_equal(first, -1); /* -1: STORE/lock does not exist yet */
	assert_int_equal(take(f, true, &first), 0);
	close(first);
	assert_int_equal(take(f, false, &first), 0);
	other = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_int_equal(
		kv_lock_take(other, false, &(struct kv_lock_wait){0}, &second),
		0);
	assert_int_equal(
		kv_lock_take(other, true, &(struct kv_lock_wait){0}, &third),
		-EBUSY);
	close(first);
	close(second);
	close(other);
}

static void a_lock_that_is_no_file_is_refused(void **state)
{
	struct fixture *f = *state;
	int fd;

	assert_int_equal(mkfifoat(f->store, "lock", 0600), 0);
	assert_int_equal(take(f, true, &fd), -EINVAL);
	assert_int_equal(unlinkat(f->store, "lock", 0), 0);
	assert_int_equal(symlinkat("/dev/null", f->store, "lock"), 0);
	assert_int_equal(take(f, true, &fd), -ELOOP);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(an_owner_that_ends_is_waited_for),
		TEST(an_owner_that_goes_on_is_not),
		TEST(an_owner_that_is_killed_leaves_nothing),
		TEST(the_result_of_an_end_is_read_by_its_process_id),
		TEST(readers_share_it_and_keep_a_writer_out),
		TEST(a_lock_that_is_no_file_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
