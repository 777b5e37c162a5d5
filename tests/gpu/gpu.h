/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.h - a GPU for tests: the stand-in driver, or a real one if KVFS_GPU=1 is
 * set.
 *
 * A program that begins with gpu_begin() executes itself again with the
 * stand-in's folder first in the library search path, so that the plug-in
 * loads the stand-in.
 */
#ifndef KV_TESTS_GPU_GPU_H
#define KV_TESTS_GPU_GPU_H

#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "common/kv.h"
#include "tests/gpu/abi.h"
#include "tests/gpu/hooks.h"

#define GPU_CALLS(X)                         \
	X(cuInit)                            \
	X(cuGetProcAddress_v2)               \
	X(cuGetErrorName)                    \
	X(cuDeviceGetCount)                  \
	X(cuDeviceGet)                       \
	X(cuDeviceGetName)                   \
	X(cuDeviceGetAttribute)              \
	X(cuDevicePrimaryCtxRetain)          \
	X(cuDevicePrimaryCtxRelease_v2)      \
	X(cuDevicePrimaryCtxReset_v2)        \
	X(cuDriverGetVersion)                \
	X(cuCtxSetCurrent)                   \
	X(cuCtxSynchronize)                  \
	X(cuMemAlloc_v2)                     \
	X(cuMemFree_v2)                      \
	X(cuMemAddressReserve)               \
	X(cuMemAddressFree)                  \
	X(cuMemCreate)                       \
	X(cuMemRelease)                      \
	X(cuMemMap)                          \
	X(cuMemUnmap)                        \
	X(cuMemSetAccess)                    \
	X(cuMemHostAlloc)                    \
	X(cuMemFreeHost)                     \
	X(cuMemHostRegister_v2)              \
	X(cuMemHostUnregister)               \
	X(cuPointerGetAttribute)             \
	X(cuMemcpyHtoD_v2)                   \
	X(cuMemcpyDtoH_v2)                   \
	X(cuMemcpyHtoDAsync_v2)              \
	X(cuMemcpyDtoHAsync_v2)              \
	X(cuMemcpyDtoDAsync_v2)              \
	X(cuMemsetD8Async)                   \
	X(cuMemsetD32Async)                  \
	X(cuStreamCreateWithPriority)        \
	X(cuStreamDestroy_v2)                \
	X(cuStreamSynchronize)               \
	X(cuStreamQuery)                     \
	X(cuStreamWaitEvent)                 \
	X(cuStreamWaitValue32_v2)            \
	X(cuStreamGetCtx)                    \
	X(cuStreamIsCapturing)               \
	X(cuStreamBeginCapture_v2)           \
	X(cuStreamEndCapture)                \
	X(cuGraphGetNodes)                   \
	X(cuGraphInstantiateWithFlags)       \
	X(cuGraphLaunch)                     \
	X(cuGraphExecDestroy)                \
	X(cuGraphDestroy)                    \
	X(cuThreadExchangeStreamCaptureMode) \
	X(cuFuncGetAttribute)                \
	X(cuLaunchHostFunc)                  \
	X(cuEventCreate)                     \
	X(cuEventRecord)                     \
	X(cuEventQuery)                      \
	X(cuEventSynchronize)                \
	X(cuEventElapsedTime)                \
	X(cuEventDestroy_v2)                 \
	X(cuModuleLoadData)                  \
	X(cuModuleUnload)                    \
	X(cuModuleGetFunction)               \
	X(cuLaunchKernel)

struct gpu {
#define GPU_MEMBER(call) __typeof__(&call) call;
	GPU_CALLS(GPU_MEMBER)
#undef GPU_MEMBER
	/* calls of the stand-in that no driver has; NULL if the driver is
	 * real */
	__typeof__(&standin_set) set;
	__typeof__(&standin_hold) hold;
	__typeof__(&standin_pending) pending;
	__typeof__(&standin_alive) alive;
	__typeof__(&standin_bugs) bugs;
	__typeof__(&standin_forgive) forgive;
	__typeof__(&standin_calls) calls;
	__typeof__(&standin_copied) copied;
	/* answers the plug-in, which may have the library of denied.c in front
	 * of the driver */
	__typeof__(&cuDeviceGetAttribute) plugins_attribute;
	void *library;
	CUcontext ctx;
	CUmodule module; /* kernels.ptx */
	CUfunction spin, multiply, copy, sum;
};

static struct gpu gpu;

/* The tests' own kernels, as PTX text that the driver compiles. */
extern const char gpu_kernels[], gpu_kernels_end[];
__asm__(".pushsection .rodata\n"
	".globl gpu_kernels\n"
	"gpu_kernels: .incbin \"tests/gpu/kernels.ptx\"\n"
	".byte 0\n"
	".globl gpu_kernels_end\n"
	"gpu_kernels_end:\n"
	".popsection\n");

