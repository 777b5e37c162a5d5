/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notice.h - what kvfs_reap has to tell of a lease or a transfer.
 *
 * Part of what it belongs to; zeroed memory is one that nobody asked for.
 * Calls in _locked with session->lock held.
 */
#ifndef KV_KERNELS_SESSION_NOTICE_H
#define KV_KERNELS_SESSION_NOTICE_H

#include <sys/queue.h>

#include "kernels/kvfs.h"
#include "common/kv.h"

struct kv_notice {
	TAILQ_ENTRY(kv_notice) others; /* in session->notices, if pending */
	uint64_t user;		       /* the caller's word; 0: not asked for */
	uint32_t what;		       /* enum kvfs_event_what */
	unsigned stages;	       /* bits: what is to be told */
	unsigned pending;	       /* of them, what is not reaped yet */
	uint64_t n;
	int64_t result[KVFS_SUBMITTED + 1];
};
TAILQ_HEAD(kv_notices, kv_notice);

#define KV_NOTICE_ALL \
	(1u << KVFS_COPIED | 1u << KVFS_SEALED | 1u << KVFS_DURABLE)

/* @result blocks are at @stage (a lease: 0), and no more will be. */
void kv_notice_post_locked(struct kvfs_session *session,
			   struct kv_notice *notice, unsigned stage,
			   int64_t result);

/* Nothing is to be told any more; it can be freed. */
void kv_notice_drop_locked(struct kvfs_session *session,
			   struct kv_notice *notice);

#endif
