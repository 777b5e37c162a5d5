/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send_queue.c - a bounded queue of messages in front of a socket.
 *
 * OWNS      copies of the queued messages, and duplicates of their descriptors: a segment
 *           may be closed before its descriptor is sent.
 *
 * INVARIANTS
 *   (1) Messages leave in the order of kv_send_queue_send.
 *
 * LOCKING   none: used by the control thread alone.
 */
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "common/bytes.h"
#include "fs/control/send_queue.h"

struct kv_outgoing {
	struct kv_outgoing *next;
	size_t n;
	int fd;
	uint8_t data[];
};

void kv_send_queue_init(struct kv_send_queue *box, struct kv_account *account)
{
	*box = (struct kv_send_queue){.last = &box->first, .account = account};
}

static void forget_first(struct kv_send_queue *box)
{
	struct kv_outgoing *m = box->first;

	box->first = m->next;
	if (!box->first)
		box->last = &box->first;
	box->bytes -= sizeof(*m) + m->n;
	kv_account_credit(box->account, KV_FINITE_MEMORY, sizeof(*m) + m->n);
	if (m->fd >= 0) {
		close(m->fd);
		box->fds--;
		kv_account_credit(box->account, KV_FINITE_DESCRIPTORS, 1);
	}
	free(m);
}

void kv_send_queue_fini(struct kv_send_queue *box)
{
	while (box->first)
		forget_first(box);
}

/* 0, or -EAGAIN if the socket is full. */
static int send_one(int socket, const void *data, size_t n, int fd)
{
	struct iovec part = {(void *)data, n};

	return kv_send_parts(socket, &part, 1, fd, MSG_DONTWAIT);
}

/* Duplicate @fd for @m. */
static int keep_fd(struct kv_send_queue *box, struct kv_outgoing *m, int fd)
{
	int r;

	if (box->fds >= KV_SEND_QUEUE_FDS)
		return -ENOBUFS;
	r = kv_account_charge(box->account, KV_FINITE_DESCRIPTORS, 1);
	if (r < 0)
		return r;
	m->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (m->fd < 0) {
		r = -errno;
		kv_account_credit(box->account, KV_FINITE_DESCRIPTORS, 1);
		return r;
	}
	box->fds++;
	return 0;
}

static int wait_in_line(struct kv_send_queue *box, const void *data, size_t n,
			int fd)
{
	_cleanup_(kv_freep) struct kv_outgoing *m = malloc(sizeof(*m) + n);
	int r;

	if (!m)
		return -ENOMEM;
	*m = (struct kv_outgoing){.n = n, .fd = -1};
	if (box->bytes + sizeof(*m) + n > KV_SEND_QUEUE_BYTES)
		return -ENOBUFS;
	r = kv_account_charge(box->account, KV_FINITE_MEMORY, sizeof(*m) + n);
	if (r < 0)
		return r;
	if (fd >= 0)
		r = keep_fd(box, m, fd);
	if (r < 0) {
		kv_account_credit(box->account, KV_FINITE_MEMORY,
				  sizeof(*m) + n);
		return r;
	}
	memcpy(m->data, data, n);
	box->bytes += sizeof(*m) + n;
	*box->last = m;
	box->last = &kv_steal(m)->next;
	return 0;
}

int kv_send_queue_send(struct kv_send_queue *box, int socket, const void *data,
		       size_t n, int fd)
{
	int r = -EAGAIN;

	if (!box->first)
		r = send_one(socket, data, n, fd);
	if (r == -EAGAIN)
		r = wait_in_line(box, data, n, fd);
	return r;
}

int kv_send_queue_drain(struct kv_send_queue *box, int socket)
{
	int r;

	while (box->first) {
		r = send_one(socket, box->first->data, box->first->n,
			     box->first->fd);
		if (r == -EAGAIN)
			return 0;
		if (r < 0)
			return r;
		forget_first(box);
	}
	return 1;
}
