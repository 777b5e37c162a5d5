/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.c - figures of the cache, as text for people and for Prometheus.
 *
 * OWNS      nothing.
 *
 * INVARIANTS
 *   (1) Each figure is one row of a table, with its metric and with the name by
 *       which a format of the text for people refers to the figure.
 *
 * LOCKING   none: kv_cache_stats() returns a copy of the figures.
 */
#include "common/array.h"
#include "fs/base/stats.h"

#define SPACES_MAX 100u /* spaces with metrics of their own */
#define OTHERS "other"

typedef unsigned long long ull; /* for %llu */

/* One figure: a row of a table.  A metric is a counter if its name ends in
 * _total, else a gauge. */
struct figure {
	const char *key;    /* the name in stats_format; or NULL */
	const char *metric; /* without "kvfs_"; NULL: only in .kvfs/stats */
	const char *label;  /* such as tier="dram"; or NULL */
	const char *help; /* NULL: same metric as the row before, other label */
	size_t at;	  /* of the value: offset in the structure */
	enum { U64, BOOL, RATIO, NS } type;
};

#define S(field) #field, .at = offsetof(struct kv_cache_stats, field)
#define FIGURE(field, name, tag, text)                                     \
	{                                                                  \
		S(field), .metric = (name), .label = (tag), .help = (text) \
	}
#define TEXT_ONLY(field) \
	{                \
		S(field) \
	}
#define DRAM "tier=\"dram\""
#define SSD "tier=\"ssd\""

