/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copy.c - the stand-in's copies and fills, host functions and values.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) A copy's memory is looked up when the copy is queued, and again when it
 *       runs: memory that was freed in between is a bug of the caller.
 *   (2) Source and destination each lie within one allocation or registration,
 *       also if two of them are adjacent, or in adjacent mappings.
 *   (3) Host memory that is not registered is copied while the caller waits, or
 *       not at all.
 *
 * LOCKING   big_lock for the look-ups.
 */
#include <sched.h>

#include "tests/gpu/standin/standin.h"

#define AT_A_TIME (256u << 10)

enum side { PINNED, PAGEABLE, NOWHERE };

/* Return whether mappings of the device that lie end to end (vmm.c) have all bytes:
 * copies may cross their boundaries. */
static bool is_mapped_locked(uintptr_t at, size_t bytes)
{
	const struct range *range;
	uintptr_t to = at + bytes;

	while (at < to && (range = range_of_locked(at, 1)) != NULL &&
	       range->kind == DEVICE && range->flags != 0)
		at = range->base + range->bytes;
	return at >= to;
}

static enum side side_of(uintptr_t at, size_t bytes, bool write)
{
	enum side side = PINNED;
	const struct range *range;

	pthread_mutex_lock(&big_lock);
	range = range_of_locked(at, bytes);
	if (range == NULL && is_mapped_locked(at, bytes))
		side = PINNED;
	else if (range == NULL)
		side = is_device_address(at) || range_touches_locked(at, bytes)
			       ? NOWHERE
			       : PAGEABLE;
	else if (write && range->kind == REGISTERED &&
		 (range->flags & CU_REGISTER_READ_ONLY) != 0)
		side = NOWHERE;
	pthread_mutex_unlock(&big_lock);
	return side;
}

bool may_touch(uintptr_t at, size_t bytes, const char *what)
{
	if (side_of(at, bytes, false) == PINNED)
		return true;
	break_device(bug(CU_ILLEGAL_ADDRESS,
			 "%s at %#lx, %zu bytes that are not there", what, at,
			 bytes));
	return false;
}

bool kernel_may_touch(uintptr_t at, size_t bytes, bool write, const char *what)
{
	const struct range *range;
	uintptr_t to = at + bytes, from = at;

	pthread_mutex_lock(&big_lock);
	while (at < to && (range = range_of_locked(at, 1)) != NULL &&
	       (range->kind != REGISTERED ||
		((range->flags & CU_REGISTER_MAPPED) != 0 &&
		 (!write || (range->flags & CU_REGISTER_READ_ONLY) == 0))))
		at = range->base + range->bytes;
	pthread_mutex_unlock(&big_lock);
	if (at >= to)
		return true;
	break_device(bug(CU_ILLEGAL_ADDRESS,
			 "%s at %#lx, %zu bytes that are not there, not mapped "
			 "for kernels, or not to be written",
			 what, from, bytes));
	return false;
}

static void copy(struct op *op)
{
	size_t done, n;

	if ((op->flags & 1) == 0 && (!may_touch(op->src, op->bytes,
						"a copy "
						"from") ||
				     !may_touch(op->dst, op->bytes, "a copy")))
		return;
	for (done = 0; done < op->bytes; done += n) {
		n = KV_MIN(op->bytes - done, AT_A_TIME);
		memcpy(bytes_at(op->dst + done), bytes_at(op->src + done), n);
		sched_yield();
	}
	__atomic_add_fetch(&copied[0], op->bytes, __ATOMIC_RELAXED);
}

