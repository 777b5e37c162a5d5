/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_remote_fetch.c - fetch chains of blocks from a backend that fails, refuses,
 * hangs and lies: retries, windows, budgets, deadlines, and circuit breakers.
 *
 * OWNS      a small store for each test, and the backend in memory.
 *
 * LOCKING   none of its own.
 */
#include "cache/remote/tier.h"
#include "tests/cache/fake_backend.h"
#include "tests/cache/small_store.h"

#define CHAIN 128u
#define USERS 24u

struct node {
	/* must be the first field: its address is cast to this struct */
	struct small s;
	unsigned users;
	struct kv_space *spaces[USERS]; /* the space of each user */
};

static char *dir_url = "dir:/nowhere";

static void open_node(struct node *node)
{
	char name[16];

	small_must_open(&node->s);
	node->spaces[0] = node->s.space;
	for (unsigned i = 1; i < node->users; i++) {
		snprintf(name, sizeof(name), "t%u", i);
		assert_int_equal(kv_space_create(node->s.cache, name, i, i,
						 0755, &node->spaces[i]),
				 0);
	}
	for (unsigned i = 0; i < node->users; i++)
		assert_int_equal(kv_space_set_shared(node->s.cache,
						     node->spaces[i], true),
				 0);
}

static int set_up(void **state)
{
	struct node *node = calloc(1, sizeof(*node));

	memset(&fake, 0, sizeof(fake));
	small_new(&node->s);
	node->s.config.remote = (struct kv_remote_config){
		.url = dir_url, .write = KV_WRITEBACK_NONE, .threshold = 8};
	node->s.config.dram = 64 << 20;
	node->users = 2;
	*state = node;
	return 0;
}

static int tear_down(void **state)
{
	struct node *node = *state;

	if (node->s.cache) {
		for (unsigned i = 0; i < node->users; i++)
			kv_space_put(node->spaces[i]);
		assert_int_equal(small_close(&node->s), 0);
	}
	fake_forget();
	small_remove(&node->s);
	free(node->s.why);
	free(node);
	return 0;
}

/* ---- blocks and their objects ---- */

/* Make the safetensors file of block @n; the caller frees it. */
static uint8_t *file_of(unsigned n, size_t payload, size_t *ret_bytes)
{
	char header[200];
	int len = snprintf(header, sizeof(header),
			   "{\"__metadata__\":{\"position\":\"%u\"},\"k\":"
			   "{\"dtype\":\"U8\",\"shape\":[%zu],"
			   "\"data_offsets\":[0,%zu]}}",
			   n, payload, payload);
	uint8_t *file = malloc(8 + (size_t)len + payload);

	memset(file, 0, 8);
	file[0] = (uint8_t)len;
	memcpy(file + 8, header, (size_t)len);
	small_content(file + 8 + len, payload, n);
	*ret_bytes = 8 + (size_t)len + payload;
	return file;
}

static void name_of(struct node *node, unsigned user, unsigned n, char *name)
{
	const struct kv_key key = small_key(n);
	struct kv_remote_job job = {.uid = user};

	kv_remote_name(node->s.cache->remote, &job, node->spaces[user], &key);
	assert_string_not_equal(job.op.name, "");
	strcpy(name, job.op.name);
}

/* Store the objects of blocks @from to @to, as if another node had put them. */
static void provide(struct node *node, unsigned user, unsigned from,
		    unsigned to, size_t payload)
{
	for (unsigned n = from; n < to; n++) {
		char name[KV_OBJECT_NAME_MAX + 1];
		struct kv_object_entry entry = {.key = small_key(n)};
		uint64_t head_bytes, rest;
		uint8_t *head, *object, *file;
		size_t bytes;

		file = file_of(n, payload, &bytes);
		entry.length = bytes;
		entry.digest = kv_digest_of(file, bytes);
		assert_int_equal(kv_object_head(file, bytes, &entry, &head,
						&head_bytes, &rest),
				 0);
		object = malloc(head_bytes + bytes - rest);
		memcpy(object, head, head_bytes);
		memcpy(object + head_bytes, file + rest, bytes - rest);
		name_of(node, user, n, name);
		pthread_mutex_lock(&fake.lock);
		fake_store(name, object, head_bytes + bytes - rest);
		pthread_mutex_unlock(&fake.lock);
		free(object);
		free(head);
		free(file);
	}
}

static void withdraw(struct node *node, unsigned user, unsigned n)
{
	char name[KV_OBJECT_NAME_MAX + 1];
	struct fake_object *object;

	name_of(node, user, n, name);
	pthread_mutex_lock(&fake.lock);
	object = fake_find(name);
	free(object->data);
	*object = fake.objects[--fake.n];
	pthread_mutex_unlock(&fake.lock);
}

/* Make an acquire of blocks @from to @to of the space of @user for the user @uid.  Its
 * callback sets *@done. */
static struct kv_acquire *new_acquire(struct node *node, unsigned user,
				      uint32_t uid, unsigned from, unsigned to,
				      _Atomic bool *done)
{
	const unsigned n = to - from;
	struct kv_acquire *a = calloc(1, sizeof(*a) + n * sizeof(*a->wants));

	a->space = node->spaces[user];
	a->n = n;
	a->remote = true;
	a->uid = uid;
	a->done = small_settled;
	a->arg = done;
	for (unsigned i = 0; i < n; i++)
		a->wants[i].key = small_key(from + i);
	return a;
}

static void free_acquire(struct node *node, struct kv_acquire *a)
{
	kv_acquire_release(node->s.cache, a);
	free(a);
}

/* Acquire these blocks and check every byte.  Return the number of blocks before the
 * first miss.  *@ret_all (may be NULL): number of all blocks found. */
