/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.h - messages of clients: their handlers, and requests that outlive
 * the call that read them.
 *
 * Control thread only.
 */
#ifndef KV_FS_CONTROL_REQUEST_H
#define KV_FS_CONTROL_REQUEST_H

#include "fs/control/client.h"

/* A checked message: @items are as many as the header says. */
struct kv_message {
	const struct wire_header *header;
	const void *items;
	int fd; /* of memory, or -1; closed by the reader of messages */
};

struct kv_request;

struct kv_request_kind {
	/* The work is done: reply (unless the client is NULL), and end it or
	 * keep it as held. */
	void (*finish)(struct kv_request *request);
	/* Make the mail come soon; NULL: that cannot be hurried. */
	void (*cancel)(struct kv_request *request, int status);
	/* Give back what it holds and end it; @forced: its holder did not ask
	 * for that.  NULL: this kind never holds. */
	void (*release)(struct kv_request *request, bool forced);
};

struct kv_request {
	struct kv_mail mail;	 /* first: posted when the work is done */
	struct kv_request *next; /* in the client's table */
	TAILQ_ENTRY(kv_request) finished_link; /* of its user */
	struct kv_user *user;		       /* held */
	const struct kv_request_kind *kind;
	struct kv_client *client; /* NULL: gone */
	struct kv_server *server;
	struct kv_account *account; /* has it, its bytes and its leases */
	struct kv_space *space;	    /* that it is about, held; or NULL */
	size_t bytes, leases;
	struct kv_deadline deadline;
	struct wire_header header; /* of the message */
	bool pending;		   /* it is still to be finished */
	bool release;		   /* asked for meanwhile: hold nothing */
	bool held;		   /* replied to; what it has leased stays */
};

/*
 * A zeroed request of @bytes that begins with a kv_request, entered under the
 * tag of @header.  -ENOLCK the client, or its user, has too many; -ENOMEM.
 */
int kv_request_new(struct kv_client *client, const struct wire_header *header,
		   const struct kv_request_kind *kind, size_t bytes,
		   void *ret_request);
/* A request that was replied to stays, and is counted by its leases. */
void kv_request_hold(struct kv_request *request);
/* Count @n leases in, until it is freed.  -ENOLCK too many. */
int kv_request_lease(struct kv_request *request, size_t n);
/* Forget and free.  It must not be pending. */
void kv_request_free(struct kv_request *request);

/* The mail of @request will come; header.arg, if it counts as a timeout, is
 * obeyed. */
void kv_request_pend(struct kv_request *request, bool timeout);
/* The same, and it is cancelled after @wait nanoseconds. */
void kv_request_pend_for(struct kv_request *request, uint64_t wait);

struct kv_request *kv_request_find(struct kv_client *client, uint64_t tag);

/* Cancel what is pending. */
void kv_requests_cancel(struct kv_client *client, int status);
/* The same, and forget the client in it; what is held stays. */
void kv_requests_abandon(struct kv_client *client);
/* Release what is held. */
void kv_requests_release(struct kv_client *client);

/* The work is done, and its user's turn has come. */
void kv_request_finish(struct kv_request *request);

/* Cancel what is overdue; returns whether there is a next one, and when. */
bool kv_requests_expire(struct kv_server *server, uint64_t *ret_next_ns);

/*
 * Reply to the message @header with @count items, which are the first @bytes of
 * kv_reply_items(); valid until the next reply.
 */
void *kv_reply_items(struct kv_server *server);
void kv_reply(struct kv_client *client, const struct wire_header *header,
	      int status, uint32_t count, size_t bytes);
/* The reply in which every item has @status. */
void kv_reply_all(struct kv_client *client, const struct wire_header *header,
		  int status);

/* -EINVAL: not 16 or 32 bytes long. */
int kv_wire_key(const uint8_t *bytes, uint32_t len, struct kv_key *ret_key);

/* The keys of a message into server->keys; -EPROTO if one is none. */
int kv_request_keys(struct kv_client *client, const struct kv_message *m);

/* Room for a block in the space of @layout, as a RESERVE with @flags asks for:
 * the statuses of that. */
int kv_request_fill(struct kv_client *client, uint16_t flags,
		    struct kv_space *space, const struct kv_layout *layout,
		    const struct kv_key *key, struct kv_fill **ret_fill);

/* Read one message and deal with it: 1, or 0 if there is none, or it has
 * descriptors and kv_request_came will get it.  The client may be broken
 * then. */
int kv_request_read(struct kv_client *client);
/* A message with descriptors has been received; NULL: it is lost. */
void kv_request_came(struct kv_client *client,
		     const struct kv_gate_message *message);

/* Handlers, one a message type; -EPROTO: cut the client off. */
int kv_request_space_remove(struct kv_client *client,
			    const struct kv_message *m);
int kv_request_list(struct kv_client *client, const struct kv_message *m);
int kv_request_space(struct kv_client *client, const struct kv_message *m);
int kv_request_acquire(struct kv_client *client, const struct kv_message *m);
int kv_request_release(struct kv_client *client, const struct kv_message *m);
int kv_request_staging(struct kv_client *client, const struct kv_message *m);
int kv_request_reserve(struct kv_client *client, const struct kv_message *m);
int kv_request_save(struct kv_client *client, const struct kv_message *m);
int kv_request_pool(struct kv_client *client, const struct kv_message *m);
int kv_request_pool_close(struct kv_client *client, const struct kv_message *m);
int kv_request_save_pages(struct kv_client *client, const struct kv_message *m);
int kv_request_token_ids(struct kv_client *client, const struct kv_message *m);
int kv_request_drop(struct kv_client *client, const struct kv_message *m);
int kv_request_flush(struct kv_client *client, const struct kv_message *m);
int kv_request_hello(struct kv_client *client, const struct kv_message *m);
int kv_request_probe(struct kv_client *client, const struct kv_message *m);
int kv_request_cancel(struct kv_client *client, const struct kv_message *m);
int kv_request_evict(struct kv_client *client, const struct kv_message *m);
int kv_request_pin(struct kv_client *client, const struct kv_message *m);
int kv_request_clear(struct kv_client *client, const struct kv_message *m);
int kv_request_stats(struct kv_client *client, const struct kv_message *m);
int kv_request_prefetch(struct kv_client *client, const struct kv_message *m);
int kv_request_ended(struct kv_client *client, const struct kv_message *m);
int kv_request_pick(struct kv_client *client, const struct kv_message *m);
int kv_request_snapshot(struct kv_client *client, const struct kv_message *m);
int kv_request_snapshot_drop(struct kv_client *client,
			     const struct kv_message *m);
int kv_request_snapshot_read(struct kv_client *client,
			     const struct kv_message *m);
int kv_request_snapshot_list(struct kv_client *client,
			     const struct kv_message *m);
int kv_request_unmapped(struct kv_client *client, const struct kv_message *m);
int kv_request_forget(struct kv_client *client, const struct kv_message *m);
int kv_request_registers(struct kv_client *client, const struct kv_message *m);

/* Check the message of @n bytes in server->in, and handle it; -EPROTO.
 * @has_fd: a descriptor came with it, which is @fd if it is one of memory. */
int kv_dispatch(struct kv_client *client, size_t n, bool has_fd, int fd);

#endif
