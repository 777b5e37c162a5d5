/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lent.c - mapping of an engine's pages, and copies from there.
 *
 * OWNS      the mapping and a descriptor of the file, until its last holder
 *           puts it.  The lender's descriptors are borrowed.
 *
 * INVARIANTS
 *   (1) Every byte of every page of a stride lies in what is mapped.
 *   (2) What is mapped is memory: no read of it waits for a file system of
 *       somebody else's.  Unlike staging it is not sealed: a read is guarded.
 *   (3) The file had no hole when it was mapped, nor when a message that saves
 *       from it came: whoever makes one later and has us fill it gives up as
 *       much memory of his own before.
 *
 * LOCKING   lent->lock guards the lender's descriptors, which are looked at
 *           after each copy.  It is a leaf.  The count is atomic, the rest is
 *           fixed after new.
 */
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "fs/control/lent.h"

/* Runs of a block are so long on the average, but for a few: what is copied in
 * crumbs takes an ingest thread from others for longer than its bytes say. */
#define RUN_MIN 512u
#define RUNS_FREE 64u

struct kv_lent {
	struct kv_lent_link link; /* first */
	struct kv_ingest_job unmap;
	int fd;
	const uint8_t *map; /* from where the kernel lets a mapping begin */
	const uint8_t *data;
	uint64_t mapped;
	uint64_t pages, payload;
	uint32_t pages_per_block;
	struct kv_account *account; /* held; has the mapping */
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

/* st_blocks counts what is allocated, swapped out or not. */
static bool is_whole(const struct stat *st)
{
	return st->st_size >= 0 &&
	       (uint64_t)st->st_blocks * 512 >= (uint64_t)st->st_size;
}

/* A file in tmpfs may grow into what is mapped. */
static int check_file(int fd, uint64_t end, uint64_t *ret_unit)
{
	struct statfs fs;
	struct stat st;

	if (fstatfs(fd, &fs) < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) ||
	    (fs.f_type != TMPFS_MAGIC && fs.f_type != HUGETLBFS_MAGIC))
		return -EMEDIUMTYPE;
	if (end > INT64_MAX || (fs.f_type == HUGETLBFS_MAGIC &&
				(st.st_size < 0 || end > (uint64_t)st.st_size)))
		return -EINVAL;
	*ret_unit = (uint64_t)st.st_blksize;
	return is_whole(&st) ? 0 : -ENODATA;
}

static size_t own_bytes(const struct kv_lent *lent)
{
	return sizeof(*lent) + lent->n * sizeof(lent->strides[0]);
}

static void credit(const struct kv_lent *lent)
{
	kv_account_credit(lent->account, KV_FINITE_STAGINGS, 1);
	kv_account_credit(lent->account, KV_FINITE_STAGING_BYTES, lent->mapped);
	kv_account_credit(lent->account, KV_FINITE_MEMORY, own_bytes(lent));
}

static int charge(const struct kv_lent *lent)
{
	struct kv_account *account = lent->account;
	int r = kv_account_charge(account, KV_FINITE_STAGINGS, 1);

	if (r < 0)
		return r;
	r = kv_account_charge(account, KV_FINITE_STAGING_BYTES, lent->mapped);
	if (r < 0) {
		kv_account_credit(account, KV_FINITE_STAGINGS, 1);
		return r;
	}
	kv_account_take(account, KV_FINITE_MEMORY, own_bytes(lent));
	return 0;
}

static int map(struct kv_lent *lent, int fd, uint64_t offset, uint64_t bytes,
	       uint64_t unit)
{
	uint64_t skip = offset % unit;
	void *at;
	int r;

	lent->mapped = kv_round_up(skip + bytes, unit);
	r = charge(lent);
	if (r < 0)
		return r;
	at = mmap(NULL, lent->mapped, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd,
		  (off_t)(offset - skip));
	if (at == MAP_FAILED) {
		r = -errno;
		credit(lent);
		return r;
	}
	(void)madvise(at, lent->mapped, MADV_DONTDUMP);
	(void)madvise(at, lent->mapped, MADV_DONTFORK);
	lent->map = at;
	lent->data = lent->map + skip;
	return 0;
}

static void lent_free(struct kv_lent *lent)
{
	if (lent->map) {
		munmap((void *)lent->map, lent->mapped);
		credit(lent);
		kv_account_put(lent->account);
	}
	kv_closep(&lent->fd);
	pthread_mutex_destroy(&lent->lock);
	free(lent);
}

static void unmap(struct kv_ingest_job *job, struct kv_hash *hash)
{
	(void)hash;
	lent_free(kv_container(job, struct kv_lent, unmap));
}

static struct kv_lent *lent_alloc(const struct wire_pool *pool,
				  const struct wire_stride *strides, size_t n,
				  const struct kv_lender *lender)
{
	struct kv_lent *lent = calloc(1, sizeof(*lent) + n * sizeof(*strides));

	if (!lent)
		return NULL;
	lent->link.id = pool->id;
	lent->unmap.work = unmap;
	lent->unmap.uid = lender->uid;
	lent->fd = -1;
	lent->pages = pool->pages;
	lent->pages_per_block = pool->pages_per_block;
	lent->account = lender->account;
	atomic_init(&lent->refs, 1);
	pthread_mutex_init(&lent->lock, NULL);
	lent->socket = lender->socket;
	lent->pidfd = lender->pidfd;
	lent->n = n;
	memcpy(lent->strides, strides, n * sizeof(*strides));
	return lent;
}

int kv_lent_new(int fd, const struct wire_pool *pool,
		const struct wire_stride *strides, size_t n,
		const struct kv_lender *lender, struct kv_lent **ret_lent)
{
	struct kv_lent *lent;
	uint64_t payload, end, unit = 1;
	int r;

	r = check_strides(pool, strides, n, &payload);
	if (r < 0 || __builtin_add_overflow(pool->offset, pool->bytes, &end))
		return -EINVAL;
	r = check_file(fd, end, &unit);
	if (r < 0)
		return r;
	lent = lent_alloc(pool, strides, n, lender);
	if (!lent)
		return -ENOMEM;
	lent->payload = payload;
	lent->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	r = lent->fd < 0 ? -errno
			 : map(lent, fd, pool->offset, pool->bytes, unit);
	if (r < 0) {
		lent_free(lent);
		return r;
	}
	kv_account_hold(lent->account);
	*ret_lent = lent;
	return 0;
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

void kv_lent_put(struct kv_lent *lent, struct kv_ingest *ingest)
{
	if (lent && atomic_fetch_sub(&lent->refs, 1) == 1)
		kv_ingest_add(ingest, &lent->unmap);
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

bool kv_lent_is_whole(const struct kv_lent *lent)
{
	struct stat st;

	return fstat(lent->fd, &st) == 0 && is_whole(&st);
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

void kv_lent_copy(const struct kv_lent *lent, const uint64_t *pages,
		  struct kv_hash *hash, uint8_t *tensors)
{
	const struct wire_stride *s;
	const uint8_t *from;
	uint32_t run;
	uint64_t n;

	for (s = lent->strides; s < lent->strides + lent->n; s++)
		for (uint32_t p = 0; p < lent->pages_per_block; p += run) {
			run = run_of(s, pages + p, lent->pages_per_block - p);
			n = run * s->bytes;
			from = lent->data + s->at + pages[p] * s->block_stride;
			for (uint64_t i = 0; i < s->count; i++) {
				kv_hash_copy(hash, tensors, from, n);
				tensors += n;
				from += s->segment_stride;
			}
		}
}
