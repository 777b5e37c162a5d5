/* SPDX-License-Identifier: Apache-2.0 */
/*
 * control.h - the daemon's control socket: one thread serves the messages of wire.h from
 * the cache; workers copy saves.
 *
 * Rights: a connection acts with the user id and all groups that its process had when it
 * connected.  Each message is checked against the current mode of the space.  PROBE,
 * ACQUIRE and SPACE need read and search permission; RESERVE, SAVE, EVICT, PIN and CLEAR
 * need write and search permission; FLUSH needs either.  Without permission, every block
 * of the space is reported absent.
 *
 * Lifetime: leases, reservations and segments of a connection end when every process
 * that has the socket has closed it, or when the process that connected is dead.
 *
 * Protocol errors: a message that breaks the rules of wire.h, a tag in use, a RELEASE
 * without an acquire, an UNMAPPED without a segment, an unexpected descriptor.  The daemon
 * ends the connection, and drops its reservations and pending requests at once.  The
 * client's leases stay until the client closes its end or dies: it may be copying from the
 * leased blocks.  Other clients are not affected.
 *
 * Tags: an acquire without a leased block (status 0) needs no RELEASE.  A RELEASE of such
 * an acquire, or a second RELEASE, does nothing and is counted.  A RELEASE of an acquire
 * that has no reply yet first cancels the acquire.
 *
 * Limits: wire.h limits each connection, account.h each user: -ENOLCK.  Connections
 * beyond a user's share are closed.
 */
#ifndef KV_FS_CONTROL_CONTROL_H
#define KV_FS_CONTROL_CONTROL_H

#include "fs/base/stats.h"

struct kv_control;

struct kv_gate;
struct kv_rules;

/*
 * Serve the users that @rules (borrowed) admit; connections of other users are closed.
 * @gate (borrowed) receives and closes the descriptors that clients send.  Listen at
 * @path with mode 0666: permission is checked per space.  A missing directory of @path is
 * made (0755), but none above it, and removed at the end.  A socket file without a daemon
 * is removed.  Returns 0; on failure *@ret_why is a message for the user (caller frees):
 *   -EADDRINUSE    a daemon answers at @path
 *   -EEXIST        @path is no socket
 *   -ENOENT        the directory above the socket's does not exist
 *   -ENAMETOOLONG, -EACCES, and errors of the system calls
 */
int kv_control_start(struct kv_cache *cache, const struct kv_rules *rules,
		     struct kv_gate *gate, const char *path,
		     struct kv_control **ret_control, char **ret_why);

/* Finish the saves being copied, cancel other requests, close all connections and
 * remove the socket.  Takes NULL. */
void kv_control_stop(struct kv_control *control);

/*
 * Ask the clients that have @segment to unmap it.  Any thread; never blocks.  Takes NULL.
 * Do not call this during or after kv_control_stop.
 */
void kv_control_retire(struct kv_control *control, uint32_t segment);

void kv_control_counts(struct kv_control *control,
		       struct kv_control_counts *ret_counts);

#endif
