/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c - the stand-in's streams: one thread each, with random delays.
 *
 * OWNS      the streams, each referenced by its handle, its thread and every
 *           moment of it that is kept; the streams' operations.
 *
 * STATES    of an operation: GIVEN -> RUNNING -> over (freed); in order.
 *
 * INVARIANTS
 *   (1) An operation begins when all earlier operations of its stream have
 *       ended, and all moments on which it depends have passed.
 *   (2) The legacy stream's operations run after all earlier operations of
 *       blocking streams, and before all later ones.
 *   (3) seq numbers the operations in the order of the calls; done counts the
 *       operations that have ended, in this order.
 *   (4) If the number of hardware queues is limited, streams of a priority
 *       share them: an operation begins when all earlier operations of its
 *       queue, of any stream, have begun, or if they are waits, have ended.
 *
 * LOCKING   big_lock, but not while an operation runs.
 */
#include <stdio.h>

#include "tests/gpu/standin/standin.h"

#define MAX_QUEUES 32
#define PRIORITIES 6

/* A hardware queue: operations in the order of the calls. */
struct queue {
	/* numbers of operations that were queued, and that have begun; guarded
	 * by big_lock */
	uint64_t given, begun;
};

struct CUstream_st {
	struct CUstream_st *next;
	CUcontext ctx; /* set when the stream is made, then constant */
	/* NULL: the stream has a queue of its own; set when the stream is made,
	 * then constant */
	struct queue *queue;
	unsigned refs; /* number of references; guarded by big_lock */
	/* true: the stream and the legacy stream wait for each other; set when
	 * the stream is made, then constant */
	bool blocking;
	bool destroyed; /* big_lock */
	/* state of the generator of the thread's random pauses */
	unsigned random;
	/* number of operations queued so far; guarded by big_lock */
	uint64_t seq;
	/* number of operations that have ended; guarded by big_lock */
	uint64_t done;
	/* NULL: the stream is not captured; guarded by big_lock */
	struct capture *capture;
	struct op *first;  /* big_lock */
	struct op **last;  /* big_lock */
	pthread_cond_t go; /* big_lock */
};

/* list of all streams; guarded by big_lock */
static struct CUstream_st *streams;
/* the legacy streams, created at first use; guarded by big_lock */
static struct CUstream_st *legacy[MAX_DEVICES];
static struct queue queues[MAX_DEVICES][PRIORITIES]
			  [MAX_QUEUES]; /* under big_lock */
/* number of streams made so far; guarded by big_lock */
static unsigned made;
static uint64_t pending; /* big_lock */
/* number of operations that have ended so far; guarded by big_lock */
static uint64_t over;
static bool held; /* big_lock */

/* ---- moments ---- */

static void put_locked(struct CUstream_st *stream)
{
	struct CUstream_st **at;

	if (--stream->refs > 0)
		return;
	for (at = &streams; *at != stream; at = &(*at)->next)
		;
	*at = stream->next;
	pthread_cond_destroy(&stream->go);
	free(stream);
}

void moment_put_locked(struct moment *moment)
{
	if (moment->stream != NULL)
		put_locked(kv_steal(moment->stream));
}

bool moment_is_past_locked(const struct moment *moment)
{
	return moment->stream == NULL || moment->stream->done >= moment->seq;
}

struct moment now_in_locked(struct CUstream_st *stream)
{
	stream->refs++;
	return (struct moment){stream, stream->seq};
}

/* Detects a deadlock: no operation has ended for a long time. */
struct patience {
	const char *what;
	struct timespec until; /* {0}: no time limit was set yet */
	/* value of the counter @over at the last check */
	uint64_t over;
};

static void wait_changed_locked(struct patience *patience)
{
	if (patience->until.tv_sec == 0 || over != patience->over) {
		clock_gettime(CLOCK_REALTIME, &patience->until);
		patience->until.tv_sec += settings.patience_s;
		patience->over = over;
	}
	if (pthread_cond_timedwait(&changed, &big_lock, &patience->until) ==
		    ETIMEDOUT &&
	    over == patience->over) {
		fprintf(stderr,
			"stand-in driver: a deadlock: %s waits for what never "
			"ends\n",
			patience->what);
		abort();
	}
}

void wait_until_past_locked(const struct moment *moment)
{
	struct patience patience = {.what = "somebody"};

	while (!moment_is_past_locked(moment))
		wait_changed_locked(&patience);
}

static void come_after_locked(struct op *op, struct CUstream_st *stream)
{
	struct moment moment = now_in_locked(stream);

	if (moment_is_past_locked(&moment)) {
		moment_put_locked(&moment);
		return;
	}
	assert(op->n_after < KV_ARRAY_LEN(op->after));
	op->after[op->n_after++] = moment;
}

/* ---- the thread of a stream ---- */

