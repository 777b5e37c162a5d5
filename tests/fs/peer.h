/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer.h - a client of the control socket made of raw messages, for tests.
 *
 * The functions assert nothing, but return false or -errno, so that they also work in a
 * program that is not the test itself.
 */
#ifndef KV_TESTS_FS_PEER_H
#define KV_TESTS_FS_PEER_H

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "common/kv.h"
#include "common/wire.h"

#ifndef PEER_SEGMENTS
#define PEER_SEGMENTS 64
#endif
#ifndef PEER_WAIT_MS
#define PEER_WAIT_MS 10000
#endif

struct peer {
	int fd;
	uint64_t tag; /* tag of the last request */
	uint32_t space;
	/* bytes of the header, and of the tensors, of each block of the
	 * space */
	uint64_t header, payload;
	uint8_t *staging;
	uint64_t staging_bytes;
	struct {
		const uint8_t *data;
		uint64_t bytes;
	} segments[PEER_SEGMENTS]; /* mapped segments, indexed by segment id */
	unsigned n_segments, n_retired;
	/* The last message received. */
	_Alignas(8) uint8_t in[WIRE_MAX];
	int in_fd; /* descriptor that came with the message; -1: none */
};

#define PEER_HEADER(p) ((struct wire_header *)(p)->in)
#define PEER_ITEMS(p, type) ((type *)((p)->in + sizeof(struct wire_header)))

static inline bool peer_connect(struct peer *p, const char *path)
{
	struct sockaddr_un a = {.sun_family = AF_UNIX};

	memset(p, 0, sizeof(*p));
	p->in_fd = -1;
	snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
	p->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	return connect(p->fd, (struct sockaddr *)&a, sizeof(a)) == 0;
}

static inline void peer_close(struct peer *p)
{
	for (unsigned i = 0; i < PEER_SEGMENTS; i++)
		if (p->segments[i].data)
			munmap((void *)p->segments[i].data,
			       p->segments[i].bytes);
	if (p->staging)
		munmap(p->staging, p->staging_bytes);
	kv_closep(&p->fd);
	kv_closep(&p->in_fd);
}

/* Send any bytes in one message, with @n_fds copies of the descriptor @fd. */
static inline bool peer_raw(struct peer *p, const void *data, size_t n, int fd,
			    size_t n_fds)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(253 * sizeof(int))];
	} control;
	struct iovec iov = {(void *)data, n};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *c;

	if (n_fds) {
		m.msg_control = control.room;
		m.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
		c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(n_fds * sizeof(int));
		for (size_t i = 0; i < n_fds; i++)
			memcpy(CMSG_DATA(c) + i * sizeof(int), &fd,
			       sizeof(int));
	}
	return sendmsg(p->fd, &m, MSG_NOSIGNAL) == (ssize_t)n;
}

/* Receive one message.  Return its length, 0 at the end of the connection, or
 * -ETIMEDOUT. */
