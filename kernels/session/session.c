/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.c - sessions, and their reader thread, which connects, handles the
 * daemon's messages and fires timers.
 *
 * OWNS      struct kvfs_session, but for the members of other files, and the
 *           descriptors for waking and waiting.  Only the reader thread opens or
 *           closes session->link.  The running timers, in an unsorted list, as
 *           an engine has only tens of transfers in flight.  For pthread_atfork
 *           the list of the process's sessions and the count of forks.
 *
 * STATES    of the connection:
 *
 *              DOWN -> LIVE   connect_again
 *              LIVE -> DOWN   disconnect (the daemon went away, or sent a
 *                             packet that is no message)
 *
 * INVARIANTS
 *   (1) event_fd, if it exists, is readable if and only if completed > 0 or
 *       link_changed.
 *   (2) When kvfs_close frees, no transfer is in flight and no thread runs.
 *   (3) session->live is the connection's number while it is LIVE, else 0;
 *       numbers are not used twice.
 *   (4) Only mappings in use outlive their connection: all requests have ended
 *       when DOWN is visible.
 *   (5) A timer is in the list if and only if its @at is not 0, and the reader
 *       thread sleeps no longer than to the earliest @at.
 *   (6) A session is in the list of sessions from kvfs_open to kvfs_close; in a
 *       fork's child the list is empty, and the descriptors of the parent's
 *       sessions are closed, but for those of queued messages.
 *   (7) A thread that sleeps in kv_session_wait is woken by each change: it waits
 *       for the condition, or borrower_sleeps is set and nudge_fd ends its poll.
 *   (8) Messages wake the borrower if there is one, else the reader thread.
 *
 * LOCKING   session->lock guards the fields that session.h marks; the order of
 *           locks is there.  Threads that receive, the reader and the borrower
 *           (a thread in kv_session_wait), take receive_lock, then
 *           session->lock, and hold neither while they sleep or connect.  Only
 *           a finder makes calls that a mount can block.  forks_lock is a leaf,
 *           held across fork, so that the child's list is consistent.  The
 *           child takes no lock of a session: a thread that does not exist in
 *           the child may hold it.
 */
#include <stdatomic.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "kernels/device/device.h"
#include "kernels/session/session.h"
#include "common/rate.h"
#include "common/thread.h"

#define FIRST_CONNECT_NS 1000000000u
#define RETRY_FIRST_NS 5000000u
#define RETRY_LAST_NS 1000000000u
#define PATIENCE_NS 5000000000u /* first time-out of a search for the socket */

/* ---- forks ---- */

static pthread_mutex_t forks_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t forks_once = PTHREAD_ONCE_INIT;
static TAILQ_HEAD(, kvfs_session) sessions = TAILQ_HEAD_INITIALIZER(sessions);
static atomic_uint forks; /* forks of this process so far */

static void before_fork(void)
{
	pthread_mutex_lock(&forks_lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&forks_lock);
}

static void in_child(void)
{
	struct kv_mapped_segment *m;
	struct kvfs_session *s;

	atomic_fetch_add(&forks, 1);
	TAILQ_FOREACH(s, &sessions, siblings) {
		kv_closep(&s->link.fd);
		kv_closep(&s->lookup.fd);
		TAILQ_FOREACH(m, &s->mappings, others)
			kv_closep(&m->kept);
		if (s->user)
			s->user->forked(s);
	}
	TAILQ_INIT(&sessions);
	pthread_mutex_unlock(&forks_lock);
}

static void register_handlers(void)
{
	pthread_atfork(before_fork, after_fork, in_child);
}

static void forget_forks(struct kvfs_session *session)
{
	pthread_mutex_lock(&forks_lock);
	TAILQ_REMOVE(&sessions, session, siblings);
	pthread_mutex_unlock(&forks_lock);
}

/* ---- checking handles, waking threads and waiting ---- */

int kv_session_check(const struct kvfs_session *session)
{
	if (!session)
		return -EINVAL;
	return session->fork_count == atomic_load(&forks) ? 0 : -EBADF;
}

void kv_session_wake(struct kvfs_session *session)
{
	eventfd_write(session->wake_fd, 1);
}

void kv_session_changed_locked(struct kvfs_session *session)
{
	kv_assert_locked(&session->lock);
	pthread_cond_broadcast(&session->changed);
	if (atomic_load(&session->borrower_sleeps))
		eventfd_write(session->nudge_fd, 1);
}

