/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pool.c - pools of the engine's pages, and lending their memory to the daemon.
 *
 * OWNS      struct kvfs_pool, and its lending: the memory's descriptor.  The
 *           pages stay the engine's.
 *
 * STATES    of a lending, for each connection anew:
 *
 *           UNKNOWN -> ASKED      kv_lending_offer_locked
 *             ASKED -> TAKEN      offered: the daemon saves from the pages
 *             ASKED -> REFUSED    offered: saves go by staging
 *
 * INVARIANTS
 *   (1) loads and saves count, for each page, the transfers in flight that use
 *       the page.  pages_loading and pages_saving count each page in use once.
 *   (2) A pool with busy transfers is not freed.
 *   (3) Strides are in the order of the block's bytes, without gaps, and cover
 *       each of them once.
 *   (4) Every byte of every page of a stride lies in the memory described.
 *   (5) Within a stride no two bytes of the pool are the same.
 *   (6) A lending describes the memory that the pool's strides lie in, a shared
 *       mapping of the file according to /proc/self/maps.
 *
 * LOCKING   session->lock for the fields that xfer.h marks; the rest is fixed.
 */
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "kernels/device/device.h"
#include "kernels/transfer/xfer.h"

#define SKIP (-1)

/* ---- strides, from the views of a descriptor ---- */

/* Check that runs and pages of the view do not overlap.  Either each page lies
 * within one block_stride, or pages interleave (as in head-first layouts): one
 * run of every page lies within one segment_stride.  *@ret_extent: bytes from
 * the view's base to its end. */
static bool keeps_apart(const kvfs_view *view, uint64_t pages, uint64_t page,
			uint64_t *ret_extent)
{
	uint64_t all_pages;

	if (view->count > 1 && view->segment_stride < view->bytes)
		return false;
	if (!kv_mul_add(pages - 1, view->block_stride, page, ret_extent))
		return false;
	if (pages == 1 || view->block_stride >= page)
		return true;
	return view->block_stride >= view->bytes &&
	       kv_mul_add(pages - 1, view->block_stride, view->bytes,
			  &all_pages) &&
	       view->segment_stride >= all_pages;
}

static int check_view(const kvfs_pool_desc *desc, const kvfs_view *view)
{
	uint64_t page, extent, end, memory_end;
	uint64_t base = (uintptr_t)view->base;
	uint64_t memory = (uintptr_t)desc->memory;

	if (!kv_abi_is_zero(view->reserved, sizeof(view->reserved)) ||
	    !view->tensor || !view->base || view->bytes == 0 ||
	    view->count == 0 || (view->block_stride == 0 && desc->pages > 1))
		return -EINVAL;
	if (!kv_mul_add(view->count - 1, view->segment_stride, view->bytes,
			&page) ||
	    !keeps_apart(view, desc->pages, page, &extent) ||
	    __builtin_add_overflow(base, extent, &end))
		return -EINVAL;
	if (memory == 0 && desc->memory_bytes == 0)
		return 0;
	if (memory == 0 ||
	    __builtin_add_overflow(memory, desc->memory_bytes, &memory_end))
		return -EINVAL;
	return base >= memory && end <= memory_end ? 0 : -EINVAL;
}

/* Append the strides of @tensor, whose views must cover its bytes exactly, in
 * order. */
static int add_tensor(const kvfs_pool_desc *desc,
		      const struct kv_tensor *tensor,
		      struct kvfs_strides *strides)
{
	uint64_t at = 0, bytes;

	for (size_t i = 0; i < desc->n_views; i++) {
		const kvfs_view *view = &desc->views[i];
		struct kvfs_stride *last,
			stride = {
				.offset = tensor->offset + at,
				.base = view->base,
				.block_stride = view->block_stride,
				.bytes = view->bytes,
				.count = view->count,
				.segment_stride = view->segment_stride,
			};

		if (strcmp(view->tensor, tensor->name) != 0)
			continue;
		if (!kv_mul_add(view->bytes, view->count, 0, &bytes) ||
		    !kv_mul_add(bytes, desc->pages_per_block, 0, &bytes) ||
		    bytes > tensor->bytes - at)
			return -EINVAL;
		at += bytes;
		/* Runs without gaps between them become one run. */
		if (view->count > 1 && view->segment_stride == view->bytes) {
			stride.bytes *= view->count;
			stride.count = 1;
		}
		/* Merge the stride into the last one if the two are adjacent on
		 * every page; with several pages a block the other pages lie in
		 * between. */
		last = strides->n > 0 ? &strides->stride[strides->n - 1] : NULL;
		if (last && strides->pages_per_block == 1 && last->count == 1 &&
		    stride.count == 1 &&
		    last->block_stride == stride.block_stride &&
		    last->base + last->bytes == stride.base)
			last->bytes += stride.bytes;
		else
			strides->stride[strides->n++] = stride;
	}
	return at == tensor->bytes ? 0 : -EINVAL;
}

