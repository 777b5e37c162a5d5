/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.c - RESERVE, DROP, SAVE and SAVE_PAGES: blocks that a client has computed.  Each
 * SAVE message becomes a saving, whose items are copied by workers.
 *
 * OWNS      the fills of a saving's items until they are sealed or dropped; a hold on the
 *           staging or lent memory that the items are copied from; the leases of sealed
 *           blocks that were reserved with WIRE_HOLD.  Reservations are the client's.
 *
 * STATES    of a block, and who has it:
 *           (cache) -> RESERVED   kv_request_reserve  (client->reservations)
 *          RESERVED -> COPYING    prepare             (a saving)
 *          RESERVED -> (cache)    kv_request_drop, or the client's end
 *           (cache) -> COPYING    prepare_lent
 *           COPYING -> (cache)    copy_item: sealed, or dropped
 *
 * INVARIANTS
 *   (1) A SAVE item consumes its reservation, whatever its outcome.
 *   (2) Only its worker touches a COPYING item, also after the client has disconnected:
 *       the item ends as if the client were there.
 *   (3) A block is leased in the critical section that seals it: eviction cannot come in
 *       between.
 *   (4) A copy of lent pages is sealed only if the pages were lent until the copy had
 *       ended.
 *
 * LOCKING   none: control thread only, but for items[] of a pending saving, which belong
 *           to workers, one each.  The last of them, by `left`, posts the saving's mail.
 */
#include "fs/control/request.h"

/* Filled in between saving_new and saving_start. */
struct saving_item {
	struct kv_work work; /* first; the saving's own */
	struct saving *saving;
	int status; /* 0: copy it; else nothing else counts */
	struct kv_key key;
	struct kv_meta meta;
	uint64_t from;	       /* offset in the staging, or: */
	const uint64_t *pages; /* of the lent memory */
	uint64_t ids_at;       /* in the staging, if saving->with_ids */
	struct kv_fill *fill;
	bool hold; /* lease the block when it seals */
};

struct saving {
	struct kv_request request; /* first */
	const struct kv_layout *layout;
	struct kv_client_memory *staging; /* held; may be NULL */
	struct kv_lent *lent; /* held; NULL: copy from the staging */
	uint64_t *pages;      /* of all items, if lent */
	uint64_t
		is_lent; /* offset in the staging of a word, WIRE_LENT until the
			   * client takes the pages back */
	uint64_t header_bytes;
	bool with_ids; /* the message has the blocks' token ids */
	uint32_t n;
	struct kv_acquire *leases; /* of items to hold; NULL: none */
	uint32_t uid;
	_Atomic size_t left;
	struct saving_item items[]; /* n */
};

/* ---- copying, by workers ---- */

/*
 * Check, after a copy, that the pages were lent all the time.  If the client has taken
 * them back, the copy may have other bytes.
 */
static int check_lent(const struct saving *saving)
{
	uint32_t word;
	int r;

	if (!saving->lent)
		return 0;
	__sync_synchronize(); /* after all reads of the copy */
	r = kv_client_memory_copy(saving->staging, saving->is_lent,
				  sizeof(word), NULL, &word);
	if (r == 0 && (word != WIRE_LENT || !kv_lent_is_there(saving->lent)))
		r = -ECANCELED;
	return r;
}

/* Read the item's token ids from the staging, where the client may change them; caller
 * frees. */
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

/* Make the block in its slot: header, tensors, a digest of both. */
static int make_block(struct saving_item *item, struct kv_hash *hash)
{
	_cleanup_(kv_freep) struct kv_token_ids *ids = NULL;
	struct saving *saving = item->saving;
	struct kv_tally *tally = &saving->request.server->tally;
	struct kv_cache *cache = saving->request.server->cache;
	struct kv_fill *fill = kv_steal(item->fill);
	uint8_t *file = kv_fill_data(fill);
	struct kv_digest digest;
	struct kv_meta meta;
	int r = saving->with_ids ? read_ids(item, &ids) : 0;

	if (r == 0) {
		meta = item->meta;
		meta.ids = ids;
		r = kv_block_header_write(saving->layout, &item->key, &meta,
					  file);
	}
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
		kv_fill_drop(cache, fill);
		return r;
	}
	digest = kv_hash_end(hash);
	if (item->hold)
		kv_fill_hold(fill,
			     &saving->leases->wants[item - saving->items]);
	r = kv_fill_seal(cache, fill, &item->key, &item->meta,
			 saving->header_bytes, &digest);
	if (r == 0) {
		tally->saved++;
		tally->saved_bytes +=
			saving->header_bytes + saving->layout->payload;
	}
	return r == 1 ? -EEXIST : r;
}

