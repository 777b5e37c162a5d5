/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forget.c - `kvfs --forget`: asks daemons to remove blocks here and on all
 * backends, and says what each backend has done.
 *
 * Paths are taken in their order, as many of one space in one message as fit.
 *
 * OWNS      a child that does all this.  A call on the mount of a daemon that hangs
 *           may be such as cannot be interrupted, so the parent makes none: it
 *           prints what the child says, and when the time is over it kills that,
 *           and does not wait for it.
 *           The child's: the connection to the daemon of the space at hand, and the
 *           sums for each backend.
 *
 * LOCKING   none.
 */
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "common/block.h"
#include "common/kv.h"
#include "common/wire.h"
#include "fs/ask.h"
#include "fs/base/quantity.h"
#include "fs/forget.h"

#define SECOND UINT64_C(1000000000)
#define SECONDS 30 /* unless the caller says so */
#define SECONDS_MAX 600
#define GRACE 2 /* for the daemon's answer */
#define TICK_MS 1000u
#define LINE (PATH_MAX + 200) /* of what is said */

enum { DONE = 0, WRONG = 1, FAILED = 3 };

struct backend {
	char url[240];
	uint64_t removed, absent, failed;
	int status;
	bool space; /* whole ones are among them */
	struct backend *next;
};

/* Of the child and its parent. */
struct watch {
	_Atomic uint64_t until; /* the parent waits; UINT64_MAX: for ever */
	char path[PATH_MAX];	/* what the child is at */
};

struct forgetting {
	struct watch *watch;
	int to_parent;
	uint64_t until; /* all of it */
	bool over;	/* that was so long ago that something was left out */
	int fd;		/* -1: no space at hand; with it: */
	uint32_t space;
	char path[PATH_MAX], given[PATH_MAX]; /* and as it was named */
	bool removed;			      /* something in it */
	struct wire_key keys[WIRE_BATCH];
	uint32_t n;
	/* What was wrong last, with which space as it was named; of so many more. */
	int wrong;
	char wrong_with[PATH_MAX];
	uint64_t same;
	struct backend *backends;
	int status;
	uint64_t tag;
};

/* ---- what is said ---- */

/* One line for the parent to print.  There may be anything in a path. */
__attribute__((format(printf, 3, 0))) static void
say(const struct forgetting *f, bool error, const char *format, va_list args)
{
	char line[LINE];
	size_t n;

	strcpy(line, error ? "ekvfs: " : "o");
	n = strlen(line);
	vsnprintf(line + n, sizeof(line) - n - 1, format, args);
	for (; line[n]; n++)
		if ((unsigned char)line[n] < ' ' || line[n] == 0x7f)
			line[n] = '?';
	line[n++] = '\n';
	if (send(f->to_parent, line, n, MSG_NOSIGNAL) < 0)
		_exit(FAILED); /* nobody waits */
}

__attribute__((format(printf, 2, 3))) static void
tell(const struct forgetting *f, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say(f, false, format, args);
	va_end(args);
}

__attribute__((format(printf, 3, 4))) static void
complain(struct forgetting *f, int status, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say(f, true, format, args);
	va_end(args);
	f->status = KV_MAX(f->status, status);
}

static const char *text_of(int r)
{
	if (r == -ENOTTY)
		return "neither a space of kvfs nor a block of one";
	if (r == -EOPNOTSUPP)
		return "this mount has no remote tier";
	return r == -EPROTO ? "not known to that daemon" : strerror(-r);
}

static bool has_ended(int r)
{
	return r == -ENOTCONN || r == -ECONNABORTED || r == -ECONNREFUSED ||
	       r == -ECONNRESET || r == -EPIPE;
}

static bool is_said(const struct forgetting *f, const char *space, int r)
{
	return (has_ended(r) && has_ended(f->wrong)) ||
	       (r == f->wrong && strcmp(space, f->wrong_with) == 0);
}

static void tell_same(struct forgetting *f)
{
	if (f->same)
		complain(f, WRONG, "the same of %llu more",
			 (unsigned long long)f->same);
	f->same = 0;
}

