/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cache.h - the whole cache as fs/ sees it: spaces, blocks, fills, leases.
 *
 * Threads: every call may come from any thread.  None but those marked
 * "waits" does I/O or blocks for longer than a short critical section.
 * Callbacks run on the cache's own threads with no lock held; they must not
 * block, and may call back into the cache.
 */
#ifndef KV_CACHE_CACHE_H
#define KV_CACHE_CACHE_H

#include <sys/queue.h>

#include "common/block.h"
#include "common/kv.h"
#include "common/layout.h"
#include "index/format.h"

struct kv_cache;
struct kv_accounts;
struct kv_ring_backend;
struct kv_account;
struct kv_space; /* valid while it is held, also when it is removed */
struct kv_block; /* valid between a get and its put */
struct kv_fill;	 /* a slot being filled; belongs to its maker */
struct kv_want;

enum kv_hugepages { KV_HUGE_AUTO, KV_HUGE_ON, KV_HUGE_OFF };
enum kv_arena_mode { KV_ARENA_AUTO, KV_ARENA_SEALED, KV_ARENA_RW };
enum kv_writeback { KV_WRITEBACK_ALL, KV_WRITEBACK_REUSE, KV_WRITEBACK_NONE };

#define KV_REMOTE_NAME_MAX 64u /* of a tenant */

/* The options of the remote tier. */
struct kv_remote_name {
	uint32_t uid;
	char *name; /* of the tenant, on all nodes */
};
struct kv_remote_config {
	char **urls; /* in the order in which they are asked */
	size_t n;    /* 0: there is no remote tier */
	enum kv_writeback write;
	uint32_t threshold; /* blocks of a chain that are worth a look */
	uint64_t rate;	    /* bytes a second that may be fetched; 0: any */
	bool optional;	    /* mount without those that cannot be opened */
	struct kv_remote_name *tenants;
	size_t n_tenants;
};

struct kv_cache_config {
	const char *store; /* directory, or NULL: no store (tests) */
	uint64_t dram;	   /* bytes, >= 16 MiB */
	uint64_t ssd;	   /* cap on bytes below the store; 0: no tier */
	bool ssd_given;	   /* false: keep the store's size */
	bool ssd_evict;	   /* a smaller ssd may evict pinned blocks */
	uint64_t segment;  /* bytes */
	enum kv_hugepages hugepages;
	enum kv_writeback writeback;
	const char *evict;  /* one of kv_policy_name */
	uint64_t scrub;	    /* bytes a second */
	uint64_t ssd_write; /* bytes a day */
	bool read_only;
	enum kv_arena_mode arena;
	struct kv_remote_config remote;
	uint64_t io_patience; /* ns until a request is stuck; 0: 30 s */
	uint64_t io_retry; /* ns before a failed request is retried; 0: 1 s */
	/* Carries out disk requests; NULL: io_uring, else threads. */
	const struct kv_ring_backend *io;

	/* A block that was visible is gone; @id is kv_block_info.id.  May be
	 * NULL.  The listener queues, and tells the kernel from a thread of
	 * its own. */
	void (*gone)(void *arg, uint64_t id);
	/* Space @id was removed.  May be NULL. */
	void (*space_gone)(void *arg, uint32_t id);
	/* Before kv_cache_open returns: the store's owner, of that pid, is
	 * ending, and is waited for.  May be NULL. */
	void (*waiting)(void *arg, long owner);
	/* While kv_cache_open or kv_cache_close runs: a line that the user
	 * should see.  May be NULL. */
	void (*warn)(void *arg, const char *line);
	/* All clients that got segment @id must unmap it. */
	void (*retire)(void *arg, uint32_t id);
	/* There may be room in DRAM where there was none.  May be NULL. */
	void (*room)(void *arg);
	void *arg;
};

/*
 * Open or make the store, read the index, start the threads.  On failure
 * *@ret_why is a message for the user (caller frees).  -EBUSY locked by another
 * daemon, which does not end within some seconds, -EEXIST the directory holds
 * something else, -ENOTSUP another format.
 */
