/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.c - blocks that a client has computed: RESERVE, DROP, SAVE and SAVE_PAGES;
 * and the memory that they are copied from: a client's staging (STAGING), and pages
 * that an engine lends (POOL and POOL_CLOSE).
 *
 * OWNS      the fills of a saving's items until they are sealed or dropped; a hold on
 *           the staging or the lent memory that the items are copied from; the leases
 *           of sealed blocks that were reserved with WIRE_HOLD.  The client owns its
 *           reservations.  A kv_lent holds its memory and borrows the descriptors of
 *           the lender.  An offer owns its memory until the client gets it.
 *
 * STATES    of a block, with its owner in parentheses:
 *           (cache) -> RESERVED   kv_request_reserve  (client->reservations)
 *          RESERVED -> COPYING    prepare             (a saving)
 *          RESERVED -> (cache)    kv_request_drop, or the client's end
 *           (cache) -> COPYING    prepare_fresh
 *           COPYING -> (cache)    copy_blocks: sealed, or dropped
 *           of an offer:
 *             (new) -> MAPPED     offer_run: by a worker, in steps
 *            MAPPED -> (freed)    offer_finish: the client gets the memory
 *
 * INVARIANTS
 *   (1) A SAVE item consumes its reservation, whatever its outcome.
 *   (2) Only its worker, or the control thread if saving->small, touches a COPYING item.
 *       The item also ends if the client has disconnected.
 *   (3) A block is leased in the critical section that seals it: eviction cannot come in
 *       between.
 *   (4) A copy of lent pages is sealed only if the pages were lent until the copy had
 *       ended.
 *   (5) Every byte of every page of a stride lies in the lent memory.
 *   (6) No message of the client is read before its offer has ended: the next message
 *       may save from the offered memory.
 *   (7) A key of a space is in a table of reservations at most once.  The cache gives a
 *       second fill after a CLEAR; kv_request_reserve then replies -EBUSY.
 *
 * LOCKING   control thread only, except the items[] of a pending saving, each of which
 *           one worker uses; the worker that takes `left` to 0 posts the saving's mail.
 *           The memory of an offer belongs to a worker until the offer's mail is posted.
 *           lent->lock guards the lender's descriptors, which workers poll after each
 *           copy; it is a leaf lock.  The count is atomic, other fields of a kv_lent are
 *           fixed after new.
 */
#include <poll.h>
#include <xxhash.h>

#include "fs/control/server.h"

/* ---- memory that a client lends ---- */

/* The least average length of a block's runs, not counting RUNS_FREE runs: copying short
 * runs keeps a worker from other users for longer than the bytes suggest. */
#define RUN_MIN 512u
#define RUNS_FREE 64u

/* Most blocks, and bytes unless one block has more, that a worker copies before it seals
 * them: waking a worker and taking the cache's lock cost as much as copying a small
 * block. */
#define JOB_BLOCKS 8u
#define JOB_BYTES (1u << 20)

struct kv_lent {
	TAILQ_ENTRY(kv_lent) link; /* in client->lents */
	uint32_t id;		   /* id of the loan, chosen by the client */
	struct kv_client_memory *memory;
	uint64_t pages, payload;
	uint32_t pages_per_block;
	struct kv_account *account; /* held */
	_Atomic unsigned refs;
	pthread_mutex_t lock;
	/* descriptors of the lender; guarded by lock; -1 after kv_lent_drop */
	int socket, pidfd;
	size_t n;
	struct wire_stride strides[];
};

static size_t lent_bytes(const struct kv_lent *lent)
{
	return sizeof(*lent) + lent->n * sizeof(lent->strides[0]);
}

