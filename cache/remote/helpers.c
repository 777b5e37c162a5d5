/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helpers.c - a backend of helpers, one for each tenant that has asked for something
 * lately.
 *
 * What one tenant's helper does is nothing to another's: each is a process of its
 * own, as a user of its own, with memory, back-off and breaker of its own.  There are
 * so many at most.  Who finds no place is told that there is nothing, and waits: those
 * who served longest make place for those who wait, and then wait in turn.
 *
 * One more is the node's own.  It is started first, to see that the engine can be
 * had at all, and stays: layouts, which are nobody's KV, and which a new space
 * cannot wait for, are asked of it.
 *
 * OWNS      the helpers; who waits; operations that were refused, until they are
 *           reaped.
 *
 * STATES    of a member, and the function that makes each step:
 *
 *              (new) -> SERVES    start: its tenant asks, and there is a place
 *             SERVES -> LEAVES    make_leave: it had its turn, and others wait
 *             LEAVES -> SERVES    serve: its tenant's turn came before it ended
 *     SERVES, LEAVES -> ENDING    end: nothing is under way, and nothing was asked
 *                                 for long, or it leaves or is quiet while
 *                                 another tenant waits
 *             ENDING -> (gone)    sweep: its program has ended, too
 *
 *           of a SERVES one's breaker, after a row of failures:
 *
 *             closed -> open      reaped
 *               open -> closed    reaped: a trial was answered; renewed: its
 *                                 program was started anew
 *
 * INVARIANTS
 *   (1) At most config.max members beside the node's are SERVES or LEAVES, and as
 *       many ENDING.  The node's is SERVES.
 *   (2) A member that is ENDING has no operation but a trial of ours.
 *   (3) A member that is LEAVES gets no new operation but a trial of ours.
 *   (4) A tenant who waits, does so once; he has no member that is SERVES.
 *   (5) No two members run as one user, but those of one tenant; unless there is
 *       one user only.
 *
 * LOCKING   none: all calls are the one thread's of whoever uses it.
 */
#include <stdio.h>
#include <sys/epoll.h>

#include "cache/remote/done.h"
#include "cache/remote/helpers.h"

#define SECOND 1000000000ull
#define QUIET_NS (2 * SECOND)	/* then its place may be another's */
#define TURN_NS SECOND		/* the same, if it is asked all the time */
#define BEGIN_NS (10 * SECOND)	/* for its program, before that counts */
#define PATIENT_NS (8 * SECOND) /* more, for who asks ever more seldom */
#define WAITING_MAX 256
#define TRY_NS SECOND
#define NODE "" /* no tenant's name */
#define LAYOUT "/.layout"

/* A tenant without a place, who asked since then, and is expected to until then. */
struct waiter {
	char tenant[KV_OBJECT_TENANT_MAX + 1];
	uint64_t since_ns, until_ns;
	TAILQ_ENTRY(waiter) link;
};

struct member {
	char tenant[KV_OBJECT_TENANT_MAX + 1];
	uint32_t user; /* the number beyond first_uid */
	struct kv_helper *helper;
	bool leaving, ending;
	unsigned held; /* operations, until they are reaped */
	bool used;
	uint64_t since_ns, used_ns;
	uint64_t quiet_ns; /* from then on, if it is not asked */
	uint64_t turn_ns;  /* since when it serves; 0: not yet */
	unsigned failures; /* in a row, of the program of so many starts */
	uint64_t starts;
	bool trying;
	uint64_t tried_ns;
	struct kv_remote_op trial;
	TAILQ_ENTRY(member) link;
};

struct helpers {
	struct kv_helpers_config config;
	struct member *node;	      /* NULL: it does not serve */
	TAILQ_HEAD(, member) members; /* who asked last comes last */
	TAILQ_HEAD(, waiter) waiting; /* the first comes first */
	unsigned serving, ending;     /* serving: or leaving */
	unsigned leaving, n_waiting;
	struct kv_done refused;
	int epoll;
	uint64_t n_refused; /* for want of a place */
};

/* ---- whom they run as ---- */

static bool is_taken(const struct helpers *helpers, uint32_t user,
		     const char *tenant)
{
	const struct member *member;

	TAILQ_FOREACH(member, &helpers->members, link)
		if (member->user == user && strcmp(member->tenant, tenant) != 0)
			return true;
	return false;
}

