/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block.c - messages about blocks: messages that are answered at once, and ACQUIRE,
 * CLEAR, FLUSH, PREFETCH, FORGET, TOKEN_IDS and LIST, which wait for the disk or other
 * nodes; STATS.
 *
 * OWNS      the kv_acquire, kv_flush or kv_forget of each request that waits; the leases
 *           of an ACQUIRE until they are released; the keys and the reply of a TOKEN_IDS
 *           or LIST.
 *           A prefetch holds no block.
 *
 * INVARIANTS
 *   (1) The descriptor of a segment is sent before the first reply that names the
 *       segment; both go through the client's send queue.
 *   (2) An acquire that is HELD has at least one lease.
 *
 * LOCKING   control thread only.  A request belongs to a worker while that runs.  Any
 *           thread calls acquired(), flushed() and forgotten(), which only write the
 *           outcome and post the request's mail.
 */
#include <stdio.h>

#include "fs/base/stats.h"
#include "fs/control/server.h"

/* reply to an acquire with WIRE_PARTS for so many bytes of blocks */
#define PART_BYTES (UINT64_C(4) << 20)
#define WARN_EVERY_NS UINT64_C(60000000000)
#define TEXT_SPARE 4096u /* more than the text of one space has */

/* ---- messages that are answered at once ---- */

/* Log that a client speaks another version of the protocol: each version once,
 * and at most one line a minute, as any user can send any version. */
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
		"kvfs: warning: a program of uid %u uses a libkvfs with "
		"version %u of the protocol, but this daemon has %u to %u: "
		"the program finds no blocks until one of them is replaced\n",
		(unsigned)client->caller.uid, hello->version, WIRE_OLDEST,
		WIRE_VERSION);
}

int kv_request_hello(struct kv_client *client, const struct kv_message *m)
{
	struct kv_cache *cache = client->server->cache;
	const struct wire_hello *hello = m->items;
	struct wire_hello *reply = kv_reply_items(client->server);
	const uint32_t oldest = hello->oldest ? hello->oldest : hello->version;
	uint32_t version = KV_MIN(hello->version, (uint32_t)WIRE_VERSION);

	if (oldest > hello->version || version < oldest ||
	    version < WIRE_OLDEST)
		version = 0;
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
	uint8_t *states = kv_reply_items(server);
	const uint32_t n = m->header->count;
	size_t missed;

	_Static_assert(sizeof(struct wire_state) == 1, "one byte a key");
	_Static_assert((int)WIRE_SAVING == KV_SAVING &&
			       (int)WIRE_SSD == KV_SSD &&
			       (int)WIRE_DRAM == KV_DRAM,
		       "the cache's states are the wire's");
	kv_probe(server->cache, m->space, server->keys, n, states);
	missed = kv_asked(server->cache, m->space, states, n);
	kv_reply(client, m->header, 0, n, n);
	if (missed < n && m->header->arg == 0)
		kv_missed(server->cache, m->space, client->caller.uid,
			  &server->keys[missed], missed, n);
	kv_server_time(server, &server->tally.probe_times, server->now_ns);
	return 0;
}

int kv_request_why(struct kv_client *client, const struct kv_message *m)
{
	struct kv_server *server = client->server;
	struct wire_miss *wire = kv_reply_items(server);
	const uint32_t uid = client->caller.uid;
	const bool operates = kv_rules_operator(server->rules, uid);
	/* Users get no account of events in other users' spaces. */
	const bool stranger = uid != m->info.uid && !operates;
	struct kv_miss misses[WIRE_WHY_BATCH];
	uint64_t at = m->header->arg;
	size_t n = m->header->count;

	for (size_t i = 0; i < n; i++)
		misses[i] = (struct kv_miss){.key = server->keys[i]};
	if (n > 0)
		kv_why_absent(server->cache, m->space, misses, n);
	else
		n = kv_misses(server->cache, m->space, operates ? NULL : &uid,
			      &at, misses, WIRE_WHY_BATCH);
	for (size_t i = 0; i < n; i++) {
		const struct kv_miss *miss = &misses[i];
		const bool hidden = stranger && miss->cause > KV_CAUSE_UNSEEN &&
				    miss->cause != KV_CAUSE_OFFLINE;

		wire[i] = (struct wire_miss){
			.len = miss->key.len,
			.cause = hidden ? KV_CAUSE_ROOM : miss->cause,
			.since = stranger ? 0 : miss->since,
			.idle = stranger ? 0 : miss->idle,
			.place = miss->place,
			.n = miss->n,
			.asked_ns = miss->asked_ns,
			.next = at,
		};
		memcpy(wire[i].key, miss->key.b, sizeof(wire[i].key));
	}
	kv_reply(client, m->header, 0, (uint32_t)n, n * sizeof(*wire));
	return 0;
}

