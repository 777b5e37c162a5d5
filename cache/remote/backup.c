/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backup.c - put durable blocks of shared spaces to the backend.
 *
 * Each user has two queues: blocks that have just become durable, and behind these
 * older blocks, which offers bring.  An offer is a walk over all keys of a space that is
 * shared newly, was shared at mount, or had a block that was not put, as nobody knows
 * which of its blocks the backend lacks.  Users take turns, by deficit round robin.  A
 * queued key holds no block: a block that is evicted meanwhile is not put.
 *
 * One thread takes the keys in turn and makes the blocks ready.  A new small block is
 * put at once.  For others the backend is asked first, and the bytes are read from SSD
 * only if it lacks the block.
 *
 * OWNS      every kv_offer; every kv_backup, and its bytes: a copy of a small block, so
 *           that no segment stays for its sake, a view of a large one.
 *
 * STATES    of a backup:
 *              (new) -> queued    enqueue_locked
 *             queued -> ready     prepare
 *              ready -> asking    kv_backup_run
 *             asking -> ready     given_back: the backend lacks it
 *              ready -> unread    kv_backup_run: no bytes are held
 *             unread -> ready     backup_run: its bytes were read
 *              ready -> putting   kv_backup_run
 *    asking, putting -> (over)    given_back
 *
 * INVARIANTS
 *   (1) At most UNDER_WAY_MAX blocks are ready or in flight, including blocks whose
 *       memory the backend has not returned.  One user has only a part of them.
 *   (2) A put begins only if may_leave_locked(): the space is shared, and has the owner that
 *       it had when the block was queued.
 *   (3) A space has at most one offer, space->offer.  All blocks before its cursor were
 *       queued, or the walk is repeated.
 *   (4) Only the backup thread lists keys of offers, for which the lock is dropped, and
 *       frees offers, when none of their blocks is queued or in flight.
 *
 * LOCKING   cache->lock for all but the jobs, which are the remote thread's.
 */
#include "cache/block/block.h"
#include "cache/core/table.h"
#include "cache/remote/tier.h"
#include "common/rate.h"
#include "common/thread.h"

#include <stdio.h>

#define FRESH_MAX 16384u
#define TURN 8 /* blocks */
/* Copy blocks of at most 1/COPIED of a segment, and all that are in a bounce
 * buffer: a put may never end, and readers wait for buffers. */
#define COPIED 16
/* Most blocks in flight: a large one counts as LARGE; one user may have 30. */
#define UNDER_WAY_MAX 40u
#define SMALL_MAX (512u << 10)
#define LARGE 4u
#define ASK_NS UINT64_C(2000000000)
#define PUT_NS UINT64_C(10000000000)
#define REST_NS UINT64_C(1000000000)
#define END_NS UINT64_C(2000000000)   /* time at unmount for blocks that wait */
#define PAGE 32u		      /* keys that an offer lists at once */
#define PAUSE_NS UINT64_C(1000000000) /* first pause before a repeated offer */
#define PAUSE_MAX (PAUSE_NS << 11) /* longest pause before a repeated offer */

TAILQ_HEAD(backup_queue, kv_backup);

struct user {
	struct kv_turn turn; /* first member */
	struct queue {
		struct backup_queue blocks;
		unsigned n;
	} fresh, old;
};

struct kv_backup {
	struct kv_remote_job job; /* first member; remote thread only */
	struct kv_space *space;	  /* held */
	uint32_t uid;	   /* owner of the space when the block was queued */
	uint64_t hash;	   /* hash of the space and the key */
	struct user *user; /* held */
	unsigned weight;   /* part of UNDER_WAY_MAX that the block takes */
	struct kv_offer *offer; /* offer that queued this; NULL: a new block */
	bool fresh;		/* counted in n_fresh */
	bool wanted;		/* the backend lacks the block */
	bool held;		/* @view or @copy has the block's bytes */
	struct kv_block *block; /* held, once the backup is ready */
	struct kv_view view;
	uint8_t *copy;		      /* NULL: none */
	uint8_t *head;		      /* first bytes of the object to put */
	struct kv_object_entry entry; /* at first only its key is set */
	TAILQ_ENTRY(kv_backup) link;  /* entry in a queue, @ready or @unread */
};

