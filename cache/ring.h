/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.h - asynchronous O_DIRECT I/O: one reactor thread and its io_uring, or
 * a few threads with pread/pwrite where io_uring is refused.
 *
 * Whole requests only: a short completion is continued from where it stopped
 * and a request ends with 0 when its every byte moved, else with -errno.  Reads
 * go before writes.  At most @depth requests are at the device, the rest wait
 * in the queue, in order.
 *
 * Threads: submit from any thread.  @done runs on the reactor thread, with no
 * lock held; it must not block, and may submit.  If the ring itself fails,
 * everything pending ends with -EIO and every later submit too; kv_ring_failed
 * then says so.
 */
#ifndef KV_RING_H
#define KV_RING_H

#include "kv.h"

struct kv_ring;

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
	struct kv_io *next;
	uint64_t moved;
};

/*
 * @depth requests in flight; @buffers is the most that will ever be registered
 * at a time.  @force_threads: do not try io_uring (tests, fallback).
 * Falls back to threads by itself and says why in kv_ring_describe.
 * -ENOMEM.
 */
int kv_ring_new(unsigned depth, unsigned buffers, bool force_threads,
		struct kv_ring **ret_ring);

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

/* Submit and wait, on the caller's thread (not the reactor's). */
int kv_ring_wait(struct kv_ring *ring, struct kv_io *io);

bool kv_ring_failed(struct kv_ring *ring);

/* "io_uring, fixed buffers" or "threads (io_uring_setup: Operation not
 * permitted)"; lives as long as the ring. */
const char *kv_ring_describe(struct kv_ring *ring);

#endif
