/* SPDX-License-Identifier: Apache-2.0 */
/*
 * storm.c - blocks that are requested all the time from a node that must fetch them.
 *
 *   storm MOUNT SPACE save BYTES N           save N blocks of BYTES, durably
 *   storm MOUNT SPACE keep BYTES N           save them in a space that is not shared
 *   storm MOUNT SPACE churn BYTES N SECONDS FROM
 *                                            save any of N blocks from FROM on,
 *                                            again and again, ignoring failures
 *   storm MOUNT SPACE get BYTES N SECONDS MS THREADS
 *                                            each thread acquires eight of N blocks
 *                                            at a time, at most a hundred times a
 *                                            second, within MS / 4 to MS ms
 *   storm MOUNT SPACE probe BYTES N SECONDS  hold N blocks of a space that is not
 *                                            shared; probe and lease them
 *   storm MOUNT SPACE pull BYTES N MANY      lease the first N once, MANY at a time,
 *                                            and print how long that took
 *   storm MOUNT SPACE keys BYTES N           print the blocks' names
 *
 * A block's bytes follow from its number, and are checked after each acquire.  Prints how
 * many blocks came, how many had wrong bytes, when acquires ended (time after
 * the deadline; negative: before the deadline), how late a thread that sleeps for 10 ms at
 * a time woke up, and how long probes took.  Exits 1 if a byte
 * was wrong, or a held block was missing.
 *
 * OWNS      its connection and threads.
 *
 * LOCKING   none: each thread has results of its own until it is joined.
 */
#include <stdio.h>

#include "common/kv.h"
#include "common/thread.h"
#include "kernels/kvfs.h"

#define BATCH 8u
#define THREADS_MAX 64u
#define SAMPLES (1u << 17) /* highest number of measurements of a thread */
#define MS INT64_C(1000000)
#define PACE_NS (10 * MS)
#define PROBE_PACE_NS MS
#define LEASE_EVERY 8u /* number of probes between two leases */
#define PULL_NS UINT64_C(60000000000)

struct samples {
	int32_t us[THREADS_MAX * SAMPLES];
	size_t n;
};

static struct samples ended, probed, slept;

static struct storm {
	kvfs_session *session;
	kvfs_space *space;
	uint64_t bytes, n, until_ns, ms, threads, from, many;
} storm;

struct worker {
	pthread_t thread;
	uint64_t random, asked, got, wrong;
	int32_t *us;
	size_t n;
};

static uint64_t mix(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
	return x ^ (x >> 31);
}

static kvfs_key key_of(uint64_t i)
{
	kvfs_key key = {.len = 16};
	const uint64_t halves[2] = {mix(2 * i), mix(2 * i + 1)};

	memcpy(key.bytes, halves, sizeof(halves));
	return key;
}

static void keys_from(uint64_t first, kvfs_key keys[BATCH])
{
	for (uint64_t i = 0; i < BATCH; i++)
		keys[i] = key_of(first + i);
}

static void fill(uint64_t *words, size_t bytes, uint64_t i)
{
	for (size_t k = 0; k < bytes / 8; k++)
		words[k] = mix(i << 32 ^ k);
}

static bool is_right(const uint64_t *words, uint64_t bytes, uint64_t i)
{
	if (bytes != storm.bytes)
		return false;
	for (size_t k = 0; k < bytes / 8; k++)
		if (words[k] != mix(i << 32 ^ k))
			return false;
	return true;
}

static void rest_until(uint64_t ns)
{
	const uint64_t now = kv_now_ns();

	if (now < ns)
		usleep((useconds_t)((ns - now) / 1000));
}

static int open_space(const char *name, bool share)
{
	char layout[200];

	snprintf(layout, sizeof(layout),
		 "{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":"
		 "[%llu]}],\"keys\":\"engine\"%s}",
		 (unsigned long long)storm.bytes,
		 share ? ",\"share\":true" : "");
	return kvfs_space_open(storm.session, name, layout, KVFS_CREATE | 0755,
			       &storm.space);
}

/* ---- save ---- */

static int save_batch(kvfs_pool *pool, uint8_t *memory, uint64_t first,
		      unsigned flags, enum kvfs_stage stage)
{
	kvfs_key keys[BATCH];
	kvfs_meta meta[BATCH] = {0};
	int64_t pages[BATCH];
	kvfs_opts opts = KVFS_OPTS_INIT;
	kvfs_xfer *xfer;
	int r;

	keys_from(first, keys);
	for (uint64_t i = 0; i < BATCH; i++) {
		pages[i] = (int64_t)i;
		fill((void *)(memory + i * storm.bytes), storm.bytes,
		     first + i);
	}
	opts.flags = flags;
	r = kvfs_save(pool, storm.space, keys, meta, BATCH, pages, &opts,
		      &xfer);
	if (r < 0)
		return r;
	r = kvfs_xfer_wait(xfer, stage, KVFS_FOREVER);
	for (size_t i = 0; i < BATCH && r >= 0; i++)
		r = kvfs_xfer_status(xfer, i);
	kvfs_xfer_free(xfer);
	return r;
}

