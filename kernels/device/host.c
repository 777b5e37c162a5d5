/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.c - the device "host": pages in plain memory, copied by the processor.
 *
 * OWNS      memory of kvfs_pool_reserve: the mapping of a memfd, of the largest
 *           size, and the descriptor until host_take_fd.
 *
 * INVARIANTS
 *   (1) Pages that follow each other in memory are copied as one run.
 *   (2) The first @bytes of a memory are readable, writable and allocated, so
 *       that no access raises SIGBUS.  The rest cannot be accessed.
 *
 * LOCKING   none: a transfer owns its pages and tensors, and one thread at a time
 *           grows a memory.
 */
#include <linux/memfd.h>
#include <sys/mman.h>

#include "common/copy.h"
#include "kernels/device/device.h"
#include "kernels/kvfs.h"

/* Return how many of the @n pages from @pages on lie end to end in memory. */
static uint32_t run_of(const struct kvfs_stride *stride, const int64_t *pages,
		       uint32_t n)
{
	uint32_t run = 1;

	if (pages[0] < 0 || stride->count != 1 ||
	    stride->bytes != stride->block_stride)
		return 1;
	while (run < n && pages[run] == pages[0] + (int64_t)run)
		run++;
	return run;
}

/* Copy the range @part of a block's stride, run by run. */
static void copy_stride(const struct kvfs_stride *stride, uint32_t n_pages,
			const struct kvfs_copy *copy, struct kvfs_range part,
			bool loads)
{
	uint8_t *tensors = copy->tensors + stride->offset + part.from, *in_pool;
	uint64_t s = part.from / stride->bytes % stride->count;
	uint64_t skip = part.from % stride->bytes, left = part.to - part.from;
	uint64_t n, rows;
	uint32_t p = (uint32_t)(part.from / stride->bytes / stride->count), run;

	while (left > 0) {
		run = run_of(stride, copy->pages + p, n_pages - p);
		n = KV_MIN(run * stride->bytes - skip, left);
		/* Copy all whole runs of a page at once. */
		rows = skip ? 1
			    : KV_MAX(KV_MIN(stride->count - s, left / n), 1);
		if (copy->pages[p] >= 0) {
			in_pool = stride->base +
				  (uint64_t)copy->pages[p] *
					  stride->block_stride +
				  s * stride->segment_stride + skip;
			if (loads)
				kv_copy_rows(in_pool, stride->segment_stride,
					     tensors, n, n, rows);
			else
				kv_copy_rows(tensors, n, in_pool,
					     stride->segment_stride, n, rows);
		}
		tensors += n * rows;
		left -= n * rows;
		skip = 0;
		s += rows;
		if (s == stride->count) {
			s = 0;
			p += run;
		}
	}
}

static uint64_t bytes_of(const struct kvfs_strides *strides,
			 const struct kvfs_stride *stride)
{
	return strides->pages_per_block * stride->count * stride->bytes;
}

/* Copy a block.  Ranges and strides ascend: a stride is visited about once. */
static void copy_block(const struct kvfs_batch *batch,
		       const struct kvfs_copy *copy, bool loads)
{
	static const struct kvfs_range all = {0, UINT64_MAX};
	const struct kvfs_strides *strides = batch->strides;
	const struct kvfs_range *range =
		batch->n_ranges > 0 ? batch->ranges : &all;
	const struct kvfs_range *last = range + KV_MAX(batch->n_ranges, 1u) - 1;
	const struct kvfs_stride *stride, *first = strides->stride;
	const struct kvfs_stride *end = strides->stride + strides->n;
	struct kvfs_range part;
	uint64_t at;

	for (; range <= last; range++) {
		while (first < end &&
		       first->offset + bytes_of(strides, first) <= range->from)
			first++;
		for (stride = first; stride < end && stride->offset < range->to;
		     stride++) {
			at = stride->offset;
			part.from = KV_MAX(range->from, at) - at;
			part.to = KV_MIN(range->to - at,
					 bytes_of(strides, stride));
			copy_stride(stride, strides->pages_per_block, copy,
				    part, loads);
		}
	}
}

