/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - memory of a GPU that is the library's own, at stable addresses.
 *
 * OWNS      the reserved addresses and the parts mapped there, each allocated
 *           by itself, one a growth.
 *
 * INVARIANTS
 *   (1) Parts lie end to end from base on; the sum of their bytes is mapped.
 *   (2) A part that could not be had in full leaves nothing behind.
 *
 * LOCKING   none: growing and freeing are the caller's one thread's.
 */
#include "kernels/cuda/memory.h"

struct part {
	CUmemGenericAllocationHandle handle;
	uint64_t bytes;
};

struct kv_gpu_memory {
	struct kv_gpu *gpu;
	CUdeviceptr base; /* 0: nothing is reserved */
	uint64_t bytes, max_bytes;
	uint64_t unit; /* the driver's */
	struct part *parts;
	size_t n_parts;
};

static CUmemAllocationProp properties_of(const struct kv_gpu *gpu)
{
	return (CUmemAllocationProp){
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = {CU_MEM_LOCATION_TYPE_DEVICE, gpu->device},
	};
}

/* Allocate @part and map it at @at, for this GPU to read and write. */
static int map_part(struct kv_gpu *gpu, CUdeviceptr at, struct part *part)
{
	const struct kv_driver *driver = gpu->driver;
	const CUmemAllocationProp properties = properties_of(gpu);
	const CUmemAccessDesc access = {properties.location,
					CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
	int r;

	r = kv_driver_errno(
		driver->memory_new(&part->handle, part->bytes, &properties, 0));
	if (r < 0)
		return r;
	r = kv_driver_errno(
		driver->memory_map(at, part->bytes, 0, part->handle, 0));
	if (r == 0) {
		r = kv_driver_errno(
			driver->memory_access(at, part->bytes, &access, 1));
		if (r < 0)
			driver->memory_unmap(at, part->bytes);
	}
	if (r < 0)
		driver->memory_free(part->handle);
	return r;
}

/* By @bytes more. */
static int add_part(struct kv_gpu_memory *memory, uint64_t bytes)
{
	struct part *parts;
	int r;

	parts = reallocarray(memory->parts, memory->n_parts + 1,
			     sizeof(*parts));
	if (!parts)
		return -ENOMEM;
	memory->parts = parts;
	parts[memory->n_parts].bytes = bytes;
	r = map_part(memory->gpu, memory->base + memory->bytes,
		     &parts[memory->n_parts]);
	if (r < 0)
		return r;
	memory->n_parts++;
	memory->bytes += bytes;
	return 0;
}

static int reserve(struct kv_gpu_memory *memory, uint64_t bytes,
		   uint64_t max_bytes)
{
	const struct kv_driver *driver = memory->gpu->driver;
	const CUmemAllocationProp properties = properties_of(memory->gpu);
	size_t unit;
	int r;

	r = kv_driver_errno(driver->memory_granularity(
		&unit, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	if (r < 0)
		return r;
	memory->unit = unit;
	memory->max_bytes = kv_round_up(max_bytes, unit);
	r = kv_driver_errno(driver->address_reserve(
		&memory->base, memory->max_bytes, 0, 0, 0));
	if (r < 0) {
		memory->base = 0;
		return r;
	}
	return add_part(memory, kv_round_up(bytes, unit));
}

static bool can_map(const struct kv_gpu *gpu)
{
	int can = 0;

	return gpu->driver->device_attribute(
		       &can,
		       CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
		       gpu->device) == CUDA_SUCCESS &&
	       can;
}

/* The GPU is entered. */
static void give_up(struct kv_gpu_memory *memory)
{
	const struct kv_driver *driver = memory->gpu->driver;
	CUdeviceptr at = memory->base;

	for (size_t i = 0; i < memory->n_parts; i++) {
		driver->memory_unmap(at, memory->parts[i].bytes);
		driver->memory_free(memory->parts[i].handle);
		at += memory->parts[i].bytes;
	}
	if (memory->base != 0)
		driver->address_free(memory->base, memory->max_bytes);
	free(memory->parts);
	free(memory);
}

int kv_gpu_memory_new(struct kv_gpu *gpu, uint64_t bytes, uint64_t max_bytes,
		      struct kv_gpu_memory **ret_memory, void **ret_base)
{
	struct kv_gpu_entry entry;
	struct kv_gpu_memory *memory;
	int r;

	if (bytes == 0 || bytes > max_bytes || max_bytes > INT64_MAX)
		return -EINVAL;
	if (!can_map(gpu))
		return -EOPNOTSUPP;
	memory = calloc(1, sizeof(*memory));
	if (!memory)
		return -ENOMEM;
	memory->gpu = gpu;
	r = kv_gpu_enter(gpu, &entry);
	if (r < 0) {
		free(memory);
		return r;
	}
	r = reserve(memory, bytes, max_bytes);
	if (r < 0) {
		give_up(memory);
	} else {
		*ret_memory = memory;
		*ret_base = (void *)(uintptr_t)memory->base;
	}
	kv_gpu_leave(&entry);
	return r;
}

int kv_gpu_memory_grow(struct kv_gpu_memory *memory, uint64_t bytes)
{
	struct kv_gpu_entry entry;
	int r;

	if (bytes > memory->max_bytes)
		return -ENOMEM;
	if (bytes <= memory->bytes)
		return 0;
	r = kv_gpu_enter(memory->gpu, &entry);
	if (r < 0)
		return r;
	r = add_part(memory, kv_round_up(bytes - memory->bytes, memory->unit));
	kv_gpu_leave(&entry);
	return r;
}

void kv_gpu_memory_free(struct kv_gpu_memory *memory)
{
	struct kv_gpu *gpu = memory->gpu;
	struct kv_gpu_entry entry;

	if (kv_gpu_enter_to_free(gpu, &entry) == 0) {
		give_up(memory);
		kv_gpu_leave(&entry);
	}
	kv_gpu_put(gpu);
}
