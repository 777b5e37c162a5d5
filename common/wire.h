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
 * tag, with WIRE_REPLY set in @flags.  Replies come in any order.  The daemon
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
#define WIRE_BATCH 512 /* items a message, at most */

/* A connection may have so many at a time; items beyond end with -ENOLCK. */
#define WIRE_PENDING_MAX 4096  /* requests without a reply */
#define WIRE_LEASED_MAX 65536  /* blocks leased or being acquired */
#define WIRE_RESERVED_MAX 4096 /* blocks */

enum wire_type {
	WIRE_HELLO =
		1,    /* first message of a connection: wire_hello both ways */
	WIRE_SPACE,   /* wire_space + text; reply: wire_space + layout text */
	WIRE_PROBE,   /* wire_key[]; reply: wire_state[] */
	WIRE_ACQUIRE, /* wire_key[]; reply: wire_place[] */
	WIRE_RELEASE, /* no items; @tag of the acquire that got a block, or of
			 the save that sealed blocks reserved with WIRE_HOLD;
			 no reply */
	WIRE_CANCEL,  /* no items; @tag of an acquire, flush or prefetch; it has
			 no reply: that one is answered now */
	WIRE_STAGING, /* wire_staging, one descriptor; reply: no items */
	WIRE_RESERVE, /* wire_key[]; reply: wire_status[] */
	WIRE_SAVE,    /* wire_save[]; reply: wire_status[] */
	WIRE_DROP,  /* wire_key[]: give reservations up, @arg: only those of the
		       RESERVE with that tag, 0: any; reply: wire_status[] */
	WIRE_FLUSH, /* wire_key[], none: the whole space; reply: wire_status[],
		       1 (WIRE_EVICTED): was durable, and is evicted since */
	WIRE_EVICT, /* wire_key[]; reply: wire_status[] */
	WIRE_PIN,   /* wire_key[], @arg 1 pin, 0 unpin; reply: wire_status[] */
	WIRE_CLEAR, /* no items: drop every block of the space; reply: no items
		     */
	WIRE_STATS, /* no items; reply: text of @count bytes */
	WIRE_SEGMENT,  /* daemon: wire_segment, one descriptor */
	WIRE_RETIRE,   /* daemon: wire_segment; client answers WIRE_UNMAPPED */
	WIRE_UNMAPPED, /* wire_segment; it has no reply */
	WIRE_PREFETCH, /* wire_key[]; reply, once all are settled: wire_status[]
			*/
	WIRE_ENDED,    /* wire_key[]: of a conversation that is over; it has no
			  reply */
	WIRE_PICK,     /* wire_pick[], @arg: of which set; reply: no items */
	WIRE_SNAPSHOT, /* wire_snapshot + name; reply: wire_snapshot */
	WIRE_SNAPSHOT_DROP, /* name; reply: no items */
	WIRE_SNAPSHOT_READ, /* wire_snapshot + name; reply: wire_snapshot +
			       wire_pick[] */
	WIRE_SNAPSHOT_LIST, /* @arg: after which; reply: wire_snapshot + text */
	WIRE_LIST,	    /* wire_list; reply: wire_list + wire_key[] */
	WIRE_SPACE_REMOVE,  /* no items: it must be empty (-ENOTEMPTY); reply:
			       no items */
	WIRE_POOL,	 /* wire_pool + wire_stride[], one descriptor; reply: no
			       items */
	WIRE_POOL_CLOSE, /* no items, @arg: its id; it has no reply */
	WIRE_SAVE_PAGES, /* wire_save_pages + text; reply: wire_status[] */
	WIRE_TOKEN_IDS,	 /* wire_key[]; reply: @count bytes of wire_tokens, of
			    the first of them, one at least */
	WIRE_REGISTERS,	 /* no items, once: this client registers memory with a
			    device that takes none which can only be read;
			    it has no reply */
	WIRE_FORGET,	 /* wire_key[], none: the whole space, @arg: ns that the
			    remote tier has, at most WIRE_FORGET_NS; reply:
			    wire_forgot[], one for each backend */
	WIRE_TYPE_END,
};

#define WIRE_REPLY 1u	    /* flags */
#define WIRE_WAIT_SAVING 2u /* WIRE_ACQUIRE: wait for saves under way */
#define WIRE_AGAIN 256u	    /* WIRE_ACQUIRE: no new use, counts as no hit */
#define WIRE_RESIDENT 32u   /* WIRE_ACQUIRE: of what is in DRAM; else -EAGAIN */
/* WIRE_PREFETCH: only behind a head of WIRE_AHEAD_MIN keys or more that is in
 * DRAM; else -EAGAIN, all. */
