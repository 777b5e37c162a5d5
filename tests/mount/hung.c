/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hung.c - sessions by the mount of a daemon that hangs, which is stopped and
 * goes on as this program wants.
 *
 *   hung MOUNT PID     each call returns while the daemon PID is stopped
 *   hung MOUNT         open while it hangs, say "open", and wait for a daemon
 *
 * Exits 0; 1 and says why; or dies by SIGALRM, when a call waits for ever.
 */
#include <signal.h>
#include <stdio.h>

#include "common/kv.h"
#include "kernels/kvfs.h"

#define FOR_EVER 120 /* seconds; far more than any promise */

static void must(bool condition, const char *what)
{
	if (condition)
		return;
	fprintf(stderr, "FAILED: %s\n", what);
	exit(1);
}

static kvfs_session *open_by(const char *path, int connected)
{
	kvfs_session *session = NULL;

	must(kvfs_open(path, &session) == 0, "kvfs_open");
	must(connected < 0 || kvfs_connected(session) == connected,
	     connected ? "not connected" : "connected to what hangs");
	return session;
}

static void wait_until_connected(kvfs_session *session)
{
	while (kvfs_connected(session) != 1)
		usleep(10000);
}

static void stop_and_go_on(const char *mount, pid_t daemon)
{
	kvfs_session *before = open_by(mount, -1), *session;
	char link[4096];

	wait_until_connected(before);
	kill(daemon, SIGSTOP);
	kvfs_close(open_by(mount, 0));
	kvfs_close(before);
	snprintf(link, sizeof(link), "%s/.kvfs/control", mount);
	kvfs_close(open_by(link, 0));

	session = open_by(mount, 0);
	kill(daemon, SIGCONT);
	wait_until_connected(session);
	kvfs_close(session);
}

int main(int argc, char **argv)
{
	kvfs_session *session;

	must(argc == 2 || argc == 3, "usage: hung MOUNT [PID]");
	alarm(FOR_EVER);
	if (argc == 3) {
		stop_and_go_on(argv[1], atoi(argv[2]));
		return 0;
	}
	session = open_by(argv[1], 0);
	puts("open");
	fflush(stdout);
	wait_until_connected(session);
	kvfs_close(session);
	return 0;
}
