/* SPDX-License-Identifier: Apache-2.0 */
/*
 * page_fill.c - a few blocks on their way from the cache to pages of a reserved
 * pool.
 *
 * OWNS      a lease and a load, from kv_bring_start until the load is COPIED.
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

int kv_bring_new_locked(struct kv_reserved *reserved, struct kvfs_space *space,
			struct kv_bring **ret_bring)
{
	struct kv_bring *bring = calloc(1, sizeof(*bring));

	if (bring == NULL)
		return -ENOMEM;
	bring->reserved = reserved;
	bring->space = space;
	bring->limit = (size_t)KV_MAX(KV_BRING_BYTES / reserved->stride, 1u);
	bring->limit = KV_MIN(bring->limit, (size_t)KV_BRING_PAGES);
	kv_lib_space_get_locked(space);
	*ret_bring = bring;
	return 0;
}

bool kv_bring_is_full(const struct kv_bring *bring)
{
	return bring->n == bring->limit;
}

void kv_bring_add_locked(struct kv_bring *bring, struct kv_page *page)
{
	page->bring = bring;
	bring->page[bring->n++] = page;
}

void kv_bring_want_locked(struct kv_bring *bring)
{
	bring->wanted++;
}

void kv_bring_unwant_locked(struct kv_bring *bring)
{
	assert(bring->wanted > 0);
	if (--bring->wanted == 0 && bring->load != NULL)
		kv_xfer_stop_locked(bring->load, -ECANCELED);
}

/* @status: why nothing was loaded, or 0. */
static void over_locked(struct kv_bring *bring, int status)
{
	size_t i;
	int r;

	for (i = 0; i < bring->n; i++) {
		r = status;
		if (r == 0)
			r = atomic_load(&bring->load->status[i]);
		bring->page[i]->bring = NULL;
		kv_map_page_over_locked(bring->reserved, bring->page[i], r);
	}
	if (bring->load != NULL)
		kv_xfer_put_locked(bring->load);
	if (bring->lease != NULL)
		kv_lease_release_locked(bring->lease);
	kv_lib_space_put_locked(bring->space);
	free(bring);
}

static void load_over(struct kvfs_xfer *load, enum kvfs_stage stage)
{
	if (stage == KVFS_COPIED)
		over_locked(load->owner, 0);
}

static int lease_and_load(struct kv_bring *bring, const kvfs_opts *opts,
			  kvfs_lease **ret_lease, kvfs_xfer **ret_load)
{
	const struct kv_reserved *reserved = bring->reserved;
	int64_t pages[KV_BRING_PAGES];
	kvfs_key keys[KV_BRING_PAGES];
	const kvfs_query query = {bring->space, keys, bring->n};
	kvfs_opts how = opts == NULL ? (kvfs_opts){0} : *opts;
	size_t i;
	int r;

	for (i = 0; i < bring->n; i++) {
		keys[i] = bring->page[i]->key;
		pages[i] = (int64_t)kv_page_table_index(reserved->page_table,
							bring->page[i]);
	}
	how.deadline = 0;
	r = kvfs_acquire(&query, 1, 0, KVFS_FOREVER, ret_lease);
	if (r < 0)
		return r;
	return kvfs_load(reserved->inner, *ret_lease, bring->n, pages, &how,
			 ret_load);
}

void kv_bring_start(struct kv_bring *bring, const kvfs_opts *opts)
{
	struct kvfs_session *session = bring->reserved->inner->session;
	kvfs_lease *lease = NULL;
	kvfs_xfer *load = NULL;
	int r = lease_and_load(bring, opts, &lease, &load);

	pthread_mutex_lock(&session->lock);
	bring->lease = lease;
	bring->load = load;
	if (r < 0 || load->left[KVFS_COPIED] == 0) {
		over_locked(bring, r);
	} else {
		load->owner = bring;
		load->over = load_over;
		if (bring->wanted == 0)
			kv_xfer_stop_locked(load, -ECANCELED);
	}
	pthread_mutex_unlock(&session->lock);
}
