/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h - messages on the control socket.
 *
 * SOCK_SEQPACKET, one message a packet, at most WIRE_MAX bytes, fixed structs
 * in the machine's own byte order (both ends are on one machine), no pointers.
 * A message is a wire_header and then @count items of its type's struct, and
 * its length is exactly that; anything else closes the connection.
 *
 * The client sends requests; each gets exactly one reply of the same type and
 * tag, with WIRE_REPLY set in @flags; one with WIRE_PARTS may get earlier replies
 * with the status WIRE_MORE.  Replies come in any order.  The daemon
 * also sends WIRE_SEGMENT and WIRE_RETIRE by itself (tag 0): a WIRE_SEGMENT
 * always goes out before the reply that names its segment for the first time.
 *
 * @status is 0 or -errno for the request as a whole; per-item results are in
 * the items of the reply, in the order asked.  A space that is unknown or not
 * permitted makes each of its keys absent.
 */
#ifndef KV_COMMON_WIRE_H
#define KV_COMMON_WIRE_H

#include <stdint.h>

/*
 * Both ends speak the versions from WIRE_OLDEST to WIRE_VERSION.  A HELLO names
 * the newest and the oldest version of its sender (@oldest 0: the newest only).
 * The daemon replies with the newest version that both speak, or, with
 * -EPROTONOSUPPORT, with its own newest and oldest version, and closes the
 * connection.  Versions before 5 belong to releases before 0.2 and are refused.
 */
#define WIRE_VERSION 5
#define WIRE_OLDEST 5
#define WIRE_MAX 65536
#define WIRE_BATCH 512 /* most keys or other items in one message */

/* Limits of a connection; requests or blocks beyond a limit get -ENOLCK. */
#define WIRE_PENDING_MAX 4096  /* most requests without a reply */
#define WIRE_LEASED_MAX 65536  /* most blocks leased or being acquired */
#define WIRE_RESERVED_MAX 4096 /* blocks reserved */

