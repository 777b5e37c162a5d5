/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy_stream.c - what one copy thread needs to move a batch.
 *
 * OWNS      the lane's stream, events and memory.
 *
 * STATES    of a host buffer; they take turns:
 *
 *              FREE -> FILLED   room_in_buffer, flush (copies from or to it)
 *            FILLED -> BUSY     turn, finish          (over is recorded)
 *              BUSY -> FREE     empty                 (over was waited for)
 *
 * INVARIANTS
 *   (1) A buffer is written, by us or by the device, only while nothing that
 *       was given to the stream before uses it for something else.
 *   (2) When a lane is given back nothing is under way on its stream, unless
 *       the context is broken: then nothing will ever be.
 *   (3) A copy that is given to the stream lies within one chunk of attached
 *       memory or one buffer.
 *   (4) A lane that nobody has keeps nothing in its buffers, so that they may
 *       be exchanged for others.
 *
 * LOCKING   gpu->lock for the list of free lanes, and for the buffers that they
 *           are to have; else its user's thread.
 */
#include "common/copy.h"
#include "kernels/cuda/pinned.h"
#include "kernels/cuda/copy_stream.h"

#define TABLES_MIN ((uint64_t)64 << 10)

static const struct kv_driver *driver_of(const struct kv_lane *lane)
{
	return lane->gpu->driver;
}

/* ---- making and freeing ---- */

static void free_buffers(struct kv_lane *lane)
{
	struct kv_lane_buffer *buffer = lane->buffer;

	for (; buffer < lane->buffer + lane->buffers.n; buffer++) {
		kv_gpu_host_free(lane->gpu, buffer->host, lane->buffers.bytes);
		if (buffer->over != NULL)
			driver_of(lane)->event_free(buffer->over);
		free(buffer->items);
		*buffer = (struct kv_lane_buffer){0};
	}
	lane->current = 0;
}

static void lane_free(struct kv_lane *lane)
{
	const struct kv_driver *driver;

	if (lane == NULL)
		return;
	driver = driver_of(lane);
	free_buffers(lane);
	kv_gpu_host_free(lane->gpu, lane->tables_host, lane->tables_bytes);
	if (lane->tables != 0)
		driver->mem_free(lane->tables);
	if (lane->staging != 0)
		driver->mem_free(lane->staging);
	if (lane->end != NULL)
		driver->event_free(lane->end);
	if (lane->stream != NULL)
		driver->stream_free(lane->stream);
	free(lane);
}

static void freep(struct kv_lane **lane)
{
	lane_free(*lane);
}

/* Who waits for it sleeps: the last copy of a batch ends some microseconds
 * later for that, in which the other lanes' copies keep the bus busy. */
static int event_new(struct kv_gpu *gpu, CUevent *ret_event)
{
	return kv_driver_errno(gpu->driver->event_new(
		ret_event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING));
}

static int lane_new(struct kv_gpu *gpu, bool urgent, struct kv_lane **ret_lane)
{
	_cleanup_(freep) struct kv_lane *lane = calloc(1, sizeof(*lane));
	int r;

	if (lane == NULL)
		return -ENOMEM;
	lane->gpu = gpu;
	lane->urgent = urgent;
	r = kv_driver_errno(
		gpu->driver->stream_new(&lane->stream, CU_STREAM_NON_BLOCKING,
					urgent ? gpu->urgent : gpu->patient));
	if (r == 0)
		r = event_new(gpu, &lane->end);
	if (r < 0)
		return r;
	*ret_lane = kv_steal(lane);
	return 0;
}

void kv_lanes_free(struct kv_gpu *gpu)
{
	struct kv_lane *lane;
	int urgent;

	for (urgent = 0; urgent < 2; urgent++)
		while ((lane = LIST_FIRST(&gpu->lanes[urgent])) != NULL) {
			LIST_REMOVE(lane, others);
			lane_free(lane);
		}
}

/* A lane that nobody has; *@ret_buffers: the buffers that it is to have. */
static struct kv_lane *take_free(struct kv_gpu *gpu, bool urgent,
				 struct kv_gpu_buffers *ret_buffers)
{
	struct kv_lane *lane;

