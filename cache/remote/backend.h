/* SPDX-License-Identifier: Apache-2.0 */
/*
 * backend.h - a backend, which keeps the objects of the remote tier: a queue of
 * operations, and threads that do them.
 *
 * An object is the file of a block with one entry inserted, named
 * TENANT/2-SPACE/KEY.  Every backend replaces an object atomically: a reader gets the
 * whole old object or the whole new one.
 *
 * An operation that was submitted, and its memory, belong to the backend until the
 * operation is reaped, also after kv_ops_cancel().
 */
#ifndef KV_CACHE_REMOTE_BACKEND_H
#define KV_CACHE_REMOTE_BACKEND_H

#include <stdatomic.h>
#include <sys/queue.h>
#include <sys/uio.h>

#include "cache/cache.h"
#include "common/copy.h"

/* Parts of a name, TENANT/2-SPACE/KEY, have at most 64, 66 and KV_NAME_MAX
 * characters: letters, digits, '-' and '_'. */
#define KV_OBJECT_NAME_MAX 204u
#define KV_OBJECT_TENANT_MAX KV_REMOTE_NAME_MAX

/*
 * Statuses of an operation:
 *   0            success
 *   -ENOENT      absent; of a PUT never: a missing bucket or folder is -EIO
 *   -EACCES      refused for this object alone (403, a symbolic link, a wrong owner)
 *   -ENOSPC      a PUT: the backend is full, takes no objects, or none as large (507,
 *                405, 413)
 *   -EAGAIN      GET: the object exists, but has more than @max bytes, or there is no
 *                memory for it
 *   -EBADMSG     GET: the body is shorter or longer than announced
 *   -ECANCELED   cancelled
 *   others       the backend or the network failed
 */
struct kv_remote_op {
	enum kv_remote_call call; /* in */
	/* In: the object's name.  HEAD of "": whether the backend itself is
	 * there, with bucket or directory.  DELETE of "NAME/": all below it. */
	char name[KV_OBJECT_NAME_MAX + 1];
	struct iovec parts[2]; /* in, of a PUT: the bytes of the object */
	uint64_t max;  /* in, of a GET: most bytes to allocate for the object */
	uint8_t *data; /* out, of a GET; the caller frees it */
	/* Progress of a GET: raised by kv_op_room and by each part of the body. */
	_Atomic uint64_t progress;
	/* Out, of GET, HEAD and PUT: bytes of the object; of a DELETE of all below a name:
	 * objects that were removed, 0 if the backend does not tell. */
	uint64_t length;
	int status;		 /* out */
	uint64_t retry_after_ns; /* out: pause that the server asks for; or 0 */
	char why[KV_REMOTE_FAILURE_MAX]; /* out, of a failure: the cause; "": none */
	/* Used by the backend until the operation is reaped. */
	_Atomic bool cancelled;
	TAILQ_ENTRY(kv_remote_op) link;
};
TAILQ_HEAD(kv_remote_ops, kv_remote_op);

#define KV_OPS_THREADS 16u /* one tenant has half of them at most */

/* The queue of a backend's operations, and the threads that carry them out. */
struct kv_ops {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* signals an operation, or @stop */
	struct kv_remote_ops queued, taken, ended; /* under @lock */
	_Atomic bool stop;
	_Atomic uint64_t lent; /* memory of operations until they are reaped */
	pthread_t threads[KV_OPS_THREADS];
	unsigned n_threads; /* used by the remote thread only */
	int event; /* constant; eventfd: readable if an operation has ended */
	void (*wake)(
		struct kv_ops *ops); /* constant; wakes a thread; may be NULL */
};

/* Initialize @ops.  After an error of eventfd(2), too, call kv_ops_fini. */
int kv_ops_init(struct kv_ops *ops, void (*wake)(struct kv_ops *ops));
/* Start one more of at most KV_OPS_THREADS threads. */
int kv_ops_start(struct kv_ops *ops, const char *name, void *(*run)(void *),
		 void *arg);
/* Let the threads end, and join them; -EBUSY: one of them does not within a second, and
 * @ops remains. */
