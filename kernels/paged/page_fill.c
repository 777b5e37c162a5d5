/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page_fill.c - a few blocks on their way from the cache to pages of a reserved
 * pool.
 *
 * OWNS      a lease and a load, from kv_page_fill_start until the load is
 * COPIED.
 *
 * INVARIANTS
 *   (1) Its pages are COMING for as long as it is there: nobody takes them,
 *       also when nobody wants them any more.
 *   (2) It has no deadline of its own: those who wait have.
 *
 * LOCKING   session->lock.
 */
#include "kernels/paged/page_fill.h"
#include "kernels/transfer/lease.h"
#include "kernels/paged/map.h"
#include "kernels/session/space.h"
#include "kernels/transfer/xfer.h"

int kv_page_fill_new_locked(struct kv_paged_pool *paged,
			    struct kvfs_space *space,
			    struct kv_page_fill **ret_fill)
{
	struct kv_page_fill *fill = calloc(1, sizeof(*fill));

	if (fill == NULL)
		return -ENOMEM;
	fill->paged = paged;
	fill->space = space;
	fill->limit = (size_t)KV_MAX(KV_PAGE_FILL_BYTES / paged->stride, 1u);
	fill->limit = KV_MIN(fill->limit, (size_t)KV_PAGE_FILL_PAGES);
	kv_lib_space_get_locked(space);
	*ret_fill = fill;
	return 0;
}

bool kv_page_fill_is_full(const struct kv_page_fill *fill)
{
	return fill->n == fill->limit;
}

void kv_page_fill_add_locked(struct kv_page_fill *fill, struct kv_page *page)
{
	page->fill = fill;
	fill->page[fill->n++] = page;
}

void kv_page_fill_want_locked(struct kv_page_fill *fill)
{
	fill->wanted++;
}

void kv_page_fill_unwant_locked(struct kv_page_fill *fill)
{
	assert(fill->wanted > 0);
	if (--fill->wanted == 0 && fill->load != NULL)
		kv_xfer_stop_locked(fill->load, -ECANCELED);
}

/* @status: why nothing was loaded, or 0. */
static void over_locked(struct kv_page_fill *fill, int status)
{
	size_t i;
	int r;

	for (i = 0; i < fill->n; i++) {
		r = status;
		if (r == 0)
			r = atomic_load(&fill->load->status[i]);
		fill->page[i]->fill = NULL;
		kv_map_page_over_locked(fill->paged, fill->page[i], r);
	}
	if (fill->load != NULL)
		kv_xfer_put_locked(fill->load);
	if (fill->lease != NULL)
		kv_lease_release_locked(fill->lease);
	kv_lib_space_put_locked(fill->space);
	free(fill);
}

static void load_over(struct kvfs_xfer *load, enum kvfs_stage stage)
{
	if (stage == KVFS_COPIED)
		over_locked(load->owner, 0);
}

static int lease_and_load(struct kv_page_fill *fill, const kvfs_opts *opts,
			  kvfs_lease **ret_lease, kvfs_xfer **ret_load)
{
	const struct kv_paged_pool *paged = fill->paged;
	int64_t pages[KV_PAGE_FILL_PAGES];
	kvfs_key keys[KV_PAGE_FILL_PAGES];
	const kvfs_query query = {fill->space, keys, fill->n};
	kvfs_opts how = opts == NULL ? (kvfs_opts){0} : *opts;
	size_t i;
	int r;

	for (i = 0; i < fill->n; i++) {
		keys[i] = fill->page[i]->key;
		pages[i] = (int64_t)kv_page_table_index(paged->page_table,
							fill->page[i]);
	}
	how.deadline = 0;
	r = kvfs_acquire(&query, 1, 0, KVFS_FOREVER, ret_lease);
	if (r < 0)
		return r;
	return kvfs_load(paged->inner, *ret_lease, fill->n, pages, &how,
			 ret_load);
}

void kv_page_fill_start(struct kv_page_fill *fill, const kvfs_opts *opts)
{
	struct kvfs_session *session = fill->paged->inner->session;
	kvfs_lease *lease = NULL;
	kvfs_xfer *load = NULL;
	int r = lease_and_load(fill, opts, &lease, &load);

	pthread_mutex_lock(&session->lock);
	fill->lease = lease;
	fill->load = load;
	if (r < 0 || load->left[KVFS_COPIED] == 0) {
		over_locked(fill, r);
	} else {
		load->owner = fill;
		load->over = load_over;
		if (fill->wanted == 0)
			kv_xfer_stop_locked(load, -ECANCELED);
	}
	pthread_mutex_unlock(&session->lock);
}
