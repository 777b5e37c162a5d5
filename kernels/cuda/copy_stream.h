/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy_stream.h - copies of batches between host memory and pages.  A copy
 * stream has a CUDA stream, memory on the device to scatter from and gather in,
 * and pinned host buffers for memory that is not registered.
 *
 * The first use of a GPU makes a copy stream for each copy thread of a session.
 * Threads of further sessions wait until one is free.
 */
#ifndef KV_KERNELS_CUDA_COPY_STREAM_H
#define KV_KERNELS_CUDA_COPY_STREAM_H

#include "kernels/cuda/gpu.h"
#include "kernels/device/scatter.h"
#include "kernels/device/device.h"

/* Memory on the device for each copy stream; if there is not enough, the size
 * is halved, down to the minimum. */
#define KV_COPY_STREAM_STAGING ((uint64_t)16 << 20)
#define KV_COPY_STREAM_STAGING_MIN ((uint64_t)1 << 20)
/* Default number and size of a copy stream's host buffers.  One is filled or
 * emptied while the others are being copied. */
#define KV_COPY_STREAM_BUFFERS 2u
#define KV_COPY_STREAM_BUFFER ((uint64_t)8 << 20)
#define KV_COPY_STREAM_BUFFERS_MAX 8u
#define KV_COPY_STREAM_BUFFER_MIN ((uint64_t)64 << 10)
#define KV_COPY_STREAM_BUFFERED_MAX ((uint64_t)64 << 20) /* of a copy stream */

/* Make all copy streams, or as many as memory allows, and launch each kernel
 * once.
 * -ENOMEM: not even one copy stream could be made
 * -EIO */
int kv_copy_streams_new(struct kv_gpu *gpu);
/* Free the copy streams, of which no batch may use one. */
void kv_copy_streams_free(struct kv_gpu *gpu);

/* Replace the host buffers of each copy stream by @n buffers of @bytes, within
 * the limits above.  Waits for batches in flight.
 * -ENOMEM, -EIO: a copy stream kept its old buffers */
int kv_copy_streams_set_buffers(void *gpu, uint64_t bytes, unsigned n);

/* Do the work of load and save of kvfs_device.h.
 * -ENOMEM: no memory for tables
 * -EIO */
int kv_transfer(struct kv_gpu *gpu, const struct kvfs_batch *batch, bool loads);

#endif
