/* SPDX-License-Identifier: Apache-2.0 */
/* Sessions: without a daemon, with a daemon that restarts, across a fork. */
#include <dirent.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "kernels/session/session.h"
#include "tests/kernels/world.h"

/* ThreadSanitizer cannot follow a child of a process with threads that starts
 * threads of its own. */
#ifdef __SANITIZE_THREAD__
#define CHILD_MAY_OPEN false
#else
#define CHILD_MAY_OPEN true
#endif

static void paths_that_cannot_be_are_refused(void **state)
{
	kvfs_session *session;
	char *longer = malloc(5000);

	(void)state;
	memset(longer, 'a', 4999);
	longer[4999] = '\0';
	assert_int_equal(kvfs_open(NULL, &session), -EINVAL);
	assert_int_equal(kvfs_open("", &session), -EINVAL);
	assert_int_equal(kvfs_open("/x", NULL), -EINVAL);
	assert_int_equal(kvfs_open(longer, &session), -EINVAL);
	free(longer);
}

static void a_null_handle_is_einval(void **state)
{
	(void)state;
	assert_int_equal(kvfs_fd(NULL), -EINVAL);
	assert_int_equal(kvfs_process(NULL), -EINVAL);
	assert_int_equal(kvfs_connected(NULL), -EINVAL);
	kvfs_close(NULL);
}

static void without_a_daemon_everything_is_a_miss(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0);
	int64_t page = 0;
	kvfs_session *session;
	kvfs_space *space, *none;
	kvfs_query query;
	kvfs_lease *lease;
	kvfs_pool *pool;
	kvfs_xfer *xfer;
	kvfs_view views[] = {
		{"k", w->memory, PAYLOAD, TENSOR, 1, 0},
		{"v", w->memory + TENSOR, PAYLOAD, TENSOR, 1, 0},
	};
	kvfs_pool_desc desc = {.size = sizeof(desc),
			       .device = "host",
			       .views = views,
			       .n_views = 2,
			       .pages = 4,
			       .pages_per_block = 1};

	assert_int_equal(kvfs_open("/nonexistent/control", &session), 0);
	assert_int_equal(kvfs_connected(session), 0);
	assert_int_equal(kvfs_space_open(session, "s", NULL, 0, &none),
			 -ENOTCONN);
	assert_int_equal(kvfs_space_open(session, "s", WORLD_LAYOUT,
					 KVFS_CREATE, &space),
			 0);
	query = (kvfs_query){space, &key, 1};
	assert_int_equal(kvfs_match(&query, 1), 0);
	assert_int_equal(kvfs_acquire(&query, 1, NULL, &lease), 0);
	assert_int_equal(kvfs_lease_wait(lease, KVFS_FOREVER), 0);
	assert_int_equal(kvfs_lease_status(lease, 0), -ENOTCONN);
	desc.space = space;
	assert_int_equal(kvfs_pool_register(session, &desc, &pool), 0);
	assert_int_equal(kvfs_load(pool, lease, 1, &page, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, KVFS_FOREVER), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -ENOTCONN);
	kvfs_xfer_free(xfer);
	kvfs_release(lease);
	assert_int_equal(
		kvfs_save(pool, space, &key, NULL, 1, &page, NULL, &xfer), 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, KVFS_FOREVER), 0);
	assert_int_equal(kvfs_xfer_status(xfer, 0), -ENOTCONN);
	kvfs_xfer_free(xfer);
	kvfs_pool_close(pool);
	kvfs_space_close(space);
	kvfs_close(session);
}

static void a_daemon_that_comes_later_is_found(void **state)
{
	struct world *w = *state;
	kvfs_key key = world_key(0);
	kvfs_session *session;
	kvfs_space *space;
	kvfs_query query;
	uint8_t s;

	world_save(w, 1);
	world_stop_daemon(w, SIGTERM);
	assert_int_equal(kvfs_open(w->path, &session), 0);
	assert_int_equal(kvfs_connected(session), 0);
	assert_int_equal(kvfs_space_open(session, w->space_name, WORLD_LAYOUT,
					 0, &space),
			 0);
	world_start_daemon(w);
	world_wait_connected(session, 1);
	query = (kvfs_query){space, &key, 1};
	assert_int_equal(kvfs_probe(&query, 1, &s), 1);
	kvfs_space_close(space);
	kvfs_close(session);
	world_wait_connected(w->session, 1);
}

