/* SPDX-License-Identifier: Apache-2.0 */
/*
 * symbols.c - the stand-in's calls by their names.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include <dlfcn.h>
#include <stdio.h>

#include "tests/gpu/standin/standin.h"

/* Driver calls whose symbol depends on the version of the driver and on the
 * version that is requested. */
static const struct {
	const char *name, *symbol;
	int since;
} by_version[] = {
	{"cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2", 13000},
	{"cuMemcpyBatchAsync", "cuMemcpyBatchAsync", 12080},
};

/* Return the symbol of a call that is listed in by_version; "": the version is
 * too old for the call; NULL: by_version does not list the call. */
static const char *symbol_for(const char *name, int version)
{
	const char *symbol = NULL;
	size_t i;

	version = KV_MIN(version, settings.version);
	for (i = 0; i < KV_ARRAY_LEN(by_version); i++) {
		if (strcmp(by_version[i].name, name) != 0)
			continue;
		if (version >= by_version[i].since)
			return by_version[i].symbol;
		symbol = "";
	}
	return symbol;
}

/* Of calls that by_version does not list, the stand-in has the newest version
 * only. */
CUresult cuGetProcAddress_v2(const char *name, void **fn, int version,
			     uint64_t flags, int *status)
{
	CUresult r = enter("cuGetProcAddress_v2", NOTHING);
	const char *symbol = symbol_for(name, version);
	char newer[64];
	Dl_info self;
	void *library;

	(void)flags;
	if (r != CU_OK)
		return r;
	if (dladdr((void *)enter, &self) == 0)
		return CU_NOT_FOUND;
	library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
	snprintf(newer, sizeof(newer), "%s_v2", name);
	*fn = dlsym(library, symbol != NULL ? symbol : newer);
	if (*fn == NULL && symbol == NULL)
		*fn = dlsym(library, name);
	dlclose(library);
	if (status != NULL)
		*status = *fn == NULL ? 1 : 0;
	return *fn == NULL ? CU_NOT_FOUND : CU_OK;
}
