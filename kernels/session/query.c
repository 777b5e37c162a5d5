/* SPDX-License-Identifier: Apache-2.0 */
/*
 * query.c - look-ups by key, and evict, pin, clear, forget, list, remove, texts, limits.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) States are in the order of the keys; a key is absent if the daemon could
 *       not be asked.
 *
 * LOCKING   none of its own; see rpc.c and space.c.
 */
#include <stdio.h>

#include "kernels/session/rpc.h"
#include "kernels/session/session.h"

#define CLEAR_NS 60000000000u

bool kv_wire_keys_are_valid(const kvfs_key *keys, size_t n)
{
	if (!keys || n > KV_QUERY_KEYS_MAX)
		return n == 0;
	for (size_t i = 0; i < n; i++)
		if (keys[i].len != 16 && keys[i].len != 32)
			return false;
	return true;
}

void kv_wire_keys(const kvfs_key *keys, size_t n, struct wire_key *ret_keys)
{
	memset(ret_keys, 0, n * sizeof(*ret_keys));
	for (size_t i = 0; i < n; i++) {
		memcpy(ret_keys[i].key, keys[i].bytes, keys[i].len);
		ret_keys[i].len = keys[i].len;
	}
}

long kv_queries_check(const kvfs_query *queries, size_t n_queries,
		      kvfs_session **ret_session)
{
	kvfs_session *session = NULL;
	size_t total = 0;
	int r;

	if (!queries && n_queries > 0)
		return -EINVAL;
	for (size_t i = 0; i < n_queries; i++) {
		const kvfs_query *q = &queries[i];

		r = kv_session_check(q->space ? q->space->session : NULL);
		if (r < 0)
			return r;
		if (session && session != q->space->session)
			return -EINVAL;
		session = q->space->session;
		if (!kv_abi_is_zero(q->reserved, sizeof(q->reserved)) ||
		    q->n > KV_QUERY_KEYS_MAX - total ||
		    !kv_wire_keys_are_valid(q->keys, q->n))
			return -EINVAL;
		total += q->n;
	}
	*ret_session = session;
	return (long)total;
}

/* Store the state of each key of @query; absent if the daemon cannot be asked. */
static void probe(const kvfs_query *query, uint8_t *ret_states)
{
	struct wire_key items[WIRE_BATCH];
	size_t n;
	bool missed = false;
	long r = 0;

	memset(ret_states, KVFS_ABSENT, query->n);
	for (size_t i = 0; i < query->n && r >= 0; i += n) {
		n = KV_MIN(query->n - i, (size_t)WIRE_BATCH);
		kv_wire_keys(query->keys + i, n, items);
		r = kv_space_ask(query->space,
				 &(struct kv_question){
					 .header = {.type = WIRE_PROBE,
						    .count = (uint32_t)n,
						    .arg = missed},
					 .items = items,
					 .bytes = n * sizeof(items[0]),
					 .reply = ret_states + i,
					 .room = n,
				 });
		if (r >= 0 && (size_t)r != n)
			r = -EPROTO;
		if (r < 0)
			memset(ret_states + i, KVFS_ABSENT, n);
		for (size_t j = i; j < i + n; j++)
			if (ret_states[j] > KVFS_DRAM)
				ret_states[j] = KVFS_ABSENT;
		missed = ret_states[i + n - 1] < KVFS_SSD;
	}
}

_Static_assert((int)KVFS_ABSENT == WIRE_ABSENT && (int)KVFS_DRAM == WIRE_DRAM &&
		       sizeof(struct wire_state) == 1,
	       "states are passed on unchanged");

long kvfs_probe(const kvfs_query *queries, size_t n_queries,
		uint8_t *ret_states)
{
	kvfs_session *session;
	long total, usable = 0, at = 0;

	total = kv_queries_check(queries, n_queries, &session);
	if (total < 0)
		return total;
	if (!ret_states && total > 0)
		return -EINVAL;
	for (size_t i = 0; i < n_queries; i++) {
		probe(&queries[i], ret_states + at);
		at += (long)queries[i].n;
	}
	for (at = 0; at < total; at++)
		usable += ret_states[at] >= KVFS_SSD;
	return usable;
}

/* ---- causes of misses ---- */

_Static_assert(sizeof(kvfs_miss) == sizeof(struct wire_miss) &&
		       offsetof(kvfs_miss, next) ==
			       offsetof(struct wire_miss, next),
	       "misses are passed on unchanged");

/* Ask for the causes of @n keys, at most WIRE_WHY_BATCH; or if there are none, for
 * look-ups from place @at on. */
