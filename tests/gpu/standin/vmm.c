/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vmm.c - the stand-in's reserved addresses, and memory mapped to them.
 *
 * OWNS      handles of memory, each a memfd; reserved addresses; mappings.
 *
 * INVARIANTS
 *   (1) Memory is reached only where it is mapped and access was given.
 *   (2) A handle's memory lives until it is released and mapped nowhere, in no
 *       context.
 *
 * LOCKING   big_lock.
 */
#include <stdio.h>
#include <sys/mman.h>

#include "tests/gpu/standin/standin.h"

#define GRANULE (2u << 20)
#define MAX_MAPPINGS 4096

/* Mappings to which no access has been given yet. */
static struct {
	uintptr_t at;
	size_t bytes;
} waiting[MAX_MAPPINGS]; /* guarded by big_lock; bytes 0: unused entry */

static bool is_whole(size_t n)
{
	return n > 0 && n % GRANULE == 0;
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemProp *prop,
				       int option)
{
	CUresult r = enter("cuMemGetAllocationGranularity", INIT);

	if (r != CU_OK)
		return r;
	if (prop->type != 1 || prop->location.type != 1 || option < 0 ||
	    option > 1)
		return CU_INVALID_VALUE;
	*bytes = GRANULE;
	return CU_OK;
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t bytes, size_t align,
			     CUdeviceptr hint, unsigned long long flags)
{
	CUresult r = enter("cuMemAddressReserve", INIT);
	uintptr_t at;

	(void)hint;
	if (r != CU_OK)
		return r;
	if (!is_whole(bytes) || flags != 0 || (align & (align - 1)) != 0)
		return CU_INVALID_VALUE;
	pthread_mutex_lock(&big_lock);
	at = device_addresses_locked(bytes, KV_MAX(align, GRANULE));
	if (at == 0 || range_add_locked(RESERVED, at, bytes, 0, 0) == NULL)
		r = CU_OUT_OF_MEMORY;
	else
		*ptr = at;
	pthread_mutex_unlock(&big_lock);
	return r;
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t bytes)
{
	CUresult r = enter("cuMemAddressFree", INIT);
	size_t n;

	if (r != CU_OK)
		return r;
	pthread_mutex_lock(&big_lock);
	if (range_touches_locked(ptr, bytes) ||
	    !range_remove_locked(RESERVED, ptr, &n) || n != bytes)
		r = CU_INVALID_VALUE;
	pthread_mutex_unlock(&big_lock);
	return r == CU_OK ? r
			  : bug(r, "addresses freed that are mapped, "
				   "or not reserved so");
}

CUresult cuMemCreate(CUmemHandle *handle, size_t bytes, const CUmemProp *prop,
		     unsigned long long flags)
{
	CUresult r = enter("cuMemCreate", INIT);
	void *at;
	int fd;
	_cleanup_(context_release) CUcontext held = NULL;

	if (r != CU_OK)
		return r;
	context_hold(SYNC_ALLOC, &held);
	if (!is_whole(bytes) || prop->type != 1 || prop->location.type != 1 ||
	    prop->location.id >= settings.devices || flags != 0)
		return CU_INVALID_VALUE;
	pthread_mutex_lock(&big_lock);
	if (bytes > settings.memory - alive.device_bytes)
		r = CU_OUT_OF_MEMORY;
	pthread_mutex_unlock(&big_lock);
	if (r != CU_OK)
		return r;
	fd = memfd_create("device", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)bytes) < 0)
		return CU_OUT_OF_MEMORY;
	at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (at == MAP_FAILED) {
		close(fd);
		return CU_OUT_OF_MEMORY;
	}
	memset(at, DEVICE_POISON_NEW, bytes);
	munmap(at, bytes);
	pthread_mutex_lock(&big_lock);
	alive.device++; /* counts handles and mappings together */
	pthread_mutex_unlock(&big_lock);
	*handle = (CUmemHandle)fd + 1;
	return CU_OK;
}

