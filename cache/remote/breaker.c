/* SPDX-License-Identifier: Apache-2.0 */
/*
 * breaker.c - circuit breakers of the backend and of tenants.
 *
 * OWNS      the breakers, and the trials.
 *
 * STATES    of a breaker:
 *             CLOSED -> OPEN      kv_breaker_note, trial_ended: no operation is sent
 *               OPEN -> CLOSED    trial_ended
 *
 * INVARIANTS
 *   (1) Breakers are added, never removed; only the remote thread changes them.
 *   (2) A breaker has at most one trial in flight, an abandoned one included.
 *   (3) The lines printed about a breaker alternate: it opened, it closed.
 *
 * LOCKING   none: any thread reads the atomics.
 */
#include <stdio.h>

#include "cache/remote/tier.h"
#include "common/rate.h"

#define MS UINT64_C(1000000)
#define FAILURES 8u	     /* failures in a row that open a breaker */
#define TRIAL_NS (1000 * MS) /* first pause; twice this is a trial's limit */
#define MOUNT_NS (3000 * MS) /* time limit of the trial at mount */
#define PROMPT_NS (1000 * MS)
#define PAUSE_MAX_NS (30000 * MS)
#define HELD_WAIT_NS (1000 * MS) /* longest pause of a tenant to wait for */
#define FULL_MAX_NS (64000 * MS) /* longest pause of puts to a full backend */

/* Return the user's breaker, or a closed one if no operation of the user was sent yet. */
static struct kv_breaker *find_breaker(struct kv_remote *remote, uint32_t uid)
{
	const unsigned n = atomic_load(&remote->n_breakers);
	unsigned i = 1;

	while (i < n && i < KV_BREAKERS - 1 && remote->breakers[i].uid != uid)
		i++;
	return &remote->breakers[i];
}

struct kv_breaker *kv_breaker_of(struct kv_remote *remote, uint32_t uid)
{
	struct kv_breaker *breaker = find_breaker(remote, uid);

	if (breaker == &remote->breakers[remote->n_breakers]) {
		breaker->uid = uid;
		atomic_fetch_add(&remote->n_breakers, 1);
	}
	return breaker;
}

bool kv_remote_is_open(struct kv_remote *remote, uint32_t uid)
{
	struct kv_breaker *breaker = find_breaker(remote, uid);

	return !remote->stop && !remote->breakers->open && !breaker->open &&
	       breaker->held_until_ns <= kv_now_ns() + HELD_WAIT_NS;
}

bool kv_remote_takes(struct kv_remote *remote, uint32_t uid)
{
	return kv_remote_is_open(remote, uid) &&
	       kv_now_ns() >= find_breaker(remote, uid)->full_until_ns;
}

/* Print a line about the breaker's owner.  @why: NULL if operations succeed. */
static void print_line(struct kv_remote *remote,
		       const struct kv_breaker *breaker, const char *what,
		       const char *why)
{
	char tenant[KV_REMOTE_NAME_MAX + 32] = "";
	char name[KV_REMOTE_NAME_MAX + 1];

	if (breaker != remote->breakers) {
		kv_tenant_name(remote->cache, breaker->uid, name);
		snprintf(tenant, sizeof(tenant), " for tenant %s", name);
	}
	fprintf(stderr, "kvfs: %sremote=%s: %s%s%s%s\n", why ? "warning: " : "",
		remote->cache->config.remote.url, what, tenant, why ? ": " : "",
		why ? why : "");
}

/* Print that operations of one tenant, or of all tenants, stop or go on. */
static void tell(struct kv_remote *remote, struct kv_breaker *breaker,
		 bool back)
{
	if (breaker->told != back)
		return;
	breaker->told = !back;
	print_line(remote, breaker, back ? "it is back" : "given up",
		   back ? NULL : breaker->why);
}

static void set_open(struct kv_remote *remote, struct kv_breaker *breaker,
		     bool open)
{
	if (breaker->open == open)
		return;
	/* Each opening of a tenant's breaker lengthens its pause. */
	if (open && breaker != remote->breakers)
		breaker->pause_ns =
			kv_backoff(breaker->pause_ns, TRIAL_NS, PAUSE_MAX_NS);
	breaker->try_ns = kv_now_ns() + KV_MAX(breaker->pause_ns, TRIAL_NS);
	breaker->failures = breaker->refusals = 0;
	atomic_store(&breaker->open, open);
}

void kv_remote_describe(const struct kv_remote_job *job, int status,
			char text[KV_REMOTE_FAILURE_MAX])
{
	static const char *const calls[KV_REMOTE_CALLS] = {
		[KV_REMOTE_HEAD] = "head",
		[KV_REMOTE_GET] = "get",
		[KV_REMOTE_PUT] = "put",
		[KV_REMOTE_DELETE] = "delete",
	};
	/* The backend may still write the cause of an abandoned operation. */
	const char *why = job->abandoned ? "" : job->op.why;

	/* A trial of the backend itself has no object's name: omit the call. */
	snprintf(text, KV_REMOTE_FAILURE_MAX, "%s%s%.140s",
		 *job->op.name ? calls[job->op.call] : "",
		 *job->op.name ? ": " : "", *why ? why : strerror(-status));
}