static inline ssize_t peer_receive(struct peer *p, int wait_ms)
{
	union {
		struct cmsghdr align;
		char room[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = {p->in, sizeof(p->in)};
	struct msghdr m = {.msg_iov = &iov,
			   .msg_iovlen = 1,
			   .msg_control = control.room,
			   .msg_controllen = sizeof(control.room)};
	struct pollfd poll_in = {.fd = p->fd, .events = POLLIN};
	ssize_t n;

	kv_closep(&p->in_fd);
	p->in_fd = -1;
	if (poll(&poll_in, 1, wait_ms) != 1)
		return -ETIMEDOUT;
	n = recvmsg(p->fd, &m, MSG_CMSG_CLOEXEC);
	if (n < 0)
		return errno == ECONNRESET ? 0 : -errno;
	if (CMSG_FIRSTHDR(&m))
		memcpy(&p->in_fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(int));
	return n;
}

static inline bool peer_at_end(struct peer *p)
{
	ssize_t n;

	while ((n = peer_receive(p, PEER_WAIT_MS)) > 0)
		;
	return n == 0;
}

struct peer_message {
	struct wire_header header;
	uint8_t items[WIRE_MAX - sizeof(struct wire_header)];
};

/* Send a request with a new tag.  Return the tag, or 0 on failure. */
static inline uint64_t peer_send(struct peer *p, const struct wire_header *like,
				 const void *items, size_t bytes, int fd)
{
	static _Thread_local struct peer_message m;

	m.header = *like;
	m.header.tag = ++p->tag;
	m.header.space = like->space ? like->space : p->space;
	if (bytes)
		memcpy(m.items, items, bytes);
	return peer_raw(p, &m, sizeof(m.header) + bytes, fd, fd >= 0) ? p->tag
								      : 0;
}

static inline bool peer_note_segment(struct peer *p)
{
	struct wire_segment *s = PEER_ITEMS(p, struct wire_segment);
	struct {
		struct wire_header header;
		struct wire_segment segment;
	} m = {{.type = WIRE_UNMAPPED, .count = 1}, *s};
	void *data;

	if (s->id >= PEER_SEGMENTS)
		return false;
	if (PEER_HEADER(p)->type == WIRE_RETIRE) {
		munmap((void *)p->segments[s->id].data,
		       p->segments[s->id].bytes);
		p->segments[s->id].data = NULL;
		p->n_retired++;
		return peer_raw(p, &m, sizeof(m), -1, 0);
	}
	data = mmap(NULL, s->bytes, PROT_READ, MAP_SHARED, p->in_fd, 0);
	if (data == MAP_FAILED)
		return false;
	p->segments[s->id].data = data;
	p->segments[s->id].bytes = s->bytes;
	p->n_segments++;
	return true;
}

/* Wait for the reply to @tag and store it in p->in.  Return its length, -ETIMEDOUT after
 * @wait_ms, or -EPIPE at the end of the connection. */
static inline ssize_t peer_reply(struct peer *p, uint64_t tag, int wait_ms)
{
	ssize_t n;

	while ((n = peer_receive(p, wait_ms)) > 0) {
		if (PEER_HEADER(p)->type == WIRE_SEGMENT ||
		    PEER_HEADER(p)->type == WIRE_RETIRE) {
			if (!peer_note_segment(p))
				return -EIO;
		} else if (PEER_HEADER(p)->tag == tag &&
			   PEER_HEADER(p)->flags == WIRE_REPLY) {
			return n;
		} else {
			return -EPROTO;
		}
	}
	return n == 0 ? -EPIPE : n;
}

/* Send a request, wait for the reply and return its status. */
static inline int peer_call(struct peer *p, const struct wire_header *like,
			    const void *items, size_t bytes, int fd)
{
	uint64_t tag = peer_send(p, like, items, bytes, fd);
	ssize_t n = tag ? peer_reply(p, tag, PEER_WAIT_MS) : -EPIPE;

	return n < 0 ? (int)n : PEER_HEADER(p)->status;
}

static inline int peer_hello_as(struct peer *p, uint32_t version)
{
	struct wire_hello hello = {.version = version};

	return peer_call(p,
			 &(struct wire_header){.type = WIRE_HELLO, .count = 1},
			 &hello, sizeof(hello), -1);
}

static inline int peer_hello(struct peer *p)
{
	return peer_hello_as(p, WIRE_VERSION);
}

/* Open a space, or make it if @flags say so, and remember its id. */
static inline int peer_space(struct peer *p, const char *name, const char *json,
			     uint32_t flags, uint32_t mode)
{
	struct {
		struct wire_space space;
		char text[2000];
	} m = {.space = {.flags = flags, .mode = mode}};
	struct wire_space *reply = PEER_ITEMS(p, struct wire_space);
	int n = snprintf(m.text, sizeof(m.text), "%s%c%s", name, 0, json), r;

	r = peer_call(
		p,
		&(struct wire_header){.type = WIRE_SPACE, .count = (uint32_t)n},
		&m, sizeof(m.space) + (size_t)n, -1);
	if (r == 0) {
		p->space = reply->id;
		p->header = reply->header;
		p->payload = reply->payload;
	}
	return r;
}

static inline int peer_staging(struct peer *p, uint64_t bytes)
{
	struct wire_staging staging = {bytes};
	int fd = memfd_create("staging", MFD_ALLOW_SEALING | MFD_CLOEXEC), r;

	if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) < 0)
		return -errno;
	p->staging =
		mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	p->staging_bytes = bytes;
	r = peer_call(p,
		      &(struct wire_header){.type = WIRE_STAGING, .count = 1},
		      &staging, sizeof(staging), fd);
	close(fd);
	return r;
}

/* Fill in the @n keys from number @first on: each has 32 bytes, and all
 * differ. */
static inline void peer_keys(struct wire_key *keys, uint32_t first, uint32_t n)
{
	memset(keys, 0, n * sizeof(*keys));
	for (uint32_t i = 0; i < n; i++) {
		memset(keys[i].key, (int)(first + i), sizeof(keys[i].key));
		memcpy(keys[i].key + 8, &(uint32_t){first + i}, sizeof(first));
		keys[i].len = 32;
	}
}

/* Send a request about @n keys whose reply has a wire_status for each key.  Return the
 * first status that is not 0, or 0. */
static inline int peer_each(struct peer *p, const struct wire_header *like,
			    uint32_t first, uint32_t n)
{
	struct wire_key keys[WIRE_BATCH];
	struct wire_header header = *like;
	struct wire_status *statuses = PEER_ITEMS(p, struct wire_status);
	int r;

	peer_keys(keys, first, n);
	header.count = n;
	r = peer_call(p, &header, keys, n * sizeof(*keys), -1);
	for (uint32_t i = 0; r == 0 && i < n; i++)
		r = statuses[i].status;
	return r;
}

