/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.h - messages of clients, their handlers, and requests that outlive their
 * message.
 *
 * Only the control thread calls these functions.
 */
#ifndef KV_FS_CONTROL_REQUEST_H
#define KV_FS_CONTROL_REQUEST_H

#include "fs/control/client.h"

/* A message whose shape was checked; header->count says how many @items there
 * are. */
struct kv_message {
	const struct wire_header *header;
	const void *items;
	int fd; /* a descriptor of memory, or -1; the caller closes it */
	/* borrowed, if dispatch() has checked the rights in the space; else NULL */
	struct kv_space *space;
	struct kv_space_info info;
};

struct kv_request;

struct kv_request_kind {
	struct kv_wait_kind wait; /* first */
	/* Reply to the connected client when the work is done.  Returns 0, or an error
	 * to reply with; the request may pend again.  NULL: reply with the status. */
	int (*finish)(struct kv_request *request);
};

struct kv_request {
	struct kv_wait wait;	 /* first */
	struct kv_mail mail;	 /* posted when the work is done */
	struct kv_request *next; /* in the hash table of the client */
	TAILQ_ENTRY(kv_request) finished_link; /* of its user */
	struct kv_user *user;		       /* held */
	struct kv_client *client;	       /* NULL: gone */
	struct kv_server *server;
	struct kv_acquire *acquire; /* leases; NULL: none */
	size_t leases;		    /* charged */
	struct kv_deadline deadline;
	struct wire_header header; /* of the message */
	bool pending;		   /* the work is still to be done */
	bool release; /* free the leases after the reply: RELEASE has come */
	bool held;    /* was replied to; its leases stay */
};

/*
 * Make a zeroed request of @bytes that begins with a kv_request, for the tag and the space
 * of @m.  If the handler of @m fails before the request pends, the request is freed.
 * Returns 0, -ENOLCK if the client or its user has too many, or -ENOMEM.
 */
int kv_request_new(struct kv_client *client, const struct kv_message *m,
		   const struct kv_request_kind *kind, size_t bytes,
		   void *ret_request);
/* Charge @n leases until the request is freed.  Returns 0, or -ENOLCK beyond a
 * limit. */
int kv_request_lease(struct kv_request *request, size_t n);
/* Release the leases of a request that is not pending, and free it.  @forced: the client
 * did not ask for the release. */
void kv_request_end(struct kv_request *request, bool forced);

/* Mark @request as pending: its work will end.  Cancel it after @wait
 * nanoseconds; 0: never. */
void kv_request_pend(struct kv_request *request, uint64_t wait);
/* Mark @request as pending, and have a worker do its work, which may wait for the
 * disk. */
void kv_request_run(struct kv_request *request);
/* Reply to a request whose work is done, and free it unless it has leases or pends
 * again. */
void kv_request_answer(struct kv_request *request);

struct kv_request *kv_request_find(struct kv_client *client, uint64_t tag);

/* Cancel all pending requests of the client; with @abandon also detach them from the
 * client.  Held requests stay. */
void kv_requests_cancel(struct kv_client *client, bool abandon);
/* Release all held requests of the client. */
void kv_requests_release(struct kv_client *client);

/* Cancel overdue requests.  Returns true if there is a next deadline. */
bool kv_requests_expire(struct kv_server *server, uint64_t *ret_next_ns);

/* Return the buffer for the items of a reply, valid until the next reply. */
void *kv_reply_items(struct kv_server *server);
/* Reply to the message @header with @status and @count items, which are the first
 * @bytes of kv_reply_items(). */
void kv_reply(struct kv_client *client, const struct wire_header *header,
	      int status, uint32_t count, size_t bytes);
/* Reply with @status, which every item has if the reply has items. */
void kv_reply_all(struct kv_client *client, const struct wire_header *header,
		  int status);

/* Convert a key of a message.  Returns 0, or -EINVAL if @len is not 16 or 32. */
int kv_wire_key(const uint8_t *bytes, uint32_t len, struct kv_key *ret_key);

/* Read one message and handle it.  Returns 1, or 0 if there is no message, or one with
 * descriptors, which kv_request_came will handle.  May break the connection. */
int kv_request_read(struct kv_client *client);
/* Handle a message that came with descriptors; NULL: the message is lost. */
void kv_request_came(struct kv_client *client,
		     const struct kv_gate_message *message);

/* Handlers of message types.  Return 0, -EPROTO to cut the client off, or another error
 * to reply with. */
typedef int kv_handler(struct kv_client *client, const struct kv_message *m);
kv_handler kv_request_space_remove, kv_request_list, kv_request_space,
	kv_request_acquire, kv_request_release, kv_request_staging,
	kv_request_reserve, kv_request_save, kv_request_pool,
	kv_request_pool_close, kv_request_save_pages, kv_request_token_ids,
	kv_request_drop, kv_request_flush, kv_request_hello, kv_request_probe,
	kv_request_cancel, kv_request_evict, kv_request_pin, kv_request_clear,
	kv_request_stats, kv_request_prefetch, kv_request_ended,
	kv_request_pick, kv_request_snapshot, kv_request_snapshot_drop,
	kv_request_snapshot_read, kv_request_snapshot_list, kv_request_unmapped,
	kv_request_forget, kv_request_registers;

#endif
