/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rpc.h - connections to the daemon and their messages, requests on the asynchronous
 * connection, questions on the look-up connection, and notices, which become events of
 * kvfs_reap.
 */
#ifndef KV_KERNELS_SESSION_RPC_H
#define KV_KERNELS_SESSION_RPC_H

#include <sys/queue.h>
#include <sys/types.h>

#include "common/kv.h"
#include "common/wire.h"
#include "kernels/kvfs.h"

/* ---- connections, and the search for the daemon's socket (link.c) ---- */

#define KV_SOCKET_PATH_MAX 4096

struct kv_link {
	int fd;		/* -1: none; the owner closes it */
	uint64_t epoch; /* number that differs after each start of the daemon */
};

/* A message to send, or buffers for a message to receive. */
struct kv_packet {
	struct wire_header header;
	void *items;
	/* Bytes at @items.  kv_link_receive takes the size of the buffer, and
	 * sets the length of the message. */
	size_t bytes;
	int fd; /* descriptor that the message carries; -1: none */
	/* Set by kv_link_receive: the message's descriptor was lost, because
	 * the process has too many open descriptors. */
	bool fd_lost;
};

/* Find the control socket that belongs to @path, a mount point or a socket.
 * Does not check whether a daemon listens.
 * -ENAMETOOLONG: the socket's path is too long */
int kv_link_find(const char *path, char ret_socket[KV_SOCKET_PATH_MAX]);

/*
 * Connect to the daemon's socket and exchange HELLO, within about a second.
 * *@ret_hello is the daemon's HELLO after 0 and -EPROTONOSUPPORT.
 * -EPERM: the daemon belongs neither to root nor to our user, and others than root
 *         and our user can write to the socket's directory or to one above it
 * -EPROTO: the daemon does not speak our protocol
 * -EPROTONOSUPPORT: the daemon and this library have no version in common
 */
int kv_link_open(const char *socket_path, struct kv_link *ret_link,
		 struct wire_hello *ret_hello);
/* Translate an error of kv_link_open for requests: -EMFILE, -ENFILE and -ENOMEM
 * stay, and all other errors become -ENOTCONN. */
int kv_link_lost(int r);

/* Send a message.  @flags: 0, or MSG_DONTWAIT: -EAGAIN instead of waiting for
 * room or memory. */
int kv_link_send(int fd, const struct kv_packet *packet, int flags);

/* Receive one message into @packet; the caller closes packet->fd.
 * -EAGAIN: no message has come before the socket's time-out
 * -ENOTCONN: the daemon has closed the connection
 * -EPROTO: the packet is no message of the protocol, or does not fit */
int kv_link_receive(int fd, struct kv_packet *packet, int flags);

/* A finder looks for the daemon's socket on a thread of its own: a system call
 * on the mount of a daemon that hangs cannot be interrupted, and returns only
 * when the daemon continues or dies. */
struct kv_finder;

/* Start a thread that looks for the socket of @path as kv_link_find does, and
 * writes to the eventfd @wake_fd when it has finished.  @wake_fd is borrowed
 * until kv_finder_end.
 * -ENOMEM, -EAGAIN: the thread cannot start */
int kv_finder_start(const char *path, int wake_fd,
		    struct kv_finder **ret_finder);

/* Return whether the finder's thread has finished.  Any thread. */
bool kv_finder_is_done(const struct kv_finder *finder);

/* Free the finder and return the path of the socket without symbolic links.
 * Does not wait.
 * -ETIMEDOUT: the finder has not finished; its thread is abandoned
 * errors of kv_link_find and realpath(3) */
int kv_finder_end(struct kv_finder *finder,
		  char ret_socket[KV_SOCKET_PATH_MAX]);

/* ---- requests ---- */

struct kv_parcel; /* a message that waits for room in the socket */

/* A request that waits for its reply.  Embedded in its owner, which must keep
 * it until @done has run or the request was withdrawn. */
struct kv_call {
	LIST_ENTRY(kv_call) others;
	struct kv_parcel *parcel; /* queued message of the call; NULL: sent */
	uint64_t tag;		  /* tag of the message; not 0 once submitted */
	/* Number of items that a successful reply must have; during @done, the
	 * number of items that the reply has. */
	uint32_t count;
	bool at_most; /* a successful reply may also have fewer items */
	/* NULL, or called like @done with the items of a reply with WIRE_MORE. */
	void (*part)(struct kv_call *call, const void *items);
	/* Called exactly once, with session->lock held; may free the call.
	 * @status < 0: the error (-ENOTCONN: the connection broke).  Otherwise
	 * @items are the items of the reply, valid during the call. */
	void (*done)(struct kv_call *call, int status, const void *items);
};

