/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.h - what all connections of a control socket share.
 *
 * Everything here belongs to the control thread, except what says otherwise.
 */
#ifndef KV_FS_CONTROL_SERVER_H
#define KV_FS_CONTROL_SERVER_H

#include <stdatomic.h>
#include <sys/queue.h>

#include "cache/cache.h"
#include "fs/control/control.h"
#include "fs/control/deadline.h"
#include "fs/control/ingest.h"
#include "fs/control/mail.h"
#include "common/wire.h"

#define kv_container(pointer, type, member) \
	((type *)((char *)(pointer)-offsetof(type, member)))

/* What an epoll event points to. */
struct kv_watch {
	void (*ready)(struct kv_watch *watch, uint32_t events);
};

/* kv_control_counts, as any thread may read them. */
struct kv_tally {
	_Atomic uint64_t connections, accepted, refused, messages;
	_Atomic uint64_t protocol_errors, slow, stray_releases;
	_Atomic uint64_t forced_releases, dropped_reservations;
	_Atomic uint64_t saved,
		saved_bytes; /* written by ingest threads, too */
};

TAILQ_HEAD(kv_clients, kv_client);

struct kv_server {
	struct kv_cache *cache;	   /* fixed */
	struct kv_ingest *ingest;  /* fixed */
	struct kv_mailbox mailbox; /* any thread posts */
	struct kv_tally tally;	   /* any thread */
	int epoll;		   /* fixed */
	uint64_t seed;	/* fixed; of hash tables, unknown to clients */
	bool stopping;	/* read no more requests */
	bool sweep;	/* a client is to be ended */
	size_t pending; /* requests whose mail is still to come */
	struct kv_deadlines deadlines;
	struct kv_clients clients; /* connected, or cut off with leases */
	struct kv_clients ended;   /* freed at the end of the turn */

	/* Of the message at hand. */
	struct kv_key keys[WIRE_BATCH];
	_Alignas(8) uint8_t in[WIRE_MAX + 8];
	_Alignas(8) uint8_t out[WIRE_MAX];
};

#endif