static unsigned acquire_as(struct node *node, unsigned user, uint32_t uid,
			   unsigned from, unsigned to, unsigned *ret_all)
{
	unsigned prefix = 0, all = 0;
	_Atomic bool done = false;
	struct kv_acquire *a = new_acquire(node, user, uid, from, to, &done);

	if (kv_acquire_submit(node->s.cache, a))
		while (!done)
			usleep(100);
	else
		kv_acquire_touch(node->s.cache, a);
	for (unsigned i = 0; i < a->n; i++) {
		const struct kv_want *w = &a->wants[i];
		uint8_t *file;
		size_t bytes;

		if (w->status)
			continue;
		file = file_of(from + i, w->length - w->payload, &bytes);
		assert_int_equal(bytes, w->length);
		assert_memory_equal(kv_slot_file(w->slot), file, bytes);
		free(file);
		prefix += prefix == i;
		all++;
	}
	free_acquire(node, a);
	if (ret_all)
		*ret_all = all;
	return prefix;
}

static unsigned acquire(struct node *node, unsigned user, unsigned from,
			unsigned to, unsigned *ret_all)
{
	return acquire_as(node, user, user, from, to, ret_all);
}

static struct kv_remote_stats stats_of(struct node *node)
{
	struct kv_remote_stats stats;

	assert_true(kv_remote_stats(node->s.cache, &stats));
	return stats;
}

/* Reset the backend's counters and log. */
static void reset(void)
{
	pthread_mutex_lock(&fake.lock);
	memset(fake.sent, 0, sizeof(fake.sent));
	fake.logged = fake.replies = 0;
	fake.memory_max = 0;
	pthread_mutex_unlock(&fake.lock);
}

static void set_rule(void (*rule)(const struct kv_remote_op *,
				  struct fake_plan *))
{
	pthread_mutex_lock(&fake.lock);
	fake.rule = rule;
	pthread_mutex_unlock(&fake.lock);
}

static uint64_t ms_since(uint64_t begin_ns)
{
	return (kv_now_ns() - begin_ns) / FAKE_MS;
}

/* Return whether @name is an object of @user's space. */
static bool is_of(const char *name, unsigned user)
{
	return name[0] == (char)('0' + user) && name[1] == '/';
}

/* ---- windows of GETs in flight ---- */

static void slowly(const struct kv_remote_op *op, struct fake_plan *plan)
{
	(void)op;
	plan->ms = 5;
}

static void test_the_window_of_a_chain_doubles(void **state)
{
	struct node *node = *state;
	unsigned most = 0, first = 0;

	open_node(node);
	provide(node, 0, 0, CHAIN, 1000);
	set_rule(slowly);
	reset();
	assert_int_equal(acquire(node, 0, 0, CHAIN, NULL), CHAIN);
	assert_int_equal(sent(KV_REMOTE_GET), CHAIN);
	assert_int_equal(sent(KV_REMOTE_HEAD), 0);
	pthread_mutex_lock(&fake.lock);
	for (unsigned i = 0; i < fake.logged; i++) {
		/* The window of GETs in flight grows by one with each reply. */
		assert_true(fake.log[i].out <= 8 + fake.log[i].replies);
		first += fake.log[i].replies == 0;
		most = KV_MAX(most, fake.log[i].out);
	}
	pthread_mutex_unlock(&fake.lock);
	assert_int_equal(first, 8);
	assert_true(most >= 24 && most <= 42);
}

static void test_a_chain_ends_at_the_first_miss(void **state)
{
	struct node *node = *state;
	unsigned all;

	open_node(node);
	provide(node, 0, 0, CHAIN, 1000);
	withdraw(node, 0, 20);
	set_rule(slowly);
	assert_int_equal(acquire(node, 0, 0, CHAIN, &all), 20);
	/* Only GETs that were in flight together with the GET of the missing
	 * block were sent. */
	assert_true(sent(KV_REMOTE_GET) < 60);
	usleep(100000);
	assert_true(all < sent(KV_REMOTE_GET));
	/* The daemon caches a miss for a second, then sends another GET. */
	reset();
	assert_int_equal(acquire(node, 0, 20, 21, NULL), 0);
	assert_int_equal(sent(KV_REMOTE_GET), 0);
	provide(node, 0, 20, 21, 1000);
	usleep(1100000);
	assert_int_equal(acquire(node, 0, 0, CHAIN, NULL), CHAIN);
}

static char slow[KV_OBJECT_NAME_MAX + 1];

static void one_is_slow(const struct kv_remote_op *op, struct fake_plan *plan)
{
	plan->ms = strcmp(op->name, slow) == 0 ? 200 : 50;
}

struct reader {
	struct node *node;
	unsigned from, came;
	uint64_t end_ns;
};

static void *read_21(void *arg)
{
	struct reader *r = arg;

	acquire(r->node, 0, r->from, r->from + 21, &r->came);
	r->end_ns = kv_now_ns();
	return NULL;
}

/* A chain that ends at a missing block takes nothing from another user, who has asked for
 * the blocks behind it, and does not wait for these. */
static void test_a_miss_ends_no_chain_of_another_user(void **state)
{
	struct node *node = *state;
	struct reader reader = {.node = node};
	pthread_t thread;
	uint64_t end_ns;

	node->s.config.remote.threshold = 1;
	open_node(node);
	/* Longer than objects are guessed to be: the first GET has no memory. */
	provide(node, 0, 1, 21, 100000);
	provide(node, 0, 101, 121, 100000);
	withdraw(node, 0, 105);
	set_rule(one_is_slow);
	for (reader.from = 0; reader.from <= 100; reader.from += 100) {
		const bool whole = reader.from == 0;

		reset();
		name_of(node, 0, reader.from, slow);
		pthread_create(&thread, NULL, read_21, &reader);
		usleep(50000);
		assert_int_equal(acquire_as(node, 0, 1, reader.from + 1,
					    reader.from + 21, NULL),
				 whole ? 20 : 4);
		end_ns = kv_now_ns();
		pthread_join(thread, NULL);
		assert_int_equal(reader.came, 0);
		assert_true(reader.end_ns < end_ns);
		/* Nothing is requested behind the end of both chains. */
		assert_true(whole || sent(KV_REMOTE_GET) < 20);
	}
}

