/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch.c - a block's bytes from SSD into memory that is not the arena's, read
 * and verified on the caller's thread; and what follows when that fails.
 *
 * OWNS       the memory of requests that nobody waits for any more.
 *
 * LOCKING    cache->lock, but not during I/O.
 */
#include "cache/block/block.h"
#include "cache/ssd/ssd.h"

#include <sys/mman.h>

struct fetch {
	struct kv_io io; /* first */
	struct kv_cache *cache;
	struct kv_block *block;
	uint64_t room;
};

uint8_t *kv_pages_new(uint64_t bytes)
{
	void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return pages == MAP_FAILED ? NULL : pages;
}

void kv_pages_free(uint8_t *pages, uint64_t bytes)
{
	if (pages)
		munmap(pages, bytes);
}

/* It ended after all.  Until now the extent was the block's, too. */
static void ended_late(struct kv_io *io, int status)
{
	struct fetch *fetch = (struct fetch *)io;

	(void)status;
	kv_pages_free(io->data, fetch->room);
	kv_block_put(fetch->cache, fetch->block);
	free(fetch);
}

static int aim(struct fetch *fetch, uint8_t *data)
{
	struct kv_cache *cache = fetch->cache;
	struct kv_block *block = fetch->block;
	const struct kv_segfile *file;
	int r = 0;

	kv_lock(cache);
	if (block->file == KV_NONE) {
		r = -ENOENT;
	} else if (kv_health_offline_locked(cache)) {
		r = -EIO;
	} else {
		file = kv_segfile_at(cache, block->file);
		fetch->io = (struct kv_io){
			.op = KV_IO_READ,
			.fd = file->fd,
			.buffer = -1,
			.data = data,
			.offset = block->slot_number * file->slot_bytes,
			.bytes = KV_PAGE + kv_round_up(block->length, KV_PAGE),
			.done = ended_late,
		};
		block->refs++;
	}
	kv_unlock(cache);
	return r;
}

static int read_once(struct kv_cache *cache, struct kv_block *block,
		     uint8_t **data, uint64_t room)
{
	struct fetch *fetch = calloc(1, sizeof(*fetch));
	int r;

	if (!fetch)
		return -ENOMEM;
	fetch->cache = cache;
	fetch->block = block;
	fetch->room = room;
	r = aim(fetch, *data);
	if (r < 0) {
		free(fetch);
		return r;
	}
	r = kv_ring_wait(cache->ring, &fetch->io);
	if (r == -ETIMEDOUT) {
		*data = NULL; /* and fetch is the request's, too */
		return r;
	}
	free(fetch);
	kv_health_note(cache, r);
	kv_block_put(cache, block);
	return r;
}

int kv_block_fetch(struct kv_cache *cache, struct kv_block *block,
		   uint8_t **data, uint64_t room)
{
	int r = -EIO, io = 0;

	for (int try = 0; try < 2 && r < 0; try++) {
		io = read_once(cache, block, data, room);
		if (io == -ETIMEDOUT || io == -ENOENT || io == -ENOMEM)
			return io;
		r = io == 0 ? kv_block_verify(cache, block, *data) : io;
		if (r == -ENOENT) /* its removal was under way */
			return r;
	}
	return r < 0 ? kv_block_judge(cache, block, io, r) : 0;
}

/* It is damaged: forget it, and never use its extent again. */
static void quarantine(struct kv_cache *cache, struct kv_block *block)
{
	kv_lock(cache);
	cache->stats.corrupt++;
	if (!(block->flags & BLOCK_REMOVED) && block->file != KV_NONE) {
		kv_extent_forget_locked(cache, block);
		cache->stats.bad_slots++;
		kv_block_space(cache, block)->unpersisted++;
		if (block->slot) /* it is whole there: write it elsewhere */
			kv_write_enqueue_locked(cache, block, false);
		else
			kv_block_remove_locked(cache, block);
	}
	kv_unlock(cache);
}

/* The file is too short for it, or the device has lost what was there. */
static bool lost(int io)
{
	return io == -ENODATA || io == -EILSEQ;
}

int kv_block_judge(struct kv_cache *cache, struct kv_block *block, int io,
		   int r)
{
	bool offline;

	if (io == 0 && r != -EBADMSG)
		return r;
	kv_lock(cache);
	offline = kv_health_offline_locked(cache);
	kv_unlock(cache);
	if (io < 0 && !lost(io) && (offline || !kv_health_probe(cache)))
		return r;
	quarantine(cache, block);
	return -EBADMSG;
}
