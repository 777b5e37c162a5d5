/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sweep.c - nothing that was removed may return, not even when the index is
 * made anew from the segment files.
 *
 * After an end that was not clean a free slot may hold the prologue of a write
 * that was never committed, or of a block whose removal was.  Such prologues
 * are made zeros before any slot is taken and before anything is committed.
 * Files whose trailer is missing or tells another size of slots, as a crash or
 * format 1 leave them, get theirs then: not before, as their free slots could
 * hold anything.
 *
 * OWNS     cache->ssd.unswept.
 * LOCKING  cache->lock for one file's description at a time; none during I/O.
 *          Free slots stay free meanwhile: the writer waits.
 */
#include "cache/ssd/ssd.h"
#include "index/segfile.h"
#include "common/crash_point.h"

struct sweep {
	int fd;
	uint64_t slot_bytes;
	uint32_t slots;
	uint64_t *taken; /* copy of the bitmap */
	bool trailer;
	struct kv_found *found;
	uint64_t zeroed, unreadable;
};

/* -ENOENT: there is no such file. */
static int describe(struct kv_cache *cache, uint32_t id, struct sweep *sweep)
{
	struct kv_segfile *file;
	size_t words;
	int r = -ENOENT;

	kv_lock(cache);
	file = kv_segfile_at(cache, id);
	if (file) {
		sweep->fd = file->fd;
		sweep->slot_bytes = file->slot_bytes;
		sweep->slots = file->slots;
		sweep->trailer = file->trailer;
		words = (file->slots + 63) / 64;
		sweep->taken = malloc(words * sizeof(*sweep->taken));
		r = sweep->taken ? 0 : -ENOMEM;
		if (r == 0)
			memcpy(sweep->taken, file->bitmap,
			       words * sizeof(*sweep->taken));
	}
	kv_unlock(cache);
	return r;
}

static int zero_strays(struct kv_cache *cache, struct sweep *sweep)
{
	uint64_t before = sweep->zeroed;
	int r = 0;

	for (uint32_t at = 0; r == 0 && at < sweep->slots; at += KV_SCAN_MAX) {
		uint32_t n = KV_MIN(KV_SCAN_MAX, sweep->slots - at);

		kv_segfile_scan(sweep->fd, cache->info.store, sweep->slot_bytes,
				at, n, sweep->taken, sweep->found);
		for (uint32_t i = 0; r == 0 && i < n; i++) {
			sweep->unreadable +=
				sweep->found[i].state == KV_FOUND_UNREADABLE;
			if (sweep->found[i].state != KV_FOUND_BLOCK)
				continue;
			r = kv_segfile_zero(sweep->fd, sweep->slot_bytes,
					    at + i);
			sweep->zeroed++;
		}
	}
	if (r == 0 && sweep->zeroed > before && fdatasync(sweep->fd) < 0)
		r = -errno;
	return r;
}

static int sweep_file(struct kv_cache *cache, uint32_t id, struct sweep *sweep)
{
	int r = describe(cache, id, sweep);

	if (r == -ENOENT)
		return 0;
	if (r == 0)
		r = zero_strays(cache, sweep);
	free(kv_steal(sweep->taken));
	KV_POINT("sweep.zeroed");
	if (r < 0 || sweep->trailer)
		return r;
	r = kv_trailer_write(sweep->fd, id, cache->info.store,
			     cache->ssd.segment_bytes, sweep->slot_bytes);
	if (r < 0)
		return r;
	kv_lock(cache);
	kv_segfile_at(cache, id)->trailer = true;
	kv_unlock(cache);
	return 0;
}

int kv_sweep(struct kv_cache *cache)
{
	struct sweep sweep = {0};
	int r = 0, failed = 0;

	sweep.found = malloc(KV_SCAN_MAX * sizeof(*sweep.found));
	for (uint32_t id = 0; sweep.found && id < cache->ssd.n_files; id++) {
		r = sweep_file(cache, id, &sweep);
		if (r < 0) /* the others none the less */
			failed = r;
	}
	if (!sweep.found)
		failed = -ENOMEM;
	free(sweep.found);
	kv_lock(cache);
	cache->stats.io_errors += sweep.unreadable;
	if (sweep.zeroed)
		kv_note(cache, "swept=%llu prologues of no block",
			(unsigned long long)sweep.zeroed);
	if (failed)
		kv_note(cache, "sweep_failed=%s", strerror(-failed));
	cache->ssd.unswept = false;
	pthread_cond_broadcast(&cache->ssd.write);
	kv_unlock(cache);
	return failed;
}