	pthread_mutex_lock(&gpu->lock);
	*ret_buffers = gpu->buffers;
	lane = LIST_FIRST(&gpu->lanes[urgent]);
	if (lane != NULL)
		LIST_REMOVE(lane, others);
	pthread_mutex_unlock(&gpu->lock);
	return lane;
}

/* Those it has may be of another kind. */
static void set_buffers(struct kv_lane *lane, struct kv_gpu_buffers buffers)
{
	if (lane->buffers.n == buffers.n &&
	    lane->buffers.bytes == buffers.bytes)
		return;
	free_buffers(lane);
	lane->buffers = buffers;
}

static void give_back(struct kv_lane *lane)
{
	struct kv_gpu *gpu = lane->gpu;
	unsigned i;

	for (i = 0; i < lane->buffers.n; i++) {
		lane->buffer[i].used = lane->buffer[i].n_items = 0;
		lane->buffer[i].busy = false;
	}
	lane->copy.bytes = 0;
	pthread_mutex_lock(&gpu->lock);
	LIST_INSERT_HEAD(&gpu->lanes[lane->urgent], lane, others);
	pthread_mutex_unlock(&gpu->lock);
}

int kv_lane_get(struct kv_gpu *gpu, bool urgent, bool loads, CUevent after,
		struct kv_lane **ret_lane)
{
	struct kv_gpu_buffers buffers;
	struct kv_lane *lane = take_free(gpu, urgent, &buffers);
	int r = 0;

	if (lane == NULL)
		r = lane_new(gpu, urgent, &lane);
	if (r < 0)
		return r;
	lane->loads = loads;
	set_buffers(lane, buffers);
	if (after != NULL)
		r = kv_driver_errno(
			gpu->driver->stream_wait_event(lane->stream, after, 0));
	if (r < 0)
		return kv_lane_put(lane, r);
	*ret_lane = lane;
	return 0;
}

void kv_lanes_set_buffers(struct kv_gpu *gpu, uint64_t bytes, unsigned n)
{
	struct kv_gpu_buffers buffers = {0};

	buffers.n = KV_MIN(KV_MAX(n, 2u), KV_LANE_BUFFERS_MAX);
	bytes = KV_MIN(bytes, KV_LANE_BUFFERED_MAX / buffers.n);
	bytes = KV_MAX(bytes, KV_LANE_BUFFER_MIN);
	buffers.bytes = bytes / 4096 * 4096;
	pthread_mutex_lock(&gpu->lock);
	gpu->buffers = buffers;
	pthread_mutex_unlock(&gpu->lock);
}

int kv_lane_need_staging(struct kv_lane *lane)
{
	uint64_t bytes;
	int r = 0;

	for (bytes = KV_LANE_STAGING;
	     lane->staging == 0 && bytes >= KV_LANE_STAGING_MIN; bytes /= 2) {
		r = kv_driver_errno(
			driver_of(lane)->mem_alloc(&lane->staging, bytes));
		if (r < 0)
			lane->staging = 0;
		else
			lane->staging_bytes = bytes;
		if (r < 0 && r != -ENOMEM)
			break;
	}
	return lane->staging != 0 ? 0 : r;
}

/* ---- the host buffers ---- */

static int make_buffer(struct kv_lane *lane, struct kv_lane_buffer *buffer)
{
	void *host;
	int r = 0;

	if (buffer->over == NULL)
		r = event_new(lane->gpu, &buffer->over);
	if (r == 0 && buffer->items == NULL) {
		buffer->items = calloc(KV_LANE_ITEMS, sizeof(*buffer->items));
		r = buffer->items == NULL ? -ENOMEM : 0;
	}
	if (r == 0 && buffer->host == NULL) {
		r = kv_gpu_host_alloc(lane->gpu, lane->buffers.bytes, &host);
		buffer->host = r < 0 ? NULL : host;
	}
	return r;
}

