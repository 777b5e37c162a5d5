/* SPDX-License-Identifier: Apache-2.0 */
/*
 * helpers.c - a backend of helper programs, one for each tenant that was active lately.
 *
 * helper:PATH?NAME=VALUE&... is any program that speaks the protocol of helper.h;
 * mooncake://... is the one that comes with kvfs.
 *
 * The helpers of two tenants are isolated: each is a process of its own, with a user, a
 * memory, a back-off and a circuit breaker of its own.  The number of helpers is
 * limited.  Requests of a tenant without a place miss, and the tenant waits: the helper
 * that has served longest makes place, and its tenant then waits in turn.
 *
 * One more helper is the node's.  Starting it first checks that the engine works.  The
 * node's helper stays, and serves layouts, which belong to no tenant and for which a new
 * space cannot wait.
 *
 * OWNS      the helpers; the waiters; refused operations, until they are reaped.
 *
 * STATES    of a member, and the function that makes each step:
 *
 *              (new) -> SERVES    start: its tenant asks, and there is a place
 *             SERVES -> LEAVES    serve_all: it had its turn, and others wait
 *             LEAVES -> SERVES    serve: its tenant's turn came before it ended
 *     SERVES, LEAVES -> ENDING    end: nothing is in flight, and it was idle for long,
 *                                 or it leaves or is quiet while a tenant waits
 *             ENDING -> (gone)    look_after_all: its program has ended, too
 *
 *           of the circuit breaker of a SERVES one:
 *
 *             closed -> open      note: KV_REMOTE_FAILURES failures in a row
 *               open -> closed    note: a trial was answered; is_broken: its program
 *                                 was started again
 *
 * INVARIANTS
 *   (1) At most config.max members beside the node's are SERVES or LEAVES, and as
 *       many ENDING.  The node's is SERVES.
 *   (2) A member that is ENDING has no operation but a trial of ours.
 *   (3) A member that is LEAVES gets no new operation but a trial of ours.
 *   (4) A tenant has at most one waiter, and then no member that is SERVES.
 *   (5) Members of two tenants never run as the same user, unless there is only one
 *       user.
 *
 * LOCKING   none: one thread makes all calls.
 */
#include <stdio.h>
#include <sys/epoll.h>

#include "cache/remote/helper.h"
#include "common/bytes.h"

#define SECOND 1000000000ull
#define QUIET_NS (2 * SECOND)	/* idle: the place may go to another tenant */
#define TURN_NS SECOND		/* busy: the same */
#define BEGIN_NS (10 * SECOND)	/* for the program to start */
#define PATIENT_NS (8 * SECOND) /* more for a waiter that backs off */
#define WAITING_MAX 256
#define TRY_NS SECOND
#define NODE "" /* no tenant's name */
#define LAYOUT "/.layout"

/* User ids beyond those of people, services and containers. */
#define FIRST_UID 2000000000u
#define LAST_UID 2099999999u
#define LANDING (64ull << 20)
#define PATIENCE_S 60u
#define HELLO_S 30u
#define HELPERS 8u
#define HELPERS_MAX 64u
#define IDLE_S 300u
#define PYTHON "/usr/bin/python3"

/* So many users are needed that no two of @max tenants share one: helpers that have not
 * ended yet, and the node's, count. */
#define UIDS(max) (2 * (max) + 2)

struct helpers_config {
	struct kv_helper_config helper; /* but for launch.uid and tenant */
	/* The users of the helpers: @uids from the first; the last is that of the node's
	 * helper.  Without effect unless the daemon is root's. */
	uint32_t first_uid, uids; /* UIDS(max) at least, or 1 */
	unsigned max;		  /* of tenants */
	uint64_t idle_ns;
};

/* A tenant without a place, which is expected to ask again until then. */
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
	uint64_t quiet_ns; /* idle from then on, without a request */
	uint64_t turn_ns;  /* when its turn began; 0: not yet */
	unsigned failures; /* in a row, since the start number @starts */
	uint64_t starts;
	bool trying;
	uint64_t tried_ns;
	struct kv_remote_op trial;
	TAILQ_ENTRY(member) link;
};

