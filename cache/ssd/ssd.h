/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ssd.h - the SSD tier inside the cache: slots of files, writes, commits,
 * flushes, health.
 */
#ifndef KV_CACHE_SSD_SSD_H
#define KV_CACHE_SSD_SSD_H

#include "cache/core/core.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"

/* ---- segfile.c: files ---- */

/* Return the file that has the slot @slot_id. */
static inline struct kv_segfile *kv_segfile_of(struct kv_cache *cache,
					       uint64_t slot_id)
{
	return kv_segfile_at(cache, (uint32_t)(slot_id >> 32));
}

/* Open a file that the index has a record of; -ENOENT: it is missing. */
int kv_segfile_adopt(struct kv_cache *cache, const struct kv_segfile_record *r);
/* Make a file for slots of this size, or convert an empty one.  Releases the
 * lock. */
int kv_segfile_create(struct kv_cache *cache, uint64_t slot_bytes);
/* Return the bytes of STORE/spaces beyond their share. */
uint64_t kv_sidecars_over(const struct kv_cache *cache);
/* Remove segment files that the index has no record of. */
void kv_segfiles_sweep(struct kv_cache *cache);
/* At mount: remove files of the directory @dir that belong to nothing, except
 * hidden ones.  Best effort: the next mount finds what is left. */
void kv_strays_remove(struct kv_cache *cache, int dir,
		      bool (*belongs)(struct kv_cache *cache,
				      const char *name));
/* Close an empty file that was removed. */
void kv_segfile_forget(struct kv_cache *cache, struct kv_segfile *file);
/* At the end: record in the index also files whose blocks were all removed
 * before a commit.  Best effort: the next mount removes the others. */
void kv_segfiles_record(struct kv_cache *cache);
void kv_segfiles_close(struct kv_cache *cache);
/* Take no slot of @file from now on; or take them again, without an heir. */
void kv_extents_close_file(struct kv_segfile *file);
void kv_extents_open_file(struct kv_segfile *file);
/* Put the file in front of its class, or behind, as it has room or not. */
void kv_segfile_relink(struct kv_segfile *file);

/* ---- segfile.c: slots ---- */

int kv_extent_eviction_init(struct kv_cache *cache);
/*
 * Take a free slot for a write.
 *   -ENOENT  a file must be created first
 *   -EAGAIN  deletions must be over first, or a file be swept
 *   -ENOSPC  no block may be evicted
 *   -EDQUOT  the space is at its quota, and may evict nothing of its own
 *   -EBUSY   the same, but writes under way count in its quota
 */
int kv_extent_take(struct kv_cache *cache, struct kv_space *space,
		   uint64_t slot_bytes, uint32_t *ret_file,
		   uint32_t *ret_slot_number);
/* Delete a slot that was taken for @space, and not attached. */
void kv_extent_give_up_locked(struct kv_cache *cache, struct kv_space *space,
			      uint64_t slot_id);
/* The block's pin changed. */
void kv_extent_pin_locked(struct kv_cache *cache, struct kv_block *block,
			  bool pin);
/* Count one more, or less, pinned block of the space in slots of that size. */
void kv_extent_pins_locked(struct kv_cache *cache, struct kv_space *space,
			   uint64_t slot_bytes, bool more);
/* Attach a slot with the block's bytes: at mount, or after the commit. */
int kv_extent_adopt(struct kv_cache *cache, struct kv_block *block,
		    uint64_t slot_id);
void kv_extent_attach_locked(struct kv_cache *cache, struct kv_block *block,
			     uint32_t file, uint32_t slot_number);
/* Take the block off the SSD: delete its record, zero the slot, reuse it. */
void kv_extent_detach_locked(struct kv_cache *cache, struct kv_block *block);
/* The same, but the slot stays taken until the next mount (quarantine). */
void kv_extent_forget_locked(struct kv_cache *cache, struct kv_block *block);
void kv_extent_touch_locked(struct kv_cache *cache, struct kv_block *block);
/* Return the bytes of the block's slot; 0: it is not on SSD. */
uint64_t kv_extent_bytes(struct kv_cache *cache, const struct kv_block *block);
/* Return the block that is durable in this slot of @file and not removed; NULL:
 * none. */
struct kv_block *kv_extent_block(struct kv_cache *cache,
				 const struct kv_segfile *file,
				 uint32_t slot_number);
/*
 * Take a free slot of the same size, to move @block to, out of a closed file;
 * if there is none, evict for @n blocks.  Then give the slot up, or call
 * kv_extent_moved_locked.  -EAGAIN: deletions must be over first; -ENOSPC.
 */
