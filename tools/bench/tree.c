/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree.c - find, du, ls and rm of very many blocks, against the same of as many
 * files of a FUSE server that does nothing.
 *
 * OWNS      a store of its own, for the time of the measurement.
 *
 * LOCKING   none.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tools/bench/clock.h"
#include "tools/bench/run.h"
#include "tools/bench/figures.h"
#include "tools/bench/report.h"

#define BLOCKS 1000000u
#define BLOCKS_QUICK 100000u
#define TIMEOUT_MS 20000

/* In this order: what one leaves in the kernel's caches, it leaves there for
 * both servers. */
static const struct command {
	const char *name, *line;
	double most; /* times what the server that does nothing takes */
} commands[] = {
	{"tree_find", "find %s/million -type f >/dev/null", 1.3},
	{"tree_du", "du -s %s/million >/dev/null", 1.3},
	{"tree_ls", "ls -lR %s/million >/dev/null", 2},
	{"tree_rm", "rm -r %s/million", 1.5},
};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static int run_all(struct kv_bench *bench, const char *mount, const char *log,
		   double *ret_seconds)
{
	char line[PATH_MAX + 64];
	char *argv[] = {(char *)"sh", (char *)"-c", line, NULL};
	uint64_t begin;
	pid_t pid;
	size_t i;
	int r = 0;

	for (i = 0; i <= COMMANDS && r == 0; i++) {
		/* The first goes twice, and its first round is not counted. */
		const struct command *command = &commands[i ? i - 1 : 0];

		/* The program's own words, with the mount's path for %s. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
		snprintf(line, sizeof(line), command->line, mount);
#pragma GCC diagnostic pop
		begin = kv_bench_now();
		r = kv_bench_child_start(&bench->children, argv, log, &pid);
		if (r == 0)
			r = kv_bench_child_wait(&bench->children, pid);
		ret_seconds[command - commands] =
			(double)(kv_bench_now() - begin) / 1e9;
	}
	return r > 0 ? -EIO : r;
}

static int of_nothing(struct kv_bench *bench, unsigned files,
		      double *ret_seconds)
{
	char mount[PATH_MAX], log[PATH_MAX], there[PATH_MAX + 32], number[16];
	char *argv[] = {(char *)"/proc/self/exe", (char *)"--nothing", number,
			mount, NULL};
	unsigned waited;
	struct stat st;
	pid_t pid;
	int r;

	snprintf(mount, sizeof(mount), "%s/mnt", bench->dir);
	snprintf(log, sizeof(log), "%s/log", bench->dir);
	snprintf(there, sizeof(there), "%s/million", mount);
	snprintf(number, sizeof(number), "%u", files);
	if (mkdir(mount, 0700) < 0 && errno != EEXIST)
		return -errno;
	r = kv_bench_child_start(&bench->children, argv, log, &pid);
	if (r < 0)
		return r;
	for (waited = 0; waited < TIMEOUT_MS && stat(there, &st) < 0;
	     waited += 10)
		kv_bench_sleep_ms(10);
	r = run_all(bench, mount, log, ret_seconds);
	kv_bench_child_end(&bench->children, pid);
	return r;
}

static int of_kvfs(struct kv_bench *bench, unsigned blocks, double *ret_seconds)
{
	char store[PATH_MAX], options[64];
	struct kv_bench_daemon daemon = {0};
	uint64_t ssd = 0;
	int r;

	snprintf(store, sizeof(store), "%s/store", bench->dir);
	r = kv_bench_store_make(store, blocks, &ssd);
	snprintf(options, sizeof(options), "dram=64M,scrub=0,ssd=%llu",
		 (unsigned long long)ssd);
	if (r == 0)
		r = kv_bench_daemon_start(&bench->children, bench->build,
					  bench->dir, options, &daemon);
	if (r == 0) {
		r = run_all(bench, daemon.mount, daemon.log, ret_seconds);
		kv_bench_daemon_end(&daemon);
	}
	kv_bench_remove(store);
	return r;
}

static const char *figure_name(struct kv_bench *bench,
			       const struct command *command, char name[32])
{
	snprintf(name, 32, "%s_%s", command->name,
		 bench->quick ? "100k" : "1m");
	return name;
}

static void report(struct kv_bench *bench, const struct command *command,
		   double ours, double nothing)
{
	char goal[32], name[32];
	struct kv_bench_figure figure = {
		.name = figure_name(bench, command, name),
		.value = ours,
		.reference = nothing,
		.unit = "s",
		.against = "a FUSE server that does nothing",
		.ratio = nothing / ours,
		.goal = goal,
		.met = ours <= command->most * nothing,
	};

	snprintf(goal, sizeof(goal), "ratio >= %.2f", 1 / command->most);
	kv_bench_report_add(bench->report, &figure);
	kv_bench_report_note(bench->report, "%.2f times as long",
			     ours / nothing);
}

int kv_bench_tree(struct kv_bench *bench)
{
	const unsigned files = bench->quick ? BLOCKS_QUICK : BLOCKS;
	double ours[COMMANDS], nothing[COMMANDS];
	bool wanted = false;
	char name[32];
	size_t i;
	int r;

	for (i = 0; i < COMMANDS; i++)
		wanted |= kv_bench_report_wants(
			bench->report, figure_name(bench, &commands[i], name));
	if (!wanted)
		return 0;
	r = of_nothing(bench, files, nothing);
	if (r == 0)
		r = of_kvfs(bench, files, ours);
	for (i = 0; i < COMMANDS && r == 0; i++)
		report(bench, &commands[i], ours[i], nothing[i]);
	return r;
}
