/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.h - the functions of the CUDA driver that kvfs uses, found at run
 * time.
 *
 * Types, numbers and names are those of the driver's binary interface, so that
 * no CUDA header is needed.  Where CUDA is installed, abi.cu compares this
 * header with CUDA's own.
 */
#ifndef KV_KERNELS_CUDA_DRIVER_H
#define KV_KERNELS_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;

/* X(name, value) for each number of CUDA's header that is not a macro there. */
#define KV_CUDA_NUMBERS(X)                                                 \
	X(CUDA_SUCCESS, 0)                                                 \
	X(CUDA_ERROR_INVALID_VALUE, 1)                                     \
	X(CUDA_ERROR_OUT_OF_MEMORY, 2)                                     \
	X(CUDA_ERROR_NOT_INITIALIZED, 3)                                   \
	X(CUDA_ERROR_STUB_LIBRARY, 34)                                     \
	X(CUDA_ERROR_DEVICE_UNAVAILABLE, 46)                               \
	X(CUDA_ERROR_NO_DEVICE, 100)                                       \
	X(CUDA_ERROR_INVALID_DEVICE, 101)                                  \
	X(CUDA_ERROR_INVALID_IMAGE, 200)                                   \
	X(CUDA_ERROR_INVALID_CONTEXT, 201)                                 \
	X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209)                               \
	X(CUDA_ERROR_INVALID_PTX, 218)                                     \
	X(CUDA_ERROR_JIT_COMPILATION_DISABLED, 223)                        \
	X(CUDA_ERROR_INVALID_HANDLE, 400)                                  \
	X(CUDA_ERROR_NOT_READY, 600)                                       \
	X(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709)                            \
	X(CUDA_ERROR_NOT_PERMITTED, 800)                                   \
	X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803)                          \
	X(CUDA_ERROR_MPS_CONNECTION_FAILED, 805)                           \
	X(CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED, 809)                     \
	X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)                      \
	X(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908)                     \
	X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16)                    \
	X(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 91) \
	X(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102)    \
	X(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 113)      \
	X(CU_POINTER_ATTRIBUTE_CONTEXT, 1)                                 \
	X(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 2)                             \
	X(CU_POINTER_ATTRIBUTE_BUFFER_ID, 7)                               \
	X(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9)                          \
	X(CU_POINTER_ATTRIBUTE_MAPPED, 13)                                 \
	X(CU_MEMORYTYPE_DEVICE, 2)                                         \
	X(CU_STREAM_NON_BLOCKING, 1)                                       \
	X(CU_STREAM_CAPTURE_MODE_RELAXED, 2)                               \
	X(CU_STREAM_CAPTURE_STATUS_NONE, 0)                                \
	X(CU_EVENT_BLOCKING_SYNC, 1)                                       \
	X(CU_EVENT_DISABLE_TIMING, 2)                                      \
	X(CU_MEM_ALLOCATION_TYPE_PINNED, 1)                                \
	X(CU_MEM_LOCATION_TYPE_DEVICE, 1)                                  \
	X(CU_MEM_ALLOC_GRANULARITY_MINIMUM, 0)                             \
	X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3)

#define KV_CUDA_NUMBER(name, value) name = value,
enum { KV_CUDA_NUMBERS(KV_CUDA_NUMBER) };
#undef KV_CUDA_NUMBER

enum { CU_MEMHOSTALLOC_PORTABLE = 1, CU_MEMHOSTALLOC_DEVICEMAP = 2 };
enum { CU_MEMHOSTREGISTER_PORTABLE = 1, CU_MEMHOSTREGISTER_DEVICEMAP = 2 };
enum { CU_MEMHOSTREGISTER_READ_ONLY = 8 };

typedef struct CUmemLocation {
	int type;
	int id;
} CUmemLocation;

