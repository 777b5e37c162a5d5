/* SPDX-License-Identifier: Apache-2.0 */
/*
 * space.c - a space as a client knows it: its name, layout and number.
 *
 * OWNS      struct kvfs_space and every layout it ever had.
 *
 * STATES    of a space:
 *
 *             UNKNOWN -> KNOWN     kv_lib_space_id, by asking the daemon
 *               KNOWN -> UNKNOWN   the connection ends (known_by is no longer
 *                                  the live one), kv_lib_space_forget_locked
 *
 * INVARIANTS
 *   (1) A layout that a caller was shown stays until the space is freed.
 *   (2) The text sent to a daemon is the caller's own, not the one filled in
 *       here while there was no daemon: the seed is the daemon's to draw.
 *
 * LOCKING   session->lock; not held while asking.
 */
#include "kernels/session/ask.h"
#include "kernels/session/session.h"
#include "kernels/session/space.h"

struct kv_layout_seen {
	struct kv_layout_seen *older;
	struct kv_layout *layout;
};

/* The word of a daemon on a space. */
struct answer {
	struct wire_space head;
	char text[WIRE_MAX];
};

static void space_free(struct kvfs_space *space)
{
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

static void space_freep(struct kvfs_space **space)
{
	space_free(*space);
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
		space_free(space);
}

static const struct kv_layout *layout_locked(struct kvfs_space *space)
{
	kv_assert_locked(&space->session->lock);
	return space->layouts ? space->layouts->layout : NULL;
}

const struct kv_layout *kv_lib_space_layout(struct kvfs_space *space)
{
	const struct kv_layout *layout;

	pthread_mutex_lock(&space->session->lock);
	layout = layout_locked(space);
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

/* Consumes @layout, also when it is known already. */
static int keep_layout_locked(struct kvfs_space *space,
			      struct kv_layout *layout)
{
	const struct kv_layout *known = layout_locked(space);
	struct kv_layout_seen *seen;

	kv_assert_locked(&space->session->lock);
	if (known && strcmp(known->json, layout->json) == 0) {
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

/* Name, a NUL, and the layout's text. */
static long ask(struct kvfs_space *space, struct answer *answer)
{
	_cleanup_(kv_freep) uint8_t *items = NULL;
	size_t name = strlen(space->name), text = strlen(space->text);
	struct wire_space head = {
		.flags = (space->flags & KVFS_CREATE ? WIRE_SPACE_CREATE : 0) |
			 (space->flags & KVFS_SHARED ? WIRE_SPACE_SHARED : 0),
		.mode = space->flags & 0777 ? space->flags & 0777 : 0700,
	};
	struct kv_question question = {
		.header = {.type = WIRE_SPACE,
			   .count = (uint32_t)(name + 1 + text)},
		.bytes = sizeof(head) + name + 1 + text,
		.reply = answer,
		.room = sizeof(*answer) - 1,
	};

	items = malloc(question.bytes);
	if (!items)
		return -ENOMEM;
	memcpy(items, &head, sizeof(head));
	memcpy(items + sizeof(head), space->name, name + 1);
	memcpy(items + sizeof(head) + name + 1, space->text, text);
	question.items = items;
	return kv_ask(space->session, &question);
}

/* The layout in the daemon's answer: after the name, or none. */
static int read_layout(const struct answer *answer, size_t bytes,
		       struct kv_layout **ret_layout)
{
	const char *nul;
	size_t len;

	if (bytes < sizeof(answer->head))
		return -EPROTO;
	len = bytes - sizeof(answer->head);
	nul = memchr(answer->text, '\0', len);
	*ret_layout = NULL;
	if (!nul)
		return len == 0 ? 0 : -EPROTO;
	len -= (size_t)(nul + 1 - answer->text);
	return len == 0 ? 0 : kv_layout_parse(nul + 1, len, ret_layout);
}

static int resolve(struct kvfs_space *space)
{
	_cleanup_(kv_freep) struct answer *answer = NULL;
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
	struct kvfs_session *session = space->session;
	uint64_t generation = atomic_load(&session->live);
	long n;
	int r;

	answer = malloc(sizeof(*answer));
	if (!answer)
		return -ENOMEM;
	n = ask(space, answer);
	if (n < 0)
		return (int)n;
	r = read_layout(answer, (size_t)n, &layout);
	if (r < 0)
		return r;
	pthread_mutex_lock(&session->lock);
	if (layout)
		r = keep_layout_locked(space, kv_steal(layout));
	if (r == 0) {
		space->id = answer->head.id;
		space->uid = answer->head.uid;
		space->mode = answer->head.mode;
		space->told = true;
		space->known_by = generation;
	}
	pthread_mutex_unlock(&session->lock);
	return r;
}

static bool id_locked(struct kvfs_space *space, uint32_t *ret_id,
		      uint64_t *ret_generation)
{
	kv_assert_locked(&space->session->lock);
	if (!kv_session_is_live(space->session, space->known_by))
		return false;
	*ret_id = space->id;
	*ret_generation = space->known_by;
	return true;
}

int kv_lib_space_id(struct kvfs_space *space, uint32_t *ret_id,
		    uint64_t *ret_generation)
{
	struct kvfs_session *session = space->session;
	bool known;
	int r;

	pthread_mutex_lock(&session->lock);
	known = id_locked(space, ret_id, ret_generation);
	pthread_mutex_unlock(&session->lock);
	if (known)
		return 0;
	r = resolve(space);
	if (r < 0)
		return r;
	pthread_mutex_lock(&session->lock);
	known = id_locked(space, ret_id, ret_generation);
	pthread_mutex_unlock(&session->lock);
	return known ? 0 : -ENOTCONN;
}

int kv_lib_space_miss(int r)
{
	if (r >= 0)
		return 0;
	if (r == -ETIMEDOUT)
		return -ENOTCONN;
	return r == kv_link_lost(r) ? r : -ENOENT;
}

void kv_lib_space_forget_locked(struct kvfs_space *space)
{
	kv_assert_locked(&space->session->lock);
	space->known_by = 0;
}

void kv_lib_space_gone(struct kvfs_space *space)
{
	pthread_mutex_lock(&space->session->lock);
	space->flags &= ~KVFS_CREATE;
	kv_lib_space_forget_locked(space);
	pthread_mutex_unlock(&space->session->lock);
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

static int space_new(kvfs_session *session, const char *name,
		     const char *layout, struct kvfs_space **ret_space)
{
	_cleanup_(space_freep) struct kvfs_space *space = NULL;

	space = calloc(1, sizeof(*space));
	if (!space)
		return -ENOMEM;
	space->session = session;
	space->refs = 1;
	space->name = strdup(name);
	space->text = strdup(layout ? layout : "");
	if (!space->name || !space->text)
		return -ENOMEM;
	*ret_space = kv_steal(space);
	return 0;
}

/* Without a daemon the caller's layout must do, whatever seed it gets. */
static int parse_own_layout(struct kvfs_space *space)
{
	struct kv_layout *layout;
	int r;

	r = kv_layout_parse(space->text, strlen(space->text), &layout);
	if (r < 0)
		return r;
	pthread_mutex_lock(&space->session->lock);
	r = keep_layout_locked(space, layout);
	pthread_mutex_unlock(&space->session->lock);
	return r;
}

int kvfs_space_open(kvfs_session *session, const char *name, const char *layout,
		    unsigned flags, kvfs_space **ret_space)
{
	_cleanup_(space_freep) struct kvfs_space *space = NULL;
	uint64_t generation;
	uint32_t id;
	int r;

	r = kv_session_check(session);
	if (r < 0)
		return r;
	if (!ret_space || check_name(name) < 0 ||
	    (flags & ~(KVFS_CREATE | KVFS_SHARED | 0777u)) != 0 ||
	    (layout && strlen(layout) > KV_LAYOUT_TEXT_MAX))
		return -EINVAL;
	r = space_new(session, name, layout, &space);
	if (r < 0)
		return r;
	space->flags = flags;
	r = kv_lib_space_id(space, &id, &generation);
	if (r == -ETIMEDOUT)
		r = -ENOTCONN;
	if (r < 0 && r == kv_link_lost(r) && space->text[0] != '\0')
		r = parse_own_layout(space);
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
	int r;

	if (!space)
		return -EINVAL;
	r = kv_session_check(space->session);
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
