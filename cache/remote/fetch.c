/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch.c - fetch missing blocks from the backend.
 *
 * The missing blocks of an acquire are a look: a set of gets, sent without a
 * HEAD before.  In a chain, blocks behind a missing one are useless: the first
 * miss ends the look, and a window limits the GETs in flight: remote_threshold,
 * and one more for each block that arrives, so it doubles in the time of a GET.
 * Of spaces without chains all blocks are requested.
 *
 * An object lands in memory of its own, within a budget.  Without its entry (backend.h)
 * the object is copied into a slot and hashed in one pass, and is sealed if key, length
 * and digest agree.
 *
 * OWNS      every look and every get; the table of absent and damaged objects.
 *
 * STATES    of a get:
 *              (new) -> QUEUED    kv_fetch_want_locked
 *             QUEUED -> GETTING   get_begin
 *            GETTING -> QUEUED    get_ended: there was no memory
 *            GETTING -> LANDED    get_ended: its bytes are here
 *             LANDED -> (sealed)  land: there was a slot
 *                any -> (missed)  it is absent, late or damaged
 *
 * INVARIANTS
 *   (1) A key of a space has at most one get in the table, with all wants for this
 *       key, of all acquires.
 *   (2) A get goes on if no want waits for it: the next acquire hits.
 *   (3) Memory for gets, abandoned ones included, is at most landing_max, or one
 *       get's; first gets of users may use four times as much.
 *   (4) Users take turns.  One whose GETs stall leaves a quarter of the memory, and of
 *       the number of GETs, to others.  First gets of users whose last GET was not
 *       prompt leave half of the memory for first gets to others.
 *   (5) A look has its gets that are QUEUED or GETTING, and lives until it has none.  Until
 *       then their bytes are charged to the user of the acquire, even after its end.
 *
 * LOCKING   cache->lock for the table of gets, their wants, a look that is being
 *           submitted, the list of fresh looks, and the table of absent objects.  A
 *           get's memory is the backend's while it is `lent`.  All else is the thread's.
 */
#include "cache/block/block.h"
#include "cache/core/table.h"
#include "cache/remote/tier.h"
#include "cache/ssd/ssd.h"
#include "common/rate.h"

#define GET_NS UINT64_C(10000000000)
#define QUEUE_NS UINT64_C(60000000000) /* longest time of a get in the queue */
#define ROOM_NS UINT64_C(1000000000)   /* longest wait of a get for a slot */
#define TICK_NS UINT64_C(10000000)     /* longest sleep while gets wait */
#define GETTING_MAX 42u /* most gets in flight; one user may have 31 */
#define TURN 4194304	/* bytes */
#define GUESS 65536u	/* estimated bytes of an object */

#define ABSENT_NS UINT64_C(1000000000) /* pause before GETs of absent objects */
#define DAMAGED_NS UINT64_C(10000000000)
#define ABSENT (1u << 14)
#define BUCKETS 65536u

/* A get: one block that is fetched. */
struct get {
	struct kv_remote_job job;    /* first: a job is cast to its get */
	struct kv_want *wants;	     /* cache->lock */
	LIST_ENTRY(get) bucket;	     /* cache->lock */
	struct kv_remote_look *look; /* NULL once the get LANDED or missed */
	size_t at;		     /* constant: index of the get in @look */
	struct kv_key key;	     /* constant */
	struct kv_space *space;	     /* constant; held */
	uint32_t uid;		     /* constant: uid of the space's owner */
	uint32_t forgets;	     /* constant: space->forgets at first */
	uint64_t hash;		     /* constant */
	uint64_t guess;		     /* estimated length; 0: GET not begun */
	struct user *user; /* user charged with @share; held; NULL: none */
	uint64_t share;	   /* share of landing_max, at least 1/GETTING_MAX */
	bool lent;	   /* the backend uses job.op.data */
	bool ended;	   /* free the get when the backend returns it */
	struct kv_object object; /* once LANDED */
	uint64_t since_ns;	 /* when the state became QUEUED or LANDED */
	TAILQ_ENTRY(get) link; /* entry in look->queued, or in fetch->landed */
};

TAILQ_HEAD(gets, get);
TAILQ_HEAD(looks, kv_remote_look);

/* A user's looks that may begin another get. */
struct user {
	struct kv_turn turn; /* first */
	struct looks looks;
};

