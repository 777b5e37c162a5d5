/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backup.c - put durable blocks of shared spaces to the backends.
 *
 * The keys of blocks that have just become durable wait in one queue per user, with
 * deficit round robin between users.  All queues have a common limit, of which one
 * user may have three quarters.  A queued key holds nothing: blocks that are evicted
 * meanwhile are not put.  One thread takes the keys in turn and makes them ready.
 * Each backend in turn is asked whether it has the block, and gets it if not.  Blocks
 * on the SSD are read only then.
 *
 * A space that is shared newly, was so at mount, or had a block that could not be put,
 * is offered to a backend: a walk over all its keys, as nobody knows which blocks the
 * backend misses.  The walk queues one page of keys at a time, behind new blocks.  The
 * walk continues with the next page when all blocks of the page have ended.
 *
 * OWNS      every kv_backup; the bytes of those that are held: a copy of a small
 *           block, so that no segment stays for its sake, a view of a large one.
 *           Every kv_offer: such a walk.
 *
 * STATES    of a backup:
 *              (new) -> waiting   enqueue_locked
 *            waiting -> ready     prepare: bytes in DRAM are held
 *              ready -> ASKING    backup_next
 *             ASKING -> unread    exists_ended: the backend misses it, no bytes held
 *             unread -> ready     work: its bytes were read
 *      ASKING, ready -> PUTTING   put
 *    ASKING, PUTTING -> ASKING    done_with: the next backend's turn
 *    ASKING, PUTTING -> (ended)   backup_next: there is no other backend
 *
 *           of an offer:
 *              (new) -> LATER    offer_again_locked
 *              LATER -> DUE      look_locked: its pause is over, its backend open
 *                DUE -> OUT      page_out
 *                OUT -> DUE      one_over_locked: the next page
 *           DUE, OUT -> LATER    offers_run, one_over_locked: not now
 *         LATER, DUE -> (over)   offers_run: its space is not shared any more
 *                OUT -> (over)   one_over_locked: it was the last page
 *
 * INVARIANTS
 *   (1) At most UNDER_WAY_MAX blocks are ready or in flight, including blocks whose
 *       memory a backend has not returned.
 *   (2) A put begins only if may_leave(): the space is shared, and has the owner that
 *       it had when the block began to wait.
 *   (3) One user may have only a part of the blocks in flight, waiting or out.
 *   (4) A space has at most one offer per backend, in space->offers.
 *   (5) All blocks of the pages before the one that is out have been offered, or the
 *       walk is repeated.
 *
 * LOCKING   cache->lock for the lists but the busy one, the counts, and all of offers.
 *           page_out() drops it while it lists keys: the offer is OUT then, and the
 *           backup thread's.
 */
#include "cache/block/block.h"
#include "cache/core/table.h"
#include "cache/remote/tier.h"
#include "common/thread.h"
#include "common/rate.h"

#include <stdio.h>

#define WAITING_MAX 16384u
#define BEHIND_MAX 64u /* a user's waiting blocks before a page is queued */
#define TURN 8	       /* blocks */
#define COPIED 16      /* copy blocks of at most 1/COPIED of a segment */
/* In small blocks; a large one counts as LARGE.  One user may have 30. */
#define UNDER_WAY_MAX 40u
#define SMALL_MAX (512u << 10)
#define LARGE 4u
#define ASK_NS UINT64_C(2000000000)
#define PUT_NS UINT64_C(10000000000)
#define REST_NS UINT64_C(1000000000)
#define END_NS UINT64_C(2000000000) /* for waiting blocks, at unmount */

#define PAGE 32u   /* keys */
#define OUT_MAX 85 /* blocks; 64 of one user */
#define LOOK_NS UINT64_C(1000000000)
#define PAUSE_NS UINT64_C(1000000000) /* the first; then doubled, */
#define PAUSE_MAX (PAUSE_NS << 11)    /* to half an hour */

enum offer_state { LATER, DUE, OUT };

