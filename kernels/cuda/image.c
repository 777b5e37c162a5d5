/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.c - the compiled kernels, as part of the plug-in.
 *
 * OWNS      nothing: it is read-only data.
 *
 * LOCKING   none.
 */
#include "kernels/cuda/image.h"

#ifdef KV_CUDA_IMAGE
__asm__(".pushsection .rodata\n"
	".balign 64\n"
	".globl kv_cuda_image\n"
	".hidden kv_cuda_image\n"
	"kv_cuda_image:\n"
	".incbin \"" KV_CUDA_IMAGE "\"\n"
	".popsection\n");
#else
const unsigned char kv_cuda_image[64] = {0};
#endif