/* A number's own, if there are so many; of a name any. */
static uint32_t wish(const struct helpers *helpers, const char *tenant)
{
	const uint32_t uids = helpers->config.uids;
	uint64_t number = 0, hash = UINT64_C(14695981039346656037);
	bool digits = true;

	if (!*tenant)
		return uids - 1;
	for (const char *c = tenant; *c; c++) {
		digits &= *c >= '0' && *c <= '9' && number < uids;
		number = number * 10 + (uint64_t)(*c - '0');
		hash = (hash ^ (uint8_t)*c) * UINT64_C(1099511628211);
	}
	return (uint32_t)((digits && number < uids ? number : hash) % uids);
}

static uint32_t user_of(const struct helpers *helpers, const char *tenant)
{
	uint32_t user = wish(helpers, tenant);

	while (helpers->config.uids > 1 && is_taken(helpers, user, tenant))
		user = (user + 1) % helpers->config.uids;
	return user;
}

/* ---- their life ---- */

static void leave(struct helpers *helpers, struct member *member, bool leaves)
{
	helpers->leaving += leaves;
	helpers->leaving -= member->leaving;
	member->leaving = leaves;
}

static void end(struct helpers *helpers, struct member *member)
{
	leave(helpers, member, false);
	member->ending = true;
	helpers->serving--;
	helpers->ending++;
	kv_helper_end(member->helper, false);
}

/* It is kept until @until_ns, though it is not asked.  -ENOMEM, -EMFILE, -EAGAIN. */
static int start(struct helpers *helpers, const char *tenant, uint64_t until_ns,
		 struct member **ret_member)
{
	struct kv_helper_config config = helpers->config.helper;
	struct member *member = calloc(1, sizeof(*member));
	struct epoll_event event = {.events = EPOLLIN};
	int r;

	if (!member)
		return -ENOMEM;
	snprintf(member->tenant, sizeof(member->tenant), "%s", tenant);
	member->user = user_of(helpers, tenant);
	member->since_ns = member->used_ns = kv_now_ns();
	member->quiet_ns = KV_MAX(until_ns, member->used_ns + QUIET_NS);
	config.tenant = member->tenant;
	config.launch.uid = helpers->config.first_uid + member->user;
	r = kv_helper_open(&config, &member->helper);
	if (r < 0) {
		free(member);
		return r;
	}
	TAILQ_INSERT_TAIL(&helpers->members, member, link);
	helpers->serving++;
	/* Gone from there with its descriptor. */
	if (epoll_ctl(helpers->epoll, EPOLL_CTL_ADD,
		      kv_helper_fd(member->helper), &event) < 0) {
		r = -errno;
		end(helpers, member);
		return r;
	}
	*ret_member = member;
	return 0;
}

static struct member *find(const struct helpers *helpers, const char *tenant)
{
	struct member *member;

	TAILQ_FOREACH(member, &helpers->members, link)
		if (!member->ending && strcmp(member->tenant, tenant) == 0)
			return member;
	return NULL;
}

/* ---- who waits for a place ---- */

static void forget(struct helpers *helpers, struct waiter *waiter)
{
	TAILQ_REMOVE(&helpers->waiting, waiter, link);
	helpers->n_waiting--;
	free(waiter);
}

static struct waiter *new_waiter(struct helpers *helpers, const char *tenant)
{
	struct waiter *waiter = NULL;

	if (helpers->n_waiting < WAITING_MAX)
		waiter = calloc(1, sizeof(*waiter));
	if (!waiter)
		return NULL;
	snprintf(waiter->tenant, sizeof(waiter->tenant), "%s", tenant);
	waiter->since_ns = kv_now_ns();
	TAILQ_INSERT_TAIL(&helpers->waiting, waiter, link);
	helpers->n_waiting++;
	return waiter;
}

