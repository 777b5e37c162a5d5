/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache.h - the whole cache as fs/ sees it: spaces, blocks, fills, leases.
 *
 * Threads: every call may come from any thread.  Only calls marked "waits" do
 * I/O or block for longer than a short critical section.  Callbacks run on the
 * cache's own threads with no lock held; a callback must not block, and may
 * call back into the cache.
 */
#ifndef KV_CACHE_CACHE_H
#define KV_CACHE_CACHE_H

#include <sys/queue.h>

#include "common/block.h"
#include "common/histogram.h"
#include "common/kv.h"
#include "common/layout.h"
#include "index/format.h"

struct kv_cache;
struct kv_accounts;
struct kv_ring_backend;
struct kv_account;
struct kv_space; /* a space: valid while held, even if removed */
struct kv_block; /* a block: valid between a get and its put */
struct kv_fill;	 /* a slot being filled; owned by the caller of kv_fill_begin */
struct kv_want;

enum kv_hugepages { KV_HUGE_AUTO, KV_HUGE_ON, KV_HUGE_OFF };
enum kv_arena_mode { KV_ARENA_AUTO, KV_ARENA_SEALED, KV_ARENA_RW };
enum kv_writeback { KV_WRITEBACK_ALL, KV_WRITEBACK_REUSE, KV_WRITEBACK_NONE };

#define KV_STORES_MAX 8u       /* most directories of store=DIR */
#define KV_REMOTE_NAME_MAX 64u /* uid of a tenant */

/* The options of the remote tier. */
struct kv_remote_name {
	uint32_t uid;
	char *name; /* name of the user in the remote tier */
};
struct kv_remote_config {
	char *url;    /* NULL: there is no remote tier */
	char *secret; /* path of the file of remote_secret=, or NULL */
	enum kv_writeback write;
	uint32_t threshold; /* fewest missing blocks of a chain to fetch */
	uint64_t rate;	    /* most bytes to fetch a second; 0: no limit */
	bool optional;	    /* mount although the backend does not answer */
	bool unsafe; /* accept a directory that other users may write to */
	struct kv_remote_name *tenants;
	size_t n_tenants;
};

struct kv_cache_config {
	const char *store;	   /* directory, or NULL: no store (tests) */
	char *more[KV_STORES_MAX]; /* directories of store=DIR */
	unsigned n_more;
	uint64_t dram;	  /* bytes of the arena, >= 16 MiB */
	uint64_t ssd;	  /* limit of the store, bytes; 0: no SSD tier */
	bool ssd_given;	  /* false: keep the size that the store has */
	bool ssd_evict;	  /* allow a smaller ssd= to evict pinned blocks */
	uint64_t segment; /* bytes */
	enum kv_hugepages hugepages;
	enum kv_writeback writeback;
	const char *evict;  /* name of a policy, see kv_policy_name */
	uint64_t scrub;	    /* bytes to scrub a second */
	uint64_t ssd_write; /* bytes that may be written a day */
	uint32_t why;	    /* misses whose causes are remembered; 0: none */
	bool read_only;
	enum kv_arena_mode arena;
	struct kv_remote_config remote;
	uint64_t io_patience; /* ns until a request counts as stuck; 0: 30 s */
	uint64_t io_retry; /* ns before a failed request is retried; 0: 1 s */
	/* Functions that carry out disk requests; NULL: built-in ones. */
	const struct kv_ring_backend *io;

	/* A visible block was removed; @id is kv_block_info.id.  May be NULL.
	 * Do not notify the kernel from this callback: let another thread do it. */
	void (*gone)(void *arg, uint64_t id);
	/* kv_cache_open waits for the store's previous daemon, process @owner,
	 * which is ending.  May be NULL. */
	void (*waiting)(void *arg, long owner);
	/* Print a warning for the user, during kv_cache_open or kv_cache_close.
	 * May be NULL. */
	void (*warn)(void *arg, const char *line);
	/* Clients that have segment @id mapped must unmap it. */
	void (*retire)(void *arg, uint32_t id);
	/* Called when DRAM that was full may have room again.  May be NULL. */
	void (*room)(void *arg);
	void *arg;
};

/*
 * Open or make the store, read the index, start the threads.  On failure
 * *@ret_why is a message for the user (caller frees).
 *   -EBUSY    another daemon uses the store, and does not end in seconds
 *   -EEXIST   the directory holds something else than a store
 *   -ENOTSUP  the store has another format
 */
int kv_cache_open(const struct kv_cache_config *config,
		  struct kv_cache **ret_cache, char **ret_why);
/* Announce that kv_cache_close will follow, so that the next daemon waits. */
void kv_cache_ending(struct kv_cache *cache);
/* Bring no more blocks to DRAM.  Call this before leases end with their clients'
 * connections: the clients may still read these blocks. */
void kv_cache_freeze(struct kv_cache *cache);
/*
 * Write all queued blocks, commit, mark the store clean, and free the cache.
 * Waits.  -ETIMEDOUT: the SSD does not answer.  Then nothing is freed until the
 * process ends, because the SSD may still write to the cache's memory.
 */
int kv_cache_close(struct kv_cache *cache);

const uint8_t *kv_cache_store_id(struct kv_cache *cache); /* 16 bytes */
uint64_t kv_cache_epoch(struct kv_cache *cache);
/* Return the resources that each user holds; valid as long as the cache. */
struct kv_accounts *kv_cache_accounts(struct kv_cache *cache);

/* ---- spaces ---- */

