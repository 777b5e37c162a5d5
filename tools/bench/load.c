/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - what comes out: arena to pool against memcpy between the same
 * addresses; a lease of blocks and their pointers, without a copy, against
 * memcpy; and SSD to arena, verified, against fio's reads on the same
 * filesystem.
 *
 * OWNS      the list of pieces that memcpy copies; the file that fio reads.
 *
 * INVARIANTS
 *   (1) Both copy KV_BENCH_GROUP blocks at a time.  Where there are several
 *       groups, memcpy's is half-way round from the load's, so that neither
 *       finds its bytes in the processor's cache because of the other.
 *
 * LOCKING   none.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/clock.h"
#include "tools/bench/run.h"
#include "tools/bench/figures.h"
#include "tools/bench/report.h"

#define ROUNDS 7
#define ROUNDS_QUICK 5
#define LEASES 10 /* for each memcpy: it takes a thousand times as long */

struct shape {
	const char *name;
	kvfs_pool *pool;
	size_t pieces; /* of a block */
	double goal;
};

/* The same pieces the library finds in the pool's views. */
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

static int load_group(struct kv_bench_rig *rig, const struct shape *shape,
		      kvfs_lease *lease, size_t group, uint64_t *ret_ns)
{
	kvfs_opts opts = {.size = sizeof(opts),
			  .first = group * KV_BENCH_GROUP};
	int64_t pages[KV_BENCH_GROUP];
	kvfs_xfer *xfer;
	uint64_t begin;
	size_t i;
	long r;

	(void)rig;
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

/* Once, to warm up, and to see that a load brings what was saved. */
static int load_and_verify(struct kv_bench_rig *rig, const struct shape *shape,
			   kvfs_lease *lease,
			   const struct kv_bench_piece *pieces)
{
	size_t group, i;
	uint64_t ns;
	int r;

	memset(rig->pages.base, 0xff, rig->pages.bytes);
	for (group = 0; group < rig->size->blocks / KV_BENCH_GROUP; group++) {
		r = load_group(rig, shape, lease, group, &ns);
		if (r < 0)
			return r;
	}
	for (i = 0; i < rig->size->blocks * shape->pieces; i++)
		if (memcmp(pieces[i].dst, pieces[i].src, pieces[i].bytes) != 0)
			return -EBADMSG;
	return kv_bench_rig_verify(rig, lease);
}

static uint64_t copy_group(struct kv_bench_crew *crew,
			   const struct kv_bench_piece *pieces, size_t n)
{
	uint64_t begin = kv_bench_now();
	size_t i;

	if (crew)
		kv_bench_crew_copy(crew, pieces, n);
	for (i = 0; !crew && i < n; i++)
		memcpy(pieces[i].dst, pieces[i].src, pieces[i].bytes);
	return kv_bench_now() - begin;
}

static void report(struct kv_bench_rig *rig, const struct shape *shape,
		   double load, double crew, double alone)
{
	char name[64], against[64], goal[32];
	struct kv_bench_figure figure = {
		.name = name,
		.value = load,
		.reference = crew,
		.unit = "GB/s",
		.against = against,
		.ratio = load / crew,
		.goal = goal,
		.met = load / crew >= shape->goal,
	};

	snprintf(name, sizeof(name), "%s_%s", shape->name, rig->size->suffix);
	snprintf(goal, sizeof(goal), "ratio >= %.1f", shape->goal);
	snprintf(against, sizeof(against), "memcpy, %u threads",
		 rig->bench->threads);
	kv_bench_report_add(rig->bench->report, &figure);
	kv_bench_report_note(rig->bench->report,
			     "memcpy on one thread: %.2f GB/s; pool in 2 MiB "
			     "pages: %u %%",
			     alone, kv_bench_memory_huge_percent());
}

static int measure(struct kv_bench_rig *rig, const struct shape *shape,
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
		r = load_group(rig, shape, lease, round % groups, &ns);
		kv_bench_sample_add(&load, bytes / (double)ns);
		other = (round + groups / 2) % groups * n;
		ns = copy_group(rig->crew, pieces + other, n);
		kv_bench_sample_add(&crew, bytes / (double)ns);
		if (round % 2)
			continue;
		other = (round + groups / 3) % groups * n;
		ns = copy_group(NULL, pieces + other, n);
		kv_bench_sample_add(&alone, bytes / (double)ns);
	}
	if (r == 0)
		report(rig, shape, kv_bench_sample_median(&load),
		       kv_bench_sample_median(&crew),
		       kv_bench_sample_median(&alone));
	kv_bench_sample_fini(&load);
	kv_bench_sample_fini(&crew);
	kv_bench_sample_fini(&alone);
	return r;
}

static int load(struct kv_bench_rig *rig, const struct shape *shape)
{
	struct kv_bench_piece *pieces;
	kvfs_lease *lease;
	int r;

	r = kv_bench_rig_acquire(rig, 0, rig->size->blocks, &lease);
	if (r < 0)
		return r;
	pieces = list_pieces(rig, shape, lease);
	r = pieces ? load_and_verify(rig, shape, lease, pieces) : -ENOMEM;
	if (r == 0)
		r = measure(rig, shape, lease, pieces);
	free(pieces);
	kvfs_release(lease);
	return r;
}

