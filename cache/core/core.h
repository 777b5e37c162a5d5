/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core.h - what the files of cache/ share: the structures and the one lock.
 *
 * LOCKING  cache->lock guards every field here that is not marked otherwise.
 *          The lock is held for short, bounded stretches, never across I/O or a
 *          callback: kv_unlock() releases it, and then runs the deferred
 *          callbacks (names that are gone, waits that are settled).
 *          "fixed": set before others can see the object.
 */
#ifndef KV_CACHE_CORE_CORE_H
#define KV_CACHE_CORE_CORE_H

#include <sys/queue.h>

#include "cache/cache.h"
#include "cache/evict/miss_curve.h"
#include "cache/evict/policy.h"
#include "cache/io/ring.h"
#include "cache/core/list.h"
#include "cache/core/turns.h"
#include "common/rate.h"
#include "common/thread.h"
#include "index/index.h"

/* ---- blocks ---- */

enum block_flag {
	BLOCK_LONG_KEY = 1, /* 32 bytes, not 16 */
	BLOCK_PINNED = 2,
	BLOCK_REMOVED = 4,  /* in no directory any more */
	BLOCK_READING = 8,  /* SSD to DRAM */
	BLOCK_QUEUED = 16,  /* to be written, slot->link */
	BLOCK_WRITING = 32, /* being written or waiting for its commit */
	BLOCK_USED = 64,    /* atime, hits newer than the index has them */
	BLOCK_UPDATE = 128, /* in cache->ssd.updates */
};

/*
 * A block, in DRAM, on SSD or both.  All other facts are in its slot's
 * prologue or in the index: there are millions of blocks.
 */
struct kv_block {
	uint8_t key[KV_KEY_MAX];
	uint32_t next;	     /* in its bucket, or in the free list */
	uint32_t number;     /* fixed */
	uint32_t generation; /* of the number: makes the id unique */
	uint32_t place : 24; /* of its space, which it holds; table.c */
	uint32_t flags : 8;
	uint32_t length;
	uint32_t file, slot_number; /* SSD: segment file and slot; KV_NONE */
	uint32_t refs;		    /* gets, reads under way */
	uint32_t hits;
	uint32_t atime; /* seconds of wall time */
	int64_t mtime_ns;
	struct kv_slot *slot;	   /* DRAM, READY; or NULL */
	struct kv_evict_node node; /* SSD policy */
};

_Static_assert(sizeof(struct kv_block) == 104,
	       "112 bytes with 4 in its bucket and 4 in kv_segfile.blocks");

struct kv_dir {
	uint32_t *buckets;
	uint32_t mask, blocks;
	bool made;	  /* by mkdir; stays when empty */
	int64_t mtime_ns; /* a name came or went */
};

/* ---- snapshots and pins ---- */

struct kv_pin; /* a key that snapshots have */

