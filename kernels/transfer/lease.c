/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lease.c - a client's hold on blocks in DRAM.
 *
 * OWNS      leases, their chunks, and a reference to the mapping of each block
 *           held.
 *
 * STATES    of a chunk (the keys that went to the daemon in one message):
 *
 *               ASKED -> HELD       chunk_done: the reply settles its blocks
 *               ASKED -> OVER       chunk_done: refused, no connection, or
 *                                   none of its blocks is there
 *               ASKED -> OVER       abandon_locked: it had not been sent
 *               ASKED -> ABANDONED  abandon_locked: its time was up here, or
 *                                   it was cancelled, and the daemon is silent
 *           ABANDONED -> OVER       chunk_done: what came late goes back
 *                HELD -> OVER       lease_free_locked: given back
 *
 *           A lease is settled once no chunk is ASKED.
 *
 * INVARIANTS
 *   (1) Blocks do not change after the lease has settled.
 *   (2) Each chunk of which the daemon holds a block for us is released once,
 *       on every path.
 *   (3) All chunks that are ASKED or HELD are of one connection.
 *   (4) A lease is freed with its last reference; each chunk that is ASKED or
 *       ABANDONED holds one.
 *
 * LOCKING   session->lock; blocks and their count are read without it once
 *           settled is true.
 */
#include <poll.h>

#include "kernels/session/abi.h"
#include "kernels/transfer/lease.h"
#include "kernels/transfer/load.h"
#include "kernels/session/query.h"
#include "kernels/transfer/prefetch.h"
#include "kernels/session/space.h"

#define NEAR_NS 200000u /* longer than the daemon takes for a resident batch */

enum chunk_state { CHUNK_OVER, CHUNK_ASKED, CHUNK_ABANDONED, CHUNK_HELD };

struct kv_lease_chunk {
	struct kv_call call; /* first */
	struct kvfs_lease *lease;
	struct kvfs_space *space;
	enum chunk_state state;
	uint64_t tag;
	size_t first, n;
};

struct kvfs_space *kv_lease_space(const struct kvfs_lease *lease, size_t i)
{
	return lease->chunks[lease->items[i].chunk].space;
}

static void lease_free_locked(struct kvfs_lease *lease)
{
	struct kvfs_session *session = lease->session;

	kv_assert_locked(&session->lock);
	kv_timer_stop_locked(session, &lease->timer);
	for (size_t i = 0; i < lease->n; i++)
		if (lease->items[i].mapping)
			kv_mapped_segment_put_locked(session,
						     lease->items[i].mapping);
	/* From the tail: what is given back last leaves the cache last, and a
	 * chain is of use from its head. */
	for (size_t i = lease->n_chunks; i-- > 0;) {
		if (lease->chunks[i].state == CHUNK_HELD &&
		    kv_session_is_live(session, lease->generation))
			kv_rpc_post_tag_locked(session, WIRE_RELEASE,
					       lease->chunks[i].tag);
		kv_lib_space_put_locked(lease->chunks[i].space);
	}
	free(lease->chunks);
	free(lease);
}

static void unref_locked(struct kvfs_lease *lease)
{
	kv_assert_locked(&lease->session->lock);
	assert(lease->refs > 0);
	if (--lease->refs == 0)
		lease_free_locked(lease);
}

void kv_lease_get_locked(struct kvfs_lease *lease)
{
	kv_assert_locked(&lease->session->lock);
	lease->refs++;
	lease->loads++;
}

void kv_lease_put_locked(struct kvfs_lease *lease)
{
	kv_assert_locked(&lease->session->lock);
	lease->loads--;
	unref_locked(lease);
}

static void settle_locked(struct kvfs_lease *lease)
{
	struct kvfs_xfer *xfer;

	kv_assert_locked(&lease->session->lock);
	kv_timer_stop_locked(lease->session, &lease->timer);
	atomic_store_explicit(&lease->settled, true, memory_order_release);
	kv_notice_post_locked(lease->session, &lease->notice, 0, lease->held);
	kv_session_completed_locked(lease->session);
	lease->refs++; /* the loads may end right here */
	while ((xfer = TAILQ_FIRST(&lease->waiting)))
		kv_load_begin_locked(xfer);
	unref_locked(lease);
}

