/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote.c - the thread that talks to the backends, and when it does not.
 *
 * A backend may hang, lie, fail, or be gone.  Every operation has its time; when
 * that is over its memory is left to the backend until that gives it back, and
 * counts until then.  After a row of failures a backend is not asked any more, and
 * the node works as if it had none; a trial a second tells when it is well.
 *
 * OWNS      the backends, the thread, the jobs under way.
 *
 * STATES    of a job:
 *              (new) -> under way   kv_remote_submit
 *          under way -> (ended)     reap_one: ended() runs with its status
 *          under way -> abandoned   expire: ended() runs with -ETIMEDOUT
 *          abandoned -> (ended)     reap_one: given_back() runs
 *
 * LOCKING   cache->lock for the statistics; all else of jobs is the thread's.
 */
#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>

#include "cache/core/hooks.h"
#include "cache/core/table.h"
#include "cache/remote/tier.h"
#include "common/copy.h"
#include "common/thread.h"
#include "common/bytes.h"

#define TRY_NS UINT64_C(1000000000)
#define TELL_NS UINT64_C(3600000000000)
#define TICK_MS 10 /* while something waits for room, or for its time */
#define REST_MS 1000
#define MS UINT64_C(1000000)
#define REAP 64u
#define END_NS UINT64_C(500000000)

static const struct kv_remote_driver *const drivers[] = {
	&kv_remote_dir,	  &kv_remote_helper, &kv_remote_http,
	&kv_remote_https, &kv_remote_s3,     &kv_remote_mooncake,
};

void kv_remote_wake(struct kv_remote *remote)
{
	eventfd_write(remote->wake, 1);
}

/* ---- the breaker ---- */

/* Not the backend's fault. */
static bool is_answer(int status)
{
	return kv_remote_is_answer(status) || status == -ECANCELED;
}

bool kv_remote_is_open(struct kv_remote *remote, unsigned backend)
{
	return !remote->stop && atomic_load(&remote->backends[backend].there) &&
	       remote->backends[backend].failures < KV_REMOTE_FAILURES;
}

/* An abandoned operation is the backend's: it has not said what is wrong. */
static void describe_failure(const struct kv_remote_job *job, int status,
			     char text[KV_REMOTE_FAILURE_MAX])
{
	const struct kv_remote_op *op = &job->op;
	const char *why = job->abandoned ? NULL : op->why;
	static const char *const calls[KV_REMOTE_CALLS] = {
		[KV_REMOTE_EXISTS] = "look",   [KV_REMOTE_GET] = "get",
		[KV_REMOTE_PUT] = "put",       [KV_REMOTE_PUBLISH] = "layout",
		[KV_REMOTE_REMOVE] = "remove", [KV_REMOTE_CLEAR] = "clear",
	};
	int n = snprintf(text, KV_REMOTE_FAILURE_MAX, "%s: %s", calls[op->call],
			 why ? why : strerror(-status));

	if (!job->abandoned && op->answer && n > 0 &&
	    n < (int)KV_REMOTE_FAILURE_MAX)
		snprintf(text + n, KV_REMOTE_FAILURE_MAX - (size_t)n,
			 " (status %u)", op->answer);
}

/* Also what comes of no PUT that a server takes: nobody else would be told. */
static void tell_failure(struct kv_remote_backend *b, uint64_t now)
{
	if (b->told_ns && now - b->told_ns < TELL_NS)
		return;
	b->told_ns = now;
	fprintf(stderr, "kvfs: warning: remote=%s: %s\n", b->url,
		b->stats.failure);
}

