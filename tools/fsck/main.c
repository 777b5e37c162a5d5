/* SPDX-License-Identifier: Apache-2.0 */
/*
 * main.c - kvfs-fsck: check a store that is not mounted, repair it, or rebuild
 * its index.  man/kvfs-fsck.8 is the reference.
 *
 * A check changes nothing: its lock for reading keeps a daemon out and needs no
 * right to write.  Names come from the store and may hold anything: only
 * printable ASCII gets to the terminal.
 *
 * OWNS      struct fsck, its descriptors, and STORE/lock, taken as the daemon
 *           takes it.
 *
 * LOCKING   one thread.
 */
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdarg.h>

#include "index/sidecar.h"
#include "tools/fsck/fsck.h"

#define STATUS_ERROR 8
#define STATUS_USAGE 16

static const char usage[] =
	"usage: kvfs-fsck [--repair | --rebuild] [--data] [--json] [--quiet] "
	"STORE\n"
	"  checks a store that is not mounted, and changes nothing, unless\n"
	"  --repair   repairs all faults without loss of a good block\n"
	"  --rebuild  rebuilds the index from the segment files\n"
	"  --data     also checks every block's bytes\n"
	"  --json     prints one object instead of lines\n"
	"  --quiet    prints only faults\n"
	"status: 0 clean, 1 put right, 4 errors are left, 8 could not check,\n"
	"16 usage\n";

/* lines printed per kind; further faults are only counted */
#define LINES_A_FAULT 10

static const struct {
	const char *word, *text;
	/* CRASH: left by a crash, and repaired by the next mount. */
	enum { ERROR, CRASH, NOTE } kind;
} faults[N_FAULTS] = {
	/* one line per kind, in the order of enum fault */
	{"index_missing", "no index", ERROR},
	{"index_damaged", "damaged index", ERROR},
	{"record_damaged", "damaged records", ERROR},
	{"record_stray", "records of no space, no slot, or impossible", ERROR},
	{"record_duplicate", "older records of a key that has another", CRASH},
	{"slot_empty", "records of blocks whose removal was under way", CRASH},
	{"slot_other", "records whose slot has another block or no prologue",
	 ERROR},
	{"slot_leaked", "prologues in slots that are free", CRASH},
	{"slot_unreadable", "slots that cannot be read", ERROR},
	{"data_damaged", "blocks with other bytes than sealed", ERROR},
	{"file_missing", "missing segment files", ERROR},
	{"file_unknown", "segment files that the index does not have", CRASH},
	{"trailer", "segment files without their trailer", CRASH},
	{"space_record", "spaces whose record is damaged", ERROR},
	{"segment_record", "segment files whose record is damaged", ERROR},
	{"space_file", "files in spaces/ that disagree with the index", CRASH},
	{"store_file", "the file `store` disagrees with the index", CRASH},
	{"tenants", "damaged records of users' quotas", ERROR},
	{"stranger", "files that are not the store's", NOTE},
};

int fsck_error(const char *format, ...)
{
	va_list args;

	fprintf(stderr, "kvfs-fsck: ");
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, "\n");
	return -EIO;
}

/* Return whether this fault needs no repair: a note, or left by a crash. */
static bool expected(const struct fsck *f, enum fault fault)
{
	return faults[fault].kind == NOTE ||
	       (faults[fault].kind == CRASH && f->known && !f->info.clean);
}

void fsck_found(struct fsck *f, enum fault fault, const char *format, ...)
{
	char text[256];
	va_list args;

	f->count[fault]++;
	if (f->json || f->quiet || f->count[fault] > LINES_A_FAULT)
		return;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	for (char *c = text; *c; c++)
		if (*c < ' ' || *c > '~')
			*c = '?';
	printf("  %s%s\n",
	       expected(f, fault) && faults[fault].kind != NOTE ? "(normal) "
								: "",
	       text);
	if (f->count[fault] == LINES_A_FAULT)
		printf("  ... more of these are only counted\n");
}

static void on_waiting(void *arg, long owner)
{
	const struct fsck *f = arg;

	fprintf(stderr,
		"kvfs-fsck: %s: its daemon (pid %ld) is still ending, waiting "
		"for it\n",
		f->path, owner);
}

