/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segfile.c - read segment files without an index, and rebuild a lost index.
 *
 * OWNS      the threads of a scan, while it runs: several threads read pages
 *           that lie far apart many times as fast as one; STORE/index.new
 *           during a rebuild.
 *
 * INVARIANTS
 *   (1) Prologues are read only at multiples of slot_bytes: all other pages
 *       have bytes of users.
 *   (2) Of two blocks with one key a rebuild keeps the higher generation; of two
 *       copies of one block, after a crash in a move, one whose data are whole.
 *   (3) A rebuild leaves out blocks of unknown spaces; every length was
 *       compared with the size of its slot.
 *   (4) After a rebuild no generation and no space id that was seen is used
 *       again.
 *
 * LOCKING   none: for a rebuild the caller has locked STORE, and no cache is
 *           open.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <limits.h>
#include <sys/random.h>

#include "common/array.h"
#include "common/bytes.h"
#include "common/thread.h"
#include "index/index.h"
#include "index/segfile.h"
#include "index/record.h"
#include "common/block.h"
#include "common/copy.h"
#include "index/sidecar.h"

#define READERS 16
#define SLOTS_A_READER 16 /* slots for each thread that reads prologues */
#define GENERATION_MAX (UINT64_MAX / 4)
#define PIECE ((uint64_t)1 << 20) /* bytes of a block read at once */

static uint8_t zero_page[KV_PAGE] __attribute__((aligned(KV_PAGE)));

void kv_segfile_name(uint32_t id, char name[KV_SEGFILE_NAME])
{
	snprintf(name, KV_SEGFILE_NAME, "%06u.seg", id);
}

bool kv_segfile_parse(const char *name, uint32_t *ret_id)
{
	return kv_id_parse(name, ".seg", ret_id) && *ret_id <= UINT32_MAX / 2;
}

int kv_segfile_open(int dir, uint32_t id, int flags)
{
	char name[KV_SEGFILE_NAME], path[PATH_MAX + KV_SEGFILE_LINK];
	int fd, r;

	flags |= O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
	kv_segfile_name(id, name);
	fd = openat(dir, name, flags, 0600);
	if (fd >= 0 || errno != ELOOP || (flags & O_CREAT))
		return fd < 0 ? -errno : fd;
	r = kv_segfile_link(dir, id, path);
	if (r < 0)
		return r;
	snprintf(path + strlen(path), KV_SEGFILE_LINK, "/segments/%s", name);
	fd = open(path, flags);
	return fd < 0 ? -ENODEV : fd;
}

int kv_segfile_link(int dir, uint32_t id, char *ret_path)
{
	char name[KV_SEGFILE_NAME], link[PATH_MAX], end[KV_SEGFILE_LINK];
	ssize_t n;
	int tail;

	kv_segfile_name(id, name);
	n = readlinkat(dir, name, link, sizeof(link));
	if (n < 0)
		return -errno;
	tail = snprintf(end, sizeof(end), "/segments/%s", name);
	if (n == sizeof(link) || n <= tail || link[0] != '/' ||
	    memcmp(link + n - tail, end, (size_t)tail) != 0)
		return -ELOOP;
	memcpy(ret_path, link, (size_t)(n - tail));
	ret_path[n - tail] = '\0';
	return 0;
}

