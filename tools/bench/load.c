/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - loads.  From the arena to a pool, against memcpy between the same
 * addresses; a lease of blocks and their pointers, without a copy, against
 * memcpy; from SSD to the arena, verified, against fio's reads on the same
 * filesystem; and of a long context, from a snapshot to other pages.
 *
 * OWNS      the list of pieces that memcpy copies; the file that fio reads; a
 *           pool over rig->spare for the long context.
 *
 * INVARIANTS
 *   (1) Load and memcpy copy KV_BENCH_GROUP blocks at a time.  If there are
 *       several groups, memcpy's is half-way round from the load's, so that
 *       neither finds its bytes in the processor's cache because of the other.
 *
 * LOCKING   none.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/kv.h"
#include "tools/bench/bench.h"

#define ROUNDS 7
#define ROUNDS_QUICK 5
#define LEASES 10 /* for each memcpy, which takes a thousand times as long */

/* ---- from DRAM to a pool ---- */

struct shape {
	const char *name;
	kvfs_pool *pool;
	size_t pieces; /* of a block */
	double goal;
};

/* List the pieces that the library finds in the pool's views. */
static struct kv_bench_piece *list_pieces(struct kv_bench_rig *rig,
					  const struct shape *shape,
					  kvfs_lease *lease)
{
	size_t blocks = rig->size->blocks, n = shape->pieces, block, i;
	struct kv_bench_piece *list = calloc(blocks * n, sizeof(*list));
	size_t bytes = kv_bench_payload(rig->size) / n;
	char *pages = rig->pages.base;
	const char *data;

	for (block = 0; list && block < blocks; block++) {
		data = kvfs_lease_data(lease, block, NULL);
		for (i = 0; i < n; i++)
			list[block * n + i] = (struct kv_bench_piece){
				pages + (i * blocks + block) * bytes,
				data + i * bytes, bytes};
	}
	return list;
}

static int load_group(const struct shape *shape, kvfs_lease *lease,
		      size_t group, uint64_t *ret_ns)
{
	kvfs_opts opts = {.size = sizeof(opts),
			  .first = group * KV_BENCH_GROUP};
	int64_t pages[KV_BENCH_GROUP];
	kvfs_xfer *xfer;
	uint64_t begin;
	size_t i;
	long r;

	for (i = 0; i < KV_BENCH_GROUP; i++)
		pages[i] = (int64_t)(opts.first + i);
	begin = kv_bench_now();
	r = kvfs_load(shape->pool, lease, KV_BENCH_GROUP, pages, &opts, &xfer);
	if (r < 0)
		return (int)r;
	r = kvfs_xfer_wait(xfer, KVFS_COPIED, KVFS_FOREVER);
	*ret_ns = kv_bench_now() - begin;
	kvfs_xfer_free(xfer);
	return r == KV_BENCH_GROUP ? 0 : -EIO;
}

/* Load all blocks once, to warm up, and compare them with the saved bytes. */
static int load_and_verify(struct kv_bench_rig *rig, const struct shape *shape,
			   kvfs_lease *lease,
			   const struct kv_bench_piece *pieces)
{
	size_t group, i;
	uint64_t ns;
	int r;

	memset(rig->pages.base, 0xff, rig->pages.bytes);
	for (group = 0; group < rig->size->blocks / KV_BENCH_GROUP; group++) {
		r = load_group(shape, lease, group, &ns);
		if (r < 0)
			return r;
	}
	for (i = 0; i < rig->size->blocks * shape->pieces; i++)
		if (memcmp(pieces[i].dst, pieces[i].src, pieces[i].bytes) != 0)
			return -EBADMSG;
	return kv_bench_rig_verify(rig, lease);
}

