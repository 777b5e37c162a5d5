/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chore.c - a request that waits for the disk, on an ingest thread.
 *
 * OWNS      nothing: a chore is its request's.
 *
 * LOCKING   none: a chore is the thread's from kv_chore_begin until its mail
 *           has been posted.
 */
#include "fs/control/chore.h"

static void work(struct kv_ingest_job *job, struct kv_hash *hash)
{
	struct kv_chore *chore = kv_container(job, struct kv_chore, job);
	struct kv_server *server = chore->request.server;

	(void)hash;
	chore->status = chore->run(chore);
	if (chore->status > 0)
		kv_ingest_add(server->ingest, job);
	else
		kv_mailbox_post(&server->mailbox, &chore->request.mail);
}

void kv_chore_begin(struct kv_chore *chore, int (*run)(struct kv_chore *chore))
{
	struct kv_request *request = &chore->request;

	chore->run = run;
	chore->job = (struct kv_ingest_job){
		.work = work,
		.uid = request->client->caller.uid,
		.waits = true,
	};
	kv_request_pend(request, false);
	kv_ingest_add(request->server->ingest, &chore->job);
}

void kv_chore_cancel(struct kv_request *request, int status)
{
	struct kv_chore *chore = (struct kv_chore *)request;

	if (!kv_ingest_cancel(request->server->ingest, &chore->job))
		return;
	chore->status = status;
	kv_mailbox_post(&request->server->mailbox, &request->mail);
}