static void test_too_few_blocks_are_not_worth_it(void **state)
{
	struct node *node = *state;

	open_node(node);
	provide(node, 0, 0, 8, 1000);
	assert_int_equal(acquire(node, 0, 0, 7, NULL), 0);
	assert_int_equal(sent(KV_REMOTE_GET), 0);
	assert_int_equal(acquire(node, 0, 0, 8, NULL), 8);
}

/* An acquire whose last blocks are not worth a request is settled at once: its
 * callback must not run as well. */
static void test_what_is_settled_at_once_is_not_told_again(void **state)
{
	struct node *node = *state;
	_Atomic bool done = false;
	struct kv_acquire *a;

	open_node(node);
	provide(node, 0, 0, 8, 1000);
	assert_int_equal(acquire(node, 0, 0, 8, NULL), 8);
	a = new_acquire(node, 0, 0, 0, 10, &done);
	a->part = 1;
	assert_int_equal(kv_acquire_submit(node->s.cache, a), 0);
	assert_int_equal(a->wants[7].status, 0);
	assert_int_equal(a->wants[9].status, -ENOENT);
	assert_false(done);
	free_acquire(node, a);
}

static void test_without_an_order_every_block_is_asked_for(void **state)
{
	static const char layout[] =
		"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":"
		"[1000]}],\"reuse\":\"last\",\"seed\":\"0000000000000001\"}";
	struct node *node = *state;
	unsigned all;

	open_node(node);
	assert_int_equal(kv_space_set_layout(node->s.cache, node->spaces[0], 0,
					     layout, strlen(layout)),
			 0);
	provide(node, 0, 0, CHAIN, 1000);
	withdraw(node, 0, 0);
	withdraw(node, 0, 77);
	assert_int_equal(acquire(node, 0, 0, CHAIN, &all), 0);
	assert_int_equal(all, CHAIN - 2);
	assert_int_equal(sent(KV_REMOTE_GET), CHAIN);
}

static void test_a_layout_gives_objects_other_names(void **state)
{
	static const char layout[] =
		"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":"
		"[1000]}],\"seed\":\"0000000000000001\"}";
	char before[KV_OBJECT_NAME_MAX + 1], after[KV_OBJECT_NAME_MAX + 1];
	struct node *node = *state;

	open_node(node);
	name_of(node, 0, 1, before);
	assert_int_equal(kv_space_set_layout(node->s.cache, node->spaces[0], 0,
					     layout, strlen(layout)),
			 0);
	name_of(node, 0, 1, after);
	assert_string_not_equal(before, after);
	provide(node, 0, 0, 8, 1000);
	assert_int_equal(acquire(node, 0, 0, 8, NULL), 8);
	/* An owner's objects are in the owner's folder. */
	name_of(node, 1, 1, before);
	assert_true(is_of(after, 0) && is_of(before, 1));
}

/* ---- GETs that fail, and retries ---- */

static void fail_one_in_100(const struct kv_remote_op *op,
			    struct fake_plan *plan)
{
	plan->status = op->name[0] && rand() % 100 == 0 ? -EIO : 0;
	plan->ms = 1;
}

static void test_one_failure_in_100_costs_nothing(void **state)
{
	struct node *node = *state;
	unsigned came = 0, chains = 40;

	open_node(node);
	srand(3);
	for (unsigned i = 0; i < chains; i++)
		provide(node, 0, i * CHAIN, (i + 1) * CHAIN, 1000);
	set_rule(fail_one_in_100);
	for (unsigned i = 0; i < chains; i++)
		came += acquire(node, 0, i * CHAIN, (i + 1) * CHAIN, NULL);
	assert_true(came >= chains * CHAIN * 99 / 100);
	assert_true(stats_of(node).retried > 20);
}

static char failing[KV_OBJECT_NAME_MAX + 1];
static _Atomic unsigned failures_left;
static _Atomic int failure;
static _Atomic uint64_t asks_for_ms;

static void fail_some(const struct kv_remote_op *op, struct fake_plan *plan)
{
	if (failures_left == 0 || strcmp(op->name, failing) != 0)
		return;
	failures_left--;
	plan->status = failure;
	plan->retry_after_ms = asks_for_ms;
}

static void test_a_failed_get_is_sent_three_times(void **state)
{
	static const int failed[] = {-EIO, -ECONNRESET, -ETIMEDOUT, -EBADMSG};
	struct node *node = *state;
	uint64_t begin;

	open_node(node);
	asks_for_ms = 0;
	provide(node, 0, 0, 800, 1000);
	set_rule(fail_some);
	for (unsigned i = 0; i < KV_ARRAY_LEN(failed); i++) {
		const struct kv_remote_stats before = stats_of(node);

		name_of(node, 0, i * 16 + 3, failing);
		failure = failed[i];
		failures_left = 2;
		begin = kv_now_ns();
		assert_int_equal(acquire(node, 0, i * 16, (i + 1) * 16, NULL),
				 16);
		assert_true(ms_since(begin) >= 180);
		assert_int_equal(stats_of(node).retried - before.retried, 2);
		assert_int_equal(stats_of(node).failed, before.failed);
	}
	name_of(node, 0, 103, failing);
	failure = -EIO;
	failures_left = 3;
	assert_int_equal(acquire(node, 0, 100, 116, NULL), 3);
	assert_int_equal(failures_left, 0);
	assert_int_equal(stats_of(node).failed, 1);
	assert_string_equal(stats_of(node).failure, "get: the rule said -5");
	/* A refusal (-EACCES) is an answer: no retry. */
	name_of(node, 0, 203, failing);
	failure = -EACCES;
	failures_left = 2;
	assert_int_equal(acquire(node, 0, 200, 216, NULL), 3);
	assert_int_equal(failures_left, 1);
	assert_int_equal(stats_of(node).refused, 1);
	/* For a few seconds, no GET is sent for a refused object. */
	failures_left = 0;
	usleep(1500000);
	assert_int_equal(acquire(node, 0, 200, 216, NULL), 3);
	name_of(node, 0, 303, failing);
	failure = -ENOENT;
	failures_left = 2;
	assert_int_equal(acquire(node, 0, 300, 316, NULL), 3);
	assert_int_equal(failures_left, 1);
}

