/* SPDX-License-Identifier: Apache-2.0 */
/*
 * event_wait.c - what a stream had been given at some time.
 *
 * OWNS      an event for each event wait, and where an event wait stands for
 *           the caller's event, a stream: what an event stands for can only be
 *           taken over by a stream that waits for it.  Kept for later event
 *           waits.
 *
 * INVARIANTS
 *   (1) An event wait's stream has nothing to do but wait for its own event
 *       wait, so that event waits do not wait for each other.
 *   (2) What lies in the list is done: one that was not recorded anew is, too.
 *
 * LOCKING   gpu->lock for the list of free event waits.
 */
#include "kernels/cuda/event_wait.h"

#define BEGIN_WITH 16u

struct kv_event_wait {
	LIST_ENTRY(kv_event_wait) others;
	struct kv_gpu *gpu;
	CUevent event;
	CUstream stream; /* NULL until it is needed */
};

static void destroy(struct kv_event_wait *event_wait)
{
	const struct kv_driver *driver = event_wait->gpu->driver;

	if (event_wait->stream)
		driver->stream_free(event_wait->stream);
	if (event_wait->event)
		driver->event_free(event_wait->event);
	free(event_wait);
}

static struct kv_event_wait *take_free(struct kv_gpu *gpu)
{
	struct kv_event_wait *event_wait;

	pthread_mutex_lock(&gpu->lock);
	event_wait = LIST_FIRST(&gpu->event_waits);
	if (event_wait)
		LIST_REMOVE(event_wait, others);
	pthread_mutex_unlock(&gpu->lock);
	return event_wait;
}

static int make(struct kv_gpu *gpu, struct kv_event_wait **ret_event_wait)
{
	struct kv_event_wait *event_wait = calloc(1, sizeof(*event_wait));
	int r;

	if (!event_wait)
		return -ENOMEM;
	event_wait->gpu = gpu;
	r = kv_driver_errno(gpu->driver->event_new(&event_wait->event,
						   CU_EVENT_DISABLE_TIMING));
	if (r < 0) {
		event_wait->event = NULL;
		destroy(event_wait);
		return r;
	}
	*ret_event_wait = event_wait;
	return 0;
}

static int find_or_make(struct kv_gpu *gpu,
			struct kv_event_wait **ret_event_wait)
{
	struct kv_event_wait *event_wait = take_free(gpu);

	if (!event_wait)
		return make(gpu, ret_event_wait);
	*ret_event_wait = event_wait;
	return 0;
}

int kv_event_waits_new(struct kv_gpu *gpu)
{
	struct kv_event_wait *event_wait;
	int r = 0;

	for (unsigned i = 0; i < BEGIN_WITH && r == 0; i++) {
		r = make(gpu, &event_wait);
		if (r == 0)
			LIST_INSERT_HEAD(&gpu->event_waits, event_wait, others);
	}
	return r;
}

/* The event wait's own stream, waiting for @event.  Where there are priorities
 * enough it is none of the copy streams': in a hardware queue that they share
 * copies would wait behind it. */
static int wait_for(struct kv_event_wait *event_wait, CUevent event)
{
	const struct kv_driver *driver = event_wait->gpu->driver;
	int r = 0;

	if (!event_wait->stream)
		r = kv_driver_errno(driver->stream_new(
			&event_wait->stream, CU_STREAM_NON_BLOCKING,
			KV_MAX(event_wait->gpu->patient - 1,
			       event_wait->gpu->urgent)));
	if (r < 0) {
		event_wait->stream = NULL;
		return r;
	}
	return kv_driver_errno(
		driver->stream_wait_event(event_wait->stream, event, 0));
}

/* What a captured stream is given does not run, but becomes a part of a graph,
 * and most calls would spoil that: so it is asked first. */
static int check_stream(const struct kv_driver *driver, CUstream stream)
{
	int status, r;

	r = kv_driver_errno(driver->stream_capturing(stream, &status));
	if (r < 0)
		return r;
	return status == CU_STREAM_CAPTURE_STATUS_NONE ? 0 : -EBUSY;
}

/* What @event stands for, if that is still to come. */
static int record_event(struct kv_event_wait *event_wait, CUevent event)
{
	const struct kv_driver *driver = event_wait->gpu->driver;
	int r = kv_driver_errno(driver->event_query(event));

	if (r == -EAGAIN)
		r = wait_for(event_wait, event);
	else
		return r;
	return r < 0 ? r
		     : kv_driver_errno(driver->event_record(
			       event_wait->event, event_wait->stream));
}

static int record(struct kv_event_wait *event_wait, CUstream stream,
		  CUevent event)
{
	const struct kv_driver *driver = event_wait->gpu->driver;
	int r;

	if (event)
		return record_event(event_wait, event);
	r = check_stream(driver, stream);
	return r < 0 ? r
		     : kv_driver_errno(
			       driver->event_record(event_wait->event, stream));
}

int kv_event_wait_new(struct kv_gpu *gpu, CUstream stream, CUevent event,
		      struct kv_event_wait **ret_event_wait)
{
	struct kv_gpu_entry entry;
	struct kv_event_wait *event_wait;
	int r;

	if (!stream && !event)
		return -EINVAL;
	r = kv_gpu_enter(gpu, &entry);
	if (r < 0)
		return r;
	r = find_or_make(gpu, &event_wait);
	if (r == 0) {
		r = record(event_wait, stream, event);
		if (r < 0)
			destroy(event_wait);
		else
			*ret_event_wait = event_wait;
	}
	kv_gpu_leave(&entry);
	return r;
}

bool kv_event_wait_is_done(struct kv_event_wait *event_wait)
{
	struct kv_gpu_entry entry;
	CUresult result;

	if (kv_gpu_enter(event_wait->gpu, &entry) < 0)
		return true;
	result = event_wait->gpu->driver->event_query(event_wait->event);
	kv_gpu_leave(&entry);
	return result != CUDA_ERROR_NOT_READY;
}

void kv_event_wait_free(struct kv_event_wait *event_wait)
{
	struct kv_gpu *gpu = event_wait->gpu;
	struct kv_gpu_entry entry;

	if (kv_event_wait_is_done(event_wait)) {
		pthread_mutex_lock(&gpu->lock);
		LIST_INSERT_HEAD(&gpu->event_waits, event_wait, others);
		pthread_mutex_unlock(&gpu->lock);
		return;
	}
	/* The driver ends both when they have nothing left to wait for. */
	if (kv_gpu_enter_to_free(gpu, &entry) < 0)
		return;
	destroy(event_wait);
	kv_gpu_leave(&entry);
}

int kv_event_wait_order(struct kv_event_wait *event_wait, CUstream stream)
{
	const struct kv_driver *driver = event_wait->gpu->driver;
	struct kv_gpu_entry entry;
	int r;

	if (!stream)
		return -EINVAL;
	r = kv_gpu_enter(event_wait->gpu, &entry);
	if (r < 0)
		return r;
	r = check_stream(driver, stream);
	if (r == 0)
		r = kv_driver_errno(driver->stream_wait_event(
			stream, event_wait->event, 0));
	kv_gpu_leave(&entry);
	return r;
}

CUevent kv_event_wait_event(const struct kv_event_wait *event_wait)
{
	return event_wait->event;
}

void kv_event_waits_free(struct kv_gpu *gpu)
{
	struct kv_event_wait *event_wait;

	while ((event_wait = LIST_FIRST(&gpu->event_waits))) {
		LIST_REMOVE(event_wait, others);
		destroy(event_wait);
	}
}
