/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bundle.h - what the files of kvfs-bundle share: the form of a bundle.
 *
 * A bundle is a tar (pax) of, in this order: the directory SPACE, marked by
 * ATTR_BUNDLE; SPACE/.layout, where the space has one; blocks, SPACE/ab/ab12..,
 * those of a snapshot parents before children; SPACE again, with the number of
 * blocks, by which the end is known.  A file has its digest; names are bytes.
 *
 * The order: main.c reads the command line, export.c writes a bundle, import.c
 * reads one, layout.c and block.c put what it has into a space, keys.c lists.
 */
#ifndef KV_TOOLS_BUNDLE_BUNDLE_H
#define KV_TOOLS_BUNDLE_BUNDLE_H

#include <archive.h>
#include <archive_entry.h>
#include <stdio.h>

#include "common/kv.h"

#define ATTR_DIGEST "user.kvfs.digest" /* of a file: XXH3-128, 32 digits */
#define ATTR_BUNDLE "user.kvfs.bundle" /* of SPACE: BEGIN; or END, a number */
#define BUNDLE_BEGIN "kvfs bundle 1"
#define BUNDLE_END "blocks "

#define DIGEST_DIGITS 32
#define IO_BYTES (1u << 20)
#define PATH_ROOM (KV_SPACE_NAME_MAX + KV_NAME_MAX + 40)

/* One line on standard error, without control characters.  Returns -1. */
int bundle_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/*
 * Write the blocks of @space's @snapshot, or all that it has (NULL), to the
 * descriptor @to.  Returns 0; 1: some are not there any more, the others are
 * written; -1, said.
 */
int bundle_export(const char *space, const char *snapshot, int to);

/*
 * Read a bundle from the descriptor @from into a space of the mount @into, or
 * only check it (@into NULL); into another user's if @shared.  Returns 0; 1:
 * some blocks were not taken, or are not durable, the others are there; -1,
 * said: what came before is there.
 */
int bundle_import(const char *into, bool shared, int from);

/* ---- block.c ---- */

struct bundle_block {
	const char *path; /* SPACE/ab/ab12.. */
	const char *file; /* the end of it: ab/ab12.. */
	const char *digest;
	struct timespec mtime;
};

/*
 * Take @block's bytes from @from and check them; put it into @space, unless
 * that is -1.  Returns 0: it is right, and there; 1: it is not taken, said; -1,
 * said.
 */
int bundle_take_block(int space, const struct bundle_block *block,
		      struct archive *from);

/* The digest of @n bytes as the mount shows it. */
void bundle_digest(const void *bytes, size_t n, char ret[DIGEST_DIGITS + 1]);

/* ---- layout.c ---- */

/*
 * Check that @text (@n bytes) is a layout, and that @space, called @name, has
 * it, unless that is -1; an empty space gets it.  Returns 0, or -1, said.
 */
int bundle_take_layout(int space, const char *name, const char *text, size_t n);

/* Check that @space has no layout, as the bundle has none: 0, or -1, said. */
int bundle_take_no_layout(int space, const char *name);

/* ---- keys.c ---- */

struct bundle_keys {
	char (*keys)[KV_NAME_MAX + 1];
	uint64_t n, room;
};

/* Is @name a block's: 32 or 64 digits of 0-9 and a-f? */
bool bundle_is_key(const char *name);

/* "ab/ab12.." of @key. */
void bundle_file(const char *key, char ret[KV_NAME_MAX + 4]);

/* 0, or -1, said: no memory. */
int bundle_keys_add(struct bundle_keys *keys, const char *key);

/* Add the keys of what is in @space, called @name: 0, or -1, said. */
int bundle_keys_list(struct bundle_keys *keys, int space, const char *name);

/*
 * Call @f for what is listed in the descriptor @directory, called @name, in the
 * order of the names, until it returns less than 0.  Returns that, or -1, said.
 */
int bundle_for_each(int directory, const char *name,
		    int (*f)(void *arg, const char *entry), void *arg);

#endif
