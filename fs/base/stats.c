/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stats.c - the cache's figures as text.
 *
 * OWNS      nothing.
 *
 * LOCKING   none: the cache answers with a copy.
 */
#include <stdio.h>

#include "fs/base/stats.h"

#define SPACES_MAX 100u /* with a line of their own */
#define OTHERS "other"

typedef unsigned long long ull; /* what %llu wants */

#define REMOTES 8 /* more than there can be */

static double mib(uint64_t bytes)
{
	return (double)bytes / (1 << 20);
}

static double percent(uint64_t part, uint64_t whole)
{
	return whole > 0 ? 100.0 * (double)part / (double)whole : 0.0;
}

static void write_tiers(FILE *f, const struct kv_cache_stats *s)
{
	fprintf(f, "dram      %10.1f of %.1f MiB (%.0f%%), %llu blocks\n",
		mib(s->dram_used), mib(s->dram_total),
		percent(s->dram_used, s->dram_total), (ull)s->dram_blocks);
	fprintf(f,
		"          %llu of %llu segments, %llu in 2 MiB pages, %llu "
		"retired\n",
		(ull)s->dram_segments, (ull)s->dram_segments_max,
		(ull)s->dram_huge, (ull)s->dram_retired);
	fprintf(f, "ssd       %10.1f of %.1f MiB (%.0f%%), %llu blocks, %s\n",
		mib(s->ssd_used), mib(s->ssd_total),
		percent(s->ssd_used, s->ssd_total), (ull)s->ssd_blocks,
		s->ssd_state ? s->ssd_state : "off");
	fprintf(f,
		"          %llu segment files, %llu of them unusable; index "
		"%.1f MiB\n",
		(ull)s->ssd_files, (ull)s->ssd_unusable_files,
		mib(s->index_bytes));
}

static void write_lookups(FILE *f, const struct kv_lookups *l)
{
	fprintf(f, "asked     %llu by match and probe, %llu found (%.1f%%)\n",
		(ull)l->asked, (ull)l->found, percent(l->found, l->asked));
	fprintf(f, "hits      %llu from dram, %llu from ssd; %llu misses\n",
		(ull)l->hits_dram, (ull)l->hits_ssd, (ull)l->misses);
}

static void write_scrub(FILE *f, const struct kv_cache_stats *s)
{
	const time_t at = (time_t)(s->scrub_ended_ns / 1000000000);
	char ended[32] = "never";
	struct tm tm;

	if (at && gmtime_r(&at, &tm))
		strftime(ended, sizeof(ended), "%FT%TZ", &tm);
	fprintf(f,
		"scrub     %.1f MiB, %llu passes, the last ended: %s; this one "
		"%llu%%; %llu corrupt\n",
		mib(s->scrubbed), (ull)s->scrub_passes, ended,
		(ull)s->scrub_percent, (ull)s->scrub_corrupt);
}

static double mean_ms(const struct kv_remote_stats *s, enum kv_remote_call call)
{
	return s->calls[call] ? (double)s->ns[call] / 1e6 / s->calls[call] : 0;
}

static void write_remotes(FILE *f, struct kv_cache *cache)
{
	struct kv_remote_stats all[REMOTES];
	size_t n = kv_remote_stats(cache, all, REMOTES);

	for (size_t i = 0; i < n; i++) {
		const struct kv_remote_stats *s = &all[i];

		fprintf(f,
			"remote    %s: %s; asked %llu (%.1f ms), got %llu "
			"(%.1f ms, %.1f MiB), put %llu (%.1f ms, %.1f MiB); "
			"%llu failed, %llu of them late, %llu damaged, %llu "
			"not handed over at once, %llu spaces offered again; "
			"it has %.1f MiB of memory%s%s\n",
			s->url,
			s->open	   ? "asked"
			: s->there ? "failed too often"
				   : "not there yet",
			(ull)s->calls[KV_REMOTE_EXISTS],
			mean_ms(s, KV_REMOTE_EXISTS),
			(ull)s->calls[KV_REMOTE_GET], mean_ms(s, KV_REMOTE_GET),
			mib(s->got_bytes), (ull)s->calls[KV_REMOTE_PUT],
			mean_ms(s, KV_REMOTE_PUT), mib(s->put_bytes),
			(ull)s->failed, (ull)s->late, (ull)s->damaged,
			(ull)s->dropped, (ull)s->offering, mib(s->lent_bytes),
			s->failure[0] ? "; the last failure: " : "",
			s->failure);
		if (s->helpers || s->refused)
			fprintf(f,
				"helpers   %llu of tenants, %llu of them "
				"unwell; %llu calls found no place\n",
				(ull)s->helpers, (ull)s->helpers_unwell,
				(ull)s->refused);
	}
}

