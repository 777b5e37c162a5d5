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
constexpr int host_portable = CU_MEMHOSTALLOC_PORTABLE;
constexpr int host_mapped = CU_MEMHOSTALLOC_DEVICEMAP;
constexpr int register_portable = CU_MEMHOSTREGISTER_PORTABLE;
constexpr int register_read_only = CU_MEMHOSTREGISTER_READ_ONLY;
} // namespace ours

#include <cuda.h>

#define SAME(name) static_assert((int)ours::name == (int)::name, #name)
SAME(CUDA_SUCCESS);
SAME(CUDA_ERROR_INVALID_VALUE);
SAME(CUDA_ERROR_OUT_OF_MEMORY);
SAME(CUDA_ERROR_NOT_INITIALIZED);
SAME(CUDA_ERROR_DEINITIALIZED);
SAME(CUDA_ERROR_STUB_LIBRARY);
SAME(CUDA_ERROR_NO_DEVICE);
SAME(CUDA_ERROR_INVALID_DEVICE);
SAME(CUDA_ERROR_INVALID_CONTEXT);
SAME(CUDA_ERROR_INVALID_HANDLE);
SAME(CUDA_ERROR_NOT_READY);
SAME(CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME(CUDA_ERROR_LAUNCH_FAILED);
SAME(CUDA_ERROR_NOT_PERMITTED);
SAME(CUDA_ERROR_NOT_SUPPORTED);
SAME(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
SAME(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
SAME(CU_STREAM_CAPTURE_STATUS_NONE);
SAME(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
SAME(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
SAME(CU_POINTER_ATTRIBUTE_CONTEXT);
SAME(CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(CU_MEMORYTYPE_DEVICE);
SAME(CU_STREAM_NON_BLOCKING);
SAME(CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(CU_EVENT_BLOCKING_SYNC);
SAME(CU_EVENT_DISABLE_TIMING);
SAME(CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(CU_MEM_LOCATION_TYPE_DEVICE);
SAME(CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

static_assert(ours::host_portable == CU_MEMHOSTALLOC_PORTABLE, "portable");
static_assert(ours::host_mapped == CU_MEMHOSTALLOC_DEVICEMAP, "mapped");
static_assert(ours::register_portable == CU_MEMHOSTREGISTER_PORTABLE,
	      "register, portable");
static_assert(ours::register_read_only == CU_MEMHOSTREGISTER_READ_ONLY,
	      "register, read-only");

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
