/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scatter.h - the arithmetic of the scatter and gather kernels, for the device
 * and for tests on the host.
 *
 * A block's bytes lie end to end in staging or host memory, and in runs all
 * over the pool.  A section, a part of a stride of a block (kvfs_device.h), is
 * cut into units of at most KV_SCATTER_UNIT bytes of one run.  Units are
 * numbered through all sections of a block, and then through all blocks.  A
 * group of threads (lanes) copies a unit.
 */
#ifndef KV_KERNELS_DEVICE_SCATTER_H
#define KV_KERNELS_DEVICE_SCATTER_H

#include <stdint.h>

#ifdef __CUDACC__
#define KV_SCATTER_FN static __host__ __device__ __forceinline__
#define KV_SCATTER_ALIAS
#else
#define KV_SCATTER_FN static inline
#define KV_SCATTER_ALIAS __attribute__((__may_alias__))
#endif

/* Bytes of a unit: eight accesses of 16 bytes by each of 32 threads keep the
 * memory busy, and units of that size share evenly among threads. */
#define KV_SCATTER_UNIT 4096u
#define KV_SCATTER_THREADS 256u

/* A section: @length bytes of a stride, from byte @first on.  The stride's runs
 * are numbered page by page: run r is in page r / count. */
struct kv_section {
	uint64_t base; /* address of the stride in the pool */
	uint64_t block_stride, segment_stride;
	uint64_t bytes; /* bytes of a run */
	uint64_t count; /* runs in a page */
	uint64_t first, length;
	uint64_t at;   /* offset of byte @first in the block's bytes */
	uint32_t unit; /* number of the section's first unit in the block */
	uint32_t reserved;
};

struct kv_scatter_args {
	/* sections of a batch; in device memory, as @pages is */
	const struct kv_section *sections;
	const int64_t *pages; /* page numbers of each block; -1: skip */
	/* host address of each block's bytes; NULL: they are in staging */
	const uint64_t *blocks;
	uint64_t staging; /* address of the first block's bytes in staging */
	uint64_t staging_stride; /* distance between two blocks' bytes */
	uint32_t n_sections, pages_per_block;
	uint32_t block_units; /* number of units of a block */
	uint32_t units;	      /* block_units times the number of blocks */
	uint32_t lanes; /* threads that copy a unit: a power of two, up to 32 */
	uint32_t reserved;
};

/* A unit: @bytes at two addresses; 0 bytes: nothing to copy. */
struct kv_unit {
	uint64_t pool,
		staging; /* @staging: address in staging or on the host */
	uint64_t bytes;
};

/* Return the number of units of a section of @length bytes, from byte @first
 * on, in runs of @bytes. */
KV_SCATTER_FN uint64_t kv_scatter_units(uint64_t bytes, uint64_t first,
					uint64_t length)
{
	uint64_t runs = (first + length - 1) / bytes - first / bytes + 1;

	return runs * ((bytes + KV_SCATTER_UNIT - 1) / KV_SCATTER_UNIT);
}

KV_SCATTER_FN uint32_t kv_scatter_find(const struct kv_section *sections,
				       uint32_t n, uint32_t unit)
{
	uint32_t low = 0, high = n;

	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;

		if (sections[middle].unit <= unit)
			low = middle;
		else
			high = middle;
	}
	return low;
}

/* Compute addresses and length of unit @number, which is below @args->units. */
KV_SCATTER_FN struct kv_unit kv_scatter_unit(const struct kv_scatter_args *args,
					     uint32_t number)
{
	uint32_t block = number / args->block_units;
	uint32_t in_block = number - block * args->block_units;
	const struct kv_section *s = &args->sections[kv_scatter_find(
		args->sections, args->n_sections, in_block)];
	uint32_t a_run =
		(uint32_t)((s->bytes + KV_SCATTER_UNIT - 1) / KV_SCATTER_UNIT);
	uint32_t n = in_block - s->unit;
	uint64_t run = s->first / s->bytes + n / a_run;
	uint64_t from = (uint64_t)(n % a_run) * KV_SCATTER_UNIT;
	uint64_t to = from + KV_SCATTER_UNIT < s->bytes ? from + KV_SCATTER_UNIT
							: s->bytes;
	uint64_t begin = run * s->bytes, end = s->first + s->length;
	uint32_t page = (uint32_t)(run / s->count);
	int64_t at =
		args->pages[(uint64_t)block * args->pages_per_block + page];
	uint64_t bytes_at =
		args->blocks ? args->blocks[block]
			     : args->staging + block * args->staging_stride;
	struct kv_unit unit = {0, 0, 0};

	/* The first and the last run of the section may be partial. */
	if (begin + from < s->first)
		from = s->first - begin;
	if (begin + to > end)
		to = end - begin;
	if (at < 0 || from >= to)
		return unit;
	unit.pool = s->base + (uint64_t)at * s->block_stride +
		    (run - page * s->count) * s->segment_stride + from;
	unit.staging = bytes_at + s->at + (begin + from - s->first);
	unit.bytes = to - from;
	return unit;
}