/* What was asked for @path, in @space, came to nothing, or nobody knows. */
static void failed(struct forgetting *f, const char *path, const char *space,
		   int r)
{
	if (is_said(f, space, r)) {
		f->same++;
		return;
	}
	tell_same(f);
	f->wrong = r;
	snprintf(f->wrong_with, sizeof(f->wrong_with), "%s", space);
	if (has_ended(r))
		complain(f, FAILED,
			 "%s: its daemon has ended; what was named may be "
			 "there still, here or on a backend",
			 path);
	else if (r == -ETIMEDOUT)
		complain(f, FAILED,
			 "%s: its daemon does not answer; what was named may "
			 "be there still",
			 path);
	else
		complain(f, WRONG, "%s: %s", path, text_of(r));
}

/* ---- messages ---- */

static uint64_t left_ns(const struct forgetting *f)
{
	const uint64_t now = kv_now_ns();

	return now < f->until ? f->until - now : 0;
}

/* @ns more for all of it.  A mount may hang before anything can be asked. */
static void start_clock(struct forgetting *f, uint64_t ns)
{
	f->until = kv_now_ns() + ns;
	atomic_store(&f->watch->until, f->until + 3 * GRACE * SECOND);
}

static void stop_clock(struct forgetting *f)
{
	atomic_store(&f->watch->until, UINT64_MAX);
}