int kv_request_evict(struct kv_client *client, const struct kv_message *m)
{
	struct kv_server *server = client->server;
	struct wire_status *statuses = kv_reply_items(server);
	struct kv_block *block;
	uint32_t n = m->header->count;
	int r;

	if (m->header->type == WIRE_PIN && m->header->arg > 1)
		return -EPROTO;
	for (uint32_t i = 0; i < n; i++) {
		r = kv_block_get(server->cache, m->space, &server->keys[i],
				 &block);
		if (r == 0) {
			r = m->header->type == WIRE_EVICT
				    ? kv_block_remove(server->cache, block)
				    : kv_block_pin(server->cache, block,
						   m->header->arg == 1);
			kv_block_put(server->cache, block);
		}
		statuses[i].status = r;
	}
	kv_reply(client, m->header, 0, n, n * sizeof(*statuses));
	return 0;
}

int kv_request_ended(struct kv_client *client, const struct kv_message *m)
{
	kv_blocks_ended(client->server->cache, m->space, client->server->keys,
			m->header->count);
	return 0;
}

int kv_request_stats(struct kv_client *client, const struct kv_message *m)
{
	const uint64_t of = m->header->arg >> WIRE_TEXT_BITS;
	const struct kv_caller *caller = &client->caller;
	struct kv_server *server = client->server;
	const size_t room = WIRE_MAX - sizeof(struct wire_header);
	_cleanup_(kv_freep) char *text = NULL;
	char *reply = kv_reply_items(server);
	uint32_t id = (uint32_t)of;
	size_t n, head = 0;

	if (of > UINT32_MAX)
		return -EINVAL;
	switch ((enum wire_text)(m->header->arg & 0xff)) {
	case WIRE_TEXT_STATS:
		text = kv_stats_text(server->cache);
		break;
	case WIRE_TEXT_CONFIG:
		text = server->config ? server->config(server->config_arg)
				      : NULL;
		break;
	case WIRE_TEXT_METRICS:
		text = kv_metrics_text(server->cache, &server->tally,
				       server->rules, NULL);
		break;
	case WIRE_TEXT_SPACES:
		text = kv_spaces_text(server->cache, server->rules, caller, &id,
				      room - TEXT_SPARE);
		head = (size_t)sprintf(reply, "%u\n", id);
		break;
	case WIRE_TEXT_USER:
		if (id != caller->uid &&
		    !kv_rules_operator(server->rules, caller->uid))
			return -EACCES;
		text = kv_tenant_text(server->cache, id);
		break;
	default:
		return -EINVAL;
	}
	if (!text)
		return -ENOMEM;
	n = KV_MIN(strlen(text), room - head);
	memcpy(reply + head, text, n);
	n += head;
	kv_reply(client, m->header, 0, (uint32_t)n, n);
	return 0;
}

