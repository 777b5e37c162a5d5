/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging.c - stages (memfds for staging), made and grown in the background.
 *
 * OWNS      the memfd of a stage, its mapping and its extents;
 *           session->stage and session->stage_next.
 *
 * STATES    of an extent:
 *
 *              (none) -> IN USE   kv_stage_get
 *              IN USE -> FREE     kv_stage_put
 *                FREE -> (none)   when all older extents are free
 *
 *           of a session's staging:
 *
 *              NONE -> MAKING    kv_staging_need_locked, a small one
 *            MAKING -> NEXT      make_stage
 *              NEXT -> IN USE    kv_staging_swap_locked, when the old stage is
 *                                empty
 *            IN USE -> IN USE    kv_staging_grow_locked makes the next stage
 *            IN USE -> NONE      staging_taken: the daemon refuses the stage
 *                 * -> NONE      the connection is lost (pool.c)
 *
 * INVARIANTS
 *   (1) Extents in the list do not overlap, and are in ring order.
 *   (2) The oldest extent in the list is in use.
 *   (3) An abandoned stage hands out no extents, and ends with its last extent.
 *   (4) shared is the sum of all stages' `share`, KV_STAGE_SHARE at most.
 *   (5) No save waits while a large stage is made, which takes tens of
 *       milliseconds, or seconds where many sessions make one at once.  The
 *       first pool, and each connection from then on, makes a small stage and
 *       begins the large one in the background; saves change to the large one
 *       when the small one is empty.
 *
 * LOCKING   session->lock, but not while memory is made.  A batch owns the memory
 *           of its extent.  shared, of all sessions, is atomic.
 */
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>

#include "common/thread.h"
#include "kernels/device/device.h"
#include "kernels/session/session.h"
#include "kernels/transfer/xfer.h"

#define GROW_AGAIN_NS 1000000000u
#define HUGE_PAGE ((uint64_t)2 << 20)

static _Atomic uint64_t shared;

static void check(const struct kv_stage *stage)
{
	const struct kv_extent *first = TAILQ_FIRST(&stage->extents);

	assert(!first || !first->free);
	assert(stage->head <= stage->bytes);
}

/* Allocate all pages before they are mapped, as a write to a missing page would
 * raise SIGBUS.  The daemon maps a memfd only with these three seals and with
 * all pages present, which a first byte other than 0 in each page shows; it
 * reads other files by pread(2), which is slower. */
