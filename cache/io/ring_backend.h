/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_backend.h - interface between the ring's queue and its backends; for
 * cache/io/ring*.c and for tests with a faulty backend.
 */
#ifndef KV_CACHE_IO_RING_BACKEND_H
#define KV_CACHE_IO_RING_BACKEND_H

#include "cache/io/ring.h"

struct kv_ring_backend {
	/* Start the threads.  After a failure nothing may be left behind. */
	int (*start)(struct kv_ring *ring);
	/* Wake a thread, because a request was queued while a thread slept.
	 * Called without the lock. */
	void (*wake)(struct kv_ring *ring);
	/* End the threads.  Called when no request is pending and
	 * ring->stopping is set. */
	void (*stop)(struct kv_ring *ring);
	/* Register a buffer at @index; without @data, unregister the buffer at
	 * @index.  NULL: the backend has no fixed buffers. */
	int (*set_buffer)(struct kv_ring *ring, unsigned index, void *data,
			  uint64_t bytes);
};

extern const struct kv_ring_backend kv_ring_uring;
extern const struct kv_ring_backend kv_ring_threads;

struct kv_ring_buffer {
	bool taken;
	uint8_t *data; /* NULL: no buffer is registered with this number */
	uint64_t bytes;
};

TAILQ_HEAD(kv_ios, kv_io);

struct kv_ring {
	const struct kv_ring_backend *backend; /* constant after new */
	void *state; /* state of the backend; constant after its start */
	unsigned depth, max_buffers;	    /* constant after new */
	uint64_t max_bytes, max_read_bytes; /* constant after new */
	uint64_t patience;		    /* constant after new */

	pthread_mutex_t lock;
	pthread_cond_t work; /* signals a queued request, or @stopping */
	pthread_cond_t idle; /* signals that no request is pending */
	/* signals the end of a request that a caller waits for */
	pthread_cond_t ended;
	/* Guarded by @lock, as all fields down to @stopping: */
	struct kv_ios reads, others; /* requests not yet at the device */
	struct kv_ios flying;	     /* requests at the device, oldest first */
	uint64_t queued, pending;    /* pending: requests that have not ended */
	uint64_t bytes, read_bytes;  /* sums over the requests in @flying */
	/* bytes of reads started since the first of @others became first */
	uint64_t passed;
	unsigned sleepers; /* threads that wait for work */
	bool stopping;
	_Atomic bool failed;
	struct kv_ring_buffer *buffers; /* lock */

	const char *_Atomic describe;
	char working[128]; /* constant after new */
	char refused[128]; /* why io_uring was refused; constant after start */
};

/* Take the next request to start; NULL if there is none, or if a request at the
 * device must end first. */
struct kv_io *kv_ring_next_locked(struct kv_ring *ring);

/* Return whether @io can use its registered buffer. */
bool kv_ring_fixed_locked(struct kv_ring *ring, const struct kv_io *io);

/*
 * Handle the result @res of a system call on @io.  Return
 *   0       the request is complete
 *   1       continue it from io->moved
 *   -errno  it failed
 */
int kv_io_advance(struct kv_io *io, int64_t res);

/* Return the bytes to request next; a system call moves at most 2 GiB. */
static inline uint32_t kv_io_left(const struct kv_io *io)
{
	return (uint32_t)KV_MIN(io->bytes - io->moved, 1u << 30);
}

/* End @io, which its owner may have freed when this returns. */
void kv_ring_finish(struct kv_ring *ring, struct kv_io *io, int status);

#endif
