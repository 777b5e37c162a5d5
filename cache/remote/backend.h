/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.h - what keeps the objects of a remote tier: a table of calls that
 * never wait.
 *
 * An object is the file of a block, under a name TENANT/SPACE/KEY; beside it,
 * where each backend says, stand its own name's last part, its length and the
 * digest of its bytes.  One without that is refused, and one whose last part is
 * another's.  The digest guards against faults, not against who writes there.
 *
 * Whoever uses a backend has one thread for it.  An operation that was submitted,
 * and the memory that it names, are the backend's until they are reaped: also
 * those that were cancelled, which says no more than that nobody waits.
 */
#ifndef KV_CACHE_REMOTE_BACKEND_H
#define KV_CACHE_REMOTE_BACKEND_H

#include <sys/queue.h>

#include "cache/cache.h"

/* TENANT/SPACE/KEY: 64, 64 and KV_NAME_MAX characters at most. */
#define KV_OBJECT_NAME_MAX 200
#define KV_OBJECT_TENANT_MAX KV_REMOTE_NAME_MAX

/*
 * Statuses, besides: 0; -EBADMSG it is not as it was put (short, long, no digest,
 * another's); -EFBIG larger than the room; -ENOSPC, -EDQUOT; -EACCES; -ECANCELED;
 * -EUSERS nobody has time for this tenant; all others: the backend, or the way
 * there, is at fault.
 */
struct kv_remote_op {
	enum kv_remote_call call; /* in, and the next three */
	char name[KV_OBJECT_NAME_MAX + 1];
	/* put: the bytes; get: room for them; clear: for the one that stays */
	uint8_t *data;
	uint64_t room;		 /* of get, and clear */
	uint64_t length;	 /* put: in; exists, get: out */
	struct kv_digest digest; /* the same */
	/* get: in, both are as exists has just told: its note may stay unread. */
	bool noted;
	int status; /* out */
	/* Out, if it failed; as they were, or for the user: NULL, or a text that
	 * is never freed; the status of a web server's answer. */
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
	/* That it fails for one tenant says nothing of others: it does not go on to
	 * ask what failed too often, all by itself. */
	bool apart;
	/*
	 * @url without "scheme:".  Checks what can be checked at once.  On failure
	 * *@ret_why is a message for the user (caller frees; NULL: no memory).
	 */
	int (*open)(const char *url, void **ret_backend, char **ret_why);
	/* NULL, or, when it has just been opened: 0, or -errno: nothing can be put
	 * there. */
	int (*may_write)(void *backend);
	/* Begin them, in this order; never waits, and never fails: what cannot
	 * begin is reaped with its status. */
	void (*submit)(void *backend, struct kv_remote_op *const *ops,
		       size_t n);
	/* Nobody waits for it: it shall end soon, with any status. */
	void (*cancel)(void *backend, struct kv_remote_op *op);
	/* Readable while there is something to reap; level-triggered. */
	int (*fd)(void *backend);
	/* What has ended, @max at most.  Called once a second, too. */
	size_t (*reap)(void *backend, struct kv_remote_op **ret_ops,
		       size_t max);
	/* NULL, or: fill in what else there is to tell of it. */
	void (*tell)(void *backend, struct kv_remote_stats *stats);
	/* All is cancelled.  -EBUSY: some does not end, in a second or so: its
	 * memory is the backend's for as long as the process lives. */
	int (*close)(void *backend);
};

extern const struct kv_remote_driver kv_remote_dir;
extern const struct kv_remote_driver kv_remote_http, kv_remote_https;
extern const struct kv_remote_driver kv_remote_s3;
extern const struct kv_remote_driver kv_remote_helper, kv_remote_mooncake;

/* So many failures in a row, and who failed is asked no more but a second's trial. */
#define KV_REMOTE_FAILURES 8u

/* Whether a status says that somebody answered, if not what one would like. */
bool kv_remote_is_answer(int status);
/* Whether it says that somebody answered who takes nothing, or not this, and may
 * give what he has all the same. */
bool kv_remote_is_refusal(enum kv_remote_call call, int status);

/* What stands beside an object: "NAME DIGEST LENGTH\n". */
#define KV_OBJECT_NOTE_MAX (KV_NAME_MAX + 1 + 32 + 1 + 20 + 2)

/* Print it for @op; returns its length. */
size_t kv_object_note(const struct kv_remote_op *op,
		      char note[KV_OBJECT_NOTE_MAX]);
/* Take length and digest of @op from it; -EBADMSG: it is not one, or of an
 * object of another name. */
int kv_object_read_note(struct kv_remote_op *op, const char *note, size_t n);

#endif