int kv_extent_take_beside_locked(struct kv_cache *cache,
				 const struct kv_block *block, size_t n,
				 uint64_t *ret_slot_id);
void kv_extent_moved_locked(struct kv_cache *cache, struct kv_block *block,
			    uint64_t slot_id);
/* The deletion of a leaving slot is over: free the slot. */
void kv_extent_left_locked(struct kv_cache *cache, uint64_t slot_id);
/*
 * At mount:
 * supersede    a later record names another slot of @block: delete this one
 * adopt_stale  delete the record in this slot, of a block that was removed
 * order        @block is the most recent one so far
 * drop         the block goes with its file
 * relocate     give the block a free slot in another file, where the caller
 *              copies it and its record; -ENOSPC
 */
void kv_extent_supersede(struct kv_cache *cache, struct kv_block *block);
int kv_extent_adopt_stale(struct kv_cache *cache, struct kv_space *space,
			  uint64_t slot_id);
void kv_extent_order(struct kv_cache *cache, struct kv_block *block);
void kv_extent_drop(struct kv_cache *cache, struct kv_block *block);
int kv_extent_relocate(struct kv_cache *cache, struct kv_block *block);

/* ---- evict.c ---- */

/* Return whether one more pinned block of @space would leave too little to
 * others. */
bool kv_ssd_over_floor(const struct kv_cache *cache,
		       const struct kv_space *space, uint64_t slot_bytes);
/* Count one more, or less, pinned block of @space. */
void kv_ssd_pinned_locked(struct kv_cache *cache, struct kv_space *space,
			  uint64_t slot_bytes, bool more);
/* Return the bytes that the pin of a block with such a slot counts: its record
 * takes a part of the index, however small the slot is. */
uint64_t kv_ssd_pin_bytes(const struct kv_cache *cache, uint64_t slot_bytes);
/* Evict a block of @class for @taker, beyond what others are guaranteed. */
bool kv_ssd_evict_one_locked(struct kv_cache *cache, struct kv_ssd_class *class,
			     struct kv_space *taker);
/*
 * Make room for @taker in @class, which has no free slot.
 *   0        a block was evicted, or a file is being emptied for @class
 *   -ENOSPC  nothing may be evicted, or nothing has been for seconds
 */
int kv_ssd_evict_for(struct kv_cache *cache, struct kv_ssd_class *class,
		     struct kv_space *taker);
/* Return whether @class will get a file soon.  If blocks of another class are
 * colder than all that @class could evict for @taker, one of its files is
 * emptied. */
bool kv_ssd_balance_locked(struct kv_cache *cache, struct kv_ssd_class *class,
			   struct kv_space *taker);
/*
 * Evict the blocks of @file, which has an heir, except those that are to be
 * moved. Return how many these are: their numbers are in @numbers, which has
 * room for all of the file's.  Releases the lock.
 */
size_t kv_ssd_empty_file(struct kv_cache *cache, struct kv_segfile *file,
			 uint32_t *numbers);
/* Evict a block of the class of @file, for one that is moved out of @file. */
bool kv_ssd_evict_beside_locked(struct kv_cache *cache,
				const struct kv_segfile *file);
/* Evict a block of any size, for room in the index for a record of @taker. */
bool kv_ssd_evict_record_locked(struct kv_cache *cache, struct kv_space *taker);
uint64_t kv_leaving_locked(const struct kv_cache *cache); /* slots */
/* Evict a block of @space, or of all spaces of @tenant for @space, which is one
 * of them or NULL. */
bool kv_ssd_evict_own_locked(struct kv_cache *cache, struct kv_space *space);
bool kv_ssd_evict_tenant_locked(struct kv_cache *cache,
				const struct kv_tenant *tenant,
				const struct kv_space *space);
/* Evict blocks of @space, and of its tenant, until @bytes more are within the
 * quotas of both.  -EDQUOT: they cannot be; -EBUSY: not before writes have
 * ended. */
int kv_ssd_fit_quota_locked(struct kv_cache *cache, struct kv_space *space,
			    uint64_t bytes);

/* ---- writer.c ---- */

int kv_ssd_init(struct kv_cache *cache); /* -ENOMEM */
void kv_ssd_fini(struct kv_cache *cache);
/* Put a slot on the write queue of its space, or take it off. */
void kv_write_queue_push_locked(struct kv_cache *cache, struct kv_slot *slot,
				bool front);
