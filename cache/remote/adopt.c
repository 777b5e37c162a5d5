/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adopt.c - one seed for a space that several nodes make: that of the first.
 *
 * A layout without a seed gets a random one, and keys begin with the seed: nodes
 * would never find each other's blocks.  So the first node puts its layout beside
 * the space's blocks, as .layout, and the others take the seed from there.
 *
 * OWNS      struct ask, until its caller and the backend have both done with it.
 *
 * LOCKING   cache->lock for what the caller and the thread share of an ask.
 */
#include "cache/remote/tier.h"
#include "common/copy.h"

#include <jansson.h>
#include <stdio.h>

/* All of it: whoever opens a space waits for this. */
#define PATIENCE_NS UINT64_C(600000000)
#define LOOK_NS UINT64_C(100000000) /* a note comes after its object */
#define OBJECT ".layout"

/* An operation that its caller waits for. */
struct ask {
	struct kv_remote_job job; /* first; the thread's */
	char bytes[KV_LAYOUT_TEXT_MAX];
	uint64_t until_ns;
	/* cache->lock, with the next: when it is over the caller may go on,
	 * though a backend that is late has the operation still. */
	int status;
	bool over, late,
		left; /* left: the caller is gone, it is the thread's */
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

	kv_lock(remote->cache);
	ask->status = status;
	ask->over = true;
	ask->late = job->abandoned;
	pthread_cond_broadcast(&remote->answer);
	kv_unlock(remote->cache);
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
		if (kv_remote_is_open(remote, ask->job.backend) &&
		    kv_now_ns() < ask->until_ns)
			kv_remote_submit(remote, &ask->job,
					 ask->until_ns - kv_now_ns());
		else
			ended(remote, &ask->job, -ETIMEDOUT);
	}
}

/*
 * Have the thread do it, and wait: its status, which comes in the time of an
 * operation.  Where that was 0 *@ret_ask is for the caller to free.
 */
static int wait_for(struct kv_remote *remote, struct ask *ask,
		    struct ask **ret_ask)
{
	struct kv_cache *cache = remote->cache;
	bool left;
	int r;

	ask->job.ended = ended;
	ask->job.given_back = given_back;
	kv_lock(cache);
	TAILQ_INSERT_TAIL(&remote->asks, ask, link);
	kv_remote_wake(remote);
	while (!ask->over)
		kv_cond_wait(cache, &remote->answer, PATIENCE_NS);
	r = ask->status;
	left = ask->left = ask->late;
	kv_unlock(cache);
	if (r == 0)
		*ret_ask = ask;
	else if (!left)
		free(ask);
	return r;
}

/* Where a space's layout is to be agreed upon, and until when. */
struct place {
	unsigned backend;
	uint64_t until_ns;
	char prefix[KV_REMOTE_PREFIX_MAX + 1];
};

static struct ask *new_ask(const struct place *place, enum kv_remote_call call)
{
	struct ask *ask = calloc(1, sizeof(*ask));

	if (!ask)
		return NULL;
	ask->job.backend = place->backend;
	ask->until_ns = place->until_ns;
	ask->job.op.call = call;
	snprintf(ask->job.op.name, sizeof(ask->job.op.name), "%s" OBJECT,
		 place->prefix);
	ask->job.op.data = (uint8_t *)ask->bytes;
	ask->job.op.room = sizeof(ask->bytes);
	return ask;
}

/* The layout that is there, which may be anything. */
static int fetch(struct kv_remote *remote, const struct place *place,
		 struct kv_layout **ret_layout)
{
	struct ask *ask = new_ask(place, KV_REMOTE_GET);
	struct kv_digest digest;
	int r = ask ? wait_for(remote, ask, &ask) : -ENOMEM;

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
	struct ask *ask = new_ask(place, KV_REMOTE_PUBLISH);
	const size_t n = strlen(layout->json);
	int r;

	if (!ask || n > sizeof(ask->bytes)) {
		free(ask);
		return -ENOMEM;
	}
	memcpy(ask->bytes, layout->json, n);
	ask->job.op.length = n;
	ask->job.op.digest = kv_digest_of(ask->bytes, n);
	r = wait_for(remote, ask, &ask);
	if (r == 0)
		free(ask);
	return r;
}

/* The text of @layout with the seed of @first; caller frees. */
static char *with_seed(const struct kv_layout *layout,
		       const struct kv_layout *first)
{
	json_t *json = json_loads(layout->json, 0, NULL);
	char seed[17], *text = NULL;

	snprintf(seed, sizeof(seed), "%016llx",
		 (unsigned long long)first->seed);
	if (json && json_object_set_new(json, "seed", json_string(seed)) == 0)
		text = json_dumps(json, 0);
	json_decref(json);
	return text;
}

static int take_seed(struct kv_layout **layout, const struct kv_layout *first)
{
	_cleanup_(kv_freep) char *text = with_seed(*layout, first);
	struct kv_layout *seeded;
	int r = text ? kv_layout_parse(text, strlen(text), &seeded) : -ENOMEM;

	if (r < 0)
		return r;
	kv_layout_free(*layout);
	*layout = seeded;
	return 0;
}

/* 0: agreed with this backend; else it cannot be asked, or is at fault. */
static int agree(struct kv_remote *remote, const struct place *place,
		 struct kv_layout **layout)
{
	_cleanup_(kv_layout_freep) struct kv_layout *first = NULL;
	int r = fetch(remote, place, &first);

	if (r == -ENOENT) {
		r = publish(remote, place, *layout);
		if (r != -EEXIST)
			return r;
		while (r < 0 && r != -ETIMEDOUT && r != -ENOMEM) {
			usleep(LOOK_NS / 1000);
			r = fetch(remote, place, &first);
		}
	}
	return r < 0 ? r : take_seed(layout, first);
}

int kv_remote_agree(struct kv_cache *cache, struct kv_space *space,
		    struct kv_layout **layout)
{
	struct kv_remote *remote = cache->remote;
	struct place place = {.until_ns = kv_now_ns() + PATIENCE_NS};
	int r;

	if (!remote || !remote->running)
		return -ENOTCONN;
	r = kv_remote_prefix_of(cache, space, (*layout)->json, place.prefix);
	if (r < 0)
		return r;
	for (r = -ENOTCONN; place.backend < remote->n; place.backend++) {
		r = agree(remote, &place, layout);
		if (r == 0 || r == -ENOMEM)
			break;
	}
	return r;
}

bool kv_remote_answers(struct kv_cache *cache)
{
	struct kv_remote *remote = cache->remote;
	bool any = false;

	kv_lock(cache);
	for (unsigned i = 0; remote && remote->running && i < remote->n; i++)
		any |= remote->backends[i].stats.open;
	kv_unlock(cache);
	return any;
}

static bool wants_seed(struct kv_cache *cache, const struct kv_space *space,
		       const struct kv_layout *layout)
{
	bool shared;

	kv_lock(cache);
	shared = space->shared || layout->share;
	kv_unlock(cache);
	return shared && layout->seed_drawn && cache->remote &&
	       cache->remote->running;
}

int kv_remote_adopt(struct kv_cache *cache, struct kv_space *space,
		    struct kv_layout **layout)
{
	int r;

	if (!wants_seed(cache, space, *layout))
		return 1;
	r = kv_remote_agree(cache, space, layout);
	if (r == 0 || r == -ENOMEM)
		return r;
	fprintf(stderr,
		"kvfs: warning: space %u: no backend tells which seed other "
		"nodes have (%s): keys that libkvfs makes will be its own, "
		"until one does\n",
		space->id, strerror(-r));
	return 1;
}