static int measure_shape(struct kv_bench_rig *rig, const struct shape *shape,
			 kvfs_lease *lease, const struct kv_bench_piece *pieces)
{
	size_t groups = rig->size->blocks / KV_BENCH_GROUP, other, round;
	size_t n = KV_BENCH_GROUP * shape->pieces;
	size_t rounds = groups * (rig->bench->quick ? 1 : 3) + 8;
	double bytes = KV_BENCH_GROUP * (double)kv_bench_payload(rig->size);
	struct kv_bench_sample load = {0}, crew = {0}, alone = {0};
	uint64_t ns;
	int r = 0;

	for (round = 0; round < rounds && r == 0; round++) {
		r = load_group(shape, lease, round % groups, &ns);
		kv_bench_sample_add(&load, bytes / (double)ns);
		other = (round + groups / 2) % groups * n;
		ns = kv_bench_crew_copy(rig->crew, pieces + other, n);
		kv_bench_sample_add(&crew, bytes / (double)ns);
		if (round % 2)
			continue;
		other = (round + groups / 3) % groups * n;
		ns = kv_bench_crew_copy(NULL, pieces + other, n);
		kv_bench_sample_add(&alone, bytes / (double)ns);
	}
	if (r == 0) {
		kv_bench_report_add(
			rig->bench->report,
			&(struct kv_bench_figure){
				.name = shape->name,
				.suffix = rig->size->suffix,
				.value = kv_bench_sample_median(&load),
				.reference = kv_bench_sample_median(&crew),
				.unit = "GB/s",
				.against = rig->bench->memcpy_text,
				.least_ratio = shape->goal});
		kv_bench_report_note(rig->bench->report,
				     "memcpy on one thread: %.2f GB/s; pool in "
				     "2 MiB pages: %u %%",
				     kv_bench_sample_median(&alone),
				     kv_bench_memory_huge_percent());
	}
	kv_bench_samples_free(&load, 1);
	kv_bench_samples_free(&crew, 1);
	kv_bench_samples_free(&alone, 1);
	return r;
}

int kv_bench_load(struct kv_bench_rig *rig)
{
	const struct shape shapes[] = {
		{"load_dram", rig->page_first, 1, 1.4},
		{"load_dram_layers", rig->layer_first, 2 * rig->size->layers,
		 1.4},
		{"load_dram_split", rig->split, 2, 1.4},
		{"load_dram_4k", rig->head_first,
		 kv_bench_payload(rig->size) / KV_BENCH_HEAD, 0.5},
	};
	struct kv_bench_piece *pieces;
	kvfs_lease *lease;
	int r = 0;

	for (size_t i = 0; i < KV_ARRAY_LEN(shapes) && r == 0; i++) {
		if (!kv_bench_report_wants(rig->bench->report, shapes[i].name,
					   rig->size->suffix))
			continue;
		r = kv_bench_rig_acquire(rig, 0, rig->size->blocks, &lease);
		if (r < 0)
			return r;
		pieces = list_pieces(rig, &shapes[i], lease);
		r = pieces ? load_and_verify(rig, &shapes[i], lease, pieces)
			   : -ENOMEM;
		if (r == 0)
			r = measure_shape(rig, &shapes[i], lease, pieces);
		free(pieces);
		kvfs_release(lease);
	}
	return r;
}

/* ---- leases ---- */

/* Acquire a group and get all pointers.  The release is not measured. */
static int lease_group(struct kv_bench_rig *rig, size_t first,
		       const void **pointers, double *ret_us)
{
	uint64_t begin = kv_bench_now();
	kvfs_lease *lease;
	size_t i;
	int r;

	r = kv_bench_rig_acquire(rig, first, KV_BENCH_GROUP, &lease);
	if (r < 0)
		return r;
	for (i = 0; i < KV_BENCH_GROUP; i++)
		pointers[i] = kvfs_lease_data(lease, i, NULL);
	*ret_us = (double)(kv_bench_now() - begin) / 1000;
	for (i = 0; i < KV_BENCH_GROUP; i++)
		if (!pointers[i])
			r = -EIO;
	kvfs_release(lease);
	return r;
}