static const struct figure figures[] = {
	FIGURE(dram_blocks, "blocks", DRAM, "Blocks in a tier."),
	FIGURE(ssd_blocks, "blocks", SSD, NULL),
	FIGURE(dram_used, "bytes", DRAM, "Bytes that blocks hold in a tier."),
	FIGURE(ssd_used, "bytes", SSD, NULL),
	FIGURE(dram_total, "capacity_bytes", DRAM, "Size of a tier."),
	FIGURE(ssd_total, "capacity_bytes", SSD, NULL),
	FIGURE(spaces, "spaces", NULL, "Spaces."),
	FIGURE(leases, "leases", NULL, "Blocks leased by clients."),
	FIGURE(pinned, "pinned_blocks", NULL, "Blocks pinned by users."),
	FIGURE(pinned_bytes, "pinned_bytes", NULL,
	       "Bytes of DRAM that pins hold."),
	FIGURE(snapshots, "snapshots", NULL, "Snapshots."),
	FIGURE(saving, "saving_blocks", NULL, "Blocks being saved."),
	FIGURE(dirty_blocks, "dirty_blocks", NULL,
	       "Sealed blocks not yet on SSD."),
	FIGURE(dram_alone, "dram_alone_blocks", NULL,
	       "Sealed blocks neither on SSD nor on their way to it."),
	FIGURE(dram_segments, "segments", NULL, "DRAM segments in use."),
	FIGURE(dram_retired, "retired_segments", NULL,
	       "DRAM segments that clients still have mapped."),
	FIGURE(index_bytes, "index_bytes", NULL, "Size of the index."),
	{"ssd_degraded", "ssd_degraded", NULL,
	 "1 while the SSD tier is degraded.",
	 offsetof(struct kv_cache_stats, ssd_degraded), BOOL},
	FIGURE(stuck, "stuck_requests", NULL, "SSD requests that do not end."),
	FIGURE(ssd_unusable_files, "unusable_files", NULL,
	       "Segment files whose change of slot size failed and is "
	       "retried."),
	FIGURE(resize_failures, "resize_failures_total", NULL,
	       "Changes of a segment file's slot size that failed."),
	FIGURE(bad_slots, "bad_slots", NULL,
	       "SSD slots out of use until the next mount."),
	FIGURE(scrub_percent, "scrub_percent", NULL,
	       "How far this pass of the scrub is."),
	FIGURE(lookups.asked, "asked_blocks_total", NULL,
	       "Blocks that match and probe asked for."),
	FIGURE(lookups.found, "found_blocks_total", NULL,
	       "Blocks that match and probe found."),
	FIGURE(lookups.hits_dram, "hits_total", DRAM,
	       "Blocks that acquire found."),
	FIGURE(lookups.hits_ssd, "hits_total", SSD, NULL),
	FIGURE(lookups.misses, "misses_total", NULL,
	       "Blocks that match, probe or acquire did not find."),
	FIGURE(sealed, "sealed_total", NULL, "Blocks sealed."),
	FIGURE(conflicts, "conflicts_total", NULL,
	       "Saves of a present key with other bytes."),
	FIGURE(corrupt, "corrupt_blocks_total", NULL,
	       "Blocks that failed their digest."),
	FIGURE(evicted_dram, "evictions_total", DRAM ",reason=\"space\"",
	       "Blocks evicted from a tier."),
	FIGURE(evicted_ssd, "evictions_total", SSD ",reason=\"space\"", NULL),
	FIGURE(moved_ssd, "moved_blocks_total", NULL,
	       "Blocks moved from one file on SSD to another, to make place."),
	FIGURE(evicted_last, "evicted_last_total", NULL,
	       "Blocks evicted from DRAM that were on no SSD."),
	FIGURE(removed, "removed_total", NULL, "Blocks removed by users."),
	FIGURE(dropped_saves, "dropped_saves_total", NULL,
	       "Saves refused for want of room."),
	FIGURE(bytes_read_ssd, "ssd_read_bytes_total", NULL,
	       "Bytes read from SSD."),
	FIGURE(bytes_written_ssd, "ssd_written_bytes_total", NULL,
	       "Bytes written to SSD."),
	FIGURE(commits, "commits_total", NULL, "Index transactions."),
	FIGURE(io_errors, "io_errors_total", NULL, "Failed SSD requests."),
	FIGURE(ssd_outages, "ssd_outages_total", NULL,
	       "Times the SSD went offline."),
	FIGURE(unwritten_orphans, "unwritten_total", "reason=\"parent\"",
	       "Times a block was not written to SSD unasked."),
	FIGURE(unwritten_budget, "unwritten_total", "reason=\"budget\"", NULL),
	FIGURE(unwritten_quota, "unwritten_total", "reason=\"quota\"", NULL),
	{NULL, "unwritten_total", "reason=\"shed\"", NULL,
	 offsetof(struct kv_cache_stats, dropped_saves)},
	FIGURE(refused_rate, "refused_rate_total", NULL,
	       "Saves refused because their space was beyond its rate."),
	FIGURE(prefetched, "prefetched_bytes_total", NULL,
	       "Bytes that prefetches read from SSD."),
	FIGURE(prefetch_used, "prefetch_used_bytes_total", NULL,
	       "Prefetched bytes that were used."),
	FIGURE(prefetch_unused, "prefetch_unused_bytes_total", NULL,
	       "Prefetched bytes that were evicted unused."),
	FIGURE(scrubbed, "scrubbed_bytes_total", NULL,
	       "Bytes re-read by the scrub."),
	FIGURE(scrub_passes, "scrub_passes_total", NULL,
	       "Whole passes of the scrub."),
	FIGURE(scrub_corrupt, "scrub_corrupt_total", NULL,
	       "Corrupt blocks that the scrub found."),
	FIGURE(remembered, "remembered_total", NULL,
	       "Blocks that came in and were known from before."),
	FIGURE(victims_ended, "victims_ended_total", NULL,
	       "Evicted blocks of conversations that had ended."),
	FIGURE(victims_refused, "victims_refused_total", NULL,
	       "Blocks passed over at eviction because they were in use."),
	{"estimated0", "estimated_hit_rate", "dram=\"1x\"",
	 "Hit rate that so many times the DRAM would give.",
	 offsetof(struct kv_cache_stats, estimated[0]), RATIO},
	{"estimated1", "estimated_hit_rate", "dram=\"2x\"", NULL,
	 offsetof(struct kv_cache_stats, estimated[1]), RATIO},
	{"estimated2", "estimated_hit_rate", "dram=\"4x\"", NULL,
	 offsetof(struct kv_cache_stats, estimated[2]), RATIO},
	{"estimated3", "estimated_hit_rate", "dram=\"inf\"", NULL,
	 offsetof(struct kv_cache_stats, estimated[3]), RATIO},
	TEXT_ONLY(dram_segments_max),
	TEXT_ONLY(dram_huge),
	TEXT_ONLY(ssd_files),
	TEXT_ONLY(blocks),
};

