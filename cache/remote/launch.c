/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.c - a program that the daemon starts and does not trust.
 *
 * It begins in our memory, by vfork: a fork would copy page tables, and make
 * copies of pages that are being read into.  Until it executes, the thread that
 * started it stands still.
 *
 * OWNS      nothing: a child is the caller's.
 *
 * LOCKING   none.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <linux/close_range.h>

#include "cache/remote/launch.h"

#define FIRST_FD 10 /* of what must not be where the socket goes */

struct beginning {
	const struct kv_launch *launch;
	pid_t parent;
	bool root;
	int to_parent; /* why it did not come to be */
};

/* The calls themselves: the library's would change all threads of ours. */
static int become(uid_t uid)
{
	if (syscall(SYS_setgroups, 0, NULL) < 0 ||
	    syscall(SYS_setresgid, uid, uid, uid) < 0 ||
	    syscall(SYS_setresuid, uid, uid, uid) < 0)
		return -errno;
	return 0;
}

/* Nothing of ours but @fd and standard error. */
static int keep_only(int fd)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null < 0 || dup2(null, 0) < 0 || dup2(2, 1) < 0)
		return -errno;
	if (fd == KV_LAUNCH_FD ? fcntl(fd, F_SETFD, 0) < 0
			       : dup2(fd, KV_LAUNCH_FD) < 0)
		return -errno;
	/* By exec.  Older kernels cannot; but so is what we open. */
	syscall(SYS_close_range, KV_LAUNCH_FD + 1, ~0u, CLOSE_RANGE_CLOEXEC);
	return 0;
}

static void default_signals(void)
{
	const struct sigaction action = {.sa_handler = SIG_DFL};
	sigset_t none;

	for (int i = 1; i <= SIGRTMAX; i++)
		sigaction(i, &action, NULL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

static int prepare(const struct beginning *begin)
{
	int r;

	setsid();
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -errno;
	r = keep_only(begin->launch->fd);
	if (r == 0 && begin->root && begin->launch->uid != 0)
		r = become(begin->launch->uid);
	if (r < 0)
		return r;
	/* After it has become another: that takes the wish away. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
		return -errno;
	return getppid() == begin->parent ? 0 : -ESRCH;
}

static _Noreturn void begin_child(const struct beginning *begin)
{
	static const char *const environment[] = {"PATH=/usr/bin:/bin", NULL};
	const char *const *argv = begin->launch->argv;
	int r = prepare(begin);

	if (r == 0) {
		default_signals();
		execve(argv[0], (char *const *)argv,
		       (char *const *)environment);
		r = -errno;
	}
	if (write(begin->to_parent, &r, sizeof(r)) < 0)
		_exit(126);
	_exit(127);
}

/* Apart: what is on the stack here is the child's, too. */
static pid_t start(const struct beginning *begin)
{
	pid_t pid = vfork();

	if (pid == 0) /* NOLINTNEXTLINE(clang-analyzer-unix.Vfork) */
		begin_child(begin);
	return pid < 0 ? -errno : pid;
}

static int start_quietly(const struct beginning *begin)
{
	sigset_t all, before;
	pid_t pid;

	/* No handler of ours runs there. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pid = start(begin);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return pid;
}

/* Has written why it is none, or is another program by now. */
static int begun(int from_child, struct kv_child *child)
{
	int r, status;

	child->pidfd = (int)syscall(SYS_pidfd_open, child->pid, 0);
	if (child->pidfd >= 0 && read(from_child, &r, sizeof(r)) < 0)
		return 0;
	if (child->pidfd < 0)
		r = -errno;
	kill(child->pid, SIGKILL);
	waitpid(child->pid, &status, 0);
	kv_closep(&child->pidfd);
	return r;
}

int kv_launch(const struct kv_launch *launch, struct kv_child *ret_child)
{
	struct beginning begin = {launch, getpid(), geteuid() == 0, -1};
	struct kv_child child = {.pidfd = -1};
	int pipes[2], r = 0;

	if (pipe2(pipes, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	begin.to_parent = fcntl(pipes[1], F_DUPFD_CLOEXEC, FIRST_FD);
	if (begin.to_parent < 0)
		r = -errno;
	if (r == 0)
		r = child.pid = start_quietly(&begin);
	if (r > 0)
		r = begun(pipes[0], &child);
	close(pipes[0]);
	close(pipes[1]);
	kv_closep(&begin.to_parent);
	if (r == 0)
		*ret_child = child;
	return r;
}

void kv_child_kill(const struct kv_child *child)
{
	/* Until it is reaped, its number is nobody else's. */
	if (child->pid > 0) {
		kill(-child->pid, SIGKILL);
		kill(child->pid, SIGKILL);
	}
}

bool kv_child_reap(struct kv_child *child, int *ret_status)
{
	int status = 0;

	if (child->pid > 0 && waitpid(child->pid, &status, WNOHANG) == 0)
		return false;
	kv_closep(&child->pidfd);
	*child = (struct kv_child){.pidfd = -1};
	*ret_status = status;
	return true;
}
