/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prefetch.c - blocks brought to DRAM on a hint.
 *
 * OWNS      the requests of a prefetch, one for each message's worth of keys.
 *
 * STATES    of a chunk:
 *
 *              (new) -> ASKED      ask_locked
 *              ASKED -> over       chunk_done
 *              ASKED -> ABANDONED  give_up_locked: the daemon is silent
 *              ASKED -> over       abandon_locked: it had not been sent
 *          ABANDONED -> over       chunk_done
 *
 * INVARIANTS
 *   (1) Every key's status is set before it is counted.
 *   (2) Each chunk that is ASKED or ABANDONED has a reference to the transfer.
 *
 * LOCKING   session->lock.
 */
#include "kernels/session/abi.h"
#include "kernels/transfer/prefetch.h"
#include "kernels/session/query.h"
#include "kernels/session/space.h"
#include "kernels/transfer/xfer.h"

enum chunk_state { CHUNK_OVER, CHUNK_ASKED, CHUNK_ABANDONED };

struct kv_prefetch_chunk {
	struct kv_call call; /* first */
	struct kvfs_xfer *xfer;
	size_t first, n;
	enum chunk_state state;
};

static void settle_locked(struct kv_prefetch_chunk *chunk, int status,
			  const struct wire_status *statuses)
{
	struct kvfs_xfer *xfer = chunk->xfer;
	size_t bad = 0;
	int s;

	kv_assert_locked(&chunk->xfer->session->lock);
	for (size_t i = 0; i < chunk->n; i++) {
		s = status < 0 ? status : KV_MIN(statuses[i].status, 0);
		bad += s < 0;
		atomic_store(&xfer->status[chunk->first + i], s);
	}
	kv_xfer_fail_locked(xfer, KVFS_COPIED, bad);
	kv_xfer_reach_locked(xfer, KVFS_COPIED, chunk->n - bad);
	kv_xfer_reach_locked(xfer, KVFS_SEALED, chunk->n - bad);
	kv_xfer_reach_locked(xfer, KVFS_DURABLE, chunk->n - bad);
}

static void chunk_done(struct kv_call *call, int status, const void *items)
{
	struct kv_prefetch_chunk *chunk = (struct kv_prefetch_chunk *)call;
	struct kvfs_xfer *xfer = chunk->xfer;

	if (chunk->state == CHUNK_ASKED)
		settle_locked(chunk, status, items);
	chunk->state = CHUNK_OVER;
	kv_xfer_put_locked(xfer);
}

/* The chunk ends without the daemon. */
static void abandon_locked(struct kv_prefetch_chunk *chunk)
{
	struct kvfs_xfer *xfer = chunk->xfer;
	bool unsent = kv_rpc_withdraw_locked(xfer->session, &chunk->call);

	kv_assert_locked(&xfer->session->lock);
	chunk->state = unsent ? CHUNK_OVER : CHUNK_ABANDONED;
	settle_locked(chunk, atomic_load(&xfer->stopped), NULL);
	if (unsent)
		kv_xfer_put_locked(xfer);
}

/* The daemon has not even confirmed the cancel. */
static void give_up_locked(struct kv_timer *timer)
{
	struct kvfs_xfer *xfer = kv_container(timer, struct kvfs_xfer, timer);

	kv_assert_locked(&xfer->session->lock);
	kv_xfer_get_locked(xfer);
	for (size_t i = 0; i < xfer->n_chunks; i++)
		if (xfer->chunks[i].state == CHUNK_ASKED)
			abandon_locked(&xfer->chunks[i]);
	kv_xfer_put_locked(xfer);
}

/* All of one prefetch is asked with this. */
struct asking {
	uint64_t user;
	uint64_t deadline;
	uint16_t flags; /* WIRE_ */
};

static void ask_locked(struct kv_prefetch_chunk *chunk, uint32_t space,
		       const kvfs_key *keys, const struct asking *asking)
{
	struct kvfs_xfer *xfer = chunk->xfer;
	struct wire_key items[WIRE_BATCH];
	struct kv_packet packet = {
		.header = {.type = WIRE_PREFETCH,
			   .flags = asking->flags,
			   .count = (uint32_t)chunk->n,
			   .space = space},
		.items = items,
		.bytes = chunk->n * sizeof(items[0]),
		.fd = -1,
	};
	int r;

	kv_assert_locked(&chunk->xfer->session->lock);
	kv_wire_keys(keys, chunk->n, items);
	if (asking->deadline != KVFS_FOREVER)
		packet.header.arg = KV_MAX(asking->deadline, 1u);
	chunk->call.count = (uint32_t)chunk->n;
	chunk->call.done = chunk_done;
	r = atomic_load(&xfer->stopped);
	if (r == 0)
		r = kv_rpc_submit_locked(xfer->session, &chunk->call, &packet);
	if (r < 0) {
		settle_locked(chunk, r, NULL);
		return;
	}
	kv_xfer_get_locked(xfer);
	chunk->state = CHUNK_ASKED;
}

