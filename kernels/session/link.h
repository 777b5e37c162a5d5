/* SPDX-License-Identifier: Apache-2.0 */
/*
 * link.h - one connection to the daemon, and whole messages on it.
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
 * The control socket of @path, which is one itself or a mount point.
 * Whether anybody listens there is not looked at.  -ENAMETOOLONG.
 */
int kv_link_find(const char *path, char ret_socket[KV_SOCKET_PATH_MAX]);

/* Versions of the protocol. */
struct kv_link_versions {
	uint32_t newest, oldest;
};

/*
 * Connect and exchange HELLO, within a second or so.  -EPERM: the daemon there
 * is neither root's nor ours, or may be anybody's (we are in a user namespace,
 * and others can write to the socket's directory or one above it); -EPROTO: it
 * does not speak our protocol; -EPROTONOSUPPORT: none of its versions is ours,
 * and which those are is in *@ret_theirs.
 */
int kv_link_open(const char *socket_path, struct kv_link *ret_link,
		 struct kv_link_versions *ret_theirs);
void kv_link_close(struct kv_link *link); /* takes a closed one */
/* A link's error @r, for those who need it: -ENOTCONN, or that the process has
 * no descriptor or no memory for one (-EMFILE, -ENFILE, -ENOMEM). */
int kv_link_lost(int r);

/* Send one message.  @flags: MSG_DONTWAIT (then -EAGAIN), or 0. */
int kv_link_send(int fd, const struct kv_packet *packet, int flags);

/*
 * Receive one message; the caller closes packet->fd.  -EAGAIN: none (or the
 * socket's time-out passed), -ENOTCONN: the daemon went away, -EPROTO: what
 * came is no message or does not fit.
 */
int kv_link_receive(int fd, struct kv_packet *packet, int flags);

#endif
