/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core.h - structures and the lock that the files of cache/ share.
 *
 * LOCKING  cache->lock guards every field here that is not marked otherwise.
 *          The lock is held for short, bounded stretches, never across I/O or a
 *          callback: kv_unlock() releases the lock, and then runs the deferred
 *          callbacks (of removed blocks, of settled acquires).  "constant": set
 *          before other threads can see the object.
 */
#ifndef KV_CACHE_CORE_CORE_H
#define KV_CACHE_CORE_CORE_H

#include <sys/queue.h>

#include "cache/cache.h"
#include "cache/evict/policy.h"
#include "cache/io/ring.h"
#include "cache/core/list.h"
#include "cache/core/turns.h"
#include "common/rate.h"
#include "common/thread.h"
#include "index/index.h"

/* ---- blocks ---- */

enum block_flag {
	BLOCK_LONG_KEY = 1, /* the key has 32 bytes, not 16 */
	BLOCK_PINNED = 2,
	BLOCK_REMOVED = 4,  /* removed: in no directory of its space */
	BLOCK_READING = 8,  /* the block is being read from SSD into DRAM */
	BLOCK_QUEUED = 16,  /* the block's slot is on a write queue */
	BLOCK_WRITING = 32, /* being written to SSD, or written, uncommitted */
	BLOCK_USED = 64,    /* last use and use count differ from the index */
	BLOCK_UPDATE = 128, /* in cache->ssd.updates */
};

/* A block in DRAM, on SSD or both.  There are millions: other facts of a block
 * are in its slot's prologue or in the index. */
struct kv_block {
	uint8_t key[KV_KEY_MAX];
	uint32_t next; /* next block of the hash bucket, or of the free list */
	uint32_t number; /* constant */
	/* incremented when @number is reused: makes the block's id unique */
	uint32_t generation;
	uint32_t place : 24; /* spaces.at has the block's space at this index */
	uint32_t flags : 8;
	uint32_t length;
	uint32_t file, slot_number; /* slot on SSD; file KV_NONE: none */
	uint32_t refs; /* references by callers and reads in flight */
	uint32_t hits : 29;
	uint32_t moving : 1; /* being copied to another SSD slot */
	uint32_t moved : 1;  /* got another SSD slot while BLOCK_READING */
	uint32_t remote : 1; /* the remote tier probably has the block */
	uint32_t atime;	     /* last use, by kv_use_clock */
	int64_t mtime_ns;
	struct kv_slot *slot; /* READY slot of the block in DRAM; or NULL */
	struct kv_evict_node node; /* place in the SSD's eviction order */
};

_Static_assert(sizeof(struct kv_block) == 104,
	       "112 bytes with 4 in its bucket and 4 in kv_segfile.blocks");

struct kv_dir {
	uint32_t *buckets; /* 1 << bits; the hash's first bits choose one */
	unsigned bits;
	uint32_t blocks;
	uint32_t life;	  /* space->dirs_removed when the directory was made */
	int64_t mtime_ns; /* when a block or file last appeared or vanished */
};

/* ---- snapshots and pins ---- */

struct kv_pin; /* a key that is in snapshots */

struct kv_snapshot {
	uint64_t id;			  /* constant */
	struct kv_space *space;		  /* constant; held; NULL: removed */
	uint32_t space_id;		  /* constant */
	char name[KV_SPACE_NAME_MAX + 1]; /* constant */
	int64_t mtime_ns;		  /* constant */
	bool ready;   /* all blocks are pinned; else the snapshot is hidden */
	bool dropped; /* the snapshot is hidden, and its record to be deleted */
	bool dirty;   /* in snapshots->dirty */
	bool recorded; /* the index may have a record of it */
	/* Blocks by ascending position; key_len 0: the block was unlinked. */
	struct kv_snapshot_item *items;
	uint32_t n, live;
	uint64_t change, latest; /* oldest, newest change not in the index */
	LIST_ENTRY(kv_snapshot) link;	     /* entry in space->snapshots */
	TAILQ_ENTRY(kv_snapshot) dirty_link; /* in snapshots->dirty */
};
TAILQ_HEAD(kv_snapshot_queue, kv_snapshot);
LIST_HEAD(kv_snapshot_list, kv_snapshot);

struct kv_snapshots {
	/* Constant.  Write changed snapshots to the index, in transactions of
	 * their own, so that a large snapshot that finds no room does not fail
	 * the commit of blocks.  Drops the lock meanwhile. */
	void (*write)(struct kv_cache *cache);
	void *by_id, *by_name; /* tsearch trees */
	uint64_t next_id;
	uint64_t changes; /* number of changes of snapshots so far */
	uint64_t cost; /* blocks in all snapshots, plus 16 for each snapshot */
	/* Changed snapshots that are not in the index, in order of writing. */
	struct kv_snapshot_queue dirty;
	uint64_t retry_at; /* when to retry a failed write; 0: no failure */
};

