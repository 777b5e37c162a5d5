/* SPDX-License-Identifier: Apache-2.0 */
/*
 * requests.c - the kernel's requests: read as fast as they come, and answered
 * by threads for which users take turns.
 *
 * The kernel hands requests out in order of arrival.  A thread that reads one
 * answers it at once while its user has few under way and none waiting, so that
 * an idle daemon hands nothing over to another thread; beyond that, requests
 * wait on their user's queue for threads of a pool.
 *
 * OWNS      the threads that read and their buffers; the pool; a request from
 *           when it is read until its handler returns.
 *
 * INVARIANTS
 *   (1) One thread at least reads, or answers what is answered at once: fewer
 *       than READERS are guests of the pool.
 *   (2) What the kernel asks for by itself is answered at once: nobody's turn
 *       would be charged for it, and an interrupt overtakes.
 *   (3) A request that waits with more than SMALL bytes is charged to its user;
 *       a smaller one costs less than the process that waits for it.
 *
 * LOCKING   none: the pool has one.
 */
#include <linux/fuse.h>
#include <semaphore.h>

#include "cache/core/account.h"
#include "common/thread.h"
#include "fs/base/workers.h"
#include "fs/mount/requests.h"

#define READERS 8u
#define THREADS 24u
#define SMALL 4096u
#define TURN_NS 1000000u

struct reader {
	struct kv_requests *requests;
	struct fuse_buf buffer;
	pthread_t thread;
};

struct kv_requests {
	struct kv_mount *mount; /* fixed, as are these: */
	struct fuse_session *fuse;
	struct kv_workers_config config;
	struct kv_workers *pool;

	struct reader readers[READERS];
	unsigned n;
	sem_t ended;
	_Atomic int status;
};

struct request {
	struct kv_work work; /* first */
	struct kv_requests *requests;
	uint64_t arrived;
	struct fuse_buf buffer;
	struct kv_account *account; /* charged with the buffer; or NULL */
	char bytes[];
};

static _Thread_local uint64_t arrived;

uint64_t kv_request_arrived(void)
{
	return arrived;
}

static void answer(struct kv_work *work, struct kv_hash *hash)
{
	const struct request *request = (struct request *)work;

	(void)hash;
	arrived = request->arrived;
	fuse_session_process_buf(request->requests->fuse, &request->buffer);
}

static void answer_queued(struct kv_work *work, struct kv_hash *hash)
{
	struct request *request = (struct request *)work;

	answer(work, hash);
	if (request->account)
		kv_account_credit(request->account, KV_FINITE_MEMORY,
				  request->buffer.size);
	kv_account_put(request->account);
	free(request);
}

/* No handler is to see the request, and libfuse has not: only it knows how to
 * make a fuse_req_t. */
static void refuse(struct kv_requests *requests,
		   const struct fuse_in_header *header, int error)
{
	const struct fuse_out_header reply = {
		.len = sizeof(reply), .error = error, .unique = header->unique};

	(void)!write(fuse_session_fd(requests->fuse), &reply, sizeof(reply));
}

/* A copy of @from waits for its user's turn. */
static void queue(const struct request *from,
		  const struct fuse_in_header *header)
{
	struct kv_requests *requests = from->requests;
	const size_t n = from->buffer.size;
	struct request *request = malloc(sizeof(*request) + n);
	int r = request ? 0 : -ENOMEM;

	if (r == 0) {
		*request = *from;
		request->work.run = answer_queued;
		request->buffer.mem =
			memcpy(request->bytes, from->buffer.mem, n);
	}
	if (r == 0 && n > SMALL) {
		request->account = kv_account_get(
			kv_cache_accounts(requests->mount->cache), header->uid);
		r = request->account ? kv_account_charge(request->account,
							 KV_FINITE_MEMORY, n)
				     : -ENOMEM;
	}
	if (r == 0) {
		kv_work_submit(requests->pool, &request->work, header->uid, 0);
		return;
	}
	refuse(requests, header, r == -ENOLCK ? -ENOSPC : r);
	if (request)
		kv_account_put(request->account);
	free(request);
}

static void dispatch(struct kv_requests *requests,
		     const struct fuse_buf *buffer)
{
	const struct fuse_in_header *header = buffer->mem;
	struct request request = {.work.run = answer,
				  .requests = requests,
				  .arrived = kv_now_ns(),
				  .buffer = *buffer};

	switch (header->opcode) {
	case FUSE_INIT:
	case FUSE_DESTROY:
	case FUSE_INTERRUPT:
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
		answer(&request.work, NULL);
		break;
	default:
		if (!kv_work_run(requests->pool, &request.work, header->uid))
			queue(&request, header);
	}
}

/* It is cancelled in its read alone. */
static void *receive(void *arg)
{
	struct reader *reader = arg;
	struct kv_requests *requests = reader->requests;
	int r, state;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	do {
		pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
		r = fuse_session_receive_buf(requests->fuse, &reader->buffer);
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
		if (r > 0)
			dispatch(requests, &reader->buffer);
	} while (r > 0 || r == -EINTR || r == -EAGAIN);
	if (r < 0)
		requests->status = r;
	sem_post(&requests->ended);
	return NULL;
}

int kv_requests_new(struct kv_mount *mount, struct fuse_session *fuse,
		    struct kv_requests **ret_requests)
{
	struct kv_requests *requests = calloc(1, sizeof(*requests));
	const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	int r;

	if (!requests)
		return -ENOMEM;
	requests->mount = mount;
	requests->fuse = fuse;
	sem_init(&requests->ended, 0, 0);
	requests->config = (struct kv_workers_config){
		.name = "kvfs-fuse",
		.threads = THREADS,
		.each = (unsigned)KV_MIN(KV_MAX(cpus, 4), 16),
		.guests = READERS - 1,
		.turn = TURN_NS,
		.timed = true};
	r = kv_workers_new(&requests->config, &requests->pool);
	while (r == 0 && requests->n < READERS) {
		struct reader *reader = &requests->readers[requests->n];

		reader->requests = requests;
		r = kv_thread_start(&reader->thread, "kvfs-requests", receive,
				    reader);
		requests->n += r == 0;
	}
	if (r < 0) {
		kv_requests_free(requests);
		return r;
	}
	*ret_requests = requests;
	return 0;
}

int kv_requests_wait(struct kv_requests *requests)
{
	while (sem_wait(&requests->ended) < 0)
		;
	return requests->status;
}

void kv_requests_end(struct kv_requests *requests)
{
	sem_post(&requests->ended);
}

void kv_requests_free(struct kv_requests *requests)
{
	if (!requests)
		return;
	for (unsigned i = 0; i < requests->n; i++)
		pthread_cancel(requests->readers[i].thread);
	for (unsigned i = 0; i < requests->n; i++) {
		pthread_join(requests->readers[i].thread, NULL);
		free(requests->readers[i].buffer.mem);
	}
	kv_workers_free(requests->pool);
	sem_destroy(&requests->ended);
	free(requests);
}