int kv_strides_new(const kvfs_pool_desc *desc, const struct kv_layout *layout,
		   struct kvfs_strides *ret_strides)
{
	_cleanup_(kv_freep) struct kvfs_stride *stride = NULL;
	struct kvfs_strides strides = {.pages_per_block =
					       desc->pages_per_block};
	uint32_t t;
	int r;

	for (size_t i = 0; i < desc->n_views; i++) {
		r = check_view(desc, &desc->views[i]);
		if (r < 0)
			return r;
		for (t = 0; t < layout->n_tensors; t++)
			if (strcmp(layout->tensors[t].name,
				   desc->views[i].tensor) == 0)
				break;
		if (t == layout->n_tensors)
			return -EINVAL;
	}
	stride = calloc(desc->n_views + 1, sizeof(*stride));
	if (!stride)
		return -ENOMEM;
	strides.stride = stride;
	for (size_t i = 0; i < layout->n_tensors; i++) {
		r = add_tensor(desc, &layout->tensors[i], &strides);
		if (r < 0)
			return r;
	}
	stride = NULL;
	*ret_strides = strides;
	return 0;
}

/* ---- lending: the daemon maps the pool's memory and saves from it ---- */

/* A WIRE_POOL message that was not answered yet. */
struct kv_pool_offer {
	struct kv_call call;	/* first */
	struct kvfs_pool *pool; /* offered pool; NULL: it was closed */
	uint64_t generation;
};

/* Check in /proc/self/maps that all @bytes at @memory are a shared mapping of
 * the file @st from @offset on.  Otherwise the daemon would save other bytes
 * under the keys. */
static bool is_mapped(const struct stat *st, uint64_t memory, uint64_t bytes,
		      uint64_t offset)
{
	_cleanup_(kv_freep) char *line = NULL;
	FILE *f = fopen("/proc/self/maps", "re");
	uint64_t at = memory, end = memory + bytes;
	unsigned long from, to, from_offset, inode;
	unsigned major, minor;
	size_t room = 0;
	char shared; /* mapping: 's' shared, or 'p' private */

	while (f && at < end && getline(&line, &room, f) > 0) {
		if (sscanf(line, "%lx-%lx %*c%*c%*c%c %lx %x:%x %lu", &from,
			   &to, &shared, &from_offset, &major, &minor,
			   &inode) != 7 ||
		    to <= at)
			continue;
		if (from > at || shared != 's' || inode != st->st_ino ||
		    makedev(major, minor) != st->st_dev ||
		    from_offset + (at - from) != offset + (at - memory))
			break;
		at = to;
	}
	if (f)
		fclose(f);
	return at >= end;
}

/* Return whether the pool's strides fit into a WIRE_POOL message, and a block's
 * pages into a WIRE_SAVE_PAGES. */
static bool fits(const struct kvfs_pool *pool)
{
	const struct kvfs_strides *s = &pool->strides;
	size_t room = WIRE_MAX - sizeof(struct wire_header) -
		      sizeof(struct wire_save_pages) - sizeof(struct wire_pool);

	return s->n <= room / sizeof(struct wire_stride) &&
	       s->pages_per_block <=
		       (room - sizeof(struct wire_save)) / sizeof(uint64_t);
}

/* Lend the memory of the file @fd to the daemon.  Takes @fd over. */
static void lend(struct kvfs_pool *pool, int fd, const void *memory,
		 struct wire_pool item)
{
	struct kvfs_session *session = pool->session;

	item.pages_per_block = pool->strides.pages_per_block;
	item.pages = pool->pages;
	pthread_mutex_lock(&session->lock);
	item.id = ++session->lending_ids;
	pool->lending.fd = fd;
	pool->lending.item = item;
	pool->lending.memory = memory;
	pthread_mutex_unlock(&session->lock);
}

/*
 * Lend the memory of the checked description @desc to the daemon.  Do nothing
 * if @desc has no descriptor, or if the pool's strides do not fit into a
 * message.
 * -EINVAL: the memory is no shared mapping of that part of the file
 * -EMFILE, -EBADF
 */
