/* SPDX-License-Identifier: Apache-2.0 */
/* report.h - print the results that the journal of a test has collected. */
#ifndef KV_TESTS_CRASH_REPORT_H
#define KV_TESTS_CRASH_REPORT_H

#include "tests/crash/journal.h"

static inline int report_by_size(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

static inline void report_times(const char *what, struct journal_times *times)
{
	static uint32_t us[JOURNAL_TIMES];
	uint32_t n = KV_MIN(times->n, JOURNAL_TIMES);

	if (n == 0)
		return;
	for (uint32_t i = 0; i < n; i++)
		us[i] = times->us[i];
	qsort(us, n, sizeof(*us), report_by_size);
	printf("%s: %u times, p50 %.1f, p99 %.1f, max %.1f ms\n", what, n,
	       us[n / 2] / 1e3, us[n - 1 - n / 100] / 1e3, us[n - 1] / 1e3);
}

/* Phases of a round of killer.c; the report has their times. */
enum report_phase {
	REPORT_PREPARING,
	REPORT_STARTING,
	REPORT_COMPARING,
	REPORT_LIVING,
	REPORT_CHECKING,
	REPORT_PHASES
};
struct report_phases {
	uint64_t spent[REPORT_PHASES], began;
};

static inline void report_phase_over(struct report_phases *p,
				     enum report_phase phase)
{
	uint64_t now = kv_now_ns();

	p->spent[phase] += now - p->began;
	p->began = now;
}

static inline void report_phases(const struct report_phases *p, unsigned rounds)
{
	static const char *const what[REPORT_PHASES] = {
		"to prepare it", "until the daemon answers",
		"until all have compared", "until it is dead",
		"to check the store"};

	printf("of a round, in ms:");
	for (unsigned i = 0; i < REPORT_PHASES; i++)
		printf("%s %s %.1f", i ? "," : "", what[i],
		       (double)p->spent[i] / 1e6 / KV_MAX(rounds, 1u));
	printf("\n");
}

static inline void report_totals(struct journal *j, unsigned faults)
{
	printf("acknowledged %llu removed %llu sealed %llu compared %llu: "
	       "lost %llu wrong %llu damaged %llu returned %llu faults %llu "
	       "refused %llu\n",
	       (unsigned long long)j->acknowledged,
	       (unsigned long long)j->removed, (unsigned long long)j->sealed,
	       (unsigned long long)j->checked, (unsigned long long)j->lost,
	       (unsigned long long)j->wrong, (unsigned long long)j->damaged,
	       (unsigned long long)j->returned,
	       (unsigned long long)j->faults + faults,
	       (unsigned long long)j->refused);
	report_times("recovery, from exec to the first answer", &j->recovery);
	report_times("readers' reconnection, from the first answer to a lease",
		     &j->reconnect);
	printf("leased blocks reread %llu times; mapped files %llu, SIGBUS "
	       "%llu, ENOTCONN %llu\n",
	       (unsigned long long)j->pointers, (unsigned long long)j->maps,
	       (unsigned long long)j->sigbus, (unsigned long long)j->notconn);
}

#endif
