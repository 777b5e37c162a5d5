/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.c - figures of the cache, as text for people and for Prometheus.
 *
 * OWNS      nothing.
 *
 * LOCKING   none: kv_cache_stats() returns a copy of the figures.
 */
#include "common/array.h"
#include "fs/base/stats.h"

#include <jansson.h>

#define SPACES_MAX 100u /* most spaces that have their own metrics */
#define OTHERS "/other" /* has a slash, so it is no space's name */
#define FALLBACK "\nfallback="

typedef unsigned long long ull; /* for %llu */

/* One figure: a row of a table.  A metric is a histogram by its type, a counter if its
 * name ends in _total, else a gauge. */
struct figure {
	const char *metric; /* name of the metric without "kvfs_" */
	const char *label;  /* Prometheus label, such as tier="dram"; or NULL */
	const char *help;   /* help text; NULL: same metric as the row before */
	size_t at;	    /* offset of the value in the struct of figures */
	/* TIMES, AGES, USES: a histogram of nanoseconds, seconds, numbers. */
	enum { U64, BOOL, RATIO, NS, TIMES, AGES, USES } type;
};

#define S(field) offsetof(struct kv_cache_stats, field)
#define FIGURE(field, name, tag, text)    \
	{                                 \
		name, tag, text, S(field) \
	}
#define CAUSE(cause, tag) \
	FIGURE(causes[cause], "misses_total", "cause=\"" tag "\"", NULL)
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
	{"ssd_degraded", NULL, "1 while the SSD tier is degraded.",
	 S(ssd_degraded), BOOL},
	FIGURE(stuck, "stuck_requests", NULL, "SSD requests that do not end."),
	FIGURE(ssd_unusable_files, "unusable_files", NULL,
	       "Segment files whose change of slot size failed and is "
	       "retried."),
	FIGURE(resize_failures, "resize_failures_total", NULL,
	       "Changes of a segment file's slot size that failed."),
	FIGURE(bad_slots, "bad_slots", NULL,
	       "SSD slots out of use until the next mount."),
	FIGURE(scrub_percent, "scrub_percent", NULL,
	       "Percentage of the store that this pass of the scrub has read."),
	FIGURE(lookups.asked, "asked_blocks_total", NULL,
	       "Blocks that match and probe asked for."),
	FIGURE(lookups.found, "found_blocks_total", NULL,
	       "Blocks that match and probe found."),
	FIGURE(lookups.hits_dram, "hits_total", DRAM,
	       "Blocks that acquire found."),
	FIGURE(lookups.hits_ssd, "hits_total", SSD, NULL),
	FIGURE(hit_tokens, "hit_tokens_total", NULL,
	       "Tokens of the blocks that acquire found."),
	FIGURE(causes[KV_CAUSE_NONE], "misses_total", "cause=\"other\"",
	       "Blocks that match, probe or acquire did not find: the first of "
	       "a "
	       "look-up by its cause, the others as cause=\"other\"."),
	CAUSE(KV_CAUSE_UNSEEN, "unseen"),
	CAUSE(KV_CAUSE_EVICTED_DRAM, "evicted\",tier=\"dram"),
	CAUSE(KV_CAUSE_EVICTED_SSD, "evicted\",tier=\"ssd"),
	CAUSE(KV_CAUSE_REMOVED, "removed"),
	CAUSE(KV_CAUSE_EXPIRED, "expired"),
	CAUSE(KV_CAUSE_QUOTA, "refused\",reason=\"quota"),
	CAUSE(KV_CAUSE_RATE, "refused\",reason=\"rate"),
	CAUSE(KV_CAUSE_ROOM, "refused\",reason=\"room"),
	CAUSE(KV_CAUSE_PARENT, "refused\",reason=\"parent"),
	CAUSE(KV_CAUSE_BUDGET, "refused\",reason=\"budget"),
	CAUSE(KV_CAUSE_DAMAGED, "damaged"),
	CAUSE(KV_CAUSE_OFFLINE, "offline"),
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
	FIGURE(expired, "expired_total", NULL,
	       "Blocks removed because they were unused for their ttl."),
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
	       "Blocks that were not written to SSD, by reason."),
	FIGURE(unwritten_budget, "unwritten_total", "reason=\"budget\"", NULL),
	FIGURE(unwritten_quota, "unwritten_total", "reason=\"quota\"", NULL),
	{"unwritten_total", "reason=\"shed\"", NULL, S(dropped_saves)},
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
	       "New blocks whose earlier eviction was remembered."),
	FIGURE(victims_ended, "victims_ended_total", NULL,
	       "Evicted blocks of conversations that had ended."),
	FIGURE(victims_refused, "victims_refused_total", NULL,
	       "Blocks passed over at eviction because they were in use."),
	{"estimated_hit_rate", "dram=\"1x\"",
	 "Estimated hit rate with so many times the DRAM.", S(estimated[0]),
	 RATIO},
	{"estimated_hit_rate", "dram=\"2x\"", NULL, S(estimated[1]), RATIO},
	{"estimated_hit_rate", "dram=\"4x\"", NULL, S(estimated[2]), RATIO},
	{"estimated_hit_rate", "dram=\"inf\"", NULL, S(estimated[3]), RATIO},
	{"ssd_seconds", "op=\"read\"",
	 "Time of requests at the SSD, and of commits to the index.",
	 S(ssd_times[0]), TIMES},
	{"ssd_seconds", "op=\"write\"", NULL, S(ssd_times[1]), TIMES},
	{"ssd_seconds", "op=\"sync\"", NULL, S(ssd_times[2]), TIMES},
	{"ssd_seconds", "op=\"commit\"", NULL, S(commit_times), TIMES},
	{"hit_age_seconds", DRAM,
	 "Time since the last use, or the save, of blocks that acquire found.",
	 S(hit_age[0]), AGES},
	{"hit_age_seconds", SSD, NULL, S(hit_age[1]), AGES},
	{"evicted_age_seconds", DRAM,
	 "Time since the last use, or the save, of evicted blocks.",
	 S(evicted_age[0]), AGES},
	{"evicted_age_seconds", SSD, NULL, S(evicted_age[1]), AGES},
	{"evicted_uses", DRAM, "Uses that evicted blocks have had.",
	 S(evicted_uses[0]), USES},
	{"evicted_uses", SSD, NULL, S(evicted_uses[1]), USES},
};

