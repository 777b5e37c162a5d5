/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.c - the directory of a run, its child processes and their certain end,
 * and the daemon under test on a fresh store.
 *
 * OWNS      the process that measures and, in that process, its children; the
 *           daemon's store and mount point.
 *
 * INVARIANTS
 *   (1) The first process only waits, for the end of the measurement or for a
 *       signal, and cleans up.  That process adopts processes that a killed
 *       measurement leaves.
 *   (2) A pid is 0 once the process was waited for, so that no other process
 *       is signalled.
 *
 * LOCKING   none.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/bench/bench.h"

#define GRACE_MS 30000
#define TIMEOUT_MS 20000

int kv_bench_child_start(char *const argv[], const char *log, pid_t *ret_pid)
{
	pid_t pid = fork();
	sigset_t none;
	int fd;

	if (pid < 0)
		return -errno;
	if (pid > 0) {
		*ret_pid = pid;
		return 0;
	}
	fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	if (fd >= 0) {
		dup2(fd, 1);
		dup2(fd, 2);
	}
	execvp(argv[0], argv);
	_exit(127);
}

/* Wait for the end of @pid.  Return its exit status; -1: it was killed. */
static int wait_for(pid_t pid)
{
	int status = -1;

	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int kv_bench_child_run(char *const argv[], const char *log)
{
	pid_t pid = 0;
	int r = kv_bench_child_start(argv, log, &pid);

	if (r == 0 && wait_for(pid) != 0)
		r = -EIO;
	return r;
}

bool kv_bench_child_alive(pid_t *pid)
{
	if (waitpid(*pid, NULL, WNOHANG) == 0)
		return true;
	*pid = 0;
	return false;
}

void kv_bench_child_end(pid_t *pid)
{
	if (*pid <= 0)
		return;
	kill(*pid, SIGTERM);
	for (unsigned waited = 0; waited < GRACE_MS; waited += 5) {
		if (!kv_bench_child_alive(pid))
			return;
		usleep(5000);
	}
	kill(*pid, SIGKILL);
	wait_for(*pid);
	*pid = 0;
}

bool kv_bench_program_found(const char *program)
{
	char *argv[] = {(char *)program, (char *)"--version", NULL};

	return kv_bench_child_run(argv, "/dev/null") == 0;
}

static int remove_one(const char *path, const struct stat *st, int type,
		      struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	remove(path);
	return 0;
}

void kv_bench_remove(const char *path)
{
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

/* Unmount @mount, also if its daemon is dead. */
static void unmount(const char *mount)
{
	char *argv[] = {"fusermount3", "-uzq", (char *)mount, NULL};

	if (umount2(mount, MNT_DETACH) < 0)
		kv_bench_child_run(argv, "/dev/null");
}

/* Unmount the mount at @path/mnt, if any, and remove @path. */
static void workdir_remove(const char *path)
{
	char mount[PATH_MAX];
	struct stat at, above;

	snprintf(mount, sizeof(mount), "%s/mnt", path);
	/* A dead daemon's mount gives ENOTCONN. */
	if (stat(mount, &at) < 0
		    ? errno != ENOENT
		    : stat(path, &above) == 0 && at.st_dev != above.st_dev)
		unmount(mount);
	kv_bench_remove(path);
}

int kv_bench_supervise(struct kv_bench *bench,
		       int (*measure)(struct kv_bench *bench))
{
	static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGCHLD};
	sigset_t set;
	int signal = SIGCHLD, status = 1;
	pid_t pid;

	sigemptyset(&set);
	for (size_t i = 0; i < KV_ARRAY_LEN(signals); i++)
		sigaddset(&set, signals[i]);
	sigprocmask(SIG_BLOCK, &set, NULL);
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		exit(measure(bench));
	}
	while (pid > 0 && signal == SIGCHLD &&
	       waitpid(pid, &status, WNOHANG) == 0)
		sigwait(&set, &signal);
	if (signal != SIGCHLD) {
		kill(pid, SIGKILL);
		wait_for(pid);
	}
	/* The kernel sends SIGTERM to the children of a process that died: wait
	 * for them, but not longer than GRACE_MS. */
	for (unsigned waited = 0;
	     waited < GRACE_MS &&
	     ((pid = waitpid(-1, NULL, WNOHANG)) >= 0 || errno == EINTR);
	     waited += 5)
		if (pid == 0)
			usleep(5000);
	workdir_remove(bench->dir);
	if (signal != SIGCHLD)
		return 128 + signal;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int kv_bench_daemon_start(struct kv_bench *bench, const char *options,
			  struct kv_bench_daemon *ret_daemon)
{
	struct kv_bench_daemon *daemon = ret_daemon;
	char program[PATH_MAX], control[PATH_MAX + 16], line[512];
	char *argv[] = {program,       "-f",	      "-o", (char *)options,
			daemon->store, daemon->mount, NULL};
	unsigned waited;
	FILE *log;
	int r;

	*daemon = (struct kv_bench_daemon){0};
	snprintf(program, sizeof(program), "%s/kvfs", bench->build);
	snprintf(daemon->store, sizeof(daemon->store), "%s/store", bench->dir);
	snprintf(daemon->mount, sizeof(daemon->mount), "%s/mnt", bench->dir);
	snprintf(daemon->log, sizeof(daemon->log), "%s/kvfs.log", bench->dir);
	if (mkdir(daemon->mount, 0700) < 0 && errno != EEXIST)
		return -errno;
	unlink(daemon->log);
	r = kv_bench_child_start(argv, daemon->log, &daemon->pid);
	if (r < 0)
		return r;
	snprintf(control, sizeof(control), "%s/.kvfs/control", daemon->mount);
	for (waited = 0; waited < TIMEOUT_MS; waited += 10) {
		if (access(control, F_OK) == 0)
			return 0;
		if (!kv_bench_child_alive(&daemon->pid))
			break;
		usleep(10000);
	}
	if (waited >= TIMEOUT_MS)
		return -ETIMEDOUT;
	log = fopen(daemon->log, "re");
	while (log && fgets(line, sizeof(line), log))
		fprintf(stderr, "kvfs: %s", line);
	if (log)
		fclose(log);
	return -EIO;
}

void kv_bench_daemon_kill(struct kv_bench_daemon *daemon)
{
	kill(daemon->pid, SIGKILL);
	wait_for(daemon->pid);
	unmount(daemon->mount);
	daemon->pid = 0;
}

void kv_bench_daemon_stop(struct kv_bench_daemon *daemon)
{
	kv_bench_child_end(&daemon->pid);
	kv_bench_remove(daemon->store);
}

/* Return the daemon's processor time in clock ticks; -1: it has ended. */
static long ticks_of(const struct kv_bench_daemon *daemon)
{
	long user, kernel;
	char path[64];
	bool known;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)daemon->pid);
	f = fopen(path, "re");
	if (!f)
		return -1;
	known = fscanf(f,
		       "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u "
		       "%ld "
		       "%ld",
		       &user, &kernel) == 2;
	fclose(f);
	return known ? user + kernel : -1;
}

long kv_bench_daemon_memory(const struct kv_bench_daemon *daemon,
			    const char *name)
{
	char path[64], line[256];
	long kib = 0;
	bool found = false;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)daemon->pid);
	f = fopen(path, "re");
	if (!f)
		return -errno;
	while (!found && fgets(line, sizeof(line), f))
		found = strncmp(line, name, strlen(name)) == 0 &&
			sscanf(line + strlen(name), ": %ld", &kib) == 1;
	fclose(f);
	return found ? kib * 1024 : -EIO;
}

void kv_bench_daemon_settle(const struct kv_bench_daemon *daemon)
{
	const long arena = (long)KV_BENCH_ARENA_GIB << 30;
	long before = ticks_of(daemon), now, shared;
	unsigned waited, quiet = 0;

	for (waited = 0; waited < TIMEOUT_MS && quiet < 3; waited += 100) {
		usleep(100000);
		now = ticks_of(daemon);
		shared = kv_bench_daemon_memory(daemon, "RssShmem") +
			 kv_bench_daemon_memory(daemon, "HugetlbPages");
		quiet = now - before <= 1 && shared >= arena ? quiet + 1 : 0;
		before = now;
	}
}
