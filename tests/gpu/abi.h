/* SPDX-License-Identifier: Apache-2.0 */
/* abi.h - the calls of the CUDA driver that the tests and the stand-in driver
 * know, with the driver's binary interface.  No CUDA header is needed; abi.cu
 * compares this file with CUDA's header where that is installed. */
#ifndef KV_TESTS_GPU_ABI_H
#define KV_TESTS_GPU_ABI_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef unsigned long long CUmemHandle;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef struct CUgraphNode_st *CUgraphNode;
typedef void CUhostFn(void *arg);

enum {
	CU_OK = 0,
	CU_INVALID_VALUE = 1,
	CU_OUT_OF_MEMORY = 2,
	CU_NOT_INITIALIZED = 3,
	CU_NO_DEVICE = 100,
	CU_INVALID_DEVICE = 101,
	CU_INVALID_IMAGE = 200,
	CU_INVALID_CONTEXT = 201,
	CU_NO_BINARY = 209,
	CU_UNSUPPORTED_PTX = 222,
	CU_INVALID_HANDLE = 400,
	CU_NOT_FOUND = 500,
	CU_NOT_READY = 600,
	CU_ILLEGAL_ADDRESS = 700,
	/* a launch needs more resources than the GPU has */
	CU_OUT_OF_RESOURCES = 701,
	CU_CONTEXT_IS_DESTROYED = 709,
	CU_ALREADY_REGISTERED = 712,
	CU_NOT_REGISTERED = 713,
	CU_NOT_PERMITTED = 800,
	CU_NOT_SUPPORTED = 801,
	CU_CAPTURE_UNSUPPORTED = 900,
	CU_CAPTURE_INVALIDATED = 901,
	CU_CAPTURE_UNMATCHED = 903,
	CU_CAPTURE_UNJOINED = 904,
	CU_CAPTURE_ISOLATION = 905,
	CU_CAPTURE_IMPLICIT = 906,
	CU_CAPTURED_EVENT = 907,
	CU_CAPTURE_WRONG_THREAD = 908,
};

enum { /* attributes that cuFuncGetAttribute returns */
       CU_FUNC_MAX_THREADS = 0,
       CU_FUNC_LOCAL_BYTES = 3,
       CU_FUNC_REGISTERS = 4,
};

enum { CU_CAPTURE_GLOBAL = 0, CU_CAPTURE_THREAD = 1, CU_CAPTURE_RELAXED = 2 };
enum { CU_CAPTURING_NONE = 0, CU_CAPTURING = 1, CU_CAPTURING_INVALID = 2 };

enum { /* numbers of device attributes */
       CU_MAX_BLOCK_DIM_X = 2,
       CU_WARP_SIZE = 10,
       CU_MULTIPROCESSORS = 16,
       CU_ASYNC_ENGINES = 40,
       CU_UNIFIED_ADDRESSING = 41,
       CU_CAPABILITY_MAJOR = 75,
       CU_CAPABILITY_MINOR = 76,
       /* attribute: registered memory has equal addresses on host and device */
       CU_SAME_ADDRESSES = 91,
       CU_STREAM_MEM_OPS_V1 = 92,
       CU_HOST_REGISTER = 99,
       CU_VIRTUAL_MEMORY = 102,
       CU_READ_ONLY_HOST_REGISTER = 113,
       CU_STREAM_WAIT_64 = 122,
       CU_STREAM_WAIT_NOR = 123,
};

enum { /* numbers of pointer attributes */
       CU_PTR_CONTEXT = 1,
       CU_PTR_MEMORY_TYPE = 2, /* type of the memory: 1 host, 2 device */
       CU_PTR_DEVICE_POINTER = 3,
       CU_PTR_HOST_POINTER = 4,
       CU_PTR_BUFFER_ID = 7,
       CU_PTR_IS_MANAGED = 8,
       CU_PTR_DEVICE_ORDINAL = 9,
       CU_PTR_RANGE_START = 11,
       CU_PTR_RANGE_SIZE = 12,
       CU_PTR_MAPPED = 13, /* 1: there is memory at the address */
};

enum {
	CU_REGISTER_PORTABLE = 1,
	CU_REGISTER_MAPPED = 2,
	CU_REGISTER_READ_ONLY = 8,
	CU_STREAM_NONBLOCKING = 1,
	CU_EVENT_BLOCKING = 1,
	CU_EVENT_NO_TIMING = 2,
};

