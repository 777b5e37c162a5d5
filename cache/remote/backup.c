/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backup.c - put durable blocks of shared spaces to the backend.
 *
 * Each user has a queue: the keys of blocks that have just become durable, and behind
 * these the user's offers (offer.c).  Users take turns, by deficit round robin.  A
 * queued key holds nothing: a block that is evicted meanwhile is not put.
 *
 * One thread takes the keys in turn and makes the blocks ready.  A new small block is
 * put at once.  For others the backend is asked first, and the bytes are read from SSD
 * only if it lacks the block.
 *
 * OWNS      every kv_backup, and its bytes: a copy of a small block, so that no segment
 *           stays for its sake, a view of a large one.
 *
 * STATES    of a backup:
 *              (new) -> fresh     enqueue_locked
 *      (new), fresh  -> ready     prepare
 *              ready -> asking    kv_backup_run
 *      ready, asking -> unread    put: no bytes are held
 *             unread -> ready     backup_run: its bytes were read
 *      ready, asking -> putting   put
 *    asking, putting -> (over)    over
 *
 * INVARIANTS
 *   (1) At most UNDER_WAY_MAX blocks are ready or in flight, including blocks whose
 *       memory the backend has not returned.  One user has only a part of them.
 *   (2) A put begins only if may_leave(): the space is shared, and has the owner that
 *       it had when the block was taken.
 *
 * LOCKING   cache->lock for all but `busy` and the jobs, which are the remote thread's.
 */
#include "cache/block/block.h"
#include "cache/core/table.h"
#include "cache/remote/backup.h"
#include "cache/remote/object.h"
#include "common/thread.h"

#include <stdio.h>

#define FRESH_MAX 16384u
#define TURN 8	  /* blocks */
#define COPIED 16 /* copy blocks of at most 1/COPIED of a segment */
/* In small blocks; a large one counts as LARGE.  One user may have 30. */
#define UNDER_WAY_MAX 40u
#define SMALL_MAX (512u << 10)
#define LARGE 4u
#define ASK_NS UINT64_C(2000000000)
#define PUT_NS UINT64_C(10000000000)
#define REST_NS UINT64_C(1000000000)
#define END_NS UINT64_C(2000000000) /* for waiting blocks, at unmount */

struct kv_backup {
	struct kv_remote_job job; /* first; used by the remote thread only */
	struct kv_space *space;	  /* held */
	uint32_t uid; /* the space's owner when it was taken or queued */
	struct kv_key key;
	struct kv_backup_user *user; /* held */
	unsigned weight;	     /* of UNDER_WAY_MAX, once it is taken */
	struct kv_offer *offer; /* that it is a block of; NULL: it is new */
	bool failed;		/* offer it again */
	bool wanted;		/* the backend lacks it */
	bool held;		/* the block's bytes are held */
	int status;		/* of the last operation */
	struct kv_block *block; /* held, once ready */
	struct kv_view view;
	uint8_t *copy; /* NULL: none */
	uint8_t *head; /* first bytes of the object */
	struct kv_object_entry entry;
	char prefix[KV_REMOTE_PREFIX_MAX + 1];
	TAILQ_ENTRY(kv_backup) link; /* of fresh, ready, unread or busy */
};

static void user_init(struct kv_turn *turn)
{
	TAILQ_INIT(&((struct kv_backup_user *)turn)->fresh);
	TAILQ_INIT(&((struct kv_backup_user *)turn)->offers);
}

int kv_backup_init(struct kv_remote *remote)
{
	struct kv_backups *b = calloc(1, sizeof(*b));

	if (!b)
		return -ENOMEM;
	TAILQ_INIT(&b->ready);
	TAILQ_INIT(&b->unread);
	TAILQ_INIT(&b->busy);
	TAILQ_INIT(&b->later);
	kv_cond_init(&b->more);
	kv_cond_init(&b->over);
	remote->backup = b;
	return kv_turns_init(&b->turns, sizeof(struct kv_backup_user), TURN,
			     user_init);
}

/* ---- the queue ---- */

/* Make a backup of @block.  NULL: no memory. */
static struct kv_backup *backup_new(struct kv_remote *remote,
				    const struct kv_block *block)
{
	struct kv_space *space = kv_block_space(remote->cache, block);
	struct kv_backup *backup = calloc(1, sizeof(*backup));

	if (!backup)
		return NULL;
	backup->space = kv_space_get(space);
	backup->uid = space->uid;
	backup->user = kv_backup_user(remote->backup, space->uid);
	backup->key = kv_block_key(block);
	backup->weight = block->length > SMALL_MAX ? LARGE : 1;
	return backup;
}

