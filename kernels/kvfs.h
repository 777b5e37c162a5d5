/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvfs.h - libkvfs: save an engine's KV blocks to the kvfs cache, and load
 * them.
 *
 * Every function returns 0 or a count on success and -errno on failure. Common
 * errors, not repeated below: -EINVAL (an argument), -ENOMEM, -EBADF (the
 * handle was made before a fork, in the parent).  A missing daemon is not an
 * error: look-ups miss, saves end with -ENOTCONN per block, and the library
 * reconnects by itself.  A lease from before the reconnection keeps its
 * statuses and pointers, but a load from that lease ends with -ESTALE.
 *
 * Only the _wait functions block for payload.  Look-ups wait for one round trip
 * to the daemon (about 20 microseconds; after one second they miss).  All other
 * functions only start work.  The library's own threads copy payload; meanwhile
 * a thread in kvfs_xfer_wait copies small blocks of its transfer.
 *
 * Threads: several threads may use a session and its objects, but must not free
 * an object that another thread uses.  Arrays passed in (keys, pages, meta,
 * views) are copied before the call returns.
 *
 * Times are nanoseconds.  A deadline is relative to the call; KVFS_FOREVER
 * waits without limit, 0 does not wait.  The library keeps deadlines and
 * cancels by its own clock, also when the daemon or a device hangs.  Work that
 * has not begun ends at once.  A request to the daemon ends with the answer, or
 * a twentieth of a second later; a save whose bytes the daemon has, a second
 * later.  Only the waiting ends: memory that is being copied, or that the
 * daemon may still read, stays in use until the copy is over.
 *
 * Programs built against an older version of this interface keep running.  A
 * struct that is passed alone begins with its size, which the caller sets (as
 * the macros named _INIT do).  Members that the caller's version lacks count as
 * zero; members that the library lacks must be zero (-E2BIG); the library
 * writes no more than the caller's size.  Structs in arrays have reserved
 * fields instead, which must be zero (-EINVAL).  Set members by name, so that
 * the rest is zero:
 *
 *	kvfs_opts opts = {.size = sizeof(opts), .priority = 1};
 *	kvfs_load(pool, lease, n, pages, KVFS_OPTS(.priority = 1), &xfer);
 */
#ifndef KVFS_H
#define KVFS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifdef __cplusplus
#define KVFS_SIZED(type)            \
	([] {                       \
		type t = {};        \
		t.size = sizeof(t); \
		return t;           \
	}())
#else
#define KVFS_SIZED(type)             \
	{                            \
		.size = sizeof(type) \
	}
/* The options of one call, in C: KVFS_OPTS(.priority = 1, .user = 7). */
#define KVFS_OPTS(...) (&(kvfs_opts){.size = sizeof(kvfs_opts), __VA_ARGS__})
#endif
#define KVFS_OPTS_INIT KVFS_SIZED(kvfs_opts)
#define KVFS_POOL_DESC_INIT KVFS_SIZED(kvfs_pool_desc)
#define KVFS_POOL_INFO_INIT KVFS_SIZED(struct kvfs_pool_info)

/* Version of this header, major << 16 | minor << 8 | patch, and of the library
 * in use, also as text in static memory ("0.2.0").  Before 1.0 each minor
 * version is a new interface, with a soname of its own. */
#define KVFS_VERSION 0x000200u
uint32_t kvfs_version(void);
const char *kvfs_version_text(void);

#define KVFS_KEY_MAX 32

/* Limits of a session.  Blocks beyond a limit end with -ENOLCK.  A call with
 * too many keys returns -EINVAL.  A save may have any number of blocks. */
#define KVFS_KEYS_MAX 16777216 /* most keys in one call */
#define KVFS_LEASED_MAX 65536  /* most blocks leased, or being acquired */
/* Unanswered messages: an acquire, a prefetch and the flush of a save send one
 * for each 512 keys of a space. */
#define KVFS_PENDING_MAX 4096
#define KVFS_FOREVER UINT64_MAX

/* A key; bytes past @len are zero. */
typedef struct kvfs_key {
	uint8_t bytes[KVFS_KEY_MAX];
	uint32_t len; /* 16 or 32 */
} kvfs_key;

typedef struct kvfs_session kvfs_session;
typedef struct kvfs_space kvfs_space;
typedef struct kvfs_lease kvfs_lease;
typedef struct kvfs_pool kvfs_pool;
typedef struct kvfs_xfer kvfs_xfer;
typedef struct kvfs_mapping kvfs_mapping;
typedef struct kvfs_pages kvfs_pages;

/* ---- options ---- */

/*
 * Stages of a transfer's blocks.  COPIED: the copies between pages and host are
 * over.  SEALED: other clients can find the block.  DURABLE: the block survives
 * a power loss.
 *
 * SUBMITTED comes before COPIED: the device was given all copies, or the block
 * has failed.  From then on streams can be ordered after the copies
 * (kvfs_xfer_order).  On a device without streams, and for transfers without
 * pages, SUBMITTED and COPIED are the same moment.
 */
enum kvfs_stage { KVFS_COPIED = 1, KVFS_SEALED, KVFS_DURABLE, KVFS_SUBMITTED };

#define KVFS_MUST 1u	    /* save: wait for room, never end with -ENOSPC */
#define KVFS_HOLD 2u	    /* save: lease sealed blocks until kvfs_xfer_free */
#define KVFS_BY_LAYER 4u    /* load: copy layer after layer */
#define KVFS_WAIT_SAVING 8u /* acquire: also wait for saves under way */
#define KVFS_READ_AHEAD 16u /* acquire: do not wait for SSD, have blocks read */
#define KVFS_AGAIN 64u	    /* acquire: a repeated use, not counted as a hit */
#define KVFS_TELL_SUBMITTED 32u /* load, save: kvfs_reap reports SUBMITTED */

/*
 * Options of a transfer or lease.  NULL is the same as all members zero: all
 * layers, no deadline, normal priority.  Members that a call does not use must
 * be zero if the call's comment says so (-EINVAL).
 *
 * @user, if not 0: kvfs_reap reports the progress of this call with that
 * number.
 *
 * Layers.  The layout's member "layers" defines the layers of a block: the
 * number D means that layer l is index l of dimension D of every tensor;
 * "tensors" means tensor l in file order; [["k0","v0"],["k1","v1"]] lists the
 * tensors of each layer.  Without that member layers are dimension 0, if it has
 * the same length in all tensors, else the tensors.  Four tensors [8,16,64]
 * would then be 8 layers, so set the member (kvfs_space_layers returns the
 * number).  A load of some layers touches no byte of the others.
 *
 * Order.  @stream and @event are handles of the device (CUstream, CUevent).
 * The pages are read or written only after the work that @stream was given
 * before the call, or that @event stands for.  With neither, as in CUDA, the
 * device's default stream is meant: CUDA's legacy stream, (void *)1.  (void *)2
 * is the calling thread's default stream.  With KVFS_NO_STREAM the copies begin
 * at once, whatever kernels use the pages.  The device "host" has no streams:
 * NULL and KVFS_NO_STREAM are the same, other streams are -EOPNOTSUPP.  A
 * stream and an event together are -EINVAL.  The event may be destroyed after
 * the call.
 */