struct kv_backup {
	struct kv_remote_job job; /* first; used by the remote thread only */
	struct kv_queued queued;  /* of backup.waiting */
	struct kv_space *space;	  /* held */
	uint32_t uid;		  /* the space's owner when it began to wait */
	struct kv_key key;
	struct kv_turn *turn;	/* held, from when it has left the queue */
	unsigned weight;	/* of UNDER_WAY_MAX */
	struct kv_offer *offer; /* that it is a block of; NULL: it is new */
	bool failed;		/* offer it again */
	struct kv_block *block; /* held, once ready */
	bool held;		/* the block's bytes are held */
	bool wanted;		/* the backend misses it */
	struct kv_view view;
	uint8_t *copy; /* NULL: none */
	struct kv_digest digest;
	char prefix[KV_REMOTE_PREFIX_MAX + 1];
	TAILQ_ENTRY(kv_backup) link; /* of ready, unread or busy */
};

struct kv_offer {
	struct kv_space *space;	 /* fixed; held */
	unsigned backend;	 /* fixed */
	struct kv_queued queued; /* DUE: of offers.due */
	enum offer_state state;
	struct kv_turn *turn; /* held: of @uid; NULL: it was never due */
	uint32_t uid;	      /* owner of the space when the walk began */
	uint64_t at, behind;  /* cursors of the page, and of the next one */
	unsigned out;	      /* blocks of the page that have not ended */
	bool failed, went;    /* a block of the page did */
	bool again;	      /* repeat the walk */
	uint64_t stuck_ns, walks_ns; /* last pauses before a page, and a walk */
	uint64_t until_ns;	     /* LATER */
	TAILQ_ENTRY(kv_offer) link;  /* LATER: of offers.later */
	LIST_ENTRY(kv_offer) of_all;
};

int kv_backup_init(struct kv_remote *remote)
{
	int r = kv_queues_init(&remote->backup.waiting, TURN);

	TAILQ_INIT(&remote->backup.ready);
	TAILQ_INIT(&remote->backup.unread);
	TAILQ_INIT(&remote->backup.busy);
	kv_cond_init(&remote->backup.more);
	kv_cond_init(&remote->backup.over);
	LIST_INIT(&remote->offers.all);
	TAILQ_INIT(&remote->offers.later);
	return r < 0 ? r : kv_queues_init(&remote->offers.due, PAGE);
}

/* ---- offers ---- */

static void later_locked(struct kv_remote *remote, struct kv_offer *offer,
			 uint64_t ns)
{
	offer->state = LATER;
	offer->until_ns = kv_now_ns() + ns;
	TAILQ_INSERT_TAIL(&remote->offers.later, offer, link);
	if (ns == 0)
		remote->offers.look_ns = 0;
}

static void due_locked(struct kv_remote *remote, struct kv_offer *offer)
{
	struct kv_turns *turns = &remote->offers.due;
	const uint32_t uid = offer->space->uid;

	/* With another owner the objects have other names: begin again. */
	if (!offer->turn || offer->uid != uid) {
		if (offer->turn)
			kv_turn_put(turns, offer->turn);
		offer->turn = kv_turn_get(turns, uid);
		offer->uid = uid;
		offer->at = 0;
	}
	offer->state = DUE;
	kv_enqueue(turns, uid, &offer->queued);
}

/* Free an offer that is in no list. */
static void offer_free_locked(struct kv_remote *remote, struct kv_offer *offer)
{
	remote->backends[offer->backend].stats.offering--;
	offer->space->offers[offer->backend] = NULL;
	LIST_REMOVE(offer, of_all);
	if (offer->turn)
		kv_turn_put(&remote->offers.due, offer->turn);
	kv_space_put(offer->space);
	free(offer);
}

/* Offer all of @space to @backend, or again if it is being offered. */
static void offer_again_locked(struct kv_remote *remote, struct kv_space *space,
			       unsigned backend)
{
	struct kv_offer *offer = space->offers[backend];

	kv_assert_locked(&remote->cache->lock);
	if (remote->stop || !kv_remote_writes(remote))
		return;
	if (offer) {
		offer->again |= offer->at || offer->state == OUT;
		return;
	}
	offer = calloc(1, sizeof(*offer));
	if (!offer)
		return; /* the next mount offers it */
	offer->space = kv_space_get(space);
	offer->backend = backend;
	space->offers[backend] = offer;
	LIST_INSERT_HEAD(&remote->offers.all, offer, of_all);
	remote->backends[backend].stats.offering++;
	later_locked(remote, offer, 0);
}

