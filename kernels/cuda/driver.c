/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver.c - the calls of the CUDA driver, found at run time.
 *
 * OWNS      the table, and the driver's library, which stays loaded, also if it
 *           is of no use: it may have threads by then.
 *
 * LOCKING   load_lock, while the driver is being loaded; the table is fixed
 *           from then on.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

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

/* Once, as nobody who has only -ENODEV would know what to do. */
__attribute__((format(printf, 2, 3))) static int complain(int r,
							  const char *why, ...)
{
	static atomic_flag said = ATOMIC_FLAG_INIT;
	char line[512];
	va_list args;

	if (atomic_flag_test_and_set(&said))
		return r;
	va_start(args, why);
	vsnprintf(line, sizeof(line), why, args);
	va_end(args);
	fprintf(stderr, "libkvfs-cuda: no driver that can be used: %s\n", line);
	return r;
}

static int find_calls(void *library, struct kv_driver *driver)
{
#define FIND(member, symbol, parameters)                     \
	*(void **)&driver->member = dlsym(library, #symbol); \
	if (!driver->member)                                 \
		return complain(-ENODEV,                     \
				"it has no " #symbol ", and is too old");
	KV_CUDA_CALLS(FIND)
#undef FIND
	return 0;
}

static int start(const struct kv_driver *driver)
{
	CUresult result = driver->init(0);
	int n = 0;

	if (result == CUDA_SUCCESS)
		result = driver->device_count(&n);
	if (result != CUDA_SUCCESS)
		return complain(kv_driver_errno(result), "its error is %d",
				result);
	return n > 0 ? 0 : complain(-ENODEV, "it finds no GPU");
}

static int load(void)
{
	void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	int r;

	if (!library)
		return complain(-ENODEV, "%s", dlerror());
	r = find_calls(library, &table);
	if (r == 0)
		r = start(&table);
	if (r == 0)
		loaded_by = getpid();
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
