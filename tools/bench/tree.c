/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree.c - find, du, ls and rm of very many blocks, against the same of as many
 * files of a FUSE server that does nothing: what they cost by FUSE itself.
 *
 * The server's tree is MOUNT/million/xx/<32 digits>, of 256 directories.  What
 * asks it asks as it asks kvfs: listings come with attributes, and names last a
 * second.
 *
 * OWNS      a store of its own, for the time of the measurement; in the server,
 *           a byte for each file, 1 once it is removed, and one for each
 *           directory.
 *
 * INVARIANTS
 *   (1) Node 1 of the server is the root, 2 is `million`, from 3 on come the
 *       directories, and from FIRST_FILE on the files, by directory.
 *
 * LOCKING   none: one thread measures, and the server's bytes are atomic.
 */
#define FUSE_USE_VERSION 312
#include <errno.h>
#include <fuse3/fuse_lowlevel.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tools/bench/clock.h"
#include "tools/bench/run.h"
#include "tools/bench/figures.h"
#include "tools/bench/report.h"

/* ---- the server that does nothing ---- */

#define DIRS 256u
#define SPACE 2u
#define FIRST_DIR 3u
#define FIRST_FILE 1024u
#define FILE_BYTES 4096
#define SECONDS 1.0
#define DOTS 2
#define THREADS 24
#define IDLE_THREADS 8

static unsigned a_dir;			 /* files in a directory */
static _Atomic unsigned char *removed;	 /* by file */
static _Atomic unsigned char gone[DIRS]; /* directories */

static bool is_dir(uint64_t node)
{
	return node < FIRST_FILE;
}

static uint64_t file_of(unsigned dir, unsigned n)
{
	return FIRST_FILE + (uint64_t)dir * a_dir + n;
}

static void describe(uint64_t node, struct stat *st)
{
	*st = (struct stat){.st_ino = node,
			    .st_nlink = 1,
			    .st_uid = geteuid(),
			    .st_gid = getegid(),
			    .st_mode = S_IFDIR | 0755,
			    .st_mtim = {.tv_sec = 1700000000}};
	if (is_dir(node))
		return;
	st->st_mode = S_IFREG | 0644;
	st->st_size = FILE_BYTES;
	st->st_blocks = FILE_BYTES / 512;
}

static void fill_entry(uint64_t node, struct fuse_entry_param *entry)
{
	*entry = (struct fuse_entry_param){
		.ino = node, .attr_timeout = SECONDS, .entry_timeout = SECONDS};
	describe(node, &entry->attr);
}

/* The node of @name in @parent, 0: none. */
static uint64_t find(uint64_t parent, const char *name)
{
	unsigned dir, n;

	if (parent == FUSE_ROOT_ID)
		return strcmp(name, "million") == 0 ? SPACE : 0;
	if (parent == SPACE)
		return sscanf(name, "%2x", &dir) == 1 && !gone[dir]
			       ? FIRST_DIR + dir
			       : 0;
	if (strlen(name) != 32 || sscanf(name + 24, "%8x", &n) != 1 ||
	    n >= a_dir)
		return 0;
	dir = (unsigned)(parent - FIRST_DIR);
	return removed[dir * a_dir + n] ? 0 : file_of(dir, n);
}

static void lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param entry;
	uint64_t node = find(parent, name);

	if (node == 0) {
		fuse_reply_err(req, ENOENT);
		return;
	}
	fill_entry(node, &entry);
	fuse_reply_entry(req, &entry);
}

static void getattr(fuse_req_t req, fuse_ino_t node, struct fuse_file_info *fi)
{
	struct stat st;

	(void)fi;
	describe(node, &st);
	fuse_reply_attr(req, &st, SECONDS);
}

/* Entry @at of directory @node into @name; its node, 0: passed over. */
static uint64_t entry_at(uint64_t node, unsigned at, char name[33])
{
	unsigned dir = (unsigned)(node - FIRST_DIR);

	if (node == FUSE_ROOT_ID) {
		strcpy(name, "million");
		return SPACE;
	}
	if (node == SPACE) {
		snprintf(name, 33, "%02x", at & 255);
		return gone[at] ? 0 : FIRST_DIR + at;
	}
	snprintf(name, 33, "%02x%030x", dir & 255, at);
	return removed[dir * a_dir + at] ? 0 : file_of(dir, at);
}

