/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate.c - processes that receive and close the descriptors that clients send.
 *
 * OWNS      the gate, a process that forks, and a socket to it; for each user with work, a
 *           process, a socket to that process, and the descriptors that the process has
 *           not taken yet.
 *
 * STATES    of a user's process:
 *
 *            (none) -> RUNNING   spawn          (forked by the gate)
 *           RUNNING -> (gone)    pump           (its user has no work)
 *           RUNNING -> (gone)    process_ready  (killed)
 *
 * INVARIANTS
 *   (1) The daemon installs no descriptor of a client unless F_GET_SEALS has succeeded on
 *       the descriptor, and never drops the last reference to another kind of file.
 *   (2) A process has two threads.  One receives, and never calls a close(2) that may
 *       hang.  The other closes in order, and reports when it has closed.
 *   (3) A user has at most MESSAGES_MAX messages whose descriptors are not all closed.
 *       Further messages stay in their sockets.
 *   (4) A process has no descriptor of the daemon's except its own socket and the
 *       clients' descriptors that the daemon has sent.
 *
 * LOCKING   none: the daemon's side runs on the control thread.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "common/array.h"
#include "common/bytes.h"
#include "common/thread.h"
#include "fs/control/server.h"

#define MESSAGES_MAX 4u	  /* most messages of a user with open descriptors */
#define PROCESSES_MAX 256 /* most processes, of all users together */
#define QUEUE_BYTES (1 << 20)
#define DRAIN_MAX 512 /* most messages that are discarded from a socket */

enum command { RECEIVE, CLOSE };
enum event { MESSAGE, CLOSED_MESSAGE, CLOSED };

/* The header of every packet from a gate's process to the daemon.  A client's
 * message follows. */
struct report {
	uint32_t event;
	int32_t bytes, flags;
	uint32_t fds;
};

struct kv_gate_user {
	struct kv_watch watch; /* first */
	TAILQ_ENTRY(kv_gate_user) link;
	struct kv_gate *gate;
	uint32_t uid;
	int fd; /* socket to the user's process; -1: no process */
	uint32_t events;
	TAILQ_HEAD(, kv_gate_wait) waits;
	bool receiving; /* the process has a socket to receive from */
	/* the client whose message is received; NULL: the client is gone */
	struct kv_gate_wait *received;
	/* numbers of messages and descriptors not yet reported as closed */
	size_t messages, closing;
	int *fds; /* descriptors that the process has not taken yet */
	size_t n_fds;
};

struct kv_gate {
	int fd, epoll;
	pid_t pid;
	size_t processes;
	TAILQ_HEAD(, kv_gate_user) users; /* with work */
	uint8_t data[WIRE_MAX + 8];
};

/* ---- the processes ---- */

/* The closing thread reads numbers from its pipe: a descriptor to close or,
 * encoded below 0, an event to report to the daemon. */
#define END_OF(event) (-1 - (int)(event))

struct closer {
	int from, to; /* ends of the pipe to the closing thread */
	int socket;
};

static void *close_in_order(void *arg)
{
	const struct closer *closer = arg;
	int fd;

	while (read(closer->from, &fd, sizeof(fd)) == sizeof(fd)) {
		struct report report = {.event = (uint32_t)(-1 - fd)};
		struct iovec iov = {&report, sizeof(report)};

		if (fd >= 0)
			close(fd);
		else
			(void)kv_send_parts(closer->socket, &iov, 1, -1, 0);
	}
	return NULL;
}

static void queue(const struct closer *closer, const int *fds, size_t n,
		  enum event event)
{
	int batch[KV_FDS_MAX + 1];

	memcpy(batch, fds, n * sizeof(int));
	batch[n] = END_OF(event);
	if (write(closer->to, batch, (n + 1) * sizeof(int)) < 0)
		_exit(1);
}

/* Receive the next message of @socket and pass it to the daemon, with its
 * descriptor if that is a file in memory. */