#define KVFS_NO_STREAM ((void *)UINTPTR_MAX)

typedef struct kvfs_opts {
	size_t size;
	uint64_t user;
	uint64_t first; /* load: index of the first block in the lease */
	/* 0: none.  Blocks not begun by then, and blocks that the daemon has
	 *    not sealed one second after their copy, end with -ETIMEDOUT. */
	uint64_t deadline;
	uint64_t reserved[2];	      /* zero */
	uint32_t first_layer, layers; /* layers to load; layers 0: all */
	uint32_t flags; /* flags KVFS_MUST to KVFS_TELL_SUBMITTED */
	/* Transfers of higher priority are copied first, among loads and among
	 * saves.  Loads come before saves, but no transfer starves. */
	int priority;
	void *stream; /* NULL: the default stream, unless @event is set */
	void *event;  /* NULL: none */
} kvfs_opts;

/* ---- sessions ---- */

/* Open a session with the daemon at @path, a mount point or a control socket.
 * Without a daemon the call also succeeds; look-ups then miss until a daemon
 * appears.  Nobody but the library may close or shut down its sockets: the daemon
 * would take the process for dead, and use leased memory again. */
int kvfs_open(const char *path, kvfs_session **ret_session);

/* Wait for the session's transfers, then free the session.  If the daemon
 * hangs, blocks that have not begun are given up after a second or two, as by a
 * deadline.  The session's spaces, leases, pools and transfers must have been
 * closed or freed before.  Takes NULL. */
void kvfs_close(kvfs_session *session);

/*
 * Return a descriptor, owned by the session, that polls readable if since the
 * last kvfs_process a lease or transfer has completed, or the connection was
 * lost or made.  kvfs_process makes the descriptor unreadable, and returns how
 * many leases and transfers have completed.  The library makes progress without
 * either call.
 */
int kvfs_fd(kvfs_session *session);
int kvfs_process(kvfs_session *session);

/*
 * Store at most @n events, oldest first, in @ret_events, and return their
 * number.  Each stage of a lease, map or transfer that was begun with
 * kvfs_opts.user (not 0) is an event, unless the object was freed before.  All
 * changes of the connection since the last call are one event, which comes
 * first.
 *
 * kvfs_reap also makes kvfs_fd unreadable if no event is left: use either
 * kvfs_reap or kvfs_process.  Several threads may reap; each event goes to one
 * of them.
 */
enum kvfs_event_what {
	KVFS_EVENT_CONNECTION = 1, /* @result: the result of kvfs_connection */
	KVFS_EVENT_LEASE, /* a lease has settled; @result: blocks held */
	/*
	 * Every block has reached @stage or failed.  @result: the number of
	 * blocks that reached it (for SUBMITTED: that had not failed before).
	 * A load or prefetch reports only KVFS_COPIED, a flush the stage it
	 * waits for, a save all stages; but DURABLE only if a caller polls or
	 * waits for it, or if no block can reach it, and SUBMITTED only with
	 * KVFS_TELL_SUBMITTED.
	 */
	KVFS_EVENT_XFER,
	/* A kvfs_map is over.  @stage: KVFS_COPIED; @result: blocks mapped. */
	KVFS_EVENT_MAP,
};

typedef struct kvfs_event {
	uint32_t what, stage;
	uint64_t user; /* kvfs_opts.user of the call; 0: the connection */
	int64_t result;
	uint64_t n; /* number of blocks of the lease, map or transfer */
	uint64_t generation;  /* number of the connection at kvfs_reap */
	uint64_t reserved[3]; /* zero */
} kvfs_event;

long kvfs_reap(kvfs_session *session, kvfs_event *ret_events, size_t n);

/* Return 1 if a daemon is connected, else 0. */
int kvfs_connected(kvfs_session *session);

/*
 * Return 1 if a daemon is connected, else 0 or an error.  *@ret_generation (may
 * be NULL) is the number of connections so far, with the present one.  If a
 * daemon is connected and the number is that of the time of a lease, the lease
 * is intact.  A daemon that hangs stays connected: look-ups miss, deadlines
 * pass.
 * -EPROTONOSUPPORT: this library and the daemon have no version of the protocol
 *          in common; standard error names the versions, once.  This release
 *          speaks only version 5; from 0.2 on, each release also speaks the
 *          version of the release before
 * -EPERM: the daemon belongs neither to root nor to the caller
 */
int kvfs_connection(kvfs_session *session, uint64_t *ret_generation);

/* Store the daemon's statistics, the text of .kvfs/stats, in *@ret_text, which
 * the caller frees.  -ENOTCONN. */
int kvfs_stats(kvfs_session *session, char **ret_text);

/* Texts of kvfs_text. */
enum kvfs_text_what {
	KVFS_TEXT_STATS,   /* as .kvfs/stats: for people */
	KVFS_TEXT_CONFIG,  /* as .kvfs/config: key=value lines */
	KVFS_TEXT_METRICS, /* as .kvfs/metrics, without those of spaces */
	/* a JSON object a line for each space that the caller may read, in order of age; a
	 * byte of a name that is not UTF-8 is "\udcXX", as Python's surrogateescape does */
	KVFS_TEXT_SPACES,
	KVFS_TEXT_USER, /* as .kvfs/tenants/UID: use and limits of the user @uid */
};

/*
 * Store a text about the daemon in *@ret_text, which the caller frees.  @uid is used by
 * KVFS_TEXT_USER only.
 * -EACCES: another user's, and the caller is no operator
 * -EINVAL, -ENOMEM, -ENOTCONN
 */
int kvfs_text(kvfs_session *session, enum kvfs_text_what what, uint32_t uid,
	      char **ret_text);

/*
 * Set all or none of @limits, such as "quota.ssd=1T ttl=1h", of @space, or if that is NULL
 * of the user @uid.  Names, values and rights are those of user.kvfs.* (kvfs-space(5)):
 * bytes with K, M, G, T, or % of the tier; of "ttl", seconds, or with m, h or d.
 * -EPERM: only the owner may set a space's limits, only operators may raise one, or set a
 *         user's
 * -EINVAL: bad name or value
 * -ENOSPC: all reserves together would exceed the tier
 * -ETIMEDOUT: the daemon hangs, and may set the limit yet
 * -ENOENT, -EROFS, -ENOMEM, -ENOTCONN
 */
int kvfs_limit(kvfs_session *session, kvfs_space *space, uint32_t uid,
	       const char *limits);

/* ---- spaces ---- */

#define KVFS_CREATE 01000u /* make an absent space; add its mode (0: 0700) */
#define KVFS_SHARED 02000u /* with KVFS_CREATE: accept any owner */

/*
 * Open the space @name.  @layout: the JSON of its `.layout` (kvfs-space(5)), or
 * NULL to accept the present layout.  KVFS_CREATE makes an absent space.  An
 * existing space must then belong to the caller or to an operator (root, the
 * daemon's user), because a space's owner controls its blocks and can read what
 * others save to the space.  KVFS_SHARED accepts any owner, if the space has
 * the fingerprint of @layout.  With a layout the call succeeds without a
 * daemon; the space is opened when a daemon appears.
 * -EEXIST: the space has another layout
 * -EPERM: @layout shares the space with other nodes, the space is not shared,
 *         and the caller is neither its owner nor an operator
 * -ENOTCONN: there is no daemon, and @layout is NULL
 * -ENOENT, -EACCES, -EROFS
 */
