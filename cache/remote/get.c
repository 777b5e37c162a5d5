/* SPDX-License-Identifier: Apache-2.0 */
/*
 * get.c - blocks that are not here, looked for on the backends and brought.
 *
 * Who wants blocks that are missing makes a look of them (kv_remote_want_locked,
 * kv_remote_look_locked).  All of it is asked for at once, of one backend after
 * the other.  What is worth it is then fetched, in chain order, within a budget of
 * memory and a rate; it lands in memory of its own, is copied and hashed into a
 * slot in one pass, and sealed if key, length and digest agree.
 *
 * OWNS      every kv_remote_get and kv_remote_look.
 *
 * STATES    of a get:
 *              (new) -> LOOKING   the thread takes its look
 *            LOOKING -> QUEUED    decide: it is there, and worth it
 *             QUEUED -> GETTING   there is memory, and rate, for it
 *            GETTING -> LANDED    its bytes are here
 *             LANDED -> (sealed)  there was a slot for it
 *                any -> (missed)  it is not there, not in time, damaged
 *
 * INVARIANTS
 *   (1) Of a key of a space there is one get in the table; it has all wants that
 *       wait for it, of whatever acquire.
 *   (2) What nobody waits for any more still comes: the next one hits.
 *   (3) Memory for gets, that of abandoned ones included, is at most
 *       landing_max, or one get's.
 *   (4) Users take turns in asking and in fetching: who wants very much keeps
 *       nobody from a little.
 *
 * LOCKING   cache->lock for the table, the wants and the list of fresh looks;
 *           all else is the thread's.
 */
#include "cache/block/block.h"
#include "cache/core/hooks.h"
#include "cache/core/table.h"
#include "cache/core/turns.h"
#include "cache/remote/tier.h"
#include "common/copy.h"

#include <stdio.h>

#define LOOK_NS UINT64_C(2000000000)
#define GET_NS UINT64_C(10000000000)
#define QUEUE_NS UINT64_C(60000000000) /* that long it may wait to begin */
#define ROOM_NS UINT64_C(1000000000)   /* and that long for a slot */
#define ABSENT_NS UINT64_C(1000000000)
#define DAMAGED_NS UINT64_C(10000000000)
#define ASKING_MAX 64u
#define GETTING_MAX 32u
#define ASK_TURN 32	   /* blocks */
#define FETCH_TURN 4194304 /* bytes */

enum get_state { GET_LOOKING, GET_QUEUED, GET_GETTING, GET_LANDED };

struct kv_remote_get {
	struct kv_remote_job job;     /* first; the thread's */
	enum get_state state;	      /* cache->lock */
	struct kv_want *wants;	      /* cache->lock */
	struct kv_remote_get *bucket; /* cache->lock */
	struct kv_remote_look *look;  /* until it is decided */
	struct kv_key key;	      /* fixed */
	struct kv_space *space;	      /* fixed; held */
	uint32_t uid;		      /* fixed: the space's owner's */
	uint64_t hash;		      /* fixed */
	struct get_queue *queue;      /* held, while it is QUEUED */
	bool found;
	bool ended; /* nothing is left to do but to free it */
	uint64_t since_ns;
	TAILQ_ENTRY(kv_remote_get) link; /* of queued or landed */
};

struct kv_remote_look {
	struct kv_space *space; /* held */
	char prefix[KV_REMOTE_PREFIX_MAX + 1];
	struct look_queue *queue; /* held */
	unsigned backend;	  /* the one that is asked */
	size_t next;		  /* the next get to be asked for */
	size_t left;		  /* answers that are not here */
	size_t n, room;
	struct kv_remote_get **gets; /* in the order of the keys */
	TAILQ_ENTRY(kv_remote_look) link;
};

/* What a user has in hand. */
struct look_queue {
	struct kv_turn turn; /* first */
	struct kv_remote_looks looks;
};

struct get_queue {
	struct kv_turn turn; /* first */
	struct kv_remote_gets gets;
};

