/* SPDX-License-Identifier: Apache-2.0 */
/*
 * restore.c - blocks of a snapshot back into pages: the head and the tail
 * first, and the rest in the background.
 *
 * OWNS      the leases and loads that a restore has under way, and the workers
 *           that restores run on.  One stays for the next restore: on a busy
 *           machine a new thread has its turn much later than one that wakes.
 *
 * STATES    of a block:
 *
 *              TO DO -> UNDER WAY   begin_group
 *          UNDER WAY -> over        end_group: its status is the transfer's
 *          UNDER WAY -> TO DO       end_group: DRAM had no room beside others
 *              TO DO -> over        stop, begin_group: it was stopped
 *
 *           of a worker, which frees itself:
 *
 *            RUNNING -> IDLE     wait_for_work, if no other is
 *               IDLE -> RUNNING  start_worker_locked
 *            RUNNING -> ended    wait_for_work
 *               IDLE -> ended    workers_end
 *
 * INVARIANTS
 *   (1) todo[at] .. todo[n - 1] are the blocks TO DO, in the order in which
 *       they are wanted.
 *   (2) Groups end in the order in which they began, GROUPS under way at most:
 *       so much is leased at a time, however long the context.
 *   (3) The worker touches nothing of the transfer after the last block is
 *       over.
 *
 * LOCKING   session->lock to account for blocks, which no worker has while it
 *           runs something; else the restore is its worker's.
 */
#include "kernels/session/abi.h"
#include "kernels/transfer/stream_sync.h"
#include "kernels/transfer/pool.h"
#include "kernels/session/snapshot.h"
#include "kernels/session/space.h"
#include "kernels/transfer/xfer.h"
#include "common/thread.h"

#define GROUPS 3u
#define GROUP_BLOCKS 256u
#define GROUP_BYTES ((uint64_t)32 << 20)
#define LOOK_NS 50000000u      /* so often for a cancel */
#define EVENT_LOOK_NS 1000000u /* so often, later on, at an event wait */

struct group {
	kvfs_lease *lease;
	kvfs_xfer *load;
	size_t n;
	uint32_t block[GROUP_BLOCKS];
	int status[GROUP_BLOCKS]; /* 0: as the load says */
};

struct restore {
	struct kvfs_xfer *xfer;
	kvfs_space *space;
	char *name;
	uint32_t *positions, *todo;
	int64_t *pages;
	size_t n, at;
	size_t urgent; /* of todo, head: they go by themselves */
	size_t tail;   /* then these */
	size_t limit;  /* blocks a group */
	size_t depth;  /* groups under way: GROUPS, or 1 where room is short */
	struct kv_snapshot_chunk chunk;
	struct group groups[GROUPS];
	size_t begun, ended; /* groups */
};

static void restore_free(struct restore *r)
{
	if (!r)
		return;
	free(r->name);
	free(r->positions);
	free(r->todo);
	free(r->pages);
	free(r);
}

static void restore_freep(struct restore **r)
{
	restore_free(*r);
}

/* ---- what the snapshot says ---- */

static const struct wire_pick *find_pick(const struct kv_snapshot_chunk *chunk,
					 uint32_t position)
{
	size_t low = 0, high = chunk->n;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (chunk->picks[middle].position < position)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == chunk->n || chunk->picks[low].position != position)
		return NULL;
	return &chunk->picks[low];
}

static int key_at(struct restore *restore, uint32_t position, kvfs_key *ret_key)
{
	struct kv_snapshot_chunk *chunk = &restore->chunk;
	const struct wire_pick *pick = find_pick(chunk, position);
	/* The head is not to wait for what comes behind it. */
	size_t max = restore->begun > 1 ? WIRE_BATCH : restore->urgent;
	int r;

	if (!pick) {
		r = kv_snapshot_chunk_read(
			restore->space, restore->name, position,
			KV_MIN(max, (size_t)WIRE_BATCH), chunk);
		if (r < 0) {
			chunk->n = 0;
			return r == -ESTALE ? -ENOENT : r;
		}
		pick = find_pick(chunk, position);
	}
	if (!pick)
		return -ENOENT;
	memset(ret_key, 0, sizeof(*ret_key));
	memcpy(ret_key->bytes, pick->key, pick->len);
	ret_key->len = pick->len;
	return 0;
}