static bool has_news_locked(const struct kvfs_session *session)
{
	kv_assert_locked(&session->lock);
	return session->completed > 0 || session->link_changed;
}

/* Make kvfs_fd readable and wake waiting threads.  Call this before
 * session->completed or session->link_changed is set. */
static void announce_news_locked(struct kvfs_session *session)
{
	if (!has_news_locked(session) && session->event_fd >= 0)
		eventfd_write(session->event_fd, 1);
	kv_session_changed_locked(session);
}

void kv_session_completed_locked(struct kvfs_session *session)
{
	announce_news_locked(session);
	session->completed++;
}

static void link_changed_locked(struct kvfs_session *session)
{
	announce_news_locked(session);
	session->link_changed = session->link_unreaped = true;
}

uint64_t kv_time_after(uint64_t deadline)
{
	uint64_t now = kv_now_ns();

	return deadline > UINT64_MAX - now ? UINT64_MAX : now + deadline;
}

int kv_session_wait_for(struct kvfs_session *session, pthread_cond_t *cond,
			uint64_t at)
{
	kv_assert_locked(&session->lock);
	return at == UINT64_MAX ? -pthread_cond_wait(cond, &session->lock)
				: kv_cond_wait_until(cond, &session->lock, at);
}

/* Have the reader thread sleep until messages arrive, unless a borrower receives
 * them, and until the socket has room if messages are queued.  @op: add or
 * modify the socket. */
static void listen_locked(struct kvfs_session *session, int op)
{
	struct epoll_event event = {
		.events = (session->borrowed ? 0 : EPOLLIN) |
			  (session->wants_room ? EPOLLOUT : 0),
		.data.fd = session->link.fd,
	};

	kv_assert_locked(&session->lock);
	if (session->link.fd >= 0)
		epoll_ctl(session->epoll_fd, op, session->link.fd, &event);
}

/* Receive and handle all messages that have arrived.  Return 0, or -errno if the
 * connection is broken. */
static int receive_all(struct kvfs_session *session)
{
	int r;

	pthread_mutex_lock(&session->receive_lock);
	do
		r = kv_rpc_receive(session);
	while (r > 0);
	pthread_mutex_unlock(&session->receive_lock);
	return r;
}

/* Sleep until @fd has events, the eventfd @event is written to, or the time @until
 * is reached.  Return whether @fd has events. */
static bool sleep_until(int event, int fd, uint64_t until)
{
	struct pollfd fds[2] = {
		{.fd = event, .events = POLLIN},
		{.fd = fd, .events = POLLIN},
	};
	const uint64_t now = kv_now_ns();
	const struct timespec timeout =
		kv_timespec(until > now ? until - now : 0);
	eventfd_t ignored;

	ppoll(fds, KV_ARRAY_LEN(fds), until == UINT64_MAX ? NULL : &timeout,
	      NULL);
	if (fds[0].revents)
		eventfd_read(event, &ignored);
	return fds[1].revents;
}

/* Receive the daemon's messages until something changed.  Another thread that
 * makes a change wakes this one by nudge_fd: the flag borrower_sleeps is set
 * before the lock is released, so that each later change sees it.  The
 * descriptor of a lost connection may be another file's by now; losing it is
 * such a change. */
static void borrow_locked(struct kvfs_session *session, uint64_t at)
{
	const int fd = session->link.fd;
	int r = 0;
	bool ready;

	kv_assert_locked(&session->lock);
	session->borrowed = true;
	listen_locked(session, EPOLL_CTL_MOD);
	atomic_store(&session->borrower_sleeps, true);
	pthread_mutex_unlock(&session->lock);
	ready = sleep_until(session->nudge_fd, fd, at);
	atomic_store(&session->borrower_sleeps, false);
	if (ready)
		r = receive_all(session);
	pthread_mutex_lock(&session->lock);
	session->borrowed = false;
	listen_locked(session, EPOLL_CTL_MOD);
	if (session->heirs > 0)
		pthread_cond_broadcast(&session->changed);
	if (r < 0) /* the reader thread closes the connection */
		kv_session_wake(session);
}

