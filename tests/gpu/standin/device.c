/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c - the stand-in's devices, their attributes and primary contexts.
 *
 * OWNS      the contexts, each counted.
 *
 * LOCKING   big_lock for the counts.
 */
#include <stdio.h>

#include "tests/gpu/standin/standin.h"

static struct CUctx_st contexts[MAX_DEVICES] = {{.device = 0}, {.device = 1}};

static bool is_device(CUdevice device)
{
	return device >= 0 && device < settings.devices;
}

CUresult cuDriverGetVersion(int *version)
{
	*version = settings.version;
	return enter("cuDriverGetVersion", NOTHING);
}

static const struct {
	CUresult code;
	const char *name;
} names[] = {
	{CU_OK, "CUDA_SUCCESS"},
	{CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
	{CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
	{CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
	{CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
	{CU_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE"},
	{CU_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
	{CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
	{CU_NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
	{CU_UNSUPPORTED_PTX, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
	{CU_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
	{CU_CONTEXT_IS_DESTROYED, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
	{CU_NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
	{CU_NOT_READY, "CUDA_ERROR_NOT_READY"},
	{CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
	{CU_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"},
	{CU_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
	{CU_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
	{CU_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED"},
	{CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
	{CU_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
	{CU_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
	{CU_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
	{CU_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
	{CU_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
	{CU_CAPTURE_IMPLICIT, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
	{CU_CAPTURED_EVENT, "CUDA_ERROR_CAPTURED_EVENT"},
	{CU_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"},
};

CUresult cuGetErrorName(CUresult error, const char **name)
{
	size_t i;

	for (i = 0; i < KV_ARRAY_LEN(names); i++)
		if (names[i].code == error) {
			*name = names[i].name;
			return CU_OK;
		}
	*name = NULL;
	return CU_INVALID_VALUE;
}

CUresult cuDeviceGetCount(int *count)
{
	CUresult r = enter("cuDeviceGetCount", INIT);

	if (r == CU_OK)
		*count = settings.devices;
	return r;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	CUresult r = enter("cuDeviceGet", INIT);

	if (r != CU_OK)
		return r;
	if (!is_device(ordinal))
		return CU_INVALID_DEVICE;
	*device = ordinal;
	return CU_OK;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice device)
{
	CUresult r = enter("cuDeviceGetName", INIT);

	if (r != CU_OK)
		return r;
	if (!is_device(device))
		return CU_INVALID_DEVICE;
	snprintf(name, (size_t)len, "stand-in device %d", device);
	return CU_OK;
}

static int attribute(int which)
{
	switch (which) {
	case CU_MAX_BLOCK_DIM_X:
		return 1024;
	case CU_WARP_SIZE:
		return 32;
	case CU_MULTIPROCESSORS:
		return 8;
	case CU_ASYNC_ENGINES:
		return 2;
	case CU_CAPABILITY_MAJOR:
		return settings.arch / 10;
	case CU_CAPABILITY_MINOR:
		return settings.arch % 10;
	case CU_UNIFIED_ADDRESSING:
	case CU_HOST_REGISTER:
	case CU_SAME_ADDRESSES:
	case CU_VIRTUAL_MEMORY:
		return 1;
	case CU_STREAM_MEM_OPS_V1:
	case CU_STREAM_WAIT_64:
	case CU_STREAM_WAIT_NOR:
		return settings.mem_ops;
	case CU_READ_ONLY_HOST_REGISTER:
		return settings.read_only;
	default:
		return 0;
	}
}

CUresult cuDeviceGetAttribute(int *value, int which, CUdevice device)
{
	CUresult r = enter("cuDeviceGetAttribute", INIT);

	if (r != CU_OK)
		return r;
	if (!is_device(device))
		return CU_INVALID_DEVICE;
	*value = attribute(which);
	return CU_OK;
}

/* ---- contexts ---- */

CUcontext context_of(int device)
{
	return &contexts[device];
}

/* A context that was reset can still be made current, as with a driver. */
CUresult context_check(CUcontext ctx, const char *call)
{
	bool is_held, was_reset;

	pthread_mutex_lock(&big_lock);
	is_held = ctx->refs > 0;
	was_reset = ctx->was_reset;
	pthread_mutex_unlock(&big_lock);
	if (!is_held)
		return bug(CU_INVALID_CONTEXT, "%s: the context is gone", call);
	return was_reset ? CU_CONTEXT_IS_DESTROYED : CU_OK;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device)
{
	CUresult r = enter("cuDevicePrimaryCtxRetain", INIT);

	if (r != CU_OK)
		return r;
	if (!is_device(device))
		return CU_INVALID_DEVICE;
	pthread_mutex_lock(&big_lock);
	contexts[device].refs++;
	contexts[device].was_reset = false;
	alive.contexts++;
	pthread_mutex_unlock(&big_lock);
	*ctx = &contexts[device];
	return CU_OK;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
	CUresult r = enter("cuDevicePrimaryCtxRelease_v2", INIT);

	if (r != CU_OK)
		return r;
	if (!is_device(device))
		return CU_INVALID_DEVICE;
	pthread_mutex_lock(&big_lock);
	if (contexts[device].refs == 0) {
		r = CU_INVALID_CONTEXT;
	} else {
		contexts[device].refs--;
		alive.contexts--;
	}
	pthread_mutex_unlock(&big_lock);
	return r == CU_OK ? r : bug(r, "a context released too often");
}

/* Destroy everything in the context, whose references stay; the next retain makes
 * it anew.  A device that an operation broke stays broken. */
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
	CUresult r = enter("cuDevicePrimaryCtxReset_v2", INIT);

	if (r != CU_OK)
		return r;
	if (!is_device(device))
		return CU_INVALID_DEVICE;
	wait_for_all();
	pthread_mutex_lock(&big_lock);
	streams_forget_locked(&contexts[device]);
	events_forget_locked(&contexts[device]);
	modules_forget_locked(&contexts[device]);
	ranges_forget_locked(device);
	contexts[device].was_reset = true;
	pthread_mutex_unlock(&big_lock);
	return CU_OK;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags,
				    int *active)
{
	CUresult r = enter("cuDevicePrimaryCtxGetState", INIT);

	if (r != CU_OK)
		return r;
	if (!is_device(device))
		return CU_INVALID_DEVICE;
	pthread_mutex_lock(&big_lock);
	*flags = 0;
	*active = contexts[device].refs > 0 && !contexts[device].was_reset;
	pthread_mutex_unlock(&big_lock);
	return CU_OK;
}

CUresult cuCtxSynchronize(void)
{
	CUresult r = enter("cuCtxSynchronize", CONTEXT);

	if (r == CU_OK)
		wait_for_all();
	return r;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	CUresult r = enter("cuCtxGetStreamPriorityRange", CONTEXT);

	if (r != CU_OK)
		return r;
	*least = 0;
	*greatest = -5;
	return CU_OK;
}
