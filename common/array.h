/* SPDX-License-Identifier: Apache-2.0 */
/*
 * array.h - growable arrays.
 *
 * Both calls return 0, or -ENOMEM: then the array is unchanged.  The owner
 * frees the array with free(3).
 */
#ifndef KV_COMMON_ARRAY_H
#define KV_COMMON_ARRAY_H

#include "common/kv.h"

/* @items is the address of a pointer.  memcpy reads and writes that pointer,
 * because an access as void ** would break C's aliasing rules. */
static inline int kv_array_resize(void *items, size_t room, size_t size)
{
	void *old, *resized;

	memcpy(&old, items, sizeof(old));
	resized = reallocarray(old, room, size);
	if (!resized)
		return -ENOMEM;
	memcpy(items, &resized, sizeof(resized));
	return 0;
}

static inline int kv_array_grow(void *items, size_t *room, size_t n,
				size_t size)
{
	const size_t more = KV_MAX(KV_MAX(2 * *room, n), (size_t)16);
	int r;

	if (n <= *room)
		return 0;
	r = kv_array_resize(items, more, size);
	if (r == 0)
		*room = more;
	return r;
}

static inline int kv_array_append(void *items, size_t n, size_t size)
{
	if (n & (n - 1) || (n > 0 && n < 16))
		return 0;
	return kv_array_resize(items, n ? 2 * n : 16, size);
}

/* Make room for at least @n items in the array *@items, whose present room is
 * *@room (a size_t). */
#define kv_array_reserve(items, room, n) \
	kv_array_grow((items), (room), (n), sizeof(**(items)))

/* Make room for one more item in the array *@items of @n.  Allocate the array
 * by this macro only: it computes the array's room from @n. */
#define kv_array_more(items, n) kv_array_append((items), (n), sizeof(**(items)))

#endif
