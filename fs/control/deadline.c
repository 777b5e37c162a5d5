/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deadline.c - a binary heap of deadlines.
 *
 * OWNS      the array of pointers; the deadlines are their owners'.
 *
 * INVARIANTS
 *   (1) heap[d->place] == d for every deadline that is set.
 *   (2) No deadline is earlier than the one at place / 2.
 *
 * LOCKING   none: one thread uses a list.
 */
#include "fs/control/deadline.h"
#include "common/array.h"

void kv_deadlines_fini(struct kv_deadlines *list)
{
	free(list->heap);
	*list = (struct kv_deadlines){0};
}

static void put(struct kv_deadlines *list, size_t place, struct kv_deadline *d)
{
	list->heap[place] = d;
	d->place = place;
}

/* Find the place of @d, beginning at the free place @at. */
static void settle(struct kv_deadlines *list, size_t at, struct kv_deadline *d)
{
	struct kv_deadline **heap = list->heap;
	size_t child;

	for (; at > 1 && heap[at / 2]->at_ns > d->at_ns; at /= 2)
		put(list, at, heap[at / 2]);
	for (; (child = 2 * at) <= list->n; at = child) {
		if (child < list->n &&
		    heap[child + 1]->at_ns < heap[child]->at_ns)
			child++;
		if (heap[child]->at_ns >= d->at_ns)
			break;
		put(list, at, heap[child]);
	}
	put(list, at, d);
}

int kv_deadline_set(struct kv_deadlines *list, struct kv_deadline *deadline,
		    uint64_t at_ns)
{
	/* The heap begins at 1. */
	const int r = kv_array_reserve(&list->heap, &list->room, list->n + 2);

	if (r < 0)
		return r;
	deadline->at_ns = at_ns;
	list->n++;
	settle(list, list->n, deadline);
	return 0;
}

void kv_deadline_clear(struct kv_deadlines *list, struct kv_deadline *deadline)
{
	size_t place = deadline->place;
	struct kv_deadline *last;

	if (!place)
		return;
	last = list->heap[list->n--];
	deadline->place = 0;
	if (last != deadline)
		settle(list, place, last);
}

struct kv_deadline *kv_deadline_first(const struct kv_deadlines *list)
{
	return list->n ? list->heap[1] : NULL;
}
