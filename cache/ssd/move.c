/* SPDX-License-Identifier: Apache-2.0 */
/*
 * move.c - empty segment files, to convert them to another slot size or to
 * remove them for a smaller cap.
 *
 * evict.c chooses a file and its heir, the class that gets the file.  From then
 * on no slot of the file is taken.  Blocks are evicted, or moved to other files
 * of their size if they are pinned, guaranteed, open, or warmer than the heir's
 * blocks.  A file that cannot be emptied is used again as before.  A move
 * copies the whole slot: a reader of the old slot, and a rebuild after a crash,
 * find the same bytes with the same generation in both slots.  Of a removed
 * block that is still open the bytes are copied, but not the prologue.
 *
 * At a mount with a smaller cap, the mount is refused before any change on disk
 * if pinned blocks do not fit.  Else the least valuable blocks are evicted until
 * the others fit, and files with the fewest blocks are emptied into free slots
 * of other files and removed.
 *
 * OWNS       moves->files and the thread that empties them, one after the
 *            other; a new slot until a block has it.
 *
 * STATES     of a move, and the function that makes each step:
 *
 *              (new) -> COPIED     move_some: read, checked, written, synced
 *             (new) -> (over)     move_some: a removed block has no record
 *             COPIED -> RECORDING  kv_moves_take_locked
 *          RECORDING -> (over)     kv_moves_recorded_locked: the index has the
 *                                  new record only, and the block its new slot
 *
 * INVARIANTS
 *   (1) The new record is committed after its bytes were synced, and only then
 *       does the block get the new slot.  Then the old slot is deleted.
 *   (2) One transaction puts the new record and deletes the old one.  Readers of
 *       the index that miss the old one wait for the end of the commit
 *       (kv_block_record).
 *   (3) A block that is being read into memory when the commit begins, or that is
 *       removed or loses its slot before the commit ends, is not moved: the new
 *       slot is freed.  Flushes after the removal of a block that is ->moving
 *       wait for this: a rebuild would find the block in the new slot.
 *   (4) A file is on moves->files while it is ->emptying.  Afterwards it is
 *       empty and waits for its heir, or has no heir.
 *   (5) moves->n counts the moves that are not over; each has a reference
 *       to its block.
 *   (6) kv_shrink deletes a record before its slot is overwritten, and syncs a
 *       copy before a record names it: a kill loses no block that is to stay.
 *   (7) Evictions by kv_shrink may leave prologues in free slots.  The caller
 *       has marked the store as in use, so these slots are swept before use.
 *
 * LOCKING    cache->lock; none during I/O, except in kv_shrink, before any
 *            other thread starts.  Moves that are RECORDING are the
 *            committer's.
 */
#include "cache/ssd/ssd.h"
#include "cache/core/causes.h"
#include "cache/core/hooks.h"
#include "common/copy.h"
#include "common/crash_point.h"
#include "common/bytes.h"
#include "index/segfile.h"

#define PIECE (1u << 20) /* bytes of a slot that kv_shrink copies at once */
#define AT_ONCE 32u
#define PATIENCE_NS 5000000000u /* longest emptying without progress */
#define AGAIN_NS 2000000000u /* pause before emptying a file is tried again */
/* time after which the heir may evict blocks of its own */
#define AWAITED_NS 1000000000u
/* time for which an emptied file is kept for its heir */
#define KEPT_NS 2000000000u
/* pause of the mover while deletions and writes are under way */
#define WAIT_NS 20000000u

struct kv_move {
	struct kv_io io; /* first member */
	struct kv_cache *cache;
	struct kv_block *block;
	uint64_t from, to; /* ids of the old and the new slot */
	struct kv_slot_record record;
	uint8_t *data;
	uint64_t bytes;
	bool removed;	/* the block was removed before the move */
	bool put;	/* the transaction has the new record of the block */
	bool token_ids; /* the index may have token ids of the block */
	TAILQ_ENTRY(kv_move) link;
};

static bool stopping(const struct kv_cache *cache)
{
	return kv_periodic_stopping(&cache->ssd.moves.thread);
}

/* ---- one block ---- */

/* Return whether the block still has its old slot. */
static bool has_old_slot(const struct kv_move *move)
{
	const struct kv_block *block = move->block;

	return (move->removed || !(block->flags & BLOCK_REMOVED)) &&
	       kv_slot_id(block->file, block->slot_number) == move->from;
}

