/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h - memory of a GPU that the library allocates, at fixed addresses,
 * and host memory that is registered with the driver in the background. */
#ifndef KV_KERNELS_CUDA_MEMORY_H
#define KV_KERNELS_CUDA_MEMORY_H

#include "kernels/cuda/gpu.h"

struct kv_gpu_memory;

/*
 * Do the work of reserve, grow and release of kvfs_device.h.  After a success
 * the memory owns the caller's reference to @gpu.
 * -EOPNOTSUPP: the device cannot map its memory
 * -EINVAL: no bytes, or more than @max_bytes
 * -ENOMEM
 */
int kv_gpu_memory_new(struct kv_gpu *gpu, uint64_t bytes, uint64_t max_bytes,
		      struct kv_gpu_memory **ret_memory, void **ret_base);
int kv_gpu_memory_grow(void *memory, uint64_t bytes);
void kv_gpu_memory_free(void *memory);

/* ---- registered host memory ---- */

/* Bytes of a registration: few enough to end soon, and enough to make the cost
 * of a call negligible. */
#define KV_PINNED_CHUNK ((uint64_t)64 << 20)

/* How memory of the arena is registered. */
enum kv_pinned_way {
	KV_PINNED_NONE,	     /* not tried yet */
	KV_PINNED_READ_ONLY, /* as mapped */
	KV_PINNED_WRITABLE,  /* while it was mapped writable */
	KV_PINNED_REFUSED,   /* not at all */
};

struct kv_pinned_info {
	enum kv_pinned_way way;
	uint64_t bytes_registered, bytes_refused;
};

/* Start a thread that registers attached memory in @gpu's context.
 * kv_pinned_stop ends the thread and all registrations.  -EAGAIN, -ENOMEM. */
int kv_pinned_start(struct kv_gpu *gpu);
void kv_pinned_stop(void);

/* Do the work of attach, detach and needs_writable of kvfs_device.h. */
void kv_pinned_add(void *base, uint64_t bytes, bool writable);
void kv_pinned_remove(void *base);
bool kv_pinned_needs_writable(void);

/* Return how many of the @n bytes at @at lie in one registered chunk
 * (*@ret_direct), or else in memory that is not registered.  At least 1. */
uint64_t kv_pinned_look(const void *at, uint64_t n, bool *ret_direct);

/* Return whether all @n bytes at @at are registered, so that a kernel can
 * access them. */
bool kv_pinned_has(const void *at, uint64_t n);

void kv_pinned_get_info(struct kv_pinned_info *ret_info);

#endif
