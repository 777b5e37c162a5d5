/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lent.c - memory to save from: the pages that an engine lends (POOL and POOL_CLOSE), and
 * a client's staging (STAGING).
 *
 * OWNS      a hold on the memory of the pages; the memory of an offer, until it is the
 *           client's.  The lender's descriptors are borrowed.
 *
 * STATES    of an offer:
 *             (new) -> MAPPED    offer_run: by a worker, in steps
 *            MAPPED -> (freed)   offer_finish: the memory is the client's
 *
 * INVARIANTS
 *   (1) Every byte of every page of a stride lies in the memory.
 *   (2) No message of the client is read before its offer has ended: the next message
 *       may save from this memory.
 *
 * LOCKING   lent->lock guards the lender's descriptors, which are polled after each
 *           copy, and is a leaf lock.  The count is atomic, the rest is fixed after new.
 *           The memory of an offer is the worker's until the offer's mail is posted.
 */
#include <poll.h>

#include "fs/control/request.h"

/* The least average length of a block's runs, but for a few: copying short runs keeps a
 * worker from other users for longer than the bytes tell. */
#define RUN_MIN 512u
#define RUNS_FREE 64u

struct kv_lent {
	struct kv_lent_link link; /* first */
	struct kv_client_memory *memory;
	uint64_t pages, payload;
	uint32_t pages_per_block;
	struct kv_account *account; /* held */
	_Atomic unsigned refs;
	pthread_mutex_t lock;
	int socket, pidfd; /* lock; socket -1: kv_lent_forsake was called */
	size_t n;
	struct wire_stride strides[];
};

/* Set *@ret to a * b + c.  Returns false on overflow. */
static bool mul_add(uint64_t a, uint64_t b, uint64_t c, uint64_t *ret)
{
	return !__builtin_mul_overflow(a, b, ret) &&
	       !__builtin_add_overflow(*ret, c, ret);
}

/* Check that all pages of all strides lie in the pool, in runs that are long enough. */
static int check_strides(const struct wire_pool *pool,
			 const struct wire_stride *strides, size_t n,
			 uint64_t *ret_payload)
{
	uint64_t payload = 0, runs = 0, end, bytes;

	if (pool->pages == 0 || pool->pages_per_block == 0 ||
	    pool->bytes == 0 || pool->bytes > INT64_MAX)
		return -EINVAL;
	for (size_t i = 0; i < n; i++) {
		const struct wire_stride *s = &strides[i];

		if (s->bytes == 0 || s->count == 0 ||
		    !mul_add(s->count - 1, s->segment_stride, s->bytes, &end) ||
		    !mul_add(pool->pages - 1, s->block_stride, end, &end) ||
		    __builtin_add_overflow(end, s->at, &end) ||
		    end > pool->bytes ||
		    !mul_add(s->bytes, s->count, 0, &bytes) ||
		    !mul_add(bytes, pool->pages_per_block, payload, &payload) ||
		    !mul_add(s->count, pool->pages_per_block, runs, &runs))
			return -EINVAL;
	}
	if (runs > payload / RUN_MIN + RUNS_FREE)
		return -EINVAL;
	*ret_payload = payload;
	return 0;
}

static size_t lent_bytes(const struct kv_lent *lent)
{
	return sizeof(*lent) + lent->n * sizeof(lent->strides[0]);
}

int kv_lent_new(struct kv_server *server, int fd, const struct wire_pool *pool,
		const struct wire_stride *strides, size_t n,
		const struct kv_lender *lender, struct kv_lent **ret_lent)
{
	struct kv_lent *lent;
	uint64_t payload;
	int r = check_strides(pool, strides, n, &payload);

	if (r < 0)
		return r;
	lent = calloc(1, sizeof(*lent) + n * sizeof(*strides));
	if (!lent)
		return -ENOMEM;
	r = kv_client_memory_new(server, lender->account, fd, pool->offset,
				 pool->bytes, &lent->memory);
	if (r < 0) {
		free(lent);
		return r;
	}
	lent->link.id = pool->id;
	lent->pages = pool->pages;
	lent->payload = payload;
	lent->pages_per_block = pool->pages_per_block;
	lent->account = kv_account_hold(lender->account);
	atomic_init(&lent->refs, 1);
	pthread_mutex_init(&lent->lock, NULL);
	lent->socket = lender->socket;
	lent->pidfd = lender->pidfd;
	lent->n = n;
	memcpy(lent->strides, strides, n * sizeof(*strides));
	kv_account_take(lent->account, KV_FINITE_MEMORY, lent_bytes(lent));
	*ret_lent = lent;
	return 0;
}

struct kv_lent *kv_lent_find(struct kv_lents *lents, uint32_t id)
{
	struct kv_lent_link *link;

	TAILQ_FOREACH(link, lents, others)
		if (link->id == id)
			return (struct kv_lent *)link;
	return NULL;
}

void kv_lent_hold(struct kv_lent *lent)
{
	atomic_fetch_add(&lent->refs, 1);
}

void kv_lent_put(struct kv_lent *lent)
{
	if (!lent || atomic_fetch_sub(&lent->refs, 1) != 1)
		return;
	kv_client_memory_put(lent->memory);
	kv_account_credit(lent->account, KV_FINITE_MEMORY, lent_bytes(lent));
	kv_account_put(lent->account);
	pthread_mutex_destroy(&lent->lock);
	free(lent);
}

