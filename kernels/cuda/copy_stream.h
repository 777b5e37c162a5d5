/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy_stream.h - copies of batches between host memory and pages.  A copy stream
 * has a stream, memory on the device to scatter from and gather in, and pinned
 * host buffers for memory that is not registered.
 *
 * The first use of a GPU makes one copy stream with all its memory for each copy
 * thread of a session; more threads wait for a free one.
 *
 * Between get and put a copy stream is used by one thread, which has entered the
 * GPU.
 */
#ifndef KV_KERNELS_CUDA_COPY_STREAM_H
#define KV_KERNELS_CUDA_COPY_STREAM_H

#include "kernels/cuda/gpu.h"
#include "kernels/device/scatter.h"
#include "kernels/device/device.h"

/* Memory on the device; halved, down to the minimum, if there is not enough. */
#define KV_COPY_STREAM_STAGING ((uint64_t)16 << 20)
#define KV_COPY_STREAM_STAGING_MIN ((uint64_t)1 << 20)
/* Default host buffers of a copy stream: one is filled or emptied while the others
 * are copied. */
#define KV_COPY_STREAM_BUFFERS 2u
#define KV_COPY_STREAM_BUFFER ((uint64_t)8 << 20)
#define KV_COPY_STREAM_BUFFERS_MAX 8u
#define KV_COPY_STREAM_BUFFER_MIN ((uint64_t)64 << 10)
#define KV_COPY_STREAM_BUFFERED_MAX ((uint64_t)64 << 20) /* all together */

/* Make all copy streams, or as many as memory allows, and launch each kernel once.
 * -ENOMEM: no copy stream; -EIO. */
int kv_copy_streams_new(struct kv_gpu *gpu);
/* Free the copy streams, which were all put. */
void kv_copy_streams_free(struct kv_gpu *gpu);

/* Replace the host buffers by @n of @bytes each, within the limits above; waits
 * for batches in flight.  -ENOMEM, -EIO: the old buffers stay. */
int kv_copy_streams_set_buffers(void *gpu, uint64_t bytes, unsigned n);

/* load and save of kvfs_device.h.  -ENOMEM: no room for staging; -EIO. */
int kv_transfer(struct kv_gpu *gpu, const struct kvfs_batch *batch, bool loads);

#endif
