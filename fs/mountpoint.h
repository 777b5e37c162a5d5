/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mountpoint.h - a place to mount on, and what umount(8) calls to unmount it:
 * /sbin/umount.kvfs.
 *
 * The kernel tells a FUSE server of its end when the mount is gone already, and
 * umount(2) waits for nothing.  So umount.kvfs makes the spaces durable,
 * unmounts, and waits until the store is free.
 *
 * umount(8) goes by the part of a type before its dot, which is fuse for all of
 * FUSE; but it looks first for the word helper= that mount(8) keeps for a
 * mount.
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

/* Do as `mount -o remount` asks: nothing can be changed through the mount @path
 * (NULL: none), or again.  -EINVAL no kvfs is mounted there, or one of the lines
 * @given is not in its .kvfs/config; -EPERM. */
int kv_mountpoint_remount(const char *path, const char *given, bool read_only,
			  char **ret_why);

/* Whether @file would lie below @mountpoint, both absolute: 1, 0, -ENOMEM. */
int kv_mountpoint_covers(const char *mountpoint, const char *file);

/*
 * Whether @text, in the form of /proc/self/mountinfo, has a FUSE filesystem
 * on top at @path: 1 kvfs, 2 another one, 0 none.
 */
int kv_mountinfo_find(const char *text, const char *path);

/* Let umount(8) know of it, if it is installed; only root can.  The mount must
 * answer. */
void kv_umount_announce(const char *store, const char *path);
/* Whether the program was called by that name. */
bool kv_umount_called(const char *name);
/* Returns umount(8)'s exit status: 0, 1 usage, 32 failed. */
int kv_umount_main(int argc, char **argv);

#endif
