/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - the stand-in's allocations, of the device and of the host, and the
 * places of their bytes.
 *
 * OWNS      two reserved ranges of addresses: one for device addresses, never
 *           accessible, and one of equal size for the bytes; the list of all
 *           live allocations.
 *
 * INVARIANTS
 *   (1) No device address is handed out twice, so that stale addresses are
 *       detected.  But after a reset of a context its addresses are, because
 *       drivers do so.
 *   (2) Device memory is poisoned when it is allocated and when it is freed.
 *
 * LOCKING   big_lock.
 */
#include <stdio.h>
#include <sys/mman.h>

#include "tests/gpu/standin/standin.h"

/* size of a range of addresses that sanitizers leave free */
#define DEVICE_RANGE (1ull << 38)
#define ALIGN 512u

struct standin_alive alive;

static struct range *ranges; /* guarded by big_lock */
/* first device address, and where its byte is; set at first use, then
 * constant */
static uintptr_t device, bytes;
static uintptr_t next_device; /* guarded by big_lock */
static uint64_t made;	      /* guarded by big_lock; allocations so far */
static pthread_once_t reserved = PTHREAD_ONCE_INIT;

static void reserve(void)
{
	void *at = mmap(NULL, 2 * DEVICE_RANGE, PROT_NONE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (at == MAP_FAILED)
		abort();
	device = (uintptr_t)at;
	bytes = device + DEVICE_RANGE;
	next_device = device;
}

bool is_device_address(uintptr_t at)
{
	pthread_once(&reserved, reserve);
	return at >= device && at < device + DEVICE_RANGE;
}

void *bytes_at(uintptr_t at)
{
	return (void *)(is_device_address(at) ? at + DEVICE_RANGE : at);
}

uintptr_t device_addresses_locked(size_t n, size_t align)
{
	uintptr_t at;

	pthread_once(&reserved, reserve);
	at = (next_device + align - 1) & ~((uintptr_t)align - 1);
	if (n > device + DEVICE_RANGE - at)
		return 0;
	next_device = at + n;
	return at;
}

/* ---- the list ---- */

static const struct range *find_locked(uintptr_t at, size_t n, bool is_reserved)
{
	const struct range *range;

	for (range = ranges; range != NULL; range = range->next)
		if ((range->kind == RESERVED) == is_reserved &&
		    at >= range->base && at - range->base < range->bytes &&
		    n <= range->bytes - (at - range->base))
			return range;
	return NULL;
}

const struct range *range_of_locked(uintptr_t at, size_t n)
{
	return find_locked(at, n, false);
}

bool range_touches_locked(uintptr_t at, size_t n)
{
	const struct range *range;

	for (range = ranges; range != NULL; range = range->next)
		if (range->kind != RESERVED &&
		    at < range->base + range->bytes && range->base < at + n)
			return true;
	return false;
}

static void count(enum range_kind kind, int sign, size_t n)
{
	uint64_t one = (uint64_t)sign, all = one * n;

	switch (kind) {
	case DEVICE:
		alive.device += one;
		alive.device_bytes += all;
		break;
	case HOST:
		alive.host += one;
		alive.host_bytes += all;
		break;
	case REGISTERED:
		alive.registered += one;
		alive.registered_bytes += all;
		break;
	case RESERVED:
		alive.reserved += one;
		break;
	}
}

const struct range *range_add_locked(enum range_kind kind, uintptr_t base,
				     size_t n, unsigned flags, int of)
{
	struct range *range = calloc(1, sizeof(*range));

	if (range == NULL)
		return NULL;
	*range = (struct range){
		.next = ranges,
		.kind = kind,
		.base = base,
		.bytes = n,
		.device = of,
		.flags = flags,
		.id = ++made,
	};
	ranges = range;
	count(kind, 1, n);
	return range;
}

bool range_remove_locked(enum range_kind kind, uintptr_t base,
			 size_t *ret_bytes)
{
	struct range **at, *range;

	for (at = &ranges; *at != NULL; at = &(*at)->next) {
		range = *at;
		if (range->kind != kind || range->base != base)
			continue;
		*ret_bytes = range->bytes;
		count(kind, -1, range->bytes);
		*at = range->next;
		free(range);
		return true;
	}
	return false;
}

void ranges_forget_locked(int of)
{
	struct range **at = &ranges, *range;
	uintptr_t next = device;

	while ((range = *at) != NULL) {
		/* Reserved addresses and what is mapped there (vmm.c) belong to
		 * no context. */
		if (range->device != of || range->kind == RESERVED ||
		    (range->kind == DEVICE && range->flags != 0)) {
			at = &range->next;
			if (is_device_address(range->base))
				next = KV_MAX(next, range->base + range->bytes);
			continue;
		}
		if (range->kind == DEVICE)
			madvise(bytes_at(range->base), range->bytes,
				MADV_DONTNEED);
		else if (range->kind == HOST)
			munmap((void *)range->base, range->bytes);
		count(range->kind, -1, range->bytes);
		*at = range->next;
		free(range);
	}
	next_device = next;
}

void standin_alive(struct standin_alive *ret_alive)
{
	pthread_mutex_lock(&big_lock);
	*ret_alive = alive;
	pthread_mutex_unlock(&big_lock);
}

/* ---- device memory ---- */

CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t n)
{
	CUresult r = enter("cuMemAlloc_v2", CONTEXT);
	uintptr_t at;
	size_t whole = (n + KV_PAGE - 1) & ~(size_t)(KV_PAGE - 1);
	_cleanup_(context_release) CUcontext held = NULL;

	if (r != CU_OK)
		return r;
	context_hold(SYNC_ALLOC, &held);
	if (n == 0)
		return CU_INVALID_VALUE;
	pthread_mutex_lock(&big_lock);
	at = n <= settings.memory - alive.device_bytes
		     ? device_addresses_locked(whole, KV_PAGE)
		     : 0;
	if (at == 0 || mprotect(bytes_at(at), whole, PROT_READ | PROT_WRITE) ||
	    range_add_locked(DEVICE, at, n, 0, current_context()->device) ==
		    NULL) {
		r = CU_OUT_OF_MEMORY;
	} else {
		memset(bytes_at(at), DEVICE_POISON_NEW, whole);
		*ptr = at;
	}
	pthread_mutex_unlock(&big_lock);
	return r;
}

