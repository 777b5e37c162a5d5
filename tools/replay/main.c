/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - kvfs-replay: its command line, and the hit rate that a trace gets
 * from a policy and a capacity, computed or on a live mount.
 *
 * OWNS      the names asked for, the trace and the rows of results.
 *
 * LOCKING   none: one thread; getopt's state is the process's.
 */
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/replay/bench.h"
#include "tools/replay/live.h"
#include "tools/replay/out.h"
#include "tools/replay/sim.h"

#define POLICIES 16
#define CAPACITIES 64

struct args {
	const char *policies[POLICIES];
	size_t n_policies;
	uint32_t capacities[CAPACITIES]; /* ascending, in blocks */
	size_t n_capacities;
	uint64_t bytes, token_bytes; /* a capacity in bytes; 0: none */
	uint32_t block_size;
	enum kv_format format;
	bool bound;
	const char *plot, *mount;
	const char *bench; /* append figures to this file */
	const char *trace; /* bench: NULL if none was given */
	char *words;	   /* the texts of @policies */
};

static const char help[] =
	"usage: kvfs-replay [--policy P[,P...]] [--blocks N[,N...] | --bytes "
	"SIZE]\n"
	"  [--token-bytes N] [--block-size TOKENS] [--bound] [--csv | "
	"--json]\n"
	"  [--plot FILE] [--mount PATH] TRACE[.gz]\n"
	"policies:";

static void show_help(FILE *f)
{
	fputs(help, f);
	for (unsigned i = 0; kv_replay_name(i); i++)
		fprintf(f, " %s", kv_replay_name(i));
	fputs("\nSee kvfs-replay(1).\n", f);
}

enum { BOUND = 256, BENCH, HELP, CSV, JSON };

static int refuse(const char *format, ...)
	__attribute__((format(printf, 1, 2)));

static int refuse(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "kvfs-replay: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
	return -EINVAL;
}

static int number(const char *name, const char *text, uint64_t most,
		  uint64_t *ret_value)
{
	char *end;
	unsigned long long value;
	static const char units[] = "KMGT";
	const char *unit;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (end == text || text[0] == '-' || errno)
		return refuse("%s %s: not a number", name, text);
	unit = *end ? strchr(units, *end) : NULL;
	if (unit && most > UINT32_MAX) {
		value <<= 10 * (unit - units + 1);
		end++;
	}
	if (*end || value == 0 || value > most)
		return refuse("%s %s: not a number from 1 to %llu", name, text,
			      (unsigned long long)most);
	*ret_value = value;
	return 0;
}

static bool known(const char *name)
{
	for (unsigned i = 0; kv_replay_name(i); i++)
		if (strcmp(name, kv_replay_name(i)) == 0)
			return true;
	return strcmp(name, "bound") == 0;
}

static int take_policies(struct args *args, const char *text)
{
	char *save, *word;

	free(args->words);
	args->words = strdup(text);
	args->n_policies = 0;
	if (!args->words)
		return -ENOMEM;
	for (word = strtok_r(args->words, ",", &save); word;
	     word = strtok_r(NULL, ",", &save)) {
		if (!known(word))
			return refuse("--policy %s: there is no such policy",
				      word);
		if (args->n_policies == POLICIES - 1)
			return refuse("--policy: too many");
		args->policies[args->n_policies++] = word;
	}
	return args->n_policies ? 0 : refuse("--policy: none is named");
}

