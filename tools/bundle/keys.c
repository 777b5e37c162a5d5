/* SPDX-License-Identifier: Apache-2.0 */
/*
 * keys.c - keys of blocks, and which of them a space has.
 *
 * OWNS      the array of a struct bundle_keys, which its user frees.
 *
 * LOCKING   one thread.
 */
#include <dirent.h>
#include <fcntl.h>

#include "tools/bundle/bundle.h"

bool bundle_is_key(const char *name)
{
	size_t n = strspn(name, "0123456789abcdef");

	return name[n] == '\0' && (n == 32 || n == 64);
}

void bundle_file(const char *key, char ret[KV_NAME_MAX + 4])
{
	snprintf(ret, KV_NAME_MAX + 4, "%.2s/%s", key, key);
}

int bundle_keys_add(struct bundle_keys *keys, const char *key)
{
	if (keys->n == keys->room) {
		uint64_t room = keys->room ? 2 * keys->room : 1024;
		void *more = realloc(keys->keys, room * sizeof(*keys->keys));

		if (!more)
			return bundle_error("no memory");
		keys->keys = more;
		keys->room = room;
	}
	strcpy(keys->keys[keys->n++], key);
	return 0;
}

static int is_shown(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

int bundle_for_each(int directory, const char *name,
		    int (*f)(void *arg, const char *entry), void *arg)
{
	struct dirent **entries;
	int n = scandirat(directory, ".", &entries, is_shown, alphasort);
	int r = 0;

	if (n < 0)
		return bundle_error("%s: %s", name, strerror(errno));
	for (int i = 0; i < n; i++) {
		if (r >= 0)
			r = f(arg, entries[i]->d_name);
		free(entries[i]);
	}
	free(entries);
	return r;
}

struct listing {
	struct bundle_keys *keys;
	int space;
	const char *name;
};

static int list_key(void *arg, const char *key)
{
	struct listing *l = arg;

	return bundle_is_key(key) ? bundle_keys_add(l->keys, key) : 0;
}

/* The blocks of a directory of the space, "ab". */
static int list_directory(void *arg, const char *directory)
{
	struct listing *l = arg;
	_cleanup_(kv_closep) int fd =
		openat(l->space, directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return bundle_error("%s/%s: %s", l->name, directory,
				    strerror(errno));
	return bundle_for_each(fd, l->name, list_key, l);
}

int bundle_keys_list(struct bundle_keys *keys, int space, const char *name)
{
	struct listing l = {.keys = keys, .space = space, .name = name};

	return bundle_for_each(space, name, list_directory, &l);
}
