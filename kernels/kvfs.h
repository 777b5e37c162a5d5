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
 * functions only start work.  The library's own threads copy payload.
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
/* Options for one call, in C: KVFS_OPTS(.priority = 1, .user = 7). */
#define KVFS_OPTS(...) (&(kvfs_opts){.size = sizeof(kvfs_opts), __VA_ARGS__})
#endif
#define KVFS_OPTS_INIT KVFS_SIZED(kvfs_opts)
#define KVFS_POOL_DESC_INIT KVFS_SIZED(kvfs_pool_desc)
#define KVFS_POOL_INFO_INIT KVFS_SIZED(struct kvfs_pool_info)

/* major << 16 | minor << 8 | patch: of this header, and of the library in use
 * (as text, "0.2.0", in static memory).  Before 1.0 a new minor is a new
 * interface, with a soname of its own. */
#define KVFS_VERSION 0x000200u
uint32_t kvfs_version(void);
const char *kvfs_version_text(void);

#define KVFS_KEY_MAX 32

/*
 * Limits of a session.  Blocks beyond a limit end with -ENOLCK; too many keys
 * in a call are -EINVAL.  The number of blocks to save has no limit.
 */
#define KVFS_KEYS_MAX 16777216 /* in one call */
#define KVFS_LEASED_MAX 65536  /* blocks leased, or being acquired */
/* Messages without an answer: an acquire, a prefetch or the flush of a save
 * sends one for each 512 keys of a space. */
#define KVFS_PENDING_MAX 4096
#define KVFS_FOREVER UINT64_MAX

/* Bytes past @len are zero. */
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
 * SUBMITTED comes before COPIED: a device with streams was given every copy
 * between pages and host, or the block has failed.  From then on streams can be
 * ordered after the copies (kvfs_xfer_order).  On a device without streams, and
 * for transfers without pages, SUBMITTED and COPIED are the same moment.
 */
enum kvfs_stage { KVFS_COPIED = 1, KVFS_SEALED, KVFS_DURABLE, KVFS_SUBMITTED };

#define KVFS_MUST 1u	    /* save: wait for room, never end with -ENOSPC */
#define KVFS_HOLD 2u	    /* save: hold sealed blocks until kvfs_xfer_free */
#define KVFS_BY_LAYER 4u    /* load: all blocks layer by layer */
#define KVFS_WAIT_SAVING 8u /* acquire: also wait for saves under way */
#define KVFS_READ_AHEAD 16u /* acquire: hold what is in DRAM, read the rest */
#define KVFS_AGAIN 64u /* acquire: the use of another lease, count no hit */
#define KVFS_TELL_SUBMITTED \
	32u /* load, save: kvfs_reap also reports SUBMITTED */

/*
 * Options of a transfer or lease.  NULL is the same as all zero: all layers, no
 * deadline, normal priority.  Members that a call does not use must be zero
 * (-EINVAL), where its comment says so.
 *
 * @user, if not 0: kvfs_reap reports the progress of this call with that word.
 *
 * Layers.  The layout's member "layers" defines them: D means index l of
 * dimension D of every tensor; "tensors" means tensor l in file order;
 * [["k0","v0"],["k1","v1"]] lists the tensors of each layer.  Without that
 * member layers are dimension 0, if it has the same length in all tensors, or
 * else tensors.  Four tensors [8,16,64] would then be 8 layers, so set the
 * member (kvfs_space_layers returns the number).  A load of some layers touches
 * no byte of the others.
 *
 * Order.  @stream and @event are the device's (CUstream, CUevent).  No byte of
 * the pages is read or written before the work that @stream was given before
 * the call, or that @event stands for, is over.  With neither, as in CUDA, the
 * device's default stream is meant (CUDA's legacy stream, (void *)1; (void *)2
 * is the calling thread's).  With KVFS_NO_STREAM the copies begin at once,
 * whatever kernels use the pages.  The device "host" has no streams: NULL and
 * KVFS_NO_STREAM are the same, all others are -EOPNOTSUPP.  A stream and an
 * event together are -EINVAL.  The event may be destroyed after the call.
 */
#define KVFS_NO_STREAM ((void *)UINTPTR_MAX)

typedef struct kvfs_opts {
	size_t size;
	uint64_t user;
	uint64_t first;	      /* load: index of the first block in the lease */
	uint64_t deadline;    /* 0: none; blocks not begun by then end
			      with -ETIMEDOUT, as do blocks that the daemon
			      has not sealed a second after their copy */
	uint64_t reserved[2]; /* zero */
	uint32_t first_layer, layers; /* load: only these; 0 layers: all */
	uint32_t flags;		      /* KVFS_MUST and the like */
	int priority; /* among loads, or among saves: higher ones first; loads
			 come before saves, but each gets its turn */
	void *stream; /* NULL: without an event the device's default stream */
	void *event;  /* NULL: none */
} kvfs_opts;

/* ---- sessions ---- */

/*
 * Open a session with the daemon at @path: a mount point or a control socket.
 * Succeeds without a daemon: until one appears every look-up misses.
 */
int kvfs_open(const char *path, kvfs_session **ret_session);

/*
 * Wait for transfers under way, then free the session.  If the daemon hangs,
 * work that has not begun is given up after some seconds, as by a deadline.
 * Spaces, leases, pools and transfers of the session must have been closed
 * before.  Takes NULL.
 */
void kvfs_close(kvfs_session *session);

