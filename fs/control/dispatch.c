/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dispatch.c - check the shape of a message and the rights of its sender, and call the
 * handler of its type.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) A handler sees only messages whose length is exactly that of their header and
 *       items, within the limits of `shapes`.
 *
 * LOCKING   none: control thread only.
 */
#include "fs/control/request.h"

/* Rights in the space without which a message is not handled. */
enum right {
	ANY,  /* the handler checks */
	OWN,  /* the space is there; the handler checks more */
	READ, /* without it the space is absent: -ENOENT */
	WRITE,
	EITHER,
};

#define KEYS 1u /* items are keys: check them, and put them into server->keys */
#define HAS_FD 2u   /* exactly one descriptor belongs to it */
#define OPEN_TAG 4u /* without a reply: the tag is not a new request's */

#define ITEM(type) sizeof(struct wire_##type)

static const struct shape {
	kv_handler *handle;
	size_t fixed, item; /* bytes before the items, and of one */
	uint32_t min, max;  /* items */
	uint16_t flags;	    /* allowed in the header */
	enum right right;
	unsigned what;
} shapes[WIRE_TYPE_END] = {
	[WIRE_HELLO] = {kv_request_hello, 0, ITEM(hello), 1, 1},
	[WIRE_SPACE] = {kv_request_space, ITEM(space), 1, 1, WIRE_MAX},
	[WIRE_PROBE] = {kv_request_probe, 0, ITEM(key), 0, WIRE_BATCH, 0, READ,
			KEYS},
	[WIRE_ACQUIRE] = {kv_request_acquire, 0, ITEM(key), 0, WIRE_BATCH,
			  WIRE_WAIT_SAVING | WIRE_RESIDENT | WIRE_AGAIN, READ,
			  KEYS},
	[WIRE_RELEASE] = {kv_request_release, .what = OPEN_TAG},
	[WIRE_CANCEL] = {kv_request_cancel, .what = OPEN_TAG},
	[WIRE_STAGING] = {kv_request_staging, 0, ITEM(staging), 1, 1, 0, ANY,
			  HAS_FD},
	[WIRE_RESERVE] = {kv_request_reserve, 0, ITEM(key), 0, WIRE_BATCH,
			  WIRE_MUST | WIRE_HOLD, WRITE},
	[WIRE_SAVE] = {kv_request_save, 0, ITEM(save), 0, WIRE_BATCH,
		       WIRE_WITH_IDS},
	[WIRE_DROP] = {kv_request_drop, 0, ITEM(key), 0, WIRE_BATCH, 0, ANY,
		       KEYS},
	[WIRE_FLUSH] = {kv_request_flush, 0, ITEM(key), 0, WIRE_BATCH, 0,
			EITHER, KEYS},
	[WIRE_EVICT] = {kv_request_evict, 0, ITEM(key), 0, WIRE_BATCH, 0, WRITE,
			KEYS},
	[WIRE_PIN] = {kv_request_pin, 0, ITEM(key), 0, WIRE_BATCH, 0, WRITE,
		      KEYS},
	[WIRE_CLEAR] = {kv_request_clear, .right = WRITE},
	[WIRE_STATS] = {kv_request_stats},
	[WIRE_UNMAPPED] = {kv_request_unmapped, 0, ITEM(segment), 1, 1, 0, ANY,
			   OPEN_TAG},
	[WIRE_PREFETCH] = {kv_request_prefetch, 0, ITEM(key), 0, WIRE_BATCH,
			   WIRE_AHEAD, READ, KEYS},
	[WIRE_ENDED] = {kv_request_ended, 0, ITEM(key), 0, WIRE_BATCH, 0, WRITE,
			KEYS | OPEN_TAG},
	[WIRE_PICK] = {kv_request_pick, 0, ITEM(pick), 1, WIRE_BATCH},
	[WIRE_SNAPSHOT] = {kv_request_snapshot, ITEM(snapshot), 1, 0, WIRE_MAX},
	[WIRE_SNAPSHOT_DROP] = {kv_request_snapshot_drop, 0, 1, 0, WIRE_MAX, 0,
				WRITE},
	[WIRE_SNAPSHOT_READ] = {kv_request_snapshot_read, ITEM(snapshot), 1, 0,
				WIRE_MAX, 0, READ},
	[WIRE_SNAPSHOT_LIST] = {kv_request_snapshot_list, .right = READ},
	[WIRE_LIST] = {kv_request_list, 0, ITEM(list), 1, 1, 0, READ},
	[WIRE_SPACE_REMOVE] = {kv_request_space_remove, .right = OWN},
	[WIRE_POOL] = {kv_request_pool, ITEM(pool), ITEM(stride), 1, WIRE_MAX,
		       0, ANY, HAS_FD},
	[WIRE_POOL_CLOSE] = {kv_request_pool_close, .what = OPEN_TAG},
	[WIRE_SAVE_PAGES] = {kv_request_save_pages, ITEM(save_pages), 1, 1,
			     WIRE_MAX, WIRE_MUST | WIRE_HOLD | WIRE_WITH_IDS},
	[WIRE_TOKEN_IDS] = {kv_request_token_ids, 0, ITEM(key), 1, WIRE_BATCH,
			    0, READ, KEYS},
	[WIRE_FORGET] = {kv_request_forget, 0, ITEM(key), 0, WIRE_BATCH, 0,
			 WRITE, KEYS},
	[WIRE_REGISTERS] = {kv_request_registers, .what = OPEN_TAG},
};