#define C(field) offsetof(struct kv_control_counts, field)

static const struct figure control_figures[] = {
	{NULL, "connections", NULL, "Clients on the control socket.",
	 C(connections)},
	{NULL, "connections_refused_total", NULL, "Connections over a limit.",
	 C(refused)},
	{NULL, "messages_total", NULL, "Control messages.", C(messages)},
	{NULL, "protocol_errors_total", NULL,
	 "Connections closed for a bad message.", C(protocol_errors)},
	{NULL, "stray_releases_total", NULL,
	 "Releases of blocks that were not held.", C(stray_releases)},
	{NULL, "forced_releases_total", NULL,
	 "Leases of clients that ended without a release.", C(forced_releases)},
};

#define R(field) offsetof(struct kv_remote_stats, field)
#define CALLS(call, text, i)                                           \
	{                                                              \
		NULL, "remote_calls_total", "call=\"" call "\"", text, \
			R(calls[i])                                    \
	}
#define SECONDS(call, text, i)                                           \
	{                                                                \
		NULL, "remote_seconds_total", "call=\"" call "\"", text, \
			R(ns[i]), NS                                     \
	}

static const struct figure remote_figures[] = {
	{NULL, "remote_open", NULL,
	 "0 while the backend of the remote tier is not used.", R(open), BOOL},
	CALLS("head", "Calls of the backend.", KV_REMOTE_HEAD),
	CALLS("get", NULL, KV_REMOTE_GET),
	CALLS("put", NULL, KV_REMOTE_PUT),
	CALLS("delete", NULL, KV_REMOTE_DELETE),
	SECONDS("head", "Seconds that calls of the backend took.",
		KV_REMOTE_HEAD),
	SECONDS("get", NULL, KV_REMOTE_GET),
	SECONDS("put", NULL, KV_REMOTE_PUT),
	SECONDS("delete", NULL, KV_REMOTE_DELETE),
	{NULL, "remote_got_bytes_total", NULL,
	 "Bytes that came from the backend.", R(got_bytes)},
	{NULL, "remote_put_bytes_total", NULL,
	 "Bytes handed over to the backend.", R(put_bytes)},
	{NULL, "remote_failed_total", NULL,
	 "Calls that failed, or took too long.", R(failed)},
	{NULL, "remote_retried_total", NULL, "Calls that were sent again.",
	 R(retried)},
	{NULL, "remote_late_total", NULL, "Calls that took too long.", R(late)},
	{NULL, "remote_refused_total", NULL,
	 "Calls that were refused for one object.", R(refused)},
	{NULL, "remote_damaged_total", NULL, "Objects that were damaged.",
	 R(damaged)},
	{NULL, "remote_dropped_total", NULL,
	 "Blocks that were not handed over at once.", R(dropped)},
	{NULL, "remote_offering", NULL, "Spaces that are being offered.",
	 R(offering)},
	{NULL, "remote_tenants_closed", NULL,
	 "Tenants for whom the backend is not used.", R(tenants_closed)},
	{NULL, "remote_full", NULL,
	 "Tenants for which the backend takes no blocks.", R(full)},
	{NULL, "remote_lent_bytes", NULL, "Memory of calls in flight.",
	 R(lent_bytes)},
};