int kv_by_id(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static int read_page(int fd, uint64_t offset, void *page)
{
	long n = kv_read_at(fd, offset, page, KV_PAGE);

	return n < 0 ? (int)n : n == KV_PAGE ? 0 : -EIO;
}

static int write_page(int fd, uint64_t offset, const void *page)
{
	ssize_t n;

	do
		n = pwrite(fd, page, KV_PAGE, (off_t)offset);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n == KV_PAGE ? 0 : -ENOSPC;
}

int kv_trailer_read(int fd, uint32_t id, struct kv_trailer *ret_trailer)
{
	_Alignas(KV_PAGE) uint8_t page[KV_PAGE];
	struct kv_trailer trailer;
	struct stat st;
	int r;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode) || st.st_size < 2 * (off_t)KV_PAGE ||
	    st.st_size % (off_t)KV_PAGE ||
	    (uint64_t)st.st_size / KV_PAGE > UINT32_MAX)
		return -EBADMSG;
	r = read_page(fd, (uint64_t)st.st_size - KV_PAGE, page);
	if (r < 0)
		return r;
	memcpy(&trailer, page, sizeof(trailer));
	if (trailer.magic != KV_TRAILER_MAGIC)
		return -EBADMSG;
	if (trailer.version > KV_FORMAT_VERSION)
		return -ENOTSUP;
	if (trailer.checksum != KV_SUM_OF(&trailer, NULL, 0) ||
	    trailer.segment_bytes != (uint64_t)st.st_size - KV_PAGE ||
	    trailer.segment_bytes % KV_SEGMENT_UNIT ||
	    trailer.segment_bytes > KV_SEGMENT_MAX ||
	    trailer.slot_bytes < 2 * KV_PAGE || trailer.slot_bytes % KV_PAGE ||
	    trailer.slot_bytes > trailer.segment_bytes ||
	    trailer.slots != kv_segfile_slots_of(trailer.segment_bytes,
						 trailer.slot_bytes))
		return -EBADMSG;
	if (trailer.id != id)
		return -EUCLEAN;
	*ret_trailer = trailer;
	return 0;
}

int kv_trailer_write(int fd, uint32_t id, const uint8_t store[16],
		     uint64_t segment_bytes, uint64_t slot_bytes)
{
	_Alignas(KV_PAGE) uint8_t page[KV_PAGE] = {0};
	struct kv_trailer trailer = {
		.magic = KV_TRAILER_MAGIC,
		.version = KV_FORMAT_VERSION,
		.id = id,
		.segment_bytes = segment_bytes,
		.slot_bytes = slot_bytes,
		.slots = kv_segfile_slots_of(segment_bytes, slot_bytes),
	};
	int r;

	memcpy(trailer.store, store, sizeof(trailer.store));
	trailer.checksum = KV_SUM_OF(&trailer, NULL, 0);
	memcpy(page, &trailer, sizeof(trailer));
	r = -posix_fallocate(fd, (off_t)segment_bytes, KV_PAGE);
	/* The trailer is the last page: readers find it by the file's size. */
	if (r == 0 && ftruncate(fd, (off_t)(segment_bytes + KV_PAGE)) < 0)
		r = -errno;
	if (r == 0)
		r = write_page(fd, segment_bytes, page);
	if (r == 0 && fdatasync(fd) < 0)
		r = -errno;
	return r;
}

bool kv_record_fits(const struct kv_slot_record *record, uint64_t slot_bytes)
{
	return (record->key_len == 16 || record->key_len == 32) &&
	       (record->parent_len == 0 || record->parent_len == 16 ||
		record->parent_len == 32) &&
	       record->length > 0 && record->length <= UINT32_MAX &&
	       KV_PAGE + kv_round_up(record->length, KV_PAGE) <= slot_bytes &&
	       record->payload <= record->length && record->space > 0 &&
	       record->generation < GENERATION_MAX;
}

XXH128_hash_t kv_record_name(const struct kv_slot_record *record, uint64_t seed)
{
	uint8_t name[sizeof(record->key) + 5];

	memcpy(name, record->key, sizeof(record->key));
	memcpy(name + 32, &record->space, 4);
	name[36] = record->key_len;
	return XXH3_128bits_withSeed(name, sizeof(name), seed);
}

struct scan {
	int fd;
	const uint8_t *store;
	uint64_t slot_bytes;
	uint32_t from, n;
	const uint64_t *skip;
	struct kv_found *found;
	_Atomic uint32_t next;
};

