/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring.c - the queue of disk requests, and the choice of their backend:
 * io_uring (ring_uring.c) or, where the kernel refuses io_uring, a few threads.
 *
 * OWNS      the two queues, the table of registered buffers, and the threads,
 *           with each request that a thread has taken until its done returns.
 *
 * STATES    of a request, and the function that makes each step:
 *
 *             caller's -> QUEUED     kv_ring_submit
 *               QUEUED -> FLYING     kv_ring_next_locked
 *               FLYING -> caller's   kv_ring_finish
 *
 * INVARIANTS
 *   (1) queued is the length of both queues, and at most pending.
 *   (2) A request is pending until its done has returned.
 *   (3) sleepers is at least the number of threads that wait without a pending
 *       wake-up; a higher number costs only a system call.
 *   (4) A buffer without data is never used, even if its index is given out.
 *   (5) passed is the bytes of the reads that were started since the first of
 *       the other requests became first; 0 if there is none.
 *   (6) flying lists the requests at the device, the oldest first; bytes is
 *       their sum, read_bytes the sum of the reads.
 *   (7) One done of the threads runs at a time, as with io_uring's one reactor.
 *
 * LOCKING   ring->lock guards every field marked so.  The lock is a leaf: no
 *           other lock is taken, no system call made and no done run under it.
 *           workers->turn is held while a done runs: only the threads take it,
 *           and they hold no other lock then.
 */
#include <signal.h>
#include <stdio.h>

#include "cache/io/ring.h"
#include "common/thread.h"
#include <sys/mman.h>

#define THREADS 4u
#define READ_SHARE 4u
#define SMALL_BYTES (64u << 10) /* bytes that a sync or small write costs */

static void check_locked(struct kv_ring *ring)
{
	kv_assert_locked(&ring->lock);
	assert(ring->queued <= ring->pending);
	assert((ring->queued == 0) ==
	       (TAILQ_EMPTY(&ring->reads) && TAILQ_EMPTY(&ring->others)));
}

static void count_flying(struct kv_ring *ring, const struct kv_io *io,
			 bool more)
{
	const uint64_t bytes = more ? io->bytes : -io->bytes;

	ring->bytes += bytes;
	ring->read_bytes += io->op == KV_IO_READ ? bytes : 0;
}

struct kv_io *kv_ring_next_locked(struct kv_ring *ring)
{
	const struct kv_io *other = TAILQ_FIRST(&ring->others);
	/* Reads go first until they have moved READ_SHARE times the bytes of
	 * the first write that waits. */
	const bool read =
		!TAILQ_EMPTY(&ring->reads) &&
		(!other ||
		 ring->passed < READ_SHARE * KV_MAX(other->bytes, SMALL_BYTES));
	struct kv_io *io = TAILQ_FIRST(read ? &ring->reads : &ring->others);
	uint64_t flying, max;

	kv_assert_locked(&ring->lock);
	flying = read ? ring->read_bytes : ring->bytes;
	max = read ? ring->max_read_bytes : ring->max_bytes;
	if (!io || (flying && io->bytes > max - KV_MIN(flying, max)))
		return NULL;
	TAILQ_REMOVE(read ? &ring->reads : &ring->others, io, link);
	ring->passed = read && !TAILQ_EMPTY(&ring->others)
			       ? ring->passed + io->bytes
			       : 0;
	count_flying(ring, io, true);
	io->since = kv_now_ns();
	TAILQ_INSERT_TAIL(&ring->flying, io, link);
	ring->queued--;
	check_locked(ring);
	return io;
}

bool kv_ring_fixed_locked(struct kv_ring *ring, const struct kv_io *io)
{
	const struct kv_ring_buffer *buffer;
	const uint8_t *data = io->data;

	kv_assert_locked(&ring->lock);
	if (io->buffer < 0 || (unsigned)io->buffer >= ring->max_buffers)
		return false;
	buffer = &ring->buffers[io->buffer];
	return buffer->data && data >= buffer->data &&
	       io->bytes <= buffer->bytes &&
	       (uint64_t)(data - buffer->data) <= buffer->bytes - io->bytes;
}

