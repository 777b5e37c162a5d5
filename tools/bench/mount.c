/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mount.c - figures of the mount: read(2) of whole files, against copies of
 * them on the filesystem of the store; and find, du, ls and rm of very many
 * blocks, against the same of as many files of a FUSE server that does nothing,
 * which shows the cost of FUSE itself.
 *
 * The server's tree is MOUNT/million/xx/<32 digits>, of 256 directories.  The
 * replies are like kvfs's: listings come with attributes, and names last a
 * second.
 *
 * OWNS      the copies, and a store with very many blocks, for the time of the
 *           measurement; in the server, a byte for each file, 1 once it is
 *           removed, and one for each directory.
 *
 * INVARIANTS
 *   (1) Node 1 of the server is the root, 2 is `million`, from 3 on come the
 *       directories, and from FIRST_FILE on the files, by directory.
 *
 * LOCKING   none: one thread measures, and the server's bytes are atomic.
 */
#define FUSE_USE_VERSION 312
#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse_lowlevel.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/bytes.h"
#include "tools/bench/bench.h"

/* ---- reading files ---- */

#define BUFFER (1u << 20)
#define ROUNDS 7
#define ROUNDS_QUICK 5

enum { MOUNT_FIRST, MOUNT_SECOND, PLAIN_FIRST, PLAIN_SECOND, SERIES };

struct reading {
	struct kv_bench_rig *rig;
	char mount[PATH_MAX], plain[PATH_MAX]; /* the blocks, and copies */
	char *buffer;
};

/* Read all files below @root, or drop them from the page cache.  Returns the
 * bytes that were read. */
static long read_files(struct reading *reading, const char *root, bool drop)
{
	struct kv_bench_rig *rig = reading->rig;
	char path[PATH_MAX];
	long sum = 0;
	ssize_t n;
	int fd;

	for (size_t i = 0; i < rig->size->blocks; i++) {
		kv_bench_rig_path(root, &rig->keys[i], path, sizeof(path));
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			return -errno;
		n = drop ? -posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) : 0;
		while (!drop && (n = read(fd, reading->buffer, BUFFER)) > 0)
			sum += n;
		if (n < 0 && !drop)
			n = -errno;
		close(fd);
		if (n < 0)
			return n;
	}
	return sum;
}

static int copy_file(const char *from, const char *to, char *buffer)
{
	int in = open(from, O_RDONLY | O_CLOEXEC), out, r = 0;
	ssize_t n;

	if (in < 0)
		return -errno;
	out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (out < 0)
		r = -errno;
	while (r == 0 && (n = read(in, buffer, BUFFER)) != 0) {
		r = n < 0 ? -errno : kv_write_all(out, buffer, (size_t)n);
	}
	close(in);
	if (out >= 0)
		close(out);
	return r;
}

/* Copy the mount's tree to @plain, synced. */
static int copy_files(struct reading *reading)
{
	struct kv_bench_rig *rig = reading->rig;
	char from[PATH_MAX], to[PATH_MAX];
	int r = 0, fd;

	if (mkdir(reading->plain, 0700) < 0)
		return -errno;
	for (size_t i = 0; i < rig->size->blocks && r == 0; i++) {
		kv_bench_rig_path(reading->plain, &rig->keys[i], to,
				  sizeof(to));
		*strrchr(to, '/') = 0;
		mkdir(to, 0700);
		to[strlen(to)] = '/';
		kv_bench_rig_path(reading->mount, &rig->keys[i], from,
				  sizeof(from));
		r = copy_file(from, to, reading->buffer);
	}
	fd = open(reading->plain, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0) {
		syncfs(fd);
		close(fd);
	}
	return r;
}

/* Read all files twice, in the mount and the copies, in GB/s. */
static int read_round(void *arg, unsigned round, double *ret_speeds)
{
	struct reading *reading = arg;
	long bytes = 0;

	(void)round;
	for (int i = 0; i < SERIES && bytes >= 0; i++) {
		const char *root =
			i < PLAIN_FIRST ? reading->mount : reading->plain;
		uint64_t begin;

		if (i == MOUNT_FIRST || i == PLAIN_FIRST)
			bytes = read_files(reading, root, true);
		begin = kv_bench_now();
		if (bytes >= 0)
			bytes = read_files(reading, root, false);
		ret_speeds[i] =
			(double)bytes / (double)(kv_bench_now() - begin);
	}
	return bytes < 0 ? (int)bytes : 0;
}

int kv_bench_mount(struct kv_bench_rig *rig)
{
	struct kv_bench_sample samples[SERIES] = {0};
	struct reading reading = {.rig = rig,
				  .buffer = aligned_alloc(4096, BUFFER)};
	char against[64];
	int r;

	if (!reading.buffer)
		return -ENOMEM;
	snprintf(reading.mount, sizeof(reading.mount),
		 "%.4000s/" KV_BENCH_SPACE, rig->daemon.mount);
	snprintf(reading.plain, sizeof(reading.plain), "%s/plain",
		 rig->bench->dir);
	snprintf(against, sizeof(against), "the same on %s",
		 kv_bench_filesystem(rig->bench->dir));
	r = copy_files(&reading);
	if (r == 0)
		r = kv_bench_rounds(read_round, &reading,
				    rig->bench->quick ? ROUNDS_QUICK : ROUNDS,
				    samples, SERIES);
	if (r == 0) {
		struct kv_bench_figure figure = {
			.name = "read_mount_second",
			.suffix = rig->size->suffix,
			.unit = "GB/s",
			.value = kv_bench_sample_median(&samples[MOUNT_SECOND]),
			.reference =
				kv_bench_sample_median(&samples[PLAIN_SECOND]),
			.against = against,
			.least_ratio = 0.55};

		kv_bench_report_add(rig->bench->report, &figure);
		figure.name = "read_mount_first";
		figure.value = kv_bench_sample_median(&samples[MOUNT_FIRST]);
		figure.reference =
			kv_bench_sample_median(&samples[PLAIN_FIRST]);
		figure.least_ratio = 0;
		kv_bench_report_add(rig->bench->report, &figure);
	}
	kv_bench_remove(reading.plain);
	kv_bench_samples_free(samples, SERIES);
	free(reading.buffer);
	return r;
}

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
static uint64_t find_node(uint64_t parent, const char *name)
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
	uint64_t node = find_node(parent, name);

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

