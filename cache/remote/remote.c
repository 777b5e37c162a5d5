/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote.c - the thread that talks to the backend, retries, and the names of objects.
 *
 * A backend may hang, fail, or send wrong bytes.  Every operation has a deadline; after it
 * the memory is left to the backend until the backend gives it back, and counts until
 * then.  An operation that failed is retried while somebody waits.
 *
 * OWNS      the backend, the thread, the jobs in flight.
 *
 * STATES    of a job:
 *              (new) -> in flight   kv_remote_submit, send
 *              (new) -> waiting     kv_remote_submit: the tenant is held
 *          in flight -> waiting     reap: it failed, and is retried
 *            waiting -> in flight   expire
 *          in flight -> (ended)     reap: ended() runs with its status
 *          in flight -> abandoned   expire: ended() runs with -ETIMEDOUT
 *            waiting -> (ended)     expire
 *          abandoned -> (ended)     reap: given_back() runs
 *
 * INVARIANTS
 *   (1) ended() and given_back() of a job run once each, in this order, and not within
 *       kv_remote_submit.
 *
 * LOCKING   cache->lock for the statistics and what is read of spaces.  All else is the
 *           thread's.
 */
#include <jansson.h>
#include <openssl/evp.h>
#include <poll.h>
#include <stdio.h>
#include <sys/eventfd.h>

#include "cache/core/hooks.h"
#include "cache/remote/tier.h"
#include "common/bytes.h"
#include "common/thread.h"

#define MS UINT64_C(1000000)
#define REST_NS (1000 * MS)
#define END_NS (500 * MS)

#define RETRIES 2u
#define SILENT_NS (2000 * MS)	 /* longest silence of a tenant's GETs */
#define HELD_MAX_NS (60000 * MS) /* longest pause by Retry-After */

static const uint64_t retry_ns[RETRIES] = {50 * MS, 200 * MS};

static const struct kv_remote_driver *const drivers[] = {
	&kv_remote_dir,	  &kv_remote_http_unix, &kv_remote_http,
	&kv_remote_https, &kv_remote_s3,
};

void kv_remote_wake(struct kv_remote *remote)
{
	eventfd_write(remote->ops->event, 1);
}

/* ---- names ---- */

/* Make the folder "2-SPACE" of the space's objects from its name and @layout. */
static void make_folder(struct kv_space *space, const struct kv_layout *layout)
{
	_cleanup_(kv_freep) char *text = NULL, *both = NULL;
	unsigned char digest[32];
	json_t *json = layout ? json_loads(layout->json, 0, NULL) : NULL;
	int n;

	if (json) {
		/* Nodes that share objects may differ in these members: omit
		 * them from the name. */
		json_object_del(json, "seed");
		json_object_del(json, "share");
		json_object_del(json, "keys");
		text = json_dumps(json, JSON_COMPACT | JSON_SORT_KEYS);
		json_decref(json);
	} else if (!layout) {
		text = strdup("");
	}
	n = text ? asprintf(&both, "%s%c%s", space->name, '\0', text) : -1;
	if (n < 0)
		both = NULL;
	space->folder[0] = '\0';
	if (!both ||
	    !EVP_Digest(both, (size_t)n, digest, NULL, EVP_sha256(), NULL))
		return;
	memcpy(space->folder, "2-", 2);
	kv_hex(digest, sizeof(digest), space->folder + 2);
	space->folder_layout = layout;
}

void kv_remote_name(struct kv_remote *remote, struct kv_remote_job *job,
		    struct kv_space *space, const struct kv_key *key)
{
	char tenant[KV_REMOTE_NAME_MAX + 1], name[KV_NAME_MAX + 1] = "";
	const struct kv_layout *layout;

	kv_lock(remote->cache);
	layout = space->layout; /* the layout lives as long as the space */
	kv_unlock(remote->cache);
	if (!space->folder[0] || space->folder_layout != layout)
		make_folder(space, layout);
	kv_tenant_name(remote->cache, job->uid, tenant);
	if (key)
		kv_key_name(key, name);
	if (space->folder[0])
		snprintf(job->op.name, sizeof(job->op.name), "%s/%s/%s", tenant,
			 space->folder, name);
}