void kv_remote_offer_locked(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_remote *remote = cache->remote;

	kv_assert_locked(&cache->lock);
	for (unsigned i = 0; remote && i < remote->n; i++) {
		struct kv_offer *offer = space->offers[i];

		offer_again_locked(remote, space, i);
		if (offer && offer->state == LATER)
			offer->stuck_ns = offer->walks_ns = offer->until_ns = 0;
	}
	if (remote)
		pthread_cond_signal(&remote->backup.more);
}

static bool is_open_locked(const struct kv_remote *remote,
			   const struct kv_offer *offer)
{
	return remote->backends[offer->backend].stats.open;
}

/* A block of the page has ended, or the listing of the page. */
static void one_over_locked(struct kv_remote *remote, struct kv_offer *offer)
{
	kv_turn_end(&remote->offers.due, offer->turn, 1);
	if (--offer->out > 0)
		return;
	/* Repeat a page of which no block went, or at which the backend failed. */
	if (offer->failed && !(offer->went && is_open_locked(remote, offer))) {
		offer->stuck_ns =
			kv_backoff(offer->stuck_ns, PAUSE_NS, PAUSE_MAX);
		later_locked(remote, offer, offer->stuck_ns);
		return;
	}
	offer->again |= offer->failed;
	offer->stuck_ns = 0;
	offer->at = offer->behind;
	if (offer->at != 0) {
		due_locked(remote, offer);
	} else if (offer->again) {
		offer->again = false;
		offer->walks_ns =
			kv_backoff(offer->walks_ns, PAUSE_NS, PAUSE_MAX);
		later_locked(remote, offer, offer->walks_ns);
	} else {
		offer_free_locked(remote, offer);
	}
}

/* ---- the queue ---- */

static bool enqueue_locked(struct kv_remote *remote, struct kv_space *space,
			   const struct kv_key *key, struct kv_offer *offer,
			   unsigned backend)
{
	struct kv_turns *turns = &remote->backup.waiting;
	const struct kv_block *block;
	struct kv_backup *backup;

	if (remote->backup.n_waiting >= WAITING_MAX ||
	    kv_queue_length(turns, space->uid) >= WAITING_MAX / 4 * 3)
		return false;
	backup = calloc(1, sizeof(*backup));
	if (!backup)
		return false;
	block = kv_table_find(remote->cache, space, key);
	backup->space = kv_space_get(space);
	backup->uid = space->uid;
	backup->key = *key;
	backup->weight = block && block->length > SMALL_MAX ? LARGE : 1;
	backup->offer = offer;
	backup->job.backend = backend;
	kv_enqueue(turns, space->uid, &backup->queued);
	remote->backup.n_waiting++;
	return true;
}

/* Take the next block in turn, with up to @max in flight.  NULL: there is none. */
static struct kv_backup *dequeue_locked(struct kv_remote *remote, uint64_t max)
{
	struct kv_turns *turns = &remote->backup.waiting;
	struct kv_turn *turn = kv_turns_next_within(turns, max);
	struct kv_backup *backup;

	if (!turn)
		return NULL;
	backup = kv_container(kv_queue_first(turn), struct kv_backup, queued);
	remote->backup.n_waiting--;
	kv_turn_charge(turn, 1);
	kv_turn_begin(turns, turn, backup->weight);
	backup->turn = turn;
	kv_dequeue(turns, &backup->queued);
	return backup;
}

/* Count the miss of a backend, and schedule the space to be offered again. */
static void miss_locked(struct kv_remote *remote, struct kv_space *space,
			unsigned backend)
{
	remote->backends[backend].stats.dropped++;
	offer_again_locked(remote, space, backend);
}

static void miss_all_locked(struct kv_remote *remote, struct kv_space *space)
{
	for (unsigned i = 0; i < remote->n; i++)
		miss_locked(remote, space, i);
}

/* Return whether @block is to be put to the backends, by remote_write. */
static bool is_wanted(const struct kv_cache *cache,
		      const struct kv_block *block)
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
	kv_fetch_present_locked(remote, kv_key_hash(cache, space, block->key));
	if (!is_wanted(cache, block))
		return;
	if (enqueue_locked(remote, space, &key, NULL, 0))
		pthread_cond_signal(&remote->backup.more);
	else
		miss_all_locked(remote, space);
}

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
	if (backup->offer) {
		backup->offer->failed |= backup->failed;
		backup->offer->went |= !backup->failed;
		one_over_locked(remote, backup->offer);
	}
	kv_turn_end(&remote->backup.waiting, backup->turn, backup->weight);
	pthread_cond_signal(&remote->backup.more);
	pthread_cond_signal(&remote->backup.over);
	kv_unlock(cache);
	kv_space_put(backup->space);
	free(backup);
}

