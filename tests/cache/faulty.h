/* SPDX-License-Identifier: Apache-2.0 */
/*
 * faulty.h - a disk that misbehaves: a backend of the ring that carries requests
 * out with pread and pwrite, and injects faults into some of them.
 *
 * OWNS      `disk`, one for each test program, because a test opens one cache
 *           at a time; and requests that are held back.
 *
 * LOCKING   disk.lock, and ring->lock by its rules; never both.
 */
#ifndef KV_TESTS_CACHE_FAULTY_H
#define KV_TESTS_CACHE_FAULTY_H

#include <limits.h>
#include <stdio.h>

#include "common/thread.h"
#include "cache/io/ring.h"
#include "tests/inject.h"

enum fault {
	FAULT_NONE,
	FAULT_EIO,
	FAULT_ENOSPC,
	FAULT_EDQUOT,
	FAULT_EAGAIN,
	FAULT_ENODEV,
	FAULT_EINTR,
	/* the first half of the request is carried out, then it fails with
	 * EIO */
	FAULT_TORN,
	FAULT_SHORT_0,
	FAULT_SHORT_1,
	FAULT_SHORT_511,
	FAULT_SHORT_512_LESS,
	FAULT_GARBAGE, /* a read succeeds, but returns other bytes */
	FAULT_LATE,    /* the request ends after the next four requests */
	FAULT_REORDER, /* the request ends after the next request */
	FAULT_NEVER,   /* the request does not end before disk_behave */
	FAULTS
};

static const char *const fault_names[FAULTS] = {
	"none",	   "EIO",  "ENOSPC",  "EDQUOT",	 "EAGAIN",    "ENODEV",
	"EINTR",   "torn", "short 0", "short 1", "short 511", "short -512",
	"garbage", "late", "reorder", "never",
};

#define HELD_MAX 64

static struct {
	pthread_mutex_t lock;
	/* number of reads since the start of the program */
	_Atomic unsigned reads;
	/* number of reads at a lower offset than the read before */
	_Atomic unsigned backwards;
	uint64_t last_read;
	/* percentage of the chosen requests that misbehave; 0: all */
	unsigned percent;
	int only;	/* kind of request that misbehaves; -1: any */
	uint64_t above; /* requests of at most so many bytes are carried out */
	/* only requests to files below this directory misbehave; NULL: all */
	const char *below;
	int error; /* not 0: the error of FAULT_EIO */
	/* time of each write in us, and of a write below the directory @slow */
	_Atomic unsigned us, us_below;
	const char *slow;
	enum fault fault;
	uint64_t random;
	struct {
		struct kv_ring *ring;
		struct kv_io *io;
		int status;
		/* value of the counter inject.seen at which this request
		 * ends */
		long due;
	} held[HELD_MAX];
	unsigned n_held;
	bool release; /* true: end all requests that are held back */
} disk = {.lock = PTHREAD_MUTEX_INITIALIZER, .only = -1};

static _Thread_local bool disk_thread __attribute__((unused));

static inline void disk_behave(void)
{
	pthread_mutex_lock(&disk.lock);
	inject_disarm();
	disk.release = true;
	pthread_mutex_unlock(&disk.lock);
}

/* Let the requests from number @from on, @n of them, misbehave from now on.  The
 * first one has the number 1. */
static inline void disk_misbehave(enum fault fault, unsigned from, unsigned n)
{
	pthread_mutex_lock(&disk.lock);
	disk.fault = fault;
	disk.percent = 0;
	disk.only = -1;
	disk.above = 0;
	disk.below = NULL;
	disk.error = 0;
	disk.release = false;
	inject_arm(EIO, (long)from - 1, n);
	pthread_mutex_unlock(&disk.lock);
}

static inline uint64_t disk_random(void)
{
	disk.random =
		disk.random * 6364136223846793005ull + 1442695040888963407ull;
	return disk.random >> 33;
}

