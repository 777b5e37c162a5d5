/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.c - WIRE_STAGING, RESERVE, SAVE, SAVE_PART and DROP: blocks on their way
 * in.  A message of blocks, or parts of blocks, is a saving, which ingest
 * threads copy.
 *
 * OWNS      the fills of a saving's items and their references to partial
 *           blocks, until they are sealed or dropped; a hold on the staging
 *           they are copied from; the leases of what sealed and was reserved to
 *           be held.  Reservations are the client's.
 *
 * STATES    of a block, and who has it:
 *
 *           (cache) -> RESERVED   kv_request_reserve  (client->reservations)
 *          RESERVED -> COPYING    prepare             (a saving)
 *          RESERVED -> RESERVED   prepare_part: more of it is to come
 *          RESERVED -> COPYING    prepare_part, with the last of its bytes
 *           COPYING -> (cache)    work: sealed or dropped
 *          RESERVED -> (cache)    kv_request_drop, or the client's end
 *
 *           of an item, which an ingest thread has from saving_start on:
 *
 *           COPYING -> SEALED     work: a block, or the part that completes one
 *           COPYING -> TAKEN      work: another part
 *           COPYING -> FAILED     work: the fill is dropped
 *
 *           of the request: see request.c; it is HELD with a lease at least.
 *
 * INVARIANTS
 *   (1) A SAVE item consumes its reservation, whatever becomes of it.
 *   (2) A SAVE_PART item consumes it only if that was the last part, or could
 *       not be read.
 *   (3) A COPYING item is touched by its ingest thread alone, also when its
 *       client is gone: it ends as if that were there.
 *   (4) A block is leased in the critical section that seals it: there is no
 *       moment at which it could be evicted in between.
 *   (5) A part that could not be read is never counted as landed, and its block
 *       leaves the client's reservations.
 *
 * LOCKING   none: control thread only, but for items[] of a pending saving,
 *           which belong to ingest threads, one each; the last of them, by
 *           `left`, posts the saving's mail.
 */
#include "common/copy.h"
#include "common/sigbus_guard.h"
#include "fs/control/request.h"

/* Filled in between saving_new and saving_start. */
struct saving_item {
	struct kv_ingest_job job; /* first; the saving's own */
	struct saving *saving;
	int status; /* 0: to be copied; else nothing else counts */
	struct kv_key key;
	struct kv_meta meta;
	const uint8_t *from; /* in the staging */
	/* A whole block: its fill, and whether to lease it. */
	struct kv_fill *fill;
	bool hold;
	/* Or a part of this one: a reference, and which bytes. */
	struct kv_partial_fill *partial;
	uint64_t at, bytes;
};

struct saving {
	struct kv_request request; /* first */
	const struct kv_layout *layout;
	struct kv_staging *staging; /* held; may be NULL */
	uint64_t header_bytes;
	struct kv_acquire *leases; /* of what is held; NULL: nothing may be */
	_Atomic size_t left;
	struct saving_item items[]; /* header.count */
};

/* ---- staging and reservations ---- */

int kv_request_staging(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_staging *wanted = m->items;
	struct kv_staging *staging;
	int r;

	r = kv_staging_map(m->fd, wanted->bytes, client->account, &staging);
	if (r == 0) {
		kv_staging_put(client->staging);
		client->staging = staging;
	}
	kv_reply(client, m->header, r, 0, 0);
	return 0;
}

static int new_reservation(struct kv_client *client,
			   const struct wire_header *header,
			   struct kv_fill *fill, const struct kv_layout *layout,
			   struct kv_reservation *ret_reservation)
{
	struct kv_reservation reservation = {.hold = header->flags & WIRE_HOLD,
					     .tag = header->tag};
	int r = 0;

