/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request_save.c - WIRE_STAGING, RESERVE, SAVE and DROP: blocks on their way
 * in.
 *
 * OWNS      the fills of a save, from the moment they leave the client's
 *           reservations until kv_fill_seal or kv_fill_drop, and a hold on the
 *           staging they are copied from.
 *
 * STATES    of a fill, and who has it:
 *
 *           (cache) -> RESERVED   kv_request_reserve  (client->reservations)
 *          RESERVED -> COPYING    take                (an ingest thread)
 *           COPYING -> (cache)    copy                (sealed or dropped)
 *          RESERVED -> (cache)    kv_request_drop, or the client's end
 *
 * INVARIANTS
 *   (1) A SAVE item consumes its reservation, whatever becomes of it.
 *   (2) A COPYING fill is touched by its ingest thread alone, also when its
 *       client is gone: its save ends as if it were there.
 *
 * LOCKING   items[] of a pending save belong to ingest threads, one each; the
 *           last of them, by `left`, posts the save's mail.
 */
#include "fs/guard.h"
#include "fs/request.h"

struct save;

struct item {
	struct kv_job job; /* first */
	struct save *save;
	struct kv_fill *fill; /* NULL: its status is known already */
	struct kv_key key;
	struct kv_meta meta;
	const uint8_t *payload;
	int status;
};

struct save {
	struct kv_request request; /* first */
	const struct kv_layout *layout;
	struct kv_staging *staging;
	uint64_t header_bytes;
	_Atomic size_t left;
	struct item items[];
};

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

static int reserve(struct kv_client *client, struct kv_space *space,
		   const struct kv_space_info *info,
		   const struct wire_key *wire)
{
	struct kv_cache *cache = client->server->cache;
	uint64_t length =
		kv_block_header_bytes(info->layout) + info->layout->payload;
	struct kv_fill *fill;
	struct kv_key key;
	int r;

	r = kv_wire_key(wire->key, wire->len, &key);
	if (r < 0)
		return r;
	if (client->reservations.n >= KV_CLIENT_RESERVATIONS)
		return -ENOSPC;
	r = kv_fill_begin(cache, space, &key, length, &fill);
	if (r < 0)
		return r;
	r = kv_reservations_add(&client->reservations, info->id, &key, fill);
	if (r < 0)
		kv_fill_drop(cache, fill);
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
		statuses[i].status = reserve(client, space, &info, &keys[i]);
	kv_reply(client, m->header, 0, n, n * sizeof(*statuses));
	return 0;
}

int kv_request_drop(struct kv_client *client, const struct kv_message *m)
{
	struct kv_server *server = client->server;
	struct wire_status *statuses = kv_reply_items(server);
	uint32_t n = m->header->count;
	struct kv_fill *fill;
	int r;

	r = kv_request_keys(client, m);
	if (r < 0)
		return r;
	for (uint32_t i = 0; i < n; i++) {
		fill = kv_reservations_take(&client->reservations,
					    m->header->space, &server->keys[i]);
		statuses[i].status = fill ? 0 : -ENOENT;
		if (fill)
			kv_fill_drop(server->cache, fill);
	}
	kv_reply(client, m->header, 0, n, n * sizeof(*statuses));
	return 0;
}

/* Make the block in its slot: header, tensors, digest over both.  Consumes the
 * fill. */
static int copy(struct item *item, struct kv_hash *hash)
{
	struct save *save = item->save;
	struct kv_cache *cache = save->request.server->cache;
	struct kv_tally *tally = &save->request.server->tally;
	struct kv_fill *fill = kv_steal(item->fill);
	uint8_t *file = kv_fill_data(fill);
	uint64_t payload = save->layout->payload;
	struct kv_digest digest;
	int r;

	r = kv_block_header_write(save->layout, &item->key, &item->meta, file);
	if (r == 0) {
		kv_hash_begin(hash);
		kv_hash_update(hash, file, save->header_bytes);
		r = kv_guard_hash_copy(hash, file + save->header_bytes,
				       item->payload, payload);
	}
	if (r < 0) {
		kv_fill_drop(cache, fill);
		return r;
	}
	digest = kv_hash_end(hash);
	r = kv_fill_seal(cache, fill, &item->key, &item->meta,
			 save->header_bytes, &digest);
	if (r == 0) {
		tally->saved++;
		tally->saved_bytes += save->header_bytes + payload;
	}
	return r == 1 ? -EEXIST : r;
}

