/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helper.c - a remote tier behind a program of its own, which drives an engine
 * that we would not let into the daemon.
 *
 * A thread starts it, asks, copies, and starts it anew when it has ended.  Bytes
 * go through the landing memory, a memfd: they are copied there before it is
 * asked to put them, and from there when it has said that they came.  It never
 * sees other memory of ours; whatever it writes there or says, we read what we
 * asked for, once, within bounds.
 *
 * OWNS      the thread; the child; the landing memory, made anew for each child;
 *           operations from submit to reap.
 *
 * STATES    of the child, and the function that makes each step:
 *
 *              DOWN -> STARTING  start_child
 *          STARTING -> UP        on_hello
 *      STARTING, UP -> DYING     fail: it broke its word, was late, or hung up
 *             DYING -> DOWN      on_death
 *
 * It begins as STARTING, so that what is asked at once waits for the program.
 *
 * INVARIANTS
 *   (1) An operation is queued, of a request, or done.
 *   (2) A request whose operation was cancelled keeps its place in the landing
 *       memory until it is answered, or the child is given up.
 *   (3) There are requests only while a child is UP.
 *
 * LOCKING   lock for what is marked so; all else is the thread's, or fixed.  A
 *           request that is busy is being copied, without the lock, and its
 *           operation does not end meanwhile.
 */
#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "cache/remote/asked.h"
#include "cache/remote/done.h"
#include "cache/remote/packet.h"
#include "common/thread.h"
#include "common/bytes.h"

#define SECOND 1000000000ull
#define END_NS (SECOND / 2)  /* to end by itself */
#define KILL_NS (SECOND / 4) /* and after that */
#define CLOSE_NS (SECOND)    /* both, and some */
#define AWAIT_NS (SECOND)    /* for a hello, beyond its time */
#define BACKOFF_MIN (SECOND / 10)
#define BACKOFF_MAX (10 * SECOND)

enum state {
	DOWN,
	STARTING,
	UP,
	DYING,
};

enum ending {
	STAYS,
	ENDS,	/* however long its program takes for that */
	CLOSES, /* the same, but its program may be left behind */
};

struct kv_helper {
	struct kv_helper_config config;
	char *url, *tenant, *argv[2]; /* config's strings */
	int wake;		      /* fixed */
	pthread_t thread;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	enum state state;	     /* lock; set by the thread */
	enum ending ending;	     /* lock */
	bool failed, ended;	     /* lock */
	uint64_t starts;	     /* lock: hellos */
	uint64_t until_ns;	     /* lock: of who closes it */
	char why[KV_HELPER_TEXT];    /* lock: of the last failure */
	int why_not;		     /* lock */
	struct kv_remote_ops queued; /* lock */
	struct kv_done done;	     /* lock */
	struct kv_asked asked;	     /* lock; its memory is the thread's */

	struct kv_child child;
	int socket;
	uint64_t since_ns, backoff_ns, start_ns;
	struct kv_packet_out out;
	uint8_t in[KV_HELPER_PACKET];
};

/* ---- operations ---- */

static void end_locked(struct kv_helper *helper, struct kv_errand *request,
		       int status)
{
	if (request->op)
		kv_done_add(&helper->done, request->op, status);
	kv_asked_forget(&helper->asked, request);
}

/* None is busy: the thread itself calls. */
static void end_all_locked(struct kv_helper *helper, int status)
{
	struct kv_errand *request;
	struct kv_remote_op *op;

	while ((request = TAILQ_FIRST(&helper->asked.asked)))
		end_locked(helper, request, status);
	while ((op = TAILQ_FIRST(&helper->queued))) {
		TAILQ_REMOVE(&helper->queued, op, link);
		kv_done_add(&helper->done, op, status);
	}
}

