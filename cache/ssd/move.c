/* SPDX-License-Identifier: Apache-2.0 */
/*
 * move.c - segment files are emptied, so that they get slots of another size.
 *
 * evict.c chooses a file and the class that gets it, its heir.  No slot of the
 * file is taken from then on.  Blocks that may go are evicted.  Blocks that must
 * not go, because they are pinned, guaranteed or open, or that are warmer than
 * the heir's, are moved to other files of their size, some at a time.  A file
 * that cannot be emptied is used again as before.
 *
 * A move copies the slot as it is, prologue and all: whoever reads the old one
 * meanwhile, or after a crash, has the same bytes under the same generation.
 *
 * OWNS       moves->files and the thread that empties them, one after the other;
 *            a block's new slot until the block has it.
 *
 * STATES     of a move, and the function that makes each step:
 *
 *              (new) -> COPIED     move_some: read, checked, written, synced
 *             COPIED -> RECORDING  kv_moves_take_locked
 *          RECORDING -> RECORDED   kv_moves_recorded_locked: the index has both
 *                                  records, and the block its new slot
 *           RECORDED -> (over)     the next commit, without the old record
 *
 * INVARIANTS
 *   (1) The new record is committed after its bytes were synced, and only then
 *       has the block the new slot; the old one is deleted then as any other
 *       is: its record, its prologue, and then it may be taken.
 *   (2) Both records are the same until one of them is deleted, which is in the
 *       next transaction, before any update of the other.
 *   (3) A block that was removed, or has lost its slot, or is being read into
 *       memory when its move is committed, is not moved: the new slot goes.
 *   (4) A file is on moves->files while it is ->emptying.  Afterwards it has no
 *       block and waits for its heir, or has no heir.
 *   (5) moves->n counts those that are not RECORDED; each has a reference to its
 *       block.
 *
 * LOCKING    cache->lock; none during I/O.  Those RECORDING and RECORDED are the
 *            committer's.
 */
#include "cache/ssd/ssd.h"
#include "cache/core/core.h"
#include "cache/core/hooks.h"
#include "cache/core/table.h"
#include "common/copy.h"
#include "common/crash_point.h"

#define AT_ONCE 32u
#define PATIENCE_NS 5000000000u	 /* without getting on */
#define AGAIN_NS 2000000000u	 /* until a file is tried once more */
#define AWAITED_NS 200000000u	 /* before the heir evicts its own, too */
#define KEPT_NS 2000000000u	 /* for its heir */
#define WAIT_NS 20000000u	 /* for deletions, and writes under way */
#define PERIOD_NS 3600000000000u /* it is woken */

struct kv_move {
	struct kv_io io; /* first */
	struct kv_cache *cache;
	struct kv_block *block;
	uint64_t from, to; /* slots */
	struct kv_slot_record record;
	uint8_t *data;
	uint64_t bytes;
	bool put;	/* its record is in the transaction */
	bool token_ids; /* the index may have them */
	uint64_t stale; /* RECORDED: the slot whose record is to go */
	TAILQ_ENTRY(kv_move) link;
};

static bool stopping(const struct kv_cache *cache)
{
	return kv_periodic_stopping(&cache->ssd.moves.thread);
}

/* ---- one block ---- */

/* The block is where it was, and may be elsewhere. */
static bool holds(const struct kv_move *move)
{
	const struct kv_block *block = move->block;

	return !(block->flags & (BLOCK_REMOVED | BLOCK_READING)) &&
	       kv_slot_id(block->file, block->slot_number) == move->from;
}