#define WIRE_AHEAD 64u
#define WIRE_AHEAD_MIN 4u
/* WIRE_RESERVE, of all its keys: */
#define WIRE_MUST 4u /* once sealed, not evicted before it is durable */
#define WIRE_HOLD 8u /* leased when it seals; -ENOSPC: no room for that */
/*
 * WIRE_SAVE, WIRE_SAVE_PAGES: each item has its block's token ids.  Spaces with
 * "token_ids" require the flag, other spaces refuse it (-EINVAL, all items).
 * The ids are in the staging memfd in the form of common/block.h: behind
 * the item's bytes, at the next multiple of 8, or, for lent pages, at
 * wire_save.offset.  -EINVAL: their number differs from the block's tokens, or
 * they lie outside the staging.
 */
#define WIRE_WITH_IDS 128u

struct wire_header {
	uint16_t type;
	uint16_t flags;
	uint32_t count; /* items (bytes, where the payload is text) */
	uint64_t tag; /* chosen by the client; unique among its open requests */
	uint32_t space; /* from WIRE_SPACE; 0 where it does not matter */
	int32_t status;
	uint64_t arg; /* WIRE_ACQUIRE, _FLUSH, _PREFETCH: ns to wait at most, 0
			 for ever */
};

struct wire_hello {
	uint32_t version;
	uint32_t oldest;
	uint64_t epoch;	   /* reply: differs each time the daemon starts */
	uint8_t store[16]; /* reply: store id */
};

#define WIRE_SPACE_CREATE 1u
#define WIRE_SPACE_SHARED 2u /* with _CREATE: it may be another user's */

/*
 * Followed by header.count bytes of text: the name, a NUL, then the layout's
 * JSON (may be empty).  Reply: the same, with the canonical layout.
 * -ENOENT no such space (and not WIRE_SPACE_CREATE), -EACCES (also: another
 * user but an operator made it, and not WIRE_SPACE_SHARED), -EEXIST another
 * layout, -EINVAL bad name or layout, -EROFS.
 */
struct wire_space {
	uint32_t id; /* reply */
	uint32_t flags;
	uint32_t mode;	   /* permission bits of a space made new; reply: its */
	uint32_t writable; /* reply: 1 if this client may save and evict */
	uint32_t uid, gid; /* reply: of its owner */
	uint64_t payload;  /* reply: bytes of a block's tensors, 0 untyped */
	uint64_t header;   /* reply: bytes before them in blocks saved here */
};

struct wire_key {
	uint8_t key[32];
	uint32_t len; /* 16 or 32 */
	uint32_t reserved;
};

/* The order is fixed: kvfs.h shows the same numbers. */
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
 * Where an acquired block is.  status 0, or -ENOENT (absent), -ETIMEDOUT,
 * -ECANCELED, -ENOSPC (no slot), -ENOLCK (too many leased), -EIO, -EBADMSG
 * (damaged: now a miss).
 * @offset is that of the file's first byte in the segment.
 */
struct wire_place {
	int32_t status;
	uint32_t segment;
	uint64_t offset;
	uint64_t length;  /* of the file */
	uint64_t payload; /* offset of the tensors in the file */
};

/* A file in memory; it replaces the one given before.  -EINVAL no bytes,
 * -EMEDIUMTYPE not a file in memory, -EACCES, -ENOLCK, -EMFILE, -ENOMEM. */
struct wire_staging {
	uint64_t bytes;
};

/*
 * A reserved block: its tensors are at @offset of the staging memfd, which must
 * stay unchanged until the reply.
 * RESERVE status: 0 reserved, -EEXIST present, -EALREADY being saved,
 * -ENOSPC, -EBUSY (memory is being made: ask again), -ENOLCK (too many),
 * -EACCES, -EROFS, -EINVAL (untyped space, bad key), -EFBIG.
 * SAVE status: 0 sealed (and leased under this message's tag, if it was
 * reserved with WIRE_HOLD), -EEXIST present meanwhile, -ESTALE the space was
 * cleared, -ENOENT not reserved, -EINVAL (also: more tokens than the layout
 * says), -EFAULT the staging cannot be read.  A SAVE uses the reservation up.
 */
