/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.c - WIRE_STAGING, RESERVE, SAVE, SAVE_PART and DROP: blocks on
 * their way in.
 *
 * OWNS      nothing: reservations are the client's, what is being copied is the
 *           saving's.
 *
 * STATES    of a block, and who has it:
 *
 *           (cache) -> RESERVED   kv_request_reserve  (client->reservations)
 *          RESERVED -> COPYING    prepare             (a saving)
 *          RESERVED -> RESERVED   prepare_part: more of it is to come
 *          RESERVED -> COPYING    prepare_part, with the last of its bytes
 *           COPYING -> (cache)    saving.c: sealed or dropped
 *          RESERVED -> (cache)    kv_request_drop, or the client's end
 *
 * INVARIANTS
 *   (1) A SAVE item consumes its reservation, whatever becomes of it.
 *   (2) A SAVE_PART item consumes it only if that was the last part, or could
 *       not be read.
 *
 * LOCKING   none: control thread only.
 */
#include "fs/control/saving.h"

int kv_request_staging(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_staging *wanted = m->items;
	struct kv_staging *staging;
	int r;

	r = kv_staging_map(m->fd, wanted->bytes, &staging);
	if (r == 0) {
		kv_staging_put(client->staging);
		client->staging = staging;
	}
	kv_reply(client, m->header, r, 0, 0);
	return 0;
}

static int new_reservation(struct kv_client *client, uint16_t flags,
			   struct kv_fill *fill, const struct kv_layout *layout,
			   struct kv_reservation *ret_reservation)
{
	struct kv_reservation reservation = {.hold = flags & WIRE_HOLD};
	int r = 0;

	if (flags & WIRE_MUST)
		kv_fill_must(fill);
	if (flags & WIRE_PART)
		r = kv_partial_fill_new(client->server->cache, fill,
					layout->payload, &reservation.partial);
	else
		reservation.fill = fill;
	if (r < 0)
		kv_fill_drop(client->server->cache, fill);
	else
		*ret_reservation = reservation;
	return r;
}

/* What stays for long must leave others room. */
static int begin(struct kv_client *client, uint16_t flags,
		 struct kv_space *space, const struct kv_layout *layout,
		 const struct kv_key *key, struct kv_fill **ret_fill)
{
	uint64_t length = kv_block_header_bytes(layout) + layout->payload;
	struct kv_cache *cache = client->server->cache;
	int r = 0;

	if (client->reservations.n >= KV_CLIENT_RESERVATIONS)
		return -ENOSPC;
	if (flags & (WIRE_HOLD | WIRE_PART))
		r = kv_fill_may_hold(cache, space, length);
	return r < 0 ? r : kv_fill_begin(cache, space, key, length, ret_fill);
}

static int reserve(struct kv_client *client, uint16_t flags,
		   struct kv_space *space, const struct kv_space_info *info,
		   const struct wire_key *wire)
{
	const struct kv_reservation *there;
	struct kv_reservation reservation = {0};
	struct kv_fill *fill;
	struct kv_key key;
	int r;

	r = kv_wire_key(wire->key, wire->len, &key);
	if (r < 0)
		return r;
	there = kv_reservations_find(&client->reservations, info->id, &key);
	if (there && there->partial && (flags & WIRE_PART))
		return 0;
	r = begin(client, flags, space, info->layout, &key, &fill);
	if (r == 0)
		r = new_reservation(client, flags, fill, info->layout,
				    &reservation);
	if (r < 0)
		return r;
	r = kv_reservations_add(&client->reservations, info->id, &key,
				&reservation);
	if (r < 0)
		kv_reservation_drop(client->server->cache, reservation);
	return r;
}

int kv_request_reserve(struct kv_client *client, const struct kv_message *m)
{
	struct wire_status *statuses = kv_reply_items(client->server);
	const struct wire_key *keys = m->items;
	uint32_t n = m->header->count;
	struct kv_space_info info;
	struct kv_space *space;
	int r;

	r = kv_client_space(client, m->header->space, W_OK | X_OK, &space,
			    &info);
	if (r == 0 && !info.layout)
		r = -EINVAL;
	if (r < 0) {
		kv_reply_all(client, m->header, r);
		return 0;
	}
	for (uint32_t i = 0; i < n; i++)
		statuses[i].status = reserve(client, m->header->flags, space,
					     &info, &keys[i]);
	kv_reply(client, m->header, 0, n, n * sizeof(*statuses));
	return 0;
}

int kv_request_drop(struct kv_client *client, const struct kv_message *m)
{
	struct kv_server *server = client->server;
	struct wire_status *statuses = kv_reply_items(server);
	uint32_t n = m->header->count, space = m->header->space;
	int r;

	r = kv_request_keys(client, m);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < n; i++) {
		const struct kv_key *key = &server->keys[i];

		statuses[i].status = -ENOENT;
		if (!kv_reservations_find(&client->reservations, space, key))
			continue;
		statuses[i].status = 0;
		kv_reservation_drop(server->cache,
				    kv_reservations_take(&client->reservations,
							 space, key));
	}
	kv_reply(client, m->header, 0, n, n * sizeof(*statuses));
	return 0;
}

