/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c - read messages and pass them to their handlers; requests that outlive
 * their message; replies.
 *
 * OWNS      each request, from kv_request_new to kv_request_free; the descriptor that
 *           came with a message, until the handler has returned: then a process of
 *           the gate closes it.
 *
 * STATES    of a request:
 *
 *             (new) -> PENDING   kv_request_pend
 *           PENDING -> HELD      finish            (with leases)
 *           PENDING -> (freed)   finish
 *              HELD -> (freed)   release
 *
 * INVARIANTS
 *   (1) A request is in its client's table if and only if its client is not
 *       NULL.
 *   (2) server->pending counts the PENDING ones, also those of clients that are gone.
 *   (3) A PENDING request is never freed: a cache thread or a worker has it.
 *
 * LOCKING   none: control thread only.  Other threads post a request's mail.  A chore
 *           is its worker's from kv_chore_begin until its mail is posted.
 */
#include <sys/socket.h>
#include <xxhash.h>

#include "fs/control/request.h"

#define EXPIRE_AT_ONCE 64u
#define CHORE_COST 65536u /* of KV_COPY_TURN */

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

/* Remove @request from its client's table. */
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

/* The work of a request is done. */
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

int kv_request_new(struct kv_client *client, const struct kv_message *m,
		   const struct kv_request_kind *kind, size_t bytes,
		   void *ret_request)
{
	struct kv_request **at = bucket(client, m->header->tag), *request;
	int r;

	if (client->n_requests - client->n_held >= WIRE_PENDING_MAX)
		return -ENOLCK;
	r = kv_account_charge(client->account, KV_FINITE_REQUESTS, 1);
	if (r < 0)
		return r;
	r = kv_account_charge(client->account, KV_FINITE_MEMORY, bytes);
	request = r == 0 ? calloc(1, bytes) : NULL;
	if (!request) {
		kv_account_credit(client->account, KV_FINITE_REQUESTS, 1);
		if (r == 0)
			kv_account_credit(client->account, KV_FINITE_MEMORY,
					  bytes);
		return r < 0 ? r : -ENOMEM;
	}
	request->account = kv_account_hold(client->account);
	request->user = kv_user_get(client->server, client->caller.uid);
	request->bytes = bytes;
	request->mail.run = mail_came;
	request->kind = kind;
	request->client = client;
	request->server = client->server;
	request->header = *m->header;
	request->space = m->space ? kv_space_get(m->space) : NULL;
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

void kv_request_pend(struct kv_request *request, uint64_t wait)
{
	struct kv_server *server = request->server;
	uint64_t now;

	request->pending = true;
	server->pending++;
	if (!wait)
		return;
	now = kv_now_ns();
	/* Without memory for the deadline, cancel the request at once. */
	if (kv_deadline_set(&server->deadlines, &request->deadline,
			    wait > UINT64_MAX - now ? UINT64_MAX : now + wait))
		request->kind->cancel(request, -ETIMEDOUT);
}

static void chore_submit(struct kv_chore *chore)
{
	kv_work_submit(chore->request.server->waits, &chore->work, chore->uid,
		       CHORE_COST);
}

static void chore_run(struct kv_work *work, struct kv_hash *hash)
{
	struct kv_chore *chore = kv_container(work, struct kv_chore, work);

	(void)hash;
	chore->status = chore->run(chore);
	if (chore->status > 0)
		chore_submit(chore);
	else
		kv_mailbox_post(&chore->request.server->mailbox,
				&chore->request.mail);
}

void kv_chore_begin(struct kv_chore *chore, int (*run)(struct kv_chore *chore))
{
	chore->run = run;
	chore->work.run = chore_run;
	chore->uid = chore->request.client->caller.uid;
	kv_request_pend(&chore->request, 0);
	chore_submit(chore);
}

void kv_chore_cancel(struct kv_request *request, int status)
{
	struct kv_chore *chore = (struct kv_chore *)request;

	if (!kv_work_withdraw(&chore->work))
		return;
	chore->status = status;
	kv_mailbox_post(&request->server->mailbox, &request->mail);
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

/* Call @each for all requests of @client; it may free its request. */
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

	switch (n > 0 || header->type == WIRE_PROBE ? header->type
						    : WIRE_TYPE_END) {
	case WIRE_PROBE: /* without rights, every block is absent */
		memset(items, WIRE_ABSENT, n * sizeof(struct wire_state));
		kv_reply(client, header, 0, n, n * sizeof(struct wire_state));
		return;
	case WIRE_ACQUIRE:
		for (uint32_t i = 0; i < n; i++)
			places[i] = (struct wire_place){.status = status};
		kv_reply(client, header, 0, n, n * sizeof(*places));
		return;
	case WIRE_RESERVE:
	case WIRE_SAVE:
	case WIRE_FLUSH:
	case WIRE_EVICT:
	case WIRE_PIN:
	case WIRE_PREFETCH:
		for (uint32_t i = 0; i < n; i++)
			statuses[i].status = status;
		kv_reply(client, header, 0, n, n * sizeof(*statuses));
		return;
	default:
		kv_reply(client, header, status, 0, 0);
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

/* ---- reading messages ---- */

/* ECONNRESET, that the peer left something unread, is reported before the messages that
 * it had sent. */
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
	/* Peek without room for descriptors: that tells whether there are any, and
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
