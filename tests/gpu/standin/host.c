/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.c - host memory that the stand-in's device can reach.
 *
 * OWNS      memory from cuMemHostAlloc; registrations.
 *
 * INVARIANTS
 *   (1) Read-only memory is registered only as read-only, if the device
 *       supports that; memory registered as read-only takes no writes.
 *   (2) No byte is registered twice.
 *
 * LOCKING   big_lock.
 */
#include <stdio.h>
#include <sys/mman.h>

#include "tests/gpu/standin/standin.h"

/* Return whether all bytes are mapped.  *@ret_writable: all are also
 * writable. */
static bool is_mapped(uintptr_t at, size_t n, bool *ret_writable)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	uintptr_t from, to, end = at + n;
	char rights[5], line[512];

	*ret_writable = true;
	if (maps == NULL)
		return false;
	while (at < end && fgets(line, sizeof(line), maps) != NULL) {
		if (sscanf(line, "%lx-%lx %4s", &from, &to, rights) != 3 ||
		    to <= at)
			continue;
		if (from > at || rights[0] != 'r')
			break;
		if (rights[1] != 'w')
			*ret_writable = false;
		at = to;
	}
	fclose(maps);
	return at >= end;
}

/* Wait for as long as a driver takes to register @n bytes. */
static void pin_pages(size_t n)
{
	usleep((useconds_t)((n >> 10) * settings.register_us >> 10));
}

CUresult cuMemHostRegister_v2(void *ptr, size_t n, unsigned flags)
{
	CUresult r = enter("cuMemHostRegister_v2", CONTEXT);
	uintptr_t at = (uintptr_t)ptr;
	bool writable;
	_cleanup_(context_release) CUcontext held = NULL;

	if (r != CU_OK)
		return r;
	context_hold(SYNC_REGISTER, &held);
	if (n == 0 || (flags & ~15u) != 0 || !is_mapped(at, n, &writable))
		return CU_INVALID_VALUE;
	if ((flags & CU_REGISTER_READ_ONLY) != 0 && !settings.read_only)
		return CU_NOT_SUPPORTED;
	if ((flags & CU_REGISTER_READ_ONLY) == 0 && !writable)
		return CU_INVALID_VALUE;
	pin_pages(n);
	pthread_mutex_lock(&big_lock);
	if (range_touches_locked(at, n))
		r = CU_ALREADY_REGISTERED;
	else if (range_add_locked(REGISTERED, at, n, flags,
				  current_context()->device) == NULL)
		r = CU_OUT_OF_MEMORY;
	pthread_mutex_unlock(&big_lock);
	return r;
}

CUresult cuMemHostUnregister(void *ptr)
{
	CUresult r = enter("cuMemHostUnregister", CONTEXT);
	size_t n;
	_cleanup_(context_release) CUcontext held = NULL;

	if (r != CU_OK)
		return r;
	context_hold(SYNC_UNREGISTER, &held);
	pthread_mutex_lock(&big_lock);
	if (!range_remove_locked(REGISTERED, (uintptr_t)ptr, &n))
		r = CU_NOT_REGISTERED;
	pthread_mutex_unlock(&big_lock);
	return r == CU_OK ? r : bug(r, "unregistered what is not registered");
}

CUresult cuMemHostAlloc(void **ptr, size_t n, unsigned flags)
{
	CUresult r = enter("cuMemHostAlloc", CONTEXT);
	void *at;
	_cleanup_(context_release) CUcontext held = NULL;

	if (r != CU_OK)
		return r;
	context_hold(SYNC_ALLOC, &held);
	if (n == 0 || (flags & ~7u) != 0)
		return CU_INVALID_VALUE;
	at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		  -1, 0);
	if (at == MAP_FAILED)
		return CU_OUT_OF_MEMORY;
	memset(at, DEVICE_POISON_NEW, n);
	pthread_mutex_lock(&big_lock);
	if (range_add_locked(HOST, (uintptr_t)at, n, flags,
			     current_context()->device) == NULL)
		r = CU_OUT_OF_MEMORY;
	pthread_mutex_unlock(&big_lock);
	*ptr = at;
	return r;
}

CUresult cuMemFreeHost(void *ptr)
{
	CUresult r = enter("cuMemFreeHost", CONTEXT);
	size_t n;
	_cleanup_(context_release) CUcontext held = NULL;

	if (r != CU_OK)
		return r;
	context_hold(SYNC_FREE, &held);
	pthread_mutex_lock(&big_lock);
	if (range_remove_locked(HOST, (uintptr_t)ptr, &n))
		munmap(ptr, n);
	else
		r = CU_INVALID_VALUE;
	pthread_mutex_unlock(&big_lock);
	return r == CU_OK ? r : bug(r, "freed host memory that is none");
}
