/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c - the devices there are: "host", and those that are libraries of
 * their own, loaded when asked for.
 *
 * OWNS      the libraries of plug-ins, for good, also of one that is refused:
 *           threads of it may run since it was loaded, and what it uses cannot be
 *           unloaded.
 *
 * LOCKING   none: the dynamic linker has its own, and loads a library once.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <xxhash.h>

#include "kernels/device/device.h"
#include "kernels/device/guard.h"

#define NAME_MAX_LEN 31
#define WHY 512 /* bytes, for a path and what the linker says of it */

/* Nobody who has only the error would know what to do: it is said, but not
 * twice one after the other, as who has no device asks for it again. */
static const struct kvfs_device *refuse(const char *name, const char *why)
{
	static _Atomic XXH64_hash_t said;
	char line[WHY + 128];
	XXH64_hash_t hash;

	snprintf(line, sizeof(line), "libkvfs: no device \"%.*s\": %s",
		 NAME_MAX_LEN, name, why);
	hash = XXH64(line, strlen(line), 0);
	if (atomic_exchange(&said, hash) != hash)
		fprintf(stderr, "%s\n", line);
	return NULL;
}

/* Where a build, or an installation beside another one, has its own: false if
 * there is none. */
static bool find_beside(const char *library, char *ret_path, size_t room)
{
	Dl_info self;
	const char *slash;
	int n;

	if (dladdr((void *)(uintptr_t)kv_device_find, &self) == 0 ||
	    !self.dli_fname)
		return false;
	slash = strrchr(self.dli_fname, '/');
	if (!slash)
		return false;
	n = snprintf(ret_path, room, "%.*s/%s", (int)(slash - self.dli_fname),
		     self.dli_fname, library);
	return n > 0 && (size_t)n < room && access(ret_path, F_OK) == 0;
}

static const struct kvfs_device *device_in(void *library, const char *name)
{
	char symbol[NAME_MAX_LEN + 32], why[WHY];
	const struct kvfs_device *device;
	int r = -ENODEV;

	snprintf(symbol, sizeof(symbol), "kvfs_device_%s", name);
	device = dlsym(library, symbol);
	if (device)
		r = kv_guard_check(device, name, why, sizeof(why));
	else
		snprintf(why, sizeof(why), "its library has no symbol %s",
			 symbol);
	return r == 0 ? device : refuse(name, why);
}

/* What lies beside this is the one, even if it cannot be loaded: another one
 * would be of another build. */
static const struct kvfs_device *find_plugin(const char *name)
{
	char library[NAME_MAX_LEN + 32], path[4096];
	void *opened;

	snprintf(library, sizeof(library), "libkvfs-%s.so.1", name);
	opened = dlopen(find_beside(library, path, sizeof(path)) ? path
								 : library,
			RTLD_NOW | RTLD_LOCAL);
	return opened ? device_in(opened, name) : refuse(name, dlerror());
}

const struct kvfs_device *kv_device_find(const char *name)
{
	size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyz");
	char plugin[NAME_MAX_LEN + 1];

	if (strcmp(name, kv_device_host.name) == 0)
		return &kv_device_host;
	if (len == 0 || len > NAME_MAX_LEN ||
	    (name[len] != '\0' && name[len] != ':'))
		return refuse(name, "that is no name of a device");
	memcpy(plugin, name, len);
	plugin[len] = '\0';
	return find_plugin(plugin);
}
