/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turns.c - a table of users' queues, and the order of those with work.
 *
 * OWNS      the kv_turn that each queue begins with.
 *
 * INVARIANTS
 *   (1) Exactly the queues with work are on turns->busy; n_busy counts them.
 *   (2) A queue is in its bucket as long as it is held; the shared queue is in
 *       no bucket, and is never freed before kv_turns_fini.
 *   (3) turns->out is the sum of the cost in flight of all queues, which are
 *       held.
 *
 * LOCKING   the caller's.
 */
#include "cache/core/turns.h"

static struct kv_turn *turn_new(struct kv_turns *turns, uint32_t uid)
{
	struct kv_turn *turn = calloc(1, turns->bytes);

	if (!turn)
		return NULL;
	turn->uid = uid;
	if (turns->init)
		turns->init(turn);
	return turn;
}

int kv_turns_init(struct kv_turns *turns, size_t bytes, int64_t amount,
		  void (*init)(struct kv_turn *turn))
{
	*turns = (struct kv_turns){
		.bytes = bytes, .amount = amount, .init = init};
	TAILQ_INIT(&turns->busy);
	turns->shared = turn_new(turns, UINT32_MAX);
	return turns->shared ? 0 : -ENOMEM;
}

void kv_turns_fini(struct kv_turns *turns)
{
	struct kv_turn *turn;

	for (size_t i = 0; i < KV_ARRAY_LEN(turns->buckets); i++)
		while ((turn = LIST_FIRST(&turns->buckets[i]))) {
			LIST_REMOVE(turn, bucket);
			free(turn);
		}
	free(turns->shared);
}

struct kv_turn *kv_turn_get(struct kv_turns *turns, uint32_t uid)
{
	const size_t at = uid % KV_ARRAY_LEN(turns->buckets);
	struct kv_turn *turn;

	LIST_FOREACH(turn, &turns->buckets[at], bucket)
		if (turn->uid == uid)
			break;
	if (!turn) {
		turn = turn_new(turns, uid);
		if (!turn)
			return turns->shared;
		LIST_INSERT_HEAD(&turns->buckets[at], turn, bucket);
	}
	turn->refs++;
	return turn;
}

void kv_turn_hold(struct kv_turn *turn)
{
	turn->refs++;
}

void kv_turn_put(struct kv_turns *turns, struct kv_turn *turn)
{
	if (turn == turns->shared || --turn->refs > 0)
		return;
	LIST_REMOVE(turn, bucket);
	free(turn);
}

void kv_turn_start(struct kv_turns *turns, struct kv_turn *turn)
{
	if (turn->busy)
		return;
	turn->busy = true;
	turn->served = turn->first = false;
	if (turn->credit >= 0)
		turn->credit = turns->amount;
	TAILQ_INSERT_TAIL(&turns->busy, turn, link);
	turns->n_busy++;
}

void kv_turn_resume(struct kv_turns *turns, struct kv_turn *turn)
{
	const bool first = !turn->served;
	struct kv_turn *other;

	if (turn->busy)
		return;
	kv_turn_start(turns, turn);
	turn->first = first;
	if (!first)
		return;
	TAILQ_FOREACH(other, &turns->busy, link)
		if (!other->first)
			break;
	if (!other)
		return;
	TAILQ_REMOVE(&turns->busy, turn, link);
	TAILQ_INSERT_BEFORE(other, turn, link);
}

void kv_turn_stop(struct kv_turns *turns, struct kv_turn *turn)
{
	if (!turn->busy)
		return;
	turn->busy = false;
	TAILQ_REMOVE(&turns->busy, turn, link);
	turns->n_busy--;
}

void kv_turns_yield(struct kv_turns *turns)
{
	struct kv_turn *turn = TAILQ_FIRST(&turns->busy);

	if (!turn)
		return;
	turn->credit = KV_MIN(turn->credit + turns->amount, turns->amount);
	TAILQ_REMOVE(&turns->busy, turn, link);
	TAILQ_INSERT_TAIL(&turns->busy, turn, link);
}

struct kv_turn *kv_turns_next(struct kv_turns *turns)
{
	struct kv_turn *turn;

	while ((turn = TAILQ_FIRST(&turns->busy)) && turn->credit <= 0)
		kv_turns_yield(turns);
	return turn;
}

bool kv_turn_may(const struct kv_turns *turns, const struct kv_turn *turn,
		 uint64_t max, uint64_t more)
{
	const uint64_t all = turns->out + more;

	return turns->out == 0 || (turn->out == 0 && all <= 4 * max) ||
	       (all <= max && (turn->out + more) / 3 <= max - all);
}

struct kv_turn *kv_turns_next_within(struct kv_turns *turns, uint64_t max)
{
	struct kv_turn *turn;

	for (size_t i = turns->n_busy; i > 0; i--) {
		turn = kv_turns_next(turns);
		if (kv_turn_may(turns, turn, max, 1))
			return turn;
		kv_turns_yield(turns);
	}
	return NULL;
}

void kv_turn_begin(struct kv_turns *turns, struct kv_turn *turn,
		   uint64_t amount)
{
	kv_turn_hold(turn);
	turn->out += amount;
	turns->out += amount;
}

void kv_turn_end(struct kv_turns *turns, struct kv_turn *turn, uint64_t amount)
{
	turn->out -= amount;
	turns->out -= amount;
	kv_turn_put(turns, turn);
}

void kv_turn_charge(struct kv_turn *turn, uint64_t cost)
{
	turn->credit -= (int64_t)KV_MIN(cost, (uint64_t)INT32_MAX);
	turn->served = true;
	turn->first = false;
}