/* Look-ups of blocks, counted by probe (which kvfs_match uses) and acquire.  A
 * hit is a block found by acquire, a miss one that acquire or probe did not find. */
struct kv_lookups {
	uint64_t asked, found; /* keys that probe was asked for, and found */
	uint64_t hits_dram, hits_ssd, misses;
};

struct kv_space_info {
	uint32_t id;
	uint32_t uid, gid, mode; /* mode: permission bits, 07777 */
	int64_t mtime_ns;
	bool removed;
	bool shared;   /* shared with other nodes, by the remote tier */
	bool own_seed; /* keys depend on a seed that no other node has */
	struct kv_quota quota;
	/* The reserves, scaled down if the tiers are too small for all. */
	uint64_t guaranteed_dram, guaranteed_ssd;
	/* NULL: no layout.  Valid while the space is held. */
	const struct kv_layout *layout;
	uint64_t blocks, bytes_dram, bytes_ssd; /* bytes: as `du` counts them */
	struct kv_lookups lookups;
};

/*
 * Calls that return a space return it held, or NULL; kv_space_put (takes NULL)
 * releases the space.  The caller of any function holds the space that it
 * passes until the call returns, or until the acquire is settled.
 */
struct kv_space *kv_space_get(struct kv_space *space);
void kv_space_put(struct kv_space *space);
void kv_space_putp(struct kv_space **space);
struct kv_space *kv_space_find(struct kv_cache *cache, const char *name);
/* Find a space by its id: live, or removed but still held; NULL: none. */
struct kv_space *kv_space_by_id(struct kv_cache *cache, uint32_t id);
const char *kv_space_name(const struct kv_space *space);
struct kv_space_info kv_space_stat(struct kv_cache *cache,
				   struct kv_space *space);
/* Return the live space with the lowest id above @after (from 0), or NULL. */
struct kv_space *kv_space_next(struct kv_cache *cache, uint32_t after);
/*
 * Create a space.  @name: 1..255 bytes, no '/', not beginning with '.'.
 *   -EINVAL  bad name
 *   -EEXIST  name in use; *@ret_space is that space
 *   -ENOSPC, -EROFS
 */
int kv_space_create(struct kv_cache *cache, const char *name, uint32_t uid,
		    uint32_t gid, uint32_t mode, struct kv_space **ret_space);
/*
 * Remove a space without blocks, and its snapshots.  Waits.
 *   -ENOTEMPTY  the space has blocks
 *   -ESTALE     removed already
 */
int kv_space_remove(struct kv_cache *cache, struct kv_space *space);
/* Change owner and mode, after moving the blocks out of slots of the old access
 * class.  A new owner ends sharing (kv_space_set_shared).  Waits. */
int kv_space_chown(struct kv_cache *cache, struct kv_space *space, uint32_t uid,
		   uint32_t gid, uint32_t mode);
int kv_space_set_mtime(struct kv_cache *cache, struct kv_space *space,
		       int64_t mtime_ns);
/*
 * Set the layout of the space on behalf of the user @uid.  Waits.
 *   0         set, or the space had an equal layout; its owner's "keys": "engine"
 *             permits sharing
 *   -EEXIST   the space has another layout
 *   -EBADMSG  a block in the space does not fit the layout
 *   -EBUSY    others sealed blocks all the time while the blocks were checked
 *   -EPERM    the layout says "share", and @uid is neither owner nor operator
 *   -EINVAL   the layout says "share", and other nodes cannot have the space's keys
 * and the errors of kv_layout_parse.
 */
int kv_space_set_layout(struct kv_cache *cache, struct kv_space *space,
			uint32_t uid, const char *text, size_t len);
/*
 * Check the text of a layout, maybe not yet whole, on behalf of the user @uid.
 *   1         complete and valid, and the space has no other layout
 *   0         incomplete so far
 *   -EEXIST, -EPERM   as kv_space_set_layout
 *   -EINVAL   as kv_layout_parse or kv_space_set_layout
 *   -EFBIG, -ENOMEM   as kv_layout_parse
 * kv_space_check_layout and kv_space_set_layout keep the reason of a refusal
 * for kv_space_layout_error, and forget it after a success.
 */
int kv_space_check_layout(struct kv_cache *cache, struct kv_space *space,
			  uint32_t uid, const char *text, size_t len);
#define KV_LAYOUT_ERROR_MAX 119 /* bytes */
/* Copy the reason for the last refusal of a layout into @ret_why, of
 * KV_LAYOUT_ERROR_MAX + 1 bytes.  Return its length; 0: none was refused. */
int kv_space_layout_error(struct kv_cache *cache, struct kv_space *space,
			  char *ret_why);
/* Begin or end sharing the space with other nodes by the remote tier.  Waits.
 * -EINVAL: other nodes cannot have its keys; the reason is in
 * kv_space_layout_error. */
int kv_space_set_shared(struct kv_cache *cache, struct kv_space *space,
			bool shared);
/* Set the space's quota, if it is *@expected (NULL: any).  -EAGAIN: it is not;
 * -ENOSPC: all guarantees together exceed the tier. */
int kv_space_set_quota(struct kv_cache *cache, struct kv_space *space,
		       const struct kv_quota *expected,
		       const struct kv_quota *quota);

/* Sums and limits of a user's spaces together. */
struct kv_tenant_info {
	struct kv_quota quota;
	uint64_t guaranteed_dram, guaranteed_ssd; /* see kv_space_info */
	uint64_t spaces, blocks, bytes_dram, bytes_ssd;
};
struct kv_tenant_info kv_tenant_stat(struct kv_cache *cache, uint32_t uid);
/* List the users that own a space or have a quota, unordered; caller frees
 * *@ret_uids.  -ENOMEM. */