/* Return whether the owner still shares the block, and there is time. */
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

/* ---- pages of offers ---- */

/* Queue the next page of keys.  Drops the lock meanwhile. */
static void page_out(struct kv_remote *remote, struct kv_offer *offer)
{
	struct kv_cache *cache = remote->cache;
	struct kv_turns *turns = &remote->offers.due;
	struct kv_key keys[PAGE];
	size_t n;

	offer->state = OUT;
	offer->behind = offer->at;
	offer->failed = offer->went = false;
	offer->out = 1; /* the page, while it is being listed */
	kv_turn_begin(turns, offer->turn, 1);
	kv_unlock(cache);
	n = kv_space_keys(cache, offer->space, &offer->behind, keys, PAGE);
	kv_lock(cache);
	for (size_t i = 0; i < n; i++) {
		const struct kv_block *block =
			kv_table_find(cache, offer->space, &keys[i]);

		if (!block || block->file == KV_NONE ||
		    !is_wanted(cache, block))
			continue;
		if (enqueue_locked(remote, offer->space, &keys[i], offer,
				   offer->backend)) {
			offer->out++;
			kv_turn_begin(turns, offer->turn, 1);
		} else {
			offer->failed = true;
		}
	}
	kv_turn_charge(offer->turn, KV_MAX(n, 1u));
	one_over_locked(remote, offer);
}

static bool is_shared_locked(const struct kv_offer *offer)
{
	return offer->space->shared && !offer->space->removed;
}

/* End the pauses that are over, and offers of spaces that are not shared any more. */
static void look_locked(struct kv_remote *remote)
{
	const uint64_t now = kv_now_ns();
	struct kv_offer *offer, *next;

	if (now < remote->offers.look_ns)
		return;
	remote->offers.look_ns = now + LOOK_NS;
	for (offer = TAILQ_FIRST(&remote->offers.later); offer; offer = next) {
		const bool shared = is_shared_locked(offer);

		next = TAILQ_NEXT(offer, link);
		if (shared &&
		    (now < offer->until_ns || !is_open_locked(remote, offer)))
			continue;
		TAILQ_REMOVE(&remote->offers.later, offer, link);
		if (shared)
			due_locked(remote, offer);
		else
			offer_free_locked(remote, offer);
	}
}

/* Queue a page of the offer whose turn it is.  Returns false if there is none. */
static bool offers_run(struct kv_remote *remote)
{
	struct kv_turns *turns = &remote->offers.due;
	struct kv_offer *offer;
	struct kv_turn *turn;

	kv_assert_locked(&remote->cache->lock);
	look_locked(remote);
	turn = kv_turns_next_within(turns, OUT_MAX);
	if (!turn)
		return false;
	offer = kv_container(kv_queue_first(turn), struct kv_offer, queued);
	kv_dequeue(turns, &offer->queued);
	if (!is_shared_locked(offer))
		offer_free_locked(remote, offer);
	else if (offer->uid != offer->space->uid)
		due_locked(remote, offer);
	else if (!is_open_locked(remote, offer) ||
		 remote->backup.n_waiting >= WAITING_MAX / 2 ||
		 kv_queue_length(&remote->backup.waiting, offer->uid) >=
			 BEHIND_MAX)
		later_locked(remote, offer, LOOK_NS);
	else
		page_out(remote, offer);
	return true;
}

/* ---- making ready: the backup thread ---- */

/* Hold the bytes of the block; those on the SSD are read for this alone. */
static int hold(struct kv_cache *cache, struct kv_backup *backup)
{
	struct kv_view *view = &backup->view;
	int r = kv_view_get_once(cache, backup->block, view);

	if (r < 0)
		return r;
	backup->held = true;
	if (view->length <= cache->arena.segment_bytes / COPIED)
		backup->copy = malloc(view->length);
	if (backup->copy) {
		memcpy(backup->copy, view->data, view->length);
		kv_view_put(cache, view);
	}
	return 0;
}

