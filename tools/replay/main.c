/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - kvfs-replay: the hit rate that a trace gets from a policy and a
 * capacity, simulated.
 *
 * OWNS      the policy names of the command line, and the trace.
 *
 * LOCKING   none: one thread; getopt and the progress line have static state.
 */
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>

#include "cache/evict/policy.h"
#include "kernels/kvfs.h"
#include "tools/replay/replay.h"

#define POLICIES 16
#define CAPACITIES 64

struct args {
	const char *policies[POLICIES];
	size_t n_policies;
	uint32_t capacities[CAPACITIES]; /* ascending, in blocks */
	size_t n_capacities;
	/* capacity in bytes, 0: none; bytes of a token */
	uint64_t bytes, token_bytes;
	uint32_t block_size;
	bool json, bound;
	const char *trace;
	char *words; /* memory of the names in @policies */
};

static const char help[] =
	"usage: kvfs-replay [--policy P[,P...]] [--blocks N[,N...] | --bytes "
	"SIZE]\n"
	"  [--token-bytes N] [--block-size TOKENS] [--bound] [--json]\n"
	"  TRACE[.gz]\n"
	"policies:";

static void show_help(FILE *f)
{
	fputs(help, f);
	for (unsigned i = 0; kv_policy_name(i); i++)
		fprintf(f, " %s", kv_policy_name(i));
	fputs("\nSee kvfs-replay(1).\n", f);
}

enum { BOUND = 256, HELP, JSON, WITHDRAWN };

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

static int check_policy(const char *name)
{
	static const char *const withdrawn[] = {"arc", "s3fifo", "sieve"};

	for (unsigned i = 0; kv_policy_name(i); i++)
		if (strcmp(name, kv_policy_name(i)) == 0)
			return 0;
	for (size_t i = 0; i < KV_ARRAY_LEN(withdrawn); i++)
		if (strcmp(name, withdrawn[i]) == 0)
			return refuse("--policy %s: withdrawn, since the "
				      "daemon has no such policy",
				      name);
	return strcmp(name, "bound") == 0
		       ? 0
		       : refuse("--policy %s: there is no such policy", name);
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
		if (check_policy(word) < 0)
			return -EINVAL;
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
	case BOUND:
		args->bound = true;
		return 0;
	case JSON:
		args->json = true;
		return 0;
	case WITHDRAWN:
		return refuse("--csv, --plot and --mount are withdrawn");
	case HELP:
		show_help(stdout);
		return 1;
	default:
		show_help(stderr);
		return -EINVAL;
	}
}

/* 0; 1: help was printed; -EINVAL: the error was printed */
static int parse(int argc, char **argv, struct args *ret_args)
{
	static const struct option longs[] = {
		{"policy", required_argument, NULL, 'p'},
		{"blocks", required_argument, NULL, 'b'},
		{"bytes", required_argument, NULL, 'B'},
		{"token-bytes", required_argument, NULL, 't'},
		{"block-size", required_argument, NULL, 's'},
		{"bound", no_argument, NULL, BOUND},
		{"json", no_argument, NULL, JSON},
		{"csv", no_argument, NULL, WITHDRAWN},
		{"plot", required_argument, NULL, WITHDRAWN},
		{"mount", required_argument, NULL, WITHDRAWN},
		{"help", no_argument, NULL, HELP},
		{NULL, 0, NULL, 0}};
	struct args args = {.block_size = 512, .token_bytes = 128 << 10};
	int c, r = 0;

	while (r == 0 && (c = getopt_long(argc, argv, "", longs, NULL)) != -1)
		r = take(&args, c, optarg);
	if (r == 0 && optind < argc)
		args.trace = argv[optind++];
	if (r == 0 && !args.trace)
		r = refuse("TRACE is missing; see --help");
	if (r == 0 && optind < argc)
		r = refuse("%s: one argument too many", argv[optind]);
	if (r == 0 && args.bytes && args.n_capacities)
		r = refuse("--blocks and --bytes exclude each other");
	if (r != 0) {
		free(args.words);
		return r;
	}
	for (unsigned i = 0; !args.words && kv_policy_name(i); i++)
		args.policies[args.n_policies++] = kv_policy_name(i);
	if (args.bound)
		args.policies[args.n_policies++] = "bound";
	*ret_args = args;
	return 0;
}

/* Set the capacities that depend on the trace: the defaults, or --bytes. */
static void choose_capacities(struct args *args, const struct kv_trace *trace)
{
	static const uint32_t parts[] = {100, 50, 20, 10, 5, 2, 1};

	if (args->bytes) {
		uint64_t n =
			args->bytes / (args->token_bytes * trace->block_size);

		args->capacities[0] =
			(uint32_t)KV_MAX(1u, KV_MIN(n, UINT32_MAX / 8));
		args->n_capacities = 1;
	}
	if (args->n_capacities)
		return;
	for (size_t i = 0; i < KV_ARRAY_LEN(parts); i++) {
		uint32_t n = KV_MAX(trace->unique / parts[i], 1u);
		size_t had = args->n_capacities;

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

static int run_one(const struct kv_trace *trace, const char *policy,
		   uint32_t blocks, uint64_t *ret_hits)
{
	bool show = isatty(STDERR_FILENO);
	int r;

	step_policy = policy;
	step_blocks = blocks;
	if (strcmp(policy, "bound") == 0)
		r = kv_replay_bound(trace, blocks, show ? step : NULL,
				    ret_hits);
	else
		r = kv_replay_run(trace, policy, blocks, show ? step : NULL,
				  ret_hits);
	if (show)
		fprintf(stderr, "\r%40s\r", "");
	if (r < 0)
		fprintf(stderr, "kvfs-replay: %s\n", strerror(-r));
	return r;
}

/* Print one result; rows of a JSON array are separated by commas. */
static void print_row(const struct args *args, const struct kv_trace *trace,
		      const char *policy, uint32_t blocks, uint64_t hits)
{
	static bool printed;
	unsigned long long asked = kv_trace_asked(trace);

	if (args->json)
		printf(printed ? ",\n" : "\n");
	printed = true;
	printf(args->json ? "{\"policy\": \"%s\", \"blocks\": %u, "
			    "\"requests\": %zu, \"hits\": %llu, "
			    "\"blocks_asked\": %llu, \"hit_rate\": %.4f}"
			  : "policy=%s blocks=%u requests=%zu hits=%llu "
			    "blocks_asked=%llu hit_rate=%.4f\n",
	       policy, blocks, trace->n, (unsigned long long)hits, asked,
	       asked ? (double)hits / (double)asked : 0);
	fflush(stdout);
}

static int simulate(const struct args *args, const struct kv_trace *trace)
{
	for (size_t p = 0; p < args->n_policies; p++)
		for (size_t c = 0; c < args->n_capacities; c++) {
			const char *policy = args->policies[p];
			uint64_t hits;
			int r = run_one(trace, policy, args->capacities[c],
					&hits);

			if (r < 0)
				return r;
			print_row(args, trace, policy, args->capacities[c],
				  hits);
		}
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
	r = kv_trace_read(args.trace, args.block_size, &trace, &why);
	if (r < 0) {
		fprintf(stderr, "%s\n", why ? why : strerror(-r));
		free(why);
	} else {
		choose_capacities(&args, trace);
		printf(args.json ? "[" : "");
		r = simulate(&args, trace);
		printf(args.json ? "\n]\n" : "");
	}
	kv_trace_free(trace);
	free(args.words);
	return r < 0 || fflush(stdout) != 0 ? 1 : 0;
}