static long ask_why(kvfs_space *space, const kvfs_key *keys, size_t n,
		    uint64_t at, kvfs_miss *ret_misses)
{
	kvfs_miss misses[WIRE_WHY_BATCH];
	struct wire_key items[WIRE_WHY_BATCH];
	long r;

	kv_wire_keys(keys, n, items);
	r = kv_space_ask(space, &(struct kv_question){
					.header = {.type = WIRE_WHY,
						   .count = (uint32_t)n,
						   .arg = at},
					.items = items,
					.bytes = n * sizeof(items[0]),
					.reply = misses,
					.room = sizeof(misses),
				});
	if (r < 0)
		return r == -ETIMEDOUT ? -ENOTCONN : r;
	if ((size_t)r % sizeof(misses[0]) != 0 ||
	    (n > 0 && (size_t)r != n * sizeof(misses[0])))
		return -EPROTO;
	n = (size_t)r / sizeof(misses[0]);
	for (size_t i = 0; i < n; i++)
		if (!kv_wire_keys_are_valid(&misses[i].key, 1))
			return -EPROTO;
	memcpy(ret_misses, misses, n * sizeof(misses[0]));
	return (long)n;
}

long kvfs_why(kvfs_space *space, const kvfs_key *keys, size_t n,
	      kvfs_miss *ret_misses)
{
	long absent = 0, r = kv_session_check(space ? space->session : NULL);

	if (r < 0)
		return r;
	if (!kv_wire_keys_are_valid(keys, n) || (n > 0 && !ret_misses))
		return -EINVAL;
	for (size_t i = 0; i < n; i += (size_t)r) {
		r = ask_why(space, keys + i,
			    KV_MIN(n - i, (size_t)WIRE_WHY_BATCH), 0,
			    ret_misses + i);
		if (r < 0)
			return r;
		for (size_t j = i; j < i + (size_t)r; j++)
			absent += ret_misses[j].cause != KVFS_CAUSE_NONE;
	}
	return absent;
}

long kvfs_misses(kvfs_space *space, uint64_t *cursor, kvfs_miss *ret_misses,
		 size_t max)
{
	long r = kv_session_check(space ? space->session : NULL);

	if (r < 0)
		return r;
	if (!cursor || !ret_misses || max < KVFS_MISSES_MIN)
		return -EINVAL;
	r = ask_why(space, NULL, 0, *cursor, ret_misses);
	if (r > 0)
		*cursor = ret_misses[r - 1].next;
	return r;
}

/* ---- housekeeping ---- */

/* Evict, pin or unpin every key.  If the daemon cannot be asked, the error
 * becomes the status of each remaining key. */
static long change(kvfs_space *space, struct wire_header header,
		   const kvfs_key *keys, size_t n, int *ret_statuses)
{
	struct wire_status statuses[WIRE_BATCH] = {0};
	struct wire_key items[WIRE_BATCH];
	size_t batch;
	long done = 0, r = kv_session_check(space ? space->session : NULL);
	int status;

	if (r < 0)
		return r;
	if (!kv_wire_keys_are_valid(keys, n))
		return -EINVAL;
	for (size_t i = 0; i < n; i += batch) {
		batch = KV_MIN(n - i, (size_t)WIRE_BATCH);
		header.count = (uint32_t)batch;
		kv_wire_keys(keys + i, batch, items);
		if (r >= 0)
			r = kv_space_ask(
				space,
				&(struct kv_question){
					.header = header,
					.items = items,
					.bytes = batch * sizeof(items[0]),
					.reply = statuses,
					.room = batch * sizeof(statuses[0]),
				});
		if (r >= 0 && (size_t)r != batch * sizeof(statuses[0]))
			r = -EPROTO;
		for (size_t j = 0; j < batch; j++) {
			status = r < 0 ? (int)r : statuses[j].status;
			done += status == 0;
			if (ret_statuses)
				ret_statuses[i + j] = status;
		}
	}
	return done;
}

long kvfs_evict(kvfs_space *space, const kvfs_key *keys, size_t n,
		int *ret_statuses)
{
	return change(space, (struct wire_header){.type = WIRE_EVICT}, keys, n,
		      ret_statuses);
}

/* The batches are sent from the tail of the chain on, as the daemon also goes
 * through each message from its end. */
