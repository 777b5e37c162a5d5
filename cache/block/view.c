/* SPDX-License-Identifier: Apache-2.0 */
/*
 * view.c - a block's bytes for a reader through the mount.
 *
 * What is in DRAM is held while it is read.  What is only on SSD comes by a
 * bounce buffer, read and verified in full: a backup of the store changes
 * nothing of what DRAM holds.  Readers come in requests that are smaller than
 * blocks: so the buffers hold a block for each of many readers, and are given
 * back when nobody has come for a while.
 *
 * OWNS       the bounce buffers: at most BUFFERS, and bounce->limit bytes
 *            together unless one block alone is larger.
 *
 * INVARIANTS
 *   (1) A buffer with users keeps its block and its bytes.
 *   (2) A buffer names a block only after that was verified.
 *   (3) Who looks at a block once leaves no buffer behind: readers that come
 *       again keep theirs, however many blocks are looked at beside them.
 *
 * LOCKING    bounce->lock for the buffers; a buffer that is being filled
 *            belongs to who fills it.  Never taken together with cache->lock.
 */
#include "cache/block/block.h"
#include "cache/core/core.h"
#include "cache/core/slot.h"
#include "cache/core/table.h"

#define BUFFERS 32u
#define LIMIT_MIN (UINT64_C(32) << 20)
#define LIMIT_MAX (UINT64_C(256) << 20)
#define IDLE_NS (UINT64_C(5) * 1000000000)

struct buffer {
	uint64_t id;   /* of the block; 0: none */
	uint8_t *data; /* slot bytes, prologue first */
	uint64_t room;
	unsigned users;
	bool filling;
	bool once; /* nobody else comes for it: it goes with its users */
	uint64_t used_ns;
};

/* Whether the caller waits for a buffer, and for the SSD; and comes again. */
enum how { WAITS, TRIES, ONCE };

struct kv_bounce {
	uint64_t limit; /* fixed after new */
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t bytes;
	struct buffer buffers[BUFFERS];
};

int kv_bounce_new(uint64_t dram, struct kv_bounce **ret_bounce)
{
	struct kv_bounce *bounce = calloc(1, sizeof(*bounce));

	if (!bounce)
		return -ENOMEM;
	bounce->limit = KV_MIN(KV_MAX(dram / 2, LIMIT_MIN), LIMIT_MAX);
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

static struct buffer *unused(struct kv_bounce *bounce)
{
	for (unsigned i = 0; i < BUFFERS; i++)
		if (!bounce->buffers[i].data && !bounce->buffers[i].filling)
			return &bounce->buffers[i];
	return NULL;
}

/* The idle buffer that was used longest ago. */
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

static bool fits(const struct kv_bounce *bounce, uint64_t bytes)
{
	return bounce->bytes == 0 || bounce->bytes + bytes <= bounce->limit;
}

/* Room for @bytes within the limit, for which those that were used longest ago
 * go.  -EAGAIN: somebody must be done first. */
static int take(struct kv_bounce *bounce, uint64_t bytes,
		struct buffer **ret_buffer)
{
	struct buffer *buffer;

	while (!(buffer = unused(bounce)) || !fits(bounce, bytes)) {
		buffer = oldest(bounce);
		if (!buffer)
			return -EAGAIN;
		buffer->id = 0;
		if (buffer->room == bytes) {
			*ret_buffer = buffer;
			return 0;
		}
		release(bounce, buffer);
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
		release(bounce, buffer);
	pthread_mutex_unlock(&bounce->lock);
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

static int fetch_counted(struct kv_cache *cache, struct kv_block *block,
			 struct buffer *buffer)
{
	int r = kv_block_fetch(cache, block, &buffer->data, buffer->room);

	kv_lock(cache);
	cache->stats.bytes_read_ssd += r == 0 ? buffer->room : 0;
	kv_unlock(cache);
	return r;
}

/* TRIES: -EAGAIN if that would be to wait. */
static int bounce_get(struct kv_cache *cache, struct kv_block *block,
		      enum how how, struct buffer **ret_buffer)
{
	struct kv_bounce *bounce = cache->bounce;
	uint64_t bytes = KV_PAGE + kv_round_up(block->length, KV_PAGE);
	uint64_t id = kv_block_id(block);
	struct buffer *buffer = NULL;
	int r;

	pthread_mutex_lock(&bounce->lock);
	if (how == TRIES && (!(buffer = find(bounce, id)) || buffer->filling)) {
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
		r = fetch_counted(cache, block, buffer);
		pthread_mutex_lock(&bounce->lock);
		filled(bounce, buffer, r);
		pthread_cond_broadcast(&bounce->changed);
	}
	if (r == 0) {
		buffer->users++;
		buffer->once &= how == ONCE;
		buffer->used_ns = kv_now_ns();
		*ret_buffer = buffer;
	}
	pthread_mutex_unlock(&bounce->lock);
	return r;
}

static int view_get(struct kv_cache *cache, struct kv_block *block,
		    enum how how, struct kv_view *ret_view)
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

int kv_view_get(struct kv_cache *cache, struct kv_block *block,
		struct kv_view *ret_view)
{
	return view_get(cache, block, WAITS, ret_view);
}

int kv_view_get_once(struct kv_cache *cache, struct kv_block *block,
		     struct kv_view *ret_view)
{
	return view_get(cache, block, ONCE, ret_view);
}

int kv_view_get_try(struct kv_cache *cache, struct kv_block *block,
		    struct kv_view *ret_view)
{
	return view_get(cache, block, TRIES, ret_view);
}

void kv_view_put(struct kv_cache *cache, struct kv_view *view)
{
	struct kv_bounce *bounce = cache->bounce;
	struct buffer *buffer = view->owner;

	if (view->bounce) {
		pthread_mutex_lock(&bounce->lock);
		if (--buffer->users == 0 && buffer->once)
			release(bounce, buffer);
		pthread_cond_broadcast(&bounce->changed);
		pthread_mutex_unlock(&bounce->lock);
		return;
	}
	kv_lock(cache);
	/* The caller has the block open: it settles with its put. */
	kv_slot_hold_locked(cache, view->owner, -1);
	kv_unlock(cache);
}
