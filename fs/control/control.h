/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - the daemon's control socket: one thread serves the messages of wire.h from
 * the cache; workers copy saves.
 *
 * Rights: a connection acts with the user id and all groups that its process had when it
 * connected.  Each message is checked against the current mode of the space.  PROBE,
 * ACQUIRE and SPACE need read and search permission; RESERVE, SAVE, EVICT, PIN and CLEAR
 * need write and search permission; FLUSH needs either.  Without permission, every block
 * of the space is reported absent.
 *
 * Lifetime: leases, reservations and segments of a connection end when every process
 * that has the socket has closed it, or when the process that connected is dead.
 *
 * Protocol errors: a message that breaks the rules of wire.h, a tag in use, a RELEASE
 * without an acquire, an UNMAPPED without a segment, an unexpected descriptor.  The daemon
 * ends the connection, and drops its reservations and pending requests at once.  The
 * client's leases stay until the client closes its end or dies: it may be copying from the
 * leased blocks.  Other clients are not affected.
 *
 * Tags: an acquire without a leased block (status 0) needs no RELEASE.  A RELEASE of such
 * an acquire, or a second RELEASE, does nothing and is counted.  A RELEASE of an acquire
 * that has no reply yet first cancels the acquire.
 *
 * Limits: wire.h limits each connection, account.h each user: -ENOLCK.  Connections
 * beyond a user's share are closed.
 */
#ifndef KV_FS_CONTROL_CONTROL_H
#define KV_FS_CONTROL_CONTROL_H

#include <sys/queue.h>

#include "fs/base/stats.h"

struct kv_control;
struct kv_gate;

/*
 * Serve the users that @rules (borrowed) admit; connections of other users are closed.
 * @gate (borrowed) receives and closes the descriptors that clients send.  @config (or
 * NULL) returns the text of .kvfs/config, which is then freed.  Listen at
 * @path with mode 0666: permission is checked per space.  A missing directory of @path is
 * made (0755), but none above it, and removed at the end.  A socket file without a daemon
 * is removed.  The lock of the file @path.lock lets one process make or remove the socket.
 * Returns 0; on failure *@ret_why is a message for the user (caller frees):
 *   -EADDRINUSE    a daemon answers at @path
 *   -EWOULDBLOCK   another process has held the lock for 3 s
 *   -EEXIST        @path is no socket
 *   -ENOENT        the directory above the socket's does not exist
 *   -ENAMETOOLONG, -EACCES, and errors of the system calls
 */
int kv_control_start(struct kv_cache *cache, const struct kv_rules *rules,
		     struct kv_gate *gate, const char *path,
		     char *(*config)(void *arg), void *arg,
		     struct kv_control **ret_control, char **ret_why);

/* Finish the saves being copied, cancel other requests, close all connections and
 * remove the socket.  Takes NULL. */
void kv_control_stop(struct kv_control *control);

/* Stop listening if no client is connected, and return whether none is.  Clients that
 * connect then find no daemon; kv_control_stop is still needed. */
bool kv_control_stop_unused(struct kv_control *control);

/* Wait until the control thread answers.  Not after kv_control_stop_unused has returned
 * true. */
void kv_control_await(struct kv_control *control);

/*
 * Ask the clients that have @segment to unmap it.  Any thread; never blocks.  Takes NULL.
 * Do not call this during or after kv_control_stop.
 */
void kv_control_retire(struct kv_control *control, uint32_t segment);

void kv_control_counts(struct kv_control *control,
		       struct kv_control_counts *ret_counts);

/* ---- the gate: processes that receive and close the descriptors that clients send ----
 *
 * close(2) of a descriptor may hang: a TCP socket lingers, a FUSE server need not answer
 * FLUSH.  A hanging thread keeps the daemon's memory and files even after SIGKILL; a
 * hanging process of its own does not.  Only descriptors of memory (memfd, tmpfs,
 * hugetlbfs) reach the daemon.
 *
 * Each user has at most one such process, which ends when it has no work.
 *
 * The control thread calls these functions, except kv_gate_start and kv_gate_stop. */

struct kv_gate_user;

#define KV_NO_UID UINT32_MAX /* uid of a client whose user is unknown */

/* A message that a process of the gate has received, with descriptors. */
struct kv_gate_message {
	ssize_t bytes; /* bytes of @data, or -errno of recvmsg(2) */
	int flags;     /* msg_flags */
	size_t fds;    /* number of descriptors in the message */
	int fd; /* the only descriptor, if it is a file in memory; else -1 */
	const void *data;
};

/* A client that waits for the gate to receive its next message. */
struct kv_gate_wait {
	/* Called when the message has come.  @message is valid during the call,
	 * message->fd until kv_gate_dispose.  NULL: the message is lost. */
	void (*came)(struct kv_gate_wait *wait,
		     const struct kv_gate_message *message);
	int socket;
	struct kv_gate_user *user; /* user of the client; NULL: no wait */
	TAILQ_ENTRY(kv_gate_wait) link;
};

/*
 * Fork the gate, a process that forks a process for each user.  The gate closes every
 * descriptor that it inherits.  Call this before the first thread starts and the first
 * file is open.  Returns 0, -EMFILE, -ENFILE, -EAGAIN or -ENOMEM.
 */
int kv_gate_start(struct kv_gate **ret_gate);
/* Stop the gate.  Processes that hang in close(2) stay.  Takes NULL. */
void kv_gate_stop(struct kv_gate *gate);

/* Watch the gate's processes with @epoll, whose events point to a kv_watch. */
void kv_gate_open(struct kv_gate *gate, int epoll);
/* Stop watching the gate's processes; descriptors not yet sent stay open. */
void kv_gate_close(struct kv_gate *gate);

/* Receive the next message of @socket, and call wait->came.  If no process can
 * be started, call wait->came with NULL before the return. */
void kv_gate_receive(struct kv_gate *gate, uint32_t uid, int socket,
		     struct kv_gate_wait *wait);
/* Discard the message that @wait waits for, if any, when it comes. */
void kv_gate_forget(struct kv_gate_wait *wait);

/* Take over @fd.  The gate's process for @uid closes it: close(2) may hang. */
void kv_gate_dispose(struct kv_gate *gate, uint32_t uid, int fd);

/* Shut down the client's @socket, and close it: in this thread if no descriptor is queued
 * in the socket, else by kv_gate_dispose. */
void kv_gate_hang_up(struct kv_gate *gate, uint32_t uid, int socket);

/* Return true if a process of the gate has work. */
bool kv_gate_is_busy(const struct kv_gate *gate);

#endif
