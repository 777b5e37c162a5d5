/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client_memory.c - a client's file in memory, read by pread(2) or mapped.
 *
 * OWNS      a descriptor of the file, and a mapping of a file that can be mapped, until
 *           the last put, and the charges for them.
 *
 * INVARIANTS
 *   (1) Reading the memory allocates nothing: a page in a hole of a mapped file would be
 *       charged to the daemon's control group.  pread(2) returns zeros for a hole.
 *   (2) A file is mapped only if it has all its pages and can lose none: before its pages
 *       were counted, it was sealed against shrinking, growing and new writers, and so
 *       against punching holes.
 *   (3) No call on the file waits for the client.  lseek(SEEK_HOLE) would: a client can
 *       hold the inode's lock for any time, by a write(2) from memory that does not
 *       answer.  cachestat(2) takes no lock.
 *   (4) The control thread neither maps nor unmaps; a worker does so in steps of at most
 *       STEP bytes.
 *
 * LOCKING   none: the count is atomic, and other fields are fixed after map.  After the
 *           last put only one worker uses the memory.
 */
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#include "common/bytes.h"
#include "common/sigbus_guard.h"
#include "fs/control/server.h"

#ifndef SYS_cachestat
#define SYS_cachestat 451
#endif

#define STEP (UINT64_C(16) << 20)
#define STEP_COST (64u << 10) /* cost of mapping a STEP, in a user's turn */
/* Bytes read at once; they stay in the second-level cache until they are hashed
 * (measured: 1.2 times as fast as pieces of 16 KiB). */
#define PIECE ((uint64_t)64 << 10)

struct kv_client_memory {
	struct kv_work unmap;
	struct kv_server *server;
	struct kv_account *account; /* held */
	int fd;
	uint64_t offset, bytes; /* part of the file that the client uses */
	uint64_t page, step;	/* bytes of a page, and of a mapping step */
	/* the file is known to have all pages below this offset */
	uint64_t counted;
	const uint8_t *data; /* address of byte @offset; NULL: not mapped */
	uint8_t *map;	     /* start of the memory that is not yet unmapped */
	uint64_t mapped;     /* bytes that are still mapped, from @map on */
	uint64_t charged;    /* KV_FINITE_MAPPED */
	_Atomic unsigned refs;
};

static void step(struct kv_client_memory *memory)
{
	kv_work_submit(memory->server->waits, &memory->unmap,
		       memory->account ? kv_account_uid(memory->account) : 0,
		       STEP_COST);
}

static void unmap(struct kv_work *work, struct kv_hash *hash)
{
	struct kv_client_memory *memory =
		kv_container(work, struct kv_client_memory, unmap);
	const uint64_t n = KV_MIN(memory->mapped, memory->step);

	(void)hash;
	if (n > 0) {
		munmap(memory->map, n);
		memory->map += n;
		memory->mapped -= n;
	}
	if (memory->mapped > 0) {
		step(memory);
		return;
	}
	kv_closep(&memory->fd);
	kv_account_credit(memory->account, KV_FINITE_STAGINGS, 1);
	kv_account_credit(memory->account, KV_FINITE_MAPPED, memory->charged);
	kv_account_put(memory->account);
	free(memory);
}

int kv_client_memory_new(struct kv_server *server, struct kv_account *account,
			 int fd, uint64_t offset, uint64_t bytes,
			 struct kv_client_memory **ret_memory)
{
	uint64_t end, page = (uint64_t)sysconf(_SC_PAGESIZE);
	struct kv_client_memory *memory;
	int r, mode = fcntl(fd, F_GETFL);
	struct statfs fs;

	if (bytes == 0 || __builtin_add_overflow(offset, bytes, &end) ||
	    end > INT64_MAX)
		return -EINVAL;
	/* F_GET_SEALS succeeds only for files in memory. */
	if (mode < 0 || fcntl(fd, F_GET_SEALS) < 0 || fstatfs(fd, &fs) < 0)
		return -EMEDIUMTYPE;
	if (fs.f_type == HUGETLBFS_MAGIC)
		page = (uint64_t)fs.f_bsize;
	if ((mode & O_ACCMODE) == O_WRONLY)
		return -EACCES;
	r = kv_account_charge(account, KV_FINITE_STAGINGS, 1);
	if (r < 0)
		return r;
	memory = calloc(1, sizeof(*memory));
	fd = memory ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
	if (fd < 0) {
		r = memory ? -errno : -ENOMEM;
		kv_account_credit(account, KV_FINITE_STAGINGS, 1);
		free(memory);
		return r;
	}
	*memory = (struct kv_client_memory){
		.unmap.run = unmap,
		.server = server,
		.account = kv_account_hold(account),
		.fd = fd,
		.offset = offset,
		.bytes = bytes,
		.page = page,
		.step = KV_MAX(STEP, page),
		.refs = 1,
	};
	*ret_memory = memory;
	return 0;
}

