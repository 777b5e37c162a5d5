/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device.c - the directories with segment files: STORE, and those of store=DIR.
 *
 *   DIR/segments/           NNNNNN.seg, linked from STORE/segments
 *   DIR/segments/store      the store record, as of the last mount with DIR
 *   DIR/segments/lock       as STORE/lock
 *
 * The links tell a mount without DIR, and programs without a daemon, where the
 * files are.  A mount corrects the links of files that it finds in another DIR,
 * because DIR was moved.  The records of files and blocks in a missing DIR stay in
 * the index.  If a block is saved again meanwhile, the record with the higher
 * generation counts when DIR is back.
 *
 * OWNS       every kv_device but its ring.
 *
 * STATES     of a device, and the function that makes each step:
 *
 *             MISSING                kv_devices_open: no DIR with this store's record
 *             USED -> FAILED         kv_device_fail_locked, at once or after
 *                                    ERRORS failures in kv_device_note_locked
 *
 *            Both are failed until the next mount: blocks are misses at once, and
 *            kv_devices_forget_locked removes them from the table, so that they
 *            can be saved again.
 *
 * INVARIANTS
 *   (1) STORE, the first device, never fails: health.c has its state.
 *   (2) No slot of a failed device is taken: its files are closed.
 *   (3) A device that fails keeps its blocks' records in the index, until a block
 *       is removed, or written to another device from DRAM.
 *
 * LOCKING    cache->lock; none during I/O.  `failed` may be read without.
 */
#include "cache/ssd/ssd.h"
#include "index/segfile.h"
#include "index/sidecar.h"
#include "common/bytes.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#define SLOTS_AT_ONCE 4096u /* slots looked at in one step of a long walk */
/* Shorter than the writer's pause when all are full: its next try finds them. */
#define FULL_NS 4000000000u
/* More than the tries to write two bad slots, and to zero them. */
#define ERRORS 16u
#define PACE_NS 4e8	       /* recent writing time that is measured */
#define FORGET_NS 10000000000u /* an idle device is measured anew after this */
#define STRANGE "store=%s: not empty, and not part of this store"
#define NEW_LINK "link.new"

/* ---- opening ---- */

struct kv_device *kv_device_get(struct kv_cache *cache, const char *path)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_device *device;

	for (uint32_t i = 1; i < ssd->n_devices; i++)
		if (strcmp(ssd->devices[i].path, path) == 0)
			return &ssd->devices[i];
	if (ssd->n_devices == KV_DEVICES)
		return NULL;
	device = &ssd->devices[ssd->n_devices];
	device->number = ssd->n_devices;
	device->path = strdup(path);
	device->dir = device->lock_fd = -1;
	device->failed = device->forgotten = true;
	ssd->n_devices += device->path != NULL;
	return device->path ? device : NULL;
}

static int find_linked(void *arg, int dir, const char *name)
{
	char path[PATH_MAX];
	uint32_t id;

	return kv_segfile_parse(name, &id) &&
			       kv_segfile_link(dir, id, path) == 0 &&
			       !kv_device_get(arg, path)
		       ? -E2BIG
		       : 0;
}

static int is_strange(void *arg, int dir, const char *name)
{
	(void)arg;
	(void)dir;
	return strcmp(name, "segments") != 0 && strcmp(name, "lost+found") != 0;
}

/* Open DIR/segments; make it unless @linked.  Return its descriptor, or
 * -ENOENT if it is missing. */