struct kv_offer {
	struct kv_space *space; /* constant; held */
	uint32_t uid;		/* owner of @space when the walk began */
	bool all; /* offer even blocks that the backend probably has */
	/* Walk once more: over all blocks, or those that were missed. */
	enum { OFFER_ONCE, OFFER_MISSED, OFFER_ALL } again;
	bool begun, walked; /* its first, or last, key was listed */
	uint64_t cursor;
	unsigned out; /* blocks of the offer in a queue or in flight */
	uint64_t pause_ns, until_ns; /* last pause before a walk; its end */
	TAILQ_ENTRY(kv_offer) link;
};

struct kv_backups {
	bool writes; /* constant: blocks are to be put to the backend */
	pthread_t thread;
	bool running, stop, ending; /* mount is ending: put only new blocks */
	pthread_cond_t more, over;  /* new work; the end of a block's put */
	struct kv_turns turns;	    /* struct user */
	unsigned n_fresh; /* new blocks of all users, queued or in flight */
	bool flushing;	  /* a space is being flushed, at unmount */
	struct backup_queue ready, unread;
	TAILQ_HEAD(, kv_offer) offers; /* offers: the next to continue first */
	uint64_t look_ns;	       /* when to continue the first offer */
};

static void user_init(struct kv_turn *turn)
{
	TAILQ_INIT(&((struct user *)turn)->fresh.blocks);
	TAILQ_INIT(&((struct user *)turn)->old.blocks);
}

int kv_backup_init(struct kv_remote *remote)
{
	struct kv_backups *b = calloc(1, sizeof(*b));

	if (!b)
		return -ENOMEM;
	b->writes = remote->cache->config.remote.write != KV_WRITEBACK_NONE;
	TAILQ_INIT(&b->ready);
	TAILQ_INIT(&b->unread);
	TAILQ_INIT(&b->offers);
	kv_cond_init(&b->more);
	kv_cond_init(&b->over);
	remote->backup = b;
	return kv_turns_init(&b->turns, sizeof(struct user), TURN, user_init);
}

/* ---- queues ---- */

/* Queue a put of @block; @offer is NULL for a new block.  False: queue full. */
static bool enqueue_locked(struct kv_remote *remote,
			   const struct kv_block *block, struct kv_offer *offer)
{
	struct kv_space *space = kv_block_space(remote->cache, block);
	struct kv_backups *b = remote->backup;
	struct user *user = (struct user *)kv_turn_get(&b->turns, space->uid);
	struct queue *queue = offer ? &user->old : &user->fresh;
	struct kv_backup *backup = NULL;

	if (offer || (b->n_fresh < FRESH_MAX && queue->n < FRESH_MAX / 4 * 3))
		backup = calloc(1, sizeof(*backup));
	if (!backup) {
		kv_turn_put(&b->turns, &user->turn);
		return false;
	}
	backup->space = kv_space_get(space);
	backup->uid = space->uid;
	backup->user = user;
	backup->entry.key = kv_block_key(block);
	backup->hash = kv_key_hash(remote->cache, space, block->key);
	backup->weight = block->length > SMALL_MAX ? LARGE : 1;
	backup->offer = offer;
	TAILQ_INSERT_TAIL(&queue->blocks, backup, link);
	queue->n++;
	backup->fresh = !offer;
	b->n_fresh += backup->fresh;
	if (offer)
		offer->out++;
	kv_turn_start(&b->turns, &user->turn);
	pthread_cond_signal(&b->more);
	return true;
}

/* Take the first queued block of @user; there is at least one. */
static struct kv_backup *take_locked(struct kv_backups *b, struct user *user)
{
	struct queue *queue = user->fresh.n ? &user->fresh : &user->old;
	struct kv_backup *backup = TAILQ_FIRST(&queue->blocks);

	TAILQ_REMOVE(&queue->blocks, backup, link);
	queue->n--;
	if (backup->offer && queue->n == PAGE / 2)
		b->look_ns = 0;
	kv_turn_charge(&user->turn, 1);
	kv_turn_begin(&b->turns, &user->turn, backup->weight);
	if (user->fresh.n + user->old.n == 0)
		kv_turn_stop(&b->turns, &user->turn);
	return backup;
}

/* ---- offers ---- */

/* Offer @space; if it is being offered, once more.  @all: offer at once, and
 * even blocks that the backend probably has. */