int kv_cache_open(const struct kv_cache_config *config,
		  struct kv_cache **ret_cache, char **ret_why);
/* No more requests will come: the next daemon may wait for the store. */
void kv_cache_ending(struct kv_cache *cache);
/*
 * Waits: writes all blocks that are queued, commits, marks the store clean.
 * -ETIMEDOUT: the SSD does not answer.  Then memory that it may still write to,
 * and all else of the cache, is left as it is until the process ends.
 */
int kv_cache_close(struct kv_cache *cache);

const uint8_t *kv_cache_store_id(struct kv_cache *cache); /* 16 bytes */
uint64_t kv_cache_epoch(struct kv_cache *cache);
/* The resources that each user holds; as long as the cache. */
struct kv_accounts *kv_cache_accounts(struct kv_cache *cache);

/* ---- spaces ---- */

/* By probe, which match asks too, and by acquire.  A hit is a block found by
 * acquire, a miss one not found by either. */
struct kv_lookups {
	uint64_t asked, found; /* by probe */
	uint64_t hits_dram, hits_ssd, misses;
};

struct kv_space_info {
	uint32_t id;
	uint32_t uid, gid, mode; /* mode: permission bits, 07777 */
	int64_t mtime_ns;
	bool removed;
	bool shared; /* with other nodes, by the remote tier */
	struct kv_quota quota;
	/* NULL: untyped.  Lives as long as the space is held. */
	const struct kv_layout *layout;
	uint64_t blocks, bytes_dram, bytes_ssd; /* as `du` counts them */
	struct kv_lookups lookups;
};

/*
 * The calls below return spaces held, or NULL: kv_space_put (which takes NULL)
 * lets go.  A caller holds the space that it passes until the call returns, and
 * that of an acquire or prefetch until it is settled.
 */
struct kv_space *kv_space_get(struct kv_space *space);
void kv_space_put(struct kv_space *space);
void kv_space_putp(struct kv_space **space);
struct kv_space *kv_space_find(struct kv_cache *cache, const char *name);
/* Removed ones, too, while anything has them. */
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
/* Remove a space, and its snapshots, whose blocks are all gone.
 * -ENOTEMPTY with blocks in it, -ESTALE removed already.  Waits. */
int kv_space_remove(struct kv_cache *cache, struct kv_space *space);
/* Take its blocks out of the old access class, then change it.  With another owner
 * it is shared no more.  Waits. */
int kv_space_chown(struct kv_cache *cache, struct kv_space *space, uint32_t uid,
		   uint32_t gid, uint32_t mode);
int kv_space_set_mtime(struct kv_cache *cache, struct kv_space *space,
		       int64_t mtime_ns);
/*
 * Set the layout of the space for the user @uid.  0 also if it has an equal one;
 * -EEXIST another one, -EBADMSG a block in the space does not fit it, -EPERM it
 * says "share", which is for the space's owner and operators to say, and the
 * errors of kv_layout_parse.  Waits.
 */
int kv_space_set_layout(struct kv_cache *cache, struct kv_space *space,
			uint32_t uid, const char *text, size_t len);
/*
 * Check a layout's text that may still be growing.  Returns
 *   1         complete and valid, and no other layout is there
 *   0         incomplete so far
 *   -EEXIST   the space has another layout
 *   -EINVAL, -EFBIG, -ENOMEM   as kv_layout_parse
 * This and kv_space_set_layout keep the reason of a refusal for
 * kv_space_layout_error, and forget it after a success.
 */
int kv_space_check_layout(struct kv_cache *cache, struct kv_space *space,
			  const char *text, size_t len);
#define KV_LAYOUT_ERROR_MAX 119 /* bytes */
/* Copy the reason into @ret_why, of KV_LAYOUT_ERROR_MAX + 1 bytes.  Returns its
 * length; 0: no layout was refused. */
int kv_space_layout_error(struct kv_cache *cache, struct kv_space *space,
			  char *ret_why);
/* Whether other nodes see it by the remote tier.  Waits. */
int kv_space_set_shared(struct kv_cache *cache, struct kv_space *space,
			bool shared);
