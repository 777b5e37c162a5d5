/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page_set.c - pages of a paged pool that the engine writes to: schedule
 * (take), compute, apply (seal, or drop).
 *
 * OWNS      sets of pages, and the pages of those that are not over.
 *
 * STATES    of a set:
 *
 *               TAKEN -> SEALING   kvfs_pages_seal
 *             SEALING -> TAKEN     kvfs_pages_seal (the save could not begin)
 *             SEALING -> SEALED    seal_locked
 *               TAKEN -> DROPPED   kvfs_pages_drop
 *
 * INVARIANTS
 *   (1) A page of a set is nobody else's until the set is sealed or dropped,
 *       and what the stream was given by then is over.
 *   (2) A page that is sealed is not taken before others find its block in the
 *       cache, or will not: at no moment is it in neither.  Whether the save
 *       succeeds does not matter to the pool: that the bytes are right is what
 *       the caller says by sealing.
 *   (3) A page whose key another page has by now goes back: a block has one.
 *   (4) A set is freed with its last reference: the caller's, the fence's, and
 *       that of the pages that are sealed.
 *
 * LOCKING   session->lock.
 */
#include "kernels/session/abi.h"
#include "kernels/transfer/stream_sync.h"
#include "kernels/paged/map.h"
#include "kernels/session/space.h"
#include "kernels/paged/page_set.h"

enum set_state { SET_TAKEN, SET_SEALING, SET_SEALED, SET_DROPPED };

struct kvfs_pages {
	struct kvfs_session *session; /* fixed */
	struct kv_paged_pool *paged;  /* fixed */
	size_t n;		      /* fixed */

	/* lock */
	LIST_ENTRY(kvfs_pages) others; /* in paged->sets */
	unsigned refs;
	enum set_state state;
	size_t sealed;	  /* of the pages, those that have a key */
	unsigned pending; /* until they are let go: the save, the event wait */
	struct kvfs_xfer *save; /* not over; or NULL */
	struct kv_page *page[];
};

static void put_locked(struct kvfs_pages *set)
{
	kv_assert_locked(&set->session->lock);
	assert(set->refs > 0);
	if (--set->refs > 0)
		return;
	LIST_REMOVE(set, others);
	free(set);
}

static void give_back_locked(struct kvfs_pages *set)
{
	kv_assert_locked(&set->session->lock);
	for (size_t i = set->n; i-- > 0;)
		kv_page_table_give(set->paged->page_table, set->page[i]);
}

/* ---- taking ---- */

int kvfs_pages_take(kvfs_pool *pool, size_t n, kvfs_pages **ret_pages)
{
	_cleanup_(kv_freep) struct kvfs_pages *set = NULL;
	struct kv_page_table_counts counts;
	struct kv_page_table *page_table;
	int r = kv_paged_pool_check(pool);

	if (r < 0)
		return r;
	if (!ret_pages || n > UINT32_MAX)
		return -EINVAL;
	set = calloc(1, sizeof(*set) + n * sizeof(set->page[0]));
	if (!set)
		return -ENOMEM;
	set->session = pool->session;
	set->paged = pool->paged;
	set->n = n;
	set->refs = 1;
	page_table = pool->paged->page_table;
	pthread_mutex_lock(&pool->session->lock);
	kv_paged_pool_room(pool->paged, n);
	counts = kv_page_table_count(page_table);
	if (counts.free + counts.cached < n) {
		r = -ENOSPC;
	} else {
		for (size_t i = 0; i < n; i++)
			set->page[i] = kv_page_table_take(page_table);
		LIST_INSERT_HEAD(&pool->paged->sets, set, others);
	}
	pthread_mutex_unlock(&pool->session->lock);
	if (r < 0)
		return r;
	*ret_pages = kv_steal(set);
	return 0;
}

static int check_set(const struct kvfs_pages *set)
{
	return kv_session_check(set ? set->session : NULL);
}

static bool has_page_locked(const struct kvfs_pages *set, size_t i)
{
	kv_assert_locked(&set->session->lock);
	return i < set->n &&
	       (set->state == SET_TAKEN || set->state == SET_SEALING);
}