int kvfs_ended(kvfs_space *space, const kvfs_key *keys, size_t n)
{
	struct kvfs_session *session = space ? space->session : NULL;
	struct wire_key items[WIRE_BATCH];
	struct kv_packet packet = {
		.header = {.type = WIRE_ENDED}, .items = items, .fd = -1};
	uint64_t generation;
	size_t batch;
	int r = kv_session_check(session);

	if (r < 0)
		return r;
	if (!kv_wire_keys_are_valid(keys, n))
		return -EINVAL;
	if (kv_lib_space_id(space, &packet.header.space, &generation) < 0)
		return 0;
	pthread_mutex_lock(&session->lock);
	for (; n > 0 && kv_session_is_live(session, generation) &&
	       kv_rpc_takes_hints_locked(session);
	     n -= batch) {
		batch = KV_MIN(n, (size_t)WIRE_BATCH);
		kv_wire_keys(keys + n - batch, batch, items);
		packet.header.count = (uint32_t)batch;
		packet.bytes = batch * sizeof(items[0]);
		kv_rpc_post_locked(session, &packet);
	}
	pthread_mutex_unlock(&session->lock);
	return 0;
}

/* Pin or unpin (@arg 0) a range of a chain. */
static long pin(kvfs_space *space, const kvfs_key *keys, size_t first,
		size_t end, uint64_t arg, int *ret_statuses)
{
	if (!keys || first > end)
		return -EINVAL;
	return change(space, (struct wire_header){.type = WIRE_PIN, .arg = arg},
		      keys + first, end - first, ret_statuses);
}

long kvfs_pin(kvfs_space *space, const kvfs_key *keys, size_t first, size_t end,
	      int *ret_statuses)
{
	return pin(space, keys, first, end, 1, ret_statuses);
}

long kvfs_unpin(kvfs_space *space, const kvfs_key *keys, size_t first,
		size_t end, int *ret_statuses)
{
	return pin(space, keys, first, end, 0, ret_statuses);
}

/* Buffer for the items of a reply, and the time to wait for the reply. */
struct room {
	void *items;
	uint32_t n;    /* most items in the buffer */
	size_t item;   /* bytes of one item */
	uint64_t more; /* nanoseconds to wait longer than CLEAR_NS */
};

/* A request whose reply a thread waits for.  The thread or the reply frees the
 * struct, whichever comes last. */
struct question {
	struct kv_call call; /* first */
	struct kvfs_session *session;
	struct room room; /* room.items is not written once @abandoned is set */
	bool over, abandoned;
	int status;
};

static void answered(struct kv_call *call, int status, const void *items)
{
	struct question *question = (struct question *)call;

	if (question->abandoned) {
		free(question);
		return;
	}
	if (status >= 0 && question->room.items)
		memcpy(question->room.items, items,
		       call->count * question->room.item);
	question->over = true;
	question->status = status;
	kv_session_changed_locked(question->session);
}

/* Send a request, about @space unless NULL, that may take long on the asynchronous
 * connection, so that look-ups of other threads do not wait for it, and wait for the reply.  Return
 * the number of items in the reply, or its status if @room has no buffer. */
static long ask_and_wait(struct kvfs_session *session, kvfs_space *space,
			 struct kv_packet *packet, const struct room *room)
{
	const uint64_t until = kv_time_after(CLEAR_NS + room->more);
	uint64_t generation = atomic_load(&session->live), look_at;
	struct question *question;
	bool hangs;
	long r = space ? kv_lib_space_id(space, &packet->header.space,
					 &generation)
		       : 0;

	if (r < 0)
		return r;
	question = calloc(1, sizeof(*question));
	if (!question)
		return -ENOMEM;
	question->session = session;
	question->call.done = answered;
	question->call.count = room->n;
	question->call.at_most = room->items;
	question->room = *room;
	pthread_mutex_lock(&session->lock);
	r = kv_session_is_live(session, generation)
		    ? kv_rpc_submit_locked(session, &question->call, packet)
		    : -ENOTCONN;
	question->over = r < 0;
	while (r == 0 && !question->over) {
		look_at = KV_MIN(until, kv_time_after(KV_LOOK_NS));
		r = kv_session_wait(session, look_at);
		if (r != -ETIMEDOUT || look_at == until)
			continue;
		/* Do not wait for a daemon that hangs. */
		pthread_mutex_unlock(&session->lock);
		hangs = kv_ask_hangs(session);
		pthread_mutex_lock(&session->lock);
		r = hangs ? -ETIMEDOUT : 0;
	}
	question->abandoned = !question->over;
	if (question->over) {
		if (r == 0)
			r = question->status < 0 || !room->items
				    ? question->status
				    : (long)question->call.count;
		free(question);
	}
	pthread_mutex_unlock(&session->lock);
	return r;
}

