/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sigbus_guard.c - SIGBUS as a return value.
 *
 * OWNS      the process's SIGBUS handler, from the first guarded call on.  A
 *           SIGBUS of a thread outside of any goes to whose handler it was
 *           before; by default it kills the process.
 *
 * INVARIANTS
 *   (1) `waiting` is set only while its thread is inside a guarded call.
 *
 * LOCKING   none; the jump buffer is the thread's own.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <ucontext.h>

#include "common/sigbus_guard.h"

static _Thread_local sigjmp_buf *volatile waiting;
static struct sigaction before;

void kv_sigbus_guard_leave(void)
{
	if (waiting)
		siglongjmp(*waiting, 1);
}

/* The mask of before comes back here, so that a guarded call needs not save it,
 * which takes a system call. */
static void on_sigbus(int number, siginfo_t *info, void *context)
{
	const ucontext_t *interrupted = context;

	if (waiting)
		pthread_sigmask(SIG_SETMASK, &interrupted->uc_sigmask, NULL);
	kv_sigbus_guard_leave();
	if (before.sa_flags & SA_SIGINFO)
		before.sa_sigaction(number, info, context);
	else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
		before.sa_handler(number);
	else /* the access is repeated, and kills the process */
		signal(number, SIG_DFL);
}

static void install(void)
{
	struct sigaction action = {.sa_sigaction = on_sigbus,
				   .sa_flags = SA_SIGINFO};

	sigemptyset(&action.sa_mask);
	sigaction(SIGBUS, &action, &before);
}

int kv_sigbus_guard(int (*run)(void *arg), void *arg)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	sigjmp_buf *const outer = waiting;
	sigjmp_buf jump;
	int r = -EFAULT;

	pthread_once(&once, install);
	if (sigsetjmp(jump, 0) == 0) {
		waiting = &jump;
		r = run(arg);
	}
	waiting = outer;
	return r;
}