static void trial_ended(struct kv_remote *remote, struct kv_remote_job *job,
			int status)
{
	struct kv_breaker *breaker = (struct kv_breaker *)job;
	struct kv_breaker *backend = remote->breakers;
	/* A server that refuses an object works.  The backend's root must exist. */
	const bool ok = status == 0 || status == -EACCES ||
			(job->op.name[0] && status == -ENOENT);

	if (remote->answer > 0) {
		breaker->told = !ok;
		remote->answer = ok ? 0 : status;
	}
	/* The trial tells nothing, or the breaker is closed. */
	if (status == -ECANCELED || remote->stop || !breaker->open)
		return;
	if (breaker->probe && ok) {
		tell(remote, breaker, false);
	} else if (breaker->probe) {
		kv_remote_describe(job, status, backend->why);
		set_open(remote, backend, true);
		set_open(remote, breaker, false);
		breaker->pause_ns = 0;
		tell(remote, backend, false);
	} else if (ok) {
		set_open(remote, breaker, false);
		if (breaker == backend)
			tell(remote, backend, true);
	} else {
		kv_remote_describe(job, status, breaker->why);
		breaker->try_ns =
			kv_now_ns() + KV_MAX(breaker->pause_ns, TRIAL_NS);
	}
}

static void trial_given_back(struct kv_remote *remote,
			     struct kv_remote_job *job)
{
	(void)remote;
	((struct kv_breaker *)job)->trying = false;
}

/* Send a HEAD of the last object, or with @probe of the backend itself. */
static void begin_trial(struct kv_remote *remote, struct kv_breaker *breaker,
			bool probe)
{
	breaker->trying = true;
	breaker->probe = probe;
	breaker->trial = (struct kv_remote_job){
		.op.call = KV_REMOTE_HEAD,
		.uid = breaker->uid,
		.trial = true,
		.ended = trial_ended,
		.given_back = trial_given_back,
	};
	strcpy(breaker->trial.op.name, probe ? "" : breaker->name);
	kv_remote_submit(remote, &breaker->trial,
			 remote->answer > 0 ? MOUNT_NS : 2 * TRIAL_NS);
}

uint64_t kv_trials_run(struct kv_remote *remote)
{
	struct kv_breaker *backend = remote->breakers;
	const uint64_t now = kv_now_ns();
	uint64_t due = UINT64_MAX;

	for (unsigned i = 0; i < remote->n_breakers; i++) {
		struct kv_breaker *breaker = &remote->breakers[i];

		if (!breaker->open || breaker->trying ||
		    (i > 0 && backend->open))
			continue;
		if (now >= breaker->try_ns)
			begin_trial(remote, breaker, false);
		else
			due = KV_MIN(due, breaker->try_ns);
	}
	return due;
}

bool kv_remote_has_failed(int status)
{
	return status != 0 && status != -ENOENT && status != -EACCES &&
	       status != -ENOSPC && status != -EAGAIN && status != -EBADMSG &&
	       status != -ECANCELED;
}

/* Pause the tenant's puts while the backend is full. */
static void note_room(struct kv_remote *remote, struct kv_breaker *breaker,
		      const struct kv_remote_job *job, int status)
{
	const bool full = status == -ENOSPC;
	const uint64_t now = kv_now_ns();
	char why[KV_REMOTE_FAILURE_MAX];

	if (job->op.call != KV_REMOTE_PUT || (status != 0 && !full) ||
	    now < breaker->full_until_ns)
		return;
	breaker->full_ns =
		full ? kv_backoff(breaker->full_ns, TRIAL_NS, FULL_MAX_NS) : 0;
	atomic_store(&breaker->full_until_ns, now + breaker->full_ns);
	/* A backend that takes only some blocks is reported once a minute. */
	if (full ? now < breaker->full_tell_ns
		 : breaker->full_tell_ns != UINT64_MAX)
		return;
	breaker->full_tell_ns = full ? UINT64_MAX : now + FULL_MAX_NS;
	kv_remote_describe(job, status, why);
	print_line(remote, breaker,
		   full ? "it takes no blocks" : "it takes blocks again",
		   full ? why : NULL);
}

const char *kv_remote_why(struct kv_remote *remote, uint32_t uid)
{
	return remote->breakers->open ? remote->breakers->why
				      : kv_breaker_of(remote, uid)->why;
}

void kv_breaker_note(struct kv_remote *remote, const struct kv_remote_job *job,
		     int status)
{
	struct kv_breaker *breaker = kv_breaker_of(remote, job->uid);
	const bool failed = kv_remote_has_failed(status);

	/* A user chose the time limit of a DELETE, and may be refused DELETEs only. */
	if (job->op.call == KV_REMOTE_DELETE &&
	    (status == -ETIMEDOUT || status == -EACCES))
		return;
	if (job->op.call != KV_REMOTE_DELETE)
		strcpy(breaker->name, job->op.name);
	if (job->op.call == KV_REMOTE_PUT && status != -EACCES)
		breaker->refused_puts = 0;
	else if (job->op.call == KV_REMOTE_PUT &&
		 ++breaker->refused_puts >= FAILURES)
		status = -ENOSPC; /* such as with credentials that only read */
	note_room(remote, breaker, job, status);
	if (status == -EAGAIN) /* a GET without memory: the object exists */
		return;
	if (job->op.call == KV_REMOTE_GET && (failed || status == 0))
		breaker->prompt =
			!failed && kv_now_ns() - job->began_ns <= PROMPT_NS;
	if (!failed && status != -EACCES) {
		breaker->failures = breaker->refusals = 0;
		breaker->pause_ns = 0;
		if (!breaker->open)
			tell(remote, breaker, true);
		return;
	}
	breaker->failures += failed;
	breaker->refusals += !failed;
	kv_remote_describe(job, status, breaker->why);
	if (breaker->open || remote->breakers->open ||
	    KV_MAX(breaker->failures, breaker->refusals) < FAILURES)
		return;
	set_open(remote, breaker, true);
	if (!breaker->trying)
		begin_trial(remote, breaker, true);
}
