/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy_stream.c - what one copy thread needs to move a batch.
 *
 * OWNS      the copy stream's stream, events and memory.
 *
 * STATES    of a host buffer; they take turns:
 *
 *              FREE -> FILLED   room_in_buffer, kv_copy_stream_flush (copies from or to it)
 *            FILLED -> BUSY     turn, finish          (over is recorded)
 *              BUSY -> FREE     empty                 (over was waited for)
 *
 * INVARIANTS
 *   (1) A buffer is written, by us or by the device, only while nothing that
 *       was given to the stream before uses it for something else.
 *   (2) When a copy stream is given back nothing is under way on its stream,
 *       unless the context is broken: then nothing will ever be.
 *   (3) A copy that is given to the stream lies within one chunk of attached
 *       memory or one buffer.
 *   (4) A copy stream that nobody has keeps nothing in its buffers, so that
 *       they may be exchanged for others.
 *
 * LOCKING   gpu->lock for the list of free copy streams, and for the buffers
 *           that they are to have; else its user's thread.
 */
#include "common/copy.h"
#include "kernels/cuda/pinned.h"
#include "kernels/cuda/copy_stream.h"

#define TABLES_MIN ((uint64_t)64 << 10)

static const struct kv_driver *
driver_of(const struct kv_copy_stream *copy_stream)
{
	return copy_stream->gpu->driver;
}

/* ---- making and freeing ---- */

static void free_buffers(struct kv_copy_stream *copy_stream)
{
	struct kv_copy_stream_buffer *buffer = copy_stream->buffer;

	for (; buffer < copy_stream->buffer + copy_stream->buffers.n;
	     buffer++) {
		kv_gpu_host_free(copy_stream->gpu, buffer->host,
				 copy_stream->buffers.bytes);
		if (buffer->over)
			driver_of(copy_stream)->event_free(buffer->over);
		free(buffer->items);
		*buffer = (struct kv_copy_stream_buffer){0};
	}
	copy_stream->current = 0;
}

static void copy_stream_free(struct kv_copy_stream *copy_stream)
{
	const struct kv_driver *driver;

	if (!copy_stream)
		return;
	driver = driver_of(copy_stream);
	free_buffers(copy_stream);
	kv_gpu_host_free(copy_stream->gpu, copy_stream->tables_host,
			 copy_stream->tables_bytes);
	if (copy_stream->tables != 0)
		driver->mem_free(copy_stream->tables);
	if (copy_stream->staging != 0)
		driver->mem_free(copy_stream->staging);
	if (copy_stream->end)
		driver->event_free(copy_stream->end);
	if (copy_stream->stream)
		driver->stream_free(copy_stream->stream);
	free(copy_stream);
}

static void freep(struct kv_copy_stream **copy_stream)
{
	copy_stream_free(*copy_stream);
}

/* A waiting thread sleeps: the last copy of a batch ends some microseconds
 * later for that, in which the other copy streams' copies keep the bus busy. */
static int event_new(struct kv_gpu *gpu, CUevent *ret_event)
{
	return kv_driver_errno(gpu->driver->event_new(
		ret_event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING));
}

static int copy_stream_new(struct kv_gpu *gpu, bool urgent,
			   struct kv_copy_stream **ret_copy_stream)
{
	_cleanup_(freep) struct kv_copy_stream *copy_stream =
		calloc(1, sizeof(*copy_stream));
	int r;

	if (!copy_stream)
		return -ENOMEM;
	copy_stream->gpu = gpu;
	copy_stream->urgent = urgent;
	r = kv_driver_errno(gpu->driver->stream_new(
		&copy_stream->stream, CU_STREAM_NON_BLOCKING,
		urgent ? gpu->urgent : gpu->patient));
	if (r == 0)
		r = event_new(gpu, &copy_stream->end);
	if (r < 0)
		return r;
	*ret_copy_stream = kv_steal(copy_stream);
	return 0;
}

void kv_copy_streams_free(struct kv_gpu *gpu)
{
	struct kv_copy_stream *copy_stream;

	for (int urgent = 0; urgent < 2; urgent++)
		while ((copy_stream = LIST_FIRST(&gpu->copy_streams[urgent]))) {
			LIST_REMOVE(copy_stream, others);
			copy_stream_free(copy_stream);
		}
}

/* A copy stream that nobody has; *@ret_buffers: the buffers that it is to have.
 */
static struct kv_copy_stream *take_free(struct kv_gpu *gpu, bool urgent,
					struct kv_gpu_buffers *ret_buffers)
{
	struct kv_copy_stream *copy_stream;

