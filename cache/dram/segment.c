/* SPDX-License-Identifier: Apache-2.0 */
/*
 * segment.c - the arena's segments and their memory: made in the background,
 * retired when another access class needs the memory.
 *
 * The memory is a memfd that is allocated in full, locked, mapped once for
 * writing and then sealed, so that clients with the descriptor can map it only
 * for reading.  Until the segment's first class is known, the memfd is sealed
 * only against changes of its size.  An open segment is never sealed further:
 * clients of other users then get a descriptor open for reading, and the file's
 * mode keeps them from opening it again for writing (/proc/self/fd).
 *
 * Clients never get the daemon's own descriptor but others of the same file, so
 * that the kernel can tell whether any of these is open or mapped anywhere: the
 * kernel grants a write lease only to a process that alone has the file open.
 * If the kernel grants no leases at all, segments are assumed to be unmapped.
 *
 * Huge pages come from overcommit: the kernel allocates pages when a segment is
 * made and frees them with the segment, also after SIGKILL.  The system's limit
 * is raised while a store is mounted.
 *
 * OWNS     every kv_segment and kv_mapper, and the thread that makes and unmaps
 *          segments; arena.overcommit, and the second line of STORE/lock, by
 *          which the next daemon lowers the limit that a killed one had raised.
 *
 * STATES   of a segment, and the function that makes each step:
 *
 *          (made) -> SPARE     grower
 *           SPARE -> IN USE    kv_segment_use, for one class
 *          IN USE -> RETIRED   kv_segment_retire_locked, all its slots free
 *         RETIRED -> DEAD      kv_segment_returned, by the last holder
 *            DEAD -> (gone)    grower, which then makes a new segment
 *            DEAD -> KEPT      grower: a client reported an unmap that it had
 *                              not made
 *            KEPT -> DEAD      grower, every second, to look again
 *
 * INVARIANTS
 *   (1) SPARE, IN USE, RETIRED, KEPT and DEAD together never exceed arena->max.
 *   (2) A segment never serves a second access class, so no bytes of one class
 *       are seen by another, and the segment is open, or sealed, for good.  An
 *       open segment keeps its prologues elsewhere, and its owner's removal of
 *       a page is noticed.
 *   (3) When a segment is retired its mappers are charged until they report the
 *       unmap; the last mapper until the kernel confirms it.  The kernel does
 *       not tell which mapper of a KEPT segment lied: all are charged except
 *       the segment's owner, whom others could harm otherwise; the owner only
 *       if it is the only mapper.  One of the charged mappers claims it.
 *   (4) The line in STORE/lock is written before the limit is raised and
 *       removed by close_parts after it was lowered.  Other boots ignore the line.
 *
 * LOCKING  cache->lock; memory is made and unmapped without it.  The limit is
 *          changed before the threads start and after they end, and under flock
 *          for other daemons; lease_granted is fixed once lease_once has run.
 */
#include "cache/dram/dram.h"
#include "cache/core/account.h"
#include "cache/core/ledger.h"
#include "common/sigbus_guard.h"
#include "common/thread.h"
#include "index/sidecar.h"

#include <fcntl.h>
#include <inttypes.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define LIMIT "/proc/sys/vm/nr_overcommit_hugepages"
#define BOOT_ID "/proc/sys/kernel/random/boot_id"
/* When memory is short, leave at least this many bytes to the system. */
#define MEMORY_MARGIN (64ull << 20)
#define ENDING_NS 10000000u
#define HUGE_PAGE (2u << 20)

/* ---- memory ---- */

/* Change the system's limit of huge pages; return whether it changed. */
static bool change_limit(int64_t pages)
{
	_cleanup_(kv_closep) int fd = open(LIMIT, O_RDWR | O_CLOEXEC);
	char text[32] = {0};
	int64_t now;
	int n;

	if (fd < 0 || flock(fd, LOCK_EX) < 0 ||
	    pread(fd, text, sizeof(text) - 1, 0) < 0)
		return false;
	now = strtoll(text, NULL, 10) + pages;
	n = snprintf(text, sizeof(text), "%" PRId64 "\n", KV_MAX(now, 0));
	return pwrite(fd, text, (size_t)n, 0) == n;
}

