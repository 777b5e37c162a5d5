/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.h - the index: durable records of blocks, spaces, segment files and
 * snapshots in LMDB.
 *
 * One environment in STORE/index, used by one process.  The cache reads all
 * records at mount and then only writes, in batches; kv_index_get reads the
 * fields that the in-memory table does not keep.
 *
 * Threads: one writer at a time (a batch belongs to the thread that began it);
 * any thread may call kv_index_get at any time.
 * Every call can return -ENOSPC (disk or map full: deletions still work, in
 * batches of up to 300 if they are scattered), -EIO, -EBADMSG (damaged), and
 * -ENOMEM.
 */
#ifndef KV_INDEX_INDEX_H
#define KV_INDEX_INDEX_H

#include "common/block.h"
#include "index/format.h"

#define KV_WHY_MAX 160

struct kv_index;
struct kv_txn;

/* The store record of `meta`. */
struct kv_store_info {
	uint8_t store[16];	  /* random, made at creation */
	uint64_t cap;		  /* ssd=, bytes below STORE */
	uint64_t segment_bytes;	  /* bytes of each segment file */
	uint64_t next_generation; /* above all generations that blocks had */
	uint32_t next_space;
	uint32_t version; /* KV_FORMAT_VERSION; a writer may pass 0 for it */
	uint32_t mounts;  /* times mounted for writing */
	bool clean;	  /* the last mount ended without a crash */
	/* The clock of last uses at the end of the last mount, and the time
	 * at which blocks count as used at least; 0, 0: unknown.  Stored only
	 * if @clean. */
	uint32_t clock, floor;
};

/*
 * Check data.mdb in the directory @path in a child process, before LMDB opens
 * the file here: both meta pages, each page of each database, the order of
 * keys, the free list, and that no page is used twice.  The meta page may claim
 * up to @map_bytes more than the file has.  Reads only; memory: one bit for
 * each page.
 * 0: sound
 * -EBADMSG: damaged, or the child crashed or hung; @why names the place
 * -ENOENT: no such file, or an empty one
 * other errors of open(2), read(2), pipe(2) and fork(2)
 */
int kv_index_check(const char *path, uint64_t map_bytes, char why[KV_WHY_MAX]);

/*
 * Open the index in the directory @path (made by the caller), creating it with
 * @fresh if it is empty.  The map is @map_bytes, fixed.  @ret_info tells what
 * the store holds (@fresh, if just made).
 * -ENOTSUP: another format, left untouched.  -EBADMSG: not an index.
 */
int kv_index_open(const char *path, uint64_t map_bytes, bool read_only,
		  const struct kv_store_info *fresh,
		  struct kv_store_info *ret_info, struct kv_index **ret_index);
void kv_index_close(struct kv_index *index); /* takes NULL */

/* Call before the index of a locked store is opened: remove a lock file that
 * LMDB would trust, or cannot use.  Keep any other, because a full filesystem
 * may refuse to make a new one. */
void kv_index_lock_file_check(int store_fd);

/* Make the filesystem reserve room for the whole index and some batches more,
 * so that a mount succeeds on a full disk.  No error is returned: the disk may
 * be full already, or the filesystem may not support this. */
void kv_index_keep_room(struct kv_index *index);

/* Return the bytes of the map in a store with this cap; the file is never
 * larger. */
uint64_t kv_index_map_bytes(uint64_t cap);

/*
 * Return whether the index stores the token ids of a block: @n ids with
 * @extras_len bytes of extras must be small beside the block's file of @length
 * bytes, so that the number of blocks bounds their total size.  Token ids that
 * the index does not store are in the block's header.
 */
bool kv_index_takes_token_ids(uint32_t n, uint32_t extras_len, uint64_t length);

/* Return how many bytes may be put into an empty map of @map_bytes. */
uint64_t kv_index_puttable(uint64_t map_bytes);

/* Return the bytes of the map that a space or a snapshot of @n blocks takes. */
uint64_t kv_index_space_bytes(size_t name_len, size_t layout_len);
uint64_t kv_index_snapshot_bytes(size_t n);

/* Return how many slot records always fit into the map of a store of @cap. */
uint64_t kv_index_records_max(uint64_t cap);
/* Return how many bytes could be put when the last batch began. */
uint64_t kv_index_room(const struct kv_index *index);
/* Most bytes of the map for a record next to the one put last, or elsewhere. */
#define KV_PUT_NEAR (2 * (sizeof(struct kv_slot_record) + 16))
#define KV_PUT_FAR (KV_PUT_NEAR + 3 * KV_PAGE)

/* The databases of records, in the order of a walk. */
enum kv_index_part {
	KV_PART_SPACES,
	KV_PART_SEGMENTS,
	KV_PART_SLOTS,
	KV_PART_SNAPSHOTS,
	KV_PART_TOKENS,
	KV_PARTS
};

