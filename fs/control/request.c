/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.c - read messages, check their shape and the rights of their sender, and call
 * their handlers; requests that outlive their message; deadlines; replies.
 *
 * OWNS      each request, from kv_request_new until it is freed; the descriptor that
 *           came with a message, until the handler has returned: then a process of
 *           the gate closes the descriptor.
 *
 * STATES    of a request:
 *
 *             (new) -> PENDING   kv_request_pend
 *           PENDING -> HELD      kv_request_answer  (with leases)
 *           PENDING -> (freed)   kv_request_answer
 *              HELD -> (freed)   kv_request_end
 *
 * INVARIANTS
 *   (1) A request is in its client's table if and only if its client is not NULL.
 *   (2) server->pending counts the PENDING requests, also those without a client.
 *   (3) A PENDING request is never freed: a cache thread or a worker has it.
 *   (4) A handler sees only messages whose length is exactly that of their header and
 *       items, within the limits of `shapes`.
 *   (5) heap[d->place] == d for every deadline d that is set, and no deadline is earlier
 *       than its parent, which is at half its place.
 *
 * LOCKING   control thread only.  Other threads post a request's mail.  A request belongs
 *           to a worker from kv_request_run until its mail is posted.
 */
#include <sys/socket.h>
#include <xxhash.h>

#include "common/array.h"
#include "fs/control/server.h"

#define EXPIRE_AT_ONCE 64u
#define RUN_COST 65536u /* cost of kv_request_run, of KV_COPY_TURN */

/* ---- deadlines ---- */

void kv_deadlines_fini(struct kv_deadlines *list)
{
	free(list->heap);
	*list = (struct kv_deadlines){0};
}

static void put(struct kv_deadlines *list, size_t place, struct kv_deadline *d)
{
	list->heap[place] = d;
	d->place = place;
}

/* Insert @d into the heap: start at the free index @at, and move up or down. */
static void settle(struct kv_deadlines *list, size_t at, struct kv_deadline *d)
{
	struct kv_deadline **heap = list->heap;
	size_t child;

	for (; at > 1 && heap[at / 2]->at_ns > d->at_ns; at /= 2)
		put(list, at, heap[at / 2]);
	for (; (child = 2 * at) <= list->n; at = child) {
		if (child < list->n &&
		    heap[child + 1]->at_ns < heap[child]->at_ns)
			child++;
		if (heap[child]->at_ns >= d->at_ns)
			break;
		put(list, at, heap[child]);
	}
	put(list, at, d);
}

int kv_deadline_set(struct kv_deadlines *list, struct kv_deadline *deadline,
		    uint64_t at_ns)
{
	/* The heap begins at index 1. */
	const int r = kv_array_reserve(&list->heap, &list->room, list->n + 2);

	if (r < 0)
		return r;
	deadline->at_ns = at_ns;
	list->n++;
	settle(list, list->n, deadline);
	return 0;
}

void kv_deadline_clear(struct kv_deadlines *list, struct kv_deadline *deadline)
{
	size_t place = deadline->place;
	struct kv_deadline *last;

	if (!place)
		return;
	last = list->heap[list->n--];
	deadline->place = 0;
	if (last != deadline)
		settle(list, place, last);
}

struct kv_deadline *kv_deadline_first(const struct kv_deadlines *list)
{
	return list->n ? list->heap[1] : NULL;
}

/* ---- requests ---- */

static struct kv_requests *bucket_of(struct kv_client *client, uint64_t tag)
{
	uint64_t h =
		XXH3_64bits_withSeed(&tag, sizeof(tag), client->server->seed);

	return &client->requests[h % KV_ARRAY_LEN(client->requests)];
}

struct kv_request *kv_request_find(struct kv_client *client, uint64_t tag)
{
	struct kv_request *request;

	LIST_FOREACH(request, bucket_of(client, tag), bucket)
		if (request->header.tag == tag)
			break;
	return request;
}

/* Remove @request from its client's hash table. */
static void unlink_request(struct kv_request *request)
{
	LIST_REMOVE(request, bucket);
	request->client->n_requests--;
	request->client->n_held -= request->held;
	request->client->n_wants -= request->leases;
	request->client = NULL;
}

/* Have the next turn of the user finish a request whose work is done. */
static void mail_came(struct kv_mail *mail)
{
	struct kv_request *request =
		kv_container(mail, struct kv_request, mail);

	kv_deadline_clear(&request->server->deadlines, &request->deadline);
	kv_user_finish(request);
}

/* Tell the control thread, by the request's mail, that the work is done. */
static void post(struct kv_wait *wait)
{
	struct kv_request *request = (struct kv_request *)wait;

	kv_mailbox_post(&request->server->mailbox, &request->mail);
}

