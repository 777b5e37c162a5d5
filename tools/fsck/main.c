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
 *           takes it; the index, while it is open for writing.
 *
 * INVARIANTS
 *   (1) A repair zeroes a prologue only after its record was deleted.
 *
 * LOCKING   one thread.
 */
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>

#include "common/bytes.h"
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

/* most lines printed for a kind of fault; others are only counted */
#define LINES_A_FAULT 10

static const struct {
	const char *word, *text;
	/* CRASH: a crash left this fault, and the next mount repairs it. */
	enum { ERROR, CRASH, NOTE } kind;
} faults[N_FAULTS] = {
	/* a row for each kind, in the order of enum fault */
	{"index_missing", "no index", ERROR},
	{"index_damaged", "damaged index", ERROR},
	{"record_damaged", "damaged records", ERROR},
	{"record_stray", "records of no space, no slot, or impossible", ERROR},
	{"record_duplicate", "older records of a key that has another", CRASH},
	{"slot_empty", "records of blocks whose removal was under way", CRASH},
	{"slot_other", "records whose slot has another block or no prologue",
	 ERROR},
	{"slot_leaked", "prologues in slots that are free", CRASH},
	{"data_damaged", "blocks with other bytes than sealed", ERROR},
	{"file_missing", "missing segment files", ERROR},
	{"file_unknown", "segment files that the index does not have", CRASH},
	{"trailer", "segment files without their trailer", CRASH},
	{"space_record", "spaces whose record is damaged", ERROR},
	{"segment_record", "segment files whose record is damaged", ERROR},
	{"space_file", "files in spaces/ that disagree with the index", CRASH},
	{"store_file", "the file `store` disagrees with the index", CRASH},
	{"tenants", "damaged records of users' quotas", ERROR},
	{"slot_unreadable", "slots that cannot be read", ERROR},
	{"directory", "directories in place of files", ERROR},
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

/* Return whether @fault needs no repair: it is a note, or left by a crash. */
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

/* Refuse a change of a store without one of its directories, whose blocks would be
 * forgotten; and of a store with links to another one, whose files would be
 * changed. */
static int check_link(void *arg, int dir, const char *name)
{
	_cleanup_(kv_closep) int file = -1, top = -1, segments = -1;
	struct kv_store_info own, theirs;
	const struct fsck *f = arg;
	char path[PATH_MAX];
	uint32_t id;

	if (!kv_segfile_parse(name, &id) || kv_segfile_link(dir, id, path) != 0)
		return 0;
	file = kv_segfile_open(dir, id, O_RDONLY);
	if (file == -ENODEV)
		return fsck_error("%s: segments/%s is in %s, which is missing: "
				  "bring it back, or remove the link to give "
				  "up its blocks",
				  f->path, name, path);
	top = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (top >= 0)
		segments = openat(top, "segments",
				  O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (kv_store_file_read(f->store, &own) < 0)
		return fsck_error("%s: a store with links to %s lacks the file "
				  "`store`, which a mount writes again",
				  f->path, path);
	if (segments < 0 || kv_store_file_read(segments, &theirs) < 0 ||
	    memcmp(own.store, theirs.store, sizeof(own.store)) != 0)
		return fsck_error("%s: segments/%s is in %s, which has no "
				  "record of this store: remove the link",
				  f->path, name, path);
	return 0;
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
		return fsck_error("%s: in use by a daemon (pid %ld): end it, "
				  "or umount it in every mount namespace",
				  f->path, kv_lock_owner(f->store));
	if (r < 0)
		return fsck_error("%s/lock: cannot lock it: %s", f->path,
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
	r = f->segments_dir >= 0 && (f->repair || f->rebuild)
		    ? kv_dir_walk(f->segments_dir, ".", check_link, f)
		    : 0;
	if (r < 0)
		return r;
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

static void print_json(const struct fsck *f, int status)
{
	const char *comma = "";
	char id[2 * sizeof(f->info.store) + 1];

	kv_hex(f->info.store, sizeof(f->info.store), id);
	printf("{\"status\": %d, \"known\": %s, ", status,
	       f->known ? "true" : "false");
	if (f->known)
		printf("\"store\": \"%s\", \"version\": %u, \"clean\": %s, "
		       "\"cap\": %" PRIu64 ", ",
		       id, f->info.version, f->info.clean ? "true" : "false",
		       f->info.cap);
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
	char id[2 * sizeof(f->info.store) + 1];

	kv_hex(f->info.store, sizeof(f->info.store), id);
	if (f->known && !f->quiet) {
		printf("store %s, format %u, last end %s\n", id,
		       f->info.version, f->info.clean ? "clean" : "a crash");
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
	status = left ? 4 : fixed ? 1 : 0;
	if (f->json)
		print_json(f, status);
	else
		print_lines(f, status);
	return status;
}

/* ---- repairs ---- */

/* most changes in a transaction: this few fit even into a full index */
#define A_BATCH 256

struct writer {
	struct kv_index *index;
	struct kv_txn *batch;
	unsigned in_batch;
	int r; /* error of the first step that failed; no step runs after it */
};

static struct kv_txn *batch_of(struct writer *w)
{
	if (w->r == 0 && w->batch && w->in_batch >= A_BATCH) {
		w->r = kv_txn_commit(kv_steal(w->batch));
		w->in_batch = 0;
	}
	if (w->r == 0 && !w->batch)
		w->r = kv_txn_begin(w->index, &w->batch);
	w->in_batch++;
	return w->r == 0 ? w->batch : NULL;
}

static void delete_slot(struct writer *w, uint64_t slot_id, bool record)
{
	struct kv_txn *batch = batch_of(w);

	if (batch && record)
		w->r = kv_txn_delete(batch, KV_PART_SLOTS, slot_id);
	if (batch && w->r == 0)
		w->r = kv_txn_delete(batch, KV_PART_TOKENS, slot_id);
}

static int mend_index(struct fsck *f)
{
	struct kv_store_info info;
	struct writer w = {0};

	kv_index_lock_file_check(f->store);
	w.r = kv_index_open(f->index_path, kv_index_map_bytes(f->info.cap),
			    false, NULL, &info, &w.index);
	if (w.r < 0)
		return w.r;
	for (size_t i = 0; i < f->bad_slots.n; i++)
		delete_slot(&w, f->bad_slots.ids[i], true);
	for (size_t i = 0; i < f->n_entries; i++)
		if (f->entries[i].drop)
			delete_slot(&w, f->entries[i].slot_id, true);
	for (size_t i = 0; i < f->bad_tokens.n; i++)
		delete_slot(&w, f->bad_tokens.ids[i], false);
	for (size_t i = 0; i < f->n_spaces; i++) {
		const struct space *space = &f->spaces[i];
		struct kv_txn *batch = space->put ? batch_of(&w) : NULL;

		if (batch)
			w.r = space->name
				      ? kv_txn_put_space(batch, &space->record,
							 space->name,
							 space->layout)
				      : kv_txn_delete(batch, KV_PART_SPACES,
						      space->id);
	}
	for (size_t i = 0; i < f->n_segments; i++) {
		const struct segment *segment = &f->segments[i];
		const struct kv_segfile_record record = {
			.id = segment->id,
			.slots = segment->slots,
			.slot_bytes = segment->slot_bytes};
		const bool lost = !segment->present || !segment->slot_bytes;
		struct kv_txn *batch =
			lost || segment->put ? batch_of(&w) : NULL;

		if (batch)
			w.r = lost ? kv_txn_delete(batch, KV_PART_SEGMENTS,
						   segment->id)
				   : kv_txn_put_segfile(batch, &record);
	}
	if (w.r == 0 && w.batch)
		w.r = kv_txn_commit(kv_steal(w.batch));
	kv_txn_abort(w.batch);
	kv_index_close(w.index);
	return w.r;
}

/* Zero prologues, then write trailers: a trailer makes the daemon read the
 * prologues of free slots. */
static int mend_segment_files(struct fsck *f)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < f->stale.n;) {
		const uint32_t id = (uint32_t)(f->stale.ids[i] >> 32);
		const struct segment *segment = fsck_segment(f, id);
		_cleanup_(kv_closep) int fd = fsck_open_segment(f, id, O_RDWR);

		if (fd < 0)
			return fd;
		for (; r == 0 && i < f->stale.n &&
		       (uint32_t)(f->stale.ids[i] >> 32) == id;
		     i++)
			r = kv_segfile_zero(fd, segment->slot_bytes,
					    (uint32_t)f->stale.ids[i]);
		if (r == 0 && fdatasync(fd) < 0)
			r = -errno;
	}
	for (size_t i = 0; r == 0 && i < f->n_segments; i++) {
		const struct segment *segment = &f->segments[i];
		_cleanup_(kv_closep) int fd = -1;

		if (segment->trailer || !segment->present ||
		    !segment->slot_bytes)
			continue;
		fd = fsck_open_segment(f, segment->id, O_RDWR);
		r = fd < 0 ? fd
			   : kv_trailer_write(fd, segment->id, f->info.store,
					      f->info.segment_bytes,
					      segment->slot_bytes);
	}
	return r;
}

/* Count @n faults as repaired if the repair's step returned 0.  Go on if a
 * directory stands in place of the file: the check has reported that, and a
 * person must decide. */
static int mended(struct fsck *f, enum fault fault, uint64_t n, int r)
{
	f->fixed[fault] += r == 0 ? n : 0;
	return r == -EISDIR ? 0 : r;
}

static int mend_sidecar(struct fsck *f)
{
	const uint64_t tenants = f->count[FAULT_TENANTS];
	int r = 0;

	for (size_t i = 0; r == 0 && i < f->n_spaces; i++)
		if (f->spaces[i].write)
			r = mended(f, FAULT_SPACE_FILE, 1,
				   kv_space_file_write(f->spaces_dir,
						       &f->spaces[i].record,
						       f->spaces[i].name,
						       f->spaces[i].layout));
	for (size_t i = 0; r == 0 && i < f->stray_files.n; i++)
		r = mended(
			f, FAULT_SPACE_FILE, 1,
			kv_space_file_remove(f->spaces_dir,
					     (uint32_t)f->stray_files.ids[i]));
	if (r == 0 && f->write_store_file)
		r = mended(f, FAULT_STORE_FILE, 1,
			   kv_store_file_write(f->store, &f->info));
	if (r == 0 && tenants)
		r = mended(
			f, FAULT_TENANTS, tenants,
			kv_tenants_write(f->store, f->tenants, f->n_tenants));
	return r;
}

static int repair_store(struct fsck *f)
{
	char name[KV_SEGFILE_NAME];
	int r;

	if (!f->readable)
		return 0;
	r = mend_index(f);
	if (r == 0)
		r = mend_segment_files(f);
	if (r == 0)
		r = mend_sidecar(f);
	for (size_t i = 0; r == 0 && i < f->unknown.n; i++) {
		kv_segfile_name((uint32_t)f->unknown.ids[i], name);
		r = unlinkat(f->segments_dir, name, 0) < 0 ? -errno : 0;
	}
	if (r == 0 && f->unknown.n && fsync(f->segments_dir) < 0)
		r = -errno;
	if (r < 0)
		return fsck_error("%s: cannot repair it: %s", f->path,
				  strerror(-r));
	for (unsigned i = 0; i < FAULT_SPACE_FILE; i++)
		f->fixed[i] = f->count[i];
	return 0;
}

/* Rebuild the index, unless it is whole and has blocks of spaces that have no file in
 * STORE/spaces: these blocks would be lost. */
static int rebuild_index(struct fsck *f)
{
	struct kv_rebuild rebuild = {.store_fd = f->store, .path = f->path};
	const bool quiet = f->quiet;
	int r, index;

	f->quiet = true;
	index = fsck_index(f);
	if (f->spaces_dir >= 0 && index == 0)
		(void)fsck_sidecar(f);
	f->quiet = quiet;
	for (const struct space *s = f->spaces; s < f->spaces + f->n_spaces;
	     s++)
		for (size_t i = 0; s->nameless && i < f->n_entries; i++)
			if (f->entries[i].space == s->id)
				return fsck_error(
					"%s: the index is whole, but spaces/ "
					"lacks the file of space %s; nothing "
					"was changed: --repair writes it",
					f->path, s->name);
	f->known = false; /* the report is about the rebuilt index */
	memset(f->count, 0, sizeof(f->count));
	r = kv_rebuild(&rebuild);
	if (r == -ENOTSUP || (r < 0 && index == -ENOTSUP))
		return -ENOTSUP;
	if (r == -ENODATA)
		return fsck_error("%s: nothing to rebuild it from: no `store`, "
				  "and no segment file with a trailer",
				  f->path);
	if (r == -ENOTDIR)
		return fsck_error("%s: " KV_SPACES_MISSING, f->path);
	if (r == -EUCLEAN)
		return fsck_error("%s: " KV_REBUILD_REFUSED, f->path,
				  rebuild.odd_file);
	if (r < 0)
		return fsck_error("%s: cannot rebuild it: %s", f->path,
				  strerror(-r));
	f->rebuilt = true;
	f->rebuilt_blocks = rebuild.blocks;
	f->rebuilt_out = rebuild.left_out;
	return 0;
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
		r = rebuild_index(&f);
	} else if (r == 0) {
		r = fsck_index(&f);
		if (r == 0)
			r = fsck_sidecar(&f);
		if (r == 0)
			r = fsck_slots(&f);
		if (r == 0)
			r = fsck_files(&f);
		if (r == 0 && f.repair)
			r = repair_store(&f);
	}
	if (r == -ENOTSUP)
		(void)fsck_error("%s: " KV_FORMAT_REFUSED, f.path);
	status = r < 0 ? STATUS_ERROR : report(&f);
	close_store(&f);
	return status;
}
