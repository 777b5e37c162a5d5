/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lent.c - memory that a pool lends to the daemon, and the messages that save
 * from it.
 *
 * OWNS      a pool's lending: its descriptor; and batches of blocks that are
 *           lent, each with a word of the staging memory.
 *
 * STATES    of a lending, for each connection anew:
 *
 *           UNKNOWN -> ASKED      kv_lending_offer_locked
 *             ASKED -> TAKEN      offered: saves go this way from now on
 *             ASKED -> REFUSED    offered: they go by staging
 *
 *           of a batch:
 *
 *             (new) -> LENT       kv_lent_batch_locked
 *              LENT -> over       saved: the daemon has answered
 *              LENT -> UNWANTED   kv_lent_batches_stop_locked
 *          UNWANTED -> over       unwanted_saved
 *
 * INVARIANTS
 *   (1) A batch's word is WIRE_LENT if and only if its pages are lent: nobody
 *       is told that they are reusable before it is another.
 *   (2) The word's extent is put back by the answer, or goes with the
 *       connection: the daemon never finds another batch's word there.
 *   (3) A lending describes the memory that the pool's strides lie in, and a
 *       shared mapping of the file: /proc/self/maps has been asked.
 *
 * LOCKING   session->lock.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "kernels/transfer/batch.h"
#include "kernels/transfer/lent.h"
#include "kernels/transfer/save.h"
#include "kernels/transfer/token_ids.h"
#include "kernels/session/space.h"

#define LENT_BYTES ((uint64_t)8 << 20) /* a message's blocks */
#define WORD_BYTES 64u		       /* a line for itself */

struct kv_lending {
	struct kvfs_session *session;
	LIST_ENTRY(kv_lending) others; /* in session->lendings */
	struct offer *offer;	       /* under way; or NULL */
	int fd;
	uint64_t asked, taken; /* the connection's number; 0: none */
	int refused;	       /* what the last one said; 0: nothing */
	struct wire_pool item;
	size_t n;
	struct wire_stride strides[];
};

struct offer {
	struct kv_call call;	    /* first */
	struct kv_lending *lending; /* NULL: gone meanwhile */
	uint64_t generation;
};

struct kv_lent_batch {
	struct kv_call call;		  /* first */
	LIST_ENTRY(kv_lent_batch) others; /* in xfer->lent, if wanted */
	struct kvfs_xfer *xfer;
	struct kv_stage *stage;
	struct kv_extent *extent;
	struct kv_hold *hold; /* NULL: nothing is held */
	size_t n;
	uint32_t block[]; /* of the transfer */
};

/* ---- what is lent ---- */

/* A line of /proc/self/maps, as far as it matters. */
struct mapping {
	uint64_t from, to, offset;
	unsigned major, minor;
	unsigned long inode;
	char shared; /* 's' or 'p' */
};

static bool parse_mapping(const char *line, struct mapping *m)
{
	unsigned long from, to, offset;

	if (sscanf(line, "%lx-%lx %*c%*c%*c%c %lx %x:%x %lu", &from, &to,
		   &m->shared, &offset, &m->major, &m->minor, &m->inode) != 7)
		return false;
	m->from = from;
	m->to = to;
	m->offset = offset;
	return true;
}

/* Whether all of @memory .. + @bytes is a shared mapping of @st's file from
 * @offset on: bytes of another place would be saved under its keys. */
static bool is_mapped(const struct stat *st, uint64_t memory, uint64_t bytes,
		      uint64_t offset)
{
	_cleanup_(kv_freep) char *line = NULL;
	FILE *f = fopen("/proc/self/maps", "re");
	uint64_t at = memory, end = memory + bytes;
	struct mapping m;
	size_t room = 0;

	while (f && at < end && getline(&line, &room, f) > 0) {
		if (!parse_mapping(line, &m) || m.to <= at)
			continue;
		if (m.from > at || m.shared != 's' || m.inode != st->st_ino ||
		    makedev(m.major, m.minor) != st->st_dev ||
		    m.offset + (at - m.from) != offset + (at - memory))
			break;
		at = m.to;
	}
	if (f)
		fclose(f);
	return at >= end;
}