static void note(struct kv_remote *remote, const struct kv_remote_job *job,
		 int status)
{
	struct kv_remote_backend *b = &remote->backends[job->backend];
	struct kv_remote_stats *stats = &b->stats;
	const uint64_t now = kv_now_ns();

	if (is_answer(status) || b->driver->apart)
		b->failures = 0;
	else if (!kv_remote_is_refusal(job->op.call, status))
		b->failures++;
	kv_lock(remote->cache);
	stats->open = b->failures < KV_REMOTE_FAILURES;
	if (!is_answer(status)) {
		stats->failed++;
		describe_failure(job, status, stats->failure);
	}
	stats->late += status == -ETIMEDOUT;
	stats->damaged += status == -EBADMSG;
	stats->calls[job->op.call]++;
	stats->ns[job->op.call] += now - job->began_ns;
	if (status == 0 && job->op.call == KV_REMOTE_GET)
		stats->got_bytes += job->op.length;
	if (status == 0 && job->op.call == KV_REMOTE_PUT)
		stats->put_bytes += job->op.length;
	kv_unlock(remote->cache);
	if (!is_answer(status))
		tell_failure(b, now);
}

/* ---- jobs ---- */

/* Memory that is the backend's as long as it has the job. */
static uint64_t lent(const struct kv_remote_job *job)
{
	const struct kv_remote_op *op = &job->op;

	if (op->call == KV_REMOTE_GET)
		return op->room;
	return op->data ? op->length : 0;
}

void kv_remote_submit(struct kv_remote *remote, struct kv_remote_job *job,
		      uint64_t ns)
{
	struct kv_remote_backend *b = &remote->backends[job->backend];
	struct kv_remote_op *op = &job->op;

	job->began_ns = kv_now_ns();
	job->until_ns = job->began_ns + ns;
	job->abandoned = false;
	op->why = NULL;
	op->answer = 0;
	TAILQ_INSERT_TAIL(&remote->jobs, job, link);
	kv_lock(remote->cache);
	b->stats.lent_bytes += lent(job);
	kv_unlock(remote->cache);
	b->driver->submit(b->state, &op, 1);
}

static void reap_one(struct kv_remote *remote, struct kv_remote_job *job)
{
	TAILQ_REMOVE(&remote->jobs, job, link);
	kv_lock(remote->cache);
	remote->backends[job->backend].stats.lent_bytes -= lent(job);
	kv_unlock(remote->cache);
	if (job->abandoned) {
		job->abandoned = false;
		job->given_back(remote, job);
	} else {
		note(remote, job, job->op.status);
		job->ended(remote, job, job->op.status);
	}
}

static void reap(struct kv_remote *remote)
{
	struct kv_remote_op *ended[REAP];

	for (unsigned i = 0; i < remote->n; i++) {
		struct kv_remote_backend *b = &remote->backends[i];
		size_t n = atomic_load(&b->there)
				   ? b->driver->reap(b->state, ended, REAP)
				   : 0;

		for (size_t k = 0; k < n; k++)
			reap_one(remote, (struct kv_remote_job *)ended[k]);
	}
}

/* What did not end in its time is left to its backend. */
static void expire(struct kv_remote *remote, uint64_t now)
{
	struct kv_remote_job *job, *next;

	for (job = TAILQ_FIRST(&remote->jobs); job; job = next) {
		struct kv_remote_backend *b = &remote->backends[job->backend];

		next = TAILQ_NEXT(job, link);
		if (job->abandoned || now < job->until_ns)
			continue;
		job->abandoned = true;
		b->driver->cancel(b->state, &job->op);
		note(remote, job, -ETIMEDOUT);
		job->ended(remote, job, -ETIMEDOUT);
	}
}

/* ---- trials: whether a backend is well again ---- */

static void trial_free(struct kv_remote *remote, struct kv_remote_job *job)
{
	remote->backends[job->backend].trying = false;
	free(job);
}

/* note() has seen how it went. */
static void trial_ended(struct kv_remote *remote, struct kv_remote_job *job,
			int status)
{
	(void)status;
	if (!job->abandoned)
		trial_free(remote, job);
}