/* After this the saving may be gone. */
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

	item->status = make_block(item, hash);
	ended(saving);
}

static void submit(struct saving_item *item)
{
	const struct saving *saving = item->saving;

	kv_work_submit(saving->request.server->copies, &item->work, saving->uid,
		       KV_COPY_COST + saving->layout->payload);
}

/* ---- the request ---- */

static size_t held(const struct saving *saving)
{
	size_t n = 0;

	for (size_t i = 0; saving->leases && i < saving->leases->n; i++)
		n += saving->leases->wants[i].status == 0;
	return n;
}

static void release(struct kv_request *request, bool forced)
{
	struct saving *saving = (struct saving *)request;

	if (forced)
		request->server->tally.forced_releases += held(saving);
	if (saving->leases) {
		kv_acquire_release(request->server->cache, saving->leases);
		free(saving->leases);
	}
	kv_request_free(request);
}

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
		release(request, false);
	else
		kv_request_hold(request);
}

static const struct kv_request_kind kind = {finish, NULL, release};

/* Make room for the leases of all items; none is leased yet. */
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

/* The same as kv_client_space, for a space to save blocks to: it has a layout. */
static int space_to_save(struct kv_client *client, struct kv_message *m)
{
	int r = kv_client_space(client, m->header->space, W_OK | X_OK,
				&m->space, &m->info);

	return r == 0 && !m->info.layout ? -EINVAL : r;
}

/* Make a saving of the @n blocks of the message, with zeroed items.  -ENOSPC, -ENOMEM,
 * or an error of the client's rights. */
static int saving_new(struct kv_client *client,
		      const struct kv_message *message, uint32_t n,
		      struct saving **ret_saving)
{
	struct kv_message m = *message;
	const uint16_t flags = m.header->flags;
	struct saving *saving = NULL;
	int r = space_to_save(client, &m);

	if (r == 0 && m.info.layout->token_ids != !!(flags & WIRE_WITH_IDS))
		r = -EINVAL;
	if (r == 0)
		r = kv_request_new(client, &m, &kind,
				   sizeof(*saving) +
					   n * sizeof(saving->items[0]),
				   &saving);
	kv_space_put(m.space);
	if (r == 0 && (client->reservations.holds || (flags & WIRE_HOLD))) {
		r = leases_new(saving, n);
		client->last_acquire =
			KV_MAX(client->last_acquire, m.header->tag);
	}
	if (r < 0) {
		if (saving)
			kv_request_free(&saving->request);
		return r;
	}
	saving->n = n;
	saving->uid = client->caller.uid;
	saving->layout = m.info.layout;
	saving->header_bytes = kv_block_header_bytes(m.info.layout);
	saving->with_ids = m.info.layout->token_ids;
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

/* ---- reservations ---- */

/* Begin a block in the space of @layout, as a RESERVE with @flags asks for. */
static int begin_fill(struct kv_client *client, uint16_t flags,
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
	if (r == 0)
		r = kv_fill_begin(cache, space, key, length, ret_fill);
	if (r == 0 && flags & WIRE_MUST)
		kv_fill_must(*ret_fill);
	return r;
}

int kv_request_reserve(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_header *header = m->header;
	struct wire_status *statuses = kv_reply_items(client->server);
	const struct wire_key *keys = m->items;
	uint32_t n = header->count;

	if (!m->info.layout) {
		kv_reply_all(client, header, -EINVAL);
		return 0;
	}
	for (uint32_t i = 0; i < n; i++) {
		struct kv_reservation reservation = {
			.hold = header->flags & WIRE_HOLD, .tag = header->tag};
		struct kv_key key;
		int r = kv_wire_key(keys[i].key, keys[i].len, &key);

		if (r == 0)
			r = begin_fill(client, header->flags, m->space,
				       m->info.layout, &key, &reservation.fill);
		if (r == 0)
			r = kv_reservations_add(&client->reservations,
						m->info.id, &key, &reservation);
		if (r < 0 && reservation.fill)
			kv_fill_drop(client->server->cache, reservation.fill);
		statuses[i].status = r;
	}
	kv_reply(client, header, 0, n, n * sizeof(*statuses));
	return 0;
}

/* Drop the reservation of @key, which must be there. */
static void drop_reservation(struct kv_client *client, uint32_t space,
			     const struct kv_key *key)
{
	kv_fill_drop(
		client->server->cache,
		kv_reservations_take(&client->reservations, space, key).fill);
}

int kv_request_drop(struct kv_client *client, const struct kv_message *m)
{
	struct kv_server *server = client->server;
	struct wire_status *statuses = kv_reply_items(server);
	uint32_t n = m->header->count, space = m->header->space;
	const struct kv_reservation *there;

	for (uint32_t i = 0; i < n; i++) {
		statuses[i].status = -ENOENT;
		there = kv_reservations_find(&client->reservations, space,
					     &server->keys[i]);
		if (!there || (m->header->arg && m->header->arg != there->tag))
			continue;
		statuses[i].status = 0;
		drop_reservation(client, space, &server->keys[i]);
	}
	kv_reply(client, m->header, 0, n, n * sizeof(*statuses));
	return 0;
}

/* ---- blocks in the staging ---- */

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

/* The item's token ids, if the message has them, are at @at of the staging. */
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

/* Return the client's reservation for @wire, or NULL. */
static const struct kv_reservation *
find_reservation(struct kv_client *client, uint32_t space,
		 const struct wire_save *wire, struct kv_key *ret_key)
{
	if (kv_wire_key(wire->key, wire->len, ret_key) < 0)
		return NULL;
	return kv_reservations_find(&client->reservations, space, ret_key);
}

static void prepare(struct saving *saving, const struct wire_save *wire,
		    struct saving_item *item)
{
	const uint64_t bytes = saving->layout->payload;
	struct kv_client *client = saving->request.client;
	uint32_t space = saving->request.header.space;
	struct kv_reservation reservation;
	int r;

