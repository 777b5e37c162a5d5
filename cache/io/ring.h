/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.h - asynchronous O_DIRECT I/O: one reactor thread and its io_uring, or a
 * few threads with pread/pwrite where io_uring is refused.
 *
 * A short transfer is continued where it stopped.  A request ends with 0 when
 * all of its bytes moved, else with -errno; -ENODATA: the file ends too early.
 * Reads go before writes and syncs, but a write or sync waits for at most four
 * times its own bytes of reads.  At most @depth requests of @bytes in all are
 * at the device, or a single larger one; the others wait in the queue, in
 * order.
 *
 * A request ends when the device no longer uses its memory, and never before,
 * however long that takes.  A caller may give up waiting, but the memory stays
 * lent.
 *
 * Threads: submit from any thread.  @done runs on the reactor thread, with no
 * lock held; it must not block, and may submit.  If the ring itself fails, all
 * queued and later requests end with -EIO, and kv_ring_failed returns true.
 */
#ifndef KV_CACHE_IO_RING_H
#define KV_CACHE_IO_RING_H

#include <sys/queue.h>

#include "common/histogram.h"

struct kv_ring;
struct kv_ring_backend;

/* A request is stuck if it has been at the device for longer than this. */
#define KV_IO_PATIENCE 30000000000ull /* ns */

enum kv_io_op { KV_IO_READ, KV_IO_WRITE, KV_IO_SYNC /* fdatasync */ };

/* A disk request.  The caller owns the memory, but must not touch it from
 * submit until @done. */
struct kv_io {
	enum kv_io_op op;
	int fd;	    /* must stay open until @done */
	int buffer; /* number of its buffer from kv_ring_add_buffer, or -1 */
	void *data; /* page aligned */
	uint64_t offset;
	uint64_t bytes; /* bytes to move: a multiple of KV_PAGE */
	void (*done)(struct kv_io *io, int status);
	/* used by the ring only */
	TAILQ_ENTRY(kv_io) link;
	struct kv_io_waiter *waiter;
	uint64_t moved, since;
};

struct kv_ring_config {
	unsigned depth; /* most requests at the device at a time */
	uint64_t bytes; /* most bytes of requests at the device; 0: no limit */
	/* most bytes of reads at the device; 0: same limit as @bytes */
	uint64_t read_bytes;
	unsigned buffers;  /* most buffers registered at a time */
	uint64_t patience; /* ns until a request is stuck; 0: KV_IO_PATIENCE */
	/* NULL: io_uring or, if the kernel refuses it, threads;
	 * kv_ring_describe then has the reason. */
	const struct kv_ring_backend *backend;
};

/* -ENOMEM. */
int kv_ring_new(const struct kv_ring_config *config, struct kv_ring **ret_ring);

/* Wait for all submitted requests, then free the ring.  Takes NULL. */
void kv_ring_free(struct kv_ring *ring);

/* Register memory for fixed I/O, from any thread.  Return its index, or -errno
 * if the kernel refuses (then use buffer = -1). */
int kv_ring_add_buffer(struct kv_ring *ring, void *data, uint64_t bytes);
/* Register memory with another ring, at the index that the first one returned;
 * if the kernel refuses, requests for this buffer are ordinary I/O. */
void kv_ring_share_buffer(struct kv_ring *ring, int index, void *data,
			  uint64_t bytes);
void kv_ring_remove_buffer(struct kv_ring *ring,
			   int buffer); /* the buffer is in use by no request */

void kv_ring_submit(struct kv_ring *ring, struct kv_io *io);

/* Submit @io and wait, not on the reactor thread; @done does not run.
 * -ETIMEDOUT: a request was stuck until the ring's patience ended.  @io then
 * belongs to the ring until @done runs. */
int kv_ring_wait(struct kv_ring *ring, struct kv_io *io);

/* Numbers of stuck requests: reads, and writes or syncs. */
struct kv_ring_stuck {
	unsigned reads, writes;
};
struct kv_ring_stuck kv_ring_stuck(struct kv_ring *ring);

/* Add up the nanoseconds that ended requests took at the device, by kv_io_op. */
void kv_ring_times(struct kv_ring *ring,
		   struct kv_histogram ret[KV_IO_SYNC + 1]);

/* Wait until nothing is pending.  -ETIMEDOUT: a request is stuck. */
int kv_ring_drain(struct kv_ring *ring);

bool kv_ring_failed(struct kv_ring *ring);

/* Return KV_RING_BEST or "threads (io_uring_setup: Operation not permitted)"; valid as
 * long as the ring. */
#define KV_RING_BEST "io_uring, fixed buffers"
const char *kv_ring_describe(struct kv_ring *ring);

/* Allocate page-aligned memory to read into; NULL: out of memory. */
uint8_t *kv_pages_new(uint64_t bytes);
void kv_pages_free(uint8_t *pages, uint64_t bytes);

/* ---- for the queue, its backends, and tests with a faulty backend ---- */

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
	struct kv_histogram times[KV_IO_SYNC + 1];
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