/* Takes @fd over in any case. */
static int lending_new(struct kvfs_pool *pool, int fd, const void *memory,
		       const struct wire_pool *item)
{
	const struct kvfs_strides *strides = &pool->strides;
	struct kvfs_session *session = pool->session;
	struct kv_lending *lending;

	lending = calloc(1, sizeof(*lending) +
				    strides->n * sizeof(lending->strides[0]));
	if (!lending) {
		close(fd);
		return -ENOMEM;
	}
	lending->session = session;
	lending->item = *item;
	lending->n = strides->n;
	for (size_t i = 0; i < strides->n; i++)
		lending->strides[i] = (struct wire_stride){
			.at = (uint64_t)(strides->stride[i].base -
					 (const uint8_t *)memory),
			.block_stride = strides->stride[i].block_stride,
			.bytes = strides->stride[i].bytes,
			.count = strides->stride[i].count,
			.segment_stride = strides->stride[i].segment_stride,
		};
	lending->fd = fd;
	pthread_mutex_lock(&session->lock);
	lending->item.id = ++session->lending_ids;
	LIST_INSERT_HEAD(&session->lendings, lending, others);
	pool->lending = lending;
	pthread_mutex_unlock(&session->lock);
	return 0;
}

/* Whether the strides, and a block's pages, fit in a message. */
static bool fits(const struct kvfs_pool *pool)
{
	const struct kvfs_strides *s = &pool->strides;
	size_t room = WIRE_MAX - sizeof(struct wire_header) -
		      sizeof(struct wire_save_pages) - sizeof(struct wire_pool);

	return s->n <= room / sizeof(struct wire_stride) &&
	       s->pages_per_block <=
		       (room - sizeof(struct wire_save)) / sizeof(uint64_t);
}

int kv_lending_new(struct kvfs_pool *pool, const kvfs_pool_desc *desc)
{
	const struct wire_pool item = {
		.pages_per_block = desc->pages_per_block,
		.pages = desc->pages,
		.offset = desc->memory_offset,
		.bytes = desc->memory_bytes,
	};
	struct stat st;
	int fd;

	if (desc->memory_fd <= 0)
		return desc->memory_fd < 0 || desc->memory_offset ? -EINVAL : 0;
	if (!desc->memory || strcmp(pool->device->name, "host") != 0)
		return -EINVAL;
	if (fstat(desc->memory_fd, &st) < 0)
		return -errno;
	if (!is_mapped(&st, (uintptr_t)desc->memory, desc->memory_bytes,
		       desc->memory_offset))
		return -EINVAL;
	if (!fits(pool))
		return 0;
	fd = fcntl(desc->memory_fd, F_DUPFD_CLOEXEC, 0);
	return fd < 0 ? -errno : lending_new(pool, fd, desc->memory, &item);
}

/* Memory that never grows is sealed, so that the daemon maps it; other memory
 * is read by pread(2). */
int kv_lending_own(struct kvfs_pool *pool, int fd, const void *memory,
		   uint64_t bytes, uint64_t max_bytes)
{
	const struct wire_pool item = {
		.pages_per_block = pool->strides.pages_per_block,
		.pages = pool->pages,
		.bytes = max_bytes,
	};
	struct stat st;
	int r;

	/* A device of others' may err. */
	if (!fits(pool) || fstat(fd, &st) < 0 ||
	    !is_mapped(&st, (uintptr_t)memory, max_bytes, 0)) {
		close(fd);
		return 0;
	}
	if (bytes == max_bytes)
		(void)fcntl(fd, F_ADD_SEALS,
			    F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE);
	r = lending_new(pool, fd, memory, &item);
	if (r < 0)
		return r;
	pthread_mutex_lock(&pool->session->lock);
	kv_lending_offer_locked(pool);
	pthread_mutex_unlock(&pool->session->lock);
	return 0;
}

int kv_lending_grow(struct kvfs_pool *pool, uint64_t bytes)
{
	/* Nobody frees it meanwhile: the pool is open. */
	const struct kv_lending *lending = pool->lending;

	if (!lending)
		return 0;
	return fallocate(lending->fd, 0, 0, (off_t)bytes) < 0 ? -ENOMEM : 0;
}

static void offered(struct kv_call *call, int status, const void *items)
{
	struct offer *offer = (struct offer *)call;
	struct kv_lending *lending = offer->lending;

	(void)items;
	if (lending) {
		kv_assert_locked(&lending->session->lock);
		lending->offer = NULL;
		lending->refused = status;
		lending->taken = status < 0 ? 0 : offer->generation;
	}
	free(offer);
}

