/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ssd.h - the SSD tier inside the cache: slots of files, writes, commits,
 * flushes, health.
 */
#ifndef KV_CACHE_SSD_SSD_H
#define KV_CACHE_SSD_SSD_H

#include "cache/core/slot.h"
#include "cache/core/table.h"

/* ---- segfile.c ---- */

/* A file that the index knows; -ENOENT: it is not there. */
int kv_segfile_adopt(struct kv_cache *cache, const struct kv_segfile_record *r);
/* A file for slots of this size, a new one or an empty one that had others;
 * lets go of the lock meanwhile. */
int kv_segfile_create(struct kv_cache *cache, uint64_t slot_bytes);
/* May there be one more? */
bool kv_segfile_room(const struct kv_cache *cache);
/* Bytes of STORE/spaces beyond their share. */
uint64_t kv_sidecars_over(const struct kv_cache *cache);
/* Remove files that the index does not know. */
void kv_segfiles_sweep(struct kv_cache *cache);
/* At opening: remove files of the directory @dir that belong to nothing, but
 * hidden ones.  As far as it goes: what stays is found the next time. */
void kv_strays_remove(struct kv_cache *cache, int dir,
		      bool (*belongs)(struct kv_cache *cache,
				      const char *name));
/* The file is empty, and removed. */
void kv_segfile_forget(struct kv_cache *cache, struct kv_segfile *file);
/* At the end: the index knows those files, too, whose blocks were all removed
 * before a commit.  As far as it goes: the next mount removes others. */
void kv_segfiles_record(struct kv_cache *cache);
void kv_segfiles_close(struct kv_cache *cache);
/* Zero the prologues in the free slots of one file, and write its trailer if it
 * is missing; the lock is released meanwhile.  False: all files are swept. */
bool kv_sweep_waits(const struct kv_cache *cache);
bool kv_sweep_one(struct kv_cache *cache);
/* No free slot is to be taken before its file is swept. */
void kv_sweep_later(struct kv_cache *cache);

/* ---- extent.c ---- */

int kv_extent_eviction_init(struct kv_cache *cache);
/*
 * A free slot.  -ENOENT: a file must be created first; -EAGAIN: deletions must
 * be over first, or a file be swept; -ENOSPC: nothing may be evicted; -EDQUOT:
 * nor by the space, which is at its quota; -EBUSY: it is, by what is being
 * written.
 */
int kv_extent_take(struct kv_cache *cache, struct kv_space *space,
		   uint64_t slot_bytes, uint32_t *ret_file,
		   uint32_t *ret_slot_number);
/* A slot taken for @space is not attached after all, but deleted. */
void kv_extent_give_up_locked(struct kv_cache *cache, struct kv_space *space,
			      uint64_t slot_id);
/* The block's pin changed. */
void kv_extent_pin_locked(struct kv_cache *cache, struct kv_block *block,
			  bool pin);
/* The slot holds the block's bytes now; at mount: it is taken by this. */
int kv_extent_adopt(struct kv_cache *cache, struct kv_block *block,
		    uint32_t file, uint32_t slot_number);
void kv_extent_attach_locked(struct kv_cache *cache, struct kv_block *block,
			     uint32_t file, uint32_t slot_number);
/* The slot is the block's no more: delete its record, zero it, reuse it. */
void kv_extent_detach_locked(struct kv_cache *cache, struct kv_block *block);
void kv_extent_touch_locked(struct kv_cache *cache, struct kv_block *block);
uint64_t kv_extent_bytes(struct kv_cache *cache, const struct kv_block *block);
/*
 * A free slot of the same size, to move @block to, which has one in a closed
 * file; if there is none, evict for @n.  -EAGAIN: deletions must be over first; -ENOSPC.  Give it up, or say
 * that the block is there.
 */
int kv_extent_take_beside_locked(struct kv_cache *cache,
				 const struct kv_block *block, size_t n,
				 uint64_t *ret_slot_id);
void kv_extent_moved_locked(struct kv_cache *cache, struct kv_block *block,
			    uint64_t slot_id);
/* At mount: give the block a free slot in another file; -ENOSPC.  The caller
 * copies it, and its record. */