int kv_bench_lease(struct kv_bench_rig *rig)
{
	size_t groups = rig->size->blocks / KV_BENCH_GROUP, round, i, group;
	size_t rounds = rig->bench->quick ? 8 : 30;
	size_t bytes = kv_bench_payload(rig->size);
	struct kv_bench_sample lease = {0}, copy = {0};
	struct kv_bench_piece pieces[KV_BENCH_GROUP];
	const void *pointers[KV_BENCH_GROUP];
	double us = 0;
	int r = 0;

	for (round = 0; round <= rounds && r == 0; round++) {
		group = round % groups * KV_BENCH_GROUP;
		for (i = 0; i < LEASES && r == 0; i++) {
			r = lease_group(rig, group, pointers, &us);
			if (round > 0)
				kv_bench_sample_add(&lease, us);
		}
		/* The released blocks stay in DRAM: no other client needs it. */
		for (i = 0; i < KV_BENCH_GROUP && r == 0; i++)
			pieces[i] = (struct kv_bench_piece){
				(char *)rig->spare.base + i * bytes,
				pointers[i], bytes};
		if (r == 0 && round > 0)
			kv_bench_sample_add(
				&copy, (double)kv_bench_crew_copy(
					       NULL, pieces, KV_BENCH_GROUP) /
					       1000);
	}
	if (r == 0) {
		kv_bench_report_add(
			rig->bench->report,
			&(struct kv_bench_figure){
				.name = "lease",
				.suffix = rig->size->suffix,
				.value = kv_bench_sample_median(&lease),
				.reference = kv_bench_sample_median(&copy),
				.unit = "us",
				.against = "memcpy, 1 thread",
				.most = 150,
				.least_ratio = 200});
		kv_bench_report_note(rig->bench->report,
				     "127 blocks; p10 %.1f us, p90 %.1f us",
				     kv_bench_sample_percentile(&lease, 10),
				     kv_bench_sample_percentile(&lease, 90));
	}
	kv_bench_samples_free(&lease, 1);
	kv_bench_samples_free(&copy, 1);
	return r;
}

/* ---- from SSD ---- */

/* Load every block from SSD, and in the first round compare the bytes; read the
 * same with fio. */
static int cold_round(void *arg, unsigned round, double *ret_speeds)
{
	struct kv_bench_rig *rig = arg;
	uint64_t payload = kv_bench_payload(rig->size), begin;
	uint64_t bytes = rig->size->blocks * payload;
	char path[PATH_MAX];
	kvfs_lease *lease;
	int r;

	r = kv_bench_rig_chill(rig);
	if (r < 0)
		return r;
	begin = kv_bench_now();
	r = kv_bench_rig_acquire(rig, 0, rig->size->blocks, &lease);
	if (r < 0)
		return r;
	ret_speeds[0] = (double)bytes / (double)(kv_bench_now() - begin);
	if (round == 0)
		r = kv_bench_rig_verify(rig, lease);
	kvfs_release(lease);
	snprintf(path, sizeof(path), "%s/fio", rig->bench->dir);
	return r < 0 ? r
		     : kv_bench_fio(rig->bench, path, payload, bytes, 0,
				    &ret_speeds[1]);
}

int kv_bench_cold(struct kv_bench_rig *rig)
{
	const struct kv_bench_figure figure = {
		.name = "load_ssd_cold",
		.suffix = rig->size->suffix,
		.against = "fio read, O_DIRECT, depth 32",
		.least_ratio = 0.95};
	struct kv_bench_sample samples[2] = {0};
	char path[PATH_MAX];
	int r;

	if (!kv_bench_program_found("fio")) {
		kv_bench_report_skip(rig->bench->report, figure.name,
				     figure.suffix, "fio");
		return 0;
	}
	snprintf(path, sizeof(path), "%s/fio", rig->bench->dir);
	r = kv_bench_fio_file(path,
			      rig->size->blocks * kv_bench_payload(rig->size));
	if (r == 0)
		r = kv_bench_rounds(cold_round, rig,
				    rig->bench->quick ? ROUNDS_QUICK : ROUNDS,
				    samples, 2);
	if (r == 0)
		kv_bench_report_speeds(rig->bench->report, figure, &samples[0],
				       &samples[1]);
	kv_bench_remove(path);
	kv_bench_samples_free(samples, 2);
	return r;
}

