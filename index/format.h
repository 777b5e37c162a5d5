/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format.h - bytes on disk: the index's records and a slot's prologue.
 *
 * All little-endian (the build refuses another machine), fixed size, packed by
 * construction, each with a checksum over all fields before the checksum.  A
 * change to these structs raises KV_FORMAT_VERSION.  man/kvfs-store.5 describes
 * them.
 */
#ifndef KV_INDEX_FORMAT_H
#define KV_INDEX_FORMAT_H

#include "common/kv.h"

#define KV_FORMAT_VERSION 3
/* The cause of -ENOTSUP, as text for messages. */
#define KV_FORMAT_REFUSED                                                    \
	"made by an older or newer kvfs: this one reads store format "       \
	"3 only, and changed nothing; mount it with the kvfs that made it, " \
	"and copy its spaces into a new store"
#define KV_PROLOGUE_VERSION 1 /* prologues' version in all store formats */
#define KV_PROLOGUE_MAGIC 0x314b434f4c42564bull /* "KVBLOCK1" */
#define KV_STORE_MAGIC 0x3145524f5453564bull	/* "KVSTORE1" */
#define KV_TRAILER_MAGIC 0x314c49415254564bull	/* "KVTRAIL1" */
/* the size of a segment file is a multiple of this */
#define KV_SEGMENT_UNIT (2u << 20)
#define KV_SEGMENT_MAX (2ull << 30)

/* A durable block, in LMDB's `slots`; key: kv_slot_id. */
struct kv_slot_record {
	uint8_t key[32];
	uint8_t parent[32];
	uint8_t digest[16];
	uint64_t generation; /* unique number of the block in a store */
	uint64_t length;     /* bytes of the block's file */
	int64_t mtime_ns;
	uint32_t space;
	uint32_t position;
	uint32_t tokens;
	uint32_t atime;	  /* last use, as last recorded; see kv_uses_record */
	uint32_t hits;	  /* number of uses, as last recorded */
	uint32_t payload; /* offset of the tensors in the block's file */
	uint8_t key_len, parent_len;
	uint8_t pinned;
	uint8_t reserved[5];
	/* XXH3-64 of all fields before, seeded with the slot id */
	uint64_t checksum;
};

/* The first page of a slot, on SSD and in DRAM, before the file's bytes. */
struct kv_prologue {
	uint64_t magic;
	uint32_t version;
	uint32_t reserved;
	uint8_t store[16];
	struct kv_slot_record
		/* atime, hits and pinned are 0 here; the checksum has seed 0 */
		record;
};

/*
 * The token ids of a durable block of a space with "token_ids", in LMDB's
 * `tokens`; key: the block's key in `slots`.  Valid only if the slot's record
 * has the same generation.
 */
struct kv_tokens_record {
	uint64_t generation;
	/* XXH3-64 of the rest of the value, seeded with the slot id XOR twice
	 * the generation */
	uint64_t checksum;
	uint32_t n;
	uint32_t extras_len; /* followed by n ids of 4 bytes and the extras */
};

/* Bits of mode besides permissions: the space is shared with other nodes; this
 * node drew the seed of the layout, and other nodes do not know the seed. */
#define KV_SPACE_SHARED 010000u
#define KV_SPACE_OWN_SEED 020000u
/* Limits and guarantees of a space, or of all spaces of a user together, in
 * memory.  Add names of new fields to KV_QUOTAS of fs/base/access.h. */
struct kv_quota {
	uint64_t quota_dram, quota_ssd; /* 0: none */
	uint64_t reserve_dram, reserve_ssd;
	uint64_t rate_put; /* most bytes to save a second; 0: no limit */
	uint64_t ttl; /* seconds after which an unused block expires; 0: none */
};

#define KV_RATE_BITS 40u
#define KV_RATE_MAX ((1ull << KV_RATE_BITS) - 1)
#define KV_TTL_MAX ((1ull << (64 - KV_RATE_BITS)) - 1)

/* A kv_quota on disk. */
struct kv_quota_record {
	uint64_t quota_dram, quota_ssd;
	uint64_t reserve_dram, reserve_ssd;
	/* rate_put, at most KV_RATE_MAX, and above these bits ttl: a store
	 * without a ttl is the same as before there were any */
	uint64_t rate_and_ttl;
};

static inline struct kv_quota_record kv_quota_pack(const struct kv_quota *quota)
{
	return (struct kv_quota_record){
		.quota_dram = quota->quota_dram,
		.quota_ssd = quota->quota_ssd,
		.reserve_dram = quota->reserve_dram,
		.reserve_ssd = quota->reserve_ssd,
		.rate_and_ttl = quota->ttl << KV_RATE_BITS | quota->rate_put,
	};
}

