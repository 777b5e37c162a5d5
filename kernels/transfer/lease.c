/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.c - leases of blocks in DRAM, and prefetches, which lease nothing.
 *
 * OWNS      leases, and a reference to the mapping of each block held.
 *
 * STATES    of a lease: unsettled calls of lease->keys (xfer.c), then
 *           SETTLED.  A call for which the daemon holds blocks is released when
 *           the lease is freed; if ABANDONED, when its answer comes.
 *
 * INVARIANTS
 *   (1) The first lease->arrived blocks do not change; these are all blocks when
 *       the lease has settled.
 *   (2) Each call for which the daemon holds blocks is released exactly once.
 *   (3) A lease is freed with its last reference.
 *   (4) A prefetch sets a key's status before it counts the key.
 *
 * LOCKING   session->lock; blocks and their count are read without it once
 *           settled is true.
 */
#include "kernels/transfer/xfer.h"

static void unref_locked(struct kvfs_lease *lease)
{
	struct kvfs_session *session = lease->session;

	kv_assert_locked(&session->lock);
	assert(lease->refs > 0);
	if (--lease->refs > 0)
		return;
	for (size_t i = 0; i < lease->n; i++)
		if (lease->items[i].mapping)
			kv_mapped_segment_put_locked(session,
						     lease->items[i].mapping);
	/* Release the calls from the last to the first: the daemon evicts the
	 * blocks that were released last after the others, and a chain can only
	 * be reused from its first block. */
	for (size_t i = lease->keys.n; i-- > 0;)
		if (lease->keys.calls[i].held &&
		    kv_session_is_live(session, lease->keys.generation))
			kv_rpc_post_tag_locked(session, WIRE_RELEASE,
					       lease->keys.calls[i].call.tag);
	kv_keys_fini_locked(&lease->keys);
	free(lease);
}

void kv_lease_get_locked(struct kvfs_lease *lease)
{
	kv_assert_locked(&lease->session->lock);
	lease->refs++;
	lease->loads++;
}

static void cancel_locked(struct kvfs_lease *lease)
{
	kv_assert_locked(&lease->session->lock);
	if (!lease->settled)
		kv_keys_cancel_locked(&lease->keys, -ECANCELED);
}

void kv_lease_put_locked(struct kvfs_lease *lease)
{
	kv_assert_locked(&lease->session->lock);
	if (--lease->loads == 0 && lease->released)
		cancel_locked(lease);
	unref_locked(lease);
}

/* Count the leading blocks that have an outcome, and begin to copy those for the
 * loads that wait for them. */
static void arrived_locked(struct kvfs_lease *lease)
{
	struct kvfs_xfer *xfer, *next;

	kv_assert_locked(&lease->session->lock);
	while (lease->arrived < lease->n &&
	       lease->items[lease->arrived].status != -EINPROGRESS)
		lease->arrived++;
	lease->refs++; /* the loads may end at once and put the lease */
	for (xfer = TAILQ_FIRST(&lease->waiting); xfer; xfer = next) {
		next = TAILQ_NEXT(xfer, queue);
		kv_load_begin_locked(xfer);
	}
	unref_locked(lease);
}

/* Count one more call of the lease as settled.  The last one settles the
 * lease. */
static void call_settled_locked(struct kvfs_lease *lease)
{
	kv_assert_locked(&lease->session->lock);
	assert(lease->unsettled > 0);
	if (--lease->unsettled > 0)
		return;
	kv_timer_stop_locked(lease->session, &lease->keys.timer);
	atomic_store_explicit(&lease->settled, true, memory_order_release);
	kv_notice_post_locked(lease->session, &lease->notice, 0, lease->held);
	kv_session_completed_locked(lease->session);
	arrived_locked(lease);
}

static int place_locked(struct kvfs_lease *lease, struct kv_held *held,
			const struct wire_place *place)
{
	int r;

	kv_assert_locked(&lease->session->lock);
	if (place->status != 0)
		return place->status < 0 ? place->status : -EPROTO;
	if (place->payload > place->length)
		return -EBADMSG;
	r = kv_mapped_segment_get_locked(lease->session, place->segment,
					 place->offset, place->length,
					 &held->mapping);
	if (r < 0)
		return r;
	held->file = held->mapping->base + place->offset;
	held->length = place->length;
	held->payload = place->payload;
	held->from = (uint8_t)place->from;
	lease->held++;
	return 0;
}

