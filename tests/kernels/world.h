/* SPDX-License-Identifier: Apache-2.0 */
/*
 * world.h - a real daemon in a directory of its own, and a client with a space
 * and a pool.
 *
 * The daemon is the program "$B/kvfs", without a mount; it ends with the test.
 */
#ifndef KV_TESTS_KERNELS_WORLD_H
#define KV_TESTS_KERNELS_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "kernels/kvfs.h"
#include "common/kv.h"

#define TENSOR 65536u
#define PAYLOAD (2 * TENSOR)
#define WORLD_LAYOUT                                                         \
	"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":[65536]}," \
	"{\"name\":\"v\",\"dtype\":\"U8\",\"shape\":[65536]}],\"tokens\":4}"
#define PAGES 256
#define SECOND 1000000000ull

struct world {
	char dir[64], store[96], path[96];
	const char *options; /* options on the daemon's command line */
	pid_t daemon;	     /* process of the daemon; 0: none */
	unsigned spaces;
	kvfs_session *session;
	kvfs_space *space;
	char space_name[16];
	kvfs_pool *pool;
	/* PAGES pages of PAYLOAD bytes; in each page tensor k, then v */
	uint8_t *memory;
};

/* The library closes a connection after a second without progress, because
 * engines need that.  On a slow machine this limit would fail tests, so it is
 * WORLD_PATIENCE_S here unless the test has frozen the daemon. */
#define WORLD_PATIENCE_S 60
#define WORLD_LINKS 1024

static atomic_bool world_frozen;
/* for each descriptor: whether the library has set a time-out for that
 * socket */
static atomic_bool world_link[WORLD_LINKS];

static inline int world_set_timeout(int fd, int name)
{
	const struct timeval wait = {world_frozen ? 1 : WORLD_PATIENCE_S, 0};

	return (int)syscall(SYS_setsockopt, fd, SOL_SOCKET, name, &wait,
			    sizeof(wait));
}

/* Replace setsockopt(2) of libc, to see and change the time-outs of
 * connections. */
int setsockopt(int fd, int level, int name, const void *value, socklen_t bytes)
{
	if (level != SOL_SOCKET || fd < 0 || fd >= WORLD_LINKS ||
	    (name != SO_RCVTIMEO && name != SO_SNDTIMEO))
		return (int)syscall(SYS_setsockopt, fd, level, name, value,
				    bytes);
	world_link[fd] = true;
	return world_set_timeout(fd, name);
}

/* Set the time-out of all open connections to the daemon. */
static inline void world_set_frozen(bool frozen)
{
	world_frozen = frozen;
	for (int fd = 0; fd < WORLD_LINKS; fd++)
		if (world_link[fd]) {
			world_set_timeout(fd, SO_RCVTIMEO);
			world_set_timeout(fd, SO_SNDTIMEO);
		}
}

static inline void world_exec(const struct world *w)
{
	const char *b = getenv("B");
	char program[256], options[256];
	int null = open("/dev/null", O_RDWR);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(null, 0);
	snprintf(program, sizeof(program), "%s/kvfs", b ? b : "build");
	snprintf(options, sizeof(options), "%s,control=%s", w->options,
		 w->path);
	execl(program, "kvfs", "-f", "-o", options, w->store, "none", NULL);
	_exit(127);
}

/* Return whether a daemon accepts connections at @path. */
static inline bool world_answers(const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), r;

	strncpy(a.sun_path, path, sizeof(a.sun_path) - 1);
	r = connect(fd, (struct sockaddr *)&a, sizeof(a));
	close(fd);
	return r == 0;
}

static inline void world_start_daemon(struct world *w)
{
	int i;

	w->daemon = fork();
	if (w->daemon == 0)
		world_exec(w);
	for (i = 0; i < 3000 && !world_answers(w->path); i++) {
		if (waitpid(w->daemon, NULL, WNOHANG) != 0) {
			w->daemon = 0;
			fail_msg("the daemon did not start");
		}
		usleep(10000);
	}
	assert_true(i < 3000);
}

