/* SPDX-License-Identifier: Apache-2.0 */
/*
 * session.c - one FUSE session, from mount(2) to unmount: its options, the threads
 * that read and answer the kernel's requests, and its end.
 *
 * The kernel hands out requests in order of arrival.  The thread that has read a request
 * answers it at once if its user has few requests in progress and none waiting, so that
 * an idle daemon hands no request over to another thread.  Other requests wait on their
 * user's queue for the threads of a pool.
 *
 * OWNS      the session; the signal thread, which waits for the mount's first answer and
 *           then for signals; the threads that read, and their buffers; the pool; a
 *           request from when it is read until its handler returns.
 *
 * INVARIANTS
 *   (1) The notifier is stopped while requests are still answered, or after the mount
 *       is gone: it may wait for a lock that only an answer frees.
 *   (2) The signal thread ends before the session is destroyed.
 *   (3) At most READERS - 1 of the threads that read run requests of users (as
 *       guests of the pool), so that one thread can always read.
 *   (4) Requests that the kernel makes by itself are answered at once: no user could be
 *       charged for their turn, and interrupts must overtake other requests.
 *   (5) A request of more than SMALL bytes that waits is charged to its user; a smaller
 *       one costs less than the process that waits for it.
 *
 * LOCKING   none: flags are atomic, and the pool has a lock of its own.
 */
#include <linux/fuse.h>
#include <poll.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "cache/core/account.h"
#include "cache/core/workers.h"
#include "common/thread.h"
#include "common/bytes.h"
#include "fs/control/control.h"
#include "fs/daemon.h"

#define READERS 8u
#define THREADS 24u
#define SMALL 4096u
#define TURN_NS 1000000u
#define SECOND_NS UINT64_C(1000000000)

struct session {
	struct kv_daemon *daemon;
	const char *path;
	void (*ready)(void *arg);
	void *arg;
	struct fuse_session *fuse;
	struct kv_workers_config config;
	struct kv_workers *pool;
	struct reader {
		struct session *session;
		struct fuse_buf buffer;
		pthread_t thread;
	} readers[READERS];
	unsigned n_readers;
	pthread_t signals;
	sem_t over; /* ends the session; posted by a reading thread or end() */
	_Atomic int status;	 /* errno of a failed read of a request, or 0 */
	_Atomic bool ended;	 /* no thread reads requests any more */
	_Atomic bool unanswered; /* the mount did not answer a first request */
};

struct request {
	struct kv_work work; /* first */
	struct session *session;
	uint64_t arrived_ns;
	struct fuse_buf buffer;
	/* account charged with the buffer; NULL: none */
	struct kv_account *account;
	char bytes[];
};

/* ---- requests ---- */

static void answer(struct kv_work *work, struct kv_hash *hash)
{
	const struct request *request = (struct request *)work;

	(void)hash;
	kv_arrived_ns = request->arrived_ns;
	fuse_session_process_buf(request->session->fuse, &request->buffer);
}

static void answer_queued(struct kv_work *work, struct kv_hash *hash)
{
	struct request *request = (struct request *)work;

	answer(work, hash);
	if (request->account)
		kv_account_credit(request->account, KV_FINITE_MEMORY,
				  request->buffer.size);
	kv_account_put(request->account);
	free(request);
}

/* Copy the request @from, and queue the copy for a thread of the pool. */
static void queue(const struct request *from,
		  const struct fuse_in_header *header)
{
	struct session *s = from->session;
	const size_t n = from->buffer.size;
	struct request *request = malloc(sizeof(*request) + n);
	struct fuse_out_header reply = {.len = sizeof(reply),
					.unique = header->unique};
	int r = request ? 0 : -ENOMEM;

	if (r == 0) {
		*request = *from;
		request->work.run = answer_queued;
		request->buffer.mem =
			memcpy(request->bytes, from->buffer.mem, n);
	}
	if (r == 0 && n > SMALL) {
		request->account = kv_account_get(
			kv_cache_accounts(s->daemon->cache), header->uid);
		r = request->account ? kv_account_charge(request->account,
							 KV_FINITE_MEMORY, n)
				     : -ENOMEM;
	}
	if (r == 0) {
		kv_work_submit(s->pool, &request->work, header->uid, 0);
		return;
	}
	/* Reply without libfuse, which has not seen the request. */
	reply.error = r == -ENOLCK ? -ENOSPC : r;
	(void)!write(fuse_session_fd(s->fuse), &reply, sizeof(reply));
	if (request)
		kv_account_put(request->account);
	free(request);
}

