/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backup.c - what became durable here is handed over to the backends.
 *
 * Keys wait in queues of their users, of a fixed length together and three quarters
 * of it for one, and hold nothing: what is evicted meanwhile is not handed over.
 * Users take turns.  One thread makes the first of them ready; each backend in turn
 * is asked whether it has the block, and given it if not.  Only then it is read, if
 * that takes the SSD.  What is not handed over is offered again (offer.c).
 *
 * OWNS      every kv_backup; the bytes of those that are held: a copy of what is
 *           small, so that no segment stays for its sake, a view of what is large.
 *
 * STATES    of a backup:
 *              (new) -> waiting   enqueue_locked
 *            waiting -> ready     prepare: what is in DRAM is held
 *              ready -> ASKING    next: of a backend that has no damaged one
 *             ASKING -> unread    asked: it does not have what is not held
 *             unread -> ready     read_bytes: it is
 *      ASKING, ready -> PUTTING   give
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
 * LOCKING   cache->lock for the lists but the busy one, and the counts.
 */
#include "cache/block/block.h"
#include "cache/core/table.h"
#include "cache/remote/tier.h"

#include <stdio.h>

#define WAITING_MAX 16384u
/* What is offered again comes behind so many at most. */
#define BEHIND_MAX 64u
#define TURN 8	  /* blocks */
#define COPIED 16 /* up to one part in so many of a segment */
/* In small blocks, a large one is LARGE; of one user 30, so that there is something
 * for others. */
#define UNDER_WAY_MAX 40u
#define SMALL_MAX (512u << 10)
#define LARGE 4u
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
	unsigned weight;	/* under way */
	struct kv_offer *offer; /* what offers it again; NULL: it is new */
	bool failed;		/* it is to be offered again */
	struct kv_block *block; /* held, once ready */
	bool held, wanted; /* with its bytes; by the backend, which asked */
	struct kv_view view;
	uint8_t *copy; /* NULL: none */
	struct kv_digest digest;
	char prefix[KV_REMOTE_PREFIX_MAX + 1];
	TAILQ_ENTRY(kv_backup) link; /* of waiting, ready, unread or busy */
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

static unsigned weight_of(struct kv_cache *cache, struct kv_space *space,
			  const struct kv_key *key)
{
	const struct kv_block *block = kv_table_find(cache, space, key);

	return block && block->length > SMALL_MAX ? LARGE : 1;
}

static bool enqueue_locked(struct kv_remote *remote, struct kv_space *space,
			   const struct kv_key *key, struct kv_offer *offer,
			   unsigned backend)
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
	backup->weight = weight_of(remote->cache, space, key);
	backup->offer = offer;
	backup->job.backend = backend;
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
	kv_turn_begin(turns, &queue->turn, backup->weight);
	if (TAILQ_EMPTY(&queue->waiting))
		kv_turn_stop(turns, &queue->turn);
	kv_turn_put(turns, &queue->turn);
	return backup;
}

bool kv_backup_again_locked(struct kv_remote *remote, struct kv_offer *offer,
			    unsigned backend, struct kv_space *space,
			    const struct kv_key *key)
{
	kv_assert_locked(&remote->cache->lock);
	return enqueue_locked(remote, space, key, offer, backend);
}

bool kv_backup_has_room_locked(struct kv_remote *remote, uint32_t uid)
{
	struct kv_turns *turns = &remote->backup.waiting;
	struct queue *queue = (struct queue *)kv_turn_get(turns, uid);
	const bool has = remote->backup.n_waiting < WAITING_MAX / 2 &&
			 queue->n < BEHIND_MAX;

	kv_turn_put(turns, &queue->turn);
	return has;
}

/* A backend goes without it for now. */
static void miss_locked(struct kv_remote *remote, struct kv_space *space,
			unsigned backend)
{
	remote->backends[backend].stats.dropped++;
	kv_offer_again_locked(remote, space, backend);
}

static void miss_all_locked(struct kv_remote *remote, struct kv_space *space)
{
	for (unsigned i = 0; i < remote->n; i++)
		miss_locked(remote, space, i);
}

bool kv_backup_wants(const struct kv_cache *cache, const struct kv_block *block)
{
	return cache->config.remote.write == KV_WRITEBACK_ALL || block->hits;
}