	pthread_mutex_lock(&gpu->lock);
	*ret_buffers = gpu->buffers;
	copy_stream = LIST_FIRST(&gpu->copy_streams[urgent]);
	if (copy_stream)
		LIST_REMOVE(copy_stream, others);
	pthread_mutex_unlock(&gpu->lock);
	return copy_stream;
}

/* The buffers it has may be of another kind. */
static void set_buffers(struct kv_copy_stream *copy_stream,
			struct kv_gpu_buffers buffers)
{
	if (copy_stream->buffers.n == buffers.n &&
	    copy_stream->buffers.bytes == buffers.bytes)
		return;
	free_buffers(copy_stream);
	copy_stream->buffers = buffers;
}

static void give_back(struct kv_copy_stream *copy_stream)
{
	struct kv_gpu *gpu = copy_stream->gpu;

	for (unsigned i = 0; i < copy_stream->buffers.n; i++) {
		copy_stream->buffer[i].used = copy_stream->buffer[i].n_items =
			0;
		copy_stream->buffer[i].busy = false;
	}
	copy_stream->copy.bytes = 0;
	pthread_mutex_lock(&gpu->lock);
	LIST_INSERT_HEAD(&gpu->copy_streams[copy_stream->urgent], copy_stream,
			 others);
	pthread_mutex_unlock(&gpu->lock);
}

int kv_copy_stream_get(struct kv_gpu *gpu, bool urgent, bool loads,
		       CUevent after, struct kv_copy_stream **ret_copy_stream)
{
	struct kv_gpu_buffers buffers;
	struct kv_copy_stream *copy_stream = take_free(gpu, urgent, &buffers);
	int r = 0;

	if (!copy_stream)
		r = copy_stream_new(gpu, urgent, &copy_stream);
	if (r < 0)
		return r;
	copy_stream->loads = loads;
	set_buffers(copy_stream, buffers);
	if (after)
		r = kv_driver_errno(gpu->driver->stream_wait_event(
			copy_stream->stream, after, 0));
	if (r < 0)
		return kv_copy_stream_put(copy_stream, r);
	*ret_copy_stream = copy_stream;
	return 0;
}

void kv_copy_streams_set_buffers(struct kv_gpu *gpu, uint64_t bytes, unsigned n)
{
	struct kv_gpu_buffers buffers = {0};

	buffers.n = KV_MIN(KV_MAX(n, 2u), KV_COPY_STREAM_BUFFERS_MAX);
	bytes = KV_MIN(bytes, KV_COPY_STREAM_BUFFERED_MAX / buffers.n);
	bytes = KV_MAX(bytes, KV_COPY_STREAM_BUFFER_MIN);
	buffers.bytes = bytes / 4096 * 4096;
	pthread_mutex_lock(&gpu->lock);
	gpu->buffers = buffers;
	pthread_mutex_unlock(&gpu->lock);
}

int kv_copy_stream_need_staging(struct kv_copy_stream *copy_stream)
{
	int r = 0;

	for (uint64_t bytes = KV_COPY_STREAM_STAGING;
	     copy_stream->staging == 0 && bytes >= KV_COPY_STREAM_STAGING_MIN;
	     bytes /= 2) {
		r = kv_driver_errno(
			driver_of(copy_stream)
				->mem_alloc(&copy_stream->staging, bytes));
		if (r < 0)
			copy_stream->staging = 0;
		else
			copy_stream->staging_bytes = bytes;
		if (r < 0 && r != -ENOMEM)
			break;
	}
	return copy_stream->staging != 0 ? 0 : r;
}

/* ---- the host buffers ---- */

static int make_buffer(struct kv_copy_stream *copy_stream,
		       struct kv_copy_stream_buffer *buffer)
{
	void *host;
	int r = 0;

	if (!buffer->over)
		r = event_new(copy_stream->gpu, &buffer->over);
	if (r == 0 && !buffer->items) {
		buffer->items =
			calloc(KV_COPY_STREAM_ITEMS, sizeof(*buffer->items));
		r = buffer->items ? 0 : -ENOMEM;
	}
	if (r == 0 && !buffer->host) {
		r = kv_gpu_host_alloc(copy_stream->gpu,
				      copy_stream->buffers.bytes, &host);
		buffer->host = r < 0 ? NULL : host;
	}
	return r;
}

/* Wait until what @buffer was given to is done, and take its bytes out. */
static int empty(struct kv_copy_stream *copy_stream,
		 struct kv_copy_stream_buffer *buffer)
{
	struct kv_copy_stream_item *item;
	int r = 0;

	if (buffer->busy)
		r = kv_driver_errno(
			driver_of(copy_stream)->event_sync(buffer->over));
	if (r < 0)
		return r;
	buffer->busy = false;
	for (item = buffer->items; item < buffer->items + buffer->n_items;
	     item++)
		kv_copy_stream(item->to, buffer->host + item->from,
			       item->bytes);
	buffer->used = buffer->n_items = 0;
	return 0;
}

