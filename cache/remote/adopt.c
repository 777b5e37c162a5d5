/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adopt.c - agree with other nodes on the seed of a shared space.
 *
 * A layout without a seed gets a random one.  As keys begin with the seed, nodes would
 * never find each other's blocks.  So the first node puts its layout beside the blocks
 * of the space, as .layout, and the other nodes take the seed from there.
 *
 * A client that opens a space waits a short time for the first backend that answers.
 * The operation goes on after that.  A thread on which no client waits asks all
 * backends (space/agree.c).
 *
 * OWNS      struct ask, until both its caller and the backend are done with it.
 *
 * LOCKING   cache->lock for the fields of an ask that caller and remote thread share.
 */
#include "cache/remote/tier.h"
#include "common/copy.h"

#include <jansson.h>
#include <stdio.h>

#define OPEN_NS UINT64_C(600000000)    /* all backends, while a client waits */
#define AGREE_NS UINT64_C(10000000000) /* each backend, else */
/* Deadlines of operations, however long their callers wait. */
#define GET_NS UINT64_C(2000000000)
#define PUBLISH_NS UINT64_C(30000000000)
#define NOTE_US 100000 /* the note is put after its object */
#define NOTE_LOOKS 5
#define OBJECT ".layout"

/* An operation on which a caller waits. */
struct ask {
	struct kv_remote_job job; /* first; the thread's */
	char bytes[KV_LAYOUT_TEXT_MAX];
	uint64_t ns; /* deadline of the operation */
	/* cache->lock: */
	int status;
	bool over; /* the caller may go on */
	bool late; /* a backend still has the operation */
	bool left; /* the caller is gone: the thread frees it */
	TAILQ_ENTRY(ask) link;
};

static void given_back(struct kv_remote *remote, struct kv_remote_job *job)
{
	struct ask *ask = (struct ask *)job;
	bool left;

	kv_lock(remote->cache);
	ask->late = false;
	left = ask->left;
	kv_unlock(remote->cache);
	if (left)
		free(ask);
}

static void ended(struct kv_remote *remote, struct kv_remote_job *job,
		  int status)
{
	struct ask *ask = (struct ask *)job;
	bool left;

	kv_lock(remote->cache);
	ask->status = status;
	ask->over = true;
	ask->late = job->abandoned;
	left = ask->left && !ask->late;
	pthread_cond_broadcast(&remote->answer);
	kv_unlock(remote->cache);
	if (left)
		free(ask);
}

void kv_asks_run(struct kv_remote *remote)
{
	struct kv_cache *cache = remote->cache;
	struct ask *ask;

	for (;;) {
		kv_lock(cache);
		ask = TAILQ_FIRST(&remote->asks);
		if (ask)
			TAILQ_REMOVE(&remote->asks, ask, link);
		kv_unlock(cache);
		if (!ask)
			return;
		if (kv_remote_is_open(remote, ask->job.backend))
			kv_remote_submit(remote, &ask->job, ask->ns);
		else
			ended(remote, &ask->job, -ETIMEDOUT);
	}
}

/* The backend and prefix of a space's layout, and the caller's deadline. */
struct place {
	unsigned backend;
	uint64_t until_ns;
	char prefix[KV_REMOTE_PREFIX_MAX + 1];
};

static uint64_t time_left(const struct kv_remote *remote,
			  const struct place *place)
{
	const uint64_t now = kv_now_ns();

	return remote->hurry || now >= place->until_ns ? 0
						       : place->until_ns - now;
}

/*
 * Have the thread run @ask, and wait.  Returns its status, or -ETIMEDOUT: it may go
 * on.  With 0 the caller frees *@ret_ask.
 */
static int wait_for(struct kv_remote *remote, const struct place *place,
		    struct ask *ask, struct ask **ret_ask)
{
	struct kv_cache *cache = remote->cache;
	bool left = false;
	uint64_t ns;
	int r = -ETIMEDOUT;

