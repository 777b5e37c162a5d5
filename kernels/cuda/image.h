/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.h - the compiled kernels, as part of the plug-in: a fat binary for
 * cuModuleLoadData.  Zeroes in a build for the stand-in driver, which has the
 * kernels itself.
 */
#ifndef KV_KERNELS_CUDA_IMAGE_H
#define KV_KERNELS_CUDA_IMAGE_H

extern const unsigned char kv_cuda_image[];

#endif
