/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hidden.c - layouts that somebody has removed.
 *
 * OWNS      the records, each of a space and a process.
 *
 * LOCKING   hidden->lock guards the records.  It is a leaf.
 */
#include "fs/mount/hidden.h"
#include "fs/mount/permit.h"

#define RECORDS 64u
#define LASTS_NS (UINT64_C(10) * 1000000000)

struct record {
	uint32_t space; /* 0: none */
	uid_t uid;
	pid_t process;
	uint64_t until_ns;
};

struct kv_hidden {
	pthread_mutex_t lock;
	unsigned next;			/* lock */
	struct record records[RECORDS]; /* lock */
};

int kv_hidden_new(struct kv_hidden **ret_hidden)
{
	struct kv_hidden *hidden = calloc(1, sizeof(*hidden));

	if (!hidden)
		return -ENOMEM;
	pthread_mutex_init(&hidden->lock, NULL);
	*ret_hidden = hidden;
	return 0;
}

void kv_hidden_free(struct kv_hidden *hidden)
{
	if (!hidden)
		return;
	pthread_mutex_destroy(&hidden->lock);
	free(hidden);
}

static struct record *find_locked(struct kv_hidden *hidden, uint32_t space,
				  uid_t uid, pid_t process)
{
	uint64_t now_ns = kv_now_ns();

	kv_assert_locked(&hidden->lock);
	for (unsigned i = 0; i < RECORDS; i++) {
		struct record *r = &hidden->records[i];

		if (r->space == space && r->uid == uid &&
		    r->process == process && r->until_ns > now_ns)
			return r;
	}
	return NULL;
}

void kv_hidden_add(struct kv_hidden *hidden, uint32_t space,
		   const struct fuse_ctx *ctx)
{
	struct record new = {.space = space,
			     .uid = ctx->uid,
			     .process = kv_process_of(ctx->pid),
			     .until_ns = kv_now_ns() + LASTS_NS};

	pthread_mutex_lock(&hidden->lock);
	hidden->records[hidden->next++ % RECORDS] = new;
	pthread_mutex_unlock(&hidden->lock);
}

bool kv_hidden_from(struct kv_hidden *hidden, uint32_t space,
		    const struct fuse_ctx *ctx)
{
	pid_t process = kv_process_of(ctx->pid);
	bool found;

	pthread_mutex_lock(&hidden->lock);
	found = find_locked(hidden, space, ctx->uid, process);
	pthread_mutex_unlock(&hidden->lock);
	return found;
}

void kv_hidden_end(struct kv_hidden *hidden, uint32_t space,
		   const struct fuse_ctx *ctx)
{
	pid_t process = kv_process_of(ctx->pid);
	struct record *r;

	pthread_mutex_lock(&hidden->lock);
	while ((r = find_locked(hidden, space, ctx->uid, process)))
		r->space = 0;
	pthread_mutex_unlock(&hidden->lock);
}
