/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parked.h - requests that wait for the SSD, for room or for the disk, so that no FUSE
 * thread waits for them.
 *
 * Each call answers its request, at once or later.  A parked request is charged to its
 * user, and cancelled when its caller is interrupted or the mount ends.
 */
#ifndef KV_FS_MOUNT_PARKED_H
#define KV_FS_MOUNT_PARKED_H

#include <sys/stat.h>

#include "fs/mount/mount.h"
#include "fs/mount/upload.h"

/* Answer @req with the bytes of @block: at once if they are in memory, otherwise when a
 * thread has read them. */
void kv_read_block(fuse_req_t req, struct kv_block *block, size_t size,
		   uint64_t offset);

/* The arguments of a handler; a handler uses some of them. */
struct kv_change {
	/* Make the change, and reply to @req as a handler does. */
	void (*make)(fuse_req_t req, const struct kv_change *change);
	fuse_ino_t ino, other; /* a directory or a node; another directory */
	const char *name, *text;
	unsigned flags;
	struct stat attr;
	struct kv_upload *upload; /* open until the reply */
};

/*
 * Copy @change, a change of a space or user that waits for the disk, and have a thread
 * make the change.  A change that has not begun ends with EINTR when its caller is
 * interrupted or the mount ends, and with ENOLCK beyond the user's share of memory.
 */
void kv_change_later(fuse_req_t req, const struct kv_change *change);

/* Retry a write that found no room, or is beyond its space's rate, until it succeeds or
 * fails.  Returns 0; or -ENOMEM, or -ENOSPC beyond the user's share: the caller replies. */
int kv_park_write(fuse_req_t req, struct kv_upload *upload, const char *data,
		  size_t n, uint64_t offset);

/*
 * Answer @req when all @spaces or the block are durable (kv_sync_spaces, kv_sync_block);
 * when the block is durable and its slot is freed, or -EBUSY if the block is leased
 * (kv_sync_demote); or when the block is in DRAM (kv_sync_promote).  Return 0; or -ENOMEM
 * or -ENOLCK: the caller replies.
 */
int kv_sync_spaces(fuse_req_t req, struct kv_space *const *spaces, size_t n);
int kv_sync_block(fuse_req_t req, struct kv_block *block);
int kv_sync_demote(fuse_req_t req, struct kv_block *block);
int kv_sync_promote(fuse_req_t req, struct kv_block *block);

int kv_parking_new(struct kv_parking **ret_parking); /* -ENOMEM, -EAGAIN */
/* Retry parked writes, because there may be room.  Takes NULL. */
void kv_parking_room(struct kv_parking *parking);
/* Cancel all parked requests, and wait until they are answered.  No request may be parked
 * later.  Takes NULL, and a stopped parking. */
void kv_parking_stop(struct kv_parking *parking);
/* Wait for the threads, which may still use the cache, after kv_parking_stop.
 * Takes NULL. */
void kv_parking_join(struct kv_parking *parking);
void kv_parking_free(struct kv_parking *parking); /* joined, or NULL */

#endif
