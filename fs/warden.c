/* SPDX-License-Identifier: Apache-2.0 */
/*
 * warden.c - the rights of the daemon, and the warden, a process that has those which the
 * daemon gives up.
 *
 * The daemon keeps few capabilities, gets no new ones, and makes the system calls that it
 * needs.  The warden mounts and unmounts, refuses the daemon's other system calls with
 * ENOSYS, as an older kernel would, and logs them: libraries then use older calls, and the
 * daemon reports what fails.  A kill would lose the blocks that are in memory only.
 *
 * OWNS      the warden and its socket.
 *
 * INVARIANTS
 *   (1) The daemon gives up its rights before it starts a thread or another child.
 *   (2) The warden mounts and unmounts at one path, which it has from its start.
 *   (3) The warden waits in its poll(2) only.  A child does each errand, because an errand
 *       waits for the daemon, which may wait until a call is refused.
 *
 * LOCKING   none: one thread at a time has an errand.
 */
#include <linux/capability.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "common/bytes.h"
#include "common/thread.h"
#include "fs/daemon.h"

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

/* The capabilities that the daemon keeps: to use files and sockets of other users
 * (remote=), to lock memory, and to have many descriptors in flight. */
static const struct {
	unsigned bit;
	const char *name;
} kept[] = {{CAP_DAC_OVERRIDE, "dac_override"},
	    {CAP_IPC_LOCK, "ipc_lock"},
	    {CAP_SYS_RESOURCE, "sys_resource"}};

/* The system calls of kvfs and its libraries, and of modules that the C library loads to
 * look up hosts: files, waiting, memory, sockets, processes.  Not in the list are exec,
 * ptrace, mounts, ids, namespaces, modules, clocks and keys. */
static const char calls[] =
	"read write readv writev pread64 pwrite64 preadv pwritev preadv2 "
	"pwritev2 lseek close close_range open openat openat2 stat fstat lstat "
	"newfstatat statx statfs fstatfs access faccessat faccessat2 readlink "
	"readlinkat getdents getdents64 mkdir mkdirat rmdir unlink unlinkat "
	"rename renameat renameat2 link linkat symlink symlinkat chmod fchmod "
	"fchmodat truncate ftruncate fallocate fsync fdatasync copy_file_range "
	"sendfile splice tee vmsplice fadvise64 flock fcntl ioctl dup dup2 "
	"dup3 pipe pipe2 umask getcwd chdir fchdir utimensat getxattr "
	"fgetxattr poll ppoll select pselect6 epoll_create epoll_create1 "
	"epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd2 futex "
	"nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday "
	"time pause restart_syscall io_uring_setup io_uring_enter "
	"io_uring_register mmap munmap mprotect mremap madvise brk mlock "
	"mlock2 munlock msync mincore memfd_create membarrier getrandom "
	"socketpair bind listen accept accept4 connect getsockname getpeername "
	"getsockopt setsockopt sendto recvfrom sendmsg recvmsg sendmmsg "
	"recvmmsg shutdown fork vfork exit exit_group wait4 waitid kill tgkill "
	"getpid getppid gettid getuid geteuid getgid getegid getresuid "
	"getresgid getgroups getpgrp getpgid getsid setsid getrlimit setrlimit "
	"prlimit64 getrusage sysinfo uname prctl arch_prctl set_tid_address "
	"set_robust_list get_robust_list rseq sched_yield sched_getaffinity "
	"sched_getparam sched_getscheduler getcpu capget pidfd_open "
	"rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending "
	"rt_sigtimedwait rt_sigsuspend sigaltstack"
#ifdef __SANITIZE_ADDRESS__
	" ptrace" /* LeakSanitizer stops the threads */
#endif
	;

/* ---- the warden ---- */

/* Refuse a system call of the daemon, and log the first of each number. */
static void refuse(int listener)
{
	static uint64_t refusals[512];
	struct seccomp_notif call = {0};
	struct seccomp_notif_resp answer = {.error = -ENOSYS};
	char *name;

	if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &call) < 0)
		return;
	answer.id = call.id;
	(void)ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer);
	if (refusals[(unsigned)call.data.nr % KV_ARRAY_LEN(refusals)]++ > 0)
		return;
	name = seccomp_syscall_resolve_num_arch(call.data.arch, call.data.nr);
	fprintf(stderr,
		"kvfs: warning: seccomp: refused %s (system call %d) to thread "
		"%u; if kvfs needs it, report that, and mount with "
		"seccomp=off\n",
		name ? name : "?", call.data.nr, call.pid);
	free(name);
}

