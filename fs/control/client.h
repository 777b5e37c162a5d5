/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - a connection of the control socket: its user, and all that it holds.
 *
 * Only the control thread calls these functions and uses these fields.
 */
#ifndef KV_FS_CONTROL_CLIENT_H
#define KV_FS_CONTROL_CLIENT_H

#include "fs/base/access.h"
#include "fs/control/gate.h"
#include "fs/control/client_memory.h"
#include "fs/control/server.h"

/* ---- messages that wait to be sent ---- */

/* most bytes that may wait for one client */
#define KV_SEND_QUEUE_BYTES (4u << 20)
#define KV_SEND_QUEUE_FDS 256 /* most waiting messages with a descriptor */

struct kv_send_queue {
	struct kv_outgoing *first, **last;
	size_t bytes, fds;
	/* charged with the bytes and descriptors; borrowed */
	struct kv_account *account;
};

void kv_send_queue_init(struct kv_send_queue *box, struct kv_account *account);
void kv_send_queue_fini(struct kv_send_queue *box);

/*
 * Send one message, or queue it if the socket is full.  @fd: a descriptor to send with
 * the message, or -1; the caller keeps @fd, and the queue a duplicate.  Returns 0, or:
 *   -ENOBUFS  the queue is full
 *   -ENOLCK   beyond the user's share
 *   -ENOMEM, or an error of the socket
 */
int kv_send_queue_send(struct kv_send_queue *box, int socket, const void *data,
		       size_t n, int fd);

/* Send queued messages.  Returns 1 if the queue is empty, 0 if the socket is full, or an
 * error of the socket. */
int kv_send_queue_drain(struct kv_send_queue *box, int socket);

/* ---- reservations, segments, picks ---- */

/* A block that the client has reserved and will save. */
struct kv_reservation {
	struct kv_fill *fill;
	bool hold;    /* lease the block when it is sealed */
	uint64_t tag; /* of the RESERVE */
};

struct kv_reservations {
	struct kv_reservation_entry *buckets[256];
	size_t n, holds; /* holds: number of reservations with `hold` */
	uint64_t seed;
	struct kv_account *account; /* the client's; borrowed */
};

/* Add @what as the reservation of @key in the space @space, which may be removed later.
 * Returns 0, -ENOLCK beyond the user's share, or -ENOMEM; on an error the caller keeps the
 * reservation. */
int kv_reservations_add(struct kv_reservations *table, uint32_t space,
			const struct kv_key *key,
			const struct kv_reservation *what);
/* Return the reservation of @key, valid until it is taken or dropped, or NULL. */
const struct kv_reservation *kv_reservations_find(struct kv_reservations *table,
						  uint32_t space,
						  const struct kv_key *key);
/* Remove and return the reservation of @key, which must be in the table. */
struct kv_reservation kv_reservations_take(struct kv_reservations *table,
					   uint32_t space,
					   const struct kv_key *key);
/* Drop all reservations and return their number. */
size_t kv_reservations_drop(struct kv_reservations *table,
			    struct kv_cache *cache);

/* Ids, ascending. */
struct kv_segments {
	uint32_t *ids;
	size_t n, room;
};

bool kv_segments_has(const struct kv_segments *set, uint32_t id);
int kv_segments_add(struct kv_segments *set, uint32_t id); /* -ENOMEM */
/* Remove @id.  Returns false if @id is not in the set. */
bool kv_segments_remove(struct kv_segments *set, uint32_t id);
/* Give all segments of a client of the user @uid back to the cache. */
void kv_segments_return(struct kv_segments *set, struct kv_cache *cache,
			uint32_t uid);

/* The blocks that a client has picked for one snapshot. */
struct kv_set {
	uint64_t id;
	struct kv_pick *picks;
	size_t n, room;
	struct kv_account *account; /* held; charged with the room for picks */
	struct kv_set *next;
};

struct kv_sets {
	struct kv_set *first;
	size_t n, picks; /* number of sets, and of picks in all sets */
	struct kv_account *account; /* the client's; borrowed */
};

/* Add picks to the set @id, and make the set if it does not exist.  Returns 0, or:
 *   -ENOSPC  more picks than a snapshot may have, or too many sets
 *   -ENOLCK  beyond the user's share
 *   -ENOMEM */