enum wire_type {
	/* First message of a connection.  wire_hello; reply: wire_hello. */
	WIRE_HELLO = 1,
	/* Open a space.  wire_space + text; reply: wire_space + text. */
	WIRE_SPACE,
	/* Report the states of keys.  wire_key[]; reply: wire_state[]. */
	WIRE_PROBE,
	/* Lease blocks.  wire_key[]; reply: wire_place[]. */
	WIRE_ACQUIRE,
	/* Release the leases of the acquire with the tag @tag, or of the save
	 * that sealed blocks reserved with WIRE_HOLD.  No items, no reply. */
	WIRE_RELEASE,
	/* Settle the acquire, flush or prefetch with the tag @tag at once.  No
	 * items, no reply. */
	WIRE_CANCEL,
	/* Set the staging.  wire_staging and a descriptor; reply: no items. */
	WIRE_STAGING,
	/* Reserve room for blocks.  wire_key[]; reply: wire_status[]. */
	WIRE_RESERVE,
	/* Save reserved blocks, or with WIRE_FRESH others.  wire_save[]; reply:
	 * wire_status[]. */
	WIRE_SAVE,
	/* Drop reservations made by the RESERVE with the tag @arg, 0: by any.
	 * wire_key[]; reply: wire_status[]. */
	WIRE_DROP,
	/* Wait until blocks are durable.  wire_key[], none: the whole space;
	 * reply: wire_status[], WIRE_EVICTED: durable, then evicted. */
	WIRE_FLUSH,
	/* Remove blocks.  wire_key[]; reply: wire_status[]. */
	WIRE_EVICT,
	/* Pin (@arg 1) or unpin (0) blocks: wire_key[]; reply: wire_status[]. */
	WIRE_PIN,
	/* Drop every block of the space: no items; reply: no items. */
	WIRE_CLEAR,
	/* Report a text: @arg is a wire_text.  No items; reply: text of @count
	 * bytes. */
	WIRE_STATS,
	/* The daemon sends a segment: wire_segment and a descriptor. */
	WIRE_SEGMENT,
	/* The daemon asks the client to unmap a segment: wire_segment. */
	WIRE_RETIRE,
	/* The client has unmapped a segment: wire_segment; no reply. */
	WIRE_UNMAPPED,
	/* Read blocks to DRAM: wire_key[]; reply at the end: wire_status[]. */
	WIRE_PREFETCH,
	/* Evict these blocks before others: their conversation is over.
	 * wire_key[]; no reply. */
	WIRE_ENDED,
	/* Add blocks to the set with the id @arg, for a snapshot.  wire_pick[];
	 * reply: no items. */
	WIRE_PICK,
	/* Make a snapshot of a set: wire_snapshot + name; reply: the same. */
	WIRE_SNAPSHOT,
	/* Drop the snapshot whose name is the text; reply: no items. */
	WIRE_SNAPSHOT_DROP,
	/* List the blocks of a snapshot.  wire_snapshot + name; reply:
	 * wire_snapshot + wire_pick[]. */
	WIRE_SNAPSHOT_READ,
	/* List the names of snapshots.  No items; @arg: see wire_snapshot;
	 * reply: wire_snapshot + text. */
	WIRE_SNAPSHOT_LIST,
	/* List keys of the space.  wire_list; reply: wire_list + wire_key[], or
	 * with WIRE_DETAILS @count bytes of wire_list + wire_entry[]. */
	WIRE_LIST,
	/* Remove the space, which must be empty (-ENOTEMPTY): no items; reply: no
	 * items. */
	WIRE_SPACE_REMOVE,
	/* Lend memory: wire_pool + wire_stride[], a file; reply: no items. */
	WIRE_POOL,
	/* Take the memory of pool @arg back.  No items, no reply. */
	WIRE_POOL_CLOSE,
	/* Save lent pages: wire_save_pages + text; reply: wire_status[]. */
	WIRE_SAVE_PAGES,
	/* Read token ids.  wire_key[]; reply: @count bytes of wire_tokens, for
	 * one or more of the first keys. */
	WIRE_TOKEN_IDS,
	/* The client's device cannot register read-only memory, and needs open
	 * segments.  No items, no reply. */
	WIRE_REGISTERS,
	/* Remove blocks here and from the remote tier, within @arg nanoseconds
	 * (<= WIRE_FORGET_NS).  wire_key[], none: all; reply: wire_forgot. */
	WIRE_FORGET,
	/* Set limits of the space, or without a space of the user @arg, all or none:
	 * the text NAME=VALUE, several with blanks between them; reply: no items. */
	WIRE_LIMIT,
	/* Report why keys are absent: wire_key[], at most WIRE_WHY_BATCH; none:
	 * list look-ups from place @arg of the log on.  Reply: wire_miss[]. */
	WIRE_WHY,
	/* Read changes of the space, waiting for @arg nanoseconds at most.  wire_list; reply:
	 * @count bytes of wire_list + wire_entry[]. */
	WIRE_CHANGES,
	WIRE_TYPE_END,
};

/* Flags of wire_header. */
#define WIRE_REPLY 1u
#define WIRE_WAIT_SAVING 2u /* WIRE_ACQUIRE: wait for saves of these keys */
#define WIRE_AGAIN 256u	    /* WIRE_ACQUIRE: not a new use, counts no hit */
#define WIRE_RESIDENT 32u   /* WIRE_ACQUIRE: -EAGAIN for blocks not in DRAM */
/* WIRE_ACQUIRE: reply also with the first blocks, while others are being read.  The
 * status of such a reply is WIRE_MORE, and that of the blocks to come is -EINPROGRESS. */
#define WIRE_PARTS 512u
#define WIRE_MORE 1
/* WIRE_PREFETCH: only if the first WIRE_AHEAD_MIN blocks are in DRAM; else -EAGAIN for
 * all blocks. */
#define WIRE_AHEAD 64u
#define WIRE_AHEAD_MIN 4u
/* WIRE_SAVE: reserve the blocks too, with the flags and statuses of WIRE_RESERVE.  A
 * block with a reservation is -EALREADY. */
#define WIRE_FRESH 16u
/* Flags of WIRE_RESERVE, WIRE_SAVE_PAGES and WIRE_FRESH, for all of their blocks. */
#define WIRE_MUST 4u /* do not evict the block before it is durable */
#define WIRE_HOLD 8u /* lease the block when it seals; -ENOSPC: no room */
/*
 * WIRE_SAVE, WIRE_SAVE_PAGES: each item has its block's token ids.  Spaces with
 * "token_ids" require the flag, other spaces refuse it (-EINVAL, all items).
 * The ids are in the staging memfd in the form of common/block.h: behind
 * the item's bytes, at the next multiple of 8, or, for lent pages, at
 * wire_save.offset.  -EINVAL: their number differs from the block's tokens, or
 * they lie outside the staging.
 */
