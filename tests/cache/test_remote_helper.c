/* SPDX-License-Identifier: Apache-2.0 */
/* run.sh: long */
/*
 * test_remote_helper.c - a remote tier behind a program: the example, and one
 * that breaks its word in every way that we know.
 *
 * OWNS      a copy of both, where whoever they run as can read it.
 *
 * LOCKING   none.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "cache/remote/helper.h"
#include "tests/cache/backend.h"
#include "tests/cache/processes.h"

#define ROOM (600u << 10)

static char programs[64];
static uint8_t room[ROOM], data[ROOM + 1], spare[ROOM];

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
	for (size_t i = 0; i <= ROOM; i++)
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

static void assert_nothing_left(unsigned before)
{
	assert_int_equal(driver->close(backend), 0);
	assert_int_equal(waitpid(-1, NULL, __WALL | WNOHANG), -1);
	assert_int_equal(descriptors(), before);
}

#define FIRST_UID 2000000000u
#define NODE_UID 2099999999u
#define MANY_CHILDREN 100

/* The helper that runs as @uid; 0: none. */
static pid_t helper_of(uint32_t uid)
{
	pid_t pids[MANY_CHILDREN];
	unsigned n = children(getpid(), pids, MANY_CHILDREN);
	char value[100];

	for (unsigned i = 0; i < n; i++)
		if (status_line(pids[i], "Uid", value) &&
		    strtoul(value, NULL, 10) == uid)
			return pids[i];
	return 0;
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

/* Get @name while @late is under way, which is then cancelled. */
static int get_beside(const char *name, struct kv_remote_op *late,
		      uint64_t *ret_length)
{
	struct kv_remote_op op = op_of(KV_REMOTE_GET, name), *ops = &op;
	struct kv_remote_op *ended;
	bool came = false, ended_late = false;

	op.data = room;
	op.room = ROOM;
	late->data = spare;
	driver->submit(backend, &ops, 1);
	while (!came || !ended_late) {
		struct pollfd fd = {driver->fd(backend), POLLIN, 0};

		assert_int_equal(poll(&fd, 1, WAIT_MS), 1);
		if (driver->reap(backend, &ended, 1) == 0)
			continue;
		came |= ended == &op;
		ended_late |= ended == late;
		if (ended == &op && !ended_late)
			driver->cancel(backend, late);
	}
	*ret_length = op.length;
	return op.status;
}

/* ---- tests ---- */

static void test_who_breaks_the_protocol_is_killed_and_restarted(void **state)
{
	static const char *const faults[] = {
		"crash",       "leave",	  "hang_up", "positive", "strange",
		"unknown",     "garbage", "empty",   "large",	 "count_off",
		"hello_again", "stall",	  "hang",    "deaf",
	};
	const unsigned before = descriptors();
	char options[100];
	uint64_t n = 0;
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
	uint64_t n = 0;
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
		/* The backend continues and still has the object. */
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
	static const char *const faults[] = {"hang", "stall", "deaf", "slow"};
	const unsigned before = descriptors();
	char options[100];

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(faults); i++) {
		snprintf(options, sizeof(options),
			 "fault=%s&at=2&on=1&landing=1M&patience=60",
			 faults[i]);
		open_faulty(options);
		assert_int_equal(put(OBJECT, KV_REMOTE_PUT, data, ROOM), 0);
		for (int j = 0; j < 20; j++) {
			struct kv_remote_op op =
				big_op(j & 1 ? KV_REMOTE_GET : KV_REMOTE_PUT);
			struct kv_remote_op *ops = &op;

			driver->submit(backend, &ops, 1);
			if (j < 2)
				usleep(100000); /* asked, or about to be */
			driver->cancel(backend, &op);
			await(1);
			/* Then it is not asked any more. */
			assert_int_equal(op.status, j < (int)KV_REMOTE_FAILURES
							    ? -ECANCELED
							    : -EIO);
		}
		assert_nothing_left(before);
	}
}