/* An O_DIRECT request must begin at a whole page, so it cannot continue after a
 * transfer of less than a page: the file or the disk's space ends there. */
int kv_io_advance(struct kv_io *io, int64_t res)
{
	if (res == -EAGAIN || res == -EINTR)
		return 1;
	if (res < 0)
		return (int)res;
	if (io->op == KV_IO_SYNC)
		return 0;
	if ((uint64_t)res >= io->bytes - io->moved) {
		io->moved = io->bytes;
		return 0;
	}
	if (res < KV_PAGE)
		return io->op == KV_IO_READ ? -ENODATA : -ENOSPC;
	io->moved += (uint64_t)res & ~(uint64_t)(KV_PAGE - 1);
	return 1;
}

struct kv_io_waiter {
	bool ended;
	int status;
};

void kv_ring_finish(struct kv_ring *ring, struct kv_io *io, int status)
{
	const uint64_t now = kv_now_ns();
	struct kv_io_waiter *waiter;

	pthread_mutex_lock(&ring->lock);
	TAILQ_REMOVE(&ring->flying, io, link);
	kv_histogram_add(&ring->times[io->op], now - io->since);
	count_flying(ring, io, false);
	waiter = io->waiter;
	if (waiter) {
		waiter->status = status;
		waiter->ended = true;
		pthread_cond_broadcast(&ring->ended);
	}
	pthread_mutex_unlock(&ring->lock);
	if (!waiter)
		io->done(io, status);

	pthread_mutex_lock(&ring->lock);
	if (--ring->pending == 0)
		pthread_cond_broadcast(&ring->idle);
	check_locked(ring);
	pthread_mutex_unlock(&ring->lock);
}

static void submit(struct kv_ring *ring, struct kv_io *io,
		   struct kv_io_waiter *waiter)
{
	bool wake = false;

	io->moved = 0;
	io->waiter = waiter;
	pthread_mutex_lock(&ring->lock);
	TAILQ_INSERT_TAIL(io->op == KV_IO_READ ? &ring->reads : &ring->others,
			  io, link);
	ring->queued++;
	ring->pending++;
	if (ring->sleepers > 0) {
		ring->sleepers--;
		wake = true;
	}
	check_locked(ring);
	pthread_mutex_unlock(&ring->lock);
	if (wake)
		ring->backend->wake(ring);
}

void kv_ring_submit(struct kv_ring *ring, struct kv_io *io)
{
	submit(ring, io, NULL);
}

static struct kv_ring_stuck stuck_locked(struct kv_ring *ring)
{
	const uint64_t now = kv_now_ns();
	struct kv_ring_stuck stuck = {0};
	struct kv_io *io;

	TAILQ_FOREACH(io, &ring->flying, link) {
		if (now - io->since < ring->patience)
			break;
		if (io->op == KV_IO_READ)
			stuck.reads++;
		else
			stuck.writes++;
	}
	return stuck;
}

struct kv_ring_stuck kv_ring_stuck(struct kv_ring *ring)
{
	struct kv_ring_stuck stuck;

	pthread_mutex_lock(&ring->lock);
	stuck = stuck_locked(ring);
	pthread_mutex_unlock(&ring->lock);
	return stuck;
}

void kv_ring_times(struct kv_ring *ring,
		   struct kv_histogram ret[KV_IO_SYNC + 1])
{
	pthread_mutex_lock(&ring->lock);
	for (unsigned op = 0; op <= KV_IO_SYNC; op++) {
		ret[op].sum += ring->times[op].sum;
		for (unsigned i = 0; i < KV_ARRAY_LEN(ret[op].at); i++)
			ret[op].at[i] += ring->times[op].at[i];
	}
	pthread_mutex_unlock(&ring->lock);
}

/* Wait on @cond for a short time.  Return whether a request is stuck then. */
static bool wait_a_little(struct kv_ring *ring, pthread_cond_t *cond)
{
	struct kv_ring_stuck stuck;

	kv_cond_wait_until(cond, &ring->lock,
			   kv_now_ns() + KV_MIN(ring->patience, 1000000000u));
	stuck = stuck_locked(ring);
	return stuck.reads || stuck.writes;
}