/* Return whether the daemon holds a block for this call, so that the call must
 * be released. */
static bool any_held(const struct wire_place *places, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (places[i].status == 0)
			return true;
	return false;
}

/* Set the statuses of the call's blocks that have none yet.  Unless the answer is
 * @final, it leaves those of blocks to come at -EINPROGRESS. */
static void place_all_locked(struct kv_keys_call *call, int status,
			     const struct wire_place *places, bool final)
{
	struct kvfs_lease *lease =
		kv_container(call->keys, struct kvfs_lease, keys);

	kv_assert_locked(&lease->session->lock);
	call->held |= status == 0 && any_held(places, call->n);
	for (size_t i = 0; i < call->n; i++) {
		struct kv_held *item = &lease->items[call->first + i];

		if (item->status != -EINPROGRESS)
			continue;
		item->call = (uint32_t)(call - lease->keys.calls);
		item->status = status < 0
				       ? status
				       : place_locked(lease, item, &places[i]);
		if (final && item->status == -EINPROGRESS)
			item->status = -EPROTO;
	}
}

static void part_locked(struct kv_call *kv_call, const void *items)
{
	struct kv_keys_call *call = (struct kv_keys_call *)kv_call;

	if (call->state != KV_KEYS_ASKED)
		return;
	place_all_locked(call, 0, items, false);
	arrived_locked(kv_container(call->keys, struct kvfs_lease, keys));
}

static void settle_locked(struct kv_keys_call *call, int status,
			  const void *items)
{
	place_all_locked(call, status, items, true);
	call_settled_locked(kv_container(call->keys, struct kvfs_lease, keys));
}

/* Release the blocks that the daemon holds for an abandoned call, unless an earlier
 * part of the answer had blocks: then they are released with the lease. */
static void late_locked(struct kv_keys_call *call, int status,
			const void *items)
{
	if (status == 0 && !call->held && any_held(items, call->n))
		kv_rpc_post_tag_locked(call->keys->session, WIRE_RELEASE,
				       call->call.tag);
}

static void get_locked(struct kv_keys *keys)
{
	kv_container(keys, struct kvfs_lease, keys)->refs++;
}

static void put_locked(struct kv_keys *keys)
{
	unref_locked(kv_container(keys, struct kvfs_lease, keys));
}

static const struct kv_keys_ops lease_ops = {
	.settle_locked = settle_locked,
	.part_locked = part_locked,
	.late_locked = late_locked,
	.get_locked = get_locked,
	.put_locked = put_locked,
};

/* Return the deadline in @opts; KVFS_FOREVER if it is 0. */
static uint64_t deadline_of(const kvfs_opts *opts)
{
	return opts->deadline == 0 ? KVFS_FOREVER : opts->deadline;
}

static void settle_prefetch_locked(struct kv_keys_call *call, int status,
				   const void *items)
{
	struct kvfs_xfer *xfer =
		kv_container(call->keys, struct kvfs_xfer, keys);
	const struct wire_status *statuses = items;
	size_t bad = 0;
	int s;

	kv_assert_locked(&xfer->session->lock);
	for (size_t i = 0; i < call->n; i++) {
		s = status < 0 ? status : KV_MIN(statuses[i].status, 0);
		bad += s < 0;
		atomic_store(&xfer->status[call->first + i], s);
	}
	kv_xfer_over_locked(xfer, call->n - bad, bad);
}

static const struct kv_keys_ops prefetch_keys_ops = {
	.settle_locked = settle_prefetch_locked,
	.get_locked = kv_xfer_keys_get_locked,
	.put_locked = kv_xfer_keys_put_locked,
};

static void stop_prefetch_locked(struct kvfs_xfer *xfer)
{
	kv_keys_cancel_locked(&xfer->keys, atomic_load(&xfer->stopped));
}

static const struct kv_xfer_ops prefetch_ops = {
	.stopped_locked = stop_prefetch_locked,
};