struct helpers {
	struct helpers_config config;
	struct member *node;	      /* NULL: it does not serve */
	TAILQ_HEAD(, member) members; /* least recently used first */
	TAILQ_HEAD(, waiter) waiting; /* FIFO */
	unsigned serving, ending;     /* serving includes leaving */
	unsigned leaving, n_waiting;
	struct kv_done refused;
	int epoll;
	uint64_t n_refused; /* for want of a place */
};

/* ---- users ---- */

static bool is_taken(const struct helpers *helpers, uint32_t user,
		     const char *tenant)
{
	const struct member *member;

	TAILQ_FOREACH(member, &helpers->members, link)
		if (member->user == user && strcmp(member->tenant, tenant) != 0)
			return true;
	return false;
}

/* Return the number of a user: a decimal tenant's own if there are so many, else by
 * hash; the next one that no other tenant has. */
static uint32_t user_of(const struct helpers *helpers, const char *tenant)
{
	const uint32_t uids = KV_MAX(helpers->config.uids, 1u);
	uint64_t number = 0, hash = UINT64_C(14695981039346656037);
	bool digits = true;
	uint32_t user;

	for (const char *c = tenant; *c; c++) {
		digits &= *c >= '0' && *c <= '9' && number < uids;
		number = number * 10 + (uint64_t)(*c - '0');
		hash = (hash ^ (uint8_t)*c) * UINT64_C(1099511628211);
	}
	user = (uint32_t)((digits && number < uids ? number : hash) % uids);
	if (!*tenant)
		user = uids - 1;
	while (uids > 1 && is_taken(helpers, user, tenant))
		user = (user + 1) % uids;
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

/* Start a helper, which stays until @until_ns, idle or not.  -ENOMEM, -EMFILE,
 * -EAGAIN. */
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
	/* Closing the descriptor removes it. */
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

/* ---- waiters ---- */

static void waiter_free(struct helpers *helpers, struct waiter *waiter)
{
	TAILQ_REMOVE(&helpers->waiting, waiter, link);
	helpers->n_waiting--;
	free(waiter);
}

/* Wait longer for a tenant that was refused for long: it backs off. */
static void begin_to_wait(struct helpers *helpers, const char *tenant)
{
	const uint64_t now = kv_now_ns();
	struct waiter *waiter;

	TAILQ_FOREACH(waiter, &helpers->waiting, link)
		if (strcmp(waiter->tenant, tenant) == 0)
			break;
	if (!waiter && helpers->n_waiting < WAITING_MAX &&
	    (waiter = calloc(1, sizeof(*waiter)))) {
		snprintf(waiter->tenant, sizeof(waiter->tenant), "%s", tenant);
		waiter->since_ns = now;
		TAILQ_INSERT_TAIL(&helpers->waiting, waiter, link);
		helpers->n_waiting++;
	}
	if (waiter)
		waiter->until_ns = now + QUIET_NS +
				   KV_MIN(now - waiter->since_ns, PATIENT_NS);
}

/* Return the member that has served longest, of those whose turn is over; or NULL. */
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

/* End the least recently used member that can go, if there is no place. */
static bool make_place(struct helpers *helpers, uint64_t now)
{
	struct member *member;

	/* One is the node's. */
	if (helpers->serving <= helpers->config.max)
		return true;
	TAILQ_FOREACH(member, &helpers->members, link)
		if (!member->ending && member != helpers->node &&
		    !member->held &&
		    (member->leaving || now >= member->quiet_ns))
			break;
	if (!member || helpers->ending >= helpers->config.max)
		return false;
	end(helpers, member);
	return true;
}

/* Return whether the wait is over: the tenant has a place, or is not expected. */
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
	struct member *member;
	struct waiter *waiter;

	while (helpers->leaving < helpers->n_waiting &&
	       (member = find_served(helpers, now)))
		leave(helpers, member, true);
	while ((waiter = TAILQ_FIRST(&helpers->waiting)) &&
	       serve(helpers, waiter, now))
		waiter_free(helpers, waiter);
}

/* ---- breakers ---- */

static bool is_broken(struct member *member)
{
	const uint64_t starts = kv_helper_starts(member->helper);

	if (member->starts != starts)
		member->failures = 0; /* of an earlier program */
	member->starts = starts;
	return member->failures >= KV_REMOTE_FAILURES;
}

static void note(struct member *member, const struct kv_remote_op *op)
{
	const int status = op->status;

	if (status == -EOPNOTSUPP || kv_remote_is_refusal(op->call, status))
		return; /* no request was sent, or it was refused */
	if (kv_remote_is_answer(status))
		member->failures = 0;
	else
		member->failures++;
}

