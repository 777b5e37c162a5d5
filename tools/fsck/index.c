/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.c - read the index, after a check of its pages; compare the files beside
 * the index, STORE/store, STORE/spaces and STORE/tenants; report unknown files.
 *
 * OWNS      entries, segments and spaces of struct fsck.
 *
 * LOCKING   one thread.
 */
#include <dirent.h>
#include <fcntl.h>
#include <xxhash.h>

#include "common/array.h"
#include "index/pages.h"
#include "index/segfile.h"
#include "index/sidecar.h"
#include "tools/fsck/fsck.h"

int fsck_note(struct ids *ids, uint64_t id)
{
	int r = kv_array_more(&ids->ids, ids->n);

	if (r == 0)
		ids->ids[ids->n++] = id;
	return r;
}

uint64_t fsck_content(const struct kv_slot_record *record)
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
				    .slot_bytes = record->slot_bytes,
				    .recorded = true};
	if (record->slot_bytes < 2 * KV_PAGE || record->slot_bytes % KV_PAGE ||
	    record->slot_bytes > f->info.segment_bytes)
		segment->slot_bytes = 0; /* impossible */
	else
		segment->slots = kv_segfile_slots_of(f->info.segment_bytes,
						     record->slot_bytes);
	return 0;
}

static int see_slot(void *arg, uint64_t slot_id,
		    const struct kv_slot_record *record)
{
	struct fsck *f = arg;
	uint8_t name[sizeof(record->key) + 5];
	XXH128_hash_t hash;
	int r = kv_array_more(&f->entries, f->n_entries);

	if (r < 0)
		return r;
	memcpy(name, record->key, sizeof(record->key));
	memcpy(name + 32, &record->space, 4);
	name[36] = record->key_len;
	hash = XXH3_128bits(name, sizeof(name));
	f->entries[f->n_entries++] = (struct entry){
		.slot_id = slot_id,
		.generation = record->generation,
		.name = hash.low64,
		.name2 = hash.high64,
		.content = fsck_content(record),
		.space = kv_record_fits(record, UINT64_MAX) ? record->space : 0,
	};
	return 0;
}

static int by_slot(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	return x->slot_id < y->slot_id ? -1 : x->slot_id > y->slot_id;
}