void kv_backup_durable_locked(struct kv_cache *cache,
			      const struct kv_block *block)
{
	struct kv_remote *remote = cache->remote;
	struct kv_space *space = kv_block_space(cache, block);
	struct kv_backups *b = remote->backup;
	struct kv_backup *backup = NULL;
	struct kv_backup_user *user;

	kv_assert_locked(&cache->lock);
	if (!b->running || !space->shared)
		return;
	kv_fetch_present_locked(remote, kv_key_hash(cache, space, block->key));
	if (!kv_backup_wants(cache, block) || block->remote)
		return;
	user = kv_backup_user(b, space->uid);
	if (b->n_fresh < FRESH_MAX && user->n < FRESH_MAX / 4 * 3)
		backup = backup_new(remote, block);
	if (backup) {
		TAILQ_INSERT_TAIL(&user->fresh, backup, link);
		user->n++;
		b->n_fresh++;
		kv_backup_user_settle(b, user);
		pthread_cond_signal(&b->more);
	} else {
		remote->stats.dropped++;
		kv_offer_again_locked(remote, space);
	}
	kv_turn_put(&b->turns, &user->turn);
}

void kv_backup_used_locked(struct kv_cache *cache, const struct kv_block *block)
{
	if (cache->config.remote.write == KV_WRITEBACK_REUSE)
		kv_backup_durable_locked(cache, block);
}

/* Free a backup that is in no list. */
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
	if (backup->offer)
		kv_offer_over_locked(remote, backup->offer, backup->failed);
	kv_turn_end(&b->turns, &backup->user->turn, backup->weight);
	kv_turn_put(&b->turns, &backup->user->turn);
	pthread_cond_signal(&b->more);
	pthread_cond_signal(&b->over);
	kv_unlock(cache);
	free(backup->copy);
	free(backup->head);
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
	      !(backup->offer && remote->backup->ending);
	kv_unlock(cache);
	return may;
}

/* Count a block that is not put now, and offer it later unless @final. */
static void missed_locked(struct kv_remote *remote, struct kv_backup *backup,
			  bool final)
{
	backup->failed |= !final;
	if (backup->offer)
		return;
	remote->stats.dropped++;
	if (!final)
		kv_offer_again_locked(remote, backup->space);
}

/* ---- making ready: the backup thread ---- */

/* Take the next block in turn.  NULL: there is none now.  Drops the lock. */
static struct kv_backup *next_locked(struct kv_remote *remote)
{
	struct kv_backups *b = remote->backup;
	struct kv_backup *backup = NULL;
	struct kv_backup_user *user;
	const struct kv_block *block;
	struct kv_offer *offer;

	kv_assert_locked(&remote->cache->lock);
	kv_offers_look_locked(remote);
	while (!backup && !b->stop &&
	       (user = (struct kv_backup_user *)kv_turns_next_within(
			&b->turns, UNDER_WAY_MAX))) {
		kv_turn_begin(&b->turns, &user->turn, 0);
		kv_turn_charge(&user->turn, 1);
		backup = TAILQ_FIRST(&user->fresh);
		offer = TAILQ_FIRST(&user->offers);
		if (backup) {
			TAILQ_REMOVE(&user->fresh, backup, link);
			user->n--;
			b->n_fresh--;
			kv_backup_user_settle(b, user);
		} else if ((block = kv_offer_take_locked(remote, offer))) {
			backup = backup_new(remote, block);
			if (backup)
				backup->offer = offer;
			else
				kv_offer_over_locked(remote, offer, true);
		}
		if (backup)
			kv_turn_begin(&b->turns, &backup->user->turn,
				      backup->weight);
		kv_turn_end(&b->turns, &user->turn, 0);
	}
	return backup;
}

/* Hold the bytes of the block; those on the SSD are read for this alone.  Make the
 * first bytes of its object. */