int kv_ops_fini(struct kv_ops *ops);

/* Take the first queued operation; with @waits, the first whose tenant has less than half
 * of the threads, and wait for one.  NULL: none is queued, or stop. */
struct kv_remote_op *kv_ops_take(struct kv_ops *ops, bool waits);
/* End @op with @status; clear the cause unless @status is a failure. */
void kv_ops_end(struct kv_ops *ops, struct kv_remote_op *op, int status);
/* Allocate op->data for an object of @length bytes; -EAGAIN. */
int kv_op_room(struct kv_ops *ops, struct kv_remote_op *op, uint64_t length);
/* Set the cause of a failure as one line of printable characters; returns @status. */
int kv_op_failed(struct kv_remote_op *op, int status, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Calls for the remote thread. */

/* Begin @op.  Never waits and never fails: an operation that cannot begin is reaped with
 * its status. */
void kv_ops_submit(struct kv_ops *ops, struct kv_remote_op *op);
/* Cancel the operation: it ends soon, with any status. */
void kv_ops_cancel(struct kv_ops *ops, struct kv_remote_op *op);
/* Return an operation that has ended.  NULL: there is none. */
struct kv_remote_op *kv_ops_reap(struct kv_ops *ops);

struct kv_remote_driver {
	const char *scheme; /* scheme of its URLs, without the colon */
	/*
	 * Check the rest of a URL, after "@scheme:", and make a backend, whose structure
	 * begins with its struct kv_ops.  Does not touch the network or the directory.
	 * On failure *@ret_why is a message for the user (caller frees; NULL: no
	 * memory).  -EINVAL, -EACCES (a credentials file), -ENOMEM.
	 */
	int (*make)(const char *scheme, const char *rest,
		    const struct kv_remote_config *config,
		    struct kv_ops **ret_ops, char **ret_why);
	/* Free the backend, whose operations are all cancelled.  -EBUSY: one
	 * has not ended after a second or so; the backend keeps its memory. */
	int (*close)(struct kv_ops *ops);
};

extern const struct kv_remote_driver kv_remote_dir, kv_remote_s3;
extern const struct kv_remote_driver kv_remote_http, kv_remote_https;
extern const struct kv_remote_driver kv_remote_http_unix; /* http+unix: */

/* ---- object.c: the entry of an object ---- */

/*
 * The entry "kvfs.object" stands in the header's __metadata__ and holds digest, key,
 * length and parent of the block.  The digest and the length are those of the file
 * without the entry.  An object remains a valid safetensors file.
 */
struct kv_object_entry {
	struct kv_key key, parent; /* parent.len 0: none */
	uint64_t length;	   /* bytes of the file without the entry */
	struct kv_digest digest;   /* digest of the file without the entry */
};

/* A block's file is the prefix, then the bytes of its object from 8 to @cut,
 * then those from @next to the end: entry.length bytes. */
struct kv_object {
	struct kv_object_entry entry;
	uint8_t prefix[8];
	uint64_t cut, next;
};

/*
 * Make the first bytes of the object of the file that begins with the @have bytes at
 * @file.  *@ret_head (caller frees) has *@ret_head_bytes; the object continues with the
 * file from offset *@ret_rest on.
 * -EINVAL  @file does not begin with the whole header of a block
 * -EFBIG   the header would be longer than KV_HEADER_MAX
 * -ENOMEM
 */
int kv_object_head(const void *file, uint64_t have,
		   const struct kv_object_entry *entry, uint8_t **ret_head,
		   uint64_t *ret_head_bytes, uint64_t *ret_rest);

/*
 * Find the entry of the object of @bytes at @data, which may be forged: its
 * numbers are checked before use.
 * -EBADMSG  there is no such entry, or its numbers do not agree with the object
 */
int kv_object_parse(const uint8_t *data, uint64_t bytes,
		    struct kv_object *ret_object);
/* Copy the file of the object, of @bytes at @data, to @to, and add it to @hash. */
void kv_object_copy(const struct kv_object *object, const uint8_t *data,
		    uint64_t bytes, struct kv_hash *hash, uint8_t *to);

#endif