static bool may_begin_locked(struct CUstream_st *stream, struct op *op)
{
	unsigned i;

	if (stream->queue != NULL && stream->queue->begun != op->ticket)
		return false;
	for (i = 0; i < op->n_after; i++)
		if (!moment_is_past_locked(&op->after[i]))
			return false;
	return true;
}

static void pause_at_random(struct CUstream_st *stream)
{
	unsigned us = __atomic_load_n(&settings.delay_us, __ATOMIC_RELAXED), x;

	if (us == 0)
		return;
	x = stream->random = stream->random * 1103515245u + 12345u;
	x >>= 8;
	/* Pause for long in one of 64 cases, and not at all in a quarter of the
	 * cases. */
	if (x % 64 == 0)
		usleep(us * 20);
	else if (x % 4 != 0)
		usleep(x / 64 % us);
}

/* Let the operations behind this one in the hardware queue begin. */
static void go_on_locked(struct CUstream_st *stream)
{
	if (stream->queue == NULL)
		return;
	stream->queue->begun++;
	pthread_cond_broadcast(&changed);
}

static void begin_locked(struct CUstream_st *stream, struct op *op)
{
	if (!op->is_wait)
		go_on_locked(stream);
	while (held && op->is_work && !device_is_broken())
		pthread_cond_wait(&changed, &big_lock);
}

static void finish_locked(struct CUstream_st *stream, struct op *op)
{
	unsigned i;

	if (op->is_wait)
		go_on_locked(stream);
	stream->first = op->next;
	if (stream->first == NULL)
		stream->last = &stream->first;
	stream->done++;
	pending--;
	over++;
	for (i = 0; i < op->n_after; i++)
		moment_put_locked(&op->after[i]);
	op_free(op);
	pthread_cond_broadcast(&changed);
}

static void *work(void *arg)
{
	struct CUstream_st *stream = arg;
	struct op *op;

	pthread_mutex_lock(&big_lock);
	for (;;) {
		op = stream->first;
		if (op == NULL && stream->destroyed)
			break;
		if (op == NULL) {
			pthread_cond_wait(&stream->go, &big_lock);
			continue;
		}
		if (!may_begin_locked(stream, op)) {
			pthread_cond_wait(&changed, &big_lock);
			continue;
		}
		begin_locked(stream, op);
		pthread_mutex_unlock(&big_lock);
		/* Like a driver, drop work that waits when the device breaks. */
		if (op->run != NULL && !device_is_broken()) {
			pause_at_random(stream);
			op->run(op);
		}
		pthread_mutex_lock(&big_lock);
		finish_locked(stream, op);
	}
	put_locked(stream);
	pthread_mutex_unlock(&big_lock);
	return NULL;
}

static struct queue *queue_for_locked(CUcontext ctx, int priority)
{
	unsigned n = KV_MIN(settings.queues, MAX_QUEUES);

	priority = KV_MIN(KV_MAX(-priority, 0), PRIORITIES - 1);
	return n == 0 ? NULL : &queues[ctx->device][priority][made % n];
}

static struct CUstream_st *stream_new_locked(CUcontext ctx, bool blocking,
					     int priority)
{
	struct CUstream_st *stream = calloc(1, sizeof(*stream));
	pthread_attr_t attr;
	pthread_t thread;
	int r;

	if (stream == NULL)
		return NULL;
	stream->ctx = ctx;
	stream->queue = queue_for_locked(ctx, priority);
	stream->blocking = blocking;
	stream->random = settings.seed * 7919u + made++;
	stream->last = &stream->first;
	stream->refs = 2;
	pthread_cond_init(&stream->go, NULL);
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	r = pthread_create(&thread, &attr, work, stream);
	pthread_attr_destroy(&attr);
	if (r != 0) {
		free(stream);
		return NULL;
	}
	stream->next = streams;
	streams = stream;
	return stream;
}

struct CUstream_st *stream_of_locked(CUstream handle)
{
	struct CUstream_st *stream;

	if (handle == NULL || handle == CU_LEGACY) {
		CUcontext ctx = current_context();

		if (legacy[ctx->device] == NULL)
			legacy[ctx->device] = stream_new_locked(ctx, true, 0);
		return legacy[ctx->device];
	}
	for (stream = streams; stream != NULL; stream = stream->next)
		if (stream == handle && !stream->destroyed)
			return stream;
	return NULL;
}

CUcontext context_of_stream(CUstream handle)
{
	struct CUstream_st *stream;
	CUcontext ctx;

	pthread_mutex_lock(&big_lock);
	stream = stream_of_locked(handle);
	ctx = stream == NULL ? NULL : stream->ctx;
	pthread_mutex_unlock(&big_lock);
	return ctx;
}

/* ---- queueing operations ---- */

