/* SPDX-License-Identifier: Apache-2.0 */
/*
 * offer.c - offer all durable blocks of a space to the backend.
 *
 * An offer is a walk over all keys of a space that is shared newly, was shared at mount,
 * or had a block that was not put, as nobody knows which of its blocks the backend
 * lacks.  The walk takes a page of keys at a time.
 *
 * OWNS      every kv_offer.
 *
 * STATES    of an offer:
 *              (new) -> LATER    kv_offer_again_locked
 *              LATER -> DUE      kv_offers_look_locked: its pause is over
 *                DUE -> OUT      kv_offer_take_locked: all keys of its page are taken
 *                OUT -> DUE      page_over_locked: to the next page
 *                OUT -> LATER    page_over_locked: the page, or the walk, failed
 *         LATER, OUT -> (over)   the walk has ended, or the space is not shared
 *
 * INVARIANTS
 *   (1) A space has at most one offer, space->offer.
 *   (2) All blocks of the pages before the present one were offered, or the walk is
 *       repeated.
 *   (3) Only the backup thread takes from an offer that is DUE, and lists its page: the
 *       lock is dropped meanwhile, and `out` counts the listing.
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

static void due_locked(struct kv_remote *remote, struct kv_offer *offer)
{
	struct kv_backups *b = remote->backup;
	const uint32_t uid = offer->space->uid;

	/* With another owner the objects have other names: begin again. */
	if (offer->uid != uid) {
		kv_turn_put(&b->turns, &offer->user->turn);
		offer->user = kv_backup_user(b, uid);
		offer->uid = uid;
		offer->at = 0;
	}
	offer->state = OFFER_DUE;
	offer->n = offer->next = 0;
	offer->failed = false;
	offer->behind = offer->at;
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
		if (offer->at || offer->state != OFFER_LATER)
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

/* All blocks of the page have ended: go to the next one, or, while the backend is not
 * used, repeat the page later. */
static void page_over_locked(struct kv_remote *remote, struct kv_offer *offer)
{
	const bool open = kv_remote_takes(remote, offer->uid);

	if (offer->failed)
		offer->again = KV_MAX(offer->again, OFFER_MISSED);
	if (open)
		offer->at = offer->behind;
	if (!is_shared_locked(offer)) {
		offer_free_locked(remote, offer);
	} else if (open &&
		   (offer->at != 0 || offer->uid != offer->space->uid)) {
		due_locked(remote, offer);
	} else if (open && !offer->again) {
		offer_free_locked(remote, offer);
	} else if (open) {
		offer->all = offer->again == OFFER_ALL;
		offer->again = OFFER_ONCE;
		offer->pause_ns =
			kv_backoff(offer->pause_ns, PAUSE_NS, PAUSE_MAX);
		later_locked(remote, offer, offer->pause_ns);
	} else {
		later_locked(remote, offer, LOOK_NS);
	}
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

		next = TAILQ_NEXT(offer, link);
		if (shared && (now < offer->until_ns ||
			       !kv_remote_takes(remote, offer->space->uid)))
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
	struct kv_backup_user *user = offer->user;
	const struct kv_block *block, *found = NULL;
	size_t n;

	kv_assert_locked(&cache->lock);
	if (offer->n == 0) {
		kv_unlock(cache);
		n = kv_space_keys(cache, offer->space, &offer->behind,
				  offer->keys, KV_OFFER_PAGE);
		kv_lock(cache);
		offer->n = n;
	}
	if (!is_shared_locked(offer) || offer->uid != offer->space->uid) {
		offer->next = offer->n;
	} else if (!kv_remote_takes(remote, offer->uid)) {
		offer->failed |= offer->next < offer->n;
		offer->next = offer->n;
	}
	while (!found && offer->next < offer->n) {
		block = kv_table_find(cache, offer->space,
				      &offer->keys[offer->next++]);
		if (block && block->file != KV_NONE &&
		    kv_backup_wants(cache, block) &&
		    (offer->all || !block->remote))
			found = block;
	}
	offer->out += found != NULL;
	if (offer->next == offer->n) {
		TAILQ_REMOVE(&user->offers, offer, link);
		kv_backup_user_settle(remote->backup, user);
		offer->state = OFFER_OUT;
		if (offer->out == 0)
			page_over_locked(remote, offer);
	}
	return found;
}

void kv_offer_over_locked(struct kv_remote *remote, struct kv_offer *offer,
			  bool failed)
{
	offer->failed |= failed;
	if (--offer->out == 0 && offer->state == OFFER_OUT)
		page_over_locked(remote, offer);
}

void kv_offers_free(struct kv_remote *remote)
{
	struct kv_offer *offer;

	while ((offer = LIST_FIRST(&remote->backup->offers)))
		offer_free_locked(remote, offer);
}
