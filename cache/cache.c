/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache.c - the cache as a whole: open, scrub, describe, close.
 *
 * OWNS       the kv_cache.  Order of start: store, ring, arena, readers,
 *            writers, housekeeper; they end in reverse order.  Once a second
 *            the housekeeper evicts blocks beyond quotas, removes expired
 *            blocks, and checks the SSD (health.c).  The housekeeper does no
 *            I/O, because it must notice I/O that does not end.
 *            The scrubber and its buffer.  The scrubber reads the store file by
 *            file, again and again, at a limited rate, to find damaged blocks
 *            before a client asks for them.
 *
 * INVARIANTS
 *   (1) After each block the scrubber rests for as long as the block's bytes
 *       take at the given rate: it reads at most rate * time and one block.
 *   (2) While blocks are being written the scrubber rests up to BUSY times as
 *       long and no longer, so that a busy tier is scrubbed as well.
 *
 * LOCKING    see core.h.  The scrubber releases the lock for each read and
 *            every AT_ONCE slots.
 */
#include "cache/block/block.h"
#include "cache/core/causes.h"
#include "cache/core/account.h"
#include "cache/core/table.h"
#include "cache/dram/dram.h"
#include "cache/remote/tier.h"
#include "cache/space/space.h"
#include "cache/ssd/ssd.h"
#include "cache/store/store.h"
#include "common/crash_point.h"
#include "common/bytes.h"
#include "index/sidecar.h"

#include <search.h>
#include <stdio.h>
#include <sys/random.h>
#include <sys/resource.h>

#define RING_DEPTH 128u
#define RING_BYTES (96u << 20)
/* A sync or a commit waits for reads at the device: allow few bytes, for a
 * short wait, but enough to keep any SSD busy. */
#define RING_READ_BYTES (16u << 20)
#define AT_ONCE 4096u /* free slots examined before the lock is released */
#define BUSY 10u
#define REST_NS 20000000u /* shortest rest of the scrubber between blocks */
#define SECOND 1000000000u

/* ---- the scrubber ---- */

struct buffer {
	uint8_t *data;
	uint64_t room;
};

static void rest(struct kv_cache *cache, uint64_t ns)
{
	kv_unlock(cache);
	kv_periodic_rest(&cache->scrubber.periodic, ns);
	kv_lock(cache);
}

static bool stopping(const struct kv_cache *cache)
{
	return kv_periodic_stopping(&cache->scrubber.periodic);
}

/* Read and verify a block, and rest to keep to the rate.  Drops the lock
 * meanwhile. */
static void scrub_block(struct kv_cache *cache, struct buffer *buffer,
			struct kv_block *block)
{
	const uint64_t bytes = KV_PAGE + kv_round_up(block->length, KV_PAGE);
	const uint64_t begun = kv_now_ns();
	uint64_t ns = 0;
	int r;

	block->refs++;
	kv_unlock(cache);
	if (buffer->room < bytes) {
		kv_pages_free(buffer->data, buffer->room);
		buffer->data = kv_pages_new(bytes);
		buffer->room = buffer->data ? bytes : 0;
	}
	if (buffer->data) {
		ns = (uint64_t)((double)bytes / (double)cache->config.scrub *
				SECOND);
		r = kv_block_fetch(cache, block, &buffer->data, buffer->room);
		buffer->room = buffer->data ? buffer->room : 0;
		kv_lock(cache);
		cache->stats.scrubbed += bytes;
		cache->scrubber.pass_bytes += bytes;
		cache->scrubber.corrupt += r == -EBADMSG;
		kv_unlock(cache);
	}
	kv_block_put(cache, block);
	kv_lock(cache);
	if (cache->ssd.writing)
		ns *= BUSY;
	/* Rest for several small blocks at once: each rest costs a wake-up. */
	cache->scrubber.owed_ns += ns - KV_MIN(ns, kv_now_ns() - begun);
	if (cache->scrubber.owed_ns >= REST_NS) {
		rest(cache, cache->scrubber.owed_ns);
		cache->scrubber.owed_ns = 0;
	}
}

