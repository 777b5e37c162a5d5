/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.h - devices, each a table of calls (kvfs_device.h), checked calls of a
 * device, and the copy threads.
 */
#ifndef KV_KERNELS_DEVICE_DEVICE_H
#define KV_KERNELS_DEVICE_DEVICE_H

#include <sys/queue.h>

#include "common/kv.h"
#include "kernels/kvfs_device.h"

extern const struct kvfs_device kv_device_host;

/*
 * Return the device @name: "host", or kvfs_device_NAME of libkvfs-NAME.so.1.  The
 * library is looked for beside this library (or program), then where the dynamic
 * linker looks, and stays loaded.  @name: lowercase letters up to a colon, as in
 * "cuda:1".  NULL: there is no such library, or it was rejected; one line on
 * stderr gives the reason.
 */
const struct kvfs_device *kv_device_find(const char *name);

/* ---- checked calls ---- */

/*
 * Check the table of @device as the device @name: version, name, required calls,
 * and of each group all calls or none.  -ENODEV: rejected; @ret_why, of @room
 * bytes, gets the reason.
 */
int kv_guard_check(const struct kvfs_device *device, const char *name,
		   char *ret_why, size_t room);

/*
 * The calls of kvfs_device.h, with valid results: 0 or -errno.  Other values
 * become -EIO, and so do -EAGAIN and -EINPROGRESS, after which callers would wait
 * for ever.  A failed load or save is always -EIO: other errors of a block mean
 * that its pages were not touched.  Outputs are set after 0; a missing one is
 * -EIO.
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

/* Fields of @ret_info that a device does not set are 0; no text is NULL. */
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

/* ---- copy threads: one for each processor, four at most ---- */

struct kv_copier;

enum kv_job_kind { KV_JOB_LOAD, KV_JOB_SAVE };

/* Embedded in its owner.  @run is called without a lock and may free the job. */
struct kv_job {
	TAILQ_ENTRY(kv_job) others;
	void (*run)(struct kv_job *job);
	enum kv_job_kind kind;
	int priority;
};

int kv_copier_new(struct kv_copier **ret_copier); /* -ENOMEM, -EAGAIN */

/* Run all submitted jobs, then end the threads.  Takes NULL. */
void kv_copier_free(struct kv_copier *copier);

unsigned kv_copier_threads(const struct kv_copier *copier);

/*
 * Queue a job.  Loads begin before saves, higher priorities before lower ones,
 * else first come, first served; but one job in KV_COPIER_FAIR is the oldest, so
 * that none starves.  Any thread, any lock held.
 */
#define KV_COPIER_FAIR 8u
void kv_copier_submit(struct kv_copier *copier, struct kv_job *job);

/* Return whether a queued job comes before @job: a long job then submits itself
 * again and returns. */
bool kv_copier_presses(struct kv_copier *copier, const struct kv_job *job);

#endif
