/* SPDX-License-Identifier: Apache-2.0 */
/*
 * snapshot.c - snapshots: made, read back, listed, dropped.
 *
 * OWNS      nothing: a set of picks is the daemon's from its first message on,
 *           and ends there if the connection does.
 *
 * INVARIANTS
 *   (1) The number of a set is used once in the life of the process.
 *
 * LOCKING   none of its own; see ask.c and space.c.
 */
#include <stdatomic.h>

#include "kernels/session/ask.h"
#include "kernels/session/query.h"
#include "kernels/session/session.h"
#include "kernels/session/snapshot.h"
#include "kernels/session/space.h"

#define NAME_MAX_BYTES 255u

int kv_snapshot_name_check(const char *name)
{
	size_t n;

	if (!name)
		return -EINVAL;
	n = strlen(name);
	if (n == 0 || n > NAME_MAX_BYTES || name[0] == '.' || strchr(name, '/'))
		return -EINVAL;
	return 0;
}

/* Ask about @space; what that comes to without a daemon is -ENOTCONN. */
static long ask(kvfs_space *space, struct kv_question *question)
{
	uint64_t generation;
	long r;

	r = kv_lib_space_id(space, &question->header.space, &generation);
	if (r == 0)
		r = kv_ask(space->session, question);
	return r == -ETIMEDOUT ? -ENOTCONN : r;
}

static int check(kvfs_space *space, const char *name)
{
	int r = kv_session_check(space ? space->session : NULL);

	return r < 0 ? r : kv_snapshot_name_check(name);
}

/* ---- making ---- */

static bool positions_ascend(const uint32_t *positions, size_t n)
{
	if (n == 0 || n > KVFS_SNAPSHOT_MAX)
		return false;
	for (size_t i = 0; positions && i < n; i++)
		if (positions[i] > KVFS_POSITION_MAX ||
		    (i > 0 && positions[i] <= positions[i - 1]))
			return false;
	return true;
}

static int pick(kvfs_space *space, uint64_t set, const kvfs_key *keys,
		const uint32_t *positions, size_t first, size_t n)
{
	struct wire_pick items[WIRE_BATCH] = {0};
	struct kv_question question = {
		.header = {.type = WIRE_PICK, .count = (uint32_t)n, .arg = set},
		.items = items,
		.bytes = n * sizeof(items[0]),
	};
	long r;

	for (size_t i = 0; i < n; i++) {
		memcpy(items[i].key, keys[first + i].bytes,
		       keys[first + i].len);
		items[i].len = keys[first + i].len;
		items[i].position = positions ? positions[first + i]
					      : (uint32_t)(first + i);
	}
	r = ask(space, &question);
	return (int)KV_MIN(r, 0);
}

/* A message that ends in a name. */
struct named {
	struct wire_snapshot head;
	char name[NAME_MAX_BYTES + 1];
};

static int name_set(kvfs_space *space, const char *name, uint64_t set, size_t n,
		    size_t *ret_missing)
{
	struct named message = {.head = {.id = set, .blocks = (uint32_t)n}};
	struct wire_snapshot reply = {.blocks = (uint32_t)n};
	struct kv_question question = {
		.header = {.type = WIRE_SNAPSHOT,
			   .count = (uint32_t)strlen(name)},
		.items = &message,
		.bytes = sizeof(message.head) + strlen(name),
		.reply = &reply,
		.room = sizeof(reply),
	};
	long r;

	strcpy(message.name, name);
	r = ask(space, &question);
	if (ret_missing)
		*ret_missing = KV_MIN((size_t)reply.blocks, n);
	/* The connection is another one than the picks went by. */
	return r == -ESTALE ? -ENOTCONN : (int)KV_MIN(r, 0);
}

int kvfs_snapshot(kvfs_space *space, const char *name, const kvfs_key *keys,
		  const uint32_t *positions, size_t n, size_t *ret_missing)
{
	static _Atomic uint64_t sets;
	uint64_t set;
	size_t batch;
	int r = check(space, name);

	if (r < 0)
		return r;
	if (!kv_wire_keys_are_valid(keys, n) || !positions_ascend(positions, n))
		return -EINVAL;
	set = atomic_fetch_add(&sets, 1) + 1;
	for (size_t i = 0; i < n; i += batch) {
		batch = KV_MIN(n - i, (size_t)WIRE_BATCH);
		r = pick(space, set, keys, positions, i, batch);
		if (r < 0)
			return r;
	}
	return name_set(space, name, set, n, ret_missing);
}

/* ---- reading ---- */