static int ask_locked(struct kv_lending *lending, struct offer *offer)
{
	_cleanup_(kv_freep) uint8_t *items = NULL;
	size_t strides = lending->n * sizeof(lending->strides[0]);
	struct kv_packet packet = {
		.header = {.type = WIRE_POOL, .count = (uint32_t)lending->n},
		.bytes = sizeof(lending->item) + strides,
		.fd = lending->fd,
	};

	kv_assert_locked(&lending->session->lock);
	packet.items = items = malloc(packet.bytes);
	if (!items)
		return -ENOMEM;
	memcpy(items, &lending->item, sizeof(lending->item));
	memcpy(items + sizeof(lending->item), lending->strides, strides);
	return kv_rpc_submit_locked(lending->session, &offer->call, &packet);
}

void kv_lending_offer_locked(struct kvfs_pool *pool)
{
	struct kvfs_session *session = pool->session;
	struct kv_lending *lending = pool->lending;
	uint64_t live = atomic_load(&session->live);
	struct offer *offer;

	kv_assert_locked(&session->lock);
	if (!lending || live == 0 || lending->asked == live)
		return;
	offer = calloc(1, sizeof(*offer));
	if (!offer)
		return;
	offer->call.done = offered;
	offer->lending = lending;
	offer->generation = live;
	if (ask_locked(lending, offer) < 0) {
		free(offer);
		return;
	}
	lending->asked = live;
	lending->offer = offer;
}

void kv_lending_free_locked(struct kv_lending *lending)
{
	struct kvfs_session *session;
	struct kv_packet packet = {.header = {.type = WIRE_POOL_CLOSE},
				   .fd = -1};

	if (!lending)
		return;
	session = lending->session;
	kv_assert_locked(&session->lock);
	if (kv_session_is_live(session, lending->asked)) {
		packet.header.arg = lending->item.id;
		kv_rpc_post_locked(session, &packet);
	}
	if (lending->offer)
		lending->offer->lending = NULL;
	LIST_REMOVE(lending, others);
	kv_closep(&lending->fd);
	free(lending);
}

void kv_lending_forked(struct kvfs_session *session)
{
	struct kv_lending *lending;

	LIST_FOREACH(lending, &session->lendings, others) {
		kv_closep(&lending->fd);
		lending->fd = -1;
	}
}

const char *kv_lending_why_not_locked(const struct kvfs_pool *pool)
{
	const struct kv_lending *lending = pool->lending;
	struct kvfs_session *session = pool->session;

	kv_assert_locked(&session->lock);
	if (!lending)
		return "memory without a descriptor";
	if (kv_session_is_live(session, lending->taken))
		return NULL;
	switch (lending->refused) {
	case -EMEDIUMTYPE:
		return "the descriptor is of no file in memory";
	case -ENOLCK:
		return "the daemon takes no more from this user";
	case 0:
	case -ENOTCONN:
		return "no daemon has taken the descriptor yet";
	default:
		return "the daemon cannot use the descriptor";
	}
}

/* ---- blocks on their way ---- */

static uint32_t *word_of(const struct kv_lent_batch *batch)
{
	return (uint32_t *)(void *)(kv_stage_data(batch->stage) +
				    batch->extent->offset);
}

/* From here on what the daemon reads of the pages counts for nothing. */
static void take_back(struct kv_lent_batch *batch)
{
	__atomic_store_n(word_of(batch), 0, __ATOMIC_SEQ_CST);
	__sync_synchronize(); /* before anybody writes to them */
}

/* Settle its blocks, for none of which @status is an answer: all have it. */
static void fail_locked(struct kv_lent_batch *batch, int status)
{
	struct kvfs_xfer *xfer = batch->xfer;

	kv_assert_locked(&xfer->session->lock);
	take_back(batch);
	status = kv_save_status(xfer, status);
	for (size_t i = 0; i < batch->n; i++)
		atomic_store(&xfer->status[batch->block[i]], status);
	kv_xfer_fail_locked(xfer, KVFS_COPIED, batch->n);
}

/* Nothing has been sent, or all of it is answered. */
static void free_locked(struct kv_lent_batch *batch)
{
	kv_assert_locked(&batch->xfer->session->lock);
	if (batch->extent)
		kv_stage_put(batch->stage, batch->extent);
	kv_hold_put_locked(batch->hold);
	free(batch);
}