int kv_request_new(struct kv_client *client, const struct kv_message *m,
		   const struct kv_request_kind *kind, size_t bytes,
		   void *ret_request)
{
	struct kv_request *request;
	int r;

	if (client->n_requests - client->n_held >= WIRE_PENDING_MAX)
		return -ENOLCK;
	r = kv_account_charge(client->account, KV_FINITE_REQUESTS, 1);
	if (r < 0)
		return r;
	r = kv_wait_new(client->account, &kind->wait, post, bytes, &request);
	if (r < 0) {
		kv_account_credit(client->account, KV_FINITE_REQUESTS, 1);
		return r;
	}
	request->user = kv_user_get(client->server, client->caller.uid);
	request->mail.run = mail_came;
	request->client = client;
	request->server = client->server;
	request->came_ns = client->server->now_ns;
	request->header = *m->header;
	request->wait.space = m->space ? kv_space_get(m->space) : NULL;
	LIST_INSERT_HEAD(bucket_of(client, m->header->tag), request, bucket);
	client->n_requests++;
	*(struct kv_request **)ret_request = request;
	return 0;
}

int kv_request_lease(struct kv_request *request, size_t n)
{
	struct kv_client *client = request->client;
	int r;

	if (client->n_wants + n > WIRE_LEASED_MAX)
		return -ENOLCK;
	r = kv_account_charge(request->wait.account, KV_FINITE_LEASES, n);
	if (r < 0)
		return r;
	client->n_wants += n;
	request->leases += n;
	return 0;
}

/* Return the number of blocks that the request has leased. */
static size_t count_leases(const struct kv_request *request)
{
	size_t n = 0;

	for (size_t i = 0; request->acquire && i < request->acquire->n; i++)
		n += request->acquire->wants[i].status == 0;
	return n;
}

void kv_request_end(struct kv_request *request, bool forced)
{
	struct kv_account *account = request->wait.account;
	struct kv_server *server = request->server;

	if (forced)
		server->tally.forced_releases += count_leases(request);
	if (request->acquire)
		kv_acquire_release(server->cache, request->acquire);
	if (request->client)
		unlink_request(request);
	kv_account_credit(account, KV_FINITE_LEASES, request->leases);
	if (!request->held)
		kv_account_credit(account, KV_FINITE_REQUESTS, 1);
	kv_user_put(server, request->user);
	kv_wait_free(&request->wait);
}

void kv_request_answer(struct kv_request *request)
{
	const struct kv_request_kind *kind = (void *)request->wait.kind;
	struct kv_client *client = request->client;
	int r = request->wait.status;

	request->server->pending -= request->pending;
	request->pending = false;
	if (client && kind->finish)
		r = kind->finish(request);
	if (request->pending)
		return;
	if (client && (r < 0 || !kind->finish))
		kv_reply_all(client, &request->header, r);
	if (!client || request->release || count_leases(request) == 0) {
		kv_request_end(request, false);
		return;
	}
	request->held = true;
	client->n_held++;
	kv_account_credit(request->wait.account, KV_FINITE_REQUESTS, 1);
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
		kv_wait_cancel(&request->wait, -ETIMEDOUT);
}

void kv_request_run(struct kv_request *request)
{
	kv_request_pend(request, 0);
	kv_wait_run(&request->wait, request->server->waits, RUN_COST);
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
		kv_wait_cancel(&request->wait, -ETIMEDOUT);
	}
	return false;
}

void kv_requests_cancel(struct kv_client *client, bool abandon)
{
	struct kv_request *request, *next;

	for (size_t i = 0; i < KV_ARRAY_LEN(client->requests); i++)
		for (request = LIST_FIRST(&client->requests[i]); request;
		     request = next) {
			next = LIST_NEXT(request, bucket);
			if (!request->pending)
				continue;
			if (abandon && (client->ended || !request->shown))
				unlink_request(request);
			kv_wait_cancel(&request->wait, -ECANCELED);
		}
}

