/* SPDX-License-Identifier: Apache-2.0 */
/*
 * look.c - which of the blocks that are missing here do the backends have?
 *
 * Who wants blocks that are missing makes a look of them
 * (kv_look_want_locked, kv_look_begin_locked).  All of it is asked for at
 * once, of one backend after the other.  What is known to be worth it is fetched
 * (get.c) while the rest is asked for, and what is left in the end is missed.
 *
 * Of one backend alone the first of a chain are asked for; if they are there, so is
 * the rest most likely, which is fetched without a question, up to the first gap:
 * half as many requests, where a question is one.
 *
 * OWNS      every kv_remote_look.
 *
 * INVARIANTS
 *   (1) Users take turns in asking: who wants very much keeps nobody from a
 *       little, nor when nothing of it is answered.
 *
 * LOCKING   cache->lock for looks that are being submitted, and the list of
 *           fresh ones; all else is the thread's.
 */
#include "cache/block/block.h"
#include "cache/core/table.h"
#include "cache/core/turns.h"
#include "cache/remote/tier.h"

#include <stdio.h>

#define LOOK_NS UINT64_C(2000000000)
#define ASKING_MAX \
	85u	    /* of one user 64, so that there is something for others */
#define ASK_TURN 32 /* blocks */
#define AHEAD 64u   /* of a look, what is fetched without a question */

struct kv_remote_look {
	struct kv_space *space; /* held */
	uint32_t uid;		/* who asks, when it is his turn */
	char prefix[KV_REMOTE_PREFIX_MAX + 1];
	struct look_queue *queue; /* held */
	unsigned backend;	  /* the one that is asked */
	size_t next;		  /* the next get to be asked for */
	size_t left;		  /* answers that are not here */
	size_t n, room;
	size_t worth;	/* of a chain, if so many are there they are fetched */
	size_t there;	/* so many are, without a gap */
	size_t begun;	/* and so many of them are being fetched */
	uint64_t bytes; /* of the largest that was found */
	bool gap;	/* something was not */
	bool asks;	/* for each: their lengths differ */
	/* In the order of the keys; NULL: it is being fetched. */
	struct kv_remote_get **gets;
	TAILQ_ENTRY(kv_remote_look) link;
};

/* What a user asks for. */
struct look_queue {
	struct kv_turn turn; /* first */
	struct kv_remote_looks looks;
};

static void init_looks(struct kv_turn *turn)
{
	TAILQ_INIT(&((struct look_queue *)turn)->looks);
}

int kv_looks_init(struct kv_remote *remote)
{
	return kv_turns_init(&remote->looks, sizeof(struct look_queue),
			     ASK_TURN, init_looks);
}

void kv_looks_fini(struct kv_remote *remote)
{
	kv_turns_fini(&remote->looks);
}

/* ---- wanting ---- */

static bool grow(struct kv_remote_look *look)
{
	size_t room = look->room ? 2 * look->room : 16;
	void *more;

	if (look->n < look->room)
		return true;
	more = realloc(look->gets, room * sizeof(struct kv_remote_get *));
	if (!more)
		return false;
	look->gets = more;
	look->room = room;
	return true;
}

/* The look that @acquire makes while it is being submitted. */
static struct kv_remote_look *look_of(struct kv_acquire *acquire)
{
	if (!acquire->look) {
		acquire->look = calloc(1, sizeof(*acquire->look));
		if (acquire->look) {
			acquire->look->space = kv_space_get(acquire->space);
			acquire->look->uid = acquire->uid;
		}
	}
	return acquire->look;
}

int kv_look_want_locked(struct kv_cache *cache, struct kv_want *want)
{
	struct kv_acquire *acquire = want->acquire;
	struct kv_space *space = acquire->space;
	struct kv_remote *remote = cache->remote;
	struct kv_remote_get *get;
	struct kv_remote_look *look;
	uint64_t hash;

	kv_assert_locked(&cache->lock);
	if (!acquire->remote || !kv_get_may_locked(cache, space, &want->key))
		return -ENOENT;
	if (!acquire->rest)
		acquire->rest = acquire->n - (size_t)(want - acquire->wants);
	hash = kv_key_hash(cache, space, want->key.b);
	get = kv_get_find_locked(remote, space, &want->key, hash);
	if (get) {
		kv_want_link(&get->wants, want);
		return -EINPROGRESS;
	}
	look = acquire->submitting ? look_of(acquire) : NULL;
	get = look && grow(look)
		      ? kv_get_new_locked(remote, space, &want->key, hash)
		      : NULL;
	if (!get)
		return -ENOENT;
	get->look = look;
	get->at = look->n;
	get->asker = look->uid;
	look->gets[look->n++] = get;
	kv_want_link(&get->wants, want);
	return -EINPROGRESS;
}

