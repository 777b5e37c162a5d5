/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plugin.c - devices of this version of kvfs_device.h and of others, and some
 * that lack something: one library under several names, for test_plugin.c.
 * "present" is whole, and as small as a device can be: its pages are plain
 * memory.
 *
 * This file is built with the installed headers alone.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include <string.h>

#include <kvfs_device.h>

extern const struct kvfs_device kvfs_device_past, kvfs_device_present,
	kvfs_device_future, kvfs_device_partial, kvfs_device_other;

/* Return whether the ranges of the batch include byte @at of a block. */
static bool is_wanted(const struct kvfs_batch *batch, uint64_t at)
{
	size_t i;

	for (i = 0; i < batch->n_ranges; i++)
		if (at >= batch->ranges[i].from && at < batch->ranges[i].to)
			return true;
	return batch->n_ranges == 0;
}

static void copy_stride(const struct kvfs_batch *batch,
			const struct kvfs_stride *stride,
			const struct kvfs_copy *copy, bool loads)
{
	uint8_t *tensors = copy->tensors + stride->offset, *page;
	uint64_t at = stride->offset, p, s, b;

	for (p = 0; p < batch->strides->pages_per_block; p++)
		for (s = 0; s < stride->count; s++)
			for (b = 0; b < stride->bytes; b++, at++, tensors++) {
				if (copy->pages[p] < 0 || !is_wanted(batch, at))
					continue;
				page = stride->base +
				       (uint64_t)copy->pages[p] *
					       stride->block_stride +
				       s * stride->segment_stride + b;
				memcpy(loads ? page : tensors,
				       loads ? tensors : page, 1);
			}
}

static int copy_all(const struct kvfs_batch *batch, bool loads)
{
	size_t i, s;

	for (i = 0; i < batch->n; i++)
		for (s = 0; s < batch->strides->n; s++)
			copy_stride(batch, &batch->strides->stride[s],
				    &batch->copies[i], loads);
	return 0;
}

static int load(void *pool, const struct kvfs_batch *batch)
{
	(void)pool;
	return copy_all(batch, true);
}

static int save(void *pool, const struct kvfs_batch *batch)
{
	(void)pool;
	return copy_all(batch, false);
}

static void info(void *pool, struct kvfs_pool_info *ret_info)
{
	(void)pool;
	ret_info->path = "byte by byte";
	ret_info->reason = "a test";
}

const struct kvfs_device kvfs_device_past = {
	.version = KVFS_DEVICE_VERSION - 1,
	.name = "past",
};
const struct kvfs_device kvfs_device_present = {
	.version = KVFS_DEVICE_VERSION,
	.name = "present",
	.info = info,
	.load = load,
	.save = save,
};
const struct kvfs_device kvfs_device_future = {
	.version = KVFS_DEVICE_VERSION + 1,
	.name = "future",
};
/* A device with event_wait, but without event_wait_free, would leak event
 * waits. */
static int event_wait(void *pool, void *stream, void *event,
		      void **ret_event_wait)
{
	(void)pool;
	(void)event;
	*ret_event_wait = stream;
	return 0;
}

const struct kvfs_device kvfs_device_partial = {
	.version = KVFS_DEVICE_VERSION,
	.name = "partial",
	.info = info,
	.load = load,
	.save = save,
	.event_wait = event_wait,
};
/* A device with the name of a device that is built into the library. */
const struct kvfs_device kvfs_device_other = {
	.version = KVFS_DEVICE_VERSION,
	.name = "host",
	.info = info,
	.load = load,
	.save = save,
};
