/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fault.c - SIGBUS and failed assertions within LMDB as a return value.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) A guarded call is inside of LMDB.  Jumping out of it leaves memory, and
 *       the writers' mutex: both go with the environment, which nobody uses any
 *       more.
 *
 * LOCKING   none.
 */
#include "common/sigbus_guard.h"
#include "index/fault.h"

void kv_fault_assert(MDB_env *env, const char *text)
{
	(void)env;
	(void)text;
	kv_sigbus_guard_leave();
}

int kv_fault_guard(struct kv_index *index, int (*call)(void *arg), void *arg)
{
	int rc = kv_sigbus_guard(call, arg); /* LMDB's are no -errno */

	if (rc != -EFAULT)
		return rc;
	index->broken = true;
	return MDB_PANIC;
}