int kv_copy_stream_flush(struct kv_copy_stream *copy_stream)
{
	struct kv_copy_stream_copy copy = copy_stream->copy;
	const struct kv_driver *driver = driver_of(copy_stream);

	if (copy.bytes == 0)
		return 0;
	copy_stream->copy.bytes = 0;
	return kv_driver_errno(
		copy_stream->loads
			? driver->copy_to_device(copy.device, copy.host,
						 copy.bytes,
						 copy_stream->stream)
			: driver->copy_to_host(copy.host, copy.device,
					       copy.bytes,
					       copy_stream->stream));
}

/* Hand the current buffer over to the stream and go on with the next one, the
 * one that was handed over first. */
static int turn(struct kv_copy_stream *copy_stream)
{
	struct kv_copy_stream_buffer *buffer =
		&copy_stream->buffer[copy_stream->current];
	int r = kv_copy_stream_flush(copy_stream);

	if (r == 0)
		r = kv_driver_errno(
			driver_of(copy_stream)
				->event_record(buffer->over,
					       copy_stream->stream));
	if (r < 0)
		return r;
	buffer->busy = true;
	copy_stream->current =
		(copy_stream->current + 1) % copy_stream->buffers.n;
	buffer = &copy_stream->buffer[copy_stream->current];
	r = make_buffer(copy_stream, buffer);
	return r < 0 ? r : empty(copy_stream, buffer);
}

/* A buffer that has room, for as much as @bytes if it can be. */
static int room_in_buffer(struct kv_copy_stream *copy_stream, uint64_t *bytes,
			  struct kv_copy_stream_buffer **ret_buffer)
{
	struct kv_copy_stream_buffer *buffer =
		&copy_stream->buffer[copy_stream->current];
	int r = make_buffer(copy_stream, buffer);

	if (r == 0 && (buffer->used == copy_stream->buffers.bytes ||
		       buffer->n_items == KV_COPY_STREAM_ITEMS))
		r = turn(copy_stream);
	if (r < 0)
		return r;
	buffer = &copy_stream->buffer[copy_stream->current];
	*bytes = KV_MIN(*bytes, copy_stream->buffers.bytes - buffer->used);
	*ret_buffer = buffer;
	return 0;
}

/* ---- copies ---- */

/* @room: bytes from @host on to which one copy may go. */
static int add_copy(struct kv_copy_stream *copy_stream, uint8_t *host,
		    CUdeviceptr device, uint64_t bytes, uint64_t room)
{
	struct kv_copy_stream_copy *copy = &copy_stream->copy;
	int r;

	if (copy->bytes > 0 && copy->host + copy->bytes == host &&
	    copy->device + copy->bytes == device && copy->room >= bytes) {
		copy->bytes += bytes;
		copy->room -= bytes;
		return 0;
	}
	r = kv_copy_stream_flush(copy_stream);
	*copy = (struct kv_copy_stream_copy){host, device, bytes, room - bytes};
	return r;
}

static int load_staged(struct kv_copy_stream *copy_stream, CUdeviceptr dst,
		       const void *host, uint64_t *bytes)
{
	struct kv_copy_stream_buffer *buffer;
	uint8_t *at;
	int r = room_in_buffer(copy_stream, bytes, &buffer);

	if (r < 0)
		return r;
	at = buffer->host + buffer->used;
	kv_copy_stream(at, host, *bytes);
	r = add_copy(copy_stream, at, dst, *bytes,
		     copy_stream->buffers.bytes - buffer->used);
	buffer->used += *bytes;
	return r;
}

static int save_staged(struct kv_copy_stream *copy_stream, void *host,
		       CUdeviceptr src, uint64_t *bytes)
{
	struct kv_copy_stream_buffer *buffer;
	int r = room_in_buffer(copy_stream, bytes, &buffer);

	if (r < 0)
		return r;
	buffer->items[buffer->n_items++] =
		(struct kv_copy_stream_item){host, buffer->used, *bytes};
	r = add_copy(copy_stream, buffer->host + buffer->used, src, *bytes,
		     copy_stream->buffers.bytes - buffer->used);
	buffer->used += *bytes;
	return r;
}

/* As much of a copy as goes in one way. */
static int copy_some(struct kv_copy_stream *copy_stream, uint8_t *host,
		     CUdeviceptr device, uint64_t *bytes)
{
	bool direct;
	uint64_t alike = kv_pinned_look(host, UINT64_MAX, &direct);

	*bytes = KV_MIN(*bytes, alike);
	if (direct)
		return add_copy(copy_stream, host, device, *bytes, alike);
	return copy_stream->loads
		       ? load_staged(copy_stream, device, host, bytes)
		       : save_staged(copy_stream, host, device, bytes);
}