/* Who tries again the later, the longer he was refused, waits all the same. */
static void begin_to_wait(struct helpers *helpers, const char *tenant)
{
	const uint64_t now = kv_now_ns();
	struct waiter *waiter;

	TAILQ_FOREACH(waiter, &helpers->waiting, link)
		if (strcmp(waiter->tenant, tenant) == 0)
			break;
	if (!waiter)
		waiter = new_waiter(helpers, tenant);
	if (waiter)
		waiter->until_ns = now + QUIET_NS +
				   KV_MIN(now - waiter->since_ns, PATIENT_NS);
}

/* Who has served longest, of those who did for long enough; NULL: nobody. */
static struct member *find_served(const struct helpers *helpers, uint64_t now)
{
	struct member *member, *found = NULL;

	TAILQ_FOREACH(member, &helpers->members, link) {
		if (member->ending || member->leaving ||
		    member == helpers->node || !member->turn_ns ||
		    now - member->turn_ns < TURN_NS)
			continue;
		if (!found || member->turn_ns < found->turn_ns)
			found = member;
	}
	return found;
}

/* So many as wait, at most. */
static void make_leave(struct helpers *helpers, uint64_t now)
{
	struct member *member;

	while (helpers->leaving < helpers->n_waiting &&
	       (member = find_served(helpers, now)))
		leave(helpers, member, true);
}

/* Whose place another can have now: who asked least lately comes first. */
static struct member *find_done(const struct helpers *helpers, uint64_t now)
{
	struct member *member;

	TAILQ_FOREACH(member, &helpers->members, link)
		if (!member->ending && member != helpers->node &&
		    !member->held &&
		    (member->leaving || now >= member->quiet_ns))
			break;
	return member;
}

static bool make_place(struct helpers *helpers, uint64_t now)
{
	struct member *done;

	/* One is the node's. */
	if (helpers->serving <= helpers->config.max)
		return true;
	done = find_done(helpers, now);
	if (!done || helpers->ending >= helpers->config.max)
		return false;
	end(helpers, done);
	return true;
}

/* Whether his wait is over: he has a place, or is not expected any more. */
static bool serve(struct helpers *helpers, const struct waiter *waiter,
		  uint64_t now)
{
	struct member *member = find(helpers, waiter->tenant);

	if (now >= waiter->until_ns)
		return true;
	if (member) {
		leave(helpers, member, false);
		member->turn_ns = now;
		member->quiet_ns = waiter->until_ns;
		return true;
	}
	if (!make_place(helpers, now))
		return false;
	start(helpers, waiter->tenant, waiter->until_ns, &member);
	return true;
}

static void serve_all(struct helpers *helpers)
{
	const uint64_t now = kv_now_ns();
	struct waiter *waiter;

	make_leave(helpers, now);
	while ((waiter = TAILQ_FIRST(&helpers->waiting)) &&
	       serve(helpers, waiter, now))
		forget(helpers, waiter);
}

/* NULL: he has no place now. */
static struct member *admit(struct helpers *helpers, const char *tenant)
{
	struct member *member;

	begin_to_wait(helpers, tenant);
	serve_all(helpers);
	member = find(helpers, tenant);
	return member && !member->leaving ? member : NULL;
}

/* ---- breakers ---- */

static bool is_broken(struct member *member)
{
	const uint64_t starts = kv_helper_starts(member->helper);

	if (member->starts != starts)
		member->failures = 0; /* what failed is gone */
	member->starts = starts;
	return member->failures >= KV_REMOTE_FAILURES;
}

static void note(struct member *member, const struct kv_remote_op *op)
{
	const int status = op->status;

	if (status == -EOPNOTSUPP || kv_remote_is_refusal(op->call, status))
		return; /* nothing was asked, or nothing is taken */
	if (kv_remote_is_answer(status))
		member->failures = 0;
	else
		member->failures++;
}

static void try(struct member *member)
{
	struct kv_remote_op *op = &member->trial;

	*op = (struct kv_remote_op){.call = KV_REMOTE_EXISTS};
	snprintf(op->name, sizeof(op->name), "%s/trial/trial",
		 *member->tenant ? member->tenant : "trial");
	member->trying = true;
	member->tried_ns = kv_now_ns();
	kv_helper_submit(member->helper, &op, 1);
}

/* ---- what is due ---- */

