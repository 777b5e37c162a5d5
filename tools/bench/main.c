/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - kvfs-bench: every figure against a reference of the same run.
 *
 * OWNS      the run: its directory, its children, its report.
 *
 * LOCKING   bench->cleaning: a thread of its own waits for SIGINT and SIGTERM
 *           and then ends the children, the directory and the process, unless
 *           main has begun to do so.
 */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "tools/bench/figures.h"
#include "tools/bench/run.h"

#define LIBRARY_THREADS 4 /* libkvfs copies with at most so many */

static const struct kv_bench_size sizes[] = {
	/* 128 K tokens, in blocks that let it fit into DRAM. */
	{"64k",
	 "{\"tensors\": ["
	 "{\"name\": \"k\", \"dtype\": \"BF16\", \"shape\": [1, 16, 8, 128]},"
	 "{\"name\": \"v\", \"dtype\": \"BF16\", \"shape\": [1, 16, 8, 128]}],"
	 "\"tokens\": 16}",
	 1, 8192, true},
	{"2304k",
	 "{\"tensors\": ["
	 "{\"name\": \"k\", \"dtype\": \"BF16\", \"shape\": [36, 16, 8, 128]},"
	 "{\"name\": \"v\", \"dtype\": \"BF16\", \"shape\": [36, 16, 8, 128]}],"
	 "\"tokens\": 16}",
	 36, KV_BENCH_GROUP, false},
	{"128k",
	 "{\"tensors\": ["
	 "{\"name\": \"k\", \"dtype\": \"BF16\", \"shape\": [2, 16, 8, 128]},"
	 "{\"name\": \"v\", \"dtype\": \"BF16\", \"shape\": [2, 16, 8, 128]}],"
	 "\"tokens\": 16}",
	 2, 16 * KV_BENCH_GROUP, false},
};

/* In an order in which none takes from DRAM what the next one needs there. */
static const struct measurement {
	const char *figures[3];
	/* The same for all sizes: no suffix, the last size only; or of the long
	 * context, whose size has no other figures. */
	enum { EACH, ONCE, CONTEXT } of;
	int (*measure)(struct kv_bench_rig *rig);
} measurements[] = {
	{{"snapshot_8192", "restore_first", "restore_all"},
	 CONTEXT,
	 kv_bench_context},
	{{"load_dram"}, EACH, kv_bench_load},
	{{"load_dram_layers"}, EACH, kv_bench_load_layers},
	{{"load_dram_split"}, EACH, kv_bench_load_split},
	{{"load_dram_4k"}, EACH, kv_bench_load_heads},
	{{"lease"}, EACH, kv_bench_lease},
	{{"probe128_p50", "probe128_p99"}, ONCE, kv_bench_probe},
	{{"read_mount_second", "read_mount_first"}, EACH, kv_bench_mount},
	{{"load_ssd_cold"}, EACH, kv_bench_cold},
	{{"save_sealed", "save_durable"}, EACH, kv_bench_save},
	{{"save_sealed_4k"}, EACH, kv_bench_save_heads},
	{{"save_lent"}, EACH, kv_bench_save_lent},
	{{"save_durable_4w"}, EACH, kv_bench_writers},
	{{"memory_anon"}, EACH, kv_bench_anonymous},
};

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static bool wanted(struct kv_bench *bench, const struct kv_bench_size *size,
		   const struct measurement *m)
{
	bool last = size == &sizes[COUNT(sizes) - 1];
	char name[64];
	size_t i;

	if ((m->of == CONTEXT) != size->context || (m->of == ONCE && !last))
		return false;
	for (i = 0; i < COUNT(m->figures) && m->figures[i]; i++) {
		snprintf(name, sizeof(name), m->of == EACH ? "%s_%s" : "%s",
			 m->figures[i], size->suffix);
		if (kv_bench_report_wants(bench->report, name))
			return true;
	}
	return false;
}

static int measure_size(struct kv_bench *bench,
			const struct kv_bench_size *size)
{
	bool any = false, wants[COUNT(measurements)];
	struct kv_bench_rig rig;
	int r, failed = 0;
	size_t i;

	for (i = 0; i < COUNT(measurements); i++) {
		wants[i] = wanted(bench, size, &measurements[i]);
		any |= wants[i];
	}
	if (!any)
		return 0;
	r = kv_bench_rig_open(bench, size, &rig);
	if (r < 0) {
		fprintf(stderr, "kvfs-bench: cannot set up blocks of %s: %s\n",
			size->suffix, strerror(-r));
		failed = 1;
	}
	for (i = 0; i < COUNT(measurements) && r == 0; i++) {
		int s = wants[i] ? measurements[i].measure(&rig) : 0;

		if (s < 0) {
			fprintf(stderr, "kvfs-bench: %s_%s: %s\n",
				measurements[i].figures[0], size->suffix,
				strerror(-s));
			failed = 1;
		}
	}
	kv_bench_rig_close(&rig);
	return failed;
}