static void begin_trial(struct member *member)
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
		begin_trial(member);
}

static void look_after_all(struct helpers *helpers)
{
	const uint64_t now = kv_now_ns();
	struct member *member, *next;

	for (member = TAILQ_FIRST(&helpers->members); member; member = next) {
		next = TAILQ_NEXT(member, link);
		if (!member->ending) {
			look_after(helpers, member, now);
		} else if (kv_helper_has_ended(member->helper)) {
			kv_helper_close(member->helper);
			TAILQ_REMOVE(&helpers->members, member, link);
			free(member);
			helpers->ending--;
		}
	}
	serve_all(helpers);
}

/* ---- operations ---- */

/* Return the member that serves @op, or NULL. */
static struct member *member_of(struct helpers *helpers,
				const struct kv_remote_op *op, bool may_start)
{
	const size_t n = strlen(op->name), end = strlen(LAYOUT);
	char tenant[KV_OBJECT_TENANT_MAX + 1];
	struct member *member;

	/* A clear removes the tenant's objects, all but the layout. */
	if (op->call != KV_REMOTE_CLEAR && n >= end &&
	    strcmp(op->name + n - end, LAYOUT) == 0)
		return helpers->node;
	snprintf(tenant, sizeof(tenant), "%.*s", (int)strcspn(op->name, "/"),
		 op->name);
	member = find(helpers, tenant);
	if (!may_start || (member && !member->leaving))
		return member;
	begin_to_wait(helpers, tenant);
	serve_all(helpers);
	member = find(helpers, tenant);
	return member && !member->leaving ? member : NULL;
}

static void submit_one(struct helpers *helpers, struct kv_remote_op *op)
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

static void helpers_submit(void *backend, struct kv_remote_op *const *ops,
			   size_t n)
{
	for (size_t i = 0; i < n; i++)
		submit_one(backend, ops[i]);
}

/* An operation that was refused, or has ended, has no request. */
static void helpers_cancel(void *backend, struct kv_remote_op *op)
{
	struct member *member = member_of(backend, op, false);

	if (member)
		kv_helper_cancel(member->helper, op);
}

static int helpers_fd(void *backend)
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

static size_t helpers_reap(void *backend, struct kv_remote_op **ret_ops,
			   size_t max)
{
	struct helpers *helpers = backend;
	struct member *member;
	size_t n = 0;

	TAILQ_FOREACH(member, &helpers->members, link)
		if (n < max)
			n += reap_member(member, ret_ops + n, max - n);
	/* Last, so that refused operations do not keep out a trial. */
	n += kv_done_reap(&helpers->refused, ret_ops + n, max - n);
	look_after_all(helpers);
	return n;
}

static void helpers_tell(void *backend, struct kv_remote_stats *stats)
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
		waiter_free(helpers, TAILQ_FIRST(&helpers->waiting));
	kv_done_fini(&helpers->refused);
	free((char *)config->url);
	for (size_t i = 0; i < KV_ARRAY_LEN(config->launch.argv); i++)
		free((char *)config->launch.argv[i]);
	free(helpers);
}

static int helpers_close(void *backend)
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

static int helpers_new(const struct helpers_config *config,
		       struct helpers **ret_helpers)
{
	struct helpers *helpers = calloc(1, sizeof(*helpers));
	struct kv_launch *launch =
		helpers ? &helpers->config.helper.launch : NULL;
	struct epoll_event event = {.events = EPOLLIN};
	int r;

