/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.c - the device "cuda": the calls of kvfs_device.h.
 *
 * OWNS      a pool's hold on its GPU.
 *
 * INVARIANTS
 *   (1) A pool's views lie in memory of its own GPU's primary context, or in
 *       memory that belongs to no context.
 *
 * LOCKING   none.
 */
#include <stdio.h>

#include "kernels/cuda/gpu.h"
#include "kernels/kvfs.h"

#define ANY (-1)

/* Parse "cuda" (any device, ANY) or "cuda:N".  -ENODEV: neither. */
static int parse_name(const char *name, int *ret_ordinal)
{
	char rest;

	*ret_ordinal = ANY;
	if (strcmp(name, "cuda") == 0 ||
	    (sscanf(name, "cuda:%4d%c", ret_ordinal, &rest) == 1 &&
	     name[strlen("cuda:")] >= '0' && name[strlen("cuda:")] <= '9'))
		return 0;
	return -ENODEV;
}

static bool is_memory_of(const struct kv_driver *driver, CUcontext context,
			 int ordinal, CUdeviceptr at)
{
	CUcontext owner = NULL;
	int found = ANY;
	unsigned type = 0;

	if (driver->pointer_attribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				      at) != CUDA_SUCCESS ||
	    type != CU_MEMORYTYPE_DEVICE ||
	    driver->pointer_attribute(&found,
				      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
				      at) != CUDA_SUCCESS ||
	    found != ordinal)
		return false;
	/* Mapped memory (cuMemMap) has no context. */
	return driver->pointer_attribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT,
					 at) != CUDA_SUCCESS ||
	       !owner || owner == context;
}

/* Find the GPU that has the memory of the first view, without making contexts
 * on other GPUs. */
static int find_ordinal(const kvfs_pool_desc *desc, int *ret_ordinal)
{
	const struct kv_driver *driver;
	CUcontext context, before;
	CUdevice device;
	unsigned flags;
	int n = 0, active, r = kv_driver_get(&driver);
	bool has = false;

	if (r < 0)
		return r;
	if (driver->device_count(&n) != CUDA_SUCCESS)
		return -EIO;
	for (int i = 0; i < n && !has; i++) {
		active = 0;
		if (driver->device_get(&device, i) != CUDA_SUCCESS ||
		    driver->context_state(device, &flags, &active) !=
			    CUDA_SUCCESS ||
		    !active ||
		    driver->context_retain(&context, device) != CUDA_SUCCESS)
			continue;
		if (driver->context_push(context) == CUDA_SUCCESS) {
			has = is_memory_of(driver, context, i,
					   (uintptr_t)desc->views[0].base);
			driver->context_pop(&before);
		}
		driver->context_release(device);
		*ret_ordinal = i;
	}
	return has ? 0 : -EINVAL;
}

static int cuda_open(const struct kvfs_pool_desc *desc, void **ret_pool)
{
	const kvfs_view *view;
	struct kv_gpu_entry entry;
	uint64_t base, last;
	struct kv_gpu *gpu = NULL;
	int ordinal, r = parse_name(desc->device, &ordinal);

	if (r == 0 && ordinal == ANY)
		r = find_ordinal(desc, &ordinal);
	if (r == 0)
		r = kv_gpu_get(ordinal, &gpu);
	if (r < 0)
		return r;
	r = kv_gpu_enter(gpu, &entry);
	if (r < 0) {
		kv_gpu_put(gpu);
		return r;
	}
	for (view = desc->views; view < desc->views + desc->n_views && r == 0;
	     view++) {
		base = (uintptr_t)view->base;
		last = base + (desc->pages - 1) * view->block_stride +
		       (view->count - 1) * view->segment_stride + view->bytes -
		       1;
		if (!is_memory_of(gpu->driver, gpu->context, ordinal, base) ||
		    !is_memory_of(gpu->driver, gpu->context, ordinal, last))
			r = -EINVAL;
	}
	kv_gpu_leave(&entry);
	if (r < 0)
		kv_gpu_put(gpu);
	else
		*ret_pool = gpu;
	return r;
}

static void cuda_info(void *pool, struct kvfs_pool_info *ret_info)
{
	static const char *const reasons[] = {
		[KV_PINNED_NONE] =
			"nothing of the arena has been registered yet",
		[KV_PINNED_READ_ONLY] = "the device registers read-only memory",
		[KV_PINNED_WRITABLE] =
			"the owner's memory, registered while it was writable",
		[KV_PINNED_REFUSED] =
			"the driver refused to register the arena",
		[KV_PINNED_NO_MEMORY] =
			"the driver lacks memory for it, and is asked again",
	};
	struct kv_gpu *gpu = pool;
	const enum kv_pinned_way way = kv_pinned_get_info(
		&ret_info->bytes_registered, &ret_info->bytes_refused);

	ret_info->path = way == KV_PINNED_READ_ONLY || way == KV_PINNED_WRITABLE
				 ? "registered arena, DMA"
				 : "pinned staging, DMA";
	ret_info->reason = reasons[way];
	if (way == KV_PINNED_REFUSED && !gpu->maps_read_only)
		ret_info->reason = "the device registers writable memory only: "
				   "mount with arena=rw, or run as another "
				   "user than root with a private space";
	if (atomic_load(&gpu->broken) != 0)
		ret_info->reason = "the GPU's context has failed";
	ret_info->bytes_pinned = atomic_load(&gpu->bytes_pinned);
	pthread_mutex_lock(&gpu->lock);
	ret_info->buffers = gpu->buffers.n;
	ret_info->buffer_bytes = gpu->buffers.bytes;
	pthread_mutex_unlock(&gpu->lock);
}

static int cuda_load(void *pool, const struct kvfs_batch *batch)
{
	return kv_transfer(pool, batch, true);
}

static int cuda_save(void *pool, const struct kvfs_batch *batch)
{
	return kv_transfer(pool, batch, false);
}

static int cuda_reserve(const char *name, uint64_t bytes, uint64_t max_bytes,
			void **ret_memory, void **ret_base)
{
	struct kv_gpu_memory *memory;
	struct kv_gpu *gpu;
	int ordinal, r = parse_name(name, &ordinal);

	if (r == 0)
		r = kv_gpu_get(ordinal == ANY ? 0 : ordinal, &gpu);
	if (r < 0)
		return r;
	r = kv_gpu_memory_new(gpu, bytes, max_bytes, &memory, ret_base);
	if (r < 0)
		kv_gpu_put(gpu);
	else
		*ret_memory = memory;
	return r;
}

extern const struct kvfs_device kvfs_device_cuda;
const struct kvfs_device kvfs_device_cuda = {
	.version = KVFS_DEVICE_VERSION,
	.name = "cuda",
	.batch_bytes = KV_COPY_STREAM_STAGING,
	.open = cuda_open,
	.close = kv_gpu_put,
	.info = cuda_info,
	.staging = kv_copy_streams_set_buffers,
	.load = cuda_load,
	.save = cuda_save,
	.attach = kv_pinned_add,
	.detach = kv_pinned_remove,
	.needs_writable = kv_pinned_needs_writable,
	.event_wait = kv_event_wait_new,
	.event_wait_is_done = kv_event_wait_is_done,
	.event_wait_free = kv_event_wait_free,
	.order = kv_event_wait_order,
	.reserve = cuda_reserve,
	.grow = kv_gpu_memory_grow,
	.release = kv_gpu_memory_free,
	.default_stream = (void *)1, /* CU_STREAM_LEGACY */
};