int kv_bench_load(struct kv_bench_rig *rig)
{
	struct shape shape = {"load_dram", rig->page_first, 1, 1.4};

	return load(rig, &shape);
}

int kv_bench_load_layers(struct kv_bench_rig *rig)
{
	struct shape shape = {"load_dram_layers", rig->layer_first,
			      2 * rig->size->layers, 1.4};

	return load(rig, &shape);
}

int kv_bench_load_split(struct kv_bench_rig *rig)
{
	struct shape shape = {"load_dram_split", rig->split, 2, 1.4};

	return load(rig, &shape);
}

int kv_bench_load_heads(struct kv_bench_rig *rig)
{
	struct shape shape = {"load_dram_4k", rig->head_first,
			      kv_bench_payload(rig->size) / KV_BENCH_HEAD, 0.5};

	return load(rig, &shape);
}

/* The whole batch, until the last pointer is in hand; giving back is not. */
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

/* The blocks stay where they are: nothing else asks for DRAM meanwhile. */
static double read_group(struct kv_bench_rig *rig, const void **pointers)
{
	size_t bytes = kv_bench_payload(rig->size), i;
	uint64_t begin = kv_bench_now();
	char *to = rig->spare.base;

	for (i = 0; i < KV_BENCH_GROUP; i++)
		memcpy(to + i * bytes, pointers[i], bytes);
	return (double)(kv_bench_now() - begin) / 1000;
}

static void report_lease(struct kv_bench_rig *rig,
			 struct kv_bench_sample *lease,
			 struct kv_bench_sample *copy)
{
	char name[64];
	struct kv_bench_figure figure = {
		.name = name,
		.value = kv_bench_sample_median(lease),
		.reference = kv_bench_sample_median(copy),
		.unit = "us",
		.against = "memcpy, 1 thread",
		.goal = "<= 150 us, ratio >= 200",
	};

	figure.ratio = figure.reference / figure.value;
	figure.met = figure.value <= 150 && figure.ratio >= 200;
	snprintf(name, sizeof(name), "lease_%s", rig->size->suffix);
	kv_bench_report_add(rig->bench->report, &figure);
	kv_bench_report_note(rig->bench->report,
			     "127 blocks; p10 %.1f us, p90 %.1f us",
			     kv_bench_sample_percentile(lease, 10),
			     kv_bench_sample_percentile(lease, 90));
}

int kv_bench_lease(struct kv_bench_rig *rig)
{
	size_t groups = rig->size->blocks / KV_BENCH_GROUP, round, i, group;
	size_t rounds = rig->bench->quick ? 8 : 30;
	struct kv_bench_sample lease = {0}, copy = {0};
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
		us = r < 0 ? 0 : read_group(rig, pointers);
		if (round > 0)
			kv_bench_sample_add(&copy, us);
	}
	if (r == 0)
		report_lease(rig, &lease, &copy);
	kv_bench_sample_fini(&lease);
	kv_bench_sample_fini(&copy);
	return r;
}

/* Every block from SSD; the bytes are compared in the first round. */
static int load_cold(struct kv_bench_rig *rig, bool verify, double *ret_speed)
{
	uint64_t bytes = rig->size->blocks * kv_bench_payload(rig->size);
	kvfs_lease *lease;
	uint64_t begin;
	int r;

	r = kv_bench_rig_chill(rig);
	if (r < 0)
		return r;
	begin = kv_bench_now();
	r = kv_bench_rig_acquire(rig, 0, rig->size->blocks, &lease);
	if (r < 0)
		return r;
	*ret_speed = (double)bytes / (double)(kv_bench_now() - begin);
	if (verify)
		r = kv_bench_rig_verify(rig, lease);
	kvfs_release(lease);
	return r;
}

int kv_bench_cold(struct kv_bench_rig *rig)
{
	uint64_t payload = kv_bench_payload(rig->size);
	uint64_t bytes = rig->size->blocks * payload;
	unsigned rounds = rig->bench->quick ? ROUNDS_QUICK : ROUNDS, round;
	struct kv_bench_sample cold = {0}, fio = {0};
	char name[64], path[PATH_MAX];
	double speed;
	int r;

	snprintf(name, sizeof(name), "load_ssd_cold_%s", rig->size->suffix);
	if (!kv_bench_program_found("fio")) {
		kv_bench_report_skip(rig->bench->report, name,
				     "fio is not installed");
		return 0;
	}
	snprintf(path, sizeof(path), "%s/fio", rig->bench->dir);
	r = kv_bench_fio_file(path, bytes);
	for (round = 0; round <= rounds && r == 0; round++) {
		r = load_cold(rig, round == 0, &speed);
		if (round > 0)
			kv_bench_sample_add(&cold, speed);
		if (r == 0)
			r = kv_bench_fio_read(&rig->bench->children, path,
					      payload, bytes, &speed);
		if (round > 0)
			kv_bench_sample_add(&fio, speed);
	}
	if (r == 0)
		kv_bench_report_speeds(rig->bench->report, name, &cold, &fio,
				       "fio read, O_DIRECT, depth 32", 0.95);
	kv_bench_remove(path);
	kv_bench_sample_fini(&cold);
	kv_bench_sample_fini(&fio);
	return r;
}
