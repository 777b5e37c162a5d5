/* SPDX-License-Identifier: Apache-2.0 */
/*
 * txn_guard.c - transactions begin here, so that the environment can be opened
 * anew.
 *
 * Once a write of its meta page has failed, LMDB refuses every transaction of
 * the environment, for good; after a fault (fault.c) nobody may use it.  The
 * disk may be well again: then a new one works.
 *
 * OWNS      index->env, from open to close.
 *
 * INVARIANTS
 *   (1) Whoever has a transaction holds the guard, shared; the environment is
 *       changed by who holds it alone.
 *
 * LOCKING   index->guard.  A thread with a transaction may begin another: the
 *           guard lets readers in while somebody waits to have it alone.
 */
#include "index/fault.h"

struct beginning {
	struct kv_index *index;
	unsigned flags;
	MDB_txn *txn;
};

static int begin(void *arg)
{
	struct beginning *b = arg;

	return mdb_txn_begin(b->index->env, NULL, b->flags, &b->txn);
}

static int begin_txn(struct kv_index *index, unsigned flags, MDB_txn **ret_txn)
{
	struct beginning b = {.index = index, .flags = flags};
	int rc = MDB_PANIC;

	if (index->env && !index->broken)
		rc = kv_fault_guard(index, begin, &b);
	if (rc == 0)
		*ret_txn = b.txn;
	return rc;
}

static int reopen(void *index)
{
	return kv_index_reopen(index);
}

static void renew(struct kv_index *index)
{
	_cleanup_(kv_txn_abortp) MDB_txn *txn = NULL;
	int rc;

	pthread_rwlock_wrlock(&index->guard);
	rc = begin_txn(index, MDB_RDONLY, &txn);
	if (rc == MDB_PANIC) { /* else somebody was faster */
		if (index->env)
			mdb_env_close(kv_steal(index->env));
		index->broken = false;
		kv_fault_guard(index, reopen, index);
	}
	if (txn)
		mdb_txn_abort(kv_steal(txn));
	pthread_rwlock_unlock(&index->guard);
}

int kv_txn_guard_enter(struct kv_index *index, unsigned flags,
		       MDB_txn **ret_txn)
{
	int rc = MDB_PANIC;

	for (int try = 0; try < 2; try++) {
		pthread_rwlock_rdlock(&index->guard);
		rc = begin_txn(index, flags, ret_txn);
		if (rc == 0)
			return 0;
		pthread_rwlock_unlock(&index->guard);
		if (rc != MDB_PANIC)
			break;
		if (try == 0)
			renew(index);
	}
	return kv_env_errno(rc);
}

void kv_txn_guard_leave(struct kv_index *index)
{
	pthread_rwlock_unlock(&index->guard);
}
