/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_control_death.c - clients in processes of their own: killed with leases and saves
 * in flight, survived by a child, or of another user.
 *
 * OWNS      a daemon a test and the processes it starts: this program again, with an
 *           argument that names their role.
 *
 * LOCKING   none.
 */
#include <grp.h>
#include <signal.h>
#include <sys/wait.h>

#include "cache/core/core.h"
#include "tests/fs/daemon.h"

static struct daemon d;
static struct peer good;

enum { STRANGER = 65534 };

#define DAEMON_NAMED                                              \
	"{\"fingerprint\":\"ab12\",\"tensors\":[{\"name\":\"k\"," \
	"\"dtype\":\"U8\",\"shape\":[65536]}]}"

/* ---- roles of the client processes ---- */

#define EXPECT(condition)                                          \
	do {                                                       \
		if (!(condition)) {                                \
			fprintf(stderr, "line %d: %s\n", __LINE__, \
				#condition);                       \
			return 1;                                  \
		}                                                  \
	} while (0)

static int ready(void)
{
	return write(STDOUT_FILENO, "+", 1) == 1 ? 0 : 1;
}

/* Save and lease blocks 1 to 4, reserve 5 to 8, and acquire 9, which no client
 * saves. */
static int load_up(struct peer *p, const char *path)
{
	EXPECT(peer_connect(p, path));
	EXPECT(peer_hello(p) == 0);
	EXPECT(peer_space(p, "s", "", 0, 0) == 0);
	EXPECT(peer_staging(p, 16 * DAEMON_PAYLOAD) == 0);
	EXPECT(peer_save(p, 1, 4) == 0);
	EXPECT(peer_acquire(p, 1, 4) == 4);
	EXPECT(peer_do(p, WIRE_RESERVE, 5, 5) == 0);
	EXPECT(peer_send_acquire(p, 9, 1, WIRE_WAIT_SAVING, 0));
	EXPECT(peer_probe(p, 9) == WIRE_SAVING);
	return 0;
}

static int be_holder(const char *path)
{
	struct peer p;

	EXPECT(load_up(&p, path) == 0);
	EXPECT(ready() == 0);
	pause();
	return 0;
}

/* Save as fast as possible until killed. */
static int be_saver(const char *path)
{
	struct peer p;

	EXPECT(peer_connect(&p, path));
	EXPECT(peer_hello(&p) == 0);
	EXPECT(peer_space(&p, "s", "", 0, 0) == 0);
	EXPECT(peer_staging(&p, 16 * DAEMON_PAYLOAD) == 0);
	EXPECT(ready() == 0);
	for (uint32_t i = 1;; i += 16) {
		(void)peer_do(&p, WIRE_RESERVE, i, 16);
		(void)peer_saved(&p, peer_send_saves(&p, i, 16));
		(void)peer_acquire(&p, i, 16);
		if (i % 64 == 1)
			(void)peer_do(&p, WIRE_EVICT, i, 16);
	}
}

/* Make a child that outlives this process and has copies of all its
 * descriptors, so that the connection stays open.  When the test says so, send a
 * message that is too short, and exit at once. */
static int be_parent(const char *path)
{
	struct peer p;
	pid_t child;
	char go;

	EXPECT(load_up(&p, path) == 0);
	child = fork();
	EXPECT(child >= 0);
	if (child == 0) {
		sleep(20);
		_exit(0);
	}
	/* The test kills the child by this pid. */
	EXPECT(write(STDOUT_FILENO, &child, sizeof(child)) == sizeof(child));
	EXPECT(read(STDIN_FILENO, &go, 1) == 1);
	return peer_raw(&p, &go, 1, -1, 0) ? 0 : 1;
}

/* When the test says so, release all leases and reservations, and exit at
 * once. */
static int be_leaver(const char *path)
{
	uint64_t tags[2];
	struct peer p;
	char go;

	EXPECT(peer_connect(&p, path));
	EXPECT(peer_hello(&p) == 0);
	EXPECT(peer_space(&p, "s", "", 0, 0) == 0);
	for (uint32_t i = 0; i < 2; i++) {
		tags[i] = peer_send_acquire(&p, i + 1, 1, 0, 0);
		EXPECT(peer_acquired(&p, tags[i]) == 1);
	}
	EXPECT(ready() == 0);
	EXPECT(read(STDIN_FILENO, &go, 1) == 1);
	return peer_release(&p, tags[0]) && peer_release(&p, tags[1]) ? 0 : 1;
}

/* Check that requests for another user's space @id fail like those for an
 * unused id. */
static bool is_none(struct peer *p, uint32_t id)
{
	const struct wire_header pin = {.type = WIRE_PIN, .arg = 1};
	const struct wire_header clear = {.type = WIRE_CLEAR};
	const struct wire_header remove = {.type = WIRE_SPACE_REMOVE};
	const struct wire_header changes = {.type = WIRE_CHANGES, .count = 1};
	const struct wire_list asked = {.max = 1};

	p->space = id;
	return peer_probe(p, 1) == WIRE_ABSENT && peer_acquire(p, 1, 1) == 0 &&
	       PEER_ITEMS(p, struct wire_place)->status == -ENOENT &&
	       peer_do(p, WIRE_RESERVE, 2, 1) == -ENOENT &&
	       peer_do(p, WIRE_EVICT, 1, 1) == -ENOENT &&
	       peer_do(p, WIRE_EVICT, 99, 1) == -ENOENT &&
	       peer_each(p, &pin, 1, 1) == -ENOENT &&
	       peer_do(p, WIRE_FLUSH, 1, 1) == -ENOENT &&
	       peer_call(p, &clear, NULL, 0, -1) == -ENOENT &&
	       peer_call(p, &remove, NULL, 0, -1) == -ENOENT &&
	       peer_call(p, &changes, &asked, sizeof(asked), -1) == -ENOENT &&
	       peer_saved(p, peer_send_saves(p, 1, 1)) == -ENOENT;
}

static int be_stranger(const char *path)
{
	struct wire_space *space;
	struct peer p;

	EXPECT(setgroups(0, NULL) == 0);
	EXPECT(setgid(STRANGER) == 0 && setuid(STRANGER) == 0);
	EXPECT(peer_connect(&p, path));
	EXPECT(peer_hello(&p) == 0);
	EXPECT(peer_staging(&p, 16 * DAEMON_PAYLOAD) == 0);

	/* The space "s" has mode 0700: even with a guessed id it cannot be used. */
	EXPECT(peer_space(&p, "s", "", 0, 0) == -EACCES);
	EXPECT(peer_space(&p, "s", DAEMON_LAYOUT, WIRE_SPACE_CREATE, 0) ==
	       -EACCES);
	EXPECT(is_none(&p, 1));
	EXPECT(is_none(&p, 1000000));
	EXPECT(is_none(&p, 0));

	/* The space "open" may be read but not written. */
	EXPECT(peer_space(&p, "open", "", 0, 0) == 0);
	space = PEER_ITEMS(&p, struct wire_space);
	EXPECT(space->writable == 0);
	EXPECT(peer_acquire(&p, 1, 1) == 1);
	EXPECT(peer_right(&p, 0, 1));
	EXPECT(peer_do(&p, WIRE_RESERVE, 2, 1) == -EACCES);
	EXPECT(peer_call(&p,
			 &(struct wire_header){.type = WIRE_SAVE,
					       .flags = WIRE_FRESH,
					       .count = 1},
			 &(struct wire_save){.len = 32},
			 sizeof(struct wire_save), -1) == 0);
	EXPECT(PEER_ITEMS(&p, struct wire_status)->status == -EACCES);
	EXPECT(peer_do(&p, WIRE_EVICT, 1, 1) == -EACCES);

	/* Another user has made the space "theirs", which this user can use
	 * only with WIRE_SPACE_SHARED; only spaces of an operator need no such
	 * flag. */
	EXPECT(peer_space(&p, "theirs", DAEMON_LAYOUT, WIRE_SPACE_CREATE,
			  0777) == -EACCES);
	EXPECT(peer_space(&p, "theirs", DAEMON_LAYOUT,
			  WIRE_SPACE_CREATE | WIRE_SPACE_SHARED, 0777) == 0);
	space = PEER_ITEMS(&p, struct wire_space);
	EXPECT(space->uid == STRANGER + 1 && space->gid == STRANGER + 2);
	EXPECT(space->mode == 0777 && space->writable == 1);
	EXPECT(peer_space(&p, "theirs", DAEMON_LAYOUT, 0, 0) == 0);
	EXPECT(peer_space(&p, "named", DAEMON_LAYOUT,
			  WIRE_SPACE_CREATE | WIRE_SPACE_SHARED,
			  0777) == -EEXIST);
	EXPECT(peer_space(&p, "named", DAEMON_NAMED,
			  WIRE_SPACE_CREATE | WIRE_SPACE_SHARED, 0777) == 0);
	EXPECT(peer_space(&p, "open", DAEMON_LAYOUT, WIRE_SPACE_CREATE, 0777) ==
	       0);

	/* The process may make a space of its own: the daemon runs as root, which
	 * lets any user make spaces. */
	EXPECT(peer_space(&p, "own", DAEMON_LAYOUT, WIRE_SPACE_CREATE, 0) == 0);
	EXPECT(peer_save(&p, 1, 1) == 0);
	EXPECT(peer_acquire(&p, 1, 1) == 1);
	return 0;
}

/* Reserve a block in "open", wait until the test has changed the space's mode,
 * and save. */
static int be_writer(const char *path)
{
	struct peer p;
	char go;

	EXPECT(setgroups(0, NULL) == 0);
	EXPECT(setgid(STRANGER) == 0 && setuid(STRANGER) == 0);
	EXPECT(peer_connect(&p, path));
	EXPECT(peer_hello(&p) == 0);
	EXPECT(peer_staging(&p, 16 * DAEMON_PAYLOAD) == 0);
	EXPECT(peer_space(&p, "open", "", 0, 0) == 0);
	EXPECT(peer_do(&p, WIRE_RESERVE, 7, 1) == 0);
	EXPECT(ready() == 0);
	EXPECT(read(STDIN_FILENO, &go, 1) == 1);
	EXPECT(peer_saved(&p, peer_send_saves(&p, 7, 1)) == -ENOENT);
	EXPECT(peer_probe(&p, 1) == WIRE_ABSENT);
	return 0;
}

/* ---- tests ---- */

struct process {
	pid_t pid;
	/* pipes to the standard input and from the standard output of the
	 * process */
	int in, out;
};

static struct process run(const char *role)
{
	int in[2], out[2];
	struct process p;

	assert_int_equal(pipe2(in, O_CLOEXEC), 0);
	assert_int_equal(pipe2(out, O_CLOEXEC), 0);
	p.pid = fork();
	assert_true(p.pid >= 0);
	if (p.pid == 0) {
		dup2(in[0], STDIN_FILENO);
		dup2(out[1], STDOUT_FILENO);
		execl("/proc/self/exe", "peer", role, d.path, NULL);
		_exit(127);
	}
	close(in[0]);
	close(out[1]);
	p.in = in[1];
	p.out = out[0];
	return p;
}

static void wait_until_ready(struct process *p)
{
	char c = 0;

	assert_int_equal(read(p->out, &c, 1), 1);
	assert_int_equal(c, '+');
}

static int end_of(struct process *p)
{
	int status;

	assert_int_equal(waitpid(p->pid, &status, 0), p->pid);
	close(p->in);
	close(p->out);
	return status;
}

static int set_up(void **state)
{
	(void)state;
	daemon_start(&d, 0);
	daemon_peer(&d, &good, 0700);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	peer_close(&good);
	daemon_stop(&d);
	return 0;
}

static void a_killed_client_gives_everything_back(void **state)
{
	struct process p = run("holder");
	uint64_t used;

	(void)state;
	wait_until_ready(&p);
	assert_int_equal(daemon_stats(&d).leases, 4);
	assert_int_equal(daemon_stats(&d).saving, 5);
	assert_int_equal(peer_probe(&good, 5), WIRE_SAVING);
	used = daemon_stats(&d).dram_used;
	kill(p.pid, SIGKILL);
	end_of(&p);
	assert_true(daemon_wait_idle(&d) >= 0);
	assert_int_equal(peer_probe(&good, 5), WIRE_ABSENT);
	assert_int_equal(peer_probe(&good, 1), WIRE_DRAM);
	assert_true(daemon_stats(&d).dram_used < used);
	daemon_wait_connections(&d, 1);
	assert_int_equal(daemon_counts(&d).forced_releases, 4);
	assert_int_equal(daemon_counts(&d).dropped_reservations, 5);
	/* All slots can be filled again, so no slot is lost. */
	assert_int_equal(peer_save(&good, 5, 5), 0);
}

static void clients_killed_at_any_moment_leak_nothing(void **state)
{
	int within_a_second = 0;
	long waited;

	(void)state;
	for (int i = 0; i < 20; i++) {
		struct process p = run("saver");

		wait_until_ready(&p);
		usleep((useconds_t)(i * 1500));
		kill(p.pid, SIGKILL);
		end_of(&p);
		waited = daemon_wait_idle(&d);
		assert_true(waited >= 0);
		within_a_second += waited < 1000;
	}
	/* On a busy machine some clean-ups may take longer than a second. */
	assert_true(within_a_second >= 10);
	assert_int_equal(peer_call(&good,
				   &(struct wire_header){.type = WIRE_CLEAR},
				   NULL, 0, -1),
			 0);
	assert_int_equal(daemon_stats(&d).dram_blocks, 0);
	assert_int_equal(peer_save(&good, 1, 16), 0);
}

/* The test holds the cache's lock, so that the daemon reads at most one message
 * of the process. */
static void a_process_that_has_died_has_given_back_what_it_said(void **state)
{
	struct process p;

	(void)state;
	assert_int_equal(peer_save(&good, 1, 2), 0);
	p = run("leaver");
	wait_until_ready(&p);
	assert_int_equal(daemon_stats(&d).leases, 2);
	kv_lock(d.cache);
	assert_int_equal(write(p.in, "+", 1), 1);
	assert_int_equal(end_of(&p), 0);
	kv_unlock(d.cache);
	assert_true(daemon_wait_idle(&d) >= 0);
	daemon_wait_connections(&d, 1);
	assert_int_equal(daemon_counts(&d).forced_releases, 0);
}

/* Connect a client that leases blocks 1 and 2 by two acquires. */
static void hold_two(struct peer *p, uint64_t tags[2])
{
	daemon_peer(&d, p, 0700);
	for (uint32_t i = 0; i < 2; i++) {
		tags[i] = peer_send_acquire(p, i + 1, 1, 0, 0);
		assert_int_equal(peer_acquired(p, tags[i]), 1);
	}
}

static void release_two_and_leave(struct peer *p, const uint64_t tags[2])
{
	assert_true(peer_release(p, tags[0]) && peer_release(p, tags[1]));
	peer_close(p);
	kv_unlock(d.cache);
	assert_true(daemon_wait_idle(&d) >= 0);
	daemon_wait_connections(&d, 1);
	assert_int_equal(daemon_counts(&d).forced_releases, 0);
}

static void ask(struct peer *p)
{
	struct wire_key key;

	peer_keys(&key, 1, 1);
	assert_true(peer_send(
		p, &(struct wire_header){.type = WIRE_PROBE, .count = 1}, &key,
		sizeof(key), -1));
}

static void who_left_replies_unread_has_given_back_what_it_said(void **state)
{
	struct pollfd reply = {.events = POLLIN};
	uint64_t tags[2];
	struct peer p;

	(void)state;
	assert_int_equal(peer_save(&good, 1, 2), 0);
	hold_two(&p, tags);
	ask(&p);
	reply.fd = p.fd;
	assert_int_equal(poll(&reply, 1, PEER_WAIT_MS), 1);
	kv_lock(d.cache);
	release_two_and_leave(&p, tags);
}

static void who_awaits_no_reply_has_given_back_what_it_said(void **state)
{
	uint64_t tags[2];
	struct peer p;

	(void)state;
	assert_int_equal(peer_save(&good, 1, 2), 0);
	hold_two(&p, tags);
	kv_lock(d.cache);
	ask(&p);
	release_two_and_leave(&p, tags);
}

static void a_child_that_keeps_the_socket_keeps_nothing_else(void **state)
{
	struct process p = run("parent");
	pid_t child;

	(void)state;
	assert_int_equal(read(p.out, &child, sizeof(child)), sizeof(child));
	assert_int_equal(daemon_stats(&d).leases, 4);
	kill(p.pid, SIGKILL);
	end_of(&p);
	assert_true(daemon_wait_idle(&d) >= 0);
	assert_int_equal(kill(child, 0), 0);
	daemon_wait_connections(&d, 1);
	kill(child, SIGKILL);
}

/* The test holds the cache's lock, so that the control thread learns of the death before
 * it reads the message. */
static void a_dead_process_that_is_cut_off_keeps_nothing(void **state)
{
	struct process p = run("parent");
	pid_t child;

	(void)state;
	assert_int_equal(read(p.out, &child, sizeof(child)), sizeof(child));
	kv_lock(d.cache);
	ask(&good);
	usleep(50000);
	assert_int_equal(write(p.in, "+", 1), 1);
	assert_int_equal(end_of(&p), 0);
	kv_unlock(d.cache);
	assert_in_range(daemon_wait_idle(&d), 0, 10000);
	daemon_wait_connections(&d, 1);
	assert_int_equal(daemon_counts(&d).protocol_errors, 1);
	assert_int_equal(kill(child, SIGKILL), 0);
}

/* Make a space of another user to which all users may write. */
static void make_foreign(const char *name, const char *layout)
{
	struct kv_space *space;

	assert_int_equal(kv_space_create(d.cache, name, STRANGER + 1,
					 STRANGER + 2, 0777, &space),
			 0);
	assert_int_equal(
		kv_space_set_layout(d.cache, space, 0, layout, strlen(layout)),
		0);
}

static void another_user_finds_nothing_and_is_refused(void **state)
{
	struct process p;
	struct peer open;

	(void)state;
	if (getuid() != 0)
		skip();
	assert_int_equal(good.space, 1);
	assert_int_equal(peer_save(&good, 1, 1), 0);
	daemon_peer(&d, &open, 0);
	assert_int_equal(peer_space(&open, "open", DAEMON_LAYOUT,
				    WIRE_SPACE_CREATE, 0755),
			 0);
	assert_int_equal(peer_save(&open, 1, 1), 0);
	make_foreign("theirs", DAEMON_LAYOUT);
	make_foreign("named", DAEMON_NAMED);
	p = run("stranger");
	assert_int_equal(end_of(&p), 0);
	/* The stranger's space and blocks belong to the stranger. */
	assert_int_equal(
		kv_space_stat(d.cache, kv_space_find(d.cache, "own")).uid,
		STRANGER);
	peer_close(&open);
}

static void a_mode_changed_later_counts_from_then_on(void **state)
{
	struct process p;
	struct peer open;

	(void)state;
	if (getuid() != 0)
		skip();
	daemon_peer(&d, &open, 0);
	assert_int_equal(peer_space(&open, "open", DAEMON_LAYOUT,
				    WIRE_SPACE_CREATE, 0777),
			 0);
	assert_int_equal(peer_save(&open, 1, 1), 0);
	p = run("writer");
	wait_until_ready(&p);
	assert_int_equal(kv_space_chown(d.cache, kv_space_find(d.cache, "open"),
					0, 0, 0700),
			 0);
	assert_int_equal(write(p.in, "+", 1), 1);
	assert_int_equal(end_of(&p), 0);
	peer_close(&open);
}

#define DEATH_TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*be)(const char *path);
	} roles[] = {
		{"holder", be_holder}, {"saver", be_saver},
		{"parent", be_parent}, {"stranger", be_stranger},
		{"writer", be_writer}, {"leaver", be_leaver},
	};
	const struct CMUnitTest tests[] = {
		DEATH_TEST(a_killed_client_gives_everything_back),
		DEATH_TEST(clients_killed_at_any_moment_leak_nothing),
		DEATH_TEST(a_process_that_has_died_has_given_back_what_it_said),
		DEATH_TEST(who_left_replies_unread_has_given_back_what_it_said),
		DEATH_TEST(who_awaits_no_reply_has_given_back_what_it_said),
		DEATH_TEST(a_child_that_keeps_the_socket_keeps_nothing_else),
		DEATH_TEST(a_dead_process_that_is_cut_off_keeps_nothing),
		DEATH_TEST(another_user_finds_nothing_and_is_refused),
		DEATH_TEST(a_mode_changed_later_counts_from_then_on),
	};

	for (size_t i = 0; argc > 2 && i < KV_ARRAY_LEN(roles); i++)
		if (strcmp(argv[1], roles[i].name) == 0)
			return roles[i].be(argv[2]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