/* Token ids are a user's text, and are deleted with their block. */
static int see_tokens(void *arg, uint64_t slot_id, uint64_t generation,
		      const struct kv_token_ids *ids)
{
	const struct entry key = {.slot_id = slot_id}, *entry;
	struct fsck *f = arg;

	(void)ids;
	entry = f->n_entries ? bsearch(&key, f->entries, f->n_entries,
				       sizeof(key), by_slot)
			     : NULL;
	if (entry && entry->generation == generation)
		return 0;
	fsck_found(f, FAULT_RECORD_STRAY,
		   "slot %u of file %u: token ids of a block that is gone",
		   (unsigned)slot_id, (unsigned)(slot_id >> 32));
	return fsck_note(&f->bad_tokens, slot_id);
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

	if (part == KV_PART_SLOTS) {
		fsck_found(f, FAULT_RECORD_DAMAGED,
			   "slot %u of file %u: the record is damaged",
			   (unsigned)id, (unsigned)(id >> 32));
		(void)fsck_note(&f->bad_slots, id);
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
	} else if (part == KV_PART_TOKENS) {
		fsck_found(f, FAULT_RECORD_DAMAGED,
			   "slot %u of file %u: the token ids are damaged",
			   (unsigned)id, (unsigned)(id >> 32));
		(void)fsck_note(&f->bad_tokens, id);
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
	int r = kv_pages_check(f->index_path, 1u << 30, why);

	if (r == -ENOENT) {
		if (kv_rebuild_possible(f->store))
			fsck_found(f, FAULT_INDEX_MISSING,
				   "the index is missing: --rebuild makes it "
				   "anew");
		return 0;
	}
	if (r == 0)
		r = read_index(f);
	if (r == -ENOTSUP)
		return fsck_error("%s: " KV_FORMAT_REFUSED, f->path);
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

/* Compare the ids that an element of spaces and one of segments begin with. */
static int by_id(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

struct space *fsck_space(const struct fsck *f, uint32_t id)
{
	_Static_assert(offsetof(struct space, id) == 0, "by_id");
	return f->n_spaces ? bsearch(&id, f->spaces, f->n_spaces,
				     sizeof(*f->spaces), by_id)
			   : NULL;
}

struct segment *fsck_segment(const struct fsck *f, uint32_t id)
{
	_Static_assert(offsetof(struct segment, id) == 0, "by_id");
	return f->n_segments ? bsearch(&id, f->segments, f->n_segments,
				       sizeof(*f->segments), by_id)
			     : NULL;
}

static const char *const own[] = {
	"lock",	       "store",	     "store.tmp", "tenants",
	"tenants.tmp", "index",	     "index.new", "segments",
	"spaces",      "lost+found", "removed",
};
static const char *const own_index[] = {"data.mdb", "lock.mdb", "compact.tmp"};

static bool is_in(const char *name, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return false;
}

static bool is_known(struct fsck *f, const char *dir, const char *name)
{
	uint32_t id;

	if (strcmp(dir, ".") == 0) {
		if (strcmp(name, KV_DAMAGED_NAME) == 0)
			fsck_found(f, FAULT_STRANGER,
				   "index.damaged: a damaged index that the "
				   "daemon replaced; it can be removed");
		return is_in(name, own, KV_ARRAY_LEN(own)) ||
		       strcmp(name, KV_DAMAGED_NAME) == 0;
	}
	if (strcmp(dir, "index") == 0)
		return is_in(name, own_index, KV_ARRAY_LEN(own_index));
	if (strcmp(dir, "segments") == 0)
		return kv_segfile_parse(name, &id);
	return kv_space_file_parse(name, &id);
}

static void find_strangers(struct fsck *f, const char *dir)
{
	int fd = openat(f->store, dir,
			O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	DIR *list = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;

	if (!list) {
		if (fd >= 0)
			close(fd);
		return;
	}
	while ((entry = readdir(list))) {
		const char *name = entry->d_name;

		if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0 &&
		    !is_known(f, dir, name))
			fsck_found(f, FAULT_STRANGER,
				   "%s/%s: not the store's, left alone", dir,
				   name);
	}
	closedir(list);
}

void fsck_strangers(struct fsck *f)
{
	find_strangers(f, ".");
	find_strangers(f, "index");
	find_strangers(f, "segments");
	find_strangers(f, "spaces");
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
		fsck_found(f, FAULT_SPACE_FILE, "spaces/%06u: %s", space->id,
			   r < 0 ? strerror(-r) : "not as the index has it");
	}
	free(file.name);
	free(file.layout);
	return 0;
}

/* Note the files in STORE/spaces of spaces that the index does not have. */
static int find_strays(struct fsck *f)
{
	DIR *list = f->spaces_dir < 0 ? NULL : fdopendir(dup(f->spaces_dir));
	struct dirent *entry;
	uint32_t id;
	int r = 0;

	if (!list)
		return 0;
	rewinddir(list);
	while (r == 0 && (entry = readdir(list)))
		if (kv_space_file_parse(entry->d_name, &id) &&
		    !fsck_space(f, id)) {
			fsck_found(f, FAULT_SPACE_FILE,
				   "spaces/%06u: of no space", id);
			r = fsck_note(&f->stray_files, id);
		}
	closedir(list);
	return r;
}

static void check_store(struct fsck *f)
{
	struct kv_store_info info;
	int r = kv_store_file_read(f->store, &info);

	/* A repair would remove blocks that the index does not know yet. */
	if (r == 0 &&
	    memcmp(info.store, f->info.store, sizeof(info.store)) == 0 &&
	    info.mounts > f->info.mounts) {
		f->readable = false;
		fsck_found(f, FAULT_INDEX_DAMAGED,
			   "index: of mount %u, and the files are of mount %u: "
			   "the next mount rebuilds it, and keeps its pins",
			   f->info.mounts, info.mounts);
		return;
	}
	if (r == 0 &&
	    memcmp(info.store, f->info.store, sizeof(info.store)) == 0 &&
	    info.segment_bytes == f->info.segment_bytes)
		return;
	f->write_store_file = true;
	fsck_found(f, FAULT_STORE_FILE, "store: %s",
		   r < 0 ? strerror(-r) : "not as the index has it");
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
	if (r == 0)
		r = find_strays(f);
	return r < 0 ? fsck_error("%s/spaces: %s", f->path, strerror(-r)) : 0;
}