static void a_mount_point_leads_to_the_socket(void **state)
{
	struct world *w = *state;
	char dir[120], link[160];
	kvfs_session *session;

	snprintf(dir, sizeof(dir), "%s/mount/.kvfs", w->dir);
	snprintf(link, sizeof(link), "mkdir -p %s", dir);
	assert_int_equal(system(link), 0);
	snprintf(link, sizeof(link), "%s/control", dir);
	assert_int_equal(symlink(w->path, link), 0);
	*strstr(dir, "/.kvfs") = '\0';
	assert_int_equal(kvfs_open(dir, &session), 0);
	assert_int_equal(kvfs_connected(session), 1);
	kvfs_close(session);
}

static void saves_under_way_end_with_the_daemon_and_later_ones_work(void **s)
{
	struct world *w = *s;
	kvfs_key keys[PAGES];
	int64_t pages[PAGES];
	kvfs_xfer *xfer;
	size_t i;
	int status;

	world_chain(0, 200, keys, pages);
	assert_int_equal(kvfs_save(w->pool, w->space, keys, NULL, 200, pages,
				   NULL, &xfer),
			 0);
	world_stop_daemon(w, SIGKILL);
	assert_true(kvfs_xfer_wait(xfer, KVFS_SEALED, 5 * SECOND) >= 0);
	for (i = 0; i < 200; i++) {
		status = kvfs_xfer_status(xfer, i);
		assert_true(status == 0 || status == -ENOTCONN);
	}
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_DURABLE, 5 * SECOND), 0);
	kvfs_xfer_free(xfer);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
	world_save(w, 3);
	kvfs_release(world_acquire(w, 3, 3));
}

/* Begin transfers and see them end by poll(2), without a call that waits. */
static void a_descriptor_tells_of_what_has_completed(void **state)
{
	struct world *w = *state;
	kvfs_key keys[30];
	int64_t pages[30];
	struct pollfd fd = {.fd = kvfs_fd(w->session), .events = POLLIN};
	kvfs_xfer *xfer;
	int i, n = 0;

	assert_true(fd.fd >= 0);
	kvfs_process(w->session);
	assert_int_equal(poll(&fd, 1, 0), 0);
	world_chain(0, 30, keys, pages);
	assert_int_equal(kvfs_save(w->pool, w->space, keys, NULL, 30, pages,
				   NULL, &xfer),
			 0);
	for (i = 0; i < 3000 && !kvfs_xfer_poll(xfer, KVFS_SEALED); i++) {
		assert_int_equal(poll(&fd, 1, 10000), 1);
		n += kvfs_process(w->session);
	}
	assert_int_equal(kvfs_xfer_poll(xfer, KVFS_SEALED), 1);
	n += kvfs_process(w->session);
	assert_true(n > 0);
	assert_int_equal(poll(&fd, 1, 0), 0);
	assert_int_equal(kvfs_process(w->session), 0);
	kvfs_xfer_free(xfer);
}

/* Check the generation number of the connection, and whether the connection is
 * live. */
static void assert_connection(struct world *w, int live, uint64_t generation)
{
	uint64_t n = 99;

	assert_int_equal(kvfs_connection(w->session, &n), live);
	assert_int_equal(n, generation);
	assert_int_equal(kvfs_connection(w->session, NULL), live);
}

static void a_descriptor_tells_of_a_daemon_that_goes_and_comes(void **state)
{
	struct world *w = *state;
	struct pollfd fd = {.fd = kvfs_fd(w->session), .events = POLLIN};

	/* A daemon found in kvfs_open is not reported as an event. */
	assert_int_equal(poll(&fd, 1, 0), 0);
	assert_connection(w, 1, 1);
	world_stop_daemon(w, SIGKILL);
	assert_int_equal(poll(&fd, 1, 20000), 1);
	assert_connection(w, 0, 1);
	assert_int_equal(kvfs_process(w->session), 0);
	assert_int_equal(poll(&fd, 1, 0), 0);
	world_start_daemon(w);
	assert_int_equal(poll(&fd, 1, 20000), 1);
	assert_connection(w, 1, 2);
	assert_int_equal(kvfs_process(w->session), 0);
	assert_int_equal(poll(&fd, 1, 0), 0);
	/* A restart of the daemon between two calls changes the connection's
	 * number. */
	world_stop_daemon(w, SIGKILL);
	world_start_daemon(w);
	world_wait_connected(w->session, 1);
	assert_connection(w, 1, 3);
	assert_int_equal(poll(&fd, 1, 0), 1);
	assert_int_equal(kvfs_connection(NULL, NULL), -EINVAL);
}