/* A look: the missing blocks of one acquire. */
struct kv_remote_look {
	struct user *user;	    /* held; NULL: no get may begin now */
	struct kv_account *account; /* held; charged with @bytes of gets */
	uint64_t bytes;
	bool chain;
	struct gets queued; /* gets not begun, in the order of the keys */
	size_t n;      /* number of gets, without those that were cut off */
	size_t out;    /* number of gets in flight */
	size_t window; /* chain: most gets in flight */
	TAILQ_ENTRY(kv_remote_look) link; /* in fetch->fresh or user->looks */
};

struct absent {
	uint64_t hash, until_ns;
	bool damaged;
};

struct kv_fetch {
	LIST_HEAD(, get) gets[BUCKETS]; /* cache->lock, as the next two */
	/* Newer entries replace older ones: at worst an object is requested
	 * once more, or is not put again. */
	struct absent absent[ABSENT];
	struct looks fresh;
	struct kv_turns users;
	struct gets landed;
	uint64_t landing_max, object_max; /* constant */
	struct kv_bucket bucket; /* bytes that remote_rate= allows now */
	struct kv_hash *hash;
};

static void user_init(struct kv_turn *turn)
{
	TAILQ_INIT(&((struct user *)turn)->looks);
}

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
	fetch->object_max =
		cache->arena.segment_bytes + KV_PAGE; /* the entry */
	r = kv_hash_new(&fetch->hash);
	if (r == 0)
		r = kv_turns_init(&fetch->users, sizeof(struct user), TURN,
				  user_init);
	return r;
}

void kv_fetch_fini(struct kv_remote *remote)
{
	if (!remote->fetch)
		return;
	kv_turns_fini(&remote->fetch->users);
	kv_hash_free(remote->fetch->hash);
	free(kv_steal(remote->fetch));
}

/* ---- objects known to be absent or damaged ---- */

/* Return the object's entry in the table; @make: replace another's. */
static struct absent *absent_of(struct kv_remote *remote, uint64_t hash,
				bool make)
{
	struct absent *absent = &remote->fetch->absent[hash % ABSENT];

	if (absent->hash != hash && make)
		*absent = (struct absent){.hash = hash};
	return absent->hash == hash ? absent : NULL;
}

void kv_fetch_present_locked(struct kv_remote *remote, uint64_t hash, bool put)
{
	struct absent *absent = absent_of(remote, hash, false);

	if (!absent)
		return;
	absent->until_ns = 0;
	absent->damaged &= !put;
}

bool kv_fetch_is_damaged_locked(struct kv_remote *remote, uint64_t hash)
{
	const struct absent *absent = absent_of(remote, hash, false);

	return absent && absent->damaged;
}

static struct get *get_find_locked(struct kv_remote *remote,
				   const struct kv_space *space,
				   const struct kv_key *key, uint64_t hash)
{
	struct get *get;

	LIST_FOREACH(get, &remote->fetch->gets[hash % BUCKETS], bucket)
		if (get->space == space && kv_key_equal(&get->key, key))
			break;
	return get;
}

/* Free the memory and the share of the get; with @all, also the get. */
static void get_release(struct kv_remote *remote, struct get *get, bool all)
{
	free(kv_steal(get->job.op.data));
	if (get->user)
		kv_turn_end(&remote->fetch->users, &kv_steal(get->user)->turn,
			    get->share);
	if (!all)
		return;
	kv_space_put(get->space);
	free(get);
}

/*
 * End @get: its wants restart if the block came (@status 0), else they miss, and the key
 * is not requested again for a while, unless @status is -EAGAIN.  The get is freed once
 * the backend does not use it.
 */
static void get_end_locked(struct kv_remote *remote, struct get *get,
			   int status)
{
	const bool lasts =
		status == -EBADMSG || status == -EFBIG || status == -EACCES;
	struct absent *absent;

	LIST_REMOVE(get, bucket);
	if (status < 0 && status != -EAGAIN) {
		absent = absent_of(remote, get->hash, true);
		absent->until_ns =
			kv_now_ns() + (lasts ? DAMAGED_NS : ABSENT_NS);
		absent->damaged |= status == -EBADMSG;
		remote->stats.damaged += status == -EBADMSG;
	}
	if (status == 0)
		kv_wants_restart_locked(remote->cache, &get->wants);
	else
		kv_wants_fail_locked(remote->cache, &get->wants, -ENOENT);
	get->ended = true;
	if (!get->lent)
		get_release(remote, get, true);
}

static void get_end(struct kv_remote *remote, struct get *get, int status)
{
	kv_lock(remote->cache);
	get_end_locked(remote, get, status);
	kv_unlock(remote->cache);
}