int kv_tenant_list(struct kv_cache *cache, uint32_t **ret_uids, size_t *ret_n);
/* Set a user's quota, if it is *@expected (NULL: any).  -EAGAIN: it is not;
 * -ENOSPC: the sum of all guarantees would exceed the tier, there are too many
 * users, or the SSD has no room for the record. */
int kv_tenant_set_quota(struct kv_cache *cache, uint32_t uid,
			const struct kv_quota *expected,
			const struct kv_quota *quota);

/*
 * Drop every block of a space, in steps of less than a millisecond (the first
 * may take longer).  Saves that began before kv_clear_begin never seal
 * (-ESTALE) and do not block later saves of their keys; blocks sealed after
 * kv_clear_begin stay. kv_clear_some returns
 *   1        more blocks are left
 *   0        the end
 *   -ENOMEM
 */
struct kv_clear;
int kv_clear_begin(struct kv_cache *cache, struct kv_space *space,
		   struct kv_clear **ret_clear);
int kv_clear_some(struct kv_cache *cache, struct kv_clear *clear);
void kv_clear_end(struct kv_clear *clear); /* takes NULL */

/* Two-digit directories of a space.  @byte: the first byte of their keys. */
/* Return true if the directory exists.  *@ret_life changes when the directory
 * is made again after a removal. */
bool kv_dir_exists(struct kv_cache *cache, struct kv_space *space, uint8_t byte,
		   uint32_t *ret_life);
/* Return when the directory last changed: when the name of a block, or of a
 * file being written (kv_dir_changed), appeared or vanished. */
int64_t kv_dir_mtime(struct kv_cache *cache, struct kv_space *space,
		     uint8_t byte);
void kv_dir_changed(struct kv_cache *cache, struct kv_space *space,
		    uint8_t byte);
int kv_dir_make(struct kv_cache *cache, struct kv_space *space,
		uint8_t byte); /* -EEXIST */
int kv_dir_remove(struct kv_cache *cache, struct kv_space *space,
		  uint8_t byte); /* -ENOENT, -ENOTEMPTY */
/* List the ids of the directory's blocks, in a stable order; caller frees. */
int kv_dir_list(struct kv_cache *cache, struct kv_space *space, uint8_t byte,
		uint64_t **ret_ids, size_t *ret_n);

/*
 * Copy at most @max keys of the space's blocks (@in_dram: of those that are not on
 * SSD) into @ret_keys and return how many; 0 keys do not mean the end.  *@cursor is 0 at first, and 0 again at the
 * end.  Takes well under a millisecond.  A key that is never removed is
 * returned once, or twice if the space grows by half meanwhile.
 */
size_t kv_space_keys(struct kv_cache *cache, struct kv_space *space,
		     bool in_dram, uint64_t *cursor, struct kv_key *ret_keys,
		     size_t max);

/* ---- blocks ---- */

/* KV_TIER_REMOTE: the remote tier has the block, as far as this mount knows. */
enum kv_tier { KV_TIER_DRAM = 1, KV_TIER_SSD = 2, KV_TIER_REMOTE = 4 };

struct kv_block_info {
	uint64_t id;		/* 60-bit id, never reused while mounted */
	struct kv_space *space; /* valid while the space or the block is held */
	struct kv_key key;
	uint64_t length; /* bytes of the block's file */
	uint64_t held;	 /* bytes of the block in all tiers, > 0 */
	uint64_t ssd;	 /* part of @held on SSD */
	unsigned tiers;
	uint32_t hits;
	uint32_t leases; /* number of leases by clients */
	bool durable, pinned, removed;
	int64_t atime_ns, mtime_ns;
	uint32_t uid, gid, mode; /* owner and mode of the block's space */
};

/* A block in a listing; @meta is zero if its record cannot be read. */
struct kv_listed {
	struct kv_block_info info;
	struct kv_meta meta;
	uint64_t parent_id; /* 0: the space has no such block */
};
/*
 * List at most @max of the space's blocks, with the cursor of kv_space_keys: first blocks
 * that are not on SSD, then the others in the order of the SSD.  Waits for index pages.
 * A block that gets another slot on SSD meanwhile may be listed twice, or not.
 */
size_t kv_space_list(struct kv_cache *cache, struct kv_space *space,
		     uint64_t *cursor, struct kv_listed *ret_blocks,
		     size_t max);

/* Describe the block @key as kv_space_list does, but only from memory: the meta of a block
 * that is on SSD alone is zero.  info.held 0: the block is absent. */
void kv_block_describe(struct kv_cache *cache, struct kv_space *space,
		       const struct kv_key *key, struct kv_listed *ret_block);

/* ---- feeds: which blocks of a space have changed their tiers ---- */

struct kv_feed;
extern const size_t kv_feed_bytes; /* memory of a feed */

/* A subscriber that waits for changes. */
struct kv_feed_wait {
	/* Called once, by any thread, when there are changes, or the space is removed. */
	void (*done)(struct kv_feed_wait *wait);
	bool waits;
	LIST_ENTRY(kv_feed_wait) link;
	struct kv_feed_wait *next;
};

/* Hold the feed of @space, made if it has none.  -ENOENT: the space is removed; -ENOMEM. */
int kv_feed_get(struct kv_cache *cache, struct kv_space *space,
		struct kv_feed **ret_feed);