int kv_lent_new(const struct kv_client *client, int fd,
		const struct wire_pool *pool, const struct wire_stride *strides,
		size_t n, struct kv_lent **ret_lent)
{
	uint64_t payload = 0, runs = 0, end, bytes;
	struct kv_lent *lent;
	int r;

	if (pool->pages == 0 || pool->pages_per_block == 0 ||
	    pool->bytes == 0 || pool->bytes > INT64_MAX)
		return -EINVAL;
	/* Every stride must lie in the pool, in runs that are long enough. */
	for (size_t i = 0; i < n; i++) {
		const struct wire_stride *s = &strides[i];

		if (s->bytes == 0 || s->count == 0 ||
		    !kv_mul_add(s->count - 1, s->segment_stride, s->bytes,
				&end) ||
		    !kv_mul_add(pool->pages - 1, s->block_stride, end, &end) ||
		    __builtin_add_overflow(end, s->at, &end) ||
		    end > pool->bytes ||
		    !kv_mul_add(s->bytes, s->count, 0, &bytes) ||
		    !kv_mul_add(bytes, pool->pages_per_block, payload,
				&payload) ||
		    !kv_mul_add(s->count, pool->pages_per_block, runs, &runs))
			return -EINVAL;
	}
	if (runs > payload / RUN_MIN + RUNS_FREE)
		return -EINVAL;
	lent = calloc(1, sizeof(*lent) + n * sizeof(*strides));
	if (!lent)
		return -ENOMEM;
	r = kv_client_memory_new(client->server, client->account, fd,
				 pool->offset, pool->bytes, &lent->memory);
	if (r < 0) {
		free(lent);
		return r;
	}
	lent->id = pool->id;
	lent->pages = pool->pages;
	lent->payload = payload;
	lent->pages_per_block = pool->pages_per_block;
	lent->account = kv_account_hold(client->account);
	atomic_init(&lent->refs, 1);
	pthread_mutex_init(&lent->lock, NULL);
	lent->socket = client->socket;
	lent->pidfd = client->pidfd;
	lent->n = n;
	memcpy(lent->strides, strides, n * sizeof(*strides));
	kv_account_take(lent->account, KV_FINITE_MEMORY, lent_bytes(lent));
	*ret_lent = lent;
	return 0;
}

static struct kv_lent *find_lent(struct kv_client *client, uint64_t id)
{
	struct kv_lent *lent;

	TAILQ_FOREACH(lent, &client->lents, link)
		if (lent->id == id)
			return lent;
	return NULL;
}

void kv_lent_put(struct kv_lent *lent)
{
	if (!lent || atomic_fetch_sub(&lent->refs, 1) != 1)
		return;
	kv_client_memory_put(lent->memory);
	kv_account_credit(lent->account, KV_FINITE_MEMORY, lent_bytes(lent));
	kv_account_put(lent->account);
	pthread_mutex_destroy(&lent->lock);
	free(lent);
}

void kv_lent_drop(struct kv_client *client, struct kv_lent *lent)
{
	pthread_mutex_lock(&lent->lock);
	lent->socket = lent->pidfd = -1;
	pthread_mutex_unlock(&lent->lock);
	TAILQ_REMOVE(&client->lents, lent, link);
	client->n_lents--;
	kv_lent_put(lent);
}

/* Copy a block from the lent @pages, whose numbers are valid, to @tensors, and
 * hash it.  Returns 0, or -EFAULT if the file has become shorter. */
static int copy_lent(const struct kv_lent *lent, const uint64_t *pages,
		     unsigned how, struct kv_hash *hash, uint8_t *tensors)
{
	const struct wire_stride *s;
	uint32_t run;
	uint64_t n, at;
	int r;

	for (s = lent->strides; s < lent->strides + lent->n; s++)
		for (uint32_t p = 0; p < lent->pages_per_block; p += run) {
			/* Copy pages that are adjacent in memory at once. */
			run = 1;
			while (s->count == 1 && s->bytes == s->block_stride &&
			       p + run < lent->pages_per_block &&
			       pages[p + run] == pages[p] + run)
				run++;
			n = run * s->bytes;
			at = s->at + pages[p] * s->block_stride;
			for (uint64_t i = 0; i < s->count; i++) {
				r = kv_client_memory_copy(lent->memory, how, at,
							  n, hash, tensors);
				if (r < 0)
					return r;
				tensors += n;
				at += s->segment_stride;
			}
		}
	return 0;
}

/* A block of a SAVE or SAVE_PAGES.  The control thread fills this in before a
 * worker copies the block. */
