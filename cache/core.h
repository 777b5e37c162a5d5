/* SPDX-License-Identifier: Apache-2.0 */
/*
 * core.h - what the files of cache/ share: the structures and the one lock.
 *
 * LOCKING  cache->lock guards every field here that is not marked otherwise.
 *          It is held for short, bounded stretches, never across I/O or a
 *          callback: kv_unlock() runs, after it has let go, whatever became due
 *          meanwhile (names that are gone, waits that are settled).
 *          "fixed": set before others can see the object.
 */
#ifndef KV_CORE_H
#define KV_CORE_H

#include <sys/queue.h>

#include "cache/cache.h"
#include "cache/policy.h"
#include "cache/ring.h"
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
	BLOCK_UPDATE = 128, /* in cache->updates */
};

/*
 * One block, in DRAM, on SSD or both.  Everything else that is known of it is
 * in its slot's prologue or in the index: there are millions of these.
 */
struct kv_block {
	uint8_t key[KV_KEY_MAX];
	uint32_t next;	     /* in its bucket, or in the free list */
	uint32_t number;     /* its own; fixed */
	uint32_t generation; /* of this number: makes the id unique */
	uint32_t space : 24; /* id */
	uint32_t flags : 8;
	uint32_t length;
	uint32_t file, place; /* SSD: segment file and slot; KV_NONE */
	uint32_t refs;	      /* gets, reads under way */
	uint32_t hits;
	uint32_t atime; /* seconds of wall time */
	int64_t mtime_ns;
	struct kv_slot *slot; /* DRAM, READY; or NULL */
	struct kv_node node;  /* SSD policy */
};

_Static_assert(sizeof(struct kv_block) == 104, "112 bytes with its bucket");

struct kv_dir {
	uint32_t *buckets;
	uint32_t mask, blocks;
	bool made; /* by mkdir; stays when empty */
};

struct kv_space {
	uint32_t id;			  /* fixed */
	char name[KV_SPACE_NAME_MAX + 1]; /* fixed */
	uint32_t uid, gid, mode;
	int64_t mtime_ns;
	bool removed;
	struct kv_quota quota;
	struct kv_layout *layout; /* set once */
	struct kv_dir *dirs[256]; /* NULL: not there */
	uint64_t blocks, bytes_dram, bytes_ssd;
	uint64_t loose;	 /* blocks neither durable nor on their way there */
	uint32_t clears; /* counts kv_space_clear */
};

struct kv_table {
	struct kv_block **chunks;
	uint32_t n_chunks, used, free; /* free: list of numbers */
	uint64_t seed;		       /* fixed */
};

/* ---- DRAM ---- */

enum slot_state { SLOT_FREE, SLOT_FILLING, SLOT_READY };

struct kv_slot {
	struct kv_segment *segment;  /* fixed */
	struct kv_block *block;	     /* READY */
	uint64_t seq;		     /* order of becoming dirty */
	TAILQ_ENTRY(kv_slot) link;   /* free list; queue of writes */
	TAILQ_ENTRY(kv_slot) undone; /* dirty, by seq */
	struct kv_node node;	     /* DRAM policy */
	uint32_t leases;	     /* clients' */
	uint32_t holds;		     /* views, writes */
	uint32_t file, place;	     /* SSD extent while it is being written */
	uint32_t payload;	     /* offset of the tensors in the file */
	uint8_t state;
	bool must; /* somebody waits for its durability */
};
TAILQ_HEAD(kv_slots, kv_slot);

struct kv_segment {
	uint32_t id;		/* fixed; never reused */
	int fd;			/* fixed */
	int buffer;		/* fixed; of the ring, or -1 */
	uint8_t *base;		/* fixed */
	bool huge, locked;	/* fixed */
	struct kv_class *class; /* NULL: spare or retired */
	uint32_t slots, free;
	struct kv_slots free_list;
	struct kv_slot *slot;	      /* array */
	uint32_t holders;	      /* clients that got it */
	TAILQ_ENTRY(kv_segment) link; /* of its class, or of the arena */
};
TAILQ_HEAD(kv_segments, kv_segment);

/* Segments of one access class and one slot class. */
struct kv_class {
	uint32_t uid, gid, read_bits;
	uint64_t slot_bytes;
	struct kv_segments segments;
	uint32_t n_segments, idle; /* idle: slots that may be evicted */
	struct kv_policy policy;
	LIST_ENTRY(kv_class) link;
};
LIST_HEAD(kv_classes, kv_class);

