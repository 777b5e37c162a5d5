/* SPDX-License-Identifier: Apache-2.0 */
/*
 * read.c - blocks read from SSD and verified: into their slots, which then
 * become READY; or on the caller's thread, into memory outside of the arena;
 * and views of blocks for readers through the mount.
 *
 * A view holds the slot of a block in DRAM.  A block that is only on SSD is
 * read and verified in full into a bounce buffer, so that a backup of the store
 * does not change the contents of DRAM.  Readers' requests are smaller than
 * blocks: a buffer keeps its block for the reader's next requests, and is freed
 * after a while without one.
 *
 * OWNS       every kv_read, and the pool that verifies; the memory of requests
 *            that timed out; the bounce buffers: at most BUFFERS, and
 *            bounce->limit bytes together unless one block alone is larger.
 *
 * STATES     of a read, or of a move within DRAM, which is READ at once:
 *            SUBMITTED -> READ      read_done        (reactor thread)
 *                 READ -> ENDED     read_end         (thread of the pool)
 *                 READ -> SUBMITTED once more, if it was damaged or failed;
 *                                   and again if the block has moved meanwhile
 *            A stuck read is SUBMITTED for as long as it takes, but its wants
 *            are settled: kv_reads_expire_locked.
 *
 * INVARIANTS
 *   (1) While a block is BLOCK_READING exactly one read has the block, a
 *       reference to it and its FILLING slot.
 *   (2) A slot becomes READY only after digest, key, generation and length
 *       agree with the index.
 *   (3) A buffer with users keeps its block and its bytes.
 *   (4) A buffer names a block only after the block was verified.
 *   (5) KV_VIEW_ONCE leaves no buffer behind, so that other readers keep
 *       theirs.
 *
 * LOCKING    cache->lock, but not during I/O; bounce->lock for the buffers, never
 *            taken together with cache->lock. A buffer that is being filled
 *            belongs to the thread that fills it.
 */
#include <limits.h>

#include "cache/block/block.h"
#include "cache/core/causes.h"
#include "cache/core/hooks.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"
#include "cache/core/workers.h"
#include "cache/dram/dram.h"
#include "cache/ssd/ssd.h"
#include "common/copy.h"

#define BUFFERS 32u
#define LIMIT_MIN (UINT64_C(32) << 20)
#define LIMIT_MAX (UINT64_C(256) << 20)
#define IDLE_NS (UINT64_C(5) * 1000000000)

static uint64_t slot_bytes(const struct kv_block *block)
{
	return KV_PAGE + kv_round_up(block->length, KV_PAGE);
}

struct fetch {
	struct kv_io io; /* first member: ended_late casts its address */
	struct kv_cache *cache;
	struct kv_block *block;
	uint64_t room;
};

/* End a read that timed out, and only now give up the block's SSD slot. */
static void ended_late(struct kv_io *io, int status)
{
	struct fetch *fetch = (struct fetch *)io;

	(void)status;
	kv_pages_free(io->data, fetch->room);
	kv_block_put(fetch->cache, fetch->block);
	free(fetch);
}

/* Read the block's extent, and set *@ret_slot to its slot on SSD. */
static int read_once(struct kv_cache *cache, struct kv_block *block,
		     uint8_t **data, uint64_t room, uint64_t *ret_slot,
		     struct kv_device **ret_device)
{
	struct fetch *fetch = calloc(1, sizeof(*fetch));
	const struct kv_segfile *file;
	struct kv_device *device = cache->ssd.devices;
	int r = 0;

	if (!fetch)
		return -ENOMEM;
	fetch->cache = cache;
	fetch->block = block;
	fetch->room = room;
	kv_lock(cache);
	*ret_slot = kv_slot_id(block->file, block->slot_number);
	file = kv_segfile_at(cache, block->file);
	if (file)
		*ret_device = device = file->device;
	if (!file) {
		r = -ENOENT;
	} else if (kv_health_offline_locked(cache, device)) {
		r = -EIO;
	} else {
		fetch->io = (struct kv_io){
			.op = KV_IO_READ,
			.fd = file->fd,
			.buffer = -1,
			.data = *data,
			.offset = block->slot_number * file->slot_bytes,
			.bytes = slot_bytes(block),
			.done = ended_late,
		};
		block->refs++;
	}
	kv_unlock(cache);
	if (r < 0) {
		free(fetch);
		return r;
	}
	r = kv_ring_wait(device->ring, &fetch->io);
	if (r == -ETIMEDOUT) {
		*data = NULL; /* ended_late frees @data and @fetch */
		return r;
	}
	free(fetch);
	kv_health_note(cache, device, r);
	kv_block_put(cache, block);
	return r;
}

