/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - the daemon's control socket: wire.h's messages, served from the
 * cache by one thread (and a few that copy saves).
 *
 * Who: a connection acts with the user id and all groups its process had when
 * it connected.  Each message is checked against the space's mode of that
 * moment.  A space is readable over the socket (PROBE, ACQUIRE, SPACE) with
 * read and search permission, writable (RESERVE, SAVE, EVICT, PIN, CLEAR) with
 * write and search permission; FLUSH takes either.  To one who may not, every
 * block of a space is absent.
 *
 * How long: what a connection holds (leases, reservations, segments handed out)
 * ends when the socket is closed by every process that has it, or when the
 * process that connected is dead, whichever is first.
 *
 * Protocol errors: a message that is not exactly as wire.h says, a tag in use,
 * a RELEASE or UNMAPPED of what was never had, a descriptor where none belongs.
 * The offender sees the end of its connection, its reservations and pending
 * requests are gone at once; but its leases hold until it closes its end or
 * dies, since a copy may be under way from them.  Nobody else notices.
 *
 * Tags: an acquire none of whose blocks is held (status 0) needs no RELEASE; a
 * RELEASE of it, or a second one, does nothing and is counted.  A RELEASE of an
 * acquire that has no reply yet cancels it first.
 *
 * Limits: those of wire.h for one connection, and each user's shares, as
 * account.h has them: -ENOLCK.  A connection beyond them is closed.
 */
#ifndef KV_FS_CONTROL_CONTROL_H
#define KV_FS_CONTROL_CONTROL_H

#include "fs/base/stats.h"

struct kv_control;

struct kv_gate;
struct kv_rules;

/*
 * Serve all whom @rules (borrowed) admit; the connections of others are closed.
 * @gate (borrowed) receives and closes the descriptors that clients send.
 * Listen at @path, with mode 0666: permission is checked per space.  The
 * directory it is in is made (0755) if that alone is missing, and removed with
 * it.  A socket that nobody serves any more is swept away.  On failure *@ret_why
 * is a message for the user (caller frees): -EADDRINUSE somebody answers at
 * @path, -EEXIST there is something else, -ENOENT the directory above its own is
 * not there, -ENAMETOOLONG, -EACCES and the other errors of the calls made.
 */
int kv_control_start(struct kv_cache *cache, const struct kv_rules *rules,
		     struct kv_gate *gate, const char *path,
		     struct kv_control **ret_control, char **ret_why);

/* Finishes the saves being copied, answers and cancels what waits, closes all
 * connections and removes the socket.  Takes NULL. */
void kv_control_stop(struct kv_control *control);

/*
 * Tell the clients that have segment @segment to unmap it.  Any thread; never
 * blocks.  Takes NULL.  Not during or after kv_control_stop: the listener of
 * the cache's retire callback sees to that.
 */
void kv_control_retire(struct kv_control *control, uint32_t segment);

void kv_control_counts(struct kv_control *control,
		       struct kv_control_counts *ret_counts);

#endif
