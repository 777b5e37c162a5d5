/* SPDX-License-Identifier: Apache-2.0 */
/*
 * writers.c - engines that save at the same time, each waiting until its blocks
 * are durable before it saves more, against as many writers of fio.
 *
 * OWNS      each writer's session, space, pool and keys; the spaces' blocks
 *           stay in the store.
 *
 * INVARIANTS
 *   (1) A writer has a session and a space of its own, as the ranks of a model
 *       do; all save the same pages.
 *   (2) Both begin after a pause as long as fio's jobs need to start: a disk
 *       with a cache, or a limit that allows bursts, is as fresh for both.
 *
 * LOCKING   a writer belongs to its thread during a round, else to the one that
 *           measures.
 */
#include "tools/bench/figures.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "tools/bench/clock.h"
#include "tools/bench/fio.h"
#include "tools/bench/sample.h"

#define WRITERS 4
#define SAVES 4 /* of each in a round */
#define ROUNDS 5
#define FIO_STARTS_MS 1500 /* its jobs' start: the disk has rested as long */

struct writer {
	struct kv_bench_rig rig; /* its session, space and pool; rest shared */
	kvfs_key *keys;
	size_t n; /* blocks of a save */
	pthread_t thread;
	int status;
};

static int open_writer(const struct kv_bench_rig *rig, unsigned i,
		       struct writer *writer)
{
	char name[32];
	int r;

	writer->rig = *rig;
	writer->rig.session = NULL;
	writer->rig.space = NULL;
	writer->rig.page_first = writer->rig.split = NULL;
	writer->rig.layer_first = writer->rig.head_first = NULL;
	writer->n = rig->size->blocks / WRITERS;
	writer->keys = calloc(SAVES * writer->n, sizeof(*writer->keys));
	if (!writer->keys)
		return -ENOMEM;
	snprintf(name, sizeof(name), "%s-%u", KV_BENCH_SPACE, i);
	r = kv_bench_rig_open_space(&writer->rig, name);
	return r < 0 ? r : kv_bench_rig_open_pools(&writer->rig);
}

static void close_writer(struct writer *writer)
{
	kv_bench_rig_close_space(&writer->rig);
	free(writer->keys);
}

static int save(struct writer *writer, const kvfs_key *keys,
		const int64_t *pages)
{
	kvfs_xfer *xfer = NULL;
	long done;
	int r;

	r = kvfs_save(writer->rig.page_first, writer->rig.space, keys, NULL,
		      writer->n, pages, NULL, &xfer);
	if (r < 0)
		return r;
	done = kvfs_xfer_wait(xfer, KVFS_DURABLE, KVFS_FOREVER);
	kvfs_xfer_free(xfer);
	return done == (long)writer->n ? 0 : -EIO;
}

static void *run(void *arg)
{
	struct writer *writer = arg;
	int64_t *pages = malloc(writer->n * sizeof(*pages));
	unsigned i;

	writer->status = pages ? 0 : -ENOMEM;
	for (i = 0; pages && i < writer->n; i++)
		pages[i] = i;
	for (i = 0; i < SAVES && writer->status == 0; i++)
		writer->status =
			save(writer, writer->keys + i * writer->n, pages);
	free(pages);
	return NULL;
}

/* All of them at once; the time until the last has ended. */
static int save_all(struct writer *writers, uint64_t *ret_ns)
{
	uint64_t begin = kv_bench_now();
	unsigned i, begun = 0;
	int r = 0;

	for (; begun < WRITERS && r == 0; begun += r == 0)
		r = -pthread_create(&writers[begun].thread, NULL, run,
				    &writers[begun]);
	for (i = 0; i < begun; i++) {
		pthread_join(writers[i].thread, NULL);
		r = r < 0 ? r : writers[i].status;
	}
	*ret_ns = kv_bench_now() - begin;
	return r;
}

static int measure_round(struct kv_bench_rig *rig, struct writer *writers,
			 double *ret_speed, double *ret_fio)
{
	uint64_t payload = kv_bench_payload(rig->size), ns = 1;
	uint64_t bytes = WRITERS * SAVES * writers->n * payload;
	char path[PATH_MAX];
	unsigned i;
	int r = 0;

	for (i = 0; i < WRITERS && r == 0; i++)
		r = kv_bench_rig_keys(rig, writers[i].keys,
				      SAVES * writers[i].n);
	kv_bench_rig_settle(rig);
	kv_bench_sleep_ms(FIO_STARTS_MS);
	if (r == 0)
		r = save_all(writers, &ns);
	if (r < 0)
		return r;
	rig->saved += WRITERS * SAVES * writers->n;
	*ret_speed = (double)bytes / (double)ns;
	snprintf(path, sizeof(path), "%s/fio", rig->bench->dir);
	return kv_bench_fio_write(&rig->bench->children, path, payload, bytes,
				  WRITERS, ret_fio);
}

int kv_bench_writers(struct kv_bench_rig *rig)
{
	struct writer writers[WRITERS] = {0};
	struct kv_bench_sample durable = {0}, fio = {0};
	double speed, fio_speed;
	unsigned i, round;
	char name[64];
	int r = 0;

	snprintf(name, sizeof(name), "save_durable_4w_%s", rig->size->suffix);
	if (!kv_bench_program_found("fio")) {
		kv_bench_report_skip(rig->bench->report, name,
				     "fio is not installed");
		return 0;
	}
	for (i = 0; i < WRITERS && r == 0; i++)
		r = open_writer(rig, i, &writers[i]);
	for (round = 0; round <= ROUNDS && r == 0; round++) {
		r = measure_round(rig, writers, &speed, &fio_speed);
		if (round == 0 || r < 0)
			continue;
		kv_bench_sample_add(&durable, speed);
		kv_bench_sample_add(&fio, fio_speed);
	}
	if (r == 0)
		kv_bench_report_speeds(rig->bench->report, name, &durable, &fio,
				       "fio write, O_DIRECT, 4 jobs, fsync",
				       0.95);
	for (i = 0; i < WRITERS; i++)
		close_writer(&writers[i]);
	kv_bench_sample_fini(&durable);
	kv_bench_sample_fini(&fio);
	return r;
}