void kv_feed_put(struct kv_cache *cache, struct kv_feed *feed);

/*
 * Read the keys of at most @max changes from *@cursor on, and advance *@cursor.  If there are
 * none, let @wait wait for some, unless it is NULL.  -ESTALE: changes were lost, or *@cursor
 * is not of this feed: *@cursor is now that of the next change.
 */
long kv_feed_read(struct kv_cache *cache, struct kv_feed *feed,
		  uint64_t *cursor, struct kv_key *ret_keys, size_t max,
		  struct kv_feed_wait *wait);
/* End the wait.  Returns false if it had ended: then wait->done is or will be called. */
bool kv_feed_forget(struct kv_cache *cache, struct kv_feed_wait *wait);

/* Return the block, held; by id also a removed one that is held.  -ENOENT. */
int kv_block_get(struct kv_cache *cache, struct kv_space *space,
		 const struct kv_key *key, struct kv_block **ret_block);
int kv_block_get_id(struct kv_cache *cache, uint64_t id,
		    struct kv_block **ret_block);
void kv_block_hold(struct kv_cache *cache, struct kv_block *block);
/*
 * Charge the bytes of an open block, which cannot be evicted, to the account of
 * its reader.  If @account already pays for the block's pin, charge it when the
 * block is unpinned.  Call kv_open_credit before kv_block_put.
 *   -ENFILE  beyond the user's share of the tier
 *   -ENOMEM
 */
struct kv_open_charge;
int kv_open_charge(struct kv_cache *cache, struct kv_block *block,
		   struct kv_account *account,
		   struct kv_open_charge **ret_charge);
void kv_open_credit(struct kv_cache *cache,
		    struct kv_open_charge *charge); /* takes NULL */
void kv_block_put(struct kv_cache *cache, struct kv_block *block);

struct kv_block_info kv_block_stat(struct kv_cache *cache,
				   struct kv_block *block);
/* Stat a block without holding it, by id or key; -ENOENT. */
int kv_block_stat_id(struct kv_cache *cache, uint64_t id,
		     struct kv_block_info *ret_info);
int kv_block_stat_key(struct kv_cache *cache, struct kv_space *space,
		      const struct kv_key *key, struct kv_block_info *ret_info);
/* Read the block's meta data and digest from slot or index.  -EIO, -EBADMSG. */
int kv_block_meta(struct kv_cache *cache, struct kv_block *block,
		  struct kv_meta *ret_meta, struct kv_digest *ret_digest);

/*
 * Return the meta data and token ids of a block in a space with "token_ids"
 * (caller frees *@ret_ids): from the index, or from the block's header if the
 * block is not durable or has too many for the index.  Waits.
 *   -ENOENT  the block has no token ids
 *   -ENOMEM, and the errors of kv_view_get
 */
int kv_block_get_token_ids(struct kv_cache *cache, struct kv_block *block,
			   struct kv_meta *ret_meta,
			   struct kv_token_ids **ret_ids);

void kv_block_touch(struct kv_cache *cache,
		    struct kv_block *block); /* count a use */
/* Evict the block before others: its conversation is over.  Call for a chain
 * from its last block to its first, not for shared blocks.  A use cancels it. */
void kv_block_end(struct kv_cache *cache, struct kv_block *block);
int kv_block_set_mtime(struct kv_cache *cache, struct kv_block *block,
		       int64_t mtime_ns);
/* Evict @keys, in chain order, before other blocks: their conversation is over.
 * Pinned blocks stay; a use of a block cancels the order for that block. */
void kv_blocks_ended(struct kv_cache *cache, struct kv_space *space,
		     const struct kv_key *keys, size_t n);
/* Remove a block from all tiers; -ENOENT if it is gone already, -EROFS. */
int kv_block_remove(struct kv_cache *cache, struct kv_block *block);
/* Like kv_block_remove, but without the callback `gone`: the caller puts the
 * block next, and its reply informs the kernel. */
int kv_block_unlink(struct kv_cache *cache, struct kv_block *block);
int kv_block_pin(struct kv_cache *cache, struct kv_block *block,
		 bool pin); /* -ENOSPC: too few bytes would stay evictable */
/* Free the DRAM slot of a durable block.  -EAGAIN: not durable; -EBUSY:
 * leases. */
int kv_block_demote_try(struct kv_cache *cache, struct kv_block *block);

/*
 * Return the file's bytes, for a reader through the mount.  Neither promotes
 * nor evicts: a block that is only on SSD is read into a verified bounce
 * buffer.  Waits.
 *   -EBADMSG  damaged: from now on the block is absent
 *   -EIO, -ENOENT
 */
struct kv_view {
	const uint8_t *data;
	uint64_t length;
	void *owner; /* used by the cache only */
	bool bounce;
};
/* WAIT: wait for a buffer and for the SSD.  TRY: return -EAGAIN instead of
 * waiting.  ONCE: wait, and keep bytes read from SSD for no other reader. */
enum kv_view_how { KV_VIEW_WAIT, KV_VIEW_TRY, KV_VIEW_ONCE };
int kv_view_get(struct kv_cache *cache, struct kv_block *block,
		enum kv_view_how how, struct kv_view *ret_view);
void kv_view_put(struct kv_cache *cache, struct kv_view *view);

/* ---- snapshots: blocks of a chain, pinned under a name ---- */

#define KV_SNAPSHOT_BLOCKS (1u << 17)  /* most blocks in a snapshot */
#define KV_SNAPSHOT_POSITION 99999999u /* links have eight digits */