/*
 * Return a descriptor that polls readable when a lease or transfer of this
 * session has completed, or the daemon was lost or has come back, since the
 * last kvfs_process.  kvfs_process clears it and returns how many leases and
 * transfers have completed.  The library makes progress without either call.
 */
int kvfs_fd(kvfs_session *session);
int kvfs_process(kvfs_session *session);

/*
 * Put at most @n events since the last call, oldest first, into @ret_events and
 * return their number.  Each stage of a lease, map or transfer that was begun
 * with a word (kvfs_opts.user, not 0) is one event, unless the object was freed
 * before.  Changes of the connection are one event, however many there were,
 * and come first.
 *
 * kvfs_reap clears kvfs_fd as kvfs_process does, if no event is left: use one
 * of the two.  Several threads may reap; each event goes to one of them.
 */
enum kvfs_event_what {
	KVFS_EVENT_CONNECTION = 1, /* @result: as kvfs_connection returns */
	KVFS_EVENT_LEASE,	   /* settled; @result: blocks held */
	KVFS_EVENT_XFER,	   /* every block has reached @stage or failed;
				      @result: blocks that reached it (of
				      SUBMITTED: blocks given to the device,
				      without those that failed before).  A load
				      or prefetch has only KVFS_COPIED, a flush
				      the stage that it waits for, a save all
				      stages: DURABLE only if the caller polls
				      or waits for it, or no block gets there,
				      SUBMITTED only with KVFS_TELL_SUBMITTED */
	KVFS_EVENT_MAP,		   /* @stage KVFS_COPIED; @result: blocks */
};

typedef struct kvfs_event {
	uint32_t what, stage;
	uint64_t user; /* 0: the connection */
	int64_t result;
	uint64_t n;	      /* blocks in all */
	uint64_t generation;  /* of the connection, when it was reaped */
	uint64_t reserved[3]; /* zero */
} kvfs_event;

long kvfs_reap(kvfs_session *session, kvfs_event *ret_events, size_t n);

/* Whether a daemon is connected: 1, 0. */
int kvfs_connected(kvfs_session *session);

/*
 * The same; *@ret_generation (may be NULL) is the number of connections so far,
 * the present one included; 0: none yet.  If the generation is unchanged and a
 * daemon is connected, a lease is intact.  A daemon that hangs stays connected:
 * look-ups miss, deadlines pass.
 * -EPROTONOSUPPORT: there is a daemon, and both have no version of the protocol
 * in common; standard error names the versions, once.  -EPERM: the daemon is
 * neither root's nor the caller's.  This release speaks only version 5 of the
 * protocol; from 0.2 on, each release also speaks the version of the release
 * before.
 */
int kvfs_connection(kvfs_session *session, uint64_t *ret_generation);

/* The daemon's statistics, as in .kvfs/stats, in *@ret_text (caller frees).
 * -ENOTCONN. */
int kvfs_stats(kvfs_session *session, char **ret_text);

/* ---- spaces ---- */

#define KVFS_CREATE 01000u /* or'ed with the mode of a new space; 0: 0700 */
#define KVFS_SHARED 02000u /* with it: another user's space will do */

/*
 * Open the space @name.  @layout is the JSON of its `.layout` (kvfs-space(5)),
 * or NULL to accept the present one.  KVFS_CREATE makes an absent space.  An
 * existing space must then belong to the caller or an operator (root, the
 * daemon's user): a space's owner controls its blocks, and reads what others
 * save to it.  KVFS_SHARED accepts any owner, if the space has the fingerprint
 * of @layout.  With a layout the call succeeds without a daemon; the space is
 * opened when a daemon appears.  -ENOENT, -EACCES, -EROFS; -EEXIST: the space
 * has another layout; -EPERM: @layout shares with other nodes a space that is
 * not shared, and the caller is neither its owner nor an operator; -ENOTCONN:
 * no daemon, and @layout is NULL.
 */
int kvfs_space_open(kvfs_session *session, const char *name, const char *layout,
		    unsigned flags, kvfs_space **ret_space);
void kvfs_space_close(kvfs_space *space); /* takes NULL */

/*
 * Remove every block, also leased and held ones (their bytes stay until they
 * are released).  A save that began before never seals: its blocks end with
 * -ESTALE at any stage, also blocks that wait for room; of other sessions'
 * saves, blocks that the daemon has reserved.  Waits until all blocks are gone,
 * at most a minute, and not for a daemon that hangs (-ETIMEDOUT: the daemon
 * goes on). -EACCES, -ENOTCONN.
 */
int kvfs_space_clear(kvfs_space *space);

/*
 * Remove every block as kvfs_space_clear does, and then the space with its
 * layout and snapshots.  @space must still be closed, and misses from now on.
 * -ENOTEMPTY: other clients continue to save to it; -EACCES: another user owns
 * it, and the caller is no operator; -ENOENT, -EROFS, -ENOTCONN, -ETIMEDOUT.
 */
int kvfs_space_remove(kvfs_space *space);

/*
 * Remove @keys (@n 0: every block, as kvfs_space_clear does) here and from
 * every backend of the remote tier, which has @timeout nanoseconds for it, at
 * most ten minutes.  *@ret_text (caller frees) has a line for each backend: how
 * many blocks were removed, were absent, and may be there still, and why.
 * Returns how many may be there still; then, or on an error, call again.
 * -EOPNOTSUPP there is no remote tier, and nothing was removed; -EACCES,
 * -EROFS, -ENOTCONN; -ETIMEDOUT the daemon hangs.
 */