/* End a move: give the block its new slot if @moved, else free the new slot. */
static void settle(struct kv_move *move, bool moved)
{
	struct kv_cache *cache = move->cache;
	struct kv_block *block = move->block;
	struct kv_space *space = kv_block_space(cache, block);

	kv_assert_locked(&cache->lock);
	if (moved)
		kv_extent_moved_locked(cache, block, move->to);
	else
		kv_extent_give_up_locked(cache, space, move->to);
	if (block->moving && (block->flags & BLOCK_REMOVED)) {
		space->doomed--;
		kv_flushes_queued_locked(cache, space);
	}
	block->moving = 0;
	kv_pages_free(kv_steal(move->data), move->bytes);
	block->refs--;
	cache->ssd.moves.n--;
	kv_block_settle_locked(cache, block);
	pthread_cond_broadcast(&cache->ssd.done);
}

static void cancel(struct kv_move *move)
{
	settle(move, false);
	free(move);
}

/* End a move after its request, whose waiter had timed out. */
static void ended_late(struct kv_io *io, int status)
{
	struct kv_move *move = (struct kv_move *)io;
	struct kv_cache *cache = move->cache;

	(void)status;
	kv_lock(cache);
	cancel(move);
	kv_unlock(cache);
}

/* Begin the move of @block, the first of @n blocks to be moved.  -EAGAIN:
 * deletions must end first; -ENOSPC; -ENOMEM. */
static int move_new(struct kv_cache *cache, struct kv_block *block, size_t n,
		    struct kv_move **ret_move)
{
	struct kv_move *move = calloc(1, sizeof(*move));
	int r = -ENOMEM;

	kv_assert_locked(&cache->lock);
	if (!move)
		return r;
	move->cache = cache;
	move->block = block;
	move->from = kv_slot_id(block->file, block->slot_number);
	move->removed = block->flags & BLOCK_REMOVED;
	move->bytes = KV_PAGE + kv_round_up(block->length, KV_PAGE);
	move->data = kv_pages_new(move->bytes);
	block->refs++; /* lest the block is evicted to make room for its copy */
	if (move->data)
		r = kv_extent_take_beside_locked(cache, block, n, &move->to);
	if (r < 0) {
		kv_pages_free(move->data, move->bytes);
		free(move);
		block->refs--;
		kv_block_settle_locked(cache, block);
		return r;
	}
	cache->ssd.moves.n++;
	*ret_move = move;
	return 0;
}

/* Send a request for a whole slot and wait. -ETIMEDOUT: the request owns @move,
 * and frees it when it ends. -ENOENT: no write, as the block left its slot. */
static int request(struct kv_move *move, enum kv_io_op op, uint64_t slot_id)
{
	struct kv_cache *cache = move->cache;
	struct kv_segfile *file;
	int r;

	kv_lock(cache);
	if (op == KV_IO_WRITE && !has_old_slot(move)) {
		kv_unlock(cache);
		return -ENOENT;
	}
	move->block->moving |= op == KV_IO_WRITE && !move->removed;
	file = kv_segfile_of(cache, slot_id);
	move->io = (struct kv_io){
		.op = op,
		.fd = file->fd,
		.buffer = -1,
		.data = move->data,
		.offset = (uint32_t)slot_id * file->slot_bytes,
		.bytes = move->bytes,
		.done = ended_late,
	};
	kv_unlock(cache);
	r = kv_ring_wait(file->device->ring, &move->io);
	kv_lock(cache);
	if (r != -ETIMEDOUT && op == KV_IO_WRITE)
		(void)kv_device_note_locked(cache, file->device, r);
	else if (r < 0 && r != -ETIMEDOUT && op == KV_IO_SYNC)
		(void)kv_device_fail_locked(cache, file->device, r);
	kv_unlock(cache);
	return r;
}

