/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.c - WIRE_SAVE and SAVE_PAGES: store blocks that a client has computed.
 * Each message becomes one saving, which ingest threads copy.
 *
 * OWNS      the fills of a saving's items until they are sealed or dropped; a
 *           hold on the staging or lent memory that the items are copied from;
 *           the leases of sealed blocks that were reserved with WIRE_HOLD.
 *           Reservations belong to the client.
 *
 * STATES    of a block, and who has it:
 *
 *           (cache) -> RESERVED   kv_request_reserve  (client->reservations)
 *          RESERVED -> COPYING    prepare             (a saving)
 *           COPYING -> (cache)    work: sealed or dropped
 *          RESERVED -> (cache)    kv_request_drop, or the client's end
 *           (cache) -> COPYING    prepare_lent
 *
 *           of an item, which an ingest thread has from saving_start on:
 *
 *           COPYING -> SEALED     work
 *           COPYING -> FAILED     work: the fill is dropped
 *
 *           of the request: see request.c; it is HELD with a lease at least.
 *
 * INVARIANTS
 *   (1) A SAVE item consumes its reservation, whatever becomes of it.
 *   (2) Only its ingest thread touches a COPYING item, also after the client
 *       has disconnected: the item ends as if the client were there.
 *   (3) A block is leased in the critical section that seals it: eviction
 *       cannot come in between.
 *   (4) A copy of lent pages is sealed only if the pages were lent until the
 *       copy had ended (check_lent).
 *
 * LOCKING   none: control thread only, but for items[] of a pending saving,
 *           which belong to ingest threads, one each; the last of them, by
 *           `left`, posts the saving's mail.
 */
#include "fs/control/request.h"

/* Filled in between saving_new and saving_start. */
struct saving_item {
	struct kv_work work; /* first; the saving's own */
	struct saving *saving;
	int status; /* 0: to be copied; else nothing else counts */
	struct kv_key key;
	struct kv_meta meta;
	uint64_t from;	       /* place in the staging */
	const uint64_t *pages; /* or these, of what is lent */
	uint64_t ids_at;       /* in the staging, if saving->with_ids */
	struct kv_fill *fill;
	bool hold; /* lease the block when it seals */
};

struct saving {
	struct kv_request request; /* first */
	const struct kv_layout *layout;
	struct kv_client_memory *staging; /* held; may be NULL */
	struct kv_lent *lent; /* held; NULL: blocks are in the staging */
	uint64_t *pages;      /* of them, if they are lent */
	/* Place of a word in the staging: WIRE_LENT as long as pages are. */
	uint64_t is_lent;
	uint64_t header_bytes;
	bool with_ids; /* blocks tell what their tokens are */
	uint32_t n;
	struct kv_acquire *leases; /* of what is held; NULL: nothing may be */
	uint32_t uid;
	_Atomic size_t left;
	struct saving_item items[]; /* n */
};

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

/*
 * After a copy: whether the pages were the client's to lend all the time.  If
 * they were given to others meanwhile, what was copied is none of this block's.
 */
static int check_lent(const struct saving *saving)
{
	uint32_t word;
	int r;

	if (!saving->lent)
		return 0;
	__sync_synchronize(); /* the copy has read all that it will */
	r = kv_client_memory_copy(saving->staging, saving->is_lent,
				  sizeof(word), NULL, &word);
	if (r == 0 && (word != WIRE_LENT || !kv_lent_is_there(saving->lent)))
		r = -ECANCELED;
	return r;
}

/* What the item's tokens are, of which the client may make anything while it is
 * copied; caller frees. */
static int read_ids(struct saving_item *item, struct kv_token_ids **ret_ids)
{
	const struct kv_client_memory *staging = item->saving->staging;
	const uint64_t n = KV_MIN(
		kv_token_ids_bytes(item->saving->layout->tokens, KV_EXTRAS_MAX),
		kv_client_memory_bytes(staging) - item->ids_at);
	_cleanup_(kv_freep) struct kv_token_ids *ids = malloc(n);
	int r;

	if (!ids)
		return -ENOMEM;
	r = kv_client_memory_copy(staging, item->ids_at, n, NULL, ids);
	if (r < 0)
		return r;
	if (kv_token_ids_check(ids, n) < 0)
		return -EINVAL;
	if (item->meta.tokens == 0)
		item->meta.tokens = ids->n;
	if (ids->n != item->meta.tokens)
		return -EINVAL;
	*ret_ids = kv_steal(ids);
	return 0;
}