long kvfs_space_forget(kvfs_space *space, const kvfs_key *keys, size_t n,
		       uint64_t timeout, char **ret_text);

#define KVFS_LIST_MIN 64
/*
 * List the keys of the space's blocks, in no order, at most @max (KVFS_LIST_MIN
 * at least) a call.  *@cursor is 0 for the first page, is kept by the caller
 * between calls, and is 0 again after the last.  Returns the number of keys; a
 * page before the last may be short.  A block that exists all the time is
 * listed once, rarely twice if the space grows; a block that comes or goes
 * meanwhile may be missing.  One round trip for each 512 keys. -ENOENT (also:
 * the caller may not read the space), -ENOTCONN.
 */
long kvfs_space_keys(kvfs_space *space, uint64_t *cursor, kvfs_key *ret_keys,
		     size_t max);

/*
 * Read the token ids of the blocks @keys, of a space with "token_ids" in its
 * layout; with kvfs_space_keys, of all its blocks.  The first blocks whose ids
 * fit into the @bytes at @buffer (aligned to 8, at least KVFS_TOKENS_ROOM) are
 * read; returns their number, at least one of @n.  Pointers in @ret_tokens are
 * into @buffer.  One round trip for each 64 KiB; durable blocks are not read.
 * Every user who may read the space may read the ids. Statuses: 0, -ENOENT
 * (absent, or damaged), -EIO, -ENOMEM. -EINVAL also: the space keeps no ids;
 * -ENOENT (also: the caller may not read the space), -ENOTCONN, -ETIMEDOUT (the
 * daemon hangs).
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
/* Whether the space keeps token ids: 1, 0; -EMEDIUMTYPE: it is untyped. */
int kvfs_space_keeps_tokens(kvfs_space *space);

/* Return the owner and the permission bits of the space, as the daemon last
 * reported them; each may be NULL.  -ENOTCONN: no daemon has reported them yet.
 * */
int kvfs_space_owner(kvfs_space *space, uint32_t *ret_uid, uint32_t *ret_mode);

/* The canonical layout, valid until the space is closed; NULL: untyped. */
const char *kvfs_space_layout(kvfs_space *space);
/* Bytes of a block's tensors; 0: untyped. */
uint64_t kvfs_space_payload(kvfs_space *space);
/* Layers of a block, as defined at kvfs_opts; 0: untyped. */
long kvfs_space_layers(kvfs_space *space);

/* ---- keys ---- */

/* An input of the KV besides tokens: an adapter, a salt, a media hash.  Extras
 * are hashed with tag and length, so that no two lists of extras are equal. */
typedef struct kvfs_extra {
	const char *tag;
	const void *data;
	size_t len;
	uint64_t reserved[1];
} kvfs_extra;

/*
 * Compute the keys of the full blocks of @tokens: XXH3-128, chained from
 * @parent (NULL: the beginning), seeded by the fingerprint of the space's
 * layout, with its salt and @extras in every block.  Deterministic across
 * processes and machines. Returns the number of keys: @n_tokens / tokens per
 * block, at most @max. -EINVAL: the layout has no number of tokens per block.
 * XXH3 protects from accidents, not from attackers: libkvfs(3).
 */
long kvfs_key_chain(kvfs_space *space, const kvfs_key *parent,
		    const uint32_t *tokens, size_t n_tokens,
		    const kvfs_extra *extras, size_t n_extras,
		    kvfs_key *ret_keys, size_t max);

void kvfs_key_name(const kvfs_key *key, char name[65]);	 /* lowercase hex */
int kvfs_key_parse(const char *name, kvfs_key *ret_key); /* 32 or 64 digits */
/* Shorten a longer engine key by SHA-256. */
int kvfs_key_fold(const void *data, size_t len, kvfs_key *ret_key);
/* Copy a hash of 16 or 32 bytes. */
int kvfs_key_set(const void *data, size_t len, kvfs_key *ret_key);

/* ---- look-up ---- */

/* Keys of one space in chain order, position 0 first; a query for each rank or
 * layer group of a model. */
typedef struct kvfs_query {
	kvfs_space *space;
	const kvfs_key *keys;
	size_t n;
	uint64_t start, tokens; /* of kvfs_match_tokens; others ignore them */
	uint64_t reserved[1];
} kvfs_query;

enum kvfs_state {
	KVFS_ABSENT,
	KVFS_SAVING,
	KVFS_REMOTE,
	KVFS_SSD,
	KVFS_DRAM,
};

/*
 * Put the states of all keys, query after query, into @ret_states (one byte a
 * key).  Returns how many blocks are on SSD or in DRAM.  Without a daemon, or
 * the right to read the space, keys are KVFS_ABSENT.
 */
long kvfs_probe(const kvfs_query *queries, size_t n_queries,
		uint8_t *ret_states);

/*
 * Return the usable prefix in blocks: the longest p from which every query's
 * space can continue under its layout's reuse rule: `prefix` needs keys 0..p-1,
 * `window:N` the last N of them, `last` only key p-1.
 */
long kvfs_match(const kvfs_query *queries, size_t n_queries);

/*
 * Return the usable prefix in tokens, for groups whose blocks have different
 * numbers of tokens: the longest prefix that is a number of whole blocks in
 * every query's space, and from which each space can continue.  A query's keys
 * belong to the blocks from token @start on (a multiple of the block's tokens);
 * the engine has the blocks before, which count as present.  If @tokens is not
 * 0, the prompt ends there: a block beyond it is a tail, whose key may be in
 * the query and never counts.  Acquire the first (result - start) / tokens of a
 * block keys of each query, or the last of those keys that its rule needs.
 * -EINVAL also: a layout without a number of tokens per block.
 */
