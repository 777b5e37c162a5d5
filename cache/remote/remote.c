/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote.c - the thread that talks to the backends, and the names of objects.
 *
 * A backend may hang, lie, fail, or be gone.  Every operation has a deadline; after
 * it the memory is left to the backend until the backend gives it back, and counts
 * until then.  After a row of failures a circuit breaker opens: the node works as if
 * it had no such backend, and one trial a second tells when to close the breaker.
 *
 * An object's name is TENANT/SPACE/KEY.  SPACE is the SHA-256 of the space's name, a
 * zero byte, and its layout without the seed, so that nodes agree on it without
 * talking.  TENANT is the owner's uid in decimal, or the name that the operator has
 * given it.
 *
 * Backends that could not be opened at mount are opened by a thread of their own, as
 * opening one may hang.  The thread lives as long as the mount, because a helper ends
 * with the thread that started it.
 *
 * OWNS      the backends, the threads, the jobs in flight.
 *
 * STATES    of a job:
 *              (new) -> in flight   kv_remote_submit
 *          in flight -> (ended)     reap: ended() runs with its status
 *          in flight -> abandoned   expire: ended() runs with -ETIMEDOUT
 *          abandoned -> (ended)     reap: given_back() runs
 *
 * LOCKING   cache->lock for the statistics and what is read of spaces.  reopen->lock
 *           for struct kv_reopen; cache->lock is taken under it.  All else of jobs is
 *           the thread's.
 */
#include <jansson.h>
#include <openssl/evp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>

#include "cache/core/hooks.h"
#include "cache/core/table.h"
#include "cache/remote/tier.h"
#include "common/bytes.h"
#include "common/rate.h"
#include "common/thread.h"

#define TRY_NS UINT64_C(1000000000)
#define TELL_NS UINT64_C(3600000000000)
#define TICK_MS 10 /* while a get or a forget waits */
#define REST_MS 1000
#define MS UINT64_C(1000000)
#define REAP 64u
#define END_NS UINT64_C(500000000)
#define REOPEN_FIRST_NS UINT64_C(1000000000)
#define REOPEN_LAST_NS UINT64_C(30000000000)

struct kv_reopen {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct kv_remote *remote; /* not used once `left` is set */
	pthread_t thread;
	bool stop, left, ended;
};

static const struct kv_remote_driver *const drivers[] = {
	&kv_remote_dir,	  &kv_remote_helper, &kv_remote_http,
	&kv_remote_https, &kv_remote_s3,     &kv_remote_mooncake,
};

void kv_remote_wake(struct kv_remote *remote)
{
	eventfd_write(remote->wake, 1);
}

/* ---- users' queues ---- */

static void queue_init(struct kv_turn *turn)
{
	TAILQ_INIT(&((struct kv_queue *)turn)->items);
}

int kv_queues_init(struct kv_turns *turns, int64_t amount)
{
	return kv_turns_init(turns, sizeof(struct kv_queue), amount,
			     queue_init);
}

void kv_enqueue(struct kv_turns *turns, uint32_t uid, struct kv_queued *item)
{
	struct kv_queue *queue = (struct kv_queue *)kv_turn_get(turns, uid);

	item->queue = queue;
	TAILQ_INSERT_TAIL(&queue->items, item, link);
	queue->n++;
	kv_turn_start(turns, &queue->turn);
}

void kv_dequeue(struct kv_turns *turns, struct kv_queued *item)
{
	struct kv_queue *queue = kv_steal(item->queue);

	TAILQ_REMOVE(&queue->items, item, link);
	if (--queue->n == 0)
		kv_turn_stop(turns, &queue->turn);
	kv_turn_put(turns, &queue->turn);
}

struct kv_queued *kv_queue_first(struct kv_turn *turn)
{
	return TAILQ_FIRST(&((struct kv_queue *)turn)->items);
}

