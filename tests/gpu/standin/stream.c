/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c - the stand-in's streams: a thread each, late and in its own time.
 *
 * OWNS      the streams, each counted: by its handle, by its thread, and by
 *           every moment in it that somebody keeps; their operations.
 *
 * STATES    of an operation: GIVEN -> RUNNING -> over (freed); in order.
 *
 * INVARIANTS
 *   (1) An operation begins when all before it in its stream are over, and all
 *       moments that it comes after are past.
 *   (2) The legacy stream's operations come after all that blocking streams
 *       were given before, and before all that they are given later.
 *   (3) seq numbers are given out in the order of the calls; done counts those
 *       that are over, also in that order.
 *
 * LOCKING   big_lock, but not while an operation runs.
 */
#include <stdio.h>

#include "tests/gpu/standin/standin.h"

struct CUstream_st {
	struct CUstream_st *next;
	unsigned refs;	   /* big_lock */
	bool blocking;	   /* with the legacy stream; fixed after new */
	bool destroyed;	   /* big_lock */
	unsigned random;   /* of the thread */
	uint64_t seq;	   /* big_lock; operations given */
	uint64_t done;	   /* big_lock; operations over */
	struct op *first;  /* big_lock */
	struct op **last;  /* big_lock */
	pthread_cond_t go; /* big_lock */
};

static struct CUstream_st *streams; /* big_lock; those with a reference */
static struct CUstream_st *legacy;  /* big_lock; made with the first use */
static unsigned made;		    /* big_lock; streams so far */
static uint64_t pending;	    /* big_lock */
static bool held;		    /* big_lock */

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

void wait_until_past_locked(const struct moment *moment)
{
	while (!moment_is_past_locked(moment))
		pthread_cond_wait(&changed, &big_lock);
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

static bool may_begin_locked(struct op *op)
{
	unsigned i;

	if (held && op->is_work)
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
	/* Now and then a long one, and often none. */
	if (x % 64 == 0)
		usleep(us * 20);
	else if (x % 4 != 0)
		usleep(x / 64 % us);
}

static void finish_locked(struct CUstream_st *stream, struct op *op)
{
	unsigned i;

	stream->first = op->next;
	if (stream->first == NULL)
		stream->last = &stream->first;
	stream->done++;
	pending--;
	for (i = 0; i < op->n_after; i++)
		moment_put_locked(&op->after[i]);
	free(op->parameters);
	free(op);
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
		if (!may_begin_locked(op)) {
			pthread_cond_wait(&changed, &big_lock);
			continue;
		}
		pthread_mutex_unlock(&big_lock);
		if (op->run != NULL) {
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

static struct CUstream_st *stream_new_locked(bool blocking)
{
	struct CUstream_st *stream = calloc(1, sizeof(*stream));
	pthread_attr_t attr;
	pthread_t thread;
	int r;

	if (stream == NULL)
		return NULL;
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
		if (legacy == NULL)
			legacy = stream_new_locked(true);
		return legacy;
	}
	for (stream = streams; stream != NULL; stream = stream->next)
		if (stream == handle && !stream->destroyed)
			return stream;
	return NULL;
}

/* ---- giving ---- */

struct op *op_new(void (*run)(struct op *op))
{
	struct op *op = calloc(1, sizeof(*op));

	if (op == NULL)
		abort();
	op->run = run;
	return op;
}

static void order_with_legacy_locked(struct CUstream_st *stream, struct op *op)
{
	struct CUstream_st *other;

	if (stream != legacy) {
		if (stream->blocking && legacy != NULL)
			come_after_locked(op, legacy);
		return;
	}
	for (other = streams; other != NULL; other = other->next)
		if (other != legacy && other->blocking)
			come_after_locked(op, other);
}

CUresult give(CUstream handle, struct op *op, struct moment *ret)
{
	struct CUstream_st *stream;

	pthread_mutex_lock(&big_lock);
	stream = stream_of_locked(handle);
	if (stream == NULL) {
		pthread_mutex_unlock(&big_lock);
		free(op->parameters);
		free(op);
		return bug(CU_INVALID_HANDLE, "no such stream");
	}
	order_with_legacy_locked(stream, op);
	*stream->last = op;
	stream->last = &op->next;
	stream->seq++;
	pending++;
	pthread_cond_signal(&stream->go);
	if (ret != NULL)
		*ret = now_in_locked(stream);
	pthread_mutex_unlock(&big_lock);
	return CU_OK;
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
	return enter("(a copy's end)", CONTEXT);
}

/* Of all streams, those that were destroyed with work left included. */
void wait_for_all(void)
{
	pthread_mutex_lock(&big_lock);
	while (pending > 0)
		pthread_cond_wait(&changed, &big_lock);
	pthread_mutex_unlock(&big_lock);
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

	(void)priority; /* any is taken, as a real one clamps it */
	if (r != CU_OK)
		return r;
	if ((flags & ~(unsigned)CU_STREAM_NONBLOCKING) != 0)
		return CU_INVALID_VALUE;
	pthread_mutex_lock(&big_lock);
	*ret = stream_new_locked((flags & CU_STREAM_NONBLOCKING) == 0);
	if (*ret == NULL)
		r = CU_OUT_OF_MEMORY;
	else
		alive.streams++;
	pthread_mutex_unlock(&big_lock);
	return r;
}

CUresult cuStreamCreate(CUstream *ret, unsigned flags)
{
	return cuStreamCreateWithPriority(ret, flags, 0);
}

/* What it was given goes on. */
CUresult cuStreamDestroy_v2(CUstream handle)
{
	CUresult r = enter("cuStreamDestroy_v2", CONTEXT);
	struct CUstream_st *stream;

	if (r != CU_OK)
		return r;
	pthread_mutex_lock(&big_lock);
	stream = stream_of_locked(handle);
	if (stream == NULL || stream == legacy) {
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
	return r == CU_OK ? enter("(a stream's end)", CONTEXT) : r;
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

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags)
{
	CUresult r = enter("cuStreamWaitEvent", CONTEXT);
	struct op *op;

	if (r != CU_OK)
		return r;
	if (flags != 0)
		return CU_INVALID_VALUE;
	op = op_new(NULL);
	pthread_mutex_lock(&big_lock);
	r = event_moment_locked(event, &op->after[0]);
	op->n_after = 1;
	pthread_mutex_unlock(&big_lock);
	if (r == CU_OK)
		return give(stream, op, NULL);
	free(op);
	return r;
}
