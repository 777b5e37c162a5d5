/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plugin.h - devices that are libraries of their own, loaded when asked for.
 */
#ifndef KV_KERNELS_DEVICE_PLUGIN_H
#define KV_KERNELS_DEVICE_PLUGIN_H

#include "kernels/device/device.h"

/*
 * The device that libkvfs-NAME.so.0 has as kv_device_NAME; NULL: there is no
 * such library, or none for this version of device.h.  It is looked for beside
 * the library (or program) that this is part of, and then where the dynamic
 * linker looks, and stays loaded.  @name: lowercase letters, up to a colon.
 */
const struct kv_device *kv_plugin_find(const char *name);

#endif