static void *scan_some(void *arg)
{
	_Alignas(KV_PAGE) uint8_t page[KV_PAGE];
	const struct kv_prologue *prologue = (const void *)page;
	struct scan *scan = arg;
	uint32_t i;

	while ((i = atomic_fetch_add(&scan->next, 1)) < scan->n) {
		const uint32_t slot_number = scan->from + i;
		struct kv_found *found = &scan->found[i];

		found->state = KV_FOUND_NOTHING;
		if (scan->skip &&
		    scan->skip[slot_number / 64] & 1ull << slot_number % 64)
			continue;
		if (read_page(scan->fd, slot_number * scan->slot_bytes, page) <
		    0) {
			found->state = KV_FOUND_UNREADABLE;
		} else if (kv_prologue_check(prologue, scan->store) == 0) {
			found->state = KV_FOUND_BLOCK;
			found->record = prologue->record;
		} else if (memcmp(page, zero_page, KV_PAGE) == 0) {
			found->state = KV_FOUND_ZERO;
		}
	}
	return NULL;
}

void kv_segfile_scan(int fd, const uint8_t store[16], uint64_t slot_bytes,
		     uint32_t from, uint32_t n, const uint64_t *skip,
		     struct kv_found *ret_found)
{
	struct scan scan = {fd, store, slot_bytes, from, n, skip, ret_found, 0};
	pthread_t threads[READERS];
	unsigned running = 0;

	posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	while (running < KV_MIN(READERS, n / SLOTS_A_READER) &&
	       kv_thread_start(&threads[running], "kvfs-scan", scan_some,
			       &scan) == 0)
		running++;
	scan_some(&scan);
	for (unsigned i = 0; i < running; i++)
		pthread_join(threads[i], NULL);
}

int kv_block_verify(int fd, uint64_t at, const struct kv_slot_record *record,
		    uint8_t *ret_header, size_t header_bytes)
{
	_cleanup_(kv_freep) uint8_t *piece =
		malloc(KV_MIN(PIECE, record->length));
	struct kv_hash *hash = NULL;
	int r = piece ? kv_hash_new(&hash) : -ENOMEM;
	struct kv_digest digest;
	long n;

	for (uint64_t done = 0; r == 0 && done < record->length;
	     done += (uint64_t)n) {
		n = kv_read_at(fd, at + done, piece,
			       KV_MIN(PIECE, record->length - done));
		if (n <= 0) {
			r = n < 0 ? (int)n : -EIO;
			break;
		}
		kv_hash_update(hash, piece, (size_t)n);
		if (done < header_bytes)
			memcpy(ret_header + done, piece,
			       KV_MIN((size_t)n, header_bytes - done));
	}
	if (r == 0) {
		digest = kv_hash_end(hash);
		r = memcmp(digest.b, record->digest, sizeof(digest.b)) == 0
			    ? 0
			    : -EBADMSG;
	}
	kv_hash_free(hash);
	return r;
}

int kv_segfile_zero(int fd, uint64_t slot_bytes, uint32_t slot_number)
{
	return write_page(fd, slot_number * slot_bytes, zero_page);
}

int kv_segfile_clear(int fd, uint64_t segment_bytes, uint64_t slot_bytes)
{
	const uint32_t slots = kv_segfile_slots_of(segment_bytes, slot_bytes);
	/* Not every filesystem has FALLOC_FL_ZERO_RANGE. */
	const bool all = fallocate(fd, FALLOC_FL_ZERO_RANGE, 0,
				   (off_t)segment_bytes) == 0;
	int r = 0;

	for (uint32_t i = 0; !all && r == 0 && i < slots; i++)
		r = kv_segfile_zero(fd, slot_bytes, i);
	if (r == 0 && fdatasync(fd) < 0)
		r = -errno;
	return r;
}

/* ---- rebuilding an index ---- */

#define NEW_DIR "index.new"
#define A_BATCH 8192u
#define IDS_A_PUT 64u /* this many token ids cost as much as one record */
/* numbers to skip after a rebuild, more than a mount uses */
#define GENERATIONS (1ull << 40)

/* A block that was found, for the search for duplicates of its key. */
struct item {
	XXH128_hash_t hash; /* kv_record_name: hash of space and key */
	uint64_t generation, slot_id;
	bool damaged;
};

struct file {
	uint32_t id;
	struct kv_trailer trailer;
};

