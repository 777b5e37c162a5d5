/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault.c - SIGBUS and failed assertions within LMDB as a return value.
 *
 * OWNS      the process's SIGBUS handler, and hands on what is not its own.
 *
 * INVARIANTS
 *   (1) `waiting` is set only while its thread is inside of LMDB.  Jumping out
 *       of it leaves memory, and the writers' mutex: both go with the
 *       environment, which nobody uses any more.
 *
 * LOCKING   none; the jump buffer is the thread's own.
 */
#include <setjmp.h>
#include <signal.h>

#include "index/fault.h"

static _Thread_local sigjmp_buf *volatile waiting;
static struct sigaction before;

static void leave(void)
{
	sigjmp_buf *jump = waiting;

	if (!jump)
		return;
	waiting = NULL;
	siglongjmp(*jump, 1);
}

static void on_sigbus(int number)
{
	leave();
	if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
		before.sa_handler(number);
	else /* the access is repeated, and kills the process */
		signal(number, SIG_DFL);
}

void kv_fault_assert(MDB_env *env, const char *text)
{
	(void)env;
	(void)text;
	leave();
}

static void install(void)
{
	struct sigaction action = {.sa_handler = on_sigbus};

	sigemptyset(&action.sa_mask);
	sigaction(SIGBUS, &action, &before);
}

int kv_fault_guard(struct kv_index *index, int (*call)(void *arg), void *arg)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	sigjmp_buf jump;
	int rc;

	pthread_once(&once, install);
	if (sigsetjmp(jump, 1)) {
		index->broken = true;
		return MDB_PANIC;
	}
	waiting = &jump;
	rc = call(arg);
	waiting = NULL;
	return rc;
}
