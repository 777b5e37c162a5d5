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
/* Copies out of a host buffer that are waiting for it to arrive. */
#define KV_COPY_STREAM_ITEMS 1024u

struct kv_copy_stream_item {
	void *to;
	uint64_t from, bytes;
};

struct kv_copy_stream_buffer {
	uint8_t *host;
	uint64_t used;
	CUevent over; /* the last copy from or to the buffer */
	bool busy;    /* over has been recorded */
	struct kv_copy_stream_item *items; /* of a save */
	size_t n_items;
};

/* A copy that may still grow before it is submitted. */
struct kv_copy_stream_copy {
	uint8_t *host;
	CUdeviceptr device;
	uint64_t bytes;
	uint64_t room; /* by how much it may grow */
};

struct kv_copy_stream {
	struct kv_gpu *gpu;
	bool busy;	     /* gpu->lock: a batch uses it */
	bool loads;	     /* the batch is a load */
	CUstream streams[2]; /* patient, urgent */
	CUstream stream;     /* the one of this batch */
	CUevent end;
	CUdeviceptr staging;
	uint64_t staging_bytes;
	uint8_t *tables_host;
	CUdeviceptr tables;
	uint64_t tables_bytes;
	struct kv_copy_stream_buffer buffer[KV_COPY_STREAM_BUFFERS_MAX];
	struct kv_gpu_buffers buffers; /* number and size */
	unsigned current;
	struct kv_copy_stream_copy copy;
};

/* Get a copy stream, or wait for one; its work begins after @after (NULL: at once).
 * -EIO. */
int kv_copy_stream_get(struct kv_gpu *gpu, bool urgent, bool loads,
		       CUevent after, struct kv_copy_stream **ret_copy_stream);

/*
 * Wait for the copy stream's work, and put it back.  @r: 0, or the error of a
 * failed batch: then nothing more is copied out of the host buffers.  Returns
 * @r, or the result of the work.
 */
int kv_copy_stream_put(struct kv_copy_stream *copy_stream, int r);

/* Make all copy streams, or as many as memory allows.  -ENOMEM: none; -EIO. */
int kv_copy_streams_new(struct kv_gpu *gpu);
/* Launch each kernel once: the first launch may load the kernel and wait for all
 * streams.  -EIO. */
int kv_copy_streams_warm_up(struct kv_gpu *gpu);
/* Free the copy streams, which were all put. */
void kv_copy_streams_free(struct kv_gpu *gpu);

/* Replace the host buffers by @n of @bytes each, within the limits above; waits
 * for batches in flight.  -ENOMEM, -EIO: the old buffers stay. */
int kv_copy_streams_set_buffers(void *gpu, uint64_t bytes, unsigned n);

/* Return host memory for tables that a kernel reads; _upload copies them to
 * copy_stream->tables, valid until put.  Once a batch.  -ENOMEM, -EIO. */
int kv_copy_stream_tables(struct kv_copy_stream *copy_stream, uint64_t bytes,
			  void **ret_tables);
int kv_copy_stream_upload(struct kv_copy_stream *copy_stream, uint64_t bytes);

/*
 * Copy between host memory, registered or not, and the device, in order with
 * earlier work of the copy stream.  @host must stay unchanged until put.
 */
int kv_copy_stream_load(struct kv_copy_stream *copy_stream, CUdeviceptr dst,
			const void *host, uint64_t bytes);
int kv_copy_stream_save(struct kv_copy_stream *copy_stream, void *host,
			CUdeviceptr src, uint64_t bytes);

/* Submit a copy that is held back because it may grow. */
int kv_copy_stream_flush(struct kv_copy_stream *copy_stream);

/* Scatter (in a load) or gather, in order with the copies. */
int kv_copy_stream_scatter(struct kv_copy_stream *copy_stream,
			   const struct kv_scatter_args *scatter);

/* load and save of kvfs_device.h.  -ENOMEM: no room for staging; -EIO. */
int kv_transfer(struct kv_gpu *gpu, const struct kvfs_batch *batch, bool loads);

#endif