struct saving_item {
	/* first; work that copies and seals @job blocks, from this one on */
	struct kv_work work;
	uint32_t job;
	struct saving *saving;
	int status; /* status of the block; 0: to be copied, or sealed */
	struct kv_digest digest;
	struct kv_key key;
	struct kv_meta meta;
	uint64_t from; /* block's offset in staging; unused if pages are lent */
	/* page numbers in the lent memory; NULL: in the staging */
	const uint64_t *pages;
	/* offset of the token ids in the staging, if saving->with_ids */
	uint64_t ids_at;
	struct kv_fill *fill;
	bool hold; /* lease the block when it is sealed */
};

struct saving {
	struct kv_request request; /* first */
	const struct kv_layout *layout;
	/* client's staging, held; or NULL */
	struct kv_client_memory *staging;
	struct kv_lent *lent; /* loan of pages, held; NULL: copy from staging */
	uint64_t *pages;      /* page numbers of all items; NULL: not lent */
	uint64_t is_lent;     /* offset in the staging of a word, WIRE_LENT
			     * until the client takes the pages back */
	uint64_t header_bytes;
	bool with_ids; /* the message has the blocks' token ids */
	bool small;    /* the control thread copies the blocks by pread(2) */
	uint32_t n;
	uint32_t uid;
	_Atomic size_t left;
	struct saving_item items[]; /* n items, then leases of held blocks */
};

/* ---- copying, by workers ---- */

/*
 * Check, after a copy, that the pages were lent all the time.  If the client has taken
 * them back, is disconnected or dead, the copy may have other bytes.
 */
static int check_lent(const struct saving *saving)
{
	struct kv_lent *lent = saving->lent;
	struct pollfd ends[2];
	uint32_t word;
	int r;

	__sync_synchronize(); /* read the word after all bytes of the copy */
	r = kv_client_memory_copy(saving->staging,
				  saving->small ? KV_COPY_READ : 0,
				  saving->is_lent, sizeof(word), NULL, &word);
	if (r < 0)
		return r;
	pthread_mutex_lock(&lent->lock);
	ends[0] = (struct pollfd){.fd = lent->socket, .events = POLLRDHUP};
	ends[1] = (struct pollfd){.fd = lent->pidfd, .events = POLLIN};
	if (word != WIRE_LENT || lent->socket < 0 || poll(ends, 2, 0) != 0)
		r = -ECANCELED;
	pthread_mutex_unlock(&lent->lock);
	return r;
}

/* Copy the item's token ids from the staging, where the client may change them.
 * The caller frees the copy. */
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
	r = kv_client_memory_copy(staging,
				  item->saving->small ? KV_COPY_READ : 0,
				  item->ids_at, n, NULL, ids);
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

/* Write header and tensors to the block's slot, and hash both. */
static int copy_block(struct saving_item *item, struct kv_hash *hash)
{
	_cleanup_(kv_freep) struct kv_token_ids *ids = NULL;
	struct saving *saving = item->saving;
	const unsigned how = (saving->small ? KV_COPY_READ : 0) |
			     (kv_fill_is_open(item->fill) ? KV_COPY_OPEN : 0);
	uint8_t *file = kv_fill_data(item->fill);
	struct kv_meta meta;
	int r = saving->with_ids ? read_ids(item, &ids) : 0;

	if (r < 0)
		return r;
	meta = item->meta;
	meta.ids = ids;
	r = kv_block_header_write(saving->layout, &item->key, &meta, file);
	if (r < 0)
		return r;
	kv_hash_begin(hash);
	kv_hash_update(hash, file, saving->header_bytes);
	file += saving->header_bytes;
	r = saving->lent
		    ? copy_lent(saving->lent, item->pages, how, hash, file)
		    : kv_client_memory_copy(saving->staging, how, item->from,
					    saving->layout->payload, hash,
					    file);
	item->digest = kv_hash_end(hash);
	return r;
}

/* Copy those of the @n blocks from @first on that are prepared, at most JOB_BLOCKS, and
 * then seal them. */
static void copy_blocks(struct saving_item *first, uint32_t n,
			struct kv_hash *hash)
{
	struct saving *saving = first->saving;
	struct kv_cache *cache = saving->request.server->cache;
	struct saving_item *sealed[JOB_BLOCKS];
	struct kv_seal seals[JOB_BLOCKS];
	uint32_t n_seals = 0;
	int lent;