void kv_helper_submit(struct kv_helper *helper, struct kv_remote_op *const *ops,
		      size_t n)
{
	pthread_mutex_lock(&helper->lock);
	for (size_t i = 0; i < n; i++) {
		ops[i]->cancelled = false;
		if (helper->state == DOWN || helper->state == DYING) {
			kv_done_add(&helper->done, ops[i], -EIO);
			continue;
		}
		ops[i]->under_way = true;
		ops[i]->of = NULL;
		TAILQ_INSERT_TAIL(&helper->queued, ops[i], link);
	}
	pthread_mutex_unlock(&helper->lock);
	eventfd_write(helper->wake, 1);
}

void kv_helper_cancel(struct kv_helper *helper, struct kv_remote_op *op)
{
	struct kv_errand *request;

	pthread_mutex_lock(&helper->lock);
	request = op->of;
	if (op->under_way && !request) {
		TAILQ_REMOVE(&helper->queued, op, link);
		kv_done_add(&helper->done, op, -ECANCELED);
	} else if (op->under_way && request->busy) {
		op->cancelled = true; /* it ends when it is copied */
	} else if (op->under_way) {
		request->op = NULL;
		request->tell = true;
		kv_done_add(&helper->done, op, -ECANCELED);
		eventfd_write(helper->wake, 1);
	}
	pthread_mutex_unlock(&helper->lock);
}

int kv_helper_fd(struct kv_helper *helper)
{
	return helper->done.event;
}

size_t kv_helper_reap(struct kv_helper *helper, struct kv_remote_op **ret_ops,
		      size_t max)
{
	size_t n;

	pthread_mutex_lock(&helper->lock);
	n = kv_done_reap(&helper->done, ret_ops, max);
	pthread_mutex_unlock(&helper->lock);
	return n;
}

/* ---- to the child ---- */

/* Take queued operations into requests, in their order. */
static size_t take_locked(struct kv_helper *helper, struct kv_errand **ret)
{
	struct kv_remote_op *op;
	size_t n = 0;
	int r;

	while (n < KV_HELPER_BATCH && (op = TAILQ_FIRST(&helper->queued))) {
		r = kv_asked_add(&helper->asked, op, helper->config.landing,
				 &ret[n]);
		if (r == -EAGAIN)
			break;
		TAILQ_REMOVE(&helper->queued, op, link);
		if (r < 0) {
			kv_done_add(&helper->done, op, r);
			continue;
		}
		ret[n]->busy = true;
		op->of = ret[n++];
	}
	return n;
}

static void add_request(struct kv_helper *helper,
			const struct kv_errand *request)
{
	struct kv_helper_request item = {
		.id = request->id,
		.call = request->call,
		.at = request->place.at,
		.bytes = request->bytes,
	};

	memcpy(item.name, request->op->name, sizeof(request->op->name));
	kv_packet_add(&helper->out, &item, sizeof(item));
}

static void write_requests(struct kv_helper *helper)
{
	struct kv_errand *taken[KV_HELPER_BATCH];
	size_t n;

	pthread_mutex_lock(&helper->lock);
	n = take_locked(helper, taken);
	pthread_mutex_unlock(&helper->lock);
	for (size_t i = 0; i < n; i++)
		kv_asked_fill(&helper->asked, taken[i]);
	kv_packet_begin(&helper->out, KV_HELPER_DO);
	pthread_mutex_lock(&helper->lock);
	for (size_t i = 0; i < n; i++) {
		taken[i]->busy = false;
		if (taken[i]->op->cancelled)
			end_locked(helper, taken[i], -ECANCELED);
		else
			add_request(helper, taken[i]);
	}
	pthread_mutex_unlock(&helper->lock);
}

static void write_cancels(struct kv_helper *helper)
{
	struct kv_errand *request;

	kv_packet_begin(&helper->out, KV_HELPER_CANCEL);
	pthread_mutex_lock(&helper->lock);
	TAILQ_FOREACH(request, &helper->asked.asked, link)
		if (request->tell && kv_packet_add(&helper->out, &request->id,
						   sizeof(request->id)))
			request->tell = false;
	pthread_mutex_unlock(&helper->lock);
}