static void offer_locked(struct kv_remote *remote, struct kv_space *space,
			 bool all)
{
	struct kv_backups *b = remote->backup;
	struct kv_offer *offer = space->offer;

	kv_assert_locked(&remote->cache->lock);
	if (b->stop || !b->writes)
		return;
	if (!offer) {
		offer = calloc(1, sizeof(*offer));
		if (!offer)
			return; /* no memory: the next mount offers the space */
		offer->space = kv_space_get(space);
		offer->uid = space->uid;
		space->offer = offer;
		TAILQ_INSERT_HEAD(&b->offers, offer, link);
		remote->stats.offering++;
		b->look_ns = 0;
	}
	if (offer->begun)
		offer->again =
			KV_MAX(offer->again, all ? OFFER_ALL : OFFER_MISSED);
	else
		offer->all |= all;
	if (all)
		offer->pause_ns = offer->until_ns = b->look_ns = 0;
	pthread_cond_signal(&b->more);
}

void kv_remote_offer_locked(struct kv_cache *cache, struct kv_space *space)
{
	if (cache->remote)
		offer_locked(cache->remote, space, true);
}

static void offer_free_locked(struct kv_remote *remote, struct kv_offer *offer)
{
	remote->stats.offering--;
	offer->space->offer = NULL;
	TAILQ_REMOVE(&remote->backup->offers, offer, link);
	kv_space_put(offer->space);
	free(offer);
}

/* Begin the walk of the offer anew, after @pause_ns. */
static void restart(struct kv_offer *offer, uint64_t pause_ns)
{
	offer->begun = offer->walked = false;
	offer->cursor = 0;
	offer->until_ns = pause_ns ? kv_now_ns() + pause_ns : 0;
}

/* Queue blocks for the next PAGE keys of the walk @offer.  Drops the lock. */
static void list_locked(struct kv_remote *remote, struct kv_offer *offer)
{
	struct kv_cache *cache = remote->cache;
	const bool all = cache->config.remote.write == KV_WRITEBACK_ALL;
	const struct kv_block *block;
	struct kv_key keys[PAGE];
	size_t n;

	offer->begun = true;
	kv_unlock(cache);
	n = kv_space_keys(cache, offer->space, false, &offer->cursor, keys,
			  PAGE);
	kv_lock(cache);
	offer->walked = offer->cursor == 0;
	for (size_t i = 0; i < n; i++) {
		block = kv_table_find(cache, offer->space, &keys[i]);
		if (block && block->file != KV_NONE && (all || block->hits) &&
		    (offer->all || !block->remote) &&
		    !enqueue_locked(remote, block, offer))
			offer->again = KV_MAX(offer->again, OFFER_MISSED);
	}
}

/* Continue the offers in turn until one has listed a page; end or repeat offers
 * whose walk is over.  False: no offer can go on now. */
static bool look_locked(struct kv_remote *remote)
{
	struct kv_backups *b = remote->backup;
	const uint64_t now = kv_now_ns();
	bool listed = false;

	if (b->ending || now < b->look_ns)
		return false;
	for (size_t i = remote->stats.offering; i > 0 && !listed; i--) {
		struct kv_offer *offer = TAILQ_FIRST(&b->offers);
		const struct kv_space *space = offer->space;
		const bool shared = space->shared && !space->removed;
		struct user *user;

		TAILQ_REMOVE(&b->offers, offer, link);
		TAILQ_INSERT_TAIL(&b->offers, offer, link);
		/* After a change of owner the objects have other names. */
		if (offer->uid != space->uid) {
			offer->uid = space->uid;
			restart(offer, 0);
		}
		user = (struct user *)kv_turn_get(&b->turns, offer->uid);
		listed = shared && !offer->walked && now >= offer->until_ns &&
			 user->old.n < PAGE &&
			 kv_remote_takes(remote, offer->uid);
		kv_turn_put(&b->turns, &user->turn);
		if (listed)
			list_locked(remote, offer);
		if (offer->out > 0)
			continue;
		if (!shared || (offer->walked && !offer->again)) {
			offer_free_locked(remote, offer);
		} else if (offer->walked) {
			offer->all = offer->again == OFFER_ALL;
			offer->again = OFFER_ONCE;
			offer->pause_ns = kv_backoff(offer->pause_ns, PAUSE_NS,
						     PAUSE_MAX);
			restart(offer, offer->pause_ns);
		}
	}
	if (!listed)
		b->look_ns = now + REST_NS;
	return listed;
}

