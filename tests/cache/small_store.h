/* SPDX-License-Identifier: Apache-2.0 */
/*
 * small_store.h - a cache on a small store, blocks with known bytes, and checks
 * of cache and store that must hold after any fault.
 *
 * The store is in memory if that has room: tests make thousands of stores,
 * and do not depend on a real disk.
 */
#ifndef KV_TESTS_CACHE_SMALL_STORE_H
#define KV_TESTS_CACHE_SMALL_STORE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <cmocka.h>

#include "cache/block/block.h"
#include "cache/dram/dram.h"
#include "cache/ssd/ssd.h"
#include "common/copy.h"
#include "tests/cache/alone.h"
#include "tests/cache/check_arena.h"
#include "tests/tree.h"

#define BYTES 20000u

struct small {
	char path[64];
	struct kv_cache_config config;
	struct kv_cache *cache;
	struct kv_space *space;
	char *why;
};

/* Like assert(), for tests and their child processes, which cannot use
 * cmocka. */
#define must(x)                                                          \
	do {                                                             \
		if (!(x)) {                                              \
			fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, \
				__LINE__, #x);                           \
			abort();                                         \
		}                                                        \
	} while (0)

static inline void small_remove(struct small *s)
{
	tree_remove(s->path);
}

/* path of the store, for removal after a failed test */
static char small_last[64];

static inline void small_failed(int number)
{
	tree_remove(small_last);
	signal(number, SIG_DFL);
	raise(number);
}

static inline bool small_in_memory(void)
{
	struct statvfs st;

	return statvfs("/dev/shm", &st) == 0 &&
	       st.f_bavail * st.f_frsize > 2ull << 30;
}

static inline void small_new(struct small *s)
{
	memset(s, 0, sizeof(*s));
	snprintf(s->path, sizeof(s->path), "%skvfs-test-XXXXXX",
		 small_in_memory() ? "/dev/shm/" : "");
	must(mkdtemp(s->path));
	strcpy(small_last, s->path);
	signal(SIGABRT, small_failed);
	signal(SIGALRM, small_failed);
	s->config.store = s->path;
	s->config.dram = 16 << 20;
	s->config.ssd = 32 << 20;
	s->config.ssd_given = true;
	s->config.segment = 8 << 20;
	s->config.evict = "lru";
	s->config.hugepages = KV_HUGE_OFF;
}

static inline int small_open(struct small *s)
{
	int r;

	free(s->why);
	s->why = NULL;
	s->cache = NULL;
	r = kv_cache_open(&s->config, &s->cache, &s->why);
	if (r < 0)
		return r;
	s->space = kv_space_find(s->cache, "s");
	return s->space ? 0
			: kv_space_create(s->cache, "s", 0, 0, 0755, &s->space);
}

static inline void small_must_open(struct small *s)
{
	int r = small_open(s);

	if (r < 0)
		fprintf(stderr, "%s: %s\n", strerror(-r), s->why ? s->why : "");
	must(r == 0);
}

static inline int small_close(struct small *s)
{
	return kv_cache_close(kv_steal(s->cache));
}

/* Close and remove the store of a test; for cmocka. */
static inline int small_tear_down(void **state)
{
	struct small *s = *state;

	if (s->cache)
		must(small_close(s) == 0);
	small_remove(s);
	free(s->why);
	free(s);
	return 0;
}

