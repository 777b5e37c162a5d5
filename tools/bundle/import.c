/* SPDX-License-Identifier: Apache-2.0 */
/*
 * import.c - read a bundle, and put its blocks into a space.
 *
 * A bundle is anybody's: only what bundle.h says comes in, under the one name that
 * it began with, and each block is checked before it is sealed.
 *
 * OWNS      the archive being read, the descriptors of the space.
 *
 * LOCKING   one thread.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>

#include "tools/bundle/bundle.h"

struct import {
	struct archive *from;
	const char *into;		  /* a mount point; NULL: only check */
	int space;			  /* the space's directory, or -1 */
	char name[KV_SPACE_NAME_MAX + 1]; /* "": not begun */
	bool ended;
	char (*taken)[KV_NAME_MAX + 1]; /* keys, to see what stays */
	uint64_t n_taken, room;
	uint64_t counts[BUNDLE_OTHER + 1];
};

static void freep_archive_read(struct archive **a)
{
	archive_read_free(*a);
}

static uint64_t count(const struct import *i)
{
	uint64_t n = 0;

	for (size_t k = 0; k < KV_ARRAY_LEN(i->counts); k++)
		n += i->counts[k];
	return n;
}

/* @entry's attribute @name as a string of at most @room - 1 bytes; "": none. */
static void get_attribute(struct archive_entry *entry, const char *name,
			  char *ret, size_t room)
{
	const char *found;
	const void *value;
	size_t n;

	*ret = '\0';
	archive_entry_xattr_reset(entry);
	while (archive_entry_xattr_next(entry, &found, &value, &n) ==
	       ARCHIVE_OK) {
		if (strcmp(found, name) != 0 || n >= room)
			continue;
		memcpy(ret, value, n);
		ret[n] = '\0';
	}
}