/* ---- groups ---- */

static size_t next_group(const struct restore *restore)
{
	size_t left = restore->n - restore->at, n = restore->limit;

	if (restore->at < restore->urgent)
		left = restore->urgent - restore->at;
	else if (restore->at < restore->urgent + restore->tail)
		left = restore->urgent + restore->tail - restore->at;
	return KV_MIN(n, left);
}

/* Lease and load the group's blocks that have a key. */
static int lease_and_load(struct restore *restore, struct group *group,
			  const kvfs_key *keys, size_t n)
{
	struct kvfs_xfer *xfer = restore->xfer;
	const size_t per_block = xfer->pool->strides.pages_per_block;
	const kvfs_query query = {restore->space, keys, n};
	const kvfs_opts opts = {.size = sizeof(opts),
				.first_layer = xfer->first_layer,
				.layers = xfer->layers,
				.priority = xfer->priority,
				.stream = KVFS_NO_STREAM};
	_cleanup_(kv_freep) int64_t *pages = NULL;
	uint64_t now = kv_now_ns(), deadline = 0;
	size_t at = 0;
	int r;

	pages = malloc((n * per_block + 1) * sizeof(*pages));
	if (!pages)
		return -ENOMEM;
	for (size_t i = 0; i < group->n; i++)
		if (group->status[i] == 0)
			memcpy(pages + at++ * per_block,
			       restore->pages + group->block[i] * per_block,
			       per_block * sizeof(*pages));
	if (xfer->deadline_at != 0)
		deadline =
			xfer->deadline_at > now ? xfer->deadline_at - now : 1;
	r = kvfs_acquire(&query, 1, KVFS_OPTS(.deadline = deadline),
			 &group->lease);
	if (r < 0)
		return r;
	return kvfs_load(xfer->pool, group->lease, n, pages, &opts,
			 &group->load);
}

static void begin_group(struct restore *restore)
{
	struct group *group = &restore->groups[restore->begun++ % GROUPS];
	int stopped = atomic_load(&restore->xfer->stopped);
	kvfs_key keys[GROUP_BLOCKS];
	size_t n = 0;
	int r = 0;

	group->n = next_group(restore);
	group->lease = NULL;
	group->load = NULL;
	for (size_t i = 0; i < group->n; i++) {
		group->block[i] = restore->todo[restore->at++];
		group->status[i] =
			stopped != 0
				? stopped
				: key_at(restore,
					 restore->positions[group->block[i]],
					 &keys[n]);
		n += group->status[i] == 0;
	}
	if (n > 0)
		r = lease_and_load(restore, group, keys, n);
	for (size_t i = 0; r < 0 && i < group->n; i++)
		if (group->status[i] == 0)
			group->status[i] = r;
}

/* It was stopped: what no group has ends now, and what groups have as soon as
 * it may, which is with the device's copies.  Some block is left, of the group
 * that is waited for. */
static void stop(struct restore *restore)
{
	struct kvfs_xfer *xfer = restore->xfer;
	struct kvfs_session *session = xfer->session;
	const size_t n = restore->n - restore->at;

	for (; restore->at < restore->n; restore->at++)
		atomic_store(&xfer->status[restore->todo[restore->at]],
			     atomic_load(&xfer->stopped));
	pthread_mutex_lock(&session->lock);
	kv_xfer_fail_locked(xfer, KVFS_COPIED, n);
	pthread_cond_broadcast(&session->changed);
	pthread_mutex_unlock(&session->lock);
	for (size_t i = restore->ended; i < restore->begun; i++) {
		kvfs_xfer_cancel(restore->groups[i % GROUPS].load);
		kvfs_lease_cancel(restore->groups[i % GROUPS].lease);
	}
}

