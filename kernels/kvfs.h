/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvfs.h - libkvfs: an engine's KV blocks in and out of the kvfs cache.
 *
 * Every function returns 0 or a count on success and -errno on failure.
 * Common errors, not repeated below: -EINVAL (an argument), -ENOMEM, -EBADF
 * (the handle was made before a fork, in the parent).  A daemon that is not
 * there is not an error: look-ups miss, saves end with -ENOTCONN per block, and
 * the library reconnects by itself.  A lease from before then keeps its
 * statuses and pointers, but a load from it ends with -ESTALE.
 *
 * Nothing but the _wait functions blocks for payload: look-ups wait for one
 * round trip to the daemon (about 20 microseconds, at most one second, then
 * they miss), everything else only starts work.  Payload is copied by the
 * library's own threads.
 *
 * Threads: a session and all its objects may be used from several threads, but
 * an object must not be freed while another thread uses it.  Arrays passed in
 * (keys, pages, meta, views) are copied before the call returns.
 *
 * Times are nanoseconds.  A deadline is relative to the call; KVFS_FOREVER
 * waits as long as it takes, 0 not at all.  Deadlines and cancels are kept by
 * the library's own clock, also when the daemon hangs, or a device: what has
 * not begun ends at once, and what the daemon was asked to do, or to stop, ends
 * with its answer or without: a twentieth of a second later, and a save whose
 * bytes were handed over a second later.  That ends waiting, not owning: memory
 * that is being copied, or that the daemon may still read, stays taken until
 * that is over.
 *
 * The interface grows, and what was built against an older one goes on.  A
 * struct that is passed alone begins with its size, which the caller sets (the
 * macros named _INIT do): what a caller does not know counts as zero, what the
 * library does not know must be zero (-E2BIG), and no more than the caller's
 * size is written.  Structs in arrays have reserved fields instead, which must
 * be zero (-EINVAL).  So name the members that you set, and the rest is zero:
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
 * (also as text, "0.2.0", which stays).  Before 1.0 a new minor is a new
 * interface, with a soname of its own. */
#define KVFS_VERSION 0x000200u
uint32_t kvfs_version(void);
const char *kvfs_version_text(void);

#define KVFS_KEY_MAX 32

/*
 * Limits of a session, at a time.  Blocks beyond end with -ENOLCK, but for
 * keys, which are -EINVAL.  Saves of whole blocks have no such limit: the
 * library hands the daemon as many as it takes.
 */
#define KVFS_KEYS_MAX 16777216 /* in one call */
#define KVFS_LEASED_MAX 65536  /* blocks leased, or being acquired */
/* Messages without an answer: an acquire, a prefetch or a flush of a save has
 * one for each 512 keys of a space. */
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
 * SUBMITTED comes before COPIED: a device with streams has been given every copy
 * between pages and host, or the block has failed.  The rest happens by itself
 * then, and streams can be ordered after it (kvfs_xfer_order).  Where there is
 * nothing to order it is the same moment as COPIED.
 */
enum kvfs_stage { KVFS_COPIED = 1, KVFS_SEALED, KVFS_DURABLE, KVFS_SUBMITTED };

#define KVFS_MUST 1u	    /* save: wait for room, never end with -ENOSPC */
#define KVFS_HOLD 2u	    /* save: hold what it sealed until kvfs_xfer_free */
#define KVFS_BY_LAYER 4u    /* load: all blocks layer by layer */
#define KVFS_WAIT_SAVING 8u /* acquire: wait for saves under way, too */
#define KVFS_READ_AHEAD 16u /* acquire: hold what is in DRAM, read the rest */
#define KVFS_AGAIN 64u /* acquire: the use of another lease, count no hit */
#define KVFS_TELL_SUBMITTED \
	32u /* load, save: kvfs_reap tells of SUBMITTED, too */

/*
 * How a transfer is to go, or a lease; NULL is all zero: everything, at once,
 * in its turn, for as long as it takes.  What a call has no use for must be
 * zero there, if it says so (-EINVAL).
 *
 * @user, if it is not 0: kvfs_reap tells by that word how this call gets on.
 *
 * Layers are what the layout says: "layers": D, index l of dimension D of
 * every tensor; "tensors", tensor l in file order; [["k0","v0"],["k1","v1"]],
 * the tensors of each layer.  A layout that does not say it has layers by
 * dimension 0 if that is as long in all tensors, and else by tensor: four
 * tensors [8,16,64] count as 8 layers then, so say it (kvfs_space_layers).
 * A load or save of some layers touches no byte of the others.
 *
 * Order.  @stream and @event are the device's (CUstream, CUevent).  No byte of
 * the pages is read or written before all that @stream has been given by the
 * time of the call, or what @event stands for, is over.  With neither, as in
 * CUDA, the device's default stream is meant (CUDA's legacy one, (void *)1;
 * (void *)2 is the calling thread's); only KVFS_NO_STREAM is none: the copies
 * begin at once, whatever the pages' kernels are doing.  The device "host" has
 * no streams: NULL and KVFS_NO_STREAM are the same there, and others are
 * -EOPNOTSUPP.  A stream and an event are -EINVAL.  The event may be destroyed
 * after the call.
 */
#define KVFS_NO_STREAM ((void *)UINTPTR_MAX)