long kvfs_match_tokens(const kvfs_query *queries, size_t n_queries);

/*
 * Bring the blocks to DRAM and hold them there.  The lease exists at once and
 * settles within @opts->deadline (1: at once, with the blocks in DRAM).  The
 * blocks' statuses then are 0, -ENOENT, -ETIMEDOUT, -ENOSPC (no room in DRAM),
 * -ENOLCK (more than KVFS_LEASED_MAX), -EIO, -EBADMSG (damaged, now absent),
 * -ECANCELED, -ENOTCONN, -ESTALE (the daemon went away), -EMFILE, -ENFILE and
 * -ENOMEM (the process has no descriptor or address space to map the block's
 * memory: its own limits; the next acquire tries again).
 * Indices run through all keys, query after query.
 *
 * KVFS_READ_AHEAD, which excludes other flags (-EINVAL), does not wait for SSD:
 * blocks that are only on SSD have the status -EAGAIN, and the daemon reads
 * them to DRAM, as for kvfs_prefetch, until the deadline.  The daemon does so
 * for each 512 keys of a query whose first four are in DRAM.
 *
 * Of @opts, deadline, user and these flags are used; all else is -EINVAL.
 */
int kvfs_acquire(const kvfs_query *queries, size_t n_queries,
		 const kvfs_opts *opts, kvfs_lease **ret_lease);
int kvfs_lease_poll(kvfs_lease *lease); /* 1 settled, 0 not yet */
/* Blocks.  Returns how many blocks are held, or -ETIMEDOUT. */
long kvfs_lease_wait(kvfs_lease *lease, uint64_t deadline);
/* -EINPROGRESS until settled; -EINVAL: no such index. */
int kvfs_lease_status(kvfs_lease *lease, size_t i);
/* Put the statuses of blocks @first .. + @n into @ret_statuses; returns how
 * many are 0.  -EINVAL: no such blocks. */
long kvfs_lease_statuses(kvfs_lease *lease, size_t first, size_t n,
			 int *ret_statuses);
/*
 * Return the block's tensors in the daemon's arena, without a copy, read-only;
 * NULL unless its status is 0.  Valid until kvfs_release, also if the daemon
 * dies.
 */
const void *kvfs_lease_data(kvfs_lease *lease, size_t i, uint64_t *ret_bytes);
/* The whole file, safetensors header included. */
const void *kvfs_lease_file(kvfs_lease *lease, size_t i, uint64_t *ret_bytes);
/* Stop waiting: blocks that are not in DRAM settle with -ECANCELED. */
void kvfs_lease_cancel(kvfs_lease *lease);
/* Release and free the lease, settled or not.  A load that uses it keeps the
 * blocks until it ends.  Takes NULL. */
void kvfs_release(kvfs_lease *lease);

/* ---- pools: the engine's pages ---- */

/*
 * A strided part of a pool.  Page p of the view has @count segments of @bytes
 * each, segment s at base + p * block_stride + s * segment_stride.  The views
 * of one tensor, in the order given, cover it without gaps: a view holds
 * pages_per_block * count * bytes of it, page by page.
 */
typedef struct kvfs_view {
	const char *tensor; /* name of a tensor of the space's layout */
	void *base;
	uint64_t block_stride;
	uint64_t bytes;
	uint64_t count;
	uint64_t segment_stride; /* 0 if count is 1 */
	uint64_t reserved[2];
} kvfs_view;

typedef struct kvfs_pool_desc {
	size_t size;
	const char *device; /* "host", or "cuda", "cuda:N" */
	kvfs_space *space;  /* typed: gives the tensors */
	const kvfs_view *views;
	size_t n_views;
	uint64_t pages;		  /* in each view */
	uint32_t pages_per_block; /* >= 1 */
	/* The memory that contains all views.  Optional: with NULL and 0, views
	 * are checked only for overflow of addresses. */
	const void *memory;
	uint64_t memory_bytes;
	/* A file in memory (memfd, /dev/shm, hugetlbfs), of which @memory is a
	 * shared mapping from @memory_offset on; 0: none.  The caller keeps the
	 * descriptor.  The daemon saves blocks from the pages: no staging, one
	 * copy.  Fastest is a memfd that is allocated and sealed against
	 * shrinking, growing and new writers. */
	uint64_t memory_offset;
	int memory_fd; /* not 0; open for reading at least */
	uint32_t reserved;
} kvfs_pool_desc;

/*
 * Register the engine's own memory, which stays the engine's and must outlive
 * the pool.  -EINVAL: null, zero, overlap within a view, overflow, an end
 * outside @memory, a tensor that the views do not cover exactly, or @memory is
 * no shared mapping of that part of @memory_fd, or not of the device "host";
 * -ENODEV: no such device, or a plug-in that cannot be used (standard error has
 * the reason); -EIO: the device failed; -EMEDIUMTYPE: the space is untyped;
 * -EBADF, -EMFILE: @memory_fd.
 *
 * With @memory_fd, a save lends its pages to the daemon until COPIED, which
 * then is the same moment as SEALED.  A save that is cancelled, or whose
 * deadline passes, takes the pages back and ends at once, also when the daemon
 * hangs.  The daemon may still seal blocks that it had copied by then, and
 * never seals bytes that were written later; nor does it after the process has
 * ended, so another process that has waited for that end may use the pages.  A
 * page that cannot be read (the file is shorter) is -EFAULT for its block.
 * Blocks go by staging until the daemon has accepted the descriptor, or if it
 * refuses, as it does files that are not in memory: kvfs_pool_info has the
 * reason.
 */