static void pass_message(const struct closer *closer, int socket)
{
	static uint8_t data[WIRE_MAX + 8];
	struct iovec in = {data, sizeof(data)}, out[2];
	struct report report = {.event = MESSAGE};
	int fds[KV_FDS_MAX], memory = -1;
	size_t n = 0;

	report.bytes = (int32_t)kv_receive_parts(socket, &in, 1, MSG_DONTWAIT,
						 &report.flags, fds, &n);
	report.fds = (uint32_t)n;
	/* Only files of shmem and hugetlbfs have seals. */
	if (n == 1 && fcntl(fds[0], F_GET_SEALS) >= 0)
		memory = fds[0];
	out[0] = (struct iovec){&report, sizeof(report)};
	out[1] = (struct iovec){data, (size_t)KV_MAX(report.bytes, 0)};
	(void)kv_send_parts(closer->socket, out, 2, memory, 0);
	/* This close(2) cannot hang: the daemon also has the file open, or is
	 * dead. */
	close(socket);
	queue(closer, fds, n, CLOSED_MESSAGE);
}

static _Noreturn void serve_user(int socket)
{
	struct closer closer = {.socket = socket};
	int pipes[2], fds[KV_FDS_MAX], flags;
	struct iovec iov;
	uint32_t command;
	pthread_t thread;
	size_t n;

	if (pipe2(pipes, O_CLOEXEC) < 0)
		_exit(1);
	closer.from = pipes[0];
	closer.to = pipes[1];
	(void)fcntl(closer.to, F_SETPIPE_SZ, QUEUE_BYTES);
	if (pthread_create(&thread, NULL, close_in_order, &closer) != 0)
		_exit(1);
	for (;;) {
		iov = (struct iovec){&command, sizeof(command)};
		if (kv_receive_parts(socket, &iov, 1, 0, &flags, fds, &n) <= 0)
			break;
		if (n == 1 && command == RECEIVE)
			pass_message(&closer, fds[0]);
		else
			queue(&closer, fds, n, CLOSED);
	}
	close(closer.to);
	pthread_join(thread, NULL);
	_exit(0);
}

static _Noreturn void serve_gate(int socket)
{
	int null, fds[KV_FDS_MAX], flags;
	struct iovec iov;
	char byte;
	size_t n;
	pid_t pid;

	socket = kv_child_begin(socket, "kvfs-gate");
	signal(SIGCHLD, SIG_IGN);
	null = open("/dev/null", O_RDWR);
	for (int fd = 0; fd < 3; fd++)
		dup2(null, fd);
	close(null);
	(void)!write(socket, "", 1);
	for (;;) {
		iov = (struct iovec){&byte, 1};
		if (kv_receive_parts(socket, &iov, 1, 0, &flags, fds, &n) <= 0)
			_exit(0);
		if (n != 1)
			continue;
		/* Retry fork(2): an exit would close the socket, and all
		 * descriptors in it. */
		while ((pid = fork()) < 0)
			usleep(100000);
		if (pid == 0) {
			close(socket);
			serve_user(fds[0]);
		}
		close(fds[0]);
	}
}

int kv_gate_start(struct kv_gate **ret_gate)
{
	_cleanup_(kv_freep) struct kv_gate *gate = calloc(1, sizeof(*gate));
	int pair[2];
	char byte;

	if (!gate)
		return -ENOMEM;
	gate->epoll = -1;
	TAILQ_INIT(&gate->users);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	gate->fd = pair[0];
	gate->pid = fork();
	if (gate->pid == 0)
		serve_gate(pair[1]);
	close(pair[1]);
	if (gate->pid < 0) {
		close(pair[0]);
		return -EAGAIN;
	}
	/* Wait until the gate has closed its descriptors and set its name. */
	(void)!read(gate->fd, &byte, 1);
	*ret_gate = kv_steal(gate);
	return 0;
}

void kv_gate_stop(struct kv_gate *gate)
{
	if (!gate)
		return;
	close(gate->fd);
	/* Do not wait long for the gate, which may be retrying fork(2). */
	kv_child_end(gate->pid);
	free(gate);
}

/* ---- the daemon's side ---- */

static void watch(struct kv_gate_user *user, uint32_t events)
{
	struct epoll_event event = {.events = events, .data.ptr = &user->watch};

	if (events != user->events)
		(void)epoll_ctl(user->gate->epoll,
				user->events ? EPOLL_CTL_MOD : EPOLL_CTL_ADD,
				user->fd, &event);
	user->events = events;
}

