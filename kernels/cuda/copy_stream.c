/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy_stream.c - copies of batches between host memory and pages.
 *
 * OWNS      the streams, events and memory of each copy stream.
 *
 * STATES    of a host buffer; the buffers take turns:
 *
 *              FREE -> FILLED   copy_all                (copies from or to it)
 *            FILLED -> BUSY     room_in_buffer, put     (over is recorded)
 *              BUSY -> FREE     empty                   (over was waited for)
 *
 * INVARIANTS
 *   (1) A buffer is written, by the host or the device, only while no earlier
 *       work of the stream uses the buffer.
 *   (2) A copy stream that is put back has no work in flight, unless the
 *       context is broken.
 *   (3) A submitted copy lies within one chunk of registered memory or one
 *       buffer.
 *   (4) The buffers of a free copy stream are empty, so they can be replaced.
 *   (5) A batch makes and frees no memory, for which the driver may wait for all
 *       streams, except tables of more than TABLES_MIN.
 *   (6) All work of a batch is on one stream, behind its event wait, and is over
 *       when kv_transfer returns, whatever the result.
 *
 * LOCKING   gpu->lock for the owner of a copy stream; the rest belongs to the
 *           owner's thread.
 */
#include "common/copy.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/plan.h"

/* Initial bytes of a copy stream's tables, which hold a batch's sections and
 * pages; few batches need more. */
#define TABLES_MIN ((uint64_t)256 << 10)
/* Most copies of a save that wait for their bytes to be in a host buffer. */
#define ITEMS 1024u

struct item {
	void *to;
	uint64_t from, bytes;
};

struct buffer {
	uint8_t *host;
	uint64_t used;
	CUevent over; /* recorded after the last copy from or to the buffer */
	bool busy;    /* the event `over` has been recorded */
	/* in a save: copies from the buffer to the blocks */
	struct item *items;
	size_t n_items;
};

/* A copy that may still grow before it is submitted. */
struct copy {
	uint8_t *host;
	CUdeviceptr device;
	uint64_t bytes;
	uint64_t room; /* bytes by which the copy may grow */
};

struct kv_copy_stream {
	struct kv_gpu *gpu;
	const struct kv_driver *driver; /* gpu->driver */
	bool busy;  /* guarded by gpu->lock; a batch uses the copy stream */
	bool loads; /* the batch is a load */
	CUstream streams[2]; /* streams of normal and urgent priority */
	CUstream stream;     /* the stream of this batch */
	CUevent end;
	CUdeviceptr staging;
	uint64_t staging_bytes;
	uint8_t *tables_host;
	CUdeviceptr tables;
	uint64_t tables_bytes;
	struct buffer buffer[KV_COPY_STREAM_BUFFERS_MAX];
	struct kv_gpu_buffers buffers; /* number and size of the buffers */
	unsigned current;
	struct copy copy;
};

/* ---- making and freeing copy streams ---- */

/* Allocate pinned host memory that the GPU uses in place.  -ENOMEM, -EIO. */
static int host_alloc(struct kv_gpu *gpu, uint64_t bytes, void **ret_host)
{
	int r = kv_driver_errno(gpu->driver->host_alloc(
		ret_host, bytes,
		CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));

	if (r == 0)
		atomic_fetch_add(&gpu->bytes_pinned, bytes);
	return r;
}

static void host_free(struct kv_gpu *gpu, void *host, uint64_t bytes)
{
	if (!host)
		return;
	gpu->driver->host_free(host);
	atomic_fetch_sub(&gpu->bytes_pinned, bytes);
}

static void buffers_free(struct kv_gpu *gpu, struct kv_gpu_buffers kind,
			 struct buffer *buffer)
{
	for (unsigned i = 0; i < kind.n; i++) {
		free(buffer[i].items);
		if (gpu->lost)
			continue;
		host_free(gpu, buffer[i].host, kind.bytes);
		if (buffer[i].over)
			gpu->driver->event_free(buffer[i].over);
	}
}

/* Make an event whose waiters sleep instead of polling.  The last copy of a
 * batch is then seen some microseconds later, while other copy streams keep the
 * bus busy. */