struct kv_pins {
	void *tree;	/* tsearch tree of kv_pin, by key */
	uint64_t bytes; /* bytes of the DRAM slots of pinned blocks */
};

/* ---- spaces ---- */

struct kv_offer;

struct kv_slot;
TAILQ_HEAD(kv_slots, kv_slot);
TAILQ_HEAD(kv_turn_list, kv_space);
TAILQ_HEAD(kv_flushes, kv_flush);

/* A slot on SSD whose record in the index is to be deleted. */
struct kv_deletion {
	uint64_t slot_id;
	bool reuse;	/* free the slot once its prologue is zeroed */
	bool bad;	/* the prologue could not be zeroed */
	bool token_ids; /* delete the block's token ids, too */
	uint8_t failed; /* how often zeroing the prologue has failed */
};

/* Deletions of a space that the committer has not taken yet. */
struct kv_deletion_queue {
	struct kv_deletion *items;
	size_t n, room;
	bool batch; /* a batch of the space's deletions is under way */
	uint64_t begun, done;
};

/* Times of the first and last failure in a row; a success sets seen_ns to 0. */
struct kv_patience {
	uint64_t since_ns, seen_ns;
};

/* Note a failure.  Return whether failures have been repeating for less than
 * @most_ns; a pause longer than @most_ns starts the count of time anew. */
static inline bool kv_patient(struct kv_patience *patience, uint64_t most_ns)
{
	uint64_t now_ns = kv_now_ns();

	if (now_ns - patience->seen_ns > most_ns)
		patience->since_ns = now_ns;
	patience->seen_ns = now_ns;
	return now_ns - patience->since_ns < most_ns;
}

/* Bytes of one tier that a space holds, or a user in all its spaces. */
struct kv_node {
	uint64_t bytes;	 /* bytes of blocks in the tier */
	uint64_t coming; /* bytes being saved (DRAM) or written (SSD) */
	uint64_t fast;	 /* unevictable bytes: busy (DRAM) or pinned (SSD) */
	uint64_t guaranteed; /* the reserve, scaled down with the tier */
	uint64_t leaving; /* temporary value of dram/evict.c and ssd/evict.c */
	/* For a user: sums of its spaces' guarantees, and of the parts of these
	 * that exceed the spaces' @fast bytes. */
	uint64_t promised, due;
};

/* A user: sums and limits over all its spaces. */
struct kv_tenant {
	uint32_t uid; /* constant */
	struct kv_quota quota;
	LIST_HEAD(, kv_space) spaces; /* the user's spaces, not removed ones */
	struct kv_node in[TIERS]; /* sums over all spaces, removed ones too */
	uint32_t segments; /* segments that hold only blocks of the user */
	/* number of the user's segments that cannot be emptied now */
	uint32_t kept_segments;
	uint32_t registrants;	     /* clients that need writable memory */
	struct kv_patience patience; /* failures to find a slot in DRAM */
	uint64_t records;	     /* temporary value of ssd/evict.c */
	double files; /* temporary value of ssd/evict.c: number of files */
	struct kv_bucket puts; /* credit for saves under the quota rate_put */
	LIST_ENTRY(kv_tenant) link;
};
LIST_HEAD(kv_tenants, kv_tenant);

