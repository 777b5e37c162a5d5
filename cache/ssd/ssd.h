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

/* ---- device.c ---- */

/* Open the directories of store=DIR; note those that links in STORE name.
 * -EBUSY, -EEXIST, ...: *@ret_why has the reason. */
int kv_devices_open(struct kv_cache *cache, char **ret_why);
/* Write the store record of this mount to the directories. */
void kv_devices_record(struct kv_cache *cache);
/* Warn of missing directories, whose blocks are misses. */
void kv_devices_warn(struct kv_cache *cache);
void kv_devices_close(struct kv_cache *cache);
/* Find the device with this path, or add a missing one.  NULL: too many. */
struct kv_device *kv_device_get(struct kv_cache *cache, const char *path);
/* Link file @id of @device from STORE/segments, in place of an older link. */
int kv_device_link(struct kv_cache *cache, const struct kv_device *device,
		   uint32_t id);
/* Return the expected ns until a write of @bytes ends that now begins.  Forgets the
 * measured speed of a device that was idle for long: it then counts as quick. */
double kv_device_delay(struct kv_device *device, uint64_t bytes);
/* Count a write that begins, or one that has ended, and measure its time. */
void kv_device_begin(struct kv_device *device, uint64_t bytes);
void kv_device_end(struct kv_device *device, uint64_t bytes);
/* Return whether files may be made on @device, and kv_device_delay is below
 * @busy. */
bool kv_device_idle(struct kv_device *device, uint64_t bytes, double busy);
/* Return the device with the largest part of its space free, for the next segment
 * file, of those for which kv_device_idle holds; NULL: there is none.  The part of
 * a device that takes more than twice as long as the fastest counts less by that
 * ratio.  Releases the lock. */
struct kv_device *kv_device_choose(struct kv_cache *cache, uint64_t bytes,
				   double busy);
/* A file could not be made on @device.  Return whether to try another device. */
bool kv_device_refused_locked(struct kv_cache *cache, struct kv_device *device,
			      int status);
/*
 * A write to @device ended with @status.  Use the device no more if that means that
 * it is gone or read-only, or if many writes in a row have failed: a single error
 * concerns one slot.  Return whether @status is an error of this device alone;
 * false for STORE, whose failures concern all blocks, and for -ENOMEM.
 */
bool kv_device_note_locked(struct kv_cache *cache, struct kv_device *device,
			   int status);
/* A sync of @device, or a probe, failed with @status: use the device no more.
 * Return as above. */
bool kv_device_fail_locked(struct kv_cache *cache, struct kv_device *device,
			   int status);
bool kv_device_fail(struct kv_cache *cache, struct kv_device *device,
		    int status);
/* Remove the blocks of failed devices from the table, or write them again if
 * they are in DRAM.  Called once a second.  Releases the lock. */
void kv_devices_forget_locked(struct kv_cache *cache);

/* ---- segfile.c: files ---- */

static inline struct kv_segfile *kv_segfile_of(struct kv_cache *cache,
					       uint64_t slot_id)
{
	return kv_segfile_at(cache, (uint32_t)(slot_id >> 32));
}

/* Open a segment file that has a record in the index.
 *   -ENOENT  no such file
 *   -ENODEV  its device is missing: the file is only noted */
int kv_segfile_adopt(struct kv_cache *cache, const struct kv_segfile_record *r);
/* Make a segment file with slots of @slot_bytes, or convert an empty file.
 * Releases the lock. */
int kv_segfile_create(struct kv_cache *cache, uint64_t slot_bytes);
/* Return the bytes of STORE/spaces, STORE/tenants and STORE/removed beyond the
 * quarter of the index that is set aside for them. */
uint64_t kv_sidecars_over(const struct kv_cache *cache);
/* Count @bytes more of the files beside the index.  Return whether the cap has
 * room for them; if not, nothing is counted. */
bool kv_sidecars_grow_locked(struct kv_cache *cache, uint64_t bytes);
/* Remove segment files without a record in the index. */
void kv_segfiles_sweep(struct kv_cache *cache);
/* Close an empty segment file that was unlinked. */
void kv_segfile_forget(struct kv_cache *cache, struct kv_segfile *file);
void kv_segfiles_close(struct kv_cache *cache);
/* Forbid taking slots of @file; or allow taking slots, and forget the heir. */
void kv_extents_close_file(struct kv_segfile *file);
void kv_extents_open_file(struct kv_segfile *file);
/* Put the file at the front of its class if it has room, else at the end. */
void kv_segfile_relink(struct kv_segfile *file);

