/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.c - start a program that the daemon does not trust.
 *
 * The child shares our memory, as after vfork(2), on a stack of its own: fork(2) would
 * copy page tables, and copy pages that are being read into.  The calling thread stops
 * until the child has called execve(2).  As that may take any time on a filesystem that
 * hangs, the child first gives up all that is ours except the memory.
 *
 * OWNS      nothing: a child is the caller's.
 *
 * LOCKING   none.
 */
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "cache/remote/launch.h"

#define FIRST_FD 10 /* for descriptors that must not be KV_LAUNCH_FD */
#define STACK (64u << 10)
#define LOWER 5 /* of nice(2) */
#define LOWER_TEXT "5"
#define PROCESSES 4096

/* clone(2) by a name that sanitizers do not intercept. */
int __clone(int (*f)(void *), void *stack, int flags, void *arg, ...);

struct beginning {
	const struct kv_launch *launch;
	bool root;
	int daemon;    /* a pidfd of ours */
	int to_parent; /* pipe for a struct failure */
};

struct failure {
	int error;
	unsigned argument; /* index in argv of the path it is about */
};

/* The system call itself, as are those of close and dup: a sanitizer would believe that
 * our own descriptors change. */
static int open_here(const char *path)
{
	return (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
}

/* Reset a negative OOM score: the daemon has it because of the blocks' memory. */
static void reset_oom_score(void)
{
	int fd = open_here("/proc/self/oom_score_adj");
	char sign;

	if (fd >= 0 && syscall(SYS_read, fd, &sign, 1) == 1 && sign == '-' &&
	    syscall(SYS_write, fd, "0", 1) < 0)
		errno = 0; /* keep the score */
	if (fd >= 0)
		syscall(SYS_close, fd);
}

/* Lower the priority, also of the session, which the kernel may weigh as a whole. */
static void lower_priority(void)
{
	int fd = open_here("/proc/self/autogroup");

	if (nice(LOWER) < 0 || fd < 0 ||
	    syscall(SYS_write, fd, LOWER_TEXT, 1) < 0)
		errno = 0; /* keep the priority */
	if (fd >= 0)
		syscall(SYS_close, fd);
}

/* Make @fd the descriptor @to, which execve(2) keeps. */
static int put_at(int fd, int to)
{
	return fd == to ? fcntl(fd, F_SETFD, 0)
			: (int)syscall(SYS_dup3, fd, to, 0);
}

/*
 * Close all descriptors but the socket and standard error.  execve(2) would be too late:
 * the child would hold the store's lock and the mount until then.
 */
static int keep_only(int fd, int to_parent)
{
	int null = open_here("/dev/null");

	if (null < 0 || put_at(null, 0) < 0 || put_at(2, 1) < 0 ||
	    put_at(fd, KV_LAUNCH_FD) < 0)
		return -errno;
	/* Fails on older kernels; all our descriptors are close-on-exec. */
	syscall(SYS_close_range, KV_LAUNCH_FD + 1, to_parent - 1, 0);
	syscall(SYS_close_range, to_parent + 1, ~0u, 0);
	return 0;
}

static int prepare(const struct beginning *begin)
{
	const uid_t uid = begin->root ? begin->launch->uid : 0;
	struct pollfd daemon = {begin->daemon, POLLIN, 0};
	struct rlimit limit = {0, 0};

	setsid();
	setrlimit(RLIMIT_CORE, &limit);
	/* All processes of a user count together: limit only a user of its own. */
	if (uid != 0) {
		limit = (struct rlimit){PROCESSES, PROCESSES};
		getrlimit(RLIMIT_NPROC, &limit);
		limit.rlim_max = KV_MIN(limit.rlim_max, PROCESSES);
		limit.rlim_cur = KV_MIN(limit.rlim_cur, PROCESSES);
		setrlimit(RLIMIT_NPROC, &limit);
	}
	lower_priority();
	umask(077);
	reset_oom_score();
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || chdir("/") < 0)
		return -errno;
	/* System calls: those of the library would change all our threads. */
	if (uid != 0 && (syscall(SYS_setgroups, 0, NULL) < 0 ||
			 syscall(SYS_setresgid, uid, uid, uid) < 0 ||
			 syscall(SYS_setresuid, uid, uid, uid) < 0))
		return -errno;
	/* After the change of the user, which resets this. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
		return -errno;
	/* In a PID namespace getppid(2) does not tell whether the daemon lives. */
	return poll(&daemon, 1, 0) == 0
		       ? keep_only(begin->launch->fd, begin->to_parent)
		       : -ESRCH;
}