static void wait_for(struct restore *restore, struct group *group)
{
	if (!group->load)
		return;
	/* A waiter takes the reply from the socket itself, if that comes at
	 * once. */
	kvfs_lease_wait(group->lease, LOOK_NS);
	while (kvfs_xfer_wait(group->load, KVFS_COPIED, LOOK_NS) == -ETIMEDOUT)
		if (atomic_load(&restore->xfer->stopped) != 0)
			stop(restore);
}

/* Statuses of the group's blocks; those that may fit later are to do again. */
static void sort_out(struct restore *restore, struct group *group)
{
	const bool alone = restore->begun == restore->ended + 1;
	size_t at = 0;

	for (size_t i = 0; i < group->n; i++)
		if (group->load && group->status[i] == 0)
			group->status[i] = kvfs_xfer_status(group->load, at++);
	for (size_t i = group->n; i-- > 0;) {
		if (group->status[i] != -ENOSPC || (alone && group->n == 1))
			continue;
		group->status[i] = -EINPROGRESS;
		restore->todo[--restore->at] = group->block[i];
		restore->urgent = restore->tail = 0;
		restore->limit = KV_MAX(group->n / 2, (size_t)1);
		restore->depth = 1;
	}
}

/* The last one that does this ends the transfer: restore->xfer may be gone. */
static void account(struct restore *restore, const struct group *group)
{
	struct kvfs_xfer *xfer = restore->xfer;
	struct kvfs_session *session = xfer->session;
	size_t good = 0, bad = 0;

	pthread_mutex_lock(&session->lock);
	kv_xfer_get_locked(xfer);
	for (size_t i = 0; i < group->n; i++) {
		if (group->status[i] == -EINPROGRESS)
			continue;
		atomic_store(&xfer->status[group->block[i]], group->status[i]);
		good += group->status[i] == 0;
		bad += group->status[i] < 0;
	}
	if (good + bad > 0 && good + bad < xfer->left[KVFS_COPIED])
		kv_session_completed_locked(session);
	kv_xfer_fail_locked(xfer, KVFS_COPIED, bad);
	kv_xfer_reach_locked(xfer, KVFS_DURABLE, good);
	kv_xfer_reach_locked(xfer, KVFS_SEALED, good);
	kv_xfer_reach_locked(xfer, KVFS_COPIED, good);
	kv_xfer_put_locked(xfer);
	pthread_mutex_unlock(&session->lock);
}

static void end_group(struct restore *restore)
{
	struct group *group = &restore->groups[restore->ended % GROUPS];

	wait_for(restore, group);
	sort_out(restore, group);
	restore->ended++;
	kvfs_release(group->lease);
	kvfs_xfer_free(group->load);
	account(restore, group);
}

static void wait_for_event(const struct kvfs_xfer *xfer)
{
	struct timespec pause = {.tv_nsec = 50000};

	while (!kv_stream_sync_event_is_over(xfer) &&
	       atomic_load(&xfer->stopped) == 0) {
		nanosleep(&pause, NULL);
		pause.tv_nsec = KV_MIN(2 * pause.tv_nsec, (long)EVENT_LOOK_NS);
	}
}

static void run_restore(void *arg)
{
	struct restore *restore = arg;

	wait_for_event(restore->xfer);
	while (restore->at < restore->n || restore->ended < restore->begun) {
		/* The head has the daemon to itself. */
		size_t depth = restore->ended == 0 ? 1 : restore->depth;

		if (restore->at < restore->n &&
		    restore->begun - restore->ended < depth)
			begin_group(restore);
		else
			end_group(restore);
	}
	restore_free(restore);
}

/* ---- workers ---- */

struct kv_worker {
	struct kvfs_session *session;
	void (*run)(void *arg); /* NULL: idle */
	void *arg;
	pthread_cond_t wake;
	SLIST_ENTRY(kv_worker) others; /* idle ones */
};

