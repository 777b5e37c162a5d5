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
 * Return the device @name: "host", or kvfs_device_NAME of the library
 * libkvfs-NAME.so.1.  NAME is @name up to a colon, such as "cuda" in "cuda:1".
 * The library is looked for beside this library (or program), then in the
 * dynamic linker's path, and stays loaded.  NULL: there is no such library, or
 * it was rejected; one line on standard error has the reason.
 */
const struct kvfs_device *kv_device_find(const char *name);

/* ---- checked calls ---- */

/* Check the table of calls of @device: version, name, required calls, and of
 * each group all calls or none.  -ENODEV: the table is rejected, and @ret_why,
 * of @room bytes, has the reason. */
int kv_device_check(const struct kvfs_device *device, const char *name,
		    char *ret_why, size_t room);

/* Return @r, the result of a device's call; or -EIO if @r is positive, no
 * errno, or -EAGAIN or -EINPROGRESS, for which callers would wait for ever. */
int kv_device_result(int r);

/* Load (@loads) or save a batch.  A failure is always -EIO, as other errors of a
 * block mean that its pages were not touched. */
int kv_device_copy(const struct kvfs_device *device, void *pool,
		   const struct kvfs_batch *batch, bool loads);

/* Make an event wait; *@ret_event_wait is set if 0 is returned. */
int kv_device_event_wait(const struct kvfs_device *device, void *pool,
			 void *stream, void *event, void **ret_event_wait);

/* Call the device's info.  Fields that the device does not set become 0,
 * missing texts NULL. */
void kv_device_info(const struct kvfs_device *device, void *pool,
		    struct kvfs_pool_info *ret_info);

/* Allocate memory of the device; the outputs are set only after 0.
 * -EOPNOTSUPP: the device has no memory of its own */
int kv_device_reserve(const struct kvfs_device *device, const char *name,
		      uint64_t bytes, uint64_t max_bytes, void **ret_memory,
		      void **ret_base);

/* ---- copy threads: one for each processor, four at most ---- */

struct kv_copier;

enum kv_job_kind { KV_JOB_LOAD, KV_JOB_SAVE };

/* A job, in its owner's memory.  @run is called unlocked; may free the job. */
struct kv_job {
	TAILQ_ENTRY(kv_job) others;
	void (*run)(struct kv_job *job);
	enum kv_job_kind kind;
	int priority;
	/* owner, which may run the job (kv_copier_withdraw); NULL: nobody */
	const void *owner;
	/* set by kv_copier_withdraw: copy one unit, then submit the rest */
	bool brief;
};

int kv_copier_new(struct kv_copier **ret_copier); /* -ENOMEM, -EAGAIN */

/* Run all submitted jobs, then end the threads.  Takes NULL. */
void kv_copier_free(struct kv_copier *copier);

unsigned kv_copier_threads(const struct kv_copier *copier);

/* Queue a job.  Loads run before saves, jobs of higher priority before others,
 * else in order of arrival.  But one job in KV_COPIER_FAIR is the oldest, so
 * that no job starves.  May be called on any thread, with any lock held. */
#define KV_COPIER_FAIR 8u
void kv_copier_submit(struct kv_copier *copier, struct kv_job *job);

/* Take the oldest job of @owner out of the queue, for the caller to run; NULL:
 * copy threads have taken all of them. */
struct kv_job *kv_copier_withdraw(struct kv_copier *copier, const void *owner);

/* Return true if @job should submit itself again after the unit that it copies:
 * it is brief, or a queued job should run first. */
bool kv_copier_presses(struct kv_copier *copier, const struct kv_job *job);

#endif
