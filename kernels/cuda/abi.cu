/* SPDX-License-Identifier: Apache-2.0 */
/*
 * abi.cu - fails to compile where driver.h differs from CUDA's own header.
 */
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/same.cuh"

namespace ours {
#include "kernels/cuda/driver.h"

/* CUDA's header has these names as macros, which ignore namespaces: read the
 * values of driver.h before. */
constexpr int host[] = {CU_MEMHOSTALLOC_PORTABLE, CU_MEMHOSTALLOC_DEVICEMAP};
constexpr int registered[] = {CU_MEMHOSTREGISTER_PORTABLE,
			      CU_MEMHOSTREGISTER_DEVICEMAP,
			      CU_MEMHOSTREGISTER_READ_ONLY};
} // namespace ours

#include <cuda.h>

#define SAME(name, value) static_assert((int)ours::name == (int)::name, #name);
KV_CUDA_NUMBERS(SAME)

static_assert(ours::host[0] == CU_MEMHOSTALLOC_PORTABLE &&
		      ours::host[1] == CU_MEMHOSTALLOC_DEVICEMAP &&
		      ours::registered[0] == CU_MEMHOSTREGISTER_PORTABLE &&
		      ours::registered[1] == CU_MEMHOSTREGISTER_DEVICEMAP &&
		      ours::registered[2] == CU_MEMHOSTREGISTER_READ_ONLY,
	      "flags of host memory");

#define SAME_SIZE(name) static_assert(sizeof(ours::name) == sizeof(::name), #name)
SAME_SIZE(CUresult);
SAME_SIZE(CUdevice);
SAME_SIZE(CUdeviceptr);
SAME_SIZE(CUmemGenericAllocationHandle);
SAME_SIZE(CUmemAllocationProp);
SAME_SIZE(CUmemAccessDesc);
static_assert(offsetof(ours::CUmemAllocationProp, location) ==
		      offsetof(::CUmemAllocationProp, location),
	      "location");
static_assert(offsetof(ours::CUmemAccessDesc, flags) ==
		      offsetof(::CUmemAccessDesc, flags),
	      "flags");

#define SAME_CALL(member, symbol, parameters)                                  \
	static_assert(same_call<decltype(ours::kv_driver::member),             \
				decltype(&::symbol)>::value,                   \
		      #symbol);
KV_CUDA_CALLS(SAME_CALL)