static inline int peer_do(struct peer *p, enum wire_type type, uint32_t first,
			  uint32_t n)
{
	return peer_each(p, &(struct wire_header){.type = (uint16_t)type},
			 first, n);
}

/* Return the byte with which block @key is filled. */
static inline uint8_t peer_fill(uint32_t key)
{
	return (uint8_t)(key * 37 + 11);
}

/* Send a SAVE of reserved blocks, each from an offset of its own in the staging
 * memory, without waiting for the reply. */
static inline uint64_t peer_send_saves(struct peer *p, uint32_t first,
				       uint32_t n)
{
	struct wire_save saves[WIRE_BATCH] = {0};
	struct wire_key keys[WIRE_BATCH];

	peer_keys(keys, first, n);
	for (uint32_t i = 0; i < n; i++) {
		memcpy(saves[i].key, keys[i].key, 32);
		saves[i].len = 32;
		saves[i].position = i;
		saves[i].offset = i * p->payload;
		if (p->staging &&
		    saves[i].offset + p->payload <= p->staging_bytes)
			memset(p->staging + saves[i].offset,
			       peer_fill(first + i), p->payload);
	}
	return peer_send(p,
			 &(struct wire_header){.type = WIRE_SAVE, .count = n},
			 saves, n * sizeof(*saves), -1);
}

static inline int peer_saved(struct peer *p, uint64_t tag)
{
	struct wire_status *statuses = PEER_ITEMS(p, struct wire_status);
	ssize_t n = peer_reply(p, tag, PEER_WAIT_MS);
	int r = n < 0 ? (int)n : PEER_HEADER(p)->status;

	for (uint32_t i = 0; r == 0 && i < PEER_HEADER(p)->count; i++)
		r = statuses[i].status;
	return r;
}

/* Reserve @n keys from number @first on, and save their blocks. */
static inline int peer_save(struct peer *p, uint32_t first, uint32_t n)
{
	int r = peer_do(p, WIRE_RESERVE, first, n);

	return r < 0 ? r : peer_saved(p, peer_send_saves(p, first, n));
}

static inline uint64_t peer_send_acquire(struct peer *p, uint32_t first,
					 uint32_t n, uint16_t flags,
					 uint64_t wait_ns)
{
	struct wire_key keys[WIRE_BATCH];

	peer_keys(keys, first, n);
	return peer_send(p,
			 &(struct wire_header){.type = WIRE_ACQUIRE,
					       .flags = flags,
					       .count = n,
					       .arg = wait_ns},
			 keys, n * sizeof(*keys), -1);
}

/* Return how many blocks of an acquire are leased, or an error. */
static inline long peer_acquired(struct peer *p, uint64_t tag)
{
	struct wire_place *places = PEER_ITEMS(p, struct wire_place);
	ssize_t n = peer_reply(p, tag, PEER_WAIT_MS);
	long held = 0;

	if (n < 0)
		return n;
	for (uint32_t i = 0; i < PEER_HEADER(p)->count; i++)
		held += places[i].status == 0;
	return held;
}

static inline long peer_acquire(struct peer *p, uint32_t first, uint32_t n)
{
	return peer_acquired(p, peer_send_acquire(p, first, n, 0, 0));
}

/* Return true if block @i of the acquire that was just answered has the bytes of
 * @key. */
static inline bool peer_right(struct peer *p, uint32_t i, uint32_t key)
{
	struct wire_place place = PEER_ITEMS(p, struct wire_place)[i];
	const uint8_t *data;

	if (place.status || place.segment >= PEER_SEGMENTS ||
	    place.length != p->header + p->payload ||
	    place.payload != p->header)
		return false;
	data = p->segments[place.segment].data;
	if (!data ||
	    place.offset + place.length > p->segments[place.segment].bytes)
		return false;
	data += place.offset + place.payload;
	for (uint64_t at = 0; at < p->payload; at++)
		if (data[at] != peer_fill(key))
			return false;
	return true;
}

static inline bool peer_release(struct peer *p, uint64_t tag)
{
	struct wire_header m = {.type = WIRE_RELEASE, .tag = tag};

	return peer_raw(p, &m, sizeof(m), -1, 0);
}

static inline bool peer_cancel(struct peer *p, uint64_t tag)
{
	struct wire_header m = {.type = WIRE_CANCEL, .tag = tag};

	return peer_raw(p, &m, sizeof(m), -1, 0);
}

/* Return the state of a key (absent, in DRAM, on SSD), or an error. */
static inline int peer_probe(struct peer *p, uint32_t key)
{
	struct wire_key wire;
	int r;

	peer_keys(&wire, key, 1);
	r = peer_call(p, &(struct wire_header){.type = WIRE_PROBE, .count = 1},
		      &wire, sizeof(wire), -1);
	return r < 0 ? r : PEER_ITEMS(p, struct wire_state)->state;
}

#endif
