/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rig.c - a daemon with one space of blocks, and an engine's pools.
 *
 * OWNS      the daemon, the session and all objects of the session, the pools'
 *           memory.
 *
 * INVARIANTS
 *   (1) Block i of rig->keys holds the words that word() gives for it, so that
 *       the bytes of every tier can be checked, not only timed.
 *
 * LOCKING   none: one thread measures.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include "tools/bench/bench.h"

#define TOKENS 16 /* tokens of a block */

static uint64_t word(uint64_t block, uint64_t i)
{
	uint64_t x = (block << 32 | i) * 0x9e3779b97f4a7c15u;

	x ^= x >> 31;
	x *= 0xbf58476d1ce4e5b9u;
	return x ^ x >> 29;
}

int kv_bench_rig_verify(struct kv_bench_rig *rig, kvfs_lease *lease)
{
	uint64_t words = kv_bench_payload(rig->size) / 8, block, i, bytes;
	const uint64_t *data;

	for (block = 0; block < rig->size->blocks; block++) {
		data = kvfs_lease_data(lease, block, &bytes);
		if (!data || bytes != words * 8)
			return -EBADMSG;
		for (i = 0; i < words; i++)
			if (data[i] != word(block, i))
				return -EBADMSG;
	}
	return 0;
}

/* Where tensors k and v lie in a pool: @count runs of @run bytes, @stride
 * apart; pages are @next bytes apart; v begins at @second. */
struct shape {
	uint64_t run, count, stride, next, second;
};

static int register_pool(struct kv_bench_rig *rig, const struct shape *s,
			 const struct kv_bench_memory *memory, int fd,
			 kvfs_pool **ret_pool)
{
	char *base = memory->base;
	kvfs_view views[2] = {
		{"k", base, s->next, s->run, s->count, s->stride},
		{"v", base + s->second, s->next, s->run, s->count, s->stride},
	};
	kvfs_pool_desc desc = {
		.size = sizeof(desc),
		.device = "host",
		.space = rig->space,
		.views = views,
		.n_views = 2,
		.pages = rig->size->blocks,
		.pages_per_block = 1,
		.memory = base,
		.memory_bytes = memory->bytes,
		.memory_fd = fd,
	};

	return kvfs_pool_register(rig->session, &desc, ret_pool);
}

int kv_bench_rig_pool(struct kv_bench_rig *rig,
		      const struct kv_bench_memory *memory, int fd,
		      kvfs_pool **ret_pool)
{
	const uint64_t half = kv_bench_payload(rig->size) / 2;

	return register_pool(rig, &(struct shape){half, 1, 0, 2 * half, half},
			     memory, fd, ret_pool);
}

int kv_bench_rig_open_space(struct kv_bench_rig *rig, const char *name)
{
	const size_t blocks = rig->size->blocks;
	const uint64_t half = kv_bench_payload(rig->size) / 2;
	const uint64_t all = blocks * half;
	const struct shape shapes[KV_BENCH_POOLS] = {
		[KV_BENCH_PAGES] = {half, 1, 0, 2 * half, half},
		[KV_BENCH_SPLIT] = {half, 1, 0, half, all},
		[KV_BENCH_LAYERS] = {KV_BENCH_LAYER, rig->size->layers,
				     blocks * KV_BENCH_LAYER, KV_BENCH_LAYER,
				     all},
		[KV_BENCH_HEADS] = {KV_BENCH_HEAD, half / KV_BENCH_HEAD,
				    blocks * KV_BENCH_HEAD, KV_BENCH_HEAD, all},
	};
	char layout[512];
	int r;

	snprintf(layout, sizeof(layout),
		 "{\"tensors\": [{\"name\": \"k\", \"dtype\": \"BF16\", "
		 "\"shape\": [%u, 16, 8, 128]}, "
		 "{\"name\": \"v\", \"dtype\": \"BF16\", "
		 "\"shape\": [%u, 16, 8, 128]}], \"tokens\": %d}",
		 rig->size->layers, rig->size->layers, TOKENS);
	r = kvfs_open(rig->daemon.mount, &rig->session);
	if (r == 0)
		r = kvfs_space_open(rig->session, name, layout,
				    KVFS_CREATE | 0755, &rig->space);
	if (r == 0 && kvfs_connected(rig->session) != 1)
		r = -ENOTCONN;
	for (size_t i = 0; i < KV_BENCH_POOLS && r == 0; i++)
		r = register_pool(rig, &shapes[i], &rig->pages, 0,
				  &rig->pools[i]);
	return r;
}

int kv_bench_rig_open(struct kv_bench *bench, const struct kv_bench_size *size,
		      struct kv_bench_rig *rig)
{
	const uint64_t words = kv_bench_payload(size) / 8;
	uint64_t sealed, durable, *page, block, i;
	char options[64];
	int r;

