/* SPDX-License-Identifier: Apache-2.0 */
/*
 * check.c - read the index, after a check of its pages; compare the files
 * beside the index, STORE/store, STORE/spaces and STORE/tenants; compare every
 * slot's record with its prologue; report unknown files.
 *
 * OWNS      entries, segments and spaces of struct fsck, and the marks of
 *           records to drop and of prologues to zero.
 *
 * LOCKING   one thread; kv_segfile_scan has its own.
 */
#include <fcntl.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "common/array.h"
#include "common/bytes.h"
#include "common/copy.h"
#include "index/sidecar.h"
#include "tools/fsck/fsck.h"

static int note(struct ids *ids, uint64_t id)
{
	int r = kv_array_more(&ids->ids, ids->n);

	if (r == 0)
		ids->ids[ids->n++] = id;
	return r;
}

static uint64_t content(const struct kv_slot_record *record)
{
	struct kv_slot_record fixed = *record;

	fixed.mtime_ns = 0;
	fixed.atime = fixed.hits = 0;
	fixed.pinned = 0;
	fixed.checksum = 0;
	return XXH3_64bits(&fixed, sizeof(fixed));
}

static int see_space(void *arg, const struct kv_space_record *record,
		     const char *name, const char *layout)
{
	struct fsck *f = arg;
	struct space *space;
	int r = kv_array_more(&f->spaces, f->n_spaces);

	if (r < 0)
		return r;
	space = &f->spaces[f->n_spaces++];
	*space = (struct space){.id = record->id, .record = *record};
	space->name = strdup(name);
	space->layout = strdup(layout);
	return space->name && space->layout ? 0 : -ENOMEM;
}

static int see_segment(void *arg, const struct kv_segfile_record *record)
{
	struct fsck *f = arg;
	struct segment *segment;
	int r = kv_array_more(&f->segments, f->n_segments);

	if (r < 0)
		return r;
	segment = &f->segments[f->n_segments++];
	*segment = (struct segment){.id = record->id,
				    .slot_bytes = record->slot_bytes};
	if (record->slot_bytes < 2 * KV_PAGE || record->slot_bytes % KV_PAGE ||
	    record->slot_bytes > f->info.segment_bytes)
		segment->slot_bytes = 0; /* the record is impossible */
	else
		segment->slots = kv_segfile_slots_of(f->info.segment_bytes,
						     record->slot_bytes);
	return 0;
}

static int see_slot(void *arg, uint64_t slot_id,
		    const struct kv_slot_record *record)
{
	struct fsck *f = arg;
	int r = kv_array_more(&f->entries, f->n_entries);

	if (r < 0)
		return r;
	f->entries[f->n_entries++] = (struct entry){
		.slot_id = slot_id,
		.generation = record->generation,
		.name = kv_record_name(record, 0),
		.content = content(record),
		.space = kv_record_fits(record, UINT64_MAX) ? record->space : 0,
	};
	return 0;
}

