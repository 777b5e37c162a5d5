/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table.c - the blocks by key, and the spaces by id, in memory.
 *
 * OWNS       the blocks, in chunks that never move; the directories: each space
 *            has 256 hash tables by the first byte of the key, which are the
 *            two-digit directories of the mount; cache->spaces.
 *
 * INVARIANTS
 *   (1) A block that is not BLOCK_REMOVED is in exactly one bucket of its
 *       space's directory; a removed or free block is in none.
 *   (2) A block number is reused only with a higher generation: ids are unique.
 *   (3) spaces->sorted has every space once, by ascending id.  Ids are never
 *       reused: files on disk, messages and inode numbers contain them.
 *   (4) spaces->at has each space at index space->place, and NULL at free
 *       places.  Below places_hint no place is free.
 *
 * LOCKING    cache->lock, for everything but the references of a space.
 */
#include "cache/core/table.h"
#include "cache/core/feed.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <xxhash.h>

#define CHUNK (1u << 18) /* blocks in a chunk of 13 huge pages */
#define FIRST_BITS 2u	 /* bits of a new directory's hash table */
#define BUCKET_BLOCKS 2u /* blocks a bucket, above which buckets are doubled */
#define AHEAD 16u	 /* buckets prefetched ahead of a walk */
#define LINE 64u	 /* bytes of a line of the processor's cache */
#define PLACES_MAX (1u << 24) /* kv_block.place has 24 bits */
#define FIRST_ROOM 16u	      /* room for spaces in a new table */

void kv_table_fini(struct kv_table *table)
{
	for (uint32_t i = 0; i < table->n_chunks; i++)
		munmap(table->chunks[i], CHUNK * sizeof(struct kv_block));
	free(table->chunks);
}

struct kv_block *kv_table_at(const struct kv_table *table, uint32_t number)
{
	return &table->chunks[number / CHUNK][number % CHUNK];
}

static uint32_t hash(const struct kv_table *table, const uint8_t *key)
{
	/* The hash is seeded, so clients cannot choose keys for one bucket. */
	return (uint32_t)XXH3_64bits_withSeed(key, KV_KEY_MAX, table->seed);
}

uint64_t kv_key_hash(const struct kv_cache *cache, const struct kv_space *space,
		     const uint8_t *key)
{
	return XXH3_64bits_withSeed(key, KV_KEY_MAX,
				    cache->table.seed + space->id);
}

struct kv_key kv_block_key(const struct kv_block *block)
{
	struct kv_key key;

	memcpy(key.b, block->key, sizeof(key.b));
	key.len = block->flags & BLOCK_LONG_KEY ? 32 : 16;
	return key;
}

uint64_t kv_block_id(const struct kv_block *block)
{
	return (uint64_t)(block->generation & 0x0fffffff) << 32 | block->number;
}

struct kv_space *kv_block_space(struct kv_cache *cache,
				const struct kv_block *block)
{
	return cache->spaces.at[block->place];
}

static uint32_t *bucket_of(const struct kv_dir *dir, uint32_t h)
{
	return &dir->buckets[h >> (32 - dir->bits)];
}

static struct kv_block *find(struct kv_cache *cache, const struct kv_dir *dir,
			     const struct kv_key *key, uint32_t h)
{
	uint32_t number;

	if (!dir || !dir->buckets)
		return NULL;
	number = *bucket_of(dir, h);
	while (number != KV_NONE) {
		struct kv_block *block = kv_table_at(&cache->table, number);

		if (memcmp(block->key, key->b, KV_KEY_MAX) == 0 &&
		    !(block->flags & BLOCK_LONG_KEY) == (key->len == 16))
			return block;
		number = block->next;
	}
	return NULL;
}

struct kv_block *kv_table_find(struct kv_cache *cache, struct kv_space *space,
			       const struct kv_key *key)
{
	return find(cache, space->dirs[key->b[0]], key,
		    hash(&cache->table, key->b));
}