struct op *op_new(void (*run)(struct op *op))
{
	struct op *op = calloc(1, sizeof(*op));

	if (op == NULL)
		abort();
	op->run = run;
	return op;
}

void op_free(struct op *op)
{
	free(op->parameters);
	free(op);
}

static void order_with_legacy_locked(struct CUstream_st *stream, struct op *op)
{
	struct CUstream_st *all = legacy[stream->ctx->device], *other;

	if (stream != all) {
		if (stream->blocking && all != NULL)
			come_after_locked(op, all);
		return;
	}
	for (other = streams; other != NULL; other = other->next)
		if (other != all && other->blocking &&
		    other->ctx == stream->ctx)
			come_after_locked(op, other);
}

struct capture **stream_capture_locked(struct CUstream_st *stream)
{
	return &stream->capture;
}

struct capture *legacy_capture_locked(struct CUstream_st *stream)
{
	struct CUstream_st *other;

	if (stream != legacy[stream->ctx->device])
		return NULL;
	for (other = streams; other != NULL; other = other->next)
		if (other->blocking && other->ctx == stream->ctx &&
		    other->capture != NULL)
			return other->capture;
	return NULL;
}

void streams_leave_locked(struct capture *capture)
{
	struct CUstream_st *stream;

	for (stream = streams; stream != NULL; stream = stream->next)
		if (stream->capture == capture)
			stream->capture = NULL;
}

static void queue_locked(struct CUstream_st *stream, struct op *op)
{
	order_with_legacy_locked(stream, op);
	*stream->last = op;
	stream->last = &op->next;
	stream->seq++;
	if (stream->queue != NULL)
		op->ticket = stream->queue->given++;
	pending++;
	pthread_cond_signal(&stream->go);
}

static CUresult give_locked(CUstream handle, struct op *op, struct moment *ret)
{
	struct CUstream_st *stream = stream_of_locked(handle);

	if (stream == NULL)
		return CU_INVALID_HANDLE;
	if (legacy_capture_locked(stream) != NULL) {
		capture_spoil_locked(legacy_capture_locked(stream));
		return CU_CAPTURE_IMPLICIT;
	}
	if (stream->capture != NULL) {
		if (ret != NULL)
			*ret = (struct moment){0};
		return capture_take_locked(stream->capture, op);
	}
	queue_locked(stream, op);
	if (ret != NULL)
		*ret = now_in_locked(stream);
	return CU_OK;
}

CUresult give(CUstream handle, struct op *op, struct moment *ret)
{
	CUresult r;

	pthread_mutex_lock(&big_lock);
	r = give_locked(handle, op, ret);
	pthread_mutex_unlock(&big_lock);
	if (r != CU_OK)
		op_free(op);
	return r == CU_INVALID_HANDLE ? bug(r, "no such stream") : r;
}

CUresult give_and_wait(CUstream handle, struct op *op)
{
	struct moment moment = {0};
	CUresult r = give(handle, op, &moment);

	if (r != CU_OK)
		return r;
	pthread_mutex_lock(&big_lock);
	wait_until_past_locked(&moment);
	moment_put_locked(&moment);
	pthread_mutex_unlock(&big_lock);
	return enter("(a copy's end)", INIT);
}

/* Wait for all streams, also destroyed ones with work left. */
void wait_for_all(void)
{
	struct patience patience = {.what = "cuCtxSynchronize"};

	pthread_mutex_lock(&big_lock);
	while (pending > 0)
		wait_changed_locked(&patience);
	pthread_mutex_unlock(&big_lock);
}

static bool is_busy_locked(CUcontext ctx)
{
	const struct CUstream_st *stream;

	for (stream = streams; stream != NULL; stream = stream->next)
		if (stream->ctx == ctx && stream->done < stream->seq)
			return true;
	return false;
}

void streams_forget_locked(CUcontext ctx)
{
	struct CUstream_st *stream, *next;

	for (stream = streams; stream != NULL; stream = next) {
		next = stream->next;
		if (stream->ctx != ctx || stream->destroyed ||
		    stream == legacy[ctx->device])
			continue;
		stream->destroyed = true;
		alive.streams--;
		pthread_cond_signal(&stream->go);
		put_locked(stream);
	}
}

/* The caller holds the context's lock, so that no new work can arrive. */
void wait_for_context_locked(CUcontext ctx)
{
	struct patience patience = {.what = "a call that synchronises"};

	while (is_busy_locked(ctx))
		wait_changed_locked(&patience);
}

void standin_hold(bool hold)
{
	pthread_mutex_lock(&big_lock);
	held = hold;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&big_lock);
}

uint64_t standin_pending(void)
{
	uint64_t n;

	pthread_mutex_lock(&big_lock);
	n = pending;
	pthread_mutex_unlock(&big_lock);
	return n;
}

/* ---- calls ---- */