static int pool_over(uint8_t *memory, kvfs_pool **ret_pool)
{
	kvfs_view view = {.tensor = "k",
			  .base = memory,
			  .block_stride = storm.bytes,
			  .bytes = storm.bytes,
			  .count = 1};
	kvfs_pool_desc desc = KVFS_POOL_DESC_INIT;

	desc.device = "host";
	desc.space = storm.space;
	desc.views = &view;
	desc.n_views = 1;
	desc.pages = BATCH;
	desc.pages_per_block = 1;
	return kvfs_pool_register(storm.session, &desc, ret_pool);
}

/* On a very busy machine the library takes the daemon for hung: retry. */
static int save_patiently(kvfs_pool *pool, uint8_t *memory, uint64_t first,
			  enum kvfs_stage stage)
{
	int r = -ENOTCONN;

	for (int i = 0; i < 100 && r == -ENOTCONN; i++) {
		usleep(i ? 100000 : 0);
		r = save_batch(pool, memory, first, KVFS_MUST, stage);
	}
	return r;
}

static int save_all(enum kvfs_stage last)
{
	uint8_t *memory = malloc(BATCH * storm.bytes);
	kvfs_pool *pool;
	int r = memory ? pool_over(memory, &pool) : -ENOMEM;

	for (uint64_t i = 0; i + BATCH <= storm.n && r >= 0; i += BATCH)
		r = save_patiently(pool, memory, i,
				   i + 2 * BATCH > storm.n ? last
							   : KVFS_SEALED);
	free(memory);
	return r;
}

static int save(void)
{
	return save_all(KVFS_DURABLE);
}

static int churn(void)
{
	uint8_t *memory = malloc(BATCH * storm.bytes);
	uint64_t random = (uint64_t)getpid(), saved = 0;
	kvfs_pool *pool;
	int r = memory ? pool_over(memory, &pool) : -ENOMEM;

	while (r == 0 && kv_now_ns() < storm.until_ns) {
		const uint64_t begun = kv_now_ns();

		random = mix(random);
		saved += save_batch(pool, memory,
				    storm.from + random % (storm.n - BATCH), 0,
				    KVFS_SEALED) >= 0;
		rest_until(begun + 5 * PACE_NS);
	}
	printf("saved %llu\n", (unsigned long long)saved * BATCH);
	free(memory);
	return r;
}

/* ---- get ---- */

static void check(struct worker *w, kvfs_lease *lease, uint64_t first,
		  uint64_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint64_t bytes;
		const void *data = kvfs_lease_data(lease, i, &bytes);

		if (data) {
			w->got++;
			w->wrong += !is_right(data, bytes, first + i);
		}
	}
}

static int want(struct worker *w, uint64_t first, int64_t deadline)
{
	const uint64_t begun = kv_now_ns();
	kvfs_key keys[BATCH];
	kvfs_opts opts = KVFS_OPTS_INIT;
	kvfs_lease *lease;
	int64_t over;
	int r;

	keys_from(first, keys);
	opts.deadline = (uint64_t)deadline;
	r = kvfs_acquire(
		&(kvfs_query){.space = storm.space, .keys = keys, .n = BATCH},
		1, &opts, &lease);
	if (r < 0)
		return r;
	kvfs_lease_wait(lease, KVFS_FOREVER);
	over = (int64_t)(kv_now_ns() - begun) - deadline;
	w->asked += BATCH;
	if (w->us && w->n < SAMPLES)
		w->us[w->n++] = (int32_t)(over / 1000);
	check(w, lease, first, BATCH);
	kvfs_release(lease);
	return 0;
}

static void *get_all(void *arg)
{
	struct worker *w = arg;

	while (kv_now_ns() < storm.until_ns) {
		const uint64_t begun = kv_now_ns();
		const uint64_t least = storm.ms / 4;

		w->random = mix(w->random);
		want(w, w->random % (storm.n - BATCH),
		     (int64_t)(least + w->random % (storm.ms - least + 1)) *
			     MS);
		rest_until(begun + PACE_NS);
	}
	return NULL;
}

