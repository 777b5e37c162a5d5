/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read.c - take one message from a socket, check its form, and call
 * its handler.
 *
 * OWNS      the descriptors that came with the message, until it is handled:
 *           then all of them are closed.
 *
 * INVARIANTS
 *   (1) A handler sees only messages whose length is exactly that of their
 *       header and items, within the limits below.
 *
 * LOCKING   none: control thread only.
 */
#include <sys/socket.h>

#include "fs/control/request.h"

/* SCM_MAX_FD of the kernel: more do not come with one message. */
#define FDS_MAX 253

static const struct shape {
	size_t fixed, item; /* bytes before the items, and of one */
	uint32_t min, max;  /* items */
	uint16_t flags;	    /* allowed ones */
	bool fd;	    /* exactly one belongs to it */
	bool open_tag;	    /* its tag is of an older request */
	int (*handle)(struct kv_client *client, const struct kv_message *m);
} shapes[WIRE_TYPE_END] = {
	[WIRE_HELLO] = {0, sizeof(struct wire_hello), 1, 1, 0, false, false,
			kv_request_hello},
	[WIRE_SPACE] = {sizeof(struct wire_space), 1, 1, WIRE_MAX, 0, false,
			false, kv_request_space},
	[WIRE_PROBE] = {0, sizeof(struct wire_key), 0, WIRE_BATCH, 0, false,
			false, kv_request_probe},
	[WIRE_ACQUIRE] = {0, sizeof(struct wire_key), 0, WIRE_BATCH,
			  WIRE_WAIT_SAVING | WIRE_RESIDENT, false, false,
			  kv_request_acquire},
	[WIRE_RELEASE] = {0, 0, 0, 0, 0, false, true, kv_request_release},
	[WIRE_CANCEL] = {0, 0, 0, 0, 0, false, true, kv_request_cancel},
	[WIRE_STAGING] = {0, sizeof(struct wire_staging), 1, 1, 0, true, false,
			  kv_request_staging},
	[WIRE_RESERVE] = {0, sizeof(struct wire_key), 0, WIRE_BATCH,
			  WIRE_MUST | WIRE_HOLD | WIRE_PART, false, false,
			  kv_request_reserve},
	[WIRE_SAVE] = {0, sizeof(struct wire_save), 0, WIRE_BATCH, 0, false,
		       false, kv_request_save},
	[WIRE_DROP] = {0, sizeof(struct wire_key), 0, WIRE_BATCH, 0, false,
		       false, kv_request_drop},
	[WIRE_FLUSH] = {0, sizeof(struct wire_key), 0, WIRE_BATCH, 0, false,
			false, kv_request_flush},
	[WIRE_EVICT] = {0, sizeof(struct wire_key), 0, WIRE_BATCH, 0, false,
			false, kv_request_evict},
	[WIRE_PIN] = {0, sizeof(struct wire_key), 0, WIRE_BATCH, 0, false,
		      false, kv_request_pin},
	[WIRE_CLEAR] = {0, 0, 0, 0, 0, false, false, kv_request_clear},
	[WIRE_STATS] = {0, 0, 0, 0, 0, false, false, kv_request_stats},
	[WIRE_UNMAPPED] = {0, sizeof(struct wire_segment), 1, 1, 0, false, true,
			   kv_request_unmapped},
	[WIRE_PREFETCH] = {0, sizeof(struct wire_key), 0, WIRE_BATCH,
			   WIRE_AHEAD, false, false, kv_request_prefetch},
	[WIRE_ENDED] = {0, sizeof(struct wire_key), 0, WIRE_BATCH, 0, false,
			true, kv_request_ended},
	[WIRE_PICK] = {0, sizeof(struct wire_pick), 1, WIRE_BATCH, 0, false,
		       false, kv_request_pick},
	[WIRE_SNAPSHOT] = {sizeof(struct wire_snapshot), 1, 0, WIRE_MAX, 0,
			   false, false, kv_request_snapshot},
	[WIRE_SNAPSHOT_DROP] = {0, 1, 0, WIRE_MAX, 0, false, false,
				kv_request_snapshot_drop},
	[WIRE_SNAPSHOT_READ] = {sizeof(struct wire_snapshot), 1, 0, WIRE_MAX, 0,
				false, false, kv_request_snapshot_read},
	[WIRE_SNAPSHOT_LIST] = {0, 0, 0, 0, 0, false, false,
				kv_request_snapshot_list},
	[WIRE_SAVE_PART] = {0, sizeof(struct wire_part), 0, WIRE_BATCH, 0,
			    false, false, kv_request_save_part},
};

static int dispatch(struct kv_client *client, size_t n, int fd)
{
	const struct wire_header *header = (void *)client->server->in;
	const struct shape *shape;
	struct kv_message m;

	if (n < sizeof(*header) || n > WIRE_MAX ||
	    header->type >= WIRE_TYPE_END)
		return -EPROTO;
	shape = &shapes[header->type];
	if (!shape->handle || (header->flags & ~shape->flags) ||
	    header->count < shape->min || header->count > shape->max ||
	    n != sizeof(*header) + shape->fixed + header->count * shape->item)
		return -EPROTO;
	if (shape->fd != (fd >= 0) ||
	    client->greeted == (header->type == WIRE_HELLO))
		return -EPROTO;
	if (!shape->open_tag && kv_request_find(client, header->tag))
		return -EPROTO;
	m = (struct kv_message){header, header + 1, fd};
	return shape->handle(client, &m);
}

/* Keep the first descriptor, close the others; returns how many there were. */
static size_t take_fds(struct msghdr *m, int *ret_fd)
{
	struct cmsghdr *c;
	size_t n = 0;
	int fd;

	for (c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		for (size_t at = CMSG_LEN(0); at + sizeof(fd) <= c->cmsg_len;
		     at += sizeof(fd)) {
			memcpy(&fd, (char *)c + at, sizeof(fd));
			if (n++ == 0)
				*ret_fd = fd;
			else
				close(fd);
		}
	}
	return n;
}

int kv_request_read(struct kv_client *client)
{
	struct kv_server *server = client->server;
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(FDS_MAX * sizeof(int))];
	} control;
	struct iovec iov = {server->in, sizeof(server->in)};
	struct msghdr m = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = control.room,
			   .msg_controllen = sizeof(control.room)};
	_cleanup_(kv_closep) int fd = -1;
	size_t fds;
	ssize_t n;

	n = recvmsg(client->socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	fds = n < 0 ? 0 : take_fds(&m, &fd);
	if (n <= 0) {
		kv_client_break(client, KV_BREAK_GONE);
		return 0;
	}
	server->tally.messages++;
	if (fds > 1 || (m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) ||
	    dispatch(client, (size_t)n, fd) < 0)
		kv_client_break(client, KV_BREAK_PROTOCOL);
	return 1;
}