#define WIRE_WITH_IDS 128u

#define WIRE_DETAILS 1024u /* WIRE_LIST */
#define WIRE_FROM 2048u	   /* WIRE_ACQUIRE: reply with wire_place.from */

struct wire_header {
	uint16_t type;
	uint16_t flags;
	uint32_t count; /* number of items; bytes, if the message is text */
	uint64_t tag; /* chosen by the client; unique among its open requests */
	uint32_t space; /* id of a space, from WIRE_SPACE; 0: none */
	int32_t status;
	uint64_t arg; /* ACQUIRE, FLUSH, PREFETCH: most nanoseconds to wait, 0:
			 for ever; PROBE: 1: earlier keys of the same look-up
			 were absent */
};

struct wire_hello {
	uint32_t version;
	uint32_t oldest;
	uint64_t epoch;	   /* in a reply: number of this run of the daemon */
	uint8_t store[16]; /* in a reply: id of the store */
};

#define WIRE_SPACE_CREATE 1u
#define WIRE_SPACE_SHARED 2u /* also accept a space of another user */

/*
 * Followed by header.count bytes of text: the name, a NUL, then the layout's JSON (may be
 * empty).  Reply: the same, with the canonical layout.
 *   -ENOENT  there is no such space, and no WIRE_SPACE_CREATE
 *   -EACCES  no permission; or the space is another user's, not an operator's, and no
 *            WIRE_SPACE_SHARED
 *   -EEXIST  the space has another layout
 *   -EINVAL  bad name or layout
 *   -EROFS
 */
struct wire_space {
	uint32_t id; /* reply */
	uint32_t flags;
	uint32_t mode;	   /* permission bits: of a new space, or in a reply */
	uint32_t writable; /* in a reply: 1 if this client may save and evict */
	uint32_t uid, gid; /* in a reply: owner of the space */
	uint64_t payload;  /* reply: bytes of a block's tensors; 0: no layout */
	uint64_t header;   /* in a reply: bytes before a block's tensors */
};

struct wire_key {
	uint8_t key[32];
	uint32_t len; /* bytes of the key: 16 or 32 */
	uint32_t reserved;
};

/* The states of keys; values as in kvfs.h. */
enum wire_state_value {
	WIRE_ABSENT,
	WIRE_SAVING,
	WIRE_REMOTE,
	WIRE_SSD,
	WIRE_DRAM,
};

struct wire_state {
	uint8_t state;
};

struct wire_status {
	int32_t status;
};

#define WIRE_EVICTED 1

/*
 * The place of an acquired block.  @from: with WIRE_FROM its state before, as in wire_state;
 * WIRE_ABSENT with WIRE_AGAIN.  @status 0, or -ENOENT (absent), -ETIMEDOUT, -ECANCELED,
 * -ENOSPC (no slot), -ENOLCK (too many leased), -EIO, -EBADMSG (damaged: now a miss).
 */
struct wire_place {
	int32_t status;
	uint32_t segment;
	uint64_t offset;  /* offset in the segment of the block's file */
	uint64_t length;  /* length of the block's file */
	uint32_t payload; /* offset of the tensors in the file */
	uint32_t from;
};

/*
 * Replace the client's staging memory by a file in memory (memfd).  After an error the
 * client has no staging memory.
 *   -EINVAL       no bytes
 *   -EMEDIUMTYPE  not a file in memory
 *   -EACCES, -ENOLCK, -EMFILE, -ENOMEM
 */
struct wire_staging {
	uint64_t bytes;
};

/*
 * A reserved block: its tensors are at @offset of the staging memfd, which must stay
 * unchanged until the reply.  A SAVE consumes the reservation.
 *
 * Status of a RESERVE:
 *   0          reserved
 *   -EEXIST    present
 *   -EALREADY  being saved
 *   -EBUSY     memory is being made, or this client's save from before a CLEAR has not
 *              ended: ask again
 *   -ENOLCK    too many
 *   -EINVAL    untyped space, or bad key
 *   -ENOSPC, -EACCES, -EROFS, -EFBIG
 *
 * Status of a SAVE:
 *   0          sealed, and leased under this message's tag if reserved with WIRE_HOLD
 *   -EEXIST    another client saved it
 *   -ESTALE    the space was cleared
 *   -ENOENT    not reserved
 *   -EINVAL    also: more tokens than the layout has
 *   -EFAULT    the staging cannot be read
 */
