/* SPDX-License-Identifier: Apache-2.0 */
/*
 * draft.c - the content of a file that is being written through the mount.
 *
 * OWNS      the head (bytes before the length is known), the fill, and once sealed a
 *           hold on the block.
 *
 * STATES    and the function that makes each step:
 *
 *           HEAD -> FILLING          take_length_locked  (the header is complete)
 *           FILLING -> SEALED        seal_block_locked
 *           HEAD -> SEALING          seal_layout_locked
 *           SEALING -> SEALED        seal_layout_locked
 *           all others -> FAILED     fail_locked   (until written anew)
 *           HEAD, FILLING, FAILED -> HEAD   kv_draft_reset
 *
 * INVARIANTS
 *   (1) A fill exists only in FILLING, the head of a block only in HEAD, and the head
 *       of a layout also in SEALING and SEALED, to be read.
 *   (2) coverage lists the bytes of head or fill that were written: its ranges are not
 *       empty, ascend, and do not touch.
 *   (3) A block's header is parsed again when the block is sealed, since it may have
 *       been overwritten, but not at each retry of a write that waits for a slot.
 *   (4) In SEALING, while a thread waits for the disk, nothing changes.
 *
 * LOCKING   draft->lock guards every field that is not marked fixed.  No other lock of
 *           fs/ is taken under it.  Blocks are hashed under it.
 */

#include "common/array.h"
#include "common/copy.h"
#include "fs/mount/mount.h"

#define HEAD_MAX (KV_HEADER_MAX + KV_PAGE)
#define HEAD_FIRST (64u << 10)

enum state { HEAD, FILLING, SEALING, SEALED, FAILED };

struct kv_draft {
	struct kv_cache *cache; /* fixed after new */
	struct kv_space *space; /* fixed after new; held */
	struct kv_key key; /* fixed; block's key; len 0: a layout's draft */
	struct kv_account *account; /* fixed after new */

	pthread_mutex_t lock;
	pthread_cond_t sealed; /* signalled when SEALING is over */
	enum state state;
	int error; /* errno that caused the state FAILED */
	struct kv_coverage coverage;
	uint8_t *head;
	uint64_t head_room;
	bool complete; /* in state HEAD: the text is a valid layout */
	struct kv_fill *fill;
	uint64_t length; /* length of the whole file; 0: not parsed yet */
	struct kv_block *block; /* sealed block; NULL: gone, or too much open */
	struct kv_open_charge *charge; /* charge for the open @block */
};

/* ---- coverage ---- */

void kv_coverage_fini(struct kv_coverage *coverage)
{
	free(coverage->ranges);
	*coverage = (struct kv_coverage){0};
}

/* Search from the end: writers usually append. */
int kv_coverage_add(struct kv_coverage *c, uint64_t start, uint64_t end)
{
	/* the ranges first..last-1 are joined with the new one */
	size_t first = c->n, last;
	int r;

	if (start >= end)
		return 0;
	while (first > 0 && c->ranges[first - 1].end >= start)
		first--;
	for (last = first; last < c->n && c->ranges[last].start <= end; last++)
		;
	if (first == last) {
		if (c->n >= KV_COVERAGE_MAX)
			return -EFBIG;
		r = kv_array_reserve(&c->ranges, &c->room, c->n + 1);
		if (r < 0)
			return r;
		memmove(c->ranges + first + 1, c->ranges + first,
			(c->n - first) * sizeof(*c->ranges));
		c->ranges[first] = (struct kv_span){start, end};
		c->n++;
		return 0;
	}
	start = KV_MIN(start, c->ranges[first].start);
	end = KV_MAX(end, c->ranges[last - 1].end);
	c->ranges[first] = (struct kv_span){start, end};
	memmove(c->ranges + first + 1, c->ranges + last,
		(c->n - last) * sizeof(*c->ranges));
	c->n -= last - first - 1;
	return 0;
}

uint64_t kv_coverage_prefix(const struct kv_coverage *c)
{
	return c->n > 0 && c->ranges[0].start == 0 ? c->ranges[0].end : 0;
}

uint64_t kv_coverage_end(const struct kv_coverage *c)
{
	return c->n > 0 ? c->ranges[c->n - 1].end : 0;
}

/* ---- drafts ---- */

int kv_draft_new(struct kv_cache *cache, struct kv_space *space,
		 const struct kv_key *key, struct kv_account *account,
		 struct kv_draft **ret_draft)
{
	struct kv_draft *draft = calloc(1, sizeof(*draft));