int kvfs_pool_register(kvfs_session *session, const kvfs_pool_desc *desc,
		       kvfs_pool **ret_pool);
/*
 * Wait for the pool's transfers, then free it; the library no longer touches
 * its pages.  Work that has not begun is given up, as by a deadline
 * (-ETIMEDOUT): after some seconds if the daemon hangs, after five seconds if
 * it waits for a stream or an event.  Copies that a device has begun are waited
 * for without limit.  Transfers and leases may be freed before or after.  Takes
 * NULL.
 */
void kvfs_pool_close(kvfs_pool *pool);

struct kvfs_pool_info {
	size_t size; /* set by the caller */
	const char *device;
	const char *path; /* how bytes travel, e.g. "arena, streaming stores" */
	const char *reason; /* for the path; valid until the pool is closed */
	uint64_t bytes_pinned;	   /* by the device, for its pools */
	uint64_t bytes_registered; /* of arena and staging, with the device */
	uint64_t bytes_refused;	   /* of them, refused by the device */
	uint64_t threads;	   /* copy threads */
	uint64_t bytes_staging;	   /* pinned for saves */
	/* Pages in use by transfers, each counted once however many transfers
	 * use it: an engine subtracts pages_saving from its free pages. */
	uint64_t pages_loading, pages_saving;
	uint64_t staging_huge; /* 1: staging is in 2 MiB pages */
	/* Pinned buffers of each copy thread, for bytes that the device cannot
	 * copy straight. */
	uint64_t buffers, buffer_bytes;
	/* Reserved pages; all 0 for a pool of the engine's memory. */
	void *base;	     /* page p is at base + p * page_bytes */
	uint64_t page_bytes; /* a block's tensors, and up to 4096 */
	uint64_t pages, pages_max;
	uint64_t pages_free;
	uint64_t pages_cached; /* hold a block that is not mapped */
	uint64_t pages_mapped; /* or being filled for a map */
	uint64_t pages_taken;
	uint64_t lent; /* 1: the daemon saves whole blocks from the pages */
	const char *lent_reason; /* the reason if it does not, or "" */
};
/* -EINVAL: no size; -E2BIG: a size out of proportion. */
int kvfs_pool_info(kvfs_pool *pool, struct kvfs_pool_info *ret_info);

/* ---- transfers ---- */

/*
 * Copy blocks @opts->first .. +@n of @lease to @pages (n * pages_per_block, -1
 * skips one).  @opts may be NULL.  The lease may be released at once; the pages
 * must not be touched until COPIED.  A block whose lease status is not 0 keeps
 * that status, and its pages are not touched.  A load of an unsettled lease
 * begins when the lease settles. Statuses: 0, the lease's, -ETIMEDOUT and
 * -ECANCELED (not begun; layer by layer: not complete), -ESTALE (the daemon
 * went away since), -EBADMSG (the layout differs from the pool's), -EIO (the
 * device failed: the pages' bytes are undefined, as after a load layer by layer
 * that ends half-way). -EINVAL: a page outside the pool, a page twice, a range
 * outside the lease, no such layers, flags other than KVFS_BY_LAYER and
 * KVFS_TELL_SUBMITTED; -EOPNOTSUPP: a stream or event on a device without;
 * -EBUSY: a stream that is being captured; errors of the device.
 */
int kvfs_load(kvfs_pool *pool, kvfs_lease *lease, size_t n,
	      const int64_t *pages, const kvfs_opts *opts,
	      kvfs_xfer **ret_xfer);

#define KVFS_EXTRAS_MAX 2048u
#define KVFS_CHAIN UINT32_MAX /* kvfs_meta.parent.len: the key before */

typedef struct kvfs_meta {
	kvfs_key parent; /* len 0: unknown; KVFS_CHAIN: the key before in this
			    call; the first key then has none */
	uint32_t position;
	uint32_t tokens; /* 0: as the layout says */
	/* The ids of the tokens, and up to KVFS_EXTRAS_MAX bytes on the block's
	 * other inputs, in the caller's form.  A space with "token_ids" needs
	 * the ids; other spaces refuse both. */
	uint32_t extras_len;
	const uint32_t *token_ids;
	const void *extras;
	uint64_t reserved_more[4]; /* zero */
} kvfs_meta;

