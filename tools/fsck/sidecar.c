/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sidecar.c - what lies beside the index: STORE/store, STORE/spaces, and what
 * has no business there.
 *
 * OWNS     nothing.
 * LOCKING  one thread.
 */
#include "tools/fsck/fsck.h"
#include "index/sidecar.h"
#include "index/rebuild.h"

#include <dirent.h>
#include <fcntl.h>

static const char *const own[] = {
	"lock",	     "store",	 "store.tmp", "index",
	"index.new", "segments", "spaces",    "lost+found",
};
static const char *const own_index[] = {"data.mdb", "lock.mdb", "compact.tmp"};

static bool is_in(const char *name, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return false;
}

static bool known_name(struct fsck *f, const char *dir, const char *name)
{
	uint32_t id;

	if (strcmp(dir, ".") == 0) {
		if (strcmp(name, KV_DAMAGED_NAME) == 0)
			fsck_found(f, FAULT_STRANGER,
				   "index.damaged: a damaged index that the "
				   "daemon replaced; it can be removed");
		return is_in(name, own, KV_ARRAY_LEN(own)) ||
		       strcmp(name, KV_DAMAGED_NAME) == 0;
	}
	if (strcmp(dir, "index") == 0)
		return is_in(name, own_index, KV_ARRAY_LEN(own_index));
	if (strcmp(dir, "segments") == 0)
		return kv_segfile_parse(name, &id);
	return kv_space_file_parse(name, &id);
}

static void strangers_in(struct fsck *f, const char *dir)
{
	int fd = openat(f->store, dir,
			O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	DIR *list = fd < 0 ? NULL : fdopendir(fd);
	struct dirent *entry;

	if (!list) {
		if (fd >= 0)
			close(fd);
		return;
	}
	while ((entry = readdir(list))) {
		const char *name = entry->d_name;

		if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0 &&
		    !known_name(f, dir, name))
			fsck_found(f, FAULT_STRANGER,
				   "%s/%s: not the store's, left alone", dir,
				   name);
	}
	closedir(list);
}

int fsck_strangers(struct fsck *f)
{
	strangers_in(f, ".");
	strangers_in(f, "index");
	strangers_in(f, "segments");
	strangers_in(f, "spaces");
	return 0;
}

static bool same_space(const struct space *a, const struct space *b)
{
	return strcmp(a->name, b->name) == 0 &&
	       strcmp(a->layout, b->layout) == 0 &&
	       memcmp(&a->record, &b->record,
		      offsetof(struct kv_space_record, name_len)) == 0;
}

static int check_space(struct fsck *f, struct space *space)
{
	struct space file = {0};
	int r = f->spaces_dir < 0 ? -ENOENT
				  : kv_space_file_read(f->spaces_dir, space->id,
						       &file.record, &file.name,
						       &file.layout);

	if (r == -ENOMEM)
		return r;
	if (space->put && r == 0) {
		space->record = file.record;
		space->name = file.name;
		space->layout = file.layout;
		return 0;
	}
	if (!space->put && (r < 0 || !same_space(space, &file))) {
		space->write = true;
		fsck_found(f, FAULT_SPACE_FILE, "spaces/%06u: %s", space->id,
			   r < 0 ? strerror(-r) : "not as the index has it");
	}
	free(file.name);
	free(file.layout);
	return 0;
}

static int check_stray(struct fsck *f, uint32_t id)
{
	int r;

	if (fsck_space(f, id))
		return 0;
	fsck_found(f, FAULT_SPACE_FILE, "spaces/%06u: of no space", id);
	r = fsck_more(&f->stray_files, f->n_stray_files,
		      sizeof(*f->stray_files));
	if (r == 0)
		f->stray_files[f->n_stray_files++] = id;
	return r;
}

static int check_strays(struct fsck *f)
{
	DIR *list = f->spaces_dir < 0 ? NULL : fdopendir(dup(f->spaces_dir));
	struct dirent *entry;
	uint32_t id;
	int r = 0;

	if (!list)
		return 0;
	rewinddir(list);
	while (r == 0 && (entry = readdir(list)))
		if (kv_space_file_parse(entry->d_name, &id))
			r = check_stray(f, id);
	closedir(list);
	return r;
}

static void check_store(struct fsck *f)
{
	struct kv_store_info info;
	int r = kv_store_file_read(f->store, &info);

	if (r == 0 &&
	    memcmp(info.store, f->info.store, sizeof(info.store)) == 0 &&
	    info.segment_bytes == f->info.segment_bytes &&
	    info.version == f->info.version)
		return;
	f->write_store_file = true;
	fsck_found(f, FAULT_STORE_FILE, "store: %s",
		   r < 0 ? strerror(-r) : "not as the index has it");
}

int fsck_sidecar(struct fsck *f)
{
	int r = 0;

	if (!f->readable)
		return 0;
	check_store(f);
	for (size_t i = 0; r == 0 && i < f->n_spaces; i++)
		r = check_space(f, &f->spaces[i]);
	if (r == 0)
		r = check_strays(f);
	return r < 0 ? fsck_error("%s/spaces: %s", f->path, strerror(-r)) : 0;
}
