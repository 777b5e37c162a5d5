/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage.c - the memory that blocks are gathered in for the daemon to take.
 *
 * OWNS      the memfd, its mapping and the extents.
 *
 * STATES    of an extent:
 *
 *              (none) -> IN USE   kv_stage_get
 *              IN USE -> FREE     kv_stage_put
 *                FREE -> (none)   once all older ones are free, too
 *
 * INVARIANTS
 *   (1) Extents in the list do not overlap, and are in ring order.
 *   (2) The oldest extent in the list is in use.
 *   (3) An abandoned staging hands out no more extents and goes with the last.
 *   (4) shared is the sum of what stages have of it, KV_STAGE_SHARE at most.
 *
 * LOCKING   session->lock; the memory of an extent belongs to who got it.
 *           shared, of all sessions, is atomic.
 */
#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>

#include "kernels/session/attach.h"
#include "kernels/session/session.h"
#include "kernels/transfer/stage.h"

#define HUGE_PAGE ((uint64_t)2 << 20)

struct kv_stage {
	int fd;
	uint8_t *base;
	uint64_t bytes;
	uint64_t share; /* of shared */
	bool huge;
	bool abandoned;
	struct kvfs_session *session; /* whose device knows of it, or NULL */
	struct kv_attached attached;
	uint64_t head;			 /* end of the youngest extent */
	TAILQ_HEAD(, kv_extent) extents; /* oldest first */
};

static _Atomic uint64_t shared;

static void check(const struct kv_stage *stage)
{
	const struct kv_extent *first = TAILQ_FIRST(&stage->extents);

	assert(!first || !first->free);
	assert(stage->head <= stage->bytes);
}

/*
 * Allocate all of the memory before it is mapped: a write must not find a page
 * missing.  The daemon maps a memfd that has these three seals and all of its
 * pages, each of which it can tell by a first byte that is not 0; others it
 * reads by pread(2), which is slower.
 */
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
	stage->fd = -1;
	atomic_fetch_sub(&shared, stage->share);
	stage->share = 0;
}

/* fallocate of a memfd takes page after page until the machine has none left:
 * what is out of proportion must not get that far. */
static uint64_t memory_bytes(void)
{
	return (uint64_t)sysconf(_SC_PHYS_PAGES) *
	       (uint64_t)sysconf(_SC_PAGESIZE);
}

bool kv_stage_may_be(uint64_t bytes)
{
	return bytes <= memory_bytes() / 4;
}

static void freep(struct kv_stage **stage)
{
	kv_stage_free(*stage);
}

static int stage_alloc(uint64_t bytes, uint64_t page,
		       struct kv_stage **ret_stage)
{
	struct kv_stage *stage;

	if (!kv_stage_may_be(bytes))
		return -ENOMEM;
	stage = calloc(1, sizeof(*stage));
	if (!stage)
		return -ENOMEM;
	stage->fd = -1;
	stage->bytes = kv_round_up(bytes, page);
	TAILQ_INIT(&stage->extents);
	*ret_stage = stage;
	return 0;
}

static int error_of(int r)
{
	/* EFBIG: RLIMIT_FSIZE */
	return r == -ENOSPC || r == -EFBIG ? -ENOMEM : r;
}

int kv_stage_new(uint64_t bytes, struct kv_stage **ret_stage)
{
	_cleanup_(freep) struct kv_stage *stage = NULL;
	int r;

	r = stage_alloc(bytes, KV_PAGE, &stage);
	if (r == 0)
		r = error_of(map_memfd(stage, 0, KV_PAGE));
	if (r < 0)
		return r;
	*ret_stage = kv_steal(stage);
	return 0;
}

/* @stage's part of what sessions share. */
static int take_share(struct kv_stage *stage)
{
	uint64_t before = atomic_fetch_add(&shared, stage->bytes);

	if (before + stage->bytes <= KV_STAGE_SHARE) {
		stage->share = stage->bytes;
		return 0;
	}
	atomic_fetch_sub(&shared, stage->bytes);
	return -EDQUOT;
}

static int map_large(struct kv_stage *stage)
{
	uint64_t share = stage->share;
	int r = map_memfd(stage, MFD_HUGETLB | MFD_HUGE_2MB, HUGE_PAGE);

	stage->huge = r == 0;
	if (r == 0)
		return 0;
	stage->share = 0;
	unmap(stage);
	stage->share = share;
	return map_memfd(stage, 0, KV_PAGE);
}

int kv_stage_grow(uint64_t bytes, bool asked, struct kv_stage **ret_stage)
{
	_cleanup_(freep) struct kv_stage *stage = NULL;
	int r;

	r = stage_alloc(bytes, HUGE_PAGE, &stage);
	if (r == 0 && !asked)
		r = take_share(stage);
	if (r == 0)
		r = error_of(map_large(stage));
	if (r < 0)
		return r;
	*ret_stage = kv_steal(stage);
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
	struct kv_stage *stage =
		kv_container(attached, struct kv_stage, attached);

	(void)session;
	unmap(stage);
	free(stage);
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
	if (stage->session &&
	    kv_detach_locked(stage->session, &stage->attached, detached))
		return;
	unmap(stage);
	free(stage);
}

uint8_t *kv_stage_data(struct kv_stage *stage)
{
	return stage->base;
}

uint64_t kv_stage_bytes(const struct kv_stage *stage)
{
	return stage->bytes;
}

bool kv_stage_is_huge(const struct kv_stage *stage)
{
	return stage->huge;
}

int kv_stage_fd(const struct kv_stage *stage)
{
	return stage->fd;
}

bool kv_stage_is_idle(const struct kv_stage *stage)
{
	return TAILQ_EMPTY(&stage->extents);
}

/* Where @bytes fit after the youngest extent; UINT64_MAX: nowhere now. */
static uint64_t place(const struct kv_stage *stage, uint64_t bytes)
{
	const struct kv_extent *oldest = TAILQ_FIRST(&stage->extents);

	if (!oldest)
		return bytes <= stage->bytes ? 0 : UINT64_MAX;
	if (stage->head > oldest->offset) {
		if (bytes <= stage->bytes - stage->head)
			return stage->head;
		return bytes <= oldest->offset ? 0 : UINT64_MAX;
	}
	if (bytes <= oldest->offset - stage->head)
		return stage->head;
	return UINT64_MAX;
}

int kv_stage_get(struct kv_stage *stage, uint64_t bytes,
		 struct kv_extent **ret_extent)
{
	struct kv_extent *extent;
	uint64_t offset = place(stage, bytes);

	if (stage->abandoned || offset == UINT64_MAX)
		return -EAGAIN;
	extent = calloc(1, sizeof(*extent));
	if (!extent)
		return -ENOMEM;
	extent->offset = offset;
	extent->bytes = bytes;
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
	if (stage->abandoned && kv_stage_is_idle(stage))
		kv_stage_free(stage);
}

void kv_stage_abandon(struct kv_stage *stage)
{
	if (!stage)
		return;
	stage->abandoned = true;
	if (kv_stage_is_idle(stage))
		kv_stage_free(stage);
}

void kv_stage_forked(struct kv_stage *stage)
{
	if (stage)
		kv_closep(&stage->fd);
}
