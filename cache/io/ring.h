/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.h - asynchronous O_DIRECT I/O: one reactor thread and its io_uring, or
 * a few threads with pread/pwrite where io_uring is refused.
 *
 * Whole requests only: a short completion is continued from where it stopped
 * and a request ends with 0 when its every byte moved, else with -errno, which
 * is -ENODATA where the file ends too early.  Reads go before writes and syncs,
 * which are not starved: one of them goes after reads of four times its bytes.
 * At most @depth requests of @bytes in all are at the device, or a single
 * larger one; the rest wait in the queue, in order.
 *
 * A request ends when its bytes are the device's no more, and never before,
 * however long that takes: whoever waits may give up, the memory stays lent.
 *
 * Threads: submit from any thread.  @done runs on the reactor thread, with no
 * lock held; it must not block, and may submit.  If the ring itself fails,
 * everything that is not at the device ends with -EIO and every later submit
 * too; kv_ring_failed then says so.
 */
#ifndef KV_CACHE_IO_RING_H
#define KV_CACHE_IO_RING_H

#include <sys/queue.h>

#include "common/kv.h"

struct kv_ring;
struct kv_ring_backend; /* ring_backend.h */

/* A request that is at the device for longer is stuck. */
#define KV_IO_PATIENCE 30000000000ull /* ns */

enum kv_io_op { KV_IO_READ, KV_IO_WRITE, KV_IO_SYNC /* fdatasync */ };

/* Caller's memory; untouched by the caller from submit until @done. */
struct kv_io {
	enum kv_io_op op;
	int fd;	    /* open until done */
	int buffer; /* from kv_ring_add_buffer, or -1 */
	void *data; /* page aligned */
	uint64_t offset;
	uint64_t bytes; /* multiple of KV_PAGE */
	void (*done)(struct kv_io *io, int status);
	/* the ring's own */
	TAILQ_ENTRY(kv_io) link;
	struct kv_io_waiter *waiter;
	uint64_t moved, since;
};

struct kv_ring_config {
	unsigned depth;	     /* requests at the device */
	uint64_t bytes;	     /* of these requests; 0: any */
	uint64_t read_bytes; /* of the reads among them; 0: bytes */
	unsigned buffers;    /* the most ever registered at a time */
	uint64_t patience;   /* ns; 0: KV_IO_PATIENCE */
	/* NULL: io_uring, or threads where that is refused, and then
	 * kv_ring_describe says why. */
	const struct kv_ring_backend *backend;
};

/* -ENOMEM. */
int kv_ring_new(const struct kv_ring_config *config, struct kv_ring **ret_ring);

/* Waits for everything submitted, then frees.  Takes NULL. */
void kv_ring_free(struct kv_ring *ring);

/*
 * Register memory for fixed I/O; returns its index, or -errno when that is
 * refused (I/O then works without, buffer = -1).  Any thread.
 */
int kv_ring_add_buffer(struct kv_ring *ring, void *data, uint64_t bytes);
void kv_ring_remove_buffer(struct kv_ring *ring,
			   int buffer); /* idle ones only */

void kv_ring_submit(struct kv_ring *ring, struct kv_io *io);

/*
 * Submit and wait, on the caller's thread (not the reactor's); @done does not
 * run.  -ETIMEDOUT: it waited for the ring's patience, and something is stuck.
 * Then @io, too, is not the caller's before @done has run after all.
 */
int kv_ring_wait(struct kv_ring *ring, struct kv_io *io);

/* How many requests are stuck; syncs count as writes. */
struct kv_ring_stuck {
	unsigned reads, writes;
};
struct kv_ring_stuck kv_ring_stuck(struct kv_ring *ring);

/* Wait until nothing is pending; -ETIMEDOUT: something is stuck. */
int kv_ring_drain(struct kv_ring *ring);

bool kv_ring_failed(struct kv_ring *ring);

/* "io_uring, fixed buffers" or "threads (io_uring_setup: Operation not
 * permitted)"; lives as long as the ring. */
const char *kv_ring_describe(struct kv_ring *ring);

/* Memory to read into; NULL: there is none. */
uint8_t *kv_pages_new(uint64_t bytes);
void kv_pages_free(uint8_t *pages, uint64_t bytes);

#endif