/* Return the widest access, up to 16 bytes, for which both addresses can be
 * aligned after the same number of bytes. */
KV_SCATTER_FN uint32_t kv_scatter_width(uint64_t a, uint64_t b)
{
	uint64_t differ = (a ^ b) | 16u;

	return (uint32_t)(differ & (~differ + 1));
}

struct kv_scatter_16 {
	uint64_t half[2];
} __attribute__((aligned(16))) KV_SCATTER_ALIAS;
typedef uint64_t kv_scatter_8 KV_SCATTER_ALIAS;
typedef uint32_t kv_scatter_4 KV_SCATTER_ALIAS;
typedef uint16_t kv_scatter_2 KV_SCATTER_ALIAS;
typedef uint8_t kv_scatter_1 KV_SCATTER_ALIAS;

/* Copy every @lanes-th of @n items, from item @lane on.  Eight items are read
 * before the first is written, because the device does not wait for a read
 * until its value is needed. */
#define KV_SCATTER_LOOP(type, dst, src, n, lane, lanes)                \
	do {                                                           \
		type *to_ = (type *)(uintptr_t)(dst);                  \
		const type *from_ = (const type *)(uintptr_t)(src);    \
		type eight_[8];                                        \
		uint64_t i_ = (lane);                                  \
		int k_;                                                \
                                                                       \
		for (; i_ + 7 * (lanes) < (n); i_ += 8 * (lanes)) {    \
			for (k_ = 0; k_ < 8; k_++)                     \
				eight_[k_] = from_[i_ + k_ * (lanes)]; \
			for (k_ = 0; k_ < 8; k_++)                     \
				to_[i_ + k_ * (lanes)] = eight_[k_];   \
		}                                                      \
		for (; i_ < (n); i_ += (lanes))                        \
			to_[i_] = from_[i_];                           \
	} while (0)

/* Copy the part of @bytes that thread @lane of @lanes has to copy. */
KV_SCATTER_FN void kv_scatter_copy(uint64_t dst, uint64_t src, uint64_t bytes,
				   uint32_t lane, uint32_t lanes)
{
	uint32_t width = kv_scatter_width(dst, src);
	uint64_t head = (0 - dst) & (width - 1), body;

	if (head > bytes)
		head = bytes;
	body = (bytes - head) / width;
	KV_SCATTER_LOOP(kv_scatter_1, dst, src, head, lane, lanes);
	dst += head;
	src += head;
	if (width == 16)
		KV_SCATTER_LOOP(struct kv_scatter_16, dst, src, body, lane,
				lanes);
	else if (width == 8)
		KV_SCATTER_LOOP(kv_scatter_8, dst, src, body, lane, lanes);
	else if (width == 4)
		KV_SCATTER_LOOP(kv_scatter_4, dst, src, body, lane, lanes);
	else if (width == 2)
		KV_SCATTER_LOOP(kv_scatter_2, dst, src, body, lane, lanes);
	else
		KV_SCATTER_LOOP(kv_scatter_1, dst, src, body, lane, lanes);
	dst += body * width;
	src += body * width;
	KV_SCATTER_LOOP(kv_scatter_1, dst, src, bytes - head - body * width,
			lane, lanes);
}

/* Do the work of thread @thread of @threads in a launch: copy from staging to
 * the pool (@loads), or from the pool to staging. */
KV_SCATTER_FN void kv_scatter_run(const struct kv_scatter_args *args,
				  uint32_t thread, uint32_t threads, int loads)
{
	uint32_t group = thread / args->lanes, lane = thread % args->lanes;

	for (uint64_t number = group; number < args->units;
	     number += threads / args->lanes) {
		struct kv_unit unit = kv_scatter_unit(args, (uint32_t)number);

		kv_scatter_copy(loads ? unit.pool : unit.staging,
				loads ? unit.staging : unit.pool, unit.bytes,
				lane, args->lanes);
	}
}

#endif
