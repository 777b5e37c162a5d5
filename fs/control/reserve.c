/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reserve.c - WIRE_RESERVE and DROP: room for blocks that are to be saved.
 *
 * OWNS      nothing: reservations are the client's.
 *
 * LOCKING   none: control thread only.
 */
#include "fs/control/request.h"

/* A block that stays for long must leave others room. */
int kv_request_fill(struct kv_client *client, uint16_t flags,
		    struct kv_space *space, const struct kv_layout *layout,
		    const struct kv_key *key, struct kv_fill **ret_fill)
{
	uint64_t length = kv_block_header_bytes(layout) + layout->payload;
	struct kv_cache *cache = client->server->cache;
	int r = 0;

	if (client->reservations.n >= WIRE_RESERVED_MAX)
		return -ENOLCK;
	if (flags & WIRE_HOLD)
		r = kv_fill_may_hold(cache, space, length);
	return r < 0 ? r : kv_fill_begin(cache, space, key, length, ret_fill);
}

static int reserve(struct kv_client *client, const struct wire_header *header,
		   struct kv_space *space, const struct kv_space_info *info,
		   const struct wire_key *wire)
{
	struct kv_reservation reservation = {.hold = header->flags & WIRE_HOLD,
					     .tag = header->tag};
	struct kv_key key;
	int r;

	r = kv_wire_key(wire->key, wire->len, &key);
	if (r < 0)
		return r;
	r = kv_request_fill(client, header->flags, space, info->layout, &key,
			    &reservation.fill);
	if (r < 0)
		return r;
	if (header->flags & WIRE_MUST)
		kv_fill_must(reservation.fill);
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
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	int r;

	r = kv_client_space_to_save(client, m->header->space, &space, &info);
	if (r < 0) {
		kv_reply_all(client, m->header, r);
		return 0;
	}
	for (uint32_t i = 0; i < n; i++)
		statuses[i].status =
			reserve(client, m->header, space, &info, &keys[i]);
	kv_reply(client, m->header, 0, n, n * sizeof(*statuses));
	return 0;
}

int kv_request_drop(struct kv_client *client, const struct kv_message *m)
{
	struct kv_server *server = client->server;
	struct wire_status *statuses = kv_reply_items(server);
	uint32_t n = m->header->count, space = m->header->space;
	const struct kv_reservation *there;
	int r;

	r = kv_request_keys(client, m);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < n; i++) {
		const struct kv_key *key = &server->keys[i];

		statuses[i].status = -ENOENT;
		there = kv_reservations_find(&client->reservations, space, key);
		if (!there || (m->header->arg && m->header->arg != there->tag))
			continue;
		statuses[i].status = 0;
		kv_reservation_drop(server->cache,
				    kv_reservations_take(&client->reservations,
							 space, key));
	}
	kv_reply(client, m->header, 0, n, n * sizeof(*statuses));
	return 0;
}
