/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mountpoint.h - the directory to mount on, and umount.kvfs, the helper of umount(8).
 *
 * The kernel tells a FUSE server of its end when the mount is already gone, and
 * umount(2) does not wait.  So umount.kvfs makes the spaces durable, unmounts, and
 * waits until the store is free.
 *
 * umount(8) takes the part of a type before its dot, which is "fuse" for all of FUSE,
 * but first looks for the option helper= that mount(8) records for a mount.
 */
#ifndef KV_FS_MOUNTPOINT_H
#define KV_FS_MOUNTPOINT_H

#include "common/kv.h"

/*
 * Check @path before anything is made on disk, and return its absolute form in
 * *@ret_path (caller frees).  Unmounts a kvfs whose daemon is dead.  -ENOENT,
 * -ENOTDIR, -EBUSY a FUSE filesystem is mounted there, -EINVAL @path and @store lie
 * in each other; *@ret_why is one line for the user.
 */
int kv_mountpoint_check(const char *path, const char *store, char **ret_path,
			char **ret_why);

/* Remount @path (NULL: `none`) read-only or read-write.  -EINVAL no kvfs is mounted
 * there, or a line of @given is not in its .kvfs/config; -EPERM. */
int kv_mountpoint_remount(const char *path, const char *given, bool read_only,
			  char **ret_why);

/* Whether @file would lie below @mountpoint, both absolute: 1, 0, -ENOMEM. */
int kv_mountpoint_covers(const char *mountpoint, const char *file);

/*
 * Whether @text, in the form of /proc/self/mountinfo, has a FUSE filesystem
 * on top at @path: 1 kvfs, 2 another one, 0 none.
 */
int kv_mountinfo_find(const char *text, const char *path);

/* Make umount(8) call umount.kvfs, if that is installed, for the mount, which must
 * answer; takes root. */
void kv_umount_announce(const char *store, const char *path);
/* Whether the program was called as umount.kvfs. */
bool kv_umount_called(const char *name);
/* Returns umount(8)'s exit status: 0, 1 usage, 32 failed. */
int kv_umount_main(int argc, char **argv);

#endif
