/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.c - the control thread: it accepts connections, waits for their events, and
 * runs the mail that other threads post.
 *
 * OWNS      the thread; the listening socket, its file, and the socket's directory if
 *           that was made for it; the epoll descriptor; in `server`, the mailbox and the
 *           workers.  The sender owns mail until it is posted, then the control thread
 *           until the mail runs.
 *
 * STATES    RUNNING -> STOPPING  begin_stop   (stops reading, cancels)
 *           STOPPING -> (ended)  serve        (no request is pending)
 *
 * INVARIANTS
 *   (1) Only the control thread uses `server`, except the mailbox, the workers and the
 *       tally, which have their own locks or are atomic.
 *   (2) The thread ends only when no cache thread or worker has a request.
 *   (3) The mailbox's eventfd is readable whenever there is mail and no run is under way:
 *       the first mail of a queue writes the eventfd, and the control thread clears it
 *       before it takes the queue.
 *
 * LOCKING   mailbox->lock guards the queue, and is a leaf lock: mail runs without it.
 */
#include <fcntl.h>
#include <limits.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "common/bytes.h"
#include "common/thread.h"
#include "fs/control/server.h"

#define TURN_EVENTS 512 /* most epoll events read at once */
#define BACKLOG 128
#define ENDING_NS (UINT64_C(3) * 1000000000) /* for a daemon to end */
#define POLL_US 50000

struct kv_control {
	struct kv_server server;
	struct kv_listener listener;
	struct kv_watch on_connect, on_mail;
	struct kv_mail stop, question;
	sem_t answered; /* posted when `question` has run */
	/* reserve descriptor: closed when the process has no other left, to
	 * accept and then refuse a connection */
	int spare;
	bool deaf; /* `spare` is lost: accept no connections */
	pthread_t thread;
	bool started;
};

struct retire {
	struct kv_mail mail; /* first */
	struct kv_server *server;
	uint32_t segment;
};

/* ---- the mailbox ---- */

int kv_mailbox_init(struct kv_mailbox *box)
{
	box->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (box->fd < 0)
		return -errno;
	pthread_mutex_init(&box->lock, NULL);
	box->first = NULL;
	box->last = &box->first;
	return 0;
}

void kv_mailbox_post(struct kv_mailbox *box, struct kv_mail *mail)
{
	bool first;

	mail->next = NULL;
	pthread_mutex_lock(&box->lock);
	first = !box->first;
	*box->last = mail;
	box->last = &mail->next;
	/* Hold the lock: the mailbox may be freed once its mail has run. */
	if (first)
		(void)eventfd_write(box->fd, 1);
	pthread_mutex_unlock(&box->lock);
}

void kv_mailbox_run(struct kv_mailbox *box)
{
	struct kv_mail *mail, *next;
	eventfd_t count;

	(void)eventfd_read(box->fd, &count);
	pthread_mutex_lock(&box->lock);
	mail = box->first;
	box->first = NULL;
	box->last = &box->first;
	pthread_mutex_unlock(&box->lock);

	for (; mail; mail = next) {
		next = mail->next;
		mail->run(mail);
	}
}

/* ---- the socket's name in the file system ---- */

/*
 * Lock the name PATH of a socket by the file PATH.lock, which only the user of the daemon
 * can open.  The holder may make or remove the socket.  Returns a descriptor for unlock_name,
 * -EWOULDBLOCK if another process holds the lock, or another error.
 */
static int lock_name(const char *path)
{
	char file[PATH_MAX];
	struct stat held, named;
	int fd;

	snprintf(file, sizeof(file), "%s.lock", path);
	for (;;) {
		fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW,
			  0600);
		if (fd < 0)
			return -errno;
		if (flock(fd, LOCK_EX | LOCK_NB) < 0 || fstat(fd, &held) < 0)
			break;
		if (lstat(file, &named) == 0 && named.st_dev == held.st_dev &&
		    named.st_ino == held.st_ino)
			return fd;
		close(fd); /* the last holder has removed the file */
	}
	close(fd);
	return -EWOULDBLOCK;
}

static void unlock_name(const char *path, int fd)
{
	char file[PATH_MAX];

	snprintf(file, sizeof(file), "%s.lock", path);
	unlink(file);
	close(fd);
}

/* Make the socket's directory if it is missing, but none above it: a mistyped
 * path must be reported. */