	ask->job.ended = ended;
	ask->job.given_back = given_back;
	kv_lock(cache);
	if (time_left(remote, place) > 0) {
		TAILQ_INSERT_TAIL(&remote->asks, ask, link);
		kv_remote_wake(remote);
		while (!ask->over && (ns = time_left(remote, place)) > 0)
			kv_cond_wait(cache, &remote->answer, ns);
		left = ask->left = !ask->over || ask->late;
		r = ask->over ? ask->status : -ETIMEDOUT;
	}
	kv_unlock(cache);
	if (r == 0)
		*ret_ask = ask;
	else if (!left)
		free(ask);
	return r;
}

void kv_remote_hurry(struct kv_cache *cache)
{
	kv_lock(cache);
	if (cache->remote) {
		cache->remote->hurry = true;
		pthread_cond_broadcast(&cache->remote->answer);
	}
	kv_unlock(cache);
}

static struct ask *new_ask(const struct kv_remote *remote,
			   const struct place *place, enum kv_remote_call call)
{
	struct ask *ask = calloc(1, sizeof(*ask));

	if (!ask)
		return NULL;
	ask->job.backend = place->backend;
	ask->ns = KV_MAX(call == KV_REMOTE_PUBLISH ? PUBLISH_NS : GET_NS,
			 time_left(remote, place));
	ask->job.op.call = call;
	snprintf(ask->job.op.name, sizeof(ask->job.op.name), "%s" OBJECT,
		 place->prefix);
	ask->job.op.data = (uint8_t *)ask->bytes;
	ask->job.op.room = sizeof(ask->bytes);
	return ask;
}

/* Fetch the layout that the backend has. */
static int fetch(struct kv_remote *remote, const struct place *place,
		 struct kv_layout **ret_layout)
{
	struct ask *ask = new_ask(remote, place, KV_REMOTE_GET);
	struct kv_digest digest;
	int r = ask ? wait_for(remote, place, ask, &ask) : -ENOMEM;

	if (r < 0)
		return r;
	digest = kv_digest_of(ask->bytes, ask->job.op.length);
	r = memcmp(&digest, &ask->job.op.digest, sizeof(digest))
		    ? -EBADMSG
		    : kv_layout_parse(ask->bytes, ask->job.op.length,
				      ret_layout);
	free(ask);
	return r == -EINVAL ? -EBADMSG : r;
}

static int publish(struct kv_remote *remote, const struct place *place,
		   const struct kv_layout *layout)
{
	struct ask *ask = new_ask(remote, place, KV_REMOTE_PUBLISH);
	const size_t n = strlen(layout->json);
	int r;

	if (!ask || n > sizeof(ask->bytes)) {
		free(ask);
		return -ENOMEM;
	}
	memcpy(ask->bytes, layout->json, n);
	ask->job.op.length = n;
	ask->job.op.digest = kv_digest_of(ask->bytes, n);
	r = wait_for(remote, place, ask, &ask);
	if (r == 0)
		free(ask);
	return r;
}

/* Replace *@layout by the same one with the seed of @first. */
static int take_seed(struct kv_layout **layout, const struct kv_layout *first)
{
	_cleanup_(kv_freep) char *text = NULL;
	json_t *json = json_loads((*layout)->json, 0, NULL);
	struct kv_layout *seeded;
	char seed[17];
	int r;

	snprintf(seed, sizeof(seed), "%016llx",
		 (unsigned long long)first->seed);
	if (json && json_object_set_new(json, "seed", json_string(seed)) == 0)
		text = json_dumps(json, 0);
	json_decref(json);
	r = text ? kv_layout_parse(text, strlen(text), &seeded) : -ENOMEM;
	if (r < 0)
		return r;
	kv_layout_free(*layout);
	*layout = seeded;
	return 0;
}

/*
 * Fetch the layout that a backend has, as *@ret_there (caller frees), or, leaving it
 * NULL, publish @layout there.  With @again, publish first: an attempt before may have
 * left an object without a note.
 */
