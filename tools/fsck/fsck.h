/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsck.h - what the files of kvfs-fsck share: the store as it was found, and
 * its faults.
 *
 * The order: main.c locks, opens and reports, index.c reads the index and
 * compares the files beside the index, slots.c compares each slot; repair.c
 * repairs the faults that they noted.
 */
#ifndef KV_TOOLS_FSCK_FSCK_H
#define KV_TOOLS_FSCK_FSCK_H

#include <stdio.h>

#include "index/index.h"
#include "index/segfile.h"

/* Kinds of faults; main.c has their texts. */
enum fault {
	FAULT_INDEX_MISSING,
	FAULT_INDEX_DAMAGED,
	FAULT_RECORD_DAMAGED,
	FAULT_RECORD_STRAY,
	FAULT_RECORD_DUPLICATE,
	FAULT_SLOT_EMPTY,
	FAULT_SLOT_OTHER,
	FAULT_SLOT_LEAKED,
	FAULT_SLOT_UNREADABLE,
	FAULT_DATA,
	FAULT_FILE_MISSING,
	FAULT_FILE_UNKNOWN,
	FAULT_TRAILER,
	FAULT_SPACE_RECORD,
	FAULT_SEGMENT_RECORD,
	FAULT_SPACE_FILE,
	FAULT_STORE_FILE,
	FAULT_TENANTS,
	FAULT_STRANGER,
	N_FAULTS,
};

/* A slot record of the index. */
struct entry {
	uint64_t slot_id;
	uint64_t generation;
	uint64_t name;	  /* hash of space and key, both halves */
	uint64_t content; /* hash of the fields that a prologue has as well */
	uint64_t name2;
	uint32_t space;
	bool drop; /* to be deleted */
};

struct segment {
	uint32_t id;
	uint64_t slot_bytes;
	uint32_t slots;
	bool recorded; /* the index has it */
	bool present;
	bool trailer; /* the file has the right one */
	bool put;     /* the record is damaged: write one from the trailer */
};

struct space {
	uint32_t id;
	struct kv_space_record record;
	char *name, *layout;
	bool put;   /* the record is damaged: write one from the file, if any */
	bool write; /* write the file from the record */
};

/* Ids that a repair deletes or removes. */
struct ids {
	uint64_t *ids;
	size_t n;
};

struct fsck {
	const char *path;
	bool repair, rebuild, json, quiet, data;

	int store, segments_dir, spaces_dir, lock; /* -1: none */
	char index_path[4096];
	struct kv_store_info info;
	bool known;    /* @info is valid */
	bool readable; /* the index can be read */

	struct entry *entries; /* by slot id */
	size_t n_entries;
	struct segment *segments;
	size_t n_segments;
	struct space *spaces;
	size_t n_spaces;
	struct ids bad_slots;	/* damaged records, deleted by slot id */
	struct ids bad_tokens;	/* the same, of token ids */
	struct ids stale;	/* slots whose prologue is to be zeroed */
	struct ids stray_files; /* in STORE/spaces */
	struct ids unknown;	/* segment files */
	bool write_store_file;
	struct kv_tenant_record *tenants; /* the undamaged ones */
	size_t n_tenants;

	uint64_t count[N_FAULTS], fixed[N_FAULTS];
	uint64_t snapshots;
	uint64_t bytes_accounted, bytes_held;
	uint64_t rebuilt_blocks, rebuilt_out;
	bool rebuilt;
};

/* index.c: -errno only if the check cannot go on. */
int fsck_index(struct fsck *f);
struct space *fsck_space(const struct fsck *f, uint32_t id);
struct segment *fsck_segment(const struct fsck *f, uint32_t id);
uint64_t fsck_content(const struct kv_slot_record *record);
int fsck_sidecar(struct fsck *f);
/* Report unknown files of STORE, its index, segments and spaces. */
void fsck_strangers(struct fsck *f);
int fsck_note(struct ids *ids, uint64_t id); /* -ENOMEM */
/* The segment file @id, open with @flags.  -EBADMSG: too short, or no file. */
int fsck_open_segment(const struct fsck *f, uint32_t id, int flags);

/* slots.c */
int fsck_slots(struct fsck *f);

/* repair.c: 0, or -errno after the message was printed */
int fsck_repair(struct fsck *f);
int fsck_rebuild(struct fsck *f);

/* main.c: print an error; returns -EIO. */
int fsck_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Count a fault, and print the first ones of a kind. */
void fsck_found(struct fsck *f, enum fault fault, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* Draw a bar on a terminal's stderr, after the first second. */
void fsck_progress(const char *what, uint64_t done, uint64_t of);

#endif
