/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read.c - blocks from SSD into their slots: read, verified, then shown.
 *
 * OWNS       every kv_read, and the threads that verify what was read.
 *
 * STATES     of a read:
 *            SUBMITTED -> READ      read_done        (reactor thread)
 *                 READ -> ENDED     read_verified    (verifier thread)
 *                 READ -> SUBMITTED once more, if it was damaged or failed
 *
 * INVARIANTS
 *   (1) While a block is BLOCK_READING exactly one read has it, holds a
 *       reference to it and has its FILLING slot.
 *   (2) Nobody sees the slot before digest, key, generation and length agree
 *       with the index.
 *
 * LOCKING    cache->lock; verifier->lock for the queue, a leaf.
 */
#include "cache/core.h"
#include "copy.h"

#define VERIFIERS 2

struct kv_read {
	struct kv_io io; /* first, so that read_of is a cast */
	struct kv_cache *cache;
	struct kv_block *block;
	struct kv_slot *slot;
	struct kv_want *wants;
	int status;
	bool again; /* the second try */
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

/*
 * Prologues are zeroed before the deletion is committed.  After a crash between
 * the two a record may lead to zeros: the block was being removed.
 */
static bool is_tombstone(const struct kv_cache *cache, const uint8_t *page)
{
	return cache->after_crash && page[0] == 0 &&
	       memcmp(page, page + 1, KV_PAGE - 1) == 0;
}

static void bury(struct kv_cache *cache, struct kv_block *block)
{
	kv_lock(cache);
	if (!(block->flags & BLOCK_REMOVED))
		kv_block_remove_locked(cache, block);
	kv_unlock(cache);
}

int kv_block_verify(struct kv_cache *cache, struct kv_block *block,
		    const uint8_t *slot_bytes)
{
	const struct kv_prologue *prologue = (const void *)slot_bytes;
	struct kv_slot_record record;
	struct kv_digest digest;
	uint32_t space;
	int r;

	kv_lock(cache);
	space = block->space; /* shares a word with the flags */
	kv_unlock(cache);
	r = kv_block_record(cache, block, &record);
	if (r < 0)
		return r;
	if (is_tombstone(cache, slot_bytes)) {
		bury(cache, block);
		return -ENOENT;
	}
	r = kv_prologue_check(prologue, cache->info.store);
	if (r < 0)
		return r;
	if (record.generation != prologue->record.generation ||
	    record.length != prologue->record.length ||
	    record.length != block->length || record.space != space ||
	    record.space != prologue->record.space ||
	    memcmp(record.key, block->key, sizeof(record.key)) != 0 ||
	    memcmp(record.key, prologue->record.key, sizeof(record.key)) != 0 ||
	    memcmp(record.digest, prologue->record.digest,
		   sizeof(record.digest)) != 0)
		return -EBADMSG;
	digest = kv_digest_of(slot_bytes + KV_PAGE, record.length);
	return memcmp(digest.b, record.digest, sizeof(digest.b)) == 0
		       ? 0
		       : -EBADMSG;
}

void kv_block_quarantine(struct kv_cache *cache, struct kv_block *block)
{
	kv_lock(cache);
	cache->stats.corrupt++;
	if (!(block->flags & BLOCK_REMOVED) && block->file != KV_NONE) {
		kv_extent_forget_locked(cache, block);
		kv_block_space(cache, block)->loose++;
		kv_block_remove_locked(cache, block);
	}
	kv_unlock(cache);
}

void kv_io_failed(struct kv_cache *cache)
{
	kv_lock(cache);
	cache->stats.io_errors++;
	kv_unlock(cache);
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

static void submit(struct kv_read *read)
{
	const struct kv_file *file = kv_file_at(read->cache, read->block->file);

	memset(&read->io, 0, sizeof(read->io));
	read->io.op = KV_IO_READ;
	read->io.fd = file->fd;
	read->io.buffer = read->slot->segment->buffer;
	read->io.data = kv_slot_prologue(read->slot);
	read->io.offset = read->block->place * file->slot_bytes;
	read->io.bytes = KV_PAGE + kv_round_up(read->block->length, KV_PAGE);
	read->io.done = read_done;
	kv_ring_submit(read->cache->ring, &read->io);
}

static void settle_all(struct kv_cache *cache, struct kv_read *read, int status)
{
	if (status == 0) {
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
	cache->stats.bytes_read_ssd += status == 0 ? read->io.bytes : 0;
	if (status == 0 && !(block->flags & BLOCK_REMOVED) && !block->slot &&
	    kv_class_fits(read->slot->segment->class,
			  kv_block_space(cache, block)))
		kv_slot_publish_locked(cache, read->slot, block);
	else
		kv_slot_give_locked(cache, read->slot);
	settle_all(cache, read, status);
	block->refs--;
	kv_block_settle_locked(cache, block);
	kv_unlock(cache);
	free(read);
}

static void verify(struct kv_read *read)
{
	struct kv_cache *cache = read->cache;
	int r = read->status;

	if (r == 0)
		r = kv_block_verify(cache, read->block, read->io.data);
	else
		kv_io_failed(cache);
	if (r == -ENOENT) /* removed meanwhile */
		r = 0;
	if (r < 0 && !read->again) {
		read->again = true;
		submit(read);
		return;
	}
	if (r == -EBADMSG)
		kv_block_quarantine(cache, read->block);
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
		r = kv_thread(&verifier->threads[verifier->n], "kvfs-verify",
			      verifier_run, verifier);
		if (r < 0)
			return r;
	}
	return 0;
}

static bool reads_under_way(struct kv_cache *cache)
{
	bool any = false;

	kv_lock(cache);
	for (unsigned i = 0; i < READ_BUCKETS && !any; i++)
		any = cache->reads[i] != NULL;
	kv_unlock(cache);
	return any;
}

void kv_reader_stop(struct kv_cache *cache)
{
	struct kv_verifier *verifier = cache->verifier;

	if (!verifier)
		return;
	/* Nobody begins one any more; let those that were abandoned land. */
	while (reads_under_way(cache))
		usleep(1000);
	pthread_mutex_lock(&verifier->lock);
	verifier->stop = true;
	pthread_cond_broadcast(&verifier->cond);
	pthread_mutex_unlock(&verifier->lock);
	for (unsigned i = 0; i < verifier->n; i++)
		pthread_join(verifier->threads[i], NULL);
	free(verifier);
	cache->verifier = NULL;
}

static int begin(struct kv_cache *cache, struct kv_block *block,
		 struct kv_read **ret_read)
{
	struct kv_space *space = kv_block_space(cache, block);
	struct kv_slot *slot;
	struct kv_read *read;
	int r;

	if (kv_arena_over_floor(cache, kv_extent_bytes(cache, block)))
		return -ENOSPC;
	r = kv_slot_take_locked(cache, space, block->length, false, &slot);
	if (r < 0)
		return r;
	read = block->slot || (block->flags & (BLOCK_READING | BLOCK_REMOVED))
		       ? NULL
		       : calloc(1, sizeof(*read));
	if (!read) {
		kv_slot_give_locked(cache, slot);
		return -EAGAIN; /* somebody else was faster, or no memory */
	}
	read->cache = cache;
	read->block = block;
	read->slot = slot;
	read->bucket = *bucket_of(cache, block);
	*bucket_of(cache, block) = read;
	block->flags |= BLOCK_READING;
	block->refs++;
	*ret_read = read;
	return 0;
}

int kv_read_join_locked(struct kv_cache *cache, struct kv_block *block,
			struct kv_want *want)
{
	struct kv_read *read = *bucket_of(cache, block);
	int r;

	while (read && read->block != block)
		read = read->bucket;
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
	submit(read);
	return -EINPROGRESS;
}
