/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load.c - arena to pool, against memcpy between the same addresses.
 *
 * OWNS      the list of pieces that memcpy copies.
 *
 * INVARIANTS
 *   (1) Both copy KV_BENCH_GROUP blocks at a time.  Where there are several
 *       groups, memcpy's is half-way round from the load's, so that neither
 *       finds its bytes in the processor's cache because of the other.
 *
 * LOCKING   none.
 */
#include "tools/bench/figures.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench/clock.h"
#include "tools/bench/sample.h"

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
	kvfs_opts opts = {.first = group * KV_BENCH_GROUP};
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