int kv_request_cancel(struct kv_client *client, const struct kv_message *m)
{
	struct kv_request *request = kv_request_find(client, m->header->tag);

	/* The tag of a CANCEL is unknown if its request was answered before. */
	if (request && request->pending)
		kv_wait_cancel(&request->wait, -ECANCELED);
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

/* If memory is short, the client gets no open segments for its GPU. */
int kv_request_registers(struct kv_client *client, const struct kv_message *m)
{
	(void)m;
	if (!client->registers)
		client->registers =
			kv_registrants_count(client->server->cache,
					     client->caller.uid, 1) == 0;
	return 0;
}

/* ---- clear a space, in parts between which saves are possible ---- */

struct clear {
	struct kv_request request; /* first */
	struct kv_clear *clear;
};

static int clear_run(struct kv_wait *wait)
{
	struct clear *clear = (struct clear *)wait;

	return kv_clear_some(clear->request.server->cache, clear->clear);
}

static void clear_fini(struct kv_wait *wait)
{
	kv_clear_end(((struct clear *)wait)->clear);
}

static const struct kv_request_kind clear_kind = {
	{.run = clear_run, .fini = clear_fini}};

int kv_request_clear(struct kv_client *client, const struct kv_message *m)
{
	struct clear *clear;
	int r = kv_request_new(client, m, &clear_kind, sizeof(*clear), &clear);

	if (r == 0)
		r = kv_clear_begin(client->server->cache, m->space,
				   &clear->clear);
	if (r == 0)
		kv_request_run(&clear->request);
	return r;
}

/* ---- leases ---- */

struct acquire {
	struct kv_request request; /* first */
	bool at_once;		   /* the acquire has settled without a wait */
	struct kv_acquire leases; /* last member; ends with an array of wants */
};

static void acquired(struct kv_acquire *leases, void *arg)
{
	struct kv_wait *wait = arg;

	(void)leases;
	wait->done(wait);
}

static void acquire_cancel(struct kv_wait *wait, int status)
{
	struct acquire *acquire = (struct acquire *)wait;

	kv_acquire_cancel(acquire->request.server->cache, &acquire->leases,
			  status);
}

static int acquire_finish(struct kv_request *request)
{
	struct acquire *acquire = (struct acquire *)request;
	struct kv_client *client = request->client;
	struct wire_place *places = kv_reply_items(request->server);
	size_t n = acquire->leases.n, arrived = n, leased = 0, missed = n;
	const bool from = request->header.flags & WIRE_FROM;

	if (!acquire->at_once)
		arrived = kv_acquire_take(request->server->cache,
					  &acquire->leases);
	for (size_t i = 0; i < n; i++) {
		const struct kv_want *want = &acquire->leases.wants[i];
		int r = i < arrived ? want->status : -EINPROGRESS;

		if (r == 0)
			r = kv_client_give_segment(client, want->segment);
		places[i] = r < 0 ? (struct wire_place){.status = r}
				  : (struct wire_place){
					    .segment = want->segment,
					    .offset = want->offset,
					    .length = want->length,
					    .payload = (uint32_t)want->payload,
					    .from = from ? want->from : 0u};
		leased += r >= 0;
		if (r == -ENOENT && missed == n)
			missed = i;
	}
	kv_reply(client, &request->header, arrived < n ? WIRE_MORE : 0,
		 (uint32_t)n, n * sizeof(*places));
	if (arrived < n) { /* a partial reply: pend until the same deadline */
		uint64_t now = kv_now_ns(), at = request->deadline.at_ns;

		request->shown = true;
		kv_request_pend(request, request->header.arg
						 ? KV_MAX(at, now + 1) - now
						 : 0);
		return 0;
	}
	if (missed < n && !acquire->leases.again)
		kv_missed(request->server->cache, request->wait.space,
			  client->caller.uid,
			  &acquire->leases.wants[missed].key, missed, n);
	kv_server_time(request->server, &request->server->tally.acquire_times,
		       request->came_ns);
	if (acquire->at_once) /* count uses only after the reply */
		kv_acquire_touch(request->server->cache, &acquire->leases);
	request->release |= leased == 0;
	return 0;
}

static const struct kv_request_kind acquire_kind = {{.cancel = acquire_cancel},
						    acquire_finish};

static void acquire_submit(struct kv_client *client, const struct kv_message *m,
			   struct acquire *acquire)
{
	struct kv_acquire *leases = &acquire->leases;
	const size_t n = m->header->count;

	leases->space = m->space;
	leases->n = n;
	leases->uid = client->caller.uid;
	leases->more = n == WIRE_BATCH;
	leases->part = m->header->flags & WIRE_PARTS ? PART_BYTES : 0;
	leases->done = acquired;
	leases->arg = acquire;
	for (size_t i = 0; i < n; i++)
		leases->wants[i].key = client->server->keys[i];
	acquire->at_once =
		kv_acquire_submit(client->server->cache, leases) == 0;
	if (acquire->at_once)
		kv_request_answer(&acquire->request);
	else
		kv_request_pend(&acquire->request, m->header->arg);
}

int kv_request_acquire(struct kv_client *client, const struct kv_message *m)
{
	const uint16_t flags = m->header->flags;
	const size_t n = m->header->count;
	struct kv_acquire *leases;
	struct acquire *acquire;
	int r;

	r = kv_request_new(client, m, &acquire_kind,
			   sizeof(*acquire) + n * sizeof(struct kv_want),
			   &acquire);
	if (r == 0)
		r = kv_request_lease(&acquire->request, n);
	if (r < 0)
		return r;
	leases = acquire->request.acquire = &acquire->leases;
	leases->wait_saving = flags & WIRE_WAIT_SAVING;
	leases->again = flags & WIRE_AGAIN;
	leases->resident = flags & WIRE_RESIDENT;
	leases->wait_room = leases->remote = !leases->resident;
	acquire_submit(client, m, acquire);
	return 0;
}

int kv_request_release(struct kv_client *client, const struct kv_message *m)
{
	struct kv_request *request = kv_request_find(client, m->header->tag);

	if (!request) {
		/* An acquire that leased no block was freed with its reply. */
		client->server->tally.stray_releases++;
		return m->header->tag <= client->last_acquire ? 0 : -EPROTO;
	}
	if (!request->acquire)
		return -EPROTO;
	if (!request->pending) {
		kv_request_end(request, false);
		return 0;
	}
	request->release = true;
	return kv_request_cancel(client, m);
}

/* ---- flush: wait until a space, or some of its blocks, are durable ----
 *
 * First wait for saves of these blocks that are in flight, for two seconds at most, as the
 * saving client may be stopped. */

#define SEALING_NS UINT64_C(2000000000)

struct flush {
	struct kv_request request; /* first */
	struct kv_flush flush;
	bool submitted;
	struct kv_acquire sealing; /* last member; ends with the keys' wants */
};

static void flushed(struct kv_flush *flush, int status)
{
	kv_wait_end(flush->arg, status);
}

/* Return the status of one block.  A durable block counts as flushed, even if the
 * flush of the whole space failed. */
static int outcome(struct flush *flush, const struct kv_want *want)
{
	struct kv_cache *cache = flush->request.server->cache;
	struct kv_space *space = flush->request.wait.space;
	const int status = flush->request.wait.status;
	const struct kv_key *key = &want->key;
	struct kv_block *block;
	bool durable;
	int r;

	r = kv_block_get(cache, space, key, &block);
	if (r == 0) {
		durable = kv_block_stat(cache, block).durable;
		kv_block_put(cache, block);
		if (durable)
			return 0;
		/* The block was durable; its SSD copy is gone, and only its copy
		 * in DRAM is left. */
		if (status == 0 && want->status == 0)
			return WIRE_EVICTED;
		/* The block was removed and saved again during the flush. */
		r = status < 0 ? status : -ENOENT;
	}
	if (r != -ENOENT)
		return r;
	r = kv_block_past(cache, space, key);
	return r > 0 ? WIRE_EVICTED : r < 0 ? r : -ENOENT;
}

static void flush_submit(struct flush *flush)
{
	struct kv_request *request = &flush->request;

	flush->submitted = true;
	kv_flush_submit(request->server->cache, request->wait.space,
			&flush->flush);
	/* flushed() may have posted mail already: this thread runs it later. */
	kv_request_pend(request, request->header.arg);
}

static int flush_finish(struct kv_request *request)
{
	struct flush *flush = (struct flush *)request;
	struct wire_status *statuses = kv_reply_items(request->server);
	uint32_t n = request->header.count;

	if (!flush->submitted && request->wait.status == 0) {
		flush_submit(flush);
		return 0;
	}
	for (uint32_t i = 0; i < n; i++)
		statuses[i].status = outcome(flush, &flush->sealing.wants[i]);
	kv_reply(request->client, &request->header,
		 n > 0 ? 0 : request->wait.status, n, n * sizeof(*statuses));
	return 0;
}

static void flush_cancel(struct kv_wait *wait, int status)
{
	struct flush *flush = (struct flush *)wait;
	struct kv_cache *cache = flush->request.server->cache;

	if (flush->submitted) {
		kv_flush_cancel(cache, &flush->flush, status);
		return;
	}
	/* After SEALING_NS, report blocks that are not sealed as absent, and
	 * flush the others. */
	if (status != -ETIMEDOUT)
		wait->status = status;
	kv_acquire_cancel(cache, &flush->sealing, -ENOENT);
}

static const struct kv_request_kind flush_kind = {{.cancel = flush_cancel},
						  flush_finish};

int kv_request_flush(struct kv_client *client, const struct kv_message *m)
{
	struct kv_server *server = client->server;
	size_t n = m->header->count;
	struct flush *flush;
	int r;

	r = kv_request_new(client, m, &flush_kind,
			   sizeof(*flush) + n * sizeof(struct kv_want), &flush);
	if (r < 0)
		return r;
	flush->flush.done = flushed;
	flush->flush.arg = flush;
	flush->flush.each = n > 0;
	flush->sealing.space = m->space;
	flush->sealing.n = n;
	flush->sealing.wait_saving = flush->sealing.sealed = true;
	flush->sealing.done = acquired;
	flush->sealing.arg = flush;
	for (size_t i = 0; i < n; i++)
		flush->sealing.wants[i].key = server->keys[i];
	if (kv_acquire_submit(server->cache, &flush->sealing) > 0)
		kv_request_pend(&flush->request, SEALING_NS);
	else
		flush_submit(flush);
	return 0;
}

/* ---- prefetch: an acquire that leases nothing ---- */

static int prefetch_finish(struct kv_request *request)
{
	const struct acquire *prefetch = (struct acquire *)request;
	struct wire_status *statuses = kv_reply_items(request->server);
	uint32_t n = (uint32_t)prefetch->leases.n;

	for (uint32_t i = 0; i < n; i++)
		statuses[i].status = prefetch->leases.wants[i].status;
	kv_reply(request->client, &request->header, 0, n,
		 n * sizeof(*statuses));
	return 0;
}

static const struct kv_request_kind prefetch_kind = {{.cancel = acquire_cancel},
						     prefetch_finish};

int kv_request_prefetch(struct kv_client *client, const struct kv_message *m)
{
	const size_t n = m->header->count;
	struct acquire *prefetch;
	uint8_t states[WIRE_AHEAD_MIN];
	int r = 0;

	/* Unless the first blocks are in DRAM, prefetching the others is of
	 * little use. */
	if (m->header->flags & WIRE_AHEAD) {
		r = n < WIRE_AHEAD_MIN ? -EAGAIN : 0;
		if (r == 0)
			kv_probe(client->server->cache, m->space,
				 client->server->keys, WIRE_AHEAD_MIN, states);
		for (size_t i = 0; r == 0 && i < WIRE_AHEAD_MIN; i++)
			r = states[i] == KV_DRAM ? 0 : -EAGAIN;
	}
	if (r == 0)
		r = kv_request_new(client, m, &prefetch_kind,
				   sizeof(*prefetch) +
					   n * sizeof(struct kv_want),
				   &prefetch);
	if (r < 0)
		return r;
	prefetch->leases.hint = prefetch->leases.remote = true;
	acquire_submit(client, m, prefetch);
	return 0;
}

/* ---- forget: remove blocks here and from the backend ---- */

struct forget {
	struct kv_request request; /* first */
	struct kv_forget forget;   /* last member: an array of keys follows */
};

static void forgotten(struct kv_forget *forget)
{
	kv_wait_end(forget->arg, 0);
}

static int forget_finish(struct kv_request *request)
{
	const struct forget *forget = (struct forget *)request;
	const struct kv_forget *of = &forget->forget;
	struct wire_forgot *item = kv_reply_items(request->server);
	struct kv_remote_stats stats = {0};

	(void)kv_remote_stats(request->server->cache, &stats);
	*item = (struct wire_forgot){
		.removed = (uint32_t)of->removed,
		.absent = (uint32_t)of->absent,
		.failed = (uint32_t)of->failed,
		.status = of->status,
	};
	snprintf(item->url, sizeof(item->url), "%s",
		 stats.url ? stats.url : "");
	snprintf(item->why, sizeof(item->why), "%.111s", of->why);
	kv_reply(request->client, &request->header, 0, 1, sizeof(*item));
	return 0;
}

static void forget_cancel(struct kv_wait *wait, int status)
{
	struct forget *forget = (struct forget *)wait;

	(void)status;
	kv_forget_cancel(forget->request.server->cache, &forget->forget);
}

static const struct kv_request_kind forget_kind = {{.cancel = forget_cancel},
						   forget_finish};

int kv_request_forget(struct kv_client *client, const struct kv_message *m)
{
	struct kv_server *server = client->server;
	const size_t n = m->header->count;
	struct forget *forget;
	int r = kv_request_new(client, m, &forget_kind,
			       sizeof(*forget) + n * sizeof(struct kv_key),
			       &forget);

	if (r < 0)
		return r;
	forget->forget.space = m->space;
	forget->forget.done = forgotten;
	forget->forget.arg = forget;
	forget->forget.n = n;
	memcpy(forget->forget.keys, server->keys, n * sizeof(struct kv_key));
	r = kv_forget_submit(server->cache, &forget->forget,
			     KV_MIN(m->header->arg, WIRE_FORGET_NS));
	if (r == 0)
		kv_request_pend(&forget->request, 0);
	return r;
}

/* ---- token ids and listings: from the index, or from the blocks ---- */

#define ROOM (WIRE_MAX - sizeof(struct wire_header))
#define TURN_NS 20000000u /* ns after which an incomplete reply is sent */

struct details {
	struct kv_request request; /* first */
	uint32_t n, done;	   /* keys */
	size_t bytes;		   /* length of the reply so far */
	struct kv_key *keys;
	uint8_t reply[ROOM];
};

_Static_assert(sizeof(struct wire_tokens) - offsetof(struct wire_tokens, n) ==
		       sizeof(struct kv_token_ids),
	       "the numbers are those of kv_token_ids");
_Static_assert(sizeof(struct wire_tokens) + KV_TOKEN_IDS_MAX * 4 +
			       KV_EXTRAS_MAX + 8 <=
		       ROOM,
	       "any block fits");

/* Add a block's token ids to the reply.  Returns false if there is no room. */
static bool add_tokens(struct details *t, const struct kv_key *key)
{
	struct kv_cache *cache = t->request.server->cache;
	_cleanup_(kv_freep) struct kv_token_ids *ids = NULL;
	const size_t head = offsetof(struct wire_tokens, n);
	struct wire_tokens tokens = {0};
	struct kv_meta meta = {0};
	struct kv_block *block;
	size_t more;
	int r = kv_block_get(cache, t->request.wait.space, key, &block);

	if (r == 0) {
		r = kv_block_get_token_ids(cache, block, &meta, &ids);
		kv_block_put(cache, block);
		if (r == -ETIMEDOUT) /* the SSD did not answer in time */
			r = -EIO;
		if (r == -EBADMSG)
			r = -ENOENT;
	}
	more = ids ? kv_token_ids_bytes(ids->n, ids->extras_len)
		   : sizeof(struct kv_token_ids);
	tokens.status = r;
	tokens.bytes = (uint32_t)kv_round_up(head + more, 8);
	if (tokens.bytes > ROOM - t->bytes)
		return false;
	tokens.parent_len = meta.parent.len;
	memcpy(tokens.parent, meta.parent.b, sizeof(tokens.parent));
	tokens.position = meta.position;
	memset(t->reply + t->bytes, 0, tokens.bytes);
	memcpy(t->reply + t->bytes, &tokens, head);
	if (ids)
		memcpy(t->reply + t->bytes + head, ids, more);
	t->bytes += tokens.bytes;
	return true;
}

static int token_ids_run(struct kv_wait *wait)
{
	struct details *t = (struct details *)wait;
	const uint64_t until = kv_now_ns() + TURN_NS;

	while (t->done < t->n && (t->done == 0 || kv_now_ns() < until) &&
	       add_tokens(t, &t->keys[t->done]))
		t->done++;
	return 0;
}

static int details_finish(struct kv_request *request)
{
	const struct details *t = (struct details *)request;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	struct kv_space_info info;
	int r = request->wait.status;

	if (r == 0) /* the client may have lost its right meanwhile */
		r = kv_client_space(request->client, request->header.space,
				    R_OK | X_OK, &space, &info);
	if (r < 0)
		return r == -EACCES ? -ENOENT : r;
	memcpy(kv_reply_items(request->server), t->reply, t->bytes);
	kv_reply(request->client, &request->header, 0, (uint32_t)t->bytes,
		 t->bytes);
	return 0;
}

static const struct kv_request_kind token_ids_kind = {
	{.run = token_ids_run, .cancel = kv_wait_withdraw}, details_finish};

int kv_request_token_ids(struct kv_client *client, const struct kv_message *m)
{
	const uint32_t n = m->header->count;
	const size_t keys = n * sizeof(struct kv_key);
	struct details *t;
	int r;

	if (!m->info.layout || !m->info.layout->token_ids)
		return -EINVAL;
	r = kv_request_new(client, m, &token_ids_kind, sizeof(*t) + keys, &t);
	if (r < 0)
		return r;
	t->n = n;
	t->keys = (struct kv_key *)(t + 1);
	memcpy(t->keys, client->server->keys, keys);
	kv_request_run(&t->request);
	return 0;
}

#define LIST_AT_ONCE 64u
#define LIST_NS 2000000u /* ns after which a reply that is not full is sent */

_Static_assert(sizeof(struct wire_list) +
			       WIRE_BATCH * sizeof(struct wire_entry) <=
		       ROOM,
	       "a full listing fits");

static struct wire_entry entry_of(const struct kv_listed *block)
{
	const struct kv_block_info *info = &block->info;
	const struct kv_meta *meta = &block->meta;
	struct wire_entry entry = {.len = info->key.len,
				   .parent_len = meta->parent.len,
				   .position = meta->position,
				   .tokens = meta->tokens,
				   .bytes_dram = info->held - info->ssd,
				   .bytes_ssd = info->ssd,
				   .used = info->atime_ns / 1000000000,
				   .hits = info->hits,
				   .pinned = info->pinned,
				   .id = info->id,
				   .parent_id = block->parent_id};

	memcpy(entry.key, info->key.b, sizeof(entry.key));
	memcpy(entry.parent, meta->parent.b, sizeof(entry.parent));
	return entry;
}

static int list_run(struct kv_wait *wait)
{
	struct details *list = (struct details *)wait;
	struct wire_list *head = (struct wire_list *)list->reply;
	struct wire_entry *entry = (struct wire_entry *)(head + 1);
	const uint64_t until = kv_now_ns() + LIST_NS;
	struct kv_listed blocks[LIST_AT_ONCE];
	size_t n;

	do {
		n = kv_space_list(list->request.server->cache, wait->space,
				  &head->cursor, blocks, LIST_AT_ONCE);
		for (size_t i = 0; i < n; i++)
			*entry++ = entry_of(&blocks[i]);
		list->done += (uint32_t)n;
	} while (head->cursor != 0 && list->n - list->done >= LIST_AT_ONCE &&
		 kv_now_ns() < until);
	list->bytes = sizeof(*head) + list->done * sizeof(*entry);
	return 0;
}

static const struct kv_request_kind list_kind = {
	{.run = list_run, .cancel = kv_wait_withdraw}, details_finish};

int kv_request_list(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_list *asked = m->items;
	struct kv_server *server = client->server;
	struct wire_list *reply = kv_reply_items(server);
	struct wire_key *keys = (struct wire_key *)(reply + 1);
	uint64_t cursor = asked->cursor;
	struct details *list;
	size_t n;
	int r;

	if (asked->max < 64 || asked->max > WIRE_BATCH || asked->lost != 0)
		return -EINVAL;
	if (m->header->flags & WIRE_DETAILS) {
		r = kv_request_new(client, m, &list_kind, sizeof(*list), &list);
		if (r < 0)
			return r;
		list->n = asked->max;
		memcpy(list->reply, asked, sizeof(*asked));
		kv_request_run(&list->request);
		return 0;
	}
	n = kv_space_keys(server->cache, m->space, false, &cursor, server->keys,
			  asked->max);
	*reply = (struct wire_list){.cursor = cursor};
	memset(keys, 0, n * sizeof(*keys));
	for (size_t i = 0; i < n; i++) {
		memcpy(keys[i].key, server->keys[i].b, server->keys[i].len);
		keys[i].len = server->keys[i].len;
	}
	kv_reply(client, m->header, 0, (uint32_t)n,
		 sizeof(*reply) + n * sizeof(*keys));
	return 0;
}

/* ---- changes of a space: sent to a client that asks, so that none is waited for ---- */

#define LINGER_NS 5000000u /* after the first change, wait for more */

/* A feed that the client holds until it ends; charged to its user. */
struct kv_subscription {
	struct kv_subscription *next;
	uint32_t space;
	struct kv_feed *feed;
};

struct changes {
	struct kv_request request; /* first */
	struct kv_feed_wait news;
	struct kv_feed *feed;
	struct wire_list asked;
	bool begun, lingers;
};

void kv_subscriptions_drop(struct kv_client *client)
{
	struct kv_subscription *s;

	while ((s = client->subscriptions)) {
		client->subscriptions = s->next;
		kv_feed_put(client->server->cache, s->feed);
		kv_account_credit(client->account, KV_FINITE_MEMORY,
				  kv_feed_bytes);
		free(s);
	}
}

static int subscribe(struct kv_client *client, const struct kv_message *m,
		     struct kv_feed **ret_feed)
{
	struct kv_subscription *s = client->subscriptions;
	int r;

	while (s && s->space != m->header->space)
		s = s->next;
	if (s) {
		*ret_feed = s->feed;
		return 0;
	}
	r = kv_account_charge(client->account, KV_FINITE_MEMORY, kv_feed_bytes);
	if (r < 0)
		return r;
	s = calloc(1, sizeof(*s));
	r = s ? kv_feed_get(client->server->cache, m->space, &s->feed)
	      : -ENOMEM;
	if (r < 0) {
		kv_account_credit(client->account, KV_FINITE_MEMORY,
				  kv_feed_bytes);
		free(s);
		return r;
	}
	s->space = m->header->space;
	s->next = client->subscriptions;
	client->subscriptions = s;
	*ret_feed = s->feed;
	return 0;
}

static void changed(struct kv_feed_wait *news)
{
	kv_wait_end(&kv_container(news, struct changes, news)->request.wait, 0);
}

static void changes_cancel(struct kv_wait *wait, int status)
{
	struct changes *changes = (struct changes *)wait;
	const bool waits =
		kv_feed_forget(changes->request.server->cache, &changes->news);

	if (!waits && !changes->lingers)
		return;
	changes->lingers = false;
	kv_wait_end(wait, status);
}

static int changes_finish(struct kv_request *request)
{
	struct changes *changes = (struct changes *)request;
	struct kv_server *server = request->server;
	struct wire_list *head = kv_reply_items(server);
	struct wire_entry *entries = (struct wire_entry *)(head + 1);
	const bool waits = !changes->begun && request->header.arg > 0;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	const int status = request->wait.status;
	struct kv_space_info info;
	struct kv_listed block;
	long n;
	int r;

	r = kv_client_space(request->client, request->header.space, R_OK | X_OK,
			    &space, &info);
	if (r == 0 && status < 0 && status != -ETIMEDOUT)
		r = status;
	if (r < 0)
		return r == -EACCES ? -ENOENT : r;
	if (changes->begun && status == 0) {
		changes->lingers = true;
		kv_request_pend(request, LINGER_NS);
		return 0;
	}
	n = kv_feed_read(server->cache, changes->feed, &changes->asked.cursor,
			 server->keys, changes->asked.max,
			 waits ? &changes->news : NULL);
	if (n == 0 && waits) {
		changes->begun = true;
		kv_request_pend(request, request->header.arg);
		return 0;
	}
	*head = (struct wire_list){.cursor = changes->asked.cursor,
				   .lost = n < 0};
	for (long i = 0; i < n; i++) {
		kv_block_describe(server->cache, space, &server->keys[i],
				  &block);
		entries[i] = entry_of(&block);
	}
	n = (long)sizeof(*head) + KV_MAX(n, 0) * (long)sizeof(*entries);
	kv_reply(request->client, &request->header, 0, (uint32_t)n, (size_t)n);
	return 0;
}

static const struct kv_request_kind changes_kind = {{.cancel = changes_cancel},
						    changes_finish};

int kv_request_changes(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_list *asked = m->items;
	struct changes *changes;
	struct kv_feed *feed;
	int r;

	if (asked->max == 0 || asked->max > WIRE_BATCH || asked->lost != 0)
		return -EINVAL;
	r = subscribe(client, m, &feed);
	if (r == 0)
		r = kv_request_new(client, m, &changes_kind, sizeof(*changes),
				   &changes);
	if (r < 0)
		return r;
	changes->feed = feed;
	changes->asked = *asked;
	changes->news.done = changed;
	kv_request_answer(&changes->request);
	return 0;
}
