/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.h - what all connections of a control socket share: its name, the mailbox, the
 * state of the control thread.
 *
 * All of this belongs to the control thread, unless marked otherwise.
 */
#ifndef KV_FS_CONTROL_SERVER_H
#define KV_FS_CONTROL_SERVER_H

#include <stdatomic.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "cache/cache.h"
#include "fs/base/access.h"
#include "fs/control/control.h"
#include "fs/base/workers.h"
#include "cache/core/turns.h"
#include "common/wire.h"

/* ---- work that other threads pass to the control thread ---- */

/* In the sender's memory; the control thread's from the post until @run. */
struct kv_mail {
	struct kv_mail *next;
	void (*run)(struct kv_mail *mail); /* may free it, and may post */
};

struct kv_mailbox {
	pthread_mutex_t lock;
	struct kv_mail *first, **last; /* lock */
	int fd; /* fixed after init; readable while there is mail */
};

int kv_mailbox_init(struct kv_mailbox *box); /* -EMFILE, -ENFILE, -ENOMEM */

/* Any thread; never blocks, never fails. */
void kv_mailbox_post(struct kv_mailbox *box, struct kv_mail *mail);

/* Run the mail posted so far, in order.  One thread only. */
void kv_mailbox_run(struct kv_mailbox *box);

/* ---- the control socket's name in the file system ---- */

struct kv_listener {
	int fd; /* non-blocking, listening; -1: closed */
	char *path;
	bool made_dir; /* the directory was made for the socket */
	dev_t dev;
	ino_t ino;
};

/*
 * As kv_control_start has it: make the directory, sweep a dead socket, listen with mode
 * 0666.  On failure *@ret_why may be a message, and nothing is left behind.
 */
int kv_listener_open(struct kv_listener *listener, const char *path,
		     char **ret_why);

/* Close it, and remove the name if it is still this socket's, and the directory if it
 * was made for it and is empty.  Takes a closed one. */
void kv_listener_close(struct kv_listener *listener);

/* ---- deadlines of requests, in a heap ---- */

/* In the owner's memory, zeroed at first; in at most one list. */
struct kv_deadline {
	uint64_t at_ns; /* kv_now_ns() */
	size_t place;	/* the list's own; 0: not set */
};

struct kv_deadlines {
	struct kv_deadline **heap; /* heap[1..n] */
	size_t n, room;
};

/* A zeroed list is empty. */
void kv_deadlines_fini(struct kv_deadlines *list);

/* @deadline must not be set.  -ENOMEM. */
int kv_deadline_set(struct kv_deadlines *list, struct kv_deadline *deadline,
		    uint64_t at_ns);
/* Nothing happens if it is not set. */
void kv_deadline_clear(struct kv_deadlines *list, struct kv_deadline *deadline);

/* The earliest one; NULL if there is none. */
struct kv_deadline *kv_deadline_first(const struct kv_deadlines *list);

/* ---- the control thread ---- */

/* An epoll event points to one of these. */
struct kv_watch {
	void (*ready)(struct kv_watch *watch, uint32_t events);
};

TAILQ_HEAD(kv_clients, kv_client);

#define KV_COPY_TURN (4u << 20)	 /* bytes */
#define KV_COPY_COST (64u << 10) /* of a job, besides its bytes */

struct kv_gate;

struct kv_server {
	struct kv_cache *cache;	      /* fixed */
	struct kv_gate *gate;	      /* fixed; borrowed */
	const struct kv_rules *rules; /* fixed */
	/* Fixed: workers that copy and hash, and workers that wait for the disk, of
	 * which a user has one at a time. */
	struct kv_workers *copies, *waits;
	uint64_t mapped_max;		/* fixed; bytes of clients' memory */
	struct kv_mailbox mailbox;	/* any thread posts */
	struct kv_control_counts tally; /* any thread */
	int epoll;			/* fixed */
	uint64_t seed; /* fixed; of hash tables, unknown to clients */
	bool stopping; /* read no more messages */
	uint32_t version_refused;   /* last version in the log; 0: none */
	uint64_t version_warned_ns; /* when it was logged */
	size_t pending;		    /* requests whose mail is still to come */
	struct kv_deadlines deadlines;
	struct kv_turns users;	   /* with work */
	struct kv_clients clients; /* connected, or cut off with leases */
	struct kv_clients ended;   /* freed before the next events */

	/* Of the current message: */
	struct kv_key keys[WIRE_BATCH];
	_Alignas(8) uint8_t in[WIRE_MAX + 8];
	_Alignas(8) uint8_t out[WIRE_MAX];
};

/* Start server->copies and server->waits.  -ENOMEM, -EAGAIN. */
int kv_server_start_workers(struct kv_server *server);

#endif
