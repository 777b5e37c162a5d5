/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.c - figures of saves: from a pool until sealed, against memcpy; until
 * durable, against fio's writes into newly allocated extents; by one engine,
 * and by several at once, each of which waits until its blocks are durable
 * before its next save.
 *
 * OWNS      the keys of each round and the list of pieces that memcpy copies;
 *           a pool by descriptor, and its memory;
 *           each writer's session, space, pools and keys.  The spaces' blocks
 *           stay in the store.
 *
 * INVARIANTS
 *   (1) The daemon writes nothing to SSD while a reference is measured: the
 *       round's save is durable by then.
 *   (2) save_durable and fio both begin after a pause as long as fio needs to
 *       start: a disk with a cache, or with a rate limit that allows bursts, is
 *       equally rested.
 *   (3) A writer has a session and a space of its own, as the ranks of a model
 *       do; all writers save the same pages.
 *
 * LOCKING   a writer belongs to its thread during a round, else to the thread
 *           that measures.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/kv.h"
#include "tools/bench/bench.h"

#define WRITERS 4
#define SAVES 4 /* saves of each writer in a round */
#define WRITER_ROUNDS 5
/* time that fio needs to start; the disk rests as long before a save */
#define FIO_STARTS_MS 1500

enum { SEALED, DURABLE, COPY, FIO, SERIES };

struct run {
	struct kv_bench_rig *rig;
	kvfs_pool *pool;
	char *from; /* the pool's memory */
	uint64_t payload, bytes, piece;
	kvfs_key *keys;
	struct kv_bench_piece *pieces;
	bool has_fio;
};

static int save_round(void *arg, double *ret_speeds)
{
	struct run *run = arg;
	struct kv_bench_rig *rig = run->rig;
	size_t blocks = rig->size->blocks, of_block, n, i;
	char *from = run->from, *to = rig->spare.base;
	uint64_t sealed = 1, durable = 1;
	int r;

	r = kv_bench_rig_keys(rig, run->keys, blocks);
	kv_bench_daemon_settle(&rig->daemon);
	if (r == 0)
		r = kv_bench_rig_save(rig, run->pool, run->keys, &sealed,
				      &durable);
	if (r < 0)
		return r;
	ret_speeds[SEALED] = (double)run->bytes / (double)sealed;
	ret_speeds[DURABLE] = (double)run->bytes / (double)durable;
	of_block = run->payload / run->piece;
	n = blocks * of_block;
	for (i = 0; i < n; i++)
		run->pieces[i] = (struct kv_bench_piece){
			to + i * run->piece,
			from + (i % of_block * blocks + i / of_block) *
					run->piece,
			run->piece};
	ret_speeds[COPY] =
		(double)run->bytes /
		(double)kv_bench_crew_copy(rig->crew, run->pieces, n);
	if (!run->has_fio)
		return 0;
	return kv_bench_fio(rig->bench, run->payload, run->bytes, 1,
			    &ret_speeds[FIO]);
}

/* Measure saves from @pool, whose blocks consist of runs of @piece bytes.
 * Report @sealed, and @durable if its name is not NULL. */
static int measure_pool(struct kv_bench_rig *rig, kvfs_pool *pool, void *memory,
			uint64_t piece, struct kv_bench_figure sealed,
			struct kv_bench_figure durable)
{
	struct kv_bench_sample samples[SERIES] = {0};
	struct kv_bench_report *report = rig->bench->report;
	const uint64_t payload = kv_bench_payload(rig->size);
	struct run run = {
		.rig = rig,
		.pool = pool,
		.from = memory,
		.payload = payload,
		.bytes = rig->size->blocks * payload,
		.piece = piece,
		.has_fio = durable.name && kv_bench_program_found("fio"),
		.keys = calloc(rig->size->blocks, sizeof(*run.keys)),
		.pieces = calloc(rig->size->blocks * payload / piece,
				 sizeof(*run.pieces)),
	};
	int r = -ENOMEM;

