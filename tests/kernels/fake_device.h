/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_device.h - a device controlled by the test: the test ends event waits,
 * holds up copies or lets them fail, and forbidden calls of the library are
 * counted.
 *
 * Pages are plain memory.  A stream is a pointer to a struct fake_stream.  A
 * test that includes this file does not link kernels/device/device.c.
 */
#ifndef KV_TESTS_KERNELS_FAKE_DEVICE_H
#define KV_TESTS_KERNELS_FAKE_DEVICE_H

#include <stdatomic.h>
#include <sys/mman.h>

#include "kernels/device/device.h"
#include "kernels/kvfs.h"
#include "kernels/session/session.h"

struct fake_stream {
	/* true: all work of the stream has ended */
	atomic_bool quiet;
	/* number of event waits that this stream was made to wait for */
	atomic_int waits;
	/* stream for whose work the last event wait on this stream waits */
	struct fake_stream *_Atomic after;
};

static struct {
	/* session whose lock no device call may hold */
	struct kvfs_session *session;
	/* thread that calls the library; the device counts copies on this
	 * thread */
	pthread_t caller;
	atomic_int on_caller;
	/* result of the next load; later loads succeed */
	atomic_int one_load_error;
	atomic_int open_error, load_error, save_error, event_wait_error,
		order_error;
	/* The device holds up loads of bytes from this offset on; 0: all loads,
	 * UINT64_MAX: none. */
	_Atomic uint64_t held_from;
	atomic_bool saves_held;
	/* The device submits saves, and loads of bytes from this offset on, but
	 * does not end these copies; UINT64_MAX: it ends all. */
	_Atomic uint64_t running_from;
	atomic_bool saves_running;
	atomic_int submitted; /* number of submitted batches */
	/* How the device reports a batch as submitted: once, twice, or once
	 * without an event wait. */
	enum { FAKE_ONCE, FAKE_TWICE, FAKE_NOTHING } submits;
	atomic_int loads, saves;
	atomic_uint batch_max, ranges_max;
	/* numbers of open pools and event waits */
	atomic_int pools, event_waits;
	/* number of copies that began before their event wait ended */
	atomic_int early;
	/* number of calls made with the session's lock held */
	atomic_int locked;
	/* number of errors, such as a pool closed before its event waits */
	atomic_int wrong;
	int priorities[64];
	/* number of memory ranges that are attached now: all ranges, and
	 * writable ones */
	atomic_int attached, writable;
	atomic_int attached_ever;
	/* the memory that is attached; guarded by fake_lock */
	void *memory[64];
} fake;

static pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;

static inline void fake_check_lock(void)
{
	struct timespec until;

	if (fake.session == NULL)
		return;
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += 20;
	if (pthread_mutex_timedlock(&fake.session->lock, &until) != 0)
		fake.locked++;
	else
		pthread_mutex_unlock(&fake.session->lock);
}

static int fake_open(const struct kvfs_pool_desc *desc, void **ret_pool)
{
	(void)desc;
	if (fake.open_error != 0)
		return fake.open_error;
	fake.pools++;
	*ret_pool = &fake;
	return 0;
}

static void fake_close(void *pool)
{
	fake_check_lock();
	fake.wrong += pool != &fake || fake.event_waits != 0;
	fake.pools--;
}

static void fake_info(void *pool, struct kvfs_pool_info *ret_info)
{
	fake.wrong += pool != &fake;
	ret_info->path = "none";
	ret_info->reason = "a fake";
}

static bool fake_mark_is_done(void *event_wait)
{
	const struct fake_stream *stream = *(struct fake_stream **)event_wait;

	fake_check_lock();
	return stream->quiet;
}

static void fake_look(void *pool, const struct kvfs_batch *batch)
{
	fake_check_lock();
	fake.on_caller += pthread_equal(pthread_self(), fake.caller);
	fake.wrong += pool != &fake || batch->n == 0;
	if (batch->event_wait != NULL && !fake_mark_is_done(batch->event_wait))
		fake.early++;
	if (batch->n > fake.batch_max)
		fake.batch_max = (unsigned)batch->n;
	if (batch->n_ranges > fake.ranges_max)
		fake.ranges_max = (unsigned)batch->n_ranges;
}

/* Return a stream that stands for the copy of @batch: its @quiet is set when
 * the copy ends. */
static struct fake_stream *fake_submit(const struct kvfs_batch *batch)
{
	static struct fake_stream copies[65536];
	static atomic_size_t n;
	struct fake_stream *copy = &copies[n++ % KV_ARRAY_LEN(copies)];
	struct fake_stream **event_wait;

