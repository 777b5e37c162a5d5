/* SPDX-License-Identifier: Apache-2.0 */
/*
 * transfer.h - a batch's way from host memory to pages and back.
 */
#ifndef KV_KERNELS_CUDA_TRANSFER_H
#define KV_KERNELS_CUDA_TRANSFER_H

#include "kernels/cuda/gpu.h"
#include "kernels/device/device.h"

/* kvfs_device.h's load and save.  -ENOMEM: no room for staging; -EIO. */
int kv_transfer(struct kv_gpu *gpu, const struct kvfs_batch *batch, bool loads);

#endif
