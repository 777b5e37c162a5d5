/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache.h - the whole cache as fs/ sees it: spaces, blocks, fills, leases.
 *
 * Threads: every call may come from any thread.  None but those marked
 * "waits" does I/O or blocks for longer than a short critical section.
 * Callbacks run on the cache's own threads with no lock held; they must not
 * block, and may call back into the cache.
 */
#ifndef KV_CACHE_H
#define KV_CACHE_H

#include "block.h"
#include "kv.h"
#include "layout.h"

struct kv_cache;
struct kv_space; /* valid until kv_cache_close, even when removed */
struct kv_block; /* valid between a get and its put */
struct kv_fill;	 /* a slot being filled; belongs to who began it */

enum kv_hugepages { KV_HUGE_AUTO, KV_HUGE_ON, KV_HUGE_OFF };
enum kv_writeback { KV_WRITEBACK_ALL, KV_WRITEBACK_REUSE, KV_WRITEBACK_NONE };

struct kv_cache_config {
	const char *store; /* directory, or NULL: no store (tests) */
	uint64_t dram;	   /* bytes, >= 16 MiB */
	uint64_t ssd;	   /* cap on bytes below the store; 0: no tier */
	bool ssd_given;	   /* false: keep what the store was made with */
	uint64_t segment;  /* bytes */
	enum kv_hugepages hugepages;
	enum kv_writeback writeback;
	const char *evict;  /* policy name: "lru", "flru" */
	uint64_t scrub;	    /* bytes a second */
	uint64_t ssd_write; /* bytes a day */
	bool read_only;
	bool rw_arena;	    /* arena=rw */
	bool force_threads; /* no io_uring */

	/* A block that was visible is gone; @id is kv_block_info.id.  May be
	 * NULL.  The listener queues, and tells the kernel from a thread of
	 * its own. */
	void (*gone)(void *arg, uint64_t id);
	/* Segment @id must be unmapped by all who got it. */
	void (*retire)(void *arg, uint32_t id);
	void *arg;
};

/*
 * Open or make the store, read the index, start the threads.  On failure
 * *@ret_why is a message for the user (caller frees).  -EBUSY locked by another
 * daemon, -EEXIST the directory holds something else, -ENOTSUP newer format.
 */
int kv_cache_open(const struct kv_cache_config *config,
		  struct kv_cache **ret_cache, char **ret_why);
/* Waits: writes out what is to be written, commits, marks the store clean. */
void kv_cache_close(struct kv_cache *cache);

const uint8_t *kv_cache_store_id(struct kv_cache *cache); /* 16 bytes */
uint64_t kv_cache_epoch(struct kv_cache *cache);

/* ---- spaces ---- */

struct kv_quota {
	uint64_t quota_dram, quota_ssd, reserve_dram, reserve_ssd;
};

struct kv_space_info {
	uint32_t id;
	uint32_t uid, gid, mode; /* mode: permission bits, 07777 */
	int64_t mtime_ns;
	bool removed;
	struct kv_quota quota;
	const struct kv_layout *layout; /* NULL: untyped; lives as the space */
	uint64_t blocks, bytes_dram, bytes_ssd; /* as `du` counts them */
};

/* Find by name; NULL if absent. */
struct kv_space *kv_space_find(struct kv_cache *cache, const char *name);
struct kv_space *kv_space_by_id(struct kv_cache *cache, uint32_t id);
const char *kv_space_name(const struct kv_space *space);
struct kv_space_info kv_space_stat(struct kv_cache *cache,
				   struct kv_space *space);
/* The live spaces by ascending id, from @after exclusive (0: first); NULL at
 * the end. */
struct kv_space *kv_space_next(struct kv_cache *cache, uint32_t after);
/* A name: 1..255 bytes, no '/', not beginning with '.'; else -EINVAL.
 * -EEXIST (then *@ret_space is the one there), -ENOSPC, -EROFS. */
int kv_space_create(struct kv_cache *cache, const char *name, uint32_t uid,
		    uint32_t gid, uint32_t mode, struct kv_space **ret_space);
/* -ENOTEMPTY with blocks in it, -ESTALE removed already.  Waits. */
int kv_space_remove(struct kv_cache *cache, struct kv_space *space);
/* Take its blocks out of the old access class, then change it.  Waits. */
int kv_space_chown(struct kv_cache *cache, struct kv_space *space, uint32_t uid,
		   uint32_t gid, uint32_t mode);
int kv_space_set_mtime(struct kv_cache *cache, struct kv_space *space,
		       int64_t mtime_ns);
/* 0 also if it is there and agrees; -EEXIST another one, -EBADMSG a block in
 * the space does not fit it, and the errors of kv_layout_parse.  Waits. */
