/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gate.h - processes that receive and close the descriptors that clients send.
 *
 * Closing a descriptor may hang: a TCP socket lingers, a FUSE server need not answer
 * FLUSH.  A thread that hangs keeps the daemon's memory and files even after SIGKILL; a
 * process of its own does not.  Only descriptors of memory (memfd, tmpfs, hugetlbfs) reach
 * the daemon.
 *
 * Each user has at most one such process, which ends when it has no work.
 *
 * Control thread only, but for kv_gate_start and kv_gate_stop.
 */
#ifndef KV_FS_CONTROL_GATE_H
#define KV_FS_CONTROL_GATE_H

#include <sys/queue.h>
#include <sys/types.h>

#include "common/kv.h"

struct kv_gate;
struct kv_gate_user;

#define KV_NO_UID UINT32_MAX /* of a client whose user is unknown */

/* A message that came with descriptors. */
struct kv_gate_message {
	ssize_t bytes; /* of @data, or -errno of recvmsg(2) */
	int flags;     /* msg_flags */
	size_t fds;    /* number of descriptors */
	int fd;	       /* the only one, if it is memory; else -1 */
	const void *data;
};

/* A place in the queue of a user's messages. */
struct kv_gate_wait {
	/* @message is valid during the call, its fd until kv_gate_dispose.
	 * NULL: the message is lost. */
	void (*came)(struct kv_gate_wait *wait,
		     const struct kv_gate_message *message);
	int socket;
	struct kv_gate_user *user; /* NULL: not in the queue */
	TAILQ_ENTRY(kv_gate_wait) link;
};

/*
 * Fork the gate, the process that forks those of the users.  The gate closes every
 * descriptor that it inherits.  Call this before the first thread starts and the first
 * file is open.  -EMFILE, -ENFILE, -EAGAIN, -ENOMEM.
 */
int kv_gate_start(struct kv_gate **ret_gate);
/* Processes that hang in close(2) stay.  Takes NULL. */
void kv_gate_stop(struct kv_gate *gate);

/* Watch the processes with @epoll, whose events point to a kv_watch. */
void kv_gate_open(struct kv_gate *gate, int epoll);
/* Stop watching.  Descriptors that no process has taken stay open. */
void kv_gate_close(struct kv_gate *gate);

/* Receive the next message of @socket, and call wait->came; without a process it is called
 * with NULL before the return. */
void kv_gate_receive(struct kv_gate *gate, uint32_t uid, int socket,
		     struct kv_gate_wait *wait);
/* Drop the message when it comes.  Takes one that does not wait. */
void kv_gate_forget(struct kv_gate_wait *wait);

/* Let the process of @uid close @fd, which is taken over. */
void kv_gate_dispose(struct kv_gate *gate, uint32_t uid, int fd);

/* Shut down the client's @socket, and close it: here if no descriptor is queued in it,
 * else by kv_gate_dispose. */
void kv_gate_hang_up(struct kv_gate *gate, uint32_t uid, int socket);

/* Return whether a process has work. */
bool kv_gate_is_busy(const struct kv_gate *gate);

#endif