struct kv_space {
	uint32_t id;	/* constant */
	uint32_t place; /* constant */
	/* references by blocks, fills and callers; atomic: needs no lock */
	_Atomic uint32_t refs;
	struct kv_tenant *tenant;      /* record of the user @uid */
	LIST_ENTRY(kv_space) siblings; /* list of the tenant, until removal */
	char name[KV_SPACE_NAME_MAX + 1]; /* constant */
	uint32_t uid, gid, mode;
	int64_t mtime_ns;
	bool removed;
	bool shared; /* visible to other nodes through the remote tier */
	/* The keys depend on a seed that this node drew at random.  Other nodes
	 * do not have the seed, so the space cannot be shared; see seed.c. */
	bool own_seed;
	struct kv_offer *offer; /* walk that offers the blocks to other nodes */
	char folder[67]; /* remote.c's: folder of the objects; "": not made */
	const struct kv_layout *folder_layout; /* layout in @folder */
	_Atomic uint64_t object_bytes; /* last GET's, or estimate; 0: none */
	bool settling; /* being created: not found by its name */
	struct kv_quota quota;
	uint64_t file_bytes;  /* bytes of the space's file in STORE/spaces */
	uint64_t index_bytes; /* bytes in the index, with those of snapshots */
	struct kv_feed *feed; /* feed.c; NULL: there are no subscribers */
	struct kv_layout *layout; /* layout, set once, or replaced by seed.c */
	struct kv_layout *former; /* replaced layout, which clients have read */
	char layout_error[KV_LAYOUT_ERROR_MAX + 1];
	struct kv_dir *dirs[256]; /* two-digit directories; NULL: not made */
	uint32_t dirs_removed;	  /* number of directories removed from @dirs */
	uint64_t blocks;
	uint64_t sealed; /* number of blocks sealed since the mount */
	struct kv_node in[TIERS];
	struct kv_lookups lookups;
	struct kv_patience patience; /* failures to find a slot on SSD */
	uint64_t must_seq; /* a flush waits for dirty slots up to this ->seq */
	/* a flush waits for unpersisted slots up to this ->seq */
	uint64_t asked_seq;
	struct kv_deletion_queue deletions;
	TAILQ_ENTRY(kv_space) deleting;
	uint32_t doomed;  /* removed blocks that are still ->moving */
	uint64_t removal; /* number of the last tombstone change of the space */
	/* DRAM charged for kept slots, and for other dirty slots; slot.c. */
	uint64_t kept_dram, dirty_dram;
	struct kv_account *account; /* account of the owner; held */
	struct kv_evict_list_list lists[TIERS];
	struct kv_slots unpersisted; /* slots of unpersisted blocks, by seq */
	struct kv_slots dirty;	     /* queued or being written, by seq */
	struct kv_slots unwritten;   /* dirty slots not yet written, by seq */
	struct kv_slots queue;	     /* slots queued to be written */
	uint32_t queued;	     /* slots on @queue */
	/* write queue of the user; NULL: the space is on none */
	struct kv_turn *turn;
	/* entry in the write queue @turn, or in ssd->resting */
	TAILQ_ENTRY(kv_space) turn_link;
	uint64_t rests_until;
	uint8_t rests; /* index in ssd->resting, plus 1; 0: does not rest */
	bool no_room;  /* SSD was full at the last write */
	bool any_must; /* a flush may wait for a slot of the space */
	bool refused;  /* a quota may have refused blocks; see writer.c */
	/* slots being written, in the order of submission */
	struct kv_slots under_way;
	/* flushes that have not ended, in the order of submission */
	struct kv_flushes flushes;
	/* first flush that waits for unpersisted slots; NULL: none */
	struct kv_flush *collecting;
	bool awaits_commit; /* the first flush waits for a commit only */
	/* entry in ssd->flushing, the spaces with flushes */
	LIST_ENTRY(kv_space) flushing;
	/* entry in ssd->collecting, if @collecting is set */
	TAILQ_ENTRY(kv_space) collects;
	struct kv_bucket puts;
	uint32_t clears; /* number of calls of kv_clear_begin */
	/* these, forgets of the whole space, and changes of its owner, so far */
	uint32_t forgets;
	uint32_t forgetting; /* forgets of the whole space under way */
	struct kv_snapshot_list snapshots;
	uint32_t n_snapshots;
};

/* The table of spaces; see table.c. */
struct kv_spaces {
	struct kv_space **sorted; /* sorted by id; @n spaces */
	struct kv_space **at; /* spaces at index ->place; NULL: none there */
	uint32_t n, room, places_hint;
};

struct kv_table {
	struct kv_block **chunks;
	/* used: number of blocks; free: first of the free block numbers */
	uint32_t n_chunks, used, free;
	uint64_t seed; /* constant */
};

/* ---- DRAM ---- */

enum slot_state { SLOT_FREE, SLOT_FILLING, SLOT_READY, SLOT_LEFT };