static int copy_all(struct kv_copy_stream *copy_stream, uint8_t *host,
		    CUdeviceptr device, uint64_t bytes)
{
	uint64_t n;
	int r = 0;

	for (uint64_t done = 0; done < bytes && r == 0; done += n) {
		n = bytes - done;
		r = copy_some(copy_stream, host + done, device + done, &n);
	}
	return r;
}

int kv_copy_stream_load(struct kv_copy_stream *copy_stream, CUdeviceptr dst,
			const void *host, uint64_t bytes)
{
	assert(copy_stream->loads);
	return copy_all(copy_stream, (uint8_t *)(uintptr_t)host, dst, bytes);
}

int kv_copy_stream_save(struct kv_copy_stream *copy_stream, void *host,
			CUdeviceptr src, uint64_t bytes)
{
	assert(!copy_stream->loads);
	return copy_all(copy_stream, host, src, bytes);
}

/* ---- kernels ---- */

static int make_tables(struct kv_copy_stream *copy_stream, uint64_t bytes)
{
	const struct kv_driver *driver = driver_of(copy_stream);
	void *host = NULL;
	int r;

	if (bytes <= copy_stream->tables_bytes)
		return 0;
	kv_gpu_host_free(copy_stream->gpu, copy_stream->tables_host,
			 copy_stream->tables_bytes);
	if (copy_stream->tables != 0)
		driver->mem_free(copy_stream->tables);
	copy_stream->tables_host = NULL;
	copy_stream->tables = 0;
	copy_stream->tables_bytes = 0;
	bytes = KV_MAX(kv_round_up(bytes, TABLES_MIN), TABLES_MIN);
	r = kv_gpu_host_alloc(copy_stream->gpu, bytes, &host);
	if (r < 0)
		return r;
	r = kv_driver_errno(driver->mem_alloc(&copy_stream->tables, bytes));
	if (r < 0) {
		copy_stream->tables = 0;
		kv_gpu_host_free(copy_stream->gpu, host, bytes);
		return r;
	}
	copy_stream->tables_host = host;
	copy_stream->tables_bytes = bytes;
	return 0;
}

int kv_copy_stream_tables(struct kv_copy_stream *copy_stream, uint64_t bytes,
			  void **ret_tables)
{
	int r = make_tables(copy_stream, bytes);

	*ret_tables = copy_stream->tables_host;
	return r;
}

int kv_copy_stream_upload(struct kv_copy_stream *copy_stream, uint64_t bytes)
{
	return kv_driver_errno(
		driver_of(copy_stream)
			->copy_to_device(copy_stream->tables,
					 copy_stream->tables_host, bytes,
					 copy_stream->stream));
}

int kv_copy_stream_scatter(struct kv_copy_stream *copy_stream,
			   const struct kv_scatter_args *scatter)
{
	struct kv_gpu *gpu = copy_stream->gpu;
	struct kv_scatter_args copy = *scatter;
	void *parameters[] = {&copy};
	int r = kv_copy_stream_flush(copy_stream);

	if (r < 0)
		return r;
	return kv_driver_errno(gpu->driver->launch(
		copy_stream->loads ? gpu->scatter : gpu->gather, gpu->grid, 1,
		1, KV_SCATTER_THREADS, 1, 1, 0, copy_stream->stream, parameters,
		NULL));
}

/* ---- the end ---- */

/* Wait for all of it, and take out what has come into the host buffers. */
static int finish(struct kv_copy_stream *copy_stream)
{
	const struct kv_driver *driver = driver_of(copy_stream);
	unsigned n = copy_stream->buffers.n;
	int r = kv_copy_stream_flush(copy_stream);

	if (r == 0)
		r = kv_driver_errno(driver->event_record(copy_stream->end,
							 copy_stream->stream));
	for (unsigned i = 1; i < n && r == 0; i++)
		r = empty(copy_stream,
			  &copy_stream->buffer[(copy_stream->current + i) % n]);
	if (r == 0)
		r = kv_driver_errno(driver->event_sync(copy_stream->end));
	if (r == 0)
		r = empty(copy_stream,
			  &copy_stream->buffer[copy_stream->current]);
	return r;
}

int kv_copy_stream_put(struct kv_copy_stream *copy_stream, int r)
{
	if (r == 0)
		r = finish(copy_stream);
	/* No copy may land after we have said that it failed. */
	if (r < 0 && driver_of(copy_stream)->stream_sync(copy_stream->stream) !=
			     CUDA_SUCCESS) {
		kv_gpu_break(copy_stream->gpu);
		r = -EIO;
	}
	give_back(copy_stream);
	return r == -EAGAIN || r == -EINVAL ? -EIO : r;
}