bool kv_fetch_may_locked(struct kv_cache *cache, struct kv_space *space,
			 const struct kv_key *key)
{
	const uint64_t hash = kv_key_hash(cache, space, key->b);
	const struct absent *absent = absent_of(cache->remote, hash, false);

	return cache->remote->running && !cache->config.read_only &&
	       space->shared && !space->forgetting &&
	       kv_remote_is_open(cache->remote, space->uid) &&
	       !kv_is_removed_locked(cache, space, key) &&
	       (!absent || kv_now_ns() >= absent->until_ns);
}

bool kv_fetch_is_coming_locked(struct kv_cache *cache, struct kv_space *space,
			       const struct kv_key *key)
{
	const struct get *get = get_find_locked(
		cache->remote, space, key, kv_key_hash(cache, space, key->b));

	return get && atomic_load(&get->job.op.progress) > 0;
}

int kv_fetch_want_locked(struct kv_cache *cache, struct kv_want *want)
{
	struct kv_acquire *acquire = want->acquire;
	struct kv_space *space = acquire->space;
	struct kv_remote *remote = cache->remote;
	struct kv_remote_look *look = acquire->look;
	const struct kv_layout *layout = space->layout;
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
		TAILQ_INIT(&look->queued);
		look->chain = !layout || layout->reuse == KV_REUSE_PREFIX;
		if (!space->object_bytes)
			space->object_bytes =
				layout ? kv_block_header_bytes(layout) +
						 layout->payload
				       : GUESS;
	}
	get = calloc(1, sizeof(*get));
	if (!get)
		return -ENOENT;
	*get = (struct get){
		.look = look,
		.at = look->n++,
		.key = want->key,
		.space = kv_space_get(space),
		.uid = space->uid,
		.forgets = space->forgets,
		.hash = hash,
		.since_ns = kv_now_ns(),
	};
	LIST_INSERT_HEAD(&remote->fetch->gets[hash % BUCKETS], get, bucket);
	TAILQ_INSERT_TAIL(&look->queued, get, link);
	kv_want_link(&get->wants, want);
	return -EINPROGRESS;
}

void kv_fetch_begin_locked(struct kv_cache *cache, struct kv_acquire *acquire)
{
	struct kv_remote_look *look = kv_steal(acquire->look);
	const size_t threshold = KV_MAX(cache->config.remote.threshold, 1u);
	struct get *get;

	kv_assert_locked(&cache->lock);
	if (!look)
		return;
	look->bytes = look->n * sizeof(*get);
	look->account = kv_account_get(cache->accounts, acquire->uid);
	/* Too few blocks of a chain are missing, or the user's memory is used. */
	if (!look->account || look->n == 0 ||
	    (look->chain && acquire->rest < threshold && !acquire->more) ||
	    kv_account_charge(look->account, KV_FINITE_MEMORY, look->bytes) <
		    0) {
		while ((get = TAILQ_FIRST(&look->queued))) {
			TAILQ_REMOVE(&look->queued, get, link);
			get_end_locked(cache->remote, get, -EAGAIN);
		}
		kv_account_put(look->account);
		free(look);
		return;
	}
	look->window = threshold;
	TAILQ_INSERT_TAIL(&cache->remote->fetch->fresh, look, link);
	kv_remote_wake(cache->remote);
}

/* ---- looks ---- */

/* End queued gets as misses: all, or those behind @failed, for the acquires that want it
 * too.  Gets that are in flight, or that another acquire wants, go on. */
static void look_cut(struct kv_remote *remote, struct kv_remote_look *look,
		     const struct get *failed)
{
	const size_t n = failed ? failed->at : 0;
	struct kv_want *missed = NULL, *want, *next;
	struct get *get, *before;

	kv_lock(remote->cache);
	look->n = KV_MIN(look->n, n);
	for (want = failed ? failed->wants : NULL; want; want = want->next)
		want->acquire->end = KV_MIN(want->acquire->end, want);
	for (get = TAILQ_LAST(&look->queued, gets); get && get->at >= n;
	     get = before) {
		before = TAILQ_PREV(get, gets, link);
		for (want = get->wants; want; want = next) {
			next = want->next;
			if (failed && want <= want->acquire->end)
				continue;
			kv_want_unlink(want);
			kv_want_link(&missed, want);
		}
		if (get->wants)
			continue;
		TAILQ_REMOVE(&look->queued, get, link);
		get_end_locked(remote, get, -EAGAIN);
	}
	kv_wants_fail_locked(remote->cache, &missed, -ENOENT);
	kv_unlock(remote->cache);
}

