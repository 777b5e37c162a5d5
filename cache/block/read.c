/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read.c - blocks from SSD, read and verified: into their slots, then shown; or
 * on the caller's thread, into memory that is not the arena's.
 *
 * OWNS       every kv_read, and the threads that verify what was read; the
 *            memory of requests that nobody waits for any more.
 *
 * STATES     of a read, or of a move within DRAM, which is READ at once:
 *            SUBMITTED -> READ      read_done        (reactor thread)
 *                 READ -> ENDED     end              (verifier thread)
 *                 READ -> SUBMITTED once more, if it was damaged or failed
 *            A read that is stuck is SUBMITTED for as long as it takes, but
 *            nobody waits for it any more: kv_reads_expire_locked.
 *
 * INVARIANTS
 *   (1) While a block is BLOCK_READING exactly one read has it, holds a
 *       reference to it and has its FILLING slot.
 *   (2) Nobody sees the slot before digest, key, generation and length agree
 *       with the index.
 *
 * LOCKING    cache->lock, but not during I/O; verifier->lock for the queue, a
 *            leaf.
 */
#include "cache/block/block.h"
#include "cache/core/core.h"
#include "cache/core/hooks.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"
#include "cache/dram/dram.h"
#include "cache/ssd/ssd.h"
#include "common/copy.h"
#include "common/thread.h"

#define VERIFIERS 2

struct fetch {
	struct kv_io io; /* first */
	struct kv_cache *cache;
	struct kv_block *block;
	uint64_t room;
};

/* A read ended after all.  Until now the extent was the block's, too. */
static void ended_late(struct kv_io *io, int status)
{
	struct fetch *fetch = (struct fetch *)io;

	(void)status;
	kv_pages_free(io->data, fetch->room);
	kv_block_put(fetch->cache, fetch->block);
	free(fetch);
}

static int aim(struct fetch *fetch, uint8_t *data)
{
	struct kv_cache *cache = fetch->cache;
	struct kv_block *block = fetch->block;
	const struct kv_segfile *file;
	int r = 0;

	kv_lock(cache);
	if (block->file == KV_NONE) {
		r = -ENOENT;
	} else if (kv_health_offline_locked(cache)) {
		r = -EIO;
	} else {
		file = kv_segfile_at(cache, block->file);
		fetch->io = (struct kv_io){
			.op = KV_IO_READ,
			.fd = file->fd,
			.buffer = -1,
			.data = data,
			.offset = block->slot_number * file->slot_bytes,
			.bytes = KV_PAGE + kv_round_up(block->length, KV_PAGE),
			.done = ended_late,
		};
		block->refs++;
	}
	kv_unlock(cache);
	return r;
}

static int read_once(struct kv_cache *cache, struct kv_block *block,
		     uint8_t **data, uint64_t room)
{
	struct fetch *fetch = calloc(1, sizeof(*fetch));
	int r;

	if (!fetch)
		return -ENOMEM;
	fetch->cache = cache;
	fetch->block = block;
	fetch->room = room;
	r = aim(fetch, *data);
	if (r < 0) {
		free(fetch);
		return r;
	}
	r = kv_ring_wait(cache->ring, &fetch->io);
	if (r == -ETIMEDOUT) {
		*data = NULL; /* and fetch is the request's, too */
		return r;
	}
	free(fetch);
	kv_health_note(cache, r);
	kv_block_put(cache, block);
	return r;
}

/* A damaged block is forgotten, and its extent never used again. */
static void quarantine(struct kv_cache *cache, struct kv_block *block)
{
	kv_lock(cache);
	cache->stats.corrupt++;
	if (!(block->flags & BLOCK_REMOVED) && block->file != KV_NONE) {
		kv_extent_forget_locked(cache, block);
		cache->stats.bad_slots++;
		if (block->slot) {
			/* The slot has it whole: write it elsewhere. */
			kv_unpersisted_add_locked(cache, block->slot);
			kv_write_enqueue_locked(cache, block, false);
		} else {
			kv_block_remove_locked(cache, block);
		}
	}
	kv_unlock(cache);
}

/* The file is too short for it, or the device has lost what was there. */
static bool lost(int io)
{
	return io == -ENODATA || io == -EILSEQ;
}

/* Decide on a block whose second read ended with @io, or else its
 * verification with @r; returns what its readers are told. */
static int block_judge(struct kv_cache *cache, struct kv_block *block, int io,
		       int r)
{
	bool offline;

	if (io == 0 && r != -EBADMSG)
		return r;
	kv_lock(cache);
	offline = kv_health_offline_locked(cache);
	kv_unlock(cache);
	if (io < 0 && !lost(io) && (offline || !kv_health_probe(cache)))
		return r;
	quarantine(cache, block);
	return -EBADMSG;
}

