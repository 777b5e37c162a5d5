/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ask.h - one question after the other for a daemon, on its socket: for the
 * commands of kvfs that are not the daemon.
 */
#ifndef KV_FS_ASK_H
#define KV_FS_ASK_H

#include "common/kv.h"
#include "common/wire.h"

/* Connect to the socket @path and agree on a version: a descriptor, or -errno;
 * -EACCES also where kvfs does not let us in. */
int kv_ask_connect(const char *path);

/*
 * Send @header and the *@bytes of @items, and wait for the reply: its status, or
 * -errno; -EPIPE or -ECONNRESET: nobody is there any more.  @items has room for @room bytes, and the *@bytes of the reply then;
 * *@count, which may be NULL, are its items.
 */
int kv_ask(int fd, struct wire_header header, void *items, size_t *bytes,
	   size_t room, uint32_t *ret_count);

/* The socket of the daemon that is mounted at @path; -ENAMETOOLONG, or what
 * readlink(2) says where none is. */
int kv_ask_socket_of(const char *path, char *socket, size_t room);

#endif
