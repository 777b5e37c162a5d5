/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spaces.c - the spaces that there are, by id and by place.
 *
 * OWNS       the two arrays.  A space's id is never used again: it stands on
 *            disk, in messages and in inode numbers.  Its place, which its
 *            blocks in memory have, is.
 *
 * INVARIANTS
 *   (1) sorted[] has every space once, by ascending id.
 *   (2) at[] has each of them at its place, and NULL where there is none; below
 *       places_hint there is no free one.
 *
 * LOCKING    cache->lock; the count of references has none.
 */
#include "cache/core/spaces.h"
#include "cache/core/core.h"

#include <stdatomic.h>

#define PLACES_MAX (1u << 24) /* kv_block.place has so many bits */
#define FIRST_ROOM 16u

/* Where it is, or would be. */
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

/* Room for one more in both arrays. */
static int make_room(struct kv_spaces *spaces)
{
	const uint32_t room = spaces->room ? spaces->room * 2 : FIRST_ROOM;
	struct kv_space **more;

	if (spaces->n < spaces->room)
		return 0;
	if (room > PLACES_MAX)
		return -ENOSPC;
	more = reallocarray(spaces->sorted, room, sizeof(*more));
	if (!more)
		return -ENOMEM;
	spaces->sorted = more;
	more = reallocarray(spaces->at, room, sizeof(*more));
	if (!more)
		return -ENOMEM;
	memset(more + spaces->room, 0, (room - spaces->room) * sizeof(*more));
	spaces->at = more;
	spaces->room = room;
	return 0;
}

int kv_spaces_enter(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_spaces *spaces = &cache->spaces;
	uint32_t rank = rank_of(spaces, space->id), place;
	int r;

	kv_assert_locked(&cache->lock);
	if (rank < spaces->n && spaces->sorted[rank]->id == space->id)
		return -EEXIST;
	r = make_room(spaces);
	if (r < 0)
		return r;
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

void kv_spaces_fini(struct kv_spaces *spaces)
{
	free(spaces->sorted);
	free(spaces->at);
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
