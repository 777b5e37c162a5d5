/* SPDX-License-Identifier: Apache-2.0 */
/*
 * live.c - a trace against a live mount.
 *
 * OWNS      the session, a space with blocks of one page, and a pool of pages
 *           to save from.
 *
 * LOCKING   none: one thread; libkvfs has its own.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/kvfs.h"
#include "tools/replay/replay.h"

#define SPACE "kvfs-replay"
#define PAYLOAD 4096u
#define PAGES 512u
#define PATIENCE 60000000000u /* for one request */

static const char layout[] =
	"{\"tensors\": [{\"name\": \"kv\", \"dtype\": \"U8\", \"shape\": "
	"[4096]}], \"tokens\": 1}";

struct live {
	kvfs_session *session;
	kvfs_space *space;
	kvfs_pool *pool;
	uint64_t *memory;
	kvfs_key *keys; /* of one request */
	kvfs_meta *metas;
	int64_t *pages;
	kvfs_xfer **saves; /* of one request */
	size_t n_saves;
	uint64_t hits;
	const char *why;
};

static uint64_t spread(uint64_t x)
{
	x = (x + 1) * 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	return x ^ x >> 27;
}

static kvfs_key key_of(uint32_t block)
{
	uint64_t bytes[2] = {spread(block), block};
	kvfs_key key;

	kvfs_key_set(bytes, sizeof(bytes), &key);
	return key;
}

static int open_pool(struct live *live)
{
	kvfs_view view = {.tensor = "kv",
			  .base = live->memory,
			  .block_stride = PAYLOAD,
			  .bytes = PAYLOAD,
			  .count = 1};
	kvfs_pool_desc desc = {.size = sizeof(desc),
			       .device = "host",
			       .space = live->space,
			       .views = &view,
			       .n_views = 1,
			       .pages = PAGES,
			       .pages_per_block = 1,
			       .memory = live->memory,
			       .memory_bytes = (uint64_t)PAGES * PAYLOAD};

	return kvfs_pool_register(live->session, &desc, &live->pool);
}

static int open_live(struct live *live, const char *path, size_t longest)
{
	int r;

	live->keys = malloc((longest + 1) * sizeof(*live->keys));
	live->metas = malloc(PAGES * sizeof(*live->metas));
	live->pages = malloc(PAGES * sizeof(*live->pages));
	live->saves = malloc((longest / PAGES + 1) * sizeof(*live->saves));
	if (!live->keys || !live->metas || !live->pages || !live->saves ||
	    posix_memalign((void **)&live->memory, 4096, PAGES * PAYLOAD))
		return -ENOMEM;
	memset(live->memory, 0, PAGES * PAYLOAD);
	r = kvfs_open(path, &live->session);
	if (r < 0)
		return r;
	if (!kvfs_connected(live->session)) {
		live->why = "no daemon answers there";
		return -ENOTCONN;
	}
	r = kvfs_space_open(live->session, SPACE, layout, KVFS_CREATE | 0700,
			    &live->space);
	if (r == 0)
		r = kvfs_space_clear(live->space);
	return r < 0 ? r : open_pool(live);
}

static void close_live(struct live *live)
{
	kvfs_pool_close(live->pool);
	if (live->space)
		kvfs_space_clear(live->space);
	kvfs_space_close(live->space);
	kvfs_close(live->session);
	free(live->memory);
	free(live->keys);
	free(live->metas);
	free(live->pages);
	free(live->saves);
}

/* Compare the bytes with those of the block. */
static int check_block(struct live *live, kvfs_lease *lease, size_t i,
		       uint32_t block)
{
	uint64_t bytes;
	const uint64_t *data = kvfs_lease_data(lease, i, &bytes);

	if (data && bytes == PAYLOAD && data[0] == spread(block) &&
	    data[PAYLOAD / 8 - 1] == ~spread(block))
		return 0;
	live->why = "a block came back with other bytes";
	return -EBADMSG;
}