typedef struct kvfs_opts {
	size_t size;
	uint64_t user;
	uint64_t first;	   /* load: index of the first block in the lease */
	uint64_t deadline; /* 0: for ever; what is not begun by then ends with
			      -ETIMEDOUT, and what the daemon has not sealed a
			      second after it was handed over */
	uint64_t reserved[2];	      /* zero */
	uint32_t first_layer, layers; /* load: only these; 0 layers: all */
	uint32_t flags;		      /* KVFS_MUST and the like */
	int priority; /* among loads, or among saves: higher ones first; loads
			 come before saves, but none waits for ever */
	void *stream; /* NULL: without an event the device's default stream */
	void *event;  /* NULL: none */
} kvfs_opts;

/* ---- sessions ---- */

/*
 * Open a session with the daemon at @path: a mount point or a control socket.
 * Succeeds without either; everything is a miss until one appears.
 */
int kvfs_open(const char *path, kvfs_session **ret_session);

/*
 * Waits for transfers under way, then frees.  If the daemon hangs, what has not
 * begun is given up after some seconds, as by a deadline.  Spaces, leases,
 * pools and transfers of the session must have been closed before.  Takes NULL.
 */
void kvfs_close(kvfs_session *session);

/*
 * A descriptor that polls readable when something of this session has
 * completed, or the daemon was lost or has come back, since the last
 * kvfs_process, which clears it and returns how many leases and transfers have
 * completed.  The library needs neither to make progress.
 */
int kvfs_fd(kvfs_session *session);
int kvfs_process(kvfs_session *session);

/*
 * What has happened since it was reaped last, oldest first: at most @n events
 * into @ret_events; returns how many.  Each stage of a lease, map or transfer
 * that was begun with a word of the caller's (kvfs_opts.user, not 0) is told
 * once, unless that has been freed before; and that the connection was lost or
 * has come, first of all, once for however often that was.
 *
 * Clears kvfs_fd as kvfs_process does, if nothing is left: use the one or the
 * other.  Several threads may reap; each event goes to one of them.
 */