/* Forget or keep a block whose second read ended with status @io, or whose
 * verification returned @r.  Return the status for its readers. */
static int block_judge(struct kv_cache *cache, struct kv_block *block,
		       struct kv_device *device, int io, int r)
{
	/* @lost: the file is too short, or the device reports lost data. */
	const bool lost = io == -ENODATA || io == -EILSEQ;
	bool offline;

	if (io == 0 && r != -EBADMSG)
		return r;
	kv_lock(cache);
	offline = kv_health_offline_locked(cache, device);
	kv_unlock(cache);
	if (io < 0 && !lost && (offline || !kv_health_probe(cache, device))) {
		(void)kv_device_fail(cache, device, io);
		return r;
	}
	/* Forget a damaged block, and never use its extent again. */
	kv_lock(cache);
	cache->stats.corrupt++;
	if (!(block->flags & BLOCK_REMOVED) && block->file != KV_NONE) {
		kv_extent_detach_locked(cache, block, false);
		cache->stats.bad_slots++;
		if (block->slot) {
			/* The block is intact in DRAM: write it to another
			 * slot. */
			kv_unpersisted_add_locked(cache, block->slot);
			kv_write_enqueue_locked(cache, block, false);
		} else {
			kv_cause_note_block(cache, block, KV_CAUSE_DAMAGED);
			kv_block_remove_locked(cache, block);
		}
	}
	kv_unlock(cache);
	return -EBADMSG;
}

struct kv_read {
	struct kv_io io; /* first member: read_done casts its address */
	struct kv_work work;
	struct kv_cache *cache;
	struct kv_block *block;
	struct kv_device *device; /* device that is read */
	struct kv_slot *slot;
	/* move within DRAM: the source slot, held; else NULL */
	struct kv_slot *from;
	/* second read to an open slot: its private buffer; else NULL */
	uint8_t *aside;
	/* SSD slot of the block when the read began, if it had one */
	uint64_t ssd_slot;
	struct kv_want *wants;
	uint64_t since;
	int status;
	bool again; /* a try failed at the block's slot: this is the last one */
	bool expired; /* timed out: no more wants may wait for this read */
	LIST_ENTRY(kv_read) bucket; /* entry in cache->reads */
};

struct buffer {
	uint64_t id;   /* id of the block in this buffer; 0: empty */
	uint8_t *data; /* bytes of the slot, prologue first */
	uint64_t room;
	unsigned users;
	bool filling;
	bool once; /* free the buffer when the last user is done */
	uint64_t used_ns;
};

struct kv_bounce {
	uint64_t limit; /* constant after new */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t bytes;
	struct buffer buffers[BUFFERS];
};

static struct kv_reads *bucket_of(struct kv_cache *cache,
				  const struct kv_block *block)
{
	return &cache->reads[block->number % READ_BUCKETS];
}

/*
 * Verify @bytes, which were read from the block's extent; clients may write to
 * @bytes meanwhile.  Return 0 and their prologue, or
 *   -EBADMSG  damaged
 *   -ENOENT   the block was removed
 */
