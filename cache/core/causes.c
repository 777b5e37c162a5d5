/* SPDX-License-Identifier: Apache-2.0 */
/*
 * causes.c - why blocks are absent: a table of causes by key, and a log of
 * look-ups that ended early, both of fixed size.
 *
 * Buckets of both have WAYS places.  A new entry in a full bucket replaces the
 * bucket's oldest entry of one user: of the users in the bucket, the one with
 * most entries in all buckets.  So users that flood the table replace their own
 * entries and each other's; another user loses an entry only in a bucket that
 * has none of theirs.  Buckets of the table are chosen by a seeded hash, so
 * users cannot aim at one.
 *
 * OWNS       the table and the log.
 *
 * INVARIANTS
 *   (1) A hash is in at most one entry.
 *   (2) Entries of a bucket are in the order of their notes, the newest last;
 *       empty places come first.
 *   (3) held[] and in_log[] count the entries of each user.
 *   (4) The table has all that happened to a user's blocks since the mount, and
 *       since the user's time in forgot[].
 *   (5) An entry with @durable set keeps that until the block is removed or
 *       damaged: flushes that end late ask for it.
 *
 * LOCKING    cache->lock.
 */
#include "cache/core/causes.h"
#include "cache/core/table.h"

#define WAYS 8u
#define LEAST (1u << 16)  /* entries at least, also with why=0: for flushes */
#define LOGGED (1u << 14) /* entries of the log */

struct kv_cause_entry {
	uint64_t hash; /* hash of space and key; 0: the place is empty */
	uint32_t at;   /* seconds of wall time */
	uint32_t idle; /* seconds between the last use and @at */
	uint16_t user; /* hash of the space's owner at that time */
	uint8_t cause;
	bool durable; /* the block was durable, and then evicted */
};
_Static_assert(sizeof(struct kv_cause_entry) == 24, "as man/kvfs.1 says");

int kv_causes_init(struct kv_cache *cache)
{
	struct kv_causes *causes = &cache->causes;

	causes->since = (uint32_t)time(NULL);
	causes->buckets = KV_MAX(cache->config.why, LEAST) / WAYS;
	causes->table =
		calloc((size_t)causes->buckets * WAYS, sizeof(*causes->table));
	causes->log = calloc(LOGGED, sizeof(*causes->log));
	return causes->table && causes->log ? 0 : -ENOMEM;
}

void kv_causes_fini(struct kv_cache *cache)
{
	free(cache->causes.table);
	free(cache->causes.log);
}

static uint16_t user_of(const struct kv_cache *cache, uint32_t uid)
{
	const uint32_t seed = (uint32_t)cache->table.seed;

	return (uint16_t)((uid ^ seed) * 2654435761u >> 20);
}

/* Return the place in a full bucket that a new entry of @user takes.  @held: the
 * number of entries of each user. */
static unsigned victim(const uint32_t *held, const uint16_t users[WAYS],
		       uint16_t user)
{
	unsigned place = 0, most = 0;

	for (unsigned i = 0; i < WAYS; i++) {
		const unsigned n = held[users[i]] + (users[i] == user);

		if (n > most)
			place = i;
		most = KV_MAX(most, n);
	}
	return place;
}

/* Put @entry at the end of @bucket, and close the gap at @place. */
static void append(void *bucket, size_t place, const void *entry, size_t size)
{
	uint8_t *at = (uint8_t *)bucket + place * size;

	memmove(at, at + size, (WAYS - 1 - place) * size);
	memcpy((uint8_t *)bucket + (WAYS - 1) * size, entry, size);
}

/* ---- the table ---- */

/* Return the bucket of a key, and its entry in *@ret_entry; NULL: none. */
static struct kv_cause_entry *find(const struct kv_cache *cache,
				   const struct kv_space *space,
				   const uint8_t *key, uint64_t *ret_hash,
				   struct kv_cause_entry **ret_entry)
{
	const uint64_t hash = kv_key_hash(cache, space, key) | 1; /* not 0 */
	const uint64_t n = (hash >> 32) * cache->causes.buckets >> 32;
	struct kv_cause_entry *bucket = &cache->causes.table[n * WAYS];

	*ret_hash = hash;
	*ret_entry = NULL;
	for (unsigned i = 0; i < WAYS; i++)
		if (bucket[i].hash == hash)
			*ret_entry = &bucket[i];
	return bucket;
}

