/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plugin.c - devices of this version of device.h and of others: one library
 * under three names, for test_plugin.c.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include "kernels/device/device.h"

extern const struct kv_device kv_device_past, kv_device_present,
	kv_device_future;

const struct kv_device kv_device_past = {
	.version = KV_DEVICE_VERSION - 1,
	.name = "past",
};
const struct kv_device kv_device_present = {
	.version = KV_DEVICE_VERSION,
	.name = "present",
};
const struct kv_device kv_device_future = {
	.version = KV_DEVICE_VERSION + 1,
	.name = "future",
};
