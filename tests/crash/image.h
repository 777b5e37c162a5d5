/* SPDX-License-Identifier: Apache-2.0 */
/*
 * image.h - the contents of one or two disks after a power cut: made in memory from the
 * log of disk.c, and mounted.
 *
 * All writes before the `base` of their disk are kept; of the writes from there to `cut` a
 * random part is kept, in any order, and some of them are torn into sectors.
 *
 * One thread; one image at a time.
 */
#ifndef KV_TESTS_CRASH_IMAGE_H
#define KV_TESTS_CRASH_IMAGE_H

#include <fcntl.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "tests/crash/client.h"
#include "tests/crash/cutlog.h"

struct image_log {
	const struct cut_record **record;
	/* number of records; index of the first one after the disk's initial
	 * contents */
	size_t n, first;
};

struct image_maker {
	struct image_log log;
	/* contents of the disks, each up to record @base, one behind the other */
	uint8_t *disk;
	/* for each page of the disks: whether it was written to */
	bool *used;
	uint64_t bytes; /* of each disk */
	unsigned disks;
	size_t base[2];
};

struct image {
	int memory, loop[2];
	unsigned unflushed; /* number of writes since the last flush */
};

static inline void image_must(bool good, const char *what)
{
	if (good)
		return;
	printf("FAILED: %s: %s\n", what, strerror(errno));
	exit(1);
}

static inline void image_read_log(const char *path, struct image_log *log)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	const uint8_t *map;
	size_t at = 0, room = 0;
	struct stat st;

	image_must(fd >= 0 && fstat(fd, &st) == 0, path);
	map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
	image_must(map != MAP_FAILED, path);
	close(fd);
	memset(log, 0, sizeof(*log));
	while (at + sizeof(struct cut_record) <= (size_t)st.st_size) {
		const struct cut_record *r = (const void *)(map + at);

		image_must(r->magic == CUT_MAGIC, "the log");
		if (log->n == room) {
			room = room == 0 ? 4096 : room * 2;
			log->record = realloc((void *)log->record,
					      room * sizeof(*log->record));
			image_must(log->record != NULL, "memory");
		}
		log->record[log->n++] = r;
		if (log->first == 0 && r->type == CUT_FLUSH)
			log->first = log->n;
		at += sizeof(*r) + r->bytes;
	}
}

