/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - kvfs-replay: the hit rate that a trace gets from a policy and a
 * capacity, computed or on a live mount.
 *
 * OWNS      the trace and the rows of results.
 *
 * LOCKING   none: one thread.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/replay/args.h"
#include "tools/replay/bench.h"
#include "tools/replay/live.h"
#include "tools/replay/out.h"
#include "tools/replay/plot.h"
#include "tools/replay/sim.h"

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
	struct kv_replay_result result = {0};
	int r;

	step_policy = row->policy;
	step_blocks = row->blocks;
	if (strcmp(row->policy, "bound") == 0)
		r = kv_replay_bound(trace, row->blocks, show ? step : NULL,
				    &result);
	else
		r = kv_replay_run(trace, row->policy, row->blocks,
				  show ? step : NULL, &result);
	step_end(show);
	row->requests = trace->n;
	row->asked = kv_trace_asked(trace);
	row->hits = result.hits;
	return r;
}

static int simulate(const struct kv_args *args, const struct kv_trace *trace,
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

static int plot(const struct kv_args *args, const struct kv_row *rows)
{
	struct kv_curve curves[KV_ARGS_POLICIES];
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

static int compute(const struct kv_args *args, const struct kv_trace *trace)
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
static int replay_live(const struct kv_args *args, const struct kv_trace *trace)
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
	struct kv_args args;
	char *why;
	int r = kv_args_parse(argc, argv, &args);

	if (r != 0)
		return r < 0 ? 2 : 0;
	if (args.bench) {
		r = kv_replay_bench(&args);
	} else {
		r = kv_trace_read(args.trace, args.block_size, &trace, &why);
		if (r < 0) {
			fprintf(stderr, "%s\n", why ? why : strerror(-r));
			free(why);
		} else {
			kv_args_settle(&args, trace);
			r = args.mount ? replay_live(&args, trace)
				       : compute(&args, trace);
		}
	}
	kv_trace_free(trace);
	kv_args_fini(&args);
	return r < 0 || fflush(stdout) != 0 ? 1 : 0;
}