struct kv_arena {
	uint64_t segment_bytes; /* fixed */
	uint32_t max;		/* fixed: segments, retired ones included */
	uint32_t made, retired_count, huge;
	uint32_t next_id;
	struct kv_segments spare, retired, dead; /* dead: to be unmapped */
	struct kv_classes classes;
	uint64_t idle; /* bytes of slots that may be evicted */
	uint64_t used; /* bytes of slots not free */
	bool growing, stop, running;
	uint32_t unlocked; /* segments that could not be locked */
	int grow_error;
	pthread_t grower;
	pthread_cond_t grow, grown;
	uint64_t overcommit; /* hugepages we raised the limit by */
};

/* ---- SSD ---- */

/* One segment file. */
struct kv_file {
	uint32_t id;	     /* fixed */
	int fd;		     /* fixed while it lives */
	uint64_t slot_bytes; /* changes only while it is empty */
	uint32_t slots, used;
	uint32_t hint; /* no free slot below it */
	uint64_t *bitmap;
	bool recorded;		   /* the index has it as it is */
	TAILQ_ENTRY(kv_file) link; /* of its class; those with room in front */
};
TAILQ_HEAD(kv_files, kv_file);

/* SSD slots of one size. */
struct kv_ssd_class {
	uint64_t slot_bytes;
	uint64_t free, total;
	struct kv_files files;
	uint32_t n_files;
	uint32_t leaving; /* slots whose deletion waits for the commit */
	struct kv_policy policy;
	LIST_ENTRY(kv_ssd_class) link;
};

/* A slot whose record is to be deleted. */
struct kv_deletion {
	uint64_t slot_id;
	bool reuse; /* zero its prologue and give the slot back */
};

struct kv_deletions {
	struct kv_deletion *items;
	size_t n, room;
};

/* A removed block that a reader still has open: what to check its bytes by. */
struct kv_orphan {
	uint32_t block;
	struct kv_slot_record record;
	LIST_ENTRY(kv_orphan) link;
};

struct kv_ssd {
	bool on;				  /* fixed */
	bool buffered;				  /* fixed: no O_DIRECT here */
	int dir;				  /* fixed: STORE/segments */
	uint64_t cap, segment_bytes, file_budget; /* fixed: bytes for files */
	uint32_t round_max;	/* fixed: puts, or deletions, in one commit */
	struct kv_file **files; /* by id; NULL: none */
	uint32_t n_files, live_files;
	LIST_HEAD(, kv_ssd_class) classes;
	uint64_t used;		 /* bytes of slots in use */
	struct kv_slots queue;	 /* sealed, not yet being written */
	struct kv_slots undone;	 /* queue and being written, by seq */
	struct kv_slots written; /* waiting for the commit */
	uint64_t seq;
	uint64_t day_ns, day_bytes; /* queued since the day began */
	uint32_t writing;	    /* being written now */
	struct kv_deletions deletions;
	LIST_HEAD(, kv_orphan) orphans;
	uint32_t *updates; /* block numbers whose record changed */
	size_t n_updates, room_updates;
	uint64_t commits_begun, commits_done;
	uint64_t failures; /* counts; waiters look for a change */
	int error;	   /* why it is degraded; 0: online */
	bool full;	   /* the filesystem gave no room for another file */
	uint64_t full_until;
	bool urgent; /* somebody waits for the next commit */
	bool stop;
	bool stop_commits, running;
	pthread_t writer, committer;
	pthread_cond_t write, commit, done;
};

/* ---- the rest ---- */

#define SIZE_CLASSES 4
struct kv_bounce;

/* What kv_unlock has to do. */
struct kv_due {
	uint64_t *gone; /* ids */
	size_t n_gone, room_gone;
	struct kv_acquire *settled;
	struct kv_flush *flushed;
	uint32_t *retired;
	size_t n_retired, room_retired;
};

struct kv_fill {
	struct kv_space *space;
	struct kv_slot *slot;
	struct kv_key key; /* len 0: none reserved */
	uint64_t length;
	uint32_t clears;	 /* of the space, when it began */
	struct kv_want *waiters; /* acquires that wait for it */
	struct kv_fill *next;	 /* bucket of cache->saving */
};