/* -ENOSPC: the guarantees exceed the tier. */
int kv_space_set_quota(struct kv_cache *cache, struct kv_space *space,
		       const struct kv_quota *quota);

/* A user: sums and limits of all its spaces together. */
struct kv_tenant_info {
	struct kv_quota quota;
	uint64_t spaces, blocks, bytes_dram, bytes_ssd;
};
struct kv_tenant_info kv_tenant_stat(struct kv_cache *cache, uint32_t uid);
/* List the users that own a space or have a quota, unordered; caller frees.
 * -ENOMEM. */
int kv_tenant_list(struct kv_cache *cache, uint32_t **ret_uids, size_t *ret_n);
/* -ENOSPC: the guarantees exceed the tier, too many users, or no room for it on
 * SSD. */
int kv_tenant_set_quota(struct kv_cache *cache, uint32_t uid,
			const struct kv_quota *quota);

/*
 * Drop every block, in pieces of less than a millisecond but for the first.
 * Begin takes effect on saves at once: those begun before never seal (-ESTALE),
 * and block no new ones from now on; blocks sealed from then on stay.  Some
 * returns 1 while there is more to do, 0 at the end, -ENOMEM.
 */
struct kv_clear;
int kv_clear_begin(struct kv_cache *cache, struct kv_space *space,
		   struct kv_clear **ret_clear);
int kv_clear_some(struct kv_cache *cache, struct kv_clear *clear);
void kv_clear_end(struct kv_clear *clear); /* takes NULL */

/* The two-digit directories. @byte: the first byte of the keys in it. */
bool kv_dir_exists(struct kv_cache *cache, struct kv_space *space,
		   uint8_t byte);
/* Return when a name in the directory came or went: a block's, or that of a file
 * being written, for which kv_dir_changed is called. */
int64_t kv_dir_mtime(struct kv_cache *cache, struct kv_space *space,
		     uint8_t byte);
void kv_dir_changed(struct kv_cache *cache, struct kv_space *space,
		    uint8_t byte);
int kv_dir_make(struct kv_cache *cache, struct kv_space *space,
		uint8_t byte); /* -EEXIST */
int kv_dir_remove(struct kv_cache *cache, struct kv_space *space,
		  uint8_t byte); /* -ENOENT, -ENOTEMPTY */
/* Ids of the blocks in it now, in a stable order; caller frees. */
int kv_dir_list(struct kv_cache *cache, struct kv_space *space, uint8_t byte,
		uint64_t **ret_ids, size_t *ret_n);

/*
 * Keys of the space's blocks, at most @max into @ret_keys, from *@cursor on,
 * which is 0 at first and again at the end; returns how many, which may be none
 * before the end.  Takes well under a millisecond.  A key that is
 * never removed comes once, or twice if the space grows by half meanwhile.
 */
size_t kv_space_keys(struct kv_cache *cache, struct kv_space *space,
		     uint64_t *cursor, struct kv_key *ret_keys, size_t max);

/* ---- blocks ---- */

enum kv_tier { KV_TIER_DRAM = 1, KV_TIER_SSD = 2 };

struct kv_block_info {
	uint64_t id;		/* 60 bits, never reused while mounted */
	struct kv_space *space; /* valid while it or the block is held */
	struct kv_key key;
	uint64_t length; /* of the file */
	uint64_t held;	 /* bytes over all tiers, > 0 */
	unsigned tiers;
	uint32_t hits;
	uint32_t leases; /* clients holding it */
	bool durable, pinned, removed;
	int64_t atime_ns, mtime_ns;
	uint32_t uid, gid, mode; /* its space's */
};

/* Get: the block, held; -ENOENT.  Removed ones are found by id while held. */
int kv_block_get(struct kv_cache *cache, struct kv_space *space,
		 const struct kv_key *key, struct kv_block **ret_block);
int kv_block_get_id(struct kv_cache *cache, uint64_t id,
		    struct kv_block **ret_block);