struct kv_pick {
	struct kv_key key;
	uint32_t position; /* position of the block in its chain */
};

struct kv_snapshot_info {
	uint64_t id;	 /* 32-bit id, never reused while mounted */
	uint32_t space;	 /* id of the space */
	uint32_t blocks; /* number of blocks listed, existing or not */
	int64_t mtime_ns;
	char name[KV_SPACE_NAME_MAX + 1];
};

/*
 * Pin the blocks of @picks, whose positions ascend, under @name; no byte is
 * copied.  Either all blocks are pinned or none.  The snapshot is durable with
 * the space's next flush.
 *   -ENOENT  block *@ret_missing is absent
 *   -ENOSPC  too little would stay evictable; *@ret_missing is the first
 *            block that did not fit, or @n
 *   -EEXIST  the name is taken
 *   -EINVAL  bad name (as for spaces), or no picks, too many, or out of order
 *   -ESTALE  space removed
 *   -EROFS
 */
int kv_snapshot_create(struct kv_cache *cache, struct kv_space *space,
		       const char *name, const struct kv_pick *picks, size_t n,
		       size_t *ret_missing);
/* Unpin all blocks of the snapshot at once.  A block that its user or another
 * snapshot pins stays pinned.  -ENOENT, -EROFS. */
int kv_snapshot_drop(struct kv_cache *cache, uint64_t id);
/* Unpin the block at @position; an empty snapshot stays.  -ENOENT. */
int kv_snapshot_unlink(struct kv_cache *cache, uint64_t id, uint32_t position);

int kv_snapshot_find(struct kv_cache *cache, struct kv_space *space,
		     const char *name, struct kv_snapshot_info *ret_info);
int kv_snapshot_stat(struct kv_cache *cache, uint64_t id,
		     struct kv_snapshot_info *ret_info); /* -ENOENT */
/* Copy at most @max picks from position @from on; return how many.  -ENOENT. */
long kv_snapshot_read(struct kv_cache *cache, uint64_t id, uint32_t from,
		      struct kv_pick *ret_picks, size_t max);
/* List the ids of the space's snapshots; caller frees *@ret_ids. */
int kv_snapshot_list(struct kv_cache *cache, struct kv_space *space,
		     uint64_t **ret_ids, size_t *ret_n);

/* ---- fills: blocks being saved ---- */

/*
 * Reserve a slot for a file of @length bytes.  With @key the block's state is
 * SAVING until the fill ends.
 *   -EEXIST    the block is present
 *   -EALREADY  another fill of @key may still seal
 *   -EFBIG     larger than a segment can hold
 *   -ENOSPC    no slot can be had now
 *   -EBUSY     retry soon: memory is being allocated or, without @key,
 *              writes in flight are making room
 *   -EAGAIN    beyond the space's rate
 *   -ESTALE    space removed
 *   -EROFS
 */
int kv_fill_begin(struct kv_cache *cache, struct kv_space *space,
		  const struct kv_key *key, uint64_t length,
		  struct kv_fill **ret_fill);
uint8_t *kv_fill_data(struct kv_fill *fill); /* @length bytes to write to */
/* Return whether the data is mapped writable by the owner of the space. */
bool kv_fill_is_open(const struct kv_fill *fill);
/* Keep the sealed block in DRAM until it is durable, if the SSD has room. */
void kv_fill_must(struct kv_fill *fill);
/*
 * Lease the block for @want when it is sealed, so that it cannot be evicted
 * before its use.  @want->status is -errno until then, and 0 afterwards.  End
 * the lease by kv_acquire_release.
 */
void kv_fill_hold(struct kv_fill *fill, struct kv_want *want);
/* Check whether a block of @length may be leased: 0, -ENOSPC, -EFBIG. */
int kv_fill_may_hold(struct kv_cache *cache, struct kv_space *space,
		     uint64_t length);

/*
 * Make the fill visible as block @key.  Consumes the fill, whatever is
 * returned.  @payload: offset of the tensors in the file.
 *   0        sealed
 *   1        the block was present with the same digest
 *   -EEXIST  the block was present with another digest, and stays
 *   -ESTALE  the space was cleared or removed meanwhile
 *   -EBADMSG, -EINVAL, -ENOMEM  of kv_block_parse, if the space got a layout
 */
int kv_fill_seal(struct kv_cache *cache, struct kv_fill *fill,
		 const struct kv_key *key, const struct kv_meta *meta,
		 uint64_t payload, const struct kv_digest *digest);

/* A fill to be sealed with others.  The arguments of kv_fill_seal, and its result. */
struct kv_seal {
	struct kv_fill *fill;
	const struct kv_key *key;
	const struct kv_meta *meta;
	uint64_t payload;
	struct kv_digest digest;
	int status;
};

/* Seal @n fills in this order, under one hold of the cache's lock.  Consumes the fills. */
void kv_fills_seal(struct kv_cache *cache, struct kv_seal *seals, size_t n);
void kv_fill_drop(struct kv_cache *cache, struct kv_fill *fill);

/* ---- batches, for the control socket ---- */

enum kv_state { KV_ABSENT, KV_SAVING, KV_REMOTE, KV_SSD, KV_DRAM };

void kv_probe(struct kv_cache *cache, struct kv_space *space,
	      const struct kv_key *keys, size_t n, uint8_t *ret_states);