/* Hand @backup to the remote thread, unless @r is an error. */
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
	bool in_dram = false;
	struct kv_meta meta;
	int r = may_leave(remote, backup) ? 0 : -ENOENT;

	if (r == 0)
		r = kv_remote_prefix(cache, backup->space, backup->prefix);
	if (r == 0)
		r = kv_block_get(cache, backup->space, &backup->key,
				 &backup->block);
	if (r == 0)
		r = kv_block_meta(cache, backup->block, &meta, &backup->digest);
	/* Hold a new block in DRAM at once: most often no backend has it. */
	if (r == 0 && !backup->offer) {
		kv_lock(cache);
		in_dram = backup->block->slot;
		kv_unlock(cache);
	}
	made_ready(remote, backup, in_dram ? hold(cache, backup) : r);
}

static void *backup_run(void *arg)
{
	struct kv_remote *remote = arg;
	struct kv_cache *cache = remote->cache;
	struct kv_backup *unread, *backup;

	kv_lock(cache);
	while (!remote->stop) {
		unread = TAILQ_FIRST(&remote->backup.unread);
		backup = unread ? NULL : dequeue_locked(remote, UNDER_WAY_MAX);
		if (unread)
			TAILQ_REMOVE(&remote->backup.unread, unread, link);
		if (unread || backup) {
			kv_unlock(cache);
			if (unread)
				made_ready(remote, unread, hold(cache, unread));
			else
				prepare(remote, backup);
			kv_lock(cache);
		} else if (remote->backup.ending || !offers_run(remote)) {
			kv_cond_wait(cache, &remote->backup.more, REST_NS);
		}
	}
	kv_unlock(cache);
	return NULL;
}

/* ---- putting: the remote thread ---- */

static void backup_over(struct kv_remote *remote, struct kv_backup *backup)
{
	TAILQ_REMOVE(&remote->backup.busy, backup, link);
	backup_free(remote, backup);
}

static void given_back(struct kv_remote *remote, struct kv_remote_job *job)
{
	backup_over(remote, (struct kv_backup *)job);
}

static void backup_next(struct kv_remote *remote, struct kv_backup *backup);

/* The backend whose turn it was does not get the block. */
static void missed(struct kv_remote *remote, struct kv_backup *backup,
		   int status)
{
	/* Another object of that name stays; too large a block stays so. */
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

/* An offer is for one backend only. */
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
	backup_next(remote, backup);
}

/* Return the hash of this object in the table of damaged objects. */
static uint64_t hash_of(struct kv_remote *remote,
			const struct kv_backup *backup)
{
	return kv_key_hash(remote->cache, backup->space, backup->key.b);
}

static void put_ended(struct kv_remote *remote, struct kv_remote_job *job,
		      int status)
{
	struct kv_backup *backup = (struct kv_backup *)job;

	if (status == 0)
		kv_fetch_damaged(remote, hash_of(remote, backup), job->backend,
				 false);
	done_with(remote, backup, status);
}

/* The backend misses the block: put it, once its bytes are held. */
static void put(struct kv_remote *remote, struct kv_backup *backup)
{
	struct kv_remote_job *job = &backup->job;

	if (!backup->held) {
		backup->wanted = true;
		TAILQ_REMOVE(&remote->backup.busy, backup, link);
		kv_lock(remote->cache);
		TAILQ_INSERT_TAIL(&remote->backup.unread, backup, link);
		pthread_cond_signal(&remote->backup.more);
		kv_unlock(remote->cache);
		return;
	}
	if (!may_leave(remote, backup)) {
		backup_over(remote, backup);
		return;
	}
	job->op.call = KV_REMOTE_PUT;
	job->op.data =
		backup->copy ? backup->copy : (uint8_t *)backup->view.data;
	job->op.length = backup->view.length;
	job->op.digest = backup->digest;
	job->ended = put_ended;
	kv_remote_submit(remote, job, PUT_NS);
}

static void exists_ended(struct kv_remote *remote, struct kv_remote_job *job,
			 int status)
{
	struct kv_backup *backup = (struct kv_backup *)job;

	/* Other bytes under that name stay, as they do in the cache. */
	if (status == 0 && memcmp(&job->op.digest, &backup->digest,
				  sizeof(backup->digest)) != 0)
		status = -EEXIST;
	if (status == -ENOENT || status == -EBADMSG)
		put(remote, backup);
	else
		done_with(remote, backup, status);
}

