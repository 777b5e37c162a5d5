/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strides.h - from the views of a pool's descriptor to the strides of a block.
 */
#ifndef KV_KERNELS_DEVICE_STRIDES_H
#define KV_KERNELS_DEVICE_STRIDES_H

#include "kernels/device/device.h"
#include "kernels/kvfs.h"
#include "common/layout.h"

/*
 * Check @desc against @layout and make the strides; caller frees
 * ret_strides->stride.  -EINVAL as kvfs_pool_register says, -ENOMEM.
 */
int kv_strides_new(const kvfs_pool_desc *desc, const struct kv_layout *layout,
		   struct kv_strides *ret_strides);

#endif
