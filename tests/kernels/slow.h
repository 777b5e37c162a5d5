/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slow.h - a device of plain memory that counts its copies; the test makes
 * copies wait or fail, and ends the work of streams.  kv_device_find returns
 * this device for every name: include this file in one file of the test's
 * program.
 */
#ifndef KV_TESTS_KERNELS_SLOW_H
#define KV_TESTS_KERNELS_SLOW_H

#include <stdatomic.h>

#include "kernels/device/device.h"
#include "common/kv.h"

static struct {
	pthread_mutex_t lock;
	pthread_cond_t opened;
	bool shut;	     /* true: copies wait until slow_shut(false) */
	atomic_size_t loads; /* number of blocks whose load has begun */
	atomic_size_t saves; /* number of blocks whose save has begun */
	atomic_int fail;     /* result of every copy, 0 or -errno */
	atomic_bool full;    /* true: the device has no free memory */
	/* true: a copy counts as submitted only when it ends */
	bool kept;
	atomic_int event_waits; /* number of event waits not freed yet */
	bool plain;		/* true: the device has no calls for streams */
} slow = {.lock = PTHREAD_MUTEX_INITIALIZER,
	  .opened = PTHREAD_COND_INITIALIZER};

struct slow_stream {
	/* true: all work of the stream has ended */
	atomic_bool over;
	/* the stream for whose work this stream waits */
	struct slow_stream *_Atomic waits;
};

static void slow_shut(bool shut)
{
	pthread_mutex_lock(&slow.lock);
	slow.shut = shut;
	pthread_cond_broadcast(&slow.opened);
	pthread_mutex_unlock(&slow.lock);
}

/* Stream of callers that name none. */
static struct slow_stream slow_default = {.over = true};

/* Stand for the copies; never freed, because other threads may still wait for
 * them. */
static struct slow_stream slow_copies[4096];
static atomic_size_t slow_copied;

/* Report @batch as submitted, unless copies are kept until the end. */
static struct slow_stream *slow_submit(const struct kvfs_batch *batch)
{
	struct slow_stream *copy =
		&slow_copies[slow_copied++ % KV_ARRAY_LEN(slow_copies)];

	copy->over = false;
	if (batch->submitted != NULL && !slow.kept) {
		slow.event_waits++;
		batch->submitted(batch, copy);
	}
	return copy;
}

static void slow_pass(void)
{
	pthread_mutex_lock(&slow.lock);
	while (slow.shut)
		pthread_cond_wait(&slow.opened, &slow.lock);
	pthread_mutex_unlock(&slow.lock);
}

static int slow_load(void *pool, const struct kvfs_batch *batch)
{
	struct slow_stream *copy;
	int r;

	slow.loads += batch->n;
	copy = slow_submit(batch);
	slow_pass();
	r = slow.fail;
	if (r == 0)
		r = kv_device_host.load(pool, batch);
	copy->over = true;
	return r;
}

static int slow_save(void *pool, const struct kvfs_batch *batch)
{
	struct slow_stream *copy;
	int r;

	slow.saves += batch->n;
	copy = slow_submit(batch);
	slow_pass();
	r = slow.fail;
	if (r == 0)
		r = kv_device_host.save(pool, batch);
	copy->over = true;
	return r;
}

static int slow_grow(void *memory, uint64_t bytes)
{
	return slow.full ? -ENOMEM : kv_device_host.grow(memory, bytes);
}

static int slow_reserve(const char *name, uint64_t bytes, uint64_t max_bytes,
			void **ret_memory, void **ret_base)
{
	return slow.full ? -ENOMEM
			 : kv_device_host.reserve(name, bytes, max_bytes,
						  ret_memory, ret_base);
}

static void slow_release(void *memory)
{
	kv_device_host.release(memory);
}

static void slow_info(void *pool, struct kvfs_pool_info *ret_info)
{
	kv_device_host.info(pool, ret_info);
}

static int slow_mark(void *pool, void *stream, void *event,
		     void **ret_event_wait)
{
	(void)pool;
	*ret_event_wait = stream != NULL ? stream : event;
	slow.event_waits++;
	return 0;
}

static bool slow_mark_is_done(void *event_wait)
{
	return ((struct slow_stream *)event_wait)->over;
}

static void slow_mark_free(void *event_wait)
{
	(void)event_wait;
	slow.event_waits--;
}

static int slow_order(void *event_wait, void *stream)
{
	((struct slow_stream *)stream)->waits = event_wait;
	return 0;
}

#define SLOW_DEVICE                                                        \
	.version = KVFS_DEVICE_VERSION, .name = "host", .info = slow_info, \
	.load = slow_load, .save = slow_save, .reserve = slow_reserve,     \
	.grow = slow_grow, .release = slow_release

const struct kvfs_device *kv_device_find(const char *name)
{
	static const struct kvfs_device plain = {SLOW_DEVICE};
	static const struct kvfs_device device = {
		SLOW_DEVICE,
		.event_wait = slow_mark,
		.event_wait_is_done = slow_mark_is_done,
		.event_wait_free = slow_mark_free,
		.order = slow_order,
		.default_stream = &slow_default,
	};

	if (strcmp(name, "host") != 0)
		return NULL;
	return slow.plain ? &plain : &device;
}

#endif
