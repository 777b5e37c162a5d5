/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.c - the calls of the CUDA driver, found at run time.
 *
 * OWNS      the table, and the driver's library, which stays loaded.
 *
 * LOCKING   load_lock, while the driver is being loaded; the table is fixed
 *           from then on.
 */
#include <dlfcn.h>

#include "kernels/cuda/driver.h"
#include "common/kv.h"

#define LIBRARY "libcuda.so.1"

static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kv_driver table;
static pid_t loaded_by; /* 0: not loaded yet */

int kv_driver_errno(CUresult result)
{
	switch (result) {
	case CUDA_SUCCESS:
		return 0;
	case CUDA_ERROR_OUT_OF_MEMORY:
		return -ENOMEM;
	case CUDA_ERROR_NOT_INITIALIZED:
	case CUDA_ERROR_STUB_LIBRARY:
	case CUDA_ERROR_NO_DEVICE:
	case CUDA_ERROR_INVALID_DEVICE:
	case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
		return -ENODEV;
	case CUDA_ERROR_INVALID_HANDLE:
		return -EINVAL;
	case CUDA_ERROR_NOT_READY:
		return -EAGAIN;
	default:
		if (result >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED &&
		    result <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
			return -EBUSY;
		return -EIO;
	}
}

static int find_calls(void *library, struct kv_driver *driver)
{
#define FIND(member, symbol, parameters)                     \
	*(void **)&driver->member = dlsym(library, #symbol); \
	if (!driver->member)                                 \
		return -ENODEV;
	KV_CUDA_CALLS(FIND)
#undef FIND
	return 0;
}

static int load(void)
{
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	int n = 0, r;

	if (!library)
		return -ENODEV;
	r = find_calls(library, &table);
	if (r == 0)
		r = kv_driver_errno(table.init(0));
	if (r == 0)
		r = kv_driver_errno(table.device_count(&n));
	if (r == 0 && n == 0)
		r = -ENODEV;
	if (r == 0)
		loaded_by = getpid();
	else
		dlclose(library);
	return r;
}

int kv_driver_get(const struct kv_driver **ret_driver)
{
	int r = 0;

	pthread_mutex_lock(&load_lock);
	if (loaded_by == 0)
		r = load();
	else if (loaded_by != getpid())
		r = -ENODEV;
	pthread_mutex_unlock(&load_lock);
	if (r == 0)
		*ret_driver = &table;
	return r;
}