/* Count a client's look-up of blocks; the arguments are its results.  Return the
 * index of the absent key at which the look-up ended early: the first one, or if
 * the space's layout does not reuse prefixes, the one behind the last block
 * found.  @n: there is none. */
size_t kv_asked(struct kv_cache *cache, struct kv_space *space,
		const uint8_t *states, size_t n);

/* ---- causes of misses ---- */

/* Why a block is absent; values as in kvfs.h, but for the last one. */
enum kv_cause {
	KV_CAUSE_NONE,
	KV_CAUSE_UNSEEN,
	KV_CAUSE_EVICTED_DRAM,
	KV_CAUSE_EVICTED_SSD,
	KV_CAUSE_REMOVED,
	KV_CAUSE_EXPIRED,
	KV_CAUSE_QUOTA,
	KV_CAUSE_RATE,
	KV_CAUSE_ROOM,
	KV_CAUSE_PARENT,
	KV_CAUSE_BUDGET,
	KV_CAUSE_DAMAGED,
	KV_CAUSE_OFFLINE,
	KV_CAUSE_CHANGED, /* damaged by a client; not reported */
	KV_CAUSES = KV_CAUSE_CHANGED,
};

/* A key, and why its block is absent; in the log also the look-up. */
struct kv_miss {
	int64_t asked_ns;     /* wall time of the look-up */
	uint32_t uid;	      /* user that asked */
	uint32_t space;	      /* id of the space */
	uint32_t since, idle; /* members of kvfs_miss */
	uint16_t place, n;    /* index of the key; number of keys */
	struct kv_key key;
	uint8_t cause;
};

/* Log a look-up of @n keys by the user @uid that ended early at @key. */
void kv_missed(struct kv_cache *cache, struct kv_space *space, uint32_t uid,
	       const struct kv_key *key, size_t place, size_t n);
/* Set cause, since and idle of @misses, whose keys are set.  KV_CAUSE_NONE: the
 * block is present, or being saved. */
void kv_why_absent(struct kv_cache *cache, struct kv_space *space,
		   struct kv_miss *misses, size_t n);
/* Copy at most @max look-ups in @space by the user *@uid (NULL: by any) from
 * place *@at of the log on, unordered.  Return their number; 0: no more. */
size_t kv_misses(struct kv_cache *cache, const struct kv_space *space,
		 const uint32_t *uid, uint64_t *at, struct kv_miss *ret,
		 size_t max);

/* The request of an acquire to have one block in DRAM and leased. */
struct kv_want {
	struct kv_key key; /* input: key of the wanted block */
	int status;	   /* 0: leased; -EINPROGRESS; or as in wire_place */
	uint32_t segment;
	uint64_t offset; /* offset of the file in the segment */
	uint64_t length, payload;
	/* enum kv_state of the block before; KV_ABSENT: no use was counted */
	uint8_t from;
	/* used by the cache only */
	struct kv_acquire *acquire;
	struct kv_slot *slot;
	struct kv_block *block;
	struct kv_want *next, **prev;
	bool short_of_room;	/* waits for room in DRAM */
	uint64_t writes, reads; /* wait until so many have ended since mount */
	/* Bytes charged to prefetches: brought to DRAM; being read from SSD. */
	uint64_t hinted, hint_reads;
};

struct kv_acquire {
	/* Input: the fields down to @arg. */
	struct kv_space *space;
	size_t n;
	bool again; /* the request was made before: count no hit */
	bool wait_saving;
	bool resident; /* do not wait: -EAGAIN for blocks not in DRAM */
	/* Only check if blocks are sealed (0) or absent, on any tier: lease
	 * nothing, count no use. */
	bool sealed;
	/* A want without room waits for reads and writes in flight, not for
	 * leases. */
	bool wait_room;
	/*
	 * Prefetch: bring blocks to DRAM soon, a few at a time, and lease
	 * nothing.  All hints together use at most a fixed share of the arena.
	 * Blocks evicted before their first use count as prefetch_unused.
	 */
	bool hint;
	/* Look for missing blocks in the remote tier, in the fair share of user
	 * @uid, and wait for them. */
	bool remote;
	uint32_t uid;
	/* The chain probably continues in another request. */
	bool more;
	/* If not 0, run @done also each time this many bytes of leading wants
	 * have been leased since submit or the last kv_acquire_take. */
	uint64_t part;
	/* Runs once when all wants are settled, unless submit returned 0. */
	void (*done)(struct kv_acquire *acquire, void *arg);
	void *arg;
	/* The fields from here on are used by the cache only. */
	struct kv_remote_look *look; /* missing blocks asked of other nodes */
	/* Number of blocks from the first missing one on; 0: none missing. */
	size_t rest;
	struct kv_want *end; /* first that no other node has; at most @n-th */
	bool submitting;
	bool told; /* @done runs, or ran without a kv_acquire_take since */
	size_t pending;
	size_t leading;		/* wants before the first that is not settled */
	uint64_t leading_bytes; /* bytes of them leased since kv_acquire_take */
	size_t short_of_room, room_at; /* wants without room: number; first */
	TAILQ_ENTRY(kv_acquire) link;
	struct kv_acquire *next_deferred;
	struct kv_want wants[];
};

/* Start to acquire @wants, in chain order.  Return the number of pending wants;
 * 0: all settled, @done will not run, and the caller is to call
 * kv_acquire_touch, preferably after it has replied. */
size_t kv_acquire_submit(struct kv_cache *cache, struct kv_acquire *acquire);
/* Return the number of leading wants that are settled.  If @part is not 0, call this
 * after @done; @done runs again if the return value is less than @n. */