static int map_memfd(struct kv_stage *stage, unsigned flags, uint64_t page)
{
	void *base;

	stage->fd = memfd_create("kvfs-staging",
				 MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
	if (stage->fd < 0)
		return -errno;
	if (ftruncate(stage->fd, (off_t)stage->bytes) < 0 ||
	    fallocate(stage->fd, 0, 0, (off_t)stage->bytes) < 0)
		return -errno;
	base = mmap(NULL, stage->bytes, PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_POPULATE, stage->fd, 0);
	if (base == MAP_FAILED)
		return -errno;
	stage->base = base;
	madvise(base, stage->bytes, MADV_DONTFORK);
	for (uint64_t at = 0; at < stage->bytes; at += page)
		stage->base[at] = 1;
	if (fcntl(stage->fd, F_ADD_SEALS,
		  F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) < 0)
		return -errno;
	return 0;
}

static void unmap(struct kv_stage *stage)
{
	if (stage->base)
		munmap(stage->base, stage->bytes);
	stage->base = NULL;
	kv_closep(&stage->fd);
}

/* Unmap the memory of a stage without extents, and free the stage. */
static void destroy(struct kv_stage *stage)
{
	unmap(stage);
	atomic_fetch_sub(&shared, stage->share);
	free(stage);
}

/* fallocate(2) on a memfd takes pages until the machine has none left: refuse
 * sizes out of proportion. */
bool kv_stage_may_be(uint64_t bytes)
{
	return bytes <= (uint64_t)sysconf(_SC_PHYS_PAGES) *
				(uint64_t)sysconf(_SC_PAGESIZE) / 4;
}

int kv_stage_new(uint64_t bytes, bool large, bool shares,
		 struct kv_stage **ret_stage)
{
	struct kv_stage *stage;
	int r = -ENOMEM;

	if (!kv_stage_may_be(bytes))
		return -ENOMEM;
	stage = calloc(1, sizeof(*stage));
	if (!stage)
		return -ENOMEM;
	stage->fd = -1;
	stage->bytes = kv_round_up(bytes, large ? HUGE_PAGE : KV_PAGE);
	TAILQ_INIT(&stage->extents);
	if (shares) {
		stage->share = stage->bytes;
		if (atomic_fetch_add(&shared, stage->bytes) + stage->bytes >
		    KV_STAGE_SHARE) {
			destroy(stage);
			return -EDQUOT;
		}
	}
	if (large)
		r = map_memfd(stage, MFD_HUGETLB | MFD_HUGE_2MB, HUGE_PAGE);
	stage->huge = r == 0;
	if (r < 0) {
		unmap(stage);
		r = map_memfd(stage, 0, KV_PAGE);
	}
	if (r < 0) {
		destroy(stage);
		/* RLIMIT_FSIZE makes ftruncate(2) fail with EFBIG. */
		return r == -ENOSPC || r == -EFBIG ? -ENOMEM : r;
	}
	*ret_stage = stage;
	return 0;
}

void kv_stage_attach_locked(struct kv_stage *stage,
			    struct kvfs_session *session)
{
	kv_assert_locked(&session->lock);
	stage->session = session;
	kv_attach_locked(session, &stage->attached, stage->base, stage->bytes,
			 true);
}

static void detached(struct kvfs_session *session, struct kv_attached *attached)
{
	(void)session;
	destroy(kv_container(attached, struct kv_stage, attached));
}

void kv_stage_free(struct kv_stage *stage)
{
	struct kv_extent *extent;

	if (!stage)
		return;
	while ((extent = TAILQ_FIRST(&stage->extents))) {
		TAILQ_REMOVE(&stage->extents, extent, others);
		free(extent);
	}
	if (!stage->session ||
	    !kv_detach_locked(stage->session, &stage->attached, detached))
		destroy(stage);
}

int kv_stage_get(struct kv_stage *stage, uint64_t bytes,
		 struct kv_extent **ret_extent)
{
	const struct kv_extent *oldest = TAILQ_FIRST(&stage->extents);
	/* Free bytes behind the youngest extent, and before the oldest
	 * extent. */
	uint64_t behind = stage->bytes, before = 0, offset;
	struct kv_extent *extent;

	if (oldest && stage->head > oldest->offset) {
		behind = stage->bytes - stage->head;
		before = oldest->offset;
	} else if (oldest) {
		behind = oldest->offset - stage->head;
	}
	if (stage->abandoned || (bytes > behind && bytes > before))
		return -EAGAIN;
	offset = oldest && bytes <= behind ? stage->head : 0;
	extent = calloc(1, sizeof(*extent));
	if (!extent)
		return -ENOMEM;
	extent->offset = offset;
	TAILQ_INSERT_TAIL(&stage->extents, extent, others);
	stage->head = offset + bytes;
	check(stage);
	*ret_extent = extent;
	return 0;
}

void kv_stage_put(struct kv_stage *stage, struct kv_extent *extent)
{
	extent->free = true;
	while ((extent = TAILQ_FIRST(&stage->extents)) && extent->free) {
		TAILQ_REMOVE(&stage->extents, extent, others);
		free(extent);
	}
	check(stage);
	if (stage->abandoned && TAILQ_EMPTY(&stage->extents))
		kv_stage_free(stage);
}

void kv_stage_abandon(struct kv_stage *stage)
{
	if (!stage)
		return;
	stage->abandoned = true;
	if (TAILQ_EMPTY(&stage->extents))
		kv_stage_free(stage);
}

/* ---- the stages of a session ---- */

/* A WIRE_STAGING message that was not answered yet. */
struct offer {
	struct kv_call call; /* first */
	struct kvfs_session *session;
};

/* A stage that a thread is making. */
struct make_stage {
	struct kvfs_session *session;
	uint64_t generation, bytes;
	bool large; /* saves use the present stage until this one is made */
	bool asked; /* the caller has set the size (kvfs_pool_staging) */
};

static void staging_taken(struct kv_call *call, int status, const void *items)
{
	struct offer *offer = (struct offer *)call;
	struct kvfs_session *session = offer->session;

	(void)items;
	if (status < 0 && atomic_load(&session->live) != 0) {
		/* The daemon has no staging now. */
		if (session->stage && session->stage->offer == call->tag)
			kv_stage_abandon(kv_steal(session->stage));
		session->stage_grows_at = kv_time_after(GROW_AGAIN_NS);
		kv_saves_fail_locked(session, status);
	}
	free(offer);
}

/* Begin a stage of the size that the caller has set while another stage was
 * being made. */
static void grow_asked_locked(struct kvfs_session *session)
{
	kv_assert_locked(&session->lock);
	if (session->staging_asked && atomic_load(&session->live) != 0)
		kv_staging_grow_locked(session, 0);
}

/* The daemon looks for blocks in the stage that was offered last, so a new
 * stage is offered only when the old one is empty. */
int kv_staging_swap_locked(struct kvfs_session *session)
{
	struct kv_stage *stage = session->stage_next;
	struct wire_staging item;
	struct kv_packet packet = {
		.header = {.type = WIRE_STAGING, .count = 1},
		.items = &item,
		.bytes = sizeof(item),
	};
	struct offer *offer;
	int r = -ENOMEM;

	kv_assert_locked(&session->lock);
	if (!stage ||
	    (session->stage && !TAILQ_EMPTY(&session->stage->extents)))
		return 0;
	session->stage_next = NULL;
	offer = calloc(1, sizeof(*offer));
	if (offer) {
		item.bytes = stage->bytes;
		packet.fd = stage->fd;
		offer->session = session;
		offer->call.done = staging_taken;
		r = kv_rpc_submit_locked(session, &offer->call, &packet);
	}
	if (r < 0) {
		free(offer);
		kv_stage_free(stage);
		return r;
	}
	kv_stage_abandon(kv_steal(session->stage));
	session->stage = stage;
	stage->offer = offer->call.tag;
	session->stage_full = false;
	kv_stage_attach_locked(stage, session);
	grow_asked_locked(session);
	return 0;
}

/* Make a stage, and keep it as session->stage_next unless a larger one is ready or
 * in use.  Without a first stage saves fail. */
static void *make_stage(void *arg)
{
	struct make_stage *make = arg;
	struct kvfs_session *session = make->session;
	struct kv_stage *stage = NULL;
	int r = kv_stage_new(make->bytes, make->large,
			     make->large && !make->asked, &stage);

	pthread_mutex_lock(&session->lock);
	if (r == 0 &&
	    (!kv_session_is_live(session, make->generation) ||
	     (session->stage && session->stage->bytes >= stage->bytes) ||
	     (session->stage_next &&
	      session->stage_next->bytes >= stage->bytes))) {
		kv_stage_free(stage);
	} else if (r == 0) {
		kv_stage_free(session->stage_next);
		session->stage_next = stage;
		/* Swap stages here, as otherwise only saves swap them. */
		r = kv_staging_swap_locked(session);
	}
	if (make->large)
		session->stage_growing = false;
	else
		session->stage_making = false;
	if (r < 0 && make->large)
		session->stage_grows_at = kv_time_after(GROW_AGAIN_NS);
	else if (r < 0 && r != -ENOTCONN)
		kv_saves_fail_locked(session, r);
	kv_save_pump_locked(session);
	/* The connection made since has begun no stage beside this one. */
	if (!kv_session_is_live(session, make->generation))
		kv_staging_begin_locked(session);
	grow_asked_locked(session);
	free(make);
	pthread_detach(pthread_self());
	kv_session_changed_locked(session);
	pthread_mutex_unlock(&session->lock);
	return NULL;
}

static int make_locked(struct kvfs_session *session, uint64_t bytes, bool large)
{
	struct make_stage *make = malloc(sizeof(*make));
	pthread_t thread;

	kv_assert_locked(&session->lock);
	if (!make)
		return -ENOMEM;
	*make = (struct make_stage){
		.session = session,
		.generation = atomic_load(&session->live),
		.bytes = bytes,
		.large = large,
		.asked = session->staging_asked,
	};
	if (kv_thread_start(&thread, "kvfs-staging", make_stage, make) < 0) {
		free(make);
		return -ENOMEM;
	}
	if (large)
		session->stage_growing = true;
	else
		session->stage_making = true;
	return 0;
}

void kv_staging_grow_locked(struct kvfs_session *session, uint64_t block_bytes)
{
	uint64_t bytes = KV_MAX(session->staging_bytes, 2 * block_bytes);

	kv_assert_locked(&session->lock);
	if (!session->stage_growing && !session->stage_next &&
	    kv_now_ns() >= session->stage_grows_at &&
	    (!session->stage || session->stage->bytes < bytes))
		(void)make_locked(session, bytes, true);
}

int kv_staging_need_locked(struct kvfs_session *session, uint64_t block_bytes)
{
	int r = kv_staging_swap_locked(session);

	if (r < 0)
		return r;
	/* A full stage is not used further when a larger one is ready: the
	 * stages are swapped once the full one is empty. */
	if (session->stage && session->stage->bytes >= 2 * block_bytes &&
	    !(session->stage_full && session->stage_next))
		return 0;
	if (!session->stage_making && !session->stage_next)
		r = make_locked(session,
				KV_MAX(KV_STAGE_FIRST, 2 * block_bytes), false);
	return r < 0 ? r : -EAGAIN;
}

void kv_staging_begin_locked(struct kvfs_session *session)
{
	const uint64_t bytes =
		kv_round_up(session->stage_payload, KV_SAVE_ALIGN);

	kv_assert_locked(&session->lock);
	if (atomic_load(&session->live) == 0 || session->stage_payload == 0)
		return;
	session->stage_grows_at = 0; /* a former connection set it */
	if (kv_staging_need_locked(session, bytes) != -ENOTCONN)
		kv_staging_grow_locked(session, bytes);
}