static int make_dir(struct kv_listener *listener)
{
	_cleanup_(kv_freep) char *copy = strdup(listener->path);
	char *slash;

	if (!copy)
		return -ENOMEM;
	slash = strrchr(copy, '/');
	if (!slash || slash == copy)
		return 0;
	*slash = '\0';
	if (mkdir(copy, 0755) < 0)
		return errno == EEXIST ? 0 : -errno;
	listener->made_dir = true;
	/* Let other users connect, whatever the umask. */
	return chmod(copy, 0755) < 0 ? -errno : 0;
}

/* Remove a socket on which no daemon listens.  -EADDRINUSE: a daemon listens. */
static int sweep_socket(const struct sockaddr_un *address, char **ret_why)
{
	const char *path = address->sun_path;
	_cleanup_(kv_closep) int fd = -1;
	struct stat st;

	if (lstat(path, &st) < 0)
		return errno == ENOENT ? 0 : -errno;
	if (!S_ISSOCK(st.st_mode))
		return kv_why(ret_why, -EEXIST,
			      "control socket %s: exists and is not a socket: "
			      "remove it, or give control=PATH",
			      path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	/* connect(2) also fails on a full backlog and on another socket type,
	 * but then a daemon listens. */
	if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) ==
		    0 ||
	    errno == EAGAIN || errno == EPROTOTYPE)
		return -EADDRINUSE;
	if (errno != ECONNREFUSED)
		return -errno;
	return unlink(path) < 0 ? -errno : 0;
}

/* Remove a socket without a daemon, and listen in its place.  The name is locked. */
static int take_name(struct kv_listener *listener,
		     const struct sockaddr_un *address, char **ret_why)
{
	struct stat st;
	int r = sweep_socket(address, ret_why);

	if (r < 0)
		return r;
	listener->fd = socket(AF_UNIX,
			      SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (listener->fd < 0 ||
	    bind(listener->fd, (const struct sockaddr *)address,
		 sizeof(*address)) < 0 ||
	    lstat(listener->path, &st) < 0)
		return -errno;
	listener->dev = st.st_dev;
	listener->ino = st.st_ino;
	if (chmod(listener->path, 0666) < 0 ||
	    listen(listener->fd, BACKLOG) < 0)
		return -errno;
	return 0;
}

int kv_listener_open(struct kv_listener *listener, const char *path,
		     char **ret_why)
{
	const uint64_t until_ns = kv_now_ns() + ENDING_NS;
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int r, lock;

	*listener = (struct kv_listener){.fd = -1};
	if (strlen(path) >= sizeof(address.sun_path))
		return -ENAMETOOLONG;
	strcpy(address.sun_path, path);
	listener->path = strdup(path);
	if (!listener->path)
		return -ENOMEM;
	do {
		kv_closep(&listener->fd);
		r = make_dir(listener);
		if (r < 0)
			break;
		r = lock = lock_name(path);
		/* The daemon that ended has removed the directory. */
		if (r == -ENOENT)
			r = -EWOULDBLOCK;
		if (r < 0)
			continue;
		r = take_name(listener, &address, ret_why);
		unlock_name(path, lock);
	} while ((r == -EADDRINUSE || r == -EWOULDBLOCK) &&
		 kv_now_ns() < until_ns && usleep(POLL_US) == 0);
	if (r == -EADDRINUSE)
		kv_why(ret_why, r,
		       "control socket %s: another daemon answers there", path);
	if (r == -EWOULDBLOCK)
		kv_why(ret_why, r,
		       "control socket %s: another process holds %s.lock", path,
		       path);
	if (r < 0)
		kv_listener_close(listener);
	return r;
}

static bool has_name(const struct kv_listener *listener)
{
	struct stat st;

	return lstat(listener->path, &st) == 0 && st.st_dev == listener->dev &&
	       st.st_ino == listener->ino;
}

/* Remove the socket's name if it is still this socket's. */
static void give_name(const struct kv_listener *listener)
{
	const uint64_t until_ns = kv_now_ns() + ENDING_NS;
	int lock = -EWOULDBLOCK;

	while (has_name(listener)) {
		lock = lock_name(listener->path);
		if (lock != -EWOULDBLOCK || kv_now_ns() > until_ns)
			break;
		usleep(POLL_US);
	}
	if (lock < 0)
		return;
	if (has_name(listener))
		unlink(listener->path);
	unlock_name(listener->path, lock);
}

void kv_listener_close(struct kv_listener *listener)
{
	char *slash;

	if (listener->path && listener->ino)
		give_name(listener);
	if (listener->path && listener->made_dir) {
		slash = strrchr(listener->path, '/');
		*slash = '\0';
		rmdir(listener->path);
	}
	kv_closep(&listener->fd);
	free(listener->path);
	*listener = (struct kv_listener){.fd = -1};
}

/* ---- the thread ---- */

static void close_unseen(struct kv_control *control, int socket)
{
	struct ucred cred = {.uid = KV_NO_UID};
	socklen_t len = sizeof(cred);

	(void)getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &cred, &len);
	kv_gate_hang_up(control->server.gate, cred.uid, socket);
}