struct wire_save {
	uint8_t key[32];
	uint8_t parent[32];
	uint32_t len; /* bytes of the key; parent_len 0: parent unknown */
	uint32_t parent_len;
	uint32_t position;
	uint32_t tokens;
	uint64_t offset;
};

/*
 * Memory from which blocks are saved: @bytes of the file behind the descriptor, from
 * @offset on, sealed or not.  A stride is as in kernels/kvfs_device.h, without gaps: run
 * s of page p is at @at + p * block_stride + s * segment_stride of that memory.
 *   -EEXIST       the client's pool @id is open
 *   -EINVAL       also: the runs are too short
 *   -EMEDIUMTYPE  not a file in memory
 *   -ENOLCK       also: WIRE_POOLS_MAX
 *   -EACCES, -EMFILE, -ENOMEM
 */
#define WIRE_POOLS_MAX 64u
struct wire_pool {
	uint32_t id;
	uint32_t pages_per_block;
	uint64_t pages;
	uint64_t offset, bytes;
};

struct wire_stride {
	uint64_t at;
	uint64_t block_stride;
	uint64_t bytes, count;
	uint64_t segment_stride;
};

/*
 * Followed by header.count bytes: @n wire_save, whose offset is that of token ids, and then
 * the pages of each block: pages_per_block uint64_t.  Reserves and saves in one, with the
 * flags of WIRE_RESERVE and the statuses of both, and:
 *   -EFAULT     the file has become shorter
 *   -ECANCELED  its memory is not lent any more
 *
 * Pages are lent from this message to its reply, or until the client takes them back.  The
 * uint32_t at @lent of the staging memfd is WIRE_LENT until then.  A block is not sealed
 * if the word has changed, or the client has ended, before its copy ends.
 */
#define WIRE_LENT 1u
struct wire_save_pages {
	uint32_t pool;
	uint32_t n;
	uint64_t lent;
};

/*
 * A block of a snapshot.  The picks of a set come in any number of messages, positions
 * ascending.  A set ends with the WIRE_SNAPSHOT that names it, or with the connection.
 * -ENOSPC: too many.
 */
struct wire_pick {
	uint8_t key[32];
	uint32_t len; /* bytes of the key: 16 or 32 */
	uint32_t position;
};

/*
 * Followed by header.count bytes of text.
 *
 * WIRE_SNAPSHOT: make a snapshot, named in the text, of the set @id, which must have
 * @blocks picks (-ESTALE: it has fewer, because the connection is new).
 * Reply, also with -ENOENT and -ENOSPC: @blocks is the index of the pick that
 * was absent, or did not fit.
 * -EEXIST, -EINVAL, -EACCES, -EROFS.
 *
 * WIRE_SNAPSHOT_READ: read its picks from position @from on, header.arg of them (0:
 * WIRE_BATCH, the maximum).  @id: 0, or that of an earlier reply: -ESTALE if another
 * snapshot has the name now.  Reply: @id, @blocks of the snapshot, then header.count
 * picks, fewer than asked for only at the end.
 *
 * WIRE_SNAPSHOT_LIST: list the names, each with its NUL, of snapshots made after that with
 * the id @arg.  Reply: @id of the last one; no text: there are no more.
 */
struct wire_snapshot {
	uint64_t id;
	uint32_t blocks;
	uint32_t from;
};

/*
 * Keys of the space, at most @max (64 to WIRE_BATCH, else -EINVAL), from @cursor on: 0 in
 * the first message, then that of the last reply.  A reply with @cursor 0 is the last; any
 * other may have no keys.  A block that stays present is listed at least once.
 */
struct wire_list {
	uint64_t cursor;
	uint32_t max;
	uint32_t lost; /* see WIRE_CHANGES; else 0 */
};

