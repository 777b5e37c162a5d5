/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_remote_helper.c - a remote tier behind a program: the example, and one
 * that breaks its word in every way that we know.
 *
 * OWNS      a copy of both, where whoever they run as can read it.
 *
 * LOCKING   none.
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "tests/cache/backend.h"

#define ROOM (600u << 10)

static char programs[64];
static uint8_t room[ROOM], data[ROOM];

/* ---- programs ---- */

/* The tree is where build/tests/cache/test_... stands in. */
static void copy_program(const char *name)
{
	char own[3000], command[8000];
	ssize_t n = readlink("/proc/self/exe", own, sizeof(own) - 1);

	assert_true(n > 0);
	own[n] = '\0';
	for (int up = 0; up < 4; up++)
		*strrchr(own, '/') = '\0';
	snprintf(command, sizeof(command), "install -m 755 '%s/%s' %s", own,
		 name, programs);
	assert_int_equal(system(command), 0);
}

static int copy_programs(void **state)
{
	(void)state;
	snprintf(programs, sizeof(programs), "/tmp/kvfs-helpers.XXXXXX");
	if (!mkdtemp(programs) || chmod(programs, 0755) < 0)
		return -1;
	driver = &kv_remote_helper;
	copy_program("connectors/remote/kvfs_remote.py");
	copy_program("examples/kvfs-remote-dict");
	copy_program("tests/cache/remote_faults.py");
	for (size_t i = 0; i < ROOM; i++)
		data[i] = (uint8_t)(i * 5 + (i >> 8));
	return 0;
}

static int remove_programs(void **state)
{
	char command[200];

	(void)state;
	snprintf(command, sizeof(command), "rm -rf %s", programs);
	return system(command);
}

static int open_url(const char *program, const char *options, char **ret_why)
{
	char url[300];

	snprintf(url, sizeof(url), "%s/%s?%s", programs, program, options);
	return driver->open(url, &backend, ret_why);
}

static void open_faulty(const char *options)
{
	char *why = NULL;
	int r = open_url("remote_faults.py", options, &why);

	if (r < 0)
		fail_msg("%s: %s", options, why);
}

static int open_example(void **state)
{
	char *why = NULL;

	(void)state;
	return open_url("kvfs-remote-dict", "landing=16M", &why);
}

static int close_it(void **state)
{
	(void)state;
	return driver->close(backend);
}

/* ---- what is left over ---- */

static unsigned descriptors(void)
{
	DIR *all = opendir("/proc/self/fd");
	unsigned n = 0;

	assert_non_null(all);
	while (readdir(all))
		n++;
	closedir(all);
	return n;
}

static void assert_nothing_left(unsigned before)
{
	assert_int_equal(driver->close(backend), 0);
	assert_int_equal(waitpid(-1, NULL, __WALL | WNOHANG), -1);
	assert_int_equal(descriptors(), before);
}

/* The only child. */
static pid_t child_of(pid_t parent)
{
	char path[300], text[32] = "";
	struct dirent *task;
	DIR *tasks;

	snprintf(path, sizeof(path), "/proc/%d/task", parent);
	tasks = opendir(path);
	assert_non_null(tasks);
	while (!text[0] && (task = readdir(tasks))) {
		FILE *file;

		snprintf(path, sizeof(path), "/proc/%d/task/%.20s/children",
			 parent, task->d_name);
		file = fopen(path, "r");
		if (file && !fgets(text, sizeof(text), file))
			text[0] = '\0';
		if (file)
			fclose(file);
	}
	closedir(tasks);
	return (pid_t)strtol(text, NULL, 10);
}

/* ---- an operation that does not end by itself ---- */

static struct kv_remote_op big_op(enum kv_remote_call call)
{
	struct kv_remote_op op = op_of(call, OBJECT);

	op.data = call == KV_REMOTE_GET ? room : data;
	op.room = op.length = ROOM;
	op.digest = kv_digest_of(data, ROOM);
	return op;
}

