/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helper.h - the protocol between the daemon and a helper: kvfs-remote-helper(7).
 *
 * Packets on a SOCK_SEQPACKET socket, in the machine's byte order: a head, then
 * head.count items of its type.
 */
#ifndef KV_CACHE_REMOTE_HELPER_H
#define KV_CACHE_REMOTE_HELPER_H

#include "cache/remote/backend.h"
#include "cache/remote/launch.h"

#define KV_HELPER_VERSION 2u
#define KV_HELPER_BATCH 32u	/* items of a packet */
#define KV_HELPER_TEXT 2048u	/* of hello, with a NUL */
#define KV_HELPER_NOTE 128u	/* before an object's bytes, filled with NUL */
#define KV_HELPER_NAME 208u	/* with a NUL */
#define KV_HELPER_TENANT 72u	/* with a NUL */
#define KV_HELPER_REQUESTS 256u /* under way at most */

enum kv_helper_type {
	KV_HELPER_HELLO = 1, /* both ways, first */
	KV_HELPER_DO = 2,    /* requests, and their answers */
	KV_HELPER_CANCEL = 3,
};

struct kv_helper_head {
	uint16_t type, count;
	uint32_t zero;
};

/*
 * To the helper: with the descriptor of the landing memory.  The reply tells in
 * @landing which optional calls the helper knows: these bits are 0 in a length of whole
 * pages, which an older helper may send back.
 */
#define KV_HELPER_CLEARS 1u /* KV_REMOTE_CLEAR */
struct kv_helper_hello {
	uint32_t version;
	int32_t status; /* reply: 0 or -errno */
	uint64_t landing;
	char tenant[KV_HELPER_TENANT]; /* "": the node's helper */
	char text[KV_HELPER_TEXT]; /* the URL; reply: the reason of a failure */
};

/* In the landing memory, from @at: a note, then @bytes.  Exists: the note only. */
struct kv_helper_request {
	uint64_t id;
	uint32_t call; /* enum kv_remote_call */
	uint32_t zero;
	uint64_t at, bytes;
	char name[KV_HELPER_NAME];
};

struct kv_helper_answer {
	uint64_t id;
	int32_t status;
	uint32_t zero;
	uint64_t bytes; /* get: how many came */
};

struct kv_helper_config {
	struct kv_launch launch;
	const char *url, *tenant; /* of the hello */
	uint64_t landing;	  /* bytes */
	uint64_t hello_ns;	  /* deadline of the reply to the hello */
	uint64_t patience_ns;	  /* deadline of an answer: then it is killed */
	/* kv_launch, except in tests. */
	int (*start)(const struct kv_launch *launch, struct kv_child *ret,
		     const char **ret_what);
};

struct kv_helper;

/* Start the program, and again whenever it ends.  @config is copied with its strings.
 * -ENOMEM, -EMFILE, -EAGAIN. */
int kv_helper_open(const struct kv_helper_config *config,
		   struct kv_helper **ret_helper);
/* Wait for the first reply to a hello.  On failure *@ret_why is a message for the user
 * (caller frees; NULL: no memory). */
int kv_helper_await(struct kv_helper *helper, char **ret_why);
/* Return how many programs have replied to a hello; whether one is up now. */
uint64_t kv_helper_starts(struct kv_helper *helper);
bool kv_helper_is_up(struct kv_helper *helper);

/* As the calls of struct kv_remote_driver, each from any thread.  The descriptor is
 * readable, too, when the helper has ended. */
void kv_helper_submit(struct kv_helper *helper, struct kv_remote_op *const *ops,
		      size_t n);
void kv_helper_cancel(struct kv_helper *helper, struct kv_remote_op *op);
int kv_helper_fd(struct kv_helper *helper);
size_t kv_helper_reap(struct kv_helper *helper, struct kv_remote_op **ret_ops,
		      size_t max);

/* Begin to end the helper and its program; with @leave a program that cannot be killed
 * is left behind.  All operations end. */
void kv_helper_end(struct kv_helper *helper, bool leave);
bool kv_helper_has_ended(struct kv_helper *helper);
/* End it with @leave, and free it.  -EBUSY: it has not ended a second after the first
 * such call, and stays. */
int kv_helper_close(struct kv_helper *helper);

#endif