/* Run kvfs-fsck with @option on the closed store.  Return its exit status. */
static inline int small_fsck(const struct small *s, const char *option)
{
	const char *b = getenv("B");
	char command[200];
	int status;

	snprintf(command, sizeof(command), "%s/kvfs-fsck -q %s %s > /dev/null",
		 b ? b : "build", option, s->path);
	status = system(command);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static inline struct kv_key small_key(unsigned n)
{
	struct kv_key key = {.len = 16};

	memset(key.b, 0x5a, 12);
	memcpy(key.b + 12, &n, sizeof(n));
	key.b[0] = (uint8_t)n;
	return key;
}

static inline void small_content(uint8_t *data, size_t n, unsigned seed)
{
	for (size_t i = 0; i < n; i += sizeof(uint64_t)) {
		uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15ull + i;

		x ^= x >> 29;
		x *= 0xbf58476d1ce4e5b9ull;
		memcpy(data + i, &x, KV_MIN(sizeof(x), n - i));
	}
}

static inline int small_save_seed(struct small *s, unsigned n, unsigned seed,
				  size_t bytes)
{
	struct kv_key key = small_key(n);
	struct kv_meta meta = {.position = n, .tokens = 16, .mtime_ns = 77};
	struct kv_digest digest;
	struct kv_fill *fill;
	int r = begin_alone(s->cache, s->space, bytes, &fill);

	if (r < 0)
		return r;
	small_content(kv_fill_data(fill), bytes, seed);
	digest = kv_digest_of(kv_fill_data(fill), bytes);
	return kv_fill_seal(s->cache, fill, &key, &meta, 8, &digest);
}

static inline int small_save(struct small *s, unsigned n)
{
	return small_save_seed(s, n, n, BYTES);
}

/* Save blocks @from to @to, each durable before the next one. */
static inline void small_save_durable(struct small *s, unsigned from,
				      unsigned to, size_t bytes)
{
	for (unsigned n = from; n < to; n++) {
		assert_int_equal(small_save_seed(s, n, n, bytes), 0);
		assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	}
}

static inline struct kv_block *small_get(struct small *s, unsigned n)
{
	struct kv_key key = small_key(n);
	struct kv_block *block;

	return kv_block_get(s->cache, s->space, &key, &block) == 0 ? block
								   : NULL;
}

static inline bool small_durable(struct small *s, unsigned n)
{
	struct kv_block *block = small_get(s, n);
	bool is = block && kv_block_stat(s->cache, block).durable;

	if (block)
		kv_block_put(s->cache, block);
	return is;
}

static inline unsigned small_count_durable(struct small *s, unsigned from,
					   unsigned n)
{
	unsigned is = 0;

	for (unsigned i = from; i < from + n; i++)
		is += small_durable(s, i);
	return is;
}

/* Read block @n and check each byte.  Return 0, or -errno for a miss. */
static inline int small_view(struct small *s, unsigned n, size_t bytes)
{
	_cleanup_(kv_freep) uint8_t *want = malloc(bytes);
	struct kv_block *block = small_get(s, n);
	struct kv_view view;
	int r;

	if (!block)
		return -ENOENT;
	r = kv_view_get(s->cache, block, KV_VIEW_WAIT, &view);
	if (r == 0) {
		small_content(want, bytes, n);
		must(view.length == bytes);
		must(memcmp(view.data, want, bytes) == 0);
		kv_view_put(s->cache, &view);
	}
	kv_block_put(s->cache, block);
	return r;
}

/* Return how many of the blocks @from to @to are read with the right bytes. */
static inline unsigned small_count_exact(struct small *s, unsigned from,
					 unsigned to, size_t bytes)
{
	unsigned found = 0;

	for (unsigned n = from; n < to; n++)
		found += small_view(s, n, bytes) == 0;
	return found;
}

static inline void small_settled(struct kv_acquire *acquire, void *arg)
{
	(void)acquire;
	atomic_store((_Atomic bool *)arg, true);
}

/* Acquire @n keys from @from on, and check the bytes of leased blocks.
 * @status: the status of each key, or NULL. Return how many blocks were
 * leased. */
static inline unsigned small_acquire(struct small *s, unsigned from, unsigned n,
				     size_t bytes, int *status)
{
	struct kv_acquire *a = calloc(1, sizeof(*a) + n * sizeof(*a->wants));
	_cleanup_(kv_freep) uint8_t *want = malloc(bytes);
	_Atomic bool done = false;
	unsigned leased = 0;

	a->space = s->space;
	a->n = n;
	a->done = small_settled;
	a->arg = &done;
	for (unsigned i = 0; i < n; i++)
		a->wants[i].key = small_key(from + i);
	if (kv_acquire_submit(s->cache, a))
		while (!done)
			usleep(100);
	else
		kv_acquire_touch(s->cache, a);
	for (unsigned i = 0; i < n; i++) {
		const struct kv_want *w = &a->wants[i];

		if (status)
			status[i] = w->status;
		if (w->status)
			continue;
		leased++;
		small_content(want, bytes, from + i);
		must(w->length == bytes);
		must(memcmp(kv_slot_file(w->slot), want, bytes) == 0);
	}
	kv_acquire_release(s->cache, a);
	free(a);
	return leased;
}

/* Drop block @n from DRAM, so that the next reader needs the SSD. */
static inline int small_demote(struct small *s, unsigned n)
{
	struct kv_block *block = small_get(s, n);
	int r;

	if (!block)
		return -ENOENT;
	r = kv_block_demote(s->cache, block);
	kv_block_put(s->cache, block);
	return r;
}

static inline int small_remove_block(struct small *s, unsigned n)
{
	struct kv_block *block = small_get(s, n);
	int r;

	if (!block)
		return -ENOENT;
	r = kv_block_remove(s->cache, block);
	kv_block_put(s->cache, block);
	return r;
}

static inline struct kv_cache_stats small_stats(struct small *s)
{
	struct kv_cache_stats stats;

	kv_cache_stats(s->cache, &stats);
	return stats;
}

static inline uint64_t small_taken(const struct kv_segfile *file)
{
	uint64_t n = 0;

	for (uint32_t i = 0; i < file->slots; i++)
		n += file->bitmap[i / 64] >> i % 64 & 1;
	return n;
}

/* Return whether a write, deletion or read of the SSD is under way. */
static inline bool small_busy(struct small *s)
{
	struct kv_cache *cache = s->cache;
	bool any;

	kv_lock(cache);
	any = cache->ssd.deletions.n || cache->ssd.writing ||
	      cache->ssd.dirty || !LIST_EMPTY(&cache->ssd.flushing);
	for (uint32_t i = 0; i < READ_BUCKETS; i++)
		any |= !LIST_EMPTY(&cache->reads[i]);
	kv_unlock(cache);
	return any;
}

/* Check, while no request is under way, that each slot in use belongs to a
 * block or is counted as bad. */
static inline void small_check(struct small *s)
{
	struct kv_cache *cache = s->cache;
	struct kv_ssd *ssd = &cache->ssd;
	uint64_t taken = 0, durable = 0, bytes = 0;

	kv_lock(cache);
	kv_arena_check_locked(cache);
	must(!ssd->dirty && TAILQ_EMPTY(&ssd->written));
	must(!ssd->writing && !ssd->deletions.n && LIST_EMPTY(&ssd->flushing));
	must(cache->stats.leases == 0);
	for (uint32_t i = 0; i < READ_BUCKETS; i++)
		must(LIST_EMPTY(&cache->reads[i]));
	for (uint32_t i = 0; i < ssd->n_files; i++) {
		if (!ssd->files[i])
			continue;
		must(small_taken(ssd->files[i]) == ssd->files[i]->used);
		taken += ssd->files[i]->used;
		bytes += ssd->files[i]->used * ssd->files[i]->slot_bytes;
	}
	for (uint32_t i = 0; i < cache->table.used; i++) {
		const struct kv_block *b = kv_table_at(&cache->table, i);

		must((b->flags & BLOCK_REMOVED) || !b->refs);
		durable += !(b->flags & BLOCK_REMOVED) && b->file != KV_NONE;
		must((b->flags & BLOCK_REMOVED) || b->file == KV_NONE ||
		     kv_extent_block(cache, ssd->files[b->file],
				     b->slot_number) == b);
	}
	must(bytes == ssd->used);
	if (taken != durable + cache->stats.bad_slots)
		fprintf(stderr, "%llu taken, %llu durable, %llu bad\n",
			(unsigned long long)taken, (unsigned long long)durable,
			(unsigned long long)cache->stats.bad_slots);
	must(taken == durable + cache->stats.bad_slots);
	kv_unlock(cache);
}

static inline int small_fds(void)
{
	int n = 0;

	for (int fd = 0; fd < 1024; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

#endif