	for (struct saving_item *item = first; item < first + n; item++)
		if (item->fill)
			item->status = copy_block(item, hash);
	lent = saving->lent ? check_lent(saving) : 0;
	for (struct saving_item *item = first; item < first + n; item++) {
		struct kv_fill *fill = kv_steal(item->fill);

		if (!fill)
			continue;
		if (item->status == 0)
			item->status = lent;
		if (item->status < 0) {
			kv_fill_drop(cache, fill);
			continue;
		}
		if (item->hold)
			kv_fill_hold(fill,
				     &saving->request.acquire
					      ->wants[item - saving->items]);
		sealed[n_seals] = item;
		seals[n_seals++] =
			(struct kv_seal){fill,	       &item->key,
					 &item->meta,  saving->header_bytes,
					 item->digest, 0};
	}
	if (n_seals > 0)
		kv_fills_seal(cache, seals, n_seals);
	for (uint32_t i = 0; i < n_seals; i++)
		sealed[i]->status =
			seals[i].status == 1 ? -EEXIST : seals[i].status;
}

/* Count a job as ended.  The saving may be freed after the last one. */
static void ended(struct saving *saving)
{
	if (atomic_fetch_sub(&saving->left, 1) == 1)
		kv_wait_end(&saving->request.wait, 0);
}

static void copy_job(struct kv_work *work, struct kv_hash *hash)
{
	struct saving_item *first =
		kv_container(work, struct saving_item, work);
	struct saving *saving = first->saving;

	copy_blocks(first, first->job, hash);
	ended(saving);
}

/* Return whether the control thread copies the blocks of @saving: that takes less time
 * than waking a worker.  Reserved blocks are left to workers, because if the block was
 * saved as a file meanwhile, its seal may wait for the disk. */
static bool is_small(const struct saving *saving)
{
	const uint64_t ids =
		kv_token_ids_bytes(saving->layout->tokens, KV_EXTRAS_MAX);
	const uint64_t each =
		saving->layout->payload + (saving->with_ids ? ids : 0);

	return (saving->lent || (saving->request.header.flags & WIRE_FRESH)) &&
	       saving->n <= KV_SMALL_BLOCKS && each <= KV_SMALL_BYTES &&
	       saving->request.server->copied + saving->n * each <=
		       KV_SMALL_BYTES;
}

/* Return how many blocks of @saving are copied before they are sealed together.  A short
 * message is spread over the workers. */
static uint32_t job_blocks(const struct saving *saving)
{
	const uint64_t payload = KV_MAX(saving->layout->payload, 1u);
	const uint32_t n = KV_MIN(JOB_BLOCKS, (saving->n + 3) / 4);

	return saving->small
		       ? 1
		       : (uint32_t)KV_MAX(KV_MIN(JOB_BYTES / payload, n), 1u);
}

/* Prepare the items, unless @r is an error, and copy them if they are small; or have
 * workers copy them: the first while later ones are being prepared. */
static void copy_items(struct saving *saving, const struct wire_save *wire,
		       int r,
		       int (*prepare_item)(struct saving *saving,
					   const struct wire_save *wire,
					   struct saving_item *item))
{
	struct kv_server *server = saving->request.server;
	struct saving_item *first;
	uint32_t each, good;

	saving->small = is_small(saving);
	each = job_blocks(saving);
	/* Count this loop as a job: the request must not end before. */
	atomic_init(&saving->left, 1);
	if (!saving->small)
		kv_request_pend(&saving->request, 0);
	for (uint32_t at = 0; at < saving->n; at += each) {
		first = &saving->items[at];
		first->job = KV_MIN(each, saving->n - at);
		good = 0;
		for (uint32_t i = 0; i < first->job; i++) {
			first[i].status =
				r < 0 ? r
				      : prepare_item(saving, &wire[at + i],
						     &first[i]);
			good += first[i].status == 0;
		}
		if (good > 0 && saving->small) {
			server->copied += good * saving->layout->payload;
			copy_blocks(first, first->job, server->hash);
		} else if (good > 0) {
			atomic_fetch_add(&saving->left, 1);
			kv_work_submit(server->copies, &first->work,
				       saving->uid,
				       good * (KV_COPY_COST +
					       saving->layout->payload));
		}
	}
	if (saving->small)
		kv_request_answer(&saving->request);
	else
		ended(saving);
}

