/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nothing.c - a FUSE server of very many files that does nothing: what ls, du,
 * find and rm cost by FUSE itself.
 *
 * The tree is MOUNT/million/xx/<32 digits>, of 256 directories.  It is asked as
 * kvfs is: listings come with attributes, and names last a second.
 *
 * OWNS      a byte for each file, 1 once it is removed, and one for each
 *           directory.
 *
 * INVARIANTS
 *   (1) Node 1 is the root, 2 is `million`, from 3 on come the directories, and
 *       from FIRST_FILE on the files, by directory.
 *
 * LOCKING   none: bytes are atomic.
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
#include <unistd.h>

#include "tools/bench/nothing.h"

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
