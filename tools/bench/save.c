/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.c - pool to sealed against memcpy, and to durable against fio's writes
 * into extents as fresh as the daemon's.
 *
 * OWNS      the keys of each round and the list of what memcpy copies.
 *
 * INVARIANTS
 *   (1) Nothing is being written to SSD while a reference is taken: a round's
 *       save is durable before it.
 *   (2) Each begins after a pause as long as fio needs to start: a disk with a
 *       cache, or a limit that allows bursts, is as fresh for both.
 *
 * LOCKING   none.
 */
#include "tools/bench/figures.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/bench/clock.h"
#include "tools/bench/fio.h"
#include "tools/bench/sample.h"

#define ROUNDS 7
#define ROUNDS_QUICK 5

enum { SEALED, DURABLE, COPY, FIO, SERIES };

struct run {
	struct kv_bench_rig *rig;
	kvfs_pool *pool;
	uint64_t payload, bytes, piece;
	kvfs_key *keys;
	struct kv_bench_piece *pieces;
	bool has_fio;
	struct kv_bench_sample series[SERIES]; /* GB/s */
};

static uint64_t copy_pages(struct run *run)
{
	size_t blocks = run->rig->size->blocks, of_block, n, i;
	char *from = run->rig->pages.base, *to = run->rig->spare.base;
	uint64_t begin;

	of_block = run->payload / run->piece;
	n = blocks * of_block;
	for (i = 0; i < n; i++)
		run->pieces[i] = (struct kv_bench_piece){
			to + i * run->piece,
			from + (i % of_block * blocks + i / of_block) *
					run->piece,
			run->piece};
	begin = kv_bench_now();
	kv_bench_crew_copy(run->rig->crew, run->pieces, n);
	return kv_bench_now() - begin;
}

static int measure_round(struct run *run, double *speeds)
{
	struct kv_bench_rig *rig = run->rig;
	uint64_t sealed = 1, durable = 1;
	char path[PATH_MAX];
	int r;

	r = kv_bench_rig_keys(rig, run->keys, rig->size->blocks);
	kv_bench_rig_settle(rig);
	if (r == 0)
		r = kv_bench_rig_save(rig, run->pool, run->keys, &sealed,
				      &durable);
	if (r < 0)
		return r;
	speeds[SEALED] = (double)run->bytes / (double)sealed;
	speeds[DURABLE] = (double)run->bytes / (double)durable;
	speeds[COPY] = (double)run->bytes / (double)copy_pages(run);
	if (!run->has_fio)
		return 0;
	snprintf(path, sizeof(path), "%s/fio", rig->bench->dir);
	return kv_bench_fio_write(&rig->bench->children, path, run->payload,
				  run->bytes, 1, &speeds[FIO]);
}

static void report(struct run *run, const char *figure_name, int value,
		   int reference, const char *against, double goal)
{
	struct kv_bench_report *to = run->rig->bench->report;
	char name[64];

	snprintf(name, sizeof(name), "%s_%s", figure_name,
		 run->rig->size->suffix);
	if (reference == FIO && !run->has_fio)
		kv_bench_report_skip(to, name, "fio is not installed");
	else
		kv_bench_report_speeds(to, name, &run->series[value],
				       &run->series[reference], against, goal);
}

static int measure(struct run *run)
{
	unsigned rounds = run->rig->bench->quick ? ROUNDS_QUICK : ROUNDS;
	double speeds[SERIES];
	unsigned round;
	int r = 0, i;

	for (round = 0; round <= rounds && r == 0; round++) {
		r = measure_round(run, speeds);
		for (i = 0; i < SERIES && round > 0; i++)
			kv_bench_sample_add(&run->series[i], speeds[i]);
	}
	return r;
}

/* @piece: bytes that lie together in @pool. */
static int measure_pool(struct run *run, kvfs_pool *pool, uint64_t piece)
{
	const struct kv_bench_size *size = run->rig->size;
	int r = -ENOMEM;

	run->pool = pool;
	run->piece = piece;
	run->payload = kv_bench_payload(size);
	run->bytes = size->blocks * run->payload;
	run->keys = calloc(size->blocks, sizeof(*run->keys));
	run->pieces = calloc(run->bytes / piece, sizeof(*run->pieces));
	if (run->keys && run->pieces)
		r = measure(run);
	free(run->pieces);
	free(run->keys);
	return r;
}

static void fini(struct run *run)
{
	int i;

	for (i = 0; i < SERIES; i++)
		kv_bench_sample_fini(&run->series[i]);
}

static const char *memcpy_text(const struct kv_bench_rig *rig, char *text,
			       size_t room)
{
	snprintf(text, room, "memcpy, %u threads", rig->bench->threads);
	return text;
}

int kv_bench_save(struct kv_bench_rig *rig)
{
	struct run run = {.rig = rig};
	char against[64];
	int r;

	run.has_fio = kv_bench_program_found("fio");
	r = measure_pool(&run, rig->page_first, kv_bench_payload(rig->size));
	if (r == 0) {
		report(&run, "save_sealed", SEALED, COPY,
		       memcpy_text(rig, against, sizeof(against)), 0.9);
		report(&run, "save_durable", DURABLE, FIO,
		       "fio write, O_DIRECT, depth 32, fsync", 0.9);
	}
	fini(&run);
	return r;
}

int kv_bench_save_heads(struct kv_bench_rig *rig)
{
	struct run run = {.rig = rig};
	char against[64];
	int r = measure_pool(&run, rig->head_first, KV_BENCH_HEAD);

	if (r == 0)
		report(&run, "save_sealed_4k", SEALED, COPY,
		       memcpy_text(rig, against, sizeof(against)), 0.5);
	fini(&run);
	return r;
}