static void read_boot_id(char id[40])
{
	_cleanup_(kv_closep) int fd = open(BOOT_ID, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? 0 : pread(fd, id, 36, 0);

	id[KV_MAX(n, 0)] = '\0';
}

/* Write by how many pages the next daemon lowers the limit if this one is killed.
 * The inode number tells a copy of the store, which must not lower it too. */
static bool write_line(int lock_fd, int64_t pages)
{
	char boot[40], text[128] = "";
	struct stat st;

	read_boot_id(boot);
	if (fstat(lock_fd, &st) == 0)
		snprintf(text, sizeof(text),
			 "%" PRId64 " huge pages, boot %s, inode %ju\n", pages,
			 boot, (uintmax_t)st.st_ino);
	return kv_lock_write(lock_fd, text, -1, 0) == 0;
}

void kv_overcommit_recover(int lock_fd)
{
	char text[128] = {0}, boot[40], then[40] = "";
	int64_t pages = 0;
	struct stat st;
	uintmax_t inode;

	if (pread(lock_fd, text, sizeof(text) - 1, 0) < 0 ||
	    fstat(lock_fd, &st) < 0)
		return;
	read_boot_id(boot);
	if (sscanf(text, "%*d %" SCNd64 " huge pages, boot %39[^,], inode %ju",
		   &pages, then, &inode) == 3 &&
	    pages > 0 && strcmp(boot, then) == 0 && inode == st.st_ino)
		(void)change_limit(-pages);
}

static int map_segment(uint64_t bytes, bool huge, struct kv_memory *m)
{
	unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING;

	if (huge)
		flags |= MFD_HUGETLB | MFD_HUGE_2MB;
	m->fd = memfd_create("kvfs-arena", flags);
	if (m->fd < 0)
		return -errno;
	if (ftruncate(m->fd, (off_t)bytes) < 0 ||
	    fallocate(m->fd, 0, 0, (off_t)bytes) < 0)
		return -errno;
	m->base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_POPULATE, m->fd, 0);
	if (m->base == MAP_FAILED) {
		m->base = NULL;
		return -errno;
	}
	m->huge = huge;
	m->locked = huge || mlock(m->base, bytes) == 0;
	madvise(m->base, bytes, MADV_DONTDUMP);
	madvise(m->base, bytes, MADV_DONTFORK);
	return 0;
}

void kv_memory_free(struct kv_memory *m, uint64_t bytes)
{
	if (m->base)
		munmap(m->base, bytes);
	kv_closep(&m->fd);
	kv_closep(&m->read_fd);
	kv_closep(&m->write_fd);
	m->base = NULL;
	m->fd = m->read_fd = m->write_fd = -1;
}

static int open_again(int fd, int flags)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, flags | O_CLOEXEC);
}

static pthread_once_t lease_once = PTHREAD_ONCE_INIT;
static bool lease_granted;

/* Ask for a lease of a file that no other process has: if the kernel refuses
 * this one, it refuses every lease. */
static void try_lease(void)
{
	_cleanup_(kv_closep) int fd = memfd_create("kvfs-lease", MFD_CLOEXEC);
	_cleanup_(kv_closep) int again = open_again(fd, O_RDWR);

	lease_granted = fcntl(again, F_SETLEASE, F_WRLCK) == 0;
}

int kv_memory_seal(struct kv_memory *m, bool open)
{
	int seals = F_SEAL_SEAL;

	if (!m->undecided)
		return 0;
	if (open)
		m->write_fd = open_again(m->fd, O_RDWR);
	if (m->write_fd < 0)
		seals |= F_SEAL_FUTURE_WRITE;
	if (fcntl(m->fd, F_ADD_SEALS, seals) < 0) {
		kv_closep(&m->write_fd);
		return -errno;
	}
	m->undecided = false;
	return 0;
}

