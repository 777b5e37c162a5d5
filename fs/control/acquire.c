/* SPDX-License-Identifier: Apache-2.0 */
/*
 * acquire.c - WIRE_ACQUIRE and WIRE_RELEASE: leases.
 *
 * OWNS      the kv_acquire of each request and with it the leases, until
 *           release().
 *
 * INVARIANTS
 *   (1) The descriptor of a segment is sent before the first reply that names
 *       it; both go through the client's one send queue.
 *   (2) An acquire that is HELD has at least one lease.
 *
 * LOCKING   none: control thread only, but for acquired(), which a cache thread
 *           calls and which only posts the request's mail.
 */
#include "fs/control/request.h"

struct acquire {
	struct kv_request request; /* first */
	struct kv_acquire leases;  /* last: has its wants behind it */
};

static void acquired(struct kv_acquire *leases, void *arg)
{
	struct acquire *acquire = arg;

	(void)leases;
	kv_mailbox_post(&acquire->request.server->mailbox,
			&acquire->request.mail);
}

static size_t held(const struct acquire *acquire)
{
	size_t n = 0;

	for (size_t i = 0; i < acquire->leases.n; i++)
		n += acquire->leases.wants[i].status == 0;
	return n;
}

static void give_back(struct acquire *acquire)
{
	struct kv_request *request = &acquire->request;

	kv_acquire_release(request->server->cache, &acquire->leases);
	kv_request_free(request);
}

static void release(struct kv_request *request, bool forced)
{
	struct acquire *acquire = (struct acquire *)request;

	if (forced)
		request->server->tally.forced_releases += held(acquire);
	give_back(acquire);
}

static void cancel(struct kv_request *request, int status)
{
	struct acquire *acquire = (struct acquire *)request;

	kv_acquire_cancel(request->server->cache, &acquire->leases, status);
}

static struct wire_place place(struct kv_client *client,
			       const struct kv_want *want)
{
	int r = want->status;

	if (r == 0)
		r = kv_client_give_segment(client, want->segment);
	if (r < 0)
		return (struct wire_place){.status = r};
	return (struct wire_place){.segment = want->segment,
				   .offset = want->offset,
				   .length = want->length,
				   .payload = want->payload};
}

static void finish(struct kv_request *request)
{
	struct acquire *acquire = (struct acquire *)request;
	struct kv_client *client = request->client;
	struct wire_place *places = kv_reply_items(request->server);
	size_t n = acquire->leases.n, leased = 0;

	if (!client) {
		give_back(acquire);
		return;
	}
	for (size_t i = 0; i < n; i++) {
		places[i] = place(client, &acquire->leases.wants[i]);
		leased += places[i].status == 0;
	}
	kv_reply(client, &request->header, 0, (uint32_t)n, n * sizeof(*places));
	if (!leased || request->release)
		give_back(acquire);
	else
		kv_request_hold(request);
}

static const struct kv_request_kind kind = {finish, cancel, release};

static int begin(struct kv_client *client, const struct kv_message *m,
		 struct kv_space *space, struct acquire **ret_acquire)
{
	size_t n = m->header->count;
	struct acquire *acquire;
	int r;

	r = kv_request_new(client, m->header, &kind,
			   sizeof(*acquire) + n * sizeof(struct kv_want),
			   &acquire);
	if (r < 0)
		return r;
	r = kv_request_lease(&acquire->request, n);
	if (r < 0) {
		kv_request_free(&acquire->request);
		return r;
	}
	acquire->leases.space = acquire->request.space = kv_space_get(space);
	acquire->leases.n = n;
	acquire->leases.wait_saving = m->header->flags & WIRE_WAIT_SAVING;
	acquire->leases.again = m->header->flags & WIRE_AGAIN;
	acquire->leases.resident = m->header->flags & WIRE_RESIDENT;
	acquire->leases.wait_room = !acquire->leases.resident;
	acquire->leases.remote = !acquire->leases.resident;
	acquire->leases.uid = client->caller.uid;
	acquire->leases.more = n == WIRE_BATCH;
	acquire->leases.done = acquired;
	acquire->leases.arg = acquire;
	for (size_t i = 0; i < n; i++)
		acquire->leases.wants[i].key = client->server->keys[i];
	*ret_acquire = acquire;
	return 0;
}

int kv_request_acquire(struct kv_client *client, const struct kv_message *m)
{
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	struct acquire *acquire = NULL;
	int r;

	r = kv_request_keys(client, m);
	if (r < 0)
		return r;
	client->last_acquire = KV_MAX(client->last_acquire, m->header->tag);
	if (kv_client_space(client, m->header->space, R_OK | X_OK, &space,
			    &info) < 0)
		r = -ENOENT;
	if (r == 0)
		r = begin(client, m, space, &acquire);
	if (r < 0) {
		kv_reply_all(client, m->header, r);
		return 0;
	}
	if (kv_acquire_submit(client->server->cache, &acquire->leases) > 0)
		kv_request_pend(&acquire->request, true);
	else
		finish(&acquire->request);
	return 0;
}

int kv_request_release(struct kv_client *client, const struct kv_message *m)
{
	struct kv_request *request = kv_request_find(client, m->header->tag);

	if (!request) {
		/* An acquire that ended without a lease has been freed. */
		client->server->tally.stray_releases++;
		return m->header->tag <= client->last_acquire ? 0 : -EPROTO;
	}
	if (!request->kind->release)
		return -EPROTO;
	if (!request->pending) {
		request->kind->release(request, false);
		return 0;
	}
	request->release = true;
	if (request->kind->cancel)
		request->kind->cancel(request, -ECANCELED);
	return 0;
}