static void scrub_all(void *arg)
{
	struct kv_cache *cache = arg;
	struct kv_scrubber *scrubber = &cache->scrubber;
	struct buffer buffer = {0};

	kv_lock(cache);
	scrubber->pass_bytes = 0;
	scrubber->pass_total = cache->ssd.used;
	for (uint32_t id = 0; id < cache->ssd.n_files; id++) {
		const struct kv_segfile *file = kv_segfile_at(cache, id);

		/* The slot size may change whenever the lock is released. */
		for (uint32_t i = 0;
		     file && i < file->slots && !stopping(cache); i++) {
			struct kv_block *block;

			while (cache->health.why && !stopping(cache))
				rest(cache, SECOND);
			block = i < file->slots
					? kv_extent_block(cache, file, i)
					: NULL;
			if (block && block->length &&
			    !(block->flags & (BLOCK_READING | BLOCK_REMOVED)))
				scrub_block(cache, &buffer, block);
			else if (i % AT_ONCE == AT_ONCE - 1)
				kv_yield(cache);
		}
	}
	if (scrubber->pass_bytes && !stopping(cache)) {
		scrubber->passes++;
		scrubber->pass_ended_ns = kv_wall_ns();
	}
	kv_unlock(cache);
	kv_pages_free(buffer.data, buffer.room);
}

/* ---- opening and closing ---- */

static void free_extras(struct kv_cache *cache)
{
	kv_snapshots_fini(cache);
	tdestroy(cache->pins.tree, free);
	kv_ssd_fini(cache);
	kv_spaces_free(cache);
	kv_table_fini(&cache->table);
	kv_eviction_fini(&cache->arena.eviction);
	kv_ghost_fini(&cache->ghost);
	free(cache->curve);
	kv_causes_fini(cache);
	free(cache->deferred.gone);
	free(cache->deferred.retired);
	kv_accounts_free(cache->accounts);
	free(cache->secret);
	free(cache->notes);
	free(cache->store);
	pthread_mutex_destroy(&cache->lock);
	free(cache);
}

static void keep_house(void *arg)
{
	struct kv_cache *cache = arg;

	kv_lock(cache);
	kv_quotas_keep(cache);
	kv_blocks_expire(cache);
	kv_spaces_reap(cache);
	kv_devices_forget_locked(cache);
	cache->room = true;
	if (cache->ssd.on && kv_health_check_locked(cache))
		kv_reads_expire_locked(cache);
	kv_unlock(cache);
	kv_bounce_trim(cache->bounce);
}

static int close_parts(struct kv_cache *cache, bool clean)
{
	const struct kv_ssd *ssd = &cache->ssd;
	bool failed = false;
	int r, error;
	uint64_t n;

	kv_remote_stop(cache);
	kv_periodic_stop(&cache->scrubber.periodic);
	kv_periodic_stop(&cache->housekeeper);
	if (clean)
		kv_store_before_stop(cache);
	KV_POINT("unmount.begin");
	r = kv_writer_stop(cache);
	/* Blocks that the writer could not write are lost. */
	n = cache->config.read_only ? 0
				    : (uint64_t)ssd->dirty + ssd->unpersisted;
	error = !ssd->on || ssd->frozen ? EOPNOTSUPP
		: ssd->error		? -ssd->error
		: ssd->full		? -ssd->full
					: ENOSPC;
	if (n > 0 && error != EOPNOTSUPP) {
		if (error != ENOSPC)
			kv_warn(cache, "lost",
				"%llu blocks could not be written to SSD, and "
				"are lost: %s",
				(unsigned long long)n, strerror(error));
		else
			kv_warn(cache, "lost",
				"%llu blocks found no room on SSD, and end "
				"with the mount",
				(unsigned long long)n);
	}
	KV_POINT("unmount.written");
	if (r == 0)
		r = kv_reader_stop(cache);
	for (uint32_t i = 0; r == 0 && i < ssd->n_devices; i++)
		if (ssd->devices[i].ring)
			r = kv_ring_drain(ssd->devices[i].ring);
	if (r < 0)
		return r;
	kv_arena_close(cache);
	/* umount.kvfs reads this, as root may not ask a mount with root=squash. */
	if (cache->lock_fd >= 0)
		(void)kv_lock_write(cache->lock_fd, "", (long long)n,
				    n ? error : 0);
	for (uint32_t i = 0; i < ssd->n_devices; i++) {
		/* The free slots of a device that failed must be swept. */
		failed |= ssd->devices[i].dir >= 0 && ssd->devices[i].failed;
		kv_ring_free(ssd->devices[i].ring);
	}
	kv_bounce_free(cache->bounce);
	/* Blocks without room on SSD are lost, but the store is still clean. */
	kv_store_close(cache, clean && !failed && !ssd->unswept &&
				      !ssd->n_unswept && !ssd->deletions.n &&
				      !ssd->deletions.unqueued &&
				      !ssd->updates.n &&
				      (!ssd->dirty || ssd->error == -ENOSPC));
	free_extras(cache);
	return 0;
}

