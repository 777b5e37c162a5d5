/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_gate.c - the gate, which receives descriptors from clients: descriptors
 * of memory reach the daemon, other descriptors are closed by another process,
 * however long that takes.
 *
 * OWNS      the gate, and an epoll descriptor.
 *
 * LOCKING   none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <dirent.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "fs/control/control.h"
#include "fs/control/server.h"
#include "tests/fs/peer.h"

#define UID 1234

static struct kv_gate *gate;
static int epoll_fd;

struct waiter {
	/* must be the first field: its address is cast to this struct */
	struct kv_gate_wait wait;
	struct peer peer;
	int socket; /* the daemon's end of the client's connection */
	unsigned came, lost;
	ssize_t bytes;
	size_t fds;
	bool memory;
	char data[16];
};

static void came(struct kv_gate_wait *wait, const struct kv_gate_message *m)
{
	struct waiter *w = (struct waiter *)wait;

	w->came++;
	w->lost += !m;
	if (!m)
		return;
	w->bytes = m->bytes;
	w->fds = m->fds;
	w->memory = m->fd >= 0 && fcntl(m->fd, F_GET_SEALS) >= 0;
	memcpy(w->data, m->data, KV_MIN((size_t)m->bytes, sizeof(w->data)));
	if (m->fd >= 0)
		kv_gate_dispose(gate, UID, m->fd);
}

static int start(void **state)
{
	(void)state;
	epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	assert_int_equal(kv_gate_start(&gate), 0);
	kv_gate_open(gate, epoll_fd);
	return epoll_fd < 0;
}

static int stop(void **state)
{
	(void)state;
	kv_gate_close(gate);
	kv_gate_stop(gate);
	close(epoll_fd);
	return 0;
}

static void make(struct waiter *w)
{
	int pair[2];

	memset(w, 0, sizeof(*w));
	assert_int_equal(
		socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	w->wait.came = came;
	w->peer.fd = pair[0];
	w->peer.in_fd = -1;
	w->socket = pair[1];
}

static bool turn_within(int ms)
{
	struct epoll_event event;
	struct kv_watch *watch;

	if (epoll_wait(epoll_fd, &event, 1, ms) != 1)
		return false;
	watch = event.data.ptr;
	watch->ready(watch, event.events);
	return true;
}

static bool turn(void)
{
	return turn_within(20000);
}

static void wait_until_idle(void)
{
	while (kv_gate_is_busy(gate))
		assert_true(turn());
}

static void receive(struct waiter *w)
{
	kv_gate_receive(gate, UID, w->socket, &w->wait);
	while (!w->came)
		assert_true(turn());
}

/* Return a TCP socket with unsent data: its last close(2) blocks for two
 * minutes. */
static int lingering(void)
{
	const struct linger linger = {1, 120};
	struct sockaddr_in a = {.sin_family = AF_INET,
				.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);
	static int listener;
	static char data[65536];
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(listener, (struct sockaddr *)&a, len), 0);
	assert_int_equal(listen(listener, 1), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&a, &len), 0);
	assert_int_equal(connect(fd, (struct sockaddr *)&a, len), 0);
	while (send(fd, data, sizeof(data), MSG_DONTWAIT) > 0)
		;
	assert_int_equal(
		setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)),
		0);
	return fd;
}

/* Return the pid of the gate's process that forks one process for each user. */
static int gate_pid(void)
{
	char path[64];
	int pid;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/task/%d/children", getpid());
	f = fopen(path, "re");
	assert_int_equal(fscanf(f, "%d", &pid), 1);
	fclose(f);
	return pid;
}

static void kill_processes(void)
{
	char path[64];
	int pid;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/children", gate_pid(),
		 gate_pid());
	f = fopen(path, "re");
	/* If a process dies while the daemon sends it a descriptor, this test
	 * program closes the descriptor: wait until each process is gone.  A
	 * zombie may have a thread that has not closed the socket yet. */
	while (fscanf(f, "%d", &pid) == 1)
		while (kill(pid, SIGKILL) == 0)
			usleep(1000);
	fclose(f);
}

static void finish(struct waiter *w)
{
	kv_gate_hang_up(gate, UID, w->socket);
	peer_close(&w->peer);
}

static void the_process_that_forks_inherits_no_descriptor(void **state)
{
	struct dirent *entry;
	char path[64];
	int highest = 0;
	DIR *dir;

	(void)state;
	snprintf(path, sizeof(path), "/proc/%d/fd", gate_pid());
	dir = opendir(path);
	while ((entry = readdir(dir)))
		highest = KV_MAX(highest, atoi(entry->d_name));
	closedir(dir);
	assert_int_equal(highest, 3);
}