size_t kv_acquire_take(struct kv_cache *cache, struct kv_acquire *acquire);
/* Report the use of the leased blocks to the eviction policy. */
void kv_acquire_touch(struct kv_cache *cache, struct kv_acquire *acquire);
/* Settle pending wants with @status now.  @done runs, unless it already has.
 * Reads that a hint began go on, and @done runs after these. */
void kv_acquire_cancel(struct kv_cache *cache, struct kv_acquire *acquire,
		       int status);
/* End the leases of a settled acquire.  The caller frees @acquire. */
void kv_acquire_release(struct kv_cache *cache, struct kv_acquire *acquire);

/* An asynchronous request to make blocks durable. */
struct kv_flush {
	void (*done)(struct kv_flush *flush, int status);
	void *arg;
	/* Input: if a client has changed a block of its own user, do not fail
	 * the flush; the caller then calls kv_block_past. */
	bool each;
	/* used by the cache only */
	struct kv_flush *next;
	TAILQ_ENTRY(kv_flush) link;
	uint64_t asked;	   /* wait for unpersisted slots up to this ->seq */
	uint64_t ticket;   /* then wait for dirty slots up to this ->seq */
	uint64_t deletion; /* wait for this many deletions of the space */
	uint64_t update;   /* wait for this many updates of records */
	uint64_t change;   /* wait for this change of a snapshot */
	uint64_t removal;  /* wait for this change of the tombstones */
	struct kv_space *space;
	/* wait for this block only; NULL: all of @space */
	struct kv_block *block;
	LIST_ENTRY(kv_flush) of_slot, of_all;
	bool durable; /* @block is durable: only @update is left to wait for */
	int status;
	bool pending;
};
/* Make seals and removals up to now durable; @done may run before the
 * return. */
void kv_flush_submit(struct kv_cache *cache, struct kv_space *space,
		     struct kv_flush *flush);
/* Return what is remembered of a block that is absent or not durable.
 * -EBADMSG: its owner's client changed its bytes, so it was dropped; 1: it was
 * durable, and then evicted; 0: nothing.  Kept for 10,000 blocks of each user, or
 * more: see causes.c. */
int kv_block_past(struct kv_cache *cache, const struct kv_space *space,
		  const struct kv_key *key);
/*
 * Make one block durable; the caller holds the block until @done, which gets
 *   -ENOENT      the block was removed
 *   -EBADMSG     its owner's client has changed the block, which was dropped
 *   -EOPNOTSUPP  no SSD tier
 *   -ENOSPC, -EIO, -EROFS
 */
void kv_block_flush_submit(struct kv_cache *cache, struct kv_block *block,
			   struct kv_flush *flush);
/* End a pending flush: run @done with @status, unless @done has run already. */
void kv_flush_cancel(struct kv_cache *cache, struct kv_flush *flush,
		     int status);

/* ---- the arena's segments, for clients ---- */

struct kv_given_segment {
	int fd; /* to send to clients; do not close */
	uint64_t bytes;
	uint32_t uid, gid, mode; /* owner and read bits of all its blocks */
};
/*
 * Count a client of the user @uid as a holder of segment @id.  The descriptor
 * is writable only for the owner of the segment's blocks, and only if the
 * segment is open: with arena=rw, or as kv_registrants_count describes.
 *   -ENOENT  the segment was retired meanwhile
 *   -ENOLCK  the user keeps more retired segments than its share
 *   -ENOMEM
 */
int kv_segment_give(struct kv_cache *cache, uint32_t id, uint32_t uid,
		    struct kv_given_segment *ret_given);
/*
 * Count one client more (@by 1) or less (-1) of the user whose device can
 * register only writable memory.  While the user has such clients its new
 * segments are open, if no other user may read their blocks, the user is not
 * uid 0, and arena=auto.
 *   -ENOMEM  only if @by is 1
 */
int kv_registrants_count(struct kv_cache *cache, uint32_t uid, int by);
/* Note that a client of the user unmapped the segment, or has ended. */
void kv_segment_returned(struct kv_cache *cache, uint32_t id, uint32_t uid);

/* ---- statistics ---- */

