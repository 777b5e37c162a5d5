/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.c - SPACE: find a space by name, make it, give it a layout; SPACE_REMOVE;
 * LIMIT: set a limit of a space or a user.
 *
 * OWNS      the texts of each request.
 *
 * STATES    of a request with a layout: the control thread looks up the space and checks
 *           the rights (begin), a worker makes the changes that wait for the disk
 *           (opening_run), the control thread replies (opening_finish).  If another
 *           client made the space in between, the request begins again.
 *
 * LOCKING   none: a request belongs to one thread at a time.
 */
#include "fs/control/server.h"

struct opening {
	/* first; request.wait.space is NULL if the space must be made */
	struct kv_request request;
	struct kv_caller caller; /* without groups */
	uint32_t flags, mode;
	bool sharing; /* the space may belong to another user */
	bool again; /* another client made the space: begin the request again */
	size_t json_len;
	/* the layout, in text; json_len 0: the client gave none */
	const char *json;
	char text[]; /* the space's name, a NUL, the JSON of the layout */
};

static int reply(struct kv_client *client, const struct wire_header *header,
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

	if (sizeof(*header) + sizeof(*out) + name_len + json_len > WIRE_MAX)
		return -EFBIG;
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
	return 0;
}

/* Check the client's rights.  Returns 1 if a worker must go on with the
 * request; 0 or an error: the status of the reply. */