struct kv_snapshot {
	uint64_t id;			  /* fixed */
	struct kv_space *space;		  /* fixed; held; NULL: none */
	uint32_t space_id;		  /* fixed */
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
	/* Fixed, space/'s: write what changed, in transactions of its own: a
	 * large snapshot that finds no room must not keep blocks from their
	 * commit.  Lets go of the lock. */
	void (*write)(struct kv_cache *cache);
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

/* ---- spaces ---- */

#define KV_REMOTES_MAX 4u
struct kv_offer;

struct kv_slot;
TAILQ_HEAD(kv_slots, kv_slot);
TAILQ_HEAD(kv_turn_list, kv_space);
TAILQ_HEAD(kv_space_changes, kv_space_change);
TAILQ_HEAD(kv_flushes, kv_flush);

/* A slot whose record is to be deleted. */
struct kv_deletion {
	uint64_t slot_id;
	bool reuse;	/* give the slot back, when its prologue is zeroed */
	bool bad;	/* the prologue could not be zeroed */
	bool token_ids; /* delete the block's token ids, too */
	uint8_t failed; /* number of failures */
};

/* The deletions of a space, until the committer takes them. */
struct kv_deletion_queue {
	struct kv_deletion *items;
	size_t n, room;
	bool batch; /* a batch of the space is in hand */
	uint64_t begun, done;
};

/* Patience with failures: the times of the first and the last one in a row.  A
 * success sets seen_ns to 0. */
struct kv_patience {
	uint64_t since_ns, seen_ns;
};

/* Note a failure, and return whether failures have lasted for less than @most_ns,
 * without a pause as long. */
static inline bool kv_patient(struct kv_patience *patience, uint64_t most_ns)
{
	uint64_t now_ns = kv_now_ns();

	if (now_ns - patience->seen_ns > most_ns)
		patience->since_ns = now_ns;
	patience->seen_ns = now_ns;
	return now_ns - patience->since_ns < most_ns;
}

/* The bytes of one tier that a space has, or a user in all its spaces. */
struct kv_node {
	uint64_t bytes;	     /* of blocks */
	uint64_t coming;     /* of slots being filled (DRAM) or written (SSD) */
	uint64_t fast;	     /* not to be evicted: busy (DRAM), pinned (SSD) */
	uint64_t guaranteed; /* the reserve, or less if the tier has shrunk */
	uint64_t leaving;    /* scratch of the evictions */
	/* Of a user: sums of its spaces' guarantees, and of their parts that
	 * the spaces do not hold fast. */
	uint64_t promised, due;
};

/* A user: the sums and limits of all its spaces. */
struct kv_tenant {
	uint32_t uid; /* fixed */
	struct kv_quota quota;
	LIST_HEAD(, kv_space) spaces; /* those that are not removed */
	struct kv_node in[TIERS];     /* with the spaces that are removed */
	uint32_t segments;	      /* of the user's classes */
	uint32_t kept_segments; /* of these, segments that cannot be emptied */
	uint32_t registrants;	/* clients: kv_registrant_add */
	struct kv_patience patience; /* with failures to find a slot */
	uint64_t records;	     /* scratch of ssd/evict.c */
	double files;	       /* the same: the user's parts of files on SSD */
	struct kv_bucket puts; /* rate_put */
	LIST_ENTRY(kv_tenant) link;
};
LIST_HEAD(kv_tenants, kv_tenant);

struct kv_space {
	uint32_t id;			  /* fixed */
	uint32_t place;			  /* fixed */
	_Atomic uint32_t refs;		  /* blocks, fills, callers; no lock */
	struct kv_tenant *tenant;	  /* of uid */
	LIST_ENTRY(kv_space) siblings;	  /* of the tenant, until gone */
	char name[KV_SPACE_NAME_MAX + 1]; /* fixed */
	uint32_t uid, gid, mode;
	int64_t mtime_ns;
	bool removed;
	bool shared; /* with other nodes, by the remote tier */
	/* own_seed: the layout's seed was drawn here, and no other node knows
	 * it; differs: other nodes have another seed, and the space has blocks;
	 * split: backends have different seeds, which was reported.  untold:
	 * backends, by bits, that may not have the layout; agree_ns: when to
	 * ask them again. */
	bool own_seed, differs, split;
	uint32_t untold;
	uint64_t agree_ns;
	/* Offers of all blocks to backends; NULL: done.  remote/backup.c */
	struct kv_offer *offers[KV_REMOTES_MAX];
	bool settling; /* the record is being made, or deleted: no name */
	struct kv_quota quota;
	struct kv_space_change *change; /* being written; persist.c */
	uint64_t file_bytes;		/* of the file in STORE/spaces */
	uint64_t index_bytes;		/* of the index, with the snapshots */
	struct kv_layout *layout; /* set once, or replaced by space/agree.c */
	struct kv_layout *former;
	char layout_error[KV_LAYOUT_ERROR_MAX + 1];
	struct kv_dir *dirs[256]; /* NULL: not there */
	uint64_t blocks;
	struct kv_node in[TIERS];
	struct kv_lookups lookups;
	struct kv_patience patience; /* with failures to find a slot on SSD */
	uint64_t must_seq;  /* a flush waits for dirty slots up to this */
	uint64_t asked_seq; /* a flush needs unpersisted slots up to this */
	struct kv_deletion_queue deletions;
	TAILQ_ENTRY(kv_space) deleting;
	bool shrunk;	  /* a block was removed since the mount */
	uint64_t removal; /* number of the last change of cache->removed */
	/* Bytes of kept slots, and of others that are dirty; slot.c. */
	uint64_t kept_dram, dirty_dram;
	struct kv_account
		*account; /* the owner's, held: charged for all of this */
	struct kv_evict_list_list lists[TIERS];
	struct kv_slots unpersisted; /* slots of unpersisted blocks, by seq */
	struct kv_slots dirty;	     /* dirty slots, by seq */
	struct kv_slots
		unwritten;     /* of these, slots not in files yet, by seq */
	struct kv_slots queue; /* slots to be written */
	uint32_t queued;       /* slots on @queue */
	struct kv_turn *turn;  /* the user's; NULL: idle, and not resting */
	TAILQ_ENTRY(kv_space) turn_link; /* of ->turn, or of ssd->resting */
	uint64_t rests_until;
	uint8_t rests; /* 1 + the index in ssd->resting; 0: none */
	bool no_room;  /* on SSD, at the last try: flushes were failed */
	bool any_must; /* a slot may be ->must */
	struct kv_slots under_way;   /* slots being written, in order */
	struct kv_flushes flushes;   /* in the order of submission */
	struct kv_flush *collecting; /* the first such flush; NULL: none */
	bool awaits_commit; /* the first flush waits for nothing else */
	LIST_ENTRY(kv_space) flushing;	/* of ssd->flushing, with flushes */
	TAILQ_ENTRY(kv_space) collects; /* of ssd->collecting, if it is */
	struct kv_bucket puts;
	uint32_t clears; /* counts kv_clear_begin */
	struct kv_snapshot_list snapshots;
	uint32_t n_snapshots;
};

/* table.c */
struct kv_spaces {
	struct kv_space **sorted; /* by id: n of them */
	struct kv_space **at;	  /* by place; NULL: a free one */
	uint32_t n, room, places_hint;
};

struct kv_table {
	struct kv_block **chunks;
	uint32_t n_chunks, used, free; /* free: list of numbers */
	uint64_t seed;		       /* fixed */
};

/* ---- DRAM ---- */

enum slot_state { SLOT_FREE, SLOT_FILLING, SLOT_READY, SLOT_LEFT };

struct kv_slot {
	struct kv_segment *segment; /* fixed */
	struct kv_evict_list *list; /* unless FREE: of the space */
	struct kv_block *block;	    /* READY */
	uint64_t seq;		   /* order of becoming unpersisted, or dirty */
	struct kv_slots *queue;	   /* the list of @link, if dirty or orphaned */
	TAILQ_ENTRY(kv_slot) link; /* free list; queue of writes */
	TAILQ_ENTRY(kv_slot) dirty; /* of the space's dirty, or unpersisted */
	TAILQ_ENTRY(kv_slot) unwritten; /* of the space */
	LIST_HEAD(, kv_flush) syncs;	/* of the block, until it is durable */
	struct kv_evict_node node;	/* DRAM policy */
	uint32_t leases;		/* clients' */
	uint32_t holds;			/* views, writes */
	uint32_t file, slot_number; /* SSD extent while it is being written */
	uint32_t payload;	    /* offset of the tensors in the file */
	uint8_t state;
	bool must;    /* a flush waits for the block */
	bool hinted;  /* prefetched, and not used yet */
	bool alone;   /* came as a file: needs no parent on SSD */
	bool written; /* the bytes are, since the last write began */
	bool pulled;  /* to the front of its write queue, for a child */
	bool pinned;  /* the block is pinned, and the floor allows it */
};

/* A memfd, mapped. */
struct kv_memory {
	int fd; /* the daemon's own */
	/* To be given to clients; -1: there is none, and fd is sealed. */
	int read_fd, write_fd;
	uint8_t *base;
	bool huge, locked;
	bool undecided; /* kv_memory_seal is to come */
};

/* A user whose clients got a segment. */
struct kv_mapper {
	struct kv_account *account; /* fixed; held */
	struct kv_tenant *tenant;   /* fixed */
	uint32_t holders; /* clients that did not say they unmapped it */
	bool charged;	  /* the user keeps it, though it is retired */
	LIST_ENTRY(kv_mapper) link;
};

struct kv_segment {
	uint32_t id; /* fixed; never reused */
	struct kv_memory memory;
	int buffer;		    /* fixed; of the ring, or -1 */
	struct kv_class *class;	    /* NULL: spare or retired */
	uint32_t slots, free, idle; /* idle: slots that may be evicted */
	uint32_t kept;		    /* slots being filled, leased, pinned */
	uint32_t hand;		    /* where to look next for one to evict */
	struct kv_slots free_list;
	struct kv_slot *slot; /* array */
	/* Of the slots; NULL: they are in the slots, which clients only read. */
	struct kv_prologue *prologues;
	uint32_t holders; /* of all mappers */
	bool seen_in_use; /* KEPT, or DEAD and was KEPT */
	LIST_HEAD(, kv_mapper) mappers;
	struct kv_tenant *owner;      /* RETIRED: of its former class */
	struct kv_tenant *keeper;     /* the charged user that claims it */
	TAILQ_ENTRY(kv_segment) link; /* of its class, or of the arena */
};
TAILQ_HEAD(kv_segments, kv_segment);

/* Segments of one access class and one slot class. */
struct kv_class {
	uint32_t uid, gid, read_bits;
	struct kv_tenant *tenant; /* of uid */
	uint64_t slot_bytes;
	struct kv_segments segments;
	uint32_t n_segments, idle; /* idle: slots that may be evicted */
	struct kv_evict_lists lists;
	LIST_ENTRY(kv_class) link;
};
LIST_HEAD(kv_classes, kv_class);

struct kv_arena {
	uint64_t segment_bytes; /* fixed */
	uint32_t max;		/* fixed: segments, retired ones included */
	uint32_t made, retired_count, kept_count, huge;
	uint32_t next_id;
	/* dead: to be unmapped; kept: the same, but others have it mapped */
	struct kv_segments spare, retired, dead, kept;
	struct kv_classes classes;
	uint32_t vacant; /* segments of classes, with no slot in use */
	uint64_t idle;	 /* bytes of slots that may be evicted */
	uint64_t used;	 /* bytes of slots not free */
	struct kv_eviction eviction;
	uint64_t hinted;     /* bytes prefetched and not used yet */
	uint32_t claimed;    /* segments, see kv_tenant_may_keep */
	uint64_t retired_ns; /* when a segment was last retired */
	/* When the last KEPT segment was found in use, after its holders had
	 * said that they unmapped it, or had ended; 0: none is kept. */
	uint64_t kept_ns;
	bool growing, stop, running;
	uint32_t unlocked; /* segments that could not be locked */
	int grow_error;
	pthread_t grower;
	pthread_cond_t grow, grown;
	uint64_t overcommit; /* huge pages by which the limit was raised */
};

/* ---- SSD ---- */

/* A segment file. */
struct kv_segfile {
	uint32_t id;	     /* fixed */
	int fd;		     /* fixed while it lives */
	uint64_t slot_bytes; /* changes only while it is empty */
	struct kv_ssd_class *class;
	uint32_t slots, used;
	uint32_t hint; /* no free slot below it */
	uint64_t *bitmap;
	/* By slot: the number of the last block that got it.  Entries are not
	 * cleared: kv_extent_block compares them with the block. */
	uint32_t *blocks;
	/* Parts of @bitmap: deletions there was no memory for, those of slots
	 * to be given back. */
	uint64_t *unqueued, *unqueued_back;
	uint32_t round; /* of the committer, that has it already */
	bool recorded;	/* the index has it as it is */
	bool trailer;	/* the last page has the slot size */
	bool unswept;	/* free slots may hold prologues: take none */
	bool closed;	/* no slot of it is taken */
	/* The class that it is emptied for, and closed; NULL: none. */
	struct kv_ssd_class *heir;
	uint32_t wanted_by; /* id of the space whose block asked for it */
	uint32_t taker;	    /* id of the space that gives up its own; 0: none */
	bool spares;   /* blocks warmer than the heir's coldest are moved */
	bool emptying; /* in moves->files */
	/* emptying: until then the heir does not evict its own blocks; emptied:
	 * the file is kept for the heir until then; in use: it is not emptied
	 * before. */
	uint64_t until;
	uint8_t failures; /* of changes of its slot size, in a row */
	bool sweeping;
	TAILQ_ENTRY(kv_segfile)
	link; /* of its class; those with room in front */
	TAILQ_ENTRY(kv_segfile) queue; /* moves->files */
};
TAILQ_HEAD(kv_segfiles, kv_segfile);

/* SSD slots of one size. */
struct kv_ssd_class {
	uint64_t slot_bytes;
	uint64_t free, total; /* free: those of closed files left out */
	struct kv_segfiles files;
	uint32_t n_files, n_empty; /* empty: no slot is in use */
	uint32_t n_closed;
	uint32_t leaving; /* slots whose deletion waits for the commit */
	/* The file that is emptied for it, or was; NULL.  Blocks to evict
	 * before it asks again for one; ssd/evict.c. */
	struct kv_segfile *awaited;
	uint32_t file_wait;
	struct kv_evict_lists lists;
	LIST_ENTRY(kv_ssd_class) link;
};

struct kv_deletion_batch;

struct kv_deletions {
	TAILQ_HEAD(, kv_space) queued; /* spaces with some, and none in hand */
	TAILQ_HEAD(, kv_deletion_batch) to_record; /* the committer's own */
	TAILQ_HEAD(, kv_deletion_batch) to_zero;
	uint64_t n;	   /* that are not over */
	uint64_t unqueued; /* there was no memory to queue them */
	uint32_t budget;   /* leaves of the index in one transaction */
	pthread_t thread;
	pthread_cond_t wake;
	bool ended;
};

/* Blocks whose record is to be changed, by the order in which they did. */
struct kv_updates {
	uint32_t *items; /* numbers, from @head on; a ring without a seam */
	size_t head, n, room;
	uint64_t taken, done; /* counts: begun to be committed, and committed */
};

/* Blocks that are moved from one slot to another; ssd/move.c. */
TAILQ_HEAD(kv_move_list, kv_move);
struct kv_moves {
	struct kv_periodic thread;
	/* Files that are emptied, one after the other. */
	TAILQ_HEAD(, kv_segfile) files;
	struct kv_move_list copied;		 /* for the next commit */
	struct kv_move_list recording, recorded; /* the committer's own */
	uint32_t n;				 /* that are not over */
};

/* The record of a removed block that a reader still has open. */
struct kv_unlinked {
	uint32_t block;
	struct kv_slot_record record;
	struct kv_unlinked *next; /* in its bucket */
};

/* Blocks that wait until their common parent is on its way. */
struct kv_orphans {
	struct kv_slots slots;	      /* first */
	uint32_t n;		      /* slots */
	struct kv_key parent;	      /* fixed */
	struct kv_space *space;	      /* fixed; its slots hold it */
	bool adopted;		      /* the parent is on its way: no bucket */
	LIST_ENTRY(kv_orphans) link;  /* bucket, by parent */
	TAILQ_ENTRY(kv_orphans) turn; /* of ssd->adopted */
};
LIST_HEAD(kv_orphans_list, kv_orphans);

#define UNLINKED_BUCKETS 16384u
#define OPEN_BUCKETS 1024u
#define KV_EVICTED_KNOWN (1u << 20)
#define KV_CHANGED_KNOWN (1u << 12)

struct kv_ssd {
	bool on; /* fixed */
	/* Fixed: ssd=0 on a store with a tier.  Blocks there are read, removed
	 * and pinned as ever, and no others come. */
	bool frozen;
	bool buffered;				  /* fixed: no O_DIRECT here */
	int dir;				  /* fixed: STORE/segments */
	uint64_t cap, segment_bytes, file_budget; /* fixed: bytes for files */
	uint32_t round_max;   /* fixed: puts, or deletions, in one commit */
	uint64_t records_max; /* fixed: slots in use that the index can hold */
	uint64_t index_reserve; /* fixed: bytes of it for open transactions */
	uint64_t records;	/* slots in use */
	struct kv_segfile **files; /* by id; NULL: none */
	uint32_t n_files, live_files;
	LIST_HEAD(, kv_ssd_class) classes;
	struct kv_eviction eviction;
	uint64_t sidecars;    /* bytes of STORE/spaces and STORE/tenants */
	bool unswept;	      /* at mount: all files are to be swept */
	uint32_t n_unswept;   /* files that are to be swept still */
	uint64_t sweep_first; /* slot_bytes of files that somebody waits for */
	uint64_t swept;	      /* prologues that were zeroed */
	/* Files whose change of slot size failed: of no class, and empty; the
	 * one that failed longest ago is first. */
	struct kv_segfiles unusable;
	uint32_t evicted[KV_EVICTED_KNOWN]; /* ssd/evict.c: marks.h */
	uint32_t changed[KV_CHANGED_KNOWN]; /* ssd/flush.c: marks.h */
	uint64_t used;			    /* bytes of slots in use */
	struct kv_turns write_queues;	    /* of spaces with slots to write */
	/* Spaces with deferred writes, by the reason. */
	struct kv_turn_list resting[3];
	uint32_t queued, dirty; /* slots on write queues; and being written */
	uint32_t stalled; /* slots on write queues, of spaces with no_room */
	struct kv_orphans_list *orphans; /* buckets; NULL: none came yet */
	uint64_t orphans_mask;
	TAILQ_HEAD(, kv_orphans) adopted;
	uint32_t n_adopted;	 /* their slots */
	struct kv_slots written; /* waiting for the commit */
	uint32_t n_written;
	uint32_t put_off; /* slots that were not admitted, since the mount */
	uint32_t unpersisted; /* slots on such lists, of all spaces */
	uint64_t seq;
	uint64_t pinned;	    /* bytes that pinned blocks hold, or will */
	struct kv_bucket ssd_write; /* bytes that ssd_write= allows now */
	uint32_t writing;	    /* being written now */
	uint64_t writing_bytes;	    /* of their slots */
	uint64_t written_bytes;	    /* of slots that wait for the commit */
	struct kv_deletions deletions;
	struct kv_moves moves;
	struct kv_unlinked *unlinked[UNLINKED_BUCKETS];	 /* by block number */
	LIST_HEAD(, kv_open_charge) opens[OPEN_BUCKETS]; /* by block number */
	struct kv_updates updates;
	uint64_t commits_begun, put; /* counts: rounds; recorded blocks */
	LIST_HEAD(, kv_space) flushing;
	TAILQ_HEAD(, kv_space) collecting;
	uint32_t awaiting;	     /* spaces that await a commit */
	LIST_HEAD(, kv_flush) syncs; /* of blocks: all there are */
	struct kv_flushes recording; /* those for updates, by that */
	uint64_t failures;	     /* counts; waiters look for a change */
	int error;		     /* why it is degraded; 0: online */
	bool full; /* the filesystem gave no room for another file */
	uint64_t full_until;
	bool urgent;	 /* somebody waits for the next commit */
	bool committing; /* a round is being written */
	bool noted;	 /* the committer knows that there is something to do */
	bool stop;
	bool stop_commits, running;
	bool writer_ended, committer_ended;
	pthread_t writer, committer;
	pthread_cond_t write, commit, done;
};

/* ---- the rest ---- */

#define SIZE_CLASSES 4
struct kv_bounce;

/* Callbacks that kv_unlock runs. */
struct kv_deferred {
	uint64_t *gone; /* ids */
	size_t n_gone;
	struct kv_acquire *settled;
	struct kv_flush *flushed;
	bool room;
	uint32_t *retired;
	size_t n_retired;
};

struct kv_fill {
	struct kv_space *space; /* held */
	struct kv_slot *slot;
	struct kv_key key; /* len 0: no key is reserved */
	uint64_t length;
	uint32_t clears;	 /* space->clears when the fill began */
	bool must;		 /* keep the block until it is durable */
	bool fetched;		 /* from the remote tier */
	struct kv_want *holder;	 /* leases the block when sealed; or NULL */
	struct kv_want *waiters; /* wait for the seal */
	struct kv_fill *next;	 /* bucket of cache->saving */
};

#define SAVING_BUCKETS 4096
#define READ_BUCKETS 1024

struct kv_prefetch_batch;

struct kv_prefetcher {
	pthread_t thread;
	pthread_cond_t wake;
	bool running, stop;
	TAILQ_HEAD(, kv_prefetch) list;
	TAILQ_HEAD(, kv_prefetch_batch) landed;
	uint64_t bytes, budget; /* under way; budget: fixed */
};

/* Whether the SSD answers; health.c. */
struct kv_health {
	struct kv_io probe;	/* first */
	struct kv_cache *cache; /* fixed */
	uint8_t *page;		/* fixed; the probe's */
	bool probing;
	uint32_t turn;	       /* the probe's next place */
	uint32_t errors;       /* reads that failed in a row */
	unsigned stuck;	       /* requests, when last looked */
	const char *why;       /* reads are refused; NULL: online */
	uint64_t commit_since; /* when the index's began; 0: none */
	uint64_t zero_since;   /* the same of a run of slots that is zeroed */
};

/* The walk through the store; cache.c. */
struct kv_scrubber {
	struct kv_periodic periodic;
	uint64_t pass_bytes, pass_total; /* of this pass: read, in use */
	uint64_t passes, corrupt;
	int64_t pass_ended_ns; /* wall time; 0: never yet */
};

struct kv_cache {
	pthread_mutex_t lock;
	struct kv_cache_config config; /* fixed */
	struct kv_accounts *accounts;  /* fixed; own lock, a leaf */
	char *store;		       /* fixed */
	int store_fd, lock_fd;	       /* fixed */
	int spaces_dir;		       /* fixed: STORE/spaces */
	struct kv_store_info info;
	uint64_t epoch; /* fixed */
	/* Fixed after open: the store was not clean, or is not now. */
	bool after_crash;
	uint64_t generation;   /* next */
	uint32_t clock;	       /* touches, for the policies */
	struct kv_ghost ghost; /* of blocks evicted from all tiers */
	struct kv_miss_curve *curve;
	struct kv_index *index; /* fixed; NULL without a store */
	struct kv_ring *ring;	/* fixed */
	struct kv_periodic housekeeper;
	struct kv_prefetcher prefetcher;
	struct kv_remote *remote;		    /* NULL: none */
	const struct kv_remote_hooks *remote_hooks; /* as remote; hooks.h */
	const struct kv_block_hooks *block_hooks;   /* fixed; hooks.h */
	struct kv_periodic agreeing;
	struct kv_removed *removed; /* tombstones; NULL: none, or no memory */
	struct kv_health health;
	struct kv_scrubber scrubber;