static int event_new(struct kv_gpu *gpu, CUevent *ret_event)
{
	return kv_driver_errno(gpu->driver->event_new(
		ret_event, CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING));
}

static int buffer_init(struct kv_gpu *gpu, uint64_t bytes,
		       struct buffer *buffer)
{
	void *host;
	int r = event_new(gpu, &buffer->over);

	if (r < 0) {
		buffer->over = NULL;
		return r;
	}
	buffer->items = calloc(ITEMS, sizeof(*buffer->items));
	if (!buffer->items)
		return -ENOMEM;
	r = host_alloc(gpu, bytes, &host);
	if (r == 0)
		buffer->host = host;
	return r;
}

/* Replace the host buffers.  On failure the old buffers stay. */
static int set_buffers(struct kv_copy_stream *copy_stream,
		       struct kv_gpu_buffers kind)
{
	struct buffer made[KV_COPY_STREAM_BUFFERS_MAX] = {0};
	struct kv_gpu *gpu = copy_stream->gpu;
	int r = 0;

	if (copy_stream->buffers.n == kind.n &&
	    copy_stream->buffers.bytes == kind.bytes)
		return 0;
	for (unsigned i = 0; i < kind.n && r == 0; i++)
		r = buffer_init(gpu, kind.bytes, &made[i]);
	if (r < 0) {
		buffers_free(gpu, kind, made);
		return r;
	}
	buffers_free(gpu, copy_stream->buffers, copy_stream->buffer);
	memcpy(copy_stream->buffer, made, sizeof(made));
	copy_stream->buffers = kind;
	copy_stream->current = 0;
	return 0;
}

static void tables_free(struct kv_copy_stream *copy_stream)
{
	host_free(copy_stream->gpu, copy_stream->tables_host,
		  copy_stream->tables_bytes);
	if (copy_stream->tables != 0)
		copy_stream->driver->mem_free(copy_stream->tables);
	copy_stream->tables_host = NULL;
	copy_stream->tables = 0;
	copy_stream->tables_bytes = 0;
}

static int make_tables(struct kv_copy_stream *copy_stream, uint64_t bytes)
{
	const struct kv_driver *driver = copy_stream->driver;
	void *host = NULL;
	int r;

	if (bytes <= copy_stream->tables_bytes)
		return 0;
	tables_free(copy_stream);
	bytes = kv_round_up(bytes, TABLES_MIN);
	r = host_alloc(copy_stream->gpu, bytes, &host);
	if (r < 0)
		return r;
	r = kv_driver_errno(driver->mem_alloc(&copy_stream->tables, bytes));
	if (r < 0) {
		copy_stream->tables = 0;
		host_free(copy_stream->gpu, host, bytes);
		return r;
	}
	copy_stream->tables_host = host;
	copy_stream->tables_bytes = bytes;
	return 0;
}

static void copy_stream_freep(struct kv_copy_stream **copy_streamp)
{
	struct kv_copy_stream *copy_stream = *copy_streamp;
	const struct kv_driver *driver;

	if (!copy_stream)
		return;
	driver = copy_stream->driver;
	buffers_free(copy_stream->gpu, copy_stream->buffers,
		     copy_stream->buffer);
	if (!copy_stream->gpu->lost) {
		tables_free(copy_stream);
		if (copy_stream->staging != 0)
			driver->mem_free(copy_stream->staging);
		if (copy_stream->end)
			driver->event_free(copy_stream->end);
		for (int i = 0; i < 2; i++)
			if (copy_stream->streams[i])
				driver->stream_free(copy_stream->streams[i]);
	}
	free(copy_stream);
}

static int copy_stream_new(struct kv_gpu *gpu,
			   struct kv_copy_stream **ret_copy_stream)
{
	_cleanup_(copy_stream_freep) struct kv_copy_stream *copy_stream =
		calloc(1, sizeof(*copy_stream));
	uint64_t bytes = KV_COPY_STREAM_STAGING;
	int r = 0;

