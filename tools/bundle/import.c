/* SPDX-License-Identifier: Apache-2.0 */
/*
 * import.c - read a bundle, and put its blocks into a space.
 *
 * A bundle is anybody's: only what bundle.h says comes in, in that order, under
 * the one name that it began with, and a file is checked before it is sealed.
 *
 * OWNS      the archive being read, the space's descriptor, the keys.
 *
 * LOCKING   one thread.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <pwd.h>
#include <sys/stat.h>

#include "common/layout.h"
#include "tools/bundle/bundle.h"

struct import {
	struct archive *from;
	const char *into;		  /* a mount point; NULL: only check */
	bool shared;			  /* it may be another's space */
	int space;			  /* its directory, or -1 */
	char name[KV_SPACE_NAME_MAX + 1]; /* "": not begun */
	bool has_layout, ended;
	uint64_t blocks;	  /* that came */
	struct bundle_keys taken; /* of them */
};

static void freep_archive_read(struct archive **a)
{
	archive_read_free(*a);
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

/* Libarchive has words for some faults, and few for what is no archive. */
static int stream_error(struct archive *a, bool begun)
{
	const char *why = archive_error_string(a);
	int error = archive_errno(a);

	if (begun)
		return bundle_error("%s", why ? why : "the bundle is damaged");
	return bundle_error("%s",
			    error <= 0 || error == EILSEQ || error == EINVAL
				    ? "not a bundle of kvfs (cut, or "
				      "compressed?)"
				    : strerror(error));
}

/* A name that somebody else took is not ours to fill. */
static int check_owner(const struct import *i)
{
	const struct passwd *user;
	struct stat st;

	if (fstat(i->space, &st) < 0)
		return bundle_error("%s: %s", i->name, strerror(errno));
	if (st.st_uid == geteuid() || i->shared)
		return 0;
	user = getpwuid(st.st_uid);
	return bundle_error("%s is there, and belongs to %s (uid %u): -S "
			    "imports into it all the same",
			    i->name, user ? user->pw_name : "another user",
			    st.st_uid);
}

/* Make the space, of @mode, or take it if it is there. */
static int open_space(struct import *i, mode_t mode)
{
	_cleanup_(kv_closep) int into =
		open(i->into, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (into < 0)
		return bundle_error("%s: %s", i->into, strerror(errno));
	if (faccessat(into, ".kvfs", F_OK, 0) < 0)
		return bundle_error("%s: not a mount point of kvfs", i->into);
	if (mkdirat(into, i->name, (mode & 0777) | 0700) < 0 && errno != EEXIST)
		return bundle_error("%s: %s", i->name, strerror(errno));
	i->space = openat(into, i->name,
			  O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (i->space < 0)
		return bundle_error("%s: %s", i->name, strerror(errno));
	return check_owner(i);
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
	return i->into ? open_space(i, archive_entry_perm(entry)) : 0;
}

/* The last entry says how many blocks there are. */
static int end(struct import *i, struct archive_entry *entry)
{
	const size_t n = strlen(BUNDLE_END);
	char mark[40], came[40];

	get_attribute(entry, ATTR_BUNDLE, mark, sizeof(mark));
	snprintf(came, sizeof(came), "%" PRIu64, i->blocks);
	if (strncmp(mark, BUNDLE_END, n) != 0)
		return bundle_error("%s: begins twice, or its end is not one",
				    i->name);
	if (strcmp(mark + n, came) != 0)
		return bundle_error("the bundle says it has %s blocks, and "
				    "came with %s",
				    mark + n, came);
	i->ended = true;
	return 0;
}

/* The digest that came with @entry, 32 digits. */
static int get_digest(struct archive_entry *entry, char ret[DIGEST_DIGITS + 2])
{
	get_attribute(entry, ATTR_DIGEST, ret, DIGEST_DIGITS + 2);
	return strlen(ret) == DIGEST_DIGITS
		       ? 0
		       : bundle_error("%s: without a digest",
				      archive_entry_pathname(entry));
}

static int take_layout(struct import *i, struct archive_entry *entry)
{
	static char text[KV_LAYOUT_TEXT_MAX + 1];
	char digest[DIGEST_DIGITS + 2], wanted[DIGEST_DIGITS + 2];
	size_t n = 0;
	la_ssize_t got;

	if (get_digest(entry, wanted) < 0)
		return -1;
	while ((got = archive_read_data(i->from, text + n, sizeof(text) - n)) >
	       0)
		n += (size_t)got;
	if (got < 0)
		return stream_error(i->from, true);
	bundle_digest(text, n, digest);
	if (strcmp(digest, wanted) != 0)
		return bundle_error("%s/.layout: damaged", i->name);
	i->has_layout = true;
	return bundle_take_layout(i->space, i->name, text, n);
}

static int take_block(struct import *i, struct archive_entry *entry,
		      const char *file)
{
	char digest[DIGEST_DIGITS + 2];
	const struct bundle_block block = {
		.path = archive_entry_pathname(entry),
		.file = file,
		.digest = digest,
		.mtime = {archive_entry_mtime(entry),
			  archive_entry_mtime_nsec(entry)},
	};
	int r = get_digest(entry, digest);

	if (r == 0 && i->blocks == 0 && !i->has_layout)
		r = bundle_take_no_layout(i->space, i->name);
	if (r < 0)
		return r;
	i->blocks++;
	r = bundle_take_block(i->space, &block, i->from);
	return r == 0 ? bundle_keys_add(&i->taken, file + 3) : r;
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
		if (strcmp(file, ".layout") == 0 && !i->has_layout &&
		    i->blocks == 0)
			return take_layout(i, entry);
		if (strlen(file) > 3 && bundle_is_key(file + 3) &&
		    strncmp(file, file + 3, 2) == 0 && file[2] == '/')
			return take_block(i, entry, file);
	}
	return bundle_error("not of a bundle, or not in its place: '%s'", path);
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
		return i->ended ? bundle_error("more after the bundle's end")
				: stream_error(i->from, i->name[0]);
	if (!i->ended)
		return bundle_error("the bundle is cut, after block %" PRIu64,
				    i->blocks);
	return 0;
}

/* How many of the blocks that were taken are gone: for want of room, say. */
static uint64_t count_gone(const struct import *i)
{
	char file[KV_NAME_MAX + 4];
	uint64_t n = 0;

	for (uint64_t k = 0; k < i->taken.n; k++) {
		bundle_file(i->taken.keys[k], file);
		n += faccessat(i->space, file, F_OK, 0) < 0;
	}
	return n;
}

/* Where there is no SSD nothing is, and nobody expects it. */
static int make_durable(const struct import *i)
{
	int error = i->space < 0 || fsync(i->space) == 0 ? 0 : errno;

	if (error == 0)
		return 0;
	if (error == EOPNOTSUPP) {
		bundle_error("%s: nothing is durable there: the mount has no "
			     "SSD",
			     i->name);
		return 0;
	}
	bundle_error("%s: not all that is there is durable: %s", i->name,
		     strerror(error));
	return error == ENOSPC ? 1 : -1;
}

/* What was taken is durable, and the caller is told what that is. */
static int finish(const struct import *i)
{
	const uint64_t bad = i->blocks - i->taken.n;
	int r = make_durable(i);
	const uint64_t gone = i->space < 0 ? 0 : count_gone(i);

	if (bad > 0)
		bundle_error("blocks not taken: %" PRIu64 " of %" PRIu64, bad,
			     i->blocks);
	if (gone > 0)
		bundle_error("blocks not there any more: %" PRIu64
			     " of %" PRIu64
			     ": removed, or evicted for want of room",
			     gone, i->blocks);
	return r < 0 ? r : r > 0 || bad > 0 || gone > 0;
}

static int open_stream(struct archive *a, int from)
{
	if (!a || archive_read_support_format_tar(a) != ARCHIVE_OK)
		return bundle_error("no memory");
	/* What follows the end is looked at. */
	if (archive_read_set_format_option(a, "tar",
					   "read_concatenated_archives",
					   "1") != ARCHIVE_OK ||
	    archive_read_open_fd(a, from, IO_BYTES) != ARCHIVE_OK)
		return stream_error(a, false);
	return 0;
}

int bundle_import(const char *into, bool shared, int from)
{
	_cleanup_(freep_archive_read) struct archive *a = archive_read_new();
	struct import i = {
		.from = a, .into = into, .shared = shared, .space = -1};
	int r = open_stream(a, from);

	if (r == 0)
		r = take_all(&i);
	if (r == 0)
		r = finish(&i);
	if (i.space >= 0)
		close(i.space);
	free(i.taken.keys);
	return r;
}