#define C(field) offsetof(struct kv_control_counts, field)

static const struct figure control_figures[] = {
	{"connections", NULL, "Clients on the control socket.", C(connections)},
	{"connections_refused_total", NULL, "Connections over a limit.",
	 C(refused)},
	{"messages_total", NULL, "Control messages.", C(messages)},
	{"protocol_errors_total", NULL, "Connections closed for a bad message.",
	 C(protocol_errors)},
	{"stray_releases_total", NULL, "Releases of blocks that were not held.",
	 C(stray_releases)},
	{"forced_releases_total", NULL,
	 "Leases of clients that ended without a release.", C(forced_releases)},
	{"request_seconds", "type=\"probe\"",
	 "Time from a message of a client to the last reply.", C(probe_times),
	 TIMES},
	{"request_seconds", "type=\"acquire\"", NULL, C(acquire_times), TIMES},
	{"request_seconds", "type=\"save\"", NULL, C(save_times), TIMES},
};

#define R(field) offsetof(struct kv_remote_stats, field)
#define CALLS(call, text, i)                                                 \
	{                                                                    \
		"remote_calls_total", "call=\"" call "\"", text, R(calls[i]) \
	}
#define SECONDS(call, text, i)                                               \
	{                                                                    \
		"remote_seconds_total", "call=\"" call "\"", text, R(ns[i]), \
			NS                                                   \
	}