	if (!draft)
		return -ENOMEM;
	draft->cache = cache;
	draft->space = kv_space_get(space);
	if (key)
		draft->key = *key;
	draft->account = account;
	pthread_mutex_init(&draft->lock, NULL);
	pthread_cond_init(&draft->sealed, NULL);
	*ret_draft = draft;
	return 0;
}

static void drop_head_locked(struct kv_draft *draft)
{
	kv_assert_locked(&draft->lock);
	free(draft->head);
	kv_account_credit(draft->account, KV_FINITE_MEMORY, draft->head_room);
	draft->head = NULL;
	draft->head_room = 0;
	draft->complete = false;
}

static void clear_locked(struct kv_draft *draft)
{
	kv_assert_locked(&draft->lock);
	drop_head_locked(draft);
	if (draft->fill)
		kv_fill_drop(draft->cache, kv_steal(draft->fill));
	kv_coverage_fini(&draft->coverage);
	draft->length = 0;
}

void kv_draft_free(struct kv_draft *draft)
{
	if (!draft)
		return;
	pthread_mutex_lock(&draft->lock);
	clear_locked(draft);
	pthread_mutex_unlock(&draft->lock);
	kv_open_credit(draft->cache, draft->charge);
	if (draft->block)
		kv_block_put(draft->cache, draft->block);
	kv_space_put(draft->space);
	pthread_cond_destroy(&draft->sealed);
	pthread_mutex_destroy(&draft->lock);
	free(draft);
}

static bool is_sealed(const struct kv_draft *draft)
{
	return draft->state == SEALED || draft->state == SEALING;
}

static int fail_locked(struct kv_draft *draft, int error)
{
	kv_assert_locked(&draft->lock);
	clear_locked(draft);
	draft->state = FAILED;
	draft->error = error;
	return error;
}

/* If the header is complete, parse the file's length, and move the bytes so far
 * into a slot. */
static int take_length_locked(struct kv_draft *draft)
{
	struct kv_space_info info;
	struct kv_meta meta;
	uint64_t payload;
	int r = 0;

	kv_assert_locked(&draft->lock);
	info = kv_space_stat(draft->cache, draft->space);
	if (draft->length == 0)
		r = kv_block_parse(
			draft->head, kv_coverage_prefix(&draft->coverage),
			info.layout, &draft->length, &payload, &meta);
	if (r == -EAGAIN)
		return 0;
	if (r < 0)
		return fail_locked(draft, r);
	if (kv_coverage_end(&draft->coverage) > draft->length)
		return fail_locked(draft, -EFBIG);
	r = kv_fill_begin(draft->cache, draft->space, NULL, draft->length,
			  &draft->fill);
	if (r == -EFBIG)
		return fail_locked(draft, r);
	if (r < 0)
		return r;
	for (size_t i = 0; i < draft->coverage.n; i++) {
		struct kv_span range = draft->coverage.ranges[i];

		memcpy(kv_fill_data(draft->fill) + range.start,
		       draft->head + range.start, range.end - range.start);
	}
	drop_head_locked(draft);
	draft->state = FILLING;
	return 0;
}

/*
 * Check the text of a layout.  The write that completes or spoils an invalid
 * text is refused, because shells ignore the result of close(2).  Only a write
 * with a '}' can complete the text, and before that only the first byte can
 * spoil it.
 */
static int check_layout_locked(struct kv_draft *draft, const char *data,
			       size_t n)
{
	const uint64_t len = kv_coverage_prefix(&draft->coverage);
	const char *text = (const char *)draft->head;
	int r;

	kv_assert_locked(&draft->lock);
	if (len == 0 || len != kv_coverage_end(&draft->coverage) ||
	    (!draft->complete && text[0] == '{' && !memchr(data, '}', n)))
		return 0;
	r = kv_space_check_layout(draft->cache, draft->space,
				  kv_account_uid(draft->account), text, len);
	draft->complete = r == 1;
	return r < 0 && r != -ENOMEM ? fail_locked(draft, r) : KV_MIN(r, 0);
}

/* Write @n bytes that end at @end to the head, whose room is doubled as needed and
 * charged to the user. */