char *kv_text_close(FILE *f, char **text)
{
	if (fclose(f) != 0)
		free(kv_steal(*text));
	return *text;
}

/* ---- the text for people ---- */

static double mib(uint64_t bytes)
{
	return (double)bytes / (1 << 20);
}

/* Return the value of the figure whose key is the @n bytes at @key. */
static uint64_t value_of(const struct kv_cache_stats *s, const char *key,
			 size_t n)
{
	for (size_t i = 0; i < KV_ARRAY_LEN(figures); i++)
		if (figures[i].key && strlen(figures[i].key) == n &&
		    memcmp(figures[i].key, key, n) == 0)
			return *(const uint64_t *)((const char *)s +
						   figures[i].at);
	return 0;
}

/*
 * Print @format, replacing {KEY} by a figure, {KEY!} by its MiB, {KEY/KEY} by a
 * percentage, and {KEY/KEY!} by a percentage with one decimal.
 */
static void print_figures(FILE *f, const struct kv_cache_stats *s,
			  const char *format)
{
	uint64_t value, whole;
	size_t n, rest;

	for (; *format; format++) {
		if (*format != '{') {
			fputc(*format, f);
			continue;
		}
		format++;
		n = strcspn(format, "/!}");
		value = value_of(s, format, n);
		format += n;
		if (*format == '/') {
			rest = strcspn(++format, "!}");
			whole = value_of(s, format, rest);
			format += rest;
			fprintf(f, "%.*f%%", *format == '!',
				whole > 0
					? 100.0 * (double)value / (double)whole
					: 0.0);
		} else if (*format == '!') {
			fprintf(f, "%.1f", mib(value));
		} else {
			fprintf(f, "%llu", (ull)value);
		}
		format += *format == '!';
	}
}

static const char stats_format[] =
	"{dram_used!} of {dram_total!} MiB ({dram_used/dram_total}), "
	"{dram_blocks} blocks\n"
	"          {dram_segments} of {dram_segments_max} segments, "
	"{dram_huge} in 2 MiB pages, {dram_retired} retired\n"
	"ssd       {ssd_used!} of {ssd_total!} MiB ({ssd_used/ssd_total}), "
	"{ssd_blocks} blocks, ";
static const char more_format[] =
	"          {ssd_files} segment files, {ssd_unusable_files} of them "
	"unusable; index {index_bytes!} MiB\n"
	"blocks    {blocks} in {spaces} spaces; {dirty_blocks} not yet on "
	"SSD, {dram_alone} in dram alone\n"
	"held      {leases} leased, {pinned} pinned ({pinned_bytes!} MiB of "
	"dram) with {snapshots} snapshots, {saving} being saved\n"
	"asked     {lookups.asked} by match and probe, {lookups.found} found "
	"({lookups.found/lookups.asked!})\n"
	"hits      {lookups.hits_dram} from dram, {lookups.hits_ssd} from "
	"ssd; {lookups.misses} misses\n"
	"sealed    {sealed}; {conflicts} conflicts, {dropped_saves} saves "
	"dropped\n"
	"gone      {removed} removed; evicted: {evicted_dram} from dram, of "
	"which {evicted_last} were nowhere else, {evicted_ssd} from ssd\n";
static const char evict_format[] =
	" {remembered} known from before, {victims_ended} of ended chains, "
	"{victims_refused} passed over\n";
static const char ssd_format[] =
	"not on ssd {unwritten_orphans} for want of their parent, "
	"{unwritten_budget} of budget, {unwritten_quota} of quota\n"
	"prefetch  {prefetched!} MiB, used {prefetch_used!}, evicted unused "
	"{prefetch_unused!}; {refused_rate} saves beyond their rate\n"
	"ssd i/o   {bytes_read_ssd!} MiB read, {bytes_written_ssd!} MiB "
	"written, {commits} commits\n"
	"health    {io_errors} I/O errors, {stuck} stuck, {ssd_outages} "
	"outages, {corrupt} corrupt blocks, {bad_slots} bad slots\n"
	"scrub     {scrubbed!} MiB, {scrub_passes} passes, the last ended: ";