int kv_session_wait(struct kvfs_session *session, uint64_t at)
{
	int r;

	kv_assert_locked(&session->lock);
	if (!session->borrowed && session->link.fd >= 0 &&
	    session->rpc.n_pending > 0) {
		borrow_locked(session, at);
		return kv_now_ns() >= at ? -ETIMEDOUT : 0;
	}
	session->heirs++;
	r = kv_session_wait_for(session, &session->changed, at);
	session->heirs--;
	return r;
}

/* ---- timers ---- */

void kv_timer_start_locked(struct kvfs_session *session, struct kv_timer *timer,
			   uint64_t at)
{
	kv_assert_locked(&session->lock);
	kv_timer_stop_locked(session, timer);
	if (at == UINT64_MAX)
		return;
	timer->at = KV_MAX(at, 1u);
	LIST_INSERT_HEAD(&session->timers, timer, others);
	if (at < session->sleeps_until)
		kv_session_wake(session);
}

void kv_timer_stop_locked(struct kvfs_session *session, struct kv_timer *timer)
{
	kv_assert_locked(&session->lock);
	if (timer->at == 0)
		return;
	LIST_REMOVE(timer, others);
	timer->at = 0;
}

/* Fire due timers.  Return the time of the next one, or UINT64_MAX. */
static uint64_t run_timers_locked(struct kvfs_session *session)
{
	uint64_t first = UINT64_MAX, now = kv_now_ns();
	struct kv_timers due = LIST_HEAD_INITIALIZER(due);
	struct kv_timer *t, *next;

	kv_assert_locked(&session->lock);
	/* Move the due timers to a separate list: a timer that fires may stop
	 * other timers. */
	for (t = LIST_FIRST(&session->timers); t; t = next) {
		next = LIST_NEXT(t, others);
		if (t->at > now)
			continue;
		LIST_REMOVE(t, others);
		LIST_INSERT_HEAD(&due, t, others);
	}
	while ((t = LIST_FIRST(&due))) {
		kv_timer_stop_locked(session, t);
		t->fire(t);
	}
	LIST_FOREACH(t, &session->timers, others)
		first = KV_MIN(first, t->at);
	return first;
}

/* ---- the reader thread ---- */

struct retry {
	uint64_t at; /* time by kv_now_ns */
	uint64_t wait;
	struct kv_finder *finder; /* running search; NULL: none */
	uint64_t patience; /* nanoseconds that the next search may take */
};

/* Return whether the daemon has ended the connection @fd: all its messages were
 * received, and no more can come. */