bool kv_memory_in_use(struct kv_memory *m)
{
	_cleanup_(kv_closep) int fd = -1;

	kv_closep(&m->read_fd);
	kv_closep(&m->write_fd);
	fd = open_again(m->fd, O_RDWR);
	pthread_once(&lease_once, try_lease);
	return lease_granted && fd >= 0 && fcntl(fd, F_SETLEASE, F_WRLCK) < 0 &&
	       errno == EAGAIN;
}

int kv_memory_new(uint64_t bytes, enum kv_hugepages huge, bool seal,
		  struct kv_memory *ret_memory)
{
	struct kv_memory m = {.fd = -1, .read_fd = -1, .write_fd = -1};
	int seals = F_SEAL_SHRINK | F_SEAL_GROW, r = -ENOMEM;

	if (huge != KV_HUGE_OFF && bytes % (2u << 20) == 0)
		r = map_segment(bytes, true, &m);
	if (r < 0 && huge != KV_HUGE_ON) {
		kv_memory_free(&m, bytes);
		r = map_segment(bytes, false, &m);
	}
	if (r == 0) {
		/* Without /proc no second descriptor opens: clients get sealed
		 * ones. */
		if (fchmod(m.fd, S_IRUSR | S_IWUSR) == 0)
			m.read_fd = open_again(m.fd, O_RDONLY);
		m.undecided = !seal && m.read_fd >= 0;
		if (!m.undecided)
			seals |= F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
		r = fcntl(m.fd, F_ADD_SEALS, seals) < 0 ? -errno : 0;
	}
	if (r < 0) {
		kv_memory_free(&m, bytes);
		return r;
	}
	*ret_memory = m;
	return 0;
}

/* ---- segments ---- */

static uint64_t memory_available(void)
{
	unsigned long long kib = 0;
	char line[128];
	FILE *f = fopen("/proc/meminfo", "re");

	if (!f)
		return UINT64_MAX;
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
			break;
	fclose(f);
	return kib ? kib << 10 : UINT64_MAX;
}

static int segment_new(struct kv_cache *cache, struct kv_segment **ret_segment)
{
	uint64_t bytes = cache->arena.segment_bytes;
	struct kv_segment *segment;
	int r;

	if (memory_available() < bytes + MEMORY_MARGIN)
		return -ENOMEM;
	segment = calloc(1, sizeof(*segment));
	if (!segment)
		return -ENOMEM;
	r = kv_memory_new(bytes, cache->config.hugepages,
			  cache->config.arena == KV_ARENA_SEALED,
			  &segment->memory);
	if (r < 0) {
		free(segment);
		return r;
	}
	segment->buffer = kv_ring_add_buffer(cache->ssd.devices[0].ring,
					     segment->memory.base, bytes);
	if (segment->buffer < 0)
		segment->buffer = -1;
	for (uint32_t i = 1; i < cache->ssd.n_devices; i++)
		if (segment->buffer >= 0 && cache->ssd.devices[i].ring)
			kv_ring_share_buffer(cache->ssd.devices[i].ring,
					     segment->buffer,
					     segment->memory.base, bytes);
	TAILQ_INIT(&segment->free_list);
	*ret_segment = segment;
	return 0;
}

static void segment_free(struct kv_cache *cache, struct kv_segment *segment)
{
	for (uint32_t i = 0; i < cache->ssd.n_devices; i++)
		if (segment->buffer >= 0 && cache->ssd.devices[i].ring)
			kv_ring_remove_buffer(cache->ssd.devices[i].ring,
					      segment->buffer);
	if (segment->prologues)
		kv_sigbus_mend_end(segment->memory.base);
	kv_memory_free(&segment->memory, cache->arena.segment_bytes);
	free(segment->prologues);
	free(segment->slot);
	free(segment);
}

