/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefetch.c - WIRE_PREFETCH: blocks that will be wanted in DRAM.
 *
 * OWNS      the kv_prefetch of each request.  Nothing is held by it: a client
 *           that dies leaves nothing behind but what had begun.
 *
 * LOCKING   none: control thread only, but for fetched(), which a cache thread
 *           calls and which only posts the request's mail.
 */
#include "fs/control/request.h"

struct prefetch {
	struct kv_request request; /* first */
	struct kv_key *keys;	   /* behind the statuses */
	struct kv_prefetch fetch;  /* last: has its statuses behind it */
};

static void fetched(struct kv_prefetch *fetch, void *arg)
{
	struct prefetch *prefetch = arg;

	(void)fetch;
	kv_mailbox_post(&prefetch->request.server->mailbox,
			&prefetch->request.mail);
}

static void finish(struct kv_request *request)
{
	struct prefetch *prefetch = (struct prefetch *)request;
	struct wire_status *statuses = kv_reply_items(request->server);
	uint32_t n = (uint32_t)prefetch->fetch.n;

	if (request->client) {
		for (uint32_t i = 0; i < n; i++)
			statuses[i].status = prefetch->fetch.status[i];
		kv_reply(request->client, &request->header, 0, n,
			 n * sizeof(*statuses));
	}
	free(prefetch->keys);
	kv_request_free(request);
}

/* A deadline that passes is the cache's to see: it ends what has not begun. */
static void cancel(struct kv_request *request, int status)
{
	struct prefetch *prefetch = (struct prefetch *)request;

	(void)status;
	kv_prefetch_cancel(request->server->cache, &prefetch->fetch);
}

static const struct kv_request_kind kind = {finish, cancel, NULL};

static int begin(struct kv_client *client, const struct kv_message *m,
		 struct kv_space *space)
{
	uint64_t now = kv_now_ns(), wait = m->header->arg;
	size_t n = m->header->count;
	struct prefetch *prefetch;
	int r;

	r = kv_request_new(client, m->header, &kind,
			   sizeof(*prefetch) + n * sizeof(int), &prefetch);
	if (r < 0)
		return r;
	prefetch->keys = malloc((n + 1) * sizeof(*prefetch->keys));
	if (!prefetch->keys) {
		kv_request_free(&prefetch->request);
		return -ENOMEM;
	}
	memcpy(prefetch->keys, client->server->keys,
	       n * sizeof(*prefetch->keys));
	prefetch->fetch.space = space;
	prefetch->fetch.keys = prefetch->keys;
	prefetch->fetch.n = n;
	if (wait)
		prefetch->fetch.deadline_ns =
			wait > UINT64_MAX - now ? UINT64_MAX : now + wait;
	prefetch->fetch.done = fetched;
	prefetch->fetch.arg = prefetch;
	kv_prefetch_submit(client->server->cache, &prefetch->fetch);
	kv_request_pend(&prefetch->request, false);
	return 0;
}

/* Few of them in DRAM are no sign that the rest will be of use. */
static bool has_head(struct kv_client *client, const struct kv_message *m,
		     struct kv_space *space)
{
	uint8_t states[WIRE_AHEAD_MIN];
	size_t i = 0;

	if (m->header->count < WIRE_AHEAD_MIN)
		return false;
	kv_probe(client->server->cache, space, client->server->keys,
		 WIRE_AHEAD_MIN, states);
	while (i < WIRE_AHEAD_MIN && states[i] == KV_DRAM)
		i++;
	return i == WIRE_AHEAD_MIN;
}

int kv_request_prefetch(struct kv_client *client, const struct kv_message *m)
{
	struct kv_space_info info;
	struct kv_space *space;
	int r;

	r = kv_request_keys(client, m);
	if (r < 0)
		return r;
	r = kv_client_space(client, m->header->space, R_OK | X_OK, &space,
			    &info);
	if (r < 0)
		r = -ENOENT;
	else if (m->header->flags & WIRE_AHEAD && !has_head(client, m, space))
		r = -EAGAIN;
	else
		r = begin(client, m, space);
	if (r < 0)
		kv_reply_all(client, m->header, r);
	return 0;
}
