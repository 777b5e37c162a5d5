/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.h - a GPU in use (context, kernels, and a frame for every driver call), and
 * event waits.
 */
#ifndef KV_KERNELS_CUDA_GPU_H
#define KV_KERNELS_CUDA_GPU_H

#include <stdatomic.h>
#include <sys/queue.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/driver.h"
#include "common/kv.h"

struct kv_copy_stream;

/* The most copy threads of a session. */
#define KV_COPY_STREAMS 4u

/* The work that a stream had at some time; see event waits below. */
struct kv_event_wait {
	LIST_ENTRY(kv_event_wait) others;
	struct kv_gpu *gpu;
	CUevent event;
	CUstream stream; /* NULL until it is needed */
};

/* Pinned host buffers of a copy stream. */
struct kv_gpu_buffers {
	uint64_t bytes; /* each */
	unsigned n;
};

struct kv_gpu {
	/* fixed after get */
	const struct kv_driver *driver;
	int ordinal;
	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction scatter, gather;
	unsigned grid;	     /* thread blocks of a kernel */
	int urgent, patient; /* priorities of streams */
	bool maps_read_only; /* claims to register read-only memory */
	bool same_addresses; /* registered memory has the host's addresses */

	_Atomic int broken; /* -errno once the context is unusable */
	_Atomic uint64_t bytes_pinned;

	pthread_mutex_t lock;	       /* a leaf */
	pthread_cond_t put;	       /* a copy stream was put */
	struct kv_gpu_buffers buffers; /* lock: of the copy streams */
	unsigned n_copy_streams;       /* fixed after get, as the array */
	struct kv_copy_stream *copy_streams[KV_COPY_STREAMS];
	LIST_HEAD(, kv_event_wait) event_waits; /* lock: free ones */
};

/*
 * Get the GPU @ordinal; the first get prepares it.  The last put of any GPU
 * closes all of them, so registered memory outlives no context.  -ENODEV: no
 * driver, no such device, or no kernels for it; -ENOMEM, -EIO.
 */
int kv_gpu_get(int ordinal, struct kv_gpu **ret_gpu);
void kv_gpu_put(void *gpu);

/*
 * Every driver call is between enter and leave, which make @gpu's context this
 * thread's and do not disturb captures by other threads.  -EIO: broken.
 */
struct kv_gpu_entry {
	struct kv_gpu *gpu;
	int capture_mode;
};
int kv_gpu_enter(struct kv_gpu *gpu, struct kv_gpu_entry *entry);
/* The same, but also for a broken GPU: to clean up. */
int kv_gpu_enter_to_free(struct kv_gpu *gpu, struct kv_gpu_entry *entry);
void kv_gpu_leave(struct kv_gpu_entry *entry);

/* Allocate host memory that the GPU reads and writes in place.  -ENOMEM, -EIO. */
int kv_gpu_host_alloc(struct kv_gpu *gpu, uint64_t bytes, void **ret_host);
void kv_gpu_host_free(struct kv_gpu *gpu, void *host, uint64_t bytes);

/*
 * ---- event waits ----
 *
 * These are calls of kvfs_device.h, so handles are void pointers.  An event wait
 * (struct kv_event_wait) stands for the work that a stream had at some time: the caller's
 * stream when a transfer began, or one of ours behind a batch.
 */

/*
 * Record all work that @stream has, or that @event stands for.  Both may be
 * destroyed or reused afterwards.
 * -EINVAL: not handles of this GPU's context, or neither is given
 * -EBUSY: the stream is being captured, which goes on undisturbed, or the event
 *         was recorded in a capture
 * -ENOMEM, -EIO
 */
int kv_event_wait_new(void *gpu, void *stream, void *event,
		      void **ret_event_wait);
/* Return whether the work is done or has failed: later copies then fail as well. */
bool kv_event_wait_is_done(void *event_wait);
void kv_event_wait_free(void *event_wait);

/* Order @stream's later work behind it, on the device.  -EINVAL, -EBUSY, -EIO. */
int kv_event_wait_order(void *event_wait, void *stream);

#endif
