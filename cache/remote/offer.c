/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offer.c - what is durable of a shared space, and was not handed over, is offered to
 * the backends: all of it, as nobody knows which blocks that are.
 *
 * It is so when a space is shared, or is at mount, and when a block of it could not be
 * handed over.  A walk goes through the space for one backend, a page of keys at a
 * time, which wait in its user's queue (backup.c) behind what is new.  The next page
 * comes when this one is over; so it goes on from there when a backend that failed is
 * asked again.
 *
 * OWNS      every kv_offer: such a walk.
 *
 * STATES    of an offer:
 *              (new) -> LATER    kv_offer_again_locked
 *              LATER -> DUE      look_locked: its time has come, its backend is asked
 *                DUE -> OUT      put_page
 *                OUT -> DUE      page_over_locked: the next page
 *           DUE, OUT -> LATER    kv_offers_run, page_over_locked: not now
 *         LATER, DUE -> (over)   kv_offers_run: its space is not shared any more
 *                OUT -> (over)   page_over_locked: it was the last page
 *
 * INVARIANTS
 *   (1) A space has one offer for a backend at most, in space->offers.
 *   (2) Behind the page that is out every block has been offered, or the walk is
 *       made again.
 *   (3) Whatever one user's may take, there is something for others: of what is out.
 *
 * LOCKING   cache->lock for all of it.  It is let go of while a page is listed: then
 *           the offer is OUT, and the preparer's.
 */
#include "cache/core/table.h"
#include "cache/remote/tier.h"

#define PAGE 32u   /* keys */
#define OUT_MAX 85 /* blocks; of one user 64, as others shall have some */
#define LOOK_NS UINT64_C(1000000000)
#define PAUSE_NS UINT64_C(1000000000) /* the first */
#define DOUBLINGS 11u		      /* to half an hour */

enum offer_state { LATER, DUE, OUT };

/* What is due of a user's. */
struct walker {
	struct kv_turn turn; /* first */
	struct kv_offers due;
};

struct kv_offer {
	struct kv_space *space; /* fixed; held */
	unsigned backend;	/* fixed */
	enum offer_state state;
	struct walker *walker; /* held: that of @uid; NULL: it was never due */
	uint32_t uid;	       /* whose the space was when the walk began */
	uint64_t at, behind;   /* cursors: of the page, of the next one */
	unsigned out;	       /* blocks of the page that are not over */
	bool failed, went;     /* some of the page did */
	bool again;	       /* it is to be made once more */
	unsigned stuck, walks; /* how often it was, in a row */
	uint64_t until_ns;     /* LATER */
	TAILQ_ENTRY(kv_offer) link; /* of those due, or later */
	LIST_ENTRY(kv_offer) of_all;
};

static void init_walker(struct kv_turn *turn)
{
	TAILQ_INIT(&((struct walker *)turn)->due);
}

int kv_offers_init(struct kv_remote *remote)
{
	LIST_INIT(&remote->offers.all);
	TAILQ_INIT(&remote->offers.later);
	return kv_turns_init(&remote->offers.walkers, sizeof(struct walker),
			     PAGE, init_walker);
}

/* ---- states ---- */

static void later_locked(struct kv_remote *remote, struct kv_offer *offer,
			 uint64_t ns)
{
	offer->state = LATER;
	offer->until_ns = kv_now_ns() + ns;
	TAILQ_INSERT_TAIL(&remote->offers.later, offer, link);
	if (ns == 0)
		remote->offers.look_ns = 0;
}

/* With another owner its objects have other names. */
static void own_locked(struct kv_remote *remote, struct kv_offer *offer)
{
	struct kv_turns *turns = &remote->offers.walkers;
	const uint32_t uid = offer->space->uid;

	if (offer->walker && offer->uid == uid)
		return;
	if (offer->walker)
		kv_turn_put(turns, &offer->walker->turn);
	offer->walker = (struct walker *)kv_turn_get(turns, uid);
	offer->uid = uid;
	offer->at = 0;
}

