/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segfile.c - the segment files below STORE/segments.
 *
 * Nothing that was removed may return, not even when the index is made anew
 * from the segment files.  After an end that was not clean a free slot may hold
 * the prologue of a write that was never committed, or of a block whose removal
 * was.  Such prologues are made zeros before any slot is taken and before
 * anything is committed.  Files whose trailer is missing or tells another size
 * of slots, as a crash leaves them, get theirs then: not before, as
 * their free slots could hold anything.
 *
 * OWNS       every kv_segfile and its descriptor; cache->ssd.unswept.
 *
 * INVARIANTS
 *   (1) A file is allocated in full, and its trailer tells the size of its
 *       slots, before it is used; all files together keep within file_budget.
 *   (2) A file without a record in the index holds nothing: it is removed at
 *       mount.
 *   (3) A file is of a class, or on cache->ssd.unusable.
 *
 * LOCKING    cache->lock for the table, and in a sweep for one file's
 *            description at a time; none during I/O.  Files are made by the
 *            writer thread alone; while they are swept it waits, so that free
 *            slots stay free.
 */
#include "cache/ssd/ssd.h"
#include "cache/core/core.h"
#include "cache/core/list.h"
#include "cache/core/table.h"
#include "index/segfile.h"
#include "common/crash_point.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

#define DELAY_DOUBLED 3u /* times at most */

static int table_room(struct kv_ssd *ssd, uint32_t id)
{
	uint32_t n = KV_MAX(ssd->n_files * 2, id + 64);
	struct kv_segfile **files;

	if (id < ssd->n_files)
		return 0;
	files = realloc(ssd->files, n * sizeof(struct kv_segfile *));
	if (!files)
		return -ENOMEM;
	memset(files + ssd->n_files, 0,
	       (n - ssd->n_files) * sizeof(struct kv_segfile *));
	ssd->files = files;
	ssd->n_files = n;
	return 0;
}

static int file_open(struct kv_ssd *ssd, uint32_t id, int flags)
{
	char name[KV_SEGFILE_NAME];
	int fd;

	kv_segfile_name(id, name);
	fd = openat(ssd->dir, name,
		    flags | O_CLOEXEC | O_NOFOLLOW |
			    (ssd->buffered ? 0 : O_DIRECT),
		    0600);
	return fd < 0 ? -errno : fd;
}

static int add(struct kv_cache *cache, uint32_t id, int fd, uint64_t slot_bytes,
	       bool recorded, bool trailer)
{
	struct kv_segfile *file = calloc(1, sizeof(*file));
	int r;

	if (!file)
		return -ENOMEM;
	file->id = id;
	file->fd = fd;
	file->slot_bytes = slot_bytes;
	file->recorded = recorded;
	file->trailer = trailer;
	r = table_room(&cache->ssd, id);
	if (r == 0)
		r = kv_extents_add_file(cache, file);
	if (r < 0) {
		free(file);
		return r;
	}
	cache->ssd.files[id] = file;
	cache->ssd.live_files++;
	return 0;
}

/* After a crash the trailer may be that of the file before. */
static bool trailer_agrees(struct kv_cache *cache, int fd,
			   const struct kv_segfile_record *record)
{
	const struct kv_store_info *info = &cache->info;
	struct kv_trailer trailer;

	if (info->clean && !cache->ssd.unswept)
		return true;
	return kv_trailer_read(fd, record->id, &trailer) == 0 &&
	       trailer.slot_bytes == record->slot_bytes &&
	       memcmp(trailer.store, info->store, sizeof(info->store)) == 0;
}

int kv_segfile_adopt(struct kv_cache *cache,
		     const struct kv_segfile_record *record)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct stat st;
	bool trailer;
	int fd, r;

	if (record->slot_bytes < 2 * KV_PAGE || record->slot_bytes % KV_PAGE ||
	    record->slot_bytes > ssd->segment_bytes ||
	    record->id > UINT32_MAX / 2 || kv_segfile_at(cache, record->id))
		return -EBADMSG;
	fd = file_open(ssd, record->id,
		       cache->config.read_only ? O_RDONLY : O_RDWR);
	if (fd < 0)
		return fd;
	r = fstat(fd, &st) < 0 ? -errno : 0;
	if (r == 0 && (uint64_t)st.st_size < ssd->segment_bytes)
		r = -EBADMSG;
	if (r == 0) {
		trailer = trailer_agrees(cache, fd, record);
		ssd->unswept |= !trailer;
		r = add(cache, record->id, fd, record->slot_bytes, true,
			trailer);
	}
	if (r < 0)
		close(fd);
	return r;
}

