/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.c - spaces, keys, pools and transfers, as any engine would use them.
 *
 * OWNS      the session and the space.  A pool lives for one transfer, since
 *           each sequence's state is memory of its own.
 *
 * LOCKING   none; one thread.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tools/demo/client.h"
#include "tools/demo/own.h"

#define DEADLINE (60ull * 1000000000u)

static void pool_closep(kvfs_pool **pool)
{
	kvfs_pool_close(*pool);
}

static void xfer_freep(kvfs_xfer **xfer)
{
	kvfs_xfer_free(*xfer);
}

static void releasep(kvfs_lease **lease)
{
	kvfs_release(*lease);
}

static int said(const char *what, long error)
{
	fprintf(stderr, "%s: %s\n", what, strerror((int)-error));
	return (int)error;
}

static void closep(struct kv_client **client)
{
	kv_client_close(*client);
}

int kv_client_open(const char *mount, const struct kv_engine *engine,
		   const struct kv_seqshape *shape, const uint32_t *tokens,
		   struct kv_client **ret_client)
{
	_cleanup_(closep) struct kv_client *client = NULL;
	_cleanup_(kv_freep) char *layout = NULL;
	long n;
	int r;

	client = calloc(1, sizeof(*client));
	layout = kv_seqshape_layout(shape, engine->fingerprint);
	if (!client || !layout ||
	    asprintf(&client->path, "%s/%s", mount, engine->name) < 0)
		return -ENOMEM;
	r = kvfs_open(mount, &client->session);
	if (r < 0)
		return said("kvfs_open", r);
	r = kvfs_space_open(client->session, engine->name, layout,
			    KVFS_CREATE | 0755, &client->space);
	if (r < 0)
		return said("kvfs_space_open", r);
	if (kvfs_connected(client->session) != 1)
		return said(mount, -ENOTCONN);
	n = kvfs_key_chain(client->space, NULL, tokens, KV_PROMPT_TOKENS, NULL,
			   0, client->keys, KV_PROMPT_BLOCKS);
	if (n != KV_PROMPT_BLOCKS)
		return said("kvfs_key_chain", n < 0 ? n : -EPROTO);
	*ret_client = kv_steal(client);
	return 0;
}

void kv_client_close(struct kv_client *client)
{
	if (!client)
		return;
	kvfs_space_close(client->space);
	kvfs_close(client->session);
	free(client->path);
	free(client);
}

static kvfs_query query_of(const struct kv_client *client, size_t n)
{
	return (kvfs_query){client->space, client->keys, n};
}

long kv_client_match(struct kv_client *client)
{
	kvfs_query query = query_of(client, KV_PROMPT_BLOCKS);
	long n = kvfs_match(&query, 1);

	return n < 0 ? said("kvfs_match", n) : n;
}

int kv_client_is_cold(struct kv_client *client, size_t n)
{
	kvfs_query query = query_of(client, n);
	uint8_t states[KV_PROMPT_BLOCKS];

	if (kvfs_probe(&query, 1, states) != (long)n)
		return 0;
	return !memchr(states, KVFS_DRAM, n);
}

/* The state's pages, as libkvfs is to see them. */
static int pool_of(struct kv_client *client, const struct kv_seqstate *state,
		   kvfs_pool **ret_pool)
{
	size_t n = kv_seqshape_views(&state->shape);
	_cleanup_(kv_freep) kvfs_view *views = calloc(n, sizeof(*views));
	kvfs_pool_desc desc = {
		.size = sizeof(desc),
		.device = "host",
		.space = client->space,
		.views = views,
		.n_views = n,
		.pages = kv_seqstate_pages(state),
		.pages_per_block = 1,
		.memory = state->data,
		.memory_bytes = state->len,
	};
	int r;

	if (!views)
		return -ENOMEM;
	kv_seqstate_views(state, views);
	r = kvfs_pool_register(client->session, &desc, ret_pool);
	return r < 0 ? said("kvfs_pool_register", r) : 0;
}

