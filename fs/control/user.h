/* SPDX-License-Identifier: Apache-2.0 */
/*
 * user.h - the work of each user: connections with events, and requests to finish.  Users
 * take turns of the control thread's time, however many connections they have.
 *
 * Control thread only.
 */
#ifndef KV_FS_CONTROL_USER_H
#define KV_FS_CONTROL_USER_H

#include "cache/core/turns.h"

struct kv_client;
struct kv_request;
struct kv_server;
struct kv_user;

int kv_users_init(struct kv_server *server); /* -ENOMEM */
void kv_users_fini(struct kv_server *server);

struct kv_user *kv_user_get(struct kv_server *server, uint32_t uid);
void kv_user_put(struct kv_server *server, struct kv_user *user);

/* @client has events; nothing happens if it is ready already. */
void kv_user_ready(struct kv_client *client);
/* The client has ended. */
void kv_user_forget(struct kv_client *client);
/* Finish @request, whose work is done, in its user's turn. */
void kv_user_finish(struct kv_request *request);

/* Give each user with work a turn.  Returns whether a user still has work. */
bool kv_users_serve(struct kv_server *server);

#endif