static int block_verify(struct kv_cache *cache, struct kv_block *block,
			const uint8_t *bytes, struct kv_prologue *ret_prologue)
{
	struct kv_prologue prologue;
	struct kv_slot_record record;
	uint32_t space;
	bool removed;
	int r = kv_block_record(cache, block, &record);

	kv_lock(cache);
	space = kv_block_space(cache, block)->id;
	removed = block->flags & BLOCK_REMOVED;
	kv_unlock(cache);
	if (r == -ENOENT) /* block removed, or its record lost from the index */
		return removed ? -ENOENT : -EBADMSG;
	if (r < 0)
		return r;
	/* The block was removed while open, so its prologue on SSD may be zero:
	 * check the digest only. */
	if (removed)
		return kv_record_agrees(&record, bytes + KV_PAGE) ? 0
								  : -EBADMSG;
	memcpy(&prologue, bytes, sizeof(prologue));
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
		   sizeof(record.digest)) != 0 ||
	    !kv_record_agrees(&record, bytes + KV_PAGE))
		return -EBADMSG;
	*ret_prologue = prologue;
	return 0;
}

int kv_block_fetch(struct kv_cache *cache, struct kv_block *block,
		   uint8_t **data, uint64_t room)
{
	struct kv_prologue prologue;
	struct kv_device *device = cache->ssd.devices;
	uint64_t slot_id;
	int r, io;

	for (int tries = 0; tries < 2;) {
		io = read_once(cache, block, data, room, &slot_id, &device);
		if (io == -ETIMEDOUT || io == -ENOENT || io == -ENOMEM)
			return io;
		r = io == 0 ? block_verify(cache, block, *data, &prologue) : io;
		if (r == 0 || r == -ENOENT) /* -ENOENT: removed meanwhile */
			return r;
		/* A try does not count if move.c has moved the block. */
		kv_lock(cache);
		tries += slot_id == kv_slot_id(block->file, block->slot_number);
		kv_unlock(cache);
	}
	return block_judge(cache, block, device, io, r);
}

static void settle_wants(struct kv_cache *cache, struct kv_read *read,
			 int status)
{
	if (status == 0 ||
	    status == -ENOENT) { /* -ENOENT: look up the key again */
		kv_wants_restart_locked(cache, &read->wants);
		return;
	}
	kv_wants_fail_locked(cache, &read->wants, status);
}

void kv_reads_expire_locked(struct kv_cache *cache)
{
	const uint64_t patience = cache->config.io_patience;
	const uint64_t now = kv_now_ns();
	struct kv_read *read;

	kv_assert_locked(&cache->lock);
	for (unsigned i = 0; i < READ_BUCKETS; i++)
		LIST_FOREACH(read, &cache->reads[i], bucket) {
			if (now - read->since < patience)
				continue;
			cache->room |= !read->expired;
			cache->reads_ended += !read->expired;
			read->expired = true;
			settle_wants(cache, read, -ETIMEDOUT);
		}
}

static void read_end(struct kv_read *read, int status)
{
	struct kv_cache *cache = read->cache;
	struct kv_block *block = read->block;
	struct kv_slot *slot = read->slot;

	kv_lock(cache);
	LIST_REMOVE(read, bucket);
	block->flags &= ~BLOCK_READING & 0xff;
	if (block->moved)
		kv_extent_delete_locked(cache, kv_block_space(cache, block),
					read->ssd_slot, true);
	block->moved = 0;
	cache->reads_ended += !read->expired;
	cache->room = true;
	if (read->from) {
		kv_slot_hold_locked(cache, read->from, -1);
		if (status == 0)
			kv_block_replace_locked(cache, block, read->from, slot);
		else
			kv_slot_give_locked(cache, slot);
	} else {
		cache->stats.bytes_read_ssd += status == 0 ? read->io.bytes : 0;
		if (status == 0 && !(block->flags & BLOCK_REMOVED) &&
		    !block->slot &&
		    kv_class_fits(slot->segment->class,
				  kv_block_space(cache, block)))
			kv_slot_publish_locked(cache, slot, block);
		else
			kv_slot_give_locked(cache, slot);
	}
	settle_wants(cache, read, status);
	block->refs--;
	kv_block_settle_locked(cache, block);
	kv_unlock(cache);
	kv_pages_free(read->aside, read->io.bytes);
	free(read);
}

/* Read from the block's current slot: move.c may have moved the block since.
 * Return whether this is another slot than before. */