/* Ends it without waiting for anything. */
static void cancel_now(struct kv_remote_op *op)
{
	struct kv_remote_op *ended = NULL;

	driver->cancel(backend, op);
	assert_int_equal(driver->reap(backend, &ended, 1), 1);
	assert_ptr_equal(ended, op);
	assert_int_equal(op->status, -ECANCELED);
}

/* ---- tests ---- */

static void test_who_breaks_the_protocol_is_killed_and_restarted(void **state)
{
	static const char *const faults[] = {
		"crash",       "leave",	  "hang_up", "positive", "strange",
		"unknown",     "garbage", "empty",   "large",	 "count_off",
		"hello_again", "stop",	  "hang",    "deaf",
	};
	const unsigned before = descriptors();
	char options[100];
	uint64_t n;
	int r;

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(faults); i++) {
		snprintf(options, sizeof(options),
			 "fault=%s&at=2&landing=16M&patience=%d", faults[i],
			 i < 11 ? 60 : 1);
		open_faulty(options);
		assert_int_equal(put(OBJECT, KV_REMOTE_PUT, data, ROOM), 0);
		r = get(OBJECT, room, ROOM, &n);
		if (r != -EIO)
			fail_msg("%s: %d", faults[i], r);
		/* Refused at once while there is none; then by a new one. */
		while ((r = status_of(KV_REMOTE_EXISTS, OBJECT)) == -EIO)
			usleep(10000);
		assert_int_equal(r, -ENOENT);
		assert_nothing_left(before);
	}
}

static void test_what_it_says_of_an_object_is_looked_at(void **state)
{
	static const struct {
		const char *fault;
		int status;
	} lies[] = {
		{"lie", -EBADMSG},	   {"short", -EBADMSG},
		{"noteless", -EBADMSG},	   {"swap", -EBADMSG},
		{"long", -EFBIG},	   {"truncate", 0},
		{"descriptors", -EBADMSG},
	};
	const unsigned before = descriptors();
	char options[100];
	uint64_t n;
	int r;

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(lies); i++) {
		snprintf(options, sizeof(options), "fault=%s&at=2&landing=16M",
			 lies[i].fault);
		open_faulty(options);
		assert_int_equal(put(OBJECT, KV_REMOTE_PUT, data, ROOM), 0);
		r = get(OBJECT, room, ROOM, &n);
		if (r != lies[i].status)
			fail_msg("%s: %d", lies[i].fault, r);
		/* It goes on, with what it has. */
		assert_int_equal(get(OBJECT, room, ROOM, &n), 0);
		assert_memory_equal(room, data, ROOM);
		assert_nothing_left(before);
	}
}

static void test_an_answer_too_many_ends_it(void **state)
{
	const unsigned before = descriptors();
	int r;

	(void)state;
	open_faulty("fault=twice&at=1");
	r = put(OBJECT, KV_REMOTE_PUT, data, ROOM);
	assert_true(r == 0 || r == -EIO);
	while ((r = status_of(KV_REMOTE_EXISTS, OBJECT)) == -EIO)
		usleep(10000);
	assert_true(r == -ENOENT || r == -EBADMSG || r == 0);
	assert_nothing_left(before);
}

static void test_cancelling_waits_for_nobody(void **state)
{
	static const char *const faults[] = {"hang", "stop", "deaf", "slow"};
	const unsigned before = descriptors();
	char options[100];

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(faults); i++) {
		snprintf(options, sizeof(options),
			 "fault=%s&on=1&landing=1M&patience=60", faults[i]);
		open_faulty(options);
		for (int j = 0; j < 20; j++) {
			struct kv_remote_op op =
				big_op(j & 1 ? KV_REMOTE_GET : KV_REMOTE_PUT);
			struct kv_remote_op *ops = &op;

			driver->submit(backend, &ops, 1);
			if (j < 2)
				usleep(100000); /* asked, or about to be */
			driver->cancel(backend, &op);
			await(1);
			assert_int_equal(op.status, -ECANCELED);
		}
		assert_nothing_left(before);
	}
}