/* Say all that there is to say. */
static int say(struct kv_helper *helper)
{
	int r = kv_packet_send(&helper->out, helper->socket);
	bool said = true;

	while (r == 0 && said) {
		write_cancels(helper);
		said = kv_packet_waits(&helper->out);
		r = kv_packet_send(&helper->out, helper->socket);
		if (r < 0)
			break;
		write_requests(helper);
		said |= kv_packet_waits(&helper->out);
		r = kv_packet_send(&helper->out, helper->socket);
	}
	return r == -EAGAIN ? 0 : r;
}

/* ---- its life ---- */

/* A program's words may come to a terminal. */
static void disarm(char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' || *text == 0x7f)
			*text = '?';
}

/* Give it up: who waits shall not. */
static void fail(struct kv_helper *helper, int error, const char *why)
{
	kv_child_kill(&helper->child);
	kv_closep(&helper->socket);
	helper->socket = -1;
	kv_packet_drop(&helper->out);
	pthread_mutex_lock(&helper->lock);
	helper->state = DYING;
	helper->failed = true;
	helper->why_not = error;
	snprintf(helper->why, sizeof(helper->why), "%s", why);
	disarm(helper->why);
	end_all_locked(helper, -EIO);
	pthread_cond_broadcast(&helper->changed);
	pthread_mutex_unlock(&helper->lock);
	kv_landing_drop(&helper->asked.landing);
}

/* The next comes the later, the sooner this one went. */
static void on_death(struct kv_helper *helper)
{
	const uint64_t now = kv_now_ns();
	int status;

	if (!kv_child_reap(&helper->child, &status))
		return;
	if (now - helper->since_ns > BACKOFF_MAX)
		helper->backoff_ns = 0;
	helper->backoff_ns = KV_MIN(KV_MAX(helper->backoff_ns * 2, BACKOFF_MIN),
				    BACKOFF_MAX);
	helper->start_ns = now + helper->backoff_ns;
	pthread_mutex_lock(&helper->lock);
	helper->state = DOWN;
	pthread_mutex_unlock(&helper->lock);
}

/* *@ret_what: the path that it is about, or NULL. */
static int connect_child(struct kv_helper *helper, const char **ret_what)
{
	_cleanup_(kv_closep) int landing =
		kv_landing_make(&helper->asked.landing, helper->config.landing);
	struct kv_launch launch = helper->config.launch;
	int pair[2], r;

	if (landing < 0)
		return landing;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	helper->socket = pair[0];
	launch.fd = pair[1];
	r = kv_packet_hello(helper->socket, landing, &helper->config);
	if (r == 0)
		r = helper->config.start(&launch, &helper->child, ret_what);
	close(pair[1]);
	return r;
}

static void start_child(struct kv_helper *helper)
{
	char why[KV_HELPER_TEXT];
	const char *what = NULL;
	int r;

	helper->since_ns = kv_now_ns();
	pthread_mutex_lock(&helper->lock);
	helper->state = STARTING;
	pthread_mutex_unlock(&helper->lock);
	r = connect_child(helper, &what);
	if (r == 0)
		return;
	snprintf(why, sizeof(why), "%s%s%s", what ? what : "", what ? ": " : "",
		 strerror(-r));
	fail(helper, r, why);
}

/* ---- from the child ---- */

static int on_hello(struct kv_helper *helper, const uint8_t *item)
{
	struct kv_helper_hello hello;

	memcpy(&hello, item, sizeof(hello));
	hello.text[sizeof(hello.text) - 1] = '\0';
	if (hello.status < 0) {
		fail(helper, KV_MAX(hello.status, -4095),
		     hello.text[0] ? hello.text : "it cannot");
		return -ECONNRESET;
	}
	if (hello.version != KV_HELPER_VERSION || hello.status > 0)
		return -EPROTO;
	pthread_mutex_lock(&helper->lock);
	helper->state = UP;
	helper->asked.clears = hello.landing & KV_HELPER_CLEARS;
	helper->starts++;
	pthread_cond_broadcast(&helper->changed);
	pthread_mutex_unlock(&helper->lock);
	return 0;
}