struct kv_slot {
	struct kv_segment *segment; /* constant */
	struct kv_evict_list *list; /* eviction list; NULL if state is FREE */
	struct kv_block *block;	    /* block in the slot; NULL unless READY */
	uint64_t seq; /* place in the order of space->dirty or ->unpersisted */
	/* list that has the slot by @link: write queue, orphans, written */
	struct kv_slots *queue;
	TAILQ_ENTRY(kv_slot) link;  /* entry in the free list or in @queue */
	TAILQ_ENTRY(kv_slot) dirty; /* entry in space->dirty or ->unpersisted */
	TAILQ_ENTRY(kv_slot) unwritten; /* entry in space->unwritten */
	/* flushes that wait for the block to be durable */
	LIST_HEAD(, kv_flush) syncs;
	struct kv_evict_node node; /* place in the DRAM's eviction order */
	uint32_t leases;	   /* number of leases by clients */
	uint32_t holds;		   /* number of holds by views and writes */
	/* slot on SSD to which the block is being written */
	uint32_t file, slot_number;
	uint64_t former;  /* SSD slot that the block had, or UINT64_MAX */
	uint32_t payload; /* offset of the tensors in the block's file */
	uint8_t state;
	bool must;    /* a flush waits for the block to be durable */
	bool hinted;  /* prefetched, and not used since */
	bool alone;   /* saved as a file: may be on SSD without its parent */
	bool written; /* the last write of the block to SSD has ended */
	bool pulled;  /* moved to the front of the write queue by a child */
	bool pinned;  /* the block is pinned; counted in pins.bytes */
	bool lost;    /* @former is on a failed device, and keeps its record */
};

/* A memfd of the arena, and the daemon's mapping of it. */
struct kv_memory {
	int fd; /* the daemon's own descriptor */
	/* Descriptors to send to clients; -1: none, and fd is sealed. */
	int read_fd, write_fd;
	uint8_t *base;
	bool huge, locked;
	bool undecided; /* kv_memory_seal has not been called yet */
};

/* A user whose clients have a segment mapped. */
struct kv_mapper {
	struct kv_account *account; /* constant; held */
	struct kv_tenant *tenant;   /* constant */
	uint32_t holders; /* clients that have not reported an unmap */
	bool charged;	  /* the user is charged for the retired segment */
	LIST_ENTRY(kv_mapper) link;
};

struct kv_segment {
	uint32_t id; /* constant; never reused */
	struct kv_memory memory;
	int buffer;		    /* number of the ring's buffer, or -1 */
	struct kv_class *class;	    /* NULL: spare or retired */
	uint32_t slots, free, idle; /* idle: slots that may be evicted */
	uint32_t kept;		    /* slots being filled, leased or pinned */
	uint32_t hand; /* slot at which the search for a victim begins */
	struct kv_slots free_list;
	struct kv_slot *slot; /* array of @slots slots */
	/* NULL: clients cannot write to slots, so each has its own prologue. */
	struct kv_prologue *prologues;
	uint32_t holders; /* clients that map the segment: sum over mappers */
	bool seen_in_use; /* if KEPT: some process has the segment mapped */
	LIST_HEAD(, kv_mapper) mappers;
	struct kv_tenant *owner;  /* if RETIRED: owner of its former class */
	struct kv_tenant *keeper; /* user whose kept_segments counts this one */
	TAILQ_ENTRY(kv_segment) link; /* entry in a list of @class or arena */
};
TAILQ_HEAD(kv_segments, kv_segment);

/* Segments for slots of one size and access class (same owner and readers). */
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
	uint64_t segment_bytes; /* constant */
	uint32_t max;		/* constant: most segments, with retired ones */
	uint32_t made, retired_count, kept_count, huge;
	uint32_t next_id;
	/* dead: to be unmapped; kept: still mapped by some process */
	struct kv_segments spare, retired, dead, kept;
	struct kv_classes classes;
	uint32_t vacant; /* number of segments without a slot in use */
	uint64_t idle;	 /* bytes of slots that may be evicted */
	uint64_t used;	 /* bytes of slots that are not in state FREE */
	struct kv_eviction eviction;
	uint64_t hinted;  /* bytes being prefetched, or prefetched but unused */
	uint32_t claimed; /* sum of the segments that users claim; ledger.h */
	uint64_t retired_ns; /* when a segment was last retired */
	/* When a KEPT segment was last found in use although its holders had
	 * reported the unmap or had ended; 0: no segment is kept. */
	uint64_t kept_ns;
	bool growing, stop, running;
	bool frozen;	   /* no slot is taken any more */
	uint32_t unlocked; /* segments that mlock() refused */
	int grow_error;
	pthread_t grower;
	pthread_cond_t grow, grown;
	/* number by which vm.nr_overcommit_hugepages was raised */
	int64_t overcommit;
};

/* ---- SSD ---- */

#define KV_DEVICES 17u /* STORE, 8 of store=DIR, 8 of earlier mounts */