/* ---- segfile.c: slots ---- */

/*
 * Take a free slot for a write of @space.
 *   -ENOENT  a file must be created first
 *   -EAGAIN  a deletion or a sweep must end first
 *   -ENOSPC  no block may be evicted
 *   -EIO     the same, and a file could not be made or converted
 *   -EDQUOT  @space is at its quota, and none of its blocks may be evicted
 *   -EBUSY   @space is at its quota until writes under way have ended
 */
int kv_extent_take(struct kv_cache *cache, struct kv_space *space,
		   uint64_t slot_bytes, uint32_t *ret_file,
		   uint32_t *ret_slot_number);
/* Delete a slot that was taken for @space and to which no block is attached. */
void kv_extent_give_up_locked(struct kv_cache *cache, struct kv_space *space,
			      uint64_t slot_id);
/* Move the block off its eviction list, or back, after a change of its pin. */
void kv_extent_pin_locked(struct kv_cache *cache, struct kv_block *block,
			  bool pin);
/* Add kv_ssd_slot_bytes of a pinned block to the counts of pins, or subtract it.
 * When the block's slot changes, subtract the old size and add the new one. */
void kv_ssd_pinned_locked(struct kv_cache *cache, const struct kv_block *block,
			  bool more);
/* Return the size of the slot that the block has or will have on SSD. */
uint64_t kv_ssd_slot_bytes(struct kv_cache *cache,
			   const struct kv_block *block);
/* Attach a slot that holds the block's bytes: at mount, or after a commit. */
int kv_extent_adopt(struct kv_cache *cache, struct kv_block *block,
		    uint64_t slot_id);
void kv_extent_attach_locked(struct kv_cache *cache, struct kv_block *block,
			     uint32_t file, uint32_t slot_number);
/* Take the block off the SSD: delete its record, and zero the slot's prologue.
 * Without @reuse, quarantine the slot until the next mount. */
void kv_extent_detach_locked(struct kv_cache *cache, struct kv_block *block,
			     bool reuse);
/* The device of the block failed: take the block off the SSD, but leave its
 * record in the index.  Remove the block, unless it is in DRAM. */
void kv_extent_lose_locked(struct kv_cache *cache, struct kv_block *block);
/* Return the bytes of the block's slot; 0: it is not on SSD. */
uint64_t kv_extent_bytes(struct kv_cache *cache, const struct kv_block *block);
/* Return the durable block in a slot of @file, which may be removed but still open;
 * NULL: none. */
struct kv_block *kv_extent_block(struct kv_cache *cache,
				 const struct kv_segfile *file,
				 uint32_t slot_number);
/*
 * Take a free slot of the same size, to which @block of a closed file is moved.
 * Without a free slot, evict up to @n blocks.  The caller then calls
 * kv_extent_moved_locked, or gives the slot up.
 *   -EAGAIN  deletions must end first
 *   -ENOSPC  no block may be evicted
 */
int kv_extent_take_beside_locked(struct kv_cache *cache,
				 const struct kv_block *block, size_t n,
				 uint64_t *ret_slot_id);
void kv_extent_moved_locked(struct kv_cache *cache, struct kv_block *block,
			    uint64_t slot_id);
void kv_extent_free_locked(struct kv_cache *cache, uint64_t slot_id);
/*
 * At mount:
 * adopt_stale  delete the record of a block that was removed from this slot
 * drop         forget @block and free its slot; the caller deletes the record
 * relocate     give the block a free slot in another file, where the caller
 *              copies it and its record; -ENOSPC
 */
int kv_extent_adopt_stale(struct kv_cache *cache, struct kv_space *space,
			  uint64_t slot_id);
void kv_extent_drop(struct kv_cache *cache, struct kv_block *block);
int kv_extent_relocate(struct kv_cache *cache, struct kv_block *block);

/* Work at a file, which may hang. */
struct kv_apart {
	struct kv_cache *cache;
	struct kv_device *device; /* constant, as the next four */
	int (*work)(struct kv_apart *apart);
	uint32_t id;
	uint64_t slot_bytes;
	bool new;
	int fd, status;
	uint64_t since;	 /* lock; when the present step of the work began */
	bool over, left; /* lock; left: nobody waits for the work any more */
};
/*
 * Do the work.  Outside of STORE a thread does it, which is left behind if the
 * device fails, or if a step takes longer than the patience: the device has
 * failed then.  Return false if the thread was left behind: it frees @apart,
 * which was allocated on its own.
 */