void kv_lent_forsake(struct kv_lent *lent)
{
	pthread_mutex_lock(&lent->lock);
	lent->socket = lent->pidfd = -1;
	pthread_mutex_unlock(&lent->lock);
}

bool kv_lent_is_there(struct kv_lent *lent)
{
	struct pollfd ends[2];
	bool there;

	pthread_mutex_lock(&lent->lock);
	ends[0] = (struct pollfd){.fd = lent->socket, .events = POLLRDHUP};
	ends[1] = (struct pollfd){.fd = lent->pidfd, .events = POLLIN};
	there = lent->socket >= 0 && poll(ends, 2, 0) == 0;
	pthread_mutex_unlock(&lent->lock);
	return there;
}

uint64_t kv_lent_payload(const struct kv_lent *lent)
{
	return lent->payload;
}

uint32_t kv_lent_pages_per_block(const struct kv_lent *lent)
{
	return lent->pages_per_block;
}

bool kv_lent_has_pages(const struct kv_lent *lent, const uint64_t *pages)
{
	for (uint32_t i = 0; i < lent->pages_per_block; i++)
		if (pages[i] >= lent->pages)
			return false;
	return true;
}

/* Return how many of the @n pages from @pages on are adjacent. */
static uint32_t run_of(const struct wire_stride *s, const uint64_t *pages,
		       uint32_t n)
{
	uint32_t run = 1;

	if (s->count != 1 || s->bytes != s->block_stride)
		return 1;
	while (run < n && pages[run] == pages[0] + run)
		run++;
	return run;
}

int kv_lent_copy(const struct kv_lent *lent, const uint64_t *pages,
		 struct kv_hash *hash, uint8_t *tensors)
{
	const struct wire_stride *s;
	uint32_t run;
	uint64_t n, at;
	int r;

	for (s = lent->strides; s < lent->strides + lent->n; s++)
		for (uint32_t p = 0; p < lent->pages_per_block; p += run) {
			run = run_of(s, pages + p, lent->pages_per_block - p);
			n = run * s->bytes;
			at = s->at + pages[p] * s->block_stride;
			for (uint64_t i = 0; i < s->count; i++) {
				r = kv_client_memory_copy(lent->memory, at, n,
							  hash, tensors);
				if (r < 0)
					return r;
				tensors += n;
				at += s->segment_stride;
			}
		}
	return 0;
}

/* ---- offers ---- */

struct offer {
	struct kv_chore chore; /* first */
	/* One of these is held: */
	struct kv_client_memory *staging;
	struct kv_lent *lent;
};

static int offer_run(struct kv_chore *chore)
{
	struct offer *offer = (struct offer *)chore;

	return kv_client_memory_map(offer->lent ? offer->lent->memory
						: offer->staging);
}

static void offer_finish(struct kv_request *request)
{
	struct offer *offer = (struct offer *)request;
	struct kv_client *client = request->client;

	if (client && offer->chore.status == 0) {
		if (offer->lent) {
			TAILQ_INSERT_TAIL(&client->lents, &offer->lent->link,
					  others);
			client->n_lents++;
			offer->lent = NULL;
		} else {
			kv_client_memory_put(client->staging);
			client->staging = kv_steal(offer->staging);
		}
	}
	kv_client_memory_put(offer->staging);
	kv_lent_put(offer->lent);
	if (client) {
		kv_reply(client, &request->header, offer->chore.status, 0, 0);
		client->offers = false;
		kv_user_ready(client);
	}
	kv_request_free(request);
}

static const struct kv_request_kind kind = {offer_finish, kv_chore_cancel,
					    NULL};

/* Offer @staging or @lent, which is taken over in any case, unless @r is an error. */
static int offer_begin(struct kv_client *client, const struct kv_message *m,
		       struct kv_client_memory *staging, struct kv_lent *lent,
		       int r)
{
	struct offer *offer;

	if (r == 0)
		r = kv_request_new(client, m, &kind, sizeof(*offer), &offer);
	if (r < 0) {
		kv_client_memory_put(staging);
		kv_lent_put(lent);
		kv_reply(client, m->header, r, 0, 0);
		return 0;
	}
	offer->staging = staging;
	offer->lent = lent;
	client->offers = true;
	kv_chore_begin(&offer->chore, offer_run);
	return 0;
}

int kv_request_staging(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_staging *wanted = m->items;
	struct kv_client_memory *staging = NULL;
	int r = kv_client_memory_new(client->server, client->account, m->fd, 0,
				     wanted->bytes, &staging);

	return offer_begin(client, m, staging, NULL, r);
}

int kv_request_pool(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_pool *pool = m->items;
	const struct kv_lender lender = {client->socket, client->pidfd,
					 client->account};
	struct kv_lent *lent = NULL;
	int r = 0;

	if (kv_lent_find(&client->lents, pool->id))
		r = -EEXIST;
	else if (client->n_lents >= WIRE_POOLS_MAX)
		r = -ENOLCK;
	if (r == 0)
		r = kv_lent_new(client->server, m->fd, pool,
				(const struct wire_stride *)(pool + 1),
				m->header->count, &lender, &lent);
	return offer_begin(client, m, NULL, lent, r);
}

int kv_request_pool_close(struct kv_client *client, const struct kv_message *m)
{
	struct kv_lent *lent = m->header->arg > UINT32_MAX
				       ? NULL
				       : kv_lent_find(&client->lents,
						      (uint32_t)m->header->arg);

	if (lent)
		kv_client_drop_lent(client, lent);
	return 0;
}