static int write_head_locked(struct kv_draft *draft, const void *data, size_t n,
			     uint64_t end)
{
	const bool is_block = draft->key.len > 0;
	uint64_t room = KV_MAX(draft->head_room, (uint64_t)HEAD_FIRST), more;
	uint8_t *head;
	int r;

	kv_assert_locked(&draft->lock);
	if (end > (is_block ? HEAD_MAX : KV_LAYOUT_TEXT_MAX)) {
		if (!is_block) /* record why the layout is refused */
			(void)kv_space_check_layout(draft->cache, draft->space,
						    0, NULL, end);
		return fail_locked(draft, -EFBIG);
	}
	if (end > draft->head_room) {
		while (room < end)
			room *= 2;
		more = room - draft->head_room;
		if (kv_account_charge(draft->account, KV_FINITE_MEMORY, more) <
		    0)
			return -ENOSPC;
		head = realloc(draft->head, room);
		if (!head) {
			kv_account_credit(draft->account, KV_FINITE_MEMORY,
					  more);
			return -ENOMEM;
		}
		memset(head + draft->head_room, 0, more);
		draft->head = head;
		draft->head_room = room;
	}
	r = kv_coverage_add(&draft->coverage, end - n, end);
	if (r < 0)
		return r;
	if (memcmp(draft->head + end - n, data, n) != 0)
		draft->length = 0;
	memcpy(draft->head + end - n, data, n);
	return is_block ? take_length_locked(draft)
			: check_layout_locked(draft, data, n);
}

/* Write in pieces while the header is incomplete: the rest of a long write then goes to
 * the slot, and the head does not grow by a whole write. */
static int write_locked(struct kv_draft *draft, const uint8_t *data, size_t n,
			uint64_t offset)
{
	int r = 0;

	kv_assert_locked(&draft->lock);
	while (n > 0 && r == 0) {
		size_t piece = draft->state == HEAD ? KV_MIN(n, HEAD_FIRST) : n;

		if (is_sealed(draft))
			return -EPERM;
		if (draft->state == FAILED)
			return draft->error;
		if (draft->state == HEAD) {
			r = write_head_locked(draft, data, piece,
					      offset + piece);
		} else {
			if (offset + piece > draft->length)
				return fail_locked(draft, -EFBIG);
			r = kv_coverage_add(&draft->coverage, offset,
					    offset + piece);
			if (r == 0)
				memcpy(kv_fill_data(draft->fill) + offset, data,
				       piece);
		}
		data += piece;
		offset += piece;
		n -= piece;
	}
	return r;
}

int kv_draft_write(struct kv_draft *draft, const void *data, size_t n,
		   uint64_t offset)
{
	int r;

	if (offset > INT64_MAX - n)
		return -EFBIG;
	pthread_mutex_lock(&draft->lock);
	r = write_locked(draft, data, n, offset);
	pthread_mutex_unlock(&draft->lock);
	return r;
}

ssize_t kv_draft_read(struct kv_draft *draft, void *data, size_t n,
		      uint64_t offset)
{
	struct kv_block *block = kv_draft_block(draft);
	struct kv_view view;
	const uint8_t *from;
	uint64_t end;
	int r;

	if (block) {
		r = kv_view_get(draft->cache, block, KV_VIEW_WAIT, &view);
		if (r == 0) {
			n = offset < view.length
				    ? KV_MIN(n, view.length - offset)
				    : 0;
			memcpy(data, view.data + offset, n);
			kv_view_put(draft->cache, &view);
		}
		kv_block_put(draft->cache, block);
		return r < 0 ? r : (ssize_t)n;
	}
	pthread_mutex_lock(&draft->lock);
	end = kv_coverage_end(&draft->coverage);
	n = offset < end ? KV_MIN(n, end - offset) : 0;
	memset(data, 0, n);
	from = draft->fill ? kv_fill_data(draft->fill) : draft->head;
	for (size_t i = 0; i < draft->coverage.n && n > 0; i++) {
		uint64_t start = draft->coverage.ranges[i].start;
		uint64_t stop = draft->coverage.ranges[i].end;

		start = KV_MAX(start, offset);
		stop = KV_MIN(stop, offset + n);
		if (start < stop)
			memcpy((uint8_t *)data + (start - offset), from + start,
			       stop - start);
	}
	pthread_mutex_unlock(&draft->lock);
	return (ssize_t)n;
}

uint64_t kv_draft_size(struct kv_draft *draft)
{
	uint64_t size;

	pthread_mutex_lock(&draft->lock);
	size = draft->state == SEALED && draft->key.len > 0
		       ? draft->length
		       : kv_coverage_end(&draft->coverage);
	pthread_mutex_unlock(&draft->lock);
	return size;
}

int kv_draft_reset(struct kv_draft *draft)
{
	int r = -EPERM;

	pthread_mutex_lock(&draft->lock);
	if (!is_sealed(draft)) {
		clear_locked(draft);
		draft->state = HEAD;
		r = 0;
	}
	pthread_mutex_unlock(&draft->lock);
	return r;
}