/* ---- mappers ---- */

/* Find or create the record of a user; NULL: no memory. */
static struct kv_mapper *mapper_of(struct kv_cache *cache,
				   struct kv_segment *segment, uint32_t uid)
{
	struct kv_mapper *mapper;

	LIST_FOREACH(mapper, &segment->mappers, link)
		if (mapper->tenant->uid == uid)
			return mapper;
	mapper = calloc(1, sizeof(*mapper));
	if (!mapper)
		return NULL;
	mapper->tenant = kv_tenant_make(cache, uid);
	mapper->account = kv_account_get(cache->accounts, uid);
	if (!mapper->tenant || !mapper->account) {
		kv_account_put(mapper->account);
		free(mapper);
		return NULL;
	}
	LIST_INSERT_HEAD(&segment->mappers, mapper, link);
	return mapper;
}

static void discharge(struct kv_cache *cache, struct kv_segment *segment,
		      struct kv_mapper *mapper)
{
	if (!mapper->charged)
		return;
	kv_account_credit(mapper->account, KV_FINITE_SEGMENTS, 1);
	mapper->charged = false;
	if (segment->keeper != mapper->tenant)
		return;
	segment->keeper = NULL;
	kv_count_kept_segment(cache, mapper->tenant, -1);
}

static void forget_mappers(struct kv_cache *cache, struct kv_segment *segment)
{
	struct kv_mapper *mapper;

	while ((mapper = LIST_FIRST(&segment->mappers))) {
		discharge(cache, segment, mapper);
		LIST_REMOVE(mapper, link);
		kv_account_put(mapper->account);
		free(mapper);
	}
}

static bool keeps(const struct kv_segment *segment,
		  const struct kv_mapper *mapper)
{
	const bool alone = !LIST_NEXT(LIST_FIRST(&segment->mappers), link);

	if (segment->holders)
		return mapper->holders;
	return alone || mapper->tenant != segment->owner;
}

/* A retired segment is charged to the users whose clients still map it.  Update
 * the charges after the segment was retired or a client reported an unmap,
 * truly or not. */
static void charge_keepers(struct kv_cache *cache, struct kv_segment *segment)
{
	struct kv_mapper *mapper;

	LIST_FOREACH(mapper, &segment->mappers, link)
		if (!keeps(segment, mapper))
			discharge(cache, segment, mapper);
	LIST_FOREACH(mapper, &segment->mappers, link) {
		if (!keeps(segment, mapper))
			continue;
		if (!mapper->charged)
			kv_account_take(mapper->account, KV_FINITE_SEGMENTS, 1);
		mapper->charged = true;
		if (segment->keeper)
			continue;
		segment->keeper = mapper->tenant;
		kv_count_kept_segment(cache, mapper->tenant, 1);
	}
}

/* Free the dead segments that no process has mapped, and keep the others.
 * Drops the lock meanwhile; only this thread takes segments off arena->dead. */
static void bury_dead(struct kv_cache *cache)
{
	struct kv_arena *arena = &cache->arena;
	struct kv_segment *segment;
	bool in_use;

	TAILQ_CONCAT(&arena->dead, &arena->kept, link);
	arena->kept_count = 0;
	while ((segment = TAILQ_FIRST(&arena->dead))) {
		kv_unlock(cache);
		in_use = kv_memory_in_use(&segment->memory);
		kv_lock(cache);
		TAILQ_REMOVE(&arena->dead, segment, link);
		if (in_use) {
			TAILQ_INSERT_TAIL(&arena->kept, segment, link);
			arena->kept_count++;
			if (!segment->seen_in_use)
				arena->kept_ns = kv_now_ns();
			segment->seen_in_use = true;
			charge_keepers(cache, segment);
		} else {
			forget_mappers(cache, segment);
			kv_unlock(cache);
			segment_free(cache, segment);
			kv_lock(cache);
			arena->made--;
		}
	}
	if (!arena->kept_count)
		arena->kept_ns = 0;
}

