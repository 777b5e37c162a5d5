/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch.c - find missing blocks at the backends, and fetch them.
 *
 * An acquire that misses blocks makes a look of them (kv_fetch_want_locked,
 * kv_fetch_begin_locked).  The thread sends an EXISTS request for each block to one
 * backend after the other.  Blocks that exist, and are worth it, are fetched while
 * the rest is asked for.  Blocks that no backend has are misses.
 *
 * With a single backend, EXISTS requests are sent only for the first blocks of a
 * chain.  If these exist, the rest most likely exists, too, and is fetched without
 * EXISTS requests, up to the first gap.  This halves the number of requests.
 *
 * Blocks are fetched in chain order, within a memory budget and a rate limit.  Each
 * lands in memory of its own, is copied into a slot and hashed in one pass, and is
 * sealed if its key, length and digest agree.
 *
 * OWNS      every look and every get; the tables of absent and damaged objects.
 *
 * STATES    of a get:
 *              (new) -> LOOKING   kv_fetch_want_locked
 *            LOOKING -> QUEUED    take_from_look: it exists and is worth it (a get
 *                                 without an EXISTS request stays LOOKING until it
 *                                 has LANDED)
 *             QUEUED -> GETTING   get_begin: memory and rate allow it
 *            GETTING -> LANDED    get_ended: its bytes are here
 *             LANDED -> (sealed)  land: there was a slot
 *                any -> (missed)  it is absent, late or damaged
 *
 * INVARIANTS
 *   (1) A key of a space has at most one get in the table, with all wants for this
 *       key, of all acquires.
 *   (2) A get goes on if nobody waits for it any more: the next acquire hits.
 *   (3) Memory for gets, abandoned ones included, is at most landing_max, or one
 *       get's.
 *   (4) EXISTS requests and gets are shared between users by deficit round robin.
 *       A user whose requests are not answered leaves a share to others.
 *
 * LOCKING   cache->lock for the table of gets, their wants and states, a look that
 *           is being submitted, the list of fresh looks, and the tables of absent
 *           and damaged objects.  All else is the thread's.
 */
#include "cache/block/block.h"
#include "cache/core/table.h"
#include "cache/remote/tier.h"
#include "cache/ssd/ssd.h"
#include "common/array.h"
#include "common/copy.h"
#include "common/rate.h"

#include <stdio.h>

#define LOOK_NS UINT64_C(2000000000)
#define ASKING_MAX 85u /* EXISTS requests; 64 of one user */
#define ASK_TURN 32    /* blocks */
#define AHEAD 64u      /* blocks of a look fetched without an EXISTS request */

#define GET_NS UINT64_C(10000000000)
#define QUEUE_NS UINT64_C(60000000000) /* in the queue */
#define ROOM_NS UINT64_C(1000000000)   /* waiting for a slot */
#define GETTING_MAX 42u		       /* gets; 32 of one user */
#define SHARES 1048576u		       /* of the memory and number of gets */
#define FETCH_TURN 4194304	       /* bytes */

#define ABSENT_NS UINT64_C(1000000000) /* until an absent object is asked for */
#define DAMAGED_NS UINT64_C(10000000000)
#define ABSENT (1u << 14)
#define DAMAGED (1u << 10)
#define BUCKETS 4096u

enum get_state { LOOKING, QUEUED, GETTING, LANDED };

/* A block that is looked for, and then fetched. */
struct get {
	struct kv_remote_job job;    /* first; used by the remote thread only */
	struct kv_queued queued;     /* of remote->fetches */
	enum get_state state;	     /* cache->lock */
	struct kv_want *wants;	     /* cache->lock */
	struct get *bucket;	     /* cache->lock */
	struct kv_remote_look *look; /* until the get is QUEUED or has LANDED */
	size_t at;		     /* index in the look */
	struct kv_key key;	     /* fixed */
	struct kv_space *space;	     /* fixed; held */
	uint32_t uid;		     /* fixed: of the space's owner */
	uint32_t asker;		     /* fixed: the user to charge */
	uint64_t hash;		     /* fixed */
	struct kv_turn *turn;	     /* held, while a request is in flight */
	uint64_t share;		     /* of SHARES; 0: not in flight */
	bool found, damaged;
	bool asked; /* in flight */
	bool ended; /* free it when its backend gives it back */
	uint64_t since_ns;
	TAILQ_ENTRY(get) link; /* of landed */
};