static inline bool gpu_is_real(void)
{
	return getenv("KVFS_GPU") != NULL;
}

/* Call this first in main: it puts the stand-in into the search path. */
static inline void gpu_begin(char **argv)
{
	const char *b = getenv("B"), *path = getenv("LD_LIBRARY_PATH");
	char *all, *standin;

	if (gpu_is_real() || getenv("KVFS_STANDIN_PATH") != NULL)
		return;
	if (asprintf(&standin, "%s/tests/gpu", b ? b : "build") < 0 ||
	    asprintf(&all, "%s%s%s", standin, path ? ":" : "",
		     path ? path : "") < 0)
		exit(1);
	setenv("LD_LIBRARY_PATH", all, 1);
	setenv("KVFS_STANDIN_PATH", standin, 1);
	execv("/proc/self/exe", argv);
	exit(1);
}

static inline void gpu_lacks(const char *call)
{
	fprintf(stderr, "the driver has no %s: it is too old\n", call);
	exit(1);
}

static inline void gpu_find_calls(void)
{
#define GPU_FIND(call)                                   \
	*(void **)&gpu.call = dlsym(gpu.library, #call); \
	if (gpu.call == NULL)                            \
		gpu_lacks(#call);
	GPU_CALLS(GPU_FIND)
#undef GPU_FIND
	*(void **)&gpu.set = dlsym(gpu.library, "standin_set");
	*(void **)&gpu.hold = dlsym(gpu.library, "standin_hold");
	*(void **)&gpu.pending = dlsym(gpu.library, "standin_pending");
	*(void **)&gpu.alive = dlsym(gpu.library, "standin_alive");
	*(void **)&gpu.bugs = dlsym(gpu.library, "standin_bugs");
	*(void **)&gpu.forgive = dlsym(gpu.library, "standin_forgive");
	*(void **)&gpu.calls = dlsym(gpu.library, "standin_calls");
	*(void **)&gpu.copied = dlsym(gpu.library, "standin_copied");
}

static inline void gpu_check(CUresult r, const char *call)
{
	const char *name = NULL;

	if (r == CU_OK)
		return;
	gpu.cuGetErrorName(r, &name);
	fprintf(stderr, "%s: %s (%d)\n", call, name ? name : "unknown", r);
	abort();
}
#define GPU_OK(call, ...) gpu_check(gpu.call(__VA_ARGS__), #call)

/* Launch the tests' kernels once: the first launch of a kernel loads it, which
 * may wait for all streams. */
static inline void gpu_launch_first(void)
{
	CUdeviceptr matrices;
	uint64_t ns = 0, nothing[3] = {0};
	unsigned n = 16;
	void *pause[] = {&ns}, *product[] = {&matrices, &n};
	void *copy[] = {nothing};

	GPU_OK(cuMemAlloc_v2, &matrices, 12ull * n * n);
	GPU_OK(cuLaunchKernel, gpu.spin, 1, 1, 1, 1, 1, 1, 0, CU_LEGACY, pause,
	       NULL);
	GPU_OK(cuLaunchKernel, gpu.multiply, 1, 1, 1, 16, 16, 1, 0, CU_LEGACY,
	       product, NULL);
	GPU_OK(cuLaunchKernel, gpu.copy, 1, 1, 1, 32, 1, 1, 0, CU_LEGACY, copy,
	       NULL);
	GPU_OK(cuCtxSynchronize);
	GPU_OK(cuMemFree_v2, matrices);
}

/* Retain the primary context, make it current in this thread, and load the tests'
 * kernels. */
static inline void gpu_retain(CUdevice device)
{
	GPU_OK(cuDevicePrimaryCtxRetain, &gpu.ctx, device);
	GPU_OK(cuCtxSetCurrent, gpu.ctx);
	GPU_OK(cuModuleLoadData, &gpu.module, gpu_kernels);
	GPU_OK(cuModuleGetFunction, &gpu.spin, gpu.module, "test_spin");
	GPU_OK(cuModuleGetFunction, &gpu.multiply, gpu.module, "test_multiply");
	GPU_OK(cuModuleGetFunction, &gpu.copy, gpu.module, "test_copy");
	GPU_OK(cuModuleGetFunction, &gpu.sum, gpu.module, "test_sum");
	gpu_launch_first();
}

/* Destroy everything in the first device's primary context, and begin again. */
static inline void gpu_reset(void)
{
	GPU_OK(cuDevicePrimaryCtxReset_v2, 0);
	gpu_retain(0);
	GPU_OK(cuDevicePrimaryCtxRelease_v2, 0);
}

/* Make the first device current in this thread.  Return -1 if there is no
 * device. */
static inline int gpu_open(void)
{
	void *(*behind)(void);
	CUdevice device;

	gpu.library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (gpu.library == NULL)
		return -1;
	*(void **)&gpu.plugins_attribute =
		dlsym(gpu.library, "cuDeviceGetAttribute");
	/* The library of denied.c has only the calls that the plug-in uses:
	 * take the calls from the real driver behind it. */
	*(void **)&behind = dlsym(gpu.library, "denied_driver");
	if (behind != NULL)
		gpu.library = behind();
	gpu_find_calls();
	if (gpu.cuInit(0) != CU_OK || gpu.cuDeviceGet(&device, 0) != CU_OK)
		return -1;
	if (gpu_is_real() == (gpu.set != NULL)) {
		fputs("KVFS_GPU is set, and the driver is the stand-in\n",
		      stderr);
		abort();
	}
	gpu_retain(device);
	return 0;
}

/* Change settings of the stand-in; a real driver has none. */
static inline void gpu_set(const char *settings)
{
	if (gpu.set != NULL && gpu.set(settings) != 0)
		abort();
}

/* Reset all settings of the stand-in to those of the environment, or the
 * defaults. */
static inline void gpu_set_again(void)
{
	const char *settings = getenv("KVFS_STANDIN");

	gpu_set("strict=1");
	if (settings != NULL)
		gpu_set(settings);
}

static inline CUdeviceptr gpu_alloc(size_t bytes)
{
	CUdeviceptr at;

	GPU_OK(cuMemAlloc_v2, &at, bytes);
	return at;
}

static inline void gpu_free(CUdeviceptr at)
{
	GPU_OK(cuCtxSynchronize);
	GPU_OK(cuMemFree_v2, at);
}

static inline CUstream gpu_stream(void)
{
	CUstream stream;

	GPU_OK(cuStreamCreateWithPriority, &stream, CU_STREAM_NONBLOCKING, 0);
	return stream;
}

static inline CUevent gpu_event(void)
{
	CUevent event;

	GPU_OK(cuEventCreate, &event, CU_EVENT_NO_TIMING);
	return event;
}

/* Make @stream busy for @ns nanoseconds. */
static inline void gpu_spin(CUstream stream, uint64_t ns)
{
	void *parameters[] = {&ns};

	GPU_OK(cuLaunchKernel, gpu.spin, 1, 1, 1, 1, 1, 1, 0, stream,
	       parameters, NULL);
}

/* Copy by a kernel on @blocks multiprocessors.  @n and the addresses are
 * multiples of 16; device memory or registered host memory. */
static inline void gpu_copy(CUstream stream, unsigned blocks, uint64_t to,
			    uint64_t from, uint64_t n)
{
	uint64_t what[3] = {to, from, n};
	void *parameters[] = {what};

	GPU_OK(cuLaunchKernel, gpu.copy, blocks, 1, 1, 512, 1, 1, 0, stream,
	       parameters, NULL);
}

/* Copy pieces in one call.  CU_NOT_FOUND: the driver is older than 12.8. */
static inline CUresult gpu_copy_batch(CUdeviceptr *dsts, CUdeviceptr *srcs,
				      size_t *sizes, size_t n, CUstream stream)
{
	CUcopyAttributes attributes = {.order = 1};
	size_t first = 0, fail;
	__typeof__(&cuMemcpyBatchAsync) old;
	__typeof__(&cuMemcpyBatchAsync_v2) new;
	int version = 0;

	GPU_OK(cuDriverGetVersion, &version);
	/* The parameters of cuMemcpyBatchAsync depend on the version that is
	 * requested. */
	if (version >= 13000 &&
	    gpu.cuGetProcAddress_v2("cuMemcpyBatchAsync", (void **)&new, 13000,
				    0, NULL) == CU_OK)
		return new (dsts, srcs, sizes, n, &attributes, &first, 1,
			    stream);
	if (gpu.cuGetProcAddress_v2("cuMemcpyBatchAsync", (void **)&old, 12080,
				    0, NULL) == CU_OK)
		return old(dsts, srcs, sizes, n, &attributes, &first, 1, &fail,
			   stream);
	return CU_NOT_FOUND;
}

/* Check that the library freed all objects made since @before, and that no
 * driver call was misused. */
static inline struct standin_alive gpu_alive(void)
{
	struct standin_alive alive = {0};

	if (gpu.alive != NULL)
		gpu.alive(&alive);
	return alive;
}

static inline void gpu_assert_same(const struct standin_alive *before)
{
	struct standin_alive now = gpu_alive();

	assert_int_equal(now.streams, before->streams);
	assert_int_equal(now.events, before->events);
	assert_int_equal(now.device, before->device);
	assert_int_equal(now.host, before->host);
	assert_int_equal(now.registered, before->registered);
	assert_int_equal(now.reserved, before->reserved);
	if (gpu.bugs != NULL)
		assert_int_equal(gpu.bugs(), 0);
}

#endif