static void dispatch(struct session *s, const struct fuse_buf *buffer)
{
	const struct fuse_in_header *header = buffer->mem;
	struct request request = {.work.run = answer,
				  .session = s,
				  .arrived_ns = kv_now_ns(),
				  .buffer = *buffer};

	switch (header->opcode) {
	case FUSE_INIT:
	case FUSE_DESTROY:
	case FUSE_INTERRUPT:
	case FUSE_FORGET:
	case FUSE_BATCH_FORGET:
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
		answer(&request.work, NULL);
		break;
	default:
		if (!kv_work_run(s->pool, &request.work, header->uid))
			queue(&request, header);
	}
}

/* Read requests, and answer or queue them; can be cancelled while reading. */
static void *receive(void *arg)
{
	struct reader *reader = arg;
	struct session *s = reader->session;
	int r, state;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
	do {
		pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
		r = fuse_session_receive_buf(s->fuse, &reader->buffer);
		pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
		if (r > 0)
			dispatch(s, &reader->buffer);
	} while (r > 0 || r == -EINTR || r == -EAGAIN);
	if (r < 0)
		s->status = r;
	/* Announce the end before waiting for threads, which takes seconds on a busy
	 * machine: others wait for the store only if its daemon is ending. */
	kv_cache_ending(s->daemon->cache);
	sem_post(&s->over);
	return NULL;
}

/* ---- the session ---- */

/* The last error message of libfuse. */
static char last_words[256];

static void listen_to_libfuse(enum fuse_log_level level, const char *format,
			      va_list args)
{
	if (level <= FUSE_LOG_ERR)
		vsnprintf(last_words, sizeof(last_words), format, args);
}

static sigset_t ending_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	return set;
}

void kv_session_block_signals(void)
{
	sigset_t set = ending_signals();

	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* write(2) then returns EFBIG */
	pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static void init(void *userdata, struct fuse_conn_info *conn)
{
	struct kv_mount *mount = userdata;

	/* Always use readdirplus: du(1) of a million blocks needs it. */
	conn->want &= ~(
		unsigned)(FUSE_CAP_READDIRPLUS_AUTO | FUSE_CAP_AUTO_INVAL_DATA |
			  FUSE_CAP_WRITEBACK_CACHE | FUSE_CAP_ASYNC_DIO);
	conn->want |= conn->capable &
		      (FUSE_CAP_READDIRPLUS | FUSE_CAP_ATOMIC_O_TRUNC |
		       FUSE_CAP_ASYNC_READ | FUSE_CAP_PARALLEL_DIROPS);
	conn->max_readahead = KV_READAHEAD;
	/* Background requests wait in the daemon, by user, not in the kernel in
	 * order of arrival.  The kernel accepts one for 3 MiB of its memory. */
	conn->max_background = UINT16_MAX;
	conn->congestion_threshold = UINT16_MAX;
	conn->time_gran = 1;
	mount->max_write = conn->max_write;
	mount->max_readahead = conn->max_readahead;
}

static int add_options(const struct kv_options *o, struct fuse_args *args)
{
	_cleanup_(kv_freep) char *source = NULL, *words = NULL;

	if (asprintf(&source, "fsname=%s", o->store) < 0 ||
	    fuse_opt_add_opt(&words, "default_permissions,subtype=kvfs") < 0 ||
	    fuse_opt_add_opt_escaped(&words, source) < 0 ||
	    fuse_opt_add_opt(&words, "nosuid,nodev") < 0 ||
	    (o->fuse && fuse_opt_add_opt(&words, o->fuse) < 0) ||
	    (o->allow_other && fuse_opt_add_opt(&words, "allow_other") < 0) ||
	    (o->cache.read_only && fuse_opt_add_opt(&words, "ro") < 0) ||
	    fuse_opt_add_arg(args, "kvfs") < 0 ||
	    fuse_opt_add_arg(args, "-o") < 0 ||
	    fuse_opt_add_arg(args, words) < 0 ||
	    (o->debug && fuse_opt_add_arg(args, "-d") < 0))
		return -ENOMEM;
	return 0;
}

static int fail(char **ret_why, const char *path, const char *what)
{
	last_words[strcspn(last_words, "\n")] = '\0';
	return kv_why(ret_why, -EIO, "%s: %s%s%s", path, what,
		      last_words[0] != '\0' ? ": " : "", last_words);
}

/* Make kv_session_run() end the session. */
static void end(struct session *s)
{
	kv_cache_ending(s->daemon->cache);
	kv_notify_stop(s->daemon->mount);
	sem_post(&s->over);
}

/* Report a state to the service manager, as sd_notify(3) does: send a datagram to the
 * socket in NOTIFY_SOCKET, an abstract one if it begins with '@'. */
static void notify_service_manager(const char *state)
{
	const char *path = getenv("NOTIFY_SOCKET");
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	size_t n = path ? strlen(path) : 0;
	int fd;

	if (n < 2 || n >= sizeof(address.sun_path))
		return;
	memcpy(address.sun_path, path, n);
	if (path[0] == '@')
		address.sun_path[0] = '\0';
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0 ||
	    sendto(fd, state, strlen(state), MSG_DONTWAIT,
		   (struct sockaddr *)&address,
		   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) < 0)
		fprintf(stderr,
			"kvfs: %s: cannot send %s to the service manager: %s\n",
			path, state, strerror(errno));
	if (fd >= 0)
		close(fd);
}