static void due_locked(struct kv_remote *remote, struct kv_offer *offer)
{
	own_locked(remote, offer);
	offer->state = DUE;
	TAILQ_INSERT_TAIL(&offer->walker->due, offer, link);
	kv_turn_start(&remote->offers.walkers, &offer->walker->turn);
}

static void undue_locked(struct kv_remote *remote, struct kv_offer *offer)
{
	struct walker *walker = offer->walker;

	TAILQ_REMOVE(&walker->due, offer, link);
	if (TAILQ_EMPTY(&walker->due))
		kv_turn_stop(&remote->offers.walkers, &walker->turn);
}

/* It is in no list. */
static void over_locked(struct kv_remote *remote, struct kv_offer *offer)
{
	remote->backends[offer->backend].stats.offering--;
	offer->space->offers[offer->backend] = NULL;
	LIST_REMOVE(offer, of_all);
	if (offer->walker)
		kv_turn_put(&remote->offers.walkers, &offer->walker->turn);
	kv_space_put(offer->space);
	free(offer);
}

/* ---- what is to be offered ---- */

static void new_offer_locked(struct kv_remote *remote, struct kv_space *space,
			     unsigned backend)
{
	struct kv_offer *offer = calloc(1, sizeof(*offer));

	if (!offer)
		return; /* at the next mount */
	offer->space = kv_space_get(space);
	offer->backend = backend;
	space->offers[backend] = offer;
	LIST_INSERT_HEAD(&remote->offers.all, offer, of_all);
	remote->backends[backend].stats.offering++;
	later_locked(remote, offer, 0);
}

void kv_offer_again_locked(struct kv_remote *remote, struct kv_space *space,
			   unsigned backend)
{
	struct kv_offer *offer = space->offers[backend];

	kv_assert_locked(&remote->cache->lock);
	if (remote->stop || !kv_remote_writes(remote))
		return;
	if (offer)
		offer->again |= offer->at || offer->state == OUT;
	else
		new_offer_locked(remote, space, backend);
}

void kv_remote_offer_locked(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_remote *remote = cache->remote;

	kv_assert_locked(&cache->lock);
	for (unsigned i = 0; remote && i < remote->n; i++) {
		struct kv_offer *offer = space->offers[i];

		kv_offer_again_locked(remote, space, i);
		if (offer && offer->state == LATER) {
			offer->stuck = offer->walks = 0;
			offer->until_ns = 0;
		}
	}
	if (remote)
		pthread_cond_signal(&remote->backup.more);
}

void kv_offers_adopt(struct kv_remote *remote)
{
	struct kv_cache *cache = remote->cache;
	struct kv_space *space;
	uint32_t id = 0;

	kv_lock(cache);
	while ((space = kv_space_behind(cache, id))) {
		id = space->id;
		for (unsigned i = 0; space->shared && i < remote->n; i++)
			kv_offer_again_locked(remote, space, i);
	}
	kv_unlock(cache);
}

/* ---- a page ---- */

static uint64_t pause_ns(unsigned *times)
{
	const unsigned n = KV_MIN(*times, DOUBLINGS);

	*times = n + 1;
	return PAUSE_NS << n;
}

static bool is_open_locked(const struct kv_remote *remote,
			   const struct kv_offer *offer)
{
	return remote->backends[offer->backend].stats.open;
}

/* A page that nothing went of, or that the backend failed at, comes once more. */
static void page_over_locked(struct kv_remote *remote, struct kv_offer *offer)
{
	const bool stuck = offer->failed &&
			   !(offer->went && is_open_locked(remote, offer));

	if (stuck) {
		later_locked(remote, offer, pause_ns(&offer->stuck));
		return;
	}
	offer->again |= offer->failed;
	offer->stuck = 0;
	offer->at = offer->behind;
	if (offer->at != 0) {
		due_locked(remote, offer);
	} else if (offer->again) {
		offer->again = false;
		later_locked(remote, offer, pause_ns(&offer->walks));
	} else {
		over_locked(remote, offer);
	}
}