/* The block has the new slot, or that goes. */
static void settle(struct kv_move *move, bool moved)
{
	struct kv_cache *cache = move->cache;
	struct kv_block *block = move->block;

	kv_assert_locked(&cache->lock);
	if (moved)
		kv_extent_moved_locked(cache, block, move->to);
	else
		kv_extent_give_up_locked(cache, kv_block_space(cache, block),
					 move->to);
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

/* A request that was waited for too long has ended. */
static void ended_late(struct kv_io *io, int status)
{
	struct kv_move *move = (struct kv_move *)io;
	struct kv_cache *cache = move->cache;

	(void)status;
	kv_lock(cache);
	cancel(move);
	kv_unlock(cache);
}

/* It is the first of @n.  -EAGAIN, -ENOSPC, -ENOMEM. */
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
	move->bytes = KV_PAGE + kv_round_up(block->length, KV_PAGE);
	move->data = kv_pages_new(move->bytes);
	block->refs++; /* it is not evicted to make place for itself */
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

/* -ETIMEDOUT: @move is the request's. */
static int request(struct kv_move *move, enum kv_io_op op, uint64_t slot_id)
{
	struct kv_cache *cache = move->cache;
	struct kv_segfile *file;

	kv_lock(cache);
	file = kv_segfile_at(cache, (uint32_t)(slot_id >> 32));
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
	return kv_ring_wait(cache->ring, &move->io);
}

/* What was read is the block that the index has there. */
static int check(struct kv_move *move)
{
	struct kv_cache *cache = move->cache;
	const struct kv_slot_record *record = &move->record;
	struct kv_prologue prologue;
	struct kv_digest digest;
	int r = kv_index_get(cache->index, move->from, &move->record);

	if (r < 0)
		return r;
	memcpy(&prologue, move->data, sizeof(prologue));
	r = kv_prologue_check(&prologue, cache->info.store);
	if (r < 0)
		return r;
	if (record->generation != prologue.record.generation ||
	    record->length != move->block->length ||
	    memcmp(record->key, move->block->key, sizeof(record->key)) != 0)
		return -EBADMSG;
	digest = kv_digest_of(move->data + KV_PAGE, record->length);
	return memcmp(digest.b, record->digest, sizeof(digest.b)) == 0
		       ? 0
		       : -EBADMSG;
}

static int copy(struct kv_move *move)
{
	int r = request(move, KV_IO_READ, move->from);

	if (r == 0)
		r = check(move);
	if (r == 0)
		r = request(move, KV_IO_WRITE, move->to);
	KV_POINT("move.written");
	return r;
}

/* ---- one file ---- */

/* Their files, each once.  What fails is over with. */
static void sync_all(struct kv_cache *cache, struct kv_move_list *batch)
{
	struct kv_move *move, *next;
	int r = 0;

	for (move = TAILQ_FIRST(batch); move && r == 0; move = next) {
		next = TAILQ_NEXT(move, link);
		if (next && next->to >> 32 == move->to >> 32)
			continue;
		kv_unlock(cache);
		r = request(move, KV_IO_SYNC, move->to);
		kv_lock(cache);
		if (r == -ETIMEDOUT)
			TAILQ_REMOVE(batch, move, link);
	}
	KV_POINT("move.synced");
	while (r < 0 && (move = TAILQ_FIRST(batch))) {
		TAILQ_REMOVE(batch, move, link);
		cancel(move);
	}
}

/* Copy some of the blocks in @file; 0, or why one could not be. */
static int copy_some(struct kv_cache *cache, const struct kv_segfile *file,
		     const uint32_t *numbers, size_t n,
		     struct kv_move_list *batch)
{
	unsigned copied = 0;
	int r = 0;

	for (size_t i = 0; i < n && copied < AT_ONCE && r == 0; i++) {
		struct kv_block *block = kv_table_at(&cache->table, numbers[i]);
		struct kv_move *move;

		if (block->file != file->id ||
		    (block->flags & (BLOCK_REMOVED | BLOCK_READING)))
			continue;
		r = move_new(cache, block, n - i, &move);
		if (r < 0)
			break;
		kv_unlock(cache);
		r = copy(move);
		kv_lock(cache);
		if (r == 0)
			TAILQ_INSERT_TAIL(batch, move, link);
		else if (r != -ETIMEDOUT)
			cancel(move);
		copied++;
	}
	return r;
}

/* False: there is no place for them, or they cannot be read. */
static bool move_some(struct kv_cache *cache, const struct kv_segfile *file,
		      const uint32_t *numbers, size_t n)
{
	struct kv_moves *moves = &cache->ssd.moves;
	struct kv_move_list batch = TAILQ_HEAD_INITIALIZER(batch);
	int r = copy_some(cache, file, numbers, n, &batch);

	if (TAILQ_EMPTY(&batch))
		return r == 0 || r == -EAGAIN;
	sync_all(cache, &batch);
	TAILQ_CONCAT(&moves->copied, &batch, link);
	while (moves->n && !stopping(cache)) {
		kv_commit_kick_locked(cache, true);
		kv_cond_wait(cache, &cache->ssd.done, WAIT_NS);
	}
	return true;
}

/* Is it empty in the end? */
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

static void tick(void *arg)
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

void kv_mover_init(struct kv_cache *cache)
{
	struct kv_moves *moves = &cache->ssd.moves;

	TAILQ_INIT(&moves->files);
	TAILQ_INIT(&moves->copied);
	TAILQ_INIT(&moves->recording);
	TAILQ_INIT(&moves->recorded);
}

int kv_mover_start(struct kv_cache *cache)
{
	return kv_periodic_start(&cache->ssd.moves.thread, "kvfs-move",
				 PERIOD_NS, tick, cache);
}

void kv_mover_stop(struct kv_cache *cache)
{
	kv_periodic_stop(&cache->ssd.moves.thread);
}

/* ---- the committer's part ---- */

bool kv_moves_to_record(const struct kv_ssd *ssd)
{
	return !TAILQ_EMPTY(&ssd->moves.copied);
}

void kv_moves_take_locked(struct kv_cache *cache)
{
	struct kv_moves *moves = &cache->ssd.moves;
	struct kv_move *move;

	kv_assert_locked(&cache->lock);
	TAILQ_FOREACH(move, &moves->copied, link) {
		const struct kv_block *block = move->block;
		const struct kv_layout *layout =
			kv_block_space(cache, block)->layout;

		/* The record of its file is not this round's affair. */
		move->put = holds(move) &&
			    kv_segfile_at(cache, (uint32_t)(move->to >> 32))
				    ->recorded;
		move->token_ids = layout && layout->token_ids;
		move->record.mtime_ns = block->mtime_ns;
		move->record.atime = block->atime;
		move->record.hits = block->hits;
		move->record.pinned = kv_block_pinned_by_user(cache, block);
	}
	TAILQ_CONCAT(&moves->recording, &moves->copied, link);
}

static int put_one(struct kv_cache *cache, struct kv_txn *txn,
		   struct kv_move *move)
{
	_cleanup_(kv_freep) struct kv_token_ids *ids = NULL;
	struct kv_slot_record record;
	int r;

	move->put = move->put && kv_txn_has_room(txn, KV_PUT_FAR);
	if (!move->put)
		return 0;
	if (move->token_ids)
		(void)kv_index_get_token_ids(cache->index, move->from, &record,
					     &ids);
	r = kv_txn_put_slot(txn, move->to, &move->record);
	if (r < 0 || !ids ||
	    !kv_txn_has_room_for_ids(txn, ids->n, ids->extras_len, KV_PUT_FAR))
		return r;
	return kv_txn_put_token_ids(txn, move->to, move->record.generation,
				    ids);
}

int kv_moves_record(struct kv_cache *cache, struct kv_txn *txn)
{
	struct kv_moves *moves = &cache->ssd.moves;
	struct kv_move *move;
	int r = 0;

	TAILQ_FOREACH(move, &moves->recorded, link) {
		if (r == 0)
			r = kv_txn_delete_slot(txn, move->stale);
		if (r == 0 && move->token_ids)
			r = kv_txn_delete_token_ids(txn, move->stale);
	}
	TAILQ_FOREACH(move, &moves->recording, link)
		if (r == 0)
			r = put_one(cache, txn, move);
	return r;
}

static void free_all(struct kv_move_list *list)
{
	struct kv_move *move;

	while ((move = TAILQ_FIRST(list))) {
		TAILQ_REMOVE(list, move, link);
		free(move);
	}
}

void kv_moves_recorded_locked(struct kv_cache *cache, int status)
{
	struct kv_moves *moves = &cache->ssd.moves;
	struct kv_move *move;

	kv_assert_locked(&cache->lock);
	if (status == 0)
		free_all(&moves->recorded);
	KV_POINT("move.recorded");
	while ((move = TAILQ_FIRST(&moves->recording))) {
		struct kv_space *space = kv_block_space(cache, move->block);
		const bool moved = status == 0 && move->put && holds(move);

		TAILQ_REMOVE(&moves->recording, move, link);
		cache->stats.moved_ssd += moved;
		settle(move, moved);
		if (status < 0 || !move->put) {
			free(move);
			continue;
		}
		/* Who removed it meanwhile waits for its new record, too. */
		if (!moved)
			kv_flushes_queued_locked(cache, space);
		move->stale = moved ? move->from : move->to;
		TAILQ_INSERT_TAIL(&moves->recorded, move, link);
	}
}

void kv_mover_fini(struct kv_cache *cache)
{
	free_all(&cache->ssd.moves.recorded);
}