/* Stop every thread of the daemon until world_thaw. */
static inline void world_freeze(struct world *w)
{
	int status;

	world_set_frozen(true);
	kill(w->daemon, SIGSTOP);
	assert_int_equal(waitpid(w->daemon, &status, WUNTRACED), w->daemon);
	assert_true(WIFSTOPPED(status));
}

static inline void world_thaw(struct world *w)
{
	kill(w->daemon, SIGCONT);
	world_set_frozen(false);
}

static inline int world_stop_daemon(struct world *w, int signal)
{
	int status = -1;

	if (w->daemon == 0)
		return 0;
	kill(w->daemon, signal);
	world_thaw(w);
	waitpid(w->daemon, &status, 0);
	w->daemon = 0;
	return status;
}

/* Wait until the session has found its daemon, or lost it. */
static inline void world_wait_connected(kvfs_session *session, int connected)
{
	int i;

	for (i = 0; i < 3000 && kvfs_connected(session) != connected; i++)
		usleep(10000);
	assert_int_equal(kvfs_connected(session), connected);
}

static inline int world_begin(void **state, const char *options)
{
	struct world *w = calloc(1, sizeof(*w));

	*state = w;
	w->options = options;
	strcpy(w->dir, "/tmp/kvfs-world-XXXXXX");
	if (mkdtemp(w->dir) == NULL)
		return -1;
	snprintf(w->store, sizeof(w->store), "%s/store", w->dir);
	snprintf(w->path, sizeof(w->path), "%s/control", w->dir);
	world_start_daemon(w);
	return 0;
}

static inline int world_group_setup(void **state)
{
	return world_begin(state, "dram=64M,ssd=256M,segment=8M");
}

static inline int world_group_teardown(void **state)
{
	struct world *w = *state;
	char command[100];

	world_stop_daemon(w, SIGTERM);
	snprintf(command, sizeof(command), "rm -rf %s", w->dir);
	free(w->memory);
	free(w);
	return system(command);
}

static inline kvfs_pool *world_pool(struct world *w, kvfs_space *space)
{
	kvfs_view views[] = {
		{"k", w->memory, PAYLOAD, TENSOR, 1, 0},
		{"v", w->memory + TENSOR, PAYLOAD, TENSOR, 1, 0},
	};
	kvfs_pool_desc desc = {
		.size = sizeof(desc),
		.device = "host",
		.space = space,
		.views = views,
		.n_views = 2,
		.pages = PAGES,
		.pages_per_block = 1,
		.memory = w->memory,
		.memory_bytes = (uint64_t)PAGES * PAYLOAD,
	};
	kvfs_pool *pool;

	assert_int_equal(kvfs_pool_register(w->session, &desc, &pool), 0);
	return pool;
}

/* Open the space; retry if the daemon was just thawed: the library does not ask
 * a frozen daemon again within a second. */
static inline void world_space_open(kvfs_session *session, const char *name,
				    const char *layout, unsigned flags,
				    kvfs_space **ret_space)
{
	int i, r;

	for (i = 0; i < 30; i++) {
		r = kvfs_space_open(session, name, layout, flags, ret_space);
		if (r == 0 && kvfs_space_owner(*ret_space, NULL, NULL) == 0)
			return;
		assert_true(r == 0 || r == -ENOTCONN);
		if (r == 0)
			kvfs_space_close(*ret_space);
		usleep(100000);
	}
	fail_msg("the daemon does not answer");
}

/* Open a session, a new space and a pool; the daemon must run already. */
static inline int world_setup(void **state)
{
	struct world *w = *state;

	if (w->daemon == 0)
		world_start_daemon(w);
	world_thaw(w); /* a test that failed may have left the daemon frozen */
	if (w->memory == NULL)
		w->memory = malloc((size_t)PAGES * PAYLOAD);
	memset(w->memory, 0xee, (size_t)PAGES * PAYLOAD);
	snprintf(w->space_name, sizeof(w->space_name), "s%u", w->spaces++);
	assert_int_equal(kvfs_open(w->path, &w->session), 0);
	world_wait_connected(w->session, 1);
	world_space_open(w->session, w->space_name, WORLD_LAYOUT,
			 KVFS_CREATE | 0700, &w->space);
	w->pool = world_pool(w, w->space);
	return 0;
}

