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
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "common/thread.h"
#include "fs/daemon.h"

#define KEPT \
	(1u << CAP_DAC_OVERRIDE | 1u << CAP_IPC_LOCK | 1u << CAP_SYS_RESOURCE)
#define NO_CHILDREN 77

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

/* Run @run in a child that has given up its rights. */
static void in_child(void (*run)(void))
{
	const struct kv_options options = {0};
	int status;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		MUST(kv_warden_start(&options, NULL, NULL, &warden) == 0);
		run();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	if (WEXITSTATUS(status) == NO_CHILDREN)
		skip();
	assert_int_equal(WEXITSTATUS(status), 0);
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
	in_child(look);
}

/* Kill the warden, which is the only child. */
static void ask_nobody(void)
{
	_cleanup_(kv_freep) char *why = NULL;
	FILE *f = fopen("/proc/thread-self/children", "re");
	int child = 0;

	if (!f)
		_exit(NO_CHILDREN);
	MUST(fscanf(f, "%d", &child) == 1 && child > 0);
	MUST(kill(child, SIGKILL) == 0);
	MUST(waitpid(child, NULL, 0) == child);
	MUST(kv_warden_ask(&warden, KV_MOUNT, &why) == -EIO);
	MUST(why && strstr(why, "kvfs-warden has ended"));
}

static void an_errand_fails_when_the_warden_was_killed(void **state)
{
	(void)state;
	in_child(ask_nobody);
}

static void describe(void)
{
	_cleanup_(kv_freep) char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	kv_warden_describe(f);
	fclose(f);
	MUST(strncmp(text, "capabilities=", 13) == 0);
	MUST(!strstr(text, "sys_admin"));
	MUST(strstr(text, "\nno_new_privs=1\n"));
}

static void the_rights_are_described(void **state)
{
	(void)state;
	in_child(describe);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rights_are_few_also_in_threads_and_children),
		cmocka_unit_test(an_errand_fails_when_the_warden_was_killed),
		cmocka_unit_test(the_rights_are_described),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
