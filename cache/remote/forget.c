/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forget.c - remove blocks here and from every backend.
 *
 * Blocks are removed here first, so that they are not put again.  A block that is
 * being put is removed when the put has ended.  A backend that does not answer counts
 * as failed, and does not delay the others.
 *
 * OWNS      every struct errand; a kv_forget until its done() runs.
 *
 * STATES    of a forget:
 *             (new) -> FRESH      kv_forget_submit
 *             FRESH -> UNDER WAY  kv_forgets_run
 *         UNDER WAY -> (over)     kv_forgets_run: nothing is left, or its time is over
 *
 * INVARIANTS
 *   (1) A forget has at most AT_ONCE operations in flight at a backend.
 *   (2) It ends when none is in flight: expire() has ended those that are late.
 *
 * LOCKING   cache->lock for the list of fresh ones and for `cancelled`; all else is
 *           the thread's.
 */
#include <stdio.h>

#include "cache/block/block.h"
#include "cache/core/table.h"
#include "cache/remote/tier.h"
#include "cache/ssd/ssd.h"

#define AT_ONCE 16u
#define LAYOUT ".layout"

/* An operation of a forget. */
struct errand {
	struct kv_remote_job job; /* first */
	struct kv_forget *forget;
	char room[KV_LAYOUT_TEXT_MAX];
};

int kv_forget_submit(struct kv_cache *cache, struct kv_forget *forget,
		     uint64_t ns)
{
	struct kv_remote *remote;
	struct kv_block *block;
	bool running;

	kv_lock(cache);
	running = cache->remote && cache->remote->running;
	kv_unlock(cache);
	if (!running)
		return -EOPNOTSUPP;
	if (cache->config.read_only)
		return -EROFS;
	for (size_t i = 0; i < forget->n; i++) {
		/* In one critical section, so that no get fetches it in between. */
		kv_lock(cache);
		block = kv_table_find(cache, forget->space, &forget->keys[i]);
		if (block)
			block->refs++;
		else
			kv_removed_add_locked(cache, forget->space,
					      &forget->keys[i]);
		kv_unlock(cache);
		if (!block)
			continue;
		kv_block_remove(cache, block);
		kv_block_put(cache, block);
	}
	memset(forget->backends, 0, sizeof(forget->backends));
	memset(forget->next, 0, sizeof(forget->next));
	memset(forget->under_way, 0, sizeof(forget->under_way));
	forget->until_ns = kv_now_ns() + ns;
	forget->cancelled = false;
	kv_lock(cache);
	remote = cache->remote;
	if (remote)
		TAILQ_INSERT_TAIL(&remote->forgets.fresh, forget, link);
	kv_unlock(cache);
	if (!remote)
		return -EOPNOTSUPP;
	kv_remote_wake(remote);
	return 0;
}

void kv_forget_cancel(struct kv_cache *cache, struct kv_forget *forget)
{
	kv_lock(cache);
	forget->cancelled = true;
	if (cache->remote)
		kv_remote_wake(cache->remote);
	kv_unlock(cache);
}

/* ---- one operation ---- */

static void count(struct kv_forgot *backend, uint64_t n, int status)
{
	if (status == 0)
		backend->removed += n;
	else if (status == -ENOENT)
		backend->absent += n;
	else
		backend->failed += n;
	if (status < 0 && status != -ENOENT && backend->status == 0)
		backend->status = status;
}

static void given_back(struct kv_remote *remote, struct kv_remote_job *job)
{
	(void)remote;
	free((struct errand *)job);
}

static void ended(struct kv_remote *remote, struct kv_remote_job *job,
		  int status)
{
	struct errand *errand = (struct errand *)job;
	struct kv_forget *forget = errand->forget;

	(void)remote;
	forget->under_way[job->backend]--;
	count(&forget->backends[job->backend], 1, status);
	if (!job->abandoned)
		free(errand);
}