void kv_block_hold(struct kv_cache *cache, struct kv_block *block);
/*
 * Charge the bytes of an open block, which cannot be evicted, to its reader's
 * @account.  A block whose pin is charged to @account is charged when it is
 * unpinned.  Call kv_open_credit before the block is put.
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
/* The same of a block that one does not hold, by id or key; -ENOENT. */
int kv_block_stat_id(struct kv_cache *cache, uint64_t id,
		     struct kv_block_info *ret_info);
int kv_block_stat_key(struct kv_cache *cache, struct kv_space *space,
		      const struct kv_key *key, struct kv_block_info *ret_info);
/* Things not kept in memory; reads the slot or the index.  -EIO, -EBADMSG. */
int kv_block_meta(struct kv_cache *cache, struct kv_block *block,
		  struct kv_meta *ret_meta, struct kv_digest *ret_digest);

/*
 * Return also the token ids of a block in a space with "token_ids" (caller
 * frees): from the index, or from the block's header if the block is not durable
 * or has too many for the index.  Waits.  -ENOENT: it has none; -ENOMEM, and
 * errors of kv_view_get.
 */
int kv_block_get_token_ids(struct kv_cache *cache, struct kv_block *block,
			   struct kv_meta *ret_meta,
			   struct kv_token_ids **ret_ids);

void kv_block_touch(struct kv_cache *cache, struct kv_block *block); /* a use */
/* Evict the block first: its conversation is over.  Call for a chain from its
 * tail, and not for blocks that others share.  A use takes it back. */
void kv_block_end(struct kv_cache *cache, struct kv_block *block);
int kv_block_set_mtime(struct kv_cache *cache, struct kv_block *block,
		       int64_t mtime_ns);
/* Evict these blocks, which are in chain order, before others: their conversation
 * is over.  Pinned blocks stay; a use takes the hint back. */
void kv_blocks_ended(struct kv_cache *cache, struct kv_space *space,
		     const struct kv_key *keys, size_t n);
/* Evict from all tiers; -ENOENT if it is gone already, -EROFS. */
int kv_block_remove(struct kv_cache *cache, struct kv_block *block);
/* The same for a caller that puts the block next, and whose reply tells the
 * kernel: no callback runs. */
int kv_block_unlink(struct kv_cache *cache, struct kv_block *block);
int kv_block_pin(struct kv_cache *cache, struct kv_block *block,
		 bool pin); /* -ENOSPC below the floor */
/* Free the slot of a block that is durable; -EAGAIN: it is not, -EBUSY leased.
 */
int kv_block_demote_try(struct kv_cache *cache, struct kv_block *block);

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
/* For one look: bytes read from SSD are not kept for other readers. */
int kv_view_get_once(struct kv_cache *cache, struct kv_block *block,
		     struct kv_view *ret_view);
/* Without waiting; -EAGAIN: its bytes must be read first. */
int kv_view_get_try(struct kv_cache *cache, struct kv_block *block,
		    struct kv_view *ret_view);
void kv_view_put(struct kv_cache *cache, struct kv_view *view);

/* ---- snapshots: blocks of a chain, pinned under a name ---- */

#define KV_SNAPSHOT_BLOCKS (1u << 17)  /* in one, at most */
#define KV_SNAPSHOT_POSITION 99999999u /* the last: links have eight digits */

struct kv_pick {
	struct kv_key key;
	uint32_t position; /* in its chain */
};

struct kv_snapshot_info {
	uint64_t id;	 /* 32 bits, never reused while mounted */
	uint32_t space;	 /* id */
	uint32_t blocks; /* listed, whether they exist or not */
	int64_t mtime_ns;
	char name[KV_SPACE_NAME_MAX + 1];
};

/*
 * Pin the blocks of @picks, whose positions ascend, under @name; no byte is
 * copied.  All of them or none; durable with the next flush of the space.
 * -ENOENT: block *@ret_missing is not here; -ENOSPC: too little could be
 * evicted then (*@ret_missing: the first that did not fit, or @n), -EEXIST the
 * name is taken, -EINVAL a name as no space could have it, no picks, too many,
 * or out of order; -ESTALE space removed, -EROFS.
 */
