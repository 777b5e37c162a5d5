/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send_queue.h - messages for a client that does not read as fast as we write.
 */
#ifndef KV_FS_CONTROL_SEND_QUEUE_H
#define KV_FS_CONTROL_SEND_QUEUE_H

#include "cache/core/account.h"

#define KV_SEND_QUEUE_BYTES (4u << 20) /* waiting for one client, at most */
#define KV_SEND_QUEUE_FDS 256	       /* of them with a descriptor, at most */

struct kv_send_queue {
	struct kv_outgoing *first, **last;
	size_t bytes, fds;
	struct kv_account *account; /* has both; borrowed */
};

void kv_send_queue_init(struct kv_send_queue *box, struct kv_account *account);
void kv_send_queue_fini(struct kv_send_queue *box);

/*
 * Send one message, with the descriptor @fd unless it is -1 (the caller's;
 * duplicated if it must wait), or put it behind those that wait.  -ENOBUFS:
 * too much waits; -ENOLCK beyond its user's share; -ENOMEM, or the error of the
 * socket.
 */
int kv_send_queue_send(struct kv_send_queue *box, int socket, const void *data,
		       size_t n, int fd);

/* Send what waits.  1: nothing waits any more, 0: the socket is full again, or
 * the error of the socket. */
int kv_send_queue_drain(struct kv_send_queue *box, int socket);

#endif
