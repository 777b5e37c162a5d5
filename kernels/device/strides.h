/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strides.h - from the views of a pool's descriptor to the pieces of a block.
 */
#ifndef KV_PIECES_H
#define KV_PIECES_H

#include "kernels/device/device.h"
#include "kernels/kvfs.h"
#include "common/layout.h"

/*
 * Check @desc against @layout and make the pieces; caller frees
 * ret_pieces->piece.  -EINVAL as kvfs_pool_register says, -ENOMEM.
 */
int kv_pieces_new(const kvfs_pool_desc *desc, const struct kv_layout *layout,
		  struct kv_pieces *ret_pieces);

#endif