int kv_snapshot_create(struct kv_cache *cache, struct kv_space *space,
		       const char *name, const struct kv_pick *picks, size_t n,
		       size_t *ret_missing);
/* Unpin all at once.  A block that its user pinned, or another snapshot has,
 * stays pinned.  -ENOENT, -EROFS. */
int kv_snapshot_drop(struct kv_cache *cache, uint64_t id);
/* Unpin the block at @position; the snapshot stays, if empty.  -ENOENT. */
int kv_snapshot_unlink(struct kv_cache *cache, uint64_t id, uint32_t position);

int kv_snapshot_find(struct kv_cache *cache, struct kv_space *space,
		     const char *name, struct kv_snapshot_info *ret_info);
int kv_snapshot_stat(struct kv_cache *cache, uint64_t id,
		     struct kv_snapshot_info *ret_info); /* -ENOENT */
/* The first of its blocks, at most @max, from position @from on.  -ENOENT. */
long kv_snapshot_read(struct kv_cache *cache, uint64_t id, uint32_t from,
		      struct kv_pick *ret_picks, size_t max);
/* Ids of the space's snapshots; caller frees. */
int kv_snapshot_list(struct kv_cache *cache, struct kv_space *space,
		     uint64_t **ret_ids, size_t *ret_n);

/* ---- fills: a block on its way in ---- */

/*
 * Reserve a slot for a file of @length bytes.  With @key it is shown as SAVING,
 * and only one such may exist: -EEXIST present, -EALREADY being saved (by a
 * fill that may still seal).
 * -EFBIG larger than a segment can hold, -ENOSPC no slot can be had now, -EBUSY
 * memory is being made or, without @key, writes are making room, -EAGAIN beyond
 * the space's rate, -ESTALE space removed, -EROFS.
 */
int kv_fill_begin(struct kv_cache *cache, struct kv_space *space,
		  const struct kv_key *key, uint64_t length,
		  struct kv_fill **ret_fill);
uint8_t *kv_fill_data(struct kv_fill *fill); /* @length writable bytes */
/* Keep the sealed block until it is durable, if an SSD tier has room for it. */
void kv_fill_must(struct kv_fill *fill);
/*
 * Lease the block for @want when it is sealed, so that it cannot be evicted before.
 * kv_acquire_release ends the lease.  The status of @want, -errno before, is 0
 * then.
 */
void kv_fill_hold(struct kv_fill *fill, struct kv_want *want);
/* Check that one more block of @length bytes may be leased: 0, -ENOSPC, -EFBIG. */
int kv_fill_may_hold(struct kv_cache *cache, struct kv_space *space,
		     uint64_t length);

/* Mark a block from another node: its seal is -ESTALE if its user has removed it
 * here. */
void kv_fill_fetched(struct kv_fill *fill);

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
/* Count a client's look-up of blocks, which returned these states. */
void kv_asked(struct kv_cache *cache, struct kv_space *space,
	      const uint8_t *states, size_t n);

/* A block wanted in DRAM, and then leased. */
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
	bool short_of_room;	/* waits for room */
	uint64_t writes, reads; /* that were under way then */
};

struct kv_acquire {
	/* In, up to arg. */
	struct kv_space *space;
	size_t n;
	bool again; /* no new use: count no hit */
	bool wait_saving;
	bool resident; /* do not wait: a block not in DRAM is -EAGAIN */
	/* A block is sealed (0) or absent: no matter where it is, nothing is
	 * leased, nothing to be released, and that is no use of it. */
	bool sealed;
	/* A want without room in DRAM waits for the writes and reads that are
	 * under way, but never for leases. */
	bool wait_room;
	/* Look for missing blocks in the remote tier, in the turn of user @uid,
	 * and wait for them. */
	bool remote;
	uint32_t uid;
	/* The chain goes on, as far as one can tell, in another request. */
	bool more;
	/* Every want is settled; runs once, unless submit returned 0. */
	void (*done)(struct kv_acquire *acquire, void *arg);
	void *arg;
	/* The cache's own. */
	struct kv_remote_look *look; /* for missing blocks */
	/* Of the chain so many are wanted from the first on that was looked for;
	 * 0: none was.  goes_on: that one is of an earlier part of the request. */
	size_t rest;
	bool goes_on;
	bool submitting;
	struct kv_prefetch *hint; /* bring to DRAM for it, lease nothing */
	size_t pending;
	size_t short_of_room, room_at; /* so many wants are, none before this */
	TAILQ_ENTRY(kv_acquire) link;
	struct kv_acquire *next_deferred;
	struct kv_want wants[];
};