/* Operations in flight on freed memory are bugs.  A real device would wait for
 * the operations, but programs should not rely on that. */
CUresult cuMemFree_v2(CUdeviceptr ptr)
{
	CUresult r = enter("cuMemFree_v2", CONTEXT);
	size_t n;
	_cleanup_(context_release) CUcontext held = NULL;

	if (r != CU_OK || ptr == 0)
		return r;
	context_hold(SYNC_FREE, &held);
	pthread_mutex_lock(&big_lock);
	if (range_remove_locked(DEVICE, ptr, &n)) {
		memset(bytes_at(ptr), DEVICE_POISON_OLD, n);
		madvise(bytes_at(ptr), n, MADV_DONTNEED);
	} else {
		r = CU_INVALID_VALUE;
	}
	pthread_mutex_unlock(&big_lock);
	return r == CU_OK ? r : bug(r, "cuMemFree of no such memory");
}

/* ---- pointers ---- */

static CUresult pointer_attribute_locked(void *data, int attribute,
					 CUdeviceptr ptr)
{
	const struct range *range = range_of_locked(ptr, 1);
	const bool mapped = range != NULL;

	/* Reserved addresses have attributes, also where nothing is mapped. */
	if (!mapped)
		range = find_locked(ptr, 1, true);
	if (range == NULL)
		return CU_INVALID_VALUE;
	switch (attribute) {
	case CU_PTR_CONTEXT:
		/* Mapped memory (vmm.c) belongs to no context. */
		if (!mapped || (range->kind == DEVICE && range->flags != 0))
			return CU_INVALID_VALUE;
		*(CUcontext *)data = context_of(range->device);
		return CU_OK;
	case CU_PTR_MEMORY_TYPE:
		*(unsigned *)data = !mapped || range->kind == DEVICE ? 2 : 1;
		return CU_OK;
	case CU_PTR_BUFFER_ID:
		*(uint64_t *)data = range->id;
		return CU_OK;
	case CU_PTR_MAPPED:
		*(int *)data = mapped;
		return CU_OK;
	case CU_PTR_DEVICE_ORDINAL:
		*(int *)data = range->device;
		return CU_OK;
	case CU_PTR_DEVICE_POINTER:
	case CU_PTR_HOST_POINTER:
		if (attribute == CU_PTR_HOST_POINTER && range->kind == DEVICE)
			return CU_INVALID_VALUE;
		*(CUdeviceptr *)data = ptr;
		return CU_OK;
	case CU_PTR_IS_MANAGED:
		*(unsigned *)data = 0;
		return CU_OK;
	case CU_PTR_RANGE_START:
		*(CUdeviceptr *)data = range->base;
		return CU_OK;
	case CU_PTR_RANGE_SIZE:
		*(size_t *)data = range->bytes;
		return CU_OK;
	default:
		return CU_INVALID_VALUE;
	}
}

CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr ptr)
{
	CUresult r = enter("cuPointerGetAttribute", CONTEXT);

	if (r != CU_OK)
		return r;
	pthread_mutex_lock(&big_lock);
	r = pointer_attribute_locked(data, attribute, ptr);
	pthread_mutex_unlock(&big_lock);
	return r;
}