/* The missing blocks of one acquire. */
struct kv_remote_look {
	struct kv_queued queued; /* of remote->looks */
	struct kv_space *space;	 /* held */
	uint32_t uid;		 /* the user to charge */
	char prefix[KV_REMOTE_PREFIX_MAX + 1];
	unsigned backend; /* the one that is asked */
	size_t next;	  /* index of the next get to ask for */
	size_t left;	  /* requests in flight */
	size_t n, room;
	size_t worth;	/* fetch a chain only if this many blocks exist */
	size_t there;	/* blocks that exist, from the first, without a gap */
	size_t begun;	/* blocks of these that were taken to be fetched */
	uint64_t bytes; /* length of the largest object found */
	bool gap;	/* a block is absent */
	bool asks;	/* ask for each block: their lengths differ */
	struct get **gets; /* in the order of the keys; NULL: not the look's */
	TAILQ_ENTRY(kv_remote_look) link; /* of fresh */
};

/*
 * Tables of a fixed size, in which a newer entry replaces an older one.  At worst an
 * object is asked for once more, or is not put anew.
 */
struct kv_fetch {
	struct get *gets[BUCKETS]; /* cache->lock, as the next two */
	struct {
		uint64_t hash, until_ns;
	} absent[ABSENT];
	struct {
		uint64_t hash;
		uint32_t backends; /* one bit each */
	} damaged[DAMAGED];
	TAILQ_HEAD(, kv_remote_look) fresh; /* cache->lock */
	TAILQ_HEAD(, get) landed;
	uint64_t landing, landing_max; /* bytes of memory for gets */
	unsigned getting;	       /* gets in flight */
	struct kv_bucket bucket;       /* of remote_rate; bytes */
	struct kv_hash *hash;
};

int kv_fetch_init(struct kv_remote *remote)
{
	const struct kv_cache *cache = remote->cache;
	struct kv_fetch *fetch = calloc(1, sizeof(*fetch));
	int r;

	if (!fetch)
		return -ENOMEM;
	remote->fetch = fetch;
	TAILQ_INIT(&fetch->fresh);
	TAILQ_INIT(&fetch->landed);
	fetch->landing_max = cache->arena.max * cache->arena.segment_bytes / 16;
	r = kv_hash_new(&fetch->hash);
	if (r == 0)
		r = kv_queues_init(&remote->looks, ASK_TURN);
	if (r == 0)
		r = kv_queues_init(&remote->fetches, FETCH_TURN);
	return r;
}

void kv_fetch_fini(struct kv_remote *remote)
{
	kv_turns_fini(&remote->looks);
	kv_turns_fini(&remote->fetches);
	if (remote->fetch)
		kv_hash_free(remote->fetch->hash);
	free(remote->fetch);
}

/* ---- absent and damaged objects ---- */

void kv_fetch_present_locked(struct kv_remote *remote, uint64_t hash)
{
	if (remote->fetch->absent[hash % ABSENT].hash == hash)
		remote->fetch->absent[hash % ABSENT].until_ns = 0;
}

void kv_fetch_damaged(struct kv_remote *remote, uint64_t hash, unsigned backend,
		      bool damaged)
{
	struct kv_fetch *fetch = remote->fetch;

	kv_lock(remote->cache);
	if (damaged && fetch->damaged[hash % DAMAGED].hash != hash) {
		fetch->damaged[hash % DAMAGED].hash = hash;
		fetch->damaged[hash % DAMAGED].backends = 0;
	}
	if (damaged)
		fetch->damaged[hash % DAMAGED].backends |= 1u << backend;
	else if (fetch->damaged[hash % DAMAGED].hash == hash)
		fetch->damaged[hash % DAMAGED].backends &= ~(1u << backend);
	kv_unlock(remote->cache);
}