/* Read the block, check it against the index, and write it to the new slot. */
static int copy(struct kv_move *move)
{
	struct kv_cache *cache = move->cache;
	const struct kv_slot_record *record = &move->record;
	struct kv_prologue prologue;
	uint64_t unused;
	int r = request(move, KV_IO_READ, move->from);

	if (r == 0 && move->removed) {
		memset(move->data, 0, KV_PAGE);
		kv_lock(cache);
		if (kv_record_in_memory(cache, move->block, &move->record,
					&unused) > 0)
			r = -ENOENT;
		kv_unlock(cache);
	} else if (r == 0) {
		r = kv_index_get(cache->index, move->from, &move->record, NULL);
	}
	if (r == 0 && !move->removed) {
		memcpy(&prologue, move->data, sizeof(prologue));
		r = kv_prologue_check(&prologue, cache->info.store);
	}
	if (r == 0 && !move->removed &&
	    (record->generation != prologue.record.generation ||
	     record->length != move->block->length ||
	     memcmp(record->key, move->block->key, sizeof(record->key)) != 0))
		r = -EBADMSG;
	if (r == 0)
		r = kv_record_agrees(record, move->data + KV_PAGE)
			    ? request(move, KV_IO_WRITE, move->to)
			    : -EBADMSG;
	KV_POINT("move.written");
	return r;
}

/* ---- one file ---- */

/* Copy and sync some blocks of @file, and wait until their records are
 * committed.  Return false if a block finds no room or cannot be read. */
static bool move_some(struct kv_cache *cache, const struct kv_segfile *file,
		      const uint32_t *numbers, size_t n)
{
	struct kv_moves *moves = &cache->ssd.moves;
	struct kv_move_list batch = TAILQ_HEAD_INITIALIZER(batch);
	struct kv_move *move, *next;
	unsigned copied = 0;
	int r = 0;

	for (size_t i = 0; i < n && copied < AT_ONCE && r == 0; i++) {
		struct kv_block *block = kv_table_at(&cache->table, numbers[i]);

		if (block->file != file->id || (block->flags & BLOCK_READING))
			continue;
		r = move_new(cache, block, n - i, &move);
		if (r < 0)
			break;
		kv_unlock(cache);
		r = copy(move);
		kv_lock(cache);
		if (r == 0 && move->removed) {
			settle(move, true);
			free(move);
		} else if (r == 0) {
			TAILQ_INSERT_TAIL(&batch, move, link);
		} else if (r != -ETIMEDOUT) {
			/* Removing a block while it is copied is no failure. */
			r = has_old_slot(move) ? r : 0;
			cancel(move);
		}
		copied++;
	}
	if (TAILQ_EMPTY(&batch))
		return r == 0 || r == -EAGAIN;
	/* Sync each file once. */
	r = 0;
	for (move = TAILQ_FIRST(&batch); move && r == 0; move = next) {
		next = TAILQ_NEXT(move, link);
		if (next && next->to >> 32 == move->to >> 32)
			continue;
		kv_unlock(cache);
		r = request(move, KV_IO_SYNC, move->to);
		kv_lock(cache);
		if (r == -ETIMEDOUT)
			TAILQ_REMOVE(&batch, move, link);
	}
	KV_POINT("move.synced");
	while (r < 0 && (move = TAILQ_FIRST(&batch))) {
		TAILQ_REMOVE(&batch, move, link);
		cancel(move);
	}
	TAILQ_CONCAT(&moves->copied, &batch, link);
	/* Not for moves whose requests do not end. */
	while ((!TAILQ_EMPTY(&moves->copied) ||
		!TAILQ_EMPTY(&moves->recording)) &&
	       !stopping(cache)) {
		kv_commit_kick_locked(cache, true);
		kv_cond_wait(cache, &cache->ssd.done, WAIT_NS);
	}
	return true;
}

/* Evict and move the blocks of @file.  Return whether the file is empty. */
static bool empty(struct kv_cache *cache, struct kv_segfile *file)
{
	_cleanup_(kv_freep) uint32_t *numbers =
		malloc(file->slots * sizeof(*numbers));
	uint64_t until = kv_now_ns() + PATIENCE_NS;
	bool can = numbers;

	while (can && file->used && !stopping(cache) && kv_now_ns() < until) {
		const uint32_t used = file->used;
		const size_t n = kv_ssd_empty_file(cache, file, numbers);

		kv_commit_kick_locked(cache, true);
		if (n > 0)
			can = move_some(cache, file, numbers, n);
		if (file->used < used)
			until = kv_now_ns() + PATIENCE_NS;
		else if (can)
			kv_cond_wait(cache, &cache->ssd.done, WAIT_NS);
	}
	return !file->used;
}