	copy->quiet = false;
	fake.submitted++;
	if (batch->submitted == NULL)
		return copy;
	if (fake.submits == FAKE_NOTHING) {
		batch->submitted(batch, NULL);
		return copy;
	}
	event_wait = malloc(sizeof(*event_wait));
	*event_wait = copy;
	fake.event_waits++;
	batch->submitted(batch, event_wait);
	if (fake.submits == FAKE_TWICE)
		batch->submitted(batch, event_wait);
	return copy;
}

static uint64_t fake_from(const struct kvfs_batch *batch)
{
	return batch->n_ranges > 0 ? batch->ranges[0].from : 0;
}

static int fake_load(void *pool, const struct kvfs_batch *batch)
{
	struct fake_stream *copy;
	int r;
	size_t me = (size_t)fake.loads++;
	int error = atomic_exchange(&fake.one_load_error, 0);

	fake_look(pool, batch);
	if (me < KV_ARRAY_LEN(fake.priorities))
		fake.priorities[me] = batch->priority;
	while (fake_from(batch) >= fake.held_from)
		usleep(1000);
	if (error != 0)
		return error;
	copy = fake_submit(batch);
	while (fake_from(batch) >= fake.running_from)
		usleep(1000);
	r = fake.load_error != 0 ? fake.load_error
				 : kv_device_host.load(NULL, batch);
	copy->quiet = true;
	return r;
}

static int fake_save(void *pool, const struct kvfs_batch *batch)
{
	struct fake_stream *copy;

	fake.saves++;
	fake_look(pool, batch);
	while (fake.saves_held)
		usleep(1000);
	copy = fake_submit(batch);
	while (fake.saves_running)
		usleep(1000);
	kv_device_host.save(NULL, batch);
	copy->quiet = true;
	return fake.save_error;
}

static int fake_mark(void *pool, void *stream, void *event,
		     void **ret_event_wait)
{
	struct fake_stream **event_wait;

	fake_check_lock();
	fake.wrong += pool != &fake || (stream == NULL) == (event == NULL);
	if (fake.event_wait_error != 0)
		return fake.event_wait_error;
	event_wait = malloc(sizeof(*event_wait));
	*event_wait = stream != NULL ? stream : event;
	fake.event_waits++;
	*ret_event_wait = event_wait;
	return 0;
}

static void fake_mark_free(void *event_wait)
{
	fake_check_lock();
	fake.event_waits--;
	free(event_wait);
}

/* Make @stream wait until the work of @event_wait has ended. */
static int fake_order(void *event_wait, void *stream)
{
	struct fake_stream *s = stream;

	fake_check_lock();
	if (fake.order_error != 0)
		return fake.order_error;
	s->waits++;
	s->after = *(struct fake_stream **)event_wait;
	return 0;
}

static void fake_attach(void *base, uint64_t bytes, bool writable)
{
	int i;

	fake.wrong += base == NULL || bytes == 0;
	pthread_mutex_lock(&fake_lock);
	for (i = 0; fake.memory[i] != NULL; i++)
		fake.wrong += fake.memory[i] == base;
	fake.memory[i] = base;
	pthread_mutex_unlock(&fake_lock);
	fake.attached++;
	fake.attached_ever++;
	fake.writable += writable;
}

/* Read one byte, because the memory must still be mapped when it is
 * detached. */
static void fake_detach(void *base)
{
	int i, last;

	fake_check_lock();
	fake.wrong += msync(base, 1, MS_ASYNC) != 0;
	pthread_mutex_lock(&fake_lock);
	for (last = 0; fake.memory[last + 1] != NULL; last++)
		continue;
	for (i = 0; i < last && fake.memory[i] != base; i++)
		continue;
	fake.wrong += fake.memory[i] != base;
	fake.memory[i] = fake.memory[last];
	fake.memory[last] = NULL;
	pthread_mutex_unlock(&fake_lock);
	fake.attached--;
}

/* Not constant: a test may take away its order. */
static struct kvfs_device fake_device = {
	.version = KVFS_DEVICE_VERSION,
	.name = "fake",
	.batch_bytes = 1u << 20,
	.open = fake_open,
	.close = fake_close,
	.info = fake_info,
	.load = fake_load,
	.save = fake_save,
	.attach = fake_attach,
	.detach = fake_detach,
	.event_wait = fake_mark,
	.event_wait_is_done = fake_mark_is_done,
	.event_wait_free = fake_mark_free,
	.order = fake_order,
};

const struct kvfs_device *kv_device_find(const char *name)
{
	if (strcmp(name, "fake") == 0)
		return &fake_device;
	return strcmp(name, "host") == 0 ? &kv_device_host : NULL;
}

/* Check the state in which every test must leave the device. */
static inline void fake_assert_clean(void)
{
	assert_int_equal(fake.early, 0);
	assert_int_equal(fake.on_caller, 0);
	assert_int_equal(fake.locked, 0);
	assert_int_equal(fake.wrong, 0);
	assert_int_equal(fake.pools, 0);
	assert_int_equal(fake.event_waits, 0);
}

#endif
