/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backup.c - what became durable here is handed over to the backends.
 *
 * Keys wait in queues of their users, of a fixed length together and three quarters
 * of it for one, and hold nothing: what is evicted meanwhile is not handed over.
 * Users take turns.  One thread makes the first of them ready, which
 * may read it from SSD; each backend in turn is asked whether it has the block,
 * and given it if not.
 *
 * OWNS      every kv_backup; the bytes of those that are ready: a copy of what is
 *           small, so that no segment stays for its sake, a view of what is large.
 *
 * STATES    of a backup:
 *              (new) -> waiting   kv_remote_durable_locked
 *            waiting -> ready     prepare: its bytes are held
 *              ready -> ASKING    next: of a backend
 *             ASKING -> PUTTING   asked: it does not have it
 *    ASKING, PUTTING -> ASKING    the next backend's turn
 *    ASKING, PUTTING -> (ended)   there is no other
 *
 * INVARIANTS
 *   (1) So many are ready or under way at most, those included whose memory a
 *       backend does not give back.
 *   (2) No put begins but of what may_leave(): its space is shared, and its
 *       owner's who had it when it became durable.
 *   (3) Whatever one user's may take, there is something for others.
 *
 * LOCKING   cache->lock for both lists and the counts.
 */
#include "cache/block/block.h"
#include "cache/core/hooks.h"
#include "cache/core/table.h"
#include "cache/remote/tier.h"

#include <stdio.h>

#define WAITING_MAX 16384u
#define TURN 8	  /* blocks */
#define COPIED 16 /* up to one part in so many of a segment */
#define UNDER_WAY_MAX \
	10u /* of one user 8, so that there is something for others */
#define ASK_NS UINT64_C(2000000000)
#define PUT_NS UINT64_C(10000000000)
#define REST_NS UINT64_C(1000000000)
#define END_NS UINT64_C(2000000000) /* for what waits when the mount ends */

struct kv_backup {
	struct kv_remote_job job; /* first; the thread's */
	struct kv_space *space;	  /* held */
	uint32_t uid;		  /* whose it was when it began to wait */
	struct kv_key key;
	struct queue *queue;	/* held */
	struct kv_block *block; /* held, once ready, with its view or a copy */
	struct kv_view view;
	uint8_t *copy; /* NULL: none */
	struct kv_digest digest;
	char prefix[KV_REMOTE_PREFIX_MAX + 1];
	TAILQ_ENTRY(kv_backup) link; /* of waiting, ready or busy */
};

struct queue {
	struct kv_turn turn; /* first */
	struct kv_backups waiting;
	unsigned n;
};

/* ---- what is to be handed over ---- */

static void queue_init(struct kv_turn *turn)
{
	TAILQ_INIT(&((struct queue *)turn)->waiting);
}

int kv_backup_init(struct kv_remote *remote)
{
	return kv_turns_init(&remote->backup.waiting, sizeof(struct queue),
			     TURN, queue_init);
}

static bool enqueue_locked(struct kv_remote *remote, struct kv_space *space,
			   const struct kv_key *key)
{
	struct kv_turns *turns = &remote->backup.waiting;
	struct queue *queue = (struct queue *)kv_turn_get(turns, space->uid);
	struct kv_backup *backup = NULL;

	if (remote->backup.n_waiting < WAITING_MAX &&
	    queue->n < WAITING_MAX / 4 * 3)
		backup = calloc(1, sizeof(*backup));
	if (!backup) {
		kv_turn_put(turns, &queue->turn);
		return false;
	}
	backup->space = kv_space_get(space);
	backup->uid = space->uid;
	backup->key = *key;
	backup->queue = queue;
	TAILQ_INSERT_TAIL(&queue->waiting, backup, link);
	queue->n++;
	remote->backup.n_waiting++;
	kv_turn_start(turns, &queue->turn);
	return true;
}

/* The first of the user whose turn it is, under way, with others up to @max; NULL:
 * nothing waits that may begin. */
static struct kv_backup *dequeue_locked(struct kv_remote *remote, uint64_t max)
{
	struct kv_turns *turns = &remote->backup.waiting;
	struct queue *queue = (struct queue *)kv_turns_next_within(turns, max);
	struct kv_backup *backup = queue ? TAILQ_FIRST(&queue->waiting) : NULL;

	if (!backup)
		return NULL;
	TAILQ_REMOVE(&queue->waiting, backup, link);
	queue->n--;
	remote->backup.n_waiting--;
	kv_turn_charge(&queue->turn, 1);
	kv_turn_begin(turns, &queue->turn, 1);
	if (TAILQ_EMPTY(&queue->waiting))
		kv_turn_stop(turns, &queue->turn);
	kv_turn_put(turns, &queue->turn);
	return backup;
}

static void dropped_locked(struct kv_remote *remote)
{
	for (unsigned i = 0; i < remote->n; i++)
		remote->backends[i].stats.dropped++;
}