void kv_mover_tick(void *arg)
{
	struct kv_cache *cache = arg;
	struct kv_moves *moves = &cache->ssd.moves;
	struct kv_segfile *file;

	kv_lock(cache);
	while ((file = TAILQ_FIRST(&moves->files)) && !stopping(cache)) {
		const bool done = empty(cache, file);

		TAILQ_REMOVE(&moves->files, file, queue);
		file->emptying = false;
		if (!done) {
			file->heir->file_wait =
				(uint32_t)(cache->ssd.segment_bytes /
					   file->heir->slot_bytes);
			kv_extents_open_file(file);
		}
		file->until = kv_now_ns() + (done ? KEPT_NS : AGAIN_NS);
		pthread_cond_broadcast(&cache->ssd.done);
		kv_writer_rouse_locked(cache);
	}
	kv_unlock(cache);
}

void kv_segfile_empty_locked(struct kv_cache *cache, struct kv_segfile *file,
			     struct kv_ssd_class *heir,
			     const struct kv_space *wanted_by,
			     const struct kv_space *taker, bool spares)
{
	struct kv_moves *moves = &cache->ssd.moves;

	kv_assert_locked(&cache->lock);
	assert(!file->closed && !heir->awaited);
	kv_extents_close_file(file);
	heir->awaited = file;
	file->heir = heir;
	file->wanted_by = wanted_by->id;
	file->taker = taker ? taker->id : 0;
	file->spares = spares;
	file->emptying = true;
	file->until = kv_now_ns() + AWAITED_NS;
	TAILQ_INSERT_TAIL(&moves->files, file, queue);
	kv_periodic_wake(&moves->thread);
}

/* ---- for the committer ---- */

void kv_moves_take_locked(struct kv_cache *cache)
{
	struct kv_moves *moves = &cache->ssd.moves;
	struct kv_move *move;

	kv_assert_locked(&cache->lock);
	TAILQ_FOREACH(move, &moves->copied, link) {
		const struct kv_block *block = move->block;
		const struct kv_layout *layout =
			kv_block_space(cache, block)->layout;

		move->put =
			has_old_slot(move) && !(block->flags & BLOCK_READING);
		move->token_ids = layout && layout->token_ids;
		move->record.mtime_ns = block->mtime_ns;
		move->record.atime = block->atime;
		move->record.hits = block->hits;
		move->record.pinned = kv_block_pinned_by_user(cache, block);
	}
	TAILQ_CONCAT(&moves->recording, &moves->copied, link);
}

/* Put the record of a slot, and the token ids if there is room for them. */
static int put_record(struct kv_txn *txn, uint64_t slot_id,
		      const struct kv_slot_record *record,
		      const struct kv_token_ids *ids)
{
	int r = kv_txn_put_slot(txn, slot_id, record);

	if (r < 0 || !ids ||
	    !kv_txn_has_room_for_ids(txn, ids->n, ids->extras_len, KV_PUT_FAR))
		return r;
	return kv_txn_put_token_ids(txn, slot_id, record->generation, ids);
}

int kv_moves_record(struct kv_cache *cache, struct kv_txn *txn)
{
	struct kv_moves *moves = &cache->ssd.moves;
	struct kv_move *move;
	int r = 0;

	TAILQ_FOREACH(move, &moves->recording, link) {
		_cleanup_(kv_freep) struct kv_token_ids *ids = NULL;
		struct kv_slot_record record;

		if (r < 0)
			break;
		move->put = move->put && kv_txn_has_room(txn, KV_PUT_FAR);
		if (!move->put)
			continue;
		if (move->token_ids)
			r = kv_index_get(cache->index, move->from, &record,
					 &ids);
		/* -EIO: the batch's pages cannot be read either. */
		if (r != -EIO)
			r = put_record(txn, move->to, &move->record, ids);
		if (r == 0)
			r = kv_record_delete(txn, move->from);
	}
	return r;
}

void kv_moves_recorded_locked(struct kv_cache *cache, int status)
{
	struct kv_moves *moves = &cache->ssd.moves;
	struct kv_move *move;

	kv_assert_locked(&cache->lock);
	KV_POINT("move.recorded");
	while ((move = TAILQ_FIRST(&moves->recording))) {
		/* Move the block even if a read began meanwhile: the old record
		 * is deleted.  A read that finds the old prologue zeroed reads
		 * again, from the new slot. */
		const bool moved =
			status == 0 && move->put && has_old_slot(move);

		TAILQ_REMOVE(&moves->recording, move, link);
		cache->stats.moved_ssd += moved;
		settle(move, moved);
		free(move);
	}
}

/* ---- a smaller cap: what fits ---- */