#define SAVING_BUCKETS 4096
#define READ_BUCKETS 1024

struct kv_housekeeper {
	pthread_t thread;
	pthread_cond_t wake;
	bool running;
	_Atomic bool stop;
	uint32_t at;	/* the thread's own: next block to scrub */
	int64_t credit; /* bytes it may still read */
};

struct kv_cache {
	pthread_mutex_t lock;
	struct kv_cache_config config; /* fixed */
	char *store;		       /* fixed */
	int store_fd, lock_fd;	       /* fixed */
	struct kv_store_info info;
	uint64_t epoch;		/* fixed */
	bool after_crash;	/* fixed: the last end was not a clean one */
	uint64_t generation;	/* next */
	uint32_t clock;		/* touches, for the policies */
	struct kv_index *index; /* fixed; NULL without a store */
	struct kv_ring *ring;	/* fixed */
	struct kv_housekeeper housekeeper;

	struct kv_table table;
	struct kv_space **spaces; /* by id */
	uint32_t n_spaces, live_spaces;
	void *names;			  /* tsearch tree of kv_space by name */
	uint64_t sizes[64][SIZE_CLASSES]; /* slot sizes in use, by octave */

	struct kv_arena arena;
	struct kv_ssd ssd;
	struct kv_fill *saving[SAVING_BUCKETS]; /* fills that have a key */
	struct kv_read *reads[READ_BUCKETS];	/* under way, by block */
	struct kv_flush *flushes;
	struct kv_bounce *bounce;     /* own lock */
	struct kv_verifier *verifier; /* own lock */
	struct kv_due due;
	struct kv_cache_stats stats; /* the counters; gauges are derived */
	char *notes; /* fallbacks taken and why, "key=value\n" */
};

/* core.c */
void kv_lock(struct kv_cache *cache);
void kv_unlock(struct kv_cache *cache);
/* Wait on @cond up to @ns; what is due runs first, unlocked. */
void kv_cond_wait(struct kv_cache *cache, pthread_cond_t *cond, uint64_t ns);
void kv_cond_init(pthread_cond_t *cond);
void kv_due_gone(struct kv_cache *cache, const struct kv_block *block);
void kv_due_settled(struct kv_cache *cache, struct kv_acquire *acquire);
void kv_due_flushed(struct kv_cache *cache, struct kv_flush *flush, int status);
void kv_due_retired(struct kv_cache *cache, uint32_t segment);
int kv_thread(pthread_t *ret_thread, const char *name, void *(*run)(void *),
	      void *arg);
