/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helper.c - a backend in a program of its own, which drives an engine that must not
 * run inside the daemon.
 *
 * A thread starts the program, sends requests, copies bytes, and starts the program
 * again when it has ended.  Bytes go through the landing memory, a memfd: they are
 * copied there before a put, and from there after a get.  The program never sees other
 * memory of the daemon.  The program's bytes and messages are read once and checked.
 *
 * OWNS      the thread; the child; the landing memory, made anew for each child;
 *           operations from submit to reap.
 *
 * STATES    of the child:
 *              DOWN -> STARTING  start_child
 *          STARTING -> UP        on_hello
 *      STARTING, UP -> DYING     fail: protocol error, late, or hung up
 *             DYING -> DOWN      on_death
 *
 * A child begins as STARTING, so that operations submitted at once wait for the program.
 *
 * INVARIANTS
 *   (1) An operation is queued, of a request, or done.
 *   (2) A request is `asked`, with an id and a place in the landing memory, or
 *       `unused`, with neither.  No id is used twice.  Places do not overlap.
 *   (3) A request whose operation was cancelled keeps its place until it is answered,
 *       or the child is given up.
 *   (4) There are requests only while a child is UP.
 *
 * LOCKING   lock for the fields marked so; all else is the thread's, or fixed.  A busy
 *           request is being copied, without the lock, and its operation does not end
 *           meanwhile.
 */
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "cache/remote/helper.h"
#include "common/bytes.h"
#include "common/rate.h"
#include "common/thread.h"

#define SECOND 1000000000ull
#define END_NS (SECOND / 2)  /* for the program to end by itself */
#define KILL_NS (SECOND / 4) /* after SIGKILL */
#define CLOSE_NS (SECOND)    /* both, and some */
#define AWAIT_NS (SECOND)    /* for a hello, beyond its deadline */
#define BACKOFF_MIN (SECOND / 10)
#define BACKOFF_MAX (10 * SECOND)
#define PACKET 8192u
#define UNIT 128u /* of places */

enum state { DOWN, STARTING, UP, DYING };

enum ending {
	STAYS,
	ENDS,	/* wait for the program, as long as that takes */
	CLOSES, /* the program may be left behind */
};

/* An operation that the child was sent, and has not answered. */
struct request {
	struct kv_remote_op *op; /* NULL: cancelled */
	uint64_t id;		 /* 0: unused */
	enum kv_remote_call call;
	uint64_t at, room; /* place: a note and @bytes, rounded up */
	uint64_t bytes;
	uint64_t since_ns;
	bool busy;		    /* being copied */
	bool tell;		    /* send the child a cancel */
	TAILQ_ENTRY(request) link;  /* of asked or unused */
	TAILQ_ENTRY(request) place; /* of places */
};
TAILQ_HEAD(requests, request);

struct kv_helper {
	struct kv_helper_config config;
	char *url, *tenant, *argv[2]; /* config's strings */
	int wake;		      /* eventfd; fixed */
	pthread_t thread;

	pthread_mutex_t lock;
	pthread_cond_t changed;
	enum state state;	     /* lock; set by the thread */
	enum ending ending;	     /* lock */
	bool failed, ended;	     /* lock */
	uint64_t starts;	     /* lock: hellos */
	uint64_t until_ns;	     /* lock: deadline of kv_helper_close */
	char why[KV_HELPER_TEXT];    /* lock: of the last failure */
	int why_not;		     /* lock */
	struct kv_remote_ops queued; /* lock */
	struct kv_done done;	     /* lock */
	struct requests asked;	     /* lock, as the next four; oldest first */
	struct requests unused;
	struct requests places; /* by place */
	uint64_t next_id;
	bool clears; /* the child knows KV_REMOTE_CLEAR */
	struct request all[KV_HELPER_REQUESTS];

	uint8_t *landing; /* NULL: none */
	struct kv_child child;
	int socket;
	uint64_t since_ns, backoff_ns, start_ns;
	size_t out_n; /* bytes of the packet to be sent */
	uint8_t out[PACKET], in[PACKET];
};

/* ---- operations ---- */

static void request_free_locked(struct kv_helper *helper,
				struct request *request)
{
	TAILQ_REMOVE(&helper->asked, request, link);
	TAILQ_REMOVE(&helper->places, request, place);
	request->id = 0;
	request->op = NULL;
	TAILQ_INSERT_TAIL(&helper->unused, request, link);
}

static void end_locked(struct kv_helper *helper, struct request *request,
		       int status)
{
	if (request->op)
		kv_done_add(&helper->done, request->op, status);
	request_free_locked(helper, request);
}