static bool locate_locked(struct kv_read *read)
{
	const struct kv_block *block = read->block;
	const struct kv_segfile *file;
	const struct kv_io before = read->io;

	kv_assert_locked(&read->cache->lock);
	if (block->file == KV_NONE) /* removed: the old slot has its bytes */
		return false;
	file = kv_segfile_at(read->cache, block->file);
	read->device = file->device;
	read->io.fd = file->fd;
	read->io.offset = block->slot_number * file->slot_bytes;
	return before.fd != read->io.fd || before.offset != read->io.offset;
}

static void verify(struct kv_work *work, struct kv_hash *hash)
{
	struct kv_read *read = kv_container(work, struct kv_read, work);
	struct kv_cache *cache = read->cache;
	const bool open = kv_slot_is_open(read->slot);
	struct kv_prologue prologue = {0};
	int r = read->status;
	bool elsewhere = false;

	(void)hash;
	if (read->from) {
		read_end(read, kv_slot_copy(read->slot, read->from,
					    read->block->length));
		return;
	}
	kv_health_note(cache, read->device, r);
	if (r == 0)
		r = block_verify(cache, read->block, read->io.data, &prologue);
	/* A try at the slot that the block had before a move does not count. */
	if (r < 0) {
		kv_lock(cache);
		elsewhere = locate_locked(read);
		kv_unlock(cache);
	}
	if (r < 0 && r != -ENOENT && (!read->again || elsewhere)) {
		/* Clients may write to these bytes, so wrong ones need not
		 * mean a faulty SSD: the second read goes to private memory. */
		if (open && !read->aside)
			read->aside = kv_pages_new(read->io.bytes);
		if (open && !read->aside) {
			read_end(read, -ENOMEM);
			return;
		}
		if (open) {
			read->io.data = read->aside;
			read->io.buffer = -1;
		}
		read->again |= !elsewhere;
		kv_ring_submit(read->device->ring, &read->io);
		return;
	}
	if (r < 0)
		r = block_judge(cache, read->block, read->device, read->status,
				r);
	else if (read->aside)
		memcpy(kv_slot_bytes(read->slot), read->aside, read->io.bytes);
	if (r == 0 && open)
		*kv_slot_prologue(read->slot) = prologue;
	read_end(read, r);
}

static void read_done(struct kv_io *io, int status)
{
	struct kv_read *read = (struct kv_read *)io;

	read->status = status;
	read->work.run = verify;
	kv_work_submit(read->cache->verifiers, &read->work, 0, io->bytes);
}

int kv_reader_start(struct kv_cache *cache)
{
	static const struct kv_workers_config verifiers = {
		.name = "kvfs-verify",
		.threads = 2,
		.each = UINT_MAX,
		.turn = 1 << 20,
	};
	const uint64_t dram = cache->config.dram;
	struct kv_bounce *bounce = calloc(1, sizeof(*bounce));

	cache->bounce = bounce;
	if (!bounce)
		return -ENOMEM;
	bounce->limit = KV_MIN(KV_MAX(dram / 2, LIMIT_MIN), LIMIT_MAX);
	pthread_mutex_init(&bounce->lock, NULL);
	pthread_cond_init(&bounce->changed, NULL);
	return kv_workers_new(&verifiers, &cache->verifiers);
}

int kv_reader_stop(struct kv_cache *cache)
{
	bool any = true, stuck = false;

	if (!cache->verifiers)
		return 0;
	/* At unmount no new reads begin: wait for the reads that timed out. */
	while (any && !stuck) {
		any = false;
		kv_lock(cache);
		for (unsigned i = 0; i < READ_BUCKETS && !any; i++)
			any = !LIST_EMPTY(&cache->reads[i]);
		stuck = kv_health_stuck_locked(cache, true).reads > 0;
		kv_unlock(cache);
		if (any && !stuck)
			usleep(1000);
	}
	if (stuck)
		return -ETIMEDOUT;
	kv_workers_free(kv_steal(cache->verifiers));
	return 0;
}

/* Create a read of @block to a new slot, or a move if the block is in DRAM. */
static int read_new(struct kv_cache *cache, struct kv_block *block,
		    struct kv_read **ret_read)
{
	struct kv_space *space = kv_block_space(cache, block);
	struct kv_slot *from = block->slot, *slot;
	struct kv_read *read;
	int r;