static void look_after(struct helpers *helpers, struct member *member,
		       uint64_t now)
{
	const bool may_end = member != helpers->node && !member->held &&
			     helpers->ending < helpers->config.max;

	if (!member->turn_ns && member->used &&
	    (kv_helper_is_up(member->helper) ||
	     now - member->since_ns >= BEGIN_NS))
		member->turn_ns = now;
	if (may_end && now - member->used_ns >= helpers->config.idle_ns)
		end(helpers, member);
	else if (now - member->tried_ns < TRY_NS)
		return;
	else if (member->trying)
		kv_helper_cancel(member->helper, &member->trial);
	else if (is_broken(member))
		try(member);
}

static void sweep(struct helpers *helpers, struct member *member)
{
	if (!kv_helper_has_ended(member->helper))
		return;
	kv_helper_close(member->helper);
	TAILQ_REMOVE(&helpers->members, member, link);
	free(member);
	helpers->ending--;
}

static void look_after_all(struct helpers *helpers)
{
	const uint64_t now = kv_now_ns();
	struct member *member, *next;

	for (member = TAILQ_FIRST(&helpers->members); member; member = next) {
		next = TAILQ_NEXT(member, link);
		if (member->ending)
			sweep(helpers, member);
		else
			look_after(helpers, member, now);
	}
	serve_all(helpers);
}

/* ---- operations ---- */

/* A clear names it as what stays: what goes is the tenant's. */
static bool is_layout(const struct kv_remote_op *op)
{
	const size_t n = strlen(op->name), end = strlen(LAYOUT);

	return op->call != KV_REMOTE_CLEAR && n >= end &&
	       strcmp(op->name + n - end, LAYOUT) == 0;
}

static void read_tenant(const struct kv_remote_op *op,
			char tenant[KV_OBJECT_TENANT_MAX + 1])
{
	const size_t n = strcspn(op->name, "/");

	snprintf(tenant, KV_OBJECT_TENANT_MAX + 1, "%.*s", (int)n, op->name);
}

/* Who has to do with it; NULL: nobody. */
static struct member *member_of(struct helpers *helpers,
				const struct kv_remote_op *op, bool may_start)
{
	char tenant[KV_OBJECT_TENANT_MAX + 1];
	struct member *member;

	if (is_layout(op))
		return helpers->node;
	read_tenant(op, tenant);
	member = find(helpers, tenant);
	if (!may_start || (member && !member->leaving))
		return member;
	return admit(helpers, tenant);
}

static void submit(struct helpers *helpers, struct kv_remote_op *op)
{
	struct member *member = member_of(helpers, op, true);

	if (!member) {
		helpers->n_refused++;
		kv_done_add(&helpers->refused, op, -EUSERS);
		return;
	}
	member->used = true;
	member->used_ns = kv_now_ns();
	member->quiet_ns = member->used_ns + QUIET_NS;
	TAILQ_REMOVE(&helpers->members, member, link);
	TAILQ_INSERT_TAIL(&helpers->members, member, link);
	if (is_broken(member)) {
		kv_done_add(&helpers->refused, op, -EIO);
		return;
	}
	member->held++;
	kv_helper_submit(member->helper, &op, 1);
}

void kv_helpers_submit(void *backend, struct kv_remote_op *const *ops, size_t n)
{
	for (size_t i = 0; i < n; i++)
		submit(backend, ops[i]);
}

/* Of one that was refused, or has ended, nothing is under way. */
void kv_helpers_cancel(void *backend, struct kv_remote_op *op)
{
	struct member *member = member_of(backend, op, false);

	if (member)
		kv_helper_cancel(member->helper, op);
}

int kv_helpers_fd(void *backend)
{
	return ((struct helpers *)backend)->epoll;
}

static size_t reap_member(struct member *member, struct kv_remote_op **ret_ops,
			  size_t max)
{
	size_t n = kv_helper_reap(member->helper, ret_ops, max), kept = 0;

	for (size_t i = 0; i < n; i++) {
		struct kv_remote_op *op = ret_ops[i];

		note(member, op);
		if (op == &member->trial) {
			member->trying = false;
			continue;
		}
		member->held--;
		ret_ops[kept++] = op;
	}
	return kept;
}