static CUresult give_copy(uintptr_t dst, uintptr_t src, size_t bytes,
			  CUstream stream, bool wait)
{
	enum side from = side_of(src, bytes, false);
	enum side to = side_of(dst, bytes, true);
	bool pageable = from == PAGEABLE || to == PAGEABLE;
	struct op *op;

	if (bytes == 0)
		return CU_OK;
	if (from == NOWHERE || to == NOWHERE ||
	    (pageable && !wait && !settings.pageable))
		return CU_INVALID_VALUE;
	op = op_new(copy);
	op->is_work = true;
	op->dst = dst;
	op->src = src;
	op->bytes = bytes;
	op->flags = pageable;
	return pageable || wait ? give_and_wait(stream, op)
				: give(stream, op, NULL);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t bytes)
{
	CUresult r = enter("cuMemcpyHtoD_v2", CONTEXT);

	if (r != CU_OK || !is_device_address(dst))
		return r != CU_OK ? r : CU_INVALID_VALUE;
	return give_copy(dst, (uintptr_t)src, bytes, CU_LEGACY, true);
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t bytes)
{
	CUresult r = enter("cuMemcpyDtoH_v2", CONTEXT);

	if (r != CU_OK || !is_device_address(src))
		return r != CU_OK ? r : CU_INVALID_VALUE;
	return give_copy((uintptr_t)dst, src, bytes, CU_LEGACY, true);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t bytes,
			      CUstream stream)
{
	CUresult r = enter("cuMemcpyHtoDAsync_v2", CONTEXT);

	if (r != CU_OK || !is_device_address(dst))
		return r != CU_OK ? r : CU_INVALID_VALUE;
	return give_copy(dst, (uintptr_t)src, bytes, stream, false);
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t bytes,
			      CUstream stream)
{
	CUresult r = enter("cuMemcpyDtoHAsync_v2", CONTEXT);

	if (r != CU_OK || !is_device_address(src))
		return r != CU_OK ? r : CU_INVALID_VALUE;
	return give_copy((uintptr_t)dst, src, bytes, stream, false);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t bytes,
			      CUstream stream)
{
	CUresult r = enter("cuMemcpyDtoDAsync_v2", CONTEXT);

	if (r != CU_OK || !is_device_address(dst) || !is_device_address(src))
		return r != CU_OK ? r : CU_INVALID_VALUE;
	return give_copy(dst, src, bytes, stream, false);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes,
		       CUstream stream)
{
	CUresult r = enter("cuMemcpyAsync", CONTEXT);

	return r != CU_OK ? r : give_copy(dst, src, bytes, stream, false);
}

/* ---- batches ---- */

/* Refuse batches in the legacy stream and in captures, because drivers refuse
 * them. */
static CUresult give_batch(const CUdeviceptr *dsts, const CUdeviceptr *srcs,
			   const size_t *sizes, size_t n, CUstream stream)
{
	struct CUstream_st *its;
	CUresult r = CU_OK;
	bool captured;
	size_t i;

	if (n == 0 || stream == NULL || stream == CU_LEGACY)
		return CU_INVALID_VALUE;
	pthread_mutex_lock(&big_lock);
	its = stream_of_locked(stream);
	captured = its != NULL && *stream_capture_locked(its) != NULL;
	pthread_mutex_unlock(&big_lock);
	if (captured)
		return CU_CAPTURE_UNSUPPORTED;
	for (i = 0; i < n && r == CU_OK; i++)
		r = give_copy(dsts[i], srcs[i], sizes[i], stream, false);
	return r;
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes,
			    size_t n, CUcopyAttributes *attributes,
			    size_t *first, size_t n_attributes, size_t *fail,
			    CUstream stream)
{
	CUresult r = enter("cuMemcpyBatchAsync", CONTEXT);

	if (r != CU_OK)
		return r;
	*fail = SIZE_MAX;
	if (n_attributes != 1 || attributes->order != 1 || first[0] != 0)
		return CU_INVALID_VALUE;
	return give_batch(dsts, srcs, sizes, n, stream);
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs,
			       size_t *sizes, size_t n,
			       CUcopyAttributes *attributes, size_t *first,
			       size_t n_attributes, CUstream stream)
{
	CUresult r = enter("cuMemcpyBatchAsync_v2", CONTEXT);

	if (r != CU_OK)
		return r;
	if (n_attributes != 1 || attributes->order != 1 || first[0] != 0)
		return CU_INVALID_VALUE;
	return give_batch(dsts, srcs, sizes, n, stream);
}

