/* SPDX-License-Identifier: Apache-2.0 */
/*
 * report.c - what kvfs-fsck says: in lines, as JSON, and as a bar.
 *
 * Names come from the store and may hold anything: only printable ASCII gets
 * to the terminal.
 *
 * OWNS      the last line of the terminal, while the bar is shown there.
 *
 * LOCKING   one thread.
 */
#include <inttypes.h>
#include <stdarg.h>

#include "tools/fsck/fsck.h"

#define LINES_A_FAULT 10 /* shown; the rest is counted */
#define BAR_AFTER_NS 1000000000u
#define BAR_EVERY_NS 100000000u
#define BAR_WIDTH 40

static const struct {
	const char *word, *text;
	bool crash; /* normal after an end that was not clean */
	bool note;  /* never an error */
} faults[N_FAULTS] = {
	[FAULT_INDEX_MISSING] = {"index_missing", "no index", false, false},
	[FAULT_INDEX_DAMAGED] = {"index_damaged", "damaged index", false,
				 false},
	[FAULT_RECORD_DAMAGED] = {"record_damaged", "damaged records", false,
				  false},
	[FAULT_RECORD_STRAY] = {"record_stray",
				"records of no space, no slot, or impossible",
				false, false},
	[FAULT_RECORD_DUPLICATE] = {"record_duplicate",
				    "older records of a key that has another",
				    true, false},
	[FAULT_SLOT_EMPTY] = {"slot_empty",
			      "records of blocks whose removal was under way",
			      true, false},
	[FAULT_SLOT_OTHER] = {"slot_other",
			      "records whose slot holds something else", false,
			      false},
	[FAULT_SLOT_LEAKED] = {"slot_leaked",
			       "prologues in slots that are free", true, false},
	[FAULT_SLOT_UNREADABLE] = {"slot_unreadable",
				   "slots that cannot be read", false, false},
	[FAULT_DATA] = {"data_damaged", "blocks with other bytes than sealed",
			false, false},
	[FAULT_FILE_MISSING] = {"file_missing",
				"segment files that are not there", false,
				false},
	[FAULT_FILE_UNKNOWN] = {"file_unknown",
				"segment files that the index does not have",
				true, false},
	[FAULT_TRAILER] = {"trailer", "segment files without their trailer",
			   true, false},
	[FAULT_SPACE_RECORD] = {"space_record",
				"spaces whose record is damaged", false, false},
	[FAULT_SEGMENT_RECORD] = {"segment_record",
				  "segment files whose record is damaged",
				  false, false},
	[FAULT_SPACE_FILE] = {"space_file",
			      "files in spaces/ that disagree with the index",
			      true, false},
	[FAULT_STORE_FILE] = {"store_file",
			      "the file `store` disagrees with the index", true,
			      false},
	[FAULT_TENANTS] = {"tenants", "damaged records of users' quotas", false,
			   false},
	[FAULT_STRANGER] = {"stranger", "files that are not the store's", false,
			    true},
};

static uint64_t began, drawn;
static bool shown;

void fsck_progress(const char *what, uint64_t done, uint64_t of)
{
	uint64_t now = kv_now_ns();
	int filled;

	if (!began)
		began = now;
	if (now - began < BAR_AFTER_NS || now - drawn < BAR_EVERY_NS ||
	    of == 0 || !isatty(STDERR_FILENO))
		return;
	drawn = now;
	shown = true;
	filled = (int)((double)KV_MIN(done, of) / (double)of * BAR_WIDTH);
	fprintf(stderr, "\r%s [%.*s%.*s] %3d%%", what, filled,
		"########################################", BAR_WIDTH - filled,
		"                                        ",
		(int)((double)KV_MIN(done, of) / (double)of * 100));
}

static void progress_end(void)
{
	if (shown)
		fprintf(stderr, "\r%*s\r", BAR_WIDTH + 30, "");
	shown = false;
}

int fsck_error(const char *format, ...)
{
	va_list args;

	progress_end();
	fprintf(stderr, "kvfs-fsck: ");
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fprintf(stderr, "\n");
	return -EIO;
}

/* Is it what a crash leaves, and the next mount puts right? */
static bool expected(const struct fsck *f, enum fault fault)
{
	return faults[fault].note ||
	       (faults[fault].crash && f->known && !f->info.clean);
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
	progress_end();
	printf("  %s%s\n",
	       expected(f, fault) && !faults[fault].note ? "(normal) " : "",
	       text);
	if (f->count[fault] == LINES_A_FAULT)
		printf("  ... more of these are only counted\n");
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
			       expected(f, i) && !faults[i].note
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

int fsck_report(struct fsck *f)
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
	progress_end();
	if (f->json)
		print_json(f, status);
	else
		print_lines(f, status);
	return status;
}