static void try_one(struct kv_remote *remote, unsigned backend)
{
	struct kv_remote_backend *b = &remote->backends[backend];
	const uint64_t now = kv_now_ns();
	struct kv_remote_job *job;

	if (b->failures < KV_REMOTE_FAILURES || b->trying ||
	    now - b->tried_ns < TRY_NS)
		return;
	job = calloc(1, sizeof(*job));
	if (!job)
		return;
	b->trying = true;
	b->tried_ns = now;
	job->op.call = KV_REMOTE_EXISTS;
	strcpy(job->op.name, "trial/trial/trial");
	job->backend = backend;
	job->ended = trial_ended;
	job->given_back = trial_free;
	kv_remote_submit(remote, job, TRY_NS);
}

/* What a backend knows of itself. */
static void hear_of(struct kv_remote *remote, struct kv_remote_backend *b)
{
	struct kv_remote_stats told;

	if (!b->driver->tell || !atomic_load(&b->there))
		return;
	b->driver->tell(b->state, &told);
	kv_lock(remote->cache);
	b->stats.helpers = told.helpers;
	b->stats.helpers_unwell = told.helpers_unwell;
	b->stats.refused = told.refused;
	kv_unlock(remote->cache);
}

/* ---- the thread ---- */

/* Until the next job's time is over. */
static int rest_ms(const struct kv_remote *remote)
{
	const uint64_t now = kv_now_ns();
	const struct kv_remote_job *job;
	uint64_t until = now + REST_MS * MS;

	if (kv_gets_busy(remote) || kv_forgets_busy(remote))
		return TICK_MS;
	TAILQ_FOREACH(job, &remote->jobs, link)
		if (!job->abandoned)
			until = KV_MIN(until, job->until_ns);
	return until <= now ? 0 : (int)((until - now) / MS) + 1;
}

static void wait_for_more(struct kv_remote *remote)
{
	struct pollfd fds[KV_REMOTES_MAX + 1];
	eventfd_t count;

	for (unsigned i = 0; i < remote->n; i++) {
		const struct kv_remote_backend *b = &remote->backends[i];

		fds[i].events = POLLIN;
		fds[i].fd =
			atomic_load(&b->there) ? b->driver->fd(b->state) : -1;
	}
	fds[remote->n] = (struct pollfd){.fd = remote->wake, .events = POLLIN};
	poll(fds, remote->n + 1, rest_ms(remote));
	if (fds[remote->n].revents)
		eventfd_read(remote->wake, &count);
}

static void *run(void *arg)
{
	struct kv_remote *remote = arg;

	while (!remote->stop) {
		reap(remote);
		expire(remote, kv_now_ns());
		kv_looks_run(remote);
		kv_gets_run(remote);
		kv_backups_run(remote);
		kv_forgets_run(remote);
		kv_asks_run(remote);
		for (unsigned i = 0; i < remote->n; i++) {
			try_one(remote, i);
			hear_of(remote, &remote->backends[i]);
		}
		wait_for_more(remote);
	}
	return NULL;
}

/* ---- begin and end ---- */

static const struct kv_remote_driver *driver_of(const char *url,
						const char **ret_rest)
{
	for (size_t i = 0; i < KV_ARRAY_LEN(drivers); i++) {
		size_t n = strlen(drivers[i]->scheme);

		if (strncmp(url, drivers[i]->scheme, n) == 0 && url[n] == ':') {
			*ret_rest = url + n + 1;
			return drivers[i];
		}
	}
	return NULL;
}

bool kv_remote_knows(const char *url)
{
	const char *rest;

	return driver_of(url, &rest) != NULL;
}

bool kv_remote_writes(const struct kv_remote *remote)
{
	const struct kv_cache_config *config = &remote->cache->config;

	return !config->read_only && config->remote.write != KV_WRITEBACK_NONE;
}

int kv_remote_open(const struct kv_remote_driver *driver, const char *rest,
		   bool writes, void **ret_state, char **ret_why)
{
	int r = driver->open(rest, ret_state, ret_why);

	if (r < 0 || !writes || !driver->may_write)
		return r;
	r = driver->may_write(*ret_state);
	if (r < 0) {
		driver->close(*ret_state);
		kv_why(ret_why, r,
		       "it cannot be written to: %s (with "
		       "remote_write=none it need not be)",
		       strerror(-r));
	}
	return r;
}

