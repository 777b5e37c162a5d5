/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lent.c - an engine's pages, and copies of blocks from there.
 *
 * OWNS      a hold on the memory that the pages lie in.  The lender's
 *           descriptors are borrowed.
 *
 * INVARIANTS
 *   (1) Every byte of every page of a stride lies in the memory.
 *
 * LOCKING   lent->lock guards the lender's descriptors, which are looked at
 *           after each copy.  It is a leaf.  The count is atomic, the rest is
 *           fixed after new.
 */
#include <poll.h>

#include "fs/control/lent.h"

/* Runs of a block are so long on the average, but for a few: what is copied in
 * crumbs takes an ingest thread from others for longer than its bytes say. */
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
	int socket, pidfd; /* lock; socket -1: forsaken */
	size_t n;
	struct wire_stride strides[];
};

/* a * b + c; false if that is no uint64_t. */
static bool mul_add(uint64_t a, uint64_t b, uint64_t c, uint64_t *ret)
{
	return !__builtin_mul_overflow(a, b, ret) &&
	       !__builtin_add_overflow(*ret, c, ret);
}

/* Where the last page of @stride ends. */
static bool end_of(const struct wire_stride *s, uint64_t pages,
		   uint64_t *ret_end)
{
	uint64_t end;

	return s->bytes > 0 && s->count > 0 &&
	       mul_add(s->count - 1, s->segment_stride, s->bytes, &end) &&
	       mul_add(pages - 1, s->block_stride, end, &end) &&
	       !__builtin_add_overflow(end, s->at, ret_end);
}

static int check_strides(const struct wire_pool *pool,
			 const struct wire_stride *strides, size_t n,
			 uint64_t *ret_payload)
{
	uint64_t payload = 0, runs = 0, end, bytes;

	if (pool->pages == 0 || pool->pages_per_block == 0 ||
	    pool->bytes == 0 || pool->bytes > INT64_MAX)
		return -EINVAL;
	for (size_t i = 0; i < n; i++) {
		if (!end_of(&strides[i], pool->pages, &end) ||
		    end > pool->bytes ||
		    !mul_add(strides[i].bytes, strides[i].count, 0, &bytes) ||
		    !mul_add(bytes, pool->pages_per_block, payload, &payload) ||
		    !mul_add(strides[i].count, pool->pages_per_block, runs,
			     &runs))
			return -EINVAL;
	}
	if (runs > payload / RUN_MIN + RUNS_FREE)
		return -EINVAL;
	*ret_payload = payload;
	return 0;
}

static size_t own_bytes(const struct kv_lent *lent)
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
	kv_account_take(lent->account, KV_FINITE_MEMORY, own_bytes(lent));
	*ret_lent = lent;
	return 0;
}

struct kv_client_memory *kv_lent_memory(struct kv_lent *lent)
{
	return lent->memory;
}

struct kv_lent_link *kv_lent_link(struct kv_lent *lent)
{
	return &lent->link;
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
	kv_account_credit(lent->account, KV_FINITE_MEMORY, own_bytes(lent));
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

/* How many of the @n pages from @pages on lie one behind the other. */
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