unsigned kv_queue_length(struct kv_turns *turns, uint32_t uid)
{
	struct kv_turn *turn = kv_turn_get(turns, uid);
	const unsigned n = ((struct kv_queue *)turn)->n;

	kv_turn_put(turns, turn);
	return n;
}

/* ---- names ---- */

uint32_t kv_remote_user(struct kv_cache *cache, const struct kv_space *space)
{
	uint32_t uid;

	kv_lock(cache);
	uid = space->uid;
	kv_unlock(cache);
	return uid;
}

/* Hash @name and @layout as hex digits.  -ENOMEM. */
static int hash_of(const char *name, const char *layout, char hex[65])
{
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	unsigned char digest[EVP_MAX_MD_SIZE];
	unsigned n = 0;
	bool ok;

	ok = context && EVP_DigestInit_ex(context, EVP_sha256(), NULL) &&
	     EVP_DigestUpdate(context, name, strlen(name) + 1) &&
	     EVP_DigestUpdate(context, layout, strlen(layout)) &&
	     EVP_DigestFinal_ex(context, digest, &n) && n == 32;
	EVP_MD_CTX_free(context);
	if (ok)
		kv_hex(digest, n, hex);
	return ok ? 0 : -ENOMEM;
}

int kv_remote_prefix_of(struct kv_cache *cache, struct kv_space *space,
			const char *layout,
			char prefix[KV_REMOTE_PREFIX_MAX + 1])
{
	const struct kv_remote_config *config = &cache->config.remote;
	const uint32_t uid = kv_remote_user(cache, space);
	json_t *json = layout ? json_loads(layout, 0, NULL) : NULL;
	_cleanup_(kv_freep) char *text = layout ? NULL : strdup("");
	char tenant[KV_OBJECT_TENANT_MAX + 1], hex[65];
	int r;

	if (json) {
		json_object_del(json, "seed");
		json_object_del(json, "share");
		text = json_dumps(json, JSON_COMPACT | JSON_SORT_KEYS);
		json_decref(json);
	}
	r = text ? hash_of(space->name, text, hex) : -ENOMEM;
	if (r < 0)
		return r;
	snprintf(tenant, sizeof(tenant), "%u", uid);
	for (size_t i = 0; i < config->n_tenants; i++)
		if (config->tenants[i].uid == uid)
			snprintf(tenant, sizeof(tenant), "%s",
				 config->tenants[i].name);
	snprintf(prefix, KV_REMOTE_PREFIX_MAX + 1, "%s/%s/", tenant, hex);
	return 0;
}

int kv_remote_prefix(struct kv_cache *cache, struct kv_space *space,
		     char prefix[KV_REMOTE_PREFIX_MAX + 1])
{
	const struct kv_layout *layout;

	kv_lock(cache);
	layout = space->layout; /* lives as long as the space */
	kv_unlock(cache);
	return kv_remote_prefix_of(cache, space, layout ? layout->json : NULL,
				   prefix);
}

void kv_remote_name(struct kv_remote_op *op, const char *prefix,
		    const struct kv_key *key)
{
	char name[KV_NAME_MAX + 1];

	kv_key_name(key, name);
	snprintf(op->name, sizeof(op->name), "%s%s", prefix, name);
}

/* ---- the circuit breaker ---- */

/* Return whether @status is not the backend's fault. */
static bool is_answer(int status)
{
	return kv_remote_is_answer(status) || status == -ECANCELED;
}

bool kv_remote_is_open(struct kv_remote *remote, unsigned backend)
{
	return !remote->stop && atomic_load(&remote->backends[backend].there) &&
	       remote->backends[backend].failures < KV_REMOTE_FAILURES;
}

/* Describe the failure of @job in stats.failure. */
static void describe_failure(const struct kv_remote_job *job, int status,
			     char text[KV_REMOTE_FAILURE_MAX])
{
	const struct kv_remote_op *op = &job->op;
	/* An abandoned operation is still the backend's. */
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

/* Count the outcome of @job, also for the breaker; print failures, once an hour. */
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
	if (is_answer(status) || (b->told_ns && now - b->told_ns < TELL_NS))
		return;
	b->told_ns = now;
	fprintf(stderr, "kvfs: warning: remote=%s: %s\n", b->url,
		stats->failure);
}

