/* SPDX-License-Identifier: Apache-2.0 */
/* test_recover.c - stores whose index is lost, damaged or left by a crash: all
 * durable blocks are back, no removed block is, and no byte is wrong. */
#include "cache/ssd/ssd.h"
#include "small_store.h"

#include <sys/stat.h>
#include <sys/wait.h>

#include "index/sidecar.h"
#include "index/segfile.h"
#include "tests/cache/alone.h"

#define BLOCKS 24u
#define ROUNDS 300u
#define SPACES 70u

struct told {
	unsigned n;
	char line[256]; /* the last line that was printed */
};

static int set_up(void **state)
{
	struct small *s = calloc(1, sizeof(*s));

	small_new(s);
	small_must_open(s);
	*state = s;
	return 0;
}

static void save_all(struct small *s)
{
	for (unsigned n = 0; n < BLOCKS; n++)
		assert_int_equal(small_save(s, n), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
}

static unsigned present(struct small *s)
{
	unsigned n = 0;

	for (unsigned i = 0; i < BLOCKS; i++)
		n += small_view(s, i, BYTES) == 0;
	return n;
}

/* Close the cache, and replace the store by a copy of the mounted store, as
 * SIGKILL would leave it. */
static void crash(struct small *s)
{
	char copy[72], command[200];

	snprintf(copy, sizeof(copy), "%s.copy", s->path);
	snprintf(command, sizeof(command), "cp -a --sparse=always %s %s",
		 s->path, copy);
	assert_int_equal(system(command), 0);
	small_close(s);
	small_remove(s);
	assert_int_equal(rename(copy, s->path), 0);
}

static int store_file(struct small *s, const char *name, int flags)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", s->path, name);
	return open(path, flags | O_CLOEXEC);
}

static void lose_index(struct small *s)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/index/data.mdb", s->path);
	assert_int_equal(unlink(path), 0);
}

static bool says(struct small *s, const char *what)
{
	_cleanup_(kv_freep) char *text = kv_cache_describe(s->cache);

	return strstr(text, what) != NULL;
}

static void a_lost_index_is_made_anew(void **state)
{
	struct small *s = *state;
	struct kv_meta meta;
	struct kv_digest digest;
	struct kv_block *block;

	save_all(s);
	assert_int_equal(kv_space_chown(s->cache, s->space, 12, 34, 0750), 0);
	small_close(s);
	lose_index(s);
	small_must_open(s);
	assert_true(says(s, "index=rebuilt (missing): 24 blocks, 1 spaces"));
	assert_int_equal(present(s), BLOCKS);
	assert_int_equal(kv_space_stat(s->cache, s->space).uid, 12);
	assert_int_equal(kv_space_stat(s->cache, s->space).mode, 0750);
	block = small_get(s, 3);
	assert_int_equal(kv_block_meta(s->cache, block, &meta, &digest), 0);
	assert_int_equal(meta.position, 3);
	assert_int_equal(meta.tokens, 16);
	assert_int_equal(meta.mtime_ns, 77);
	kv_block_put(s->cache, block);
	/* A store with a rebuilt index works like any other. */
	assert_int_equal(small_remove_block(s, 3), 0);
	assert_int_equal(small_save(s, 3), 0);
	small_close(s);
	small_must_open(s);
	assert_false(says(s, "index=rebuilt"));
	assert_int_equal(present(s), BLOCKS);
}

static void remember(void *arg, const char *line)
{
	struct told *told = arg;

	if (!strstr(line, "index"))
		return;
	told->n++;
	snprintf(told->line, sizeof(told->line), "%s", line);
}

static void a_warning_says_what_is_lost_with_the_index(void **state)
{
	struct small *s = *state;
	struct told told = {0};
	struct kv_block *block;

	s->config.warn = remember;
	s->config.arg = &told;
	save_all(s);
	block = small_get(s, 3);
	assert_int_equal(kv_block_pin(s->cache, block, true), 0);
	kv_block_put(s->cache, block);
	small_close(s);
	small_must_open(s);
	small_close(s);
	told.n = 0;
	lose_index(s);
	small_must_open(s);
	assert_int_equal(told.n, 1);
	assert_non_null(strstr(told.line, s->path));
	assert_non_null(strstr(told.line, "missing"));
	assert_non_null(strstr(told.line, "24 blocks found, 0 left out"));
	assert_non_null(strstr(told.line, "pins"));
}

static void the_whole_directory_may_be_lost(void **state)
{
	struct small *s = *state;
	char command[128];

	save_all(s);
	small_close(s);
	snprintf(command, sizeof(command), "rm -r %s/index", s->path);
	assert_int_equal(system(command), 0);
	small_must_open(s);
	assert_int_equal(present(s), BLOCKS);
}

static void without_anything_to_make_it_from_it_begins_anew(void **state)
{
	struct small *s = *state;
	char command[256];
	int fd;

	save_all(s);
	small_close(s);
	snprintf(command, sizeof(command),
		 "rm -r %s/store %s/segments/* %s/spaces/*", s->path, s->path,
		 s->path);
	assert_int_equal(system(command), 0);
	fd = store_file(s, "index/data.mdb", O_WRONLY | O_TRUNC);
	assert_int_equal(write(fd, "no index", 8), 8);
	close(fd);
	small_must_open(s);
	assert_true(says(s, "index=begun anew"));
	assert_int_equal(present(s), 0);
	save_all(s);
	assert_int_equal(present(s), BLOCKS);
}

