/* SPDX-License-Identifier: Apache-2.0 */
/*
 * changes.c - changes of spaces and users, which wait for the disk, on threads
 * of their own.
 *
 * None of them is called off once it has begun.
 *
 * OWNS      a copy of what is asked for, until the change has ended.
 *
 * LOCKING   none.
 */
#include "fs/mount/changes.h"
#include "fs/mount/parked.h"

struct change {
	struct kv_job job;	 /* first */
	struct kv_change change; /* its strings are in text */
	char text[];
};

static void make(struct kv_work *work, struct kv_hash *hash)
{
	struct kv_job *job = kv_container(work, struct kv_job, work);
	const struct kv_change *change = &((struct change *)job)->change;

	(void)hash;
	if (kv_parked_claim(&job->parked)) {
		change->make(job->parked.req, change);
		kv_parked_answered(&job->parked);
	}
	kv_parked_put(&job->parked);
}

static void drop(struct kv_parked *parked)
{
	(void)parked;
}

static const struct kv_parked_kind change_kind = {kv_job_cancel, drop};

static size_t text_bytes(const char *text)
{
	return text ? strlen(text) + 1 : 0;
}

static const char *copy_text(char **at, const char *text)
{
	const char *copy = *at;

	if (!text)
		return NULL;
	memcpy(*at, text, text_bytes(text));
	*at += text_bytes(text);
	return copy;
}

void kv_change_later(fuse_req_t req, const struct kv_change *change)
{
	struct kv_mount *mount = fuse_req_userdata(req);
	const uint32_t uid = fuse_req_ctx(req)->uid;
	struct change *copy;
	char *at;
	int r;

	r = kv_parked_new(req, &change_kind,
			  sizeof(*copy) + text_bytes(change->name) +
				  text_bytes(change->text),
			  &copy);
	if (r < 0) {
		fuse_reply_err(req, -r);
		return;
	}
	at = copy->text;
	copy->change = *change;
	copy->change.name = copy_text(&at, change->name);
	copy->change.text = copy_text(&at, change->text);
	copy->job.work.run = make;
	kv_work_submit(mount->changes, &copy->job.work, uid, 1);
	kv_parked_arm(&copy->job.parked);
}

int kv_changes_new(struct kv_workers **ret_changes)
{
	static const struct kv_workers_config config = {
		.name = "kvfs-change", .threads = 16, .each = 4, .turn = 1};

	return kv_workers_new(&config, ret_changes);
}
