/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard.c - check a device's table, and the results of its calls.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) A table that passed kv_device_check has each call that is used: the call
 *       is required, or required by another one, or its caller checks.
 *
 * LOCKING   none: kvfs_device.h says which locks a call may hold.
 */
#include <stdio.h>

#include "kernels/device/device.h"
#include "kernels/kvfs.h"

#define ERRNO_LAST 4095 /* highest errno of Linux */

/* A device with the call @has must also have the call @needs. */
struct rule {
	const char *has; /* a call; NULL: every device needs the call @needs */
	size_t has_at;
	const char *needs;
	size_t needs_at;
};

#define AT(call) offsetof(struct kvfs_device, call)
#define NEEDED(call)                     \
	{                                \
		NULL, 0, #call, AT(call) \
	}
#define WITH(has, needs)                         \
	{                                        \
#has, AT(has), #needs, AT(needs) \
	}

static const struct rule rules[] = {
	NEEDED(info),
	NEEDED(load),
	NEEDED(save),
	WITH(attach, detach),
	WITH(detach, attach),
	WITH(needs_writable, attach),
	WITH(event_wait, event_wait_is_done),
	WITH(event_wait, event_wait_free),
	WITH(event_wait_is_done, event_wait),
	WITH(event_wait_free, event_wait),
	WITH(order, event_wait),
	WITH(default_stream, event_wait),
	WITH(reserve, grow),
	WITH(reserve, release),
	WITH(grow, reserve),
	WITH(release, reserve),
	WITH(take_fd, reserve),
};

static bool has_call(const struct kvfs_device *device, size_t at)
{
	void (*call)(void);

	memcpy(&call, (const char *)device + at, sizeof(call));
	return call;
}

int kv_device_check(const struct kvfs_device *device, const char *name,
		    char *ret_why, size_t room)
{
	const struct rule *rule;

	/* A table of another version may differ in all other fields. */
	if (device->version != KVFS_DEVICE_VERSION) {
		snprintf(ret_why, room,
			 "the table has version %u of kvfs_device.h, and this "
			 "library version %u",
			 device->version, KVFS_DEVICE_VERSION);
		return -ENODEV;
	}
	if (!device->name || strcmp(device->name, name) != 0) {
		snprintf(ret_why, room, "the table has the name \"%s\"",
			 device->name ? device->name : "");
		return -ENODEV;
	}
	for (rule = rules; rule < rules + KV_ARRAY_LEN(rules); rule++) {
		if ((rule->has && !has_call(device, rule->has_at)) ||
		    has_call(device, rule->needs_at))
			continue;
		if (rule->has)
			snprintf(ret_why, room, "the device has %s, but no %s",
				 rule->has, rule->needs);
		else
			snprintf(ret_why, room, "the device has no %s",
				 rule->needs);
		return -ENODEV;
	}
	return 0;
}

int kv_device_result(int r)
{
	if (r > 0 || r < -ERRNO_LAST || r == -EAGAIN || r == -EINPROGRESS)
		return -EIO;
	return r;
}

int kv_device_copy(const struct kvfs_device *device, void *pool,
		   const struct kvfs_batch *batch, bool loads)
{
	return (loads ? device->load : device->save)(pool, batch) == 0 ? 0
								       : -EIO;
}

int kv_device_event_wait(const struct kvfs_device *device, void *pool,
			 void *stream, void *event, void **ret_event_wait)
{
	void *made = NULL;
	int r = kv_device_result(
		device->event_wait(pool, stream, event, &made));

	if (r == 0 && !made)
		r = -EIO;
	if (r == 0)
		*ret_event_wait = made;
	return r;
}

void kv_device_info(const struct kvfs_device *device, void *pool,
		    struct kvfs_pool_info *ret_info)
{
	struct kvfs_pool_info known = {.size = sizeof(known)};

	device->info(pool, &known);
	*ret_info = (struct kvfs_pool_info){
		.size = sizeof(*ret_info),
		.device = device->name,
		.path = known.path ? known.path : "",
		.reason = known.reason ? known.reason : "",
		.bytes_pinned = known.bytes_pinned,
		.bytes_registered = known.bytes_registered,
		.bytes_refused = known.bytes_refused,
		.buffers = known.buffers,
		.buffer_bytes = known.buffer_bytes,
	};
}

int kv_device_reserve(const struct kvfs_device *device, const char *name,
		      uint64_t bytes, uint64_t max_bytes, void **ret_memory,
		      void **ret_base)
{
	void *memory = NULL, *base = NULL;
	int r;

	if (!device->reserve)
		return -EOPNOTSUPP;
	r = kv_device_result(
		device->reserve(name, bytes, max_bytes, &memory, &base));
	if (r < 0)
		return r;
	if (!base && memory)
		device->release(memory);
	if (!base || !memory)
		return -EIO;
	*ret_memory = memory;
	*ret_base = base;
	return 0;
}