int kvfs_space_open(kvfs_session *session, const char *name, const char *layout,
		    unsigned flags, kvfs_space **ret_space);
void kvfs_space_close(kvfs_space *space); /* takes NULL */

/*
 * Remove every block of the space, also leased blocks (their bytes stay until
 * they are released).  Blocks of saves that began before are never sealed: in
 * this session all end with -ESTALE, also those that wait for room, and in
 * other sessions those that the daemon has reserved.  Waits at most a minute
 * until all blocks are gone.
 * -ETIMEDOUT: the daemon hangs, or needs longer; it continues to remove blocks
 * -EACCES, -ENOTCONN
 */
int kvfs_space_clear(kvfs_space *space);

/*
 * Remove every block as kvfs_space_clear does, and then the space with its
 * layout and snapshots.  @space must still be closed; its look-ups miss from
 * now on.
 * -ENOTEMPTY: other clients continue to save to the space
 * -EACCES: the caller is neither the owner nor an operator
 * -ENOENT, -EROFS, -ENOTCONN, -ETIMEDOUT
 */
int kvfs_space_remove(kvfs_space *space);

/*
 * Remove @keys (@n 0: every block, as kvfs_space_clear does) here and from the
 * backend of the remote tier, within @timeout nanoseconds, at most ten minutes.
 * *@ret_text, which the caller frees, gets a line: the numbers of blocks that
 * were removed, were absent, and may still exist, with the reason.  Returns how
 * many blocks may still exist there; if there are any, or after an error, call
 * again.
 * -EOPNOTSUPP: there is no remote tier, and nothing was removed
 * -ETIMEDOUT: the daemon hangs
 * -EACCES, -EROFS, -ENOTCONN
 */
long kvfs_space_forget(kvfs_space *space, const kvfs_key *keys, size_t n,
		       uint64_t timeout, char **ret_text);

#define KVFS_LIST_MIN 64
/*
 * List keys of the space's blocks, in no order, at most @max (at least
 * KVFS_LIST_MIN).  *@cursor is 0 for the first call, must be kept between
 * calls, and is 0 again after the last keys.  Returns the number of keys, which
 * may be less than @max before the end.  A block that exists all the time is
 * listed once, rarely twice if the space grows.  A block that is made or
 * removed meanwhile may be missing.  One round trip for each 512 keys.
 * -ENOENT: no such space, or the caller may not read it
 * -ENOTCONN
 */
long kvfs_space_keys(kvfs_space *space, uint64_t *cursor, kvfs_key *ret_keys,
		     size_t max);

/* A block in a listing. */
typedef struct kvfs_entry {
	kvfs_key key;
	kvfs_key parent; /* len 0: unknown */
	uint32_t position;
	uint32_t tokens;		/* number of its tokens; 0: unknown */
	uint64_t bytes_dram, bytes_ssd; /* bytes that it holds in each tier */
	int64_t used;			/* last use, in seconds of Unix time */
	uint32_t hits;
	uint32_t pinned; /* 1 if a user or a snapshot has pinned it */
	/* Numbers that no other blocks have while the daemon runs; parent_id 0: the space has
	 * no such block. */
	uint64_t id, parent_id;
	uint64_t reserved[2]; /* zero */
} kvfs_entry;

/*
 * List the space's blocks as kvfs_space_keys does, with the facts that the daemon has of
 * each: first blocks that are not on SSD, then the others in the order of the SSD.  No data
 * is read from disk, but the index.  A block that moves on the SSD meanwhile may be listed
 * twice, or not.
 * -EINVAL: a NULL, or @max below KVFS_LIST_MIN
 * -ENOENT, -ENOMEM, -ENOTCONN; -ETIMEDOUT: the daemon hangs
 */
long kvfs_space_list(kvfs_space *space, uint64_t *cursor,
		     kvfs_entry *ret_entries, size_t max);

/*
 * Read changes of the space: the blocks that have entered or left DRAM or SSD after
 * *@cursor, at most @max, each as it is now: gone if bytes_dram and bytes_ssd are 0;
 * parent, position and tokens are unknown unless it is in DRAM.  Waits at most @timeout
 * nanoseconds (<= KVFS_CHANGES_NS) for the first change.  Returns the number of changes, 0
 * if none came, and advances *@cursor.  Begin with *@cursor 0.  The daemon never waits for
 * a caller: it keeps the last 65,536 changes, those of this space from the first call until
 * the session closes.  Threads may call at the same time, each with its own cursor.
 * -ESTALE: *@cursor was 0, or changes after it are lost, also by the daemon's end.  List
 *          the space with kvfs_space_list, and go on with *@cursor: the next change
 * -ENOENT: no such space, or the caller may not read it
 * -ENOLCK: beyond the user's share of memory
 * -ENOMEM, -ENOTCONN; -ETIMEDOUT: the daemon hangs
 */
#define KVFS_CHANGES_NS UINT64_C(60000000000)
long kvfs_space_changes(kvfs_space *space, uint64_t *cursor,
			kvfs_entry *ret_entries, size_t max, uint64_t timeout);

/*
 * Read the token ids of the blocks @keys, of a space with "token_ids" in its
 * layout.  The ids of the first blocks, as many as fit, are stored in @buffer
 * of @bytes (aligned to 8, at least KVFS_TOKENS_ROOM).  Returns the number of
 * blocks read, at least one.  Pointers in @ret_tokens point into @buffer.
 * Every user who may read the space may read the ids.  One round trip for each
 * 64 KiB.  Statuses of blocks: 0, -ENOENT (absent or damaged), -EIO, -ENOMEM.
 * -EINVAL: also if the space keeps no ids
 * -ENOENT: no such space, or the caller may not read it
 * -ENOTCONN, -ETIMEDOUT (the daemon hangs)
 */
#define KVFS_TOKENS_ROOM 65536u
typedef struct kvfs_tokens {
	int status;
	uint32_t position;
	kvfs_key parent; /* len 0: unknown */
	uint32_t n;	 /* tokens */
	uint32_t extras_len;
	uint32_t reserved; /* zero */
	const uint32_t *ids;
	const void *extras;
	uint64_t reserved_more[2]; /* zero */
} kvfs_tokens;
long kvfs_space_tokens(kvfs_space *space, const kvfs_key *keys, size_t n,
		       kvfs_tokens *ret_tokens, void *buffer, size_t bytes);
/* Return 1 if the space keeps token ids, else 0; -EMEDIUMTYPE: untyped. */
int kvfs_space_keeps_tokens(kvfs_space *space);

/* Store the owner and the permission bits of the space, as last reported by the
 * daemon; each pointer may be NULL.  -ENOTCONN: no daemon has reported them
 * yet. */
int kvfs_space_owner(kvfs_space *space, uint32_t *ret_uid, uint32_t *ret_mode);

