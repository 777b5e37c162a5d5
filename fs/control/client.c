/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.c - connections of the control socket, what they hold, and the turns of
 * their users.
 *
 * OWNS      every kv_user.  Of a client: its socket, the pidfd of its process, copies of
 *           the queued messages and of their descriptors, its requests, reservations and
 *           picks, its count on segments, its staging, and the memory that it lends.
 *
 * STATES       (new) -> CONNECTED  kv_client_new
 *          CONNECTED -> CUT        cut_off        (its own fault; has leases)
 *          CONNECTED -> ENDED      kv_client_end  (gone, or nothing to keep)
 *                CUT -> ENDED      kv_client_end  (gone)
 *              ENDED -> (freed)    kv_client_sweep
 *
 * INVARIANTS
 *   (1) Leases and segments of a client end only in kv_client_end, when the peer has
 *       closed every copy of its socket, or its process is dead: until then the client
 *       may be reading the arena.
 *   (2) Messages that a client sent before it closed its end, or died, are read first.
 *   (3) A client is freed only before the next epoll_wait(2), so that no event points to
 *       a freed client.
 *   (4) A client is on its user's `ready` if and only if its is_ready is set.
 *   (5) A user with a client on `ready`, or a request on `finished`, takes turns.
 *   (6) Messages leave in the order of kv_send_queue_send.
 *   (7) ids[] of kv_segments ascends strictly.
 *
 * LOCKING   none: control thread only.
 */
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "common/array.h"
#include "common/bytes.h"
#include "fs/control/server.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

#define TURN_NS 250000 /* length of a user's turn: tens of messages */

/* ---- messages that wait to be sent ---- */

struct kv_outgoing {
	struct kv_outgoing *next;
	size_t n;
	int fd;
	uint8_t data[];
};

void kv_send_queue_init(struct kv_send_queue *box, struct kv_account *account)
{
	*box = (struct kv_send_queue){.last = &box->first, .account = account};
}

static void forget_first(struct kv_send_queue *box)
{
	struct kv_outgoing *m = box->first;

	box->first = m->next;
	if (!box->first)
		box->last = &box->first;
	box->bytes -= sizeof(*m) + m->n;
	kv_account_credit(box->account, KV_FINITE_MEMORY, sizeof(*m) + m->n);
	if (m->fd >= 0) {
		close(m->fd);
		box->fds--;
		kv_account_credit(box->account, KV_FINITE_DESCRIPTORS, 1);
	}
	free(m);
}

void kv_send_queue_fini(struct kv_send_queue *box)
{
	while (box->first)
		forget_first(box);
}

/* Send one message.  Returns 0, -EAGAIN if the socket is full, or another error. */
static int send_one(int socket, const void *data, size_t n, int fd)
{
	struct iovec part = {(void *)data, n};

	return kv_send_parts(socket, &part, 1, fd, MSG_DONTWAIT);
}

int kv_send_queue_send(struct kv_send_queue *box, int socket, const void *data,
		       size_t n, int fd)
{
	_cleanup_(kv_freep) struct kv_outgoing *m = NULL;
	const size_t bytes = sizeof(*m) + n;
	int r = box->first ? -EAGAIN : send_one(socket, data, n, fd);

	if (r != -EAGAIN)
		return r;
	if (box->bytes + bytes > KV_SEND_QUEUE_BYTES ||
	    (fd >= 0 && box->fds >= KV_SEND_QUEUE_FDS))
		return -ENOBUFS;
	m = malloc(bytes);
	if (!m)
		return -ENOMEM;
	*m = (struct kv_outgoing){.n = n, .fd = -1};
	r = kv_account_charge(box->account, KV_FINITE_MEMORY, bytes);
	if (r < 0)
		return r;
	if (fd >= 0)
		r = kv_account_charge(box->account, KV_FINITE_DESCRIPTORS, 1);
	if (r == 0 && fd >= 0) {
		m->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
		if (m->fd < 0) {
			r = -errno;
			kv_account_credit(box->account, KV_FINITE_DESCRIPTORS,
					  1);
		}
	}
	if (r < 0) {
		kv_account_credit(box->account, KV_FINITE_MEMORY, bytes);
		return r;
	}
	memcpy(m->data, data, n);
	box->bytes += bytes;
	box->fds += fd >= 0;
	*box->last = m;
	box->last = &kv_steal(m)->next;
	return 0;
}