static int on_answer(struct kv_helper *helper, const uint8_t *item)
{
	struct kv_helper_answer answer;
	struct kv_errand *request;
	int r;

	memcpy(&answer, item, sizeof(answer));
	if (answer.status > 0 || answer.status < -4095)
		return -EPROTO;
	pthread_mutex_lock(&helper->lock);
	request = kv_asked_find(&helper->asked, answer.id);
	if (request && request->op)
		request->busy = true;
	else if (request)
		kv_asked_forget(&helper->asked, request);
	pthread_mutex_unlock(&helper->lock);
	if (!request)
		return -EPROTO;
	if (!request->busy)
		return 0;
	r = kv_asked_land(&helper->asked, request, &answer);
	pthread_mutex_lock(&helper->lock);
	request->busy = false;
	end_locked(helper, request, r);
	pthread_mutex_unlock(&helper->lock);
	return 0;
}

static int on_packet(struct kv_helper *helper, const uint8_t *packet, size_t n)
{
	struct kv_helper_head head;
	size_t size;
	int r = 0;

	if (n < sizeof(head))
		return -EPROTO;
	memcpy(&head, packet, sizeof(head));
	packet += sizeof(head);
	n -= sizeof(head);
	if (helper->state == STARTING)
		return head.type == KV_HELPER_HELLO && head.count == 1 &&
				       n == sizeof(struct kv_helper_hello)
			       ? on_hello(helper, packet)
			       : -EPROTO;
	size = sizeof(struct kv_helper_answer);
	if (head.type != KV_HELPER_DO || n != head.count * size)
		return -EPROTO;
	for (size_t i = 0; i < head.count && r == 0; i++)
		r = on_answer(helper, packet + i * size);
	return r;
}

/* What there is now, so much at most that it does not keep us from asking. */
static int hear(struct kv_helper *helper)
{
	ssize_t n;
	int r = 0;

	for (unsigned i = 0; i < 8 && r == 0; i++) {
		n = recv(helper->socket, helper->in, sizeof(helper->in),
			 MSG_DONTWAIT | MSG_TRUNC);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			break;
		if (n <= 0)
			return n < 0 ? -errno : -ECONNRESET;
		if ((size_t)n > sizeof(helper->in))
			return -EPROTO;
		r = on_packet(helper, helper->in, (size_t)n);
	}
	return r;
}

/* ---- the thread ---- */

/* When something is to be done though nothing happens. */
static uint64_t due_ns(struct kv_helper *helper)
{
	const struct kv_errand *oldest;
	uint64_t due = UINT64_MAX;

	if (helper->state == DOWN)
		return helper->start_ns;
	if (helper->state == STARTING)
		return helper->since_ns + helper->config.hello_ns;
	pthread_mutex_lock(&helper->lock);
	oldest = TAILQ_FIRST(&helper->asked.asked);
	if (oldest)
		due = oldest->since_ns + helper->config.patience_ns;
	pthread_mutex_unlock(&helper->lock);
	return due;
}

static void on_time(struct kv_helper *helper)
{
	if (helper->state == DOWN)
		start_child(helper);
	else if (helper->state == STARTING)
		fail(helper, -ETIMEDOUT,
		     "its program does not say that it is ready");
	else if (helper->state == UP)
		fail(helper, -ETIMEDOUT, "its program does not answer");
}

/* Until something happens, or @due. */
static void rest(struct kv_helper *helper, uint64_t due, struct pollfd fds[3])
{
	const uint64_t now = kv_now_ns();
	int ms = due == UINT64_MAX ? -1
		 : due <= now	   ? 0
			      : (int)KV_MIN((due - now) / 1000000 + 1, 60000u);
	eventfd_t count;

	fds[0] = (struct pollfd){helper->wake, POLLIN, 0};
	fds[1] = (struct pollfd){helper->socket, POLLIN, 0};
	fds[2] = (struct pollfd){helper->child.pidfd, POLLIN, 0};
	if (kv_packet_waits(&helper->out))
		fds[1].events |= POLLOUT;
	if (poll(fds, 3, ms) <= 0)
		return;
	if (fds[0].revents)
		eventfd_read(helper->wake, &count);
}