static void look_free(struct kv_remote_look *look)
{
	kv_space_put(look->space);
	free(look->gets);
	free(look);
}

static bool is_prefix(const struct kv_space *space)
{
	return !space->layout || space->layout->reuse == KV_REUSE_PREFIX;
}

/* The rest is too short to be worth a question. */
static void forget_locked(struct kv_cache *cache, struct kv_remote_look *look)
{
	for (size_t i = 0; i < look->n; i++)
		kv_get_forget_locked(cache->remote, look->gets[i]);
	look_free(look);
}

void kv_look_begin_locked(struct kv_cache *cache, struct kv_acquire *acquire)
{
	struct kv_remote_look *look = acquire->look;
	struct kv_remote *remote = cache->remote;
	const size_t threshold = KV_MAX(cache->config.remote.threshold, 1u);

	kv_assert_locked(&cache->lock);
	if (!look)
		return;
	acquire->look = NULL;
	if (look->n == 0 || (is_prefix(look->space) &&
			     acquire->rest < threshold && !acquire->more)) {
		forget_locked(cache, look);
		return;
	}
	look->worth = acquire->goes_on ? 1 : KV_MIN(threshold, look->n);
	TAILQ_INSERT_TAIL(&remote->fresh, look, link);
	kv_remote_wake(remote);
}

/* ---- deciding ---- */

static void fetch(struct kv_remote *remote, struct kv_remote_get *get)
{
	get->look->gets[get->at] = NULL;
	get->look = NULL;
	kv_get_fetch(remote, get);
}

/* Of a chain, what follows a gap is of no use, and a short rest not worth it. */
static void fetch_chain(struct kv_remote *remote, struct kv_remote_look *look)
{
	struct kv_remote_get **gets = look->gets;

	if (!is_prefix(look->space) || remote->stop)
		return;
	while (look->there < look->n &&
	       (!gets[look->there] || gets[look->there]->found))
		look->there++;
	if (look->there < look->worth)
		return;
	for (; look->begun < look->there; look->begun++)
		if (gets[look->begun])
			fetch(remote, gets[look->begun]);
}

/* How long not to ask for what was not found. */
static uint64_t shun_ns(const struct kv_remote_look *look,
			const struct kv_remote_get *get)
{
	if (get->found || get->at >= look->next)
		return 0;
	return get->damaged ? KV_DAMAGED_NS : KV_ABSENT_NS;
}

static void decide(struct kv_remote *remote, struct kv_remote_look *look)
{
	const bool any = !is_prefix(look->space) && !remote->stop;

	for (size_t i = look->begun; i < look->n; i++) {
		struct kv_remote_get *get = look->gets[i];

		if (get && any && get->found) {
			fetch(remote, get);
		} else if (get) {
			get->look = NULL;
			kv_get_end(remote, get, false, shun_ns(look, get));
		}
	}
	look_free(look);
}

/* ---- asking ---- */

static void look_enqueue(struct kv_remote *remote, struct kv_remote_look *look)
{
	look->queue =
		(struct look_queue *)kv_turn_get(&remote->looks, look->uid);
	TAILQ_INSERT_TAIL(&look->queue->looks, look, link);
	kv_turn_start(&remote->looks, &look->queue->turn);
}

static void look_dequeue(struct kv_remote *remote, struct kv_remote_look *look)
{
	struct look_queue *queue = look->queue;

	TAILQ_REMOVE(&queue->looks, look, link);
	if (TAILQ_EMPTY(&queue->looks))
		kv_turn_stop(&remote->looks, &queue->turn);
	kv_turn_put(&remote->looks, &queue->turn);
	look->queue = NULL;
}

static bool takes_for_granted(const struct kv_remote *remote,
			      const struct kv_remote_look *look)
{
	return remote->n == 1 && is_prefix(look->space) && !look->asks;
}

/* Whether to ask for the next now, or to wait for answers. */
static bool may_go_on(const struct kv_remote *remote,
		      const struct kv_remote_look *look)
{
	if (look->next == look->n || remote->stop)
		return false;
	if (!takes_for_granted(remote, look))
		return true;
	if (look->gap)
		return false;
	return look->begun > 0 ? look->left < AHEAD : look->next < look->worth;
}