/*
 * Read all records, in key order; a callback that returns non-zero ends the
 * walk with that value.  Records with a bad checksum are skipped and counted in
 * @ret_damaged.  Afterwards LMDB's pages are dropped from memory.
 * Spaces come first, token ids last.  Any callback may be NULL: then its records
 * are not read.  @name, @layout ("" if the space has
 * none), @items and @record are valid during the callback only.
 */
struct kv_index_visitor {
	void *arg;
	int (*space)(void *arg, const struct kv_space_record *record,
		     const char *name, const char *layout);
	int (*segment)(void *arg, const struct kv_segfile_record *record);
	int (*slot)(void *arg, uint64_t slot_id,
		    const struct kv_slot_record *record);
	int (*snapshot)(void *arg, const struct kv_snapshot_record *record,
			const char *name, const struct kv_snapshot_item *items);
	int (*tokens)(void *arg, uint64_t slot_id, uint64_t generation,
		      const struct kv_token_ids *ids);
	/* called for each skipped record */
	void (*damaged)(void *arg, enum kv_index_part part, uint64_t id);
	bool frame; /* also read spaces and segment files without a callback */
};
int kv_index_walk(struct kv_index *index,
		  const struct kv_index_visitor *visitor,
		  uint64_t *ret_damaged);

/* Return a slot's id: ids ascend with the slot's place on the SSD. */
static inline uint64_t kv_slot_id(uint32_t segment, uint32_t slot)
{
	return (uint64_t)segment << 32 | slot;
}

/*
 * Read the record of one slot, and unless @ret_ids is NULL the block's token ids
 * (caller frees *@ret_ids); *@ret_ids is NULL if the index does not store ids
 * for this generation, or they are damaged.
 * -ENOENT, -EBADMSG
 */
int kv_index_get(struct kv_index *index, uint64_t slot_id,
		 struct kv_slot_record *ret_record,
		 struct kv_token_ids **ret_ids);

/*
 * Read records in the order of their ids, from *@id on: store those of blocks of @space, at
 * most @max, in @ret_records.  *@id becomes the id to go on with; UINT64_MAX: the end.
 * Looks at a few thousand records at most.  Returns the number of records, or -errno.
 */
long kv_index_slots(struct kv_index *index, uint64_t *id, uint32_t space,
		    struct kv_slot_record *ret_records, size_t max);

/*
 * A batch is one transaction: kv_txn_commit makes all of it durable or nothing.
 * After a call has failed, kv_txn_commit aborts the batch and returns the first
 * error.  commit and abort free the batch; abort takes NULL.  These calls compute the checksums.
 */
int kv_txn_begin(struct kv_index *index, struct kv_txn **ret_txn);
int kv_txn_put_slot(struct kv_txn *batch, uint64_t slot_id,
		    const struct kv_slot_record *record);
/* Delete a record; an absent one is no error. */
int kv_txn_delete(struct kv_txn *batch, enum kv_index_part part, uint64_t id);
/* Return whether the map has room for records of @bytes; _for_ids: for the
 * token ids of a block and then records of @bytes. */
bool kv_txn_has_room(const struct kv_txn *batch, uint64_t bytes);
bool kv_txn_has_room_for_ids(const struct kv_txn *batch, uint32_t n,
			     uint32_t extras_len, uint64_t bytes);
/* Store the token ids of the block whose record, of the same @generation, this
 * batch puts.  The caller also deletes them with that record. */
int kv_txn_put_token_ids(struct kv_txn *batch, uint64_t slot_id,
			 uint64_t generation, const struct kv_token_ids *ids);
int kv_txn_put_space(struct kv_txn *batch, const struct kv_space_record *record,
		     const char *name, const char *layout);
int kv_txn_put_snapshot(struct kv_txn *batch,
			const struct kv_snapshot_record *record,
			const char *name, const struct kv_snapshot_item *items);
int kv_txn_put_segfile(struct kv_txn *batch,
		       const struct kv_segfile_record *record);
int kv_txn_put_info(struct kv_txn *batch, const struct kv_store_info *info);
int kv_txn_commit(struct kv_txn *batch);
void kv_txn_abort(struct kv_txn *batch);

/* Return the bytes of the index's file. */
uint64_t kv_index_bytes(struct kv_index *index);

/*
 * Replace the index by a compacted copy if that halves the file, or if the file
 * is larger than @map_bytes and would shrink.  Only while no other thread uses
 * *@index (at mount).  If the copy cannot be opened, *@index is NULL.
 * 1: replaced
 * 0: a copy would save too little
 */
int kv_index_compact(struct kv_index **index, const char *path,
		     uint64_t map_bytes);

/* Seal a prologue; check a prologue: -EBADMSG if it is not of this store. */
void kv_prologue_seal(struct kv_prologue *prologue, const uint8_t store[16]);
int kv_prologue_check(const struct kv_prologue *prologue,
		      const uint8_t store[16]);

#endif