/* Measure how late the machine itself wakes threads. */
static void *sleep_all(void *arg)
{
	(void)arg;
	while (kv_now_ns() < storm.until_ns && slept.n < SAMPLES) {
		const uint64_t until = kv_now_ns() + PACE_NS;

		rest_until(until);
		slept.us[slept.n++] = (int32_t)((kv_now_ns() - until) / 1000);
	}
	return NULL;
}

static int ascending(const void *a, const void *b)
{
	const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

	return x < y ? -1 : x > y;
}

static double part(const struct samples *s, double part)
{
	return s->n ? s->us[(size_t)((double)(s->n - 1) * part)] / 1e3 : 0;
}

static unsigned over(const struct samples *s, int64_t ns)
{
	unsigned n = 0;

	for (size_t i = 0; i < s->n; i++)
		n += s->us[i] > ns / 1000;
	return n;
}

static void report(const struct worker *all)
{
	qsort(ended.us, ended.n, sizeof(*ended.us), ascending);
	qsort(slept.us, slept.n, sizeof(*slept.us), ascending);
	printf("acquires %zu hits %llu misses %llu wrong %llu end_ms p50 %.1f "
	       "p99 %.1f p99.9 %.1f max %.1f over50 %u over250 %u machine_late "
	       "%.1f\n",
	       ended.n, (unsigned long long)all->got,
	       (unsigned long long)(all->asked - all->got),
	       (unsigned long long)all->wrong, part(&ended, .5),
	       part(&ended, .99), part(&ended, .999), part(&ended, 1),
	       over(&ended, 50 * MS), over(&ended, 250 * MS), part(&slept, 1));
}

static int get(void)
{
	static struct worker workers[THREADS_MAX];
	struct worker all = {0};
	pthread_t sleeper;
	size_t n = 0;
	int r;

	if (storm.n <= BATCH || storm.threads > THREADS_MAX)
		return -EINVAL;
	r = kv_thread_start(&sleeper, "sleeper", sleep_all, NULL);
	if (r < 0)
		return r;
	for (; n < storm.threads && r == 0; n++) {
		workers[n].random = mix((uint64_t)getpid() << 8 ^ n);
		workers[n].us = &ended.us[n * SAMPLES];
		r = kv_thread_start(&workers[n].thread, "storm", get_all,
				    &workers[n]);
	}
	for (size_t i = 0; i < n; i++) {
		const struct worker *w = &workers[i];

		pthread_join(w->thread, NULL);
		memmove(&ended.us[ended.n], w->us, w->n * sizeof(*w->us));
		ended.n += w->n;
		all.asked += w->asked;
		all.got += w->got;
		all.wrong += w->wrong;
	}
	pthread_join(sleeper, NULL);
	report(&all);
	return r < 0 ? r : all.wrong > 0;
}

/* ---- pull ---- */

static int pull_some(uint64_t first, uint64_t n, kvfs_lease **ret_lease)
{
	kvfs_key *keys = calloc(n, sizeof(*keys));
	kvfs_opts opts = KVFS_OPTS_INIT;
	int r = keys ? 0 : -ENOMEM;

	for (uint64_t i = 0; r == 0 && i < n; i++)
		keys[i] = key_of(first + i);
	opts.deadline = PULL_NS;
	if (r == 0)
		r = kvfs_acquire(&(kvfs_query){.space = storm.space,
					       .keys = keys,
					       .n = n},
				 1, &opts, ret_lease);
	if (r == 0 && kvfs_lease_wait(*ret_lease, KVFS_FOREVER) != (long)n) {
		kvfs_release(*ret_lease);
		r = -ENOENT;
	}
	free(keys);
	return r;
}

/* Lease all blocks once, and check their bytes after the time was taken. */
static int pull(void)
{
	const uint64_t begun = kv_now_ns(), many = storm.many;
	const uint64_t batches = many ? storm.n / many : 0;
	kvfs_lease **leases = calloc(batches + 1, sizeof(*leases));
	uint64_t pulled = 0, ns;
	struct worker w = {0};
	int r = leases ? 0 : -ENOMEM;

	while (pulled < batches && r == 0) {
		r = pull_some(pulled * many, many, &leases[pulled]);
		pulled += r == 0;
	}
	ns = kv_now_ns() - begun;
	for (uint64_t i = 0; i < pulled; i++) {
		check(&w, leases[i], i * many, many);
		kvfs_release(leases[i]);
	}
	free(leases);
	printf("pulled %llu wrong %llu seconds %.4f\n",
	       (unsigned long long)w.got, (unsigned long long)w.wrong,
	       (double)ns / 1e9);
	return r < 0 ? r : w.wrong > 0;
}