static void starting_work_does_not_wait_for_a_stopped_daemon(void **state)
{
	struct world *w = *state;
	kvfs_key keys[200];
	int64_t pages[200];
	kvfs_query query = {w->space, keys, 200};
	uint64_t before;
	kvfs_lease *lease;
	kvfs_xfer *load, *save, *flush;
	int i;

	world_chain(0, 200, keys, pages);
	world_freeze(w);
	before = kv_now_ns();
	for (i = 0; i < 200; i++) {
		assert_int_equal(kvfs_acquire(&query, 1,
					      KVFS_OPTS(.deadline = SECOND),
					      &lease),
				 0);
		kvfs_release(lease);
	}
	assert_int_equal(
		kvfs_acquire(&query, 1, KVFS_OPTS(.deadline = SECOND), &lease),
		0);
	assert_int_equal(kvfs_load(w->pool, lease, 200, pages, NULL, &load), 0);
	assert_int_equal(kvfs_save(w->pool, w->space, keys, NULL, 200, pages,
				   NULL, &save),
			 0);
	assert_int_equal(kvfs_flush(w->space, KVFS_DURABLE, NULL, &flush), 0);
	assert_true(kv_now_ns() - before < 20 * SECOND);
	kvfs_release(lease);
	world_thaw(w);
	assert_true(kvfs_xfer_wait(load, KVFS_COPIED, 10 * SECOND) >= 0);
	assert_int_equal(kvfs_xfer_wait(save, KVFS_SEALED, 20 * SECOND), 200);
	assert_int_equal(kvfs_xfer_wait(flush, KVFS_DURABLE, 20 * SECOND), 1);
	kvfs_xfer_free(load);
	kvfs_xfer_free(save);
	kvfs_xfer_free(flush);
}

static int in_the_child(struct world *w, kvfs_lease *lease, kvfs_xfer *xfer)
{
	kvfs_key key = world_key(0);
	kvfs_query query = {w->space, &key, 1};
	int64_t page = 0;
	uint8_t s;
	kvfs_xfer *other;
	char *text;

	return kvfs_connected(w->session) == -EBADF &&
	       kvfs_fd(w->session) == -EBADF &&
	       kvfs_probe(&query, 1, &s) == -EBADF &&
	       kvfs_stats(w->session, &text) == -EBADF &&
	       kvfs_lease_status(lease, 0) == -EBADF &&
	       kvfs_lease_data(lease, 0, NULL) == NULL &&
	       kvfs_xfer_poll(xfer, KVFS_COPIED) == -EBADF &&
	       kvfs_load(w->pool, lease, 1, &page, NULL, &other) == -EBADF &&
	       kvfs_save(w->pool, w->space, &key, NULL, 1, &page, NULL,
			 &other) == -EBADF &&
	       kvfs_space_layout(w->space) == NULL;
}

/* In a forked child: return 0 if the inherited handles are dead and a new
 * session works. */
static int child(struct world *w, kvfs_lease *lease, kvfs_xfer *xfer)
{
	kvfs_session *own;

	if (!in_the_child(w, lease, xfer))
		return 1;
	kvfs_release(lease);
	kvfs_xfer_free(xfer);
	kvfs_pool_close(w->pool);
	kvfs_space_close(w->space);
	kvfs_close(w->session);
	if (!CHILD_MAY_OPEN)
		return 0;
	if (kvfs_open(w->path, &own) != 0)
		return 2;
	if (kvfs_connected(own) != 1)
		return 3;
	kvfs_close(own);
	return 0;
}