static void write_blocks(FILE *f, const struct kv_cache_stats *s)
{
	fprintf(f,
		"blocks    %llu in %llu spaces; %llu not yet on SSD, %llu in "
		"dram alone\n",
		(ull)s->blocks, (ull)s->spaces, (ull)s->dirty_blocks,
		(ull)s->dram_alone);
	fprintf(f,
		"held      %llu leased, %llu pinned (%.1f MiB of dram) with "
		"%llu snapshots, %llu being saved\n",
		(ull)s->leases, (ull)s->pinned, mib(s->pinned_bytes),
		(ull)s->snapshots, (ull)s->saving);
}

static void write_going(FILE *f, const struct kv_cache_stats *s)
{
	fprintf(f, "sealed    %llu; %llu conflicts, %llu saves dropped\n",
		(ull)s->sealed, (ull)s->conflicts, (ull)s->dropped_saves);
	fprintf(f,
		"gone      %llu removed; evicted: %llu from dram, of which "
		"%llu were nowhere else, %llu from ssd\n",
		(ull)s->removed, (ull)s->evicted_dram, (ull)s->evicted_last,
		(ull)s->evicted_ssd);
	fprintf(f,
		"evict     %s: weighs %s; %llu known from before, %llu of "
		"ended chains, %llu passed over\n",
		s->evict, s->evict_weighs, (ull)s->remembered,
		(ull)s->victims_ended, (ull)s->victims_refused);
	fprintf(f,
		"estimate  hit rate with this much dram %.3f, twice %.3f, 4 "
		"times %.3f, any %.3f\n",
		s->estimated[0], s->estimated[1], s->estimated[2],
		s->estimated[3]);
}

static void write_ssd(FILE *f, const struct kv_cache_stats *s)
{
	fprintf(f,
		"not on ssd %llu for want of their parent, %llu of budget, "
		"%llu of quota\n",
		(ull)s->unwritten_orphans, (ull)s->unwritten_budget,
		(ull)s->unwritten_quota);
	fprintf(f,
		"prefetch  %.1f MiB, used %.1f, evicted unused %.1f; %llu "
		"saves beyond their rate\n",
		mib(s->prefetched), mib(s->prefetch_used),
		mib(s->prefetch_unused), (ull)s->refused_rate);
	fprintf(f, "ssd i/o   %.1f MiB read, %.1f MiB written, %llu commits\n",
		mib(s->bytes_read_ssd), mib(s->bytes_written_ssd),
		(ull)s->commits);
	fprintf(f,
		"health    %llu I/O errors, %llu stuck, %llu outages, %llu "
		"corrupt blocks, %llu bad slots\n",
		(ull)s->io_errors, (ull)s->stuck, (ull)s->ssd_outages,
		(ull)s->corrupt, (ull)s->bad_slots);
}

