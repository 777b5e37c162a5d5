/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - one connection: its user, and all that it holds.
 *
 * Control thread only.
 */
#ifndef KV_FS_CONTROL_CLIENT_H
#define KV_FS_CONTROL_CLIENT_H

#include "fs/base/access.h"
#include "fs/control/gate.h"
#include "fs/control/client_memory.h"
#include "fs/control/server.h"

/* ---- messages that wait to be sent ---- */

#define KV_SEND_QUEUE_BYTES (4u << 20) /* waiting for one client, at most */
#define KV_SEND_QUEUE_FDS 256	       /* of them with a descriptor, at most */

struct kv_send_queue {
	struct kv_outgoing *first, **last;
	size_t bytes, fds;
	struct kv_account *account; /* charged with both; borrowed */
};

void kv_send_queue_init(struct kv_send_queue *box, struct kv_account *account);
void kv_send_queue_fini(struct kv_send_queue *box);

/*
 * Send or queue one message, with the descriptor @fd unless it is -1 (the caller's;
 * duplicated if the message is queued).  -ENOBUFS: the queue is full; -ENOLCK: beyond the
 * user's share; -ENOMEM, or the error of the socket.
 */
int kv_send_queue_send(struct kv_send_queue *box, int socket, const void *data,
		       size_t n, int fd);

/* Send queued messages.  Returns 1: the queue is empty; 0: the socket is full; or the
 * error of the socket. */
int kv_send_queue_drain(struct kv_send_queue *box, int socket);

/* ---- reservations, segments, picks ---- */

/* A block to be saved. */
struct kv_reservation {
	struct kv_fill *fill;
	bool hold;    /* lease the block when it seals */
	uint64_t tag; /* of the RESERVE */
};

struct kv_reservations {
	struct kv_reservation_entry *buckets[256];
	size_t n, holds; /* holds: of n, those with `hold` */
	uint64_t seed;
	struct kv_account *account; /* the client's; borrowed */
};

/* Add @what as the reservation of @key in the space @space, which may be removed later.
 * -ENOLCK: beyond the user's share; -ENOMEM: the reservation stays the caller's. */
int kv_reservations_add(struct kv_reservations *table, uint32_t space,
			const struct kv_key *key,
			const struct kv_reservation *what);
/* Return the reservation, valid until it is taken or dropped, or NULL. */
const struct kv_reservation *kv_reservations_find(struct kv_reservations *table,
						  uint32_t space,
						  const struct kv_key *key);
/* Remove and return the reservation, which must be there. */
struct kv_reservation kv_reservations_take(struct kv_reservations *table,
					   uint32_t space,
					   const struct kv_key *key);
/* Drop all reservations; returns their number. */
size_t kv_reservations_drop(struct kv_reservations *table,
			    struct kv_cache *cache);

/* Ids, ascending. */
struct kv_segments {
	uint32_t *ids;
	size_t n, room;
};

bool kv_segments_has(const struct kv_segments *set, uint32_t id);
int kv_segments_add(struct kv_segments *set, uint32_t id); /* -ENOMEM */
/* Returns false if @id is not in the set. */
bool kv_segments_remove(struct kv_segments *set, uint32_t id);
/* Return all segments of the user's client to the cache. */
void kv_segments_return(struct kv_segments *set, struct kv_cache *cache,
			uint32_t uid);

/* Picks for one snapshot. */
struct kv_set {
	uint64_t id;
	struct kv_pick *picks;
	size_t n, room;
	struct kv_account *account; /* held; charged with the room */
	struct kv_set *next;
};

struct kv_sets {
	struct kv_set *first;
	size_t n, picks;	    /* sets, and picks in all of them */
	struct kv_account *account; /* the client's; borrowed */
};

/* Add picks to the set @id, which the first ones make.  -ENOSPC: more picks than a
 * snapshot may have, or too many sets; -ENOLCK: beyond the user's share; -ENOMEM. */
int kv_sets_add(struct kv_sets *sets, uint64_t id, const struct kv_pick *picks,
		size_t n);
/* Remove and return the set @id, or NULL. */
struct kv_set *kv_sets_take(struct kv_sets *sets, uint64_t id);
void kv_set_free(struct kv_set *set); /* takes NULL */
void kv_sets_drop(struct kv_sets *sets);