static int spawn(struct kv_gate_user *user)
{
	struct kv_gate *gate = user->gate;
	char byte = 0;
	struct iovec iov = {&byte, 1};
	int pair[2], r;

	if (gate->processes >= PROCESSES_MAX)
		return -EAGAIN;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	r = kv_send_parts(gate->fd, &iov, 1, pair[1], MSG_DONTWAIT);
	close(pair[1]);
	if (r < 0) {
		close(pair[0]);
		return r;
	}
	user->fd = pair[0];
	user->events = 0;
	gate->processes++;
	return 0;
}

/* Close the socket of the user's process, which finishes its work and ends. */
static void leave(struct kv_gate_user *user)
{
	if (user->fd < 0)
		return;
	epoll_ctl(user->gate->epoll, EPOLL_CTL_DEL, user->fd, NULL);
	kv_closep(&user->fd);
	user->gate->processes--;
}

static int command(struct kv_gate_user *user, enum command what, int fd)
{
	uint32_t word = what;
	struct iovec iov = {&word, sizeof(word)};

	return kv_send_parts(user->fd, &iov, 1, fd, MSG_DONTWAIT);
}

static void report_lost(struct kv_gate_wait *wait)
{
	wait->user = NULL;
	wait->came(wait, NULL);
}

/* Send the user's process as much work as its socket takes now, or end the
 * process if there is no work. */
static void pump(struct kv_gate_user *user)
{
	struct kv_gate_wait *wait;
	int r = 0;

	if (user->fd < 0 && (user->n_fds || !TAILQ_EMPTY(&user->waits)))
		r = spawn(user);
	while (r == 0 && user->n_fds) {
		r = command(user, CLOSE, user->fds[user->n_fds - 1]);
		if (r == 0) {
			user->closing++;
			close(user->fds[--user->n_fds]);
		}
	}
	wait = TAILQ_FIRST(&user->waits);
	if (r == 0 && wait && !user->receiving &&
	    user->messages < MESSAGES_MAX) {
		r = command(user, RECEIVE, wait->socket);
		if (r == 0) {
			TAILQ_REMOVE(&user->waits, wait, link);
			user->received = wait;
			user->receiving = true;
			user->messages++;
		}
	}
	if (user->fd < 0)
		while ((wait = TAILQ_FIRST(&user->waits))) {
			TAILQ_REMOVE(&user->waits, wait, link);
			report_lost(wait);
		}
	if (user->messages || user->closing || user->n_fds ||
	    !TAILQ_EMPTY(&user->waits)) {
		if (user->fd >= 0)
			watch(user, EPOLLIN | (r == -EAGAIN ? EPOLLOUT : 0));
		return;
	}
	leave(user);
	TAILQ_REMOVE(&user->gate->users, user, link);
	free(user->fds);
	free(user);
}

static void process_ready(struct kv_watch *w, uint32_t events)
{
	struct kv_gate_user *user = (struct kv_gate_user *)w;
	struct kv_gate_wait *wait = NULL;
	struct kv_gate_message message;
	int fds[KV_FDS_MAX], flags;
	struct report report;
	struct iovec iov[2];
	ssize_t bytes;
	size_t n;

	(void)events;
	iov[0] = (struct iovec){&report, sizeof(report)};
	iov[1] = (struct iovec){user->gate->data, sizeof(user->gate->data)};
	bytes = kv_receive_parts(user->fd, iov, 2, MSG_DONTWAIT, &flags, fds,
				 &n);
	if (bytes == 0 || (bytes < 0 && bytes != -EAGAIN)) {
		/* The process was killed: the work that it had taken is lost. */
		wait = kv_steal(user->received);
		leave(user);
		user->receiving = false;
		user->messages = user->closing = 0;
		if (wait)
			report_lost(wait);
	} else if (bytes > 0 && report.event == MESSAGE) {
		message = (struct kv_gate_message){.bytes = report.bytes,
						   .flags = report.flags,
						   .fds = report.fds,
						   .fd = n ? fds[0] : -1,
						   .data = user->gate->data};
		wait = kv_steal(user->received);
		user->receiving = false;
		if (wait) {
			wait->user = NULL;
			wait->came(wait, &message);
		} else if (message.fd >= 0) {
			kv_gate_dispose(user->gate, user->uid, message.fd);
		}
	} else if (bytes > 0 && report.event == CLOSED_MESSAGE) {
		user->messages--;
	} else if (bytes > 0) {
		user->closing--;
	}
	pump(user);
}