void kv_table_fetch(const struct kv_table *table, uint32_t number)
{
	const uint8_t *block;

	if (number == KV_NONE)
		return;
	block = (const uint8_t *)kv_table_at(table, number);
	__builtin_prefetch(block, 1);
	__builtin_prefetch(block + LINE, 1);
}

void kv_table_look_ahead(const struct kv_cache *cache,
			 const struct kv_space *space, const uint8_t *key,
			 enum kv_table_ahead what)
{
	const struct kv_dir *dir = space->dirs[key[0]];
	const uint32_t *bucket;

	if (!dir || !dir->buckets)
		return;
	bucket = bucket_of(dir, hash(&cache->table, key));
	if (what == KV_AHEAD_BUCKET)
		__builtin_prefetch(bucket, 1);
	else
		kv_table_fetch(&cache->table, *bucket);
}

/* Double the buckets of @dir if they are full.  -ENOMEM. */
static int make_buckets(struct kv_cache *cache, struct kv_dir *dir)
{
	const uint32_t n = dir->buckets ? 1u << dir->bits : 0;
	struct kv_dir more = *dir;

	if (dir->blocks < BUCKET_BLOCKS * n)
		return 0;
	more.bits = n ? dir->bits + 1 : FIRST_BITS;
	more.buckets = malloc(sizeof(*more.buckets) << more.bits);
	if (!more.buckets)
		return -ENOMEM;
	memset(more.buckets, 0xff, sizeof(*more.buckets) << more.bits);
	for (uint32_t i = 0; i < n; i++) {
		uint32_t number = dir->buckets[i];

		if (i + AHEAD < n)
			kv_table_fetch(&cache->table, dir->buckets[i + AHEAD]);
		while (number != KV_NONE) {
			struct kv_block *block =
				kv_table_at(&cache->table, number);
			uint32_t *to = bucket_of(
				&more, hash(&cache->table, block->key));
			uint32_t next = block->next;

			block->next = *to;
			*to = number;
			number = next;
		}
	}
	free(dir->buckets);
	*dir = more;
	return 0;
}