int kv_extent_relocate(struct kv_cache *cache, struct kv_block *block);
/* As detach, but the slot stays taken until the next mount (quarantine). */
void kv_extent_forget_locked(struct kv_cache *cache, struct kv_block *block);
/* The slot will be free some time; now it is; or it will not be after all. */
void kv_extent_leaving_locked(struct kv_cache *cache, uint64_t slot_id);
void kv_extent_left_locked(struct kv_cache *cache, uint64_t slot_id);
void kv_extent_undelete_locked(struct kv_cache *cache, uint64_t slot_id);
/* At mount: a later record tells where @block is; what it has goes. */
void kv_extent_supersede(struct kv_cache *cache, struct kv_block *block);
/* At mount: the slot has the record of a block that was removed: delete it. */
int kv_extent_adopt_stale(struct kv_cache *cache, struct kv_space *space,
			  uint64_t slot_id);
/* At mount: the most recent block so far, oldest first. */
void kv_extent_order(struct kv_cache *cache, struct kv_block *block);
/* At mount: the block goes with its file. */
void kv_extent_drop(struct kv_cache *cache, struct kv_block *block);
/* The block that is durable in this slot of @file and not removed; NULL: none. */
struct kv_block *kv_extent_block(struct kv_cache *cache,
				 const struct kv_segfile *file,
				 uint32_t slot_number);
int kv_extents_add_file(struct kv_cache *cache, struct kv_segfile *file);
void kv_extents_remove_file(struct kv_segfile *file);
/* A file's free slots may be taken now, or may not. */
void kv_extents_renew_file(struct kv_segfile *file);
/* Take no slot of @file from now on; or take them again, without an heir. */
void kv_extents_close_file(struct kv_segfile *file);
void kv_extents_open_file(struct kv_segfile *file);
/* An empty file that may get slots of this size, and has others; NULL. */
struct kv_segfile *kv_extents_empty_file(struct kv_cache *cache,
					 uint64_t slot_bytes);

/* One more, or less, of the space's blocks with slots of that size is pinned. */
void kv_extent_pins_locked(struct kv_cache *cache, struct kv_space *space,
			   uint64_t slot_bytes, bool more);

/* ---- shrink.c ---- */

/*
 * At mount: does the tier hold more than its cap allows?
 * 0         no, or there is no tier
 * 1         yes: call kv_shrink
 * -ENOSPC   blocks that are pinned alone are more, and ssd_evict is not given
 */
int kv_shrink_check(struct kv_cache *cache, char **ret_why);
/* At mount: evict blocks until the cap is kept, and say how many. */
int kv_shrink(struct kv_cache *cache);

/* ---- share.c ---- */

/* Is it not safe to pin one more block of @space, whose slot has so many bytes?
 * No write can take it then. */
bool kv_ssd_over_floor(const struct kv_cache *cache,
		       const struct kv_space *space, uint64_t slot_bytes);
/* One more of them is pinned, or less. */
void kv_ssd_pinned_locked(struct kv_cache *cache, struct kv_space *space,
			  uint64_t slot_bytes, bool more);
/* What the pin of a block counts, whose slot has so many: its record holds a
 * part of the index, however small it is. */
uint64_t kv_ssd_pin_bytes(const struct kv_cache *cache, uint64_t slot_bytes);
/* How many slots the blocks of @list have. */
uint64_t kv_ssd_slots(const struct kv_evict_list *list);
/* How many files every tenant has, in tenant->files, with one more for the
 * taker's; who are in one have parts of it, with what is free there.  And does
 * his quota not fill so many? */
void kv_ssd_count_files_locked(const struct kv_cache *cache,
			       const struct kv_space *taker);
/* The user for whom a file is being emptied that @class gets; NULL: none. */
struct kv_tenant *kv_ssd_awaiting(const struct kv_cache *cache,
				  const struct kv_ssd_class *class);
bool kv_ssd_over_quota(const struct kv_cache *cache,
		       const struct kv_tenant *tenant);

/* ---- evict.c ---- */