int kv_space_set_layout(struct kv_cache *cache, struct kv_space *space,
			const char *text, size_t len);
/* -ENOSPC: the guarantees exceed the tier. */
int kv_space_set_quota(struct kv_cache *cache, struct kv_space *space,
		       const struct kv_quota *quota);
/* Drop every block; saves begun before never seal (-ESTALE). */
int kv_space_clear(struct kv_cache *cache, struct kv_space *space);

/* The two-digit directories. @byte: the first byte of the keys in it. */
bool kv_dir_exists(struct kv_cache *cache, struct kv_space *space,
		   uint8_t byte);
int kv_dir_make(struct kv_cache *cache, struct kv_space *space,
		uint8_t byte); /* -EEXIST */
int kv_dir_remove(struct kv_cache *cache, struct kv_space *space,
		  uint8_t byte); /* -ENOENT, -ENOTEMPTY */
/* Ids of the blocks in it now, in a stable order; caller frees. */
int kv_dir_list(struct kv_cache *cache, struct kv_space *space, uint8_t byte,
		uint64_t **ret_ids, size_t *ret_n);

/* ---- blocks ---- */

enum kv_tier { KV_TIER_DRAM = 1, KV_TIER_SSD = 2 };

struct kv_block_info {
	uint64_t id; /* 60 bits, never reused while mounted */
	struct kv_space *space;
	struct kv_key key;
	uint64_t length; /* of the file */
	uint64_t held;	 /* bytes over all tiers, > 0 */
	unsigned tiers;
	uint32_t hits;
	uint32_t leases; /* clients holding it */
	bool durable, pinned, removed;
	int64_t atime_ns;
};

/* Get: the block, held; -ENOENT.  Removed ones are found by id while held. */
int kv_block_get(struct kv_cache *cache, struct kv_space *space,
		 const struct kv_key *key, struct kv_block **ret_block);
int kv_block_get_id(struct kv_cache *cache, uint64_t id,
		    struct kv_block **ret_block);
void kv_block_hold(struct kv_cache *cache, struct kv_block *block);
void kv_block_put(struct kv_cache *cache, struct kv_block *block);

struct kv_block_info kv_block_stat(struct kv_cache *cache,
				   struct kv_block *block);
/* What is not kept in memory; reads the slot or the index.  -EIO, -EBADMSG. */
int kv_block_meta(struct kv_cache *cache, struct kv_block *block,
		  struct kv_meta *ret_meta, struct kv_digest *ret_digest);

void kv_block_touch(struct kv_cache *cache, struct kv_block *block); /* a use */
int kv_block_set_mtime(struct kv_cache *cache, struct kv_block *block,
		       int64_t mtime_ns);
/* Evict from all tiers; -ENOENT if it is gone already, -EROFS. */
int kv_block_remove(struct kv_cache *cache, struct kv_block *block);
int kv_block_pin(struct kv_cache *cache, struct kv_block *block,
		 bool pin); /* -ENOSPC below the floor */
int kv_block_promote(struct kv_cache *cache,
		     struct kv_block *block); /* waits; -ENOSPC */
/* Waits until durable, then frees its slot; -EBUSY leased, -ENOSPC. */
int kv_block_demote(struct kv_cache *cache, struct kv_block *block);
/* Waits until durable.  -ENOSPC, -EIO, -EOPNOTSUPP (no SSD tier). */
int kv_block_sync(struct kv_cache *cache, struct kv_block *block);
/* Waits until everything sealed or removed in the space so far is durable. */
int kv_space_sync(struct kv_cache *cache, struct kv_space *space);

/*
 * The file's bytes, for a reader through the mount.  Neither promotes nor
 * evicts: a block that is only on SSD comes by a verified bounce buffer. Waits.
 * -EIO, -EBADMSG (damaged: it is a miss from now on), -ENOENT.
 */
struct kv_view {
	const uint8_t *data;
	uint64_t length;
	void *owner; /* the cache's */
	bool bounce;
};
int kv_view_get(struct kv_cache *cache, struct kv_block *block,
		struct kv_view *ret_view);
void kv_view_put(struct kv_cache *cache, struct kv_view *view);

/* ---- fills: a block on its way in ---- */

/*
 * Reserve a slot for a file of @length bytes.  With @key it is shown as SAVING,
 * and only one such may exist: -EEXIST present, -EALREADY being saved.
 * -EFBIG larger than a segment can hold, -ENOSPC no slot can be had now,
 * -ESTALE space removed, -EROFS.
 */
