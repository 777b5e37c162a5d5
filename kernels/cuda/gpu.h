/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.h - a GPU in use: its context, its kernels, what threads of ours need to
 * make calls, and what its errors mean.
 */
#ifndef KV_KERNELS_CUDA_GPU_H
#define KV_KERNELS_CUDA_GPU_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "kernels/cuda/driver.h"
#include "common/kv.h"

struct kv_copy_stream;
struct kv_event_wait;

/* As many as a session has copy threads, at most. */
#define KV_COPY_STREAMS 4u

LIST_HEAD(kv_event_waits, kv_event_wait);

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
	bool maps_read_only; /* says it can register read-only memory */
	bool same_addresses; /* registered memory has the host's addresses */

	_Atomic int broken; /* -errno once the context is of no more use */
	_Atomic uint64_t bytes_pinned;

	pthread_mutex_t lock;	       /* a leaf */
	pthread_cond_t put;	       /* a copy stream was */
	struct kv_gpu_buffers buffers; /* lock: that copy streams have */
	unsigned n_copy_streams;       /* fixed after get, as are they */
	struct kv_copy_stream *copy_streams[KV_COPY_STREAMS];
	struct kv_event_waits event_waits; /* lock: nobody's */
};

/*
 * The GPU @ordinal, made ready with the first get and given up, all of them
 * together, with the last put: so registered memory outlives no context.
 * -ENODEV: no driver, no such device, or one that the kernels are not for;
 * -ENOMEM, -EIO.
 */
int kv_gpu_get(int ordinal, struct kv_gpu **ret_gpu);
void kv_gpu_put(struct kv_gpu *gpu);

/*
 * Around every use of the driver's calls: @gpu's context is this thread's, and
 * a capture by any other thread is not disturbed.  -EIO: broken.
 */
struct kv_gpu_entry {
	struct kv_gpu *gpu;
	int capture_mode;
};
int kv_gpu_enter(struct kv_gpu *gpu, struct kv_gpu_entry *entry);
/* Also if it is broken: to clean up. */
int kv_gpu_enter_to_free(struct kv_gpu *gpu, struct kv_gpu_entry *entry);
void kv_gpu_leave(struct kv_gpu_entry *entry);

/* Nothing that was given to the context will do any more. */
void kv_gpu_break(struct kv_gpu *gpu);

/* Memory that the GPU reads and writes in place.  -ENOMEM, -EIO. */
int kv_gpu_host_alloc(struct kv_gpu *gpu, uint64_t bytes, void **ret_host);
void kv_gpu_host_free(struct kv_gpu *gpu, void *host, uint64_t bytes);

#endif
