/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer.c - what tools/bench/peers.py measures kvfs against that needs no other package:
 * memcpy, a file per block, and a FUSE server that does nothing.
 *
 *   peer files BYTES BLOCKS THREADS   carry out the commands of standard input on BLOCKS
 *                                     blocks of BYTES, and print the seconds of each
 *   peer fuse MOUNTPOINT BYTES        serve files of zeros of any number, until unmounted
 *
 * Commands of "files", each followed by the file that has the blocks' paths, one a line:
 *
 *   stamp          change the source (not timed)
 *   check          print -1 if the target is not equal to the source; spoil the target
 *   copy           memcpy from source to target
 *   save           write each block to a new file, and rename the file to its path
 *   durable        the same by O_DIRECT, and sync the filesystem
 *   load, cold     read each file to the target; cold: by O_DIRECT
 *   chill          drop each file from the page cache
 *
 * OWNS      source and target memory, in huge pages if the kernel has them.
 *
 * LOCKING   the threads of a command take blocks by the atomic @next; the next command
 *           begins when they have ended.
 */
#define FUSE_USE_VERSION 312
#include <errno.h>
#include <fcntl.h>
#include <fuse3/fuse_lowlevel.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/bytes.h"
#include "common/kv.h"

#define HUGE_PAGE (2ul << 20)
#define DEPTH 16 /* threads of O_DIRECT calls, which wait for the disk */

static char *source, *target, (*paths)[PATH_MAX];
static size_t bytes, blocks;
static char command[16];
static atomic_size_t next;

static void check(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "peer: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void read_block(size_t i, int flags)
{
	int fd = open(paths[i], O_RDONLY | O_CLOEXEC | flags);

	check(fd >= 0, paths[i]);
	check(pread(fd, target + i * bytes, bytes, 0) == (ssize_t)bytes,
	      paths[i]);
	close(fd);
}

static void write_block(size_t i, int flags)
{
	char path[PATH_MAX + 1];
	int fd;

	snprintf(path, sizeof(path), "%s~", paths[i]);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | flags, 0600);
	check(fd >= 0, path);
	check(kv_write_all(fd, source + i * bytes, bytes) == 0, path);
	close(fd);
	check(rename(path, paths[i]) == 0, path);
}

static void drop_block(size_t i)
{
	int fd = open(paths[i], O_RDONLY | O_CLOEXEC);

	check(fd >= 0 && posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0,
	      paths[i]);
	close(fd);
}

static void *run(void *arg)
{
	size_t i;

	while ((i = atomic_fetch_add(&next, 1)) < blocks)
		if (strcmp(command, "copy") == 0)
			memcpy(target + i * bytes, source + i * bytes, bytes);
		else if (strcmp(command, "save") == 0)
			write_block(i, 0);
		else if (strcmp(command, "durable") == 0)
			write_block(i, O_DIRECT);
		else if (strcmp(command, "load") == 0)
			read_block(i, 0);
		else if (strcmp(command, "cold") == 0)
			read_block(i, O_DIRECT);
		else if (strcmp(command, "chill") == 0)
			drop_block(i);
		else
			check(false, command);
	return arg;
}

/* Run the command in @threads threads, this one included.  Return the seconds. */
static double run_all(unsigned threads)
{
	const uint64_t begin = kv_now_ns();
	pthread_t others[DEPTH];
	unsigned i;
	int fd;

	atomic_store(&next, 0);
	for (i = 1; i < threads; i++)
		check(pthread_create(&others[i], NULL, run, NULL) == 0,
		      "thread");
	run(NULL);
	for (i = 1; i < threads; i++)
		pthread_join(others[i], NULL);
	if (strcmp(command, "durable") == 0) {
		fd = open(paths[0], O_RDONLY | O_CLOEXEC);
		check(fd >= 0 && syncfs(fd) == 0, "syncfs");
		close(fd);
	}
	return (double)(kv_now_ns() - begin) / 1e9;
}

static char *map(size_t size, int byte)
{
	char *p = aligned_alloc(HUGE_PAGE, kv_round_up(size, HUGE_PAGE));

	check(p, "memory");
	madvise(p, kv_round_up(size, HUGE_PAGE), MADV_HUGEPAGE);
	memset(p, byte, size);
	return p;
}