static int check_locked(struct kv_draft *draft)
{
	uint64_t prefix = kv_coverage_prefix(&draft->coverage);
	bool hole = prefix != kv_coverage_end(&draft->coverage);
	int r;

	kv_assert_locked(&draft->lock);
	if (is_sealed(draft))
		return 1;
	if (draft->state == FAILED)
		return draft->error;
	if (draft->coverage.n == 0)
		return 0;
	if (draft->key.len == 0)
		return hole ? -EINVAL : 1;
	if (draft->state == HEAD) {
		/* Without a free slot, fail at once: the write has reported it
		 * already. */
		r = take_length_locked(draft);
		if (r < 0)
			return r == -EAGAIN || r == -EBUSY ? -ENOSPC : r;
	}
	return draft->state == FILLING && prefix == draft->length ? 1 : -EINVAL;
}

int kv_draft_check(struct kv_draft *draft)
{
	int r;

	pthread_mutex_lock(&draft->lock);
	r = check_locked(draft);
	pthread_mutex_unlock(&draft->lock);
	return r;
}

/* Seal a layout.  Releases the lock while it waits for the disk. */
static int seal_layout_locked(struct kv_draft *draft, bool *ret_new)
{
	const uint64_t n = kv_coverage_prefix(&draft->coverage);
	int r;

	kv_assert_locked(&draft->lock);
	draft->state = SEALING;
	pthread_mutex_unlock(&draft->lock);
	r = kv_space_set_layout(draft->cache, draft->space,
				kv_account_uid(draft->account),
				(const char *)draft->head, n);
	pthread_mutex_lock(&draft->lock);
	pthread_cond_broadcast(&draft->sealed);
	if (r < 0)
		return fail_locked(draft, r);
	draft->state = SEALED;
	*ret_new = true;
	return 1;
}

static int seal_block_locked(struct kv_draft *draft, int64_t mtime_ns,
			     bool *ret_new)
{
	const uint8_t *data = kv_fill_data(draft->fill);
	struct kv_space_info info = kv_space_stat(draft->cache, draft->space);
	struct kv_digest digest;
	struct kv_block *block;
	struct kv_meta meta;
	uint64_t length, payload;
	int r;

	kv_assert_locked(&draft->lock);
	r = kv_block_parse(data, draft->length, info.layout, &length, &payload,
			   &meta);
	if (r == 0 && length != draft->length)
		r = -EINVAL;
	if (r < 0)
		return fail_locked(draft, r == -EAGAIN ? -EINVAL : r);
	meta.mtime_ns = mtime_ns != 0 ? mtime_ns : kv_wall_ns();
	digest = kv_digest_of(data, draft->length);
	r = kv_fill_seal(draft->cache, kv_steal(draft->fill), &draft->key,
			 &meta, payload, &digest);
	if (r < 0)
		return fail_locked(draft, r);
	kv_coverage_fini(&draft->coverage);
	draft->state = SEALED;
	*ret_new = r == 0;
	/* Hold the block while the file is open, unless its user has too much
	 * open. */
	if (kv_block_get(draft->cache, draft->space, &draft->key, &block) < 0)
		return 1;
	if (kv_open_charge(draft->cache, block, draft->account,
			   &draft->charge) < 0)
		kv_block_put(draft->cache, block);
	else
		draft->block = block;
	return 1;
}

int kv_draft_seal(struct kv_draft *draft, int64_t mtime_ns, bool *ret_new)
{
	int r;

	*ret_new = false;
	pthread_mutex_lock(&draft->lock);
	while (draft->state == SEALING)
		pthread_cond_wait(&draft->sealed, &draft->lock);
	r = check_locked(draft);
	if (r == 1 && draft->state != SEALED)
		r = draft->key.len > 0
			    ? seal_block_locked(draft, mtime_ns, ret_new)
			    : seal_layout_locked(draft, ret_new);
	pthread_mutex_unlock(&draft->lock);
	return r;
}

struct kv_block *kv_draft_block(struct kv_draft *draft)
{
	struct kv_block *block;

	pthread_mutex_lock(&draft->lock);
	block = draft->block;
	if (block)
		kv_block_hold(draft->cache, block);
	else if (draft->state == SEALED && draft->key.len > 0 &&
		 kv_block_get(draft->cache, draft->space, &draft->key, &block) <
			 0)
		block = NULL;
	pthread_mutex_unlock(&draft->lock);
	return block;
}
