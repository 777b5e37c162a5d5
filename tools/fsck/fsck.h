/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fsck.h - what the files of kvfs-fsck share: the store as it was found, and
 * what is wrong with it.
 *
 * The order: main.c locks and opens, index.c reads the index and compares what
 * lies beside it, slots.c each slot; repair.c changes what they noted.
 */
#ifndef KV_TOOLS_FSCK_FSCK_H
#define KV_TOOLS_FSCK_FSCK_H

#include <stdio.h>

#include "index/index.h"
#include "index/segfile.h"

/* Faults that may be found; report.c has the words. */
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
	uint64_t content; /* hash of what a prologue says, too */
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
	bool trailer; /* it has the right one */
	bool put;     /* its record is damaged; what its trailer says */
};

struct space {
	uint32_t id;
	struct kv_space_record record;
	char *name, *layout;
	bool put; /* its record is damaged; what its file says, if it has one */
	bool write; /* its file is to be written */
};

struct fsck {
	/* what was asked for */
	const char *path;
	bool repair, rebuild, json, quiet, data;

	int store, segments_dir, spaces_dir, lock; /* -1: none */
	char index_path[4096];
	struct kv_store_info info;
	bool known;    /* info is */
	bool readable; /* the index can be read */

	struct entry *entries; /* by slot id */
	size_t n_entries;
	struct segment *segments;
	size_t n_segments;
	struct space *spaces;
	size_t n_spaces;
	uint64_t *bad_slots; /* records to be deleted by their key alone */
	size_t n_bad_slots;
	uint64_t *bad_tokens; /* the same, of token ids */
	size_t n_bad_tokens;
	uint64_t *stale; /* slots whose prologue is to be zeroed */
	size_t n_stale;
	uint32_t *stray_files; /* in STORE/spaces */
	size_t n_stray_files;
	uint32_t *unknown; /* segment files */
	size_t n_unknown;
	bool write_store_file;
	struct kv_tenant_record *tenants; /* those that are whole */
	size_t n_tenants;

	uint64_t count[N_FAULTS], fixed[N_FAULTS];
	uint64_t snapshots;
	uint64_t bytes_accounted, bytes_held;
	uint64_t rebuilt_blocks, rebuilt_out;
	bool rebuilt;
};

/* index.c: -errno only if nothing more can be done. */
int fsck_index(struct fsck *f);
struct space *fsck_space(const struct fsck *f, uint32_t id);
struct segment *fsck_segment(const struct fsck *f, uint32_t id);
uint64_t fsck_content(const struct kv_slot_record *record);
int fsck_sidecar(struct fsck *f);
/* Files of STORE, its index and its segments that are not known; before the
 * rest. */
int fsck_strangers(struct fsck *f);

/* slots.c */
int fsck_slots(struct fsck *f);

/* repair.c: 0, or the message was printed */
int fsck_repair(struct fsck *f);
int fsck_rebuild(struct fsck *f);

/* report.c */
int fsck_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
void fsck_found(struct fsck *f, enum fault fault, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The last lines, or all of the JSON; returns the exit status. */
int fsck_report(struct fsck *f);

/* A bar on a terminal's stderr, once it takes more than a second. */
void fsck_progress(const char *what, uint64_t done, uint64_t of);

/* index.c: room for one more in an array that is full at powers of two;
 * -ENOMEM. */
int fsck_more(void *array, size_t n, size_t size);

#endif