	if (!find_reservation(client, space, wire, &item->key)) {
		item->status = -ENOENT;
		return;
	}
	reservation =
		kv_reservations_take(&client->reservations, space, &item->key);
	item->hold = reservation.hold;
	item->from = wire->offset;
	r = set_meta(saving, wire, item);
	if (r == 0 &&
	    (!saving->staging ||
	     !kv_client_memory_has(saving->staging, wire->offset, bytes)))
		r = -EINVAL;
	if (r == 0)
		r = set_ids(saving, kv_round_up(wire->offset + bytes, 8), item);
	item->status = r;
	if (r == 0)
		item->fill = reservation.fill;
	else
		kv_fill_drop(client->server->cache, reservation.fill);
}

/* Reply that no block of the message can be saved, and drop the reservations. */
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
		drop_reservation(client, space, &key);
	}
	kv_reply(client, m->header, 0, n, n * sizeof(*statuses));
}

int kv_request_save(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_save *wire = m->items;
	const uint32_t n = m->header->count;
	struct saving *saving;
	size_t copies = 0;
	int r;

	r = saving_new(client, m, n, &saving);
	if (r < 0) {
		give_up(client, m, r);
		return 0;
	}
	for (uint32_t i = 0; i < n; i++) {
		prepare(saving, &wire[i], &saving->items[i]);
		copies += saving->items[i].fill != NULL;
	}
	if (copies == 0) {
		finish(&saving->request);
		return 0;
	}
	atomic_init(&saving->left, copies);
	kv_request_pend(&saving->request, 0);
	/* An item's fill is its worker's from here on: look at the status. */
	for (uint32_t i = 0; i < n; i++)
		if (saving->items[i].status == 0)
			submit(&saving->items[i]);
	return 0;
}

/* ---- blocks in lent pages ---- */

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
	item->hold = flags & WIRE_HOLD;
	return r < 0 ? r
		     : begin_fill(client, flags, saving->request.space,
				  saving->layout, &item->key, &item->fill);
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

/* Return whether the message is as long as its blocks with their pages are. */
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
	int r = -ENOENT;

	if (lent && !is_complete(m, lent))
		return -EPROTO;
	if (lent)
		r = saving_new(client, m, what->n, &saving);
	if (r < 0) {
		kv_reply(client, m->header, r, 0, 0);
		return 0;
	}
	r = lend(saving, lent, what, wire + what->n);
	/* Copying begins while later blocks do not have a slot yet: count one for this
	 * loop, so that no copy is the last before it ends. */
	atomic_init(&saving->left, 1);
	kv_request_pend(&saving->request, 0);
	for (uint32_t i = 0; i < what->n; i++) {
		struct saving_item *item = &saving->items[i];

		item->status = r < 0 ? r : prepare_lent(saving, &wire[i], item);
		if (item->status < 0)
			continue;
		atomic_fetch_add(&saving->left, 1);
		submit(item);
	}
	ended(saving);
	return 0;
}
