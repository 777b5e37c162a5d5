/* SPDX-License-Identifier: Apache-2.0 */
/*
 * event.c - the stand-in's events: moments in streams.
 *
 * OWNS      the events; a reference to the stream that each was recorded in.
 *
 * LOCKING   big_lock.
 */
#include "tests/gpu/standin/standin.h"

struct CUevent_st {
	struct CUevent_st *next;
	CUcontext ctx; /* set when the event is made, then constant */
	struct moment moment;
	/* id of the capture that recorded the event; 0: none */
	uint64_t capture;
	/* time at which the stream reached the event; only if @timing is
	 * true */
	struct timespec over;
	bool timing;
};

static struct CUevent_st *events; /* list of all events; guarded by big_lock */

static struct CUevent_st **find_locked(CUevent handle)
{
	struct CUevent_st **at;

	for (at = &events; *at != NULL && *at != handle; at = &(*at)->next)
		;
	return at;
}

CUresult event_moment_locked(CUevent handle, struct moment *ret,
			     uint64_t *ret_capture)
{
	struct CUevent_st *event = *find_locked(handle);

	if (event == NULL)
		return bug(CU_INVALID_HANDLE, "no such event");
	*ret_capture = event->capture;
	if (event->capture != 0)
		return CU_CAPTURED_EVENT;
	*ret = event->moment;
	if (ret->stream != NULL) {
		uint64_t seq = ret->seq;

		*ret = now_in_locked(ret->stream);
		ret->seq = seq;
	}
	return CU_OK;
}

CUresult cuEventCreate(CUevent *ret, unsigned flags)
{
	CUresult r = enter("cuEventCreate", CONTEXT);
	struct CUevent_st *event;

	if (r != CU_OK)
		return r;
	if ((flags & ~3u) != 0)
		return CU_INVALID_VALUE;
	event = calloc(1, sizeof(*event));
	if (event == NULL)
		return CU_OUT_OF_MEMORY;
	event->ctx = current_context();
	event->timing = (flags & CU_EVENT_NO_TIMING) == 0;
	pthread_mutex_lock(&big_lock);
	event->next = events;
	events = event;
	alive.events++;
	pthread_mutex_unlock(&big_lock);
	*ret = event;
	return CU_OK;
}

CUresult cuEventDestroy_v2(CUevent handle)
{
	CUresult r = enter("cuEventDestroy_v2", CONTEXT);
	struct CUevent_st **at, *event;

	if (r != CU_OK)
		return r;
	pthread_mutex_lock(&big_lock);
	at = find_locked(handle);
	event = *at;
	if (event != NULL) {
		*at = event->next;
		moment_put_locked(&event->moment);
		alive.events--;
	}
	pthread_mutex_unlock(&big_lock);
	if (event == NULL)
		return bug(CU_INVALID_HANDLE, "destroyed no event");
	free(event);
	return CU_OK;
}

void events_forget_locked(CUcontext ctx)
{
	struct CUevent_st **at = &events, *event;

	while ((event = *at) != NULL) {
		if (event->ctx != ctx) {
			at = &event->next;
			continue;
		}
		*at = event->next;
		moment_put_locked(&event->moment);
		alive.events--;
		free(event);
	}
}

/* The event may be destroyed before its stream has reached it. */
static void stamp(struct op *op)
{
	struct CUevent_st *event;

	pthread_mutex_lock(&big_lock);
	event = *find_locked(op->arg);
	if (event != NULL)
		clock_gettime(CLOCK_MONOTONIC, &event->over);
	pthread_mutex_unlock(&big_lock);
}

/* Record the event as a place in the capture, not as an operation of the
 * stream. */
static CUresult record_in_capture_locked(struct CUevent_st *event,
					 struct CUstream_st *stream)
{
	moment_put_locked(&event->moment);
	event->capture = capture_id(*stream_capture_locked(stream));
	return CU_OK;
}

static CUresult check_record_locked(CUevent handle, CUstream where,
				    bool *ret_done)
{
	struct CUevent_st *event = *find_locked(handle);
	struct CUstream_st *stream = stream_of_locked(where);

	if (event == NULL || stream == NULL)
		return bug(CU_INVALID_HANDLE, "no such event or stream");
	*ret_done = *stream_capture_locked(stream) != NULL;
	return *ret_done ? record_in_capture_locked(event, stream) : CU_OK;
}

static CUresult check_record(CUevent handle, CUstream stream, bool *ret_done)
{
	CUcontext ctx = context_of_stream(stream);
	struct CUevent_st *event;
	CUresult r;

	pthread_mutex_lock(&big_lock);
	event = *find_locked(handle);
	if (event != NULL && ctx != NULL && event->ctx != ctx)
		r = CU_INVALID_HANDLE;
	else
		r = check_record_locked(handle, stream, ret_done);
	pthread_mutex_unlock(&big_lock);
	return r;
}

CUresult cuEventRecord(CUevent handle, CUstream stream)
{
	CUresult r = enter("cuEventRecord", CONTEXT);
	struct CUevent_st *event;
	struct moment moment;
	struct op *op;
	bool done = false;

	if (r == CU_OK)
		r = check_record(handle, stream, &done);
	if (r != CU_OK || done)
		return r;
	op = op_new(stamp);
	op->arg = handle;
	r = give(stream, op, &moment);
	if (r != CU_OK)
		return r;
	pthread_mutex_lock(&big_lock);
	event = *find_locked(handle);
	if (event != NULL) {
		struct moment old = event->moment;

		event->moment = moment;
		event->capture = 0;
		moment = old;
	}
	moment_put_locked(&moment);
	pthread_mutex_unlock(&big_lock);
	return event != NULL ? CU_OK
			     : bug(CU_INVALID_HANDLE, "recorded no event");
}

static CUresult look(CUevent handle, bool wait)
{
	struct moment moment = {0};
	uint64_t capture;
	CUresult r;

	pthread_mutex_lock(&big_lock);
	r = event_moment_locked(handle, &moment, &capture);
	if (wait)
		wait_until_past_locked(&moment);
	if (r == CU_OK && !moment_is_past_locked(&moment))
		r = CU_NOT_READY;
	moment_put_locked(&moment);
	pthread_mutex_unlock(&big_lock);
	return r == CU_OK ? enter("(an event's end)", INIT) : r;
}

CUresult cuEventQuery(CUevent event)
{
	CUresult r = enter("cuEventQuery", CONTEXT);

	return r == CU_OK ? look(event, false) : r;
}

CUresult cuEventSynchronize(CUevent event)
{
	CUresult r = enter("cuEventSynchronize", CONTEXT);

	return r == CU_OK ? look(event, true) : r;
}

CUresult cuEventElapsedTime(float *ms, CUevent begin, CUevent end)
{
	CUresult r = enter("cuEventElapsedTime", CONTEXT);
	struct CUevent_st *a, *b;

	if (r != CU_OK)
		return r;
	pthread_mutex_lock(&big_lock);
	a = *find_locked(begin);
	b = *find_locked(end);
	if (a == NULL || b == NULL || !a->timing || !b->timing)
		r = CU_INVALID_HANDLE;
	else if (a->ctx != b->ctx)
		r = CU_INVALID_HANDLE;
	else if (!moment_is_past_locked(&a->moment) ||
		 !moment_is_past_locked(&b->moment))
		r = CU_NOT_READY;
	else
		*ms = (float)(b->over.tv_sec - a->over.tv_sec) * 1e3f +
		      (float)(b->over.tv_nsec - a->over.tv_nsec) / 1e6f;
	pthread_mutex_unlock(&big_lock);
	return r;
}