static int open_backend(struct kv_remote *remote, const char *url,
			char **ret_why)
{
	struct kv_remote_backend *b = &remote->backends[remote->n];
	_cleanup_(kv_freep) char *why = NULL;
	int r;

	if (remote->n == KV_REMOTES_MAX)
		return kv_why(ret_why, -EINVAL, "remote=%s: more than %u", url,
			      KV_REMOTES_MAX);
	b->driver = driver_of(url, &b->rest);
	if (!b->driver)
		return kv_why(ret_why, -EINVAL,
			      "remote=%s: of no kind that is known", url);
	b->url = url;
	b->stats.url = url;
	r = kv_remote_open(b->driver, b->rest, kv_remote_writes(remote),
			   &b->state, &why);
	b->there = b->stats.there = b->stats.open = r == 0;
	/* One that is missing may come. */
	remote->n += r == 0 ||
		     (r != -EINVAL && remote->cache->config.remote.optional);
	return r == 0 ? 0
		      : kv_why(ret_why, r, "remote=%s: %s", url,
			       why ? why : strerror(-r));
}

/* One that cannot be opened is done without until it can be, if the user said
 * so. */
static int open_backends(struct kv_remote *remote, char **ret_why)
{
	const struct kv_cache *cache = remote->cache;
	const struct kv_remote_config *config = &cache->config.remote;
	int r = 0;

	for (size_t i = 0; i < config->n && r == 0; i++) {
		r = open_backend(remote, config->urls[i], ret_why);
		if (r < 0 && r != -EINVAL && config->optional) {
			if (cache->config.warn && *ret_why)
				cache->config.warn(cache->config.arg, *ret_why);
			free(kv_steal(*ret_why));
			r = 0;
		}
	}
	return r;
}

static void close_backends(struct kv_remote *remote)
{
	for (unsigned i = 0; i < remote->n; i++) {
		const struct kv_remote_backend *b = &remote->backends[i];

		if (atomic_load(&b->there))
			b->driver->close(b->state);
	}
}

static void remote_free(struct kv_remote *remote)
{
	close_backends(remote);
	kv_shunned_free(remote->shunned);
	kv_hash_free(remote->hash);
	kv_looks_fini(remote);
	kv_gets_fini(remote);
	kv_offers_fini(remote);
	kv_turns_fini(&remote->backup.waiting);
	pthread_cond_destroy(&remote->backup.more);
	pthread_cond_destroy(&remote->backup.over);
	pthread_cond_destroy(&remote->answer);
	if (remote->wake >= 0)
		close(remote->wake);
	free(remote);
}

static int new_remote(struct kv_cache *cache, struct kv_remote **ret_remote)
{
	struct kv_remote *remote = calloc(1, sizeof(*remote));
	int r;

	if (!remote)
		return -ENOMEM;
	remote->cache = cache;
	remote->landing_max =
		cache->arena.max * cache->arena.segment_bytes / 16;
	TAILQ_INIT(&remote->fresh);
	TAILQ_INIT(&remote->jobs);
	TAILQ_INIT(&remote->landed);
	TAILQ_INIT(&remote->backup.ready);
	TAILQ_INIT(&remote->backup.unread);
	TAILQ_INIT(&remote->backup.busy);
	TAILQ_INIT(&remote->forgets.fresh);
	TAILQ_INIT(&remote->forgets.begun);
	kv_cond_init(&remote->backup.more);
	kv_cond_init(&remote->backup.over);
	TAILQ_INIT(&remote->asks);
	kv_cond_init(&remote->answer);
	remote->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	r = remote->wake < 0 ? -errno : kv_shunned_new(&remote->shunned);
	if (r == 0)
		r = kv_hash_new(&remote->hash);
	if (r == 0)
		r = kv_looks_init(remote);
	if (r == 0)
		r = kv_gets_init(remote);
	if (r == 0)
		r = kv_backup_init(remote);
	if (r == 0)
		r = kv_offers_init(remote);
	if (r < 0)
		remote_free(remote);
	else
		*ret_remote = remote;
	return r;
}