static int lend_described(struct kvfs_pool *pool, const kvfs_pool_desc *desc)
{
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
	if (fd < 0)
		return -errno;
	lend(pool, fd, desc->memory,
	     (struct wire_pool){.offset = desc->memory_offset,
				.bytes = desc->memory_bytes});
	return 0;
}

/* The daemon maps only memory that is sealed, and memory that grows cannot be
 * sealed: the daemon reads such memory by pread(2). */
void kv_lending_own(struct kvfs_pool *pool, int fd, const void *memory,
		    uint64_t bytes, uint64_t max_bytes)
{
	struct stat st;

	/* Check that @fd, from a plug-in, is the file mapped at @memory. */
	if (!fits(pool) || fstat(fd, &st) < 0 ||
	    !is_mapped(&st, (uintptr_t)memory, max_bytes, 0)) {
		close(fd);
		return;
	}
	if (bytes == max_bytes)
		(void)fcntl(fd, F_ADD_SEALS,
			    F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE);
	lend(pool, fd, memory, (struct wire_pool){.bytes = max_bytes});
	pthread_mutex_lock(&pool->session->lock);
	kv_lending_offer_locked(pool);
	pthread_mutex_unlock(&pool->session->lock);
}

static void offered(struct kv_call *call, int status, const void *items)
{
	struct kv_pool_offer *offer = (struct kv_pool_offer *)call;
	struct kv_lending *lending;

	(void)items;
	if (offer->pool) {
		lending = &offer->pool->lending;
		lending->offer = NULL;
		lending->refused = status;
		lending->taken = status < 0 ? 0 : offer->generation;
	}
	free(offer);
}

void kv_lending_offer_locked(struct kvfs_pool *pool)
{
	const struct kvfs_strides *strides = &pool->strides;
	struct kvfs_session *session = pool->session;
	struct kv_lending *lending = &pool->lending;
	uint64_t live = atomic_load(&session->live);
	_cleanup_(kv_freep) struct wire_pool *items = NULL;
	struct wire_stride *wire;
	struct kv_packet packet = {
		.header = {.type = WIRE_POOL, .count = (uint32_t)strides->n},
		.bytes = sizeof(*items) + strides->n * sizeof(*wire),
		.fd = lending->fd,
	};
	struct kv_pool_offer *offer;

	kv_assert_locked(&session->lock);
	if (lending->fd < 0 || live == 0 || lending->asked == live)
		return;
	packet.items = items = malloc(packet.bytes);
	offer = calloc(1, sizeof(*offer));
	if (!items || !offer) {
		free(offer);
		return;
	}
	*items = lending->item;
	wire = (struct wire_stride *)(items + 1);
	for (size_t i = 0; i < strides->n; i++)
		wire[i] = (struct wire_stride){
			.at = (uint64_t)(strides->stride[i].base -
					 lending->memory),
			.block_stride = strides->stride[i].block_stride,
			.bytes = strides->stride[i].bytes,
			.count = strides->stride[i].count,
			.segment_stride = strides->stride[i].segment_stride,
		};
	offer->call.done = offered;
	offer->pool = pool;
	offer->generation = live;
	if (kv_rpc_submit_locked(session, &offer->call, &packet) < 0) {
		free(offer);
		return;
	}
	lending->asked = live;
	lending->offer = offer;
}

bool kv_lending_is_taken_locked(const struct kvfs_pool *pool,
				uint64_t generation)
{
	return pool->lending.taken == generation &&
	       kv_session_is_live(pool->session, generation);
}

/* Return the reason why saves of this pool go by staging; NULL if the daemon
 * saves from the pages. */