static int by_size(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static int take_blocks(struct args *args, const char *text)
{
	char *words = strdup(text), *save, *word;
	int r = words ? 0 : -ENOMEM;

	args->n_capacities = 0;
	for (word = words ? strtok_r(words, ",", &save) : NULL; r == 0 && word;
	     word = strtok_r(NULL, ",", &save)) {
		uint64_t value = 0;

		if (args->n_capacities == CAPACITIES)
			r = refuse("--blocks: too many");
		else
			r = number("--blocks", word, UINT32_MAX / 8, &value);
		if (r == 0)
			args->capacities[args->n_capacities++] =
				(uint32_t)value;
	}
	free(words);
	if (r == 0 && args->n_capacities == 0)
		r = refuse("--blocks: no number");
	qsort(args->capacities, args->n_capacities, sizeof(args->capacities[0]),
	      by_size);
	return r;
}

static int take(struct args *args, int c, const char *value)
{
	uint64_t n = args->block_size;
	int r = 0;

	switch (c) {
	case 'p':
		return take_policies(args, value);
	case 'b':
		return take_blocks(args, value);
	case 'B':
		return number("--bytes", value, UINT64_MAX >> 1, &args->bytes);
	case 't':
		return number("--token-bytes", value, UINT64_MAX >> 1,
			      &args->token_bytes);
	case 's':
		r = number("--block-size", value, UINT32_MAX / 2, &n);
		args->block_size = (uint32_t)n;
		return r;
	case 'o':
		args->plot = value;
		return 0;
	case 'm':
		args->mount = value;
		return 0;
	case BOUND:
		args->bound = true;
		return 0;
	case BENCH:
		args->bench = value;
		return 0;
	case CSV:
	case JSON:
		args->format = c == CSV ? KV_FORMAT_CSV : KV_FORMAT_JSON;
		return 0;
	case HELP:
		show_help(stdout);
		return 1;
	default:
		show_help(stderr);
		return -EINVAL;
	}
}

static int take_all(int argc, char **argv, struct args *args)
{
	static const struct option longs[] = {
		{"policy", required_argument, NULL, 'p'},
		{"blocks", required_argument, NULL, 'b'},
		{"bytes", required_argument, NULL, 'B'},
		{"token-bytes", required_argument, NULL, 't'},
		{"block-size", required_argument, NULL, 's'},
		{"plot", required_argument, NULL, 'o'},
		{"mount", required_argument, NULL, 'm'},
		{"bound", no_argument, NULL, BOUND},
		{"csv", no_argument, NULL, CSV},
		{"json", no_argument, NULL, JSON},
		{"bench", required_argument, NULL, BENCH},
		{"help", no_argument, NULL, HELP},
		{NULL, 0, NULL, 0}};
	int c, r = 0;

	while (r == 0 && (c = getopt_long(argc, argv, "", longs, NULL)) != -1)
		r = take(args, c, optarg);
	return r;
}

/* 0; 1: help was asked for, and given; -EINVAL: said on stderr why not. */
static int parse(int argc, char **argv, struct args *ret_args)
{
	struct args args = {.block_size = 512, .token_bytes = 128 << 10};
	int r = take_all(argc, argv, &args);

	if (r == 0 && optind < argc)
		args.trace = argv[optind++];
	if (r == 0 && !args.trace && !args.bench)
		r = refuse("TRACE is missing; see --help");
	if (r == 0 && optind < argc)
		r = refuse("%s: one argument too many", argv[optind]);
	if (r == 0 && args.bytes && args.n_capacities)
		r = refuse("--blocks and --bytes exclude each other");
	if (r != 0) {
		free(args.words);
		return r;
	}
	for (unsigned i = 0; !args.words && kv_replay_name(i); i++)
		args.policies[args.n_policies++] = kv_replay_name(i);
	if (args.bound)
		args.policies[args.n_policies++] = "bound";
	*ret_args = args;
	return 0;
}

/* Settings that need the trace: the capacities where none, or bytes, were
 * given. */
static void settle(struct args *args, const struct kv_trace *trace)
{
	static const uint32_t parts[] = {100, 50, 20, 10, 5, 2, 1};
	uint64_t block = args->token_bytes * trace->block_size;

	if (args->bytes) {
		uint64_t n = args->bytes / block;

		n = n > UINT32_MAX / 8 ? UINT32_MAX / 8 : n;
		args->capacities[0] = n ? (uint32_t)n : 1;
		args->n_capacities = 1;
	}
	if (args->n_capacities || args->mount)
		return;
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		uint32_t n = trace->unique / parts[i];
		size_t had = args->n_capacities;

		n = n ? n : 1;
		if (!had || args->capacities[had - 1] != n)
			args->capacities[args->n_capacities++] = n;
	}
}

static const char *step_policy;
static uint32_t step_blocks;

static void step(double part)
{
	fprintf(stderr, "\r%-7s %10u blocks %3d%% ", step_policy, step_blocks,
		(int)(part * 100));
}

static void step_end(bool shown)
{
	if (shown)
		fprintf(stderr, "\r%40s\r", "");
}