static int serve_commands(unsigned threads)
{
	char list[PATH_MAX];
	uint64_t stamp = 0;
	double seconds;
	unsigned many;
	FILE *f;

	source = map(bytes * blocks, 0x5a);
	target = map(bytes * blocks, 0);
	paths = calloc(blocks, sizeof(*paths));
	check(paths, "memory");
	while (scanf("%15s %4095s", command, list) == 2) {
		f = fopen(list, "re");
		check(f, list);
		for (size_t i = 0; i < blocks; i++)
			check(fscanf(f, "%4095s", paths[i]) == 1, list);
		fclose(f);
		many = strcmp(command, "cold") == 0 ||
				       strcmp(command, "durable") == 0
			       ? DEPTH
			       : threads;
		seconds = 0;
		if (strcmp(command, "stamp") == 0)
			for (size_t at = 0; at < bytes * blocks; at += 4096)
				memcpy(source + at, &(uint64_t){++stamp}, 8);
		else if (strcmp(command, "check") == 0) {
			seconds =
				memcmp(source, target, bytes * blocks) ? -1 : 0;
			memset(target, 0xff, bytes * blocks);
		} else
			seconds = run_all(many);
		printf("%.9f\n", seconds);
		fflush(stdout);
	}
	return 0;
}

/* ---- the FUSE server: file "N" has inode N + 2 ---- */

static struct stat attributes(fuse_ino_t ino)
{
	return (struct stat){.st_ino = ino,
			     .st_mode = ino == FUSE_ROOT_ID ? S_IFDIR | 0755
							    : S_IFREG | 0444,
			     .st_nlink = 1,
			     .st_size = ino == FUSE_ROOT_ID ? 0 : (off_t)bytes};
}

static void fuse_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	const fuse_ino_t ino = strtoul(name, NULL, 10) + 2;
	struct fuse_entry_param entry = {.ino = ino,
					 .attr = attributes(ino),
					 .attr_timeout = 3600,
					 .entry_timeout = 3600};

	(void)parent;
	fuse_reply_entry(req, &entry);
}

static void fuse_getattr(fuse_req_t req, fuse_ino_t ino,
			 struct fuse_file_info *fi)
{
	struct stat st = attributes(ino);

	(void)fi;
	fuse_reply_attr(req, &st, 3600);
}

static void fuse_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	(void)ino;
	fi->keep_cache = 1;
	fuse_reply_open(req, fi);
}

static void fuse_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t at,
		      struct fuse_file_info *fi)
{
	(void)ino;
	(void)fi;
	fuse_reply_buf(req, source + at, KV_MIN(size, bytes - (size_t)at));
}

static int serve_fuse(char *program, const char *mount)
{
	const struct fuse_lowlevel_ops ops = {.lookup = fuse_lookup,
					      .getattr = fuse_getattr,
					      .open = fuse_open,
					      .read = fuse_read};
	char *argv[] = {program, NULL};
	struct fuse_args args = FUSE_ARGS_INIT(1, argv);
	struct fuse_loop_config *config = fuse_loop_cfg_create();
	struct fuse_session *session =
		fuse_session_new(&args, &ops, sizeof(ops), NULL);

	source = map(bytes, 0);
	check(config && session, "session");
	fuse_set_signal_handlers(session);
	check(fuse_session_mount(session, mount) == 0, mount);
	fuse_session_loop_mt(session, config);
	fuse_session_unmount(session);
	fuse_session_destroy(session);
	fuse_loop_cfg_destroy(config);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 5 && strcmp(argv[1], "files") == 0) {
		bytes = strtoul(argv[2], NULL, 10);
		blocks = strtoul(argv[3], NULL, 10);
		return serve_commands((unsigned)atoi(argv[4]));
	}
	if (argc == 4 && strcmp(argv[1], "fuse") == 0) {
		bytes = strtoul(argv[3], NULL, 10);
		return serve_fuse(argv[0], argv[2]);
	}
	fprintf(stderr, "usage: peer files BYTES BLOCKS THREADS | peer fuse "
			"MOUNTPOINT BYTES\n");
	return 2;
}