static void pages_from(size_t first, size_t n, int64_t *ret_pages)
{
	size_t i;

	for (i = 0; i < n; i++)
		ret_pages[i] = (int64_t)(first + i);
}

/* Statuses of all @n blocks.  Returns how many were new. */
static long statuses(const char *what, kvfs_xfer *xfer, size_t n)
{
	long fresh = 0;
	size_t i;
	int r;

	for (i = 0; i < n; i++) {
		r = kvfs_xfer_status(xfer, i);
		if (r < 0) {
			fprintf(stderr, "%s: block %zu: %s\n", what, i,
				strerror(-r));
			return r;
		}
		fresh += r == 0;
	}
	return fresh;
}

/* Wait for all @n blocks at @stage. */
static int stage_wait(const char *what, kvfs_xfer *xfer, enum kvfs_stage stage,
		      size_t n)
{
	long got = kvfs_xfer_wait(xfer, stage, DEADLINE);

	if (got == (long)n)
		return 0;
	if (got < 0)
		return said(what, got);
	got = statuses(what, xfer, n);
	return got < 0 ? (int)got : said(what, -EPROTO);
}

long kv_client_save(struct kv_client *client, const struct kv_seqstate *state,
		    size_t first, struct kv_save_times *ret_times)
{
	_cleanup_(pool_closep) kvfs_pool *pool = NULL;
	_cleanup_(xfer_freep) kvfs_xfer *xfer = NULL;
	size_t i, n = KV_PROMPT_BLOCKS - first;
	kvfs_meta meta[KV_PROMPT_BLOCKS] = {0};
	int64_t pages[KV_PROMPT_BLOCKS];
	double start;
	int r;

	r = pool_of(client, state, &pool);
	if (r < 0)
		return r;
	pages_from(first, n, pages);
	for (i = 0; i < n; i++) {
		meta[i].position = (uint32_t)(first + i);
		meta[i].parent.len = KVFS_CHAIN;
	}
	if (first > 0)
		meta[0].parent = client->keys[first - 1];
	start = kv_seconds();
	r = kvfs_save(pool, client->space, client->keys + first, meta, n, pages,
		      NULL, &xfer);
	if (r < 0)
		return said("kvfs_save", r);
	r = stage_wait("save", xfer, KVFS_SEALED, n);
	ret_times->sealed = kv_seconds() - start;
	if (r == 0)
		r = stage_wait("save", xfer, KVFS_DURABLE, n);
	ret_times->durable = kv_seconds() - start;
	return r < 0 ? r : statuses("save", xfer, n);
}

int kv_client_load(struct kv_client *client, struct kv_seqstate *state,
		   kvfs_lease **ret_lease, double *ret_seconds)
{
	size_t n = kv_seqstate_pages(state);
	_cleanup_(pool_closep) kvfs_pool *pool = NULL;
	_cleanup_(xfer_freep) kvfs_xfer *xfer = NULL;
	_cleanup_(releasep) kvfs_lease *lease = NULL;
	kvfs_query query = query_of(client, n);
	int64_t pages[KV_PROMPT_BLOCKS];
	double start;
	int r;

	r = pool_of(client, state, &pool);
	if (r < 0)
		return r;
	pages_from(0, n, pages);
	start = kv_seconds();
	r = kvfs_acquire(&query, 1, KVFS_OPTS(.deadline = DEADLINE), &lease);
	if (r < 0)
		return said("kvfs_acquire", r);
	r = kvfs_load(pool, lease, n, pages, NULL, &xfer);
	if (r < 0)
		return said("kvfs_load", r);
	r = stage_wait("load", xfer, KVFS_COPIED, n);
	*ret_seconds = kv_seconds() - start;
	if (r < 0)
		return r;
	*ret_lease = kv_steal(lease);
	return 0;
}
