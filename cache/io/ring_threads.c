/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_threads.c - disk requests by a few threads, where io_uring is refused.
 *
 * OWNS      its threads, and each request from when a thread takes it until its
 *           done has returned.
 *
 * INVARIANTS
 *   (1) One done runs at a time, as with io_uring's one reactor.
 *
 * LOCKING   ring->lock, by ring.c's rules.  workers->turn is held while a done
 *           runs, which breaks "no lock held" for nobody: only these threads
 *           take it, and none of them holds anything then.
 */
#include "common/thread.h"
#include "cache/io/ring_backend.h"

#define THREADS 4

struct workers {
	pthread_t threads[THREADS];
	unsigned n; /* fixed after start */
	pthread_mutex_t turn;
};

static int64_t once(const struct kv_io *io)
{
	/* A sync has none. */
	uint8_t *data = io->data ? (uint8_t *)io->data + io->moved : NULL;
	const off_t offset = (off_t)(io->offset + io->moved);
	ssize_t n;

	switch (io->op) {
	case KV_IO_READ:
		n = pread(io->fd, data, kv_io_left(io), offset);
		break;
	case KV_IO_WRITE:
		n = pwrite(io->fd, data, kv_io_left(io), offset);
		break;
	default:
		n = fdatasync(io->fd);
		break;
	}
	return n < 0 ? -errno : n;
}

static struct kv_io *wait_for_work(struct kv_ring *ring)
{
	struct kv_io *io;

	pthread_mutex_lock(&ring->lock);
	while (!(io = kv_ring_next_locked(ring)) && !ring->stopping) {
		ring->sleepers++;
		pthread_cond_wait(&ring->work, &ring->lock);
	}
	pthread_mutex_unlock(&ring->lock);
	return io;
}

static void *work(void *arg)
{
	struct kv_ring *ring = arg;
	struct workers *workers = ring->state;
	struct kv_io *io;
	int r;

	while ((io = wait_for_work(ring))) {
		do
			r = kv_io_advance(io, once(io));
		while (r > 0);
		pthread_mutex_lock(&workers->turn);
		kv_ring_finish(ring, io, r);
		pthread_mutex_unlock(&workers->turn);
	}
	return NULL;
}

static void threads_wake(struct kv_ring *ring)
{
	pthread_cond_signal(&ring->work);
}

static void threads_stop(struct kv_ring *ring)
{
	struct workers *workers = ring->state;

	pthread_mutex_lock(&ring->lock);
	ring->stopping = true;
	pthread_cond_broadcast(&ring->work);
	pthread_mutex_unlock(&ring->lock);
	for (unsigned i = 0; i < workers->n; i++)
		pthread_join(workers->threads[i], NULL);
	pthread_mutex_destroy(&workers->turn);
	free(workers);
}

static int threads_start(struct kv_ring *ring)
{
	struct workers *workers = calloc(1, sizeof(*workers));
	const unsigned want = KV_MIN(ring->depth, (unsigned)THREADS);

	if (!workers)
		return -ENOMEM;
	pthread_mutex_init(&workers->turn, NULL);
	ring->state = workers;
	while (workers->n < want &&
	       kv_thread_start(&workers->threads[workers->n], "kvfs-ring", work,
			       ring) == 0)
		workers->n++;
	if (workers->n > 0)
		return 0;
	threads_stop(ring);
	return -EAGAIN;
}

const struct kv_ring_backend kv_ring_threads = {
	.start = threads_start,
	.wake = threads_wake,
	.stop = threads_stop,
};