struct kv_rpc {
	LIST_HEAD(, kv_call) pending[256]; /* by tag */
	size_t n_pending;
	TAILQ_HEAD(, kv_parcel) out;
	size_t n_out;
	uint64_t tags;
};

/* Send @packet with a new tag; call->done is called with the reply.  Never
 * blocks, and does not keep packet->fd.
 * -ENOTCONN, -ENOMEM, -EMFILE: nothing was sent, and call->done will not be
 * called */
int kv_rpc_submit_locked(struct kvfs_session *session, struct kv_call *call,
			 struct kv_packet *packet);

/* Withdraw a request whose message is still queued, so that call->done is not
 * called.  Return false if the message was sent. */
bool kv_rpc_withdraw_locked(struct kvfs_session *session, struct kv_call *call);

/* Return whether hints, such as prefetches, may be sent: at most a thousand
 * messages are queued.  More are queued only if the daemon hangs. */
bool kv_rpc_takes_hints_locked(const struct kvfs_session *session);

/* Send a message that has no reply, if possible: errors are ignored. */
void kv_rpc_post_locked(struct kvfs_session *session, struct kv_packet *packet);

/* Send a message that consists of a type and a tag. */
void kv_rpc_post_tag_locked(struct kvfs_session *session, enum wire_type type,
			    uint64_t tag);

/* Send queued messages until the socket is full.  Return 1 if some remain. */
int kv_rpc_push_locked(struct kvfs_session *session);

/* End every pending request with -ENOTCONN, after the connection has ended. */
void kv_rpc_break_locked(struct kvfs_session *session);

/* Receive and handle one message.  The caller holds receive_lock.
 * 1: a message was handled
 * 0: there is no message
 * -errno: the connection must be closed */
int kv_rpc_receive(struct kvfs_session *session);

/* ---- questions ---- */

/*
 * Send @question on the look-up connection, and wait at most one second for the
 * reply.  Return the number of bytes in the reply's items, or the reply's
 * status if that is negative.  question->header becomes the header of the
 * reply.
 * -ENOTCONN: no daemon is connected
 * -EMFILE, -ENFILE, -ENOMEM: the process cannot open a connection
 * -ETIMEDOUT: no reply; for one second from now on all questions fail at once
 */
struct kv_question {
	struct wire_header header;
	const void *items;
	size_t bytes;
	void *reply;
	size_t room;
};
long kv_ask(struct kvfs_session *session, struct kv_question *question);

/* Return whether the connected daemon hangs, by sending it an empty look-up.
 * Takes 20 microseconds if the daemon answers, else at most two seconds. */
bool kv_ask_hangs(struct kvfs_session *session);
/* period (ns) at which waiting threads call kv_ask_hangs */
#define KV_LOOK_NS 250000000u

/* ---- notices ---- */

/* An event for kvfs_reap, embedded in a lease or transfer.  A zeroed notice is
 * never reported. */
struct kv_notice {
	/* in session->notices while @pending is not 0 */
	TAILQ_ENTRY(kv_notice) others;
	uint64_t user;	  /* kvfs_opts.user; 0: report nothing */
	uint32_t what;	  /* enum kvfs_event_what */
	unsigned stages;  /* bit set of stages that are not reached yet */
	unsigned pending; /* bit set of stages that kvfs_reap has to report */
	uint64_t n;
	int64_t result[KVFS_SUBMITTED + 1];
};
TAILQ_HEAD(kv_notices, kv_notice);

#define KV_NOTICE_ALL \
	(1u << KVFS_COPIED | 1u << KVFS_SEALED | 1u << KVFS_DURABLE)

/* Report that @result blocks have reached @stage (0 for a lease), and that no
 * more will. */
void kv_notice_post_locked(struct kvfs_session *session,
			   struct kv_notice *notice, unsigned stage,
			   int64_t result);

/* Forget stages that were not reaped yet, so that the notice's owner can be
 * freed. */
void kv_notice_drop_locked(struct kvfs_session *session,
			   struct kv_notice *notice);

#endif