void kv_remote_durable_locked(struct kv_cache *cache,
			      const struct kv_block *block)
{
	struct kv_remote *remote = cache->remote;
	struct kv_space *space = kv_block_space(cache, block);
	const struct kv_key key = kv_block_key(block);

	kv_assert_locked(&cache->lock);
	if (!remote || !remote->backup.running || !space->shared)
		return;
	kv_shun_not(remote->shunned, kv_key_hash(cache, space, block->key));
	if (cache->config.remote.write == KV_WRITEBACK_REUSE && !block->hits)
		return;
	if (!enqueue_locked(remote, space, &key)) {
		dropped_locked(remote);
		return;
	}
	pthread_cond_signal(&remote->backup.more);
}

static void backup_free(struct kv_remote *remote, struct kv_backup *backup)
{
	struct kv_cache *cache = remote->cache;

	if (backup->block) {
		if (!backup->copy)
			kv_view_put(cache, &backup->view);
		kv_block_put(cache, backup->block);
	}
	free(backup->copy);
	kv_space_put(backup->space);
	kv_lock(cache);
	kv_turn_end(&remote->backup.waiting, &backup->queue->turn, 1);
	pthread_cond_signal(&remote->backup.more);
	kv_unlock(cache);
	free(backup);
}

/* Whether its owner still wants others to have it. */
static bool may_leave(struct kv_cache *cache, const struct kv_backup *backup)
{
	bool may;

	kv_lock(cache);
	may = backup->space->shared && backup->space->uid == backup->uid &&
	      !(backup->block && (backup->block->flags & BLOCK_REMOVED));
	kv_unlock(cache);
	return may;
}

/* ---- making ready ---- */

static void copy_small(struct kv_cache *cache, struct kv_backup *backup)
{
	struct kv_view *view = &backup->view;

	if (view->length > cache->arena.segment_bytes / COPIED)
		return;
	backup->copy = malloc(view->length);
	if (!backup->copy)
		return;
	memcpy(backup->copy, view->data, view->length);
	kv_view_put(cache, view);
}

/* Its bytes, held; and what is said of them. */
static int hold(struct kv_cache *cache, struct kv_backup *backup)
{
	struct kv_block *block;
	struct kv_meta meta;
	int r = kv_block_get(cache, backup->space, &backup->key, &block);

	if (r < 0)
		return r;
	r = kv_block_meta(cache, block, &meta, &backup->digest);
	if (r == 0)
		r = kv_view_get(cache, block, &backup->view);
	if (r < 0) {
		kv_block_put(cache, block);
		return r;
	}
	copy_small(cache, backup);
	backup->block = block;
	return 0;
}

static void prepare(struct kv_remote *remote, struct kv_backup *backup)
{
	struct kv_cache *cache = remote->cache;
	int r = may_leave(cache, backup) ? 0 : -ENOENT;

	if (r == 0)
		r = kv_remote_prefix(cache, backup->space, backup->prefix);
	if (r == 0)
		r = hold(cache, backup);
	kv_lock(cache);
	if (r == 0)
		TAILQ_INSERT_TAIL(&remote->backup.ready, backup, link);
	if (r < 0 && r != -ENOENT)
		dropped_locked(remote);
	kv_unlock(cache);
	if (r == 0)
		kv_remote_wake(remote);
	else
		backup_free(remote, backup);
}

static void *preparer(void *arg)
{
	struct kv_remote *remote = arg;
	struct kv_cache *cache = remote->cache;
	struct kv_backup *backup;

	kv_lock(cache);
	while (!remote->stop) {
		backup = dequeue_locked(remote, UNDER_WAY_MAX);
		if (!backup) {
			kv_cond_wait(cache, &remote->backup.more, REST_NS);
			continue;
		}
		kv_unlock(cache);
		prepare(remote, backup);
		kv_lock(cache);
	}
	kv_unlock(cache);
	return NULL;
}

/* ---- handing over ---- */

static void backup_over(struct kv_remote *remote, struct kv_backup *backup)
{
	TAILQ_REMOVE(&remote->backup.busy, backup, link);
	backup_free(remote, backup);
}

static void given_back(struct kv_remote *remote, struct kv_remote_job *job)
{
	backup_over(remote, (struct kv_backup *)job);
}

static void next(struct kv_remote *remote, struct kv_backup *backup);

static void done_with(struct kv_remote *remote, struct kv_backup *backup,
		      int status)
{
	kv_lock(remote->cache);
	remote->backends[backup->job.backend].stats.dropped += status < 0;
	kv_unlock(remote->cache);
	if (backup->job.abandoned)
		return;
	backup->job.backend++;
	next(remote, backup);
}

static void put(struct kv_remote *remote, struct kv_remote_job *job, int status)
{
	done_with(remote, (struct kv_backup *)job, status);
}

