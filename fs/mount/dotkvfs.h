/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dotkvfs.h - the files below .kvfs, made when they are opened.
 */
#ifndef KV_FS_MOUNT_DOTKVFS_H
#define KV_FS_MOUNT_DOTKVFS_H

#include "fs/mount/mount.h"

/* The text of one of the fixed nodes; caller frees.  -ENOMEM, -ESTALE. */
int kv_dotkvfs_text(struct kv_mount *mount, uint64_t ino, char **ret_text);

#endif