/* ---- fills ---- */

static void fill(struct op *op)
{
	uint32_t *at = bytes_at(op->dst);
	size_t i;

	if (!may_touch(op->dst, op->bytes, "a fill"))
		return;
	for (i = 0; i < op->bytes / 4; i++)
		__atomic_store_n(&at[i], op->value, __ATOMIC_RELAXED);
	memset(at + i, (int)(op->value & 0xff), op->bytes % 4);
}

static CUresult give_fill(CUdeviceptr dst, uint32_t value, size_t bytes,
			  CUstream stream)
{
	struct op *op;

	if (!is_device_address(dst) || dst % 4 != 0 ||
	    side_of(dst, bytes, true) != PINNED)
		return CU_INVALID_VALUE;
	op = op_new(fill);
	op->is_work = true;
	op->dst = dst;
	op->bytes = bytes;
	op->value = value;
	return give(stream, op, NULL);
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n,
			 CUstream stream)
{
	CUresult r = enter("cuMemsetD8Async", CONTEXT);

	return r != CU_OK ? r : give_fill(dst, value * 0x01010101u, n, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned value, size_t n,
			  CUstream stream)
{
	CUresult r = enter("cuMemsetD32Async", CONTEXT);

	return r != CU_OK ? r : give_fill(dst, value, 4 * n, stream);
}

/* ---- host functions and values in streams ---- */

/* Like a driver, run host functions one at a time: a blocked one blocks all. */
static pthread_mutex_t host_thread = PTHREAD_MUTEX_INITIALIZER;

static void call(struct op *op)
{
	bool one = settings.one_host_thread;

	if (one)
		pthread_mutex_lock(&host_thread);
	in_host_function = true;
	op->fn(op->arg);
	in_host_function = false;
	if (one)
		pthread_mutex_unlock(&host_thread);
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn *fn, void *arg)
{
	CUresult r = enter("cuLaunchHostFunc", CONTEXT);
	struct op *op;

	if (r != CU_OK)
		return r;
	op = op_new(call);
	op->fn = fn;
	op->arg = arg;
	return give(stream, op, NULL);
}

static bool value_has_come(uint32_t is, uint32_t wanted, unsigned how)
{
	switch (how) {
	case 0:
		return (int32_t)(is - wanted) >= 0;
	case 1:
		return is == wanted;
	case 2:
		return (is & wanted) != 0;
	default:
		return ~(is | wanted) != 0;
	}
}

static void wait_value(struct op *op)
{
	while (!device_is_broken()) {
		if (!may_touch(op->dst, 4, "a value waited for"))
			return;
		if (value_has_come(
			    __atomic_load_n((uint32_t *)bytes_at(op->dst),
					    __ATOMIC_ACQUIRE),
			    op->value, op->flags))
			return;
		usleep(50);
	}
}

static CUresult give_value(void (*run)(struct op *op), CUstream stream,
			   CUdeviceptr at, uint32_t value, unsigned flags)
{
	struct op *op;

	if (!settings.mem_ops)
		return CU_NOT_SUPPORTED;
	if (at % 4 != 0 || (flags & ~3u) != 0 || side_of(at, 4, true) != PINNED)
		return CU_INVALID_VALUE;
	op = op_new(run);
	op->is_wait = run == wait_value;
	op->dst = at;
	op->value = value;
	op->flags = flags;
	return give(stream, op, NULL);
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr at, uint32_t value,
				unsigned flags)
{
	CUresult r = enter("cuStreamWaitValue32_v2", CONTEXT);

	return r != CU_OK ? r
			  : give_value(wait_value, stream, at, value, flags);
}