/* ---- jobs ---- */

/* Return the bytes of memory that the backend has while it has the job. */
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

/* Abandon the jobs whose deadline is over. */
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

static void trial_free(struct kv_remote *remote, struct kv_remote_job *job)
{
	remote->backends[job->backend].trying = false;
	free(job);
}

/* note() has counted the outcome. */
static void trial_ended(struct kv_remote *remote, struct kv_remote_job *job,
			int status)
{
	(void)status;
	if (!job->abandoned)
		trial_free(remote, job);
}

/* Try a backend whose breaker is open. */
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

/* ---- the thread ---- */

/* Wait until a backend has something to reap, or something is due. */
static void wait_for_more(struct kv_remote *remote)
{
	const uint64_t now = kv_now_ns();
	const struct kv_remote_job *job;
	struct pollfd fds[KV_REMOTES_MAX + 1];
	uint64_t until = now + REST_MS * MS;
	eventfd_t count;
	int ms = TICK_MS;

	if (!kv_fetch_is_busy(remote) && TAILQ_EMPTY(&remote->forgets.begun)) {
		TAILQ_FOREACH(job, &remote->jobs, link)
			if (!job->abandoned)
				until = KV_MIN(until, job->until_ns);
		ms = until <= now ? 0 : (int)((until - now) / MS) + 1;
	}
	for (unsigned i = 0; i < remote->n; i++) {
		const struct kv_remote_backend *b = &remote->backends[i];

		fds[i].events = POLLIN;
		fds[i].fd =
			atomic_load(&b->there) ? b->driver->fd(b->state) : -1;
	}
	fds[remote->n] = (struct pollfd){.fd = remote->wake, .events = POLLIN};
	poll(fds, remote->n + 1, ms);
	if (fds[remote->n].revents)
		eventfd_read(remote->wake, &count);
}

static void *remote_run(void *arg)
{
	struct kv_remote *remote = arg;
	struct kv_remote_stats told;

	while (!remote->stop) {
		reap(remote);
		expire(remote, kv_now_ns());
		kv_fetch_ask(remote);
		kv_fetch_get(remote);
		kv_backups_run(remote);
		kv_forgets_run(remote);
		kv_asks_run(remote);
		for (unsigned i = 0; i < remote->n; i++) {
			struct kv_remote_backend *b = &remote->backends[i];

			try_one(remote, i);
			if (!b->driver->tell || !atomic_load(&b->there))
				continue;
			b->driver->tell(b->state, &told);
			kv_lock(remote->cache);
			b->stats.helpers = told.helpers;
			b->stats.helpers_unwell = told.helpers_unwell;
			b->stats.refused = told.refused;
			kv_unlock(remote->cache);
		}
		wait_for_more(remote);
	}
	return NULL;
}

/* ---- opening backends ---- */

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

/* As the driver's open; with @writes, fail if the backend cannot be written to. */
static int open_state(const struct kv_remote_driver *driver, const char *rest,
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
	r = open_state(b->driver, b->rest, kv_remote_writes(remote), &b->state,
		       &why);
	b->there = b->stats.there = b->stats.open = r == 0;
	/* With remote_optional a missing backend is opened later. */
	remote->n += r == 0 ||
		     (r != -EINVAL && remote->cache->config.remote.optional);
	return r == 0 ? 0
		      : kv_why(ret_why, r, "remote=%s: %s", url,
			       why ? why : strerror(-r));
}

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

/* ---- opening missing backends later ---- */

static void reopen_free(struct kv_reopen *reopen)
{
	pthread_mutex_destroy(&reopen->lock);
	pthread_cond_destroy(&reopen->changed);
	free(reopen);
}

