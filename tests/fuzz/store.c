/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A store that was written by an attacker: its files beside the index, segment files'
 * trailers and prologues.  The index is rebuilt from them, read, and mounted.
 */
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>

#include "cache/cache.h"
#include "cache/io/ring.h"
#include "index/sidecar.h"
#include "index/segfile.h"
#include "index/record.h"
#include "tests/fuzz/fuzz.h"

#define SEGMENT KV_SEGMENT_UNIT
#define FILES 2
#define CAP (32u << 20)

static char path[] = "/dev/shm/kvfs-fuzz-store-XXXXXX";
static const uint8_t store_id[16] = "0123456789abcde";
static int segments[FILES];

static int remove_one(const char *at, const struct stat *st, int flag,
		      struct FTW *ftw)
{
	(void)st;
	(void)flag;
	return ftw->level > 0 ? remove(at) : 0;
}

static void remove_store(void)
{
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	rmdir(path);
}

static int open_below(int store_fd, const char *name)
{
	int fd = openat(store_fd, name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	fuzz_must(fd >= 0);
	return fd;
}

static void make_files(int store_fd)
{
	char name[KV_SEGFILE_NAME], below[40];

	fuzz_must(mkdirat(store_fd, "index", 0700) == 0);
	fuzz_must(mkdirat(store_fd, "segments", 0700) == 0);
	fuzz_must(mkdirat(store_fd, "spaces", 0700) == 0);
	for (uint32_t i = 0; i < FILES; i++) {
		kv_segfile_name(i, name);
		snprintf(below, sizeof(below), "segments/%s", name);
		segments[i] = open_below(store_fd, below);
		fuzz_must(kv_trailer_write(segments[i], i, store_id, SEGMENT,
					   i ? 65536 : 8192) == 0);
	}
}

static void write_at(int fd, const void *data, size_t n, uint64_t at)
{
	fuzz_must(pwrite(fd, data, n, (off_t)at) == (ssize_t)n);
}

static void put_store_file(int store_fd, uint8_t *bytes, size_t n, bool seal)
{
	_cleanup_(kv_closep) int fd = open_below(store_fd, "store");
	struct kv_store_record *store = (void *)bytes;

	if (seal && n == sizeof(*store))
		store->checksum = KV_SUM_OF(store, NULL, 0);
	write_at(fd, bytes, n, 0);
}

static void put_space_file(int store_fd, uint32_t id, uint8_t *bytes, size_t n,
			   bool seal)
{
	struct kv_space_record *space = (void *)bytes;
	char name[KV_SPACE_FILE_NAME], below[40];
	_cleanup_(kv_closep) int fd = -1;

	if (seal && n >= sizeof(*space)) {
		n -= sizeof(*space);
		space->id = id;
		space->layout_len = (uint32_t)KV_MIN(space->layout_len, n);
		space->name_len = (uint32_t)n - space->layout_len;
		space->checksum =
			kv_space_sum(space, (const char *)(space + 1));
		n += sizeof(*space);
	}
	kv_space_file_name(id, name);
	snprintf(below, sizeof(below), "spaces/%s", name);
	fd = open_below(store_fd, below);
	write_at(fd, bytes, n, 0);
}

static void put_prologue(uint32_t slot_number, const uint8_t *bytes, size_t n,
			 bool seal)
{
	static const uint64_t sizes[FILES] = {8192, 65536};
	struct kv_prologue prologue = {0};
	uint32_t file = slot_number & 1;

	memcpy(&prologue, bytes, KV_MIN(n, sizeof(prologue)));
	if (seal)
		kv_prologue_seal(&prologue, store_id);
	write_at(segments[file], &prologue, sizeof(prologue),
		 (slot_number >> 1) * sizes[file] % SEGMENT);
}

/* Change a file.  Input: two bits for the file, one to add a checksum, then the
 * offset and the bytes. */
static void put_one(int store_fd, struct fuzz *f)
{
	unsigned what = fuzz_byte(f), where = fuzz_byte(f);
	size_t n = fuzz_u16(f) % KV_PAGE;
	_cleanup_(kv_freep) uint8_t *bytes = fuzz_take(f, n, &n);

	if ((what & 3) == 0)
		put_store_file(store_fd, bytes, n, what & 4);
	else if ((what & 3) == 1)
		put_space_file(store_fd, where, bytes, n, what & 4);
	else if ((what & 3) == 2)
		write_at(segments[where % FILES], bytes, n,
			 SEGMENT + (where >> 1));
	else
		put_prologue(where, bytes, n, what & 4);
}

static void look_at(struct kv_cache *cache, uint64_t id)
{
	struct kv_block *block;
	struct kv_digest digest;
	struct kv_meta meta;
	struct kv_view view;

	if (kv_block_get_id(cache, id, &block) < 0)
		return;
	kv_block_meta(cache, block, &meta, &digest);
	if (kv_view_get(cache, block, KV_VIEW_WAIT, &view) == 0)
		kv_view_put(cache, &view);
	kv_block_put(cache, block);
}

static void look_in(struct kv_cache *cache, struct kv_space *space)
{
	uint64_t *ids;
	size_t n;

	for (unsigned byte = 0; byte < 256; byte++) {
		if (kv_dir_list(cache, space, (uint8_t)byte, &ids, &n) < 0)
			continue;
		for (size_t i = 0; i < n; i++)
			look_at(cache, ids[i]);
		free(ids);
	}
}

static void mount_it(void)
{
	const struct kv_cache_config config = {.store = path,
					       .dram = 16 << 20,
					       .ssd = CAP,
					       .ssd_given = true,
					       .segment = SEGMENT,
					       .hugepages = KV_HUGE_OFF,
					       .evict = "lru",
					       .io = &kv_ring_threads};
	struct kv_space *space = NULL;
	struct kv_cache *cache;
	char *why = NULL;
	uint32_t id = 0;

	if (kv_cache_open(&config, &cache, &why) < 0) {
		fuzz_must(why);
		free(why);
		return;
	}
	while ((space = kv_space_next(cache, id))) {
		id = kv_space_stat(cache, space).id;
		look_in(cache, space);
	}
	kv_cache_close(cache);
}

/* Input: a byte that says whether to mount the store, then changes of its
 * files. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz f = {data, size};
	unsigned how = fuzz_byte(&f);
	_cleanup_(kv_closep) int fd = -1;
	struct kv_rebuild rebuild = {.path = path, .cap = CAP};
	int r;

	if (path[sizeof(path) - 2] == 'X') {
		fuzz_must(mkdtemp(path));
		atexit(remove_store);
	}
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	make_files(fd);
	while (f.left)
		put_one(fd, &f);
	for (int i = 0; i < FILES; i++)
		close(segments[i]);
	rebuild.store_fd = fd;
	r = kv_rebuild(&rebuild);
	/* -ENOMEM: ssd= in the store's record is too large to map */
	fuzz_must(r == 0 || r == -ENOTSUP || r == -ENODATA || r == -ENOMEM ||
		  r == -EUCLEAN);
	if (r == 0 && (how & 1))
		mount_it();
	nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	return 0;
}
