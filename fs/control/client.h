/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - one connection: its user, and all that it holds.
 *
 * Control thread only.
 */
#ifndef KV_FS_CONTROL_CLIENT_H
#define KV_FS_CONTROL_CLIENT_H

#include "fs/base/access.h"
#include "fs/control/client_state.h"
#include "fs/control/gate.h"
#include "fs/control/lent.h"
#include "fs/control/send_queue.h"
#include "fs/control/server.h"

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

/* Handle its events, and one message at most.  Returns whether there may be more
 * messages.  The client may have ended then. */
bool kv_client_serve(struct kv_client *client);

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
