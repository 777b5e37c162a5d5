/* SPDX-License-Identifier: Apache-2.0 */
/*
 * saving.c - a message of blocks, or parts of blocks, that ingest threads copy.
 *
 * OWNS      the items' fills and their references to partial blocks, until they
 *           are sealed or dropped; a hold on the staging they are copied from;
 *           the leases of what sealed and was reserved to be held.
 *
 * STATES    of an item, which an ingest thread has from start on:
 *
 *            COPYING -> SEALED    work: a block, or the part that completes one
 *            COPYING -> TAKEN     work: another part
 *            COPYING -> FAILED    work: the fill is dropped
 *
 *           of the request: see request.c; it is HELD with a lease at least.
 *
 * INVARIANTS
 *   (1) A COPYING item is touched by its ingest thread alone, also when its
 *       client is gone: it ends as if that were there.
 *   (2) A block is leased in the critical section that seals it: there is no
 *       moment at which it could be evicted in between.
 *   (3) A part that could not be read is never counted as landed, and its block
 *       leaves the client's reservations.
 *
 * LOCKING   items[] of a pending saving belong to ingest threads, one each; the
 *           last of them, by `left`, posts its mail.
 */
#include "common/copy.h"
#include "common/sigbus_guard.h"
#include "fs/control/saving.h"

/* Header, and one digest over the file: its slot is complete. */
static int seal(struct kv_saving_item *item, struct kv_fill *fill,
		const struct kv_digest *digest, bool hold)
{
	struct kv_saving *saving = item->saving;
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
static int copy_whole(struct kv_saving_item *item, struct kv_hash *hash)
{
	struct kv_saving *saving = item->saving;
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
static int seal_parts(struct kv_saving_item *item, struct kv_hash *hash)
{
	struct kv_saving *saving = item->saving;
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

static int copy_part(struct kv_saving_item *item, struct kv_hash *hash)
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
	struct kv_saving_item *item =
		kv_container(job, struct kv_saving_item, job);
	struct kv_saving *saving = item->saving;

	item->status =
		item->partial ? copy_part(item, hash) : copy_whole(item, hash);
	/* After this the saving may be gone, unless we are the last. */
	if (atomic_fetch_sub(&saving->left, 1) == 1)
		kv_mailbox_post(&saving->request.server->mailbox,
				&saving->request.mail);
}

/* ---- leases of what is held ---- */

static size_t held(const struct kv_saving *saving)
{
	size_t n = 0;

	for (size_t i = 0; saving->leases && i < saving->leases->n; i++)
		n += saving->leases->wants[i].status == 0;
	return n;
}

static void give_back(struct kv_saving *saving)
{
	struct kv_request *request = &saving->request;

	if (saving->leases) {
		kv_acquire_release(request->server->cache, saving->leases);
		if (request->client)
			request->client->n_wants -= saving->leases->n;
		free(saving->leases);
	}
	kv_request_free(request);
}

static void release(struct kv_request *request, bool forced)
{
	struct kv_saving *saving = (struct kv_saving *)request;

	if (forced)
		request->server->tally.forced_releases += held(saving);
	give_back(saving);
}

/* Room for as many as there are items; none is leased yet. */
static int leases_new(struct kv_client *client, size_t n,
		      struct kv_acquire **ret_leases)
{
	struct kv_acquire *leases;

	if (client->n_wants + n > KV_CLIENT_WANTS)
		return -ENOSPC;
	leases = calloc(1, sizeof(*leases) + n * sizeof(leases->wants[0]));
	if (!leases)
		return -ENOMEM;
	leases->n = n;
	for (size_t i = 0; i < n; i++)
		leases->wants[i].status = -ENOENT;
	client->n_wants += n;
	*ret_leases = leases;
	return 0;
}

/* ---- the request ---- */

/* Its parts will never all come. */
static void forget_partial(struct kv_saving *saving,
			   struct kv_saving_item *item)
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

static void put_parts(struct kv_saving *saving)
{
	for (uint32_t i = 0; i < saving->request.header.count; i++) {
		struct kv_saving_item *item = &saving->items[i];

		if (!item->partial)
			continue;
		if (item->status < 0)
			forget_partial(saving, item);
		kv_partial_fill_put(kv_steal(item->partial));
	}
}

static void finish(struct kv_request *request)
{
	struct kv_saving *saving = (struct kv_saving *)request;
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
}

static const struct kv_request_kind kind = {finish, NULL, release};

int kv_saving_new(struct kv_client *client, const struct kv_message *m,
		  const struct kv_space_info *info,
		  struct kv_saving **ret_saving)
{
	uint32_t n = m->header->count;
	struct kv_saving *saving;
	int r;

	r = kv_request_new(client, m->header, &kind,
			   sizeof(*saving) + n * sizeof(saving->items[0]),
			   &saving);
	if (r < 0)
		return r;
	if (client->reservations.holds) {
		r = leases_new(client, n, &saving->leases);
		client->last_acquire =
			KV_MAX(client->last_acquire, m->header->tag);
	}
	if (r < 0) {
		kv_request_free(&saving->request);
		return r;
	}
	saving->layout = info->layout;
	saving->header_bytes = kv_block_header_bytes(info->layout);
	saving->staging = client->staging;
	if (saving->staging)
		kv_staging_hold(saving->staging);
	for (uint32_t i = 0; i < n; i++) {
		saving->items[i].saving = saving;
		saving->items[i].job.work = work;
	}
	*ret_saving = saving;
	return 0;
}

void kv_saving_start(struct kv_saving *saving)
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
