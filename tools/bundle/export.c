/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export.c - write the blocks of a space or snapshot as a bundle.
 *
 * OWNS      the archive being written, the keys, one block's bytes, the
 *           descriptors of the space.
 *
 * INVARIANTS
 *   (1) A block whose bytes are not all there to be read is not begun: what is
 *       in a bundle is whole.
 *   (2) What is to be written is listed before the first byte is: what goes
 *       meanwhile is missed.
 *
 * LOCKING   one thread.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#include "common/bytes.h"
#include "tools/bundle/bundle.h"

struct export
{
	struct archive *to;
	const char *name; /* of the space */
	int space;	  /* its directory */
	int snapshot;	  /* the snapshot's; -1: all of the space */
	struct bundle_keys keys;
	uint8_t *bytes; /* of one block */
	size_t room;
	uint64_t written, missing;
};

static void freep_archive_write(struct archive **a)
{
	archive_write_free(*a);
}

static void freep_entry(struct archive_entry **e)
{
	archive_entry_free(*e);
}

/* Begin @entry and give it @n bytes. */
static int put(struct export *e, struct archive_entry *entry, const void *bytes,
	       size_t n)
{
	if (archive_write_header(e->to, entry) != ARCHIVE_OK ||
	    archive_write_data(e->to, bytes, n) != (la_ssize_t)n)
		return bundle_error("cannot write: %s",
				    strerror(archive_errno(e->to)));
	return 0;
}

/* The directory SPACE, which begins and ends a bundle; @mark says which. */
static int put_space(struct export *e, const char *mark)
{
	_cleanup_(freep_entry) struct archive_entry *entry =
		archive_entry_new();
	struct stat st;
	char path[PATH_ROOM];

	if (!entry)
		return bundle_error("no memory");
	if (fstat(e->space, &st) < 0)
		return bundle_error("%s: %s", e->name, strerror(errno));
	snprintf(path, sizeof(path), "%s/", e->name);
	archive_entry_set_pathname(entry, path);
	archive_entry_set_mode(entry, S_IFDIR | (st.st_mode & 0777));
	archive_entry_set_mtime(entry, st.st_mtim.tv_sec, 0);
	archive_entry_xattr_add_entry(entry, ATTR_BUNDLE, mark, strlen(mark));
	return put(e, entry, "", 0);
}

static int make_room(struct export *e, size_t n)
{
	if (n <= e->room)
		return 0;
	free(e->bytes);
	e->bytes = malloc(n);
	e->room = e->bytes ? n : 0;
	return e->bytes ? 0 : -ENOMEM;
}

/* Read all of @fd into e->bytes.  Returns 0 or -errno. */
static int read_all(struct export *e, int fd, struct stat *ret_st)
{
	size_t n;
	long got;
	int r;

	if (fstat(fd, ret_st) < 0)
		return -errno;
	n = (size_t)ret_st->st_size;
	r = make_room(e, n);
	if (r < 0)
		return r;
	got = kv_read_at(fd, 0, e->bytes, n);
	if (got < 0)
		return (int)got;
	return (size_t)got == n ? 0 : -EIO;
}

/* @file of the space, read whole, as an entry. */
static int put_file(struct export *e, const char *file, const struct stat *st,
		    const char *digest)
{
	_cleanup_(freep_entry) struct archive_entry *entry =
		archive_entry_new();
	char path[PATH_ROOM];

	if (!entry)
		return bundle_error("no memory");
	snprintf(path, sizeof(path), "%s/%s", e->name, file);
	archive_entry_set_pathname(entry, path);
	archive_entry_set_mode(entry, S_IFREG | (st->st_mode & 0777));
	archive_entry_set_size(entry, st->st_size);
	archive_entry_set_mtime(entry, st->st_mtim.tv_sec, st->st_mtim.tv_nsec);
	archive_entry_xattr_add_entry(entry, ATTR_DIGEST, digest,
				      strlen(digest));
	return put(e, entry, e->bytes, (size_t)st->st_size);
}

/* The layout, if the space has one. */
static int put_layout(struct export *e)
{
	_cleanup_(kv_closep) int fd =
		openat(e->space, ".layout", O_RDONLY | O_CLOEXEC);
	char digest[DIGEST_DIGITS + 1];
	struct stat st;
	int r;

	if (fd < 0)
		return errno == ENOENT ? 0
				       : bundle_error("%s/.layout: %s", e->name,
						      strerror(errno));
	r = read_all(e, fd, &st);
	if (r < 0)
		return bundle_error("%s/.layout: %s", e->name, strerror(-r));
	bundle_digest(e->bytes, (size_t)st.st_size, digest);
	return put_file(e, ".layout", &st, digest);
}

/* Read the block @file with its digest. */
static int read_block(struct export *e, const char *file, struct stat *ret_st,
		      char ret_digest[DIGEST_DIGITS + 1])
{
	_cleanup_(kv_closep) int fd =
		openat(e->space, file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);

	if (fd < 0 || fgetxattr(fd, ATTR_DIGEST, ret_digest, DIGEST_DIGITS) < 0)
		return -errno;
	ret_digest[DIGEST_DIGITS] = '\0';
	return read_all(e, fd, ret_st);
}