/* Number of slots in use, and of files that they fill if packed by size. */
struct shrink_need {
	uint64_t records, files;
};

static struct shrink_need needs(const struct kv_cache *cache, bool pinned)
{
	const struct kv_ssd *ssd = &cache->ssd;
	const struct kv_ssd_class *class;
	const struct kv_evict_list *list;
	struct shrink_need need = {0};

	LIST_FOREACH(class, &ssd->classes, link) {
		const uint64_t one = ssd->segment_bytes / class->slot_bytes;
		uint64_t slots = pinned ? 0 : class->total - class->free;

		if (pinned)
			TAILQ_FOREACH(list, &class->lists, link)
				slots += list->pinned;
		need.records += slots;
		need.files += (slots + one - 1) / one;
	}
	return need;
}

static bool fits(const struct kv_cache *cache, uint64_t cap,
		 const struct shrink_need *need)
{
	const uint64_t map = kv_index_map_bytes(cap);
	const uint64_t over =
		cache->ssd.sidecars - KV_MIN(cache->ssd.sidecars, map / 4);

	return need->records <= kv_index_records_max(cap) &&
	       2 * map + over + need->files * cache->ssd.segment_bytes <= cap;
}

int kv_shrink_check(struct kv_cache *cache, char **ret_why)
{
	const struct shrink_need pinned = needs(cache, true);
	struct shrink_need all = needs(cache, false);
	const uint64_t cap = cache->ssd.cap, unit = 1u << 20;
	uint64_t least = cap;

	all.files = KV_MAX(all.files, cache->ssd.live_files);
	if (!cache->ssd.on || fits(cache, cap, &all))
		return 0;
	for (uint32_t i = 1; i < cache->ssd.n_devices; i++)
		if (cache->ssd.devices[i].failed)
			return kv_why(ret_why, -ENODEV,
				      "ssd=%lluM is smaller, and store=%s is "
				      "missing: mount with it, or remove its "
				      "links in %s/segments",
				      (unsigned long long)(cap / unit),
				      cache->ssd.devices[i].path, cache->store);
	if (cache->config.ssd_evict || fits(cache, cap, &pinned))
		return 1;
	while (!fits(cache, least, &pinned))
		least = kv_round_up(least + 1, unit);
	return kv_why(ret_why, -ENOSPC,
		      "ssd=%lluM is too small: pinned blocks need %lluM "
		      "(ssd_evict evicts them)",
		      (unsigned long long)(cap / unit),
		      (unsigned long long)(least / unit));
}

/* ---- a smaller cap: victims ---- */

struct shrink {
	struct kv_cache *cache;
	uint64_t *victims; /* slot ids of the blocks that were evicted */
	size_t n_victims;
	uint8_t *piece;
	/* file written to since the last sync; NULL: none */
	struct kv_segfile *to;
	struct kv_txn *txn;
	size_t in_txn;
	uint64_t unreadable; /* number of blocks that could not be read */
};

/* Evict the coldest blocks until the others fit; with @regardless, guaranteed
 * blocks as well.  Return false if they do not fit. */
static bool evict_until_all_fit(struct shrink *shrink, bool regardless)
{
	const struct kv_giving giving = {.regardless = regardless};
	struct kv_cache *cache = shrink->cache;
	struct shrink_need need;

	while (need = needs(cache, false),
	       !fits(cache, cache->ssd.cap, &need)) {
		struct kv_coldest coldest = {0};
		const struct kv_ssd_class *class;
		struct kv_block *block;
		uint32_t number = KV_NONE;

		LIST_FOREACH(class, &cache->ssd.classes, link)
			kv_victim_look(&class->lists, &giving, &coldest);
		if (coldest.list)
			number = kv_policy_victim(&coldest.list->policy, NULL,
						  NULL);
		if (number == KV_NONE)
			return false;
		block = kv_table_at(&cache->table, number);
		shrink->victims[shrink->n_victims++] =
			kv_slot_id(block->file, block->slot_number);
		kv_cause_note_block(cache, block, KV_CAUSE_EVICTED_SSD);
		kv_extent_drop(cache, block);
		kv_evicted_locked(cache, SSD, block);
	}
	return true;
}

