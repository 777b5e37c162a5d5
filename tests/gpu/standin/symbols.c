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

/* The newest version of a call is the one that the stand-in has. */
CUresult cuGetProcAddress_v2(const char *name, void **fn, int version,
			     uint64_t flags, int *status)
{
	CUresult r = enter("cuGetProcAddress_v2", NOTHING);
	char newer[64];
	Dl_info self;
	void *library;

	(void)version;
	(void)flags;
	if (r != CU_OK)
		return r;
	if (dladdr((void *)enter, &self) == 0)
		return CU_NOT_FOUND;
	library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
	snprintf(newer, sizeof(newer), "%s_v2", name);
	*fn = dlsym(library, newer);
	if (*fn == NULL)
		*fn = dlsym(library, name);
	dlclose(library);
	if (status != NULL)
		*status = *fn == NULL ? 1 : 0;
	return *fn == NULL ? CU_NOT_FOUND : CU_OK;
}