static const char *why_not_lent_locked(const struct kvfs_pool *pool)
{
	kv_assert_locked(&pool->session->lock);
	if (pool->lending.fd < 0)
		return "memory without a descriptor";
	if (kv_session_is_live(pool->session, pool->lending.taken))
		return NULL;
	switch (pool->lending.refused) {
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

/* ---- pages ---- */

long kv_lib_pool_check_pages_locked(struct kvfs_pool *pool,
				    const int64_t *pages, size_t n, bool loads)
{
	bool bad = false;
	long used = 0;
	uint8_t bit;
	size_t end;

	kv_assert_locked(&pool->session->lock);
	for (end = 0; end < n && !bad; end++) {
		if (pages[end] == SKIP && loads)
			continue;
		if (pages[end] < 0 || (uint64_t)pages[end] >= pool->pages) {
			bad = true;
			break;
		}
		bit = (uint8_t)(1u << (pages[end] % 8));
		bad = loads && (pool->seen[pages[end] / 8] & bit);
		pool->seen[pages[end] / 8] |= bit;
		used++;
	}
	for (size_t i = 0; i < end; i++)
		if (pages[i] >= 0)
			pool->seen[pages[i] / 8] = 0;
	return bad ? -EINVAL : used;
}

void kv_lib_pool_use_locked(struct kvfs_pool *pool, const int64_t *pages,
			    size_t n, bool loads, bool begin)
{
	uint32_t *uses = loads ? pool->loads : pool->saves;
	uint64_t *held = loads ? &pool->pages_loading : &pool->pages_saving;

	kv_assert_locked(&pool->session->lock);
	for (size_t i = 0; i < n; i++) {
		if (pages[i] == SKIP)
			continue;
		if (begin)
			*held += uses[pages[i]]++ == 0;
		else
			*held -= --uses[pages[i]] == 0;
	}
}

static void pool_freep(struct kvfs_pool **poolp)
{
	struct kvfs_pool *pool = *poolp;

	if (!pool)
		return;
	kv_closep(&pool->lending.fd);
	if (pool->opened && pool->device->close)
		pool->device->close(pool->on_device);
	free(pool->strides.stride);
	free(pool->seen);
	free(pool->loads);
	free(pool->saves);
	free(pool);
}

/* ---- events of the session ---- */

static void broken_locked(struct kvfs_session *session)
{
	kv_assert_locked(&session->lock);
	kv_stage_abandon(kv_steal(session->stage));
	kv_stage_abandon(kv_steal(session->stage_next));
	kv_save_pump_locked(session);
}

static void closing(struct kvfs_session *session)
{
	kv_xfers_drain(session, NULL);
	/* Make no more stages. */
	session->stage_payload = 0;
	session->staging_asked = false;
	while (session->stage_making || session->stage_growing)
		kv_session_wait(session, UINT64_MAX);
}

static void closed(struct kvfs_session *session)
{
	kv_stream_sync_free(kv_steal(session->stream_sync));
}

/* After a fork, close the child's copies of memory descriptors. */
static void forked(struct kvfs_session *session)
{
	struct kvfs_pool *pool;

	if (session->stage)
		kv_closep(&session->stage->fd);
	if (session->stage_next)
		kv_closep(&session->stage_next->fd);
	LIST_FOREACH(pool, &session->pools, others)
		kv_closep(&pool->lending.fd);
}

static void cleared_locked(struct kvfs_session *session, const char *name)
{
	struct kvfs_pool *pool;

	kv_assert_locked(&session->lock);
	LIST_FOREACH(pool, &session->pools, others)
		if (pool->paged)
			pool->paged_ops->forget_locked(pool->paged, name);
}

static const struct kv_session_user transfers = {
	.broken_locked = broken_locked,
	.connected_locked = kv_staging_begin_locked,
	.closing = closing,
	.closed = closed,
	.forked = forked,
	.clearing_locked = kv_saves_stop_locked,
	.cleared_locked = cleared_locked,
};

void kv_lib_transfers_use_locked(struct kvfs_session *session)
{
	kv_assert_locked(&session->lock);
	if (session->user)
		return;
	session->user = &transfers;
	session->staging_bytes = KV_STAGE_BYTES;
}

/* ---- opening and closing pools ---- */

int kv_lib_pool_register(kvfs_session *session, const kvfs_pool_desc *desc,
			 uint64_t there, kvfs_pool **ret_pool)
{
	_cleanup_(pool_freep) struct kvfs_pool *pool = calloc(1, sizeof(*pool));
	kvfs_pool_desc now = *desc;
	int r;

	if (!pool)
		return -ENOMEM;
	pool->session = session;
	pool->lending.fd = -1;
	pool->pages = desc->pages;
	pool->space = desc->space;
	pool->device = kv_device_find(desc->device);
	if (!pool->device)
		return -ENODEV;
	pool->layout = kv_lib_space_layout(desc->space);
	if (!pool->layout)
		return -EMEDIUMTYPE;
	r = kv_strides_new(desc, pool->layout, &pool->strides);
	if (r < 0)
		return r;
	pool->seen = calloc(pool->pages / 8 + 1, 1);
	pool->loads = calloc(pool->pages, sizeof(*pool->loads));
	pool->saves = calloc(pool->pages, sizeof(*pool->saves));
	if (!pool->seen || !pool->loads || !pool->saves)
		return -ENOMEM;
	now.pages = there;
	if (pool->device->open)
		r = kv_device_result(
			pool->device->open(&now, &pool->on_device));
	pool->opened = r == 0;
	if (r == 0)
		r = lend_described(pool, desc);
	if (r < 0)
		return r;
	pthread_mutex_lock(&session->lock);
	kv_lib_transfers_use_locked(session);
	if (!session->copier)
		r = kv_copier_new(&session->copier);
	if (r == 0 && pool->device->event_wait)
		r = kv_stream_sync_start_locked(session);
	if (r == 0)
		r = kv_attach_device_locked(session, pool->device);
	if (r == 0) {
		if (session->stage)
			kv_stage_attach_locked(session->stage, session);
		kv_lib_space_get_locked(pool->space);
		/* Pools that lend their pages need no staging. */
		if (pool->lending.fd < 0)
			session->stage_payload =
				KV_MAX(session->stage_payload,
				       pool->layout->payload +
					       kv_save_ids_most(pool->layout));
		kv_staging_begin_locked(session);
		kv_lending_offer_locked(pool);
		LIST_INSERT_HEAD(&session->pools, pool, others);
	}
	pthread_mutex_unlock(&session->lock);
	if (r < 0)
		return r;
	*ret_pool = kv_steal(pool);
	return 0;
}

int kvfs_pool_register(kvfs_session *session, const kvfs_pool_desc *desc,
		       kvfs_pool **ret_pool)
{
	kvfs_pool_desc known;
	int r;

	if (!desc || !ret_pool)
		return -EINVAL;
	r = kv_abi_in(&known, sizeof(known), desc);
	if (r == 0)
		r = kv_session_check(session);
	if (r < 0)
		return r;
	if (!known.device || !known.space || known.space->session != session ||
	    !known.views || known.n_views == 0 || known.pages == 0 ||
	    known.pages > INT64_MAX / 2 || known.pages_per_block == 0 ||
	    known.reserved != 0)
		return -EINVAL;
	return kv_lib_pool_register(session, &known, known.pages, ret_pool);
}

void kvfs_pool_close(kvfs_pool *pool)
{
	const struct kv_paged_pool_ops *paged_ops;
	const struct kvfs_device *device;
	struct kv_paged_pool *paged;
	struct kvfs_session *session;
	struct kv_packet withdraw = {.header = {.type = WIRE_POOL_CLOSE},
				     .fd = -1};

	if (!pool || kv_session_check(pool->session) < 0)
		return;
	session = pool->session;
	device = pool->device;
	paged = pool->paged;
	paged_ops = pool->paged_ops;
	pthread_mutex_lock(&session->lock);
	if (paged)
		paged_ops->close_locked(paged);
	kv_xfers_drain(session, pool);
	withdraw.header.arg = pool->lending.item.id;
	if (kv_session_is_live(session, pool->lending.asked))
		kv_rpc_post_locked(session, &withdraw);
	if (pool->lending.offer)
		pool->lending.offer->pool = NULL;
	LIST_REMOVE(pool, others);
	kv_lib_space_put_locked(pool->space);
	pthread_mutex_unlock(&session->lock);
	pool_freep(&pool);
	if (paged)
		paged_ops->free(paged, device);
}

int kvfs_pool_info(kvfs_pool *pool, struct kvfs_pool_info *ret_info)
{
	struct kvfs_pool_info info = KVFS_POOL_INFO_INIT;
	struct kvfs_session *session;
	int r = kv_session_check(pool ? pool->session : NULL);

	if (r < 0)
		return r;
	if (!ret_info)
		return -EINVAL;
	session = pool->session;
	kv_device_info(pool->device, pool->on_device, &info);
	pthread_mutex_lock(&session->lock);
	info.threads = kv_copier_threads(session->copier);
	info.pages_loading = pool->pages_loading;
	info.pages_saving = pool->pages_saving;
	info.lent_reason = why_not_lent_locked(pool);
	info.lent = !info.lent_reason;
	if (info.lent)
		info.lent_reason = "";
	if (session->stage) {
		info.bytes_staging = session->stage->bytes;
		info.staging_huge = session->stage->huge;
	}
	if (pool->paged)
		pool->paged_ops->info_locked(pool->paged, &info);
	pthread_mutex_unlock(&session->lock);
	return kv_abi_out(ret_info, &info, sizeof(info));
}