/* Keys in chain order: they are touched from the tail.  Returns how many wants
 * are still pending; 0: settled at once, @done will not run. */
size_t kv_acquire_submit(struct kv_cache *cache, struct kv_acquire *acquire);
/* Settle pending wants with @status now (@done runs, unless it has). */
void kv_acquire_cancel(struct kv_cache *cache, struct kv_acquire *acquire,
		       int status);
/* Give the leases back; only once settled.  The caller frees @acquire. */
void kv_acquire_release(struct kv_cache *cache, struct kv_acquire *acquire);

/* ---- prefetch: brought to DRAM on a hint, and not leased ---- */

/*
 * Blocks wanted in DRAM soon, read in the order of @keys, a few at a time: all
 * prefetches together have at most a fixed share of the arena in flight, and wait
 * for each other.  Blocks that are evicted before their first use count as kv_cache_stats.prefetch_unused.
 */
struct kv_prefetch {
	struct kv_space *space; /* in, and the next six */
	uint32_t uid;		/* as in an acquire, and the next */
	bool more;
	const struct kv_key *keys; /* valid until @done */
	size_t n;
	uint64_t
		deadline_ns; /* kv_now_ns; reads do not begin later.  0: none */
	/* Every key is settled; runs once, and never from within submit. */
	void (*done)(struct kv_prefetch *prefetch, void *arg);
	void *arg;
	uint64_t bytes; /* out: read from SSD for it */
	size_t next;	/* the cache's own: first key that has not begun */
	size_t under_way;
	size_t rest; /* so many from the first on that was looked for */
	bool cancelled;
	TAILQ_ENTRY(kv_prefetch) link;
	int status[]; /* out, by key: 0 in DRAM, or why not: -ENOENT, -EIO,
			 -ENOSPC, -ETIMEDOUT (deadline), -ECANCELED */
};

void kv_prefetch_submit(struct kv_cache *cache, struct kv_prefetch *prefetch);
/* Settle keys whose read has not begun with -ECANCELED; @done runs, unless it has,
 * when the other reads have ended. */
void kv_prefetch_cancel(struct kv_cache *cache, struct kv_prefetch *prefetch);

/* Waiting for durability, without a thread of one's own. */
struct kv_flush {
	void (*done)(struct kv_flush *flush, int status);
	void *arg;
	/* In: a block that its owner's client has changed does not end the
	 * flush; the caller checks each block (kv_block_was_changed). */
	bool each;
	/* the cache's own */
	struct kv_flush *next;
	TAILQ_ENTRY(kv_flush) link;
	uint64_t asked;	   /* unpersisted blocks up to this come first */
	uint64_t ticket;   /* then wait for dirty blocks up to this */
	uint64_t deletion; /* of the space's, so many are over */
	uint64_t update;   /* changes of records that it waits for: so many */
	uint64_t change;   /* of snapshots, in @space */
	uint64_t removal;  /* number of a change of the tombstones */
	struct kv_space *space;
	struct kv_block *block; /* the only one it waits for; or NULL */
	LIST_ENTRY(kv_flush) of_slot, of_all;
	bool durable; /* the block is: it waits for @update */
	int status;
	bool pending;
};
/* Everything sealed or removed in @space so far; @done may run before return.
 */
void kv_flush_submit(struct kv_cache *cache, struct kv_space *space,
		     struct kv_flush *flush);
/* Whether a block that is not here, or not durable, was durable, and eviction
 * took it from SSD: as far back as some ten thousand evictions. */
