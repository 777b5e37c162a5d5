/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuse.h - the version of libfuse's low-level interface that fs/ is written
 * for.
 */
#ifndef KV_FS_MOUNT_FUSE_H
#define KV_FS_MOUNT_FUSE_H

#define FUSE_USE_VERSION 312
#include <fuse3/fuse_lowlevel.h>

#endif
