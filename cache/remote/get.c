/* SPDX-License-Identifier: Apache-2.0 */
/*
 * get.c - blocks that are brought from a backend.
 *
 * Each begins as part of a look (look.c).  What that finds, and is worth it, or
 * takes for granted, is fetched in chain order, within a budget of memory and a
 * rate; it lands in memory of its own, is copied and hashed into a slot in one pass, and sealed
 * if key, length and digest agree.
 *
 * OWNS      every kv_remote_get.
 *
 * STATES    of a get:
 *              (new) -> LOOKING   somebody wants it
 *            LOOKING -> QUEUED    it is there, and worth it; what is taken to
 *                                 be there stays LOOKING until it LANDED
 *             QUEUED -> GETTING   there is memory, and rate, for it
 *            GETTING -> LANDED    its bytes are here
 *             LANDED -> (sealed)  there was a slot for it
 *                any -> (missed)  it is not there, not in time, damaged
 *
 * INVARIANTS
 *   (1) Of a key of a space there is one get in the table; it has all wants
 *       that wait for it, of whatever acquire.
 *   (2) What nobody waits for any more still comes: the next one hits.
 *   (3) Memory for gets, that of abandoned ones included, is at most
 *       landing_max, or one get's.
 *   (4) Users take turns: who fetches very much keeps nobody from a little, nor
 *       when nothing of it comes.
 *
 * LOCKING   cache->lock for the table and the wants; all else is the thread's.
 */
#include "cache/block/block.h"
#include "cache/core/table.h"
#include "cache/core/turns.h"
#include "cache/remote/tier.h"
#include "cache/ssd/ssd.h"
#include "common/copy.h"

#define GET_NS UINT64_C(10000000000)
#define QUEUE_NS UINT64_C(60000000000) /* that long it may wait to begin */
#define ROOM_NS UINT64_C(1000000000)   /* and that long for a slot */
#define GETTING_MAX \
	42u /* of one user 32, so that there is something for others */
#define SHARES 1048576u	   /* of all that gets may have */
#define FETCH_TURN 4194304 /* bytes */

struct get_queue {
	struct kv_turn turn; /* first */
	struct kv_remote_gets gets;
};

static void init_gets(struct kv_turn *turn)
{
	TAILQ_INIT(&((struct get_queue *)turn)->gets);
}

int kv_gets_init(struct kv_remote *remote)
{
	return kv_turns_init(&remote->fetches, sizeof(struct get_queue),
			     FETCH_TURN, init_gets);
}

void kv_gets_fini(struct kv_remote *remote)
{
	kv_turns_fini(&remote->fetches);
}

/* ---- the table ---- */

static struct kv_remote_get **bucket_of(struct kv_remote *remote, uint64_t hash)
{
	return &remote->gets[hash % GET_BUCKETS];
}

struct kv_remote_get *kv_get_find_locked(struct kv_remote *remote,
					 const struct kv_space *space,
					 const struct kv_key *key,
					 uint64_t hash)
{
	struct kv_remote_get *get = *bucket_of(remote, hash);

	kv_assert_locked(&remote->cache->lock);
	while (get && (get->space != space || !kv_key_equal(&get->key, key)))
		get = get->bucket;
	return get;
}

/* The memory that it was to land in, and its share, are others' again. */
static void release(struct kv_remote *remote, struct kv_remote_get *get)
{
	if (get->job.op.data)
		remote->landing -= get->job.op.room;
	free(kv_steal(get->job.op.data));
	if (get->share)
		kv_turn_end(&remote->fetches, kv_steal(get->turn), get->share);
	get->share = 0;
}

static void get_free(struct kv_remote *remote, struct kv_remote_get *get)
{
	release(remote, get);
	kv_space_put(get->space);
	free(get);
}

/* What was abandoned is the get's again. */
static void given_back(struct kv_remote *remote, struct kv_remote_job *job)
{
	struct kv_remote_get *get = (struct kv_remote_get *)job;

	if (get->ended)
		get_free(remote, get);
	else
		release(remote, get);
}

struct kv_remote_get *kv_get_new_locked(struct kv_remote *remote,
					struct kv_space *space,
					const struct kv_key *key, uint64_t hash)
{
	struct kv_remote_get *get = calloc(1, sizeof(*get));

	kv_assert_locked(&remote->cache->lock);
	if (!get)
		return NULL;
	get->key = *key;
	get->hash = hash;
	get->space = kv_space_get(space);
	get->uid = space->uid;
	get->job.given_back = given_back;
	get->bucket = *bucket_of(remote, hash);
	*bucket_of(remote, hash) = get;
	return get;
}

static void leave_locked(struct kv_remote *remote, struct kv_remote_get *get)
{
	struct kv_remote_get **link = bucket_of(remote, get->hash);

	while (*link != get)
		link = &(*link)->bucket;
	*link = get->bucket;
}

void kv_get_forget_locked(struct kv_remote *remote, struct kv_remote_get *get)
{
	leave_locked(remote, get);
	kv_wants_miss_locked(remote->cache, &get->wants);
	get_free(remote, get);
}