CUresult cuMemRelease(CUmemHandle handle)
{
	CUresult r = enter("cuMemRelease", INIT);
	_cleanup_(context_release) CUcontext held = NULL;

	if (r != CU_OK)
		return r;
	context_hold(SYNC_FREE, &held);
	if (handle == 0 || close((int)handle - 1) < 0)
		return bug(CU_INVALID_VALUE, "released no memory");
	pthread_mutex_lock(&big_lock);
	alive.device--;
	pthread_mutex_unlock(&big_lock);
	return CU_OK;
}

static CUresult map_locked(uintptr_t at, size_t bytes, int fd)
{
	size_t i;

	for (i = 0; i < MAX_MAPPINGS && waiting[i].bytes > 0; i++)
		;
	if (i == MAX_MAPPINGS)
		return CU_OUT_OF_MEMORY;
	if (mmap(bytes_at(at), bytes, PROT_READ | PROT_WRITE,
		 MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED)
		return CU_INVALID_VALUE;
	waiting[i].at = at;
	waiting[i].bytes = bytes;
	return CU_OK;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t bytes, size_t offset,
		  CUmemHandle handle, unsigned long long flags)
{
	CUresult r = enter("cuMemMap", INIT);

	if (r != CU_OK)
		return r;
	if (!is_whole(bytes) || offset != 0 || flags != 0 || handle == 0 ||
	    !is_device_address(ptr) || ptr % GRANULE != 0)
		return CU_INVALID_VALUE;
	pthread_mutex_lock(&big_lock);
	if (range_touches_locked(ptr, bytes))
		r = CU_INVALID_VALUE;
	else
		r = map_locked(ptr, bytes, (int)handle - 1);
	pthread_mutex_unlock(&big_lock);
	return r;
}

/* Make each mapping in the range accessible.  Each becomes a range of its
 * own. */
CUresult cuMemSetAccess(CUdeviceptr ptr, size_t bytes,
			const CUmemAccess *access, size_t n)
{
	CUresult r = enter("cuMemSetAccess", INIT);
	size_t i, done = 0;
	_cleanup_(context_release) CUcontext held = NULL;

	if (r != CU_OK)
		return r;
	context_hold(SYNC_ALLOC, &held);
	if (n != 1 || access->location.type != 1 || access->flags != 3)
		return CU_INVALID_VALUE;
	pthread_mutex_lock(&big_lock);
	for (i = 0; i < MAX_MAPPINGS; i++)
		if (waiting[i].bytes > 0 && waiting[i].at >= ptr &&
		    waiting[i].at + waiting[i].bytes <= ptr + bytes) {
			range_add_locked(DEVICE, waiting[i].at,
					 waiting[i].bytes, 1,
					 access->location.id);
			done += waiting[i].bytes;
			waiting[i].bytes = 0;
		}
	pthread_mutex_unlock(&big_lock);
	return done == bytes ? CU_OK : CU_INVALID_VALUE;
}

static size_t unmap_one_locked(uintptr_t at)
{
	size_t i, n = 0;

	/* Unmap a mapping that never became accessible. */
	for (i = 0; i < MAX_MAPPINGS && n == 0; i++)
		if (waiting[i].bytes > 0 && waiting[i].at == at) {
			n = waiting[i].bytes;
			waiting[i].bytes = 0;
		}
	if (n == 0 && !range_remove_locked(DEVICE, at, &n))
		return 0;
	if (mmap(bytes_at(at), n, PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
		 0) == MAP_FAILED)
		abort();
	return n;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t bytes)
{
	CUresult r = enter("cuMemUnmap", INIT);
	size_t n, done;
	_cleanup_(context_release) CUcontext held = NULL;

	if (r != CU_OK)
		return r;
	context_hold(SYNC_FREE, &held);
	pthread_mutex_lock(&big_lock);
	for (done = 0; done < bytes; done += n) {
		n = unmap_one_locked(ptr + done);
		if (n == 0)
			break;
	}
	pthread_mutex_unlock(&big_lock);
	return done == bytes ? CU_OK
			     : bug(CU_INVALID_VALUE, "unmapped no mapping");
}