static int copy_blocks(const struct kvfs_batch *batch, bool loads)
{
	for (size_t i = 0; i < batch->n; i++)
		copy_block(batch, &batch->copies[i], loads);
	kv_copy_fence();
	return 0;
}

static int host_load(void *pool, const struct kvfs_batch *batch)
{
	(void)pool;
	return copy_blocks(batch, true);
}

static int host_save(void *pool, const struct kvfs_batch *batch)
{
	(void)pool;
	return copy_blocks(batch, false);
}

static void host_info(void *pool, struct kvfs_pool_info *ret_info)
{
	(void)pool;
	ret_info->path = "arena, streaming stores";
}

/* ---- memory for kvfs_pool_reserve() ---- */

struct hostmem {
	uint8_t *base;
	uint64_t bytes, max_bytes;
	int fd; /* -1: taken */
};

static void host_release(void *arg)
{
	struct hostmem *memory = arg;

	if (!memory)
		return;
	if (memory->base)
		munmap(memory->base, memory->max_bytes);
	kv_closep(&memory->fd);
	free(memory);
}

static int host_grow(void *memory, uint64_t bytes)
{
	struct hostmem *m = memory;
	uint64_t more;
	uint8_t *at;

	bytes = kv_round_up(bytes, KV_PAGE);
	if (bytes <= m->bytes)
		return 0;
	/* MADV_POPULATE_WRITE takes pages until the machine has none left:
	 * refuse more than three quarters of the machine's memory. */
	if (bytes > m->max_bytes ||
	    bytes > (uint64_t)sysconf(_SC_PHYS_PAGES) *
			    (uint64_t)sysconf(_SC_PAGESIZE) / 4 * 3)
		return -ENOMEM;
	at = m->base + m->bytes;
	more = bytes - m->bytes;
	if (mprotect(at, more, PROT_READ | PROT_WRITE) < 0)
		return -ENOMEM;
	if (madvise(at, more, MADV_POPULATE_WRITE) < 0) {
		madvise(at, more, MADV_REMOVE);
		mprotect(at, more, PROT_NONE);
		return -ENOMEM;
	}
	m->bytes = bytes;
	return 0;
}

static int host_reserve(const char *name, uint64_t bytes, uint64_t max_bytes,
			void **ret_memory, void **ret_base)
{
	struct hostmem *memory;
	void *base = MAP_FAILED;
	int r = 0;

	(void)name;
	if (max_bytes > INT64_MAX - KV_PAGE)
		return -ENOMEM;
	memory = calloc(1, sizeof(*memory));
	if (!memory)
		return -ENOMEM;
	memory->max_bytes = kv_round_up(max_bytes, KV_PAGE);
	memory->fd =
		memfd_create("kvfs-pages", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (memory->fd >= 0 &&
	    ftruncate(memory->fd, (off_t)memory->max_bytes) == 0)
		base = mmap(NULL, memory->max_bytes, PROT_NONE,
			    MAP_SHARED | MAP_NORESERVE, memory->fd, 0);
	if (base == MAP_FAILED) {
		r = -errno;
	} else {
		memory->base = base;
		madvise(base, memory->max_bytes, MADV_DONTFORK);
		r = host_grow(memory, bytes);
	}
	if (r < 0) {
		host_release(memory);
		return r == -EFBIG || r == -EINVAL ? -ENOMEM : r;
	}
	*ret_base = memory->base;
	*ret_memory = memory;
	return 0;
}

static int host_take_fd(void *memory)
{
	return kv_steal_fd(&((struct hostmem *)memory)->fd);
}

const struct kvfs_device kv_device_host = {
	.version = KVFS_DEVICE_VERSION,
	.name = "host",
	.info = host_info,
	.load = host_load,
	.save = host_save,
	.reserve = host_reserve,
	.grow = host_grow,
	.release = host_release,
	.take_fd = host_take_fd,
};