	if (run.keys && run.pieces)
		r = kv_bench_rounds(save_round, &run, rig->bench->rounds,
				    samples, SERIES);
	sealed.suffix = durable.suffix = rig->size->suffix;
	sealed.against = rig->bench->memcpy_text;
	if (r == 0)
		kv_bench_report_speeds(report, sealed, &samples[SEALED],
				       &samples[COPY]);
	if (r == 0 && run.has_fio)
		kv_bench_report_speeds(report, durable, &samples[DURABLE],
				       &samples[FIO]);
	else if (r == 0 && durable.name)
		kv_bench_report_skip(report, durable.name, durable.suffix,
				     "fio");
	kv_bench_samples_free(samples, SERIES);
	free(run.pieces);
	free(run.keys);
	return r;
}

int kv_bench_save(struct kv_bench_rig *rig)
{
	return measure_pool(
		rig, rig->pools[KV_BENCH_PAGES], rig->pages.base,
		kv_bench_payload(rig->size),
		(struct kv_bench_figure){.name = "save_sealed",
					 .least_ratio = 0.9},
		(struct kv_bench_figure){
			.name = "save_durable",
			.against = "fio write, O_DIRECT, depth 32, fsync",
			.least_ratio = 0.9});
}

int kv_bench_save_heads(struct kv_bench_rig *rig)
{
	return measure_pool(rig, rig->pools[KV_BENCH_HEADS], rig->pages.base,
			    KV_BENCH_HEAD,
			    (struct kv_bench_figure){.name = "save_sealed_4k",
						     .least_ratio = 0.5},
			    (struct kv_bench_figure){0});
}

/* Measure saves from a pool by descriptor, whose pages the daemon copies itself: by a
 * mapping if @sealed, else by pread(2). */
static int save_lent(struct kv_bench_rig *rig, bool sealed,
		     struct kv_bench_figure figure)
{
	const uint64_t payload = kv_bench_payload(rig->size);
	struct kvfs_pool_info info = KVFS_POOL_INFO_INIT;
	struct kv_bench_memory memory;
	kvfs_pool *pool = NULL;
	int fd, r;

	r = kv_bench_memory_share(rig->size->blocks * payload, sealed, &memory,
				  &fd);
	if (r < 0)
		return r;
	r = kv_bench_rig_pool(rig, &memory, fd, &pool);
	/* The daemon takes the descriptor in the background. */
	for (unsigned i = 0; r == 0 && !info.lent && i < 100; i++) {
		usleep(20000);
		r = kvfs_pool_info(pool, &info);
	}
	if (r == 0 && !info.lent)
		r = -ETIMEDOUT;
	if (r == 0)
		r = measure_pool(rig, pool, memory.base, payload, figure,
				 (struct kv_bench_figure){0});
	kvfs_pool_close(pool);
	munmap(memory.base, memory.bytes);
	close(fd);
	return r;
}

int kv_bench_save_lent(struct kv_bench_rig *rig)
{
	const struct kv_bench_figure mapped = {
		.name = "save_sealed_fd",
		.least_ratio = rig->size->layers > 2 ? 1.1 : 0.6};
	const struct kv_bench_figure read = {.name = "save_sealed_read",
					     .least_ratio = 0.7};
	int r = save_lent(rig, true, mapped);

	return r < 0 ? r : save_lent(rig, false, read);
}

/* ---- several engines ---- */

struct writer {
	/* the writer's own session, space and pools; the rest is shared */
	struct kv_bench_rig rig;
	kvfs_key *keys;
	size_t n; /* number of blocks in a save */
	pthread_t thread;
	int status;
};

static int open_writer(const struct kv_bench_rig *rig, unsigned i,
		       struct writer *writer)
{
	char name[32];