/* Evict for @taker, from @class: what is nobody's guarantee but its own. */
bool kv_ssd_evict_one_locked(struct kv_cache *cache, struct kv_ssd_class *class,
			     struct kv_space *taker);
/*
 * There is no slot of @class: see to it that there will be one for @taker.
 *   0: evicted, or a file is on its way
 *   -ENOSPC: nothing may be evicted, or nothing has been for seconds
 */
int kv_ssd_evict_for(struct kv_cache *cache, struct kv_ssd_class *class,
		     struct kv_space *taker);
/*
 * Is a file on its way to @class?  If blocks of another class that fill one are
 * colder than all that @class could evict for @taker, one is emptied for it.
 */
bool kv_ssd_balance_locked(struct kv_cache *cache, struct kv_ssd_class *class,
			   struct kv_space *taker);
/*
 * Evict the blocks of @file, which has an heir, but those that are to be moved.
 * Return how many these are: their numbers are in @numbers, which has room for
 * all of the file's.  Lets go of the lock.
 */
size_t kv_ssd_empty_file(struct kv_cache *cache, struct kv_segfile *file,
			 uint32_t *numbers);
/* Evict a block of the class of @file, for one that is moved out of @file. */
bool kv_ssd_evict_beside_locked(struct kv_cache *cache,
				const struct kv_segfile *file);
/* Evict for @taker, of whatever size: the index has no room for its record. */
bool kv_ssd_evict_record_locked(struct kv_cache *cache, struct kv_space *taker);
uint64_t kv_leaving_locked(const struct kv_cache *cache); /* slots */
bool kv_ssd_evict_own_locked(struct kv_cache *cache, struct kv_space *space);
/* The same of all spaces of @tenant, for @space, one of them; NULL: for none.
 */
bool kv_ssd_evict_tenant_locked(struct kv_cache *cache,
				const struct kv_tenant *tenant,
				const struct kv_space *space);
/* Evict of @space, and of its tenant, until @bytes more are within the quotas
 * of both.  -EDQUOT: they cannot be, -EBUSY: not before writes have ended. */
int kv_ssd_fit_quota_locked(struct kv_cache *cache, struct kv_space *space,
			    uint64_t bytes);

/* ---- admit.c ---- */

enum kv_verdict { KV_ADMIT_NOW, KV_ADMIT_LATER };
/* May the block of @slot, next on its write queue, be written?  LATER: it is no
 * longer next. */
enum kv_verdict kv_admit_locked(struct kv_cache *cache, struct kv_slot *slot);
void kv_admit_charge_locked(struct kv_cache *cache, const struct kv_slot *slot);
/* Does it wait for its parent? */
bool kv_orphan_waits(const struct kv_slot *slot);
/* If it does: no more. */
void kv_orphan_drop_locked(struct kv_cache *cache, struct kv_slot *slot);
/* @parent is on its way to the SSD: those that wait for it are, too, soon. */
void kv_orphans_adopt_locked(struct kv_cache *cache,
			     const struct kv_block *parent);
/* Queue some of those whose parent is on its way. */
void kv_orphans_enqueue_locked(struct kv_cache *cache);
void kv_orphans_free(struct kv_cache *cache);

/* ---- writer.c ---- */

int kv_write_queues_init(struct kv_cache *cache); /* -ENOMEM */
void kv_write_queue_push_locked(struct kv_cache *cache, struct kv_slot *slot);
void kv_write_queue_drop_locked(struct kv_cache *cache, struct kv_slot *slot);
/* A slot on a write queue comes next on it. */
void kv_write_queue_pull(struct kv_slot *slot);
/* The first of the write queue whose turn it is; NULL: none. */
struct kv_slot *kv_write_queue_next_locked(struct kv_cache *cache);
/* Spaces that put writing off go on: what they waited for may have come. */
void kv_writer_rouse_locked(struct kv_cache *cache);
/* A slot's write begins: that much of its write queue's turn is over. */
void kv_write_queue_charge(struct kv_slot *slot);
int kv_writer_start(struct kv_cache *cache);
/* Writes everything out first.  -ETIMEDOUT: something is stuck. */
int kv_writer_stop(struct kv_cache *cache);
void kv_write_enqueue_locked(struct kv_cache *cache, struct kv_block *block,
			     bool must);
