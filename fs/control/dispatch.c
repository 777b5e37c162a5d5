/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dispatch.c - checks a message's shape and calls its handler.
 *
 * OWNS      nothing.
 *
 * LOCKING   none: control thread only.
 */
#include "fs/control/request.h"

static const struct shape {
	size_t fixed, item; /* bytes before the items, and of one */
	uint32_t min, max;  /* items */
	uint16_t flags;	    /* allowed ones */
	bool fd;	    /* exactly one belongs to it */
	bool open_tag;	    /* its tag is of an older request */
	int (*handle)(struct kv_client *client, const struct kv_message *m);
} shapes[WIRE_TYPE_END] = {
	[WIRE_HELLO] = {0, sizeof(struct wire_hello), 1, 1, 0, false, false,
			kv_request_hello},
	[WIRE_SPACE] = {sizeof(struct wire_space), 1, 1, WIRE_MAX, 0, false,
			false, kv_request_space},
	[WIRE_PROBE] = {0, sizeof(struct wire_key), 0, WIRE_BATCH, 0, false,
			false, kv_request_probe},
	[WIRE_ACQUIRE] = {0, sizeof(struct wire_key), 0, WIRE_BATCH,
			  WIRE_WAIT_SAVING | WIRE_RESIDENT | WIRE_AGAIN, false,
			  false, kv_request_acquire},
	[WIRE_RELEASE] = {0, 0, 0, 0, 0, false, true, kv_request_release},
	[WIRE_CANCEL] = {0, 0, 0, 0, 0, false, true, kv_request_cancel},
	[WIRE_STAGING] = {0, sizeof(struct wire_staging), 1, 1, 0, true, false,
			  kv_request_staging},
	[WIRE_RESERVE] = {0, sizeof(struct wire_key), 0, WIRE_BATCH,
			  WIRE_MUST | WIRE_HOLD, false, false,
			  kv_request_reserve},
	[WIRE_SAVE] = {0, sizeof(struct wire_save), 0, WIRE_BATCH,
		       WIRE_WITH_IDS, false, false, kv_request_save},
	[WIRE_DROP] = {0, sizeof(struct wire_key), 0, WIRE_BATCH, 0, false,
		       false, kv_request_drop},
	[WIRE_FLUSH] = {0, sizeof(struct wire_key), 0, WIRE_BATCH, 0, false,
			false, kv_request_flush},
	[WIRE_EVICT] = {0, sizeof(struct wire_key), 0, WIRE_BATCH, 0, false,
			false, kv_request_evict},
	[WIRE_PIN] = {0, sizeof(struct wire_key), 0, WIRE_BATCH, 0, false,
		      false, kv_request_pin},
	[WIRE_CLEAR] = {0, 0, 0, 0, 0, false, false, kv_request_clear},
	[WIRE_STATS] = {0, 0, 0, 0, 0, false, false, kv_request_stats},
	[WIRE_UNMAPPED] = {0, sizeof(struct wire_segment), 1, 1, 0, false, true,
			   kv_request_unmapped},
	[WIRE_PREFETCH] = {0, sizeof(struct wire_key), 0, WIRE_BATCH,
			   WIRE_AHEAD, false, false, kv_request_prefetch},
	[WIRE_ENDED] = {0, sizeof(struct wire_key), 0, WIRE_BATCH, 0, false,
			true, kv_request_ended},
	[WIRE_PICK] = {0, sizeof(struct wire_pick), 1, WIRE_BATCH, 0, false,
		       false, kv_request_pick},
	[WIRE_SNAPSHOT] = {sizeof(struct wire_snapshot), 1, 0, WIRE_MAX, 0,
			   false, false, kv_request_snapshot},
	[WIRE_SNAPSHOT_DROP] = {0, 1, 0, WIRE_MAX, 0, false, false,
				kv_request_snapshot_drop},
	[WIRE_SNAPSHOT_READ] = {sizeof(struct wire_snapshot), 1, 0, WIRE_MAX, 0,
				false, false, kv_request_snapshot_read},
	[WIRE_SNAPSHOT_LIST] = {0, 0, 0, 0, 0, false, false,
				kv_request_snapshot_list},
	[WIRE_LIST] = {0, sizeof(struct wire_list), 1, 1, 0, false, false,
		       kv_request_list},
	[WIRE_SPACE_REMOVE] = {0, 0, 0, 0, 0, false, false,
			       kv_request_space_remove},
	[WIRE_POOL] = {sizeof(struct wire_pool), sizeof(struct wire_stride), 1,
		       WIRE_MAX, 0, true, false, kv_request_pool},
	[WIRE_POOL_CLOSE] = {0, 0, 0, 0, 0, false, true, kv_request_pool_close},
	[WIRE_SAVE_PAGES] = {sizeof(struct wire_save_pages), 1, 1, WIRE_MAX,
			     WIRE_MUST | WIRE_HOLD | WIRE_WITH_IDS, false,
			     false, kv_request_save_pages},
	[WIRE_TOKEN_IDS] = {0, sizeof(struct wire_key), 1, WIRE_BATCH, 0, false,
			    false, kv_request_token_ids},
	[WIRE_FORGET] = {0, sizeof(struct wire_key), 0, WIRE_BATCH, 0, false,
			 false, kv_request_forget},
	[WIRE_REGISTERS] = {0, 0, 0, 0, 0, false, true, kv_request_registers},
};

int kv_dispatch(struct kv_client *client, size_t n, bool has_fd, int fd)
{
	const struct wire_header *header = (void *)client->server->in;
	const struct shape *shape;
	struct kv_message m;

	if (n < sizeof(*header) || n > WIRE_MAX ||
	    header->type >= WIRE_TYPE_END)
		return -EPROTO;
	shape = &shapes[header->type];
	if (!shape->handle || (header->flags & ~shape->flags) ||
	    header->count < shape->min || header->count > shape->max ||
	    n != sizeof(*header) + shape->fixed + header->count * shape->item)
		return -EPROTO;
	if (shape->fd != has_fd ||
	    (client->version != 0) == (header->type == WIRE_HELLO))
		return -EPROTO;
	if (!shape->open_tag && kv_request_find(client, header->tag))
		return -EPROTO;
	m = (struct kv_message){header, header + 1, fd};
	return shape->handle(client, &m);
}
