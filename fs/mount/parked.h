/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parked.h - requests that must wait: kept, so that no worker of FUSE waits.
 *
 * Who answers a parked request claims it first.  Its caller's interrupt and the
 * end of the mount have it called off, by the parking thread.  A parked request
 * is charged to its user.
 */
#ifndef KV_FS_MOUNT_PARKED_H
#define KV_FS_MOUNT_PARKED_H

#include <sys/queue.h>

#include "fs/base/workers.h"
#include "fs/mount/fuse.h"
#include "fs/mount/mount.h"
#include "fs/mount/upload.h"

struct kv_parked;

struct kv_parked_kind {
	/* End it soon with @status, unless it has ended; not before it is
	 * armed. */
	void (*cancel)(struct kv_parked *parked, int status);
	/* Give back what it holds; with the last holder. */
	void (*drop)(struct kv_parked *parked);
};

struct kv_parked {
	fuse_req_t req; /* until it is claimed */
	struct kv_mount *mount;
	const struct kv_parked_kind *kind;
	/* parked.c's own */
	struct kv_account *account;
	size_t bytes;
	unsigned refs;
	bool armed, asked, claimed;
	LIST_ENTRY(kv_parked) bucket;
	TAILQ_ENTRY(kv_parked) link;
};

/*
 * A parked request of @bytes, zeroed, which begins with a kv_parked; held by
 * the caller and by what it will wait for.  -ENOMEM, -ENOLCK beyond the user's
 * share.
 */
int kv_parked_new(fuse_req_t req, const struct kv_parked_kind *kind,
		  size_t bytes, void *ret_parked);
/* The request's wait has begun: it can be called off.  Puts the caller's hold;
 * it may have ended by then. */
void kv_parked_arm(struct kv_parked *parked);
/* True, once: the caller answers it. */
bool kv_parked_claim(struct kv_parked *parked);
/* Answer what the caller has claimed. */
void kv_parked_reply_err(struct kv_parked *parked, int r);
void kv_parked_reply_buf(struct kv_parked *parked, const void *data, size_t n);
/* The caller has answered, by itself, what it has claimed. */
void kv_parked_answered(struct kv_parked *parked);
void kv_parked_put(struct kv_parked *parked);
/* Claim it, answer with @r (0 or -errno) and put it. */
void kv_parked_end(struct kv_parked *parked, int r);

/* A write that found no room, or is beyond its space's rate, is tried again
 * until it ends.  0; -ENOMEM, -ENOSPC beyond the user's share. */
int kv_park_write(fuse_req_t req, struct kv_upload *upload, const char *data,
		  size_t n, uint64_t offset);
/* There may be room. */
void kv_parking_room(struct kv_parking *parking);

/* A parked request that a thread of a pool answers. */
struct kv_job {
	struct kv_parked parked; /* first */
	struct kv_work work;
};

/* A kind's cancel, of a job: it is answered at once, unless it was claimed, and
 * not run, unless a thread has it. */
void kv_job_cancel(struct kv_parked *parked, int status);

int kv_parking_new(struct kv_parking **ret_parking); /* -ENOMEM, -EAGAIN */
/* Call off all there are, and wait until they are answered; there will be no
 * more.  Takes NULL, and one that was stopped. */
void kv_parking_stop(struct kv_parking *parking);
/* Stopped, or NULL; and nothing that they waited for is left. */
void kv_parking_free(struct kv_parking *parking);

#endif