/* Send a request @type about the whole space, and wait for the reply. */
static int change_space(kvfs_space *space, enum wire_type type)
{
	struct kv_packet packet = {.header = {.type = type}, .fd = -1};

	return (int)ask_and_wait(space->session, space, &packet,
				 &(struct room){0});
}

int kvfs_space_clear(kvfs_space *space)
{
	struct kvfs_session *session = space ? space->session : NULL;
	int r = kv_session_check(session);

	if (r < 0)
		return r;
	/* End saves that the daemon does not know of yet, so that their blocks do
	 * not come after the clear.  The daemon ends its own reservations. */
	pthread_mutex_lock(&session->lock);
	if (session->user)
		session->user->clearing_locked(session, space->name);
	pthread_mutex_unlock(&session->lock);
	r = change_space(space, WIRE_CLEAR);
	if (r != 0 && r != -ETIMEDOUT)
		return r;
	pthread_mutex_lock(&session->lock);
	if (session->user)
		session->user->cleared_locked(session, space->name);
	pthread_mutex_unlock(&session->lock);
	return r;
}

/* ---- forgetting ---- */

/* Send one WIRE_FORGET.  Returns 1, or -errno. */
static long forget_some(kvfs_space *space, const kvfs_key *keys, size_t n,
			uint64_t ns, struct wire_forgot *ret_forgot)
{
	struct wire_key items[WIRE_BATCH];
	struct kv_packet packet = {
		.header = {.type = WIRE_FORGET,
			   .count = (uint32_t)n,
			   .arg = ns},
		.items = items,
		.bytes = n * sizeof(items[0]),
		.fd = -1,
	};
	const struct room room = {ret_forgot, 1, sizeof(*ret_forgot), ns};
	long r;

	kv_wire_keys(keys, n, items);
	r = ask_and_wait(space->session, space, &packet, &room);
	return r == 0 ? -EPROTO : r;
}

/* Describe a forget's outcome in a line (caller frees).  NULL: no memory. */
static char *print_forgot(const struct wire_forgot *sum, bool space)
{
	char *line = NULL;
	size_t bytes;
	FILE *f = open_memstream(&line, &bytes);

	if (!f)
		return NULL;
	if (space && !sum->removed && !sum->absent && !sum->failed)
		fprintf(f,
			"%.127s: all removed; the server did not tell how many",
			sum->url);
	else
		fprintf(f, "%.127s: %u removed, %u not there", sum->url,
			sum->removed, sum->absent);
	if (sum->failed)
		fputs("; ", f);
	if (sum->failed && !space)
		fprintf(f, "%u ", sum->failed);
	if (sum->failed)
		fprintf(f, "block%s removed here may be there still: %.111s",
			space || sum->failed > 1 ? "s" : "",
			sum->why[0]		    ? sum->why
			: sum->status == -ETIMEDOUT ? "it did not do so in time"
						    : strerror(-sum->status));
	fputc('\n', f);
	if (fclose(f) != 0) {
		free(line);
		return NULL;
	}
	return line;
}

long kvfs_space_forget(kvfs_space *space, const kvfs_key *keys, size_t n,
		       uint64_t timeout, char **ret_text)
{
	struct wire_forgot sum = {0}, some;
	const uint64_t until = kv_time_after(timeout);
	long r = kv_session_check(space ? space->session : NULL);
	size_t done = 0, batch;

	if (r < 0)
		return r;
	if (!kv_wire_keys_are_valid(keys, n) || !ret_text)
		return -EINVAL;
	if (n == 0) {
		/* Without a remote tier this fails, and nothing is cleared. */
		r = forget_some(space, NULL, 0, 0, &some);
		if (r >= 0)
			r = kvfs_space_clear(space);
		if (r < 0)
			return r;
	}
	do {
		const uint64_t now = kv_now_ns();

		batch = KV_MIN(n - done, (size_t)WIRE_BATCH);
		r = forget_some(space, keys + done, batch,
				now < until ? until - now : 1, &some);
		if (r < 0)
			return r;
		memcpy(sum.url, some.url, sizeof(sum.url));
		if (!sum.status) {
			sum.status = some.status;
			memcpy(sum.why, some.why, sizeof(sum.why));
		}
		sum.removed += some.removed;
		sum.absent += some.absent;
		sum.failed += some.failed;
		done += batch;
	} while (done < n);
	*ret_text = print_forgot(&sum, n == 0);
	return *ret_text ? (long)sum.failed : -ENOMEM;
}

