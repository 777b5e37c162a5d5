/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - the file `report` in the work directory: a name and a value a
 * line.
 *
 * OWNS      that file.
 *
 * LOCKING   none; the demo's processes run one after another.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "tools/demo/own.h"
#include "tools/demo/report.h"

static FILE *report_open(const char *work, const char *mode)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/report", work);
	return fopen(path, mode);
}

int kv_report_add(const char *work, const char *name, double value)
{
	_cleanup_(kv_fclosep) FILE *file = report_open(work, "ae");

	if (!file || fprintf(file, "%s %.9g\n", name, value) < 0 ||
	    fflush(file) != 0)
		return -EIO;
	return 0;
}

/* The sum of what was noted under @name; negative: nothing was. */
static double figure(const char *work, const char *name)
{
	_cleanup_(kv_fclosep) FILE *file = report_open(work, "re");
	double value, sum = -1;
	char found[64];

	while (file && fscanf(file, "%63s %lf", found, &value) == 2) {
		if (strcmp(found, name) == 0)
			sum = sum < 0 ? value : sum + value;
	}
	return sum;
}

static void line(const char *what, double seconds, double bytes, double prefill)
{
	printf("  %-42s %9.4f s", what, seconds);
	if (bytes > 0)
		printf(" %8.2f GB/s", bytes / seconds / 1e9);
	if (prefill > 0)
		printf(" %8.0f times prefill's speed", prefill / seconds);
	putchar('\n');
}

int kv_report_print(const char *work)
{
	double prefill = figure(work, "prefill");
	double dram = figure(work, "load_dram");
	double ssd = figure(work, "load_ssd_cold");
	double restore = figure(work, "restore");
	double sealed = figure(work, "save_sealed");
	double durable = figure(work, "save_durable");
	double blocks = figure(work, "blocks"), bytes = figure(work, "bytes");
	double tokens = figure(work, "tokens");
	double verified = figure(work, "verified");

	if (prefill < 0 || dram < 0 || ssd < 0 || restore < 0 || sealed < 0 ||
	    durable < 0 || blocks < 0 || bytes < 0 || tokens < 0 ||
	    verified < 0) {
		fprintf(stderr, "a figure is missing\n");
		return -ENODATA;
	}
	printf("  %.0f tokens in %.0f blocks of %.2f MiB, %.1f MB in all\n\n",
	       tokens, blocks, bytes / blocks / 1048576, bytes / 1e6);
	line("prefill", prefill, 0, 0);
	line("load from DRAM", dram, bytes, 0);
	line("load from SSD, cold", ssd, bytes, 0);
	line("load from DRAM and hand to the engine", dram + restore, 0,
	     prefill);
	line("load from SSD and hand to the engine", ssd + restore, 0, prefill);
	line("save until others find it", sealed, bytes, 0);
	line("save until durable", durable, bytes, 0);
	printf("\n  %.0f bytes compared with what the first engine computed: "
	       "all the same\n",
	       verified);
	return 0;
}