static inline int world_teardown(void **state)
{
	struct world *w = *state;

	kvfs_pool_close(kv_steal(w->pool));
	kvfs_space_close(kv_steal(w->space));
	kvfs_close(kv_steal(w->session));
	return 0;
}

/* Wait for the staging memory that a session makes in the background. */
static inline void world_wait_staged(struct world *w)
{
	struct kvfs_pool_info info = {.size = sizeof(info)};
	int i;

	for (i = 0; i < 3000 && info.bytes_staging < 64u << 20; i++) {
		assert_int_equal(kvfs_pool_info(w->pool, &info), 0);
		usleep(10000);
	}
	assert_true(info.bytes_staging >= 64u << 20);
}

/* ---- blocks with bytes that tell them apart ---- */

static inline uint8_t world_byte(uint32_t block, size_t i)
{
	return (uint8_t)(block * 31 + i * 7 + i / 251 + 1);
}

static inline void world_fill(struct world *w, int64_t page, uint32_t block)
{
	uint8_t *at = w->memory + (size_t)page * PAYLOAD;
	size_t i;

	for (i = 0; i < PAYLOAD; i++)
		at[i] = world_byte(block, i);
}

static inline bool world_is(const uint8_t *at, uint32_t block)
{
	size_t i;

	for (i = 0; i < PAYLOAD; i++)
		if (at[i] != world_byte(block, i))
			return false;
	return true;
}

static inline bool world_page_is(const struct world *w, int64_t page,
				 uint32_t block)
{
	return world_is(w->memory + (size_t)page * PAYLOAD, block);
}

static inline kvfs_key world_key(uint32_t block)
{
	kvfs_key key = {.len = 16};

	memcpy(key.bytes, &block, sizeof(block));
	key.bytes[15] = 1;
	return key;
}

/* Set @keys to blocks @first .. and @pages to 0 .. n - 1. */
static inline void world_chain(uint32_t first, size_t n, kvfs_key *keys,
			       int64_t *pages)
{
	size_t i;

	for (i = 0; i < n; i++) {
		keys[i] = world_key(first + (uint32_t)i);
		pages[i] = (int64_t)i;
	}
}

/* Save pages 0 .. n - 1 as blocks 0 .. n - 1 of this test's space. */
static inline void world_save(struct world *w, size_t n)
{
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_xfer *xfer;
	size_t i;

	world_chain(0, n, keys, pages);
	for (i = 0; i < n; i++)
		world_fill(w, pages[i], (uint32_t)i);
	assert_int_equal(
		kvfs_save(w->pool, w->space, keys, NULL, n, pages, NULL, &xfer),
		0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_SEALED, 20 * SECOND), n);
	kvfs_xfer_free(xfer);
}

static inline kvfs_lease *world_acquire(struct world *w, size_t n, long held)
{
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_query query = {w->space, keys, n};
	kvfs_lease *lease;

	world_chain(0, n, keys, pages);
	assert_int_equal(kvfs_acquire(&query, 1,
				      KVFS_OPTS(.deadline = 10 * SECOND),
				      &lease),
			 0);
	assert_int_equal(kvfs_lease_wait(lease, KVFS_FOREVER), held);
	return lease;
}

/* Send a request and wait for its answer, which comes after the answers to all
 * earlier requests. */
static inline void ask_for_nothing(struct world *w)
{
	kvfs_key absent = world_key(99999);
	kvfs_query query = {w->space, &absent, 1};
	kvfs_lease *lease;

	assert_int_equal(kvfs_acquire(&query, 1, NULL, &lease), 0);
	assert_int_equal(kvfs_lease_wait(lease, 60 * SECOND), 0);
	kvfs_release(lease);
}

#endif
