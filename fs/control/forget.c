/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forget.c - WIRE_FORGET: blocks that their user wants nowhere any more.
 *
 * OWNS      what each request asks of the cache, until that is done.
 *
 * LOCKING   none: done() posts mail, all else is the control thread's.
 */
#include <stdio.h>

#include "fs/control/request.h"

struct forget {
	struct kv_request request; /* first */
	struct kv_forget forget;   /* last: its keys */
};

static void done(struct kv_forget *f)
{
	struct forget *forget = f->arg;

	kv_mailbox_post(&forget->request.server->mailbox,
			&forget->request.mail);
}

static void forget_finish(struct kv_request *request)
{
	const struct forget *forget = (struct forget *)request;
	struct wire_forgot *items = kv_reply_items(request->server);
	const uint32_t n = forget->forget.n_backends;

	for (uint32_t i = 0; i < n; i++) {
		const struct kv_forgot *of = &forget->forget.backends[i];

		items[i] = (struct wire_forgot){
			.removed = (uint32_t)of->removed,
			.absent = (uint32_t)of->absent,
			.failed = (uint32_t)of->failed,
			.status = of->status,
		};
		snprintf(items[i].url, sizeof(items[i].url), "%s", of->url);
	}
	if (request->client)
		kv_reply(request->client, &request->header, 0, n,
			 n * sizeof(*items));
	kv_request_free(request);
}

static void forget_cancel(struct kv_request *request, int status)
{
	struct forget *forget = (struct forget *)request;

	(void)status;
	kv_forget_cancel(request->server->cache, &forget->forget);
}

static const struct kv_request_kind forget_kind = {forget_finish, forget_cancel,
						   NULL};

static int begin(struct kv_client *client, const struct kv_message *m,
		 struct kv_space *space)
{
	struct kv_server *server = client->server;
	const size_t n = m->header->count;
	struct forget *forget;
	int r = kv_request_new(client, m->header, &forget_kind,
			       sizeof(*forget) + n * sizeof(struct kv_key),
			       &forget);

	if (r < 0)
		return r;
	forget->request.space = kv_space_get(space);
	forget->forget.space = space;
	forget->forget.done = done;
	forget->forget.arg = forget;
	forget->forget.n = n;
	memcpy(forget->forget.keys, server->keys, n * sizeof(struct kv_key));
	r = kv_forget_submit(server->cache, &forget->forget,
			     KV_MIN(m->header->arg, WIRE_FORGET_NS));
	if (r < 0)
		kv_request_free(&forget->request);
	else
		kv_request_pend(&forget->request, false);
	return r;
}

int kv_request_forget(struct kv_client *client, const struct kv_message *m)
{
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	struct kv_space_info info;
	int r = kv_request_keys(client, m);

	if (r < 0)
		return r;
	r = kv_client_space(client, m->header->space, W_OK | X_OK, &space,
			    &info);
	if (r == 0)
		r = begin(client, m, space);
	if (r < 0)
		kv_reply_all(client, m->header, r);
	return 0;
}
