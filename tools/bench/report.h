/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.h - sets of measurements, and figures of them, as a table for people
 * and as JSON lines for programs.
 */
#ifndef KV_TOOLS_BENCH_REPORT_H
#define KV_TOOLS_BENCH_REPORT_H

#include <stdbool.h>
#include <stddef.h>

/* A growing set of measurements. */
struct kv_bench_sample {
	double *values;
	size_t n, room;
};

/* Nothing is kept when memory is short; the percentile then is 0. */
void kv_bench_sample_add(struct kv_bench_sample *sample, double value);

/* The value that @percent of all are not above; sorts @sample.  0 if empty. */
double kv_bench_sample_percentile(struct kv_bench_sample *sample,
				  double percent);
double kv_bench_sample_median(struct kv_bench_sample *sample);

/* Usable with __attribute__((cleanup)). */
void kv_bench_sample_fini(struct kv_bench_sample *sample);

struct kv_bench_figure {
	const char *name; /* with its suffix */
	double value, reference;
	const char *unit;    /* of both */
	const char *against; /* what the reference is */
	double ratio;	  /* how many times as good as the reference; 0: none */
	const char *goal; /* in words; "" if it has none */
	bool met;
};

struct kv_bench_report;

/* @only: figures whose names begin otherwise are left out; NULL: none are.
 * -ENOMEM. */
int kv_bench_report_new(const char *path, const char *only,
			struct kv_bench_report **ret_report);

/* Write the file @path, and free.  Takes NULL.  Why it cannot be written. */
int kv_bench_report_close(struct kv_bench_report *report);

/* Whether a figure of this name is asked for. */
bool kv_bench_report_wants(struct kv_bench_report *report, const char *name);

void kv_bench_report_add(struct kv_bench_report *report,
			 const struct kv_bench_figure *figure);

/* A line that stands below the figure before it, in the table only. */
void kv_bench_report_note(struct kv_bench_report *report, const char *format,
			  ...) __attribute__((format(printf, 2, 3)));

/* Medians of what was measured, GB/s, that meet their goal if their ratio is
 * @goal at least; with their spread below. */
void kv_bench_report_speeds(struct kv_bench_report *report, const char *name,
			    struct kv_bench_sample *speeds,
			    struct kv_bench_sample *references,
			    const char *against, double goal);

/* A figure that is missing, and why. */
void kv_bench_report_skip(struct kv_bench_report *report, const char *name,
			  const char *why);
/* How many figures there are, and how many of them met their goals. */
void kv_bench_report_sum(struct kv_bench_report *report);

#endif