	if (header->flags & WIRE_MUST)
		kv_fill_must(fill);
	if (header->flags & WIRE_PART)
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

/* A block that stays for long must leave others room. */
static int begin(struct kv_client *client, uint16_t flags,
		 struct kv_space *space, const struct kv_layout *layout,
		 const struct kv_key *key, struct kv_fill **ret_fill)
{
	uint64_t length = kv_block_header_bytes(layout) + layout->payload;
	struct kv_cache *cache = client->server->cache;
	int r = 0;

	if (client->reservations.n >= WIRE_RESERVED_MAX)
		return -ENOLCK;
	if (flags & (WIRE_HOLD | WIRE_PART))
		r = kv_fill_may_hold(cache, space, length);
	return r < 0 ? r : kv_fill_begin(cache, space, key, length, ret_fill);
}

static int reserve(struct kv_client *client, const struct wire_header *header,
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
	if (there && there->partial && (header->flags & WIRE_PART))
		return 0;
	r = begin(client, header->flags, space, info->layout, &key, &fill);
	if (r == 0)
		r = new_reservation(client, header, fill, info->layout,
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
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
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

/* ---- copying, in ingest threads ---- */

/* Header, and one digest over the file: its slot is complete. */
static int seal(struct saving_item *item, struct kv_fill *fill,
		const struct kv_digest *digest, bool hold)
{
	struct saving *saving = item->saving;
	struct kv_tally *tally = &saving->request.server->tally;
	int r;

	if (hold)
		kv_fill_hold(fill,
			     &saving->leases->wants[item - saving->items]);
	r = kv_fill_seal(saving->request.server->cache, fill, &item->key,
			 &item->meta, saving->header_bytes, digest);
	if (r == 0) {
		tally->saved++;
		tally->saved_bytes +=
			saving->header_bytes + saving->layout->payload;
	}
	return r == 1 ? -EEXIST : r;
}

/* A client may punch a hole in its staging while it is read, sealed or not:
 * where no 2 MiB page is free for the hole the kernel answers with SIGBUS. */
struct reading {
	struct kv_hash *hash; /* NULL: copy only */
	void *dst;
	const void *src;
	size_t n;
};

static int read_staging(void *arg)
{
	struct reading *reading = arg;

	if (reading->hash)
		kv_hash_copy(reading->hash, reading->dst, reading->src,
			     reading->n);
	else
		kv_copy_stream(reading->dst, reading->src, reading->n);
	return 0;
}

/* Make the block in its slot: header, tensors, digest over both. */
static int copy_whole(struct saving_item *item, struct kv_hash *hash)
{
	struct saving *saving = item->saving;
	struct kv_fill *fill = kv_steal(item->fill);
	uint8_t *file = kv_fill_data(fill);
	struct kv_digest digest;
	int r;

	r = kv_block_header_write(saving->layout, &item->key, &item->meta,
				  file);
	if (r == 0) {
		kv_hash_begin(hash);
		kv_hash_update(hash, file, saving->header_bytes);
		r = kv_sigbus_guard(
			read_staging,
			&(struct reading){hash, file + saving->header_bytes,
					  item->from, saving->layout->payload});
	}
	if (r < 0) {
		kv_fill_drop(saving->request.server->cache, fill);
		return r;
	}
	digest = kv_hash_end(hash);
	return seal(item, fill, &digest, item->hold);
}

/* Parts come in any order: the digest is made when all are there. */
static int seal_parts(struct saving_item *item, struct kv_hash *hash)
{
	struct saving *saving = item->saving;
	struct kv_fill *fill = kv_steal(item->partial->fill);
	uint8_t *file = kv_fill_data(fill);
	struct kv_digest digest;
	int r;

	r = kv_block_header_write(saving->layout, &item->key, &item->meta,
				  file);
	if (r < 0) {
		kv_fill_drop(saving->request.server->cache, fill);
		return r;
	}
	kv_hash_begin(hash);
	kv_hash_update(hash, file,
		       saving->header_bytes + saving->layout->payload);
	digest = kv_hash_end(hash);
	return seal(item, fill, &digest, item->hold);
}

static int copy_part(struct saving_item *item, struct kv_hash *hash)
{
	struct kv_partial_fill *partial = item->partial;
	uint8_t *tensors =
		kv_fill_data(partial->fill) + item->saving->header_bytes;
	int r;

	r = kv_sigbus_guard(read_staging,
			    &(struct reading){NULL, tensors + item->at,
					      item->from, item->bytes});
	if (r < 0)
		return r;
	if (!kv_partial_fill_landed(partial, item->bytes))
		return WIRE_TAKEN;
	return seal_parts(item, hash);
}

static void work(struct kv_ingest_job *job, struct kv_hash *hash)
{
	struct saving_item *item = kv_container(job, struct saving_item, job);
	struct saving *saving = item->saving;

	item->status =
		item->partial ? copy_part(item, hash) : copy_whole(item, hash);
	/* After this the saving may be gone, unless we are the last. */
	if (atomic_fetch_sub(&saving->left, 1) == 1)
		kv_mailbox_post(&saving->request.server->mailbox,
				&saving->request.mail);
}

/* ---- leases of what is held ---- */

static size_t held(const struct saving *saving)
{
	size_t n = 0;

	for (size_t i = 0; saving->leases && i < saving->leases->n; i++)
		n += saving->leases->wants[i].status == 0;
	return n;
}

static void give_back(struct saving *saving)
{
	struct kv_request *request = &saving->request;

	if (saving->leases) {
		kv_acquire_release(request->server->cache, saving->leases);
		free(saving->leases);
	}
	kv_request_free(request);
}

static void release(struct kv_request *request, bool forced)
{
	struct saving *saving = (struct saving *)request;

	if (forced)
		request->server->tally.forced_releases += held(saving);
	give_back(saving);
}

/* Room for as many as there are items; none is leased yet. */
static int leases_new(struct saving *saving, size_t n)
{
	struct kv_acquire *leases;
	int r = kv_request_lease(&saving->request, n);

	if (r < 0)
		return r;
	leases = calloc(1, sizeof(*leases) + n * sizeof(leases->wants[0]));
	if (!leases)
		return -ENOMEM;
	leases->n = n;
	for (size_t i = 0; i < n; i++)
		leases->wants[i].status = -ENOENT;
	saving->leases = leases;
	return 0;
}

/* ---- the request ---- */

/* The parts of @item's block will never all come. */
static void forget_partial(struct saving *saving, struct saving_item *item)
{
	struct kv_client *client = saving->request.client;
	uint32_t space = saving->request.header.space;
	const struct kv_reservation *there;

	if (!client)
		return;
	there = kv_reservations_find(&client->reservations, space, &item->key);
	if (there && there->partial == item->partial)
		kv_reservation_drop(saving->request.server->cache,
				    kv_reservations_take(&client->reservations,
							 space, &item->key));
}

static void put_parts(struct saving *saving)
{
	for (uint32_t i = 0; i < saving->request.header.count; i++) {
		struct saving_item *item = &saving->items[i];

		if (!item->partial)
			continue;
		if (item->status < 0)
			forget_partial(saving, item);
		kv_partial_fill_put(kv_steal(item->partial));
	}
}

static void finish(struct kv_request *request)
{
	struct saving *saving = (struct saving *)request;
	struct wire_status *statuses = kv_reply_items(request->server);
	uint32_t n = request->header.count;

	put_parts(saving);
	if (request->client) {
		for (uint32_t i = 0; i < n; i++)
			statuses[i].status = saving->items[i].status;
		kv_reply(request->client, &request->header, 0, n,
			 n * sizeof(*statuses));
	}
	kv_staging_put(kv_steal(saving->staging));
	if (!request->client || request->release || held(saving) == 0)
		give_back(saving);
	else
		kv_request_hold(request);
}

static const struct kv_request_kind kind = {finish, NULL, release};

/*
 * A saving of the message @m in @space, with its items zeroed and the client's
 * staging held.  -ENOSPC, -ENOMEM.
 */
static int saving_new(struct kv_client *client, const struct kv_message *m,
		      struct kv_space *space, const struct kv_space_info *info,
		      struct saving **ret_saving)
{
	uint32_t n = m->header->count;
	struct saving *saving;
	int r;

	r = kv_request_new(client, m->header, &kind,
			   sizeof(*saving) + n * sizeof(saving->items[0]),
			   &saving);
	if (r < 0)
		return r;
	if (client->reservations.holds) {
		r = leases_new(saving, n);
		client->last_acquire =
			KV_MAX(client->last_acquire, m->header->tag);
	}
	if (r < 0) {
		kv_request_free(&saving->request);
		return r;
	}
	saving->request.space = kv_space_get(space);
	saving->layout = info->layout;
	saving->header_bytes = kv_block_header_bytes(info->layout);
	saving->staging = client->staging;
	if (saving->staging)
		kv_staging_hold(saving->staging);
	for (uint32_t i = 0; i < n; i++) {
		saving->items[i].saving = saving;
		saving->items[i].job.work = work;
		saving->items[i].job.uid = client->caller.uid;
		saving->items[i].job.bytes = info->layout->payload;
	}
	*ret_saving = saving;
	return 0;
}

/* Copy what is to be copied, reply, and keep the request as long as something
 * of it is leased. */
static void saving_start(struct saving *saving)
{
	uint32_t n = saving->request.header.count;
	size_t copies = 0;

	for (uint32_t i = 0; i < n; i++)
		copies += saving->items[i].fill || saving->items[i].partial;
	if (copies == 0) {
		finish(&saving->request);
		return;
	}
	atomic_init(&saving->left, copies);
	kv_request_pend(&saving->request, false);
	/* An item's fill is its thread's from here on: look at the status. */
	for (uint32_t i = 0; i < n; i++)
		if (saving->items[i].status == 0)
			kv_ingest_add(saving->request.server->ingest,
				      &saving->items[i].job);
}

/* ---- the messages ---- */

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
	return there && !!there->partial == parts ? there : NULL;
}

/* Everything but the reservation is right with @wire, of which @bytes are in
 * the staging: fill in @item. */
static int check(struct saving *saving, const struct wire_save *wire,
		 uint64_t bytes, struct saving_item *item)
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

static void prepare(struct saving *saving, const struct wire_save *wire,
		    struct saving_item *item)
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

/* The saving of the blocks of @m, if its sender may. */
static int begin_saving(struct kv_client *client, const struct kv_message *m,
			struct saving **ret_saving)
{
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	int r;

	r = kv_client_space(client, m->header->space, W_OK | X_OK, &space,
			    &info);
	if (r == 0 && !info.layout)
		r = -EINVAL;
	return r < 0 ? r : saving_new(client, m, space, &info, ret_saving);
}

int kv_request_save(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_save *wire = m->items;
	struct saving *saving;
	int r;

	r = begin_saving(client, m, &saving);
	if (r < 0) {
		give_up(client, m, r);
		return 0;
	}
	for (uint32_t i = 0; i < m->header->count; i++)
		prepare(saving, &wire[i], &saving->items[i]);
	saving_start(saving);
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

static void prepare_part(struct saving *saving, const struct wire_part *wire,
			 struct saving_item *item)
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
	struct saving *saving;
	int r;

	r = begin_saving(client, m, &saving);
	if (r < 0) {
		kv_reply_all(client, m->header, r);
		return 0;
	}
	for (uint32_t i = 0; i < m->header->count; i++)
		prepare_part(saving, &wire[i], &saving->items[i]);
	saving_start(saving);
	return 0;
}