bool kv_block_was_durable(struct kv_cache *cache, const struct kv_space *space,
			  const struct kv_key *key);
/* Whether a block that is not here, and was not durable, is gone because its
 * owner's client had changed it: as far back as some thousand such. */
bool kv_block_was_changed(struct kv_cache *cache, const struct kv_space *space,
			  const struct kv_key *key);
/* Flush a block, which the caller holds until @done: -ENOSPC, -EIO, -ENOENT it
 * was removed, -EBADMSG its owner's client has changed it: it is gone, -EROFS,
 * -EOPNOTSUPP (no SSD tier). */
void kv_block_flush_submit(struct kv_cache *cache, struct kv_block *block,
			   struct kv_flush *flush);
/* @done runs with @status unless it has run. */
void kv_flush_cancel(struct kv_cache *cache, struct kv_flush *flush,
		     int status);

/* ---- the arena's segments, for clients ---- */

/*
 * Count a client of the user @uid in as a holder of segment @id and return the
 * descriptor to send (the cache's own; do not close) and the segment's size.
 * Only the owner of the segment's blocks can write by it, and only if the
 * segment is open: with arena=rw, or as kv_registrant_add says.
 * -ENOENT: retired meanwhile; -ENOLCK: the user keeps more retired segments than
 * its share; -ENOMEM.
 */
int kv_segment_give(struct kv_cache *cache, uint32_t id, uint32_t uid,
		    int *ret_fd, uint64_t *ret_bytes);
/*
 * Note a client of the user that registers memory with a device which needs it
 * writable.  While the user has such clients its new segments are open, if no
 * other user may read their blocks, it is not uid 0, and arena=auto.
 * -ENOMEM.
 */
int kv_registrant_add(struct kv_cache *cache, uint32_t uid);
void kv_registrant_remove(struct kv_cache *cache, uint32_t uid);
/* A client of the user says that it unmapped the segment, or is dead. */
void kv_segment_returned(struct kv_cache *cache, uint32_t id, uint32_t uid);

/* ---- statistics ---- */

struct kv_cache_stats {
	uint64_t dram_total, dram_used, dram_blocks; /* used: by slots in use */
	uint64_t dram_segments, dram_segments_max, dram_retired, dram_huge;
	uint64_t ssd_total, ssd_used, ssd_blocks, ssd_files;
	uint64_t blocks, spaces, leases, pinned, saving, dirty_blocks;
	uint64_t dram_alone;   /* blocks not on SSD, nor on their way to it */
	uint64_t pinned_bytes; /* of DRAM */
	uint64_t snapshots;
	struct kv_lookups lookups;
	uint64_t sealed, conflicts, corrupt;
	uint64_t evicted_dram, evicted_ssd, removed, dropped_saves;
	uint64_t moved_ssd;    /* from file to file, to make place */
	uint64_t evicted_last; /* of evicted_dram: they were dram_alone */
	/* Not written to SSD, for want of their parent there, of budget
	 * (ssd_write=), of quota. */
	uint64_t unwritten_orphans, unwritten_budget, unwritten_quota;
	uint64_t refused_rate; /* saves beyond their space's rate */
	/* Bytes read by prefetches; of these used, and evicted before use. */
	uint64_t prefetched, prefetch_used, prefetch_unused;
	uint64_t bytes_read_ssd, bytes_written_ssd, commits, io_errors;
	uint64_t index_bytes;
	uint64_t stuck;	      /* requests that do not end */
	uint64_t ssd_outages; /* times that reads went offline */
	uint64_t bad_slots;   /* on SSD, unusable until the next mount */
	/* Changes of a segment file's slot size that failed, and the files that
	 * hold nothing until such a change succeeds. */
	uint64_t resize_failures, ssd_unusable_files;
	uint64_t scrubbed; /* bytes */
	uint64_t scrub_passes, scrub_percent, scrub_corrupt;
	int64_t scrub_ended_ns;		  /* the last whole pass; 0: none yet */
	const char *evict, *evict_weighs; /* the policy, and lhd's choice */
	/* Victims of chains that had ended; blocks passed over because they
	 * were in use; blocks that came in and were known from before. */
	uint64_t victims_ended, victims_refused, remembered;
	/* Hit rates that 1, 2, 4 times the DRAM and any amount would give. */
	double estimated[4];
	bool ssd_degraded;
	const char *ssd_state; /* "online", "off", or why it is degraded */
};
void kv_cache_stats(struct kv_cache *cache, struct kv_cache_stats *ret_stats);

