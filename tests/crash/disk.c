/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disk.c - two disks for tests: a FUSE filesystem of the files `disk` and `second`, to be
 * put below loop devices.  The disks keep their bytes in memory, log all operations in one
 * order, and fail on command.  Each has a cache of its own to be flushed.
 *
 *   disk DIRECTORY BYTES [LOG]
 *
 * Commands are look-ups of names in DIRECTORY, none of which exists:
 *
 *   begin                            the log starts here
 *   word.WRITER.INDEX.HEX            a word of the journal, for the log
 *   fail.OPS.ERRNO.PERMILLE.FROM.TO  requests for bytes FROM to TO (exclusive)
 *                                    fail; OPS of r, w, f (flush).  The
 *                                    second disk begins at BYTES
 *   heal                             no request fails any more
 *
 * The size of the file `faults` is the number of requests that failed so far.
 *
 * OWNS      the disks' bytes and the log.
 *
 * INVARIANTS
 *   (1) A write is in the log before its sender gets the reply, and a flush after every
 *       write that was answered before the flush was sent.
 *   (2) The first half of a failed write may have reached the disk.
 *
 * LOCKING   none: one thread, one request at a time.
 */
#include <errno.h>
#include <fcntl.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fs/mount/mount.h"
#include "tests/crash/cutlog.h"

#define DISK 2
#define FAULTS 3
#define SECOND 4
#define RULES 1024
#define RUN (1u << 20)

struct rule {
	char ops[8];
	int error;
	unsigned permille;
	uint64_t from, to;
};

static uint8_t *disk; /* both disks, one behind the other */
static uint64_t bytes, faults;
static int logfile = -1;
static bool logging;
static struct rule rules[RULES];
static unsigned n_rules;

static void log_record(struct cut_record record, const void *data)
{
	struct iovec parts[2] = {{&record, sizeof(record)},
				 {(void *)data, record.bytes}};

	record.magic = CUT_MAGIC;
	if (logging && writev(logfile, parts, record.bytes ? 2 : 1) !=
			       (ssize_t)(sizeof(record) + record.bytes)) {
		fprintf(stderr, "disk: cannot write the log\n");
		_exit(1);
	}
}

static bool all_zero(const uint8_t *at, size_t n)
{
	return at[0] == 0 && memcmp(at, at + 1, n - 1) == 0;
}

/* Begin the log with the disk as it is: earlier operations are not needed. */
static void begin(void)
{
	if (logfile < 0)
		return;
	logging = true;
	for (uint64_t at = 0; at < 2 * bytes; at += RUN) {
		uint32_t n = (uint32_t)KV_MIN(2 * bytes - at, (uint64_t)RUN);

		if (!all_zero(disk + at, n))
			log_record((struct cut_record){.type = CUT_WRITE,
						       .bytes = n,
						       .at = at},
				   disk + at);
	}
	log_record((struct cut_record){.type = CUT_FLUSH}, NULL);
}

static void command(const char *name)
{
	struct cut_record word = {.type = CUT_WORD};
	unsigned long long at, to;
	struct rule rule;

	if (strcmp(name, "begin") == 0) {
		begin();
	} else if (strcmp(name, "heal") == 0) {
		n_rules = 0;
	} else if (sscanf(name, "word.%u.%u.%llx", &word.writer, &word.index,
			  &at) == 3) {
		word.at = at;
		log_record(word, NULL);
	} else if (n_rules < RULES &&
		   sscanf(name, "fail.%7[rwf].%d.%u.%llu.%llu", rule.ops,
			  &rule.error, &rule.permille, &at, &to) == 5) {
		rule.from = at;
		rule.to = to;
		rules[n_rules++] = rule;
	}
}

/* Return 0, or the error with which the disk must answer this request. */
static int fault(char op, uint64_t from, uint64_t n)
{
	for (unsigned i = 0; i < n_rules; i++) {
		const struct rule *rule = &rules[i];

		if (strchr(rule->ops, op) == NULL || from >= rule->to ||
		    from + n <= rule->from ||
		    (unsigned)(random() % 1000) >= rule->permille)
			continue;
		faults++;
		return rule->error;
	}
	return 0;
}