/* Of @count items; @arg as its type has it. */
static int ask(struct forgetting *f, enum wire_type type, uint32_t count,
	       uint64_t arg, void *items, size_t *bytes, size_t room)
{
	const struct wire_header header = {
		.type = (uint16_t)type,
		.count = count,
		.tag = ++f->tag,
		.space = f->space,
		.arg = arg,
	};
	const struct timeval time = {
		.tv_sec = (time_t)(left_ns(f) / SECOND) + GRACE,
	};
	int r;

	setsockopt(f->fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
	r = kv_ask(f->fd, header, items, bytes, room, NULL);
	return r == -EAGAIN ? -ETIMEDOUT : r;
}

static void close_space(struct forgetting *f)
{
	kv_closep(&f->fd);
	f->fd = -1;
	f->n = 0;
	f->removed = false;
}

/* An answer that is late is nobody's. */
static void failed_at_hand(struct forgetting *f, int r)
{
	if (!is_said(f, f->given, r))
		failed(f, f->path, f->given, r);
	if (r == -ETIMEDOUT || has_ended(r))
		close_space(f);
}

static struct backend *backend_of(struct forgetting *f, const char *url)
{
	struct backend **at = &f->backends;

	while (*at && strcmp((*at)->url, url) != 0)
		at = &(*at)->next;
	if (!*at) {
		*at = calloc(1, sizeof(**at));
		if (*at)
			memcpy((*at)->url, url, sizeof((*at)->url) - 1);
	}
	return *at;
}

static void sum(struct forgetting *f, const struct wire_forgot *forgot,
		bool space)
{
	struct backend *backend = backend_of(f, forgot->url);

	if (!backend) {
		complain(f, FAILED, "out of memory");
		return;
	}
	backend->removed += forgot->removed;
	backend->absent += forgot->absent;
	backend->failed += forgot->failed;
	backend->space |= space;
	if (!backend->status)
		backend->status = forgot->status;
}

/* The keys at hand, or, with none, the whole space. */
static void forget(struct forgetting *f, bool space)
{
	_Alignas(8) char items[sizeof(f->keys)];
	const struct wire_forgot *forgot = (struct wire_forgot *)items;
	size_t bytes = f->n * sizeof(f->keys[0]);
	int r;

	memcpy(items, f->keys, bytes);
	r = ask(f, WIRE_FORGET, f->n, KV_MAX(left_ns(f), 1u), items, &bytes,
		sizeof(items));
	f->n = 0;
	if (r < 0) {
		failed_at_hand(f, r);
		return;
	}
	f->removed = true;
	for (size_t i = 0; i < bytes / sizeof(*forgot); i++)
		sum(f, &forgot[i], space);
}

/* Off the space at hand; what was removed here is removed after a crash, too. */
static void leave(struct forgetting *f)
{
	char none[1];
	size_t bytes = 0;
	int r = 0;

	if (f->fd >= 0 && f->n)
		forget(f, false);
	if (f->fd >= 0 && f->removed)
		r = ask(f, WIRE_FLUSH, 0, 0, none, &bytes, 0);
	if (has_ended(r))
		failed_at_hand(f, r);
	else if (r < 0 && r != -EOPNOTSUPP)
		complain(f, FAILED,
			 "%s: it is not on disk yet that blocks are "
			 "removed: %s",
			 f->path, r == -ETIMEDOUT ? "no answer" : strerror(-r));
	close_space(f);
}

/* ---- paths ---- */

/* Ask for the space with this name. */
static int open_space(struct forgetting *f, const char *name)
{
	_Alignas(8) char items[WIRE_MAX];
	struct wire_space *space = (struct wire_space *)items;
	const size_t n = strlen(name) + 1;
	size_t bytes = sizeof(*space) + n;
	int r;

	*space = (struct wire_space){0};
	memcpy(space + 1, name, n);
	r = ask(f, WIRE_SPACE, (uint32_t)n, 0, items, &bytes,
		sizeof(items) - sizeof(struct wire_header));
	if (r == 0)
		f->space = space->id;
	return r;
}

/* The daemon that has @path may end before it says whether it lets us in. */
static int connect_to(const char *socket, const char *path)
{
	struct stat st;
	int r = kv_ask_connect(socket);

	return r == -EACCES && lstat(path, &st) < 0 ? -errno : r;
}

/* @path, absolute, is the space at hand from now on; -errno. */
static int enter(struct forgetting *f, const char *path)
{
	char socket[PATH_MAX], mount[PATH_MAX];
	char *slash;
	int r;

	if (f->fd >= 0 && strcmp(f->path, path) == 0)
		return 0;
	leave(f);
	snprintf(mount, sizeof(mount), "%s", path);
	slash = strrchr(mount, '/');
	*slash = '\0';
	r = kv_ask_socket_of(mount, socket, sizeof(socket));
	if (r < 0)
		return r == -ENOENT || r == -ENOTDIR ? -ENOTTY : r;
	f->fd = connect_to(socket, path);
	if (f->fd < 0)
		return f->fd;
	snprintf(f->path, sizeof(f->path), "%s", path);
	r = open_space(f, slash + 1);
	if (r < 0)
		close_space(f);
	return r == -ENOENT ? -ENOTTY : r;
}

/* @given, as one may name it: few look-ups where many paths of one space follow. */
static int enter_given(struct forgetting *f, const char *given)
{
	_cleanup_(kv_freep) char *path = NULL;
	int r;

	if (f->fd >= 0 && strcmp(f->given, given) == 0)
		return 0;
	path = realpath(given, NULL);
	r = path ? enter(f, path) : -errno;
	if (r == 0)
		snprintf(f->given, sizeof(f->given), "%s", given);
	return r;
}

/* Cut the @path of a block to that of its space: whether it is one's. */
static bool is_block(char *path, struct kv_key *ret_key)
{
	char *name = strrchr(path, '/'), *part;

	if (!name || kv_key_parse(name + 1, ret_key) < 0)
		return false;
	*name = '\0';
	part = strrchr(path, '/');
	if (strncmp(part ? part + 1 : path, name + 1, 2) != 0 ||
	    strlen(part ? part + 1 : path) != 2) {
		*name = '/';
		return false;
	}
	strcpy(part ? part + (part == path) : path, part ? "" : ".");
	return true;
}

static void add(struct forgetting *f, const struct kv_key *key)
{
	struct wire_key *item = &f->keys[f->n++];

	*item = (struct wire_key){.len = key->len};
	memcpy(item->key, key->b, key->len);
	if (f->n == WIRE_BATCH)
		forget(f, false);
}

/* Nothing is removed here where there is no remote tier, so that is asked first,
 * by a question for which there is no time. */
static void forget_space(struct forgetting *f)
{
	_Alignas(8) char items[sizeof(f->keys)];
	size_t bytes = 0;
	int r;

	if (f->n)
		forget(f, false);
	if (f->fd < 0)
		return;
	r = ask(f, WIRE_FORGET, 0, 0, items, &bytes, sizeof(items));
	bytes = 0;
	if (r == 0)
		r = ask(f, WIRE_CLEAR, 0, 0, items, &bytes, 0);
	if (r < 0)
		failed_at_hand(f, r);
	else
		forget(f, true);
}

/* @path may lead to a block by links, or from within its space. */
static int enter_linked(struct forgetting *f, const char *path,
			struct kv_key *ret_key)
{
	_cleanup_(kv_freep) char *real = realpath(path, NULL);

	return real && is_block(real, ret_key) ? enter_given(f, real) : -ENOTTY;
}

static void take(struct forgetting *f, const char *path)
{
	_cleanup_(kv_freep) char *space = strdup(path);
	struct kv_key key;
	bool block;
	size_t n;
	int r;

	snprintf(f->watch->path, sizeof(f->watch->path), "%s", path);
	for (n = space ? strlen(space) : 0; n > 1 && space[n - 1] == '/';)
		space[--n] = '\0';
	block = space && is_block(space, &key);
	r = space ? enter_given(f, space) : -ENOMEM;
	if (r == -ENOTTY) {
		r = enter_linked(f, path, &key);
		block = true;
	}
	if (r < 0)
		failed(f, path, space ? space : "", r);
	else if (block)
		add(f, &key);
	else
		forget_space(f);
}

/* The same, unless the time is over. */
static void try_to_take(struct forgetting *f, const char *path)
{
	if (left_ns(f) > 0) {
		take(f, path);
		return;
	}
	f->over = true;
	complain(f, FAILED, "%s: not tried, nor what follows: the time is over",
		 path);
}

/* ---- the child ---- */

static void take_lines(struct forgetting *f)
{
	_cleanup_(kv_freep) char *line = NULL;
	size_t room = 0;
	ssize_t n;

	while (!f->over) {
		const uint64_t left = left_ns(f);

		stop_clock(f); /* whoever writes the lines may take his time */
		n = getline(&line, &room, stdin);
		start_clock(f, left);
		if (n <= 0)
			break;
		if (line[n - 1] == '\n')
			line[--n] = '\0';
		if (strlen(line) != (size_t)n)
			complain(f, WRONG, "%s: a NUL follows", line);
		else if (n > 0)
			try_to_take(f, line);
	}
	if (ferror(stdin))
		complain(f, WRONG, "standard input: %s", strerror(errno));
}

static const char *why_not(const struct backend *backend)
{
	if (backend->status == -EOPNOTSUPP)
		return backend->space ? "it removes no whole space; blocks "
					"that are named it may"
				      : "it removes nothing";
	if (backend->status == -ETIMEDOUT)
		return "it did not do so in time";
	return strerror(-backend->status);
}

static void report(struct forgetting *f, const struct backend *backend)
{
	const char *what = backend->space ? "blocks or spaces" : "blocks";

	tell(f, "%s: %llu removed, %llu not there", backend->url,
	     (unsigned long long)backend->removed,
	     (unsigned long long)backend->absent);
	if (backend->failed)
		complain(f, FAILED, "%s: %llu %s may be there still: %s",
			 backend->url, (unsigned long long)backend->failed,
			 what, why_not(backend));
}

/* All of it: the exit status. */
static int run(struct forgetting *f, char *const *paths)
{
	for (; *paths && !f->over; paths++)
		if (strcmp(*paths, "-") == 0)
			take_lines(f);
		else
			try_to_take(f, *paths);
	leave(f);
	tell_same(f);
	for (struct backend *backend = f->backends, *next; backend;
	     backend = next) {
		next = backend->next;
		report(f, backend);
		free(backend);
	}
	return f->status;
}

/* A child that cannot end shall not keep those waiting who read our output. */
static void become_child(pid_t parent)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(FAILED);
	for (int fd = 1; null >= 0 && fd <= 2; fd++)
		dup2(null, fd);
}