/* ---- jobs ---- */

/* Count the outcome of @job. */
static void note(struct kv_remote *remote, const struct kv_remote_job *job,
		 int status)
{
	const bool failed = kv_remote_has_failed(status);
	struct kv_remote_stats *stats = &remote->stats;

	kv_lock(remote->cache);
	stats->calls[job->op.call]++;
	stats->ns[job->op.call] += kv_now_ns() - job->began_ns;
	stats->failed += failed || status == -ENOSPC;
	stats->retried += job->tries;
	stats->late += status == -ETIMEDOUT;
	stats->refused += status == -EACCES;
	/* A failed trial without a name: the bucket may be absent. */
	if (failed || status == -ENOSPC || status == -EACCES ||
	    (status < 0 && !*job->op.name))
		kv_remote_describe(job, status, stats->failure);
	if (status == 0 && job->op.call == KV_REMOTE_GET)
		stats->got_bytes += job->op.length;
	if (status == 0 && job->op.call == KV_REMOTE_PUT)
		stats->put_bytes += job->op.length;
	kv_unlock(remote->cache);
	if (!job->trial && status != -ECANCELED)
		kv_breaker_note(remote, job, status);
}

static void send(struct kv_remote *remote, struct kv_remote_job *job)
{
	job->seen = job->retry_ns = 0;
	job->sent_ns = kv_now_ns();
	kv_ops_submit(remote->ops, &job->op);
}

void kv_remote_submit(struct kv_remote *remote, struct kv_remote_job *job,
		      uint64_t ns)
{
	uint64_t held_ns;

	job->began_ns = kv_now_ns();
	job->until_ns = job->began_ns + ns;
	job->tries = 0;
	job->abandoned = false;
	job->op.status = -ECANCELED;
	TAILQ_INSERT_TAIL(&remote->jobs, job, link);
	held_ns =
		job->trial ? 0 : kv_breaker_of(remote, job->uid)->held_until_ns;
	if (!job->trial && !job->op.name[0]) /* kv_remote_name had no memory */
		job->until_ns = held_ns = job->began_ns + 1;
	if (held_ns > job->began_ns)
		job->retry_ns = held_ns;
	else
		send(remote, job);
}

/* End a job whose memory the backend no longer uses. */
static void end(struct kv_remote *remote, struct kv_remote_job *job, int status)
{
	TAILQ_REMOVE(&remote->jobs, job, link);
	note(remote, job, status);
	job->ended(remote, job, status);
	job->given_back(remote, job);
}

/* End the jobs whose operations have ended, or let them wait for a retry. */
static void reap(struct kv_remote *remote)
{
	struct kv_remote_job *job;
	struct kv_breaker *breaker;
	uint64_t pause, asked, now;
	bool failed;

	while ((job = (struct kv_remote_job *)kv_ops_reap(remote->ops))) {
		if (job->abandoned) {
			TAILQ_REMOVE(&remote->jobs, job, link);
			job->given_back(remote, job);
			continue;
		}
		if (job->trial) {
			end(remote, job, job->op.status);
			continue;
		}
		now = kv_now_ns();
		failed = kv_remote_has_failed(job->op.status);
		breaker = kv_breaker_of(remote, job->uid);
		breaker->heard_ns = now;
		asked = failed ? KV_MIN(job->op.retry_after_ns, HELD_MAX_NS)
			       : 0;
		if (asked)
			atomic_store(
				&breaker->held_until_ns,
				KV_MAX(breaker->held_until_ns, now + asked));
		/* Wait 3/4 to 5/4 of the pause, lest nodes retry together. */
		pause = retry_ns[KV_MIN(job->tries, RETRIES - 1)];
		pause = KV_MAX(pause * 3 / 4 + now % (pause / 2), asked);
		/* -EBADMSG: the body may have been cut off, so retry. */
		if ((failed || job->op.status == -EBADMSG) &&
		    job->tries < RETRIES && now + pause < job->until_ns &&
		    kv_remote_is_open(remote, job->uid) &&
		    kv_fetch_is_wanted(remote, job)) {
			job->tries++;
			job->retry_ns = now + pause;
		} else {
			end(remote, job, job->op.status);
		}
	}
}

