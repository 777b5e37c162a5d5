/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offer.c - WIRE_STAGING, POOL and POOL_CLOSE: memory that a client offers to
 * save from.
 *
 * OWNS      the memory, until it is the client's.
 *
 * STATES    of an offer:
 *
 *             (new) -> MAPPED    map: by a worker, in steps
 *            MAPPED -> (freed)   finish: the memory is the client's
 *
 * INVARIANTS
 *   (1) No message of the client is read before its offer has ended: the next
 *       one may save from this memory.
 *
 * LOCKING   none: control thread only, but for the memory, which is the
 *           worker's until the offer's mail is posted.
 */
#include "fs/control/chore.h"

struct offer {
	struct kv_chore chore; /* first */
	/* Held: one of them. */
	struct kv_client_memory *staging;
	struct kv_lent *lent;
};

static int map(struct kv_chore *chore)
{
	struct offer *offer = (struct offer *)chore;

	return kv_client_memory_map(offer->lent ? kv_lent_memory(offer->lent)
						: offer->staging);
}

static void finish(struct kv_request *request)
{
	struct offer *offer = (struct offer *)request;
	struct kv_client *client = request->client;

	if (client && offer->chore.status == 0) {
		if (offer->lent) {
			TAILQ_INSERT_TAIL(&client->lents,
					  kv_lent_link(offer->lent), others);
			client->n_lents++;
			offer->lent = NULL;
		} else {
			kv_client_memory_put(client->staging);
			client->staging = kv_steal(offer->staging);
		}
	}
	kv_client_memory_put(offer->staging);
	kv_lent_put(offer->lent);
	if (client) {
		kv_reply(client, &request->header, offer->chore.status, 0, 0);
		client->offers = false;
		kv_user_ready(client);
	}
	kv_request_free(request);
}

static const struct kv_request_kind kind = {finish, kv_chore_cancel, NULL};

/* Takes @staging or @lent over in any case; @r: 0, or why there is none. */
static int begin(struct kv_client *client, const struct kv_message *m,
		 struct kv_client_memory *staging, struct kv_lent *lent, int r)
{
	struct offer *offer;

	if (r == 0)
		r = kv_request_new(client, m->header, &kind, sizeof(*offer),
				   &offer);
	if (r < 0) {
		kv_client_memory_put(staging);
		kv_lent_put(lent);
		kv_reply(client, m->header, r, 0, 0);
		return 0;
	}
	offer->staging = staging;
	offer->lent = lent;
	client->offers = true;
	kv_chore_begin(&offer->chore, map);
	return 0;
}

int kv_request_staging(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_staging *wanted = m->items;
	struct kv_client_memory *staging = NULL;
	int r = kv_client_memory_new(client->server, client->account, m->fd, 0,
				     wanted->bytes, &staging);

	return begin(client, m, staging, NULL, r);
}

int kv_request_pool(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_pool *pool = m->items;
	const struct kv_lender lender = {client->socket, client->pidfd,
					 client->account};
	struct kv_lent *lent = NULL;
	int r = 0;

	if (kv_lent_find(&client->lents, pool->id))
		r = -EEXIST;
	else if (client->n_lents >= WIRE_POOLS_MAX)
		r = -ENOLCK;
	if (r == 0)
		r = kv_lent_new(client->server, m->fd, pool,
				(const struct wire_stride *)(pool + 1),
				m->header->count, &lender, &lent);
	return begin(client, m, NULL, lent, r);
}

int kv_request_pool_close(struct kv_client *client, const struct kv_message *m)
{
	struct kv_lent *lent = m->header->arg > UINT32_MAX
				       ? NULL
				       : kv_lent_find(&client->lents,
						      (uint32_t)m->header->arg);

	if (lent)
		kv_client_drop_lent(client, lent);
	return 0;
}
