/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.h - one connection to the daemon, whole messages on it, and the search for
 * the daemon's socket.
 */
#ifndef KV_KERNELS_SESSION_LINK_H
#define KV_KERNELS_SESSION_LINK_H

#include <sys/types.h>

#include "common/kv.h"
#include "common/wire.h"

#define KV_SOCKET_PATH_MAX 4096

struct kv_link {
	int fd;		/* -1: none */
	uint64_t epoch; /* epoch of the daemon, from its HELLO */
};

/* A message to send, or buffers for a message to receive. */
struct kv_packet {
	struct wire_header header;
	void *items;
	/* Bytes at @items.  kv_link_receive takes the size of the buffer, and
	 * sets the length of the message. */
	size_t bytes;
	int fd; /* descriptor that the message carries; -1: none */
	/* Set by kv_link_receive: the message's descriptor was lost, because
	 * the process has too many open descriptors. */
	bool fd_lost;
};

/* Find the control socket that belongs to @path, a mount point or a socket.
 * Does not check whether a daemon listens.
 * -ENAMETOOLONG: the socket's path is too long */
int kv_link_find(const char *path, char ret_socket[KV_SOCKET_PATH_MAX]);

/*
 * Connect to the daemon's socket and exchange HELLO, within about a second.
 * *@ret_hello is the daemon's HELLO after 0 and -EPROTONOSUPPORT.
 * -EPERM: the daemon belongs neither to root nor to our user; or we are in a user
 *         namespace, and other users can write to the socket's directory or to
 *         one above it
 * -EPROTO: the daemon does not speak our protocol
 * -EPROTONOSUPPORT: the daemon and this library have no version in common
 */
int kv_link_open(const char *socket_path, struct kv_link *ret_link,
		 struct wire_hello *ret_hello);
void kv_link_close(struct kv_link *link); /* no effect on a closed link */
/* Translate an error of kv_link_open for requests: -EMFILE, -ENFILE and -ENOMEM
 * stay, and all other errors become -ENOTCONN. */
int kv_link_lost(int r);

/* Send one message.  @flags: 0, or MSG_DONTWAIT to get -EAGAIN instead of
 * waiting. */
int kv_link_send(int fd, const struct kv_packet *packet, int flags);

/* Receive one message into @packet; the caller closes packet->fd.
 * -EAGAIN: no message has come before the socket's time-out
 * -ENOTCONN: the daemon has closed the connection
 * -EPROTO: the packet is no message of the protocol, or does not fit */
int kv_link_receive(int fd, struct kv_packet *packet, int flags);

/* A finder looks for the daemon's socket on a thread of its own: a system call
 * on the mount of a daemon that hangs cannot be interrupted, and returns only
 * when the daemon continues or dies. */
struct kv_finder;

/* Start a thread that looks for the socket of @path as kv_link_find does, and
 * writes to the eventfd @wake_fd when it has finished.  @wake_fd is borrowed
 * until kv_finder_end.
 * -ENOMEM, -EAGAIN: the thread cannot start */
int kv_finder_start(const char *path, int wake_fd,
		    struct kv_finder **ret_finder);

/* Return whether the finder's thread has finished.  Any thread may call
 * this. */
bool kv_finder_is_done(const struct kv_finder *finder);

/* Free the finder and return the path of the socket without symbolic links.
 * Does not wait.
 * -ETIMEDOUT: the finder has not finished; its thread is abandoned
 * errors of kv_link_find and realpath(3) */
int kv_finder_end(struct kv_finder *finder,
		  char ret_socket[KV_SOCKET_PATH_MAX]);

#endif
