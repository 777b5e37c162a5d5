/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.c - the messages that are answered at once.
 *
 * OWNS      nothing beyond a call; blocks are put in the function that gets
 *           them.
 *
 * LOCKING   none: control thread only.
 */
#include "fs/control/request.h"
#include "fs/stats.h"

int kv_request_hello(struct kv_client *client, const struct kv_message *m)
{
	struct kv_cache *cache = client->server->cache;
	const struct wire_hello *hello = m->items;
	struct wire_hello *reply = kv_reply_items(client->server);
	bool same = hello->version == WIRE_VERSION;

	*reply = (struct wire_hello){.version = WIRE_VERSION,
				     .epoch = kv_cache_epoch(cache)};
	memcpy(reply->store, kv_cache_store_id(cache), sizeof(reply->store));
	kv_reply(client, m->header, same ? 0 : -EPROTONOSUPPORT, 1,
		 sizeof(*reply));
	client->greeted = same;
	return same ? 0 : -EPROTO;
}

int kv_request_probe(struct kv_client *client, const struct kv_message *m)
{
	struct kv_server *server = client->server;
	struct kv_space_info info;
	struct kv_space *space;
	size_t n = m->header->count;
	int r;

	r = kv_request_keys(client, m);
	if (r < 0)
		return r;
	if (kv_client_space(client, m->header->space, R_OK | X_OK, &space,
			    &info) < 0) {
		kv_reply_all(client, m->header, 0);
		return 0;
	}
	_Static_assert(sizeof(struct wire_state) == 1, "one byte a key");
	_Static_assert((int)WIRE_SAVING == KV_SAVING &&
			       (int)WIRE_SSD == KV_SSD &&
			       (int)WIRE_DRAM == KV_DRAM,
		       "the cache's states are the wire's");
	kv_probe(server->cache, space, server->keys, n, kv_reply_items(server));
	kv_reply(client, m->header, 0, (uint32_t)n, n);
	return 0;
}

/* Change one block for kv_request_evict and _pin. */
static int change(struct kv_client *client, const struct kv_message *m,
		  struct kv_space *space, const struct kv_key *key)
{
	struct kv_cache *cache = client->server->cache;
	struct kv_block *block;
	int r;

	r = kv_block_get(cache, space, key, &block);
	if (r < 0)
		return r;
	if (m->header->type == WIRE_EVICT)
		r = kv_block_remove(cache, block);
	else
		r = kv_block_pin(cache, block, m->header->arg == 1);
	kv_block_put(cache, block);
	return r;
}

int kv_request_evict(struct kv_client *client, const struct kv_message *m)
{
	struct kv_server *server = client->server;
	struct wire_status *statuses = kv_reply_items(server);
	struct kv_space_info info;
	struct kv_space *space;
	uint32_t n = m->header->count;
	int r;

	r = kv_request_keys(client, m);
	if (r < 0)
		return r;
	r = kv_client_space(client, m->header->space, W_OK | X_OK, &space,
			    &info);
	if (r < 0) {
		kv_reply_all(client, m->header, r);
		return 0;
	}
	for (uint32_t i = 0; i < n; i++)
		statuses[i].status = change(client, m, space, &server->keys[i]);
	kv_reply(client, m->header, 0, n, n * sizeof(*statuses));
	return 0;
}

int kv_request_pin(struct kv_client *client, const struct kv_message *m)
{
	return m->header->arg > 1 ? -EPROTO : kv_request_evict(client, m);
}

int kv_request_ended(struct kv_client *client, const struct kv_message *m)
{
	struct kv_server *server = client->server;
	struct kv_space_info info;
	struct kv_space *space;
	int r;

	r = kv_request_keys(client, m);
	if (r < 0)
		return r;
	if (kv_client_space(client, m->header->space, W_OK | X_OK, &space,
			    &info) == 0)
		kv_blocks_ended(server->cache, space, server->keys,
				m->header->count);
	return 0;
}

int kv_request_clear(struct kv_client *client, const struct kv_message *m)
{
	struct kv_space_info info;
	struct kv_space *space;
	int r;

	r = kv_client_space(client, m->header->space, W_OK | X_OK, &space,
			    &info);
	if (r == 0)
		r = kv_space_clear(client->server->cache, space);
	kv_reply(client, m->header, r, 0, 0);
	return 0;
}

int kv_request_stats(struct kv_client *client, const struct kv_message *m)
{
	_cleanup_(kv_freep) char *text = kv_stats_text(client->server->cache);
	size_t n = text ? strlen(text) : 0;

	n = KV_MIN(n, WIRE_MAX - sizeof(struct wire_header));
	if (n)
		memcpy(kv_reply_items(client->server), text, n);
	kv_reply(client, m->header, text ? 0 : -ENOMEM, (uint32_t)n, n);
	return 0;
}

int kv_request_cancel(struct kv_client *client, const struct kv_message *m)
{
	struct kv_request *request = kv_request_find(client, m->header->tag);

	/* An unknown tag: the reply and this message have met on their way. */
	if (request && request->pending && request->kind->cancel)
		request->kind->cancel(request, -ECANCELED);
	return 0;
}

int kv_request_unmapped(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_segment *segment = m->items;

	if (!kv_segments_remove(&client->segments, segment->id))
		return -EPROTO;
	kv_segment_returned(client->server->cache, segment->id);
	return 0;
}