	struct kv_table table;
	struct kv_spaces spaces; /* removed ones, too */
	uint32_t live_spaces;
	struct kv_tenants tenants; /* never freed before the end */
	uint64_t due[TIERS];	/* guaranteed bytes that no user holds fast */
	uint64_t tenants_file;	/* bytes of STORE/tenants */
	void *names;		/* tsearch tree of kv_space by name */
	pthread_cond_t settled; /* a space is no more ->settling */
	struct kv_space_changes changes;  /* to be written; persist.c */
	bool changing;			  /* some are being written */
	pthread_cond_t changed;		  /* a group of changes is written */
	uint64_t sizes[64][SIZE_CLASSES]; /* slot sizes in use, by octave */

	struct kv_arena arena;
	struct kv_pins pins;
	struct kv_snapshots snapshots;
	struct kv_ssd ssd;
	struct kv_fill *saving[SAVING_BUCKETS]; /* fills with a key */
	struct kv_read *reads[READ_BUCKETS];	/* under way, by block */
	TAILQ_HEAD(, kv_acquire) short_of_room; /* acquires */
	bool room;	  /* there may be more since they last looked */
	uint64_t cleaned; /* count of slots that became clean */
	uint64_t reads_begun, reads_ended;
	struct kv_bounce *bounce;     /* own lock */
	struct kv_verifier *verifier; /* own lock */
	struct kv_deferred deferred;
	struct kv_cache_stats stats; /* the counters; gauges are derived */
	char *notes; /* fallbacks taken and why, "key=value\n" */
};

void kv_lock(struct kv_cache *cache);
void kv_unlock(struct kv_cache *cache);
/* Let other threads take the lock between two steps of a long walk. */
void kv_yield(struct kv_cache *cache);
/* Wait on @cond up to @ns; deferred callbacks run first, unlocked. */
void kv_cond_wait(struct kv_cache *cache, pthread_cond_t *cond, uint64_t ns);
/* NULL: there is none. */
struct kv_segfile *kv_segfile_at(struct kv_cache *cache, uint32_t id);
void kv_defer_gone(struct kv_cache *cache, const struct kv_block *block);
void kv_defer_settled(struct kv_cache *cache, struct kv_acquire *acquire);
void kv_defer_flushed(struct kv_cache *cache, struct kv_flush *flush,
		      int status);
void kv_defer_retired(struct kv_cache *cache, uint32_t segment);
void kv_note(struct kv_cache *cache, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Add a note, and print it for the user. */
void kv_warn(struct kv_cache *cache, const char *key, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
