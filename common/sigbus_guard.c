/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sigbus_guard.c - SIGBUS as a return value.
 *
 * OWNS      the process's SIGBUS handler, from the first call of
 *           kv_sigbus_guard or kv_sigbus_mend on.  A SIGBUS elsewhere goes to
 *           the handler before this one; by default it kills the process.  The
 *           list of mended memory, whose entries are never freed: the handler
 *           reads them.
 *
 * INVARIANTS
 *   (1) `waiting` is set only while its thread is inside a guarded call.
 *   (2) An entry without bytes is free.
 *
 * LOCKING   mending_lock, to change the list; the jump buffer is the thread's
 *           own.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "common/kv.h"

#include "common/sigbus_guard.h"

struct mended {
	_Atomic uintptr_t base;
	_Atomic size_t bytes, page;
	struct mended *next; /* constant while the entry is on the list */
};

static _Thread_local sigjmp_buf *volatile waiting;
static struct sigaction before;
static pthread_mutex_t mending_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mended *_Atomic mending;

void kv_sigbus_guard_leave(void)
{
	if (waiting)
		siglongjmp(*waiting, 1);
}

/* Map zeros in place of the missing page at @at. */
static bool mend(uintptr_t at)
{
	const struct mended *m;
	uintptr_t page;

	for (m = mending; m; m = m->next) {
		if (at - m->base >= m->bytes)
			continue;
		page = m->base + (at - m->base) / m->page * m->page;
		return mmap((void *)page, m->page, PROT_READ | PROT_WRITE,
			    MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1,
			    0) != MAP_FAILED;
	}
	return false;
}

/* Restore the signal mask here: saving it in each guarded call would take a
 * system call. */
static void on_sigbus(int number, siginfo_t *info, void *context)
{
	const ucontext_t *interrupted = context;
	const int error = errno;

	if (mend((uintptr_t)info->si_addr)) {
		errno = error;
		return;
	}
	if (waiting)
		pthread_sigmask(SIG_SETMASK, &interrupted->uc_sigmask, NULL);
	kv_sigbus_guard_leave();
	if (before.sa_flags & SA_SIGINFO)
		before.sa_sigaction(number, info, context);
	else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN)
		before.sa_handler(number);
	else /* The CPU repeats the access, which kills the process. */
		signal(number, SIG_DFL);
}

static void install(void)
{
	struct sigaction action = {.sa_sigaction = on_sigbus,
				   .sa_flags = SA_SIGINFO};

	sigemptyset(&action.sa_mask);
	sigaction(SIGBUS, &action, &before);
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

int kv_sigbus_mend(void *base, size_t bytes, size_t page)
{
	struct mended *m;

	pthread_once(&once, install);
	pthread_mutex_lock(&mending_lock);
	for (m = mending; m && m->bytes;)
		m = m->next;
	if (!m) {
		m = calloc(1, sizeof(*m));
		if (m) {
			m->next = mending;
			mending = m;
		}
	}
	if (m) {
		m->base = (uintptr_t)base;
		m->page = page;
		m->bytes = bytes; /* set last: the signal handler reads it */
	}
	pthread_mutex_unlock(&mending_lock);
	return m ? 0 : -ENOMEM;
}

void kv_sigbus_mend_end(void *base)
{
	struct mended *m;

	pthread_mutex_lock(&mending_lock);
	for (m = mending; m; m = m->next)
		if (m->base == (uintptr_t)base)
			m->bytes = 0;
	pthread_mutex_unlock(&mending_lock);
}

int kv_sigbus_guard(int (*run)(void *arg), void *arg)
{
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
