/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c - the devices there are: "host", and those that are libraries of
 * their own, loaded when asked for.
 *
 * OWNS      the library of the plug-in in use, for good: threads of it may run,
 *           and what it uses cannot be unloaded.
 *
 * LOCKING   none: the dynamic linker has its own, and loads a library once.
 */
#include <dlfcn.h>
#include <stdio.h>

#include "kernels/device/device.h"

#define NAME_MAX_LEN 31

/* So that a build, or an installation beside another one, finds its own. */
static void *open_beside(const char *library)
{
	char path[4096];
	Dl_info self;
	const char *slash;
	int n;

	if (dladdr((void *)(uintptr_t)kv_device_find, &self) == 0 ||
	    !self.dli_fname)
		return NULL;
	slash = strrchr(self.dli_fname, '/');
	if (!slash)
		return NULL;
	n = snprintf(path, sizeof(path), "%.*s/%s",
		     (int)(slash - self.dli_fname), self.dli_fname, library);
	if (n < 0 || (size_t)n >= sizeof(path))
		return NULL;
	return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static const struct kvfs_device *device_in(void *library, const char *symbol)
{
	const struct kvfs_device *device = dlsym(library, symbol);

	if (device && device->version == KVFS_DEVICE_VERSION)
		return device;
	dlclose(library);
	return NULL;
}

static const struct kvfs_device *find_plugin(const char *name)
{
	char library[NAME_MAX_LEN + 32], symbol[NAME_MAX_LEN + 32];
	int len = (int)strspn(name, "abcdefghijklmnopqrstuvwxyz");
	void *opened;

	if (len == 0 || len > NAME_MAX_LEN ||
	    (name[len] != '\0' && name[len] != ':'))
		return NULL;
	snprintf(library, sizeof(library), "libkvfs-%.*s.so.1", len, name);
	snprintf(symbol, sizeof(symbol), "kvfs_device_%.*s", len, name);
	opened = open_beside(library);
	if (!opened)
		opened = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	return opened ? device_in(opened, symbol) : NULL;
}

const struct kvfs_device *kv_device_find(const char *name)
{
	if (strcmp(name, kv_device_host.name) == 0)
		return &kv_device_host;
	return find_plugin(name);
}