struct known {
	uint32_t id;
	bool token_ids; /* the space's layout has "token_ids" */
};

struct work {
	struct kv_rebuild *out;
	struct kv_index *index;
	int segments; /* directory */
	struct file *files;
	size_t n_files;
	const uint8_t *one; /* not NULL: stop at the first file of this store */
	struct known *known; /* known spaces, sorted by id */
	size_t n_known;
	uint64_t spare;	 /* bytes of the map reserved for records */
	int fd;		 /* descriptor of the current segment file */
	uint8_t *header; /* first bytes of a block's file */
	size_t header_room;
	struct item *items;
	size_t n_items;
	struct kv_found *found;
	struct kv_txn *batch;
	size_t in_batch;
	uint64_t slots, slots_done;
	uint64_t seed; /* random: users cannot choose keys with equal hashes */
};

static void work_fini(struct work *work)
{
	kv_txn_abort(work->batch);
	kv_index_close(work->index);
	if (work->segments >= 0)
		close(work->segments);
	free(work->files);
	free(work->known);
	free(work->items);
	free(work->found);
	free(work->header);
}

/* ---- the segment files ---- */

/* Look for blocks in a file of unknown slot size: a mount would remove it. */
static bool has_blocks(int fd)
{
	_Alignas(KV_PAGE) uint8_t page[KV_PAGE];
	const struct kv_prologue *prologue = (const void *)page;
	const off_t end = KV_MIN(lseek(fd, 0, SEEK_END), (off_t)KV_SEGMENT_MAX);

	for (off_t at = 0; at < end; at += KV_PAGE)
		if (read_page(fd, (uint64_t)at, page) == 0 &&
		    kv_prologue_check(prologue, prologue->store) == 0)
			return true;
	return false;
}

static int add_file(void *arg, int dir, const char *name)
{
	_cleanup_(kv_closep) int fd = -1;
	struct work *work = arg;
	struct file file;
	int r;

	(void)dir;
	if (!kv_segfile_parse(name, &file.id))
		return 0;
	fd = kv_segfile_open(work->segments, file.id, O_RDONLY);
	r = fd < 0 ? fd : kv_trailer_read(fd, file.id, &file.trailer);
	if (r == -ENOTSUP || kv_is_shortage(r))
		return r;
	if (r < 0) {
		work->out->odd_files++;
		work->out->odd_file = file.id;
		if (!work->out->path)
			return 0;
		return r == -ENODEV ? r : has_blocks(fd) ? -EUCLEAN : 0;
	}
	r = kv_array_more(&work->files, work->n_files);
	if (r == 0)
		work->files[work->n_files++] = file;
	return r < 0 || !work->one
		       ? r
		       : memcmp(file.trailer.store, work->one, 16) == 0;
}