static int acquire_hits(struct live *live, const uint32_t *blocks, size_t n,
			kvfs_lease **ret_lease)
{
	kvfs_query query = {live->space, live->keys, n};
	long r;

	r = kvfs_acquire(&query, 1, KVFS_OPTS(.deadline = PATIENCE), ret_lease);
	if (r < 0)
		return (int)r;
	r = kvfs_lease_wait(*ret_lease, PATIENCE);
	for (size_t i = 0; r >= 0 && i < n; i++)
		if (kvfs_lease_status(*ret_lease, i) == 0)
			r = check_block(live, *ret_lease, i, blocks[i]);
	return r < 0 ? (int)r : 0;
}

/* Save blocks @from to @to of the request, a pool full at most. */
static int save_blocks(struct live *live, const uint32_t *blocks, size_t from,
		       size_t to)
{
	/* A request keeps its own blocks while it is handled. */
	const kvfs_opts opts = {.size = sizeof(opts), .flags = KVFS_HOLD};
	kvfs_xfer *xfer;
	long r;

	for (size_t i = from; i < to; i++) {
		uint64_t *page = live->memory + (i - from) * (PAYLOAD / 8);

		page[0] = spread(blocks[i]);
		page[PAYLOAD / 8 - 1] = ~page[0];
		live->metas[i - from] =
			(kvfs_meta){.position = (uint32_t)i, .tokens = 1};
		if (i)
			live->metas[i - from].parent = live->keys[i - 1];
		live->pages[i - from] = (int64_t)(i - from);
	}
	r = kvfs_save(live->pool, live->space, live->keys + from, live->metas,
		      to - from, live->pages, &opts, &xfer);
	if (r < 0)
		return (int)r;
	live->saves[live->n_saves++] = xfer;
	/* A block without room is left out, as in the simulation. */
	r = kvfs_xfer_wait(xfer, KVFS_SEALED, PATIENCE);
	return r < 0 ? (int)r : 0;
}

static int replay_request(struct live *live, const uint32_t *blocks, size_t n)
{
	kvfs_query query = {live->space, live->keys, n};
	kvfs_lease *lease = NULL;
	long hits;
	int r = 0;

	for (size_t i = 0; i < n; i++)
		live->keys[i] = key_of(blocks[i]);
	hits = n ? kvfs_match(&query, 1) : 0;
	if (hits < 0)
		return (int)hits;
	live->hits += (uint64_t)hits;
	if (hits)
		r = acquire_hits(live, blocks, (size_t)hits, &lease);
	for (size_t at = (size_t)hits; r == 0 && at < n; at += PAGES)
		r = save_blocks(live, blocks, at,
				at + PAGES < n ? at + PAGES : n);
	while (live->n_saves) /* from the tail */
		kvfs_xfer_free(live->saves[--live->n_saves]);
	kvfs_release(lease);
	return r;
}

/* Read the mount's policy and number of blocks from its statistics. */
static int read_stats(struct live *live, struct kv_live_result *result)
{
	const char *dram, *evict;
	unsigned long blocks;
	char *text;
	int r = kvfs_stats(live->session, &text);

	if (r < 0)
		return r;
	dram = strstr(text, "%), ");
	evict = strstr(text, "\nevict");
	r = -EPROTO;
	if (dram && evict && sscanf(dram, "%%), %lu blocks", &blocks) == 1 &&
	    sscanf(evict, " evict %31[a-z0-9]", result->policy) == 1) {
		result->blocks = (uint32_t)blocks;
		r = 0;
	}
	free(text);
	return r;
}

int kv_live_run(const char *path, const struct kv_trace *trace,
		struct kv_live_result *ret_result)
{
	struct live live = {0};
	size_t longest = 0;
	int r;

	for (size_t i = 0; i < trace->n; i++)
		if (trace->start[i + 1] - trace->start[i] > longest)
			longest = trace->start[i + 1] - trace->start[i];
	r = open_live(&live, path, longest);
	for (size_t i = 0; r == 0 && i < trace->n; i++) {
		r = replay_request(&live, trace->blocks + trace->start[i],
				   trace->start[i + 1] - trace->start[i]);
		if (i % 64 == 0 && isatty(STDERR_FILENO))
			fprintf(stderr, "\rlive %3zu%% ", i * 100 / trace->n);
	}
	if (r == 0)
		r = read_stats(&live, ret_result);
	close_live(&live);
	ret_result->hits = live.hits;
	ret_result->why = live.why;
	return r;
}
