/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c - find a device: "host", or a plug-in library.
 *
 * OWNS      the libraries of plug-ins, which are never unloaded, even if they
 *           are rejected: their threads may run.
 *
 * LOCKING   none: the dynamic linker loads a library once.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <xxhash.h>

#include "kernels/device/device.h"
#include "kernels/kvfs.h"

#define NAME_MAX_LEN 31
#define WHY 512 /* most bytes of a path and the linker's message */

/* Print the reason for which there is no device, because -ENODEV does not
 * explain it.  Callers without a device ask again, so a line is not printed
 * twice in a row.  Return NULL. */
static const struct kvfs_device *refuse(const char *name, const char *why)
{
	static _Atomic XXH64_hash_t printed;
	char line[WHY + 128];
	XXH64_hash_t hash;

	snprintf(line, sizeof(line), "libkvfs: no device \"%.*s\": %s",
		 NAME_MAX_LEN, name, why);
	hash = XXH64(line, strlen(line), 0);
	if (atomic_exchange(&printed, hash) != hash)
		fprintf(stderr, "%s\n", line);
	return NULL;
}

/* Look for @library in the directory of this library or program, because each
 * build has its own plug-ins. */
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

const struct kvfs_device *kv_device_find(const char *name)
{
	size_t len = strspn(name, "abcdefghijklmnopqrstuvwxyz");
	char library[NAME_MAX_LEN + 32], symbol[NAME_MAX_LEN + 32], path[4096];
	char plugin[NAME_MAX_LEN + 1], why[WHY];
	const struct kvfs_device *device;
	void *opened;

	if (strcmp(name, kv_device_host.name) == 0)
		return &kv_device_host;
	if (len == 0 || len > NAME_MAX_LEN ||
	    (name[len] != '\0' && name[len] != ':'))
		return refuse(name, "that is no name of a device");
	memcpy(plugin, name, len);
	plugin[len] = '\0';
	name = plugin;
	snprintf(library, sizeof(library), "libkvfs-%s.so.1", name);
	/* Use a library beside this one even if it cannot be loaded, because
	 * another one would belong to another build. */
	opened = dlopen(find_beside(library, path, sizeof(path)) ? path
								 : library,
			RTLD_NOW | RTLD_LOCAL);
	if (!opened)
		return refuse(name, dlerror());
	snprintf(symbol, sizeof(symbol), "kvfs_device_%s", name);
	device = dlsym(opened, symbol);
	if (!device) {
		snprintf(why, sizeof(why), "the library has no symbol %s",
			 symbol);
		return refuse(name, why);
	}
	if (kv_device_check(device, name, why, sizeof(why)) < 0)
		return refuse(name, why);
	return device;
}
