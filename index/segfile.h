/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segfile.h - a segment file as bytes (its name, trailer and prologues), and an
 * index rebuilt from segment files.
 *
 * For rebuilding an index, sweeping free slots and checking a store.  No byte
 * read from the files is trusted.
 */
#ifndef KV_INDEX_SEGFILE_H
#define KV_INDEX_SEGFILE_H

#include <xxhash.h>

#include "index/format.h"
#include "index/index.h"

#define KV_SEGFILE_NAME 16
#define KV_SEGFILE_LINK (KV_SEGFILE_NAME + 10) /* /segments/ and the name */

void kv_segfile_name(uint32_t id, char name[KV_SEGFILE_NAME]);
/* Parse a name exactly as kv_segfile_name makes it. */
bool kv_segfile_parse(const char *name, uint32_t *ret_id);
/* For kv_dir_walk: return whether @name is that of a segment file. */
int kv_is_segfile(void *arg, int dir, const char *name);
/*
 * Open file @id of @dir, which may be a link to DIR/segments/NNNNNN.seg in a
 * directory that store=DIR has added.
 *   -ENODEV  the linked file cannot be reached
 *   -ELOOP   any other link
 */
int kv_segfile_open(int dir, uint32_t id, int flags);
/* Read the link of file @id: copy DIR to @ret_path, which has PATH_MAX bytes.
 * Return 0; -ENOENT: no file; -EINVAL: the file itself; -ELOOP: another link. */
int kv_segfile_link(int dir, uint32_t id, char *ret_path);
/* Compare structs that begin with an id. */
int kv_by_id(const void *a, const void *b);

/* Return the number of slots of @slot_bytes in a file of @segment_bytes. */
static inline uint32_t kv_segfile_slots_of(uint64_t segment_bytes,
					   uint64_t slot_bytes)
{
	return (uint32_t)(segment_bytes / slot_bytes);
}

/*
 * Read the trailer of file @id; its fields agree with each other and with the
 * file's size.  -EBADMSG: not a trailer; -EUCLEAN: the trailer of another file;
 * -ENOTSUP: a newer format; the errors of read(2).
 */
int kv_trailer_read(int fd, uint32_t id, struct kv_trailer *ret_trailer);
/* Allocate, write and sync the trailer behind @segment_bytes. */
int kv_trailer_write(int fd, uint32_t id, const uint8_t store[16],
		     uint64_t segment_bytes, uint64_t slot_bytes);

enum kv_found_state {
	KV_FOUND_NOTHING,    /* no prologue */
	KV_FOUND_ZERO,	     /* a page of zeros */
	KV_FOUND_BLOCK,	     /* a valid prologue of the store */
	KV_FOUND_UNREADABLE, /* I/O error */
};

/* The contents of the first page of a slot. */
struct kv_found {
	enum kv_found_state state;
	struct kv_slot_record record; /* valid if the state is KV_FOUND_BLOCK */
};

#define KV_SCAN_MAX 16384u /* most slots in one call */

/* Read the first pages of the slots @from .. @from + @n - 1, with several
 * threads.  Slots whose bit is set in @skip (may be NULL) are not read:
 * KV_FOUND_NOTHING. */
void kv_segfile_scan(int fd, const uint8_t store[16], uint64_t slot_bytes,
		     uint32_t from, uint32_t n, const uint64_t *skip,
		     struct kv_found *ret_found);

/* Return where the file in a slot of @slot_bytes begins. */
static inline uint64_t kv_segfile_at_slot(uint64_t slot_bytes,
					  uint32_t slot_number)
{
	return slot_number * slot_bytes + KV_PAGE;
}

/* Return whether a block with this record can be in a slot of @slot_bytes. */
bool kv_record_fits(const struct kv_slot_record *record, uint64_t slot_bytes);

/* Return a hash of the record's space and key. */
XXH128_hash_t kv_record_name(const struct kv_slot_record *record,
			     uint64_t seed);