/*
 * Save @n blocks from @pages under @keys.  @meta has @n items, or is NULL: a
 * chain from position 0.  Blocks that are present or being saved are skipped
 * before any copy, with status 1 (KVFS_PRESENT), which is success.  The pages
 * are reusable when COPIED; other clients find the blocks when SEALED; they
 * survive power loss when DURABLE.  A block that another client is saving
 * counts as SEALED at once, and is found when that save ends; DURABLE waits for
 * that save, at most two seconds (-ENOENT).
 *
 * A block with fewer tokens than its layout's is saved as it is in the pages:
 * the caller zeroes the bytes of missing tokens, as a layout does not define
 * which bytes belong to a token.
 *
 * KVFS_MUST: blocks without room (otherwise -ENOSPC, -EAGAIN) wait for room
 * until @opts->deadline, without delaying other transfers.  Sealed blocks are
 * not evicted before they are durable, if there is an SSD tier and the space's
 * quota allows that.  kvfs_close also waits for such blocks.
 *
 * KVFS_HOLD: blocks that this call seals (not those that were present) are
 * leased from their seal until kvfs_xfer_free.  A sixteenth of DRAM cannot be
 * held: -ENOSPC.
 *
 * Statuses: 0, KVFS_PRESENT, KVFS_EVICTED (a caller waited for DURABLE: the
 * block was durable, and has been evicted since), -ENOSPC, -ENOLCK (held: more
 * than KVFS_LEASED_MAX), -EAGAIN (beyond the space's rate), -EFBIG, -EACCES,
 * -EROFS, -ESTALE (the space was cleared), -ENOTCONN, -ECANCELED and -ETIMEDOUT
 * (the daemon may still seal a block that was COPIED), -EFAULT (lent pages),
 * -EIO, -ENOENT (removed or evicted before it was durable), -EBADMSG (a process
 * of the space's owner changed the block's bytes in memory before it was
 * durable, see arena= in kvfs(1): the block is gone, others are intact),
 * -EMFILE, -ENFILE, -ENOMEM (the process has no descriptor or memory for
 * staging: its own limits). -EINVAL: a page outside the pool or missing (-1),
 * another space's layout, more tokens than the layout's, missing or unexpected
 * token ids; -E2BIG: too many extras; -EOPNOTSUPP: @opts->layers, as blocks are
 * always saved whole.
 */
#define KVFS_PRESENT 1
#define KVFS_EVICTED 2 /* also success */
int kvfs_save(kvfs_pool *pool, kvfs_space *space, const kvfs_key *keys,
	      const kvfs_meta *meta, size_t n, const int64_t *pages,
	      const kvfs_opts *opts, kvfs_xfer **ret_xfer);

/* Return 1 if every block has reached @stage or failed, else 0.  (A block that
 * is SUBMITTED may still fail to be COPIED.) */
int kvfs_xfer_poll(kvfs_xfer *xfer, enum kvfs_stage stage);
/* Wait until every block has reached @stage or failed.  Returns how many
 * reached it (SUBMITTED: how many had not failed by then), or -ETIMEDOUT. */
long kvfs_xfer_wait(kvfs_xfer *xfer, enum kvfs_stage stage, uint64_t deadline);
/* Wait until at least @n blocks are COPIED or have failed, in any order.
 * Returns their number, or -ETIMEDOUT. */
long kvfs_xfer_wait_some(kvfs_xfer *xfer, size_t n, uint64_t deadline);
/*
 * Return 1 if layer @layer of every block is in the pages, or the block has
 * failed, else 0; or wait for that: 0, or -ETIMEDOUT.  A load with
 * KVFS_BY_LAYER has layers before COPIED, any other transfer with COPIED.
 * Blocks get status 0 when all is COPIED, and a failure at once.  -EINVAL: a
 * layer that is not among those of @xfer, a transfer without pages.
 */
int kvfs_xfer_poll_layer(kvfs_xfer *xfer, uint32_t layer);
int kvfs_xfer_wait_layer(kvfs_xfer *xfer, uint32_t layer, uint64_t deadline);
/* -EINPROGRESS, 0, KVFS_PRESENT, KVFS_EVICTED or the error. */
int kvfs_xfer_status(kvfs_xfer *xfer, size_t i);
/* Put the statuses of blocks @first .. + @n into @ret_statuses; returns how
 * many are not negative.  -EINVAL: no such blocks. */
long kvfs_xfer_statuses(kvfs_xfer *xfer, size_t first, size_t n,
			int *ret_statuses);
/*
 * Have work that @stream is given from now on wait, on the device, until @xfer
 * is COPIED, failed blocks included; or until its layer @layer is, if it was
 * begun with KVFS_BY_LAYER (otherwise that is the same).  No thread waits.
 * Check the statuses before relying on the pages.  The transfer may be freed
 * afterwards.
 *
 * -EAGAIN: not all of these copies are SUBMITTED, and nothing was ordered: a
 * stream never waits for copies that the device was not given yet.  Do not give
 * @stream work that needs the pages then.  Try again, or first wait for
 * KVFS_SUBMITTED, or for the layer (kvfs_xfer_wait_layer).  A large transfer is
 * SUBMITTED shortly before it is COPIED.  When all is COPIED nothing is
 * ordered, and @stream is not checked.  NULL is the device's default stream.
 * -EBUSY: the stream is being captured, which continues undisturbed;
 * -EOPNOTSUPP: the device has no streams (host); -EINVAL: a layer that is not
 * among those of @xfer, a transfer without pages, KVFS_NO_STREAM, an invalid
 * stream.
 */
int kvfs_xfer_order(kvfs_xfer *xfer, void *stream);
int kvfs_xfer_order_layer(kvfs_xfer *xfer, uint32_t layer, void *stream);
/* End blocks that have not begun, and the wait for DURABLE (-ECANCELED).  The
 * transfer keeps its pages until it is COPIED. */
void kvfs_xfer_cancel(kvfs_xfer *xfer);
/* Free the handle; a transfer under way continues.  Takes NULL. */
void kvfs_xfer_free(kvfs_xfer *xfer);

/*
 * Begin a barrier.  With KVFS_SEALED it ends when every save that this session
 * began in @space before is sealed.  With KVFS_DURABLE it ends when every block
 * that was sealed or removed in @space before, by any client, has been durable;
 * a block that is not pinned may be evicted from SSD again at any time. Status
 * 0 is 0, -ENOSPC, -EIO, -EBADMSG (a block was changed, as for kvfs_save, and
 * is gone; the others may be durable) or -EOPNOTSUPP (no SSD tier).  Of @opts
 * (may be NULL), user is used, all else is -EINVAL.
 */