/* A directory with segment files: STORE or DIR of store=DIR. */
struct kv_device {
	char *path;	      /* constant; NULL: STORE */
	uint32_t number;      /* constant: its place in ssd->devices */
	int dir, lock_fd;     /* constant; -1: missing */
	bool buffered;	      /* constant: the filesystem lacks O_DIRECT */
	struct kv_ring *ring; /* constant; NULL: missing */
	/* A DIR that is missing, or many writes, a sync or a probe of which
	 * failed: its files are neither read nor written until the next
	 * mount. */
	_Atomic bool failed;
	_Atomic uint32_t errors; /* writes that failed, in a row */
	bool forgotten; /* the table has no block of the failed device */
	uint32_t files; /* number of its segment files */
	uint64_t away;	/* records of blocks of a missing device */
	LIST_HEAD(, write) writes; /* under way; writer.c */
	uint64_t writing;	   /* bytes of slots being written */
	double placed; /* ns that its writes since the mount were to take */
	/* time of the last begin or end of a write; time that recent writes
	 * took, and their bytes */
	uint64_t since;
	double busy_ns, busy_bytes;
	uint64_t full_until; /* no room for a file; try again then */
};

/* A segment file. */
struct kv_segfile {
	uint32_t id;		  /* constant */
	struct kv_device *device; /* constant */
	int fd;			  /* descriptor, until the file is closed */
	uint64_t slot_bytes;	  /* changes only while the file is empty */
	struct kv_ssd_class *class;
	uint32_t slots, used;
	uint32_t hint; /* no slot below this number is free */
	uint64_t *bitmap;
	/* For each slot: number of the block that last got the slot, or for an
	 * unqueued deletion the id of the space.  Entries are not cleared:
	 * kv_extent_block compares them with the block. */
	uint32_t *blocks;
	/* Slots whose deletion was not queued for lack of memory; and which of
	 * these are to be reused. */
	uint64_t *unqueued, *unqueued_back;
	uint32_t round; /* round of the committer that last synced the file */
	bool trailer;	/* the file has a trailer, which names the slot size */
	bool unswept;	/* free slots may hold old prologues: do not use them */
	bool closed;	/* allocate no slot in this file */
	/* Class that gets the file once it is closed and empty; NULL: none. */
	struct kv_ssd_class *heir;
	uint32_t wanted_by; /* id of the space whose block needs the file */
	uint32_t taker; /* id of the space that gives up its reserve; 0: none */
	bool spares;	/* move blocks warmer than the heir's coldest block */
	bool emptying;	/* the file is on the list moves->files */
	/* The meaning of this time depends on the file.  Being emptied:
	 * until then the heir evicts none of its own blocks.  Emptied: until
	 * then the file is kept for the heir.  In use: the file is not
	 * emptied before. */
	uint64_t until;
	uint8_t failures; /* failed changes of the slot size, in a row */
	bool sweeping;
	/* entry in a list of @class; files with free slots first */
	TAILQ_ENTRY(kv_segfile) link;
	TAILQ_ENTRY(kv_segfile) queue; /* moves->files */
};
TAILQ_HEAD(kv_segfiles, kv_segfile);

/* SSD slots of one size. */
struct kv_ssd_class {
	uint64_t slot_bytes;
	uint64_t free, total; /* slots; free: without closed files */
	struct kv_segfiles files[KV_DEVICES]; /* by the device's number */
	uint32_t n_files, n_empty; /* n_empty: files with no slot in use */
	uint32_t n_closed;
	uint32_t leaving; /* slots whose deletions have not ended */
	/* awaited: file being emptied for this class, or NULL; file_wait:
	 * number of blocks to evict before another file is emptied for this
	 * class. */
	struct kv_segfile *awaited;
	uint32_t file_wait;
	struct kv_evict_lists lists;
	LIST_ENTRY(kv_ssd_class) link;
};

struct kv_deletion_batch;

struct kv_deletions {
	TAILQ_HEAD(, kv_space) queued; /* spaces with deletions but no batch */
	/* used by the committer only */
	TAILQ_HEAD(, kv_deletion_batch) to_record;
	TAILQ_HEAD(, kv_deletion_batch) to_zero;
	uint64_t n;	   /* deletions that have not ended */
	uint64_t unqueued; /* deletions not queued, for lack of memory */
	uint32_t budget;   /* index pages that a transaction may change */
	pthread_t thread;
	pthread_cond_t wake;
	bool ended;
};

/* Blocks whose record is to be changed, oldest change first. */
struct kv_updates {
	uint32_t *items; /* block numbers: a ring buffer that begins at @head */
	size_t head, n, room;
	uint64_t taken, done; /* counts of updates begun and committed */
};

/* Blocks being moved from one slot to another, by ssd/move.c. */
TAILQ_HEAD(kv_move_list, kv_move);
struct kv_moves {
	struct kv_periodic thread;
	/* Files that are being emptied, the next one first. */
	TAILQ_HEAD(, kv_segfile) files;
	/* moves whose copy is written and waits for the next commit */
	struct kv_move_list copied;
	struct kv_move_list recording; /* moves of the committer's round */
	uint32_t n; /* number of moves that are not finished */
};