/* Refuse a connection for want of descriptors.  If it stayed in the backlog, the
 * listening socket would stay readable, and the thread would spin. */
static void refuse(struct kv_control *control)
{
	int fd;

	control->server.tally.refused++;
	kv_closep(&control->spare);
	fd = accept4(control->listener.fd, NULL, NULL, SOCK_CLOEXEC);
	if (fd >= 0)
		close_unseen(control, fd);
	control->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
	control->deaf = control->spare < 0;
	if (control->deaf)
		epoll_ctl(control->server.epoll, EPOLL_CTL_DEL,
			  control->listener.fd, NULL);
}

static void connection_ready(struct kv_watch *watch, uint32_t events)
{
	struct kv_control *control =
		kv_container(watch, struct kv_control, on_connect);
	struct kv_server *server = &control->server;
	struct kv_client *client;
	int fd;

	(void)events;
	/* Accept one connection, as users with work wait meanwhile. */
	fd = accept4(control->listener.fd, NULL, NULL,
		     SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0 && (errno == EMFILE || errno == ENFILE) && !control->deaf)
		refuse(control);
	if (fd >= 0 && kv_client_new(server, fd, &client) < 0)
		server->tally.refused++;
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
	/* The socket's name is free for another daemon from now on. */
	shutdown(control->listener.fd, SHUT_RDWR);
	TAILQ_FOREACH(client, &server->clients, link)
		kv_client_quiesce(client);
}

static int watch(struct kv_control *control, struct kv_watch *watch, int fd)
{
	struct epoll_event event = {.events = EPOLLIN, .data.ptr = watch};

	if (epoll_ctl(control->server.epoll, EPOLL_CTL_ADD, fd, &event) < 0)
		return -errno;
	return 0;
}