	snprintf(options, sizeof(options), "dram=%dG,ssd=16G",
		 KV_BENCH_ARENA_GIB);
	*rig = (struct kv_bench_rig){.bench = bench, .size = size};
	rig->keys = calloc(size->blocks, sizeof(*rig->keys));
	r = rig->keys
		    ? kv_bench_memory_map(size->blocks * words * 8, &rig->pages)
		    : -ENOMEM;
	if (r == 0)
		r = kv_bench_memory_map(size->blocks * words * 8, &rig->spare);
	if (r == 0)
		r = kv_bench_crew_new(bench->threads, &rig->crew);
	if (r == 0)
		r = kv_bench_daemon_start(bench, options, &rig->daemon);
	if (r == 0)
		r = kv_bench_rig_open_space(rig, KV_BENCH_SPACE);
	if (r == 0)
		r = kv_bench_rig_keys(rig, rig->keys, size->blocks);
	if (r < 0)
		return r;
	page = rig->pages.base;
	for (block = 0; block < size->blocks; block++, page += words)
		for (i = 0; i < words; i++)
			page[i] = word(block, i);
	kv_bench_daemon_settle(&rig->daemon);
	r = kv_bench_rig_save(rig, rig->pools[KV_BENCH_PAGES], rig->keys,
			      &sealed, &durable);
	kv_bench_daemon_settle(&rig->daemon);
	return r;
}

void kv_bench_rig_close_space(struct kv_bench_rig *rig)
{
	for (size_t i = 0; i < KV_BENCH_POOLS; i++)
		kvfs_pool_close(rig->pools[i]);
	kvfs_space_close(rig->space);
	kvfs_close(rig->session);
}

void kv_bench_rig_close(struct kv_bench_rig *rig)
{
	kv_bench_rig_close_space(rig);
	kv_bench_daemon_stop(&rig->daemon);
	kv_bench_crew_free(rig->crew);
	free(rig->pages.base);
	free(rig->spare.base);
	free(rig->keys);
}

int kv_bench_rig_keys(struct kv_bench_rig *rig, kvfs_key *ret_keys, size_t n)
{
	uint32_t *tokens = malloc(n * TOKENS * sizeof(*tokens));
	size_t i;
	long r;

	if (!tokens)
		return -ENOMEM;
	for (i = 0; i < n * TOKENS; i++)
		tokens[i] = rig->next_token++;
	r = kvfs_key_chain(rig->space, NULL, tokens, n * TOKENS, NULL, 0,
			   ret_keys, n);
	free(tokens);
	if (r < 0)
		return (int)r;
	return (size_t)r == n ? 0 : -EIO;
}

int kv_bench_rig_save(struct kv_bench_rig *rig, kvfs_pool *pool,
		      const kvfs_key *keys, uint64_t *ret_sealed,
		      uint64_t *ret_durable)
{
	size_t n = rig->size->blocks, i;
	int64_t *pages = malloc(n * sizeof(*pages));
	kvfs_xfer *xfer = NULL;
	uint64_t begin;
	int r;

	if (!pages)
		return -ENOMEM;
	for (i = 0; i < n; i++)
		pages[i] = (int64_t)i;
	begin = kv_now_ns();
	r = kvfs_save(pool, rig->space, keys, NULL, n, pages, NULL, &xfer);
	if (r == 0) {
		kvfs_xfer_wait(xfer, KVFS_SEALED, KVFS_FOREVER);
		*ret_sealed = kv_now_ns() - begin;
		kvfs_xfer_wait(xfer, KVFS_DURABLE, KVFS_FOREVER);
		*ret_durable = kv_now_ns() - begin;
		for (i = 0; i < n && r == 0; i++)
			r = kvfs_xfer_status(xfer, i);
		if (r > 0) /* the store already had the block */
			r = -EEXIST;
		rig->saved += n;
	}
	kvfs_xfer_free(xfer);
	free(pages);
	return r;
}

int kv_bench_rig_acquire(struct kv_bench_rig *rig, size_t first, size_t n,
			 kvfs_lease **ret_lease)
{
	kvfs_query query = {rig->space, rig->keys + first, n};
	kvfs_lease *lease;
	int r;

	r = kvfs_acquire(&query, 1, NULL, &lease);
	if (r < 0)
		return r;
	if (kvfs_lease_wait(lease, KVFS_FOREVER) != (long)n) {
		kvfs_release(lease);
		return -EIO;
	}
	*ret_lease = lease;
	return 0;
}

void kv_bench_rig_path(const char *root, const kvfs_key *key, char *ret_path,
		       size_t room)
{
	char name[65];

	kvfs_key_name(key, name);
	snprintf(ret_path, room, "%s/%.2s/%s", root, name, name);
}

/* Ask the daemon to evict the keys from DRAM.  Return how many are left. */
static size_t drop_from_dram(struct kv_bench_rig *rig, uint8_t *states)
{
	kvfs_query query = {rig->space, rig->keys, rig->size->blocks};
	char root[PATH_MAX], path[PATH_MAX];
	size_t i, left = 0;

	snprintf(root, sizeof(root), "%.4000s/" KV_BENCH_SPACE,
		 rig->daemon.mount);
	kvfs_probe(&query, 1, states);
	for (i = 0; i < query.n; i++) {
		if (states[i] == KVFS_SSD)
			continue;
		kv_bench_rig_path(root, &rig->keys[i], path, sizeof(path));
		setxattr(path, "user.kvfs.tier", "ssd", 3, 0);
		left++;
	}
	return left;
}

int kv_bench_rig_chill(struct kv_bench_rig *rig)
{
	uint8_t *states = malloc(rig->size->blocks);
	unsigned tries = 0;

	if (!states)
		return -ENOMEM;
	while (drop_from_dram(rig, states) && ++tries < 100)
		usleep(20000);
	free(states);
	/* The daemon replaces emptied segments in the background. */
	kv_bench_daemon_settle(&rig->daemon);
	return tries < 100 ? 0 : -EBUSY;
}
