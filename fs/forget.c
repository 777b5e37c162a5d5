/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forget.c - `kvfs --forget`: asks daemons to remove blocks here and on all
 * backends, and says what each backend has done.
 *
 * Paths are taken in their order, as many of one space in one message as fit.
 *
 * OWNS      the connection to the daemon of the space at hand, and the sums for
 *           each backend.
 *
 * LOCKING   none.
 */
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>

#include "common/block.h"
#include "common/kv.h"
#include "common/wire.h"
#include "fs/ask.h"
#include "fs/base/quantity.h"
#include "fs/forget.h"

#define SECONDS 30 /* unless the caller says so */
#define SECONDS_MAX 600
#define GRACE 2 /* for the daemon's answer */

enum { DONE = 0, WRONG = 1, FAILED = 3 };

struct backend {
	char url[240];
	uint64_t removed, absent, failed;
	int status;
	bool space; /* whole ones are among them */
	struct backend *next;
};

struct forgetting {
	uint64_t until; /* all of it */
	int fd;		/* -1: no space at hand */
	uint32_t space;
	char path[PATH_MAX]; /* of that space */
	struct wire_key keys[WIRE_BATCH];
	uint32_t n;
	struct backend *backends;
	int status;
	uint64_t tag;
};

__attribute__((format(printf, 2, 3))) static void
complain(struct forgetting *f, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fputs("kvfs: ", stderr);
	vfprintf(stderr, format, args);
	fputc('\n', stderr);
	va_end(args);
	if (f->status == DONE)
		f->status = WRONG;
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
	alarm((unsigned)(ns / 1000000000u) + 3 * GRACE);
}

static int ask(struct forgetting *f, enum wire_type type, uint32_t count,
	       void *items, size_t *bytes, size_t room, uint32_t *ret_count)
{
	struct wire_header header = {
		.type = (uint16_t)type,
		.count = count,
		.tag = ++f->tag,
		.space = f->space,
		.arg = KV_MAX(left_ns(f), 1u),
	};
	const uint64_t wait = header.arg / 1000000000u + GRACE;
	struct timeval time = {.tv_sec = (time_t)wait};
	int r;

	if (type != WIRE_FORGET && type != WIRE_FLUSH)
		header.arg = 0;
	setsockopt(f->fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time));
	r = kv_ask(f->fd, header, items, bytes, room, ret_count);
	return r == -EAGAIN ? -ETIMEDOUT : r;
}

static struct backend *backend_of(struct forgetting *f, const char *url)
{
	struct backend **at = &f->backends;

	while (*at && strcmp((*at)->url, url) != 0)
		at = &(*at)->next;
	if (!*at) {
		*at = calloc(1, sizeof(**at));
		if (*at)
			snprintf((*at)->url, sizeof((*at)->url), "%s", url);
	}
	return *at;
}

static void sum(struct forgetting *f, const struct wire_forgot *forgot,
		bool space)
{
	struct backend *backend = backend_of(f, forgot->url);

	if (!backend) {
		complain(f, "out of memory");
		return;
	}
	backend->removed += forgot->removed;
	backend->absent += forgot->absent;
	backend->failed += forgot->failed;
	backend->space |= space;
	if (!backend->status)
		backend->status = forgot->status;
}

static const char *text_of(int r)
{
	if (r == -EOPNOTSUPP)
		return "this mount has no remote tier";
	return r == -EPROTO ? "not known to that daemon" : strerror(-r);
}

/* The keys at hand, or, with none, the whole space; @n: what is asked for. */
static void forget(struct forgetting *f, bool space)
{
	_Alignas(8) char items[sizeof(f->keys)];
	struct wire_forgot *forgot = (struct wire_forgot *)items;
	size_t bytes = f->n * sizeof(f->keys[0]);
	uint32_t n = 0;
	int r;

	memcpy(items, f->keys, bytes);
	r = ask(f, WIRE_FORGET, f->n, items, &bytes, sizeof(items), &n);
	f->n = 0;
	if (r < 0)
		complain(f, "%s: %s", f->path, text_of(r));
	if (r == 0 && bytes == n * sizeof(*forgot))
		for (uint32_t i = 0; i < n; i++)
			sum(f, &forgot[i], space);
}

