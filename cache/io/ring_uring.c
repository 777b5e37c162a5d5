/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_uring.c - disk requests by io_uring: one reactor thread.
 *
 * OWNS      the io_uring, the eventfd that wakes the reactor, and the
 *           requests at the device.
 *
 * STATES    of the reactor, and the function that makes each step:
 *
 *             RUNNING -> FAILED   react            (io_uring_enter fails for good)
 *             RUNNING -> ended    react            (stopping)
 *              FAILED -> ended    carry_on_failed  (stopping)
 *
 * INVARIANTS
 *   (1) flying[i] is a request or NULL; n_flying counts the requests, free_at[]
 *       lists the NULLs.  A flying request has exactly one submission or
 *       completion entry in the ring, whose user_data is i + 1.
 *   (2) The ring has an entry for every flying request and one for the eventfd,
 *       so io_uring_get_sqe never fails.
 *   (3) A request whose memory the kernel may still write is not ended, even if
 *       the ring has failed.
 *
 * LOCKING   ring->lock, by ring.c's rules.  Only the reactor uses struct uring, except
 *           the eventfd and the registration of buffers, which the kernel
 *           locks. IORING_SETUP_SINGLE_ISSUER is not set, because any thread
 *           registers buffers.
 */
#include <liburing.h>
#include <stdio.h>
#include <sys/eventfd.h>

#include "common/thread.h"
#include "cache/io/ring.h"

#define WAKE_TAG 0

struct flight {
	struct kv_io *io;
	bool fixed;
};

struct uring {
	struct io_uring uring;
	pthread_t reactor;
	int event;
	uint64_t event_value;
	bool event_armed;
	struct flight *flying;
	unsigned *free_at;
	unsigned n_flying;
	bool failed; /* the reactor's copy of ring->failed */
};

static struct io_uring_sqe *next_sqe(struct uring *u)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&u->uring);

	assert(sqe);
	return sqe;
}

static void prepare(struct uring *u, unsigned at)
{
	const struct kv_io *io = u->flying[at].io;
	struct io_uring_sqe *sqe = next_sqe(u);
	uint8_t *data = io->data ? (uint8_t *)io->data + io->moved : NULL;
	const uint64_t offset = io->offset + io->moved;

	if (io->op == KV_IO_SYNC)
		io_uring_prep_fsync(sqe, io->fd, IORING_FSYNC_DATASYNC);
	else if (io->op == KV_IO_READ && u->flying[at].fixed)
		io_uring_prep_read_fixed(sqe, io->fd, data, kv_io_left(io),
					 offset, io->buffer);
	else if (io->op == KV_IO_READ)
		io_uring_prep_read(sqe, io->fd, data, kv_io_left(io), offset);
	else if (u->flying[at].fixed)
		io_uring_prep_write_fixed(sqe, io->fd, data, kv_io_left(io),
					  offset, io->buffer);
	else
		io_uring_prep_write(sqe, io->fd, data, kv_io_left(io), offset);
	io_uring_sqe_set_data64(sqe, at + 1);
}

static void arm_event(struct uring *u)
{
	struct io_uring_sqe *sqe;

	if (u->event_armed)
		return;
	sqe = next_sqe(u);
	io_uring_prep_read(sqe, u->event, &u->event_value,
			   sizeof(u->event_value), 0);
	io_uring_sqe_set_data64(sqe, WAKE_TAG);
	u->event_armed = true;
}

/* End the request in flying[@at]. */
static void land(struct kv_ring *ring, struct uring *u, unsigned at, int status)
{
	struct kv_io *io = kv_steal(u->flying[at].io);

	u->free_at[--u->n_flying] = at;
	kv_ring_finish(ring, io, status);
}

/* Take completions: end their requests, or continue short transfers. */
static void reap(struct kv_ring *ring, struct uring *u)
{
	struct io_uring_cqe *cqe;
	unsigned head, n = 0;

	io_uring_for_each_cqe(&u->uring, head, cqe) {
		const unsigned at = (unsigned)cqe->user_data - 1;
		int r;

		n++;
		if (cqe->user_data == WAKE_TAG) {
			u->event_armed = false;
			continue;
		}
		r = kv_io_advance(u->flying[at].io, cqe->res);
		if (r > 0 && !u->failed)
			prepare(u, at);
		else
			land(ring, u, at, r != 0 && u->failed ? -EIO : r);
	}
	io_uring_cq_advance(&u->uring, n);
}