static void one_over_locked(struct kv_remote *remote, struct kv_offer *offer)
{
	kv_turn_end(&remote->offers.walkers, &offer->walker->turn, 1);
	if (--offer->out == 0)
		page_over_locked(remote, offer);
}

void kv_offer_ended_locked(struct kv_remote *remote, struct kv_offer *offer,
			   bool failed)
{
	kv_assert_locked(&remote->cache->lock);
	offer->failed |= failed;
	offer->went |= !failed;
	one_over_locked(remote, offer);
}

static void one_out_locked(struct kv_remote *remote, struct kv_offer *offer)
{
	offer->out++;
	kv_turn_begin(&remote->offers.walkers, &offer->walker->turn, 1);
}

static void put_one_locked(struct kv_remote *remote, struct kv_offer *offer,
			   const struct kv_key *key)
{
	struct kv_cache *cache = remote->cache;
	const struct kv_block *block = kv_table_find(cache, offer->space, key);

	if (!block || block->file == KV_NONE || !kv_backup_wants(cache, block))
		return;
	if (kv_backup_again_locked(remote, offer, offer->backend, offer->space,
				   key))
		one_out_locked(remote, offer);
	else
		offer->failed = true;
}

/* Lets go of the lock. */
static void put_page(struct kv_remote *remote, struct kv_offer *offer)
{
	struct kv_cache *cache = remote->cache;
	struct kv_key keys[PAGE];
	size_t n;

	offer->state = OUT;
	offer->behind = offer->at;
	offer->failed = offer->went = false;
	one_out_locked(remote, offer); /* the page, as long as it is listed */
	kv_unlock(cache);
	n = kv_space_keys(cache, offer->space, &offer->behind, keys, PAGE);
	kv_lock(cache);
	for (size_t i = 0; i < n; i++)
		put_one_locked(remote, offer, &keys[i]);
	kv_turn_charge(&offer->walker->turn, KV_MAX(n, 1u));
	one_over_locked(remote, offer);
}

/* ---- whose turn it is ---- */

static bool is_wanted_locked(const struct kv_offer *offer)
{
	return offer->space->shared && !offer->space->removed;
}

/* Which of them need not wait any longer. */
static void look_locked(struct kv_remote *remote)
{
	const uint64_t now = kv_now_ns();
	struct kv_offer *offer, *next;

	if (now < remote->offers.look_ns)
		return;
	remote->offers.look_ns = now + LOOK_NS;
	for (offer = TAILQ_FIRST(&remote->offers.later); offer; offer = next) {
		const bool wanted = is_wanted_locked(offer);

		next = TAILQ_NEXT(offer, link);
		if (wanted &&
		    (now < offer->until_ns || !is_open_locked(remote, offer)))
			continue;
		TAILQ_REMOVE(&remote->offers.later, offer, link);
		if (wanted)
			due_locked(remote, offer);
		else
			over_locked(remote, offer);
	}
}

bool kv_offers_run(struct kv_remote *remote)
{
	struct kv_turn *turn;
	struct kv_offer *offer;

	kv_assert_locked(&remote->cache->lock);
	look_locked(remote);
	turn = kv_turns_next_within(&remote->offers.walkers, OUT_MAX);
	if (!turn)
		return false;
	offer = TAILQ_FIRST(&((struct walker *)turn)->due);
	undue_locked(remote, offer);
	if (!is_wanted_locked(offer))
		over_locked(remote, offer);
	else if (offer->uid != offer->space->uid)
		due_locked(remote, offer);
	else if (!is_open_locked(remote, offer) ||
		 !kv_backup_has_room_locked(remote, offer->uid))
		later_locked(remote, offer, LOOK_NS);
	else
		put_page(remote, offer);
	return true;
}

/* ---- the end ---- */

void kv_offers_fini(struct kv_remote *remote)
{
	struct kv_offer *offer;

	while ((offer = LIST_FIRST(&remote->offers.all)))
		over_locked(remote, offer);
	kv_turns_fini(&remote->offers.walkers);
}