static inline bool disk_is_below(int fd, const char *directory)
{
	char link[64], path[PATH_MAX] = "";

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	return readlink(link, path, sizeof(path) - 1) > 0 &&
	       strncmp(path, directory, strlen(directory)) == 0;
}

static inline enum fault disk_next(const struct kv_io *io)
{
	enum fault fault = FAULT_NONE;

	pthread_mutex_lock(&disk.lock);
	if (io->op == KV_IO_READ) {
		disk.reads++;
		disk.backwards += io->offset < disk.last_read;
		disk.last_read = io->offset;
	}
	if ((disk.only < 0 || disk.only == (int)io->op) &&
	    (!disk.above || io->bytes > disk.above) &&
	    (!disk.below || disk_is_below(io->fd, disk.below)) &&
	    inject_fails() &&
	    (!disk.percent || disk_random() % 100 < disk.percent))
		fault = disk.fault == FAULTS
				? (enum fault)(1 +
					       disk_random() % FAULT_REORDER)
				: disk.fault;
	pthread_mutex_unlock(&disk.lock);
	return fault;
}

static inline int64_t disk_do(const struct kv_io *io, uint64_t bytes)
{
	uint8_t *data = (uint8_t *)io->data + io->moved;
	const off_t offset = (off_t)(io->offset + io->moved);
	ssize_t n = 0;

	if (io->op == KV_IO_READ)
		n = pread(io->fd, data, bytes, offset);
	else if (io->op == KV_IO_WRITE)
		n = pwrite(io->fd, data, bytes, offset);
	else if (io->op == KV_IO_SYNC)
		n = fdatasync(io->fd);
	return n < 0 ? -errno : n;
}

static inline int64_t disk_short(const struct kv_io *io, uint64_t bytes)
{
	/* Transfer whole pages only, even if the number of bytes that is
	 * reported is no multiple of a page. */
	if (io->op != KV_IO_SYNC)
		disk_do(io, bytes / KV_PAGE * KV_PAGE);
	return (int64_t)bytes;
}

/* Damage all bytes of a read except the prologue, so that only the block's
 * digest detects the damage. */
static inline int64_t disk_garbage(const struct kv_io *io, uint64_t bytes)
{
	int64_t res = disk_do(io, bytes);
	uint8_t *data = (uint8_t *)io->data + io->moved;

	if (io->op == KV_IO_READ && res > KV_PAGE)
		memset(data + KV_PAGE, 0xa5, (size_t)res - KV_PAGE);
	return res;
}

static inline int64_t disk_badly(const struct kv_io *io, enum fault fault)
{
	static const int errors[] = {
		[FAULT_EIO] = EIO,	 [FAULT_ENOSPC] = ENOSPC,
		[FAULT_EDQUOT] = EDQUOT, [FAULT_EAGAIN] = EAGAIN,
		[FAULT_ENODEV] = ENODEV, [FAULT_EINTR] = EINTR,
	};
	uint64_t left = kv_io_left(io);

	switch (fault) {
	case FAULT_TORN:
		disk_short(io, left / 2);
		return -EIO;
	case FAULT_SHORT_0:
		return 0;
	case FAULT_SHORT_1:
		return disk_short(io, 1);
	case FAULT_SHORT_511:
		return disk_short(io, 511);
	case FAULT_SHORT_512_LESS:
		return disk_short(io, left > 512 ? left - 512 : 0);
	case FAULT_GARBAGE:
		return disk_garbage(io, left);
	default:
		return fault == FAULT_EIO && disk.error ? -disk.error
							: -errors[fault];
	}
}

