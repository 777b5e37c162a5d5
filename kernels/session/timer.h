/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timer.h - deadlines of leases and transfers, kept by the reader thread.
 *
 * All calls with session->lock held.
 */
#ifndef KV_KERNELS_SESSION_TIMER_H
#define KV_KERNELS_SESSION_TIMER_H

#include <sys/queue.h>

#include "common/kv.h"

struct kvfs_session;

/* Part of what it belongs to; zeroed memory is a timer at rest. */
struct kv_timer {
	LIST_ENTRY(kv_timer) others;
	uint64_t at;			      /* kv_now_ns; 0: at rest */
	void (*fire)(struct kv_timer *timer); /* lock held; at rest then */
};
LIST_HEAD(kv_timers, kv_timer);

/* Run @fire at @at, or never if that is UINT64_MAX. */
void kv_timer_start_locked(struct kvfs_session *session, struct kv_timer *timer,
			   uint64_t at);
void kv_timer_stop_locked(struct kvfs_session *session, struct kv_timer *timer);

/* Fire what is due; returns when the next one is, or UINT64_MAX. */
uint64_t kv_timers_run_locked(struct kvfs_session *session);

#endif
