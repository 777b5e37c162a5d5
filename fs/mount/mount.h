/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.h - what the handlers of one mount share.
 */
#ifndef KV_FS_MOUNT_MOUNT_H
#define KV_FS_MOUNT_MOUNT_H

#include "cache/cache.h"
#include "fs/base/access.h"

struct kv_mount {
	struct kv_cache *cache; /* fixed after start, as is all: */
	struct kv_uploads *uploads;
	struct kv_lives *lives;
	struct kv_hidden *hidden;
	struct kv_handles *handles;
	struct kv_notify *notify;
	struct kv_parking *parking;
	struct kv_readers *readers;
	const char *control_path;
	const struct kv_rules *rules;
	uint32_t umask; /* taken from the mode of new spaces */
	int64_t started_ns;
	uint32_t max_write, max_readahead; /* agreed with the kernel */
	/* The text of one of .kvfs's nodes; caller frees.  -ENOMEM, -ESTALE. */
	int (*text)(void *arg, uint64_t ino, char **ret_text);
	void *arg;
};

/* One that hears of blocks that go, and does nothing more yet.  -ENOMEM. */
int kv_mount_new(struct kv_mount **ret_mount);
/* Ready for requests.  -ENOMEM, -EAGAIN. */
int kv_mount_start(struct kv_mount *mount, struct kv_cache *cache);
/* Give back to the cache what is open still.  Takes NULL, and one that was not
 * started. */
void kv_mount_stop(struct kv_mount *mount);
void kv_mount_free(struct kv_mount *mount); /* stopped, or NULL */

#endif
