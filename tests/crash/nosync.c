/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nosync.c - run a program whose sync calls do nothing but report success, a fault that
 * tests of power cuts must find.
 *
 *   nosync PROGRAM [ARGUMENT...]
 *
 * io_uring is refused, because its syncs cannot be replaced.
 *
 * OWNS      nothing.
 *
 * LOCKING   none: one thread.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define IF_CALL(number, then)                                    \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##number, 0, 1), \
		BPF_STMT(BPF_RET | BPF_K, then)

int main(int argc, char **argv)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, nr)),
		IF_CALL(io_uring_setup, SECCOMP_RET_ERRNO | EPERM),
		IF_CALL(fsync, SECCOMP_RET_ERRNO),
		IF_CALL(fdatasync, SECCOMP_RET_ERRNO),
		IF_CALL(msync, SECCOMP_RET_ERRNO),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};

	if (argc < 2)
		return 2;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) < 0) {
		fprintf(stderr, "seccomp: %s\n", strerror(errno));
		return 77;
	}
	execvp(argv[1], argv + 1);
	return 127;
}