int kv_table_insert(struct kv_cache *cache, struct kv_space *space,
		    const struct kv_key *key, struct kv_block **ret_block)
{
	struct kv_dir *dir = space->dirs[key->b[0]];
	const uint32_t h = hash(&cache->table, key->b);
	struct kv_table *table = &cache->table;
	struct kv_block *block, **chunks;
	uint32_t number = table->free, generation, *bucket;
	int r;

	if (find(cache, dir, key, h))
		return -EEXIST;
	if (!dir) {
		dir = space->dirs[key->b[0]] = calloc(1, sizeof(*dir));
		if (!dir)
			return -ENOMEM;
		dir->mtime_ns = space->mtime_ns;
		dir->life = space->dirs_removed;
	}
	r = make_buckets(cache, dir);
	if (r < 0)
		return r;
	if (number == KV_NONE && table->used == table->n_chunks * CHUNK) {
		if (table->n_chunks >= KV_NONE / CHUNK)
			return -ENOMEM;
		chunks = reallocarray(table->chunks, table->n_chunks + 1,
				      sizeof(*chunks));
		if (!chunks)
			return -ENOMEM;
		table->chunks = chunks;
		/* Pages of a chunk take memory only once they are used. */
		block = mmap(NULL, CHUNK * sizeof(*block),
			     PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (block == MAP_FAILED)
			return -ENOMEM;
		/* With 4 KiB pages each look-up also misses the TLB. */
		madvise(block, CHUNK * sizeof(*block), MADV_HUGEPAGE);
		chunks[table->n_chunks++] = block;
	}
	if (number == KV_NONE)
		number = table->used++;
	else
		table->free = kv_table_at(table, number)->next;

	block = kv_table_at(table, number);
	generation = block->generation + 1;
	memset(block, 0, sizeof(*block));
	block->generation = generation;
	block->number = number;
	memcpy(block->key, key->b, KV_KEY_MAX);
	block->flags = key->len == 32 ? BLOCK_LONG_KEY : 0;
	block->place = space->place & 0xffffff;
	kv_space_get(space);
	block->file = block->slot_number = KV_NONE;
	bucket = bucket_of(dir, h);
	block->next = *bucket;
	*bucket = number;
	dir->blocks++;
	space->blocks++;
	*ret_block = block;
	return 0;
}

void kv_table_unlink(struct kv_cache *cache, struct kv_block *block)
{
	struct kv_space *space = kv_block_space(cache, block);
	struct kv_dir *dir = space->dirs[block->key[0]];
	uint32_t *link = bucket_of(dir, hash(&cache->table, block->key));

	while (*link != block->number)
		link = &kv_table_at(&cache->table, *link)->next;
	*link = block->next;
	dir->blocks--;
	space->blocks--;
	block->flags |= BLOCK_REMOVED;
	kv_feed_note_locked(cache, space, block);
}

void kv_table_free(struct kv_cache *cache, struct kv_block *block)
{
	kv_space_put(kv_block_space(cache, block));
	block->next = cache->table.free;
	cache->table.free = block->number;
}

void kv_dirs_free(struct kv_space *space)
{
	for (unsigned i = 0; i < KV_ARRAY_LEN(space->dirs); i++) {
		if (space->dirs[i])
			free(space->dirs[i]->buckets);
		free(space->dirs[i]);
		space->dirs[i] = NULL;
	}
}

/* Add a reference to @block, which may be NULL, and release the lock. */
static int get_unlock(struct kv_cache *cache, struct kv_block *block,
		      struct kv_block **ret_block)
{
	if (block) {
		block->refs++;
		*ret_block = block;
	}
	kv_unlock(cache);
	return block ? 0 : -ENOENT;
}

int kv_block_get(struct kv_cache *cache, struct kv_space *space,
		 const struct kv_key *key, struct kv_block **ret_block)
{
	kv_lock(cache);
	return get_unlock(
		cache, space->removed ? NULL : kv_table_find(cache, space, key),
		ret_block);
}

struct kv_block *kv_table_find_id(struct kv_cache *cache, uint64_t id)
{
	uint32_t number = (uint32_t)id;
	struct kv_block *block;

	kv_assert_locked(&cache->lock);
	if (number >= cache->table.used)
		return NULL;
	block = kv_table_at(&cache->table, number);
	if (kv_block_id(block) != id ||
	    ((block->flags & BLOCK_REMOVED) && block->refs == 0))
		return NULL;
	return block;
}

int kv_block_get_id(struct kv_cache *cache, uint64_t id,
		    struct kv_block **ret_block)
{
	kv_lock(cache);
	return get_unlock(cache, kv_table_find_id(cache, id), ret_block);
}

void kv_block_hold(struct kv_cache *cache, struct kv_block *block)
{
	kv_lock(cache);
	block->refs++;
	kv_unlock(cache);
}

bool kv_dir_exists(struct kv_cache *cache, struct kv_space *space, uint8_t byte,
		   uint32_t *ret_life)
{
	const struct kv_dir *dir;

	kv_lock(cache);
	dir = space->dirs[byte];
	if (dir)
		*ret_life = dir->life;
	kv_unlock(cache);
	return dir;
}

int64_t kv_dir_mtime(struct kv_cache *cache, struct kv_space *space,
		     uint8_t byte)
{
	int64_t mtime_ns;

	kv_lock(cache);
	mtime_ns = space->dirs[byte] ? space->dirs[byte]->mtime_ns
				     : space->mtime_ns;
	kv_unlock(cache);
	return mtime_ns;
}

void kv_dir_changed(struct kv_cache *cache, struct kv_space *space,
		    uint8_t byte)
{
	kv_lock(cache);
	if (space->dirs[byte])
		space->dirs[byte]->mtime_ns = kv_wall_ns();
	kv_unlock(cache);
}

int kv_dir_make(struct kv_cache *cache, struct kv_space *space, uint8_t byte)
{
	struct kv_dir *dir;
	int r = 0;

	kv_lock(cache);
	dir = space->dirs[byte];
	if (space->removed)
		r = -ENOENT;
	else if (dir)
		r = -EEXIST;
	else
		dir = space->dirs[byte] = calloc(1, sizeof(*dir));
	if (r == 0 && !dir)
		r = -ENOMEM;
	if (r == 0) {
		dir->life = space->dirs_removed;
		space->mtime_ns = dir->mtime_ns = kv_wall_ns();
	}
	kv_unlock(cache);
	return r;
}

int kv_dir_remove(struct kv_cache *cache, struct kv_space *space, uint8_t byte)
{
	struct kv_dir *dir;
	int r = 0;

	kv_lock(cache);
	dir = space->dirs[byte];
	if (!dir)
		r = -ENOENT;
	else if (dir->blocks)
		r = -ENOTEMPTY;
	if (r == 0) {
		free(dir->buckets);
		free(dir);
		space->dirs[byte] = NULL;
		space->dirs_removed++;
		space->mtime_ns = kv_wall_ns();
	}
	kv_unlock(cache);
	return r;
}

/* ---- listing by cursor ---- */

#define LOOK_MAX 4096u /* buckets examined in one call */
#define LOOK_IN 256u   /* limit for @in_dram, which reads every block */

/*
 * Append the keys of @dir to @ret_keys, bucket by bucket, from hash *@at on;
 * @in_dram: only of blocks that are not on SSD.  Return true at the end, with *@at 0.
 *
 * A bucket has a range of hashes, so the cursor stays valid when buckets double.
 */
static bool put_dir(const struct kv_cache *cache, const struct kv_dir *dir,
		    bool in_dram, uint32_t *at, unsigned *looks,
		    struct kv_key *ret_keys, size_t max, size_t *n)
{
	if (!dir || !dir->buckets || dir->blocks == 0) {
		*at = 0;
		return true;
	}
	do {
		const uint32_t first = *bucket_of(dir, *at);
		const struct kv_block *block;
		size_t count = 0;

		for (uint32_t i = first; i != KV_NONE; i = block->next) {
			block = kv_table_at(&cache->table, i);
			count += !in_dram || block->file == KV_NONE;
		}
		if (*looks == 0 || (*n > 0 && count > max - *n))
			return false;
		(*looks)--;
		/* In practice no bucket has more than @max keys. */
		for (uint32_t i = first; i != KV_NONE && *n < max;
		     i = block->next) {
			block = kv_table_at(&cache->table, i);
			if (!in_dram || block->file == KV_NONE)
				ret_keys[(*n)++] = kv_block_key(block);
		}
		*at = ((*at >> (32 - dir->bits)) + 1) << (32 - dir->bits);
	} while (*at != 0);
	return true;
}

size_t kv_space_keys(struct kv_cache *cache, struct kv_space *space,
		     bool in_dram, uint64_t *cursor, struct kv_key *ret_keys,
		     size_t max)
{
	uint32_t byte = (uint32_t)(*cursor >> 32), at = (uint32_t)*cursor;
	unsigned looks = in_dram ? LOOK_IN : LOOK_MAX;
	size_t n = 0;

	kv_lock(cache);
	while (byte < 256 && put_dir(cache, space->dirs[byte], in_dram, &at,
				     &looks, ret_keys, max, &n))
		byte++;
	kv_unlock(cache);
	*cursor = byte < 256 ? (uint64_t)byte << 32 | at : 0;
	return n;
}

int kv_dir_list(struct kv_cache *cache, struct kv_space *space, uint8_t byte,
		uint64_t **ret_ids, size_t *ret_n)
{
	const struct kv_dir *dir;
	uint64_t *ids = NULL;
	size_t n = 0;
	int r = 0;

	kv_lock(cache);
	dir = space->dirs[byte];
	if (dir && dir->blocks) {
		ids = malloc(dir->blocks * sizeof(*ids));
		r = ids ? 0 : -ENOMEM;
	}
	for (uint32_t i = 0; ids && i < 1u << dir->bits; i++)
		for (uint32_t b = dir->buckets[i]; b != KV_NONE;) {
			struct kv_block *block = kv_table_at(&cache->table, b);

			ids[n++] = kv_block_id(block);
			b = block->next;
		}
	kv_unlock(cache);
	*ret_ids = ids;
	*ret_n = n;
	return r;
}

/* ---- spaces ---- */

/* Return the index of space @id in sorted[], or where to insert it. */
static uint32_t rank_of(const struct kv_spaces *spaces, uint32_t id)
{
	uint32_t low = 0, high = spaces->n;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (spaces->sorted[middle]->id < id)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

struct kv_space *kv_space_with_id(const struct kv_cache *cache, uint32_t id)
{
	const struct kv_spaces *spaces = &cache->spaces;
	uint32_t rank = rank_of(spaces, id);

	kv_assert_locked(&cache->lock);
	return rank < spaces->n && spaces->sorted[rank]->id == id
		       ? spaces->sorted[rank]
		       : NULL;
}

struct kv_space *kv_space_behind(const struct kv_cache *cache, uint32_t after)
{
	const struct kv_spaces *spaces = &cache->spaces;
	uint32_t rank;

	kv_assert_locked(&cache->lock);
	if (after == UINT32_MAX)
		return NULL;
	rank = rank_of(spaces, after + 1);
	return rank < spaces->n ? spaces->sorted[rank] : NULL;
}

int kv_spaces_enter(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_spaces *spaces = &cache->spaces;
	uint32_t rank = rank_of(spaces, space->id), place;
	const uint32_t room = spaces->room ? spaces->room * 2 : FIRST_ROOM;
	struct kv_space **more;

	kv_assert_locked(&cache->lock);
	if (rank < spaces->n && spaces->sorted[rank]->id == space->id)
		return -EEXIST;
	if (spaces->n == spaces->room) {
		if (room > PLACES_MAX)
			return -ENOSPC;
		more = reallocarray(spaces->sorted, room, sizeof(*more));
		if (!more)
			return -ENOMEM;
		spaces->sorted = more;
		more = reallocarray(spaces->at, room, sizeof(*more));
		if (!more)
			return -ENOMEM;
		memset(more + spaces->room, 0,
		       (room - spaces->room) * sizeof(*more));
		spaces->at = more;
		spaces->room = room;
	}
	memmove(spaces->sorted + rank + 1, spaces->sorted + rank,
		(spaces->n - rank) * sizeof(struct kv_space *));
	spaces->sorted[rank] = space;
	spaces->n++;
	for (place = spaces->places_hint; spaces->at[place];)
		place++;
	spaces->at[place] = space;
	spaces->places_hint = place + 1;
	space->place = place;
	return 0;
}

void kv_spaces_leave(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_spaces *spaces = &cache->spaces;
	uint32_t rank = rank_of(spaces, space->id);

	kv_assert_locked(&cache->lock);
	assert(spaces->sorted[rank] == space);
	spaces->n--;
	memmove(spaces->sorted + rank, spaces->sorted + rank + 1,
		(spaces->n - rank) * sizeof(struct kv_space *));
	spaces->at[space->place] = NULL;
	spaces->places_hint = KV_MIN(spaces->places_hint, space->place);
}

struct kv_space *kv_space_get(struct kv_space *space)
{
	atomic_fetch_add_explicit(&space->refs, 1, memory_order_relaxed);
	return space;
}

void kv_space_putp(struct kv_space **space)
{
	kv_space_put(*space);
}

void kv_space_put(struct kv_space *space)
{
	if (space)
		atomic_fetch_sub_explicit(&space->refs, 1,
					  memory_order_release);
}