static void chunk_settled_locked(struct kvfs_lease *lease)
{
	kv_assert_locked(&lease->session->lock);
	assert(lease->unsettled > 0);
	if (--lease->unsettled == 0)
		settle_locked(lease);
}

static void fail_chunk(struct kv_lease_chunk *chunk, int status)
{
	for (size_t i = 0; i < chunk->n; i++)
		chunk->lease->items[chunk->first + i].status = status;
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
	lease->held++;
	return 0;
}

/* Without one there is no lease that the daemon would know. */
static bool any_held(const struct wire_place *places, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (places[i].status == 0)
			return true;
	return false;
}

static void chunk_done(struct kv_call *call, int status, const void *items)
{
	struct kv_lease_chunk *chunk = (struct kv_lease_chunk *)call;
	struct kvfs_lease *lease = chunk->lease;
	const struct wire_place *places = items;
	const bool was_abandoned = chunk->state == CHUNK_ABANDONED;
	const bool held = status == 0 && any_held(places, chunk->n);

	chunk->state = CHUNK_OVER;
	if (was_abandoned) {
		if (held)
			kv_rpc_post_tag_locked(lease->session, WIRE_RELEASE,
					       chunk->tag);
		unref_locked(lease);
		return;
	}
	if (status < 0) {
		fail_chunk(chunk, status);
	} else {
		chunk->state = held ? CHUNK_HELD : CHUNK_OVER;
		for (size_t i = 0; i < chunk->n; i++) {
			struct kv_held *item = &lease->items[chunk->first + i];

			item->status = place_locked(lease, item, &places[i]);
		}
	}
	chunk_settled_locked(lease);
	unref_locked(lease);
}

/* The chunk settles without the daemon. */
static void abandon_locked(struct kv_lease_chunk *chunk, int status)
{
	struct kvfs_lease *lease = chunk->lease;
	bool unsent = kv_rpc_withdraw_locked(lease->session, &chunk->call);

	kv_assert_locked(&lease->session->lock);
	chunk->state = unsent ? CHUNK_OVER : CHUNK_ABANDONED;
	fail_chunk(chunk, status);
	if (!unsent && !lease->cancelled)
		kv_rpc_post_tag_locked(lease->session, WIRE_CANCEL, chunk->tag);
	chunk_settled_locked(lease);
	if (unsent)
		unref_locked(lease);
}

/* The daemon has not even said in time that it was too late. */
static void give_up_locked(struct kv_timer *timer)
{
	struct kvfs_lease *lease =
		kv_container(timer, struct kvfs_lease, timer);
	int status = lease->cancelled ? -ECANCELED : -ETIMEDOUT;

	kv_assert_locked(&lease->session->lock);
	lease->refs++;
	for (size_t i = 0; i < lease->n_chunks; i++)
		if (lease->chunks[i].state == CHUNK_ASKED)
			abandon_locked(&lease->chunks[i], status);
	unref_locked(lease);
}

/* ---- asking ---- */

static void freep(struct kvfs_lease **lease)
{
	if (*lease)
		free((*lease)->chunks);
	free(*lease);
}

static size_t count_chunks(const kvfs_query *queries, size_t n_queries)
{
	size_t chunks = 0;

	for (size_t i = 0; i < n_queries; i++)
		chunks += (queries[i].n + WIRE_BATCH - 1) / WIRE_BATCH;
	return chunks;
}

static int lease_new(kvfs_session *session, size_t n, size_t n_chunks,
		     struct kvfs_lease **ret_lease)
{
	_cleanup_(freep) struct kvfs_lease *lease = NULL;

	lease = calloc(1, sizeof(*lease) + n * sizeof(lease->items[0]));
	if (!lease)
		return -ENOMEM;
	lease->chunks = calloc(n_chunks + 1, sizeof(*lease->chunks));
	if (!lease->chunks)
		return -ENOMEM;
	lease->session = session;
	lease->n = n;
	lease->n_chunks = n_chunks;
	lease->refs = 1;
	lease->notice = (struct kv_notice){
		.what = KVFS_EVENT_LEASE, .stages = 1, .n = n};
	lease->asked_at = kv_now_ns();
	lease->unsettled = 1; /* until all chunks have been asked */
	TAILQ_INIT(&lease->waiting);
	for (size_t i = 0; i < n; i++)
		lease->items[i].status = -EINPROGRESS;
	*ret_lease = kv_steal(lease);
	return 0;
}