/* Look up the space of @m, if the client has @right in it. */
static int check_right(struct kv_client *client, struct kv_message *m,
		       enum right right)
{
	static const int wants[] = {
		[OWN] = 0,
		[READ] = R_OK | X_OK,
		[WRITE] = W_OK | X_OK,
		[EITHER] = R_OK | X_OK,
	};
	int r = kv_client_space(client, m->header->space, wants[right],
				&m->space, &m->info);

	if (r == -EACCES && right == EITHER)
		r = kv_client_space(client, m->header->space, W_OK | X_OK,
				    &m->space, &m->info);
	return r == -EACCES && right == READ ? -ENOENT : r;
}

int kv_dispatch(struct kv_client *client, size_t n, bool has_fd, int fd)
{
	const struct wire_header *header = (void *)client->server->in;
	struct kv_message m = {header, header + 1, fd};
	const struct shape *shape;
	const struct wire_key *keys;
	int r = 0;

	if (n < sizeof(*header) || n > WIRE_MAX ||
	    header->type >= WIRE_TYPE_END)
		return -EPROTO;
	shape = &shapes[header->type];
	if (!shape->handle || (header->flags & ~shape->flags) ||
	    header->count < shape->min || header->count > shape->max ||
	    n != sizeof(*header) + shape->fixed + header->count * shape->item)
		return -EPROTO;
	if (((shape->what & HAS_FD) != 0) != has_fd ||
	    (client->version != 0) == (header->type == WIRE_HELLO))
		return -EPROTO;
	if (!(shape->what & OPEN_TAG) && kv_request_find(client, header->tag))
		return -EPROTO;
	keys = m.items;
	for (uint32_t i = 0; shape->what & KEYS && i < header->count; i++)
		if (kv_wire_key(keys[i].key, keys[i].len,
				&client->server->keys[i]) < 0)
			return -EPROTO;
	/* The tag may be released, also if no block is leased. */
	if (header->type == WIRE_ACQUIRE)
		client->last_acquire =
			KV_MAX(client->last_acquire, header->tag);
	if (shape->right != ANY)
		r = check_right(client, &m, shape->right);
	if (r < 0) {
		if (!(shape->what & OPEN_TAG))
			kv_reply_all(client, header, r);
		return 0;
	}
	r = shape->handle(client, &m);
	kv_space_put(m.space);
	return r;
}
