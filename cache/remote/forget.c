/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forget.c - remove blocks here and from the backend.
 *
 * Blocks are removed here first, so that they are not put again.  A block that is
 * being put is removed when the put has ended.  While a whole space is forgotten, no put
 * or get of a block of it begins, and no block that is on its way comes.
 *
 * OWNS      every struct errand; a kv_forget until its done() runs.
 *
 * STATES    of a forget:
 *             (new) -> FRESH      kv_forget_submit
 *             FRESH -> UNDER WAY  go_on: it has a turn
 *         UNDER WAY -> (over) kv_forgets_run: all ended, or too late
 *
 * INVARIANTS
 *   (1) At most AT_ONCE operations are in flight, abandoned ones included, and one of
 *       each tenant besides: tenants share them by turns.h.
 *   (2) A forget ends when its operations have: at its deadline at the latest.
 *
 * LOCKING   cache->lock for the list, from which only the remote thread removes; all else
 *           but `cancelled` is the remote thread's.
 */
#include <stdio.h>

#include "cache/block/block.h"
#include "cache/core/table.h"
#include "cache/remote/tier.h"
#include "cache/ssd/ssd.h"

#define AT_ONCE 21u /* most operations in flight; one tenant may have 16 */

/* An operation of a forget. */
struct errand {
	struct kv_remote_job job; /* first member */
	struct kv_forget *forget;
	struct kv_turn *turn; /* held */
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
		/* Look up the block and add its tombstone under one lock, so
		 * that no get fetches the block in between. */
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
	forget->until_ns = kv_now_ns() + ns;
	kv_lock(cache);
	forget->uid = forget->space->uid;
	running = cache->remote != NULL;
	if (running) {
		forget->space->forgets += forget->n == 0;
		forget->space->forgetting += forget->n == 0;
		TAILQ_INSERT_TAIL(&cache->remote->forgets, forget, link);
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
	if (n > 0 && status < 0 && status != -ENOENT && forget->status == 0) {
		forget->status = status;
		snprintf(forget->why, sizeof(forget->why), "%s", why);
	}
}

static void given_back(struct kv_remote *remote, struct kv_remote_job *job)
{
	kv_turn_end(&remote->forgetters, ((struct errand *)job)->turn, 1);
	free(job);
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

/* ---- all operations ---- */

/* Return whether an object whose name begins with @name is being put. */
static bool is_being_put(const struct kv_remote *remote, const char *name)
{
	const struct kv_remote_job *job;

	TAILQ_FOREACH(job, &remote->jobs, link)
		if ((job->op.call == KV_REMOTE_PUT ||
		     job->op.call == KV_REMOTE_HEAD) &&
		    !job->trial &&
		    strncmp(job->op.name, name, strlen(name)) == 0)
			return true;
	return false;
}

/* Count the operations that have not begun as ended with @status. */
static void give_up(struct kv_forget *forget, int status, const char *why)
{
	count(forget, KV_MAX(forget->n, 1u) - forget->next, status, why);
	forget->next = KV_MAX(forget->n, 1u);
}

/* Begin as many operations of @forget as its user may have in flight. */
static void go_on(struct kv_remote *remote, struct kv_forget *forget)
{
	const uint64_t now = kv_now_ns();
	struct kv_remote_job *job;

	if (!forget->turn)
		forget->turn = kv_turn_get(&remote->forgetters, forget->uid);
	if (forget->cancelled || remote->stop) {
		TAILQ_FOREACH(job, &remote->jobs, link)
			if (job->ended == ended &&
			    ((struct errand *)job)->forget == forget)
				job->until_ns = 0;
		give_up(forget, -ECANCELED, "");
	} else if (now >= forget->until_ns) {
		give_up(forget, -ETIMEDOUT, "");
	} else if (!kv_remote_is_open(remote, forget->uid)) {
		give_up(forget, -EHOSTDOWN, kv_remote_why(remote, forget->uid));
	}
	while (forget->next < KV_MAX(forget->n, 1u) &&
	       kv_turn_may(&remote->forgetters, forget->turn, AT_ONCE, 1)) {
		struct errand *errand = calloc(1, sizeof(*errand));

		if (!errand) {
			give_up(forget, -ENOMEM, "");
			return;
		}
		errand->forget = forget;
		errand->turn = forget->turn;
		job = &errand->job;
		*job = (struct kv_remote_job){
			.op.call = KV_REMOTE_DELETE,
			.uid = forget->uid,
			.ended = ended,
			.given_back = given_back,
		};
		kv_remote_name(remote, job, forget->space,
			       forget->n ? &forget->keys[forget->next] : NULL);
		if (is_being_put(remote, job->op.name)) {
			free(errand);
			return; /* the put wakes this thread at its end */
		}
		forget->next++;
		forget->under_way++;
		kv_turn_begin(&remote->forgetters, forget->turn, 1);
		kv_remote_submit(remote, job, forget->until_ns - now);
	}
}

void kv_forgets_run(struct kv_remote *remote)
{
	struct kv_cache *cache = remote->cache;
	struct kv_forget *forget, *next;

	kv_lock(cache);
	for (forget = TAILQ_FIRST(&remote->forgets); forget; forget = next) {
		kv_unlock(cache);
		go_on(remote, forget);
		kv_lock(cache);
		next = TAILQ_NEXT(forget, link);
		if (forget->under_way > 0 ||
		    forget->next < KV_MAX(forget->n, 1u))
			continue;
		TAILQ_REMOVE(&remote->forgets, forget, link);
		forget->space->forgetting -= forget->n == 0;
		kv_unlock(cache);
		kv_turn_put(&remote->forgetters, forget->turn);
		forget->done(forget);
		kv_lock(cache);
	}
	kv_unlock(cache);
}
