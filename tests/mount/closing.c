/* SPDX-License-Identifier: Apache-2.0 */
/*
 * closing.c - clients that send descriptors whose close(2) hangs.
 *
 *   closing serve DIR            mount a FUSE file system at DIR, whose files flush,
 *                                statfs, getattr and write never answer the request
 *                                of that name; print "ready"
 *   closing send WHAT HOW SOCK N N messages with the descriptor WHAT: linger (a TCP
 *                                socket with unsent data), or a file of DIR that is
 *                                open; HOW: stats, staging, pool (types that take a
 *                                descriptor or not), or queued (unread when the
 *                                connection ends), to a daemon that is stopped.
 *                                Prints "sent", and keeps its own descriptors until
 *                                its input ends.
 *   closing probe SOCK SECONDS   connect and ask; print the longest time in
 *                                milliseconds; fail at PEER_WAIT_MS
 *   closing stage SOCK           try to give memory for saves
 */
#define FUSE_USE_VERSION 31
#include <fuse3/fuse_lowlevel.h>
#include <netinet/in.h>
#include <signal.h>

#include "tests/fs/peer.h"

static const char *const files[] = {"flush", "statfs", "getattr", "write"};
/* true once the file is open: its GETATTR is no longer answered */
static _Atomic bool hanging;

static void must(bool condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "closing: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* ---- the FUSE file system of `closing serve` ---- */

static struct stat stat_of(fuse_ino_t ino)
{
	return (struct stat){.st_ino = ino,
			     .st_mode =
				     ino == 1 ? S_IFDIR | 0755 : S_IFREG | 0666,
			     .st_nlink = 1};
}

static void lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param entry = {0};

	(void)parent;
	for (size_t i = 0; i < KV_ARRAY_LEN(files); i++)
		if (strcmp(name, files[i]) == 0) {
			entry.ino = i + 2;
			entry.attr = stat_of(entry.ino);
			fuse_reply_entry(req, &entry);
			return;
		}
	fuse_reply_err(req, ENOENT);
}

static void get_attr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct stat st = stat_of(ino);

	(void)fi;
	if (ino != 4 || !hanging)
		fuse_reply_attr(req, &st, 0);
}

static void open_file(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	hanging |= ino == 4;
	fuse_reply_open(req, fi);
}

static void flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)fi;
	if (ino != 2)
		fuse_reply_err(req, 0);
}

/* The kernel writes dirty pages of the file after write(2), at the latest when
 * the file is released; the server never answers. */
static void init(void *arg, struct fuse_conn_info *conn)
{
	(void)arg;
	conn->want |= FUSE_CAP_WRITEBACK_CACHE;
}

static void write_file(fuse_req_t req, fuse_ino_t ino, const char *data,
		       size_t n, off_t at, struct fuse_file_info *fi)
{
	(void)req;
	(void)ino;
	(void)data;
	(void)n;
	(void)at;
	(void)fi;
}

static void stat_fs(fuse_req_t req, fuse_ino_t ino)
{
	struct statvfs st = {0};

	if (ino != 3)
		fuse_reply_statfs(req, &st);
}

static int serve(const char *dir)
{
	static const struct fuse_lowlevel_ops operations = {
		.init = init,
		.lookup = lookup,
		.getattr = get_attr,
		.open = open_file,
		.flush = flush,
		.write = write_file,
		.statfs = stat_fs,
	};
	char *argv[] = {"closing", "-oallow_other", NULL};
	struct fuse_args args = FUSE_ARGS_INIT(2, argv);
	struct fuse_session *session =
		fuse_session_new(&args, &operations, sizeof(operations), NULL);

	must(session && fuse_session_mount(session, dir) == 0, "mount");
	puts("ready");
	fflush(stdout);
	return fuse_session_loop(session);
}

/* ---- the attacker ---- */

/* Return a connected TCP socket with a full buffer, whose peer reads nothing. */
static int lingering(void)
{
	const struct linger linger = {1, 120};
	struct sockaddr_in a = {.sin_family = AF_INET,
				.sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(a);
	int listener = socket(AF_INET, SOCK_STREAM, 0);
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	static char data[65536];

	must(bind(listener, (struct sockaddr *)&a, len) == 0 &&
		     listen(listener, 1) == 0 &&
		     getsockname(listener, (struct sockaddr *)&a, &len) == 0 &&
		     connect(fd, (struct sockaddr *)&a, len) == 0,
	     "a TCP connection");
	while (send(fd, data, sizeof(data), MSG_DONTWAIT) > 0)
		;
	must(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)) ==
		     0,
	     "SO_LINGER");
	return fd;
}