int kv_ring_wait(struct kv_ring *ring, struct kv_io *io)
{
	const uint64_t begun = kv_now_ns();
	struct kv_io_waiter waiter = {.status = -ETIMEDOUT};

	submit(ring, io, &waiter);
	pthread_mutex_lock(&ring->lock);
	while (!waiter.ended) {
		if (wait_a_little(ring, &ring->ended) && !waiter.ended &&
		    kv_now_ns() - begun >= ring->patience) {
			io->waiter = NULL;
			break;
		}
	}
	pthread_mutex_unlock(&ring->lock);
	return waiter.status;
}

int kv_ring_drain(struct kv_ring *ring)
{
	int r = 0;

	pthread_mutex_lock(&ring->lock);
	while (ring->pending > 0 && r == 0)
		if (wait_a_little(ring, &ring->idle) && ring->pending > 0)
			r = -ETIMEDOUT;
	pthread_mutex_unlock(&ring->lock);
	return r;
}

static void set_buffer(struct kv_ring *ring, int index,
		       struct kv_ring_buffer buffer)
{
	pthread_mutex_lock(&ring->lock);
	ring->buffers[index] = buffer;
	pthread_mutex_unlock(&ring->lock);
}

int kv_ring_add_buffer(struct kv_ring *ring, void *data, uint64_t bytes)
{
	int index = -ENOSPC, r;

	if (!ring->backend->set_buffer)
		return -EOPNOTSUPP;
	pthread_mutex_lock(&ring->lock);
	for (unsigned i = 0; i < ring->max_buffers && index < 0; i++)
		if (!ring->buffers[i].taken)
			index = (int)i;
	if (index >= 0)
		ring->buffers[index].taken = true;
	pthread_mutex_unlock(&ring->lock);
	if (index < 0)
		return index;
	r = ring->backend->set_buffer(ring, (unsigned)index, data, bytes);
	if (r == 0) {
		set_buffer(ring, index,
			   (struct kv_ring_buffer){true, data, bytes});
		return index;
	}
	pthread_mutex_lock(&ring->lock);
	ring->buffers[index] = (struct kv_ring_buffer){0};
	if (ring->describe != ring->refused) {
		snprintf(ring->refused, sizeof(ring->refused),
			 "io_uring, not all buffers fixed (%s)",
			 strerrordesc_np(-r));
		ring->describe = ring->refused;
	}
	pthread_mutex_unlock(&ring->lock);
	return r;
}

void kv_ring_share_buffer(struct kv_ring *ring, int index, void *data,
			  uint64_t bytes)
{
	if (ring->backend->set_buffer && (unsigned)index < ring->max_buffers &&
	    ring->backend->set_buffer(ring, (unsigned)index, data, bytes) == 0)
		set_buffer(ring, index,
			   (struct kv_ring_buffer){true, data, bytes});
}

void kv_ring_remove_buffer(struct kv_ring *ring, int buffer)
{
	if (!ring->backend->set_buffer || (unsigned)buffer >= ring->max_buffers)
		return;
	set_buffer(ring, buffer, (struct kv_ring_buffer){.taken = true});
	ring->backend->set_buffer(ring, (unsigned)buffer, NULL, 0);
	set_buffer(ring, buffer, (struct kv_ring_buffer){0});
}

bool kv_ring_failed(struct kv_ring *ring)
{
	return ring->failed;
}

const char *kv_ring_describe(struct kv_ring *ring)
{
	return ring->describe;
}

static void destroyp(struct kv_ring **ring)
{
	if (!*ring)
		return;
	pthread_cond_destroy(&(*ring)->work);
	pthread_cond_destroy(&(*ring)->idle);
	pthread_cond_destroy(&(*ring)->ended);
	pthread_mutex_destroy(&(*ring)->lock);
	free((*ring)->buffers);
	free(*ring);
}