bool kv_apart_run(struct kv_apart *apart);
/* The next step of the work begins. */
void kv_apart_step(struct kv_apart *apart);

/* ---- evict.c ---- */

/* Return whether one more pin of @space would take others' fair shares. */
bool kv_ssd_over_floor(const struct kv_cache *cache,
		       const struct kv_space *space, uint64_t slot_bytes);
/* Return the bytes that a pin of a block in a slot of @slot_bytes counts: at
 * least the share of the index that its record needs. */
uint64_t kv_ssd_pin_bytes(const struct kv_cache *cache, uint64_t slot_bytes);
/* Evict a block of @class for @taker (NULL: for nobody).  Other spaces keep
 * their guarantees. */
bool kv_ssd_evict_one_locked(struct kv_cache *cache, struct kv_ssd_class *class,
			     struct kv_space *taker);
/*
 * Make room for @taker in @class, which has no free slot.
 *   0        a block was evicted, or a file is being emptied for @class
 *   -ENOSPC  no block may be evicted, or no slot was free for seconds
 */
int kv_ssd_evict_for(struct kv_cache *cache, struct kv_ssd_class *class,
		     struct kv_space *taker);
/* Return whether @class will get a file soon.  Empty a file of another class if
 * that has blocks colder than all that @class could evict for @taker. */
bool kv_ssd_balance_locked(struct kv_cache *cache, struct kv_ssd_class *class,
			   struct kv_space *taker);
/* Evict the blocks of @file, which has an heir, except those to be moved.  Put
 * the numbers of the latter into @numbers, which has room for all blocks of the
 * file, and return how many there are.  Releases the lock. */
size_t kv_ssd_empty_file(struct kv_cache *cache, struct kv_segfile *file,
			 uint32_t *numbers);
/* Evict a block with the slot size of @file, to make room for moving one. */
bool kv_ssd_evict_beside_locked(struct kv_cache *cache,
				const struct kv_segfile *file);
/* Evict a block of any size: the index needs room for a record of @taker. */
bool kv_ssd_evict_record_locked(struct kv_cache *cache, struct kv_space *taker);
/* Evict a block of @space; or of any space of @tenant, for @space (or NULL). */
bool kv_ssd_evict_own_locked(struct kv_cache *cache, struct kv_space *space);
bool kv_ssd_evict_tenant_locked(struct kv_cache *cache,
				const struct kv_tenant *tenant,
				const struct kv_space *space);
/* Return whether @bytes more are within the SSD quota of the user or space @in. */
bool kv_ssd_fits(const struct kv_node *in, const struct kv_quota *quota,
		 uint64_t bytes);
/*
 * Evict blocks of @space, and of its tenant, until @bytes more are within the
 * quotas of both.
 *   -EDQUOT  no more blocks may be evicted
 *   -EBUSY   writes under way, which count in the quotas, must end first
 */
int kv_ssd_fit_quota_locked(struct kv_cache *cache, struct kv_space *space,
			    uint64_t bytes);

/* ---- writer.c ---- */

int kv_ssd_init(struct kv_cache *cache); /* -ENOMEM */
void kv_ssd_fini(struct kv_cache *cache);
/* Resume spaces that rest until a commit or a free slot. */
void kv_writer_rouse_locked(struct kv_cache *cache);
/* End the writer's linger: let it write the queued blocks at once. */
void kv_writer_hurry_locked(struct kv_cache *cache);
/* Start or stop the writer, the committer, the deleter and the mover.  Stopping
 * writes everything out first; -ETIMEDOUT: a request is stuck. */
int kv_writer_start(struct kv_cache *cache);
int kv_writer_stop(struct kv_cache *cache);
/* Queue the write of a block that is not on SSD yet (@must: a caller waits for
 * the block's durability); or take the block off the queue. */
void kv_write_enqueue_locked(struct kv_cache *cache, struct kv_block *block,
			     bool must);
void kv_write_dequeue_locked(struct kv_cache *cache, struct kv_block *block);
/* Queue blocks that an SSD quota of @space or its user has refused, as far as
 * they fit now. */
void kv_refused_queue_locked(struct kv_cache *cache, struct kv_space *space);
/* Return whether writes that are queued or under way will make slots clean, so
 * that these can be evicted. */