int kv_sets_add(struct kv_sets *sets, uint64_t id, const struct kv_pick *picks,
		size_t n);
/* Remove and return the set @id; NULL if there is no such set. */
struct kv_set *kv_sets_take(struct kv_sets *sets, uint64_t id);
void kv_set_free(struct kv_set *set); /* takes NULL */
void kv_sets_drop(struct kv_sets *sets);

/* ---- the client ---- */

/* Why a connection is ended. */
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
	TAILQ_ENTRY(kv_client) link; /* in server->clients or server->ended */
	TAILQ_ENTRY(kv_client) ready_link; /* of its user */
	struct kv_user *user;		   /* held */
	int socket, pidfd; /* -1: the process is in another pid namespace */
	struct kv_caller caller;
	gid_t *groups;
	struct kv_account *account; /* held; its user's */
	/* protocol version agreed by HELLO; 0: no HELLO yet */
	uint32_t version;
	bool registers; /* WIRE_REGISTERS */
	bool deaf;	/* the peer has closed its end: send nothing */
	bool cut;	/* cut off: only its leases and segments are left */
	bool ended;
	bool is_ready; /* is on the user's list of ready clients */
	bool offers;   /* offered memory is being mapped: read no message */
	/* why to end the connection in the user's next turn */
	enum kv_break broken;
	uint32_t happened; /* epoll events since the last turn */
	uint32_t events;   /* that epoll watches */
	/* while it waits for the gate, read no message */
	struct kv_gate_wait gate;
	struct kv_send_queue send_queue;
	/* NULL: the client has given none yet */
	struct kv_client_memory *staging;
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
 * Make a client for the connected @socket, which is taken over in any case.  Returns 0,
 * or:
 *   -ENOLCK  beyond the user's share
 *   -EACCES  the user is not admitted
 *   -ESRCH   the client's process is dead already
 *   -ENOMEM, or an error of getsockopt(2)
 */
int kv_client_new(struct kv_server *server, int socket,
		  struct kv_client **ret_client);

/* End the connection, because of @why, in the next turn of its user. */
void kv_client_break(struct kv_client *client, enum kv_break why);

/* Free the clients whose connection has ended. */
void kv_client_sweep(struct kv_server *server);

/* Read no more messages of the client, and cancel its requests. */
void kv_client_quiesce(struct kv_client *client);

/* Close the connection and release all that it holds.  @client stays valid until
 * the next kv_client_sweep. */
void kv_client_end(struct kv_client *client);

/* Send or queue one message; on an error break the connection. */
void kv_client_send(struct kv_client *client, const void *data, size_t n,
		    int fd);

/* Forget @lent, memory that the client has lent and takes back. */
void kv_client_drop_lent(struct kv_client *client, struct kv_lent *lent);

/* Send the client the descriptor of segment @id, unless the client has it.  Returns 0,
 * -ENOENT if the segment is retired, -ENOLCK beyond the user's share, or -ENOMEM. */
int kv_client_give_segment(struct kv_client *client, uint32_t id);
/* Ask the client to unmap segment @id, if the client has it. */
void kv_client_retire(struct kv_client *client, uint32_t id);

/*
 * Get the space @id and its present state, if the client has the rights @want (R_OK, W_OK,
 * X_OK) in the space.  Returns 0, -EACCES, or -ENOENT, also if the client has no right at
 * all in the space.  The caller puts the space.
 */
int kv_client_space(struct kv_client *client, uint32_t id, int want,
		    struct kv_space **ret_space,
		    struct kv_space_info *ret_info);

/*
 * Users take turns of the control thread's time, however many connections they have.  The
 * work of a user: connections with events, and requests whose work is done.
 */
int kv_users_init(struct kv_server *server); /* -ENOMEM */
struct kv_user *kv_user_get(struct kv_server *server, uint32_t uid);
void kv_user_put(struct kv_server *server, struct kv_user *user);

/* Serve @client, which has events, in a turn of its user.  No effect if @client
 * waits for that already. */
void kv_user_ready(struct kv_client *client);
/* Finish @request, whose work is done, in a turn of its user. */
void kv_user_finish(struct kv_request *request);

/* Give each user with work a turn.  Returns true if a user still has work. */
bool kv_users_serve(struct kv_server *server);

#endif