/* ---- the request ---- */

/* Put the staging or the lent memory; the request may keep only leases. */
static void saving_fini(struct kv_wait *wait)
{
	struct saving *saving = (struct saving *)wait;

	kv_client_memory_put(kv_steal(saving->staging));
	kv_lent_put(kv_steal(saving->lent));
	free(kv_steal(saving->pages));
}

static int saving_finish(struct kv_request *request)
{
	struct saving *saving = (struct saving *)request;
	struct wire_status *statuses = kv_reply_items(request->server);
	uint32_t n = saving->n;

	for (uint32_t i = 0; i < n; i++)
		statuses[i].status = saving->items[i].status;
	kv_reply(request->client, &request->header, 0, n,
		 n * sizeof(*statuses));
	kv_server_time(request->server, &request->server->tally.save_times,
		       request->came_ns);
	saving_fini(&request->wait);
	return 0;
}

static const struct kv_request_kind kind = {{.fini = saving_fini},
					    saving_finish};

/* Make a request that saves the @n blocks of the message, with zeroed items.
 * Returns 0, -ENOSPC, -ENOMEM, or an error of kv_client_space. */
static int saving_new(struct kv_client *client,
		      const struct kv_message *message, uint32_t n,
		      struct saving **ret_saving)
{
	struct kv_message m = *message;
	const uint16_t flags = m.header->flags;
	const bool holds = client->reservations.holds || (flags & WIRE_HOLD);
	struct kv_acquire *leases;
	struct saving *saving = NULL;
	int r = kv_client_space(client, m.header->space, W_OK | X_OK, &m.space,
				&m.info);

	if (r == 0 && (!m.info.layout ||
		       m.info.layout->token_ids != !!(flags & WIRE_WITH_IDS)))
		r = -EINVAL;
	if (r == 0)
		r = kv_request_new(
			client, &m, &kind,
			sizeof(*saving) + n * sizeof(saving->items[0]) +
				(holds ? sizeof(*leases) +
						 n * sizeof(leases->wants[0])
				       : 0),
			&saving);
	kv_space_put(m.space);
	if (r == 0 && holds) {
		r = kv_request_lease(&saving->request, n);
		client->last_acquire =
			KV_MAX(client->last_acquire, m.header->tag);
	}
	if (r < 0) {
		if (saving)
			kv_request_end(&saving->request, false);
		return r;
	}
	leases = holds ? (struct kv_acquire *)&saving->items[n] : NULL;
	if (leases)
		leases->n = n;
	saving->request.acquire = leases;
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
		saving->items[i].work.run = copy_job;
		if (leases)
			leases->wants[i].status = -ENOENT;
	}
	*ret_saving = saving;
	return 0;
}

/* ---- the table of reservations ---- */

struct kv_reservation_entry {
	LIST_ENTRY(kv_reservation_entry) bucket;
	struct kv_reservation what;
	uint32_t space;
	struct kv_key key;
};

/* Return the bucket of @key.  The hash is seeded, so that no client can fill
 * one bucket to slow down others. */
static struct kv_reservation_entries *bucket_of(struct kv_reservations *table,
						const struct kv_key *key)
{
	uint64_t h = XXH3_64bits_withSeed(key->b, sizeof(key->b), table->seed);

	return &table->buckets[h % KV_ARRAY_LEN(table->buckets)];
}

/* Add @what as the reservation of @key in the space @space, which may be removed later.
 * Returns 0, -ENOLCK beyond the user's share, or -ENOMEM. */
