/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layout.c - the layout out of a bundle, checked, and into a space.
 *
 * A layout is for ever, and says what blocks mean: one that is there is
 * compared, and none is given to blocks that were saved without.
 *
 * OWNS      nothing.
 *
 * LOCKING   one thread.
 */
#include <fcntl.h>
#include <jansson.h>

#include "common/layout.h"
#include "tools/bundle/bundle.h"

/* Read what @space has.  Returns its length; 0: it has none; -1, said. */
static ssize_t read_layout(int space, const char *name,
			   char ret[KV_LAYOUT_TEXT_MAX])
{
	_cleanup_(kv_closep) int fd =
		openat(space, ".layout", O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
	ssize_t n = 0, got = -1;

	if (fd < 0 && errno == ENOENT)
		return 0;
	if (fd >= 0)
		while ((got = read(fd, ret + n,
				   KV_LAYOUT_TEXT_MAX - (size_t)n)) > 0)
			n += got;
	return got < 0 ? bundle_error("%s/.layout: %s", name, strerror(errno))
		       : n;
}

/* Compare @text with what is there.  Returns 1: the same; 0: there is none. */
static int compare(int space, const char *name, const char *text, size_t n)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
	static char there[KV_LAYOUT_TEXT_MAX];
	ssize_t n_there = read_layout(space, name, there);
	int r;

	if (n_there <= 0)
		return (int)n_there;
	r = kv_layout_parse(there, (size_t)n_there, &layout);
	if (r == 0)
		r = kv_layout_agrees(layout, text, n);
	if (r < 0)
		return bundle_error("%s/.layout: %s", name, strerror(-r));
	return r ? 1
		 : bundle_error("%s has another layout here: these blocks are "
				"not its own",
				name);
}

/* Returns 1: there are no blocks; 0; or -1, said. */
static int is_empty(int space, const char *name)
{
	struct bundle_keys keys = {0};
	int r = bundle_keys_list(&keys, space, name);

	free(keys.keys);
	return r < 0 ? r : keys.n == 0;
}

static int write_layout(int space, const char *name, const char *text, size_t n)
{
	int fd = openat(space, ".layout",
			O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	int r = 0;

	if (fd < 0 || write(fd, text, n) != (ssize_t)n)
		r = -errno;
	if (fd >= 0 && close(fd) < 0 && r == 0)
		r = -errno;
	return r < 0 ? bundle_error("%s/.layout: %s", name, strerror(-r)) : 0;
}

/*
 * Another import may be at it: it gives the space its layout before the first
 * block, so one that is not there after a block was seen never was.
 */
static int compare_or_write(int space, const char *name, const char *text,
			    size_t n)
{
	int r = compare(space, name, text, n);

	if (r != 0)
		return KV_MIN(r, 0);
	r = is_empty(space, name);
	if (r < 0)
		return r;
	if (r > 0)
		return write_layout(space, name, text, n);
	r = compare(space, name, text, n);
	return r != 0 ? KV_MIN(r, 0)
		      : bundle_error("%s has blocks and no layout here: it "
				     "does not get that of the bundle",
				     name);
}

/* Whether blocks leave this node is for whoever imports them; caller frees. */
static char *not_shared(const char *text, size_t n)
{
	json_t *json = json_loadb(text, n, 0, NULL);
	char *rest = NULL;

	if (json) {
		json_object_del(json, "share");
		rest = json_dumps(json, JSON_COMPACT);
	}
	json_decref(json);
	return rest;
}

int bundle_take_layout(int space, const char *name, const char *text, size_t n)
{
	_cleanup_(kv_layout_freep) struct kv_layout *layout = NULL;
	_cleanup_(kv_freep) char *own = NULL;
	int r = kv_layout_parse(text, n, &layout);

	if (r < 0)
		return bundle_error("%s/.layout: %s", name,
				    r == -EINVAL ? "not a layout"
						 : strerror(-r));
	if (space < 0)
		return 0;
	own = layout->share ? not_shared(text, n) : strndup(text, n);
	return own ? compare_or_write(space, name, own, strlen(own))
		   : bundle_error("no memory");
}

int bundle_take_no_layout(int space, const char *name)
{
	if (space < 0 || faccessat(space, ".layout", F_OK, 0) < 0)
		return 0;
	return bundle_error("%s has a layout here, and the bundle none: these "
			    "blocks are not its own",
			    name);
}