static void *grower(void *arg)
{
	struct kv_cache *cache = arg;
	struct kv_arena *arena = &cache->arena;
	struct kv_segment *segment;
	int r;

	kv_lock(cache);
	while (!arena->stop) {
		bury_dead(cache);
		if (arena->made < arena->max) {
			arena->growing = true;
			kv_unlock(cache);
			r = segment_new(cache, &segment);
			kv_lock(cache);
			arena->grow_error = r;
			if (r == 0) {
				segment->id = ++arena->next_id;
				arena->made++;
				arena->huge += segment->memory.huge;
				arena->unlocked += !segment->memory.locked;
				TAILQ_INSERT_TAIL(&arena->spare, segment, link);
			}
			cache->room = true;
			pthread_cond_broadcast(&arena->grown);
		}
		if (arena->made < arena->max && arena->grow_error == 0)
			continue;
		if (arena->growing) {
			arena->growing = false;
			cache->room = true;
			pthread_cond_broadcast(&arena->grown);
			/* Let acquires that wait for room retry now: their
			 * deferred retry would end the wait below at once. */
			kv_unlock(cache);
			kv_lock(cache);
		}
		/* Memory is short, or a kept segment is mapped: retry in a
		 * second.  After a kill retry soon, because the kernel closes a
		 * process's socket before its mappings. */
		if (!arena->stop && TAILQ_EMPTY(&arena->dead))
			kv_cond_wait(cache, &arena->grow,
				     kv_now_ns() - arena->kept_ns < KV_UNMAP_NS
					     ? ENDING_NS
					     : 1000000000u);
	}
	bury_dead(cache);
	kv_unlock(cache);
	return NULL;
}

/* Prepare the memory for @slots slots of @class. */
static int decide_access(struct kv_cache *cache, struct kv_segment *segment,
			 const struct kv_class *class, uint32_t slots)
{
	_cleanup_(kv_freep) struct kv_prologue *prologues = NULL;
	struct kv_memory *memory = &segment->memory;
	const bool fresh = !segment->class;
	bool open = segment->prologues;
	int r;

	if (fresh)
		open = memory->undecided &&
		       (cache->config.arena == KV_ARENA_RW ||
			(class->tenant->registrants > 0 && class->uid != 0 &&
			 !(class->read_bits & (S_IRGRP | S_IROTH))));
	if (open)
		prologues = calloc(slots, sizeof(*prologues));
	if (open && !prologues)
		return -ENOMEM;
	if (fresh) {
		if (open &&
		    kv_sigbus_mend(memory->base, cache->arena.segment_bytes,
				   memory->huge ? HUGE_PAGE : KV_PAGE) < 0)
			return -ENOMEM;
		r = kv_memory_seal(memory, open);
		if (open && memory->write_fd < 0)
			kv_sigbus_mend_end(memory->base);
		open = memory->write_fd >= 0;
		if (r < 0)
			return r;
	}
	free(segment->prologues);
	segment->prologues = open ? kv_steal(prologues) : NULL;
	return 0;
}

/* Take a segment without used slots from its class. */
static void leave_class(struct kv_cache *cache, struct kv_segment *segment)
{
	assert(segment->free == segment->slots);
	TAILQ_REMOVE(&segment->class->segments, segment, link);
	segment->class->n_segments--;
	segment->class->tenant->segments--;
	segment->class = NULL;
	cache->arena.vacant--;
}

int kv_segment_use(struct kv_cache *cache, struct kv_segment *segment,
		   struct kv_class *class)
{
	const uint32_t n =
		(uint32_t)(cache->arena.segment_bytes / class->slot_bytes);
	_cleanup_(kv_freep) struct kv_slot *slots = calloc(n, sizeof(*slots));
	int r = slots ? decide_access(cache, segment, class, n) : -ENOMEM;