/* Called, and returns, with the lock, which it drops meanwhile. */
static void reopen_one(struct kv_reopen *reopen, unsigned i)
{
	struct kv_remote *remote = reopen->remote;
	struct kv_remote_backend *b = &remote->backends[i];
	const struct kv_remote_driver *driver = b->driver;
	const bool writes = kv_remote_writes(remote);
	char *rest = strdup(b->rest), *why = NULL;
	void *state;
	int r;

	pthread_mutex_unlock(&reopen->lock);
	r = rest ? open_state(driver, rest, writes, &state, &why) : -ENOMEM;
	free(rest);
	free(why);
	pthread_mutex_lock(&reopen->lock);
	if (r == 0 && reopen->left)
		driver->close(state);
	if (r < 0 || reopen->left)
		return;
	b->state = state;
	kv_lock(remote->cache);
	b->stats.there = b->stats.open = true;
	kv_unlock(remote->cache);
	atomic_store(&b->there, true);
	kv_remote_wake(remote);
	fprintf(stderr, "kvfs: remote=%s: it is there now\n", b->url);
}

static bool any_missing(const struct kv_remote *remote)
{
	for (unsigned i = 0; i < remote->n; i++)
		if (!atomic_load(&remote->backends[i].there))
			return true;
	return false;
}

static void *reopen_run(void *arg)
{
	struct kv_reopen *reopen = arg;
	uint64_t pause = 0;
	bool left;

	pthread_mutex_lock(&reopen->lock);
	while (!reopen->stop) {
		pause = kv_backoff(pause, REOPEN_FIRST_NS, REOPEN_LAST_NS);
		if (any_missing(reopen->remote))
			kv_cond_wait_until(&reopen->changed, &reopen->lock,
					   kv_now_ns() + pause);
		else
			pthread_cond_wait(&reopen->changed, &reopen->lock);
		for (unsigned i = 0; !reopen->stop && i < reopen->remote->n;
		     i++)
			if (!atomic_load(&reopen->remote->backends[i].there))
				reopen_one(reopen, i);
	}
	reopen->ended = true;
	left = reopen->left;
	pthread_cond_broadcast(&reopen->changed);
	pthread_mutex_unlock(&reopen->lock);
	if (left)
		reopen_free(reopen);
	return NULL;
}

static int reopen_start(struct kv_remote *remote)
{
	struct kv_reopen *reopen;
	int r;

	if (!any_missing(remote))
		return 0;
	reopen = calloc(1, sizeof(*reopen));
	if (!reopen)
		return -ENOMEM;
	pthread_mutex_init(&reopen->lock, NULL);
	kv_cond_init(&reopen->changed);
	reopen->remote = remote;
	r = kv_thread_start(&reopen->thread, "kvfs-reopen", reopen_run, reopen);
	if (r < 0)
		reopen_free(reopen);
	else
		remote->reopen = reopen;
	return r;
}

/* End the thread.  One that hangs is left, and closes what it opens. */
static void reopen_stop(struct kv_remote *remote)
{
	struct kv_reopen *reopen = kv_steal(remote->reopen);
	const uint64_t until = kv_now_ns() + END_NS;
	pthread_t thread;
	bool left;

	if (!reopen)
		return;
	pthread_mutex_lock(&reopen->lock);
	thread = reopen->thread;
	reopen->stop = true;
	pthread_cond_broadcast(&reopen->changed);
	while (!reopen->ended && kv_now_ns() < until)
		kv_cond_wait_until(&reopen->changed, &reopen->lock, until);
	left = reopen->left = !reopen->ended;
	pthread_mutex_unlock(&reopen->lock);
	if (left) {
		pthread_detach(thread);
		return;
	}
	pthread_join(thread, NULL);
	reopen_free(reopen);
}

/* ---- begin and end ---- */

static void remote_free(struct kv_remote *remote)
{
	for (unsigned i = 0; i < remote->n; i++) {
		const struct kv_remote_backend *b = &remote->backends[i];

		if (atomic_load(&b->there))
			b->driver->close(b->state);
	}
	kv_fetch_fini(remote);
	kv_backup_fini(remote);
	pthread_cond_destroy(&remote->answer);
	if (remote->wake >= 0)
		close(remote->wake);
	free(remote);
}

