/* SPDX-License-Identifier: Apache-2.0 */
/*
 * persist.c - the durable parts of a space: its record in the index, and its
 * file in STORE/spaces, a copy outside of the index.
 *
 * Changes are written in groups: one of the threads with a change writes all
 * changes that have been queued by then, and the other threads wait.  So a
 * commit of blocks waits for at most one transaction of spaces, and for no
 * file's sync; no group begins while a commit of blocks is under way.
 *
 * OWNS       the files, and their part of the cap; the changes, until their
 *            status is set.
 *
 * INVARIANTS
 *   (1) A space has its file before its record is committed, and so before any
 *       of its blocks can be durable; the file is deleted before the record.
 *   (2) Bytes of files beyond the part that is reserved with the index count
 *       against the segment files' budget.
 *   (3) One thread at a time writes, and writes the spaces as they are when it
 *       begins: the last change wins.
 *
 * LOCKING    cache->lock for the list of changes, their contents and the
 * counts; not
 *            held while they are written.
 */
#include "cache/space/space.h"
#include "cache/ssd/ssd.h"
#include "index/sidecar.h"
#include "common/crash_point.h"

#define CHANGED_NS 1000000000u
#define AT_ONCE 32u /* lost files written in one step; each is open meanwhile */

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

/* Return whether @name is the file of a known space, and not a half-written
 * one. */
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
	return (struct kv_space_record){
		.id = space->id,
		.uid = space->uid,
		.gid = space->gid,
		.mode = space->mode | (space->shared ? KV_SPACE_SHARED : 0) |
			(space->own_seed ? KV_SPACE_OWN_SEED : 0),
		.mtime_ns = space->mtime_ns,
		.quota = space->quota,
	};
}

/* ---- changes ---- */

/* On the stack of the thread that made the change and waits for it. */
struct kv_space_change {
	struct kv_space *space; /* fixed */
	/* First change of the same space in the group: only that one is
	 * written. */
	struct kv_space_change *first;
	struct kv_space_record record;
	const char *layout;
	bool removed;
	int fd;		 /* the space's file, while it is written; or -1 */
	uint64_t before; /* bytes of the cap that the file took before */
	int result;	 /* the writer's */
	int status;	 /* NOT_YET; then 0 or -errno */
	TAILQ_ENTRY(kv_space_change) link;
};

enum { NOT_YET = 1 };

static bool counts(const struct kv_space_change *change)
{
	return change->first == change && change->result == 0;
}

/* Write or unlink the files of all changes.  Syncing several files together
 * writes their filesystem's journal about twice in all: for the files, and for
 * the directory. */
static void write_files(struct kv_cache *cache,
			struct kv_space_changes *changes)
{
	struct kv_space_change *change;
	int r;

	TAILQ_FOREACH(change, changes, link) {
		struct kv_space *space = change->space;

		change->fd = -1;
		change->before = space->file_bytes;
		if (!counts(change))
			continue;
		if (change->removed) {
			change->result = kv_space_file_unlink(cache->spaces_dir,
							      space->id);
			continue;
		}
		r = kv_sidecar_charge(
			cache, &space->file_bytes,
			kv_space_file_bytes(strlen(space->name),
					    strlen(change->layout)));
		if (r == 0)
			r = kv_space_file_begin(cache->spaces_dir,
						&change->record, space->name,
						change->layout, &change->fd);
		change->result = r;
	}
	TAILQ_FOREACH(change, changes, link)
		if (counts(change) && change->fd >= 0) {
			change->result = kv_space_file_end(cache->spaces_dir,
							   change->space->id,
							   change->fd);
			change->fd = -1;
		}
	r = kv_space_files_sync(cache->spaces_dir);
	TAILQ_FOREACH(change, changes, link) {
		uint64_t *bytes = &change->space->file_bytes;

		if (counts(change))
			change->result = r;
		if (change->first != change)
			continue;
		if (change->result < 0)
			kv_sidecar_charge(cache, bytes, change->before);
		else if (change->result == 0 && change->removed)
			kv_sidecar_charge(cache, bytes, 0);
	}
}

/* Commit the changes from @first up to @end whose files were written. */
static int commit(struct kv_cache *cache, struct kv_space_change *first,
		  const struct kv_space_change *end)
{
	struct kv_store_info info;
	struct kv_txn *batch;
	int r = kv_txn_begin(cache->index, &batch);

	if (r < 0)
		return r;
	for (; first != end; first = TAILQ_NEXT(first, link))
		if (counts(first) && first->removed)
			kv_txn_delete(batch, KV_PART_SPACES, first->space->id);
		else if (counts(first))
			kv_txn_put_space(batch, &first->record,
					 first->space->name, first->layout);
	kv_lock(cache);
	info = cache->info;
	kv_unlock(cache);
	kv_txn_put_info(batch, &info);
	KV_POINT("space.before_commit");
	r = kv_txn_commit(batch);
	KV_POINT("space.committed");
	return r;
}

/* Write all queued changes, with the spaces' present values.  Drops the lock
 * meanwhile. */
static void write_waiting(struct kv_cache *cache)
{
	struct kv_space_changes changes = TAILQ_HEAD_INITIALIZER(changes);
	const uint64_t round = cache->ssd.commits_begun;
	struct kv_space_change *change, *first;
	int r;

	cache->changing = true;
	/* Do not compete for the disk with a commit of blocks. */
	while (cache->ssd.committing && cache->ssd.commits_begun == round)
		kv_cond_wait(cache, &cache->ssd.done, CHANGED_NS);
	TAILQ_CONCAT(&changes, &cache->changes, link);
	TAILQ_FOREACH(change, &changes, link) {
		struct kv_space *space = change->space;

		if (!space->change)
			space->change = change;
		change->first = space->change;
		change->removed = space->removed;
		change->record = space_record_of(space);
		change->layout = space->layout ? space->layout->json : "";
	}
	kv_unlock(cache);
	/* The files first. */
	write_files(cache, &changes);
	first = TAILQ_FIRST(&changes);
	r = commit(cache, first, NULL);
	/* One transaction for each change, so that a change without room does
	 * not fail the others. */
	TAILQ_FOREACH(change, &changes, link)
		if (r < 0 && counts(change))
			change->result =
				TAILQ_NEXT(first, link)
					? commit(cache, change,
						 TAILQ_NEXT(change, link))
					: r;
	kv_lock(cache);
	TAILQ_FOREACH(change, &changes, link) {
		change->space->change = NULL;
		change->result = change->first->result;
	}
	/* Once its status is set, the thread of a change may free the
	 * change. */
	TAILQ_FOREACH(change, &changes, link)
		change->status = change->result;
	cache->changing = false;
	pthread_cond_broadcast(&cache->changed);
}

/* Write @n changes, zeroed except for their spaces, and wait.  Return the first
 * error. */
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