static void init_looks(struct kv_turn *turn)
{
	TAILQ_INIT(&((struct look_queue *)turn)->looks);
}

static void init_gets(struct kv_turn *turn)
{
	TAILQ_INIT(&((struct get_queue *)turn)->gets);
}

int kv_gets_init(struct kv_remote *remote)
{
	int r = kv_turns_init(&remote->looks, sizeof(struct look_queue),
			      ASK_TURN, init_looks);

	return r < 0 ? r
		     : kv_turns_init(&remote->fetches, sizeof(struct get_queue),
				     FETCH_TURN, init_gets);
}

void kv_gets_fini(struct kv_remote *remote)
{
	kv_turns_fini(&remote->looks);
	kv_turns_fini(&remote->fetches);
}

static uint32_t user_of(struct kv_cache *cache, const struct kv_space *space)
{
	uint32_t uid;

	kv_lock(cache);
	uid = space->uid;
	kv_unlock(cache);
	return uid;
}

/* ---- the table ---- */

static struct kv_remote_get **bucket_of(struct kv_remote *remote, uint64_t hash)
{
	return &remote->gets[hash % GET_BUCKETS];
}

static struct kv_remote_get *find_locked(struct kv_remote *remote,
					 const struct kv_space *space,
					 const struct kv_key *key,
					 uint64_t hash)
{
	struct kv_remote_get *get = *bucket_of(remote, hash);

	while (get && (get->space != space || !kv_key_equal(&get->key, key)))
		get = get->bucket;
	return get;
}

static void leave_locked(struct kv_remote *remote, struct kv_remote_get *get)
{
	struct kv_remote_get **link = bucket_of(remote, get->hash);

	while (*link != get)
		link = &(*link)->bucket;
	*link = get->bucket;
}

static void get_free(struct kv_remote *remote, struct kv_remote_get *get)
{
	if (get->job.op.data)
		remote->landing -= get->job.op.room;
	free(get->job.op.data);
	kv_space_put(get->space);
	free(get);
}

/*
 * Tell who waits: with @came it is here, and they look again.  Not to be asked for
 * again in @shun_ns.  Its memory goes when no backend has it any more.
 */
static void get_end(struct kv_remote *remote, struct kv_remote_get *get,
		    bool came, uint64_t shun_ns)
{
	struct kv_cache *cache = remote->cache;
	bool under_way = get->job.abandoned;

	kv_lock(cache);
	leave_locked(remote, get);
	if (shun_ns)
		kv_shun_absent(remote->shunned, get->hash,
			       kv_now_ns() + shun_ns);
	if (came)
		kv_wants_restart_locked(cache, &get->wants);
	else
		kv_wants_miss_locked(cache, &get->wants);
	kv_unlock(cache);
	get->ended = true;
	if (!under_way)
		get_free(remote, get);
}

/* ---- who wants them ---- */

bool kv_remote_may_locked(struct kv_cache *cache, struct kv_space *space,
			  const struct kv_key *key)
{
	struct kv_remote *remote = cache->remote;

	kv_assert_locked(&cache->lock);
	return remote && remote->running && space->shared &&
	       !kv_is_shunned(remote->shunned,
			      kv_key_hash(cache, space, key->b));
}

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
		if (acquire->look)
			acquire->look->space = kv_space_get(acquire->space);
	}
	return acquire->look;
}