/*
 * Wait for a signal that ends the daemon, or until it has been unused for idle= seconds:
 * without a client, a message, an open file and an open(2).  For a service manager with a
 * watchdog (WATCHDOG_USEC), prove twice in its time that the control thread answers and
 * that the mount's lock is free.
 */
static void wait_for_end(struct kv_daemon *daemon)
{
	const char *watchdog = getenv("WATCHDOG_USEC");
	const uint64_t half_ns =
		watchdog ? strtoull(watchdog, NULL, 10) * 500 : 0;
	const uint64_t idle_ns = daemon->options->idle * SECOND_NS;
	const struct timespec period =
		kv_timespec(half_ns ? KV_MIN(half_ns, SECOND_NS) : SECOND_NS);
	uint64_t used_ns = kv_now_ns(), messages = 0, opens = 0;
	struct kv_mount *mount = daemon->mount;
	struct kv_control_counts counts;
	sigset_t set = ending_signals();
	bool used;

	while (sigtimedwait(&set, NULL, idle_ns || half_ns ? &period : NULL) <
	       0) {
		kv_control_counts(daemon->control, &counts);
		pthread_mutex_lock(&mount->lock);
		used = !LIST_EMPTY(&mount->handles) || mount->opens != opens ||
		       counts.connections > 0 || counts.messages != messages;
		opens = mount->opens;
		pthread_mutex_unlock(&mount->lock);
		messages = counts.messages;
		if (half_ns) {
			kv_control_await(daemon->control);
			notify_service_manager("WATCHDOG=1");
		}
		if (used)
			used_ns = kv_now_ns();
		if (idle_ns == 0 || kv_now_ns() - used_ns < idle_ns ||
		    !kv_control_stop_unused(daemon->control))
			continue;
		fprintf(stderr, "kvfs: %s: unused for idle=%u seconds: ends\n",
			daemon->options->store, daemon->options->idle);
		break;
	}
	/* The watchdog does not count the time in which blocks become durable. */
	notify_service_manager("STOPPING=1");
}

static void *guard(void *arg)
{
	_cleanup_(kv_freep) char *why = NULL;
	struct session *s = arg;

	if (kv_warden_ask(s->daemon->warden, KV_READY, &why) < 0) {
		s->unanswered = !s->ended;
		end(s);
		return NULL;
	}
	notify_service_manager("READY=1");
	s->ready(s->arg);
	wait_for_end(s->daemon);
	if (!s->ended)
		end(s);
	return NULL;
}

