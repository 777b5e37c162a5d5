/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.h - everything that belongs to one mounted store.
 */
#ifndef KV_FS_MOUNT_MOUNT_H
#define KV_FS_MOUNT_MOUNT_H

#include "cache/cache.h"
#include "fs/options.h"

#define KV_OPEN_MAX 65536 /* blocks opened through the mount; then ENFILE */

struct kv_mount {
	const struct kv_options *options; /* fixed after open, as all but: */
	struct kv_cache *cache;
	struct kv_uploads *uploads;
	struct kv_lives *lives;
	struct kv_hidden *hidden;
	char *control_path;
	uint32_t uid, gid, mode; /* of the root */
	int64_t started_ns;
	uint32_t max_write, max_readahead; /* agreed with the kernel */
	_Atomic uint32_t opens;
	struct kv_handles *handles;

	/* The cache's callbacks look here from its threads. */
	pthread_rwlock_t listeners;
	struct kv_control *control; /* listeners */
	struct kv_notify *notify;   /* listeners */
};

/*
 * Open the store and start the control socket.  @options must outlive it.  On
 * failure *@ret_why is one line for the user (caller frees).
 */
int kv_mount_open(const struct kv_options *options, struct kv_mount **ret_mount,
		  char **ret_why);
/* Waits until everything is written.  Takes NULL. */
void kv_mount_close(struct kv_mount *mount);

/* From here on @notify hears of names that went; NULL: no longer. */
void kv_mount_listen(struct kv_mount *mount, struct kv_notify *notify);

/* Owner or mode of a space changed: the kernel is told, soon. */
void kv_mount_changed(struct kv_mount *mount, struct kv_space *space);

#endif