/* Begin to remove the @i-th key, or the whole space. */
static int begin(struct kv_remote *remote, struct kv_forget *forget,
		 unsigned backend, size_t i)
{
	struct errand *errand = calloc(1, sizeof(*errand));
	struct kv_remote_op *op;
	uint64_t now = kv_now_ns();

	if (!errand)
		return -ENOMEM;
	op = &errand->job.op;
	op->call = forget->n ? KV_REMOTE_REMOVE : KV_REMOTE_CLEAR;
	op->data = (uint8_t *)errand->room;
	op->room = sizeof(errand->room);
	if (forget->n)
		kv_remote_name(op, forget->prefix, &forget->keys[i]);
	else
		snprintf(op->name, sizeof(op->name), "%s" LAYOUT,
			 forget->prefix);
	errand->forget = forget;
	errand->job.backend = backend;
	errand->job.ended = ended;
	errand->job.given_back = given_back;
	forget->under_way[backend]++;
	kv_remote_submit(remote, &errand->job,
			 forget->until_ns > now ? forget->until_ns - now : 0);
	return 0;
}

/* ---- all operations ---- */

static size_t total(const struct kv_forget *forget)
{
	return forget->n ? forget->n : 1;
}

/* Count all that has not begun at @backend as ended with @status. */
static void give_up(struct kv_forget *forget, unsigned backend, int status)
{
	count(&forget->backends[backend], total(forget) - forget->next[backend],
	      status);
	forget->next[backend] = total(forget);
}

static void go_on_with(struct kv_remote *remote, struct kv_forget *forget,
		       unsigned backend)
{
	int r = 0;

	while (r == 0 && forget->next[backend] < total(forget) &&
	       forget->under_way[backend] < AT_ONCE) {
		const size_t i = forget->next[backend];

		if (!kv_remote_is_open(remote, backend)) {
			give_up(forget, backend, -EHOSTDOWN);
			return;
		}
		if (kv_backup_is_under_way(remote, forget->space,
					   forget->n ? &forget->keys[i] : NULL))
			return;
		r = begin(remote, forget, backend, i);
		if (r == 0)
			forget->next[backend]++;
		else
			give_up(forget, backend, r);
	}
}

/* Begin what can begin.  Returns true if nothing is left. */
static bool go_on(struct kv_remote *remote, struct kv_forget *forget)
{
	struct kv_remote_job *job;
	bool left = false, cancelled;

	kv_lock(remote->cache);
	cancelled = forget->cancelled || remote->stop;
	kv_unlock(remote->cache);
	if (cancelled)
		TAILQ_FOREACH(job, &remote->jobs, link)
			if (job->ended == ended &&
			    ((struct errand *)job)->forget == forget)
				job->until_ns = 0;
	for (unsigned b = 0; b < remote->n; b++) {
		if (cancelled)
			give_up(forget, b, -ECANCELED);
		else if (kv_now_ns() >= forget->until_ns)
			give_up(forget, b, -ETIMEDOUT);
		else
			go_on_with(remote, forget, b);
		left |= forget->under_way[b] > 0 ||
			forget->next[b] < total(forget);
	}
	return !left;
}

void kv_forgets_run(struct kv_remote *remote)
{
	struct kv_cache *cache = remote->cache;
	struct kv_forget *forget, *next;

	for (;;) {
		kv_lock(cache);
		forget = TAILQ_FIRST(&remote->forgets.fresh);
		if (forget)
			TAILQ_REMOVE(&remote->forgets.fresh, forget, link);
		kv_unlock(cache);
		if (!forget)
			break;
		TAILQ_INSERT_TAIL(&remote->forgets.begun, forget, link);
		forget->n_backends = remote->n;
		for (unsigned b = 0; b < remote->n; b++)
			forget->backends[b].url = remote->backends[b].url;
		if (kv_remote_prefix(cache, forget->space, forget->prefix) < 0)
			for (unsigned b = 0; b < remote->n; b++)
				give_up(forget, b, -ENOMEM);
	}
	for (forget = TAILQ_FIRST(&remote->forgets.begun); forget;
	     forget = next) {
		next = TAILQ_NEXT(forget, link);
		if (!go_on(remote, forget))
			continue;
		TAILQ_REMOVE(&remote->forgets.begun, forget, link);
		forget->done(forget);
	}
}