	if (!helpers)
		return -ENOMEM;
	TAILQ_INIT(&helpers->members);
	TAILQ_INIT(&helpers->waiting);
	helpers->config = *config;
	helpers->config.helper.url = strdup(config->helper.url);
	r = helpers->config.helper.url ? 0 : -ENOMEM;
	memset(launch->argv, 0, sizeof(launch->argv));
	for (size_t i = 0; config->helper.launch.argv[i]; i++) {
		launch->argv[i] = strdup(config->helper.launch.argv[i]);
		if (!launch->argv[i])
			r = -ENOMEM;
	}
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

/* Copy @config, and start the node's helper. */
static int helpers_open(const struct helpers_config *config, void **ret_backend,
			char **ret_why)
{
	struct helpers *helpers;
	int r;

	*ret_why = NULL;
	assert(config->uids == 1 || config->uids >= UIDS(config->max));
	r = helpers_new(config, &helpers);
	if (r < 0)
		return r;
	r = start(helpers, NODE, 0, &helpers->node);
	if (r == 0)
		r = kv_helper_await(helpers->node->helper, ret_why);
	if (r < 0)
		helpers_close(helpers);
	else
		*ret_backend = helpers;
	return r;
}

/* ---- URLs ---- */

struct words {
	char *text;	   /* a copy of the URL, cut */
	char *path, *rest; /* before and after the "?" */
	const char *program, *python;
	uint64_t first, last; /* uids */
	uint64_t landing, patience, helpers, idle;
};

static int refuse(char **ret_why, const char *why)
{
	return kv_why(ret_why, -EINVAL, "%s", why);
}

/* Read a decimal number, with @units followed by K, M or G. */
static int read_number(const char *text, bool units, uint64_t max,
		       uint64_t *ret_number)
{
	uint64_t n = 0, unit = 1;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	for (; *text >= '0' && *text <= '9'; text++) {
		n = n * 10 + (uint64_t)(*text - '0');
		if (n > max)
			return -ERANGE;
	}
	if (units && *text && strchr("KMG", *text))
		unit = 1ull << (*text == 'K'   ? 10
				: *text == 'M' ? 20
					       : 30),
		text++;
	if (*text || n > max / unit)
		return -EINVAL;
	*ret_number = n * unit;
	return 0;
}

/* N, or FIRST-LAST. */
static int read_uids(struct words *words, const char *value)
{
	char first[16];
	const size_t n = strcspn(value, "-");
	int r;

	if (n >= sizeof(first))
		return -EINVAL;
	snprintf(first, sizeof(first), "%.*s", (int)n, value);
	r = read_number(first, false, UINT32_MAX - 1, &words->first);
	words->last = words->first;
	if (r == 0 && value[n])
		r = read_number(value + n + 1, false, UINT32_MAX - 1,
				&words->last);
	return r == 0 && words->last < words->first ? -EINVAL : r;
}

/* Read an option of the daemon's.  The helper checks all others. */
static int read_option(struct words *words, const char *name, const char *value)
{
	if (strcmp(name, "uid") == 0)
		return read_uids(words, value);
	if (strcmp(name, "landing") == 0)
		return read_number(value, true, 1ull << 40, &words->landing);
	if (strcmp(name, "patience") == 0)
		return read_number(value, false, 86400, &words->patience);
	if (strcmp(name, "idle") == 0)
		return read_number(value, false, 86400, &words->idle);
	if (strcmp(name, "helpers") == 0)
		return read_number(value, false, HELPERS_MAX, &words->helpers);
	if (strcmp(name, "program") == 0)
		words->program = value;
	if (strcmp(name, "python") == 0)
		words->python = value;
	return 0;
}

static int read_words(struct words *words, const char *url, char **ret_why)
{
	char *save = NULL, *word, *value;

	*words = (struct words){.first = FIRST_UID,
				.last = LAST_UID,
				.landing = LANDING,
				.patience = PATIENCE_S,
				.helpers = HELPERS,
				.idle = IDLE_S};
	if (strlen(url) >= KV_HELPER_TEXT)
		return refuse(ret_why, strerror(ENAMETOOLONG));
	words->text = strdup(url);
	if (!words->text)
		return -ENOMEM;
	words->path = words->text;
	words->rest = strchr(words->text, '?');
	if (!words->rest)
		return 0;
	*words->rest++ = '\0';
	for (word = strtok_r(words->rest, "&", &save); word;
	     word = strtok_r(NULL, "&", &save)) {
		value = strchr(word, '=');
		if (!value)
			return refuse(ret_why, "after ? stands NAME=VALUE");
		*value++ = '\0';
		if (read_option(words, word, value) < 0)
			return refuse(ret_why,
				      "a number in it is out of range");
	}
	if (words->landing < KV_PAGE || words->patience == 0 ||
	    words->helpers == 0)
		return refuse(ret_why, "a number in it is out of range");
	return 0;
}

/* Find a program beside the daemon, where it is installed, or in the build tree. */
static int find_program(const char *name, char ret_path[4096])
{
	static const char *const places[] = {"", "../libexec/kvfs/",
					     "../connectors/remote/"};
	char own[3000], *slash;
	ssize_t n = readlink("/proc/self/exe", own, sizeof(own) - 1);

	if (n < 0)
		return -errno;
	own[n] = '\0';
	slash = strrchr(own, '/');
	if (!slash)
		return -ENOENT;
	slash[1] = '\0';
	for (size_t i = 0; i < KV_ARRAY_LEN(places); i++) {
		snprintf(ret_path, 4096, "%s%s%s", own, places[i], name);
		if (access(ret_path, F_OK) == 0)
			return 0;
	}
	return -ENOENT;
}

/* Return whether these user ids exist in our user namespace. */
static bool are_mapped(uint64_t first, uint64_t last)
{
	FILE *file = fopen("/proc/self/uid_map", "re");
	unsigned long long inside, outside, n;
	bool mapped = !file;

	while (file &&
	       fscanf(file, "%llu %llu %llu", &inside, &outside, &n) == 3)
		mapped |= first >= inside && last < inside + n;
	if (file)
		fclose(file);
	return mapped;
}

/* Check @words, and open the backend. */
static int begin(const struct words *words, const char *url, void **ret_backend,
		 char **ret_why)
{
	const uint64_t uids = words->last - words->first + 1;
	struct helpers_config config = {
		.helper = {.url = url,
			   .landing = kv_round_up(words->landing, KV_PAGE),
			   .hello_ns = HELLO_S * SECOND,
			   .patience_ns = words->patience * SECOND,
			   .start = kv_launch},
		.first_uid = (uint32_t)words->first,
		.uids = (uint32_t)uids,
		.max = (unsigned)words->helpers,
		.idle_ns = words->idle * SECOND,
	};
	size_t n = 0;

	if (words->program[0] != '/')
		return refuse(ret_why, "a program's path begins with /");
	if (words->python && words->python[0] != '/')
		return refuse(ret_why, "an interpreter's path begins with /");
	if (uids != 1 && uids < UIDS(words->helpers))
		return refuse(ret_why,
			      "uid= has too few users for so many helpers");
	if (geteuid() == 0 && !are_mapped(words->first, words->last))
		return refuse(ret_why,
			      "its users, 2000000000 to 2099999999 without "
			      "uid=, are none in this user namespace");
	if (words->python)
		config.helper.launch.argv[n++] = words->python;
	config.helper.launch.argv[n] = words->program;
	return helpers_open(&config, ret_backend, ret_why);
}

static int open_any(const char *url, void **ret_backend, char **ret_why)
{
	struct words words;
	int r;

	*ret_why = NULL;
	r = read_words(&words, url, ret_why);
	if (r == 0) {
		words.program = words.path;
		r = begin(&words, url, ret_backend, ret_why);
	}
	free(words.text);
	return r;
}

/* //HOST:PORT */
static bool is_master(const char *path)
{
	const char *colon = strrchr(path, ':');
	uint64_t port = 0;

	return strncmp(path, "//", 2) == 0 && colon && colon > path + 2 &&
	       read_number(colon + 1, false, 65535, &port) == 0 && port > 0;
}

static int open_mooncake(const char *url, void **ret_backend, char **ret_why)
{
	char program[4096] = "";
	struct words words;
	int r;

	*ret_why = NULL;
	r = read_words(&words, url, ret_why);
	if (r == 0 && !is_master(words.path))
		r = refuse(ret_why, "its master is //HOST:PORT");
	if (r == 0 && !words.program) {
		if (find_program("kvfs-remote-mooncake", program) < 0)
			r = refuse(ret_why,
				   "kvfs-remote-mooncake is not where kvfs "
				   "is, nor in ../libexec/kvfs");
		words.program = program;
	}
	if (r == 0) {
		if (!words.python)
			words.python = PYTHON;
		r = begin(&words, url, ret_backend, ret_why);
	}
	free(words.text);
	return r;
}

#define CALLS                                                              \
	.apart = true, .submit = helpers_submit, .cancel = helpers_cancel, \
	.fd = helpers_fd, .reap = helpers_reap, .tell = helpers_tell,      \
	.close = helpers_close

const struct kv_remote_driver kv_remote_helper = {
	.scheme = "helper", .open = open_any, CALLS};
const struct kv_remote_driver kv_remote_mooncake = {
	.scheme = "mooncake", .open = open_mooncake, CALLS};
