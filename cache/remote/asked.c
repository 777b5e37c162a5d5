/* SPDX-License-Identifier: Apache-2.0 */
/*
 * asked.c - what a helper was asked for and has not answered.
 *
 * OWNS      the requests, and their places in the landing memory.
 *
 * INVARIANTS
 *   (1) A request is asked, with an id and a place, or unused, with neither.
 *   (2) No id is used twice.
 *
 * LOCKING   the caller's; filling and landing need none, of a request that stays.
 */
#include "cache/remote/asked.h"

void kv_asked_init(struct kv_asked *asked)
{
	kv_landing_init(&asked->landing);
	TAILQ_INIT(&asked->asked);
	TAILQ_INIT(&asked->unused);
	for (size_t i = 0; i < KV_HELPER_REQUESTS; i++)
		TAILQ_INSERT_TAIL(&asked->unused, &asked->all[i], link);
}

static bool is_put(enum kv_remote_call call)
{
	return call == KV_REMOTE_PUT || call == KV_REMOTE_PUBLISH;
}

int kv_asked_add(struct kv_asked *asked, struct kv_remote_op *op,
		 uint64_t landing, struct kv_errand **ret_request)
{
	const uint64_t most = landing - KV_HELPER_NOTE;
	struct kv_errand *request = TAILQ_FIRST(&asked->unused);
	uint64_t bytes = 0;

	if (is_put(op->call))
		bytes = op->length;
	else if (op->call == KV_REMOTE_GET)
		bytes = KV_MIN(op->room, most);
	if (bytes > most)
		return -EFBIG;
	if (op->call == KV_REMOTE_CLEAR && !asked->clears)
		return -EOPNOTSUPP;
	if (!request)
		return -EAGAIN;
	if (kv_place_take(&asked->landing, KV_HELPER_NOTE + bytes,
			  &request->place) < 0)
		return -EAGAIN;
	TAILQ_REMOVE(&asked->unused, request, link);
	TAILQ_INSERT_TAIL(&asked->asked, request, link);
	request->bytes = bytes;
	request->op = op;
	request->call = op->call;
	request->id = (asked->next_id += KV_HELPER_REQUESTS) +
		      (uint64_t)(request - asked->all);
	request->since_ns = kv_now_ns();
	request->busy = request->tell = false;
	*ret_request = request;
	return 0;
}

struct kv_errand *kv_asked_find(struct kv_asked *asked, uint64_t id)
{
	struct kv_errand *request = &asked->all[id % KV_HELPER_REQUESTS];

	return id && request->id == id ? request : NULL;
}

void kv_asked_forget(struct kv_asked *asked, struct kv_errand *request)
{
	TAILQ_REMOVE(&asked->asked, request, link);
	kv_place_free(&asked->landing, &request->place);
	request->id = 0;
	request->op = NULL;
	TAILQ_INSERT_TAIL(&asked->unused, request, link);
}

void kv_asked_fill(const struct kv_asked *asked,
		   const struct kv_errand *request)
{
	uint8_t *to = asked->landing.memory + request->place.at;
	char note[KV_OBJECT_NOTE_MAX];
	size_t n;

	memset(to, 0, KV_HELPER_NOTE);
	if (!is_put(request->call))
		return;
	n = kv_object_note(request->op, note);
	memcpy(to, note, KV_MIN(n, sizeof(note) - 1));
	memcpy(to + KV_HELPER_NOTE, request->op->data, request->bytes);
}

/* Taken once: the helper may still write there. */
static int read_note(const struct kv_asked *asked,
		     const struct kv_errand *request)
{
	char note[KV_HELPER_NOTE];

	memcpy(note, asked->landing.memory + request->place.at, sizeof(note));
	return kv_object_read_note(request->op, note,
				   strnlen(note, sizeof(note)));
}

int kv_asked_land(const struct kv_asked *asked, const struct kv_errand *request,
		  const struct kv_helper_answer *answer)
{
	struct kv_remote_op *op = request->op;
	int r = answer->status;

	if (r == 0 &&
	    (op->call == KV_REMOTE_EXISTS || op->call == KV_REMOTE_GET))
		r = read_note(asked, request);
	if (r < 0 || op->call != KV_REMOTE_GET)
		return r;
	if (op->length > request->bytes)
		return -EFBIG;
	if (op->length != answer->bytes)
		return -EBADMSG;
	memcpy(op->data,
	       asked->landing.memory + request->place.at + KV_HELPER_NOTE,
	       op->length);
	return 0;
}
