/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segfile.c - reading segment files without an index.
 *
 * OWNS      the threads of a scan, while it runs: pages that lie far apart are
 *           read many times as fast by several.
 *
 * INVARIANTS
 *   (1) Only multiples of slot_bytes are taken for prologues: everywhere else
 *       are blocks, whose bytes are their owners'.
 *
 * LOCKING   none: every function works on its arguments only.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "common/bytes.h"
#include "common/thread.h"
#include "index/index.h"
#include "index/segfile.h"

#define READERS 16
#define SLOTS_A_READER 16 /* fewer are not worth a thread */
#define GENERATION_MAX (UINT64_MAX / 4)

static uint8_t zero_page[KV_PAGE] __attribute__((aligned(KV_PAGE)));

void kv_segfile_name(uint32_t id, char name[KV_SEGFILE_NAME])
{
	snprintf(name, KV_SEGFILE_NAME, "%06u.seg", id);
}

bool kv_segfile_parse(const char *name, uint32_t *ret_id)
{
	char again[KV_SEGFILE_NAME];
	unsigned long id = 0;
	const char *c;

	for (c = name; *c >= '0' && *c <= '9' && id < UINT32_MAX; c++)
		id = id * 10 + (unsigned long)(*c - '0');
	if (id > UINT32_MAX / 2)
		return false;
	kv_segfile_name((uint32_t)id, again);
	*ret_id = (uint32_t)id;
	return strcmp(name, again) == 0;
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

static uint64_t trailer_sum(const struct kv_trailer *trailer)
{
	return XXH3_64bits(trailer, offsetof(struct kv_trailer, checksum));
}

static int check(const struct kv_trailer *trailer, uint32_t id,
		 uint64_t file_bytes)
{
	if (trailer->magic != KV_TRAILER_MAGIC)
		return -EBADMSG;
	if (trailer->version > KV_FORMAT_VERSION)
		return -ENOTSUP;
	if (trailer->checksum != trailer_sum(trailer) || trailer->id != id ||
	    trailer->segment_bytes != file_bytes - KV_PAGE ||
	    trailer->segment_bytes % KV_SEGMENT_UNIT ||
	    trailer->segment_bytes > KV_SEGMENT_MAX ||
	    trailer->slot_bytes < 2 * KV_PAGE ||
	    trailer->slot_bytes % KV_PAGE ||
	    trailer->slot_bytes > trailer->segment_bytes ||
	    trailer->slots != kv_segfile_slots_of(trailer->segment_bytes,
						  trailer->slot_bytes))
		return -EBADMSG;
	return 0;
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
	r = check(&trailer, id, (uint64_t)st.st_size);
	if (r == 0)
		*ret_trailer = trailer;
	return r;
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
	trailer.checksum = trailer_sum(&trailer);
	memcpy(page, &trailer, sizeof(trailer));
	r = -posix_fallocate(fd, (off_t)segment_bytes, KV_PAGE);
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

struct scan {
	int fd;
	const uint8_t *store;
	uint64_t slot_bytes;
	uint32_t from, n;
	const uint64_t *skip;
	struct kv_found *found;
	_Atomic uint32_t next;
};

static void look_at(const struct scan *scan, uint32_t i)
{
	_Alignas(KV_PAGE) uint8_t page[KV_PAGE];
	const struct kv_prologue *prologue = (const void *)page;
	const uint32_t slot_number = scan->from + i;
	struct kv_found *found = &scan->found[i];

	found->state = KV_FOUND_NOTHING;
	if (scan->skip &&
	    scan->skip[slot_number / 64] & 1ull << slot_number % 64)
		return;
	if (read_page(scan->fd, slot_number * scan->slot_bytes, page) < 0) {
		found->state = KV_FOUND_UNREADABLE;
	} else if (kv_prologue_check(prologue, scan->store) == 0) {
		found->state = KV_FOUND_BLOCK;
		found->record = prologue->record;
	} else if (memcmp(page, zero_page, KV_PAGE) == 0) {
		found->state = KV_FOUND_ZERO;
	}
}

static void *scan_some(void *arg)
{
	struct scan *scan = arg;
	uint32_t i;

	while ((i = atomic_fetch_add(&scan->next, 1)) < scan->n)
		look_at(scan, i);
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

int kv_segfile_zero(int fd, uint64_t slot_bytes, uint32_t slot_number)
{
	return write_page(fd, slot_number * slot_bytes, zero_page);
}

int kv_segfile_clear(int fd, uint64_t segment_bytes, uint64_t slot_bytes)
{
	const uint32_t slots = kv_segfile_slots_of(segment_bytes, slot_bytes);
	/* ZERO_RANGE is not to be had everywhere. */
	const bool all = fallocate(fd, FALLOC_FL_ZERO_RANGE, 0,
				   (off_t)segment_bytes) == 0;
	int r = 0;

	for (uint32_t i = 0; !all && r == 0 && i < slots; i++)
		r = kv_segfile_zero(fd, slot_bytes, i);
	if (r == 0 && fdatasync(fd) < 0)
		r = -errno;
	return r;
}