void kv_backup_durable_locked(struct kv_cache *cache,
			      const struct kv_block *block)
{
	const bool all = cache->config.remote.write == KV_WRITEBACK_ALL;
	struct kv_remote *remote = cache->remote;
	struct kv_space *space = kv_block_space(cache, block);

	kv_assert_locked(&cache->lock);
	if (!remote->backup->running || !space->shared)
		return;
	kv_fetch_present_locked(remote, kv_key_hash(cache, space, block->key),
				false);
	if (!(all || block->hits) || block->remote ||
	    enqueue_locked(remote, block, NULL))
		return;
	remote->stats.dropped++;
	offer_locked(remote, space, false);
}

/* Free the backup of a block; the backup is on no list. */
static void backup_free(struct kv_remote *remote, struct kv_backup *backup)
{
	struct kv_cache *cache = remote->cache;
	struct kv_backups *b = remote->backup;

	if (backup->held && !backup->copy)
		kv_view_put(cache, &backup->view);
	if (backup->block)
		kv_block_put(cache, backup->block);
	kv_space_put(backup->space);
	kv_lock(cache);
	b->n_fresh -= backup->fresh;
	if (backup->offer && --backup->offer->out == 0)
		b->look_ns = 0;
	kv_turn_end(&b->turns, &backup->user->turn, backup->weight);
	kv_turn_put(&b->turns, &backup->user->turn);
	pthread_cond_signal(&b->more);
	pthread_cond_signal(&b->over);
	kv_unlock(cache);
	free(backup->copy);
	free(backup->head);
	free(backup);
}

/* Return whether the block may be put: its owner still shares it, and the mount
 * is not ending unless the block is new. */
static bool may_leave_locked(struct kv_remote *remote,
			     const struct kv_backup *backup)
{
	return backup->space->shared && backup->space->uid == backup->uid &&
	       !(backup->block && (backup->block->flags & BLOCK_REMOVED)) &&
	       !(backup->offer && remote->backup->ending);
}

/* Count a block that is not put now; offer it later unless @final. */
static void missed_locked(struct kv_remote *remote, struct kv_backup *backup,
			  bool final)
{
	remote->stats.dropped += backup->fresh;
	remote->backup->n_fresh -= backup->fresh;
	backup->fresh = false;
	if (!final)
		offer_locked(remote, backup->space, false);
}

/* ---- reading blocks and building objects: the backup thread ---- */

/* Get the bytes of the block, if need be from SSD without bringing them to
 * DRAM, and make the first bytes of its object. */
static int hold(struct kv_cache *cache, struct kv_backup *backup)
{
	struct iovec *parts = backup->job.op.parts;
	struct kv_view *view = &backup->view;
	uint64_t rest;
	uint8_t *data;
	int r = kv_view_get(cache, backup->block, KV_VIEW_ONCE, view);

	if (r < 0)
		return r;
	backup->held = true;
	backup->entry.length = view->length;
	if (view->bounce || view->length <= cache->arena.segment_bytes / COPIED)
		backup->copy = malloc(view->length);
	if (backup->copy) {
		memcpy(backup->copy, view->data, view->length);
		kv_view_put(cache, view);
	}
	data = backup->copy ? backup->copy : (uint8_t *)view->data;
	r = kv_object_head(data, view->length, &backup->entry, &backup->head,
			   &parts[0].iov_len, &rest);
	if (r < 0)
		return r;
	parts[0].iov_base = backup->head;
	parts[1] = (struct iovec){data + rest, view->length - rest};
	return 0;
}

static int prepare(struct kv_remote *remote, struct kv_backup *backup)
{
	struct kv_cache *cache = remote->cache;
	struct kv_meta meta;
	bool early;
	int r;

	if (backup->block) /* the backend lacks the block */
		return hold(cache, backup);
	kv_lock(cache);
	r = may_leave_locked(remote, backup) ? 0 : -ENOENT;
	kv_unlock(cache);
	if (r == 0)
		r = kv_block_get(cache, backup->space, &backup->entry.key,
				 &backup->block);
	if (r == 0)
		r = kv_block_meta(cache, backup->block, &meta,
				  &backup->entry.digest);
	if (r < 0)
		return r;
	backup->entry.parent = meta.parent;
	kv_lock(cache);
	backup->wanted = !backup->offer && backup->weight == 1;
	early = backup->wanted || (!backup->offer && backup->block->slot);
	if (!kv_remote_takes(remote, backup->uid))
		r = -EHOSTDOWN;
	kv_unlock(cache);
	return r == 0 && early ? hold(cache, backup) : r;
}

