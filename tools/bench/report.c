/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - samples of measurements, and figures printed as a table for people
 * and as JSON lines for programs.
 *
 * OWNS      the JSON lines, in memory until the end: an interrupted run leaves
 *           the file of the last complete run.
 *
 * LOCKING   none: one thread reports.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "tools/bench/bench.h"

#define WIDTH_MAX 4

void kv_bench_sample_add(struct kv_bench_sample *sample, double value)
{
	if (kv_array_more(&sample->values, sample->n) == 0)
		sample->values[sample->n++] = value;
}

static int compare_values(const void *a, const void *b)
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
	qsort(sample->values, sample->n, sizeof(*sample->values),
	      compare_values);
	at = percent / 100 * (double)(sample->n - 1);
	return sample->values[(size_t)(at + 0.5)];
}

double kv_bench_sample_median(struct kv_bench_sample *sample)
{
	return kv_bench_sample_percentile(sample, 50);
}

void kv_bench_samples_free(struct kv_bench_sample *samples, size_t n)
{
	for (size_t i = 0; i < n; i++)
		free(samples[i].values);
}

int kv_bench_rounds(int (*round)(void *arg, double *ret_values), void *arg,
		    unsigned n, struct kv_bench_sample *samples, size_t width)
{
	double values[WIDTH_MAX] = {0};
	int r = 0;

	for (unsigned i = 0; i <= n && r == 0; i++) {
		r = round(arg, values);
		for (size_t w = 0; i > 0 && r == 0 && w < width; w++)
			kv_bench_sample_add(&samples[w], values[w]);
	}
	return r;
}

struct kv_bench_report {
	FILE *json; /* stream that writes into @lines */
	char *lines;
	size_t bytes;
	const char *path, *only;
	bool shown; /* the last figure was printed in the table */
	unsigned figures, with_goal, met, skipped;
};

int kv_bench_report_new(const char *path, const char *only,
			struct kv_bench_report **ret_report)
{
	struct kv_bench_report *report = calloc(1, sizeof(*report));

	if (!report)
		return -ENOMEM;
	report->only = only;
	report->path = path;
	report->json = open_memstream(&report->lines, &report->bytes);
	if (!report->json) {
		free(report);
		return -ENOMEM;
	}
	printf("%-28s %11s %-5s %11s  %-34s %9s  %s\n", "figure", "value", "",
	       "reference", "", "ratio", "goal");
	*ret_report = report;
	return 0;
}

int kv_bench_report_json(struct kv_bench_report *report, int out)
{
	const char *line, *end;
	int r = fflush(report->json) == 0 ? dprintf(out, "[\n") : -1;

	for (line = report->lines; r >= 0 && (end = strchr(line, '\n'));
	     line = end + 1)
		r = dprintf(out, "%.*s%s\n", (int)(end - line), line,
			    end[1] ? "," : "");
	return r >= 0 && dprintf(out, "]\n") >= 0 ? 0 : -errno;
}

int kv_bench_report_close(struct kv_bench_report *report)
{
	FILE *f = NULL;
	int r;

	printf("%u figures, %u with a goal, %u of these met; %u not measured\n",
	       report->figures, report->with_goal, report->met,
	       report->skipped);
	r = fclose(report->json) == 0 ? 0 : -ENOMEM;
	if (r == 0) {
		f = fopen(report->path, "we");
		r = f ? 0 : -errno;
	}
	if (r == 0 &&
	    fwrite(report->lines, 1, report->bytes, f) != report->bytes)
		r = -EIO;
	if (f && fclose(f) != 0)
		r = -errno;
	free(report->lines);
	free(report);
	return r;
}

static const char *print_name(const char *name, const char *suffix,
			      char ret[64])
{
	snprintf(ret, 64, "%s%s%s", name, suffix ? "_" : "",
		 suffix ? suffix : "");
	return ret;
}

bool kv_bench_report_wants(const struct kv_bench_report *report,
			   const char *name, const char *suffix)
{
	char whole[64];

	return !report->only ||
	       strncmp(print_name(name, suffix, whole), report->only,
		       strlen(report->only)) == 0;
}

void kv_bench_report_add(struct kv_bench_report *report,
			 const struct kv_bench_figure *f)
{
	const bool more = strcmp(f->unit, "GB/s") == 0;
	char name[64], goal[64] = "", words[16] = "-";
	double ratio = 0;
	bool has_goal, met;

	report->shown = kv_bench_report_wants(report, f->name, f->suffix);
	if (!report->shown)
		return;
	if (f->reference > 0 && f->value > 0)
		ratio = more ? f->value / f->reference
			     : f->reference / f->value;
	if (f->most > 0)
		snprintf(goal, sizeof(goal), "<= %g %s%s", f->most, f->unit,
			 f->least_ratio > 0 ? ", " : "");
	if (f->least_ratio > 0)
		snprintf(goal + strlen(goal), sizeof(goal) - strlen(goal),
			 "ratio >= %.3g", f->least_ratio);
	has_goal = *goal;
	met = (f->most <= 0 || f->value <= f->most) && ratio >= f->least_ratio;
	report->figures++;
	report->with_goal += has_goal;
	report->met += has_goal && met;

	if (ratio > 0)
		snprintf(words, sizeof(words), "%.2f", ratio);
	print_name(f->name, f->suffix, name);
	printf("%-28s %11.4g %-5s %11.4g  %-34s %9s  %s%s\n", name, f->value,
	       f->unit, f->reference, f->against ? f->against : "-", words,
	       goal,
	       !has_goal ? ""
	       : met	 ? ": met"
			 : ": MISSED");
	fflush(stdout);
	fprintf(report->json,
		"{\"figure\": \"%s\", \"value\": %.6g, \"unit\": \"%s\", "
		"\"reference\": %.6g, \"ratio\": %.6g, ",
		name, f->value, f->unit, f->reference, ratio);
	if (has_goal)
		fprintf(report->json, "\"goal\": \"%s\", \"met\": %s}\n", goal,
			met ? "true" : "false");
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

void kv_bench_report_speeds(struct kv_bench_report *report,
			    struct kv_bench_figure figure,
			    struct kv_bench_sample *speeds,
			    struct kv_bench_sample *references)
{
	figure.value = kv_bench_sample_median(speeds);
	figure.reference = kv_bench_sample_median(references);
	figure.unit = "GB/s";
	kv_bench_report_add(report, &figure);
	kv_bench_report_note(
		report, "kvfs p10 %.2f, p90 %.2f; reference p10 %.2f, p90 %.2f",
		kv_bench_sample_percentile(speeds, 10),
		kv_bench_sample_percentile(speeds, 90),
		kv_bench_sample_percentile(references, 10),
		kv_bench_sample_percentile(references, 90));
}

void kv_bench_report_skip(struct kv_bench_report *report, const char *name,
			  const char *suffix, const char *program)
{
	char whole[64];

	if (!kv_bench_report_wants(report, name, suffix))
		return;
	report->skipped++;
	printf("%-28s not measured: %s is not installed\n",
	       print_name(name, suffix, whole), program);
	fflush(stdout);
}