static int open_segments(struct kv_cache *cache, const char *path, bool linked,
			 char **ret_why)
{
	const bool make = !linked && !cache->config.read_only;
	_cleanup_(kv_closep) int top = -1, dir = -1;
	struct stat st, own;

	if (make && mkdir(path, 0700) < 0 && errno != EEXIST)
		return kv_why(ret_why, -errno, "store=%s: cannot make it: %s",
			      path, strerror(errno));
	top = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (top < 0)
		return -errno;
	if (kv_store_file_there(top) ||
	    faccessat(top, "index", F_OK, AT_SYMLINK_NOFOLLOW) == 0)
		return kv_why(ret_why, -EEXIST,
			      "store=%s: a store of its own: name another "
			      "directory",
			      path);
	if (make && kv_dir_walk(top, ".", is_strange, NULL) != 0)
		return kv_why(ret_why, -EEXIST, STRANGE, path);
	if (make && mkdirat(top, "segments", 0700) < 0 && errno != EEXIST)
		return kv_why(ret_why, -errno, "store=%s: cannot make it: %s",
			      path, strerror(errno));
	if (make)
		fsync(top);
	dir = openat(top, "segments",
		     O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (dir < 0 || fstat(dir, &st) < 0 ||
	    fstat(cache->ssd.devices[0].dir, &own) < 0)
		return -errno;
	if (st.st_uid != geteuid() && st.st_uid != own.st_uid)
		return kv_why(ret_why, -EPERM,
			      "store=%s: its segments belong to user %u, who "
			      "could change them",
			      path, st.st_uid);
	return kv_steal_fd(&dir);
}

/* Open, check and lock DIR.  Return -ENOENT if files are linked to DIR and DIR is
 * missing, as when its disk is not mounted, or cannot be written to. */
static int device_open(struct kv_cache *cache, struct kv_device *device,
		       bool linked, char **ret_why)
{
	const struct kv_lock_wait wait = {0};
	_cleanup_(kv_closep) int dir = -1;
	struct kv_store_info info;
	char pid[32];
	int n, r;

	dir = open_segments(cache, device->path, linked, ret_why);
	if (dir < 0 && (*ret_why || linked))
		return *ret_why ? dir : -ENOENT;
	if (dir < 0)
		return kv_why(ret_why, dir, "store=%s: %s", device->path,
			      strerror(-dir));
	r = kv_lock_take(dir, !cache->config.read_only, &wait,
			 &device->lock_fd);
	if (r == -EBUSY)
		return kv_why(ret_why, r,
			      "store=%s: in use by another kvfs (pid %ld)",
			      device->path, kv_lock_owner(dir));
	if (linked && (r == -EROFS || r == -EIO))
		return -ENOENT;
	if (r < 0)
		return kv_why(ret_why, r, "store=%s: cannot lock it: %s",
			      device->path, strerror(-r));
	r = kv_store_file_read(dir, &info);
	if (linked && (r == -ENOENT || r == -EIO))
		return -ENOENT;
	if (r == -EIO)
		return kv_why(ret_why, r, "store=%s: %s", device->path,
			      strerror(-r));
	if (r == -ENOTSUP)
		return kv_why(ret_why, r, "store=%s: " KV_FORMAT_REFUSED,
			      device->path);
	if (r == 0 && memcmp(info.store, cache->info.store, 16) != 0)
		return kv_why(ret_why, -EEXIST,
			      "store=%s: belongs to another store than %s",
			      device->path, cache->store);
	if (r < 0 && !linked && kv_dir_walk(dir, ".", kv_is_segfile, NULL) != 0)
		return kv_why(ret_why, -EEXIST, STRANGE, device->path);
	/* The filesystem of a disk that failed is often read-only. */
	if (r == 0 && linked && !cache->config.read_only &&
	    kv_store_file_write(dir, &info) < 0)
		return -ENOENT;
	/* After mounts without DIR its free slots may hold removed blocks. */
	cache->ssd.unswept |=
		r == -EBADMSG || (r == 0 && info.mounts != cache->info.mounts);
	n = snprintf(pid, sizeof(pid), "%d\n", (int)getpid());
	if (!cache->config.read_only &&
	    pwrite(device->lock_fd, pid, (size_t)n, 0) == n)
		(void)!ftruncate(device->lock_fd, n);
	device->dir = kv_steal_fd(&dir);
	device->failed = false;
	return 0;
}

int kv_device_link(struct kv_cache *cache, const struct kv_device *device,
		   uint32_t id)
{
	const int dir = cache->ssd.devices[0].dir;
	_cleanup_(kv_freep) char *to = NULL;
	char name[KV_SEGFILE_NAME];

	kv_segfile_name(id, name);
	if (asprintf(&to, "%s/segments/%s", device->path, name) < 0)
		return -ENOMEM;
	unlinkat(dir, NEW_LINK, 0);
	return symlinkat(to, dir, NEW_LINK) < 0 ||
			       renameat(dir, NEW_LINK, dir, name) < 0 ||
			       fsync(dir) < 0
		       ? -errno
		       : 0;
}

struct found {
	struct kv_cache *cache;
	const struct kv_device *device;
};

/* Link a file of a used device, unless its link leads to a used device that has
 * the file: DIR was moved, or is given by another path. */
static int relink(void *arg, int dir, const char *name)
{
	const struct found *found = arg;
	const struct kv_device *linked;
	char path[PATH_MAX];
	uint32_t id;
	int r;

	(void)dir;
	if (!kv_segfile_parse(name, &id))
		return 0;
	r = kv_segfile_link(found->cache->ssd.devices[0].dir, id, path);
	linked = r == 0 ? kv_device_get(found->cache, path) : NULL;
	if ((r < 0 && r != -ENOENT) ||
	    (linked && !linked->failed &&
	     faccessat(linked->dir, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0))
		return 0;
	return kv_device_link(found->cache, found->device, id);
}

int kv_devices_open(struct kv_cache *cache, char **ret_why)
{
	struct kv_ssd *ssd = &cache->ssd;
	int r = kv_dir_walk(ssd->devices[0].dir, ".", find_linked, cache);

	for (unsigned i = 0; r == 0 && i < cache->config.n_more; i++) {
		const uint32_t n = ssd->n_devices;
		struct kv_device *device =
			kv_device_get(cache, cache->config.more[i]);

		r = device ? 0 : -E2BIG;
		if (r == 0 && device->dir >= 0)
			r = kv_why(ret_why, -EEXIST, "store=%s: given twice",
				   device->path);
		if (r == 0)
			r = device_open(cache, device, ssd->n_devices == n,
					ret_why);
		if (r == -ENOENT && !*ret_why)
			r = 0;
	}
	for (uint32_t i = 1; i < ssd->n_devices && !cache->config.read_only;
	     i++)
		if (r == 0 && !ssd->devices[i].failed)
			r = kv_dir_walk(
				ssd->devices[i].dir, ".", relink,
				&(struct found){cache, &ssd->devices[i]});
	return r < 0 && !*ret_why
		       ? kv_why(ret_why, r,
				"%s/segments: cannot follow its links: %s",
				cache->store, strerror(-r))
		       : r;
}

void kv_devices_record(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;
	int r;

	for (uint32_t i = 1; i < ssd->n_devices; i++) {
		if (ssd->devices[i].failed)
			continue;
		r = kv_store_file_write(ssd->devices[i].dir, &cache->info);
		if (r < 0)
			(void)kv_device_fail(cache, &ssd->devices[i], r);
	}
}

void kv_devices_warn(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;

	for (uint32_t i = 1; i < ssd->n_devices; i++)
		if (ssd->devices[i].failed && ssd->devices[i].files)
			kv_warn(cache, "store_missing",
				"store=%s is not there or not given, or takes "
				"no writes: its %llu blocks in %u files are "
				"misses until it is mounted again",
				ssd->devices[i].path,
				(unsigned long long)ssd->devices[i].away,
				ssd->devices[i].files);
}

void kv_devices_close(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;

	for (uint32_t i = 0; i < ssd->n_devices; i++) {
		kv_closep(&ssd->devices[i].dir);
		kv_closep(&ssd->devices[i].lock_fd);
		free(kv_steal(ssd->devices[i].path));
	}
}

/* ---- placing ---- */

/* Return the ns that a device takes to write a byte.  One without a recent write
 * counts as quick, so that it is tried. */
static double pace(const struct kv_device *device)
{
	return device->busy_bytes > 0 ? device->busy_ns / device->busy_bytes
				      : .1;
}

double kv_device_delay(struct kv_device *device, uint64_t bytes)
{
	if (!device->writing && kv_now_ns() - device->since >= FORGET_NS)
		device->busy_ns = device->busy_bytes = 0;
	return (double)(device->writing + bytes) * pace(device);
}

void kv_device_begin(struct kv_device *device, uint64_t bytes)
{
	if (!device->writing)
		device->since = kv_now_ns();
	device->writing += bytes;
	device->placed += (double)bytes * pace(device);
}

void kv_device_end(struct kv_device *device, uint64_t bytes)
{
	const uint64_t now = kv_now_ns();

	device->writing -= bytes;
	device->busy_ns += (double)(now - device->since);
	device->busy_bytes += (double)bytes;
	device->since = now;
	if (device->busy_ns > PACE_NS) {
		device->busy_ns /= 2;
		device->busy_bytes /= 2;
	}
}

bool kv_device_idle(struct kv_device *device, uint64_t bytes, double busy)
{
	return !device->failed && device->full_until <= kv_now_ns() &&
	       kv_device_delay(device, bytes) < busy;
}

/* Return which part of a filesystem is free. */
static double free_share(const struct kv_device *device)
{
	struct statvfs fs;

	if (fstatvfs(device->dir, &fs) < 0 || !fs.f_blocks)
		return 0;
	return (double)fs.f_bavail / (double)fs.f_blocks;
}

struct kv_device *kv_device_choose(struct kv_cache *cache, uint64_t bytes,
				   double busy)
{
	struct kv_ssd *ssd = &cache->ssd;
	struct kv_device *best = NULL;
	double paces[KV_DEVICES] = {0}, least = 0, most = 0, share;

	kv_assert_locked(&cache->lock);
	if (ssd->n_devices == 1)
		return ssd->devices;
	for (uint32_t i = 0; i < ssd->n_devices; i++) {
		if (!kv_device_idle(&ssd->devices[i], bytes, busy))
			continue;
		paces[i] = pace(&ssd->devices[i]);
		least = least > 0 ? KV_MIN(least, paces[i]) : paces[i];
	}
	kv_unlock(cache);
	for (uint32_t i = 0; i < ssd->n_devices; i++) {
		struct kv_device *device = &ssd->devices[i];

		if (paces[i] <= 0)
			continue;
		share = free_share(device);
		if (paces[i] > 2 * least)
			share *= least / paces[i];
		if (best && (share < most ||
			     (share <= most && device->files >= best->files)))
			continue;
		best = device;
		most = share;
	}
	kv_lock(cache);
	return best;
}

bool kv_device_refused_locked(struct kv_cache *cache, struct kv_device *device,
			      int status)
{
	kv_assert_locked(&cache->lock);
	if (cache->ssd.n_devices == 1)
		return false;
	if ((status == -EIO || status == -EROFS || status == -ETIMEDOUT) &&
	    !kv_device_note_locked(cache, device, status))
		return false;
	device->full_until = kv_now_ns() + FULL_NS;
	return true;
}

/* ---- failing ---- */

bool kv_device_fail_locked(struct kv_cache *cache, struct kv_device *device,
			   int status)
{
	struct kv_ssd *ssd = &cache->ssd;

	kv_assert_locked(&cache->lock);
	/* A shortage of memory says nothing about the device. */
	if (device == ssd->devices || status == -ENOMEM)
		return false;
	device->forgotten = false;
	if (device->failed)
		return true;
	device->failed = true;
	cache->stats.ssd_outages++;
	for (uint32_t id = 0; id < ssd->n_files; id++) {
		struct kv_segfile *file = ssd->files[id];

		if (!file || file->device != device || !file->class)
			continue;
		/* The store ends unclean: the next mount sweeps the file. */
		ssd->n_unswept -= file->unswept;
		file->unswept = false;
		if (!file->closed)
			kv_extents_close_file(file);
	}
	kv_flushes_settle_locked(cache, 0);
	kv_warn(cache, "store_failed",
		"store=%s failed (%s): its blocks are misses until a mount "
		"finds it working",
		device->path, strerror(-status));
	kv_writer_rouse_locked(cache);
	return true;
}

bool kv_device_note_locked(struct kv_cache *cache, struct kv_device *device,
			   int status)
{
	const bool gone = status == -ENODEV || status == -ENXIO ||
			  status == -EROFS || status == -ETIMEDOUT;

	kv_assert_locked(&cache->lock);
	device->errors = status < 0 ? device->errors + 1 : 0;
	if (gone || device->errors >= ERRORS)
		return kv_device_fail_locked(cache, device, status);
	return status < 0 && status != -ENOMEM && device != cache->ssd.devices;
}

bool kv_device_fail(struct kv_cache *cache, struct kv_device *device,
		    int status)
{
	kv_lock(cache);
	const bool fails = kv_device_fail_locked(cache, device, status);
	kv_unlock(cache);
	return fails;
}

void kv_devices_forget_locked(struct kv_cache *cache)
{
	struct kv_ssd *ssd = &cache->ssd;

	for (uint32_t n = 1; n < ssd->n_devices; n++) {
		struct kv_device *device = &ssd->devices[n];

		if (!device->failed || device->forgotten)
			continue;
		device->forgotten = true;
		for (uint32_t id = 0; id < ssd->n_files; id++) {
			struct kv_segfile *file = ssd->files[id];

			if (!file || file->device != device || !file->class)
				continue;
			for (uint32_t i = 0; i < file->slots; i++) {
				struct kv_block *block =
					kv_extent_block(cache, file, i);

				if (block && !(block->flags & BLOCK_REMOVED))
					kv_extent_lose_locked(cache, block);
				if (i % SLOTS_AT_ONCE == SLOTS_AT_ONCE - 1)
					kv_yield(cache);
			}
		}
	}
}
