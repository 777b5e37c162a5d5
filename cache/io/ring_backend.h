/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_backend.h - between the ring's queue and what carries it out; for
 * cache/ring*.c and for tests that carry it out badly.
 */
#ifndef KV_CACHE_IO_RING_BACKEND_H
#define KV_CACHE_IO_RING_BACKEND_H

#include "cache/io/ring.h"

struct kv_ring_backend {
	/* Start the threads.  On failure nothing is left behind. */
	int (*start)(struct kv_ring *ring);
	/* Something was queued while a thread slept; the lock is not held. */
	void (*wake)(struct kv_ring *ring);
	/* Nothing is pending and ring->stopping is set: end the threads. */
	void (*stop)(struct kv_ring *ring);
	int (*add_buffer)(struct kv_ring *ring, unsigned index, void *data,
			  uint64_t bytes);
	void (*remove_buffer)(struct kv_ring *ring, unsigned index);
};

extern const struct kv_ring_backend kv_ring_uring;
extern const struct kv_ring_backend kv_ring_threads;

struct kv_ring_buffer {
	bool taken;
	uint8_t *data; /* NULL: not usable, or not yet */
	uint64_t bytes;
};

TAILQ_HEAD(kv_ios, kv_io);

struct kv_ring {
	const struct kv_ring_backend *backend; /* fixed after new */
	void *state;		     /* the backend's; fixed after start */
	unsigned depth, max_buffers; /* fixed after new */
	uint64_t max_bytes, max_read_bytes; /* fixed after new */
	uint64_t patience;		    /* fixed after new */

	pthread_mutex_t lock;
	pthread_cond_t work;		/* queued, or stopping */
	pthread_cond_t idle;		/* pending is 0 */
	pthread_cond_t ended;		/* somebody's wait is over */
	struct kv_ios reads, others;	/* lock; queued */
	struct kv_ios flying;		/* lock; at the device, by since */
	uint64_t queued, pending;	/* lock; pending: not yet done */
	uint64_t bytes, read_bytes;	/* lock; of those in flying */
	uint64_t passed;		/* lock; of reads, ahead of a write */
	unsigned sleepers;		/* lock; threads that wait for work */
	bool stopping, failed;		/* lock */
	struct kv_ring_buffer *buffers; /* lock */

	const char *describe; /* lock */
	char working[128];    /* fixed after new */
	char refused[128];    /* written once, before describe points there */
};

/* The next request to start; NULL if there is none, or if one that is at the
 * device must end first. */
struct kv_io *kv_ring_next_locked(struct kv_ring *ring);

/* Whether @io can use its registered buffer. */
bool kv_ring_fixed_locked(struct kv_ring *ring, const struct kv_io *io);

/*
 * Take the result @res of a system call on @io: 0 the request is complete, 1 to
 * be continued from io->moved, or -errno.
 */
int kv_io_advance(struct kv_io *io, int64_t res);

/* Bytes to ask for next; a system call moves no more than 2 GiB. */
static inline uint32_t kv_io_left(const struct kv_io *io)
{
	return (uint32_t)KV_MIN(io->bytes - io->moved, 1u << 30);
}

/* End @io, which may be gone when this returns. */
void kv_ring_finish(struct kv_ring *ring, struct kv_io *io, int status);

#endif