static int hold(struct kv_cache *cache, struct kv_backup *backup)
{
	struct iovec *parts = backup->job.op.parts;
	struct kv_view *view = &backup->view;
	uint64_t rest;
	uint8_t *data;
	int r = kv_view_get_once(cache, backup->block, view);

	if (r < 0)
		return r;
	backup->held = true;
	backup->entry.length = view->length;
	if (view->length <= cache->arena.segment_bytes / COPIED)
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
	r = may_leave(remote, backup) ? 0 : -ENOENT;
	if (r == 0)
		r = kv_remote_prefix(cache, backup->space, backup->prefix);
	if (r == 0)
		r = kv_block_get(cache, backup->space, &backup->key,
				 &backup->block);
	if (r == 0)
		r = kv_block_meta(cache, backup->block, &meta,
				  &backup->entry.digest);
	if (r < 0)
		return r;
	backup->entry.key = backup->key;
	backup->entry.parent = meta.parent;
	kv_lock(cache);
	/* Nobody asks whether the backend has a new small block, and most often it
	 * has no new block. */
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
	int r;

	kv_lock(cache);
	while (!b->stop) {
		backup = TAILQ_FIRST(&b->unread);
		if (backup)
			TAILQ_REMOVE(&b->unread, backup, link);
		else
			backup = next_locked(remote);
		if (!backup && !b->stop)
			kv_cond_wait(cache, &b->more, REST_NS);
		if (!backup)
			continue;
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
	const bool put = job->op.call == KV_REMOTE_PUT;

	backup->status = status;
	if (put && status == 0)
		kv_fetch_damaged(remote,
				 kv_key_hash(remote->cache, backup->space,
					     backup->key.b),
				 false);
	kv_lock(remote->cache);
	if (backup->space->uid == backup->uid)
		backup->block->remote = status == 0;
	/* A block that is too large stays so.  While an object alone is refused, its key is
	 * not tried again. */
	if (status < 0 && (put || status != -ENOENT))
		missed_locked(remote, backup,
			      status == -EFBIG ||
				      (status == -EACCES &&
				       kv_remote_is_open(remote, backup->uid)));
	kv_unlock(remote->cache);
}

static void go_on(struct kv_remote *remote, struct kv_backup *backup);

static void given_back(struct kv_remote *remote, struct kv_remote_job *job)
{
	struct kv_backup *backup = (struct kv_backup *)job;

	if (job->op.call == KV_REMOTE_HEAD && backup->status == -ENOENT) {
		backup->wanted = true;
		go_on(remote, backup);
	} else {
		TAILQ_REMOVE(&remote->backup->busy, backup, link);
		backup_free(remote, backup);
	}
}

/* Ask whether the backend has the block, or put it, once its bytes are held. */
static void go_on(struct kv_remote *remote, struct kv_backup *backup)
{
	struct kv_backups *b = remote->backup;
	struct kv_remote_job *job = &backup->job;
	const bool leaves = may_leave(remote, backup);

	if (!leaves || (backup->wanted && !backup->held))
		TAILQ_REMOVE(&b->busy, backup, link);
	if (!leaves) {
		backup_free(remote, backup);
	} else if (backup->wanted && !backup->held) {
		kv_lock(remote->cache);
		TAILQ_INSERT_TAIL(&b->unread, backup, link);
		pthread_cond_signal(&b->more);
		kv_unlock(remote->cache);
	} else {
		job->op.call = backup->wanted ? KV_REMOTE_PUT : KV_REMOTE_HEAD;
		job->uid = backup->uid;
		job->ended = ended;
		job->given_back = given_back;
		kv_remote_name(&job->op, backup->prefix, &backup->key);
		kv_remote_submit(remote, job, backup->wanted ? PUT_NS : ASK_NS);
	}
}

bool kv_backup_is_under_way(const struct kv_remote *remote,
			    const struct kv_space *space,
			    const struct kv_key *key)
{
	const struct kv_backup *backup;

	TAILQ_FOREACH(backup, &remote->backup->busy, link)
		if (backup->space == space &&
		    (!key || kv_key_equal(&backup->key, key)))
			return true;
	return false;
}

void kv_backup_run(struct kv_remote *remote)
{
	struct kv_backups *b = remote->backup;
	struct kv_cache *cache = remote->cache;
	struct kv_backup *backup;

	for (;;) {
		kv_lock(cache);
		backup = TAILQ_FIRST(&b->ready);
		if (backup) {
			TAILQ_REMOVE(&b->ready, backup, link);
			/* A damaged object is there, and is to be replaced. */
			backup->wanted |= kv_fetch_is_damaged_locked(
				remote, kv_key_hash(cache, backup->space,
						    backup->key.b));
		}
		kv_unlock(cache);
		if (!backup)
			return;
		TAILQ_INSERT_TAIL(&b->busy, backup, link);
		go_on(remote, backup);
	}
}

/* ---- begin and end ---- */

int kv_backup_start(struct kv_remote *remote)
{
	struct kv_backups *b = remote->backup;
	struct kv_cache *cache = remote->cache;
	struct kv_space *space;
	int r;

	if (!kv_remote_writes(remote))
		return 0;
	kv_lock(cache);
	for (space = kv_space_behind(cache, 0); space;
	     space = kv_space_behind(cache, space->id))
		if (space->shared)
			kv_offer_again_locked(remote, space);
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

/* Make the blocks of shared spaces durable, a space at a time, until @until. */
static void flush_shared(struct kv_remote *remote, uint64_t until)
{
	struct kv_backups *b = remote->backup;
	struct kv_cache *cache = remote->cache;
	struct kv_space *space;
	uint32_t id = 0;
	uint64_t now;

	while (kv_now_ns() < until) {
		struct kv_flush flush = {
			.done = last_is_durable, .arg = remote, .each = true};

		kv_lock(cache);
		do {
			space = kv_space_behind(cache, id);
			id = space ? space->id : 0;
		} while (space && (space->removed || !space->shared));
		if (space)
			kv_space_get(space);
		b->flushing = space != NULL;
		kv_unlock(cache);
		if (!space)
			return;
		kv_flush_submit(cache, space, &flush);
		kv_lock(cache);
		while (b->flushing && (now = kv_now_ns()) < until)
			kv_cond_wait(cache, &b->over, until - now);
		kv_unlock(cache);
		kv_flush_cancel(cache, &flush, -ETIMEDOUT);
		kv_lock(cache);
		while (b->flushing)
			kv_cond_wait(cache, &b->over, REST_NS);
		kv_unlock(cache);
		kv_space_put(space);
	}
}

void kv_backup_stop(struct kv_remote *remote)
{
	const uint64_t until = kv_now_ns() + END_NS;
	struct kv_backups *b = remote->backup;
	struct kv_cache *cache = remote->cache;
	unsigned left;
	uint64_t now;

	if (!b->running)
		return;
	/* Put what waits, and what becomes durable now, while the backend takes it. */
	if (remote->stats.open)
		flush_shared(remote, until);
	kv_lock(cache);
	b->ending = true;
	while (remote->stats.open && b->n_fresh + b->turns.out > 0 &&
	       (now = kv_now_ns()) < until)
		kv_cond_wait(cache, &b->over, until - now);
	left = b->n_fresh;
	b->stop = true;
	pthread_cond_signal(&b->more);
	kv_unlock(cache);
	pthread_join(b->thread, NULL);
	if (left > 0)
		fprintf(stderr,
			"kvfs: %u blocks of shared spaces were not handed over "
			"before the end: the next mount offers them\n",
			left);
}

void kv_backup_fini(struct kv_remote *remote)
{
	struct kv_backups *b = remote->backup;
	struct kv_backup *backup;
	struct kv_offer *offer;
	struct kv_backup_user *user;

	if (!b)
		return;
	while ((user = (struct kv_backup_user *)kv_turns_next(&b->turns))) {
		backup = TAILQ_FIRST(&user->fresh);
		offer = TAILQ_FIRST(&user->offers);
		if (backup) {
			TAILQ_REMOVE(&user->fresh, backup, link);
			kv_turn_begin(&b->turns, &user->turn, backup->weight);
			kv_backup_user_settle(b, user);
			backup_free(remote, backup);
		} else {
			TAILQ_REMOVE(&user->offers, offer, link);
			offer->state = OFFER_LATER;
			kv_backup_user_settle(b, user);
		}
	}
	TAILQ_CONCAT(&b->ready, &b->unread, link);
	while ((backup = TAILQ_FIRST(&b->ready))) {
		TAILQ_REMOVE(&b->ready, backup, link);
		backup_free(remote, backup);
	}
	kv_offers_free(remote);
	kv_turns_fini(&b->turns);
	pthread_cond_destroy(&b->more);
	pthread_cond_destroy(&b->over);
	free(kv_steal(remote->backup));
}