/* Off the space at hand; what was removed here is removed after a crash, too. */
static void leave(struct forgetting *f)
{
	char none[1];
	size_t bytes = 0;
	int r;

	if (f->fd < 0)
		return;
	if (f->n)
		forget(f, false);
	r = ask(f, WIRE_FLUSH, 0, none, &bytes, 0, NULL);
	if (r < 0 && r != -EOPNOTSUPP)
		complain(
			f,
			"%s: it is not on disk yet that blocks are removed: %s",
			f->path, strerror(-r));
	kv_closep(&f->fd);
	f->path[0] = '\0';
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
	r = ask(f, WIRE_SPACE, (uint32_t)n, items, &bytes,
		sizeof(items) - sizeof(struct wire_header), NULL);
	if (r == 0)
		f->space = space->id;
	return r;
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
	f->fd = kv_ask_connect(socket);
	if (f->fd < 0)
		return f->fd;
	snprintf(f->path, sizeof(f->path), "%s", path);
	r = open_space(f, slash + 1);
	if (r < 0)
		kv_closep(&f->fd);
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

static void forget_space(struct forgetting *f)
{
	char none[1];
	size_t bytes = 0;
	int r;

	if (f->n)
		forget(f, false);
	r = ask(f, WIRE_CLEAR, 0, none, &bytes, 0, NULL);
	if (r < 0)
		complain(f, "%s: %s", f->path, strerror(-r));
	else
		forget(f, true);
}

static void take(struct forgetting *f, const char *path)
{
	_cleanup_(kv_freep) char *space = NULL;
	_cleanup_(kv_freep) char *copy = strdup(path);
	struct kv_key key;
	bool block;
	size_t n;
	int r;

	for (n = copy ? strlen(copy) : 0; n > 1 && copy[n - 1] == '/';)
		copy[--n] = '\0';
	block = copy && is_block(copy, &key);
	space = copy ? realpath(copy, NULL) : NULL;
	r = space ? enter(f, space) : -errno;
	if (r == -ENOTTY)
		complain(f, "%s: neither a space of kvfs nor a block of one",
			 path);
	else if (r < 0)
		complain(f, "%s: %s", path, strerror(-r));
	else if (block)
		add(f, &key);
	else
		forget_space(f);
}

/* ---- the command ---- */

static void take_lines(struct forgetting *f)
{
	_cleanup_(kv_freep) char *line = NULL;
	size_t room = 0;
	ssize_t n;

	for (;;) {
		const uint64_t left = left_ns(f);

		alarm(0); /* whoever writes the lines may take his time */
		n = getline(&line, &room, stdin);
		start_clock(f, left);
		if (n <= 0)
			return;
		if (line[n - 1] == '\n')
			line[n - 1] = '\0';
		if (line[0])
			take(f, line);
	}
}

static void report(struct forgetting *f, const struct backend *backend)
{
	const char *what = backend->space ? "blocks or spaces" : "blocks";

	printf("%s: %llu removed, %llu not there\n", backend->url,
	       (unsigned long long)backend->removed,
	       (unsigned long long)backend->absent);
	if (!backend->failed)
		return;
	fprintf(stderr, "kvfs: %s: %llu %s may be there still: %s\n",
		backend->url, (unsigned long long)backend->failed, what,
		backend->status == -EOPNOTSUPP ? "it has no word for that"
					       : strerror(-backend->status));
	f->status = FAILED;
}

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
	static struct forgetting f;
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
	f = (struct forgetting){.fd = -1};
	start_clock(&f, seconds * 1000000000u);
	for (; at < argc; at++)
		if (strcmp(argv[at], "-") == 0)
			take_lines(&f);
		else
			take(&f, argv[at]);
	leave(&f);
	for (struct backend *backend = f.backends, *next; backend;
	     backend = next) {
		next = backend->next;
		report(&f, backend);
		free(backend);
	}
	return f.status;
}