static inline struct kv_quota
kv_quota_unpack(const struct kv_quota_record *record)
{
	return (struct kv_quota){
		.quota_dram = record->quota_dram,
		.quota_ssd = record->quota_ssd,
		.reserve_dram = record->reserve_dram,
		.reserve_ssd = record->reserve_ssd,
		.rate_put = record->rate_and_ttl & KV_RATE_MAX,
		.ttl = record->rate_and_ttl >> KV_RATE_BITS,
	};
}

struct kv_space_record {
	uint32_t id;
	uint32_t uid, gid, mode;
	int64_t mtime_ns;
	struct kv_quota_record quota;
	uint32_t name_len, layout_len; /* name and layout follow the record */
	uint64_t checksum; /* covers all fields above, the name, the layout */
};

/* STORE/tenants: one record for each user with a quota or reserve. */
struct kv_tenant_record {
	uint32_t uid;
	uint32_t reserved;
	struct kv_quota_record quota;
	uint64_t checksum;
};

/* STORE/removed: tombstones of blocks that users removed from shared spaces.
 * An unused record is all zero. */
struct kv_removed_record {
	uint64_t number; /* number of this removal, counted from 1 */
	uint32_t space;
	uint8_t key_len;
	uint8_t reserved[11];
	uint8_t key[32]; /* the key; its bytes from key_len on are zero */
	uint64_t checksum;
};

/* A block of a snapshot, on disk and in memory. */
struct kv_snapshot_item {
	uint8_t key[32]; /* the key; its bytes from key_len on are zero */
	uint32_t position;
	uint8_t key_len;
	uint8_t reserved[3];
};

/* A snapshot, in LMDB's `snapshots`; key: @id. */
struct kv_snapshot_record {
	uint64_t id;
	uint32_t space;
	uint32_t name_len;
	uint32_t count; /* number of items, which follow the name */
	uint32_t reserved;
	int64_t mtime_ns;
	uint64_t checksum; /* covers all fields above, name and items */
};

struct kv_segfile_record {
	uint32_t id; /* number NNNNNN in the name of the file */
	uint32_t slots;
	uint64_t slot_bytes; /* prologue included */
	uint64_t checksum;
};

/*
 * The last page of a segment file, behind its segment_bytes: it lets a reader
 * without an index find the slots.  A block's bytes may imitate a prologue, so
 * prologues are read only at multiples of slot_bytes.
 */
struct kv_trailer {
	uint64_t magic;
	uint32_t version;
	uint32_t id; /* number NNNNNN in the name of the file */
	uint8_t store[16];
	uint64_t segment_bytes; /* bytes of the file without this trailer */
	uint64_t slot_bytes;
	uint32_t slots;
	uint32_t reserved;
	uint64_t checksum;
};

/* The store, in `meta` under "store" and in STORE/store.  The first two fields
 * stay in place in every format. */
struct kv_store_record {
	uint64_t magic;
	uint32_t version;
	uint32_t mounts;
	uint8_t store[16];
	uint64_t cap, segment_bytes, next_generation;
	uint32_t next_space;
	uint32_t clean; /* 1: the last mount ended cleanly; else 0 */
	uint64_t checksum;
};

/*
 * The clock of last uses at the end of a mount, in `meta` under "uses".  The
 * clock counts the seconds in which the store was mounted; it began with the
 * wall clock's.  The record is void unless the last mount ended cleanly and has
 * this number.
 */
struct kv_uses_record {
	uint32_t clock;
	uint32_t floor;	 /* blocks count as used then, or later */
	uint32_t mounts; /* number of the mount that wrote the record */
	uint32_t reserved;
	uint64_t checksum;
};

_Static_assert(sizeof(struct kv_store_record) == 72, "on disk");
_Static_assert(sizeof(struct kv_uses_record) == 24, "on disk");
_Static_assert(sizeof(struct kv_slot_record) == 144, "on disk");
_Static_assert(sizeof(struct kv_tokens_record) == 24, "on disk");
_Static_assert(sizeof(struct kv_space_record) == 80, "on disk");
_Static_assert(sizeof(struct kv_tenant_record) == 56, "on disk");
_Static_assert(sizeof(struct kv_removed_record) == 64, "on disk");
_Static_assert(sizeof(struct kv_snapshot_item) == 40, "on disk");
_Static_assert(sizeof(struct kv_snapshot_record) == 40, "on disk");
_Static_assert(sizeof(struct kv_segfile_record) == 24, "on disk");
_Static_assert(sizeof(struct kv_trailer) == 64, "on disk");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "little-endian only");

#endif