bool kv_fetch_is_damaged(struct kv_remote *remote, uint64_t hash,
			 unsigned backend)
{
	const struct kv_fetch *fetch = remote->fetch;
	bool is;

	kv_lock(remote->cache);
	is = fetch->damaged[hash % DAMAGED].hash == hash &&
	     (fetch->damaged[hash % DAMAGED].backends & 1u << backend);
	kv_unlock(remote->cache);
	return is;
}

/* ---- the table of gets ---- */

static struct get *get_find_locked(struct kv_remote *remote,
				   const struct kv_space *space,
				   const struct kv_key *key, uint64_t hash)
{
	struct get *get = remote->fetch->gets[hash % BUCKETS];

	kv_assert_locked(&remote->cache->lock);
	while (get && (get->space != space || !kv_key_equal(&get->key, key)))
		get = get->bucket;
	return get;
}

static void get_unlink_locked(struct kv_remote *remote, struct get *get)
{
	struct get **link = &remote->fetch->gets[get->hash % BUCKETS];

	while (*link != get)
		link = &(*link)->bucket;
	*link = get->bucket;
}

/* Free the memory for its bytes, and its share. */
static void get_release(struct kv_remote *remote, struct get *get)
{
	if (get->job.op.data)
		remote->fetch->landing -= get->job.op.room;
	free(kv_steal(get->job.op.data));
	if (get->share)
		kv_turn_end(&remote->fetches, kv_steal(get->turn), get->share);
	get->share = 0;
}

static void get_free(struct kv_remote *remote, struct get *get)
{
	get_release(remote, get);
	kv_space_put(get->space);
	free(get);
}

static void get_given_back(struct kv_remote *remote, struct kv_remote_job *job)
{
	struct get *get = (struct get *)job;

	if (get->ended)
		get_free(remote, get);
	else
		get_release(remote, get);
}

/*
 * End @get: its wants restart if the block @came, else they miss.  Do not ask for
 * the key again for @shun_ns.  The get is freed when no backend has its memory.
 */
static void get_end(struct kv_remote *remote, struct get *get, bool came,
		    uint64_t shun_ns)
{
	struct kv_cache *cache = remote->cache;
	struct kv_fetch *fetch = remote->fetch;
	bool abandoned = get->job.abandoned;

	kv_lock(cache);
	get_unlink_locked(remote, get);
	if (shun_ns) {
		fetch->absent[get->hash % ABSENT].hash = get->hash;
		fetch->absent[get->hash % ABSENT].until_ns =
			kv_now_ns() + shun_ns;
	}
	if (came)
		kv_wants_restart_locked(cache, &get->wants);
	else
		kv_wants_miss_locked(cache, &get->wants);
	kv_unlock(cache);
	get->ended = true;
	if (!abandoned)
		get_free(remote, get);
}

static void get_set_state(struct kv_remote *remote, struct get *get,
			  enum get_state state)
{
	kv_lock(remote->cache);
	get->state = state;
	kv_unlock(remote->cache);
}

/* Queue @get to be fetched when its user's turn comes. */
static void get_enqueue(struct kv_remote *remote, struct get *get)
{
	get_set_state(remote, get, get->look ? LOOKING : QUEUED);
	get->since_ns = kv_now_ns();
	kv_enqueue(&remote->fetches, get->asker, &get->queued);
}

bool kv_fetch_may_locked(struct kv_cache *cache, struct kv_space *space,
			 const struct kv_key *key)
{
	struct kv_remote *remote = cache->remote;
	uint64_t hash;

	kv_assert_locked(&cache->lock);
	if (!remote->running || cache->config.read_only || !space->shared ||
	    kv_is_removed_locked(cache, space, key))
		return false;
	hash = kv_key_hash(cache, space, key->b);
	return remote->fetch->absent[hash % ABSENT].hash != hash ||
	       kv_now_ns() >= remote->fetch->absent[hash % ABSENT].until_ns;
}

