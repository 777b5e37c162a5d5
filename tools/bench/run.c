/* SPDX-License-Identifier: Apache-2.0 */
/*
 * run.c - the directory of a run, its child processes and their certain end,
 * and the daemon under test on a fresh store.
 *
 * OWNS      the processes in @pids; the daemon's store and mount point.
 *
 * STATES    a pid is in the table from kv_bench_child_start until it has been
 *           waited for; only pids in the table are ever signalled.
 *
 * LOCKING   children->lock guards the table.  The lock is held while a child
 *           is signalled, never while a child is waited for: the thread that
 *           handles SIGINT ends the child that the main thread waits for.
 */
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/bench/bench.h"

#define GRACE_MS 30000
#define TIMEOUT_MS 20000

static pid_t *slot_of_locked(struct kv_bench_children *children, pid_t pid)
{
	int i;

	for (i = 0; i < KV_BENCH_CHILDREN; i++)
		if (children->pids[i] == pid)
			return &children->pids[i];
	return NULL;
}

int kv_bench_child_start(struct kv_bench_children *children, char *const argv[],
			 const char *log, pid_t *ret_pid)
{
	pid_t *slot, pid = 0;
	int r = 0;

	pthread_mutex_lock(&children->lock);
	slot = slot_of_locked(children, 0);
	if (children->closed)
		r = -ECANCELED;
	else if (!slot)
		r = -EMFILE;
	if (r == 0) {
		pid = fork();
		if (pid == 0) {
			sigset_t none;
			int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);

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
		if (pid < 0)
			r = -errno;
		else
			*slot = pid;
	}
	pthread_mutex_unlock(&children->lock);
	if (r == 0)
		*ret_pid = pid;
	return r;
}

static void forget_child(struct kv_bench_children *children, pid_t pid)
{
	pid_t *slot;

	pthread_mutex_lock(&children->lock);
	slot = slot_of_locked(children, pid);
	if (slot)
		*slot = 0;
	pthread_mutex_unlock(&children->lock);
}