static const struct kv_remote_hooks hooks = {
	.want_locked = kv_look_want_locked,
	.look_locked = kv_look_begin_locked,
	.may_locked = kv_get_may_locked,
	.coming_locked = kv_get_is_coming_locked,
	.durable_locked = kv_backup_durable_locked,
	.used_locked = kv_backup_used_locked,
};

int kv_remote_start(struct kv_cache *cache, char **ret_why)
{
	struct kv_remote *remote;
	int r;

	if (!cache->config.remote.n)
		return 0;
	r = new_remote(cache, &remote);
	if (r < 0)
		return kv_why(ret_why, r, "remote: %s", strerror(-r));
	r = open_backends(remote, ret_why);
	if (r == 0 && remote->n > 0) {
		r = kv_thread_start(&remote->thread, "kvfs-remote", run,
				    remote);
		remote->running = r == 0;
		if (r == 0)
			r = kv_backup_start(remote);
		if (r == 0)
			r = kv_reopen_start(remote);
		if (r < 0)
			kv_why(ret_why, r, "remote: %s", strerror(-r));
	}
	kv_lock(cache);
	cache->remote = remote;
	cache->remote_hooks = &hooks;
	kv_unlock(cache);
	return r;
}

/* Wait a little for what was cancelled.  Memory of what does not end, and what
 * backends have of it, stay theirs. */
static void drain(struct kv_remote *remote)
{
	const uint64_t until = kv_now_ns() + END_NS;
	struct kv_remote_job *job;

	kv_asks_run(remote); /* it is stopping: none begins */
	expire(remote, UINT64_MAX);
	kv_forgets_stop(remote);
	while (!TAILQ_EMPTY(&remote->jobs) && kv_now_ns() < until) {
		wait_for_more(remote);
		reap(remote);
	}
	TAILQ_FOREACH(job, &remote->jobs, link)
		job->op.status = -ETIMEDOUT;
}

void kv_remote_stop(struct kv_cache *cache)
{
	struct kv_remote *remote = cache->remote;

	if (!remote)
		return;
	kv_reopen_stop(remote);
	kv_backup_stop(remote);
	if (remote->running) {
		remote->stop = true;
		kv_remote_wake(remote);
		pthread_join(remote->thread, NULL);
	}
	kv_looks_stop(remote);
	kv_gets_stop(remote);
	kv_backups_free(remote);
	drain(remote);
	kv_lock(cache);
	cache->remote = NULL;
	cache->remote_hooks = NULL;
	kv_unlock(cache);
	remote_free(remote);
}

size_t kv_remote_stats(struct kv_cache *cache, struct kv_remote_stats *ret,
		       size_t max)
{
	size_t n = 0;

	kv_lock(cache);
	for (; cache->remote && n < cache->remote->n && n < max; n++)
		ret[n] = cache->remote->backends[n].stats;
	kv_unlock(cache);
	return n;
}

/* Spaces whose blocks other nodes do not find. */
static void describe_seeds(struct kv_cache *cache, FILE *f)
{
	struct kv_space *space;

	kv_lock(cache);
	for (space = kv_space_behind(cache, 0); space;
	     space = kv_space_behind(cache, space->id))
		if (space->differs && !space->removed)
			fprintf(f,
				"seed_differs=%s (other nodes have another "
				"seed; without blocks it would take that)\n",
				space->name);
	kv_unlock(cache);
}

char *kv_remote_describe(struct kv_cache *cache)
{
	char *text = NULL;
	size_t n;
	FILE *f = cache->config.remote.n ? open_memstream(&text, &n) : NULL;

	if (!f)
		return NULL;
	describe_seeds(cache, f);
	if (fclose(f) != 0) {
		free(text);
		return NULL;
	}
	return text;
}
