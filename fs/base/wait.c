/* SPDX-License-Identifier: Apache-2.0 */
/* wait.c - requests that wait for a thread of a pool, or for the cache. */
#include "fs/base/wait.h"

int kv_wait_new(struct kv_account *account, const struct kv_wait_kind *kind,
		void (*done)(struct kv_wait *wait), size_t bytes,
		void *ret_wait)
{
	struct kv_wait *wait;
	int r = account ? kv_account_charge(account, KV_FINITE_MEMORY, bytes)
			: -ENOMEM;

	if (r < 0)
		return r;
	wait = calloc(1, bytes);
	if (!wait) {
		kv_account_credit(account, KV_FINITE_MEMORY, bytes);
		return -ENOMEM;
	}
	wait->kind = kind;
	wait->done = done;
	wait->account = kv_account_hold(account);
	wait->bytes = bytes;
	*(struct kv_wait **)ret_wait = wait;
	return 0;
}

void kv_wait_free(struct kv_wait *wait)
{
	if (wait->kind->fini)
		wait->kind->fini(wait);
	kv_space_put(wait->space);
	kv_account_credit(wait->account, KV_FINITE_MEMORY, wait->bytes);
	kv_account_put(wait->account);
	free(wait);
}

static void wait_run(struct kv_work *work, struct kv_hash *hash)
{
	struct kv_wait *wait = (struct kv_wait *)work;
	const int r = wait->kind->run(wait);

	(void)hash;
	if (r > 0)
		kv_wait_run(wait, work->workers, wait->cost);
	else
		kv_wait_end(wait, r);
}

void kv_wait_run(struct kv_wait *wait, struct kv_workers *workers,
		 uint64_t cost)
{
	wait->work.run = wait_run;
	wait->cost = cost;
	kv_work_submit(workers, &wait->work, kv_account_uid(wait->account),
		       cost);
}

void kv_wait_end(struct kv_wait *wait, int status)
{
	wait->status = status;
	wait->done(wait);
}

void kv_wait_cancel(struct kv_wait *wait, int status)
{
	if (wait->kind->cancel)
		wait->kind->cancel(wait, status);
}

void kv_wait_withdraw(struct kv_wait *wait, int status)
{
	if (kv_work_withdraw(&wait->work))
		kv_wait_end(wait, status);
}
