/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forget.c - remove blocks here and from the backend.
 *
 * Blocks are removed here first, so that they are not put again.  A block that is
 * being put is removed when the put has ended.
 *
 * OWNS      every struct errand; a kv_forget until its done() runs.
 *
 * STATES    of a forget:
 *             (new) -> FRESH      kv_forget_submit
 *             FRESH -> UNDER WAY  kv_forgets_run
 *         UNDER WAY -> (over)     kv_forgets_run: nothing is left, or its time is over
 *
 * INVARIANTS
 *   (1) A forget has at most AT_ONCE operations in flight.
 *   (2) It ends when none is in flight: the deadlines of its operations are its own.
 *
 * LOCKING   cache->lock for the list of fresh ones and for `cancelled`; all else is
 *           the remote thread's.
 */
#include <stdio.h>

#include "cache/block/block.h"
#include "cache/core/table.h"
#include "cache/remote/tier.h"
#include "cache/ssd/ssd.h"

#define AT_ONCE 16u

/* An operation of a forget. */
struct errand {
	struct kv_remote_job job; /* first */
	struct kv_forget *forget;
};

int kv_forget_submit(struct kv_cache *cache, struct kv_forget *forget,
		     uint64_t ns)
{
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
	forget->removed = forget->absent = forget->failed = 0;
	forget->status = 0;
	forget->why[0] = '\0';
	forget->next = 0;
	forget->under_way = 0;
	forget->until_ns = kv_now_ns() + ns;
	forget->cancelled = false;
	kv_lock(cache);
	running = cache->remote != NULL;
	if (running) {
		TAILQ_INSERT_TAIL(&cache->remote->fresh_forgets, forget, link);
		kv_remote_wake(cache->remote);
	}
	kv_unlock(cache);
	return running ? 0 : -EOPNOTSUPP;
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

/* Count the outcome of @n operations; @why is the cause of a failure, or "". */
static void count(struct kv_forget *forget, uint64_t n, int status,
		  const char *why)
{
	if (status == 0)
		forget->removed += n;
	else if (status == -ENOENT)
		forget->absent += n;
	else
		forget->failed += n;
	if (status < 0 && status != -ENOENT && forget->status == 0) {
		forget->status = status;
		snprintf(forget->why, sizeof(forget->why), "%s", why);
	}
}

static void given_back(struct kv_remote *remote, struct kv_remote_job *job)
{
	(void)remote;
	free((struct errand *)job);
}

static void ended(struct kv_remote *remote, struct kv_remote_job *job,
		  int status)
{
	struct kv_forget *forget = ((struct errand *)job)->forget;

	(void)remote;
	forget->under_way--;
	count(forget, status == 0 && !forget->n ? job->op.length : 1, status,
	      job->abandoned ? "" : job->op.why);
}

/* Begin to remove the @i-th key, or the whole space.  -EBUSY: not while it is put. */
static int begin(struct kv_remote *remote, struct kv_forget *forget, size_t i)
{
	struct errand *errand = calloc(1, sizeof(*errand));
	const uint64_t now = kv_now_ns();
	struct kv_remote_job *job;

	if (!errand)
		return -ENOMEM;
	errand->forget = forget;
	job = &errand->job;
	job->op.call = KV_REMOTE_DELETE;
	if (forget->n)
		kv_remote_name(&job->op, forget->prefix, &forget->keys[i]);
	else
		snprintf(job->op.name, sizeof(job->op.name), "%s",
			 forget->prefix);
	if (kv_remote_puts(remote, job->op.name)) {
		free(errand);
		return -EBUSY;
	}
	job->uid = kv_remote_user(remote->cache, forget->space);
	job->ended = ended;
	job->given_back = given_back;
	forget->under_way++;
	kv_remote_submit(remote, job,
			 forget->until_ns > now ? forget->until_ns - now : 0);
	return 0;
}

/* ---- all operations ---- */

static size_t total(const struct kv_forget *forget)
{
	return forget->n ? forget->n : 1;
}

/* Count all that has not begun as ended with @status. */
static void give_up(struct kv_forget *forget, int status, const char *why)
{
	count(forget, total(forget) - forget->next, status, why);
	forget->next = total(forget);
}

/* Begin what can begin.  Returns true if nothing is left. */
static bool go_on(struct kv_remote *remote, struct kv_forget *forget)
{
	const uint32_t uid = kv_remote_user(remote->cache, forget->space);
	struct kv_remote_jobs *const lists[] = {&remote->jobs,
						&remote->retries};
	struct kv_remote_job *job;
	bool cancelled;
	int r = 0;

	kv_lock(remote->cache);
	cancelled = forget->cancelled || remote->stop;
	kv_unlock(remote->cache);
	if (cancelled) {
		for (size_t i = 0; i < KV_ARRAY_LEN(lists); i++)
			TAILQ_FOREACH(job, lists[i], link)
				if (job->ended == ended &&
				    ((struct errand *)job)->forget == forget)
					job->until_ns = 0;
		give_up(forget, -ECANCELED, "");
	} else if (kv_now_ns() >= forget->until_ns) {
		give_up(forget, -ETIMEDOUT, "");
	}
	while (r == 0 && forget->next < total(forget) &&
	       forget->under_way < AT_ONCE) {
		r = kv_remote_is_open(remote, uid)
			    ? begin(remote, forget, forget->next)
			    : -EHOSTDOWN;
		if (r == -EBUSY)
			break; /* the end of the put wakes this thread */
		if (r == 0)
			forget->next++;
		else
			give_up(forget, r,
				r == -EHOSTDOWN ? kv_remote_why(remote, uid)
						: "");
	}
	return forget->under_way == 0 && forget->next == total(forget);
}

void kv_forgets_run(struct kv_remote *remote)
{
	struct kv_cache *cache = remote->cache;
	struct kv_forget *forget, *next;

	for (;;) {
		kv_lock(cache);
		forget = TAILQ_FIRST(&remote->fresh_forgets);
		if (forget)
			TAILQ_REMOVE(&remote->fresh_forgets, forget, link);
		kv_unlock(cache);
		if (!forget)
			break;
		TAILQ_INSERT_TAIL(&remote->forgets, forget, link);
		if (kv_remote_prefix(cache, forget->space, forget->prefix) < 0)
			give_up(forget, -ENOMEM, "");
	}
	for (forget = TAILQ_FIRST(&remote->forgets); forget; forget = next) {
		next = TAILQ_NEXT(forget, link);
		if (!go_on(remote, forget))
			continue;
		TAILQ_REMOVE(&remote->forgets, forget, link);
		forget->done(forget);
	}
}
