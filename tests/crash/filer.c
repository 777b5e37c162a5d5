/* SPDX-License-Identifier: Apache-2.0 */
/*
 * filer.c - write and remove blocks as files in the mount until SIGTERM, and record
 * acknowledgements.  After each new mount, first compare the blocks with the record.
 *
 *   filer MOUNT JOURNAL WRITER SEED
 *
 * OWNS      the journal's words of its writer.
 *
 * INVARIANTS
 *   (1) As in saver.c: words are widened before a call, and narrowed after it.
 *   (2) A file that was not written to its end never makes a block.
 *   (3) All paths begin at a descriptor of the mount, and so lead nowhere once its
 *       daemon is dead, even if another daemon is mounted in the same place.
 *
 * LOCKING   none: one thread.
 */
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include "tests/crash/client.h"
#include "tests/crash/journal.h"

static struct journal *journal;
static unsigned writer;
static char mount[64]; /* descriptor of the mount, as a path /proc/self/fd/N */
static uint64_t seed;
static struct journal_era era;
static uint8_t bytes[CONTENT_MAX];

static bool gone[JOURNAL_ITEMS], sealed[JOURNAL_ITEMS];
/* marks blocks that changed since they were last compared with the record */
static bool touched[JOURNAL_ITEMS];

static bool daemon_died(int error)
{
	return error == ENOTCONN || error == ECONNABORTED || error == EIO ||
	       error == EINTR;
}

/* Return true for an error that is expected: all of DRAM is leased (ENOSPC), or
 * the daemon is dead. */
static bool excused(int error)
{
	return error == ENOSPC || daemon_died(error);
}

static void make_directories(const char *path)
{
	char copy[512];
	size_t n = strlen(mount) + 1;

	snprintf(copy, sizeof(copy), "%s", path);
	copy[n + 1] = '\0';
	mkdir(copy, 0755);
	copy[n + 1] = '/';
	copy[n + 4] = '\0';
	mkdir(copy, 0755);
}

/* Sync the space as `sync SPACE` does. */
static void sync_space(void)
{
	char path[512];
	int fd, r;

	snprintf(path, sizeof(path), "%s/%c", mount, journal_space[writer]);
	fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return;
	r = fsync(fd);
	close(fd);
	if (r < 0)
		return;
	for (unsigned i = 0; i < JOURNAL_ITEMS; i++) {
		if (sealed[i])
			journal_save_acknowledged(journal, writer, i);
		if (gone[i])
			journal_remove_acknowledged(journal, writer, i);
		sealed[i] = gone[i] = false;
	}
	journal_flushed(journal, writer);
}

/* Write @n bytes.  Return 0 once all are written. */
static int write_bytes(int fd, size_t n)
{
	for (size_t at = 0; at < n;) {
		size_t step = KV_MIN(n - at, 50000u);
		ssize_t r = write(fd, bytes + at, step);

		if (r < 0)
			return -errno;
		at += (size_t)r;
	}
	return 0;
}

/* Write half of the file: close(2) must then report an error. */
static void write_part(int fd, unsigned index, size_t n)
{
	if (write_bytes(fd, n / 2) == 0 && close(fd) == 0)
		journal_fault(journal, "half a file could be closed",
			      journal_id(writer, index));
}

static void write_whole(int fd, unsigned index, size_t n)
{
	bool durable;
	int r = write_bytes(fd, n);

	durable = r == 0 && client_random(&seed, 2) == 0 && fsync(fd) == 0;
	if (close(fd) < 0 && r == 0)
		r = -errno;
	if (r < 0 && !excused(-r))
		journal_fault(journal, strerror(-r), journal_id(writer, index));
	if (durable)
		journal_save_acknowledged(journal, writer, index);
	else
		sealed[index] = r == 0;
	atomic_fetch_add(&journal->sealed, r == 0);
}

/* Write under a staging name and rename, as rsync does. */
static void write_renamed(const char *path, unsigned index, size_t n)
{
	const char *name = strrchr(path, '/') + 1;
	char staging[600];
	int fd, r;

	snprintf(staging, sizeof(staging), "%.*s.%s.Xa3f", (int)(name - path),
		 path, name);
	fd = open(staging, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
	if (fd < 0)
		return;
	r = write_bytes(fd, n);
	if (close(fd) < 0 && r == 0)
		r = -errno;
	if (r == 0)
		r = rename(staging, path) < 0 ? -errno : 0;
	if (r < 0 && !excused(-r))
		journal_fault(journal, strerror(-r), journal_id(writer, index));
	sealed[index] = r == 0;
	atomic_fetch_add(&journal->sealed, r == 0);
}

/* Create a file; retry, because the kernel may know the name of an evicted
 * block for a second. */
static int create(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);

	if (fd >= 0 || errno != EEXIST)
		return fd;
	usleep(1500000);
	return open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
}