/* ---- probe ---- */

/* Return the number of blocks that are absent. */
static unsigned probe(uint64_t first)
{
	const uint64_t begun = kv_now_ns();
	uint8_t states[BATCH];
	kvfs_key keys[BATCH];
	unsigned lost = 0;

	keys_from(first, keys);
	kvfs_probe(
		&(kvfs_query){.space = storm.space, .keys = keys, .n = BATCH},
		1, states);
	if (probed.n < KV_ARRAY_LEN(probed.us))
		probed.us[probed.n++] = (int32_t)(kv_now_ns() - begun);
	for (size_t i = 0; i < BATCH; i++)
		lost += states[i] != KVFS_DRAM;
	return lost;
}

/* Saved blocks may be evicted before they are leased. */
static int hold(kvfs_lease **ret_lease)
{
	kvfs_key *keys = calloc(storm.n, sizeof(*keys));
	const kvfs_query query = {
		.space = storm.space, .keys = keys, .n = storm.n};
	int r = keys ? -EAGAIN : -ENOMEM;

	for (uint64_t i = 0; keys && i < storm.n; i++)
		keys[i] = key_of(i);
	for (int i = 0; i < 50 && r == -EAGAIN; i++) {
		r = save_all(KVFS_SEALED);
		if (r >= 0)
			r = kvfs_acquire(&query, 1, NULL, ret_lease);
		if (r < 0)
			break;
		if (kvfs_lease_wait(*ret_lease, KVFS_FOREVER) == (long)storm.n)
			break;
		kvfs_release(*ret_lease);
		r = -EAGAIN;
	}
	free(keys);
	return r;
}

static int probe_all(void)
{
	struct worker w = {.random = (uint64_t)getpid()};
	kvfs_lease *held;
	uint64_t lost = 0;
	int r = hold(&held);

	if (r < 0)
		return r;
	for (unsigned i = 0; kv_now_ns() < storm.until_ns; i++) {
		const uint64_t begun = kv_now_ns();

		w.random = mix(w.random);
		lost += probe(w.random % (storm.n - BATCH));
		if (i % LEASE_EVERY == 0)
			want(&w, w.random % (storm.n - BATCH), 1000 * MS);
		rest_until(begun + PROBE_PACE_NS);
	}
	kvfs_release(held);
	qsort(probed.us, probed.n, sizeof(*probed.us), ascending);
	lost += w.asked - w.got;
	printf("probes %zu us p50 %.0f p99 %.0f leased %llu lost %llu wrong "
	       "%llu\n",
	       probed.n, part(&probed, .5), part(&probed, .99),
	       (unsigned long long)w.got, (unsigned long long)lost,
	       (unsigned long long)w.wrong);
	return lost + w.wrong > 0;
}

static int print_keys(void)
{
	for (uint64_t i = 0; i < storm.n; i++) {
		const kvfs_key key = key_of(i);
		char name[65];

		kvfs_key_name(&key, name);
		puts(name);
	}
	return 0;
}

int main(int argc, char **argv)
{
	static const struct {
		const char *verb;
		int (*run)(void);
	} verbs[] = {
		{"save", save},	      {"keep", save},	    {"churn", churn},
		{"get", get},	      {"probe", probe_all}, {"pull", pull},
		{"keys", print_keys},
	};
	uint64_t numbers[5] = {0, 0, 0, 1, 1};
	int r = -EINVAL;

	for (int i = 0; i < 5 && 4 + i < argc; i++)
		numbers[i] = strtoull(argv[4 + i], NULL, 10);
	storm = (struct storm){.bytes = numbers[0],
			       .n = numbers[1],
			       .until_ns = kv_now_ns() +
					   numbers[2] * 1000 * (uint64_t)MS,
			       .many = numbers[2],
			       .ms = numbers[3],
			       .from = numbers[3],
			       .threads = numbers[4]};
	if (argc >= 6)
		r = kvfs_open(argv[1], &storm.session);
	for (int i = 0; r == 0 && i < 300 && !kvfs_connected(storm.session);
	     i++)
		usleep(100000);
	if (r == 0)
		r = open_space(argv[2], strcmp(argv[3], "probe") != 0 &&
						strcmp(argv[3], "keep") != 0);
	for (size_t i = 0; i < KV_ARRAY_LEN(verbs) && r == 0; i++)
		if (strcmp(argv[3], verbs[i].verb) == 0) {
			r = verbs[i].run();
			break;
		}
	if (r < 0)
		printf("%s\n", strerror(-r));
	return r != 0;
}