static void do_errand(uint8_t errand, const struct kv_options *options,
		      const char *path)
{
	_cleanup_(kv_freep) char *why = NULL;
	_cleanup_(kv_closep) int fd = -1;
	struct iovec reply;

	signal(SIGCHLD, SIG_DFL);
	if (errand == KV_MOUNT)
		fd = kv_session_mount(options, path, &why);
	else if (errand == KV_UNMOUNT)
		kv_mountpoint_detach(path);
	else if (kv_mountpoint_answers(path))
		kv_umount_announce(path);
	else
		(void)kv_why(&why, 0, "%s: the mount does not answer", path);
	reply.iov_base = why ? why : (char *)"";
	reply.iov_len = strlen(reply.iov_base) + 1;
	(void)kv_send_parts(3, &reply, 1, fd, 0);
}

/* Serve until the daemon has ended. */
static _Noreturn void serve(const struct kv_options *options, const char *path,
			    void (*detach)(void))
{
	struct pollfd fds[] = {{.fd = 3, .events = POLLIN},
			       {.fd = -1, .events = POLLIN}};
	int received[KV_FDS_MAX], flags;
	struct iovec iov;
	uint8_t errand;
	size_t n;
	pid_t pid;

	if (!path && detach)
		detach();
	for (;;) {
		signal(SIGCHLD, SIG_IGN);
		(void)poll(fds, 2, -1);
		if (fds[1].revents & POLLIN)
			refuse(fds[1].fd);
		else if (fds[1].revents != 0) /* the daemon is ending */
			fds[1].fd = -1;
		if (fds[0].revents == 0)
			continue;
		iov = (struct iovec){&errand, sizeof(errand)};
		if (kv_receive_parts(3, &iov, 1, 0, &flags, received, &n) <= 0)
			_exit(0);
		if (n == 1) {
			fds[1].fd = received[0];
			continue;
		}
		pid = fork();
		if (pid <= 0)
			do_errand(errand, options, path);
		if (pid == 0)
			_exit(0);
		if (errand == KV_MOUNT && detach)
			detach();
	}
}

/* ---- giving up rights ---- */

/* Make the system call capget(2) or capset(2) for this thread. */
static long capabilities(long call, struct __user_cap_data_struct has[2])
{
	struct __user_cap_header_struct header = {
		.version = _LINUX_CAPABILITY_VERSION_3};

	return syscall(call, &header, has);
}

/* Make the filter, with the action @refusal for other calls, and install it. */
static int install_filter(struct kv_warden *warden, uint32_t refusal)
{
	static const int families[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK};
	const scmp_datum_t namespaces =
		CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC |
		CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET;
	scmp_filter_ctx filter = seccomp_init(refusal);
	char names[sizeof(calls)], *rest = names, *name;
	struct iovec iov = {(char *)"", 1};
	int r, call, listener;

	if (!filter)
		return -ENOSYS;
	/* libseccomp 2.5.4 does not know this one by name. */
	r = seccomp_rule_add(filter, SCMP_ACT_ALLOW, SYS_cachestat, 0);
	memcpy(names, calls, sizeof(calls));
	while ((name = strsep(&rest, " "))) {
		call = seccomp_syscall_resolve_name(name);
		if (call != __NR_SCMP_ERROR)
			r |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, call, 0);
	}
	for (size_t i = 0; i < KV_ARRAY_LEN(families); i++)
		r |= seccomp_rule_add(
			filter, SCMP_ACT_ALLOW, SCMP_SYS(socket), 1,
			SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)families[i]));
	r |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(unshare), 1,
			      SCMP_A0(SCMP_CMP_EQ, CLONE_FILES));
	r |= seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(clone), 1,
			      SCMP_A0(SCMP_CMP_MASKED_EQ, namespaces, 0));
	/* The flags of clone3(2) are in memory.  Refuse it without a line, so that
	 * the C library calls clone(2). */
	(void)seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3),
			       0);
	/* The kernel logs what the warden does not.  Old kernels slow filtered
	 * processes down for fear of Spectre, which a cache need not have. */
	(void)seccomp_attr_set(filter, SCMP_FLTATR_CTL_LOG,
			       refusal != SCMP_ACT_NOTIFY);
	(void)seccomp_attr_set(filter, SCMP_FLTATR_CTL_SSB, 1);
	(void)seccomp_attr_set(filter, SCMP_FLTATR_CTL_OPTIMIZE, 2);
	r = r == 0 ? seccomp_load(filter) : -EINVAL;
	if (r == 0 && refusal == SCMP_ACT_NOTIFY) {
		/* Only the warden keeps the listener: if it is killed, the kernel
		 * refuses. */
		listener = seccomp_notify_fd(filter);
		(void)kv_send_parts(warden->socket, &iov, 1, listener, 0);
		close(listener);
	}
	seccomp_release(filter);
	return r;
}