static uint32_t free_id(struct kv_ssd *ssd)
{
	uint32_t id = 0;

	while (id < ssd->n_files && ssd->files[id])
		id++;
	return id;
}

uint64_t kv_sidecars_over(const struct kv_cache *cache)
{
	const uint64_t share = kv_index_map_bytes(cache->ssd.cap) / 4;

	return cache->ssd.sidecars - KV_MIN(cache->ssd.sidecars, share);
}

bool kv_segfile_room(const struct kv_cache *cache)
{
	const struct kv_ssd *ssd = &cache->ssd;

	return !ssd->full && (ssd->live_files + 1) * ssd->segment_bytes +
					     kv_sidecars_over(cache) <=
				     ssd->file_budget;
}

static int create(struct kv_cache *cache, uint64_t slot_bytes)
{
	struct kv_ssd *ssd = &cache->ssd;
	uint32_t id = free_id(ssd);
	char name[KV_SEGFILE_NAME];
	int fd, r;

	kv_unlock(cache);
	fd = file_open(ssd, id, O_RDWR | O_CREAT | O_TRUNC);
	KV_POINT("file.made");
	r = fd < 0 ? fd : -posix_fallocate(fd, 0, (off_t)ssd->segment_bytes);
	KV_POINT("file.allocated");
	if (r == 0)
		r = kv_trailer_write(fd, id, cache->info.store,
				     ssd->segment_bytes, slot_bytes);
	kv_lock(cache);
	if (r == 0)
		r = add(cache, id, fd, slot_bytes, false, true);
	if (r < 0) {
		kv_segfile_name(id, name);
		unlinkat(ssd->dir, name, 0);
		if (fd >= 0)
			close(fd);
	}
	return r;
}

/* The file holds nothing, and is of no class until a later change of its slot
 * size succeeds; each failure doubles the delay, up to a limit. */
static void set_unusable(struct kv_cache *cache, struct kv_segfile *file)
{
	kv_assert_locked(&cache->lock);
	file->class = NULL;
	file->until = kv_now_ns() + (kv_health_retry(cache) << file->failures);
	file->failures += file->failures < DELAY_DOUBLED;
	cache->stats.resize_failures++;
	cache->stats.ssd_unusable_files++;
	TAILQ_INSERT_TAIL(&cache->ssd.unusable, file, link);
}

/*
 * Bytes under the old slots are their owners': they go before the trailer says
 * that prologues are elsewhere now.
 */
static int convert(struct kv_cache *cache, struct kv_segfile *file,
		   uint64_t slot_bytes)
{
	struct kv_ssd *ssd = &cache->ssd;
	const bool unswept = file->unswept;
	int r;

	file->unswept = false; /* all of it is cleared here */
	if (file->class) {
		kv_extents_remove_file(file);
	} else {
		TAILQ_REMOVE(&ssd->unusable, file, link);
		cache->stats.ssd_unusable_files--;
	}
	kv_unlock(cache);
	KV_POINT("file.reclass");
	r = kv_segfile_clear(file->fd, ssd->segment_bytes, slot_bytes);
	KV_POINT("file.cleared");
	if (r == 0)
		r = kv_trailer_write(file->fd, file->id, cache->info.store,
				     ssd->segment_bytes, slot_bytes);
	KV_POINT("file.trailer");
	kv_lock(cache);
	ssd->n_unswept -= unswept;
	kv_flushes_settle_locked(cache, 0);
	if (r == 0) {
		file->slot_bytes = slot_bytes;
		file->recorded = false;
		file->trailer = true;
		r = kv_extents_add_file(cache, file);
	}
	if (r < 0)
		set_unusable(cache, file);
	return r;
}

