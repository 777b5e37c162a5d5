/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.c - the device "host": pages in plain memory, copied by the processor.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) Pages that follow each other in memory are copied as one run.
 *
 * LOCKING   none: pages and tensors are the transfer's while it runs.
 */
#include "copy.h"
#include "kernels/device.h"
#include "kernels/kvfs.h"

/* How many of the @n pages from @pages on lie one behind the other. */
static uint32_t run_of(const struct kv_piece *piece, const int64_t *pages,
		       uint32_t n)
{
	uint32_t run = 1;

	if (pages[0] < 0 || piece->count != 1 ||
	    piece->bytes != piece->block_stride)
		return 1;
	while (run < n && pages[run] == pages[0] + (int64_t)run)
		run++;
	return run;
}

static void load_page(const struct kv_piece *piece, int64_t page,
		      const uint8_t *src)
{
	uint8_t *dst = piece->base + (uint64_t)page * piece->block_stride;
	uint64_t s;

	for (s = 0; s < piece->count; s++) {
		kv_copy_stream(dst, src, piece->bytes);
		dst += piece->segment_stride;
		src += piece->bytes;
	}
}

static void save_page(const struct kv_piece *piece, int64_t page, uint8_t *dst)
{
	const uint8_t *src = piece->base + (uint64_t)page * piece->block_stride;
	uint64_t s;

	for (s = 0; s < piece->count; s++) {
		kv_copy_stream(dst, src, piece->bytes);
		src += piece->segment_stride;
		dst += piece->bytes;
	}
}

static void load_block(const struct kv_pieces *pieces,
		       const struct kv_copy *copy)
{
	const struct kv_piece *piece;
	const int64_t *pages = copy->pages;
	uint32_t p, run;

	for (piece = pieces->piece; piece < pieces->piece + pieces->n; piece++)
		for (p = 0; p < pieces->pages_per_block; p += run) {
			struct kv_piece whole = *piece;

			run = run_of(piece, pages + p,
				     pieces->pages_per_block - p);
			whole.bytes *= run;
			if (pages[p] >= 0)
				load_page(&whole, pages[p],
					  copy->tensors + piece->offset +
						  p * piece->bytes *
							  piece->count);
		}
}

static void save_block(const struct kv_pieces *pieces,
		       const struct kv_copy *copy)
{
	const struct kv_piece *piece;
	const int64_t *pages = copy->pages;
	uint32_t p, run;

	for (piece = pieces->piece; piece < pieces->piece + pieces->n; piece++)
		for (p = 0; p < pieces->pages_per_block; p += run) {
			struct kv_piece whole = *piece;

			run = run_of(piece, pages + p,
				     pieces->pages_per_block - p);
			whole.bytes *= run;
			save_page(&whole, pages[p],
				  copy->tensors + piece->offset +
					  p * piece->bytes * piece->count);
		}
}

static int host_load(void *pool, const struct kv_batch *batch)
{
	size_t i;

	(void)pool;
	for (i = 0; i < batch->n; i++)
		load_block(batch->pieces, &batch->copies[i]);
	return 0;
}

static int host_save(void *pool, const struct kv_batch *batch)
{
	size_t i;

	(void)pool;
	for (i = 0; i < batch->n; i++)
		save_block(batch->pieces, &batch->copies[i]);
	return 0;
}

static void host_info(void *pool, struct kvfs_pool_info *ret_info)
{
	(void)pool;
	ret_info->path = "arena, streaming stores";
}

const struct kv_device kv_device_host = {
	.version = KV_DEVICE_VERSION,
	.name = "host",
	.info = host_info,
	.load = host_load,
	.save = host_save,
};