static int remote_new(struct kv_cache *cache, struct kv_remote **ret_remote)
{
	struct kv_remote *remote = calloc(1, sizeof(*remote));
	int r;

	if (!remote)
		return -ENOMEM;
	remote->cache = cache;
	TAILQ_INIT(&remote->jobs);
	TAILQ_INIT(&remote->forgets.fresh);
	TAILQ_INIT(&remote->forgets.begun);
	TAILQ_INIT(&remote->asks);
	kv_cond_init(&remote->answer);
	r = kv_backup_init(remote);
	remote->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (remote->wake < 0)
		r = -errno;
	if (r == 0)
		r = kv_fetch_init(remote);
	if (r < 0)
		remote_free(remote);
	else
		*ret_remote = remote;
	return r;
}

static const struct kv_remote_hooks hooks = {
	.want_locked = kv_fetch_want_locked,
	.look_locked = kv_fetch_begin_locked,
	.may_locked = kv_fetch_may_locked,
	.coming_locked = kv_fetch_is_coming_locked,
	.durable_locked = kv_backup_durable_locked,
	.used_locked = kv_backup_used_locked,
};

int kv_remote_start(struct kv_cache *cache, char **ret_why)
{
	struct kv_remote *remote;
	int r;

	if (!cache->config.remote.n)
		return 0;
	r = remote_new(cache, &remote);
	if (r < 0)
		return kv_why(ret_why, r, "remote: %s", strerror(-r));
	r = open_backends(remote, ret_why);
	if (r == 0 && remote->n > 0) {
		r = kv_thread_start(&remote->thread, "kvfs-remote", remote_run,
				    remote);
		remote->running = r == 0;
		if (r == 0)
			r = kv_backup_start(remote);
		if (r == 0)
			r = reopen_start(remote);
		if (r < 0)
			kv_why(ret_why, r, "remote: %s", strerror(-r));
	}
	kv_lock(cache);
	cache->remote = remote;
	cache->remote_hooks = &hooks;
	kv_unlock(cache);
	return r;
}

void kv_remote_stop(struct kv_cache *cache)
{
	struct kv_remote *remote = cache->remote;
	struct kv_remote_job *job;
	uint64_t until;

	if (!remote)
		return;
	reopen_stop(remote);
	kv_backup_stop(remote);
	if (remote->running) {
		remote->stop = true;
		kv_remote_wake(remote);
		pthread_join(remote->thread, NULL);
	}
	kv_fetch_stop(remote);
	kv_backups_free(remote);
	until = kv_now_ns() + END_NS;
	kv_asks_run(remote); /* as `stop` is set, no ask begins */
	expire(remote, UINT64_MAX);
	kv_forgets_run(remote); /* and all forgets are cancelled */
	/* Memory of operations that do not end stays the backends'. */
	while (!TAILQ_EMPTY(&remote->jobs) && kv_now_ns() < until) {
		wait_for_more(remote);
		reap(remote);
	}
	TAILQ_FOREACH(job, &remote->jobs, link)
		job->op.status = -ETIMEDOUT;
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

char *kv_remote_describe(struct kv_cache *cache)
{
	struct kv_space *space;
	char *text = NULL;
	size_t n;
	FILE *f = cache->config.remote.n ? open_memstream(&text, &n) : NULL;

	if (!f)
		return NULL;
	/* Spaces whose blocks other nodes do not find. */
	kv_lock(cache);
	for (space = kv_space_behind(cache, 0); space;
	     space = kv_space_behind(cache, space->id))
		if (space->differs && !space->removed)
			fprintf(f,
				"seed_differs=%s (other nodes have another "
				"seed; without blocks it would take that)\n",
				space->name);
	kv_unlock(cache);
	if (fclose(f) != 0) {
		free(text);
		return NULL;
	}
	return text;
}