/* Evict pinned blocks: put them on the eviction lists, the oldest first. */
static int evict_pinned(struct shrink *shrink)
{
	struct kv_cache *cache = shrink->cache;
	/* sort key: atime in the upper half, block number in the lower one */
	_cleanup_(kv_freep) uint64_t *pinned =
		calloc(cache->table.used + 1u, sizeof(*pinned));
	size_t n = 0;
	bool all_fit;

	if (!pinned)
		return -ENOMEM;
	for (uint32_t i = 0; i < cache->table.used; i++) {
		const struct kv_block *block = kv_table_at(&cache->table, i);

		if (!(block->flags & BLOCK_REMOVED) && block->file != KV_NONE &&
		    (block->flags & BLOCK_PINNED))
			pinned[n++] = (uint64_t)block->atime << 32 | i;
	}
	qsort(pinned, n, sizeof(*pinned), kv_by_u64);
	for (size_t i = 0; i < n; i++)
		kv_extent_pin_locked(
			cache, kv_table_at(&cache->table, (uint32_t)pinned[i]),
			false);
	all_fit = evict_until_all_fit(shrink, true);
	for (size_t i = 0; i < n; i++) {
		struct kv_block *block =
			kv_table_at(&cache->table, (uint32_t)pinned[i]);

		if (block->flags & BLOCK_PINNED)
			kv_extent_pin_locked(cache, block, true);
	}
	return all_fit ? 0 : -ENOSPC;
}

/* ---- a smaller cap: files ---- */

static int by_used(const void *a, const void *b)
{
	const struct kv_segfile *const *x = a, *const *y = b;

	return (*x)->used < (*y)->used ? -1 : (*x)->used > (*y)->used;
}

/* Close the files that must go: those with the fewest blocks first, if other
 * files of their slot size have room for these blocks. */
static int choose_files(struct kv_cache *cache, struct kv_segfile ***ret_files,
			uint32_t *ret_n)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_segfile **files =
		calloc(ssd->live_files + 1u, sizeof(struct kv_segfile *));
	const uint64_t over = kv_sidecars_over(cache);
	uint32_t all = 0, n = 0;

	if (!files)
		return -ENOMEM;
	for (uint32_t id = 0; id < ssd->n_files; id++)
		if (ssd->files[id] && !ssd->files[id]->device->failed)
			files[all++] = ssd->files[id];
	qsort(files, all, sizeof(struct kv_segfile *), by_used);
	for (uint32_t i = 0; i < all && (all - n) * ssd->segment_bytes + over >
						ssd->file_budget;
	     i++) {
		const struct kv_ssd_class *class = files[i]->class;
		const uint64_t left = class->n_files - class->n_closed - 1;
		const struct kv_segfile *file;
		uint64_t used = 0;

		for (uint32_t j = 0; j < ssd->n_devices; j++)
			TAILQ_FOREACH(file, &class->files[j], link)
				used += file->used;
		if (left * files[i]->slots < used)
			continue;
		kv_extents_close_file(files[i]);
		files[n++] = files[i];
	}
	*ret_files = files;
	*ret_n = n;
	return 0;
}

static int sync_target(struct shrink *shrink)
{
	struct kv_segfile *to = shrink->to;

	shrink->to = NULL;
	return to && fdatasync(to->fd) < 0 ? -errno : 0;
}

static int commit_copies(struct shrink *shrink)
{
	int r = sync_target(shrink);

	KV_POINT("shrink.copied");
	shrink->in_txn = 0;
	if (r < 0) {
		kv_txn_abort(kv_steal(shrink->txn));
		return r;
	}
	r = kv_txn_commit(kv_steal(shrink->txn));
	KV_POINT("shrink.committed");
	return r;
}

/* Copy the block to a free slot of another file, and put the new record into
 * the transaction.  A block that cannot be read is lost. */