	writer->rig = *rig;
	writer->rig.session = NULL;
	writer->rig.space = NULL;
	memset(writer->rig.pools, 0, sizeof(writer->rig.pools));
	writer->n = rig->size->blocks / WRITERS;
	writer->keys = calloc(SAVES * writer->n, sizeof(*writer->keys));
	if (!writer->keys)
		return -ENOMEM;
	snprintf(name, sizeof(name), "%s-%u", KV_BENCH_SPACE, i);
	return kv_bench_rig_open_space(&writer->rig, name);
}

static void *writer_run(void *arg)
{
	struct writer *writer = arg;
	int64_t *pages = malloc(writer->n * sizeof(*pages));
	kvfs_xfer *xfer;
	int r = pages ? 0 : -ENOMEM;

	for (size_t i = 0; r == 0 && i < writer->n; i++)
		pages[i] = (int64_t)i;
	for (unsigned i = 0; i < SAVES && r == 0; i++) {
		r = kvfs_save(writer->rig.pools[KV_BENCH_PAGES],
			      writer->rig.space, writer->keys + i * writer->n,
			      NULL, writer->n, pages, NULL, &xfer);
		if (r < 0)
			break;
		if (kvfs_xfer_wait(xfer, KVFS_DURABLE, KVFS_FOREVER) !=
		    (long)writer->n)
			r = -EIO;
		kvfs_xfer_free(xfer);
	}
	free(pages);
	writer->status = r;
	return NULL;
}

/* Save with all writers at once, timed until the last writer ends. */
static int writers_round(void *arg, double *ret_speeds)
{
	struct writer *writers = arg;
	struct kv_bench_rig *rig = &writers->rig;
	uint64_t payload = kv_bench_payload(rig->size), begin;
	uint64_t bytes = WRITERS * SAVES * writers->n * payload;
	unsigned i, begun = 0;
	int r = 0;

	for (i = 0; i < WRITERS && r == 0; i++)
		r = kv_bench_rig_keys(rig, writers[i].keys,
				      SAVES * writers[i].n);
	kv_bench_daemon_settle(&rig->daemon);
	usleep(FIO_STARTS_MS * 1000);
	begin = kv_now_ns();
	for (; begun < WRITERS && r == 0; begun += r == 0)
		r = -pthread_create(&writers[begun].thread, NULL, writer_run,
				    &writers[begun]);
	for (i = 0; i < begun; i++) {
		pthread_join(writers[i].thread, NULL);
		r = r < 0 ? r : writers[i].status;
	}
	ret_speeds[0] = (double)bytes / (double)(kv_now_ns() - begin);
	return r < 0 ? r
		     : kv_bench_fio(rig->bench, payload, bytes, WRITERS,
				    &ret_speeds[1]);
}

int kv_bench_writers(struct kv_bench_rig *rig)
{
	const struct kv_bench_figure figure = {
		.name = "save_durable_4w",
		.suffix = rig->size->suffix,
		.against = "fio write, O_DIRECT, 4 jobs, fsync",
		.least_ratio = 0.95};
	struct writer writers[WRITERS] = {0};
	struct kv_bench_sample samples[2] = {0};
	unsigned i;
	int r = 0;

	for (i = 0; i < WRITERS && r == 0; i++)
		r = open_writer(rig, i, &writers[i]);
	if (r == 0)
		r = kv_bench_rounds(writers_round, writers, WRITER_ROUNDS,
				    samples, 2);
	if (r == 0)
		kv_bench_report_speeds(rig->bench->report, figure, &samples[0],
				       &samples[1]);
	/* The first writer made all keys: make other keys from now on. */
	rig->next_token = writers[0].rig.next_token;
	if (r == 0)
		rig->saved +=
			(WRITER_ROUNDS + 1) * WRITERS * SAVES * writers[0].n;
	for (i = 0; i < WRITERS; i++) {
		kv_bench_rig_close_space(&writers[i].rig);
		free(writers[i].keys);
	}
	kv_bench_samples_free(samples, 2);
	return r;
}
