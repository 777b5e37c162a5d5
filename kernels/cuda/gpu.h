/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.h - a GPU in use: its context, its kernels, entering the context for
 * driver calls, and event waits. */
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

/* Stands for the work that a stream had at some time; see the calls below. */
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
	LIST_ENTRY(kv_gpu) others; /* guarded by opening (gpu.c) */
	/* fixed after get */
	const struct kv_driver *driver;
	int ordinal;
	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction scatter, gather;
	unsigned grid;	     /* thread blocks of a kernel launch */
	int urgent, patient; /* priorities of streams */
	bool maps_read_only; /* claims to register read-only memory */
	bool same_addresses; /* registered memory keeps its address */

	_Atomic int broken; /* -errno once the context is unusable */
	_Atomic uint64_t bytes_pinned;

	pthread_mutex_t lock;	       /* a leaf */
	pthread_cond_t put;	       /* a copy stream was put */
	struct kv_gpu_buffers buffers; /* guarded by lock */
	unsigned n_copy_streams;       /* fixed after get, as the array */
	struct kv_copy_stream *copy_streams[KV_COPY_STREAMS];
	/* guarded by lock; those that are not in use */
	LIST_HEAD(, kv_event_wait) event_waits;
};

/* Get the GPU @ordinal; the first call prepares the GPU.  The last kv_gpu_put
 * of any GPU closes all GPUs, so registered memory outlives no context.
 * -ENODEV: no driver, no such device, or no kernels for the device
 * -ENOMEM, -EIO */
int kv_gpu_get(int ordinal, struct kv_gpu **ret_gpu);
void kv_gpu_put(void *gpu);

/* Enter and leave @gpu's context around driver calls of this thread.  While
 * entered, the thread does not disturb stream captures of other threads.
 * -EIO: the context is unusable */
struct kv_gpu_entry {
	struct kv_gpu *gpu;
	int capture_mode;
};
int kv_gpu_enter(struct kv_gpu *gpu, struct kv_gpu_entry *entry);
/* Enter the context as kv_gpu_enter does, but also that of a broken GPU, to
 * free resources. */
int kv_gpu_enter_to_free(struct kv_gpu *gpu, struct kv_gpu_entry *entry);
void kv_gpu_leave(struct kv_gpu_entry *entry);

/* Allocate pinned host memory that the GPU can access in place.  -ENOMEM,
 * -EIO. */
int kv_gpu_host_alloc(struct kv_gpu *gpu, uint64_t bytes, void **ret_host);
void kv_gpu_host_free(struct kv_gpu *gpu, void *host, uint64_t bytes);

/*
 * ---- event waits ----
 *
 * The functions are members of struct kvfs_device, so handles are void
 * pointers.  An event wait stands for the work that a stream had at some time:
 * a caller's stream when a transfer began, or a copy stream after a batch.
 */

/*
 * Make an event wait for all work that @stream has, or that @event stands for.
 * The stream or event may be destroyed or reused afterwards.
 * -EINVAL: no handle of this GPU's context, or neither is given
 * -EBUSY: the stream is being captured, which continues undisturbed, or the
 *         event was recorded in a capture
 * -ENOMEM, -EIO
 */
int kv_event_wait_new(void *gpu, void *stream, void *event,
		      void **ret_event_wait);
/* Return whether the work is done or has failed.  After a failure later copies
 * fail as well. */
bool kv_event_wait_is_done(void *event_wait);
void kv_event_wait_free(void *event_wait);

/* Order later work of @stream behind the event wait, on the device.  -EINVAL,
 * -EBUSY, -EIO. */
int kv_event_wait_order(void *event_wait, void *stream);

#endif