/* Return the canonical layout (until the space is closed); NULL: untyped. */
const char *kvfs_space_layout(kvfs_space *space);
/* Return the bytes of a block's tensors; 0: untyped. */
uint64_t kvfs_space_payload(kvfs_space *space);
/* Return a block's number of layers, see kvfs_opts; 0: untyped. */
long kvfs_space_layers(kvfs_space *space);

/* ---- keys ---- */

/* An input of the KV cache besides tokens, such as an adapter, a salt or the
 * hash of an image.  Extras are hashed with tag and length, so that different
 * lists of extras always give different bytes to hash. */
typedef struct kvfs_extra {
	const char *tag;
	const void *data;
	size_t len;
	uint64_t reserved[1];
} kvfs_extra;

/*
 * Compute the keys of the full blocks of @tokens: XXH3-128, chained from
 * @parent (NULL: the beginning of a chain), seeded by the fingerprint of the
 * space's layout, with the layout's salt and @extras in every block.  The keys
 * are the same in all processes and on all machines.  Returns the number of
 * keys: @n_tokens / tokens per block, at most @max.  XXH3 protects from
 * accidents, not from attackers: libkvfs(3).
 * -EINVAL: the layout has no number of tokens per block
 */
long kvfs_key_chain(kvfs_space *space, const kvfs_key *parent,
		    const uint32_t *tokens, size_t n_tokens,
		    const kvfs_extra *extras, size_t n_extras,
		    kvfs_key *ret_keys, size_t max);

void kvfs_key_name(const kvfs_key *key, char name[65]);	 /* lowercase hex */
int kvfs_key_parse(const char *name, kvfs_key *ret_key); /* 32 or 64 digits */
/* Make a key from a longer key of an engine, by SHA-256. */
int kvfs_key_fold(const void *data, size_t len, kvfs_key *ret_key);
/* Make a key from a hash of 16 or 32 bytes. */
int kvfs_key_set(const void *data, size_t len, kvfs_key *ret_key);

/* ---- look-up ---- */

/* Keys of blocks of one space in chain order, position 0 first.  A model has a
 * query for each rank or layer group. */
typedef struct kvfs_query {
	kvfs_space *space;
	const kvfs_key *keys;
	size_t n;
	uint64_t start, tokens; /* for kvfs_match_tokens only */
	uint64_t reserved[1];
} kvfs_query;

enum kvfs_state {
	KVFS_ABSENT,
	KVFS_SAVING,
	KVFS_REMOTE,
	KVFS_SSD,
	KVFS_DRAM,
};

/* Store the states of all keys, one byte each, query after query, in
 * @ret_states.  Returns how many blocks are on SSD or in DRAM.  Without a
 * daemon, or the right to read the space, keys are KVFS_ABSENT. */
long kvfs_probe(const kvfs_query *queries, size_t n_queries,
		uint8_t *ret_states);

/* Return the usable prefix in blocks: the largest p after which the engine can
 * continue in every query's space, by the reuse rule of its layout.  `prefix`
 * needs the blocks of keys 0..p-1, `window:N` the last N of these, `last` only
 * that of key p-1. */
long kvfs_match(const kvfs_query *queries, size_t n_queries);

/*
 * Return the usable prefix in tokens, for layer groups with different numbers
 * of tokens per block: the longest prefix of whole blocks in every space, after
 * which the engine can continue in each space.  A query's keys belong to the
 * blocks from token @start on, a multiple of the block's tokens; the engine has
 * the blocks before, which count as present.  If @tokens is not 0, the prompt
 * ends there, and a block beyond never counts.  Then acquire the first (result
 * - start) / tokens-per-block keys of each query, or the last of these that its
 * rule needs.
 * -EINVAL: also for a layout without a number of tokens per block
 */
long kvfs_match_tokens(const kvfs_query *queries, size_t n_queries);

/* Why a block is absent.  QUOTA to BUDGET: it was refused, and not saved; or the
 * SSD refused it, and it has left DRAM since. */
enum kvfs_cause {
	KVFS_CAUSE_NONE,	 /* the block is present, or being saved */
	KVFS_CAUSE_UNSEEN,	 /* nothing is remembered of the key */
	KVFS_CAUSE_EVICTED_DRAM, /* evicted from DRAM, and not on SSD */
	KVFS_CAUSE_EVICTED_SSD,
	KVFS_CAUSE_REMOVED, /* by kvfs_evict, kvfs_space_clear or unlink(2) */
	KVFS_CAUSE_EXPIRED, /* unused for the ttl of the space or its user */
	KVFS_CAUSE_QUOTA,   /* quota of the space or its user */
	KVFS_CAUSE_RATE,    /* rate.put of the space or its user */
	KVFS_CAUSE_ROOM,    /* no room in DRAM, or on SSD */
	KVFS_CAUSE_PARENT,  /* the parent is not on SSD */
	KVFS_CAUSE_BUDGET,  /* ssd_write= */
	KVFS_CAUSE_DAMAGED, /* the bytes did not match their digest */
	KVFS_CAUSE_OFFLINE, /* the block is on an SSD that fails */
};

typedef struct kvfs_miss {
	kvfs_key key;
	uint32_t cause; /* enum kvfs_cause */
	/* Unix time in seconds: when that happened; UNSEEN: since when nothing
	 * has; 0: unknown. */
	int64_t since;
	uint32_t idle; /* seconds between the block's last use and @since */
	/* kvfs_misses only: index of the key among the @n keys of the look-up,
	 * and its Unix time in nanoseconds. */
	uint32_t place, n;
	uint32_t reserved; /* zero */
	int64_t asked_ns;
	uint64_t next, reserved_more; /* used by the library */
} kvfs_miss;

/*
 * Store in @ret_misses why each of @keys is absent.  Returns the number of
 * absent blocks.  The daemon remembers as many causes as why= says (kvfs(1)),
 * in fair shares of the users.  A caller that is neither the owner of the space
 * nor an operator gets KVFS_CAUSE_ROOM, without times, for all that happened.
 * -ENOENT: no such space, or the caller may not read it
 * -ENOTCONN
 */
long kvfs_why(kvfs_space *space, const kvfs_key *keys, size_t n,
	      kvfs_miss *ret_misses);

/*
 * List look-ups of the caller's user, or for an operator of all users, that
 * ended early: by kvfs_probe and kvfs_match, and by kvfs_acquire for each 512
 * keys; with the first absent key and its cause at that time.  (In a space
 * whose layout does not reuse prefixes, the key behind the last block found.)
 * *@cursor is 0 for the first call.  Stores look-ups, in no order, in
 * @ret_misses of @max (at least KVFS_MISSES_MIN), and returns their number; 0:
 * there are no more.  Errors as for kvfs_why.
 */
#define KVFS_MISSES_MIN 256
long kvfs_misses(kvfs_space *space, uint64_t *cursor, kvfs_miss *ret_misses,
		 size_t max);