void kv_get_end(struct kv_remote *remote, struct kv_remote_get *get, bool came,
		uint64_t shun_ns)
{
	struct kv_cache *cache = remote->cache;
	bool under_way = get->job.abandoned;

	kv_lock(cache);
	leave_locked(remote, get);
	if (shun_ns)
		kv_shun(remote->shunned, get->hash, kv_now_ns() + shun_ns);
	if (came)
		kv_wants_restart_locked(cache, &get->wants);
	else
		kv_wants_miss_locked(cache, &get->wants);
	kv_unlock(cache);
	get->ended = true;
	if (!under_way)
		get_free(remote, get);
}

bool kv_get_may_locked(struct kv_cache *cache, struct kv_space *space,
		       const struct kv_key *key)
{
	struct kv_remote *remote = cache->remote;

	kv_assert_locked(&cache->lock);
	return remote->running && !cache->config.read_only && space->shared &&
	       !kv_is_removed_locked(cache, space, key) &&
	       !kv_is_shunned(remote->shunned,
			      kv_key_hash(cache, space, key->b));
}

bool kv_get_is_coming_locked(struct kv_cache *cache, struct kv_space *space,
			     const struct kv_key *key)
{
	const struct kv_remote_get *get;

	kv_assert_locked(&cache->lock);
	if (!space->shared)
		return false;
	get = kv_get_find_locked(cache->remote, space, key,
				 kv_key_hash(cache, space, key->b));
	return get && get->state > GET_LOOKING;
}

/* ---- getting ---- */

/* It waits for its user's turn. */
void kv_get_fetch(struct kv_remote *remote, struct kv_remote_get *get)
{
	struct kv_cache *cache = remote->cache;

	get->queue =
		(struct get_queue *)kv_turn_get(&remote->fetches, get->asker);
	kv_lock(cache);
	get->state = get->look ? GET_LOOKING : GET_QUEUED;
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

/* It will not come; what is a look's goes back to that. */
static void failed(struct kv_remote *remote, struct kv_remote_get *get,
		   int status, uint64_t shun_ns)
{
	if (get->look)
		kv_look_fetched(remote, get, status);
	else
		kv_get_end(remote, get, false, shun_ns);
}

static void came(struct kv_remote *remote, struct kv_remote_job *job,
		 int status)
{
	struct kv_remote_get *get = (struct kv_remote_get *)job;

	remote->getting--;
	if (status == -ENOENT)
		remote->credit += (double)job->op.room;
	if (status == -EBADMSG) {
		kv_lock(remote->cache);
		kv_damaged(remote->shunned, get->hash, job->backend);
		kv_unlock(remote->cache);
	}
	if (status < 0) {
		if (!job->abandoned)
			release(remote, get);
		failed(remote, get, status,
		       status == -EBADMSG || status == -EFBIG ? KV_DAMAGED_NS
							      : KV_ABSENT_NS);
		return;
	}
	if (get->look)
		kv_look_fetched(remote, get, 0);
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

/* Of the number that there may be, or of the memory, whichever is more. */
static uint64_t share_of(const struct kv_remote *remote, uint64_t bytes)
{
	const double part =
		(double)bytes / (double)KV_MAX(remote->landing_max, 1u);

	return KV_MAX((uint64_t)(KV_MIN(part, 1.0) * SHARES),
		      SHARES / GETTING_MAX);
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
	op->noted = !get->look;
	remote->landing += op->room;
	remote->getting++;
	get->turn = &get->queue->turn;
	get->share = share_of(remote, op->length);
	kv_turn_begin(&remote->fetches, get->turn, get->share);
	kv_lock(remote->cache);
	get->state = get->look ? GET_LOOKING : GET_GETTING;
	kv_unlock(remote->cache);
	get->job.ended = came;
	kv_remote_submit(remote, &get->job, GET_NS);
	return 1;
}

static void begin_gets(struct kv_remote *remote)
{
	struct kv_turn *turn;
	int r = 1;

	while (r != 0 &&
	       (turn = kv_turns_next_within(&remote->fetches, SHARES))) {
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
			failed(remote, get, r, r == -EFBIG ? KV_DAMAGED_NS : 0);
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

	kv_fill_fetched(fill);
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
		kv_damaged(remote->shunned, get->hash, get->job.backend);
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
	if (kv_remote_user(remote->cache, get->space) == get->uid)
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
		kv_get_end(remote, get, true, 0);
	else
		kv_get_end(remote, get, false,
			   r == -EBADMSG ? KV_DAMAGED_NS : 0);
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
	land_all(remote);
	begin_gets(remote);
}

bool kv_gets_busy(const struct kv_remote *remote)
{
	return !TAILQ_EMPTY(&remote->landed) || remote->fetches.n_busy > 0;
}

void kv_gets_stop(struct kv_remote *remote)
{
	struct kv_remote_get *get;
	struct kv_turn *turn;

	while ((turn = kv_turns_next(&remote->fetches))) {
		get = TAILQ_FIRST(&((struct get_queue *)turn)->gets);
		dequeue(remote, get);
		failed(remote, get, -ECANCELED, 0);
	}
	while ((get = TAILQ_FIRST(&remote->landed))) {
		TAILQ_REMOVE(&remote->landed, get, link);
		kv_get_end(remote, get, false, 0);
	}
}