/* No request is busy: the thread calls this. */
static void end_all_locked(struct kv_helper *helper, int status)
{
	struct request *request;
	struct kv_remote_op *op;

	while ((request = TAILQ_FIRST(&helper->asked)))
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
	struct request *request;

	pthread_mutex_lock(&helper->lock);
	request = op->of;
	if (op->under_way && !request) {
		TAILQ_REMOVE(&helper->queued, op, link);
		kv_done_add(&helper->done, op, -ECANCELED);
	} else if (op->under_way && request->busy) {
		op->cancelled = true; /* ends after the copy */
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

/* ---- requests ---- */

static bool is_put(enum kv_remote_call call)
{
	return call == KV_REMOTE_PUT || call == KV_REMOTE_PUBLISH;
}

/*
 * Make a request of @op, with a place in the landing memory for its bytes.  -EAGAIN:
 * there is no room now; -EFBIG: there never is; -EOPNOTSUPP: the child cannot do it.
 */
static int request_new_locked(struct kv_helper *helper, struct kv_remote_op *op,
			      struct request **ret_request)
{
	const uint64_t landing = helper->config.landing;
	const uint64_t most = landing - KV_HELPER_NOTE;
	struct request *request = TAILQ_FIRST(&helper->unused), *next;
	uint64_t bytes = 0, room, at = 0;

	if (is_put(op->call))
		bytes = op->length;
	else if (op->call == KV_REMOTE_GET)
		bytes = KV_MIN(op->room, most);
	if (bytes > most)
		return -EFBIG;
	if (op->call == KV_REMOTE_CLEAR && !helper->clears)
		return -EOPNOTSUPP;
	if (!request)
		return -EAGAIN;
	/* The lowest place that is free. */
	room = kv_round_up(KV_HELPER_NOTE + bytes, UNIT);
	TAILQ_FOREACH(next, &helper->places, place) {
		if (next->at - at >= room)
			break;
		at = next->at + next->room;
	}
	if (!next && landing - at < room)
		return -EAGAIN;
	if (next)
		TAILQ_INSERT_BEFORE(next, request, place);
	else
		TAILQ_INSERT_TAIL(&helper->places, request, place);
	TAILQ_REMOVE(&helper->unused, request, link);
	TAILQ_INSERT_TAIL(&helper->asked, request, link);
	request->at = at;
	request->room = room;
	request->bytes = bytes;
	request->op = op;
	request->call = op->call;
	request->id = (helper->next_id += KV_HELPER_REQUESTS) +
		      (uint64_t)(request - helper->all);
	request->since_ns = kv_now_ns();
	request->busy = true;
	request->tell = false;
	op->of = request;
	*ret_request = request;
	return 0;
}

/* Copy a put and its note into the landing memory. */
static void request_fill(const struct kv_helper *helper,
			 const struct request *request)
{
	uint8_t *to = helper->landing + request->at;
	char note[KV_OBJECT_NOTE_MAX];
	size_t n;

	memset(to, 0, KV_HELPER_NOTE);
	if (!is_put(request->call))
		return;
	n = kv_object_note(request->op, note);
	memcpy(to, note, KV_MIN(n, sizeof(note) - 1));
	memcpy(to + KV_HELPER_NOTE, request->op->data, request->bytes);
}

/* Copy note and bytes to the operation.  Returns its status, after all that the
 * answer says was checked: -EBADMSG, -EFBIG, or the answer's own. */
static int request_land(const struct kv_helper *helper,
			const struct request *request,
			const struct kv_helper_answer *answer)
{
	const uint8_t *from = helper->landing + request->at;
	struct kv_remote_op *op = request->op;
	char note[KV_HELPER_NOTE];
	int r = answer->status;

	/* Copied once: the child may still write there. */
	memcpy(note, from, sizeof(note));
	if (r == 0 &&
	    (op->call == KV_REMOTE_EXISTS || op->call == KV_REMOTE_GET))
		r = kv_object_read_note(op, note, strnlen(note, sizeof(note)));
	if (r < 0 || op->call != KV_REMOTE_GET)
		return r;
	if (op->length > request->bytes)
		return -EFBIG;
	if (op->length != answer->bytes)
		return -EBADMSG;
	memcpy(op->data, from + KV_HELPER_NOTE, op->length);
	return 0;
}

/* ---- to the child ---- */

static void packet_begin(struct kv_helper *helper, enum kv_helper_type type)
{
	const struct kv_helper_head head = {.type = (uint16_t)type};

	memcpy(helper->out, &head, sizeof(head));
	helper->out_n = sizeof(head);
}

/* Returns false if the packet is full. */
static bool packet_add(struct kv_helper *helper, const void *item, size_t n)
{
	struct kv_helper_head head;

	if (helper->out_n + n > sizeof(helper->out))
		return false;
	memcpy(helper->out + helper->out_n, item, n);
	helper->out_n += n;
	memcpy(&head, helper->out, sizeof(head));
	head.count++;
	memcpy(helper->out, &head, sizeof(head));
	return true;
}

static bool packet_waits(const struct kv_helper *helper)
{
	return helper->out_n > sizeof(struct kv_helper_head);
}

/* Returns 0: no packet waits any more; -EAGAIN: the socket is full; or -errno. */
static int packet_send(struct kv_helper *helper)
{
	if (!packet_waits(helper))
		return 0;
	if (send(helper->socket, helper->out, helper->out_n,
		 MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		return errno == EINTR || errno == ENOBUFS ? -EAGAIN : -errno;
	helper->out_n = 0;
	return 0;
}

/* Make a packet of queued operations, in their order. */
static void write_requests(struct kv_helper *helper)
{
	struct request *taken[KV_HELPER_BATCH];
	struct kv_remote_op *op;
	size_t n = 0;
	int r;

	pthread_mutex_lock(&helper->lock);
	while (n < KV_HELPER_BATCH && (op = TAILQ_FIRST(&helper->queued))) {
		r = request_new_locked(helper, op, &taken[n]);
		if (r == -EAGAIN)
			break;
		TAILQ_REMOVE(&helper->queued, op, link);
		if (r < 0)
			kv_done_add(&helper->done, op, r);
		else
			n++;
	}
	pthread_mutex_unlock(&helper->lock);
	for (size_t i = 0; i < n; i++)
		request_fill(helper, taken[i]);
	packet_begin(helper, KV_HELPER_DO);
	pthread_mutex_lock(&helper->lock);
	for (size_t i = 0; i < n; i++) {
		struct kv_helper_request item = {
			.id = taken[i]->id,
			.call = taken[i]->call,
			.at = taken[i]->at,
			.bytes = taken[i]->bytes,
		};

		op = taken[i]->op;
		taken[i]->busy = false;
		if (op->cancelled) {
			end_locked(helper, taken[i], -ECANCELED);
			continue;
		}
		memcpy(item.name, op->name, sizeof(op->name));
		packet_add(helper, &item, sizeof(item));
	}
	pthread_mutex_unlock(&helper->lock);
}

static void write_cancels(struct kv_helper *helper)
{
	struct request *request;

	packet_begin(helper, KV_HELPER_CANCEL);
	pthread_mutex_lock(&helper->lock);
	TAILQ_FOREACH(request, &helper->asked, link)
		if (request->tell &&
		    packet_add(helper, &request->id, sizeof(request->id)))
			request->tell = false;
	pthread_mutex_unlock(&helper->lock);
}

/* Send all cancels and requests that there are. */
static int send_all(struct kv_helper *helper)
{
	int r = packet_send(helper);
	bool sent = true;

	while (r == 0 && sent) {
		write_cancels(helper);
		sent = packet_waits(helper);
		r = packet_send(helper);
		if (r < 0)
			break;
		write_requests(helper);
		sent |= packet_waits(helper);
		r = packet_send(helper);
	}
	return r == -EAGAIN ? 0 : r;
}

/* ---- its life ---- */

static void drop_landing(struct kv_helper *helper)
{
	if (helper->landing)
		munmap(helper->landing, helper->config.landing);
	helper->landing = NULL;
}

static void hang_up(struct kv_helper *helper)
{
	kv_closep(&helper->socket);
	helper->socket = -1;
}

/* Give the child up: all operations end with -EIO. */
static void fail(struct kv_helper *helper, int error, const char *why)
{
	kv_child_kill(&helper->child);
	hang_up(helper);
	helper->out_n = 0;
	pthread_mutex_lock(&helper->lock);
	helper->state = DYING;
	helper->failed = true;
	helper->why_not = error;
	snprintf(helper->why, sizeof(helper->why), "%s", why);
	/* The program's text may come to a terminal. */
	for (char *c = helper->why; *c; c++)
		if ((unsigned char)*c < ' ' || *c == 0x7f)
			*c = '?';
	end_all_locked(helper, -EIO);
	pthread_cond_broadcast(&helper->changed);
	pthread_mutex_unlock(&helper->lock);
	drop_landing(helper);
}

static void on_death(struct kv_helper *helper)
{
	const uint64_t now = kv_now_ns();
	int status;

	if (!kv_child_reap(&helper->child, &status))
		return;
	if (now - helper->since_ns > BACKOFF_MAX)
		helper->backoff_ns = 0;
	helper->backoff_ns =
		kv_backoff(helper->backoff_ns, BACKOFF_MIN, BACKOFF_MAX);
	helper->start_ns = now + helper->backoff_ns;
	pthread_mutex_lock(&helper->lock);
	helper->state = DOWN;
	pthread_mutex_unlock(&helper->lock);
}

/* Make the landing memory, of fixed size; returns its descriptor, or -errno. */
static int make_landing(struct kv_helper *helper)
{
	const uint64_t bytes = helper->config.landing;
	_cleanup_(kv_closep) int fd =
		memfd_create("kvfs-landing", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *memory;

	/* Else the child could shrink it, and a read would raise SIGBUS. */
	if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0 ||
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) <
		    0)
		return -errno;
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (memory == MAP_FAILED)
		return -errno;
	helper->landing = memory;
	return kv_steal_fd(&fd);
}

/* Start the program and send it a hello.  *@ret_what: the path that the error is
 * about, or NULL. */
static int connect_child(struct kv_helper *helper, const char **ret_what)
{
	const struct kv_helper_config *config = &helper->config;
	_cleanup_(kv_closep) int landing = make_landing(helper);
	struct kv_launch launch = config->launch;
	struct kv_helper_head head = {KV_HELPER_HELLO, 1, 0};
	struct kv_helper_hello hello = {.version = KV_HELPER_VERSION,
					.landing = config->landing};
	struct iovec parts[] = {{&head, sizeof(head)}, {&hello, sizeof(hello)}};
	int pair[2], r;

	if (landing < 0)
		return landing;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	helper->socket = pair[0];
	launch.fd = pair[1];
	snprintf(hello.tenant, sizeof(hello.tenant), "%s", config->tenant);
	snprintf(hello.text, sizeof(hello.text), "%s", config->url);
	r = kv_send_parts(helper->socket, parts, 2, landing, MSG_DONTWAIT);
	if (r == 0)
		r = config->start(&launch, &helper->child, ret_what);
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
	helper->clears = hello.landing & KV_HELPER_CLEARS;
	helper->starts++;
	pthread_cond_broadcast(&helper->changed);
	pthread_mutex_unlock(&helper->lock);
	return 0;
}

static int on_answer(struct kv_helper *helper, const uint8_t *item)
{
	struct kv_helper_answer answer;
	struct request *request;
	bool known, busy;
	int r;

	memcpy(&answer, item, sizeof(answer));
	if (answer.status > 0 || answer.status < -4095)
		return -EPROTO;
	request = &helper->all[answer.id % KV_HELPER_REQUESTS];
	pthread_mutex_lock(&helper->lock);
	known = answer.id && request->id == answer.id;
	busy = request->busy = known && request->op;
	if (known && !busy)
		request_free_locked(helper, request);
	pthread_mutex_unlock(&helper->lock);
	if (!busy)
		return known ? 0 : -EPROTO;
	r = request_land(helper, request, &answer);
	pthread_mutex_lock(&helper->lock);
	request->busy = false;
	end_locked(helper, request, r);
	pthread_mutex_unlock(&helper->lock);
	return 0;
}

static int on_packet(struct kv_helper *helper, const uint8_t *packet, size_t n)
{
	const size_t size = sizeof(struct kv_helper_answer);
	struct kv_helper_head head;
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
	if (head.type != KV_HELPER_DO || n != head.count * size)
		return -EPROTO;
	for (size_t i = 0; i < head.count && r == 0; i++)
		r = on_answer(helper, packet + i * size);
	return r;
}

/* Handle up to 8 packets: then it is time to send again. */
static int receive_some(struct kv_helper *helper)
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

/* Return the next deadline. */
static uint64_t due_ns(struct kv_helper *helper)
{
	const struct request *oldest;
	uint64_t due = UINT64_MAX;

	if (helper->state == DOWN)
		return helper->start_ns;
	if (helper->state == STARTING)
		return helper->since_ns + helper->config.hello_ns;
	pthread_mutex_lock(&helper->lock);
	oldest = TAILQ_FIRST(&helper->asked);
	if (oldest)
		due = oldest->since_ns + helper->config.patience_ns;
	pthread_mutex_unlock(&helper->lock);
	return due;
}

/* Wait for an event or a deadline, and handle what has happened. */
static void turn(struct kv_helper *helper)
{
	const uint64_t due = due_ns(helper), now = kv_now_ns();
	const int ms = due == UINT64_MAX ? -1
		       : due <= now
			       ? 0
			       : (int)KV_MIN((due - now) / 1000000 + 1, 60000u);
	struct pollfd fds[] = {{helper->wake, POLLIN, 0},
			       {helper->socket, POLLIN, 0},
			       {helper->child.pidfd, POLLIN, 0}};
	eventfd_t count;
	int r = 0;

	if (packet_waits(helper))
		fds[1].events |= POLLOUT;
	if (poll(fds, 3, ms) > 0 && fds[0].revents)
		eventfd_read(helper->wake, &count);
	if (fds[1].revents)
		r = receive_some(helper);
	if (r == 0 && helper->state == UP)
		r = send_all(helper);
	if (r == 0 && fds[2].revents && helper->state != DYING)
		r = -ECONNRESET;
	if (r < 0 && (helper->state == STARTING || helper->state == UP))
		fail(helper, r,
		     r == -EPROTO
			     ? "its program says what is not in the protocol"
			     : "its program has ended");
	if (kv_now_ns() >= due) {
		if (helper->state == DOWN)
			start_child(helper);
		else if (helper->state == STARTING)
			fail(helper, -ETIMEDOUT,
			     "its program does not say that it is ready");
		else if (helper->state == UP)
			fail(helper, -ETIMEDOUT, "its program does not answer");
	}
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

/* Hang up, and kill the program if it does not end soon. */
static void end_child(struct kv_helper *helper)
{
	uint64_t until = kv_now_ns() + END_NS, now;
	bool killed = helper->state != UP, late;
	eventfd_t count;
	int status;

	hang_up(helper);
	if (killed)
		kv_child_kill(&helper->child);
	while (!kv_child_reap(&helper->child, &status)) {
		struct pollfd fds[] = {{helper->child.pidfd, POLLIN, 0},
				       {helper->wake, POLLIN, 0}};

		now = kv_now_ns();
		late = now >= until;
		if (late && killed && ending(helper) == CLOSES) {
			kv_closep(&helper->child.pidfd);
			break; /* the program is in a call that hangs */
		}
		if (late && !killed) {
			kv_child_kill(&helper->child);
			killed = true;
			until = now + KILL_NS;
		}
		poll(fds, 2,
		     now < until ? (int)((until - now) / 1000000) + 1 : -1);
		if (fds[1].revents)
			eventfd_read(helper->wake, &count);
	}
	drop_landing(helper);
}

static void *helper_run(void *arg)
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
		r = kv_cond_wait_until(&helper->changed, &helper->lock,
				       helper->until_ns);
	ended = helper->ended;
	pthread_mutex_unlock(&helper->lock);
	if (!ended)
		return -EBUSY;
	pthread_join(helper->thread, NULL);
	helper_free(helper);
	return 0;
}

int kv_helper_open(const struct kv_helper_config *config,
		   struct kv_helper **ret_helper)
{
	struct kv_helper *helper = calloc(1, sizeof(*helper));
	int r = 0;

	if (!helper)
		return -ENOMEM;
	helper->state = STARTING; /* operations submitted now wait */
	pthread_mutex_init(&helper->lock, NULL);
	kv_cond_init(&helper->changed);
	TAILQ_INIT(&helper->queued);
	TAILQ_INIT(&helper->asked);
	TAILQ_INIT(&helper->unused);
	TAILQ_INIT(&helper->places);
	for (size_t i = 0; i < KV_HELPER_REQUESTS; i++)
		TAILQ_INSERT_TAIL(&helper->unused, &helper->all[i], link);
	helper->socket = helper->child.pidfd = -1;
	kv_done_init(&helper->done);
	helper->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (helper->done.event < 0 || helper->wake < 0)
		r = -EMFILE;
	helper->config = *config;
	helper->config.url = helper->url = strdup(config->url);
	helper->config.tenant = helper->tenant = strdup(config->tenant);
	if (r == 0 && (!helper->url || !helper->tenant))
		r = -ENOMEM;
	for (size_t i = 0; i < KV_ARRAY_LEN(helper->argv); i++) {
		if (!config->launch.argv[i])
			break;
		helper->config.launch.argv[i] = helper->argv[i] =
			strdup(config->launch.argv[i]);
		if (!helper->argv[i])
			r = -ENOMEM;
	}
	if (r == 0)
		r = kv_thread_start(&helper->thread, "kvfs-helper", helper_run,
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
		late = kv_cond_wait_until(&helper->changed, &helper->lock,
					  until);
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