/* Of a backend of the remote tier. */
enum kv_remote_call {
	KV_REMOTE_EXISTS,  /* -ENOENT; else its length and digest */
	KV_REMOTE_GET,	   /* the same, and its bytes */
	KV_REMOTE_PUT,	   /* replaces an object */
	KV_REMOTE_PUBLISH, /* -EEXIST: somebody was first */
	KV_REMOTE_REMOVE,  /* -ENOENT */
	KV_REMOTE_CLEAR,   /* all objects beside this one, which stays */
	KV_REMOTE_CALLS,
};
#define KV_REMOTE_FAILURE_MAX 96u
struct kv_remote_stats {
	const char *url; /* as long as the cache */
	bool there;	 /* false: it could not be opened yet */
	bool open;	 /* requests are sent; false: too many failed */
	uint64_t calls[KV_REMOTE_CALLS], ns[KV_REMOTE_CALLS]; /* that ended */
	uint64_t got_bytes, put_bytes;
	/* Calls that failed; of these, those that took too long; objects that
	 * were not what they should be; blocks that were not handed over at
	 * once. */
	uint64_t failed, late, damaged, dropped;
	uint64_t offering; /* spaces that are offered to it */
	/* Memory lent to the backend for objects that it gets or puts, also for
	 * requests that were given up and have not ended. */
	uint64_t lent_bytes;
	/* Of a backend of helpers: of tenants, those of them that are not asked as
	 * they hang, fail or have ended; calls for tenants without a place. */
	uint64_t helpers, helpers_unwell, refused;
	char failure[KV_REMOTE_FAILURE_MAX]; /* the last one; "": none yet */
};

/* How it went with a backend: blocks that were removed there, those that it did not
 * have, and those that it may have still, with the first reason. */
struct kv_forgot {
	const char *url; /* as long as the cache */
	uint64_t removed, absent, failed;
	int status;
};
#define KV_FORGOT_MAX 4u

struct kv_forget {
	void (*done)(struct kv_forget *forget); /* from any thread */
	void *arg;
	struct kv_space *space; /* held by the caller */
	/* By done(), of the backends in their order.  Of a whole space @removed is
	 * 1, or @absent, or @failed. */
	unsigned n_backends;
	struct kv_forgot backends[KV_FORGOT_MAX];
	/* the cache's own */
	TAILQ_ENTRY(kv_forget) link;
	char prefix[160];
	size_t next[KV_FORGOT_MAX];
	unsigned under_way[KV_FORGOT_MAX];
	uint64_t until_ns;
	bool cancelled;
	size_t n; /* keys; 0: the whole space, here as far as it was cleared */
	struct kv_key keys[];
};
/*
 * Remove blocks here, and then from all backends, for @ns at most; @forget is the
 * cache's until done().  Nobody brings them back, nor are they handed over, before
 * they are saved again here.  Objects on their way to a backend are waited for.
 * -EOPNOTSUPP there is no remote tier; -EROFS.
 */
int kv_forget_submit(struct kv_cache *cache, struct kv_forget *forget,
		     uint64_t ns);
/* done() runs soon, unless it has. */
void kv_forget_cancel(struct kv_cache *cache, struct kv_forget *forget);

/* Whether there is a backend for it. */
bool kv_remote_knows(const char *url);
/* In their order; returns how many. */
size_t kv_remote_stats(struct kv_cache *cache, struct kv_remote_stats *ret,
		       size_t max);

/* Return key=value lines beyond the options: the sizes that the cache settled on,
 * and every fallback with its reason.  Caller frees. */
char *kv_cache_describe(struct kv_cache *cache);

#endif