#define REMOVE_TRIES 3

int kvfs_space_remove(kvfs_space *space)
{
	int r = kv_session_check(space ? space->session : NULL);

	if (r < 0)
		return r;
	r = -ENOTEMPTY;
	for (int i = 0; i < REMOVE_TRIES && r == -ENOTEMPTY; i++) {
		r = kvfs_space_clear(space);
		if (r == 0)
			r = change_space(space, WIRE_SPACE_REMOVE);
	}
	if (r < 0)
		return r;
	/* Later calls with this space must not create the space again. */
	pthread_mutex_lock(&space->session->lock);
	space->flags &= ~KVFS_CREATE;
	kv_lib_space_forget_locked(space);
	pthread_mutex_unlock(&space->session->lock);
	return 0;
}

/* ---- listing ---- */

long kvfs_space_keys(kvfs_space *space, uint64_t *cursor, kvfs_key *ret_keys,
		     size_t max)
{
	struct {
		struct wire_list head;
		struct wire_key keys[WIRE_BATCH];
	} reply;
	struct wire_list asked = {0};
	uint64_t generation;
	uint32_t id;
	size_t n, got = 0;
	long r = kv_session_check(space ? space->session : NULL);

	if (r < 0)
		return r;
	if (!cursor || !ret_keys || max < KVFS_LIST_MIN)
		return -EINVAL;
	r = kv_lib_space_id(space, &id, &generation);
	if (r < 0)
		return kv_lib_space_miss((int)r);
	do {
		asked.cursor = *cursor;
		asked.max = (uint32_t)KV_MIN(max - got, (size_t)WIRE_BATCH);
		r = kv_ask(space->session, &(struct kv_question){
						   .header = {.type = WIRE_LIST,
							      .count = 1,
							      .space = id},
						   .items = &asked,
						   .bytes = sizeof(asked),
						   .reply = &reply,
						   .room = sizeof(reply),
					   });
		n = ((size_t)r - sizeof(reply.head)) / sizeof(reply.keys[0]);
		if (r >= 0 &&
		    ((size_t)r < sizeof(reply.head) || n > asked.max ||
		     (size_t)r !=
			     sizeof(reply.head) + n * sizeof(reply.keys[0])))
			r = -EPROTO;
		for (size_t i = 0; r >= 0 && i < n; i++)
			if (kvfs_key_set(reply.keys[i].key, reply.keys[i].len,
					 &ret_keys[got + i]) < 0)
				r = -EPROTO;
		if (r < 0 && got == 0)
			return r == -ETIMEDOUT ? -ENOTCONN : r;
		if (r < 0)
			break;
		*cursor = reply.head.cursor;
		got += n;
	} while (*cursor != 0 && max - got >= KVFS_LIST_MIN);
	return (long)got;
}

/* Ask for entries by a message of @type, with @asked, and wait @ns longer for the reply
 * than for others.  Store what precedes the entries in *@asked.  Return the number of
 * entries, or -errno. */
static long ask_entries(kvfs_space *space, uint16_t type, uint64_t ns,
			struct wire_list *asked, kvfs_entry *ret_entries)
{
	_cleanup_(kv_freep) struct wire_list *reply = calloc(1, WIRE_MAX);
	const struct wire_entry *wire = (const void *)(reply + 1);
	struct kv_packet packet = {
		.header = {.type = type,
			   .flags = type == WIRE_LIST ? WIRE_DETAILS : 0,
			   .count = 1,
			   .arg = ns},
		.items = asked,
		.bytes = sizeof(*asked),
		.fd = -1};
	uint64_t generation;
	size_t n;
	long r;

	if (!reply)
		return -ENOMEM;
	r = kv_lib_space_miss(
		kv_lib_space_id(space, &packet.header.space, &generation));
	if (r == 0)
		r = ask_and_wait(space->session, space, &packet,
				 &(struct room){reply, WIRE_MAX, 1, ns});
	if (r < 0)
		return r;
	n = ((size_t)r - sizeof(*reply)) / sizeof(*wire);
	if ((size_t)r < sizeof(*reply) || n > asked->max)
		return -EPROTO;
	for (size_t i = 0; i < n; i++) {
		kvfs_entry *entry = &ret_entries[i];

		*entry = (kvfs_entry){.position = wire[i].position,
				      .tokens = wire[i].tokens,
				      .bytes_dram = wire[i].bytes_dram,
				      .bytes_ssd = wire[i].bytes_ssd,
				      .used = wire[i].used,
				      .hits = wire[i].hits,
				      .pinned = wire[i].pinned,
				      .id = wire[i].id,
				      .parent_id = wire[i].parent_id};
		(void)kvfs_key_set(wire[i].key, wire[i].len, &entry->key);
		(void)kvfs_key_set(wire[i].parent, wire[i].parent_len,
				   &entry->parent);
	}
	*asked = *reply;
	return (long)n;
}