static void ask_query(struct kvfs_xfer *xfer, const kvfs_query *query,
		      size_t *chunk_at, size_t *key_at,
		      const struct asking *asking)
{
	struct kvfs_session *session = xfer->session;
	uint64_t generation;
	uint32_t space;
	size_t n;
	int r = kv_lib_space_id(query->space, &space, &generation);

	pthread_mutex_lock(&session->lock);
	if (r == 0 && !kv_session_is_live(session, generation))
		r = -ENOTCONN;
	for (size_t i = 0; i < query->n; i += n) {
		struct kv_prefetch_chunk *chunk = &xfer->chunks[(*chunk_at)++];

		n = KV_MIN(query->n - i, (size_t)WIRE_BATCH);
		chunk->xfer = xfer;
		chunk->first = *key_at;
		chunk->n = n;
		*key_at += n;
		if (r < 0)
			settle_locked(chunk, kv_lib_space_miss(r), NULL);
		else
			ask_locked(chunk, space, query->keys + i, asking);
	}
	pthread_mutex_unlock(&session->lock);
}

/* The daemon is told to stop, too. */
static void stopped_locked(struct kvfs_xfer *xfer)
{
	struct kv_prefetch_chunk *chunk;

	kv_assert_locked(&xfer->session->lock);
	kv_xfer_get_locked(xfer);
	for (size_t i = 0; i < xfer->n_chunks; i++) {
		chunk = &xfer->chunks[i];
		if (chunk->state != CHUNK_ASKED)
			continue;
		if (chunk->call.parcel)
			abandon_locked(chunk);
		else
			kv_rpc_post_tag_locked(xfer->session, WIRE_CANCEL,
					       chunk->call.tag);
	}
	if (xfer->active) {
		xfer->timer.fire = give_up_locked;
		kv_timer_start_locked(xfer->session, &xfer->timer,
				      kv_time_after(KV_GRACE_NS));
	}
	kv_xfer_put_locked(xfer);
}

static void drop(struct kvfs_xfer *xfer)
{
	free(xfer->chunks);
}

static const struct kv_xfer_ops prefetch_ops = {
	.stopped_locked = stopped_locked,
	.drop = drop,
};

static int begin(const kvfs_query *queries, size_t n_queries,
		 const struct asking *asking, kvfs_xfer **ret_xfer)
{
	_cleanup_(kv_xfer_freep) struct kvfs_xfer *xfer = NULL;
	size_t chunk = 0, key = 0;
	kvfs_session *session;
	long n;
	int r;

	n = kv_queries_check(queries, n_queries, &session);
	if (n < 0)
		return (int)n;
	if (!session || !ret_xfer)
		return -EINVAL;
	r = kv_xfer_new(session, &prefetch_ops, (size_t)n, &xfer);
	if (r < 0)
		return r;
	for (size_t i = 0; i < n_queries; i++)
		xfer->n_chunks += (queries[i].n + WIRE_BATCH - 1) / WIRE_BATCH;
	xfer->chunks = calloc(xfer->n_chunks + 1, sizeof(*xfer->chunks));
	if (!xfer->chunks)
		return -ENOMEM;
	if (asking->deadline < UINT64_MAX - KV_GRACE_NS)
		xfer->deadline_at =
			kv_time_after(asking->deadline + KV_GRACE_NS);
	pthread_mutex_lock(&session->lock);
	kv_xfer_tell_locked(xfer, KVFS_EVENT_XFER, asking->user,
			    1u << KVFS_COPIED);
	if (n > 0)
		kv_xfer_activate_locked(xfer);
	pthread_mutex_unlock(&session->lock);
	for (size_t i = 0; i < n_queries; i++)
		ask_query(xfer, &queries[i], &chunk, &key, asking);
	*ret_xfer = kv_steal(xfer);
	return 0;
}

int kvfs_prefetch(const kvfs_query *queries, size_t n_queries,
		  const kvfs_opts *opts, kvfs_xfer **ret_xfer)
{
	struct asking asking = {.deadline = KVFS_FOREVER};
	kvfs_opts known = {0};
	int r = kv_abi_opts(&known, opts);

	if (r < 0)
		return r;
	if (!kv_abi_opts_are_plain(&known, 0))
		return -EINVAL;
	asking.user = known.user;
	if (known.deadline != 0)
		asking.deadline = known.deadline;
	return begin(queries, n_queries, &asking, ret_xfer);
}

void kv_prefetch_ahead(const kvfs_query *queries, size_t n_queries,
		       uint64_t deadline)
{
	const struct asking asking = {.deadline = deadline,
				      .flags = WIRE_AHEAD};
	kvfs_session *session;
	kvfs_xfer *xfer;
	bool can;

	if (kv_queries_check(queries, n_queries, &session) <= 0)
		return;
	pthread_mutex_lock(&session->lock);
	can = kv_rpc_takes_hints_locked(session);
	pthread_mutex_unlock(&session->lock);
	/* A hint that cannot be given is none. */
	if (can && begin(queries, n_queries, &asking, &xfer) == 0)
		kvfs_xfer_free(xfer);
}