/* Return the deadline of @job.  A GET is late when no GET of its tenant has
 * made progress, headers included, for SILENT_NS. */
static uint64_t late_ns(struct kv_remote *remote, struct kv_remote_job *job)
{
	const uint64_t progress = atomic_load(&job->op.progress);
	struct kv_breaker *breaker;

	if (job->op.call != KV_REMOTE_GET)
		return job->until_ns;
	breaker = kv_breaker_of(remote, job->uid);
	if (job->seen != progress)
		breaker->heard_ns = kv_now_ns();
	job->seen = progress;
	return KV_MAX(breaker->heard_ns, job->sent_ns) + SILENT_NS;
}

/* Abandon the jobs whose deadline is over at @now, and send or end those that have waited
 * long enough.  Return when to call this again. */
static uint64_t expire(struct kv_remote *remote, uint64_t now)
{
	struct kv_remote_job *job, *next;
	uint64_t due = UINT64_MAX, at;
	bool open;

	for (job = TAILQ_FIRST(&remote->jobs); job; job = next) {
		next = TAILQ_NEXT(job, link);
		if (job->abandoned)
			continue;
		open = kv_remote_is_open(remote, job->uid);
		at = job->retry_ns ? KV_MAX(job->retry_ns,
					    kv_breaker_of(remote, job->uid)
						    ->held_until_ns)
				   : late_ns(remote, job);
		at = KV_MIN(at, job->until_ns);
		if (now < at && (open || !job->retry_ns)) {
			due = KV_MIN(due, at);
			continue;
		}
		due = 0; /* the end of a job may let others begin */
		if (!job->retry_ns) {
			job->abandoned = true;
			kv_ops_cancel(remote->ops, &job->op);
			note(remote, job, -ETIMEDOUT);
			job->ended(remote, job, -ETIMEDOUT);
		} else if (now >= job->until_ns) {
			end(remote, job, job->tries ? -ETIMEDOUT : -ECANCELED);
		} else if (open && kv_fetch_is_wanted(remote, job)) {
			send(remote, job);
		} else {
			end(remote, job, job->op.status);
		}
	}
	return due;
}

/* ---- the thread ---- */

/* Do all that is due, and wait until there is more. */
static void turn(struct kv_remote *remote)
{
	struct pollfd fd = {.fd = remote->ops->event, .events = POLLIN};
	uint64_t due, now;

	reap(remote);
	due = kv_fetch_run(remote);
	kv_forgets_run(remote);
	kv_backup_run(remote);
	due = KV_MIN(due, kv_trials_run(remote));
	due = KV_MIN(due, expire(remote, kv_now_ns()));
	now = kv_now_ns();
	due = KV_MIN(due, now + REST_NS);
	poll(&fd, 1, due <= now ? 0 : (int)((due - now) / MS) + 1);
}

static void *remote_run(void *arg)
{
	struct kv_remote *remote = arg;

	while (!remote->stop)
		turn(remote);
	return NULL;
}

/* ---- start and stop of the remote thread ---- */

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

static void remote_free(struct kv_remote *remote)
{
	kv_fetch_fini(remote);
	kv_backup_fini(remote);
	kv_turns_fini(&remote->forgetters);
	free(remote);
}

static const struct kv_remote_hooks hooks = {
	.want_locked = kv_fetch_want_locked,
	.look_locked = kv_fetch_begin_locked,
	.may_locked = kv_fetch_may_locked,
	.coming_locked = kv_fetch_is_coming_locked,
	.durable_locked = kv_backup_durable_locked,
};

