/* SPDX-License-Identifier: Apache-2.0 */
/*
 * semaphore.h - holds the caller's streams up until a transfer is over.
 */
#ifndef KV_CUDA_GATE_H
#define KV_CUDA_GATE_H

#include "kernels/cuda/gpu.h"

struct kv_gate;

int kv_gate_new(struct kv_gpu *gpu, struct kv_gate **ret_gate); /* -ENOMEM */
/*
 * Work given to @stream from now on waits until the gate is open: on the
 * device, or where that cannot wait for memory, in a function that the driver
 * calls on a thread of its own.  -EINVAL, -ENOMEM, -EIO.
 */
int kv_gate_wait(struct kv_gate *gate, CUstream stream);
/* Takes no time, and works on a GPU that is broken, too. */
void kv_gate_open(struct kv_gate *gate);
/* It is open; streams that wait for it may not have noticed yet. */
void kv_gate_free(struct kv_gate *gate);

/* With every gate freed; the GPU is entered. */
void kv_gates_free(struct kv_gpu *gpu);

#endif