enum kvfs_event_what {
	KVFS_EVENT_CONNECTION = 1, /* @result: as kvfs_connection returns */
	KVFS_EVENT_LEASE,	   /* settled; @result: blocks held */
	KVFS_EVENT_XFER,	   /* @stage is over; @result: blocks that are
				      there (SUBMITTED: that the device has, or
				      had; absent ones, and others that failed
				      before, are not).  A load or prefetch has
				      KVFS_COPIED alone, a flush what it was
				      asked for, a save all; but DURABLE only if
				      that is asked for (kvfs_xfer_poll), or no
				      block gets as far, and SUBMITTED only with
				      KVFS_TELL_SUBMITTED */
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
 * The same, and in *@ret_generation (may be NULL) how many connections there
 * have been, the present one included; 0: none yet.  Who finds the number that
 * there was when a lease was made, and a daemon connected, has lost nothing.
 * A daemon that hangs stays connected: look-ups miss, deadlines pass.
 * One that is there, but not for us, is -EPROTONOSUPPORT (no version of the
 * protocol is spoken by both; which those are is said on standard error, once)
 * or -EPERM (it is neither root's nor the caller's).  This release speaks version
 * 5 of the protocol only; from 0.2 on, each release also speaks the version of the
 * release before.
 */
int kvfs_connection(kvfs_session *session, uint64_t *ret_generation);

/* The daemon's statistics, as in .kvfs/stats, in *@ret_text (caller frees).
 * -ENOTCONN. */
int kvfs_stats(kvfs_session *session, char **ret_text);

/* ---- spaces ---- */

#define KVFS_CREATE 01000u /* or'ed with the mode of a new space; 0: 0700 */
#define KVFS_SHARED 02000u /* with it: another user's space will do */

/*
 * Open the space @name.  @layout is the JSON of its `.layout` (kvfs(1)), or
 * NULL to take it as it is.  With KVFS_CREATE it is made if absent; one that is
 * there must then be the caller's own or an operator's (root, the daemon's
 * user), for its owner says what is in it, and reads what is saved to it.
 * KVFS_SHARED takes anybody's, if it has the fingerprint of @layout.
 * -ENOENT, -EACCES, -EEXIST (it has another layout), -EPERM (@layout shares
 * with other nodes a space that has none, and is neither the caller's nor is he
 * an operator), -EROFS, -ENOTCONN (no daemon, and @layout is NULL).  With a layout it succeeds without a daemon,
 * and is opened when one appears.
 */
int kvfs_space_open(kvfs_session *session, const char *name, const char *layout,
		    unsigned flags, kvfs_space **ret_space);
void kvfs_space_close(kvfs_space *space); /* takes NULL */

/*
 * Drop every block, leased and held ones too (their bytes stay until they are
 * released).  A save begun before never seals: its blocks end with -ESTALE, at
 * whatever stage, those that wait for room included.  Of other
 * sessions that is said of blocks that the daemon has reserved for them.
 * Waits until all are gone, a minute at most, and not for a daemon that hangs
 * (-ETIMEDOUT: it goes on).
 * -EACCES, -ENOTCONN.
 */
int kvfs_space_clear(kvfs_space *space);

/*
 * Drop every block as kvfs_space_clear does, and then the space itself, with
 * its layout and snapshots.  @space stays to be closed, and misses from now on.
 * -ENOTEMPTY: others go on saving to it; -EACCES: it is somebody else's, and
 * the caller no operator; -ENOENT, -EROFS, -ENOTCONN, -ETIMEDOUT.
 */
int kvfs_space_remove(kvfs_space *space);

/*
 * Remove @keys (@n 0: every block, as kvfs_space_clear does) here and from every
 * backend of the remote tier, which has @timeout nanoseconds for it, at most ten
 * minutes.  *@ret_text (caller frees) has a line for each backend: how many blocks
 * were removed, were absent, and may be there still, and why.  Returns how many may
 * be there still; then, or on an error, call again.
 * -EOPNOTSUPP there is no remote tier, and nothing was removed; -EACCES, -EROFS,
 * -ENOTCONN; -ETIMEDOUT the daemon hangs.
 */
long kvfs_space_forget(kvfs_space *space, const kvfs_key *keys, size_t n,
		       uint64_t timeout, char **ret_text);

#define KVFS_LIST_MIN 64
/*
 * The keys of the space's blocks, in no order, at most @max (KVFS_LIST_MIN at
 * least) into @ret_keys, a page at a time: *@cursor is 0 for the first, stays
 * as it was left for the next, and is 0 again after the last.  Returns how many
 * these are; a page before the last may be short.  What is there all the time
 * is listed once, seldom twice if the space grows meanwhile; what comes or goes
 * may be or not.  A round trip for each 512 keys.
 * -ENOENT (also: it may not be read), -ENOTCONN.
 */
long kvfs_space_keys(kvfs_space *space, uint64_t *cursor, kvfs_key *ret_keys,
		     size_t max);

/*
 * What the tokens are of blocks @keys, for an index of one's own or a replay:
 * with kvfs_space_keys, of all blocks of a space that keeps them ("token_ids" in
 * its layout).  As many of the first as go into the @bytes at @buffer, aligned
 * to 8 and KVFS_TOKENS_ROOM at least; returns how many that are, at least one of
 * @n.  Pointers in @ret_tokens are into @buffer.  A round trip for each 64 KiB;
 * no block is read that is durable.  Who may read the space may ask.
 * Statuses: 0, -ENOENT (not here, or damaged), -EIO, -ENOMEM.
 * -EINVAL also: the space keeps none; -ENOENT (also: it may not be read),
 * -ENOTCONN, -ETIMEDOUT (the daemon hangs).
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
/* Whether the space keeps them: 1, 0; -EMEDIUMTYPE: it is untyped. */
int kvfs_space_keeps_tokens(kvfs_space *space);

/* The owner of the space when the daemon was last asked, and its permission
 * bits; each may be NULL.  -ENOTCONN: no daemon has been asked yet. */
int kvfs_space_owner(kvfs_space *space, uint32_t *ret_uid, uint32_t *ret_mode);

/* The canonical layout, valid until the space is closed; NULL: untyped. */
const char *kvfs_space_layout(kvfs_space *space);
/* Bytes of a block's tensors; 0: untyped. */
uint64_t kvfs_space_payload(kvfs_space *space);
/* Layers that a block has, as kvfs_opts says them; 0: untyped. */
long kvfs_space_layers(kvfs_space *space);

/* ---- keys ---- */

/* Another thing that the KV depends on: an adapter, a salt, a media hash.
 * Tagged and length-prefixed, so that no two sets of extras meet. */
typedef struct kvfs_extra {
	const char *tag;
	const void *data;
	size_t len;
	uint64_t reserved[1];
} kvfs_extra;

/*
 * Keys of the full blocks of @tokens: XXH3-128, chained from @parent (NULL: the
 * beginning), seeded and fingerprinted by the space's layout, with its salt and
 * @extras in every block.  Deterministic across processes and machines.
 * Returns how many keys: @n_tokens / tokens per block, at most @max.
 * -EINVAL: the layout does not say how many tokens a block has.
 * XXH3 guards against accidents, not attackers: libkvfs(3).
 */
long kvfs_key_chain(kvfs_space *space, const kvfs_key *parent,
		    const uint32_t *tokens, size_t n_tokens,
		    const kvfs_extra *extras, size_t n_extras,
		    kvfs_key *ret_keys, size_t max);

void kvfs_key_name(const kvfs_key *key, char name[65]);	 /* lowercase hex */
int kvfs_key_parse(const char *name, kvfs_key *ret_key); /* 32 or 64 digits */
/* A longer engine key, by SHA-256. */
int kvfs_key_fold(const void *data, size_t len, kvfs_key *ret_key);
/* Bytes of a 16 or 32 byte hash. */
int kvfs_key_set(const void *data, size_t len, kvfs_key *ret_key);

/* ---- look-up ---- */

/* Keys in chain order, position 0 first, in one space; one per rank or layer
 * group of a model. */
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
 * States of all keys, query after query, into @ret_states (one byte a key).
 * Returns how many are in SSD or DRAM.  A space that may not be read and a
 * daemon that is not there give KVFS_ABSENT.
 */
long kvfs_probe(const kvfs_query *queries, size_t n_queries,
		uint8_t *ret_states);

/*
 * The usable prefix in blocks: the longest p such that every query's space can
 * go on from there under its layout's reuse rule: `prefix` needs keys 0..p-1,
 * `window:N` the last N of them, `last` only key p-1.
 */
long kvfs_match(const kvfs_query *queries, size_t n_queries);

/*
 * The same in tokens, for groups whose blocks have different numbers of them:
 * the longest prefix, a number of whole blocks of every query's space, from
 * which each can go on.  A query's keys are of the blocks from token @start on
 * (a multiple of the block's): what is before counts as present, since the
 * engine has it.  If @tokens is not 0 the prompt ends there, and a block that
 * would go on beyond is a tail, whose key may be among the keys and never
 * counts.  What is to be acquired of a query then are its first (result -
 * start) / tokens of a block keys, or the last of them that its rule needs.
 * -EINVAL also: a layout that does not say how many tokens a block has.
 */
long kvfs_match_tokens(const kvfs_query *queries, size_t n_queries);

/*
 * Bring the keys into DRAM and hold them there.  The lease is made at once and
 * settles within @opts->deadline (1: at once, with what is in DRAM): its
 * blocks' statuses then are 0, -ENOENT, -ETIMEDOUT, -ENOSPC (no room in DRAM),
 * -ENOLCK (more than KVFS_LEASED_MAX), -EIO, -EBADMSG (damaged, now a miss),
 * -ECANCELED, -ENOTCONN, -ESTALE (the daemon went away), -EMFILE, -ENFILE and
 * -ENOMEM (the process has no descriptor, or no address space, to map the
 * block's memory: its own limits; the next acquire tries again).
 * Indices run through all keys, query after query.
 *
 * KVFS_READ_AHEAD, which goes with no other flag (-EINVAL), waits for no SSD:
 * blocks that are there alone have the status -EAGAIN, and are brought to DRAM
 * by themselves, as kvfs_prefetch does in that time, to be acquired later.
 * Of each 512 keys of a query that is done if the first four are in DRAM.
 *
 * Of @opts deadline, user and these flags are obeyed; all else is -EINVAL.
 */
int kvfs_acquire(const kvfs_query *queries, size_t n_queries,
		 const kvfs_opts *opts, kvfs_lease **ret_lease);
int kvfs_lease_poll(kvfs_lease *lease); /* 1 settled, 0 not yet */
/* Blocks.  Returns how many blocks are held, or -ETIMEDOUT. */
long kvfs_lease_wait(kvfs_lease *lease, uint64_t deadline);
/* -EINPROGRESS until settled; -EINVAL: no such index. */
int kvfs_lease_status(kvfs_lease *lease, size_t i);
/* The same of blocks @first .. + @n, into @ret_statuses; returns how many of
 * them are 0.  -EINVAL: there are no such blocks. */
long kvfs_lease_statuses(kvfs_lease *lease, size_t first, size_t n,
			 int *ret_statuses);
/*
 * The block's tensors in the arena, zero copy, read-only; NULL unless its
 * status is 0.  Valid until kvfs_release, also if the daemon dies.
 */
const void *kvfs_lease_data(kvfs_lease *lease, size_t i, uint64_t *ret_bytes);
/* The whole file, safetensors header included. */
const void *kvfs_lease_file(kvfs_lease *lease, size_t i, uint64_t *ret_bytes);
/* Stop waiting: what is not there settles with -ECANCELED. */
void kvfs_lease_cancel(kvfs_lease *lease);
/* Give back and free, settled or not.  A load that uses it goes on, and
 * really releases when it ends.  Takes NULL. */
void kvfs_release(kvfs_lease *lease);

/* ---- pools: the engine's pages ---- */

/*
 * A strided part of a pool.  Page p of the view has @count segments of @bytes
 * each, segment s at base + p * block_stride + s * segment_stride.  The views
 * of one tensor, in the order given, cover it without gaps: a view holds
 * pages_per_block * count * bytes of it, page by page.
 */
typedef struct kvfs_view {
	const char *tensor; /* as in the layout */
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
	/* The memory the views lie in; each must end inside.  Optional: NULL
	 * and 0 check only against overflow. */
	const void *memory;
	uint64_t memory_bytes;
	/* A file in memory (memfd, /dev/shm, hugetlbfs), of which @memory is a
	 * shared mapping from @memory_offset on; 0: none.  It stays the
	 * caller's.  The daemon saves whole blocks from where they are: no
	 * staging, one copy.  A memfd that is allocated, and sealed against
	 * shrinking, growing and new writers, is read fastest. */
	uint64_t memory_offset;
	int memory_fd; /* not 0; open for reading at least */
	uint32_t reserved;
} kvfs_pool_desc;

/*
 * Register the engine's own memory, which stays the engine's and must outlive
 * the pool.  -EINVAL: null, zero, overlap within a view, overflow, an end
 * outside @memory, a tensor that the views do not cover exactly, or @memory is
 * no shared mapping of that part of @memory_fd, or not of the device "host";
 * -ENODEV: no such device, or a plug-in that cannot be used (why is said on
 * stderr); -EIO: it failed; -EMEDIUMTYPE: the space is untyped; -EBADF, -EMFILE:
 * of @memory_fd.
 *
 * With @memory_fd, pages of a save are lent to the daemon until COPIED, which
 * is the same moment as SEALED then.  A save that is cancelled, or whose
 * deadline passes, takes them back at once, also from a daemon that hangs: its
 * blocks end so, the daemon may seal those that it had copied by then all the
 * same, and seals none with bytes that were written since.  Nor does it where
 * the process ends, so that another one may have the pages as soon as that has
 * been waited for.  A page that cannot be read (the file is shorter) is
 * -EFAULT for its block.  Parts of blocks go by staging, and
 * so does all that is saved before the daemon has taken the descriptor, or
 * where it does not: kvfs_pool_info tells.  It takes no file
 * that is not in memory.
 */
int kvfs_pool_register(kvfs_session *session, const kvfs_pool_desc *desc,
		       kvfs_pool **ret_pool);
/*
 * Waits for its transfers, then frees; nobody touches its pages any more.  What
 * has not begun is given up, as by a deadline (-ETIMEDOUT), after some seconds
 * if the daemon hangs, and after five if it waits for a stream or an event.  A
 * device that does not end what it was given is waited for.  Transfers and
 * leases may be freed before or after.  Takes NULL.
 */
void kvfs_pool_close(kvfs_pool *pool);

struct kvfs_pool_info {
	size_t size; /* set by the caller */
	const char *device;
	const char *path; /* how bytes travel, e.g. "arena, streaming stores" */
	const char *reason; /* why that way; valid until the pool is closed */
	uint64_t bytes_pinned;	   /* by the device, for its pools */
	uint64_t bytes_registered; /* of arena and staging, with the device */
	uint64_t bytes_refused;	   /* of them, which it would not have */
	uint64_t threads;	   /* that copy */
	uint64_t bytes_staging;	   /* pinned for saves */
	/* Pages that transfers under way have, each counted once, however many
	 * have it: an engine takes pages_saving off what it can give out. */
	uint64_t pages_loading, pages_saving;
	uint64_t staging_huge; /* 1: staging is in 2 MiB pages */
	/* Pinned, that each copy thread has for what cannot go straight. */
	uint64_t buffers, buffer_bytes;
	/* Reserved pages; all 0 for a pool of the engine's memory. */
	void *base;	     /* page p is at base + p * page_bytes */
	uint64_t page_bytes; /* a block's tensors, and up to 4096 */
	uint64_t pages, pages_max;
	uint64_t pages_free;
	uint64_t pages_cached; /* hold a block that nobody has mapped */
	uint64_t pages_mapped; /* and those on their way */
	uint64_t pages_taken;
	uint64_t lent; /* 1: the daemon saves whole blocks from the pages */
	const char *lent_reason; /* why it does not, or "" */
};
/* -EINVAL: no size; -E2BIG: one beyond reason. */
int kvfs_pool_info(kvfs_pool *pool, struct kvfs_pool_info *ret_info);

/* ---- transfers ---- */

/*
 * Copy blocks @opts->first .. +@n of @lease to @pages (n * pages_per_block,
 * -1 skips one).  @opts may be NULL.  The lease may be released at once, the
 * pages must not be touched until COPIED.  A block whose lease status is not 0
 * keeps that status; its pages are not touched.  If the lease has not settled
 * the load begins when it has.  Statuses: 0, the lease's, -ETIMEDOUT and
 * -ECANCELED (not begun; layer by layer: not all of it), -ESTALE (the daemon
 * went away since), -EBADMSG (another layout than the pool's), -EIO (the
 * device: the pages' bytes are undefined, as they are if a load layer by layer
 * ends half-way).
 * -EINVAL: a page outside the pool, a page twice, a range outside the lease,
 * layers that are not there, flags other than KVFS_BY_LAYER and
 * KVFS_TELL_SUBMITTED; -EOPNOTSUPP: a stream or event on a device without;
 * -EBUSY: a stream that is being captured; errors of the device.
 */
int kvfs_load(kvfs_pool *pool, kvfs_lease *lease, size_t n,
	      const int64_t *pages, const kvfs_opts *opts,
	      kvfs_xfer **ret_xfer);

#define KVFS_EXTRAS_MAX 2048u
#define KVFS_CHAIN UINT32_MAX /* kvfs_meta.parent.len: the key before it */

typedef struct kvfs_meta {
	kvfs_key parent; /* len 0: unknown; KVFS_CHAIN: the key before it in
			    this call, for the first one: none */
	uint32_t position;
	uint32_t tokens; /* 0: as the layout says */
	/* What the tokens are: as many ids as tokens, and up to KVFS_EXTRAS_MAX
	 * bytes on what else the block depends on, as the caller writes it.  A
	 * space with "token_ids" needs the ids, others take neither. */
	uint32_t extras_len;
	const uint32_t *token_ids;
	const void *extras;
	uint64_t reserved_more[4]; /* zero */
} kvfs_meta;

/*
 * Save @n blocks from @pages under @keys.  @meta has @n items, or is NULL: a
 * chain from position 0.  Keys that are present or being saved are skipped
 * before anything is copied, with status 1 (KVFS_PRESENT), which is success.
 * The pages are reusable when COPIED, others find the blocks when SEALED, they
 * survive power loss when DURABLE.  A key that somebody else is saving counts
 * as SEALED at once, and is found when he is done; for DURABLE he is waited
 * for, two seconds at most (-ENOENT).
 *
 * A block with fewer tokens than its layout says has what its pages have: what
 * it lacks is zero if the caller made it so, since a layout does not tell which
 * bytes are a token's.
 *
 * KVFS_MUST: what finds no room (-ENOSPC, -EAGAIN otherwise) waits for it, as
 * long as @opts->deadline allows, in nobody's way; and once sealed it is not
 * evicted before it is durable, if there is an SSD tier and its space's quota
 * allows it.  The wait also holds up kvfs_close.
 *
 * KVFS_HOLD: what this call seals (not what was present) is leased until
 * kvfs_xfer_free, from its seal on.  A sixteenth of DRAM cannot be held: -ENOSPC.
 *
 * Statuses: 0, KVFS_PRESENT, KVFS_EVICTED (it was durable, and has been evicted
 * since, when DURABLE was asked for), -ENOSPC, -ENOLCK (held: more than
 * KVFS_LEASED_MAX), -EAGAIN (beyond the space's rate),
 * -EFBIG, -EACCES, -EROFS, -ESTALE (the space was cleared), -ENOTCONN,
 * -ECANCELED and -ETIMEDOUT (if it was COPIED, the daemon may seal it all the
 * same), -EFAULT (pages that are lent), -EIO, -ENOENT
 * (removed or evicted before it was durable), -EBADMSG (a process of the space's
 * owner changed its bytes in memory before it was durable, arena= in kvfs(1): it
 * is gone, the others are as they were), -EMFILE, -ENFILE, -ENOMEM (the process
 * has no descriptor or memory for staging: its own limits).
 * -EINVAL: a page outside the pool or missing (-1), another space's layout,
 * more tokens than the layout's, no token ids where
 * the layout wants them, or some where it does not; -E2BIG: too many extras;
 * -EOPNOTSUPP: @opts->layers, as blocks are always saved whole.
 */
#define KVFS_PRESENT 1
#define KVFS_EVICTED 2 /* success, too */
int kvfs_save(kvfs_pool *pool, kvfs_space *space, const kvfs_key *keys,
	      const kvfs_meta *meta, size_t n, const int64_t *pages,
	      const kvfs_opts *opts, kvfs_xfer **ret_xfer);

/* 1 once every block has reached @stage or failed, else 0.  (A block that is
 * SUBMITTED may yet fail to be COPIED.) */
int kvfs_xfer_poll(kvfs_xfer *xfer, enum kvfs_stage stage);
/* Blocks.  Returns how many blocks got there, or -ETIMEDOUT; to SUBMITTED: how
 * many had not failed by then. */
long kvfs_xfer_wait(kvfs_xfer *xfer, enum kvfs_stage stage, uint64_t deadline);
/* Blocks until @n blocks at least are COPIED or have failed, in the order in
 * which they come.  Returns how many are by now, or -ETIMEDOUT. */
long kvfs_xfer_wait_some(kvfs_xfer *xfer, size_t n, uint64_t deadline);
/*
 * 1 once layer @layer of every block is in the pages, or the block has failed,
 * else 0; and waiting for that: 0, or -ETIMEDOUT.  That is before COPIED for a
 * load with KVFS_BY_LAYER, and with it for all others.  Blocks have their
 * statuses when all is COPIED; a failure before is in them at once.  -EINVAL: a
 * layer that is not among those of @xfer, a transfer without pages.
 */
int kvfs_xfer_poll_layer(kvfs_xfer *xfer, uint32_t layer);
int kvfs_xfer_wait_layer(kvfs_xfer *xfer, uint32_t layer, uint64_t deadline);
/* -EINPROGRESS, 0, KVFS_PRESENT, KVFS_EVICTED or why it failed. */
int kvfs_xfer_status(kvfs_xfer *xfer, size_t i);
/* The same of blocks @first .. + @n, into @ret_statuses; returns how many of
 * them are not negative.  -EINVAL: there are no such blocks. */
long kvfs_xfer_statuses(kvfs_xfer *xfer, size_t first, size_t n,
			int *ret_statuses);
/*
 * Work given to @stream from now on waits, on the device, until @xfer is
 * COPIED, failed blocks included; or until its layer @layer is, if it was begun
 * with KVFS_BY_LAYER (else that is the same).  Nobody is blocked.  Whether the
 * blocks are good is in their statuses: look before relying on the pages.  The
 * transfer may be freed afterwards.
 *
 * -EAGAIN: not all of these copies are SUBMITTED, and nothing was ordered: a
 * stream never waits for what nobody has given to the device yet.  Work that
 * needs the pages must not be given to @stream then.  Try again, or first wait
 * for KVFS_SUBMITTED, or for the layer (kvfs_xfer_wait_layer).  A
 * large transfer shortly before.  When all is
 * COPIED nothing is ordered, and the device not asked about @stream.  NULL is
 * the device's default stream.
 * -EBUSY: the stream is being captured, which goes on undisturbed;
 * -EOPNOTSUPP: the device has no streams (host); -EINVAL: a layer that is not
 * among those of @xfer, a transfer without pages, KVFS_NO_STREAM, a stream that
 * is none.
 */
int kvfs_xfer_order(kvfs_xfer *xfer, void *stream);
int kvfs_xfer_order_layer(kvfs_xfer *xfer, uint32_t layer, void *stream);
/* Stop what has not begun, and waiting for DURABLE (-ECANCELED).  Pages stay
 * the transfer's until it is COPIED all the same. */
void kvfs_xfer_cancel(kvfs_xfer *xfer);
/* Free; a transfer under way goes on by itself.  Takes NULL. */
void kvfs_xfer_free(kvfs_xfer *xfer);

/*
 * A barrier: reaches @stage when every save begun in @space before, by this
 * session, is sealed (KVFS_SEALED), or everything sealed and removed in it so
 * far, by anyone, has been durable (KVFS_DURABLE): what is not pinned may be
 * evicted from SSD again at any time, for room or a quota.  Status 0 is
 * -ENOSPC, -EIO, -EBADMSG (some block was changed, as a save says, and is gone;
 * the others may be durable), -EOPNOTSUPP (no SSD tier) otherwise.  Of @opts
 * (may be NULL) user is obeyed, all else is -EINVAL.
 */
int kvfs_flush(kvfs_space *space, enum kvfs_stage stage, const kvfs_opts *opts,
	       kvfs_xfer **ret_xfer);

/*
 * A hint: these keys will be wanted soon.  They come from SSD, or, missing here,
 * from the remote tier (kvfs-remote(7)), into DRAM, in order, within the daemon's
 * budget for such things, and are not held there.
 * The transfer is COPIED when every key is in DRAM or has failed: statuses 0,
 * -ENOENT, -ENOSPC, -ETIMEDOUT (not begun within @opts->deadline), -ECANCELED
 * (by kvfs_xfer_cancel: what had begun still lands), -EIO, -EBADMSG, -ENOTCONN.
 * Of @opts (may be NULL) deadline and user are obeyed, all else is -EINVAL.
 */
int kvfs_prefetch(const kvfs_query *queries, size_t n_queries,
		  const kvfs_opts *opts, kvfs_xfer **ret_xfer);

/* ---- reserved pages: the library's own ---- */

/*
 * A pool of @pages pages that the library allocates on @device ("host"), each
 * for the tensors of one block of @space, one behind the other, and rounded up
 * to 4096 bytes.  It grows up to @max_pages when no page is free; addresses
 * stay.  Whatever makes it grow takes as long as the device needs for the
 * memory (host: about a millisecond for 4 MiB): @pages == @max_pages never
 * does.  kvfs_pool_info tells where the pages are and how many are free.
 * kvfs_load and kvfs_save refuse such a pool (-EINVAL).
 * kvfs_pool_close also ends what is still mapped or taken, and frees it.
 * -EINVAL: no pages, fewer at most than at once; -EOPNOTSUPP: the device has no
 * memory of its own; -ENODEV, -EIO, -EMEDIUMTYPE (as kvfs_pool_register),
 * -ENOMEM.
 */
int kvfs_pool_reserve(kvfs_session *session, const char *device,
		      kvfs_space *space, uint64_t pages, uint64_t max_pages,
		      kvfs_pool **ret_pool);

/*
 * The pinned memory that copies of a pool, also of one of the engine's memory,
 * go through where they cannot go straight: @buffers of @bytes each.  The
 * session's saves get a ring of at least that much altogether, which is made in
 * the background.  Without this call a session has a MiB, or two blocks, made
 * with its first pool, and 64 MiB behind that, if the sessions of the process
 * have no more than 256 MiB together; and again with each new connection.  A
 * GPU's copy threads have as many, within limits (libkvfs-cuda(7)): for that it
 * waits until each of them is done with what it copies, and it is best called
 * at the start.  -ENOMEM: more than a quarter of the machine's memory, or none
 * that can be pinned.
 */
int kvfs_pool_staging(kvfs_pool *pool, uint64_t bytes, unsigned buffers);

/*
 * Have the blocks @keys of @space, whose tensors must be those of the pool's
 * layout, in pages: for reading, until kvfs_unmap.  A block has one page in a
 * pool, however many map it, and one that is there is not copied again; also
 * not if it was evicted from the cache meanwhile, as its bytes cannot change.
 * (kvfs_space_clear by this session makes the pool forget the space's blocks.)
 * Looks up those that are not there, as kvfs_probe does, then only starts work.
 *
 * A block that must come takes a page that is free, or else is made by growing,
 * or else holds the block that has been unmapped for longest.  Pages are given
 * to the first keys first.  What was got stays mapped whatever becomes of the
 * rest.  Statuses: 0, -ENOENT, -ENOSPC (no page, or DRAM held by others),
 * -ETIMEDOUT (not there within @opts->deadline), -ECANCELED, and those of a
 * lease and a load.  A block that fails leaves nothing behind.
 *
 * @opts may be NULL; of it deadline, priority, user, stream and event (for the
 * copies to wait for) are obeyed; layers and flags are -EINVAL.
 */
int kvfs_map(kvfs_pool *pool, kvfs_space *space, const kvfs_key *keys, size_t n,
	     const kvfs_opts *opts, kvfs_mapping **ret_map);
/* 1 once every block is there or has failed, else 0. */
int kvfs_map_poll(kvfs_mapping *map);
/* Blocks.  Returns how many blocks are there, or -ETIMEDOUT. */
long kvfs_map_wait(kvfs_mapping *map, uint64_t deadline);
/* 0, -EINPROGRESS or why it failed; -EINVAL: no such index. */
int kvfs_map_status(kvfs_mapping *map, size_t i);
/* As kvfs_xfer_statuses. */
long kvfs_map_statuses(kvfs_mapping *map, size_t first, size_t n,
		       int *ret_statuses);
/* As kvfs_xfer_order: work given to @stream from now on comes after all blocks.
 * From then on pages and addresses are given for blocks under way, too; they
 * are good if the status turns out 0.  -EAGAIN: not before all copies are
 * submitted; nothing was ordered. */
int kvfs_map_order(kvfs_mapping *map, void *stream);
/* A block that is not there fails with -ECANCELED. */
void kvfs_map_cancel(kvfs_mapping *map);
/* The block's page, or its status, as long as that is not 0. */
int64_t kvfs_map_page(kvfs_mapping *map, size_t i);
/* Where a tensor of the block is, or with NULL the first one; NULL as long as
 * the status is not 0.  Valid until kvfs_unmap. */
void *kvfs_map_addr(kvfs_mapping *map, size_t i, const char *tensor);
/*
 * Give back and free, settled or not.  Pages that nobody else has mapped stay
 * matchable until they are taken for something else, which is not before all
 * that @stream (NULL: the device's default one; KVFS_NO_STREAM) was given so far
 * is over.  Takes NULL.
 * -EOPNOTSUPP (no streams on this device), -ENOMEM: still mapped.
 */
int kvfs_unmap(kvfs_mapping *map, void *stream);

/*
 * Take @n pages to write to: schedule; compute; then kvfs_pages_seal or
 * kvfs_pages_drop; then kvfs_pages_free.  Their bytes are whatever they are.
 * All or none: -ENOSPC.
 */
int kvfs_pages_take(kvfs_pool *pool, size_t n, kvfs_pages **ret_pages);
/* Page @i of them; -EINVAL: no such page, or sealed or dropped. */
int64_t kvfs_pages_page(kvfs_pages *pages, size_t i);
void *kvfs_pages_addr(kvfs_pages *pages, size_t i, const char *tensor);
/*
 * The first @n of the pages hold the blocks @keys, and do not change any more:
 * save them, as kvfs_save does, after @opts->stream or event.  The others are
 * dropped.  The blocks can be mapped from now on without a copy, for as long as
 * their pages are not taken for something else, whatever becomes of the save
 * (but kvfs_space_clear); who goes on using them maps them before anything else
 * is taken or mapped.  If a key has a page by now, it keeps that one.
 * -EINVAL, and nothing changed: sealed or dropped before, more than were taken,
 * what kvfs_save refuses; -EOPNOTSUPP, -ENOMEM.
 */
int kvfs_pages_seal(kvfs_pages *pages, kvfs_space *space, const kvfs_key *keys,
		    const kvfs_meta *meta, size_t n, const kvfs_opts *opts,
		    kvfs_xfer **ret_xfer);
/* Give all back unsealed, after what @stream (as kvfs_unmap's) was given so far.
 * -EINVAL, and nothing changed: sealed or dropped before. */
int kvfs_pages_drop(kvfs_pages *pages, void *stream);
/* Free; drops what is neither sealed nor dropped, without waiting for a stream.
 * Takes NULL. */
void kvfs_pages_free(kvfs_pages *pages);

/* ---- snapshots: a long context, kept under a name ---- */

#define KVFS_SNAPSHOT_MAX 131072u   /* blocks */
#define KVFS_POSITION_MAX 99999999u /* of a block in its chain */

/*
 * Pin the blocks @keys under @name: all of them, or none.  No byte is copied;
 * until the snapshot is dropped they stay in the cache, in DRAM as far as the
 * pins' share goes.  It shows as <space>/.snapshots/<name>/, and is durable
 * with the next kvfs_flush.  @positions are the blocks' places in their chain,
 * ascending; NULL: 0, 1, ...
 * -ENOENT: block *@ret_missing is not there; -ENOSPC: from there on too little
 * could be evicted, or there are too many snapshots (@ret_missing may be NULL);
 * -EEXIST: the name is taken; -EINVAL: a name that is empty, longer than 255
 * bytes, begins with a dot or has a slash, no keys, too many; -EACCES, -EROFS,
 * -ENOTCONN.
 */
int kvfs_snapshot(kvfs_space *space, const char *name, const kvfs_key *keys,
		  const uint32_t *positions, size_t n, size_t *ret_missing);

/* The keys of a snapshot and their positions in order, at most @max; each may
 * be NULL.  Returns how many it has.  -ENOENT, -ENOTCONN. */
long kvfs_snapshot_keys(kvfs_space *space, const char *name, kvfs_key *ret_keys,
			uint32_t *ret_positions, size_t max);

/* The names, oldest first, each with its NUL, in *@ret_names (caller frees).
 * Returns how many.  -ENOENT (no such space, or it may not be read),
 * -ENOTCONN. */
long kvfs_snapshot_list(kvfs_space *space, char **ret_names);

/* Unpin all at once; what kvfs_pin or another snapshot has stays pinned.
 * -ENOENT, -EACCES, -EROFS, -ENOTCONN. */
int kvfs_snapshot_drop(kvfs_space *space, const char *name);

/* ---- housekeeping ---- */

/* Remove from all tiers.  Goes on past missing keys; @ret_statuses (may be
 * NULL) gets 0, -ENOENT, -EACCES, -ENOTCONN or -ETIMEDOUT (the daemon hangs,
 * and may do it yet) a key.  Returns how many went. */
long kvfs_evict(kvfs_space *space, const kvfs_key *keys, size_t n,
		int *ret_statuses);
/*
 * A hint: the conversation with these blocks, in chain order, is over: they may
 * go before others.  What is pinned, or used again, stays as it was.
 */
int kvfs_ended(kvfs_space *space, const kvfs_key *keys, size_t n);
/* Pin or unpin keys[first] .. keys[end - 1] of a chain; the same results, and
 * -ENOSPC where too few evictable blocks would remain. */
long kvfs_pin(kvfs_space *space, const kvfs_key *keys, size_t first, size_t end,
	      int *ret_statuses);
long kvfs_unpin(kvfs_space *space, const kvfs_key *keys, size_t first,
		size_t end, int *ret_statuses);

#ifdef __cplusplus
}
#endif

#endif