/*
 * Bring the blocks to DRAM and hold them there.  The lease exists at once, and
 * settles within @opts->deadline (1: at once, with the blocks in DRAM).
 * Indices run through all keys, query after query.  Of @opts, deadline, user
 * and the flags for acquire are used; all else is -EINVAL.  Statuses of blocks:
 * 0: held in DRAM
 * -ENOENT, -ETIMEDOUT, -ECANCELED, -EIO
 * -ENOTCONN: also if the library must first ask for the space, and gets no
 *          answer within a second
 * -ENOSPC: no room in DRAM
 * -ENOLCK: more than KVFS_LEASED_MAX
 * -EBADMSG: the block was damaged, and is now absent
 * -ESTALE: the daemon went away
 * -EMFILE, -ENFILE, -ENOMEM: the process has no descriptor or address space to
 *          map the block's memory; the next acquire tries again
 *
 * KVFS_READ_AHEAD, which excludes KVFS_WAIT_SAVING (-EINVAL), does not wait for
 * SSD: blocks that are only on SSD get the status -EAGAIN, and the daemon reads
 * them to DRAM until the deadline, as for kvfs_prefetch.  The daemon does so
 * for each 512 keys of a query whose first four are in DRAM.
 */
int kvfs_acquire(const kvfs_query *queries, size_t n_queries,
		 const kvfs_opts *opts, kvfs_lease **ret_lease);
int kvfs_lease_poll(kvfs_lease *lease); /* return 1: settled, 0: not yet */
/* Wait until the lease has settled, at most @deadline nanoseconds.  Returns the
 * number of blocks held, or -ETIMEDOUT. */
long kvfs_lease_wait(kvfs_lease *lease, uint64_t deadline);
/* Return the status of block @i; -EINPROGRESS: the lease has not settled;
 * -EINVAL: no such index. */
int kvfs_lease_status(kvfs_lease *lease, size_t i);
/* Store the statuses of the blocks @first .. + @n in @ret_statuses.  Returns
 * how many are 0.  -EINVAL: no such blocks. */
long kvfs_lease_statuses(kvfs_lease *lease, size_t first, size_t n,
			 int *ret_statuses);
/* Store the states that the blocks @first .. + @n had before the lease, as
 * kvfs_probe does, in @ret_states.  KVFS_ABSENT: the block is not held, or the
 * lease has KVFS_AGAIN.  -EINPROGRESS: not settled; -EINVAL: no such blocks. */
int kvfs_lease_states(kvfs_lease *lease, size_t first, size_t n,
		      uint8_t *ret_states);
/* Return the block's tensors, read-only in the daemon's arena, and their
 * length.  NULL unless the block's status is 0.  Valid until kvfs_release, also
 * if the daemon dies or ends the connection. */
const void *kvfs_lease_data(kvfs_lease *lease, size_t i, uint64_t *ret_bytes);
/* Return the block's whole file, as kvfs_lease_data, with the safetensors
 * header. */
const void *kvfs_lease_file(kvfs_lease *lease, size_t i, uint64_t *ret_bytes);
/* Settle the lease now: blocks that are not in DRAM end with -ECANCELED. */
void kvfs_lease_cancel(kvfs_lease *lease);
/* Release and free the lease, settled or not.  A load that uses the lease keeps
 * the blocks until the load ends.  Takes NULL. */
void kvfs_release(kvfs_lease *lease);

/* ---- pools: the engine's pages ---- */

/* A strided part of a pool.  Page p of the view has @count segments of @bytes
 * each, with segment s at base + p * block_stride + s * segment_stride.  The
 * views of one tensor, in the given order, cover the tensor without gaps: each
 * view holds pages_per_block * count * bytes of it, page after page. */
typedef struct kvfs_view {
	const char *tensor; /* name of a tensor of the space's layout */
	void *base;
	uint64_t block_stride;
	uint64_t bytes;
	uint64_t count;
	uint64_t segment_stride; /* bytes between segments; 0 if @count is 1 */
	uint64_t reserved[2];
} kvfs_view;

typedef struct kvfs_pool_desc {
	size_t size;
	const char *device; /* "host", or "cuda", "cuda:N" */
	kvfs_space *space;  /* space with the layout of the tensors */
	const kvfs_view *views;
	size_t n_views;
	uint64_t pages;		  /* number of pages in each view */
	uint32_t pages_per_block; /* >= 1 */
	/* The memory that contains all views.  NULL, and 0 bytes: views are
	 * checked only for overflow of addresses. */
	const void *memory;
	uint64_t memory_bytes;
	/*
	 * A file in memory (memfd, /dev/shm, hugetlbfs), of which @memory is a
	 * shared mapping from @memory_offset on; 0: none.  The caller keeps the
	 * descriptor.  The daemon then saves blocks from the pages, with one
	 * copy and no staging.  A memfd is fastest if it is allocated, and
	 * sealed against shrinking, growing and new writers.
	 */
	uint64_t memory_offset;
	int memory_fd; /* descriptor of the file, readable; 0: no file */
	uint32_t reserved;
} kvfs_pool_desc;

/*
 * Register the engine's memory as a pool.  The memory stays the engine's, and
 * must outlive the pool.
 * -EINVAL: a null, zero, overlap within a view, overflow, an end outside
 *          @memory, a tensor that the views do not cover exactly; or @memory is
 *          no shared mapping of that part of @memory_fd, or not of the device
 *          "host"
 * -ENODEV: no such device, or a plug-in that cannot be used (standard error has
 *          the reason)
 * -EIO: the device failed
 * -EBUSY: the device cannot be used now (libkvfs-cuda(7))
 * -EMEDIUMTYPE: the space is untyped
 * -EBADF, -EMFILE: @memory_fd
 *
 * With @memory_fd, a save lends its pages to the daemon until COPIED, which
 * then is the same moment as SEALED.  A save that is cancelled, or whose
 * deadline passes, takes the pages back and ends at once, also when the daemon
 * hangs.  The daemon may still seal blocks that it had copied by then.  The
 * daemon never seals bytes that were written later, nor blocks that it has not
 * copied when the process ends: another process that has waited for that end
 * may use the pages.  A page that cannot be read, as the file is shorter, is
 * -EFAULT for its block.  Blocks go by staging until the daemon has accepted
 * the descriptor, or if the daemon refuses, as it does files that are not in
 * memory: kvfs_pool_info has the reason.
 */
int kvfs_pool_register(kvfs_session *session, const kvfs_pool_desc *desc,
		       kvfs_pool **ret_pool);
/*
 * Wait for the pool's transfers, then free the pool; the library no longer
 * touches the pages.  Blocks that have not begun end with -ETIMEDOUT: after
 * a second or two if the daemon hangs, after five seconds if they wait for a
 * stream or an event.  Copies that a device has begun are waited for without
 * limit.  Transfers and leases may be freed before or after.  Takes NULL.
 */
void kvfs_pool_close(kvfs_pool *pool);