static void nap(long ms)
{
	nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

/* Run the reactor after the ring has failed, until it is stopped.  End queued
 * requests, and those that the kernel has not taken; reap requests at the
 * device as they end. */
static void carry_on_failed(struct kv_ring *ring, struct uring *u)
{
	const struct io_uring_sq *sq = &u->uring.sq;

	ring->failed = true;
	u->failed = true;
	reap(ring, u);
	for (unsigned head = *sq->khead; head != sq->sqe_tail; head++) {
		const uint64_t tag = sq->sqes[head & sq->ring_mask].user_data;

		if (tag != WAKE_TAG)
			land(ring, u, (unsigned)tag - 1, -EIO);
	}
	while (true) {
		struct kv_io *io;
		bool go;

		pthread_mutex_lock(&ring->lock);
		while ((io = kv_ring_next_locked(ring))) {
			pthread_mutex_unlock(&ring->lock);
			kv_ring_finish(ring, io, -EIO);
			pthread_mutex_lock(&ring->lock);
		}
		go = !ring->stopping;
		pthread_mutex_unlock(&ring->lock);
		if (!go)
			return;
		nap(10);
		reap(ring, u);
	}
}

static void *react(void *arg)
{
	struct kv_ring *ring = arg;
	struct uring *u = ring->state;
	struct kv_io *io;
	bool go;
	int r = 0;

	arm_event(u);
	while (r >= 0 || r == -EINTR || r == -EAGAIN || r == -EBUSY) {
		/* Start queued requests, up to the ring's depth. */
		pthread_mutex_lock(&ring->lock);
		while (u->n_flying < ring->depth &&
		       (io = kv_ring_next_locked(ring))) {
			const unsigned at = u->free_at[u->n_flying++];

			u->flying[at].io = io;
			u->flying[at].fixed = kv_ring_fixed_locked(ring, io);
			prepare(u, at);
		}
		ring->sleepers = u->n_flying < ring->depth && ring->queued == 0;
		go = !ring->stopping;
		pthread_mutex_unlock(&ring->lock);
		if (!go)
			return NULL;
		r = io_uring_submit_and_wait(&u->uring, 1);
		if (r == -EAGAIN)
			nap(1); /* the kernel is short of memory: retry */
		pthread_mutex_lock(&ring->lock);
		ring->sleepers = 0;
		pthread_mutex_unlock(&ring->lock);
		reap(ring, u);
		arm_event(u);
	}
	carry_on_failed(ring, u);
	return NULL;
}

static void uring_wake(struct kv_ring *ring)
{
	struct uring *u = ring->state;
	const uint64_t one = 1;

	if (write(u->event, &one, sizeof(one)) < 0)
		return; /* the eventfd is full: the reactor will wake up */
}

static void uring_freep(struct uring **u)
{
	if (!*u)
		return;
	kv_closep(&(*u)->event);
	free((*u)->flying);
	free((*u)->free_at);
	free(*u);
}

static void uring_stop(struct kv_ring *ring)
{
	_cleanup_(uring_freep) struct uring *u = ring->state;

	uring_wake(ring);
	pthread_join(u->reactor, NULL);
	io_uring_queue_exit(&u->uring);
}

static int uring_start(struct kv_ring *ring)
{
	_cleanup_(uring_freep) struct uring *u = calloc(1, sizeof(*u));
	int r;

	if (!u)
		return -ENOMEM;
	u->event = eventfd(0, EFD_CLOEXEC);
	u->flying = calloc(ring->depth, sizeof(*u->flying));
	u->free_at = calloc(ring->depth, sizeof(*u->free_at));
	if (u->event < 0 || !u->flying || !u->free_at)
		return -ENOMEM;
	for (unsigned i = 0; i < ring->depth; i++)
		u->free_at[i] = i;
	/* Deliver completions when the reactor calls, without interrupts. */
	r = io_uring_queue_init(ring->depth + 1, &u->uring,
				IORING_SETUP_COOP_TASKRUN);
	if (r == -EINVAL)
		r = io_uring_queue_init(ring->depth + 1, &u->uring, 0);
	if (r < 0)
		return r;
	if (ring->max_buffers > 0)
		r = io_uring_register_buffers_sparse(&u->uring,
						     ring->max_buffers);
	if (r < 0) {
		snprintf(ring->working, sizeof(ring->working),
			 "io_uring, no fixed buffers (%s)",
			 strerrordesc_np(-r));
		ring->max_buffers = 0;
	}
	ring->state = u;
	r = kv_thread_start(&u->reactor, "kvfs-ring", react, ring);
	if (r < 0) {
		io_uring_queue_exit(&u->uring);
		return r;
	}
	kv_steal(u);
	return 0;
}

static int update_buffer(struct kv_ring *ring, unsigned index, void *data,
			 uint64_t bytes)
{
	struct uring *u = ring->state;
	struct iovec iov = {data, bytes};
	__u64 tag = 0;
	int r;

	r = io_uring_register_buffers_update_tag(&u->uring, index, &iov, &tag,
						 1);
	return r < 0 ? r : 0;
}

const struct kv_ring_backend kv_ring_uring = {
	.start = uring_start,
	.wake = uring_wake,
	.stop = uring_stop,
	.set_buffer = update_buffer,
};
