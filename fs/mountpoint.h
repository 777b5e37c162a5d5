/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mountpoint.h - is this a place to mount on?
 */
#ifndef KV_FS_MOUNTPOINT_H
#define KV_FS_MOUNTPOINT_H

#include "common/kv.h"

/*
 * Check @path before anything is made on disk, and give its absolute form in
 * *@ret_path (caller frees).  A kvfs mount there whose daemon is dead is taken
 * away.  -ENOENT, -ENOTDIR, -EBUSY something is mounted there by FUSE, -EINVAL
 * it and @store lie in each other; *@ret_why is one line for the user.
 */
int kv_mountpoint_check(const char *path, const char *store, char **ret_path,
			char **ret_why);

/* What `mount -o remount` does: nothing can be changed through the mount @path
 * (NULL: none), or again.  -EINVAL no kvfs is mounted there, -EPERM. */
int kv_mountpoint_remount(const char *path, bool read_only, char **ret_why);

/* Whether @file would lie below @mountpoint, both absolute: 1, 0, -ENOMEM. */
int kv_mountpoint_covers(const char *mountpoint, const char *file);

/*
 * Whether @text, in the form of /proc/self/mountinfo, has a FUSE filesystem
 * on top at @path: 1 kvfs, 2 another one, 0 none.
 */
int kv_mountinfo_find(const char *text, const char *path);

#endif