static void handles_are_dead_in_a_child_and_alive_in_the_parent(void **state)
{
	struct world *w = *state;
	int64_t page = 3;
	kvfs_lease *lease;
	kvfs_xfer *xfer;
	int status = -1;
	pid_t pid;

	world_save(w, 1);
	lease = world_acquire(w, 1, 1);
	assert_int_equal(kvfs_load(w->pool, lease, 1, &page, NULL, &xfer), 0);
	pid = fork();
	if (pid == 0)
		_exit(child(w, lease, xfer));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(kvfs_xfer_wait(xfer, KVFS_COPIED, SECOND), 1);
	assert_true(world_page_is(w, 3, 0));
	assert_int_equal(kvfs_connected(w->session), 1);
	kvfs_xfer_free(xfer);
	kvfs_release(lease);
}

/* A forked child does not keep the parent's connections open. */
static void a_child_has_none_of_the_parents_connections(void **state)
{
	struct world *w = *state;
	int status = -1;
	pid_t pid;

	(void)w;
	pid = fork();
	if (pid == 0) {
		char path[64], target[128];
		int fd, sockets = 0;
		ssize_t n;

		for (fd = 3; fd < 100; fd++) {
			snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
			n = readlink(path, target, sizeof(target));
			sockets += n > 7 && !memcmp(target, "socket:", 7);
		}
		_exit(sockets);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static int open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int n = 0;

	while (readdir(dir) != NULL)
		n++;
	closedir(dir);
	return n;
}

static void a_session_leaves_no_descriptor_behind(void **state)
{
	struct world *w = *state;
	kvfs_session *session;
	kvfs_space *space;
	int i, before;

	/* wait, because making the staging memory opens and closes
	 * descriptors */
	world_wait_staged(w);
	before = open_fds();
	for (i = 0; i < 20; i++) {
		assert_int_equal(kvfs_open(w->path, &session), 0);
		assert_true(kvfs_fd(session) >= 0);
		assert_int_equal(kvfs_space_open(session, w->space_name, NULL,
						 0, &space),
				 0);
		kvfs_space_close(space);
		kvfs_close(session);
	}
	assert_int_equal(open_fds(), before);
}

static void *hold_lock(void *arg)
{
	kvfs_session *session = arg;

	pthread_mutex_lock(&session->lock);
	pause();
	return NULL;
}

/* Return whether a call that needs the session's lock aborts the process if the
 * caller does not hold the lock.  @held: another thread holds the lock. */
static bool a_call_without_the_lock_aborts(kvfs_session *session, bool held)
{
	pthread_t thread;
	pid_t child = fork();
	int status;

	if (child == 0) {
		fclose(stderr);
		if (held) {
			pthread_create(&thread, NULL, hold_lock, session);
			while (pthread_mutex_trylock(&session->lock) == 0) {
				pthread_mutex_unlock(&session->lock);
				usleep(1000);
			}
		}
		kv_session_completed_locked(session);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void a_call_that_needs_the_lock_asserts_that_its_caller_has_it(void **s)
{
	kvfs_session *session;

	(void)s;
	if (!CHILD_MAY_OPEN)
		skip();
	assert_int_equal(kvfs_open("/nonexistent/control", &session), 0);
	assert_true(a_call_without_the_lock_aborts(session, false));
	assert_true(a_call_without_the_lock_aborts(session, true));
	kvfs_close(session);
}

#define test(name) \
	cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)

int main(void)
{
	const struct CMUnitTest tests[] = {
		test(paths_that_cannot_be_are_refused),
		test(a_null_handle_is_einval),
		test(without_a_daemon_everything_is_a_miss),
		test(a_daemon_that_comes_later_is_found),
		test(a_mount_point_leads_to_the_socket),
		test(saves_under_way_end_with_the_daemon_and_later_ones_work),
		test(a_descriptor_tells_of_what_has_completed),
		test(a_descriptor_tells_of_a_daemon_that_goes_and_comes),
		test(starting_work_does_not_wait_for_a_stopped_daemon),
		test(handles_are_dead_in_a_child_and_alive_in_the_parent),
		test(a_child_has_none_of_the_parents_connections),
		test(a_session_leaves_no_descriptor_behind),
		test(a_call_that_needs_the_lock_asserts_that_its_caller_has_it),
	};

	return cmocka_run_group_tests(tests, world_group_setup,
				      world_group_teardown);
}