/* Make the space, or take it if it is there. */
static int open_space(struct import *i)
{
	_cleanup_(kv_closep) int into =
		open(i->into, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (into < 0)
		return bundle_error("%s: %s", i->into, strerror(errno));
	if (mkdirat(into, i->name, 0777) < 0 && errno != EEXIST)
		return bundle_error("%s: %s", i->name, strerror(errno));
	i->space = openat(into, i->name,
			  O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (i->space < 0)
		return bundle_error("%s: %s", i->name, strerror(errno));
	if (faccessat(i->space, ".snapshots", F_OK, 0) < 0)
		return bundle_error("%s: not a mount of kvfs", i->into);
	return 0;
}

/* The first entry: "SPACE/", marked. */
static int begin(struct import *i, struct archive_entry *entry)
{
	const char *path = archive_entry_pathname(entry);
	size_t n = path ? strcspn(path, "/") : 0;
	char mark[40];

	get_attribute(entry, ATTR_BUNDLE, mark, sizeof(mark));
	if (strcmp(mark, BUNDLE_BEGIN) != 0)
		return bundle_error(strncmp(mark, "kvfs bundle ", 12) == 0
					    ? "a bundle of a newer kvfs"
					    : "not a bundle of kvfs");
	if (n == 0 || n > KV_SPACE_NAME_MAX || path[0] == '.' ||
	    strcmp(path + n, "/") != 0)
		return bundle_error("not a space's name: '%s'",
				    path ? path : "");
	memcpy(i->name, path, n);
	return i->into ? open_space(i) : 0;
}

/* The last entry says how many blocks there are. */
static int end(struct import *i, struct archive_entry *entry)
{
	char mark[40], wanted[40];

	get_attribute(entry, ATTR_BUNDLE, mark, sizeof(mark));
	snprintf(wanted, sizeof(wanted), BUNDLE_END "%" PRIu64, count(i));
	if (strcmp(mark, wanted) != 0)
		return bundle_error("the bundle says it has '%s', and came "
				    "with '%s'",
				    mark, wanted);
	i->ended = true;
	return 0;
}

/* Write the layout of the space.  The mount takes the same one again. */
static int write_layout(struct import *i, const char *layout, size_t n)
{
	int fd = openat(i->space, ".layout",
			O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	int r = 0;

	if (fd < 0 || write(fd, layout, n) != (ssize_t)n)
		r = -errno;
	if (fd >= 0 && close(fd) < 0 && r == 0)
		r = -errno;
	if (r == -EEXIST)
		return bundle_error("%s has another layout here: these blocks "
				    "are not its own",
				    i->name);
	return r < 0 ? bundle_error("%s/.layout: %s", i->name, strerror(-r))
		     : 0;
}

static int take_layout(struct import *i)
{
	static char layout[LAYOUT_MAX + 1];
	size_t n = 0;
	la_ssize_t got;

	while ((got = archive_read_data(i->from, layout + n,
					sizeof(layout) - n)) > 0)
		n += (size_t)got;
	if (got < 0 || n > LAYOUT_MAX)
		return bundle_error("%s/.layout: %s", i->name,
				    got < 0 ? archive_error_string(i->from)
					    : "too long");
	return i->into ? write_layout(i, layout, n) : 0;
}

/* Remember that @name is there now. */
static int note(struct import *i, const char *name)
{
	if (i->n_taken == i->room) {
		uint64_t room = i->room ? 2 * i->room : 1024;
		void *more = realloc(i->taken, room * sizeof(*i->taken));

		if (!more)
			return bundle_error("no memory");
		i->taken = more;
		i->room = room;
	}
	strcpy(i->taken[i->n_taken++], name);
	return 0;
}

static int take_block(struct import *i, struct archive_entry *entry,
		      const char *name)
{
	char digest[DIGEST_DIGITS + 2];
	struct bundle_block block = {
		.name = name,
		.digest = digest,
		.mtime = {archive_entry_mtime(entry),
			  archive_entry_mtime_nsec(entry)},
	};
	int r;

	get_attribute(entry, ATTR_DIGEST, digest, sizeof(digest));
	if (strlen(digest) != DIGEST_DIGITS)
		return bundle_error("%s: without a digest", name);
	r = bundle_take_block(i->space, &block, i->from);
	if (r < 0)
		return r;
	if (r == BUNDLE_DAMAGED)
		bundle_error("%s: damaged, not taken", name);
	if (r == BUNDLE_OTHER)
		bundle_error("%s: here with other bytes, which stay", name);
	i->counts[r]++;
	return r == BUNDLE_TAKEN || r == BUNDLE_THERE ? note(i, name) : 0;
}

/* An entry after the first. */
static int take(struct import *i, struct archive_entry *entry)
{
	const char *path = archive_entry_pathname(entry);
	size_t n = strlen(i->name);
	const char *file;

	if (!path || strncmp(path, i->name, n) != 0 || path[n] != '/')
		return bundle_error("not of the bundle: '%s'",
				    path ? path : "");
	file = path + n + 1;
	if (!*file && archive_entry_filetype(entry) == AE_IFDIR)
		return end(i, entry);
	if (archive_entry_filetype(entry) == AE_IFREG &&
	    !archive_entry_hardlink(entry)) {
		if (strcmp(file, ".layout") == 0)
			return take_layout(i);
		if (strlen(file) > 3 && bundle_is_key(file + 3) &&
		    strncmp(file, file + 3, 2) == 0 && file[2] == '/')
			return take_block(i, entry, file + 3);
	}
	return bundle_error("not of the bundle: '%s'", path);
}

/*
 * A warning is that a name is not of the locale: it comes as it is.  Libarchive
 * knows no other that would not be seen here.
 */
static int take_all(struct import *i)
{
	struct archive_entry *entry;
	int r;

	while ((r = archive_read_next_header(i->from, &entry)) == ARCHIVE_OK ||
	       r == ARCHIVE_WARN) {
		if (i->ended)
			return bundle_error("more after the bundle's end");
		r = i->name[0] ? take(i, entry) : begin(i, entry);
		if (r < 0)
			return r;
	}
	if (r != ARCHIVE_EOF)
		return bundle_error("%s", archive_error_string(i->from));
	if (!i->ended)
		return bundle_error("the bundle ends too early, after %" PRIu64
				    " blocks",
				    count(i));
	return 0;
}

/* How many of the blocks that were taken are gone: a cache may be too small. */
static uint64_t count_evicted(const struct import *i)
{
	char path[PATH_ROOM];
	uint64_t n = 0;

	for (uint64_t k = 0; k < i->n_taken; k++) {
		snprintf(path, sizeof(path), "%.2s/%s", i->taken[k],
			 i->taken[k]);
		n += faccessat(i->space, path, F_OK, 0) < 0;
	}
	return n;
}

/* What was taken is durable, and the caller is told what that is. */
static int finish(const struct import *i)
{
	uint64_t bad = i->counts[BUNDLE_DAMAGED] + i->counts[BUNDLE_OTHER];
	uint64_t evicted = 0;

	if (i->space >= 0 && fsync(i->space) < 0)
		return bundle_error("%s: the blocks are there, but not "
				    "durable: %s",
				    i->name, strerror(errno));
	if (bad > 0)
		bundle_error("%" PRIu64 " of %" PRIu64 " blocks were not taken",
			     bad, count(i));
	if (i->space >= 0)
		evicted = count_evicted(i);
	if (evicted > 0)
		bundle_error("%" PRIu64 " of %" PRIu64
			     " blocks were evicted again: the cache, or a "
			     "quota, is too small for them",
			     evicted, count(i));
	return bad > 0 || evicted > 0;
}

int bundle_import(const char *into, int from)
{
	_cleanup_(freep_archive_read) struct archive *a = archive_read_new();
	struct import i = {.from = a, .into = into, .space = -1};
	int r;

	if (!a || archive_read_support_format_tar(a) != ARCHIVE_OK ||
	    archive_read_open_fd(a, from, IO_BYTES) != ARCHIVE_OK)
		return bundle_error("cannot read: %s",
				    a ? archive_error_string(a) : "no memory");
	r = take_all(&i);
	if (r == 0)
		r = finish(&i);
	if (i.space >= 0)
		close(i.space);
	free(i.taken);
	return r;
}