/* The block @file ("ab/ab12..").  One that is gone or unreadable is counted. */
static int put_block(struct export *e, const char *file)
{
	char digest[DIGEST_DIGITS + 1] = "";
	struct stat st = {0};
	int r = read_block(e, file, &st, digest);

	if (r < 0) {
		if (r != -ENOENT)
			bundle_error("%s/%s: %s", e->name, file, strerror(-r));
		e->missing++;
		return 0;
	}
	e->written++;
	return put_file(e, file, &st, digest);
}

/* The block that @link of the snapshot names.  Links are made by the mount. */
static int list_link(void *arg, const char *link)
{
	struct export *e = arg;
	char target[PATH_MAX];
	const char *key;
	ssize_t n;

	n = readlinkat(e->snapshot, link, target, sizeof(target) - 1);
	if (n < 0 && errno == ENOENT) { /* removed since it was listed */
		e->missing++;
		return 0;
	}
	if (n < 0)
		return bundle_error("%s: link %s: %s", e->name, link,
				    strerror(errno));
	target[n] = '\0';
	key = strrchr(target, '/');
	if (!key || !bundle_is_key(key + 1))
		return bundle_error("%s: link %s: not of a snapshot", e->name,
				    link);
	return bundle_keys_add(&e->keys, key + 1);
}

/* Links are named after their positions: parents come before children. */
static int list_blocks(struct export *e)
{
	return e->snapshot < 0
		       ? bundle_keys_list(&e->keys, e->space, e->name)
		       : bundle_for_each(e->snapshot, e->name, list_link, e);
}

static int put_blocks(struct export *e)
{
	char file[KV_NAME_MAX + 4];
	int r = 0;

	for (uint64_t i = 0; i < e->keys.n && r == 0; i++) {
		bundle_file(e->keys.keys[i], file);
		r = put_block(e, file);
	}
	return r;
}

static int put_all(struct export *e)
{
	char end[40];
	int r = list_blocks(e);

	if (r == 0)
		r = put_space(e, BUNDLE_BEGIN);
	if (r == 0)
		r = put_layout(e);
	if (r == 0)
		r = put_blocks(e);
	if (r < 0)
		return r;
	snprintf(end, sizeof(end), BUNDLE_END "%" PRIu64, e->written);
	r = put_space(e, end);
	if (r == 0 && archive_write_close(e->to) != ARCHIVE_OK)
		r = bundle_error("cannot write: %s",
				 strerror(archive_errno(e->to)));
	if (r < 0 || e->missing == 0)
		return r;
	bundle_error("blocks not there any more: %" PRIu64 " of %" PRIu64,
		     e->missing, e->written + e->missing);
	return 1;
}

/* A name is bytes: GNU tar takes the word for that, but complains of it. */
static bool is_ascii(const char *name)
{
	while (*name && (unsigned char)*name < 128)
		name++;
	return *name == '\0';
}

static int open_archive(struct export *e, int to)
{
	if (!e->to || archive_write_set_format_pax(e->to) != ARCHIVE_OK ||
	    /* The names of extended attributes that GNU tar knows, too. */
	    archive_write_set_format_option(e->to, "pax", "xattrheader",
					    "SCHILY") != ARCHIVE_OK ||
	    (!is_ascii(e->name) &&
	     archive_write_set_format_option(e->to, "pax", "hdrcharset",
					     "BINARY") != ARCHIVE_OK) ||
	    archive_write_set_bytes_per_block(e->to, IO_BYTES) != ARCHIVE_OK ||
	    archive_write_set_bytes_in_last_block(e->to, 1) != ARCHIVE_OK ||
	    archive_write_open_fd(e->to, to) != ARCHIVE_OK)
		return bundle_error("cannot write: %s",
				    e->to ? strerror(archive_errno(e->to))
					  : "no memory");
	return 0;
}

/* Open @snapshot of the space @space, whose .snapshots is open as @snapshots. */
static int open_snapshot(const char *space, int snapshots, const char *snapshot)
{
	int fd;

	if (!*snapshot || strchr(snapshot, '/') || snapshot[0] == '.')
		return bundle_error("'%s' is no snapshot's name", snapshot);
	fd = openat(snapshots, snapshot, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? bundle_error("%s: snapshot '%s': %s", space, snapshot,
				     strerror(errno))
		      : fd;
}

int bundle_export(const char *space, const char *snapshot, int to)
{
	_cleanup_(kv_freep) char *path = realpath(space, NULL);
	_cleanup_(kv_closep) int space_fd =
		open(space, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	_cleanup_(kv_closep) int snapshots_fd = -1;
	_cleanup_(kv_closep) int snapshot_fd = -1;
	_cleanup_(freep_archive_write) struct archive *a = NULL;
	struct export e;
	int r;

	if (!path || space_fd < 0)
		return bundle_error("%s: %s", space, strerror(errno));
	snapshots_fd = openat(space_fd, ".snapshots",
			      O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (snapshots_fd < 0)
		return bundle_error("%s: not a space of kvfs", space);
	if (snapshot)
		snapshot_fd = open_snapshot(space, snapshots_fd, snapshot);
	if (snapshot && snapshot_fd < 0)
		return -1;
	a = archive_write_new();
	e = (struct export){.to = a,
			    .name = strrchr(path, '/') + 1,
			    .space = space_fd,
			    .snapshot = snapshot_fd};
	r = open_archive(&e, to);
	if (r == 0)
		r = put_all(&e);
	free(e.bytes);
	free(e.keys.keys);
	return r;
}
