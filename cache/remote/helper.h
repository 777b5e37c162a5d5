/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helper.h - what the daemon and a helper say to each other: kvfs-remote-helper(7).
 *
 * Packets on a SOCK_SEQPACKET socket, in the machine's byte order: a head, then
 * head.count items of its type.
 */
#ifndef KV_CACHE_REMOTE_HELPER_H
#define KV_CACHE_REMOTE_HELPER_H

#include "cache/remote/backend.h"
#include "cache/remote/launch.h"

#define KV_HELPER_VERSION 1u
#define KV_HELPER_BATCH 32u	/* items of a packet */
#define KV_HELPER_TEXT 2048u	/* of hello, with a NUL */
#define KV_HELPER_NOTE 128u	/* before an object's bytes, filled with NUL */
#define KV_HELPER_NAME 208u	/* with a NUL */
#define KV_HELPER_REQUESTS 256u /* under way at most */

enum kv_helper_type {
	KV_HELPER_HELLO = 1, /* both ways, first */
	KV_HELPER_DO = 2,    /* requests there, answers back */
	KV_HELPER_CANCEL = 3,
};

struct kv_helper_head {
	uint16_t type, count;
	uint32_t zero;
};

/* There with the landing memory's descriptor; back: whether it can. */
struct kv_helper_hello {
	uint32_t version;
	int32_t status; /* back: 0 or -errno */
	uint64_t landing;
	char text[KV_HELPER_TEXT]; /* the URL; back: why not */
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

/* A helper as it was asked for. */
struct kv_helper_config {
	struct kv_launch launch;
	const char *url; /* for its hello */
	uint64_t landing;
	uint64_t patience_ns; /* for an answer, before it is killed */
	/* kv_launch, but for tests. */
	int (*start)(const struct kv_launch *launch, struct kv_child *ret);
};

/* As the calls of struct kv_remote_driver.  @config is copied with its strings. */
int kv_helper_open(const struct kv_helper_config *config, void **ret_backend,
		   char **ret_why);
void kv_helper_submit(void *backend, struct kv_remote_op *const *ops, size_t n);
void kv_helper_cancel(void *backend, struct kv_remote_op *op);
int kv_helper_fd(void *backend);
size_t kv_helper_reap(void *backend, struct kv_remote_op **ret_ops, size_t max);
int kv_helper_close(void *backend);

#endif