static void turn(struct kv_helper *helper)
{
	struct pollfd fds[3];
	const uint64_t due = due_ns(helper);
	int r = 0;

	rest(helper, due, fds);
	if (fds[1].revents)
		r = hear(helper);
	if (r == 0 && helper->state == UP)
		r = say(helper);
	if (r == 0 && fds[2].revents && helper->state != DYING)
		r = -ECONNRESET;
	if (r < 0 && (helper->state == STARTING || helper->state == UP))
		fail(helper, r,
		     r == -EPROTO
			     ? "its program says what is not in the protocol"
			     : "its program has ended");
	if (kv_now_ns() >= due)
		on_time(helper);
	if (helper->state == DYING)
		on_death(helper);
}

static enum ending ending(struct kv_helper *helper)
{
	enum ending ending;

	pthread_mutex_lock(&helper->lock);
	ending = helper->ending;
	pthread_mutex_unlock(&helper->lock);
	return ending;
}

/* Until its program has ended, something was said to us, or @until. */
static void rest_at_end(struct kv_helper *helper, uint64_t until)
{
	struct pollfd fds[] = {{helper->child.pidfd, POLLIN, 0},
			       {helper->wake, POLLIN, 0}};
	const uint64_t now = kv_now_ns();
	eventfd_t count;

	poll(fds, 2, now < until ? (int)((until - now) / 1000000) + 1 : -1);
	if (fds[1].revents)
		eventfd_read(helper->wake, &count);
}

/* It has an end of its socket to see, and some time. */
static void end_child(struct kv_helper *helper)
{
	uint64_t until = kv_now_ns() + END_NS;
	bool killed = helper->state != UP;
	int status;

	kv_closep(&helper->socket);
	helper->socket = -1;
	if (killed)
		kv_child_kill(&helper->child);
	while (!kv_child_reap(&helper->child, &status)) {
		const bool late = kv_now_ns() >= until;

		if (late && killed && ending(helper) == CLOSES) {
			kv_closep(&helper->child.pidfd);
			break; /* it is in a call that does not end */
		}
		if (late && !killed) {
			kv_child_kill(&helper->child);
			killed = true;
			until = kv_now_ns() + KILL_NS;
		}
		rest_at_end(helper, until);
	}
	kv_landing_drop(&helper->asked.landing);
}

static void *run(void *arg)
{
	struct kv_helper *helper = arg;

	start_child(helper);
	if (helper->state == DYING)
		on_death(helper);
	while (ending(helper) == STAYS)
		turn(helper);
	end_child(helper);
	pthread_mutex_lock(&helper->lock);
	helper->state = DOWN;
	end_all_locked(helper, -ECANCELED);
	helper->ended = true;
	eventfd_write(helper->done.event, 1);
	pthread_cond_broadcast(&helper->changed);
	pthread_mutex_unlock(&helper->lock);
	return NULL;
}

/* ---- begin and end ---- */

static void helper_free(struct kv_helper *helper)
{
	kv_done_fini(&helper->done);
	if (helper->wake >= 0)
		close(helper->wake);
	pthread_mutex_destroy(&helper->lock);
	pthread_cond_destroy(&helper->changed);
	free(helper->url);
	free(helper->tenant);
	for (size_t i = 0; i < KV_ARRAY_LEN(helper->argv); i++)
		free(helper->argv[i]);
	free(helper);
}

/* 0, or ETIMEDOUT when it is @until. */
static int wait_locked(struct kv_helper *helper, uint64_t until)
{
	const struct timespec at = {
		.tv_sec = (time_t)(until / SECOND),
		.tv_nsec = (long)(until % SECOND),
	};

	return pthread_cond_clockwait(&helper->changed, &helper->lock,
				      CLOCK_MONOTONIC, &at);
}