/* ---- a long context ---- */

#define NAME "turn"
#define PIECE (1u << 20) /* memcpy copies in pieces, as for other figures */
#define TAIL 64		 /* blocks of a window of attention */
#define WINDOW 256u	 /* blocks of the others that are leased together */
#define WINDOWS 3u	 /* under way at a time */

enum { SNAPSHOT, FIRST, TAIL_TOO, ALL, COPY, CONTEXT_SERIES };

/* Blocks of the snapshot on their way to their pages. */
struct window {
	kvfs_lease *lease;
	kvfs_xfer *load;
	size_t n;
};

/* Set the place of the next blocks: the first, the last TAIL, then the rest. */
static size_t next_window(size_t n, size_t done, size_t *ret_first)
{
	*ret_first = done == 0 ? 0 : done == 1 ? n - TAIL : done - TAIL;
	if (done <= 1)
		return done == 0 ? 1 : TAIL;
	return n - done < WINDOW ? n - done : WINDOW;
}

static int begin_window(struct kv_bench_rig *rig, kvfs_pool *pool,
			const int64_t *pages, const kvfs_key *keys,
			struct window *window)
{
	const kvfs_query query = {rig->space, keys, window->n};
	int r = kvfs_acquire(&query, 1, NULL, &window->lease);

	return r < 0 ? r
		     : kvfs_load(pool, window->lease, window->n, pages, NULL,
				 &window->load);
}

static int end_window(struct window *window)
{
	long done;

	/* A thread that waits for a lease takes the reply from the socket. */
	kvfs_lease_wait(window->lease, KVFS_FOREVER);
	done = kvfs_xfer_wait(window->load, KVFS_COPIED, KVFS_FOREVER);
	kvfs_release(window->lease);
	kvfs_xfer_free(window->load);
	return done == (long)window->n ? 0 : -EIO;
}

/* Load the snapshot with a few windows of blocks under way at a time. */
static int bring_back(struct kv_bench_rig *rig, kvfs_pool *pool,
		      const int64_t *pages, struct kv_bench_sample *samples)
{
	size_t n = rig->size->blocks, done = 0, ended = 0, first;
	struct window windows[WINDOWS];
	size_t begun = 0, over = 0;
	kvfs_key *keys = calloc(n, sizeof(*keys));
	uint64_t begin = kv_bench_now();
	int r = keys ? 0 : -ENOMEM;

	if (r == 0)
		r = (int)kvfs_snapshot_keys(rig->space, NAME, keys, NULL, 1);
	while (r >= 0 && ended < n) {
		/* The first block alone, then with the last ones all keys. */
		if (done < n && begun - over < (over == 0 ? 1 : WINDOWS)) {
			struct window *window = &windows[begun++ % WINDOWS];

			window->n = next_window(n, done, &first);
			r = begin_window(rig, pool, pages + first, keys + first,
					 window);
			done += window->n;
			continue;
		}
		ended += windows[over % WINDOWS].n;
		r = end_window(&windows[over++ % WINDOWS]);
		if (r == 0 && over <= 2)
			kv_bench_sample_add(
				&samples[over == 1 ? FIRST : TAIL_TOO],
				(double)(kv_bench_now() - begin) / 1e6);
		if (r == 0 && over == 1)
			r = (int)kvfs_snapshot_keys(rig->space, NAME, keys,
						    NULL, n);
	}
	free(keys);
	if (r < 0)
		return r;
	kv_bench_sample_add(&samples[ALL],
			    (double)rig->spare.bytes /
				    (double)(kv_bench_now() - begin));
	return 0;
}