static void end_locked(struct kv_lent_batch *batch)
{
	struct kvfs_xfer *xfer = batch->xfer;

	kv_assert_locked(&xfer->session->lock);
	free_locked(batch);
	kv_save_pump_locked(xfer->session);
	kv_xfer_put_locked(xfer);
}

static void seal_holds(struct kv_lent_batch *batch)
{
	if (batch->hold)
		batch->hold->tag = batch->call.tag;
}

static void settle_locked(struct kv_lent_batch *batch,
			  const struct wire_status *statuses)
{
	struct kvfs_xfer *xfer = batch->xfer;
	size_t good = 0, bad = 0;
	int status;

	kv_assert_locked(&xfer->session->lock);
	for (size_t i = 0; i < batch->n; i++) {
		status = statuses[i].status;
		if (kv_save_is_full(xfer, status)) {
			kv_save_again_locked(xfer, batch->block[i]);
			continue;
		}
		if (status == 0) {
			seal_holds(batch);
			kv_hold_block_locked(xfer, batch->block[i],
					     batch->hold);
		}
		status = kv_save_status(xfer, status);
		atomic_store(&xfer->status[batch->block[i]], status);
		good += status >= 0;
		bad += status < 0;
	}
	if (good > 0)
		xfer->pause = 0;
	kv_xfer_fail_locked(xfer, KVFS_COPIED, bad);
	kv_xfer_reach_locked(xfer, KVFS_COPIED, good);
	kv_xfer_reach_locked(xfer, KVFS_SEALED, good);
}

static void saved(struct kv_call *call, int status, const void *items)
{
	struct kv_lent_batch *batch = (struct kv_lent_batch *)call;

	LIST_REMOVE(batch, others);
	take_back(batch);
	if (status < 0)
		fail_locked(batch, status);
	else
		settle_locked(batch, items);
	end_locked(batch);
}

static void unwanted_saved(struct kv_call *call, int status, const void *items)
{
	struct kv_lent_batch *batch = (struct kv_lent_batch *)call;
	const struct wire_status *statuses = items;

	for (size_t i = 0; i < batch->n && status >= 0; i++)
		if (statuses[i].status == 0)
			seal_holds(batch);
	end_locked(batch);
}

static uint16_t wire_flags(const struct kvfs_xfer *xfer)
{
	return (uint16_t)(((xfer->flags & KVFS_MUST) ? WIRE_MUST : 0) |
			  ((xfer->flags & KVFS_HOLD) ? WIRE_HOLD : 0));
}

static size_t block_items(const struct kvfs_xfer *xfer)
{
	return sizeof(struct wire_save) +
	       xfer->pool->strides.pages_per_block * sizeof(uint64_t);
}

/* The blocks, and behind them their pages. */
static void put_items(const struct kv_lent_batch *batch,
		      struct wire_save_pages *what)
{
	const struct kvfs_xfer *xfer = batch->xfer;
	size_t each = xfer->pool->strides.pages_per_block;
	struct wire_save *blocks = (struct wire_save *)(what + 1);
	uint64_t *pages = (uint64_t *)(blocks + batch->n);

	*what = (struct wire_save_pages){
		.pool = xfer->pool->lending->item.id,
		.n = (uint32_t)batch->n,
		.lent = batch->extent->offset,
	};
	for (size_t i = 0; i < batch->n; i++) {
		blocks[i] = xfer->blocks[batch->block[i]];
		blocks[i].offset = batch->extent->offset + WORD_BYTES +
				   i * kv_save_ids_bytes(xfer);
		for (size_t p = 0; p < each; p++)
			*pages++ =
				(uint64_t)
					xfer->pages[batch->block[i] * each + p];
	}
}

static int send_locked(struct kv_lent_batch *batch)
{
	_cleanup_(kv_freep) struct wire_save_pages *what = NULL;
	struct kvfs_xfer *xfer = batch->xfer;
	size_t bytes = batch->n * block_items(xfer);
	struct kv_packet packet = {
		.header = {.type = WIRE_SAVE_PAGES,
			   .flags = wire_flags(xfer) | kv_save_ids_flags(xfer),
			   .count = (uint32_t)bytes,
			   .space = xfer->space_id},
		.bytes = sizeof(*what) + bytes,
		.fd = -1,
	};

	kv_assert_locked(&xfer->session->lock);
	packet.items = what = malloc(packet.bytes);
	if (!what)
		return -ENOMEM;
	put_items(batch, what);
	batch->call.done = saved;
	batch->call.count = (uint32_t)batch->n;
	return kv_rpc_submit_locked(xfer->session, &batch->call, &packet);
}

