/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.h - memory of a GPU that is the library's own, at stable addresses.
 */
#ifndef KV_KERNELS_CUDA_MEMORY_H
#define KV_KERNELS_CUDA_MEMORY_H

#include "kernels/cuda/gpu.h"

struct kv_gpu_memory;

/* kvfs_device.h's reserve, grow and release; @gpu is held until release.  Takes
 * over the caller's hold on success.  -EOPNOTSUPP: the device cannot map its
 * memory; -ENOMEM, -EINVAL: nothing asked for, or more than the room. */
int kv_gpu_memory_new(struct kv_gpu *gpu, uint64_t bytes, uint64_t max_bytes,
		      struct kv_gpu_memory **ret_memory, void **ret_base);
int kv_gpu_memory_grow(struct kv_gpu_memory *memory, uint64_t bytes);
void kv_gpu_memory_free(struct kv_gpu_memory *memory);

#endif
