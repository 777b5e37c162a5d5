/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.c - a program that the daemon starts and does not trust.
 *
 * It begins in our memory, as posix_spawn does it: a fork would copy page tables
 * and make pages that are being read into copies.  Until it executes, the thread
 * that started it stands still.  It sends no SIGCHLD, so that nobody else reaps
 * it.
 *
 * OWNS      nothing: a child is the caller's.
 *
 * LOCKING   none.
 */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "cache/remote/launch.h"

#define STACK (64u << 10)

struct beginning {
	const struct kv_launch *launch;
	pid_t parent;
	bool root;
	int error; /* out */
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
	/* Older kernels cannot; what we open is closed by exec. */
	syscall(SYS_close_range, KV_LAUNCH_FD + 1, ~0u, 0);
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

static int begin_child(void *arg)
{
	static const char *const environment[] = {"PATH=/usr/bin:/bin", NULL};
	struct beginning *begin = arg;
	const char *const *argv = begin->launch->argv;
	int r = prepare(begin);

	if (r == 0) {
		default_signals();
		execve(argv[0], (char *const *)argv,
		       (char *const *)environment);
		r = -errno;
	}
	begin->error = r;
	_exit(127);
}

int kv_launch(const struct kv_launch *launch, struct kv_child *ret_child)
{
	struct beginning begin = {launch, getpid(), geteuid() == 0, 0};
	struct kv_child child = {.pidfd = -1};
	char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	sigset_t all, before;
	int status, r = 0;

	if (stack == MAP_FAILED)
		return -errno;
	/* No handler of ours runs there. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	child.pid = clone(begin_child, stack + STACK,
			  CLONE_VM | CLONE_VFORK | CLONE_PIDFD, &begin,
			  &child.pidfd);
	if (child.pid < 0)
		r = -errno;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	munmap(stack, STACK);
	if (r < 0)
		return r;
	if (begin.error) {
		waitpid(child.pid, &status, __WALL);
		close(child.pidfd);
		return begin.error;
	}
	*ret_child = child;
	return 0;
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

	if (child->pid > 0 &&
	    waitpid(child->pid, &status, __WALL | WNOHANG) == 0)
		return false;
	kv_closep(&child->pidfd);
	*child = (struct kv_child){.pidfd = -1};
	*ret_status = status;
	return true;
}
