/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.c - messages about blocks that are there: those answered at once,
 * WIRE_CLEAR, and WIRE_FLUSH and WIRE_PREFETCH, which wait for the SSD.
 *
 * OWNS      the kv_flush or kv_prefetch of each request that waits.  Nothing is
 *           held by a prefetch: a client that dies leaves nothing behind but
 *           what had begun.
 *
 * LOCKING   none: control thread only, but for flushed() and fetched(), which
 *           run on any thread, write nothing but the outcome, and post the
 *           request's mail.
 */
#include <stdio.h>

#include "fs/control/chore.h"
#include "fs/control/request.h"
#include "fs/base/stats.h"

#define WARN_EVERY_NS UINT64_C(60000000000)

/* The newest version that both speak; 0: none. */
static uint32_t common_version(const struct wire_hello *hello)
{
	uint32_t oldest = hello->oldest ? hello->oldest : hello->version;
	uint32_t newest = KV_MIN(hello->version, (uint32_t)WIRE_VERSION);

	if (oldest > hello->version || newest < KV_MAX(oldest, WIRE_OLDEST))
		return 0;
	return newest;
}

/* Once for a version, and once a minute at most: any user can send any. */
static void warn_of_version(const struct kv_client *client,
			    const struct wire_hello *hello)
{
	struct kv_server *server = client->server;
	const uint64_t now = kv_now_ns();

	if (server->version_refused == hello->version ||
	    (server->version_warned_ns &&
	     now - server->version_warned_ns < WARN_EVERY_NS))
		return;
	server->version_refused = hello->version;
	server->version_warned_ns = now;
	fprintf(stderr,
		"kvfs: warning: a program of uid %u has a libkvfs that speaks "
		"version %u of the protocol, and this daemon %u to %u: to it "
		"the cache is empty until one of them is replaced\n",
		(unsigned)client->caller.uid, hello->version, WIRE_OLDEST,
		WIRE_VERSION);
}

int kv_request_hello(struct kv_client *client, const struct kv_message *m)
{
	struct kv_cache *cache = client->server->cache;
	const struct wire_hello *hello = m->items;
	struct wire_hello *reply = kv_reply_items(client->server);
	uint32_t version = common_version(hello);

	*reply = (struct wire_hello){.version = version,
				     .epoch = kv_cache_epoch(cache)};
	memcpy(reply->store, kv_cache_store_id(cache), sizeof(reply->store));
	if (version == 0) {
		reply->version = WIRE_VERSION;
		reply->oldest = WIRE_OLDEST;
		warn_of_version(client, hello);
	}
	kv_reply(client, m->header, version != 0 ? 0 : -EPROTONOSUPPORT, 1,
		 sizeof(*reply));
	client->version = version;
	return version != 0 ? 0 : -EPROTO;
}

int kv_request_probe(struct kv_client *client, const struct kv_message *m)
{
	struct kv_server *server = client->server;
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
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
	kv_asked(server->cache, space, kv_reply_items(server), n);
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
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
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
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
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

/* ---- clear: as long as there are blocks, with saves in between ---- */

struct clear {
	struct kv_chore chore; /* first */
	struct kv_clear *clear;
};

static int clear_some(struct kv_chore *chore)
{
	return kv_clear_some(chore->request.server->cache,
			     ((struct clear *)chore)->clear);
}

static void clear_finish(struct kv_request *request)
{
	struct clear *clear = (struct clear *)request;

	if (request->client)
		kv_reply(request->client, &request->header, clear->chore.status,
			 0, 0);
	kv_clear_end(clear->clear);
	kv_request_free(request);
}

static const struct kv_request_kind clear_kind = {clear_finish, NULL, NULL};

int kv_request_clear(struct kv_client *client, const struct kv_message *m)
{
	struct clear *clear = NULL;
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	int r;

	r = kv_client_space(client, m->header->space, W_OK | X_OK, &space,
			    &info);
	if (r == 0)
		r = kv_request_new(client, m->header, &clear_kind,
				   sizeof(*clear), &clear);
	if (r == 0)
		r = kv_clear_begin(client->server->cache, space, &clear->clear);
	if (r < 0) {
		kv_reply(client, m->header, r, 0, 0);
		if (clear)
			kv_request_free(&clear->chore.request);
		return 0;
	}
	kv_chore_begin(&clear->chore, clear_some);
	return 0;
}

/* ---- answered at once ---- */

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
	kv_segment_returned(client->server->cache, segment->id,
			    client->caller.uid);
	return 0;
}

/* Without memory to note it by its segments stay sealed. */
int kv_request_registers(struct kv_client *client, const struct kv_message *m)
{
	(void)m;
	if (!client->registers)
		client->registers = kv_registrant_add(client->server->cache,
						      client->caller.uid) == 0;
	return 0;
}

/* ---- flush: wait until a space, or some of its blocks, are durable ----
 *
 * Blocks that somebody still saves are waited for first, but not for long: he
 * may be stopped.
 */

#define SEALING_NS UINT64_C(2000000000)

struct flush {
	struct kv_request request; /* first */
	struct kv_flush flush;
	bool submitted;
	int status;
	struct kv_acquire sealing; /* last: its wants have the keys */
};

