/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.c - a long context: a snapshot of it, and bringing it back from DRAM
 * to other pages, against memcpy of its bytes.
 *
 * OWNS      a pool over rig->spare, while it measures.
 *
 * LOCKING   none: one thread measures.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/clock.h"
#include "tools/bench/figures.h"
#include "tools/bench/report.h"

#define NAME "turn"
#define PIECE (1u << 20) /* memcpy goes in pieces, as for other figures */
#define TAIL 64		 /* blocks of the window that attention looks at */
#define WINDOW 256u	 /* blocks of the others that are leased together */
#define WINDOWS 3u	 /* under way at a time */

struct samples {
	struct kv_bench_sample snapshot, first, window, all, copy;
};

static int other_pool(struct kv_bench_rig *rig, kvfs_pool **ret_pool)
{
	uint64_t payload = kv_bench_payload(rig->size);
	char *base = rig->spare.base;
	kvfs_view views[2] = {
		{"k", base, payload, payload / 2, 1, 0},
		{"v", base + payload / 2, payload, payload / 2, 1, 0},
	};
	kvfs_pool_desc desc = {
		.size = sizeof(desc),
		.device = "host",
		.space = rig->space,
		.views = views,
		.n_views = 2,
		.pages = rig->size->blocks,
		.pages_per_block = 1,
		.memory = base,
		.memory_bytes = rig->spare.bytes,
	};

	return kvfs_pool_register(rig->session, &desc, ret_pool);
}

static int take(struct kv_bench_rig *rig, struct samples *samples)
{
	uint64_t begin = kv_bench_now();
	int r;

	r = kvfs_snapshot(rig->space, NAME, rig->keys, NULL, rig->size->blocks,
			  NULL);
	kv_bench_sample_add(&samples->snapshot,
			    (double)(kv_bench_now() - begin) / 1e6);
	return r;
}

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
		      const int64_t *pages, struct samples *samples)
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
				over == 1 ? &samples->first : &samples->window,
				(double)(kv_bench_now() - begin) / 1e6);
		if (r == 0 && over == 1)
			r = (int)kvfs_snapshot_keys(rig->space, NAME, keys,
						    NULL, n);
	}
	free(keys);
	if (r < 0)
		return r;
	kv_bench_sample_add(&samples->all,
			    (double)rig->spare.bytes /
				    (double)(kv_bench_now() - begin));
	return 0;
}

static int copy(struct kv_bench_rig *rig, struct samples *samples)
{
	size_t n = rig->pages.bytes / PIECE, i;
	struct kv_bench_piece *pieces = calloc(n, sizeof(*pieces));
	char *to = rig->spare.base, *from = rig->pages.base;
	uint64_t begin;

	if (!pieces)
		return -ENOMEM;
	for (i = 0; i < n; i++)
		pieces[i] = (struct kv_bench_piece){to + i * PIECE,
						    from + i * PIECE, PIECE};
	begin = kv_bench_now();
	kv_bench_crew_copy(rig->crew, pieces, n);
	kv_bench_sample_add(&samples->copy,
			    (double)rig->spare.bytes /
				    (double)(kv_bench_now() - begin));
	free(pieces);
	return 0;
}

/* Page i has block n - 1 - i. */
static int verify(const struct kv_bench_rig *rig)
{
	size_t payload = kv_bench_payload(rig->size), n = rig->size->blocks, i;
	const char *saved = rig->pages.base, *back = rig->spare.base;

	for (i = 0; i < n; i++)
		if (memcmp(back + i * payload, saved + (n - 1 - i) * payload,
			   payload) != 0)
			return -EBADMSG;
	return 0;
}

static int measure(struct kv_bench_rig *rig, kvfs_pool *pool,
		   const int64_t *pages, struct samples *samples)
{
	size_t rounds = rig->bench->quick ? 3 : 15, round;
	int r = 0;

	for (round = 0; round < rounds && r == 0; round++) {
		r = take(rig, samples);
		if (r == 0)
			r = copy(rig, samples);
		if (r == 0)
			r = bring_back(rig, pool, pages, samples);
		if (r == 0)
			r = verify(rig);
		if (r == 0)
			r = kvfs_snapshot_drop(rig->space, NAME);
	}
	return r;
}

static void report_times(struct kv_bench_rig *rig, struct samples *samples)
{
	struct kv_bench_figure figure = {
		.name = "snapshot_8192",
		.value = kv_bench_sample_median(&samples->snapshot),
		.unit = "ms",
		.against = "-",
		.goal = "<= 10 ms",
	};

	figure.met = figure.value <= 10;
	kv_bench_report_add(rig->bench->report, &figure);
	kv_bench_report_note(
		rig->bench->report,
		"128 K tokens; p90 %.2f ms; nothing is copied",
		kv_bench_sample_percentile(&samples->snapshot, 90));
	figure.name = "restore_first";
	figure.value = kv_bench_sample_median(&samples->first);
	figure.goal = "<= 1 ms";
	figure.met = figure.value <= 1;
	kv_bench_report_add(rig->bench->report, &figure);
	kv_bench_report_note(rig->bench->report,
			     "p90 %.2f ms; with the last %d blocks %.2f ms",
			     kv_bench_sample_percentile(&samples->first, 90),
			     TAIL, kv_bench_sample_median(&samples->window));
}

static void report_all(struct kv_bench_rig *rig, struct samples *samples)
{
	char against[64];
	struct kv_bench_figure figure = {
		.name = "restore_all",
		.value = kv_bench_sample_median(&samples->all),
		.reference = kv_bench_sample_median(&samples->copy),
		.unit = "GB/s",
		.against = against,
		.goal = "ratio >= 0.83",
	};

	snprintf(against, sizeof(against), "memcpy, %u threads",
		 rig->bench->threads);
	figure.ratio = figure.value / figure.reference;
	figure.met = figure.ratio >= 1 / 1.2;
	kv_bench_report_add(rig->bench->report, &figure);
}

int kv_bench_context(struct kv_bench_rig *rig)
{
	size_t n = rig->size->blocks, i;
	int64_t *pages = calloc(n, sizeof(*pages));
	struct samples samples = {0};
	kvfs_pool *pool = NULL;
	int r = pages ? other_pool(rig, &pool) : -ENOMEM;

	for (i = 0; r == 0 && i < n; i++)
		pages[i] = (int64_t)(n - 1 - i);
	if (r == 0)
		r = measure(rig, pool, pages, &samples);
	if (r == 0) {
		report_times(rig, &samples);
		report_all(rig, &samples);
	}
	kvfs_pool_close(pool);
	free(pages);
	kv_bench_sample_fini(&samples.snapshot);
	kv_bench_sample_fini(&samples.first);
	kv_bench_sample_fini(&samples.window);
	kv_bench_sample_fini(&samples.all);
	kv_bench_sample_fini(&samples.copy);
	return r;
}