bool kv_fetch_is_coming_locked(struct kv_cache *cache, struct kv_space *space,
			       const struct kv_key *key)
{
	const struct get *get;

	kv_assert_locked(&cache->lock);
	if (!space->shared)
		return false;
	get = get_find_locked(cache->remote, space, key,
			      kv_key_hash(cache, space, key->b));
	return get && get->state > LOOKING;
}

/* ---- what is missing ---- */

int kv_fetch_want_locked(struct kv_cache *cache, struct kv_want *want)
{
	struct kv_acquire *acquire = want->acquire;
	struct kv_space *space = acquire->space;
	struct kv_remote *remote = cache->remote;
	struct kv_remote_look *look = acquire->look;
	struct get *get;
	uint64_t hash;

	kv_assert_locked(&cache->lock);
	if (!acquire->remote || !kv_fetch_may_locked(cache, space, &want->key))
		return -ENOENT;
	if (!acquire->rest)
		acquire->rest = acquire->n - (size_t)(want - acquire->wants);
	hash = kv_key_hash(cache, space, want->key.b);
	get = get_find_locked(remote, space, &want->key, hash);
	if (get) {
		kv_want_link(&get->wants, want);
		return -EINPROGRESS;
	}
	if (!acquire->submitting)
		return -ENOENT;
	if (!look) {
		look = acquire->look = calloc(1, sizeof(*look));
		if (!look)
			return -ENOENT;
		look->space = kv_space_get(space);
		look->uid = acquire->uid;
	}
	get = kv_array_reserve(&look->gets, &look->room, look->n + 1) == 0
		      ? calloc(1, sizeof(*get))
		      : NULL;
	if (!get)
		return -ENOENT;
	get->job.given_back = get_given_back;
	get->key = want->key;
	get->hash = hash;
	get->space = kv_space_get(space);
	get->uid = space->uid;
	get->asker = look->uid;
	get->bucket = remote->fetch->gets[hash % BUCKETS];
	remote->fetch->gets[hash % BUCKETS] = get;
	get->look = look;
	get->at = look->n;
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

void kv_fetch_begin_locked(struct kv_cache *cache, struct kv_acquire *acquire)
{
	struct kv_remote_look *look = kv_steal(acquire->look);
	const size_t threshold = KV_MAX(cache->config.remote.threshold, 1u);
	struct kv_remote *remote = cache->remote;

	kv_assert_locked(&cache->lock);
	if (!look)
		return;
	/* Too few blocks left to justify EXISTS requests. */
	if (look->n == 0 || (is_prefix(look->space) &&
			     acquire->rest < threshold && !acquire->more)) {
		for (size_t i = 0; i < look->n; i++) {
			struct get *get = look->gets[i];

			get_unlink_locked(remote, get);
			kv_wants_miss_locked(cache, &get->wants);
			get_free(remote, get);
		}
		look_free(look);
		return;
	}
	look->worth = acquire->goes_on ? 1 : KV_MIN(threshold, look->n);
	TAILQ_INSERT_TAIL(&remote->fetch->fresh, look, link);
	kv_remote_wake(remote);
}

/* ---- looks ---- */

/* Fetch @get, which exists; the look has it no more. */
static void take_from_look(struct kv_remote *remote, struct get *get)
{
	get->look->gets[get->at] = NULL;
	get->look = NULL;
	get_enqueue(remote, get);
}

/* Fetch what exists of a look without an order; all other gets miss. */
static void look_end(struct kv_remote *remote, struct kv_remote_look *look)
{
	const bool any = !is_prefix(look->space) && !remote->stop;

	for (size_t i = look->begun; i < look->n; i++) {
		struct get *get = look->gets[i];
		uint64_t shun_ns = 0;

		if (!get)
			continue;
		if (any && get->found) {
			take_from_look(remote, get);
			continue;
		}
		if (!get->found && get->at < look->next)
			shun_ns = get->damaged ? DAMAGED_NS : ABSENT_NS;
		get->look = NULL;
		get_end(remote, get, false, shun_ns);
	}
	look_free(look);
}

/* Fetch blocks of this look without EXISTS requests, once the first exist. */
static bool takes_for_granted(const struct kv_remote *remote,
			      const struct kv_remote_look *look)
{
	return remote->n == 1 && is_prefix(look->space) && !look->asks;
}

/* Return whether to ask for the next block now, not after an answer. */
static bool look_may_ask(const struct kv_remote *remote,
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

/* Ask for more blocks, or the next backend, or end the look. */
static void look_go_on(struct kv_remote *remote, struct kv_remote_look *look)
{
	if (look->queued.queue)
		return;
	if (look_may_ask(remote, look)) {
		kv_enqueue(&remote->looks, look->uid, &look->queued);
	} else if (look->left > 0) {
		return;
	} else if (look->backend + 1 < remote->n && !remote->stop) {
		look->backend++;
		look->next = 0;
		kv_enqueue(&remote->looks, look->uid, &look->queued);
	} else {
		look_end(remote, look);
	}
}

static void look_answered(struct kv_remote *remote, struct kv_remote_look *look,
			  struct get *get, int status)
{
	get->asked = false;
	look->left--;
	if (status == 0)
		look->bytes = KV_MAX(look->bytes, get->job.op.length);
	else if (status != -EFBIG)
		look->gap = true;
	/* In a chain, blocks behind a gap are useless. */
	if (is_prefix(look->space) && !remote->stop) {
		while (look->there < look->n &&
		       (!look->gets[look->there] ||
			look->gets[look->there]->found))
			look->there++;
		for (; look->there >= look->worth && look->begun < look->there;
		     look->begun++)
			if (look->gets[look->begun])
				take_from_look(remote, look->gets[look->begun]);
	}
	look_go_on(remote, look);
}

/* An EXISTS request has ended. */
static void exists_ended(struct kv_remote *remote, struct kv_remote_job *job,
			 int status)
{
	struct get *get = (struct get *)job;

	kv_turn_end(&remote->looks, kv_steal(get->turn), 1);
	get->found = status == 0;
	look_answered(remote, get->look, get, status);
}

/* Ask for one more block of the look whose turn it is. */
static void look_ask(struct kv_remote *remote, struct kv_remote_look *look)
{
	struct kv_turn *turn = &look->queued.queue->turn;
	struct get *get = NULL;

	if (look->next == 0 && !kv_remote_is_open(remote, look->backend))
		look->next = look->n;
	else
		get = look->gets[look->next++];
	if (get && !get->found && !get->asked && !get->job.abandoned) {
		get->job.op = (struct kv_remote_op){.call = KV_REMOTE_EXISTS};
		kv_remote_name(&get->job.op, look->prefix, &get->key);
		get->job.backend = look->backend;
		get->asked = true;
		look->left++;
		kv_turn_charge(turn, 1);
		if (look->begun > 0 && takes_for_granted(remote, look)) {
			get->job.op.length = look->bytes;
			get_enqueue(remote, get);
		} else {
			get->job.ended = exists_ended;
			get->turn = turn;
			kv_turn_begin(&remote->looks, turn, 1);
			kv_remote_submit(remote, &get->job, LOOK_NS);
		}
	}
	if (!look_may_ask(remote, look)) {
		kv_dequeue(&remote->looks, &look->queued);
		look_go_on(remote, look);
	}
}

static struct kv_remote_look *first_look(struct kv_turn *turn)
{
	return kv_container(kv_queue_first(turn), struct kv_remote_look,
			    queued);
}

/* ---- gets ---- */

/* The get failed.  A get without an EXISTS request goes back to its look. */
static void get_failed(struct kv_remote *remote, struct get *get, int status,
		       uint64_t shun_ns)
{
	struct kv_remote_look *look = get->look;

	if (!look) {
		get_end(remote, get, false, shun_ns);
		return;
	}
	get->damaged = status == -EBADMSG;
	if (status == -EFBIG) {
		look->asks = true;
		look->next = KV_MIN(look->next, get->at);
	}
	look_answered(remote, look, get, status);
}

static void get_ended(struct kv_remote *remote, struct kv_remote_job *job,
		      int status)
{
	struct kv_remote_look *look;
	struct get *get = (struct get *)job;

	remote->fetch->getting--;
	if (status == -ENOENT)
		remote->fetch->bucket.credit += (double)job->op.room;
	if (status == -EBADMSG)
		kv_fetch_damaged(remote, get->hash, job->backend, true);
	if (status < 0) {
		if (!job->abandoned)
			get_release(remote, get);
		get_failed(remote, get, status,
			   status == -EBADMSG || status == -EFBIG ? DAMAGED_NS
								  : ABSENT_NS);
		return;
	}
	look = kv_steal(get->look);
	if (look) {
		get->damaged = false;
		look->gets[get->at] = NULL;
		look_answered(remote, look, get, 0);
	}
	get_set_state(remote, get, LANDED);
	get->since_ns = kv_now_ns();
	TAILQ_INSERT_TAIL(&remote->fetch->landed, get, link);
}

/* Returns 1: begun; 0: not now; -errno: never. */
static int get_begin(struct kv_remote *remote, struct get *get)
{
	struct kv_fetch *fetch = remote->fetch;
	const double rate = (double)remote->cache->config.remote.rate;
	struct kv_remote_op *op = &get->job.op;
	double part;

	if (op->length == 0 || op->length > remote->cache->arena.segment_bytes)
		return -EFBIG;
	if (!kv_remote_is_open(remote, get->job.backend))
		return -EIO;
	if (fetch->getting >= GETTING_MAX ||
	    (fetch->landing > 0 &&
	     fetch->landing + op->length > fetch->landing_max) ||
	    (rate > 0 && !kv_bucket_fill(&fetch->bucket, rate, rate)))
		return 0;
	fetch->bucket.credit -= (double)op->length;
	op->data = malloc(op->length);
	if (!op->data)
		return -ENOMEM;
	op->room = op->length;
	op->call = KV_REMOTE_GET;
	op->noted = !get->look;
	fetch->landing += op->room;
	fetch->getting++;
	/* The get's share of the memory, or of the number of gets if that is more. */
	part = (double)op->length / (double)KV_MAX(fetch->landing_max, 1u);
	get->share = KV_MAX((uint64_t)(KV_MIN(part, 1.0) * SHARES),
			    SHARES / GETTING_MAX);
	get->turn = &get->queued.queue->turn;
	kv_turn_begin(&remote->fetches, get->turn, get->share);
	get_set_state(remote, get, get->look ? LOOKING : GETTING);
	get->job.ended = get_ended;
	kv_remote_submit(remote, &get->job, GET_NS);
	return 1;
}

/* Copy the bytes into @fill, and seal it if key, length and digest agree. */
static int seal(struct kv_remote *remote, struct get *get, struct kv_fill *fill)
{
	struct kv_cache *cache = remote->cache;
	struct kv_hash *hash = remote->fetch->hash;
	const struct kv_remote_op *op = &get->job.op;
	uint8_t *data = kv_fill_data(fill);
	uint64_t length, payload;
	struct kv_digest digest;
	struct kv_meta meta;
	int r;

	kv_fill_fetched(fill);
	kv_hash_begin(hash);
	kv_hash_copy(hash, data, op->data, op->length);
	digest = kv_hash_end(hash);
	r = memcmp(&digest, &op->digest, sizeof(digest)) ? -EBADMSG : 0;
	if (r == 0)
		r = kv_block_parse(data, op->length, get->space->layout,
				   &length, &payload, &meta);
	if (r < 0 || length != op->length) {
		kv_fill_drop(cache, fill);
		kv_lock(cache);
		remote->backends[get->job.backend].stats.damaged++;
		kv_unlock(cache);
		kv_fetch_damaged(remote, get->hash, get->job.backend, true);
		return -EBADMSG;
	}
	meta.mtime_ns = kv_wall_ns();
	return kv_fill_seal(cache, fill, &get->key, &meta, payload, &digest);
}

/* Seal the block, unless it must wait for a slot. */
static void land(struct kv_remote *remote, struct get *get)
{
	struct kv_fill *fill;
	int r = -ESTALE;

	/* With another owner the space's blocks are other objects. */
	if (kv_remote_user(remote->cache, get->space) == get->uid)
		r = kv_fill_begin(remote->cache, get->space, &get->key,
				  get->job.op.length, &fill);
	if ((r == -EBUSY || r == -ENOSPC || r == -EAGAIN) &&
	    kv_now_ns() - get->since_ns < ROOM_NS)
		return;
	TAILQ_REMOVE(&remote->fetch->landed, get, link);
	if (r == 0)
		r = seal(remote, get, fill);
	/* -EEXIST, -EALREADY: another client saved it, or is about to. */
	if (r >= 0 || r == -EEXIST || r == -EALREADY)
		get_end(remote, get, true, 0);
	else
		get_end(remote, get, false, r == -EBADMSG ? DAMAGED_NS : 0);
}

/* ---- the thread ---- */

void kv_fetch_ask(struct kv_remote *remote)
{
	struct kv_cache *cache = remote->cache;
	struct kv_fetch *fetch = remote->fetch;
	struct kv_remote_look *look;
	struct kv_turn *turn;

	for (;;) {
		kv_lock(cache);
		look = TAILQ_FIRST(&fetch->fresh);
		if (look)
			TAILQ_REMOVE(&fetch->fresh, look, link);
		kv_unlock(cache);
		if (!look)
			break;
		if (kv_remote_prefix(cache, look->space, look->prefix) < 0)
			look_end(remote, look);
		else
			kv_enqueue(&remote->looks, look->uid, &look->queued);
	}
	while ((turn = kv_turns_next_within(&remote->looks, ASKING_MAX)))
		look_ask(remote, first_look(turn));
}

static struct get *first_get(struct kv_turn *turn)
{
	return kv_container(kv_queue_first(turn), struct get, queued);
}

void kv_fetch_get(struct kv_remote *remote)
{
	struct get *get, *next;
	struct kv_turn *turn;
	int r = 1;

	for (get = TAILQ_FIRST(&remote->fetch->landed); get; get = next) {
		next = TAILQ_NEXT(get, link);
		land(remote, get);
	}
	while (r != 0 &&
	       (turn = kv_turns_next_within(&remote->fetches, SHARES))) {
		get = first_get(turn);
		r = kv_now_ns() - get->since_ns > QUEUE_NS
			    ? -ETIMEDOUT
			    : get_begin(remote, get);
		if (r == 0)
			break;
		kv_turn_charge(turn, r > 0 ? get->job.op.length : 0);
		kv_dequeue(&remote->fetches, &get->queued);
		if (r < 0)
			get_failed(remote, get, r,
				   r == -EFBIG ? DAMAGED_NS : 0);
	}
}

bool kv_fetch_is_busy(const struct kv_remote *remote)
{
	return !TAILQ_EMPTY(&remote->fetch->landed) ||
	       remote->fetches.n_busy > 0;
}

void kv_fetch_stop(struct kv_remote *remote)
{
	struct kv_fetch *fetch = remote->fetch;
	struct kv_remote_look *look;
	struct kv_turn *turn;
	struct get *get;

	while ((look = TAILQ_FIRST(&fetch->fresh))) {
		TAILQ_REMOVE(&fetch->fresh, look, link);
		look_end(remote, look);
	}
	/* No backend is open any more. */
	while ((turn = kv_turns_next(&remote->looks))) {
		look = first_look(turn);
		look->next = 0;
		look_ask(remote, look);
	}
	while ((turn = kv_turns_next(&remote->fetches))) {
		get = first_get(turn);
		kv_dequeue(&remote->fetches, &get->queued);
		get_failed(remote, get, -ECANCELED, 0);
	}
	while ((get = TAILQ_FIRST(&fetch->landed))) {
		TAILQ_REMOVE(&fetch->landed, get, link);
		get_end(remote, get, false, 0);
	}
}
