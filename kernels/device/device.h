/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h - the devices there are, each a table of calls (kvfs_device.h).
 */
#ifndef KV_KERNELS_DEVICE_DEVICE_H
#define KV_KERNELS_DEVICE_DEVICE_H

#include "common/kv.h"
#include "kernels/kvfs_device.h"

extern const struct kvfs_device kv_device_host;

/*
 * The device of that name: "host", or the one that libkvfs-NAME.so.1 has as
 * kvfs_device_NAME.  It is looked for beside the library (or program) that this
 * is part of, and if it is not there where the dynamic linker looks, and stays
 * loaded.  @name: lowercase letters, up to a colon, as in "cuda:1".  NULL: there
 * is no such library, or it is none that can be used (guard.h); why is said on
 * stderr, in a line.
 */
const struct kvfs_device *kv_device_find(const char *name);

#endif