static bool send_fd(struct peer *p, const char *how, int fd)
{
	const struct wire_staging staging = {4096};
	const struct {
		struct wire_pool pool;
		struct wire_stride stride;
	} pool = {{1, 1, 1, 0, 4096}, {0, 4096, 4096, 1, 0}};

	if (strcmp(how, "staging") == 0)
		return peer_send(p,
				 &(struct wire_header){.type = WIRE_STAGING,
						       .count = 1},
				 &staging, sizeof(staging), fd) != 0;
	if (strcmp(how, "pool") == 0)
		return peer_send(p,
				 &(struct wire_header){.type = WIRE_POOL,
						       .count = 1},
				 &pool, sizeof(pool), fd) != 0;
	return peer_send(p, &(struct wire_header){.type = WIRE_STATS}, NULL, 0,
			 fd) != 0;
}

static bool say_hello(struct peer *p)
{
	const struct wire_hello hello = {.version = WIRE_VERSION};

	return peer_send(p,
			 &(struct wire_header){.type = WIRE_HELLO, .count = 1},
			 &hello, sizeof(hello), -1) != 0;
}

static int send_all(const char *what, const char *how, const char *path, int n)
{
	const char *name = strrchr(what, '/');
	const bool is_write = name && strcmp(name, "/write") == 0;
	static struct peer p;
	char byte;

	signal(SIGPIPE, SIG_IGN);
	for (int i = 0; i < n; i++) {
		int fd = strcmp(what, "linger") == 0 ? lingering()
						     : open(what, O_RDWR);

		must(fd >= 0, what);
		must(peer_connect(&p, path), "connect");
		if (strcmp(how, "queued") == 0) {
			must(send_fd(&p, how, fd) && send_fd(&p, how, fd),
			     "send");
			close(p.fd);
		} else {
			must(say_hello(&p) && send_fd(&p, how, fd), "send");
		}
		/* Close this program's descriptor, so that the stopped daemon has
		 * the last reference. */
		if (strcmp(what, "linger") == 0 || is_write)
			close(fd);
	}
	if (is_write)
		must(pwrite(open(what, O_RDWR), "dirty", 5, 0) == 5, "write");
	puts("sent");
	fflush(stdout);
	(void)!read(STDIN_FILENO, &byte, 1);
	return 0;
}

/* ---- other users ---- */

static int probe(const char *path, double seconds)
{
	uint64_t end = kv_now_ns() + (uint64_t)(seconds * 1e9);
	uint64_t began, longest = 0;
	static struct peer p;
	int r;

	do {
		began = kv_now_ns();
		must(peer_connect(&p, path), "connect");
		r = peer_hello(&p);
		errno = -r;
		must(r == 0, "hello");
		r = peer_call(&p, &(struct wire_header){.type = WIRE_STATS},
			      NULL, 0, -1);
		errno = -r;
		must(r == 0, "stats");
		peer_close(&p);
		longest = KV_MAX(longest, kv_now_ns() - began);
		usleep(1000);
	} while (kv_now_ns() < end);
	printf("%.1f\n", (double)longest / 1e6);
	return 0;
}

static int stage(const char *path)
{
	static struct peer p;
	int r;

	must(peer_connect(&p, path), "connect");
	r = peer_hello(&p);
	if (r == 0)
		r = peer_staging(&p, 65536);
	errno = -r;
	must(r == 0, "staging");
	return 0;
}

int main(int argc, char **argv)
{
	must(argc >= 3, "see closing.c");
	if (strcmp(argv[1], "serve") == 0)
		return serve(argv[2]);
	if (strcmp(argv[1], "send") == 0 && argc == 6)
		return send_all(argv[2], argv[3], argv[4], atoi(argv[5]));
	if (strcmp(argv[1], "probe") == 0 && argc == 4)
		return probe(argv[2], atof(argv[3]));
	if (strcmp(argv[1], "stage") == 0)
		return stage(argv[2]);
	must(false, "see closing.c");
	return 1;
}
