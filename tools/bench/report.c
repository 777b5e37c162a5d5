/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - sets of measurements; figures of them as a table for people and as
 * JSON lines for programs.
 *
 * OWNS      the JSON lines, in memory until the end, so that a run cut short
 *           leaves the file of the last whole one.
 *
 * LOCKING   none: one thread reports.
 */
#include "tools/bench/report.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void kv_bench_sample_add(struct kv_bench_sample *sample, double value)
{
	if (sample->n == sample->room) {
		size_t room = sample->room ? 2 * sample->room : 64;
		double *values =
			realloc(sample->values, room * sizeof(*values));

		if (!values)
			return;
		sample->values = values;
		sample->room = room;
	}
	sample->values[sample->n++] = value;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double kv_bench_sample_percentile(struct kv_bench_sample *sample,
				  double percent)
{
	double at;

	if (sample->n == 0)
		return 0;
	qsort(sample->values, sample->n, sizeof(*sample->values), compare);
	at = percent / 100 * (double)(sample->n - 1);
	return sample->values[(size_t)(at + 0.5)];
}

double kv_bench_sample_median(struct kv_bench_sample *sample)
{
	return kv_bench_sample_percentile(sample, 50);
}

void kv_bench_sample_fini(struct kv_bench_sample *sample)
{
	free(sample->values);
	*sample = (struct kv_bench_sample){0};
}

struct kv_bench_report {
	FILE *json; /* a stream into @lines */
	char *lines, *path;
	size_t bytes;
	const char *only;
	bool shown; /* the figure before is in the table */
	unsigned figures, with_goal, met, skipped;
};

int kv_bench_report_new(const char *path, const char *only,
			struct kv_bench_report **ret_report)
{
	struct kv_bench_report *report = calloc(1, sizeof(*report));

	if (!report)
		return -ENOMEM;
	report->only = only;
	report->path = strdup(path);
	report->json = open_memstream(&report->lines, &report->bytes);
	if (!report->path || !report->json) {
		if (report->json)
			fclose(report->json);
		free(report->lines);
		free(report->path);
		free(report);
		return -ENOMEM;
	}
	printf("%-28s %11s %-5s %11s  %-34s %9s  %s\n", "figure", "value", "",
	       "reference", "", "ratio", "goal");
	*ret_report = report;
	return 0;
}

static int write_lines(const struct kv_bench_report *report)
{
	FILE *f = fopen(report->path, "we");
	int r = 0;

	if (!f)
		return -errno;
	if (fwrite(report->lines, 1, report->bytes, f) != report->bytes)
		r = -EIO;
	if (fclose(f) != 0)
		r = -errno;
	return r;
}

int kv_bench_report_close(struct kv_bench_report *report)
{
	int r;

	if (!report)
		return 0;
	r = fclose(report->json) == 0 ? write_lines(report) : -ENOMEM;
	free(report->lines);
	free(report->path);
	free(report);
	return r;
}

bool kv_bench_report_wants(struct kv_bench_report *report, const char *name)
{
	return !report->only ||
	       strncmp(name, report->only, strlen(report->only)) == 0;
}

static void print_row(const struct kv_bench_figure *f)
{
	char ratio[32] = "-";

	if (f->ratio > 0)
		snprintf(ratio, sizeof(ratio), "%.2f", f->ratio);
	printf("%-28s %11.2f %-5s %11.2f  %-34s %9s  %s%s%s\n", f->name,
	       f->value, f->unit, f->reference, f->against, ratio, f->goal,
	       *f->goal ? ": " : "",
	       !*f->goal ? ""
	       : f->met	 ? "met"
			 : "MISSED");
	fflush(stdout);
}

void kv_bench_report_add(struct kv_bench_report *report,
			 const struct kv_bench_figure *f)
{
	report->shown = kv_bench_report_wants(report, f->name);
	if (!report->shown)
		return;
	print_row(f);
	report->figures++;
	report->with_goal += *f->goal != 0;
	report->met += *f->goal && f->met;
	fprintf(report->json,
		"{\"figure\": \"%s\", \"value\": %.6g, \"unit\": \"%s\", "
		"\"reference\": %.6g, \"ratio\": %.6g, ",
		f->name, f->value, f->unit, f->reference, f->ratio);
	if (*f->goal)
		fprintf(report->json, "\"goal\": \"%s\", \"met\": %s}\n",
			f->goal, f->met ? "true" : "false");
	else
		fprintf(report->json, "\"goal\": null, \"met\": null}\n");
}

void kv_bench_report_note(struct kv_bench_report *report, const char *format,
			  ...)
{
	va_list args;

	if (!report->shown)
		return;
	va_start(args, format);
	printf("    ");
	vprintf(format, args);
	printf("\n");
	va_end(args);
	fflush(stdout);
}

void kv_bench_report_speeds(struct kv_bench_report *report, const char *name,
			    struct kv_bench_sample *speeds,
			    struct kv_bench_sample *references,
			    const char *against, double goal)
{
	char words[32];
	struct kv_bench_figure figure = {
		.name = name,
		.value = kv_bench_sample_median(speeds),
		.reference = kv_bench_sample_median(references),
		.unit = "GB/s",
		.against = against,
		.goal = words,
	};

	snprintf(words, sizeof(words), "ratio >= %g", goal);
	figure.ratio = figure.value / figure.reference;
	figure.met = figure.ratio >= goal;
	kv_bench_report_add(report, &figure);
	kv_bench_report_note(
		report, "kvfs p10 %.2f, p90 %.2f; reference p10 %.2f, p90 %.2f",
		kv_bench_sample_percentile(speeds, 10),
		kv_bench_sample_percentile(speeds, 90),
		kv_bench_sample_percentile(references, 10),
		kv_bench_sample_percentile(references, 90));
}

void kv_bench_report_skip(struct kv_bench_report *report, const char *name,
			  const char *why)
{
	if (!kv_bench_report_wants(report, name))
		return;
	report->skipped++;
	printf("%-28s not measured: %s\n", name, why);
	fflush(stdout);
}

void kv_bench_report_sum(struct kv_bench_report *report)
{
	printf("%u figures, %u with a goal, %u of these met; %u not measured\n",
	       report->figures, report->with_goal, report->met,
	       report->skipped);
}