static void note(struct kv_cache *cache, const struct kv_space *space,
		 const uint8_t *key, enum kv_cause cause, bool durable,
		 uint32_t idle)
{
	struct kv_causes *causes = &cache->causes;
	struct kv_cause_entry entry = {
		.at = (uint32_t)time(NULL),
		.idle = idle,
		.user = user_of(cache, space->uid),
	};
	struct kv_cause_entry *bucket, *old;
	uint16_t users[WAYS];

	kv_assert_locked(&cache->lock);
	bucket = find(cache, space, key, &entry.hash, &old);
	if (!cache->config.why && !old && !durable && cause != KV_CAUSE_CHANGED)
		return;
	/* A block that was refused by the SSD is lost for that reason once it
	 * leaves DRAM. */
	if (old && cause == KV_CAUSE_EVICTED_DRAM &&
	    old->cause >= KV_CAUSE_QUOTA && old->cause <= KV_CAUSE_BUDGET)
		cause = old->cause;
	entry.cause = (uint8_t)cause;
	entry.durable =
		durable ||
		(old && old->durable && cause != KV_CAUSE_REMOVED &&
		 cause != KV_CAUSE_DAMAGED && cause != KV_CAUSE_CHANGED);
	for (unsigned i = 0; i < WAYS; i++)
		users[i] = bucket[i].user;
	if (!old && bucket->hash) {
		old = &bucket[victim(causes->held, users, entry.user)];
		causes->forgot[old->user] =
			KV_MAX(causes->forgot[old->user], old->at);
	}
	if (old)
		causes->held[old->user]--;
	causes->held[entry.user]++;
	append(bucket, old ? (size_t)(old - bucket) : 0, &entry, sizeof(entry));
}

void kv_cause_note_block(struct kv_cache *cache, const struct kv_block *block,
			 enum kv_cause cause)
{
	note(cache, kv_block_space(cache, block), block->key, cause,
	     cause == KV_CAUSE_EVICTED_SSD ||
		     (cause == KV_CAUSE_EXPIRED && block->file != KV_NONE),
	     kv_block_age(cache, block));
}

void kv_cause_note(struct kv_cache *cache, const struct kv_space *space,
		   const struct kv_key *key, enum kv_cause cause)
{
	note(cache, space, key->b, cause, false, 0);
}

void kv_cause_lift(struct kv_cache *cache, const struct kv_space *space,
		   const struct kv_key *key)
{
	struct kv_cause_entry *entry, *bucket;
	uint64_t hash;

	kv_assert_locked(&cache->lock);
	bucket = find(cache, space, key->b, &hash, &entry);
	if (!entry)
		return;
	entry->cause = KV_CAUSE_NONE;
	if (entry->durable)
		return;
	cache->causes.held[entry->user]--;
	memmove(bucket + 1, bucket, (size_t)(entry - bucket) * sizeof(*bucket));
	*bucket = (struct kv_cause_entry){0};
}

int kv_cause_find(struct kv_cache *cache, const struct kv_space *space,
		  struct kv_miss *miss)
{
	const struct kv_causes *causes = &cache->causes;
	struct kv_cause_entry *entry;
	uint64_t hash;

	kv_assert_locked(&cache->lock);
	find(cache, space, miss->key.b, &hash, &entry);
	miss->cause = KV_CAUSE_UNSEEN;
	miss->since = KV_MAX(causes->since,
			     causes->forgot[user_of(cache, space->uid)]);
	miss->idle = 0;
	if (entry && entry->cause != KV_CAUSE_NONE) {
		miss->cause = entry->cause;
		miss->since = entry->at;
		miss->idle = entry->idle;
	}
	if (miss->cause != KV_CAUSE_CHANGED)
		return entry && entry->durable;
	miss->cause = KV_CAUSE_DAMAGED;
	return -EBADMSG;
}

/* ---- the log ---- */

void kv_miss_log(struct kv_cache *cache, const struct kv_miss *miss)
{
	struct kv_causes *causes = &cache->causes;
	const uint64_t n = causes->logged++ % (LOGGED / WAYS);
	struct kv_miss *bucket = &causes->log[n * WAYS];
	const uint16_t user = user_of(cache, miss->uid);
	uint16_t users[WAYS];
	unsigned place = 0;

	kv_assert_locked(&cache->lock);
	cache->stats.causes[miss->cause]++;
	for (unsigned i = 0; i < WAYS; i++)
		users[i] = user_of(cache, bucket[i].uid);
	if (bucket->asked_ns) {
		place = victim(causes->in_log, users, user);
		causes->in_log[users[place]]--;
	}
	causes->in_log[user]++;
	append(bucket, place, miss, sizeof(*miss));
}

size_t kv_misses(struct kv_cache *cache, const struct kv_space *space,
		 const uint32_t *uid, uint64_t *at, struct kv_miss *ret,
		 size_t max)
{
	const struct kv_miss *log = cache->causes.log;
	size_t n = 0;

	kv_lock(cache);
	for (; *at < LOGGED && n < max; (*at)++)
		if (log[*at].asked_ns && log[*at].space == space->id &&
		    (!uid || log[*at].uid == *uid))
			ret[n++] = log[*at];
	kv_unlock(cache);
	return n;
}
