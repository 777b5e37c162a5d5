/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging.c - the memory that a session's saves go by: made and grown in the
 * background, and offered to the daemon.
 *
 * OWNS      session->stage and session->stage_next.
 *
 * STATES    of a session's staging:
 *
 *              NONE -> MAKING    kv_staging_need_locked, a small one
 *            MAKING -> NEXT      stage_made_locked
 *              NEXT -> IN USE    kv_staging_swap_locked, when nothing is in the
 *                                one before
 *            IN USE -> IN USE    kv_staging_grow_locked, and then as above
 *                 * -> NONE      the connection is lost (pool.c)
 *
 * INVARIANTS
 *   (1) No save waits for the tens of milliseconds, or seconds where many do so
 *       at once, that a large staging memory takes: with the first pool, and
 *       with each connection from then on, a small one is made and the large
 *       one begun, in the background, and taken when the small one is empty.
 *
 * LOCKING   session->lock, but not while memory is made.
 */
#include "kernels/transfer/batch.h"
#include "kernels/transfer/save.h"
#include "kernels/transfer/stage.h"
#include "kernels/transfer/staging.h"
#include "common/thread.h"

#define GROW_AGAIN_NS 1000000000u

/* Staging that the daemon has been told of. */
struct offer {
	struct kv_call call; /* first */
	struct kvfs_session *session;
};

/* Staging that is being made. */
struct make_stage {
	struct kv_job job; /* first */
	struct kvfs_session *session;
	uint64_t generation, bytes;
	bool asked; /* by the caller */
};

static void staging_taken(struct kv_call *call, int status, const void *items)
{
	struct offer *offer = (struct offer *)call;

	(void)items;
	if (status < 0)
		kv_saves_fail_locked(offer->session, status);
	free(offer);
}

static int offer_locked(struct kvfs_session *session, struct kv_stage *stage)
{
	struct wire_staging item = {.bytes = kv_stage_bytes(stage)};
	struct kv_packet packet = {
		.header = {.type = WIRE_STAGING, .count = 1},
		.items = &item,
		.bytes = sizeof(item),
		.fd = kv_stage_fd(stage),
	};
	struct offer *offer = calloc(1, sizeof(*offer));
	int r;

	kv_assert_locked(&session->lock);
	if (!offer)
		return -ENOMEM;
	offer->session = session;
	offer->call.done = staging_taken;
	r = kv_rpc_submit_locked(session, &offer->call, &packet);
	if (r < 0)
		free(offer);
	return r;
}

/* What the caller asked for while another was being made. */
static void grow_asked_locked(struct kvfs_session *session)
{
	kv_assert_locked(&session->lock);
	if (session->staging_asked && atomic_load(&session->live) != 0)
		kv_staging_grow_locked(session, 0);
}

/* Blocks are found by their place in the staging that was offered last: a new
 * one is, when nothing is in the old. */
int kv_staging_swap_locked(struct kvfs_session *session)
{
	struct kv_stage *stage = session->stage_next;
	int r;

	kv_assert_locked(&session->lock);
	if (!stage || (session->stage && !kv_stage_is_idle(session->stage)))
		return 0;
	session->stage_next = NULL;
	r = offer_locked(session, stage);
	if (r < 0) {
		kv_stage_free(stage);
		return r;
	}
	kv_stage_abandon(kv_steal(session->stage));
	session->stage = stage;
	session->stage_full = false;
	kv_stage_attach_locked(stage, session);
	grow_asked_locked(session);
	return 0;
}

/* Of two that are ready the larger one stays. */
static int stage_made_locked(const struct make_stage *make,
			     struct kv_stage *stage)
{
	struct kvfs_session *session = make->session;
	struct kv_stage *other = session->stage_next;

	kv_assert_locked(&session->lock);
	if (!kv_session_is_live(session, make->generation) ||
	    (other && kv_stage_bytes(other) >= kv_stage_bytes(stage))) {
		kv_stage_free(stage);
		return 0;
	}
	kv_stage_free(other);
	session->stage_next = stage;
	/* Without saves nobody would look. */
	return kv_staging_swap_locked(session);
}