int kv_segfile_create(struct kv_cache *cache, uint64_t slot_bytes)
{
	struct kv_segfile *file =
		kv_segfile_room(cache)
			? NULL
			: kv_extents_empty_file(cache, slot_bytes);

	return file ? convert(cache, file, slot_bytes)
		    : create(cache, slot_bytes);
}

static void file_free(struct kv_segfile *file)
{
	close(file->fd);
	free(file->bitmap);
	free(file->blocks);
	free(file);
}

void kv_segfile_forget(struct kv_cache *cache, struct kv_segfile *file)
{
	kv_extents_remove_file(file);
	cache->ssd.files[file->id] = NULL;
	cache->ssd.live_files--;
	file_free(file);
}

void kv_strays_remove(struct kv_cache *cache, int dir,
		      bool (*belongs)(struct kv_cache *cache, const char *name))
{
	int copy = dup(dir);
	DIR *list = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *entry;

	if (!list) {
		kv_closep(&copy);
		return;
	}
	rewinddir(list);
	while ((entry = readdir(list))) {
		if (entry->d_name[0] != '.' && !belongs(cache, entry->d_name))
			unlinkat(dir, entry->d_name, 0);
		KV_POINT("mount.sweep");
	}
	closedir(list);
}

static bool is_used(struct kv_cache *cache, const char *name)
{
	uint32_t id;

	return !kv_segfile_parse(name, &id) || kv_segfile_at(cache, id);
}

void kv_segfiles_sweep(struct kv_cache *cache)
{
	kv_strays_remove(cache, cache->ssd.dir, is_used);
}

static int put_unrecorded(struct kv_cache *cache, struct kv_txn *batch)
{
	const struct kv_ssd *ssd = &cache->ssd;
	bool any = false;
	int r = 0;

	for (uint32_t id = 0; r == 0 && id < ssd->n_files; id++) {
		const struct kv_segfile *file = ssd->files[id];
		struct kv_segfile_record record = {.id = id};

		if (file && !file->class)
			r = kv_txn_delete_segfile(batch, id);
		if (!file || !file->class || file->recorded)
			continue;
		any = true;
		record.slots = file->slots;
		record.slot_bytes = file->slot_bytes;
		r = fsync(file->fd) < 0 ? -errno
					: kv_txn_put_segfile(batch, &record);
	}
	if (r == 0 && any && fsync(ssd->dir) < 0)
		r = -errno;
	return r;
}

void kv_segfiles_record(struct kv_cache *cache)
{
	struct kv_txn *batch;
	int r = cache->ssd.on ? kv_txn_begin(cache->index, &batch) : -ENOENT;

	if (r < 0)
		return;
	r = put_unrecorded(cache, batch);
	if (r == 0)
		kv_txn_commit(batch);
	else
		kv_txn_abort(batch);
}

void kv_segfiles_close(struct kv_cache *cache)
{
	struct kv_ssd_class *class;

	for (uint32_t id = 0; id < cache->ssd.n_files; id++)
		if (cache->ssd.files[id])
			file_free(cache->ssd.files[id]);
	free(cache->ssd.files);
	while ((class = LIST_FIRST(&cache->ssd.classes))) {
		LIST_REMOVE(class, link);
		kv_evict_lists_free(&class->lists);
		free(class);
	}
}

struct sweep {
	int fd;
	uint64_t slot_bytes;
	uint32_t slots;
	uint64_t *taken; /* copy of the bitmap */
	bool trailer;
	struct kv_found *found;
	uint64_t zeroed, unreadable;
};

/* -ENOENT: there is no such file. */
static int describe(struct kv_cache *cache, uint32_t id, struct sweep *sweep)
{
	struct kv_segfile *file;
	size_t words;
	int r = -ENOENT;

	kv_lock(cache);
	file = kv_segfile_at(cache, id);
	if (file) {
		sweep->fd = file->fd;
		sweep->slot_bytes = file->slot_bytes;
		sweep->slots = file->slots;
		sweep->trailer = file->trailer;
		words = (file->slots + 63) / 64;
		sweep->taken = malloc(words * sizeof(*sweep->taken));
		r = sweep->taken ? 0 : -ENOMEM;
		if (r == 0)
			memcpy(sweep->taken, file->bitmap,
			       words * sizeof(*sweep->taken));
	}
	kv_unlock(cache);
	return r;
}

