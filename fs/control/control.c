/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - the control thread: accepts connections, waits for all of them,
 * and carries out what other threads post.
 *
 * OWNS      the thread, the listening socket and its name in the file system,
 *           the epoll descriptor, and by `server` the mailbox and the ingest
 *           threads.
 *
 * STATES    RUNNING -> STOPPING  begin_stop   (reads no more, cancels)
 *           STOPPING -> (ended)  serve        (no request is pending)
 *
 * INVARIANTS
 *   (1) Everything in `server` is touched by the control thread only, but for
 *       the mailbox, the ingest queue and the tally, which have their own locks
 *       or are atomic.
 *   (2) The thread ends only when no cache or ingest thread holds a request.
 *
 * LOCKING   none of its own.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include "common/thread.h"
#include "fs/control/client.h"
#include "fs/control/listener.h"
#include "fs/control/request.h"

#define TURN_EVENTS 64
#define TURN_ACCEPTS 16

struct kv_control {
	struct kv_server server;
	struct kv_listener listener;
	struct kv_watch on_connect, on_mail;
	struct kv_mail stop;
	int spare; /* given up to refuse a connection when none is left */
	pthread_t thread;
	bool started;
};

struct retire {
	struct kv_mail mail; /* first */
	struct kv_server *server;
	uint32_t segment;
};

static bool over_limit(struct kv_server *server, uint32_t uid)
{
	struct kv_client *client;
	size_t all = 0, same = 0;

	TAILQ_FOREACH(client, &server->clients, link) {
		all++;
		same += client->caller.uid == uid;
	}
	/* The new one is among them. */
	return all > KV_CONTROL_CLIENTS ||
	       (uid != 0 && same > KV_CONTROL_CLIENTS_PER_UID);
}

/* Out of descriptors: without this the connection would wait, readable, and we
 * would spin. */
static void refuse(struct kv_control *control)
{
	int fd;

	control->server.tally.refused++;
	kv_closep(&control->spare);
	fd = accept4(control->listener.fd, NULL, NULL, SOCK_CLOEXEC);
	kv_closep(&fd);
	control->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void connection_ready(struct kv_watch *watch, uint32_t events)
{
	struct kv_control *control =
		kv_container(watch, struct kv_control, on_connect);
	struct kv_server *server = &control->server;
	struct kv_client *client;
	int fd;

	(void)events;
	for (int i = 0; i < TURN_ACCEPTS; i++) {
		fd = accept4(control->listener.fd, NULL, NULL,
			     SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd < 0 && (errno == EMFILE || errno == ENFILE))
			refuse(control);
		if (fd < 0)
			return;
		server->tally.accepted++;
		if (kv_client_new(server, fd, &client) < 0) {
			server->tally.refused++;
			continue;
		}
		if (over_limit(server, client->caller.uid)) {
			server->tally.refused++;
			kv_client_break(client, KV_BREAK_GONE);
		}
	}
}

static void mail_ready(struct kv_watch *watch, uint32_t events)
{
	struct kv_control *control =
		kv_container(watch, struct kv_control, on_mail);

	(void)events;
	kv_mailbox_run(&control->server.mailbox);
}

static void begin_stop(struct kv_mail *mail)
{
	struct kv_control *control =
		kv_container(mail, struct kv_control, stop);
	struct kv_server *server = &control->server;
	struct kv_client *client;

	server->stopping = true;
	epoll_ctl(server->epoll, EPOLL_CTL_DEL, control->listener.fd, NULL);
	TAILQ_FOREACH(client, &server->clients, link)
		kv_client_quiesce(client);
}

/* Wait for the next events, or for the next deadline. */
static int wait_for(struct kv_server *server, struct epoll_event *events)
{
	struct timespec wait;
	uint64_t next, now;

	if (!kv_requests_expire(server, &next))
		return epoll_wait(server->epoll, events, TURN_EVENTS, -1);
	now = kv_now_ns();
	next = next > now ? next - now : 0;
	wait.tv_sec = (time_t)(next / 1000000000u);
	wait.tv_nsec = (long)(next % 1000000000u);
	return epoll_pwait2(server->epoll, events, TURN_EVENTS, &wait, NULL);
}

static void *serve(void *arg)
{
	struct kv_control *control = arg;
	struct kv_server *server = &control->server;
	struct epoll_event events[TURN_EVENTS];
	struct kv_client *client;
	struct kv_watch *watch;
	int n;

	while (!server->stopping || server->pending) {
		n = wait_for(server, events);
		for (int i = 0; i < n; i++) {
			watch = events[i].data.ptr;
			watch->ready(watch, events[i].events);
		}
		kv_client_sweep(server);
	}
	while ((client = TAILQ_FIRST(&server->clients)))
		kv_client_end(client);
	server->sweep = true;
	kv_client_sweep(server);
	/* What kv_control_retire posted last. */
	kv_mailbox_run(&server->mailbox);
	return NULL;
}

static int watch(struct kv_control *control, struct kv_watch *watch, int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = watch};

	if (epoll_ctl(control->server.epoll, EPOLL_CTL_ADD, fd, &event) < 0)
		return -errno;
	return 0;
}