static int add_reservation(struct kv_reservations *table, uint32_t space,
			   const struct kv_key *key,
			   const struct kv_reservation *what)
{
	struct kv_reservation_entry *r;

	if (kv_account_charge(table->account, KV_FINITE_RESERVATIONS, 1) < 0)
		return -ENOLCK;
	r = malloc(sizeof(*r));
	if (!r) {
		kv_account_credit(table->account, KV_FINITE_RESERVATIONS, 1);
		return -ENOMEM;
	}
	*r = (struct kv_reservation_entry){
		.what = *what, .space = space, .key = *key};
	LIST_INSERT_HEAD(bucket_of(table, key), r, bucket);
	table->n++;
	table->holds += what->hold;
	return 0;
}

/* Return @key's reservation, or NULL. */
static struct kv_reservation_entry *
find_reservation(struct kv_reservations *table, uint32_t space,
		 const struct kv_key *key)
{
	struct kv_reservation_entry *r;

	LIST_FOREACH(r, bucket_of(table, key), bucket)
		if (r->space == space && kv_key_equal(&r->key, key))
			break;
	return r;
}

/* Remove and return the reservation of @key, which must be in the table. */
static struct kv_reservation take_reservation(struct kv_reservations *table,
					      uint32_t space,
					      const struct kv_key *key)
{
	struct kv_reservation_entry *r = find_reservation(table, space, key);
	struct kv_reservation what = r->what;

	LIST_REMOVE(r, bucket);
	free(r);
	kv_account_credit(table->account, KV_FINITE_RESERVATIONS, 1);
	table->n--;
	table->holds -= what.hold;
	return what;
}

size_t kv_reservations_drop(struct kv_reservations *table,
			    struct kv_cache *cache)
{
	struct kv_reservation_entry *r;
	size_t n = table->n;

	for (size_t i = 0; i < KV_ARRAY_LEN(table->buckets); i++)
		while ((r = LIST_FIRST(&table->buckets[i]))) {
			LIST_REMOVE(r, bucket);
			kv_fill_drop(cache, r->what.fill);
			free(r);
		}
	kv_account_credit(table->account, KV_FINITE_RESERVATIONS, n);
	table->n = table->holds = 0;
	return n;
}

/* ---- reservations ---- */

/* Begin to fill block @key of @space, as the @flags of a RESERVE say. */
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

	if (!m->info.layout)
		return -EINVAL;
	for (uint32_t i = 0; i < n; i++) {
		struct kv_reservation reservation = {
			.hold = header->flags & WIRE_HOLD, .tag = header->tag};
		struct kv_key key;
		int r = kv_wire_key(keys[i].key, keys[i].len, &key);

		if (r == 0)
			r = begin_fill(client, header->flags, m->space,
				       m->info.layout, &key, &reservation.fill);
		if (r == 0 &&
		    find_reservation(&client->reservations, m->info.id, &key))
			r = -EBUSY; /* the older reservation is stale */
		if (r == 0)
			r = add_reservation(&client->reservations, m->info.id,
					    &key, &reservation);
		if (r < 0 && reservation.fill)
			kv_fill_drop(client->server->cache, reservation.fill);
		statuses[i].status = r;
	}
	kv_reply(client, header, 0, n, n * sizeof(*statuses));
	return 0;
}

/* Drop the reservation of @key, which must exist. */
static void drop_reservation(struct kv_client *client, uint32_t space,
			     const struct kv_key *key)
{
	kv_fill_drop(client->server->cache,
		     take_reservation(&client->reservations, space, key).fill);
}

