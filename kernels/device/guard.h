/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guard.h - between libkvfs and a device: the table is looked at once, when it
 * is found, and what a call answers each time.
 */
#ifndef KV_KERNELS_DEVICE_GUARD_H
#define KV_KERNELS_DEVICE_GUARD_H

#include "common/kv.h"
#include "kernels/kvfs_device.h"

/*
 * Whether @device can be used as the device @name: it is of this version, has
 * that name, the calls that are needed, and of each group all or none.  -ENODEV:
 * it cannot, and @ret_why, of @room bytes, says why.
 */
int kv_guard_check(const struct kvfs_device *device, const char *name,
		   char *ret_why, size_t room);

/*
 * The calls of kvfs_device.h, with answers that libkvfs can go on with: 0, or
 * an error number of Linux, negative; -EIO for what is none, and for -EAGAIN and
 * -EINPROGRESS, which would have somebody wait for ever.  A failed load or save
 * is always -EIO: other numbers say of a block that its pages were not touched.
 * What is to be returned is there when it is 0, or it is -EIO.
 */
int kv_guard_open(const struct kvfs_device *device,
		  const struct kvfs_pool_desc *desc, void **ret_pool);
int kv_guard_load(const struct kvfs_device *device, void *pool,
		  const struct kvfs_batch *batch);
int kv_guard_save(const struct kvfs_device *device, void *pool,
		  const struct kvfs_batch *batch);
int kv_guard_event_wait(const struct kvfs_device *device, void *pool,
			void *stream, void *event, void **ret_event_wait);
int kv_guard_order(const struct kvfs_device *device, void *event_wait,
		   void *stream);
int kv_guard_staging(const struct kvfs_device *device, void *pool,
		     uint64_t bytes, unsigned buffers);

/* All of @ret_info that is not the device's is 0, no text is NULL. */
void kv_guard_info(const struct kvfs_device *device, void *pool,
		   struct kvfs_pool_info *ret_info);

/* -EOPNOTSUPP: the device has no memory of its own. */
int kv_guard_reserve(const struct kvfs_device *device, const char *name,
		     uint64_t bytes, uint64_t max_bytes, void **ret_memory,
		     void **ret_base);
int kv_guard_grow(const struct kvfs_device *device, void *memory,
		  uint64_t bytes);
/* -1: none. */
int kv_guard_take_fd(const struct kvfs_device *device, void *memory);

#endif
