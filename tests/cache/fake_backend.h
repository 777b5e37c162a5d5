/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_backend.h - a backend in memory that fails, refuses, hangs, lies or is slow, by the
 * rule of the test.
 *
 * Tests link this driver instead of the driver of dir: URLs.
 *
 * OWNS      its objects, its thread.
 *
 * LOCKING   fake.lock, taken before that of the operations, for all but the objects' bytes, which do not change while there
 *           are operations.  The rule runs under fake.lock.
 */
#ifndef KV_TESTS_CACHE_FAKE_BACKEND_H
#define KV_TESTS_CACHE_FAKE_BACKEND_H

#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <xxhash.h>

#include "cache/remote/backend.h"
#include "common/thread.h"

#define FAKE_MS UINT64_C(1000000)
#define FAKE_NEVER UINT64_MAX
#define FAKE_LOG 8192u

/* The outcome that the rule chooses for an operation. */
struct fake_plan {
	/* status that the operation gets; 0: the status that follows from the
	 * stored objects */
	int status;
	/* duration in ms; FAKE_NEVER: until the operation is cancelled */
	uint64_t ms;
	/* milliseconds that the body of a GET takes to arrive */
	uint64_t body_ms;
	/* the body of a GET never arrives, though its length did */
	bool stalls;
	uint64_t retry_after_ms;
	/* wrong length that a GET reports; 0: the right length */
	uint64_t length;
	bool stuck; /* the operation ends only by fake_release() */
	/* true: one byte of the object that a GET returns is changed */
	bool damaged;
};

struct fake_object {
	char name[KV_OBJECT_NAME_MAX + 1];
	uint64_t hash; /* hash of the object's name */
	uint8_t *data;
	uint64_t bytes;
};

struct fake_op {
	struct kv_remote_op *op;
	struct fake_plan plan;
	uint64_t due_ns;
	bool begun, released;
	TAILQ_ENTRY(fake_op) link;
};

static struct fake {
	/* must be the first field: its address is cast to this struct */
	struct kv_ops ops;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	pthread_t thread;
	bool stop;
	TAILQ_HEAD(, fake_op) pending;
	struct fake_object *objects;
	size_t n;
	/* Set by the test: chooses the outcome of each operation. */
	void (*rule)(const struct kv_remote_op *op, struct fake_plan *plan);
	/* sent: number of operations that were sent, for each kind of call;
	 * replies: number of replies to operations of all kinds */
	unsigned sent[KV_REMOTE_CALLS], replies;
	struct {
		enum kv_remote_call call;
		char name[KV_OBJECT_NAME_MAX + 1];
		uint64_t ns;
		unsigned out,
			/* out: number of GETs in flight when this operation was
			 * sent; replies: number of replies sent by then */
			replies;
	} log[FAKE_LOG];
	unsigned logged, out;
	uint64_t memory, memory_max;
} fake;

static inline struct fake_object *fake_find(const char *name)
{
	const uint64_t hash = XXH3_64bits(name, strlen(name));

	for (size_t i = 0; i < fake.n; i++)
		if (fake.objects[i].hash == hash &&
		    strcmp(fake.objects[i].name, name) == 0)
			return &fake.objects[i];
	return NULL;
}

static inline void fake_store(const char *name, const void *data, size_t bytes)
{
	struct fake_object *object = fake_find(name);

	if (!object) {
		fake.objects =
			realloc(fake.objects, (fake.n + 1) * sizeof(*object));
		object = &fake.objects[fake.n++];
		snprintf(object->name, sizeof(object->name), "%s", name);
		object->hash = XXH3_64bits(name, strlen(name));
		object->data = NULL;
	}
	free(object->data);
	object->data = malloc(bytes);
	object->bytes = bytes;
	memcpy(object->data, data, bytes);
}

static inline void fake_forget(void)
{
	for (size_t i = 0; i < fake.n; i++)
		free(fake.objects[i].data);
	free(fake.objects);
	fake.objects = NULL;
	fake.n = 0;
}

/* Carry out an operation; return its status.  Call with fake.lock held. */
static inline int fake_do(struct fake_op *f)
{
	struct kv_remote_op *op = f->op;
	const struct fake_object *object = fake_find(op->name);
	const uint64_t bytes = f->plan.length ? f->plan.length
			       : object	      ? object->bytes
					      : 0;
	char name[KV_OBJECT_NAME_MAX + 1];
	uint8_t *data;

	snprintf(op->why, sizeof(op->why), "the rule said %d", f->plan.status);
	op->retry_after_ns = f->plan.retry_after_ms * FAKE_MS;
	if (f->plan.status && f->plan.status != -EBADMSG)
		return f->plan.status;
	op->why[0] = '\0';
	if (op->call != KV_REMOTE_PUT)
		op->length = bytes;
	switch (op->call) {
	case KV_REMOTE_HEAD:
		return object || !op->name[0] ? 0 : -ENOENT;
	case KV_REMOTE_GET:
		if (!object)
			return -ENOENT;
		if (!f->begun) {
			if (kv_op_room(&fake.ops, op, bytes) < 0)
				return -EAGAIN;
			f->begun = true;
			fake.memory += bytes;
			fake.memory_max = KV_MAX(fake.memory_max, fake.memory);
			memcpy(op->data, object->data,
			       KV_MIN(bytes, object->bytes));
			if (f->plan.damaged)
				op->data[(size_t)rand() % bytes] ^=
					1 << rand() % 8;
			if (f->plan.stalls) {
				f->due_ns = FAKE_NEVER;
				return 1;
			}
			if (f->plan.body_ms) {
				f->due_ns =
					kv_now_ns() + f->plan.body_ms * FAKE_MS;
				return 1;
			}
		}
		return f->plan.status;
	case KV_REMOTE_PUT:
		data = malloc(op->parts[0].iov_len + op->parts[1].iov_len);
		memcpy(data, op->parts[0].iov_base, op->parts[0].iov_len);
		memcpy(data + op->parts[0].iov_len, op->parts[1].iov_base,
		       op->parts[1].iov_len);
		fake_store(op->name, data,
			   op->parts[0].iov_len + op->parts[1].iov_len);
		free(data);
		return 0;
	default:
		if (!object)
			return -ENOENT;
		snprintf(name, sizeof(name), "%s", op->name);
		free(object->data);
		fake.objects[object - fake.objects] = fake.objects[--fake.n];
		return 0;
	}
}

