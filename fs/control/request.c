/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c - messages read from a socket and handed to their handlers,
 * requests that outlive the call that read them, and replies.
 *
 * OWNS      each request's memory, from kv_request_new to kv_request_free; the
 *           descriptor that came with a message, until it is handled: then a
 *           process of the gate closes it.
 *
 * STATES    of a request:
 *
 *             (new) -> PENDING   kv_request_pend   (its mail will come, and its
 *                                                   user's turn)
 *           PENDING -> HELD      finish            (with leases)
 *           PENDING -> (freed)   finish
 *              HELD -> (freed)   release
 *
 * INVARIANTS
 *   (1) A request is in its client's table if and only if its client is not
 *       NULL.
 *   (2) server->pending counts the PENDING ones, gone clients' too.
 *   (3) A PENDING request is never freed: a cache or ingest thread has it.
 *   (4) A handler sees only messages whose length is exactly that of their
 *       header and items, within the limits of `shapes`.
 *
 * LOCKING   none: control thread only; others reach a request by its mail.
 */
#include <sys/socket.h>
#include <xxhash.h>

#include "fs/control/request.h"

#define EXPIRE_AT_ONCE 64u /* then others have their turns */

static struct kv_request **bucket(struct kv_client *client, uint64_t tag)
{
	uint64_t h =
		XXH3_64bits_withSeed(&tag, sizeof(tag), client->server->seed);

	return &client->requests[h % KV_ARRAY_LEN(client->requests)];
}

struct kv_request *kv_request_find(struct kv_client *client, uint64_t tag)
{
	struct kv_request *request = *bucket(client, tag);

	while (request && request->header.tag != tag)
		request = request->next;
	return request;
}

static void unlink_request(struct kv_request *request)
{
	struct kv_request **at = bucket(request->client, request->header.tag);

	while (*at != request)
		at = &(*at)->next;
	*at = request->next;
	request->client->n_requests--;
	request->client->n_held -= request->held;
	request->client->n_wants -= request->leases;
	request->client = NULL;
}

/* The mail of every request ends up here. */
static void mail_came(struct kv_mail *mail)
{
	struct kv_request *request =
		kv_container(mail, struct kv_request, mail);

	kv_deadline_clear(&request->server->deadlines, &request->deadline);
	kv_user_finish(request);
}

void kv_request_finish(struct kv_request *request)
{
	request->pending = false;
	request->server->pending--;
	request->kind->finish(request);
}

static int charge(struct kv_account *account, size_t bytes)
{
	int r = kv_account_charge(account, KV_FINITE_REQUESTS, 1);

	if (r < 0)
		return r;
	r = kv_account_charge(account, KV_FINITE_MEMORY, bytes);
	if (r < 0)
		kv_account_credit(account, KV_FINITE_REQUESTS, 1);
	return r;
}

int kv_request_new(struct kv_client *client, const struct wire_header *header,
		   const struct kv_request_kind *kind, size_t bytes,
		   void *ret_request)
{
	struct kv_request **at = bucket(client, header->tag), *request;
	int r;

	if (client->n_requests - client->n_held >= WIRE_PENDING_MAX)
		return -ENOLCK;
	r = charge(client->account, bytes);
	if (r < 0)
		return r;
	request = calloc(1, bytes);
	if (!request) {
		kv_account_credit(client->account, KV_FINITE_REQUESTS, 1);
		kv_account_credit(client->account, KV_FINITE_MEMORY, bytes);
		return -ENOMEM;
	}
	request->account = kv_account_hold(client->account);
	request->user = kv_user_get(client->server, client->caller.uid);
	request->bytes = bytes;
	request->mail.run = mail_came;
	request->kind = kind;
	request->client = client;
	request->server = client->server;
	request->header = *header;
	request->next = *at;
	*at = request;
	client->n_requests++;
	*(struct kv_request **)ret_request = request;
	return 0;
}

void kv_request_hold(struct kv_request *request)
{
	request->held = true;
	request->client->n_held++;
	kv_account_credit(request->account, KV_FINITE_REQUESTS, 1);
}

int kv_request_lease(struct kv_request *request, size_t n)
{
	struct kv_client *client = request->client;
	int r;

	if (client->n_wants + n > WIRE_LEASED_MAX)
		return -ENOLCK;
	r = kv_account_charge(request->account, KV_FINITE_LEASES, n);
	if (r < 0)
		return r;
	client->n_wants += n;
	request->leases += n;
	return 0;
}

void kv_request_free(struct kv_request *request)
{
	if (request->client)
		unlink_request(request);
	kv_account_credit(request->account, KV_FINITE_LEASES, request->leases);
	kv_account_credit(request->account, KV_FINITE_MEMORY, request->bytes);
	if (!request->held)
		kv_account_credit(request->account, KV_FINITE_REQUESTS, 1);
	kv_account_put(request->account);
	kv_user_put(request->server, request->user);
	kv_space_put(request->space);
	free(request);
}

void kv_request_pend(struct kv_request *request, bool timeout)
{
	if (timeout && request->header.arg) {
		kv_request_pend_for(request, request->header.arg);
		return;
	}
	request->pending = true;
	request->server->pending++;
}

void kv_request_pend_for(struct kv_request *request, uint64_t wait)
{
	struct kv_server *server = request->server;
	uint64_t now = kv_now_ns();

	kv_request_pend(request, false);
	/* Out of memory: better too early than never. */
	if (kv_deadline_set(&server->deadlines, &request->deadline,
			    wait > UINT64_MAX - now ? UINT64_MAX : now + wait))
		request->kind->cancel(request, -ETIMEDOUT);
}

bool kv_requests_expire(struct kv_server *server, uint64_t *ret_next_ns)
{
	struct kv_deadline *first;
	struct kv_request *request;
	uint64_t now = kv_now_ns();
	unsigned n = 0;

	while ((first = kv_deadline_first(&server->deadlines))) {
		if (first->at_ns > now || n++ == EXPIRE_AT_ONCE) {
			*ret_next_ns = first->at_ns;
			return true;
		}
		kv_deadline_clear(&server->deadlines, first);
		request = kv_container(first, struct kv_request, deadline);
		request->kind->cancel(request, -ETIMEDOUT);
	}
	return false;
}

/* Call @each for all requests of @client; it may free the one it is given. */
static void for_all(struct kv_client *client,
		    void (*each)(struct kv_request *request, int status),
		    int status)
{
	for (size_t i = 0; i < KV_ARRAY_LEN(client->requests); i++)
		for (struct kv_request *request = client->requests[i], *next;
		     request; request = next) {
			next = request->next;
			each(request, status);
		}
}

static void cancel_one(struct kv_request *request, int status)
{
	if (request->pending && request->kind->cancel)
		request->kind->cancel(request, status);
}

static void abandon_one(struct kv_request *request, int status)
{
	if (!request->pending)
		return;
	unlink_request(request);
	cancel_one(request, status);
}

static void release_one(struct kv_request *request, int status)
{
	(void)status;
	if (!request->pending)
		request->kind->release(request, true);
}

void kv_requests_cancel(struct kv_client *client, int status)
{
	for_all(client, cancel_one, status);
}

void kv_requests_abandon(struct kv_client *client)
{
	for_all(client, abandon_one, -ECANCELED);
}

void kv_requests_release(struct kv_client *client)
{
	for_all(client, release_one, 0);
}

void *kv_reply_items(struct kv_server *server)
{
	return server->out + sizeof(struct wire_header);
}

void kv_reply(struct kv_client *client, const struct wire_header *header,
	      int status, uint32_t count, size_t bytes)
{
	struct kv_server *server = client->server;
	struct wire_header reply = {
		.type = header->type,
		.flags = WIRE_REPLY,
		.count = count,
		.tag = header->tag,
		.space = header->space,
		.status = status,
	};

	memcpy(server->out, &reply, sizeof(reply));
	kv_client_send(client, server->out, sizeof(reply) + bytes, -1);
}

void kv_reply_all(struct kv_client *client, const struct wire_header *header,
		  int status)
{
	void *items = kv_reply_items(client->server);
	struct wire_place *places = items;
	struct wire_status *statuses = items;
	uint32_t n = header->count;

	if (n == 0 || header->type == WIRE_SPACE ||
	    header->type == WIRE_FORGET || header->type == WIRE_STAGING) {
		kv_reply(client, header, status, 0, 0);
	} else if (header->type == WIRE_PROBE) {
		memset(items, WIRE_ABSENT, n * sizeof(struct wire_state));
		kv_reply(client, header, 0, n, n * sizeof(struct wire_state));
	} else if (header->type == WIRE_ACQUIRE) {
		for (uint32_t i = 0; i < n; i++)
			places[i] = (struct wire_place){.status = status};
		kv_reply(client, header, 0, n, n * sizeof(*places));
	} else {
		for (uint32_t i = 0; i < n; i++)
			statuses[i].status = status;
		kv_reply(client, header, 0, n, n * sizeof(*statuses));
	}
}

int kv_wire_key(const uint8_t *bytes, uint32_t len, struct kv_key *ret_key)
{
	if (len != 16 && len != 32)
		return -EINVAL;
	*ret_key = (struct kv_key){.len = (uint8_t)len};
	memcpy(ret_key->b, bytes, len);
	return 0;
}

int kv_request_keys(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_key *keys = m->items;

	for (uint32_t i = 0; i < m->header->count; i++)
		if (kv_wire_key(keys[i].key, keys[i].len,
				&client->server->keys[i]) < 0)
			return -EPROTO;
	return 0;
}

/* ---- reading messages ---- */

/* That the peer has left something unread is told before what it had sent. */
static ssize_t receive(int socket, struct msghdr *m, int flags)
{
	ssize_t n = recvmsg(socket, m, flags | MSG_DONTWAIT);

	return n < 0 && errno == ECONNRESET
		       ? recvmsg(socket, m, flags | MSG_DONTWAIT)
		       : n;
}

static void handle(struct kv_client *client, size_t n, size_t fds, int flags,
		   int fd)
{
	struct kv_server *server = client->server;

	server->tally.messages++;
	if (fds > 1 || (flags & (MSG_TRUNC | MSG_CTRUNC)) ||
	    server->dispatch(client, n, fds > 0, fd) < 0)
		kv_client_break(client, KV_BREAK_PROTOCOL);
}

int kv_request_read(struct kv_client *client)
{
	struct kv_server *server = client->server;
	struct iovec iov = {server->in, 1};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	ssize_t n;

	if (client->gate.user)
		return 0;
	/* A look without room for descriptors tells whether there are any, and
	 * installs none. */
	n = receive(client->socket, &m, MSG_PEEK);
	if (n >= 0 && (m.msg_flags & MSG_CTRUNC)) {
		kv_gate_receive(server->gate, client->caller.uid,
				client->socket, &client->gate);
		return 0;
	}
	if (n > 0) {
		iov.iov_len = sizeof(server->in);
		n = receive(client->socket, &m, 0);
	}
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n <= 0) {
		kv_client_break(client, KV_BREAK_GONE);
		return 0;
	}
	handle(client, (size_t)n, 0, m.msg_flags, -1);
	return 1;
}

void kv_request_came(struct kv_client *client,
		     const struct kv_gate_message *message)
{
	struct kv_server *server = client->server;

	if (!message || message->bytes <= 0) {
		kv_client_break(client, KV_BREAK_GONE);
	} else {
		memcpy(server->in, message->data, (size_t)message->bytes);
		handle(client, (size_t)message->bytes, message->fds,
		       message->flags, message->fd);
	}
	if (message && message->fd >= 0)
		kv_gate_dispose(server->gate, client->caller.uid, message->fd);
}