struct kv_read {
	struct kv_io io; /* first, so that read_of is a cast */
	struct kv_cache *cache;
	struct kv_block *block;
	struct kv_slot *slot;
	struct kv_slot *from; /* held: the block is moved; or NULL */
	uint8_t *aside;	      /* the second try's, of an open slot; or NULL */
	struct kv_want *wants;
	uint64_t since; /* when somebody first waited for it */
	int status;
	bool again;   /* the second try */
	bool expired; /* nobody may wait for it */
	struct kv_read *bucket;
	STAILQ_ENTRY(kv_read) link;
};

struct kv_verifier {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	STAILQ_HEAD(, kv_read) queue;
	bool stop;
	unsigned n;
	pthread_t threads[VERIFIERS];
};

static struct kv_read **bucket_of(struct kv_cache *cache,
				  const struct kv_block *block)
{
	return &cache->reads[block->number % READ_BUCKETS];
}

/* No record: it was removed meanwhile, or the index has lost it. */
static int absent(struct kv_cache *cache, const struct kv_block *block)
{
	bool removed;

	kv_lock(cache);
	removed = block->flags & BLOCK_REMOVED;
	kv_unlock(cache);
	return removed ? -ENOENT : -EBADMSG;
}

static int digest_agrees(const uint8_t *slot_bytes,
			 const struct kv_slot_record *record)
{
	struct kv_digest digest =
		kv_digest_of(slot_bytes + KV_PAGE, record->length);

	return memcmp(digest.b, record->digest, sizeof(digest.b)) == 0
		       ? 0
		       : -EBADMSG;
}

/* Are these bytes, read from its extent, the block's?  0 and their prologue,
 * -EBADMSG, -ENOENT: it was removed.  Others may write there meanwhile. */
static int block_verify(struct kv_cache *cache, struct kv_block *block,
			const uint8_t *slot_bytes,
			struct kv_prologue *ret_prologue)
{
	struct kv_prologue prologue;
	struct kv_slot_record record;
	uint32_t space;
	bool removed;
	int r;

	kv_lock(cache);
	space = kv_block_space(cache, block)->id;
	removed = block->flags & BLOCK_REMOVED;
	kv_unlock(cache);
	r = kv_block_record(cache, block, &record);
	if (r < 0)
		return r == -ENOENT ? absent(cache, block) : r;
	/* A reader has it open; its prologue is zeroed already. */
	if (removed)
		return digest_agrees(slot_bytes, &record);
	memcpy(&prologue, slot_bytes, sizeof(prologue));
	r = kv_prologue_check(&prologue, cache->info.store);
	if (r < 0)
		return r;
	if (record.generation != prologue.record.generation ||
	    record.length != prologue.record.length ||
	    record.length != block->length || record.space != space ||
	    record.space != prologue.record.space ||
	    memcmp(record.key, block->key, sizeof(record.key)) != 0 ||
	    memcmp(record.key, prologue.record.key, sizeof(record.key)) != 0 ||
	    memcmp(record.digest, prologue.record.digest,
		   sizeof(record.digest)) != 0)
		return -EBADMSG;
	*ret_prologue = prologue;
	return digest_agrees(slot_bytes, &record);
}

int kv_block_fetch(struct kv_cache *cache, struct kv_block *block,
		   uint8_t **data, uint64_t room)
{
	struct kv_prologue prologue;
	int r = -EIO, io = 0;

	for (int try = 0; try < 2 && r < 0; try++) {
		io = read_once(cache, block, data, room);
		if (io == -ETIMEDOUT || io == -ENOENT || io == -ENOMEM)
			return io;
		r = io == 0 ? block_verify(cache, block, *data, &prologue) : io;
		if (r == -ENOENT) /* its removal was under way */
			return r;
	}
	return r < 0 ? block_judge(cache, block, io, r) : 0;
}

static void read_done(struct kv_io *io, int status)
{
	struct kv_read *read = (struct kv_read *)io;
	struct kv_verifier *verifier = read->cache->verifier;

	read->status = status;
	pthread_mutex_lock(&verifier->lock);
	STAILQ_INSERT_TAIL(&verifier->queue, read, link);
	pthread_cond_signal(&verifier->cond);
	pthread_mutex_unlock(&verifier->lock);
}

static uint64_t slot_bytes(const struct kv_block *block)
{
	return KV_PAGE + kv_round_up(block->length, KV_PAGE);
}