int kv_request_drop(struct kv_client *client, const struct kv_message *m)
{
	struct kv_server *server = client->server;
	struct wire_status *statuses = kv_reply_items(server);
	uint32_t n = m->header->count, space = m->header->space;
	const struct kv_reservation_entry *there;

	for (uint32_t i = 0; i < n; i++) {
		statuses[i].status = -ENOENT;
		there = find_reservation(&client->reservations, space,
					 &server->keys[i]);
		if (!there ||
		    (m->header->arg && m->header->arg != there->what.tag))
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

/* Set item->ids_at to @at, if the message has token ids. */
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

/* Set the offsets of the block and of its ids in the staging. */
static int set_place(const struct saving *saving, const struct wire_save *wire,
		     struct saving_item *item)
{
	const uint64_t bytes = saving->layout->payload;

	item->from = wire->offset;
	if (!saving->staging ||
	    !kv_client_memory_has(saving->staging, wire->offset, bytes))
		return -EINVAL;
	return set_ids(saving, kv_round_up(wire->offset + bytes, 8), item);
}

/* Return true if the client has a reservation for the block of @wire. */
static bool has_reservation(struct kv_client *client, uint32_t space,
			    const struct wire_save *wire,
			    struct kv_key *ret_key)
{
	return kv_wire_key(wire->key, wire->len, ret_key) == 0 &&
	       find_reservation(&client->reservations, space, ret_key);
}

static int prepare(struct saving *saving, const struct wire_save *wire,
		   struct saving_item *item)
{
	struct kv_client *client = saving->request.client;
	uint32_t space = saving->request.header.space;
	struct kv_reservation reservation;
	int r;

	if (!has_reservation(client, space, wire, &item->key))
		return -ENOENT;
	reservation =
		take_reservation(&client->reservations, space, &item->key);
	item->hold = reservation.hold;
	r = set_meta(saving, wire, item);
	if (r == 0)
		r = set_place(saving, wire, item);
	if (r == 0)
		item->fill = reservation.fill;
	else
		kv_fill_drop(client->server->cache, reservation.fill);
	return r;
}

/* Prepare a block that is not reserved. */
static int prepare_fresh(struct saving *saving, const struct wire_save *wire,
			 struct saving_item *item)
{
	const uint64_t pages = saving->lent ? saving->lent->pages_per_block : 0;
	struct kv_client *client = saving->request.client;
	uint16_t flags = saving->request.header.flags;
	int r;

	r = kv_wire_key(wire->key, wire->len, &item->key);
	if (r == 0)
		r = set_meta(saving, wire, item);
	if (r == 0)
		r = saving->lent ? set_ids(saving, wire->offset, item)
				 : set_place(saving, wire, item);
	for (uint64_t i = 0; r == 0 && i < pages; i++)
		r = item->pages[i] < saving->lent->pages ? 0 : -EINVAL;
	item->hold = flags & WIRE_HOLD;
	return r < 0 ? r
		     : begin_fill(client, flags, saving->request.wait.space,
				  saving->layout, &item->key, &item->fill);
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
		if (!has_reservation(client, space, &wire[i], &key))
			continue;
		statuses[i].status = status;
		drop_reservation(client, space, &key);
	}
	kv_reply(client, m->header, 0, n, n * sizeof(*statuses));
}

int kv_request_save(struct kv_client *client, const struct kv_message *m)
{
	const bool fresh = m->header->flags & WIRE_FRESH;
	struct saving *saving;
	int r;

	if ((m->header->flags & (WIRE_MUST | WIRE_HOLD)) && !fresh)
		return -EPROTO;
	r = saving_new(client, m, m->header->count, &saving);
	if (r < 0 && fresh)
		return r;
	if (r < 0)
		give_up(client, m, r);
	else
		copy_items(saving, m->items, 0,
			   fresh ? prepare_fresh : prepare);
	return 0;
}

/* ---- blocks in lent pages ---- */

/* Store in @saving the loan, and the page numbers of each block. */
static int lend(struct saving *saving, struct kv_lent *lent,
		const struct wire_save_pages *what, const void *pages)
{
	size_t each = lent->pages_per_block;
	size_t bytes = what->n * each * sizeof(uint64_t);
	int r;

	if (lent->payload != saving->layout->payload || !saving->staging ||
	    what->lent % sizeof(uint32_t) != 0 ||
	    !kv_client_memory_has(saving->staging, what->lent,
				  sizeof(uint32_t)))
		return -EINVAL;
	r = kv_account_charge(saving->request.wait.account, KV_FINITE_MEMORY,
			      bytes);
	if (r < 0)
		return r;
	saving->request.wait.bytes += bytes;
	saving->pages = malloc(bytes);
	if (!saving->pages)
		return -ENOMEM;
	memcpy(saving->pages, pages, bytes);
	for (uint32_t i = 0; i < what->n; i++)
		saving->items[i].pages = saving->pages + i * each;
	saving->is_lent = what->lent;
	saving->lent = lent;
	atomic_fetch_add(&lent->refs, 1);
	return 0;
}

int kv_request_save_pages(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_save_pages *what = m->items;
	const struct wire_save *wire = (const struct wire_save *)(what + 1);
	struct kv_lent *lent = find_lent(client, what->pool);
	const uint64_t room = m->header->count,
		       pages = lent ? lent->pages_per_block : 0;
	struct saving *saving;
	int r = -ENOENT;

	/* The message must end after the page numbers of its last block. */
	if (lent &&
	    (what->n == 0 || what->n > WIRE_BATCH ||
	     pages > WIRE_MAX / sizeof(uint64_t) ||
	     room != what->n * (sizeof(*wire) + pages * sizeof(uint64_t))))
		return -EPROTO;
	if (lent)
		r = saving_new(client, m, what->n, &saving);
	if (r < 0)
		return r;
	r = lend(saving, lent, what, wire + what->n);
	copy_items(saving, wire, r, prepare_fresh);
	return 0;
}

/* ---- memory that a client offers, until a worker has mapped it ---- */

struct offer {
	struct kv_request request; /* first */
	/* one of the following two is held, the other NULL */
	struct kv_client_memory *staging;
	struct kv_lent *lent;
};

static int offer_run(struct kv_wait *wait)
{
	struct offer *offer = (struct offer *)wait;

	return kv_client_memory_map(offer->lent ? offer->lent->memory
						: offer->staging);
}

static void offer_fini(struct kv_wait *wait)
{
	struct offer *offer = (struct offer *)wait;

	kv_client_memory_put(offer->staging);
	kv_lent_put(offer->lent);
}

static int offer_finish(struct kv_request *request)
{
	struct offer *offer = (struct offer *)request;
	struct kv_client *client = request->client;
	int r = request->wait.status;

	if (r == 0 && offer->lent) {
		TAILQ_INSERT_TAIL(&client->lents, offer->lent, link);
		client->n_lents++;
		offer->lent = NULL;
	} else if (r == 0) {
		client->staging = kv_steal(offer->staging);
	}
	client->offers = false;
	kv_reply(client, &request->header, r, 0, 0);
	kv_user_ready(client);
	return 0;
}

static const struct kv_request_kind offer_kind = {
	{offer_run, kv_wait_withdraw, offer_fini}, offer_finish};

/* Begin to map what the client offers, @staging or @lent; the other is NULL.
 * Takes it over in any case. */
static int offer_begin(struct kv_client *client, const struct kv_message *m,
		       struct kv_client_memory *staging, struct kv_lent *lent)
{
	struct offer *offer;
	int r = kv_request_new(client, m, &offer_kind, sizeof(*offer), &offer);

	if (r < 0) {
		kv_client_memory_put(staging);
		kv_lent_put(lent);
		return r;
	}
	offer->staging = staging;
	offer->lent = lent;
	client->offers = true;
	kv_request_run(&offer->request);
	return 0;
}

int kv_request_staging(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_staging *wanted = m->items;
	struct kv_client_memory *staging = NULL;
	int r = kv_client_memory_new(client->server, client->account, m->fd, 0,
				     wanted->bytes, &staging);

	/* A client whose offer is refused has no staging: blocks that the client
	 * saves from the refused memory must not be copied from the old one. */
	kv_client_memory_put(kv_steal(client->staging));
	return r < 0 ? r : offer_begin(client, m, staging, NULL);
}

int kv_request_pool(struct kv_client *client, const struct kv_message *m)
{
	const struct wire_pool *pool = m->items;
	struct kv_lent *lent;
	int r;

	if (find_lent(client, pool->id))
		return -EEXIST;
	if (client->n_lents >= WIRE_POOLS_MAX)
		return -ENOLCK;
	r = kv_lent_new(client, m->fd, pool,
			(const struct wire_stride *)(pool + 1),
			m->header->count, &lent);
	return r < 0 ? r : offer_begin(client, m, NULL, lent);
}

int kv_request_pool_close(struct kv_client *client, const struct kv_message *m)
{
	struct kv_lent *lent = find_lent(client, m->header->arg);

	if (lent)
		kv_lent_drop(client, lent);
	return 0;
}