static void *backup_run(void *arg)
{
	struct kv_remote *remote = arg;
	struct kv_backups *b = remote->backup;
	struct kv_cache *cache = remote->cache;
	struct kv_backup *backup;
	struct user *user;
	int r;

	kv_lock(cache);
	while (!b->stop) {
		backup = TAILQ_FIRST(&b->unread);
		if (backup) {
			TAILQ_REMOVE(&b->unread, backup, link);
		} else {
			user = (struct user *)kv_turns_next_within(
				&b->turns, UNDER_WAY_MAX);
			/* Continue offers unless the next block is newly durable. */
			if ((!user || !user->fresh.n) && look_locked(remote))
				continue;
			if (!user) {
				kv_cond_wait(cache, &b->more, REST_NS);
				continue;
			}
			backup = take_locked(b, user);
		}
		kv_unlock(cache);
		r = prepare(remote, backup);
		kv_lock(cache);
		if (r == 0) {
			TAILQ_INSERT_TAIL(&b->ready, backup, link);
			kv_remote_wake(remote);
			continue;
		}
		if (r != -ENOENT)
			missed_locked(remote, backup,
				      r == -EFBIG || r == -EINVAL);
		kv_unlock(cache);
		backup_free(remote, backup);
		kv_lock(cache);
	}
	kv_unlock(cache);
	return NULL;
}

/* ---- asking and putting: the remote thread ---- */

static void ended(struct kv_remote *remote, struct kv_remote_job *job,
		  int status)
{
	struct kv_backup *backup = (struct kv_backup *)job;

	backup->wanted |= status == -ENOENT;
	kv_lock(remote->cache);
	if (status == 0 && job->op.call == KV_REMOTE_PUT)
		kv_fetch_present_locked(remote, backup->hash, true);
	if (backup->space->uid == backup->uid)
		backup->block->remote = status == 0;
	/* -EACCES: only this block was refused, unless all are.  Do not offer it again. */
	if (status < 0 && status != -ENOENT)
		missed_locked(remote, backup,
			      status == -EACCES &&
				      kv_remote_takes(remote, job->uid));
	kv_unlock(remote->cache);
}

static void given_back(struct kv_remote *remote, struct kv_remote_job *job)
{
	struct kv_backup *backup = (struct kv_backup *)job;

	if (job->op.call == KV_REMOTE_PUT || !backup->wanted) {
		backup_free(remote, backup);
		return;
	}
	kv_lock(remote->cache);
	TAILQ_INSERT_TAIL(&remote->backup->ready, backup, link);
	kv_unlock(remote->cache);
}

void kv_backup_run(struct kv_remote *remote)
{
	struct kv_backups *b = remote->backup;
	struct kv_cache *cache = remote->cache;
	struct kv_backup *backup, *next;

	kv_lock(cache);
	for (backup = TAILQ_FIRST(&b->ready); backup; backup = next) {
		struct kv_remote_job *job = &backup->job;

		next = TAILQ_NEXT(backup, link);
		if (backup->space->forgetting)
			continue;
		TAILQ_REMOVE(&b->ready, backup, link);
		/* The backend has a damaged object: replace it. */
		backup->wanted |=
			kv_fetch_is_damaged_locked(remote, backup->hash);
		const bool leaves = may_leave_locked(remote, backup);

		if (leaves && backup->wanted && !backup->held) {
			TAILQ_INSERT_TAIL(&b->unread, backup, link);
			pthread_cond_signal(&b->more);
			continue;
		}
		kv_unlock(cache);
		job->op.call = backup->wanted ? KV_REMOTE_PUT : KV_REMOTE_HEAD;
		job->uid = backup->uid;
		job->ended = ended;
		job->given_back = given_back;
		kv_remote_name(remote, job, backup->space, &backup->entry.key);
		if (leaves)
			kv_remote_submit(remote, job,
					 backup->wanted ? PUT_NS : ASK_NS);
		else
			backup_free(remote, backup);
		kv_lock(cache);
	}
	kv_unlock(cache);
}