/* Whether there is something to run; this may wait for long. */
static bool wait_for_work(struct kv_worker *worker)
{
	struct kv_workers *workers = &worker->session->workers;

	if (worker->run)
		return true;
	if (workers->stop || !SLIST_EMPTY(&workers->idle))
		return false;
	SLIST_INSERT_HEAD(&workers->idle, worker, others);
	while (!worker->run && !workers->stop)
		kv_session_wait_for(worker->session, &worker->wake, NULL);
	return worker->run;
}

static void *live(void *arg)
{
	struct kv_worker *worker = arg;
	struct kvfs_session *session = worker->session;

	pthread_mutex_lock(&session->lock);
	pthread_detach(pthread_self());
	while (wait_for_work(worker)) {
		pthread_mutex_unlock(&session->lock);
		worker->run(worker->arg);
		pthread_mutex_lock(&session->lock);
		worker->run = NULL;
	}
	pthread_cond_destroy(&worker->wake);
	free(worker);
	session->workers.n--;
	pthread_cond_broadcast(&session->changed);
	pthread_mutex_unlock(&session->lock);
	return NULL;
}

static void workers_end(struct kvfs_session *session)
{
	struct kv_workers *workers = &session->workers;
	struct kv_worker *worker;

	kv_assert_locked(&session->lock);
	workers->stop = true;
	SLIST_FOREACH(worker, &workers->idle, others)
		pthread_cond_signal(&worker->wake);
	while (workers->n > 0)
		kv_session_wait(session, UINT64_MAX);
}

/* @run(@arg) in a thread of its own, which it does not end.  -ENOMEM, -EAGAIN
 * and other errors of pthread_create. */
static int start_worker_locked(struct kvfs_session *session,
			       void (*run)(void *arg), void *arg)
{
	struct kv_workers *workers = &session->workers;
	struct kv_worker *worker = SLIST_FIRST(&workers->idle);
	pthread_t thread;
	int r;

	kv_assert_locked(&session->lock);
	if (worker) {
		SLIST_REMOVE_HEAD(&workers->idle, others);
		worker->run = run;
		worker->arg = arg;
		pthread_cond_signal(&worker->wake);
		return 0;
	}
	worker = calloc(1, sizeof(*worker));
	if (!worker)
		return -ENOMEM;
	*worker =
		(struct kv_worker){.session = session, .run = run, .arg = arg};
	pthread_cond_init(&worker->wake, NULL);
	/* The thread waits for the lock, so that its name is set before it
	 * goes. */
	r = kv_thread_start(&thread, "kvfs-worker", live, worker);
	if (r < 0) {
		pthread_cond_destroy(&worker->wake);
		free(worker);
		return r;
	}
	workers->n++;
	workers->end = workers_end;
	return 0;
}

/* ---- beginning ---- */

static int check(const kvfs_pool *pool, const kvfs_space *space,
		 const char *name, const uint32_t *positions, size_t n,
		 const int64_t *pages)
{
	int r = kv_session_check(pool ? pool->session : NULL);

	if (r < 0)
		return r;
	if (!space || space->session != pool->session || pool->paged ||
	    (!pages && n > 0) || n > KVFS_SNAPSHOT_MAX)
		return -EINVAL;
	for (size_t i = 1; positions && i < n; i++)
		if (positions[i] <= positions[i - 1])
			return -EINVAL;
	return kv_snapshot_name_check(name);
}

/* Head, tail, rest: blocks by their index. */
static void put_in_order(struct restore *restore, const kvfs_opts *opts)
{
	size_t head = opts->head, at = 0;
	size_t tail = opts->tail;

	head = KV_MIN(KV_MAX(head, (size_t)1), restore->n);
	tail = KV_MIN(tail, restore->n - head);
	for (size_t i = 0; i < head; i++)
		restore->todo[at++] = (uint32_t)i;
	for (size_t i = restore->n - tail; i < restore->n; i++)
		restore->todo[at++] = (uint32_t)i;
	for (size_t i = head; i < restore->n - tail; i++)
		restore->todo[at++] = (uint32_t)i;
	restore->urgent = head;
	restore->tail = tail;
}