int kv_warden_start(const struct kv_options *options, const char *path,
		    void (*detach)(void), struct kv_warden *ret_warden)
{
	struct __user_cap_data_struct has[2] = {0};
	uint32_t keep = 0;
	int pair[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
		return -errno;
	pid = fork();
	if (pid == 0) {
		kv_child_begin(pair[1], "kvfs-warden");
		serve(options, path, detach);
	}
	close(pair[1]);
	if (pid < 0) {
		close(pair[0]);
		return -EAGAIN;
	}
	ret_warden->socket = pair[0];
	for (size_t i = 0; i < KV_ARRAY_LEN(kept); i++)
		keep |= 1u << kept[i].bit;
	(void)capabilities(SYS_capget, has);
	if (has[0].permitted & ~keep || has[1].permitted) {
		has[0].effective = has[0].permitted &= keep;
		has[1].effective = has[1].permitted = 0;
		has[0].inheritable = has[1].inheritable = 0;
		if (capabilities(SYS_capset, has) < 0)
			perror("kvfs: warning: capset");
	}
	(void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	ret_warden->filter = (int)options->seccomp;
	if (ret_warden->filter == 0)
		ret_warden->filter =
			install_filter(ret_warden, SCMP_ACT_NOTIFY);
	/* A container's filter may have a listener, of which there is one. */
	if (ret_warden->filter < 0)
		ret_warden->filter =
			install_filter(ret_warden, SCMP_ACT_ERRNO(ENOSYS));
	if (ret_warden->filter < 0)
		fprintf(stderr, "kvfs: warning: seccomp: %s: it is off\n",
			strerror(-ret_warden->filter));
	return 0;
}

int kv_warden_ask(struct kv_warden *warden, enum kv_errand errand,
		  char **ret_why)
{
	char why[PATH_MAX + 512] = "the process kvfs-warden has ended";
	uint8_t byte = (uint8_t)errand;
	struct iovec iov = {&byte, 1};
	int received[KV_FDS_MAX], flags;
	size_t n = 0;

	if (kv_send_parts(warden->socket, &iov, 1, -1, 0) == 0) {
		iov = (struct iovec){why, sizeof(why) - 1};
		(void)kv_receive_parts(warden->socket, &iov, 1, 0, &flags,
				       received, &n);
	}
	if (n == 1)
		return received[0];
	return why[0] ? kv_why(ret_why, -EIO, "%s", why) : 0;
}

void kv_warden_describe(const struct kv_warden *warden, FILE *f)
{
	struct __user_cap_data_struct has[2] = {0};
	const char *before = "";

	(void)capabilities(SYS_capget, has);
	fputs("capabilities=", f);
	for (size_t i = 0; i < KV_ARRAY_LEN(kept); i++)
		if (has[0].permitted & 1u << kept[i].bit) {
			fprintf(f, "%s%s", before, kept[i].name);
			before = " ";
		}
	fprintf(f, "%s\nno_new_privs=%d\nseccomp=%s%s\n", *before ? "" : "none",
		prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0),
		warden->filter == 0 ? "on" : "off",
		warden->filter < 0 ? " (refused by the system)" : "");
}