static void readdirplus(fuse_req_t req, fuse_ino_t node, size_t size, off_t off,
			struct fuse_file_info *fi)
{
	unsigned n = node == FUSE_ROOT_ID ? 1 : node == SPACE ? DIRS : a_dir;
	char *buffer = malloc(size), name[33];
	struct fuse_entry_param entry;
	size_t used = 0, one;

	(void)fi;
	for (; buffer && off < (off_t)n + DOTS; off++) {
		if (off < DOTS) {
			strcpy(name, off == 0 ? "." : "..");
			fill_entry(node, &entry);
			entry.ino = 0;
		} else {
			uint64_t found =
				entry_at(node, (unsigned)(off - DOTS), name);

			if (found == 0)
				continue;
			fill_entry(found, &entry);
		}
		one = fuse_add_direntry_plus(req, buffer + used, size - used,
					     name, &entry, off + 1);
		if (one > size - used)
			break;
		used += one;
	}
	if (buffer)
		fuse_reply_buf(req, buffer, used);
	else
		fuse_reply_err(req, ENOMEM);
	free(buffer);
}

static void unlink_file(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	uint64_t node = find(parent, name);

	if (node >= FIRST_FILE)
		removed[node - FIRST_FILE] = 1;
	fuse_reply_err(req, node >= FIRST_FILE ? 0 : ENOENT);
}

static void rmdir_(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	uint64_t node = find(parent, name);

	if (parent == SPACE && node != 0)
		gone[node - FIRST_DIR] = 1;
	fuse_reply_err(req, node != 0 ? 0 : ENOENT);
}

static void no_xattr(fuse_req_t req, fuse_ino_t node, const char *name,
		     size_t size)
{
	(void)node;
	(void)name;
	(void)size;
	fuse_reply_err(req, EOPNOTSUPP);
}

static void init(void *userdata, struct fuse_conn_info *conn)
{
	(void)userdata;
	conn->want &= ~(unsigned)FUSE_CAP_READDIRPLUS_AUTO;
	conn->want |= conn->capable &
		      (FUSE_CAP_READDIRPLUS | FUSE_CAP_PARALLEL_DIROPS);
}

static const struct fuse_lowlevel_ops operations = {
	.init = init,
	.lookup = lookup,
	.getattr = getattr,
	.readdirplus = readdirplus,
	.unlink = unlink_file,
	.rmdir = rmdir_,
	.getxattr = no_xattr,
};

static int serve(struct fuse_session *session)
{
	struct fuse_loop_config *config = fuse_loop_cfg_create();
	int r;

	if (!config)
		return 1;
	fuse_loop_cfg_set_clone_fd(config, 1);
	fuse_loop_cfg_set_max_threads(config, THREADS);
	fuse_loop_cfg_set_idle_threads(config, IDLE_THREADS);
	fuse_set_signal_handlers(session);
	r = fuse_session_loop_mt(session, config);
	fuse_remove_signal_handlers(session);
	fuse_loop_cfg_destroy(config);
	return r < 0;
}

int kv_bench_nothing(unsigned files, const char *mountpoint)
{
	char *argv[] = {(char *)"nothing", (char *)"-o",
			(char *)"default_permissions,fsname=nothing", NULL};
	struct fuse_args args = FUSE_ARGS_INIT(3, argv);
	struct fuse_session *session;
	int r = 1;

	a_dir = files / DIRS;
	removed = calloc(files + 1, 1);
	session = removed ? fuse_session_new(&args, &operations,
					     sizeof(operations), NULL)
			  : NULL;
	if (session && fuse_session_mount(session, mountpoint) == 0) {
		r = serve(session);
		fuse_session_unmount(session);
	}
	if (session)
		fuse_session_destroy(session);
	fuse_opt_free_args(&args);
	free((void *)removed);
	return r;
}

/* ---- the measurement ---- */

#define BLOCKS 1000000u
#define BLOCKS_QUICK 100000u
#define TIMEOUT_MS 20000

/* In this order: what one leaves in the kernel's caches, it leaves there for
 * both servers. */