static int restore_new(const kvfs_pool *pool, const char *name,
		       const uint32_t *positions, size_t n,
		       const int64_t *pages, struct restore **ret_restore)
{
	const size_t per_block = pool->strides.pages_per_block;
	_cleanup_(restore_freep) struct restore *restore =
		calloc(1, sizeof(*restore));
	uint64_t payload = KV_MAX(pool->layout->payload, 1u);

	if (!restore)
		return -ENOMEM;
	restore->n = n;
	restore->depth = GROUPS;
	restore->limit = (size_t)KV_MAX(GROUP_BYTES / payload, 1u);
	restore->limit = KV_MIN(restore->limit, (size_t)GROUP_BLOCKS);
	restore->name = strdup(name);
	restore->positions = malloc((n + 1) * sizeof(*restore->positions));
	restore->todo = malloc((n + 1) * sizeof(*restore->todo));
	restore->pages = malloc((n * per_block + 1) * sizeof(*pages));
	if (!restore->name || !restore->positions || !restore->todo ||
	    !restore->pages)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		restore->positions[i] = positions ? positions[i] : (uint32_t)i;
	memcpy(restore->pages, pages, n * per_block * sizeof(*pages));
	*ret_restore = kv_steal(restore);
	return 0;
}

static void tell_locked(struct kvfs_xfer *xfer, uint64_t user)
{
	kv_assert_locked(&xfer->session->lock);
	kv_xfer_tell_locked(xfer, KVFS_EVENT_XFER, user, 1u << KVFS_COPIED);
}

/* Pages are the loads' to count; the pool stays for as long as it runs. */
static int start_locked(struct kvfs_xfer *xfer, kvfs_pool *pool,
			kvfs_space *space, struct restore *restore,
			uint64_t user)
{
	const size_t n = xfer->n * pool->strides.pages_per_block;
	long used;
	int r;

	kv_assert_locked(&xfer->session->lock);
	used = kv_lib_pool_check_pages_locked(pool, restore->pages, n, true);
	if (used < 0)
		return (int)used;
	xfer->pool = pool;
	restore->xfer = xfer;
	restore->space = space;
	r = start_worker_locked(xfer->session, run_restore, restore);
	if (r < 0) {
		xfer->pool = NULL;
		return r;
	}
	kv_lib_space_get_locked(space);
	xfer->space = space;
	tell_locked(xfer, user);
	kv_xfer_activate_locked(xfer);
	return 0;
}

/* The loads that it is made of do it all. */
static const struct kv_xfer_ops restore_ops = {0};

int kvfs_restore(kvfs_pool *pool, kvfs_space *space, const char *name,
		 const uint32_t *positions, size_t n, const int64_t *pages,
		 const kvfs_opts *opts, kvfs_xfer **ret_xfer)
{
	_cleanup_(restore_freep) struct restore *restore = NULL;
	_cleanup_(kv_xfer_freep) struct kvfs_xfer *xfer = NULL;
	kvfs_opts known = {0};
	int r = check(pool, space, name, positions, n, pages);

	if (r == 0)
		r = kv_abi_opts(&known, opts);
	if (r < 0)
		return r;
	if (!ret_xfer)
		return -EINVAL;
	r = kv_xfer_new(pool->session, &restore_ops, n, &xfer);
	if (r < 0)
		return r;
	r = kv_opts_take(xfer, pool, &known, 0);
	if (r < 0)
		return r;
	if (n > 0) {
		r = restore_new(pool, name, positions, n, pages, &restore);
		if (r < 0)
			return r;
		put_in_order(restore, &known);
	}
	pthread_mutex_lock(&pool->session->lock);
	if (n > 0)
		r = start_locked(xfer, pool, space, restore, known.user);
	else
		tell_locked(xfer, known.user);
	if (r == 0)
		restore = NULL;
	pthread_mutex_unlock(&pool->session->lock);
	if (r < 0)
		return r;
	*ret_xfer = kv_steal(xfer);
	return 0;
}
