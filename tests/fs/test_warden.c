/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_warden.c - a process that has given up the rights that a daemon does not need, in a
 * child each time, because rights do not come back.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <linux/capability.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "common/thread.h"
#include "fs/daemon.h"

#define KEPT \
	(1u << CAP_DAC_OVERRIDE | 1u << CAP_IPC_LOCK | 1u << CAP_SYS_RESOURCE)
#define NO_FILTER 77

/* In a child: end it with a line if @what is false. */
#define MUST(what)                                                      \
	do {                                                            \
		if (!(what)) {                                          \
			printf("%s: line %d: %s\n", __func__, __LINE__, \
			       #what);                                  \
			fflush(stdout);                                 \
			_exit(1);                                       \
		}                                                       \
	} while (0)

static struct kv_warden warden;
static FILE *said; /* standard error of the child and of its warden */

/* Run @run in a child that has given up its rights. */
static void in_child(unsigned seccomp, void (*run)(void))
{
	const struct kv_options options = {.seccomp = seccomp};
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		said = tmpfile();
		MUST(said && dup2(fileno(said), 2) == 2);
		MUST(kv_warden_start(&options, NULL, NULL, &warden) == 0);
		if (warden.filter < 0)
			_exit(NO_FILTER);
		run();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == NO_FILTER)
		skip();
	assert_int_equal(WEXITSTATUS(status), 0);
}

static int swap_off(void)
{
	return syscall(SYS_swapoff, "/nowhere") == -1 ? errno : 0;
}

/* Return how often standard error names the refused call @name, which is waited for. */
static unsigned lines_of(const char *name)
{
	char line[256], wanted[64];
	unsigned n = 0;

	snprintf(wanted, sizeof(wanted), "seccomp: refused %s (", name);
	for (int i = 0; i < 1000 && n == 0; i++) {
		usleep(i > 0 ? 10000 : 0);
		rewind(said);
		while (fgets(line, sizeof(line), said))
			n += strstr(line, wanted) != NULL;
	}
	return n;
}

static void check_rights(void)
{
	struct __user_cap_header_struct header = {
		.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct has[2];

	MUST(syscall(SYS_capget, &header, has) == 0);
	MUST((has[0].permitted & ~KEPT) == 0 && has[1].permitted == 0);
	MUST(has[0].effective == has[0].permitted);
	MUST(has[0].inheritable == 0 && has[1].inheritable == 0);
	MUST(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
}

static void *check_thread(void *arg)
{
	check_rights();
	MUST(swap_off() == ENOSYS);
	return arg;
}

static void look(void)
{
	pthread_t thread;
	int status;
	pid_t pid;

	check_rights();
	MUST(kv_thread_start(&thread, "test", check_thread, NULL) == 0);
	MUST(pthread_join(thread, NULL) == 0);
	pid = fork();
	if (pid == 0)
		check_thread(NULL), _exit(0);
	MUST(waitpid(pid, &status, 0) == pid && status == 0);
}

static void rights_are_few_also_in_threads_and_children(void **state)
{
	(void)state;
	in_child(0, look);
}

static void call(void)
{
	char *const argv[] = {(char *)"false", NULL};

	MUST(swap_off() == ENOSYS);
	MUST(swap_off() == ENOSYS);
	MUST(execv("/bin/false", argv) == -1 && errno == ENOSYS);
#ifndef __SANITIZE_ADDRESS__ /* the filter then lets LeakSanitizer stop the threads */
	MUST(ptrace(PTRACE_TRACEME, 0, 0, 0) == -1 && errno == ENOSYS);
	MUST(lines_of("ptrace") == 1);
#endif
	/* Not setuid(3), which aborts if the threads' results differ. */
	MUST(syscall(SYS_setuid, getuid()) == -1 && errno == ENOSYS);
	MUST(unshare(CLONE_NEWUSER) == -1 && errno == ENOSYS);
	MUST(unshare(CLONE_FILES) == 0);
	MUST(socket(AF_VSOCK, SOCK_STREAM, 0) == -1 && errno == ENOSYS);
	MUST(syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0) == -1 &&
	     errno == ENOSYS);
	MUST(lines_of("execve") == 1);
	MUST(lines_of("swapoff") == 1);
	MUST(lines_of("unshare") == 1);
}

static void other_calls_are_refused_and_the_first_is_logged(void **state)
{
	(void)state;
	in_child(0, call);
}

static void call_unfiltered(void)
{
	check_rights();
	MUST(swap_off() != ENOSYS);
	MUST(warden.filter == 1);
}

static void seccomp_off_filters_no_calls(void **state)
{
	(void)state;
	in_child(1, call_unfiltered);
}

/* Kill the warden, which is the only child. */
static void call_alone(void)
{
	_cleanup_(kv_freep) char *why = NULL;
	FILE *f = fopen("/proc/thread-self/children", "re");
	int child = 0;

	if (!f)
		_exit(NO_FILTER);
	MUST(fscanf(f, "%d", &child) == 1 && child > 0);
	MUST(kill(child, SIGKILL) == 0);
	MUST(waitpid(child, NULL, 0) == child);
	MUST(swap_off() == ENOSYS);
	MUST(kv_warden_ask(&warden, KV_MOUNT, &why) == -EIO);
	MUST(why && strstr(why, "kvfs-warden has ended"));
}

static void calls_are_refused_when_the_warden_was_killed(void **state)
{
	(void)state;
	in_child(0, call_alone);
}

static void describe(void)
{
	_cleanup_(kv_freep) char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	kv_warden_describe(&warden, f);
	fclose(f);
	MUST(strncmp(text, "capabilities=", 13) == 0);
	MUST(!strstr(text, "sys_admin"));
	MUST(strstr(text, "\nno_new_privs=1\nseccomp=on\n"));
}

static void the_rights_are_described(void **state)
{
	(void)state;
	in_child(0, describe);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rights_are_few_also_in_threads_and_children),
		cmocka_unit_test(
			other_calls_are_refused_and_the_first_is_logged),
		cmocka_unit_test(seccomp_off_filters_no_calls),
		cmocka_unit_test(calls_are_refused_when_the_warden_was_killed),
		cmocka_unit_test(the_rights_are_described),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