static int relocate(struct shrink *shrink, struct kv_block *block)
{
	struct kv_cache *cache = shrink->cache;
	const uint64_t old = kv_slot_id(block->file, block->slot_number);
	const uint64_t bytes = KV_PAGE + kv_round_up(block->length, KV_PAGE);
	struct kv_segfile *from = kv_segfile_at(cache, block->file), *to;
	_cleanup_(kv_freep) struct kv_token_ids *ids = NULL;
	struct kv_slot_record record;
	uint64_t new;
	int r = kv_extent_relocate(cache, block);

	if (r < 0)
		return r;
	to = kv_segfile_at(cache, block->file);
	new = kv_slot_id(to->id, block->slot_number);
	if (shrink->to && shrink->to != to)
		r = sync_target(shrink);
	shrink->to = to;
	for (uint64_t at = 0; r == 0 && at < bytes; at += PIECE) {
		const size_t n = KV_MIN(PIECE, bytes - at);
		const uint64_t read_at = (uint32_t)old * from->slot_bytes + at;
		const uint64_t write_at =
			block->slot_number * to->slot_bytes + at;
		ssize_t done;

		if (pread(from->fd, shrink->piece, n, (off_t)read_at) !=
		    (ssize_t)n) {
			r = -EBADMSG;
			break;
		}
		done = pwrite(to->fd, shrink->piece, n, (off_t)write_at);
		if (done != (ssize_t)n)
			r = done < 0 ? -errno : -EIO;
	}
	if (r == 0)
		r = kv_index_get(cache->index, old, &record, &ids);
	if (r < 0 && r != -EBADMSG)
		return r;
	if (r == -EBADMSG) {
		shrink->unreadable++;
		kv_cause_note_block(cache, block, KV_CAUSE_DAMAGED);
		kv_extent_drop(cache, block);
		return kv_record_delete(shrink->txn, old);
	}
	r = put_record(shrink->txn, new, &record, ids);
	return r < 0 ? r : kv_record_delete(shrink->txn, old);
}

/* Relocate the blocks of @file and remove the file.  The file stays until the
 * next mount if deletions are under way in it after a crash. */
static int remove_file(struct shrink *shrink, struct kv_segfile *file)
{
	struct kv_cache *cache = shrink->cache;
	char name[KV_SEGFILE_NAME];
	int r = kv_txn_begin(cache->index, &shrink->txn);

	for (uint32_t i = 0; r == 0 && i < file->slots; i++) {
		struct kv_block *block = kv_extent_block(cache, file, i);

		if (!block)
			continue;
		if (shrink->in_txn++ >= cache->ssd.round_max / 2 ||
		    !kv_txn_has_room(shrink->txn, 2 * KV_PUT_FAR)) {
			r = commit_copies(shrink);
			if (r == 0)
				r = kv_txn_begin(cache->index, &shrink->txn);
		}
		if (r == 0)
			r = relocate(shrink, block);
	}
	if (r == 0 && file->used == 0)
		r = kv_txn_delete(shrink->txn, KV_PART_SEGMENTS, file->id);
	if (r < 0) {
		kv_txn_abort(kv_steal(shrink->txn));
		return r;
	}
	r = commit_copies(shrink);
	if (r < 0 || file->used > 0)
		return r;
	kv_segfile_name(file->id, name);
	unlinkat(file->device->dir, name, 0);
	unlinkat(cache->ssd.devices[0].dir, name, 0);
	KV_POINT("shrink.unlinked");
	kv_segfile_forget(cache, file);
	return 0;
}

int kv_shrink(struct kv_cache *cache)
{
	_cleanup_(kv_freep) struct kv_segfile **files = NULL;
	_cleanup_(kv_freep) uint64_t *victims =
		calloc(cache->ssd.records + 1, sizeof(*victims));
	struct shrink shrink = {.cache = cache,
				.victims = victims,
				.piece = kv_pages_new(PIECE)};
	uint32_t n_files = 0;
	int r = victims && shrink.piece ? 0 : -ENOMEM;

	kv_assert_locked(&cache->lock);
	/* Guaranteed blocks fit the tier's bytes, but if their slots have many
	 * sizes they may need more files: evict some as a second step. */
	if (r == 0 && !evict_until_all_fit(&shrink, false) &&
	    !evict_until_all_fit(&shrink, true))
		r = evict_pinned(&shrink);
	if (r == 0)
		r = kv_records_delete(cache, victims, shrink.n_victims, NULL,
				      0);
	if (r == 0)
		r = choose_files(cache, &files, &n_files);
	for (uint32_t i = 0; r == 0 && i < n_files; i++)
		r = remove_file(&shrink, files[i]);
	kv_pages_free(shrink.piece, PIECE);
	cache->stats.io_errors += shrink.unreadable;
	if (r == 0 && shrink.n_victims)
		kv_warn(cache, "shrunk", "ssd=%lluM: %zu blocks evicted",
			(unsigned long long)(cache->ssd.cap >> 20),
			shrink.n_victims);
	if (r == 0 && shrink.unreadable)
		kv_warn(cache, "shrink_lost",
			"%llu blocks could not be read, and are lost",
			(unsigned long long)shrink.unreadable);
	return r;
}