void kv_note(struct kv_cache *cache, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* table.c; all with the lock held */
int kv_table_init(struct kv_table *table);
void kv_table_fini(struct kv_table *table);
struct kv_block *kv_table_at(const struct kv_table *table, uint32_t number);
struct kv_block *kv_table_find(struct kv_cache *cache, struct kv_space *space,
			       const struct kv_key *key);
/* A new block in its directory, which is made; -ENOMEM. */
int kv_table_insert(struct kv_cache *cache, struct kv_space *space,
		    const struct kv_key *key, struct kv_block **ret_block);
void kv_table_unlink(struct kv_cache *cache, struct kv_block *block);
void kv_table_free(struct kv_cache *cache, struct kv_block *block);
struct kv_key kv_block_key(const struct kv_block *block);
uint64_t kv_block_id(const struct kv_block *block);
struct kv_space *kv_block_space(struct kv_cache *cache,
				const struct kv_block *block);
void kv_dirs_free(struct kv_space *space);

/* blocks.c; with the lock held */
/* Free what nothing needs any more of a removed block; maybe the block. */
void kv_block_settle_locked(struct kv_cache *cache, struct kv_block *block);
void kv_block_remove_locked(struct kv_cache *cache, struct kv_block *block);
void kv_block_touch_locked(struct kv_cache *cache, struct kv_block *block);
bool kv_block_dirty(const struct kv_block *block);
/* Is its slot such that it may be evicted right now? */
bool kv_slot_idle(const struct kv_slot *slot);
/* Call around every change that kv_slot_idle depends on. */
void kv_slot_before(struct kv_cache *cache, struct kv_slot *slot);
void kv_slot_after(struct kv_cache *cache, struct kv_slot *slot);
void kv_slot_lease_locked(struct kv_cache *cache, struct kv_slot *slot, int by);
void kv_slot_hold_locked(struct kv_cache *cache, struct kv_slot *slot, int by);
/* Take a READY block out of DRAM: it stays on SSD or is gone. */
void kv_block_drop_dram_locked(struct kv_cache *cache, struct kv_block *block);
struct kv_prologue *kv_slot_prologue(const struct kv_slot *slot);
uint8_t *kv_slot_file(const struct kv_slot *slot);

/* arena.c */
int kv_arena_open(struct kv_cache *cache);
void kv_arena_close(struct kv_cache *cache);
/* A FILLING slot; evicts as needed.  -ENOSPC, -EFBIG.  Lock held; @wait lets
 * it wait for segments that are being made. */
int kv_slot_take_locked(struct kv_cache *cache, struct kv_space *space,
			uint64_t length, bool wait, struct kv_slot **ret_slot);
void kv_slot_give_locked(struct kv_cache *cache, struct kv_slot *slot);
/* FILLING to READY, for @block. */
void kv_slot_publish_locked(struct kv_cache *cache, struct kv_slot *slot,
			    struct kv_block *block);
/* Would holding @bytes more leave too little to evict? */
bool kv_arena_over_floor(const struct kv_cache *cache, uint64_t bytes);
/* Is this the access class that the space's blocks belong in now? */
bool kv_class_fits(const struct kv_class *class, const struct kv_space *space);
void kv_arena_check_locked(struct kv_cache *cache);

/* size.c: the slot sizes in use */
uint64_t kv_size_class(struct kv_cache *cache,
		       uint64_t length); /* 0: too big */
void kv_size_used(struct kv_cache *cache, uint64_t slot_bytes);

/* segment.c */
void kv_segment_slots(struct kv_segment *segment, struct kv_class *class);
void kv_segment_retire_locked(struct kv_cache *cache,
			      struct kv_segment *segment);

/* memory.c: one segment's memory */
struct kv_memory {
	int fd;
	uint8_t *base;
	bool huge, locked;
};
int kv_memory_new(uint64_t bytes, enum kv_hugepages huge, bool seal,
		  struct kv_memory *ret_memory);
void kv_memory_free(struct kv_memory *memory, uint64_t bytes);

/* overcommit.c: the limit of huge pages.  Recover: what the last owner of this
 * lock file raised it by and did not live to lower. */
void kv_overcommit_recover(int lock_fd);
void kv_overcommit_raise(struct kv_cache *cache, int64_t pages);
void kv_overcommit_lower(struct kv_cache *cache);

/* extent.c; lock held */
struct kv_file *kv_file_at(struct kv_cache *cache, uint32_t id);
/* A file that the index knows; -ENOENT: it is not there. */
int kv_file_adopt(struct kv_cache *cache, const struct kv_segment_record *r);
/* A new file for slots of this size; lets go of the lock meanwhile. */
int kv_file_create(struct kv_cache *cache, uint64_t slot_bytes);
/* Remove files that the index does not know. */
void kv_files_sweep(struct kv_cache *cache);
/* Give up whole files until the cap is kept; commits by itself. */
int kv_files_shrink(struct kv_cache *cache);
void kv_files_close(struct kv_cache *cache);
/*
 * A free slot.  -ENOENT: a file must be created first; -EAGAIN: deletions must
 * be committed first; -ENOSPC: nothing may be evicted.
 */
int kv_extent_take_locked(struct kv_cache *cache, uint64_t slot_bytes,
			  uint32_t *ret_file, uint32_t *ret_place);
void kv_extent_free_locked(struct kv_cache *cache, uint64_t slot_id);
/* It holds the block's bytes now; at mount: the slot is taken by this. */
int kv_extent_adopt(struct kv_cache *cache, struct kv_block *block,
		    uint32_t file, uint32_t place);
void kv_extent_attach_locked(struct kv_cache *cache, struct kv_block *block,
			     uint32_t file, uint32_t place);
/* It is the block's no more: delete the record, zero the prologue, reuse. */
void kv_extent_detach_locked(struct kv_cache *cache, struct kv_block *block);
void kv_extent_delete_locked(struct kv_cache *cache, uint64_t slot_id,
			     bool reuse);
void kv_extent_touch_locked(struct kv_cache *cache, struct kv_block *block);
uint64_t kv_extent_bytes(struct kv_cache *cache, const struct kv_block *block);
/* As detach, but the slot stays taken until the next mount (quarantine). */
void kv_extent_forget_locked(struct kv_cache *cache, struct kv_block *block);
/* The deletion of a slot that was detached is durable. */
void kv_extent_left_locked(struct kv_cache *cache, uint64_t slot_id);
/* The commit that should have deleted it failed. */
void kv_extent_undelete_locked(struct kv_cache *cache, uint64_t slot_id);
/* At mount: the most recent block so far, oldest first. */
void kv_extent_order(struct kv_cache *cache, struct kv_block *block);
/* At mount: the block goes with its file. */
void kv_extent_drop(struct kv_cache *cache, struct kv_block *block);
int kv_extents_add_file(struct kv_cache *cache, struct kv_file *file);
void kv_extents_remove_file(struct kv_cache *cache, struct kv_file *file);

/* writer.c, commit.c */
int kv_writer_start(struct kv_cache *cache);
void kv_writer_stop(struct kv_cache *cache); /* writes everything out first */
void kv_write_queue_locked(struct kv_cache *cache, struct kv_block *block,
			   bool must);
void kv_write_unqueue_locked(struct kv_cache *cache, struct kv_block *block);
void kv_write_failed_locked(struct kv_cache *cache, int error);
void kv_commit_kick_locked(struct kv_cache *cache, bool urgent);
/* The number of the commit after which what is deleted now is durably so. */
uint64_t kv_commits_needed_locked(const struct kv_cache *cache);
void *kv_committer(void *cache);
bool kv_block_loose(const struct kv_block *block);
void kv_update_locked(struct kv_cache *cache, struct kv_block *block);
void kv_flushes_settle_locked(struct kv_cache *cache, int error);
/* Flushes that wait for the slot of @seq wait for its deletion, too. */
void kv_flushes_prolong_locked(struct kv_cache *cache, uint64_t seq);

/* acquire.c, read.c */
int kv_reader_start(struct kv_cache *cache);
void kv_reader_stop(struct kv_cache *cache);
/* Read @block into DRAM, or join who does; @want is started again then. */
int kv_read_join_locked(struct kv_cache *cache, struct kv_block *block,
			struct kv_want *want);
/* Look the want's block up and lease it, or see to it that it comes. */
void kv_want_start_locked(struct kv_cache *cache, struct kv_want *want);
void kv_want_settle_locked(struct kv_cache *cache, struct kv_want *want,
			   int status);
void kv_wants_restart_locked(struct kv_cache *cache, struct kv_want **list);
void kv_want_link(struct kv_want **list, struct kv_want *want);
struct kv_fill *kv_fill_find_locked(struct kv_cache *cache,
				    struct kv_space *space,
				    const struct kv_key *key);
/* What the index (or the slot) says of a block one holds; not under the lock.
 */
int kv_block_record(struct kv_cache *cache, struct kv_block *block,
		    struct kv_slot_record *ret_record);
/* Are these bytes, read from its extent, the block's?  0, -EBADMSG, -ENOENT: it
 * was removed. */
int kv_block_verify(struct kv_cache *cache, struct kv_block *block,
		    const uint8_t *slot_bytes);
/* It is damaged: forget it, and never use its extent again. */
void kv_block_quarantine(struct kv_cache *cache, struct kv_block *block);
void kv_io_failed(struct kv_cache *cache);

/* view.c */
int kv_bounce_new(struct kv_bounce **ret_bounce);
void kv_bounce_free(struct kv_bounce *bounce);

/* store.c */
int kv_store_open(struct kv_cache *cache, char **ret_why);
/* A line for the user in *@ret_why; returns @r. */
int kv_why(char **ret_why, int r, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
void kv_store_before_stop(struct kv_cache *cache);
void kv_store_close(struct kv_cache *cache, bool clean);
int kv_housekeeper_start(struct kv_cache *cache);
void kv_housekeeper_stop(struct kv_cache *cache);
int kv_space_persist(struct kv_cache *cache, struct kv_space *space);
int kv_space_adopt(struct kv_cache *cache, const struct kv_space_record *record,
		   const char *name, const char *layout);
void kv_spaces_free(struct kv_cache *cache);

#endif