/* Record of a removed block that a reader still has open. */
struct kv_unlinked {
	uint32_t block;
	struct kv_slot_record record;
	LIST_ENTRY(kv_unlinked) bucket; /* entry in ssd->unlinked */
};

/* Blocks that wait for their common parent to be written first. */
struct kv_orphans {
	struct kv_slots slots;	      /* first member: casts rely on it */
	uint32_t n;		      /* number of slots */
	struct kv_key parent;	      /* constant */
	struct kv_space *space;	      /* constant; held by each slot */
	bool adopted;		      /* the parent is being written to SSD */
	TAILQ_ENTRY(kv_orphans) turn; /* entry in ssd->adopted */
};

#define UNLINKED_BUCKETS 16384u
#define OPEN_BUCKETS 1024u

struct kv_ssd {
	bool on; /* constant */
	/* Constant: ssd=0 on a store with an SSD tier.  The blocks on SSD are
	 * read, removed and pinned as usual, but none is added. */
	bool frozen;
	struct kv_device devices[KV_DEVICES]; /* the first one is STORE */
	uint32_t n_devices;		      /* constant after open */
	/* constant; file_budget: bytes for segment files */
	uint64_t cap, segment_bytes, file_budget;
	uint32_t round_max;   /* constant: most records in one commit */
	uint64_t records_max; /* constant: most slots that the index can hold */
	/* constant: free bytes that the index keeps for open transactions */
	uint64_t index_reserve;
	uint64_t records; /* slots in use; each needs a record in the index */
	uint64_t leaving; /* slots that will be free after their deletion */
	struct kv_segfile **files; /* segment files by id; NULL: no such file */
	uint32_t n_files, live_files;
	LIST_HEAD(, kv_ssd_class) classes;
	struct kv_eviction eviction;
	uint64_t sidecars; /* bytes of STORE/spaces and STORE/tenants */
	/* Free slots may hold old prologues: sweep files after the mount or, if
	 * a sweep failed, in the next one. */
	bool unswept;
	uint32_t n_unswept;   /* files whose free slots are not swept yet */
	uint64_t sweep_first; /* sweep files of this slot size first */
	uint64_t swept;	      /* prologues zeroed by the sweep */
	uint32_t trailers;    /* trailers written by the sweep */
	/* Empty files without a class, because the change of their slot size
	 * failed; earliest failure first. */
	struct kv_segfiles unusable;
	uint32_t makers_left; /* threads left behind, which may never end */
	uint64_t used;	      /* bytes of slots in use */
	struct kv_turns write_queues; /* turns of users with slots to write */
	/* Spaces whose writes are deferred, one list for each reason. */
	struct kv_turn_list resting[3];
	/* slots on write queues; dirty: also those being written */
	uint32_t queued, dirty;
	uint32_t stalled; /* slots on write queues of spaces with no_room set */
	void *orphans;	  /* tsearch tree of kv_orphans, by parent key */
	TAILQ_HEAD(, kv_orphans) adopted;
	uint32_t n_adopted; /* number of slots of the orphans in @adopted */
	struct kv_slots written; /* slots waiting for the commit */
	uint32_t n_written;
	uint32_t put_off; /* slots that admission has refused since the mount */
	uint32_t unpersisted; /* slots of unpersisted blocks, of all spaces */
	uint64_t seq;
	uint64_t pinned; /* bytes on SSD that pinned blocks take or will take */
	struct kv_bucket ssd_write; /* bytes that ssd_write= allows now */
	uint32_t writing;	    /* slots being written */
	uint64_t writing_bytes;	    /* bytes of slots being written */
	uint64_t written_bytes;	    /* bytes of slots waiting for the commit */
	struct kv_deletions deletions;
	struct kv_moves moves;
	/* hash tables by block number */
	LIST_HEAD(, kv_unlinked) unlinked[UNLINKED_BUCKETS];
	LIST_HEAD(, kv_open_charge) opens[OPEN_BUCKETS];
	struct kv_updates updates;
	/* commits_begun: number of the committer's rounds; put: number of
	 * blocks that the committer has recorded in the index */
	uint64_t commits_begun, put;
	LIST_HEAD(, kv_space) flushing;
	TAILQ_HEAD(, kv_space) collecting;
	uint32_t awaiting;	     /* spaces with awaits_commit set */
	LIST_HEAD(, kv_flush) syncs; /* flushes that wait for one block only */
	/* flushes that wait for updates of records, in order of updates */
	struct kv_flushes recording;
	uint64_t failures; /* number of failed writes; waiters compare it */
	int error;	   /* -errno: why the SSD tier is degraded; 0: online */
	int full; /* -ENOSPC or -EIO: a file could not be made or converted */
	uint64_t full_until;
	bool urgent;	 /* a caller waits for the next commit */
	bool committing; /* a round is being committed */
	bool noted;	 /* the committer was woken and has not run yet */
	bool idle;	 /* the writer waits for a slot to write */
	/* when the lingering writer begins to write; 0: no linger */
	uint64_t linger_until;
	bool stop;
	bool stop_commits, running;
	bool writer_ended, committer_ended;
	pthread_t writer, committer;
	pthread_cond_t write, commit, done;
};