/* All that it asked for has been answered: the next backend, or the end. */
static void look_on(struct kv_remote *remote, struct kv_remote_look *look)
{
	if (look->queue)
		return;
	if (may_go_on(remote, look)) {
		look_enqueue(remote, look);
		return;
	}
	if (look->left > 0)
		return;
	if (look->backend + 1 < remote->n && !remote->stop) {
		look->backend++;
		look->next = 0;
		look_enqueue(remote, look);
	} else {
		decide(remote, look);
	}
}

static void take_answer(struct kv_remote *remote, struct kv_remote_look *look,
			struct kv_remote_get *get, int status)
{
	get->asked = false;
	look->left--;
	if (status == 0)
		look->bytes = KV_MAX(look->bytes, get->job.op.length);
	else if (status != -EFBIG)
		look->gap = true;
	fetch_chain(remote, look);
	look_on(remote, look);
}

static void answered(struct kv_remote *remote, struct kv_remote_job *job,
		     int status)
{
	struct kv_remote_get *get = (struct kv_remote_get *)job;

	kv_turn_end(&remote->looks, kv_steal(get->turn), 1);
	get->found = status == 0;
	take_answer(remote, get->look, get, status);
}

void kv_look_fetched(struct kv_remote *remote, struct kv_remote_get *get,
		     int status)
{
	struct kv_remote_look *look = get->look;

	get->damaged = status == -EBADMSG;
	if (status == 0) {
		look->gets[get->at] = NULL;
		get->look = NULL;
	} else if (status == -EFBIG) {
		look->asks = true;
		look->next = KV_MIN(look->next, get->at);
	}
	take_answer(remote, look, get, status);
}

static void ask(struct kv_remote *remote, struct kv_remote_look *look,
		struct kv_remote_get *get)
{
	struct kv_remote_op *op = &get->job.op;
	char key[KV_NAME_MAX + 1];

	kv_key_name(&get->key, key);
	*op = (struct kv_remote_op){.call = KV_REMOTE_EXISTS};
	snprintf(op->name, sizeof(op->name), "%s%s", look->prefix, key);
	get->job.backend = look->backend;
	get->asked = true;
	look->left++;
	kv_turn_charge(&look->queue->turn, 1);
	if (look->begun > 0 && takes_for_granted(remote, look)) {
		op->length = look->bytes;
		kv_get_fetch(remote, get);
		return;
	}
	get->job.ended = answered;
	get->turn = &look->queue->turn;
	kv_turn_begin(&remote->looks, get->turn, 1);
	kv_remote_submit(remote, &get->job, LOOK_NS);
}

/* One more of the look whose turn it is. */
static void ask_one(struct kv_remote *remote, struct kv_remote_look *look)
{
	struct kv_remote_get *get;

	if (look->next == 0 && !kv_remote_is_open(remote, look->backend)) {
		look->next = look->n;
	} else {
		get = look->gets[look->next++];
		if (get && !get->found && !get->asked && !get->job.abandoned)
			ask(remote, look, get);
	}
	if (!may_go_on(remote, look)) {
		look_dequeue(remote, look);
		look_on(remote, look);
	}
}

static void ask_some(struct kv_remote *remote)
{
	struct kv_turn *turn;

	while ((turn = kv_turns_next_within(&remote->looks, ASKING_MAX)))
		ask_one(remote,
			TAILQ_FIRST(&((struct look_queue *)turn)->looks));
}

static void take_looks(struct kv_remote *remote)
{
	struct kv_cache *cache = remote->cache;
	struct kv_remote_look *look;

	for (;;) {
		kv_lock(cache);
		look = TAILQ_FIRST(&remote->fresh);
		if (look)
			TAILQ_REMOVE(&remote->fresh, look, link);
		kv_unlock(cache);
		if (!look)
			return;
		if (kv_remote_prefix(cache, look->space, look->prefix) < 0)
			decide(remote, look);
		else
			look_enqueue(remote, look);
	}
}

void kv_looks_run(struct kv_remote *remote)
{
	take_looks(remote);
	ask_some(remote);
}

void kv_looks_stop(struct kv_remote *remote)
{
	struct kv_remote_look *look;
	struct kv_turn *turn;

	while ((look = TAILQ_FIRST(&remote->fresh))) {
		TAILQ_REMOVE(&remote->fresh, look, link);
		decide(remote, look);
	}
	/* Nothing is open any more. */
	while ((turn = kv_turns_next(&remote->looks))) {
		look = TAILQ_FIRST(&((struct look_queue *)turn)->looks);
		look->next = 0;
		ask_one(remote, look);
	}
}