/* Return the index of the first entry at or after @slot_id. */
static size_t entry_at(const struct fsck *f, uint64_t slot_id)
{
	size_t low = 0, high = f->n_entries;

	while (low < high) {
		size_t mid = (low + high) / 2;

		if (f->entries[mid].slot_id < slot_id)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/* Note token ids without a block.  A repair deletes them: they are text of a
 * user. */
static int see_tokens(void *arg, uint64_t slot_id, uint64_t generation,
		      const struct kv_token_ids *ids)
{
	struct fsck *f = arg;
	const size_t at = entry_at(f, slot_id);

	(void)ids;
	if (at < f->n_entries && f->entries[at].slot_id == slot_id &&
	    f->entries[at].generation == generation)
		return 0;
	fsck_found(f, FAULT_RECORD_STRAY,
		   "slot %u of file %u: token ids of a block that is gone",
		   (unsigned)slot_id, (unsigned)(slot_id >> 32));
	return note(&f->bad_tokens, slot_id);
}

static int see_snapshot(void *arg, const struct kv_snapshot_record *record,
			const char *name, const struct kv_snapshot_item *items)
{
	(void)record;
	(void)name;
	(void)items;
	((struct fsck *)arg)->snapshots++;
	return 0;
}

static void see_damaged(void *arg, enum kv_index_part part, uint64_t id)
{
	struct fsck *f = arg;

	if (part == KV_PART_SLOTS || part == KV_PART_TOKENS) {
		const bool slot = part == KV_PART_SLOTS;

		fsck_found(f, FAULT_RECORD_DAMAGED,
			   "slot %u of file %u: the %s damaged", (unsigned)id,
			   (unsigned)(id >> 32),
			   slot ? "record is" : "token ids are");
		(void)note(slot ? &f->bad_slots : &f->bad_tokens, id);
	} else if (part == KV_PART_SPACES) {
		fsck_found(f, FAULT_SPACE_RECORD,
			   "space %u: the record is damaged", (unsigned)id);
		if (kv_array_more(&f->spaces, f->n_spaces) == 0)
			f->spaces[f->n_spaces++] =
				(struct space){.id = (uint32_t)id, .put = true};
	} else if (part == KV_PART_SEGMENTS) {
		fsck_found(f, FAULT_SEGMENT_RECORD,
			   "file %u: the record is damaged", (unsigned)id);
		if (kv_array_more(&f->segments, f->n_segments) == 0)
			f->segments[f->n_segments++] = (struct segment){
				.id = (uint32_t)id, .put = true};
	} else {
		fsck_found(f, FAULT_RECORD_DAMAGED,
			   "snapshot %llu: the record is damaged",
			   (unsigned long long)id);
	}
}

static int read_index(struct fsck *f)
{
	const struct kv_index_visitor visitor = {
		.arg = f,
		.space = see_space,
		.segment = see_segment,
		.slot = see_slot,
		.snapshot = see_snapshot,
		.tokens = see_tokens,
		.damaged = see_damaged,
	};
	struct kv_index *index;
	uint64_t damaged;
	int r = kv_index_open(f->index_path, 0, true, NULL, &f->info, &index);

	if (r < 0)
		return r;
	f->known = true;
	r = kv_index_walk(index, &visitor, &damaged);
	kv_index_close(index);
	return r;
}

int fsck_index(struct fsck *f)
{
	char why[KV_WHY_MAX];
	int r = kv_index_check(f->index_path, 1u << 30, why);

	if (r == -ENOENT) {
		if (kv_rebuild_possible(f->store))
			fsck_found(f, FAULT_INDEX_MISSING,
				   "the index is missing: --rebuild makes it "
				   "anew");
		return 0;
	}
	if (r == 0)
		r = read_index(f);
	if (r == 0 && kv_index_is_foreign(f->store, f->info.store)) {
		f->known = false;
		strcpy(why, "it is another store's");
		r = -EBADMSG;
	}
	if (r == -ENOTSUP) /* main() reports an unknown format */
		return r;
	if (r == -EBADMSG) {
		fsck_found(f, FAULT_INDEX_DAMAGED,
			   "the index is damaged (%s): --rebuild makes it anew",
			   why[0] ? why : "no store record");
		return 0;
	}
	if (r < 0)
		return fsck_error("%s: cannot read it: %s", f->index_path,
				  strerror(-r));
	f->readable = true;
	return 0;
}

static struct space *space_of(const struct fsck *f, uint32_t id)
{
	_Static_assert(offsetof(struct space, id) == 0, "kv_by_id");
	return f->n_spaces ? bsearch(&id, f->spaces, f->n_spaces,
				     sizeof(*f->spaces), kv_by_id)
			   : NULL;
}

struct segment *fsck_segment(const struct fsck *f, uint32_t id)
{
	_Static_assert(offsetof(struct segment, id) == 0, "kv_by_id");
	return f->n_segments ? bsearch(&id, f->segments, f->n_segments,
				       sizeof(*f->segments), kv_by_id)
			     : NULL;
}

static const char *const own[] = {"lock", "store", "store.tmp", "tenants",
				  "tenants.tmp"};
static const char *const own_dirs[] = {"index",	 "index.new",  "segments",
				       "spaces", "lost+found", "removed"};
static const char *const own_index[] = {"data.mdb", "lock.mdb", "compact.tmp"};

static bool is_in(const char *name, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return false;
}

struct folder {
	struct fsck *f;
	const char *name;
};

/* Report the file @name of a folder if it is unknown, or a directory; note the file if a
 * repair removes it. */
static int check_file(void *arg, int fd, const char *name)
{
	const struct folder *folder = arg;
	const char *dir = folder->name;
	struct fsck *f = folder->f;
	const bool segment = strcmp(dir, "segments") == 0;
	bool known, stray = false;
	struct stat st;
	uint32_t id;

	if (strcmp(dir, ".") == 0) {
		known = is_in(name, own, KV_ARRAY_LEN(own));
		if (is_in(name, own_dirs, KV_ARRAY_LEN(own_dirs)))
			return 0;
		if (strcmp(name, KV_DAMAGED_NAME) == 0) {
			fsck_found(f, FAULT_STRANGER,
				   "index.damaged: a damaged index that the "
				   "daemon replaced; it can be removed");
			return 0;
		}
	} else if (strcmp(dir, "index") == 0) {
		known = is_in(name, own_index, KV_ARRAY_LEN(own_index));
	} else if (segment) {
		known = kv_segfile_parse(name, &id);
		stray = known && f->readable && !fsck_segment(f, id);
	} else {
		known = kv_space_file_parse(name, &id);
		stray = known && f->readable && !space_of(f, id);
	}
	if (!known) {
		fsck_found(f, FAULT_STRANGER,
			   "%s/%s: not the store's, left alone", dir, name);
	} else if (fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		   S_ISDIR(st.st_mode)) {
		fsck_found(f, FAULT_DIRECTORY,
			   "%s/%s: a directory in place of a file: move it "
			   "away",
			   dir, name);
	} else if (stray) {
		fsck_found(f, segment ? FAULT_FILE_UNKNOWN : FAULT_SPACE_FILE,
			   "%s/%s: %s", dir, name,
			   segment ? "the index does not have it"
				   : "a file of a space that does not exist");
		return note(segment ? &f->unknown : &f->stray_files, id);
	}
	return 0;
}

int fsck_files(struct fsck *f)
{
	static const char *const dirs[] = {".", "index", "segments", "spaces"};
	int r = 0;

	/* Ignore a folder that cannot be opened: it has no files to report. */
	for (size_t i = 0; r != -ENOMEM && i < KV_ARRAY_LEN(dirs); i++)
		r = kv_dir_walk(f->store, dirs[i], check_file,
				&(struct folder){f, dirs[i]});
	return r == -ENOMEM ? r : 0;
}

static bool same_space(const struct space *a, const struct space *b)
{
	return strcmp(a->name, b->name) == 0 &&
	       strcmp(a->layout, b->layout) == 0 &&
	       memcmp(&a->record, &b->record,
		      offsetof(struct kv_space_record, name_len)) == 0;
}

static int check_space(struct fsck *f, struct space *space)
{
	struct space file = {0};
	int r = f->spaces_dir < 0 ? -ENOENT
				  : kv_space_file_read(f->spaces_dir, space->id,
						       &file.record, &file.name,
						       &file.layout);

	if (r == -ENOMEM)
		return r;
	if (space->put && r == 0) {
		space->record = file.record;
		space->name = file.name;
		space->layout = file.layout;
		return 0;
	}
	if (!space->put && (r < 0 || !same_space(space, &file))) {
		space->write = true;
		space->nameless = r < 0 || strcmp(file.name, space->name) != 0;
		fsck_found(f, FAULT_SPACE_FILE, "spaces/%06u: %s", space->id,
			   r < 0 ? strerror(-r) : "differs from the index");
	}
	free(file.name);
	free(file.layout);
	return 0;
}

static void check_store(struct fsck *f)
{
	struct kv_store_info info;
	int r = kv_store_file_read(f->store, &info);
	const bool same = r == 0 && memcmp(info.store, f->info.store,
					   sizeof(info.store)) == 0;

	/* The index is older than the store: a repair would remove newer
	 * blocks. */
	if (same && info.mounts > f->info.mounts) {
		f->readable = false;
		fsck_found(f, FAULT_INDEX_DAMAGED,
			   "index: of mount %u, and the files are of mount %u: "
			   "the next mount rebuilds it, and keeps its pins",
			   f->info.mounts, info.mounts);
		return;
	}
	if (same && info.segment_bytes == f->info.segment_bytes)
		return;
	f->write_store_file = true;
	fsck_found(f, FAULT_STORE_FILE, "store: %s",
		   r < 0 ? strerror(-r) : "differs from the index");
}

int fsck_sidecar(struct fsck *f)
{
	size_t damaged = 0;
	int r = kv_tenants_read(f->store, &f->tenants, &f->n_tenants, &damaged);

	if (r < 0 && r != -EBADMSG)
		return fsck_error("%s/tenants: %s", f->path, strerror(-r));
	if (r < 0)
		fsck_found(f, FAULT_TENANTS,
			   "tenants: too large, or not a file");
	for (size_t i = 0; i < damaged; i++)
		fsck_found(f, FAULT_TENANTS,
			   "tenants: the record of a user's quotas is damaged");
	if (!f->readable)
		return 0;
	check_store(f);
	r = 0;
	for (size_t i = 0; r == 0 && i < f->n_spaces; i++)
		r = check_space(f, &f->spaces[i]);
	return r < 0 ? fsck_error("%s/spaces: %s", f->path, strerror(-r)) : 0;
}

/* ---- slots ---- */

/* The check of one segment file's slots. */
struct pass {
	struct fsck *f;
	const struct segment *segment;
	int fd;
	struct kv_found *found;
	size_t entry, end; /* index of the next entry, and of the end */
};

int fsck_open_segment(const struct fsck *f, uint32_t id, int flags)
{
	struct stat st;
	int fd = kv_segfile_open(f->segments_dir, id, flags);

	if (fd < 0)
		return fd;
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
	    (uint64_t)st.st_size < f->info.segment_bytes) {
		close(fd);
		return -EBADMSG;
	}
	return fd;
}

static void drop(struct fsck *f, struct entry *entry, enum fault fault,
		 const char *why)
{
	if (!entry->drop)
		fsck_found(f, fault, "slot %u of file %u: %s",
			   (unsigned)entry->slot_id,
			   (unsigned)(entry->slot_id >> 32), why);
	entry->drop = true;
}

static int check_block(struct pass *pass, struct entry *entry,
		       const struct kv_found *found)
{
	struct fsck *f = pass->f;
	const uint64_t slot_bytes = pass->segment->slot_bytes;
	int r = 0;

	if (!kv_record_fits(&found->record, slot_bytes) ||
	    content(&found->record) != entry->content) {
		drop(f, entry, FAULT_SLOT_OTHER,
		     "the prologue is another block's");
		return note(&f->stale, entry->slot_id);
	}
	if (f->data)
		r = kv_block_verify(
			pass->fd,
			kv_segfile_at_slot(slot_bytes,
					   (uint32_t)entry->slot_id),
			&found->record, NULL, 0);
	if (r == -EBADMSG) {
		drop(f, entry, FAULT_DATA, "the bytes differ from the digest");
		return note(&f->stale, entry->slot_id);
	}
	if (r < 0) {
		fsck_found(f, FAULT_SLOT_UNREADABLE, "slot %u of file %u: %s",
			   (unsigned)entry->slot_id, pass->segment->id,
			   strerror(-r));
		return 0;
	}
	f->bytes_held += slot_bytes;
	return 0;
}

static int check_recorded(struct pass *pass, struct entry *entry,
			  const struct kv_found *found)
{
	struct fsck *f = pass->f;

	f->bytes_accounted += pass->segment->slot_bytes;
	switch (found->state) {
	case KV_FOUND_BLOCK:
		return check_block(pass, entry, found);
	case KV_FOUND_ZERO:
		drop(f, entry, FAULT_SLOT_EMPTY, "the prologue is zeros");
		return 0;
	case KV_FOUND_NOTHING:
		drop(f, entry, FAULT_SLOT_OTHER, "the prologue is damaged");
		return 0;
	case KV_FOUND_UNREADABLE:
		fsck_found(f, FAULT_SLOT_UNREADABLE,
			   "slot %u of file %u cannot be read",
			   (unsigned)entry->slot_id, pass->segment->id);
		return 0;
	}
	return 0;
}

static int check_slot(struct pass *pass, uint32_t slot_number,
		      const struct kv_found *found)
{
	struct fsck *f = pass->f;
	const uint64_t id = kv_slot_id(pass->segment->id, slot_number);
	struct entry *entry =
		pass->entry < pass->end ? &f->entries[pass->entry] : NULL;

	if (entry && entry->slot_id == id) {
		pass->entry++;
		if (!entry->drop)
			return check_recorded(pass, entry, found);
	}
	if (found->state == KV_FOUND_BLOCK) {
		fsck_found(f, FAULT_SLOT_LEAKED,
			   "slot %u of file %u is free, and has a prologue",
			   slot_number, pass->segment->id);
		return note(&f->stale, id);
	}
	return 0;
}

static int check_slots(struct fsck *f, const struct segment *segment)
{
	_cleanup_(kv_closep) int fd =
		fsck_open_segment(f, segment->id, O_RDONLY);
	struct pass pass = {.f = f, .segment = segment, .fd = fd};
	int r = 0;

	if (fd < 0)
		return fd;
	pass.found = malloc(KV_SCAN_MAX * sizeof(*pass.found));
	if (!pass.found)
		return -ENOMEM;
	pass.entry = entry_at(f, kv_slot_id(segment->id, 0));
	pass.end = entry_at(f, kv_slot_id(segment->id, segment->slots));
	for (uint32_t at = 0; r == 0 && at < segment->slots;
	     at += KV_SCAN_MAX) {
		uint32_t n = KV_MIN(KV_SCAN_MAX, segment->slots - at);

		kv_segfile_scan(fd, f->info.store, segment->slot_bytes, at, n,
				NULL, pass.found);
		for (uint32_t i = 0; r == 0 && i < n; i++)
			r = check_slot(&pass, at + i, &pass.found[i]);
	}
	free(pass.found);
	return r;
}

/* Check the file and its trailer. */
static void check_segment(struct fsck *f, struct segment *segment)
{
	_cleanup_(kv_closep) int fd =
		fsck_open_segment(f, segment->id, O_RDONLY);
	struct kv_trailer trailer;
	int r;

	if (fd < 0) {
		fsck_found(f, FAULT_FILE_MISSING, "file %06u.seg: %s",
			   segment->id,
			   fd == -EBADMSG ? "too short, or not a file"
					  : strerror(-fd));
		return;
	}
	segment->present = true;
	r = kv_trailer_read(fd, segment->id, &trailer);
	if (r == -EUCLEAN) {
		/* A repair would drop the blocks of both files. */
		f->readable = false;
		fsck_found(f, FAULT_FILE_MISSING,
			   "file %06u.seg: its trailer names another file",
			   segment->id);
	}
	if (r == 0 &&
	    (memcmp(trailer.store, f->info.store, sizeof(trailer.store)) != 0 ||
	     trailer.segment_bytes != f->info.segment_bytes))
		r = -EBADMSG;
	if (r == 0 && segment->put) {
		segment->slot_bytes = trailer.slot_bytes;
		segment->slots = trailer.slots;
	}
	segment->trailer = r == 0 && trailer.slot_bytes == segment->slot_bytes;
	if (!segment->trailer && segment->slot_bytes)
		fsck_found(f, FAULT_TRAILER,
			   "file %06u.seg: the trailer is missing or wrong",
			   segment->id);
}

/* Mark entries without a slot or space to be dropped.  Needs all segments. */
static void drop_strays(struct fsck *f)
{
	for (size_t i = 0; i < f->n_entries; i++) {
		struct entry *entry = &f->entries[i];
		const struct segment *segment =
			fsck_segment(f, (uint32_t)(entry->slot_id >> 32));
		const struct space *space = space_of(f, entry->space);

		if (!segment || !segment->present ||
		    (uint32_t)entry->slot_id >= segment->slots)
			drop(f, entry, FAULT_RECORD_STRAY,
			     "the record is of a slot that does not exist");
		else if (!space || !space->name)
			drop(f, entry, FAULT_RECORD_STRAY,
			     "the record is impossible, or of a space that "
			     "does not exist");
	}
}

static int by_name(const void *a, const void *b)
{
	const struct entry *x = *(struct entry *const *)a;
	const struct entry *y = *(struct entry *const *)b;

	int r = XXH128_cmp(&x->name, &y->name);

	return r			       ? r
	       : x->generation < y->generation ? -1
					       : x->generation > y->generation;
}

static int drop_duplicates(struct fsck *f)
{
	struct entry **sorted = malloc((f->n_entries + 1) * sizeof(*sorted));
	size_t n = 0;

	if (!sorted)
		return -ENOMEM;
	for (size_t i = 0; i < f->n_entries; i++)
		if (!f->entries[i].drop)
			sorted[n++] = &f->entries[i];
	qsort(sorted, n, sizeof(*sorted), by_name);
	for (size_t i = 0; i + 1 < n; i++)
		if (XXH128_isEqual(sorted[i]->name, sorted[i + 1]->name))
			drop(f, sorted[i], FAULT_RECORD_DUPLICATE,
			     "another record of the key is newer");
	free(sorted);
	return 0;
}

int fsck_slots(struct fsck *f)
{
	int r;

	if (!f->readable)
		return 0;
	for (size_t i = 0; i < f->n_segments; i++)
		check_segment(f, &f->segments[i]);
	drop_strays(f);
	r = drop_duplicates(f);
	for (size_t i = 0; r == 0 && i < f->n_segments; i++)
		if (f->readable && f->segments[i].present &&
		    f->segments[i].slot_bytes)
			r = check_slots(f, &f->segments[i]);
	return r < 0 ? fsck_error("%s: %s", f->path, strerror(-r)) : 0;
}