static int open_dir(struct fsck *f, const char *name)
{
	int fd = openat(f->store, name,
			O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

	return fd < 0 ? -errno : fd;
}

static int open_store(struct fsck *f)
{
	const struct kv_lock_wait wait = {.waiting = on_waiting, .arg = f};
	int index, r;

	f->store = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (f->store < 0)
		return fsck_error("%s: %s", f->path, strerror(errno));
	if (faccessat(f->store, "index", F_OK, AT_SYMLINK_NOFOLLOW) < 0 &&
	    !kv_store_file_there(f->store))
		return fsck_error("%s: not a kvfs store", f->path);
	r = kv_lock_take(f->store, f->repair || f->rebuild, &wait, &f->lock);
	if (r == -EBUSY)
		return fsck_error("%s: in use by a daemon (pid %ld): umount it "
				  "first",
				  f->path, kv_lock_owner(f->store));
	if (r < 0)
		return fsck_error("%s: cannot lock it: %s", f->path,
				  strerror(-r));
	index = open_dir(f, "index");
	if (index >= 0)
		close(index);
	f->segments_dir = open_dir(f, "segments");
	f->spaces_dir = f->repair ? kv_spaces_dir(f->store, true)
				  : open_dir(f, "spaces");
	if ((index < 0 && index != -ENOENT) ||
	    (f->segments_dir < 0 && f->segments_dir != -ENOENT) ||
	    (f->spaces_dir < 0 && f->spaces_dir != -ENOENT))
		return fsck_error("%s: index, segments and spaces must be "
				  "directories that one may read",
				  f->path);
	if (snprintf(f->index_path, sizeof(f->index_path), "%s/index",
		     f->path) >= (int)sizeof(f->index_path))
		return fsck_error("%s: the name is too long", f->path);
	return 0;
}

static void close_store(struct fsck *f)
{
	const int fds[] = {f->segments_dir, f->spaces_dir, f->lock, f->store};

	for (size_t i = 0; i < KV_ARRAY_LEN(fds); i++)
		if (fds[i] >= 0)
			close(fds[i]);
	for (size_t i = 0; i < f->n_spaces; i++) {
		free(f->spaces[i].name);
		free(f->spaces[i].layout);
	}
	free(f->spaces);
	free(f->entries);
	free(f->segments);
	free(f->bad_slots.ids);
	free(f->bad_tokens.ids);
	free(f->stale.ids);
	free(f->stray_files.ids);
	free(f->unknown.ids);
	free(f->tenants);
}

static int parse(int argc, char **argv, struct fsck *f)
{
	const struct option options[] = {
		{"repair", no_argument, NULL, 'r'},
		{"rebuild", no_argument, NULL, 'R'},
		{"data", no_argument, NULL, 'd'},
		{"json", no_argument, NULL, 'j'},
		{"quiet", no_argument, NULL, 'q'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},
		{NULL, 0, NULL, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "qh", options, NULL)) >= 0) {
		f->repair |= c == 'r';
		f->rebuild |= c == 'R';
		f->data |= c == 'd';
		f->json |= c == 'j';
		f->quiet |= c == 'q';
		if (c == 'h')
			fputs(usage, stdout);
		if (c == 'V')
			printf("kvfs-fsck %s\n", KV_VERSION);
		if (c == 'h' || c == 'V')
			exit(0);
		if (c == '?')
			return -EINVAL;
	}
	if (argc - optind != 1 || (f->repair && f->rebuild))
		return -EINVAL;
	f->path = argv[optind];
	return 0;
}

static void print_id(const struct fsck *f)
{
	for (unsigned i = 0; i < sizeof(f->info.store); i++)
		printf("%02x", f->info.store[i]);
}