static const struct figure remote_figures[] = {
	{"remote_open", NULL,
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
	{"remote_got_bytes_total", NULL, "Bytes that came from the backend.",
	 R(got_bytes)},
	{"remote_put_bytes_total", NULL, "Bytes handed over to the backend.",
	 R(put_bytes)},
	{"remote_failed_total", NULL, "Calls that failed, or took too long.",
	 R(failed)},
	{"remote_retried_total", NULL, "Calls that were sent again.",
	 R(retried)},
	{"remote_late_total", NULL, "Calls that took too long.", R(late)},
	{"remote_refused_total", NULL,
	 "Calls that were refused for one object.", R(refused)},
	{"remote_damaged_total", NULL, "Objects that were damaged.",
	 R(damaged)},
	{"remote_dropped_total", NULL,
	 "Blocks that could not be handed over at once.", R(dropped)},
	{"remote_offering", NULL, "Spaces that are being offered.",
	 R(offering)},
	{"remote_tenants_closed", NULL,
	 "Tenants for whom the backend is not used.", R(tenants_closed)},
	{"remote_full", NULL, "Tenants for which the backend takes no blocks.",
	 R(full)},
	{"remote_lent_bytes", NULL, "Memory of calls in flight.",
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

static double percent(uint64_t part, uint64_t whole)
{
	return whole > 0 ? 100.0 * (double)part / (double)whole : 0.0;
}

/* End the first line with the remote tier's state, which --health reads. */
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
	_cleanup_(kv_freep) char *config = kv_cache_describe(cache);
	char *text = NULL, ended[32] = "never";
	const char *line;
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
	fprintf(f,
		"dram      %.1f of %.1f MiB (%.0f%%), %llu blocks\n"
		"          %llu of %llu segments, %llu in 2 MiB pages, %llu "
		"retired\n"
		"ssd       %.1f of %.1f MiB (%.0f%%), %llu blocks, %s\n",
		mib(s.dram_used), mib(s.dram_total),
		percent(s.dram_used, s.dram_total), (ull)s.dram_blocks,
		(ull)s.dram_segments, (ull)s.dram_segments_max,
		(ull)s.dram_huge, (ull)s.dram_retired, mib(s.ssd_used),
		mib(s.ssd_total), percent(s.ssd_used, s.ssd_total),
		(ull)s.ssd_blocks, s.ssd_state ? s.ssd_state : "off");
	fprintf(f,
		"          %llu segment files, %llu of them unusable; index "
		"%.1f MiB\n"
		"blocks    %llu in %llu spaces; %llu not yet on SSD, %llu in "
		"dram alone\n"
		"held      %llu leased, %llu pinned (%.1f MiB of dram) with "
		"%llu snapshots, %llu being saved\n"
		"asked     %llu by match and probe, %llu found (%.1f%%)\n"
		"hits      %llu from dram, %llu from ssd; %llu misses\n"
		"sealed    %llu; %llu conflicts, %llu saves dropped\n"
		"gone      %llu removed, %llu expired; evicted: %llu from "
		"dram, of which "
		"%llu were nowhere else, %llu from ssd\n",
		(ull)s.ssd_files, (ull)s.ssd_unusable_files, mib(s.index_bytes),
		(ull)s.blocks, (ull)s.spaces, (ull)s.dirty_blocks,
		(ull)s.dram_alone, (ull)s.leases, (ull)s.pinned,
		mib(s.pinned_bytes), (ull)s.snapshots, (ull)s.saving,
		(ull)s.lookups.asked, (ull)s.lookups.found,
		percent(s.lookups.found, s.lookups.asked),
		(ull)s.lookups.hits_dram, (ull)s.lookups.hits_ssd,
		(ull)s.lookups.misses, (ull)s.sealed, (ull)s.conflicts,
		(ull)s.dropped_saves, (ull)s.removed, (ull)s.expired,
		(ull)s.evicted_dram, (ull)s.evicted_last, (ull)s.evicted_ssd);
	fprintf(f,
		"evict     %s: weighs %s; %llu known from before, %llu of "
		"ended chains, %llu passed over\n",
		s.evict, s.evict_weighs, (ull)s.remembered,
		(ull)s.victims_ended, (ull)s.victims_refused);
	fprintf(f,
		"estimate  hit rate with this much dram %.3f, twice %.3f, 4 "
		"times %.3f, any %.3f\n",
		s.estimated[0], s.estimated[1], s.estimated[2], s.estimated[3]);
	fprintf(f,
		"not on ssd %llu for want of their parent, %llu of budget, "
		"%llu of quota\n"
		"prefetch  %.1f MiB, used %.1f, evicted unused %.1f; %llu "
		"saves beyond their rate\n"
		"ssd i/o   %.1f MiB read, %.1f MiB written, %llu commits\n"
		"health    %llu I/O errors, %llu stuck, %llu outages, %llu "
		"corrupt blocks, %llu bad slots\n"
		"scrub     %.1f MiB, %llu passes, the last ended: %s; "
		"this one %llu%%; %llu corrupt\n",
		(ull)s.unwritten_orphans, (ull)s.unwritten_budget,
		(ull)s.unwritten_quota, mib(s.prefetched), mib(s.prefetch_used),
		mib(s.prefetch_unused), (ull)s.refused_rate,
		mib(s.bytes_read_ssd), mib(s.bytes_written_ssd), (ull)s.commits,
		(ull)s.io_errors, (ull)s.stuck, (ull)s.ssd_outages,
		(ull)s.corrupt, (ull)s.bad_slots, mib(s.scrubbed),
		(ull)s.scrub_passes, ended, (ull)s.scrub_percent,
		(ull)s.scrub_corrupt);
	for (line = config; line && (line = strstr(line, FALLBACK));) {
		line += strlen(FALLBACK);
		fprintf(f, "fallback  %.*s\n", (int)strcspn(line, "\n"), line);
	}
	if (kv_remote_stats(cache, &remote))
		print_remote(f, &remote);
	return kv_text_close(f, &text);
}

/* ---- metrics ---- */

static void put_head(FILE *f, const char *name, const char *help,
		     bool histogram)
{
	const size_t n = strlen(name);
	const bool counter = n > 6 && strcmp(name + n - 6, "_total") == 0;

	fprintf(f, "# HELP kvfs_%s %s\n# TYPE kvfs_%s %s\n", name, help, name,
		histogram ? "histogram"
		: counter ? "counter"
			  : "gauge");
}

/* Print a histogram, with buckets that end at powers of 2. */
static void put_histogram(FILE *f, const struct figure *row,
			  const struct kv_histogram *h)
{
	static const struct {
		unsigned first, last; /* the exponents of the buckets */
		double unit;
	} kinds[] = {[TIMES] = {11, 36, 1e9},
		     [AGES] = {0, 24, 1},
		     [USES] = {0, 12, 1}};
	const char *metric = row->metric, *label = row->label;
	const double unit = kinds[row->type].unit;
	uint64_t n = 0;

	for (unsigned i = 0; i <= KV_HISTOGRAM_BITS; i++) {
		const uint64_t end = (UINT64_C(1) << i) - (row->type == USES);

		n += h->at[i];
		if (i >= kinds[row->type].first && i <= kinds[row->type].last)
			fprintf(f, "kvfs_%s_bucket{%s,le=\"%.10g\"} %llu\n",
				metric, label, (double)end / unit, (ull)n);
	}
	fprintf(f,
		"kvfs_%s_bucket{%s,le=\"+Inf\"} %llu\n"
		"kvfs_%s_sum{%s} %.6f\nkvfs_%s_count{%s} %llu\n",
		metric, label, (ull)n, metric, label, (double)h->sum / unit,
		metric, label, (ull)n);
}

/* Print the figures in @table of each of @n structures of @size bytes; @labels
 * (or NULL) are the labels of the structures. */
static void put_figures(FILE *f, const struct figure *table, size_t rows,
			const void *all, size_t n, size_t size,
			char *const *labels)
{
	for (size_t i = 0; i < rows && n > 0; i++) {
		const struct figure *row = &table[i];

		if (row->help)
			put_head(f, row->metric, row->help, row->type >= TIMES);
		for (size_t k = 0; k < n; k++) {
			const void *at = (const char *)all + k * size + row->at;

			if (row->type >= TIMES) {
				put_histogram(f, row, at);
				continue;
			}
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
	{"space_blocks", NULL, "Blocks of a space.", I(blocks)},
	{"space_bytes", DRAM, "Bytes that a space holds in a tier.",
	 I(bytes_dram)},
	{"space_bytes", SSD, NULL, I(bytes_ssd)},
	{"space_quota_bytes", DRAM,
	 "The most that a space may hold in a tier; 0: no limit.",
	 I(quota.quota_dram)},
	{"space_quota_bytes", SSD, NULL, I(quota.quota_ssd)},
	{"space_guaranteed_bytes", DRAM,
	 "Reserve of a space, scaled down if the tier is too small for all.",
	 I(guaranteed_dram)},
	{"space_guaranteed_bytes", SSD, NULL, I(guaranteed_ssd)},
	{"space_asked_blocks_total", NULL, "asked_blocks_total of a space.",
	 I(lookups.asked)},
	{"space_found_blocks_total", NULL, "found_blocks_total of a space.",
	 I(lookups.found)},
	{"space_hits_total", DRAM, "hits_total of a space.",
	 I(lookups.hits_dram)},
	{"space_hits_total", SSD, NULL, I(lookups.hits_ssd)},
	{"space_misses_total", NULL, "misses_total of a space.",
	 I(lookups.misses)},
};

static int by_bytes(const void *a, const void *b)
{
	const struct kv_space_info *x = a, *y = b;
	uint64_t of_x = x->bytes_dram + x->bytes_ssd;
	uint64_t of_y = y->bytes_dram + y->bytes_ssd;

	return of_x < of_y ? 1 : of_x > of_y ? -1 : x->id > y->id ? 1 : -1;
}

/* Return the label space="NAME", or NULL if memory is short.  Caller frees.  Label
 * values are UTF-8: in another name each byte above 7f becomes /HH, which is in no
 * name, and so does each control byte but a newline. */
static char *label_of(const char *name)
{
	json_t *text = json_string(name); /* NULL: not UTF-8 */
	const bool utf8 = text;
	char *label = NULL;
	size_t n;
	FILE *f = open_memstream(&label, &n);

	json_decref(text);
	if (!f)
		return NULL;
	fputs("space=\"", f);
	for (; *name != '\0'; name++)
		if (*name == '\n')
			fputs("\\n", f);
		else if (*name == '"' || *name == '\\')
			fprintf(f, "\\%c", *name);
		else if ((!utf8 && *name & 0x80) || (uint8_t)*name < ' ' ||
			 *name == 0x7f)
			fprintf(f, "/%02x", (uint8_t)*name);
		else
			fputc(*name, f);
	fputc('"', f);
	return kv_text_close(f, &label);
}

/* Print the figures of the largest spaces that @reader may read, and under the
 * name OTHERS the sum of the other spaces. */
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
		labels[kept] = space ? label_of(kv_space_name(space)) : NULL;
		kv_space_put(space);
		if (labels[kept]) {
			all[kept++] = all[i];
			continue;
		}
		for (size_t k = 0; k < KV_ARRAY_LEN(space_figures); k++) {
			const size_t at = space_figures[k].at;

			*(uint64_t *)((char *)&rest + at) +=
				*(uint64_t *)((char *)&all[i] + at);
		}
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
		 "0: never.",
		 false);
	fprintf(f, "kvfs_scrub_ended_seconds %llu\n",
		(ull)(s.scrub_ended_ns / 1000000000));
	put_head(f, "eviction_policy", "1 for the policy in use.", false);
	fprintf(f, "kvfs_eviction_policy{name=\"%s\"} 1\n", s.evict);
	put_head(f, "build_info", "1 for the version of the daemon.", false);
	fputs("kvfs_build_info{version=\"" KV_VERSION "\"} 1\n", f);
	put_figures(f, remote_figures, KV_ARRAY_LEN(remote_figures), &remote,
		    kv_remote_stats(cache, &remote), 0, NULL);
	if (reader)
		put_spaces(f, cache, rules, reader);
	put_figures(f, control_figures, KV_ARRAY_LEN(control_figures), control,
		    1, 0, NULL);
	return kv_text_close(f, &text);
}

#define SPACES_LOOK 256u /* ids of spaces examined in one call */

char *kv_spaces_text(struct kv_cache *cache, const struct kv_rules *rules,
		     const struct kv_caller *reader, uint32_t *after,
		     size_t max)
{
	const uint32_t end = *after + KV_MIN(SPACES_LOOK, UINT32_MAX - *after);
	struct kv_space *space;
	char *text = NULL;
	size_t n = 0;
	FILE *f = open_memstream(&text, &n);

	if (!f)
		return NULL;
	while ((space = kv_space_next(cache, *after))) {
		const struct kv_space_info i = kv_space_stat(cache, space);
		const char *name = kv_space_name(space);
		json_t *utf8 = json_string(name); /* NULL: not UTF-8 */

		fflush(f);
		if (i.id > end || n > max) {
			/* Do not tell which ids are of other users' spaces. */
			*after = n > max ? *after : end;
			json_decref(utf8);
			kv_space_put(space);
			return kv_text_close(f, &text);
		}
		*after = i.id;
		if (kv_rules_operator(rules, reader->uid) ||
		    kv_access_ok(rules, &i, reader, R_OK)) {
			fputs("{\"name\": \"", f);
			/* Python's surrogateescape for bytes that are not UTF-8 */
			for (; *name != '\0'; name++)
				if (!utf8 && *name & 0x80)
					fprintf(f, "\\udc%02x", (uint8_t)*name);
				else if ((uint8_t)*name < ' ' || *name == '"' ||
					 *name == '\\')
					fprintf(f, "\\u%04x", *name);
				else
					fputc(*name, f);
			fprintf(f,
				"\", \"uid\": %u, \"gid\": %u, \"mode\": %u, "
				"\"shared\": %s, \"blocks\": %llu, "
				"\"bytes.dram\": %llu, \"bytes.ssd\": %llu, "
				"\"guaranteed.dram\": %llu, "
				"\"guaranteed.ssd\": %llu, \"asked\": %llu, "
				"\"found\": %llu, \"hits.dram\": %llu, "
				"\"hits.ssd\": %llu, \"misses\": %llu",
				i.uid, i.gid, i.mode,
				i.shared ? "true" : "false", (ull)i.blocks,
				(ull)i.bytes_dram, (ull)i.bytes_ssd,
				(ull)i.guaranteed_dram, (ull)i.guaranteed_ssd,
				(ull)i.lookups.asked, (ull)i.lookups.found,
				(ull)i.lookups.hits_dram,
				(ull)i.lookups.hits_ssd, (ull)i.lookups.misses);
#define MEMBER(name, field) \
	fprintf(f, ", \"" name "\": %llu", (ull)i.quota.field);
			KV_QUOTAS(MEMBER)
			fputs("}\n", f);
		}
		json_decref(utf8);
		kv_space_put(space);
	}
	*after = 0;
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
	fprintf(f, "guaranteed.dram=%llu\nguaranteed.ssd=%llu\n",
		(ull)info.guaranteed_dram, (ull)info.guaranteed_ssd);
	return kv_text_close(f, &text);
}