int kvfs_flush(kvfs_space *space, enum kvfs_stage stage, const kvfs_opts *opts,
	       kvfs_xfer **ret_xfer);

/*
 * Give a hint: bring these blocks to DRAM, in order, from SSD or, if they are
 * absent, from the remote tier (kvfs-remote(7)), within the daemon's budget.
 * The blocks are not held there. The transfer is COPIED when every block is in
 * DRAM or has failed: statuses 0, -ENOENT, -ENOSPC, -ETIMEDOUT (not begun
 * within @opts->deadline), -ECANCELED (by kvfs_xfer_cancel: reads under way
 * still land), -EIO, -EBADMSG, -ENOTCONN. Of @opts (may be NULL), deadline and
 * user are used, all else is -EINVAL.
 */
int kvfs_prefetch(const kvfs_query *queries, size_t n_queries,
		  const kvfs_opts *opts, kvfs_xfer **ret_xfer);

/* ---- reserved pages: the library's own ---- */

/*
 * Make a pool of @pages pages that the library allocates on @device ("host").
 * A page has the tensors of one block of @space, one behind the other, rounded
 * up to 4096 bytes.  The pool grows to at most @max_pages when no page is free;
 * addresses stay.  A call that makes it grow takes as long as the device needs
 * for the memory (host: about a millisecond for 4 MiB); with @pages ==
 * @max_pages no call does.  kvfs_pool_info has the addresses and the number of
 * free pages. kvfs_load and kvfs_save refuse such a pool (-EINVAL).
 * kvfs_pool_close also ends maps and sets of pages, and frees their memory.
 * -EINVAL: no pages, @max_pages below @pages; -EOPNOTSUPP: the device has no
 * memory of its own; -ENODEV, -EIO, -EMEDIUMTYPE (as kvfs_pool_register),
 * -ENOMEM.
 */
int kvfs_pool_reserve(kvfs_session *session, const char *device,
		      kvfs_space *space, uint64_t pages, uint64_t max_pages,
		      kvfs_pool **ret_pool);

/*
 * Set the pinned memory for copies of a pool, also of the engine's memory, that
 * the device cannot make straight: @buffers of @bytes each.  The session's
 * saves get a ring of at least that much in all, made in the background.
 * Without this call a session has a MiB, or two blocks, made with its first
 * pool, and then 64 MiB, if all sessions of the process have at most 256 MiB;
 * and again with each new connection.  A GPU's copy threads have as many
 * buffers each, within limits (libkvfs-cuda(7)); the call waits until each
 * thread has ended its copy, so make it at the start.  -ENOMEM: more than a
 * quarter of the machine's memory, or memory that cannot be pinned.
 */
int kvfs_pool_staging(kvfs_pool *pool, uint64_t bytes, unsigned buffers);

/*
 * Have the blocks @keys of @space, whose tensors must be those of the pool's
 * layout, in pages for reading, until kvfs_unmap.  A block has one page in a
 * pool, for all its maps.  A block that has a page is not copied again, even if
 * it was evicted from the cache, as its bytes cannot change.  (After
 * kvfs_space_clear by this session the pool has no blocks of that space.)
 * Looks up the other blocks, as kvfs_probe does, then only starts work.
 *
 * A block that must be copied takes a free page; or the pool grows; or it takes
 * the page whose block was unmapped longest ago.  The first keys come first.
 * Blocks that succeed stay mapped if others fail.  Statuses: 0, -ENOENT,
 * -ENOSPC (no page, or DRAM held by others), -ETIMEDOUT (not within
 * @opts->deadline), -ECANCELED, and those of a lease and a load.  A block that
 * fails keeps no page.
 *
 * @opts may be NULL; deadline, priority, user, stream and event (for the copies
 * to wait for) are used; layers and flags are -EINVAL.
 */
int kvfs_map(kvfs_pool *pool, kvfs_space *space, const kvfs_key *keys, size_t n,
	     const kvfs_opts *opts, kvfs_mapping **ret_map);
/* Return 1 if every block is mapped or has failed, else 0. */
int kvfs_map_poll(kvfs_mapping *map);
/* Wait until every block is mapped or has failed.  Returns how many are mapped,
 * or -ETIMEDOUT. */
long kvfs_map_wait(kvfs_mapping *map, uint64_t deadline);
/* 0, -EINPROGRESS or the error; -EINVAL: no such index. */
int kvfs_map_status(kvfs_mapping *map, size_t i);
/* As kvfs_xfer_statuses. */
long kvfs_map_statuses(kvfs_mapping *map, size_t first, size_t n,
		       int *ret_statuses);
/* As kvfs_xfer_order: work that @stream is given from now on comes after all
 * blocks.  Pages and addresses are then also returned for blocks under way, and
 * are good if the status becomes 0.  -EAGAIN: not all copies are submitted, and
 * nothing was ordered. */
int kvfs_map_order(kvfs_mapping *map, void *stream);
/* Blocks that are not mapped yet fail with -ECANCELED. */
void kvfs_map_cancel(kvfs_mapping *map);
/* Return the block's page; its status, as long as that is not 0. */
int64_t kvfs_map_page(kvfs_mapping *map, size_t i);
/* Return the address of a tensor of the block, with NULL of the first; NULL as
 * long as the status is not 0.  Valid until kvfs_unmap. */
