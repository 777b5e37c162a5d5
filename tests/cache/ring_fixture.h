/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ring_fixture.h - a ring, a file for its requests, and requests that are
 * counted.  The file is below /var/tmp, because O_DIRECT needs a real disk.
 */
#ifndef KV_TESTS_CACHE_RING_FIXTURE_H
#define KV_TESTS_CACHE_RING_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/mman.h>

#include "cache/io/ring.h"

#define DEPTH 4
#define BUFFERS 4
#define FILE_PAGES 64

struct fixture {
	struct kv_ring *ring;
	bool threads;
	char directory[32], path[64];
	/* a file of FILE_PAGES pages; page i is full of bytes i */
	int fd;
	uint8_t *memory; /* memory of FILE_PAGES pages, page aligned */
};

/* Open a file with O_DIRECT, or without if the filesystem has no O_DIRECT. */
static inline int open_direct(const char *path, int flags)
{
	int fd = open(path, flags | O_DIRECT | O_CLOEXEC, 0600);

	return fd >= 0 ? fd : open(path, flags | O_CLOEXEC, 0600);
}

static inline void *map_pages(unsigned pages)
{
	void *map = mmap(NULL, (size_t)pages * KV_PAGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_ptr_not_equal(map, MAP_FAILED);
	return map;
}

static inline int ring_new(const struct fixture *f, unsigned depth,
			   unsigned buffers, struct kv_ring **ret_ring)
{
	const struct kv_ring_config config = {
		.depth = depth,
		.buffers = buffers,
		.backend = f->threads ? &kv_ring_threads : NULL,
	};

	return kv_ring_new(&config, ret_ring);
}

static inline int setup(void **state)
{
	struct fixture *f = calloc(1, sizeof(*f));

	f->threads = *(bool *)*state;
	strcpy(f->directory, "/var/tmp/kvfs-ring-XXXXXX");
	if (!mkdtemp(f->directory))
		return -1;
	snprintf(f->path, sizeof(f->path), "%s/file", f->directory);
	f->fd = open_direct(f->path, O_RDWR | O_CREAT);
	f->memory = map_pages(FILE_PAGES);
	for (unsigned i = 0; i < FILE_PAGES; i++)
		memset(f->memory + (size_t)i * KV_PAGE, (int)i, KV_PAGE);
	if (pwrite(f->fd, f->memory, FILE_PAGES * KV_PAGE, 0) !=
	    FILE_PAGES * KV_PAGE)
		return -1;
	memset(f->memory, 0xff, FILE_PAGES * KV_PAGE);
	*state = f;
	return ring_new(f, DEPTH, BUFFERS, &f->ring);
}

static inline int teardown(void **state)
{
	struct fixture *f = *state;

	kv_ring_free(f->ring);
	munmap(f->memory, FILE_PAGES * KV_PAGE);
	close(f->fd);
	unlink(f->path);
	rmdir(f->directory);
	free(f);
	return 0;
}

static inline bool is_uring(struct fixture *f)
{
	return strncmp(kv_ring_describe(f->ring), "io_uring", 8) == 0;
}

static inline struct kv_io request(struct fixture *f, enum kv_io_op op,
				   unsigned page, unsigned pages)
{
	return (struct kv_io){
		.op = op,
		.fd = f->fd,
		.buffer = -1,
		.data = f->memory + (size_t)page * KV_PAGE,
		.offset = (uint64_t)page * KV_PAGE,
		.bytes = (uint64_t)pages * KV_PAGE,
	};
}

static inline void assert_page(const uint8_t *page, int value)
{
	for (unsigned i = 0; i < KV_PAGE; i++)
		if (page[i] != value)
			assert_int_equal(page[i], value);
}

struct count {
	unsigned done, failed;
	int last;
	sem_t each;
};

struct counted {
	struct kv_io io;
	struct count *count;
};

static inline void count_it(struct kv_io *io, int status)
{
	struct count *count = ((struct counted *)io)->count;

	count->done++;
	count->failed += status != 0;
	count->last = status;
	sem_post(&count->each);
}

static inline void submit_counted(struct fixture *f, struct counted *c,
				  struct count *count)
{
	c->io.done = count_it;
	c->count = count;
	kv_ring_submit(f->ring, &c->io);
}

#endif
