/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kernels.cu - the two kernels: staging memory to pages, and pages to staging.
 *
 * scatter.h has the arithmetic, which is tested on the host; here each thread
 * gets its share.
 */
#include "kernels/device/scatter.h"

extern "C" __global__ void __launch_bounds__(KV_SCATTER_THREADS)
	kv_scatter(const __grid_constant__ struct kv_scatter_args scatter)
{
	kv_scatter_run(&scatter, blockIdx.x * blockDim.x + threadIdx.x,
		       gridDim.x * blockDim.x, 1);
}

extern "C" __global__ void __launch_bounds__(KV_SCATTER_THREADS)
	kv_gather(const __grid_constant__ struct kv_scatter_args scatter)
{
	kv_scatter_run(&scatter, blockIdx.x * blockDim.x + threadIdx.x,
		       gridDim.x * blockDim.x, 0);
}