size_t kv_helpers_reap(void *backend, struct kv_remote_op **ret_ops, size_t max)
{
	struct helpers *helpers = backend;
	struct member *member;
	size_t n = 0;

	TAILQ_FOREACH(member, &helpers->members, link)
		if (n < max)
			n += reap_member(member, ret_ops + n, max - n);
	/* Last: else, while many are refused, no trial would be seen. */
	n += kv_done_reap(&helpers->refused, ret_ops + n, max - n);
	look_after_all(helpers);
	return n;
}

void kv_helpers_tell(void *backend, struct kv_remote_stats *stats)
{
	const struct helpers *helpers = backend;
	struct member *member;
	uint64_t n = 0, unwell = 0;

	TAILQ_FOREACH(member, &helpers->members, link) {
		if (member->ending || member == helpers->node)
			continue;
		n++;
		unwell += is_broken(member) || !kv_helper_is_up(member->helper);
	}
	stats->helpers = n;
	stats->helpers_unwell = unwell;
	stats->refused = helpers->n_refused;
}

/* ---- begin and end ---- */

static void helpers_free(struct helpers *helpers)
{
	struct kv_helper_config *config = &helpers->config.helper;

	if (helpers->epoll >= 0)
		close(helpers->epoll);
	while (!TAILQ_EMPTY(&helpers->waiting))
		forget(helpers, TAILQ_FIRST(&helpers->waiting));
	kv_done_fini(&helpers->refused);
	free((char *)config->url);
	for (size_t i = 0; i < KV_ARRAY_LEN(config->launch.argv); i++)
		free((char *)config->launch.argv[i]);
	free(helpers);
}

int kv_helpers_close(void *backend)
{
	struct helpers *helpers = backend;
	struct member *member, *next;

	TAILQ_FOREACH(member, &helpers->members, link)
		kv_helper_end(member->helper, true);
	for (member = TAILQ_FIRST(&helpers->members); member; member = next) {
		next = TAILQ_NEXT(member, link);
		if (kv_helper_close(member->helper) < 0)
			continue;
		TAILQ_REMOVE(&helpers->members, member, link);
		free(member);
	}
	if (!TAILQ_EMPTY(&helpers->members))
		return -EBUSY;
	helpers_free(helpers);
	return 0;
}

/* -ENOMEM. */
static int copy_config(struct kv_helpers_config *to,
		       const struct kv_helpers_config *from)
{
	struct kv_helper_config *config = &to->helper;

	*to = *from;
	config->url = strdup(from->helper.url);
	memset(config->launch.argv, 0, sizeof(config->launch.argv));
	for (size_t i = 0; from->helper.launch.argv[i]; i++) {
		config->launch.argv[i] = strdup(from->helper.launch.argv[i]);
		if (!config->launch.argv[i])
			return -ENOMEM;
	}
	return config->url ? 0 : -ENOMEM;
}

static int helpers_new(const struct kv_helpers_config *config,
		       struct helpers **ret_helpers)
{
	struct helpers *helpers = calloc(1, sizeof(*helpers));
	struct epoll_event event = {.events = EPOLLIN};
	int r;

	if (!helpers)
		return -ENOMEM;
	TAILQ_INIT(&helpers->members);
	TAILQ_INIT(&helpers->waiting);
	r = copy_config(&helpers->config, config);
	helpers->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (kv_done_init(&helpers->refused) < 0 && r == 0)
		r = -EMFILE;
	if (r == 0 && (helpers->epoll < 0 ||
		       epoll_ctl(helpers->epoll, EPOLL_CTL_ADD,
				 helpers->refused.event, &event) < 0))
		r = -errno;
	if (r < 0)
		helpers_free(helpers);
	else
		*ret_helpers = helpers;
	return r;
}

int kv_helpers_open(const struct kv_helpers_config *config, void **ret_backend,
		    char **ret_why)
{
	struct helpers *helpers;
	int r;

	*ret_why = NULL;
	assert(config->uids == 1 ||
	       config->uids >= KV_HELPERS_UIDS(config->max));
	r = helpers_new(config, &helpers);
	if (r < 0)
		return r;
	r = start(helpers, NODE, 0, &helpers->node);
	if (r == 0)
		r = kv_helper_await(helpers->node->helper, ret_why);
	if (r < 0)
		kv_helpers_close(helpers);
	else
		*ret_backend = helpers;
	return r;
}
