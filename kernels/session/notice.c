/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notice.c - completions that say which: what leases and transfers have to
 * tell, in the order in which it happened, until it is reaped.
 *
 * OWNS      session->notices.  A notice is part of the lease or transfer, so
 *           that telling needs no memory, and what is freed tells no more.
 *
 * INVARIANTS
 *   (1) A notice is in session->notices if and only if something of it is
 *       pending.
 *   (2) Each stage of a lease or transfer is told once.
 *   (3) kvfs_fd stays readable as long as something is left to be reaped.
 *
 * LOCKING   session->lock.
 */
#include "kernels/session/notice.h"
#include "kernels/session/session.h"

void kv_notice_post_locked(struct kvfs_session *session,
			   struct kv_notice *notice, unsigned stage,
			   int64_t result)
{
	kv_assert_locked(&session->lock);
	if (notice->user == 0 || !(notice->stages & 1u << stage))
		return;
	if (notice->pending == 0)
		TAILQ_INSERT_TAIL(&session->notices, notice, others);
	notice->stages &= ~(1u << stage);
	notice->pending |= 1u << stage;
	notice->result[stage] = result;
}

void kv_notice_drop_locked(struct kvfs_session *session,
			   struct kv_notice *notice)
{
	kv_assert_locked(&session->lock);
	if (notice->pending != 0)
		TAILQ_REMOVE(&session->notices, notice, others);
	notice->pending = 0;
	notice->user = 0;
}

/* The first of those that are pending. */
static unsigned first_stage(unsigned pending)
{
	return pending & 1u << KVFS_SUBMITTED
		       ? KVFS_SUBMITTED
		       : (unsigned)__builtin_ctz(pending);
}

static void take_locked(struct kvfs_session *session, kvfs_event *ret_event)
{
	struct kv_notice *notice = TAILQ_FIRST(&session->notices);
	unsigned stage = first_stage(notice->pending);

	kv_assert_locked(&session->lock);
	*ret_event = (kvfs_event){.what = notice->what,
				  .stage = stage,
				  .user = notice->user,
				  .result = notice->result[stage],
				  .n = notice->n,
				  .generation = session->generations};
	notice->pending &= ~(1u << stage);
	if (notice->pending == 0)
		TAILQ_REMOVE(&session->notices, notice, others);
}

static void take_link_locked(struct kvfs_session *session,
			     kvfs_event *ret_event)
{
	kv_assert_locked(&session->lock);
	*ret_event = (kvfs_event){.what = KVFS_EVENT_CONNECTION,
				  .result = kv_session_state_locked(session),
				  .generation = session->generations};
	session->link_unreaped = false;
}

long kvfs_reap(kvfs_session *session, kvfs_event *ret_events, size_t n)
{
	size_t got = 0;
	int r = kv_session_check(session);

	if (r < 0)
		return r;
	if (n == 0)
		return 0;
	if (!ret_events)
		return -EINVAL;
	pthread_mutex_lock(&session->lock);
	if (session->link_unreaped)
		take_link_locked(session, &ret_events[got++]);
	while (got < n && !TAILQ_EMPTY(&session->notices))
		take_locked(session, &ret_events[got++]);
	if (TAILQ_EMPTY(&session->notices))
		kv_session_clear_news_locked(session);
	pthread_mutex_unlock(&session->lock);
	return (long)got;
}
