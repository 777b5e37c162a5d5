/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mountpoint.h - the directory to mount on, umount.kvfs, the helper of umount(8), and
 * `kvfs --health`.
 *
 * The kernel tells a FUSE server of its end when the mount is already gone, and
 * umount(2) does not wait.  So umount.kvfs makes the spaces durable, unmounts, and
 * waits until the store is free.
 *
 * umount(8) calls the helper of the part of a type before its dot, which is "fuse" for
 * every FUSE filesystem, unless mount(8) has recorded an option helper= for the mount.
 */
#ifndef KV_FS_MOUNTPOINT_H
#define KV_FS_MOUNTPOINT_H

#include "common/kv.h"

/*
 * Check @path before anything is made on disk, unmount a kvfs there whose daemon is dead,
 * and return the absolute form of @path in *@ret_path (caller frees).  Returns 0, or:
 *   -ENOENT, -ENOTDIR
 *   -EBUSY   a FUSE filesystem is mounted there
 *   -EINVAL  one of @path and @store lies in the other
 * On failure *@ret_why is one line for the user.
 */
int kv_mountpoint_check(const char *path, const char *store, char **ret_path,
			char **ret_why);

/* Return 1 if @file would lie below @mountpoint, else 0, or -ENOMEM.  Both are
 * absolute. */
int kv_mountpoint_covers(const char *mountpoint, const char *file);

/* Return what is mounted topmost at @path by @text, which has the form of
 * /proc/self/mounts: 1 kvfs, 2 another FUSE filesystem, 0 something else or nothing. */
int kv_mounts_find(const char *text, const char *path);

/* Make umount(8) call umount.kvfs, if that is installed, for the mount, which must answer.
 * Only root can do this. */
void kv_umount_announce(const char *store, const char *path);
/* Return true if the program was called as umount.kvfs. */
bool kv_umount_called(const char *name);
/* Run umount.kvfs.  Returns the exit status of umount(8): 0, 1 usage, 32 failed. */
int kv_umount_main(int argc, char **argv);

/* Run `kvfs --health` with MOUNTPOINT or SOCKET in argv[0], and the time limit in
 * seconds in argv[1] if @argc is 2.  Prints one line and returns the exit status:
 *   0  the daemon answers and its SSD works
 *   1  the daemon does not answer, or the command line is wrong
 *   3  the daemon answers, but its SSD does not work */
int kv_health_main(int argc, char **argv);

#endif
