/* SPDX-License-Identifier: Apache-2.0 */
/*
 * timer.c - deadlines of leases and transfers, kept by the reader thread.
 *
 * OWNS      the list of running timers.  An engine has tens of transfers under
 *           way, so it is not sorted.
 *
 * INVARIANTS
 *   (1) A timer is in the list if and only if its @at is not 0.
 *   (2) The reader thread sleeps no longer than to the earliest @at.
 *
 * LOCKING   all under session->lock.
 */
#include "kernels/session/session.h"
#include "kernels/session/timer.h"

void kv_timer_start_locked(struct kvfs_session *session, struct kv_timer *timer,
			   uint64_t at)
{
	kv_assert_locked(&session->lock);
	kv_timer_stop_locked(session, timer);
	if (at == UINT64_MAX)
		return;
	timer->at = KV_MAX(at, 1u);
	LIST_INSERT_HEAD(&session->timers, timer, others);
	if (at < session->sleeps_until)
		kv_session_wake(session);
}

void kv_timer_stop_locked(struct kvfs_session *session, struct kv_timer *timer)
{
	kv_assert_locked(&session->lock);
	if (timer->at == 0)
		return;
	LIST_REMOVE(timer, others);
	timer->at = 0;
}

static struct kv_timer *earliest_locked(struct kvfs_session *session)
{
	struct kv_timer *t, *first = NULL;

	LIST_FOREACH(t, &session->timers, others)
		if (first == NULL || t->at < first->at)
			first = t;
	return first;
}

uint64_t kv_timers_run_locked(struct kvfs_session *session)
{
	uint64_t now = kv_now_ns();
	struct kv_timer *t;

	kv_assert_locked(&session->lock);
	while ((t = earliest_locked(session)) != NULL) {
		if (t->at > now)
			return t->at;
		kv_timer_stop_locked(session, t);
		t->fire(t);
	}
	return UINT64_MAX;
}