static void prepare(struct kv_read *read)
{
	const struct kv_segfile *file =
		kv_segfile_at(read->cache, read->block->file);

	read->io.op = KV_IO_READ;
	read->io.fd = file->fd;
	read->io.buffer = read->slot->segment->buffer;
	read->io.data = kv_slot_bytes(read->slot);
	read->io.offset = read->block->slot_number * file->slot_bytes;
	read->io.bytes = slot_bytes(read->block);
	read->io.done = read_done;
}

static void settle_all(struct kv_cache *cache, struct kv_read *read, int status)
{
	if (status == 0 || status == -ENOENT) { /* removed: look again */
		kv_wants_restart_locked(cache, &read->wants);
		return;
	}
	while (read->wants) {
		struct kv_want *want = read->wants;

		read->wants = want->next;
		if (want->next)
			want->next->prev = &read->wants;
		want->prev = NULL;
		kv_want_settle_locked(cache, want, status);
	}
}

void kv_reads_expire_locked(struct kv_cache *cache)
{
	const uint64_t patience = kv_health_patience(cache);
	const uint64_t now = kv_now_ns();
	struct kv_read *read;

	kv_assert_locked(&cache->lock);
	for (unsigned i = 0; i < READ_BUCKETS; i++)
		for (read = cache->reads[i]; read; read = read->bucket) {
			if (now - read->since < patience)
				continue;
			read->expired = true;
			settle_all(cache, read, -ETIMEDOUT);
		}
}

static void moved_locked(struct kv_read *read, int status)
{
	struct kv_cache *cache = read->cache;

	kv_assert_locked(&cache->lock);
	kv_slot_hold_locked(cache, read->from, -1);
	if (status < 0)
		kv_slot_give_locked(cache, read->slot);
	else
		kv_block_replace_locked(cache, read->block, read->from,
					read->slot);
}

static void landed_locked(struct kv_read *read, int status)
{
	struct kv_cache *cache = read->cache;
	struct kv_block *block = read->block;

	kv_assert_locked(&cache->lock);
	cache->stats.bytes_read_ssd += status == 0 ? read->io.bytes : 0;
	if (status == 0 && !(block->flags & BLOCK_REMOVED) && !block->slot &&
	    kv_class_fits(read->slot->segment->class,
			  kv_block_space(cache, block)))
		kv_slot_publish_locked(cache, read->slot, block);
	else
		kv_slot_give_locked(cache, read->slot);
}

static void end(struct kv_read *read, int status)
{
	struct kv_cache *cache = read->cache;
	struct kv_block *block = read->block;
	struct kv_read **link;

	kv_lock(cache);
	link = bucket_of(cache, block);
	while (*link != read)
		link = &(*link)->bucket;
	*link = read->bucket;
	block->flags &= ~BLOCK_READING & 0xff;
	cache->reads_ended++;
	cache->room = true;
	if (read->from)
		moved_locked(read, status);
	else
		landed_locked(read, status);
	settle_all(cache, read, status);
	block->refs--;
	kv_block_settle_locked(cache, block);
	kv_unlock(cache);
	kv_pages_free(read->aside, read->io.bytes);
	free(read);
}

/*
 * Where a client may write the bytes may not agree because of that, which says
 * nothing of the SSD: there the second try is judged elsewhere.  -ENOMEM.
 */
static int read_again(struct kv_read *read)
{
	if (kv_slot_is_open(read->slot)) {
		read->aside = kv_pages_new(read->io.bytes);
		if (!read->aside)
			return -ENOMEM;
		read->io.data = read->aside;
		read->io.buffer = -1;
	}
	read->again = true;
	kv_ring_submit(read->cache->ring, &read->io);
	return 0;
}

static void landed(struct kv_read *read, const struct kv_prologue *prologue)
{
	if (read->aside)
		memcpy(kv_slot_bytes(read->slot), read->aside, read->io.bytes);
	if (kv_slot_is_open(read->slot))
		*kv_slot_prologue(read->slot) = *prologue;
}

static void verify(struct kv_read *read)
{
	struct kv_cache *cache = read->cache;
	struct kv_prologue prologue = {0};
	int r = read->status;

	if (read->from) {
		end(read,
		    kv_slot_copy(read->slot, read->from, read->block->length));
		return;
	}
	kv_health_note(cache, r);
	if (r == 0)
		r = block_verify(cache, read->block, read->io.data, &prologue);
	if (r < 0 && r != -ENOENT && !read->again) {
		r = read_again(read);
		if (r < 0)
			end(read, r);
		return;
	}
	if (r == 0)
		landed(read, &prologue);
	else
		r = block_judge(cache, read->block, read->status, r);
	end(read, r);
}

