/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.h - a GPU in use: its context, its kernels, entering the context for
 * driver calls, event waits, memory, and copies. */
#ifndef KV_KERNELS_CUDA_GPU_H
#define KV_KERNELS_CUDA_GPU_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "kernels/cuda/driver.h"
#include "common/kv.h"
#include "kernels/device/device.h"

struct kv_copy_stream;

/* The most copy threads of a session. */
#define KV_COPY_STREAMS 4u

/* An event that stands for the work that a stream had at some time: a caller's
 * stream when a transfer began, or a copy stream after a batch. */
struct kv_event_wait {
	LIST_ENTRY(kv_event_wait) others;
	struct kv_gpu *gpu;
	CUevent event;
	CUstream stream; /* waits for a caller's event; NULL: no stream */
};

/* Pinned host buffers of a copy stream. */
struct kv_gpu_buffers {
	uint64_t bytes; /* each */
	unsigned n;
};

struct kv_gpu {
	LIST_ENTRY(kv_gpu) others; /* guarded by opening (gpu.c) */
	/* fixed after kv_gpu_get, up to same_addresses */
	const struct kv_driver *driver;
	int ordinal;
	CUdevice device;
	CUcontext context;
	CUmodule module;
	CUfunction scatter, gather;
	unsigned grid;	     /* thread blocks of a kernel launch */
	int urgent, patient; /* stream priorities: highest, lowest but one */
	bool maps_read_only; /* the device claims to register read-only memory */
	bool same_addresses; /* the GPU uses the host's addresses */

	_Atomic int broken; /* -errno once the context is unusable */
	/* the context was reset, or cannot be entered any more: its objects are
	 * gone */
	_Atomic bool lost;
	/* memory of the context (0: none yet), and the driver's id of the
	 * memory, which no later memory gets.  Fixed after kv_gpu_get. */
	CUdeviceptr witness;
	unsigned long long witness_id;
	_Atomic uint64_t bytes_pinned;

	pthread_mutex_t lock; /* a leaf */
	pthread_cond_t put;   /* signalled when a copy stream was put */
	struct kv_gpu_buffers buffers; /* guarded by lock */
	/* fixed after kv_gpu_get, as is the array copy_streams */
	unsigned n_copy_streams;
	struct kv_copy_stream *copy_streams[KV_COPY_STREAMS];
	/* guarded by lock; unused event waits, kept for reuse */
	LIST_HEAD(, kv_event_wait) event_waits;
};

/* Get the GPU @ordinal; the first call prepares the GPU.  The last kv_gpu_put
 * of any GPU closes all GPUs, so registered memory outlives no context.
 * -ENODEV: no driver, no such device, or no kernels for the device
 * -EBUSY: no context can be made now
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
/* Return whether there is memory at @at, and not only a reserved address. */
bool kv_gpu_has(const struct kv_gpu *gpu, CUdeviceptr at);
/* Enter the context as kv_gpu_enter does, but also if the GPU is broken, to
 * free resources. */
int kv_gpu_enter_to_free(struct kv_gpu *gpu, struct kv_gpu_entry *entry);
void kv_gpu_leave(struct kv_gpu_entry *entry);

/* ---- event waits; members of struct kvfs_device, so handles are void * ---- */

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

/* ---- memory of a GPU that the library allocates, at fixed addresses ---- */

struct kv_gpu_memory;

/*
 * Do the work of reserve, grow and release of kvfs_device.h.  After a success
 * the memory owns the caller's reference to @gpu.
 * -EOPNOTSUPP: the device cannot map its memory
 * -EINVAL: no bytes, or more than @max_bytes
 * -ENOMEM
 */
int kv_gpu_memory_new(struct kv_gpu *gpu, uint64_t bytes, uint64_t max_bytes,
		      struct kv_gpu_memory **ret_memory, void **ret_base);
int kv_gpu_memory_grow(void *memory, uint64_t bytes);
void kv_gpu_memory_free(void *memory);

/* ---- host memory that is registered with the driver in the background ---- */

