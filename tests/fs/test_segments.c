/* SPDX-License-Identifier: Apache-2.0 */
/* Descriptors of arena segments: which client can do what with them. */
#include <sys/stat.h>

#include "tests/fs/peer.h"
#include "tests/kernels/world.h"

#define STRANGER 65534
#define LAYOUT \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[65536]}]}"

/* Unless @condition holds, print the failing line and end the process. */
#define EXPECT(condition)                                                  \
	do {                                                               \
		if (!(condition)) {                                        \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, \
				#condition);                               \
			_exit(1);                                          \
		}                                                          \
	} while (0)

/* Save a block; retry while the arena grows. */
static int save_a_block(struct peer *p)
{
	int r = -EBUSY;

	for (int i = 0; i < 15000 && (r == -EBUSY || r == -ENOSPC); i++) {
		r = peer_save(p, 1, 1);
		if (r != 0)
			usleep(1000);
	}
	return r;
}

static bool can_map(int fd, uint64_t bytes, int protection)
{
	void *at = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);

	if (at == MAP_FAILED)
		return false;
	munmap(at, bytes);
	return true;
}

/* Return true if a read-only mapping can be made writable. */
static bool can_make_writable(int fd, uint64_t bytes)
{
	void *at = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	bool can;

	EXPECT(at != MAP_FAILED);
	can = mprotect(at, bytes, PROT_READ | PROT_WRITE) == 0;
	munmap(at, bytes);
	return can;
}

/* Return true if the file can be opened for writing by its name in /proc, and
 * then mapped. */
static bool can_open_and_map(int fd, uint64_t bytes)
{
	char path[64];
	bool can;
	int again;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, O_RDWR | O_CLOEXEC);
	if (again < 0)
		return false;
	can = can_map(again, bytes, PROT_READ | PROT_WRITE);
	close(again);
	return can;
}

/* Acquire block 1 of "s", and return the descriptor of its segment. */
static int take_segment(struct peer *p, uint64_t *ret_bytes)
{
	uint64_t tag = peer_send_acquire(p, 1, 1, 0, 0);
	int fd = -1;

	EXPECT(tag != 0);
	while (fd < 0) {
		EXPECT(peer_receive(p, PEER_WAIT_MS) > 0);
		if (PEER_HEADER(p)->type != WIRE_SEGMENT)
			continue;
		*ret_bytes = PEER_ITEMS(p, struct wire_segment)->bytes;
		fd = p->in_fd;
		p->in_fd = -1;
	}
	return fd;
}

static void begin(struct peer *p, const char *path)
{
	EXPECT(peer_connect(p, path));
	EXPECT(peer_hello(p) == 0);
}

/* Check that no client can change the segment's size. */
static void expect_fixed(int fd, uint64_t bytes)
{
	EXPECT(can_map(fd, bytes, PROT_READ));
	EXPECT(ftruncate(fd, 0) < 0);
	EXPECT(ftruncate(fd, (off_t)bytes * 2) < 0);
}

static void expect_read_only(int fd, uint64_t bytes)
{
	expect_fixed(fd, bytes);
	EXPECT(!can_map(fd, bytes, PROT_READ | PROT_WRITE));
	EXPECT(!can_make_writable(fd, bytes));
	EXPECT(!can_open_and_map(fd, bytes));
	EXPECT(pwrite(fd, "x", 1, 0) < 0);
}

/* Act as a client of another user, whom the space's owner allows to read. */
static void be_stranger(const char *path)
{
	struct peer p;
	uint64_t bytes;
	int fd;

	EXPECT(setgid(STRANGER) == 0 && setuid(STRANGER) == 0);
	/* Set the flag that execve(2) would set: the process may then open its
	 * own /proc/self/fd. */
	EXPECT(prctl(PR_SET_DUMPABLE, 1) == 0);
	begin(&p, path);
	EXPECT(peer_space(&p, "s", "", 0, 0) == 0);
	fd = take_segment(&p, &bytes);
	expect_read_only(fd, bytes);
	_exit(0);
}

static void be_owner(const char *path, bool writable)
{
	struct peer p;
	uint64_t bytes;
	int fd;

	begin(&p, path);
	EXPECT(peer_space(&p, "s", "", 0, 0) == 0);
	fd = take_segment(&p, &bytes);
	if (!writable) {
		expect_read_only(fd, bytes);
		_exit(0);
	}
	expect_fixed(fd, bytes);
	EXPECT(can_make_writable(fd, bytes));
	_exit(0);
}

static void save_one(const char *path)
{
	struct peer p;

	assert_true(peer_connect(&p, path));
	assert_int_equal(peer_hello(&p), 0);
	assert_int_equal(peer_space(&p, "s", LAYOUT, WIRE_SPACE_CREATE, 0755),
			 0);
	assert_int_equal(peer_staging(&p, 1 << 20), 0);
	assert_int_equal(save_a_block(&p), 0);
	peer_close(&p);
}