static const char scrub_format[] =
	"; this one {scrub_percent}%; {scrub_corrupt} corrupt\n";

/* The first line ends with the state, which --health reads. */
static void print_remote(FILE *f, const struct kv_remote_stats *s)
{
	static const char *const names[KV_REMOTE_CALLS] = {
		[KV_REMOTE_HEAD] = "head",
		[KV_REMOTE_GET] = "get",
		[KV_REMOTE_PUT] = "put",
		[KV_REMOTE_DELETE] = "delete"};

	fprintf(f,
		"remote    %s: %s\n"
		"          call        number    ms each          MiB\n",
		s->url,
		!s->open  ? "closed"
		: s->full ? "takes no blocks"
			  : "open");
	for (int i = 0; i < KV_REMOTE_CALLS; i++) {
		fprintf(f, "          %-6s %11llu %10.1f", names[i],
			(ull)s->calls[i],
			s->calls[i] ? (double)s->ns[i] / 1e6 / s->calls[i] : 0);
		if (i == KV_REMOTE_GET || i == KV_REMOTE_PUT)
			fprintf(f, " %12.1f",
				mib(i == KV_REMOTE_GET ? s->got_bytes
						       : s->put_bytes));
		fputc('\n', f);
	}
	fprintf(f,
		"          %llu failed, %llu of them late; %llu retried, %llu "
		"refused, %llu damaged\n"
		"          %llu not handed over at once, %llu spaces being "
		"offered; closed for %llu tenants; %.1f MiB in flight\n",
		(ull)s->failed, (ull)s->late, (ull)s->retried, (ull)s->refused,
		(ull)s->damaged, (ull)s->dropped, (ull)s->offering,
		(ull)s->tenants_closed, mib(s->lent_bytes));
	if (s->failure[0])
		fprintf(f, "          the last failure: %s\n", s->failure);
}

char *kv_stats_text(struct kv_cache *cache)
{
	struct kv_remote_stats remote;
	struct kv_cache_stats s;
	char *text = NULL, ended[32] = "never";
	size_t n;
	FILE *f = open_memstream(&text, &n);
	struct tm tm;
	time_t at;

	if (!f)
		return NULL;
	kv_cache_stats(cache, &s);
	at = (time_t)(s.scrub_ended_ns / 1000000000);
	if (at && gmtime_r(&at, &tm))
		strftime(ended, sizeof(ended), "%FT%TZ", &tm);
	fputs("dram      ", f);
	print_figures(f, &s, stats_format);
	fprintf(f, "%s\n", s.ssd_state ? s.ssd_state : "off");
	print_figures(f, &s, more_format);
	fprintf(f, "evict     %s: weighs %s;", s.evict, s.evict_weighs);
	print_figures(f, &s, evict_format);
	fprintf(f,
		"estimate  hit rate with this much dram %.3f, twice %.3f, 4 "
		"times %.3f, any %.3f\n",
		s.estimated[0], s.estimated[1], s.estimated[2], s.estimated[3]);
	print_figures(f, &s, ssd_format);
	fputs(ended, f);
	print_figures(f, &s, scrub_format);
	if (kv_remote_stats(cache, &remote))
		print_remote(f, &remote);
	return kv_text_close(f, &text);
}

/* ---- metrics ---- */

static void put_head(FILE *f, const char *name, const char *help)
{
	const size_t n = strlen(name);
	const bool counter = n > 6 && strcmp(name + n - 6, "_total") == 0;

	fprintf(f, "# HELP kvfs_%s %s\n# TYPE kvfs_%s %s\n", name, help, name,
		counter ? "counter" : "gauge");
}

