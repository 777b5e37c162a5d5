/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - kvfs-bench: every figure against a reference of the same run.
 *
 * OWNS      the run: its directory and its report.
 *
 * LOCKING   none: one thread measures.
 */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "common/kv.h"
#include "tools/bench/bench.h"

#define LIBRARY_THREADS 4 /* most copy threads that libkvfs starts */

static const struct kv_bench_size sizes[] = {
	{"2304k", 36, KV_BENCH_GROUP},
	{"128k", 2, 16 * KV_BENCH_GROUP},
};

/* Measurements, ordered so that none evicts blocks that the next needs. */
static const struct measurement {
	const char *figures[4];
	/* ONCE: measured for the last size only, named without suffix */
	enum { EACH, ONCE } of;
	int (*measure)(struct kv_bench_rig *rig);
	const char *needs; /* program that the measurement needs; NULL: none */
} measurements[] = {
	{{"load_dram", "load_dram_layers", "load_dram_split", "load_dram_4k"},
	 EACH,
	 kv_bench_load},
	{{"lease"}, EACH, kv_bench_lease},
	{{"probe128_p50", "probe128_p99"},
	 ONCE,
	 kv_bench_probe,
	 "redis-server"},
	{{"read_mount_second", "read_mount_first"}, EACH, kv_bench_mount},
	{{"load_ssd_cold"}, EACH, kv_bench_cold, "fio"},
	{{"save_sealed", "save_durable"}, EACH, kv_bench_save},
	{{"save_sealed_4k"}, EACH, kv_bench_save_heads},
	{{"save_sealed_fd", "save_sealed_read"}, EACH, kv_bench_save_lent},
	{{"save_durable_4w"}, EACH, kv_bench_writers, "fio"},
	{{"memory_anon"}, EACH, kv_bench_anonymous},
};

/* Return whether to measure @m; report its figures as skipped without its program. */
static bool is_wanted(struct kv_bench *bench, const struct kv_bench_size *size,
		      const struct measurement *m)
{
	const bool last = size == &sizes[KV_ARRAY_LEN(sizes) - 1];
	const bool able = !m->needs || kv_bench_program_found(m->needs);
	const char *suffix = m->of == EACH ? size->suffix : NULL;
	bool wanted = false;

	if (m->of == ONCE && !last)
		return false;
	for (size_t i = 0; i < KV_ARRAY_LEN(m->figures) && m->figures[i]; i++) {
		wanted |= kv_bench_report_wants(bench->report, m->figures[i],
						suffix);
		if (!able)
			kv_bench_report_skip(bench->report, m->figures[i],
					     suffix, m->needs);
	}
	return wanted && able;
}

/* Report the error of a measurement, if any.  Return whether @r is an error. */
static bool failed(const char *figure, const char *suffix, int r)
{
	if (r < 0)
		fprintf(stderr, "kvfs-bench: %s%s%s: %s\n", figure,
			*suffix && !strchr(figure, ' ') ? "_" : "", suffix,
			strerror(-r));
	return r < 0;
}

static bool measure_size(struct kv_bench *bench,
			 const struct kv_bench_size *size)
{
	bool any = false, bad = false, wants[KV_ARRAY_LEN(measurements)];
	struct kv_bench_rig rig;
	size_t i;
	int r;

	for (i = 0; i < KV_ARRAY_LEN(measurements); i++) {
		wants[i] = is_wanted(bench, size, &measurements[i]);
		any |= wants[i];
	}
	if (!any)
		return false;
	r = kv_bench_rig_open(bench, size, &rig);
	bad = failed("setting up blocks of ", size->suffix, r);
	for (i = 0; i < KV_ARRAY_LEN(measurements) && r == 0; i++)
		if (wants[i])
			bad |= failed(measurements[i].figures[0], size->suffix,
				      measurements[i].measure(&rig));
	kv_bench_rig_close(&rig);
	return bad;
}

static void print_machine(void)
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
	printf("%s, %ld processors, Linux %s\n", cpu,
	       sysconf(_SC_NPROCESSORS_ONLN), kernel.release);
}

static int usage(FILE *to)
{
	fprintf(to,
		"usage: kvfs-bench [--build DIR] [--dir DIR] [--only NAME] "
		"[--quick] [--json]\n"
		"  --build DIR  folder of kvfs, and of bench.json (build)\n"
		"  --dir DIR    make the store below DIR (beside the build)\n"
		"  --only NAME  only figures whose names begin with NAME\n"
		"  --quick      fewer rounds\n"
		"  --json       print a JSON array, and the table on stderr\n");
	return to == stdout ? 0 : 2;
}

static int parse(int argc, char **argv, struct kv_bench *bench,
		 const char **ret_dir)
{
	static const struct option options[] = {
		{"build", required_argument, NULL, 'b'},
		{"dir", required_argument, NULL, 'd'},
		{"only", required_argument, NULL, 'o'},
		{"quick", no_argument, NULL, 'q'},
		{"json", no_argument, NULL, 'j'},
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
			bench->only = optarg;
		else if (c == 'q')
			bench->quick = true;
		else if (c == 'j')
			bench->json = true;
		else
			exit(usage(c == 'h' ? stdout : stderr));
	}
	return optind == argc ? 0 : -EINVAL;
}

/* Measure all figures that are wanted.  Return the exit status. */
static int measure(struct kv_bench *bench)
{
	bool bad = false;
	char path[PATH_MAX];
	int r, out = dup(STDOUT_FILENO);

	if (bench->json)
		dup2(STDERR_FILENO, STDOUT_FILENO);
	print_machine();
	snprintf(path, sizeof(path), "%s/bench.json", bench->build);
	r = kv_bench_report_new(path, bench->only, &bench->report);
	for (size_t i = 0; i < KV_ARRAY_LEN(sizes) && r == 0; i++)
		bad |= measure_size(bench, &sizes[i]);
	if (r == 0 &&
	    (kv_bench_report_wants(bench->report, "mount_clean_1m", NULL) ||
	     kv_bench_report_wants(bench->report, "mount_killed_1m", NULL)))
		bad |= failed("mount_clean_1m", "", kv_bench_million(bench));
	if (r == 0 && bench->json)
		bad |= failed("standard output", "",
			      kv_bench_report_json(bench->report, out));
	if (r == 0)
		r = kv_bench_report_close(bench->report);
	if (r < 0)
		fprintf(stderr, "kvfs-bench: cannot write %s: %s\n", path,
			strerror(-r));
	return r < 0 || bad;
}

int main(int argc, char **argv)
{
	struct kv_bench bench = {.build = "build"};
	const char *dir = NULL;
	char path[PATH_MAX];
	int r;

	if (parse(argc, argv, &bench, &dir) < 0)
		return usage(stderr);
	bench.rounds = bench.quick ? 5 : 7;
	bench.threads = (unsigned)KV_MIN(sysconf(_SC_NPROCESSORS_ONLN),
					 LIBRARY_THREADS);
	snprintf(bench.memcpy_text, sizeof(bench.memcpy_text),
		 "memcpy, %u threads", bench.threads);
	snprintf(path, sizeof(path),
		 dir ? "%s/kvfs-bench-XXXXXX" : "%s-bench-XXXXXX",
		 dir ? dir : bench.build);
	bench.dir = mkdtemp(path) ? realpath(path, NULL) : NULL;
	if (!bench.dir) {
		fprintf(stderr, "kvfs-bench: cannot use %s: %s\n",
			dir ? dir : bench.build, strerror(errno));
		return 1;
	}
	r = kv_bench_supervise(&bench, measure);
	free(bench.dir);
	return r;
}
