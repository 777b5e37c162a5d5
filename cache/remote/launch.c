/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.c - a program that the daemon starts and does not trust.
 *
 * It begins in our memory, as after vfork, but on a stack of its own: a fork would
 * copy page tables, and make copies of pages that are being read into.  Until it
 * executes, the thread that started it stands still; and as that may take any time
 * on a filesystem that hangs, it has given up all that is ours but the memory by
 * then.
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

#define FIRST_FD 10 /* of what must not be where the socket goes */
#define STACK (64u << 10)
#define LOWER 5 /* of nice(2) */
#define LOWER_TEXT "5"
#define PROCESSES 4096

/* clone(2) by the name that no sanitizer takes for a fork. */
int __clone(int (*f)(void *), void *stack, int flags, void *arg, ...);

struct beginning {
	const struct kv_launch *launch;
	bool root;
	int daemon;    /* a pidfd of ours */
	int to_parent; /* a struct failure: why it did not come to be */
};

struct failure {
	int error;
	unsigned argument; /* which path it is about */
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

/* The call itself, as those of close and dup: a sanitizer would believe that our own
 * descriptors changed. */
static int open_here(const char *path)
{
	return (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
}

/* Memory of blocks is a reason to spare the daemon, not this. */
static void forget_oom_score(void)
{
	int fd = open_here("/proc/self/oom_score_adj");
	char sign;

	if (fd >= 0 && syscall(SYS_read, fd, &sign, 1) == 1 && sign == '-' &&
	    syscall(SYS_write, fd, "0", 1) < 0)
		errno = 0; /* it is as it was */
	if (fd >= 0)
		syscall(SYS_close, fd);
}

/* Those of a user count together: only of one that has no others. */
static void limit_processes(void)
{
	struct rlimit processes = {PROCESSES, PROCESSES};

	getrlimit(RLIMIT_NPROC, &processes);
	processes.rlim_max = KV_MIN(processes.rlim_max, PROCESSES);
	processes.rlim_cur = KV_MIN(processes.rlim_cur, PROCESSES);
	setrlimit(RLIMIT_NPROC, &processes);
}

/* The kernel may weigh sessions against each other, and threads within one only. */
static void lower_priority(void)
{
	int fd = open_here("/proc/self/autogroup");

	if (nice(LOWER) < 0 || fd < 0 ||
	    syscall(SYS_write, fd, LOWER_TEXT, 1) < 0)
		errno = 0; /* it is as it was */
	if (fd >= 0)
		syscall(SYS_close, fd);
}

/* What it writes is for nobody else, no copy of its memory is written, and however
 * many threads it spins in, those that wait for it are not late. */
static void limit(bool own_user)
{
	const struct rlimit none = {0, 0};

	setrlimit(RLIMIT_CORE, &none);
	if (own_user)
		limit_processes();
	lower_priority();
	umask(077);
	forget_oom_score();
}

/* Open as @to after exec, too. */
static int put_at(int fd, int to)
{
	return fd == to ? fcntl(fd, F_SETFD, 0)
			: (int)syscall(SYS_dup3, fd, to, 0);
}

/*
 * Nothing of ours but the socket and standard error.  By exec would be too late: the
 * store's lock and the mount would be held for as long as that takes.
 */
static int keep_only(int fd, int to_parent)
{
	int null = open_here("/dev/null");

	if (null < 0 || put_at(null, 0) < 0 || put_at(2, 1) < 0 ||
	    put_at(fd, KV_LAUNCH_FD) < 0)
		return -errno;
	/* Older kernels cannot; but all that we open is closed by exec. */
	syscall(SYS_close_range, KV_LAUNCH_FD + 1, to_parent - 1, 0);
	syscall(SYS_close_range, to_parent + 1, ~0u, 0);
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

/* In a PID namespace of its own there is no getppid to see it by. */
static bool daemon_lives(const struct beginning *begin)
{
	struct pollfd fd = {begin->daemon, POLLIN, 0};

	return poll(&fd, 1, 0) == 0;
}

static int prepare(const struct beginning *begin)
{
	int r = 0;

	setsid();
	limit(begin->root && begin->launch->uid != 0);
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || chdir("/") < 0)
		return -errno;
	if (begin->root && begin->launch->uid != 0)
		r = become(begin->launch->uid);
	if (r < 0)
		return r;
	/* After it has become another: that takes the wish away. */
	if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
		return -errno;
	return daemon_lives(begin)
		       ? keep_only(begin->launch->fd, begin->to_parent)
		       : -ESRCH;
}

/* That of an interpreter is what this tells apart. */
static int look_at_paths(const char *const *argv, unsigned *ret_argument)
{
	for (unsigned i = 0; argv[i]; i++)
		if (access(argv[i], F_OK) < 0) {
			*ret_argument = i;
			return -errno;
		}
	return 0;
}

static int begin_child(void *arg)
{
	static const char *const environment[] = {"PATH=/usr/bin:/bin", NULL};
	const struct beginning *begin = arg;
	const char *const *argv = begin->launch->argv;
	struct failure failure = {0, 0};

	failure.error = prepare(begin);
	if (failure.error == 0)
		failure.error = look_at_paths(argv, &failure.argument);
	if (failure.error == 0) {
		default_signals();
		execve(argv[0], (char *const *)argv,
		       (char *const *)environment);
		failure.error = -errno;
	}
	if (write(begin->to_parent, &failure, sizeof(failure)) < 0)
		_exit(126);
	_exit(127);
}

/* Its pid.  What it starts ends with it, and it can name nobody else's processes,
 * in a PID namespace; not everybody may make one. */
static pid_t start(struct beginning *begin, uint8_t *stack)
{
	const int flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
	pid_t pid = __clone(begin_child, stack + STACK, flags | CLONE_NEWPID,
			    begin);

	if (pid < 0)
		pid = __clone(begin_child, stack + STACK, flags, begin);
	return pid < 0 ? -errno : pid;
}

static pid_t start_quietly(struct beginning *begin)
{
	uint8_t *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	sigset_t all, before;
	pid_t pid;

	if (stack == MAP_FAILED)
		return -errno;
	/* No handler of ours runs there. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	pid = start(begin, stack);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	munmap(stack, STACK);
	return pid;
}

/* Has written why it is none, or is another program by now. */
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
	child.pid = start_quietly(&begin);
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
