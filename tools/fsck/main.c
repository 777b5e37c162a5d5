/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - kvfs-fsck: check a store that is not mounted, repair it, or make its
 * index anew.  man/kvfs-fsck.8 tells the same.
 *
 * A check changes nothing: it locks for reading, which keeps a daemon out and
 * needs no right to write.
 *
 * OWNS      struct fsck, its descriptors, and STORE/lock, taken as the daemon
 *           takes it.
 *
 * LOCKING   one thread.
 */
#include <fcntl.h>
#include <getopt.h>

#include "index/sidecar.h"
#include "tools/fsck/fsck.h"

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

static void on_waiting(void *arg, long owner)
{
	const struct fsck *f = arg;

	fprintf(stderr,
		"kvfs-fsck: %s: its daemon (pid %ld) is still ending, waiting "
		"for it\n",
		f->path, owner);
}

static int take_lock(struct fsck *f)
{
	const struct kv_lock_wait wait = {.waiting = on_waiting, .arg = f};
	int r = kv_lock_take(f->store, f->repair || f->rebuild, &wait,
			     &f->lock);

	if (r == -EBUSY)
		return fsck_error("%s: in use by a daemon (pid %ld): umount it "
				  "first",
				  f->path, kv_lock_owner(f->store));
	return r < 0 ? fsck_error("%s: cannot lock it: %s", f->path,
				  strerror(-r))
		     : 0;
}

static int open_dir(struct fsck *f, const char *name)
{
	int fd = openat(f->store, name,
			O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

	return fd < 0 ? -errno : fd;
}

static bool is_store(const struct fsck *f)
{
	return faccessat(f->store, "index", F_OK, AT_SYMLINK_NOFOLLOW) == 0 ||
	       kv_store_file_there(f->store);
}

static int open_store(struct fsck *f)
{
	int index;

	f->store = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (f->store < 0)
		return fsck_error("%s: %s", f->path, strerror(errno));
	if (!is_store(f))
		return fsck_error("%s: not a kvfs store", f->path);
	if (take_lock(f) < 0)
		return -EIO;
	index = open_dir(f, "index");
	if (index >= 0)
		close(index);
	f->segments_dir = open_dir(f, "segments");
	f->spaces_dir = f->repair ? kv_spaces_dir(f->store, true)
				  : open_dir(f, "spaces");
	if ((index < 0 && index != -ENOENT) ||
	    (f->segments_dir < 0 && f->segments_dir != -ENOENT) ||
	    (f->spaces_dir < 0 && f->spaces_dir != -ENOENT))
		return fsck_error("%s: index, segments and spaces must be "
				  "directories that one may read",
				  f->path);
	if (snprintf(f->index_path, sizeof(f->index_path), "%s/index",
		     f->path) >= (int)sizeof(f->index_path))
		return fsck_error("%s: the name is too long", f->path);
	return 0;
}

static void close_store(struct fsck *f)
{
	const int fds[] = {f->segments_dir, f->spaces_dir, f->lock, f->store};

	for (size_t i = 0; i < KV_ARRAY_LEN(fds); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	for (size_t i = 0; i < f->n_spaces; i++) {
		free(f->spaces[i].name);
		free(f->spaces[i].layout);
	}
	free(f->spaces);
	free(f->entries);
	free(f->segments);
	free(f->bad_slots);
	free(f->bad_tokens);
	free(f->stale);
	free(f->stray_files);
	free(f->unknown);
	free(f->tenants);
}

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

static int check_store(struct fsck *f)
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
	r = open_store(&f);
	if (r == 0)
		r = f.rebuild ? fsck_rebuild(&f) : check_store(&f);
	if (r == 0 && f.repair)
		r = fsck_repair(&f);
	status = r < 0 ? STATUS_ERROR : fsck_report(&f);
	close_store(&f);
	return status;
}
