/* SPDX-License-Identifier: Apache-2.0 */
/*
 * health.c - `kvfs --health`: ask a daemon for its state, within a time limit.
 *
 * OWNS      a child process that asks.  A call on the mount of a hung daemon
 *           cannot be interrupted once the daemon has read the request.  So the
 *           parent makes no such call; on a timeout the parent kills the child
 *           without waiting for its end.
 *
 * LOCKING   none.  The parent reads the child's words when the child has ended, or at the
 *           time limit, when the child hangs.
 */
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "common/kv.h"
#include "common/wire.h"
#include "fs/base/quantity.h"
#include "fs/daemon.h"

#define SECONDS 5 /* default */
#define SECONDS_MAX 3600

enum { WELL = 0, DEAD = 1, DEGRADED = 3 };

/* The child's progress and findings, in memory shared with its parent. */
static char (*words)[400];

__attribute__((format(printf, 2, 3))) static int report(int status,
							const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(*words, sizeof(*words), format, args);
	va_end(args);
	return status;
}

/* ---- the child ---- */

/* Send a message of @type with @bytes of @items, and store the reply's items in
 * @items, at most @room bytes.  Returns their bytes, or -errno. */
static ssize_t ask(int fd, enum wire_type type, void *items, size_t bytes,
		   size_t room)
{
	struct wire_header header = {
		.type = (uint16_t)type, .count = bytes > 0, .tag = type + 1u};
	struct iovec iov[2] = {{&header, sizeof(header)}, {items, bytes}};
	const struct msghdr message = {.msg_iov = iov, .msg_iovlen = 2};
	ssize_t n;

	if (sendmsg(fd, &message, MSG_NOSIGNAL) < 0)
		return -errno;
	iov[1].iov_len = room;
	n = readv(fd, iov, 2);
	if (n <= 0)
		return n < 0 ? -errno : -ECONNRESET;
	if ((size_t)n < sizeof(header) || !(header.flags & WIRE_REPLY))
		return -EPROTO;
	return header.status < 0 ? header.status : n - (ssize_t)sizeof(header);
}

/* Find @word in @text, and end its line with a NUL.  NULL: not found. */
static char *line_of(char *text, const char *word)
{
	char *line = strstr(text, word);

	if (line)
		line[1 + strcspn(line + 1, "\n")] = '\0';
	return line;
}

/* Judge the daemon by its statistics: the lines `ssd` and `remote` end with the
 * tiers' states, of which that of `ssd` may have commas. */
static int ask_socket(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct wire_hello hello = {.version = WIRE_VERSION};
	_cleanup_(kv_closep) int fd = -1;
	char text[WIRE_MAX], *line, *state, *remote, *why;
	ssize_t n;

	if (strlen(path) >= sizeof(address.sun_path))
		return report(DEAD, "%s: longer than a socket's path", path);
	report(DEAD, "the socket %s does not answer", path);
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0 ||
	    connect(fd, (struct sockaddr *)&address, sizeof(address)) < 0) {
		n = -errno;
	} else {
		n = ask(fd, WIRE_HELLO, &hello, sizeof(hello), sizeof(hello));
		if (n == -ECONNRESET) /* a user without permission */
			n = -EACCES;
		if (n >= 0)
			n = ask(fd, WIRE_STATS, text, 0, sizeof(text) - 1);
	}
	if (n < 0)
		return report(DEAD, "the socket %s: %s", path,
			      strerror((int)-n));
	text[n] = '\0';
	/* Search for the last line first, because line_of() cuts the text. */
	why = line_of(text, "\n          the last failure: ");
	remote = line_of(text, "\nremote ");
	line = line_of(text, "\nssd ");
	if (!line)
		return report(DEAD, "no line for the SSD in its statistics");
	state = strstr(line, " blocks, ");
	state = state ? state + strlen(" blocks, ") : line;
	if (strcmp(state, "online") != 0 && strcmp(state, "off") != 0)
		return report(DEGRADED, "the SSD tier: %s", state);
	remote = remote ? strrchr(remote, ':') : NULL;
	if (remote && strcmp(remote, ": open") != 0)
		return report(DEGRADED, "the remote tier %s: %s",
			      strcmp(remote, ": closed") == 0 ? "is not used"
							      : remote + 2,
			      why ? strchr(why, ':') + 2
				  : "its backend does not answer");
	return report(WELL, "well; the SSD tier: %s%s", state,
		      remote ? "; the remote tier: open" : "");
}

static int ask_mount(const char *path)
{
	char socket[sizeof(((struct sockaddr_un *)0)->sun_path) + 1];
	_cleanup_(kv_freep) char *link = NULL;
	struct statvfs fs;
	ssize_t n;

	if (statvfs(path, &fs) < 0)
		return report(DEAD, "%s", strerror(errno));
	n = asprintf(&link, "%s/.kvfs/control", path) < 0
		    ? -1
		    : readlink(link, socket, sizeof(socket) - 1);
	if (n < 0)
		return report(DEAD, "no kvfs is mounted there");
	socket[n] = '\0';
	return ask_socket(socket);
}

static int run_child(const char *path)
{
	int null = open("/dev/null", O_RDWR);
	struct stat st;

	/* If the child hangs, readers of the parent's output must still get an
	 * end of file. */
	for (int fd = 0; null >= 0 && fd <= 2; fd++)
		dup2(null, fd);
	if (stat(path, &st) < 0)
		return report(DEAD, "%s", strerror(errno));
	return S_ISSOCK(st.st_mode) ? ask_socket(path) : ask_mount(path);
}

/* ---- the parent ---- */

int kv_health_main(int argc, char **argv)
{
	uint64_t seconds = SECONDS;
	struct pollfd ended = {.events = POLLIN};
	int status = DEAD;
	siginfo_t info;
	pid_t child;

	if (argc < 1 || argc > 2 || argv[0][0] == '\0' ||
	    (argc == 2 &&
	     kv_number_parse(argv[1], 10, SECONDS_MAX, &seconds) < 0) ||
	    seconds == 0) {
		fprintf(stderr, "usage: kvfs --health MOUNTPOINT|SOCKET "
				"[SECONDS]\n");
		return DEAD;
	}
	words = mmap(NULL, sizeof(*words), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (words != MAP_FAILED)
		report(DEAD, "the mount does not answer");
	if (words == MAP_FAILED || (child = fork()) < 0) {
		fprintf(stderr, "kvfs: %s: %s\n", argv[0], strerror(errno));
		return DEAD;
	}
	if (child == 0)
		_exit(run_child(argv[0]));
	ended.fd = (int)syscall(SYS_pidfd_open, child, 0);
	if (poll(&ended, 1, (int)seconds * 1000) > 0 &&
	    waitid(P_PID, (id_t)child, &info, WEXITED) == 0 &&
	    info.si_code == CLD_EXITED)
		status = info.si_status;
	else
		kill(child, SIGKILL);
	fprintf(status == WELL ? stdout : stderr, "kvfs: %s: %s\n", argv[0],
		*words);
	return status;
}
