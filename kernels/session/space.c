/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.c - the client's record of a space, and the snapshots of a space.
 *
 * OWNS      struct kvfs_space and every layout that the space has had.  Not the
 *           picks of a snapshot: the daemon has them from the first message on,
 *           and drops them when the connection ends.
 *
 * STATES    of a space:
 *
 *             UNKNOWN -> KNOWN     kv_lib_space_take_locked: the daemon's reply
 *               KNOWN -> UNKNOWN   the connection ends (known_by is no longer
 *                                  the live one), kv_lib_space_forget_locked
 *
 * INVARIANTS
 *   (1) A layout that a caller has seen is kept until the space is freed.
 *   (2) The daemon gets the caller's layout text, not the layout that was
 *       completed with a seed here, because the daemon draws the seed.
 *   (3) The id of a set of picks is used once in the life of the process.
 *
 * LOCKING   session->lock; not held during a question.
 */
#include <stdatomic.h>

#include "kernels/session/rpc.h"
#include "kernels/session/session.h"

struct kv_layout_seen {
	struct kv_layout_seen *older;
	struct kv_layout *layout;
};

/* The daemon's reply about a space. */
struct answer {
	struct wire_space head;
	char text[WIRE_MAX];
};

static void space_freep(struct kvfs_space **spacep)
{
	struct kvfs_space *space = *spacep;
	struct kv_layout_seen *seen, *older;

	if (!space)
		return;
	for (seen = space->layouts; seen; seen = older) {
		older = seen->older;
		kv_layout_free(seen->layout);
		free(seen);
	}
	free(space->name);
	free(space->text);
	free(space);
}

void kv_lib_space_get_locked(struct kvfs_space *space)
{
	kv_assert_locked(&space->session->lock);
	space->refs++;
}

void kv_lib_space_put_locked(struct kvfs_space *space)
{
	kv_assert_locked(&space->session->lock);
	if (--space->refs == 0)
		space_freep(&space);
}

const struct kv_layout *kv_lib_space_layout(struct kvfs_space *space)
{
	const struct kv_layout *layout;

	pthread_mutex_lock(&space->session->lock);
	layout = space->layouts ? space->layouts->layout : NULL;
	pthread_mutex_unlock(&space->session->lock);
	return layout;
}

bool kv_lib_layout_same_tensors(const struct kv_layout *a,
				const struct kv_layout *b)
{
	if (a == b)
		return true;
	if (!a || !b || a->n_tensors != b->n_tensors)
		return false;
	for (uint32_t i = 0; i < a->n_tensors; i++) {
		const struct kv_tensor *x = &a->tensors[i];
		const struct kv_tensor *y = &b->tensors[i];

		if (strcmp(x->name, y->name) != 0 ||
		    strcmp(x->dtype, y->dtype) != 0 || x->ndim != y->ndim ||
		    memcmp(x->shape, y->shape, x->ndim * sizeof(x->shape[0])) !=
			    0)
			return false;
	}
	return true;
}

/* Make @layout the current layout of the space, and take it over; free it if it
 * equals the current one. */
static int keep_layout_locked(struct kvfs_space *space,
			      struct kv_layout *layout)
{
	struct kv_layout_seen *seen = space->layouts;

	kv_assert_locked(&space->session->lock);
	if (seen && strcmp(seen->layout->json, layout->json) == 0) {
		kv_layout_free(layout);
		return 0;
	}
	seen = malloc(sizeof(*seen));
	if (!seen) {
		kv_layout_free(layout);
		return -ENOMEM;
	}
	seen->layout = layout;
	seen->older = space->layouts;
	space->layouts = seen;
	return 0;
}

/* Make the WIRE_SPACE message of the space in @ret_packet.  Returns the items,
 * which the caller frees, or NULL: no memory. */
static uint8_t *make_message(const struct kvfs_space *space,
			     struct kv_packet *ret_packet)
{
	const size_t name = strlen(space->name), text = strlen(space->text);
	const struct wire_space head = {
		.flags = (space->flags & KVFS_CREATE ? WIRE_SPACE_CREATE : 0) |
			 (space->flags & KVFS_SHARED ? WIRE_SPACE_SHARED : 0),
		.mode = space->flags & 0777 ? space->flags & 0777 : 0700,
	};
	const size_t bytes = sizeof(head) + name + 1 + text;
	uint8_t *items = malloc(bytes);

	if (!items)
		return NULL;
	/* Send the space's name, a NUL, and the layout's text. */
	memcpy(items, &head, sizeof(head));
	memcpy(items + sizeof(head), space->name, name + 1);
	memcpy(items + sizeof(head) + name + 1, space->text, text);
	*ret_packet = (struct kv_packet){
		.header = {.type = WIRE_SPACE,
			   .count = (uint32_t)(name + 1 + text)},
		.items = items,
		.bytes = bytes,
		.fd = -1,
	};
	return items;
}