static inline void disk_hold(struct kv_ring *ring, struct kv_io *io, int status,
			     enum fault fault)
{
	pthread_mutex_lock(&disk.lock);
	assert(disk.n_held < HELD_MAX);
	disk.held[disk.n_held].ring = ring;
	disk.held[disk.n_held].io = io;
	disk.held[disk.n_held].status = status;
	disk.held[disk.n_held++].due = fault == FAULT_NEVER  ? LONG_MAX
				       : fault == FAULT_LATE ? inject.seen + 4
							     : inject.seen + 1;
	pthread_mutex_unlock(&disk.lock);
}

/* End one request that was held back for long enough; with @idle, end a request
 * however short it was held, unless it is never to end.  Return whether there
 * was one. */
static inline bool disk_end_held(struct kv_ring *ring, bool idle)
{
	struct kv_io *io = NULL;
	int status = 0;

	pthread_mutex_lock(&disk.lock);
	for (unsigned i = 0; i < disk.n_held && !io; i++) {
		if (disk.held[i].ring != ring ||
		    (!disk.release && disk.held[i].due > inject.seen &&
		     (!idle || disk.held[i].due == LONG_MAX)))
			continue;
		io = disk.held[i].io;
		status = disk.held[i].status;
		disk.held[i] = disk.held[--disk.n_held];
	}
	pthread_mutex_unlock(&disk.lock);
	if (io)
		kv_ring_finish(ring, io, status);
	return io != NULL;
}

static inline void disk_carry_out(struct kv_ring *ring, struct kv_io *io)
{
	enum fault fault = disk_next(io);
	const bool held = fault >= FAULT_LATE;
	int r = 1;

	if (io->op == KV_IO_WRITE && disk.us)
		usleep(disk_is_below(io->fd, disk.slow) ? disk.us_below
							: disk.us);

	while (r > 0) {
		int64_t res = fault && !held ? disk_badly(io, fault)
					     : disk_do(io, kv_io_left(io));

		r = kv_io_advance(io, res);
		if (r > 0)
			fault = disk_next(io);
		if (fault >= FAULT_LATE && !held)
			fault = FAULT_NONE;
	}
	if (held)
		disk_hold(ring, io, r, fault);
	else
		kv_ring_finish(ring, io, r);
}

static inline struct kv_io *disk_wait(struct kv_ring *ring, bool *ret_stop)
{
	struct timespec until;
	struct kv_io *io;

	pthread_mutex_lock(&ring->lock);
	io = kv_ring_next_locked(ring);
	if (!io && !ring->stopping) {
		ring->sleepers++;
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += 2000000;
		until.tv_sec += until.tv_nsec / 1000000000;
		until.tv_nsec %= 1000000000;
		pthread_cond_timedwait(&ring->work, &ring->lock, &until);
		ring->sleepers = 0;
		io = kv_ring_next_locked(ring);
	}
	*ret_stop = ring->stopping;
	pthread_mutex_unlock(&ring->lock);
	return io;
}

static inline void *disk_run(void *arg)
{
	struct kv_ring *ring = arg;
	bool stop = false;

	disk_thread = true;
	while (!stop) {
		struct kv_io *io = disk_wait(ring, &stop);

		if (io)
			disk_carry_out(ring, io);
		while (disk_end_held(ring, io == NULL))
			continue;
	}
	return NULL;
}

static inline int disk_start(struct kv_ring *ring)
{
	pthread_t *thread = calloc(1, sizeof(*thread));

	ring->state = thread;
	return kv_thread_start(thread, "kvfs-ring", disk_run, ring);
}

static inline void disk_wake(struct kv_ring *ring)
{
	pthread_cond_signal(&ring->work);
}

static inline void disk_stop(struct kv_ring *ring)
{
	pthread_mutex_lock(&ring->lock);
	ring->stopping = true;
	pthread_cond_signal(&ring->work);
	pthread_mutex_unlock(&ring->lock);
	pthread_join(*(pthread_t *)ring->state, NULL);
	free(ring->state);
}

static const struct kv_ring_backend disk_backend = {
	.start = disk_start,
	.wake = disk_wake,
	.stop = disk_stop,
};

#endif
