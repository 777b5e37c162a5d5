/* SPDX-License-Identifier: Apache-2.0 */
/*
 * persist.c - what is durable of a space: its record in the index, and its file
 * in STORE/spaces, where it stands once more outside of the index.
 *
 * Changes are written in groups: one of the threads that made them writes what
 * has come by then, and the others wait.  However many there are, a commit of
 * blocks waits for one transaction of spaces, and for no file's sync; none are
 * begun while it is under way.
 *
 * OWNS       the files, and how much of the cap they have; the changes, until
 *            their status is set.
 *
 * INVARIANTS
 *   (1) A space has its file before its record is committed, and so before any
 *       block of it can be durable; the file goes before the record does.
 *   (2) Files beyond their share of what is kept back for the index count
 *       against the segment files' budget.
 *   (3) One thread at a time writes, how the spaces are when it begins: the
 *       last change to be made wins.
 *
 * LOCKING    cache->lock for the list of changes, what is written and the
 *            counts; none while it is written.
 */
#include "cache/space/space.h"
#include "cache/ssd/ssd.h"
#include "index/sidecar.h"
#include "common/crash_point.h"

#define CHANGED_NS 1000000000u
#define AT_ONCE 32u /* files that are lost, each open while it is written */

int kv_sidecar_charge(struct kv_cache *cache, uint64_t *has, uint64_t bytes)
{
	struct kv_ssd *ssd = &cache->ssd;
	const uint64_t before = *has;
	int r = 0;

	kv_lock(cache);
	ssd->sidecars = ssd->sidecars - before + bytes;
	if (ssd->on && bytes > before && kv_sidecars_over(cache) &&
	    ssd->live_files * ssd->segment_bytes + kv_sidecars_over(cache) >
		    ssd->file_budget) {
		ssd->sidecars = ssd->sidecars - bytes + before;
		r = -ENOSPC;
	} else {
		*has = bytes;
	}
	kv_unlock(cache);
	return r;
}

void kv_space_file_adopt(struct kv_cache *cache, struct kv_space *space)
{
	space->file_bytes = kv_space_file_bytes(
		strlen(space->name),
		space->layout ? strlen(space->layout->json) : 0);
	cache->ssd.sidecars += space->file_bytes;
}

/* Half-written ones belong to no space either. */
static bool is_of_a_space(struct kv_cache *cache, const char *name)
{
	_cleanup_(kv_space_putp) struct kv_space *space = NULL;
	uint32_t id;

	if (kv_space_file_parse(name, &id))
		space = kv_space_by_id(cache, id);
	return space != NULL;
}

static struct kv_space_record space_record_of(const struct kv_space *space)
{
	const struct kv_quota *quota = &space->quota;

	return (struct kv_space_record){
		.id = space->id,
		.uid = space->uid,
		.gid = space->gid,
		.mode = space->mode | (space->shared ? KV_SPACE_SHARED : 0) |
			(space->own_seed ? KV_SPACE_OWN_SEED : 0),
		.mtime_ns = space->mtime_ns,
		.quota_dram = quota->quota_dram,
		.quota_ssd = quota->quota_ssd,
		.reserve_dram = quota->reserve_dram,
		.reserve_ssd = quota->reserve_ssd,
		.rate_put = quota->rate_put,
	};
}

static bool file_agrees(struct kv_cache *cache, const struct kv_space *space)
{
	const char *json = space->layout ? space->layout->json : "";
	_cleanup_(kv_freep) char *name = NULL;
	_cleanup_(kv_freep) char *layout = NULL;
	struct kv_space_record file, own = space_record_of(space);

	return kv_space_file_read(cache->spaces_dir, space->id, &file, &name,
				  &layout) == 0 &&
	       strcmp(name, space->name) == 0 && strcmp(layout, json) == 0 &&
	       memcmp(&file, &own,
		      offsetof(struct kv_space_record, name_len)) == 0;
}

/* ---- changes ---- */