static struct kv_evict_node *dram_node(void *cache, uint32_t block)
{
	return &kv_table_at(&((struct kv_cache *)cache)->table, block)
			->slot->node;
}

static struct kv_evict_node *ssd_node(void *cache, uint32_t block)
{
	return &kv_table_at(&((struct kv_cache *)cache)->table, block)->node;
}

static int start(struct kv_cache *cache, char **ret_why)
{
	const struct kv_cache_config *config = &cache->config;
	const struct kv_ring_config ring = {
		.depth = RING_DEPTH,
		.bytes = RING_BYTES,
		.read_bytes = RING_READ_BYTES,
		.buffers = (unsigned)(config->dram >> 23) + 1,
		.patience = config->io_patience,
		.backend = config->io,
	};
	struct rlimit limit;
	const char *io;
	int r;

	r = kv_eviction_init(&cache->arena.eviction, config->evict,
			     &cache->clock, dram_node, cache);
	if (r == 0)
		r = kv_eviction_init(&cache->ssd.eviction, config->evict,
				     &cache->clock, ssd_node, cache);
	if (r < 0)
		return kv_why(ret_why, r, "evict=%s: %s", config->evict,
			      r == -EINVAL ? "no such policy" : strerror(-r));
	/* Make a ghost for blocks of 64 KiB: unused pages take no memory. */
	r = kv_ghost_init(&cache->ghost, KV_MAX(config->dram >> 16, 1u << 14) *
						 KV_GHOST_FOR_A_BLOCK);
	if (r == 0)
		r = kv_miss_curve_new(&cache->curve);
	if (r < 0)
		return kv_why(ret_why, r, "out of memory");
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
	kv_uses_begin(cache, 0);
	if (config->store) {
		r = kv_store_open(cache, ret_why);
		if (r < 0)
			return r;
	}
	r = 0;
	for (uint32_t i = 0; r == 0 && i < cache->ssd.n_devices; i++)
		if (i == 0 || !cache->ssd.devices[i].failed)
			r = kv_ring_new(&ring, &cache->ssd.devices[i].ring);
	if (r < 0)
		return kv_why(ret_why, r, "cannot start I/O: %s", strerror(-r));
	io = kv_ring_describe(cache->ssd.devices[0].ring);
	if (cache->ssd.on && !config->io && strcmp(io, KV_RING_BEST) != 0)
		kv_warn(cache, "fallback", "requests to the SSD by %s", io);
	r = kv_arena_open(cache);
	if (r < 0)
		return kv_why(ret_why, r, "dram=%llu: cannot get memory: %s",
			      (unsigned long long)config->dram, strerror(-r));
	kv_quotas_settle(cache);
	r = kv_reader_start(cache);
	if (r == 0 && cache->ssd.on && !config->read_only)
		r = kv_writer_start(cache);
	if (r == 0)
		r = kv_periodic_start(&cache->housekeeper, "kvfs-keep", SECOND,
				      keep_house, cache);
	if (r == 0 && cache->ssd.on && config->scrub)
		r = kv_periodic_start(&cache->scrubber.periodic, "kvfs-scrub",
				      SECOND, scrub_all, cache);
	if (r < 0)
		return kv_why(ret_why, r, "cannot start: %s", strerror(-r));
	r = kv_seeds_open(cache, ret_why);
	if (r < 0)
		return r;
	kv_seeds_settle(cache);
	return kv_remote_start(cache, ret_why);
}

