/* SPDX-License-Identifier: Apache-2.0 */
/*
 * user.h - what there is to do for each user: connections that have sent
 * something, requests that can be answered.  Users take turns by the time that
 * this takes, however many connections they have.
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

/* Something has happened to @client; nothing more if that was said before. */
void kv_user_ready(struct kv_client *client);
/* The client has ended. */
void kv_user_forget(struct kv_client *client);
/* The request's work is done: to be finished in its user's turn. */
void kv_user_finish(struct kv_request *request);

/* A turn for everybody who has work; whether somebody still has. */
bool kv_users_serve(struct kv_server *server);

#endif