static void *serve(void *arg)
{
	struct kv_control *control = arg;
	struct kv_server *server = &control->server;
	struct epoll_event events[TURN_EVENTS];
	struct kv_client *client;
	struct kv_watch *ready;
	struct timespec wait;
	uint64_t next, now;
	bool waits, forever;
	int n, fd;

	while (!server->stopping || server->pending) {
		/* Wait for events until the next deadline, but not at all while
		 * a user has work. */
		now = kv_now_ns();
		next = UINT64_MAX;
		waits = server->users.n_busy == 0;
		forever = !kv_requests_expire(server, &next) && waits;
		wait = kv_timespec(waits && next > now ? next - now : 0);
		n = epoll_pwait2(server->epoll, events, TURN_EVENTS,
				 forever ? NULL : &wait, NULL);
		for (int i = 0; i < n; i++) {
			ready = events[i].data.ptr;
			ready->ready(ready, events[i].events);
		}
		kv_users_serve(server);
		kv_client_sweep(server);
		if (!control->deaf || server->stopping)
			continue;
		control->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
		control->deaf = control->spare < 0 ||
				watch(control, &control->on_connect,
				      control->listener.fd) < 0;
	}
	kv_cache_freeze(server->cache);
	while ((client = TAILQ_FIRST(&server->clients)))
		kv_client_end(client);
	kv_client_sweep(server);
	/* Take connections from the backlog: closing the listener would close the
	 * descriptors queued in them. */
	while ((fd = accept4(control->listener.fd, NULL, NULL,
			     SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0)
		close_unseen(control, fd);
	kv_gate_close(server->gate);
	/* Run the remaining mail of kv_control_retire, which frees itself. */
	kv_mailbox_run(&server->mailbox);
	return NULL;
}

/* Free a struct kv_control, which may be half-built.  Takes NULL. */
static void control_freep(struct kv_control **ref)
{
	struct kv_control *control = *ref;
	struct kv_server *server;

	if (!control)
		return;
	server = &control->server;
	if (control->started)
		pthread_join(control->thread, NULL);
	kv_workers_free(server->copies);
	kv_workers_free(server->waits);
	kv_hash_free(server->hash);
	kv_listener_close(&control->listener);
	kv_deadlines_fini(&server->deadlines);
	kv_turns_fini(&server->users);
	if (server->mailbox.fd >= 0) {
		close(server->mailbox.fd);
		pthread_mutex_destroy(&server->mailbox.lock);
	}
	kv_closep(&server->epoll);
	kv_closep(&control->spare);
	free(control);
}

int kv_server_start_workers(struct kv_server *server)
{
	static struct kv_workers_config copies = {.name = "kvfs-ingest",
						  .each = UINT_MAX,
						  .turn = KV_COPY_TURN,
						  .hashes = true,
						  .timed = true};
	static const struct kv_workers_config waits = {.name = "kvfs-waits",
						       .threads = 4,
						       .each = 1,
						       .turn = KV_COPY_TURN};
	const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
	int r;

	r = kv_hash_new(&server->hash);
	if (r < 0)
		return r;
	copies.threads = (unsigned)KV_MIN(KV_MAX(cpus, 1), 4);
	r = kv_workers_new(&copies, &server->copies);
	return r < 0 ? r : kv_workers_new(&waits, &server->waits);
}

int kv_control_start(struct kv_cache *cache, const struct kv_rules *rules,
		     struct kv_gate *gate, const char *path,
		     char *(*config)(void *arg), void *arg,
		     struct kv_control **ret_control, char **ret_why)
{
	_cleanup_(control_freep) struct kv_control *control = NULL;
	struct kv_cache_stats stats;
	struct kv_server *server;
	int r = 0;

	*ret_why = NULL;
	control = calloc(1, sizeof(*control));
	if (!control)
		return -ENOMEM;
	server = &control->server;
	kv_cache_stats(cache, &stats);
	server->cache = cache;
	server->gate = gate;
	server->rules = rules;
	server->config = config;
	server->config_arg = arg;
	/* Page tables of mapped memory take 1/512 of its size. */
	server->mapped_max = 16 * stats.dram_total;
	TAILQ_INIT(&server->clients);
	TAILQ_INIT(&server->ended);
	control->on_connect.ready = connection_ready;
	control->on_mail.ready = mail_ready;
	control->stop.run = begin_stop;
	control->listener.fd = server->mailbox.fd = -1;
	server->epoll = epoll_create1(EPOLL_CLOEXEC);
	control->spare = open("/dev/null", O_RDONLY | O_CLOEXEC);
	if (server->epoll < 0 || control->spare < 0 ||
	    getrandom(&server->seed, sizeof(server->seed), 0) < 0)
		r = -errno;
	if (r == 0)
		r = kv_users_init(server);
	if (r == 0)
		r = kv_mailbox_init(&server->mailbox);
	if (r == 0)
		r = watch(control, &control->on_mail, server->mailbox.fd);
	if (r == 0)
		r = kv_server_start_workers(server);
	if (r == 0) {
		kv_gate_open(gate, server->epoll);
		r = kv_listener_open(&control->listener, path, ret_why);
	}
	if (r == 0)
		r = watch(control, &control->on_connect, control->listener.fd);
	if (r == 0)
		r = kv_thread_start(&control->thread, "kvfs-control", serve,
				    control);
	if (r < 0) {
		if (!*ret_why)
			kv_why(ret_why, r, "control socket %s: %s", path,
			       strerror(-r));
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
	control_freep(&control);
}

static void stop_unused(struct kv_mail *mail)
{
	struct kv_control *control =
		kv_container(mail, struct kv_control, question);

	if (TAILQ_EMPTY(&control->server.clients))
		begin_stop(&control->stop);
	sem_post(&control->answered);
}

static void answer(struct kv_mail *mail)
{
	sem_post(&kv_container(mail, struct kv_control, question)->answered);
}

/* Have the control thread call @run, and wait for that. */
static void ask(struct kv_control *control, void (*run)(struct kv_mail *mail))
{
	sem_init(&control->answered, 0, 0);
	control->question.run = run;
	kv_mailbox_post(&control->server.mailbox, &control->question);
	while (sem_wait(&control->answered) < 0)
		;
}

bool kv_control_stop_unused(struct kv_control *control)
{
	ask(control, stop_unused);
	return control->server.stopping;
}

void kv_control_await(struct kv_control *control)
{
	ask(control, answer);
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
	/* Without memory for the mail, clients keep the segment mapped, and it
	 * stays charged, until they disconnect. */
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
	const struct kv_control_counts *t = &control->server.tally;

	*ret_counts = (struct kv_control_counts){
		t->connections,
		t->refused,
		t->messages,
		t->protocol_errors,
		t->slow,
		t->stray_releases,
		t->forced_releases,
		t->dropped_reservations,
	};
	kv_histogram_copy(&t->probe_times, &ret_counts->probe_times);
	kv_histogram_copy(&t->acquire_times, &ret_counts->acquire_times);
	kv_histogram_copy(&t->save_times, &ret_counts->save_times);
}
