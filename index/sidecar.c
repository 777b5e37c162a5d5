/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sidecar.c - the small files beside the index, and STORE/lock.
 *
 * The lock is an OFD lock on all of STORE/lock, which is never unlinked, and
 * flock(2) on STORE as well, in case a user deletes STORE/lock.  An owner that
 * is ending releases one byte, far behind the file's end.
 *
 * OWNS       nothing that outlives a call; descriptors are the callers'.
 *
 * INVARIANTS
 *   (1) A file under its name is always whole: it is renamed after it is on
 *       disk.  A crash leaves *.tmp.  Only `store`, which fits a sector, is
 *       overwritten if there is no room for a second one.
 *
 * LOCKING    none; no two threads write one file at the same time.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/file.h>

#include "index/sidecar.h"
#include "index/record.h"
#include "common/bytes.h"
#include "common/crash_point.h"

#define STORE_NAME "store"
#define TENANTS_NAME "tenants"
#define FILE_MAX (1u << 20)
#define DIRENT_BYTES 512u /* estimated bytes of a directory entry */

static int sync_dir(int dir)
{
	return fsync(dir) < 0 ? -errno : 0;
}

/* Write NAME.tmp, rename it to NAME, and sync the file and the directory. */
static int replace(int dir, const char *name, const void *data, size_t bytes)
{
	_cleanup_(kv_closep) int fd = -1;
	char draft[32];
	int r;

	snprintf(draft, sizeof(draft), "%s.tmp", name);
	fd = openat(dir, draft,
		    O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW,
		    0600);
	if (fd < 0)
		return -errno;
	r = kv_write_all(fd, data, bytes);
	if (r == 0 && fsync(fd) < 0)
		r = -errno;
	KV_POINT("beside.written");
	if (r == 0 && renameat(dir, draft, dir, name) < 0)
		r = -errno;
	KV_POINT("beside.renamed");
	if (r < 0) {
		unlinkat(dir, draft, 0);
		return r;
	}
	return sync_dir(dir);
}

/* Read a small file; the caller frees *@ret_data.  -EBADMSG: the file is too
 * large or not regular. */
static int read_small(int dir, const char *name, char **ret_data,
		      size_t *ret_bytes)
{
	_cleanup_(kv_closep) int fd = openat(
		dir, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	_cleanup_(kv_freep) char *data = NULL;
	struct stat st;
	size_t bytes;
	long n;

	if (fd < 0)
		return errno == ELOOP ? -EBADMSG : -errno;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) || st.st_size > FILE_MAX)
		return -EBADMSG;
	bytes = (size_t)st.st_size;
	data = malloc(bytes + 1);
	if (!data)
		return -ENOMEM;
	n = kv_read_at(fd, 0, data, bytes);
	if (n < 0)
		return (int)n;
	if ((size_t)n < bytes)
		return -EBADMSG;
	*ret_bytes = bytes;
	*ret_data = kv_steal(data);
	return 0;
}

int kv_dir_walk(int at, const char *name,
		int (*each)(void *arg, int dir, const char *name), void *arg)
{
	int fd = openat(at, name,
			O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	int r = dir ? 0 : -errno;
	struct dirent *entry;

	if (!dir) {
		kv_closep(&fd);
		return r;
	}
	while (r == 0 && (entry = readdir(dir)))
		if (strcmp(entry->d_name, ".") != 0 &&
		    strcmp(entry->d_name, "..") != 0)
			r = each(arg, fd, entry->d_name);
	closedir(dir);
	return r;
}

int kv_store_file_read(int store_fd, struct kv_store_info *ret_info)
{
	_cleanup_(kv_freep) char *data = NULL;
	size_t bytes = 0;
	int r = read_small(store_fd, STORE_NAME, &data, &bytes);

	return r < 0 ? r : kv_store_info_unpack(data, bytes, ret_info);
}

bool kv_store_file_there(int store_fd)
{
	struct kv_store_info info;
	int r = kv_store_file_read(store_fd, &info);

	return r == 0 || r == -ENOTSUP;
}

int kv_store_file_write(int store_fd, const struct kv_store_info *info)
{
	_cleanup_(kv_closep) int fd = -1;
	struct kv_store_record record;
	struct stat st;
	int r;

	kv_store_info_pack(info, &record);
	r = replace(store_fd, STORE_NAME, &record, sizeof(record));
	if (r != -ENOSPC && r != -EDQUOT)
		return r;
	/* The disk is full: overwrite the file, which needs no room. */
	fd = openat(store_fd, STORE_NAME,
		    O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) ||
	    (uint64_t)st.st_size != sizeof(record))
		return -ENOSPC;
	r = kv_write_all(fd, &record, sizeof(record));
	return r == 0 && fsync(fd) < 0 ? -errno : r;
}