/* The first one. */
static void make_stage(struct kv_job *job)
{
	struct make_stage *make = (struct make_stage *)job;
	struct kvfs_session *session = make->session;
	struct kv_stage *stage = NULL;
	int r = kv_stage_new(make->bytes, &stage);

	pthread_mutex_lock(&session->lock);
	session->stage_making = false;
	if (r == 0)
		r = stage_made_locked(make, stage);
	if (r < 0 && r != -ENOTCONN)
		kv_saves_fail_locked(session, r);
	free(make);
	kv_save_pump_locked(session);
	pthread_mutex_unlock(&session->lock);
}

/* A larger one; without it saves go on by the one there is. */
static void *grow_stage(void *arg)
{
	struct make_stage *make = arg;
	struct kvfs_session *session = make->session;
	struct kv_stage *stage = NULL;
	int r = kv_stage_grow(make->bytes, make->asked, &stage);

	pthread_mutex_lock(&session->lock);
	if (r == 0)
		r = stage_made_locked(make, stage);
	if (r < 0)
		session->stage_grows_at = kv_time_after(GROW_AGAIN_NS);
	free(make);
	kv_save_pump_locked(session);
	session->stage_growing = false;
	grow_asked_locked(session);
	pthread_detach(pthread_self());
	pthread_cond_broadcast(&session->changed);
	pthread_mutex_unlock(&session->lock);
	return NULL;
}

static int make_new_locked(struct kvfs_session *session, uint64_t bytes,
			   struct make_stage **ret_make)
{
	struct make_stage *make = calloc(1, sizeof(*make));

	kv_assert_locked(&session->lock);
	if (!make)
		return -ENOMEM;
	make->job.run = make_stage;
	make->job.kind = KV_JOB_SAVE;
	make->session = session;
	make->generation = atomic_load(&session->live);
	make->bytes = bytes;
	make->asked = session->staging_asked;
	*ret_make = make;
	return 0;
}

void kv_staging_grow_locked(struct kvfs_session *session, uint64_t block_bytes)
{
	uint64_t bytes = KV_MAX(session->staging_bytes, 2 * block_bytes);
	struct make_stage *make;
	pthread_t thread;

	kv_assert_locked(&session->lock);
	if (session->stage_growing || session->stage_next ||
	    kv_now_ns() < session->stage_grows_at ||
	    (session->stage && kv_stage_bytes(session->stage) >= bytes) ||
	    make_new_locked(session, bytes, &make) < 0)
		return;
	session->stage_growing = true;
	if (kv_thread_start(&thread, "kvfs-staging", grow_stage, make) == 0)
		return;
	session->stage_growing = false;
	free(make);
}

/* 0: session->stage will do for blocks of @block_bytes; -EAGAIN: it will be
 * there or drained some time. */
int kv_staging_need_locked(struct kvfs_session *session, uint64_t block_bytes)
{
	uint64_t bytes = KV_MAX(KV_STAGE_FIRST, 2 * block_bytes);
	struct make_stage *make;
	int r = kv_staging_swap_locked(session);

	kv_assert_locked(&session->lock);
	if (r < 0)
		return r;
	/* A stage that is full makes place for a larger one, which is ready. */
	if (session->stage &&
	    kv_stage_bytes(session->stage) >= 2 * block_bytes &&
	    !(session->stage_full && session->stage_next))
		return 0;
	if (session->stage_making || session->stage_next)
		return -EAGAIN;
	r = make_new_locked(session, bytes, &make);
	if (r < 0)
		return r;
	session->stage_making = true;
	kv_copier_submit(session->copier, &make->job);
	return -EAGAIN;
}

void kv_staging_prepare_locked(struct kvfs_session *session, uint64_t payload)
{
	kv_assert_locked(&session->lock);
	session->stage_grows_at = 0;
	kv_staging_grow_locked(session, kv_round_up(payload, KV_SAVE_ALIGN));
}

void kv_staging_begin_locked(struct kvfs_session *session)
{
	const uint64_t bytes =
		kv_round_up(session->stage_payload, KV_SAVE_ALIGN);

	kv_assert_locked(&session->lock);
	if (atomic_load(&session->live) == 0)
		return;
	if (kv_staging_need_locked(session, bytes) != -ENOTCONN)
		kv_staging_grow_locked(session, bytes);
}

void kv_staging_wait_grown(struct kvfs_session *session)
{
	kv_assert_locked(&session->lock);
	while (session->stage_growing)
		kv_session_wait(session, UINT64_MAX);
}
