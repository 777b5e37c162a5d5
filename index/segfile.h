/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segfile.h - a segment file as bytes: its name, its trailer, its prologues.
 *
 * For whoever must do without an index: making one anew, sweeping free slots,
 * checking a store.  Nothing read is trusted: the files may be anybody's.
 */
#ifndef KV_INDEX_SEGFILE_H
#define KV_INDEX_SEGFILE_H

#include "index/format.h"

#define KV_SEGFILE_NAME 16

void kv_segfile_name(uint32_t id, char name[KV_SEGFILE_NAME]);
/* Only the very name that kv_segfile_name makes. */
bool kv_segfile_parse(const char *name, uint32_t *ret_id);

/* Slots of this size in a file of @segment_bytes. */
static inline uint32_t kv_segfile_slots_of(uint64_t segment_bytes,
					   uint64_t slot_bytes)
{
	return (uint32_t)(segment_bytes / slot_bytes);
}

/*
 * Read the last page of the file.  -EBADMSG: no trailer of this file @id;
 * -ENOTSUP: one of a newer format; or why it could not be read.  Its numbers
 * agree with each other and with the size of the file.
 */
int kv_trailer_read(int fd, uint32_t id, struct kv_trailer *ret_trailer);
/* Make place for it behind @segment_bytes, write it, sync it. */
int kv_trailer_write(int fd, uint32_t id, const uint8_t store[16],
		     uint64_t segment_bytes, uint64_t slot_bytes);

enum kv_found_state {
	KV_FOUND_NOTHING,    /* no prologue */
	KV_FOUND_ZERO,	     /* a page of zeros */
	KV_FOUND_BLOCK,	     /* a whole prologue of the store */
	KV_FOUND_UNREADABLE, /* I/O error */
};

/* The first page of a slot. */
struct kv_found {
	enum kv_found_state state;
	struct kv_slot_record record; /* of a BLOCK */
};

#define KV_SCAN_MAX 16384u /* slots at a time */

/*
 * Read the first pages of the slots @from .. @from + @n, some at the same time;
 * slots whose bit is set in @skip (NULL: none) are left out, NOTHING.
 */
void kv_segfile_scan(int fd, const uint8_t store[16], uint64_t slot_bytes,
		     uint32_t from, uint32_t n, const uint64_t *skip,
		     struct kv_found *ret_found);

/* Where the file in a slot of @slot_bytes begins. */
static inline uint64_t kv_segfile_at_slot(uint64_t slot_bytes,
					  uint32_t slot_number)
{
	return slot_number * slot_bytes + KV_PAGE;
}

/* Could the block of this record be in a slot of this size? */
bool kv_record_fits(const struct kv_slot_record *record, uint64_t slot_bytes);

/* Make the first page of a slot zeros. */
int kv_segfile_zero(int fd, uint64_t slot_bytes, uint32_t slot_number);

/*
 * The file changes its size of slots: make everything zero that could be taken
 * for a prologue, and sync it.
 */
int kv_segfile_clear(int fd, uint64_t segment_bytes, uint64_t slot_bytes);

#endif