/*
 * WIRE_CHANGES lists blocks that have entered or left a tier since @cursor, with their present
 * state: no bytes in either tier: gone.  @cursor: any, then that of the last reply.  A
 * reply with @lost 1 has no blocks: changes before @cursor were lost, list the space.  Parent,
 * position and tokens of a block that is not in DRAM are 0.  The first WIRE_CHANGES
 * subscribes the connection.  -ENOLCK, -ENOMEM.
 */

struct wire_entry {
	uint8_t key[32];
	uint8_t parent[32];
	uint8_t len, parent_len; /* bytes of the keys; parent_len 0: unknown */
	uint8_t pinned;		 /* 1, or 0 */
	uint8_t reserved;
	uint32_t hits;
	uint32_t position, tokens;
	uint64_t bytes_dram, bytes_ssd;
	int64_t used; /* last use, in seconds of Unix time */
	/* ids that no other blocks have while the daemon runs; 0: no such block */
	uint64_t id, parent_id;
};

/*
 * A block's tokens.  @status 0; -ENOENT: the block, or its token ids, are absent; -EIO,
 * -ENOMEM.  Behind @extras_len are the ids, the extras, and zeros: @bytes in all, a
 * multiple of 8.  Status of the request: -EINVAL: the space keeps no token ids.
 */
struct wire_tokens {
	int32_t status;
	uint32_t bytes;
	uint8_t parent[32];
	uint32_t parent_len; /* 0: unknown */
	uint32_t position;
	uint32_t n;
	uint32_t extras_len;
};

/*
 * WIRE_FORGET removes the blocks from the backend, and here unless it is for the whole
 * space, which WIRE_CLEAR clears.  @removed, @absent and @failed: numbers of blocks; of a
 * whole space, @absent or @failed is 1, or @removed the number of blocks, 0 if the backend
 * does not tell.  @status: of the first that failed, with the cause in @why, which may be
 * empty.  @url and @why end with a NUL, and may be cut.  Status of the request:
 * -EOPNOTSUPP (no remote tier), -ENOENT, -EACCES, -EROFS, -ENOLCK, -ENOMEM.
 */
#define WIRE_FORGET_NS UINT64_C(600000000000)
struct wire_forgot {
	uint32_t removed, absent, failed;
	int32_t status;
	char url[128], why[112];
};

/*
 * Texts of WIRE_STATS: the low byte of header.arg.
 *
 * WIRE_TEXT_SPACES: one JSON object a line for each space that the client may read and
 * whose id is above the rest of @arg, shifted by WIRE_TEXT_BITS: as many as fit.  Before
 * them stands a line with the number to ask for next; 0: there are no more spaces.
 *
 * WIRE_TEXT_USER: the rest of @arg is a uid.  -EACCES: another user's, and the client is
 * no operator.
 */
#define WIRE_TEXT_BITS 8
enum wire_text {
	WIRE_TEXT_STATS,   /* as .kvfs/stats */
	WIRE_TEXT_CONFIG,  /* as .kvfs/config */
	WIRE_TEXT_METRICS, /* as .kvfs/metrics, without the spaces */
	WIRE_TEXT_SPACES,
	WIRE_TEXT_USER, /* as .kvfs/tenants/UID */
};

#define WIRE_LIMITS_MAX 512 /* bytes of the text of WIRE_LIMIT */
/*
 * WIRE_LIMIT sets what setxattr(2) sets on the mount, with the same names (without
 * user.kvfs.), values and rights.
 *   -EPERM   the client may not set one of these limits
 *   -EINVAL  bad name or value
 *   -ENOENT, -ENOSPC, -EROFS, -ENOLCK, -ENOMEM
 */

/*
 * Why a key is absent; the fields of kvfs_miss.  A user that is neither the space's owner
 * nor an operator gets no other cause of an absent block than "room" without times, and
 * lists only its own look-ups.  @next: place in the log behind this look-up.
 */
#define WIRE_WHY_BATCH 256
struct wire_miss {
	uint8_t key[32];
	uint32_t len; /* bytes of the key: 16 or 32 */
	uint32_t cause;
	int64_t since;
	uint32_t idle;
	uint32_t place, n;
	uint32_t reserved;
	int64_t asked_ns;
	uint64_t next, reserved_more;
};

/* A segment of the arena.  Ids are never reused in one run of the daemon. */
struct wire_segment {
	uint32_t id;
	uint32_t reserved;
	uint64_t bytes;
};

#endif
