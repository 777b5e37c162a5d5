/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - the daemon: parse, check, open the store, mount, serve, close.
 *
 * OWNS      the process: its two halves while it becomes a daemon, and its
 *           standard descriptors.
 *
 * STATES    parent -> waits for one byte: the exit status, sent by the child
 *           once the mount answers, or when it fails.
 *
 * LOCKING   none: forks, also the gate, before any thread.
 */
#include <fcntl.h>
#include <malloc.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "fs/control/gate.h"
#include "fs/health.h"
#include "fs/log.h"
#include "fs/mountpoint.h"
#include "fs/session.h"

#define OOM_SCORE_MAX 900u /* 1000 is never */

static int complain(const char *why, int error)
{
	fprintf(stderr, "kvfs: %s\n", why ? why : strerror(-error));
	return 1;
}

struct start {
	int to_parent; /* -1: none, or it has been told */
};

/* Tell the service manager that the mount answers, as sd_notify(3) does: a
 * datagram to the socket that it named, whose first byte is '@' if abstract. */
static void notify_service_manager(void)
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
	    sendto(fd, "READY=1", 7, MSG_DONTWAIT, (struct sockaddr *)&address,
		   (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) < 0)
		fprintf(stderr,
			"kvfs: %s: the service manager cannot be told "
			"that the mount is ready: %s\n",
			path, strerror(errno));
	if (fd >= 0)
		close(fd);
}

/* The mount answers: from here on no terminal is ours. */
static void on_ready(void *arg)
{
	struct start *d = arg;
	char status = 0;

	notify_service_manager();
	if (d->to_parent < 0)
		return;
	kv_log_detach();
	if (write(d->to_parent, &status, 1) != 1)
		(void)status; /* nobody waits */
	close(d->to_parent);
	d->to_parent = -1;
}

/*
 * Memory that was given for blocks shall not make the daemon the first that the
 * kernel kills for want of memory; what it takes beyond counts as anybody's.
 * Where somebody has set the score, that stays, and it takes root to lower it.
 */
static void lower_oom_score(uint64_t dram)
{
	uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) *
			  (uint64_t)sysconf(_SC_PAGESIZE);
	FILE *f = fopen("/proc/self/oom_score_adj", "r+e");
	int score = 0;

	if (!f)
		return;
	if (fscanf(f, "%d", &score) == 1 && score == 0) {
		rewind(f);
		fprintf(f, "-%llu\n",
			(unsigned long long)KV_MIN(dram * 1000 / memory,
						   OOM_SCORE_MAX));
	}
	fclose(f);
}

/* Segments, clients and connections each take descriptors. */
static void raise_limits(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	/* Each arena of malloc keeps what its busiest moment took. */
	mallopt(M_ARENA_MAX, 4);
}

static int serve(const struct kv_options *options, const char *mountpoint,
		 struct start *d)
{
	_cleanup_(kv_freep) char *why = NULL;
	struct kv_daemon *daemon;
	struct kv_gate *gate;
	int r, status = 0;

	r = kv_gate_start(&gate);
	if (r < 0)
		return complain(NULL, r);
	raise_limits();
	lower_oom_score(options->cache.dram);
	kv_session_block_signals();
	r = kv_daemon_open(options, gate, &daemon, &why);
	if (r == 0) {
		r = kv_session_run(daemon, mountpoint, on_ready, d, &why);
		if (r < 0)
			status = complain(why, r);
		kv_daemon_close(daemon);
	} else {
		status = complain(why, r);
	}
	kv_gate_stop(gate);
	return status;
}

/* Only the exit status: the child has printed what there is to say. */
static int wait_for_child(int from_child)
{
	char status;
	ssize_t n;

	do
		n = read(from_child, &status, 1);
	while (n < 0 && errno == EINTR);
	if (n == 1)
		return status;
	return complain("the daemon died while it started", 0);
}

static int serve_in_background(const struct kv_options *options,
			       const char *mountpoint)
{
	struct start d = {.to_parent = -1};
	char status;
	int pipes[2];
	pid_t pid;

	if (pipe2(pipes, O_CLOEXEC) < 0)
		return complain(NULL, -errno);
	pid = fork();
	if (pid < 0)
		return complain(NULL, -errno);
	if (pid > 0) {
		close(pipes[1]);
		return wait_for_child(pipes[0]);
	}
	close(pipes[0]);
	setsid();
	if (chdir("/") < 0)
		return complain(NULL, -errno);
	d.to_parent = pipes[1];
	status = (char)serve(options, mountpoint, &d);
	if (d.to_parent >= 0 && write(d.to_parent, &status, 1) != 1)
		return 1;
	return status;
}

static int run(const struct kv_options *options)
{
	_cleanup_(kv_freep) char *mountpoint = NULL, *why = NULL;
	struct start none = {.to_parent = -1};
	int r;

	if (options->action == KV_REMOUNT) {
		r = kv_mountpoint_remount(options->mountpoint, options->given,
					  options->cache.read_only, &why);
		return r < 0 ? complain(why, r) : 0;
	}
	if (options->mountpoint) {
		r = kv_mountpoint_check(options->mountpoint, options->store,
					&mountpoint, &why);
		if (r < 0)
			return complain(why, r);
		if (options->control &&
		    kv_mountpoint_covers(mountpoint, options->control) > 0)
			return complain("control: it must not lie in the mount",
					-EINVAL);
	}
	if (options->action == KV_FAKE)
		return 0;
	if (options->foreground)
		return serve(options, mountpoint, &none);
	return serve_in_background(options, mountpoint);
}

int main(int argc, char **argv)
{
	_cleanup_(kv_freep) char *why = NULL;
	struct kv_options options;
	int r;

	/* A lock or a pipe of the caller's would stay open with the mount. */
	(void)close_range(3, ~0U, 0);
	if (kv_umount_called(argv[0]))
		return kv_umount_main(argc, argv);
	if (argc > 1 && strcmp(argv[1], "--forget") == 0)
		return complain("--forget: use kvfs-forget(1)", -EINVAL);
	if (argc > 1 && strcmp(argv[1], "--health") == 0)
		return kv_health_main(argc - 2, argv + 2);
	r = kv_options_parse(argc, argv, &options, &why);
	if (r < 0)
		return complain(why, r);
	switch (options.action) {
	case KV_SHOW_HELP:
		kv_options_help(stdout);
		break;
	case KV_SHOW_VERSION:
		printf("kvfs %s\n", KV_VERSION);
		break;
	default:
		r = run(&options);
	}
	kv_options_fini(&options);
	return r;
}