/* All chunks of one query have this in common. */
struct asking {
	const kvfs_query *query;
	unsigned flags;
	uint64_t deadline;
	int status; /* why not to ask at all */
	uint32_t space;
	uint64_t generation;
};

static void ask_chunk_locked(struct kv_lease_chunk *chunk,
			     const struct asking *asking, const kvfs_key *keys)
{
	struct kvfs_lease *lease = chunk->lease;
	struct kvfs_session *session = lease->session;
	struct wire_key items[WIRE_BATCH];
	struct kv_packet packet = {
		.header = {.type = WIRE_ACQUIRE,
			   .count = (uint32_t)chunk->n,
			   .space = asking->space},
		.items = items,
		.bytes = chunk->n * sizeof(items[0]),
		.fd = -1,
	};
	int r = asking->status;

	kv_assert_locked(&session->lock);
	kv_wire_keys(keys, chunk->n, items);
	if (asking->flags & KVFS_WAIT_SAVING)
		packet.header.flags |= WIRE_WAIT_SAVING;
	if (asking->flags & KVFS_READ_AHEAD)
		packet.header.flags |= WIRE_RESIDENT;
	if (asking->flags & KVFS_AGAIN)
		packet.header.flags |= WIRE_AGAIN;
	if (asking->deadline != KVFS_FOREVER)
		packet.header.arg = KV_MAX(asking->deadline, 1u);
	chunk->call.count = (uint32_t)chunk->n;
	chunk->call.done = chunk_done;
	if (r == 0 && (!kv_session_is_live(session, asking->generation) ||
		       (lease->generation != 0 &&
			lease->generation != asking->generation)))
		r = -ENOTCONN;
	if (r == 0)
		r = kv_rpc_submit_locked(session, &chunk->call, &packet);
	if (r < 0) {
		fail_chunk(chunk, r);
		return;
	}
	lease->generation = asking->generation;
	chunk->tag = chunk->call.tag;
	chunk->state = CHUNK_ASKED;
	lease->refs++;
	lease->unsettled++;
}

static void ask_query(struct kvfs_lease *lease, const struct asking *asking,
		      size_t *chunk_at, size_t *item_at)
{
	const kvfs_query *query = asking->query;
	size_t n;

	pthread_mutex_lock(&lease->session->lock);
	for (size_t i = 0; i < query->n; i += n) {
		struct kv_lease_chunk *chunk = &lease->chunks[*chunk_at];

		n = KV_MIN(query->n - i, (size_t)WIRE_BATCH);
		chunk->lease = lease;
		chunk->space = query->space;
		chunk->first = *item_at;
		chunk->n = n;
		kv_lib_space_get_locked(query->space);
		for (size_t j = 0; j < n; j++)
			lease->items[*item_at + j].chunk = (uint32_t)*chunk_at;
		ask_chunk_locked(chunk, asking, query->keys + i);
		*item_at += n;
		(*chunk_at)++;
	}
	pthread_mutex_unlock(&lease->session->lock);
}

/* 0: for as long as it takes, as in all options. */
static uint64_t deadline_of(const kvfs_opts *opts)
{
	return opts->deadline == 0 ? KVFS_FOREVER : opts->deadline;
}

static int check_opts(kvfs_opts *ret_opts, const kvfs_opts *opts)
{
	const unsigned flags = KVFS_WAIT_SAVING | KVFS_READ_AHEAD;
	const unsigned all = flags | KVFS_AGAIN;
	int r = kv_abi_opts(ret_opts, opts);

	if (r < 0)
		return r;
	return kv_abi_opts_are_plain(ret_opts, all) &&
			       (ret_opts->flags & flags) != flags
		       ? 0
		       : -EINVAL;
}