static int context_round(struct kv_bench_rig *rig, kvfs_pool *pool,
			 const int64_t *pages, struct kv_bench_sample *samples)
{
	const size_t n_pieces = rig->pages.bytes / PIECE;
	struct kv_bench_piece *pieces = calloc(n_pieces, sizeof(*pieces));
	size_t payload = kv_bench_payload(rig->size), n = rig->size->blocks, i;
	char *back = rig->spare.base, *saved = rig->pages.base;
	uint64_t begin = kv_bench_now();
	int r = pieces ? 0 : -ENOMEM;

	if (r == 0)
		r = kvfs_snapshot(rig->space, NAME, rig->keys, NULL, n, NULL);
	kv_bench_sample_add(&samples[SNAPSHOT],
			    (double)(kv_bench_now() - begin) / 1e6);
	for (i = 0; i < n_pieces && r == 0; i++)
		pieces[i] = (struct kv_bench_piece){back + i * PIECE,
						    saved + i * PIECE, PIECE};
	if (r == 0)
		kv_bench_sample_add(
			&samples[COPY],
			(double)rig->spare.bytes /
				(double)kv_bench_crew_copy(rig->crew, pieces,
							   n_pieces));
	free(pieces);
	if (r == 0)
		r = bring_back(rig, pool, pages, samples);
	/* Page i has block n - 1 - i. */
	for (i = 0; i < n && r == 0; i++)
		if (memcmp(back + i * payload, saved + (n - 1 - i) * payload,
			   payload) != 0)
			r = -EBADMSG;
	return r < 0 ? r : kvfs_snapshot_drop(rig->space, NAME);
}

int kv_bench_context(struct kv_bench_rig *rig)
{
	struct kv_bench_report *report = rig->bench->report;
	struct kv_bench_sample s[CONTEXT_SERIES] = {0};
	size_t n = rig->size->blocks, i;
	int64_t *pages = calloc(n, sizeof(*pages));
	kvfs_pool *pool = NULL;
	int r = pages ? kv_bench_rig_pool(rig, &rig->spare, &pool) : -ENOMEM;

	for (i = 0; r == 0 && i < n; i++)
		pages[i] = (int64_t)(n - 1 - i);
	for (i = rig->bench->quick ? 3 : 15; r == 0 && i > 0; i--)
		r = context_round(rig, pool, pages, s);
	if (r == 0) {
		kv_bench_report_add(
			report,
			&(struct kv_bench_figure){
				.name = "snapshot_8192",
				.value = kv_bench_sample_median(&s[SNAPSHOT]),
				.unit = "ms",
				.most = 10});
		kv_bench_report_note(
			report, "128 K tokens; p90 %.2f ms; nothing is copied",
			kv_bench_sample_percentile(&s[SNAPSHOT], 90));
		kv_bench_report_add(
			report,
			&(struct kv_bench_figure){
				.name = "restore_first",
				.value = kv_bench_sample_median(&s[FIRST]),
				.unit = "ms",
				.most = 1});
		kv_bench_report_note(
			report, "p90 %.2f ms; with the last %d blocks %.2f ms",
			kv_bench_sample_percentile(&s[FIRST], 90), TAIL,
			kv_bench_sample_median(&s[TAIL_TOO]));
		kv_bench_report_add(
			report,
			&(struct kv_bench_figure){
				.name = "restore_all",
				.value = kv_bench_sample_median(&s[ALL]),
				.reference = kv_bench_sample_median(&s[COPY]),
				.unit = "GB/s",
				.against = rig->bench->memcpy_text,
				.least_ratio = 0.83});
	}
	kvfs_pool_close(pool);
	free(pages);
	kv_bench_samples_free(s, CONTEXT_SERIES);
	return r;
}