static void test_nothing_is_retried_for_nobody(void **state)
{
	struct node *node = *state;
	_Atomic bool done = false;
	struct kv_acquire *a;

	open_node(node);
	provide(node, 0, 0, 8, 1000);
	name_of(node, 0, 3, failing);
	failure = -EIO;
	failures_left = 3;
	asks_for_ms = 0;
	set_rule(fail_some);
	a = new_acquire(node, 0, 0, 0, 8, &done);
	assert_true(kv_acquire_submit(node->s.cache, a) > 0);
	kv_acquire_cancel(node->s.cache, a, -ETIMEDOUT);
	assert_true(done);
	free_acquire(node, a);
	usleep(600000);
	/* The GETs of the other blocks have continued, so the next acquire
	 * hits. */
	assert_true(failures_left >= 1);
	failures_left = 0;
	reset();
	assert_int_equal(acquire(node, 0, 0, 3, NULL), 3);
	assert_int_equal(sent(KV_REMOTE_GET), 0);
}

static void test_retry_after_holds_one_tenant(void **state)
{
	struct node *node = *state;
	uint64_t begin = kv_now_ns(), held = 0;

	open_node(node);
	provide(node, 0, 0, 300, 1000);
	provide(node, 1, 0, 300, 1000);
	name_of(node, 0, 5, failing);
	failure = -EIO;
	failures_left = 1;
	asks_for_ms = 700;
	set_rule(fail_some);
	reset();
	assert_int_equal(acquire(node, 0, 0, 64, NULL), 64);
	assert_true(ms_since(begin) >= 700);
	pthread_mutex_lock(&fake.lock);
	for (unsigned i = 0; i < fake.logged; i++)
		if (strcmp(fake.log[i].name, failing) == 0 && !held)
			held = fake.log[i].ns;
		else if (held && fake.log[i].ns > held + 20 * FAKE_MS)
			assert_true(fake.log[i].ns >= held + 700 * FAKE_MS);
	pthread_mutex_unlock(&fake.lock);
	/* If a server's Retry-After is above a second, acquires miss instead of
	 * waiting. */
	name_of(node, 0, 100, failing);
	failures_left = 1;
	asks_for_ms = 3000;
	begin = kv_now_ns();
	acquire(node, 0, 100, 164, NULL);
	assert_int_equal(acquire(node, 1, 0, 64, NULL), 64);
	assert_int_equal(acquire(node, 0, 200, 264, NULL), 0);
	assert_int_equal(stats_of(node).tenants_closed, 0);
	while (ms_since(begin) < 3200)
		usleep(10000);
	assert_int_equal(acquire(node, 0, 200, 264, NULL), 64);
}

/* ---- circuit breakers ---- */

static _Atomic unsigned ill;
static _Atomic bool all_ill;

static void one_is_ill(const struct kv_remote_op *op, struct fake_plan *plan)
{
	if (all_ill || is_of(op->name, ill))
		plan->status = failure;
}

/* The real stderr, while print_to_file() has replaced it by a file; printed()
 * returns the file's text and restores stderr. */
static int before;

static void print_to_file(void)
{
	FILE *file = tmpfile();

	fflush(stderr);
	before = dup(2);
	dup2(fileno(file), 2);
	fclose(file);
}

static void printed(char *text, size_t room)
{
	ssize_t n = pread(2, text, room - 1, 0);

	text[n > 0 ? n : 0] = '\0';
	dup2(before, 2);
	close(before);
	if (*text)
		print_message("%s", text);
}

/* Wait until the file has @word.  The breaker changes its state first, and then
 * prints. */
static void wait_for_text(const char *word)
{
	const uint64_t begin = kv_now_ns();
	char text[4096];
	ssize_t n;

	do {
		usleep(1000);
		n = pread(2, text, sizeof(text) - 1, 0);
		text[n > 0 ? n : 0] = '\0';
	} while (!strstr(text, word) && ms_since(begin) < 10000);
	assert_non_null(strstr(text, word));
}

static unsigned count(const char *text, const char *word)
{
	unsigned n = 0;

	for (; (text = strstr(text, word)); text++)
		n++;
	return n;
}

static void wait_until_back(struct node *node, unsigned user)
{
	const uint64_t begin = kv_now_ns();

	while (!kv_remote_is_open(node->s.cache->remote, user) &&
	       ms_since(begin) < 10000)
		usleep(1000);
	assert_true(kv_remote_is_open(node->s.cache->remote, user));
}

static void wait_until_shut(struct node *node)
{
	const uint64_t begin = kv_now_ns();

	while (stats_of(node).open && ms_since(begin) < 10000)
		usleep(1000);
	assert_false(stats_of(node).open);
}

static void wait_until_closed(struct node *node, unsigned tenants)
{
	const uint64_t begin = kv_now_ns();

	while (stats_of(node).tenants_closed != tenants &&
	       ms_since(begin) < 10000)
		usleep(1000);
	assert_int_equal(stats_of(node).tenants_closed, tenants);
}

/* Acquire @n short chains whose GETs all fail. */
static void fail_often(struct node *node, unsigned user, unsigned from,
		       unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		acquire(node, user, from + 100 * i, from + 100 * i + 8, NULL);
}