static void memory_passes_and_other_files_do_not(void **state)
{
	int memory = memfd_create("memory", MFD_CLOEXEC);
	int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	int dir = open("/dev/shm", O_RDONLY | O_CLOEXEC | O_DIRECTORY);
	const struct {
		int fd;
		size_t n;
		bool passes;
	} cases[] = {{memory, 1, true},
		     {file, 1, false},
		     {dir, 1, false},
		     {memory, 2, false},
		     {file, 253, false}};
	struct waiter w;

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(cases); i++) {
		make(&w);
		assert_true(peer_raw(&w.peer, "message", 8, cases[i].fd,
				     cases[i].n));
		receive(&w);
		assert_int_equal(w.bytes, 8);
		assert_string_equal(w.data, "message");
		assert_int_equal(w.fds, cases[i].n);
		assert_int_equal(w.memory, cases[i].passes);
		finish(&w);
		wait_until_idle();
	}
	close(memory);
	close(file);
	close(dir);
}

static void a_socket_without_descriptors_is_closed_at_once(void **state)
{
	struct waiter w;
	char byte;

	(void)state;
	make(&w);
	assert_true(peer_raw(&w.peer, "plain", 6, -1, 0));
	assert_true(peer_raw(&w.peer, "", 0, -1, 0));
	assert_true(peer_raw(&w.peer, "plain", 6, -1, 0));
	kv_gate_hang_up(gate, UID, w.socket);
	assert_false(kv_gate_is_busy(gate));
	assert_int_equal(recv(w.peer.fd, &byte, 1, 0), 0);
	peer_close(&w.peer);
}

/* The descriptor follows an empty message, which looks like the end of the
 * connection. */
static void a_socket_with_descriptors_is_closed_elsewhere(void **state)
{
	int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	struct waiter w;

	(void)state;
	make(&w);
	assert_true(peer_raw(&w.peer, "", 0, -1, 0));
	assert_true(peer_raw(&w.peer, "", 0, file, 1));
	kv_gate_hang_up(gate, UID, w.socket);
	assert_true(kv_gate_is_busy(gate));
	peer_close(&w.peer);
	wait_until_idle();
	close(file);
}

static void what_hangs_delays_only_its_user(void **state)
{
	int memory = memfd_create("memory", MFD_CLOEXEC);
	struct waiter stuck[6], other;
	unsigned n = 0;
	int fd;

	(void)state;
	for (size_t i = 0; i < KV_ARRAY_LEN(stuck); i++) {
		make(&stuck[i]);
		fd = lingering();
		assert_true(peer_raw(&stuck[i].peer, "stuck", 6, fd, 1));
		close(fd);
		kv_gate_receive(gate, UID, stuck[i].socket, &stuck[i].wait);
	}
	make(&other);
	assert_true(peer_raw(&other.peer, "other", 6, memory, 1));
	kv_gate_receive(gate, UID + 1, other.socket, &other.wait);
	while (!other.came)
		assert_true(turn());
	assert_true(other.memory);
	kv_gate_hang_up(gate, UID + 1, other.socket);
	peer_close(&other.peer);
	/* Of the messages of a user with descriptors that take long to close,
	 * only four are received at a time. */
	while (n < 4) {
		assert_true(turn());
		n = 0;
		for (size_t i = 0; i < KV_ARRAY_LEN(stuck); i++)
			n += stuck[i].came;
	}
	assert_int_equal(stuck[4].came + stuck[5].came, 0);
	/* After kv_gate_forget, the gate no longer receives the message of that
	 * client. */
	kv_gate_forget(&stuck[4].wait);
	/* When the gate's process for a user is killed, the next process for
	 * that user continues with the queue. */
	while (!stuck[5].came) {
		kill_processes();
		(void)turn_within(20);
	}
	for (size_t i = 0; i < KV_ARRAY_LEN(stuck); i++)
		finish(&stuck[i]);
	/* The gate may not have forked that next process yet: try again. */
	while (kv_gate_is_busy(gate)) {
		kill_processes();
		(void)turn_within(20);
	}
	assert_int_equal(stuck[4].came, 0);
	close(memory);
}

static void a_message_is_lost_with_the_process_that_forks(void **state)
{
	const int pid = gate_pid();
	struct waiter w;
	char path[64];

	(void)state;
	kill(pid, SIGKILL);
	do
		snprintf(path, sizeof(path), "/proc/%d/fd/3", pid);
	while (access(path, F_OK) == 0);
	make(&w);
	assert_true(peer_raw(&w.peer, "lost", 5, STDIN_FILENO, 1));
	receive(&w);
	assert_int_equal(w.lost, 1);
	assert_false(kv_gate_is_busy(gate));
	close(w.socket);
	peer_close(&w.peer);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_process_that_forks_inherits_no_descriptor),
		cmocka_unit_test(memory_passes_and_other_files_do_not),
		cmocka_unit_test(
			a_socket_without_descriptors_is_closed_at_once),
		cmocka_unit_test(a_socket_with_descriptors_is_closed_elsewhere),
		cmocka_unit_test(what_hangs_delays_only_its_user),
		cmocka_unit_test(a_message_is_lost_with_the_process_that_forks),
	};

	return cmocka_run_group_tests(tests, start, stop);
}