/* Print the figures in @table of each of @n structures of @size bytes; @labels
 * (or NULL) are the labels of the structures. */
static void put_figures(FILE *f, const struct figure *table, size_t rows,
			const void *all, size_t n, size_t size,
			char *const *labels)
{
	for (size_t i = 0; i < rows && n > 0; i++) {
		const struct figure *row = &table[i];

		if (!row->metric)
			continue;
		if (row->help)
			put_head(f, row->metric, row->help);
		for (size_t k = 0; k < n; k++) {
			const void *at = (const char *)all + k * size + row->at;

			fprintf(f, "kvfs_%s", row->metric);
			if (labels || row->label)
				fprintf(f, "{%s%s%s}", labels ? labels[k] : "",
					labels && row->label ? "," : "",
					row->label ? row->label : "");
			if (row->type == RATIO)
				fprintf(f, " %.4f\n", *(const double *)at);
			else if (row->type == NS)
				fprintf(f, " %.6f\n",
					(double)*(const uint64_t *)at / 1e9);
			else
				fprintf(f, " %llu\n",
					row->type == BOOL
						? (ull) * (const bool *)at
						: (ull) * (const uint64_t *)at);
		}
	}
}

/* ---- spaces ---- */

#define I(field) offsetof(struct kv_space_info, field)

static const struct figure space_figures[] = {
	{NULL, "space_blocks", NULL, "Blocks of a space.", I(blocks)},
	{NULL, "space_bytes", DRAM, "Bytes that a space holds in a tier.",
	 I(bytes_dram)},
	{NULL, "space_bytes", SSD, NULL, I(bytes_ssd)},
	{NULL, "space_quota_bytes", DRAM,
	 "The most that a space may hold in a tier; 0: no limit.",
	 I(quota.quota_dram)},
	{NULL, "space_quota_bytes", SSD, NULL, I(quota.quota_ssd)},
	{NULL, "space_asked_blocks_total", NULL,
	 "As asked_blocks_total, of a space.", I(lookups.asked)},
	{NULL, "space_found_blocks_total", NULL,
	 "As found_blocks_total, of a space.", I(lookups.found)},
	{NULL, "space_hits_total", DRAM, "As hits_total, of a space.",
	 I(lookups.hits_dram)},
	{NULL, "space_hits_total", SSD, NULL, I(lookups.hits_ssd)},
	{NULL, "space_misses_total", NULL, "As misses_total, of a space.",
	 I(lookups.misses)},
};

static int by_bytes(const void *a, const void *b)
{
	const struct kv_space_info *x = a, *y = b;
	uint64_t of_x = x->bytes_dram + x->bytes_ssd;
	uint64_t of_y = y->bytes_dram + y->bytes_ssd;

	return of_x < of_y ? 1 : of_x > of_y ? -1 : x->id > y->id ? 1 : -1;
}

/* Return the label space="NAME", or NULL if memory is short.  Caller frees. */
static char *label_of(const char *name)
{
	char *label = NULL;
	size_t n;
	FILE *f = open_memstream(&label, &n);

	if (!f)
		return NULL;
	fputs("space=\"", f);
	for (; *name != '\0'; name++)
		if (*name == '\n')
			fputs("\\n", f);
		else if (*name == '"' || *name == '\\')
			fprintf(f, "\\%c", *name);
		else
			fputc(*name, f);
	fputc('"', f);
	return kv_text_close(f, &label);
}

/* Print the figures of the largest spaces that @reader may read, and under the
 * name OTHERS the sum of the other spaces.  A space called OTHERS is in that sum. */
