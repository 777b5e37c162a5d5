/* SPDX-License-Identifier: Apache-2.0 */
/*
 * storm.c - blocks wanted all the time, of a node that must have them brought.
 *
 *   storm MOUNT SPACE save BYTES N           save N blocks of BYTES, durably
 *   storm MOUNT SPACE get N SECONDS MS       want eight of them at a time, in MS
 *                                            milliseconds; and probe in between
 *
 * Says how many came, how many had other bytes, how much later than their
 * deadline acquires ended, and what probes took.  Exits 1 if a byte was wrong.
 *
 * OWNS      its connection.
 *
 * LOCKING   none: one thread.
 */
#include <stdio.h>

#include "common/kv.h"
#include "kernels/kvfs.h"

#define BATCH 8u
#define SAMPLES (1u << 20)

static struct {
	uint64_t asked, got, wrong;
	uint32_t late_us[SAMPLES], probe_us[SAMPLES];
	size_t n, n_probes;
} seen;

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

static void fill(uint64_t *words, size_t bytes, uint64_t i)
{
	for (size_t k = 0; k < bytes / 8; k++)
		words[k] = mix(i << 32 ^ k);
}

static bool is_right(const uint64_t *words, uint64_t bytes, uint64_t i)
{
	for (size_t k = 0; k < bytes / 8; k++)
		if (words[k] != mix(i << 32 ^ k))
			return false;
	return true;
}

/* ---- save ---- */

static int save_batch(kvfs_pool *pool, kvfs_space *space, uint8_t *memory,
		      size_t bytes, uint64_t first)
{
	kvfs_key keys[BATCH];
	kvfs_meta meta[BATCH] = {0};
	int64_t pages[BATCH];
	kvfs_opts opts = KVFS_OPTS_INIT;
	kvfs_xfer *xfer;
	int r;

	for (uint64_t i = 0; i < BATCH; i++) {
		keys[i] = key_of(first + i);
		pages[i] = (int64_t)i;
		fill((void *)(memory + i * bytes), bytes, first + i);
	}
	opts.flags = KVFS_MUST;
	r = kvfs_save(pool, space, keys, meta, BATCH, pages, &opts, &xfer);
	if (r < 0)
		return r;
	r = kvfs_xfer_wait(xfer, KVFS_DURABLE, KVFS_FOREVER);
	for (size_t i = 0; i < BATCH && r >= 0; i++)
		r = kvfs_xfer_status(xfer, i);
	kvfs_xfer_free(xfer);
	return r;
}

static int save(kvfs_session *session, const char *name, size_t bytes,
		uint64_t n)
{
	char layout[200];
	uint8_t *memory = malloc(BATCH * bytes);
	kvfs_view view = {.tensor = "k",
			  .base = memory,
			  .block_stride = bytes,
			  .bytes = bytes,
			  .count = 1};
	kvfs_pool_desc desc = KVFS_POOL_DESC_INIT;
	kvfs_space *space;
	kvfs_pool *pool;
	int r;

	snprintf(layout, sizeof(layout),
		 "{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\",\"shape\":"
		 "[%zu]}],\"share\":true}",
		 bytes);
	r = kvfs_space_open(session, name, layout, KVFS_CREATE, &space);
	if (r < 0)
		return r;
	desc.device = "host";
	desc.space = space;
	desc.views = &view;
	desc.n_views = 1;
	desc.pages = BATCH;
	desc.pages_per_block = 1;
	r = kvfs_pool_register(session, &desc, &pool);
	for (uint64_t i = 0; i + BATCH <= n && r >= 0; i += BATCH)
		r = save_batch(pool, space, memory, bytes, i);
	free(memory);
	return r;
}

/* ---- get ---- */

static void check(kvfs_lease *lease, uint64_t first)
{
	for (size_t i = 0; i < BATCH; i++) {
		uint64_t bytes;
		const void *data = kvfs_lease_data(lease, i, &bytes);

		if (data) {
			seen.got++;
			seen.wrong += !is_right(data, bytes, first + i);
		}
	}
}