/* Ask the next backend that is open whether it has the block. */
static void backup_next(struct kv_remote *remote, struct kv_backup *backup)
{
	struct kv_remote_job *job = &backup->job;

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
	job->op = (struct kv_remote_op){.call = KV_REMOTE_EXISTS};
	kv_remote_name(&job->op, backup->prefix, &backup->key);
	job->ended = exists_ended;
	job->given_back = given_back;
	/* The note of a damaged object does not tell that it is damaged. */
	if (kv_fetch_is_damaged(remote, hash_of(remote, backup), job->backend))
		put(remote, backup);
	else
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
			put(remote, backup);
		else
			backup_next(remote, backup);
	}
}

/* ---- begin and end ---- */

int kv_backup_start(struct kv_remote *remote)
{
	struct kv_cache *cache = remote->cache;
	struct kv_space *space;
	int r;

	if (cache->config.remote.write == KV_WRITEBACK_NONE)
		return 0;
	kv_lock(cache);
	for (space = kv_space_behind(cache, 0); space;
	     space = kv_space_behind(cache, space->id))
		for (unsigned i = 0; space->shared && i < remote->n; i++)
			offer_again_locked(remote, space, i);
	kv_unlock(cache);
	r = kv_thread_start(&remote->backup.thread, "kvfs-backup", backup_run,
			    remote);
	remote->backup.running = r == 0;
	return r;
}

/* Return whether a backend takes blocks, as far as is known. */
static bool any_open_locked(const struct kv_remote *remote)
{
	bool open = false;

	for (unsigned i = 0; i < remote->n; i++)
		open |= remote->backends[i].stats.open;
	return open && remote->backup.running;
}

/* A flush of the last blocks of a space. */
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

/* Flush all shared spaces, if a backend takes their blocks; caller frees. */
static struct last *flush_all(struct kv_remote *remote, size_t *ret_n)
{
	struct kv_cache *cache = remote->cache;
	struct kv_space *space;
	struct last *all;
	uint32_t id = 0;
	size_t n = 0, max;

	kv_lock(cache);
	max = any_open_locked(remote) ? cache->live_spaces : 0;
	kv_unlock(cache);
	all = calloc(max + 1, sizeof(*all));
	while (all && n < max) {
		kv_lock(cache);
		do {
			space = kv_space_behind(cache, id);
			id = space ? space->id : 0;
		} while (space && (space->removed || !space->shared));
		remote->backup.flushing += space != NULL;
		all[n].space = space ? kv_space_get(space) : NULL;
		kv_unlock(cache);
		if (!space)
			break;
		all[n].flush = (struct kv_flush){
			.done = last_is_durable, .arg = remote, .each = true};
		kv_flush_submit(cache, space, &all[n].flush);
		n++;
	}
	*ret_n = n;
	return all;
}

void kv_backup_stop(struct kv_remote *remote)
{
	struct kv_cache *cache = remote->cache;
	const uint64_t until = kv_now_ns() + END_NS;
	struct last *all;
	unsigned left;
	uint64_t now;
	size_t n = 0;

	/* Put what waits, and what becomes durable now, while a backend takes it. */
	all = flush_all(remote, &n);
	kv_lock(cache);
	remote->backup.ending = true;
	while (any_open_locked(remote) &&
	       remote->backup.flushing + remote->backup.n_waiting +
			       remote->backup.waiting.out >
		       0 &&
	       (now = kv_now_ns()) < until)
		kv_cond_wait(cache, &remote->backup.over, until - now);
	kv_unlock(cache);
	for (size_t i = 0; i < n; i++)
		kv_flush_cancel(cache, &all[i].flush, -ETIMEDOUT);
	kv_lock(cache);
	while (remote->backup.flushing > 0)
		kv_cond_wait(cache, &remote->backup.over, REST_NS);
	kv_unlock(cache);
	for (size_t i = 0; i < n; i++)
		kv_space_put(all[i].space);
	free(all);

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

void kv_backup_fini(struct kv_remote *remote)
{
	struct kv_offer *offer;

	while ((offer = LIST_FIRST(&remote->offers.all)))
		offer_free_locked(remote, offer);
	kv_turns_fini(&remote->offers.due);
	kv_turns_fini(&remote->backup.waiting);
	pthread_cond_destroy(&remote->backup.more);
	pthread_cond_destroy(&remote->backup.over);
}