int kvfs_acquire(const kvfs_query *queries, size_t n_queries,
		 const kvfs_opts *opts, kvfs_lease **ret_lease)
{
	_cleanup_(freep) struct kvfs_lease *lease = NULL;
	struct asking asking;
	size_t chunk = 0, item = 0;
	kvfs_session *session;
	kvfs_opts known = {0};
	long n;
	int r;

	n = kv_queries_check(queries, n_queries, &session);
	if (n < 0)
		return (int)n;
	if (!session || !ret_lease)
		return -EINVAL;
	r = check_opts(&known, opts);
	if (r < 0)
		return r;
	asking = (struct asking){.flags = known.flags,
				 .deadline = deadline_of(&known)};
	r = lease_new(session, (size_t)n, count_chunks(queries, n_queries),
		      &lease);
	if (r < 0)
		return r;
	lease->notice.user = known.user;
	for (size_t i = 0; i < n_queries; i++) {
		asking.query = &queries[i];
		asking.status = kv_lib_space_miss(kv_lib_space_id(
			queries[i].space, &asking.space, &asking.generation));
		ask_query(lease, &asking, &chunk, &item);
	}
	pthread_mutex_lock(&session->lock);
	lease->timer.fire = give_up_locked;
	if (asking.deadline < UINT64_MAX - KV_GRACE_NS)
		kv_timer_start_locked(
			session, &lease->timer,
			kv_time_after(asking.deadline + KV_GRACE_NS));
	chunk_settled_locked(lease);
	pthread_mutex_unlock(&session->lock);
	if (known.flags & KVFS_READ_AHEAD)
		kv_prefetch_ahead(queries, n_queries, asking.deadline);
	*ret_lease = kv_steal(lease);
	return 0;
}

/* ---- using ---- */

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

/* The descriptor may be closed, or another's, by then: it is only looked at. */
static void sleep_until_readable(int fd, uint64_t until)
{
	const uint64_t now = kv_now_ns();
	const uint64_t left = until > now ? until - now : 0;
	const struct timespec timeout = {
		.tv_sec = (time_t)(left / 1000000000u),
		.tv_nsec = (long)(left % 1000000000u),
	};
	struct pollfd pollfd = {.fd = fd, .events = POLLIN};

	ppoll(&pollfd, 1, &timeout, NULL);
}

/*
 * The reply of a resident batch is there sooner than the reader thread would be
 * awake and have woken us, so take it from the socket here.  What is not there
 * by then comes from SSD, however often it is asked for.
 */
static void receive_here(struct kvfs_lease *lease, uint64_t at)
{
	struct kvfs_session *session = lease->session;
	uint64_t until = KV_MIN(at, lease->asked_at + NEAR_NS);
	int fd, r = 0;

	while (r >= 0 && !is_settled(lease) && kv_now_ns() < until) {
		if (pthread_mutex_trylock(&session->receive_lock) != 0)
			continue;
		r = kv_rpc_receive(session);
		fd = session->link.fd;
		pthread_mutex_unlock(&session->receive_lock);
		if (r == 0)
			sleep_until_readable(fd, until);
	}
	if (r < 0)
		kv_session_wake(session);
}

long kvfs_lease_wait(kvfs_lease *lease, uint64_t deadline)
{
	uint64_t at = kv_time_after(deadline);
	long r = check_lease(lease);

	if (r < 0)
		return r;
	if (deadline == 0)
		return is_settled(lease) ? lease->held : -ETIMEDOUT;
	receive_here(lease, at);
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

static void cancel_locked(struct kvfs_lease *lease)
{
	struct kv_lease_chunk *chunk;

	kv_assert_locked(&lease->session->lock);
	if (lease->settled || lease->cancelled)
		return;
	lease->refs++;
	for (chunk = lease->chunks; chunk < lease->chunks + lease->n_chunks;
	     chunk++) {
		if (chunk->state != CHUNK_ASKED)
			continue;
		if (chunk->call.parcel)
			abandon_locked(chunk, -ECANCELED);
		else
			kv_rpc_post_tag_locked(lease->session, WIRE_CANCEL,
					       chunk->tag);
	}
	lease->cancelled = true;
	if (!lease->settled)
		kv_timer_start_locked(lease->session, &lease->timer,
				      kv_time_after(KV_GRACE_NS));
	unref_locked(lease);
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
