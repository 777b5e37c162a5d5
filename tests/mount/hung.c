/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hung.c - sessions by the mount of a daemon that this program stops and continues.
 *
 *   hung MOUNT PID     each call returns while the daemon PID is stopped
 *   hung MOUNT         open while the daemon hangs, print "open", and wait for a daemon
 *
 * Exits 0; prints an error and exits 1; or dies by SIGALRM, when a call never returns.
 */
#include <glob.h>
#include <signal.h>
#include <stdio.h>

#include "common/kv.h"
#include "kernels/kvfs.h"

#define FOR_EVER 120 /* in seconds; longer than any time limit of the library */

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

/* Return true if the thread whose directory below /proc this is has stopped. */
static bool has_stopped(const char *task)
{
	char path[512], text[512], *state;
	FILE *f;
	size_t n;

	snprintf(path, sizeof(path), "%s/stat", task);
	f = fopen(path, "re");
	if (!f)
		return true; /* the process has ended */
	n = fread(text, 1, sizeof(text) - 1, f);
	fclose(f);
	text[n] = '\0';
	state = strrchr(text, ')'); /* the text begins with: pid (name) state */
	return state && strncmp(state, ") T", 3) == 0;
}

/* Stop @daemon, and wait until none of its threads runs. */
static void stop(pid_t daemon)
{
	char tasks[64];
	glob_t found;
	bool stopped;

	kill(daemon, SIGSTOP);
	snprintf(tasks, sizeof(tasks), "/proc/%d/task/*", (int)daemon);
	do {
		usleep(1000);
		must(glob(tasks, 0, NULL, &found) == 0, "no such daemon");
		stopped = true;
		for (size_t i = 0; i < found.gl_pathc; i++)
			stopped &= has_stopped(found.gl_pathv[i]);
		globfree(&found);
	} while (!stopped);
}

static void stop_and_go_on(const char *mount, pid_t daemon)
{
	kvfs_session *before = open_by(mount, -1), *session;
	char link[4096];

	wait_until_connected(before);
	stop(daemon);
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
