/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save.c - pool to sealed against memcpy, and to durable against fio's writes
 * into extents as fresh as the daemon's; by one engine, and by several that
 * save at the same time, each waiting until its blocks are durable before it
 * saves more.
 *
 * OWNS      the keys of each round and the list of what memcpy copies; each
 *           writer's session, space, pool and keys.  The spaces' blocks stay in
 *           the store.
 *
 * INVARIANTS
 *   (1) Nothing is being written to SSD while a reference is taken: a round's
 *       save is durable before it.
 *   (2) Each begins after a pause as long as fio needs to start: a disk with a
 *       cache, or a limit that allows bursts, is as fresh for both.
 *   (3) A writer has a session and a space of its own, as the ranks of a model
 *       do; all save the same pages.
 *
 * LOCKING   a writer belongs to its thread during a round, else to the one that
 *           measures.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tools/bench/clock.h"
#include "tools/bench/figures.h"
#include "tools/bench/report.h"

#define ROUNDS 7
#define ROUNDS_QUICK 5
#define WRITERS 4
#define SAVES 4 /* of each in a round */
#define WRITER_ROUNDS 5
#define FIO_STARTS_MS 1500 /* its jobs' start: the disk has rested as long */

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

/* ---- from pages that are lent ---- */

/* Pages of a memfd that the daemon maps. */
struct lent {
	int fd;
	size_t bytes;
	char *memory; /* NULL: not mapped */
	kvfs_pool *pool;
};

static int map_file(struct lent *lent)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;

	lent->fd = memfd_create("kvfs-bench", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (lent->fd < 0 || ftruncate(lent->fd, (off_t)lent->bytes) < 0 ||
	    fallocate(lent->fd, 0, 0, (off_t)lent->bytes) < 0)
		return -errno;
	lent->memory = mmap(NULL, lent->bytes, PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_POPULATE, lent->fd, 0);
	if (lent->memory == MAP_FAILED)
		lent->memory = NULL;
	return lent->memory && fcntl(lent->fd, F_ADD_SEALS, seals) == 0
		       ? 0
		       : -errno;
}

static void close_lent(struct lent *lent)
{
	kvfs_pool_close(lent->pool);
	if (lent->memory)
		munmap(lent->memory, lent->bytes);
	if (lent->fd >= 0)
		close(lent->fd);
}

static int register_lent(const struct kv_bench_rig *rig, struct lent *lent)
{
	uint64_t payload = kv_bench_payload(rig->size);
	kvfs_view views[2] = {
		{"k", lent->memory, payload, payload / 2, 1, 0},
		{"v", lent->memory + payload / 2, payload, payload / 2, 1, 0},
	};
	kvfs_pool_desc desc = {
		.size = sizeof(desc),
		.device = "host",
		.space = rig->space,
		.views = views,
		.n_views = 2,
		.pages = rig->size->blocks,
		.pages_per_block = 1,
		.memory = lent->memory,
		.memory_bytes = lent->bytes,
		.memory_fd = lent->fd,
	};
	struct kvfs_pool_info info = KVFS_POOL_INFO_INIT;
	int r = kvfs_pool_register(rig->session, &desc, &lent->pool);

	for (unsigned i = 0; r == 0 && !info.lent; i++) {
		kv_bench_sleep_ms(10);
		r = i < 500 ? kvfs_pool_info(lent->pool, &info) : -ETIMEDOUT;
	}
	return r;
}

static int open_lent(const struct kv_bench_rig *rig, struct lent *lent)
{
	size_t bytes = rig->size->blocks * kv_bench_payload(rig->size);
	int r;

	*lent = (struct lent){.bytes = bytes};
	r = map_file(lent);
	if (r < 0)
		return r;
	memcpy(lent->memory, rig->pages.base, bytes);
	return register_lent(rig, lent);
}

int kv_bench_save_lent(struct kv_bench_rig *rig)
{
	struct run run = {.rig = rig};
	struct lent lent;
	char against[64];
	int r;

	r = open_lent(rig, &lent);
	if (r == 0)
		r = measure_pool(&run, lent.pool, kv_bench_payload(rig->size));
	if (r == 0)
		report(&run, "save_lent", SEALED, COPY,
		       memcpy_text(rig, against, sizeof(against)),
		       kv_bench_payload(rig->size) > 1u << 20 ? 1.33 : 0.93);
	fini(&run);
	close_lent(&lent);
	return r;
}

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

static int writer_save(struct writer *writer, const kvfs_key *keys,
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

static void *writer_run(void *arg)
{
	struct writer *writer = arg;
	int64_t *pages = malloc(writer->n * sizeof(*pages));
	unsigned i;

	writer->status = pages ? 0 : -ENOMEM;
	for (i = 0; pages && i < writer->n; i++)
		pages[i] = i;
	for (i = 0; i < SAVES && writer->status == 0; i++)
		writer->status = writer_save(
			writer, writer->keys + i * writer->n, pages);
	free(pages);
	return NULL;
}

/* All of them at once; the time until the last has ended. */
static int writers_save(struct writer *writers, uint64_t *ret_ns)
{
	uint64_t begin = kv_bench_now();
	unsigned i, begun = 0;
	int r = 0;

	for (; begun < WRITERS && r == 0; begun += r == 0)
		r = -pthread_create(&writers[begun].thread, NULL, writer_run,
				    &writers[begun]);
	for (i = 0; i < begun; i++) {
		pthread_join(writers[i].thread, NULL);
		r = r < 0 ? r : writers[i].status;
	}
	*ret_ns = kv_bench_now() - begin;
	return r;
}

static int measure_writers(struct kv_bench_rig *rig, struct writer *writers,
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
		r = writers_save(writers, &ns);
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
	for (round = 0; round <= WRITER_ROUNDS && r == 0; round++) {
		r = measure_writers(rig, writers, &speed, &fio_speed);
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