long kvfs_space_list(kvfs_space *space, uint64_t *cursor,
		     kvfs_entry *ret_entries, size_t max)
{
	struct wire_list asked;
	size_t got = 0;
	long r = kv_session_check(space ? space->session : NULL);

	if (r < 0)
		return r;
	if (!cursor || !ret_entries || max < KVFS_LIST_MIN)
		return -EINVAL;
	do {
		asked = (struct wire_list){
			.cursor = *cursor,
			.max = (uint32_t)KV_MIN(max - got, (size_t)WIRE_BATCH)};
		r = ask_entries(space, WIRE_LIST, 0, &asked, ret_entries + got);
		if (r < 0)
			return got > 0 ? (long)got : r;
		*cursor = asked.cursor;
		got += (size_t)r;
	} while (*cursor != 0 && max - got >= KVFS_LIST_MIN);
	return (long)got;
}

long kvfs_space_changes(kvfs_space *space, uint64_t *cursor,
			kvfs_entry *ret_entries, size_t max, uint64_t timeout)
{
	struct wire_list asked = {
		.max = (uint32_t)KV_MIN(max, (size_t)WIRE_BATCH)};
	long r = kv_session_check(space ? space->session : NULL);

	if (r < 0)
		return r;
	if (!cursor || !ret_entries || max == 0)
		return -EINVAL;
	asked.cursor = *cursor;
	r = ask_entries(space, WIRE_CHANGES,
			KV_MIN(timeout, (uint64_t)KVFS_CHANGES_NS), &asked,
			ret_entries);
	if (r < 0)
		return r;
	*cursor = asked.cursor;
	return asked.lost ? -ESTALE : r;
}

/* ---- token ids ---- */

/* Parse the entries of a WIRE_TOKEN_IDS reply, in the @bytes at @at, into at
 * most @max @ret_tokens.  Return the number of entries. */
static long take_tokens(const uint8_t *at, size_t bytes, size_t max,
			kvfs_tokens *ret_tokens)
{
	const struct wire_tokens *wire;
	kvfs_tokens *tokens;
	size_t n = 0;

	for (; bytes > 0; n++) {
		wire = (const void *)at;
		if (n == max || bytes < sizeof(*wire) || wire->bytes > bytes ||
		    wire->bytes % 8 != 0 ||
		    wire->bytes < sizeof(*wire) + wire->n * (uint64_t)4 +
					  wire->extras_len)
			return -EPROTO;
		tokens = &ret_tokens[n];
		*tokens = (kvfs_tokens){.status = wire->status,
					.position = wire->position};
		at += wire->bytes;
		bytes -= wire->bytes;
		if (wire->status < 0)
			continue;
		(void)kvfs_key_set(wire->parent, wire->parent_len,
				   &tokens->parent);
		tokens->n = wire->n;
		tokens->ids = (const uint32_t *)(wire + 1);
		tokens->extras_len = wire->extras_len;
		tokens->extras = tokens->ids + wire->n;
	}
	return n > 0 ? (long)n : -EPROTO;
}

long kvfs_space_tokens(kvfs_space *space, const kvfs_key *keys, size_t n,
		       kvfs_tokens *ret_tokens, void *buffer, size_t bytes)
{
	struct wire_key items[WIRE_BATCH];
	struct kv_packet packet = {.items = items, .fd = -1};
	uint8_t *at = buffer;
	size_t got = 0, batch, used = 0;
	uint64_t generation;
	long r = kv_session_check(space ? space->session : NULL);

	if (r < 0)
		return r;
	if (!kv_wire_keys_are_valid(keys, n) || (n > 0 && !ret_tokens) ||
	    !buffer || (uintptr_t)buffer % 8 != 0 || bytes < KVFS_TOKENS_ROOM)
		return -EINVAL;
	while (got < n && bytes >= KVFS_TOKENS_ROOM) {
		batch = KV_MIN(n - got, (size_t)WIRE_BATCH);
		packet.header = (struct wire_header){.type = WIRE_TOKEN_IDS,
						     .count = (uint32_t)batch};
		packet.bytes = batch * sizeof(items[0]);
		kv_wire_keys(keys + got, batch, items);
		r = kv_lib_space_miss(kv_lib_space_id(
			space, &packet.header.space, &generation));
		if (r == 0)
			r = ask_and_wait(
				space->session, space, &packet,
				&(struct room){at, KVFS_TOKENS_ROOM, 1, 0});
		used = (size_t)KV_MAX(r, 0);
		if (r >= 0)
			r = take_tokens(at, used, batch, ret_tokens + got);
		if (r < 0)
			return got > 0 ? (long)got : r;
		got += (size_t)r;
		at += used;
		bytes -= used;
	}
	return (long)got;
}