static void read_only_refuses_and_names_fsck(void **state)
{
	struct small *s = *state;

	save_all(s);
	small_close(s);
	lose_index(s);
	s->config.read_only = true;
	assert_int_equal(small_open(s), -EBADMSG);
	assert_non_null(strstr(s->why, "kvfs-fsck"));
	s->cache = NULL;
	s->config.read_only = false;
}

static void what_was_removed_and_synced_stays_away(void **state)
{
	struct small *s = *state;

	save_all(s);
	for (unsigned n = 0; n < BLOCKS / 2; n++)
		assert_int_equal(small_remove_block(s, n), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	crash(s);
	lose_index(s);
	small_must_open(s);
	assert_int_equal(present(s), BLOCKS / 2);
	assert_int_equal(small_view(s, 0, BYTES), -ENOENT);
}

/* Find the block's slot in its file, and read the first page of the slot. */
static int take_page(struct small *s, unsigned n, uint8_t *page, char *name,
		     off_t *ret_offset)
{
	struct kv_block *block = small_get(s, n);
	char file[KV_SEGFILE_NAME];
	int fd, r;

	kv_segfile_name(block->file, file);
	sprintf(name, "segments/%s", file);
	*ret_offset = (off_t)block->slot_number *
		      (off_t)kv_segfile_at(s->cache, block->file)->slot_bytes;
	kv_block_put(s->cache, block);
	fd = store_file(s, name, O_RDONLY);
	r = pread(fd, page, KV_PAGE, *ret_offset) == KV_PAGE ? 0 : -EIO;
	close(fd);
	return r;
}

/* A write that was not committed leaves a prologue in a free slot. */
static void what_was_never_committed_is_swept(void **state)
{
	struct small *s = *state;
	uint8_t page[KV_PAGE];
	char name[40];
	off_t offset;
	int fd;

	save_all(s);
	assert_int_equal(take_page(s, 5, page, name, &offset), 0);
	assert_int_equal(small_remove_block(s, 5), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	crash(s);
	fd = store_file(s, name, O_WRONLY);
	assert_int_equal(pwrite(fd, page, KV_PAGE, offset), KV_PAGE);
	close(fd);
	small_must_open(s);
	assert_int_equal(small_save(s, 100), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	for (unsigned i = 0; i < 10000 && !says(s, "swept="); i++)
		/* wait: the sweep of free slots goes on while the first saves
		 * end */
		usleep(1000);
	assert_true(says(s, "swept=1 "));
	crash(s);
	lose_index(s);
	small_must_open(s);
	assert_int_equal(small_view(s, 5, BYTES), -ENOENT);
	assert_int_equal(present(s), BLOCKS - 1);
}

/* A reader can go on reading a removed block, but the block does not return
 * after a crash. */
static void what_a_reader_holds_open_stays_away(void **state)
{
	struct small *s = *state;
	_cleanup_(kv_freep) uint8_t *want = malloc(BYTES);
	struct kv_block *block;
	struct kv_view view;

	save_all(s);
	small_close(s);
	small_must_open(s); /* after this mount the block is on SSD only */
	block = small_get(s, 7);
	assert_null(block->slot);
	assert_int_equal(kv_block_remove(s->cache, block), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	assert_int_equal(kv_view_get(s->cache, block, KV_VIEW_WAIT, &view), 0);
	small_content(want, BYTES, 7);
	assert_memory_equal(view.data, want, BYTES);
	kv_view_put(s->cache, &view);
	kv_block_put(s->cache, block);
	assert_int_equal(small_stats(s).corrupt, 0);

	block = small_get(s, 8);
	assert_int_equal(kv_block_remove(s->cache, block), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	{
		/* copy the store as crash() does, but while the block is
		 * open */
		char copy[72], command[200];

		snprintf(copy, sizeof(copy), "%s.copy", s->path);
		snprintf(command, sizeof(command), "cp -a %s %s", s->path,
			 copy);
		assert_int_equal(system(command), 0);
		kv_block_put(s->cache, block);
		small_close(s);
		small_remove(s);
		assert_int_equal(rename(copy, s->path), 0);
	}
	lose_index(s);
	small_must_open(s);
	assert_int_equal(small_view(s, 8, BYTES), -ENOENT);
	assert_int_equal(small_view(s, 7, BYTES), -ENOENT);
	assert_int_equal(present(s), BLOCKS - 2);
}

/* Put a layout into the file of the only space, so that a rebuild reads the
 * token ids of its blocks. */
static void put_layout(struct small *s, const char *text)
{
	_cleanup_(kv_freep) char *name = NULL;
	_cleanup_(kv_freep) char *layout = NULL;
	struct kv_space_record record;
	int dir = store_file(s, "spaces", O_RDONLY | O_DIRECTORY);

	assert_int_equal(kv_space_file_read(dir, 1, &record, &name, &layout),
			 0);
	assert_int_equal(kv_space_file_write(dir, &record, name, text), 0);
	close(dir);
}

/* A move copied the block's prologue, but not its data, before a power cut: the
 * data of the new slot are those of another block. */
static void check_torn_copy(struct small *s, const char *layout)
{
	uint8_t page[KV_PAGE], other[KV_PAGE];
	char name[40], other_name[40];
	off_t offset, to;
	int fd;

	save_all(s);
	assert_int_equal(take_page(s, 5, page, name, &offset), 0);
	assert_int_equal(take_page(s, BLOCKS - 1, other, other_name, &to), 0);
	assert_string_equal(name, other_name);
	assert_true(to > offset);
	assert_int_equal(small_remove_block(s, BLOCKS - 1), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	crash(s);
	fd = store_file(s, name, O_RDWR);
	assert_int_equal(pread(fd, other, KV_PAGE, to), KV_PAGE);
	assert_int_equal(pwrite(fd, page, KV_PAGE, to), KV_PAGE);
	memset(other, 0xa5, KV_PAGE);
	assert_int_equal(pwrite(fd, other, KV_PAGE, to + KV_PAGE), KV_PAGE);
	close(fd);
	if (layout)
		put_layout(s, layout);
	lose_index(s);
	small_must_open(s);
	assert_int_equal(present(s), BLOCKS - 1);
	assert_int_equal(small_view(s, 5, BYTES), 0);
	small_check(s);
}

static void a_torn_copy_of_a_moved_block_costs_nothing(void **state)
{
	check_torn_copy(*state, NULL);
}

static void nor_does_one_whose_token_ids_are_read(void **state)
{
	check_torn_copy(*state,
			"{\"tensors\":[{\"name\":\"k\",\"dtype\":\"U8\","
			"\"shape\":[19000]}],\"tokens\":16,"
			"\"token_ids\":true}");
}

static void what_was_found_damaged_stays_away(void **state)
{
	struct small *s = *state;
	uint8_t page[KV_PAGE];
	char name[40];
	off_t offset;
	int fd;

	save_all(s);
	assert_int_equal(take_page(s, 9, page, name, &offset), 0);
	small_close(s);
	fd = store_file(s, name, O_WRONLY);
	assert_int_equal(pwrite(fd, "x", 1, offset + KV_PAGE + 100), 1);
	close(fd);
	small_must_open(s);
	assert_int_equal(small_view(s, 9, BYTES), -EBADMSG);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	crash(s);
	lose_index(s);
	small_must_open(s);
	assert_null(small_get(s, 9));
	assert_int_equal(present(s), BLOCKS - 1);
}

/* Save a block whose bytes are forged prologues of other blocks. */
static int save_forged(struct small *s, size_t bytes)
{
	struct kv_prologue prologue = {.record = {.generation = 1,
						  .length = BYTES,
						  .space = s->space->id,
						  .key_len = 16}};
	struct kv_key key = small_key(1000), forged = small_key(666);
	struct kv_meta meta = {.tokens = 16};
	struct kv_digest digest;
	struct kv_fill *fill;
	int r = begin_alone(s->cache, s->space, bytes, &fill);

	if (r < 0)
		return r;
	memcpy(prologue.record.key, forged.b, sizeof(forged.b));
	kv_prologue_seal(&prologue, kv_cache_store_id(s->cache));
	for (size_t at = 0; at + sizeof(prologue) <= bytes; at += KV_PAGE)
		memcpy(kv_fill_data(fill) + at, &prologue, sizeof(prologue));
	digest = kv_digest_of(kv_fill_data(fill), bytes);
	return kv_fill_seal(s->cache, fill, &key, &meta, 8, &digest);
}

static void a_forged_prologue_brings_nothing(void **state)
{
	struct small *s = *state;

	assert_int_equal(save_forged(s, 3 << 20), 0);
	save_all(s);
	small_close(s);
	lose_index(s);
	small_must_open(s);
	assert_null(small_get(s, 666));
	assert_non_null(small_get(s, 1000));
	assert_int_equal(present(s), BLOCKS);
	kv_block_put(s->cache, small_get(s, 1000));
}

/* Convert the file to smaller slots, which begin at forged prologues. */
static void nor_after_the_slots_have_changed(void **state)
{
	struct small *s = *state;
	struct kv_block *block;

	small_close(s);
	small_remove(s);
	mkdir(s->path, 0700);
	s->config.ssd = 16 << 20; /* an SSD tier of one segment file */
	small_must_open(s);
	assert_int_equal(save_forged(s, 3 << 20), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	block = small_get(s, 1000);
	assert_non_null(block);
	assert_int_equal(kv_block_remove(s->cache, block), 0);
	kv_block_put(s->cache, block);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	save_all(s);
	assert_int_equal(small_stats(s).ssd_files, 1);
	crash(s);
	lose_index(s);
	small_must_open(s);
	assert_true(says(s, "24 blocks, 1 spaces, 0 left out"));
	assert_null(small_get(s, 666));
	assert_int_equal(present(s), BLOCKS);
}

static void a_space_is_gone_with_its_file(void **state)
{
	struct small *s = *state;
	struct kv_space *other;

	assert_int_equal(kv_space_create(s->cache, "other", 0, 0, 0755, &other),
			 0);
	save_all(s);
	assert_int_equal(kv_space_remove(s->cache, other), 0);
	crash(s);
	lose_index(s);
	small_must_open(s);
	assert_null(kv_space_find(s->cache, "other"));
	assert_int_equal(present(s), BLOCKS);
}

/* After a crash, the mount makes the files in STORE/spaces agree with the
 * index. */
static void files_of_spaces_are_put_right(void **state)
{
	struct small *s = *state;
	_cleanup_(kv_freep) char *name = NULL;
	_cleanup_(kv_freep) char *layout = NULL;
	struct kv_space_record record = {.id = 9, .mode = 0777};
	int store, dir;

	save_all(s);
	crash(s);
	store = store_file(s, ".", O_RDONLY | O_DIRECTORY);
	dir = kv_spaces_dir(store, false);
	assert_int_equal(kv_space_file_remove(dir, 1), 0);
	assert_int_equal(kv_space_file_write(dir, &record, "stray", ""), 0);
	small_must_open(s);
	assert_int_equal(kv_space_file_read(dir, 1, &record, &name, &layout),
			 0);
	assert_string_equal(name, "s");
	assert_int_equal(record.mode, 0755);
	assert_int_equal(faccessat(dir, "000009", F_OK, 0), -1);
	close(dir);
	close(store);
}

/* The mount writes lost files of spaces again, also after a clean unmount. */
static void lost_files_of_spaces_are_written_again(void **state)
{
	struct small *s = *state;
	struct kv_space *space;
	char command[128], name[32], file[32];
	int dir;

	save_all(s);
	for (unsigned n = 2; n <= SPACES; n++) {
		snprintf(name, sizeof(name), "space%u", n);
		assert_int_equal(
			kv_space_create(s->cache, name, 0, 0, 0755, &space), 0);
	}
	small_close(s);
	snprintf(command, sizeof(command), "rm %s/spaces/*", s->path);
	assert_int_equal(system(command), 0);
	small_must_open(s);
	dir = store_file(s, "spaces", O_RDONLY | O_DIRECTORY);
	for (unsigned n = 1; n <= SPACES; n++) {
		snprintf(file, sizeof(file), "%06u", n);
		assert_int_equal(faccessat(dir, file, F_OK, 0), 0);
	}
	close(dir);
	small_close(s);
	lose_index(s);
	small_must_open(s);
	assert_non_null(kv_space_find(s->cache, name));
	assert_int_equal(present(s), BLOCKS);
}

/* The file of a space is needed only if the index is lost, so its loss must not
 * prevent a mount. */
static void a_lost_file_without_room_is_no_reason_not_to_mount(void **state)
{
	struct small *s = *state;
	char command[200];

	save_all(s);
	small_close(s);
	/* A directory of the file's name keeps the mount from writing the
	 * file. */
	snprintf(command, sizeof(command),
		 "rm %s/spaces/000001 && mkdir %s/spaces/000001.tmp", s->path,
		 s->path);
	assert_int_equal(system(command), 0);
	small_must_open(s);
	assert_true(says(s, "spaces_lost="));
	assert_int_equal(present(s), BLOCKS);
	small_close(s);
	snprintf(command, sizeof(command), "rmdir %s/spaces/000001.tmp",
		 s->path);
	assert_int_equal(system(command), 0);
	small_must_open(s);
	assert_false(says(s, "spaces_lost="));
	snprintf(command, sizeof(command), "%s/spaces/000001", s->path);
	assert_int_equal(access(command, F_OK), 0);
}

/* LMDB's lock file is kept: on some full filesystems it could not be made
 * again. */
static void the_lock_file_of_the_index_stays(void **state)
{
	struct small *s = *state;
	char path[128], garbage[4096];
	struct stat st;
	int fd;

	save_all(s);
	small_close(s);
	fd = store_file(s, "index/lock.mdb", O_RDWR);
	small_must_open(s);
	small_close(s);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_nlink, 1);
	/* The contents of the index's lock file do not matter. */
	for (unsigned round = 0; round < 3; round++) {
		memset(garbage, round == 1 ? 0xff : 0, sizeof(garbage));
		if (round == 2)
			memset(garbage + 16, 0x5a, sizeof(garbage) - 16);
		for (off_t at = 0; at < st.st_size; at += 4096)
			assert_true(
				pwrite(fd, garbage,
				       (size_t)KV_MIN(4096, st.st_size - at),
				       at) > 0);
		small_must_open(s);
		assert_int_equal(present(s), BLOCKS);
		small_close(s);
	}
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_nlink, 1);

	/* A lock file of the index that has another size is replaced. */
	assert_int_equal(ftruncate(fd, 1 << 20), 0);
	small_must_open(s);
	assert_int_equal(present(s), BLOCKS);
	small_close(s);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_nlink, 0);
	close(fd);

	/* A symbolic link in place of the index's lock file is replaced, and
	 * its target stays. */
	snprintf(path, sizeof(path), "%s/index/lock.mdb", s->path);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(symlink("data.mdb", path), 0);
	small_must_open(s);
	assert_int_equal(present(s), BLOCKS);
}

/* A space whose record in the index is damaged is restored from its file. */
static void a_damaged_space_record_costs_no_block(void **state)
{
	struct small *s = *state;
	_cleanup_(kv_freep) uint8_t *data = NULL;
	struct kv_space_record record;
	struct stat st;
	unsigned hits = 0;
	int fd;

	assert_int_equal(
		kv_space_chown(s->cache, s->space, 0x5ace5ace, 7, 0700), 0);
	save_all(s);
	small_close(s);
	fd = store_file(s, "index/data.mdb", O_RDWR);
	assert_int_equal(fstat(fd, &st), 0);
	data = malloc((size_t)st.st_size);
	assert_int_equal(pread(fd, data, (size_t)st.st_size, 0), st.st_size);
	record.uid = 0x5ace5ace;
	for (off_t at = 0; at + 4 < st.st_size; at += 2)
		if (memcmp(data + at, &record.uid, 4) == 0)
			hits += pwrite(fd, "\1", 1, at + 8) == 1;
	assert_true(hits > 0);
	close(fd);
	small_must_open(s);
	assert_true(says(s, "index=rebuilt (damaged records)"));
	assert_int_equal(present(s), BLOCKS);
	assert_int_equal(kv_space_stat(s->cache, s->space).mode, 0700);
}

static void many_spaces_keep_within_the_cap(void **state)
{
	struct small *s = *state;
	char name[32], command[128], out[64] = "";
	struct kv_space *space;
	unsigned made = 0;
	FILE *du;
	int r = 0;

	for (unsigned n = 0; n < 16 && r == 0; n++)
		r = small_save_seed(s, 2000 + n, n, 2 << 20);
	kv_space_sync(s->cache, s->space);
	while (made < 5000) {
		snprintf(name, sizeof(name), "space%u", made);
		r = kv_space_create(s->cache, name, 0, 0, 0755, &space);
		if (r < 0)
			break;
		made++;
	}
	assert_int_equal(r, -ENOSPC);
	assert_true(made > 100);
	snprintf(command, sizeof(command), "du -sB1 %s | cut -f1", s->path);
	du = popen(command, "r");
	assert_non_null(fgets(out, sizeof(out), du));
	pclose(du);
	assert_true(strtoull(out, NULL, 10) <= s->config.ssd);
	/* When the index has no room for more spaces, one can be removed to
	 * make room for another. */
	space = kv_space_find(s->cache, "space3");
	assert_int_equal(kv_space_remove(s->cache, space), 0);
	assert_int_equal(kv_space_create(s->cache, "new", 0, 0, 0755, &space),
			 0);
}

/* Put records until the index has no room for another one, and return their
 * number; with @n, delete that many. */
static uint64_t fill_index(struct small *s, uint64_t n)
{
	const struct kv_slot_record record = {.length = 1};
	const uint64_t file = 1ull << 40;
	struct kv_index *index = s->cache->index;
	struct kv_txn *batch;
	uint64_t made = 0, last = UINT64_MAX;

	for (uint64_t i = 0; i < n; i += 100) {
		assert_int_equal(kv_txn_begin(index, &batch), 0);
		for (uint64_t k = i; k < KV_MIN(i + 100, n); k++)
			kv_txn_delete(batch, KV_PART_SLOTS, file + k);
		assert_int_equal(kv_txn_commit(batch), 0);
	}
	while (!n && made != last) {
		assert_int_equal(kv_txn_begin(index, &batch), 0);
		for (last = made; kv_txn_has_room(batch, KV_PUT_FAR);)
			assert_int_equal(
				kv_txn_put_slot(batch, file + made++, &record),
				0);
		assert_int_equal(kv_txn_commit(batch), 0);
	}
	return made;
}

/* Deletions are committed although a pin finds no room in the index. */
static void a_full_index_commits_deletions(void **state)
{
	struct small *s = *state;
	const unsigned n = 1000;
	struct kv_block *block;
	uint64_t filled;

	small_save_durable(s, 0, n, 4096);
	filled = fill_index(s, 0);
	block = small_get(s, 0);
	assert_int_equal(kv_block_pin(s->cache, block, true), 0);
	kv_block_put(s->cache, block);
	for (unsigned i = 1; i < n; i++)
		assert_int_equal(small_remove_block(s, i), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	fill_index(s, filled);
	small_close(s);
	small_must_open(s);
	assert_int_equal(small_count_durable(s, 0, n), 1);
	block = small_get(s, 0);
	assert_true(kv_block_stat(s->cache, block).pinned);
	kv_block_put(s->cache, block);
}

/* ---- random bytes in place of the index ---- */

static void damage(uint8_t *b, size_t bytes, unsigned round)
{
	unsigned n = 1 + (unsigned)random() % (round % 4 ? 4 : 300);

	for (unsigned i = 0; i < n; i++) {
		size_t at = (size_t)random() % bytes;
		const size_t length = (size_t)random() % 5000;

		if (random() % 2)
			at = at / 4096 * 4096 + (size_t)random() % 80;
		if (random() % 8)
			b[at] = (uint8_t)random();
		else
			memset(b + at, (int)random() % 256,
			       KV_MIN(bytes - at, length));
	}
}

/* Open the store and use it, in a child process.  Return the child's exit
 * status. */
static int try_it(struct small *s)
{
	pid_t pid = fork();
	int status = -1;

	if (pid == 0) {
		alarm(120);
		small_must_open(s);
		for (unsigned i = 0; i < BLOCKS; i++)
			/* a read gives the right bytes or misses */
			small_view(s, i, BYTES);
		must(small_save(s, 200) >= -ENOSPC);
		must(kv_space_sync(s->cache, s->space) == 0);
		small_close(s);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return status;
}

static void any_bytes_in_the_index_give_exact_blocks_or_none(void **state)
{
	struct small *s = *state;
	_cleanup_(kv_freep) uint8_t *image = NULL, *copy = NULL;
	struct stat st;
	int fd;

	save_all(s);
	small_close(s);
	fd = store_file(s, "index/data.mdb", O_RDONLY);
	assert_int_equal(fstat(fd, &st), 0);
	image = malloc((size_t)st.st_size);
	copy = malloc((size_t)st.st_size);
	assert_int_equal(pread(fd, image, (size_t)st.st_size, 0), st.st_size);
	close(fd);
	srandom(11);
	for (unsigned i = 0; i < ROUNDS; i++) {
		memcpy(copy, image, (size_t)st.st_size);
		damage(copy, (size_t)st.st_size, i);
		fd = store_file(s, "index/data.mdb", O_WRONLY | O_TRUNC);
		assert_int_equal(write(fd, copy, (size_t)st.st_size),
				 st.st_size);
		close(fd);
		assert_int_equal(try_it(s), 0);
	}
}

/* ---- index and segment files that do not belong together ---- */

#define LARGE 1500000u /* five such blocks fill a segment file */

static void remove_files(struct small *s, unsigned from, unsigned to)
{
	for (unsigned n = from; n < to; n++) {
		char path[128];

		snprintf(path, sizeof(path), "%s/segments/%06u.seg", s->path,
			 n);
		assert_int_equal(unlink(path), 0);
	}
}

static void records_go_with_a_file_that_is_missing(void **state)
{
	struct small *s = *state;

	small_close(s);
	s->config.ssd = 64 << 20;
	small_must_open(s);
	small_save_durable(s, 0, 20, LARGE);
	small_close(s);
	remove_files(s, 1, 2);
	small_must_open(s);
	assert_int_equal(small_count_exact(s, 0, 20, LARGE), 15);
	assert_true(says(s, "1 files are missing or too short, and 5 blocks "
			    "with them"));
	/* A new segment file gets the number of the missing file. */
	for (unsigned n = 100; n < 105; n++)
		assert_int_equal(small_save(s, n), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	small_close(s);
	assert_int_equal(small_fsck(s, "--data"), 0);
	small_must_open(s);
	assert_false(says(s, "missing"));
	assert_int_equal(small_count_exact(s, 0, 20, LARGE), 15);
}

static void most_files_missing_is_a_mistake(void **state)
{
	struct small *s = *state;
	char from[80], to[96];

	small_close(s);
	s->config.ssd = 64 << 20;
	small_must_open(s);
	small_save_durable(s, 0, 20, LARGE);
	small_close(s);
	/* The files of STORE/segments are on a filesystem that is not
	 * mounted. */
	snprintf(from, sizeof(from), "%s/segments", s->path);
	snprintf(to, sizeof(to), "%s/spaces/away", s->path);
	assert_int_equal(rename(from, to), 0);
	assert_int_equal(mkdir(from, 0700), 0);
	assert_int_equal(small_open(s), -ENOENT);
	assert_non_null(strstr(s->why, "4 of 4 segment files are missing"));
	assert_non_null(strstr(s->why, "kvfs-fsck --rebuild"));
	assert_int_equal(rmdir(from), 0);
	assert_int_equal(rename(to, from), 0);
	small_must_open(s);
	assert_int_equal(small_count_exact(s, 0, 20, LARGE), 20);
	small_close(s);
	/* When three of four segment files are lost, the daemon names kvfs-fsck
	 * --rebuild as the remedy. */
	remove_files(s, 0, 3);
	assert_int_equal(small_open(s), -ENOENT);
	assert_int_equal(small_fsck(s, "--rebuild"), 1);
	small_must_open(s);
	assert_int_equal(small_count_exact(s, 0, 20, LARGE), 5);
}

static void a_file_that_cannot_be_opened_is_kept(void **state)
{
	struct small *s = *state;
	char file[96], away[96];

	small_close(s);
	s->config.ssd = 64 << 20;
	small_must_open(s);
	small_save_durable(s, 0, 20, LARGE);
	small_close(s);
	snprintf(file, sizeof(file), "%s/segments/000001.seg", s->path);
	snprintf(away, sizeof(away), "%s/spaces/away", s->path);
	assert_int_equal(rename(file, away), 0);
	assert_int_equal(symlink("000001.seg", file), 0);
	assert_int_equal(small_open(s), -ELOOP);
	assert_non_null(strstr(s->why, "000001.seg: Too many levels"));
	assert_int_equal(unlink(file), 0);
	assert_int_equal(rename(away, file), 0);
	small_must_open(s);
	assert_int_equal(small_count_exact(s, 0, 20, LARGE), 20);
}

/* ---- trailers ---- */

/* Flip a bit of the trailer of each segment file. */
static unsigned flip_trailers(const struct small *s)
{
	char path[128];
	uint8_t byte;
	unsigned n;
	int fd;

	for (n = 0;; n++) {
		snprintf(path, sizeof(path), "%s/segments/%06u.seg", s->path,
			 n);
		fd = open(path, O_RDWR | O_CLOEXEC);
		if (fd < 0)
			return n;
		assert_int_equal(pread(fd, &byte, 1, (8 << 20) + 20), 1);
		byte ^= 1;
		assert_int_equal(pwrite(fd, &byte, 1, (8 << 20) + 20), 1);
		close(fd);
	}
}

static void a_damaged_trailer_is_written_again(void **state)
{
	struct small *s = *state;
	char told[64];

	save_all(s);
	small_close(s);
	flip_trailers(s);
	small_must_open(s);
	for (unsigned n = 100; n < 110; n++)
		assert_int_equal(small_save(s, n), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	small_close(s);
	assert_int_equal(small_fsck(s, "--data"), 0);
	lose_index(s);
	small_must_open(s);
	assert_true(says(s, "index=rebuilt (missing): 34 blocks"));
	assert_int_equal(present(s), BLOCKS);
	/* One line reports that the trailers are damaged. */
	small_close(s);
	snprintf(told, sizeof(told), "trailers of %u ", flip_trailers(s));
	small_must_open(s);
	for (unsigned i = 0; i < 10000 && !says(s, "trailers="); i++)
		usleep(1000);
	assert_true(says(s, told));
}

/* Without a trailer the slots of a file are unknown. */
static void no_rebuild_drops_blocks_with_a_damaged_trailer(void **state)
{
	struct small *s = *state;

	save_all(s);
	small_close(s);
	lose_index(s);
	flip_trailers(s);
	assert_int_equal(small_open(s), -EUCLEAN);
	assert_non_null(strstr(s->why, "segments/000000.seg has blocks"));
	assert_int_equal(small_fsck(s, "--rebuild"), 8);
	flip_trailers(s);
	small_must_open(s);
	assert_int_equal(present(s), BLOCKS);
}

static void swapped_files_are_refused(void **state)
{
	struct small *s = *state;
	char a[96], b[96];

	small_close(s);
	s->config.ssd = 64 << 20;
	small_must_open(s);
	small_save_durable(s, 0, 20, LARGE);
	small_close(s);
	snprintf(a, sizeof(a), "%s/segments/000001.seg", s->path);
	snprintf(b, sizeof(b), "%s/segments/000002.seg", s->path);
	assert_int_equal(renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE),
			 0);
	assert_int_equal(small_open(s), -EUCLEAN);
	assert_non_null(
		strstr(s->why, "000001.seg: its trailer names another"));
	assert_int_equal(small_fsck(s, "--repair"), 4);
	assert_int_equal(renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE),
			 0);
	small_must_open(s);
	assert_int_equal(small_count_exact(s, 0, 20, LARGE), 20);
}

/* Close the store, and restore the index as it was before the last mount. */
static void close_with_old_index(struct small *s)
{
	char command[256];

	small_close(s);
	snprintf(command, sizeof(command), "mv %s/spaces/old %s/index/data.mdb",
		 s->path, s->path);
	assert_int_equal(system(command), 0);
}

static void an_index_older_than_the_files_is_made_anew(void **state)
{
	struct small *s = *state;
	struct kv_block *block;
	char command[256];

	small_close(s);
	s->config.ssd = 64 << 20;
	small_must_open(s);
	small_save_durable(s, 0, 10, LARGE);
	block = small_get(s, 3);
	assert_int_equal(kv_block_pin(s->cache, block, true), 0);
	kv_block_put(s->cache, block);
	small_close(s);
	snprintf(command, sizeof(command),
		 "cp %s/index/data.mdb %s/../kvfs-old-%d", s->path, s->path,
		 (int)getpid());
	assert_int_equal(system(command), 0);
	small_must_open(s);
	small_save_durable(s, 10, 20, LARGE);
	assert_int_equal(small_remove_block(s, 4), 0);
	assert_int_equal(kv_space_sync(s->cache, s->space), 0);
	snprintf(command, sizeof(command), "mv %s/../kvfs-old-%d %s/spaces/old",
		 s->path, (int)getpid(), s->path);
	assert_int_equal(system(command), 0);
	close_with_old_index(s);

	/* kvfs-fsck does not remove segment files that are newer than the
	 * index. */
	assert_int_equal(small_fsck(s, "--repair"), 4);
	small_must_open(s);
	assert_true(says(s, "older than the segment files"));
	assert_int_equal(small_count_exact(s, 0, 20, LARGE), 19);
	assert_int_equal(small_view(s, 4, LARGE), -ENOENT);
	block = small_get(s, 3);
	assert_true(kv_block_stat(s->cache, block).pinned);
	kv_block_put(s->cache, block);
	small_close(s);
	assert_int_equal(small_fsck(s, "--data"), 0);
}

/* Copy a file of another store, mounted more often, over that of the closed
 * store @s. */
static void take_from_another(struct small *s, const char *name)
{
	struct small other;
	char command[256];

	small_new(&other);
	for (unsigned i = 0; i < 4; i++) {
		small_must_open(&other);
		assert_int_equal(small_close(&other), 0);
	}
	snprintf(command, sizeof(command), "cp %s/%s %s/%s", other.path, name,
		 s->path, name);
	assert_int_equal(system(command), 0);
	small_remove(&other);
}

static void another_stores_index_is_made_anew(void **state)
{
	struct small *s = *state;
	struct told told = {0};
	char path[128];

	s->config.warn = remember;
	s->config.arg = &told;
	save_all(s);
	for (unsigned with_store = 0; with_store < 2; with_store++) {
		small_close(s);
		take_from_another(s, "index/data.mdb");
		snprintf(path, sizeof(path), "%s/store", s->path);
		assert_true(with_store || unlink(path) == 0);
		assert_int_equal(small_fsck(s, "--repair"), 4);
		s->config.read_only = true;
		assert_int_equal(small_open(s), -EBADMSG);
		assert_non_null(strstr(s->why, "it is another store's"));
		s->config.read_only = false;
		told.n = 0;
		small_must_open(s);
		assert_true(says(s, "index=rebuilt (it is another store's): 24 "
				    "blocks, 1 spaces"));
		assert_int_equal(told.n, 1);
		assert_non_null(strstr(told.line, "it is another store's"));
		assert_int_equal(present(s), BLOCKS);
	}
	small_close(s);
	take_from_another(s, "index/data.mdb");
	assert_int_equal(small_fsck(s, "--rebuild"), 1);
	assert_int_equal(small_fsck(s, "--data"), 0);
	small_must_open(s);
	assert_int_equal(present(s), BLOCKS);
	small_close(s);
	/* Without trailers nobody knows whose the segment files are. */
	take_from_another(s, "index/data.mdb");
	flip_trailers(s);
	assert_int_equal(small_open(s), -EUCLEAN);
	flip_trailers(s);
	small_must_open(s);
	assert_int_equal(present(s), BLOCKS);
}

static void another_stores_description_costs_no_block(void **state)
{
	struct small *s = *state;
	char path[128], own[128];

	snprintf(path, sizeof(path), "%s/store", s->path);
	snprintf(own, sizeof(own), "%s/spaces/own", s->path);
	save_all(s);
	small_close(s);
	take_from_another(s, "store");
	small_must_open(s);
	assert_false(says(s, "index=rebuilt"));
	assert_int_equal(present(s), BLOCKS);
	small_close(s);
	assert_int_equal(small_fsck(s, "--data"), 0);
	/* If the index is lost or another store's as well, the mount changes
	 * nothing. */
	assert_int_equal(link(path, own), 0);
	for (unsigned lost = 0; lost < 2; lost++) {
		assert_int_equal(unlink(path), 0);
		take_from_another(s, "store");
		if (lost)
			lose_index(s);
		else
			take_from_another(s, "index/data.mdb");
		assert_int_equal(small_open(s), -EUCLEAN);
		assert_non_null(strstr(s->why, "of another file or store"));
		assert_int_equal(small_fsck(s, "--repair"), 4);
		assert_int_equal(small_fsck(s, "--rebuild"), 8);
	}
	assert_int_equal(rename(own, path), 0);
	small_must_open(s);
	assert_int_equal(present(s), BLOCKS);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, small_tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(a_lost_index_is_made_anew),
		TEST(a_warning_says_what_is_lost_with_the_index),
		TEST(the_whole_directory_may_be_lost),
		TEST(without_anything_to_make_it_from_it_begins_anew),
		TEST(read_only_refuses_and_names_fsck),
		TEST(what_was_removed_and_synced_stays_away),
		TEST(what_was_never_committed_is_swept),
		TEST(what_a_reader_holds_open_stays_away),
		TEST(a_torn_copy_of_a_moved_block_costs_nothing),
		TEST(nor_does_one_whose_token_ids_are_read),
		TEST(what_was_found_damaged_stays_away),
		TEST(a_forged_prologue_brings_nothing),
		TEST(nor_after_the_slots_have_changed),
		TEST(a_space_is_gone_with_its_file),
		TEST(files_of_spaces_are_put_right),
		TEST(lost_files_of_spaces_are_written_again),
		TEST(a_lost_file_without_room_is_no_reason_not_to_mount),
		TEST(the_lock_file_of_the_index_stays),
		TEST(a_damaged_space_record_costs_no_block),
		TEST(many_spaces_keep_within_the_cap),
		TEST(a_full_index_commits_deletions),
		TEST(records_go_with_a_file_that_is_missing),
		TEST(most_files_missing_is_a_mistake),
		TEST(a_file_that_cannot_be_opened_is_kept),
		TEST(a_damaged_trailer_is_written_again),
		TEST(no_rebuild_drops_blocks_with_a_damaged_trailer),
		TEST(swapped_files_are_refused),
		TEST(an_index_older_than_the_files_is_made_anew),
		TEST(another_stores_index_is_made_anew),
		TEST(another_stores_description_costs_no_block),
		TEST(any_bytes_in_the_index_give_exact_blocks_or_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