/* ---- the parent ---- */

/* Print a line of the child's, whose first character says where; false: it has
 * ended. */
static bool print_line(int from_child)
{
	char line[LINE];
	ssize_t n = recv(from_child, line, sizeof(line), 0);
	FILE *file = line[0] == 'e' ? stderr : stdout;

	if (n <= 0)
		return n < 0 && errno == EINTR;
	fwrite(line + 1, 1, (size_t)n - 1, file);
	fflush(file);
	return true;
}

/* Until it has ended, or its time is over: whether it has. */
static bool listen_to(int from_child, const struct watch *watch)
{
	struct pollfd poll_child = {.fd = from_child, .events = POLLIN};
	uint64_t now, until;

	while ((now = kv_now_ns()) < (until = atomic_load(&watch->until))) {
		const uint64_t ms = (until - now) / 1000000 + 1;

		if (poll(&poll_child, 1, (int)KV_MIN(ms, TICK_MS)) > 0 &&
		    !print_line(from_child))
			return true;
	}
	return false;
}

/* Its exit status. */
static int wait_for(pid_t child)
{
	int status;

	while (waitpid(child, &status, 0) < 0)
		if (errno != EINTR)
			return FAILED;
	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	fprintf(stderr,
		"kvfs: ended by signal %d; what was named may be there "
		"still\n",
		WTERMSIG(status));
	return FAILED;
}