static void flushed(struct kv_flush *f, int status)
{
	struct flush *flush = f->arg;

	flush->status = status;
	kv_mailbox_post(&flush->request.server->mailbox, &flush->request.mail);
}

static void all_sealed(struct kv_acquire *sealing, void *arg)
{
	struct flush *flush = arg;

	(void)sealing;
	kv_mailbox_post(&flush->request.server->mailbox, &flush->request.mail);
}

/* The outcome for one block: durable counts, even if the flush of the whole
 * space failed. */
static int outcome(struct flush *flush, const struct kv_want *want)
{
	struct kv_cache *cache = flush->request.server->cache;
	const struct kv_key *key = &want->key;
	struct kv_block *block;
	bool durable;
	int r;

	r = kv_block_get(cache, flush->request.space, key, &block);
	if (r == 0) {
		durable = kv_block_stat(cache, block).durable;
		kv_block_put(cache, block);
		if (durable)
			return 0;
		/* All that was there is durable, and it is in DRAM yet. */
		if (flush->status == 0 && want->status == 0)
			return WIRE_EVICTED;
		/* Removed and saved again, while we waited. */
		r = flush->status < 0 ? flush->status : -ENOENT;
	}
	if (r == -ENOENT &&
	    kv_block_was_changed(cache, flush->request.space, key))
		return -EBADMSG;
	if (r == -ENOENT &&
	    kv_block_was_durable(cache, flush->request.space, key))
		return WIRE_EVICTED;
	return r;
}

static void flush_submit(struct flush *flush)
{
	struct kv_request *request = &flush->request;

	flush->submitted = true;
	kv_flush_submit(request->server->cache, request->space, &flush->flush);
	/* Also if flushed() has run already: its mail waits for us. */
	kv_request_pend(request, true);
}

static void flush_finish(struct kv_request *request)
{
	struct flush *flush = (struct flush *)request;
	struct wire_status *statuses = kv_reply_items(request->server);
	uint32_t n = request->header.count;

	if (request->client && !flush->submitted && flush->status == 0) {
		flush_submit(flush);
		return;
	}
	if (request->client && n == 0)
		kv_reply_all(request->client, &request->header, flush->status);
	if (request->client && n > 0) {
		for (uint32_t i = 0; i < n; i++)
			statuses[i].status =
				outcome(flush, &flush->sealing.wants[i]);
		kv_reply(request->client, &request->header, 0, n,
			 n * sizeof(*statuses));
	}
	kv_request_free(request);
}

static void flush_cancel(struct kv_request *request, int status)
{
	struct flush *flush = (struct flush *)request;
	struct kv_cache *cache = request->server->cache;

	if (flush->submitted) {
		kv_flush_cancel(cache, &flush->flush, status);
		return;
	}
	/* What is not sealed by then is absent, and others are waited for. */
	if (status != -ETIMEDOUT)
		flush->status = status;
	kv_acquire_cancel(cache, &flush->sealing, -ENOENT);
}

static const struct kv_request_kind flush_kind = {flush_finish, flush_cancel,
						  NULL};

int kv_request_flush(struct kv_client *client, const struct kv_message *m)
{
	struct kv_server *server = client->server;
	size_t n = m->header->count;
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
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
		r = kv_request_new(client, m->header, &flush_kind,
				   sizeof(*flush) + n * sizeof(struct kv_want),
				   &flush);
	if (r < 0) {
		kv_reply_all(client, m->header, r);
		return 0;
	}
	flush->request.space = kv_space_get(space);
	flush->flush.done = flushed;
	flush->flush.arg = flush;
	flush->flush.each = n > 0;
	flush->sealing.space = space;
	flush->sealing.n = n;
	flush->sealing.wait_saving = flush->sealing.sealed = true;
	flush->sealing.done = all_sealed;
	flush->sealing.arg = flush;
	for (size_t i = 0; i < n; i++)
		flush->sealing.wants[i].key = server->keys[i];
	if (kv_acquire_submit(server->cache, &flush->sealing) > 0)
		kv_request_pend_for(&flush->request, SEALING_NS);
	else
		flush_submit(flush);
	return 0;
}

/* ---- prefetch: blocks that will be wanted in DRAM ---- */

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

static void prefetch_finish(struct kv_request *request)
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
static void prefetch_cancel(struct kv_request *request, int status)
{
	struct prefetch *prefetch = (struct prefetch *)request;

	(void)status;
	kv_prefetch_cancel(request->server->cache, &prefetch->fetch);
}

static const struct kv_request_kind prefetch_kind = {prefetch_finish,
						     prefetch_cancel, NULL};

static int prefetch_begin(struct kv_client *client, const struct kv_message *m,
			  struct kv_space *space)
{
	uint64_t now = kv_now_ns(), wait = m->header->arg;
	size_t n = m->header->count;
	struct prefetch *prefetch;
	int r;

	r = kv_request_new(client, m->header, &prefetch_kind,
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
	prefetch->fetch.space = prefetch->request.space = kv_space_get(space);
	prefetch->fetch.uid = client->caller.uid;
	prefetch->fetch.more = n == WIRE_BATCH;
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
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
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
		r = prefetch_begin(client, m, space);
	if (r < 0)
		kv_reply_all(client, m->header, r);
	return 0;
}