/* Let the look take turns while it may begin another get; free it once all gets
 * have ended. */
static void look_go_on(struct kv_remote *remote, struct kv_remote_look *look)
{
	struct kv_turns *turns = &remote->fetch->users;
	struct user *user = look->user;

	if (remote->stop)
		look_cut(remote, look, NULL);
	const bool may = !TAILQ_EMPTY(&look->queued) &&
			 (!look->chain || look->out < look->window);

	if (may && !user) {
		user = (struct user *)kv_turn_get(
			turns, kv_account_uid(look->account));
		look->user = user;
		TAILQ_INSERT_TAIL(&user->looks, look, link);
		kv_turn_start(turns, &user->turn);
	} else if (!may && user) {
		look->user = NULL;
		TAILQ_REMOVE(&user->looks, look, link);
		if (TAILQ_EMPTY(&user->looks))
			kv_turn_stop(turns, &user->turn);
		kv_turn_put(turns, &user->turn);
	}
	if (TAILQ_EMPTY(&look->queued) && look->out == 0) {
		kv_account_credit(look->account, KV_FINITE_MEMORY, look->bytes);
		kv_account_put(look->account);
		free(look);
	}
}

/* ---- gets ---- */

bool kv_fetch_is_wanted(struct kv_remote *remote,
			const struct kv_remote_job *job)
{
	bool wanted;

	kv_lock(remote->cache);
	wanted = job->op.call != KV_REMOTE_GET || ((struct get *)job)->wants;
	kv_unlock(remote->cache);
	return wanted;
}

static void get_given_back(struct kv_remote *remote, struct kv_remote_job *job)
{
	struct get *get = (struct get *)job;

	get->lent = false;
	if (get->ended || get->look)
		get_release(remote, get, get->ended);
}

static void get_ended(struct kv_remote *remote, struct kv_remote_job *job,
		      int status)
{
	struct get *get = (struct get *)job, *next;
	struct kv_remote_look *look = get->look;
	struct kv_fetch *fetch = remote->fetch;
	const uint64_t bytes = status == 0 ? job->op.length : 0;

	if (status == -EAGAIN && job->op.length > fetch->object_max)
		status = -EFBIG;
	look->out--;
	if (status == -EAGAIN &&
	    (get->at < look->n || kv_fetch_is_wanted(remote, job))) {
		get->space->object_bytes = job->op.length;
		fetch->bucket.credit += (double)get->guess;
		TAILQ_FOREACH(next, &look->queued, link)
			if (next->at > get->at)
				break;
		if (next)
			TAILQ_INSERT_BEFORE(next, get, link);
		else
			TAILQ_INSERT_TAIL(&look->queued, get, link);
		look_go_on(remote, look);
		return;
	}
	if (status == 0 &&
	    (kv_object_parse(job->op.data, bytes, &get->object) < 0 ||
	     !kv_key_equal(&get->object.entry.key, &get->key)))
		status = -EBADMSG;
	if (status == 0 || status == -ENOENT)
		fetch->bucket.credit += (double)get->guess - (double)bytes;
	if (bytes > get->guess)
		kv_turn_charge(&get->user->turn, bytes - get->guess);
	if (status < 0 && look->chain)
		look_cut(remote, look, get);
	get->look = NULL;
	if (status == 0) {
		get->space->object_bytes = bytes;
		look->window++;
		get->since_ns = kv_now_ns();
		TAILQ_INSERT_TAIL(&fetch->landed, get, link);
	} else {
		get_end(remote, get, status);
	}
	look_go_on(remote, look);
}

/* Begin the next get of @look in its user's turn.  False: none may begin. */
static bool get_begin(struct kv_remote *remote, struct kv_remote_look *look)
{
	struct kv_fetch *fetch = remote->fetch;
	const double rate = (double)remote->cache->config.remote.rate;
	const uint64_t max = fetch->landing_max;
	struct get *get = TAILQ_FIRST(&look->queued);
	/* An estimate, or the length, for which there was no memory. */
	const uint64_t bytes =
		KV_MAX(get->space->object_bytes, get->job.op.length);
	/* The entry of an object makes it longer than the block. */
	const uint64_t share = KV_MAX(bytes + KV_PAGE, max / GETTING_MAX);
	struct kv_turn *turn = &look->user->turn;

	if (!kv_remote_is_open(remote, get->uid) ||
	    kv_now_ns() - get->since_ns > QUEUE_NS) {
		look_cut(remote, look, NULL);
		look_go_on(remote, look);
		return true;
	}
	if ((rate > 0 && !kv_bucket_fill(&fetch->bucket, rate, rate)) ||
	    !kv_turn_may(&fetch->users, turn, max, share) ||
	    (turn->out == 0 && fetch->users.out > 2 * max &&
	     !kv_breaker_of(remote, get->uid)->prompt))
		return false;
	kv_turn_begin(&fetch->users, turn, share);
	fetch->bucket.credit -= (double)bytes;
	kv_turn_charge(turn, bytes);
	get->guess = bytes;
	get->share = share;
	get->user = look->user;
	TAILQ_REMOVE(&look->queued, get, link);
	look->out++;
	get->lent = true;
	get->job = (struct kv_remote_job){
		.op = {.call = KV_REMOTE_GET,
		       .max = KV_MIN(share, fetch->object_max)},
		.uid = get->uid,
		.ended = get_ended,
		.given_back = get_given_back,
	};
	kv_remote_name(remote, &get->job, get->space, &get->key);
	kv_remote_submit(remote, &get->job, GET_NS);
	look_go_on(remote, look);
	return true;
}