/* A word, and behind it what the blocks' tokens are. */
static uint64_t stage_bytes(const struct kvfs_xfer *xfer, size_t n)
{
	return kv_round_up(WORD_BYTES + n * kv_save_ids_bytes(xfer),
			   KV_SAVE_ALIGN);
}

static void put_ids(const struct kv_lent_batch *batch)
{
	const struct kvfs_xfer *xfer = batch->xfer;
	uint8_t *at = kv_stage_data(batch->stage) + batch->extent->offset +
		      WORD_BYTES;

	for (size_t i = 0; i < batch->n && xfer->ids; i++)
		kv_save_ids_put(xfer, batch->block[i],
				at + i * kv_save_ids_bytes(xfer));
}

static int batch_new_locked(struct kvfs_xfer *xfer, struct kv_stage *stage,
			    size_t n, struct kv_lent_batch **ret_batch)
{
	struct kv_lent_batch *batch;
	int r = 0;

	kv_assert_locked(&xfer->session->lock);
	batch = calloc(1, sizeof(*batch) + n * sizeof(batch->block[0]));
	if (!batch)
		return -ENOMEM;
	batch->xfer = xfer;
	batch->stage = stage;
	batch->n = n;
	if (xfer->flags & KVFS_HOLD)
		r = kv_hold_new(xfer, &batch->hold);
	if (r == 0)
		r = kv_stage_get(stage, stage_bytes(xfer, n), &batch->extent);
	if (r < 0) {
		free_locked(batch);
		return r;
	}
	*ret_batch = batch;
	return 0;
}

int kv_lent_batch_locked(struct kvfs_xfer *xfer, struct kv_stage *stage,
			 size_t n)
{
	struct kv_lent_batch *batch;
	int r;

	kv_assert_locked(&xfer->session->lock);
	r = batch_new_locked(xfer, stage, n, &batch);
	if (r < 0)
		return r;
	kv_xfer_get_locked(xfer);
	LIST_INSERT_HEAD(&xfer->lent, batch, others);
	kv_save_take_locked(xfer, batch->block, n);
	put_ids(batch);
	__atomic_store_n(word_of(batch), WIRE_LENT, __ATOMIC_SEQ_CST);
	r = send_locked(batch);
	if (r < 0) {
		LIST_REMOVE(batch, others);
		fail_locked(batch, r);
		free_locked(batch);
		kv_xfer_put_locked(xfer);
	}
	return r;
}

bool kv_lent_may_locked(const struct kvfs_xfer *xfer)
{
	const struct kv_lending *lending = xfer->pool->lending;

	kv_assert_locked(&xfer->session->lock);
	return lending && lending->taken == xfer->generation &&
	       kv_session_is_live(xfer->session, xfer->generation);
}

size_t kv_lent_batch_blocks(const struct kvfs_xfer *xfer,
			    const struct kv_stage *stage)
{
	const uint64_t ids = kv_save_ids_bytes(xfer);
	size_t room = WIRE_MAX - sizeof(struct wire_header) -
		      sizeof(struct wire_save_pages);
	size_t n = KV_MAX(LENT_BYTES / xfer->pool->layout->payload, 1u);

	n = KV_MIN(n, room / block_items(xfer));
	n = KV_MIN(n, (size_t)WIRE_BATCH);
	if (ids > 0)
		n = KV_MIN(n, kv_stage_bytes(stage) / 2 / ids);
	return KV_MIN(KV_MAX(n, 1u), xfer->todo_n);
}

void kv_lent_batches_stop_locked(struct kvfs_xfer *xfer)
{
	struct kv_lent_batch *batch;

	kv_assert_locked(&xfer->session->lock);
	while ((batch = LIST_FIRST(&xfer->lent))) {
		LIST_REMOVE(batch, others);
		fail_locked(batch, atomic_load(&xfer->stopped));
		batch->call.done = unwanted_saved;
		if (kv_rpc_withdraw_locked(xfer->session, &batch->call))
			end_locked(batch);
	}
}