static int run_one(const struct kv_trace *trace, struct kv_row *row)
{
	bool show = isatty(STDERR_FILENO);
	uint64_t hits = 0;
	int r;

	step_policy = row->policy;
	step_blocks = row->blocks;
	if (strcmp(row->policy, "bound") == 0)
		r = kv_replay_bound(trace, row->blocks, show ? step : NULL,
				    &hits);
	else
		r = kv_replay_run(trace, row->policy, row->blocks,
				  show ? step : NULL, &hits);
	step_end(show);
	row->requests = trace->n;
	row->asked = kv_trace_asked(trace);
	row->hits = hits;
	return r;
}

static int simulate(const struct args *args, const struct kv_trace *trace,
		    struct kv_row *rows)
{
	struct kv_row *row = rows;

	for (size_t p = 0; p < args->n_policies; p++)
		for (size_t c = 0; c < args->n_capacities; c++, row++) {
			int r;

			row->policy = args->policies[p];
			row->blocks = args->capacities[c];
			r = run_one(trace, row);
			if (r < 0)
				return r;
			kv_out_row(args->format, row);
		}
	return 0;
}

static int plot(const struct args *args, const struct kv_row *rows)
{
	struct kv_curve curves[POLICIES];
	double *rates =
		malloc(args->n_policies * args->n_capacities * sizeof(*rates));
	int r;

	if (!rates)
		return -ENOMEM;
	for (size_t i = 0; i < args->n_policies * args->n_capacities; i++)
		rates[i] = kv_row_rate(&rows[i]);
	for (size_t p = 0; p < args->n_policies; p++)
		curves[p] = (struct kv_curve){args->policies[p],
					      rates + p * args->n_capacities};
	r = kv_plot(args->plot, args->trace, args->capacities,
		    args->n_capacities, curves, args->n_policies);
	free(rates);
	if (r < 0)
		fprintf(stderr, "kvfs-replay: %s: %s\n", args->plot,
			strerror(-r));
	return r;
}

static int compute(const struct args *args, const struct kv_trace *trace)
{
	struct kv_row *rows =
		calloc(args->n_policies * args->n_capacities, sizeof(*rows));
	int r = rows ? 0 : -ENOMEM;

	kv_out_begin(args->format);
	if (r == 0)
		r = simulate(args, trace, rows);
	kv_out_end(args->format);
	if (r < 0)
		fprintf(stderr, "kvfs-replay: %s\n", strerror(-r));
	else if (args->plot)
		r = plot(args, rows);
	free(rows);
	return r;
}

/* On the mount, and what the same policy gets in as many blocks. */
static int replay_live(const struct args *args, const struct kv_trace *trace)
{
	struct kv_live_result live = {0};
	struct kv_row row = {0};
	char name[64];
	int r = kv_live_run(args->mount, trace, &live);

	if (r < 0) {
		fprintf(stderr, "kvfs-replay: %s: %s\n", args->mount,
			live.why ? live.why : strerror(-r));
		return r;
	}
	row.policy = live.policy;
	row.blocks =
		args->n_capacities == 1 ? args->capacities[0] : live.blocks;
	r = run_one(trace, &row);
	if (r < 0)
		return r;
	kv_out_begin(args->format);
	kv_out_row(args->format, &row);
	snprintf(name, sizeof(name), "%s-live", live.policy);
	row.policy = name;
	row.hits = live.hits;
	kv_out_row(args->format, &row);
	kv_out_end(args->format);
	return 0;
}

int main(int argc, char **argv)
{
	struct kv_trace *trace = NULL;
	struct args args;
	char *why;
	int r = parse(argc, argv, &args);

	if (r != 0)
		return r < 0 ? 2 : 0;
	if (args.bench) {
		r = kv_replay_bench(args.bench, args.trace, args.block_size);
	} else {
		r = kv_trace_read(args.trace, args.block_size, &trace, &why);
		if (r < 0) {
			fprintf(stderr, "%s\n", why ? why : strerror(-r));
			free(why);
		} else {
			settle(&args, trace);
			r = args.mount ? replay_live(&args, trace)
				       : compute(&args, trace);
		}
	}
	kv_trace_free(trace);
	free(args.words);
	return r < 0 || fflush(stdout) != 0 ? 1 : 0;
}
