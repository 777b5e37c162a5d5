/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index's file with bytes changed: LMDB must survive every file that kv_index_check
 * accepts, and every record that is read must have its checksum.
 */
#include <fcntl.h>
#include <sys/stat.h>

#include "index/index.h"
#include "tests/fuzz/fuzz.h"

#define MAP (4u << 20)
#define RECORDS 200 /* records enough for a tree with two levels of pages */
#define IMAGE_MAX (1u << 20)

static char directory[] = "/tmp/kvfs-fuzz-pages-XXXXXX";
static char file[64], lock_file[64];
static uint8_t image[IMAGE_MAX], changed[IMAGE_MAX];
static size_t image_bytes;
static const struct kv_store_info fresh = {.store = "0123456789abcde",
					   .next_space = 1};

static void put_all(struct kv_index *index, unsigned step)
{
	struct kv_space_record space = {.id = 3};
	struct kv_slot_record slot = {.key_len = 16};
	struct kv_txn *batch;
	char layout[6000];

	memset(layout, 'x', sizeof(layout) - 1);
	layout[sizeof(layout) - 1] = 0;
	fuzz_must(kv_txn_begin(index, &batch) == 0);
	fuzz_must(kv_txn_put_space(batch, &space, "name", layout) == 0);
	for (uint64_t id = 0; id < RECORDS; id += step)
		fuzz_must(kv_txn_put_slot(batch, id, &slot) == 0);
	fuzz_must(kv_txn_commit(batch) == 0);
}

/* Make an index with pages of every kind: branches, leaves, long values, a free
 * list. */
static void make_image(void)
{
	struct kv_store_info info;
	struct kv_index *index;
	int fd;

	fuzz_must(kv_index_open(directory, MAP, false, &fresh, &info, &index) ==
		  0);
	put_all(index, 1);
	put_all(index, 7);
	kv_index_close(index);
	fd = open(file, O_RDONLY | O_CLOEXEC);
	fuzz_must(fd >= 0);
	image_bytes = (size_t)read(fd, image, sizeof(image));
	fuzz_must(image_bytes > 0 && image_bytes < sizeof(image));
	close(fd);
}

static void clean_up(void)
{
	unlink(file);
	unlink(lock_file);
	rmdir(directory);
}

static void start(void)
{
	fuzz_must(mkdtemp(directory));
	snprintf(file, sizeof(file), "%s/data.mdb", directory);
	snprintf(lock_file, sizeof(lock_file), "%s/lock.mdb", directory);
	atexit(clean_up);
	make_image();
}

static int see_slot(void *arg, uint64_t id, const struct kv_slot_record *record)
{
	(void)id;
	fuzz_must(record->key_len == 16);
	++*(uint64_t *)arg;
	return 0;
}

static void use(void)
{
	uint64_t seen = 0, damaged;
	const struct kv_index_visitor visitor = {.arg = &seen,
						 .slot = see_slot};
	struct kv_store_info info;
	struct kv_index *index;
	struct kv_txn *batch;

	unlink(lock_file);
	if (kv_index_open(directory, MAP, false, NULL, &info, &index) < 0)
		return;
	kv_index_walk(index, &visitor, &damaged);
	if (kv_txn_begin(index, &batch) == 0) {
		kv_txn_delete(batch, KV_PART_SLOTS, 5);
		kv_txn_commit(batch);
	}
	kv_index_close(index);
}

/* Input: the number of the page, the offset in it, the number of bytes, and the
 * bytes. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz f = {data, size};
	char why[KV_WHY_MAX] = "";
	int fd, r;

	if (!image_bytes)
		start();
	memcpy(changed, image, image_bytes);
	while (f.left) {
		size_t at = fuzz_byte(&f) * KV_PAGE + fuzz_u16(&f) % KV_PAGE;
		size_t n = fuzz_byte(&f) % 32 + 1;

		for (at %= image_bytes; n-- && at < image_bytes && f.left; at++)
			changed[at] = fuzz_byte(&f);
	}
	fd = open(file, O_RDWR | O_TRUNC | O_CLOEXEC);
	fuzz_must(write(fd, changed, image_bytes) == (ssize_t)image_bytes);
	close(fd);
	r = kv_index_check(directory, MAP, why);
	fuzz_must(r == 0 || (r == -EBADMSG && why[0]));
	if (r == 0)
		use();
	return 0;
}
