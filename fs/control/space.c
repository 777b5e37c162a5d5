/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.c - WIRE_SPACE: find a space by name, make it, give it a
 * layout; WIRE_LIST: what is in it; WIRE_SPACE_REMOVE: take it away.
 *
 * OWNS      the texts of each request.
 *
 * STATES    of a request that brings a layout: the control thread looks up the
 *           space and the caller's rights (begin), an ingest thread does what
 *           waits for the disk (work), the control thread replies (finish).  If
 *           somebody else made the space in between it begins again.
 *
 * LOCKING   none: a request belongs to one thread at a time.
 */
#include "fs/control/chore.h"
#include "fs/control/request.h"

struct opening {
	struct kv_chore chore;	 /* first; without a space: to be made */
	struct kv_caller caller; /* its groups are not used */
	uint32_t flags, mode;
	bool sharing; /* somebody else's will do */
	bool again;   /* somebody else made it meanwhile */
	size_t json_len;
	const char *json; /* in text; json_len 0: none was given */
	char text[];	  /* the name, a NUL, the JSON */
};

static void reply(struct kv_client *client, const struct wire_header *header,
		  struct kv_space *space)
{
	struct kv_space_info info = kv_space_stat(client->server->cache, space);
	const struct kv_rules *rules = client->server->rules;
	const struct kv_layout *layout = info.layout;
	struct wire_space *out = kv_reply_items(client->server);
	const char *name = kv_space_name(space);
	size_t name_len = strlen(name) + 1;
	size_t json_len = layout ? strlen(layout->json) : 0;
	char *text = (char *)(out + 1);

	if (sizeof(*header) + sizeof(*out) + name_len + json_len > WIRE_MAX) {
		kv_reply_all(client, header, -EFBIG);
		return;
	}
	*out = (struct wire_space){
		.id = info.id,
		.mode = info.mode & 0777,
		.writable = kv_access_ok(rules, &info, &client->caller,
					 W_OK | X_OK),
		.uid = info.uid,
		.gid = info.gid,
		.payload = layout ? layout->payload : 0,
		.header = layout ? kv_block_header_bytes(layout) : 0,
	};
	memcpy(text, name, name_len);
	if (layout)
		memcpy(text + name_len, layout->json, json_len);
	kv_reply(client, header, 0, (uint32_t)(name_len + json_len),
		 sizeof(*out) + name_len + json_len);
}

/* The first to make a name owns what is read and saved under it. */
static bool may_share(const struct kv_rules *rules, const struct opening *o,
		      const struct kv_space_info *info)
{
	return o->sharing || info->uid == o->caller.uid ||
	       kv_rules_operator(rules, info->uid);
}

/* 1: there is work for an ingest thread; 0 or an error: reply with it. */
static int begin(struct kv_client *client, struct opening *o)
{
	const struct kv_rules *rules = client->server->rules;
	struct kv_cache *cache = client->server->cache;
	struct kv_space_info info;

	o->again = false;
	kv_space_put(o->chore.request.space);
	o->chore.request.space = kv_space_find(cache, o->text);
	if (!o->chore.request.space) {
		if (!(o->flags & WIRE_SPACE_CREATE))
			return -ENOENT;
		return kv_rules_may_make(rules, &client->caller) ? 1 : -EACCES;
	}
	info = kv_space_stat(cache, o->chore.request.space);
	if (!kv_access_ok(rules, &info, &client->caller, R_OK | X_OK) ||
	    !may_share(rules, o, &info))
		return -EACCES;
	if (o->json_len == 0)
		return 0;
	if (!info.layout &&
	    !kv_access_ok(rules, &info, &client->caller, W_OK | X_OK))
		return -EACCES;
	return 1;
}

static int create(struct kv_cache *cache, struct opening *o)
{
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	struct kv_layout *layout;
	int r;

	/* First, so that a bad one leaves no space behind. */
	if (o->json_len) {
		r = kv_layout_parse(o->json, o->json_len, &layout);
		if (r < 0)
			return r;
		kv_layout_free(layout);
	}
	r = kv_account_pace(o->chore.request.account);
	if (r < 0)
		return r;
	r = kv_space_create(cache, o->text, o->caller.uid, o->caller.gid,
			    o->mode, &space);
	if (r == -EEXIST)
		o->again = true;
	if (r < 0 || o->json_len == 0)
		return r;
	r = kv_space_set_layout(cache, space, o->caller.uid, o->json,
				o->json_len);
	if (r < 0)
		(void)kv_space_remove(cache, space);
	return r;
}

/* Where somebody else said what the model is, one that is left out counts as
 * empty: the same tensors may be another model's. */
static int same_model(const struct kv_layout *layout, const struct opening *o)
{
	_cleanup_(kv_layout_freep) struct kv_layout *own = NULL;
	int r = kv_layout_parse(o->json, o->json_len, &own);

	if (r < 0)
		return r;
	return layout->fingerprint_len == own->fingerprint_len &&
	       memcmp(layout->fingerprint, own->fingerprint,
		      own->fingerprint_len) == 0;
}

