/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.h - the control thread's state: its mailbox and deadlines; clients with all that
 * they hold; users; messages, their handlers, and requests that outlive their message.
 *
 * Only the control thread calls these functions and uses this state, except where a
 * comment says otherwise.
 */
#ifndef KV_FS_CONTROL_SERVER_H
#define KV_FS_CONTROL_SERVER_H

#include <stdatomic.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "common/copy.h"
#include "common/wire.h"
#include "fs/base/access.h"
#include "fs/base/wait.h"
#include "fs/control/control.h"

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
 * Wait 3 s for the end of a daemon that listens there, remove a socket without a daemon,
 * make the socket's directory, and listen with mode 0666, as kv_control_start describes.
 * On failure *@ret_why may be a message, and nothing is left behind.
 */
int kv_listener_open(struct kv_listener *listener, const char *path,
		     char **ret_why);

/* Close the listener, and remove the name if it is still this socket's, and the directory
 * if it was made for the socket and is empty.  No effect if closed already. */
void kv_listener_close(struct kv_listener *listener);

/* ---- deadlines of requests, in a heap ---- */

/* A deadline, embedded in its owner, zeroed at first; in one heap at most. */
struct kv_deadline {
	uint64_t at_ns; /* time by kv_now_ns() */
	size_t place;	/* index in the heap; 0: the deadline is not set */
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

/* most bytes and blocks that the control thread copies in a user's turn */
#define KV_SMALL_BYTES (256u << 10)
#define KV_SMALL_BLOCKS 16u
#define KV_COPY_TURN (4u << 20)	 /* bytes */
#define KV_COPY_COST (64u << 10) /* cost of a copy, added to its bytes */

struct kv_server {
	struct kv_cache *cache;	      /* fixed */
	struct kv_gate *gate;	      /* fixed; borrowed */
	const struct kv_rules *rules; /* fixed */
	char *(*config)(void *arg);   /* fixed; see kv_control_start */
	void *config_arg;	      /* fixed */
	/* Fixed: workers that copy and hash, and workers that wait for the disk, of
	 * which a user has one at a time. */
	struct kv_workers *copies, *waits;
	/* fixed; most bytes of clients' memory that may be mapped */
	uint64_t mapped_max;
	struct kv_mailbox mailbox;	/* any thread posts mail */
	struct kv_control_counts tally; /* any thread */
	int epoll;			/* fixed */
	uint64_t seed; /* fixed; seed of hash tables, unknown to clients */
	bool stopping; /* the daemon ends: read no more messages */
	/* last protocol version that was logged as refused; 0: none */
	uint32_t version_refused;
	uint64_t version_warned_ns; /* time when version_refused was logged */
	struct kv_hash *hash; /* hash state of the control thread's copies */
	uint64_t copied;      /* bytes of such blocks in this user's turn */
	size_t pending;	      /* number of requests whose work has not ended */
	uint64_t now_ns;      /* when the turn's present work began */
	/* histogram in @tally for the request that this work answers, which came at
	 * @timed_ns; NULL: none */
	struct kv_histogram *timed;
	uint64_t timed_ns;
	struct kv_deadlines deadlines;
	struct kv_turns users;	   /* users with work */
	struct kv_clients clients; /* connected, or cut off but with leases */
	struct kv_clients ended;   /* clients to be freed soon */