static void test_one_tenant_is_given_up_alone(void **state)
{
	static const int statuses[] = {-EACCES, -EIO};
	struct node *node = *state;
	char text[4096];

	open_node(node);
	for (unsigned i = 0; i < KV_ARRAY_LEN(statuses); i++) {
		const unsigned from = 10000 * i;
		unsigned were;

		provide(node, 0, from, from + 8, 1000);
		provide(node, 1, from, from + CHAIN, 1000);
		print_to_file();
		failure = statuses[i];
		ill = 0;
		set_rule(one_is_ill);
		fail_often(node, 0, from + 1000, 3);
		wait_until_closed(node, 1);
		assert_true(stats_of(node).open);
		assert_false(kv_remote_is_open(node->s.cache->remote, 0));
		/* Acquires of user 0 miss without a GET; those of user 1
		 * succeed. */
		were = sent(KV_REMOTE_GET);
		assert_int_equal(acquire(node, 0, from, from + 8, NULL), 0);
		assert_int_equal(sent(KV_REMOTE_GET), were);
		assert_int_equal(acquire(node, 1, from, from + CHAIN, NULL),
				 CHAIN);
		/* The open breaker sends a probe (HEAD) about once a second. */
		were = sent(KV_REMOTE_HEAD);
		usleep(2500000);
		assert_true(sent(KV_REMOTE_HEAD) > were &&
			    sent(KV_REMOTE_HEAD) <= were + 3);
		/* An object that is refused need not be the only one: the
		 * tenant's next objects are requested. */
		if (failure == -EACCES) {
			wait_until_closed(node, 0);
			fail_often(node, 0, from + 2000, 3);
		}
		wait_until_closed(node, 1);
		set_rule(NULL);
		wait_until_back(node, 0);
		assert_int_equal(stats_of(node).tenants_closed, 0);
		assert_int_equal(acquire(node, 0, from, from + 8, NULL), 8);
		wait_for_text("it is back for tenant 0");
		printed(text, sizeof(text));
		assert_int_equal(count(text, "given up for tenant 0"), 1);
		assert_int_equal(count(text, "the rule said"), 1);
		assert_int_equal(count(text, "it is back for tenant 0"), 1);
		assert_int_equal(count(text, "kvfs: "), 2);
	}
}

static void test_a_backend_that_fails_is_given_up(void **state)
{
	struct node *node = *state;
	char text[4096];
	uint64_t begin;

	open_node(node);
	provide(node, 1, 0, 64, 1000);
	for (unsigned i = 0; i < 2; i++) {
		print_to_file();
		failure = -ECONNREFUSED;
		all_ill = true;
		set_rule(one_is_ill);
		fail_often(node, 0, 1000 + 5000 * i, 2);
		wait_until_shut(node);
		assert_int_equal(stats_of(node).tenants_closed, 0);
		begin = kv_now_ns();
		assert_int_equal(acquire(node, 1, 32 * i, 32 * i + 32, NULL),
				 0);
		assert_true(ms_since(begin) < 1000);
		usleep(1500000);
		all_ill = false;
		set_rule(NULL);
		wait_until_back(node, 1);
		assert_true(stats_of(node).open);
		assert_int_equal(acquire(node, 1, 32 * i, 32 * i + 32, NULL),
				 32);
		wait_for_text("it is back\n");
		printed(text, sizeof(text));
		assert_int_equal(count(text, "given up"), 1);
		assert_int_equal(count(text, "it is back\n"), 1);
		assert_int_equal(count(text, "kvfs: "), 2);
	}
}

/* ---- forgets ---- */

/* How DELETEs end, and after how many milliseconds. */
static _Atomic int delete_status;
static _Atomic uint64_t delete_ms;

static void answer_deletes(const struct kv_remote_op *op,
			   struct fake_plan *plan)
{
	if (op->call != KV_REMOTE_DELETE)
		return;
	plan->status = delete_status;
	plan->ms = delete_ms;
}

static void over(struct kv_forget *forget)
{
	atomic_store((_Atomic bool *)forget->arg, true);
}

/* Begin to forget blocks 0 to @n of user 0, or with 0 the whole space. */
static struct kv_forget *begin_forget(struct node *node, unsigned n,
				      uint64_t ms, _Atomic bool *done)
{
	struct kv_forget *forget =
		calloc(1, sizeof(*forget) + n * sizeof(forget->keys[0]));

	*done = false;
	forget->done = over;
	forget->arg = done;
	forget->space = node->spaces[0];
	forget->n = n;
	for (unsigned i = 0; i < n; i++)
		forget->keys[i] = small_key(i);
	assert_int_equal(kv_forget_submit(node->s.cache, forget, ms * FAKE_MS),
			 0);
	return forget;
}

/* Forget 16 blocks within @ms, and cancel that after 50 ms if @cancels.  The tier must stay
 * open.  Return the status. */
static int forget_16(struct node *node, uint64_t ms, bool cancels)
{
	_Atomic bool done;
	struct kv_forget *forget = begin_forget(node, 16, ms, &done);
	int status;

	usleep(50000);
	if (cancels)
		kv_forget_cancel(node->s.cache, forget);
	while (!done)
		usleep(1000);
	status = forget->status;
	assert_int_equal(forget->failed, 16);
	free(forget);
	assert_true(kv_remote_is_open(node->s.cache->remote, 0));
	usleep(300000);
	assert_true(kv_remote_is_open(node->s.cache->remote, 0));
	return status;
}

static void test_a_forget_that_ends_early_closes_nothing(void **state)
{
	struct node *node = *state;

	open_node(node);
	provide(node, 0, 0, 16, 1000);
	set_rule(answer_deletes);
	delete_status = 0;
	delete_ms = 200;
	assert_int_equal(forget_16(node, 10000, true), -ETIMEDOUT);
	assert_int_equal(forget_16(node, 50, false), -ETIMEDOUT);
}

static void test_refused_deletes_close_nothing(void **state)
{
	struct node *node = *state;

	open_node(node);
	set_rule(answer_deletes);
	delete_status = -EACCES;
	delete_ms = 0;
	assert_int_equal(forget_16(node, 10000, false), -EACCES);
}

static void read_slowly(const struct kv_remote_op *op, struct fake_plan *plan)
{
	plan->body_ms = op->call == KV_REMOTE_GET ? 500 : 0;
	plan->ms = op->call == KV_REMOTE_DELETE ? 200 : 0;
}

static void clear(struct node *node)
{
	struct kv_clear *clear;

	assert_int_equal(kv_clear_begin(node->s.cache, node->spaces[0], &clear),
			 0);
	while (kv_clear_some(node->s.cache, clear) == 1)
		;
	kv_clear_end(clear);
}

/* A block that was requested before its space was cleared (@order 0 and 1) or forgotten
 * (0 and 2) does not come, even if it arrives between the two (1). */
