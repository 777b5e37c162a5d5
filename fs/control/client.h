/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client.h - one connection: who it is, and all that it holds.
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

struct kv_client {
	struct kv_server *server;
	struct kv_watch on_socket, on_death;
	TAILQ_ENTRY(kv_client) link;	   /* in server->clients or ->ended */
	TAILQ_ENTRY(kv_client) ready_link; /* of its user */
	struct kv_user *user;		   /* held */
	int socket, pidfd; /* pidfd -1: its process is not visible from here */
	struct kv_caller caller;
	gid_t *groups;
	struct kv_account *account; /* held; its user's */
	uint32_t version;	    /* agreed on by HELLO; 0: not yet */
	bool registers;		    /* WIRE_REGISTERS */
	bool deaf; /* it has closed its end: nothing is sent any more */
	bool cut;  /* cut off; only leases and segments are left */
	bool ended;
	bool is_ready; /* there is something to do for it */
	bool offers;   /* memory, which is being mapped: nothing else is read */
	enum kv_break broken;	  /* dealt with in its user's turn */
	uint32_t happened;	  /* what epoll told since its last turn */
	uint32_t events;	  /* what epoll watches the socket for */
	struct kv_gate_wait gate; /* waits: nothing else is read meanwhile */
	struct kv_send_queue send_queue;
	struct kv_client_memory *staging; /* NULL: none given yet */
	struct kv_lents lents;
	size_t n_lents;
	struct kv_request *requests[256];   /* request.c: by tag */
	size_t n_requests, n_held, n_wants; /* n_held: of the requests */
	uint64_t last_acquire; /* highest tag of an acquire so far */
	struct kv_reservations reservations;
	struct kv_segments segments;
	struct kv_sets sets;
};

/*
 * A client for the connected @socket, which is taken over in any case.
 * -ENOLCK beyond its user's share, -ENOMEM, -EACCES it is not let in, -ESRCH
 * its process is dead already, or an error of getsockopt(2).
 */
int kv_client_new(struct kv_server *server, int socket,
		  struct kv_client **ret_client);

/* Do what there is to do for it, one message at most; whether there may be
 * more. It may have ended then. */
bool kv_client_serve(struct kv_client *client);

/* End this connection, in its user's turn. */
void kv_client_break(struct kv_client *client, enum kv_break why);

/* Free what has ended. */
void kv_client_sweep(struct kv_server *server);

/* Read no more from it, and cancel what it waits for. */
void kv_client_quiesce(struct kv_client *client);

/* Close it and let go of all that it holds.  Valid until the next sweep. */
void kv_client_end(struct kv_client *client);

/* Send one message; breaks the client if it cannot be sent or queued. */
void kv_client_send(struct kv_client *client, const void *data, size_t n,
		    int fd);

/* Memory that the client lent is not any more. */
void kv_client_drop_lent(struct kv_client *client, struct kv_lent *lent);

/* Make sure it has been sent the descriptor of segment @id.  -ENOENT the
 * segment is retired, -ENOLCK beyond the user's share, -ENOMEM. */
int kv_client_give_segment(struct kv_client *client, uint32_t id);
/* Ask it to unmap segment @id, if it has that. */
void kv_client_retire(struct kv_client *client, uint32_t id);

/*
 * The live space @id, held, with its present state, if the client has the
 * rights @want in it (access(2)): -EACCES; -ENOENT, also of one in which it has
 * no rights at all.
 */
int kv_client_space(struct kv_client *client, uint32_t id, int want,
		    struct kv_space **ret_space,
		    struct kv_space_info *ret_info);

/* The same of one that blocks are saved to: -EINVAL without a layout. */
int kv_client_space_to_save(struct kv_client *client, uint32_t id,
			    struct kv_space **ret_space,
			    struct kv_space_info *ret_info);

#endif