int kv_lib_space_submit_locked(struct kvfs_space *space, struct kv_call *call)
{
	_cleanup_(kv_freep) uint8_t *items = NULL;
	struct kv_packet packet;

	kv_assert_locked(&space->session->lock);
	items = make_message(space, &packet);
	if (!items)
		return -ENOMEM;
	call->count = WIRE_MAX;
	call->at_most = true;
	return kv_rpc_submit_locked(space->session, call, &packet);
}

int kv_lib_space_take_locked(struct kvfs_space *space, uint64_t generation,
			     const struct wire_space *head, long n,
			     const struct kv_layout *like)
{
	struct kv_layout *layout;
	/* The reply ends with the space's name, a NUL and the layout, or with
	 * nothing if the space is untyped. */
	const char *text = (const char *)(head + 1);
	const char *nul = n <= 0 ? NULL : memchr(text, '\0', (size_t)n);
	size_t len = nul ? (size_t)(text + n - (nul + 1)) : 0;
	int r;

	kv_assert_locked(&space->session->lock);
	if (n < 0 || (!nul && n > 0))
		return -EPROTO;
	r = len > 0 ? kv_layout_parse(nul + 1, len, &layout) : 0;
	if (r == 0 && len > 0)
		r = keep_layout_locked(space, layout);
	if (r < 0)
		return r;
	space->id = head->id;
	space->uid = head->uid;
	space->mode = head->mode;
	space->told = true;
	space->known_by = generation;
	return !like || kv_lib_layout_same_tensors(
				space->layouts ? space->layouts->layout : NULL,
				like)
		       ? 0
		       : -ESTALE;
}

/* Ask the daemon about the space, store its id, owner, mode and layout, and
 * return the id with its connection: a late reply to a save may make the library
 * forget a new id at once. */
static int resolve(struct kvfs_space *space, uint32_t *ret_id,
		   uint64_t *ret_generation)
{
	_cleanup_(kv_freep) struct answer *answer = malloc(sizeof(*answer));
	_cleanup_(kv_freep) uint8_t *items = NULL;
	struct kvfs_session *session = space->session;
	uint64_t generation = atomic_load(&session->live);
	struct kv_packet packet;
	long n;
	int r;

	items = make_message(space, &packet);
	if (!items || !answer)
		return -ENOMEM;
	n = kv_ask(session, &(struct kv_question){.header = packet.header,
						  .items = items,
						  .bytes = packet.bytes,
						  .reply = answer,
						  .room = sizeof(*answer) - 1});
	if (n < 0)
		return n == -ETIMEDOUT ? -ENOTCONN : (int)n;
	pthread_mutex_lock(&session->lock);
	r = kv_lib_space_take_locked(space, generation, &answer->head,
				     n - (long)sizeof(answer->head), NULL);
	if (r == 0) {
		*ret_id = space->id;
		*ret_generation = generation;
		if (!kv_session_is_live(session, generation))
			r = -ENOTCONN;
	}
	pthread_mutex_unlock(&session->lock);
	return r;
}

int kv_lib_space_id(struct kvfs_space *space, uint32_t *ret_id,
		    uint64_t *ret_generation)
{
	struct kvfs_session *session = space->session;
	bool known;

	pthread_mutex_lock(&session->lock);
	known = kv_session_is_live(session, space->known_by);
	*ret_id = space->id;
	*ret_generation = space->known_by;
	pthread_mutex_unlock(&session->lock);
	return known ? 0 : resolve(space, ret_id, ret_generation);
}

long kv_space_ask(struct kvfs_space *space, struct kv_question *question)
{
	uint64_t generation;
	int r = kv_lib_space_id(space, &question->header.space, &generation);

	return r < 0 ? r : kv_ask(space->session, question);
}

int kv_lib_space_miss(int r)
{
	return r == 0 || r == kv_link_lost(r) ? r : -ENOENT;
}

void kv_lib_space_forget_locked(struct kvfs_space *space)
{
	kv_assert_locked(&space->session->lock);
	space->known_by = 0;
}

static int check_name(const char *name)
{
	size_t len;

	if (!name)
		return -EINVAL;
	len = strnlen(name, KV_SPACE_NAME_MAX + 1);
	if (len == 0 || len > KV_SPACE_NAME_MAX || name[0] == '.' ||
	    strchr(name, '/'))
		return -EINVAL;
	return 0;
}