int kv_snapshot_chunk_read(kvfs_space *space, const char *name, uint32_t from,
			   size_t max, struct kv_snapshot_chunk *chunk)
{
	struct named message = {.head = {.id = chunk->id, .from = from}};
	struct {
		struct wire_snapshot head;
		struct wire_pick picks[WIRE_BATCH];
	} reply;
	struct kv_question question = {
		.header = {.type = WIRE_SNAPSHOT_READ,
			   .count = (uint32_t)strlen(name),
			   .arg = max},
		.items = &message,
		.bytes = sizeof(message.head) + strlen(name),
		.reply = &reply,
		.room = sizeof(reply),
	};
	size_t n;
	long r;

	strcpy(message.name, name);
	r = ask(space, &question);
	if (r < 0)
		return (int)r;
	n = question.header.count;
	if (n > WIRE_BATCH ||
	    (size_t)r != sizeof(reply.head) + n * sizeof(reply.picks[0]))
		return -EPROTO;
	for (size_t i = 0; i < n; i++)
		if (reply.picks[i].len != 16 && reply.picks[i].len != 32)
			return -EPROTO;
	chunk->id = reply.head.id;
	chunk->blocks = reply.head.blocks;
	chunk->n = n;
	memcpy(chunk->picks, reply.picks, n * sizeof(chunk->picks[0]));
	return 0;
}

static void hand_out(const struct wire_pick *pick, kvfs_key *ret_key,
		     uint32_t *ret_position)
{
	if (ret_key) {
		memset(ret_key, 0, sizeof(*ret_key));
		memcpy(ret_key->bytes, pick->key, pick->len);
		ret_key->len = pick->len;
	}
	if (ret_position)
		*ret_position = pick->position;
}

long kvfs_snapshot_keys(kvfs_space *space, const char *name, kvfs_key *ret_keys,
			uint32_t *ret_positions, size_t max)
{
	struct kv_snapshot_chunk chunk = {.id = 0};
	uint32_t from = 0;
	size_t n = 0;
	int r = check(space, name);

	if (r < 0)
		return r;
	do {
		r = kv_snapshot_chunk_read(space, name, from, WIRE_BATCH,
					   &chunk);
		if (r == -ESTALE) { /* made anew meanwhile: so do we */
			chunk.id = 0;
			from = 0;
			n = 0;
			chunk.n = WIRE_BATCH;
			continue;
		}
		if (r < 0)
			return r;
		for (size_t i = 0; i < chunk.n && n < max; i++, n++)
			hand_out(&chunk.picks[i],
				 ret_keys ? &ret_keys[n] : NULL,
				 ret_positions ? &ret_positions[n] : NULL);
		if (chunk.n > 0)
			from = chunk.picks[chunk.n - 1].position + 1;
	} while (chunk.n == WIRE_BATCH && n < max);
	return (long)chunk.blocks;
}

/* ---- listing, dropping ---- */

/* A message's worth after @id; returns the bytes of names. */
static long list_some(kvfs_space *space, uint64_t *id, char *ret_text)
{
	_cleanup_(kv_freep) struct wire_snapshot *reply = malloc(WIRE_MAX);
	struct kv_question question = {
		.header = {.type = WIRE_SNAPSHOT_LIST, .arg = *id},
		.reply = reply,
		.room = WIRE_MAX,
	};
	long n;

	if (!reply)
		return -ENOMEM;
	n = ask(space, &question);
	if (n < 0)
		return n;
	if ((size_t)n < sizeof(*reply))
		return -EPROTO;
	n -= (long)sizeof(*reply);
	*id = reply->id;
	memcpy(ret_text, reply + 1, (size_t)n);
	return n > 0 && ret_text[n - 1] != '\0' ? -EPROTO : n;
}

long kvfs_snapshot_list(kvfs_space *space, char **ret_names)
{
	_cleanup_(kv_freep) char *names = NULL;
	uint64_t id = 0;
	size_t bytes = 0;
	long n, count = 0;
	int r = kv_session_check(space ? space->session : NULL);

	if (r < 0)
		return r;
	if (!ret_names)
		return -EINVAL;
	do {
		char *more = realloc(names, bytes + WIRE_MAX);

		if (!more)
			return -ENOMEM;
		names = more;
		n = list_some(space, &id, names + bytes);
		if (n < 0)
			return n;
		bytes += (size_t)n;
	} while (n > 0);
	for (size_t i = 0; i < bytes; i++)
		count += names[i] == '\0';
	*ret_names = kv_steal(names);
	return count;
}

int kvfs_snapshot_drop(kvfs_space *space, const char *name)
{
	struct kv_question question = {.header = {.type = WIRE_SNAPSHOT_DROP}};
	long r = check(space, name);

	if (r < 0)
		return (int)r;
	question.items = name;
	question.bytes = strlen(name);
	question.header.count = (uint32_t)question.bytes;
	r = ask(space, &question);
	return (int)KV_MIN(r, 0);
}