static int attend(pid_t child, int from_child, const struct watch *watch)
{
	int status;

	if (!listen_to(from_child, watch)) {
		kill(child, SIGKILL);
		fprintf(stderr,
			"kvfs: %s: kvfs does not answer; this, and what "
			"follows, may be there still\n",
			watch->path);
		return FAILED;
	}
	status = wait_for(child);
	if (!ferror(stdout))
		return status;
	fputs("kvfs: standard output cannot be written\n", stderr);
	return KV_MAX(status, WRONG);
}

/* What is opened shall be none of the standard descriptors. */
static void fill_descriptors(void)
{
	int fd;

	do
		fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
	while (fd >= 0 && fd <= 2);
	kv_closep(&fd);
}

static int work(char *const *paths, uint64_t seconds)
{
	static struct forgetting f;
	const pid_t self = getpid();
	int pair[2];
	pid_t child;

	fill_descriptors();
	f = (struct forgetting){.fd = -1};
	f.watch = mmap(NULL, sizeof(*f.watch), PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (f.watch == MAP_FAILED ||
	    socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0) {
		fprintf(stderr, "kvfs: %s\n", strerror(errno));
		return FAILED;
	}
	start_clock(&f, seconds * SECOND);
	child = fork();
	if (child < 0) {
		fprintf(stderr, "kvfs: %s\n", strerror(errno));
		return FAILED;
	}
	if (child == 0) {
		become_child(self);
		close(pair[0]);
		f.to_parent = pair[1];
		_exit(run(&f, paths));
	}
	close(pair[1]);
	return attend(child, pair[0], f.watch);
}

/* ---- the command ---- */

static int usage(void)
{
	fputs("usage: kvfs --forget [-t SECONDS] PATH...\n"
	      "A PATH is that of a block or space; - reads paths, one a "
	      "line.\n",
	      stderr);
	return WRONG;
}

bool kv_forget_called(int argc, char **argv)
{
	return argc > 1 && strcmp(argv[1], "--forget") == 0;
}

int kv_forget_main(int argc, char **argv)
{
	uint64_t seconds = SECONDS;
	int at = 2;

	if (argc > 3 && strcmp(argv[2], "-t") == 0) {
		if (kv_number_parse(argv[3], 10, SECONDS_MAX, &seconds) < 0 ||
		    seconds == 0)
			return usage();
		at = 4;
	}
	if (at >= argc)
		return usage();
	/* Before anything is removed: a wrong option is no path. */
	for (int i = at; i < argc; i++)
		if (argv[i][0] == '-' && argv[i][1])
			return usage();
	return work(argv + at, seconds);
}
