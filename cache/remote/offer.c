/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offer.c - offer all durable blocks of a space to the backend.
 *
 * An offer is a walk over all keys of a space that is shared newly, was shared at mount,
 * or had a block that was not put, as nobody knows which of its blocks the backend
 * lacks.
 *
 * OWNS      every kv_offer.
 *
 * STATES    of an offer:
 *              (new) -> LATER    kv_offer_again_locked
 *              LATER -> DUE      kv_offers_look_locked: its pause is over
 *                DUE -> LATER    kv_offer_take_locked: the backend is not used
 *                DUE -> OUT      kv_offer_take_locked: all keys are taken
 *                OUT -> LATER    walk_over_locked: the walk is repeated
 *         LATER, OUT -> (over)   the walk has ended, or the space is not shared
 *
 * INVARIANTS
 *   (1) A space has at most one offer, space->offer.
 *   (2) All blocks before the cursor were offered, or the walk is repeated.
 *   (3) An offer is freed only when none of its blocks is out.
 *   (4) Only the backup thread takes from an offer that is DUE, and lists its keys: the
 *       lock is dropped meanwhile.
 *
 * LOCKING   cache->lock.
 */
#include "cache/core/table.h"
#include "cache/remote/backup.h"
#include "common/rate.h"

#define LOOK_NS UINT64_C(1000000000)
#define PAUSE_NS UINT64_C(1000000000) /* the first; then doubled, */
#define PAUSE_MAX (PAUSE_NS << 11)    /* to half an hour */

static void later_locked(struct kv_remote *remote, struct kv_offer *offer,
			 uint64_t ns)
{
	struct kv_backups *b = remote->backup;

	offer->state = OFFER_LATER;
	offer->until_ns = kv_now_ns() + ns;
	TAILQ_INSERT_TAIL(&b->later, offer, link);
	if (ns == 0)
		b->look_ns = 0;
}

static void restart_locked(struct kv_offer *offer)
{
	offer->cursor = offer->n = offer->next = 0;
	offer->walked = false;
}

static void due_locked(struct kv_remote *remote, struct kv_offer *offer)
{
	struct kv_backups *b = remote->backup;
	const uint32_t uid = offer->space->uid;

	/* With another owner the objects have other names: begin again. */
	if (offer->uid != uid) {
		kv_turn_put(&b->turns, &offer->user->turn);
		offer->user = kv_backup_user(b, uid);
		offer->uid = uid;
		restart_locked(offer);
	}
	offer->state = OFFER_DUE;
	TAILQ_INSERT_TAIL(&offer->user->offers, offer, link);
	kv_backup_user_settle(b, offer->user);
}

/* Free an offer that is in no list except the list of all offers. */
static void offer_free_locked(struct kv_remote *remote, struct kv_offer *offer)
{
	remote->stats.offering--;
	offer->space->offer = NULL;
	LIST_REMOVE(offer, of_all);
	kv_turn_put(&remote->backup->turns, &offer->user->turn);
	kv_space_put(offer->space);
	free(offer);
}

static bool is_shared_locked(const struct kv_offer *offer)
{
	return offer->space->shared && !offer->space->removed;
}

struct kv_offer *kv_offer_again_locked(struct kv_remote *remote,
				       struct kv_space *space)
{
	struct kv_backups *b = remote->backup;
	struct kv_offer *offer = space->offer;

	kv_assert_locked(&remote->cache->lock);
	if (b->stop || !kv_remote_writes(remote))
		return NULL;
	if (offer) {
		if (offer->cursor || offer->n || offer->state != OFFER_LATER)
			offer->again = KV_MAX(offer->again, OFFER_MISSED);
		return offer;
	}
	offer = calloc(1, sizeof(*offer));
	if (!offer)
		return NULL; /* the next mount offers it */
	offer->space = kv_space_get(space);
	offer->uid = space->uid;
	offer->user = kv_backup_user(b, space->uid);
	space->offer = offer;
	LIST_INSERT_HEAD(&b->offers, offer, of_all);
	remote->stats.offering++;
	later_locked(remote, offer, 0);
	return offer;
}

