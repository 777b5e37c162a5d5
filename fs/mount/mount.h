/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.h - the state that all handlers of a mount share; daemon.c fills it in.
 */
#ifndef KV_FS_MOUNT_MOUNT_H
#define KV_FS_MOUNT_MOUNT_H

/* The version of libfuse's low-level interface that fs/ uses. */
#define FUSE_USE_VERSION 312
#include <fuse3/fuse_lowlevel.h>

#include "cache/cache.h"
#include "fs/base/access.h"

/* Layouts that are hidden from the processes that removed them: see tree.c. */
#define KV_HIDDEN_RECORDS 64u
struct kv_hidden {
	pthread_mutex_t lock;
	unsigned next; /* lock, as are: */
	struct kv_hidden_record {
		uint32_t space; /* 0: none */
		uid_t uid;
		pid_t process;
		uint64_t until_ns;
	} records[KV_HIDDEN_RECORDS];
};

struct kv_mount {
	/* fixed after start, as are all other fields except `hidden` */
	struct kv_cache *cache;
	struct kv_uploads *uploads;
	struct kv_lives *lives;
	struct kv_hidden hidden;
	struct kv_handles *handles;
	struct kv_notify *notify;
	struct kv_parking *parking;
	const char *control_path;
	const struct kv_rules *rules;
	uint32_t umask; /* cleared from the mode of new spaces */
	int64_t started_ns;
	uint32_t max_write, max_readahead; /* bytes, agreed with the kernel */
	/* Make the text of a file below .kvfs, as @reader may see it; caller
	 * frees. Returns 0, -ENOMEM or -ESTALE. */
	int (*text)(void *arg, uint64_t ino, const struct kv_caller *reader,
		    char **ret_text);
	void *arg;
};

#endif