static const struct command {
	const char *name, *line;
	double most; /* times what the server that does nothing takes */
} commands[] = {
	{"tree_find", "find %s/million -type f >/dev/null", 1.3},
	{"tree_du", "du -s %s/million >/dev/null", 1.3},
	{"tree_ls", "ls -lR %s/million >/dev/null", 2},
	{"tree_rm", "rm -r %s/million", 1.5},
};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static int run_all(struct kv_bench *bench, const char *mount, const char *log,
		   double *ret_seconds)
{
	char line[PATH_MAX + 64];
	char *argv[] = {(char *)"sh", (char *)"-c", line, NULL};
	uint64_t begin;
	pid_t pid;
	size_t i;
	int r = 0;

	for (i = 0; i <= COMMANDS && r == 0; i++) {
		/* The first goes twice, and its first round is not counted. */
		const struct command *command = &commands[i ? i - 1 : 0];

		/* The program's own words, with the mount's path for %s. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
		snprintf(line, sizeof(line), command->line, mount);
#pragma GCC diagnostic pop
		begin = kv_bench_now();
		r = kv_bench_child_start(&bench->children, argv, log, &pid);
		if (r == 0)
			r = kv_bench_child_wait(&bench->children, pid);
		ret_seconds[command - commands] =
			(double)(kv_bench_now() - begin) / 1e9;
	}
	return r > 0 ? -EIO : r;
}

static int of_nothing(struct kv_bench *bench, unsigned files,
		      double *ret_seconds)
{
	char mount[PATH_MAX], log[PATH_MAX], there[PATH_MAX + 32], number[16];
	char *argv[] = {(char *)"/proc/self/exe", (char *)"--nothing", number,
			mount, NULL};
	unsigned waited;
	struct stat st;
	pid_t pid;
	int r;

	snprintf(mount, sizeof(mount), "%s/mnt", bench->dir);
	snprintf(log, sizeof(log), "%s/log", bench->dir);
	snprintf(there, sizeof(there), "%s/million", mount);
	snprintf(number, sizeof(number), "%u", files);
	if (mkdir(mount, 0700) < 0 && errno != EEXIST)
		return -errno;
	r = kv_bench_child_start(&bench->children, argv, log, &pid);
	if (r < 0)
		return r;
	for (waited = 0; waited < TIMEOUT_MS && stat(there, &st) < 0;
	     waited += 10)
		kv_bench_sleep_ms(10);
	r = run_all(bench, mount, log, ret_seconds);
	kv_bench_child_end(&bench->children, pid);
	return r;
}

static int of_kvfs(struct kv_bench *bench, unsigned blocks, double *ret_seconds)
{
	char store[PATH_MAX], options[64];
	struct kv_bench_daemon daemon = {0};
	uint64_t ssd = 0;
	int r;

	snprintf(store, sizeof(store), "%s/store", bench->dir);
	r = kv_bench_store_make(store, blocks, &ssd);
	snprintf(options, sizeof(options), "dram=64M,scrub=0,ssd=%llu",
		 (unsigned long long)ssd);
	if (r == 0)
		r = kv_bench_daemon_start(&bench->children, bench->build,
					  bench->dir, options, &daemon);
	if (r == 0) {
		r = run_all(bench, daemon.mount, daemon.log, ret_seconds);
		kv_bench_daemon_end(&daemon);
	}
	kv_bench_remove(store);
	return r;
}

static const char *figure_name(struct kv_bench *bench,
			       const struct command *command, char name[32])
{
	snprintf(name, 32, "%s_%s", command->name,
		 bench->quick ? "100k" : "1m");
	return name;
}

static void report(struct kv_bench *bench, const struct command *command,
		   double ours, double nothing)
{
	char goal[32], name[32];
	struct kv_bench_figure figure = {
		.name = figure_name(bench, command, name),
		.value = ours,
		.reference = nothing,
		.unit = "s",
		.against = "a FUSE server that does nothing",
		.ratio = nothing / ours,
		.goal = goal,
		.met = ours <= command->most * nothing,
	};

	snprintf(goal, sizeof(goal), "ratio >= %.2f", 1 / command->most);
	kv_bench_report_add(bench->report, &figure);
	kv_bench_report_note(bench->report, "%.2f times as long",
			     ours / nothing);
}

int kv_bench_tree(struct kv_bench *bench)
{
	const unsigned files = bench->quick ? BLOCKS_QUICK : BLOCKS;
	double ours[COMMANDS], nothing[COMMANDS];
	bool wanted = false;
	char name[32];
	size_t i;
	int r;

	for (i = 0; i < COMMANDS; i++)
		wanted |= kv_bench_report_wants(
			bench->report, figure_name(bench, &commands[i], name));
	if (!wanted)
		return 0;
	r = of_nothing(bench, files, nothing);
	if (r == 0)
		r = of_kvfs(bench, files, ours);
	for (i = 0; i < COMMANDS && r == 0; i++)
		report(bench, &commands[i], ours[i], nothing[i]);
	return r;
}