	if (!from &&
	    kv_health_offline_locked(cache, kv_device_of(cache, block)))
		return -EIO;
	if ((from && !kv_block_movable(block)) ||
	    kv_arena_over_floor(cache, space,
				from ? from->segment->class->slot_bytes
				     : kv_extent_bytes(cache, block)))
		return -ENOSPC;
	read = calloc(1, sizeof(*read));
	if (!read)
		return -ENOMEM;
	if (from) /* this hold prevents eviction of the source */
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
	read->ssd_slot = kv_slot_id(block->file, block->slot_number);
	if (!from) {
		read->io.op = KV_IO_READ;
		locate_locked(read);
		read->io.buffer = slot->segment->buffer;
		read->io.data = kv_slot_bytes(slot);
		read->io.bytes = slot_bytes(block);
		read->io.done = read_done;
	}
	LIST_INSERT_HEAD(bucket_of(cache, block), read, bucket);
	block->flags |= BLOCK_READING;
	block->refs++;
	cache->reads_begun++;
	*ret_read = read;
	return 0;
}

int kv_read_join_locked(struct kv_cache *cache, struct kv_block *block,
			struct kv_want *want)
{
	struct kv_read *read;
	int r;

	kv_assert_locked(&cache->lock);
	LIST_FOREACH(read, bucket_of(cache, block), bucket)
		if (read->block == block)
			break;
	if (read && read->expired)
		return -ETIMEDOUT;
	if (read) {
		kv_want_link(&read->wants, want);
		return -EINPROGRESS;
	}
	block->refs++;
	r = read_new(cache, block, &read);
	block->refs--;
	kv_block_settle_locked(cache, block);
	if (r < 0)
		return r;
	kv_want_link(&read->wants, want);
	if (read->from)
		read_done(&read->io, 0);
	else
		kv_ring_submit(read->device->ring, &read->io);
	return -EINPROGRESS;
}

/* ---- views, by bounce buffers ---- */

static void buffer_free(struct kv_bounce *bounce, struct buffer *buffer)
{
	kv_pages_free(buffer->data, buffer->room);
	bounce->bytes -= buffer->room;
	memset(buffer, 0, sizeof(*buffer));
}

void kv_bounce_free(struct kv_bounce *bounce)
{
	if (!bounce)
		return;
	for (unsigned i = 0; i < BUFFERS; i++)
		buffer_free(bounce, &bounce->buffers[i]);
	free(bounce);
}

static struct buffer *buffer_of(struct kv_bounce *bounce, uint64_t id)
{
	for (unsigned i = 0; i < BUFFERS; i++)
		if (bounce->buffers[i].id == id)
			return &bounce->buffers[i];
	return NULL;
}

/* Return the idle buffer that was used longest ago, or NULL. */
static struct buffer *oldest(struct kv_bounce *bounce)
{
	struct buffer *best = NULL;

	for (unsigned i = 0; i < BUFFERS; i++) {
		struct buffer *buffer = &bounce->buffers[i];

		if (buffer->data && !buffer->users && !buffer->filling &&
		    (!best || buffer->used_ns < best->used_ns))
			best = buffer;
	}
	return best;
}

/*
 * Find the buffer of block @id, or take a buffer of @bytes to be filled with
 * that block; free the idle buffers that were used longest ago to make room.
 *   -ENOMEM
 *   -EAGAIN  wait for another reader
 */
static int find_or_take(struct kv_bounce *bounce, uint64_t id, uint64_t bytes,
			struct buffer **ret_buffer)
{
	struct buffer *buffer = buffer_of(bounce, id);

	if (buffer) {
		*ret_buffer = buffer;
		return buffer->filling ? -EAGAIN : 0;
	}
	for (;;) {
		for (unsigned i = 0; i < BUFFERS && !buffer; i++)
			if (!bounce->buffers[i].data &&
			    !bounce->buffers[i].filling)
				buffer = &bounce->buffers[i];
		if (buffer && (bounce->bytes == 0 ||
			       bounce->bytes + bytes <= bounce->limit))
			break;
		buffer = oldest(bounce);
		if (!buffer)
			return -EAGAIN;
		buffer->id = 0;
		if (buffer->room == bytes) {
			*ret_buffer = buffer;
			return 0;
		}
		buffer_free(bounce, buffer);
		buffer = NULL;
	}
	buffer->data = kv_pages_new(bytes);
	if (!buffer->data)
		return -ENOMEM;
	buffer->room = bytes;
	bounce->bytes += bytes;
	*ret_buffer = buffer;
	return 0;
}

