/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view.c - a block's bytes for a reader through the mount.
 *
 * What is in DRAM is held while it is read.  What is only on SSD comes by a
 * bounce buffer, read and verified in full: a backup of the store changes
 * nothing of what DRAM holds.  A few buffers are kept, as readers come in
 * requests that are smaller than blocks.
 *
 * OWNS       the bounce buffers: at most BUFFERS, and LIMIT bytes together
 *            unless one block alone is larger.
 *
 * INVARIANTS
 *   (1) A buffer with users keeps its block and its bytes.
 *   (2) A buffer names a block only after that was verified.
 *
 * LOCKING    bounce->lock for the buffers; a buffer that is being filled
 *            belongs to who fills it.  Never taken together with cache->lock.
 */
#include "cache/block/block.h"
#include "cache/ssd/ssd.h"

#define BUFFERS 16u
#define LIMIT (32u << 20)

struct buffer {
	uint64_t id;   /* of the block; 0: none */
	uint8_t *data; /* slot bytes, prologue first */
	uint64_t room;
	unsigned users;
	bool filling;
	uint64_t used_at;
};

struct kv_bounce {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t bytes, clock;
	struct buffer buffers[BUFFERS];
};

int kv_bounce_new(struct kv_bounce **ret_bounce)
{
	struct kv_bounce *bounce = calloc(1, sizeof(*bounce));

	if (!bounce)
		return -ENOMEM;
	pthread_mutex_init(&bounce->lock, NULL);
	pthread_cond_init(&bounce->changed, NULL);
	*ret_bounce = bounce;
	return 0;
}

static void release(struct kv_bounce *bounce, struct buffer *buffer)
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
		release(bounce, &bounce->buffers[i]);
	free(bounce);
}

static struct buffer *find(struct kv_bounce *bounce, uint64_t id)
{
	for (unsigned i = 0; i < BUFFERS; i++)
		if (bounce->buffers[i].id == id)
			return &bounce->buffers[i];
	return NULL;
}

/* The idle buffer that was used longest ago. */
static struct buffer *oldest(struct kv_bounce *bounce)
{
	struct buffer *best = NULL;

	for (unsigned i = 0; i < BUFFERS; i++) {
		struct buffer *buffer = &bounce->buffers[i];

		if (!buffer->users && !buffer->filling &&
		    (!best || buffer->used_at < best->used_at))
			best = buffer;
	}
	return best;
}

/* Room for @bytes within the limit.  -EAGAIN: somebody must be done first. */
static int take(struct kv_bounce *bounce, uint64_t bytes,
		struct buffer **ret_buffer)
{
	struct buffer *buffer = oldest(bounce);

	if (!buffer)
		return -EAGAIN;
	buffer->id = 0;
	*ret_buffer = buffer;
	if (buffer->room >= bytes)
		return 0;
	release(bounce, buffer);
	for (unsigned i = 0; i < BUFFERS && bounce->bytes + bytes > LIMIT; i++)
		if (!bounce->buffers[i].users && !bounce->buffers[i].filling)
			release(bounce, &bounce->buffers[i]);
	if (bounce->bytes && bounce->bytes + bytes > LIMIT)
		return -EAGAIN;
	buffer->data = kv_pages_new(bytes);
	if (!buffer->data)
		return -ENOMEM;
	buffer->room = bytes;
	bounce->bytes += bytes;
	return 0;
}

/* The buffer that has block @id, or one to be filled with it. */
static int find_or_take(struct kv_bounce *bounce, uint64_t id, uint64_t bytes,
			struct buffer **ret_buffer)
{
	struct buffer *buffer = find(bounce, id);

	if (!buffer)
		return take(bounce, bytes, ret_buffer);
	*ret_buffer = buffer;
	return buffer->filling ? -EAGAIN : 0;
}

static void filled(struct kv_bounce *bounce, struct buffer *buffer, int r)
{
	buffer->filling = false;
	if (r < 0)
		buffer->id = 0;
	if (!buffer->data) { /* a request has it that does not end */
		bounce->bytes -= buffer->room;
		buffer->room = 0;
	}
}

static int bounce_get(struct kv_cache *cache, struct kv_block *block,
		      struct buffer **ret_buffer)
{
	struct kv_bounce *bounce = cache->bounce;
	uint64_t bytes = KV_PAGE + kv_round_up(block->length, KV_PAGE);
	uint64_t id = kv_block_id(block);
	struct buffer *buffer = NULL;
	int r;

	pthread_mutex_lock(&bounce->lock);
	while ((r = find_or_take(bounce, id, bytes, &buffer)) == -EAGAIN)
		pthread_cond_wait(&bounce->changed, &bounce->lock);
	if (r == 0 && buffer->id != id) {
		buffer->id = id;
		buffer->filling = true;
		pthread_mutex_unlock(&bounce->lock);
		r = kv_block_fetch(cache, block, &buffer->data, buffer->room);
		pthread_mutex_lock(&bounce->lock);
		filled(bounce, buffer, r);
		pthread_cond_broadcast(&bounce->changed);
	}
	if (r == 0) {
		buffer->users++;
		buffer->used_at = ++bounce->clock;
		*ret_buffer = buffer;
	}
	pthread_mutex_unlock(&bounce->lock);
	return r;
}

int kv_view_get(struct kv_cache *cache, struct kv_block *block,
		struct kv_view *ret_view)
{
	struct buffer *buffer = NULL;
	struct kv_slot *slot;
	int r;

	kv_lock(cache);
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
	r = bounce_get(cache, block, &buffer);
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

	if (view->bounce) {
		pthread_mutex_lock(&bounce->lock);
		((struct buffer *)view->owner)->users--;
		pthread_cond_broadcast(&bounce->changed);
		pthread_mutex_unlock(&bounce->lock);
		return;
	}
	kv_lock(cache);
	/* The caller has the block open: it settles with its put. */
	kv_slot_hold_locked(cache, view->owner, -1);
	kv_unlock(cache);
}
