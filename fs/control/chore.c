/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chore.c - a request that waits for the disk, on a thread of its own.
 *
 * OWNS      nothing: a chore is its request's.
 *
 * LOCKING   none: a chore is the thread's from kv_chore_begin until its mail
 *           has been posted.
 */
#include "fs/control/chore.h"

#define COST 65536u /* of a turn of 4 MiB */

static void submit(struct kv_chore *chore)
{
	kv_work_submit(chore->request.server->waits, &chore->work, chore->uid,
		       COST);
}

static void run(struct kv_work *work, struct kv_hash *hash)
{
	struct kv_chore *chore = kv_container(work, struct kv_chore, work);

	(void)hash;
	chore->status = chore->run(chore);
	if (chore->status > 0)
		submit(chore);
	else
		kv_mailbox_post(&chore->request.server->mailbox,
				&chore->request.mail);
}

void kv_chore_begin(struct kv_chore *chore, int (*work)(struct kv_chore *chore))
{
	chore->run = work;
	chore->work.run = run;
	chore->uid = chore->request.client->caller.uid;
	kv_request_pend(&chore->request, false);
	submit(chore);
}

void kv_chore_cancel(struct kv_request *request, int status)
{
	struct kv_chore *chore = (struct kv_chore *)request;

	if (!kv_work_withdraw(&chore->work))
		return;
	chore->status = status;
	kv_mailbox_post(&request->server->mailbox, &request->mail);
}