static void asked(struct kv_remote *remote, struct kv_remote_job *job,
		  int status)
{
	struct kv_backup *backup = (struct kv_backup *)job;
	const bool same =
		status == 0 && memcmp(&job->op.digest, &backup->digest,
				      sizeof(backup->digest)) == 0;

	/* With other bytes the first stays, as it does here. */
	if (same || (status < 0 && status != -ENOENT && status != -EBADMSG)) {
		done_with(remote, backup, same ? 0 : status);
		return;
	}
	if (status == 0) {
		done_with(remote, backup, -EEXIST);
		return;
	}
	if (!may_leave(remote->cache, backup)) {
		backup_over(remote, backup);
		return;
	}
	job->op.call = KV_REMOTE_PUT;
	job->op.data =
		backup->copy ? backup->copy : (uint8_t *)backup->view.data;
	job->op.length = backup->view.length;
	job->op.digest = backup->digest;
	job->ended = put;
	kv_remote_submit(remote, job, PUT_NS);
}

/* The turn of the next backend. */
static void next(struct kv_remote *remote, struct kv_backup *backup)
{
	struct kv_remote_job *job = &backup->job;
	char key[KV_NAME_MAX + 1];

	if (!may_leave(remote->cache, backup)) {
		backup_over(remote, backup);
		return;
	}
	while (job->backend < remote->n &&
	       !kv_remote_is_open(remote, job->backend)) {
		kv_lock(remote->cache);
		remote->backends[job->backend++].stats.dropped++;
		kv_unlock(remote->cache);
	}
	if (job->backend == remote->n) {
		backup_over(remote, backup);
		return;
	}
	kv_key_name(&backup->key, key);
	job->op = (struct kv_remote_op){.call = KV_REMOTE_EXISTS};
	snprintf(job->op.name, sizeof(job->op.name), "%s%s", backup->prefix,
		 key);
	job->ended = asked;
	job->given_back = given_back;
	kv_remote_submit(remote, job, ASK_NS);
}

bool kv_backup_is_under_way(const struct kv_remote *remote,
			    const struct kv_space *space,
			    const struct kv_key *key)
{
	const struct kv_backup *backup;

	TAILQ_FOREACH(backup, &remote->backup.busy, link)
		if (backup->space == space &&
		    (!key || kv_key_equal(&backup->key, key)))
			return true;
	return false;
}

void kv_backups_run(struct kv_remote *remote)
{
	struct kv_cache *cache = remote->cache;
	struct kv_backup *backup;

	for (;;) {
		kv_lock(cache);
		backup = TAILQ_FIRST(&remote->backup.ready);
		if (backup)
			TAILQ_REMOVE(&remote->backup.ready, backup, link);
		kv_unlock(cache);
		if (!backup)
			return;
		TAILQ_INSERT_TAIL(&remote->backup.busy, backup, link);
		next(remote, backup);
	}
}

/* ---- begin and end ---- */

int kv_backup_start(struct kv_remote *remote)
{
	int r;

	if (remote->cache->config.remote.write == KV_WRITEBACK_NONE)
		return 0;
	r = kv_thread_start(&remote->backup.thread, "kvfs-backup", preparer,
			    remote);
	remote->backup.running = r == 0;
	return r;
}

static bool has_work_locked(const struct kv_remote *remote)
{
	bool open = false;

	for (unsigned i = 0; i < remote->n; i++)
		open |= remote->backends[i].stats.open;
	return open && remote->backup.running &&
	       remote->backup.n_waiting + remote->backup.waiting.out > 0;
}

/* What waits, as long as a backend takes it. */
static void hand_over_rest(struct kv_remote *remote)
{
	const uint64_t until = kv_now_ns() + END_NS;
	bool more;

	do {
		kv_lock(remote->cache);
		more = has_work_locked(remote);
		kv_unlock(remote->cache);
		if (more)
			usleep(10000);
	} while (more && kv_now_ns() < until);
}

void kv_backup_stop(struct kv_remote *remote)
{
	struct kv_cache *cache = remote->cache;
	unsigned left;

	hand_over_rest(remote);
	kv_lock(cache);
	left = remote->backup.n_waiting;
	remote->stop = true;
	pthread_cond_signal(&remote->backup.more);
	kv_unlock(cache);
	if (remote->backup.running)
		pthread_join(remote->backup.thread, NULL);
	if (left > 0)
		fprintf(stderr,
			"kvfs: %u blocks of shared spaces were not handed over "
			"before the end\n",
			left);
}

void kv_backups_free(struct kv_remote *remote)
{
	struct kv_backup *backup;

	while ((backup = dequeue_locked(remote, UINT64_MAX)))
		backup_free(remote, backup);
	while ((backup = TAILQ_FIRST(&remote->backup.ready))) {
		TAILQ_REMOVE(&remote->backup.ready, backup, link);
		backup_free(remote, backup);
	}
}