typedef struct CUmemAllocationProp {
	int type;
	int requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType;
		unsigned char gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;

typedef struct CUmemAccessDesc {
	CUmemLocation location;
	int flags;
} CUmemAccessDesc;

/* X(member, symbol, parameters) for each function of the driver.  The version
 * in the symbol's name is the one with these parameters.  Drivers have all of
 * these symbols since CUDA 11.0 (R450), which added
 * cuDevicePrimaryCtxRelease_v2. */
#define KV_CUDA_CALLS(X)                                                       \
	X(init, cuInit, (unsigned flags))                                      \
	X(version, cuDriverGetVersion, (int *version))                         \
	X(device_count, cuDeviceGetCount, (int *count))                        \
	X(device_get, cuDeviceGet, (CUdevice * device, int ordinal))           \
	X(device_attribute, cuDeviceGetAttribute,                              \
	  (int *value, int attribute, CUdevice device))                        \
	X(context_state, cuDevicePrimaryCtxGetState,                           \
	  (CUdevice device, unsigned *flags, int *active))                     \
	X(context_retain, cuDevicePrimaryCtxRetain,                            \
	  (CUcontext * context, CUdevice device))                              \
	X(context_release, cuDevicePrimaryCtxRelease_v2, (CUdevice device))    \
	X(context_push, cuCtxPushCurrent_v2, (CUcontext context))              \
	X(context_pop, cuCtxPopCurrent_v2, (CUcontext * context))              \
	X(priority_range, cuCtxGetStreamPriorityRange,                         \
	  (int *least, int *greatest))                                         \
	X(exchange_capture_mode, cuThreadExchangeStreamCaptureMode,            \
	  (int *mode))                                                         \
	X(pointer_attribute, cuPointerGetAttribute,                            \
	  (void *data, int attribute, CUdeviceptr pointer))                    \
	X(module_load, cuModuleLoadData,                                       \
	  (CUmodule * module, const void *image))                              \
	X(module_unload, cuModuleUnload, (CUmodule module))                    \
	X(module_function, cuModuleGetFunction,                                \
	  (CUfunction * function, CUmodule module, const char *name))          \
	X(launch, cuLaunchKernel,                                              \
	  (CUfunction function, unsigned grid_x, unsigned grid_y,              \
	   unsigned grid_z, unsigned block_x, unsigned block_y,                \
	   unsigned block_z, unsigned shared_bytes, CUstream stream,           \
	   void **parameters, void **extra))                                   \
	X(stream_new, cuStreamCreateWithPriority,                              \
	  (CUstream * stream, unsigned flags, int priority))                   \
	X(stream_free, cuStreamDestroy_v2, (CUstream stream))                  \
	X(stream_sync, cuStreamSynchronize, (CUstream stream))                 \
	X(stream_capturing, cuStreamIsCapturing,                               \
	  (CUstream stream, int *status))                                      \
	X(stream_wait_event, cuStreamWaitEvent,                                \
	  (CUstream stream, CUevent event, unsigned flags))                    \
	X(event_new, cuEventCreate, (CUevent * event, unsigned flags))         \
	X(event_free, cuEventDestroy_v2, (CUevent event))                      \
	X(event_record, cuEventRecord, (CUevent event, CUstream stream))       \
	X(event_query, cuEventQuery, (CUevent event))                          \
	X(event_sync, cuEventSynchronize, (CUevent event))                     \
	X(mem_alloc, cuMemAlloc_v2, (CUdeviceptr * at, size_t bytes))          \
	X(mem_free, cuMemFree_v2, (CUdeviceptr at))                            \
	X(host_alloc, cuMemHostAlloc,                                          \
	  (void **at, size_t bytes, unsigned flags))                           \
	X(host_free, cuMemFreeHost, (void *at))                                \
	X(host_register, cuMemHostRegister_v2,                                 \
	  (void *at, size_t bytes, unsigned flags))                            \
	X(host_unregister, cuMemHostUnregister, (void *at))                    \
	X(copy_to_device, cuMemcpyHtoDAsync_v2,                                \
	  (CUdeviceptr dst, const void *src, size_t bytes, CUstream stream))   \
	X(copy_to_host, cuMemcpyDtoHAsync_v2,                                  \
	  (void *dst, CUdeviceptr src, size_t bytes, CUstream stream))         \
	X(address_reserve, cuMemAddressReserve,                                \
	  (CUdeviceptr * at, size_t bytes, size_t alignment, CUdeviceptr hint, \
	   unsigned long long flags))                                          \
	X(address_free, cuMemAddressFree, (CUdeviceptr at, size_t bytes))      \
	X(memory_new, cuMemCreate,                                             \
	  (CUmemGenericAllocationHandle * handle, size_t bytes,                \
	   const CUmemAllocationProp *properties, unsigned long long flags))   \
	X(memory_free, cuMemRelease, (CUmemGenericAllocationHandle handle))    \
	X(memory_map, cuMemMap,                                                \
	  (CUdeviceptr at, size_t bytes, size_t offset,                        \
	   CUmemGenericAllocationHandle handle, unsigned long long flags))     \
	X(memory_unmap, cuMemUnmap, (CUdeviceptr at, size_t bytes))            \
	X(memory_access, cuMemSetAccess,                                       \
	  (CUdeviceptr at, size_t bytes, const CUmemAccessDesc *descs,         \
	   size_t n))                                                          \
	X(memory_granularity, cuMemGetAllocationGranularity,                   \
	  (size_t * bytes, const CUmemAllocationProp *properties, int option))

struct kv_driver {
#define KV_CUDA_MEMBER(member, symbol, parameters) CUresult(*member) parameters;
	KV_CUDA_CALLS(KV_CUDA_MEMBER)
#undef KV_CUDA_MEMBER
};

/* Return the table of the driver's functions.  The first successful call loads
 * and initialises the driver, which then stays loaded.
 * -ENODEV: no driver that can be used, or no GPU; or the driver was loaded before
 *          this process was forked
 * -EBUSY: the MPS server does not answer.  -ENOMEM. */
int kv_driver_get(const struct kv_driver **ret_driver);

/* Translate a result of the driver: -ENOMEM, -ENODEV, -EINVAL (an invalid
 * handle), -EAGAIN (not ready), -EBUSY (a stream is being captured), else
 * -EIO. */
int kv_driver_errno(CUresult result);

#endif