void kv_write_dequeue_locked(struct kv_cache *cache, struct kv_block *block);
/* In memory: all but those that find none on SSD. */
bool kv_writes_may_make_room_locked(const struct kv_cache *cache);
/* Does somebody wait for the durability of this dirty slot? */
bool kv_write_must(const struct kv_slot *slot);
void kv_dirty_drop_locked(struct kv_cache *cache, struct kv_slot *slot);
void kv_write_failed_locked(struct kv_cache *cache, int error);

/* ---- commit.c ---- */

/* Has a snapshot changed that the committer may write now? */
bool kv_snapshots_dirty_locked(const struct kv_cache *cache);
void kv_commit_kick_locked(struct kv_cache *cache, bool urgent);
/* There is something to commit, in no hurry: it is woken only if it rests. */
void kv_commit_note_locked(struct kv_cache *cache);
void *kv_committer(void *cache);
/* The block's pin or mtime is about to change: have that recorded.  -ENOMEM. */
int kv_update_locked(struct kv_cache *cache, struct kv_block *block);
/* The count of updates that are committed once all asked for so far are. */
uint64_t kv_updates_needed_locked(const struct kv_cache *cache);

/* ---- removed.c ---- */

/* The user has removed this block of @space, if that is shared: it shall not be
 * brought back by another node. */
void kv_removed_add_locked(struct kv_cache *cache, struct kv_space *space,
			   const struct kv_key *key);
/* He has saved it again. */
void kv_removed_lift_locked(struct kv_cache *cache, struct kv_space *space,
			    const struct kv_key *key);
bool kv_is_removed_locked(struct kv_cache *cache, struct kv_space *space,
			  const struct kv_key *key);
/* Whether the first @changes, a count, are on disk; whether there are any to be
 * written now; and have the next write not wait after one that failed. */
bool kv_removed_written_locked(const struct kv_cache *cache, uint64_t changes);
bool kv_removed_dirty_locked(const struct kv_cache *cache);
void kv_removed_retry_locked(struct kv_cache *cache);
/* What has changed, NULL: nothing; -ENOMEM.  Then write it, without the lock, and
 * say how that went; -EAGAIN: it was not tried. */
struct kv_removed_write;
int kv_removed_take_locked(struct kv_cache *cache,
			   struct kv_removed_write **ret_write);
int kv_removed_write(struct kv_cache *cache, struct kv_removed_write *write);
void kv_removed_end_locked(struct kv_cache *cache,
			   struct kv_removed_write *write, int status);
/* At mount, once all blocks are known: read the file. */
int kv_removed_adopt(struct kv_cache *cache);
/* Cut the file to the size that a smaller cap allows. */
int kv_removed_trim(struct kv_cache *cache);
void kv_removed_fini(struct kv_cache *cache);

/* ---- flush.c ---- */

void kv_flushes_settle_locked(struct kv_cache *cache, int error);
/* End the flushes of @space that are done. */
void kv_flushes_settle_space_locked(struct kv_cache *cache,
				    struct kv_space *space);
/* Queue some of what flushes ask for that was not on its way. */
void kv_flushes_collect_locked(struct kv_cache *cache);
/* All flushes of @space (NULL: of all) end with @error. */
void kv_flushes_fail_locked(struct kv_cache *cache, struct kv_space *space,
			    int error);
/* Its owner's client has changed @block: whoever waits for it is told, it is
 * removed, and that is remembered until it is sealed again. */
void kv_block_changed_locked(struct kv_cache *cache, struct kv_block *block);
void kv_changed_lift_locked(struct kv_cache *cache,
			    const struct kv_space *space,
			    const struct kv_key *key);
/* Flushes that wait for a snapshot of @space end with @error. */
void kv_flushes_fail_snapshot_locked(struct kv_cache *cache,
				     struct kv_space *space, int error);
/* Flushes that wait for one of the first @changes of what was removed that is
 * not on disk end with @error. */
void kv_flushes_fail_removals_locked(struct kv_cache *cache, uint64_t changes,
				     int error);
