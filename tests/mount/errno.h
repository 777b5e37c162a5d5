/* SPDX-License-Identifier: Apache-2.0 */
/*
 * errno.h - common code of the errno programs: paths, and a table of calls with the errno
 * that each must return.
 */
#ifndef KV_TESTS_MOUNT_ERRNO_H
#define KV_TESTS_MOUNT_ERRNO_H

#include <fcntl.h>
#include <stdio.h>

#include "common/kv.h"

/* Set once by run_cases: the program's arguments SPACE, KEY and FILE, and
 * paths made of them. */
static char space[2048], dir[2048], block[2048];
static char absent[2048]; /* a name that is the key of no block */
static char other_dir[2048];
/* the argument FILE, a file with the bytes of the block KEY */
static const char *sample;

struct kv_case {
	const char *name;
	int (*call)(void); /* makes the call; returns its errno */
	int error;
};

#define CASE(call, error)          \
	{                          \
#call, call, error \
	}

static int err(long r)
{
	return r < 0 ? errno : 0;
}

static int run_cases(int argc, char **argv, const struct kv_case *cases,
		     size_t n)
{
	int failed = 0, got;

	assert(argc == 4 && strlen(argv[2]) == 32);
	sample = argv[3];
	snprintf(space, sizeof(space), "%s", argv[1]);
	snprintf(dir, sizeof(dir), "%.1900s/%.2s", argv[1], argv[2]);
	snprintf(other_dir, sizeof(other_dir), "%.1900s/02", argv[1]);
	snprintf(block, sizeof(block), "%.1900s/%s", dir, argv[2]);
	snprintf(absent, sizeof(absent), "%.1900s/%.2s%030x", dir, argv[2],
		 0xabcdef);
	for (size_t i = 0; i < n; i++) {
		got = cases[i].call();
		if (got == cases[i].error)
			continue;
		printf("%s: got %s, expected %s\n", cases[i].name,
		       strerrorname_np(got), strerrorname_np(cases[i].error));
		failed = 1;
	}
	return failed;
}

#endif