int kvfs_space_open(kvfs_session *session, const char *name, const char *layout,
		    unsigned flags, kvfs_space **ret_space)
{
	_cleanup_(space_freep) struct kvfs_space *space = NULL;
	struct kv_layout *parsed;
	uint64_t generation;
	uint32_t id;
	int r = kv_session_check(session);

	if (r < 0)
		return r;
	if (!ret_space || check_name(name) < 0 ||
	    (flags & ~(KVFS_CREATE | KVFS_SHARED | 0777u)) != 0 ||
	    (layout && strlen(layout) > KV_LAYOUT_TEXT_MAX))
		return -EINVAL;
	space = calloc(1, sizeof(*space));
	if (!space)
		return -ENOMEM;
	space->session = session;
	space->refs = 1;
	space->flags = flags;
	space->name = strdup(name);
	space->text = strdup(layout ? layout : "");
	if (!space->name || !space->text)
		return -ENOMEM;
	r = kv_lib_space_id(space, &id, &generation);
	if (r < 0 && r == kv_link_lost(r) && space->text[0] != '\0') {
		/* Without a daemon use the caller's layout, with a seed drawn
		 * here. */
		r = kv_layout_parse(space->text, strlen(space->text), &parsed);
		if (r < 0)
			return r;
		pthread_mutex_lock(&session->lock);
		r = keep_layout_locked(space, parsed);
		pthread_mutex_unlock(&session->lock);
	}
	if (r < 0)
		return r;
	*ret_space = kv_steal(space);
	return 0;
}

void kvfs_space_close(kvfs_space *space)
{
	struct kvfs_session *session;

	if (!space || kv_session_check(space->session) < 0)
		return;
	session = space->session;
	pthread_mutex_lock(&session->lock);
	kv_lib_space_put_locked(space);
	pthread_mutex_unlock(&session->lock);
}

int kvfs_space_owner(kvfs_space *space, uint32_t *ret_uid, uint32_t *ret_mode)
{
	int r = kv_session_check(space ? space->session : NULL);

	if (r < 0)
		return r;
	pthread_mutex_lock(&space->session->lock);
	r = space->told ? 0 : -ENOTCONN;
	if (r == 0 && ret_uid)
		*ret_uid = space->uid;
	if (r == 0 && ret_mode)
		*ret_mode = space->mode;
	pthread_mutex_unlock(&space->session->lock);
	return r;
}

const char *kvfs_space_layout(kvfs_space *space)
{
	const struct kv_layout *layout;

	if (!space || kv_session_check(space->session) < 0)
		return NULL;
	layout = kv_lib_space_layout(space);
	return layout ? layout->json : NULL;
}

long kvfs_space_layers(kvfs_space *space)
{
	const struct kv_layout *layout;
	int r = kv_session_check(space ? space->session : NULL);

	if (r < 0)
		return r;
	layout = kv_lib_space_layout(space);
	return layout ? (long)layout->layers : 0;
}

uint64_t kvfs_space_payload(kvfs_space *space)
{
	const struct kv_layout *layout;

	if (!space || kv_session_check(space->session) < 0)
		return 0;
	layout = kv_lib_space_layout(space);
	return layout ? layout->payload : 0;
}

/* ---- snapshots ---- */

/* Ask the daemon about @space.  -ENOTCONN: there is no daemon, or it hangs. */
static long ask(kvfs_space *space, struct kv_question *question)
{
	long r = kv_space_ask(space, question);

	return r == -ETIMEDOUT ? -ENOTCONN : r;
}

static int snapshot_check(kvfs_space *space, const char *name)
{
	int r = kv_session_check(space ? space->session : NULL);

	return r < 0 ? r : check_name(name);
}

/* A message that ends with a snapshot's name. */
struct named {
	struct wire_snapshot head;
	char name[KV_SPACE_NAME_MAX + 1];
};