static void *verifier_run(void *arg)
{
	struct kv_verifier *verifier = arg;
	struct kv_read *read;

	pthread_mutex_lock(&verifier->lock);
	for (;;) {
		while (STAILQ_EMPTY(&verifier->queue) && !verifier->stop)
			pthread_cond_wait(&verifier->cond, &verifier->lock);
		read = STAILQ_FIRST(&verifier->queue);
		if (!read)
			break;
		STAILQ_REMOVE_HEAD(&verifier->queue, link);
		pthread_mutex_unlock(&verifier->lock);
		verify(read);
		pthread_mutex_lock(&verifier->lock);
	}
	pthread_mutex_unlock(&verifier->lock);
	return NULL;
}

int kv_reader_start(struct kv_cache *cache)
{
	struct kv_verifier *verifier = calloc(1, sizeof(*verifier));
	int r;

	if (!verifier)
		return -ENOMEM;
	pthread_mutex_init(&verifier->lock, NULL);
	pthread_cond_init(&verifier->cond, NULL);
	STAILQ_INIT(&verifier->queue);
	cache->verifier = verifier;
	for (; verifier->n < VERIFIERS; verifier->n++) {
		r = kv_thread_start(&verifier->threads[verifier->n],
				    "kvfs-verify", verifier_run, verifier);
		if (r < 0)
			return r;
	}
	return 0;
}

static bool reads_under_way(struct kv_cache *cache, bool *ret_stuck)
{
	bool any = false;

	kv_lock(cache);
	for (unsigned i = 0; i < READ_BUCKETS && !any; i++)
		any = cache->reads[i];
	*ret_stuck = kv_health_stuck_locked(cache).reads > 0;
	kv_unlock(cache);
	return any;
}

int kv_reader_stop(struct kv_cache *cache)
{
	struct kv_verifier *verifier = cache->verifier;
	bool stuck = false;

	if (!verifier)
		return 0;
	/* Nobody begins one any more; let those that were abandoned land. */
	while (reads_under_way(cache, &stuck) && !stuck)
		usleep(1000);
	if (stuck)
		return -ETIMEDOUT;
	pthread_mutex_lock(&verifier->lock);
	verifier->stop = true;
	pthread_cond_broadcast(&verifier->cond);
	pthread_mutex_unlock(&verifier->lock);
	for (unsigned i = 0; i < verifier->n; i++)
		pthread_join(verifier->threads[i], NULL);
	free(verifier);
	cache->verifier = NULL;
	return 0;
}

static int begin(struct kv_cache *cache, struct kv_block *block,
		 struct kv_read **ret_read)
{
	struct kv_space *space = kv_block_space(cache, block);
	struct kv_slot *from = block->slot, *slot;
	struct kv_read *read;
	int r;

	if (!from && kv_health_offline_locked(cache))
		return -EIO;
	if ((from && !kv_block_movable(block)) ||
	    kv_arena_over_floor(cache, space,
				from ? from->segment->class->slot_bytes
				     : kv_extent_bytes(cache, block)))
		return -ENOSPC;
	read = calloc(1, sizeof(*read));
	if (!read)
		return -ENOMEM;
	if (from) /* not the one that makes place */
		kv_slot_hold_locked(cache, from, 1);
	r = kv_slot_take_locked(cache, space, block->length, &slot);
	if (r < 0) {
		if (from)
			kv_slot_hold_locked(cache, from, -1);
		free(read);
		return r;
	}
	read->cache = cache;
	read->block = block;
	read->slot = slot;
	read->from = from;
	read->since = kv_now_ns();
	if (!from)
		prepare(read);
	read->bucket = *bucket_of(cache, block);
	*bucket_of(cache, block) = read;
	block->flags |= BLOCK_READING;
	block->refs++;
	cache->reads_begun++;
	*ret_read = read;
	return 0;
}

int kv_read_join_locked(struct kv_cache *cache, struct kv_block *block,
			struct kv_want *want)
{
	struct kv_read *read = *bucket_of(cache, block);
	int r;

	kv_assert_locked(&cache->lock);
	while (read && read->block != block)
		read = read->bucket;
	if (read && read->expired)
		return -ETIMEDOUT;
	if (read) {
		kv_want_link(&read->wants, want);
		return -EINPROGRESS;
	}
	block->refs++;
	r = begin(cache, block, &read);
	block->refs--;
	kv_block_settle_locked(cache, block);
	if (r < 0)
		return r;
	kv_want_link(&read->wants, want);
	if (read->from)
		read_done(&read->io, 0);
	else
		kv_ring_submit(cache->ring, &read->io);
	return -EINPROGRESS;
}