static int begin_child(void *arg)
{
	static const char *const environment[] = {"PATH=/usr/bin:/bin", NULL};
	const struct beginning *begin = arg;
	const char *const *argv = begin->launch->argv;
	const struct sigaction action = {.sa_handler = SIG_DFL};
	struct failure failure = {0, 0};
	sigset_t none;

	failure.error = prepare(begin);
	/* execve(2) reports a missing interpreter as a missing program: check both. */
	for (unsigned i = 0; failure.error == 0 && argv[i]; i++)
		if (access(argv[i], F_OK) < 0) {
			failure.argument = i;
			failure.error = -errno;
		}
	if (failure.error == 0) {
		for (int i = 1; i <= SIGRTMAX; i++)
			sigaction(i, &action, NULL);
		sigemptyset(&none);
		sigprocmask(SIG_SETMASK, &none, NULL);
		execve(argv[0], (char *const *)argv,
		       (char *const *)environment);
		failure.error = -errno;
	}
	if (write(begin->to_parent, &failure, sizeof(failure)) < 0)
		_exit(126);
	_exit(127);
}

/* Return the pid of the child, or -errno. */
static pid_t start(struct beginning *begin)
{
	const int flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
	uint8_t *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	sigset_t all, before;
	pid_t pid;

	if (stack == MAP_FAILED)
		return -errno;
	/* No signal handler of ours may run in the child. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	/* In a PID namespace its children end with it, and it can name no other
	 * process.  Making one needs a privilege. */
	pid = __clone(begin_child, stack + STACK, flags | CLONE_NEWPID, begin);
	if (pid < 0)
		pid = __clone(begin_child, stack + STACK, flags, begin);
	if (pid < 0)
		pid = -errno;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	munmap(stack, STACK);
	return pid;
}

/* Read the failure that the child has written; none: it executes the program. */
static struct failure begun(int from_child, struct kv_child *child)
{
	struct failure failure = {0, 0};
	int status;

	child->pidfd = (int)syscall(SYS_pidfd_open, child->pid, 0);
	if (child->pidfd < 0)
		failure.error = -errno;
	else if (read(from_child, &failure, sizeof(failure)) < 0)
		return failure;
	kill(child->pid, SIGKILL);
	waitpid(child->pid, &status, 0);
	kv_closep(&child->pidfd);
	return failure;
}

int kv_launch(const struct kv_launch *launch, struct kv_child *ret_child,
	      const char **ret_what)
{
	_cleanup_(kv_closep) int to_parent = -1, from_child = -1;
	_cleanup_(kv_closep) int daemon =
		(int)syscall(SYS_pidfd_open, getpid(), 0);
	struct beginning begin = {launch, geteuid() == 0, daemon, -1};
	struct kv_child child = {.pidfd = -1};
	struct failure failure;
	int pipes[2];

	*ret_what = launch->argv[0];
	if (daemon < 0 || pipe2(pipes, O_CLOEXEC | O_NONBLOCK) < 0)
		return -errno;
	from_child = pipes[0];
	to_parent = fcntl(pipes[1], F_DUPFD_CLOEXEC, FIRST_FD);
	close(pipes[1]);
	if (to_parent < 0)
		return -errno;
	begin.to_parent = to_parent;
	child.pid = start(&begin);
	if (child.pid < 0)
		return child.pid;
	failure = begun(from_child, &child);
	if (failure.error == 0)
		*ret_child = child;
	*ret_what = launch->argv[failure.argument];
	return failure.error;
}

void kv_child_kill(const struct kv_child *child)
{
	/* Until it is reaped, no other process gets its pid. */
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