void kv_remote_offer_locked(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_offer *offer = NULL;

	kv_assert_locked(&cache->lock);
	if (cache->remote)
		offer = kv_offer_again_locked(cache->remote, space);
	if (!offer)
		return;
	if (offer->again)
		offer->again = OFFER_ALL;
	else
		offer->all = true;
	if (offer->state == OFFER_LATER) {
		offer->pause_ns = offer->until_ns = 0;
		cache->remote->backup->look_ns = 0;
	}
	pthread_cond_signal(&cache->remote->backup->more);
}

/* All blocks have ended: repeat the walk if one of them was missed. */
static void walk_over_locked(struct kv_remote *remote, struct kv_offer *offer)
{
	if (!is_shared_locked(offer) || !offer->again) {
		offer_free_locked(remote, offer);
		return;
	}
	offer->all = offer->again == OFFER_ALL;
	offer->again = OFFER_ONCE;
	restart_locked(offer);
	offer->pause_ns = kv_backoff(offer->pause_ns, PAUSE_NS, PAUSE_MAX);
	later_locked(remote, offer, offer->pause_ns);
}

void kv_offers_look_locked(struct kv_remote *remote)
{
	struct kv_backups *b = remote->backup;
	const uint64_t now = kv_now_ns();
	struct kv_offer *offer, *next;

	if (now < b->look_ns)
		return;
	b->look_ns = now + LOOK_NS;
	for (offer = TAILQ_FIRST(&b->later); offer; offer = next) {
		const bool shared = is_shared_locked(offer);
		const bool wait =
			shared ? now < offer->until_ns ||
					 !kv_remote_takes(remote,
							  offer->space->uid)
			       : offer->out > 0;

		next = TAILQ_NEXT(offer, link);
		if (wait)
			continue;
		TAILQ_REMOVE(&b->later, offer, link);
		if (shared)
			due_locked(remote, offer);
		else
			offer_free_locked(remote, offer);
	}
}

const struct kv_block *kv_offer_take_locked(struct kv_remote *remote,
					    struct kv_offer *offer)
{
	struct kv_cache *cache = remote->cache;
	const struct kv_block *block;
	bool goes_on;

	kv_assert_locked(&cache->lock);
	if (offer->next == offer->n && !offer->walked) {
		kv_unlock(cache);
		offer->n = kv_space_keys(cache, offer->space, &offer->cursor,
					 offer->keys, KV_OFFER_PAGE);
		kv_lock(cache);
		offer->next = 0;
		offer->walked = offer->cursor == 0;
	}
	goes_on = is_shared_locked(offer) && offer->uid == offer->space->uid &&
		  kv_remote_takes(remote, offer->uid);
	while (goes_on && offer->next < offer->n) {
		block = kv_table_find(cache, offer->space,
				      &offer->keys[offer->next++]);
		if (block && block->file != KV_NONE &&
		    kv_backup_wants(cache, block) &&
		    (offer->all || !block->remote)) {
			offer->out++;
			return block;
		}
	}
	if (goes_on && !offer->walked)
		return NULL;
	TAILQ_REMOVE(&offer->user->offers, offer, link);
	kv_backup_user_settle(remote->backup, offer->user);
	if (!goes_on) {
		later_locked(remote, offer, LOOK_NS);
		return NULL;
	}
	offer->state = OFFER_OUT;
	if (offer->out == 0)
		walk_over_locked(remote, offer);
	return NULL;
}

void kv_offer_over_locked(struct kv_remote *remote, struct kv_offer *offer,
			  bool failed)
{
	if (failed)
		offer->again = KV_MAX(offer->again, OFFER_MISSED);
	if (--offer->out == 0 && offer->state == OFFER_OUT)
		walk_over_locked(remote, offer);
}

void kv_offers_free(struct kv_remote *remote)
{
	struct kv_offer *offer;

	while ((offer = LIST_FIRST(&remote->backup->offers)))
		offer_free_locked(remote, offer);
}
