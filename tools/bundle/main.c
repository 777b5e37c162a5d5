/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - kvfs-bundle: blocks of a space as one stream, and back into a mount.
 * man/kvfs-bundle.1 tells the same.
 *
 * OWNS      nothing.
 *
 * LOCKING   one thread.
 */
#include <getopt.h>
#include <limits.h>
#include <stdarg.h>

#include "tools/bundle/bundle.h"

#define STATUS_ERROR 2
#define STATUS_USAGE 16

static const char usage[] =
	"usage: kvfs-bundle SPACE [SNAPSHOT] >FILE\n"
	"       kvfs-bundle -x [-S] [-C MOUNTPOINT] <FILE\n"
	"       kvfs-bundle -t <FILE\n"
	"  writes the blocks of SPACE's (a path) snapshot to standard output, "
	"or\n"
	"  -x    verifies and imports such a stream\n"
	"  -C    there, not into the current directory\n"
	"  -S    also into a space that is another user's\n"
	"  -t    verifies it, and changes nothing\n"
	"status: 0 all, 1 all but some blocks (said), 2 error, 16 usage\n";

int bundle_error(const char *format, ...)
{
	char text[2 * PATH_MAX]; /* names of a stream may be longer: cut */
	va_list args;

	fputs("kvfs-bundle: ", stderr);
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	for (const char *c = text; *c; c++)
		fprintf(stderr, *c < ' ' || *c > '~' ? "\\%03o" : "%c",
			(unsigned char)*c);
	fputc('\n', stderr);
	return -1;
}

struct arguments {
	bool extract, test, shared;
	const char *into;
	const char *space, *snapshot;
};

static int parse(int argc, char **argv, struct arguments *a)
{
	const struct option options[] = {
		{"extract", no_argument, NULL, 'x'},
		{"test", no_argument, NULL, 't'},
		{"shared", no_argument, NULL, 'S'},
		{"directory", required_argument, NULL, 'C'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},
		{NULL, 0, NULL, 0},
	};
	bool exports;
	int c;

	while ((c = getopt_long(argc, argv, "xtSC:h", options, NULL)) >= 0) {
		a->extract |= c == 'x';
		a->test |= c == 't';
		a->shared |= c == 'S';
		if (c == 'C')
			a->into = optarg;
		if (c == 'h')
			fputs(usage, stdout);
		if (c == 'V')
			printf("kvfs-bundle %s\n", KV_VERSION);
		if (c == 'h' || c == 'V')
			exit(0);
		if (c == '?')
			return -EINVAL;
	}
	exports = !a->extract && !a->test;
	if ((a->extract && a->test) ||
	    ((a->into || a->shared) && !a->extract) ||
	    argc - optind < exports || argc - optind > (exports ? 2 : 0))
		return -EINVAL;
	a->space = argv[optind]; /* NULL where there is none */
	a->snapshot = a->space ? argv[optind + 1] : NULL;
	return 0;
}

/* A terminal gets no bundle, and gives none. */
static int check_stream(int fd, const char *where)
{
	return isatty(fd) ? bundle_error("%s is a terminal", where) : 0;
}

int main(int argc, char **argv)
{
	struct arguments a = {0};
	int r;

	if (parse(argc, argv, &a) < 0) {
		fputs(usage, stderr);
		return STATUS_USAGE;
	}
	if (a.space) {
		r = check_stream(STDOUT_FILENO, "standard output");
		if (r == 0)
			r = bundle_export(a.space, a.snapshot, STDOUT_FILENO);
	} else {
		r = check_stream(STDIN_FILENO, "standard input");
		if (r == 0)
			r = bundle_import(a.test   ? NULL
					  : a.into ? a.into
						   : ".",
					  a.shared, STDIN_FILENO);
	}
	return r < 0 ? STATUS_ERROR : r;
}
