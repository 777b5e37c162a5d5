/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot.h - snapshots, and the pins they put on keys; cache/ only.
 *
 * All calls with cache->lock held, unless they say otherwise.
 */
#ifndef KV_CACHE_SPACE_SNAPSHOT_H
#define KV_CACHE_SPACE_SNAPSHOT_H

#include <sys/queue.h>

#include "cache/cache.h"

struct kv_pin; /* a key that snapshots have */

struct kv_snapshot {
	uint64_t id;			  /* fixed */
	uint32_t space;			  /* fixed: id */
	char name[KV_SPACE_NAME_MAX + 1]; /* fixed */
	int64_t mtime_ns;		  /* fixed */
	bool ready;			  /* all is pinned: others may see it */
	bool dropped; /* nobody can find it; only its deletion is left */
	bool dirty;   /* in snapshots->dirty */
	/* By position; key_len 0: unlinked. */
	struct kv_snapshot_item *items;
	uint32_t n, live;
	uint64_t change, latest; /* numbers of the first and the last change
				    that the index does not have */
	LIST_ENTRY(kv_snapshot) link;	     /* in its space */
	TAILQ_ENTRY(kv_snapshot) dirty_link; /* in snapshots->dirty */
};
TAILQ_HEAD(kv_snapshot_queue, kv_snapshot);
LIST_HEAD(kv_snapshot_list, kv_snapshot);

struct kv_snapshots {
	void *by_id, *by_name; /* tsearch trees */
	uint64_t next_id;
	uint64_t changes; /* so far */
	uint64_t cost;	  /* of all of them, as snapshot.c counts it */
	/* Changed since the index was written, oldest first. */
	struct kv_snapshot_queue dirty;
	uint64_t retry_at; /* after a failure, 0 if none */
};

struct kv_pins {
	struct kv_pin **buckets;
	size_t n, room;
	uint64_t bytes; /* of slots that are pinned */
};

/* ---- pins.c ---- */

/* One more snapshot has @key.  -ENOENT no such block, -ENOSPC too little could
 * be evicted then, -ENOMEM. */
int kv_pin_take_locked(struct kv_cache *cache, struct kv_space *space,
		       const struct kv_key *key);
/* The same whether the block is there or not, and whatever that costs. */
int kv_pin_adopt_locked(struct kv_cache *cache, struct kv_space *space,
			const struct kv_key *key);
void kv_pin_give_locked(struct kv_cache *cache, struct kv_space *space,
			const struct kv_key *key);
/* A block was sealed, or goes. */
void kv_pin_block_new_locked(struct kv_cache *cache, struct kv_block *block);
void kv_pin_block_gone_locked(struct kv_cache *cache, struct kv_block *block);
/* The pin that its user set, not its snapshots. */
bool kv_block_pinned_by_user(struct kv_cache *cache,
			     const struct kv_block *block);
void kv_pin_by_user_locked(struct kv_cache *cache, struct kv_block *block,
			   bool pin);
void kv_pins_fini(struct kv_cache *cache);

/* ---- snapshot.c ---- */

struct kv_snapshot_record;
struct kv_snapshot_item;

/* A visitor of the index at mount, when all blocks are known.  -ENOMEM. */
int kv_snapshot_adopt(void *arg, const struct kv_snapshot_record *record,
		      const char *name, const struct kv_snapshot_item *items);
/* Drop all of a space; not under the lock. */
void kv_snapshots_drop(struct kv_cache *cache, struct kv_space *space);
void kv_snapshots_fini(struct kv_cache *cache);

/* ---- snapshot_look.c ---- */

/* ---- snapshot_write.c ---- */

/* Write what changed, in transactions of its own: a large snapshot that finds
 * no room must not keep blocks from their commit.  Lets go of the lock. */
void kv_snapshots_write_locked(struct kv_cache *cache);

#endif