static int begin(struct kv_client *client, struct opening *o)
{
	const struct kv_rules *rules = client->server->rules;
	struct kv_cache *cache = client->server->cache;
	struct kv_space_info info;

	o->again = false;
	kv_space_put(o->request.wait.space);
	o->request.wait.space = kv_space_find(cache, o->text);
	if (!o->request.wait.space) {
		if (!(o->flags & WIRE_SPACE_CREATE))
			return -ENOENT;
		return kv_rules_may_make(rules, &client->caller) ? 1 : -EACCES;
	}
	info = kv_space_stat(cache, o->request.wait.space);
	if (!kv_access_ok(rules, &info, &client->caller, R_OK | X_OK))
		return -EACCES;
	/* A space's owner controls blocks that this client reads and saves. */
	if (!o->sharing && info.uid != o->caller.uid &&
	    !kv_rules_operator(rules, info.uid))
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

	/* Check the layout first, so that a bad one leaves no space behind. */
	if (o->json_len) {
		r = kv_layout_parse(o->json, o->json_len, &layout);
		if (r < 0)
			return r;
		kv_layout_free(layout);
	}
	r = kv_account_pace(o->request.wait.account);
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

/* Give the space its layout, or check that it agrees with the space's own. */
static int agree(struct kv_cache *cache, struct opening *o)
{
	_cleanup_(kv_layout_freep) struct kv_layout *own = NULL;
	const struct kv_space_info info =
		kv_space_stat(cache, o->request.wait.space);
	const struct kv_layout *layout = info.layout;
	int r;

	if (!layout)
		return kv_space_set_layout(cache, o->request.wait.space,
					   o->caller.uid, o->json, o->json_len);
	r = kv_layout_agrees(layout, o->json, o->json_len);
	/* In another user's space a missing fingerprint counts as an empty one:
	 * the same tensors may be of another model. */
	if (r == 1 && (o->flags & WIRE_SPACE_CREATE) &&
	    info.uid != o->caller.uid) {
		r = kv_layout_parse(o->json, o->json_len, &own);
		if (r == 0)
			r = layout->fingerprint_len == own->fingerprint_len &&
			    memcmp(layout->fingerprint, own->fingerprint,
				   own->fingerprint_len) == 0;
	}
	if (r != 1)
		return r < 0 ? r : -EEXIST;
	/* The owner may declare later that the engine computes the keys. */
	if (info.own_seed && info.uid == o->caller.uid)
		r = kv_space_set_layout(cache, o->request.wait.space,
					o->caller.uid, o->json, o->json_len);
	return r == 1 || r == -EROFS ? 0 : r;
}

static int opening_run(struct kv_wait *wait)
{
	struct opening *o = (struct opening *)wait;
	struct kv_cache *cache = o->request.server->cache;

	return wait->space ? agree(cache, o) : create(cache, o);
}

/* Begin a request, or begin it again; reply unless a worker continues it. */
static int go_on(struct opening *o)
{
	struct kv_client *client = o->request.client;
	int r = begin(client, o);

	if (r == 1)
		kv_request_run(&o->request);
	if (r != 0)
		return KV_MIN(r, 0);
	return reply(client, &o->request.header, o->request.wait.space);
}

static int opening_finish(struct kv_request *request)
{
	struct opening *o = (struct opening *)request;

	if (!o->again && request->wait.status < 0)
		return request->wait.status;
	if (!o->again) {
		/* The layout is set: reply with the space. */
		o->json_len = 0;
		o->flags = 0;
	}
	return go_on(o);
}

static const struct kv_request_kind kind = {
	{.run = opening_run, .cancel = kv_wait_withdraw}, opening_finish};

int kv_request_space(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_space *wire = m->items;
	const char *text = (const char *)(wire + 1);
	size_t n = m->header->count, name_len = strnlen(text, n);
	struct opening *o;
	int r;

	if (name_len == 0 || name_len == n || name_len > KV_SPACE_NAME_MAX ||
	    (wire->flags & ~(WIRE_SPACE_CREATE | WIRE_SPACE_SHARED)))
		return -EINVAL;
	r = kv_request_new(client, m, &kind, sizeof(*o) + n, &o);
	if (r < 0)
		return r;
	o->caller = client->caller;
	o->flags = wire->flags;
	o->sharing = !(o->flags & WIRE_SPACE_CREATE) ||
		     (o->flags & WIRE_SPACE_SHARED);
	o->mode = wire->mode & 0777 ? wire->mode & 0777 : 0700;
	memcpy(o->text, text, n);
	o->json = o->text + name_len + 1;
	o->json_len = n - name_len - 1;
	r = go_on(o);
	if (r == 0 && !o->request.pending)
		kv_request_end(&o->request, false);
	return r;
}

/* ---- removal ---- */

static int removal_run(struct kv_wait *wait)
{
	struct kv_request *request = (struct kv_request *)wait;
	int r = kv_space_remove(request->server->cache, wait->space);

	return r == -ESTALE ? -ENOENT : r;
}

static const struct kv_request_kind removal_kind = {
	{.run = removal_run, .cancel = kv_wait_withdraw}};

/* Remove a space.  As with rmdir(2), the owner and operators may. */
int kv_request_space_remove(struct kv_client *client,
			    const struct kv_message *m)
{
	struct kv_request *removal;
	int r;

	if (client->caller.uid != m->info.uid &&
	    !kv_rules_operator(client->server->rules, client->caller.uid))
		return -EACCES;
	r = kv_request_new(client, m, &removal_kind, sizeof(*removal),
			   &removal);
	if (r == 0)
		kv_request_run(removal);
	return r;
}

/* ---- limits ---- */

struct limits {
	struct kv_request request; /* first; without a space: a user's limits */
	uint32_t uid;		   /* the caller's */
	char text[];		   /* of kv_limits_set */
};

static int limits_run(struct kv_wait *wait)
{
	struct limits *limits = (struct limits *)wait;
	const struct kv_request *request = &limits->request;

	return kv_limits_set(request->server->cache, request->server->rules,
			     limits->uid, wait->space,
			     (uint32_t)request->header.arg, limits->text);
}

static const struct kv_request_kind limits_kind = {
	{.run = limits_run, .cancel = kv_wait_withdraw}};

int kv_request_limit(struct kv_client *client, const struct kv_message *m)
{
	const size_t n = m->header->count;
	struct kv_message of = *m;
	struct limits *limits;
	int r = 0;

	if (m->header->arg > UINT32_MAX || memchr(m->items, '\0', n))
		return -EINVAL;
	if (m->header->space)
		r = kv_client_space(client, m->header->space, 0, &of.space,
				    &of.info);
	if (r == 0)
		r = kv_request_new(client, &of, &limits_kind,
				   sizeof(*limits) + n + 1, &limits);
	kv_space_put(of.space);
	if (r < 0)
		return r;
	limits->uid = client->caller.uid;
	memcpy(limits->text, m->items, n);
	kv_request_run(&limits->request);
	return 0;
}