static int write_header(struct saving_item *item, uint8_t *file)
{
	_cleanup_(kv_freep) struct kv_token_ids *ids = NULL;
	struct kv_meta meta;
	int r = item->saving->with_ids ? read_ids(item, &ids) : 0;

	if (r < 0)
		return r;
	meta = item->meta;
	meta.ids = ids;
	return kv_block_header_write(item->saving->layout, &item->key, &meta,
				     file);
}

/* Make the block in its slot: header, tensors, digest over both. */
static int copy_whole(struct saving_item *item, struct kv_hash *hash)
{
	struct saving *saving = item->saving;
	struct kv_fill *fill = kv_steal(item->fill);
	uint8_t *file = kv_fill_data(fill);
	struct kv_digest digest;
	int r;

	r = write_header(item, file);
	if (r == 0) {
		kv_hash_begin(hash);
		kv_hash_update(hash, file, saving->header_bytes);
		file += saving->header_bytes;
		r = saving->lent
			    ? kv_lent_copy(saving->lent, item->pages, hash,
					   file)
			    : kv_client_memory_copy(saving->staging, item->from,
						    saving->layout->payload,
						    hash, file);
	}
	if (r == 0)
		r = check_lent(saving);
	if (r < 0) {
		kv_fill_drop(saving->request.server->cache, fill);
		return r;
	}
	digest = kv_hash_end(hash);
	return seal(item, fill, &digest, item->hold);
}

/* After this the saving may be gone, unless we are the last. */
static void ended(struct saving *saving)
{
	if (atomic_fetch_sub(&saving->left, 1) == 1)
		kv_mailbox_post(&saving->request.server->mailbox,
				&saving->request.mail);
}

static void copy_item(struct kv_work *work, struct kv_hash *hash)
{
	struct saving_item *item = kv_container(work, struct saving_item, work);
	struct saving *saving = item->saving;

	item->status = copy_whole(item, hash);
	ended(saving);
}

