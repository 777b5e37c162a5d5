/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tenant.c - users' connections and requests, in turns.
 *
 * OWNS      every kv_tenant.
 *
 * INVARIANTS
 *   (1) A connection is on its tenant's `ready` if and only if its is_ready is
 *       set.
 *   (2) A tenant with a connection on `ready`, or a request on `finished`,
 * takes turns.
 *
 * LOCKING   none: control thread only.
 */
#include "fs/control/request.h"
#include "fs/control/tenant.h"

#define TURN_NS 250000 /* some tens of messages */

struct kv_tenant {
	struct kv_turn turn; /* first */
	TAILQ_HEAD(, kv_client) ready;
	TAILQ_HEAD(, kv_request) finished;
};

static void tenant_init(struct kv_turn *turn)
{
	struct kv_tenant *tenant = (struct kv_tenant *)turn;

	TAILQ_INIT(&tenant->ready);
	TAILQ_INIT(&tenant->finished);
}

int kv_tenants_init(struct kv_server *server)
{
	return kv_turns_init(&server->tenants, sizeof(struct kv_tenant),
			     TURN_NS, tenant_init);
}

void kv_tenants_fini(struct kv_server *server)
{
	kv_turns_fini(&server->tenants);
}

struct kv_tenant *kv_tenant_get(struct kv_server *server, uint32_t uid)
{
	return (struct kv_tenant *)kv_turn_get(&server->tenants, uid);
}

static bool is_idle(const struct kv_tenant *tenant)
{
	return TAILQ_EMPTY(&tenant->ready) && TAILQ_EMPTY(&tenant->finished);
}

void kv_tenant_put(struct kv_server *server, struct kv_tenant *tenant)
{
	if (!tenant)
		return;
	if (is_idle(tenant))
		kv_turn_stop(&server->tenants, &tenant->turn);
	kv_turn_put(&server->tenants, &tenant->turn);
}

void kv_tenant_ready(struct kv_client *client)
{
	if (client->is_ready || client->ended)
		return;
	client->is_ready = true;
	TAILQ_INSERT_TAIL(&client->tenant->ready, client, ready_link);
	kv_turn_start(&client->server->tenants, &client->tenant->turn);
}

void kv_tenant_forget(struct kv_client *client)
{
	if (!client->is_ready)
		return;
	client->is_ready = false;
	TAILQ_REMOVE(&client->tenant->ready, client, ready_link);
}

void kv_tenant_finish(struct kv_request *request)
{
	TAILQ_INSERT_TAIL(&request->tenant->finished, request, finished_link);
	kv_turn_start(&request->server->tenants, &request->tenant->turn);
}

/* What waits longest; answers first, for their sender has been waiting. */
static bool step(struct kv_tenant *tenant)
{
	struct kv_request *request = TAILQ_FIRST(&tenant->finished);
	struct kv_client *client = TAILQ_FIRST(&tenant->ready);

	if (request) {
		TAILQ_REMOVE(&tenant->finished, request, finished_link);
		kv_request_finish(request);
	} else if (client) {
		kv_tenant_forget(client);
		if (kv_client_serve(client))
			kv_tenant_ready(client);
	}
	return !is_idle(tenant);
}

static void serve(struct kv_server *server, struct kv_tenant *tenant)
{
	uint64_t began = kv_now_ns(), spent;
	bool more;

	do {
		more = step(tenant);
		spent = kv_now_ns() - began;
	} while (more && spent < (uint64_t)tenant->turn.credit);
	kv_turn_charge(&tenant->turn, KV_MAX(spent, UINT64_C(1)));
	if (!more)
		kv_turn_stop(&server->tenants, &tenant->turn);
}

bool kv_tenants_serve(struct kv_server *server)
{
	struct kv_tenant *tenant;

	for (size_t n = server->tenants.n_busy; n > 0; n--) {
		tenant = (struct kv_tenant *)kv_turns_next(&server->tenants);
		if (!tenant)
			break;
		/* It may lose its last connection and request. */
		kv_turn_hold(&tenant->turn);
		serve(server, tenant);
		kv_tenant_put(server, tenant);
	}
	return server->tenants.n_busy > 0;
}