	if (!copy_stream)
		return -ENOMEM;
	copy_stream->gpu = gpu;
	copy_stream->driver = gpu->driver;
	for (int urgent = 0; urgent < 2 && r == 0; urgent++) {
		r = kv_driver_errno(gpu->driver->stream_new(
			&copy_stream->streams[urgent], CU_STREAM_NON_BLOCKING,
			urgent ? gpu->urgent : gpu->patient));
		if (r < 0)
			copy_stream->streams[urgent] = NULL;
	}
	if (r == 0) {
		r = event_new(gpu, &copy_stream->end);
		if (r < 0)
			copy_stream->end = NULL;
	}
	if (r < 0)
		return r;
	do {
		r = kv_driver_errno(
			gpu->driver->mem_alloc(&copy_stream->staging, bytes));
		copy_stream->staging_bytes = bytes;
		bytes /= 2;
	} while (r == -ENOMEM && bytes >= KV_COPY_STREAM_STAGING_MIN);
	if (r < 0)
		copy_stream->staging = 0;
	if (r == 0)
		r = make_tables(copy_stream, TABLES_MIN);
	if (r == 0)
		r = set_buffers(copy_stream, gpu->buffers);
	if (r == 0)
		*ret_copy_stream = kv_steal(copy_stream);
	return r;
}

void kv_copy_streams_free(struct kv_gpu *gpu)
{
	while (gpu->n_copy_streams > 0)
		copy_stream_freep(&gpu->copy_streams[--gpu->n_copy_streams]);
}

/* ---- getting a copy stream, and putting it back ---- */

/* Take the copy stream @only, or any (NULL), as soon as it is free. */
static struct kv_copy_stream *take(struct kv_gpu *gpu,
				   struct kv_copy_stream *only)
{
	struct kv_copy_stream *free_one = NULL;

	pthread_mutex_lock(&gpu->lock);
	for (;;) {
		for (unsigned i = 0; i < gpu->n_copy_streams; i++)
			if (!gpu->copy_streams[i]->busy &&
			    (!only || only == gpu->copy_streams[i]))
				free_one = gpu->copy_streams[i];
		if (free_one)
			break;
		pthread_cond_wait(&gpu->put, &gpu->lock);
	}
	free_one->busy = true;
	pthread_mutex_unlock(&gpu->lock);
	return free_one;
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
	copy_stream->busy = false;
	pthread_cond_broadcast(&gpu->put);
	pthread_mutex_unlock(&gpu->lock);
}

/* Give the copy stream buffers of @kind, as soon as no batch uses it. */
static int replace_buffers(struct kv_copy_stream *copy_stream,
			   struct kv_gpu_buffers kind)
{
	int r;

	take(copy_stream->gpu, copy_stream);
	r = set_buffers(copy_stream, kind);
	give_back(copy_stream);
	return r;
}

int kv_copy_streams_set_buffers(void *pool, uint64_t bytes, unsigned n)
{
	struct kv_gpu *gpu = pool;
	struct kv_gpu_buffers kind = {0};
	struct kv_gpu_entry entry;
	unsigned i;
	int r;

	kind.n = KV_MIN(KV_MAX(n, 2u), KV_COPY_STREAM_BUFFERS_MAX);
	bytes = KV_MIN(bytes, KV_COPY_STREAM_BUFFERED_MAX / kind.n);
	bytes = KV_MAX(bytes, KV_COPY_STREAM_BUFFER_MIN);
	kind.bytes = bytes / 4096 * 4096;
	r = kv_gpu_enter(gpu, &entry);
	if (r < 0)
		return r;
	for (i = 0; i < gpu->n_copy_streams && r == 0; i++)
		r = replace_buffers(gpu->copy_streams[i], kind);
	pthread_mutex_lock(&gpu->lock);
	if (r == 0)
		gpu->buffers = kind;
	kind = gpu->buffers;
	pthread_mutex_unlock(&gpu->lock);
	while (r < 0 && i-- > 0)
		(void)replace_buffers(gpu->copy_streams[i], kind);
	kv_gpu_leave(&entry);
	return r;
}