bool kv_writes_may_make_room_locked(const struct kv_cache *cache);
/* Return whether a caller waits for the durability of this dirty slot. */
bool kv_write_must(const struct kv_slot *slot);
/* Take @slot off the dirty slots: its block is written, removed or given up. */
void kv_dirty_drop_locked(struct kv_cache *cache, struct kv_slot *slot);
/* Write the blocks to other devices whose writes to @device, which failed, have
 * not ended. */
void kv_writes_leave_locked(struct kv_cache *cache, struct kv_device *device);
/* Count a failed write, and fail all flushes with @error. */
void kv_write_failed_locked(struct kv_cache *cache, int error);
/* Let the block in @slot, an orphan, no longer wait for its parent. */
void kv_orphan_drop_locked(struct kv_cache *cache, struct kv_slot *slot);

/* ---- commit.c ---- */

/* Return whether changes of snapshots may be written to the index now. */
bool kv_snapshots_dirty_locked(const struct kv_cache *cache);
/* Wake the committer, and the writer if it lingers; @urgent: a caller waits for
 * the commit. */
void kv_commit_kick_locked(struct kv_cache *cache, bool urgent);
/* Wake the committer if it rests: there are changes to commit, but no hurry. */
void kv_commit_note_locked(struct kv_cache *cache);
void *kv_committer(void *cache);
/* Queue an update of the block's record: its pin or mtime changed. -ENOMEM. */
int kv_update_locked(struct kv_cache *cache, struct kv_block *block);

/* ---- removed.c ---- */

/* Make a tombstone if @space is shared: the user has removed this block, so
 * other nodes must not bring it back. */
void kv_removed_add_locked(struct kv_cache *cache, struct kv_space *space,
			   const struct kv_key *key);
/* Remove the tombstone of a block that was saved again. */
void kv_removed_lift_locked(struct kv_cache *cache, struct kv_space *space,
			    const struct kv_key *key);
bool kv_is_removed_locked(struct kv_cache *cache, struct kv_space *space,
			  const struct kv_key *key);
/* Return whether the changes of tombstones up to number @changes are on disk. */
bool kv_removed_written_locked(const struct kv_cache *cache, uint64_t changes);
/* Return whether there are changed tombstones to be written now. */
bool kv_removed_dirty_locked(const struct kv_cache *cache);
/* End the pause after a failed write of STORE/removed. */
void kv_removed_retry_locked(struct kv_cache *cache);
/* Take the changed tombstones (NULL: none; -ENOMEM); write them without the
 * lock; end the write with its status, -EAGAIN if it was not begun. */
struct kv_removed_write;
int kv_removed_take_locked(struct kv_cache *cache,
			   struct kv_removed_write **ret_write);
int kv_removed_write(struct kv_cache *cache, struct kv_removed_write *write);
void kv_removed_end_locked(struct kv_cache *cache,
			   struct kv_removed_write *write, int status);
/* At mount, once all blocks are known: read the tombstones of STORE/removed. */
int kv_removed_adopt(struct kv_cache *cache);
/* Cut STORE/removed to the size that a smaller cap allows. */
int kv_removed_trim(struct kv_cache *cache);
void kv_removed_free(struct kv_removed *removed); /* NULL: nothing */

/* ---- flush.c ---- */

/* End all flushes that are done; with an @error, fail all of them. */
void kv_flushes_settle_locked(struct kv_cache *cache, int error);
/* End the flushes of @space that are done. */
void kv_flushes_settle_space_locked(struct kv_cache *cache,
				    struct kv_space *space);
/* Queue some of the writes that flushes of a space wait for. */
void kv_flushes_collect_locked(struct kv_cache *cache);
/* Fail all flushes of @space; NULL: those of all spaces, and all syncs. */
void kv_flushes_fail_locked(struct kv_cache *cache, struct kv_space *space,
			    int error);
/* Remove @block, whose bytes a client has changed after the seal; fail flushes
 * and syncs that wait for the block, and remember its key until it is saved
 * again. */
void kv_block_changed_locked(struct kv_cache *cache, struct kv_block *block);
/* Fail the flushes that wait for a snapshot of @space. */
void kv_flushes_fail_snapshot_locked(struct kv_cache *cache,
				     struct kv_space *space, int error);
/* Fail flushes that wait for unwritten tombstones up to change @changes. */
void kv_flushes_fail_removals_locked(struct kv_cache *cache, uint64_t changes,
				     int error);
/* End the syncs of the block in @slot with @error. */
void kv_syncs_end_locked(struct kv_cache *cache, struct kv_slot *slot,
			 int error);