char *kv_stats_text(struct kv_cache *cache)
{
	struct kv_cache_stats s;
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	if (!f)
		return NULL;
	kv_cache_stats(cache, &s);
	write_tiers(f, &s);
	write_blocks(f, &s);
	write_lookups(f, &s.lookups);
	write_going(f, &s);
	write_ssd(f, &s);
	write_scrub(f, &s);
	write_remotes(f, cache);
	if (fclose(f) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

static void head(FILE *f, const char *name, const char *type, const char *help)
{
	fprintf(f, "# HELP kvfs_%s %s\n# TYPE kvfs_%s %s\n", name, help, name,
		type);
}

static void one(FILE *f, const char *name, const char *type, const char *help,
		uint64_t value)
{
	head(f, name, type, help);
	fprintf(f, "kvfs_%s %llu\n", name, (ull)value);
}

static void both(FILE *f, const char *name, const char *type, const char *help,
		 uint64_t dram, uint64_t ssd)
{
	head(f, name, type, help);
	fprintf(f, "kvfs_%s{tier=\"dram\"} %llu\n", name, (ull)dram);
	fprintf(f, "kvfs_%s{tier=\"ssd\"} %llu\n", name, (ull)ssd);
}

static void write_gauges(FILE *f, const struct kv_cache_stats *s)
{
	both(f, "blocks", "gauge", "Blocks in a tier.", s->dram_blocks,
	     s->ssd_blocks);
	both(f, "bytes", "gauge", "Bytes that blocks hold in a tier.",
	     s->dram_used, s->ssd_used);
	both(f, "capacity_bytes", "gauge", "Size of a tier.", s->dram_total,
	     s->ssd_total);
	one(f, "spaces", "gauge", "Spaces.", s->spaces);
	one(f, "leases", "gauge", "Blocks leased by clients.", s->leases);
	one(f, "pinned_blocks", "gauge", "Blocks pinned by users.", s->pinned);
	one(f, "pinned_bytes", "gauge", "Bytes of DRAM that pins hold.",
	    s->pinned_bytes);
	one(f, "snapshots", "gauge", "Snapshots.", s->snapshots);
	one(f, "saving_blocks", "gauge", "Blocks being saved.", s->saving);
	one(f, "dirty_blocks", "gauge", "Sealed blocks not yet on SSD.",
	    s->dirty_blocks);
	one(f, "dram_alone_blocks", "gauge",
	    "Sealed blocks neither on SSD nor on their way to it.",
	    s->dram_alone);
	one(f, "segments", "gauge", "DRAM segments in use.", s->dram_segments);
	one(f, "retired_segments", "gauge",
	    "DRAM segments that clients still have mapped.", s->dram_retired);
	one(f, "index_bytes", "gauge", "Size of the index.", s->index_bytes);
	one(f, "ssd_degraded", "gauge", "1 while the SSD tier is degraded.",
	    s->ssd_degraded);
	one(f, "stuck_requests", "gauge", "SSD requests that do not end.",
	    s->stuck);
	one(f, "unusable_files", "gauge",
	    "Segment files whose change of slot size failed; it is retried.",
	    s->ssd_unusable_files);
	one(f, "resize_failures_total", "counter",
	    "Changes of a segment file's slot size that failed.",
	    s->resize_failures);
	one(f, "bad_slots", "gauge",
	    "SSD slots out of use until the next mount.", s->bad_slots);
	one(f, "scrub_percent", "gauge", "How far this pass of the scrub is.",
	    s->scrub_percent);
	one(f, "scrub_ended_seconds", "gauge",
	    "When its last whole pass ended, in Unix time; 0: never.",
	    (uint64_t)(s->scrub_ended_ns / 1000000000));
}

static void write_admission(FILE *f, const struct kv_cache_stats *s)
{
	head(f, "unwritten_total", "counter",
	     "Times a block was not written to SSD unasked.");
	fprintf(f, "kvfs_unwritten_total{reason=\"parent\"} %llu\n",
		(ull)s->unwritten_orphans);
	fprintf(f, "kvfs_unwritten_total{reason=\"budget\"} %llu\n",
		(ull)s->unwritten_budget);
	fprintf(f, "kvfs_unwritten_total{reason=\"quota\"} %llu\n",
		(ull)s->unwritten_quota);
	fprintf(f, "kvfs_unwritten_total{reason=\"shed\"} %llu\n",
		(ull)s->dropped_saves);
	one(f, "refused_rate_total", "counter",
	    "Saves refused because their space was beyond its rate.",
	    s->refused_rate);
	one(f, "prefetched_bytes_total", "counter",
	    "Bytes that prefetches read from SSD.", s->prefetched);
	one(f, "prefetch_used_bytes_total", "counter",
	    "Prefetched bytes that were used.", s->prefetch_used);
	one(f, "prefetch_unused_bytes_total", "counter",
	    "Prefetched bytes that were evicted unused.", s->prefetch_unused);
}

static void write_counters(FILE *f, const struct kv_cache_stats *s)
{
	one(f, "asked_blocks_total", "counter",
	    "Blocks that match and probe asked for.", s->lookups.asked);
	one(f, "found_blocks_total", "counter",
	    "Those of them that were there.", s->lookups.found);
	both(f, "hits_total", "counter", "Blocks that acquire found.",
	     s->lookups.hits_dram, s->lookups.hits_ssd);
	one(f, "misses_total", "counter",
	    "Blocks that match, probe or acquire did not find.",
	    s->lookups.misses);
	one(f, "sealed_total", "counter", "Blocks sealed.", s->sealed);
	one(f, "conflicts_total", "counter",
	    "Saves of a present key with other bytes.", s->conflicts);
	one(f, "corrupt_blocks_total", "counter",
	    "Blocks that failed their digest.", s->corrupt);
	head(f, "evictions_total", "counter", "Blocks evicted from a tier.");
	fprintf(f,
		"kvfs_evictions_total{tier=\"dram\",reason=\"space\"} %llu\n",
		(ull)s->evicted_dram);
	fprintf(f, "kvfs_evictions_total{tier=\"ssd\",reason=\"space\"} %llu\n",
		(ull)s->evicted_ssd);
	one(f, "moved_blocks_total", "counter",
	    "Blocks moved from one file on SSD to another, to make place.",
	    s->moved_ssd);
	one(f, "evicted_last_total", "counter",
	    "Of those from dram, blocks that were on no SSD.", s->evicted_last);
	one(f, "removed_total", "counter", "Blocks removed by users.",
	    s->removed);
	one(f, "dropped_saves_total", "counter",
	    "Saves refused for want of room.", s->dropped_saves);
	one(f, "ssd_read_bytes_total", "counter", "Bytes read from SSD.",
	    s->bytes_read_ssd);
	one(f, "ssd_written_bytes_total", "counter", "Bytes written to SSD.",
	    s->bytes_written_ssd);
	one(f, "commits_total", "counter", "Index transactions.", s->commits);
	one(f, "io_errors_total", "counter", "Failed SSD requests.",
	    s->io_errors);
	one(f, "ssd_outages_total", "counter", "Times the SSD went offline.",
	    s->ssd_outages);
	write_admission(f, s);
	one(f, "scrubbed_bytes_total", "counter", "Bytes re-read by the scrub.",
	    s->scrubbed);
	one(f, "scrub_passes_total", "counter", "Whole passes of the scrub.",
	    s->scrub_passes);
	one(f, "scrub_corrupt_total", "counter",
	    "Corrupt blocks that the scrub found.", s->scrub_corrupt);
}

static void write_eviction(FILE *f, const struct kv_cache_stats *s)
{
	static const char *const sizes[] = {"1x", "2x", "4x", "inf"};

	head(f, "eviction_policy", "gauge", "1 for the policy in use.");
	fprintf(f, "kvfs_eviction_policy{name=\"%s\"} 1\n", s->evict);
	one(f, "remembered_total", "counter",
	    "Blocks that came in and were known from before.", s->remembered);
	one(f, "victims_ended_total", "counter",
	    "Evicted blocks of conversations that had ended.",
	    s->victims_ended);
	one(f, "victims_refused_total", "counter",
	    "Blocks passed over at eviction because they were in use.",
	    s->victims_refused);
	head(f, "estimated_hit_rate", "gauge",
	     "What so many times the DRAM would give.");
	for (unsigned i = 0; i < KV_ARRAY_LEN(sizes); i++)
		fprintf(f, "kvfs_estimated_hit_rate{dram=\"%s\"} %.4f\n",
			sizes[i], s->estimated[i]);
}

char *kv_tenant_text(struct kv_cache *cache, uint32_t uid)
{
	const struct kv_tenant_info info = kv_tenant_stat(cache, uid);
	const struct kv_quota *q = &info.quota;
	char *text;

	if (asprintf(&text,
		     "spaces=%llu\nblocks=%llu\nbytes.dram=%llu\n"
		     "bytes.ssd=%llu\nquota.dram=%llu\nquota.ssd=%llu\n"
		     "reserve.dram=%llu\nreserve.ssd=%llu\nrate.put=%llu\n",
		     (ull)info.spaces, (ull)info.blocks, (ull)info.bytes_dram,
		     (ull)info.bytes_ssd, (ull)q->quota_dram, (ull)q->quota_ssd,
		     (ull)q->reserve_dram, (ull)q->reserve_ssd,
		     (ull)q->rate_put) < 0)
		return NULL;
	return text;
}

/* ---- by space ---- */

struct space_line {
	struct kv_space *space; /* held; NULL: no such one, or not yet */
	bool others;		/* it has the sum's name */
	struct kv_space_info info;
};

static int by_bytes(const void *a, const void *b)
{
	const struct kv_space_info *x = &((const struct space_line *)a)->info;
	const struct kv_space_info *y = &((const struct space_line *)b)->info;
	uint64_t m = x->bytes_dram + x->bytes_ssd;
	uint64_t n = y->bytes_dram + y->bytes_ssd;

	if (m != n)
		return m < n ? 1 : -1;
	return x->id < y->id ? -1 : x->id > y->id;
}

static void add_to(struct kv_space_info *sum, const struct kv_space_info *info)
{
	sum->blocks += info->blocks;
	sum->bytes_dram += info->bytes_dram;
	sum->bytes_ssd += info->bytes_ssd;
	sum->quota.quota_dram += info->quota.quota_dram;
	sum->quota.quota_ssd += info->quota.quota_ssd;
	sum->lookups.asked += info->lookups.asked;
	sum->lookups.found += info->lookups.found;
	sum->lookups.hits_dram += info->lookups.hits_dram;
	sum->lookups.hits_ssd += info->lookups.hits_ssd;
	sum->lookups.misses += info->lookups.misses;
}

static bool shows(const struct kv_rules *rules, const struct kv_caller *reader,
		  const struct kv_space_info *info)
{
	return kv_rules_operator(rules, reader->uid) ||
	       kv_access_ok(rules, info, reader, R_OK);
}

/* All spaces that @reader may read; returns how many, -ENOMEM. */
static long list_spaces(struct kv_cache *cache, const struct kv_rules *rules,
			const struct kv_caller *reader,
			struct space_line **ret_lines)
{
	struct space_line *lines = NULL, *more;
	size_t n = 0, room = 0;
	uint32_t id = 0;

	while (true) {
		_cleanup_(kv_space_putp) struct kv_space *space =
			kv_space_next(cache, id);

		if (!space)
			break;
		if (n == room) {
			room = room * 2 + 64;
			more = reallocarray(lines, room, sizeof(*lines));
			if (!more) {
				free(lines);
				return -ENOMEM;
			}
			lines = more;
		}
		lines[n] = (struct space_line){
			.others = strcmp(kv_space_name(space), OTHERS) == 0,
			.info = kv_space_stat(cache, space)};
		id = lines[n].info.id;
		n += shows(rules, reader, &lines[n].info);
	}
	*ret_lines = lines;
	return (long)n;
}

/* Leave the largest, by what they hold, each held, and behind them the sum of
 * the others, with that of a space that has the sum's name.  Returns how
 * many. */
static size_t sum_up(struct kv_cache *cache, struct space_line *lines, size_t n)
{
	struct space_line rest = {0};
	size_t kept = 0;

	if (n > 0)
		qsort(lines, n, sizeof(*lines), by_bytes);
	for (size_t i = 0; i < n; i++) {
		struct kv_space *space = NULL;

		if (kept < SPACES_MAX && !lines[i].others)
			space = kv_space_by_id(cache, lines[i].info.id);
		if (space) {
			lines[kept] = lines[i];
			lines[kept++].space = space;
		} else {
			add_to(&rest.info, &lines[i].info);
		}
	}
	if (kept < n)
		lines[kept++] = rest;
	return kept;
}

static void put_label(FILE *f, const char *name)
{
	for (; *name != '\0'; name++)
		if (*name == '\n')
			fputs("\\n", f);
		else if (*name == '"' || *name == '\\')
			fprintf(f, "\\%c", *name);
		else
			fputc(*name, f);
}

struct space_metric {
	const char *name, *type, *tier, *help;
	size_t at; /* in kv_space_info */
};

#define AT(field) offsetof(struct kv_space_info, field)

static const struct space_metric space_metrics[] = {
	{"space_blocks", "gauge", NULL, "Blocks of a space.", AT(blocks)},
	{"space_bytes", "gauge", "dram", "Bytes that a space holds in a tier.",
	 AT(bytes_dram)},
	{"space_bytes", "gauge", "ssd", NULL, AT(bytes_ssd)},
	{"space_quota_bytes", "gauge", "dram",
	 "The most that it may hold; 0: no limit.", AT(quota.quota_dram)},
	{"space_quota_bytes", "gauge", "ssd", NULL, AT(quota.quota_ssd)},
	{"space_asked_blocks_total", "counter", NULL,
	 "As asked_blocks_total, of a space.", AT(lookups.asked)},
	{"space_found_blocks_total", "counter", NULL,
	 "As found_blocks_total, of a space.", AT(lookups.found)},
	{"space_hits_total", "counter", "dram", "As hits_total, of a space.",
	 AT(lookups.hits_dram)},
	{"space_hits_total", "counter", "ssd", NULL, AT(lookups.hits_ssd)},
	{"space_misses_total", "counter", NULL, "As misses_total, of a space.",
	 AT(lookups.misses)},
};

static void write_spaces(FILE *f, struct kv_cache *cache,
			 const struct kv_rules *rules,
			 const struct kv_caller *reader)
{
	_cleanup_(kv_freep) struct space_line *lines = NULL;
	long all = list_spaces(cache, rules, reader, &lines);
	size_t n = all > 0 ? sum_up(cache, lines, (size_t)all) : 0;

	for (size_t i = 0; i < KV_ARRAY_LEN(space_metrics) && n > 0; i++) {
		const struct space_metric *m = &space_metrics[i];

		if (m->help)
			head(f, m->name, m->type, m->help);
		for (size_t k = 0; k < n; k++) {
			const char *info = (const char *)&lines[k].info;

			fprintf(f, "kvfs_%s{space=\"", m->name);
			put_label(f, lines[k].space
					     ? kv_space_name(lines[k].space)
					     : OTHERS);
			fputc('"', f);
			if (m->tier)
				fprintf(f, ",tier=\"%s\"", m->tier);
			fprintf(f, "} %llu\n",
				(ull) * (const uint64_t *)(info + m->at));
		}
	}
	for (size_t k = 0; k < n; k++)
		kv_space_put(lines[k].space);
}

static void write_control(FILE *f, const struct kv_control_counts *c)
{
	one(f, "connections", "gauge", "Clients on the control socket.",
	    c->connections);
	one(f, "connections_refused_total", "counter",
	    "Connections over a limit.", c->refused);
	one(f, "messages_total", "counter", "Control messages.", c->messages);
	one(f, "protocol_errors_total", "counter",
	    "Connections closed for a bad message.", c->protocol_errors);
	one(f, "stray_releases_total", "counter",
	    "Releases of what was not held.", c->stray_releases);
	one(f, "forced_releases_total", "counter",
	    "Leases of clients that ended without a release.",
	    c->forced_releases);
}

static void remote_row(FILE *f, const char *name, const char *type,
		       const char *help, const struct kv_remote_stats *all,
		       size_t n, size_t field)
{
	head(f, name, type, help);
	for (size_t i = 0; i < n; i++)
		fprintf(f, "kvfs_%s{backend=\"%zu\"} %llu\n", name, i,
			(ull) * (const uint64_t *)((const char *)&all[i] +
						   field));
}

static void remote_calls(FILE *f, const struct kv_remote_stats *all, size_t n)
{
	static const char *const calls[] = {
		[KV_REMOTE_EXISTS] = "exists", [KV_REMOTE_GET] = "get",
		[KV_REMOTE_PUT] = "put",       [KV_REMOTE_PUBLISH] = "publish",
		[KV_REMOTE_REMOVE] = "remove", [KV_REMOTE_CLEAR] = "clear",
	};

	head(f, "remote_calls_total", "counter", "Calls of a backend.");
	for (size_t i = 0; i < n; i++)
		for (unsigned c = 0; c < KV_REMOTE_CALLS; c++)
			fprintf(f,
				"kvfs_remote_calls_total{backend=\"%zu\","
				"call=\"%s\"} %llu\n",
				i, calls[c], (ull)all[i].calls[c]);
	head(f, "remote_seconds_total", "counter", "What they took.");
	for (size_t i = 0; i < n; i++)
		for (unsigned c = 0; c < KV_REMOTE_CALLS; c++)
			fprintf(f,
				"kvfs_remote_seconds_total{backend=\"%zu\","
				"call=\"%s\"} %.6f\n",
				i, calls[c], (double)all[i].ns[c] / 1e9);
}

/* Backends by their place in the command line: URLs may be long. */
static void write_remote_metrics(FILE *f, struct kv_cache *cache)
{
	struct kv_remote_stats all[REMOTES];
	size_t n = kv_remote_stats(cache, all, REMOTES);

	if (n == 0)
		return;
	head(f, "remote_open", "gauge",
	     "0 while a backend failed too often, or is not there.");
	for (size_t i = 0; i < n; i++)
		fprintf(f, "kvfs_remote_open{backend=\"%zu\"} %d\n", i,
			all[i].open);
	remote_calls(f, all, n);
	remote_row(f, "remote_got_bytes_total", "counter",
		   "Bytes that came from a backend.", all, n,
		   offsetof(struct kv_remote_stats, got_bytes));
	remote_row(f, "remote_put_bytes_total", "counter",
		   "Bytes handed over to a backend.", all, n,
		   offsetof(struct kv_remote_stats, put_bytes));
	remote_row(f, "remote_failed_total", "counter",
		   "Calls that failed, or took too long.", all, n,
		   offsetof(struct kv_remote_stats, failed));
	remote_row(f, "remote_late_total", "counter",
		   "Calls that took too long.", all, n,
		   offsetof(struct kv_remote_stats, late));
	remote_row(f, "remote_damaged_total", "counter",
		   "Objects that were not what they should be.", all, n,
		   offsetof(struct kv_remote_stats, damaged));
	remote_row(f, "remote_dropped_total", "counter",
		   "Blocks that were not handed over at once.", all, n,
		   offsetof(struct kv_remote_stats, dropped));
	remote_row(f, "remote_offering", "gauge",
		   "Spaces that are offered to it again.", all, n,
		   offsetof(struct kv_remote_stats, offering));
	remote_row(f, "remote_lent_bytes", "gauge",
		   "Memory that a backend has, for what is on its way.", all, n,
		   offsetof(struct kv_remote_stats, lent_bytes));
	remote_row(f, "remote_helpers", "gauge", "Helpers of tenants.", all, n,
		   offsetof(struct kv_remote_stats, helpers));
	remote_row(f, "remote_helpers_unwell", "gauge",
		   "Of these, those that are not asked.", all, n,
		   offsetof(struct kv_remote_stats, helpers_unwell));
	remote_row(f, "remote_refused_total", "counter",
		   "Calls for tenants without a place.", all, n,
		   offsetof(struct kv_remote_stats, refused));
}

char *kv_metrics_text(struct kv_cache *cache,
		      const struct kv_control_counts *control,
		      const struct kv_rules *rules,
		      const struct kv_caller *reader)
{
	struct kv_cache_stats s;
	char *text = NULL;
	size_t n;
	FILE *f = open_memstream(&text, &n);

	if (!f)
		return NULL;
	kv_cache_stats(cache, &s);
	write_gauges(f, &s);
	write_counters(f, &s);
	write_eviction(f, &s);
	write_remote_metrics(f, cache);
	write_spaces(f, cache, rules, reader);
	write_control(f, control);
	if (fclose(f) != 0) {
		free(text);
		return NULL;
	}
	return text;
}