int kvfs_space_keeps_tokens(kvfs_space *space)
{
	const struct kv_layout *layout;
	int r = kv_session_check(space ? space->session : NULL);

	if (r < 0)
		return r;
	layout = kv_lib_space_layout(space);
	return layout ? layout->token_ids : -EMEDIUMTYPE;
}

/* ---- texts and limits ---- */

_Static_assert((int)KVFS_TEXT_STATS == WIRE_TEXT_STATS &&
		       (int)KVFS_TEXT_USER == WIRE_TEXT_USER,
	       "texts are passed on unchanged");

int kvfs_text(kvfs_session *session, enum kvfs_text_what what, uint32_t uid,
	      char **ret_text)
{
	_cleanup_(kv_freep) char *part = NULL, *text = NULL;
	uint64_t of = what == KVFS_TEXT_USER ? uid : 0;
	size_t bytes = 0, head;
	char *more;
	long n;
	int r = kv_session_check(session);

	if (r < 0)
		return r;
	if (!ret_text || (unsigned)what > KVFS_TEXT_USER)
		return -EINVAL;
	part = malloc(WIRE_MAX + 1);
	if (!part)
		return -ENOMEM;
	do {
		n = kv_ask(session,
			   &(struct kv_question){
				   .header = {.type = WIRE_STATS,
					      .arg = (uint64_t)what |
						     of << WIRE_TEXT_BITS},
				   .reply = part,
				   .room = WIRE_MAX});
		if (n < 0)
			return n == -ETIMEDOUT ? -ENOTCONN : (int)n;
		part[n] = '\0';
		head = 0;
		if (what == KVFS_TEXT_SPACES) { /* the first line is a number */
			of = strtoul(part, &more, 10);
			if (*more != '\n')
				return -EPROTO;
			head = (size_t)(more + 1 - part);
		}
		more = realloc(text, bytes + (size_t)n + 1 - head);
		if (!more)
			return -ENOMEM;
		text = more;
		memcpy(text + bytes, part + head, (size_t)n + 1 - head);
		bytes += (size_t)n - head;
	} while (what == KVFS_TEXT_SPACES && of != 0);
	*ret_text = kv_steal(text);
	return 0;
}

int kvfs_stats(kvfs_session *session, char **ret_text)
{
	return kvfs_text(session, KVFS_TEXT_STATS, 0, ret_text);
}

int kvfs_limit(kvfs_session *session, kvfs_space *space, uint32_t uid,
	       const char *limits)
{
	const size_t n = limits ? strlen(limits) : 0;
	struct kv_packet packet = {.header = {.type = WIRE_LIMIT,
					      .count = (uint32_t)n,
					      .arg = space ? 0 : uid},
				   .items = (void *)limits,
				   .bytes = n,
				   .fd = -1};
	int r = kv_session_check(session);

	if (r < 0)
		return r;
	if (n == 0 || n > WIRE_LIMITS_MAX ||
	    (space && space->session != session))
		return -EINVAL;
	return (int)ask_and_wait(session, space, &packet, &(struct room){0});
}

/* ---- matching: how much of a prompt exists, for all layer groups ---- */

/* One query of a kvfs_match call. */
struct group {
	const kvfs_query *query;
	enum kv_reuse reuse;
	uint32_t window;
	/* tokens in a block; 1 in kvfs_match, which counts blocks */
	uint64_t tokens;
	uint64_t before; /* blocks of the prompt before the query's first key */
	uint64_t n;	 /* whole blocks of the query */
	/* For each block the length of the run of present blocks that ends with
	 * the block; UINT32_MAX if all blocks up to the block are present. */
	uint32_t *runs;
};

/* Compute, in whole blocks, where the query begins in the prompt, and its
 * length.
 * -EINVAL: the layout has no number of tokens a block, or query->start lies
 *          within a block */
static int measure(const kvfs_query *query, bool in_tokens,
		   struct group *ret_group)
{
	const struct kv_layout *layout = kv_lib_space_layout(query->space);
	uint64_t tokens, end;