	/* keys, bytes and reply of the message being handled */
	struct kv_key keys[WIRE_BATCH];
	_Alignas(8) uint8_t in[WIRE_MAX + 8];
	_Alignas(8) uint8_t out[WIRE_MAX];
};

/* Start server->copies and server->waits.  Returns 0, -ENOMEM or -EAGAIN. */
int kv_server_start_workers(struct kv_server *server);

/* ---- a client's file in memory: its staging, or memory that it lends ---- */

struct kv_client_memory;

/*
 * Make client memory of @bytes from @offset of the file @fd, which stays the caller's.
 * The memory is held once, charged to @account, and not mapped.  Returns 0, or:
 *   -EINVAL       no bytes, or an end beyond the largest file
 *   -EMEDIUMTYPE  @fd is not a file in memory
 *   -EACCES       @fd is not open for reading
 *   -ENOLCK       beyond the share of @account
 *   -EMFILE, -ENOMEM
 */
int kv_client_memory_new(struct kv_server *server, struct kv_account *account,
			 int fd, uint64_t offset, uint64_t bytes,
			 struct kv_client_memory **ret_memory);

/*
 * Do a step of mapping the memory, if mapping is safe.  A worker calls this before any
 * copy.  Returns 1 if there are further steps, 0 if the work is done.
 */
int kv_client_memory_map(struct kv_client_memory *memory);
bool kv_client_memory_is_mapped(const struct kv_client_memory *memory);

void kv_client_memory_hold(struct kv_client_memory *memory);
/* Drop a hold.  After the last one a worker unmaps and closes the file.  Takes
 * NULL. */
void kv_client_memory_put(struct kv_client_memory *memory);

uint64_t kv_client_memory_bytes(const struct kv_client_memory *memory);
/* Return true if the memory has @n bytes from @at on, without overflow. */
bool kv_client_memory_has(const struct kv_client_memory *memory, uint64_t at,
			  uint64_t n);

/* Read by pread(2), as the control thread must: the page fault of a mapping may wait. */
#define KV_COPY_READ 1u
/* The owner of the block may write to @dst meanwhile. */
#define KV_COPY_OPEN 2u
/*
 * Copy @n bytes from @at on, which must lie inside the memory, to @dst, and hash the bytes
 * unless @hash is NULL.  @how: flags above.  Any thread.  Returns 0, or -EFAULT if the file
 * has become shorter or cannot be read.
 */
int kv_client_memory_copy(const struct kv_client_memory *memory, unsigned how,
			  uint64_t at, uint64_t n, struct kv_hash *hash,
			  void *dst);

/* ---- paged memory that an engine lends ---- */

struct kv_lent;
TAILQ_HEAD(kv_lents, kv_lent);
struct kv_client;

/*
 * Make the memory that @client lends, which @pool and its @n strides describe, in the file
 * @fd, which stays the caller's.  The memory is held once, and is in no list.  Returns 0,
 * -EINVAL for a bad size or a stride that ends outside the pool, or an error of
 * kv_client_memory_new.
 */
int kv_lent_new(const struct kv_client *client, int fd,
		const struct wire_pool *pool, const struct wire_stride *strides,
		size_t n, struct kv_lent **ret_lent);
void kv_lent_put(struct kv_lent *lent); /* takes NULL */

/* Take @lent off the client's list: seal no more copies of the memory, which the client
 * has taken back, and stop using the client's descriptors. */
void kv_lent_drop(struct kv_client *client, struct kv_lent *lent);

/* ---- messages that wait to be sent ---- */

/* most bytes of messages that may wait for one client */
#define KV_SEND_QUEUE_BYTES (4u << 20)
#define KV_SEND_QUEUE_FDS 256 /* most messages with a descriptor that wait */

struct kv_send_queue {
	struct kv_outgoing *first, **last;
	size_t bytes, fds;
	/* account charged with the bytes and descriptors; borrowed */
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
	uint64_t tag; /* tag of the RESERVE */
};

struct kv_reservations {
	LIST_HEAD(kv_reservation_entries, kv_reservation_entry) buckets[256];
	size_t n, holds; /* holds: number of reservations with `hold` */
	uint64_t seed;
	struct kv_account *account; /* the client's; borrowed */
};

/* Drop all reservations and return their number. */
size_t kv_reservations_drop(struct kv_reservations *table,
			    struct kv_cache *cache);

/* Ids, ascending. */
struct kv_segments {
	uint32_t *ids;
	size_t n, room;
};

/* Remove @id.  Returns false if @id is not in the set. */
bool kv_segments_remove(struct kv_segments *set, uint32_t id);
/* Sets of blocks that a client has picked, each for one snapshot. */
struct kv_sets {
	struct kv_set *first;
	size_t n, picks; /* number of sets, and of picks in all sets */
};

void kv_sets_drop(struct kv_client *client);

void kv_subscriptions_drop(struct kv_client *client);

/* ---- the client ---- */

/* Why a connection is ended. */
enum kv_break {
	KV_BREAK_NOT,
	KV_BREAK_GONE, /* peer has closed the socket, or its process is dead */
	KV_BREAK_PROTOCOL,
	KV_BREAK_SLOW, /* client reads no messages, or the gate lost one */
};

struct kv_request;
struct kv_user;

struct kv_client {
	struct kv_server *server;
	struct kv_watch on_socket, on_death;
	TAILQ_ENTRY(kv_client) link; /* in server->clients or server->ended */
	TAILQ_ENTRY(kv_client) ready_link; /* in the user's `ready` list */
	struct kv_user *user;		   /* held */
	int socket, pidfd; /* pidfd -1: process of another pid namespace */
	struct kv_caller caller;
	gid_t *groups;
	struct kv_account *account; /* account of its user; held */
	/* protocol version agreed by HELLO; 0: no HELLO yet */
	uint32_t version;
	bool registers; /* WIRE_REGISTERS */
	bool deaf;	/* the peer has closed its end: send nothing */
	bool cut;	/* cut off: only its leases and segments are left */
	bool ended;
	bool is_ready; /* is on the user's list of ready clients */
	bool offers;   /* offered memory is being mapped: read no message */
	/* reason to end the connection in the user's next turn */
	enum kv_break broken;
	uint32_t happened; /* epoll events since the last turn */
	uint32_t events;   /* events that epoll watches */
	/* wait for the gate to receive a message: read no other meanwhile */
	struct kv_gate_wait gate;
	struct kv_send_queue send_queue;
	/* memory from which blocks are saved; NULL: none was sent yet */
	struct kv_client_memory *staging;
	struct kv_lents lents;
	size_t n_lents;
	LIST_HEAD(kv_requests, kv_request) requests[256]; /* by tag */
	size_t n_requests, n_held, n_wants; /* n_held: HELD requests */
	uint64_t last_acquire; /* highest tag of a request with leases */
	struct kv_reservations reservations;
	struct kv_segments segments;
	struct kv_sets sets;
	struct kv_subscription *subscriptions; /* to spaces */
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

/* Send the client the descriptor of segment @id, unless the client has it.  Returns 0,
 * -ENOENT if the segment is retired or has blocks that the client may not read, -ENOLCK
 * beyond the user's share, or -ENOMEM. */
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

/* ---- messages and requests ---- */

/* A message whose shape was checked, with header->count @items. */
struct kv_message {
	const struct wire_header *header;
	const void *items;
	int fd; /* a descriptor of memory, or -1; the caller closes it */
	/* borrowed, if dispatch() has checked the rights in the space; else NULL */
	struct kv_space *space;
	struct kv_space_info info;
};

struct kv_request_kind {
	struct kv_wait_kind wait; /* first */
	/* Reply to the connected client when the work is done.  Returns 0, or an error
	 * to reply with; the request may pend again.  NULL: reply with the status. */
	int (*finish)(struct kv_request *request);
};

struct kv_request {
	struct kv_wait wait;	       /* first */
	struct kv_mail mail;	       /* mail to post when the work is done */
	LIST_ENTRY(kv_request) bucket; /* entry in client->requests */
	TAILQ_ENTRY(kv_request) finished_link; /* user->finished */
	struct kv_user *user;		       /* held */
	struct kv_client *client; /* the sender; NULL: it is gone */
	struct kv_server *server;
	/* the acquire whose blocks are leased; NULL: no leases */
	struct kv_acquire *acquire;
	size_t leases; /* number of leases charged to the user */
	struct kv_deadline deadline;
	uint64_t came_ns;
	struct wire_header header; /* header of the client's message */
	bool pending;		   /* the work has not ended yet */
	bool release; /* RELEASE has come: free the leases after the reply */
	bool held;    /* the reply was sent, and the leases stay */
	bool shown;   /* a part of the reply was sent */
};

/*
 * Make a zeroed request of @bytes that begins with a kv_request, for the tag and the space
 * of @m.  If the handler of @m fails before the request pends, the request is freed.
 * Returns 0, -ENOLCK if the client or its user has too many, or -ENOMEM.
 */
int kv_request_new(struct kv_client *client, const struct kv_message *m,
		   const struct kv_request_kind *kind, size_t bytes,
		   void *ret_request);
/* Charge @n leases to the user until the request is freed.  Returns 0, or
 * -ENOLCK beyond a limit. */
int kv_request_lease(struct kv_request *request, size_t n);
/* Release the leases of a request that is not pending, and free it.  @forced: the client
 * did not ask for the release. */
void kv_request_end(struct kv_request *request, bool forced);

/* Mark @request as pending: its work will end.  Cancel it after @wait
 * nanoseconds; 0: never. */
void kv_request_pend(struct kv_request *request, uint64_t wait);
/* Mark @request as pending, and have a worker do its work, which may wait for
 * the disk. */
void kv_request_run(struct kv_request *request);
/* Reply to a request whose work is done, and free it unless it has leases or
 * pends again. */
void kv_request_answer(struct kv_request *request);

struct kv_request *kv_request_find(struct kv_client *client, uint64_t tag);

/* Count in @times how long the request that came at @came_ns took, when the present work
 * has ended: the turn reads the clock then in any case. */
static inline void kv_server_time(struct kv_server *server,
				  struct kv_histogram *times, uint64_t came_ns)
{
	server->timed = times;
	server->timed_ns = came_ns;
}

/* Cancel all pending requests of the client.  @abandon: also detach them, but those that
 * have shown leases only from a client that has ended.  Held requests stay. */
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
	kv_request_cancel, kv_request_evict, kv_request_clear, kv_request_stats,
	kv_request_prefetch, kv_request_ended, kv_request_pick,
	kv_request_snapshot, kv_request_snapshot_drop, kv_request_snapshot_read,
	kv_request_snapshot_list, kv_request_unmapped, kv_request_forget,
	kv_request_registers, kv_request_limit, kv_request_why,
	kv_request_changes;

#endif