static int find_files(struct work *work)
{
	int r;

	work->segments =
		openat(work->out->store_fd, "segments",
		       O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
	if (work->segments < 0)
		return errno == ENOENT ? 0 : -errno;
	r = kv_dir_walk(work->segments, ".", add_file, work);
	if (work->n_files)
		qsort(work->files, work->n_files, sizeof(*work->files),
		      kv_by_id);
	return r;
}

/* Get the store's description from STORE/store, or else the first trailer. */
static int know_store(struct work *work)
{
	struct kv_store_info *info = &work->out->info;
	size_t n = 0;
	int r = kv_store_file_read(work->out->store_fd, info);

	if (r == -ENOTSUP || r == -EIO || kv_is_shortage(r))
		return r;
	if (r < 0) {
		*info = (struct kv_store_info){.cap = work->out->cap,
					       .next_generation = 1,
					       .next_space = 1};
		if (!work->n_files)
			return -ENODATA;
		info->segment_bytes = work->files[0].trailer.segment_bytes;
		memcpy(info->store, work->files[0].trailer.store,
		       sizeof(info->store));
	}
	for (size_t i = 0; i < work->n_files; i++) {
		const struct kv_trailer *trailer = &work->files[i].trailer;

		if (memcmp(trailer->store, info->store, sizeof(info->store)) !=
			    0 ||
		    trailer->segment_bytes != info->segment_bytes) {
			work->out->odd_files++;
			work->out->odd_file = work->files[i].id;
			continue;
		}
		work->files[n++] = work->files[i];
		work->slots += trailer->slots;
	}
	if (n == 0 && work->n_files > 0) /* STORE/store is another's */
		return -EUCLEAN;
	work->n_files = n;
	info->version = KV_FORMAT_VERSION;
	info->clean = false;
	return 0;
}

/* ---- spaces ---- */

static int batch_of(struct work *work, struct kv_txn **ret_txn)
{
	int r = 0;

	if (work->batch && work->in_batch >= A_BATCH) {
		r = kv_txn_commit(kv_steal(work->batch));
		work->in_batch = 0;
	}
	if (r == 0 && !work->batch)
		r = kv_txn_begin(work->index, &work->batch);
	work->in_batch++;
	*ret_txn = work->batch;
	return r;
}

static int add_space(void *arg, int dir, const char *file)
{
	_cleanup_(kv_layout_freep) struct kv_layout *parsed = NULL;
	_cleanup_(kv_freep) char *name = NULL;
	_cleanup_(kv_freep) char *layout = NULL;
	struct kv_space_record record;
	struct work *work = arg;
	struct kv_txn *batch;
	uint32_t id;
	int r;

	if (!kv_space_file_parse(file, &id))
		return 0;
	r = kv_space_file_read(dir, id, &record, &name, &layout);
	if (kv_is_shortage(r))
		return r;
	if (r < 0)
		return 0;
	r = kv_array_more(&work->known, work->n_known);
	if (r == 0 && *layout &&
	    kv_layout_parse(layout, strlen(layout), &parsed) == -ENOMEM)
		r = -ENOMEM;
	if (r == 0)
		r = batch_of(work, &batch);
	if (r == 0)
		r = kv_txn_put_space(batch, &record, name, layout);
	if (r < 0)
		return r;
	work->known[work->n_known++] =
		(struct known){id, parsed && parsed->token_ids};
	work->out->spaces++;
	work->out->info.next_space = KV_MAX(work->out->info.next_space, id + 1);
	return 0;
}

static int add_spaces(struct work *work)
{
	int r = kv_dir_walk(work->out->store_fd, "spaces", add_space, work);

	if (work->n_known > 0)
		qsort(work->known, work->n_known, sizeof(*work->known),
		      kv_by_id);
	return r == -ENOENT ? 0 : r;
}

/* ---- blocks ---- */

/*
 * Read the token ids of a block, if they are small beside the block.  Only the
 * digest of the whole block can detect a damaged header.
 * 0: *@ret_ids has them, or is NULL
 * -EBADMSG: the block is damaged or cannot be read
 */
static int read_token_ids(struct work *work, const struct file *file,
			  uint32_t slot_number,
			  const struct kv_slot_record *record,
			  struct kv_token_ids **ret_ids)
{
	const uint64_t at =
		kv_segfile_at_slot(file->trailer.slot_bytes, slot_number);
	const uint32_t payload = record->payload;
	int r;

	if (payload == 0 || payload > record->length ||
	    payload > KV_HEADER_MAX + KV_PAGE ||
	    !kv_index_takes_token_ids(record->tokens, 0, record->length))
		return 0;
	r = kv_array_reserve(&work->header, &work->header_room, payload);
	if (r == 0)
		r = kv_block_verify(work->fd, at, record, work->header,
				    payload);
	if (r < 0)
		return kv_is_shortage(r) ? r : -EBADMSG;
	r = kv_block_parse_token_ids(work->header, payload, ret_ids);
	return kv_is_shortage(r) ? r : 0;
}

static int by_generation(const void *a, const void *b)
{
	const struct kv_slot_record *x = a, *y = b;
	int r = memcmp(x->key, y->key, sizeof(x->key));

	if (r != 0)
		return r;
	if (x->space != y->space)
		return x->space < y->space ? -1 : 1;
	return x->generation < y->generation ? -1
					     : x->generation > y->generation;
}

/* @damaged: put no record of this block, nor of older blocks with its key. */
static int add_block(struct work *work, uint64_t slot_id,
		     const struct kv_slot_record *record, bool damaged)
{
	struct kv_rebuild *out = work->out;
	struct kv_slot_record copy = *record;
	struct kv_txn *batch;
	int r = kv_array_more(&work->items, work->n_items);

	if (r == 0)
		r = batch_of(work, &batch);
	/* The last use is lost; a time in the future would spoil the clock. */
	copy.atime =
		(uint32_t)(KV_MIN(KV_MAX(record->mtime_ns, 0), kv_wall_ns()) /
			   1000000000);
	if (!damaged && out->n_pins &&
	    bsearch(record, out->pins, out->n_pins, sizeof(*record),
		    by_generation)) {
		copy.pinned = 1;
		out->pinned++;
	}
	if (r == 0 && !damaged)
		r = kv_txn_put_slot(batch, slot_id, &copy);
	if (r < 0)
		return r;
	work->items[work->n_items++] =
		(struct item){kv_record_name(record, work->seed),
			      record->generation, slot_id, damaged};
	out->blocks += !damaged;
	out->damaged += damaged;
	return 0;
}

static int add_slot(struct work *work, const struct file *file,
		    uint32_t slot_number, const struct kv_found *found)
{
	struct kv_rebuild *out = work->out;
	const struct kv_slot_record *record = &found->record;
	const struct known key = {.id = record->space}, *known;
	const uint64_t slot_id = kv_slot_id(file->id, slot_number);
	_cleanup_(kv_freep) struct kv_token_ids *ids = NULL;
	struct kv_txn *batch = NULL;
	int r = 0, read = 0;

	out->unreadable += found->state == KV_FOUND_UNREADABLE;
	if (found->state != KV_FOUND_BLOCK)
		return 0;
	if (!kv_record_fits(record, file->trailer.slot_bytes)) {
		out->strays++;
		return 0;
	}
	out->info.next_generation =
		KV_MAX(out->info.next_generation, record->generation + 1);
	if (record->space < UINT32_MAX)
		out->info.next_space =
			KV_MAX(out->info.next_space, record->space + 1);
	known = work->n_known ? bsearch(&key, work->known, work->n_known,
					sizeof(key), kv_by_id)
			      : NULL;
	if (!known) {
		out->strays++;
		return 0;
	}
	if (known->token_ids)
		read = read_token_ids(work, file, slot_number, record, &ids);
	if (read < 0 && read != -EBADMSG)
		return read;
	r = add_block(work, slot_id, record, read == -EBADMSG);
	/* Put token ids if a commit would put them, but leave room for the
	 * records of all blocks that follow. */
	if (r == 0 && ids)
		r = batch_of(work, &batch);
	if (r < 0 || !ids ||
	    !kv_index_takes_token_ids(ids->n, ids->extras_len,
				      record->length) ||
	    !kv_txn_has_room_for_ids(batch, ids->n, ids->extras_len,
				     work->spare + KV_PUT_FAR +
					     (work->slots - work->slots_done) *
						     KV_PUT_NEAR))
		return r;
	work->in_batch += ids->n / IDS_A_PUT;
	return kv_txn_put_token_ids(batch, slot_id, record->generation, ids);
}

static int add_file_blocks(struct work *work, const struct file *file)
{
	const struct kv_trailer *trailer = &file->trailer;
	const struct kv_segfile_record record = {.id = file->id,
						 .slots = trailer->slots,
						 .slot_bytes =
							 trailer->slot_bytes};
	_cleanup_(kv_closep) int fd =
		kv_segfile_open(work->segments, file->id, O_RDONLY);
	struct kv_rebuild *out = work->out;
	struct kv_txn *batch;
	int r = fd < 0 ? fd : batch_of(work, &batch);

	if (r == 0)
		r = kv_txn_put_segfile(batch, &record);
	work->fd = fd;
	for (uint32_t at = 0; r == 0 && at < trailer->slots;
	     at += KV_SCAN_MAX) {
		uint32_t n = KV_MIN(KV_SCAN_MAX, trailer->slots - at);

		kv_segfile_scan(fd, out->info.store, trailer->slot_bytes, at, n,
				NULL, work->found);
		for (uint32_t i = 0; r == 0 && i < n; i++)
			r = add_slot(work, file, at + i, &work->found[i]);
		work->slots_done += n;
	}
	out->files++;
	return r;
}

static int by_key(const void *a, const void *b)
{
	const struct item *x = a, *y = b;
	int r = XXH128_cmp(&x->hash, &y->hash);

	if (r == 0)
		r = (x->generation > y->generation) -
		    (x->generation < y->generation);
	return r ? r : y->damaged - x->damaged;
}

/* Return 0 if the block's data are whole, or the error of reading them. */
static int check_whole(const struct work *work, uint64_t slot_id)
{
	const uint32_t id = (uint32_t)(slot_id >> 32), at = (uint32_t)slot_id;
	const struct file *file = bsearch(&id, work->files, work->n_files,
					  sizeof(*file), kv_by_id);
	const uint64_t bytes = file->trailer.slot_bytes;
	_cleanup_(kv_closep) int fd =
		kv_segfile_open(work->segments, id, O_RDONLY);
	struct kv_found found;

	kv_segfile_scan(fd, work->out->info.store, bytes, at, 1, NULL, &found);
	return found.state != KV_FOUND_BLOCK
		       ? -EIO
		       : kv_block_verify(fd, kv_segfile_at_slot(bytes, at),
					 &found.record, NULL, 0);
}

static int drop_duplicates(struct work *work)
{
	struct item *items = work->items;
	int r = 0;

	if (work->n_items)
		qsort(items, work->n_items, sizeof(*items), by_key);
	for (size_t i = 0; r == 0 && i + 1 < work->n_items; i++) {
		struct kv_txn *batch;
		const struct item next = items[i + 1];

		if (!XXH128_isEqual(items[i].hash, next.hash))
			continue;
		if (items[i].generation == next.generation && !items[i].damaged)
			r = check_whole(work, next.slot_id);
		if (kv_is_shortage(r))
			return r;
		if (r < 0) {
			items[i + 1] = items[i];
			items[i] = next;
		}
		r = batch_of(work, &batch);
		if (r == 0)
			r = kv_txn_delete(batch, KV_PART_SLOTS,
					  items[i].slot_id);
		if (r == 0)
			r = kv_txn_delete(batch, KV_PART_TOKENS,
					  items[i].slot_id);
		work->out->duplicates += !items[i].damaged;
		work->out->blocks -= !items[i].damaged;
	}
	return r;
}

/* ---- the new index ---- */

static void remove_new(int store_fd)
{
	unlinkat(store_fd, NEW_DIR "/data.mdb", 0);
	unlinkat(store_fd, NEW_DIR "/lock.mdb", 0);
	unlinkat(store_fd, NEW_DIR, AT_REMOVEDIR);
}

/* Fill a map of twice the size: the records of a map that filled over weeks may
 * not fit into the same size when all are put at once.  The next mount opens
 * the file with its actual size. */
static int fill_new(struct work *work, const char *path)
{
	struct kv_store_info *info = &work->out->info;
	const uint64_t map_bytes = kv_index_map_bytes(info->cap);
	struct kv_store_info ignored;
	struct kv_txn *batch;
	int r = kv_index_open(path, 2 * map_bytes, false, info, &ignored,
			      &work->index);

	work->spare =
		kv_index_puttable(2 * map_bytes) - kv_index_puttable(map_bytes);

	if (r == 0)
		r = add_spaces(work);
	work->found = malloc(KV_SCAN_MAX * sizeof(*work->found));
	if (r == 0 && !work->found)
		r = -ENOMEM;
	for (size_t i = 0; r == 0 && i < work->n_files; i++)
		r = add_file_blocks(work, &work->files[i]);
	if (r == 0)
		r = drop_duplicates(work);
	info->next_generation += GENERATIONS;
	if (r == 0)
		r = batch_of(work, &batch);
	if (r == 0)
		r = kv_txn_put_info(batch, info);
	if (r == 0)
		r = kv_txn_commit(kv_steal(work->batch));
	kv_txn_abort(kv_steal(work->batch)); /* before the index closes */
	kv_index_close(kv_steal(work->index));
	return r;
}

static int sync_dir(int at, const char *name)
{
	_cleanup_(kv_closep) int fd =
		openat(at, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

int kv_is_segfile(void *arg, int dir, const char *name)
{
	uint32_t id;

	(void)arg;
	(void)dir;
	return kv_segfile_parse(name, &id);
}

bool kv_index_is_foreign(int store_fd, const uint8_t store[16])
{
	struct kv_rebuild out = {.store_fd = store_fd};
	_cleanup_(work_fini) struct work work = {.out = &out, .segments = -1};
	int64_t others = 0; /* files of other stores, less those of @store */

	if (kv_store_file_read(store_fd, &out.info) == 0) {
		others = memcmp(out.info.store, store, 16) != 0;
		work.one = others ? NULL : store;
	}
	if (find_files(&work) > 0)
		return false;
	for (size_t i = 0; i < work.n_files; i++)
		others +=
			memcmp(work.files[i].trailer.store, store, 16) ? 1 : -1;
	return others > 0;
}

bool kv_rebuild_possible(int store_fd)
{
	return kv_store_file_there(store_fd) ||
	       kv_dir_walk(store_fd, "segments", kv_is_segfile, NULL) > 0;
}

int kv_rebuild(struct kv_rebuild *rebuild)
{
	_cleanup_(work_fini) struct work work = {.out = rebuild,
						 .segments = -1};
	const int store = rebuild->store_fd;
	_cleanup_(kv_closep) int spaces = kv_spaces_dir(store, false);
	char path[PATH_MAX];
	struct stat st;
	int r;

	if (snprintf(path, sizeof(path), "%s/" NEW_DIR, rebuild->path) >=
	    PATH_MAX)
		return -ENAMETOOLONG;
	if (getrandom(&work.seed, sizeof(work.seed), 0) < 0)
		return -errno;
	if (rebuild->n_pins)
		qsort(rebuild->pins, rebuild->n_pins, sizeof(*rebuild->pins),
		      by_generation);
	r = find_files(&work);
	if (r == 0)
		r = know_store(&work);
	if (r == 0 && work.n_files > 0 && spaces < 0)
		r = -ENOTDIR;
	if (r < 0)
		return r;
	remove_new(store);
	/* Keep the old index only if it is small, for an inspection of the
	 * damage: the cap may have no room for two indexes. */
	unlinkat(store, KV_DAMAGED_NAME, 0);
	if (!rebuild->keep ||
	    fstatat(store, "index/data.mdb", &st, AT_SYMLINK_NOFOLLOW) < 0 ||
	    !S_ISREG(st.st_mode) ||
	    (uint64_t)st.st_size > kv_index_map_bytes(rebuild->info.cap) / 8 ||
	    renameat(store, "index/data.mdb", store, KV_DAMAGED_NAME) < 0)
		unlinkat(store, "index/data.mdb", 0);
	unlinkat(store, "index/compact.tmp", 0);
	if (mkdirat(store, NEW_DIR, 0700) < 0)
		return -errno;
	r = fill_new(&work, path);
	if (r == 0 && mkdirat(store, "index", 0700) < 0 && errno != EEXIST)
		r = -errno;
	if (r == 0) {
		unlinkat(store, "index/lock.mdb", 0);
		if (renameat(store, NEW_DIR "/data.mdb", store,
			     "index/data.mdb") < 0)
			r = -errno;
	}
	remove_new(store);
	rebuild->left_out = rebuild->strays + rebuild->duplicates +
			    rebuild->unreadable + rebuild->damaged;
	return r < 0 ? r
		     : KV_MIN(sync_dir(store, "index"), sync_dir(store, "."));
}