static inline void image_maker_open(struct image_maker *m, const char *path,
				    uint64_t bytes, unsigned disks)
{
	memset(m, 0, sizeof(*m));
	image_read_log(path, &m->log);
	m->bytes = bytes;
	m->disks = disks;
	m->disk = mmap(NULL, disks * bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	m->used = calloc(disks * bytes / KV_PAGE, 1);
	image_must(m->disk != MAP_FAILED && m->used != NULL, "memory");
}

/* Return the number of the disk that a write or flush is for. */
static inline unsigned image_disk(const struct image_maker *m,
				  const struct cut_record *r)
{
	return r->at >= m->bytes;
}

/* Move the base of a disk forward to record @base: earlier writes to the disk are
 * kept in all later images. */
static inline void image_advance(struct image_maker *m, unsigned disk,
				 size_t base)
{
	for (; m->base[disk] < base; m->base[disk]++) {
		const struct cut_record *r = m->log.record[m->base[disk]];

		if (r->type != CUT_WRITE || image_disk(m, r) != disk)
			continue;
		memcpy(m->disk + r->at, r + 1, r->bytes);
		for (uint64_t p = r->at / KV_PAGE;
		     p <= (r->at + r->bytes - 1) / KV_PAGE; p++)
			m->used[p] = true;
	}
}

static inline void image_copy_base(const struct image_maker *m, int memory)
{
	const uint64_t pages = m->disks * m->bytes / KV_PAGE;

	for (uint64_t p = 0, n; p < pages; p += n + 1) {
		for (n = 0; p + n < pages && m->used[p + n]; n++)
			;
		if (n > 0)
			image_must(pwrite(memory, m->disk + p * KV_PAGE,
					  n * KV_PAGE, (off_t)(p * KV_PAGE)) ==
					   (ssize_t)(n * KV_PAGE),
				   "copying the image");
	}
}

/* Keep each sector of the write, or not, at random. */
static inline void image_tear(int memory, const struct cut_record *r,
			      uint64_t *seed)
{
	for (uint32_t at = 0; at < r->bytes; at += CUT_SECTOR)
		if (client_random(seed, 2) == 0)
			image_must(pwrite(memory, (const uint8_t *)(r + 1) + at,
					  CUT_SECTOR,
					  (off_t)(r->at + at)) == CUT_SECTOR,
				   "tearing a write");
}

/* Write some of the records after the base of their disk to the image, in any order. */
static inline unsigned image_scatter(const struct image_maker *m, int memory,
				     size_t cut, uint64_t *seed)
{
	const struct cut_record **late;
	/* number of quarters of the writes to keep */
	long keep = client_random(seed, 5);
	const size_t base =
		m->disks > 1 ? KV_MIN(m->base[0], m->base[1]) : m->base[0];
	size_t n = 0;

	late = malloc((cut - base + 1) * sizeof(*late));
	image_must(late != NULL, "memory");
	for (size_t i = base; i < cut; i++) {
		const struct cut_record *r = m->log.record[i];

		if (r->type == CUT_WRITE && i >= m->base[image_disk(m, r)])
			late[n++] = r;
	}
	for (size_t i = 0; i < n; i++) {
		size_t j = i + (size_t)client_random(seed, (long)(n - i));
		const struct cut_record *r = late[j];

		late[j] = late[i];
		if (client_random(seed, 4) >= keep)
			continue;
		if (client_random(seed, 4) == 0)
			image_tear(memory, r, seed);
		else
			image_must(pwrite(memory, r + 1, r->bytes,
					  (off_t)r->at) == (ssize_t)r->bytes,
				   "writing the image");
	}
	free((void *)late);
	return (unsigned)n;
}

/* Attach a loop device for a disk of @bytes.  Return 0, or -errno if there are no
 * loop devices. */
static inline int image_attach(struct image *image, unsigned disk,
			       uint64_t bytes)
{
	struct loop_config config = {.fd = (uint32_t)image->memory,
				     .info.lo_flags = LO_FLAGS_AUTOCLEAR,
				     .info.lo_offset = disk * bytes,
				     .info.lo_sizelimit = bytes};
	int *loop = &image->loop[disk];
	int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC), r = -EBUSY;
	char path[32];

	*loop = -1;
	if (control < 0)
		return -errno;
	for (int i = 0; i < 100 && r == -EBUSY; i++) {
		int number = ioctl(control, LOOP_CTL_GET_FREE);

		snprintf(path, sizeof(path), "/dev/loop%d", number);
		*loop = open(path, O_RDWR | O_CLOEXEC);
		if (*loop < 0) {
			r = -errno;
			break;
		}
		r = ioctl(*loop, LOOP_CONFIGURE, &config) < 0 ? -errno : 0;
		if (r < 0)
			close(*loop);
	}
	close(control);
	return r;
}

/* Make the disks as a power cut before record @cut leaves them, and put them behind
 * loop devices. */
static inline void image_make(struct image_maker *m, size_t cut, uint64_t seed,
			      struct image *image)
{
	image->memory = memfd_create("image", MFD_CLOEXEC);
	image_must(image->memory >= 0 &&
			   ftruncate(image->memory,
				     (off_t)(m->disks * m->bytes)) == 0,
		   "memory");
	image_copy_base(m, image->memory);
	image->unflushed = image_scatter(m, image->memory, cut, &seed);
	for (unsigned i = 0; i < m->disks; i++) {
		errno = -image_attach(image, i, m->bytes);
		image_must(errno == 0, "a loop device");
	}
}

static inline int image_mount(const struct image *image, unsigned disk,
			      const char *type, const char *at)
{
	const char *options = strcmp(type, "xfs") == 0 ? "nouuid" : "";
	struct loop_info64 info;
	char path[32];

	if (ioctl(image->loop[disk], LOOP_GET_STATUS64, &info) < 0)
		return -errno;
	snprintf(path, sizeof(path), "/dev/loop%u", info.lo_number);
	return mount(path, at, type, MS_NOATIME, options) < 0 ? -errno : 0;
}

/* Unmount a disk of the image; the loop device ends with the last program that uses
 * it. */
static inline void image_unmount(struct image *image, unsigned disk,
				 const char *at)
{
	if (umount(at) < 0 && errno == EBUSY)
		umount2(at, MNT_DETACH);
	close(image->loop[disk]);
}

#endif