	if (r < 0)
		return r;
	if (segment->class)
		leave_class(cache, segment);
	free(segment->slot);
	segment->slot = kv_steal(slots);
	segment->slots = segment->free = n;
	segment->kept = segment->hand = 0;
	segment->class = class;
	TAILQ_INIT(&segment->free_list);
	for (uint32_t i = 0; i < n; i++) {
		segment->slot[i].segment = segment;
		TAILQ_INSERT_TAIL(&segment->free_list, &segment->slot[i], link);
	}
	class->n_segments++;
	class->tenant->segments++;
	cache->arena.vacant++;
	TAILQ_INSERT_HEAD(&class->segments, segment, link);
	return 0;
}

void kv_segment_retire_locked(struct kv_cache *cache,
			      struct kv_segment *segment)
{
	struct kv_arena *arena = &cache->arena;

	kv_assert_locked(&cache->lock);
	segment->owner = segment->class->tenant;
	leave_class(cache, segment);
	arena->huge -= segment->memory.huge;
	arena->unlocked -= !segment->memory.locked;
	if (segment->holders) {
		charge_keepers(cache, segment);
		TAILQ_INSERT_TAIL(&arena->retired, segment, link);
		arena->retired_count++;
		arena->retired_ns = kv_now_ns();
		kv_defer_retired(cache, segment->id);
	} else {
		TAILQ_INSERT_TAIL(&arena->dead, segment, link);
		arena->growing = true;
	}
	pthread_cond_signal(&arena->grow);
}

/* A linear search: there are at most a few thousand segments, and each client
 * asks for a segment once. */
static struct kv_segment *segment_find(struct kv_arena *arena, uint32_t id)
{
	struct kv_segment *segment;
	struct kv_class *class;

	LIST_FOREACH(class, &arena->classes, link)
		TAILQ_FOREACH(segment, &class->segments, link)
			if (segment->id == id)
				return segment;
	TAILQ_FOREACH(segment, &arena->retired, link)
		if (segment->id == id)
			return segment;
	return NULL;
}

int kv_segment_give(struct kv_cache *cache, uint32_t id, uint32_t uid,
		    struct kv_given_segment *ret_given)
{
	struct kv_mapper *mapper = NULL;
	struct kv_segment *segment;
	int r = 0;

	kv_lock(cache);
	segment = segment_find(&cache->arena, id);
	if (segment && segment->class)
		mapper = mapper_of(cache, segment, uid);
	if (!segment || !segment->class)
		r = -ENOENT;
	else if (!mapper)
		r = -ENOMEM;
	else if (!kv_account_fits(mapper->account, KV_FINITE_SEGMENTS,
				  cache->arena.max, 0, 0))
		r = -ENOLCK;
	if (r == 0) {
		const struct kv_memory *memory = &segment->memory;
		const struct kv_class *class = segment->class;

		segment->holders++;
		mapper->holders++;
		*ret_given = (struct kv_given_segment){
			.fd = memory->read_fd >= 0 ? memory->read_fd
						   : memory->fd,
			.bytes = cache->arena.segment_bytes,
			.uid = class->uid,
			.gid = class->gid,
			.mode = class->read_bits,
		};
		if (memory->write_fd >= 0 && class->tenant == mapper->tenant)
			ret_given->fd = memory->write_fd;
	}
	kv_unlock(cache);
	return r;
}

void kv_segment_returned(struct kv_cache *cache, uint32_t id, uint32_t uid)
{
	struct kv_arena *arena = &cache->arena;
	struct kv_mapper *mapper = NULL;
	struct kv_segment *segment;

	kv_lock(cache);
	segment = segment_find(arena, id);
	if (segment)
		mapper = mapper_of(cache, segment, uid);
	if (mapper && mapper->holders) {
		mapper->holders--;
		segment->holders--;
		if (!segment->class && segment->holders) {
			charge_keepers(cache, segment);
		} else if (!segment->class) {
			TAILQ_REMOVE(&arena->retired, segment, link);
			arena->retired_count--;
			TAILQ_INSERT_TAIL(&arena->dead, segment, link);
			arena->growing = true;
			pthread_cond_signal(&arena->grow);
		}
	}
	kv_unlock(cache);
}

