/* SPDX-License-Identifier: Apache-2.0 */
/*
 * child.c - the programs that the bench starts, and their certain end.
 *
 * OWNS      the processes in @pids.
 *
 * STATES    a pid is in the table from kv_bench_child_start until somebody has
 *           waited for it; only pids in the table are ever signalled.
 *
 * LOCKING   children->lock guards the table.  It is held while a child is
 *           signalled, never while one is waited for: the thread that handles
 *           SIGINT ends what the main thread waits for.
 */
#include "tools/bench/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tools/bench/clock.h"

#define GRACE_MS 30000

void kv_bench_children_init(struct kv_bench_children *children)
{
	*children = (struct kv_bench_children){0};
	pthread_mutex_init(&children->lock, NULL);
}

static pid_t *slot_of_locked(struct kv_bench_children *children, pid_t pid)
{
	int i;

	for (i = 0; i < KV_BENCH_CHILDREN; i++)
		if (children->pids[i] == pid)
			return &children->pids[i];
	return NULL;
}

static void run(char *const argv[], const char *log)
{
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
		if (pid == 0)
			run(argv, log);
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

static void forget(struct kv_bench_children *children, pid_t pid)
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
	forget(children, pid);
	if (r < 0)
		return -errno;
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

bool kv_bench_child_alive(struct kv_bench_children *children, pid_t pid)
{
	int status;

	if (waitpid(pid, &status, WNOHANG) == 0)
		return true;
	forget(children, pid);
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
		kv_bench_sleep_ms(5);
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
