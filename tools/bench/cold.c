/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cold.c - SSD to arena, verified, against fio's reads on the same filesystem.
 *
 * OWNS      the file that fio reads, for the time of the measurement.
 *
 * LOCKING   none.
 */
#include "tools/bench/figures.h"

#include <errno.h>
#include <stdio.h>

#include "tools/bench/clock.h"
#include "tools/bench/fio.h"
#include "tools/bench/sample.h"
#include "tools/bench/workdir.h"

#define ROUNDS 7
#define ROUNDS_QUICK 5

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