CUresult cuStreamCreateWithPriority(CUstream *ret, unsigned flags, int priority)
{
	CUresult r = enter("cuStreamCreateWithPriority", CONTEXT);

	if (r != CU_OK)
		return r;
	if ((flags & ~(unsigned)CU_STREAM_NONBLOCKING) != 0)
		return CU_INVALID_VALUE;
	pthread_mutex_lock(&big_lock);
	*ret = stream_new_locked(current_context(),
				 (flags & CU_STREAM_NONBLOCKING) == 0,
				 priority);
	if (*ret == NULL)
		r = CU_OUT_OF_MEMORY;
	else
		alive.streams++;
	pthread_mutex_unlock(&big_lock);
	return r;
}

/* Operations of a destroyed stream continue. */
CUresult cuStreamDestroy_v2(CUstream handle)
{
	CUresult r = enter("cuStreamDestroy_v2", CONTEXT);
	struct CUstream_st *stream;

	if (r != CU_OK)
		return r;
	pthread_mutex_lock(&big_lock);
	stream = stream_of_locked(handle);
	if (stream == NULL || stream == legacy[stream->ctx->device]) {
		r = CU_INVALID_HANDLE;
	} else {
		stream->destroyed = true;
		alive.streams--;
		pthread_cond_signal(&stream->go);
		put_locked(stream);
	}
	pthread_mutex_unlock(&big_lock);
	return r == CU_OK ? r : bug(r, "destroyed no stream");
}

static CUresult look(CUstream handle, bool wait)
{
	struct CUstream_st *stream;
	struct moment moment;
	CUresult r = CU_OK;

	pthread_mutex_lock(&big_lock);
	stream = stream_of_locked(handle);
	if (stream == NULL) {
		r = CU_INVALID_HANDLE;
	} else if (stream->capture != NULL) {
		capture_spoil_locked(stream->capture);
		r = CU_CAPTURE_UNSUPPORTED;
	} else {
		moment = now_in_locked(stream);
		if (wait)
			wait_until_past_locked(&moment);
		if (!moment_is_past_locked(&moment))
			r = CU_NOT_READY;
		moment_put_locked(&moment);
	}
	pthread_mutex_unlock(&big_lock);
	if (r == CU_INVALID_HANDLE)
		return bug(r, "looked at no stream");
	return r == CU_OK ? enter("(a stream's end)", INIT) : r;
}

CUresult cuStreamSynchronize(CUstream stream)
{
	CUresult r = enter("cuStreamSynchronize", CONTEXT);

	return r == CU_OK ? look(stream, true) : r;
}

CUresult cuStreamQuery(CUstream stream)
{
	CUresult r = enter("cuStreamQuery", CONTEXT);

	return r == CU_OK ? look(stream, false) : r;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *ctx)
{
	CUresult r = enter("cuStreamGetCtx", CONTEXT);

	if (r != CU_OK)
		return r;
	*ctx = context_of_stream(stream);
	return *ctx != NULL ? CU_OK : CU_INVALID_HANDLE;
}

/* Make @stream wait for an event recorded in the capture @id, which @stream
 * joins. */
static CUresult join_locked(struct CUstream_st *stream, uint64_t id)
{
	struct capture *capture = capture_find_locked(id);

	if (capture == NULL)
		return CU_CAPTURED_EVENT;
	if (stream->capture == NULL)
		capture_join_locked(capture, stream);
	return stream->capture == capture ? CU_OK : CU_CAPTURE_ISOLATION;
}

static CUresult wait_event_locked(CUstream handle, CUevent event)
{
	struct CUstream_st *stream = stream_of_locked(handle);
	struct op *op;
	uint64_t id = 0;
	CUresult r;

	if (stream == NULL)
		return CU_INVALID_HANDLE;
	op = op_new(NULL);
	r = event_moment_locked(event, &op->after[0], &id);
	op->n_after = 1;
	if (r == CU_CAPTURED_EVENT) {
		op_free(op);
		return join_locked(stream, id);
	}
	if (r == CU_OK && stream->capture != NULL) {
		/* A captured stream cannot wait for work outside of its
		 * capture. */
		capture_spoil_locked(stream->capture);
		r = CU_CAPTURE_ISOLATION;
	}
	if (r == CU_OK)
		return give_locked(handle, op, NULL);
	moment_put_locked(&op->after[0]);
	op_free(op);
	return r;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
	CUresult r = enter("cuStreamWaitEvent", CONTEXT);

	if (r != CU_OK)
		return r;
	if (flags != 0)
		return CU_INVALID_VALUE;
	pthread_mutex_lock(&big_lock);
	r = wait_event_locked(stream, event);
	pthread_mutex_unlock(&big_lock);
	return r == CU_INVALID_HANDLE ? bug(r, "no such stream or event") : r;
}