int kv_remote_start(struct kv_cache *cache, char **ret_why)
{
	const struct kv_remote_config *config = &cache->config.remote;
	_cleanup_(kv_freep) char *why = NULL;
	struct kv_remote *remote;
	const char *rest = NULL;
	int r;

	if (!config->url)
		return 0;
	remote = calloc(1, sizeof(*remote));
	if (!remote)
		return kv_why(ret_why, -ENOMEM, "remote: no memory");
	remote->cache = cache;
	TAILQ_INIT(&remote->jobs);
	TAILQ_INIT(&remote->forgets);
	remote->stats.url = config->url;
	remote->answer = 1;
	remote->n_breakers = 1;
	remote->breakers->open = true;
	r = kv_turns_init(&remote->forgetters, sizeof(struct kv_turn), 1, NULL);
	if (r == 0)
		r = kv_backup_init(remote);
	if (r == 0)
		r = kv_fetch_init(remote);
	remote->driver = driver_of(config->url, &rest);
	if (r == 0 && !remote->driver)
		r = kv_why(&why, -EINVAL, "no backend has this scheme");
	if (r == 0)
		r = remote->driver->make(remote->driver->scheme, rest, config,
					 &remote->ops, &why);
	if (r < 0) {
		remote_free(remote);
		return kv_why(ret_why, r, "remote=%s: %s", config->url,
			      why ? why : strerror(-r));
	}
	kv_lock(cache);
	cache->remote = remote;
	cache->remote_hooks = &hooks;
	kv_unlock(cache);
	while (remote->answer > 0)
		turn(remote);
	if (remote->answer < 0 && !config->optional)
		return kv_why(ret_why, remote->answer, "remote=%s: %s",
			      config->url, kv_remote_why(remote, 0));
	if (remote->answer < 0)
		kv_why(&why, 0, "remote=%s: not used until it answers: %s",
		       config->url, kv_remote_why(remote, 0));
	if (why && cache->config.warn)
		cache->config.warn(cache->config.arg, why);
	r = kv_thread_start(&remote->thread, "kvfs-remote", remote_run, remote);
	remote->running = r == 0;
	if (r == 0)
		r = kv_backup_start(remote);
	return r < 0 ? kv_why(ret_why, r, "remote: %s", strerror(-r)) : 0;
}

void kv_remote_stop(struct kv_cache *cache)
{
	struct kv_remote *remote = cache->remote;
	struct kv_remote_job *job;
	struct pollfd fd;
	uint64_t until;

	if (!remote)
		return;
	kv_backup_stop(remote);
	remote->stop = true;
	if (remote->running) {
		kv_remote_wake(remote);
		pthread_join(remote->thread, NULL);
	}
	kv_fetch_run(remote); /* @stop is set: all waiting gets end as misses */
	expire(remote, UINT64_MAX);
	kv_forgets_run(remote); /* all forgets are cancelled */
	until = kv_now_ns() + END_NS;
	fd = (struct pollfd){.fd = remote->ops->event, .events = POLLIN};
	while (!TAILQ_EMPTY(&remote->jobs) && kv_now_ns() < until) {
		poll(&fd, 1, 10);
		reap(remote);
	}
	kv_lock(cache); /* kv_remote_wake needs the backend */
	cache->remote = NULL;
	cache->remote_hooks = NULL;
	kv_unlock(cache);
	if (remote->driver->close(remote->ops) < 0)
		return; /* the backend may still use the memory */
	while ((job = TAILQ_FIRST(&remote->jobs))) {
		TAILQ_REMOVE(&remote->jobs, job, link);
		job->given_back(remote, job);
	}
	remote_free(remote);
}

bool kv_remote_stats(struct kv_cache *cache, struct kv_remote_stats *ret)
{
	struct kv_remote *remote;

	kv_lock(cache);
	remote = cache->remote;
	if (remote) {
		*ret = remote->stats;
		ret->lent_bytes = remote->ops->lent;
		ret->open = !remote->breakers->open;
		for (unsigned i = 1; i < remote->n_breakers; i++) {
			ret->tenants_closed += remote->breakers[i].open;
			ret->full += remote->breakers[i].full_ns > 0;
		}
	}
	kv_unlock(cache);
	return remote != NULL;
}