int64_t kvfs_pages_page(kvfs_pages *pages, size_t i)
{
	int64_t r = check_set(pages);

	if (r < 0)
		return r;
	r = -EINVAL;
	pthread_mutex_lock(&pages->session->lock);
	if (has_page_locked(pages, i))
		r = (int64_t)kv_page_table_index(pages->paged->page_table,
						 pages->page[i]);
	pthread_mutex_unlock(&pages->session->lock);
	return r;
}

void *kvfs_pages_addr(kvfs_pages *pages, size_t i, const char *tensor)
{
	void *addr = NULL;

	if (check_set(pages) < 0)
		return NULL;
	pthread_mutex_lock(&pages->session->lock);
	if (has_page_locked(pages, i))
		addr = kv_paged_pool_addr(pages->paged, pages->page[i], tensor);
	pthread_mutex_unlock(&pages->session->lock);
	return addr;
}

/* ---- dropping ---- */

static void dropped_locked(void *owner)
{
	struct kvfs_pages *set = owner;

	kv_assert_locked(&set->session->lock);
	give_back_locked(set);
	put_locked(set);
}

int kvfs_pages_drop(kvfs_pages *pages, void *stream)
{
	struct kv_stream_fence *fence = NULL;
	int r = check_set(pages);

	if (r == 0)
		r = kv_stream_fence_new(pages->paged->inner, stream, NULL,
					&fence);
	if (r < 0)
		return r;
	pthread_mutex_lock(&pages->session->lock);
	if (pages->state != SET_TAKEN) {
		r = -EINVAL;
	} else {
		pages->state = SET_DROPPED;
		pages->refs++;
		if (fence)
			kv_stream_fence_begin_locked(kv_steal(fence),
						     dropped_locked, pages);
		else
			dropped_locked(pages);
	}
	pthread_mutex_unlock(&pages->session->lock);
	kv_stream_fence_free(fence);
	return r;
}

void kvfs_pages_free(kvfs_pages *pages)
{
	struct kvfs_session *session;

	if (check_set(pages) < 0)
		return;
	session = pages->session;
	pthread_mutex_lock(&session->lock);
	if (pages->state == SET_TAKEN) {
		pages->state = SET_DROPPED;
		give_back_locked(pages);
	}
	put_locked(pages);
	pthread_mutex_unlock(&session->lock);
}

void kv_sets_end_locked(struct kv_paged_pool *paged)
{
	struct kvfs_pages *set;

	kv_assert_locked(&paged->inner->session->lock);
	LIST_FOREACH(set, &paged->sets, others)
		if (set->state == SET_TAKEN) {
			set->state = SET_DROPPED;
			give_back_locked(set);
		}
}

void kv_sets_free_locked(struct kv_paged_pool *paged)
{
	struct kvfs_pages *set;

	kv_assert_locked(&paged->inner->session->lock);
	while ((set = LIST_FIRST(&paged->sets))) {
		if (set->save)
			set->save->over = NULL;
		LIST_REMOVE(set, others);
		free(set);
	}
}

/* ---- sealing ---- */

/* The save is over, or the event wait is done: after both the pages are the
 * pool's.
 */
static void pending_over_locked(struct kvfs_pages *set)
{
	struct kv_page_table *page_table = set->paged->page_table;

	kv_assert_locked(&set->session->lock);
	assert(set->pending > 0);
	if (--set->pending > 0)
		return;
	for (size_t i = set->n; i-- > 0;) {
		if (set->page[i]->state == KV_PAGE_TAKEN)
			kv_page_table_give(page_table, set->page[i]);
		else
			kv_page_table_put(page_table, set->page[i]);
	}
	put_locked(set);
}

static void event_over_locked(void *owner)
{
	struct kvfs_pages *set = owner;

	kv_assert_locked(&set->session->lock);
	for (size_t i = 0; i < set->n; i++)
		if (set->page[i]->state == KV_PAGE_COMING)
			kv_uses_settle_locked(set->paged, set->page[i], 0);
	pending_over_locked(set);
}

static void saved(struct kvfs_xfer *save, enum kvfs_stage stage)
{
	struct kvfs_pages *set = save->owner;

	if (stage != KVFS_SEALED)
		return;
	set->save = NULL;
	pending_over_locked(set);
}