struct kvfs_pool_info {
	size_t size; /* set by the caller */
	const char *device;
	const char *path;   /* way of copying, e.g. "arena, streaming stores" */
	const char *reason; /* why this path; valid until the pool is closed */
	uint64_t bytes_pinned; /* bytes pinned by the device for its pools */
	uint64_t bytes_registered; /* registered bytes of arena and staging */
	uint64_t bytes_refused;	   /* bytes that the device did not register */
	uint64_t threads;	   /* copy threads */
	uint64_t bytes_staging;	   /* bytes pinned for saves */
	/* Pages in use by transfers; a page counts once, however many transfers
	 * use it.  An engine subtracts pages_saving from its free pages. */
	uint64_t pages_loading, pages_saving;
	uint64_t staging_huge; /* 1: staging is in 2 MiB pages */
	/* Pinned buffers of each copy thread, for bytes that the device cannot
	 * copy directly. */
	uint64_t buffers, buffer_bytes;
	/* Pages of kvfs_pool_reserve; 0 for a pool of the engine's memory. */
	void *base;	     /* page p is at base + p * page_bytes */
	uint64_t page_bytes; /* a block's tensors, rounded up to 4096 */
	uint64_t pages, pages_max;
	uint64_t pages_free;
	uint64_t pages_cached; /* pages with a block that is not mapped */
	uint64_t pages_mapped; /* pages mapped, or being filled for a map */
	uint64_t pages_taken;
	uint64_t lent;		 /* 1: the daemon saves blocks from the pages */
	const char *lent_reason; /* why the daemon does not, or "" */
};
/* Fill @ret_info, whose member size the caller has set.
 * -EINVAL: size is too small
 * -E2BIG: a size of more than 4096 */
int kvfs_pool_info(kvfs_pool *pool, struct kvfs_pool_info *ret_info);

/* ---- transfers ---- */

/*
 * Copy the blocks @opts->first .. + @n of @lease to @pages, which has
 * pages_per_block entries for each block; -1 skips a page.  @opts may be NULL.
 * The lease may be released at once.  The caller must not touch the pages until
 * COPIED.  A load of an unsettled lease copies the first blocks as they arrive; a
 * load layer by layer begins when all its blocks have arrived.
 * Statuses of blocks:
 * 0: copied
 * -ETIMEDOUT, -ECANCELED: not begun; layer by layer: not complete
 * -ESTALE: the daemon of the lease went away; the pages may hold other bytes
 * -EBADMSG: the block's layout differs from the pool's
 * -EIO: the device failed, and the bytes of the pages are undefined, as after a
 *       load layer by layer that was not completed
 * the status in the lease, if not 0: the pages are not touched
 *
 * Errors:
 * -EINVAL: a page outside the pool, a page twice, blocks outside the lease, no
 *          such layers, flags other than KVFS_BY_LAYER and KVFS_TELL_SUBMITTED
 * -EOPNOTSUPP: a stream or event on a device without streams
 * -EBUSY: a stream that is being captured
 * errors of the device
 */
int kvfs_load(kvfs_pool *pool, kvfs_lease *lease, size_t n,
	      const int64_t *pages, const kvfs_opts *opts,
	      kvfs_xfer **ret_xfer);

#define KVFS_EXTRAS_MAX 2048u
#define KVFS_CHAIN UINT32_MAX /* parent.len: the previous key is parent */

typedef struct kvfs_meta {
	/* len 0: the parent is unknown; len KVFS_CHAIN: the parent is the
	 * previous key in this call (the first key then has no parent) */
	kvfs_key parent;
	uint32_t position;
	uint32_t tokens; /* tokens in the block; 0: the layout's number */
	/* The ids of the block's tokens, and up to KVFS_EXTRAS_MAX bytes about
	 * its other inputs, in the caller's format.  A space with "token_ids"
	 * in its layout needs the ids; other spaces refuse both. */
	uint32_t extras_len;
	const uint32_t *token_ids;
	const void *extras;
	uint64_t reserved_more[4]; /* zero */
} kvfs_meta;

/*
 * Save @n blocks from @pages under @keys.  @meta has @n entries; NULL: the keys
 * are a chain from position 0.  A block that is present, or being saved, is not
 * copied and gets the status KVFS_PRESENT, a success.  The caller may reuse the
 * pages when COPIED; other clients find the blocks when SEALED; the blocks
 * survive a power loss when DURABLE.  A save of at most 256 KiB is COPIED when
 * it is SEALED or stopped, and also copies blocks that are present.  A block that another
 * client is saving counts as SEALED at once, and is found when that save ends.
 * DURABLE waits for that save, at most two seconds (-ENOENT).
 *
 * A block with fewer tokens than its layout's is saved as it is in the pages.
 * The caller sets the bytes of missing tokens to zero, as a layout does not
 * define which bytes belong to a token.
 *
 * KVFS_MUST: blocks without room (otherwise -ENOSPC, -EAGAIN) wait for room
 * until @opts->deadline, without delaying other transfers.  If there is an SSD
 * tier, and the space's quota allows it, sealed blocks are not evicted before
 * they are durable.  kvfs_close also waits for such blocks.
 *
 * KVFS_HOLD: blocks that this call seals, not those that were present, are
 * leased from their seal until kvfs_xfer_free.  A sixteenth of DRAM cannot be
 * held: -ENOSPC.
 *
 * Statuses of blocks:
 * 0, KVFS_PRESENT: success
 * KVFS_EVICTED: a caller waited for DURABLE, and the block was durable, but has
 * been evicted since; also a success
 * -ENOSPC, -EFBIG, -EACCES, -EROFS, -ENOTCONN, -EIO
 * -ENOLCK: held, and more than KVFS_LEASED_MAX
 * -EAGAIN: beyond the space's rate
 * -ESTALE: the space was cleared, or removed
 * -ECANCELED, -ETIMEDOUT: the daemon may still seal a block that was COPIED, or
 *          of a save of at most 256 KiB
 * -EFAULT: a lent page cannot be read
 * -ENOENT: the block was removed or evicted before it was durable
 * -EBADMSG: a process of the space's owner changed the block's bytes in memory
 *          before the block was durable (arena= in kvfs(1)); the block is gone,
 *          others are intact
 * -EMFILE, -ENFILE, -ENOMEM: the process has no descriptor or memory for
 *          staging
 *
 * Errors:
 * -EINVAL: a page outside the pool or missing (-1), another layout, more tokens
 *          than the layout's, missing or unexpected token ids
 * -E2BIG: too many extras
 * -EOPNOTSUPP: @opts->layers, as blocks are always saved whole
 */
#define KVFS_PRESENT 1
#define KVFS_EVICTED 2 /* a success, see kvfs_save */
int kvfs_save(kvfs_pool *pool, kvfs_space *space, const kvfs_key *keys,
	      const kvfs_meta *meta, size_t n, const int64_t *pages,
	      const kvfs_opts *opts, kvfs_xfer **ret_xfer);

/* Return 1 if every block has reached @stage or failed, else 0.  A block that
 * is SUBMITTED may still fail to be COPIED. */
int kvfs_xfer_poll(kvfs_xfer *xfer, enum kvfs_stage stage);
/* Wait until every block has reached @stage or failed, at most @deadline
 * nanoseconds.  Returns how many reached the stage (for SUBMITTED: had not
 * failed by then), or -ETIMEDOUT. */
long kvfs_xfer_wait(kvfs_xfer *xfer, enum kvfs_stage stage, uint64_t deadline);
/* Wait until at least @n blocks, in any order, are COPIED or have failed.
 * Returns their number, or -ETIMEDOUT. */