void kv_write_queue_drop_locked(struct kv_cache *cache, struct kv_slot *slot);
/* Return the first slot of the write queue whose turn it is; NULL: none. */
struct kv_slot *kv_write_queue_next_locked(struct kv_cache *cache);
/* Charge the write of @slot to the turn of its write queue. */
void kv_write_queue_charge(struct kv_slot *slot);
/* Resume the writes of spaces that wait for a commit or a free slot. */
void kv_writer_rouse_locked(struct kv_cache *cache);
/* Start or stop the writer, the committer, the deleter and the mover.  Stopping
 * writes everything out first; -ETIMEDOUT: a request is stuck. */
int kv_writer_start(struct kv_cache *cache);
int kv_writer_stop(struct kv_cache *cache);
/* Queue the write of a block that is neither on SSD nor on its way; @must: a
 * caller waits for its durability.  Or give the write up. */
void kv_write_enqueue_locked(struct kv_cache *cache, struct kv_block *block,
			     bool must);
void kv_write_dequeue_locked(struct kv_cache *cache, struct kv_block *block);
/* Return whether writes under way will free slots in memory. */
bool kv_writes_may_make_room_locked(const struct kv_cache *cache);
/* Return whether a caller waits for the durability of this dirty slot. */
bool kv_write_must(const struct kv_slot *slot);
/* A slot is no longer dirty. */
void kv_dirty_drop_locked(struct kv_cache *cache, struct kv_slot *slot);
/* Count a failed write, and fail the flushes. */
void kv_write_failed_locked(struct kv_cache *cache, int error);
/* A slot that waits for its block's parent waits no more. */
void kv_orphan_drop_locked(struct kv_cache *cache, struct kv_slot *slot);

/* ---- commit.c ---- */

/* Return whether a snapshot has changed that may be written now. */
bool kv_snapshots_dirty_locked(const struct kv_cache *cache);
/* Wake the committer; @urgent: a caller waits for the commit. */
void kv_commit_kick_locked(struct kv_cache *cache, bool urgent);
/* There is something to commit, in no hurry: wake the committer if it rests. */
void kv_commit_note_locked(struct kv_cache *cache);
void *kv_committer(void *cache);
/* Have a change of the block's pin or mtime recorded.  -ENOMEM. */
int kv_update_locked(struct kv_cache *cache, struct kv_block *block);

/* ---- removed.c ---- */

/* The user has removed this block of @space: if the space is shared, keep other
 * nodes from bringing it back. */
void kv_removed_add_locked(struct kv_cache *cache, struct kv_space *space,
			   const struct kv_key *key);
/* The user has saved the block again. */
void kv_removed_lift_locked(struct kv_cache *cache, struct kv_space *space,
			    const struct kv_key *key);
bool kv_is_removed_locked(struct kv_cache *cache, struct kv_space *space,
			  const struct kv_key *key);
/* Return whether the first @changes, a count, are on disk; return whether
 * changes are to be written now; let the next write not wait after one that
 * failed. */
bool kv_removed_written_locked(const struct kv_cache *cache, uint64_t changes);
bool kv_removed_dirty_locked(const struct kv_cache *cache);
void kv_removed_retry_locked(struct kv_cache *cache);
/* Take what has changed (NULL: nothing; -ENOMEM), write it without the lock,
 * and end the write with its status; -EAGAIN: it was not begun. */
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

/* End all flushes that are done; with an @error, fail all of them. */
void kv_flushes_settle_locked(struct kv_cache *cache, int error);
/* End the flushes of @space that are done. */
void kv_flushes_settle_space_locked(struct kv_cache *cache,
				    struct kv_space *space);
/* Queue some of the writes that flushes wait for. */
void kv_flushes_collect_locked(struct kv_cache *cache);
/* Fail all flushes of @space (NULL: of all spaces, and all syncs). */
void kv_flushes_fail_locked(struct kv_cache *cache, struct kv_space *space,
			    int error);
/* A client has changed @block after its seal: remove it, fail those who wait
 * for it, and remember that until the block is sealed again. */
void kv_block_changed_locked(struct kv_cache *cache, struct kv_block *block);
void kv_changed_lift_locked(struct kv_cache *cache,
			    const struct kv_space *space,
			    const struct kv_key *key);
/* Fail the flushes that wait for a snapshot of @space. */
void kv_flushes_fail_snapshot_locked(struct kv_cache *cache,
				     struct kv_space *space, int error);
/* Fail the flushes that wait for one of the first @changes of cache->removed
 * that is not on disk. */
void kv_flushes_fail_removals_locked(struct kv_cache *cache, uint64_t changes,
				     int error);
/* End the syncs of the block in @slot with @error. */
void kv_syncs_end_locked(struct kv_cache *cache, struct kv_slot *slot,
			 int error);