/* As many are refused at a time as are reaped: the trial is seen all the same. */
static void test_one_that_goes_on_is_asked_again(void **state)
{
	const unsigned before = descriptors();
	pid_t pid;

	(void)state;
	if (geteuid() != 0)
		skip();
	open_faulty("patience=3600");
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, data, 1000), 0);
	pid = helper_of(FIRST_UID + 1000);
	assert_int_equal(kill(pid, SIGSTOP), 0);
	for (unsigned i = 0; i < KV_REMOTE_FAILURES; i++) {
		struct kv_remote_op op = op_of(KV_REMOTE_EXISTS, OBJECT);
		struct kv_remote_op *ops = &op;

		driver->submit(backend, &ops, 1);
		driver->cancel(backend, &op);
		await(1);
	}
	assert_int_equal(status_of(KV_REMOTE_EXISTS, OBJECT), -EIO);
	assert_int_equal(kill(pid, SIGCONT), 0);
	while (status_of(KV_REMOTE_EXISTS, OBJECT) == -EIO)
		usleep(10000);
	assert_int_equal(helper_of(FIRST_UID + 1000), pid);
	assert_nothing_left(before);
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
	uint64_t n = 0;

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
	uint64_t n = 0;

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
	static const char *const faults[] = {"stall", "hang", "deaf"};
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
		{"remote_faults.py", "fault=paint", "two?lines ?[31m?",
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

static void assert_line(pid_t pid, const char *name, const char *wanted)
{
	char value[100] = "";

	assert_true(status_line(pid, name, value));
	if (strcmp(value, wanted) != 0)
		fail_msg("%s: %s, not %s", name, value, wanted);
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

/* So many it may have. */
static unsigned long processes_of(pid_t pid)
{
	const char *const name = "Max processes";
	char path[64], line[200];
	unsigned long n = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/limits", pid);
	file = fopen(path, "r");
	assert_non_null(file);
	while (n == 0 && fgets(line, sizeof(line), file))
		if (strncmp(line, name, strlen(name)) == 0)
			n = strtoul(line + strlen(name), NULL, 10);
	fclose(file);
	return n;
}

static void assert_is_nobody(pid_t pid, uint32_t uid)
{
	char ids[100];

	assert_true(pid > 0);
	snprintf(ids, sizeof(ids), "%u\t%u\t%u\t%u", uid, uid, uid, uid);
	assert_line(pid, "Uid", ids);
	assert_line(pid, "Gid", ids);
	assert_line(pid, "Groups", " ");
	assert_line(pid, "CapEff", "0000000000000000");
	assert_line(pid, "NoNewPrivs", "1");
	assert_in_range(processes_of(pid), 1, 4096);
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
	assert_int_equal(children(getpid(), &pid, 1), 1);
	assert_line(pid, "NoNewPrivs", "1");
	if (geteuid() == 0)
		assert_is_nobody(pid, NODE_UID);
	assert_int_equal(getsid(pid), pid);
	assert_int_equal(getpriority(PRIO_PROCESS, (id_t)pid),
			 KV_MIN(getpriority(PRIO_PROCESS, 0) + 5, 19));
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

static void test_each_tenant_has_one_of_his_own(void **state)
{
	static const struct {
		const char *tenant;
		uint32_t uid;
	} tenants[] = {
		{"0", FIRST_UID},
		{"1000", FIRST_UID + 1000},
		{"99999998", NODE_UID - 1},
		/* The node has this uid, and tenant 0 the next one. */
		{"99999999", FIRST_UID + 1},
		{"1", FIRST_UID + 2},
	};
	const unsigned before = descriptors();
	pid_t pids[MANY_CHILDREN];
	char name[100];

	(void)state;
	open_faulty("");
	for (int again = 0; again < 2; again++)
		for (size_t i = 0; i < KV_ARRAY_LEN(tenants); i++) {
			snprintf(name, sizeof(name), "%s/s/%032d",
				 tenants[i].tenant, 0);
			if (again)
				assert_int_equal(
					status_of(KV_REMOTE_EXISTS, name), 0);
			else
				assert_int_equal(
					put(name, KV_REMOTE_PUT, data, 100 + i),
					0);
			if (geteuid() == 0)
				assert_is_nobody(helper_of(tenants[i].uid),
						 tenants[i].uid);
		}
	assert_int_equal(children(getpid(), pids, MANY_CHILDREN),
			 KV_ARRAY_LEN(tenants) + 1);
	assert_nothing_left(before);
}

/* Never ask a helper for another tenant's objects. */
static void test_nobody_is_asked_for_anothers_objects(void **state)
{
	const char *const name = "1001/space/00112233445566778899aabbccddeeff";
	const unsigned before = descriptors();
	uint64_t n = 0;

	(void)state;
	open_faulty("fault=foreign&on=1");
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, data, 1000), 0);
	assert_int_equal(status_of(KV_REMOTE_EXISTS, name), -ENOENT);
	assert_int_equal(put(name, KV_REMOTE_PUT, data + 1, 1000), 0);
	assert_int_equal(get(OBJECT, room, ROOM, &n), 0);
	assert_memory_equal(room, data, n);
	assert_int_equal(get(name, room, ROOM, &n), 0);
	assert_memory_equal(room, data + 1, n);
	assert_int_equal(put("1000/s/.layout", KV_REMOTE_PUBLISH, data, 10), 0);
	assert_int_equal(get("1000/s/.layout", room, ROOM, &n), 0);
	assert_int_equal(status_of(KV_REMOTE_CLEAR, "1001/space/.layout"), 0);
	assert_int_equal(status_of(KV_REMOTE_EXISTS, name), -ENOENT);
	assert_int_equal(status_of(KV_REMOTE_EXISTS, OBJECT), 0);
	assert_nothing_left(before);
}

/* One of before it was in the protocol; again when it was started anew. */
static void test_who_does_not_know_to_clear_is_not_asked(void **state)
{
	const char *const layout = "1000/space/.layout";
	const unsigned before = descriptors();

	(void)state;
	open_faulty("old=1&fault=leave&at=4");
	for (int i = 0; i < 2; i++) {
		while (status_of(KV_REMOTE_EXISTS, OBJECT) == -EIO)
			usleep(10000);
		assert_int_equal(put(OBJECT, KV_REMOTE_PUT, data, 10), 0);
		assert_int_equal(status_of(KV_REMOTE_CLEAR, layout),
				 -EOPNOTSUPP);
		assert_int_equal(status_of(KV_REMOTE_EXISTS, OBJECT), 0);
		assert_int_equal(status_of(KV_REMOTE_EXISTS, OBJECT), -EIO);
	}
	assert_nothing_left(before);
}

/* In whichever way one is not there any more, another's objects are. */
static void test_one_that_is_gone_or_hangs_is_nothing_to_others(void **state)
{
	const char *const other = "1001/space/00112233445566778899aabbccddeeff";
	const int signals[] = {SIGSTOP, SIGKILL};
	const unsigned before = descriptors();
	uint64_t n = 0;

	(void)state;
	if (geteuid() != 0)
		skip();
	open_faulty("");
	assert_int_equal(put(other, KV_REMOTE_PUT, data, ROOM), 0);
	for (size_t i = 0; i < KV_ARRAY_LEN(signals); i++) {
		assert_int_equal(put(OBJECT, KV_REMOTE_PUT, data, ROOM), 0);
		assert_int_equal(kill(helper_of(FIRST_UID + 1000), signals[i]),
				 0);
		for (int j = 0; j < 50; j++) {
			struct kv_remote_op op = big_op(KV_REMOTE_GET),
					    *ops = &op;

			driver->submit(backend, &ops, 1);
			assert_int_equal(get_beside(other, &op, &n), 0);
			assert_int_equal(n, ROOM);
			assert_memory_equal(room, data, ROOM);
		}
		/* Kill the helper if it is stopped; else it starts again by itself. */
		if (signals[i] == SIGSTOP)
			kill(helper_of(FIRST_UID + 1000), SIGKILL);
		while (status_of(KV_REMOTE_EXISTS, OBJECT) == -EIO)
			usleep(10000);
	}
	assert_nothing_left(before);
}

/* Two helpers at a time: requests of a third tenant miss until one helper is idle. */
static void test_a_thousand_tenants_have_few(void **state)
{
	const unsigned before = descriptors();
	unsigned served = 0, most = 0, n;
	pid_t pids[MANY_CHILDREN];
	char name[100];
	int r;

	(void)state;
	open_faulty("helpers=2");
	for (int i = 0; i < 1000; i++) {
		snprintf(name, sizeof(name), "%d/s/%032d", i, 0);
		r = status_of(KV_REMOTE_EXISTS, name);
		assert_true(r == -ENOENT || r == -EUSERS);
		served += r == -ENOENT;
		n = children(getpid(), pids, MANY_CHILDREN);
		most = KV_MAX(most, n);
	}
	assert_true(served >= 2 && served < 1000);
	assert_true(most <= 2 * 2 + 1);
	do {
		r = status_of(KV_REMOTE_EXISTS, name);
		usleep(10000);
	} while (r == -EUSERS);
	assert_int_equal(r, -ENOENT);
	assert_true(children(getpid(), pids, MANY_CHILDREN) <= 2 * 2 + 1);
	assert_nothing_left(before);
}

#define HOGS 3
#define EACH 4

/* Put again what has ended, if @again; how many did, of tenant @i in @ret_served[i]
 * those that were asked. */
static size_t answered(struct kv_remote_op *ops, bool again,
		       unsigned ret_served[HOGS])
{
	struct kv_remote_op *ended[HOGS * EACH];
	const size_t n = driver->reap(backend, ended, HOGS * EACH);

	for (size_t i = 0; i < n; i++) {
		const int r = ended[i]->status;

		if (r != -ENOENT && r != -EUSERS)
			fail_msg("%d", r);
		ret_served[(ended[i] - ops) / EACH] += r == -ENOENT;
	}
	if (again && n > 0)
		driver->submit(backend, ended, n);
	return n;
}

/* Of each something is under way all the time. */
static void test_who_asks_all_the_time_takes_turns(void **state)
{
	const uint64_t until = kv_now_ns() + WAIT_MS * UINT64_C(1000000);
	const unsigned before = descriptors();
	struct kv_remote_op ops[HOGS * EACH], *op;
	unsigned turns[HOGS] = {0}, served[HOGS], at = HOGS;
	char name[100];
	size_t left = HOGS * EACH;

	(void)state;
	open_faulty("helpers=1");
	for (size_t i = 0; i < HOGS * EACH; i++) {
		snprintf(name, sizeof(name), "%zu/s/%032zu", i / EACH, i);
		ops[i] = op_of(KV_REMOTE_EXISTS, name);
		op = &ops[i];
		driver->submit(backend, &op, 1);
	}
	while (turns[0] < 2 || turns[1] < 2 || turns[2] < 2) {
		memset(served, 0, sizeof(served));
		answered(ops, true, served);
		for (unsigned i = 0; i < HOGS; i++)
			if (served[i] && at != i)
				turns[at = i]++;
		if (kv_now_ns() > until)
			fail_msg("turns: %u %u %u", turns[0], turns[1],
				 turns[2]);
		usleep(1000);
	}
	while (left > 0)
		left -= answered(ops, false, served);
	assert_nothing_left(before);
}

static void test_one_that_is_not_asked_ends(void **state)
{
	const unsigned before = descriptors();
	struct kv_remote_op *none;
	pid_t pids[MANY_CHILDREN];

	(void)state;
	open_faulty("idle=0");
	assert_int_equal(put(OBJECT, KV_REMOTE_PUT, data, 1000), 0);
	while (children(getpid(), pids, MANY_CHILDREN) > 1) {
		assert_int_equal(driver->reap(backend, &none, 1), 0);
		usleep(1000);
	}
	/* The node's own has stayed; and a new one is made for who asks. */
	assert_int_equal(status_of(KV_REMOTE_EXISTS, OBJECT), -ENOENT);
	assert_nothing_left(before);
}

/* One that left its group and session has our standard error, too, until it ends. */
static void test_it_dies_with_us_and_all_that_it_began(void **state)
{
	int ended[2], begun[2];
	struct pollfd fd;
	char c;
	pid_t us;

	(void)state;
	assert_int_equal(pipe2(ended, O_CLOEXEC), 0);
	assert_int_equal(pipe2(begun, O_CLOEXEC), 0);
	us = fork();
	if (us == 0) {
		dup2(ended[1], 2);
		open_faulty(geteuid() == 0 ? "brood=1" : "");
		assert_int_equal(put(OBJECT, KV_REMOTE_PUT, data, 1000), 0);
		if (write(begun[1], "x", 1) == 1)
			pause();
		_exit(1);
	}
	close(ended[1]);
	assert_int_equal(read(begun[0], &c, 1), 1);
	close(begun[0]);
	close(begun[1]);
	fd = (struct pollfd){ended[0], POLLIN, 0};
	assert_int_equal(poll(&fd, 1, 0), 0);
	assert_int_equal(kill(us, SIGKILL), 0);
	assert_int_equal(waitpid(us, NULL, 0), us);
	assert_int_equal(poll(&fd, 1, WAIT_MS), 1);
	assert_int_equal(read(ended[0], &c, 1), 0);
	close(ended[0]);
}

/* A lease on its file lets nobody open it, until that is given up. */
static void test_what_hangs_before_it_begins_has_nothing_of_ours(void **state)
{
	struct kv_helper_config config = {
		.url = "/hangs",
		.tenant = "",
		.landing = 1 << 20,
		.hello_ns = 1000000,
		.patience_ns = 1000000,
		.start = kv_launch,
	};
	const unsigned before = descriptors();
	struct kv_helper *helper;
	char path[100], *why;
	pid_t pid = 0;
	int file;

	(void)state;
	signal(SIGIO, SIG_IGN);
	snprintf(path, sizeof(path), "%s/kvfs-remote-dict", programs);
	file = open(path, O_RDWR | O_CLOEXEC);
	assert_true(file >= 0);
	if (fcntl(file, F_SETLEASE, F_WRLCK) < 0)
		skip();
	config.launch.argv[0] = path;
	assert_int_equal(kv_helper_open(&config, &helper), 0);
	assert_int_equal(kv_helper_await(helper, &why), -ETIMEDOUT);
	free(why);
	assert_int_equal(children(getpid(), &pid, 1), 1);
	/* . and .., three that each has, the socket, and why it failed */
	assert_int_equal(descriptors_of(pid), 7);
	assert_int_equal(kv_helper_close(helper), -EBUSY);
	assert_int_equal(fcntl(file, F_SETLEASE, F_UNLCK), 0);
	close(file);
	while (!kv_helper_has_ended(helper))
		usleep(1000);
	assert_int_equal(kv_helper_close(helper), 0);
	assert_int_equal(waitpid(-1, NULL, __WALL | WNOHANG), -1);
	assert_int_equal(descriptors(), before);
}

int main(void)
{
	const struct CMUnitTest example[] = {BACKEND_TESTS};
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_it_dies_with_us_and_all_that_it_began),
		cmocka_unit_test(test_it_has_nothing_of_ours),
		cmocka_unit_test(
			test_what_hangs_before_it_begins_has_nothing_of_ours),
		cmocka_unit_test(test_each_tenant_has_one_of_his_own),
		cmocka_unit_test(test_nobody_is_asked_for_anothers_objects),
		cmocka_unit_test(test_who_does_not_know_to_clear_is_not_asked),
		cmocka_unit_test(
			test_one_that_is_gone_or_hangs_is_nothing_to_others),
		cmocka_unit_test(test_a_thousand_tenants_have_few),
		cmocka_unit_test(test_who_asks_all_the_time_takes_turns),
		cmocka_unit_test(test_one_that_is_not_asked_ends),
		cmocka_unit_test(
			test_who_breaks_the_protocol_is_killed_and_restarted),
		cmocka_unit_test(test_what_it_says_of_an_object_is_looked_at),
		cmocka_unit_test(test_an_answer_too_many_ends_it),
		cmocka_unit_test(test_cancelling_waits_for_nobody),
		cmocka_unit_test(test_one_that_goes_on_is_asked_again),
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
