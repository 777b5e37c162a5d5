/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsck.h - what the files of kvfs-fsck share: the contents of the store, and
 * its faults.
 *
 * check.c finds the faults; main.c locks, opens, repairs the faults that check.c
 * noted, and reports.
 */
#ifndef KV_TOOLS_FSCK_FSCK_H
#define KV_TOOLS_FSCK_FSCK_H

#include <stdio.h>

#include "index/index.h"
#include "index/segfile.h"

/* Kinds of faults; main.c has the message of each. */
enum fault {
	FAULT_INDEX_MISSING,
	FAULT_INDEX_DAMAGED,
	FAULT_RECORD_DAMAGED,
	FAULT_RECORD_STRAY,
	FAULT_RECORD_DUPLICATE,
	FAULT_SLOT_EMPTY,
	FAULT_SLOT_OTHER,
	FAULT_SLOT_LEAKED,
	FAULT_DATA,
	FAULT_FILE_MISSING,
	FAULT_FILE_UNKNOWN,
	FAULT_TRAILER,
	FAULT_SPACE_RECORD,
	FAULT_SEGMENT_RECORD,
	/* A repair mends all faults of the kinds above, and some of the kinds
	 * below, which it counts one by one. */
	FAULT_SPACE_FILE,
	FAULT_STORE_FILE,
	FAULT_TENANTS,
	FAULT_SLOT_UNREADABLE,
	FAULT_DIRECTORY,
	FAULT_STRANGER,
	N_FAULTS,
};

/* A record of the index, of the block in slot @slot_id. */
struct entry {
	uint64_t slot_id;
	uint64_t generation;
	XXH128_hash_t name; /* kv_record_name */
	uint64_t content; /* hash of the fields that index and prologue share */
	uint32_t space;
	bool drop; /* repair: delete this record */
};

struct segment {
	uint32_t id;
	uint64_t slot_bytes;
	uint32_t slots;
	bool present;
	bool trailer; /* the segment file ends with a valid trailer */
	bool put;     /* damaged record: repair it from the trailer */
};

struct space {
	uint32_t id;
	struct kv_space_record record;
	char *name, *layout;
	bool put; /* damaged record: repair it from the space's file, if any */
	bool write;    /* damaged file: repair it from the record */
	bool nameless; /* no file has this name */
};

/* Ids of records, slots or files that a repair deletes. */
struct ids {
	uint64_t *ids;
	size_t n;
};

struct fsck {
	const char *path;
	bool repair, rebuild, json, quiet, data;

	int store, segments_dir, spaces_dir, lock; /* -1: not open */
	char index_path[4096];
	struct kv_store_info info;
	bool known;    /* @info was read from the index */
	bool readable; /* true if the index can be read */

	struct entry *entries; /* sorted by slot id */
	size_t n_entries;
	struct segment *segments;
	size_t n_segments;
	struct space *spaces;
	size_t n_spaces;
	struct ids bad_slots;	/* slot ids of damaged records */
	struct ids bad_tokens;	/* slot ids of damaged token ids */
	struct ids stale;	/* slot ids whose prologue is to be zeroed */
	struct ids stray_files; /* unknown files in STORE/spaces */
	struct ids unknown;	/* ids of unknown segment files */
	bool write_store_file;
	struct kv_tenant_record *tenants; /* undamaged records of users */
	size_t n_tenants;

	uint64_t count[N_FAULTS], fixed[N_FAULTS];
	uint64_t snapshots;
	uint64_t bytes_accounted, bytes_held;
	uint64_t rebuilt_blocks, rebuilt_out;
	bool rebuilt;
};

/* Functions of check.c.  Return 0, or -errno if the check cannot go on. */
int fsck_index(struct fsck *f);
int fsck_sidecar(struct fsck *f);
int fsck_slots(struct fsck *f);
/* Report unknown files of STORE and its folders. */
int fsck_files(struct fsck *f);
struct segment *fsck_segment(const struct fsck *f, uint32_t id);
/* Open the segment file @id with @flags.  -EBADMSG: too short, or no file. */
int fsck_open_segment(const struct fsck *f, uint32_t id, int flags);

/* main.c: print an error.  Return -EIO. */
int fsck_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Count a fault, and print it if it is one of the first of its kind. */
void fsck_found(struct fsck *f, enum fault fault, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

#endif