void kv_backup_durable_locked(struct kv_cache *cache,
			      const struct kv_block *block)
{
	struct kv_remote *remote = cache->remote;
	struct kv_space *space = kv_block_space(cache, block);
	const struct kv_key key = kv_block_key(block);

	kv_assert_locked(&cache->lock);
	if (!remote->backup.running || !space->shared)
		return;
	kv_shun_not(remote->shunned, kv_key_hash(cache, space, block->key));
	if (!kv_backup_wants(cache, block))
		return;
	if (!enqueue_locked(remote, space, &key, NULL, 0)) {
		miss_all_locked(remote, space);
		return;
	}
	pthread_cond_signal(&remote->backup.more);
}

/* Where all is handed over it was when it became durable. */
void kv_backup_used_locked(struct kv_cache *cache, const struct kv_block *block)
{
	if (cache->config.remote.write == KV_WRITEBACK_REUSE)
		kv_backup_durable_locked(cache, block);
}

static void backup_free(struct kv_remote *remote, struct kv_backup *backup)
{
	struct kv_cache *cache = remote->cache;

	if (backup->held && !backup->copy)
		kv_view_put(cache, &backup->view);
	if (backup->block)
		kv_block_put(cache, backup->block);
	free(backup->copy);
	kv_lock(cache);
	if (backup->offer)
		kv_offer_ended_locked(remote, backup->offer, backup->failed);
	kv_turn_end(&remote->backup.waiting, &backup->queue->turn,
		    backup->weight);
	pthread_cond_signal(&remote->backup.more);
	pthread_cond_signal(&remote->backup.over);
	kv_unlock(cache);
	kv_space_put(backup->space);
	free(backup);
}