void kv_helper_end(struct kv_helper *helper, bool leave)
{
	pthread_mutex_lock(&helper->lock);
	if (leave && helper->ending != CLOSES)
		helper->until_ns = kv_now_ns() + CLOSE_NS;
	helper->ending = leave ? CLOSES : KV_MAX(helper->ending, ENDS);
	eventfd_write(helper->wake, 1);
	pthread_mutex_unlock(&helper->lock);
}

bool kv_helper_has_ended(struct kv_helper *helper)
{
	bool ended;

	pthread_mutex_lock(&helper->lock);
	ended = helper->ended;
	pthread_mutex_unlock(&helper->lock);
	return ended;
}

int kv_helper_close(struct kv_helper *helper)
{
	bool ended;
	int r = 0;

	kv_helper_end(helper, true);
	pthread_mutex_lock(&helper->lock);
	while (!helper->ended && r == 0)
		r = wait_locked(helper, helper->until_ns);
	ended = helper->ended;
	pthread_mutex_unlock(&helper->lock);
	if (!ended)
		return -EBUSY;
	pthread_join(helper->thread, NULL);
	helper_free(helper);
	return 0;
}

/* -ENOMEM. */
static int copy_config(struct kv_helper *helper,
		       const struct kv_helper_config *config)
{
	helper->config = *config;
	helper->config.url = helper->url = strdup(config->url);
	helper->config.tenant = helper->tenant = strdup(config->tenant);
	if (!helper->url || !helper->tenant)
		return -ENOMEM;
	for (size_t i = 0; i < KV_ARRAY_LEN(helper->argv); i++) {
		if (!config->launch.argv[i])
			break;
		helper->argv[i] = strdup(config->launch.argv[i]);
		if (!helper->argv[i])
			return -ENOMEM;
		helper->config.launch.argv[i] = helper->argv[i];
	}
	return 0;
}

static struct kv_helper *helper_new(void)
{
	struct kv_helper *helper = calloc(1, sizeof(*helper));

	if (!helper)
		return NULL;
	helper->state = STARTING; /* what is submitted now waits */
	pthread_mutex_init(&helper->lock, NULL);
	pthread_cond_init(&helper->changed, NULL);
	TAILQ_INIT(&helper->queued);
	kv_asked_init(&helper->asked);
	helper->socket = helper->child.pidfd = -1;
	kv_done_init(&helper->done);
	helper->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return helper;
}

int kv_helper_open(const struct kv_helper_config *config,
		   struct kv_helper **ret_helper)
{
	struct kv_helper *helper = helper_new();
	int r;

	if (!helper)
		return -ENOMEM;
	r = helper->done.event < 0 || helper->wake < 0
		    ? -EMFILE
		    : copy_config(helper, config);
	if (r == 0)
		r = kv_thread_start(&helper->thread, "kvfs-helper", run,
				    helper);
	if (r < 0)
		helper_free(helper);
	else
		*ret_helper = helper;
	return r;
}

int kv_helper_await(struct kv_helper *helper, char **ret_why)
{
	const uint64_t until = kv_now_ns() + helper->config.hello_ns + AWAIT_NS;
	const char *why = "its program does not begin";
	int late = 0, r = 0;

	*ret_why = NULL;
	pthread_mutex_lock(&helper->lock);
	while (!helper->starts && !helper->failed && !late)
		late = wait_locked(helper, until);
	if (helper->failed) {
		r = helper->why_not;
		why = helper->why;
	} else if (!helper->starts) {
		r = -ETIMEDOUT;
	}
	if (r < 0)
		kv_why(ret_why, r, "%s", why);
	pthread_mutex_unlock(&helper->lock);
	return r;
}

uint64_t kv_helper_starts(struct kv_helper *helper)
{
	uint64_t starts;

	pthread_mutex_lock(&helper->lock);
	starts = helper->starts;
	pthread_mutex_unlock(&helper->lock);
	return starts;
}

bool kv_helper_is_up(struct kv_helper *helper)
{
	bool up;

	pthread_mutex_lock(&helper->lock);
	up = helper->state == UP;
	pthread_mutex_unlock(&helper->lock);
	return up;
}