/* Answer requests until the mount is gone, end() is called, or reading fails. */
static int serve(struct session *s)
{
	const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	int r;

	sem_init(&s->over, 0, 0);
	s->config = (struct kv_workers_config){
		.name = "kvfs-fuse",
		.threads = THREADS,
		.each = (unsigned)KV_MIN(KV_MAX(cpus, 4), 16),
		.guests = READERS - 1,
		.turn = TURN_NS,
		.timed = true};
	r = kv_workers_new(&s->config, &s->pool);
	while (r == 0 && s->n_readers < READERS) {
		struct reader *reader = &s->readers[s->n_readers];

		reader->session = s;
		r = kv_thread_start(&reader->thread, "kvfs-requests", receive,
				    reader);
		s->n_readers += r == 0;
	}
	if (r == 0)
		r = kv_thread_start(&s->signals, "kvfs-signals", guard, s);
	if (r == 0) {
		while (sem_wait(&s->over) < 0)
			;
		r = s->status;
		s->ended = true;
		/* SIGTERM is blocked: it ends sigwait(3). */
		pthread_kill(s->signals, SIGTERM);
		pthread_join(s->signals, NULL);
	}
	for (unsigned i = 0; i < s->n_readers; i++)
		pthread_cancel(s->readers[i].thread);
	for (unsigned i = 0; i < s->n_readers; i++) {
		pthread_join(s->readers[i].thread, NULL);
		free(s->readers[i].buffer.mem);
	}
	kv_workers_free(s->pool);
	sem_destroy(&s->over);
	return s->unanswered ? -EIO : r;
}

#define SET(op) handlers.op = kv_fs_##op

static struct fuse_session *new_session(const struct kv_options *options,
					struct kv_mount *mount)
{
	struct fuse_lowlevel_ops handlers = {.init = init};
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	struct fuse_session *fuse = NULL;

	KV_FS_HANDLERS(SET);
	if (!options->debug)
		fuse_set_log_func(listen_to_libfuse);
	if (add_options(options, &args) == 0)
		fuse = fuse_session_new(&args, &handlers, sizeof(handlers),
					mount);
	fuse_opt_free_args(&args);
	return fuse;
}

int kv_session_mount(const struct kv_options *options, const char *path,
		     char **ret_why)
{
	/* Never freed: its descriptor is the result, and the process ends soon. */
	struct fuse_session *fuse = new_session(options, NULL);

	if (!fuse || fuse_session_mount(fuse, path) < 0)
		return fail(ret_why, path, "cannot mount");
	return fuse_session_fd(fuse);
}

int kv_session_run(struct kv_daemon *daemon, const char *path,
		   void (*ready)(void *arg), void *arg, char **ret_why)
{
	struct session s = {
		.daemon = daemon, .path = path, .ready = ready, .arg = arg};
	_cleanup_(kv_freep) char *why = NULL;
	struct kv_mount *mount = daemon->mount;
	struct pollfd device = {.events = 0};
	char name[32];
	int r;

	*ret_why = NULL;
	if (!path) {
		notify_service_manager("READY=1");
		ready(arg);
		wait_for_end(daemon);
		return 0;
	}
	device.fd = kv_warden_ask(daemon->warden, KV_MOUNT, ret_why);
	if (device.fd < 0)
		return device.fd;
	snprintf(name, sizeof(name), "/dev/fd/%d", device.fd);
	s.fuse = new_session(daemon->options, mount);
	if (!s.fuse || fuse_session_mount(s.fuse, name) < 0) {
		(void)kv_warden_ask(daemon->warden, KV_UNMOUNT, &why);
		return fail(ret_why, path, "cannot make a FUSE session");
	}
	r = kv_notify_start(mount, s.fuse);
	if (r == 0)
		r = serve(&s);
	kv_parking_stop(mount->parking);
	kv_notify_stop(mount);
	/* An error of the device: the mount is gone.  Another may be there. */
	(void)poll(&device, 1, 0);
	fuse_session_destroy(s.fuse);
	if (!(device.revents & POLLERR))
		(void)kv_warden_ask(daemon->warden, KV_UNMOUNT, &why);
	return s.unanswered ? fail(ret_why, path, "the mount does not answer")
			    : r;
}