int kv_cache_open(const struct kv_cache_config *config,
		  struct kv_cache **ret_cache, char **ret_why)
{
	struct kv_cache *cache = calloc(1, sizeof(*cache));
	int r = 0;

	*ret_why = NULL;
	if (!cache)
		return kv_why(ret_why, -ENOMEM, "out of memory");
	pthread_mutex_init(&cache->lock, NULL);
	cache->config = *config;
	if (!config->io_patience)
		cache->config.io_patience = KV_IO_PATIENCE;
	if (!config->io_retry)
		cache->config.io_retry = 1000000000u;
	if (config->read_only)
		cache->config.remote.write = KV_WRITEBACK_NONE;
	cache->store = strdup(config->store ? config->store : "");
	cache->store_fd = cache->lock_fd = -1;
	cache->ssd.devices[0].dir = cache->ssd.devices[0].lock_fd = -1;
	cache->ssd.n_devices = 1;
	cache->spaces_dir = -1;
	TAILQ_INIT(&cache->short_of_room);
	TAILQ_INIT(&cache->snapshots.dirty);
	cache->snapshots.write = kv_snapshots_write;
	cache->block_hooks = &kv_block_hooks;
	kv_cond_init(&cache->settled);
	kv_cond_init(&cache->changed);
	cache->info.next_space = 1;
	cache->table.free = KV_NONE;
	cache->may_expire = true;
	if (getrandom(&cache->epoch, sizeof(cache->epoch), 0) < 0 ||
	    getrandom(&cache->table.seed, sizeof(cache->table.seed), 0) < 0)
		r = -EIO;
	else if (!cache->store || kv_accounts_new(&cache->accounts) < 0 ||
		 kv_causes_init(cache) < 0 || kv_ssd_init(cache) < 0)
		r = -ENOMEM;
	if (r < 0) {
		free_extras(cache);
		return kv_why(ret_why, r, "cannot start: %s", strerror(-r));
	}
	r = start(cache, ret_why);
	if (r < 0) {
		/* A store that was clean at mount is clean unless it was
		 * changed. */
		close_parts(cache, !cache->after_crash && !cache->info.clean);
		return r;
	}
	*ret_cache = cache;
	return 0;
}

int kv_cache_close(struct kv_cache *cache)
{
	return close_parts(cache, true);
}

const uint8_t *kv_cache_store_id(struct kv_cache *cache)
{
	return cache->info.store;
}

struct kv_accounts *kv_cache_accounts(struct kv_cache *cache)
{
	return cache->accounts;
}

uint64_t kv_cache_epoch(struct kv_cache *cache)
{
	return cache->epoch;
}

static const char *ssd_state(struct kv_cache *cache)
{
	const struct kv_ssd *ssd = &cache->ssd;

	if (!ssd->on || ssd->frozen)
		return "off";
	if (kv_ring_failed(ssd->devices[0].ring))
		return "ring failed";
	if (cache->health.why)
		return cache->health.why;
	if (ssd->error == -ETIMEDOUT)
		return "writes do not end";
	if (ssd->error)
		return strerror(-ssd->error);
	if (ssd->full == -ENOSPC)
		return "no room on the disk for more";
	for (uint32_t i = 1; i < ssd->n_devices; i++)
		if (ssd->devices[i].failed &&
		    (ssd->devices[i].ring || ssd->devices[i].files))
			return ssd->devices[i].ring ? "a directory failed"
						    : "a directory is missing";
	return ssd->full || (ssd->stalled && !TAILQ_EMPTY(&ssd->unusable))
		       ? strerror(EIO)
		       : "online";
}