static int agree(struct kv_cache *cache, struct opening *o)
{
	const struct kv_space_info info =
		kv_space_stat(cache, o->chore.request.space);
	const struct kv_layout *layout = info.layout;
	int r;

	if (!layout)
		return kv_space_set_layout(cache, o->chore.request.space,
					   o->caller.uid, o->json, o->json_len);
	r = kv_layout_agrees(layout, o->json, o->json_len);
	if (r == 1 && (o->flags & WIRE_SPACE_CREATE) &&
	    info.uid != o->caller.uid)
		r = same_model(layout, o);
	if (r < 0)
		return r;
	return r ? 0 : -EEXIST;
}

static int work(struct kv_chore *chore)
{
	struct opening *o = (struct opening *)chore;
	struct kv_cache *cache = chore->request.server->cache;

	return chore->request.space ? agree(cache, o) : create(cache, o);
}

/* Begin, or begin again; replies and frees when there is nothing to wait for.
 */
static void go_on(struct opening *o)
{
	struct kv_client *client = o->chore.request.client;
	int r = begin(client, o);

	if (r == 1) {
		kv_chore_begin(&o->chore, work);
		return;
	}
	if (r == 0)
		reply(client, &o->chore.request.header, o->chore.request.space);
	else
		kv_reply_all(client, &o->chore.request.header, r);
	kv_request_free(&o->chore.request);
}

static void finish(struct kv_request *request)
{
	struct opening *o = (struct opening *)request;

	if (request->client && o->again) {
		go_on(o);
		return;
	}
	if (request->client && o->chore.status == 0) {
		/* The layout is there now; only the reply is left. */
		o->json_len = 0;
		o->flags = 0;
		go_on(o);
		return;
	}
	if (request->client)
		kv_reply_all(request->client, &request->header,
			     o->chore.status);
	kv_request_free(request);
}

static const struct kv_request_kind kind = {finish, kv_chore_cancel, NULL};

int kv_request_space(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_space *wire = m->items;
	const char *text = (const char *)(wire + 1);
	size_t n = m->header->count, name_len = strnlen(text, n);
	struct opening *o;
	int r;

	r = name_len == 0 || name_len == n || name_len > KV_SPACE_NAME_MAX ||
			    (wire->flags &
			     ~(WIRE_SPACE_CREATE | WIRE_SPACE_SHARED))
		    ? -EINVAL
		    : kv_request_new(client, m->header, &kind, sizeof(*o) + n,
				     &o);
	if (r < 0) {
		kv_reply_all(client, m->header, r);
		return 0;
	}
	o->caller = client->caller;
	o->flags = wire->flags;
	o->sharing = !(o->flags & WIRE_SPACE_CREATE) ||
		     (o->flags & WIRE_SPACE_SHARED);
	o->mode = wire->mode & 0777 ? wire->mode & 0777 : 0700;
	memcpy(o->text, text, n);
	o->json = o->text + name_len + 1;
	o->json_len = n - name_len - 1;
	go_on(o);
	return 0;
}

/* ---- what is in it ---- */

int kv_request_list(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_list *asked = m->items;
	struct kv_server *server = client->server;
	struct wire_list *reply = kv_reply_items(server);
	struct wire_key *keys = (struct wire_key *)(reply + 1);
	uint64_t cursor = asked->cursor;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	struct kv_space_info info;
	size_t n;
	int r;

	r = kv_client_space(client, m->header->space, R_OK | X_OK, &space,
			    &info);
	if (r == 0 && (asked->max < 64 || asked->max > WIRE_BATCH ||
		       asked->reserved != 0))
		r = -EINVAL;
	if (r < 0) {
		kv_reply(client, m->header, r == -EACCES ? -ENOENT : r, 0, 0);
		return 0;
	}
	n = kv_space_keys(server->cache, space, &cursor, server->keys,
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

/* ---- taking it away ---- */

static int remove_space(struct kv_chore *chore)
{
	struct kv_request *request = &chore->request;

	return kv_space_remove(request->server->cache, request->space);
}

static void removal_finish(struct kv_request *request)
{
	int r = ((struct kv_chore *)request)->status;

	if (request->client)
		kv_reply(request->client, &request->header,
			 r == -ESTALE ? -ENOENT : r, 0, 0);
	kv_request_free(request);
}

static const struct kv_request_kind removal_kind = {removal_finish,
						    kv_chore_cancel, NULL};

/* Its owner may, and operators, as rmdir has it. */
int kv_request_space_remove(struct kv_client *client,
			    const struct kv_message *m)
{
	const struct kv_rules *rules = client->server->rules;
	struct kv_chore *removal = NULL;
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	int r;

	r = kv_client_space(client, m->header->space, 0, &space, &info);
	if (r == 0 && client->caller.uid != info.uid &&
	    !kv_rules_operator(rules, client->caller.uid))
		r = -EACCES;
	if (r == 0)
		r = kv_request_new(client, m->header, &removal_kind,
				   sizeof(*removal), &removal);
	if (r < 0) {
		kv_reply(client, m->header, r, 0, 0);
		return 0;
	}
	removal->request.space = kv_steal(space);
	kv_chore_begin(removal, remove_space);
	return 0;
}