void kv_requests_release(struct kv_client *client)
{
	struct kv_request *request, *next;

	for (size_t i = 0; i < KV_ARRAY_LEN(client->requests); i++)
		for (request = LIST_FIRST(&client->requests[i]); request;
		     request = next) {
			next = LIST_NEXT(request, bucket);
			if (!request->pending)
				kv_request_end(request, true);
		}
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
	case WIRE_PROBE: /* report every block absent to a user without rights */
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

/* ---- messages ---- */

/* The right that the sender of a message needs in its space. */
enum right {
	ANY,  /* the handler checks the space and the rights */
	OWN,  /* the space must exist; the handler checks rights */
	READ, /* without this right the space is reported absent: -ENOENT */
	WRITE,
	EITHER,
};

#define KEYS 1u /* items are keys: check them, and store them in server->keys */
#define HAS_FD 2u   /* exactly one descriptor must come with the message */
#define OPEN_TAG 4u /* the message has no reply: its tag need not be new */

#define ITEM(type) sizeof(struct wire_##type)

static const struct shape {
	kv_handler *handle;
	size_t fixed, item; /* bytes before the items, bytes of an item */
	uint32_t min, max;  /* number of items */
	uint16_t flags;	    /* flags that the header may have */
	enum right right;
	unsigned what;
} shapes[WIRE_TYPE_END] = {
	[WIRE_HELLO] = {kv_request_hello, 0, ITEM(hello), 1, 1},
	[WIRE_SPACE] = {kv_request_space, ITEM(space), 1, 1, WIRE_MAX},
	[WIRE_PROBE] = {kv_request_probe, 0, ITEM(key), 0, WIRE_BATCH, 0, READ,
			KEYS},
	[WIRE_ACQUIRE] = {kv_request_acquire, 0, ITEM(key), 0, WIRE_BATCH,
			  WIRE_WAIT_SAVING | WIRE_RESIDENT | WIRE_AGAIN |
				  WIRE_PARTS | WIRE_FROM,
			  READ, KEYS},
	[WIRE_RELEASE] = {kv_request_release, .what = OPEN_TAG},
	[WIRE_CANCEL] = {kv_request_cancel, .what = OPEN_TAG},
	[WIRE_STAGING] = {kv_request_staging, 0, ITEM(staging), 1, 1, 0, ANY,
			  HAS_FD},
	[WIRE_RESERVE] = {kv_request_reserve, 0, ITEM(key), 0, WIRE_BATCH,
			  WIRE_MUST | WIRE_HOLD, WRITE},
	[WIRE_SAVE] = {kv_request_save, 0, ITEM(save), 0, WIRE_BATCH,
		       WIRE_WITH_IDS | WIRE_FRESH | WIRE_MUST | WIRE_HOLD},
	[WIRE_DROP] = {kv_request_drop, 0, ITEM(key), 0, WIRE_BATCH, 0, ANY,
		       KEYS},
	[WIRE_FLUSH] = {kv_request_flush, 0, ITEM(key), 0, WIRE_BATCH, 0,
			EITHER, KEYS},
	[WIRE_EVICT] = {kv_request_evict, 0, ITEM(key), 0, WIRE_BATCH, 0, WRITE,
			KEYS},
	[WIRE_PIN] = {kv_request_evict, 0, ITEM(key), 0, WIRE_BATCH, 0, WRITE,
		      KEYS},
	[WIRE_CLEAR] = {kv_request_clear, .right = WRITE},
	[WIRE_STATS] = {kv_request_stats},
	[WIRE_UNMAPPED] = {kv_request_unmapped, 0, ITEM(segment), 1, 1, 0, ANY,
			   OPEN_TAG},
	[WIRE_PREFETCH] = {kv_request_prefetch, 0, ITEM(key), 0, WIRE_BATCH,
			   WIRE_AHEAD, READ, KEYS},
	[WIRE_ENDED] = {kv_request_ended, 0, ITEM(key), 0, WIRE_BATCH, 0, WRITE,
			KEYS | OPEN_TAG},
	[WIRE_PICK] = {kv_request_pick, 0, ITEM(pick), 1, WIRE_BATCH},
	[WIRE_SNAPSHOT] = {kv_request_snapshot, ITEM(snapshot), 1, 0, WIRE_MAX},
	[WIRE_SNAPSHOT_DROP] = {kv_request_snapshot_drop, 0, 1, 0, WIRE_MAX, 0,
				WRITE},
	[WIRE_SNAPSHOT_READ] = {kv_request_snapshot_read, ITEM(snapshot), 1, 0,
				WIRE_MAX, 0, READ},
	[WIRE_SNAPSHOT_LIST] = {kv_request_snapshot_list, .right = READ},
	[WIRE_LIST] = {kv_request_list, 0, ITEM(list), 1, 1, WIRE_DETAILS,
		       READ},
	[WIRE_SPACE_REMOVE] = {kv_request_space_remove, .right = OWN},
	[WIRE_POOL] = {kv_request_pool, ITEM(pool), ITEM(stride), 1, WIRE_MAX,
		       0, ANY, HAS_FD},
	[WIRE_POOL_CLOSE] = {kv_request_pool_close, .what = OPEN_TAG},
	[WIRE_SAVE_PAGES] = {kv_request_save_pages, ITEM(save_pages), 1, 1,
			     WIRE_MAX, WIRE_MUST | WIRE_HOLD | WIRE_WITH_IDS},
	[WIRE_TOKEN_IDS] = {kv_request_token_ids, 0, ITEM(key), 1, WIRE_BATCH,
			    0, READ, KEYS},
	[WIRE_FORGET] = {kv_request_forget, 0, ITEM(key), 0, WIRE_BATCH, 0,
			 WRITE, KEYS},
	[WIRE_WHY] = {kv_request_why, 0, ITEM(key), 0, WIRE_WHY_BATCH, 0, READ,
		      KEYS},
	[WIRE_CHANGES] = {kv_request_changes, 0, ITEM(list), 1, 1, 0, READ},
	[WIRE_REGISTERS] = {kv_request_registers, .what = OPEN_TAG},
	[WIRE_LIMIT] = {kv_request_limit, 0, 1, 1, WIRE_LIMITS_MAX},
};

/* Get the space that @m names, if the client has the right @right in it. */
static int check_right(struct kv_client *client, struct kv_message *m,
		       enum right right)
{
	static const int wants[] = {
		[OWN] = 0,
		[READ] = R_OK | X_OK,
		[WRITE] = W_OK | X_OK,
		[EITHER] = R_OK | X_OK,
	};
	int r = kv_client_space(client, m->header->space, wants[right],
				&m->space, &m->info);

	if (r == -EACCES && right == EITHER)
		r = kv_client_space(client, m->header->space, W_OK | X_OK,
				    &m->space, &m->info);
	return r == -EACCES && right == READ ? -ENOENT : r;
}

/* Check the message of @n bytes in server->in, and call its handler.  @has_fd: a
 * descriptor came with the message; @fd is that descriptor if it is memory, else -1.
 * Returns 0, or -EPROTO: the connection must be cut off. */
static int dispatch(struct kv_client *client, size_t n, bool has_fd, int fd)
{
	const struct wire_header *header = (void *)client->server->in;
	struct kv_message m = {header, header + 1, fd};
	struct kv_request *request;
	const struct shape *shape;
	const struct wire_key *keys;
	int r = 0;

	if (n < sizeof(*header) || n > WIRE_MAX ||
	    header->type >= WIRE_TYPE_END)
		return -EPROTO;
	shape = &shapes[header->type];
	if (!shape->handle || (header->flags & ~shape->flags) ||
	    header->count < shape->min || header->count > shape->max ||
	    n != sizeof(*header) + shape->fixed + header->count * shape->item)
		return -EPROTO;
	if (((shape->what & HAS_FD) != 0) != has_fd ||
	    (client->version != 0) == (header->type == WIRE_HELLO))
		return -EPROTO;
	if (!(shape->what & OPEN_TAG) && kv_request_find(client, header->tag))
		return -EPROTO;
	keys = m.items;
	for (uint32_t i = 0; shape->what & KEYS && i < header->count; i++)
		if (kv_wire_key(keys[i].key, keys[i].len,
				&client->server->keys[i]) < 0)
			return -EPROTO;
	/* The client may release the tag even if the acquire leases no block. */
	if (header->type == WIRE_ACQUIRE)
		client->last_acquire =
			KV_MAX(client->last_acquire, header->tag);
	if (shape->right != ANY)
		r = check_right(client, &m, shape->right);
	if (r == 0)
		r = shape->handle(client, &m);
	kv_space_put(m.space);
	if (r == 0 || r == -EPROTO || shape->what & OPEN_TAG)
		return r == -EPROTO ? r : 0;
	request = kv_request_find(client, header->tag);
	if (request)
		kv_request_end(request, false);
	kv_reply_all(client, header, r);
	return 0;
}

/* Receive a message.  Retry after ECONNRESET (the peer closed with data
 * unread): the messages that the peer had sent can still be read. */
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
	    dispatch(client, n, fds > 0, fd) < 0)
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
	/* Peek without room for descriptors: MSG_CTRUNC shows that there are
	 * some, and none is installed. */
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

	/* The gate, not the client, may have died. */
	if (!message || message->bytes < 0) {
		kv_client_break(client, KV_BREAK_SLOW);
	} else {
		memcpy(server->in, message->data, (size_t)message->bytes);
		handle(client, (size_t)message->bytes, message->fds,
		       message->flags, message->fd);
	}
	if (message && message->fd >= 0)
		kv_gate_dispose(server->gate, client->caller.uid, message->fd);
}