/* Copy the bytes without the entry into a slot and seal it, if the digest agrees, unless
 * it must wait for a slot. */
static void land(struct kv_remote *remote, struct get *get)
{
	struct kv_cache *cache = remote->cache;
	struct kv_hash *hash = remote->fetch->hash;
	const struct kv_object_entry *entry = &get->object.entry;
	uint64_t length, payload;
	struct kv_digest digest;
	struct kv_fill *fill;
	struct kv_meta meta;
	int r = -ESTALE;

	if (!remote->stop)
		r = kv_fill_begin(cache, get->space, &get->key, entry->length,
				  &fill);
	if ((r == -EBUSY || r == -ENOSPC || r == -EAGAIN) &&
	    kv_now_ns() - get->since_ns < ROOM_NS)
		return;
	TAILQ_REMOVE(&remote->fetch->landed, get, link);
	if (r == 0) {
		uint8_t *data = kv_fill_data(fill);

		fill->fetched = true;
		fill->forgets = get->forgets;
		kv_hash_begin(hash);
		kv_object_copy(&get->object, get->job.op.data,
			       get->job.op.length, hash, data);
		digest = kv_hash_end(hash);
		r = memcmp(&digest, &entry->digest, sizeof(digest)) != 0
			    ? -EBADMSG
			    : kv_block_parse(data, entry->length, fill->layout,
					     &length, &payload, &meta);
		if (r != -ENOMEM && (r < 0 || length != entry->length))
			r = -EBADMSG;
		if (r < 0)
			kv_fill_drop(cache, fill);
	}
	if (r == 0) {
		if (!meta.parent.len)
			meta.parent = entry->parent;
		meta.mtime_ns = kv_wall_ns();
		r = kv_fill_seal(cache, fill, &get->key, &meta, payload,
				 &digest);
	}
	/* -EEXIST, -EALREADY: another client has saved the block, or will. */
	if (r >= 0 || r == -EEXIST || r == -EALREADY)
		r = 0;
	else if (r != -EBADMSG && r != -EFBIG)
		r = -EAGAIN; /* the object itself may be good */
	get_end(remote, get, r);
}

/* ---- the thread ---- */

uint64_t kv_fetch_run(struct kv_remote *remote)
{
	struct kv_cache *cache = remote->cache;
	struct kv_fetch *fetch = remote->fetch;
	struct looks fresh = TAILQ_HEAD_INITIALIZER(fresh);
	struct kv_remote_look *look;
	struct get *get, *next;
	struct kv_turn *turn;
	size_t passed = 0; /* users in a row whose turns began no get */

	for (get = TAILQ_FIRST(&fetch->landed); get; get = next) {
		next = TAILQ_NEXT(get, link);
		land(remote, get);
	}
	kv_lock(cache);
	TAILQ_CONCAT(&fresh, &fetch->fresh, link);
	kv_unlock(cache);
	while ((look = TAILQ_FIRST(&fresh))) {
		TAILQ_REMOVE(&fresh, look, link);
		look_go_on(remote, look);
	}
	while (passed < fetch->users.n_busy &&
	       (turn = kv_turns_next(&fetch->users))) {
		passed++;
		if (get_begin(remote,
			      TAILQ_FIRST(&((struct user *)turn)->looks)))
			passed = 0;
		else
			kv_turns_yield(&fetch->users);
	}
	return !TAILQ_EMPTY(&fetch->landed) || fetch->users.n_busy > 0
		       ? kv_now_ns() + TICK_NS
		       : UINT64_MAX;
}