int kv_send_queue_drain(struct kv_send_queue *box, int socket)
{
	int r;

	while (box->first) {
		r = send_one(socket, box->first->data, box->first->n,
			     box->first->fd);
		if (r == -EAGAIN)
			return 0;
		if (r < 0)
			return r;
		forget_first(box);
	}
	return 1;
}

/* ---- segments ---- */

/* Return the index in @set of the first id that is not below @id. */
static size_t place(const struct kv_segments *set, uint32_t id)
{
	size_t low = 0, high = set->n, mid;

	while (low < high) {
		mid = low + (high - low) / 2;
		if (set->ids[mid] < id)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static bool segments_has(const struct kv_segments *set, uint32_t id)
{
	size_t i = place(set, id);

	return i < set->n && set->ids[i] == id;
}

bool kv_segments_remove(struct kv_segments *set, uint32_t id)
{
	size_t i = place(set, id);

	if (i == set->n || set->ids[i] != id)
		return false;
	set->n--;
	memmove(&set->ids[i], &set->ids[i + 1], (set->n - i) * sizeof(id));
	return true;
}

/* ---- users ---- */

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

static void forget_ready(struct kv_client *client)
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

/* ---- events ---- */

static int watch(struct kv_client *client, int op, uint32_t events)
{
	struct epoll_event event = {.events = events,
				    .data.ptr = &client->on_socket};

	client->events = events;
	if (epoll_ctl(client->server->epoll, op, client->socket, &event) < 0)
		return -errno;
	return 0;
}

static void watch_again(struct kv_client *client)
{
	uint32_t events = EPOLLIN;

	/* epoll always reports that a peer has closed; EPOLLET: only once. */
	if (client->offers || client->gate.user)
		events = EPOLLET;
	if (client->send_queue.first)
		events |= EPOLLOUT;
	if (client->server->stopping || client->cut)
		events = 0; /* epoll still reports that the peer has closed */
	if (events != client->events && !client->ended)
		(void)watch(client, EPOLL_CTL_MOD, events);
}

static void socket_ready(struct kv_watch *w, uint32_t events)
{
	struct kv_client *client = kv_container(w, struct kv_client, on_socket);

	client->happened |= events;
	kv_user_ready(client);
}

static void process_died(struct kv_watch *w, uint32_t events)
{
	struct kv_client *client = kv_container(w, struct kv_client, on_death);

	(void)events;
	/* Read the messages that the dead process had sent, up to the end of
	 * file that shutdown(2) makes.  Other processes with this socket cannot
	 * send any more. */
	if (client->cut || client->server->stopping)
		kv_client_break(client, KV_BREAK_GONE);
	else
		shutdown(client->socket, SHUT_RD);
}

static void message_came(struct kv_gate_wait *wait,
			 const struct kv_gate_message *message)
{
	struct kv_client *client = kv_container(wait, struct kv_client, gate);

	kv_request_came(client, message);
	kv_user_ready(client);
}

static int identify(struct kv_client *client)
{
	/* EPOLLONESHOT: the pidfd of a dead process stays readable. */
	struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT,
				    .data.ptr = &client->on_death};
	struct ucred cred;
	socklen_t len = sizeof(cred), groups = 0;

	if (getsockopt(client->socket, SOL_SOCKET, SO_PEERCRED, &cred, &len) <
	    0)
		return -errno;
	len = sizeof(client->pidfd);
	client->caller.uid = cred.uid;
	/* All users without an id in this user namespace would share one account. */
	if (kv_user_is_hidden(cred.uid))
		return -EACCES;
	client->caller.gid = cred.gid;
	/* Without a buffer, getsockopt(2) returns the list's size. */
	if (getsockopt(client->socket, SOL_SOCKET, SO_PEERGROUPS, NULL,
		       &groups) < 0 &&
	    errno != ERANGE)
		return -errno;
	if (groups > 0) {
		client->groups = malloc(groups);
		if (!client->groups)
			return -ENOMEM;
		if (getsockopt(client->socket, SOL_SOCKET, SO_PEERGROUPS,
			       client->groups, &groups) < 0)
			return -errno;
		client->caller.groups = client->groups;
		client->caller.n_groups = groups / sizeof(gid_t);
	}
	if (!kv_rules_admit(client->server->rules, &client->caller))
		return -EACCES;
	if (getsockopt(client->socket, SOL_SOCKET, SO_PEERPIDFD, &client->pidfd,
		       &len) < 0) {
		client->pidfd = -1;
		if (errno == ESRCH)
			return -ESRCH;
		/* Before Linux 6.5, the pid may be another process's since connect(2).
		 * Then only the socket reports that the client has ended. */
		if (cred.pid > 0)
			client->pidfd =
				(int)syscall(SYS_pidfd_open, cred.pid, 0);
		if (cred.pid > 0 && client->pidfd < 0)
			return -errno;
	}
	if (client->pidfd >= 0 &&
	    epoll_ctl(client->server->epoll, EPOLL_CTL_ADD, client->pidfd,
		      &event) < 0)
		return -errno;
	return 0;
}

/* Free a client that has no requests, leases or segments. */
static void client_free(struct kv_client *client)
{
	if (client->socket >= 0)
		kv_gate_hang_up(client->server->gate, client->caller.uid,
				client->socket);
	kv_closep(&client->pidfd);
	free(client->groups);
	kv_user_put(client->server, client->user);
	kv_account_put(client->account);
	free(client);
}

int kv_client_new(struct kv_server *server, int socket,
		  struct kv_client **ret_client)
{
	struct kv_client *client = calloc(1, sizeof(*client));
	int r;

	if (!client) {
		kv_gate_hang_up(server->gate, KV_NO_UID, socket);
		return -ENOMEM;
	}
	client->server = server;
	client->socket = socket;
	client->pidfd = -1;
	client->caller.uid = KV_NO_UID;
	client->gate.came = message_came;
	client->on_socket.ready = socket_ready;
	client->on_death.ready = process_died;
	client->reservations.seed = server->seed;
	TAILQ_INIT(&client->lents);
	r = identify(client);
	if (r == 0) {
		client->account = kv_account_get(
			kv_cache_accounts(server->cache), client->caller.uid);
		r = client->account
			    ? kv_account_charge(client->account,
						KV_FINITE_CONNECTIONS, 1)
			    : -ENOMEM;
	}
	if (r < 0) {
		client_free(client);
		return r;
	}
	client->user = kv_user_get(server, client->caller.uid);
	client->reservations.account = client->account;
	kv_send_queue_init(&client->send_queue, client->account);
	r = watch(client, EPOLL_CTL_ADD, EPOLLIN);
	if (r < 0) {
		kv_account_credit(client->account, KV_FINITE_CONNECTIONS, 1);
		client_free(client);
		return r;
	}
	TAILQ_INSERT_TAIL(&server->clients, client, link);
	server->tally.connections++;
	*ret_client = client;
	return 0;
}

void kv_client_break(struct kv_client *client, enum kv_break why)
{
	/* KV_BREAK_GONE overrides other reasons: drop a dead client's leases. */
	if (!client->broken || why == KV_BREAK_GONE)
		client->broken = why;
	kv_user_ready(client);
}

/* Release what the client holds, except leases and segments: the client may be
 * reading their memory. */
static void forget_unread(struct kv_client *client)
{
	struct kv_server *server = client->server;

	kv_requests_cancel(client, true);
	/* while `offers` is set, watch_again() uses EPOLLET */
	client->offers = false;
	server->tally.dropped_reservations +=
		kv_reservations_drop(&client->reservations, server->cache);
	kv_sets_drop(client);
	kv_subscriptions_drop(client);
	kv_client_memory_put(kv_steal(client->staging));
	while (!TAILQ_EMPTY(&client->lents))
		kv_lent_drop(client, TAILQ_FIRST(&client->lents));
	kv_send_queue_fini(&client->send_queue);
}

void kv_client_end(struct kv_client *client)
{
	struct kv_server *server = client->server;

	if (client->ended)
		return;
	forget_ready(client);
	client->ended = true;
	forget_unread(client);
	kv_requests_release(client);
	for (size_t i = 0; i < client->segments.n; i++)
		kv_segment_returned(server->cache, client->segments.ids[i],
				    client->caller.uid);
	free(client->segments.ids);
	client->segments = (struct kv_segments){0};
	if (client->registers)
		kv_registrants_count(server->cache, client->caller.uid, -1);
	kv_gate_forget(&client->gate);
	/* If another process has copies of the socket, close(2) alone does not
	 * end epoll's watch. */
	epoll_ctl(server->epoll, EPOLL_CTL_DEL, client->socket, NULL);
	if (client->pidfd >= 0)
		epoll_ctl(server->epoll, EPOLL_CTL_DEL, client->pidfd, NULL);
	kv_gate_hang_up(server->gate, client->caller.uid, client->socket);
	kv_closep(&client->pidfd);
	client->socket = client->pidfd = -1;
	kv_account_credit(client->account, KV_FINITE_CONNECTIONS, 1);
	TAILQ_REMOVE(&server->clients, client, link);
	TAILQ_INSERT_TAIL(&server->ended, client, link);
	server->tally.connections--;
}

static void cut_off(struct kv_client *client)
{
	struct kv_server *server = client->server;

	if (client->broken == KV_BREAK_PROTOCOL)
		server->tally.protocol_errors++;
	else
		server->tally.slow++;
	forget_unread(client);
	if (client->n_requests == 0 && client->segments.n == 0) {
		kv_client_end(client);
		return;
	}
	/* Shut down only the daemon's half: epoll then still reports that the
	 * peer has closed, or both halves if the peer's process has died. */
	client->cut = true;
	client->broken = KV_BREAK_NOT;
	kv_gate_forget(&client->gate);
	shutdown(client->socket, SHUT_WR);
	watch_again(client);
}

void kv_client_sweep(struct kv_server *server)
{
	struct kv_client *client;

	while ((client = TAILQ_FIRST(&server->ended))) {
		TAILQ_REMOVE(&server->ended, client, link);
		client_free(client);
	}
}

/* Handle a failed send.  If the peer has closed its end, keep the connection until the
 * messages that the peer had sent are read; otherwise break the connection. */
static void cannot_send(struct kv_client *client, int error)
{
	if (error != -EPIPE && error != -ECONNRESET) {
		kv_client_break(client, KV_BREAK_SLOW);
		return;
	}
	client->deaf = true;
	kv_send_queue_fini(&client->send_queue);
}

/* Handle the client's events, and one message at most.  Returns true if there may be
 * more messages.  The connection may have ended then. */
static bool serve_client(struct kv_client *client)
{
	uint32_t events = client->happened;
	bool more = false;
	int r = 0;

	client->happened = 0;
	if (!client->broken && (client->cut || client->server->stopping)) {
		/* Wait only until the peer closes: messages stay unread. */
		if (events & (EPOLLHUP | EPOLLERR))
			kv_client_break(client, KV_BREAK_GONE);
	} else if (!client->broken) {
		if (events & EPOLLOUT)
			r = kv_send_queue_drain(&client->send_queue,
						client->socket);
		if (r < 0)
			cannot_send(client, r);
		more = !client->broken && !client->offers &&
		       kv_request_read(client);
		watch_again(client);
	}
	if (client->broken == KV_BREAK_GONE)
		kv_client_end(client);
	else if (client->broken)
		cut_off(client);
	return more;
}

void kv_client_quiesce(struct kv_client *client)
{
	watch_again(client);
	kv_requests_cancel(client, false);
}

void kv_client_send(struct kv_client *client, const void *data, size_t n,
		    int fd)
{
	int r;

	if (client->broken || client->cut || client->ended || client->deaf)
		return;
	r = kv_send_queue_send(&client->send_queue, client->socket, data, n,
			       fd);
	if (r < 0)
		cannot_send(client, r);
	watch_again(client);
}

static void send_segment(struct kv_client *client, enum wire_type type,
			 uint32_t id, uint64_t bytes, int fd)
{
	struct {
		struct wire_header header;
		struct wire_segment segment;
	} m = {.header = {.type = type, .count = 1},
	       .segment = {.id = id, .bytes = bytes}};

	kv_client_send(client, &m, sizeof(m), fd);
}

int kv_client_give_segment(struct kv_client *client, uint32_t id)
{
	struct kv_cache *cache = client->server->cache;
	struct kv_segments *set = &client->segments;
	const size_t i = place(set, id);
	struct kv_given_segment given;
	struct kv_space_info access;
	int r;

	if (segments_has(set, id))
		return 0;
	r = kv_segment_give(cache, id, client->caller.uid, &given);
	if (r < 0)
		return r;
	/* The client may have lost its right since it asked for the block. */
	access = (struct kv_space_info){
		.uid = given.uid, .gid = given.gid, .mode = given.mode};
	if (!kv_access_ok(client->server->rules, &access, &client->caller,
			  R_OK))
		r = -ENOENT;
	else
		r = kv_array_reserve(&set->ids, &set->room, set->n + 1);
	if (r < 0) {
		kv_segment_returned(cache, id, client->caller.uid);
		return r;
	}
	memmove(&set->ids[i + 1], &set->ids[i], (set->n - i) * sizeof(id));
	set->ids[i] = id;
	set->n++;
	send_segment(client, WIRE_SEGMENT, id, given.bytes, given.fd);
	return 0;
}

void kv_client_retire(struct kv_client *client, uint32_t id)
{
	if (segments_has(&client->segments, id))
		send_segment(client, WIRE_RETIRE, id, 0, -1);
}

int kv_client_space(struct kv_client *client, uint32_t id, int want,
		    struct kv_space **ret_space, struct kv_space_info *ret_info)
{
	const struct kv_rules *rules = client->server->rules;
	const struct kv_caller *caller = &client->caller;
	struct kv_cache *cache = client->server->cache;
	_cleanup_(kv_space_putp) struct kv_space *space =
		kv_space_by_id(cache, id);
	struct kv_space_info info;
	bool sees;

	if (!space)
		return -ENOENT;
	info = kv_space_stat(cache, space);
	if (info.removed)
		return -ENOENT;
	/* Hide the space from users without any right in it. */
	sees = caller->uid == info.uid ||
	       kv_rules_operator(rules, caller->uid) ||
	       kv_access_ok(rules, &info, caller, R_OK) ||
	       kv_access_ok(rules, &info, caller, W_OK) ||
	       kv_access_ok(rules, &info, caller, X_OK);
	if (!sees)
		return -ENOENT;
	if (!kv_access_ok(rules, &info, caller, want))
		return -EACCES;
	*ret_space = kv_steal(space);
	*ret_info = info;
	return 0;
}

/* ---- turns ---- */

/* Serve @user for a turn: first finish requests, whose clients wait for the
 * replies, then read from connections. */
static void serve(struct kv_server *server, struct kv_user *user)
{
	const uint64_t began = kv_now_ns();
	uint64_t spent;
	struct kv_request *request;
	struct kv_client *client;

	server->copied = 0;
	server->now_ns = began;
	do {
		request = TAILQ_FIRST(&user->finished);
		client = TAILQ_FIRST(&user->ready);
		if (request) {
			TAILQ_REMOVE(&user->finished, request, finished_link);
			kv_request_answer(request);
		} else if (client) {
			forget_ready(client);
			if (serve_client(client))
				kv_user_ready(client);
		}
		server->now_ns = kv_now_ns();
		if (server->timed)
			kv_histogram_add(kv_steal(server->timed),
					 server->now_ns - server->timed_ns);
		spent = server->now_ns - began;
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
		/* Hold @user: its last connection may end during the turn. */
		kv_turn_hold(&user->turn);
		serve(server, user);
		kv_user_put(server, user);
	}
	return server->users.n_busy > 0;
}