/* ---- causes of misses; see causes.c ---- */

#define KV_CAUSE_USERS 4096u

struct kv_causes {
	struct kv_cause_entry *table; /* constant */
	uint32_t buckets;	      /* constant: of @table */
	uint32_t since;		      /* constant: time of the mount */
	struct kv_miss *log;	      /* constant */
	uint64_t logged;
	/* By hash of a user: entries in the table; in the log; time of the
	 * newest entry of the table that was overwritten. */
	uint32_t held[KV_CAUSE_USERS], in_log[KV_CAUSE_USERS];
	uint32_t forgot[KV_CAUSE_USERS];
};

/* ---- the rest ---- */

#define SIZE_CLASSES 4
struct kv_bounce;

/* Callbacks for kv_unlock to run. */
struct kv_deferred {
	uint64_t *gone; /* ids of removed blocks */
	size_t n_gone;
	struct kv_acquire *settled;
	struct kv_flush *flushed;
	struct kv_feed_wait *woken;
	bool room;
	uint32_t *retired;
	size_t n_retired;
};

struct kv_fill {
	struct kv_space *space; /* held */
	struct kv_slot *slot;
	struct kv_key key; /* key that the fill reserves; len 0: none */
	uint64_t length;
	uint32_t clears; /* value of space->clears when the fill began */
	const struct kv_layout *layout; /* space's, when the fill began */
	bool must; /* keep the sealed block in DRAM until it is durable */
	/* The block comes from the remote tier: kv_fill_seal returns -ESTALE if
	 * a user has removed the block since kv_fill_begin, or if space->forgets
	 * is not @forgets any more. */
	bool fetched;
	uint32_t forgets;
	struct kv_want *holder;	 /* leases the sealed block; or NULL */
	struct kv_want *waiters; /* wants of this key that wait for the seal */
	LIST_ENTRY(kv_fill) bucket; /* entry in cache->saving */
};

#define SAVING_BUCKETS 4096
#define READ_BUCKETS 1024

/* Whether the SSD answers; updated by health.c. */
struct kv_health {
	bool probing;
	uint32_t turn;	       /* number of the segment file to probe next */
	uint32_t errors;       /* failed reads in a row */
	unsigned stuck;	       /* stuck requests at the last check */
	unsigned here;	       /* stuck requests on STORE and the index */
	const char *why;       /* why reads are refused; NULL: online */
	uint64_t commit_since; /* when the commit under way began; 0: none */
	uint64_t zero_since;   /* when a step of zeroing began; 0: none */
};

/*
 * The clock of last uses: seconds in which the store was mounted, added to the
 * wall clock's time at the first mount.  Jumps of the wall clock leave this
 * clock alone, and it stands still while no daemon runs.
 */
struct kv_use_clock {
	/* Constant: the time at the mount, kv_now_ns() then, and the time at
	 * which all blocks count as used: the last uses before a crash are
	 * unknown. */
	uint32_t base, floor;
	uint64_t from_ns;
	int64_t ahead; /* seconds by which the wall clock is ahead */
};

/* The scrubber's progress through the store; cache.c. */
struct kv_scrubber {
	struct kv_periodic periodic;
	uint64_t owed_ns; /* ns to sleep so that reads keep to the rate */
	/* in the current pass: bytes read, bytes in use */
	uint64_t pass_bytes, pass_total;
	uint64_t passes, corrupt;
	int64_t pass_ended_ns; /* wall time of the end; 0: no pass has ended */
};