/* Write the name of entry @at of the directory @node.  Return its node; 0: removed. */
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
	uint64_t node = find_node(parent, name);

	if (node >= FIRST_FILE)
		removed[node - FIRST_FILE] = 1;
	fuse_reply_err(req, node >= FIRST_FILE ? 0 : ENOENT);
}

static void rmdir_(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	uint64_t node = find_node(parent, name);

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

int kv_bench_nothing(unsigned files, const char *mountpoint)
{
	char *argv[] = {(char *)"nothing", (char *)"-o",
			(char *)"default_permissions,fsname=nothing", NULL};
	struct fuse_args args = FUSE_ARGS_INIT(3, argv);
	struct fuse_loop_config *config;
	struct fuse_session *session;
	int r = 1;

	a_dir = files / DIRS;
	removed = calloc(files + 1, 1);
	session = removed ? fuse_session_new(&args, &operations,
					     sizeof(operations), NULL)
			  : NULL;
	config = fuse_loop_cfg_create();
	if (session && config && fuse_session_mount(session, mountpoint) == 0) {
		fuse_loop_cfg_set_clone_fd(config, 1);
		fuse_loop_cfg_set_max_threads(config, THREADS);
		fuse_loop_cfg_set_idle_threads(config, IDLE_THREADS);
		fuse_set_signal_handlers(session);
		r = fuse_session_loop_mt(session, config) < 0;
		fuse_remove_signal_handlers(session);
		fuse_session_unmount(session);
	}
	if (config)
		fuse_loop_cfg_destroy(config);
	if (session)
		fuse_session_destroy(session);
	fuse_opt_free_args(&args);
	free((void *)removed);
	return r;
}

/* ---- find, du, ls and rm ---- */

#define BLOCKS 1000000u
#define BLOCKS_QUICK 100000u
#define TIMEOUT_MS 20000

/* The order counts: each command leaves the same in the kernel's caches for both
 * servers. */
static const struct command {
	const char *name, *line;
	double most; /* times as long as with the server that does nothing */
} commands[] = {
	{"tree_find", "find %s/million -type f >/dev/null", 1.3},
	{"tree_du", "du -s %s/million >/dev/null", 1.3},
	{"tree_ls", "ls -lR %s/million >/dev/null", 2},
	{"tree_rm", "rm -r %s/million", 1.5},
};

#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static int run_commands(struct kv_bench *bench, const char *mount,
			const char *log, double *ret_seconds)
{
	char line[PATH_MAX + 64];
	char *argv[] = {(char *)"sh", (char *)"-c", line, NULL};
	uint64_t begin;
	pid_t pid;
	size_t i;
	int r = 0;

	for (i = 0; i <= COMMANDS && r == 0; i++) {
		/* The first command runs twice, and the first run does not count. */
		const struct command *command = &commands[i ? i - 1 : 0];

		/* The format is one of @commands. */
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

static int measure_nothing(struct kv_bench *bench, unsigned files,
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
	r = run_commands(bench, mount, log, ret_seconds);
	kv_bench_child_end(&bench->children, pid);
	return r;
}

static int measure_kvfs(struct kv_bench *bench, unsigned blocks,
			double *ret_seconds)
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
		r = kv_bench_daemon_start(bench, options, &daemon);
	if (r == 0) {
		r = run_commands(bench, daemon.mount, daemon.log, ret_seconds);
		kv_bench_daemon_end(&daemon);
	}
	kv_bench_remove(store);
	return r;
}

int kv_bench_tree(struct kv_bench *bench)
{
	const unsigned files = bench->quick ? BLOCKS_QUICK : BLOCKS;
	const char *suffix = bench->quick ? "100k" : "1m";
	double ours[COMMANDS], nothing[COMMANDS];
	bool wanted = false;
	size_t i;
	int r;

	for (i = 0; i < COMMANDS; i++)
		wanted |= kv_bench_report_wants(bench->report, commands[i].name,
						suffix);
	if (!wanted)
		return 0;
	r = measure_nothing(bench, files, nothing);
	if (r == 0)
		r = measure_kvfs(bench, files, ours);
	for (i = 0; i < COMMANDS && r == 0; i++) {
		const struct kv_bench_figure figure = {
			.name = commands[i].name,
			.suffix = suffix,
			.value = ours[i],
			.reference = nothing[i],
			.unit = "s",
			.against = "a FUSE server that does nothing",
			.least_ratio = 1 / commands[i].most};

		kv_bench_report_add(bench->report, &figure);
		kv_bench_report_note(bench->report, "%.2f times as long",
				     ours[i] / nothing[i]);
	}
	return r;
}