/* ---- the client ---- */

/* Why a connection ends. */
enum kv_break {
	KV_BREAK_NOT,
	KV_BREAK_GONE, /* closed by the peer, or its process is dead */
	KV_BREAK_PROTOCOL,
	KV_BREAK_SLOW, /* does not read */
};

struct kv_request;
struct kv_user;

struct kv_client {
	struct kv_server *server;
	struct kv_watch on_socket, on_death;
	TAILQ_ENTRY(kv_client) link;	   /* in server->clients or ->ended */
	TAILQ_ENTRY(kv_client) ready_link; /* of its user */
	struct kv_user *user;		   /* held */
	int socket,
		pidfd; /* pidfd -1: its process is in another pid namespace */
	struct kv_caller caller;
	gid_t *groups;
	struct kv_account *account; /* held; its user's */
	uint32_t version;	    /* of HELLO; 0: none yet */
	bool registers;		    /* WIRE_REGISTERS */
	bool deaf; /* the peer has closed its end: send nothing */
	bool cut;  /* cut off: only leases and segments are left */
	bool ended;
	bool is_ready;	      /* on its user's list of ready clients */
	bool offers;	      /* memory is being mapped: no message is read */
	enum kv_break broken; /* handled in its user's turn */
	uint32_t happened;    /* events since its last turn */
	uint32_t events;      /* that epoll watches */
	struct kv_gate_wait gate; /* while it waits, no message is read */
	struct kv_send_queue send_queue;
	struct kv_client_memory *staging; /* NULL: none given yet */
	struct kv_lents lents;
	size_t n_lents;
	struct kv_request *requests[256];   /* hash table by tag */
	size_t n_requests, n_held, n_wants; /* n_held: of n_requests */
	uint64_t last_acquire; /* highest tag of a request with leases */
	struct kv_reservations reservations;
	struct kv_segments segments;
	struct kv_sets sets;
};

/*
 * Make a client for the connected @socket, which is taken over in any case.
 *   -ENOLCK  beyond the user's share
 *   -EACCES  the user is not admitted
 *   -ESRCH   its process is dead already
 *   -ENOMEM, or an error of getsockopt(2)
 */
int kv_client_new(struct kv_server *server, int socket,
		  struct kv_client **ret_client);

/* End the connection in its user's turn. */
void kv_client_break(struct kv_client *client, enum kv_break why);

/* Free the clients that have ended. */
void kv_client_sweep(struct kv_server *server);

/* Stop reading from it, and cancel its requests. */
void kv_client_quiesce(struct kv_client *client);

/* Close the connection and release all that it holds.  Valid until the next sweep. */
void kv_client_end(struct kv_client *client);

/* Send or queue one message, or break the client. */
void kv_client_send(struct kv_client *client, const void *data, size_t n,
		    int fd);

/* The client lends this memory no more. */
void kv_client_drop_lent(struct kv_client *client, struct kv_lent *lent);

/* Send it the descriptor of segment @id, unless it has it.  -ENOENT: the segment is
 * retired; -ENOLCK: beyond the user's share; -ENOMEM. */
int kv_client_give_segment(struct kv_client *client, uint32_t id);
/* Ask it to unmap segment @id, if it has it. */
void kv_client_retire(struct kv_client *client, uint32_t id);

/*
 * Get the space @id and its present state, if the client has the rights @want in it
 * (access(2)).  Returns -EACCES; -ENOENT, also if it has no rights at all.  The caller puts
 * the space.
 */
int kv_client_space(struct kv_client *client, uint32_t id, int want,
		    struct kv_space **ret_space,
		    struct kv_space_info *ret_info);

/*
 * The work of a user: connections with events, and requests to finish.  Users take turns of
 * the control thread's time, however many connections they have.
 */
int kv_users_init(struct kv_server *server); /* -ENOMEM */
struct kv_user *kv_user_get(struct kv_server *server, uint32_t uid);
void kv_user_put(struct kv_server *server, struct kv_user *user);

/* @client has events; nothing happens if it is ready already. */
void kv_user_ready(struct kv_client *client);
/* Finish @request, whose work is done, in its user's turn. */
void kv_user_finish(struct kv_request *request);

/* Give each user with work a turn.  Returns whether a user still has work. */
bool kv_users_serve(struct kv_server *server);

#endif