void *kvfs_map_addr(kvfs_mapping *map, size_t i, const char *tensor);
/*
 * End and free the map, settled or not.  Pages without another map keep their
 * blocks until they are taken for others, which is after the work that @stream
 * (NULL: the device's default stream; KVFS_NO_STREAM: none) was given so far.
 * Takes NULL.
 * -EOPNOTSUPP (no streams on this device), -ENOMEM: still mapped.
 */
int kvfs_unmap(kvfs_mapping *map, void *stream);

/*
 * Take @n pages to write to: compute; then kvfs_pages_seal or kvfs_pages_drop;
 * then kvfs_pages_free.  The bytes are undefined.  All or none: -ENOSPC.
 */
int kvfs_pages_take(kvfs_pool *pool, size_t n, kvfs_pages **ret_pages);
/* Return page number @i of the set; -EINVAL: no such page, or sealed or
 * dropped. */
int64_t kvfs_pages_page(kvfs_pages *pages, size_t i);
void *kvfs_pages_addr(kvfs_pages *pages, size_t i, const char *tensor);
/*
 * Save the first @n pages as the blocks @keys, as kvfs_save does, after
 * @opts->stream or event, and drop the other pages.  The pages do not change
 * any more.  From now on the blocks can be mapped without a copy, until their
 * pages are taken for others, also if the save fails (but not after
 * kvfs_space_clear): to keep the blocks, map them before taking or mapping
 * anything else.  A key that already has a page keeps that page. -EINVAL, and
 * nothing changed: sealed or dropped before, more keys than pages, arguments
 * that kvfs_save refuses; -EOPNOTSUPP, -ENOMEM.
 */
int kvfs_pages_seal(kvfs_pages *pages, kvfs_space *space, const kvfs_key *keys,
		    const kvfs_meta *meta, size_t n, const kvfs_opts *opts,
		    kvfs_xfer **ret_xfer);
/* Give all pages back unsealed, after the work that @stream (as for kvfs_unmap)
 * was given so far.  -EINVAL, and nothing changed: sealed or dropped before. */
int kvfs_pages_drop(kvfs_pages *pages, void *stream);
/* Free the set; drops its pages if they are neither sealed nor dropped, without
 * waiting for a stream.  Takes NULL. */
void kvfs_pages_free(kvfs_pages *pages);

/* ---- snapshots: a long context, kept under a name ---- */

#define KVFS_SNAPSHOT_MAX 131072u   /* blocks */
#define KVFS_POSITION_MAX 99999999u /* of a block in its chain */

/*
 * Pin the blocks @keys under @name: all of them, or none.  No byte is copied.
 * Until the snapshot is dropped the blocks stay in the cache, in DRAM as far as
 * the share of pins allows.  The snapshot is the directory
 * <space>/.snapshots/<name>/, and durable with the next kvfs_flush.  @positions
 * are the blocks' places in their chain, ascending; NULL: 0, 1, ... -ENOENT:
 * block *@ret_missing (may be NULL) is absent; -ENOSPC: too little could be
 * evicted from that block on, or there are too many snapshots; -EEXIST: the
 * name is taken; -EINVAL: a name that is empty, longer than 255 bytes, begins
 * with a dot or has a slash, no keys, too many; -EACCES, -EROFS, -ENOTCONN.
 */
int kvfs_snapshot(kvfs_space *space, const char *name, const kvfs_key *keys,
		  const uint32_t *positions, size_t n, size_t *ret_missing);

/* Read the keys of a snapshot and their positions in order, at most @max; each
 * array may be NULL.  Returns how many the snapshot has.  To restore it,
 * acquire and load the keys in windows (examples/restore.c).  -ENOENT,
 * -ENOTCONN. */
long kvfs_snapshot_keys(kvfs_space *space, const char *name, kvfs_key *ret_keys,
			uint32_t *ret_positions, size_t max);

/* List the names, oldest first, each with its NUL, in *@ret_names (caller
 * frees). Returns their number.  -ENOENT (no such space, or the caller may not
 * read it), -ENOTCONN. */
long kvfs_snapshot_list(kvfs_space *space, char **ret_names);

/* Unpin all blocks at once; pins by kvfs_pin or another snapshot stay.
 * -ENOENT, -EACCES, -EROFS, -ENOTCONN. */
int kvfs_snapshot_drop(kvfs_space *space, const char *name);

/* ---- housekeeping ---- */

/* Remove blocks from all tiers; absent ones are skipped.  @ret_statuses (may be
 * NULL) gets 0, -ENOENT, -EACCES, -ENOTCONN or -ETIMEDOUT (the daemon hangs,
 * and may still remove the block) for each key.  Returns how many were removed.
 * */
long kvfs_evict(kvfs_space *space, const kvfs_key *keys, size_t n,
		int *ret_statuses);
/*
 * Give a hint: the conversation with these blocks, in chain order, is over, and
 * they may be evicted before others.  Pinned blocks, and blocks that are used
 * again, keep their place.
 */
int kvfs_ended(kvfs_space *space, const kvfs_key *keys, size_t n);
/* Pin or unpin keys[first] .. keys[end - 1] of a chain.  Results as
 * kvfs_evict's, and -ENOSPC: too few evictable blocks would remain. */
long kvfs_pin(kvfs_space *space, const kvfs_key *keys, size_t first, size_t end,
	      int *ret_statuses);
long kvfs_unpin(kvfs_space *space, const kvfs_key *keys, size_t first,
		size_t end, int *ret_statuses);

#ifdef __cplusplus
}
#endif

#endif