static int zero_strays(struct kv_cache *cache, struct sweep *sweep)
{
	uint64_t before = sweep->zeroed;
	int r = 0;

	for (uint32_t at = 0; r == 0 && at < sweep->slots; at += KV_SCAN_MAX) {
		uint32_t n = KV_MIN(KV_SCAN_MAX, sweep->slots - at);

		kv_segfile_scan(sweep->fd, cache->info.store, sweep->slot_bytes,
				at, n, sweep->taken, sweep->found);
		for (uint32_t i = 0; r == 0 && i < n; i++) {
			sweep->unreadable +=
				sweep->found[i].state == KV_FOUND_UNREADABLE;
			if (sweep->found[i].state != KV_FOUND_BLOCK)
				continue;
			r = kv_segfile_zero(sweep->fd, sweep->slot_bytes,
					    at + i);
			sweep->zeroed++;
		}
	}
	if (r == 0 && sweep->zeroed > before && fdatasync(sweep->fd) < 0)
		r = -errno;
	return r;
}

static int sweep_file(struct kv_cache *cache, uint32_t id, struct sweep *sweep)
{
	int r = describe(cache, id, sweep);

	if (r == -ENOENT)
		return 0;
	if (r == 0)
		r = zero_strays(cache, sweep);
	free(kv_steal(sweep->taken));
	KV_POINT("sweep.zeroed");
	if (r < 0 || sweep->trailer)
		return r;
	r = kv_trailer_write(sweep->fd, id, cache->info.store,
			     cache->ssd.segment_bytes, sweep->slot_bytes);
	if (r < 0)
		return r;
	kv_lock(cache);
	kv_segfile_at(cache, id)->trailer = true;
	kv_unlock(cache);
	return 0;
}

/* The file is swept, or was cleared: its slots may be taken. */
static void swept_locked(struct kv_cache *cache, struct kv_segfile *file)
{
	kv_assert_locked(&cache->lock);
	if (!file->unswept)
		return;
	file->unswept = false;
	cache->ssd.n_unswept--;
	kv_extents_renew_file(file);
	if (!cache->ssd.n_unswept && cache->ssd.swept)
		kv_note(cache, "swept=%llu prologues of no block",
			(unsigned long long)cache->ssd.swept);
}

void kv_sweep_later(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;

	for (uint32_t id = 0; id < ssd->n_files; id++) {
		struct kv_segfile *file = ssd->files[id];

		if (!file || file->unswept)
			continue;
		file->unswept = true;
		ssd->n_unswept++;
		kv_extents_renew_file(file);
	}
}

/* A file that somebody waits for, or any; NULL: all are swept. */
static struct kv_segfile *file_to_sweep(const struct kv_ssd *ssd)
{
	struct kv_segfile *any = NULL;

	for (uint32_t id = 0; id < ssd->n_files; id++) {
		struct kv_segfile *file = ssd->files[id];

		if (!file || !file->unswept)
			continue;
		if (file->slot_bytes == ssd->sweep_first)
			return file;
		any = any ? any : file;
	}
	return any;
}

bool kv_sweep_waits(const struct kv_cache *cache)
{
	return cache->ssd.n_unswept > 0;
}

bool kv_sweep_one(struct kv_cache *cache)
{
	struct sweep sweep = {0};
	struct kv_segfile *file =
		cache->ssd.n_unswept ? file_to_sweep(&cache->ssd) : NULL;
	int r = -ENOMEM;

	if (!file)
		return false;
	file->sweeping = true;
	kv_unlock(cache);
	sweep.found = malloc(KV_SCAN_MAX * sizeof(*sweep.found));
	if (sweep.found)
		r = sweep_file(cache, file->id, &sweep);
	free(sweep.found);
	kv_lock(cache);
	file->sweeping = false;
	cache->ssd.swept += sweep.zeroed;
	cache->stats.io_errors += sweep.unreadable;
	if (r < 0)
		kv_note(cache, "sweep_failed=%s", strerror(-r));
	swept_locked(cache, file);
	kv_flushes_settle_locked(cache, 0);
	pthread_cond_broadcast(&cache->ssd.done);
	kv_writer_rouse_locked(cache);
	return true;
}