struct wire_save {
	uint8_t key[32];
	uint8_t parent[32];
	uint32_t len; /* of both; parent_len 0: unknown */
	uint32_t parent_len;
	uint32_t position;
	uint32_t tokens;
	uint64_t offset;
};

/*
 * Memory that blocks are saved from where it is: @bytes of the file behind the
 * descriptor, from @offset on, sealed or not.
 * A stride is as in kernels/device/device.h, without gaps between them: page p,
 * run s of it is at @at + p * block_stride + s * segment_stride of that memory.
 * The connection's name for it is @id; one that is in use is -EEXIST.
 * -EINVAL (also: its runs are crumbs), -EMEDIUMTYPE not a file in memory,
 * -EACCES, -ENOLCK (also: WIRE_POOLS_MAX), -EMFILE, -ENOMEM.
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
 * Followed by header.count bytes: @n wire_save, whose offset does not matter,
 * and then the pages of each, pages_per_block uint64_t.  Reserves and saves in
 * one, with the flags of WIRE_RESERVE, and the statuses of both;
 * besides: -EFAULT the file has become shorter, -ECANCELED its memory is not lent
 * any more.
 *
 * Pages are lent from this message to its reply, or until the client takes them
 * back: at @lent of the staging memfd is a uint32_t that is WIRE_LENT until
 * then.  What is not copied by the moment it is another, or at which the client
 * ends, will not be sealed.
 */
#define WIRE_LENT 1u
struct wire_save_pages {
	uint32_t pool;
	uint32_t n;
	uint64_t lent;
};

/*
 * A block of a snapshot.  The picks of a set come in any number of messages,
 * positions ascending, and count for nothing until the WIRE_SNAPSHOT that names
 * the set.  A set ends with that, or with the connection.  -ENOSPC too many.
 */
struct wire_pick {
	uint8_t key[32];
	uint32_t len; /* 16 or 32 */
	uint32_t position;
};

/*
 * Followed by header.count bytes of text.
 *
 * WIRE_SNAPSHOT: make one, with the name in the text, of the set @id, which
 * must have @blocks picks (-ESTALE: it has others, so the connection is a new
 * one).  Reply, also with -ENOENT and -ENOSPC: @blocks is the index of the pick
 * that was not here, or did not fit.  -EEXIST, -EINVAL, -EACCES, -EROFS.
 *
 * WIRE_SNAPSHOT_READ: its picks from position @from on, header.arg of them (0:
 * WIRE_BATCH, the most).  @id 0, or as the reply to the first message said:
 * -ESTALE if another has that name by now.  Reply: @id, @blocks in all, then
 * header.count picks, fewer than asked for only at the end.
 *
 * WIRE_SNAPSHOT_LIST: reply: names, each with its NUL, of those made after the
 * one with the id @arg; @id is that of the last; no text: there are no more.
 */
struct wire_snapshot {
	uint64_t id;
	uint32_t blocks;
	uint32_t from;
};

/*
 * Keys of the space, at most @max (64 to WIRE_BATCH, else -EINVAL), from
 * @cursor on: 0 at first; what the last reply had, and 0 there is the end.
 * There may be none in a reply that is not the last.  A block that is there all
 * the time comes at least once.
 */
struct wire_list {
	uint64_t cursor;
	uint32_t max;
	uint32_t reserved;
};

/*
 * A block's tokens.  @status 0; -ENOENT it is not here any more, or does not
 * say; -EIO, -ENOMEM.  Behind @extras_len are the ids, then the extras, and
 * zeros: @bytes in all, a multiple of 8.  The request as a whole: -EINVAL the
 * space keeps none.
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
 * Of WIRE_FORGET, which removes blocks here, too, but of a whole space: that is
 * WIRE_CLEAR's.  How many @removed, how many were not there, and of how many that is
 * not known; then @status is why, of the first.  Of a whole space one of the
 * three is 1.  @url ends with a NUL, and may be cut.  The request as a whole:
 * -EOPNOTSUPP there is no remote tier; -ENOENT, -EACCES, -EROFS, -ENOLCK, -ENOMEM.
 */
#define WIRE_FORGET_NS UINT64_C(600000000000)
struct wire_forgot {
	uint32_t removed, absent, failed;
	int32_t status;
	char url[240];
};

/* Segment ids are never reused within an epoch. */
struct wire_segment {
	uint32_t id;
	uint32_t reserved;
	uint64_t bytes;
};

#endif