int kv_registrants_count(struct kv_cache *cache, uint32_t uid, int by)
{
	struct kv_tenant *tenant;

	kv_lock(cache);
	tenant = kv_tenant_make(cache, uid);
	if (tenant)
		tenant->registrants += (uint32_t)by;
	kv_unlock(cache);
	return tenant ? 0 : -ENOMEM;
}

int kv_arena_open(struct kv_cache *cache)
{
	uint64_t bytes = KV_MIN(cache->config.segment, cache->config.dram / 64);
	const int64_t pages = (int64_t)(cache->config.dram / HUGE_PAGE);
	struct kv_arena *arena = &cache->arena;
	bool lockable;
	void *probe;
	int r;

	bytes = KV_MAX(bytes / HUGE_PAGE * HUGE_PAGE, 8ull << 20);
	bytes = KV_MIN(bytes, 2ull << 30);
	arena->segment_bytes = bytes;
	arena->max = (uint32_t)(cache->config.dram / bytes);
	if (arena->max < 2)
		return -EINVAL;
	TAILQ_INIT(&arena->spare);
	TAILQ_INIT(&arena->retired);
	TAILQ_INIT(&arena->dead);
	TAILQ_INIT(&arena->kept);
	LIST_INIT(&arena->classes);
	kv_cond_init(&arena->grow);
	kv_cond_init(&arena->grown);
	if (cache->config.hugepages != KV_HUGE_OFF && geteuid() == 0 &&
	    (cache->lock_fd < 0 || write_line(cache->lock_fd, pages)) &&
	    change_limit(pages))
		arena->overcommit = pages;
	/* Probe the limit now, without pages: later segments are locked when standard
	 * error is no longer the user's. */
	probe = mmap(NULL, cache->config.dram, PROT_NONE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	lockable = mlock2(probe, cache->config.dram, MLOCK_ONFAULT) == 0;
	munmap(probe, cache->config.dram);
	arena->growing = true;
	r = kv_thread_start(&arena->grower, "kvfs-grow", grower, cache);
	if (r < 0)
		return r;
	arena->running = true;
	kv_lock(cache);
	while (arena->made == 0 && arena->growing)
		kv_cond_wait(cache, &arena->grown, 100000000u);
	r = arena->made ? 0 : arena->grow_error;
	lockable |= arena->huge > 0;
	kv_unlock(cache);
	if (!lockable)
		kv_warn(cache, "fallback",
			"dram: %lluM cannot be locked (RLIMIT_MEMLOCK is too "
			"low), so that the kernel may swap blocks out",
			(unsigned long long)(cache->config.dram >> 20));
	return r;
}

static void free_all(struct kv_cache *cache, struct kv_segments *segments)
{
	struct kv_segment *segment;

	while ((segment = TAILQ_FIRST(segments))) {
		TAILQ_REMOVE(segments, segment, link);
		forget_mappers(cache, segment);
		segment_free(cache, segment);
	}
}

void kv_arena_close(struct kv_cache *cache)
{
	struct kv_arena *arena = &cache->arena;
	struct kv_class *class;

	if (!arena->max)
		return;
	if (arena->running) {
		kv_lock(cache);
		arena->stop = true;
		pthread_cond_signal(&arena->grow);
		kv_unlock(cache);
		pthread_join(arena->grower, NULL);
	}
	while ((class = LIST_FIRST(&arena->classes))) {
		LIST_REMOVE(class, link);
		free_all(cache, &class->segments);
		kv_evict_lists_free(&class->lists);
		free(class);
	}
	free_all(cache, &arena->spare);
	free_all(cache, &arena->retired);
	free_all(cache, &arena->dead);
	free_all(cache, &arena->kept);
	if (arena->overcommit)
		(void)change_limit(-arena->overcommit);
}
