/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c - the devices there are.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include "kernels/device/device.h"
#include "kernels/device/plugin.h"

static const struct kv_device *const devices[] = {&kv_device_host};

const struct kv_device *kv_device_find(const char *name)
{
	size_t i;

	for (i = 0; i < KV_ARRAY_LEN(devices); i++)
		if (strcmp(devices[i]->name, name) == 0)
			return devices[i];
	return kv_plugin_find(name);
}