long kvfs_xfer_wait_some(kvfs_xfer *xfer, size_t n, uint64_t deadline);
/*
 * Return 1 if layer @layer of every block is in the pages, or the block has
 * failed, else 0; or wait for that: 0, or -ETIMEDOUT.  In a load with
 * KVFS_BY_LAYER layers are ready before COPIED, in other transfers with COPIED.
 * Blocks get status 0 when all layers are copied, and a failure at once.
 * -EINVAL: @xfer has no such layer, or no pages
 */
int kvfs_xfer_poll_layer(kvfs_xfer *xfer, uint32_t layer);
int kvfs_xfer_wait_layer(kvfs_xfer *xfer, uint32_t layer, uint64_t deadline);
/* Return the status of block @i: -EINPROGRESS, 0, KVFS_PRESENT, KVFS_EVICTED or
 * the error. */
int kvfs_xfer_status(kvfs_xfer *xfer, size_t i);
/* Store the statuses of the blocks @first .. + @n in @ret_statuses.  Returns
 * how many are not negative.  -EINVAL: no such blocks. */
long kvfs_xfer_statuses(kvfs_xfer *xfer, size_t first, size_t n,
			int *ret_statuses);
/*
 * Have work that @stream is given from now on wait, on the device, until @xfer
 * is COPIED (failed blocks included), or until layer @layer of a load with
 * KVFS_BY_LAYER is.  No thread waits.  Check the statuses before relying on the
 * pages.  The transfer may be freed afterwards.  NULL is the device's default
 * stream.  When all is COPIED nothing is ordered, and @stream is not checked.
 * -EAGAIN: not all of these copies are SUBMITTED, and nothing was ordered, as a
 *          stream must never wait for copies that the device was not given.  Do
 *          not give @stream work that needs the pages.  Try again, or first
 *          wait for KVFS_SUBMITTED or the layer.  A large transfer is SUBMITTED
 *          shortly before it is COPIED
 * -EBUSY: the stream is being captured, which continues undisturbed
 * -EOPNOTSUPP: the device has no streams (host)
 * -EINVAL: @xfer has no such layer, or no pages; KVFS_NO_STREAM; an invalid
 *          stream
 */
int kvfs_xfer_order(kvfs_xfer *xfer, void *stream);
int kvfs_xfer_order_layer(kvfs_xfer *xfer, uint32_t layer, void *stream);
/* End blocks that have not begun, and the wait for DURABLE, with -ECANCELED.
 * The transfer uses its pages until it is COPIED. */
void kvfs_xfer_cancel(kvfs_xfer *xfer);
/* Free the handle; a transfer in flight continues.  Takes NULL. */
void kvfs_xfer_free(kvfs_xfer *xfer);

/*
 * Begin a barrier.  With KVFS_SEALED the barrier ends when every save that this
 * session began in @space before is sealed.  With KVFS_DURABLE it ends when
 * every block that any client sealed or removed in @space before has been
 * durable; a block that is not pinned may be evicted from SSD at any time.  The
 * status of block 0 is 0, -ENOSPC, -EIO, -EBADMSG (a block was changed, as for
 * kvfs_save, and is gone) or -EOPNOTSUPP (no SSD tier).  Of @opts (may be
 * NULL), user is used; all else is -EINVAL.
 */
int kvfs_flush(kvfs_space *space, enum kvfs_stage stage, const kvfs_opts *opts,
	       kvfs_xfer **ret_xfer);

/*
 * Give a hint: bring the blocks to DRAM, in order, from SSD or, if they are
 * absent, from the remote tier (kvfs-remote(7)), within the daemon's budget.
 * The blocks are not held in DRAM.  The transfer is COPIED when every block is
 * in DRAM or has failed.  Of @opts (may be NULL), deadline and user are used;
 * all else is -EINVAL.  Statuses of blocks:
 * 0: in DRAM
 * -ETIMEDOUT: not begun within @opts->deadline
 * -ECANCELED: kvfs_xfer_cancel; reads in flight still end in DRAM
 * -ENOENT, -ENOSPC, -EIO, -EBADMSG, -ENOTCONN
 */
int kvfs_prefetch(const kvfs_query *queries, size_t n_queries,
		  const kvfs_opts *opts, kvfs_xfer **ret_xfer);

/* ---- reserved pages: the library's own ---- */

/*
 * Make a pool of @pages pages that the library allocates on @device ("host").
 * A page has the tensors of one block of @space, end to end, rounded up to 4096
 * bytes.  When no page is free the pool grows to at most @max_pages; addresses
 * do not change.  A call that makes the pool grow takes as long as the device
 * needs for the memory (host: about a millisecond for 4 MiB).  kvfs_pool_info
 * has the addresses and the number of free pages.  kvfs_load and kvfs_save
 * refuse such a pool (-EINVAL).  kvfs_pool_close also ends maps and sets of
 * pages, and frees their memory.
 * -EINVAL: no pages, or @max_pages below @pages
 * -EOPNOTSUPP: the device has no memory of its own
 * -ENODEV, -EIO, -EMEDIUMTYPE: as kvfs_pool_register
 * -ENOMEM
 */
int kvfs_pool_reserve(kvfs_session *session, const char *device,
		      kvfs_space *space, uint64_t pages, uint64_t max_pages,
		      kvfs_pool **ret_pool);

/*
 * Set the pinned memory for copies that the device cannot make directly, of any
 * pool: @buffers of @bytes each.  The session's saves get a ring of at least
 * that much memory in all, made in the background.  Without this call a session
 * has a ring of a MiB, or two blocks, from its first pool on; then 64 MiB, if
 * all sessions of the process have at most 256 MiB; and new rings after each
 * connection.  Each copy thread of a GPU has as many buffers, within limits
 * (libkvfs-cuda(7)).  The call waits until each of these threads has ended its
 * copy, so call it at the start.
 * -ENOMEM: more than a quarter of the machine's memory, or memory that cannot
 *          be pinned
 */
int kvfs_pool_staging(kvfs_pool *pool, uint64_t bytes, unsigned buffers);

/*
 * Have the blocks @keys of @space, whose tensors must be those of the pool's
 * layout, in pages for reading until kvfs_unmap.  A block has one page in a
 * pool, for all its maps.  A block that has a page is not copied again, even if
 * it was evicted from the cache, as its bytes cannot change; kvfs_space_clear
 * by this session ends that.  The call looks up the other blocks, as kvfs_probe
 * does, and then only starts work.
 *
 * A block that must be copied takes a free page; otherwise the pool grows;
 * otherwise the block takes the page whose block was unmapped longest ago.  The
 * first keys come first.  Blocks that succeed stay mapped if others fail; a
 * block that fails keeps no page.  Statuses: 0, -ENOENT, -ENOSPC (no page, or
 * DRAM held by others), -ETIMEDOUT (not within @opts->deadline), -ECANCELED,
 * and those of a lease and a load.
 *
 * @opts may be NULL.  deadline, priority, user, and stream or event (for the
 * copies to wait for) are used; layers and flags are -EINVAL.
 */