/* Begin a prefetch.  @flags: of the messages. */
static int prefetch(const kvfs_query *queries, size_t n_queries,
		    const kvfs_opts *opts, uint16_t flags, kvfs_xfer **ret_xfer)
{
	_cleanup_(kv_xfer_freep) struct kvfs_xfer *xfer = NULL;
	struct wire_header like = {.type = WIRE_PREFETCH, .flags = flags};
	const uint64_t deadline = deadline_of(opts);
	kvfs_session *session;
	long n;
	int r;

	n = kv_queries_check(queries, n_queries, &session);
	if (n < 0)
		return (int)n;
	if (!session || !ret_xfer)
		return -EINVAL;
	r = kv_xfer_new(session, &prefetch_ops, (size_t)n, &xfer);
	if (r == 0)
		r = kv_keys_init(&xfer->keys, session, &prefetch_keys_ops,
				 kv_keys_count(queries, n_queries));
	if (r < 0)
		return r;
	if (deadline != KVFS_FOREVER)
		like.arg = KV_MAX(deadline, 1u);
	if (deadline < UINT64_MAX - KV_GRACE_NS)
		xfer->deadline_at = kv_time_after(deadline + KV_GRACE_NS);
	pthread_mutex_lock(&session->lock);
	kv_xfer_tell_locked(xfer, KVFS_EVENT_XFER, opts->user,
			    1u << KVFS_COPIED);
	if (n > 0)
		kv_xfer_activate_locked(xfer);
	pthread_mutex_unlock(&session->lock);
	kv_keys_ask_queries(&xfer->keys, queries, n_queries, &like);
	*ret_xfer = kv_steal(xfer);
	return 0;
}

int kvfs_prefetch(const kvfs_query *queries, size_t n_queries,
		  const kvfs_opts *opts, kvfs_xfer **ret_xfer)
{
	kvfs_opts known = {0};
	int r = kv_abi_opts(&known, opts);

	if (r < 0)
		return r;
	if (!kv_abi_opts_are_plain(&known, 0))
		return -EINVAL;
	return prefetch(queries, n_queries, &known, 0, ret_xfer);
}

int kvfs_acquire(const kvfs_query *queries, size_t n_queries,
		 const kvfs_opts *opts, kvfs_lease **ret_lease)
{
	const unsigned excluding = KVFS_WAIT_SAVING | KVFS_READ_AHEAD;
	struct wire_header like = {.type = WIRE_ACQUIRE,
				   .flags = WIRE_PARTS | WIRE_FROM};
	struct kvfs_lease *lease;
	kvfs_session *session;
	kvfs_opts known = {0};
	kvfs_xfer *ahead;
	uint64_t deadline;
	size_t n_calls;
	bool hints;
	long n;
	int r;

	n = kv_queries_check(queries, n_queries, &session);
	if (n < 0)
		return (int)n;
	if (!session || !ret_lease)
		return -EINVAL;
	r = kv_abi_opts(&known, opts);
	if (r < 0)
		return r;
	if (!kv_abi_opts_are_plain(&known, excluding | KVFS_AGAIN) ||
	    (known.flags & excluding) == excluding)
		return -EINVAL;
	deadline = deadline_of(&known);
	n_calls = kv_keys_count(queries, n_queries);
	lease = calloc(1, sizeof(*lease) + (size_t)n * sizeof(lease->items[0]));
	if (!lease ||
	    kv_keys_init(&lease->keys, session, &lease_ops, n_calls) < 0) {
		free(lease);
		return -ENOMEM;
	}
	lease->session = session;
	lease->n = (size_t)n;
	lease->refs = 1;
	lease->notice = (struct kv_notice){.what = KVFS_EVENT_LEASE,
					   .stages = 1,
					   .n = lease->n,
					   .user = known.user};
	/* 1 more, so that the lease settles only after all calls were made */
	lease->unsettled = n_calls + 1;
	TAILQ_INIT(&lease->waiting);
	for (size_t i = 0; i < lease->n; i++)
		lease->items[i].status = -EINPROGRESS;
	if (known.flags & KVFS_WAIT_SAVING)
		like.flags |= WIRE_WAIT_SAVING;
	if (known.flags & KVFS_READ_AHEAD)
		like.flags |= WIRE_RESIDENT;
	if (known.flags & KVFS_AGAIN)
		like.flags |= WIRE_AGAIN;
	if (deadline != KVFS_FOREVER)
		like.arg = KV_MAX(deadline, 1u);
	kv_keys_ask_queries(&lease->keys, queries, n_queries, &like);
	pthread_mutex_lock(&session->lock);
	kv_keys_deadline_locked(&lease->keys, deadline);
	call_settled_locked(lease);
	hints = kv_rpc_takes_hints_locked(session);
	pthread_mutex_unlock(&session->lock);
	/* Have the daemon read the blocks that are only on SSD. */
	known.user = 0;
	if (known.flags & KVFS_READ_AHEAD && n > 0 && hints &&
	    prefetch(queries, n_queries, &known, WIRE_AHEAD, &ahead) == 0)
		kvfs_xfer_free(ahead);
	*ret_lease = lease;
	return 0;
}

