/* SPDX-License-Identifier: Apache-2.0 */
/*
 * umount.h - what umount(8) calls to unmount a kvfs: /sbin/umount.kvfs.
 *
 * The kernel tells a FUSE server of its end when the mount is gone already, and
 * umount(2) waits for nothing.  So this makes the spaces durable, unmounts, and
 * waits until the store is free.
 *
 * umount(8) goes by the part of a type before its dot, which is fuse for all of
 * FUSE; but it looks first for the word helper= that mount(8) keeps for a
 * mount.
 */
#ifndef KV_FS_UMOUNT_H
#define KV_FS_UMOUNT_H

#include "common/kv.h"

/* Let umount(8) know of it, if it is installed; only root can.  The mount must
 * answer. */
void kv_umount_announce(const char *store, const char *path);
/* Whether the program was called by that name. */
bool kv_umount_called(const char *name);
/* Returns umount(8)'s exit status: 0, 1 usage, 32 failed. */
int kv_umount_main(int argc, char **argv);

#endif