/* Takes one that is half made, too. */
static void control_free(struct kv_control *control)
{
	struct kv_server *server = &control->server;

	if (control->started)
		pthread_join(control->thread, NULL);
	kv_ingest_stop(server->ingest);
	kv_listener_close(&control->listener);
	kv_deadlines_fini(&server->deadlines);
	if (server->mailbox.fd >= 0)
		kv_mailbox_fini(&server->mailbox);
	kv_closep(&server->epoll);
	kv_closep(&control->spare);
	free(control);
}

static void control_freep(struct kv_control **control)
{
	if (*control)
		control_free(*control);
}

static int set_up(struct kv_control *control, struct kv_cache *cache)
{
	struct kv_server *server = &control->server;
	int r;

	server->cache = cache;
	TAILQ_INIT(&server->clients);
	TAILQ_INIT(&server->ended);
	control->on_connect.ready = connection_ready;
	control->on_mail.ready = mail_ready;
	control->stop.run = begin_stop;
	server->epoll = control->spare = control->listener.fd = -1;
	server->mailbox.fd = -1;

	if (getrandom(&server->seed, sizeof(server->seed), 0) < 0)
		return -errno;
	r = kv_mailbox_init(&server->mailbox);
	if (r < 0) {
		server->mailbox.fd = -1;
		return r;
	}
	server->epoll = epoll_create1(EPOLL_CLOEXEC);
	control->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (server->epoll < 0 || control->spare < 0)
		return -errno;
	r = watch(control, &control->on_mail, server->mailbox.fd);
	if (r < 0)
		return r;
	return kv_ingest_start(&server->ingest);
}

int kv_control_start(struct kv_cache *cache, const char *path,
		     struct kv_control **ret_control, char **ret_why)
{
	_cleanup_(control_freep) struct kv_control *control = NULL;
	int r = -ENOMEM;

	*ret_why = NULL;
	control = calloc(1, sizeof(*control));
	if (control)
		r = set_up(control, cache);
	if (r == 0)
		r = kv_listener_open(&control->listener, path, ret_why);
	if (r == 0)
		r = watch(control, &control->on_connect, control->listener.fd);
	if (r == 0)
		r = kv_thread_start(&control->thread, "kvfs-control", serve,
				    control);
	if (r < 0) {
		if (!*ret_why && asprintf(ret_why, "control socket %s: %s",
					  path, strerror(-r)) < 0)
			*ret_why = NULL;
		return r;
	}
	control->started = true;
	*ret_control = kv_steal(control);
	return 0;
}

void kv_control_stop(struct kv_control *control)
{
	if (!control)
		return;
	kv_mailbox_post(&control->server.mailbox, &control->stop);
	control_free(control);
}

static void retire(struct kv_mail *mail)
{
	struct retire *r = kv_container(mail, struct retire, mail);
	struct kv_client *client;

	TAILQ_FOREACH(client, &r->server->clients, link)
		kv_client_retire(client, r->segment);
	free(r);
}

void kv_control_retire(struct kv_control *control, uint32_t segment)
{
	struct retire *r;

	if (!control)
		return;
	r = malloc(sizeof(*r));
	/* Without memory the segment stays charged until its clients go. */
	if (!r)
		return;
	*r = (struct retire){.mail.run = retire,
			     .server = &control->server,
			     .segment = segment};
	kv_mailbox_post(&control->server.mailbox, &r->mail);
}

void kv_control_counts(struct kv_control *control,
		       struct kv_control_counts *ret_counts)
{
	const struct kv_tally *t = &control->server.tally;

	*ret_counts = (struct kv_control_counts){
		.connections = t->connections,
		.accepted = t->accepted,
		.refused = t->refused,
		.messages = t->messages,
		.protocol_errors = t->protocol_errors,
		.slow = t->slow,
		.stray_releases = t->stray_releases,
		.forced_releases = t->forced_releases,
		.dropped_reservations = t->dropped_reservations,
		.saved = t->saved,
		.saved_bytes = t->saved_bytes,
	};
}
