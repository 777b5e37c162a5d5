/* SPDX-License-Identifier: Apache-2.0 */
/*
 * event_wait.c - what the caller's stream had been given when a transfer was
 * begun.
 *
 * OWNS      an event for each mark, and where a mark stands for the caller's
 *           event, a stream: what an event stands for can only be taken over by
 *           a stream that waits for it.  Kept for later marks.
 *
 * INVARIANTS
 *   (1) A mark's stream has nothing to do but wait for its own mark, so that
 *       marks do not wait for each other.
 *
 * LOCKING   gpu->lock for the list of free marks.
 */
#include "kernels/cuda/event_wait.h"

struct kv_mark {
	LIST_ENTRY(kv_mark) others;
	struct kv_gpu *gpu;
	CUevent event;
	CUstream stream; /* NULL until it is needed */
};

static void destroy(struct kv_mark *mark)
{
	const struct kv_driver *driver = mark->gpu->driver;

	if (mark->stream != NULL)
		driver->stream_free(mark->stream);
	if (mark->event != NULL)
		driver->event_free(mark->event);
	free(mark);
}

static struct kv_mark *take_free(struct kv_gpu *gpu)
{
	struct kv_mark *mark;

	pthread_mutex_lock(&gpu->lock);
	mark = LIST_FIRST(&gpu->marks);
	if (mark != NULL)
		LIST_REMOVE(mark, others);
	pthread_mutex_unlock(&gpu->lock);
	return mark;
}

static int find_or_make(struct kv_gpu *gpu, struct kv_mark **ret_mark)
{
	struct kv_mark *mark = take_free(gpu);
	int r;

	if (mark == NULL) {
		mark = calloc(1, sizeof(*mark));
		if (mark == NULL)
			return -ENOMEM;
		mark->gpu = gpu;
		r = kv_driver_errno(gpu->driver->event_new(
			&mark->event, CU_EVENT_DISABLE_TIMING));
		if (r < 0) {
			mark->event = NULL;
			destroy(mark);
			return r;
		}
	}
	*ret_mark = mark;
	return 0;
}

/* The mark's own stream, waiting for @event. */
static int wait_for(struct kv_mark *mark, CUevent event)
{
	const struct kv_driver *driver = mark->gpu->driver;
	int r = 0;

	if (mark->stream == NULL)
		r = kv_driver_errno(driver->stream_new(&mark->stream,
						       CU_STREAM_NON_BLOCKING,
						       mark->gpu->urgent));
	if (r < 0) {
		mark->stream = NULL;
		return r;
	}
	return kv_driver_errno(
		driver->stream_wait_event(mark->stream, event, 0));
}

static int record(struct kv_mark *mark, CUstream stream, CUevent event)
{
	const struct kv_driver *driver = mark->gpu->driver;
	CUresult result;
	int r = 0;

	if (event != NULL) {
		r = wait_for(mark, event);
		stream = mark->stream;
	}
	if (r == 0)
		r = kv_driver_errno(driver->event_record(mark->event, stream));
	if (r < 0)
		return r;
	/* A stream that is being captured does nothing, and so is never done:
	 * its events stand for nothing that could be waited for. */
	result = driver->event_query(mark->event);
	return result == CUDA_ERROR_NOT_READY ? 0 : kv_driver_errno(result);
}

int kv_mark_new(struct kv_gpu *gpu, CUstream stream, CUevent event,
		struct kv_mark **ret_mark)
{
	struct kv_gpu_entry entry;
	struct kv_mark *mark;
	int r;

	if (stream == NULL && event == NULL)
		return -EINVAL;
	r = kv_gpu_enter(gpu, &entry);
	if (r < 0)
		return r;
	r = find_or_make(gpu, &mark);
	if (r == 0) {
		r = record(mark, stream, event);
		if (r < 0)
			destroy(mark);
		else
			*ret_mark = mark;
	}
	kv_gpu_leave(&entry);
	return r;
}

bool kv_mark_is_done(struct kv_mark *mark)
{
	struct kv_gpu_entry entry;
	CUresult result;

	if (kv_gpu_enter(mark->gpu, &entry) < 0)
		return true;
	result = mark->gpu->driver->event_query(mark->event);
	kv_gpu_leave(&entry);
	return result != CUDA_ERROR_NOT_READY;
}

void kv_mark_free(struct kv_mark *mark)
{
	struct kv_gpu *gpu = mark->gpu;
	struct kv_gpu_entry entry;

	if (kv_mark_is_done(mark)) {
		pthread_mutex_lock(&gpu->lock);
		LIST_INSERT_HEAD(&gpu->marks, mark, others);
		pthread_mutex_unlock(&gpu->lock);
		return;
	}
	/* The driver ends both when they have nothing left to wait for. */
	if (kv_gpu_enter_to_free(gpu, &entry) < 0)
		return;
	destroy(mark);
	kv_gpu_leave(&entry);
}

CUevent kv_mark_event(const struct kv_mark *mark)
{
	return mark->event;
}

void kv_marks_free(struct kv_gpu *gpu)
{
	struct kv_mark *mark;

	while ((mark = LIST_FIRST(&gpu->marks)) != NULL) {
		LIST_REMOVE(mark, others);
		destroy(mark);
	}
}