static void put_spaces(FILE *f, struct kv_cache *cache,
		       const struct kv_rules *rules,
		       const struct kv_caller *reader)
{
	_cleanup_(kv_freep) struct kv_space_info *all = NULL;
	struct kv_space_info rest = {0};
	struct kv_space *space;
	char *labels[SPACES_MAX + 1] = {0};
	size_t n = 0, room = 0, kept = 0, i;
	uint32_t id = 0;

	while ((space = kv_space_next(cache, id))) {
		struct kv_space_info info = kv_space_stat(cache, space);

		kv_space_put(space);
		id = info.id;
		if (!kv_rules_operator(rules, reader->uid) &&
		    !kv_access_ok(rules, &info, reader, R_OK))
			continue;
		if (kv_array_grow(&all, &room, n + 1, sizeof(*all)) < 0)
			return;
		all[n++] = info;
	}
	if (n > 0)
		qsort(all, n, sizeof(*all), by_bytes);
	for (i = 0; i < n; i++) {
		space = kept < SPACES_MAX ? kv_space_by_id(cache, all[i].id)
					  : NULL;
		labels[kept] =
			space && strcmp(kv_space_name(space), OTHERS) != 0
				? label_of(kv_space_name(space))
				: NULL;
		kv_space_put(space);
		if (labels[kept]) {
			all[kept++] = all[i];
			continue;
		}
		rest.blocks += all[i].blocks;
		rest.bytes_dram += all[i].bytes_dram;
		rest.bytes_ssd += all[i].bytes_ssd;
		rest.quota.quota_dram += all[i].quota.quota_dram;
		rest.quota.quota_ssd += all[i].quota.quota_ssd;
		rest.lookups.asked += all[i].lookups.asked;
		rest.lookups.found += all[i].lookups.found;
		rest.lookups.hits_dram += all[i].lookups.hits_dram;
		rest.lookups.hits_ssd += all[i].lookups.hits_ssd;
		rest.lookups.misses += all[i].lookups.misses;
	}
	if (kept < n && (labels[kept] = label_of(OTHERS)))
		all[kept++] = rest;
	put_figures(f, space_figures, KV_ARRAY_LEN(space_figures), all, kept,
		    sizeof(*all), labels);
	while (kept > 0)
		free(labels[--kept]);
}

char *kv_metrics_text(struct kv_cache *cache,
		      const struct kv_control_counts *control,
		      const struct kv_rules *rules,
		      const struct kv_caller *reader)
{
	struct kv_remote_stats remote;
	struct kv_cache_stats s;
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	if (!f)
		return NULL;
	kv_cache_stats(cache, &s);
	put_figures(f, figures, KV_ARRAY_LEN(figures), &s, 1, 0, NULL);
	put_head(f, "scrub_ended_seconds",
		 "When the last whole pass of the scrub ended, in Unix time; "
		 "0: never.");
	fprintf(f, "kvfs_scrub_ended_seconds %llu\n",
		(ull)(s.scrub_ended_ns / 1000000000));
	put_head(f, "eviction_policy", "1 for the policy in use.");
	fprintf(f, "kvfs_eviction_policy{name=\"%s\"} 1\n", s.evict);
	put_figures(f, remote_figures, KV_ARRAY_LEN(remote_figures), &remote,
		    kv_remote_stats(cache, &remote), 0, NULL);
	put_spaces(f, cache, rules, reader);
	put_figures(f, control_figures, KV_ARRAY_LEN(control_figures), control,
		    1, 0, NULL);
	return kv_text_close(f, &text);
}

char *kv_tenant_text(struct kv_cache *cache, uint32_t uid)
{
	const struct kv_tenant_info info = kv_tenant_stat(cache, uid);
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	if (!f)
		return NULL;
	fprintf(f,
		"spaces=%llu\nblocks=%llu\nbytes.dram=%llu\nbytes.ssd=%llu\n",
		(ull)info.spaces, (ull)info.blocks, (ull)info.bytes_dram,
		(ull)info.bytes_ssd);
#define PRINT(name, field) fprintf(f, name "=%llu\n", (ull)info.quota.field);
	KV_QUOTAS(PRINT)
	return kv_text_close(f, &text);
}
