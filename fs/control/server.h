/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.h - the state that all connections of a control socket share: its name, the
 * mailbox, the control thread.
 *
 * Only the control thread uses this state, except where a comment says otherwise.
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

/* A message to the control thread, in the sender's memory.  The control thread
 * owns it from the post until @run. */
struct kv_mail {
	struct kv_mail *next;
	/* called by the control thread; may free @mail, or post it again */
	void (*run)(struct kv_mail *mail);
};

struct kv_mailbox {
	pthread_mutex_t lock;
	struct kv_mail *first, **last; /* lock */
	int fd; /* eventfd, fixed after init; readable while there is mail */
};

int kv_mailbox_init(struct kv_mailbox *box); /* -EMFILE, -ENFILE, -ENOMEM */

/* Post @mail.  Any thread; never blocks, never fails. */
void kv_mailbox_post(struct kv_mailbox *box, struct kv_mail *mail);

/* Run the mail posted so far, in order.  Only one thread may call this. */
void kv_mailbox_run(struct kv_mailbox *box);

/* ---- the control socket's name in the file system ---- */

struct kv_listener {
	int fd; /* listening, non-blocking; -1: closed */
	char *path;
	bool made_dir; /* the socket's directory was made for the socket */
	dev_t dev;
	ino_t ino;
};

/*
 * Make the socket's directory, remove a socket without a daemon, and listen with mode
 * 0666, as kv_control_start describes.  On failure *@ret_why may be a message, and nothing
 * is left behind.
 */
int kv_listener_open(struct kv_listener *listener, const char *path,
		     char **ret_why);

/* Close the listener, and remove the name if it is still this socket's, and the directory
 * if it was made for the socket and is empty.  No effect if closed already. */
void kv_listener_close(struct kv_listener *listener);

/* ---- deadlines of requests, in a heap ---- */

/* A deadline, in its owner's memory, zeroed at first; in one heap at most. */
struct kv_deadline {
	uint64_t at_ns; /* kv_now_ns() */
	size_t place;	/* index in the heap; 0: not set */
};

struct kv_deadlines {
	struct kv_deadline **heap; /* heap[1..n] */
	size_t n, room;
};

/* Free the heap.  A zeroed kv_deadlines is an empty heap. */
void kv_deadlines_fini(struct kv_deadlines *list);

/* Set @deadline, which must not be set.  Returns 0 or -ENOMEM. */
int kv_deadline_set(struct kv_deadlines *list, struct kv_deadline *deadline,
		    uint64_t at_ns);
/* Clear @deadline.  No effect if it is not set. */
void kv_deadline_clear(struct kv_deadlines *list, struct kv_deadline *deadline);

/* Return the earliest deadline, or NULL. */
struct kv_deadline *kv_deadline_first(const struct kv_deadlines *list);

/* ---- the control thread ---- */

/* A callback, to which epoll events point. */
struct kv_watch {
	void (*ready)(struct kv_watch *watch, uint32_t events);
};

TAILQ_HEAD(kv_clients, kv_client);

#define KV_COPY_TURN (4u << 20)	 /* bytes */
#define KV_COPY_COST (64u << 10) /* cost of a copy, besides its bytes */

struct kv_gate;

struct kv_server {
	struct kv_cache *cache;	      /* fixed */
	struct kv_gate *gate;	      /* fixed; borrowed */
	const struct kv_rules *rules; /* fixed */
	/* Fixed: workers that copy and hash, and workers that wait for the disk, of
	 * which a user has one at a time. */
	struct kv_workers *copies, *waits;
	/* fixed; most bytes of clients' memory that may be mapped */
	uint64_t mapped_max;
	struct kv_mailbox mailbox;	/* any thread posts */
	struct kv_control_counts tally; /* any thread */
	int epoll;			/* fixed */
	uint64_t seed; /* fixed; seed of hash tables, unknown to clients */
	bool stopping; /* the daemon ends: read no more messages */
	/* last version that was logged as refused; 0: none */
	uint32_t version_refused;
	uint64_t version_warned_ns; /* when that version was logged */
	size_t pending; /* number of requests whose mail is still to come */
	struct kv_deadlines deadlines;
	struct kv_turns users;	   /* with work */
	struct kv_clients clients; /* connected, or cut off with leases */
	struct kv_clients ended;   /* to be freed before the next events */

	/* Of the message being handled: */
	struct kv_key keys[WIRE_BATCH];
	_Alignas(8) uint8_t in[WIRE_MAX + 8];
	_Alignas(8) uint8_t out[WIRE_MAX];
};

/* Start server->copies and server->waits.  Returns 0, -ENOMEM or -EAGAIN. */
int kv_server_start_workers(struct kv_server *server);

#endif