int kvfs_map(kvfs_pool *pool, kvfs_space *space, const kvfs_key *keys, size_t n,
	     const kvfs_opts *opts, kvfs_mapping **ret_map);
/* Return 1 if every block is mapped or has failed, else 0. */
int kvfs_map_poll(kvfs_mapping *map);
/* Wait until every block is mapped or has failed.  Returns the number of mapped
 * blocks, or -ETIMEDOUT. */
long kvfs_map_wait(kvfs_mapping *map, uint64_t deadline);
/* Return the status of block @i, -EINPROGRESS while it is being copied.
 * -EINVAL: no such index. */
int kvfs_map_status(kvfs_mapping *map, size_t i);
/* As kvfs_xfer_statuses. */
long kvfs_map_statuses(kvfs_mapping *map, size_t first, size_t n,
		       int *ret_statuses);
/* Order work that @stream is given from now on after all blocks of the map, as
 * kvfs_xfer_order does.  Pages and addresses are then also returned for blocks
 * in flight, and are valid if the status becomes 0.  -EAGAIN: not all copies
 * are submitted, and nothing was ordered. */
int kvfs_map_order(kvfs_mapping *map, void *stream);
/* End blocks that are not mapped yet with -ECANCELED. */
void kvfs_map_cancel(kvfs_mapping *map);
/* Return the page of block @i, or the block's status if that is not 0. */
int64_t kvfs_map_page(kvfs_mapping *map, size_t i);
/* Return the address of tensor @tensor (NULL: the first) of block @i, valid
 * until kvfs_unmap; NULL while the status is not 0. */
void *kvfs_map_addr(kvfs_mapping *map, size_t i, const char *tensor);
/*
 * End and free the map, settled or not.  Pages without another map keep their
 * blocks until the pages are taken for other blocks, which waits for the work
 * that @stream was given so far (NULL: the device's default stream;
 * KVFS_NO_STREAM: no work).  Takes NULL.
 * -EOPNOTSUPP (no streams), -EINVAL, -EBUSY, -EIO, -ENOMEM: still mapped
 */
int kvfs_unmap(kvfs_mapping *map, void *stream);

/* Take @n pages to write to, all or none: compute; then kvfs_pages_seal or
 * kvfs_pages_drop; then kvfs_pages_free.  The bytes are undefined.
 * -ENOSPC: too few pages can be taken */
int kvfs_pages_take(kvfs_pool *pool, size_t n, kvfs_pages **ret_pages);
/* Return the page number @i of the set.  -EINVAL: no such page, or the set was
 * sealed or dropped. */
int64_t kvfs_pages_page(kvfs_pages *pages, size_t i);
void *kvfs_pages_addr(kvfs_pages *pages, size_t i, const char *tensor);
/*
 * Save the first @n pages as the blocks @keys, as kvfs_save does, after
 * @opts->stream or event, and drop the other pages.  The caller must not change
 * the pages any more.  From now on the blocks can be mapped without a copy
 * until their pages are taken for other blocks, also if the save fails (but not
 * after kvfs_space_clear).  To keep the blocks, map them before taking or
 * mapping anything else.  A key that has a page already keeps that page.
 * -EINVAL: sealed or dropped before, more keys than pages, arguments that
 *          kvfs_save refuses; nothing was changed
 * -EOPNOTSUPP, -ENOMEM
 */
int kvfs_pages_seal(kvfs_pages *pages, kvfs_space *space, const kvfs_key *keys,
		    const kvfs_meta *meta, size_t n, const kvfs_opts *opts,
		    kvfs_xfer **ret_xfer);
/* Give all pages of the set back, after the work that @stream (as for
 * kvfs_unmap) was given so far.  -EINVAL: sealed or dropped before. */
int kvfs_pages_drop(kvfs_pages *pages, void *stream);
/* Free the set.  Pages that were neither sealed nor dropped are given back at
 * once, without waiting for a stream.  Takes NULL. */
void kvfs_pages_free(kvfs_pages *pages);

/* ---- snapshots: a long context, kept under a name ---- */

#define KVFS_SNAPSHOT_MAX 131072u   /* blocks */
#define KVFS_POSITION_MAX 99999999u /* position of a block in its chain */

/*
 * Pin the blocks @keys under @name, all or none.  No byte is copied.  Until the
 * snapshot is dropped the blocks stay in the cache, in DRAM as far as the share
 * of pins allows.  The snapshot is the directory <space>/.snapshots/<name>/,
 * and is durable after the next kvfs_flush.  @positions: places of the blocks
 * in their chain, ascending; NULL: 0, 1, ...
 * -ENOENT: block *@ret_missing (may be NULL) is absent
 * -ENOSPC: from block *@ret_missing on, too little could be evicted; or there
 *          are too many snapshots
 * -EEXIST: the name is taken
 * -EINVAL: no keys, or too many; a name that is empty, has more than 255 bytes,
 *          begins with a dot or has a slash
 * -EACCES, -EROFS, -ENOTCONN
 */
int kvfs_snapshot(kvfs_space *space, const char *name, const kvfs_key *keys,
		  const uint32_t *positions, size_t n, size_t *ret_missing);

/* Store the first @max keys of a snapshot and their positions, in order; each
 * array may be NULL.  Returns the number of blocks of the snapshot.  To restore
 * it, acquire and load the keys in windows (examples/restore.c).  -ENOENT,
 * -ENOTCONN. */
long kvfs_snapshot_keys(kvfs_space *space, const char *name, kvfs_key *ret_keys,
			uint32_t *ret_positions, size_t max);

/* Store the names of all snapshots, oldest first, each with a NUL, in
 * *@ret_names, which the caller frees.  Returns their number.  -ENOENT (no such
 * space, or the caller may not read it), -ENOTCONN. */
long kvfs_snapshot_list(kvfs_space *space, char **ret_names);

/* Drop a snapshot, which unpins its blocks.  Pins by kvfs_pin or by other
 * snapshots stay.  -ENOENT, -EACCES, -EROFS, -ENOTCONN. */
int kvfs_snapshot_drop(kvfs_space *space, const char *name);

/* ---- housekeeping ---- */

/* Remove blocks from all tiers.  @ret_statuses (may be NULL) gets for each key
 * 0, -ENOENT, -EACCES, -ENOTCONN or -ETIMEDOUT (the daemon hangs, and may still
 * remove the block).  Returns the number of removed blocks. */
long kvfs_evict(kvfs_space *space, const kvfs_key *keys, size_t n,
		int *ret_statuses);
/* Give a hint: the conversation with these blocks, in chain order, is over, so
 * the blocks may be evicted before others.  Blocks that are pinned or used
 * again keep their place. */
int kvfs_ended(kvfs_space *space, const kvfs_key *keys, size_t n);
/* Pin or unpin keys[first] .. keys[end - 1] of a chain.  Statuses and result as
 * for kvfs_evict; -ENOSPC: too few evictable blocks would remain. */
long kvfs_pin(kvfs_space *space, const kvfs_key *keys, size_t first, size_t end,
	      int *ret_statuses);
long kvfs_unpin(kvfs_space *space, const kvfs_key *keys, size_t first,
		size_t end, int *ret_statuses);

#ifdef __cplusplus
}
#endif

#endif
