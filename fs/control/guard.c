/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard.c - SIGBUS as a return value.
 *
 * OWNS      the process's SIGBUS handler, and hands on what is not its own.
 *
 * INVARIANTS
 *   (1) `waiting` is set only while its thread is inside kv_hash_copy or
 *       kv_copy_stream, which take no lock and own nothing: jumping out of them
 *       leaks nothing.
 *
 * LOCKING   none; the jump buffer is the thread's own.
 */
#include <setjmp.h>
#include <signal.h>

#include "fs/control/guard.h"

static _Thread_local sigjmp_buf *volatile waiting;
static struct sigaction before;

static void on_sigbus(int number)
{
	sigjmp_buf *jump = waiting;

	if (jump) {
		waiting = NULL;
		siglongjmp(*jump, 1);
	}
	/* Not ours: the index's, or the access is repeated, and kills. */
	if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
		before.sa_handler(number);
	else
		signal(number, SIG_DFL);
}

static void install(void)
{
	struct sigaction action = {.sa_handler = on_sigbus};

	sigemptyset(&action.sa_mask);
	sigaction(SIGBUS, &action, &before);
}

void kv_guard_install(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, install);
}

int kv_guard_hash_copy(struct kv_hash *hash, void *dst, const void *src,
		       size_t n)
{
	sigjmp_buf jump;

	if (sigsetjmp(jump, 1))
		return -EFAULT;
	waiting = &jump;
	kv_hash_copy(hash, dst, src, n);
	waiting = NULL;
	return 0;
}

int kv_guard_copy(void *dst, const void *src, size_t n)
{
	sigjmp_buf jump;

	if (sigsetjmp(jump, 1))
		return -EFAULT;
	waiting = &jump;
	kv_copy_stream(dst, src, n);
	waiting = NULL;
	return 0;
}