static void submit(struct saving_item *item)
{
	const struct saving *saving = item->saving;

	kv_work_submit(saving->request.server->copies, &item->work, saving->uid,
		       KV_COPY_COST + saving->layout->payload);
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

static void finish(struct kv_request *request)
{
	struct saving *saving = (struct saving *)request;
	struct wire_status *statuses = kv_reply_items(request->server);
	uint32_t n = saving->n;

	if (request->client) {
		for (uint32_t i = 0; i < n; i++)
			statuses[i].status = saving->items[i].status;
		kv_reply(request->client, &request->header, 0, n,
			 n * sizeof(*statuses));
	}
	kv_client_memory_put(kv_steal(saving->staging));
	kv_lent_put(kv_steal(saving->lent));
	free(kv_steal(saving->pages));
	if (!request->client || request->release || held(saving) == 0)
		give_back(saving);
	else
		kv_request_hold(request);
}

static const struct kv_request_kind kind = {finish, NULL, release};

/*
 * A saving of the @n blocks of message @m in @space, with its items zeroed and
 * the client's staging held.  -ENOSPC, -ENOMEM.
 */
static int saving_new(struct kv_client *client, const struct kv_message *m,
		      uint32_t n, struct kv_space *space,
		      const struct kv_space_info *info,
		      struct saving **ret_saving)
{
	struct saving *saving;
	int r;

	r = kv_request_new(client, m->header, &kind,
			   sizeof(*saving) + n * sizeof(saving->items[0]),
			   &saving);
	if (r < 0)
		return r;
	if (client->reservations.holds || (m->header->flags & WIRE_HOLD)) {
		r = leases_new(saving, n);
		client->last_acquire =
			KV_MAX(client->last_acquire, m->header->tag);
	}
	if (r < 0) {
		kv_request_free(&saving->request);
		return r;
	}
	saving->request.space = kv_space_get(space);
	saving->n = n;
	saving->uid = client->caller.uid;
	saving->layout = info->layout;
	saving->header_bytes = kv_block_header_bytes(info->layout);
	saving->with_ids = info->layout->token_ids;
	saving->staging = client->staging;
	if (saving->staging)
		kv_client_memory_hold(saving->staging);
	for (uint32_t i = 0; i < n; i++) {
		saving->items[i].saving = saving;
		saving->items[i].work.run = copy_item;
	}
	*ret_saving = saving;
	return 0;
}

/* Copy what is to be copied, reply, and keep the request as long as something
 * of it is leased. */
static void saving_start(struct saving *saving)
{
	uint32_t n = saving->n;
	size_t copies = 0;

	for (uint32_t i = 0; i < n; i++)
		copies += saving->items[i].fill != NULL;
	if (copies == 0) {
		finish(&saving->request);
		return;
	}
	atomic_init(&saving->left, copies);
	kv_request_pend(&saving->request, false);
	/* An item's fill is its thread's from here on: look at the status. */
	for (uint32_t i = 0; i < n; i++)
		if (saving->items[i].status == 0)
			submit(&saving->items[i]);
}

/* ---- the messages ---- */

/* Return the client's reservation for @wire, or NULL. */
static const struct kv_reservation *
find_reservation(struct kv_client *client, uint32_t space,
		 const struct wire_save *wire, struct kv_key *ret_key)
{
	if (kv_wire_key(wire->key, wire->len, ret_key) < 0)
		return NULL;
	return kv_reservations_find(&client->reservations, space, ret_key);
}

static int set_meta(const struct saving *saving, const struct wire_save *wire,
		    struct saving_item *item)
{
	const struct kv_layout *layout = saving->layout;

	if (wire->parent_len != 0 && wire->parent_len != wire->len)
		return -EINVAL;
	if (layout->tokens != 0 && wire->tokens > layout->tokens)
		return -EINVAL;
	item->meta = (struct kv_meta){.position = wire->position,
				      .tokens = wire->tokens,
				      .mtime_ns = kv_wall_ns()};
	if (wire->parent_len)
		(void)kv_wire_key(wire->parent, wire->parent_len,
				  &item->meta.parent);
	return 0;
}

/* The item's tokens, if it tells them, are at @at of the staging. */
static int set_ids(const struct saving *saving, uint64_t at,
		   struct saving_item *item)
{
	if (saving->with_ids &&
	    !kv_client_memory_has(saving->staging, at,
				  sizeof(struct kv_token_ids)))
		return -EINVAL;
	item->ids_at = at;
	return 0;
}

/* Everything but the reservation is right with @wire, of which @bytes are in
 * the staging: fill in @item. */
static int check(struct saving *saving, const struct wire_save *wire,
		 uint64_t bytes, struct saving_item *item)
{
	int r = set_meta(saving, wire, item);

	if (r < 0)
		return r;
	if (!saving->staging ||
	    !kv_client_memory_has(saving->staging, wire->offset, bytes))
		return -EINVAL;
	item->from = wire->offset;
	return set_ids(saving, kv_round_up(wire->offset + bytes, 8), item);
}

static void prepare(struct saving *saving, const struct wire_save *wire,
		    struct saving_item *item)
{
	struct kv_client *client = saving->request.client;
	uint32_t space = saving->request.header.space;
	struct kv_reservation reservation;

	if (!find_reservation(client, space, wire, &item->key)) {
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
		if (!find_reservation(client, space, &wire[i], &key))
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
			uint32_t n, struct saving **ret_saving)
{
	struct kv_space_info info;
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	int r;

	r = kv_client_space_to_save(client, m->header->space, &space, &info);
	if (r == 0 &&
	    info.layout->token_ids != !!(m->header->flags & WIRE_WITH_IDS))
		r = -EINVAL;
	return r < 0 ? r : saving_new(client, m, n, space, &info, ret_saving);
}

int kv_request_save(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_save *wire = m->items;
	struct saving *saving;
	int r;

	r = begin_saving(client, m, m->header->count, &saving);
	if (r < 0) {
		give_up(client, m, r);
		return 0;
	}
	for (uint32_t i = 0; i < m->header->count; i++)
		prepare(saving, &wire[i], &saving->items[i]);
	saving_start(saving);
	return 0;
}

/* ---- from pages that are lent ---- */

static int prepare_lent(struct saving *saving, const struct wire_save *wire,
			struct saving_item *item)
{
	struct kv_client *client = saving->request.client;
	uint16_t flags = saving->request.header.flags;
	int r;

	r = kv_wire_key(wire->key, wire->len, &item->key);
	if (r == 0)
		r = set_meta(saving, wire, item);
	if (r == 0 && !kv_lent_has_pages(saving->lent, item->pages))
		r = -EINVAL;
	if (r == 0)
		r = set_ids(saving, wire->offset, item);
	if (r == 0)
		r = kv_request_fill(client, flags, saving->request.space,
				    saving->layout, &item->key, &item->fill);
	if (r < 0)
		return r;
	item->hold = flags & WIRE_HOLD;
	if (flags & WIRE_MUST)
		kv_fill_must(item->fill);
	return 0;
}

/* @status: 0, or why none of its message can be saved. */
static void start_lent(struct saving *saving, const struct wire_save *wire,
		       struct saving_item *item, int status)
{
	item->status = status < 0 ? status : prepare_lent(saving, wire, item);
	if (item->status < 0)
		return;
	atomic_fetch_add(&saving->left, 1);
	submit(item);
}

/* Set what all blocks have in common, and the pages of each. */
static int lend(struct saving *saving, struct kv_lent *lent,
		const struct wire_save_pages *what, const void *pages)
{
	size_t each = kv_lent_pages_per_block(lent);
	size_t bytes = what->n * each * sizeof(uint64_t);
	int r;

	if (kv_lent_payload(lent) != saving->layout->payload ||
	    !saving->staging || what->lent % sizeof(uint32_t) != 0 ||
	    !kv_client_memory_has(saving->staging, what->lent,
				  sizeof(uint32_t)))
		return -EINVAL;
	r = kv_account_charge(saving->request.account, KV_FINITE_MEMORY, bytes);
	if (r < 0)
		return r;
	saving->request.bytes += bytes;
	saving->pages = malloc(bytes);
	if (!saving->pages)
		return -ENOMEM;
	memcpy(saving->pages, pages, bytes);
	for (uint32_t i = 0; i < what->n; i++)
		saving->items[i].pages = saving->pages + i * each;
	saving->is_lent = what->lent;
	saving->lent = lent;
	kv_lent_hold(lent);
	return 0;
}

/* Whether the message is as long as its blocks with their pages are. */
static bool is_complete(const struct kv_message *m, const struct kv_lent *lent)
{
	const struct wire_save_pages *what = m->items;
	uint64_t pages = kv_lent_pages_per_block(lent), each;

	return what->n > 0 && what->n <= WIRE_BATCH &&
	       !__builtin_mul_overflow(pages, sizeof(uint64_t), &each) &&
	       each <= WIRE_MAX &&
	       m->header->count == what->n * (sizeof(struct wire_save) + each);
}

int kv_request_save_pages(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_save_pages *what = m->items;
	const struct wire_save *wire = (const struct wire_save *)(what + 1);
	struct kv_lent *lent = kv_lent_find(&client->lents, what->pool);
	struct saving *saving;
	int r;

	if (!lent) {
		kv_reply(client, m->header, -ENOENT, 0, 0);
		return 0;
	}
	if (!is_complete(m, lent))
		return -EPROTO;
	r = begin_saving(client, m, what->n, &saving);
	if (r < 0) {
		kv_reply(client, m->header, r, 0, 0);
		return 0;
	}
	r = lend(saving, lent, what, wire + what->n);
	/* The first are copied while there is no room for the last yet; none is
	 * the last of them before all have it. */
	atomic_init(&saving->left, 1);
	kv_request_pend(&saving->request, false);
	for (uint32_t i = 0; i < what->n; i++)
		start_lent(saving, &wire[i], &saving->items[i], r);
	ended(saving);
	return 0;
}
