/* SPDX-License-Identifier: Apache-2.0 */
/*
 * housekeeping.c - evict, pin, clear, statistics: questions to the daemon that
 * change something or tell of it.
 *
 * OWNS      nothing.
 *
 * LOCKING   none of its own; see ask.c and space.c.
 */
#include "kernels/session/ask.h"
#include "kernels/session/lookup.h"
#include "kernels/session/session.h"
#include "kernels/session/space.h"

#define CLEAR_NS 60000000000u

/* A message's worth; statuses into @ret_statuses, or why there are none. */
static int change_batch(kvfs_space *space, const struct wire_header *header,
			const kvfs_key *keys, struct wire_status *ret_statuses)
{
	struct wire_key items[WIRE_BATCH];
	size_t bytes = header->count * sizeof(*ret_statuses);
	struct kv_question question = {
		.header = *header,
		.items = items,
		.bytes = header->count * sizeof(items[0]),
		.reply = ret_statuses,
		.room = bytes,
	};
	long got;

	kv_wire_keys(keys, header->count, items);
	got = kv_ask(space->session, &question);
	if (got < 0)
		return (int)got;
	return (size_t)got == bytes ? 0 : -EPROTO;
}

/* Every key is tried; a daemon that is not there is the status of all. */
static long change(kvfs_space *space, struct wire_header header,
		   const kvfs_key *keys, size_t n, int *ret_statuses)
{
	struct wire_status statuses[WIRE_BATCH] = {0};
	uint64_t generation;
	size_t batch;
	long done = 0;
	int status, r = kv_session_check(space ? space->session : NULL);

	if (r < 0)
		return r;
	if (!kv_wire_keys_are_valid(keys, n))
		return -EINVAL;
	r = kv_lib_space_id(space, &header.space, &generation);
	for (size_t i = 0; i < n; i += batch) {
		batch = KV_MIN(n - i, (size_t)WIRE_BATCH);
		header.count = (uint32_t)batch;
		if (r == 0)
			r = change_batch(space, &header, keys + i, statuses);
		for (size_t j = 0; j < batch; j++) {
			status = r < 0 ? r : statuses[j].status;
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
	struct wire_header header = {.type = WIRE_EVICT};

	return change(space, header, keys, n, ret_statuses);
}

static void post_ended_locked(kvfs_space *space, uint32_t id,
			      const kvfs_key *keys, size_t n)
{
	struct wire_key items[WIRE_BATCH];
	struct kv_packet packet = {
		.header = {.type = WIRE_ENDED,
			   .count = (uint32_t)n,
			   .space = id},
		.items = items,
		.bytes = n * sizeof(items[0]),
		.fd = -1,
	};

	kv_assert_locked(&space->session->lock);
	if (!kv_rpc_takes_hints_locked(space->session))
		return;
	kv_wire_keys(keys, n, items);
	kv_rpc_post_locked(space->session, &packet);
}

/* The tail's message first: the daemon goes through each from its end. */
int kvfs_ended(kvfs_space *space, const kvfs_key *keys, size_t n)
{
	struct kvfs_session *session = space ? space->session : NULL;
	uint64_t generation;
	size_t batch;
	uint32_t id;
	int r = kv_session_check(session);

	if (r < 0)
		return r;
	if (!kv_wire_keys_are_valid(keys, n))
		return -EINVAL;
	if (kv_lib_space_id(space, &id, &generation) < 0)
		return 0;
	pthread_mutex_lock(&session->lock);
	for (; n > 0 && kv_session_is_live(session, generation); n -= batch) {
		batch = KV_MIN(n, (size_t)WIRE_BATCH);
		post_ended_locked(space, id, keys + n - batch, batch);
	}
	pthread_mutex_unlock(&session->lock);
	return 0;
}

static long pin(kvfs_space *space, uint64_t arg, const kvfs_key *keys, size_t n,
		int *ret_statuses)
{
	struct wire_header header = {.type = WIRE_PIN, .arg = arg};

	return change(space, header, keys, n, ret_statuses);
}

long kvfs_pin(kvfs_space *space, const kvfs_key *keys, size_t first, size_t end,
	      int *ret_statuses)
{
	if (!keys || first > end)
		return -EINVAL;
	return pin(space, 1, keys + first, end - first, ret_statuses);
}

long kvfs_unpin(kvfs_space *space, const kvfs_key *keys, size_t first,
		size_t end, int *ret_statuses)
{
	if (!keys || first > end)
		return -EINVAL;
	return pin(space, 0, keys + first, end - first, ret_statuses);
}

/*
 * Blocks that the daemon does not know of yet must not come after the clear:
 * they end here.  What it has reserved for us it ends itself.
 */
static void stop_saves(kvfs_space *space)
{
	struct kvfs_session *session = space->session;

	pthread_mutex_lock(&session->lock);
	if (session->user)
		session->user->clearing_locked(session, space->name);
	pthread_mutex_unlock(&session->lock);
}

static void forget_pages(kvfs_space *space)
{
	struct kvfs_session *session = space->session;

	pthread_mutex_lock(&session->lock);
	if (session->user)
		session->user->cleared_locked(session, space->name);
	pthread_mutex_unlock(&session->lock);
}

/* Freed by whoever comes last, who waits or the reply. */
struct clearing {
	struct kv_call call; /* first */
	struct kvfs_session *session;
	bool over, abandoned;
	int status;
};

static void cleared(struct kv_call *call, int status, const void *items)
{
	struct clearing *clearing = (struct clearing *)call;

	(void)items;
	clearing->over = true;
	clearing->status = status;
	pthread_cond_broadcast(&clearing->session->changed);
	if (clearing->abandoned)
		free(clearing);
}

/* kv_session_wait, but not for a daemon that hangs. */
static int wait_for_answer(struct kvfs_session *session, uint64_t until)
{
	uint64_t look_at = KV_MIN(until, kv_time_after(KV_LOOK_NS));
	int r = kv_session_wait(session, look_at);
	bool hangs;

	if (r != -ETIMEDOUT || look_at == until)
		return r;
	pthread_mutex_unlock(&session->lock);
	hangs = kv_ask_hangs(session);
	pthread_mutex_lock(&session->lock);
	return hangs ? -ETIMEDOUT : 0;
}

/* A large space takes its time, in which others may ask. */
static int clear(struct kvfs_session *session, uint32_t space,
		 uint64_t generation)
{
	const uint64_t until = kv_time_after(CLEAR_NS);
	struct kv_packet packet = {
		.header = {.type = WIRE_CLEAR, .space = space},
		.fd = -1,
	};
	struct clearing *clearing = calloc(1, sizeof(*clearing));
	int r;

	if (!clearing)
		return -ENOMEM;
	clearing->session = session;
	clearing->call.done = cleared;
	pthread_mutex_lock(&session->lock);
	r = kv_session_is_live(session, generation)
		    ? kv_rpc_submit_locked(session, &clearing->call, &packet)
		    : -ENOTCONN;
	clearing->over = r < 0;
	while (r == 0 && !clearing->over)
		r = wait_for_answer(session, until);
	clearing->abandoned = !clearing->over;
	if (clearing->over) {
		r = r < 0 ? r : clearing->status;
		free(clearing);
	}
	pthread_mutex_unlock(&session->lock);
	return r;
}

int kvfs_space_clear(kvfs_space *space)
{
	uint64_t generation;
	uint32_t id;
	int r = kv_session_check(space ? space->session : NULL);

	if (r < 0)
		return r;
	stop_saves(space);
	r = kv_lib_space_id(space, &id, &generation);
	if (r < 0)
		return r == -ETIMEDOUT ? -ENOTCONN : r;
	r = clear(space->session, id, generation);
	if (r == 0 || r == -ETIMEDOUT)
		forget_pages(space);
	return r;
}

int kvfs_stats(kvfs_session *session, char **ret_text)
{
	_cleanup_(kv_freep) char *text = NULL;
	struct kv_question question = {
		.header = {.type = WIRE_STATS},
		.room = WIRE_MAX,
	};
	long n;
	int r = kv_session_check(session);

	if (r < 0)
		return r;
	if (!ret_text)
		return -EINVAL;
	text = malloc(WIRE_MAX + 1);
	if (!text)
		return -ENOMEM;
	question.reply = text;
	n = kv_ask(session, &question);
	if (n < 0)
		return n == -ETIMEDOUT ? -ENOTCONN : (int)n;
	text[n] = '\0';
	*ret_text = kv_steal(text);
	return 0;
}
