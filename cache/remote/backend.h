/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.h - a backend, which keeps the objects of a remote tier: a table of calls
 * that never wait.
 *
 * An object is the file of a block, under a name TENANT/SPACE/KEY.  Each backend keeps
 * a note beside the object: the last part of its name, its length and the digest of
 * its bytes.  An object without a note, or with another object's, is refused.  The
 * digest guards against faults, not against attackers who can write there.
 *
 * One thread makes all calls of a backend.  An operation that was submitted, and its
 * memory, are the backend's until they are reaped, also after cancel().
 */
#ifndef KV_CACHE_REMOTE_BACKEND_H
#define KV_CACHE_REMOTE_BACKEND_H

#include <sys/queue.h>

#include "cache/cache.h"

/* TENANT/SPACE/KEY: 64, 64 and KV_NAME_MAX characters at most. */
#define KV_OBJECT_NAME_MAX 200
#define KV_OBJECT_TENANT_MAX KV_REMOTE_NAME_MAX

/*
 * Statuses:
 *   0         success
 *   -EBADMSG  it is not as it was put (short, long, no digest, another's)
 *   -EFBIG    larger than the room
 *   -ENOSPC, -EDQUOT, -EACCES, -ECANCELED
 *   -EUSERS   no helper has time for this tenant
 *   others    the backend, or the network, is at fault
 */
struct kv_remote_op {
	enum kv_remote_call call; /* in, and the next three */
	char name[KV_OBJECT_NAME_MAX + 1];
	/* put: the bytes; get: room for them; clear: room for the layout */
	uint8_t *data;
	uint64_t room;		 /* of get and clear */
	uint64_t length;	 /* put: in; exists, get: out */
	struct kv_digest digest; /* the same */
	/* get: in, length and digest are those of a recent exists: the note need not
	 * be read. */
	bool noted;
	int status; /* out */
	/* Out, of a failure, else unchanged: a text for the user that is never freed,
	 * or NULL; the status of a web server's answer. */
	const char *why;
	unsigned answer;
	/* The backend's, until it is reaped. */
	bool cancelled, under_way;
	void *of;
	TAILQ_ENTRY(kv_remote_op) link;
};
TAILQ_HEAD(kv_remote_ops, kv_remote_op);

struct kv_remote_driver {
	const char *scheme; /* of URLs, without the colon */
	/* The driver keeps one circuit breaker per tenant: failures for one tenant say
	 * nothing about the others. */
	bool apart;
	/*
	 * @url without "scheme:".  Checks what can be checked at once.  On failure
	 * *@ret_why is a message for the user (caller frees; NULL: no memory).
	 */
	int (*open)(const char *url, void **ret_backend, char **ret_why);
	/* May be NULL.  Called after open.  Returns 0, or -errno: it is read-only. */
	int (*may_write)(void *backend);
	/* Begin the operations in this order.  Never waits and never fails: an
	 * operation that cannot begin is reaped with its status. */
	void (*submit)(void *backend, struct kv_remote_op *const *ops,
		       size_t n);
	/* Let the operation end soon, with any status. */
	void (*cancel)(void *backend, struct kv_remote_op *op);
	/* Readable while there is something to reap; level-triggered. */
	int (*fd)(void *backend);
	/* Return up to @max operations that have ended.  Also called every second. */
	size_t (*reap)(void *backend, struct kv_remote_op **ret_ops,
		       size_t max);
	/* May be NULL.  Fill in the statistics that the backend itself has. */
	void (*tell)(void *backend, struct kv_remote_stats *stats);
	/* Called when all is cancelled.  -EBUSY: an operation has not ended after a
	 * second or so; the memory stays the backend's. */
	int (*close)(void *backend);
};

extern const struct kv_remote_driver kv_remote_dir;
extern const struct kv_remote_driver kv_remote_http, kv_remote_https;
extern const struct kv_remote_driver kv_remote_s3;
extern const struct kv_remote_driver kv_remote_helper, kv_remote_mooncake;

/* So many failures in a row open a circuit breaker. */
#define KV_REMOTE_FAILURES 8u

/* Return whether the backend answered, be it with a miss. */
bool kv_remote_is_answer(int status);
/* Return whether the backend refused to store this, and may still serve reads. */
bool kv_remote_is_refusal(enum kv_remote_call call, int status);

/* The note beside an object: "NAME DIGEST LENGTH\n". */
#define KV_OBJECT_NOTE_MAX (KV_NAME_MAX + 1 + 32 + 1 + 20 + 2)

/* Print the note of @op; returns its length. */
size_t kv_object_note(const struct kv_remote_op *op,
		      char note[KV_OBJECT_NOTE_MAX]);
/* Read length and digest of @op from @note; -EBADMSG: it is no note, or that of an
 * object of another name. */
int kv_object_read_note(struct kv_remote_op *op, const char *note, size_t n);

/* Operations of a backend that have ended, until they are reaped.  A backend with
 * several threads calls these with its lock. */
struct kv_done {
	struct kv_remote_ops ops;
	int event; /* eventfd: readable while there are any; -1: none */
};

/* -EMFILE and other errors of eventfd(2). */
int kv_done_init(struct kv_done *done);
void kv_done_fini(struct kv_done *done);
/* End @op with @status. */
void kv_done_add(struct kv_done *done, struct kv_remote_op *op, int status);
/* As a backend's reap. */
size_t kv_done_reap(struct kv_done *done, struct kv_remote_op **ret_ops,
		    size_t max);

#endif