int kv_ring_new(const struct kv_ring_config *config, struct kv_ring **ret_ring)
{
	_cleanup_(destroyp) struct kv_ring *ring = NULL;
	int r;

	ring = calloc(1, sizeof(*ring));
	if (!ring)
		return -ENOMEM;
	pthread_mutex_init(&ring->lock, NULL);
	pthread_cond_init(&ring->work, NULL);
	kv_cond_init(&ring->idle);
	kv_cond_init(&ring->ended);
	ring->depth = KV_MAX(config->depth, 1u);
	ring->max_bytes = config->bytes ? config->bytes : UINT64_MAX;
	ring->max_read_bytes =
		config->read_bytes ? config->read_bytes : ring->max_bytes;
	ring->max_buffers = config->buffers;
	ring->patience = config->patience ? config->patience : KV_IO_PATIENCE;
	TAILQ_INIT(&ring->reads);
	TAILQ_INIT(&ring->others);
	TAILQ_INIT(&ring->flying);
	ring->describe = ring->working;
	ring->buffers =
		calloc(KV_MAX(config->buffers, 1u), sizeof(*ring->buffers));
	if (!ring->buffers)
		return -ENOMEM;
	ring->backend = config->backend ? config->backend : &kv_ring_uring;
	snprintf(ring->working, sizeof(ring->working), "%s",
		 config->backend ? "threads (as asked)" : KV_RING_BEST);
	r = ring->backend->start(ring);
	if (r < 0 && !config->backend) {
		ring->backend = &kv_ring_threads;
		snprintf(ring->working, sizeof(ring->working),
			 "threads (io_uring_setup: %s)", strerrordesc_np(-r));
		r = ring->backend->start(ring) < 0 ? -ENOMEM : 0;
	}
	if (r < 0)
		return r;
	*ret_ring = kv_steal(ring);
	return 0;
}

void kv_ring_free(struct kv_ring *ring)
{
	if (!ring)
		return;
	while (kv_ring_drain(ring) < 0)
		continue;
	pthread_mutex_lock(&ring->lock);
	ring->stopping = true;
	pthread_mutex_unlock(&ring->lock);
	ring->backend->stop(ring);
	destroyp(&ring);
}

uint8_t *kv_pages_new(uint64_t bytes)
{
	void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return pages == MAP_FAILED ? NULL : pages;
}

void kv_pages_free(uint8_t *pages, uint64_t bytes)
{
	if (pages)
		munmap(pages, bytes);
}

/* ---- requests by threads ---- */

struct workers {
	pthread_t threads[THREADS];
	unsigned n; /* constant after start */
	pthread_mutex_t turn;
};

/* Make one system call for @io; return its result or -errno. */
static int64_t once(const struct kv_io *io)
{
	/* memory of the request; NULL for a sync */
	uint8_t *data = io->data ? (uint8_t *)io->data + io->moved : NULL;
	const off_t at = (off_t)(io->offset + io->moved);
	const ssize_t n = io->op == KV_IO_READ
				  ? pread(io->fd, data, kv_io_left(io), at)
			  : io->op == KV_IO_WRITE
				  ? pwrite(io->fd, data, kv_io_left(io), at)
				  : fdatasync(io->fd);

	return n < 0 ? -errno : n;
}

static void *work(void *arg)
{
	struct kv_ring *ring = arg;
	struct workers *workers = ring->state;
	struct kv_io *io;
	int r;

	for (;;) {
		pthread_mutex_lock(&ring->lock);
		while (!(io = kv_ring_next_locked(ring)) && !ring->stopping) {
			ring->sleepers++;
			pthread_cond_wait(&ring->work, &ring->lock);
		}
		pthread_mutex_unlock(&ring->lock);
		if (!io)
			return NULL;
		do
			r = kv_io_advance(io, once(io));
		while (r > 0);
		pthread_mutex_lock(&workers->turn);
		kv_ring_finish(ring, io, r);
		pthread_mutex_unlock(&workers->turn);
	}
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
	const unsigned want = KV_MIN(ring->depth, THREADS);

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