/* Bytes of a registration, which launches of the engine may have to wait for: a
 * few milliseconds with pages of 4 KiB.  Enough to make the cost of a call
 * negligible. */
#define KV_PINNED_CHUNK ((uint64_t)16 << 20)

/* How memory of the arena is registered. */
enum kv_pinned_way {
	KV_PINNED_NONE,	     /* no registration was tried yet */
	KV_PINNED_READ_ONLY, /* registered as mapped read-only */
	KV_PINNED_WRITABLE, /* registered while the arena was mapped writable */
	KV_PINNED_REFUSED,  /* the driver registers no memory of the arena */
	KV_PINNED_NO_MEMORY, /* the driver had no memory to register any */
};

/* Start a thread that registers attached memory in @gpu's context.
 * kv_pinned_stop ends the thread and all registrations.  -EAGAIN, -ENOMEM. */
int kv_pinned_start(struct kv_gpu *gpu);
void kv_pinned_stop(void);

/* Do the work of attach, detach and needs_writable of kvfs_device.h. */
void kv_pinned_add(void *base, uint64_t bytes, bool writable);
void kv_pinned_remove(void *base);
bool kv_pinned_needs_writable(void);

/* Notice a reset of another GPU's context that has registered the memory for all
 * GPUs, before a batch of @gpu. */
void kv_pinned_check(const struct kv_gpu *gpu);

/* Return how many of the @n bytes at @at lie in one registered chunk
 * (*@ret_direct), or else in memory that is not registered.  At least 1. */
uint64_t kv_pinned_look(const void *at, uint64_t n, bool *ret_direct);

/* Return whether all @n bytes at @at are registered, so that a kernel can
 * access them. */
bool kv_pinned_has(const void *at, uint64_t n);

/* Return how memory of the arena is registered, and the bytes of all memory that
 * are registered or refused. */
enum kv_pinned_way kv_pinned_get_info(uint64_t *ret_registered,
				      uint64_t *ret_refused);

/*
 * ---- copies of batches between host memory and pages ----
 *
 * A copy stream has a CUDA stream, memory on the device to scatter from and gather
 * in, and pinned host buffers for memory that is not registered.  The first use of
 * a GPU makes a copy stream for each copy thread of a session.  Threads of further
 * sessions wait until one is free.
 */

/* Memory on the device for each copy stream; if there is not enough, the size
 * is halved, down to the minimum. */
#define KV_COPY_STREAM_STAGING ((uint64_t)16 << 20)
#define KV_COPY_STREAM_STAGING_MIN ((uint64_t)1 << 20)
/* Default number and size of a copy stream's host buffers.  The host fills or
 * empties one buffer while the device copies the others. */
#define KV_COPY_STREAM_BUFFERS 2u
#define KV_COPY_STREAM_BUFFER ((uint64_t)8 << 20)
#define KV_COPY_STREAM_BUFFERS_MAX 8u
#define KV_COPY_STREAM_BUFFER_MIN ((uint64_t)64 << 10)
#define KV_COPY_STREAM_BUFFERED_MAX ((uint64_t)64 << 20) /* per copy stream */

/* Make all copy streams, or as many as memory allows, and launch each kernel
 * once.
 * -ENOMEM: not even one copy stream could be made
 * -EIO */
int kv_copy_streams_new(struct kv_gpu *gpu);
/* Free the copy streams, of which no batch may use one. */
void kv_copy_streams_free(struct kv_gpu *gpu);

/* Replace the host buffers of each copy stream by @n buffers of @bytes, within
 * the limits above.  Waits for batches in flight.
 * -ENOMEM, -EIO: the old buffers stay */
int kv_copy_streams_set_buffers(void *gpu, uint64_t bytes, unsigned n);

/* Do the work of load and save of kvfs_device.h.
 * -ENOMEM: no memory for tables
 * -EIO */
int kv_transfer(struct kv_gpu *gpu, const struct kvfs_batch *batch, bool loads);

#endif