/* ---- the host buffers ---- */

/* Wait for the last copy of @buffer.  In a save, then copy the bytes from the
 * buffer to the blocks. */
static int empty(struct kv_copy_stream *copy_stream, struct buffer *buffer)
{
	struct item *item;
	int r = 0;

	if (buffer->busy)
		r = kv_driver_errno(
			copy_stream->driver->event_sync(buffer->over));
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

static int flush(struct kv_copy_stream *copy_stream)
{
	struct copy copy = copy_stream->copy;
	const struct kv_driver *driver = copy_stream->driver;

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

/* Return a host buffer with room: submit a full buffer, and take the one that
 * was submitted first. */
static int room_in_buffer(struct kv_copy_stream *copy_stream,
			  struct buffer **ret_buffer)
{
	struct buffer *buffer = &copy_stream->buffer[copy_stream->current];
	int r = 0;

	if (buffer->used == copy_stream->buffers.bytes ||
	    buffer->n_items == ITEMS) {
		r = flush(copy_stream);
		if (r == 0)
			r = kv_driver_errno(copy_stream->driver->event_record(
				buffer->over, copy_stream->stream));
		if (r < 0)
			return r;
		buffer->busy = true;
		copy_stream->current =
			(copy_stream->current + 1) % copy_stream->buffers.n;
		buffer = &copy_stream->buffer[copy_stream->current];
		r = empty(copy_stream, buffer);
	}
	*ret_buffer = buffer;
	return r;
}

/* ---- copies ---- */

/* Add a copy.  @room: most bytes from @host on that the copy may grow to. */
static int add_copy(struct kv_copy_stream *copy_stream, uint8_t *host,
		    CUdeviceptr device, uint64_t bytes, uint64_t room)
{
	struct copy *copy = &copy_stream->copy;
	int r;

	if (copy->bytes > 0 && copy->host + copy->bytes == host &&
	    copy->device + copy->bytes == device && copy->room >= bytes) {
		copy->bytes += bytes;
		copy->room -= bytes;
		return 0;
	}
	r = flush(copy_stream);
	*copy = (struct copy){host, device, bytes, room - bytes};
	return r;
}

/* Copy between host memory, registered or not, and the device, in order with
 * earlier work of the copy stream: to the device in a load, else to @host.  The
 * bytes at @host must not change until the copy stream is put back. */
static int copy_all(struct kv_copy_stream *copy_stream, uint8_t *host,
		    CUdeviceptr device, uint64_t bytes)
{
	struct buffer *buffer;
	uint64_t n, room;
	bool direct;
	uint8_t *at;
	int r = 0;

	for (; bytes > 0 && r == 0; host += n, device += n, bytes -= n) {
		room = kv_pinned_look(host, UINT64_MAX, &direct);
		n = KV_MIN(bytes, room);
		if (direct) {
			r = add_copy(copy_stream, host, device, n, room);
			continue;
		}
		r = room_in_buffer(copy_stream, &buffer);
		if (r < 0)
			break;
		room = copy_stream->buffers.bytes - buffer->used;
		n = KV_MIN(n, room);
		at = buffer->host + buffer->used;
		if (copy_stream->loads)
			kv_copy_stream(at, host, n);
		else
			buffer->items[buffer->n_items++] =
				(struct item){host, buffer->used, n};
		buffer->used += n;
		r = add_copy(copy_stream, at, device, n, room);
	}
	return r;
}

/* ---- kernels ---- */

static int upload(struct kv_copy_stream *copy_stream, uint64_t bytes)
{
	return kv_driver_errno(copy_stream->driver->copy_to_device(
		copy_stream->tables, copy_stream->tables_host, bytes,
		copy_stream->stream));
}

/* Launch the scatter (load) or gather (save) kernel, in order with the
 * copies. */
static int run_kernel(struct kv_copy_stream *copy_stream,
		      struct kv_scatter_args args)
{
	struct kv_gpu *gpu = copy_stream->gpu;
	void *parameters[] = {&args};
	int r = flush(copy_stream);

	if (r < 0)
		return r;
	return kv_driver_errno(gpu->driver->launch(
		copy_stream->loads ? gpu->scatter : gpu->gather, gpu->grid, 1,
		1, KV_SCATTER_THREADS, 1, 1, 0, copy_stream->stream, parameters,
		NULL));
}

/* ---- the end ---- */

/* Wait for the copy stream's work, and put the copy stream back.  @r: 0, or the
 * error of a failed batch, whose bytes are not copied out of the host buffers
 * any more.  Return @r, or the result of the work. */
static int put(struct kv_copy_stream *copy_stream, int r)
{
	const struct kv_driver *driver = copy_stream->driver;
	unsigned n = copy_stream->buffers.n;

	if (r == 0)
		r = flush(copy_stream);
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
	/* A failed batch must not have a copy that still writes. */
	if (r < 0 && copy_stream->driver->stream_sync(copy_stream->stream) !=
			     CUDA_SUCCESS) {
		atomic_store(&copy_stream->gpu->broken, -EIO);
		r = -EIO;
	}
	give_back(copy_stream);
	return r == -EAGAIN || r == -EINVAL || r == -EBUSY ? -EIO : r;
}

/* Get a copy stream, waiting until one is free.  The batch's work begins after
 * @after (NULL: at once).  -EIO. */
static int get(struct kv_gpu *gpu, bool urgent, bool loads, CUevent after,
	       struct kv_copy_stream **ret_copy_stream)
{
	struct kv_copy_stream *copy_stream = take(gpu, NULL);
	int r = 0;

	copy_stream->loads = loads;
	copy_stream->stream = copy_stream->streams[urgent];
	if (after)
		r = kv_driver_errno(gpu->driver->stream_wait_event(
			copy_stream->stream, after, 0));
	if (r < 0)
		return put(copy_stream, r);
	*ret_copy_stream = copy_stream;
	return 0;
}

/* ---- batches ---- */

struct transfer {
	const struct kvfs_batch *batch;
	struct kv_copy_stream *copy_stream;
	struct kv_plan plan;
	uint64_t pages_at, blocks_at; /* offsets in the tables */
	uint8_t *tensors; /* tensors of the block that copy_run copies */
};

/* Launch each kernel once, for one unit of a skipped page: the first launch may
 * load the kernel, and wait for all streams. */
static int warm_up(struct kv_gpu *gpu)
{
	const struct kv_section section = {
		.bytes = 16, .count = 1, .length = 16};
	const int64_t page = -1;
	struct kv_scatter_args args = {
		.n_sections = 1,
		.pages_per_block = 1,
		.block_units = 1,
		.units = 1,
		.lanes = 1,
	};
	struct kv_copy_stream *copy_stream;
	int r = get(gpu, false, true, NULL, &copy_stream);

	if (r < 0)
		return r;
	memcpy(copy_stream->tables_host, &section, sizeof(section));
	memcpy(copy_stream->tables_host + sizeof(section), &page, sizeof(page));
	args.sections = (const void *)(uintptr_t)copy_stream->tables;
	args.pages = (const void *)(args.sections + 1);
	args.staging = copy_stream->staging;
	r = upload(copy_stream, sizeof(section) + sizeof(page));
	for (int loads = 0; loads < 2 && r == 0; loads++) {
		copy_stream->loads = loads;
		r = run_kernel(copy_stream, args);
	}
	return put(copy_stream, r);
}

int kv_copy_streams_new(struct kv_gpu *gpu)
{
	long online = sysconf(_SC_NPROCESSORS_ONLN);
	unsigned n = (unsigned)KV_MIN(KV_MAX(online, 1), KV_COPY_STREAMS);
	int r = 0;

	while (gpu->n_copy_streams < n && r == 0) {
		r = copy_stream_new(gpu,
				    &gpu->copy_streams[gpu->n_copy_streams]);
		gpu->n_copy_streams += r == 0;
	}
	if (gpu->n_copy_streams > 0 &&
	    gpu->driver->pointer_attribute(
		    &gpu->witness_id, CU_POINTER_ATTRIBUTE_BUFFER_ID,
		    gpu->copy_streams[0]->staging) == CUDA_SUCCESS)
		gpu->witness = gpu->copy_streams[0]->staging;
	/* Fewer copy streams than planned are slower, but enough. */
	if (r == 0 || (r == -ENOMEM && gpu->n_copy_streams > 0))
		r = warm_up(gpu);
	return r;
}

static bool is_skipped(const struct kvfs_batch *batch, size_t i)
{
	uint32_t n = batch->strides->pages_per_block;

	for (uint32_t p = 0; p < n; p++)
		if (batch->copies[i].pages[p] >= 0)
			return false;
	return true;
}

/* Upload the tables of the kernels: sections, then the pages of each block and,
 * if the kernel works in place, the address of each block. */
static int upload_tables(struct transfer *t)
{
	const struct kvfs_batch *batch = t->batch;
	size_t a_block = batch->strides->pages_per_block * sizeof(int64_t);
	uint64_t bytes;
	uint8_t *tables;
	int r;

	t->pages_at = t->plan.n_sections * sizeof(*t->plan.sections);
	t->blocks_at = t->pages_at + batch->n * a_block;
	bytes = t->blocks_at;
	if (t->plan.in_place)
		bytes += batch->n * sizeof(uint64_t);
	r = make_tables(t->copy_stream, bytes);
	if (r < 0)
		return r;
	tables = t->copy_stream->tables_host;
	memcpy(tables, t->plan.sections, t->pages_at);
	for (size_t i = 0; i < batch->n; i++) {
		uint64_t block = (uintptr_t)batch->copies[i].tensors;

		memcpy(tables + t->pages_at + i * a_block,
		       batch->copies[i].pages, a_block);
		if (t->plan.in_place)
			memcpy(tables + t->blocks_at + i * sizeof(block),
			       &block, sizeof(block));
	}
	return upload(t->copy_stream, bytes);
}

/* Copy the runs of blocks @first .. + @n between tensors and staging. */
static int copy_runs(struct transfer *t, const struct kv_pass *pass,
		     size_t first, size_t n)
{
	CUdeviceptr staging = t->copy_stream->staging;
	const struct kv_run *run, *runs = t->plan.runs + pass->run;
	uint8_t *tensors;
	int r = 0;

	for (size_t i = first; i < first + n; i++, staging += pass->stride) {
		tensors = t->batch->copies[i].tensors;
		if (is_skipped(t->batch, i))
			continue;
		for (run = runs; run < runs + pass->n_runs && r == 0; run++)
			r = copy_all(t->copy_stream, tensors + run->from,
				     staging + run->at, run->bytes);
	}
	return r;
}

/* Copy the part @pass of all blocks, as many blocks at a time as staging holds
 * or a kernel can number. */
static int do_pass(struct transfer *t, const struct kv_pass *pass)
{
	struct kv_copy_stream *copy_stream = t->copy_stream;
	const bool in_place = t->plan.in_place;
	const struct kv_section *sections =
		(const void *)(uintptr_t)copy_stream->tables;
	const int64_t *pages =
		(const void *)(uintptr_t)(copy_stream->tables + t->pages_at);
	const uint64_t *blocks =
		(const void *)(uintptr_t)(copy_stream->tables + t->blocks_at);
	struct kv_scatter_args args = {
		.sections = sections + pass->section,
		.staging = copy_stream->staging,
		.staging_stride = pass->stride,
		.n_sections = (uint32_t)pass->n_sections,
		.pages_per_block = t->batch->strides->pages_per_block,
		.block_units = pass->units,
		.lanes = t->plan.lanes,
	};
	size_t n, at_once = in_place
				    ? UINT32_MAX / pass->units
				    : copy_stream->staging_bytes / pass->stride;
	int r = 0;

	for (size_t i = 0; i < t->batch->n && r == 0; i += n) {
		n = KV_MIN(t->batch->n - i, at_once);
		args.pages = pages + i * args.pages_per_block;
		args.blocks = in_place ? blocks + i : NULL;
		args.units = (uint32_t)(pass->units * n);
		if (!in_place && copy_stream->loads)
			r = copy_runs(t, pass, i, n);
		if (r == 0)
			r = run_kernel(copy_stream, args);
		if (r == 0 && !in_place && !copy_stream->loads)
			r = copy_runs(t, pass, i, n);
	}
	return r;
}

static int copy_run(void *arg, uint64_t pool, uint64_t offset, uint64_t bytes)
{
	struct transfer *t = arg;

	return copy_all(t->copy_stream, t->tensors + offset, pool, bytes);
}

/* Return whether a kernel can access the requested bytes of all blocks in host
 * memory. */
static bool reaches_all(const struct transfer *t)
{
	const struct kvfs_batch *batch = t->batch;
	const struct kvfs_strides *strides = batch->strides;
	const struct kvfs_stride *last = &strides->stride[strides->n - 1];
	uint64_t from = 0, to = last->offset + last->bytes * last->count *
						       strides->pages_per_block;

	if (!t->copy_stream->gpu->same_addresses)
		return false;
	if (batch->n_ranges > 0) {
		from = batch->ranges[0].from;
		to = KV_MIN(to, batch->ranges[batch->n_ranges - 1].to);
	}
	for (size_t i = 0; i < batch->n; i++)
		if (!is_skipped(batch, i) &&
		    !kv_pinned_has(batch->copies[i].tensors + from, to - from))
			return false;
	return true;
}

static int make_plan(struct transfer *t, uint64_t staging)
{
	return kv_plan_init(&t->plan, t->batch->strides, t->batch->ranges,
			    t->batch->n_ranges, staging);
}

/* Submit all copies and kernels of the batch. */
static int submit(struct transfer *t)
{
	int r = make_plan(t, t->copy_stream->staging_bytes);

	if (r == 0 && kv_plan_is_short(&t->plan) && reaches_all(t)) {
		kv_plan_fini(&t->plan);
		r = make_plan(t, 0);
	}
	if (r == 0 && t->plan.n_passes > 0)
		r = upload_tables(t);
	for (size_t i = 0; i < t->plan.n_passes && r == 0; i++)
		r = do_pass(t, &t->plan.passes[i]);
	for (size_t i = 0; i < t->batch->n && r == 0; i++) {
		t->tensors = t->batch->copies[i].tensors;
		for (size_t d = 0; d < t->plan.n_direct && r == 0; d++)
			r = kv_plan_each_run(&t->plan.direct[d],
					     t->batch->copies[i].pages,
					     copy_run, t);
	}
	return r;
}

int kv_transfer(struct kv_gpu *gpu, const struct kvfs_batch *batch, bool loads)
{
	struct transfer t = {.batch = batch};
	bool urgent = loads ? batch->priority >= 0 : batch->priority > 0;
	const struct kv_event_wait *event_wait = batch->event_wait;
	struct kv_gpu_entry entry;
	void *end;
	int r;

	kv_pinned_check(gpu);
	r = kv_gpu_enter(gpu, &entry);
	if (r < 0)
		return r;
	/* An engine may have unmapped its pages, to sleep.  A copy from or to
	 * there would break the context for all of the process. */
	if (!kv_gpu_has(gpu, (uintptr_t)batch->strides->stride[0].base)) {
		kv_gpu_leave(&entry);
		return -EIO;
	}
	r = get(gpu, urgent, loads, event_wait ? event_wait->event : NULL,
		&t.copy_stream);
	if (r == 0) {
		r = submit(&t);
		if (r == 0)
			r = flush(t.copy_stream);
		/* Give libkvfs an event wait for the batch, to order streams
		 * behind.  Without one libkvfs can order streams only when the
		 * batch is over. */
		if (r == 0 && batch->submitted &&
		    kv_event_wait_new(gpu, t.copy_stream->stream, NULL, &end) ==
			    0)
			batch->submitted(batch, end);
		r = put(t.copy_stream, r);
	}
	kv_plan_fini(&t.plan);
	kv_gpu_leave(&entry);
	return r;
}