#define CU_LEGACY ((CUstream)1)
#define CU_PER_THREAD ((CUstream)2)

typedef struct CUmemProp {
	int type;	  /* 1: pinned memory; no other type is known */
	int handle_types; /* 0: handles cannot be exported to other processes */
	struct {
		int type; /* 1: the location of the memory is a device */
		int id;
	} location;
	void *win32;
	struct {
		unsigned char compression, rdma;
		unsigned short usage;
		unsigned char reserved[4];
	} flags;
} CUmemProp;

typedef struct CUmemAccess {
	struct {
		int type;
		int id;
	} location;
	int flags; /* kind of access: 1 read, 3 read and write */
} CUmemAccess;

/* Attributes of a batch's copies.  The call of CUDA 12.8 has a parameter @fail,
 * that of 13.0 does not. */
typedef struct CUcopyAttributes {
	int order; /* 1: the sources are read in stream order */
	struct {
		int type;
		int id;
	} src, dst;
	unsigned flags;
} CUcopyAttributes;

CUresult cuInit(unsigned flags);
CUresult cuDriverGetVersion(int *version);
CUresult cuGetErrorName(CUresult error, const char **name);
CUresult cuGetProcAddress_v2(const char *name, void **fn, int version,
			     uint64_t flags, int *status);

CUresult cuDeviceGetCount(int *count);
CUresult cuDeviceGet(CUdevice *device, int ordinal);
CUresult cuDeviceGetName(char *name, int len, CUdevice device);
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags,
				    int *active);
CUresult cuThreadExchangeStreamCaptureMode(int *mode);
CUresult cuCtxSetCurrent(CUcontext ctx);
CUresult cuCtxPushCurrent_v2(CUcontext ctx);
CUresult cuCtxPopCurrent_v2(CUcontext *ctx);
CUresult cuCtxSynchronize(void);
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest);

CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr ptr);
CUresult cuMemHostAlloc(void **ptr, size_t bytes, unsigned flags);
CUresult cuMemFreeHost(void *ptr);
CUresult cuMemHostRegister_v2(void *ptr, size_t bytes, unsigned flags);
CUresult cuMemHostUnregister(void *ptr);
CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr ptr);

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t bytes, size_t align,
			     CUdeviceptr hint, unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr ptr, size_t bytes);
CUresult cuMemCreate(CUmemHandle *handle, size_t bytes, const CUmemProp *prop,
		     unsigned long long flags);
CUresult cuMemRelease(CUmemHandle handle);
CUresult cuMemMap(CUdeviceptr ptr, size_t bytes, size_t offset,
		  CUmemHandle handle, unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr ptr, size_t bytes);
CUresult cuMemSetAccess(CUdeviceptr ptr, size_t bytes,
			const CUmemAccess *access, size_t n);
CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemProp *prop,
				       int option);

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes);
CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes);
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes,
			      CUstream stream);
CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes,
			      CUstream stream);
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes,
			      CUstream stream);
CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes,
		       CUstream stream);
CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
			    size_t n, CUcopyAttributes *attributes,
			    size_t *first, size_t n_attributes, size_t *fail,
			    CUstream stream);
CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs,
			       size_t *sizes, size_t n,
			       CUcopyAttributes *attributes, size_t *first,
			       size_t n_attributes, CUstream stream);
CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n,
			 CUstream stream);
CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t n,
			  CUstream stream);

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags,
				    int priority);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuStreamQuery(CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags);
CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr at, uint32_t value,
				unsigned flags);
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn *fn, void *arg);

CUresult cuStreamGetCtx(CUstream stream, CUcontext *ctx);
CUresult cuStreamIsCapturing(CUstream stream, int *status);
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *n);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
				     unsigned long long flags);
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
CUresult cuGraphExecDestroy(CUgraphExec exec);
CUresult cuGraphDestroy(CUgraph graph);

CUresult cuEventCreate(CUevent *event, unsigned flags);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuEventQuery(CUevent event);
CUresult cuEventSynchronize(CUevent event);
CUresult cuEventElapsedTime(float *ms, CUevent begin, CUevent end);
CUresult cuEventDestroy_v2(CUevent event);

CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleUnload(CUmodule module);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module,
			     const char *name);
CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function);
CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y,
			unsigned grid_z, unsigned block_x, unsigned block_y,
			unsigned block_z, unsigned shared, CUstream stream,
			void **parameters, void **extra);

#endif