/* 1 MiB holds one such object: the next waits for its memory. */
static void test_memory_that_it_may_write_to_is_not_reused(void **state)
{
	struct kv_remote_op late = big_op(KV_REMOTE_GET), *op = &late;
	const unsigned before = descriptors();

	(void)state;
	open_faulty("fault=hang&at=1&landing=1M&patience=1");
	driver->submit(backend, &op, 1);
	usleep(200000);
	cancel_now(op);
	/* Ended with the program, not by it: it never had room. */
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, data, ROOM), -EIO);
	assert_nothing_left(before);
}

static void test_memory_comes_back_with_a_late_answer(void **state)
{
	struct kv_remote_op late = big_op(KV_REMOTE_GET), *op = &late;
	const unsigned before = descriptors();
	uint64_t n;

	(void)state;
	open_faulty("fault=slow&at=2&landing=1M");
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, data, ROOM), 0);
	memset(room, 7, ROOM);
	driver->submit(backend, &op, 1);
	usleep(100000);
	cancel_now(op);
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, data, ROOM), 0);
	for (size_t i = 0; i < ROOM; i++)
		assert_int_equal(room[i], 7);
	assert_int_equal(get(OBJECT, room, ROOM, &n), 0);
	assert_memory_equal(room, data, ROOM);
	assert_nothing_left(before);
}

static void test_what_is_larger_than_the_landing_memory_is_refused(void **state)
{
	const unsigned before = descriptors();
	uint64_t n;

	(void)state;
	open_faulty("landing=512K");
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, data, ROOM), -EFBIG);
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, data, 1000), 0);
	assert_int_equal(get(OBJECT, room, ROOM, &n), 0);
	assert_int_equal(n, 1000);
	assert_nothing_left(before);
}

static void test_closing_does_not_wait_for_it(void **state)
{
	static const char *const faults[] = {"stop", "hang", "deaf"};
	const unsigned before = descriptors();
	char options[100];

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(faults); i++) {
		struct kv_remote_op op = big_op(KV_REMOTE_PUT), *ops = &op;

		snprintf(options, sizeof(options), "fault=%s&on=1", faults[i]);
		open_faulty(options);
		driver->submit(backend, &ops, 1);
		usleep(100000);
		driver->cancel(backend, &op);
		await(1);
		assert_nothing_left(before);
	}
}

static void test_what_cannot_be_opened_is_said(void **state)
{
	static const struct {
		const char *program, *options, *says;
		int r;
	} wrong[] = {
		{"remote_faults.py", "fault=refuse", "nobody there",
		 -EHOSTUNREACH},
		{"remote_faults.py", "fault=hello", "not in the protocol",
		 -EPROTO},
		{"none", "", "none: No such file", -ENOENT},
		{"kvfs_remote.py", "", "has ended", 0},
		{"remote_faults.py", "uid=x", "out of range", -EINVAL},
		{"remote_faults.py", "uid=4294967295", "out of range", -EINVAL},
		{"remote_faults.py", "landing=10", "out of range", -EINVAL},
		{"remote_faults.py", "landing=1T", "out of range", -EINVAL},
		{"remote_faults.py", "patience=0", "out of range", -EINVAL},
		{"remote_faults.py", "patience", "NAME=VALUE", -EINVAL},
	};
	const unsigned before = descriptors();
	char *why = NULL;

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(wrong); i++) {
		int r = open_url(wrong[i].program, wrong[i].options, &why);

		assert_true(r < 0);
		if (wrong[i].r)
			assert_int_equal(r, wrong[i].r);
		else
			free(why), why = strdup("has ended");
		if (!why || !strstr(why, wrong[i].says))
			fail_msg("%s: %s", wrong[i].options, why);
		free(why);
		assert_int_equal(descriptors(), before);
	}
	assert_int_equal(kv_remote_helper.open("x/y", &backend, &why), -EINVAL);
	free(why);
}

/* A line of /proc/PID/status. */
static void assert_line(pid_t pid, const char *line)
{
	char path[64], text[8192] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	file = fopen(path, "r");
	assert_non_null(file);
	assert_true(fread(text, 1, sizeof(text) - 1, file) > 0);
	fclose(file);
	if (!strstr(text, line))
		fail_msg("no %s in %s", line, text);
}