/* The block in @slot is durable; its syncs now wait for its pin and mtime. */
void kv_syncs_durable_locked(struct kv_cache *cache, struct kv_slot *slot);
/* End the syncs whose updates are committed. */
void kv_syncs_settle_locked(struct kv_cache *cache);
/* The bytes of @slot are in its file, or will not be written. */
void kv_flushes_written_locked(struct kv_cache *cache, struct kv_slot *slot);
/* An unqueued deletion of @space is queued: flushes wait for it. */
void kv_flushes_queued_locked(struct kv_cache *cache, struct kv_space *space);
/* Flushes that wait for @slot now wait for changes of its record. */
void kv_flushes_prolong_locked(struct kv_cache *cache,
			       const struct kv_slot *slot);

/* ---- deletion.c ---- */

void kv_deletions_free(struct kv_cache *cache);
/* Delete the record of a slot that a block of @space had, zero its prologue,
 * and give the slot back if it is for @reuse. */
void kv_extent_delete_locked(struct kv_cache *cache, struct kv_space *space,
			     uint64_t slot_id, bool reuse);
/* For the committer: return whether there are deletions; take them; sort them;
 * delete records in @txn, as many as there is time for; end the transaction. */
bool kv_deletions_to_record(const struct kv_ssd *ssd);
void kv_deletions_take_locked(struct kv_cache *cache);
void kv_deletions_sort(struct kv_cache *cache);
int kv_deletions_record(struct kv_cache *cache, struct kv_txn *txn);
void kv_deletions_recorded_locked(struct kv_cache *cache, int status);
/* Queue the deletions that there was no memory for.  Releases the lock. */
void kv_deletions_requeue(struct kv_cache *cache);
/* Sweep all files before any of their free slots is taken. */
void kv_sweep_later(struct kv_cache *cache);
/* At mount: delete the record and the token ids of a slot in @txn; or those of
 * slots, and records of files, in transactions of their own. */
int kv_record_delete(struct kv_txn *txn, uint64_t slot_id);
int kv_records_delete(struct kv_cache *cache, uint64_t *slots, size_t n_slots,
		      const uint32_t *files, size_t n_files);
void *kv_deleter(void *cache);
int kv_segfiles_sync(struct kv_cache *cache, const int *fds, size_t n);

/* ---- move.c ---- */

int kv_mover_start(struct kv_cache *cache);
/* Stop after the move under way; moves that wait for their commit go on. */
void kv_mover_stop(struct kv_cache *cache);
void kv_moves_free(struct kv_cache *cache);
/*
 * Empty @file for @heir: evict its blocks, and move blocks to other files of
 * their size if they must not be evicted or, if @spares, are warmer than the
 * heir's coldest.  @wanted_by is the space whose block needs the file.  Only
 * @taker, which may be NULL, gives up its reserve.
 */
void kv_segfile_empty_locked(struct kv_cache *cache, struct kv_segfile *file,
			     struct kv_ssd_class *heir,
			     const struct kv_space *wanted_by,
			     const struct kv_space *taker, bool spares);
/* For the committer, as of deletions. */
bool kv_moves_to_record(const struct kv_ssd *ssd);
void kv_moves_take_locked(struct kv_cache *cache);
int kv_moves_record(struct kv_cache *cache, struct kv_txn *txn);
void kv_moves_recorded_locked(struct kv_cache *cache, int status);

/* ---- move.c: a smaller cap ---- */

/*
 * At mount: check whether the tier holds more than its cap allows.
 *   0        it does not, or there is no tier
 *   1        it does: call kv_shrink
 *   -ENOSPC  the pinned blocks alone are more, and ssd_evict is not given
 */
int kv_shrink_check(struct kv_cache *cache, char **ret_why);
/* At mount: evict blocks until the cap is kept, and warn with their number. */
int kv_shrink(struct kv_cache *cache);

/* ---- health.c ---- */

int kv_health_init(struct kv_cache *cache);
/* A read of a block ended with @status. */
void kv_health_note(struct kv_cache *cache, int status);
/* Return whether the tier is offline: blocks on SSD alone are misses. */
bool kv_health_offline_locked(const struct kv_cache *cache);
/* Count stuck requests of the ring, and an index transaction that is stuck. */
struct kv_ring_stuck kv_health_stuck_locked(struct kv_cache *cache);
/* To be called once a second.  Return whether any request is stuck. */
bool kv_health_check_locked(struct kv_cache *cache);
/* Return whether a page can be read from the segment files.  Waits. */
bool kv_health_probe(struct kv_cache *cache);

#endif
