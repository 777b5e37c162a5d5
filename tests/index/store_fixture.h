/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_fixture.h - a store directory that the test writes itself: STORE/store,
 * files of spaces, and segment files with slots of three pages.
 */
#ifndef KV_TESTS_INDEX_STORE_FIXTURE_H
#define KV_TESTS_INDEX_STORE_FIXTURE_H

#include "index_fixture.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "index/sidecar.h"
#include "index/segfile.h"
#include "tests/tree.h"

#define SEGMENT (2u << 20)
#define SLOT (3u * KV_PAGE)

struct store {
	char path[40], index[64];
	int fd, spaces;
	/* arguments and results of the last rebuild of the index */
	struct kv_rebuild rebuild;
	struct kv_index *made;
	struct kv_store_info info;
};

static const struct kv_store_info store_info = {
	.store = "fedcba987654321",
	.cap = 64u << 20,
	.segment_bytes = SEGMENT,
	.next_generation = 1000,
	.next_space = 3,
};

static inline int store_add_space(struct store *s, uint32_t id,
				  const char *name)
{
	const struct kv_space_record record = {
		.id = id, .uid = 7, .mode = 0700};

	return kv_space_file_write(s->spaces, &record, name, "");
}

static inline int store_setup(void **state)
{
	struct store *s = calloc(1, sizeof(*s));

	strcpy(s->path, "/var/tmp/kvfs-store-XXXXXX");
	if (!mkdtemp(s->path))
		return -1;
	snprintf(s->index, sizeof(s->index), "%s/index", s->path);
	s->fd = open(s->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	s->spaces = kv_spaces_dir(s->fd, true);
	*state = s;
	return mkdirat(s->fd, "segments", 0700) ||
			       mkdirat(s->fd, "index", 0700) ||
			       kv_store_file_write(s->fd, &store_info) ||
			       store_add_space(s, 1, "one") ||
			       store_add_space(s, 2, "two")
		       ? -1
		       : 0;
}

static inline int store_teardown(void **state)
{
	struct store *s = *state;

	kv_index_close(s->made);
	close(s->fd);
	close(s->spaces);
	tree_remove(s->path);
	free(s);
	return 0;
}

static inline int store_open_file(struct store *s, uint32_t id)
{
	char name[KV_SEGFILE_NAME], path[40];

	kv_segfile_name(id, name);
	snprintf(path, sizeof(path), "segments/%s", name);
	return openat(s->fd, path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
}

/* Make segment file @id, with a trailer and empty slots. */
static inline void store_add_file(struct store *s, uint32_t id)
{
	int fd = store_open_file(s, id);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, SEGMENT), 0);
	assert_int_equal(
		kv_trailer_write(fd, id, store_info.store, SEGMENT, SLOT), 0);
	close(fd);
}

static inline struct kv_slot_record store_record(uint32_t space, uint64_t key,
						 uint64_t generation)
{
	struct kv_slot_record record = {
		.generation = generation,
		.length = 5000,
		.space = space,
		.key_len = 16,
		.position = 3,
		.mtime_ns = 1700000000000000000,
	};

	memcpy(record.key, &key, sizeof(key));
	return record;
}

static inline void store_write_at(struct store *s, uint32_t file, off_t offset,
				  const struct kv_slot_record *record)
{
	struct kv_prologue prologue = {.record = *record};
	int fd = store_open_file(s, file);

	kv_prologue_seal(&prologue, store_info.store);
	assert_int_equal(pwrite(fd, &prologue, sizeof(prologue), offset),
			 sizeof(prologue));
	close(fd);
}

static inline void store_put(struct store *s, uint32_t file,
			     uint32_t slot_number, struct kv_slot_record record)
{
	store_write_at(s, file, (off_t)slot_number * SLOT, &record);
}

static inline int store_rebuild(struct store *s)
{
	int r;

	kv_index_close(kv_steal(s->made));
	s->rebuild = (struct kv_rebuild){
		.store_fd = s->fd, .path = s->path, .cap = 64u << 20};
	r = kv_rebuild(&s->rebuild);
	if (r < 0)
		return r;
	return kv_index_open(s->index, kv_index_map_bytes(64u << 20), false,
			     NULL, &s->info, &s->made);
}

#define STORE_TEST(f) \
	cmocka_unit_test_setup_teardown(f, store_setup, store_teardown)

#endif