/*
 * Return true if none of the @n bytes from @at on is in a hole of the file;
 * their pages may be swapped out. cachestat(2) counts pages, but not in
 * hugetlbfs, and not before Linux 6.5.  Without it, a page counts if its first
 * byte is not 0.
 */
static bool has_pages(int fd, uint64_t at, uint64_t n, uint64_t page)
{
	uint64_t range[2] = {at, n};
	struct {
		uint64_t cached, dirty, writeback, evicted, recently_evicted;
	} count;
	uint8_t first;

	if (syscall(SYS_cachestat, fd, range, &count, 0) == 0)
		return count.cached + count.evicted == n / page;
	for (; n > 0; at += page, n -= page)
		if (kv_read_at(fd, at, &first, 1) != 1 || first == 0)
			return false;
	return true;
}

int kv_client_memory_map(struct kv_client_memory *memory)
{
	const int sealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
	const uint64_t page = memory->page;
	const uint64_t from = memory->offset / page * page;
	const uint64_t end = kv_round_up(memory->offset + memory->bytes, page);
	uint64_t n;
	struct stat st;
	void *map;

	if (memory->counted == 0) {
		if ((fcntl(memory->fd, F_GET_SEALS) & sealed) != sealed ||
		    fstat(memory->fd, &st) < 0 ||
		    memory->offset + memory->bytes > (uint64_t)st.st_size)
			return 0;
		memory->counted = from;
	}
	n = KV_MIN(end - memory->counted, memory->step);
	if (!has_pages(memory->fd, memory->counted, n, page))
		return 0;
	memory->counted += n;
	if (memory->counted < end)
		return 1;
	/* Limit the bytes mapped, because their page tables take memory. */
	n = end - from;
	if (!kv_account_fits(memory->account, KV_FINITE_MAPPED,
			     memory->server->mapped_max, n, 0))
		return 0;
	map = mmap(NULL, n, PROT_READ, MAP_SHARED | MAP_NORESERVE, memory->fd,
		   (off_t)from);
	if (map == MAP_FAILED)
		return 0;
	(void)madvise(map, n, MADV_DONTDUMP);
	(void)madvise(map, n, MADV_DONTFORK);
	kv_account_take(memory->account, KV_FINITE_MAPPED, n);
	memory->charged = memory->mapped = n;
	memory->map = map;
	memory->data = memory->map + (memory->offset - from);
	return 0;
}

bool kv_client_memory_is_mapped(const struct kv_client_memory *memory)
{
	return memory->data;
}

void kv_client_memory_hold(struct kv_client_memory *memory)
{
	atomic_fetch_add(&memory->refs, 1);
}

void kv_client_memory_put(struct kv_client_memory *memory)
{
	if (memory && atomic_fetch_sub(&memory->refs, 1) == 1)
		step(memory);
}

uint64_t kv_client_memory_bytes(const struct kv_client_memory *memory)
{
	return memory->bytes;
}

bool kv_client_memory_has(const struct kv_client_memory *memory, uint64_t at,
			  uint64_t n)
{
	return at <= memory->bytes && n <= memory->bytes - at;
}

struct copy {
	const uint8_t *from;
	uint64_t n;
	struct kv_hash *hash;
	void *dst;
};

static int copy_mapped(void *arg)
{
	const struct copy *copy = arg;

	if (copy->hash)
		kv_hash_copy(copy->hash, copy->dst, copy->from, copy->n);
	else
		kv_copy_stream(copy->dst, copy->from, copy->n);
	return 0;
}

int kv_client_memory_copy(const struct kv_client_memory *memory, unsigned how,
			  uint64_t at, uint64_t n, struct kv_hash *hash,
			  void *dst)
{
	const bool apart = hash && how & KV_COPY_OPEN;
	uint8_t *to = dst, private[PIECE];
	uint64_t piece;

	/* An access to a page that cannot be swapped in, or to broken memory,
	 * raises SIGBUS. */
	if (memory->data && !(how & KV_COPY_READ))
		return kv_sigbus_guard(
			copy_mapped,
			&(struct copy){memory->data + at, n, hash, dst});
	/* Hash a private copy of bytes that others may change (measured: without the
	 * copy 1.05 to 1.24 times as fast). */
	for (; n > 0; n -= piece, at += piece, to += piece) {
		piece = KV_MIN(n, PIECE);
		if (kv_read_at(memory->fd, memory->offset + at,
			       apart ? private : to, piece) != (long)piece)
			return -EFAULT;
		if (hash)
			kv_hash_update(hash, apart ? private : to, piece);
		if (apart)
			kv_copy_stream(to, private, piece);
	}
	return 0;
}