/* ---- start and stop of the backup thread ---- */

int kv_backup_start(struct kv_remote *remote)
{
	struct kv_backups *b = remote->backup;
	struct kv_cache *cache = remote->cache;
	struct kv_space *space;
	int r;

	if (!b->writes)
		return 0;
	kv_lock(cache);
	for (space = kv_space_behind(cache, 0); space;
	     space = kv_space_behind(cache, space->id))
		if (space->shared)
			offer_locked(remote, space, false);
	kv_unlock(cache);
	r = kv_thread_start(&b->thread, "kvfs-backup", backup_run, remote);
	b->running = r == 0;
	return r;
}

static void last_is_durable(struct kv_flush *flush, int status)
{
	struct kv_remote *remote = flush->arg;

	(void)status;
	kv_lock(remote->cache);
	remote->backup->flushing = false;
	pthread_cond_signal(&remote->backup->over);
	kv_unlock(remote->cache);
}

/* Make the blocks of shared spaces durable, a space at a time, until @until.
 * Drops the lock. */
static void flush_shared_locked(struct kv_remote *remote, uint64_t until)
{
	struct kv_backups *b = remote->backup;
	struct kv_cache *cache = remote->cache;
	struct kv_space *space;
	uint32_t id = 0;
	uint64_t now;

	while ((space = kv_space_behind(cache, id)) && kv_now_ns() < until) {
		struct kv_flush flush = {
			.done = last_is_durable, .arg = remote, .each = true};

		id = space->id;
		if (space->removed || !space->shared)
			continue;
		kv_space_get(space);
		b->flushing = true;
		kv_unlock(cache);
		kv_flush_submit(cache, space, &flush);
		kv_lock(cache);
		while (b->flushing && (now = kv_now_ns()) < until)
			kv_cond_wait(cache, &b->over, until - now);
		kv_unlock(cache);
		kv_flush_cancel(cache, &flush, -ETIMEDOUT);
		kv_lock(cache);
		while (b->flushing)
			kv_cond_wait(cache, &b->over, REST_NS);
		kv_space_put(space);
	}
}

void kv_backup_stop(struct kv_remote *remote)
{
	const uint64_t until = kv_now_ns() + END_NS;
	struct kv_backups *b = remote->backup;
	struct kv_cache *cache = remote->cache;
	uint64_t left, now;

	if (!b->running)
		return;
	kv_lock(cache);
	left = -remote->stats.dropped;
	/* Put blocks that wait or are durable by now, if the backend works. */
	if (!remote->breakers->open)
		flush_shared_locked(remote, until);
	b->ending = true;
	while (!remote->breakers->open && b->n_fresh + b->turns.out > 0 &&
	       (now = kv_now_ns()) < until)
		kv_cond_wait(cache, &b->over, until - now);
	left += remote->stats.dropped + b->n_fresh;
	b->stop = true;
	pthread_cond_signal(&b->more);
	kv_unlock(cache);
	pthread_join(b->thread, NULL);
	if (left > 0)
		fprintf(stderr,
			"kvfs: %llu blocks of shared spaces were not handed "
			"over before the end: the next mount offers them\n",
			(unsigned long long)left);
}

void kv_backup_fini(struct kv_remote *remote)
{
	struct kv_backups *b = remote->backup;
	struct kv_backup *backup;
	struct kv_offer *offer;
	struct user *user;

	if (!b)
		return;
	while ((user = (struct user *)kv_turns_next(&b->turns)))
		backup_free(remote, take_locked(b, user));
	TAILQ_CONCAT(&b->ready, &b->unread, link);
	while ((backup = TAILQ_FIRST(&b->ready))) {
		TAILQ_REMOVE(&b->ready, backup, link);
		backup_free(remote, backup);
	}
	while ((offer = TAILQ_FIRST(&b->offers)))
		offer_free_locked(remote, offer);
	kv_turns_fini(&b->turns);
	pthread_cond_destroy(&b->more);
	pthread_cond_destroy(&b->over);
	free(kv_steal(remote->backup));
}