static void forget_on_its_way(struct node *node, unsigned order)
{
	const struct kv_key key = small_key(0);
	_Atomic bool done, came = false;
	struct kv_acquire *a = new_acquire(node, 0, 0, 0, 1, &came);
	struct kv_forget *forget;
	struct kv_block_info info;

	if (order == 2)
		clear(node);
	assert_int_equal(kv_acquire_submit(node->s.cache, a), 1);
	usleep(100000);
	if (order != 2)
		clear(node);
	while (order == 1 && !came)
		usleep(1000);
	forget = begin_forget(node, 0, 10000, &done);
	/* Nothing is requested while it goes on. */
	assert_int_equal(acquire(node, 0, 1, 2, NULL), 0);
	while (!done || !came)
		usleep(1000);
	assert_int_equal(forget->status, 0);
	assert_int_equal(a->wants[0].status, -ENOENT);
	assert_int_equal(
		kv_block_stat_key(node->s.cache, node->spaces[0], &key, &info),
		-ENOENT);
	free_acquire(node, a);
	free(forget);
}

static void test_what_was_on_its_way_is_forgotten(void **state)
{
	struct node *node = *state;

	node->s.config.remote.threshold = 1;
	open_node(node);
	provide(node, 0, 0, 2, 1000);
	set_rule(read_slowly);
	for (unsigned order = 0; order < 3; order++)
		forget_on_its_way(node, order);
	/* Objects that are put later are fetched. */
	assert_int_equal(acquire(node, 0, 0, 2, NULL), 2);
}

/* A block that was requested for the former owner of its space does not come. */
static void test_what_was_on_its_way_is_not_for_another_owner(void **state)
{
	const struct kv_key key = small_key(0);
	struct node *node = *state;
	_Atomic bool came = false;
	struct kv_block_info info;
	struct kv_acquire *a;

	node->s.config.remote.threshold = 1;
	open_node(node);
	provide(node, 0, 0, 1, 1000);
	set_rule(read_slowly);
	a = new_acquire(node, 0, 0, 0, 1, &came);
	assert_int_equal(kv_acquire_submit(node->s.cache, a), 1);
	usleep(100000);
	assert_int_equal(
		kv_space_chown(node->s.cache, node->spaces[0], 7, 7, 0755), 0);
	while (!came)
		usleep(1000);
	assert_int_equal(a->wants[0].status, -ENOENT);
	assert_int_equal(
		kv_block_stat_key(node->s.cache, node->spaces[0], &key, &info),
		-ENOENT);
	free_acquire(node, a);
}

/* ---- deadlines ---- */

static _Atomic bool stuck;

static void hang(const struct kv_remote_op *op, struct fake_plan *plan)
{
	if (is_of(op->name, 0)) {
		plan->ms = FAKE_NEVER;
		plan->stuck = stuck;
	}
}

static void test_who_waits_for_silence_is_let_go(void **state)
{
	struct node *node = *state;
	uint64_t begin;

	open_node(node);
	provide(node, 0, 0, 64, 1000);
	provide(node, 1, 0, CHAIN, 1000);
	for (unsigned i = 0; i < 2; i++) {
		stuck = i == 1;
		set_rule(hang);
		begin = kv_now_ns();
		assert_int_equal(acquire(node, 0, 32 * i, 32 * i + 32, NULL),
				 0);
		assert_true(ms_since(begin) >= 1900 && ms_since(begin) < 8000);
		/* Eight late GETs open the breaker of user 0 alone. */
		wait_until_closed(node, 1);
		assert_int_equal(acquire(node, 1, 64 * i, 64 * i + 64, NULL),
				 64);
		set_rule(NULL);
		if (stuck)
			fake_release();
		wait_until_back(node, 0);
		/* For a second no GET is sent for a key whose GET failed. */
		usleep(1000000);
		assert_int_equal(acquire(node, 0, 32 * i, 32 * i + 32, NULL),
				 32);
	}
	assert_true(stats_of(node).late >= 16);
}

static void dribble(const struct kv_remote_op *op, struct fake_plan *plan)
{
	(void)op;
	plan->body_ms = 3000;
}

static void test_who_answers_has_more_time(void **state)
{
	struct node *node = *state;

	open_node(node);
	provide(node, 0, 0, 8, 1000);
	set_rule(dribble);
	assert_int_equal(acquire(node, 0, 0, 8, NULL), 8);
}

/* ---- DRAM for objects that are being fetched ---- */

static void a_little_later(const struct kv_remote_op *op,
			   struct fake_plan *plan)
{
	(void)op;
	plan->body_ms = 20;
}

static void test_memory_is_bounded(void **state)
{
	struct node *node = *state;
	uint64_t most = 0;

	/* remote objects may take 2 of these 32 MiB */
	node->s.config.dram = 32 << 20;
	open_node(node);
	provide(node, 0, 0, 60, 300000);
	set_rule(a_little_later);
	assert_int_equal(acquire(node, 0, 0, 60, NULL), 60);
	most = fake.memory_max;
	assert_true(most > 600000 && most <= 2 << 20);
	assert_true(sent(KV_REMOTE_GET) < 200);
	assert_int_equal(stats_of(node).lent_bytes, 0);
}

/* Gets that wait for their turns are charged to the user of the acquire, also after it has
 * ended: without memory, blocks are misses, for this user only. */