static int measure_million(struct kv_bench *bench)
{
	int r = 0;

	if (kv_bench_report_wants(bench->report, "mount_clean_1m") ||
	    kv_bench_report_wants(bench->report, "mount_killed_1m"))
		r = kv_bench_million(bench);
	if (r < 0)
		fprintf(stderr, "kvfs-bench: mount_clean_1m: %s\n",
			strerror(-r));
	return r < 0;
}

static int measure_tree(struct kv_bench *bench)
{
	int r = kv_bench_tree(bench);

	if (r < 0)
		fprintf(stderr, "kvfs-bench: tree_find: %s\n", strerror(-r));
	return r < 0;
}

/* The lock is never given back: who begins to clean ends the process. */
static void clean(struct kv_bench *bench)
{
	pthread_mutex_lock(&bench->cleaning);
	kv_bench_children_end(&bench->children);
	kv_bench_workdir_remove(bench->dir);
}

static void *wait_for_signal(void *arg)
{
	struct kv_bench *bench = arg;
	sigset_t set;
	int signal;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	sigwait(&set, &signal);
	clean(bench);
	_exit(128 + signal);
}

static int watch_signals(struct kv_bench *bench)
{
	pthread_t thread;
	sigset_t set;
	int r;

	sigemptyset(&set);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGHUP);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	r = pthread_create(&thread, NULL, wait_for_signal, bench);
	if (r == 0)
		pthread_detach(thread);
	return -r;
}

static void print_machine(const struct kv_bench *bench)
{
	char line[256], cpu[200] = "?";
	FILE *f = fopen("/proc/cpuinfo", "re");
	struct utsname kernel;

	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "model name : %199[^\n]", cpu) == 1)
			break;
	if (f)
		fclose(f);
	uname(&kernel);
	printf("%s, %ld processors, Linux %s, %s\n", cpu,
	       sysconf(_SC_NPROCESSORS_ONLN), kernel.release,
	       kv_bench_filesystem(bench->dir));
}

static int usage(FILE *to)
{
	fprintf(to,
		"usage: kvfs-bench [--build DIR] [--dir DIR] [--only NAME] "
		"[--quick]\n"
		"  --build DIR  where kvfs is and bench.json goes (build)\n"
		"  --dir DIR    make the store below DIR (beside the build)\n"
		"  --only NAME  only figures whose names begin so\n"
		"  --quick      fewer rounds\n"
		"       kvfs-bench --nothing FILES MOUNTPOINT\n"
		"  serve FILES files by a FUSE server that does nothing\n");
	return to == stdout ? 0 : 2;
}

static int parse(int argc, char **argv, struct kv_bench *bench,
		 const char **ret_dir, const char **ret_only)
{
	static const struct option options[] = {
		{"build", required_argument, NULL, 'b'},
		{"dir", required_argument, NULL, 'd'},
		{"only", required_argument, NULL, 'o'},
		{"quick", no_argument, NULL, 'q'},
		{"help", no_argument, NULL, 'h'},
		{0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (c == 'b')
			bench->build = optarg;
		else if (c == 'd')
			*ret_dir = optarg;
		else if (c == 'o')
			*ret_only = optarg;
		else if (c == 'q')
			bench->quick = true;
		else
			exit(usage(c == 'h' ? stdout : stderr));
	}
	return optind == argc ? 0 : -EINVAL;
}

static int open_run(struct kv_bench *bench, const char *dir, const char *only)
{
	long processors = sysconf(_SC_NPROCESSORS_ONLN);
	char path[PATH_MAX];
	int r;

	bench->threads = processors < LIBRARY_THREADS ? (unsigned)processors
						      : LIBRARY_THREADS;
	kv_bench_children_init(&bench->children);
	pthread_mutex_init(&bench->cleaning, NULL);
	r = kv_bench_workdir_make(dir, bench->build, &bench->dir);
	if (r < 0)
		return r;
	r = watch_signals(bench);
	if (r < 0)
		return r;
	print_machine(bench);
	snprintf(path, sizeof(path), "%s/bench.json", bench->build);
	return kv_bench_report_new(path, only, &bench->report);
}

int main(int argc, char **argv)
{
	struct kv_bench bench = {.build = "build"};
	const char *dir = NULL, *only = NULL;
	int r, failed = 0;
	size_t i;

	if (argc == 4 && strcmp(argv[1], "--nothing") == 0)
		return kv_bench_nothing((unsigned)atoi(argv[2]), argv[3]);
	if (parse(argc, argv, &bench, &dir, &only) < 0)
		return usage(stderr);
	r = open_run(&bench, dir, only);
	if (r < 0)
		fprintf(stderr, "kvfs-bench: cannot begin: %s\n", strerror(-r));
	for (i = 0; i < COUNT(sizes) && r == 0; i++)
		failed |= measure_size(&bench, &sizes[i]);
	if (r == 0)
		failed |= measure_million(&bench) | measure_tree(&bench);
	if (r == 0) {
		kv_bench_report_sum(bench.report);
		r = kv_bench_report_close(bench.report);
	}
	if (bench.dir)
		clean(&bench);
	free(bench.dir);
	return r < 0 || failed;
}
