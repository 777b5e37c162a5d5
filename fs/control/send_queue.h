/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send_queue.h - messages for a client that reads slower than the daemon writes.
 */
#ifndef KV_FS_CONTROL_SEND_QUEUE_H
#define KV_FS_CONTROL_SEND_QUEUE_H

#include "cache/core/account.h"

#define KV_SEND_QUEUE_BYTES (4u << 20) /* waiting for one client, at most */
#define KV_SEND_QUEUE_FDS 256	       /* of them with a descriptor, at most */

struct kv_send_queue {
	struct kv_outgoing *first, **last;
	size_t bytes, fds;
	struct kv_account *account; /* charged with both; borrowed */
};

void kv_send_queue_init(struct kv_send_queue *box, struct kv_account *account);
void kv_send_queue_fini(struct kv_send_queue *box);

/*
 * Send or queue one message, with the descriptor @fd unless it is -1 (the caller's;
 * duplicated if the message is queued).  -ENOBUFS: the queue is full; -ENOLCK: beyond the
 * user's share; -ENOMEM, or the error of the socket.
 */
int kv_send_queue_send(struct kv_send_queue *box, int socket, const void *data,
		       size_t n, int fd);

/* Send queued messages.  Returns 1: the queue is empty; 0: the socket is full; or the
 * error of the socket. */
int kv_send_queue_drain(struct kv_send_queue *box, int socket);

#endif