/*
 * Read the file of a block, which begins at @at, and compare it with the digest.
 * The first @header_bytes go to @ret_header (may be NULL).
 *   -EBADMSG  the bytes differ
 *   -EIO      the file is too short; or the error of pread(2)
 *   -ENOMEM
 */
int kv_block_verify(int fd, uint64_t at, const struct kv_slot_record *record,
		    uint8_t *ret_header, size_t header_bytes);

/* Overwrite the first page of a slot with zeros. */
int kv_segfile_zero(int fd, uint64_t slot_bytes, uint32_t slot_number);

/* Overwrite with zeros every page that could be read as a prologue, and sync.
 * Call before the file gets slots of another size. */
int kv_segfile_clear(int fd, uint64_t segment_bytes, uint64_t slot_bytes);

/* ---- rebuilding an index ---- */

#define KV_DAMAGED_NAME "index.damaged"
#define KV_SPACES_MISSING                                                   \
	"spaces/ is missing, and without it a rebuilt index would have no " \
	"block; nothing was changed: bring it back, or let kvfs-fsck "      \
	"--repair write it from a whole index; an empty one drops all blocks"

#define KV_REBUILD_REFUSED                                                   \
	"segments/%06u.seg has blocks, and a trailer that is damaged or of " \
	"another file or store, so no rebuild finds them; nothing was "      \
	"changed: bring back its name or the right `store`, or move it away"

#define KV_DIR_MISSING                                                      \
	"segments/%06u.seg is a link to a directory that is missing, so a " \
	"rebuild would forget its blocks; nothing was changed: bring the "  \
	"directory back, or remove the links to it"

struct kv_rebuild {
	int store_fd;	  /* in: STORE */
	const char *path; /* input: path of the directory STORE */
	uint64_t cap;	  /* input: limit of the store if STORE/store is lost */
	bool keep;	  /* input: keep a small old index as KV_DAMAGED_NAME */
	/* Input, may be NULL: sorted records of pinned blocks.  A block stays
	 * pinned if its generation is the same. */
	struct kv_slot_record *pins;
	size_t n_pins;

	struct kv_store_info info; /* output, as are all fields below */
	uint64_t files, blocks, spaces;
	uint64_t pinned;    /* blocks of @pins that were found */
	uint64_t odd_files; /* segment files without a trailer of this store */
	/* the file of KV_REBUILD_REFUSED or KV_DIR_MISSING */
	uint32_t odd_file;
	/* prologues of unknown spaces, and invalid prologues */
	uint64_t strays;
	uint64_t duplicates; /* older blocks with the key of a newer one */
	uint64_t unreadable; /* slots that could not be read */
	uint64_t damaged;    /* blocks whose digest does not match */
	uint64_t left_out;   /* the sum of the last four */
};

/* Return whether the index with the id @store is another store's: more segment
 * files and STORE/store have other ids than segment files have @store.  False if
 * both STORE/store and a segment file have @store. */
bool kv_index_is_foreign(int store_fd, const uint8_t store[16]);

/* Return whether there is a source for a rebuild: STORE/store or segment files. */
bool kv_rebuild_possible(int store_fd);

/*
 * Rebuild STORE/index/data.mdb from the segment files' trailers and prologues,
 * STORE/spaces and STORE/store.  Every durable block is back with its key,
 * parent, position and time of sealing, and every space with its owner and
 * layout.  Pins (but @pins), use counts, times set later and snapshots are lost.
 * The new file is on disk before it is renamed, so a crash leaves a damaged
 * file, none, or a whole one.  STORE must be locked.
 * -ENOTSUP: another format, nothing was changed
 * -ENODATA: there is no source
 * -EUCLEAN: KV_REBUILD_REFUSED, nothing was changed
 * -ENOTDIR: KV_SPACES_MISSING, nothing was changed
 * -ENODEV: KV_DIR_MISSING, nothing was changed
 * -ENOSPC, -EIO, -ENOMEM
 */
int kv_rebuild(struct kv_rebuild *rebuild);

#endif
