/* SPDX-License-Identifier: Apache-2.0 */
/*
 * health.c - `kvfs --health`: asks a daemon, and waits no longer than it was
 * told to.
 *
 * OWNS      a child that asks.  A call on the mount of a daemon that hangs
 *           cannot be interrupted once the daemon has read it, so nothing here
 *           makes one but the child, which is killed, and not waited for: it
 *           ends when the kernel lets it.
 *
 * STATES    of what the child tells: steps, and at last a verdict.
 *
 * LOCKING   none.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/un.h>

#include "common/kv.h"
#include "fs/ask.h"
#include "fs/base/quantity.h"
#include "fs/health.h"

#define SECONDS 5 /* unless the caller says so */
#define SECONDS_MAX 3600

enum { WELL = 0, DEAD = 1, DEGRADED = 3, STEP = -1 };

/* A message of the child's, written whole. */
struct news {
	int status;
	char text[400];
};

struct asking {
	const char *path;
	int to_parent;
};

__attribute__((format(printf, 3, 4))) static int
tell(const struct asking *a, int status, const char *format, ...)
{
	struct news news = {.status = status};
	va_list args;

	va_start(args, format);
	vsnprintf(news.text, sizeof(news.text), format, args);
	va_end(args);
	if (write(a->to_parent, &news, sizeof(news)) < 0)
		return DEAD; /* nobody waits */
	return status;
}

/* ---- the child ---- */

/* The daemon's figures for people, as text; -errno. */
static int read_stats(int fd, char *text, size_t room)
{
	const struct wire_header header = {.type = WIRE_STATS, .tag = 2};
	size_t bytes = 0;
	int r = kv_ask(fd, header, text, &bytes, room - 1, NULL);

	text[r < 0 ? 0 : bytes] = '\0';
	return r;
}

/* The line `ssd` ends with the tier's state. */
static int judge_ssd(const struct asking *a, char *text)
{
	char *line = strstr(text, "\nssd "), *state;

	if (!line)
		return tell(a, DEAD, "it tells nothing of its SSD");
	line[1 + strcspn(line + 1, "\n")] = '\0';
	state = strrchr(line, ',');
	state = state ? state + 2 : line;
	if (strcmp(state, "online") != 0 && strcmp(state, "off") != 0)
		return tell(a, DEGRADED, "the SSD tier: %s", state);
	return tell(a, WELL, "well; the SSD tier: %s", state);
}

static int ask_socket(const struct asking *a, const char *path)
{
	_cleanup_(kv_closep) int fd = -1;
	char text[WIRE_MAX];
	int r;

	if (strlen(path) >= sizeof(((struct sockaddr_un *)0)->sun_path))
		return tell(a, DEAD, "%s: longer than a socket's path", path);
	tell(a, STEP, "the socket %s does not answer", path);
	fd = kv_ask_connect(path);
	r = fd < 0 ? fd : read_stats(fd, text, sizeof(text));
	if (r < 0)
		return tell(a, DEAD, "the socket %s: %s", path, strerror(-r));
	return judge_ssd(a, text);
}

static int ask_mount(const struct asking *a)
{
	char socket[sizeof(((struct sockaddr_un *)0)->sun_path) + 1];
	struct statvfs fs;
	int r;

	if (statvfs(a->path, &fs) < 0)
		return tell(a, DEAD, "%s", strerror(errno));
	r = kv_ask_socket_of(a->path, socket, sizeof(socket));
	if (r == -ENAMETOOLONG)
		return tell(a, DEAD, "its socket's path is too long");
	if (r < 0)
		return tell(a, DEAD, "no kvfs is mounted there");
	return ask_socket(a, socket);
}

static int ask(const struct asking *a)
{
	struct stat st;

	tell(a, STEP, "the mount does not answer");
	if (stat(a->path, &st) < 0)
		return tell(a, DEAD, "%s", strerror(errno));
	return S_ISSOCK(st.st_mode) ? ask_socket(a, a->path) : ask_mount(a);
}

/* A child that cannot end shall not keep those waiting who read our output. */
static int run_child(const char *path, int to_parent)
{
	const struct asking a = {path, to_parent};
	int null = open("/dev/null", O_RDWR);

	for (int fd = 0; null >= 0 && fd <= 2; fd++)
		dup2(null, fd);
	signal(SIGPIPE, SIG_IGN);
	return ask(&a);
}

/* ---- the parent ---- */

/* The child's verdict or, when the time is over, where it is. */
static int listen_to(int from_child, uint64_t until, struct news *ret_news)
{
	struct pollfd poll_child = {.fd = from_child, .events = POLLIN};
	uint64_t now;

	while ((now = kv_now_ns()) < until) {
		int ms = (int)((until - now) / 1000000) + 1;

		if (poll(&poll_child, 1, ms) <= 0)
			continue;
		if (read(from_child, ret_news, sizeof(*ret_news)) !=
		    sizeof(*ret_news))
			return DEAD;
		if (ret_news->status != STEP)
			return ret_news->status;
	}
	return DEAD;
}

static int check(const char *path, uint64_t seconds)
{
	uint64_t until = kv_now_ns() + seconds * 1000000000u;
	struct news news = {.text = "it cannot be asked"};
	int pipes[2], status;
	pid_t child;

	if (pipe2(pipes, O_CLOEXEC) < 0 || (child = fork()) < 0) {
		fprintf(stderr, "kvfs: %s: %s\n", path, strerror(errno));
		return DEAD;
	}
	if (child == 0)
		_exit(run_child(path, pipes[1]));
	close(pipes[1]);
	status = listen_to(pipes[0], until, &news);
	kill(child, SIGKILL);
	fprintf(status == WELL ? stdout : stderr, "kvfs: %s: %s\n", path,
		news.text);
	return status;
}

bool kv_health_called(int argc, char **argv)
{
	return argc > 1 && strcmp(argv[1], "--health") == 0;
}

int kv_health_main(int argc, char **argv)
{
	uint64_t seconds = SECONDS;

	if (argc < 3 || argc > 4 || argv[2][0] == '\0' ||
	    (argc == 4 &&
	     kv_number_parse(argv[3], 10, SECONDS_MAX, &seconds) < 0)) {
		fprintf(stderr, "usage: kvfs --health MOUNTPOINT|SOCKET "
				"[SECONDS]\n");
		return DEAD;
	}
	return check(argv[2], seconds);
}
