/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - kvfs-fsck: check a store that is not mounted, repair it, or make its
 * index anew.  man/kvfs-fsck.8 tells the same.
 *
 * OWNS     struct fsck.
 * LOCKING  one thread.
 */
#include "tools/fsck/fsck.h"

#include <getopt.h>

#define STATUS_ERROR 8
#define STATUS_USAGE 16

static const char usage[] =
	"usage: kvfs-fsck [--repair | --rebuild] [--data] [--json] [--quiet] "
	"STORE\n"
	"  checks a store that is not mounted, and changes nothing, unless\n"
	"  --repair   puts right what can be without loss of a good block\n"
	"  --rebuild  makes the index anew from the segment files\n"
	"  --data     checks every block's bytes, too\n"
	"  --json     one object instead of lines\n"
	"  --quiet    only what is wrong\n"
	"status: 0 clean, 1 put right, 4 errors are left, 8 could not check,\n"
	"16 usage\n";

static int parse(int argc, char **argv, struct fsck *f)
{
	const struct option options[] = {
		{"repair", no_argument, NULL, 'r'},
		{"rebuild", no_argument, NULL, 'R'},
		{"data", no_argument, NULL, 'd'},
		{"json", no_argument, NULL, 'j'},
		{"quiet", no_argument, NULL, 'q'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},
		{NULL, 0, NULL, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "qh", options, NULL)) >= 0) {
		f->repair |= c == 'r';
		f->rebuild |= c == 'R';
		f->data |= c == 'd';
		f->json |= c == 'j';
		f->quiet |= c == 'q';
		if (c == 'h')
			fputs(usage, stdout);
		if (c == 'V')
			printf("kvfs-fsck %s\n", KV_VERSION);
		if (c == 'h' || c == 'V')
			exit(0);
		if (c == '?')
			return -EINVAL;
	}
	if (argc - optind != 1 || (f->repair && f->rebuild))
		return -EINVAL;
	f->path = argv[optind];
	return 0;
}

static int check(struct fsck *f)
{
	int r = fsck_strangers(f);

	if (r == 0)
		r = fsck_index(f);
	if (r == 0)
		r = fsck_sidecar(f);
	if (r == 0)
		r = fsck_slots(f);
	return r;
}

int main(int argc, char **argv)
{
	struct fsck f = {
		.store = -1, .segments_dir = -1, .spaces_dir = -1, .lock = -1};
	int r, status;

	if (parse(argc, argv, &f) < 0) {
		fprintf(stderr, "%s", usage);
		return STATUS_USAGE;
	}
	r = fsck_open(&f);
	if (r == 0)
		r = f.rebuild ? fsck_rebuild(&f) : check(&f);
	if (r == 0 && f.repair)
		r = fsck_repair(&f);
	status = r < 0 ? STATUS_ERROR : fsck_report(&f);
	fsck_close(&f);
	return status;
}