/* On the stack of whoever made it, and waits. */
struct kv_space_change {
	struct kv_space *space; /* fixed */
	/* Of several of one space in a group the first is written. */
	struct kv_space_change *first;
	struct kv_space_record record;
	const char *layout;
	bool removed;
	int fd;		 /* of its file, while that is written; or -1 */
	uint64_t before; /* what the space's file had of the cap */
	int result;	 /* the writer's */
	int status;	 /* NOT_YET, 0 or why it could not be written */
	TAILQ_ENTRY(kv_space_change) link;
};

enum { NOT_YET = 1 };

static void look_locked(struct kv_cache *cache, struct kv_space_change *change)
{
	struct kv_space *space = change->space;

	kv_assert_locked(&cache->lock);
	if (!space->change)
		space->change = change;
	change->first = space->change;
	change->removed = space->removed;
	change->record = space_record_of(space);
	change->layout = space->layout ? space->layout->json : "";
}

static bool counts(const struct kv_space_change *change)
{
	return change->first == change && change->result == 0;
}

/* Its file, not synced yet; or that is gone. */
static int file_begin(struct kv_cache *cache, struct kv_space_change *change)
{
	struct kv_space *space = change->space;
	int r;

	if (change->removed)
		return kv_space_file_unlink(cache->spaces_dir, space->id);
	r = kv_sidecar_charge(cache, &space->file_bytes,
			      kv_space_file_bytes(strlen(space->name),
						  strlen(change->layout)));
	return r < 0 ? r
		     : kv_space_file_begin(cache->spaces_dir, &change->record,
					   space->name, change->layout,
					   &change->fd);
}

static int file_end(struct kv_cache *cache, struct kv_space_change *change)
{
	int fd = change->fd;

	change->fd = -1;
	return fd < 0 ? 0
		      : kv_space_file_end(cache->spaces_dir, change->space->id,
					  fd);
}

/* What is not written has what it had before, what is gone nothing. */
static void file_charge(struct kv_cache *cache, struct kv_space_change *change)
{
	if (change->result < 0)
		kv_sidecar_charge(cache, &change->space->file_bytes,
				  change->before);
	else if (change->result == 0 && change->removed)
		kv_sidecar_charge(cache, &change->space->file_bytes, 0);
}

/* However many: the journal of the filesystem that has them is written for the
 * first, mostly, and once more for their directory. */
static void write_files(struct kv_cache *cache,
			struct kv_space_changes *changes)
{
	struct kv_space_change *change;
	int r;

	TAILQ_FOREACH(change, changes, link) {
		change->fd = -1;
		change->before = change->space->file_bytes;
		if (counts(change))
			change->result = file_begin(cache, change);
	}
	TAILQ_FOREACH(change, changes, link)
		if (counts(change))
			change->result = file_end(cache, change);
	r = kv_space_files_sync(cache->spaces_dir);
	TAILQ_FOREACH(change, changes, link) {
		if (counts(change))
			change->result = r;
		if (change->first == change)
			file_charge(cache, change);
	}
}

static int change_put(struct kv_txn *batch,
		      const struct kv_space_change *change)
{
	return change->removed
		       ? kv_txn_delete_space(batch, change->space->id)
		       : kv_txn_put_space(batch, &change->record,
					  change->space->name, change->layout);
}

/* Commit the changes from @first up to @end whose files are written. */
static int commit(struct kv_cache *cache, struct kv_space_change *first,
		  const struct kv_space_change *end)
{
	struct kv_store_info info;
	struct kv_txn *batch;
	int r = kv_txn_begin(cache->index, &batch);

	if (r < 0)
		return r;
	for (; r == 0 && first != end; first = TAILQ_NEXT(first, link))
		if (counts(first))
			r = change_put(batch, first);
	kv_lock(cache);
	info = cache->info;
	kv_unlock(cache);
	if (r == 0)
		r = kv_txn_put_info(batch, &info);
	if (r < 0) {
		kv_txn_abort(batch);
		return r;
	}
	KV_POINT("space.before_commit");
	r = kv_txn_commit(batch);
	KV_POINT("space.committed");
	return r;
}

