/* SPDX-License-Identifier: Apache-2.0 */
/*
 * without.c - without WHAT COMMAND...: run COMMAND while the kernel refuses uring, has no
 * uring (nouring), or refuses memfd, hugetlb (memfds of huge pages), fallocate, mbind or seccomp.
 * Exits 77 where the kernel cannot be made to refuse.
 */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/memfd.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct {
	const char *what;
	/* refuse only calls with this flag in the second argument; 0: all
	 * calls */
	unsigned call, flag;
	int error;
} refusals[] = {
	{"uring", SYS_io_uring_setup, 0, EPERM},
	{"nouring", SYS_io_uring_setup, 0, ENOSYS},
	{"memfd", SYS_memfd_create, 0, EPERM},
	{"hugetlb", SYS_memfd_create, MFD_HUGETLB, EINVAL},
	{"fallocate", SYS_fallocate, 0, EOPNOTSUPP},
	{"mbind", SYS_mbind, 0, EPERM},
	{"seccomp", SYS_seccomp, 0, EPERM},
};

static int refuse(unsigned call, unsigned flag, unsigned error)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, flag, 0, flag ? 1 : 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
		return -1;
	return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

int main(int argc, char **argv)
{
	for (size_t i = 0; argc > 2 && i < sizeof(refusals) / sizeof(*refusals);
	     i++) {
		if (strcmp(argv[1], refusals[i].what) != 0)
			continue;
		if (refuse(refusals[i].call, refusals[i].flag,
			   (unsigned)refusals[i].error) < 0) {
			fprintf(stderr, "seccomp: %s\n", strerror(errno));
			return 77;
		}
		execvp(argv[2], argv + 2);
		return 127;
	}
	return 2;
}
