/* SPDX-License-Identifier: Apache-2.0 */
/*
 * landing.h - the memory through which bytes go to a helper and come from it: a
 * memfd, and who has which part of it.
 */
#ifndef KV_CACHE_REMOTE_LANDING_H
#define KV_CACHE_REMOTE_LANDING_H

#include <sys/queue.h>

#include "common/kv.h"

struct kv_place {
	uint64_t at, bytes;
	TAILQ_ENTRY(kv_place) link; /* landing.c's */
};

/* A part of its owner; all zero, but for kv_landing_init, is one without memory. */
struct kv_landing {
	uint8_t *memory;
	uint64_t bytes;
	TAILQ_HEAD(, kv_place) taken; /* by place */
};

void kv_landing_init(struct kv_landing *landing);

/*
 * Make it, mapped here, of fixed size; pages are taken when they are touched.
 * Returns the descriptor, the caller's, or -errno.
 */
int kv_landing_make(struct kv_landing *landing, uint64_t bytes);

/* Unmap it.  Places stay taken. */
void kv_landing_drop(struct kv_landing *landing);

/* The lowest place that is free; -EAGAIN.  @place is linked until it is freed. */
int kv_place_take(struct kv_landing *landing, uint64_t bytes,
		  struct kv_place *place);
void kv_place_free(struct kv_landing *landing, struct kv_place *place);

#endif