int kv_remote_want_locked(struct kv_cache *cache, struct kv_want *want)
{
	struct kv_acquire *acquire = want->acquire;
	struct kv_space *space = acquire->space;
	struct kv_remote *remote = cache->remote;
	struct kv_remote_get *get;
	struct kv_remote_look *look;
	uint64_t hash;

	kv_assert_locked(&cache->lock);
	if (!acquire->remote || !kv_remote_may_locked(cache, space, &want->key))
		return -ENOENT;
	hash = kv_key_hash(cache, space, want->key.b);
	get = find_locked(remote, space, &want->key, hash);
	if (get) {
		kv_want_link(&get->wants, want);
		return -EINPROGRESS;
	}
	look = acquire->submitting ? look_of(acquire) : NULL;
	get = look && grow(look) ? calloc(1, sizeof(*get)) : NULL;
	if (!get)
		return -ENOENT;
	get->key = want->key;
	get->hash = hash;
	get->space = kv_space_get(space);
	get->uid = space->uid;
	get->look = look;
	get->bucket = *bucket_of(remote, hash);
	*bucket_of(remote, hash) = get;
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

/* Too few to be worth a question. */
static void forget_locked(struct kv_cache *cache, struct kv_remote_look *look)
{
	for (size_t i = 0; i < look->n; i++) {
		struct kv_remote_get *get = look->gets[i];

		leave_locked(cache->remote, get);
		kv_wants_miss_locked(cache, &get->wants);
		get_free(cache->remote, get);
	}
	look_free(look);
}

void kv_remote_look_locked(struct kv_cache *cache, struct kv_acquire *acquire)
{
	struct kv_remote_look *look = acquire->look;
	struct kv_remote *remote = cache->remote;

	kv_assert_locked(&cache->lock);
	if (!look)
		return;
	acquire->look = NULL;
	if (is_prefix(look->space) &&
	    look->n < cache->config.remote.threshold) {
		forget_locked(cache, look);
		return;
	}
	TAILQ_INSERT_TAIL(&remote->fresh, look, link);
	kv_remote_wake(remote);
}

bool kv_remote_coming_locked(struct kv_cache *cache, struct kv_space *space,
			     const struct kv_key *key)
{
	const struct kv_remote_get *get;

	kv_assert_locked(&cache->lock);
	if (!cache->remote || !space->shared)
		return false;
	get = find_locked(cache->remote, space, key,
			  kv_key_hash(cache, space, key->b));
	return get && get->state > GET_LOOKING;
}

/* ---- looking ---- */

/* Of a chain, what follows a gap is of no use, and a short rest not worth it. */
static size_t worth(const struct kv_remote *remote,
		    const struct kv_remote_look *look)
{
	const uint32_t threshold = remote->cache->config.remote.threshold;
	size_t n = 0;

	if (remote->stop)
		return 0;
	if (!is_prefix(look->space))
		return look->n;
	while (n < look->n && look->gets[n]->found)
		n++;
	return n >= threshold ? n : 0;
}

/* It waits for its user's turn. */
static void enqueue(struct kv_remote *remote, struct kv_remote_get *get)
{
	struct kv_cache *cache = remote->cache;

	get->queue = (struct get_queue *)kv_turn_get(
		&remote->fetches, user_of(cache, get->space));
	kv_lock(cache);
	get->state = GET_QUEUED;
	kv_unlock(cache);
	get->since_ns = kv_now_ns();
	TAILQ_INSERT_TAIL(&get->queue->gets, get, link);
	kv_turn_start(&remote->fetches, &get->queue->turn);
}

static void dequeue(struct kv_remote *remote, struct kv_remote_get *get)
{
	struct get_queue *queue = get->queue;

	TAILQ_REMOVE(&queue->gets, get, link);
	if (TAILQ_EMPTY(&queue->gets))
		kv_turn_stop(&remote->fetches, &queue->turn);
	kv_turn_put(&remote->fetches, &queue->turn);
	get->queue = NULL;
}

static void decide(struct kv_remote *remote, struct kv_remote_look *look)
{
	const size_t n = worth(remote, look);

	for (size_t i = 0; i < look->n; i++) {
		struct kv_remote_get *get = look->gets[i];

		get->look = NULL;
		if (i < n && get->found)
			enqueue(remote, get);
		else
			get_end(remote, get, false, get->found ? 0 : ABSENT_NS);
	}
	look_free(look);
}

/* ---- asking ---- */

static void look_enqueue(struct kv_remote *remote, struct kv_remote_look *look)
{
	look->next = 0;
	look->queue = (struct look_queue *)kv_turn_get(
		&remote->looks, user_of(remote->cache, look->space));
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

/* All that it asked for has been answered: the next backend, or the end. */
static void look_on(struct kv_remote *remote, struct kv_remote_look *look)
{
	if (look->queue || look->left > 0)
		return;
	if (++look->backend < remote->n && !remote->stop)
		look_enqueue(remote, look);
	else
		decide(remote, look);
}

/* What was abandoned is the get's again. */
static void given_back(struct kv_remote *remote, struct kv_remote_job *job)
{
	struct kv_remote_get *get = (struct kv_remote_get *)job;

	if (get->ended)
		get_free(remote, get);
}

static void answered(struct kv_remote *remote, struct kv_remote_job *job,
		     int status)
{
	struct kv_remote_get *get = (struct kv_remote_get *)job;
	struct kv_remote_look *look = get->look;

	remote->asking--;
	get->found = status == 0;
	look->left--;
	look_on(remote, look);
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
	get->job.ended = answered;
	get->job.given_back = given_back;
	look->left++;
	remote->asking++;
	kv_turn_charge(&look->queue->turn, 1);
	kv_remote_submit(remote, &get->job, LOOK_NS);
}

/* One more of the look whose turn it is. */
static void ask_one(struct kv_remote *remote, struct kv_remote_look *look)
{
	struct kv_remote_get *get = look->gets[look->next];

	if (look->next == 0 && !kv_remote_is_open(remote, look->backend)) {
		look->next = look->n;
	} else {
		look->next++;
		if (!get->found && !get->job.abandoned)
			ask(remote, look, get);
	}
	if (look->next == look->n) {
		look_dequeue(remote, look);
		look_on(remote, look);
	}
}

static void ask_some(struct kv_remote *remote)
{
	struct kv_turn *turn;

	while (remote->asking < ASKING_MAX &&
	       (turn = kv_turns_next(&remote->looks)))
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

/* ---- getting ---- */

static void came(struct kv_remote *remote, struct kv_remote_job *job,
		 int status)
{
	struct kv_remote_get *get = (struct kv_remote_get *)job;

	remote->getting--;
	if (status < 0) {
		get_end(remote, get, false,
			status == -EBADMSG || status == -EFBIG ? DAMAGED_NS
							       : ABSENT_NS);
		return;
	}
	kv_lock(remote->cache);
	get->state = GET_LANDED;
	kv_unlock(remote->cache);
	get->since_ns = kv_now_ns();
	TAILQ_INSERT_TAIL(&remote->landed, get, link);
}

/* The bytes of a second may come at once. */
static bool rate_allows(struct kv_remote *remote, uint64_t bytes)
{
	const double rate = (double)remote->cache->config.remote.rate;
	const uint64_t now = kv_now_ns();

	if (rate == 0)
		return true;
	remote->credit += rate * (double)(now - remote->credit_ns) / 1e9;
	remote->credit = KV_MIN(remote->credit, rate);
	remote->credit_ns = now;
	if (remote->credit <= 0)
		return false;
	remote->credit -= (double)bytes;
	return true;
}

/* 1: begun; 0: not now; -errno: never. */
static int get_begin(struct kv_remote *remote, struct kv_remote_get *get)
{
	struct kv_remote_op *op = &get->job.op;

	if (op->length == 0 || op->length > remote->cache->arena.segment_bytes)
		return -EFBIG;
	if (!kv_remote_is_open(remote, get->job.backend))
		return -EIO;
	if (remote->getting >= GETTING_MAX ||
	    (remote->landing > 0 &&
	     remote->landing + op->length > remote->landing_max) ||
	    !rate_allows(remote, op->length))
		return 0;
	op->data = malloc(op->length);
	if (!op->data)
		return -ENOMEM;
	op->room = op->length;
	op->call = KV_REMOTE_GET;
	remote->landing += op->room;
	remote->getting++;
	kv_lock(remote->cache);
	get->state = GET_GETTING;
	kv_unlock(remote->cache);
	get->job.ended = came;
	kv_remote_submit(remote, &get->job, GET_NS);
	return 1;
}

static void begin_gets(struct kv_remote *remote)
{
	struct kv_turn *turn;
	int r = 1;

	while (r != 0 && (turn = kv_turns_next(&remote->fetches))) {
		struct kv_remote_get *get =
			TAILQ_FIRST(&((struct get_queue *)turn)->gets);

		r = kv_now_ns() - get->since_ns > QUEUE_NS
			    ? -ETIMEDOUT
			    : get_begin(remote, get);
		if (r == 0)
			break;
		kv_turn_charge(turn, r > 0 ? get->job.op.length : 0);
		dequeue(remote, get);
		if (r < 0)
			get_end(remote, get, false,
				r == -EFBIG ? DAMAGED_NS : 0);
	}
}

/* ---- landing ---- */

/* Copy the bytes into @fill, and seal it if they are what was put. */
static int seal(struct kv_remote *remote, struct kv_remote_get *get,
		struct kv_fill *fill)
{
	struct kv_cache *cache = remote->cache;
	const struct kv_remote_op *op = &get->job.op;
	uint8_t *data = kv_fill_data(fill);
	uint64_t length, payload;
	struct kv_digest digest;
	struct kv_meta meta;
	int r;

	kv_hash_begin(remote->hash);
	kv_hash_copy(remote->hash, data, op->data, op->length);
	digest = kv_hash_end(remote->hash);
	r = memcmp(&digest, &op->digest, sizeof(digest)) ? -EBADMSG : 0;
	if (r == 0)
		r = kv_block_parse(data, op->length, get->space->layout,
				   &length, &payload, &meta);
	if (r < 0 || length != op->length) {
		kv_fill_drop(cache, fill);
		kv_lock(cache);
		remote->backends[get->job.backend].stats.damaged++;
		kv_unlock(cache);
		return -EBADMSG;
	}
	meta.mtime_ns = kv_wall_ns();
	return kv_fill_seal(cache, fill, &get->key, &meta, payload, &digest);
}

/* Or leave it where it is, while there is no room for it. */
static void land(struct kv_remote *remote, struct kv_remote_get *get)
{
	struct kv_fill *fill;
	int r = -ESTALE;

	/* Of another owner now: these blocks are not his. */
	if (user_of(remote->cache, get->space) == get->uid)
		r = kv_fill_begin(remote->cache, get->space, &get->key,
				  get->job.op.length, &fill);
	if ((r == -EBUSY || r == -ENOSPC || r == -EAGAIN) &&
	    kv_now_ns() - get->since_ns < ROOM_NS)
		return;
	TAILQ_REMOVE(&remote->landed, get, link);
	if (r == 0)
		r = seal(remote, get, fill);
	/* There by somebody else, or about to be, is as good. */
	if (r >= 0 || r == -EEXIST || r == -EALREADY)
		get_end(remote, get, true, 0);
	else
		get_end(remote, get, false, r == -EBADMSG ? DAMAGED_NS : 0);
}

static void land_all(struct kv_remote *remote)
{
	struct kv_remote_get *get, *next;

	for (get = TAILQ_FIRST(&remote->landed); get; get = next) {
		next = TAILQ_NEXT(get, link);
		land(remote, get);
	}
}

void kv_gets_run(struct kv_remote *remote)
{
	take_looks(remote);
	ask_some(remote);
	land_all(remote);
	begin_gets(remote);
}

bool kv_gets_busy(const struct kv_remote *remote)
{
	return !TAILQ_EMPTY(&remote->landed) || remote->fetches.n_busy > 0;
}

void kv_gets_stop(struct kv_remote *remote)
{
	struct kv_remote_look *look;
	struct kv_remote_get *get;
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
	while ((turn = kv_turns_next(&remote->fetches))) {
		get = TAILQ_FIRST(&((struct get_queue *)turn)->gets);
		dequeue(remote, get);
		get_end(remote, get, false, 0);
	}
	while ((get = TAILQ_FIRST(&remote->landed))) {
		TAILQ_REMOVE(&remote->landed, get, link);
		get_end(remote, get, false, 0);
	}
}