static void test_gets_that_wait_are_charged(void **state)
{
	struct node *node = *state;
	struct kv_accounts *accounts;
	struct kv_acquire *a;
	struct kv_account *account;
	_Atomic bool done = false;
	unsigned asked = 0;
	uint64_t begin;

	open_node(node);
	provide(node, 1, 0, 8, 1000);
	accounts = kv_cache_accounts(node->s.cache);
	kv_accounts_set(accounts, true, 1 << 20);
	account = kv_account_get(accounts, 0);
	stuck = false;
	set_rule(hang);
	a = new_acquire(node, 0, 0, 0, 64, &done);
	for (unsigned i = 0; i < 100; i++) {
		for (unsigned k = 0; k < 64; k++)
			a->wants[k].key = small_key(64 * i + k);
		asked += kv_acquire_submit(node->s.cache, a) > 0;
		kv_acquire_cancel(node->s.cache, a, -ETIMEDOUT);
		kv_acquire_release(node->s.cache, a);
	}
	free(a);
	assert_true(asked > 2 && asked < 50);
	assert_true(kv_account_held(account, KV_FINITE_MEMORY) > 1 << 18);
	assert_int_equal(acquire(node, 1, 0, 8, NULL), 8);
	begin = kv_now_ns();
	while (kv_account_held(account, KV_FINITE_MEMORY) > 0 &&
	       ms_since(begin) < 30000)
		usleep(10000);
	assert_int_equal(kv_account_held(account, KV_FINITE_MEMORY), 0);
	kv_account_put(account);
}

static void test_only_the_first_gets_of_a_space_are_too_short(void **state)
{
	struct node *node = *state;

	node->s.config.dram = 32 << 20;
	open_node(node);
	provide(node, 0, 0, 64, 300000);
	assert_int_equal(acquire(node, 0, 0, 8, NULL), 8);
	assert_true(sent(KV_REMOTE_GET) > 8);
	reset();
	assert_int_equal(acquire(node, 0, 8, 64, NULL), 56);
	assert_int_equal(sent(KV_REMOTE_GET), 56);
}

static void test_one_object_may_exceed_the_budget(void **state)
{
	struct node *node = *state;

	node->s.config.dram = 32 << 20;
	open_node(node);
	provide(node, 0, 0, 4, 3 << 20);
	set_rule(a_little_later);
	assert_int_equal(acquire(node, 0, 0, 8, NULL), 4);
	assert_true(fake.memory_max > 3 << 20 && fake.memory_max < 6 << 20);
}

static void stall(const struct kv_remote_op *op, struct fake_plan *plan)
{
	plan->stalls = is_of(op->name, 0);
}

static _Atomic bool greedy;

/* Acquire other blocks for user 0 until `greedy` is false. */
static void *want_more(void *arg)
{
	for (unsigned i = 0; greedy; i = (i + 8) % 64)
		acquire(arg, 0, i, i + 8, NULL);
	return NULL;
}

static void test_bodies_that_stall_leave_memory_to_others(void **state)
{
	struct node *node = *state;
	const uint64_t begin = kv_now_ns();
	unsigned came = 0, late = 0;
	uint64_t given_up_ms;
	pthread_t thread;

	open_node(node); /* remote objects may take 4 MiB of DRAM */
	provide(node, 0, 0, 64, 1000000);
	provide(node, 1, 0, 64, 1000000);
	set_rule(stall);
	greedy = true;
	assert_int_equal(pthread_create(&thread, NULL, want_more, node), 0);
	usleep(200000);
	for (unsigned i = 0; i < 64; i += 8) {
		const uint64_t asked = kv_now_ns();

		came += acquire(node, 1, i, i + 8, NULL);
		late += ms_since(asked) > 1000;
		usleep(500000);
	}
	while (stats_of(node).tenants_closed == 0 && ms_since(begin) < 30000)
		usleep(10000);
	given_up_ms = ms_since(begin);
	greedy = false;
	pthread_join(thread, NULL);
	assert_int_equal(came, 64);
	assert_int_equal(late, 0);
	/* A GET fails after two seconds without a byte; eight failures open the
	 * breaker: after five seconds on an idle machine. */
	assert_true(given_up_ms < 30000);
	assert_true(fake.memory_max <= 4 << 20);
}

/* The bodies of the objects of users 2 and up take a minute. */
static void trickle(const struct kv_remote_op *op, struct fake_plan *plan)
{
	plan->body_ms = is_of(op->name, 0) || is_of(op->name, 1) ? 0 : 60000;
}

struct asker {
	struct node *node;
	unsigned user;
	pthread_t thread;
};

static void *ask_again(void *arg)
{
	struct asker *asker = arg;

	while (greedy)
		acquire(asker->node, asker->user, 0, 8, NULL);
	return NULL;
}

static void test_tenants_whose_bodies_trickle_leave_memory(void **state)
{
	struct node *node = *state;
	struct asker askers[USERS];
	uint64_t begin;

	/* Objects of 1 MB: all users together may have 16 in flight. */
	node->users = USERS;
	open_node(node);
	for (unsigned user = 1; user < USERS; user++)
		provide(node, user, 0, user == 1 ? 16 : 8, 1000000);
	set_rule(trickle);
	assert_int_equal(acquire(node, 1, 0, 8, NULL), 8);
	greedy = true;
	for (unsigned i = 2; i < USERS; i++) {
		askers[i] = (struct asker){.node = node, .user = i};
		pthread_create(&askers[i].thread, NULL, ask_again, &askers[i]);
	}
	usleep(500000);
	begin = kv_now_ns();
	assert_int_equal(acquire(node, 1, 8, 16, NULL), 8);
	assert_true(ms_since(begin) < 1500);
	greedy = false;
	set_rule(NULL);
	for (unsigned i = 2; i < USERS; i++)
		pthread_join(askers[i].thread, NULL);
}

static _Atomic uint64_t told_length;

static void tell_length(const struct kv_remote_op *op, struct fake_plan *plan)
{
	if (strcmp(op->name, failing) == 0)
		plan->length = told_length;
}

static void test_what_is_too_long_is_not_read(void **state)
{
	struct node *node = *state;

	open_node(node);
	provide(node, 0, 0, 16, 1000);
	name_of(node, 0, 8, failing);
	told_length = (8 << 20) + 5000;
	set_rule(tell_length);
	assert_int_equal(acquire(node, 0, 0, 16, NULL), 8);
	assert_true(fake.memory_max < 1 << 20);
	assert_int_equal(stats_of(node).failed, 0);
	reset();
	usleep(1500000);
	assert_int_equal(acquire(node, 0, 8, 16, NULL), 0);
	assert_true(sent(KV_REMOTE_GET) <= 7);
}