static void save(unsigned index)
{
	uint64_t id = journal_id(writer, index), n;
	bool part = client_random(&seed, 8) == 0;
	char path[512];
	int fd;

	content_path(mount, id, path);
	make_directories(path);
	n = content_file(bytes, id,
			 journal_get(journal, writer, index).gen + 1);
	if (!part) {
		gone[index] = false;
		touched[index] = true;
		journal_save_begun(journal, writer, index);
	}
	if (!part && client_random(&seed, 4) == 0) {
		write_renamed(path, index, n);
		return;
	}
	fd = create(path);
	if (fd < 0 && errno == EEXIST)
		journal_fault(journal, "there before it was made", id);
	if (fd < 0)
		return;
	if (part)
		write_part(fd, index, n);
	else
		write_whole(fd, index, n);
}

static void evict(unsigned index)
{
	uint64_t id = journal_id(writer, index);
	bool known = journal_get(journal, writer, index).must;
	char path[512];

	content_path(mount, id, path);
	journal_remove_begun(journal, writer, index);
	touched[index] = true;
	sealed[index] = false;
	/* A block that was sealed but never synced may be gone, because it
	 * found no room on the SSD. */
	if (unlink(path) == 0)
		gone[index] = true;
	else if (errno == ENOENT && known)
		journal_missed(journal, "missed before it was removed", id);
}

/* Return the generation of a block, 0 if absent, or -errno. */
static int64_t generation(uint64_t id)
{
	char path[512];
	ssize_t n, total = 0;
	uint64_t gen;
	int fd;

	content_path(mount, id, path);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	do {
		n = pread(fd, bytes + total, sizeof(bytes) - (size_t)total,
			  total);
		total = n < 0 ? -errno : total + n;
	} while (n > 0);
	close(fd);
	if (total < 0)
		return total;
	return content_check_file(bytes, (uint64_t)total, id, &gen) < 0
		       ? -EILSEQ
		       : (int64_t)gen;
}

/*
 * Compare the blocks with the record: all that changed, and a quarter of the others.
 * Return false if the daemon died.
 */
static bool settle(bool all)
{
	for (unsigned i = 0; i < JOURNAL_ITEMS; i++) {
		int64_t gen;

		if (!all && !touched[i] && client_random(&seed, 4) != 0)
			continue;
		gen = generation(journal_id(writer, i));
		if (gen < 0 && daemon_died((int)-gen))
			return false;
		/* An error of a read is no wrong byte: count and report the
		 * error. */
		if (gen < 0 && gen != -EILSEQ && gen != -EBADMSG) {
			atomic_fetch_add(&journal->refused, 1);
			printf("block %llx: not read: %s\n",
			       (unsigned long long)journal_id(writer, i),
			       strerror((int)-gen));
			continue;
		}
		journal_judge(journal, journal_get(journal, writer, i), gen,
			      journal_id(writer, i));
		journal_settle(journal, writer, i, gen);
		touched[i] = false;
	}
	return true;
}

static bool alive(void)
{
	struct stat st;

	return stat(mount, &st) == 0;
}

static void work(void)
{
	memset(gone, 0, sizeof(gone));
	memset(sealed, 0, sizeof(sealed));
	if (!settle(journal_begin(journal, writer, &era)))
		return;
	atomic_store(&journal->settled[writer], journal->ready);
	while (!client_stop && alive()) {
		unsigned index = (unsigned)client_random(&seed, JOURNAL_ITEMS);
		struct journal_entry e = journal_get(journal, writer, index);

		if (journal_nothing(e) || gone[index])
			save(index);
		else if ((e.must || sealed[index]) &&
			 client_random(&seed, 2) == 0)
			evict(index);
		else
			usleep(100);
		if (client_random(&seed, 16) == 0)
			sync_space();
	}
}

int main(int argc, char **argv)
{
	struct statfs fs;
	int fd;

	if (argc != 5)
		return 2;
	client_until_term();
	journal = journal_open(argv[2]);
	writer = (unsigned)atoi(argv[3]);
	seed = strtoull(argv[4], NULL, 0) * JOURNAL_WRITERS + writer;
	memset(touched, 1, sizeof(touched));
	atomic_fetch_or(&journal->active, 1u << writer);
	while (!client_stop) {
		if (journal->mounts == journal->ready &&
		    journal->ready == journal->mounted) {
			fd = open(argv[1], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
			snprintf(mount, sizeof(mount), "/proc/self/fd/%d", fd);
			if (fd >= 0 && fstatfs(fd, &fs) == 0 &&
			    fs.f_type == FUSE_SUPER_MAGIC)
				work();
			close(fd);
		}
		usleep(2000);
	}
	return 0;
}
