/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reference.c - references of the figures: memory in 2 MiB pages like an
 * engine's pool, threads that call memcpy, and the disk's speed by fio.
 *
 * OWNS      the mappings; the threads, and their job: every thread takes pieces
 *           one by one (@next), and the job is over when all threads are at
 *           the barrier @end; the fio process and its output file.
 *
 * INVARIANTS
 *   (1) A mapping is not inherited by fork: else each start of a child would
 *       leave the pool's pages write-protected and slow down the next copy.
 *   (2) @pieces and @n change only while the helpers wait at @begin.
 *   (3) fio has 2 MiB pages and registered buffers as the daemon has.  Without
 *       them fio is half as fast (measured), and no reference.
 *
 * LOCKING   the two barriers order the threads' accesses; @next is atomic.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/bytes.h"
#include "tools/bench/bench.h"

/* ---- memory ---- */

#define HUGE_PAGE (2ul << 20)

int kv_bench_memory_map(size_t bytes, struct kv_bench_memory *ret_memory)
{
	void *p;

	bytes = kv_round_up(bytes, HUGE_PAGE);
	p = aligned_alloc(HUGE_PAGE, bytes);
	if (!p)
		return -ENOMEM;
	madvise(p, bytes, MADV_HUGEPAGE);
	madvise(p, bytes, MADV_DONTFORK);
	memset(p, 1, bytes);
	*ret_memory = (struct kv_bench_memory){.base = p, .bytes = bytes};
	return 0;
}

int kv_bench_memory_share(size_t bytes, bool sealed,
			  struct kv_bench_memory *ret_memory, int *ret_fd)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;
	unsigned flags = MFD_HUGETLB | MFD_HUGE_2MB;
	void *p = MAP_FAILED;
	int fd;

	bytes = kv_round_up(bytes, HUGE_PAGE);
	for (;;) {
		fd = memfd_create("kvfs-bench",
				  MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
		if (fd >= 0 && fallocate(fd, 0, 0, (off_t)bytes) == 0)
			p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
				 MAP_SHARED | MAP_POPULATE, fd, 0);
		if (p != MAP_FAILED)
			break;
		if (fd >= 0)
			close(fd);
		if (!flags)
			return -ENOMEM;
		flags = 0;
	}
	madvise(p, bytes, MADV_DONTFORK);
	memset(p, 1, bytes);
	if (sealed && fcntl(fd, F_ADD_SEALS, seals) < 0) {
		munmap(p, bytes);
		close(fd);
		return -EPERM;
	}
	*ret_memory = (struct kv_bench_memory){.base = p, .bytes = bytes};
	*ret_fd = fd;
	return 0;
}

struct kv_bench_crew {
	pthread_barrier_t begin, end; /* begin and end of a job */
	/* pieces of the job; NULL: the helper threads are to end */
	const struct kv_bench_piece *pieces;
	size_t n;
	atomic_size_t next;
	unsigned helpers; /* fixed once made */
	pthread_t threads[];
};

/* Copy pieces with the other threads of the crew until a job's end.  Return
 * false if the helpers are to end. */
static bool take_pieces(struct kv_bench_crew *crew)
{
	size_t i;

	pthread_barrier_wait(&crew->begin);
	if (!crew->pieces)
		return false;
	while ((i = atomic_fetch_add(&crew->next, 1)) < crew->n)
		memcpy(crew->pieces[i].dst, crew->pieces[i].src,
		       crew->pieces[i].bytes);
	pthread_barrier_wait(&crew->end);
	return true;
}

static void *run_helper(void *arg)
{
	while (take_pieces(arg))
		;
	return NULL;
}

int kv_bench_crew_new(unsigned threads, struct kv_bench_crew **ret_crew)
{
	struct kv_bench_crew *crew;
	int r;

	crew = calloc(1, sizeof(*crew) + threads * sizeof(pthread_t));
	if (!crew)
		return -ENOMEM;
	pthread_barrier_init(&crew->begin, NULL, threads);
	pthread_barrier_init(&crew->end, NULL, threads);
	while (crew->helpers + 1 < threads) {
		r = pthread_create(&crew->threads[crew->helpers], NULL,
				   run_helper, crew);
		/* Helpers that run wait at @begin until the process ends. */
		if (r)
			return -r;
		crew->helpers++;
	}
	*ret_crew = crew;
	return 0;
}

void kv_bench_crew_free(struct kv_bench_crew *crew)
{
	if (!crew)
		return;
	crew->pieces = NULL;
	take_pieces(crew);
	for (unsigned i = 0; i < crew->helpers; i++)
		pthread_join(crew->threads[i], NULL);
	pthread_barrier_destroy(&crew->begin);
	pthread_barrier_destroy(&crew->end);
	free(crew);
}

uint64_t kv_bench_crew_copy(struct kv_bench_crew *crew,
			    const struct kv_bench_piece *pieces, size_t n)
{
	uint64_t begin = kv_now_ns();

	crew->pieces = pieces;
	crew->n = n;
	atomic_store(&crew->next, 0);
	take_pieces(crew);
	return kv_now_ns() - begin;
}

/* ---- the disk ---- */

int kv_bench_fio(struct kv_bench *bench, uint64_t block, uint64_t bytes,
		 unsigned writers, double *ret_speed)
{
	const unsigned n = KV_MAX(writers, 1u);
	char path[PATH_MAX], json[PATH_MAX], fio[PATH_MAX + 512];
	char line[2 * (sizeof(fio) + sizeof(json)) + 64], text[65536], *at;
	char *argv[] = {"sh", "-c", line, NULL};
	FILE *f;
	int fd, r = 0;

	snprintf(path, sizeof(path), "%.4000s/fio", bench->dir);
	snprintf(json, sizeof(json), "%.4000s/fio.json", bench->dir);
	if (writers) {
		fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		if (fd < 0)
			return -errno;
		if (fallocate(fd, 0, 0, (off_t)bytes) < 0 || fsync(fd) < 0)
			r = -errno;
		close(fd);
	}
	snprintf(fio, sizeof(fio),
		 "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 fio --name=reference "
		 "--ioengine=io_uring --direct=1 --iodepth=32 "
		 "--registerfiles=1 --output-format=json --group_reporting "
		 "--filename='%s' --bs=%llu --size=%llu --numjobs=%u "
		 "--offset_increment=%llu --rw=%s --end_fsync=%d",
		 path, (unsigned long long)block, (unsigned long long)bytes / n,
		 n, (unsigned long long)bytes / n, writers ? "write" : "read",
		 writers > 0);
	/* Retry without registered buffers: memory locks may be limited. */
	snprintf(line, sizeof(line), "%s --fixedbufs=1 > '%s' || %s > '%s'",
		 fio, json, fio, json);
	if (r == 0)
		r = kv_bench_child_run(argv, "/dev/null");
	f = r == 0 ? fopen(json, "re") : NULL;
	if (f) {
		/* the number after "bw_bytes" in the object "write" or
		 * "read" */
		text[fread(text, 1, sizeof(text) - 1, f)] = 0;
		fclose(f);
		at = strstr(text, writers ? "\"write\" :" : "\"read\" :");
		at = at ? strstr(at, "\"bw_bytes\"") : NULL;
		at = at ? strchr(at, ':') : NULL;
		*ret_speed = at ? strtod(at + 1, NULL) / 1e9 : 0;
		r = *ret_speed > 0 ? 0 : -EIO;
	} else if (r == 0) {
		r = -errno;
	}
	unlink(json);
	if (writers)
		unlink(path);
	return r;
}