/* ---- objects with wrong bytes ---- */

static void damage(const struct kv_remote_op *op, struct fake_plan *plan)
{
	(void)op;
	plan->damaged = rand() % 20 == 0;
}

static void test_damaged_objects_are_never_blocks(void **state)
{
	struct node *node = *state;
	unsigned came = 0, all;

	open_node(node);
	srand(4);
	set_rule(damage);
	for (unsigned i = 0; i < 30; i++) {
		provide(node, 0, i * CHAIN, (i + 1) * CHAIN, 200);
		acquire(node, 0, i * CHAIN, (i + 1) * CHAIN, &all);
		came += all;
	}
	assert_true(came > CHAIN);
	assert_true(stats_of(node).damaged >= 25);
	assert_int_equal(stats_of(node).failed, 0);
}

static void test_an_object_of_another_key_is_no_block(void **state)
{
	char here[KV_OBJECT_NAME_MAX + 1], there[KV_OBJECT_NAME_MAX + 1];
	struct node *node = *state;
	const struct fake_object *object;
	struct kv_key key = small_key(3);
	uint64_t hash;

	open_node(node);
	provide(node, 0, 0, 16, 1000);
	name_of(node, 0, 3, here);
	name_of(node, 0, 4, there);
	object = fake_find(there);
	fake_store(here, object->data, object->bytes);
	assert_int_equal(acquire(node, 0, 0, 16, NULL), 3);
	assert_int_equal(stats_of(node).damaged, 1);
	hash = kv_key_hash(node->s.cache, node->spaces[0], key.b);
	kv_lock(node->s.cache);
	assert_true(kv_fetch_is_damaged_locked(node->s.cache->remote, hash));
	kv_unlock(node->s.cache);
}

/* ---- a backend that fails when the store is mounted ---- */

static void not_there(const struct kv_remote_op *op, struct fake_plan *plan)
{
	plan->status = !op->name[0] ? -EIO : 0;
}

static void silent(const struct kv_remote_op *op, struct fake_plan *plan)
{
	(void)op;
	plan->ms = FAKE_NEVER;
}

static void test_a_missing_backend_fails_the_mount(void **state)
{
	struct node *node = *state;
	uint64_t begin;

	fake.rule = not_there;
	assert_int_equal(small_open(&node->s), -EIO);
	assert_string_equal(node->s.why,
			    "remote=dir:/nowhere: the rule said -5");
	fake.rule = silent;
	begin = kv_now_ns();
	assert_int_equal(small_open(&node->s), -ETIMEDOUT);
	assert_true(ms_since(begin) >= 2900 && ms_since(begin) < 4500);
}

static void test_an_optional_backend_may_come_later(void **state)
{
	struct node *node = *state;
	char text[4096];

	fake.rule = not_there;
	node->s.config.remote.optional = true;
	open_node(node);
	assert_false(stats_of(node).open);
	provide(node, 0, 0, 16, 1000);
	assert_int_equal(acquire(node, 0, 0, 16, NULL), 0);
	print_to_file();
	set_rule(NULL);
	wait_until_back(node, 0);
	wait_for_text("it is back\n");
	printed(text, sizeof(text));
	assert_int_equal(count(text, "it is back\n"), 1);
	assert_int_equal(acquire(node, 0, 0, 16, NULL), 16);
}

/* The unmount does not wait for operations in flight, whether they end or
 * hang. */
static void test_the_end_waits_for_nobody(void **state)
{
	struct node *node = *state;
	_Atomic bool done = false;
	struct kv_acquire *a;
	uint64_t begin;

	open_node(node);
	provide(node, 0, 0, 64, 1000);
	stuck = true;
	set_rule(hang);
	a = new_acquire(node, 0, 0, 0, 64, &done);
	assert_true(kv_acquire_submit(node->s.cache, a) > 0);
	while (sent(KV_REMOTE_GET) == 0)
		usleep(1000);
	kv_acquire_cancel(node->s.cache, a, -ETIMEDOUT);
	free_acquire(node, a);
	begin = kv_now_ns();
	for (unsigned i = 0; i < USERS; i++)
		kv_space_put(node->spaces[i]);
	assert_int_equal(small_close(&node->s), 0);
	assert_true(ms_since(begin) < 3000);
}

#define ON(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON(test_the_window_of_a_chain_doubles),
		ON(test_a_chain_ends_at_the_first_miss),
		ON(test_a_miss_ends_no_chain_of_another_user),
		ON(test_too_few_blocks_are_not_worth_it),
		ON(test_what_is_settled_at_once_is_not_told_again),
		ON(test_without_an_order_every_block_is_asked_for),
		ON(test_a_layout_gives_objects_other_names),
		ON(test_one_failure_in_100_costs_nothing),
		ON(test_a_failed_get_is_sent_three_times),
		ON(test_nothing_is_retried_for_nobody),
		ON(test_retry_after_holds_one_tenant),
		ON(test_one_tenant_is_given_up_alone),
		ON(test_a_backend_that_fails_is_given_up),
		ON(test_a_forget_that_ends_early_closes_nothing),
		ON(test_refused_deletes_close_nothing),
		ON(test_what_was_on_its_way_is_forgotten),
		ON(test_what_was_on_its_way_is_not_for_another_owner),
		ON(test_who_waits_for_silence_is_let_go),
		ON(test_who_answers_has_more_time),
		ON(test_memory_is_bounded),
		ON(test_gets_that_wait_are_charged),
		ON(test_only_the_first_gets_of_a_space_are_too_short),
		ON(test_one_object_may_exceed_the_budget),
		ON(test_bodies_that_stall_leave_memory_to_others),
		ON(test_tenants_whose_bodies_trickle_leave_memory),
		ON(test_what_is_too_long_is_not_read),
		ON(test_damaged_objects_are_never_blocks),
		ON(test_an_object_of_another_key_is_no_block),
		ON(test_a_missing_backend_fails_the_mount),
		ON(test_an_optional_backend_may_come_later),
		ON(test_the_end_waits_for_nobody),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