struct kv_cache {
	pthread_mutex_t lock;
	struct kv_cache_config config; /* constant */
	/* constant; has a leaf lock of its own */
	struct kv_accounts *accounts;
	char *store;	       /* constant */
	int store_fd, lock_fd; /* constant */
	int spaces_dir;	       /* constant: STORE/spaces */
	struct kv_store_info info;
	uint64_t epoch; /* constant */
	/* Constant after open: the store was not clean, or is being shrunk. */
	bool after_crash;
	uint64_t generation; /* generation of the next saved block */
	uint32_t clock;	     /* number of touches: serves policies as time */
	struct kv_use_clock uses;
	uint32_t expiry_at; /* number of the block that may expire next */
	bool may_expire;    /* a space or user has a ttl, or had in this pass */
	struct kv_ghost ghost; /* keys of blocks evicted from all tiers */
	struct kv_causes causes;
	struct kv_miss_curve *curve;
	struct kv_index *index; /* constant; NULL without a store */
	struct kv_periodic housekeeper;
	struct kv_remote *remote;		    /* NULL: no remote tier */
	const struct kv_remote_hooks *remote_hooks; /* hooks.h; NULL: no tier */
	const struct kv_block_hooks *block_hooks;   /* constant; hooks.h */
	/* constant; digest of the file of remote_secret=, or NULL; seed.c */
	uint8_t *secret;
	uint64_t unshared_ns; /* when a refusal to share was last logged */
	struct kv_removed *removed; /* tombstones; NULL: none, or no memory */
	struct kv_health health;
	struct kv_scrubber scrubber;

	struct kv_table table;
	struct kv_spaces spaces; /* including removed spaces */
	uint32_t live_spaces;
	struct kv_tenants tenants; /* freed by kv_cache_close only */
	uint64_t due[TIERS];   /* guarantees of users, less their @fast bytes */
	uint64_t tenants_file; /* bytes of STORE/tenants */
	void *names;	       /* tsearch tree of kv_space by name */
	pthread_cond_t settled; /* signals that a space stopped ->settling */
	bool changing;		/* a space is being written by persist.c */
	pthread_cond_t changed; /* signals that @changing is false */
	uint64_t sizes[64][SIZE_CLASSES]; /* slot sizes, by power of two */

	struct kv_arena arena;
	struct kv_pins pins;
	struct kv_snapshots snapshots;
	struct kv_ssd ssd;
	LIST_HEAD(kv_fills, kv_fill) saving[SAVING_BUCKETS]; /* with a key */
	LIST_HEAD(kv_reads, kv_read) reads[READ_BUCKETS]; /* by block number */
	TAILQ_HEAD(, kv_acquire) short_of_room; /* acquires waiting for room */
	uint64_t hint_reads; /* bytes that prefetches are reading from SSD */
	bool room;	     /* there may be room: retry @short_of_room */
	uint64_t cleaned;    /* slots that became clean since the mount */
	uint64_t reads_begun, reads_ended;
	struct kv_bounce *bounce;     /* guarded by a lock of its own */
	struct kv_workers *verifiers; /* guarded by a lock of its own */
	struct kv_deferred deferred;
	struct kv_cache_stats stats; /* counters; other figures are computed */
	char *notes; /* fallbacks and their reasons: lines "key=value\n" */
};

/* Return the time of a use now. */
static inline uint32_t kv_use_now(const struct kv_cache *cache)
{
	return cache->uses.base +
	       (uint32_t)((kv_now_ns() - cache->uses.from_ns) / 1000000000u);
}

/* Return the seconds since the block's last use, or since its seal. */
static inline uint32_t kv_block_age(const struct kv_cache *cache,
				    const struct kv_block *block)
{
	const uint32_t now = kv_use_now(cache);

	return now - KV_MIN(KV_MAX(block->atime, cache->uses.floor), now);
}

void kv_lock(struct kv_cache *cache);
void kv_unlock(struct kv_cache *cache);
/* Release the lock briefly, between two steps of a long walk. */
void kv_yield(struct kv_cache *cache);
/* Run the deferred callbacks unlocked, then wait on @cond for @ns at most. */
void kv_cond_wait(struct kv_cache *cache, pthread_cond_t *cond, uint64_t ns);
/* Return the segment file with this id, or NULL. */
struct kv_segfile *kv_segfile_at(struct kv_cache *cache, uint32_t id);
void kv_defer_gone(struct kv_cache *cache, const struct kv_block *block);
void kv_defer_flushed(struct kv_cache *cache, struct kv_flush *flush,
		      int status);
void kv_defer_retired(struct kv_cache *cache, uint32_t segment);
void kv_note(struct kv_cache *cache, const char *format, ...)
	__attribute__((format(printf, 2, 3)));
/* Write the name of the user @uid in the remote tier: that of remote_tenant=,
 * or else the number. */
void kv_tenant_name(const struct kv_cache *cache, uint32_t uid,
		    char name[KV_REMOTE_NAME_MAX + 1]);
/* Record a fallback as the line "key=text", and print it by config.warn. */
void kv_warn(struct kv_cache *cache, const char *key, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