/* Return the entry of the user @uid, made if necessary; NULL if memory is short. */
static struct kv_gate_user *user_get(struct kv_gate *gate, uint32_t uid)
{
	struct kv_gate_user *user;

	/* A linear scan: few users send descriptors at the same time. */
	TAILQ_FOREACH(user, &gate->users, link)
		if (user->uid == uid)
			return user;
	user = calloc(1, sizeof(*user));
	if (!user)
		return NULL;
	user->watch.ready = process_ready;
	user->gate = gate;
	user->uid = uid;
	user->fd = -1;
	TAILQ_INIT(&user->waits);
	TAILQ_INSERT_TAIL(&gate->users, user, link);
	return user;
}

void kv_gate_open(struct kv_gate *gate, int epoll)
{
	gate->epoll = epoll;
}

void kv_gate_close(struct kv_gate *gate)
{
	struct kv_gate_user *user;

	while ((user = TAILQ_FIRST(&gate->users))) {
		leave(user);
		TAILQ_REMOVE(&gate->users, user, link);
		free(user->fds);
		free(user);
	}
}

void kv_gate_receive(struct kv_gate *gate, uint32_t uid, int socket,
		     struct kv_gate_wait *wait)
{
	struct kv_gate_user *user = user_get(gate, uid);

	wait->socket = socket;
	wait->user = user;
	if (!user) {
		report_lost(wait);
		return;
	}
	TAILQ_INSERT_TAIL(&user->waits, wait, link);
	pump(user);
}

void kv_gate_forget(struct kv_gate_wait *wait)
{
	struct kv_gate_user *user = kv_steal(wait->user);

	if (!user)
		return;
	if (user->received == wait)
		user->received = NULL;
	else
		TAILQ_REMOVE(&user->waits, wait, link);
}

void kv_gate_dispose(struct kv_gate *gate, uint32_t uid, int fd)
{
	struct kv_gate_user *user = user_get(gate, uid);

	/* If memory is short, leak the descriptor, as close(2) here might hang. */
	if (!user || kv_array_more(&user->fds, user->n_fds) < 0)
		return;
	user->fds[user->n_fds++] = fd;
	pump(user);
}

/*
 * Drop the messages that are queued in @socket, which is shut down.  Returns true if none
 * is left, false at the first message with descriptors.  SO_PASSCRED gives each message
 * credentials, so that an empty message does not look like the end.
 */
static bool drain(int socket)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(struct ucred))];
	} control;
	struct msghdr m;
	struct iovec iov;
	char byte;
	ssize_t n;

	for (int i = 0; i < DRAIN_MAX; i++) {
		iov = (struct iovec){&byte, 1};
		m = (struct msghdr){.msg_iov = &iov,
				    .msg_iovlen = 1,
				    .msg_control = control.room,
				    .msg_controllen = sizeof(control.room)};
		n = recvmsg(socket, &m, MSG_PEEK | MSG_DONTWAIT);
		if (n < 0 && errno != EINTR && errno != ECONNRESET)
			return false;
		if (n < 0)
			continue;
		if (m.msg_flags & MSG_CTRUNC)
			return false;
		if (m.msg_controllen == 0)
			return n == 0;
		(void)recv(socket, &byte, 1, MSG_DONTWAIT);
	}
	return false;
}

void kv_gate_hang_up(struct kv_gate *gate, uint32_t uid, int socket)
{
	const int on = 1;

	if (shutdown(socket, SHUT_RDWR) == 0 &&
	    setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) == 0 &&
	    drain(socket))
		close(socket);
	else
		kv_gate_dispose(gate, uid, socket);
}

bool kv_gate_is_busy(const struct kv_gate *gate)
{
	return !TAILQ_EMPTY(&gate->users);
}
