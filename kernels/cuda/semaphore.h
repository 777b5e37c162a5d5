/* SPDX-License-Identifier: Apache-2.0 */
/*
 * semaphore.h - holds the caller's streams up until a transfer is over.
 */
#ifndef KV_KERNELS_CUDA_SEMAPHORE_H
#define KV_KERNELS_CUDA_SEMAPHORE_H

#include "kernels/cuda/gpu.h"

struct kv_semaphore;

int kv_semaphore_new(struct kv_gpu *gpu,
		     struct kv_semaphore **ret_semaphore); /* -ENOMEM */
/*
 * Work given to @stream from now on waits until the semaphore is open: on the
 * device, or where that cannot wait for memory, in a function that the driver
 * calls on a thread of its own.  -EINVAL, -ENOMEM, -EIO.
 */
int kv_semaphore_wait(struct kv_semaphore *semaphore, CUstream stream);
/* Takes no time, and works on a GPU that is broken, too. */
void kv_semaphore_open(struct kv_semaphore *semaphore);
/* Free one that is open; streams that wait for it may not have noticed yet. */
void kv_semaphore_free(struct kv_semaphore *semaphore);

/* With every semaphore freed; the GPU is entered. */
void kv_semaphores_free(struct kv_gpu *gpu);

#endif