/* Begin all operations that were submitted; called by the thread that
 * submits. */
static inline void fake_take(void)
{
	struct kv_remote_op *op;

	while ((op = kv_ops_take(&fake.ops, false))) {
		struct fake_op *f = calloc(1, sizeof(*f));

		f->op = op;
		if (fake.rule)
			fake.rule(f->op, &f->plan);
		f->due_ns = f->plan.ms == FAKE_NEVER
				    ? FAKE_NEVER
				    : kv_now_ns() + f->plan.ms * FAKE_MS;
		fake.sent[f->op->call]++;
		fake.out += f->op->call == KV_REMOTE_GET;
		if (fake.logged < FAKE_LOG) {
			fake.log[fake.logged].call = f->op->call;
			strcpy(fake.log[fake.logged].name, f->op->name);
			fake.log[fake.logged].ns = kv_now_ns();
			fake.log[fake.logged].out = fake.out;
			fake.log[fake.logged++].replies = fake.replies;
		}
		TAILQ_INSERT_TAIL(&fake.pending, f, link);
	}
}

static inline void *fake_run(void *arg)
{
	struct fake_op *f, *next;

	(void)arg;
	pthread_mutex_lock(&fake.lock);
	while (!fake.stop) {
		uint64_t now = kv_now_ns(), due = now + 100 * FAKE_MS;

		for (f = TAILQ_FIRST(&fake.pending); f; f = next) {
			const bool let_go = f->released || (f->op->cancelled &&
							    !f->plan.stuck);
			int status;

			next = TAILQ_NEXT(f, link);
			if (!let_go && now < f->due_ns) {
				if (f->begun && !f->plan.stalls)
					atomic_fetch_add(&f->op->progress, 1);
				due = KV_MIN(due, f->due_ns);
				continue;
			}
			status = let_go ? -ECANCELED : fake_do(f);
			if (status == 1) {
				due = KV_MIN(due, f->due_ns);
				continue;
			}
			next = TAILQ_NEXT(f, link);
			if (f->begun)
				fake.memory -= f->op->length;
			fake.out -= f->op->call == KV_REMOTE_GET;
			fake.replies++;
			TAILQ_REMOVE(&fake.pending, f, link);
			kv_ops_end(&fake.ops, f->op, status);
			free(f);
		}
		kv_cond_wait_until(&fake.changed, &fake.lock, due);
	}
	pthread_mutex_unlock(&fake.lock);
	return NULL;
}

static inline void fake_wake(struct kv_ops *ops)
{
	(void)ops;
	pthread_mutex_lock(&fake.lock);
	fake_take();
	pthread_cond_signal(&fake.changed);
	pthread_mutex_unlock(&fake.lock);
}

static inline int fake_make(const char *scheme, const char *rest,
			    const struct kv_remote_config *config,
			    struct kv_ops **ret_ops, char **ret_why)
{
	(void)scheme;
	(void)rest;
	(void)config;
	(void)ret_why;
	pthread_mutex_init(&fake.lock, NULL);
	kv_cond_init(&fake.changed);
	TAILQ_INIT(&fake.pending);
	fake.stop = false;
	memset(&fake.ops, 0, sizeof(fake.ops));
	*ret_ops = &fake.ops;
	if (kv_ops_init(&fake.ops, fake_wake) < 0)
		return -EIO;
	return kv_thread_start(&fake.thread, "fake", fake_run, NULL);
}

/* End all operations that the rule has made to hang. */
static inline void fake_release(void)
{
	struct fake_op *f;

	pthread_mutex_lock(&fake.lock);
	TAILQ_FOREACH(f, &fake.pending, link)
		f->released |= f->due_ns == FAKE_NEVER;
	pthread_cond_signal(&fake.changed);
	pthread_mutex_unlock(&fake.lock);
}

static inline int fake_close(struct kv_ops *ops)
{
	fake_release();
	pthread_mutex_lock(&fake.lock);
	while (!TAILQ_EMPTY(&fake.pending)) {
		pthread_mutex_unlock(&fake.lock);
		usleep(1000);
		pthread_mutex_lock(&fake.lock);
	}
	fake.stop = true;
	pthread_cond_signal(&fake.changed);
	pthread_mutex_unlock(&fake.lock);
	pthread_join(fake.thread, NULL);
	kv_ops_fini(ops);
	return 0;
}

const struct kv_remote_driver kv_remote_dir = {
	.scheme = "dir",
	.make = fake_make,
	.close = fake_close,
};

/* Return how many operations of the kind @call were sent. */
static inline unsigned sent(enum kv_remote_call call)
{
	unsigned n;

	pthread_mutex_lock(&fake.lock);
	n = fake.sent[call];
	pthread_mutex_unlock(&fake.lock);
	return n;
}

#endif