	*ret_group = (struct group){
		.query = query,
		.reuse = layout ? layout->reuse : KV_REUSE_PREFIX,
		.window = layout ? layout->window : 0,
		.tokens = 1,
		.n = query->n,
	};
	if (!in_tokens)
		return 0;
	if (!layout || layout->tokens == 0 ||
	    query->start % layout->tokens != 0)
		return -EINVAL;
	if (__builtin_mul_overflow((uint64_t)query->n, layout->tokens,
				   &tokens) ||
	    __builtin_add_overflow(query->start, tokens, &end) ||
	    end > INT64_MAX)
		return -EINVAL;
	if (query->tokens != 0)
		end = KV_MIN(end, KV_MAX(query->tokens, query->start));
	ret_group->tokens = layout->tokens;
	ret_group->before = query->start / layout->tokens;
	ret_group->n = (end - query->start) / layout->tokens;
	return 0;
}

/* Return the least common multiple of @a and @b, or UINT64_MAX if it
 * overflows. */
static uint64_t common_multiple(uint64_t a, uint64_t b)
{
	uint64_t x = a, y = b, rest, multiple;

	while (y != 0) {
		rest = x % y;
		x = y;
		y = rest;
	}
	return __builtin_mul_overflow(a / x, b, &multiple) ? UINT64_MAX
							   : multiple;
}

/* Ask the daemon which blocks of the group exist, up to token @end of the
 * prompt, and fill group->runs. */
static int look_up(struct group *group, uint64_t end)
{
	_cleanup_(kv_freep) uint8_t *states = NULL;
	kvfs_query asked = *group->query;
	uint32_t run = UINT32_MAX;

	end /= group->tokens;
	group->n = KV_MIN(group->n, end - KV_MIN(group->before, end));
	asked.n = group->n;
	states = malloc(group->n + 1);
	group->runs = calloc(group->n + 1, sizeof(*group->runs));
	if (!states || !group->runs)
		return -ENOMEM;
	probe(&asked, states);
	for (size_t i = 0; i < group->n; i++) {
		if (states[i] < KVFS_SSD)
			run = 0;
		else if (run != UINT32_MAX)
			run++;
		group->runs[i] = run;
	}
	return 0;
}

/* Return whether the engine can continue the group after @tokens, by the reuse
 * rule of the space's layout.  @tokens is a multiple of the group's block. */
static bool can_go_on(const struct group *group, uint64_t tokens)
{
	const uint64_t blocks = tokens / group->tokens;
	uint32_t run;

	if (blocks <= group->before)
		return true;
	run = group->runs[blocks - group->before - 1];
	if (run == UINT32_MAX)
		return true;
	if (group->reuse == KV_REUSE_WINDOW)
		return run >= group->window;
	return group->reuse == KV_REUSE_LAST && run > 0;
}

static long match_groups(const kvfs_query *queries, size_t n, bool in_tokens,
			 struct group *groups)
{
	uint64_t end = INT64_MAX, step = 1;
	int r = 0;

	for (size_t i = 0; i < n; i++) {
		struct group *group = &groups[i];

		r = measure(&queries[i], in_tokens, group);
		if (r < 0)
			return r;
		end = KV_MIN(end, (group->before + group->n) * group->tokens);
		step = common_multiple(step, group->tokens);
	}
	if (step > end)
		return 0;
	for (size_t i = 0; i < n && r == 0; i++)
		r = look_up(&groups[i], end);
	if (r < 0)
		return r;
	for (end -= end % step; end > 0; end -= step) {
		size_t i = 0;

		while (i < n && can_go_on(&groups[i], end))
			i++;
		if (i == n)
			break;
	}
	return (long)end;
}

static long match(const kvfs_query *queries, size_t n_queries, bool in_tokens)
{
	kvfs_session *session;
	struct group *groups;
	long r = kv_queries_check(queries, n_queries, &session);

	if (r < 0 || n_queries == 0)
		return r;
	groups = calloc(n_queries, sizeof(*groups));
	if (!groups)
		return -ENOMEM;
	r = match_groups(queries, n_queries, in_tokens, groups);
	for (size_t i = 0; i < n_queries; i++)
		free(groups[i].runs);
	free(groups);
	return r;
}

long kvfs_match(const kvfs_query *queries, size_t n_queries)
{
	return match(queries, n_queries, false);
}

long kvfs_match_tokens(const kvfs_query *queries, size_t n_queries)
{
	return match(queries, n_queries, true);
}