/* Whether its owner still wants others to have it, and there is time. */
static bool may_leave(struct kv_remote *remote, const struct kv_backup *backup)
{
	struct kv_cache *cache = remote->cache;
	bool may;

	kv_lock(cache);
	may = backup->space->shared && backup->space->uid == backup->uid &&
	      !(backup->block && (backup->block->flags & BLOCK_REMOVED)) &&
	      !(backup->offer && remote->backup.ending);
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

/* Its bytes, held; from SSD they come for this alone. */
static int hold(struct kv_cache *cache, struct kv_backup *backup)
{
	int r = kv_view_get_once(cache, backup->block, &backup->view);

	if (r < 0)
		return r;
	backup->held = true;
	copy_small(cache, backup);
	return 0;
}

static bool is_in_dram(struct kv_cache *cache, const struct kv_block *block)
{
	bool is;

	kv_lock(cache);
	is = block->slot;
	kv_unlock(cache);
	return is;
}

/* What is new is held at once, if that takes no reading: mostly nobody has it. */
static int find(struct kv_cache *cache, struct kv_backup *backup)
{
	struct kv_block *block;
	struct kv_meta meta;
	int r = kv_block_get(cache, backup->space, &backup->key, &block);

	if (r < 0)
		return r;
	backup->block = block;
	r = kv_block_meta(cache, block, &meta, &backup->digest);
	return r == 0 && !backup->offer && is_in_dram(cache, block)
		       ? hold(cache, backup)
		       : r;
}

/* It can be asked for, or given; or why not. */
static void made_ready(struct kv_remote *remote, struct kv_backup *backup,
		       int r)
{
	kv_lock(remote->cache);
	if (r == 0)
		TAILQ_INSERT_TAIL(&remote->backup.ready, backup, link);
	backup->failed |= r < 0 && r != -ENOENT;
	if (r < 0 && r != -ENOENT && !backup->offer)
		miss_all_locked(remote, backup->space);
	kv_unlock(remote->cache);
	if (r == 0)
		kv_remote_wake(remote);
	else
		backup_free(remote, backup);
}

static void prepare(struct kv_remote *remote, struct kv_backup *backup)
{
	struct kv_cache *cache = remote->cache;
	int r = may_leave(remote, backup) ? 0 : -ENOENT;

	if (r == 0)
		r = kv_remote_prefix(cache, backup->space, backup->prefix);
	if (r == 0)
		r = find(cache, backup);
	made_ready(remote, backup, r);
}

/* Something to do, done without the lock; false: there is nothing. */
static bool work(struct kv_remote *remote)
{
	struct kv_cache *cache = remote->cache;
	struct kv_backup *unread = TAILQ_FIRST(&remote->backup.unread);
	struct kv_backup *backup = NULL;

	if (unread)
		TAILQ_REMOVE(&remote->backup.unread, unread, link);
	else
		backup = dequeue_locked(remote, UNDER_WAY_MAX);
	if (!unread && !backup)
		return !remote->backup.ending && kv_offers_run(remote);
	kv_unlock(cache);
	if (unread)
		made_ready(remote, unread, hold(cache, unread));
	else
		prepare(remote, backup);
	kv_lock(cache);
	return true;
}

static void *preparer(void *arg)
{
	struct kv_remote *remote = arg;
	struct kv_cache *cache = remote->cache;

	kv_lock(cache);
	while (!remote->stop)
		if (!work(remote))
			kv_cond_wait(cache, &remote->backup.more, REST_NS);
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

/* The backend whose turn it was goes without it.  What it has under that name, or
 * what is too large for it, will be no other. */
static void missed(struct kv_remote *remote, struct kv_backup *backup,
		   int status)
{
	const bool again = status != -EEXIST && status != -EFBIG;
	const unsigned backend = backup->job.backend;

	kv_lock(remote->cache);
	backup->failed |= again;
	if (!backup->offer && again)
		miss_locked(remote, backup->space, backend);
	else if (!backup->offer)
		remote->backends[backend].stats.dropped++;
	kv_unlock(remote->cache);
}

/* What is offered again is so to one backend. */
static void next_backend(struct kv_remote *remote, struct kv_backup *backup)
{
	backup->wanted = false;
	backup->job.backend =
		backup->offer ? remote->n : backup->job.backend + 1;
}

static void done_with(struct kv_remote *remote, struct kv_backup *backup,
		      int status)
{
	if (status < 0)
		missed(remote, backup, status);
	if (backup->job.abandoned)
		return;
	next_backend(remote, backup);
	next(remote, backup);
}

/* Of what was found damaged there. */
static uint64_t hash_of(struct kv_remote *remote,
			const struct kv_backup *backup)
{
	return kv_key_hash(remote->cache, backup->space, backup->key.b);
}

static void put(struct kv_remote *remote, struct kv_remote_job *job, int status)
{
	struct kv_backup *backup = (struct kv_backup *)job;

	if (status == 0) {
		kv_lock(remote->cache);
		kv_mended(remote->shunned, hash_of(remote, backup),
			  job->backend);
		kv_unlock(remote->cache);
	}
	done_with(remote, backup, status);
}

static void give(struct kv_remote *remote, struct kv_backup *backup)
{
	struct kv_remote_job *job = &backup->job;

	if (!may_leave(remote, backup)) {
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

static void have_it_read(struct kv_remote *remote, struct kv_backup *backup)
{
	backup->wanted = true;
	TAILQ_REMOVE(&remote->backup.busy, backup, link);
	kv_lock(remote->cache);
	TAILQ_INSERT_TAIL(&remote->backup.unread, backup, link);
	pthread_cond_signal(&remote->backup.more);
	kv_unlock(remote->cache);
}

/* It has not got it. */
static void want(struct kv_remote *remote, struct kv_backup *backup)
{
	if (backup->held)
		give(remote, backup);
	else
		have_it_read(remote, backup);
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
	want(remote, backup);
}

/* Its note would not say so. */
static bool is_damaged(struct kv_remote *remote, const struct kv_backup *backup)
{
	bool is;

	kv_lock(remote->cache);
	is = kv_is_damaged(remote->shunned, hash_of(remote, backup),
			   backup->job.backend);
	kv_unlock(remote->cache);
	return is;
}

/* The turn of the next backend. */
static void next(struct kv_remote *remote, struct kv_backup *backup)
{
	struct kv_remote_job *job = &backup->job;
	char key[KV_NAME_MAX + 1];

	if (!may_leave(remote, backup)) {
		backup_over(remote, backup);
		return;
	}
	while (job->backend < remote->n &&
	       !kv_remote_is_open(remote, job->backend)) {
		missed(remote, backup, -EHOSTDOWN);
		next_backend(remote, backup);
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
	if (is_damaged(remote, backup)) {
		want(remote, backup);
		return;
	}
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
		if (backup->wanted)
			give(remote, backup);
		else
			next(remote, backup);
	}
}

/* ---- begin and end ---- */

int kv_backup_start(struct kv_remote *remote)
{
	int r;

	if (remote->cache->config.remote.write == KV_WRITEBACK_NONE)
		return 0;
	kv_offers_adopt(remote);
	r = kv_thread_start(&remote->backup.thread, "kvfs-backup", preparer,
			    remote);
	remote->backup.running = r == 0;
	return r;
}

/* A backend takes something, as far as is known. */
static bool any_open_locked(const struct kv_remote *remote)
{
	bool open = false;

	for (unsigned i = 0; i < remote->n; i++)
		open |= remote->backends[i].stats.open;
	return open && remote->backup.running;
}

static bool has_work_locked(const struct kv_remote *remote)
{
	return any_open_locked(remote) &&
	       remote->backup.flushing + remote->backup.n_waiting +
			       remote->backup.waiting.out >
		       0;
}

/* A space's last blocks, that are to become durable. */
struct last {
	struct kv_flush flush;	/* first */
	struct kv_space *space; /* held */
};

static void last_is_durable(struct kv_flush *flush, int status)
{
	struct kv_remote *remote = flush->arg;

	(void)status;
	kv_lock(remote->cache);
	remote->backup.flushing--;
	pthread_cond_signal(&remote->backup.over);
	kv_unlock(remote->cache);
}

/* Of the next space that is shared; false: there is none. */
static bool flush_next(struct kv_remote *remote, uint32_t *id,
		       struct last *last)
{
	struct kv_cache *cache = remote->cache;
	struct kv_space *space;

	kv_lock(cache);
	do {
		space = kv_space_behind(cache, *id);
		*id = space ? space->id : 0;
	} while (space && (space->removed || !space->shared));
	remote->backup.flushing += space != NULL;
	last->space = space ? kv_space_get(space) : NULL;
	kv_unlock(cache);
	last->flush = (struct kv_flush){
		.done = last_is_durable, .arg = remote, .each = true};
	if (space)
		kv_flush_submit(cache, space, &last->flush);
	return space;
}

/* Of all of them, if a backend takes what they have; let_go() of what comes back. */
static struct last *flush_all(struct kv_remote *remote, size_t *ret_n)
{
	struct kv_cache *cache = remote->cache;
	struct last *all;
	uint32_t id = 0;
	size_t n = 0, max;

	kv_lock(cache);
	max = any_open_locked(remote) ? cache->live_spaces : 0;
	kv_unlock(cache);
	all = calloc(max + 1, sizeof(*all));
	while (all && n < max && flush_next(remote, &id, &all[n]))
		n++;
	*ret_n = n;
	return all;
}

static void let_go(struct kv_remote *remote, struct last *all, size_t n)
{
	struct kv_cache *cache = remote->cache;

	for (size_t i = 0; i < n; i++)
		kv_flush_cancel(cache, &all[i].flush, -ETIMEDOUT);
	kv_lock(cache);
	while (remote->backup.flushing > 0)
		kv_cond_wait(cache, &remote->backup.over, REST_NS);
	kv_unlock(cache);
	for (size_t i = 0; i < n; i++)
		kv_space_put(all[i].space);
	free(all);
}

/* What waits, and what is not durable yet, as long as a backend takes it. */
static void hand_over_rest(struct kv_remote *remote)
{
	struct kv_cache *cache = remote->cache;
	const uint64_t until = kv_now_ns() + END_NS;
	struct last *all;
	uint64_t now;
	size_t n = 0;

	all = flush_all(remote, &n);
	kv_lock(cache);
	remote->backup.ending = true;
	while (has_work_locked(remote) && (now = kv_now_ns()) < until)
		kv_cond_wait(cache, &remote->backup.over, until - now);
	kv_unlock(cache);
	let_go(remote, all, n);
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
			"before the end: the next mount offers them\n",
			left);
}

static void free_all(struct kv_remote *remote, struct kv_backups *backups)
{
	struct kv_backup *backup;

	while ((backup = TAILQ_FIRST(backups))) {
		TAILQ_REMOVE(backups, backup, link);
		backup_free(remote, backup);
	}
}

void kv_backups_free(struct kv_remote *remote)
{
	struct kv_backup *backup;

	while ((backup = dequeue_locked(remote, UINT64_MAX)))
		backup_free(remote, backup);
	free_all(remote, &remote->backup.ready);
	free_all(remote, &remote->backup.unread);
}
