/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.c - where a daemon in the background says what it has to say.
 *
 * A log that hangs shall hang nobody: syslog(3) would wait for it.
 *
 * OWNS      the stream that stderr is then, and its socket, as long as the process
 *           lives.
 *
 * LOCKING   the stream's.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <syslog.h>
#include <time.h>

#include "common/kv.h"
#include "fs/log.h"

#define LINE_MAX_BYTES 2048

struct log {
	int fd; /* -1: none */
};

static void reach(struct log *log)
{
	const struct sockaddr_un at = {AF_UNIX, "/dev/log"};

	kv_closep(&log->fd);
	log->fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (log->fd >= 0 &&
	    connect(log->fd, (const struct sockaddr *)&at, sizeof(at)) < 0)
		kv_closep(&log->fd);
}

/* The log may have been started anew, or only now. */
static void send_line(struct log *log, const char *text, size_t n)
{
	if (log->fd >= 0 && (send(log->fd, text, n, MSG_NOSIGNAL) >= 0 ||
			     errno == EAGAIN || errno == EWOULDBLOCK))
		return;
	reach(log);
	if (log->fd >= 0)
		(void)send(log->fd, text, n, MSG_NOSIGNAL);
}

static void say(struct log *log, const char *line, size_t n)
{
	static const char name[] = "kvfs: ";
	const time_t now = time(NULL);
	char text[LINE_MAX_BYTES], when[32];
	struct tm tm;
	int length;

	if (n >= strlen(name) && memcmp(line, name, strlen(name)) == 0) {
		line += strlen(name);
		n -= strlen(name);
	}
	strftime(when, sizeof(when), "%h %e %T", localtime_r(&now, &tm));
	length = snprintf(text, sizeof(text), "<%d>%s kvfs[%ld]: %.*s",
			  LOG_DAEMON | LOG_WARNING, when, (long)getpid(),
			  (int)KV_MIN(n, sizeof(text)), line);
	send_line(log, text, KV_MIN((size_t)length, sizeof(text) - 1));
}

/* All of it, whatever came of it: stdio would try again. */
static ssize_t say_lines(void *cookie, const char *text, size_t n)
{
	const char *at = text, *end = text + n, *stop;

	for (; at < end; at = stop + 1) {
		stop = memchr(at, '\n', (size_t)(end - at));
		if (!stop)
			stop = end;
		if (stop > at)
			say(cookie, at, (size_t)(stop - at));
	}
	return (ssize_t)n;
}

static void use_syslog(void)
{
	struct log *log = malloc(sizeof(*log));
	FILE *file;

	if (!log)
		return;
	log->fd = -1;
	file = fopencookie(log, "w",
			   (cookie_io_functions_t){.write = say_lines});
	if (!file) {
		free(log);
		return;
	}
	setvbuf(file, NULL, _IOLBF, 0);
	stderr = file;
}

void kv_log_detach(void)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	struct stat st;
	const bool keep = fstat(2, &st) == 0 && S_ISREG(st.st_mode);

	for (int fd = 0; null >= 0 && fd < (keep ? 2 : 3); fd++)
		dup2(null, fd);
	if (null > 2)
		close(null);
	if (!keep)
		use_syslog();
}