/* ---- using a lease ---- */

static bool is_settled(struct kvfs_lease *lease)
{
	return atomic_load_explicit(&lease->settled, memory_order_acquire);
}

static int check_lease(const struct kvfs_lease *lease)
{
	return kv_session_check(lease ? lease->session : NULL);
}

int kvfs_lease_poll(kvfs_lease *lease)
{
	int r = check_lease(lease);

	return r < 0 ? r : is_settled(lease);
}

long kvfs_lease_wait(kvfs_lease *lease, uint64_t deadline)
{
	uint64_t at = kv_time_after(deadline);
	long r = check_lease(lease);

	if (r < 0)
		return r;
	if (deadline == 0)
		return is_settled(lease) ? lease->held : -ETIMEDOUT;
	pthread_mutex_lock(&lease->session->lock);
	while (!is_settled(lease) && r == 0)
		r = kv_session_wait(lease->session, at);
	if (is_settled(lease))
		r = lease->held;
	pthread_mutex_unlock(&lease->session->lock);
	return r;
}

int kvfs_lease_status(kvfs_lease *lease, size_t i)
{
	int r = check_lease(lease);

	if (r < 0)
		return r;
	if (i >= lease->n)
		return -EINVAL;
	return is_settled(lease) ? lease->items[i].status : -EINPROGRESS;
}

long kvfs_lease_statuses(kvfs_lease *lease, size_t first, size_t n,
			 int *ret_statuses)
{
	bool settled;
	long good = 0;
	int r = check_lease(lease);

	if (r < 0)
		return r;
	if (first > lease->n || n > lease->n - first ||
	    (!ret_statuses && n > 0))
		return -EINVAL;
	settled = is_settled(lease);
	for (size_t i = 0; i < n; i++) {
		ret_statuses[i] =
			settled ? lease->items[first + i].status : -EINPROGRESS;
		good += ret_statuses[i] == 0;
	}
	return good;
}

int kvfs_lease_states(kvfs_lease *lease, size_t first, size_t n,
		      uint8_t *ret_states)
{
	int r = check_lease(lease);

	if (r < 0)
		return r;
	if (first > lease->n || n > lease->n - first || (!ret_states && n > 0))
		return -EINVAL;
	if (!is_settled(lease))
		return -EINPROGRESS;
	for (size_t i = 0; i < n; i++)
		ret_states[i] = lease->items[first + i].from;
	return 0;
}

static const struct kv_held *find_held(struct kvfs_lease *lease, size_t i)
{
	if (check_lease(lease) < 0 || i >= lease->n || !is_settled(lease) ||
	    lease->items[i].status != 0)
		return NULL;
	return &lease->items[i];
}

const void *kvfs_lease_data(kvfs_lease *lease, size_t i, uint64_t *ret_bytes)
{
	const struct kv_held *held = find_held(lease, i);

	if (!held)
		return NULL;
	if (ret_bytes)
		*ret_bytes = held->length - held->payload;
	return held->file + held->payload;
}

const void *kvfs_lease_file(kvfs_lease *lease, size_t i, uint64_t *ret_bytes)
{
	const struct kv_held *held = find_held(lease, i);

	if (!held)
		return NULL;
	if (ret_bytes)
		*ret_bytes = held->length;
	return held->file;
}

void kvfs_lease_cancel(kvfs_lease *lease)
{
	if (check_lease(lease) < 0)
		return;
	pthread_mutex_lock(&lease->session->lock);
	cancel_locked(lease);
	pthread_mutex_unlock(&lease->session->lock);
}

void kv_lease_release_locked(struct kvfs_lease *lease)
{
	kv_assert_locked(&lease->session->lock);
	kv_notice_drop_locked(lease->session, &lease->notice);
	lease->released = true;
	if (lease->loads == 0)
		cancel_locked(lease);
	unref_locked(lease);
}

void kvfs_release(kvfs_lease *lease)
{
	struct kvfs_session *session;

	if (check_lease(lease) < 0)
		return;
	session = lease->session;
	pthread_mutex_lock(&session->lock);
	kv_lease_release_locked(lease);
	pthread_mutex_unlock(&session->lock);
}