static void print_json(const struct fsck *f, int status)
{
	const char *comma = "";

	printf("{\"status\": %d, \"known\": %s, ", status,
	       f->known ? "true" : "false");
	if (f->known) {
		printf("\"store\": \"");
		print_id(f);
		printf("\", \"version\": %u, \"clean\": %s, \"cap\": %" PRIu64
		       ", ",
		       f->info.version, f->info.clean ? "true" : "false",
		       f->info.cap);
	}
	printf("\"spaces\": %zu, \"files\": %zu, \"blocks\": %zu, "
	       "\"snapshots\": %" PRIu64 ", \"bytes_accounted\": %" PRIu64
	       ", \"bytes_held\": %" PRIu64 ", \"rebuilt\": %s, ",
	       f->n_spaces, f->n_segments, f->n_entries, f->snapshots,
	       f->bytes_accounted, f->bytes_held,
	       f->rebuilt ? "true" : "false");
	if (f->rebuilt)
		printf("\"rebuilt_blocks\": %" PRIu64 ", \"left_out\": %" PRIu64
		       ", ",
		       f->rebuilt_blocks, f->rebuilt_out);
	printf("\"found\": [");
	for (unsigned i = 0; i < N_FAULTS; i++) {
		if (!f->count[i])
			continue;
		printf("%s{\"kind\": \"%s\", \"count\": %" PRIu64
		       ", \"fixed\": %" PRIu64 ", \"normal\": %s}",
		       comma, faults[i].word, f->count[i], f->fixed[i],
		       expected(f, i) ? "true" : "false");
		comma = ", ";
	}
	printf("]}\n");
}

static void print_lines(const struct fsck *f, int status)
{
	if (f->known && !f->quiet) {
		printf("store ");
		print_id(f);
		printf(", format %u, last end %s\n", f->info.version,
		       f->info.clean ? "clean" : "a crash");
		printf("%zu spaces, %zu segment files, %zu blocks, %" PRIu64
		       " snapshots\n",
		       f->n_spaces, f->n_segments, f->n_entries, f->snapshots);
		printf("bytes: %" PRIu64 " accounted, %" PRIu64 " held\n",
		       f->bytes_accounted, f->bytes_held);
	}
	for (unsigned i = 0; i < N_FAULTS; i++)
		if (f->count[i] && (!f->quiet || !expected(f, i)))
			printf("%" PRIu64 " %s%s%s\n", f->count[i],
			       faults[i].text,
			       f->fixed[i] >= f->count[i] ? ": put right" : "",
			       expected(f, i) && faults[i].kind != NOTE
				       ? " (normal: the next mount puts them "
					 "right)"
				       : "");
	if (f->rebuilt)
		printf("rebuilt: %" PRIu64 " blocks, %" PRIu64
		       " left out; pins, uses and snapshots are gone\n",
		       f->rebuilt_blocks, f->rebuilt_out);
	if (!f->quiet)
		printf("%s\n", status == 0   ? "clean"
			       : status == 1 ? "put right"
					     : "errors are left");
}

/* Print the last lines, or all of the JSON.  Return the exit status. */
static int report(struct fsck *f)
{
	bool left = false, fixed = f->rebuilt;
	int status;

	for (unsigned i = 0; i < N_FAULTS; i++) {
		fixed |= f->fixed[i] > 0;
		left |= f->count[i] > f->fixed[i] && !expected(f, i);
	}
	if (f->rebuilt)
		left = false;
	status = left ? 4 : fixed ? 1 : 0;
	if (f->json)
		print_json(f, status);
	else
		print_lines(f, status);
	return status;
}

int main(int argc, char **argv)
{
	struct fsck f = {
		.store = -1, .segments_dir = -1, .spaces_dir = -1, .lock = -1};
	int r, status;

	if (parse(argc, argv, &f) < 0) {
		fprintf(stderr, "%s", usage);
		return STATUS_USAGE;
	}
	r = open_store(&f);
	if (r == 0 && f.rebuild) {
		r = fsck_rebuild(&f);
	} else if (r == 0) {
		r = fsck_index(&f);
		if (r == 0)
			r = fsck_sidecar(&f);
		if (r == 0)
			r = fsck_slots(&f);
		if (r == 0)
			r = fsck_files(&f);
		if (r == 0 && f.repair)
			r = fsck_repair(&f);
	}
	status = r < 0 ? STATUS_ERROR : report(&f);
	close_store(&f);
	return status;
}