static int describe(fuse_ino_t ino, struct stat *st)
{
	memset(st, 0, sizeof(*st));
	st->st_ino = ino;
	st->st_nlink = 1;
	switch (ino) {
	case FUSE_ROOT_ID:
		st->st_mode = S_IFDIR | 0755;
		return 0;
	case DISK:
	case SECOND:
		st->st_mode = S_IFREG | 0600;
		st->st_size = (off_t)bytes;
		return 0;
	case FAULTS:
		st->st_mode = S_IFREG | 0400;
		st->st_size = (off_t)faults;
		return 0;
	default:
		return ENOENT;
	}
}

static void do_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	struct fuse_entry_param entry = {0};

	(void)parent;
	if (strcmp(name, "disk") == 0)
		entry.ino = DISK;
	else if (strcmp(name, "second") == 0)
		entry.ino = SECOND;
	else if (strcmp(name, "faults") == 0)
		entry.ino = FAULTS;
	else
		command(name);
	if (describe(entry.ino, &entry.attr) != 0)
		fuse_reply_err(req, ENOENT);
	else
		fuse_reply_entry(req, &entry);
}

static void do_getattr(fuse_req_t req, fuse_ino_t ino,
		       struct fuse_file_info *fi)
{
	struct stat st;

	(void)fi;
	if (describe(ino, &st) != 0)
		fuse_reply_err(req, ENOENT);
	else
		fuse_reply_attr(req, &st, 0);
}

static void do_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	fi->direct_io = 1;
	if (ino == DISK || ino == SECOND)
		fuse_reply_open(req, fi);
	else
		fuse_reply_err(req, EACCES);
}

static uint64_t clip(uint64_t n, off_t offset)
{
	uint64_t at = (uint64_t)offset;

	return at >= bytes ? 0 : n < bytes - at ? n : bytes - at;
}

/* Return where a disk begins. */
static uint64_t start(fuse_ino_t ino)
{
	return ino == SECOND ? bytes : 0;
}

static void do_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
		    struct fuse_file_info *fi)
{
	uint64_t n = clip(size, offset);
	const uint64_t at = start(ino) + (uint64_t)offset;
	int error = fault('r', at, n);

	(void)fi;
	if (error != 0)
		fuse_reply_err(req, error);
	else
		fuse_reply_buf(req, (char *)disk + at, n);
}

static void do_write(fuse_req_t req, fuse_ino_t ino, const char *data,
		     size_t size, off_t offset, struct fuse_file_info *fi)
{
	uint64_t n = clip(size, offset);
	const uint64_t at = start(ino) + (uint64_t)offset;
	int error = fault('w', at, n);

	(void)fi;
	if (n < size) {
		fuse_reply_err(req, ENOSPC);
		return;
	}
	if (error != 0)
		n = n / 2 / CUT_SECTOR * CUT_SECTOR;
	memcpy(disk + at, data, n);
	if (n > 0)
		log_record((struct cut_record){.type = CUT_WRITE,
					       .bytes = (uint32_t)n,
					       .at = at},
			   data);
	if (error != 0)
		fuse_reply_err(req, error);
	else
		fuse_reply_write(req, size);
}

static void do_fsync(fuse_req_t req, fuse_ino_t ino, int datasync,
		     struct fuse_file_info *fi)
{
	int error = fault('f', start(ino), bytes);

	(void)datasync;
	(void)fi;
	if (error == 0)
		log_record((struct cut_record){.type = CUT_FLUSH,
					       .at = start(ino)},
			   NULL);
	fuse_reply_err(req, error);
}

static const struct fuse_lowlevel_ops ops = {
	.lookup = do_lookup,
	.getattr = do_getattr,
	.open = do_open,
	.read = do_read,
	.write = do_write,
	.fsync = do_fsync,
};

static int serve(struct fuse_session *session, const char *directory)
{
	int r;

	if (fuse_session_mount(session, directory) != 0)
		return 1;
	if (fuse_set_signal_handlers(session) != 0)
		return 1;
	r = fuse_session_loop(session);
	fuse_session_unmount(session);
	return r < 0;
}

int main(int argc, char **argv)
{
	char *words[] = {argv[0], "-ofsname=disk,subtype=disk"};
	struct fuse_args args = FUSE_ARGS_INIT(2, words);
	struct fuse_session *session;

	if (argc < 3)
		return 2;
	bytes = strtoull(argv[2], NULL, 0);
	disk = mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (argc > 3)
		logfile = open(argv[3],
			       O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	if (disk == MAP_FAILED || (argc > 3 && logfile < 0))
		return 1;
	session = fuse_session_new(&args, &ops, sizeof(ops), NULL);
	if (session == NULL)
		return 1;
	return serve(session, argv[1]);
}
