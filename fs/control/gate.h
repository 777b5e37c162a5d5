/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate.h - processes that receive and close the descriptors that clients send.
 *
 * close(2) of a descriptor may hang: a TCP socket lingers, a FUSE server need not answer
 * FLUSH.  A hanging thread keeps the daemon's memory and files even after SIGKILL; a
 * hanging process of its own does not.  Only descriptors of memory (memfd, tmpfs,
 * hugetlbfs) reach the daemon.
 *
 * Each user has at most one such process, which ends when it has no work.
 *
 * The control thread calls these functions, except kv_gate_start and kv_gate_stop.
 */
#ifndef KV_FS_CONTROL_GATE_H
#define KV_FS_CONTROL_GATE_H

#include <sys/queue.h>
#include <sys/types.h>

#include "common/kv.h"

struct kv_gate;
struct kv_gate_user;

#define KV_NO_UID UINT32_MAX /* uid of a client whose user is unknown */

/* A message that a process of the gate has received, with descriptors. */
struct kv_gate_message {
	ssize_t bytes; /* bytes of @data, or -errno of recvmsg(2) */
	int flags;     /* msg_flags */
	size_t fds;    /* number of descriptors */
	int fd; /* the descriptor, if there is one and it is memory; else -1 */
	const void *data;
};

/* A client that waits for the gate to receive its next message. */
struct kv_gate_wait {
	/* Called when the message has come.  @message is valid during the call,
	 * message->fd until kv_gate_dispose.  NULL: the message is lost. */
	void (*came)(struct kv_gate_wait *wait,
		     const struct kv_gate_message *message);
	int socket;
	struct kv_gate_user *user; /* NULL: the client does not wait */
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
/* Stop watching the processes.  Descriptors that no process has taken stay open. */
void kv_gate_close(struct kv_gate *gate);

/* Receive the next message of @socket, and call wait->came.  If there can be no process,
 * call it with NULL before the return. */
void kv_gate_receive(struct kv_gate *gate, uint32_t uid, int socket,
		     struct kv_gate_wait *wait);
/* Drop the message of @wait when it comes.  No effect if @wait does not wait. */
void kv_gate_forget(struct kv_gate_wait *wait);

/* Take over @fd, and let the gate's process for the user @uid close it, as close(2) may
 * hang. */
void kv_gate_dispose(struct kv_gate *gate, uint32_t uid, int fd);

/* Shut down the client's @socket, and close it: in this thread if no descriptor is queued
 * in the socket, else by kv_gate_dispose. */
void kv_gate_hang_up(struct kv_gate *gate, uint32_t uid, int socket);

/* Return true if a process of the gate has work. */
bool kv_gate_is_busy(const struct kv_gate *gate);

#endif
