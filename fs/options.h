/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.h - the daemon's command line, parsed, with every default filled in.
 */
#ifndef KV_FS_OPTIONS_H
#define KV_FS_OPTIONS_H

#include <limits.h>
#include <stdio.h>

#include "cache/cache.h"
#include "fs/base/access.h"

#define KV_DRAM_MIN (UINT64_C(16) << 20)
#define KV_SSD_MIN (UINT64_C(16) << 20)
#define KV_SEGMENT_MIN (UINT64_C(8) << 20)

enum kv_action { KV_RUN, KV_SHOW_HELP, KV_SHOW_VERSION, KV_FAKE };

/* The lowest memory limit of this process's control groups (version 2). */
struct kv_cgroup_limit {
	uint64_t bytes;	     /* UINT64_MAX: none */
	char file[PATH_MAX]; /* the file that has the limit */
};

struct kv_options {
	enum kv_action action;
	char *store;	  /* absolute path of the store */
	char *mountpoint; /* mount point as given; NULL: `none` was given */
	char *control;	  /* absolute path of the socket; NULL: the default */
	bool foreground, debug;
	bool allow_other;
	uint32_t umask;
	struct kv_rules rules;
	char *fuse;		       /* options for FUSE; NULL: none */
	struct kv_cgroup_limit memory; /* limit that dram= respects */
	struct kv_cache_config cache;  /* the callbacks are not set */
};

/*
 * Parse the command line and fill in every default.  A program called mount.kvfs
 * (the last part of argv[0]) takes the arguments of mount(8).  The store is not
 * touched.  Returns 0, -EINVAL or -ENOMEM; on failure *@ret_why is one line for
 * the user that names the option (caller frees; NULL if memory is short).
 */
int kv_options_parse(int argc, char **argv, struct kv_options *ret_options,
		     char **ret_why);
void kv_options_fini(struct kv_options *options);

/* Print the options as lines of .kvfs/config, without the options whose value the
 * cache or the daemon settles. */
void kv_options_print(FILE *f, const struct kv_options *options);

/*
 * Find the lowest limit of the control group of this process and of the visible groups
 * above it: of memory, or with @huge_pages of 2 MiB pages, which limits of memory do not
 * count.  A file that cannot be read limits nothing.  @root is put before every path: ""
 * except in tests.
 */
void kv_cgroup_limit(const char *root, bool huge_pages,
		     struct kv_cgroup_limit *ret_limit);

/* Print the usage, as -h does. */
void kv_options_help(FILE *f);

#endif
