/* SPDX-License-Identifier: Apache-2.0 */
/*
 * acquire.c - WIRE_ACQUIRE and WIRE_RELEASE: leases.
 *
 * OWNS      the kv_acquire of each request, and with it the leases, until release().
 *
 * INVARIANTS
 *   (1) The descriptor of a segment is sent before the first reply that names it; both
 *       go through the client's send queue.
 *   (2) An acquire that is HELD has at least one lease.
 *
 * LOCKING   none: control thread only, but for acquired(), which a cache thread calls.
 */
#include "fs/control/request.h"

struct acquire {
	struct kv_request request; /* first */
	struct kv_acquire leases;  /* last: its wants follow */
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
		const struct kv_want *want = &acquire->leases.wants[i];
		int r = want->status;

		if (r == 0)
			r = kv_client_give_segment(client, want->segment);
		places[i] =
			r < 0 ? (struct wire_place){.status = r}
			      : (struct wire_place){.segment = want->segment,
						    .offset = want->offset,
						    .length = want->length,
						    .payload = want->payload};
		leased += r >= 0;
	}
	kv_reply(client, &request->header, 0, (uint32_t)n, n * sizeof(*places));
	if (!leased || request->release)
		give_back(acquire);
	else
		kv_request_hold(request);
}

static const struct kv_request_kind kind = {finish, cancel, release};

int kv_request_acquire(struct kv_client *client, const struct kv_message *m)
{
	const uint16_t flags = m->header->flags;
	const size_t n = m->header->count;
	struct acquire *acquire = NULL;
	struct kv_acquire *leases;
	int r;

	r = kv_request_new(client, m, &kind,
			   sizeof(*acquire) + n * sizeof(struct kv_want),
			   &acquire);
	if (r == 0)
		r = kv_request_lease(&acquire->request, n);
	if (r < 0) {
		if (acquire)
			kv_request_free(&acquire->request);
		kv_reply_all(client, m->header, r);
		return 0;
	}
	leases = &acquire->leases;
	leases->space = m->space;
	leases->n = n;
	leases->wait_saving = flags & WIRE_WAIT_SAVING;
	leases->again = flags & WIRE_AGAIN;
	leases->resident = flags & WIRE_RESIDENT;
	leases->wait_room = leases->remote = !leases->resident;
	leases->uid = client->caller.uid;
	leases->more = n == WIRE_BATCH;
	leases->done = acquired;
	leases->arg = acquire;
	for (size_t i = 0; i < n; i++)
		leases->wants[i].key = client->server->keys[i];
	if (kv_acquire_submit(client->server->cache, leases) > 0)
		kv_request_pend(&acquire->request, m->header->arg);
	else
		finish(&acquire->request);
	return 0;
}

int kv_request_release(struct kv_client *client, const struct kv_message *m)
{
	struct kv_request *request = kv_request_find(client, m->header->tag);

	if (!request) {
		/* An acquire without a lease was freed when it ended. */
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