static void world_of(struct world *w, const char *options)
{
	memset(w, 0, sizeof(*w));
	w->options = options;
	strcpy(w->dir, "/tmp/kvfs-world-XXXXXX");
	assert_non_null(mkdtemp(w->dir));
	assert_int_equal(chmod(w->dir, 0755), 0);
	snprintf(w->store, sizeof(w->store), "%s/store", w->dir);
	snprintf(w->path, sizeof(w->path), "%s/control", w->dir);
	world_start_daemon(w);
}

static int end_of(pid_t child)
{
	int status = -1;

	waitpid(child, &status, 0);
	return status;
}

static void try_both(const char *options, bool writable)
{
	struct world w;
	char command[128];
	pid_t child;

	world_of(&w, options);
	save_one(w.path);
	child = fork();
	if (child == 0)
		be_owner(w.path, writable);
	assert_int_equal(end_of(child), 0);
	child = fork();
	if (child == 0 && geteuid() == 0)
		be_stranger(w.path);
	else if (child == 0)
		_exit(0);
	assert_int_equal(end_of(child), 0);
	world_stop_daemon(&w, SIGTERM);
	snprintf(command, sizeof(command), "rm -rf %s", w.dir);
	assert_int_equal(system(command), 0);
}

static void a_sealed_arena_is_written_by_nobody(void **state)
{
	(void)state;
	try_both("dram=32M,ssd=0,segment=8M,hugepages=off,scrub=0,mkdir=all",
		 false);
}

static void with_arena_rw_only_the_owner_can_make_it_writable(void **state)
{
	(void)state;
	try_both("dram=32M,ssd=0,segment=8M,hugepages=off,scrub=0,mkdir=all,"
		 "arena=rw",
		 true);
}

/* ---- arena=auto ---- */

#define AUTO "dram=128M,ssd=0,segment=8M,hugepages=off,scrub=0,mkdir=all"

struct owner {
	const char *name;
	uint32_t uid, mode;
	bool asks;
};

static bool registers(struct peer *p)
{
	return peer_raw(p, &(struct wire_header){.type = WIRE_REGISTERS},
			sizeof(struct wire_header), -1, 0);
}

static void begin_as(struct peer *p, const char *path, const struct owner *o)
{
	EXPECT(setgid(o->uid) == 0 && setuid(o->uid) == 0);
	EXPECT(prctl(PR_SET_DUMPABLE, 1) == 0);
	EXPECT(peer_connect(p, path));
	EXPECT(peer_hello(p) == 0);
	if (o->asks)
		EXPECT(registers(p));
	EXPECT(peer_space(p, o->name, LAYOUT, WIRE_SPACE_CREATE, o->mode) == 0);
	EXPECT(peer_staging(p, 1 << 20) == 0);
}

/* Save a block, and check the descriptor of its segment. */
static void be(const char *path, const struct owner *o, bool writable)
{
	struct peer p;
	uint64_t bytes;
	int fd;

	begin_as(&p, path, o);
	EXPECT(save_a_block(&p) == 0);
	fd = take_segment(&p, &bytes);
	if (!writable) {
		expect_read_only(fd, bytes);
		_exit(0);
	}
	expect_fixed(fd, bytes);
	EXPECT(can_make_writable(fd, bytes));
	_exit(0);
}

/* As root, read another user's space: the descriptor cannot be made writable. */
static void be_root(const char *path)
{
	struct peer p;
	uint64_t bytes;
	int fd;

	begin(&p, path);
	EXPECT(peer_space(&p, "asks", "", 0, 0) == 0);
	fd = take_segment(&p, &bytes);
	EXPECT(!can_make_writable(fd, bytes));
	_exit(0);
}

static void
with_arena_auto_only_who_asks_for_what_is_his_alone_can(void **state)
{
	static const struct {
		struct owner owner;
		bool writable;
	} all[] = {
		{{"root", 0, 0700, true}, false},
		{{"silent", 1001, 0700, false}, false},
		{{"world", 1003, 0705, true}, false},
		{{"group", 1003, 0750, true}, false},
		{{"asks", 1003, 0700, true}, true},
		{{"other", 1004, 0700, false}, false},
	};
	struct world w;
	char command[128];
	pid_t child;

	(void)state;
	if (geteuid() != 0)
		skip();
	world_of(&w, AUTO);
	for (size_t i = 0; i < KV_ARRAY_LEN(all); i++) {
		child = fork();
		if (child == 0)
			be(w.path, &all[i].owner, all[i].writable);
		if (end_of(child) != 0)
			fail_msg("as %s", all[i].owner.name);
	}
	child = fork();
	if (child == 0)
		be_root(w.path);
	assert_int_equal(end_of(child), 0);
	world_stop_daemon(&w, SIGTERM);
	snprintf(command, sizeof(command), "rm -rf %s", w.dir);
	assert_int_equal(system(command), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_sealed_arena_is_written_by_nobody),
		cmocka_unit_test(
			with_arena_rw_only_the_owner_can_make_it_writable),
		cmocka_unit_test(
			with_arena_auto_only_who_asks_for_what_is_his_alone_can),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