/* Wait until what @buffer was given to is done, and take its bytes out. */
static int empty(struct kv_lane *lane, struct kv_lane_buffer *buffer)
{
	struct kv_lane_item *item;
	int r = 0;

	if (buffer->busy)
		r = kv_driver_errno(driver_of(lane)->event_sync(buffer->over));
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

/* Give the copy that has been growing to the stream. */
static int flush(struct kv_lane *lane)
{
	struct kv_lane_copy copy = lane->copy;
	const struct kv_driver *driver = driver_of(lane);

	if (copy.bytes == 0)
		return 0;
	lane->copy.bytes = 0;
	return kv_driver_errno(
		lane->loads ? driver->copy_to_device(copy.device, copy.host,
						     copy.bytes, lane->stream)
			    : driver->copy_to_host(copy.host, copy.device,
						   copy.bytes, lane->stream));
}

/* Hand the current buffer over to the stream and go on with the next one, the
 * one that was handed over first. */
static int turn(struct kv_lane *lane)
{
	struct kv_lane_buffer *buffer = &lane->buffer[lane->current];
	int r = flush(lane);

	if (r == 0)
		r = kv_driver_errno(driver_of(lane)->event_record(
			buffer->over, lane->stream));
	if (r < 0)
		return r;
	buffer->busy = true;
	lane->current = (lane->current + 1) % lane->buffers.n;
	buffer = &lane->buffer[lane->current];
	r = make_buffer(lane, buffer);
	return r < 0 ? r : empty(lane, buffer);
}

/* A buffer that has room, for as much as @bytes if it can be. */
static int room_in_buffer(struct kv_lane *lane, uint64_t *bytes,
			  struct kv_lane_buffer **ret_buffer)
{
	struct kv_lane_buffer *buffer = &lane->buffer[lane->current];
	int r = make_buffer(lane, buffer);

	if (r == 0 && (buffer->used == lane->buffers.bytes ||
		       buffer->n_items == KV_LANE_ITEMS))
		r = turn(lane);
	if (r < 0)
		return r;
	buffer = &lane->buffer[lane->current];
	*bytes = KV_MIN(*bytes, lane->buffers.bytes - buffer->used);
	*ret_buffer = buffer;
	return 0;
}

/* ---- copies ---- */

/* @room: bytes from @host on to which one copy may go. */
static int add_copy(struct kv_lane *lane, uint8_t *host, CUdeviceptr device,
		    uint64_t bytes, uint64_t room)
{
	struct kv_lane_copy *copy = &lane->copy;
	int r;

	if (copy->bytes > 0 && copy->host + copy->bytes == host &&
	    copy->device + copy->bytes == device && copy->room >= bytes) {
		copy->bytes += bytes;
		copy->room -= bytes;
		return 0;
	}
	r = flush(lane);
	*copy = (struct kv_lane_copy){host, device, bytes, room - bytes};
	return r;
}

static int load_staged(struct kv_lane *lane, CUdeviceptr dst, const void *host,
		       uint64_t *bytes)
{
	struct kv_lane_buffer *buffer;
	uint8_t *at;
	int r = room_in_buffer(lane, bytes, &buffer);

	if (r < 0)
		return r;
	at = buffer->host + buffer->used;
	kv_copy_stream(at, host, *bytes);
	r = add_copy(lane, at, dst, *bytes, lane->buffers.bytes - buffer->used);
	buffer->used += *bytes;
	return r;
}

static int save_staged(struct kv_lane *lane, void *host, CUdeviceptr src,
		       uint64_t *bytes)
{
	struct kv_lane_buffer *buffer;
	int r = room_in_buffer(lane, bytes, &buffer);

	if (r < 0)
		return r;
	buffer->items[buffer->n_items++] =
		(struct kv_lane_item){host, buffer->used, *bytes};
	r = add_copy(lane, buffer->host + buffer->used, src, *bytes,
		     lane->buffers.bytes - buffer->used);
	buffer->used += *bytes;
	return r;
}

/* As much of a copy as goes in one way. */
static int copy_some(struct kv_lane *lane, uint8_t *host, CUdeviceptr device,
		     uint64_t *bytes)
{
	bool direct;
	uint64_t alike = kv_pinned_look(host, UINT64_MAX, &direct);

	*bytes = KV_MIN(*bytes, alike);
	if (direct)
		return add_copy(lane, host, device, *bytes, alike);
	return lane->loads ? load_staged(lane, device, host, bytes)
			   : save_staged(lane, host, device, bytes);
}

static int copy_all(struct kv_lane *lane, uint8_t *host, CUdeviceptr device,
		    uint64_t bytes)
{
	uint64_t done, n;
	int r = 0;

	for (done = 0; done < bytes && r == 0; done += n) {
		n = bytes - done;
		r = copy_some(lane, host + done, device + done, &n);
	}
	return r;
}

int kv_lane_load(struct kv_lane *lane, CUdeviceptr dst, const void *host,
		 uint64_t bytes)
{
	assert(lane->loads);
	return copy_all(lane, (uint8_t *)(uintptr_t)host, dst, bytes);
}

int kv_lane_save(struct kv_lane *lane, void *host, CUdeviceptr src,
		 uint64_t bytes)
{
	assert(!lane->loads);
	return copy_all(lane, host, src, bytes);
}

/* ---- kernels ---- */

static int make_tables(struct kv_lane *lane, uint64_t bytes)
{
	const struct kv_driver *driver = driver_of(lane);
	void *host = NULL;
	int r;

	if (bytes <= lane->tables_bytes)
		return 0;
	kv_gpu_host_free(lane->gpu, lane->tables_host, lane->tables_bytes);
	if (lane->tables != 0)
		driver->mem_free(lane->tables);
	lane->tables_host = NULL;
	lane->tables = 0;
	lane->tables_bytes = 0;
	bytes = KV_MAX(kv_round_up(bytes, TABLES_MIN), TABLES_MIN);
	r = kv_gpu_host_alloc(lane->gpu, bytes, &host);
	if (r < 0)
		return r;
	r = kv_driver_errno(driver->mem_alloc(&lane->tables, bytes));
	if (r < 0) {
		lane->tables = 0;
		kv_gpu_host_free(lane->gpu, host, bytes);
		return r;
	}
	lane->tables_host = host;
	lane->tables_bytes = bytes;
	return 0;
}

int kv_lane_tables(struct kv_lane *lane, uint64_t bytes, void **ret_tables)
{
	int r = make_tables(lane, bytes);

	*ret_tables = lane->tables_host;
	return r;
}

int kv_lane_upload(struct kv_lane *lane, uint64_t bytes)
{
	return kv_driver_errno(driver_of(lane)->copy_to_device(
		lane->tables, lane->tables_host, bytes, lane->stream));
}

int kv_lane_spread(struct kv_lane *lane, const struct kv_spread *spread)
{
	struct kv_gpu *gpu = lane->gpu;
	struct kv_spread copy = *spread;
	void *parameters[] = {&copy};
	int r = flush(lane);

	if (r < 0)
		return r;
	return kv_driver_errno(gpu->driver->launch(
		lane->loads ? gpu->scatter : gpu->gather, gpu->grid, 1, 1,
		KV_SPREAD_THREADS, 1, 1, 0, lane->stream, parameters, NULL));
}

/* ---- the end ---- */

/* Wait for all of it, and take out what has come into the host buffers. */
static int finish(struct kv_lane *lane)
{
	const struct kv_driver *driver = driver_of(lane);
	unsigned i, n = lane->buffers.n;
	int r = flush(lane);

	if (r == 0)
		r = kv_driver_errno(
			driver->event_record(lane->end, lane->stream));
	for (i = 1; i < n && r == 0; i++)
		r = empty(lane, &lane->buffer[(lane->current + i) % n]);
	if (r == 0)
		r = kv_driver_errno(driver->event_sync(lane->end));
	if (r == 0)
		r = empty(lane, &lane->buffer[lane->current]);
	return r;
}

int kv_lane_put(struct kv_lane *lane, int r)
{
	if (r == 0)
		r = finish(lane);
	/* No copy may land after we have said that it failed. */
	if (r < 0 &&
	    driver_of(lane)->stream_sync(lane->stream) != CUDA_SUCCESS) {
		kv_gpu_break(lane->gpu);
		r = -EIO;
	}
	give_back(lane);
	return r == -EAGAIN || r == -EINVAL ? -EIO : r;
}
