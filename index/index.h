/* SPDX-License-Identifier: Apache-2.0 */
/*
 * index.h - LMDB: what is where, and what survives.
 *
 * One environment in STORE/index, one process.  The cache reads everything
 * once at mount and from then on only writes, in batches; kv_index_get is for
 * the rare question that the in-memory table cannot answer.
 *
 * Threads: one writer at a time (a batch belongs to the thread that began it);
 * kv_index_get may be called from any thread at any time.
 * Errors everywhere: -ENOSPC (disk or map full: deletions still work, in
 * batches of up to 300 where they are scattered), -EIO, -EBADMSG (damaged),
 * -ENOMEM.
 */
#ifndef KV_INDEX_INDEX_H
#define KV_INDEX_INDEX_H

#include "common/token_ids.h"
#include "index/format.h"

struct kv_index;
struct kv_txn;

/* The store, as `meta` has it. */
struct kv_store_info {
	uint8_t store[16];	  /* random, made at creation */
	uint64_t cap;		  /* ssd=, bytes below STORE */
	uint64_t segment_bytes;	  /* of a segment file */
	uint64_t next_generation; /* none above it was ever used */
	uint32_t next_space;
	uint32_t version; /* of the format; 0 is written as this build's */
	uint32_t mounts;  /* times mounted for writing */
	bool clean;	  /* the last mount ended in order */
};

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

/*
 * Before the index of a locked store is opened: remove a lock file that LMDB
 * would trust, or cannot use.  Any other stays, because a filesystem that is
 * full may refuse to make a new one.
 */
void kv_index_lock_file_check(int store_fd);

/*
 * Have the disk keep room for the whole file, and for some batches more, so that
 * a full disk is no reason not to mount.  Whether it does is not told: it may be
 * full already, or of a kind that cannot.
 */
void kv_index_keep_room(struct kv_index *index);

/* How large the map is in a store with this cap; the file is never larger. */
uint64_t kv_index_map_bytes(uint64_t cap);

/*
 * Whether the index takes what the @n tokens of a block are, with so many bytes
 * of extras: only what is small beside the block's file of @length bytes.  What
 * bounds the blocks thus bounds it, too.  Who asks for what the index has not
 * finds it in the block's header.
 */
bool kv_index_takes_token_ids(uint32_t n, uint32_t extras_len, uint64_t length);

/* Bytes of an empty map that puts may take. */
uint64_t kv_index_puttable(uint64_t map_bytes);

/* The bytes that a space, and a snapshot of @n blocks, take of it. */
uint64_t kv_index_space_bytes(size_t name_len, size_t layout_len);
uint64_t kv_index_snapshot_bytes(size_t n);

/*
 * So many slots' records have room in it, whatever was deleted before; bytes
 * that puts may still take, as of the beginning of the last batch; and what one
 * put may take, in a row of them and at worst.
 */
uint64_t kv_index_records_max(uint64_t cap);
uint64_t kv_index_room(const struct kv_index *index);
#define KV_PUT_NEAR (2 * (sizeof(struct kv_slot_record) + 16))
#define KV_PUT_FAR (KV_PUT_NEAR + 3 * KV_PAGE)

/*
 * Read everything, in key order; a callback that returns non-zero ends the
 * walk with that value.  Records with a bad checksum are passed over and
 * counted in @ret_damaged.  Afterwards LMDB's pages are dropped from memory.
 * Spaces come first, snapshots last.  @name, @layout ("" if the space has
 * none), @items and @record are valid during the callback only.
 */
enum kv_index_part {
	KV_PART_SPACES,
	KV_PART_SEGMENTS,
	KV_PART_SLOTS,
	KV_PART_SNAPSHOTS,
	KV_PART_TOKENS,
};
struct kv_index_visitor {
	void *arg;
	int (*space)(void *arg, const struct kv_space_record *record,
		     const char *name, const char *layout);
	int (*segment)(void *arg, const struct kv_segfile_record *record);
	int (*slot)(void *arg, uint64_t slot_id,
		    const struct kv_slot_record *record);
	int (*snapshot)(void *arg, const struct kv_snapshot_record *record,
			const char *name, const struct kv_snapshot_item *items);
	/* may be NULL, and mostly is: all of them are read for it */
	int (*tokens)(void *arg, uint64_t slot_id, uint64_t generation,
		      const struct kv_token_ids *ids);
	/* may be NULL: a record that was passed over */
	void (*damaged)(void *arg, enum kv_index_part part, uint64_t id);
};
int kv_index_walk(struct kv_index *index,
		  const struct kv_index_visitor *visitor,
		  uint64_t *ret_damaged);