static void work(struct kv_job *job, struct kv_hash *hash)
{
	struct item *item = kv_container(job, struct item, job);
	struct save *save = item->save;

	item->status = copy(item, hash);
	/* After this the save may be gone, unless we are the last. */
	if (atomic_fetch_sub(&save->left, 1) == 1)
		kv_mailbox_post(&save->request.server->mailbox,
				&save->request.mail);
}

static void finish(struct kv_request *request)
{
	struct save *save = (struct save *)request;
	struct wire_status *statuses = kv_reply_items(request->server);
	uint32_t n = request->header.count;

	if (request->client) {
		for (uint32_t i = 0; i < n; i++)
			statuses[i].status = save->items[i].status;
		kv_reply(request->client, &request->header, 0, n,
			 n * sizeof(*statuses));
	}
	kv_staging_put(save->staging);
	kv_request_free(request);
}

static const struct kv_request_kind kind = {finish, NULL, NULL};

/* The client's reservation for @wire, no longer in its table; or NULL. */
static struct kv_fill *take(struct kv_client *client, uint32_t space,
			    const struct wire_save *wire,
			    struct kv_key *ret_key)
{
	if (kv_wire_key(wire->key, wire->len, ret_key) < 0)
		return NULL;
	return kv_reservations_take(&client->reservations, space, ret_key);
}

/* Everything but the reservation is right with @wire: fill in @item. */
static int check(struct save *save, const struct wire_save *wire,
		 struct item *item)
{
	if (wire->parent_len != 0 && wire->parent_len != wire->len)
		return -EINVAL;
	if (!save->staging ||
	    !kv_staging_has(save->staging, wire->offset, save->layout->payload))
		return -EINVAL;
	item->meta = (struct kv_meta){.position = wire->position,
				      .tokens = wire->tokens,
				      .mtime_ns = kv_wall_ns()};
	if (wire->parent_len)
		(void)kv_wire_key(wire->parent, wire->parent_len,
				  &item->meta.parent);
	item->payload = save->staging->data + wire->offset;
	return 0;
}

static void prepare(struct save *save, const struct wire_save *wire,
		    struct item *item)
{
	struct kv_request *request = &save->request;
	struct kv_fill *fill =
		take(request->client, request->header.space, wire, &item->key);

	item->save = save;
	item->job.work = work;
	item->status = fill ? check(save, wire, item) : -ENOENT;
	if (item->status == 0)
		item->fill = fill;
	else if (fill)
		kv_fill_drop(request->server->cache, fill);
}

/* None of the message's blocks can be saved. */
static void give_up(struct kv_client *client, const struct kv_message *m,
		    int status)
{
	struct wire_status *statuses = kv_reply_items(client->server);
	const struct wire_save *wire = m->items;
	uint32_t n = m->header->count;
	struct kv_fill *fill;
	struct kv_key key;

	for (uint32_t i = 0; i < n; i++) {
		fill = take(client, m->header->space, &wire[i], &key);
		statuses[i].status = fill ? status : -ENOENT;
		if (fill)
			kv_fill_drop(client->server->cache, fill);
	}
	kv_reply(client, m->header, 0, n, n * sizeof(*statuses));
}

static void start(struct save *save, uint32_t n)
{
	size_t fills = 0;

	for (uint32_t i = 0; i < n; i++)
		fills += save->items[i].fill != NULL;
	if (fills == 0) {
		finish(&save->request);
		return;
	}
	atomic_init(&save->left, fills);
	kv_request_pend(&save->request, false);
	/* An item's fill is its thread's from here on: look at the status. */
	for (uint32_t i = 0; i < n; i++)
		if (save->items[i].status == 0)
			kv_ingest_add(save->request.server->ingest,
				      &save->items[i].job);
}

int kv_request_save(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_save *wire = m->items;
	uint32_t n = m->header->count;
	struct kv_space_info info;
	struct kv_space *space;
	struct save *save;
	int r;

	r = kv_client_space(client, m->header->space, W_OK | X_OK, &space,
			    &info);
	if (r == 0 && !info.layout)
		r = -EINVAL;
	if (r == 0)
		r = kv_request_new(client, m->header, &kind,
				   sizeof(*save) + n * sizeof(struct item),
				   &save);
	if (r < 0) {
		give_up(client, m, r);
		return 0;
	}
	save->layout = info.layout;
	save->header_bytes = kv_block_header_bytes(info.layout);
	save->staging = client->staging;
	if (save->staging)
		kv_staging_hold(save->staging);
	for (uint32_t i = 0; i < n; i++)
		prepare(save, &wire[i], &save->items[i]);
	start(save, n);
	return 0;
}
