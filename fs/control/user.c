/* SPDX-License-Identifier: Apache-2.0 */
/*
 * user.c - turns of users on the control thread.
 *
 * OWNS      every kv_user.
 *
 * INVARIANTS
 *   (1) A connection is on its user's `ready` if and only if its is_ready is
 *       set.
 *   (2) A user with a connection on `ready`, or a request on `finished`, takes
 *       turns.
 *
 * LOCKING   none: control thread only.
 */
#include "fs/control/request.h"
#include "fs/control/user.h"

#define TURN_NS 250000 /* tens of messages */

struct kv_user {
	struct kv_turn turn; /* first */
	TAILQ_HEAD(, kv_client) ready;
	TAILQ_HEAD(, kv_request) finished;
};

static void user_init(struct kv_turn *turn)
{
	struct kv_user *user = (struct kv_user *)turn;

	TAILQ_INIT(&user->ready);
	TAILQ_INIT(&user->finished);
}

int kv_users_init(struct kv_server *server)
{
	return kv_turns_init(&server->users, sizeof(struct kv_user), TURN_NS,
			     user_init);
}

void kv_users_fini(struct kv_server *server)
{
	kv_turns_fini(&server->users);
}

struct kv_user *kv_user_get(struct kv_server *server, uint32_t uid)
{
	return (struct kv_user *)kv_turn_get(&server->users, uid);
}

static bool is_idle(const struct kv_user *user)
{
	return TAILQ_EMPTY(&user->ready) && TAILQ_EMPTY(&user->finished);
}

void kv_user_put(struct kv_server *server, struct kv_user *user)
{
	if (!user)
		return;
	if (is_idle(user))
		kv_turn_stop(&server->users, &user->turn);
	kv_turn_put(&server->users, &user->turn);
}

void kv_user_ready(struct kv_client *client)
{
	if (client->is_ready || client->ended)
		return;
	client->is_ready = true;
	TAILQ_INSERT_TAIL(&client->user->ready, client, ready_link);
	kv_turn_start(&client->server->users, &client->user->turn);
}

void kv_user_forget(struct kv_client *client)
{
	if (!client->is_ready)
		return;
	client->is_ready = false;
	TAILQ_REMOVE(&client->user->ready, client, ready_link);
}

void kv_user_finish(struct kv_request *request)
{
	TAILQ_INSERT_TAIL(&request->user->finished, request, finished_link);
	kv_turn_start(&request->server->users, &request->user->turn);
}

/* Serve @user for a turn: requests before connections, as their sender is waiting. */
static void serve(struct kv_server *server, struct kv_user *user)
{
	uint64_t began = kv_now_ns(), spent;
	struct kv_request *request;
	struct kv_client *client;

	do {
		request = TAILQ_FIRST(&user->finished);
		client = TAILQ_FIRST(&user->ready);
		if (request) {
			TAILQ_REMOVE(&user->finished, request, finished_link);
			kv_request_finish(request);
		} else if (client) {
			kv_user_forget(client);
			if (kv_client_serve(client))
				kv_user_ready(client);
		}
		spent = kv_now_ns() - began;
	} while (!is_idle(user) && spent < (uint64_t)user->turn.credit);
	kv_turn_charge(&user->turn, KV_MAX(spent, UINT64_C(1)));
	if (is_idle(user))
		kv_turn_stop(&server->users, &user->turn);
}

bool kv_users_serve(struct kv_server *server)
{
	struct kv_user *user;

	for (size_t n = server->users.n_busy; n > 0; n--) {
		user = (struct kv_user *)kv_turns_next(&server->users);
		if (!user)
			break;
		/* The user may lose its last connection meanwhile. */
		kv_turn_hold(&user->turn);
		serve(server, user);
		kv_user_put(server, user);
	}
	return server->users.n_busy > 0;
}