/* The syncs of the block in @slot end with @error. */
void kv_syncs_end_locked(struct kv_cache *cache, struct kv_slot *slot,
			 int error);
/* The block in @slot is durable; the syncs of it want its pin and mtime, too.
 */
void kv_syncs_durable_locked(struct kv_cache *cache, struct kv_slot *slot);
/* End the syncs whose updates were committed. */
void kv_syncs_settle_locked(struct kv_cache *cache);
/* @slot is all in its file, or will not be written. */
void kv_flushes_written_locked(struct kv_cache *cache, struct kv_slot *slot);
/* Flushes of @space that waited for an unqueued deletion wait for it, queued.
 */
void kv_flushes_queued_locked(struct kv_cache *cache, struct kv_space *space);
/* Flushes that wait for @slot wait for what is to be done to its record, too.
 */
void kv_flushes_prolong_locked(struct kv_cache *cache,
			       const struct kv_slot *slot);
/* Wait, lock held, until a commit is of use to somebody, or is due. */
void kv_commit_gather(struct kv_cache *cache);

/* ---- deletion.c ---- */

void kv_deletions_init(struct kv_cache *cache);
void kv_deletions_free(struct kv_cache *cache);
/* Delete the record of a slot that was a block's of @space, zero its prologue,
 * and give it back if it is for @reuse. */
void kv_extent_delete_locked(struct kv_cache *cache, struct kv_space *space,
			     uint64_t slot_id, bool reuse);
/* For the committer: is there something to record?  Take what waits; put that
 * in order; delete records in @txn, as many as there is time for; how the
 * transaction ended. */
bool kv_deletions_to_record(const struct kv_ssd *ssd);
void kv_deletions_take_locked(struct kv_cache *cache);
/* Queue those that there was no memory for.  Lets go of the lock. */
void kv_deletions_requeue(struct kv_cache *cache);
void kv_deletions_sort(struct kv_cache *cache);
int kv_deletions_record(struct kv_cache *cache, struct kv_txn *txn);
void kv_deletions_recorded_locked(struct kv_cache *cache, int status);
void *kv_deleter(void *cache);
int kv_segfiles_sync(struct kv_cache *cache, const int *fds, size_t n);

/* ---- move.c ---- */

void kv_mover_init(struct kv_cache *cache);
int kv_mover_start(struct kv_cache *cache);
/* After the move under way; moves that wait for their commit go on. */
void kv_mover_stop(struct kv_cache *cache);
void kv_mover_fini(struct kv_cache *cache);
/*
 * Have @file emptied for @heir: its blocks are evicted, and moved to other files
 * of their size if they must not go or, if it @spares them, are warmer than the
 * heir's coldest.  @wanted_by is the space whose block needs the file.  Only
 * @taker, which may be NULL, gives up its reserve.
 */
void kv_segfile_empty_locked(struct kv_cache *cache, struct kv_segfile *file,
			     struct kv_ssd_class *heir,
			     const struct kv_space *wanted_by,
			     const struct kv_space *taker, bool spares);
/* For the committer, as deletions have it. */
bool kv_moves_to_record(const struct kv_ssd *ssd);
void kv_moves_take_locked(struct kv_cache *cache);
int kv_moves_record(struct kv_cache *cache, struct kv_txn *txn);
void kv_moves_recorded_locked(struct kv_cache *cache, int status);

/* ---- health.c ---- */

int kv_health_init(struct kv_cache *cache);
uint64_t kv_health_patience(const struct kv_cache *cache);
uint64_t kv_health_retry(const struct kv_cache *cache);
/* How a read of a block ended. */
void kv_health_note(struct kv_cache *cache, int status);
/* Reads are not even tried: what is only on SSD is a miss. */
bool kv_health_offline_locked(const struct kv_cache *cache);
/* The ring's, and an index transaction that does not end. */
struct kv_ring_stuck kv_health_stuck_locked(struct kv_cache *cache);
/* To be called once a second: is any request stuck? */
bool kv_health_check_locked(struct kv_cache *cache);
/* Can any page be read from the segment files?  Waits. */
bool kv_health_probe(struct kv_cache *cache);

#endif