/* Let the syncs of a block that became durable wait for its pin and mtime. */
void kv_syncs_durable_locked(struct kv_cache *cache, struct kv_slot *slot);
/* End the syncs for which all updates of records are committed. */
void kv_syncs_settle_locked(struct kv_cache *cache);
/* End the wait of flushes for @slot: its file has the bytes, or never will. */
void kv_flushes_written_locked(struct kv_cache *cache, struct kv_slot *slot);
/* Let flushes of @space wait for a deletion that was not queued at first. */
void kv_flushes_queued_locked(struct kv_cache *cache, struct kv_space *space);
/* Let flushes that wait for @slot also wait for later changes of its record. */
void kv_flushes_prolong_locked(struct kv_cache *cache,
			       const struct kv_slot *slot);

/* ---- deletion.c ---- */

void kv_deletions_free(struct kv_cache *cache);
/* Delete the record of a slot that a block of @space had, zero its prologue
 * and, if @reuse, free the slot. */
void kv_extent_delete_locked(struct kv_cache *cache, struct kv_space *space,
			     uint64_t slot_id, bool reuse);
/* For the committer: take all deletions; delete as many of their records in
 * @txn as a short time allows; note that the transaction has ended. */
void kv_deletions_take_locked(struct kv_cache *cache);
int kv_deletions_record(struct kv_cache *cache, struct kv_txn *txn);
void kv_deletions_recorded_locked(struct kv_cache *cache, int status);
/* Queue deletions for which there was no memory before. */
void kv_deletions_requeue_locked(struct kv_cache *cache);
/* Let the deleter sweep all files before any of their free slots is taken. */
void kv_sweep_later(struct kv_cache *cache);
/* Compare two structures by their first member, a uint64_t, for qsort(3). */
int kv_by_u64(const void *a, const void *b);
/* Delete the record and the token ids of a slot in @txn. */
int kv_record_delete(struct kv_txn *txn, uint64_t slot_id);
/* At mount: delete the records and the token ids of slots, and the records of
 * files, in transactions of their own. */
int kv_records_delete(struct kv_cache *cache, uint64_t *slots, size_t n_slots,
		      const uint32_t *files, size_t n_files);
void *kv_deleter(void *cache);
/* Sync files.  An error of a device that fails with it is not returned, and a
 * device that fails meanwhile is not waited for. */
int kv_segfiles_sync(struct kv_cache *cache, struct kv_segfile *const *files,
		     size_t n);

/* ---- move.c ---- */

/* Empty files, one after the other: the tick of ssd->moves.thread.  A stop
 * waits for the copy under way, but not for moves whose commit is due. */
void kv_mover_tick(void *cache);
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
/* For the committer: take the moves that are COPIED; put their records into
 * @txn; note that the transaction has ended. */
void kv_moves_take_locked(struct kv_cache *cache);
int kv_moves_record(struct kv_cache *cache, struct kv_txn *txn);
void kv_moves_recorded_locked(struct kv_cache *cache, int status);

/*
 * At mount: check whether the tier holds more than its cap allows.
 *   0        the blocks fit, or there is no tier
 *   1        the blocks do not fit: call kv_shrink
 *   -ENOSPC  the pinned blocks do not fit, and ssd_evict is not given
 */
int kv_shrink_check(struct kv_cache *cache, char **ret_why);
/* At mount: evict blocks until the tier fits its cap, and warn the user. */
int kv_shrink(struct kv_cache *cache);

/* ---- health.c ---- */

/* Count a read of a block that ended with @status. */
void kv_health_note(struct kv_cache *cache, const struct kv_device *device,
		    int status);
/* Return whether blocks on @device are misses, because it failed or does not
 * answer. */
bool kv_health_offline_locked(const struct kv_cache *cache,
			      const struct kv_device *device);
/* Return the device of the block's slot on SSD; STORE if it has none. */
const struct kv_device *kv_device_of(struct kv_cache *cache,
				     const struct kv_block *block);
/* Count stuck requests, those of failed devices only if @all, and a stuck
 * transaction of the index. */
struct kv_ring_stuck kv_health_stuck_locked(struct kv_cache *cache, bool all);
/* Look for stuck requests, and probe an offline tier; called once a second.
 * Return whether any request is stuck. */
bool kv_health_check_locked(struct kv_cache *cache);
/* Read a page of a segment file of @device and wait.  Return whether that
 * succeeded. */
bool kv_health_probe(struct kv_cache *cache, const struct kv_device *device);

#endif
