/* SPDX-License-Identifier: Apache-2.0 */
/*
 * deadline.h - deadlines of requests, in a heap.
 */
#ifndef KV_FS_CONTROL_DEADLINE_H
#define KV_FS_CONTROL_DEADLINE_H

#include "common/kv.h"

/* In the owner's memory, zeroed at first; in at most one list. */
struct kv_deadline {
	uint64_t at_ns; /* kv_now_ns() */
	size_t place;	/* the list's own; 0: not set */
};

struct kv_deadlines {
	struct kv_deadline **heap; /* heap[1..n] */
	size_t n, room;
};

/* A zeroed list is empty. */
void kv_deadlines_fini(struct kv_deadlines *list);

/* @deadline must not be set.  -ENOMEM. */
int kv_deadline_set(struct kv_deadlines *list, struct kv_deadline *deadline,
		    uint64_t at_ns);
/* Nothing happens if it is not set. */
void kv_deadline_clear(struct kv_deadlines *list, struct kv_deadline *deadline);

/* The earliest one; NULL if there is none. */
struct kv_deadline *kv_deadline_first(const struct kv_deadlines *list);

#endif