int kv_fill_begin(struct kv_cache *cache, struct kv_space *space,
		  const struct kv_key *key, uint64_t length,
		  struct kv_fill **ret_fill);
uint8_t *kv_fill_data(struct kv_fill *fill); /* @length writable bytes */

/*
 * Make it visible as @key; consumes the fill, whatever is returned.
 * @payload: offset of the tensors in the file.
 * 0 sealed, 1 it was there with the same digest, -EEXIST with another one (the
 * first stays, counted), -ESTALE cleared or removed meanwhile.
 */
int kv_fill_seal(struct kv_cache *cache, struct kv_fill *fill,
		 const struct kv_key *key, const struct kv_meta *meta,
		 uint64_t payload, const struct kv_digest *digest);
void kv_fill_drop(struct kv_cache *cache, struct kv_fill *fill);

/* ---- batches, for the control socket ---- */

enum kv_state { KV_ABSENT, KV_SAVING, KV_REMOTE, KV_SSD, KV_DRAM };

void kv_probe(struct kv_cache *cache, struct kv_space *space,
	      const struct kv_key *keys, size_t n, uint8_t *ret_states);

/* One block wanted in DRAM, and then leased. */
struct kv_want {
	struct kv_key key; /* in */
	int status;	   /* 0 leased; -EINPROGRESS; or why not (wire_place) */
	uint32_t segment;
	uint64_t offset; /* of the file in the segment */
	uint64_t length, payload;
	/* the cache's own */
	struct kv_acquire *acquire;
	struct kv_slot *slot;
	struct kv_block *block;
	struct kv_want *next, **prev;
};

struct kv_acquire {
	struct kv_space *space; /* in, with n, wait_saving, done, arg */
	size_t n;
	bool wait_saving;
	/* Every want is settled; runs once, unless submit returned 0. */
	void (*done)(struct kv_acquire *acquire, void *arg);
	void *arg;
	size_t pending; /* the cache's own */
	struct kv_acquire *next_due;
	struct kv_want wants[];
};

/* Keys in chain order: they are touched from the tail.  Returns how many wants
 * are still pending; 0: settled at once, @done will not run. */
size_t kv_acquire_submit(struct kv_cache *cache, struct kv_acquire *acquire);
/* Settle what is pending with @status now (@done runs, unless it has). */
void kv_acquire_cancel(struct kv_cache *cache, struct kv_acquire *acquire,
		       int status);
/* Give the leases back; only once settled.  The caller frees @acquire. */
void kv_acquire_release(struct kv_cache *cache, struct kv_acquire *acquire);

/* Waiting for durability, without a thread of one's own. */
struct kv_flush {
	void (*done)(struct kv_flush *flush, int status);
	void *arg;
	/* the cache's own */
	struct kv_flush *next;
	uint64_t ticket;
	uint64_t commit;
	int status;
	bool pending;
};
/* Everything sealed or removed in @space so far; @done may run before return.
 */
void kv_flush_submit(struct kv_cache *cache, struct kv_space *space,
		     struct kv_flush *flush);
/* @done runs with @status unless it has run. */
void kv_flush_cancel(struct kv_cache *cache, struct kv_flush *flush,
		     int status);

/* ---- the arena's segments, for clients ---- */

/*
 * Count a client in as a holder of segment @id and return the descriptor to
 * send (the cache's own; do not close) and the segment's size.
 * -ENOENT: retired meanwhile.
 */
int kv_segment_give(struct kv_cache *cache, uint32_t id, int *ret_fd,
		    uint64_t *ret_bytes);
/* That client has unmapped it, or is dead. */
void kv_segment_returned(struct kv_cache *cache, uint32_t id);

/* ---- what people look at ---- */

struct kv_cache_stats {
	uint64_t dram_total, dram_used, dram_blocks; /* used: by slots in use */
	uint64_t dram_segments, dram_segments_max, dram_retired, dram_huge;
	uint64_t ssd_total, ssd_used, ssd_blocks, ssd_files;
	uint64_t blocks, spaces, leases, pinned, saving, dirty_blocks;
	uint64_t hits_dram, hits_ssd, misses, sealed, conflicts, corrupt;
	uint64_t evicted_dram, evicted_ssd, removed, dropped_saves;
	uint64_t bytes_read_ssd, bytes_written_ssd, commits, io_errors;
	uint64_t index_bytes, scrubbed;
	bool ssd_degraded;
	const char *ssd_state; /* "online", "off", or why it is degraded */
};
void kv_cache_stats(struct kv_cache *cache, struct kv_cache_stats *ret_stats);

/* key=value lines: what the cache settled on, every fallback and why.
 * Caller frees. */
char *kv_cache_describe(struct kv_cache *cache);

#endif