static void test_a_program_that_it_may_not_run_is_named_as_such(void **state)
{
	char path[100], *why = NULL;
	int r;

	(void)state;
	if (geteuid() != 0)
		skip();
	snprintf(path, sizeof(path), "%s/private", programs);
	assert_int_equal(symlink("kvfs-remote-dict", path), 0);
	assert_int_equal(chmod(path, 0700), 0);
	r = open_url("private", "", &why);
	assert_int_equal(chmod(path, 0755), 0);
	assert_int_equal(r, -EACCES);
	assert_non_null(strstr(why, "Permission denied"));
	free(why);
}

static void test_it_has_nothing_of_ours(void **state)
{
	const unsigned before = descriptors();
	char path[64], text[200] = "";
	int extra = open("/dev/null", O_RDONLY); /* not closed by exec */
	FILE *file;
	pid_t pid;

	(void)state;
	open_faulty("");
	pid = child_of(getpid());
	assert_true(pid > 0);
	assert_line(pid, "NoNewPrivs:\t1\n");
	if (geteuid() == 0) {
		assert_line(pid, "Uid:\t65534\t65534\t65534\t65534\n");
		assert_line(pid, "Gid:\t65534\t65534\t65534\t65534\n");
		assert_line(pid, "Groups:\t \n");
		assert_line(pid, "CapEff:\t0000000000000000\n");
	}
	assert_int_equal(getsid(pid), pid);
	snprintf(path, sizeof(path), "/proc/%d/environ", pid);
	file = fopen(path, "r");
	if (file) {
		assert_int_equal(fread(text, 1, sizeof(text), file),
				 sizeof("PATH=/usr/bin:/bin"));
		fclose(file);
	}
	snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, extra);
	assert_true(extra <= 4 || access(path, F_OK) < 0);
	close(extra);
	assert_nothing_left(before);
}

static void test_it_dies_with_us(void **state)
{
	int pipes[2], pidfd;
	pid_t us, it = 0;
	struct pollfd fd;

	(void)state;
	assert_int_equal(pipe(pipes), 0);
	us = fork();
	if (us == 0) {
		open_faulty("");
		it = child_of(getpid());
		if (write(pipes[1], &it, sizeof(it)) == sizeof(it))
			pause();
		_exit(1);
	}
	assert_int_equal(read(pipes[0], &it, sizeof(it)), sizeof(it));
	close(pipes[0]);
	close(pipes[1]);
	pidfd = (int)syscall(SYS_pidfd_open, it, 0);
	assert_true(pidfd >= 0);
	assert_int_equal(kill(us, SIGKILL), 0);
	assert_int_equal(waitpid(us, NULL, 0), us);
	fd = (struct pollfd){pidfd, POLLIN, 0};
	assert_int_equal(poll(&fd, 1, WAIT_MS), 1);
	close(pidfd);
}

int main(void)
{
	const struct CMUnitTest example[] = {BACKEND_TESTS};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_it_dies_with_us),
		cmocka_unit_test(test_it_has_nothing_of_ours),
		cmocka_unit_test(
			test_who_breaks_the_protocol_is_killed_and_restarted),
		cmocka_unit_test(test_what_it_says_of_an_object_is_looked_at),
		cmocka_unit_test(test_an_answer_too_many_ends_it),
		cmocka_unit_test(test_cancelling_waits_for_nobody),
		cmocka_unit_test(
			test_memory_that_it_may_write_to_is_not_reused),
		cmocka_unit_test(test_memory_comes_back_with_a_late_answer),
		cmocka_unit_test(
			test_what_is_larger_than_the_landing_memory_is_refused),
		cmocka_unit_test(test_closing_does_not_wait_for_it),
		cmocka_unit_test(test_what_cannot_be_opened_is_said),
		cmocka_unit_test(
			test_a_program_that_it_may_not_run_is_named_as_such),
	};
	int r;

	if (copy_programs(NULL) < 0)
		return 1;
	r = cmocka_run_group_tests_name("example", example, open_example,
					close_it);
	r += cmocka_run_group_tests_name("faults", tests, NULL, NULL);
	return remove_programs(NULL) || r;
}