static bool is_cut(int fd)
{
	char byte;

	return recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static void disconnect(struct kvfs_session *session)
{
	int fd;

	pthread_mutex_lock(&session->receive_lock);
	pthread_mutex_lock(&session->lock);
	atomic_store(&session->live, 0);
	listen_locked(session, EPOLL_CTL_DEL);
	fd = kv_steal_fd(&session->link.fd);
	/* After any other error have the daemon cut the connection, by a packet
	 * that is no message: leased memory may still be read. */
	if (!is_cut(fd) && (session->closing ||
			    send(fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0))
		kv_closep(&fd);
	session->broken = false;
	kv_rpc_break_locked(session);
	kv_mapped_segment_retire_all_locked(session, fd);
	if (session->user)
		session->user->broken_locked(session);
	link_changed_locked(session);
	pthread_mutex_unlock(&session->lock);
	pthread_mutex_unlock(&session->receive_lock);
}

/* Look for the socket, whose path may change, and connect.  A finder that hangs
 * in the mount is abandoned after a while, because another daemon may be
 * mounted over the first one.  The patience doubles each time, so there are
 * never many abandoned threads. */
static void connect_again(struct kvfs_session *session, struct retry *retry)
{
	static _Atomic uint32_t printed;
	struct kv_link link = {.fd = -1};
	struct wire_hello theirs = {0};
	char path[KV_SOCKET_PATH_MAX];
	int r;

	if (!retry->finder) {
		r = kv_finder_start(session->path, session->wake_fd,
				    &retry->finder);
		retry->at = kv_now_ns() + retry->patience;
		if (r == 0)
			return;
	} else {
		r = kv_finder_end(kv_steal(retry->finder), path);
		retry->patience =
			r == -ETIMEDOUT ? retry->patience * 2 : PATIENCE_NS;
	}
	if (r == 0)
		r = kv_link_open(path, &link, &theirs);
	/* Print the protocol versions, once for each version of a daemon. */
	if (r == -EPROTONOSUPPORT &&
	    atomic_exchange(&printed, theirs.version) != theirs.version)
		fprintf(stderr,
			"libkvfs %s: the kvfs daemon at %s speaks versions %u "
			"to %u of the protocol, and this library %u to %u: "
			"nothing is found and nothing saved until one of them "
			"is replaced\n",
			KV_VERSION, session->path, theirs.oldest,
			theirs.version, WIRE_OLDEST, WIRE_VERSION);
	pthread_mutex_lock(&session->receive_lock);
	pthread_mutex_lock(&session->lock);
	if (r == 0) {
		strcpy(session->socket_path, path);
		session->link = link;
		session->wants_room = false;
		listen_locked(session, EPOLL_CTL_ADD);
		atomic_store(&session->live, ++session->generations);
		if (session->user)
			session->user->connected_locked(session);
		kv_attach_ask_locked(session);
		link_changed_locked(session);
	}
	atomic_store(&session->lost, kv_link_lost(r));
	atomic_store(&session->refused,
		     r == -EPROTONOSUPPORT || r == -EPERM ? r : 0);
	session->tried = true;
	kv_session_changed_locked(session);
	pthread_mutex_unlock(&session->lock);
	pthread_mutex_unlock(&session->receive_lock);
	retry->wait = kv_backoff(r == 0 ? 0 : retry->wait, RETRY_FIRST_NS,
				 RETRY_LAST_NS);
	retry->at = kv_now_ns() + retry->wait;
}

static void *run_reader(void *arg)
{
	struct kvfs_session *session = arg;
	struct retry retry = {.wait = RETRY_FIRST_NS, .patience = PATIENCE_NS};
	char ignored[KV_SOCKET_PATH_MAX];
	uint64_t until;
	bool wants_room;

	for (;;) {
		if (session->link.fd < 0 &&
		    (kv_now_ns() >= retry.at ||
		     (retry.finder && kv_finder_is_done(retry.finder))))
			connect_again(session, &retry);
		pthread_mutex_lock(&session->lock);
		if (session->closing)
			break;
		until = run_timers_locked(session);
		wants_room = session->link.fd >= 0 &&
			     kv_rpc_push_locked(session) > 0;
		if (wants_room != session->wants_room) {
			session->wants_room = wants_room;
			listen_locked(session, EPOLL_CTL_MOD);
		}
		if (session->link.fd < 0)
			until = KV_MIN(until, retry.at);
		session->sleeps_until = until;
		pthread_mutex_unlock(&session->lock);
		/* until the socket is ready (listen_locked) or the session woken */
		sleep_until(session->wake_fd, session->epoll_fd, until);
		if (receive_all(session) < 0)
			disconnect(session);
	}
	pthread_mutex_unlock(&session->lock);
	if (retry.finder)
		(void)kv_finder_end(retry.finder, ignored);
	disconnect(session);
	return NULL;
}

/* ---- opening and closing sessions ---- */

static void session_freep(struct kvfs_session **sessionp)
{
	struct kvfs_session *session = *sessionp;

	if (!session)
		return;
	kv_closep(&session->lookup.fd);
	kv_closep(&session->epoll_fd);
	kv_closep(&session->wake_fd);
	kv_closep(&session->nudge_fd);
	kv_closep(&session->event_fd);
	pthread_cond_destroy(&session->changed);
	pthread_cond_destroy(&session->detach);
	pthread_mutex_destroy(&session->lock);
	pthread_mutex_destroy(&session->receive_lock);
	pthread_mutex_destroy(&session->lookup_lock);
	free(session->received);
	free(session->path);
	free(session);
}

static int session_new(const char *path, struct kvfs_session **ret_session)
{
	_cleanup_(session_freep) struct kvfs_session *session = NULL;

	session = calloc(1, sizeof(*session));
	if (!session)
		return -ENOMEM;
	pthread_mutex_init(&session->lookup_lock, NULL);
	pthread_mutex_init(&session->receive_lock, NULL);
	pthread_mutex_init(&session->lock, NULL);
	kv_cond_init(&session->changed);
	pthread_cond_init(&session->detach, NULL);
	session->link.fd = session->lookup.fd = session->event_fd = -1;
	session->lost = -ENOTCONN;
	session->fork_count = atomic_load(&forks);
	TAILQ_INIT(&session->rpc.out);
	TAILQ_INIT(&session->mappings);
	TAILQ_INIT(&session->detaching);
	TAILQ_INIT(&session->notices);
	TAILQ_INIT(&session->active);
	TAILQ_INIT(&session->saves);
	session->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
	session->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	session->nudge_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (session->epoll_fd < 0 || session->wake_fd < 0 ||
	    session->nudge_fd < 0)
		return -errno;
	session->path = strdup(path);
	session->received = malloc(WIRE_MAX);
	if (!session->path || !session->received)
		return -ENOMEM;
	*ret_session = kv_steal(session);
	return 0;
}

int kvfs_open(const char *path, kvfs_session **ret_session)
{
	_cleanup_(session_freep) struct kvfs_session *session = NULL;
	uint64_t until = kv_time_after(FIRST_CONNECT_NS);
	int r;

	if (!path || !ret_session || path[0] == '\0' ||
	    strlen(path) >= KV_SOCKET_PATH_MAX)
		return -EINVAL;
	r = session_new(path, &session);
	if (r < 0)
		return r;
	pthread_once(&forks_once, register_handlers);
	pthread_mutex_lock(&forks_lock);
	TAILQ_INSERT_TAIL(&sessions, session, siblings);
	pthread_mutex_unlock(&forks_lock);
	r = kv_thread_start(&session->reader, "kvfs-reader", run_reader,
			    session);
	if (r < 0) {
		forget_forks(session);
		return r;
	}
	pthread_mutex_lock(&session->lock);
	while (!session->tried && r == 0)
		r = kv_session_wait(session, until);
	session->link_changed = session->link_unreaped = false;
	pthread_mutex_unlock(&session->lock);
	*ret_session = kv_steal(session);
	return 0;
}

void kvfs_close(kvfs_session *session)
{
	const struct kv_session_user *user;
	struct kv_copier *copier;

	if (kv_session_check(session) < 0)
		return;
	pthread_mutex_lock(&session->lock);
	user = session->user;
	if (user)
		user->closing(session);
	assert(TAILQ_EMPTY(&session->active));
	copier = kv_steal(session->copier);
	pthread_mutex_unlock(&session->lock);
	kv_copier_free(copier);
	pthread_mutex_lock(&session->lock);
	session->closing = true;
	pthread_mutex_unlock(&session->lock);
	kv_session_wake(session);
	pthread_join(session->reader, NULL);
	if (user)
		user->closed(session);
	kv_attach_end(session);
	forget_forks(session);
	session_freep(&session);
}

int kvfs_fd(kvfs_session *session)
{
	int fd, r = kv_session_check(session);

	if (r < 0)
		return r;
	pthread_mutex_lock(&session->lock);
	if (session->event_fd < 0)
		session->event_fd = eventfd(has_news_locked(session),
					    EFD_CLOEXEC | EFD_NONBLOCK);
	fd = session->event_fd < 0 ? -errno : session->event_fd;
	pthread_mutex_unlock(&session->lock);
	return fd;
}

unsigned kv_session_clear_news_locked(struct kvfs_session *session)
{
	unsigned n = session->completed;
	eventfd_t ignored;

	kv_assert_locked(&session->lock);
	if (session->event_fd >= 0)
		eventfd_read(session->event_fd, &ignored);
	session->completed = 0;
	session->link_changed = false;
	return n;
}

int kvfs_process(kvfs_session *session)
{
	int n, r = kv_session_check(session);

	if (r < 0)
		return r;
	pthread_mutex_lock(&session->lock);
	n = (int)kv_session_clear_news_locked(session);
	pthread_mutex_unlock(&session->lock);
	return n;
}

int kvfs_connected(kvfs_session *session)
{
	int r = kv_session_check(session);

	return r < 0 ? r : atomic_load(&session->live) != 0;
}

int kv_session_state_locked(const struct kvfs_session *session)
{
	kv_assert_locked(&session->lock);
	if (atomic_load(&session->live) != 0)
		return 1;
	return atomic_load(&session->refused);
}

int kvfs_connection(kvfs_session *session, uint64_t *ret_generation)
{
	int live, r = kv_session_check(session);

	if (r < 0)
		return r;
	pthread_mutex_lock(&session->lock);
	live = kv_session_state_locked(session);
	if (ret_generation)
		*ret_generation = session->generations;
	pthread_mutex_unlock(&session->lock);
	return live;
}