/* A slot's id orders the records as the SSD does. */
static inline uint64_t kv_slot_id(uint32_t segment, uint32_t slot)
{
	return (uint64_t)segment << 32 | slot;
}

/* The record of one slot: -ENOENT, -EBADMSG. */
int kv_index_get(struct kv_index *index, uint64_t slot_id,
		 struct kv_slot_record *ret_record);

/*
 * The same, and what its tokens are, in *@ret_ids (caller frees): NULL if that
 * was not put with this writing of the slot, or is damaged.
 */
int kv_index_get_token_ids(struct kv_index *index, uint64_t slot_id,
			   struct kv_slot_record *ret_record,
			   struct kv_token_ids **ret_ids);

/*
 * A transaction.  Nothing is durable before kv_txn_commit returns 0; then all
 * of it is.  Each of the calls may fail, and then the batch can only be
 * aborted.  commit and abort free the batch; abort takes NULL.
 * Checksums are filled in here, not by the caller.
 */
int kv_txn_begin(struct kv_index *index, struct kv_txn **ret_txn);
int kv_txn_put_slot(struct kv_txn *batch, uint64_t slot_id,
		    const struct kv_slot_record *record);
int kv_txn_delete_slot(struct kv_txn *batch,
		       uint64_t slot_id); /* absent is no error */
/* Whether puts may still take so many bytes of the map; and what the tokens of a
 * block are, with so many @bytes beside them. */
bool kv_txn_has_room(const struct kv_txn *batch, uint64_t bytes);
bool kv_txn_has_room_for_ids(const struct kv_txn *batch, uint32_t n,
			     uint32_t extras_len, uint64_t bytes);
/* What the tokens are of the block whose record, with that @generation, the
 * same batch puts; deleted with it, by who knows that there may be some. */
int kv_txn_put_token_ids(struct kv_txn *batch, uint64_t slot_id,
			 uint64_t generation, const struct kv_token_ids *ids);
int kv_txn_delete_token_ids(struct kv_txn *batch, uint64_t slot_id);
int kv_txn_put_space(struct kv_txn *batch, const struct kv_space_record *record,
		     const char *name, const char *layout);
int kv_txn_delete_space(struct kv_txn *batch, uint32_t id);
int kv_txn_put_snapshot(struct kv_txn *batch,
			const struct kv_snapshot_record *record,
			const char *name, const struct kv_snapshot_item *items);
int kv_txn_delete_snapshot(struct kv_txn *batch, uint64_t id);
int kv_txn_put_segfile(struct kv_txn *batch,
		       const struct kv_segfile_record *record);
int kv_txn_delete_segfile(struct kv_txn *batch, uint32_t id);
int kv_txn_put_info(struct kv_txn *batch, const struct kv_store_info *info);
int kv_txn_commit(struct kv_txn *batch);
void kv_txn_abort(struct kv_txn *batch);

/* Bytes of the environment's file. */
uint64_t kv_index_bytes(struct kv_index *index);

/*
 * Write a compacted copy beside the index, sync it and put it in its place, if
 * that would at least halve the file, or if the file is larger than @map_bytes
 * and would be smaller.  Only while nobody else uses @index
 * (at mount).  1 done, 0 not worth it.
 */
int kv_index_compact(struct kv_index **index, const char *path,
		     uint64_t map_bytes);

/* Checksum and check a prologue; -EBADMSG if it is not one of this store. */
void kv_prologue_seal(struct kv_prologue *prologue, const uint8_t store[16]);
int kv_prologue_check(const struct kv_prologue *prologue,
		      const uint8_t store[16]);

#endif