int kv_bench_child_wait(struct kv_bench_children *children, pid_t pid)
{
	int status;
	pid_t r;

	do
		r = waitpid(pid, &status, 0);
	while (r < 0 && errno == EINTR);
	forget_child(children, pid);
	if (r < 0)
		return -errno;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int kv_bench_child_run(struct kv_bench_children *children, char *const argv[],
		       const char *log)
{
	pid_t pid;
	int r = kv_bench_child_start(children, argv, log, &pid);

	if (r == 0)
		r = kv_bench_child_wait(children, pid);
	return r > 0 ? -EIO : r;
}

bool kv_bench_child_alive(struct kv_bench_children *children, pid_t pid)
{
	int status;

	if (waitpid(pid, &status, WNOHANG) == 0)
		return true;
	forget_child(children, pid);
	return false;
}

static void signal_child(struct kv_bench_children *children, pid_t pid,
			 int signal)
{
	pthread_mutex_lock(&children->lock);
	if (slot_of_locked(children, pid))
		kill(pid, signal);
	pthread_mutex_unlock(&children->lock);
}

void kv_bench_child_end(struct kv_bench_children *children, pid_t pid)
{
	unsigned waited;

	if (pid <= 0)
		return;
	signal_child(children, pid, SIGTERM);
	for (waited = 0; waited < GRACE_MS; waited += 5) {
		if (!kv_bench_child_alive(children, pid))
			return;
		usleep(5000);
	}
	signal_child(children, pid, SIGKILL);
	kv_bench_child_wait(children, pid);
}

void kv_bench_children_end(struct kv_bench_children *children)
{
	pid_t pids[KV_BENCH_CHILDREN];
	int i;

	pthread_mutex_lock(&children->lock);
	children->closed = true;
	memcpy(pids, children->pids, sizeof(pids));
	pthread_mutex_unlock(&children->lock);
	for (i = 0; i < KV_BENCH_CHILDREN; i++)
		kv_bench_child_end(children, pids[i]);
}

bool kv_bench_program_found(const char *program)
{
	const char *path = getenv("PATH"), *end;
	char file[4096];

	for (; path && *path; path = *end ? end + 1 : end) {
		end = strchrnul(path, ':');
		snprintf(file, sizeof(file), "%.*s/%s", (int)(end - path), path,
			 program);
		if (access(file, X_OK) == 0)
			return true;
	}
	return false;
}

int kv_bench_workdir_make(const char *dir, const char *build, char **ret_path)
{
	char template[PATH_MAX], *path;

	if (dir)
		snprintf(template, sizeof(template), "%s/kvfs-bench-XXXXXX",
			 dir);
	else
		snprintf(template, sizeof(template), "%s-bench-XXXXXX", build);
	if (!mkdtemp(template))
		return -errno;
	path = realpath(template, NULL);
	if (!path)
		return -errno;
	*ret_path = path;
	return 0;
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
	pid_t pid;

	if (umount2(mount, MNT_DETACH) == 0)
		return;
	pid = fork();
	if (pid == 0) {
		execlp("fusermount3", "fusermount3", "-uzq", mount, NULL);
		_exit(127);
	}
	if (pid > 0)
		waitpid(pid, NULL, 0);
}

void kv_bench_workdir_remove(const char *path)
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

const char *kv_bench_filesystem(const char *path)
{
	struct statfs fs;

	if (statfs(path, &fs) < 0)
		return "?";
	switch ((unsigned long)fs.f_type) {
	case EXT4_SUPER_MAGIC:
		return "ext4";
	case XFS_SUPER_MAGIC:
		return "xfs";
	case BTRFS_SUPER_MAGIC:
		return "btrfs";
	case TMPFS_MAGIC:
		return "tmpfs";
	case OVERLAYFS_SUPER_MAGIC:
		return "overlayfs";
	default:
		return "file system";
	}
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

	*daemon = (struct kv_bench_daemon){.children = &bench->children};
	snprintf(program, sizeof(program), "%s/kvfs", bench->build);
	snprintf(daemon->store, sizeof(daemon->store), "%s/store", bench->dir);
	snprintf(daemon->mount, sizeof(daemon->mount), "%s/mnt", bench->dir);
	snprintf(daemon->log, sizeof(daemon->log), "%s/kvfs.log", bench->dir);
	if (mkdir(daemon->mount, 0700) < 0 && errno != EEXIST)
		return -errno;
	unlink(daemon->log);
	r = kv_bench_child_start(daemon->children, argv, daemon->log,
				 &daemon->pid);
	if (r < 0)
		return r;
	snprintf(control, sizeof(control), "%s/.kvfs/control", daemon->mount);
	for (waited = 0; waited < TIMEOUT_MS; waited += 10) {
		if (access(control, F_OK) == 0)
			return 0;
		if (!kv_bench_child_alive(daemon->children, daemon->pid))
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

void kv_bench_daemon_end(struct kv_bench_daemon *daemon)
{
	kv_bench_child_end(daemon->children, daemon->pid);
	daemon->pid = 0;
}

void kv_bench_daemon_kill(struct kv_bench_daemon *daemon)
{
	kill(daemon->pid, SIGKILL);
	kv_bench_child_wait(daemon->children, daemon->pid);
	unmount(daemon->mount);
	daemon->pid = 0;
}

void kv_bench_daemon_stop(struct kv_bench_daemon *daemon)
{
	if (daemon->pid <= 0)
		return;
	kv_bench_daemon_end(daemon);
	kv_bench_remove(daemon->store);
	*daemon = (struct kv_bench_daemon){0};
}

/* Return the processor time of the daemon in clock ticks; -1: gone. */
static long ticks_of(const struct kv_bench_daemon *daemon)
{
	long user = -1, kernel = -1;
	char path[64];
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)daemon->pid);
	f = fopen(path, "re");
	if (!f)
		return -1;
	if (fscanf(f,
		   "%*d %*s %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld "
		   "%ld",
		   &user, &kernel) != 2)
		user = kernel = -1;
	fclose(f);
	return user < 0 ? -1 : user + kernel;
}

/* Return the line @name of /proc/PID/status in bytes, or -errno. */
static long status_of(const struct kv_bench_daemon *daemon, const char *name)
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

void kv_bench_daemon_settle(const struct kv_bench_daemon *daemon,
			    uint64_t arena)
{
	long before = ticks_of(daemon), now, shared;
	unsigned waited, quiet = 0;

	for (waited = 0; waited < TIMEOUT_MS && quiet < 3; waited += 100) {
		usleep(100000);
		now = ticks_of(daemon);
		shared = status_of(daemon, "RssShmem") +
			 status_of(daemon, "HugetlbPages");
		quiet = now - before <= 1 && shared >= (long)arena ? quiet + 1
								   : 0;
		before = now;
	}
}

long kv_bench_daemon_anonymous(const struct kv_bench_daemon *daemon)
{
	return status_of(daemon, "RssAnon");
}