struct kv_cache_stats {
	uint64_t dram_total, dram_used,
		dram_blocks; /* dram_used: bytes of slots in use */
	uint64_t dram_segments, dram_segments_max, dram_retired, dram_huge;
	uint64_t ssd_total, ssd_used, ssd_blocks, ssd_files;
	uint64_t blocks, spaces, leases, pinned, saving, dirty_blocks;
	uint64_t dram_alone; /* blocks neither on SSD nor being written there */
	uint64_t pinned_bytes; /* bytes of pinned blocks in DRAM */
	uint64_t snapshots;
	struct kv_lookups lookups;
	uint64_t hit_tokens; /* tokens of the blocks that acquires found */
	uint64_t sealed, conflicts, corrupt;
	uint64_t evicted_dram, evicted_ssd, removed, expired, dropped_saves;
	uint64_t moved_ssd;    /* blocks moved between files to empty a file */
	uint64_t evicted_last; /* evictions from DRAM that left no copy */
	/* Blocks not written to SSD, because their parent was not there,
	 * because of ssd_write=, or because of a quota. */
	uint64_t unwritten_orphans, unwritten_budget, unwritten_quota;
	uint64_t refused_rate; /* saves refused because of rate_put */
	/* By enum kv_cause: look-ups that ended early; at KV_CAUSE_NONE: the
	 * other misses. */
	uint64_t causes[KV_CAUSES];
	/* Bytes read by prefetches; those used; those evicted unused. */
	uint64_t prefetched, prefetch_used, prefetch_unused;
	uint64_t bytes_read_ssd, bytes_written_ssd, commits, io_errors;
	uint64_t index_bytes;
	uint64_t stuck;	      /* disk requests past their deadline */
	uint64_t ssd_outages; /* how often the SSD tier went offline */
	uint64_t bad_slots;   /* SSD slots unusable until the next mount */
	/* Failed changes of a segment file's slot size; files that stay
	 * unusable until such a change succeeds. */
	uint64_t resize_failures, ssd_unusable_files;
	uint64_t scrubbed; /* bytes read by the scrubber */
	uint64_t scrub_passes, scrub_percent, scrub_corrupt;
	int64_t scrub_ended_ns; /* end of the scrubber's last pass; 0: none */
	const char *evict, *evict_weighs; /* policy, and its present ranking */
	/* Evicted blocks of ended chains; victims refused because they were in
	 * use; new blocks found in the ghost. */
	uint64_t victims_ended, victims_refused, remembered;
	/* Estimated hit rates with 1, 2, 4 times the DRAM, and unlimited. */
	double estimated[4];
	bool ssd_degraded;
	const char *ssd_state; /* "online", "off", or why it is degraded */
	/* Nanoseconds of requests at the SSD, and of commits. */
	struct kv_histogram ssd_times[3], commit_times; /* by enum kv_io_op */
	/* [0]: DRAM, [1]: SSD: seconds since the last use of the blocks that acquires found,
	 * and of evicted blocks; uses of evicted blocks. */
	struct kv_histogram hit_age[2], evicted_age[2], evicted_uses[2];
};
void kv_cache_stats(struct kv_cache *cache, struct kv_cache_stats *ret_stats);

/* Calls of the backend of the remote tier. */
enum kv_remote_call {
	KV_REMOTE_HEAD,	  /* check whether an object exists */
	KV_REMOTE_GET,	  /* get the bytes of an object */
	KV_REMOTE_PUT,	  /* replace an object atomically */
	KV_REMOTE_DELETE, /* delete an object, or all below NAME/ */
	KV_REMOTE_CALLS,
};
#define KV_REMOTE_FAILURE_MAX 160u
struct kv_remote_stats {
	const char *url; /* lives as long as the cache */
	bool open; /* false: the backend's breaker is open, nothing is sent */
	uint64_t calls[KV_REMOTE_CALLS],
		ns[KV_REMOTE_CALLS]; /* total duration of ended calls */
	uint64_t got_bytes, put_bytes;
	uint64_t failed;  /* calls that failed after their retries */
	uint64_t retried; /* calls that were sent again */
	uint64_t late;	  /* failed calls that passed their deadline */
	uint64_t refused; /* calls refused for one object: 403, symbolic link */
	uint64_t damaged; /* objects whose bytes did not match their digest */
	uint64_t dropped; /* blocks that were not put at the first try */
	uint64_t offering;	 /* spaces that are being offered */
	uint64_t tenants_closed; /* tenants whose breaker is open */
	uint64_t full;	     /* tenants for which the backend takes no blocks */
	uint64_t lent_bytes; /* memory lent to calls, in flight or abandoned */
	char failure[KV_REMOTE_FAILURE_MAX]; /* the last failure; "": none */
};

/* Remove blocks here, then from the backend.  Input: @done, @arg, @space (held
 * until @done), @n and @keys; the other fields are zero.  n == 0: the whole
 * space, which the caller has already cleared. */
struct kv_forget {
	void (*done)(struct kv_forget *forget); /* runs once, on any thread */
	void *arg;
	struct kv_space *space;
	/* Set before @done: numbers of objects removed, absent, and failed,
	 * which the backend may still have.  For a whole space, @removed is the
	 * number of objects (0: unknown), or else @absent or @failed is 1. */
	uint64_t removed, absent, failed;
	int status; /* set before @done: the first failure, or 0 */
	char why[KV_REMOTE_FAILURE_MAX]; /* set before @done: cause, or "" */
	/* The fields from here to @cancelled are used by the cache only. */
	TAILQ_ENTRY(kv_forget) link;
	uint32_t uid;	      /* owner of @space at the submission */
	struct kv_turn *turn; /* queue of the user among all forgets; held */
	size_t next;
	unsigned under_way;
	uint64_t until_ns;
	_Atomic bool cancelled;
	size_t n;
	struct kv_key keys[];
};
/*
 * Submit @forget, which belongs to the cache until @done runs, within @ns.  The blocks
 * are neither fetched nor put again before they are saved here again.  Puts in flight
 * end first.
 * -EOPNOTSUPP  there is no remote tier
 * -EROFS
 */
int kv_forget_submit(struct kv_cache *cache, struct kv_forget *forget,
		     uint64_t ns);
/* Cancel a forget: @done runs soon, unless it has run. */
void kv_forget_cancel(struct kv_cache *cache, struct kv_forget *forget);

/* Return whether the scheme of @url is one of a backend. */
bool kv_remote_knows(const char *url);
/* Copy the statistics of the backend; false: there is no remote tier. */
bool kv_remote_stats(struct kv_cache *cache, struct kv_remote_stats *ret);

/* Return key=value lines: the sizes that the cache settled on, and every
 * fallback with its reason.  Caller frees. */
char *kv_cache_describe(struct kv_cache *cache);

#endif
