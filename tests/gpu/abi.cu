/* SPDX-License-Identifier: Apache-2.0 */
/*
 * abi.cu - what abi.h says of the driver is what its own header says.
 *
 * Nothing here is linked; that it compiles is the test.
 */
#include <stddef.h>
#include <stdint.h>

namespace ours {
#include "tests/gpu/abi.h"
}
#undef CU_LEGACY
#undef CU_PER_THREAD
#include <cuda.h>
/* From now on the names are those that symbols have. */
#undef cuMemcpyBatchAsync
#undef cuStreamBeginCapture
#undef cuEventElapsedTime

#define SAME(mine, theirs) static_assert((int)ours::mine == (int)theirs, #theirs)
SAME(CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(CU_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME(CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(CU_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
SAME(CU_INVALID_IMAGE, CUDA_ERROR_INVALID_IMAGE);
SAME(CU_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME(CU_NO_BINARY, CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME(CU_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
SAME(CU_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME(CU_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(CU_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(CU_OUT_OF_RESOURCES, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
SAME(CU_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME(CU_NOT_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME(CU_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);
SAME(CU_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME(CU_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(CU_CAPTURE_INVALIDATED, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
SAME(CU_CAPTURE_UNMATCHED, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
SAME(CU_CAPTURE_UNJOINED, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
SAME(CU_CAPTURE_ISOLATION, CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
SAME(CU_CAPTURE_IMPLICIT, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
SAME(CU_CAPTURED_EVENT, CUDA_ERROR_CAPTURED_EVENT);
SAME(CU_CAPTURE_WRONG_THREAD, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
SAME(CU_FUNC_MAX_THREADS, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
SAME(CU_FUNC_LOCAL_BYTES, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
SAME(CU_FUNC_REGISTERS, CU_FUNC_ATTRIBUTE_NUM_REGS);
SAME(CU_CAPTURE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME(CU_CAPTURE_THREAD, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME(CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(CU_CAPTURING_NONE, CU_STREAM_CAPTURE_STATUS_NONE);
SAME(CU_CAPTURING, CU_STREAM_CAPTURE_STATUS_ACTIVE);
SAME(CU_CAPTURING_INVALID, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
SAME(CU_MULTIPROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(CU_ASYNC_ENGINES, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
SAME(CU_UNIFIED_ADDRESSING, CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
SAME(CU_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(CU_CAPABILITY_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME(CU_SAME_ADDRESSES,
     CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
SAME(CU_HOST_REGISTER, CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
SAME(CU_VIRTUAL_MEMORY,
     CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME(CU_READ_ONLY_HOST_REGISTER,
     CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED);
SAME(CU_PTR_CONTEXT, CU_POINTER_ATTRIBUTE_CONTEXT);
SAME(CU_PTR_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(CU_PTR_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(CU_REGISTER_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME(CU_REGISTER_MAPPED, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME(CU_REGISTER_READ_ONLY, CU_MEMHOSTREGISTER_READ_ONLY);
SAME(CU_STREAM_NONBLOCKING, CU_STREAM_NON_BLOCKING);
SAME(CU_EVENT_BLOCKING, CU_EVENT_BLOCKING_SYNC);
SAME(CU_EVENT_NO_TIMING, CU_EVENT_DISABLE_TIMING);

#if CUDA_VERSION >= 12080
static_assert(sizeof(ours::CUcopyAttributes) == sizeof(CUmemcpyAttributes),
	      "attributes of a copy");
static_assert(offsetof(ours::CUcopyAttributes, order) ==
		      offsetof(CUmemcpyAttributes, srcAccessOrder),
	      "order");
static_assert(offsetof(ours::CUcopyAttributes, dst) ==
		      offsetof(CUmemcpyAttributes, dstLocHint),
	      "dst");
static_assert(offsetof(ours::CUcopyAttributes, flags) ==
		      offsetof(CUmemcpyAttributes, flags),
	      "flags");
static_assert(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM == 1, "order");
#endif
static_assert(sizeof(ours::CUmemProp) == sizeof(CUmemAllocationProp), "prop");
static_assert(sizeof(ours::CUmemAccess) == sizeof(CUmemAccessDesc), "access");

/* Calls: as many parameters, each of the same size. */
template <typename A, typename B> struct same_call {
	static constexpr bool value = false;
};
template <typename R, typename... P, typename S, typename... Q>
struct same_call<R (*)(P...), S (*)(Q...)> {
	static constexpr bool value = [] {
		if (sizeof...(P) != sizeof...(Q) || sizeof(R) != sizeof(S))
			return false;
		constexpr size_t ours[] = {sizeof(R), sizeof(P)...};
		constexpr size_t theirs[] = {sizeof(S), sizeof(Q)...};
		for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
			if (i < sizeof(theirs) / sizeof(theirs[0]) &&
			    ours[i] != theirs[i])
				return false;
		return true;
	}();
};
#define SAME_CALL(call)                                                  \
	static_assert(same_call<decltype(&ours::call), decltype(&::call)>::value, \
		      #call);
SAME_CALL(cuInit)
SAME_CALL(cuDriverGetVersion)
SAME_CALL(cuGetErrorName)
SAME_CALL(cuGetProcAddress_v2)
SAME_CALL(cuDeviceGetCount)
SAME_CALL(cuDeviceGet)
SAME_CALL(cuDeviceGetName)
SAME_CALL(cuDeviceGetAttribute)
SAME_CALL(cuDevicePrimaryCtxRetain)
SAME_CALL(cuDevicePrimaryCtxRelease_v2)
SAME_CALL(cuCtxSetCurrent)
SAME_CALL(cuCtxSynchronize)
SAME_CALL(cuThreadExchangeStreamCaptureMode)
SAME_CALL(cuMemAlloc_v2)
SAME_CALL(cuMemFree_v2)
SAME_CALL(cuMemHostAlloc)
SAME_CALL(cuMemFreeHost)
SAME_CALL(cuMemHostRegister_v2)
SAME_CALL(cuMemHostUnregister)
SAME_CALL(cuMemcpyHtoD_v2)
SAME_CALL(cuMemcpyDtoH_v2)
SAME_CALL(cuMemcpyHtoDAsync_v2)
SAME_CALL(cuMemcpyDtoHAsync_v2)
SAME_CALL(cuMemcpyDtoDAsync_v2)
SAME_CALL(cuMemsetD8Async)
SAME_CALL(cuMemsetD32Async)
SAME_CALL(cuStreamCreateWithPriority)
SAME_CALL(cuStreamDestroy_v2)
SAME_CALL(cuStreamSynchronize)
SAME_CALL(cuStreamQuery)
SAME_CALL(cuStreamWaitEvent)
SAME_CALL(cuStreamWaitValue32_v2)
SAME_CALL(cuStreamGetCtx)
SAME_CALL(cuStreamIsCapturing)
SAME_CALL(cuStreamBeginCapture_v2)
SAME_CALL(cuStreamEndCapture)
SAME_CALL(cuGraphGetNodes)
SAME_CALL(cuGraphInstantiateWithFlags)
SAME_CALL(cuGraphLaunch)
SAME_CALL(cuGraphExecDestroy)
SAME_CALL(cuGraphDestroy)
SAME_CALL(cuLaunchHostFunc)
SAME_CALL(cuEventCreate)
SAME_CALL(cuEventRecord)
SAME_CALL(cuEventQuery)
SAME_CALL(cuEventSynchronize)
SAME_CALL(cuEventDestroy_v2)
SAME_CALL(cuModuleLoadData)
SAME_CALL(cuModuleUnload)
SAME_CALL(cuModuleGetFunction)
SAME_CALL(cuFuncGetAttribute)
SAME_CALL(cuLaunchKernel)

/* Calls that newer headers have by another name. */
#if CUDA_VERSION >= 13000
SAME_CALL(cuMemcpyBatchAsync_v2)
static_assert(same_call<decltype(&ours::cuEventElapsedTime),
			decltype(&::cuEventElapsedTime_v2)>::value,
	      "cuEventElapsedTime");
#else
SAME_CALL(cuEventElapsedTime)
#endif