void kv_cache_stats(struct kv_cache *cache, struct kv_cache_stats *ret_stats)
{
	static const char *const ways[] = {[KV_WEIGH_LEARNED] = "as learned",
					   [KV_WEIGH_AGE] = "by age",
					   [KV_WEIGH_USES] = "by uses"};
	const struct kv_scrubber *scrubber = &cache->scrubber;
	const struct kv_arena *arena = &cache->arena;
	const struct kv_eviction *dram = &arena->eviction;
	struct kv_cache_stats *s = ret_stats;
	struct kv_ssd *ssd = &cache->ssd;
	const struct kv_segment *segment;
	const struct kv_class *class;
	struct kv_ring_stuck stuck;

	kv_lock(cache);
	*s = cache->stats;
	s->dram_total = arena->max * arena->segment_bytes;
	s->dram_used = arena->used;
	s->dram_segments =
		arena->made - arena->retired_count - arena->kept_count;
	s->dram_segments_max = arena->max;
	s->dram_retired = arena->retired_count + arena->kept_count;
	s->dram_huge = arena->huge;
	/* Misses after the first of a look-up, and those not looked into. */
	s->causes[KV_CAUSE_NONE] = s->lookups.misses;
	for (unsigned i = KV_CAUSE_NONE + 1; i < KV_CAUSES; i++)
		s->causes[KV_CAUSE_NONE] -=
			KV_MIN(s->causes[i], s->causes[KV_CAUSE_NONE]);
	s->ssd_total = ssd->frozen ? 0 : ssd->cap;
	s->ssd_used = ssd->used;
	s->ssd_files = ssd->live_files;
	s->spaces = cache->live_spaces;
	LIST_FOREACH(class, &arena->classes, link)
		TAILQ_FOREACH(segment, &class->segments, link)
			s->dram_blocks += segment->slots - segment->free;
	for (uint32_t i = 0; i < cache->spaces.n; i++)
		if (!cache->spaces.sorted[i]->removed) {
			s->blocks += cache->spaces.sorted[i]->blocks;
			s->snapshots += cache->spaces.sorted[i]->n_snapshots;
		}
	s->pinned_bytes = cache->pins.bytes;
	for (uint32_t id = 0; id < ssd->n_files; id++)
		if (ssd->files[id])
			s->ssd_blocks += ssd->files[id]->used;
	s->dirty_blocks = ssd->dirty + ssd->n_adopted;
	s->dram_alone = ssd->unpersisted;
	stuck = kv_health_stuck_locked(cache, true);
	s->stuck = stuck.reads + stuck.writes;
	s->ssd_state = ssd_state(cache);
	s->ssd_degraded =
		ssd->on && !ssd->frozen && strcmp(s->ssd_state, "online") != 0;
	s->scrub_passes = scrubber->passes;
	s->scrub_corrupt = scrubber->corrupt;
	s->scrub_ended_ns = scrubber->pass_ended_ns;
	s->scrub_percent = KV_MIN(scrubber->pass_bytes * 100 /
					  KV_MAX(scrubber->pass_total, 1u),
				  100u);
	s->evict = cache->config.evict;
	s->evict_weighs = dram->shadow
				  ? ways[kv_shadow_cache_winner(dram->shadow)]
				  : "as it does";
	s->victims_ended = dram->ended + ssd->eviction.ended;
	s->victims_refused = dram->refused + ssd->eviction.refused;
	s->remembered = dram->remembered;
	kv_miss_curve_estimate(cache->curve, s->estimated);
	for (uint32_t i = 0; i < ssd->n_devices; i++)
		if (ssd->devices[i].ring)
			kv_ring_times(ssd->devices[i].ring, s->ssd_times);
	kv_unlock(cache);
	if (cache->index)
		s->index_bytes = kv_index_bytes(cache->index);
}

char *kv_cache_describe(struct kv_cache *cache)
{
	struct kv_arena *arena = &cache->arena;
	char *text = NULL;
	int n;

	kv_lock(cache);
	n = asprintf(&text,
		     "ssd=%llu\nsegment_dram=%llu\nsegment_ssd=%llu\n"
		     "hugepage_segments=%u of %u\nlocked_segments=%u of %u\n"
		     "io=%s\n%s%s%s%s",
		     (unsigned long long)cache->config.ssd,
		     (unsigned long long)arena->segment_bytes,
		     (unsigned long long)cache->ssd.segment_bytes, arena->huge,
		     arena->made, arena->made - arena->unlocked, arena->made,
		     kv_ring_describe(cache->ssd.devices[0].ring),
		     cache->notes ? cache->notes : "",
		     arena->grow_error ? "dram_short=" : "",
		     arena->grow_error ? strerror(-arena->grow_error) : "",
		     arena->grow_error ? "\n" : "");
	kv_unlock(cache);
	return n < 0 ? NULL : text;
}