static void name_locked(struct kvfs_pages *set,
			struct kv_page_table_space *space, const kvfs_key *keys,
			size_t n)
{
	struct kv_page_table *page_table = set->paged->page_table;

	kv_assert_locked(&set->session->lock);
	for (size_t i = 0; i < n; i++) {
		if (kv_page_table_find(page_table, space, &keys[i]))
			continue;
		kv_page_table_name(page_table, set->page[i], space, &keys[i]);
		kv_page_table_get(page_table, set->page[i]);
	}
}

static void seal_locked(struct kvfs_pages *set,
			struct kv_page_table_space *space, const kvfs_key *keys,
			struct kvfs_xfer *save, struct kv_stream_fence *fence)
{
	kv_assert_locked(&set->session->lock);
	set->state = SET_SEALED;
	set->refs++;
	set->pending = 2;
	name_locked(set, space, keys, save->n);
	if (fence)
		kv_stream_fence_begin_locked(fence, event_over_locked, set);
	else
		event_over_locked(set);
	if (save->left[KVFS_SEALED] == 0) {
		pending_over_locked(set);
	} else {
		set->save = save;
		save->owner = set;
		save->over = saved;
	}
}

static int save_pages(struct kvfs_pages *set, kvfs_space *space,
		      const kvfs_key *keys, const kvfs_meta *meta, size_t n,
		      const kvfs_opts *opts, kvfs_xfer **ret_xfer)
{
	_cleanup_(kv_freep) int64_t *pages = malloc((n + 1) * sizeof(*pages));

	if (!pages)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		pages[i] = (int64_t)kv_page_table_index(set->paged->page_table,
							set->page[i]);
	return kvfs_save(set->paged->inner, space, keys, meta, n, pages, opts,
			 ret_xfer);
}

/* TAKEN to SEALING, and the space as the page table has it. */
static int begin(struct kvfs_pages *set, const kvfs_space *space,
		 struct kv_page_table_space **ret_known)
{
	int r = 0;

	pthread_mutex_lock(&set->session->lock);
	if (set->state != SET_TAKEN) {
		r = -EINVAL;
	} else {
		*ret_known = kv_page_table_space_get(set->paged->page_table,
						     space->name);
		if (!*ret_known)
			r = -ENOMEM;
		else
			set->state = SET_SEALING;
	}
	pthread_mutex_unlock(&set->session->lock);
	return r;
}

static int seal(struct kvfs_pages *set, kvfs_space *space, const kvfs_key *keys,
		const kvfs_meta *meta, size_t n, const kvfs_opts *opts,
		struct kv_stream_fence **fence, kvfs_xfer **ret_xfer)
{
	struct kv_page_table_space *known;
	int r = begin(set, space, &known);

	if (r < 0)
		return r;
	r = save_pages(set, space, keys, meta, n, opts, ret_xfer);
	pthread_mutex_lock(&set->session->lock);
	if (r < 0)
		set->state = SET_TAKEN;
	else
		seal_locked(set, known, keys, *ret_xfer, kv_steal(*fence));
	kv_page_table_space_put(set->paged->page_table, known);
	pthread_mutex_unlock(&set->session->lock);
	return r;
}

int kvfs_pages_seal(kvfs_pages *pages, kvfs_space *space, const kvfs_key *keys,
		    const kvfs_meta *meta, size_t n, const kvfs_opts *opts,
		    kvfs_xfer **ret_xfer)
{
	struct kv_stream_fence *fence = NULL;
	const struct kvfs_pool *inner;
	kvfs_opts known = {0};
	int r = check_set(pages);

	if (r == 0)
		r = kv_abi_opts(&known, opts);
	if (r < 0)
		return r;
	inner = pages->paged->inner;
	r = kv_paged_pool_check_space(inner, space);
	if (r == 0)
		r = kv_paged_pool_check_opts(inner, &known,
					     KVFS_MUST | KVFS_HOLD |
						     KVFS_TELL_SUBMITTED);
	if (r < 0)
		return r;
	if (!ret_xfer || n > pages->n)
		return -EINVAL;
	r = kv_stream_fence_new(pages->paged->inner, known.stream, known.event,
				&fence);
	if (r == 0)
		r = seal(pages, space, keys, meta, n, &known, &fence, ret_xfer);
	kv_stream_fence_free(fence);
	return r;
}