/* The client's reservation for @wire: of a whole block, or of one in parts. */
static const struct kv_reservation *find(struct kv_client *client,
					 uint32_t space,
					 const struct wire_save *wire,
					 bool parts, struct kv_key *ret_key)
{
	const struct kv_reservation *there;

	if (kv_wire_key(wire->key, wire->len, ret_key) < 0)
		return NULL;
	there = kv_reservations_find(&client->reservations, space, ret_key);
	return there && (there->partial != NULL) == parts ? there : NULL;
}

/* Everything but the reservation is right with @wire, of which @bytes are in
 * the staging: fill in @item. */
static int check(struct kv_saving *saving, const struct wire_save *wire,
		 uint64_t bytes, struct kv_saving_item *item)
{
	const struct kv_layout *layout = saving->layout;

	if (wire->parent_len != 0 && wire->parent_len != wire->len)
		return -EINVAL;
	if (layout->tokens != 0 && wire->tokens > layout->tokens)
		return -EINVAL;
	if (!saving->staging ||
	    !kv_staging_has(saving->staging, wire->offset, bytes))
		return -EINVAL;
	item->meta = (struct kv_meta){.position = wire->position,
				      .tokens = wire->tokens,
				      .mtime_ns = kv_wall_ns()};
	if (wire->parent_len)
		(void)kv_wire_key(wire->parent, wire->parent_len,
				  &item->meta.parent);
	item->from = saving->staging->data + wire->offset;
	return 0;
}

static void prepare(struct kv_saving *saving, const struct wire_save *wire,
		    struct kv_saving_item *item)
{
	struct kv_client *client = saving->request.client;
	uint32_t space = saving->request.header.space;
	struct kv_reservation reservation;

	if (!find(client, space, wire, false, &item->key)) {
		item->status = -ENOENT;
		return;
	}
	reservation =
		kv_reservations_take(&client->reservations, space, &item->key);
	item->hold = reservation.hold;
	item->status = check(saving, wire, saving->layout->payload, item);
	if (item->status == 0)
		item->fill = reservation.fill;
	else
		kv_reservation_drop(client->server->cache, reservation);
}

/* None of the message's blocks can be saved. */
static void give_up(struct kv_client *client, const struct kv_message *m,
		    int status)
{
	struct wire_status *statuses = kv_reply_items(client->server);
	const struct wire_save *wire = m->items;
	uint32_t n = m->header->count, space = m->header->space;
	struct kv_key key;

	for (uint32_t i = 0; i < n; i++) {
		statuses[i].status = -ENOENT;
		if (!find(client, space, &wire[i], false, &key))
			continue;
		statuses[i].status = status;
		kv_reservation_drop(client->server->cache,
				    kv_reservations_take(&client->reservations,
							 space, &key));
	}
	kv_reply(client, m->header, 0, n, n * sizeof(*statuses));
}

/* What the blocks of @m are saved by, if its sender may. */
static int begin_saving(struct kv_client *client, const struct kv_message *m,
			struct kv_saving **ret_saving)
{
	struct kv_space_info info;
	struct kv_space *space;
	int r;

	r = kv_client_space(client, m->header->space, W_OK | X_OK, &space,
			    &info);
	if (r == 0 && !info.layout)
		r = -EINVAL;
	return r < 0 ? r : kv_saving_new(client, m, &info, ret_saving);
}

int kv_request_save(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_save *wire = m->items;
	struct kv_saving *saving;
	int r;

	r = begin_saving(client, m, &saving);
	if (r < 0) {
		give_up(client, m, r);
		return 0;
	}
	for (uint32_t i = 0; i < m->header->count; i++)
		prepare(saving, &wire[i], &saving->items[i]);
	kv_saving_start(saving);
	return 0;
}

/* Complete, or as good as: no part can come any more, nor can it be dropped. */
static void all_claimed(struct kv_client *client, uint32_t space,
			const struct kv_key *key)
{
	kv_reservation_drop(
		client->server->cache,
		kv_reservations_take(&client->reservations, space, key));
}

static void prepare_part(struct kv_saving *saving, const struct wire_part *wire,
			 struct kv_saving_item *item)
{
	struct kv_client *client = saving->request.client;
	uint32_t space = saving->request.header.space;
	const struct kv_reservation *there =
		find(client, space, &wire->block, true, &item->key);

	item->status = there ? check(saving, &wire->block, wire->bytes, item)
			     : -ENOENT;
	if (item->status == 0)
		item->status = kv_partial_fill_claim(
			there->partial, &item->meta, wire->at, wire->bytes);
	if (item->status < 0)
		return;
	item->partial = there->partial;
	item->hold = there->hold;
	item->at = wire->at;
	item->bytes = wire->bytes;
	if (kv_partial_fill_is_whole(item->partial))
		all_claimed(client, space, &item->key);
}

int kv_request_save_part(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_part *wire = m->items;
	struct kv_saving *saving;
	int r;

	r = begin_saving(client, m, &saving);
	if (r < 0) {
		kv_reply_all(client, m->header, r);
		return 0;
	}
	for (uint32_t i = 0; i < m->header->count; i++)
		prepare_part(saving, &wire[i], &saving->items[i]);
	kv_saving_start(saving);
	return 0;
}
