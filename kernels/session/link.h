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
	uint64_t epoch; /* the daemon's, from its HELLO */
};

/* A message to send, or room for one to receive. */
struct kv_packet {
	struct wire_header header;
	void *items;
	size_t bytes; /* of items; kv_link_receive: in, the room; out, the use
		       */
	int fd;	      /* passed along; -1: none */
	bool fd_lost; /* kv_link_receive: the process may have no more */
};

/*
 * Find the control socket of @path, a socket or a mount point.  Does not check
 * whether a daemon listens.  -ENAMETOOLONG.
 */
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
void kv_link_close(struct kv_link *link); /* takes a closed one */
/* Return the error of kv_link_open for callers that need a link: -EMFILE, -ENFILE
 * and -ENOMEM as they are, all others as -ENOTCONN. */
int kv_link_lost(int r);

/* Send one message.  @flags: MSG_DONTWAIT (then -EAGAIN), or 0. */
int kv_link_send(int fd, const struct kv_packet *packet, int flags);

/*
 * Receive one message; the caller closes packet->fd.
 * -EAGAIN: there is none (or the socket's time-out has passed)
 * -ENOTCONN: the daemon went away
 * -EPROTO: the packet is no message, or larger than the room
 */
int kv_link_receive(int fd, struct kv_packet *packet, int flags);

/*
 * A finder looks for the socket on a thread of its own: a call on the mount of a
 * daemon that hangs returns only when the daemon goes on or dies, and cannot be
 * interrupted.
 */
struct kv_finder;

/* Start looking for the socket of @path as kv_link_find does.  The finder writes
 * to the eventfd @wake_fd (borrowed until kv_finder_end) at its end.  -ENOMEM,
 * -EAGAIN: no thread. */
int kv_finder_start(const char *path, int wake_fd,
		    struct kv_finder **ret_finder);

/* Return whether the finder has finished; any thread. */
bool kv_finder_is_done(const struct kv_finder *finder);

/*
 * Free the finder and return the socket's path, without symbolic links, or an
 * error of kv_link_find or realpath(3).  -ETIMEDOUT: it has not finished; its
 * thread is abandoned.  Does not wait.
 */
int kv_finder_end(struct kv_finder *finder,
		  char ret_socket[KV_SOCKET_PATH_MAX]);

#endif
