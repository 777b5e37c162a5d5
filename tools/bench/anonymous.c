/* SPDX-License-Identifier: Apache-2.0 */
/*
 * anonymous.c - the daemon's memory beyond its arena.
 *
 * OWNS      nothing.
 *
 * LOCKING   none.
 */
#include "tools/bench/figures.h"

#include <stdio.h>

#define MIB (1024.0 * 1024.0)

int kv_bench_anonymous(struct kv_bench_rig *rig)
{
	long bytes = kv_bench_daemon_anonymous(&rig->daemon);
	double allowed = 64 * MIB + 112.0 * (double)rig->saved;
	char name[64];
	struct kv_bench_figure figure = {
		.name = name,
		.value = (double)bytes / MIB,
		.reference = allowed / MIB,
		.unit = "MiB",
		.against = "64 MiB + 112 bytes a block",
		.ratio = allowed / (double)bytes,
		.goal = "ratio >= 1",
		.met = (double)bytes <= allowed,
	};

	if (bytes < 0)
		return (int)bytes;
	snprintf(name, sizeof(name), "memory_anon_%s", rig->size->suffix);
	kv_bench_report_add(rig->bench->report, &figure);
	kv_bench_report_note(rig->bench->report, "%llu blocks saved",
			     (unsigned long long)rig->saved);
	return 0;
}