static int want(kvfs_space *space, uint64_t first, uint64_t deadline)
{
	kvfs_key keys[BATCH];
	kvfs_opts opts = KVFS_OPTS_INIT;
	kvfs_lease *lease;
	uint64_t begun, took;
	int r;

	for (uint64_t i = 0; i < BATCH; i++)
		keys[i] = key_of(first + i);
	opts.deadline = deadline;
	begun = kv_now_ns();
	r = kvfs_acquire(
		&(kvfs_query){.space = space, .keys = keys, .n = BATCH}, 1,
		&opts, &lease);
	if (r < 0)
		return r;
	kvfs_lease_wait(lease, KVFS_FOREVER);
	took = kv_now_ns() - begun;
	seen.asked += BATCH;
	if (seen.n < SAMPLES)
		seen.late_us[seen.n++] =
			took > deadline ? (uint32_t)((took - deadline) / 1000)
					: 0;
	check(lease, first);
	kvfs_release(lease);
	return 0;
}

static void probe(kvfs_space *space, uint64_t first)
{
	kvfs_key keys[BATCH];
	uint8_t states[BATCH];
	uint64_t begun;

	for (uint64_t i = 0; i < BATCH; i++)
		keys[i] = key_of(first + i);
	begun = kv_now_ns();
	kvfs_probe(&(kvfs_query){.space = space, .keys = keys, .n = BATCH}, 1,
		   states);
	if (seen.n_probes < SAMPLES)
		seen.probe_us[seen.n_probes++] =
			(uint32_t)((kv_now_ns() - begun) / 1000);
}

static int ascending(const void *a, const void *b)
{
	const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static double part(uint32_t *all, size_t n, double part)
{
	return n ? all[(size_t)((double)(n - 1) * part)] / 1000.0 : 0;
}

static void report(void)
{
	qsort(seen.late_us, seen.n, sizeof(*seen.late_us), ascending);
	qsort(seen.probe_us, seen.n_probes, sizeof(*seen.probe_us), ascending);
	printf("acquires %zu asked %llu got %llu wrong %llu late_ms p50 %.1f "
	       "p99 %.1f p99.9 %.1f max %.1f probe_ms p50 %.3f p99 %.3f\n",
	       seen.n, (unsigned long long)seen.asked,
	       (unsigned long long)seen.got, (unsigned long long)seen.wrong,
	       part(seen.late_us, seen.n, .5), part(seen.late_us, seen.n, .99),
	       part(seen.late_us, seen.n, .999), part(seen.late_us, seen.n, 1),
	       part(seen.probe_us, seen.n_probes, .5),
	       part(seen.probe_us, seen.n_probes, .99));
}

static int get(kvfs_session *session, const char *name, uint64_t n,
	       uint64_t seconds, uint64_t ms)
{
	const uint64_t until = kv_now_ns() + seconds * 1000000000;
	uint64_t random = (uint64_t)getpid();
	kvfs_space *space;
	int r = n > BATCH ? kvfs_space_open(session, name, NULL, 0, &space)
			  : -EINVAL;

	while (r == 0 && kv_now_ns() < until) {
		random = mix(random);
		r = want(space, random % (n - BATCH), ms * 1000000);
		probe(space, random % (n - BATCH));
	}
	report();
	return r < 0 ? r : seen.wrong > 0;
}

int main(int argc, char **argv)
{
	kvfs_session *session;
	uint64_t numbers[3] = {0};
	int r = -EINVAL;

	for (int i = 0; i < 3 && 4 + i < argc; i++)
		numbers[i] = strtoull(argv[4 + i], NULL, 10);
	if (argc >= 6)
		r = kvfs_open(argv[1], &session);
	if (r == 0 && strcmp(argv[3], "save") == 0)
		r = save(session, argv[2], numbers[0], numbers[1]);
	else if (r == 0)
		r = get(session, argv[2], numbers[0], numbers[1], numbers[2]);
	if (r < 0)
		printf("%s\n", strerror(-r));
	return r != 0;
}