/* The files first.  A change without room is no failure of the others:
 * then each has a transaction of its own. */
static void write_all(struct kv_cache *cache, struct kv_space_changes *changes)
{
	struct kv_space_change *first = TAILQ_FIRST(changes), *change;
	int r;

	write_files(cache, changes);
	r = commit(cache, first, NULL);
	TAILQ_FOREACH(change, changes, link)
		if (r < 0 && counts(change))
			change->result =
				TAILQ_NEXT(first, link)
					? commit(cache, change,
						 TAILQ_NEXT(change, link))
					: r;
}

/* A round of blocks that is under way comes first, and has the disk for itself.
 * Lets go of the lock. */
static void wait_for_round(struct kv_cache *cache)
{
	const uint64_t round = cache->ssd.commits_begun;

	kv_assert_locked(&cache->lock);
	while (cache->ssd.committing && cache->ssd.commits_begun == round)
		kv_cond_wait(cache, &cache->ssd.done, CHANGED_NS);
}

/* All that wait, as they are then; lets go of the lock. */
static void write_waiting(struct kv_cache *cache)
{
	struct kv_space_changes changes = TAILQ_HEAD_INITIALIZER(changes);
	struct kv_space_change *change;

	cache->changing = true;
	wait_for_round(cache);
	TAILQ_CONCAT(&changes, &cache->changes, link);
	TAILQ_FOREACH(change, &changes, link)
		look_locked(cache, change);
	kv_unlock(cache);
	write_all(cache, &changes);
	kv_lock(cache);
	TAILQ_FOREACH(change, &changes, link) {
		change->space->change = NULL;
		change->result = change->first->result;
	}
	/* From here on their owners may end, and with them what is theirs. */
	TAILQ_FOREACH(change, &changes, link)
		change->status = change->result;
	cache->changing = false;
	pthread_cond_broadcast(&cache->changed);
}

/* Write @n changes, which the caller has zeroed but for their spaces, and wait.
 * The first error of one, if there is any. */
static int persist(struct kv_cache *cache, struct kv_space_change *changes,
		   size_t n)
{
	int r = 0;

	kv_lock(cache);
	for (size_t i = 0; i < n; i++) {
		changes[i].status = NOT_YET;
		TAILQ_INSERT_TAIL(&cache->changes, &changes[i], link);
	}
	for (size_t i = 0; i < n; i++) {
		while (changes[i].status == NOT_YET)
			if (cache->changing)
				kv_cond_wait(cache, &cache->changed,
					     CHANGED_NS);
			else
				write_waiting(cache);
		if (r == 0)
			r = changes[i].status;
	}
	kv_unlock(cache);
	return r;
}

int kv_space_persist(struct kv_cache *cache, struct kv_space *space)
{
	struct kv_space_change change = {.space = space};

	return cache->index ? persist(cache, &change, 1) : 0;
}

int kv_space_files_check(struct kv_cache *cache)
{
	int r = 0;

	kv_strays_remove(cache, cache->spaces_dir, is_of_a_space);
	for (uint32_t i = 0; r == 0 && i < cache->spaces.n; i++) {
		struct kv_space *space = cache->spaces.sorted[i];

		if (space->removed || !file_agrees(cache, space))
			r = kv_space_persist(cache, space);
	}
	return r;
}

int kv_space_files_lost(struct kv_cache *cache)
{
	struct kv_space_change changes[AT_ONCE];
	char name[KV_SPACE_FILE_NAME];
	size_t n = 0;
	int r = 0;

	for (uint32_t i = 0; r == 0 && i < cache->spaces.n; i++) {
		struct kv_space *space = cache->spaces.sorted[i];

		kv_space_file_name(space->id, name);
		if (!space->removed &&
		    faccessat(cache->spaces_dir, name, F_OK, 0) < 0 &&
		    errno == ENOENT)
			changes[n++] = (struct kv_space_change){.space = space};
		if (n == AT_ONCE) {
			r = persist(cache, changes, n);
			n = 0;
		}
	}
	return r == 0 && n > 0 ? persist(cache, changes, n) : r;
}
