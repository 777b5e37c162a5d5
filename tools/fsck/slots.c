/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slots.c - compare every slot's record with its prologue, and the segment file
 * with both.
 *
 * OWNS      the marks in struct fsck of records to drop and prologues to zero.
 *
 * LOCKING   one thread; kv_segfile_scan has its own.
 */
#include "tools/fsck/fsck.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "common/bytes.h"

#define PIECE (1u << 20)

/* The check of one file's slots. */
struct pass {
	struct fsck *f;
	const struct segment *segment;
	int fd;
	struct kv_found *found;
	size_t entry, end; /* the entries of this file */
};

int fsck_open_segment(const struct fsck *f, uint32_t id, int flags)
{
	char name[KV_SEGFILE_NAME];
	struct stat st;
	int fd;

	kv_segfile_name(id, name);
	fd = openat(f->segments_dir, name,
		    flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
	    (uint64_t)st.st_size < f->info.segment_bytes) {
		close(fd);
		return -EBADMSG;
	}
	return fd;
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

static void drop(struct fsck *f, struct entry *entry, enum fault fault,
		 const char *why)
{
	if (!entry->drop)
		fsck_found(f, fault, "slot %u of file %u: %s",
			   (unsigned)entry->slot_id,
			   (unsigned)(entry->slot_id >> 32), why);
	entry->drop = true;
}

/* Compare the block's bytes with its digest.  0, -EBADMSG, or a read error. */
static int check_data(const struct pass *pass, uint64_t offset,
		      const struct kv_slot_record *record)
{
	_cleanup_(kv_freep) uint8_t *piece = malloc(PIECE);
	XXH3_state_t *state = XXH3_createState();
	XXH128_canonical_t digest;
	uint64_t left = record->length;
	long n = 1;
	int error;

	if (!piece || !state) {
		XXH3_freeState(state);
		return -ENOMEM;
	}
	XXH3_128bits_reset(state);
	for (; left && n > 0; left -= (uint64_t)n, offset += (uint64_t)n) {
		n = kv_read_at(pass->fd, offset, piece, KV_MIN(left, PIECE));
		if (n > 0)
			XXH3_128bits_update(state, piece, (size_t)n);
	}
	error = n < 0 ? (int)n : left ? -EIO : 0;
	XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(state));
	XXH3_freeState(state);
	if (error)
		return error;
	return memcmp(digest.digest, record->digest, sizeof(digest.digest)) == 0
		       ? 0
		       : -EBADMSG;
}

static int check_block(struct pass *pass, struct entry *entry,
		       const struct kv_found *found)
{
	struct fsck *f = pass->f;
	const uint64_t slot_bytes = pass->segment->slot_bytes;
	int r = 0;

	if (!kv_record_fits(&found->record, slot_bytes) ||
	    fsck_content(&found->record) != entry->content) {
		drop(f, entry, FAULT_SLOT_OTHER,
		     "the prologue is another block's");
		return fsck_note(&f->stale, entry->slot_id);
	}
	if (f->data)
		r = check_data(pass,
			       (uint32_t)entry->slot_id * slot_bytes + KV_PAGE,
			       &found->record);
	if (r == -EBADMSG) {
		drop(f, entry, FAULT_DATA, "the bytes differ from the digest");
		return fsck_note(&f->stale, entry->slot_id);
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
		return fsck_note(&f->stale, id);
	}
	return 0;
}

static int check_slots(struct fsck *f, struct segment *segment, int fd)
{
	struct pass pass = {.f = f, .segment = segment, .fd = fd};
	int r = 0;

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
		for (uint32_t i = 0; r == 0 && i < n; i++) {
			r = check_slot(&pass, at + i, &pass.found[i]);
			fsck_progress(
				"checking",
				(uint64_t)(segment - f->segments) * 1000000 +
					(at + i) * 1000000ull / segment->slots,
				f->n_segments * 1000000);
		}
	}
	free(pass.found);
	return r;
}

static int check_segment(struct fsck *f, struct segment *segment)
{
	_cleanup_(kv_closep) int fd =
		fsck_open_segment(f, segment->id, O_RDONLY);
	struct kv_trailer trailer;
	int r;

	if (fd < 0) {
		fsck_found(f, FAULT_FILE_MISSING, "file %06u.seg: %s",
			   segment->id,
			   fd == -EBADMSG ? "too short" : strerror(-fd));
		return 0;
	}
	segment->present = true;
	r = kv_trailer_read(fd, segment->id, &trailer);
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
	return segment->slot_bytes ? check_slots(f, segment, fd) : 0;
}

/* Drop entries without a slot or a space.  The files are known by now. */
static void drop_strays(struct fsck *f)
{
	for (size_t i = 0; i < f->n_entries; i++) {
		struct entry *entry = &f->entries[i];
		const struct segment *segment =
			fsck_segment(f, (uint32_t)(entry->slot_id >> 32));
		const struct space *space = fsck_space(f, entry->space);

		if (!segment || !segment->present ||
		    (uint32_t)entry->slot_id >= segment->slots)
			drop(f, entry, FAULT_RECORD_STRAY,
			     "a record, but no such slot");
		else if (!space || !space->name)
			drop(f, entry, FAULT_RECORD_STRAY,
			     "the record is of no space, or impossible");
	}
}

static int by_name(const void *a, const void *b)
{
	const struct entry *x = *(struct entry *const *)a;
	const struct entry *y = *(struct entry *const *)b;

	if (x->name != y->name)
		return x->name < y->name ? -1 : 1;
	if (x->name2 != y->name2)
		return x->name2 < y->name2 ? -1 : 1;
	return x->generation < y->generation ? -1
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
		if (sorted[i]->name == sorted[i + 1]->name &&
		    sorted[i]->name2 == sorted[i + 1]->name2)
			drop(f, sorted[i], FAULT_RECORD_DUPLICATE,
			     "another record of the key is newer");
	free(sorted);
	return 0;
}

/* Note the segment files that the index does not have. */
static int find_unknown(struct fsck *f)
{
	DIR *list =
		f->segments_dir < 0 ? NULL : fdopendir(dup(f->segments_dir));
	struct dirent *entry;
	uint32_t id;
	int r = 0;

	if (!list)
		return 0;
	rewinddir(list);
	while (r == 0 && (entry = readdir(list)))
		if (kv_segfile_parse(entry->d_name, &id) &&
		    !fsck_segment(f, id)) {
			fsck_found(f, FAULT_FILE_UNKNOWN,
				   "file %06u.seg: the index does not have it",
				   id);
			r = fsck_note(&f->unknown, id);
		}
	closedir(list);
	return r;
}

int fsck_slots(struct fsck *f)
{
	int r;

	if (!f->readable)
		return 0;
	for (size_t i = 0; i < f->n_segments; i++) {
		_cleanup_(kv_closep) int fd =
			fsck_open_segment(f, f->segments[i].id, O_RDONLY);
		struct kv_trailer trailer;

		f->segments[i].present = fd >= 0;
		if (fd >= 0 && f->segments[i].put &&
		    kv_trailer_read(fd, f->segments[i].id, &trailer) == 0)
			f->segments[i].slots = trailer.slots;
	}
	drop_strays(f);
	r = drop_duplicates(f);
	for (size_t i = 0; r == 0 && i < f->n_segments; i++)
		r = check_segment(f, &f->segments[i]);
	if (r == 0)
		r = find_unknown(f);
	return r < 0 ? fsck_error("%s: %s", f->path, strerror(-r)) : 0;
}