void kv_bounce_trim(struct kv_bounce *bounce)
{
	struct buffer *buffer;

	pthread_mutex_lock(&bounce->lock);
	while ((buffer = oldest(bounce)) &&
	       kv_now_ns() - buffer->used_ns > IDLE_NS)
		buffer_free(bounce, buffer);
	pthread_mutex_unlock(&bounce->lock);
}

static int bounce_get(struct kv_cache *cache, struct kv_block *block,
		      enum kv_view_how how, struct buffer **ret_buffer)
{
	struct kv_bounce *bounce = cache->bounce;
	uint64_t bytes = slot_bytes(block);
	uint64_t id = kv_block_id(block);
	struct buffer *buffer = NULL;
	int r;

	pthread_mutex_lock(&bounce->lock);
	if (how == KV_VIEW_TRY &&
	    (!(buffer = buffer_of(bounce, id)) || buffer->filling)) {
		pthread_mutex_unlock(&bounce->lock);
		return -EAGAIN;
	}
	while ((r = find_or_take(bounce, id, bytes, &buffer)) == -EAGAIN)
		pthread_cond_wait(&bounce->changed, &bounce->lock);
	if (r == 0 && buffer->id != id) {
		buffer->id = id;
		buffer->filling = true;
		buffer->once = true;
		pthread_mutex_unlock(&bounce->lock);
		r = kv_block_fetch(cache, block, &buffer->data, buffer->room);
		kv_lock(cache);
		cache->stats.bytes_read_ssd += r == 0 ? buffer->room : 0;
		kv_unlock(cache);
		pthread_mutex_lock(&bounce->lock);
		buffer->filling = false;
		if (r < 0)
			buffer->id = 0;
		if (!buffer->data) { /* the timed-out request frees the data */
			bounce->bytes -= buffer->room;
			buffer->room = 0;
		}
		pthread_cond_broadcast(&bounce->changed);
	}
	if (r == 0) {
		buffer->users++;
		buffer->once &= how == KV_VIEW_ONCE;
		buffer->used_ns = kv_now_ns();
		*ret_buffer = buffer;
	}
	pthread_mutex_unlock(&bounce->lock);
	return r;
}

int kv_view_get(struct kv_cache *cache, struct kv_block *block,
		enum kv_view_how how, struct kv_view *ret_view)
{
	struct buffer *buffer = NULL;
	struct kv_slot *slot;
	int r;

	kv_lock(cache);
	kv_block_rehome_locked(cache, block);
	slot = block->slot;
	if (slot) {
		kv_slot_hold_locked(cache, slot, 1);
		ret_view->data = kv_slot_file(slot);
		ret_view->owner = slot;
		ret_view->bounce = false;
	}
	ret_view->length = block->length;
	kv_unlock(cache);
	if (slot)
		return 0;
	r = bounce_get(cache, block, how, &buffer);
	if (r < 0)
		return r;
	ret_view->data = buffer->data + KV_PAGE;
	ret_view->owner = buffer;
	ret_view->bounce = true;
	return 0;
}

void kv_view_put(struct kv_cache *cache, struct kv_view *view)
{
	struct kv_bounce *bounce = cache->bounce;
	struct buffer *buffer = view->owner;
	struct kv_slot *slot = view->owner;

	if (view->bounce) {
		pthread_mutex_lock(&bounce->lock);
		if (--buffer->users == 0 && buffer->once)
			buffer_free(bounce, buffer);
		pthread_cond_broadcast(&bounce->changed);
		pthread_mutex_unlock(&bounce->lock);
		return;
	}
	kv_lock(cache);
	kv_slot_hold_locked(cache, slot, -1);
	/* The block may have been removed and closed during the view. */
	kv_block_settle_locked(cache, slot->block);
	kv_unlock(cache);
}