static int agree(struct kv_remote *remote, const struct place *place,
		 const struct kv_layout *layout, bool again,
		 struct kv_layout **ret_there)
{
	int r = again ? -ENOENT : fetch(remote, place, ret_there), published;

	if (r != -ENOENT)
		return r;
	published = publish(remote, place, layout);
	for (unsigned i = 0; r < 0 && published < 0 && i < NOTE_LOOKS; i++) {
		if (i > 0 && published != -EEXIST)
			break;
		if (i > 0)
			usleep(NOTE_US);
		r = fetch(remote, place, ret_there);
	}
	return r < 0 && published != -EEXIST ? published : r;
}

static int prefix_of(struct kv_cache *cache, struct kv_space *space,
		     const struct kv_layout *layout, struct place *place)
{
	if (!cache->remote || !cache->remote->running)
		return -ENOTCONN;
	return kv_remote_prefix_of(cache, space, layout->json, place->prefix);
}

/* Agree on the layout with the first backend that answers; *@ret_untold: the others. */
static int agree_in_time(struct kv_cache *cache, struct kv_space *space,
			 struct kv_layout **layout, uint32_t *ret_untold)
{
	_cleanup_(kv_layout_freep) struct kv_layout *there = NULL;
	struct place place = {.until_ns = kv_now_ns() + OPEN_NS};
	struct kv_remote *remote = cache->remote;
	int r = prefix_of(cache, space, *layout, &place);

	if (r < 0)
		return r;
	for (r = -ENOTCONN; place.backend < remote->n; place.backend++) {
		r = agree(remote, &place, *layout, false, &there);
		if (r == 0 || r == -ENOMEM)
			break;
	}
	if (r == 0 && there)
		r = take_seed(layout, there);
	if (r == 0)
		*ret_untold = ((1u << remote->n) - 1) & ~(1u << place.backend);
	return r;
}

int kv_remote_agree(struct kv_cache *cache, struct kv_space *space, bool again,
		    struct kv_layout **layout, struct kv_agreement *ret)
{
	struct kv_remote *remote = cache->remote;
	struct place place = {0};
	int r = prefix_of(cache, space, *layout, &place);

	*ret = (struct kv_agreement){0};
	if (r < 0)
		return r;
	for (r = -ENOTCONN; place.backend < remote->n; place.backend++) {
		_cleanup_(kv_layout_freep) struct kv_layout *there = NULL;
		const char *url = remote->backends[place.backend].url;

		place.until_ns = kv_now_ns() + AGREE_NS;
		r = agree(remote, &place, *layout, again, &there);
		if (r == 0 && there && !ret->first)
			r = take_seed(layout, there);
		if (r < 0)
			ret->untold |= 1u << place.backend;
		else if (!ret->first)
			ret->first = url;
		else if (there && there->seed != (*layout)->seed)
			ret->other = url;
	}
	return ret->first ? 0 : r;
}

uint32_t kv_remote_answering(struct kv_cache *cache)
{
	struct kv_remote *remote = cache->remote;
	uint32_t backends = 0;

	kv_lock(cache);
	for (unsigned i = 0; remote && remote->running && i < remote->n; i++)
		if (remote->backends[i].stats.open)
			backends |= 1u << i;
	kv_unlock(cache);
	return backends;
}

int kv_remote_adopt(struct kv_cache *cache, struct kv_space *space,
		    struct kv_layout **layout, uint32_t *ret_untold)
{
	bool shared;
	int r;

	*ret_untold = KV_ALL_BACKENDS;
	kv_lock(cache);
	shared = space->shared || (*layout)->share;
	kv_unlock(cache);
	if (!shared || !(*layout)->seed_drawn || !cache->remote ||
	    !cache->remote->running)
		return 1;
	r = agree_in_time(cache, space, layout, ret_untold);
	if (r == 0 || r == -ENOMEM)
		return r;
	fprintf(stderr,
		"kvfs: warning: space %u: no backend tells which seed other "
		"nodes have (%s): keys that libkvfs makes will be its own, "
		"until one does\n",
		space->id, strerror(-r));
	return 1;
}