int kv_spaces_dir(int store_fd, bool make)
{
	int fd;

	if (make && mkdirat(store_fd, "spaces", 0700) == 0)
		fsync(store_fd);
	fd = openat(store_fd, "spaces",
		    O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	return fd < 0 ? -errno : fd;
}

void kv_space_file_name(uint32_t id, char name[KV_SPACE_FILE_NAME])
{
	snprintf(name, KV_SPACE_FILE_NAME, "%06u", id);
}

bool kv_id_parse(const char *name, const char *end, uint32_t *ret_id)
{
	unsigned long id = 0;
	char again[24];

	for (const char *c = name; *c >= '0' && *c <= '9' && id < UINT32_MAX;
	     c++)
		id = id * 10 + (unsigned long)(*c - '0');
	if (id > UINT32_MAX)
		return false;
	snprintf(again, sizeof(again), "%06lu%s", id, end);
	*ret_id = (uint32_t)id;
	return strcmp(name, again) == 0;
}

bool kv_space_file_parse(const char *name, uint32_t *ret_id)
{
	return kv_id_parse(name, "", ret_id) && *ret_id > 0;
}

int kv_space_file_write(int dir, const struct kv_space_record *record,
			const char *name, const char *layout)
{
	_cleanup_(kv_freep) char *value = NULL;
	char file[KV_SPACE_FILE_NAME];
	size_t bytes = 0;
	int r = kv_space_pack(record, name, layout, &value, &bytes);

	kv_space_file_name(record->id, file);
	return r < 0 ? r : replace(dir, file, value, bytes);
}

int kv_space_file_read(int dir, uint32_t id, struct kv_space_record *ret_record,
		       char **ret_name, char **ret_layout)
{
	_cleanup_(kv_freep) char *data = NULL;
	char file[KV_SPACE_FILE_NAME];
	size_t bytes = 0;
	int r;

	kv_space_file_name(id, file);
	r = read_small(dir, file, &data, &bytes);
	return r < 0 ? r
		     : kv_space_unpack(data, bytes, id, ret_record, ret_name,
				       ret_layout);
}

int kv_space_file_remove(int dir, uint32_t id)
{
	char file[KV_SPACE_FILE_NAME];

	kv_space_file_name(id, file);
	if (unlinkat(dir, file, 0) < 0 && errno != ENOENT)
		return -errno;
	return sync_dir(dir);
}

uint64_t kv_space_file_bytes(size_t name_len, size_t layout_len)
{
	return kv_round_up(sizeof(struct kv_space_record) + name_len +
				   layout_len,
			   KV_PAGE) +
	       DIRENT_BYTES;
}

uint64_t kv_tenants_bytes(size_t n)
{
	return n ? kv_round_up(n * sizeof(struct kv_tenant_record), KV_PAGE) +
			       DIRENT_BYTES
		 : 0;
}

int kv_tenants_write(int store_fd, const struct kv_tenant_record *records,
		     size_t n)
{
	_cleanup_(kv_freep) struct kv_tenant_record *copy = NULL;

	if (n == 0) {
		if (unlinkat(store_fd, TENANTS_NAME, 0) < 0)
			return errno == ENOENT ? 0 : -errno;
		return sync_dir(store_fd);
	}
	copy = malloc(n * sizeof(*copy));
	if (!copy)
		return -ENOMEM;
	memcpy(copy, records, n * sizeof(*copy));
	for (size_t i = 0; i < n; i++)
		copy[i].checksum = KV_SUM_OF(&copy[i], NULL, 0);
	return replace(store_fd, TENANTS_NAME, copy, n * sizeof(*copy));
}

int kv_tenants_read(int store_fd, struct kv_tenant_record **ret_records,
		    size_t *ret_n, size_t *ret_damaged)
{
	_cleanup_(kv_freep) char *data = NULL;
	struct kv_tenant_record *records;
	size_t bytes = 0, n = 0, all;
	int r = read_small(store_fd, TENANTS_NAME, &data, &bytes);

	if (r < 0 && r != -ENOENT)
		return r;
	all = bytes / sizeof(*records);
	/* A truncated last record counts as damaged. */
	*ret_damaged = bytes % sizeof(*records) != 0;
	records = (struct kv_tenant_record *)kv_steal(data);
	for (size_t i = 0; i < all; i++)
		if (n < KV_TENANTS_MAX &&
		    records[i].checksum == KV_SUM_OF(&records[i], NULL, 0))
			records[n++] = records[i];
		else
			++*ret_damaged;
	*ret_records = records;
	*ret_n = n;
	return 0;
}

/* ---- STORE/lock ---- */

#define GOING_ON ((off_t)1 << 40) /* byte that an ending daemon unlocks */
/* how long a new daemon waits for the old owner to begin to end */
#define NOTICE_NS (UINT64_C(3) * 1000000000)
#define ENDING_NS (UINT64_C(30) * 1000000000)
#define POLL_US 10000

static int try_lock(int store, bool write, int *ret_fd)
{
	struct flock lock = {.l_type = write ? F_WRLCK : F_RDLCK};
	_cleanup_(kv_closep) int fd = -1;
	struct stat st;

	if (flock(store, (write ? LOCK_EX : LOCK_SH) | LOCK_NB) < 0 &&
	    errno == EWOULDBLOCK)
		return -EBUSY;
	fd = openat(store, "lock",
		    (write ? O_RDWR | O_CREAT : O_RDONLY) | O_CLOEXEC |
			    O_NOFOLLOW | O_NONBLOCK,
		    0600);
	if (fd < 0 && errno == ENOENT && !write) {
		*ret_fd = -1;
		return 0;
	}
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return -EINVAL;
	if (fcntl(fd, F_OFD_SETLK, &lock) < 0)
		return errno == EAGAIN || errno == EACCES ? -EBUSY : -errno;
	*ret_fd = kv_steal_fd(&fd);
	return 0;
}

static bool is_locked(int fd, off_t start)
{
	struct flock lock = {.l_type = F_WRLCK, .l_start = start, .l_len = 1};

	return fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

enum kv_lock_state kv_lock_look(int fd)
{
	if (!is_locked(fd, 0))
		return KV_LOCK_FREE;
	return is_locked(fd, GOING_ON) ? KV_LOCK_HELD : KV_LOCK_ENDING;
}

/* Open STORE/lock for reading. */
static int lock_open(int store)
{
	return openat(store, "lock",
		      O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

long kv_lock_owner(int store)
{
	_cleanup_(kv_closep) int fd = lock_open(store);
	char text[32] = {0};

	if (fd < 0 || pread(fd, text, sizeof(text) - 1, 0) < 0)
		return 0;
	return strtol(text, NULL, 10);
}

int kv_lock_take(int store, bool write, const struct kv_lock_wait *wait,
		 int *ret_fd)
{
	uint64_t until_ns = kv_now_ns() + NOTICE_NS;
	bool ending = false;
	int r;

	while ((r = try_lock(store, write, ret_fd)) == -EBUSY &&
	       kv_now_ns() < until_ns) {
		_cleanup_(kv_closep) int fd = lock_open(store);

		flock(store, LOCK_UN);
		if (!ending && fd >= 0 && kv_lock_look(fd) == KV_LOCK_ENDING) {
			ending = true;
			until_ns = kv_now_ns() + ENDING_NS;
			if (wait->waiting)
				wait->waiting(wait->arg, kv_lock_owner(store));
		}
		usleep(POLL_US);
	}
	return r;
}

void kv_lock_end(int fd)
{
	struct flock lock = {
		.l_type = F_UNLCK, .l_start = GOING_ON, .l_len = 1};

	(void)fcntl(fd, F_OFD_SETLK, &lock);
}

int kv_lock_write(int fd, const char *line, long long lost, int error)
{
	char text[192];
	int n = snprintf(text, sizeof(text), "%d\n%slost %lld, errno %d\n",
			 (int)getpid(), line, lost, error);

	/* Write before truncating: on a full disk the old text stays. */
	return pwrite(fd, text, (size_t)n, 0) < 0 || ftruncate(fd, n) < 0
		       ? -errno
		       : 0;
}

int kv_lock_lost(int fd, long owner, long long *ret_lost, int *ret_error)
{
	char text[192] = {0}, *at;

	if (pread(fd, text, sizeof(text) - 1, 0) < 0 ||
	    strtol(text, NULL, 10) != owner || !(at = strstr(text, "lost ")) ||
	    sscanf(at, "lost %lld, errno %d", ret_lost, ret_error) != 2)
		return -ENODATA;
	return 0;
}
