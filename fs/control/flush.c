/* SPDX-License-Identifier: Apache-2.0 */
/*
 * flush.c - WIRE_FLUSH: wait until a space, or some of its blocks, are
 * durable.
 *
 * OWNS      the kv_flush of each request.
 *
 * LOCKING   none: control thread only, but for flushed(), which may run on any
 *           thread; `status` is written by it before the mail is posted.
 */
#include "fs/control/request.h"

struct flush {
	struct kv_request request; /* first */
	struct kv_flush flush;
	struct kv_space *space;
	int status;
	struct kv_key keys[];
};

static void flushed(struct kv_flush *f, int status)
{
	struct flush *flush = f->arg;

	flush->status = status;
	kv_mailbox_post(&flush->request.server->mailbox, &flush->request.mail);
}

/* What became of one block: durable counts, even if the flush of the whole
 * space failed. */
static int outcome(struct flush *flush, const struct kv_key *key)
{
	struct kv_cache *cache = flush->request.server->cache;
	struct kv_block *block;
	bool durable;
	int r;

	r = kv_block_get(cache, flush->space, key, &block);
	if (r < 0)
		return r;
	durable = kv_block_stat(cache, block).durable;
	kv_block_put(cache, block);
	if (durable)
		return 0;
	/* Evicted, or removed and saved again, while we waited. */
	return flush->status < 0 ? flush->status : -ENOENT;
}

static void finish(struct kv_request *request)
{
	struct flush *flush = (struct flush *)request;
	struct wire_status *statuses = kv_reply_items(request->server);
	uint32_t n = request->header.count;

	if (request->client && n == 0)
		kv_reply_all(request->client, &request->header, flush->status);
	if (request->client && n > 0) {
		for (uint32_t i = 0; i < n; i++)
			statuses[i].status = outcome(flush, &flush->keys[i]);
		kv_reply(request->client, &request->header, 0, n,
			 n * sizeof(*statuses));
	}
	kv_request_free(request);
}

static void cancel(struct kv_request *request, int status)
{
	struct flush *flush = (struct flush *)request;

	kv_flush_cancel(request->server->cache, &flush->flush, status);
}

static const struct kv_request_kind kind = {finish, cancel, NULL};

int kv_request_flush(struct kv_client *client, const struct kv_message *m)
{
	struct kv_server *server = client->server;
	size_t bytes = m->header->count * sizeof(struct kv_key);
	struct kv_space_info info;
	struct kv_space *space;
	struct flush *flush;
	int r;

	r = kv_request_keys(client, m);
	if (r < 0)
		return r;
	r = kv_client_space(client, m->header->space, R_OK | X_OK, &space,
			    &info);
	if (r == -EACCES)
		r = kv_client_space(client, m->header->space, W_OK | X_OK,
				    &space, &info);
	if (r == 0)
		r = kv_request_new(client, m->header, &kind,
				   sizeof(*flush) + bytes, &flush);
	if (r < 0) {
		kv_reply_all(client, m->header, r);
		return 0;
	}
	flush->space = space;
	flush->flush.done = flushed;
	flush->flush.arg = flush;
	memcpy(flush->keys, server->keys, bytes);
	kv_flush_submit(server->cache, space, &flush->flush);
	/* Also if flushed() has run already: its mail waits for us. */
	kv_request_pend(&flush->request, true);
	return 0;
}
