/* SPDX-License-Identifier: Apache-2.0 */
/*
 * warden.c - the rights of the daemon, and the warden, a process that has those which the
 * daemon gives up.
 *
 * The daemon keeps few capabilities, and gets no new ones.  The warden mounts and unmounts.
 *
 * OWNS      the warden and its socket.
 *
 * INVARIANTS
 *   (1) The daemon gives up its rights before it starts a thread or another child, which
 *       inherit that.
 *   (2) The warden mounts and unmounts at one path, which it has from its start.
 *
 * LOCKING   none: one thread at a time has an errand.
 */
#include <linux/capability.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "common/bytes.h"
#include "common/thread.h"
#include "fs/daemon.h"

/* The capabilities that the daemon keeps: to use files and sockets of other users
 * (remote=), to lock memory, and to have many descriptors in flight. */
static const struct {
	unsigned bit;
	const char *name;
} kept[] = {{CAP_DAC_OVERRIDE, "dac_override"},
	    {CAP_IPC_LOCK, "ipc_lock"},
	    {CAP_SYS_RESOURCE, "sys_resource"}};

/* ---- the warden ---- */

static void do_errand(uint8_t errand, const struct kv_options *options,
		      const char *path)
{
	_cleanup_(kv_freep) char *why = NULL;
	_cleanup_(kv_closep) int fd = -1;
	struct iovec reply;

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
	int received[KV_FDS_MAX], flags;
	struct iovec iov;
	uint8_t errand;
	size_t n;

	if (!path && detach)
		detach();
	for (;;) {
		iov = (struct iovec){&errand, sizeof(errand)};
		if (kv_receive_parts(3, &iov, 1, 0, &flags, received, &n) <= 0)
			_exit(0);
		do_errand(errand, options, path);
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
			fprintf(stderr, "kvfs: warning: capset: %s\n",
				strerror(errno));
	}
	(void)prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
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
	return n == 1	? received[0]
	       : why[0] ? kv_why(ret_why, -EIO, "%s", why)
			: 0;
}

void kv_warden_describe(FILE *f)
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
	fprintf(f, "%s\nno_new_privs=%d\n", *before ? "" : "none",
		prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
}
