/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy_stream.h - what one copy thread needs to move a batch: a stream, memory
 * on the device to scatter from and gather in, and pinned host memory for what
 * is not registered.
 *
 * Made with all its memory when the GPU is first used, one for each copy thread
 * of a session, and kept until it is given up; batches of more threads wait for
 * one that is free.
 *
 * Between get and put: on one thread, which has entered the GPU.
 */
#ifndef KV_KERNELS_CUDA_COPY_STREAM_H
#define KV_KERNELS_CUDA_COPY_STREAM_H

#include "kernels/cuda/gpu.h"
#include "kernels/device/scatter.h"

/* On the device.  When it has little room left, half as much is tried, down to
 * the minimum. */
#define KV_COPY_STREAM_STAGING ((uint64_t)16 << 20)
#define KV_COPY_STREAM_STAGING_MIN ((uint64_t)1 << 20)
/* Host buffers of a copy stream, so many and so large if nobody says otherwise:
 * one is filled or emptied while the others travel. */
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
	CUevent over; /* what it was last given to has been done */
	bool busy;    /* over has been recorded */
	struct kv_copy_stream_item *items; /* of a save */
	size_t n_items;
};

/* A copy that may still grow before it is given to the stream. */
struct kv_copy_stream_copy {
	uint8_t *host;
	CUdeviceptr device;
	uint64_t bytes;
	uint64_t room; /* by how much it may grow */
};

struct kv_copy_stream {
	struct kv_gpu *gpu;
	bool busy;	     /* gpu->lock: somebody has it */
	bool loads;	     /* this batch's way */
	CUstream streams[2]; /* patient, urgent */
	CUstream stream;     /* of them, this batch's */
	CUevent end;
	CUdeviceptr staging;
	uint64_t staging_bytes;
	uint8_t *tables_host;
	CUdeviceptr tables;
	uint64_t tables_bytes;
	struct kv_copy_stream_buffer buffer[KV_COPY_STREAM_BUFFERS_MAX];
	struct kv_gpu_buffers buffers; /* how many are in use, how large */
	unsigned current;
	struct kv_copy_stream_copy copy;
};

/* A copy stream for a batch, that begins when @after (NULL: at once) is over.
 * Waits for one.  -EIO. */
int kv_copy_stream_get(struct kv_gpu *gpu, bool urgent, bool loads,
		       CUevent after, struct kv_copy_stream **ret_copy_stream);

/*
 * Wait for all that was given to the copy stream, and give it back.  @r: 0, or
 * why the batch has failed: then what was begun still ends, but nothing is
 * copied out of the host buffers.  Returns @r, or how the batch ended.
 */
int kv_copy_stream_put(struct kv_copy_stream *copy_stream, int r);

/* All of them, or as many as there is memory for.  -ENOMEM: none; -EIO. */
int kv_copy_streams_new(struct kv_gpu *gpu);
/* Launch each kernel once: the driver may load it only then, and wait for all
 * streams.  -EIO. */
int kv_copy_streams_warm_up(struct kv_gpu *gpu);
/* With every copy stream put. */
void kv_copy_streams_free(struct kv_gpu *gpu);

/* Host buffers are as many of as many bytes each from now on, as far as the
 * limits above allow; waits for the batches under way.  -ENOMEM, -EIO: copy
 * streams go on with what they have. */
int kv_copy_streams_set_buffers(struct kv_gpu *gpu, uint64_t bytes, unsigned n);

/* Host memory for @bytes that a kernel is to read, and its copy on the device,
 * copy stream->tables, until the copy stream is put.  Once a batch.  -ENOMEM,
 * -EIO. */
int kv_copy_stream_tables(struct kv_copy_stream *copy_stream, uint64_t bytes,
			  void **ret_tables);
int kv_copy_stream_upload(struct kv_copy_stream *copy_stream, uint64_t bytes);

/*
 * Copy, in order with what the copy stream was given before: between host
 * memory, attached or not, and the device.  @host stays as it is until the copy
 * stream is put.
 */
int kv_copy_stream_load(struct kv_copy_stream *copy_stream, CUdeviceptr dst,
			const void *host, uint64_t bytes);
int kv_copy_stream_save(struct kv_copy_stream *copy_stream, void *host,
			CUdeviceptr src, uint64_t bytes);

/* Give the stream what is still held back, in the hope of more beside it. */
int kv_copy_stream_flush(struct kv_copy_stream *copy_stream);

/* Scatter (in a load) or gather, in order with the copies. */
int kv_copy_stream_scatter(struct kv_copy_stream *copy_stream,
			   const struct kv_scatter_args *scatter);

#endif
