/* SPDX-License-Identifier: Apache-2.0 */
/*
 * denied.c - a libcuda.so.1 that hands every call on to the real driver, but
 * reports that the device cannot register read-only memory: so the other paths
 * of copies are tested on any GPU.  With KVFS_DENIED_CODE in the environment it
 * also refuses compiled kernels, as an old driver does, so that the driver
 * compiles the plug-in's text.  Empty except on x86-64.
 *
 * OWNS      the addresses of the real driver's calls, fixed after loading.  The
 *           environment's KVFS_DENIED names the real driver's file.
 *
 * LOCKING   none.
 */
#ifdef __x86_64__
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/driver.h"

/* Do not hand on these calls, because this library changes the answers. */
#define cuDeviceGetAttribute denied_attribute_handed_on
#define cuModuleLoadData denied_load_handed_on

#define HAND_ON(member, symbol, parameters) HAND_ON_(member, symbol)
#define HAND_ON_(member, symbol)                                     \
	__attribute__((visibility("hidden"))) void *denied_##member; \
	__asm__(".text\n.globl " #symbol "\n.type " #symbol          \
		",@function\n" #symbol ":\n\tjmp *denied_" #member   \
		"(%rip)\n");
KV_CUDA_CALLS(HAND_ON)
#undef cuDeviceGetAttribute
#undef cuModuleLoadData

/* The real driver behind this library, for tests. */
void *denied_driver(void);
CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device);
CUresult cuModuleLoadData(CUmodule *module, const void *image);

static void *real;

void *denied_driver(void)
{
	return real;
}

CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	CUresult (*ask)(int *, int, CUdevice) = denied_device_attribute;
	CUresult r = ask(value, attribute, device);

	if (r == CUDA_SUCCESS &&
	    attribute == CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)
		*value = 0;
	return r;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	CUresult (*load)(CUmodule *, const void *) = denied_module_load;

	if (getenv("KVFS_DENIED_CODE") != NULL &&
	    memcmp(image, "\x50\xed\x55\xba", 4) == 0)
		return CUDA_ERROR_INVALID_PTX;
	return load(module, image);
}

__attribute__((constructor)) static void find(void)
{
	const char *path = getenv("KVFS_DENIED");

	real = dlopen(path ? path : "", RTLD_NOW | RTLD_LOCAL);
	if (real == NULL || path == NULL) {
		fprintf(stderr, "KVFS_DENIED=%s: %s\n", path ? path : "",
			path ? dlerror() : "not set");
		abort();
	}
#define FIND(member, symbol, parameters) denied_##member = dlsym(real, #symbol);
	KV_CUDA_CALLS(FIND)
#undef FIND
}
#endif