int kvfs_snapshot(kvfs_space *space, const char *name, const kvfs_key *keys,
		  const uint32_t *positions, size_t n, size_t *ret_missing)
{
	static _Atomic uint64_t sets;
	struct named message = {.head = {.blocks = (uint32_t)n}};
	struct wire_snapshot reply = {.blocks = (uint32_t)n};
	struct kv_question question = {
		.header = {.type = WIRE_SNAPSHOT,
			   .count = (uint32_t)(name ? strlen(name) : 0)},
		.items = &message,
		.bytes = sizeof(message.head) + (name ? strlen(name) : 0),
		.reply = &reply,
		.room = sizeof(reply),
	};
	struct wire_pick items[WIRE_BATCH];
	uint64_t set;
	size_t batch;
	long got = snapshot_check(space, name);

	if (got < 0)
		return (int)got;
	if (!kv_wire_keys_are_valid(keys, n) || n == 0 || n > KVFS_SNAPSHOT_MAX)
		return -EINVAL;
	for (size_t i = 0; positions && i < n; i++)
		if (positions[i] > KVFS_POSITION_MAX ||
		    (i > 0 && positions[i] <= positions[i - 1]))
			return -EINVAL;
	set = atomic_fetch_add(&sets, 1) + 1;
	for (size_t i = 0; i < n; i += batch) {
		batch = KV_MIN(n - i, (size_t)WIRE_BATCH);
		memset(items, 0, sizeof(items));
		for (size_t j = 0; j < batch; j++) {
			const kvfs_key *key = &keys[i + j];

			memcpy(items[j].key, key->bytes, key->len);
			items[j].len = key->len;
			items[j].position = positions ? positions[i + j]
						      : (uint32_t)(i + j);
		}
		got = ask(space, &(struct kv_question){
					 .header = {.type = WIRE_PICK,
						    .count = (uint32_t)batch,
						    .arg = set},
					 .items = items,
					 .bytes = batch * sizeof(items[0])});
		if (got < 0)
			return (int)got;
	}
	message.head.id = set;
	strcpy(message.name, name);
	got = ask(space, &question);
	if (ret_missing)
		*ret_missing = KV_MIN((size_t)reply.blocks, n);
	/* -ESTALE: the daemon that got the picks was replaced by another
	 * one. */
	return got == -ESTALE ? -ENOTCONN : (int)KV_MIN(got, 0);
}

long kvfs_snapshot_keys(kvfs_space *space, const char *name, kvfs_key *ret_keys,
			uint32_t *ret_positions, size_t max)
{
	struct named message = {0};
	struct {
		struct wire_snapshot head;
		struct wire_pick picks[WIRE_BATCH];
	} reply;
	struct kv_question question = {
		.items = &message, .reply = &reply, .room = sizeof(reply)};
	size_t n = 0, picks = WIRE_BATCH;
	long r = snapshot_check(space, name);

	if (r < 0)
		return r;
	strcpy(message.name, name);
	question.bytes = sizeof(message.head) + strlen(name);
	reply.head = (struct wire_snapshot){0};
	do {
		question.header =
			(struct wire_header){.type = WIRE_SNAPSHOT_READ,
					     .count = (uint32_t)strlen(name),
					     .arg = WIRE_BATCH};
		r = ask(space, &question);
		if (r == -ESTALE && message.head.id != 0) {
			/* Another snapshot has taken the name: begin again. */
			message.head = (struct wire_snapshot){0};
			n = 0;
			picks = WIRE_BATCH;
			continue;
		}
		if (r < 0)
			return r;
		picks = question.header.count;
		if (picks > WIRE_BATCH ||
		    (size_t)r !=
			    sizeof(reply.head) + picks * sizeof(reply.picks[0]))
			return -EPROTO;
		message.head.id = reply.head.id;
		for (size_t i = 0; i < picks; i++) {
			const struct wire_pick *pick = &reply.picks[i];
			kvfs_key key;

			if (kvfs_key_set(pick->key, pick->len, &key) < 0)
				return -EPROTO;
			message.head.from = pick->position + 1;
			if (n == max)
				continue;
			if (ret_keys)
				ret_keys[n] = key;
			if (ret_positions)
				ret_positions[n] = pick->position;
			n++;
		}
	} while (picks == WIRE_BATCH && n < max);
	return (long)reply.head.blocks;
}

long kvfs_snapshot_list(kvfs_space *space, char **ret_names)
{
	_cleanup_(kv_freep) struct wire_snapshot *reply = malloc(WIRE_MAX);
	_cleanup_(kv_freep) char *names = NULL;
	struct kv_question question = {.reply = reply, .room = WIRE_MAX};
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
		if (!reply)
			return -ENOMEM;
		/* Ask for the names of the snapshots after @id. */
		question.header = (struct wire_header){
			.type = WIRE_SNAPSHOT_LIST, .arg = id};
		n = ask(space, &question);
		if (n < 0)
			return n;
		if ((size_t)n < sizeof(*reply))
			return -EPROTO;
		n -= (long)sizeof(*reply);
		id = reply->id;
		memcpy(names + bytes, reply + 1, (size_t)n);
		bytes += (size_t)n;
		if (n > 0 && names[bytes - 1] != '\0')
			return -EPROTO;
	} while (n > 0);
	for (size_t i = 0; i < bytes; i++)
		count += names[i] == '\0';
	*ret_names = kv_steal(names);
	return count;
}

int kvfs_snapshot_drop(kvfs_space *space, const char *name)
{
	struct kv_question question = {.header = {.type = WIRE_SNAPSHOT_DROP}};
	long r = snapshot_check(space, name);

	if (r < 0)
		return (int)r;
	question.items = name;
	question.bytes = strlen(name);
	question.header.count = (uint32_t)question.bytes;
	r = ask(space, &question);
	return (int)KV_MIN(r, 0);
}
